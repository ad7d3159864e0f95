//! The probes of security/policy/probes.toml: one system call each.

use std::os::fd::AsRawFd;

use serde::Deserialize;

use super::act::{self, Part, Prepared};
use super::probe::{
    NO_LOCK, Place, Probed, Stage, Verdict, code_of, judge, lock_for, probe_twice, start_in,
};
use crate::error::HardeningError;
use crate::omitted::Omitted;
use crate::policies::PROBES;
use crate::sys;
use crate::syscalls::{Call, call};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    probes: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    call: String,
    arguments: Vec<Part>,
    /// What must come of it, any of these.
    expect: Vec<String>,
    /// What must come of it without the rule or layer.
    control: Vec<String>,
    #[serde(default)]
    stage: Stage,
    /// The layer that the control leaves out; absent, the rules of the call.
    omit: Option<String>,
    /// `files`, `nvidia` or `landlock N`: what the kernel must have.
    needs: Option<String>,
    /// Under the policy for this version of NVIDIA's driver, whether or not one is here.
    driver: Option<u32>,
}

/// Makes all probes of the file.
///
/// # Errors
/// `HardeningError::Policy` if the file is wrong, `System` if there are no children.
pub(super) fn probe_all(place: &Place<'_>) -> Result<Vec<Probed>, HardeningError> {
    let wrong = |reason: String| HardeningError::Policy { name: PROBES.name, reason };
    let file: File = toml::from_str(PROBES.text).map_err(|error| wrong(error.to_string()))?;
    let mut probed = Vec::new();
    for row in &file.probes {
        let known = call(&row.call).ok_or_else(|| wrong(format!("no call {:?}", row.call)))?;
        probed.push(match (known, lack(row.needs.as_deref(), place)) {
            (Call::Absent, _) => not_probed(row, "this architecture has no such call"),
            (_, Some(why)) => not_probed(row, &why),
            (Call::Number(number), None) => probe(row, i64::from(number), place)?,
        });
    }
    Ok(probed)
}

/// Why a probe would mean nothing on this kernel.
fn lack(needs: Option<&str>, place: &Place<'_>) -> Option<String> {
    match needs {
        None => None,
        Some("files") if place.confines_files => None,
        Some("files") => Some("files are not confined here".to_owned()),
        Some("nvidia") if act::has_nvidia() => None,
        Some("nvidia") => Some("there is no NVIDIA GPU".to_owned()),
        Some(needs) => {
            let version: Option<u32> = needs.strip_prefix("landlock ").and_then(|n| n.parse().ok());
            if version.is_some_and(|version| version <= place.landlock) {
                return None;
            }
            Some(format!("needs {needs}, here is {}", place.landlock))
        }
    }
}

fn probe(row: &Row, number: i64, place: &Place<'_>) -> Result<Probed, HardeningError> {
    act::fill(place.scratch)?;
    let omitted = match &row.omit {
        Some(layer) => Omitted::Layer(layer.clone()),
        None => Omitted::Rule(row.call.clone()),
    };
    let parent = std::process::id();
    let run = |child: &sys::Child, omitted: &Omitted| {
        // Each child has a folder as the last one found it.
        let prepared = act::fill(place.scratch).and_then(|()| Prepared::new(place.scratch));
        let (Ok(prepared), Ok(())) = (prepared, sys::silence(child)) else { return NO_LOCK };
        let keep = prepared.kept().iter().map(|fd| fd.as_raw_fd() as u32).collect();
        let start = start_in(place.scratch, keep);
        let mut arguments = act::arguments(&row.arguments, &prepared, place.scratch, parent);
        if lock_for(row.stage, &start, row.driver, omitted).is_err() {
            return NO_LOCK;
        }
        let made = sys::call(child, number, &mut arguments).map(|_| ());
        // What was prepared may be closed by now, and must not be closed again.
        std::mem::drop(arguments);
        prepared.leave();
        code_of(&made)
    };
    let (found, control) = probe_twice(run, &omitted)?;
    let (verdict, why) = judge(&row.expect, Some(&row.control), &found, &control);
    Ok(Probed { found, control, verdict, why, ..empty(row) })
}

fn not_probed(row: &Row, why: &str) -> Probed {
    Probed { verdict: Verdict::NotProbed, why: why.to_owned(), ..empty(row) }
}

fn empty(row: &Row) -> Probed {
    Probed {
        name: row.name.clone(),
        call: row.call.clone(),
        stage: row.stage.name(),
        expected: row.expect.clone(),
        found: String::new(),
        control: String::new(),
        verdict: Verdict::NotProbed,
        why: String::new(),
    }
}
