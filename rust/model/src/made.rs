//! Weights that no file holds (`--load-format dummy`): tensors are made up as a model asks for them, and
//! their bytes are pseudo-random functions of name and offset. Any thread may read them.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::fmt::Write as _;
use std::io;

use crate::entry::{Entry, Stored};
use crate::quantisation::{FourBit, Layout, Quantisation};
use crate::{Packing, WeightSource, WeightType};

/// The tensors made so far. Each begins on a multiple of `ALIGNMENT` bytes of one file without end.
#[derive(Clone, Debug)]
pub(crate) struct MadeTensors {
    /// The type of what is not quantised.
    plain: WeightType,
    /// Whether norms store `weight - 1`.
    norms_start_at_zero: bool,
    tensors: Vec<Made>,
    end: u64,
    /// Of the tensor made last; a matrix comes before its scale.
    columns: u64,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Made {
    start: u64,
    seed: u64,
    pattern: Pattern,
}

/// Which bits of eight bytes are random, and which are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pattern {
    random: u64,
    set: u64,
}

impl Default for MadeTensors {
    fn default() -> Self {
        Self::new(WeightType::Bf16, false)
    }
}

impl MadeTensors {
    pub(crate) fn new(plain: WeightType, norms_start_at_zero: bool) -> Self {
        Self { plain, norms_start_at_zero, tensors: Vec::new(), end: 0, columns: 0 }
    }

    /// Whether a checkpoint of this kind would hold a tensor of this name, among the names by which a
    /// reader tells layouts apart: packed matrices of layers, and stacked experts only in MXFP4.
    pub(crate) fn would_hold(name: &str, quantisation: Option<&Quantisation>) -> bool {
        match quantisation {
            Some(Quantisation::FourBit(FourBit::Linear(form))) => {
                let codes =
                    if form.packing == Packing::Rows { ".weight_packed" } else { ".qweight" };
                is_of_layer(name) && name.ends_with(codes)
            }
            Some(Quantisation::FourBit(FourBit::Mxfp4)) => name.ends_with("_blocks"),
            Some(Quantisation::Fp8(_)) | None => false,
        }
    }

    /// The shape of an fp8 matrix's scale.
    pub(crate) fn scale_shape(layout: Layout, shape: &[u64]) -> Vec<u64> {
        layout.shapes(shape).into_iter().next().unwrap_or_default()
    }

    /// Makes a tensor.
    pub(crate) fn make(
        &mut self,
        name: &str,
        shape: &[u64],
        quantisation: Option<&Quantisation>,
    ) -> Entry {
        let (stored, bytes, pattern) = self.form(name, shape, quantisation);
        let elements = shape.iter().fold(1, |product: u64, size| product.saturating_mul(*size));
        let byte_len = elements.saturating_mul(bytes);
        let start = self.end;
        self.end =
            start.saturating_add(byte_len).checked_next_multiple_of(ALIGNMENT).unwrap_or(start);
        self.columns = shape.last().copied().unwrap_or(0);
        self.tensors.push(Made { start, seed: seed(name), pattern });
        Entry { file: 0, offset: start, byte_len, stored, shape: shape.to_vec() }
    }

