// Initialises the token counts of slots whose requests have penalties.
//
// counts [num_slots, vocab_size] u16: COUNT_IN_PROMPT says that the prompt has the id, the other bits how often
//   the output has it (saturates at 32767). ids u32: the jobs' prompt ids, then generated ids, all below
//   vocab_size; jobs [num_jobs] OpenJob.
// Launch: grid num_jobs, block 1024; a slot appears in one job only.
#include "ptx.cuh"

DEV void count_token(u16* counts, u64 at, bool prompt) {
    u32* word = (u32*)counts + at / 2;
    u32 shift = at % 2 * 16, old = *word, seen;
    do {
        seen = old;
        u32 half = seen >> shift & 0xffff;
        if (prompt) half |= COUNT_IN_PROMPT;
        else if ((half & (COUNT_IN_PROMPT - 1)) < COUNT_IN_PROMPT - 1) half++;
        old = atomicCAS(word, seen, (seen & ~(0xffffu << shift)) | half << shift);
    } while (old != seen);
}

ENTRY_U32(sample_open)
(Dims dims, u16* counts, const u32* ids, const u32* jobs) {
    grid_trigger();
    grid_wait();
    const u32* job = jobs + WORDS(OpenJob) * blockIdx.x;
    u64 row = (u64)FIELD(job, OpenJob, slot) * DIM(vocab_size);
    for (u32 i = threadIdx.x; i < DIM(vocab_size); i += blockDim.x) counts[row + i] = 0;
    __threadfence();
    __syncthreads();
    for (u32 i = threadIdx.x; i < FIELD(job, OpenJob, num_prompt) + FIELD(job, OpenJob, num_generated); i += blockDim.x)
        count_token(counts, row + ids[FIELD(job, OpenJob, first_id) + i], i < FIELD(job, OpenJob, num_prompt));
}
