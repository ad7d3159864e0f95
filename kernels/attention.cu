// Paged attention of prefill chunks and decode rows in one launch.
//
// Shapes: q, out [T_pad, num_heads, HEAD_DIM] act; KV pages in bytes at kv_base + block * block_stride
//   + layer_offset: [K, V][num_kv_heads][block_size][HEAD_DIM] kv; block_table [num_slots, max_blocks]
//   u32; plan as step_prepare.cu writes it; partials [2 * G][QUERY_ROWS * (HEAD_DIM + 2)] f32 workspace;
//   counters [G] u32, zero before and after. out rows of padded tokens become zero.
// A token at position p sees positions (p - window, p], all of [0, p] if window is 0. Built with -DCAUSAL=0
//   every token sees all of its sequence: the plan must come from step_prepare with PLAN_NOT_CAUSAL, window 0, and
//   a row must hold its whole sequence.
//   With -DCHUNKS=1 a sequence is cut into chunks of `window` tokens and a token sees its own chunk up to itself.
//   Scores are scale * q.k, then softcap * tanh(score / softcap) if softcap > 0. Built with -DSINKS=1, e^sink of
//   the query head joins the sum of e^score: sinks [num_heads] f32.
// Work: the (entry, kv head, tile) triples of the plan form a line. The length of a triple is the time it
//   takes, and each (entry, kv head) pair adds a little. The line is divided equally: a CTA takes the tiles
//   that begin in its share, so that the end of one pair and the start of the next share a pipeline. A pair
//   that spans several CTAs leaves its pieces in `partials`, and the CTA that arrives last merges them in order
//   (stream-K, Osama et al. 2023): the sums do not depend on which one is last. Entries of at most
//   DECODE_ROWS packed rows split a tile's tokens over the warps, others split the packed rows. Under
//   PLAN_WHOLE no pair is cut and no entry is a decode: a row's bits depend on neither its chunk nor the
//   batch. Under PLAN_PROMPT_FOLLOWS the plan has no prompt rows; attention_prefill.cu runs after this kernel.
//   Heads wider than 256 are sliced: a warp has some columns of q, k and v. The warps that share rows and tokens add
//   up their partial scores through shared memory, each in the same order, and each keeps its columns of the output.
// Numerics: act operands on the tensor cores, f32 scores, sums and output; P rounded to act.
// Launch: grid G (as given to step_prepare), block attention_threads(HEAD_DIM), dynamic shared memory
//   attention_shared_bytes(HEAD_DIM, ATTN_STAGES, bytes of a kv).
#include "attention_plan.cuh"

#ifndef ATTN_STAGES
#define ATTN_STAGES 2
#endif

constexpr int D = HEAD_DIM;
constexpr int KT = attention_tile(D);         // tokens a tile
constexpr int Q_ROWS = QUERY_ROWS;            // packed rows of a prefill entry
constexpr int LD = D + ATTENTION_ROW_PAD;     // elements a row in shared memory: no bank conflicts
constexpr int PIECES = D / 8;                 // 16-byte pieces a row
constexpr int THREADS = attention_threads(D), WARPS = THREADS / 32;
constexpr bool Q_IN_REGISTERS = D <= 128;
constexpr int KV_WARPS = KT / 16;             // groups of tokens of a decode tile
// Warps that share the columns of the same rows, and of the same tokens of a decode.
constexpr int SLICES = WARPS / (Q_ROWS / 16), DECODE_SLICES = SLICES > 1 ? WARPS / KV_WARPS : 1;
constexpr int DN = D / 8 / SLICES, DK = D / 16;  // mma tiles over a warp's columns of the output, over HEAD_DIM
constexpr int ML_ROWS = SLICES > 1 ? KV_WARPS * 16 : WARPS * 16;
constexpr u32 KV_SIZE = sizeof(kv), KV_ROW = LD * KV_SIZE, Q_ROW = LD * ACT_BYTES;  // bytes of a row in shared memory
constexpr u32 STAGE_BYTES = attention_stage_bytes(D, KV_SIZE), V_AT = STAGE_BYTES / 2;
// Registers: q rows of small entries, copied ahead with the first tile of a piece. Else: all q rows.
constexpr u32 SMALL_ROWS = ATTENTION_SMALL_ROWS, SMALL_BYTES = SMALL_ROWS * Q_ROW;
constexpr u32 Q_BYTES = attention_query_bytes(D, ATTN_STAGES);
static_assert(V_AT == KT * KV_ROW && Q_BYTES == (Q_IN_REGISTERS ? ATTN_STAGES * SMALL_ROWS : Q_ROWS) * Q_ROW, "rows");
constexpr u32 SUM_BYTES = attention_sum_bytes(D);  // partial scores of sliced heads
static_assert(SUM_BYTES == (SLICES > 1 ? WARPS * (KT / 8) * 32 * sizeof(float4) : 0), "partial scores of a tile");
static_assert(ATTN_STAGES * STAGE_BYTES + Q_BYTES + SUM_BYTES + ML_ROWS * sizeof(float2) + sizeof(u32)
              <= attention_shared_bytes(D, ATTN_STAGES, KV_SIZE), "what lies behind the rows of q");

