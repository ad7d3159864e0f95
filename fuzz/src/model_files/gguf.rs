//! Writes GGUF files, any number in them replaced by another.

use serde_json::Value;

/// A metadata value.
#[derive(Clone, Debug)]
pub(super) enum Kv {
    U32(u32),
    F32(f32),
    Bool(u8),
    Text(Vec<u8>),
    Texts(Vec<Vec<u8>>),
    I32s(Vec<i32>),
    /// Type number and the bytes behind it.
    Raw(u32, Vec<u8>),
}

#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) name: Vec<u8>,
    /// Innermost first, as in the file.
    pub(super) dims: Vec<u64>,
    pub(super) kind: u32,
}

/// The numbers of a header that readers must not trust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Version,
    TensorCount,
    KeyCount,
    StringLen,
    ValueType,
    ItemType,
    ArrayLen,
    DimCount,
    Dim,
    TensorType,
    Offset,
}

impl Field {
    pub(super) const ALL: [Self; 11] = [
        Self::Version,
        Self::TensorCount,
        Self::KeyCount,
        Self::StringLen,
        Self::ValueType,
        Self::ItemType,
        Self::ArrayLen,
        Self::DimCount,
        Self::Dim,
        Self::TensorType,
        Self::Offset,
    ];
}

/// A file: what it says, and which of its numbers lies.
#[derive(Clone, Debug)]
pub(super) struct Gguf {
    pub(super) keys: Vec<(Vec<u8>, Kv)>,
    pub(super) tensors: Vec<Tensor>,
    /// The `usize`th number of this kind becomes the `u64`.
    pub(super) lie: Option<(Field, usize, u64)>,
}

impl Gguf {
    /// A two-layer llama with the vocabulary of a byte-level tokenizer.json.
    pub(super) fn tiny(tokenizer: &Value) -> Self {
        let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
        let mut tokens = vec![Vec::new(); vocab.len()];
        for (token, id) in vocab {
            tokens[id.as_u64().unwrap() as usize] = token.clone().into_bytes();
        }
        let merges = tokenizer["model"]["merges"].as_array().unwrap();
        let merge = |pair: &Value| format!("{} {}", text(&pair[0]), text(&pair[1])).into_bytes();
        let types = (0..tokens.len()).map(|id| if id < 5 { 3 } else { 1 }).collect();
        let num_tokens = tokens.len() as u64;
        let mut keys = vec![
            ("general.architecture", Kv::Text(b"llama".to_vec())),
            ("general.name", Kv::Text(b"tiny".to_vec())),
            ("general.alignment", Kv::U32(32)),
        ];
        for (key, value) in [
            ("llama.block_count", 2),
            ("llama.context_length", 2048),
            ("llama.embedding_length", 64),
            ("llama.feed_forward_length", 96),
            ("llama.attention.head_count", 4),
            ("llama.attention.head_count_kv", 2),
            ("tokenizer.ggml.bos_token_id", 0),
            ("tokenizer.ggml.eos_token_id", 1),
        ] {
            keys.push((key, Kv::U32(value)));
        }
        keys.extend([
            ("llama.attention.layer_norm_rms_epsilon", Kv::F32(1e-5)),
            ("llama.rope.freq_base", Kv::F32(10_000.0)),
            ("tokenizer.ggml.add_bos_token", Kv::Bool(1)),
            ("tokenizer.ggml.model", Kv::Text(b"gpt2".to_vec())),
            ("tokenizer.ggml.pre", Kv::Text(b"gpt-2".to_vec())),
            ("tokenizer.ggml.tokens", Kv::Texts(tokens)),
            ("tokenizer.ggml.token_type", Kv::I32s(types)),
            ("tokenizer.ggml.merges", Kv::Texts(merges.iter().map(merge).collect())),
            ("tokenizer.chat_template", Kv::Text(TEMPLATE.as_bytes().to_vec())),
        ]);
        let keys = keys.into_iter().map(|(key, value)| (key.as_bytes().to_vec(), value)).collect();
        Self { keys, tensors: tensors(num_tokens), lie: None }
    }

    pub(super) fn value(&mut self, key: &str) -> &mut Kv {
        &mut self.keys.iter_mut().find(|(other, _)| other == key.as_bytes()).unwrap().1
    }

    /// How many numbers of this kind the file has.
    pub(super) fn num_fields(&self, field: Field) -> usize {
        let mut writer = Writer { out: Vec::new(), lie: None, seen: [0; 11] };
        self.write_header(&mut writer);
        writer.seen[field as usize]
    }

