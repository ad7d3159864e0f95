//! Writes kernels/contract.cuh from rust/cuda/src/contract/mod.rs. Needs no GPU.

#![allow(clippy::print_stderr, reason = "a build tool, not the engine")]

use std::process::ExitCode;

fn main() -> ExitCode {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/contract.cuh");
    match std::fs::write(path, ingle_cuda::contract_header()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{path}: {error}");
            ExitCode::FAILURE
        }
    }
}
