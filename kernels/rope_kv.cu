// From the qkv projection to attention's inputs: bias, head norm, rotation, KV write.
//
// rope_table: table[p][i] = attention_factor * (cos, sin)(p * inv_freq[i]); the angle is rounded to f32
//   first as the reference does, its cosine and sine are taken in f64.
// rope_kv_paged: one warp a head of a token.
//   qkv [T_pad, (num_heads + 2 * num_kv_heads) * HEAD_DIM] act; bias the same width f32 or null;
//   row_scale [T_pad] and scale, the same width as bias, f32: qkv is a product of e4m3 numbers, element (t, i) counts
//   row_scale[t] * scale[i] times; or both null;
//   q_norm, k_norm [HEAD_DIM] f32 or null, with -DFULL_NORM=1 [num_heads * HEAD_DIM] and
//   [num_kv_heads * HEAD_DIM], for one norm over all heads of q and one over all of k; table [positions, rotary_dim / 2] float2, null: no rotation; positions,
//   kv_slot [T_pad] u32 (kv_slot = block * block_size + offset, NONE writes no KV);
//   q_out [T_pad, num_heads * HEAD_DIM] act.
//   KV address in bytes: kv_base + block * block_stride + layer_offset
//                        + (((K ? 0 : 1) * num_kv_heads + head) * block_size + offset) * HEAD_DIM * bytes of a kv.
//   With -DOUTPUT_GATE=1 each head of q is followed by its gate, which output_gate.cu reads: qkv and scale are
//   (2 * num_heads + 2 * num_kv_heads) * HEAD_DIM wide, and there is no bias.
//   style: ROPE_HALF_SPLIT or ROPE_INTERLEAVED. With -DQUERY_SCALE=1 a query at position p is multiplied by
//   1 + query_beta * ln(1 + floor(p / query_length)), with -DQUERY_SCALE=2 where there is no rotation alone, and by p + 1
//   in place of p.
//   KEY_PARTS says what follows q in a row of qkv: 2 (without the macro) k and v; 1 k, whose heads are also those of v as
//   the projection left them; 0 nothing, and none is written. qkv, scale and bias are narrower accordingly.
//   With -DVALUE_NORM=1 each head of v is normed, without weights; with -DUNWEIGHTED_NORM=1 each head of q and k, where
//   there is a rotation. With -DROTARY_PART=1 the first rotary_pairs pairs of rotary_dim / 2 rotate, and a row of table
//   has so many (half-split only).
// Numerics: f32, one rounding to act. rotary_dim % 4 == 0, rotary_pairs % 2 == 0, HEAD_DIM even, <= 512.
// Launch: rope_table grid ceil(num_positions * half / 256), block 256;
//   rope_kv_paged grid (T_pad, ceil(heads / ROPE_HEADS)), block 256, heads = num_heads + 2 * num_kv_heads.
#include "ptx.cuh"

#ifndef FULL_NORM
#define FULL_NORM 0
#endif
#ifndef OUTPUT_GATE
#define OUTPUT_GATE 0
#endif
#ifndef QUERY_SCALE
#define QUERY_SCALE 0
#endif
#ifndef KEY_PARTS
#define KEY_PARTS 2
#endif
#ifndef VALUE_NORM
#define VALUE_NORM 0
#endif
#ifndef UNWEIGHTED_NORM
#define UNWEIGHTED_NORM 0
#endif
#ifndef ROTARY_PART
#define ROTARY_PART 0
#endif

// Sine and cosine of x in [0, 2^27), to about 1e-15.
DEV float2 cos_sin(double x) {
    double k = rint(x * 0.63661977236758134);
    double r = fma(-k, 1.5707963267948966, x);
    r = fma(-k, 6.123233995736766e-17, r);
    double z = r * r;
    double s = fma(z, fma(z, fma(z, fma(z, fma(z, fma(z, 1.6059043836821613e-10, -2.5052108385441719e-08),
        2.7557319223985893e-06), -1.9841269841269841e-04), 8.3333333333333333e-03), -1.6666666666666667e-01), 1.0) * r;
    double c = fma(z, fma(z, fma(z, fma(z, fma(z, fma(z, fma(z, -1.1470745597729725e-11, 2.0876756987868099e-09),
        -2.7557319223985891e-07), 2.4801587301587302e-05), -1.3888888888888889e-03), 4.1666666666666664e-02), -0.5), 1.0);
    u32 quadrant = (u32)(i64)k & 3u;
    double cosine = (quadrant & 1) ? s : c, sine = (quadrant & 1) ? c : s;
    if (quadrant == 1 || quadrant == 2) cosine = -cosine;
    if (quadrant >= 2) sine = -sine;
    return make_float2((float)cosine, (float)sine);
}

