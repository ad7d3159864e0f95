//! The ways to break a GGUF file.

use super::gguf::{Field, Gguf, Kv, Tensor};
use super::{Case, Content, NewFile};
use crate::json_edits::damaged;
use crate::rng::Rng;

pub(super) const NAME: &str = "model.gguf";

/// The file as it should be.
pub(super) fn file(gguf: &Gguf) -> NewFile {
    let (bytes, len) = gguf.bytes();
    NewFile::padded(NAME, bytes, len)
}

/// The `turn`th class, details at random.
pub(super) fn case(base: &Gguf, turn: usize, rng: &mut Rng) -> Case {
    let (class, is_hopeless, make) = CLASSES[turn % CLASSES.len()];
    Case { class, is_hopeless, files: vec![make(base.clone(), rng)], opened: NAME }
}

type Make = fn(Gguf, &mut Rng) -> NewFile;

/// Name, whether every file of the class must be refused, and what makes one.
const CLASSES: [(&str, bool, Make); 27] = [
    ("a number of the header lies", false, |mut gguf, rng| {
        let field = *rng.pick(&Field::ALL);
        gguf.lie = Some((field, rng.below(gguf.num_fields(field)), rng.edge()));
        file(&gguf)
    }),
    ("a huge count of tensors", true, |gguf, rng| lie(gguf, Field::TensorCount, huge(rng), 1)),
    ("a huge count of keys", true, |gguf, rng| lie(gguf, Field::KeyCount, huge(rng), 1)),
    ("a huge string", true, |gguf, rng| {
        let place = rng.below(gguf.num_fields(Field::StringLen));
        lie(gguf, Field::StringLen, huge(rng), place)
    }),
    ("a huge array", true, |gguf, rng| {
        let place = rng.below(3);
        lie(gguf, Field::ArrayLen, huge(rng), place)
    }),
    ("an item type that is another", false, |gguf, rng| {
        let (place, kind) = (rng.below(3), rng.below(15) as u64);
        lie(gguf, Field::ItemType, kind, place)
    }),
    ("a value type that is another", false, |gguf, rng| {
        let place = rng.below(gguf.num_fields(Field::ValueType));
        lie(gguf, Field::ValueType, rng.below(15) as u64, place)
    }),
    ("a tensor type that is another", true, |gguf, rng| {
        // 0, 2 and 8 are the types that the file has.
        let kinds = [1, 3, 4, 5, 6, 7, 9, 12, 13, 14, 15, 30, 31, 39, 40, 255, u64::from(u32::MAX)];
        let place = rng.below(gguf.tensors.len());
        lie(gguf, Field::TensorType, *rng.pick(&kinds), place)
    }),
    ("an offset that overlaps, leaves a gap or lies outside", true, |gguf, rng| {
        let place = rng.below(gguf.tensors.len());
        let offset = 1 + (rng.edge() | 1 << rng.below(60));
        lie(gguf, Field::Offset, offset | 1 << 40, place)
    }),
    ("dimensions whose product overflows", true, |mut gguf, rng| {
        let tensor = rng.below(gguf.tensors.len());
        let dims = [(1 << 32, 1 << 32), (1 << 63, 2), (64, u64::MAX / 32), (u64::MAX, u64::MAX)];
        let (cols, rows) = *rng.pick(&dims);
        gguf.tensors[tensor].dims = vec![cols, rows];
        file(&gguf)
    }),
    ("a dimension of zero", true, |mut gguf, rng| {
        let tensor = rng.below(gguf.tensors.len());
        *gguf.tensors[tensor].dims.last_mut().unwrap() = 0;
        file(&gguf)
    }),
    ("many dimensions", true, |gguf, rng| {
        let place = rng.below(gguf.tensors.len());
        lie(gguf, Field::DimCount, 5 + rng.edge() % (1 << 31), place)
    }),
    ("an alignment that is none", true, |mut gguf, rng| {
        let wrong = [0, 1, 2, 4, 8, 16, 24, 33, 1 << 17, 1 << 31, u32::MAX];
        *gguf.value("general.alignment") = Kv::U32(*rng.pick(&wrong));
        file(&gguf)
    }),
    ("a tensor twice", true, |mut gguf, rng| {
        let tensor = gguf.tensors[rng.below(gguf.tensors.len())].clone();
        gguf.tensors.push(tensor);
        file(&gguf)
    }),
    ("a tensor too few", true, |mut gguf, rng| {
        gguf.tensors.remove(rng.below(gguf.tensors.len()));
        file(&gguf)
    }),
    ("tensors too many", true, |mut gguf, rng| {
        for number in 0..1 + rng.below(2000) {
            let name = format!("blk.9.extra{number}.weight").into_bytes();
            gguf.tensors.push(Tensor { name, dims: vec![1], kind: 0 });
        }
        file(&gguf)
    }),
    ("a key twice", true, |mut gguf, rng| {
        let again = gguf.keys[rng.below(gguf.keys.len())].clone();
        gguf.keys.push(again);
        file(&gguf)
    }),
    ("a key too few", false, |mut gguf, rng| {
        gguf.keys.remove(rng.below(gguf.keys.len()));
        file(&gguf)
    }),
    ("a size of the model that is another", false, |mut gguf, rng| {
        let sizes: Vec<usize> = (0..gguf.keys.len())
            .filter(|&place| matches!(gguf.keys[place].1, Kv::U32(_)))
            .collect();
        gguf.keys[*rng.pick(&sizes)].1 = Kv::U32(rng.edge() as u32);
        file(&gguf)
    }),
    ("a float at its limits", false, |mut gguf, rng| {
        let keys = ["llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"];
        let floats = [f32::NAN, f32::INFINITY, -1.0, 0.0, f32::MIN_POSITIVE / 4.0, f32::MAX];
        let key = *rng.pick(&keys);
        *gguf.value(key) = Kv::F32(*rng.pick(&floats));
        file(&gguf)
    }),
    ("arrays in arrays", true, |mut gguf, rng| {
        let mut bytes = Vec::new();
        for _ in 0..1 + rng.below(2000) {
            bytes.extend(9_u32.to_le_bytes());
            bytes.extend(1_u64.to_le_bytes());
        }
        bytes.extend([0; 16]);
        gguf.keys.push((b"general.deep".to_vec(), Kv::Raw(9, bytes)));
        file(&gguf)
    }),
    ("text that is not UTF-8, or not one line", false, |mut gguf, rng| {
        let texts: [&[u8]; 4] =
            [b"\xff\xfe", b"\xc0\x80", b"a\nb\r\0\x1b[2J", "\u{202e}".as_bytes()];
        let odd = rng.pick(&texts).to_vec();
        match rng.below(3) {
            0 => gguf.tensors[0].name = odd,
            1 => gguf.keys.push((odd, Kv::Bool(2))),
            _ => *gguf.value("general.architecture") = Kv::Text(odd),
        }
        file(&gguf)
    }),
    ("a vocabulary that contradicts itself", false, |mut gguf, rng| {
        vocabulary(&mut gguf, rng);
        file(&gguf)
    }),
    ("bytes behind the last tensor", true, |gguf, rng| {
        let (bytes, len) = gguf.bytes();
        NewFile::padded(NAME, bytes, len + 1 + rng.edge() % (1 << 30))
    }),
    ("a file cut short", true, |gguf, rng| {
        let (mut bytes, len) = gguf.bytes();
        // Not only the padding of the last tensor.
        let kept = rng.below(len as usize - 64);
        bytes.truncate(kept);
        NewFile::padded(NAME, bytes, kept as u64)
    }),
    ("damaged bytes", false, |gguf, rng| {
        let (bytes, len) = gguf.bytes();
        let bytes = damaged(&bytes, rng);
        let len = len.max(bytes.len() as u64);
        NewFile::padded(NAME, bytes, len)
    }),
    ("something else under the name", true, |_, rng| match rng.below(7) {
        0 => NewFile::bytes(NAME, Vec::new()),
        1 => NewFile::bytes(NAME, b"version https://git-lfs.github.com/spec/v1\n".to_vec()),
        2 => NewFile::bytes(NAME, b"FUGG\0\0\0\x03\0\0\0\0\0\0\0\x01".to_vec()),
        3 => NewFile::bytes(NAME, b"GGUF\0\0\0\x03\0\0\0\0\0\0\0\x01".to_vec()),
        4 => NewFile::special(NAME, Content::Fifo),
        5 => NewFile::special(NAME, Content::Link("/dev/zero".to_owned())),
        _ => NewFile::special(NAME, Content::Link(NAME.to_owned())),
    }),
];

