//! [2] Grammars of messages in the harmony format: what a header may be, and what follows it.

use super::speller::Speller;

/// The header of the message that answers.
pub(crate) fn final_header(speller: &Speller) -> String {
    let constrained = speller.spell(" <|constrain|>json");
    format!(
        "{} ({constrained})? {}",
        speller.spell("<|channel|>final"),
        speller.spell("<|message|>")
    )
}

/// The header of a call: the receiver stands in it or before it.
pub(crate) fn call_header(speller: &Speller, name: &str) -> String {
    let to = format!(" to=functions.{name}");
    let inside = speller.spell(&format!("<|channel|>commentary{to} "));
    let before = speller.spell(&format!("{to}<|channel|>commentary "));
    let constrain = speller.spell("<|constrain|>");
    let rest = speller.spell("json<|message|>");
    format!("({inside} | {before}) ({constrain})? {rest}")
}

/// The rules `lead`, a message before the one that answers or calls, and `lead_end`.
fn lead(speller: &Speller, channels: &str) -> String {
    let (channel, message) = (speller.spell("<|channel|>"), speller.spell("<|message|>"));
    let next = speller.spell("<|start|>assistant");
    let until = speller.until("<|end|>", "lead_end");
    format!("lead: {channel} ({channels}) {message} lead_end {next}\n{until}")
}

/// The rule `start`: reasoning and other messages, then an answer or a call.
pub(crate) fn free_start(speller: &Speller) -> String {
    let header = format!("{} {}", speller.spell("<|channel|>final"), speller.spell("<|message|>"));
    let lead = lead(speller, "\"analysis\" | \"commentary\"");
    format!("start: lead* (call | {header} TEXT?)\nTEXT: /(.|\\n)+/\n{lead}")
}

/// Where an answer in this format begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    /// With a header.
    Header,
    /// In the reasoning.
    Reasoning,
    /// In the message that answers.
    Answer,
}

/// The rule `start`: reasoning, then `body`, which has headers of its own if it is calls.
pub(crate) fn around_body(speller: &Speller, begins: Begins, is_calls: bool) -> String {
    let header = if is_calls { String::new() } else { final_header(speller) };
    let next = speller.spell("<|start|>assistant");
    let lead = lead(speller, "\"analysis\"");
    let start = match begins {
        Begins::Header => format!("lead* {header} @body"),
        Begins::Reasoning => format!("lead_end {next} lead* {header} @body"),
        Begins::Answer if is_calls => format!("lead_end {next} lead* @body"),
        Begins::Answer => return "start: @body\n".to_owned(),
    };
    format!("start: {start}\n{lead}")
}
