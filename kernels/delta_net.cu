// A gated delta net between its projections: convolution, delta rule, gated norm.
//
// G key heads of KEY_DIM, H value heads of VALUE_DIM, H % G == 0: value head h goes with key head h / (H / G).
//   C = 2 * G * KEY_DIM + H * VALUE_DIM channels: q, k, v. All contiguous, 16-byte aligned.
//   projected [T_pad, stride] act: q, k, v, the gate z, then 2 * H scores (of what a token writes, of what the state
//   loses) unless they are apart: scores [T_pad, 2 * H] f32, else null. stride % 8 == 0.
// What a layer keeps of a sequence lies at state_base + place * place_stride + layer_offset (bytes), the place of a
//   running sequence being its slot's number: state [H, VALUE_DIM, KEY_DIM] f32, then the last inputs of the
//   convolution [CONV_KERNEL - 1, C] act, oldest first. A row that starts at position 0 begins with zeros.
// delta_conv: mixed [T_pad, C] act = silu(sum over taps of conv [C, CONV_KERNEL] f32, oldest first, * inputs); of q and
//   k scaled to length 1, q times KEY_DIM^-0.5. dots [T_pad, G] f32 = q * k. factors [T_pad, H] float2 =
//   (exp(-exp(log_rate [H]) * softplus(scores + decay_bias [H])), sigmoid(scores)). Padded tokens write nothing.
//   Launch: grid (T_pad, ceil((G + H) / 8)), block 256; one warp for a key head's q and k, or for a value head.
// delta_rule: of each row, token by token: state *= decay; state += k (beta * (v - k state)); out [T_pad, H * VALUE_DIM]
//   f32 = q state. The inputs and the state behind the row replace those of its slot; those behind the tokens
//   that the row's StateSaves name (step: StepHeader and its lists) also go to their places.
//   Rows of chunk_from tokens or more are left to delta_chunks.cu. Launch: grid (H * VALUE_DIM / DELTA_COLUMNS, most
//   rows), block 256.
// delta_norm: gated [T_pad, H * VALUE_DIM] act = out * rsqrt(mean(out^2) + eps) * norm [VALUE_DIM] f32 * silu(z), the
//   mean over a head; 0 for padded tokens. Launch: grid (T_pad, ceil(H / 8)), block 256; one warp a head.
// Numerics: f32, one rounding to act of mixed and of gated. What a token computes depends on its own row alone, and the
//   order of sums not on how the row was cut.
// KEY_DIM is 32, 64, 128 or 256, VALUE_DIM 32, 64, 128 or 256, CONV_KERNEL 2 to 16.
#include "delta_net.cuh"

constexpr int KEYS = KEY_DIM / 32, VALUES = VALUE_DIM / 32;  // elements of a head that a lane holds
constexpr int COLUMNS = DELTA_COLUMNS / WARPS;
constexpr u32 AHEAD = 4;  // tokens that are loaded before they are needed
static_assert(COLUMNS == 4, "delta_rule folds four columns into a lane");