fn huge(rng: &mut Rng) -> u64 {
    (rng.edge() | 1 << 32) << rng.below(2) | 1 << (33 + rng.below(31))
}

fn lie(mut gguf: Gguf, field: Field, value: u64, place: usize) -> NewFile {
    let place = if matches!(field, Field::TensorCount | Field::KeyCount) { 0 } else { place };
    gguf.lie = Some((field, place, value));
    file(&gguf)
}

fn vocabulary(gguf: &mut Gguf, rng: &mut Rng) {
    let number = rng.edge() as u32;
    let key = *rng.pick(&["tokens", "merges", "token_type", "model", "pre", "bos_token_id"]);
    let value = gguf.value(&format!("tokenizer.ggml.{key}"));
    match value {
        Kv::Texts(texts) => {
            let (one, other) = (rng.below(texts.len()), rng.below(texts.len()));
            match rng.below(6) {
                0 => texts[one] = texts[other].clone(),
                1 => texts[one] = Vec::new(),
                2 => texts[one] = b"no such tokens".to_vec(),
                3 => texts[one] = b"x".repeat(200_000),
                4 => texts.truncate(one),
                _ => texts.clear(),
            }
        }
        Kv::I32s(numbers) => {
            let place = rng.below(numbers.len());
            if rng.one_in(2) { numbers[place] = number as i32 } else { numbers.truncate(place) }
        }
        Kv::U32(id) => *id = number,
        other => *other = Kv::Text(b"llama".to_vec()),
    }
}