    /// Type, bytes an element, and bits of a tensor, by its name.
    fn form(
        &self,
        name: &str,
        shape: &[u64],
        quantisation: Option<&Quantisation>,
    ) -> (Stored, u64, Pattern) {
        let of_integers =
            |kind: &str, bytes, pattern| (Stored::Other(kind.to_owned()), bytes, pattern);
        let of_numbers = |kind: WeightType, pattern| {
            (Stored::Known(kind), u64::try_from(kind.block_bytes()).unwrap_or(1), pattern)
        };
        let last = |suffix: &str| name.ends_with(suffix);
        if last(".weight_packed") || last(".qweight") {
            return of_integers("I32", 4, Pattern { random: u64::MAX, set: 0 });
        }
        if last(".qzeros") || last(".weight_zero_point") {
            return of_integers("I32", 4, Pattern::of(ZEROS.0, ZEROS.1, 4));
        }
        if last("_blocks") {
            return of_integers("U8", 1, Pattern { random: u64::MAX, set: 0 });
        }
        // What numbers of a matrix with so many columns are like.
        let width = |columns: u64| exponent_of_root(columns).saturating_neg();
        if last("_scales") && matches!(quantisation, Some(Quantisation::FourBit(FourBit::Mxfp4))) {
            let blocks = shape.last().copied().unwrap_or(1);
            let exponent = width(blocks.saturating_mul(32)).saturating_sub(RMS_OF_E2M1);
            let byte = u64::try_from(exponent.saturating_add(127)).unwrap_or(127);
            return of_integers("U8", 1, Pattern::of(0, byte, 1));
        }
        match quantisation {
            Some(Quantisation::FourBit(FourBit::Linear(form)))
                if last(".weight_scale") || last(".scales") =>
            {
                let groups = match form.packing {
                    Packing::Rows => shape.last(),
                    Packing::Awq | Packing::Gptq => shape.first(),
                };
                let group = u64::from(form.group.unwrap_or(4096));
                let columns = groups.copied().unwrap_or(1).saturating_mul(group);
                let exponent = width(columns).saturating_sub(RMS_OF_CODES);
                of_numbers(self.plain, Pattern::positive(self.plain, exponent))
            }
            Some(Quantisation::Fp8(_)) if last(SCALE) => {
                let exponent = width(self.columns);
                of_numbers(WeightType::F32, Pattern::positive(WeightType::F32, exponent))
            }
            Some(Quantisation::Fp8(_)) if is_fp8(name, shape) => {
                of_numbers(WeightType::F8E4M3, Pattern::signed(WeightType::F8E4M3, 0))
            }
            _ if [
                "layer_scalar",
                "_scale",
                "router.scale",
                "_layernorm_1.weight",
                "_layernorm_2.weight",
            ]
            .iter()
            .any(|end| last(end)) =>
            {
                of_numbers(self.plain, Pattern::positive(self.plain, -1))
            }
            _ if last("norm.weight") && !self.norms_start_at_zero => {
                of_numbers(self.plain, Pattern::positive(self.plain, -1))
            }
            _ => {
                let exponent = match shape {
                    // Less than what the layers add, lest a tied head repeat the last token.
                    [_, columns] if last("embed_tokens.weight") => {
                        width(*columns).saturating_sub(2)
                    }
                    [_, .., columns] if !last("bias") => width(*columns),
                    _ => OF_VECTORS,
                };
                of_numbers(self.plain, Pattern::signed(self.plain, exponent))
            }
        }
    }
}

impl Pattern {
    /// The same for each element of `bytes` bytes.
    fn of(random: u64, set: u64, bytes: u32) -> Self {
        let repeat = |bits: u64| {
            (0..8_u32.checked_div(bytes).unwrap_or(1)).fold(0, |all, place| {
                all | bits.checked_shl(place.saturating_mul(bytes).saturating_mul(8)).unwrap_or(0)
            })
        };
        Self { random: repeat(random), set: repeat(set) }
    }

    /// Numbers of both signs from `2^e` to `2^(e + 2)`, `e` being `exponent` or one less.
    fn signed(kind: WeightType, exponent: i64) -> Self {
        Self::numbers(kind, exponent, true)
    }

    /// The same without signs.
    fn positive(kind: WeightType, exponent: i64) -> Self {
        Self::numbers(kind, exponent, false)
    }

    fn numbers(kind: WeightType, exponent: i64, signed: bool) -> Self {
        let (mantissa, bias, bytes): (u32, i64, u32) = match kind {
            WeightType::F32 => (23, 127, 4),
            WeightType::F16 => (10, 15, 2),
            WeightType::F8E4M3 => (3, 7, 1),
            _ => (7, 127, 2),
        };
        // Of the exponent's field the lowest bit is random, the others say `exponent`.
        let field = u64::try_from(exponent.saturating_add(bias).max(1)).unwrap_or(1) & !1;
        let bit = |place: u32| 1_u64.checked_shl(place).unwrap_or(0);
        let sign = if signed { bit(bytes.saturating_mul(8).saturating_sub(1)) } else { 0 };
        let low = bit(mantissa.saturating_add(1)).saturating_sub(1);
        Self::of(low | sign, field.checked_shl(mantissa).unwrap_or(0), bytes)
    }

    /// Eight bytes.
    fn bytes(self, seed: u64, word: u64) -> [u8; 8] {
        (mixed(seed.wrapping_add(word.wrapping_mul(STEP))) & self.random | self.set).to_le_bytes()
    }
}