DEV void load_acts(float (&v)[1], const act* from) { v[0] = act_to_f32(*from); }
DEV void load_acts(float (&v)[2], const act* from) {
    float2 pair = unpack2(*(const u32*)from);
    v[0] = pair.x, v[1] = pair.y;
}
DEV void load_acts(float (&v)[4], const act* from) {
    uint2 words = *(const uint2*)from;
    float2 a = unpack2(words.x), b = unpack2(words.y);
    v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
}
DEV void load_acts(float (&v)[8], const act* from) {
    float low[4], high[4];
    load_acts(low, from), load_acts(high, from + 4);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = low[i], v[4 + i] = high[i];
}
// N numbers that lie side by side, at a multiple of their size.
DEV void load_floats(float (&v)[1], const float* from) { v[0] = *from; }
DEV void load_floats(float (&v)[2], const float* from) {
    float2 x = *(const float2*)from;
    v[0] = x.x, v[1] = x.y;
}
template <int N>
DEV void load_floats(float (&v)[N], const float* from) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        float4 x = *(const float4*)(from + i);
        v[i] = x.x, v[i + 1] = x.y, v[i + 2] = x.z, v[i + 3] = x.w;
    }
}
DEV void store_floats(float* to, const float (&v)[1]) { *to = v[0]; }
DEV void store_floats(float* to, const float (&v)[2]) { *(float2*)to = make_float2(v[0], v[1]); }
template <int N>
DEV void store_floats(float* to, const float (&v)[N]) {
#pragma unroll
    for (int i = 0; i < N; i += 4) *(float4*)(to + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
}

// Rounds in place, so that what is computed further is what was stored.
DEV void store_acts(act* to, float (&v)[1]) { *to = f32_to_act(v[0]), v[0] = act_to_f32(*to); }
template <int N>
DEV void store_acts(act* to, float (&v)[N]) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        u32 pair = pack2(v[i], v[i + 1]);
        *(u32*)(to + i) = pair;
        float2 rounded = unpack2(pair);
        v[i] = rounded.x, v[i + 1] = rounded.y;
    }
}
template <int N>
DEV float dot(const float (&a)[N], const float (&b)[N]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) sum += a[i] * b[i];
    return warp_sum(sum);
}
DEV float silu(float x) { return gate_f32(x, GATE_SILU); }

// Where the inputs before a token are: `here` of them in rows before its own, the others in `kept`, if it is not null.
struct Before {
    const act *row, *kept;
    u32 stride, channels, here;
};

// The weights of a channel, in one load if there are four.
DEV void load_taps(float (&taps)[CONV_KERNEL], const float* conv, u32 channel) {
    if (CONV_KERNEL == 4) return load_floats(taps, conv + channel * CONV_KERNEL);
#pragma unroll
    for (int tap = 0; tap < CONV_KERNEL; tap++) taps[tap] = conv[channel * CONV_KERNEL + tap];
}

template <int N>
DEV void convolve(float (&v)[N], const Before& before, const float* conv, u32 channel) {
    float sum[N], taps[N][CONV_KERNEL];
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = 0.0f, load_taps(taps[i], conv, channel + i);
#pragma unroll
    for (int tap = 0; tap < CONV_KERNEL; tap++) {
        u32 back = BEFORE - tap;
        const act* from = before.row - (u64)back * before.stride;
        if (back > before.here) from = before.kept ? before.kept + (u64)(tap + before.here) * before.channels : nullptr;
        if (!from) continue;
        load_acts(v, from + channel);
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += v[i] * taps[i][tap];
    }
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = silu(sum[i]);
}

