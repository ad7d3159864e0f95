// Root-mean-square norm of f32 rows, and what touches the residual stream beside it.
//
// rms_norm_rows: out[i] = x[r] * rsqrt(mean(x[r]^2) + eps) * weight, r = row_index ? row_index[i] : i.
//   x [*, hidden_size] f32; weight [hidden_size] f32 (Gemma's 1 already added); out [rows, hidden_size] act.
// rms_norm_add: residual[i] += norm(x[i]) * weight (the norms that Gemma 2 has behind a layer).
// bias_add_rows: residual[i] += bias.
// Numerics: f32 throughout, sum of squares in a fixed order; one rounding to act.
// Launch: grid rows, block a multiple of 32 up to 1024. hidden_size % 4 == 0. All contiguous, 16-byte aligned.
#include "ptx.cuh"

// A row is read twice, the second time from L1 or L2: no limit on hidden_size.
DEV float row_scale(const float4* row, u32 quads, u32 hidden_size, float eps) {
    __shared__ float scratch[33];
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 v = row[i];
        sum += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
    }
    sum = block_sum(sum, scratch);
    return rsqrtf(sum / (float)hidden_size + eps);
}

ENTRY(rms_norm_rows)
(Dims dims, const float* __restrict__ x, const u32* __restrict__ row_index,
 const float* __restrict__ weight, act* __restrict__ out, float eps) {
    grid_wait();
    u64 source = row_index ? row_index[blockIdx.x] : blockIdx.x;
    u32 quads = DIM(hidden_size) / 4;
    const float4* row = (const float4*)(x + source * DIM(hidden_size));
    uint2* target = (uint2*)(out + (u64)blockIdx.x * DIM(hidden_size));
    float scale = row_scale(row, quads, DIM(hidden_size), eps);
    for (u32 i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 v = row[i], w = ((const float4*)weight)[i];
        target[i] = make_uint2(pack2(v.x * scale * w.x, v.y * scale * w.y),
                               pack2(v.z * scale * w.z, v.w * scale * w.w));
    }
}

ENTRY(rms_norm_add)
(Dims dims, const float* __restrict__ x, const float* __restrict__ weight,
 float* __restrict__ residual, float eps) {
    grid_wait();
    u32 quads = DIM(hidden_size) / 4;
    const float4* row = (const float4*)(x + (u64)blockIdx.x * DIM(hidden_size));
    float4* target = (float4*)(residual + (u64)blockIdx.x * DIM(hidden_size));
    float scale = row_scale(row, quads, DIM(hidden_size), eps);
    for (u32 i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 v = row[i], w = ((const float4*)weight)[i], r = target[i];
        target[i] = make_float4(r.x + v.x * scale * w.x, r.y + v.y * scale * w.y,
                                r.z + v.z * scale * w.z, r.w + v.w * scale * w.w);
    }
}

ENTRY_F32(bias_add_rows)
(Dims dims, float* __restrict__ residual, const float* __restrict__ bias) {
    grid_wait();
    float4* target = (float4*)(residual + (u64)blockIdx.x * DIM(hidden_size));
    for (u32 i = threadIdx.x; i < DIM(hidden_size) / 4; i += blockDim.x) {
        float4 r = target[i], b = ((const float4*)bias)[i];
        target[i] = make_float4(r.x + b.x, r.y + b.y, r.z + b.z, r.w + b.w);
    }
}