ENTRY_F32(rope_table)
(const float* __restrict__ inv_freq, float attention_factor, float2* __restrict__ table,
 u32 num_positions, u32 half) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (u64)num_positions * half) return;
    float angle = (float)(u32)(i / half) * inv_freq[i % half];
    float2 v = cos_sin((double)angle);
    table[i] = make_float2(v.x * attention_factor, v.y * attention_factor);
}

#ifdef HEAD_DIM

constexpr int GROUPS = (HEAD_DIM + 63) / 64;  // a lane holds elements 64 * g + 2 * lane, + 1

// One head of one token as the projection left it; scale and bias are those of the head, if there are such. Whether
// there are is asked of the arguments, the same for all threads: when it was asked of these pointers, HEAD_DIM 256
// read a bias at null on an H200 that no argument gave.
struct Head {
    const act* values;
    const float *scale, *bias;
    float row_scale;
    bool is_scaled, has_bias;
};

DEV float2 load_pair(const Head& head, u32 i) {
    float2 v = unpack2(*(const u32*)(head.values + i));
    if (head.is_scaled) v.x *= head.row_scale * head.scale[i], v.y *= head.row_scale * head.scale[i + 1];
    if (head.has_bias) v.x += head.bias[i], v.y += head.bias[i + 1];
    return v;
}

// Loads element pairs; lanes beyond HEAD_DIM (96) hold zeros.
DEV void load_pairs(float2 (&v)[GROUPS], const Head& head, u32 lane) {
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        u32 i = 64 * g + 2 * lane;
        v[g] = i < HEAD_DIM ? load_pair(head, i) : make_float2(0.0f, 0.0f);
    }
}

DEV float head_scale(const float2 (&v)[GROUPS], float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) sum += v[g].x * v[g].x + v[g].y * v[g].y;
    return rsqrtf(warp_sum(sum) / (float)HEAD_DIM + eps);
}

#if FULL_NORM
// The same over several heads, the first of which is `head`; all threads of the block call.
DEV float heads_scale(const Head& head, u32 num_heads, float eps) {
    __shared__ float scratch[33];
    float sum = 0.0f;
    for (u32 i = 2 * threadIdx.x; i < num_heads * HEAD_DIM; i += 2 * blockDim.x) {
        float2 v = load_pair(head, i);
        sum += v.x * v.x + v.y * v.y;
    }
    return rsqrtf(block_sum(sum, scratch) / (float)(num_heads * HEAD_DIM) + eps);
}
#endif

// Applies bias, norm and weight to the pair at i, as the lane that owns the pair does.
DEV float2 normed_pair(const Head& head, const float* weight, float scale, u32 i) {
    float2 v = load_pair(head, i);
#if UNWEIGHTED_NORM
    v.x *= scale, v.y *= scale;
#else
    if (weight) v.x *= scale * weight[i], v.y *= scale * weight[i + 1];
#endif
    return v;
}

DEV float2 rotate_pair(const Dims& dims, float2 v, const Head& head, const float* weight, float scale,
                       const float2* angles, u32 i, u32 rotary_dim, u32 style) {
    if (i >= rotary_dim) return v;
    if (style == ROPE_INTERLEAVED) {
        float2 cs = angles[i / 2];
        return make_float2(v.x * cs.x - v.y * cs.y, v.y * cs.x + v.x * cs.y);
    }
    u32 half = rotary_dim / 2;
    bool low = i < half;
    u32 j = low ? i : i - half;
#if ROTARY_PART
    if (j >= DIM(rotary_pairs)) return v;
#endif
    float2 other = normed_pair(head, weight, scale, low ? i + half : j);
    float4 cs = *(const float4*)(angles + j);
    float sign = low ? -1.0f : 1.0f;
    return make_float2(v.x * cs.x + sign * other.x * cs.y, v.y * cs.z + sign * other.y * cs.w);
}

