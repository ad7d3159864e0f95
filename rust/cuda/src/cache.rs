//! Files that a restart reuses: compiled kernels and measured algorithms. At load only.
//!
//! A compiled kernel is code. The folder therefore belongs to this user alone (0700). Each file
//! contains a hash of its content, is written under another name and then renamed, and is checked
//! before use.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::CudaError;

/// A folder of files named by the hash of what they were made from.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    next_temporary: AtomicU64,
    lack: Arc<Lack>,
}

/// Why something could not be kept, the first time; for the operator.
pub(crate) type Lack = OnceLock<String>;

impl Cache {
    /// Makes the folder if needed. What cannot be written to it later is noted in `lack`.
    ///
    /// # Errors
    /// If it cannot be made, belongs to another user or can be written by others.
    pub(crate) fn open(folder: &Path, lack: &Arc<Lack>) -> Result<Self, CudaError> {
        let io = |what: String| move |source| CudaError::Io { what, source };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(io(format!("cache folder {}", folder.display())))?;
        let metadata =
            std::fs::metadata(folder).map_err(io(format!("cache folder {}", folder.display())))?;
        // The owner of /proc/self would not do: it is root for a process that may not dump core.
        let own = rustix::process::geteuid().as_raw();
        if metadata.uid() != own || metadata.mode() & 0o022 != 0 {
            return Err(CudaError::Unsupported(format!(
                "cache folder {}: owner {} mode {:o}, must have owner {} and no other user may write to it",
                folder.display(),
                metadata.uid(),
                metadata.mode() & 0o777,
                own
            )));
        }
        let (folder, lack) = (folder.to_owned(), Arc::clone(lack));
        Ok(Self { folder, next_temporary: AtomicU64::new(0), lack })
    }

    /// The content stored under the key, if its hash is right.
    pub(crate) fn read(&self, key: &str) -> Option<Vec<u8>> {
        let mut bytes = std::fs::read(self.folder.join(key)).ok()?;
        let (hash, content) = bytes.split_at_checked(HASH_BYTES)?;
        if blake3::hash(content).as_bytes() != hash {
            return None;
        }
        bytes.drain(..HASH_BYTES);
        Some(bytes)
    }

    /// Stores the content under the key. A failure (a full disk) is noted and costs only the next
    /// start's time.
    pub(crate) fn write(&self, key: &str, content: &[u8]) {
        let number = self.next_temporary.fetch_add(1, Ordering::Relaxed);
        let temporary = self.folder.join(format!("{key}.{}.{number}.tmp", std::process::id()));
        let written = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| {
                file.write_all(blake3::hash(content).as_bytes())?;
                file.write_all(content)
            })
            .and_then(|()| std::fs::rename(&temporary, self.folder.join(key)));
        if let Err(error) = written {
            let _ = std::fs::remove_file(&temporary);
            let _ = self.lack.set(format!("cache folder {}: {error}", self.folder.display()));
        }
    }
}

/// The key of a content made from these parts; no two lists of parts give the same bytes to hash.
pub(crate) fn key(kind: &str, parts: &[&[u8]]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(kind.as_bytes());
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    format!("{kind}-{}", &hasher.finalize().to_hex()[..40])
}

const HASH_BYTES: usize = blake3::OUT_LEN;

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("ingle-cache-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    fn open(folder: &Path) -> Result<Cache, CudaError> {
        Cache::open(folder, &Arc::default())
    }

    #[test]
    fn content_comes_back_and_a_changed_byte_is_a_miss() {
        let folder = folder("change");
        let cache = open(&folder).unwrap();
        let key = key("cubin", &[b"source", b"options"]);
        assert_eq!(cache.read(&key), None);
        cache.write(&key, b"code");
        assert_eq!(cache.read(&key).unwrap(), b"code");
        let mut bytes = std::fs::read(folder.join(&key)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(folder.join(&key), bytes).unwrap();
        assert_eq!(cache.read(&key), None);
        std::fs::write(folder.join(&key), b"short").unwrap();
        assert_eq!(cache.read(&key), None);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_write_that_fails_leaves_nothing_behind() {
        let folder = folder("fails");
        let cache = open(&folder).unwrap();
        // What is written cannot take the key's place; and then not even the folder is there.
        std::fs::create_dir(folder.join("taken")).unwrap();
        assert_eq!(cache.lack.get(), None);
        cache.write("taken", b"code");
        assert_eq!(cache.read("taken"), None);
        assert!(cache.lack.get().is_some_and(|reason| reason.contains("directory")));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "a temporary file is left");
        std::fs::remove_dir_all(&folder).unwrap();
        cache.write("key", b"code");
        assert_eq!(cache.read("key"), None);
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = folder("mode");
        open(&folder).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(open(&folder).unwrap_err().to_string().contains("mode 770"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn keys_of_shifted_parts_differ() {
        assert_ne!(key("x", &[b"ab", b"c"]), key("x", &[b"a", b"bc"]));
    }
}
