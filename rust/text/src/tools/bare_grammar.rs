//! [2] Grammars of arguments as Gemma 4 writes them (`bare_arguments.rs` reads them): keys in the order of the schema.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::dialect::{BARE_QUOTE, Elements};
use super::members::{Object, sequence};
use super::speller::Speller;
use super::value_grammar::{ANNOTATIONS, Values, with_definitions};
use super::values::target;
use crate::grammar::{json_rule, literal};

/// The rule `args_{i}` and those it needs. `schema`: of the arguments; `None` for none.
///
/// # Errors
/// One line that says what cannot be enforced.
pub(crate) fn arguments(
    speller: &Speller,
    i: usize,
    schema: Option<&Value>,
) -> Result<String, String> {
    let Some(schema) = schema else { return Ok(format!("args_{i}: \"}}\"\n")) };
    let mut writer = Writer {
        speller,
        root: schema,
        quote: speller.spell(BARE_QUOTE),
        name: format!("v{i}"),
        count: 0,
        references: Vec::new(),
        has_any: false,
        rules: String::new(),
    };
    let members = writer.members(schema)?;
    Ok(format!("args_{i}: {members} \"}}\"\n{}", writer.rules))
}

struct Writer<'a> {
    speller: &'a Speller,
    /// What references lead into.
    root: &'a Value,
    quote: String,
    /// Begins the names of all rules.
    name: String,
    count: usize,
    /// Schemas that references lead to, and their rules.
    references: Vec<(&'a Value, String)>,
    has_any: bool,
    rules: String,
}

impl<'a> Writer<'a> {
    /// What stands between the braces of an object.
    fn members(&mut self, schema: &'a Value) -> Result<String, String> {
        let Some(object) = Object::of_part(schema, self.root)? else {
            let any = self.any()?;
            return Ok(format!("({any}_pair (\",\" {any}_pair)*)?"));
        };
        let mut members = Vec::new();
        for (name, property) in &object.properties {
            if name.is_empty() || name.contains(NOT_IN_KEYS) {
                return Err(format!(
                    "a parameter's name {name:?} cannot be written in this model's calls"
                ));
            }
            let value = self.value(property).map_err(|error| format!("{name}: {error}"))?;
            let key = literal(&format!("{name}:"));
            members.push((format!("{key} {value}"), object.is_required(name)));
        }
        let rule = self.new_name();
        self.rules.push_str(&sequence(&rule, ",", &members));
        Ok(rule)
    }

    /// The name of a rule of values that fit the schema.
    fn value(&mut self, schema: &'a Value) -> Result<String, String> {
        let Some(fields) = schema.as_object().filter(|fields| !fields.is_empty()) else {
            return match schema {
                Value::Bool(false) => Err("nothing can match it".into()),
                _ => self.any(),
            };
        };
        if let Some(target) = target(schema, self.root) {
            let known = self.references.iter().find(|(known, _)| std::ptr::eq(*known, target));
            if let Some((_, rule)) = known {
                return Ok(rule.clone());
            }
            let rule = self.new_name();
            self.references.push((target, rule.clone()));
            let value = self.value(target)?;
            _ = writeln!(self.rules, "{rule}: {value}");
            return Ok(rule);
        }
        let options = self.options(schema, fields)?;
        let rule = self.new_name();
        _ = writeln!(self.rules, "{rule}: {}", options.join(" | "));
        Ok(rule)
    }

    /// What a value may be, each as it stands in a rule.
    fn options(
        &mut self,
        schema: &'a Value,
        fields: &'a Map<String, Value>,
    ) -> Result<Vec<String>, String> {
        for key in ["anyOf", "oneOf", "allOf"] {
            if let Some(Value::Array(options)) = fields.get(key) {
                refuse_others(fields, &[key])?;
                if key == "allOf" && options.len() != 1 || options.is_empty() {
                    return Err(format!("{key} cannot be enforced in this model's calls"));
                }
                return options.iter().map(|option| self.value(option)).collect();
            }
        }
        if let Some(value) = fields.get("const") {
            return Ok(vec![self.exactly(value)?]);
        }
        if let Some(Value::Array(values)) = fields.get("enum") {
            return values.iter().map(|value| self.exactly(value)).collect();
        }
        match fields.get("type") {
            Some(Value::Array(types)) if !types.is_empty() => {
                types.iter().map(|kind| self.of_type(kind, schema, fields)).collect()
            }
            Some(kind) => Ok(vec![self.of_type(kind, schema, fields)?]),
            None if fields.contains_key("properties") => {
                Ok(vec![self.of_type(&json!("object"), schema, fields)?])
            }
            None if fields.contains_key("items") => {
                Ok(vec![self.of_type(&json!("array"), schema, fields)?])
            }
            None => {
                refuse_others(fields, &[])?;
                Ok(vec![self.any()?])
            }
        }
    }