// ---- loads --------------------------------------------------------------------------------------

DEV bool is_small(const Cursor& c) { return c.packed_end - c.packed_begin <= SMALL_ROWS; }

// Copies K and V of one tile; tokens that no query of the entry sees are zeros (0 * NaN is NaN).
DEV void load_tile(const Cursor& c, const Problem& p, u32 stage) {
    u32 kv_end = last_seen(c, p, c.packed_end - 1) + 1;
    const u32* table = p.block_table + (u64)c.slot * p.max_blocks;
    u64 v_offset = (u64)p.num_kv_heads * p.block_size * D * sizeof(kv);
    u32 first = c.tile * KT;
    bool one_block = p.block_size >= KT;
    u32 block = one_block ? table[first / p.block_size] : 0;
#pragma unroll
    for (int i = 0; i < KT * PIECES / THREADS; i++) {
        u32 index = threadIdx.x + i * THREADS, row = index / PIECES, chunk = index % PIECES;
        u32 token = first + row;
        bool valid = token < kv_end;
        if (!valid) token = first;
        if (!one_block) block = table[token / p.block_size];
        u64 address = p.kv_base + block * p.block_stride +
                      ((u64)(c.head * p.block_size + token % p.block_size) * D + chunk * 8) * sizeof(kv);
        u32 target = stage + (row * LD + chunk * 8) * KV_SIZE;
        cp_async_16(target, (const void*)address, valid ? 16 : 0);
        cp_async_16(target + V_AT, (const void*)(address + v_offset), valid ? 16 : 0);
    }
}

DEV const act* q_row(const Cursor& c, const Problem& p, u32 packed) {
    u64 token = c.first_token + packed / p.group, head = c.head * p.group + packed % p.group;
    return p.q + (token * p.num_heads + head) * D;
}

// Copies the q rows of a small entry; absent rows are zeros.
DEV void load_small_q(const Cursor& c, const Problem& p, u32 q_smem) {
    u32 target = q_smem + c.pair % ATTN_STAGES * SMALL_BYTES;
    for (u32 i = threadIdx.x; i < SMALL_ROWS * PIECES; i += THREADS) {
        u32 packed = c.packed_begin + i / PIECES;
        bool valid = packed < c.packed_end;
        cp_async_16(target + (i / PIECES * LD + i % PIECES * 8) * ACT_BYTES,
                    q_row(c, p, valid ? packed : c.packed_begin) + i % PIECES * 8, valid ? 16 : 0);
    }
}

DEV void prefetch_q(const Cursor& c, const Problem& p) {
    u32 packed = c.packed_begin + threadIdx.x / 2;
    if (packed >= c.packed_end) return;
    const act* address = q_row(c, p, packed) + threadIdx.x % 2 * (D / 2);
    asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
}

// One pipeline step of the prefetching cursor.
DEV void load_next(Cursor& next, const Problem& p, u32 stage, u32 q_smem, bool first) {
    load_tile(next, p, stage);
    if (Q_IN_REGISTERS && (first || next.tile == next.tile_begin)) {
        if (is_small(next)) load_small_q(next, p, q_smem);
        else prefetch_q(next, p);
    }
    advance(next, p);
}

// ---- one piece of one (entry, kv head) ----------------------------------------------------------

struct Piece {
    u32 q[Q_IN_REGISTERS ? DK : 1][4];
    float o[DN][4], m[2], l[2];  // m in raw scores; l is this thread's share
    u32 position[2];             // the last positions that this thread's two rows see
#if CHUNKS
    u32 first_seen[2];           // the first ones
#endif
    u32 first_tile;
    bool decode;
};

