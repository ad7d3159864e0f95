// The delta rule of a gated delta net over long rows, DELTA_CHUNK tokens at a time. Arguments are delta_rule's of
// delta_net.cu, and so are states, saves and what is kept of a row.
// delta_chunks: rows of chunk_from tokens or more; the others are left to delta_rule. A chunk ends at each StateSave.
//   With g the running product of decays in the chunk, S the state before it, u what tokens add:
//     (I + A) u = beta (v - g k S),   A[i][j] = beta[i] g[i] / g[j] k[i] k[j] for j < i
//     out[i] = g[i] q[i] S + sum over j <= i of g[i] / g[j] q[i] k[j] u[j],   state = g[last] (S + sum of k[j] u[j] / g[j])
//   (Yang et al. 2024, Gated Delta Networks, section 3.3.) k k and q k are products of act, the others of tf32, sums f32.
//   Launch: as delta_rule, with delta_chunk_bytes(KEY_DIM) of shared memory. KEY_DIM is at most 128.
// Numerics: what a token computes depends on its own row alone, but the bits on where chunks begin.
#include "delta_net.cuh"

constexpr u32 CHUNK = DELTA_CHUNK;
constexpr u32 K_ROW = KEY_DIM + DELTA_KEY_PAD;          // acts of a row of k or q
constexpr u32 S_ROW = DELTA_COLUMNS + DELTA_STATE_PAD;  // floats of a row of the state, and of u
constexpr u32 A_ROW = CHUNK + DELTA_SCORE_PAD;          // floats of a row of A, and of the scores of q
static_assert(CHUNK == 64 && DELTA_COLUMNS == 32, "how eight warps share the products");

// A chunk in shared memory: k and q [CHUNK][K_ROW], state [KEY_DIM][S_ROW], A and scores [CHUNK][A_ROW], u [CHUNK][S_ROW];
// of each token the logarithm of its g, beta, and g of the last token over its own.
struct Chunk {
    act *k, *q;
    float *state, *a, *scores, *u, *log_g, *beta, *to_end;
};

DEV Chunk chunk_in(u8* smem) {
    Chunk c;
    c.k = (act*)smem, c.q = c.k + CHUNK * K_ROW;
    c.state = (float*)(c.q + CHUNK * K_ROW), c.a = c.state + KEY_DIM * S_ROW;
    c.scores = c.a + CHUNK * A_ROW, c.u = c.scores + CHUNK * A_ROW;
    c.log_g = c.u + CHUNK * S_ROW, c.beta = c.log_g + CHUNK, c.to_end = c.beta + CHUNK;
    return c;
}

DEV u32 tf32(float x) {
    u32 result;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(x));
    return result;
}
// Exact: act has no more bits than tf32.
DEV u32 tf32(act x) { return __float_as_uint(act_to_f32(x)); }

// d[16 x 8] += a[16 x 8] * b[8 x 8], f32 accumulate.
DEV void mma_1688(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads `len` tokens from `token` on; what is behind them is zero, and its g that of the last one.
DEV void load_chunk(const Chunk& c, const Layer& layer, const Columns& mine, const act* mixed, const float2* factors,
                    u64 token, u32 len) {
    constexpr u32 PIECES = KEY_DIM / 8;  // of 16 bytes
    for (u32 i = threadIdx.x; i < 2 * CHUNK * PIECES; i += 256) {
        u32 row = i / PIECES % CHUNK, at = i % PIECES * 8, is_q = i / (CHUNK * PIECES);
        const act* from = mixed + (token + row) * channels(layer) + (is_q ? 0 : layer.key_heads * KEY_DIM);
        uint4 piece = make_uint4(0, 0, 0, 0);
        if (row < len) piece = *(const uint4*)(from + mine.key_head * KEY_DIM + at);
        *(uint4*)((is_q ? c.q : c.k) + row * K_ROW + at) = piece;
    }
    if (threadIdx.x >= 32) return;
    u32 lane = threadIdx.x;
    float log_decay[2], beta[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float2 factor = make_float2(1.0f, 0.0f);
        if (2 * lane + i < len) factor = factors[(token + 2 * lane + i) * layer.value_heads + mine.head];
        // A decay that is 0 erases all the same.
        log_decay[i] = fmaxf(logf(factor.x), -80.0f), beta[i] = factor.y;
    }
    float sum = log_decay[0] + log_decay[1], before = sum;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        float below = __shfl_up_sync(0xffffffffu, before, offset);
        if (lane >= offset) before += below;
    }
    float last = __shfl_sync(0xffffffffu, before, 31);
    before -= sum;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        before += log_decay[i];
        c.log_g[2 * lane + i] = before, c.beta[2 * lane + i] = beta[i], c.to_end[2 * lane + i] = expf(last - before);
    }
}