impl WeightSource for MadeTensors {
    fn read_at(&self, _: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let len = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        let after = self.tensors.partition_point(|made| made.start <= offset);
        let made = after.checked_sub(1).and_then(|index| self.tensors.get(index));
        let (Some(made), true) = (made, offset.saturating_add(len) <= self.end) else {
            let text = format!("no {len} bytes at offset {offset}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        };
        let inner = offset.saturating_sub(made.start);
        let (mut word, skip) = (inner / 8, usize::try_from(inner % 8).unwrap_or(0));
        let mut rest = buffer;
        if skip > 0 {
            let bytes = made.pattern.bytes(made.seed, word);
            let head = bytes.get(skip..).unwrap_or_default();
            let (first, others) = rest.split_at_mut(head.len().min(rest.len()));
            first.copy_from_slice(head.get(..first.len()).unwrap_or_default());
            (rest, word) = (others, word.saturating_add(1));
        }
        let (words, tail) = rest.as_chunks_mut::<8>();
        for to in words {
            *to = made.pattern.bytes(made.seed, word);
            word = word.wrapping_add(1);
        }
        let bytes = made.pattern.bytes(made.seed, word);
        tail.copy_from_slice(bytes.get(..tail.len()).unwrap_or_default());
        Ok(())
    }
}

/// A tokenizer.json of `vocab_size` entries: the 256 bytes, by which every text is encoded, then words of four
/// letters, which answers consist of.
pub(crate) fn tokenizer_json(vocab_size: u32) -> Vec<u8> {
    let mut vocab = String::new();
    for (id, name) in (0..vocab_size).zip(byte_names()) {
        let name = serde_json::Value::from(name.to_string());
        let _ = write!(vocab, "{name}:{id},");
    }
    for id in 256..vocab_size {
        // The first letter stands for a space.
        vocab.push_str("\"\u{120}");
        let mut rest = id;
        for _ in 0..4 {
            let letter = u32::from(b'a').saturating_add(rest % 26);
            vocab.push(char::from_u32(letter).unwrap_or('a'));
            rest /= 26;
        }
        let _ = write!(vocab, "\":{id},");
    }
    let vocab = vocab.trim_end_matches(',');
    let byte_level = r#"{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}"#;
    format!(
        r#"{{"version":"1.0","added_tokens":[],"pre_tokenizer":{byte_level},"decoder":{byte_level},"model":{{"type":"BPE","vocab":{{{vocab}}},"merges":[]}}}}"#
    )
    .into_bytes()
}

/// The letters that stand for bytes 0 to 255 in byte-level vocabularies: printable ones for themselves, the others
/// in order from U+0100 on.
fn byte_names() -> impl Iterator<Item = char> {
    let is_shown = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut hidden = 0x100_u32;
    (0..256_u32).filter_map(move |byte| {
        if is_shown(&byte) {
            return char::from_u32(byte);
        }
        let name = char::from_u32(hidden);
        hidden = hidden.saturating_add(1);
        name
    })
}

fn is_of_layer(name: &str) -> bool {
    name.contains("layers.")
}

/// Whether fp8 checkpoints hold this tensor in fp8: matrices of layers, but no router.
fn is_fp8(name: &str, shape: &[u64]) -> bool {
    let is_router = [".gate.weight", ".router.weight"].iter().any(|end| name.ends_with(end));
    is_of_layer(name) && name.ends_with(".weight") && shape.len() >= 2 && !is_router
}

/// Half of the base-2 logarithm, rounded down: products of so many terms then stay near 1.
fn exponent_of_root(number: u64) -> i64 {
    i64::from(number.max(1).ilog2() / 2)
}

/// FNV-1a.
fn seed(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// SplitMix64's mixer (Steele, Lea and Flood 2014).
fn mixed(state: u64) -> u64 {
    let state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

/// Its step.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Suffix of the names of scales of fp8 matrices.
const SCALE: &str = "_scale";
/// Base-2 logarithms of how far codes are from zero.
const RMS_OF_CODES: i64 = 2;
const RMS_OF_E2M1: i64 = 1;
/// Exponent of biases and the like.
const OF_VECTORS: i64 = -4;
/// Stored zeros of eight codes are 6 or 7: random bits, set bits.
const ZEROS: (u64, u64) = (0x1111_1111, 0x6666_6666);
/// Of a tensor's start: a page.
const ALIGNMENT: u64 = 4096;
