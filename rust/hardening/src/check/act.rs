//! Builds the arguments of a probe, and opens before the lock-down what it needs open.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::path::Path;

use rustix::net::{AddressFamily, SocketType, socket};
use serde::Deserialize;

use crate::error::HardeningError;
use crate::sys::Argument;

/// One argument as probes.toml states it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Part {
    Number(i64),
    Text(String),
    Buffer { buffer: usize },
    Bytes { bytes: Vec<u8> },
    Descriptor { fd: Opened },
    Process { pid: Who },
}

/// A descriptor that was opened before.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Opened {
    /// A TCP socket that is neither bound nor connected.
    Tcp,
    /// A UDP socket.
    Udp,
    /// A file that is open to read and write.
    File,
    /// A folder.
    Folder,
    /// A descriptor that is not in the list that the lock-down keeps.
    Forgotten,
    /// The control device of NVIDIA's driver.
    Nvidia,
}

/// A process.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Who {
    /// The child that makes the call.
    #[serde(rename = "self")]
    Own,
    /// The process that has started it.
    Parent,
}

/// Everything that a probe may find open.
#[derive(Debug)]
pub(super) struct Prepared {
    tcp: OwnedFd,
    udp: OwnedFd,
    file: OwnedFd,
    folder: OwnedFd,
    forgotten: OwnedFd,
    /// The TCP socket, where there is no such device.
    nvidia: OwnedFd,
}

impl Prepared {
    /// Opens it all.
    ///
    /// # Errors
    /// `HardeningError::System`.
    pub(super) fn new(scratch: &Path) -> Result<Self, HardeningError> {
        let at = |name: &'static str| HardeningError::at::<std::io::Error>(name);
        let of = |kind| {
            socket(AddressFamily::INET, kind, None).map_err(|error| at("a socket")(error.into()))
        };
        let file = scratch.join("writable/file");
        let file = OpenOptions::new().read(true).write(true).open(file).map_err(at("a file"))?;
        Ok(Self {
            tcp: of(SocketType::STREAM)?,
            udp: of(SocketType::DGRAM)?,
            file: file.into(),
            nvidia: match OpenOptions::new().read(true).write(true).open(NVIDIA) {
                Ok(device) => device.into(),
                Err(_) => of(SocketType::STREAM)?,
            },
            folder: File::open(scratch.join("readable")).map_err(at("a folder"))?.into(),
            forgotten: File::open(scratch.join("forgotten")).map_err(at("a file"))?.into(),
        })
    }

    /// The descriptors that the lock-down keeps.
    pub(super) fn kept(&self) -> [BorrowedFd<'_>; 5] {
        [&self.tcp, &self.udp, &self.file, &self.folder, &self.nvidia].map(AsFd::as_fd)
    }

    /// Lets go of all without closing: the lock-down has closed one of them, and the process ends.
    pub(super) fn leave(self) {
        for fd in [self.tcp, self.udp, self.file, self.folder, self.forgotten, self.nvidia] {
            let _ = fd.into_raw_fd();
        }
    }

    fn number(&self, opened: Opened) -> i64 {
        let fd = match opened {
            Opened::Tcp => &self.tcp,
            Opened::Udp => &self.udp,
            Opened::File => &self.file,
            Opened::Folder => &self.folder,
            Opened::Forgotten => &self.forgotten,
            Opened::Nvidia => &self.nvidia,
        };
        i64::from(fd.as_raw_fd())
    }
}

/// Whether the control device of NVIDIA's driver can be opened.
pub(super) fn has_nvidia() -> bool {
    OpenOptions::new().read(true).write(true).open(NVIDIA).is_ok()
}

const NVIDIA: &str = "/dev/nvidiactl";

/// Makes the folder of the probes what they expect.
///
/// # Errors
/// `HardeningError::System`.
pub(super) fn fill(scratch: &Path) -> Result<(), HardeningError> {
    let at = || HardeningError::at("the probes' folder");
    for folder in ["readable", "writable"] {
        let folder = scratch.join(folder);
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(at())?;
        }
        fs::create_dir(&folder).map_err(at())?;
        fs::write(folder.join("file"), "x").map_err(at())?;
    }
    for name in ["secret", "forgotten"] {
        fs::write(scratch.join(name), "x").map_err(at())?;
    }
    Ok(())
}

/// The arguments of one call. `parent` is the number of the process that has started this one.
pub(super) fn arguments(
    parts: &[Part],
    prepared: &Prepared,
    scratch: &Path,
    parent: u32,
) -> Vec<Argument> {
    let argument = |part: &Part| match part {
        Part::Number(number) => Argument::Number(*number),
        Part::Text(text) => {
            let text = text.replace("{scratch}", &scratch.to_string_lossy());
            Argument::Memory([text.as_bytes(), &[0]].concat())
        }
        Part::Buffer { buffer } => Argument::Memory(vec![0; *buffer]),
        Part::Bytes { bytes } => Argument::Memory(bytes.clone()),
        Part::Descriptor { fd } => Argument::Number(prepared.number(*fd)),
        Part::Process { pid: Who::Own } => Argument::Number(i64::from(std::process::id())),
        Part::Process { pid: Who::Parent } => Argument::Number(i64::from(parent)),
    };
    parts.iter().map(argument).collect()
}
