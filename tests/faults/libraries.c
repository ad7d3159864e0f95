/* libcuda, libnvrtc and libcublasLt in one, for a machine without a GPU: device memory is memory of the
 * host, kernels compute nothing, and every sampled token is the same. A table that the test has mapped says
 * which call fails, and holds how often each was made and how much of each kind is alive.
 *
 * The declarations are those of rust/cuda/src/sys; handles are addresses that malloc has given. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NUM_ROWS 256
/* `a` in the vocabulary of the tests' models. */
#define TOKEN 69
/* Words of a sample that comes back: SampleOut of rust/cuda/src/contract. */
#define SAMPLE_WORDS 48
#define EXPORT __attribute__((visibility("default")))

/* faults/device.py reads and writes the same rows. */
struct row {
    char name[48];
    uint32_t calls;
    /* Of the call that fails, counted from 1; 0: none. */
    uint32_t fails;
    int32_t code;
    /* Of a kind: made less ended. */
    int32_t alive;
};

static struct row no_table[NUM_ROWS];
static struct row *table = no_table;

__attribute__((constructor)) static void map_table(void) {
    const char *path = getenv("INGLE_FAULT_TABLE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof(no_table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) table = found;
    close(fd);
}

static struct row *row_of(const char *name) {
    static int lock;
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) { }
    struct row *row = table;
    while (row->name[0] && strncmp(row->name, name, sizeof(row->name) - 1)) row++;
    if (!row->name[0]) strncpy(row->name, name, sizeof(row->name) - 1);
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
    return row;
}

/* Counts a call; what it must end with. */
static int called(const char *name) {
    struct row *row = row_of(name);
    uint32_t number = __atomic_add_fetch(&row->calls, 1, __ATOMIC_RELAXED);
    return row->fails == number ? row->code : 0;
}

static void alive(const char *kind, int change) {
    __atomic_add_fetch(&row_of(kind)->alive, change, __ATOMIC_RELAXED);
}

#define CALL()                             \
    do {                                   \
        int failed = called(__func__);     \
        if (failed) return failed;         \
    } while (0)

/* A new handle of a kind. */
#define MAKE(place, kind)                  \
    do {                                   \
        CALL();                            \
        *(place) = malloc(16);             \
        alive(kind, 1);                    \
        return 0;                          \
    } while (0)

#define END(handle, kind)                  \
    do {                                   \
        CALL();                            \
        free(handle);                      \
        alive(kind, -1);                   \
        return 0;                          \
    } while (0)

typedef uint64_t address;

/* --- libcuda --- */

EXPORT int cuInit(unsigned flags) { (void)flags; CALL(); return 0; }
EXPORT int cuDriverGetVersion(int *version) { CALL(); *version = 13000; return 0; }
EXPORT int cuGetErrorName(int code, const char **text) { (void)code; *text = "INJECTED"; return 0; }
EXPORT int cuGetErrorString(int code, const char **text) { (void)code; *text = "made to fail"; return 0; }
EXPORT int cuDeviceGetCount(int *count) { CALL(); *count = 1; return 0; }
EXPORT int cuDeviceGet(int *device, int ordinal) { CALL(); *device = ordinal; return 0; }
EXPORT int cuDeviceGetName(char *name, int len, int device) {
    (void)device; CALL(); strncpy(name, "Scripted GPU", (size_t)len); return 0;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; CALL(); *bytes = 1ul << 31; return 0; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    CALL();
    switch (attribute) {
    case 16: *value = 132; break;         /* multiprocessors */
    case 75: *value = 9; break;           /* compute capability */
    case 76: *value = 0; break;
    case 81: *value = 228 << 10; break;   /* shared memory of a multiprocessor, of a block, kept back */
    case 97: *value = 227 << 10; break;
    case 111: *value = 1 << 10; break;
    default: *value = 0;
    }
    return 0;
}
EXPORT int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) { (void)device; (void)flags; CALL(); return 0; }
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; MAKE(context, "contexts"); }
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; END(NULL, "contexts"); }
EXPORT int cuCtxSetCurrent(void *context) { (void)context; CALL(); return 0; }
EXPORT int cuMemGetInfo_v2(size_t *left, size_t *total) { CALL(); *left = 1ul << 30; *total = 1ul << 31; return 0; }

