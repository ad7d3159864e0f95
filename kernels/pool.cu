// The pooled final hidden state of embedding requests: the final norm, then the mean or the last row.
//
// meta as step_prepare.cu reads it. Flags of a row: bit 0 mean, bit 1 last, bit 2 the prompt ends here.
// pool_scale: scale[t] = rsqrt(mean(residual[t]^2) + eps), [T_pad] f32. Launch: grid T_pad, block 256.
// pool_rows: residual [T_pad, hidden_size] f32; weight [hidden_size] f32 (final norm); accum
//   [num_slots, hidden_size] f32 (sums of a prompt's earlier chunks; a row with start 0 starts from zero);
//   out [R_max, hidden_size] f32, written for rows with bit 2: mean or last of residual * scale * weight.
//   Launch: grid (R_max, ceil(hidden_size / 256)), block 256.
// Numerics: f32 sums in token order, so that a prompt gives the same bits however it is chunked.
#include "ptx.cuh"

ENTRY_F32(pool_scale)
(Dims dims, const float* __restrict__ residual, float* __restrict__ scale, float eps) {
    __shared__ float scratch[33];
    grid_trigger();
    grid_wait();
    const float* row = residual + (u64)blockIdx.x * DIM(hidden_size);
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < DIM(hidden_size); i += blockDim.x) sum += row[i] * row[i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) scale[blockIdx.x] = rsqrtf(sum / (float)DIM(hidden_size) + eps);
}

ENTRY_F32(pool_rows)
(Dims dims, const u32* step, const float* __restrict__ residual, const float* __restrict__ scale,
 const float* __restrict__ weight, float* accum, float* out) {
    grid_trigger();
    grid_wait();
    u32 i = blockIdx.y * blockDim.x + threadIdx.x;
    if (blockIdx.x >= FIELD(step, StepHeader, num_rows) || i >= DIM(hidden_size)) return;
    const u32* row = rows_of(step) + WORDS(StepRow) * blockIdx.x;
    u32 slot = FIELD(row, StepRow, slot), start = FIELD(row, StepRow, start), count = FIELD(row, StepRow, num_tokens);
    u32 first = FIELD(row, StepRow, first_token), flags = FIELD(row, StepRow, flags);
    if (!(flags & (POOL_MEAN | POOL_LAST))) return;
    float* kept = accum + (u64)slot * DIM(hidden_size) + i;
    float* target = out + (u64)blockIdx.x * DIM(hidden_size) + i;
    const float* x = residual + i;
    if (flags & POOL_LAST) {
        u64 t = first + count - 1;
        if (flags & POOL_ENDS) *target = x[t * DIM(hidden_size)] * scale[t] * weight[i];
        return;
    }
    float sum = start == 0 ? 0.0f : *kept;
#pragma unroll 8
    for (u32 t = first; t < first + count; t++)
        sum += x[(u64)t * DIM(hidden_size)] * scale[t] * weight[i];
    if (flags & POOL_ENDS) *target = sum / (float)(start + count);
    else *kept = sum;
}
