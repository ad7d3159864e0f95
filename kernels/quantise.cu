// Around products of e4m3 numbers: activations to e4m3 with a scale a row, and results back.
//
// Quantised rows: out [rows, width] e4m3, out_scale [rows] f32; x = out_scale[row] * out, out_scale = max|row| / 448 (1
//   for a row of zeros), rounded to nearest even. A raw product [rows, n] act counts row_scale[row] * scale[column]
//   times; row_scale [rows], scale [n] f32.
// quantise_rows: x [rows, width] act.
// rms_norm_quantise: x = norm(residual) * weight, as rms_norm_rows in rms_norm.cu. First `raw` [rows, hidden_size],
//   unless null, is added to residual [rows, hidden_size] f32.
// act_mul_quantise: x = gate(gate) * up as in activation.cu, gate_up [rows, 2 * width] act, raw unless scale is null;
//   bias [2 * width] f32 or null; rounded to act on the way.
// scaled_add_rows: out [rows, hidden_size] f32 = the raw product, + what was there if `add`.
// Numerics: f32. Launch: grid rows, block a multiple of 32 up to 1024; act_mul_quantise with 2 * width bytes of dynamic
//   shared memory. hidden_size % 4 == 0, width % 8 == 0. All contiguous, 16-byte aligned. Compute capability 8.9.
#include "ptx.cuh"

constexpr float E4M3_MAX = 448.0f;

DEV u32 pack_e4m3(float4 v) {
    u16 low = 0, high = 0;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v.y), "f"(v.x));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v.w), "f"(v.z));
#endif
    return low | (u32)high << 16;
}

DEV float4 times(float4 v, float s) { return make_float4(v.x * s, v.y * s, v.z * s, v.w * s); }
DEV float4 times(float4 v, float4 w, float s) { return make_float4(v.x * s * w.x, v.y * s * w.y, v.z * s * w.z, v.w * s * w.w); }
DEV float largest(float4 v) { return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))); }
DEV float4 widen(uint2 v) {
    float2 a = unpack2(v.x), b = unpack2(v.y);
    return make_float4(a.x, a.y, b.x, b.y);
}

// From the largest number of a row: its scale, which thread 0 stores, and what its numbers are multiplied by.
DEV float row_factor(float most, float* out_scale, float* scratch) {
    most = block_max(most, scratch);
    if (threadIdx.x == 0) out_scale[blockIdx.x] = most > 0.0f ? most / E4M3_MAX : 1.0f;
    return most > 0.0f ? E4M3_MAX / most : 1.0f;
}

ENTRY_89(quantise_rows)
(Dims dims, const act* __restrict__ x, u8* __restrict__ out, float* __restrict__ out_scale, u32 width) {
    __shared__ float scratch[33];
    grid_trigger();
    grid_wait();
    const uint4* row = (const uint4*)(x + (u64)blockIdx.x * width);
    uint2* target = (uint2*)(out + (u64)blockIdx.x * width);
    float most = 0.0f;
    uint4 first = threadIdx.x < width / 8 ? row[threadIdx.x] : make_uint4(0, 0, 0, 0);
    for (u32 i = threadIdx.x; i < width / 8; i += blockDim.x) {
        uint4 v = i == threadIdx.x ? first : row[i];
        most = fmaxf(most, fmaxf(largest(widen(make_uint2(v.x, v.y))), largest(widen(make_uint2(v.z, v.w)))));
    }
    float factor = row_factor(most, out_scale, scratch);
    for (u32 i = threadIdx.x; i < width / 8; i += blockDim.x) {
        uint4 v = i == threadIdx.x ? first : row[i];
        target[i] = make_uint2(pack_e4m3(times(widen(make_uint2(v.x, v.y)), factor)),
                               pack_e4m3(times(widen(make_uint2(v.z, v.w)), factor)));
    }
}

