//! Files: opened once, read with pread, never mapped. Any thread.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::WeightSource;
use crate::error::ModelError;

/// An open regular file with the name that messages use.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) name: String,
    pub(crate) len: u64,
    file: File,
}

impl OpenFile {
    /// Opens a regular file. A FIFO, a device or a folder is an error and is never opened, since
    /// opening a FIFO can block for ever.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let name = path.display().to_string();
        let io = |action, cause| ModelError::io(&name, action, cause);
        if !std::fs::metadata(path).map_err(|e| io("open", e))?.is_file() {
            return Err(ModelError::malformed(&name, "not a regular file"));
        }
        let file = File::open(path).map_err(|e| io("open", e))?;
        let metadata = file.metadata().map_err(|e| io("stat", e))?;
        if !metadata.is_file() {
            return Err(ModelError::malformed(&name, "not a regular file"));
        }
        Ok(Self { name, len: metadata.len(), file })
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
        self.file.read_exact_at(buffer, offset).map_err(|cause| {
            if cause.kind() == io::ErrorKind::UnexpectedEof {
                let len = buffer.len();
                let name = &self.name;
                let text = format!("{name} became shorter: no {len} bytes at offset {offset}");
                io::Error::new(io::ErrorKind::UnexpectedEof, text)
            } else {
                cause
            }
        })
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
