// Chooses the next token of each sampled row without sorting the vocabulary. The definition is the CPU
// sampler's (rust/cpu/src/sampler): same order, same random bits; sums and logarithms may differ by an ulp.
//
// Shapes: logits [S_pad, vocab_size] f32 (row s belongs to sample s of meta); work the same, written
//   only for rows whose logits a bias, mask, ban or penalty changes; slots [num_slots] of 16 words
//   (struct Slot); counts [num_slots, vocab_size] u16 (bit 15: in the prompt, below: times in the
//   output); mask [num_slots, ceil(vocab_size / 32)] u32; bias [num_slots, 1024] {u32 id, f32}, ids distinct;
//   banned [num_slots, 128] u32; partials [S_pad, chunks, 8] u32; last_token [num_slots] u32;
//   out [S_pad, 48] u32: [0] token, [1] status: 0 ok, 1 not finite, NONE for a padded row.
// A row with a NaN or infinite logit, or with no id left, is not finite. Ids from sample_vocab on are never
//   chosen. Order: bias, allowed ids and bans, penalties, temperature, top-k, top-p, min-p, Gumbel-max.
//   Ties go to the lowest id, everywhere.
// sample_scan: grid (chunks = ceil(vocab_size / 4096), S_pad), block 256. All of the work for greedy
//   rows and rows that filter nothing.
// sample_finish: grid S_pad, block 1024. Joins the chunks; for filtered rows finds the last token that
//   top-k and top-p keep: a histogram of the distance to the best logit finds its bin, the bin alone
//   is sorted. Masses are integers, so that sums do not depend on the order of the atomics.
//   Writes the token, last_token, the output position and the counts.
#include "ptx.cuh"

constexpr u32 CHUNK = 4096, BIAS_CAP = 1024, BANNED_CAP = 128, OUT_WORDS = 48;

struct Slot {
    float temperature;
    u32 top_k;
    float top_p, min_p, repetition, presence, frequency;
    u32 min_tokens, seed_low, seed_high, choice, position, log_probs, flags, bias_len, banned_len;
};
constexpr u32 HAS_MASK = 1, HAS_PENALTIES = 2;  // of Slot::flags
constexpr u32 SAMPLE_MASK = 2;                  // of a sample's flags

struct Bias {
    u32 id;
    float value;
};

struct State {
    const u32* meta;
    Slot* slots;
    u16* counts;
    const u32* mask;
    const Bias* bias;
    const u32* banned;
};

DEV const u32* sample_words(const u32* meta, u32 s) { return meta + meta[7] + 4 * s; }

DEV bool is_filtered(const Slot& slot) {
    return slot.temperature > 0.0f && (slot.top_k > 0 || slot.top_p < 1.0f || slot.min_p > 0.0f);
}

DEV bool is_changed(const Slot& slot, u32 flags) {
    bool banned = slot.banned_len && slot.position < slot.min_tokens;
    return slot.bias_len || banned || (slot.flags & (HAS_MASK | HAS_PENALTIES)) || (flags & SAMPLE_MASK);
}

// Philox4x32-10 (Salmon et al. 2011).
DEV uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
        u32 high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}

// Noise of a token: word id % 4 of the block of four ids, its upper 23 bits as a number in (0, 1).
DEV float gumbel(const Slot& slot, u32 token) {
    uint4 r = philox(make_uint4(token / 4, slot.position, slot.choice, 0),
                     make_uint2(slot.seed_low, slot.seed_high));
    u32 word = token & 2 ? (token & 1 ? r.w : r.z) : (token & 1 ? r.y : r.x);
    float uniform = ((float)(word >> 9) + 0.5f) * 1.1920928955078125e-07f;  // 2^-23
    return -logf(-logf(uniform));
}
constexpr float MOST_GUMBEL = 16.64f;  // -ln(-ln(1 - 2^-24)) is 16.636

struct Best {
    float value;
    u32 id;
};

DEV Best better(Best a, Best b) {
    return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

DEV Best warp_best(Best best) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
        best = better(best, {__shfl_xor_sync(0xffffffffu, best.value, offset),
                             __shfl_xor_sync(0xffffffffu, best.id, offset)});
    return best;
}

// Best over the block; every thread gets it. `scratch` holds 32.
DEV Best block_best(Best best, Best* scratch) {
    best = warp_best(best);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = best;
    __syncthreads();
    u32 lane = threadIdx.x & 31;
    return warp_best(lane < blockDim.x / 32 ? scratch[lane] : Best{NEG_INF, NONE});
}

DEV float penalised(float x, u32 count, const Slot& slot) {
    if (count == 0) return x;
    u32 times = count & 0x7fff;
    x = x > 0.0f ? x / slot.repetition : x * slot.repetition;
    if (times) x = __fsub_rn(__fsub_rn(x, __fmul_rn(slot.frequency, (float)times)), slot.presence);
    return x;
}

