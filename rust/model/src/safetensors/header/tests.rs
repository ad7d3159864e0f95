//! Broken headers are refused by name, valid ones are read as the reference implementation reads
//! them, and no bytes make the reader panic.
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "tests may panic")]

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use super::{Entry, read_header};
use crate::error::ModelError;

fn file_of(header: &str, data_len: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data_len, 0);
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<(String, Entry)>, ModelError> {
    read_header(&SliceFile(bytes), "x.safetensors", bytes.len() as u64, 0)
}

struct SliceFile<'a>(&'a [u8]);

impl crate::source::ReadAt for SliceFile<'_> {
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        self.0.read_exact_at(offset, buffer)
    }
}

fn refused(bytes: &[u8]) -> String {
    let error = read(bytes).expect_err("must be refused").to_string();
    assert!(error.starts_with("x.safetensors: ") && !error.contains('\n'), "{error}");
    error
}

fn refused_header(header: &Value, data_len: usize) -> String {
    refused(&file_of(&header.to_string(), data_len))
}

fn good() -> Value {
    json!({
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}
    })
}

#[test]
fn test_a_good_header_gives_places_in_the_file() {
    let header = good().to_string() + "   ";
    let entries = read(&file_of(&header, 16)).unwrap();
    let start = 8 + header.len() as u64;
    let places: Vec<_> =
        entries.iter().map(|(name, entry)| (name.as_str(), entry.offset, entry.byte_len)).collect();
    assert_eq!(places, [("a", start, 12), ("b", start + 12, 4)]);
    assert_eq!(entries[0].1.shape, [2, 3]);
}

#[test]
fn test_truncated_safetensors_files_are_named() {
    let bytes = file_of(&good().to_string(), 16);
    for cut in 0..bytes.len() {
        let error = refused(&bytes[..cut]);
        assert!(error.contains("truncated"), "{cut}: {error}");
    }
    assert!(refused(&bytes[..bytes.len() - 1]).contains("tensor b: truncated file: ends at byte"));
    let longer = [bytes.as_slice(), &[0]].concat();
    assert!(refused(&longer).contains("tensors end at byte"));
}

#[test]
fn test_huge_header_lengths_allocate_nothing() {
    for len in [1_u64 << 63, u64::MAX, 100_000_001, 1 << 40] {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.resize(64, b' ');
        let error = refused(&bytes);
        let wanted = format!("safetensors header length is {len}, the limit is 100000000");
        assert!(error.contains(&wanted), "{error}");
    }
}

#[test]
fn test_wrong_byte_ranges_are_named() {
    let tensor = |dtype: &str, shape: Value, begin: u64, end: u64| json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]});
    let overlap =
        json!({"a": tensor("BF16", json!([6]), 0, 12), "b": tensor("F32", json!([1]), 8, 12)});
    assert!(refused_header(&overlap, 12).contains("tensor b: overlap: begins at byte"));
    let twice = json!({"a": tensor("U8", json!([4]), 0, 4), "b": tensor("U8", json!([4]), 0, 4)});
    assert!(refused_header(&twice, 4).contains("tensor b: overlap"));
    let gap =
        json!({"a": tensor("BF16", json!([6]), 0, 12), "b": tensor("F32", json!([1]), 16, 20)});
    assert!(refused_header(&gap, 20).contains("tensor b: gap: begins at byte"));
    let late = json!({"a": tensor("U8", json!([4]), 4, 8)});
    assert!(refused_header(&late, 8).contains("tensor a: gap"));
    let back = json!({"a": tensor("U8", json!([4]), 8, 4)});
    assert!(refused_header(&back, 8).contains("tensor a: data_offsets 8..4 run back"));
    let size = json!({"a": tensor("BF16", json!([6]), 0, 13)});
    assert!(refused_header(&size, 13).contains("BF16 [6] needs 12 bytes, data_offsets hold 13"));
    let far = json!({"a": tensor("BF16", json!([6]), u64::MAX - 12, u64::MAX)});
    assert!(refused_header(&far, 13).contains("overflows"));
    let huge = json!({"a": tensor("BF16", json!([u64::MAX, u64::MAX]), 0, 4)});
    assert!(refused_header(&huge, 4).contains("overflows"));
    let deep = json!({"a": tensor("U8", json!([1, 1, 1, 1, 1, 1, 1, 1, 1]), 0, 1)});
    assert!(refused_header(&deep, 1).contains("9 dimensions, the limit is 8"));
}

