//! `ingle security trace`: the tight filter without its effect. What it would refuse is printed once each
//! and let through. On a thread of its own; a traced process is not locked down and says so.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;

use crate::bpf::compile;
use crate::error::HardeningError;
use crate::policy::{Action, Condition, Policy, Rule, Value};
use crate::sys::{self, Notice};
use crate::syscalls;

/// Puts `policy` on every thread, as a report.
///
/// # Errors
/// `HardeningError::System` if the kernel does not take it.
pub(crate) fn start(policy: Policy) -> Result<(), HardeningError> {
    let (sender, receiver) = mpsc::channel::<OwnedFd>();
    let (is_up, wait) = mpsc::channel::<()>();
    let names = thread_names();
    std::thread::Builder::new()
        .name("ingle-trace".to_owned())
        .spawn(move || {
            let _ = is_up.send(());
            if let Ok(listener) = receiver.recv() {
                follow(&listener, &names);
            }
        })
        .map_err(HardeningError::at("the thread ingle-trace"))?;
    // Its start makes calls that would otherwise wait for the thread itself.
    let _ = wait.recv();
    let program = compile(&policy.traced().with(own_calls()), std::process::id())?;
    let listener =
        sys::filter_and_listen(&program).map_err(HardeningError::at("the traced filter"))?;
    // The thread is there, waiting; if it is not, the first traced call says so by failing.
    let _ = sender.send(listener);
    Ok(())
}

/// What the tracing thread does itself must not wait for the tracing thread.
fn own_calls() -> Policy {
    let is = [libc::SECCOMP_IOCTL_NOTIF_RECV, libc::SECCOMP_IOCTL_NOTIF_SEND];
    let is = is.into_iter().map(|command| Value::Number(command as u32)).collect();
    let rule = Rule {
        why: "the tracer's own".to_owned(),
        calls: vec!["ioctl".to_owned()],
        act: Action::Allow,
        when: vec![Condition { argument: 1, mask: u32::MAX, is }],
    };
    Policy { default: Action::Trace, rules: vec![rule] }
}

/// Names of the threads by number, read while they still can be.
fn thread_names() -> Vec<(u32, String)> {
    let Ok(entries) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let named = entries.flatten().filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        Some((number, name.trim().to_owned()))
    });
    named.collect()
}

fn follow(listener: &OwnedFd, names: &[(u32, String)]) {
    let mut seen = HashSet::new();
    loop {
        let notice = match sys::next_notice(listener.as_fd()) {
            Ok(notice) => notice,
            // A caller that has gone, or a signal. Anything else is the end of the process.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {
                continue;
            }
            Err(_) => return,
        };
        let line = describe(&notice, names);
        if seen.insert(line.clone()) {
            let _ = std::io::stderr().write_all(format!("trace: {line}\n").as_bytes());
        }
        // A caller that has gone needs no answer.
        let _ = sys::let_through(listener.as_fd(), &notice);
    }
}

/// One call, without what differs from one to the next.
fn describe(notice: &Notice, names: &[(u32, String)]) -> String {
    let thread = names.iter().find(|(number, _)| *number == notice.thread);
    let thread = thread.map_or("a new thread", |(_, name)| name.as_str());
    let number = notice.number;
    let call = syscalls::name(number).map_or_else(|| number.to_string(), str::to_owned);
    let [first, second, third, ..] = notice.arguments;
    let detail = match call.as_str() {
        "ioctl" | "fcntl" => format!(", command {second:#x}"),
        "setsockopt" => format!(", level {second}, option {third}"),
        "mmap" | "mprotect" => format!(", rights {third}"),
        "clone" => format!(", flags {first:#x}"),
        "prctl" => format!(", option {first}"),
        _ => String::new(),
    };
    format!("{thread}: {call}{detail}")
}
