//! Refusals that all forms of quantization_config share.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::config::Fields;
use crate::error::{ModelError, shown};

/// Refuses a value that is there and not one of these.
pub(super) fn one_of(
    fields: &Fields<'_>,
    key: &str,
    allowed: &[&str],
    supported: &'static str,
) -> Result<(), ModelError> {
    match fields.string(key)? {
        Some(value) if !allowed.contains(&value) => Err(fields.unsupported(key, value, supported)),
        _ => Ok(()),
    }
}

/// Refuses a field that is neither read nor known to have no effect.
pub(super) fn known(
    fields: &Fields<'_>,
    read: &[&str],
    no_effect: &[&str],
    supported: &'static str,
) -> Result<(), ModelError> {
    for (key, value) in fields.entries() {
        if !read.contains(&key) && !no_effect.contains(&key) {
            let value = shown(&value.to_string());
            return Err(fields.unsupported(key, value, supported));
        }
    }
    Ok(())
}
