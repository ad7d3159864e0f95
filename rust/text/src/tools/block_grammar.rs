//! [2] Grammars of tool calls whose name stands before their arguments, in markup that a `Dialect`
//! describes.

use std::fmt::Write as _;

use serde_json::Value;

use super::bare_grammar;
use super::dialect::{Body, Dialect, Elements};
use super::members::{Object, sequence};
use super::speller::Speller;
use super::value_grammar::{Values, with_definitions};
use crate::grammar::{json_rule, literal};

/// Writes the rules of calls.
pub(crate) struct Call<'a> {
    pub(crate) dialect: &'static Dialect,
    pub(crate) speller: &'a Speller,
    /// The model has no choice: white space is as its template writes it.
    pub(crate) is_forced: bool,
}

impl Call<'_> {
    /// One call without its frame.
    pub(crate) fn whole(&self, name: &str, i: usize) -> String {
        let dialect = self.dialect;
        // In a free text, what opens a call without a frame is the end of the text before it.
        let is_opened = !self.is_forced && dialect.frame.is_none();
        let open = if is_opened { "" } else { dialect.open };
        let open = self.speller.spell(&format!("{open}{name}{}", dialect.name_end));
        let named = self.space(dialect.spaces.named);
        let close = self.speller.spell(dialect.close);
        match dialect.body {
            Body::Json { fence: true } => {
                format!("{open} \"```json\\n\" args_{i} \"\\n```\" {close}")
            }
            _ => format!("{open} {named} args_{i} {close}"),
        }
    }

    /// The rule `args_i` and those it needs. `schema`: of the arguments; `None` for none.
    ///
    /// # Errors
    /// One line that says what cannot be enforced.
    pub(crate) fn arguments(&self, i: usize, schema: Option<&Value>) -> Result<String, String> {
        match &self.dialect.body {
            Body::Json { .. } => Ok(match schema {
                Some(schema) => format!("args_{i}: {}\n", json_rule(schema)?),
                None => format!("args_{i}: {}\n", literal("{}")),
            }),
            Body::Elements(elements) => self.elements(elements, i, schema),
            Body::Keywords => keywords(i, schema),
            Body::Bare => bare_grammar::arguments(self.speller, i, schema),
        }
    }

    fn elements(
        &self,
        elements: &'static Elements,
        i: usize,
        schema: Option<&Value>,
    ) -> Result<String, String> {
        let Some(schema) = schema else { return Ok(format!("args_{i}: \"\"\n")) };
        let Some(object) = Object::of(schema)? else {
            // Any argument, in any number.
            let key = self.speller.spell(elements.key);
            let key_end = self.speller.spell(elements.key_end);
            let value = self.before_value(elements);
            let after = self.space(elements.after_value);
            let any = self.speller.until(elements.value_end, &format!("any_{i}"));
            return Ok(format!(
                "args_{i}: ({key} NAME_{i} {key_end} {value} any_{i} {after})*\nNAME_{i}: /[^<>\"\\n]+/\n{any}"
            ));
        };
        let (mut sequence, mut rules) = (String::new(), String::new());
        for (p, (name, property)) in object.properties.iter().enumerate() {
            if [elements.key_end, "<", ">", "\"", "\n"].iter().any(|mark| name.contains(mark)) {
                return Err(format!(
                    "a parameter's name {name:?} cannot be written in this model's calls"
                ));
            }
            let rule = format!("value_{i}_{p}");
            let values = Values { elements, speller: self.speller, root: schema };
            let value =
                values.rules(&rule, property).map_err(|error| format!("{name}: {error}"))?;
            let key = self.speller.spell(&format!("{}{name}{}", elements.key, elements.key_end));
            let before = self.before_value(elements);
            let after = self.space(elements.after_value);
            _ = writeln!(rules, "arg_{i}_{p}: {key} {before} {rule} {after}");
            rules.push_str(&value);
            let mark = if object.is_required(name) { "" } else { "?" };
            _ = write!(sequence, " arg_{i}_{p}{mark}");
        }
        let sequence = if sequence.is_empty() { " \"\"".to_owned() } else { sequence };
        Ok(format!("args_{i}:{sequence}\n{rules}"))
    }

    fn before_value(&self, elements: &Elements) -> String {
        let space = self.space(elements.before_value);
        format!("{space} {}", self.speller.spell(elements.value))
    }

    /// White space between parts: as it must be, or as the model likes.
    fn space(&self, text: &str) -> String {
        match (text.is_empty(), self.is_forced) {
            (true, _) => String::new(),
            (false, true) => literal(text),
            (false, false) => "/\\n{0,2}/".to_owned(),
        }
    }
}

