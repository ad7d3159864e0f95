//! Writes GGUF files.

use super::super::{Described, describe};
use crate::source::ReadAt;

/// A metadata value with its type number.
#[derive(Clone, Debug)]
pub(super) enum Kv {
    U32(u32),
    U64(u64),
    F32(f32),
    Bool(u8),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    /// Type number and the bytes after it.
    Raw(u32, Vec<u8>),
}

#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    /// Innermost first, as the file has it.
    pub(super) dims: Vec<u64>,
    pub(super) kind: u32,
    /// Relative to the data; `None` puts it after the one before.
    pub(super) offset: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Gguf {
    pub(super) magic: [u8; 4],
    pub(super) version: u32,
    pub(super) keys: Vec<(String, Kv)>,
    pub(super) tensors: Vec<Tensor>,
    pub(super) key_count: Option<u64>,
    pub(super) tensor_count: Option<u64>,
    pub(super) alignment: u64,
    /// Put at the start of tensor `.0`.
    pub(super) data: Option<(String, Vec<u8>)>,
    /// Bytes cut off the end.
    pub(super) cut: usize,
}

impl Gguf {
    /// A one-layer llama that is whole: F32 norms, Q8_0 embedding, Q4_0 matrices, no head.
    pub(super) fn llama() -> Self {
        Self::model("llama")
    }

    /// The same with another architecture's prefix.
    pub(super) fn model(architecture: &str) -> Self {
        let mut file = Self {
            magic: *b"GGUF",
            version: 3,
            keys: vec![("general.architecture".to_owned(), Kv::Text(architecture.to_owned()))],
            tensors: Vec::new(),
            key_count: None,
            tensor_count: None,
            alignment: 32,
            data: None,
            cut: 0,
        };
        for (key, value) in [
            ("block_count", 1),
            ("context_length", 2048),
            ("embedding_length", 64),
            ("feed_forward_length", 96),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
        ] {
            file.set(&format!("{architecture}.{key}"), Kv::U32(value));
        }
        let eps = format!("{architecture}.attention.layer_norm_rms_epsilon");
        file.set(&eps, Kv::F32(1e-5));
        for (name, dims, kind) in [
            ("token_embd.weight", &[64, 256][..], 8),
            ("output_norm.weight", &[64], 0),
            ("blk.0.attn_norm.weight", &[64], 0),
            ("blk.0.ffn_norm.weight", &[64], 0),
            ("blk.0.attn_q.weight", &[64, 64], 2),
            ("blk.0.attn_k.weight", &[64, 32], 2),
            ("blk.0.attn_v.weight", &[64, 32], 2),
            ("blk.0.attn_output.weight", &[64, 64], 2),
            ("blk.0.ffn_gate.weight", &[64, 96], 2),
            ("blk.0.ffn_up.weight", &[64, 96], 2),
            ("blk.0.ffn_down.weight", &[96, 64], 2),
        ] {
            file.tensor(name, dims, kind);
        }
        file
    }

    /// Sets a key, or replaces it.
    pub(super) fn set(&mut self, key: &str, value: Kv) {
        match self.keys.iter_mut().find(|(other, _)| other == key) {
            Some(pair) => pair.1 = value,
            None => self.keys.push((key.to_owned(), value)),
        }
    }

    pub(super) fn with(mut self, key: &str, value: Kv) -> Self {
        self.set(key, value);
        self
    }

    pub(super) fn without_key(mut self, key: &str) -> Self {
        self.keys.retain(|(other, _)| other != key);
        self
    }

    pub(super) fn tensor(&mut self, name: &str, dims: &[u64], kind: u32) {
        let name = name.to_owned();
        self.tensors.retain(|other| other.name != name);
        self.tensors.push(Tensor { name, dims: dims.to_vec(), kind, offset: None });
    }

    pub(super) fn with_tensor(mut self, name: &str, dims: &[u64], kind: u32) -> Self {
        self.tensor(name, dims, kind);
        self
    }

