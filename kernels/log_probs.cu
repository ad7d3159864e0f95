// Log-probabilities of raw logits around one token of each row: its own, its rank, and the k best.
//
// log_prob = logit - ln(sum over vocab_size of e^logit). Rank 1 is the best; rank and best tokens
//   consider ids below sample_vocab; among equal values the lowest id comes first.
// Shapes: logits [rows, vocab_size] f32; out [rows] SampleOut.
// log_probs_rows: targets [rows] u32, k <= MAX_BEST for all rows. Launch: grid rows, block 512.
// log_probs_samples: after sample_finish; fills the fields after token and status in rows of `out` whose slot
//   wants log-probs, whose status is STATUS_OK and whose sample is not SAMPLE_LATE. Launch: grid S_pad, block 512.
// Numerics: f32 exponentials and sums of 16, f64 beyond, in a fixed order.
#include "ptx.cuh"

constexpr u32 LIST = 512;

DEV u32& best_id(u32* out, u32 rank) { return out[WORD(SampleOut, best_ids) + rank]; }
DEV u32& best_log_prob(u32* out, u32 rank) { return out[WORD(SampleOut, best_log_probs) + rank]; }

struct Ranked {
    float value;
    u32 id;
};

struct Memory {
    Ranked list[LIST];
    float maxima[512];
    double sums[16];
    float scratch[33], floor;
    u32 size, rank;
};

// Calls f(logit, id) for ids below `count`. The loads of a batch are in flight together, since the latency of
// one thread's loads dominates these kernels.
template <typename F>
DEV void each_logit(const float* x, u32 count, F f) {
    constexpr u32 BATCH = 16;
    for (u32 base = threadIdx.x; base < count; base += BATCH * blockDim.x) {
        float v[BATCH];
#pragma unroll
        for (u32 k = 0; k < BATCH; k++) v[k] = base + k * blockDim.x < count ? x[base + k * blockDim.x] : 0.0f;
#pragma unroll
        for (u32 k = 0; k < BATCH; k++)
            if (base + k * blockDim.x < count) f(v[k], base + k * blockDim.x);
    }
}

DEV bool before(Ranked a, Ranked b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

// The k-th best of the threads' best values: at least k ids are not below it.
DEV float floor_of(float best, u32 k, Memory& m) {
    m.maxima[threadIdx.x] = best;
    __syncthreads();
    u32 rank = 0;
    for (u32 i = 0; i < 512; i++) rank += m.maxima[i] > best || (m.maxima[i] == best && i < threadIdx.x);
    if (rank == k - 1) m.floor = best;
    __syncthreads();
    return m.floor;
}

DEV Ranked block_first(Ranked mine, Memory& m) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        Ranked other{__shfl_xor_sync(0xffffffffu, mine.value, offset), __shfl_xor_sync(0xffffffffu, mine.id, offset)};
        if (before(other, mine)) mine = other;
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0) m.list[threadIdx.x >> 5] = mine;
    __syncthreads();
    for (u32 w = 0; w < 16; w++)
        if (before(m.list[w], mine)) mine = m.list[w];
    return mine;
}

// Too many equal values for the list: k passes, each finds the best id after the previous one.
DEV void best_by_passes(const float* x, u32 valid, u32 k, float log_sum, u32* out, Memory& m) {
    Ranked last{-NEG_INF, 0};
    for (u32 j = 0; j < k; j++) {
        Ranked mine{NEG_INF, NONE};
        each_logit(x, valid, [&](float v, u32 id) {
            Ranked here{v, id};
            if ((j == 0 || before(last, here)) && before(here, mine)) mine = here;
        });
        last = block_first(mine, m);
        if (threadIdx.x == 0) best_id(out, j) = last.id, best_log_prob(out, j) = __float_as_uint(last.value - log_sum);
    }
}

DEV void write_best(const float* x, u32 valid, u32 k, float floor, float log_sum, u32* out, Memory& m) {
    if (threadIdx.x == 0) m.size = 0;
    __syncthreads();
    each_logit(x, valid, [&](float v, u32 id) {
        if (v < floor) return;
        u32 at = atomicAdd(&m.size, 1u);
        if (at < LIST) m.list[at] = {v, id};
    });
    __syncthreads();
    u32 size = m.size;
    if (size > LIST) return best_by_passes(x, valid, k, log_sum, out, m);
    for (u32 i = threadIdx.x; i < size; i += blockDim.x) {
        u32 rank = 0;
        for (u32 j = 0; j < size; j++) rank += before(m.list[j], m.list[i]);
        if (rank < k) {
            best_id(out, rank) = m.list[i].id;
            best_log_prob(out, rank) = __float_as_uint(m.list[i].value - log_sum);
        }
    }
}