/// The rule `name`: calls and nothing else, as the template writes them.
pub(crate) fn calls(dialect: &Dialect, speller: &Speller, name: &str, parallel: bool) -> String {
    let spaces = &dialect.spaces;
    let between = speller.spell(spaces.between);
    let Some((open, close)) = dialect.frame else {
        return match parallel {
            true => format!("{name}: call ({between} call)*"),
            false => format!("{name}: call"),
        };
    };
    let open = speller.spell(&format!("{open}{}", spaces.framed));
    let close = speller.spell(&format!("{}{close}", spaces.ended));
    match (parallel, dialect.framed_each) {
        (false, _) => format!("{name}: {open} call {close}"),
        (true, false) => format!("{name}: {open} call ({between} call)* {close}"),
        (true, true) => format!("{name}: one ({between} one)*\none: {open} call {close}"),
    }
}

/// The rule `start`: text with calls in it. `to_call` ends with what opens calls; `tail` has none.
pub(crate) fn free_start(dialect: &Dialect, speller: &Speller, parallel: bool) -> String {
    if let Some((open, close)) = dialect.alone {
        // What begins with a bracket is calls.
        let mark = |mark| match speller.is_special(mark) {
            true => format!("({})?", speller.spell(mark)),
            false => String::new(),
        };
        let calls = calls(dialect, speller, "calls", parallel);
        let (open, close) = (mark(open), mark(close));
        return format!("start: {open} calls {close} | TEXT\nTEXT: /[^\\[\\s](.|\\n)*/\n{calls}\n");
    }
    let many = if parallel { "*" } else { "?" };
    let Some((_, close)) = dialect.frame else {
        return format!("start: (to_call call){many} tail\n");
    };
    let close = speller.spell(close);
    let more = match (parallel, dialect.framed_each) {
        (true, false) => "(/\\n{0,2}/ call)*",
        _ => "",
    };
    format!("start: (to_call /\\n{{0,2}}/ call {more} /\\n{{0,2}}/ {close}){many} tail\n")
}

/// `key=value, ..`; values are JSON, whose constants the parser reads too.
fn keywords(i: usize, schema: Option<&Value>) -> Result<String, String> {
    let Some(schema) = schema else { return Ok(format!("args_{i}: \"\"\n")) };
    let Some(object) = Object::of(schema)? else {
        let value = json_rule(&Value::Bool(true))?;
        return Ok(format!(
            "args_{i}: (any_{i} (\", \" any_{i})*)?\nany_{i}: /[A-Za-z_][A-Za-z0-9_]*=/ value_{i}\nvalue_{i}: {value}\n"
        ));
    };
    let (mut rules, mut members) = (String::new(), Vec::new());
    for (p, (name, property)) in object.properties.iter().enumerate() {
        if !name.chars().all(|c| c.is_alphanumeric() || c == '_') {
            return Err(format!(
                "a parameter's name {name:?} cannot be written in this model's calls"
            ));
        }
        let value = json_rule(&with_definitions(property, schema));
        let value = value.map_err(|error| format!("{name}: {error}"))?;
        _ = writeln!(rules, "value_{i}_{p}: {value}");
        let equals = literal(&format!("{name}="));
        members.push((format!("{equals} value_{i}_{p}"), object.is_required(name)));
    }
    Ok(sequence(&format!("args_{i}"), ", ", &members) + &rules)
}
