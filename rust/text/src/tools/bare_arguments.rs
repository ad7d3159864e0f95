//! [7] Arguments as Gemma 4 writes them, `key:value,key:{key:value},key:[value]}`: keys have no quotes, and texts stand
//! between markers of their own. They come out as JSON while they arrive, texts character by character, other values
//! once they are whole.

use serde_json::Value;

use super::dialect::BARE_QUOTE;
use super::json_text::{escaped, quoted};
use super::values::Types;

/// The arguments of one call.
#[derive(Clone, Debug, Default)]
pub(crate) struct BareArguments {
    /// Lists and objects that are open within the arguments, and whether each has a member.
    open: Vec<(Kind, bool)>,
    /// The same of the arguments themselves.
    has_member: bool,
    place: Place,
    /// Whether a quote is open.
    is_quoted: bool,
    /// Bytes of a quote that have come.
    matched: usize,
    /// A key, or a value that is no text.
    word: String,
    /// Of the value that is read.
    types: Option<Types>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Object,
    List,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Key,
    Value,
    /// A text that is a value.
    Text,
    /// After a value: nothing counts but what follows a comma, or an end.
    After,
}

impl BareArguments {
    /// Takes text and appends JSON. The bytes up to the end of the arguments, if that has come. `parameters`: the
    /// function's schema.
    pub(crate) fn push(
        &mut self,
        text: &str,
        parameters: Option<&Value>,
        json: &mut String,
    ) -> Option<usize> {
        for (at, c) in text.char_indices() {
            // The marker's first character comes only once in it: a mismatch can only start anew.
            if !BARE_QUOTE[self.matched..].starts_with(c) {
                let begun = std::mem::take(&mut self.matched);
                BARE_QUOTE[..begun].chars().for_each(|c| _ = self.step(c, parameters, json));
            }
            if BARE_QUOTE[self.matched..].starts_with(c) {
                self.matched += c.len_utf8();
                if self.matched == BARE_QUOTE.len() {
                    self.matched = 0;
                    self.quote(json);
                }
            } else if self.step(c, parameters, json) {
                return Some(at + c.len_utf8());
            }
        }
        None
    }

    /// The answer has ended within the arguments.
    pub(crate) fn finish(&mut self, json: &mut String) {
        let begun = std::mem::take(&mut self.matched);
        if self.place == Place::Text {
            json.push_str(&escaped(&BARE_QUOTE[..begun]));
        }
    }

    fn quote(&mut self, json: &mut String) {
        match self.place {
            Place::Value if self.word.trim().is_empty() => {
                self.begin_value(json);
                json.push('"');
                self.place = Place::Text;
            }
            Place::Text => {
                json.push('"');
                self.place = Place::After;
            }
            // Around a key, or where no quote belongs: its marks count for nothing until it ends.
            Place::Key | Place::Value | Place::After => self.is_quoted = !self.is_quoted,
        }
    }

    /// The next character; true if it ends the arguments.
    fn step(&mut self, c: char, parameters: Option<&Value>, json: &mut String) -> bool {
        match (self.place, c) {
            (Place::Text, c) => json.push_str(&escaped(c.encode_utf8(&mut [0; 4]))),
            (Place::Key | Place::Value, c) if self.is_quoted => self.word.push(c),
            (Place::After, _) if self.is_quoted => {}
            (Place::Key, ':') => self.key(parameters, json),
            (Place::Key, ',') => self.word.clear(),
            (Place::Value, '{' | '[') if self.may_open() => {
                self.begin_value(json);
                json.push(c);
                let kind = if c == '{' { Kind::Object } else { Kind::List };
                self.open.push((kind, false));
                self.place = if c == '{' { Place::Key } else { Place::Value };
            }
            (Place::Value, ',' | '}' | ']') => {
                self.end_word(json);
                return self.after(c, json);
            }
            (Place::Key | Place::After, ',' | '}' | ']') => return self.after(c, json),
            (Place::Key | Place::Value, c) => self.word.push(c),
            (Place::After, _) => {}
        }
        false
    }

    fn may_open(&self) -> bool {
        self.word.trim().is_empty() && self.open.len() < MAX_DEPTH
    }