// A thread keeps its first four numbers; it reads the others again, from L1 or L2.
ENTRY_89(rms_norm_quantise)
(Dims dims, float* __restrict__ residual, const act* __restrict__ raw, const float* __restrict__ row_scale,
 const float* __restrict__ scale, const float* __restrict__ weight, u8* __restrict__ out,
 float* __restrict__ out_scale, float eps) {
    __shared__ float scratch[33];
    u32 quads = DIM(hidden_size) / 4, t = threadIdx.x;
    const float4 *weights = (const float4*)weight, *scales = (const float4*)scale;
    float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    grid_trigger();
    float4 w = t < quads ? weights[t] : zero, s = raw && t < quads ? scales[t] : zero;  // constant, so before the wait
    grid_wait();
    float4* row = (float4*)(residual + (u64)blockIdx.x * DIM(hidden_size));
    const uint2* raw_row = (const uint2*)(raw + (u64)blockIdx.x * DIM(hidden_size));
    u32* target = (u32*)(out + (u64)blockIdx.x * DIM(hidden_size));
    float of_row = raw ? row_scale[blockIdx.x] : 0.0f, sum = 0.0f, most = 0.0f;
    float4 first = zero;
    for (u32 i = t; i < quads; i += blockDim.x) {
        float4 v = row[i];
        if (raw) {
            float4 add = times(widen(raw_row[i]), i == t ? s : scales[i], of_row);
            v = make_float4(v.x + add.x, v.y + add.y, v.z + add.z, v.w + add.w);
            row[i] = v;
        }
        if (i == t) first = v;
        sum += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
    }
    float norm = rsqrtf(block_sum(sum, scratch) / (float)DIM(hidden_size) + eps);
    for (u32 i = t; i < quads; i += blockDim.x)
        most = fmaxf(most, largest(times(i == t ? first : row[i], i == t ? w : weights[i], norm)));
    float factor = row_factor(most, out_scale, scratch);
    for (u32 i = t; i < quads; i += blockDim.x)
        target[i] = pack_e4m3(times(times(i == t ? first : row[i], i == t ? w : weights[i], norm), factor));
}

// Eight gated numbers from column i on, in two registers of act each.
DEV uint4 gate_eight(const act* row, const float* scale, const float* bias, float of_row, u32 width, u32 i, u32 kind) {
    u32 packed[4];
#pragma unroll
    for (int part = 0; part < 2; part++) {
        u32 at = i + 4 * part;
        float4 g = widen(*(const uint2*)(row + at)), u = widen(*(const uint2*)(row + width + at));
        if (scale) {
            g = times(g, *(const float4*)(scale + at), of_row);
            u = times(u, *(const float4*)(scale + width + at), of_row);
        }
        if (bias) {
            float4 gb = *(const float4*)(bias + at), ub = *(const float4*)(bias + width + at);
            g = make_float4(g.x + gb.x, g.y + gb.y, g.z + gb.z, g.w + gb.w);
            u = make_float4(u.x + ub.x, u.y + ub.y, u.z + ub.z, u.w + ub.w);
        }
        packed[2 * part] = pack2(gate_f32(g.x, kind) * u.x, gate_f32(g.y, kind) * u.y);
        packed[2 * part + 1] = pack2(gate_f32(g.z, kind) * u.z, gate_f32(g.w, kind) * u.w);
    }
    return make_uint4(packed[0], packed[1], packed[2], packed[3]);
}

ENTRY_89(act_mul_quantise)
(Dims dims, const act* __restrict__ gate_up, const float* __restrict__ row_scale, const float* __restrict__ scale,
 const float* __restrict__ bias, u8* __restrict__ out, float* __restrict__ out_scale, u32 width, u32 kind) {
    extern __shared__ __align__(16) uint4 gated[];
    __shared__ float scratch[33];
    grid_trigger();
    grid_wait();
    const act* row = gate_up + (u64)blockIdx.x * 2 * width;
    uint2* target = (uint2*)(out + (u64)blockIdx.x * width);
    float of_row = scale ? row_scale[blockIdx.x] : 1.0f, most = 0.0f;
    for (u32 i = threadIdx.x; i < width / 8; i += blockDim.x) {
        uint4 v = gate_eight(row, scale, bias, of_row, width, 8 * i, kind);
        gated[i] = v;  // read by this thread alone
        most = fmaxf(most, fmaxf(largest(widen(make_uint2(v.x, v.y))), largest(widen(make_uint2(v.z, v.w)))));
    }
    float factor = row_factor(most, out_scale, scratch);
    for (u32 i = threadIdx.x; i < width / 8; i += blockDim.x) {
        uint4 v = gated[i];
        target[i] = make_uint2(pack_e4m3(times(widen(make_uint2(v.x, v.y)), factor)),
                               pack_e4m3(times(widen(make_uint2(v.z, v.w)), factor)));
    }
}

ENTRY_89(scaled_add_rows)
(Dims dims, float* __restrict__ out, const act* __restrict__ raw, const float* __restrict__ row_scale,
 const float* __restrict__ scale, u32 add) {
    grid_trigger();
    grid_wait();
    u32 quads = DIM(hidden_size) / 4;
    float4* row = (float4*)(out + (u64)blockIdx.x * DIM(hidden_size));
    const uint2* source = (const uint2*)(raw + (u64)blockIdx.x * DIM(hidden_size));
    float of_row = row_scale[blockIdx.x];
    for (u32 i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 v = times(widen(source[i]), ((const float4*)scale)[i], of_row);
        if (add) {
            float4 old = row[i];
            v = make_float4(v.x + old.x, v.y + old.y, v.z + old.z, v.w + old.w);
        }
        row[i] = v;
    }
}
