//! The format of one finding of `ingle doctor`.

use serde_json::{Value, json};

/// What was found, or what is missing and what that costs.
pub(crate) fn or_lack<T: serde::Serialize, E: serde::Serialize>(
    finding: &Result<T, E>,
    cost: &str,
) -> Value {
    match finding {
        Ok(value) => json!(value),
        Err(why) => json!({ "missing": why, "cost": cost }),
    }
}
