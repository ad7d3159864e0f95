//! Rewrites a schema into keywords that grammars can enforce, without changing what it allows.
//! Keywords that forbid nothing are dropped, some are replaced by equivalent ones, and all others
//! are refused by path. docs/JSON_SCHEMA.md lists every keyword.

use serde_json::{Map, Value, json};

use super::cases::cases_of_all;
use super::path::Path;
use super::references::References;
use super::rewriter::{ANNOTATIONS, LAYOUT_KEY, Node, Rewriter, TYPES, is_any, is_never};
use super::{arrays, numbers, objects, one_of, strings};

/// The schema in enforceable keywords: a boolean, or an object whose references are all of the form `#/$defs/N`.
///
/// # Errors
/// One line: the path of the keyword, what was given, what is allowed.
pub(super) fn plain(schema: &Value) -> Result<Value, String> {
    plain_part(schema, "")
}

/// The same of a part; its references lead into the whole.
///
/// # Errors
/// As `plain`; nothing lies at `pointer`.
pub(super) fn plain_part(whole: &Value, pointer: &str) -> Result<Value, String> {
    let schema = whole.pointer(pointer).ok_or_else(|| format!("{pointer}: no such part"))?;
    let mut rewriter = Rewriter::new(References::new(whole)?);
    let root = rewriter.schema(schema, &Path::root(pointer))?;
    let mut definitions = Map::new();
    while let Some((name, target, pointer)) = rewriter.references.next() {
        let path = Path::root(&pointer);
        let definition = rewriter.schema(target, &path)?;
        definitions.insert(name, definition);
    }
    let whole = match root {
        Value::Object(mut fields) if !definitions.is_empty() => {
            fields.insert("$defs".into(), definitions.into());
            fields.into()
        }
        other => other,
    };
    numbers::check_divisors(&whole)?;
    Ok(whole)
}

