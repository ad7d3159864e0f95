//! [2] Grammars of single values that stand in elements: strings as they are, other values as JSON.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::dialect::Elements;
use super::speller::Speller;
use super::values::target;
use crate::grammar::{json_rule, literal, regex_of};

/// Writes the rules of the values of one function.
pub(crate) struct Values<'a> {
    pub(crate) elements: &'static Elements,
    pub(crate) speller: &'a Speller,
    /// What references lead into.
    pub(crate) root: &'a Value,
}

impl Values<'_> {
    /// The rule `name`: a value that fits the schema, and what ends it.
    ///
    /// # Errors
    /// One line that says what cannot be enforced.
    pub(crate) fn rules(&self, name: &str, schema: &Value) -> Result<String, String> {
        let mut found = Found::default();
        self.options(schema, MAX_LEVELS, &mut found)?;
        let mut rules = String::new();
        let mut options = Vec::new();
        if found.any_text {
            // Whatever else fits is a text too.
            return Ok(self.speller.until(self.elements.value_end, name));
        }
        let line = if self.elements.lines { "\n" } else { "" };
        let end = self.speller.spell(&format!("{line}{}", self.elements.value_end));
        for text in &found.literals {
            if text.contains(self.elements.value_end) {
                return Err(format!("{text:?} cannot be written in this model's calls"));
            }
            options.push(format!("{} {end}", literal(&format!("{line}{text}"))));
        }
        for (n, conditions) in found.texts.iter().enumerate() {
            let terminal = format!("{}_T{n}", name.to_uppercase());
            _ = writeln!(rules, "{terminal}: {}", self.bound_text(conditions));
            let is_special = self.speller.is_special(self.elements.value_end);
            let end = if is_special {
                self.speller.spell(self.elements.value_end)
            } else {
                String::new()
            };
            options.push(format!("{terminal} {end}"));
        }
        for (n, schema) in found.json.iter().enumerate() {
            let json = json_rule(schema)?;
            _ = writeln!(rules, "{name}_j{n}: {json}");
            let begin = if line.is_empty() { String::new() } else { literal(line) };
            options.push(format!("{begin} {name}_j{n} {end}"));
        }
        if options.is_empty() {
            return Err("nothing can match it".into());
        }
        Ok(format!("{name}: {}\n{rules}", options.join(" | ")))
    }

    /// A text that fits all of the regexes, with its end if that is no special token.
    fn bound_text(&self, conditions: &[String]) -> String {
        let line = if self.elements.lines { "\\n" } else { "" };
        if self.speller.is_special(self.elements.value_end) {
            let all: Vec<String> = conditions
                .iter()
                .map(|regex| regex_of(&format!("{line}({regex}){line}")))
                .collect();
            return all.join(" & ");
        }
        let end = regex_escape(self.elements.value_end);
        let one = |regex: &String| regex_of(&format!("{line}({regex}){line}{end}"));
        let all: Vec<String> = conditions.iter().map(one).collect();
        // The end comes once.
        format!("{} & ~{}", all.join(" & "), regex_of(&format!("(.|\\n)*{end}(.|\\n)+")))
    }

    fn options(&self, schema: &Value, levels: u8, found: &mut Found) -> Result<(), String> {
        let Some(fields) = schema.as_object().filter(|fields| !fields.is_empty()) else {
            found.any_text = true;
            return Ok(());
        };
        let left = levels.checked_sub(1).ok_or("it is nested too deeply")?;
        if let Some(target) = target(schema, self.root) {
            return self.options(target, left, found);
        }
        let is_alone = |key: &str| {
            fields.keys().all(|other| other == key || ANNOTATIONS.contains(&other.as_str()))
        };
        for key in ["anyOf", "oneOf", "allOf"] {
            if let Some(Value::Array(options)) = fields.get(key) {
                if !is_alone(key) || (key == "allOf" && options.len() != 1) {
                    return Err(format!(
                        "{key} cannot be enforced here: this model writes strings without quotes"
                    ));
                }
                return options.iter().try_for_each(|option| self.options(option, left, found));
            }
        }
        if let Some(value) = fields.get("const") {
            found.literal(value);
            return Ok(());
        }
        if let Some(Value::Array(values)) = fields.get("enum") {
            values.iter().for_each(|value| found.literal(value));
            return Ok(());
        }
        match fields.get("type") {
            Some(Value::Array(types)) => types.iter().try_for_each(|one| {
                let mut schema = schema.clone();
                schema["type"] = one.clone();
                self.options(&schema, left, found)
            }),
            Some(Value::String(name)) if name == "string" => {
                let conditions = conditions(fields)?;
                found.any_text |= conditions.is_empty();
                found.texts.push(conditions);
                Ok(())
            }
            None if fields.keys().all(|key| ANNOTATIONS.contains(&key.as_str())) => {
                found.any_text = true;
                Ok(())
            }
            _ => {
                found.json.push(with_definitions(schema, self.root));
                Ok(())
            }
        }
    }
}