    fn of_type(
        &mut self,
        kind: &Value,
        schema: &'a Value,
        fields: &'a Map<String, Value>,
    ) -> Result<String, String> {
        let rule = self.new_name();
        match kind.as_str() {
            Some("string") => {
                const ELEMENTS: Elements = Elements { value_end: BARE_QUOTE, ..Elements::NONE };
                let only = with_type(&Value::Object(fields.clone()), kind);
                let values = Values { elements: &ELEMENTS, speller: self.speller, root: self.root };
                let text = values.rules(&rule, &only)?;
                self.rules.push_str(&text);
                Ok(format!("{} {rule}", self.quote))
            }
            Some("object") => Ok(format!("\"{{\" {} \"}}\"", self.members(schema)?)),
            Some("array") => self.list(fields),
            _ => {
                let only = with_type(&with_definitions(schema, self.root), kind);
                _ = writeln!(self.rules, "{rule}: {}", json_rule(&only)?);
                Ok(rule)
            }
        }
    }

    fn list(&mut self, fields: &'a Map<String, Value>) -> Result<String, String> {
        refuse_others(fields, &["type", "items", "minItems", "maxItems"])?;
        let item = match fields.get("items") {
            Some(items) => self.value(items)?,
            None => self.any()?,
        };
        let bound = |key: &str| fields.get(key).and_then(Value::as_u64);
        let (least, most) = (bound("minItems").unwrap_or(0), bound("maxItems"));
        if most.is_some_and(|most| most < least) {
            return Err("a lower bound is above an upper bound".into());
        }
        if least.max(most.unwrap_or(0)) > MAX_ITEMS {
            return Err(format!("more than {MAX_ITEMS} items cannot be enforced here"));
        }
        if most == Some(0) {
            return Ok("\"[\" \"]\"".into());
        }
        let rest = most.map(|most| (most - 1).to_string()).unwrap_or_default();
        let items = format!("{item} (\",\" {item}){{{},{rest}}}", least.saturating_sub(1));
        let items = if least == 0 { format!("({items})?") } else { items };
        Ok(format!("\"[\" {items} \"]\""))
    }

    /// One value and no other.
    fn exactly(&self, value: &Value) -> Result<String, String> {
        match value {
            Value::String(text) if text.contains(BARE_QUOTE) => {
                Err(format!("{text:?} cannot be written in this model's calls"))
            }
            Value::String(text) if text.is_empty() => Ok(format!("{0} {0}", self.quote)),
            Value::String(text) => Ok(format!("{0} {1} {0}", self.quote, literal(text))),
            Value::Array(_) | Value::Object(_) => {
                Err("a list or an object among fixed values cannot be enforced here".into())
            }
            other => Ok(literal(&other.to_string())),
        }
    }

    /// The rule of any value.
    fn any(&mut self) -> Result<String, String> {
        let name = format!("{}_any", self.name);
        if !self.has_any {
            self.has_any = true;
            let scalar = json_rule(&json!({ "type": ["number", "boolean", "null"] }))?;
            let quote = &self.quote;
            let text = self.speller.until(BARE_QUOTE, &format!("{name}_text"));
            let key = name.to_uppercase();
            _ = write!(
                self.rules,
                "{name}: {quote} {name}_text | {name}_scalar | \"[\" ({name} (\",\" {name})*)? \"]\" \
                 | \"{{\" ({name}_pair (\",\" {name}_pair)*)? \"}}\"\n\
                 {name}_pair: {key}_KEY {name}\n{key}_KEY: /[A-Za-z_][A-Za-z0-9_.\\-]*:/\n\
                 {name}_scalar: {scalar}\n{text}"
            );
        }
        Ok(name)
    }

    fn new_name(&mut self) -> String {
        self.count += 1;
        format!("{}_{}", self.name, self.count)
    }
}

fn with_type(schema: &Value, kind: &Value) -> Value {
    let mut schema = schema.clone();
    schema["type"] = kind.clone();
    schema
}

/// Errors: a keyword that is none of these and says something.
fn refuse_others(fields: &Map<String, Value>, known: &[&str]) -> Result<(), String> {
    let is_known =
        |key: &&String| known.contains(&key.as_str()) || ANNOTATIONS.contains(&key.as_str());
    match fields.keys().find(|key| !is_known(key)) {
        Some(key) => Err(format!("{key} cannot be enforced in this model's calls")),
        None => Ok(()),
    }
}

/// Most items of a list that are counted.
const MAX_ITEMS: u64 = 200;
/// Marks of this syntax.
const NOT_IN_KEYS: [char; 11] = [':', ',', '{', '}', '[', ']', '<', '>', '"', '\n', ' '];