    /// The header's bytes and the length of the whole file.
    pub(super) fn bytes(&self) -> (Vec<u8>, u64) {
        let mut writer = Writer { out: Vec::new(), lie: self.lie, seen: [0; 11] };
        let data_len = self.write_header(&mut writer);
        let len = (writer.out.len() as u64).next_multiple_of(32) + data_len;
        (writer.out, len)
    }

    fn write_header(&self, writer: &mut Writer) -> u64 {
        writer.out.extend(b"GGUF");
        writer.u32(Field::Version, 3);
        writer.u64(Field::TensorCount, self.tensors.len() as u64);
        writer.u64(Field::KeyCount, self.keys.len() as u64);
        for (key, value) in &self.keys {
            writer.text(key);
            writer.value(value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            writer.text(&tensor.name);
            writer.u32(Field::DimCount, tensor.dims.len() as u32);
            for dim in &tensor.dims {
                writer.u64(Field::Dim, *dim);
            }
            writer.u32(Field::TensorType, tensor.kind);
            writer.u64(Field::Offset, offset);
            let elements = tensor.dims.iter().fold(1_u64, |all, dim| all.saturating_mul(*dim));
            let bytes = match tensor.kind {
                0 => elements.saturating_mul(4),
                2 => (elements / 32).saturating_mul(18),
                _ => (elements / 32).saturating_mul(34),
            };
            // A case with absurd dimensions is refused for them; its file stays small.
            offset += bytes.min(1 << 20).next_multiple_of(32);
        }
        offset
    }
}

fn tensors(num_tokens: u64) -> Vec<Tensor> {
    let tensor = |name: &str, dims: &[u64], kind| Tensor {
        name: name.as_bytes().to_vec(),
        dims: dims.to_vec(),
        kind,
    };
    let mut all = vec![
        tensor("token_embd.weight", &[64, num_tokens], 8),
        tensor("output_norm.weight", &[64], 0),
    ];
    for layer in 0..2 {
        let mut add = |part: &str, dims: &[u64], kind| {
            all.push(tensor(&format!("blk.{layer}.{part}.weight"), dims, kind));
        };
        add("attn_norm", &[64], 0);
        add("ffn_norm", &[64], 0);
        for (part, dims) in [
            ("attn_q", [64, 64]),
            ("attn_k", [64, 32]),
            ("attn_v", [64, 32]),
            ("attn_output", [64, 64]),
            ("ffn_gate", [64, 96]),
            ("ffn_up", [64, 96]),
            ("ffn_down", [96, 64]),
        ] {
            add(part, &dims, 2);
        }
    }
    all
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

struct Writer {
    out: Vec<u8>,
    lie: Option<(Field, usize, u64)>,
    /// How many numbers of each kind were written.
    seen: [usize; 11],
}

impl Writer {
    fn number(&mut self, field: Field, value: u64) -> u64 {
        let place = self.seen[field as usize];
        self.seen[field as usize] += 1;
        match self.lie {
            Some((other, number, lie)) if (other, number) == (field, place) => lie,
            _ => value,
        }
    }

    fn u32(&mut self, field: Field, value: u32) {
        let value = self.number(field, u64::from(value)) as u32;
        self.out.extend(value.to_le_bytes());
    }

    fn u64(&mut self, field: Field, value: u64) {
        let value = self.number(field, value);
        self.out.extend(value.to_le_bytes());
    }

    fn text(&mut self, text: &[u8]) {
        self.u64(Field::StringLen, text.len() as u64);
        self.out.extend(text);
    }

    fn list(&mut self, kind: u32, len: usize) {
        self.u32(Field::ValueType, 9);
        self.u32(Field::ItemType, kind);
        self.u64(Field::ArrayLen, len as u64);
    }

    fn value(&mut self, value: &Kv) {
        match value {
            Kv::U32(value) => {
                self.u32(Field::ValueType, 4);
                self.out.extend(value.to_le_bytes());
            }
            Kv::F32(value) => {
                self.u32(Field::ValueType, 6);
                self.out.extend(value.to_le_bytes());
            }
            Kv::Bool(value) => {
                self.u32(Field::ValueType, 7);
                self.out.push(*value);
            }
            Kv::Text(text) => {
                self.u32(Field::ValueType, 8);
                self.text(text);
            }
            Kv::Texts(texts) => {
                self.list(8, texts.len());
                texts.iter().for_each(|text| self.text(text));
            }
            Kv::I32s(numbers) => {
                self.list(5, numbers.len());
                numbers.iter().for_each(|number| self.out.extend(number.to_le_bytes()));
            }
            Kv::Raw(kind, bytes) => {
                self.u32(Field::ValueType, *kind);
                self.out.extend(bytes);
            }
        }
    }
}

const TEMPLATE: &str = "{% for m in messages %}{{ m['content'] }}{% endfor %}";
