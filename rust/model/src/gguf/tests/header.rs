//! Headers that lie: refused by name before anything large is allocated, and never a panic.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::builder::{Gguf, Kv, Tensor, read};
use crate::TensorView;

fn raw_array(kind: u32, count: u64) -> Kv {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    Kv::Raw(9, bytes)
}

#[test]
fn test_versions_2_and_3_little_endian() {
    for version in [2, 3] {
        let described = Gguf { version, ..Gguf::llama() }.read();
        assert_eq!(described.plan.tensors.len(), 11);
    }
    for (version, reason) in [
        (1, "GGUF version: 1 is not supported (supported: 2 and 3)"),
        (4, "GGUF version: 4 is not supported"),
        (3_u32.swap_bytes(), "byte order: big-endian is not supported"),
        (2_u32.swap_bytes(), "byte order: big-endian is not supported"),
    ] {
        let error = Gguf { version, ..Gguf::llama() }.refused();
        assert!(error.contains(reason), "{error}");
    }
    assert!(Gguf { magic: *b"GGML", ..Gguf::llama() }.refused().contains("not a GGUF file"));
    assert!(Gguf { magic: *b"vers", ..Gguf::llama() }.refused().contains("Git LFS pointer"));
}

#[test]
fn test_every_cut_is_an_error() {
    let bytes = Gguf::llama().bytes();
    let step = |cut: usize| if cut < 2048 { 1 } else { 997 };
    let mut cut = 0;
    while cut < bytes.len() {
        let error = read(&bytes[..cut]).expect_err("must be refused");
        assert!(error.contains("truncated"), "{cut}: {error}");
        cut += step(cut);
    }
    let error = Gguf { cut: 32, ..Gguf::llama() }.refused();
    assert!(error.contains("tensor blk.0.ffn_down.weight: truncated file"), "{error}");
}