ENTRY(rope_kv_paged)
(Dims dims, const act* __restrict__ qkv, const float* __restrict__ row_scale, const float* __restrict__ qkv_scale,
 const float* __restrict__ bias,
 const float* __restrict__ q_norm, const float* __restrict__ k_norm,
 const float2* __restrict__ table, const u32* __restrict__ positions,
 const u32* __restrict__ kv_slot, act* __restrict__ q_out, u64 kv_base, u64 block_stride,
 u64 layer_offset, float eps, u32 style, float query_beta, u32 query_length) {
    // In this order: attention reads the plan before its own wait, so the plan must be complete here.
    grid_wait();
    grid_trigger();
    u32 lane = threadIdx.x & 31, head = blockIdx.y * ROPE_HEADS + (threadIdx.x >> 5), token = blockIdx.x;
    u32 num_heads = DIM(num_heads), num_kv_heads = DIM(num_kv_heads);
    // Those of the result; a row of qkv has KEY_PARTS * num_kv_heads behind those of q.
    u32 all_heads = num_heads + (KEY_PARTS ? 2 : 0) * num_kv_heads;
    auto head_at = [&](u32 h) {
#if KEY_PARTS < 2
        u32 place = h < num_heads + num_kv_heads ? h : h - num_kv_heads;
        u32 places = num_heads + KEY_PARTS * num_kv_heads;
        h = place;
#elif OUTPUT_GATE
        u32 place = h < num_heads ? 2 * h : num_heads + h, places = num_heads + all_heads;
#else
        u32 place = h, places = all_heads;
#endif
        Head at{qkv + ((u64)token * places + place) * HEAD_DIM, qkv_scale + place * HEAD_DIM, bias + h * HEAD_DIM,
                1.0f, qkv_scale != nullptr, bias != nullptr};
        if (at.is_scaled) at.row_scale = row_scale[token];
        return at;
    };
    bool is_q = head < num_heads, is_v = head >= num_heads + num_kv_heads;
#if FULL_NORM
    // A block has heads of q, of k or of both, the same for all of its threads.
    u32 first = blockIdx.y * ROPE_HEADS;
    bool has_q = first < num_heads, has_k = first < num_heads + num_kv_heads && first + ROPE_HEADS > num_heads;
    float q_scale = has_q ? heads_scale(head_at(0), num_heads, eps) : 1.0f;
    float k_scale = has_k ? heads_scale(head_at(num_heads), num_kv_heads, eps) : 1.0f;
#endif
    if (head >= all_heads) return;
    Head source = head_at(head);

    float2 v[GROUPS];
    load_pairs(v, source, lane);
#if FULL_NORM
    const float* weight = is_v ? nullptr : is_q ? q_norm + head * HEAD_DIM : k_norm + (head - num_heads) * HEAD_DIM;
    float scale = is_q ? q_scale : k_scale;
#else
    const float* weight = is_v ? nullptr : is_q ? q_norm : k_norm;
    bool is_normed = weight || (VALUE_NORM && is_v) || (UNWEIGHTED_NORM && table && !is_v);
    float scale = is_normed ? head_scale(v, eps) : 1.0f;
#endif

    act* target;
    if (is_q) {
        target = q_out + ((u64)token * num_heads + head) * HEAD_DIM;
    } else {
        u32 slot = kv_slot[token];
        if (slot == NONE) return;
        u32 block = slot / DIM(block_size), offset = slot % DIM(block_size);
        target = (kv*)(kv_base + block * block_stride + layer_offset) +
                 ((u64)(head - num_heads) * DIM(block_size) + offset) * HEAD_DIM;
    }
#if QUERY_SCALE == 2
    float factor =
        is_q && !table ? 1.0f + query_beta * logf(1.0f + (float)((positions[token] + 1) / query_length)) : 1.0f;
#elif QUERY_SCALE
    float factor = is_q ? 1.0f + query_beta * logf(1.0f + (float)(positions[token] / query_length)) : 1.0f;
#endif
    const float2* angles = table + (u64)positions[token] * (ROTARY_PART ? DIM(rotary_pairs) : DIM(rotary_dim) / 2);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        u32 i = 64 * g + 2 * lane;
        if (i < HEAD_DIM) {
            float2 x = v[g];
#if UNWEIGHTED_NORM || VALUE_NORM
            if (!weight) x.x *= scale, x.y *= scale;
#endif
            if (weight) x.x *= scale * weight[i], x.y *= scale * weight[i + 1];
            if (table && !is_v)
                x = rotate_pair(dims, x, source, weight, scale, angles, i, DIM(rotary_dim), style);
#if QUERY_SCALE
            x.x *= factor, x.y *= factor;
#endif
            *(u32*)(target + i) = pack2(x.x, x.y);
        }
    }
}
#endif
