// Chooses the next token of each sampled row without sorting the vocabulary. The definition is the CPU
// sampler's (rust/cpu/src/sampler): same order, same random bits; sums and logarithms may differ by an ulp.
//
// Shapes: logits [S_pad, vocab_size] f32 (row s belongs to sample s of the step); work the same, written
//   only for rows whose logits a bias, mask, ban or penalty changes; slots [num_slots] Slot; counts [num_slots,
//   vocab_size] u16 (COUNT_IN_PROMPT; below it: times in the output); mask [num_slots, ceil(vocab_size / 32)]
//   u32; bias [num_slots, MAX_LOGIT_BIAS] Bias, ids distinct; banned [num_slots, MAX_BANNED] u32; partials
//   [S_pad, chunks] SamplePartial; last_token [num_slots] u32; out [S_pad] SampleOut: token and status. A sample
//   whose flags have SAMPLE_LATE is skipped. SAMPLE_MASKED: mask [slot] applies, whatever the slot's flags say.
// A row with a NaN or infinite logit, or with no id left, counts as not finite. Ids from sample_vocab on are
//   never chosen. Order: bias, allowed ids and bans, penalties, temperature, top-k, top-p, min-p,
//   top-n-sigma, Gumbel-max. On ties the lowest id wins, everywhere.
// Launch: sample_scan, then sample_finish.
// sample_scan: grid (chunks = ceil(vocab_size / SAMPLE_CHUNK), S_pad), block 256. It does all of the work for greedy
//   rows and rows without filters.
// sample_finish: grid S_pad, block 512. Joins the chunks; for filtered rows finds the last token that
//   top-k and top-p keep: a histogram of the distance to the best logit finds its bin, and only that bin
//   is sorted. Masses are integers, so that sums do not depend on the order of the atomics.
//   Writes the token, last_token, the output position and the counts.
#include "ptx.cuh"

constexpr u32 CHUNK = SAMPLE_CHUNK;

struct State {
    u16* counts;
    const u32* mask;
    const Bias* bias;
    const u32* banned;
};

DEV const u32* sample_words(const u32* step, u32 s) {
    return step + FIELD(step, StepHeader, samples_at) + WORDS(StepSample) * s;
}

DEV bool is_filtered(const Slot& slot) {
    return slot.temperature > 0.0f && (slot.top_k > 0 || slot.top_p < 1.0f || slot.min_p > 0.0f || slot.top_n_sigma > 0.0f);
}

DEV bool is_changed(const Slot& slot, u32 flags) {
    bool banned = slot.banned_len && slot.position < slot.min_tokens;
    return slot.bias_len || banned || (slot.flags & (SLOT_HAS_MASK | SLOT_HAS_PENALTIES)) ||
           (flags & SAMPLE_MASKED);
}

// Random words of the four ids from 4 * group on.
DEV uint4 random_words(const Slot& slot, u32 group) {
    return philox(make_uint4(group, slot.position, slot.choice, 0),
                  make_uint2(slot.seed_low, slot.seed_high));
}

DEV u32 word_of(const uint4& words, u32 i) {
    return i & 2 ? (i & 1 ? words.w : words.z) : (i & 1 ? words.y : words.x);
}

// A word's upper 23 bits as a number in (0, 1).
DEV float uniform_of(u32 word) { return ((float)(word >> 9) + 0.5f) * 1.1920928955078125e-07f; }

DEV float gumbel_of(u32 word) { return -logf(-logf(uniform_of(word))); }

DEV float gumbel(const Slot& slot, u32 token) {
    return gumbel_of(word_of(random_words(slot, token / 4), token % 4));
}

// gumbel_of to 1e-3 at a third of the cost; infinite where the fast logarithm is not accurate enough.
DEV float rough_gumbel(u32 word) {
    float uniform = uniform_of(word);
    return uniform > 0.99f ? -NEG_INF : -__logf(-__logf(uniform));
}
constexpr float MOST_GUMBEL = 16.64f;  // -ln(-ln(1 - 2^-24)) is 16.636

DEV float penalised(float x, u32 count, const Slot& slot) {
    if (count == 0) return x;
    u32 times = count & (COUNT_IN_PROMPT - 1);
    x = x > 0.0f ? x / slot.repetition_penalty : x * slot.repetition_penalty;
    if (times) x = __fsub_rn(__fsub_rn(x, __fmul_rn(slot.frequency_penalty, (float)times)), slot.presence_penalty);
    return fminf(fmaxf(x, -1e30f), 1e30f);  // a tiny repetition penalty overflows
}