// Applies everything that comes before the temperature to `buffer`, this chunk's logits.
DEV void change_logits(const Dims& dims, float* buffer, u32 first, u32 count, u32 index, u32 flags,
                       const Slot& slot, const State& state) {
    for (u32 i = threadIdx.x; i < slot.bias_len; i += blockDim.x) {
        Bias bias = state.bias[(u64)index * BIAS_CAP + i];
        if (bias.id - first < count) buffer[bias.id - first] += bias.value;
    }
    __syncthreads();
    bool masked = (slot.flags & HAS_MASK) || (flags & SAMPLE_MASK);
    const u32* mask = state.mask + (u64)index * ((DIM(vocab_size) + 31) / 32);
    const u16* counts = state.counts + (u64)index * DIM(vocab_size);
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 id = first + i;
        float x = buffer[i];
        if (masked && !(mask[id / 32] >> (id % 32) & 1)) x = NEG_INF;
        else if (slot.flags & HAS_PENALTIES) x = penalised(x, counts[id], slot);
        buffer[i] = x;
    }
    __syncthreads();
    if (slot.position >= slot.min_tokens) return;
    for (u32 i = threadIdx.x; i < slot.banned_len; i += blockDim.x) {
        u32 id = state.banned[(u64)index * BANNED_CAP + i];
        if (id - first < count) buffer[id - first] = NEG_INF;
    }
    __syncthreads();
}

// Best of x + noise over the chunk. Only ids that noise can lift above the leader's score draw any.
DEV Best draw(const float* buffer, u32 first, u32 count, Best leader, const Slot& slot, Best* scratch) {
    __shared__ u16 near[CHUNK];  // offsets in the chunk
    __shared__ u32 size;
    if (threadIdx.x == 0) size = 0;
    __syncthreads();
    float lead = leader.value / slot.temperature;
    float bar = lead + gumbel(slot, leader.id) - MOST_GUMBEL;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x)
        if (buffer[i] > NEG_INF && buffer[i] / slot.temperature >= bar) near[atomicAdd(&size, 1u)] = i;
    __syncthreads();
    Best best{NEG_INF, NONE};
    for (u32 i = threadIdx.x; i < size; i += blockDim.x) {
        u32 id = first + near[i];
        best = better(best, {buffer[near[i]] / slot.temperature + gumbel(slot, id), id});
    }
    return block_best(best, scratch);
}

// Partial words of a chunk: [0] best score, [1] its id, [2] lowest logit left, [3] 1 if not finite.
ENTRY_F32(sample_scan)
(Dims dims, const float* __restrict__ logits, float* __restrict__ work, const u32* meta, Slot* slots,
 u16* counts, const u32* mask, const Bias* bias, const u32* banned, u32* partials) {
    __shared__ float buffer[CHUNK];
    __shared__ Best scratch[32];
    grid_wait();
    u32 s = blockIdx.y, first = blockIdx.x * CHUNK;
    if (s >= meta[2]) return;
    const u32* sample = sample_words(meta, s);
    u32 index = sample[2], flags = sample[3], present = min(CHUNK, DIM(vocab_size) - first);
    u32 count = first < DIM(sample_vocab) ? min(CHUNK, DIM(sample_vocab) - first) : 0;
    Slot slot = slots[index];
    State state{meta, slots, counts, mask, bias, banned};
    u64 row = (u64)s * DIM(vocab_size) + first;
    bool changed = is_changed(slot, flags), bad = false;
    for (u32 i = threadIdx.x; i < present; i += blockDim.x) {
        buffer[i] = logits[row + i];
        bad |= !is_finite(buffer[i]);
    }
    __syncthreads();
    if (changed) change_logits(dims, buffer, first, count, index, flags, slot, state);
    Best best{NEG_INF, NONE};
    float low = -NEG_INF;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        float x = buffer[i];
        if (changed) work[row + i] = x;
        if (x > NEG_INF) low = fminf(low, x);
        best = better(best, {x, first + i});
    }
    best = block_best(best, scratch);
    low = -block_best({-low, 0}, scratch).value;
    bad = __syncthreads_or(bad);
    if (slot.temperature > 0.0f && !is_filtered(slot) && best.value > NEG_INF)
        best = draw(buffer, first, count, best, slot, scratch);
    if (threadIdx.x == 0)
        *(uint4*)(partials + ((u64)s * gridDim.x + blockIdx.x) * 8) =
            make_uint4(__float_as_uint(best.value), best.id, __float_as_uint(low), bad);
}

// ---- filtered rows ------------------------------------------------------------------------------

