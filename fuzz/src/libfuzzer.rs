//! Runs a target for libFuzzer, which chooses the inputs and counts the code that they reach.

use std::cell::RefCell;
use std::path::Path;

use crate::driver::Target;
use crate::targets;

thread_local! {
    /// Made with the first input; libFuzzer calls from one thread.
    static TARGET: RefCell<Option<Box<dyn Target>>> = const { RefCell::new(None) };
}

/// Runs the target of this name with one input.
///
/// # Panics
/// On a finding.
pub fn run(name: &str, input: &[u8]) {
    TARGET.with_borrow_mut(|target| {
        let target = target.get_or_insert_with(|| made(name));
        if input.len() <= target.max_len() {
            target.run(input);
        }
    });
}

fn made(name: &str) -> Box<dyn Target> {
    let scratch = std::env::temp_dir().join(format!("ingle-libfuzzer-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let all = targets::all(&root, &scratch);
    all.into_iter().find(|target| target.name() == name).unwrap()
}