// Applies everything that comes before the temperature to `buffer`, this chunk's logits.
DEV void change_logits(const Dims& dims, float* buffer, u32 first, u32 count, u32 index, u32 flags,
                       const Slot& slot, const State& state) {
    for (u32 i = threadIdx.x; i < slot.bias_len; i += blockDim.x) {
        Bias bias = state.bias[(u64)index * MAX_LOGIT_BIAS + i];
        if (bias.id - first < count) buffer[bias.id - first] += bias.value;
    }
    __syncthreads();
    bool masked = (slot.flags & SLOT_HAS_MASK) || (flags & SAMPLE_MASKED);
    const u32* mask = state.mask + (u64)index * ((DIM(vocab_size) + 31) / 32);
    const u16* counts = state.counts + (u64)index * DIM(vocab_size);
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 id = first + i;
        float x = buffer[i];
        if (masked && !(mask[id / 32] >> (id % 32) & 1)) x = NEG_INF;
        else if (slot.flags & SLOT_HAS_PENALTIES) x = penalised(x, counts[id], slot);
        buffer[i] = x;
    }
    __syncthreads();
    if (slot.position >= slot.min_tokens) return;
    for (u32 i = threadIdx.x; i < slot.banned_len; i += blockDim.x) {
        u32 id = state.banned[(u64)index * MAX_BANNED + i];
        if (id - first < count) buffer[id - first] = NEG_INF;
    }
    __syncthreads();
}

// Best of x + noise over the chunk. Exact noise is computed only for ids that could beat the current best.
DEV Best draw(const float* buffer, u32 first, u32 count, Best leader, const Slot& slot, Best* scratch) {
    // The comparison uses a rounded quotient and a rough logarithm, so it leaves a margin.
    float inverse = 1.0f / slot.temperature;
    float bar = leader.value / slot.temperature + gumbel(slot, leader.id) - 0.01f;
    Best best{NEG_INF, NONE};
    for (u32 i = threadIdx.x * 4; i < count; i += blockDim.x * 4) {
        float4 x = *(const float4*)(buffer + i);  // the buffer holds a whole chunk; elements past the row are masked here
        float values[4] = {x.x, x.y, x.z, x.w};
        bool any = false;
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            values[k] = i + k < count ? values[k] : NEG_INF;
            any |= values[k] * inverse + MOST_GUMBEL >= bar;
        }
        if (!any) continue;
        uint4 words = random_words(slot, (first + i) / 4);
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 word = word_of(words, k);
            if (values[k] == NEG_INF || values[k] * inverse + rough_gumbel(word) < bar) continue;
            best = better(best, {values[k] / slot.temperature + gumbel_of(word), first + i + k});
        }
    }
    return block_best(best, scratch);
}

constexpr u32 SCAN_THREADS = 256, PER_THREAD = CHUNK / SCAN_THREADS;

extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
PASTE(sample_scan, f32, sm80)
(Dims dims, const float* __restrict__ logits, float* __restrict__ work, const u32* step, Slot* slots,
 u16* counts, const u32* mask, const Bias* bias, const u32* banned, u32* partials) {
    __shared__ __align__(16) float buffer[CHUNK];
    __shared__ Best scratch[32];
    grid_trigger();
    grid_wait();
    u32 s = blockIdx.y, first = blockIdx.x * CHUNK;
    if (s >= FIELD(step, StepHeader, num_samples)) return;
    const u32* sample = sample_words(step, s);
    u32 index = FIELD(sample, StepSample, slot), flags = FIELD(sample, StepSample, flags);
    u32 present = min(CHUNK, DIM(vocab_size) - first);
    if (flags & SAMPLE_LATE) return;
    u32 count = first < DIM(sample_vocab) ? min(CHUNK, DIM(sample_vocab) - first) : 0;
    u64 row = (u64)s * DIM(vocab_size) + first;
    float x[PER_THREAD];
#pragma unroll
    for (u32 k = 0; k < PER_THREAD; k++) {
        u32 i = k * SCAN_THREADS + threadIdx.x;
        x[k] = i < present ? logits[row + i] : 0.0f;
    }
    Slot slot = slots[index];
    State state{counts, mask, bias, banned};
    bool changed = is_changed(slot, flags), draws = slot.temperature > 0.0f && !is_filtered(slot);
    bool bad = false;
#pragma unroll
    for (u32 k = 0; k < PER_THREAD; k++) {
        bad |= !is_finite(x[k]);
        if (changed || draws) buffer[k * SCAN_THREADS + threadIdx.x] = x[k];
    }
    if (changed) {
        __syncthreads();
        change_logits(dims, buffer, first, count, index, flags, slot, state);
    }
    Best best{NEG_INF, NONE};
    float low = -NEG_INF;
#pragma unroll
    for (u32 k = 0; k < PER_THREAD; k++) {
        u32 i = k * SCAN_THREADS + threadIdx.x;
        if (i >= count) continue;
        if (changed) work[row + i] = x[k] = buffer[i];
        if (x[k] > NEG_INF) low = fminf(low, x[k]);
        best = better(best, {x[k], first + i});
    }
    best = block_best(best, scratch);
    low = -block_best({-low, 0}, scratch).value;
    bad = __syncthreads_or(bad);
    if (draws && best.value > NEG_INF) best = draw(buffer, first, count, best, slot, scratch);
    if (threadIdx.x == 0)
        // The first half of a SamplePartial.
        *(uint4*)(partials + ((u64)s * gridDim.x + blockIdx.x) * WORDS(SamplePartial)) =
            make_uint4(__float_as_uint(best.value), best.id, __float_as_uint(low), bad);
}

// ---- filtered rows ------------------------------------------------------------------------------

constexpr u32 FINISH_THREADS = 512, BINS = 2048, SORT_CAP = 2048, EACH = BINS / FINISH_THREADS,
              SMALL_TOP_K = 256;
constexpr float NEAR = 18.0f, WIDEST = 32.0f;  // nats below the best: beyond 32 a token weighs under 1.3e-14

struct Filter {
    u32 bin_count[BINS];
    u32 bin_loss[BINS];  // sum of (1 - weight relative to the bin's edge) * 2^20
    u64 sorted[SORT_CAP];  // order key of the logit, then ~id: falling order is best first
    double scan[33];
    u32 size, cut_bin;
    float cut_value;
    u32 cut_id;
    double mass;
};

// A filtered row. Distances are in nats of the tempered distribution. Bin = (distance - from) * per_nat;
// after a zoom, only tokens of bin `outer_bin` of the outer scale count, and the bins divide that one.
struct Row {
    const float* x;
    u32 count;
    float best, temperature, from, per_nat, outer_per_nat;
    u32 outer_bin;
};

// Logits of ids base, base + FINISH_THREADS, ...; -inf beyond the row. All loads of a batch are in flight
// together, since the latency of one thread's loads dominates this kernel.
constexpr u32 BATCH = 16;

DEV void load_batch(float (&x)[BATCH], const Row& row, u32 base) {
#pragma unroll
    for (u32 k = 0; k < BATCH; k++)
        x[k] = base + k * FINISH_THREADS < row.count ? row.x[base + k * FINISH_THREADS] : NEG_INF;
}

// Calls f(logit, id) for each id of the row with logit >= floor; fast if there are few.
template <typename F>
DEV void each_logit(const Row& row, float floor, F f) {
    for (u32 base = threadIdx.x; base < row.count; base += BATCH * FINISH_THREADS) {
        float x[BATCH];
        u32 pass = 0;
        load_batch(x, row, base);
#pragma unroll
        for (u32 k = 0; k < BATCH; k++)
            if (x[k] >= floor && x[k] > NEG_INF) pass |= 1u << k;
        for (; pass; pass &= pass - 1) {
            u32 id = base + (__ffs(pass) - 1) * FINISH_THREADS;
            f(row.x[id], id);
        }
    }
}

DEV float distance(const Row& row, float x) { return (row.best - x) / row.temperature; }

DEV u32 bin_of(const Row& row, float d) {
    if (row.outer_bin == NONE) {
        float at = d * row.per_nat;
        return at < (float)BINS ? (u32)at : NONE;
    }
    float outer = d * row.outer_per_nat;
    if (!(outer < (float)BINS) || (u32)outer != row.outer_bin) return NONE;
    return (u32)fminf(fmaxf((d - row.from) * row.per_nat, 0.0f), (float)(BINS - 1));
}

