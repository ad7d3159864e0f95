// Unpacks one step's metadata on the device: per-token arrays, sample rows, block tables and the
// work list of attention. Everything a captured graph needs to run with other contents.
//
// meta u32: [0] R rows, [1] T tokens, [2] S samples, [3] U updates, [4..8) word offsets of rows,
//   tokens, updates, samples from meta. rows [R][8] {slot, start, num_tokens, first_token, flags,
//   sample_index, 0, 0}, first_token ascending; tokens [T], NONE = last_token of the row's slot;
//   updates [U][3] {slot, index, block}; samples [S][4] {row, token_row, slot, flags}.
// Block 0 writes block_table [num_slots, max_blocks] (updates), then token_ids, positions,
//   slot_of_token, kv_slot [T_pad] and sample_rows [S_pad]. Padded tokens: id 0, position 0, NONE, NONE.
// Block 1 + w writes plan w, for windows[w] (0: no window):
//   plan: [0] entries, [1] length in all, [2] length a CTA, [3] flags (bit 0: as given, see attention.cu),
//   [4] T, [5] T_pad, [6] G;
//   [16, 16 + G) first entry of each CTA; then entries [8]: {first_token, slot, start, packed_begin,
//   packed_end, tile_begin, tile_end, length before}. A row of queries is packed as token * group +
//   head in its group; an entry holds up to q_rows packed rows of all kv heads. The triples
//   (entry, kv head, tile) lie on a line in this order, with the lengths below; CTA c has the tiles that
//   begin in [c * length_a_cta, (c + 1) * length_a_cta).
//   Under flag bit 2 every token sees all of its row, which is a whole sequence: entries reach to its end,
//   and their start is its last position.
// With `split`, rows whose flags have PROMPT_ROW are left out of these plans, whose flag bit 3 is set, and
//   block 1 + num_plans + w writes prompt plan w for attention_prefill.cu: [0] entries, from word 16 on
//   entries [8]: {first_token, slot, start, packed_begin, packed_end, tile_begin, tile_end, kv_end} of up to
//   prompt_rows packed rows, tiles of prompt_tile tokens, the longest of a row first; block 0 clears
//   prompt_counters [num_layers].
// Launch: grid 1 + number of plans (1 + 2 * plans with `split`), block 1024. R <= 1024.
#include "ptx.cuh"

constexpr u32 MAX_ROWS = 1024;
constexpr u32 PLAN_HEADER = 16;
// Lengths on the line, as in attention.cu: of a tile, and what a pair adds for its start and end. Times of
// one H200: a decode tile 2.0 us, a prefill tile 2 to 4.
constexpr u32 DECODE_TILE = 2, DECODE_PAIR = 0, PREFILL_TILE = 4, PREFILL_PAIR = 4;
constexpr u32 MIN_LENGTH = 4;  // a CTA; less costs more in joining pieces than it saves
constexpr u32 FEW = 8;         // a CTA; below, short pairs are not cut (flag bit 1, see attention.cu)
constexpr u32 PROMPT_ROW = 8;  // a row's flag, as metadata.rs sets it
constexpr u32 PROMPT_FOLLOWS = 8;  // a plan's flag, see attention.cu

// Largest i with first[i] <= value; first[0] is 0.
DEV u32 find_row(const u32* first, u32 count, u32 value) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (first[middle] <= value) low = middle;
        else high = middle;
    }
    return low;
}

struct TokenArrays {
    u32 *token_ids, *positions, *slot_of_token, *kv_slot;
};

DEV void write_tokens(const Dims& dims, const u32* meta, const u32* last_token,
                      const u32* block_table, TokenArrays out, u32 T_pad, u32* first) {
    u32 R = meta[0], T = meta[1], block_size = DIM(block_size);
    const u32 *rows = meta + meta[4], *tokens = meta + meta[5];
    for (u32 r = threadIdx.x; r < R; r += blockDim.x) first[r] = rows[8 * r + 3];
    __syncthreads();
    for (u32 t = threadIdx.x; t < T_pad; t += blockDim.x) {
        u32 id = 0, position = 0, slot = NONE, kv = NONE;
        if (t < T) {
            const u32* row = rows + 8 * find_row(first, R, t);
            slot = row[0];
            position = row[1] + (t - row[3]);
            id = tokens[t] == NONE ? last_token[slot] : tokens[t];
            id = id < DIM(vocab_size) ? id : 0;
            u32 index = min(position / block_size, DIM(max_blocks) - 1);
            kv = block_table[(u64)slot * DIM(max_blocks) + index] * block_size + position % block_size;
        }
        out.token_ids[t] = id;
        out.positions[t] = position;
        out.slot_of_token[t] = slot;
        out.kv_slot[t] = kv;
    }
}