constexpr u32 BINS = 2048, SORT_CAP = 2048;
constexpr float WIDEST = 32.0f;  // nats below the best: beyond, a token weighs less than 1.3e-14

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

DEV u32 order_key(float x) {
    u32 bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEV float key_value(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

DEV void histogram(const Row& row, Filter& f) {
    for (u32 b = threadIdx.x; b < BINS; b += blockDim.x) f.bin_count[b] = f.bin_loss[b] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < row.count; i += blockDim.x) {
        float d = distance(row, row.x[i]);
        u32 bin = bin_of(row, d);
        if (bin == NONE) continue;
        float edge = row.from + (float)bin / row.per_nat;
        float loss = 1.0f - exp2_approx(fminf(edge - d, 0.0f) * LOG2E);
        atomicAdd(&f.bin_count[bin], 1u);
        atomicAdd(&f.bin_loss[bin], __float2uint_rn(loss * 1048576.0f));
    }
    __syncthreads();
}

DEV double bin_mass(const Row& row, const Filter& f, u32 bin) {
    double edge = row.from + (double)((float)bin / row.per_nat);
    return exp(-edge) * ((double)f.bin_count[bin] - (double)f.bin_loss[bin] / 1048576.0);
}

// Exclusive prefix sum in a fixed order; `total` is the sum.
DEV double block_prefix_f64(double x, double* scratch, double* total) {
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    double inclusive = x;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        double below = __shfl_up_sync(0xffffffffu, inclusive, offset);
        if (lane >= offset) inclusive += below;
    }
    __syncthreads();
    if (lane == 31) scratch[warp] = inclusive;
    __syncthreads();
    double part = scratch[lane], scan = part;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        double below = __shfl_up_sync(0xffffffffu, scan, offset);
        if (lane >= offset) scan += below;
    }
    *total = __shfl_sync(0xffffffffu, scan, 31);
    return __shfl_sync(0xffffffffu, scan - part, warp) + inclusive - x;
}

// Finds the bin in which the running amount (tokens, or mass) reaches `target`; NONE if none does.
// Returns the amount before that bin.
DEV double find_bin(const Row& row, Filter& f, bool by_mass, double target, double before) {
    double amounts[2], total;
    u32 b = threadIdx.x * 2;
#pragma unroll
    for (u32 i = 0; i < 2; i++) amounts[i] = by_mass ? bin_mass(row, f, b + i) : (double)f.bin_count[b + i];
    double at = before + block_prefix_f64(amounts[0] + amounts[1], f.scan, &total);
    if (threadIdx.x == 0) f.cut_bin = NONE;
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        if (at < target && at + amounts[i] >= target) f.cut_bin = b + i, f.mass = at;
        at += amounts[i];
    }
    __syncthreads();
    return f.mass;
}

// Sorts the tokens of a bin, best first. False if there are too many.
DEV bool sort_bin(const Row& row, Filter& f, u32 bin) {
    u32 size = f.bin_count[bin], padded = 32;
    if (size > SORT_CAP) return false;
    while (padded < size) padded *= 2;
    if (threadIdx.x == 0) f.size = 0;
    for (u32 i = threadIdx.x; i < padded; i += blockDim.x) f.sorted[i] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < row.count; i += blockDim.x)
        if (bin_of(row, distance(row, row.x[i])) == bin)
            f.sorted[atomicAdd(&f.size, 1u)] = (u64)order_key(row.x[i]) << 32 | ~i;
    __syncthreads();
    for (u32 span = 2; span <= padded; span *= 2)
        for (u32 step = span / 2; step > 0; step /= 2) {
            for (u32 i = threadIdx.x; i < padded / 2; i += blockDim.x) {
                u32 low = i / step * step * 2 + i % step, high = low + step;
                u64 a = f.sorted[low], b = f.sorted[high];
                bool falling = (low & span) == 0;
                if (falling ? a < b : a > b) f.sorted[low] = b, f.sorted[high] = a;
            }
            __syncthreads();
        }
    return true;
}

// Tokens of a bin are all alike: counts them by rising id until `target` is reached.
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