// The lowest logit that can lie in a bin up to `bin`, with a margin for rounding.
DEV float floor_of(const Row& row, u32 bin) {
    float outer = row.outer_bin == NONE ? (float)(bin + 1) / row.per_nat : (float)(row.outer_bin + 1) / row.outer_per_nat;
    float reach = outer * row.temperature;
    return row.best - reach - 1e-5f * (fabsf(row.best) + reach);
}

DEV void histogram(const Row& row, Filter& f) {
    __syncthreads();  // the bins of the last round may still be read
    for (u32 b = threadIdx.x; b < BINS; b += blockDim.x) f.bin_count[b] = f.bin_loss[b] = 0;
    __syncthreads();
    each_logit(row, floor_of(row, BINS - 1), [&](float x, u32) {
        float d = distance(row, x);
        u32 bin = bin_of(row, d);
        if (bin == NONE) return;
        float edge = row.from + (float)bin / row.per_nat;
        float loss = 1.0f - exp2_approx(fminf(edge - d, 0.0f) * LOG2E);
        atomicAdd(&f.bin_count[bin], 1u);
        atomicAdd(&f.bin_loss[bin], __float2uint_rn(loss * 1048576.0f));
    });
    __syncthreads();
}

DEV double bin_mass(const Row& row, const Filter& f, u32 bin) {
    double edge = row.from + (double)((float)bin / row.per_nat);
    return exp(-edge) * ((double)f.bin_count[bin] - (double)f.bin_loss[bin] / 1048576.0);
}

DEV double sum_of(const double (&x)[EACH]) {
    double sum = 0.0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) sum += x[i];
    return sum;
}

// Finds the bin in which the running amount (tokens, or mass) reaches `target`; NONE if none does.
// Returns the amount before that bin.
DEV double find_bin(const Row& row, Filter& f, bool by_mass, double target, double before) {
    double amounts[EACH], total;
    u32 b = threadIdx.x * EACH;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) amounts[i] = by_mass ? bin_mass(row, f, b + i) : (double)f.bin_count[b + i];
    double at = before + block_prefix_f64(sum_of(amounts), f.scan, &total);
    if (threadIdx.x == 0) f.cut_bin = NONE;
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        if (at < target && at + amounts[i] >= target) f.cut_bin = b + i, f.mass = at;
        at += amounts[i];
    }
    __syncthreads();
    return f.mass;
}

// Sorts f.sorted[0, size), best first; zeros follow it.
DEV void sort_list(Filter& f, u32 size) {
    u32 padded = 32;
    while (padded < size) padded *= 2;
    for (u32 span = 2; span <= padded; span *= 2)
        for (u32 step = span / 2; step > 0; step /= 2) {
            for (u32 i = threadIdx.x; i < padded / 2; i += FINISH_THREADS) {
                u32 low = i / step * step * 2 + i % step, high = low + step;
                u64 a = f.sorted[low], b = f.sorted[high];
                bool falling = (low & span) == 0;
                if (falling ? a < b : a > b) f.sorted[low] = b, f.sorted[high] = a;
            }
            __syncthreads();
        }
}

// Lists the tokens with logit >= floor in bins [from, to], or in any bin if `from` is NONE, best first.
// Returns their number; the list is empty if there are more than SORT_CAP.
DEV u32 sort_tokens(const Row& row, Filter& f, float floor, u32 from, u32 to) {
    if (threadIdx.x == 0) f.size = 0;
    for (u32 i = threadIdx.x; i < SORT_CAP; i += FINISH_THREADS) f.sorted[i] = 0;
    __syncthreads();
    each_logit(row, floor, [&](float x, u32 id) {
        u32 bin = from == NONE ? NONE : bin_of(row, distance(row, x));
        if (from != NONE && (bin < from || bin > to)) return;
        u32 at = atomicAdd(&f.size, 1u);
        if (at < SORT_CAP) f.sorted[at] = (u64)order_key(x) << 32 | ~id;
    });
    __syncthreads();
    u32 size = f.size;
    if (size <= SORT_CAP) sort_list(f, size);
    return size;
}

