// Sums and gathers over the ranks of a group, through memory that all of them can write. Each rank launches the same
// kernels with the same sizes in the same order; a launch is one exchange.
//
// ranks_reduce: of the ranks' partial sums, in rank order, what the residual stream gains, and what follows:
//   sum = ((partial[0] + partial[1]) + ...) + bias; with post_norm: sum = norm(sum) * post_norm
//   residual += sum; with norm: out = act(norm(residual) * norm)
//   partial, residual [rows, hidden_size] f32; bias, post_norm, norm [hidden_size] f32 or null; out [rows, hidden_size]
//   act. Every rank computes all rows, so that all residual streams hold the same bits. A row's bits do not depend on
//   the other rows.
// ranks_gather: puts the columns of all ranks together: local [rows, columns] f32 of each rank into rows of vocab_size
//   of every rank's logits, from column `first` on.
//
// regions: [ranks] addresses of the ranks' exchange regions, laid out alike:
//   flags [EXCHANGE_FLAGS, ranks, EXCHANGE_GRID] u64 | inbox [2, ranks, EXCHANGE_ROWS, hidden_size] f32 | logits
// A block sends to its like on the other ranks, then a flag with the number of the exchange, then waits for theirs.
// Numbers rise by one with each exchange and are kept on the device (control), so that a graph can be replayed.
// The inbox is used in turns: a rank sends for exchange n + 2 after its exchange n + 1, for which every rank has
// finished exchange n. Before a gather all ranks say that they have read the logits of the one before.
//
// A wait ends after EXCHANGE_SECONDS, or when fault[FAULT_ABORT] is set; then fault[FAULT_RANK] says who was waited for
// (its number plus 1), and the kernel traps. With control[CONTROL_ALONE] nothing is sent and no number is used up: the
// kernels can be run before the other ranks can.
// Launch: the same grid on all ranks, at most one wave and EXCHANGE_GRID blocks; a multiple of 32 threads up to 1024;
// hidden_size % 4 == 0 and at most 16 elements a thread. The next kernel may only start when the wait is over.
#include "ptx.cuh"

DEV u64 load_acquire(const u64* address) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