// Sets (cut_value, cut_id) to the last token in falling order at which the running amount reaches
// `target`, and f.mass to the mass of all tokens up to it if `mass_before` is that before `cut_bin`.
DEV void cut_at(Row row, Filter& f, bool by_mass, double target) {
    double before = find_bin(row, f, by_mass, target, 0.0);
    u32 bin = f.cut_bin;
    if (threadIdx.x == 0) f.cut_id = NONE, f.cut_value = NEG_INF;
    __syncthreads();
    if (bin != NONE && f.bin_count[bin] > SORT_CAP) {
        row.from = (float)bin / row.per_nat;
        row.outer_bin = bin;
        row.outer_per_nat = row.per_nat;
        row.per_nat *= (float)BINS;
        histogram(row, f);
        before = find_bin(row, f, by_mass, target, before);
        bin = f.cut_bin;
    }
    if (bin == NONE) return;
    if (!sort_bin(row, f, bin)) {
        double each = by_mass ? bin_mass(row, f, bin) / f.bin_count[bin] : 1.0;
        cut_alike(row, f, bin, before, each, target);
        return;
    }
    double amounts[2], total;
    u32 i = threadIdx.x * 2, size = f.bin_count[bin];
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        float d = i + j < size ? distance(row, key_value((u32)(f.sorted[i + j] >> 32))) : 0.0f;
        amounts[j] = i + j >= size ? 0.0 : by_mass ? exp(-(double)d) : 1.0;
    }
    double at = before + block_prefix_f64(amounts[0] + amounts[1], f.scan, &total);
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        // Bin masses are rounded: the last token of the bin closes what rounding left open.
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

DEV double kept_mass(const Row& row, Filter& f, float cut_value, u32 cut_id) {
    double sum = 0.0, total;
    for (u32 i = threadIdx.x; i < row.count; i += blockDim.x)
        if (row.x[i] > NEG_INF && is_kept(row.x[i], i, cut_value, cut_id))
            sum += (double)exp2_approx(-distance(row, row.x[i]) * LOG2E);
    block_prefix_f64(sum, f.scan, &total);
    return total;
}

// The token of a filtered row.
DEV u32 sample_filtered(Row row, const Slot& slot, float low, Filter& f, Best* scratch) {
    float range = fminf(distance(row, low), WIDEST);
    row.per_nat = (float)(BINS - 1) / fmaxf(range, 1e-3f);
    float cut_value = NEG_INF;
    u32 cut_id = NONE;
    if (slot.top_k > 0 && slot.top_k < row.count) {
        histogram(row, f);
        cut_at(row, f, false, (double)slot.top_k);
        cut_value = f.cut_value, cut_id = f.cut_id;
    }
    if (slot.top_p < 1.0f) {
        double target = (double)slot.top_p * kept_mass(row, f, cut_value, cut_id);
        histogram(row, f);
        cut_at(row, f, true, target);
        if (is_kept(f.cut_value, f.cut_id, cut_value, cut_id)) cut_value = f.cut_value, cut_id = f.cut_id;
    }
    float floor = slot.min_p > 0.0f ? logf(slot.min_p) : NEG_INF;
    Best best{NEG_INF, NONE};
    for (u32 i = threadIdx.x; i < row.count; i += blockDim.x) {
        float x = row.x[i];
        if (!(x > NEG_INF) || !is_kept(x, i, cut_value, cut_id)) continue;
        float d = distance(row, x);
        if (slot.min_p > 0.0f && -d < floor) continue;
        best = better(best, {gumbel(slot, i) - d, i});
    }
    return block_best(best, scratch).id;
}

extern "C" __global__ void __launch_bounds__(1024)
PASTE(sample_finish, f32, sm80)
(Dims dims, const float* logits, const float* work, const u32* meta, Slot* slots, u16* counts,
 const u32* partials, u32* last_token, u32* out) {
    __shared__ Filter filter;
    __shared__ Best scratch[32];
    grid_wait();
    u32 s = blockIdx.x, chunks = (DIM(vocab_size) + CHUNK - 1) / CHUNK;
    if (s >= meta[2]) {
        if (threadIdx.x == 0) out[(u64)s * OUT_WORDS] = 0, out[(u64)s * OUT_WORDS + 1] = NONE;
        return;
    }
    const u32* sample = sample_words(meta, s);
    u32 index = sample[2];
    Slot slot = slots[index];
    Best best{NEG_INF, NONE};
    float low = -NEG_INF;
    bool bad = false;
    for (u32 c = threadIdx.x; c < chunks; c += blockDim.x) {
        uint4 part = *(const uint4*)(partials + ((u64)s * chunks + c) * 8);
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
        const float* x = is_changed(slot, sample[3]) ? work + at : logits + at;
        Row row{x, DIM(sample_vocab), x[best.id], slot.temperature, 0.0f, 0.0f, 0.0f, NONE};
        token = sample_filtered(row, slot, low, filter, scratch);
    }
    if (threadIdx.x > 0) return;
    out[(u64)s * OUT_WORDS] = token;
    out[(u64)s * OUT_WORDS + 1] = bad;
    last_token[index] = token;
    if (bad) return;
    slots[index].position = slot.position + 1;
    if (slot.flags & HAS_PENALTIES) {
        u16* count = counts + (u64)index * DIM(vocab_size) + token;
        if ((*count & 0x7fff) < 0x7fff) ++*count;
    }
}
