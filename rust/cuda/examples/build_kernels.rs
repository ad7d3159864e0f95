//! Writes the kernels that the wheel carries for machines without NVRTC. Needs NVRTC, no GPU.
//!
//! build_kernels FOLDER SITE_PACKAGES

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a build tool, not the engine")]

use std::path::PathBuf;
use std::process::ExitCode;

use ingle_cuda::{LibraryPaths, write_prebuilt_kernels};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).map(PathBuf::from);
    let (Some(folder), Some(site)) = (args.next(), args.next()) else {
        eprintln!("build_kernels FOLDER SITE_PACKAGES");
        return ExitCode::from(2);
    };
    let libraries = LibraryPaths { site_packages: vec![site], ..LibraryPaths::default() };
    let written = std::fs::create_dir_all(&folder)
        .map_err(|error| error.to_string())
        .and_then(|()| write_prebuilt_kernels(&libraries, &folder).map_err(|e| e.to_string()));
    match written {
        Ok(count) => {
            println!("{count} kernels in {}", folder.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
