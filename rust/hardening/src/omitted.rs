//! What a negative control leaves out of the lock-down. Pure. Only `security check` ever leaves anything out.

use crate::policy::Policy;

/// One part of the lock-down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Omitted {
    /// The real lock-down.
    Nothing,
    /// What both filters say about one system call.
    Rule(String),
    /// A whole layer.
    Layer(String),
}

impl Omitted {
    /// Whether it is this layer.
    pub(crate) fn is_layer(&self, name: &str) -> bool {
        matches!(self, Self::Layer(layer) if layer == name)
    }

    /// The policy without the rule.
    pub(crate) fn from(&self, policy: Policy) -> Policy {
        match self {
            Self::Rule(call) => policy.without(call),
            _ => policy,
        }
    }
}
