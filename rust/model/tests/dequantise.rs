//! `dequantise` against PyPI `gguf` 0.19.0, bit for bit.
//!
//! Recipe of tests/data/dequantise/TYPE.bin (numpy.random.default_rng(2026), types in the order below):
//! for block types three blocks of random bytes, `rng.integers(0, 256, (3, block_bytes), uint8)`, whose
//! f16 scales are then replaced, one after the other, by `rng.normal(0, 0.1, 3)`; for plain types 32
//! values of `rng.standard_normal`. The file is those bytes followed by the f32 values that
//! `gguf.quants.dequantize` makes of them.

use std::path::Path;

use ingle_model::{WeightType, dequantise};

#[test]
fn test_dequantise_equals_ggml_bit_for_bit() {
    let types = [
        ("F32", WeightType::F32, 32),
        ("F16", WeightType::F16, 32),
        ("BF16", WeightType::Bf16, 32),
        ("Q8_0", WeightType::Q8_0, 96),
        ("Q4_0", WeightType::Q4_0, 96),
        ("Q4_1", WeightType::Q4_1, 96),
        ("Q5_0", WeightType::Q5_0, 96),
        ("Q5_1", WeightType::Q5_1, 96),
        ("Q4_K", WeightType::Q4K, 768),
        ("Q5_K", WeightType::Q5K, 768),
        ("Q6_K", WeightType::Q6K, 768),
    ];
    for (name, weight_type, elements) in types {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/dequantise/{name}.bin"));
        let file = std::fs::read(path).unwrap();
        let stored = elements / weight_type.block_elements() * weight_type.block_bytes();
        assert_eq!(file.len(), stored + elements * 4, "{name}");
        let (bytes, wanted) = file.split_at(stored);
        let mut values = vec![0.0; elements];
        dequantise(weight_type, bytes, &mut values);
        for (index, (value, wanted)) in values.iter().zip(wanted.as_chunks::<4>().0).enumerate() {
            let wanted = f32::from_le_bytes(*wanted);
            assert_eq!(value.to_bits(), wanted.to_bits(), "{name} {index}: {value} {wanted}");
        }
    }
}

#[test]
#[should_panic(expected = "33 bytes of Q8_0 are not 32 elements")]
fn test_dequantise_refuses_broken_blocks() {
    dequantise(WeightType::Q8_0, &[0; 33], &mut [0.0; 32]);
}
