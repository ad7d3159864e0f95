//! Keywords about objects.

use serde_json::{Map, Value, json};

use super::path::Path;
use super::rewriter::{ANNOTATIONS, Node, Rewriter, is_any, is_never};
use super::strings::{self, count};
use crate::grammar::bounds::{MAX_COUNTED_PROPERTIES, MAX_PROPERTIES};

/// Handles a keyword that is independent of others; returns false if it is not about objects.
pub(super) fn keyword<'a>(
    rewriter: &mut Rewriter<'a>,
    node: &mut Node<'a, '_>,
    key: &str,
    value: &'a Value,
    path: &Path<'_>,
) -> Result<bool, String> {
    let rewritten = match key {
        "properties" | "patternProperties" => {
            let named = value.as_object().ok_or_else(|| path.must_be("an object", value))?;
            if named.len() > MAX_PROPERTIES {
                let count = named.len();
                return Err(path.refuse(format_args!("has {count} keys, at most {MAX_PROPERTIES}")));
            }
            let mut schemas = Map::new();
            for (name, schema) in named {
                let place = path.key(name);
                if key == "patternProperties" {
                    strings::check(name, &place)?;
                }
                schemas.insert(name.clone(), rewriter.schema(schema, &place)?);
            }
            schemas.into()
        }
        "additionalProperties" => rewriter.schema(value, path)?,
        "required" => names(value, path)?.into(),
        "minProperties" | "maxProperties" => count(value, path)?.into(),
        _ => return Ok(false),
    };
    node.out.insert(key.into(), rewritten);
    Ok(true)
}

/// Keywords whose meaning depends on others.
pub(super) fn combine<'a>(
    rewriter: &mut Rewriter<'a>,
    node: &mut Node<'a, '_>,
) -> Result<(), String> {
    if !node.may_be("object") {
        for key in OF_OBJECTS {
            node.out.remove(key);
        }
        return Ok(());
    }
    unevaluated(rewriter, node)?;
    dependent(rewriter, node)?;
    property_names(rewriter, node)?;
    let is_counted =
        ["minProperties", "maxProperties"].iter().any(|key| node.out.contains_key(*key));
    let properties = node.out.get("properties").and_then(Value::as_object).map_or(0, Map::len);
    if is_counted && properties > MAX_COUNTED_PROPERTIES {
        // One rule for each pair of properties.
        return Err(node.path.refuse(format_args!(
            "minProperties or maxProperties with {properties} properties, at most {MAX_COUNTED_PROPERTIES}"
        )));
    }
    Ok(())
}

/// `unevaluatedProperties`: properties that no keyword of this object or of adjacent schemas has evaluated.
fn unevaluated<'a>(rewriter: &mut Rewriter<'a>, node: &mut Node<'a, '_>) -> Result<(), String> {
    let Some(rest) = node.get("unevaluatedProperties") else { return Ok(()) };
    // additionalProperties looks at whatever is left.
    if node.get("additionalProperties").is_some() || is_any(rest) {
        return Ok(());
    }
    if node.has_applicator() {
        return Err(node.refuse(
            "unevaluatedProperties",
            "allowed beside additionalProperties, and where no schema is applied besides, as by allOf or $ref",
        ));
    }
    let rest = rewriter.schema(rest, &node.path.key("unevaluatedProperties"))?;
    node.out.insert("additionalProperties".into(), rest);
    Ok(())
}

/// `dependentRequired`, `dependentSchemas`, and draft 7's `dependencies`, which is both.
fn dependent<'a>(rewriter: &mut Rewriter<'a>, node: &mut Node<'a, '_>) -> Result<(), String> {
    for key in ["dependentRequired", "dependentSchemas", "dependencies"] {
        let Some(value) = node.get(key) else { continue };
        let path = node.path.key(key);
        let all = value.as_object().ok_or_else(|| path.must_be("an object", value))?;
        for (name, then) in all {
            let place = path.key(name);
            let is_list = key == "dependentRequired" || (key == "dependencies" && then.is_array());
            let required = if is_list { names(then, &place)? } else { Vec::new() };
            let has = |name: &str| -> bool {
                let given = node.out.get("required").and_then(Value::as_array);
                given.is_some_and(|all| all.iter().any(|each| each == name))
            };
            let is_met = if is_list { required.iter().all(|each| has(each)) } else { is_any(then) };
            if is_met || !may_have(node, name) {
                continue;
            }
            if !has(name) {
                return Err(place.refuse(
                    "cannot be enforced; allowed are dependents of a required property, and those that \
                     hold anyway",
                ));
            }
            // The property is always there, so what depends on it holds always.
            if is_list {
                let all = node.out.entry("required").or_insert_with(|| json!([]));
                for each in required {
                    if let Some(all) = all.as_array_mut().filter(|all| !all.contains(&json!(each)))
                    {
                        all.push(each.into());
                    }
                }
            } else {
                let then = rewriter.schema(then, &place)?;
                node.also.push(then);
            }
        }
    }
    Ok(())
}

