// Mixture of experts: routing, sorting by expert, grouped GEMM and the weighted sum back.
//
// T tokens, E = num_experts <= MAX_EXPERTS, k = experts_per_token <= MAX_EXPERTS_PER_TOKEN,
// n = T * k entries; entry = token * k + j.
// moe_route: logits [T, E] f32 -> ids [T, k] u32, weights [T, k] f32: softmax over all experts, the k
//   best (lowest id on ties), `normalise` scales them to sum to 1, then times `scale`. One warp a token.
//   Built with -DMOE_BIAS=1, bias [E] f32 is added to the logits. Built with -DMOE_SIGMOID=1, scores are sigmoids
//   and weights are the scores; those that are best after correction [E] f32 (or null) was added are chosen. With
//   -DMOE_SIGMOID=2 the best logits choose, which large ones need, and there is no correction. With -DMOE_SCALES=1
//   correction [E] does not take part in the choice, a chosen weight is multiplied by it last.
//   Launch: grid ceil(T / 4), block 128.
// moe_sort: ids [n] -> expert_offset [E + 1], sorted [n] (entries ordered by expert, then entry),
//   place [n] (sorted[place[e]] = e). Launch: grid E, block 256.
// moe_gemm: out[i] = x[r] W_e^T, with -DMOE_BIAS=1 + bias_e (bias [E, gemm_n] f32), for i in [expert_offset[e], expert_offset[e + 1]), r = gather ?
//   sorted[i] / k : i. x [*, gemm_k], w [E, gemm_n, gemm_k], out [n, gemm_n], all act.
//   gemm_k % 8 == 0, gemm_n % 8 == 0. Launch: grid (ceil(gemm_n / 64), ceil(n / 64) + E), block 128.
// moe_scale_rows: out[i] = x[t] * weights[e] for the sorted entry e = sorted[i] of token t, and weights[e] = 1: an expert
//   is given what others' results are multiplied by. x [T, hidden_size], out [n, hidden_size] act. Launch: grid n, block 256.
// moe_combine: residual[t] += sum over j, in order, of weights[t, j] * y[place[t * k + j]].
//   y [n, hidden_size] act, residual [T, hidden_size] f32. Launch: grid T, block 256.
// Numerics: f32 everywhere, GEMM with f32 accumulation and one rounding to act.
#include "ptx.cuh"

#ifndef MOE_BIAS
#define MOE_BIAS 0
#endif
#ifndef MOE_SIGMOID
#define MOE_SIGMOID 0
#endif
#ifndef MOE_SCALES
#define MOE_SCALES 0
#endif

constexpr int PER_LANE = MAX_EXPERTS / 32;  // experts a lane can hold
static_assert(MAX_EXPERTS_PER_TOKEN <= 32, "a lane keeps one choice of its token");

#if MOE_SIGMOID
DEV float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
#endif

ENTRY_F32(moe_route)
(Dims dims, const float* __restrict__ logits, const float* __restrict__ bias, const float* __restrict__ correction,
 u32* __restrict__ ids, float* __restrict__ weights, u32 normalise, float factor, u32 num_tokens) {
    grid_trigger();
    grid_wait();
    u32 lane = threadIdx.x & 31, token = blockIdx.x * MOE_ROUTE_TOKENS + (threadIdx.x >> 5), E = DIM(num_experts);
    if (token >= num_tokens) return;
    float p[PER_LANE], top = NEG_INF, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        u32 e = i * 32 + lane;
        p[i] = e < E ? logits[(u64)token * E + e] : NEG_INF;
#if MOE_BIAS
        if (e < E) p[i] += bias[e];
#endif
        top = fmaxf(top, p[i]);
    }
#if MOE_SIGMOID
    // Of the score and its correction, which orders experts: below all that exist is -infinity.
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        u32 e = i * 32 + lane;
#if MOE_SIGMOID == 2
        float score = p[i];
#else
        float score = sigmoid(p[i]);
        if (correction && e < E) score += correction[e];
#endif
        p[i] = e >= E || score != score ? NEG_INF : score;
    }
    const float NEVER = NEG_INF;
#else
    const float NEVER = -1.0f;
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        p[i] = i * 32 + lane < E ? expf(p[i] - top) : -1.0f;
        sum += fmaxf(p[i], 0.0f);
        if (p[i] != p[i]) p[i] = 0.0f;  // a row of NaNs must still name existing experts
    }
    sum = warp_sum(sum);
