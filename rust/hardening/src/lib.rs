//! Locks the process down: what a worker that has been taken over could still do.
//!
//! In two halves. `shed` and `confine` run while there is one thread; `finish` runs when the worker is
//! ready, covers every thread and proves that it does. The rules are data, in security/policy. Nothing here
//! can be undone, and nothing is undone on an error: the process must then end.
#![deny(unsafe_code)]

mod begin;
mod bpf;
mod check;
mod error;
mod finish;
mod landlock;
mod namespace;
mod omitted;
mod policies;
mod policy;
mod proof;
mod report;
mod surroundings;
mod survey;
mod sys;
mod syscalls;
mod trace;

pub use begin::{Start, confine, confine_keeper, shed};
pub use check::{Checked, Probed, Verdict, security_check};
pub use error::HardeningError;
pub use finish::{Readiness, end_recording, finish, finish_exporter};
pub use report::{Layer, Report};
pub use survey::survey;

/// Names the calling thread for the system, which keeps the first 15 bytes.
pub fn name_thread(name: &str) {
    // A name with a zero in it names nothing; a thread without a name works.
    if let Ok(name) = std::ffi::CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}

/// Gives memory that nothing uses back to the system, which the allocator keeps otherwise. Milliseconds.
pub fn give_back_memory() {
    sys::trim_heap();
}

/// Patterns of the environment variables that a worker keeps; `*` ends a prefix.
///
/// # Errors
/// `HardeningError::Policy` if process.toml is wrong.
pub fn kept_variables() -> Result<Vec<String>, HardeningError> {
    Ok(surroundings::Surroundings::read()?.environment)
}