#[test]
fn test_headers_that_are_not_the_format_are_refused() {
    for (header, reason) in [
        ("[]", "an object of tensors"),
        ("{\"a\": 1}", "header: "),
        ("{", "header: "),
        ("\u{0}\u{0}", "header: "),
        (r#"{"a": {"dtype": "U8", "shape": [1]}}"#, "missing field `data_offsets`"),
        (r#"{"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}}"#, "-1"),
        (r#"{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0]}}"#, "length"),
        (r#"{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1], "x": 1}}"#, "x"),
    ] {
        let error = refused(&file_of(header, 1));
        assert!(error.contains(reason), "{error}");
    }
    let a = r#""a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}"#;
    assert!(refused(&file_of(&format!("{{{a},{a}}}"), 0)).contains("duplicate name a"));
    let nested = format!("{{\"__metadata__\": {}", "[".repeat(100_000));
    assert!(refused(&file_of(&nested, 0)).contains("invalid type: sequence"));
    let long = json!({"n".repeat(2000): 1});
    assert!(refused_header(&long, 0).contains("name has 2000 bytes, the limit is 1024"));
}

#[test]
fn test_the_number_of_tensors_is_limited() {
    let one = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let list: Vec<String> = (0..=65_536).map(|i| format!("\"{i}\":{one}")).collect();
    let header = format!("{{{}}}", list.join(","));
    assert!(refused(&file_of(&header, 0)).contains("more than 65536 tensors"));
}

#[test]
fn test_lfs_pointers_are_named() {
    let error = refused(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n");
    assert!(error.contains("Git LFS pointer"), "{error}");
}

/// Whether the reference reader knows the type; ours passes unknown ones on by name, to be refused
/// if the tensor is needed.
fn is_known(entry: &Entry) -> bool {
    !matches!(entry.stored, crate::catalogue::Stored::Other(_))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(2026),
        ..Default::default()
    })]

    /// Bytes of a good file changed at random: a result or an error, never a panic; and whatever is
    /// accepted lies within the file, and the reference reader accepts it too.
    #[test]
    fn test_changed_bytes_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        shorten in any::<bool>(),
    ) {
        let mut bytes = file_of(&good().to_string(), 16);
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if shorten {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(entries) = read(&bytes) {
            for (_, entry) in &entries {
                prop_assert!(entry.offset + entry.byte_len <= bytes.len() as u64);
            }
            if entries.iter().all(|(_, entry)| is_known(entry)) {
                let theirs = ::safetensors::SafeTensors::deserialize(&bytes);
                prop_assert!(theirs.is_ok(), "{:?}", theirs.err());
            }
        }
    }

    /// Digits of the header changed into other digits, which keeps it JSON far more often.
    #[test]
    fn test_changed_numbers_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), b'0'..=b'9'), 1..4),
    ) {
        let mut header = good().to_string().into_bytes();
        let digits: Vec<usize> =
            (0..header.len()).filter(|place| header[*place].is_ascii_digit()).collect();
        for (place, digit) in changes {
            header[digits[place.index(digits.len())]] = digit;
        }
        let bytes = file_of(&String::from_utf8(header).unwrap(), 16);
        if let Ok(entries) = read(&bytes)
            && entries.iter().all(|(_, entry)| is_known(entry))
        {
            let theirs = ::safetensors::SafeTensors::deserialize(&bytes);
            prop_assert!(theirs.is_ok(), "{:?}", theirs.err());
        }
    }
}
