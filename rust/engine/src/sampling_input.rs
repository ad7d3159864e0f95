//! [1] The object `sampling` of the wire document. Its plain fields are those of `SAMPLING_FIELDS`,
//! kept as the client wrote them. Any thread; `sampling` checks the values.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use ingle_core::SamplingField;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Number;

/// Sampling fields; absent ones take the model's defaults.
#[derive(Clone, Debug, Default)]
pub struct SamplingInput {
    /// The plain fields that are set, null ones left out.
    pub plain: Vec<(&'static SamplingField, Number)>,
    /// Any 64 bits; absent: drawn from the engine's own seeds.
    pub seed: Option<Number>,
    /// By token id in decimal digits.
    pub logit_bias: BTreeMap<String, f64>,
    /// If set, no other token can be sampled.
    pub allowed_token_ids: Option<Vec<i64>>,
    /// Alternatives with each token of the answer.
    pub logprobs: Option<i64>,
    /// The same with each token of the prompt.
    pub prompt_logprobs: Option<i64>,
}

impl<'de> Deserialize<'de> for SamplingInput {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        reader.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = SamplingInput;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of sampling fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<SamplingInput, A::Error> {
        let mut input = SamplingInput::default();
        while let Some(name) = object.next_key::<Cow<'de, str>>()? {
            match &*name {
                "seed" => input.seed = object.next_value()?,
                "logit_bias" => input.logit_bias = object.next_value()?,
                "allowed_token_ids" => input.allowed_token_ids = object.next_value()?,
                "logprobs" => input.logprobs = object.next_value()?,
                "prompt_logprobs" => input.prompt_logprobs = object.next_value()?,
                other => {
                    let field = SamplingField::named(other)
                        .ok_or_else(|| A::Error::custom(format!("unknown field `{other}`")))?;
                    if let Some(number) = object.next_value::<Option<Number>>()? {
                        input.plain.push((field, number));
                    }
                }
            }
        }
        Ok(input)
    }
}

#[cfg(test)]
mod tests {
    use ingle_core::SAMPLING_FIELDS;
    use serde_json::json;

    use super::*;

    fn read(document: serde_json::Value) -> Result<SamplingInput, serde_json::Error> {
        serde_json::from_value(document)
    }

    #[test]
    fn every_plain_field_is_read_and_null_is_absent() {
        for field in SAMPLING_FIELDS {
            let input = read(json!({ field.name: 1, "seed": 2 })).unwrap();
            let [(found, number)] = &input.plain[..] else { panic!("{}", field.name) };
            assert_eq!((found.name, number.as_i64()), (field.name, Some(1)));
            assert_eq!(input.seed.and_then(|seed| seed.as_i64()), Some(2));
            assert!(read(json!({ field.name: null })).unwrap().plain.is_empty());
        }
    }

    #[test]
    fn other_names_and_other_types_are_refused() {
        let error = read(json!({ "temprature": 1 })).unwrap_err().to_string();
        assert!(error.contains("temprature"), "{error}");
        assert!(read(json!({ "temperature": "hot" })).is_err());
        assert!(read(json!([])).is_err());
    }
}