// The k-th best of the threads' best logits, k <= FINISH_THREADS: at least k tokens reach it.
DEV float floor_of_best(const Row& row, Filter& f, u32 k) {
    float* maxima = (float*)f.sorted;
    float best = NEG_INF;
    for (u32 base = threadIdx.x; base < row.count; base += BATCH * FINISH_THREADS) {
        float x[BATCH];
        load_batch(x, row, base);
#pragma unroll
        for (u32 j = 0; j < BATCH; j++) best = fmaxf(best, x[j]);
    }
    maxima[threadIdx.x] = best;
    __syncthreads();
    u32 rank = 0;
    for (u32 i = 0; i < FINISH_THREADS; i++)
        rank += maxima[i] > best || (maxima[i] == best && i < threadIdx.x);
    if (rank == k - 1) f.cut_value = best;
    __syncthreads();
    return f.cut_value;
}

// All tokens of the bin have the same logit: counts them by rising id until `target` is reached.
DEV void cut_alike(const Row& row, Filter& f, u32 bin, double before, double each, double target) {
    u32 done = 0, total, *scratch = (u32*)f.sorted;
    for (u32 base = 0; base < row.count; base += blockDim.x) {
        u32 i = base + threadIdx.x;
        bool mine = i < row.count && bin_of(row, distance(row, row.x[i])) == bin;
        u32 rank = done + block_prefix_u32(mine, scratch, &total);
        double at = before + each * rank;
        bool reaches = at < target && (at + each >= target || rank + 1 == f.bin_count[bin]);
        if (mine && reaches) f.cut_value = row.x[i], f.cut_id = i;
        done += total;
    }
    __syncthreads();
}

// Sets (cut_value, cut_id) to the token of the sorted bin at which the running amount reaches `target`.
DEV void cut_sorted(const Row& row, Filter& f, bool by_mass, double before, double target, u32 size) {
    double amounts[EACH], total;
    u32 i = threadIdx.x * EACH;
#pragma unroll
    for (u32 j = 0; j < EACH; j++) {
        float d = i + j < size ? distance(row, key_value((u32)(f.sorted[i + j] >> 32))) : 0.0f;
        amounts[j] = i + j >= size ? 0.0 : by_mass ? exp(-(double)d) : 1.0;
    }
    double at = before + block_prefix_f64(sum_of(amounts), f.scan, &total);
#pragma unroll
    for (u32 j = 0; j < EACH; j++) {
        // Bin masses are rounded: the last token of the bin takes what rounding left over.
        bool reaches = at < target && (at + amounts[j] >= target || i + j + 1 == size);
        if (i + j < size && reaches) {
            f.cut_value = key_value((u32)(f.sorted[i + j] >> 32));
            f.cut_id = ~(u32)f.sorted[i + j];
        }
        at += amounts[j];
    }
    __syncthreads();
}

DEV bool is_kept(float x, u32 id, float cut_value, u32 cut_id) {
    return x > cut_value || (x == cut_value && id <= cut_id);
}

// Tokens of bins [0, bin].
DEV u32 tokens_up_to(Filter& f, u32 bin) {
    u32 b = threadIdx.x * EACH, mine = 0, total;
#pragma unroll
    for (u32 i = 0; i < EACH; i++)
        if (b + i <= bin) mine += f.bin_count[b + i];
    block_prefix_u32(mine, (u32*)f.scan, &total);
    return total;
}

// The usual case: all tokens that the filters can keep fit a short list, f.sorted[0, size). `mass` is the mass
// of all tokens that top-p considers; if negative, those are the first `most` of the list.
DEV u32 sample_list(const Row& row, const Slot& slot, float floor, Filter& f, u32 size, u32 most, double mass, Best* scratch) {
    float d[EACH];
    double amounts[EACH], total;
    u32 i = threadIdx.x * EACH;
    size = min(size, most);
#pragma unroll
    for (u32 j = 0; j < EACH; j++) {
        d[j] = i + j < size ? distance(row, key_value((u32)(f.sorted[i + j] >> 32))) : 0.0f;
        amounts[j] = i + j < size ? exp(-(double)d[j]) : 0.0;
    }
    double at = block_prefix_f64(sum_of(amounts), f.scan, &total);
    double target = slot.top_p < 1.0f ? (double)slot.top_p * (mass < 0.0 ? total : mass) : 2.0 * total;
    Best best{NEG_INF, NONE};
#pragma unroll
    for (u32 j = 0; j < EACH; j++) {
        u32 id = i + j < size ? ~(u32)f.sorted[i + j] : NONE;
        bool kept = i + j < size && (at < target || i + j == 0) && -d[j] >= floor;
        if (kept) best = better(best, {gumbel(slot, id) - d[j], id});
        at += amounts[j];
    }
    return block_best(best, scratch).id;
}

