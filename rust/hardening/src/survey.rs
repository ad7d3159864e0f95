//! What this machine offers to the lock-down, for `ingle doctor`. The process must have one thread.

use serde_json::{Value, json};

use crate::landlock::Places;
use crate::namespace;
use crate::sys::{self, Ended};

/// Findings by name: a value, or what is missing and what that costs.
#[must_use]
pub fn survey() -> Value {
    let landlock = sys::landlock_version();
    let has_namespaces = has_namespaces();
    let files_cost = if landlock.is_ok() || has_namespaces {
        "none: files are confined by the other of the two"
    } else {
        "until it is ready, the worker can open what its user can; --hardening strict does not start"
    };
    let landlock = landlock.map_err(|error| format!("not active in this kernel ({error})"));
    let user = if rustix::process::getuid().is_root() {
        Err("this is root; a server needs --user, or another user".to_owned())
    } else {
        Ok(rustix::process::getuid().as_raw())
    };
    json!({
        "landlock": finding(landlock, files_cost),
        "namespaces": finding(
            has_namespaces.then_some(true).ok_or("this user gets none".to_owned()),
            files_cost,
        ),
        "seccomp": finding(
            sys::has_seccomp().map(|()| true).map_err(|error| format!("not in this kernel ({error})")),
            "the worker keeps all system calls; --hardening strict does not start",
        ),
        "no_new_code": finding(
            sys::knows_new_code().map(|()| true).map_err(|error| format!("no PR_SET_MDWE ({error})")),
            "none: the filter refuses executable memory by itself",
        ),
        "user": finding(user, "the worker stays root, without capabilities; --hardening strict does not start"),
    })
}

fn finding<T: serde::Serialize>(found: Result<T, String>, cost: &str) -> Value {
    match found {
        Ok(value) => json!(value),
        Err(missing) => json!({ "missing": missing, "cost": cost }),
    }
}

/// Whether a child could confine its files by a namespace.
fn has_namespaces() -> bool {
    let places = Places { read: vec!["/usr".into()], write: Vec::new(), connect: Vec::new() };
    let ended = sys::in_child(|_| u8::from(namespace::confine(&places).is_err()));
    matches!(ended, Ok(Ended::Exited(0)))
}
