// Root-mean-square norm of f32 rows, and additions to the residual stream.
//
// rms_norm_rows: out[i] = x[r] * rsqrt(mean(x[r]^2) + eps) * weight, r = row_index ? row_index[i] : i.
//   x [*, hidden_size] f32; weight [hidden_size] f32 (Gemma's 1 already added); out [rows, hidden_size] act.
// rms_norm_add: residual[i] += norm(x[i]) * weight (the norms after each part of a layer).
// norm_add_scaled: residual[i] = (residual[i] + norm(x[i]) * weight) * scale[0], scale [1] f32 or null for 1; and
//   out[i] = act(residual[i]) unless out is null.
// bias_add_rows: residual[i] += bias.
// cast_rows: out[i] = act(x[i]) (where a layer has no norm before its parts).
// Numerics: f32 throughout, sum of squares in a fixed order; one rounding to act.
// Launch: grid rows, block a multiple of 32 up to 1024. hidden_size % 4 == 0. All contiguous, 16-byte aligned.
#include "ptx.cuh"

// A thread keeps its first four elements; the rest is read twice, the second time from L1 or L2.
DEV float row_scale(const float4* row, float4 first, u32 quads, u32 hidden_size, float eps) {
    __shared__ float scratch[33];
    float sum = first.x * first.x + first.y * first.y + (first.z * first.z + first.w * first.w);
    for (u32 i = threadIdx.x + blockDim.x; i < quads; i += blockDim.x) {
        float4 v = row[i];
        sum += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
    }
    sum = block_sum(sum, scratch);
    return rsqrtf(sum / (float)hidden_size + eps);
}

DEV float4 quad_or_zero(const float4* row, u32 quads) {
    return threadIdx.x < quads ? row[threadIdx.x] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

DEV float4 scaled(float4 v, float4 weight, float scale) {
    return make_float4(v.x * scale * weight.x, v.y * scale * weight.y, v.z * scale * weight.z,
                       v.w * scale * weight.w);
}

ENTRY(rms_norm_rows)
(Dims dims, const float* __restrict__ x, const u32* __restrict__ row_index,
 const float* __restrict__ weight, act* __restrict__ out, float eps) {
    u32 quads = DIM(hidden_size) / 4;
    const float4* weights = (const float4*)weight;
    grid_trigger();
    float4 w = quad_or_zero(weights, quads);  // constant, so before the wait
    grid_wait();
    u64 source = row_index ? row_index[blockIdx.x] : blockIdx.x;
    const float4* row = (const float4*)(x + source * DIM(hidden_size));
    uint2* target = (uint2*)(out + (u64)blockIdx.x * DIM(hidden_size));
    float4 v = quad_or_zero(row, quads);
    float scale = row_scale(row, v, quads, DIM(hidden_size), eps);
    for (u32 i = threadIdx.x; i < quads; i += blockDim.x) {
        if (i != threadIdx.x) v = row[i], w = weights[i];
        v = scaled(v, w, scale);
        target[i] = make_uint2(pack2(v.x, v.y), pack2(v.z, v.w));
    }
}

ENTRY(rms_norm_add)
(Dims dims, const float* __restrict__ x, const float* __restrict__ weight,
 float* __restrict__ residual, float eps) {
    u32 quads = DIM(hidden_size) / 4;
    const float4 *weights = (const float4*)weight, *row = (const float4*)(x + (u64)blockIdx.x * DIM(hidden_size));
    float4* target = (float4*)(residual + (u64)blockIdx.x * DIM(hidden_size));
    grid_trigger();
    grid_wait();
    float4 v = quad_or_zero(row, quads);
    float scale = row_scale(row, v, quads, DIM(hidden_size), eps);
    for (u32 i = threadIdx.x; i < quads; i += blockDim.x) {
        if (i != threadIdx.x) v = row[i];
        v = scaled(v, weights[i], scale);
        float4 r = target[i];
        target[i] = make_float4(r.x + v.x, r.y + v.y, r.z + v.z, r.w + v.w);
    }
}

ENTRY(norm_add_scaled)
(Dims dims, const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ residual,
 const float* __restrict__ factor, act* __restrict__ out, float eps) {
    u32 quads = DIM(hidden_size) / 4;
    const float4 *weights = (const float4*)weight, *row = (const float4*)(x + (u64)blockIdx.x * DIM(hidden_size));
    float4* target = (float4*)(residual + (u64)blockIdx.x * DIM(hidden_size));
    uint2* copy = out ? (uint2*)(out + (u64)blockIdx.x * DIM(hidden_size)) : nullptr;
    grid_trigger();
    float all = factor ? factor[0] : 1.0f;  // constant, so before the wait
    grid_wait();
    float4 v = quad_or_zero(row, quads);
    float scale = row_scale(row, v, quads, DIM(hidden_size), eps);
    for (u32 i = threadIdx.x; i < quads; i += blockDim.x) {
        if (i != threadIdx.x) v = row[i];
        v = scaled(v, weights[i], scale);
        float4 r = target[i];
        r = make_float4((r.x + v.x) * all, (r.y + v.y) * all, (r.z + v.z) * all, (r.w + v.w) * all);
        target[i] = r;
        if (copy) copy[i] = make_uint2(pack2(r.x, r.y), pack2(r.z, r.w));
    }
}

ENTRY_F32(bias_add_rows)
(Dims dims, float* __restrict__ residual, const float* __restrict__ bias) {
    grid_trigger();
    grid_wait();
    float4* target = (float4*)(residual + (u64)blockIdx.x * DIM(hidden_size));
    for (u32 i = threadIdx.x; i < DIM(hidden_size) / 4; i += blockDim.x) {
        float4 r = target[i], b = ((const float4*)bias)[i];
        target[i] = make_float4(r.x + b.x, r.y + b.y, r.z + b.z, r.w + b.w);
    }
}

ENTRY(cast_rows)
(Dims dims, const float* __restrict__ x, act* __restrict__ out) {
    grid_trigger();
    grid_wait();
    const float4* row = (const float4*)(x + (u64)blockIdx.x * DIM(hidden_size));
    uint2* target = (uint2*)(out + (u64)blockIdx.x * DIM(hidden_size));
    for (u32 i = threadIdx.x; i < DIM(hidden_size) / 4; i += blockDim.x) {
        float4 v = row[i];
        target[i] = make_uint2(pack2(v.x, v.y), pack2(v.z, v.w));
    }
}
