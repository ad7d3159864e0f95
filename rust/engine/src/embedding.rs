//! [7] [8] Embeddings: checks of their requests, and the response body. The checks run on the caller's
//! thread, the rest on the engine thread.

use ingle_core::Pooling;
use ingle_model::PoolingKind;

use crate::error::EngineError;
use crate::json::{integer_into, string_into};
use crate::outbox::Usage;
use crate::served::Served;
use crate::wire::{GenerationRequest, OutputFormat, PoolingInput};

/// The answer of one client request: a vector for each prompt.
#[derive(Debug)]
pub(crate) struct Embeddings {
    model: String,
    base64: bool,
    /// Vectors are scaled to length 1.
    normalise: bool,
    /// By choice; empty until its prompt is computed.
    vectors: Vec<Vec<f32>>,
}

impl Embeddings {
    pub(crate) fn new(model: &str, base64: bool, normalise: bool) -> Self {
        Self { model: model.to_owned(), base64, normalise, vectors: Vec::new() }
    }

    /// Takes the pooled state of one choice.
    pub(crate) fn take(&mut self, choice: usize, mut values: Vec<f32>) {
        if self.normalise {
            normalise(&mut values);
        }
        if self.vectors.len() <= choice {
            self.vectors.resize(choice + 1, Vec::new());
        }
        self.vectors[choice] = values;
    }

    /// The whole body, once every choice has its vector.
    pub(crate) fn body(&self, usage: Usage) -> Vec<u8> {
        let values: usize = self.vectors.iter().map(Vec::len).sum();
        let mut out = Vec::with_capacity(256 + self.vectors.len() * 64 + values * 12);
        out.extend_from_slice(b"{\"object\":\"list\",\"data\":[");
        for (index, values) in self.vectors.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(b"{\"object\":\"embedding\",\"index\":");
            integer_into(&mut out, index as u64);
            out.extend_from_slice(b",\"embedding\":");
            if self.base64 {
                base64_into(&mut out, values);
            } else {
                floats_into(&mut out, values);
            }
            out.push(b'}');
        }
        out.extend_from_slice(b"],\"model\":");
        string_into(&mut out, &self.model);
        out.extend_from_slice(b",\"usage\":{\"prompt_tokens\":");
        integer_into(&mut out, usage.prompt_tokens);
        out.extend_from_slice(b",\"total_tokens\":");
        integer_into(&mut out, usage.prompt_tokens);
        out.extend_from_slice(b"}}");
        out
    }
}

/// How the request wants its prompts pooled; `None` if it wants text, which not every model generates.
pub(crate) fn pooling(
    request: &GenerationRequest,
    served: &Served,
) -> Result<Option<Pooling>, EngineError> {
    let output = &request.output;
    if output.format != OutputFormat::Embedding {
        if let Some(reason) = served.embeds_only {
            let name = &served.name;
            let message =
                format!("model: {name} makes embeddings only ({reason}); use /v1/embeddings");
            return Err(EngineError::refused("model", message));
        }
        return match output.pooling {
            None => Ok(None),
            Some(_) => Err(EngineError::refused("pooling", "pooling: only allowed for embeddings")),
        };
    }
    for (param, is_asked) in [
        ("n", request.n != 1),
        ("stream", output.stream),
        ("echo", output.echo),
        ("logprobs", request.sampling.logprobs.is_some()),
        ("max_tokens", request.max_tokens.is_some()),
    ] {
        if is_asked {
            return Err(EngineError::refused(
                param,
                format!("{param}: not allowed for embeddings, which have no answer"),
            ));
        }
    }
    Ok(Some(match output.pooling {
        Some(PoolingInput::Mean) => Pooling::Mean,
        Some(PoolingInput::Last) => Pooling::Last,
        None => match served.embedding.pooling {
            PoolingKind::Last => Pooling::Last,
            PoolingKind::Mean => Pooling::Mean,
        },
    }))
}

/// Scales to length 1; a vector of zeros stays.
fn normalise(values: &mut [f32]) {
    let length = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt();
    if length > 0.0 {
        for value in values {
            *value = (f64::from(*value) / length) as f32;
        }
    }
}

/// The shortest decimals that read back as the same numbers. Never fails: nothing can go wrong when
/// finite numbers are written to memory, and the executors end requests that are not finite.
fn floats_into(out: &mut Vec<u8>, values: &[f32]) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, values).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"[]");
    }
}

/// Little-endian f32, as OpenAI's clients unpack them (RFC 4648, padded).
fn base64_into(out: &mut Vec<u8>, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    out.push(b'"');
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, &byte| (bits << 8) | u32::from(byte))
            << (8 * (3 - group.len()));
        for place in 0..4 {
            out.push(match place <= group.len() {
                true => ALPHABET[(bits >> (18 - 6 * place)) as usize & 63],
                false => b'=',
            });
        }
    }
    out.push(b'"');
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn test_base64_of_known_numbers() {
        // Python: base64.b64encode(struct.pack("<2f", 1.0, -0.5))
        assert_eq!(text(|out| base64_into(out, &[1.0, -0.5])), "\"AACAPwAAAL8=\"");
        assert_eq!(text(|out| base64_into(out, &[1.0])), "\"AACAPw==\"");
        assert_eq!(text(|out| base64_into(out, &[0.1, 2.0, 3.5])), "\"zczMPQAAAEAAAGBA\"");
        assert_eq!(text(|out| base64_into(out, &[])), "\"\"");
    }

    #[test]
    fn test_floats_read_back_exactly() {
        let values = [0.1_f32, -1.5e-20, 1.0, f32::MIN_POSITIVE, 0.333_333_34];
        let read: Vec<f32> = serde_json::from_str(&text(|out| floats_into(out, &values))).unwrap();
        assert_eq!(read, values);
    }

    #[test]
    fn test_vectors_have_length_1() {
        let mut values = vec![3.0, 4.0];
        normalise(&mut values);
        assert_eq!(values, [0.6, 0.8]);
        let mut large = vec![f32::MAX; 4];
        normalise(&mut large);
        assert_eq!(large, [0.5; 4]);
        let mut zeros = vec![0.0; 3];
        normalise(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
    }
}
