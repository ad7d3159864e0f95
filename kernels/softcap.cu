// Caps logits in place: x = cap * tanh(x / cap) (Gemma 2).
//
// Shapes: logits [rows, vocab_size] f32 contiguous. A value that is not finite stays as it is.
// Launch: grid (ceil(vocab_size / SAMPLE_CHUNK), rows), block 256.
#include "ptx.cuh"

ENTRY_F32(softcap_rows)
(Dims dims, float* __restrict__ logits, float cap) {
    grid_trigger();
    grid_wait();
    float* row = logits + (u64)blockIdx.y * DIM(vocab_size);
    u32 end = min((blockIdx.x + 1) * SAMPLE_CHUNK, DIM(vocab_size));
    for (u32 i = blockIdx.x * SAMPLE_CHUNK + threadIdx.x; i < end; i += blockDim.x) {
        float x = row[i];
        if (is_finite(x)) row[i] = cap * tanh_f32(x / cap);
    }
}