impl<'a> Rewriter<'a> {
    /// Rewrites one schema. Depth has been bounded.
    pub(super) fn schema(&mut self, schema: &'a Value, path: &Path<'_>) -> Result<Value, String> {
        let around = std::mem::take(&mut self.around);
        let is_of_all = std::mem::take(&mut self.is_of_all);
        let given = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(fields) => fields,
            other => return Err(path.must_be("a schema: an object, true or false", other)),
        };
        let mut node = Node {
            given,
            path,
            around,
            is_of_all,
            out: Map::new(),
            also: Vec::new(),
            is_never: false,
        };
        for (key, value) in given {
            self.keyword(&mut node, key, value)?;
        }
        objects::combine(self, &mut node)?;
        arrays::combine(self, &mut node)?;
        self.conditions(&mut node)?;
        if node.is_never {
            return Ok(Value::Bool(false));
        }
        if !node.also.is_empty() {
            let all = node.out.entry("allOf").or_insert_with(|| json!([]));
            if let Some(all) = all.as_array_mut() {
                all.extend(node.also);
            }
        }
        Ok(node.out.into())
    }

    /// Handles a keyword that is independent of others; the others are handled when all are known.
    fn keyword(
        &mut self,
        node: &mut Node<'a, '_>,
        key: &str,
        value: &'a Value,
    ) -> Result<(), String> {
        let path = node.path.key(key);
        let rewritten = match key {
            LAYOUT_KEY => return Err(path.refuse("the keyword is not supported")),
            "type" => types(value, &path)?,
            "enum" => {
                let values = value.as_array().filter(|values| !values.is_empty());
                values.ok_or_else(|| path.must_be("a list of one value or more", value))?;
                value.clone()
            }
            "const" => value.clone(),
            "$ref" | "$recursiveRef" | "$dynamicRef" => {
                let target = self.references.follow(key, value, &path)?;
                put_ref(node, target);
                return Ok(());
            }
            "allOf" => return self.all_of(node, value, &path),
            "anyOf" => self.list(node, value, &path)?.into(),
            "oneOf" => {
                one_of::check(value, &self.references, &path)?;
                return self.any_of_too(node, value, &path);
            }
            "not" => return self.not(node, value, &path),
            _ => {
                let _is_assertion = strings::keyword(node, key, value, &path)?
                    || numbers::keyword(node, key, value, &path)?
                    || arrays::keyword(self, node, key, value, &path)?
                    || objects::keyword(self, node, key, value, &path)?;
                // Everything else is an annotation, also a name that JSON Schema does not know.
                return Ok(());
            }
        };
        node.out.insert(key.into(), rewritten);
        Ok(())
    }

    /// Each schema of a list that applies to the same value as the node.
    fn list(
        &mut self,
        node: &Node<'a, '_>,
        value: &'a Value,
        path: &Path<'_>,
    ) -> Result<Vec<Value>, String> {
        let schemas = value.as_array().filter(|schemas| !schemas.is_empty());
        let schemas = schemas.ok_or_else(|| path.must_be("a list of one schema or more", value))?;
        let each = schemas.iter().enumerate();
        each.map(|(i, each)| {
            self.around = node.and_around();
            self.is_of_all = path.is_key("allOf");
            self.schema(each, &path.index(i))
        })
        .collect()
    }

    /// A schema that applies to the same value as the node.
    pub(super) fn in_place(
        &mut self,
        node: &Node<'a, '_>,
        schema: &'a Value,
        key: &str,
    ) -> Result<Value, String> {
        self.around = node.and_around();
        self.schema(schema, &node.path.key(key))
    }

    fn all_of(
        &mut self,
        node: &mut Node<'a, '_>,
        value: &'a Value,
        path: &Path<'_>,
    ) -> Result<(), String> {
        if value.as_array().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let outer = std::mem::take(&mut self.conditions);
        let all = self.list(node, value, path);
        let conditions = std::mem::replace(&mut self.conditions, outer);
        let all = all?;
        node.also.extend(cases_of_all(conditions));
        node.is_never |= all.iter().any(|schema| *schema == Value::Bool(false));
        let says_something = |schema: &Value| schema.as_object().is_none_or(|all| !all.is_empty());
        let all: Vec<Value> = all.into_iter().filter(says_something).collect();
        if !all.is_empty() {
            node.out.insert("allOf".into(), all.into());
        }
        Ok(())
    }

    /// `oneOf` whose options exclude each other is `anyOf`.
    fn any_of_too(
        &mut self,
        node: &mut Node<'a, '_>,
        value: &'a Value,
        path: &Path<'_>,
    ) -> Result<(), String> {
        let options = Value::from(self.list(node, value, path)?);
        if node.given.contains_key("anyOf") {
            node.also.push(json!({ "anyOf": options }));
        } else {
            node.out.insert("anyOf".into(), options);
        }
        Ok(())
    }

    /// `not` of everything, of nothing, or of some types.
    fn not(
        &mut self,
        node: &mut Node<'a, '_>,
        value: &'a Value,
        path: &Path<'_>,
    ) -> Result<(), String> {
        if is_any(value) {
            node.is_never = true;
            return Ok(());
        }
        if is_never(value) {
            return Ok(());
        }
        let only_type = value.as_object().filter(|fields| {
            fields.keys().all(|key| key == "type" || ANNOTATIONS.contains(&key.as_str()))
        });
        let refusal = || {
            node.refuse(
                "not",
                "allowed are a schema that allows everything or nothing, and one of types alone",
            )
        };
        let forbidden = only_type.and_then(|fields| fields.get("type")).ok_or_else(refusal)?;
        let forbidden = type_names(&types(forbidden, &path.key("type"))?);
        if forbidden.contains(&"integer".to_owned()) && !forbidden.contains(&"number".to_owned()) {
            return Err(refusal());
        }
        let left: Vec<&str> = JSON_TYPES
            .into_iter()
            .filter(|name| !forbidden.iter().any(|each| each == name))
            .collect();
        if left.is_empty() {
            node.is_never = true;
        } else {
            node.also.push(json!({ "type": left }));
        }
        Ok(())
    }
}

/// A second reference, or one next to `allOf`, must also match.
fn put_ref(node: &mut Node<'_, '_>, target: String) {
    if node.out.contains_key("$ref") {
        node.also.push(json!({ "$ref": target }));
    } else {
        node.out.insert("$ref".into(), target.into());
    }
}

/// `type` without repetitions.
fn types(value: &Value, path: &Path<'_>) -> Result<Value, String> {
    let wrong = || {
        let allowed = TYPES.join(", ");
        path.must_be(&format!("one of {allowed}, or a list of them"), value)
    };
    let names = match value {
        Value::String(name) => std::slice::from_ref(name).to_vec(),
        Value::Array(_) => type_names(value),
        _ => return Err(wrong()),
    };
    let is_whole = value.as_array().is_none_or(|given| given.len() == names.len());
    if names.is_empty() || !is_whole || !names.iter().all(|name| TYPES.contains(&name.as_str())) {
        return Err(wrong());
    }
    let mut several: Vec<String> = Vec::with_capacity(names.len());
    for name in names {
        if !several.contains(&name) {
            several.push(name);
        }
    }
    Ok(if let [only] = &several[..] { only.clone().into() } else { several.into() })
}

fn type_names(types: &Value) -> Vec<String> {
    match types {
        Value::String(name) => vec![name.clone()],
        Value::Array(names) => names.iter().filter_map(|n| n.as_str().map(String::from)).collect(),
        _ => Vec::new(),
    }
}

/// Those that share no value.
const JSON_TYPES: [&str; 6] = ["array", "boolean", "null", "number", "object", "string"];
