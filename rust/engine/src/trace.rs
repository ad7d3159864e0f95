//! [1] The W3C trace that a request belongs to. Any thread.

use std::fmt;

use crate::error::EngineError;
use crate::wire::TraceInput;

/// A W3C trace id: not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId(pub(crate) u128);

impl fmt::Display for TraceId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

/// What a request says of its trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace {
    pub(crate) id: TraceId,
    /// Whether the caller wants `Times`.
    pub(crate) report: bool,
}

impl Trace {
    /// # Errors
    /// `EngineError::Refused` if the id is not 32 lower-case hex digits, or zero.
    pub(crate) fn new(input: &TraceInput) -> Result<Self, EngineError> {
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let digits = &input.id;
        let id = (digits.len() == 32 && digits.bytes().all(is_hex))
            .then(|| u128::from_str_radix(digits, 16).ok())
            .flatten()
            .filter(|id| *id != 0);
        let id = id.ok_or_else(|| {
            EngineError::refused("trace", "trace.id: must be 32 hex digits, and not all zero")
        })?;
        Ok(Self { id: TraceId(id), report: input.report })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_only_the_id_of_a_trace_is_taken() {
        let of = |id: &str| Trace::new(&TraceInput { id: id.into(), report: false });
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(of(id).unwrap().id.to_string(), id);
        assert_eq!(of(&format!("{:032x}", 10)).unwrap().id.to_string(), format!("{:032x}", 10));
        let signed = format!("+{}", &id[1..]);
        for wrong in ["", &id[1..], &id.to_uppercase(), &signed, &"0".repeat(32)] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
