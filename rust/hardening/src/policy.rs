//! A seccomp policy as its TOML file states it (security/policy): rules in order, each with its reason.
//! Pure.

use serde::Deserialize;

use crate::error::HardeningError;
use crate::syscalls::{Call, call};

/// The rules of one filter. For each system call the first rule that applies decides.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Policy {
    /// What happens to a call that no rule names.
    pub(crate) default: Action,
    pub(crate) rules: Vec<Rule>,
}

/// What happens to some calls, and why.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) why: String,
    pub(crate) calls: Vec<String>,
    pub(crate) act: Action,
    /// All of them must hold.
    #[serde(default)]
    pub(crate) when: Vec<Condition>,
}

/// What must hold for the low 32 bits of one argument.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Condition {
    /// From 0.
    pub(crate) argument: u32,
    /// The bits that are compared; all of them if absent.
    #[serde(default = "all_bits")]
    pub(crate) mask: u32,
    /// The values of which one must be there.
    pub(crate) is: Vec<Value>,
}

/// A number, or one that is known when the filter is made.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Value {
    Number(u32),
    Named(Known),
}

/// Values that are known when the filter is made.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Known {
    /// The number of this process.
    #[serde(rename = "self")]
    Pid,
}

/// What happens to a call. From the mildest to the strictest, as the kernel orders them.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(crate) enum Action {
    /// It is made.
    #[serde(rename = "allow")]
    Allow,
    /// A tracer hears of it, prints it and lets it through.
    #[serde(skip)]
    Trace,
    /// It fails.
    #[serde(rename = "EPERM")]
    NotPermitted,
    /// It fails as on a kernel that lacks it.
    #[serde(rename = "ENOSYS")]
    NotImplemented,
    /// The process dies by SIGSYS.
    #[serde(rename = "kill")]
    Kill,
}

fn all_bits() -> u32 {
    u32::MAX
}

impl Policy {
    /// A policy from its file.
    ///
    /// # Errors
    /// `HardeningError::Policy` names the file and what is wrong in it.
    pub(crate) fn parse(name: &'static str, text: &str) -> Result<Self, HardeningError> {
        let wrong = |reason: String| HardeningError::Policy { name, reason };
        let policy: Self = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        for rule in &policy.rules {
            if rule.why.is_empty() || rule.calls.is_empty() {
                return Err(wrong(format!("a rule without calls or reason: {:?}", rule.why)));
            }
            if let Some(unknown) = rule.calls.iter().find(|each| call(each).is_none()) {
                return Err(wrong(format!("{:?}: no system call {unknown:?}", rule.why)));
            }
            let is_sound = |condition: &Condition| {
                condition.argument < NUM_ARGUMENTS
                    && (1..=MOST_VALUES).contains(&condition.is.len())
            };
            if !rule.when.iter().all(is_sound) {
                return Err(wrong(format!("{:?}: a condition that cannot be", rule.why)));
            }
        }
        Ok(policy)
    }

    /// The same rules, and those of `other` after them.
    pub(crate) fn with(mut self, other: Self) -> Self {
        self.rules.extend(other.rules);
        self
    }

    /// The same without the numbers that `other` allows too, in conditions of rules for the same calls.
    pub(crate) fn beyond(mut self, other: &Self) -> Self {
        for rule in &mut self.rules {
            let allowed: Vec<u32> = other
                .rules
                .iter()
                .filter(|each| each.calls == rule.calls && each.act == rule.act)
                .flat_map(|each| each.when.iter().flat_map(|when| &when.is))
                .filter_map(|value| match value {
                    Value::Number(number) => Some(*number),
                    Value::Named(_) => None,
                })
                .collect();
            for condition in &mut rule.when {
                condition
                    .is
                    .retain(|value| !matches!(value, Value::Number(n) if allowed.contains(n)));
            }
        }
        // A condition without values never holds.
        self.rules.retain(|rule| rule.when.iter().all(|when| !when.is.is_empty()));
        self
    }

    /// A policy that refuses what this one allows, and nothing else.
    pub(crate) fn refused(mut self) -> Self {
        self.default = Action::Allow;
        for rule in &mut self.rules {
            rule.act = Action::NotPermitted;
        }
        self
    }

    /// The rules of one call, in order, as (conditions, action).
    pub(crate) fn rules_of(&self, name: &str) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| rule.calls.iter().any(|each| each == name))
    }

    /// The calls that some rule names and this architecture has: name and number, each once.
    pub(crate) fn calls(&self) -> Vec<(&str, u32)> {
        let mut found: Vec<(&str, u32)> = Vec::new();
        for each in self.rules.iter().flat_map(|rule| &rule.calls) {
            if let Some(Call::Number(number)) = call(each)
                && !found.iter().any(|(_, known)| *known == number)
            {
                found.push((each, number));
            }
        }
        found
    }

    /// The policy with everything allowed for `name`, for the negative controls of probes.
    pub(crate) fn without(mut self, name: &str) -> Self {
        for rule in &mut self.rules {
            rule.calls.retain(|each| each != name);
        }
        self.rules.retain(|rule| !rule.calls.is_empty());
        self.rules.push(Rule {
            why: "a negative control".to_owned(),
            calls: vec![name.to_owned()],
            act: Action::Allow,
            when: Vec::new(),
        });
        self
    }

    /// The policy whose refusals are traced instead; what is fatal stays fatal.
    pub(crate) fn traced(mut self) -> Self {
        if self.default == Action::NotPermitted {
            self.default = Action::Trace;
        }
        for rule in self.rules.iter_mut().filter(|rule| rule.act == Action::NotPermitted) {
            rule.act = Action::Trace;
        }
        self
    }
}

const NUM_ARGUMENTS: u32 = 6;
/// A jump of a filter reaches 255 instructions.
const MOST_VALUES: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        Policy::parse("test.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn test_a_policy_that_cannot_be_meant_is_refused_by_name() {
        let rule = |rest: &str| format!("default = \"EPERM\"\n[[rules]]\nwhy = \"x\"\n{rest}");
        let unknown = fault(&rule("calls = [\"opn\"]\nact = \"allow\""));
        assert!(unknown.contains("test.toml") && unknown.contains("opn"), "{unknown}");
        assert!(fault(&rule("calls = []\nact = \"allow\"")).contains("without calls"));
        assert!(fault(&rule("calls = [\"read\"]\nact = \"permit\"")).contains("permit"));
        let when = "when = [{ argument = 6, is = [1] }]";
        assert!(
            fault(&rule(&format!("calls = [\"read\"]\nact = \"kill\"\n{when}")))
                .contains("cannot be")
        );
        assert!(fault("default = \"kill\"\nrules = []\nrule = 1").contains("rule"));
    }
}
