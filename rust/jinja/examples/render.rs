//! Renders templates given as JSON lines on standard input: `{"source": ..., "variables": {...}}`.
//! One JSON line comes out for each: `text`, or `raised`, `failed`, `limit` or `broken` with a message.
//! `cargo run -p ingle-jinja --example render < cases.jsonl`

use std::io::{BufRead, Write};

use ingle_jinja::{Context, Effort, RenderError, Source, Template};
use serde_json::{Value, json};

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        writeln!(out, "{}", answer(&line?))?;
    }
    Ok(())
}

fn answer(line: &str) -> Value {
    let case: Value = match serde_json::from_str(line) {
        Ok(case) => case,
        Err(error) => return json!({ "broken": error.to_string() }),
    };
    let template = match Template::new(case["source"].as_str().unwrap_or_default()) {
        Ok(template) => template,
        Err(error) => return json!({ "broken": error.to_string() }),
    };
    let mut context = Context::default();
    for (name, value) in case["variables"].as_object().into_iter().flatten() {
        if let Err(error) = context.set(name, value.clone(), Source::Request) {
            return json!({ "failed": error.to_string() });
        }
    }
    match template.render(&context, Effort::Full, &|format| Ok(format.to_owned())) {
        Ok(rendered) => json!({ "text": rendered.text, "units": rendered.units }),
        Err(RenderError::Raised(message)) => json!({ "raised": message }),
        Err(error @ RenderError::Failed { .. }) => json!({ "failed": error.to_string() }),
        Err(error @ RenderError::Limit { .. }) => json!({ "limit": error.to_string() }),
    }
}