// Mass of the tokens that are kept; of all tokens if the cut is at -inf.
DEV double kept_mass(const Row& row, Filter& f, float cut_value, u32 cut_id) {
    double sum = 0.0, total;
    float scale = LOG2E / row.temperature;
    for (u32 base = threadIdx.x; base < row.count; base += BATCH * FINISH_THREADS) {
        float x[BATCH], part = 0.0f;
        load_batch(x, row, base);
#pragma unroll
        for (u32 k = 0; k < BATCH; k++)
            if (is_kept(x[k], base + k * FINISH_THREADS, cut_value, cut_id))
                part += exp2_approx((x[k] - row.best) * scale);
        sum += (double)part;
    }
    block_prefix_f64(sum, f.scan, &total);
    return total;
}

// Of the distances of all tokens that the row has.
DEV float standard_deviation(const Row& row, Filter& f) {
    double sum = 0.0, squares = 0.0, count, total;
    u32 present = 0;
    for (u32 base = threadIdx.x; base < row.count; base += BATCH * FINISH_THREADS) {
        float x[BATCH];
        load_batch(x, row, base);
#pragma unroll
        for (u32 k = 0; k < BATCH; k++) {
            if (!(x[k] > NEG_INF)) continue;
            double d = (double)distance(row, x[k]);
            sum += d, squares += d * d, present++;
        }
    }
    block_prefix_f64((double)present, f.scan, &count);
    block_prefix_f64(sum, f.scan, &total);
    double mean = total / count;
    block_prefix_f64(squares, f.scan, &total);
    return (float)sqrt(fmax(total / count - mean * mean, 0.0));
}

// Draws among all tokens that are kept. `floor`: of the logarithm of a token's weight relative to the best.
DEV u32 sample_kept(const Row& row, const Slot& slot, float floor, float cut_value, u32 cut_id, Best* scratch) {
    float lowest = fmaxf(cut_value, row.best + floor * row.temperature - 1e-4f * (fabsf(row.best) + 1.0f));
    Best best{NEG_INF, NONE};
    each_logit(row, lowest, [&](float x, u32 id) {
        float d = distance(row, x);
        if (is_kept(x, id, cut_value, cut_id) && -d >= floor) best = better(best, {gumbel(slot, id) - d, id});
    });
    return block_best(best, scratch).id;
}

// The token of a filtered row. A small top-k leaves a short list at once; else a first pass for top-k, a
// second for top-p, then the draw. The bins first reach NEAR nats down, where the cut nearly always is, then as
// far as any token has weight.
DEV u32 sample_filtered(const Row& whole, const Slot& slot, float low, Filter& f, Best* scratch) {
    float range = fmaxf(fminf(distance(whole, low), WIDEST), 1e-3f);
    float cut_value = NEG_INF;
    u32 cut_id = NONE;
    float floor = slot.min_p > 0.0f ? logf(slot.min_p) : NEG_INF;
    if (slot.top_n_sigma > 0.0f) floor = fmaxf(floor, -slot.top_n_sigma * standard_deviation(whole, f));
    bool by_count = slot.top_k > 0 && slot.top_k < whole.count;
    if (by_count && slot.top_k <= SMALL_TOP_K) {
        u32 size = sort_tokens(whole, f, floor_of_best(whole, f, slot.top_k), NONE, NONE);
        if (size <= SORT_CAP) return sample_list(whole, slot, floor, f, size, slot.top_k, -1.0, scratch);
    }
#pragma unroll 1
    for (u32 by_mass = !by_count; by_mass <= (slot.top_p < 1.0f); by_mass++) {
        Row row = whole;
        row.per_nat = (float)(BINS - 1) / fminf(range, NEAR);
        bool cut_before = by_count && by_mass, zoomed = false, wide = range <= NEAR;
        double before = 0.0, mass = by_mass ? kept_mass(whole, f, cut_value, cut_id) : -1.0;
        double target = by_mass ? (double)slot.top_p * mass : (double)slot.top_k;
        u32 bin;
#pragma unroll 1
        while (true) {
            histogram(row, f);
            before = find_bin(row, f, by_mass, target, before);
            bin = f.cut_bin;
            if (bin == NONE && !wide) {
                row.per_nat = (float)(BINS - 1) / range;
                before = 0.0;
                wide = true;
                continue;
            }
            if (zoomed || bin == NONE || f.bin_count[bin] <= SORT_CAP) break;
            row.from = (float)bin / row.per_nat;
            row.outer_bin = bin;
            row.outer_per_nat = row.per_nat;
            row.per_nat *= (float)BINS;
            zoomed = wide = true;
        }
        if (bin == NONE) continue;  // the cut is where no token has weight: all stay
        bool short_list = !cut_before && !zoomed && tokens_up_to(f, bin) <= SORT_CAP;
        u32 size = sort_tokens(row, f, floor_of(row, bin), short_list ? 0 : bin, bin);
        if (short_list) return sample_list(row, slot, floor, f, size, by_mass ? NONE : slot.top_k, mass, scratch);
        if (threadIdx.x == 0) f.cut_id = NONE, f.cut_value = NEG_INF;
        __syncthreads();
        if (size <= SORT_CAP) cut_sorted(row, f, by_mass, before, target, size);
        else cut_alike(row, f, bin, before, by_mass ? bin_mass(row, f, bin) / size : 1.0, target);
        if (is_kept(f.cut_value, f.cut_id, cut_value, cut_id)) cut_value = f.cut_value, cut_id = f.cut_id;
    }
    return sample_kept(whole, slot, floor, cut_value, cut_id, scratch);
}

