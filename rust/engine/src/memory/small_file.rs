//! Files of the kernel that say one thing, read again and again.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// What the file says now; empty if it cannot be read.
pub(super) fn read(file: &File) -> String {
    let mut bytes = [0; 8 << 10];
    let length = file.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}