#endif
    float mine = 0.0f, chosen = 0.0f;
    u32 mine_id = 0, k = DIM(experts_per_token);
    for (u32 j = 0; j < k; j++) {
        float best = NEVER;
        u32 id = NONE;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (p[i] > best) best = p[i], id = i * 32 + lane;
#pragma unroll
        for (int offset = 16; offset > 0; offset >>= 1) {
            float other = __shfl_xor_sync(0xffffffffu, best, offset);
            u32 other_id = __shfl_xor_sync(0xffffffffu, id, offset);
            if (other > best || (other == best && other_id < id)) best = other, id = other_id;
        }
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (id == i * 32 + lane) p[i] = NEVER;
#if MOE_SIGMOID
        best = sigmoid(logits[(u64)token * E + min(id, E - 1)]);
#endif
        chosen += best;
        if (lane == j) mine = best, mine_id = id;
    }
#if MOE_SIGMOID
    sum = 1.0f;
#endif
    if (lane < k) {
        ids[token * k + lane] = min(mine_id, E - 1);
#if MOE_SCALES
        weights[token * k + lane] = mine / (normalise ? chosen : sum) * factor * correction[min(mine_id, E - 1)];
#else
        weights[token * k + lane] = mine / (normalise ? chosen : sum) * factor;
#endif
    }
}

ENTRY_U32(moe_sort)
(Dims dims, const u32* __restrict__ ids, u32 n, u32* __restrict__ expert_offset,
 u32* __restrict__ sorted, u32* __restrict__ place) {
    __shared__ u32 scratch[33];
    grid_trigger();
    grid_wait();
    u32 expert = blockIdx.x, below = 0, total;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) below += ids[i] < expert;
    block_prefix_u32(below, scratch, &total);
    u32 at = total;
    if (threadIdx.x == 0) expert_offset[expert] = at;
    for (u32 base = 0; base < n; base += blockDim.x) {
        u32 i = base + threadIdx.x, mine = i < n && ids[i] == expert;
        u32 before = block_prefix_u32(mine, scratch, &total);
        if (mine) {
            sorted[at + before] = i;
            place[i] = at + before;
        }
        at += total;
    }
    if (threadIdx.x == 0 && expert + 1 == DIM(num_experts)) expert_offset[expert + 1] = at;
}

constexpr int BM = MOE_TILE, BN = MOE_TILE, BK = 64, LD = BK + 8, STAGES = 2;

struct Tile {
    u32 expert, begin, end;  // rows [begin, end) of the sorted entries
};

// The expert and rows of this CTA's blockIdx.y; an empty range beyond the last tile.
DEV Tile find_tile(const u32* expert_offset, u32 E, u32* scratch, Tile* found) {
    if (threadIdx.x == 0) *found = {0, 0, 0};
    u32 done = 0, total;
    for (u32 base = 0; base < E; base += blockDim.x) {
        u32 e = base + threadIdx.x, begin = 0, end = 0;
        if (e < E) begin = expert_offset[e], end = expert_offset[e + 1];
        u32 tiles = (end - begin + BM - 1) / BM;
        u32 before = done + block_prefix_u32(tiles, scratch, &total);
        if (blockIdx.y >= before && blockIdx.y < before + tiles) {
            u32 first = begin + (blockIdx.y - before) * BM;
            *found = {e, first, min(first + BM, end)};
        }
        done += total;
    }
    __syncthreads();
    return *found;
}

DEV void load_stage(u32 stage, const act* x, const act* w, const u32* rows, u32 num_rows, u32 columns,
                    u32 gemm_k, u32 base) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 index = threadIdx.x + i * 128, row = index / 8, k = base + index % 8 * 8;
        u32 target = stage + (row * LD + index % 8 * 8) * 2;
        bool in_k = k < gemm_k;
        bool x_valid = in_k && row < num_rows, w_valid = in_k && row < columns;
        cp_async_16(target, x + (x_valid ? (u64)rows[row] * gemm_k + k : 0), x_valid ? 16 : 0);
        cp_async_16(target + BM * LD * 2, w + (w_valid ? (u64)row * gemm_k + k : 0), w_valid ? 16 : 0);
    }
}

// Each of the 4 warps multiplies 32 rows of x by 32 rows of w.
DEV void multiply_stage(float (&sum)[2][4][4], u32 stage) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 a_at = stage + (((warp & 1) * 32 + (lane & 15)) * LD + (lane >> 4) * 8) * 2;
    u32 b_row = (warp >> 1) * 32 + (lane >> 4) * 8 + (lane & 7);
    u32 b_at = stage + BM * LD * 2 + (b_row * LD + ((lane >> 3) & 1) * 8) * 2;