DEV void start_piece(Piece& piece, const Cursor& c, const Problem& p, u8* q_smem) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    piece.decode = c.decode;
    piece.first_tile = c.tile;
    u32 base = c.packed_begin + (piece.decode ? 0 : warp / SLICES * 16);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        u32 packed = base + lane / 4 + 8 * r;
        bool valid = packed < c.packed_end;
        piece.position[r] = last_seen(c, p, valid ? packed : c.packed_end - 1);
#if CHUNKS
        piece.first_seen[r] = chunk_start(p, piece.position[r]);
#endif
        piece.m[r] = NEG_INF;
        piece.l[r] = 0.0f;
        if (Q_IN_REGISTERS && is_small(c)) {
            const u8* row = q_smem + c.pair % ATTN_STAGES * SMALL_BYTES + (lane / 4 * LD + 2 * (lane & 3)) * ACT_BYTES;
#pragma unroll
            for (int k = 0; k < (Q_IN_REGISTERS ? DK : 1); k++) {
                piece.q[k][r] = r ? 0 : *(const u32*)(row + 32 * k);
                piece.q[k][r + 2] = r ? 0 : *(const u32*)(row + 32 * k + 16);
            }
        } else if (Q_IN_REGISTERS) {
            const act* row = q_row(c, p, valid ? packed : c.packed_begin) + 2 * (lane & 3);
#pragma unroll
            for (int k = 0; k < (Q_IN_REGISTERS ? DK : 1); k++) {
                piece.q[k][r] = valid ? *(const u32*)(row + 16 * k) : 0;
                piece.q[k][r + 2] = valid ? *(const u32*)(row + 16 * k + 8) : 0;
            }
        }
    }
    if (!Q_IN_REGISTERS) {
        __syncthreads();
        u32 rows = SLICES > 1 && piece.decode ? DECODE_ROWS : Q_ROWS;
        for (u32 i = threadIdx.x; i < rows * PIECES; i += THREADS) {
            u32 packed = c.packed_begin + i / PIECES;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (packed < c.packed_end) v = *(const uint4*)(q_row(c, p, packed) + i % PIECES * 8);
            *(uint4*)(q_smem + (i / PIECES * LD + i % PIECES * 8) * ACT_BYTES) = v;
        }
        __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < DN; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) piece.o[n][i] = 0.0f;
}

// scores[16 rows x NT * 8 tokens] of this warp, tokens from `k_smem` on; over its slice of the columns, which begins at
// k_smem and q_smem.
template <int NT, int OF>
DEV void scores_of(float (&s)[NT][4], const Piece& piece, u32 k_smem, u32 q_smem) {
    u32 lane = threadIdx.x & 31;
    u32 k_lane = k_smem + (((lane >> 4) * 8 + (lane & 7)) * LD + ((lane >> 3) & 1) * 8) * KV_SIZE;
    u32 q_lane = q_smem + ((((lane >> 3) & 1) * 8 + (lane & 7)) * LD + (lane >> 4) * 8) * ACT_BYTES;
#pragma unroll
    for (int n = 0; n < NT; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < DK / OF; k++) {
        u32 a[4];
        if (Q_IN_REGISTERS) {
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = piece.q[Q_IN_REGISTERS ? k : 0][i];
        } else {
            ldmatrix_x4(a, q_lane + k * 16 * ACT_BYTES);
        }
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            u32 b[4];
            ldmatrix_x4(b, k_lane + (n * 8 * LD + k * 16) * KV_SIZE);
            mma_16816(s[n], a, b[0], b[1]);
            mma_16816(s[n + 1], a, b[2], b[3]);
        }
    }
}

// Adds up the partial scores of the OF warps that share rows and tokens; all of them get the same bits. `sums` is free
// again behind the next barrier of the block.
template <int NT, int OF>
DEV void sum_scores(float (&s)[NT][4], float4* sums) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = warp / OF * OF;
#pragma unroll
    for (int n = 0; n < NT; n++) sums[(warp * NT + n) * 32 + lane] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
    named_wait(1 + warp / OF, 32 * OF);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float4 sum = sums[(first * NT + n) * 32 + lane];
