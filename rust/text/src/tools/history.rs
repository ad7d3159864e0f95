//! [2] Messages as a template needs them that has no place for tools, or for several calls.

use serde_json::{Value, json};

use super::ToolFormat;

impl ToolFormat {
    /// Messages with the tools in the system message, for a template that has no place for
    /// them; `None` if the template takes them itself.
    pub fn messages_with_tools(self, messages: &Value, tools: &Value) -> Option<Value> {
        let mut messages = messages.as_array()?.clone();
        match self {
            Self::SmolLm2 => {}
            Self::Phi4MiniSystem => return Some(with_tools_of_system(messages, tools)),
            _ => return None,
        }
        messages.iter_mut().for_each(|message| spell_calls(message, self));
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
                messages.insert(0, json!({ "role": "system", "content": description }));
            }
        }
        Some(Value::Array(messages))
    }

    /// Messages of which the template writes everything: gpt-oss's writes one call of a message and
    /// refuses a text beside its reasoning. `None` if they are such already.
    pub fn messages_with_all_calls(self, messages: &Value) -> Option<Value> {
        let list = messages.as_array().filter(|_| self == Self::Harmony)?;
        let is_split = |message: &Value| {
            num_calls(message) < 2 && !(num_calls(message) == 1 && has_text_and_thought(message))
        };
        if list.iter().all(is_split) {
            return None;
        }
        let mut out = Vec::with_capacity(list.len());
        let mut rest = list.iter().peekable();
        while let Some(message) = rest.next() {
            let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
            if calls.is_empty() {
                out.push(message.clone());
                continue;
            }
            let mut results = Vec::new();
            while let Some(result) = rest.next_if(|next| next["role"] == "tool") {
                results.push(result.clone());
            }
            let mut said = Some(with_one_text(message));
            for (i, call) in calls.iter().enumerate() {
                let mut one =
                    said.take().unwrap_or_else(|| json!({ "role": "assistant", "content": "" }));
                one["tool_calls"] = json!([call]);
                out.push(one);
                // Results name their call; those that name none come in its order.
                let is_its = |result: &Value| match (&result["tool_call_id"], &call["id"]) {
                    (Value::String(of), Value::String(id)) => of == id,
                    _ => true,
                };
                let is_last = i + 1 == calls.len();
                match results.iter().position(is_its) {
                    _ if is_last => out.append(&mut results),
                    Some(at) => out.push(results.remove(at)),
                    None => {}
                }
            }
        }
        Some(Value::Array(out))
    }
}

fn num_calls(message: &Value) -> usize {
    message["tool_calls"].as_array().map_or(0, Vec::len)
}

fn text<'m>(message: &'m Value, names: &[&str]) -> &'m str {
    let texts = names.iter().filter_map(|name| message.get(*name)?.as_str());
    texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
}

fn has_text_and_thought(message: &Value) -> bool {
    !text(message, &["content"]).is_empty() && !text(message, &THOUGHTS).is_empty()
}

/// What was said before a call joins the reasoning: there is one place for both.
fn with_one_text(message: &Value) -> Value {
    let mut message = message.clone();
    if has_text_and_thought(&message) {
        let joined = format!("{}\n\n{}", text(&message, &THOUGHTS), text(&message, &["content"]));
        if let Some(fields) = message.as_object_mut() {
            THOUGHTS.iter().for_each(|name| _ = fields.remove(*name));
            fields.insert("reasoning_content".into(), joined.into());
            fields.insert("content".into(), "".into());
        }
    }
    message
}

/// The functions as JSON text under `tools` of the system message, which is made if there is none.
fn with_tools_of_system(mut messages: Vec<Value>, tools: &Value) -> Value {
    messages.iter_mut().for_each(|message| spell_calls(message, ToolFormat::Phi4MiniSystem));
    if messages.first().is_none_or(|first| first["role"] != "system") {
        messages.insert(0, json!({ "role": "system", "content": "" }));
    }
    let functions = tools.as_array().into_iter().flatten().map(|tool| tool["function"].clone());
    let text = Value::from(functions.collect::<Vec<_>>()).to_string();
    if let Some(fields) = messages.first_mut().and_then(Value::as_object_mut) {
        fields.insert("tools".into(), text.into());
    }
    Value::Array(messages)
}

/// Writes the calls of an earlier answer into its text, as the model would have.
fn spell_calls(message: &mut Value, format: ToolFormat) {
    let Some(message) = message.as_object_mut() else { return };
    let Some(Value::Array(calls)) = message.remove("tool_calls") else { return };
    let calls: Vec<Value> = calls
        .iter()
        .map(|call| {
            let function = &call["function"];
            json!({ "name": function["name"], "arguments": function["arguments"] })
        })
        .collect();
    if calls.is_empty() {
        return;
    }
    let said = message.get("content").and_then(Value::as_str).unwrap_or_default();
    let [open, close] = format.markers() else { return };
    let text = format!("{said}{open}{}{close}", Value::from(calls));
    message.insert("content".into(), text.into());
}

/// Names of a message's reasoning.
const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