    pub(super) fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|other| other.name != name);
        self
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            put_text(&mut out, key);
            put_value(&mut out, value);
        }
        let mut end: u64 = 0;
        let mut starts = Vec::new();
        for tensor in &self.tensors {
            put_text(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            for dim in &tensor.dims {
                out.extend(dim.to_le_bytes());
            }
            out.extend(tensor.kind.to_le_bytes());
            let offset = tensor.offset.unwrap_or(end);
            starts.push(offset);
            out.extend(offset.to_le_bytes());
            let size = size_of(tensor).unwrap_or(0);
            let next = offset.saturating_add(size).checked_next_multiple_of(self.alignment);
            end = end.max(next.unwrap_or(u64::MAX));
        }
        let start = out.len().next_multiple_of(self.alignment as usize);
        out.resize(start + usize::try_from(end.min(1 << 20)).unwrap(), 0);
        if let Some((name, data)) = &self.data {
            let index = self.tensors.iter().position(|tensor| tensor.name == *name).unwrap();
            let at = start + usize::try_from(starts[index]).unwrap();
            out[at..at + data.len()].copy_from_slice(data);
        }
        out.truncate(out.len() - self.cut);
        out
    }

    pub(super) fn read(&self) -> Described {
        read(&self.bytes()).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(super) fn refused(&self) -> String {
        read(&self.bytes()).expect_err("must be refused")
    }
}

/// Reads a file in memory; the error is its message, checked to be one line.
pub(super) fn read(bytes: &[u8]) -> Result<Described, String> {
    describe(&SliceFile(bytes), "x.gguf", bytes.len() as u64).map_err(|error| {
        let error = error.to_string();
        assert!(error.starts_with("x.gguf: ") && !error.contains('\n'), "{error}");
        error
    })
}

struct SliceFile<'a>(&'a [u8]);

impl ReadAt for SliceFile<'_> {
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        self.0.read_exact_at(offset, buffer)
    }
}

/// Bytes of the types that the builder places; others take none.
fn size_of(tensor: &Tensor) -> Option<u64> {
    let (elements, bytes) = match tensor.kind {
        0 => (1, 4),
        1 | 30 => (1, 2),
        2 => (32, 18),
        8 => (32, 34),
        _ => return None,
    };
    let count = tensor.dims.iter().try_fold(1_u64, |product, dim| product.checked_mul(*dim))?;
    (count / elements).checked_mul(bytes)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Kv) {
    let mut array = |kind: u32, count: usize, body: Vec<u8>| {
        out.extend(9_u32.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((count as u64).to_le_bytes());
        out.extend(body);
    };
    match value {
        Kv::U32(value) => put_scalar(out, 4, &value.to_le_bytes()),
        Kv::U64(value) => put_scalar(out, 10, &value.to_le_bytes()),
        Kv::F32(value) => put_scalar(out, 6, &value.to_le_bytes()),
        Kv::Bool(value) => put_scalar(out, 7, &[*value]),
        Kv::Raw(kind, bytes) => put_scalar(out, *kind, bytes),
        Kv::Text(text) => {
            out.extend(8_u32.to_le_bytes());
            put_text(out, text);
        }
        Kv::Texts(texts) => {
            let mut body = Vec::new();
            texts.iter().for_each(|text| put_text(&mut body, text));
            array(8, texts.len(), body);
        }
        Kv::I32s(values) => {
            array(5, values.len(), values.iter().flat_map(|v| v.to_le_bytes()).collect());
        }
        Kv::F32s(values) => {
            array(6, values.len(), values.iter().flat_map(|v| v.to_le_bytes()).collect());
        }
    }
}

fn put_scalar(out: &mut Vec<u8>, kind: u32, bytes: &[u8]) {
    out.extend(kind.to_le_bytes());
    out.extend(bytes);
}