#pragma unroll
        for (int i = 1; i < OF; i++) {
            float4 v = sums[((first + i) * NT + n) * 32 + lane];
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
        s[n][0] = sum.x, s[n][1] = sum.y, s[n][2] = sum.z, s[n][3] = sum.w;
    }
}

template <int NT>
DEV void mask_scores(float (&s)[NT][4], const Piece& piece, const Problem& p, u32 first_token) {
    u32 column = first_token + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 token = column + n * 8 + (i & 1), position = piece.position[i >> 1];
#if CHUNKS
            if (token > position || token < piece.first_seen[i >> 1]) s[n][i] = NEG_INF;
#else
            if (token > position || (p.window && token + p.window <= position)) s[n][i] = NEG_INF;
#endif
        }
}

// Adds NT * 8 tokens, whose K and V start at k_smem and v_smem, to the piece; its warp has one of OF slices.
template <int NT, int OF>
DEV void add_tokens(Piece& piece, const Problem& p, u32 first_token, bool masked, u32 k_smem,
                    u32 v_smem, u32 q_smem, float4* sums) {
    float s[NT][4];
    scores_of<NT, OF>(s, piece, k_smem, q_smem);
    if constexpr (OF > 1) sum_scores<NT, OF>(s, sums);
    float to_log2 = p.scale * LOG2E;
    if (p.softcap > 0.0f) {
        float inner = p.scale / p.softcap;
        to_log2 = LOG2E;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] = p.softcap * tanh_f32(s[n][i] * inner);
    }
    if (masked) mask_scores<NT>(s, piece, p, first_token);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = piece.m[r];
#pragma unroll
        for (int n = 0; n < NT; n++) m = fmaxf(m, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        // Not contracted: `keep` is exactly 1 while m does not change, so a tile that a row cannot see
        // leaves the row's bits unchanged.
        float base = m == NEG_INF ? 0.0f : __fmul_rn(m, to_log2);
        float keep = exp2_approx(__fadd_rn(__fmul_rn(piece.m[r], to_log2), -base));
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            s[n][2 * r] = exp2_approx(fmaf(s[n][2 * r], to_log2, -base));
            s[n][2 * r + 1] = exp2_approx(fmaf(s[n][2 * r + 1], to_log2, -base));
            sum += s[n][2 * r] + s[n][2 * r + 1];
        }
        piece.m[r] = m;
        piece.l[r] = piece.l[r] * keep + sum;
#pragma unroll
        for (int n = 0; n < D / 8 / OF; n++) piece.o[n][2 * r] *= keep, piece.o[n][2 * r + 1] *= keep;
    }
    u32 lane = threadIdx.x & 31;
    u32 v_lane = v_smem + ((((lane >> 3) & 1) * 8 + (lane & 7)) * LD + (lane >> 4) * 8) * KV_SIZE;