/// What a value may be.
#[derive(Default)]
struct Found {
    any_text: bool,
    literals: Vec<String>,
    /// Regexes that a text must fit all at once.
    texts: Vec<Vec<String>>,
    json: Vec<Value>,
}

impl Found {
    fn literal(&mut self, value: &Value) {
        self.literals.push(match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
    }
}

/// A part of a schema with what its references lead into.
pub(crate) fn with_definitions(part: &Value, root: &Value) -> Value {
    let mut part = part.clone();
    if let Some(fields) = part.as_object_mut() {
        for key in ["$defs", "definitions"] {
            if let (Some(named), false) = (root.get(key), fields.contains_key(key)) {
                fields.insert(key.into(), named.clone());
            }
        }
    }
    part
}

/// Regexes for what a schema says about a string.
fn conditions(fields: &Map<String, Value>) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    let count = |key: &str| fields.get(key).and_then(Value::as_u64);
    if fields.contains_key("minLength") || fields.contains_key("maxLength") {
        let (least, most) = (count("minLength").unwrap_or(0), count("maxLength"));
        if most.is_some_and(|most| most < least) {
            return Err("a lower bound is above an upper bound".into());
        }
        if least.max(most.unwrap_or(0)) > MAX_LENGTH {
            return Err(format!("a length of more than {MAX_LENGTH} cannot be enforced here"));
        }
        let most = most.map(|most| most.to_string()).unwrap_or_default();
        all.push(format!("(.|\\n){{{least},{most}}}"));
    }
    if let Some(Value::String(pattern)) = fields.get("pattern") {
        all.push(whole_pattern(pattern)?);
    }
    if let Some(Value::String(format)) = fields.get("format") {
        let known = FORMATS.iter().find(|(name, _)| name == format);
        let (_, regex) = known
            .ok_or_else(|| format!("format {format:?} cannot be enforced in this model's calls"))?;
        all.push((*regex).to_owned());
    }
    let known = ["type", "minLength", "maxLength", "pattern", "format"];
    let is_known = |key: &str| known.contains(&key) || ANNOTATIONS.contains(&key);
    match fields.keys().find(|key| !is_known(key)) {
        Some(key) => Err(format!("{key} cannot be enforced in this model's calls")),
        None => Ok(all),
    }
}

/// A pattern that is found anywhere, as a regex of the whole text.
fn whole_pattern(pattern: &str) -> Result<String, String> {
    let at_start = pattern.strip_prefix('^');
    let body = at_start.unwrap_or(pattern);
    let at_end = body.strip_suffix('$').filter(|body| !body.ends_with('\\'));
    let body = at_end.unwrap_or(body);
    // An anchor would belong to one of the alternatives only.
    if (at_start.is_some() || at_end.is_some()) && body.contains('|') && !is_group(body) {
        return Err(
            "a pattern with an anchor and alternatives cannot be enforced in this model's calls"
                .into(),
        );
    }
    let before = if at_start.is_some() { "" } else { "(.|\\n)*" };
    let after = if at_end.is_some() { "" } else { "(.|\\n)*" };
    Ok(format!("{before}(?:{body}){after}"))
}

/// Whether a pattern is one group.
fn is_group(pattern: &str) -> bool {
    let inner = pattern.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    inner.is_some_and(|inner| !inner.contains(['(', ')', '\\', '[']))
}

/// A regex for exactly this text.
fn regex_escape(text: &str) -> String {
    let escape = |c: char| if "\\.+*?()|[]{}^$".contains(c) { vec!['\\', c] } else { vec![c] };
    text.chars().flat_map(escape).collect()
}

/// Levels of references and combinations.
const MAX_LEVELS: u8 = 8;
/// Characters of a string that are counted.
const MAX_LENGTH: u64 = 2000;

/// Keywords that forbid nothing.
pub(crate) const ANNOTATIONS: [&str; 9] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$defs",
];

/// Formats of strings as regexes: their shape, not the calendar.
const FORMATS: [(&str, &str); 7] = [
    ("date", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"),
    ("time", "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})?"),
    (
        "date-time",
        "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})",
    ),
    ("uuid", "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"),
    ("email", "[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(\\.[A-Za-z0-9-]{1,63}){1,8}"),
    ("ipv4", "((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"),
    ("uri", "[A-Za-z][A-Za-z0-9+.-]{0,30}:[!#-;=?-Z_a-z~\\[\\]@$&'()*+,%]{1,2000}"),
];
