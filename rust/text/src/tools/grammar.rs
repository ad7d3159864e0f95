//! [2] Grammars of tool calls: that there is a call, that its function is a declared one, that its
//! arguments fit the function's schema.

use serde_json::{Value, json};

use super::ToolFormat;
use crate::Tokenizer;
use crate::grammar::{Marker, json_rule, literal, well_formed};

/// A function that a request declares.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// JSON schema of the arguments; `None` for a function that takes none. A call that nothing
    /// binds may have others all the same.
    pub parameters: Option<Value>,
    /// The arguments must fit the schema also where calls are the model's choice.
    pub strict: bool,
}

impl ToolSpec {
    /// Whether the parameters are a schema at all, also where no grammar is made from them: types
    /// have names, patterns are regexes (of whatever dialect), nesting has an end.
    ///
    /// # Errors
    /// One line.
    pub fn check(&self) -> Result<(), String> {
        self.parameters.as_ref().map_or(Ok(()), well_formed)
    }
}

/// What a grammar of tool calls is made from.
#[derive(Clone, Debug)]
pub struct ToolGrammar {
    format: ToolFormat,
    tools: Vec<ToolSpec>,
    parallel: bool,
    required: bool,
    opener: Marker,
    args: Marker,
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
        let args = Marker::new("[ARGS]", tokenizer);
        Self { format, tools, parallel, required, opener, args }
    }

    /// The same with one of the tools, to find the one whose schema is at fault.
    pub fn alone(&self) -> impl Iterator<Item = (&str, Self)> {
        self.tools.iter().map(|tool| {
            let tools = vec![tool.clone()];
            (tool.name.as_str(), Self { tools, ..self.clone() })
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
            let binds = self.required || tool.strict;
            let body = match &tool.parameters {
                _ if !binds => json_rule(&json!({ "type": "object" })),
                Some(schema) => json_rule(&as_object(schema)),
                None => Ok(literal("{}")),
            };
            let body = body.map_err(|error| format!("{}: {error}", tool.name))?;
            rules.push_str(&format!("args_{i}: {body}\n"));
            calls.push(self.call(&tool.name, i));
        }
        rules.push_str(&format!("call: {}\n", calls.join(" | ")));
        let start = if self.required { self.required_start() } else { self.free_start() };
        Ok(format!("{start}\n{rules}"))
    }

    /// One call without the markers around all calls.
    fn call(&self, name: &str, i: usize) -> String {
        let quoted = Value::from(name).to_string();
        match self.format {
            ToolFormat::MistralNamed => {
                format!("{} {} args_{i}", literal(name), self.args.token())
            }
            ToolFormat::Llama3 => {
                let open = literal(&format!("{{\"name\": {quoted}, \"parameters\": "));
                format!("{open} args_{i} \"}}\"")
            }
            ToolFormat::Hermes | ToolFormat::SmolLm2 | ToolFormat::Mistral => {
                let open = literal(&format!("{{\"name\": {quoted}, \"arguments\": "));
                format!("{open} args_{i} \"}}\"")
            }
        }
    }

    fn required_start(&self) -> String {
        let opener = self.opener.token();
        let more = |separator: &str| match self.parallel {
            true => format!("call ({} call)*", literal(separator)),
            false => "call".to_owned(),
        };
        match self.format {
            ToolFormat::Hermes => {
                let one = format!("{opener} \"\\n\" call \"\\n\" {}", literal(HERMES_CLOSE));
                match self.parallel {
                    true => format!("start: one (\"\\n\" one)*\none: {one}"),
                    false => format!("start: {one}"),
                }
            }
            ToolFormat::SmolLm2 => {
                let close = literal(&format!("]{HERMES_CLOSE}"));
                format!("start: {opener} \"[\" {} {close}", more(", "))
            }
            ToolFormat::Mistral => format!("start: {opener} \"[\" {} \"]\"", more(", ")),
            ToolFormat::MistralNamed if self.parallel => format!("start: ({opener} call)+"),
            ToolFormat::MistralNamed => format!("start: {opener} call"),
            // Llama's templates know one call an answer.
            ToolFormat::Llama3 => "start: call".to_owned(),
        }
    }

    /// Text that the model may write, and calls that keep to their schemas wherever it opens one.
    fn free_start(&self) -> String {
        let rules = self.opener.until("to_call") + &self.opener.without("tail");
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
            ToolFormat::Mistral => {
                let more = if self.parallel { "call (/, ?/ call)*" } else { "call" };
                format!("start: (to_call \"[\" {more} \"]\")? tail\n{rules}")
            }
            ToolFormat::MistralNamed => {
                format!("start: (to_call call){many} tail\n{rules}")
            }
            // What begins with a brace is a call.
            ToolFormat::Llama3 => "start: call | TEXT\nTEXT: /[^{](.|\\n)*/".to_owned(),
        }
    }
}

/// Arguments are an object, whatever the schema says or leaves out.
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
