//! [2] The members of an object in grammars of calls that write them one by one, in the order of the schema.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::values::{MAX_REFERENCES, target};
use crate::grammar::literal;

/// The properties of an object, which are written one by one.
pub(crate) struct Object<'s> {
    pub(crate) properties: Vec<(&'s str, &'s Value)>,
    required: Vec<&'s str>,
}

impl<'s> Object<'s> {
    /// `None` for any object.
    pub(crate) fn of(root: &'s Value) -> Result<Option<Self>, String> {
        Self::of_part(root, root)
    }

    /// The same of a part of `root`, which references lead into.
    pub(crate) fn of_part(part: &'s Value, root: &'s Value) -> Result<Option<Self>, String> {
        let mut schema = part;
        for _ in 0..MAX_REFERENCES {
            match target(schema, root) {
                Some(next) => schema = next,
                None => break,
            }
        }
        let empty = Map::new();
        let fields = schema.as_object().unwrap_or(&empty);
        if let Some(key) = fields.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            return Err(format!(
                "{key} cannot be enforced beside properties: this model writes arguments one by one"
            ));
        }
        let mut properties: Vec<(&str, &Value)> = match schema.get("properties") {
            Some(Value::Object(named)) => named.iter().map(|(k, v)| (k.as_str(), v)).collect(),
            _ => Vec::new(),
        };
        let names = schema.get("required").and_then(Value::as_array);
        let required: Vec<&str> = names.into_iter().flatten().filter_map(Value::as_str).collect();
        for name in &required {
            if !properties.iter().any(|(known, _)| known == name) {
                properties.push((name, &Value::Bool(true)));
            }
        }
        let is_open =
            schema.get("additionalProperties").is_none_or(|more| *more != Value::Bool(false));
        Ok((!properties.is_empty() || !is_open).then_some(Self { properties, required }))
    }

    pub(crate) fn is_required(&self, name: &str) -> bool {
        self.required.contains(&name)
    }
}

/// The rule `name`: members in this order with a separator between them, without some of those that are not required.
pub(crate) fn sequence(name: &str, separator: &str, members: &[(String, bool)]) -> String {
    let mut rules = format!("{name}: {name}_first_0\n");
    let separator = literal(separator);
    for (p, (member, is_required)) in members.iter().enumerate() {
        let next = p + 1;
        _ = writeln!(rules, "{name}_member_{p}: {member}");
        // With and without a member before it.
        if *is_required {
            _ = writeln!(rules, "{name}_first_{p}: {name}_member_{p} {name}_more_{next}");
            _ = writeln!(
                rules,
                "{name}_more_{p}: {separator} {name}_member_{p} {name}_more_{next}"
            );
        } else {
            _ = writeln!(
                rules,
                "{name}_first_{p}: {name}_member_{p} {name}_more_{next} | {name}_first_{next}"
            );
            _ = writeln!(
                rules,
                "{name}_more_{p}: ({separator} {name}_member_{p})? {name}_more_{next}"
            );
        }
    }
    let last = members.len();
    rules + &format!("{name}_first_{last}: \"\"\n{name}_more_{last}: \"\"\n")
}

/// Keywords of an object that are enforced, or say nothing about its values.
const KNOWN: [&str; 12] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "title",
    "description",
    "$schema",
    "$id",
    "default",
    "examples",
];