EXPORT int cuMemAddressReserve(address *place, size_t size, size_t alignment, address wanted, uint64_t flags) {
    (void)alignment; (void)wanted; (void)flags;
    CALL();
    void *found = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return 2;
    *place = (address)found;
    alive("addresses", 1);
    return 0;
}
EXPORT int cuMemAddressFree(address place, size_t size) {
    CALL();
    munmap((void *)place, size);
    alive("addresses", -1);
    return 0;
}
EXPORT int cuMemCreate(address *handle, size_t size, const void *properties, uint64_t flags) {
    (void)size; (void)properties; (void)flags;
    CALL();
    *handle = 7;
    alive("memory", 1);
    return 0;
}
EXPORT int cuMemMap(address place, size_t size, size_t offset, address handle, uint64_t flags) {
    (void)place; (void)size; (void)offset; (void)handle; (void)flags;
    CALL();
    alive("maps", 1);
    return 0;
}
EXPORT int cuMemSetAccess(address place, size_t size, const void *access, size_t count) {
    (void)access; (void)count;
    CALL();
    return mprotect((void *)place, size, PROT_READ | PROT_WRITE) ? 1 : 0;
}
EXPORT int cuMemUnmap(address place, size_t size) {
    CALL();
    madvise((void *)place, size, MADV_DONTNEED);
    mprotect((void *)place, size, PROT_NONE);
    alive("maps", -1);
    return 0;
}
EXPORT int cuMemRelease(address handle) { (void)handle; CALL(); alive("memory", -1); return 0; }
EXPORT int cuMemHostAlloc(void **place, size_t bytes, unsigned flags) {
    (void)flags;
    CALL();
    *place = calloc(1, bytes);
    alive("pinned memory", 1);
    return 0;
}
EXPORT int cuMemFreeHost(void *place) { END(place, "pinned memory"); }
EXPORT int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream) {
    (void)stream; CALL(); memcpy((void *)to, from, bytes); return 0;
}
EXPORT int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream) {
    (void)stream;
    CALL();
    memcpy(to, (const void *)from, bytes);
    if (bytes % (4 * SAMPLE_WORDS) == 0)
        for (size_t word = 0; word < bytes / 4; word += SAMPLE_WORDS) ((uint32_t *)to)[word] = TOKEN;
    return 0;
}
EXPORT int cuMemsetD8Async(address place, unsigned char value, size_t count, void *stream) {
    (void)stream;
    CALL();
    /* Fresh memory is zero already; writing to it would take it. */
    if (value) memset((void *)place, value, count);
    return 0;
}
EXPORT int cuStreamCreate(void **stream, unsigned flags) { (void)flags; MAKE(stream, "streams"); }
EXPORT int cuStreamDestroy_v2(void *stream) { END(stream, "streams"); }
EXPORT int cuStreamSynchronize(void *stream) { (void)stream; CALL(); return 0; }
EXPORT int cuStreamBeginCapture_v2(void *stream, int mode) { (void)stream; (void)mode; CALL(); return 0; }
EXPORT int cuStreamEndCapture(void *stream, void **graph) { (void)stream; MAKE(graph, "graphs"); }
EXPORT int cuEventCreate(void **event, unsigned flags) { (void)flags; MAKE(event, "events"); }
EXPORT int cuEventDestroy_v2(void *event) { END(event, "events"); }
EXPORT int cuEventRecord(void *event, void *stream) { (void)event; (void)stream; CALL(); return 0; }
EXPORT int cuEventSynchronize(void *event) {
    (void)event;
    CALL();
    // What a step takes, for tests in which streams must not be over before something happens.
    const char *microseconds = getenv("INGLE_FAULT_STEP_US");
    if (microseconds) usleep((unsigned)atoi(microseconds));
    return 0;
}
EXPORT int cuEventElapsedTime_v2(float *milliseconds, void *start, void *end) {
    (void)start; (void)end; CALL(); *milliseconds = 0.25f; return 0;
}
EXPORT int cuLibraryLoadData(void **library, const void *code, int *a, void **b, unsigned c, int *d, void **e, unsigned f) {
    (void)code; (void)a; (void)b; (void)c; (void)d; (void)e; (void)f;
    MAKE(library, "libraries");
}
EXPORT int cuLibraryUnload(void *library) { END(library, "libraries"); }
EXPORT int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    (void)name; CALL(); *kernel = library; return 0;
}
EXPORT int cuKernelGetFunction(void **function, void *kernel) { CALL(); *function = kernel; return 0; }
EXPORT int cuFuncSetAttribute(void *function, int attribute, int value) {
    (void)function; (void)attribute; (void)value; CALL(); return 0;
}
EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function) {
    (void)attribute; (void)function; CALL(); *value = 1024; return 0;
}
EXPORT int cuLaunchKernelEx(const void *config, void *function, void **arguments, void **extra) {
    (void)config; (void)function; (void)arguments; (void)extra; CALL(); return 0;
}
EXPORT int cuTensorMapEncodeTiled(void *map, unsigned type, unsigned rank, address place, const uint64_t *dims,
                                  const uint64_t *strides, const uint32_t *box, const uint32_t *steps, unsigned a,
                                  unsigned b, unsigned c, unsigned d) {
    (void)type; (void)rank; (void)place; (void)dims; (void)strides; (void)box; (void)steps;
    (void)a; (void)b; (void)c; (void)d;
    CALL();
    memset(map, 0, 128);
    return 0;
}
EXPORT int cuGraphDestroy(void *graph) { END(graph, "graphs"); }
EXPORT int cuGraphGetNodes(void *graph, void **nodes, size_t *count) { (void)graph; (void)nodes; CALL(); *count = 3; return 0; }
EXPORT int cuGraphInstantiateWithFlags(void **exec, void *graph, uint64_t flags) {
    (void)graph; (void)flags; MAKE(exec, "instantiated graphs");
}
EXPORT int cuGraphExecDestroy(void *exec) { END(exec, "instantiated graphs"); }
EXPORT int cuGraphUpload(void *exec, void *stream) { (void)exec; (void)stream; CALL(); return 0; }
EXPORT int cuGraphLaunch(void *exec, void *stream) { (void)exec; (void)stream; CALL(); return 0; }

