//! Compiles a policy to the kernel's filter language (classic BPF on `seccomp_data`). Pure.
//!
//! The program refuses foreign architectures and x32 first. Calls with conditions come next, because the
//! kernel answers the others from a bitmap and never runs the program for them (since Linux 5.11).

use libc::sock_filter;

use crate::error::HardeningError;
use crate::policy::{Action, Condition, Known, Policy, Rule, Value};

/// The filter of `policy`. `pid` is what `"self"` means in it.
///
/// # Errors
/// `HardeningError::TooLong` if the kernel would not take it.
pub(crate) fn compile(policy: &Policy, pid: u32) -> Result<Vec<sock_filter>, HardeningError> {
    let mut plain = Vec::new();
    let mut program = vec![
        load(ARCHITECTURE_OFFSET),
        jump_if_equal(ARCHITECTURE, 1, 0),
        answer(Action::Kill),
        load(NUMBER_OFFSET),
    ];
    if let Some(first) = FIRST_X32_CALL {
        program.extend([jump_if_at_least(first, 0, 1), answer(Action::Kill)]);
    }
    for (name, number) in policy.calls() {
        let rules: Vec<&Rule> = policy.rules_of(name).collect();
        match rules.as_slice() {
            [first, ..] if first.when.is_empty() => plain.push((number, first.act)),
            _ => {
                let block = conditional(&rules, policy.default, pid);
                program.extend([jump_if_equal(number, 1, 0), jump(block.len())]);
                program.extend(block);
            }
        }
    }
    for (number, action) in plain {
        program.extend([jump_if_equal(number, 0, 1), answer(action)]);
    }
    program.push(answer(policy.default));
    if program.len() > MOST_INSTRUCTIONS {
        return Err(HardeningError::TooLong { instructions: program.len() });
    }
    Ok(program)
}

/// One call's rules in order; the number is no longer in the accumulator afterwards, so this always answers.
fn conditional(rules: &[&Rule], default: Action, pid: u32) -> Vec<sock_filter> {
    let mut block = Vec::new();
    for rule in rules {
        let mut tests: Vec<Vec<sock_filter>> = Vec::new();
        for condition in &rule.when {
            tests.push(test(condition, pid));
        }
        // Each test ends in a jump to the next rule, whose distance is known from the end backwards.
        let mut rest = 1; // The answer.
        for part in tests.iter_mut().rev() {
            part.push(jump(rest));
            rest += part.len();
        }
        block.extend(tests.into_iter().flatten());
        block.push(answer(rule.act));
        if rule.when.is_empty() {
            return block;
        }
    }
    block.push(answer(default));
    block
}

/// Skips the one instruction behind it if the condition holds.
fn test(condition: &Condition, pid: u32) -> Vec<sock_filter> {
    let mut part = vec![load(ARGUMENTS_OFFSET + 8 * condition.argument + LOW_HALF)];
    if condition.mask != u32::MAX {
        part.push(and(condition.mask));
    }
    let count = condition.is.len();
    for (index, value) in condition.is.iter().enumerate() {
        let number = match value {
            Value::Number(number) => *number,
            Value::Named(Known::Pid) => pid,
        };
        part.push(jump_if_equal(number, (count - index) as u8, 0));
    }
    part
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

fn and(mask: u32) -> sock_filter {
    instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, mask, 0, 0)
}

fn jump(distance: usize) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JA, distance as u32, 0, 0)
}

fn jump_if_equal(value: u32, yes: u8, no: u8) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, yes, no)
}

fn jump_if_at_least(value: u32, yes: u8, no: u8) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, value, yes, no)
}

fn answer(action: Action) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, code(action), 0, 0)
}

/// What the kernel calls an action.
fn code(action: Action) -> u32 {
    match action {
        Action::Allow => libc::SECCOMP_RET_ALLOW,
        Action::Trace => libc::SECCOMP_RET_USER_NOTIF,
        Action::NotPermitted => libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        Action::NotImplemented => libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
        Action::Kill => libc::SECCOMP_RET_KILL_PROCESS,
    }
}

fn instruction(code: u32, k: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: code as u16, jt: yes, jf: no, k }
}

const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;
const LOW_HALF: u32 = if cfg!(target_endian = "little") { 0 } else { 4 };
/// linux/audit.h: the machine's number, 64 bits, little endian.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// Calls of the x32 interface have the same architecture and this bit.
const FIRST_X32_CALL: Option<u32> =
    if cfg!(target_arch = "x86_64") { Some(0x4000_0000) } else { None };
/// linux/bpf_common.h: `BPF_MAXINSNS`.
const MOST_INSTRUCTIONS: usize = 4096;

#[cfg(test)]
mod tests;
