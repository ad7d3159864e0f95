//! The forms in which requests give a grammar, and their translation to one Lark grammar.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use super::bounds::{
    GrammarBudget, MAX_GUIDED_CHOICES, MAX_LARK_BRACKETS, MAX_LARK_LINES, MAX_REGEX_BYTES,
};
use super::lark::{Marker, literal, regex};
use super::schema::json_rule;
use crate::Tokenizer;
use crate::reasoning::ReasoningFormat;
use crate::tools::{Begins, HARMONY, Speller, ToolGrammar, around_body};

/// A grammar that a request asks for.
#[derive(Clone, Debug)]
pub struct GrammarSpec {
    /// Field of the request that errors name.
    pub field: &'static str,
    /// What the answer must match.
    pub source: GrammarSource,
    /// Where the answer may or must begin with reasoning, which no grammar binds.
    pub reasoning: Option<(ReasoningFormat, Reasoned)>,
}

/// Whether reasoning precedes the part that the grammar constrains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reasoned {
    /// The prompt has opened it: it must be closed first.
    Opened,
    /// The model may open it.
    Allowed,
    /// The prompt has closed it. Only the harmony format has something to say about that.
    Closed,
}

/// The forms of grammars.
#[derive(Clone, Debug)]
pub enum GrammarSource {
    /// Any JSON object.
    JsonObject,
    /// JSON of a schema.
    JsonSchema(Value),
    /// A regex, in the syntax of the Rust crate; it matches the whole answer.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's Lark dialect; its rule `start` matches the whole answer.
    Lark(String),
    /// Tool calls.
    Tools(ToolGrammar),
}

/// A grammar in the only form that is compiled.
pub(crate) struct Lark {
    /// The main grammar first; it may refer to the others by name.
    pub(crate) parts: Vec<(&'static str, String)>,
}

impl GrammarSpec {
    /// Writes the grammar.
    ///
    /// # Errors
    /// One line that says which bound it exceeds or what is wrong with it.
    pub(crate) fn lark(
        &self,
        budget: GrammarBudget,
        tokenizer: &Tokenizer,
    ) -> Result<Lark, String> {
        let body = match &self.source {
            GrammarSource::JsonObject => {
                format!("start: {}", json_rule(&json!({ "type": "object" }))?)
            }
            GrammarSource::JsonSchema(schema) => format!("start: {}", json_rule(schema)?),
            GrammarSource::Regex(pattern) => {
                check_size(pattern.len(), budget)?;
                if pattern.is_empty() {
                    return Err("the regex is empty".into());
                }
                if pattern.len() > MAX_REGEX_BYTES {
                    let len = pattern.len();
                    return Err(format!("a regex of {len} bytes, at most {MAX_REGEX_BYTES}"));
                }
                if pattern.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1 {
                    return Err("the regex ends with a backslash that escapes nothing".into());
                }
                format!("start: {}", regex(pattern))
            }
            GrammarSource::Choice(choices) => choice(choices, budget)?,
            GrammarSource::Lark(text) => {
                check_size(text.len(), budget)?;
                check_lark(text)?;
                text.clone()
            }
            GrammarSource::Tools(tools) => tools.lark()?,
        };
        check_size(body.len(), budget)?;
        let start = match &self.reasoning {
            None | Some((ReasoningFormat::Tags(_), Reasoned::Closed)) => {
                return Ok(Lark { parts: vec![("main", body)] });
            }
            Some((ReasoningFormat::Harmony, reasoned)) => {
                let begins = match reasoned {
                    Reasoned::Opened => Begins::Reasoning,
                    Reasoned::Allowed => Begins::Header,
                    Reasoned::Closed => Begins::Answer,
                };
                let is_calls = matches!(self.source, GrammarSource::Tools(_));
                around_body(&Speller::new(&HARMONY, tokenizer), begins, is_calls)
            }
            Some((ReasoningFormat::Tags(tags), reasoned)) => {
                let start = if *reasoned == Reasoned::Opened {
                    "start: reasoning /\\n{0,2}/ @body\n".to_owned()
                } else {
                    let marker = Marker::new(tags.open_marker(), tokenizer).token();
                    let label =
                        if tags.label.is_empty() { String::new() } else { literal(&tags.label) };
                    let open = format!("{marker} {label}");
                    format!("start: ({open} reasoning /\\n{{0,2}}/)? @body\n")
                };
                start + &Marker::new(&tags.close, tokenizer).until("reasoning")
            }
        };
        Ok(Lark { parts: vec![("main", start), ("body", body)] })
    }
}

impl Lark {
    /// The whole source: the key of the cache.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (name, part) in &self.parts {
            text.push_str(name);
            text.push('\0');
            text.push_str(part);
            text.push('\0');
        }
        text
    }

    pub(crate) fn into_grammar(self) -> TopLevelGrammar {
        let part = |(name, text): (&str, String)| GrammarWithLexer {
            name: Some(name.to_owned()),
            json_schema: None,
            lark_grammar: Some(text),
        };
        TopLevelGrammar { grammars: self.parts.into_iter().map(part).collect(), max_tokens: None }
    }
}

fn choice(choices: &[String], budget: GrammarBudget) -> Result<String, String> {
    if choices.is_empty() {
        return Err("no choice is given".into());
    }
    if choices.len() > MAX_GUIDED_CHOICES {
        return Err(format!(
            "must have at most {MAX_GUIDED_CHOICES} choices, not {}",
            choices.len()
        ));
    }
    check_size(choices.iter().map(String::len).sum(), budget)?;
    if choices.iter().any(String::is_empty) {
        return Err("a choice is empty".into());
    }
    let choices: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
    // One terminal: the lexer, not the parser, tells the choices apart.
    Ok(format!("start: CHOICE\nCHOICE: {}", choices.join(" | ")))
}

fn check_size(bytes: usize, budget: GrammarBudget) -> Result<(), String> {
    if bytes > budget.max_bytes {
        return Err(format!("{bytes} bytes, at most {}", budget.max_bytes));
    }
    Ok(())
}

/// The grammar's parser and compiler recurse; these counts, which no quoting can hide from, bound it.
fn check_lark(text: &str) -> Result<(), String> {
    let brackets = text.bytes().filter(|byte| b"([{".contains(byte)).count();
    if brackets > MAX_LARK_BRACKETS {
        return Err(format!("{brackets} opening brackets, at most {MAX_LARK_BRACKETS}"));
    }
    let lines = text.bytes().filter(|&byte| byte == b'\n').count() + 1;
    if lines > MAX_LARK_LINES {
        return Err(format!("{lines} lines, at most {MAX_LARK_LINES}"));
    }
    if text.contains("x-guidance") {
        return Err("x-guidance is not supported".into());
    }
    Ok(())
}