    fn key(&mut self, parameters: Option<&Value>, json: &mut String) {
        let key = std::mem::take(&mut self.word);
        let key = key.trim();
        let is_outermost = self.open.is_empty();
        self.types = is_outermost.then(|| Types::of_argument(parameters, key));
        self.begin_member(if is_outermost { "{" } else { "" }, json);
        json.push_str(&quoted(key));
        json.push_str(": ");
        self.place = Place::Value;
    }

    /// A value begins: an entry of a list is a member of it.
    fn begin_value(&mut self, json: &mut String) {
        self.word.clear();
        if let Some((Kind::List, _)) = self.open.last() {
            self.types = None;
            self.begin_member("", json);
        }
    }

    fn begin_member(&mut self, first: &str, json: &mut String) {
        let has_member = match self.open.last_mut() {
            Some((_, has_member)) => has_member,
            None => &mut self.has_member,
        };
        json.push_str(if *has_member { ", " } else { first });
        *has_member = true;
    }

    /// A value without quotes is whole.
    fn end_word(&mut self, json: &mut String) {
        let word = std::mem::take(&mut self.word);
        let word = word.trim();
        let is_entry = matches!(self.open.last(), Some((Kind::List, _)));
        // Nothing is no entry, but every key has a value.
        if word.is_empty() && is_entry {
            return;
        }
        self.begin_value(json);
        let json_text = match word {
            "" => "null".to_owned(),
            word => self.types.unwrap_or(Types::ANY).json_of(word),
        };
        json.push_str(&json_text);
    }

    /// After a value: what separates or ends.
    fn after(&mut self, c: char, json: &mut String) -> bool {
        self.word.clear();
        let kind = self.open.last().map(|(kind, _)| *kind);
        match (c, kind) {
            (',', Some(Kind::List)) => self.place = Place::Value,
            (',', _) => self.place = Place::Key,
            ('}', None) => {
                json.push_str(if self.has_member { "}" } else { "{}" });
                return true;
            }
            ('}', Some(Kind::Object)) | (']', Some(Kind::List)) => {
                self.open.pop();
                json.push(c);
                self.place = Place::After;
            }
            // Closes nothing that is open.
            _ => self.place = Place::After,
        }
        false
    }
}

/// Lists and objects one inside the other.
const MAX_DEPTH: usize = 64;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> (String, Option<usize>) {
        let parameters = json!({"properties": {"city": {"type": "string"}}});
        let (mut arguments, mut json) = (BareArguments::default(), String::new());
        let end = arguments.push(text, Some(&parameters), &mut json);
        if end.is_none() {
            arguments.finish(&mut json);
        }
        (json, end)
    }

    #[test]
    fn test_arguments_become_json() {
        for (text, want) in [
            ("}", "{}"),
            ("n:1,b:true,x:None}", r#"{"n": 1, "b": true, "x": null}"#),
            (r#"city:<|"|>Ulm, "B" }<|"|>}"#, r#"{"city": "Ulm, \"B\" }"}"#),
            ("city:42}", r#"{"city": "42"}"#),
            (
                r#"o:{a:[1,<|"|>x<|"|>,[]],b:{}},n:-2.5e3}"#,
                r#"{"o": {"a": [1, "x", []], "b": {}}, "n": -2.5e3}"#,
            ),
            (r#"<|"|>k:1<|"|>:<|"|>v<|"|>}"#, r#"{"k:1": "v"}"#),
            (" a : 1 ,\n b : [ 2 , ] }", r#"{"a": 1, "b": [2]}"#),
            ("a:word,b:}", r#"{"a": "word", "b": null}"#),
            (r#"a:<|"|><|"< <|x<|"|>}"#, r#"{"a": "<|\"< <|x"}"#),
        ] {
            assert_eq!(read(text), (want.to_owned(), Some(text.len())), "{text}");
        }
        assert_eq!(read("a:1}<tool_call|>").1, Some(4));
    }

    #[test]
    fn test_a_text_comes_out_as_far_as_it_has_come() {
        assert_eq!(read(r#"a:<|"|>Ul<|"#).0, r#"{"a": "Ul<|"#);
        assert_eq!(read("a:1,b:tr").0, r#"{"a": 1, "b": "#);
        let deep = format!("a:{}", "[".repeat(100_000));
        assert!(read(&deep).0.len() < 200);
    }
}
