//! [2] Grammars of tool calls: there is a call, its function is declared, and its arguments match
//! the function's schema.

use serde_json::{Value, json};

use super::block_grammar;
use super::harmony_grammar;
use super::speller::Speller;
use super::{ToolFormat, ToolSpec};
use crate::Tokenizer;
use crate::grammar::{Marker, enforceable, json_rule, literal};

/// What a grammar of tool calls is made from.
#[derive(Clone, Debug)]
pub struct ToolGrammar {
    format: ToolFormat,
    tools: Vec<ToolSpec>,
    parallel: bool,
    required: bool,
    /// Schema of the answer that is allowed instead of calls.
    answer: Option<Value>,
    opener: Marker,
    speller: Speller,
}

impl ToolGrammar {
    /// `tools`: those that may be called. `required`: the answer is one call, or several if
    /// `parallel`; otherwise it is text with calls in it.
    pub fn new(
        format: ToolFormat,
        tools: Vec<ToolSpec>,
        parallel: bool,
        required: bool,
        tokenizer: &Tokenizer,
    ) -> Self {
        let opener = Marker::new(format.markers()[0], tokenizer);
        let speller = Speller::new(format.markers(), tokenizer);
        // A message of the harmony format is one call.
        let parallel = parallel && format != ToolFormat::Harmony;
        Self { format, tools, parallel, required, answer: None, opener, speller }
    }

    /// Calls, or else JSON that fits `schema`, and no other text: in place of text with calls in it.
    ///
    /// # Errors
    /// One line, if an answer could read as a call of a strict tool and break its schema.
    pub fn or_answer(self, schema: Value) -> Result<Self, String> {
        let is_strict = self.tools.iter().any(|tool| tool.strict);
        if self.format == ToolFormat::Llama3 && is_strict && may_read_as_call(&schema) {
            return Err(
                "this model's calls have no marker: beside strict tools the schema must be \
                        an object with additionalProperties false and without a property called \
                        parameters or arguments"
                    .into(),
            );
        }
        Ok(Self { answer: Some(schema), ..self })
    }

    /// The same with one of the tools, its name and what its arguments must fit, to find the one whose
    /// schema is at fault.
    pub(crate) fn alone(&self) -> impl Iterator<Item = (&str, Self, Option<Value>)> {
        self.tools.iter().map(|tool| {
            let alone = Self { tools: vec![tool.clone()], answer: None, ..self.clone() };
            (tool.name.as_str(), alone, self.parameters(tool))
        })
    }

    /// Writes the grammar.
    ///
    /// # Errors
    /// One line that names the tool whose schema is out of bounds.
    pub(crate) fn lark(&self) -> Result<String, String> {
        let mut rules = String::new();
        let mut calls = Vec::with_capacity(self.tools.len());
        for (i, tool) in self.tools.iter().enumerate() {
            let schema = self.parameters(tool);
            if let Some(dialect) = self.format.dialect() {
                let is_forced = self.required || self.answer.is_some();
                let call = block_grammar::Call { dialect, speller: &self.speller, is_forced };
                let body = call.arguments(i, schema.as_ref());
                rules.push_str(&body.map_err(|error| format!("{}: {error}", tool.name))?);
                calls.push(call.whole(&tool.name, i));
                continue;
            }
            let body = match schema {
                schema if self.is_json_throughout() => {
                    // References that are not yet all of one form could not be moved.
                    let schema = schema.as_ref().map(enforceable).transpose();
                    schema.and_then(|schema| json_rule(&call_object(&tool.name, schema)))
                }
                Some(schema) => json_rule(&schema),
                None => Ok(literal("{}")),
            };
            let body = body.map_err(|error| format!("{}: {error}", tool.name))?;
            rules.push_str(&format!("args_{i}: {body}\n"));
            calls.push(self.call(&tool.name, i));
        }
        rules.push_str(&format!("call: {}\n", calls.join(" | ")));
        let start = match &self.answer {
            Some(schema) => {
                let before = match self.format {
                    ToolFormat::Harmony => harmony_grammar::final_header(&self.speller),
                    _ => String::new(),
                };
                format!(
                    "start: calls | answer\nanswer: {before} {}\n{}",
                    json_rule(schema)?,
                    self.calls("calls")
                )
            }
            None if self.required => self.calls("start"),
            None => self.free_start(),
        };
        Ok(format!("{start}\n{rules}"))
    }

    /// The schema that arguments must fit; `None` for a function that takes none.
    fn parameters(&self, tool: &ToolSpec) -> Option<Value> {
        let binds = self.required || tool.strict;
        if binds { tool.parameters.as_ref().map(as_object) } else { Some(any_object()) }
    }

    /// Whether a call is an object of JSON in the grammar too. It and the answer begin alike: a
    /// literal for the beginning of the call would be the only way that the lexer sees.
    fn is_json_throughout(&self) -> bool {
        self.format == ToolFormat::Llama3 && self.answer.is_some()
    }

    /// One call without the markers around all calls.
    fn call(&self, name: &str, i: usize) -> String {
        let quoted = Value::from(name).to_string();
        match self.format {
            ToolFormat::MistralNamed => {
                format!("{} args_{i}", self.speller.spell(&format!("{name}[ARGS]")))
            }
            ToolFormat::Harmony => {
                format!("{} args_{i}", harmony_grammar::call_header(&self.speller, name))
            }
            ToolFormat::Llama3 if self.is_json_throughout() => format!("args_{i}"),
            ToolFormat::Llama3 => {
                let open = literal(&format!("{{\"name\": {quoted}, \"parameters\": "));
                format!("{open} args_{i} \"}}\"")
            }
            _ => {
                let open = literal(&format!("{{\"name\": {quoted}, \"arguments\": "));
                format!("{open} args_{i} \"}}\"")
            }
        }
    }

