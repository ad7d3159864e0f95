//! Files, opened once and read with pread, never mapped. Any thread.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::WeightSource;
use crate::error::ModelError;

/// An open regular file with the name that messages use.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) name: String,
    pub(crate) len: u64,
    file: File,
    /// When it was last written, as of its opening.
    written: Written,
}

/// Seconds and nanoseconds.
type Written = (i64, u64);

impl OpenFile {
    /// Opens a regular file; anything else is an error. Does not block on a FIFO.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let name = path.display().to_string();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(|cause| ModelError::io(&name, "open", cause))?;
        let metadata = file.metadata().map_err(|cause| ModelError::io(&name, "stat", cause))?;
        if !metadata.is_file() {
            return Err(ModelError::malformed(&name, "not a regular file"));
        }
        let (len, written) =
            Self::look(&file).map_err(|cause| ModelError::io(&name, "stat", cause))?;
        Ok(Self { name, len, file, written })
    }

    /// Length and time of the last write. fstat, which a locked worker may call, as `File::metadata` may not.
    fn look(file: &File) -> io::Result<(u64, Written)> {
        let stat = rustix::fs::fstat(file)?;
        Ok((u64::try_from(stat.st_size).unwrap_or(0), (stat.st_mtime, stat.st_mtime_nsec)))
    }

    /// Weights are read long after the file was opened and checked, by models that come back into memory: what was
    /// written in place meanwhile may be another model, whose answers nobody would know for wrong.
    fn check_unchanged(&self) -> io::Result<()> {
        let (_, written) = Self::look(&self.file)?;
        if written == self.written {
            return Ok(());
        }
        let text = format!("{} was written to since it was opened; restart to load it", self.name);
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    }

    /// The whole of a small file.
    pub(crate) fn read_all(&self, limit: u64) -> Result<Vec<u8>, ModelError> {
        if self.len > limit {
            return Err(ModelError::limit(&self.name, "size in bytes", self.len, limit));
        }
        let len = usize::try_from(self.len)
            .map_err(|_| ModelError::limit(&self.name, "size in bytes", self.len, limit))?;
        let mut bytes = vec![0; len];
        self.read_exact_at(0, &mut bytes)
            .map_err(|cause| ModelError::io(&self.name, "read", cause))?;
        Ok(bytes)
    }
}

/// Random access to bytes: a file, or a slice in tests.
pub(crate) trait ReadAt {
    /// Fills `buffer` from byte `offset`, or fails.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl ReadAt for OpenFile {
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let read = self.file.read_exact_at(buffer, offset);
        read.map_err(|cause| {
            if cause.kind() == io::ErrorKind::UnexpectedEof {
                let len = buffer.len();
                let name = &self.name;
                let text = format!("{name} became shorter: no {len} bytes at offset {offset}");
                io::Error::new(io::ErrorKind::UnexpectedEof, text)
            } else {
                cause
            }
        })?;
        // After the read, so that these bytes are from before any write.
        self.check_unchanged()
    }
}

/// The files of a checkpoint.
#[derive(Debug)]
pub(crate) struct FileSource {
    files: Vec<OpenFile>,
}

impl FileSource {
    pub(crate) fn new(files: Vec<OpenFile>) -> Self {
        Self { files }
    }
}

/// Whether two ranges of the same length, each a file's number and an offset, hold the same bytes.
///
/// # Errors
/// The first failed read.
pub(crate) fn same_bytes(
    source: &FileSource,
    (a, a_offset): (usize, u64),
    (b, b_offset): (usize, u64),
    byte_len: u64,
) -> io::Result<bool> {
    let mut left = vec![0; COMPARED_BYTES];
    let mut right = vec![0; COMPARED_BYTES];
    let mut done: u64 = 0;
    while done < byte_len {
        let rest = usize::try_from(byte_len.saturating_sub(done)).unwrap_or(COMPARED_BYTES);
        let len = rest.min(COMPARED_BYTES);
        let (Some(left), Some(right)) = (left.get_mut(..len), right.get_mut(..len)) else { break };
        source.read_at(a, a_offset.saturating_add(done), left)?;
        source.read_at(b, b_offset.saturating_add(done), right)?;
        if left != right {
            return Ok(false);
        }
        done = done.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
    }
    Ok(true)
}

/// Bytes that are compared at once.
const COMPARED_BYTES: usize = 4 << 20;

impl WeightSource for FileSource {
    fn read_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        match self.files.get(file) {
            Some(file) => file.read_exact_at(offset, buffer),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("no file number {file} in this checkpoint"),
            )),
        }
    }
}

#[cfg(test)]
impl ReadAt for [u8] {
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(buffer.len());
        match self.get(start..end) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }
}
