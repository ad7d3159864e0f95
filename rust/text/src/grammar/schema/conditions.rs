//! `if`, `then`, `else`: enforced where the condition and its opposite are both schemas. That is so for a
//! condition about one property of an object, as "kind is cat" where `kind` has a list of values, or "b is
//! there".

use serde_json::{Map, Value, json};

use super::cases::{About, Condition, cases};
use super::rewriter::{ANNOTATIONS, Node, Rewriter, is_any, is_never};

impl<'a> Rewriter<'a> {
    /// Puts the cases of a condition into the node's other schemas, or leaves it to the `allOf` around it.
    pub(super) fn conditions(&mut self, node: &mut Node<'a, '_>) -> Result<(), String> {
        let Some(condition) = node.get("if") else { return Ok(()) };
        let binds = |key| node.get(key).filter(|schema| !is_any(schema));
        let (then, otherwise) = (binds("then"), binds("else"));
        let (key, consequence) = match (then, otherwise) {
            (None, None) => return Ok(()),
            (Some(then), _) if is_any(condition) => ("then", then),
            (None, Some(_)) if is_any(condition) => return Ok(()),
            (_, Some(otherwise)) if is_never(condition) => ("else", otherwise),
            (Some(_), None) if is_never(condition) => return Ok(()),
            _ => {
                let Some((name, about)) = self.about(node, condition) else {
                    return Err(node.refuse(
                        "if",
                        "allowed without then and else, with a condition that always or never holds, and \
                         in objects with one about a single property: that it is there, or has some of the \
                         values that its enum lists",
                    ));
                };
                let then = then.map(|schema| self.in_place(node, schema, "then")).transpose()?;
                let otherwise =
                    otherwise.map(|schema| self.in_place(node, schema, "else")).transpose()?;
                let condition = Condition { name, about, then, otherwise };
                if node.is_of_all {
                    self.conditions.push(condition);
                } else {
                    node.also.push(cases(&[condition]));
                }
                return Ok(());
            }
        };
        let also = self.in_place(node, consequence, key)?;
        node.also.push(also);
        Ok(())
    }

    /// What a condition says of one property of an object.
    fn about(&self, node: &Node<'a, '_>, condition: &'a Value) -> Option<(String, About)> {
        let around = || std::iter::once(node.given).chain(node.around.iter().copied());
        let is_object = around().any(|fields| fields.get("type") == Some(&json!("object")));
        let (name, chosen, needs_it) = about_one_property(condition).filter(|_| is_object)?;
        let about = match chosen {
            None => About::Presence,
            Some(chosen) => {
                let listed = |fields: &'a Map<String, Value>| {
                    self.listed(fields.get("properties")?.get(name)?)
                };
                About::Values { chosen, all: around().find_map(listed)?, needs_it }
            }
        };
        Some((name.to_owned(), about))
    }

    /// The values of a property, if the schema lists them.
    pub(super) fn listed(&self, schema: &'a Value) -> Option<Vec<Value>> {
        let schema = self.references.target(schema).unwrap_or(schema);
        let fields = schema.as_object()?;
        values_of(fields).or_else(|| {
            let is_flag = fields.get("type") == Some(&json!("boolean"));
            is_flag.then(|| vec![json!(true), json!(false)])
        })
    }
}

/// The property that a condition is about, the values for which it holds (any, if none are given), and
/// whether the property must be there.
fn about_one_property(condition: &Value) -> Option<(&str, Option<Vec<Value>>, bool)> {
    let fields = condition.as_object()?;
    let known = |key: &String| {
        ["type", "properties", "required"].contains(&key.as_str())
            || ANNOTATIONS.contains(&key.as_str())
    };
    let is_object = fields.get("type").is_none_or(|name| name == "object");
    if !fields.keys().all(known) || !is_object {
        return None;
    }
    let required: Vec<&str> = match fields.get("required") {
        None => Vec::new(),
        Some(names) => names.as_array()?.iter().map(Value::as_str).collect::<Option<_>>()?,
    };
    let properties = match fields.get("properties") {
        None => None,
        Some(properties) => Some(properties.as_object()?),
    };
    let mut names = properties.into_iter().flatten();
    match (names.next(), names.next(), &required[..]) {
        (None, _, [name]) => Some((name, None, true)),
        (Some((name, schema)), None, required) => {
            let is_alone = required.iter().all(|each| each == name);
            let values = schema.as_object().filter(|_| is_alone).and_then(|fields| {
                let only_values = fields.keys().all(|key| {
                    ["const", "enum"].contains(&key.as_str()) || ANNOTATIONS.contains(&key.as_str())
                });
                values_of(fields).filter(|_| only_values)
            })?;
            Some((name, Some(values), !required.is_empty()))
        }
        _ => None,
    }
}

/// The values of `const` or `enum`: texts, whole numbers, flags and null, which are equal only if they are
/// written alike.
pub(super) fn values_of(fields: &Map<String, Value>) -> Option<Vec<Value>> {
    let values = match (fields.get("const"), fields.get("enum")) {
        (Some(only), None) => vec![only.clone()],
        (None, Some(Value::Array(several))) => several.clone(),
        _ => return None,
    };
    let is_plain = |value: &Value| match value {
        Value::Number(number) => number.is_i64(),
        other => !other.is_array() && !other.is_object(),
    };
    values.iter().all(is_plain).then_some(values)
}