extern "C" __global__ void __launch_bounds__(FINISH_THREADS, 1)
PASTE(sample_finish, f32, sm80)
(Dims dims, const float* logits, const float* work, const u32* step, Slot* slots, u16* counts,
 const u32* partials, u32* last_token, u32* out) {
    __shared__ Filter filter;
    __shared__ Best scratch[32];
    grid_trigger();
    grid_wait();
    u32 s = blockIdx.x, chunks = (DIM(vocab_size) + CHUNK - 1) / CHUNK;
    if (s >= FIELD(step, StepHeader, num_samples)) {
        if (threadIdx.x == 0) out[WORD_AT(SampleOut, (u64)s, token)] = 0, out[WORD_AT(SampleOut, (u64)s, status)] = NONE;
        return;
    }
    const u32* sample = sample_words(step, s);
    if (FIELD(sample, StepSample, flags) & SAMPLE_LATE) return;
    u32 index = FIELD(sample, StepSample, slot);
    Slot slot = slots[index];
    Best best{NEG_INF, NONE};
    float low = -NEG_INF;
    bool bad = false;
    for (u32 c = threadIdx.x; c < chunks; c += blockDim.x) {
        uint4 part = *(const uint4*)(partials + ((u64)s * chunks + c) * WORDS(SamplePartial));
        best = better(best, {__uint_as_float(part.x), part.y});
        low = fminf(low, __uint_as_float(part.z));
        bad |= part.w != 0;
    }
    best = block_best(best, scratch);
    low = -block_best({-low, 0}, scratch).value;
    bad = __syncthreads_or(bad) || !is_finite(best.value);
    u32 token = bad ? 0 : best.id;
    if (!bad && is_filtered(slot)) {
        u64 at = (u64)s * DIM(vocab_size);
        const float* x = is_changed(slot, FIELD(sample, StepSample, flags)) ? work + at : logits + at;
        Row row{x, DIM(sample_vocab), x[best.id], slot.temperature, 0.0f, 0.0f, 0.0f, NONE};
        token = sample_filtered(row, slot, low, filter, scratch);
    }
    if (threadIdx.x > 0) return;
    out[WORD_AT(SampleOut, (u64)s, token)] = token;
    out[WORD_AT(SampleOut, (u64)s, status)] = bad ? STATUS_NOT_FINITE : STATUS_OK;
    last_token[index] = token;
    if (bad) return;
    slots[index].position = slot.position + 1;
    if (slot.flags & SLOT_HAS_PENALTIES) {
        u16* count = counts + (u64)index * DIM(vocab_size) + token;
        if ((*count & (COUNT_IN_PROMPT - 1)) < COUNT_IN_PROMPT - 1) ++*count;
    }
}