/// Whether an object may have a property of this name.
fn may_have(node: &Node<'_, '_>, name: &str) -> bool {
    match node.out.get("properties").and_then(|all| all.get(name)) {
        Some(schema) => !is_never(schema),
        None => {
            node.out.contains_key("patternProperties")
                || !node.out.get("additionalProperties").is_some_and(is_never)
        }
    }
}

/// `propertyNames`: any string, one of some strings, or a pattern.
fn property_names(rewriter: &mut Rewriter<'_>, node: &mut Node<'_, '_>) -> Result<(), String> {
    let Some(given) = node.get("propertyNames") else { return Ok(()) };
    let path = node.path.key("propertyNames");
    let mut schema = given;
    for _ in 0..MAX_REFERENCES {
        schema = rewriter.references.target(schema).unwrap_or(schema);
    }
    if is_never(schema) {
        node.out.insert("maxProperties".into(), 0.into());
        return Ok(());
    }
    if takes_every_string(schema) {
        return Ok(());
    }
    let refusal = || {
        path.refuse(
            "cannot be enforced; allowed are any string, a list of names (enum, const, anyOf of those), \
             and a pattern or bounds of length in an object without patternProperties",
        )
    };
    if node.out.contains_key("patternProperties") {
        return Err(refusal());
    }
    let others = node.out.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let declared = node.out.get("properties").and_then(Value::as_object).cloned();
    let declared = declared.unwrap_or_default();
    if let Some(names) = listed(schema) {
        if names.len() > MAX_PROPERTIES {
            let count = names.len();
            return Err(path.refuse(format_args!("{count} names, at most {MAX_PROPERTIES}")));
        }
        let schema_of = |name: String| {
            let schema = declared.get(&name).unwrap_or(&others).clone();
            (name, schema)
        };
        let properties: Map<String, Value> = names.into_iter().map(schema_of).collect();
        node.out.insert("properties".into(), properties.into());
        node.out.insert("additionalProperties".into(), false.into());
        return Ok(());
    }
    let pattern =
        name_pattern(schema, &path)?.filter(|_| declared.is_empty()).ok_or_else(refusal)?;
    node.out.insert("patternProperties".into(), json!({ pattern: others }));
    node.out.insert("additionalProperties".into(), false.into());
    Ok(())
}

/// Whether a schema forbids no name. Names are strings, so keywords of other types do not matter.
fn takes_every_string(schema: &Value) -> bool {
    let Value::Object(fields) = schema else { return *schema == Value::Bool(true) };
    fields.iter().all(|(key, value)| match key.as_str() {
        "type" => {
            value == "string" || value.as_array().is_some_and(|all| all.contains(&json!("string")))
        }
        "minLength" => value.as_f64() == Some(0.0),
        "format" => value.as_str().is_some_and(|name| {
            !strings::ENFORCED.contains(&name) && !strings::UNENFORCEABLE.contains(&name)
        }),
        key => ANNOTATIONS.contains(&key),
    })
}

/// The strings that a schema lists.
fn listed(schema: &Value) -> Option<Vec<String>> {
    let fields = schema.as_object()?;
    let mut found = None;
    for (key, value) in fields {
        let several: Option<Vec<String>> = match key.as_str() {
            "type" if value == "string" => continue,
            key if ANNOTATIONS.contains(&key) => continue,
            "const" => value.as_str().map(|name| vec![name.to_owned()]),
            "enum" => value
                .as_array()
                .map(|all| all.iter().filter_map(|name| name.as_str().map(String::from)).collect()),
            "anyOf" => value.as_array().and_then(|all| {
                all.iter().map(listed).collect::<Option<Vec<_>>>().map(|all| all.concat())
            }),
            _ => None,
        };
        if found.is_some() {
            return None;
        }
        found = Some(several?);
    }
    found
}

/// The pattern that a schema of names is.
fn name_pattern(schema: &Value, path: &Path<'_>) -> Result<Option<String>, String> {
    let Some(fields) = schema.as_object() else { return Ok(None) };
    let mut pattern = None;
    let (mut least, mut most) = (0, None);
    for (key, value) in fields {
        match key.as_str() {
            "type" if value == "string" => {}
            "pattern" => pattern = value.as_str().map(String::from),
            "minLength" => least = count(value, &path.key(key))?,
            "maxLength" => most = Some(count(value, &path.key(key))?),
            key if ANNOTATIONS.contains(&key) => {}
            _ => return Ok(None),
        }
    }
    if let Some(pattern) = pattern {
        strings::check(&pattern, &path.key("pattern"))?;
        return Ok(Some(pattern).filter(|_| least == 0 && most.is_none()));
    }
    let most = most.map(|most| most.to_string()).unwrap_or_default();
    Ok(Some(format!("^(.|\\n){{{least},{most}}}$")))
}

/// A list of names.
fn names(value: &Value, path: &Path<'_>) -> Result<Vec<String>, String> {
    let wrong = || path.must_be("a list of strings", value);
    let all = value.as_array().ok_or_else(wrong)?;
    let names: Vec<String> = all.iter().filter_map(|n| n.as_str().map(String::from)).collect();
    if names.len() == all.len() { Ok(names) } else { Err(wrong()) }
}

const OF_OBJECTS: [&str; 6] = [
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
];
/// References to references.
const MAX_REFERENCES: usize = 8;
