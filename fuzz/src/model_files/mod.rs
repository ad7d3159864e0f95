//! Malformed checkpoints from a seed, in both formats: what the author of a model file can write.
//!
//! Each case starts from a small checkpoint that loads and breaks it in one way, named by its class.

mod gguf;
mod gguf_cases;
mod safetensors_cases;

use std::path::{Path, PathBuf};

use crate::rng::Rng;

/// One checkpoint, as bytes of files.
#[derive(Debug)]
pub struct Case {
    /// The way in which it is broken.
    pub class: &'static str,
    /// True if no reading of the files can be right, so that they must be refused.
    pub is_hopeless: bool,
    files: Vec<NewFile>,
    /// What is to be opened, relative to the folder.
    opened: &'static str,
}

#[derive(Debug)]
struct NewFile {
    name: String,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// These bytes, then zeros up to a length. The zeros take no disk.
    Bytes(Vec<u8>, u64),
    /// A symbolic link.
    Link(String),
    Folder,
    Fifo,
    /// Not there, although the whole checkpoint has it.
    Absent,
}

impl NewFile {
    fn bytes(name: &str, bytes: Vec<u8>) -> Self {
        let len = bytes.len() as u64;
        Self { name: name.to_owned(), content: Content::Bytes(bytes, len) }
    }

    fn padded(name: &str, bytes: Vec<u8>, len: u64) -> Self {
        Self { name: name.to_owned(), content: Content::Bytes(bytes, len) }
    }

    fn special(name: &str, content: Content) -> Self {
        Self { name: name.to_owned(), content }
    }
}

impl Case {
    /// Writes the files into `folder`, which is made new; gives the path to open.
    pub fn write(&self, folder: &Path) -> PathBuf {
        std::fs::remove_dir_all(folder).ok();
        std::fs::create_dir_all(folder).unwrap();
        for file in &self.files {
            let path = folder.join(&file.name);
            match &file.content {
                Content::Bytes(bytes, len) => {
                    std::fs::write(&path, bytes).unwrap();
                    if *len != bytes.len() as u64 {
                        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                        file.set_len(*len).unwrap();
                    }
                }
                Content::Link(target) => std::os::unix::fs::symlink(target, &path).unwrap(),
                Content::Absent => {}
                Content::Folder => std::fs::create_dir(&path).unwrap(),
                Content::Fifo => {
                    let mode = rustix::fs::Mode::from_raw_mode(0o600);
                    rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
                }
            }
        }
        folder.join(self.opened)
    }
}

/// Makes cases from the golden checkpoint in `folder`.
#[derive(Debug)]
pub struct Generator {
    safetensors: safetensors_cases::Base,
    gguf: gguf::Gguf,
}

impl Generator {
    /// Reads the checkpoint that the cases are made of.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let safetensors = safetensors_cases::Base::read(folder);
        let gguf = gguf::Gguf::tiny(&safetensors.tokenizer);
        Self { safetensors, gguf }
    }

    /// The checkpoint in each format, not broken.
    #[must_use]
    pub fn whole(&self) -> [Case; 2] {
        let gguf = Case {
            class: "whole GGUF",
            is_hopeless: false,
            files: vec![gguf_cases::file(&self.gguf)],
            opened: gguf_cases::NAME,
        };
        [self.safetensors.whole(), gguf]
    }

    /// The header of the whole GGUF file, and how many bytes of weights follow its padding.
    #[must_use]
    pub fn gguf_header(&self) -> (Vec<u8>, u64) {
        let (header, len) = self.gguf.bytes();
        let start = (header.len() as u64).next_multiple_of(32);
        (header, len - start)
    }

    /// The case of a number: classes take turns, the rest comes from the number as a seed.
    #[must_use]
    pub fn case(&self, number: u64) -> Case {
        let mut rng = Rng::new(number);
        let turn = (number / 2) as usize;
        if number.is_multiple_of(2) {
            safetensors_cases::case(&self.safetensors, turn, &mut rng)
        } else {
            gguf_cases::case(&self.gguf, turn, &mut rng)
        }
    }
}