DEV void row_log_probs(const float* x, u32 vocab_size, u32 valid, u32 token, u32 k, u32* out, Memory& m) {
    float own = x[token], best = NEG_INF, beyond = NEG_INF;
    u32 ahead = 0;
    bool bad = false;
    each_logit(x, vocab_size, [&](float v, u32 id) {
        bad |= !is_finite(v);
        if (id < valid) {
            best = fmaxf(best, v);
            ahead += v > own || (v == own && id < token);
        } else {
            beyond = fmaxf(beyond, v);
        }
    });
    if (threadIdx.x == 0) m.rank = 1;
    if (__syncthreads_or(bad)) {
        if (threadIdx.x == 0) FIELD(out, SampleOut, token) = token, FIELD(out, SampleOut, status) = STATUS_NOT_FINITE;
        return;
    }
    ahead = warp_sum_u32(ahead);
    if ((threadIdx.x & 31) == 0) atomicAdd(&m.rank, ahead);
    float top = warp_max(fmaxf(best, beyond));
    if ((threadIdx.x & 31) == 0) m.scratch[threadIdx.x >> 5] = top;
    __syncthreads();
    top = warp_max(m.scratch[threadIdx.x & 15]);
    double sum = 0.0;
    float part = 0.0f;  // of at most 16 at a time: f32 sums stay exact enough
    u32 in_part = 0;
    each_logit(x, vocab_size, [&](float v, u32) {
        part += exp2_approx((v - top) * LOG2E);
        if (++in_part % 16 == 0) sum += (double)part, part = 0.0f;
    });
    sum += (double)part;
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if ((threadIdx.x & 31) == 0) m.sums[threadIdx.x >> 5] = sum;
    __syncthreads();
    sum = 0.0;
    for (u32 w = 0; w < 16; w++) sum += m.sums[w];
    float log_sum = top + (float)log(sum);
    k = min(min(k, MAX_BEST), valid);
    if (threadIdx.x == 0) {
        FIELD(out, SampleOut, token) = token;
        FIELD(out, SampleOut, status) = STATUS_OK;
        FIELD(out, SampleOut, log_prob) = __float_as_uint(own - log_sum);
        FIELD(out, SampleOut, rank) = m.rank;
        FIELD(out, SampleOut, num_best) = k;
    }
    if (k > 0) write_best(x, valid, k, floor_of(best, k, m), log_sum, out, m);
}

extern "C" __global__ void __launch_bounds__(512, 1)
PASTE(log_probs_rows, f32, sm80)
(Dims dims, const float* __restrict__ logits, const u32* __restrict__ targets, u32 k, u32* out) {
    __shared__ Memory m;
    grid_trigger();
    grid_wait();
    u64 row = blockIdx.x;
    u32 token = min(targets[row], DIM(vocab_size) - 1);
    row_log_probs(logits + row * DIM(vocab_size), DIM(vocab_size), DIM(sample_vocab), token, k,
                  out + row * WORDS(SampleOut), m);
}

extern "C" __global__ void __launch_bounds__(512, 1)
PASTE(log_probs_samples, f32, sm80)
(Dims dims, const float* __restrict__ logits, const u32* step, const Slot* slots, u32* out) {
    __shared__ Memory m;
    grid_trigger();
    grid_wait();
    u64 s = blockIdx.x;
    if (s >= FIELD(step, StepHeader, num_samples)) return;
    const u32* sample = samples_of(step) + WORDS(StepSample) * s;
    u32 k = slots[FIELD(sample, StepSample, slot)].log_probs;
    out += s * WORDS(SampleOut);
    if (k == NONE || (FIELD(sample, StepSample, flags) & SAMPLE_LATE) || FIELD(out, SampleOut, status) != STATUS_OK)
        return;
    u32 token = FIELD(out, SampleOut, token);
    __syncthreads();
    row_log_probs(logits + s * DIM(vocab_size), DIM(vocab_size), DIM(sample_vocab), token, k, out, m);
}