#pragma unroll
    for (int k = 0; k < NT / 2; k++) {
        u32 a[4] = {pack2(s[2 * k][0], s[2 * k][1]), pack2(s[2 * k][2], s[2 * k][3]),
                    pack2(s[2 * k + 1][0], s[2 * k + 1][1]), pack2(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
        for (int n = 0; n < D / 8 / OF; n += 2) {
            u32 b[4];
            ldmatrix_x4_trans(b, v_lane + (k * 16 * LD + n * 8) * KV_SIZE);
            mma_16816(piece.o[n], a, b[0], b[1]);
            mma_16816(piece.o[n + 1], a, b[2], b[3]);
        }
    }
}

DEV void add_tile(Piece& piece, const Cursor& c, const Problem& p, u32 stage, u32 q_smem, float4* sums) {
    u32 first = c.tile * KT, warp = threadIdx.x >> 5;
    u32 first_position = last_seen(c, p, c.packed_begin);
    u32 last_position = last_seen(c, p, c.packed_end - 1);
#if CHUNKS
    bool masked = first + KT > first_position + 1 || first < chunk_start(p, last_position);
#else
    bool masked = first + KT > first_position + 1 || (p.window && first + p.window <= last_position);
#endif
    u32 v = stage + V_AT;
    if (!piece.decode) {
        u32 column = warp % SLICES * (D / SLICES) * KV_SIZE, q_column = warp % SLICES * (D / SLICES) * ACT_BYTES;
        add_tokens<KT / 8, SLICES>(piece, p, first, masked, stage + column, v + column,
                                   q_smem + warp / SLICES * 16 * Q_ROW + q_column, sums);
    } else if (warp / DECODE_SLICES < KV_WARPS) {
        u32 part = warp / DECODE_SLICES, slice = warp % DECODE_SLICES * (D / DECODE_SLICES);
        u32 skip = part * 16 * KV_ROW + slice * KV_SIZE;
        add_tokens<2, DECODE_SLICES>(piece, p, first + part * 16, masked, stage + skip, v + skip,
                                     q_smem + slice * ACT_BYTES, sums);
    }
}

// ---- the end of a piece -------------------------------------------------------------------------

DEV act* out_row(const Cursor& c, const Problem& p, u32 packed) {
    u64 token = c.first_token + packed / p.group, head = c.head * p.group + packed % p.group;
    return p.out + (token * p.num_heads + head) * D;
}

DEV float to_log2_of(const Problem& p) { return p.softcap > 0.0f ? LOG2E : p.scale * LOG2E; }

// What a packed row's output is multiplied by at its end; m in log2 units.
#if SINKS
// The sink joins here, once a row, whatever pieces the row was cut into.
DEV float inverse(float m, float l, const Cursor& c, const Problem& p, u32 packed) {
    float sink = p.sinks[c.head * p.group + packed % p.group] * LOG2E;
    float top = fmaxf(m, sink), keep = exp2_approx(m - top);
    return __fdividef(keep, l * keep + exp2_approx(sink - top));
}
#else
DEV float inverse(float, float l, const Cursor&, const Problem&, u32) { return l > 0.0f ? 1.0f / l : 0.0f; }
#endif

// Partial of up to 64 rows: O [64][D], then m [64] in log2 units, then l [64].
DEV float* partial_at(const Problem& p, u32 index) { return p.partials + (u64)index * Q_ROWS * (D + 2); }

DEV void finish_prefill(const Piece& piece, const Cursor& c, const Problem& p, float* partial) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float l = piece.l[r];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        u32 row = warp / SLICES * 16 + lane / 4 + 8 * r, slice = warp % SLICES * (D / SLICES);
        if (c.packed_begin + row >= c.packed_end) continue;
        if (partial) {
            float* target = partial + row * D + slice + 2 * (lane & 3);
#pragma unroll
            for (int n = 0; n < DN; n++)
                *(float2*)(target + n * 8) = make_float2(piece.o[n][2 * r], piece.o[n][2 * r + 1]);
            if ((lane & 3) == 0 && slice == 0) {
                partial[Q_ROWS * D + row] = piece.m[r] * to_log2_of(p);
                partial[Q_ROWS * D + Q_ROWS + row] = l;
            }
        } else {
            float scale = inverse(piece.m[r] * to_log2_of(p), l, c, p, c.packed_begin + row);
            act* target = out_row(c, p, c.packed_begin + row) + slice + 2 * (lane & 3);
#pragma unroll
            for (int n = 0; n < DN; n++)
                *(u32*)(target + n * 8) = pack2(piece.o[n][2 * r] * scale, piece.o[n][2 * r + 1] * scale);
        }
    }
}

// The warps, or those of a slice, hold the same rows over different tokens; this sums them in their order. `scratch` is the stage
// that was just read; it holds KT rows of LD floats.
DEV void finish_decode(const Piece& piece, const Cursor& c, const Problem& p, float* partial,
                       float* scratch, float2* ml_smem) {
    u32 lane = threadIdx.x & 31, rows = c.packed_end - c.packed_begin;
    u32 warp = (threadIdx.x >> 5) / DECODE_SLICES, slice = (threadIdx.x >> 5) % DECODE_SLICES * (D / DECODE_SLICES);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        u32 row = lane / 4 + 8 * r;
        float l = piece.l[r];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (row >= rows || warp >= KV_WARPS) continue;
        if ((lane & 3) == 0 && slice == 0) ml_smem[warp * 16 + row] = make_float2(piece.m[r] * to_log2_of(p), l);
        float* target = scratch + (warp * 16 + row) * LD + slice + 2 * (lane & 3);
#pragma unroll
        for (int n = 0; n < D / 8 / DECODE_SLICES; n++)
            *(float2*)(target + n * 8) = make_float2(piece.o[n][2 * r], piece.o[n][2 * r + 1]);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < rows * (D / 2); i += THREADS) {
        u32 row = i / (D / 2), column = i % (D / 2) * 2;
        float m = NEG_INF, l = 0.0f;
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < KV_WARPS; w++) m = fmaxf(m, ml_smem[w * 16 + row].x);
#pragma unroll
        for (int w = 0; w < KV_WARPS; w++) {
            float2 ml = ml_smem[w * 16 + row], o = *(float2*)(scratch + (w * 16 + row) * LD + column);
            float weight = exp2_approx(ml.x - (m == NEG_INF ? 0.0f : m));
            l += ml.y * weight;
            sum.x += o.x * weight, sum.y += o.y * weight;
        }
        if (partial) {
            *(float2*)(partial + row * D + column) = sum;
            if (column == 0) partial[Q_ROWS * D + row] = m, partial[Q_ROWS * D + Q_ROWS + row] = l;
        } else {
            float scale = inverse(m, l, c, p, c.packed_begin + row);
            *(u32*)(out_row(c, p, c.packed_begin + row) + column) = pack2(sum.x * scale, sum.y * scale);
        }
    }
}