// A, by warps 0 to 3, and the scores of q, by the others: 16 rows a warp.
DEV void score_chunk(const Chunk& c, u32 warp, u32 lane) {
    u32 m = warp & 3, g = lane >> 2, t = lane & 3;
    bool is_q = warp >= 4;
    const act* rows = (is_q ? c.q : c.k) + 16 * m * K_ROW;
    float sums[8][4];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[n][i] = 0.0f;
#pragma unroll 2
    for (u32 at = 2 * t; at < KEY_DIM; at += 16) {
        auto pair = [&](const act* of, u32 row, u32 column) { return *(const u32*)(of + row * K_ROW + column); };
        u32 a[4] = {pair(rows, g, at), pair(rows, g + 8, at), pair(rows, g, at + 8), pair(rows, g + 8, at + 8)};
#pragma unroll
        for (u32 n = 0; n < 8; n++)
            if (n <= 2 * m + 1) mma_16816(sums[n], a, pair(c.k, 8 * n + g, at), pair(c.k, 8 * n + g, at + 8));
    }
    float* out = is_q ? c.scores : c.a;
#pragma unroll
    for (u32 n = 0; n < 8; n++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 row = 16 * m + g + i / 2 * 8, column = 8 * n + 2 * t + i % 2;
            bool is_seen = is_q ? column <= row : column < row;
            float value = is_seen ? expf(c.log_g[row] - c.log_g[column]) * sums[n][i] : 0.0f;
            out[row * A_ROW + column] = is_q ? value : c.beta[row] * value;
        }
}

// u = (I + A)^-1 u, 16 rows at a time.
DEV void solve_chunk(const Chunk& c, u32 warp, u32 lane) {
    for (u32 first = 0; first < CHUNK; first += 16) {
#pragma unroll
        for (u32 half = 0; half < 16; half += 8) {
            u32 row = first + half + warp;
            float sum = 0.0f;
            for (u32 j = 0; j < first; j += 4) {
                float4 a = *(const float4*)(c.a + row * A_ROW + j);
                const float* u = c.u + j * S_ROW + lane;
                sum += a.x * u[0] + a.y * u[S_ROW] + a.z * u[2 * S_ROW] + a.w * u[3 * S_ROW];
            }
            c.u[row * S_ROW + lane] -= sum;
        }
        __syncthreads();
        if (warp == 0) {
            float u[16];
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const float* a = c.a + (first + i) * A_ROW + first;
                float x = c.u[(first + i) * S_ROW + lane];
#pragma unroll
                for (int j = 0; j < i; j++) x -= a[j] * u[j];
                u[i] = x, c.u[(first + i) * S_ROW + lane] = x;
            }
        }
        __syncthreads();
    }
}

// state = g of the last token * state + k^T (u * to_end): 16 rows of the state a warp at a time.
DEV void advance_chunk(const Chunk& c, u32 warp, u32 lane) {
    u32 g = lane >> 2, t = lane & 3;
    float all = expf(c.log_g[CHUNK - 1]);
    for (u32 first = 16 * warp; first < KEY_DIM; first += 16 * WARPS) {
        float sums[4][4];
        auto element = [&](u32 n, u32 i) -> float& {
            return c.state[(first + g + i / 2 * 8) * S_ROW + 8 * n + 2 * t + i % 2];
        };
#pragma unroll
        for (u32 n = 0; n < 4; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) sums[n][i] = all * element(n, i);
#pragma unroll 2
        for (u32 token = t; token < CHUNK; token += 8) {
            const act *k = c.k + token * K_ROW + first + g, *later = k + 4 * K_ROW;
            u32 a[4] = {tf32(k[0]), tf32(k[8]), tf32(later[0]), tf32(later[8])};
            float end = c.to_end[token], later_end = c.to_end[token + 4];
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                const float* u = c.u + token * S_ROW + 8 * n + g;
                mma_1688(sums[n], a, tf32(u[0] * end), tf32(u[4 * S_ROW] * later_end));
            }
        }
#pragma unroll
        for (u32 n = 0; n < 4; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) element(n, i) = sums[n][i];
    }
}