struct PlanShape {
    u32 window, entry_capacity, grid, q_rows, kv_tile, flags;
};

// Entries of one row: one if all its packed rows fit one decode tile, else one per q_rows.
DEV u32 entries_of(u32 packed, u32 q_rows) { return packed <= 16 ? 1 : (packed + q_rows - 1) / q_rows; }

// Fills words [0, 7) of an entry and returns the length of one kv head of it.
DEV u32 fill_entry(u32* entry, const u32* row, u32 part, u32 group, const PlanShape& shape) {
    u32 start = row[1], packed = row[2] * group;
    u32 begin = part * shape.q_rows, end = min(begin + shape.q_rows, packed);
    u32 first_position = start + begin / group, last_position = start + (end - 1) / group;
    if (shape.flags & 4) start = first_position = last_position = start + row[2] - 1;
    u32 kv_begin = shape.window && first_position + 1 > shape.window ? first_position + 1 - shape.window : 0;
    u32 tile_begin = kv_begin / shape.kv_tile, tile_end = last_position / shape.kv_tile + 1;
    *(uint4*)entry = make_uint4(row[3], row[0], start, begin);
    entry[4] = end;
    entry[5] = tile_begin;
    entry[6] = tile_end;
    bool decode = end - begin <= 16 && !(shape.flags & 1);
    return (tile_end - tile_begin) * (decode ? DECODE_TILE : PREFILL_TILE) + (decode ? DECODE_PAIR : PREFILL_PAIR);
}

DEV void write_plan(const Dims& dims, const u32* meta, u32* plan, const PlanShape& shape, u32 T_pad,
                    u32* before_row, u32* scratch) {
    u32 R = meta[0], heads = DIM(num_kv_heads), group = DIM(num_heads) / heads, tid = threadIdx.x;
    const u32* rows = meta + meta[4];
    u32 *entries = plan + PLAN_HEADER + (shape.grid + 7) / 8 * 8, num_entries, total = 0;
    bool left_out = (shape.flags & PROMPT_FOLLOWS) && tid < R && (rows[8 * tid + 4] & PROMPT_ROW);
    u32 parts = tid < R && !left_out ? entries_of(rows[8 * tid + 2] * group, shape.q_rows) : 0;
    u32 before = block_prefix_u32(parts, scratch, &num_entries);
    if (tid < MAX_ROWS) before_row[tid] = before;
    __syncthreads();
    num_entries = min(num_entries, shape.entry_capacity);
    for (u32 base = 0; base < num_entries; base += blockDim.x) {
        u32 e = base + tid, length = 0, sum;
        if (e < num_entries) {
            u32 r = find_row(before_row, R, e);
            const u32* row = rows + 8 * r;
            length = heads * fill_entry(entries + 8 * e, row, e - before_row[r], group, shape);
        }
        u32 prefix = block_prefix_u32(length, scratch, &sum);
        if (e < num_entries) entries[8 * e + 7] = total + prefix;
        total += sum;
    }
    __syncthreads();
    u32 per_cta = max((total + shape.grid - 1) / shape.grid, MIN_LENGTH);
    for (u32 c = tid; c < shape.grid; c += blockDim.x) {
        u32 low = 0, high = max(num_entries, 1u);
        while (high - low > 1) {
            u32 middle = (low + high) / 2;
            if (entries[8 * middle + 7] <= c * per_cta) low = middle;
            else high = middle;
        }
        plan[PLAN_HEADER + c] = low;
    }
    if (tid == 0) {
        plan[0] = num_entries, plan[1] = total, plan[2] = per_cta;
        plan[3] = shape.flags | (per_cta < FEW ? 2u : 0u);
        plan[4] = meta[1], plan[5] = T_pad, plan[6] = shape.grid;
    }
}

