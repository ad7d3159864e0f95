// Preloaded into a server: once the file named by TRAP_FILE exists, the next copy to the device brings
// a kernel that traps along, and the context is lost as it is after a true fault.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *driver;
static int (*real_copy)(unsigned long long, const void *, size_t, void *);

static void *(*real_dlsym(void))(void *, const char *) {
    static void *(*found)(void *, const char *);
    if (!found) found = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!found) found = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!found) abort();
    return found;
}

static void launch_trap(void *stream) {
    static const char ptx[] =
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry trap_now() { trap; ret; }\n";
    int (*load)(void **, const void *) = real_dlsym()(driver, "cuModuleLoadData");
    int (*get)(void **, void *, const char *) = real_dlsym()(driver, "cuModuleGetFunction");
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                  void **, void **) = real_dlsym()(driver, "cuLaunchKernel");
    void *module, *function;
    if (load(&module, ptx) || get(&function, module, "trap_now")
        || launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL))
        fputs("trap.c: the kernel could not be launched\n", stderr);
}

static int copy(unsigned long long to, const void *from, size_t bytes, void *stream) {
    static int done;
    const char *file = getenv("TRAP_FILE");
    if (!done && file && access(file, F_OK) == 0) {
        done = 1;
        launch_trap(stream);
    }
    return real_copy(to, from, bytes, stream);
}

void *dlsym(void *handle, const char *name) {
    void *found = real_dlsym()(handle, name);
    if (!found || strcmp(name, "cuMemcpyHtoDAsync_v2")) return found;
    driver = handle;
    real_copy = (int (*)(unsigned long long, const void *, size_t, void *))found;
    return (void *)copy;
}