/* --- libnvrtc --- */

EXPORT int nvrtcVersion(int *major, int *minor) { CALL(); *major = 13; *minor = 0; return 0; }
EXPORT const char *nvrtcGetErrorString(int code) { (void)code; return "made to fail"; }
EXPORT int nvrtcCreateProgram(void **program, const char *source, const char *name, int count,
                              const char *const *headers, const char *const *names) {
    (void)source; (void)name; (void)count; (void)headers; (void)names;
    MAKE(program, "programs");
}
EXPORT int nvrtcDestroyProgram(void **program) { END(*program, "programs"); }
EXPORT int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    (void)program; (void)count; (void)options; CALL(); return 0;
}
EXPORT int nvrtcGetCUBINSize(void *program, size_t *size) { (void)program; CALL(); *size = 5; return 0; }
EXPORT int nvrtcGetCUBIN(void *program, char *code) { (void)program; CALL(); memcpy(code, "code", 5); return 0; }
EXPORT int nvrtcGetPTXSize(void *program, size_t *size) { (void)program; CALL(); *size = 5; return 0; }
EXPORT int nvrtcGetPTX(void *program, char *code) { (void)program; CALL(); memcpy(code, "code", 5); return 0; }
EXPORT int nvrtcGetProgramLogSize(void *program, size_t *size) { (void)program; CALL(); *size = 13; return 0; }
EXPORT int nvrtcGetProgramLog(void *program, char *log) { (void)program; CALL(); memcpy(log, "made to fail", 13); return 0; }

/* --- libcublasLt --- */

struct result {
    uint64_t algo[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

EXPORT size_t cublasLtGetVersion(void) { return 130002; }
EXPORT int cublasLtCreate(void **handle) { MAKE(handle, "cuBLASLt handles"); }
EXPORT int cublasLtDestroy(void *handle) { END(handle, "cuBLASLt handles"); }
EXPORT int cublasLtMatmulDescCreate(void **desc, int compute, int scale) {
    (void)compute; (void)scale; MAKE(desc, "descriptors");
}
EXPORT int cublasLtMatmulDescDestroy(void *desc) { END(desc, "descriptors"); }
EXPORT int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t bytes) {
    (void)desc; (void)attribute; (void)value; (void)bytes; CALL(); return 0;
}
EXPORT int cublasLtMatrixLayoutCreate(void **layout, int kind, uint64_t rows, uint64_t cols, int64_t ld) {
    (void)kind; (void)rows; (void)cols; (void)ld; MAKE(layout, "layouts");
}
EXPORT int cublasLtMatrixLayoutDestroy(void *layout) { END(layout, "layouts"); }
EXPORT int cublasLtMatmulPreferenceCreate(void **preference) { MAKE(preference, "preferences"); }
EXPORT int cublasLtMatmulPreferenceDestroy(void *preference) { END(preference, "preferences"); }
EXPORT int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
    (void)preference; (void)attribute; (void)value; (void)bytes; CALL(); return 0;
}
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference,
                                          int wanted, struct result *results, int *found) {
    (void)handle; (void)desc; (void)a; (void)b; (void)c; (void)d; (void)preference; (void)wanted;
    CALL();
    memset(results, 0, sizeof(*results));
    *found = 1;
    return 0;
}
EXPORT int cublasLtMatmulAlgoCheck(void *handle, void *desc, void *a, void *b, void *c, void *d, const void *algo,
                                   struct result *result) {
    (void)handle; (void)desc; (void)a; (void)b; (void)c; (void)d; (void)algo;
    CALL();
    memset(result, 0, sizeof(*result));
    return 0;
}
EXPORT int cublasLtMatmulAlgoConfigGetAttribute(const void *algo, int attribute, void *value, size_t bytes, size_t *written) {
    (void)algo; (void)attribute;
    CALL();
    memset(value, 0, bytes);
    *written = bytes;
    return 0;
}
EXPORT int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,
                          void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                          const void *algo, void *workspace, size_t bytes, void *stream) {
    (void)handle; (void)desc; (void)alpha; (void)a; (void)a_layout; (void)b; (void)b_layout; (void)beta; (void)c;
    (void)c_layout; (void)d; (void)d_layout; (void)algo; (void)workspace; (void)bytes; (void)stream;
    CALL();
    return 0;
}