#pragma unroll
    for (int k = 0; k < BK / 16; k++) {
        u32 a[2][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            ldmatrix_x4(a[i], a_at + (i * 16 * LD + k * 16) * 2);
            ldmatrix_x4(b[i], b_at + (i * 16 * LD + k * 16) * 2);
        }
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < 4; n++) mma_16816(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
}

extern "C" __global__ void __launch_bounds__(128)
PASTE(moe_gemm, DT, sm80)
(Dims dims, const act* __restrict__ x, const act* __restrict__ w, const float* __restrict__ bias, act* __restrict__ out,
 const u32* __restrict__ expert_offset, const u32* __restrict__ sorted, u32 gather) {
    __shared__ __align__(16) act smem[STAGES][(BM + BN) * LD];
    __shared__ u32 scratch[33], rows[BM];
    __shared__ Tile found;
    grid_trigger();
    grid_wait();
    Tile tile = find_tile(expert_offset, DIM(num_experts), scratch, &found);
    if (tile.begin >= tile.end) return;
    u32 num_rows = tile.end - tile.begin, gemm_k = DIM(gemm_k), gemm_n = DIM(gemm_n);
    u32 column = blockIdx.x * BN, columns = min(gemm_n - column, (u32)BN);
    w += ((u64)tile.expert * gemm_n + column) * gemm_k;
    for (u32 i = threadIdx.x; i < num_rows; i += 128)
        rows[i] = gather ? sorted[tile.begin + i] / DIM(experts_per_token) : tile.begin + i;
    __syncthreads();
    float sum[2][4][4] = {};
    load_stage(smem_address(smem[0]), x, w, rows, num_rows, columns, gemm_k, 0);
    cp_async_commit();
    u32 steps = (gemm_k + BK - 1) / BK;
    for (u32 step = 0; step < steps; step++) {
        if (step + 1 < steps)
            load_stage(smem_address(smem[(step + 1) % STAGES]), x, w, rows, num_rows, columns, gemm_k, (step + 1) * BK);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        multiply_stage(sum, smem_address(smem[step % STAGES]));
        __syncthreads();
    }
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                u32 row = (warp & 1) * 32 + m * 16 + h * 8 + lane / 4;
                u32 c = (warp >> 1) * 32 + n * 8 + 2 * (lane & 3);
                if (row < num_rows && c < columns) {
#if MOE_BIAS
                    const float* own = bias + (u64)tile.expert * gemm_n + column + c;
                    sum[m][n][2 * h] += own[0], sum[m][n][2 * h + 1] += own[1];
#endif
                    *(u32*)(out + (u64)(tile.begin + row) * gemm_n + column + c) =
                        pack2(sum[m][n][2 * h], sum[m][n][2 * h + 1]);
                }
            }
}

ENTRY(moe_scale_rows)
(Dims dims, const act* __restrict__ x, const u32* __restrict__ sorted, float* __restrict__ weights,
 act* __restrict__ out) {
    grid_trigger();
    grid_wait();
    u32 entry = sorted[blockIdx.x];
    float weight = weights[entry];
    const uint2* row = (const uint2*)(x + (u64)(entry / DIM(experts_per_token)) * DIM(hidden_size));
    uint2* target = (uint2*)(out + (u64)blockIdx.x * DIM(hidden_size));
    for (u32 i = threadIdx.x; i < DIM(hidden_size) / 4; i += blockDim.x) {
        float2 a = unpack2(row[i].x), b = unpack2(row[i].y);
        target[i] = make_uint2(pack2(a.x * weight, a.y * weight), pack2(b.x * weight, b.y * weight));
    }
    __syncthreads();  // all threads have read the weight
    if (threadIdx.x == 0) weights[entry] = 1.0f;
}

ENTRY(moe_combine)
(Dims dims, const act* __restrict__ y, const u32* __restrict__ place,
 const float* __restrict__ weights, float* __restrict__ residual) {
    grid_trigger();
    grid_wait();
    u32 k = DIM(experts_per_token), first = blockIdx.x * k;
    float4* target = (float4*)(residual + (u64)blockIdx.x * DIM(hidden_size));
    for (u32 i = threadIdx.x; i < DIM(hidden_size) / 4; i += blockDim.x) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (u32 j = 0; j < k; j++) {
            uint2 v = *(const uint2*)(y + (u64)place[first + j] * DIM(hidden_size) + 4 * i);
            float2 a = unpack2(v.x), b = unpack2(v.y);
            float weight = weights[first + j];
            sum.x += weight * a.x, sum.y += weight * a.y, sum.z += weight * b.x, sum.w += weight * b.y;
        }
        float4 r = target[i];
        target[i] = make_float4(r.x + sum.x, r.y + sum.y, r.z + sum.z, r.w + sum.w);
    }
}
