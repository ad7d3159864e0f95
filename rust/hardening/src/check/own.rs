//! Probes that are more than one system call.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::sync::mpsc;

use rustix::fs::{Mode, OFlags};
use rustix::process::DumpableBehavior;

use super::probe::{
    NO_LOCK, Place, Probed, Stage, Verdict, code_of, judge, lock, probe_twice, start_in,
};
use crate::begin::Start;
use crate::bpf::compile;
use crate::error::HardeningError;
use crate::omitted::Omitted;
use crate::policies::SERVE;
use crate::sys::{self, Child};

/// One probe: name, stage, what must come of it, what the control leaves out, and the act.
struct Own {
    name: &'static str,
    stage: Stage,
    expect: &'static str,
    omit: &'static str,
    /// Why this kernel cannot show it.
    lack: Option<String>,
    act: fn(&Child, &Place<'_>) -> io::Result<()>,
}

/// Makes them all.
///
/// # Errors
/// `HardeningError::System` if there are no children.
pub(super) fn probe_all(place: &Place<'_>) -> Result<Vec<Probed>, HardeningError> {
    let mut probed = Vec::new();
    for own in probes(place) {
        let run = |child: &Child, omitted: &Omitted| {
            let start = start_in(place.scratch, Vec::new());
            if lock(own.stage, &start, omitted).is_err() {
                return NO_LOCK;
            }
            code_of(&(own.act)(child, place))
        };
        let omitted = Omitted::Layer(own.omit.to_owned());
        let result = own.lack.is_none().then(|| probe_twice(run, &omitted)).transpose()?;
        probed.push(report(own.name, own.stage, own.expect, own.lack, result));
    }
    probed.push(code(place)?);
    for (name, expect, act) in BY_NAMESPACE {
        probed.push(by_namespace(name, expect, *act, place)?);
    }
    for (name, is_late) in
        [("open from a thread of before", false), ("open from a late thread", true)]
    {
        probed.push(from_thread(name, is_late, place)?);
    }
    Ok(probed)
}

fn probes(place: &Place<'_>) -> Vec<Own> {
    let is_x86 = cfg!(target_arch = "x86_64");
    let lack = |has: bool, why: &str| (!has).then(|| why.to_owned());
    vec![
        Own {
            name: "make a call as x32 programs do",
            stage: Stage::Confined,
            expect: "killed",
            omit: "filters",
            lack: lack(is_x86, "x86-64 only"),
            act: |child, _| sys::call(child, 0x4000_0000 | libc::SYS_getpid, &mut []).map(|_| ()),
        },
        Own {
            name: "make a call as 32-bit programs do",
            stage: Stage::Confined,
            expect: "killed",
            omit: "filters",
            lack: lack(is_x86, "x86-64 only"),
            act: |child, _| as_32_bit(child),
        },
        Own {
            name: "be readable to other processes",
            stage: Stage::Confined,
            expect: "EACCES",
            omit: "memory",
            lack: None,
            act: |_, _| match rustix::process::dumpable_behavior()? {
                DumpableBehavior::NotDumpable => Err(io::Error::from_raw_os_error(libc::EACCES)),
                _ => Ok(()),
            },
        },
        Own {
            name: "make a file that others can read",
            stage: Stage::Confined,
            expect: "EACCES",
            omit: "umask",
            lack: None,
            act: |_, place| open_mode(place),
        },
        Own {
            name: "connect to an abstract socket outside",
            stage: Stage::Confined,
            expect: "EPERM",
            omit: "files",
            lack: lack(place.landlock >= 6, "needs landlock 6"),
            act: |_, place| {
                let address = abstract_address(place.scratch)?;
                UnixStream::connect_addr(&address).map(|_| ())
            },
        },
    ]
}

#[cfg(target_arch = "x86_64")]
fn as_32_bit(child: &Child) -> io::Result<()> {
    sys::call_as_32_bit(child)
}

#[cfg(not(target_arch = "x86_64"))]
fn as_32_bit(_: &Child) -> io::Result<()> {
    Ok(())
}

/// Makes a file for all, and looks whether it is one.
fn open_mode(place: &Place<'_>) -> io::Result<()> {
    let path = place.scratch.join(format!("writable/mode-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o666).open(path)?;
    let mode = file.metadata()?.permissions().mode();
    if mode & 0o077 == 0 { Err(io::Error::from_raw_os_error(libc::EACCES)) } else { Ok(()) }
}

/// The address at which the checking process listens: its folder's name, so that two do not meet.
pub(super) fn abstract_address(scratch: &Path) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(scratch.as_os_str().as_encoded_bytes())
}

/// What PR_SET_MDWE refuses by itself: the filter, which refuses it too, is left out on both sides.
fn code(place: &Place<'_>) -> Result<Probed, HardeningError> {
    let run = |child: &Child, omitted: &Omitted| {
        let start = start_in(place.scratch, Vec::new());
        let filters = Omitted::Layer("filters".to_owned());
        let stage = if *omitted == Omitted::Nothing { Stage::Serve } else { Stage::Confined };
        if lock(stage, &start, &filters).is_err() {
            return NO_LOCK;
        }
        code_of(&sys::gain_code(child))
    };
    let result = probe_twice(run, &Omitted::Layer("code".to_owned()))?;
    let name = "make memory executable without a filter";
    let lacks = result.0 == "ok";
    let lack = lacks.then(|| "needs Linux 6.3 (PR_SET_MDWE)".to_owned());
    Ok(report(name, Stage::Serve, "EACCES", lack, Some(result)))
}

type Act = fn(&Place<'_>) -> io::Result<()>;

/// What a namespace refuses where it stands in for Landlock: name, what must come of it, and the act.
const BY_NAMESPACE: &[(&str, &str, Act)] = &[
    ("read a file of another folder, by namespace", "ENOENT", |place| {
        std::fs::File::open(place.scratch.join("secret")).map(drop)
    }),
    ("write a file that may be read, by namespace", "EROFS", |place| {
        std::fs::OpenOptions::new().write(true).open(place.scratch.join("readable/file")).map(drop)
    }),
    ("make a file at the root, by namespace", "EROFS", |place| {
        std::fs::File::create(place.scratch.join("made")).map(drop)
    }),
];

fn by_namespace(
    name: &str,
    expect: &str,
    act: Act,
    place: &Place<'_>,
) -> Result<Probed, HardeningError> {
    let run = |_: &Child, omitted: &Omitted| {
        let start = Start { by_namespace: true, ..start_in(place.scratch, Vec::new()) };
        if lock(Stage::Confined, &start, omitted).is_err() {
            return NO_LOCK;
        }
        code_of(&act(place))
    };
    let lack = (!place.has_namespaces).then(|| "users have no namespaces here".to_owned());
    let omitted = Omitted::Layer("files".to_owned());
    let result = lack.is_none().then(|| probe_twice(run, &omitted)).transpose()?;
    Ok(report(name, Stage::Confined, expect, lack, result))
}

/// A thread that was there before the tight filter, which must be under it; the control's filter is for one
/// thread. And one that is started under the first half, which must be confined.
fn from_thread(name: &str, is_late: bool, place: &Place<'_>) -> Result<Probed, HardeningError> {
    let secret = place.scratch.join("secret");
    let run = |child: &Child, omitted: &Omitted| {
        let start = start_in(place.scratch, Vec::new());
        let layer = Omitted::Layer(if is_late { "files" } else { "none" }.to_owned());
        let first = if is_late { omitted } else { &layer };
        if lock(Stage::Confined, &start, first).is_err() {
            return NO_LOCK;
        }
        let (sender, receiver) = mpsc::channel::<()>();
        let (is_up, wait) = mpsc::channel::<()>();
        let path = if is_late { secret.clone() } else { "/usr".into() };
        let sibling = std::thread::spawn(move || {
            let _ = is_up.send(());
            let _ = receiver.recv();
            rustix::fs::open(&path, OFlags::RDONLY, Mode::empty()).map(drop)
        });
        let _ = wait.recv();
        if !is_late {
            let Ok(program) = SERVE.policy().and_then(|policy| compile(&policy, 1)) else {
                return NO_LOCK;
            };
            let put_on = match omitted {
                Omitted::Nothing => sys::filter_all_threads(&program),
                _ => sys::filter_this_thread(child, &program),
            };
            if put_on.is_err() {
                return NO_LOCK;
            }
        }
        drop(sender);
        match sibling.join() {
            Ok(result) => code_of(&result.map_err(io::Error::from)),
            Err(_) => NO_LOCK,
        }
    };
    let result = probe_twice(run, &Omitted::Layer("files".to_owned()))?;
    let expect = match (is_late, place.landlock) {
        (false, _) => "EPERM",
        (true, 0) => "ENOENT",
        (true, _) => "EACCES",
    };
    let lack = (is_late && !place.confines_files).then(|| "files are not confined here".to_owned());
    let stage = if is_late { Stage::Confined } else { Stage::Serve };
    Ok(report(name, stage, expect, lack, Some(result)))
}

fn report(
    name: &str,
    stage: Stage,
    expect: &str,
    lack: Option<String>,
    result: Option<(String, String)>,
) -> Probed {
    let expected = vec![expect.to_owned()];
    let (found, control) = result.unwrap_or_default();
    let (verdict, why) = match lack {
        Some(why) => (Verdict::NotProbed, why),
        None => judge(&expected, None, &found, &control),
    };
    Probed {
        name: name.to_owned(),
        call: String::new(),
        stage: stage.name(),
        expected,
        found,
        control,
        verdict,
        why,
    }
}
