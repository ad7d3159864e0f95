//! The ways to break a folder with safetensors, config.json and tokenizer.json.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Case, Content, NewFile};
use crate::json_edits::{damaged, nested, odd_value, replaced, with_key_twice, without_key};
use crate::rng::Rng;

const WEIGHTS: &str = "model.safetensors";

/// A folder that loads.
#[derive(Debug)]
pub(super) struct Base {
    header: Map<String, Value>,
    data_len: u64,
    config: Value,
    pub(super) tokenizer: Value,
    tokenizer_config: Value,
    generation: Value,
}

impl Base {
    pub(super) fn read(folder: &Path) -> Self {
        let json = |name: &str| -> Value {
            serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
        };
        let weights = std::fs::read(folder.join(WEIGHTS)).unwrap();
        let header_len = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
        Self {
            header: serde_json::from_slice(&weights[8..8 + header_len]).unwrap(),
            data_len: (weights.len() - 8 - header_len) as u64,
            config: json("config.json"),
            tokenizer: json("tokenizer.json"),
            tokenizer_config: json("tokenizer_config.json"),
            generation: json("generation_config.json"),
        }
    }

    pub(super) fn whole(&self) -> Case {
        let files = self.with(vec![]);
        Case { class: "whole folder", is_hopeless: false, files, opened: "" }
    }

    /// All files, these in place of those with the same names.
    fn with(&self, changed: Vec<NewFile>) -> Vec<NewFile> {
        let mut files = changed;
        let mut add = |name: &str, make: &dyn Fn() -> NewFile| {
            if !files.iter().any(|file| file.name == name) {
                files.push(make());
            }
        };
        add(WEIGHTS, &|| self.weights(&Value::Object(self.header.clone()).to_string()));
        for (name, value) in [
            ("config.json", &self.config),
            ("tokenizer.json", &self.tokenizer),
            ("tokenizer_config.json", &self.tokenizer_config),
            ("generation_config.json", &self.generation),
        ] {
            add(name, &|| NewFile::bytes(name, value.to_string().into_bytes()));
        }
        files
    }

    /// The weight file with this header; data are zeros.
    fn weights(&self, header: &str) -> NewFile {
        self.weights_of_len(header, header.len() as u64, self.data_len)
    }

    fn weights_of_len(&self, header: &str, said: u64, data_len: u64) -> NewFile {
        let mut bytes = said.to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        let len = bytes.len() as u64 + data_len;
        NewFile::padded(WEIGHTS, bytes, len)
    }

    fn text(&self) -> String {
        Value::Object(self.header.clone()).to_string()
    }

    /// The weight file after a change to one tensor's entry.
    fn with_tensor(&self, rng: &mut Rng, change: impl Fn(&mut Value, &mut Rng)) -> Vec<NewFile> {
        let mut header = self.header.clone();
        let names: Vec<String> =
            header.keys().filter(|name| *name != "__metadata__").cloned().collect();
        change(&mut header[rng.pick(&names)], rng);
        vec![self.weights(&Value::Object(header).to_string())]
    }

    fn with_header(&self, change: impl FnOnce(&mut Map<String, Value>)) -> Vec<NewFile> {
        let mut header = self.header.clone();
        change(&mut header);
        vec![self.weights(&Value::Object(header).to_string())]
    }
}

/// The `turn`th class, details at random.
pub(super) fn case(base: &Base, turn: usize, rng: &mut Rng) -> Case {
    let (class, is_hopeless, make) = CLASSES[turn % CLASSES.len()];
    Case { class, is_hopeless, files: base.with(make(base, rng)), opened: "" }
}

type Make = fn(&Base, &mut Rng) -> Vec<NewFile>;