struct PromptShape {
    u32 window, entry_capacity, q_rows, kv_tile;
};

DEV void write_prompt_plan(const Dims& dims, const u32* meta, u32* plan, const PromptShape& shape,
                           u32* before_row, u32* scratch) {
    u32 R = meta[0], group = DIM(num_heads) / DIM(num_kv_heads), tid = threadIdx.x, num_entries;
    const u32* rows = meta + meta[4];
    bool prompt = tid < R && (rows[8 * tid + 4] & PROMPT_ROW);
    u32 parts = prompt ? (rows[8 * tid + 2] * group + shape.q_rows - 1) / shape.q_rows : 0;
    u32 before = block_prefix_u32(parts, scratch, &num_entries);
    before_row[tid] = before;
    __syncthreads();
    num_entries = min(num_entries, shape.entry_capacity);
    for (u32 e = tid; e < num_entries; e += blockDim.x) {
        u32 r = find_row(before_row, R, e), end_of_row = r + 1 < R ? before_row[r + 1] : num_entries;
        const u32* row = rows + 8 * r;
        u32 part = end_of_row - 1 - e, start = row[1], packed = row[2] * group;
        u32 begin = part * shape.q_rows, end = min(begin + shape.q_rows, packed);
        u32 first = start + begin / group, last = start + (end - 1) / group;
        u32 kv_begin = shape.window && first + 1 > shape.window ? first + 1 - shape.window : 0;
        uint4* entry = (uint4*)(plan + PLAN_HEADER + 8 * e);
        entry[0] = make_uint4(row[3], row[0], start, begin);
        entry[1] = make_uint4(end, kv_begin / shape.kv_tile, last / shape.kv_tile + 1, start + row[2]);
    }
    if (tid == 0) plan[0] = num_entries;
}

ENTRY_U32(step_prepare_tokens)
(Dims dims, const u32* meta, const u32* last_token, u32* block_table, u32* token_ids,
 u32* positions, u32* slot_of_token, u32* kv_slot, u32* sample_rows, const u32* windows, u32* plans,
 u32 plan_words, u32 entry_capacity, u32 T_pad, u32 S_pad, u32 attention_grid, u32 q_rows,
 u32 kv_tile, u32 flags, u32 num_plans, u32* prompt_plans, u32 prompt_words, u32* prompt_counters,
 u32 num_layers, u32 prompt_rows, u32 prompt_tile, u32 split) {
    __shared__ u32 by_row[MAX_ROWS], scratch[33];
    grid_trigger();
    grid_wait();
    if (blockIdx.x > num_plans) {
        u32 w = blockIdx.x - 1 - num_plans;
        PromptShape shape{windows[w], (prompt_words - PLAN_HEADER) / 8, prompt_rows, prompt_tile};
        write_prompt_plan(dims, meta, prompt_plans + (u64)w * prompt_words, shape, by_row, scratch);
        return;
    }
    if (blockIdx.x > 0) {
        u32 w = blockIdx.x - 1;
        u32 all_flags = flags | (split ? PROMPT_FOLLOWS : 0u);
        PlanShape shape{windows[w], entry_capacity, attention_grid, q_rows, kv_tile, all_flags};
        write_plan(dims, meta, plans + (u64)w * plan_words, shape, T_pad, by_row, scratch);
        return;
    }
    if (split)
        for (u32 i = threadIdx.x; i < num_layers; i += blockDim.x) prompt_counters[i] = 0;
    const u32 *updates = meta + meta[6], *samples = meta + meta[7];
    for (u32 i = threadIdx.x; i < meta[3]; i += blockDim.x) {
        const u32* update = updates + 3 * i;
        if (update[0] < DIM(num_slots) && update[1] < DIM(max_blocks))
            block_table[(u64)update[0] * DIM(max_blocks) + update[1]] = update[2];
    }
    __threadfence_block();
    __syncthreads();
    write_tokens(dims, meta, last_token, block_table, {token_ids, positions, slot_of_token, kv_slot},
                 T_pad, by_row);
    for (u32 s = threadIdx.x; s < S_pad; s += blockDim.x)
        sample_rows[s] = s < meta[2] ? samples[4 * s + 1] : 0;
}
