//! How models write tool calls. The format is detected from the chat template.

use serde_json::Value;

/// A way to spell tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, once a call: Hermes, Qwen, SmolLM3.
    Hermes,
    /// `<tool_call>[{"name": .., "arguments": {..}}, ..]</tool_call>`: SmolLM2. Its template has no
    /// place for tools; they go into the system message.
    SmolLm2,
    /// `{"name": .., "parameters": {..}}` as the whole answer, after `<|python_tag|>` or nothing.
    Llama3,
    /// `[TOOL_CALLS][{"name": .., "arguments": {..}}, ..]`.
    Mistral,
    /// `[TOOL_CALLS]name[ARGS]{..}`, once a call: Mistral since the eleventh tokenizer version.
    MistralNamed,
}

impl ToolFormat {
    /// The format that a template asks the model for; `None` where it has no tools, or spells calls
    /// in a way that we do not parse.
    pub fn detect(template: &str) -> Option<Self> {
        if !template.contains("tools") {
            return template.contains("SmolLM").then_some(Self::SmolLm2);
        }
        if template.contains("[TOOL_CALLS]") {
            return Some(if template.contains("[ARGS]") {
                Self::MistralNamed
            } else {
                Self::Mistral
            });
        }
        // Qwen3-Coder and others write arguments as XML elements inside the same marker.
        if template.contains("<function=") || template.contains("<arg_key>") {
            return None;
        }
        if template.contains("<tool_call>") {
            return Some(Self::Hermes);
        }
        let llama = template.contains("<|python_tag|>") || template.contains("\"parameters\"");
        llama.then_some(Self::Llama3)
    }

    /// The markers of this format; a tokenizer may have them as special tokens, which must then stay
    /// in the text that the parser reads.
    pub fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::SmolLm2 => &["<tool_call>", "</tool_call>"],
            Self::Llama3 => &["<|python_tag|>"],
            Self::Mistral => &["[TOOL_CALLS]"],
            Self::MistralNamed => &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
        }
    }

    /// Messages with the tools in the system message, for a template that has no place for
    /// them; `None` if the template takes them itself.
    pub fn messages_with_tools(self, messages: &Value, tools: &Value) -> Option<Value> {
        if self != Self::SmolLm2 {
            return None;
        }
        let mut messages = messages.as_array()?.clone();
        messages.iter_mut().for_each(spell_calls);
        let description = format!(
            "You can call functions. To call some, answer with nothing but\n\
             <tool_call>[{{\"name\": \"NAME\", \"arguments\": {{\"PARAMETER\": VALUE}}}}]</tool_call>\n\
             with one entry a call. Answer in words if no function is of use or a required parameter \
             is unknown. The functions are:\n<tools>{tools}</tools>"
        );
        let system = messages.first_mut().filter(|message| message["role"] == "system");
        match system.and_then(|message| message.get_mut("content")) {
            Some(Value::String(content)) => {
                content.push_str("\n\n");
                content.push_str(&description);
            }
            _ => {
                messages.insert(0, serde_json::json!({ "role": "system", "content": description }));
            }
        }
        Some(Value::Array(messages))
    }
}

/// Writes the calls of an earlier answer into its text, as the model would have.
fn spell_calls(message: &mut Value) {
    let Some(message) = message.as_object_mut() else { return };
    let Some(Value::Array(calls)) = message.remove("tool_calls") else { return };
    let calls: Vec<Value> = calls
        .iter()
        .map(|call| {
            let function = &call["function"];
            serde_json::json!({ "name": function["name"], "arguments": function["arguments"] })
        })
        .collect();
    if calls.is_empty() {
        return;
    }
    let said = message.get("content").and_then(Value::as_str).unwrap_or_default();
    let text = format!("{said}<tool_call>{}</tool_call>", Value::from(calls));
    message.insert("content".into(), text.into());
}
