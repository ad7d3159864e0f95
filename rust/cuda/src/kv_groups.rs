//! The description of a model's KV groups that the core works with. At load only.

use ingle_core::KvGroups;
use ingle_model::KvLayout;

/// Kernels read whole tiles, from the one that holds the window's first token: what lies before that token
/// has weight zero, but a block that another request writes to by now may hold NaN, which zero does not
/// take away. So a window reaches back by a tile more, less one token. Chunks of whole tiles begin with a tile;
/// others are kept like windows, which hold all that their rows read.
pub(crate) fn kv_groups(layout: &KvLayout, kv_tile: u32, chunks: bool) -> KvGroups {
    let lengths = || layout.windows.iter().flatten();
    if chunks && lengths().all(|length| length.is_multiple_of(kv_tile)) {
        return KvGroups::new(&layout.windows).in_chunks();
    }
    let windows = layout.windows.iter();
    let windows: Vec<Option<u32>> = windows
        .map(|window| window.map(|window| window.saturating_add(kv_tile.max(2) - 1)))
        .collect();
    KvGroups::new(&windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers, all of them and those that see everything; window; sequences of 8,192 tokens that fit where one
    /// table for all layers holds 100. The table of decision 0110.
    #[test]
    fn sequences_that_fit_where_windows_pass() {
        let pattern = |layers: usize, every: usize, window: u32| -> Vec<Option<u32>> {
            (1..=layers).map(|number| (!number.is_multiple_of(every)).then_some(window)).collect()
        };
        let all = |layers: usize, window: u32| vec![Some(window); layers];
        for (name, windows, longest, fit) in [
            ("gpt-oss-20b", pattern(24, 2, 128), 131_072, 192),
            ("gpt-oss-120b", pattern(36, 2, 128), 131_072, 192),
            ("Gemma 3 1B", pattern(26, 6, 512), 32_768, 428),
            ("Gemma 3 4B", pattern(34, 6, 1024), 131_072, 359),
            ("Gemma 3 12B", pattern(48, 6, 1024), 131_072, 344),
            ("Gemma 3 27B", pattern(62, 6, 1024), 131_072, 327),
            ("OLMo 3 7B", pattern(32, 4, 4096), 65_536, 155),
            ("Mistral 7B v0.1", all(32, 4096), 32_768, 191),
            ("Llama", vec![None; 32], 131_072, 100),
        ] {
            let layout = KvLayout::new(&windows, longest);
            let (block_size, places) = (64, 8192 / 64);
            let blocks = kv_groups(&layout, 128, false).num_blocks(places, block_size, 2);
            let pool_layers = 100 * places as usize * windows.len();
            let sequence_layers = blocks as usize * layout.layers_per_group;
            assert_eq!(pool_layers / sequence_layers, fit, "{name}");
        }
    }

    /// A block is not given back while a row of its chunk, or the tile that holds the chunk's first token, is read.
    #[test]
    fn chunks_keep_what_tiles_read() {
        let (block_size, tile) = (16, 64);
        for chunk in [64, 128, 100, 16] {
            let layout = KvLayout::new(&[None, Some(chunk)], 4096);
            let groups = kv_groups(&layout, tile, true);
            for position in 0..1000 {
                let read = position / chunk * chunk / tile * tile;
                assert!(groups.first_read(1, position, block_size) <= read / block_size, "{chunk}");
            }
            // Chunks of whole tiles are given back when they end.
            let kept = groups.first_read(1, 128 + 5, block_size);
            assert_eq!(kept == 128 / block_size, chunk % tile == 0, "{chunk}");
        }
    }
}