DEV u32 piece_index(u32 cta, u32 first_cta) { return cta == first_cta ? 2 * cta + 1 : 2 * cta; }

// Sums the pieces that CTAs [first, first + count) wrote, in that order, and writes the output rows. A
// thread reads BATCH pieces of ITEMS quads of the output at once.
template <int BATCH, int ITEMS>
DEV void merge_pieces(const Cursor& c, const Problem& p, u32 first, u32 count) {
    u32 quads = (c.packed_end - c.packed_begin) * (D / 4);
    for (u32 start = threadIdx.x; start < quads; start += THREADS * ITEMS) {
        float m[ITEMS], l[ITEMS];
        float4 sum[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; i++) m[i] = NEG_INF, l[i] = 0.0f, sum[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (u32 base = 0; base < count; base += BATCH) {
            float4 v[ITEMS][BATCH];
            float pm[ITEMS][BATCH], pl[ITEMS][BATCH];
#pragma unroll
            for (int i = 0; i < ITEMS; i++)
#pragma unroll
                for (u32 k = 0; k < BATCH; k++) {
                    u32 quad = min(start + i * THREADS, quads - 1), row = quad / (D / 4);
                    const float* part = partial_at(p, piece_index(first + min(base + k, count - 1), first));
                    v[i][k] = __ldcg((const float4*)part + quad);
                    pm[i][k] = __ldcg(part + Q_ROWS * D + row);
                    pl[i][k] = __ldcg(part + Q_ROWS * D + Q_ROWS + row);
                }
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                float top = m[i];
#pragma unroll
                for (u32 k = 0; k < BATCH; k++) top = fmaxf(top, pm[i][k]);
                float zero = top == NEG_INF ? 0.0f : top, keep = exp2_approx(m[i] - zero);
                m[i] = top;
                l[i] *= keep, sum[i].x *= keep, sum[i].y *= keep, sum[i].z *= keep, sum[i].w *= keep;
#pragma unroll
                for (u32 k = 0; k < BATCH; k++) {
                    float weight = base + k < count ? exp2_approx(pm[i][k] - zero) : 0.0f;
                    l[i] += weight * pl[i][k];
                    sum[i].x += weight * v[i][k].x, sum[i].y += weight * v[i][k].y;
                    sum[i].z += weight * v[i][k].z, sum[i].w += weight * v[i][k].w;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            u32 quad = start + i * THREADS;
            if (quad >= quads) continue;
            float scale = inverse(m[i], l[i], c, p, c.packed_begin + quad / (D / 4));
            uint2 packed = make_uint2(pack2(sum[i].x * scale, sum[i].y * scale),
                                      pack2(sum[i].z * scale, sum[i].w * scale));
            *(uint2*)(out_row(c, p, c.packed_begin + quad / (D / 4)) + quad % (D / 4) * 4) = packed;
        }
    }
}

DEV void finish_piece(const Piece& piece, const Cursor& c, const Problem& p, float* scratch,
                      float2* ml_smem, u32* flag) {
    u32 from = pair_place(c), first = from / p.per_cta;
    u32 last = (from + (tiles_of(c) - 1) * tile_length(c)) / p.per_cta;
    bool whole = first == last || !may_cut(c, p);
    float* partial = whole ? nullptr : partial_at(p, piece_index(blockIdx.x, first));
    if (piece.decode) finish_decode(piece, c, p, partial, scratch, ml_smem);
    else finish_prefill(piece, c, p, partial);
    if (whole) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *flag = atomicAdd(p.counters + first, 1u) == last - first;
    __syncthreads();
    if (*flag) {
        __threadfence();
        if (c.decode) merge_pieces<8, 1>(c, p, first, last - first + 1);
        else merge_pieces<2, 4>(c, p, first, last - first + 1);
        if (threadIdx.x == 0) p.counters[first] = 0;
    }
}

// ---- the kernel ---------------------------------------------------------------------------------

DEV void zero_padding(const Problem& p, const u32* plan) {
    u64 words = (u64)p.num_heads * D / 8;
    uint4* rows = (uint4*)p.out;
    for (u32 t = FIELD(plan, PlanHeader, num_tokens) + blockIdx.x; t < FIELD(plan, PlanHeader, padded_tokens);
         t += gridDim.x)
        for (u32 i = threadIdx.x; i < words; i += THREADS) rows[t * words + i] = make_uint4(0, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, D <= 128 ? 2 : 1)
PASTE(attention_paged, DT, sm80)
(Dims dims, const act* q, act* out, const u32* plan, const u32* block_table, u64 kv_base,
 u64 block_stride, u64 layer_offset, float* partials, u32* counters, float scale, float softcap,
 u32 window, const float* sinks) {
    extern __shared__ __align__(128) u8 smem[];
    // The plan was complete before the previous kernel, which triggered only after its own wait.
    bool prompt_follows = FIELD(plan, PlanHeader, flags) & PLAN_PROMPT_FOLLOWS;
    if (!prompt_follows) grid_trigger();
    u8* q_smem = smem + ATTN_STAGES * STAGE_BYTES;
    float4* sums = (float4*)(q_smem + Q_BYTES);
    float2* ml_smem = (float2*)(q_smem + Q_BYTES + SUM_BYTES);
    u32* flag = (u32*)(ml_smem + ML_ROWS);
    Problem p{q, out, plan + WORDS(PlanHeader) + plan_grid(FIELD(plan, PlanHeader, grid)), block_table,
              kv_base + layer_offset,
              block_stride, partials, counters, scale, softcap, window, FIELD(plan, PlanHeader, length_per_cta),
              DIM(num_heads),
              DIM(num_kv_heads), DIM(num_heads) / DIM(num_kv_heads), DIM(block_size),
              DIM(max_blocks), FIELD(plan, PlanHeader, flags), FIELD(plan, PlanHeader, num_entries),
              FIELD(plan, PlanHeader, total_length)};
#if SINKS
    p.sinks = sinks;
#endif
    u32 begin = blockIdx.x * p.per_cta, end = min(begin + p.per_cta, p.total);
    Cursor next;
    if (begin < end) {
        next.entry = plan[WORDS(PlanHeader) + blockIdx.x];
        seek(next, p, begin);
    }
    grid_wait();
    // attention_prefill.cu does not wait for what this kernel writes, but it reads what this one waited for.
    if (prompt_follows) grid_trigger();
    zero_padding(p, plan);
    if (begin >= end || place_of(next, p) >= end) return;
    Cursor current = next;
    u32 base = smem_address(smem), q_address = smem_address(q_smem), issued = 0;
    for (; issued < ATTN_STAGES - 1; issued++) {
        if (place_of(next, p) < end) load_next(next, p, base + issued * STAGE_BYTES, q_address, issued == 0);
        cp_async_commit();
    }
    Piece piece;
    bool fresh = true, more = true;
    for (u32 t = 0; more; t++, issued++) {
        cp_async_wait<ATTN_STAGES - 2>();
        __syncthreads();
        if (place_of(next, p) < end)
            load_next(next, p, base + issued % ATTN_STAGES * STAGE_BYTES, q_address, false);
        cp_async_commit();
        if (fresh) start_piece(piece, current, p, q_smem);
        u8* stage = smem + t % ATTN_STAGES * STAGE_BYTES;
        add_tile(piece, current, p, smem_address(stage), q_address, sums);
        fresh = current.tile + 1 == current.tile_end;
        more = (fresh ? pair_place(current) + pair_length(current) : place_of(current, p, 1)) < end;
        if (fresh || !more) finish_piece(piece, current, p, (float*)stage, ml_smem, flag);
        advance(current, p);
    }
}
