//! The compiled filters against a plain reading of the policies, over every call and the values at which
//! a rule could go wrong.

use super::*;
use crate::policies::{BASE, EXPORTER, GPU_DRIVERS, KEEPER, SERVE};
use crate::syscalls::name;

const PID: u32 = 4321;

/// Runs a program as the kernel does; returns what it returns.
fn run(program: &[sock_filter], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let (mut at, mut accumulator) = (0, 0);
    loop {
        let step = program[at];
        at += 1;
        let code = u32::from(step.code);
        if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
            accumulator = match step.k {
                0 => number,
                4 => architecture,
                offset => {
                    let argument = arguments[(offset as usize - 16) / 8];
                    if offset % 8 == 0 { argument as u32 } else { (argument >> 32) as u32 }
                }
            };
        } else if code == libc::BPF_ALU | libc::BPF_AND {
            accumulator &= step.k;
        } else if code == libc::BPF_JMP | libc::BPF_JA {
            at += step.k as usize;
        } else if code == libc::BPF_JMP | libc::BPF_JEQ {
            at += usize::from(if accumulator == step.k { step.jt } else { step.jf });
        } else if code == libc::BPF_JMP | libc::BPF_JGE {
            at += usize::from(if accumulator >= step.k { step.jt } else { step.jf });
        } else {
            assert_eq!(code, libc::BPF_RET, "an instruction of no known kind");
            return step.k;
        }
    }
}

/// What a policy says about one call, read rule by rule.
fn expected(policy: &Policy, number: u32, arguments: [u64; 6]) -> Action {
    let Some(name) = name(number) else { return policy.default };
    let holds = |condition: &Condition| {
        let found = arguments[condition.argument as usize] as u32 & condition.mask;
        condition.is.iter().any(|value| match value {
            Value::Number(number) => *number == found,
            Value::Named(Known::Pid) => PID == found,
        })
    };
    let rule = policy.rules_of(name).find(|rule| rule.when.iter().all(holds));
    rule.map_or(policy.default, |rule| rule.act)
}

/// Values around each number that the policy compares with, and all sorts of others.
fn interesting(policy: &Policy) -> Vec<u64> {
    let mut values =
        vec![0, 1, 2, 3, 4, 5, 7, u64::from(PID), u64::from(u32::MAX), u64::MAX, 1 << 32];
    for condition in policy.rules.iter().flat_map(|rule| &rule.when) {
        for value in &condition.is {
            if let Value::Number(number) = value {
                let number = u64::from(*number);
                values.extend([number, number ^ 1, number + 1, number | 1 << 32, number | 1 << 31]);
            }
        }
        values.extend(
            (0..32).map(|bit| 1u64 << bit).filter(|bit| bit & u64::from(condition.mask) != 0),
        );
    }
    values.sort_unstable();
    values.dedup();
    values
}

/// Arguments with which the first condition on each holds, so that a third one does not hide the two that vary.
fn allowed_values(policy: &Policy, number: u32) -> [u64; 6] {
    let mut arguments = [9; 6];
    let rules = name(number).into_iter().flat_map(|name| policy.rules_of(name));
    for condition in rules.flat_map(|rule| &rule.when) {
        if let Some(Value::Number(value)) = condition.is.first() {
            arguments[condition.argument as usize] = u64::from(*value);
        }
    }
    arguments
}

#[test]
fn test_filters_mean_what_the_policies_say() {
    let serve = SERVE.policy().unwrap();
    let mut policies: Vec<Policy> =
        [BASE, SERVE, KEEPER, EXPORTER].iter().map(|file| file.policy().unwrap()).collect();
    policies.push(serve.clone().traced());
    for (_, files) in GPU_DRIVERS {
        let ready = serve.clone().with(files.ready.policy().unwrap());
        let recording = files.recording.policy().unwrap();
        policies.extend([ready.clone(), ready.with(recording.clone()), recording.refused()]);
    }
    for policy in &policies {
        let program = compile(policy, PID).unwrap();
        let values = interesting(policy);
        for number in 0..480 {
            let used: Vec<usize> = name(number).map_or_else(Vec::new, |name| {
                let conditions = policy.rules_of(name).flat_map(|rule| &rule.when);
                conditions.map(|condition| condition.argument as usize).collect()
            });
            let (first, second) =
                (used.first().copied().unwrap_or(0), used.last().copied().unwrap_or(1));
            let others = allowed_values(policy, number);
            for a in &values {
                for b in if used.is_empty() { &values[..1] } else { &values[..] } {
                    let mut arguments = others;
                    arguments[first] = *a;
                    arguments[second] = *b;
                    let found = run(&program, ARCHITECTURE, number, arguments);
                    let want = code(expected(policy, number, arguments));
                    assert_eq!(found, want, "{:?} {arguments:x?}", name(number));
                }
            }
        }
    }
}

#[test]
fn test_foreign_architectures_and_x32_die() {
    let program = compile(&SERVE.policy().unwrap(), PID).unwrap();
    let read = libc::SYS_read as u32;
    assert_eq!(run(&program, ARCHITECTURE, read, [0; 6]), libc::SECCOMP_RET_ALLOW);
    assert_eq!(run(&program, 0x4000_0003, read, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS, "i386");
    if let Some(bit) = FIRST_X32_CALL {
        let x32 = run(&program, ARCHITECTURE, read | bit, [0; 6]);
        assert_eq!(x32, libc::SECCOMP_RET_KILL_PROCESS);
    }
}

#[test]
fn test_no_rule_is_dead() {
    for file in [BASE, SERVE] {
        let policy = file.policy().unwrap();
        for rule in &policy.rules {
            for each in &rule.calls {
                let first = policy.rules_of(each).position(|known| known.when.is_empty());
                let own = policy.rules_of(each).position(|known| std::ptr::eq(known, rule));
                assert!(
                    first.is_none_or(|first| own <= Some(first)),
                    "{}: {each} is decided before",
                    file.name
                );
            }
        }
    }
}