// One chunk of `len` tokens from `token` on; a warp has 16 tokens and 16 columns. `out`: of the block's first column.
DEV void run_chunk(const Chunk& c, const Layer& layer, const Columns& mine, const act* mixed, u64 token, u32 len,
                   float* out) {
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    u32 row = 16 * (warp & 3) + g, column = 16 * (warp >> 2);
    score_chunk(c, warp, lane);
    // k S and q S.
    float known[2][4] = {}, read[2][4] = {};
#pragma unroll 2
    for (u32 at = t; at < KEY_DIM; at += 8) {
        const act *k = c.k + row * K_ROW + at, *q = c.q + row * K_ROW + at;
        u32 ka[4] = {tf32(k[0]), tf32(k[8 * K_ROW]), tf32(k[4]), tf32(k[8 * K_ROW + 4])};
        u32 qa[4] = {tf32(q[0]), tf32(q[8 * K_ROW]), tf32(q[4]), tf32(q[8 * K_ROW + 4])};
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            const float* s = c.state + at * S_ROW + column + 8 * n + g;
            u32 b0 = tf32(s[0]), b1 = tf32(s[4 * S_ROW]);
            mma_1688(known[n], ka, b0, b1);
            mma_1688(read[n], qa, b0, b1);
        }
    }
    u32 values = 2 * layer.key_heads * KEY_DIM + mine.head * VALUE_DIM + mine.column;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 i = row + 8 * half;
        float decay = expf(c.log_g[i]), beta = c.beta[i];
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            u32 at = column + 8 * n + 2 * t;
            float2 v = make_float2(0.0f, 0.0f);
            if (i < len) v = unpack2(*(const u32*)(mixed + (token + i) * channels(layer) + values + at));
            float* u = c.u + i * S_ROW + at;
            u[0] = beta * (v.x - decay * known[n][2 * half]), u[1] = beta * (v.y - decay * known[n][2 * half + 1]);
            read[n][2 * half] *= decay, read[n][2 * half + 1] *= decay;
        }
    }
    __syncthreads();
    solve_chunk(c, warp, lane);
#pragma unroll 2
    for (u32 at = t; at < CHUNK; at += 8) {
        const float* p = c.scores + row * A_ROW + at;
        u32 a[4] = {tf32(p[0]), tf32(p[8 * A_ROW]), tf32(p[4]), tf32(p[8 * A_ROW + 4])};
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            const float* u = c.u + at * S_ROW + column + 8 * n + g;
            mma_1688(read[n], a, tf32(u[0]), tf32(u[4 * S_ROW]));
        }
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++)
        if (row + 8 * half < len)
#pragma unroll
            for (u32 n = 0; n < 2; n++)
                *(float2*)(out + (token + row + 8 * half) * layer.value_heads * VALUE_DIM + column + 8 * n + 2 * t) =
                    make_float2(read[n][2 * half], read[n][2 * half + 1]);
    advance_chunk(c, warp, lane);
    __syncthreads();
}

ENTRY(delta_chunks)
(Dims dims, const u32* __restrict__ step, const act* __restrict__ projected, const act* __restrict__ mixed,
 const float2* __restrict__ factors, u64 state_base, u64 place_stride, u64 layer_offset, u32 key_heads,
 u32 value_heads, u32 stride, u32 chunk_from, float* __restrict__ out) {
    extern __shared__ __align__(128) u8 smem[];
    grid_trigger();
    grid_wait();
    if (blockIdx.y >= FIELD(step, StepHeader, num_rows)) return;
    Row row = row_of(step, blockIdx.y);
    if (row.num_tokens < chunk_from) return;
    Layer layer{key_heads, value_heads, stride, state_base, place_stride, layer_offset};
    u32 first = blockIdx.x * DELTA_COLUMNS, head = first / VALUE_DIM;
    Columns mine{head, head / (value_heads / key_heads), first % VALUE_DIM};
    Chunk c = chunk_in(smem);
    // The state of this block's columns lies in one piece, [DELTA_COLUMNS, KEY_DIM].
    auto keep = [&](u32 place) {
        float* to = state_of(layer, place) + (u64)first * KEY_DIM;
        for (u32 i = threadIdx.x; i < DELTA_COLUMNS * KEY_DIM; i += 256) to[i] = c.state[i % KEY_DIM * S_ROW + i / KEY_DIM];
    };
    const float* kept = state_of(layer, row.slot) + (u64)first * KEY_DIM;
    for (u32 i = threadIdx.x; i < DELTA_COLUMNS * KEY_DIM; i += 256)
        c.state[i % KEY_DIM * S_ROW + i / KEY_DIM] = row.start > 0 ? kept[i] : 0.0f;
    u32 next_save = 0;
    for (u32 done = 0; done < row.num_tokens;) {
        u32 len = min(CHUNK, row.num_tokens - done);
        if (next_save < row.num_saves) len = min(len, row.saves[WORD_AT(StateSave, next_save, end)] - row.start - done);
        load_chunk(c, layer, mine, mixed, factors, row.first_token + done, len);
        __syncthreads();
        run_chunk(c, layer, mine, mixed, row.first_token + done, len, out + first);
        done += len;
        while (next_save < row.num_saves && row.saves[WORD_AT(StateSave, next_save, end)] == row.start + done)
            keep(row.saves[WORD_AT(StateSave, next_save++, place)]);
    }
    keep(row.slot);
    keep_inputs(layer, row, projected);
}