ENTRY(delta_conv)
(Dims dims, const act* __restrict__ projected, const float* __restrict__ scores, const float* __restrict__ conv,
 const float* __restrict__ log_rate, const float* __restrict__ decay_bias, const u32* __restrict__ positions,
 const u32* __restrict__ slot_of_token, u64 state_base, u64 place_stride, u64 layer_offset, u32 key_heads,
 u32 value_heads, u32 stride, act* __restrict__ mixed, float2* __restrict__ factors, float* __restrict__ dots) {
    grid_trigger();
    grid_wait();
    u32 lane = threadIdx.x & 31, item = blockIdx.y * WARPS + (threadIdx.x >> 5), token = blockIdx.x;
    u32 slot = slot_of_token[token];
    if (item >= key_heads + value_heads || slot == NONE) return;
    Layer layer{key_heads, value_heads, stride, state_base, place_stride, layer_offset};
    u32 C = channels(layer), here = 0;
    // A slot has one row, so its tokens stand side by side.
    while (here < BEFORE && here < token && slot_of_token[token - here - 1] == slot) here++;
    bool is_new = positions[token] == here;
    Before before{projected + (u64)token * layer.stride, is_new ? nullptr : inputs_of(layer, slot), layer.stride, C, here};
    act* out = mixed + (u64)token * C;
    if (item < key_heads) {
        float q[KEYS], k[KEYS];
        u32 at = item * KEY_DIM + lane * KEYS, key_at = key_heads * KEY_DIM + at;
        convolve(q, before, conv, at);
        convolve(k, before, conv, key_at);
        float q_scale = rsqrtf((dot(q, q) + 1e-6f) * (float)KEY_DIM), k_scale = rsqrtf(dot(k, k) + 1e-6f);
#pragma unroll
        for (int i = 0; i < KEYS; i++) q[i] *= q_scale, k[i] *= k_scale;
        store_acts(out + at, q);
        store_acts(out + key_at, k);
        float both = dot(q, k);
        if (lane == 0) dots[(u64)token * key_heads + item] = both;
        return;
    }
    u32 head = item - key_heads, at = 2 * key_heads * KEY_DIM + head * VALUE_DIM + lane * VALUES;
    float v[VALUES];
    convolve(v, before, conv, at);
    store_acts(out + at, v);
    if (lane == 0) {
        const act* behind = projected + (u64)token * stride + C + value_heads * VALUE_DIM;
        auto score = [&](u32 i) {
            return scores ? scores[(u64)token * 2 * value_heads + i] : act_to_f32(behind[i]);
        };
        float x = score(value_heads + head) + decay_bias[head];
        float softplus = x > 20.0f ? x : log1pf(expf(x));
        factors[(u64)token * value_heads + head] =
            make_float2(expf(-expf(log_rate[head]) * softplus), 1.0f / (1.0f + expf(-score(head))));
    }
}

// What a warp needs of one token.
struct Token {
    float q[KEYS], k[KEYS], v, decay, beta, both;
};

DEV Token load_token(const Layer& layer, const Columns& mine, const act* mixed, const float2* factors,
                     const float* dots, u64 token, u32 lane) {
    Token t;
    const act* row = mixed + token * channels(layer);
    u32 at = mine.key_head * KEY_DIM + lane * KEYS;
    load_acts(t.q, row + at);
    load_acts(t.k, row + layer.key_heads * KEY_DIM + at);
    // The column that the sums below leave in this lane.
    t.v = act_to_f32(row[2 * layer.key_heads * KEY_DIM + mine.head * VALUE_DIM + mine.column + (lane >> 3)]);
    float2 factor = factors[token * layer.value_heads + mine.head];
    t.decay = factor.x, t.beta = factor.y;
    t.both = dots[token * layer.key_heads + mine.key_head];
    return t;
}

// Sums of four columns over the lanes: lane i gets that of column i / 8.
DEV float fold(const float (&x)[COLUMNS], u32 lane) {
    bool upper = lane & 16, odd = lane & 8;
    float a = upper ? x[2] : x[0], b = upper ? x[3] : x[1];
    a += __shfl_xor_sync(0xffffffffu, upper ? x[0] : x[2], 16);
    b += __shfl_xor_sync(0xffffffffu, upper ? x[1] : x[3], 16);
    float sum = odd ? b : a;
    sum += __shfl_xor_sync(0xffffffffu, odd ? a : b, 8);
#pragma unroll
    for (int offset = 4; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    return sum;
}

// One token; returns q * state of the lane's column.
DEV float advance(float (&state)[COLUMNS][KEYS], const Token& t, u32 lane) {
    float known[COLUMNS], read[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        known[c] = read[c] = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; i++) known[c] += state[c][i] * t.k[i], read[c] += state[c][i] * t.q[i];
    }
    float change = t.beta * (t.v - t.decay * fold(known, lane));
    // What the new state gives: the old one's part and what the token adds to it.
    float out = t.decay * fold(read, lane) + t.both * change;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        float added = __shfl_sync(0xffffffffu, change, 8 * c);
#pragma unroll
        for (int i = 0; i < KEYS; i++) state[c][i] = t.decay * state[c][i] + t.k[i] * added;
    }
    return out;
}

DEV void write_state(const Layer& layer, u32 place, u64 at, const float (&state)[COLUMNS][KEYS]) {
    float* to = state_of(layer, place) + at;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) store_floats(to + c * KEY_DIM, state[c]);
}