DEV void store_release(u64* address, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

DEV u32 load_volatile(const u32* address) {
    u32 value;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

DEV u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

struct Group {
    const u64* regions;
    u32* fault;
    u32 rank, ranks;
};

DEV u64* flag_of(Group group, u32 owner, u32 kind, u32 from) {
    u64* flags = (u64*)group.regions[owner];
    return flags + ((u64)kind * group.ranks + from) * EXCHANGE_GRID + blockIdx.x;
}

// Tells the other ranks that this block has come so far, and waits until theirs have. All that the block has written
// before is seen by their blocks behind the wait.
DEV void meet(Group group, u32 kind, u64 number) {
    __threadfence_system();
    __syncthreads();
    u32 peer = threadIdx.x;
    if (peer < group.ranks && peer != group.rank) {
        store_release(flag_of(group, peer, kind, group.rank), number);
        const u64* flag = flag_of(group, group.rank, kind, peer);
        u64 start = nanoseconds();
        for (u32 tries = 1; load_acquire(flag) < number; tries++) {
            if (tries % 256) continue;
            bool late = nanoseconds() - start > EXCHANGE_SECONDS * 1000000000ull;
            if (!late && !load_volatile(group.fault + FAULT_ABORT)) continue;
            if (late) atomicExch_system(group.fault + FAULT_RANK, peer + 1);
            __threadfence_system();
            asm volatile("trap;");
        }
    }
    __syncthreads();
}

// The number of this exchange, the same in all blocks.
DEV u64 number_of(const u32* control) { return ((volatile const u64*)control)[CONTROL_NUMBER / 2] + 1; }

// Once all blocks are here, the next exchange has the next number.
DEV void finish(u32* control, u64 number) {
    __syncthreads();
    if (threadIdx.x) return;
    if (atomicAdd(control + CONTROL_BLOCKS, 1) + 1 < gridDim.x) return;
    control[CONTROL_BLOCKS] = 0;
    ((volatile u64*)control)[CONTROL_NUMBER / 2] = number;
}

DEV float4 add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

DEV float4 scaled(float4 v, float4 weight, float scale) {
    return make_float4(v.x * scale * weight.x, v.y * scale * weight.y, v.z * scale * weight.z, v.w * scale * weight.w);
}

// Elements that a thread keeps of a row.
#define QUADS 4

DEV float norm_scale(const float4 (&v)[QUADS], u32 quads, u32 hidden_size, float eps) {
    __shared__ float scratch[33];
    float sum = 0.0f;
#pragma unroll
    for (u32 j = 0; j < QUADS; j++)
        if (threadIdx.x + j * blockDim.x < quads)
            sum += v[j].x * v[j].x + v[j].y * v[j].y + (v[j].z * v[j].z + v[j].w * v[j].w);
    return rsqrtf(block_sum(sum, scratch) / (float)hidden_size + eps);
}

ENTRY(ranks_reduce)
(Dims dims, const u64* __restrict__ regions, u32* control, u32* fault, u32 rank, u32 ranks, u32 rows,
 const float* __restrict__ partial, const float* __restrict__ bias, const float* __restrict__ post_norm,
 float* __restrict__ residual, const float* __restrict__ norm, act* __restrict__ out, float eps) {
    Group group{regions, fault, rank, ranks};
    u32 quads = DIM(hidden_size) / 4;
    grid_wait();
    bool alone = control[CONTROL_ALONE];
    u64 number = number_of(control);
    u64 inbox_at = (u64)EXCHANGE_FLAGS * ranks * EXCHANGE_GRID * 8;
    u64 row_bytes = (u64)DIM(hidden_size) * 4;
    auto inbox = [&](u32 owner, u32 from, u32 row) {
        u64 place = ((number & 1) * ranks + from) * EXCHANGE_ROWS + row;
        return (float4*)(regions[owner] + inbox_at + place * row_bytes);
    };
    if (!alone) {
        for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
            const float4* source = (const float4*)(partial + (u64)row * DIM(hidden_size));
            for (u32 i = threadIdx.x; i < quads; i += blockDim.x) {
                float4 v = source[i];
                for (u32 peer = 0; peer < ranks; peer++)
                    if (peer != rank) inbox(peer, rank, row)[i] = v;
            }
        }
        meet(group, 0, number);
    }
    grid_trigger();
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        float4* target = (float4*)(residual + (u64)row * DIM(hidden_size));
        float4 v[QUADS];
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            u32 i = threadIdx.x + j * blockDim.x;
            v[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (i >= quads) continue;
            for (u32 from = 0; from < ranks; from++) {
                if (alone && from != rank) continue;
                const float4* source = from == rank ? (const float4*)(partial + (u64)row * DIM(hidden_size))
                                                    : inbox(rank, from, row);
                float4 part = __ldcg(source + i);
                v[j] = from == 0 || alone ? part : add(v[j], part);
            }
            if (bias) v[j] = add(v[j], ((const float4*)bias)[i]);
        }
        if (post_norm) {
            float scale = norm_scale(v, quads, DIM(hidden_size), eps);
#pragma unroll
            for (u32 j = 0; j < QUADS; j++) {
                u32 i = threadIdx.x + j * blockDim.x;
                if (i < quads) v[j] = scaled(v[j], ((const float4*)post_norm)[i], scale);
            }
        }
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            u32 i = threadIdx.x + j * blockDim.x;
            if (i < quads) target[i] = v[j] = add(target[i], v[j]);
        }
        if (!norm) continue;
        float scale = norm_scale(v, quads, DIM(hidden_size), eps);
        uint2* normed = (uint2*)(out + (u64)row * DIM(hidden_size));
#pragma unroll
        for (u32 j = 0; j < QUADS; j++) {
            u32 i = threadIdx.x + j * blockDim.x;
            if (i >= quads) continue;
            float4 x = scaled(v[j], ((const float4*)norm)[i], scale);
            normed[i] = make_uint2(pack2(x.x, x.y), pack2(x.z, x.w));
        }
    }
    if (!alone) finish(control, number);
}

ENTRY_F32(ranks_gather)
(Dims dims, const u64* __restrict__ regions, u32* control, u32* fault, u32 rank, u32 ranks, u32 rows, u64 logits_at,
 u32 first, u32 columns, const float* __restrict__ local) {
    Group group{regions, fault, rank, ranks};
    grid_wait();
    bool alone = control[CONTROL_ALONE];
    u64 number = number_of(control);
    if (!alone) meet(group, 1, number);
    u32 slices = (columns + GATHER_COLUMNS - 1) / GATHER_COLUMNS;
    for (u32 item = blockIdx.x; item < rows * slices; item += gridDim.x) {
        u32 row = item / slices, start = item % slices * GATHER_COLUMNS;
        u32 end = min(start + GATHER_COLUMNS, columns);
        const float* source = local + (u64)row * columns;
        for (u32 peer = 0; peer < ranks; peer++) {
            if (alone && peer != rank) continue;
            float* target = (float*)(regions[peer] + logits_at) + (u64)row * DIM(vocab_size) + first;
            for (u32 i = start + threadIdx.x; i < end; i += blockDim.x) target[i] = source[i];
        }
    }
    if (!alone) meet(group, 2, number);
    grid_trigger();
    if (!alone) finish(control, number);
}
