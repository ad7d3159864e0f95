// What the kernels of a gated delta net share: sizes of a layer, where it keeps what it keeps, rows of a step.
#pragma once
#include "ptx.cuh"

#ifndef KEY_DIM
#define KEY_DIM 128
#endif
#ifndef VALUE_DIM
#define VALUE_DIM 128
#endif
#ifndef CONV_KERNEL
#define CONV_KERNEL 4
#endif

constexpr int BEFORE = CONV_KERNEL - 1, WARPS = 8;

// The sizes of a layer, and where it keeps its states.
struct Layer {
    u32 key_heads, value_heads, stride;
    u64 base, place_stride, offset;
};

DEV u32 channels(const Layer& layer) { return 2 * layer.key_heads * KEY_DIM + layer.value_heads * VALUE_DIM; }
DEV float* state_of(const Layer& layer, u32 place) {
    return (float*)(layer.base + place * layer.place_stride + layer.offset);
}
DEV act* inputs_of(const Layer& layer, u32 place) {
    return (act*)(state_of(layer, place) + (u64)layer.value_heads * VALUE_DIM * KEY_DIM);
}

// Columns of a value head from `column` on.
struct Columns {
    u32 head, key_head, column;
};

// A row of the step, and the list of its saves.
struct Row {
    u32 slot, start, num_tokens, first_token, num_saves;
    const u32* saves;
};

DEV Row row_of(const u32* step, u32 number) {
    const u32* words = rows_of(step) + WORDS(StepRow) * number;
    return {FIELD(words, StepRow, slot),        FIELD(words, StepRow, start),
            FIELD(words, StepRow, num_tokens),  FIELD(words, StepRow, first_token),
            FIELD(words, StepRow, num_saves),   saves_of(step) + WORDS(StateSave) * FIELD(words, StepRow, first_save)};
}

// Writes one channel's inputs behind `seen` tokens of the row to a place, those of the slot before it. `is_last`: to
// the slot itself, which is then not read any more.
DEV void write_inputs(const Layer& layer, const Row& row, const act* projected, u32 channel, u32 seen, u32 place) {
    const act* kept = inputs_of(layer, row.slot) + channel;
    u32 C = channels(layer);
    act fresh[BEFORE];
#pragma unroll
    for (u32 j = 0; j < BEFORE; j++) {
        fresh[j] = act{0};
        if (seen + j >= BEFORE) fresh[j] = projected[(u64)(row.first_token + seen + j - BEFORE) * layer.stride + channel];
        else if (row.start > 0) fresh[j] = kept[(u64)(seen + j) * C];
    }
    act* to = inputs_of(layer, place) + channel;
#pragma unroll
    for (u32 j = 0; j < BEFORE; j++) to[(u64)j * C] = fresh[j];
}

// Writes the inputs that are kept of a row. Its blocks share the channels.
DEV void keep_inputs(const Layer& layer, const Row& row, const act* projected) {
    u32 C = channels(layer), share = (C + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * share;
    for (u32 channel = begin + threadIdx.x; channel < min(begin + share, C); channel += blockDim.x) {
        for (u32 s = 0; s < row.num_saves; s++)
            write_inputs(layer, row, projected, channel, row.saves[WORD_AT(StateSave, s, end)] - row.start,
                         row.saves[WORD_AT(StateSave, s, place)]);
        write_inputs(layer, row, projected, channel, row.num_tokens, row.slot);
    }
}