#[test]
fn test_gguf_counts_and_lengths_are_limited_before_they_are_used() {
    let with = |key: &str, value: Kv| Gguf::llama().with(key, value);
    let mut long_key = Gguf::llama();
    long_key.keys.push(("k".repeat(1025), Kv::U32(1)));
    let mut long_name = Gguf::llama();
    long_name.tensor(&"t".repeat(257), &[32], 0);
    let huge = (1_u64 << 40).to_le_bytes().to_vec();
    for (file, reason) in [
        (
            Gguf { key_count: Some(1 << 61), ..Gguf::llama() },
            "number of metadata keys is 2305843009213693952, the limit is 65536",
        ),
        (
            Gguf { tensor_count: Some(1 << 61), ..Gguf::llama() },
            "number of tensors is 2305843009213693952, the limit is 65536",
        ),
        (with("a", Kv::Raw(8, huge)), "length of a is 1099511627776, the limit is 1048576"),
        (with("a", raw_array(8, 1 << 61)), "number of elements of a is 2305843009213693952"),
        (with("a", raw_array(0, 2_097_153)), "number of elements of a is 2097153"),
        (with("a", raw_array(0, 2_097_152)), "truncated: a needs bytes"),
        (with("a", raw_array(9, 1)), "a: arrays of arrays are refused"),
        (with("a", raw_array(99, 1)), "a: unknown value type 99"),
        (with("a", Kv::Raw(99, vec![])), "a: unknown value type 99"),
        (with("a", Kv::Bool(2)), "a: 2 is neither 0 nor 1"),
        (long_key, "length of a metadata key is 1025, the limit is 1024"),
        (long_name, "length of a tensor name is 257, the limit is 256"),
        (Gguf { key_count: Some(60_000), ..Gguf::llama() }, "x.gguf: "),
        (Gguf { tensor_count: Some(60_000), ..Gguf::llama() }, "x.gguf: "),
    ] {
        let error = file.refused();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn test_the_elements_of_all_arrays_together_are_limited() {
    let mut file = Gguf::llama();
    for number in 0..2 {
        let mut bytes = 0_u32.to_le_bytes().to_vec();
        bytes.extend((2_u64 << 20).to_le_bytes());
        bytes.resize(bytes.len() + (2 << 20), 0);
        file.set(&format!("a{number}"), Kv::Raw(9, bytes));
    }
    assert_eq!(file.read().plan.tensors.len(), 11);
    file.set("b", Kv::I32s(vec![1]));
    assert!(file.refused().contains("number of elements of b is 1, the limit is 0"));
}

#[test]
fn test_strings_must_be_utf8() {
    let mut bytes = 2_u64.to_le_bytes().to_vec();
    bytes.extend([0xff, 0xfe]);
    assert!(Gguf::llama().with("a", Kv::Raw(8, bytes)).refused().contains("a is not UTF-8"));
}

#[test]
fn test_duplicate_gguf_keys_and_tensors_are_refused() {
    let mut file = Gguf::llama();
    file.keys.push(("llama.block_count".to_owned(), Kv::U32(2)));
    assert!(file.refused().contains("llama.block_count: duplicate key"));
    let mut file = Gguf::llama();
    let twin = file.tensors[3].clone();
    file.tensors.push(twin);
    assert!(file.refused().contains("tensor blk.0.ffn_norm.weight: duplicate name"));
}

#[test]
fn test_gguf_alignment_is_a_power_of_two() {
    for alignment in [0, 1, 4, 24, 33, 131_072, u32::MAX] {
        let error = Gguf::llama().with("general.alignment", Kv::U32(alignment)).refused();
        let reason = format!("general.alignment: {alignment} is not a power of two");
        assert!(error.contains(&reason), "{error}");
    }
    let text = Gguf::llama().with("general.alignment", Kv::Text("32".to_owned())).refused();
    assert!(text.contains("general.alignment: is a string, not an integer"), "{text}");
    let wide = Gguf { alignment: 256, ..Gguf::llama() };
    let described = wide.with("general.alignment", Kv::U32(256)).read();
    assert!(described.plan.tensors.values().all(|view| view.offset % 256 == 0));
}

#[test]
fn test_gguf_tensors_out_of_bounds_are_refused() {
    let file = |change: &dyn Fn(&mut super::builder::Tensor)| {
        let mut file = Gguf::llama();
        change(&mut file.tensors[4]);
        file
    };
    let name = "tensor blk.0.attn_q.weight: ";
    for (file, reason) in [
        (file(&|t| t.offset = Some(1 << 40)), "truncated file: ends at byte"),
        (file(&|t| t.offset = Some(u64::MAX - 31)), "offsets overflow"),
        (file(&|t| t.offset = Some(33)), "offset 33 is not a multiple of 32"),
        (file(&|t| t.offset = Some(0)), "overlap: begins at byte"),
        (file(&|t| t.dims = vec![1 << 33, 1 << 33]), "does not make whole Q4_0 blocks"),
        (file(&|t| t.dims = vec![1 << 32, 1 << 31, 4]), "does not make whole Q4_0 blocks"),
        (file(&|t| t.dims = vec![1 << 30, 1 << 30]), "truncated file: ends at byte"),
        (file(&|t| t.dims = vec![64, 0]), "does not make whole Q4_0 blocks"),
        (file(&|t| t.dims = vec![65, 64]), "does not make whole Q4_0 blocks"),
        (file(&|t| t.dims = vec![]), "0 dimensions, the limit is 4"),
        (file(&|t| t.dims = vec![64, 1, 1, 1, 1]), "5 dimensions, the limit is 4"),
        (file(&|t| t.kind = u32::MAX), "unknown type number 4294967295"),
        (file(&|t| t.kind = 4), "unknown type number 4"),
    ] {
        let error = file.refused();
        assert!(error.contains(reason), "{error}");
        assert!(error.contains(name) || error.contains("overlap") || reason.contains("overflow"));
    }
}

#[test]
fn test_tensors_may_be_listed_and_may_lie_in_any_order() {
    let plain = Gguf::llama();
    let views = |file: &Gguf| file.read().plan.tensors;
    let expected = views(&plain);
    let start = expected.values().map(|view| view.offset).min().unwrap();
    for step in [2, 3, 7, 10] {
        let shuffled = |tensors: &[Tensor]| -> Vec<Tensor> {
            (0..tensors.len()).map(|i| tensors[(i + 1) * step % 11].clone()).collect()
        };
        // The list in another order than the data.
        let mut listed = plain.clone();
        for tensor in &mut listed.tensors {
            let view = expected.values().find(|view| view.name == tensor.name).unwrap();
            tensor.offset = Some(view.offset - start);
        }
        listed.tensors = shuffled(&listed.tensors);
        assert_eq!(views(&listed), expected);
        // The data in another order: each tensor has its own size and type, the file is as full.
        let mut lying = plain.clone();
        lying.tensors = shuffled(&lying.tensors);
        let found = views(&lying);
        assert_ne!(found, expected);
        for (role, view) in &found {
            let same = &expected[role];
            assert_eq!((&view.name, view.byte_len), (&same.name, same.byte_len));
        }
        let end = |views: &BTreeMap<_, TensorView>| {
            views.values().map(|view| (view.offset + view.byte_len).next_multiple_of(32)).max()
        };
        assert_eq!(end(&found), end(&expected));
    }
}

/// Each of these was read as other weights than those written, without a word.
#[test]
fn test_tensors_tile_the_file() {
    let whole = Gguf::llama().bytes();
    let end = whole.len();
    let mut trailing = whole.clone();
    trailing.extend([0; 32]);
    let error = read(&trailing).unwrap_err();
    let after = end + 32;
    let reason =
        format!("the tensors end at byte {end}, padded to 32 bytes, and the file at {after}");
    assert!(error.contains(&reason), "{error}");

    // Q8_0 read as Q4_0, in the middle; BF16 read as Q4_0, at the end.
    let middle = with_other_type(Gguf::llama().bytes(), "token_embd.weight", 2, 2);
    let error = read(&middle).unwrap_err();
    assert!(error.contains("tensor output_norm.weight: gap: begins at byte "), "{error}");
    let name = "blk.0.ffn_down.weight";
    let last = Gguf::llama().with_tensor(name, &[96, 64], 30);
    last.read();
    let error = read(&with_other_type(last.bytes(), name, 2, 2)).unwrap_err();
    assert!(error.contains("the tensors end at byte "), "{error}");

    // Data at multiples of 32 under an alignment of 8 begins up to 24 bytes too early.
    let mut num_refused = 0;
    for length in 1..=32 {
        let file = Gguf::llama().with("general.alignment", Kv::U32(8));
        match read(&file.with(&"x".repeat(length), Kv::U32(0)).bytes()) {
            // Both alignments mean the same place here.
            Ok(described) => {
                assert!(described.plan.tensors.values().all(|view| view.offset % 32 == 0));
            }
            Err(error) => {
                assert!(error.contains("padded to 8 bytes"), "{error}");
                num_refused += 1;
            }
        }
    }
    assert_eq!(num_refused, 24);
}

/// The file with another type number of a tensor of so many dimensions, the data left as they are.
fn with_other_type(mut bytes: Vec<u8>, tensor: &str, dimensions: usize, kind: u32) -> Vec<u8> {
    let place = bytes.windows(tensor.len()).position(|part| part == tensor.as_bytes()).unwrap();
    let at = place + tensor.len() + 4 + 8 * dimensions;
    bytes[at..at + 4].copy_from_slice(&kind.to_le_bytes());
    bytes
}

#[test]
fn test_types_that_we_lack_are_named() {
    for (number, name) in [(23, "IQ4_XS"), (10, "Q2_K"), (26, "I32"), (39, "MXFP4")] {
        let error = Gguf::llama().with_tensor("blk.0.attn_q.weight", &[64, 64], number).refused();
        let reason =
            format!("type of tensor blk.0.attn_q.weight: {name} is not supported (supported: F32");
        assert!(error.contains(&reason), "{error}");
    }
}

#[test]
fn test_split_files_are_refused() {
    let split = Gguf::llama().with("split.count", Kv::U32(2));
    assert!(split.refused().contains("split.count: a split file is not supported"));
    Gguf::llama().with("split.count", Kv::U32(1)).read();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(2026),
        ..Default::default()
    })]

    /// Bytes of a good header changed at random, tending to the values that overflow: a result or an
    /// error, never a panic; whatever is accepted lies within the file.
    #[test]
    fn test_changed_bytes_never_panic(
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(0xff), Just(0), Just(0x80)]),
            1..8,
        ),
        cut in any::<prop::sample::Index>(),
        shorten in any::<bool>(),
    ) {
        let mut bytes = small();
        let header = 1400.min(bytes.len());
        for (place, byte) in changes {
            let place = place.index(header);
            bytes[place] = byte;
        }
        if shorten {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(described) = read(&bytes) {
            for view in described.plan.tensors.values() {
                prop_assert!(view.offset + view.byte_len <= bytes.len() as u64, "{view:?}");
            }
        }
    }
}

fn small() -> Vec<u8> {
    let tokens = vec!["a".to_owned(), "b".to_owned()];
    Gguf::llama()
        .with("tokenizer.ggml.tokens", Kv::Texts(tokens))
        .with("tokenizer.ggml.token_type", Kv::I32s(vec![1, 1]))
        .with("tokenizer.ggml.scores", Kv::F32s(vec![0.5, 0.5]))
        .bytes()
}
