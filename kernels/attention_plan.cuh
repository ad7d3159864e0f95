// How a block of attention.cu goes through its share of a plan; step_prepare.cu writes plans. Registers only.
#pragma once
#include "ptx.cuh"

#ifndef CAUSAL
#define CAUSAL 1
#endif
#ifndef SINKS
#define SINKS 0
#endif
#ifndef CHUNKS
#define CHUNKS 0
#endif

constexpr u32 SHORT = 4;  // tiles; see may_cut

struct Problem {
    const act* q;
    act* out;
    const u32 *entries, *block_table;
    u64 kv_base, block_stride;
    float *partials;
    u32* counters;
    float scale, softcap;
    u32 window, per_cta, num_heads, num_kv_heads, group, block_size, max_blocks, flags, num_entries, total;
#if SINKS
    const float* sinks;
#endif
};

// A tile and its place on the line.
struct Cursor {
    u32 entry, head, tile, pair;  // pair counts (entry, head) pairs of this CTA
    u32 first_token, slot, start, packed_begin, packed_end, tile_begin, tile_end, before;
    bool decode;
};

// Loads the cursor's entry and goes to its first tile; after the last entry comes the end of the line.
DEV void enter(Cursor& c, const Problem& p) {
    c.head = 0;
    c.before = p.total;
    c.tile_begin = 0, c.tile_end = 1, c.packed_begin = 0, c.packed_end = 1;
    if (c.entry < p.num_entries) {
        // A PlanEntry in two loads.
        const uint4* words = (const uint4*)(p.entries + WORDS(PlanEntry) * c.entry);
        uint4 a = words[0], b = words[1];
        c.first_token = a.x, c.slot = a.y, c.start = a.z, c.packed_begin = a.w;
        c.packed_end = b.x, c.tile_begin = b.y, c.tile_end = b.z, c.before = b.w;
    }
    c.decode = c.packed_end - c.packed_begin <= DECODE_ROWS && !(p.flags & PLAN_WHOLE);
    c.tile = c.tile_begin;
}

DEV void advance(Cursor& c, const Problem& p) {
    if (++c.tile < c.tile_end) return;
    c.pair++;
    c.tile = c.tile_begin;
    if (++c.head < p.num_kv_heads) return;
    c.entry++;
    enter(c, p);
}

// The last position that a packed row of the entry sees. Without causality it is the same for all rows, and
// step_prepare writes it as the entry's start.
DEV u32 last_seen(const Cursor& c, const Problem& p, u32 packed) {
    return CAUSAL ? c.start + packed / p.group : c.start;
}

// The first position that a token at `position` sees where sequences are cut into chunks.
DEV u32 chunk_start(const Problem& p, u32 position) { return p.window ? position - position % p.window : 0; }

DEV u32 tiles_of(const Cursor& c) { return c.tile_end - c.tile_begin; }
DEV u32 tile_length(const Cursor& c) { return c.decode ? DECODE_TILE_LENGTH : PREFILL_TILE_LENGTH; }
DEV u32 pair_length(const Cursor& c) {
    return tiles_of(c) * tile_length(c) + (c.decode ? DECODE_PAIR_LENGTH : PREFILL_PAIR_LENGTH);
}

// Whether the pair (entry, head) may be cut; if not, the CTA in whose share it begins takes all of it.
// PLAN_WHOLE: nothing is cut. PLAN_FEW: there is so little work that merging the pieces of a short pair costs
// more than cutting saves.
DEV bool may_cut(const Cursor& c, const Problem& p) {
    return !(p.flags & PLAN_WHOLE) && !((p.flags & PLAN_FEW) && tiles_of(c) <= SHORT);
}

DEV u32 pair_place(const Cursor& c) { return c.before + c.head * pair_length(c); }

// The place that decides which CTA takes the tile, or the tile `ahead` in the same pair.
DEV u32 place_of(const Cursor& c, const Problem& p, u32 ahead = 0) {
    return pair_place(c) + (may_cut(c, p) ? (c.tile + ahead - c.tile_begin) * tile_length(c) : 0);
}

// Goes to the first tile whose place is `begin` or later; the cursor's entry is the one that holds `begin`.
DEV void seek(Cursor& c, const Problem& p, u32 begin) {
    enter(c, p);
    c.pair = 0;
    u32 within = (begin - c.before) % pair_length(c);
    u32 tile = (within + tile_length(c) - 1) / tile_length(c);
    c.head = (begin - c.before) / pair_length(c);
    if (within > 0 && (tile >= tiles_of(c) || !may_cut(c, p))) tile = 0, c.head++;
    c.tile = c.tile_begin + tile;
    if (c.head < p.num_kv_heads) return;
    c.entry++;
    enter(c, p);
}
