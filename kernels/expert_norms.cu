// What surrounds experts beside the usual network where each has norms of its own (Gemma 4).
//
// expert_inputs: three norms of the same rows, each with its weights: out[j][i] = norm(residual[i]) * weight[j].
//   residual [rows, hidden_size] f32; weights [hidden_size] f32; outs [rows, hidden_size] act.
// expert_join: s = sum over j, in order, of weights[i, j] * y[place[i * k + j]] with k = experts_per_token;
//   c = norm(shared[i]) * shared_norm + norm(s) * expert_norm;
//   residual[i] = (residual[i] + norm(c) * post_norm) * factor[0], factor [1] f32 or null for 1.
//   shared [rows, hidden_size] f32; y [rows * k, hidden_size] act; weights, place [rows * k]; norms [hidden_size] f32.
// Numerics: f32 throughout, sums in a fixed order; one rounding to act.
// Launch: grid rows, block a multiple of 32 up to 1024. hidden_size % 4 == 0. All contiguous, 16-byte aligned.
#include "ptx.cuh"

DEV float square(float4 v) { return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w); }

DEV float4 times(float4 v, float4 weight, float scale) {
    return make_float4(v.x * scale * weight.x, v.y * scale * weight.y, v.z * scale * weight.z, v.w * scale * weight.w);
}

DEV float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

DEV float scale_of(float sum, float* scratch, u32 hidden_size, float eps) {
    return rsqrtf(block_sum(sum, scratch) / (float)hidden_size + eps);
}

ENTRY(expert_inputs)
(Dims dims, const float* __restrict__ residual, const float* __restrict__ weight_0, const float* __restrict__ weight_1,
 const float* __restrict__ weight_2, act* __restrict__ out_0, act* __restrict__ out_1, act* __restrict__ out_2, float eps) {
    __shared__ float scratch[33];
    u32 quads = DIM(hidden_size) / 4;
    u64 start = (u64)blockIdx.x * DIM(hidden_size);
    grid_trigger();
    grid_wait();
    const float4* row = (const float4*)(residual + start);
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < quads; i += blockDim.x) sum += square(row[i]);
    float scale = scale_of(sum, scratch, DIM(hidden_size), eps);
    const float* weights[3] = {weight_0, weight_1, weight_2};
    act* outs[3] = {out_0, out_1, out_2};
    for (u32 i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 v = row[i];
#pragma unroll
        for (int j = 0; j < 3; j++) {
            float4 x = times(v, ((const float4*)weights[j])[i], scale);
            ((uint2*)(outs[j] + start))[i] = make_uint2(pack2(x.x, x.y), pack2(x.z, x.w));
        }
    }
}

struct Experts {
    const act* y;
    const u32* place;
    const float* weights;
    u32 k, hidden_size;
};

DEV float4 sum_of(const Experts& e, u32 i) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    u32 first = blockIdx.x * e.k;
    for (u32 j = 0; j < e.k; j++) {
        uint2 v = *(const uint2*)(e.y + (u64)e.place[first + j] * e.hidden_size + 4 * i);
        float2 a = unpack2(v.x), b = unpack2(v.y);
        float weight = e.weights[first + j];
        sum.x += weight * a.x, sum.y += weight * a.y, sum.z += weight * b.x, sum.w += weight * b.y;
    }
    return sum;
}

ENTRY(expert_join)
(Dims dims, const float* __restrict__ shared, const act* __restrict__ y, const u32* __restrict__ place,
 const float* __restrict__ weights, const float* __restrict__ shared_norm, const float* __restrict__ expert_norm,
 const float* __restrict__ post_norm, float* __restrict__ residual, const float* __restrict__ factor, float eps) {
    __shared__ float scratch[33];
    u32 quads = DIM(hidden_size) / 4;
    u64 start = (u64)blockIdx.x * DIM(hidden_size);
    const float4 *row = (const float4*)(shared + start), *of_shared = (const float4*)shared_norm;
    const float4 *of_experts = (const float4*)expert_norm, *post = (const float4*)post_norm;
    float4* target = (float4*)(residual + start);
    Experts experts{y, place, weights, DIM(experts_per_token), DIM(hidden_size)};
    grid_trigger();
    float all = factor ? factor[0] : 1.0f;  // constant, so before the wait
    grid_wait();
    // A thread keeps its first four elements; the rest is computed again in each pass.
    bool has_any = threadIdx.x < quads;
    float4 a = make_float4(0.0f, 0.0f, 0.0f, 0.0f), b = a;
    if (has_any) a = row[threadIdx.x], b = sum_of(experts, threadIdx.x);
    float sum_a = square(a), sum_b = square(b);
    for (u32 i = threadIdx.x + blockDim.x; i < quads; i += blockDim.x)
        sum_a += square(row[i]), sum_b += square(sum_of(experts, i));
    float scale_a = scale_of(sum_a, scratch, DIM(hidden_size), eps);
    float scale_b = scale_of(sum_b, scratch, DIM(hidden_size), eps);
    auto joined = [&](u32 i, float4 a, float4 b) {
        return plus(times(a, of_shared[i], scale_a), times(b, of_experts[i], scale_b));
    };
    float sum = 0.0f;
    if (has_any) a = joined(threadIdx.x, a, b), sum = square(a);
    for (u32 i = threadIdx.x + blockDim.x; i < quads; i += blockDim.x)
        sum += square(joined(i, row[i], sum_of(experts, i)));
    float scale = scale_of(sum, scratch, DIM(hidden_size), eps);
    for (u32 i = threadIdx.x; i < quads; i += blockDim.x) {
        if (i != threadIdx.x) a = joined(i, row[i], sum_of(experts, i));
        float4 v = plus(target[i], times(a, post[i], scale));
        target[i] = make_float4(v.x * all, v.y * all, v.z * all, v.w * all);
    }
}