    /// The rule `name`: one call, or several if there may be, with the markers around them.
    fn calls(&self, name: &str) -> String {
        if let Some(dialect) = self.format.dialect() {
            return block_grammar::calls(dialect, &self.speller, name, self.parallel);
        }
        let opener = self.opener.token();
        let more = |separator: &str| match self.parallel {
            true => format!("call ({} call)*", literal(separator)),
            false => "call".to_owned(),
        };
        match self.format {
            ToolFormat::Hermes => {
                let one = format!("{opener} \"\\n\" call \"\\n\" {}", literal(HERMES_CLOSE));
                match self.parallel {
                    true => format!("{name}: one (\"\\n\" one)*\none: {one}"),
                    false => format!("{name}: {one}"),
                }
            }
            ToolFormat::SmolLm2 => {
                let close = literal(&format!("]{HERMES_CLOSE}"));
                format!("{name}: {opener} \"[\" {} {close}", more(", "))
            }
            ToolFormat::Phi4Mini | ToolFormat::Phi4MiniSystem => {
                let close = self.speller.spell("<|/tool_call|>");
                format!("{name}: {opener} \"[\" {} \"]\" {close}", more(", "))
            }
            ToolFormat::MistralNamed if self.parallel => format!("{name}: ({opener} call)+"),
            ToolFormat::MistralNamed => format!("{name}: {opener} call"),
            // Llama's templates know one call an answer.
            ToolFormat::Llama3 | ToolFormat::Harmony => format!("{name}: call"),
            _ => format!("{name}: {opener} \"[\" {} \"]\"", more(", ")),
        }
    }

    /// Text that the model may write, and calls that keep to their schemas wherever it opens one.
    fn free_start(&self) -> String {
        if self.format == ToolFormat::Harmony {
            return harmony_grammar::free_start(&self.speller);
        }
        let rules = self.opener.until("to_call") + &self.opener.without("tail");
        if let Some(dialect) = self.format.dialect() {
            let start = block_grammar::free_start(dialect, &self.speller, self.parallel);
            return if dialect.alone.is_some() { start } else { start + &rules };
        }
        let many = if self.parallel { "*" } else { "?" };
        match self.format {
            ToolFormat::Hermes => {
                let close = literal(HERMES_CLOSE);
                format!("start: (to_call /\\n?/ call /\\n?/ {close}){many} tail\n{rules}")
            }
            ToolFormat::SmolLm2 => {
                let close = literal(&format!("]{HERMES_CLOSE}"));
                let more = if self.parallel { "call (/, ?/ call)*" } else { "call" };
                format!("start: (to_call \"[\" {more} {close})? tail\n{rules}")
            }
            ToolFormat::Phi4Mini | ToolFormat::Phi4MiniSystem => {
                let more = if self.parallel { "call (/, ?/ call)*" } else { "call" };
                let close = self.speller.spell("<|/tool_call|>");
                format!("start: (to_call \"[\" {more} \"]\" {close})? tail\n{rules}")
            }
            ToolFormat::MistralNamed => {
                format!("start: (to_call call){many} tail\n{rules}")
            }
            // What begins with a brace is a call.
            ToolFormat::Llama3 => "start: call | TEXT\nTEXT: /[^{](.|\\n)*/".to_owned(),
            _ => {
                let more = if self.parallel { "call (/, ?/ call)*" } else { "call" };
                format!("start: (to_call \"[\" {more} \"]\")? tail\n{rules}")
            }
        }
    }
}

fn any_object() -> Value {
    json!({ "type": "object" })
}

/// The schema of a whole call; `None` for a function that takes no arguments.
fn call_object(name: &str, parameters: Option<Value>) -> Value {
    let mut parameters = parameters.unwrap_or_else(
        || json!({ "type": "object", "properties": {}, "additionalProperties": false }),
    );
    rebase(&mut parameters);
    json!({
        "type": "object",
        "properties": { "name": { "const": name }, "parameters": parameters },
        "required": ["name", "parameters"],
        "additionalProperties": false,
    })
}

/// Makes references within the schema of the arguments hold in the schema of the call.
fn rebase(schema: &mut Value) {
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(rebase),
        Value::Object(fields) => {
            for (key, field) in fields.iter_mut() {
                match (key.as_str(), field) {
                    ("$ref", Value::String(place)) => {
                        if let Some(rest) = place.strip_prefix('#') {
                            *place = format!("#/properties/parameters{rest}");
                        }
                    }
                    // Values, not schemas.
                    ("const" | "enum" | "default" | "examples", _) => {}
                    // Their keys are names.
                    (
                        "properties" | "patternProperties" | "$defs" | "definitions",
                        Value::Object(named),
                    ) => named.values_mut().for_each(rebase),
                    (_, field) => rebase(field),
                }
            }
        }
        _ => {}
    }
}

/// Whether JSON of the schema may be an object that Llama's parser takes for a call.
fn may_read_as_call(schema: &Value) -> bool {
    let has = |name: &str| schema["properties"].get(name).is_some();
    let is_closed = schema["additionalProperties"] == false;
    !is_closed || schema.get("patternProperties").is_some() || has("parameters") || has("arguments")
}

/// Arguments are always an object, whatever the schema says.
fn as_object(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut()
        && !["type", "anyOf", "allOf", "oneOf", "$ref", "enum", "const"]
            .iter()
            .any(|key| fields.contains_key(*key))
    {
        fields.insert("type".into(), "object".into());
    }
    schema
}

const HERMES_CLOSE: &str = "</tool_call>";