ENTRY(delta_rule)
(Dims dims, const u32* __restrict__ step, const act* __restrict__ projected, const act* __restrict__ mixed,
 const float2* __restrict__ factors, const float* __restrict__ dots, u64 state_base, u64 place_stride,
 u64 layer_offset, u32 key_heads, u32 value_heads, u32 stride, u32 chunk_from, float* __restrict__ out) {
    grid_trigger();
    grid_wait();
    if (blockIdx.y >= FIELD(step, StepHeader, num_rows)) return;
    Row row = row_of(step, blockIdx.y);
    if (row.num_tokens >= chunk_from) return;
    Layer layer{key_heads, value_heads, stride, state_base, place_stride, layer_offset};
    u32 lane = threadIdx.x & 31, first = blockIdx.x * DELTA_COLUMNS + (threadIdx.x >> 5) * COLUMNS;
    u32 head = first / VALUE_DIM;
    Columns mine{head, head / (value_heads / key_heads), first % VALUE_DIM};
    u64 at = (u64)first * KEY_DIM + lane * KEYS;
    float state[COLUMNS][KEYS];
    const float* kept = state_of(layer, row.slot) + at;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
        for (int i = 0; i < KEYS; i++) state[c][i] = 0.0f;
        if (row.start > 0) load_floats(state[c], kept + c * KEY_DIM);
    }

    u32 next_save = 0;
    auto load = [&](u32 i) { return load_token(layer, mine, mixed, factors, dots, row.first_token + i, lane); };
    Token ahead[AHEAD];
#pragma unroll
    for (u32 j = 0; j < AHEAD; j++)
        if (j < row.num_tokens) ahead[j] = load(j);
    for (u32 i = 0; i < row.num_tokens; i += AHEAD) {
        Token group[AHEAD];
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) group[j] = ahead[j];
        // These arrive while those before them are computed.
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++)
            if (i + AHEAD + j < row.num_tokens) ahead[j] = load(i + AHEAD + j);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            if (i + j >= row.num_tokens) break;
            float read = advance(state, group[j], lane);
            u64 place = row.first_token + i + j;
            if ((lane & 7) == 0) out[place * value_heads * VALUE_DIM + first + (lane >> 3)] = read;
            if (next_save < row.num_saves && row.saves[WORD_AT(StateSave, next_save, end)] == row.start + i + j + 1)
                write_state(layer, row.saves[WORD_AT(StateSave, next_save++, place)], at, state);
        }
    }
    write_state(layer, row.slot, at, state);
    keep_inputs(layer, row, projected);
}

ENTRY(delta_norm)
(Dims dims, const act* __restrict__ projected, const float* __restrict__ out, const float* __restrict__ norm,
 const u32* __restrict__ slot_of_token, u32 key_heads, u32 value_heads, u32 stride, act* __restrict__ gated,
 float eps) {
    grid_trigger();
    grid_wait();
    u32 lane = threadIdx.x & 31, head = blockIdx.y * WARPS + (threadIdx.x >> 5), token = blockIdx.x;
    if (head >= value_heads) return;
    Layer layer{key_heads, value_heads, stride, 0, 0, 0};
    u32 at = head * VALUE_DIM + lane * VALUES;
    u64 place = (u64)token * value_heads * VALUE_DIM + at;
    float x[VALUES], z[VALUES];
    bool is_padding = slot_of_token[token] == NONE;
#pragma unroll
    for (int i = 0; i < VALUES; i++) x[i] = is_padding ? 0.0f : out[place + i];
    float scale = rsqrtf(dot(x, x) / (float)VALUE_DIM + eps);
    load_acts(z, projected + (u64)token * layer.stride + channels(layer) + at);
#pragma unroll
    for (int i = 0; i < VALUES; i++) x[i] = is_padding ? 0.0f : x[i] * scale * norm[lane * VALUES + i] * silu(z[i]);
    store_acts(gated + place, x);
}