/// Name, whether every folder of the class must be refused, and what makes the files that differ.
const CLASSES: [(&str, bool, Make); 32] = [
    ("a header length that lies", true, |base, rng| {
        let text = base.text();
        let said = match rng.below(4) {
            0 => rng.below(text.len()) as u64,
            1 => text.len() as u64 + 1 + rng.below(1000) as u64,
            2 => u64::MAX - rng.below(16) as u64,
            _ => rng.edge() | 1 << 40,
        };
        vec![base.weights_of_len(&text, said, base.data_len)]
    }),
    ("a file cut short", true, |base, rng| {
        let text = base.text();
        let len = rng.below(8 + text.len() + base.data_len as usize) as u64;
        let mut file = base.weights(&text);
        if let Content::Bytes(bytes, whole) = &mut file.content {
            bytes.truncate(len as usize);
            *whole = len;
        }
        vec![file]
    }),
    ("bytes behind the last tensor", true, |base, rng| {
        let text = base.text();
        let more = 1 + rng.edge() % (1 << 30);
        vec![base.weights_of_len(&text, text.len() as u64, base.data_len + more)]
    }),
    ("a damaged header", false, |base, rng| {
        let damaged = damaged(base.text().as_bytes(), rng);
        let mut bytes = (damaged.len() as u64).to_le_bytes().to_vec();
        bytes.extend(&damaged);
        let len = bytes.len() as u64 + base.data_len;
        vec![NewFile::padded(WEIGHTS, bytes, len)]
    }),
    ("a header with another value", false, |base, rng| {
        let header = replaced(Value::Object(base.header.clone()), rng);
        vec![base.weights(&header.to_string())]
    }),
    ("a dimension that is another", true, |base, rng| {
        base.with_tensor(rng, |tensor, rng| {
            let dimension = rng.below(tensor["shape"].as_array().unwrap().len());
            let odd = [json!(0), json!(-1), json!(1.5), json!(u64::MAX), json!(1_u64 << 63)];
            tensor["shape"][dimension] = rng.pick(&odd).clone();
        })
    }),
    ("a product of dimensions that overflows", true, |base, rng| {
        base.with_tensor(rng, |tensor, rng| {
            let shapes = [
                json!([1_u64 << 32, 1_u64 << 32]),
                json!([1_u64 << 63, 2]),
                json!([u64::MAX, u64::MAX]),
                json!([1_u64 << 31, 1_u64 << 31, 4]),
            ];
            tensor["shape"] = rng.pick(&shapes).clone();
        })
    }),
    ("many dimensions", true, |base, rng| {
        base.with_tensor(rng, |tensor, rng| {
            tensor["shape"] = json!(vec![1; 9 + rng.below(20_000)]);
        })
    }),
    ("a type that is another", true, |base, rng| {
        base.with_tensor(rng, |tensor, rng| {
            let kinds = ["F32", "F64", "I8", "F8_E5M2", "BF17", "", "bf16", "F4", "\u{0}"];
            tensor["dtype"] = json!(*rng.pick(&kinds));
        })
    }),
    ("ranges that overlap, leave a gap or run back", true, |base, rng| {
        base.with_tensor(rng, |tensor, rng| {
            let offsets = tensor["data_offsets"].as_array().unwrap();
            let (begin, end) = (offsets[0].as_u64().unwrap(), offsets[1].as_u64().unwrap());
            let by = 1 + rng.below(64) as u64;
            tensor["data_offsets"] = match rng.below(6) {
                0 => json!([end, begin]),
                1 => json!([begin + by, end + by]),
                2 => json!([begin + by, end]),
                3 => json!([u64::MAX - by, u64::MAX]),
                4 => json!([begin, u64::MAX]),
                _ => json!([begin, end, end]),
            };
        })
    }),
    ("a tensor too few", true, |base, rng| {
        let names: Vec<&String> =
            base.header.keys().filter(|name| *name != "__metadata__").collect();
        let name = *rng.pick(&names);
        base.with_header(|header| drop(header.shift_remove(name)))
    }),
    ("a tensor without a part of its entry", true, |base, rng| {
        base.with_tensor(rng, |tensor, rng| *tensor = without_key(tensor.take(), rng))
    }),
    ("tensors too many", true, |base, rng| {
        base.with_header(|header| {
            for number in 0..1 + rng.below(3000) {
                let at = base.data_len;
                let tensor = json!({"dtype": "F32", "shape": [0], "data_offsets": [at, at]});
                header.insert(format!("model.layers.9.extra{number}.weight"), tensor);
            }
        })
    }),
    ("a tensor twice", true, |base, rng| {
        let text = with_key_twice(&base.header, rng);
        vec![base.weights(std::str::from_utf8(&text).unwrap())]
    }),
    ("a name that is long or not one line", true, |base, rng| {
        base.with_header(|header| {
            let names =
                ["x".repeat(1 << 16), "\n\r\u{0}".to_owned(), "\u{202e}".to_owned(), String::new()];
            let last = header.keys().next_back().unwrap().clone();
            let tensor = header.shift_remove(&last).unwrap();
            header.insert(rng.pick(&names).clone(), tensor);
        })
    }),
    ("metadata that is none", true, |base, rng| {
        base.with_header(|header| {
            let odd = [json!(1), json!([1]), json!({"a": 1}), json!({"a": {"b": "c"}}), nested(90)];
            header.insert("__metadata__".to_owned(), rng.pick(&odd).clone());
        })
    }),
    ("a deep header", true, |base, rng| {
        let depth = 1 + rng.below(100_000);
        vec![base.weights(&"[{\"a\":".repeat(depth))]
    }),
    ("something else in place of the weights", true, |_, rng| {
        vec![match rng.below(6) {
            0 => NewFile::bytes(WEIGHTS, Vec::new()),
            1 => NewFile::bytes(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\n".to_vec()),
            2 => NewFile::special(WEIGHTS, Content::Fifo),
            3 => NewFile::special(WEIGHTS, Content::Folder),
            4 => NewFile::special(WEIGHTS, Content::Link("/dev/zero".to_owned())),
            _ => NewFile::special(WEIGHTS, Content::Link(WEIGHTS.to_owned())),
        }]
    }),
    ("an index that leads elsewhere", true, |base, rng| {
        let targets = [
            "../../../etc/passwd",
            "/etc/passwd",
            "",
            ".",
            "a/b.safetensors",
            "x\u{0}y.safetensors",
            "missing.safetensors",
            "config.json",
            "\n.safetensors",
        ];
        let target = *rng.pick(&targets);
        let names = base.header.keys().filter(|name| *name != "__metadata__");
        let map: Map<String, Value> = names.map(|name| (name.clone(), json!(target))).collect();
        let index = json!({"weight_map": map}).to_string();
        let text = base.text();
        let part = "model-00001-of-00001.safetensors";
        let mut file = base.weights(&text);
        file.name = part.to_owned();
        vec![
            NewFile::bytes("model.safetensors.index.json", index.into_bytes()),
            file,
            NewFile::special(WEIGHTS, Content::Absent),
        ]
    }),
    ("config.json: another value", false, |base, rng| one_value("config.json", &base.config, rng)),
    ("config.json: a key too few", false, |base, rng| {
        json_file("config.json", &without_key(base.config.clone(), rng))
    }),
    ("config.json: a key twice", true, |base, rng| {
        vec![NewFile::bytes("config.json", with_key_twice(base.config.as_object().unwrap(), rng))]
    }),
    ("config.json: a size at its limits", false, |base, rng| {
        let mut config = base.config.clone();
        let sizes = [
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_hidden_layers",
            "head_dim",
            "num_key_value_heads",
            "vocab_size",
            "max_position_embeddings",
            "rms_norm_eps",
        ];
        let odd = if rng.one_in(3) { odd_value(rng) } else { json!(rng.edge()) };
        config[*rng.pick(&sizes)] = odd;
        json_file("config.json", &config)
    }),
    ("config.json: damaged bytes", false, |base, rng| bytes_of("config.json", &base.config, rng)),
    ("config.json: not an object, or huge", true, |_, rng| {
        let bytes = match rng.below(4) {
            0 => "[".repeat(1 << rng.below(19)),
            1 => odd_value(rng).to_string(),
            2 => " ".repeat(2 << 20),
            _ => format!("{{\"model_type\": {}}}", "9".repeat(100_000)),
        };
        vec![NewFile::bytes("config.json", bytes.into_bytes())]
    }),
    ("tokenizer.json: another value", false, |base, rng| {
        one_value("tokenizer.json", &base.tokenizer, rng)
    }),
    ("tokenizer.json: another value outside the vocabulary", false, |base, rng| {
        let mut tokenizer = base.tokenizer.clone();
        let vocab = tokenizer["model"]["vocab"].take();
        let merges = tokenizer["model"]["merges"].take();
        let mut tokenizer = replaced(tokenizer, rng);
        if let Some(model) = tokenizer.get_mut("model").and_then(Value::as_object_mut) {
            model.insert("vocab".to_owned(), vocab);
            model.insert("merges".to_owned(), merges);
        }
        json_file("tokenizer.json", &tokenizer)
    }),
    ("tokenizer.json: a part that bites", false, |base, rng| {
        let mut tokenizer = base.tokenizer.clone();
        let parts: [(&str, Value); 8] = [
            (
                "pre_tokenizer",
                json!({"type": "Split", "pattern": {"Regex": "(?:a|a)*$|!"},
                "behavior": "Isolated", "invert": false}),
            ),
            (
                "pre_tokenizer",
                json!({"type": "Split", "pattern": {"Regex": "(a{1,999}){1,999}"},
                "behavior": "Isolated", "invert": false}),
            ),
            ("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
            (
                "normalizer",
                json!({"type": "Sequence", "normalizers": vec![json!({"type": "Replace",
                "pattern": {"String": "x"}, "content": "xxxxxxxxxx"}); 12]}),
            ),
            ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": ""})),
            (
                "decoder",
                json!({"type": "Sequence", "decoders": vec![json!({"type": "Replace",
                "pattern": {"String": "x"}, "content": "xx"}); 40]}),
            ),
            (
                "post_processor",
                json!({"type": "TemplateProcessing",
                "single": vec![json!({"SpecialToken": {"id": "<|bos|>", "type_id": 0}}); 20_000],
                "pair": [], "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": vec![0; 5000],
                "tokens": []}}}),
            ),
            (
                "added_tokens",
                json!([{"id": 0, "content": "y".repeat(200_000), "special": true,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}]),
            ),
        ];
        let (part, value) = rng.pick(&parts).clone();
        tokenizer[part] = value;
        json_file("tokenizer.json", &tokenizer)
    }),
    ("tokenizer.json: damaged bytes", false, |base, rng| {
        bytes_of("tokenizer.json", &base.tokenizer, rng)
    }),
    ("tokenizer_config.json: another value", false, |base, rng| {
        one_value("tokenizer_config.json", &base.tokenizer_config, rng)
    }),
    ("tokenizer_config.json: a template that bites", false, |base, rng| {
        let mut config = base.tokenizer_config.clone();
        let templates = [
            "{% for x in range(999999999) %}{{ x }}{% endfor %}".to_owned(),
            "{{ 'x' * 999999999 }}".to_owned(),
            "{".repeat(200_000),
            "{% if x %}".repeat(20_000),
            format!("{{{{ {}x{} }}}}", "(".repeat(20_000), ")".repeat(20_000)),
            format!("{{{{ {} }}}}", "[".repeat(50_000)),
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned(),
            "{% include '/etc/passwd' %}".to_owned(),
        ];
        config["chat_template"] = json!(rng.pick(&templates));
        json_file("tokenizer_config.json", &config)
    }),
    ("generation_config.json: another value", false, |base, rng| {
        one_value("generation_config.json", &base.generation, rng)
    }),
];

fn json_file(name: &str, value: &Value) -> Vec<NewFile> {
    vec![NewFile::bytes(name, value.to_string().into_bytes())]
}

fn one_value(name: &str, value: &Value, rng: &mut Rng) -> Vec<NewFile> {
    json_file(name, &replaced(value.clone(), rng))
}

fn bytes_of(name: &str, value: &Value, rng: &mut Rng) -> Vec<NewFile> {
    vec![NewFile::bytes(name, damaged(value.to_string().as_bytes(), rng))]
}
