//! [1] Checks a client's JSON before anything is made from it: it is valid, has no duplicate keys, and
//! has no more values than the front end can turn into objects without delaying others. Any thread, GIL
//! released. Keeps nothing.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::error::EngineError;
use crate::request_limits::MAX_IDS;

/// Checks a whole document. Depth, numbers in lists and all other values are bounded, each so that
/// an interpreter that reads what passed is done within some milliseconds.
///
/// # Errors
/// `Refused`, with a position or a bound, never with the client's text but for a doubled key.
pub(crate) fn check_body(json: &[u8]) -> Result<(), EngineError> {
    let mut counts = Counts::default();
    let mut reader = serde_json::Deserializer::from_slice(json);
    let walk = Walk { counts: &mut counts, depth: 0, in_list: false };
    let read = walk.deserialize(&mut reader).and_then(|()| reader.end());
    read.map_err(|error| counts.refusal.take().unwrap_or_else(|| malformed(&error, &counts.place)))
}

/// Checks that a JSON value is a list of `1..=most` token ids, and counts them.
///
/// # Errors
/// `Refused` names the entry, as `field[3]`.
pub(crate) fn check_ids(field: &str, json: &[u8], most: usize) -> Result<usize, EngineError> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let mut list = Ids { field, most, refusal: None };
    let read = reader.deserialize_any(&mut list);
    let wrong = || EngineError::refused(field, format!("{field}: must be a list of token ids"));
    read.map_err(|_| list.refusal.take().unwrap_or_else(wrong))
}

#[derive(Default)]
struct Counts {
    /// Strings, objects, lists, and numbers outside lists.
    values: usize,
    /// Numbers in lists.
    numbers: usize,
    refusal: Option<EngineError>,
    /// Where the reader stopped, as `messages[0].content`, from the inside out.
    place: String,
}

impl Counts {
    fn refuse<E: serde::de::Error>(&mut self, message: String, code: &'static str) -> E {
        self.refuse_field(message, None, code)
    }

    /// A bound was met inside a field of the body.
    fn name_field(&mut self, name: &str) {
        if let Some(EngineError::Refused { message, param: param @ None, .. }) = &mut self.refusal {
            let name: String = name.chars().take(64).collect();
            *message = format!("{name}: {message}");
            *param = Some(name);
        }
    }

    /// The reader stopped within this part of what is around it.
    fn stopped_in(&mut self, step: &str) {
        let dot = if self.place.is_empty() || self.place.starts_with('[') { "" } else { "." };
        self.place.insert_str(0, &format!("{step}{dot}"));
    }

    /// The reader stops at its own error; ours is kept beside it.
    fn refuse_field<E: serde::de::Error>(
        &mut self,
        message: String,
        param: Option<String>,
        code: &'static str,
    ) -> E {
        self.refusal = Some(EngineError::Refused { message, param, code: Some(code), status: 400 });
        E::custom("refused")
    }
}

/// Reads one value and all below it.
struct Walk<'a> {
    counts: &'a mut Counts,
    depth: usize,
    in_list: bool,
}

impl Walk<'_> {
    fn count<E: serde::de::Error>(self) -> Result<(), E> {
        self.counts.values += 1;
        if self.counts.values > MAX_VALUES {
            let message = format!("the body has more than {MAX_VALUES} values");
            return Err(self.counts.refuse(message, "too_many_values"));
        }
        Ok(())
    }

    fn number<E: serde::de::Error>(self) -> Result<(), E> {
        if !self.in_list {
            return self.count();
        }
        self.counts.numbers += 1;
        if self.counts.numbers > MAX_IDS {
            let message = format!("the body has more than {MAX_IDS} numbers in lists");
            return Err(self.counts.refuse(message, "too_many_values"));
        }
        Ok(())
    }

    /// Counts a list or an object; the depth of what is in it.
    fn open<E: serde::de::Error>(&mut self) -> Result<usize, E> {
        let depth = self.depth + 1;
        if depth > MAX_DEPTH {
            let message =
                format!("the body is nested too deeply: more than {MAX_DEPTH} lists and objects");
            return Err(self.counts.refuse(message, "invalid_json"));
        }
        Walk { counts: &mut *self.counts, depth, in_list: false }.count()?;
        Ok(depth)
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.count()
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        self.count()
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<(), E> {
        self.number()
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<(), E> {
        self.number()
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        self.number()
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<(), E> {
        self.count()
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        let depth = self.open()?;
        for i in 0_usize.. {
            let entry = Walk { counts: &mut *self.counts, depth, in_list: true };
            match list.next_element_seed(entry) {
                Ok(Some(())) => {}
                Ok(None) => break,
                Err(error) => {
                    self.counts.stopped_in(&format!("[{i}]"));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> Result<(), A::Error> {
        let depth = self.open()?;
        let mut keys: Vec<Cow<'de, str>> = Vec::new();
        while let Some(key) = object.next_key_seed(Key)? {
            if key.len() > MAX_KEY_BYTES {
                let message = format!("a key has {} bytes, at most {MAX_KEY_BYTES}", key.len());
                return Err(self.counts.refuse(message, "invalid_json"));
            }
            let below = Walk { counts: &mut *self.counts, depth, in_list: false };
            if let Err(error) = object.next_value_seed(below) {
                if depth == 1 {
                    self.counts.name_field(&key);
                }
                let is_word =
                    key.len() <= 32 && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                self.counts.stopped_in(if is_word { &key } else { "*" });
                return Err(error);
            }
            keys.push(key);
        }
        keys.sort_unstable();
        let Some(twice) = keys.windows(2).find(|pair| pair[0] == pair[1]) else { return Ok(()) };
        let name: String = twice[0].chars().take(64).collect();
        let message = format!("{name}: duplicate field");
        Err(self.counts.refuse_field(message, Some(name), "invalid_json"))
    }
}

/// A key, borrowed where it has no escapes.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

struct Ids<'a> {
    field: &'a str,
    most: usize,
    refusal: Option<EngineError>,
}

impl<'de> Visitor<'de> for &mut Ids<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of token ids")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<usize, A::Error> {
        let mut count = 0;
        while let Some(entry) = list.next_element::<Entry>()? {
            if let Some(wrong) = entry.wrong() {
                let place = format!("{}[{count}]", self.field);
                let allowed = format!("a token id from 0 to {}", i32::MAX);
                self.refusal = Some(EngineError::not_allowed(&place, allowed, wrong));
                return Err(A::Error::custom("refused"));
            }
            count += 1;
        }
        if count == 0 || count > self.most {
            let (field, most) = (self.field, self.most);
            let allowed = format!("a list of 1 to {most} token ids");
            self.refusal =
                Some(EngineError::not_allowed(field, allowed, format!("{count} of them")));
            return Err(A::Error::custom("refused"));
        }
        Ok(count)
    }
}

/// An entry of what should be a list of ids.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Entry {
    Id(i64),
    Number(f64),
    Flag(bool),
    Text(#[allow(dead_code, reason = "only its type is named")] String),
    Other(serde::de::IgnoredAny),
}

impl Entry {
    /// What is wrong with it, in words that do not quote a text.
    fn wrong(&self) -> Option<String> {
        Some(match self {
            Self::Id(id) if (0..=i64::from(i32::MAX)).contains(id) => return None,
            Self::Id(id) => id.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Flag(flag) => flag.to_string(),
            Self::Text(_) => "a string".to_owned(),
            Self::Other(_) => "a list, an object or null".to_owned(),
        })
    }
}

/// `place` names keys that are words: others are the client's text.
fn malformed(error: &serde_json::Error, place: &str) -> EngineError {
    let text = error.to_string();
    let known = IN_OUR_WORDS.iter().find(|(sign, _)| text.starts_with(sign));
    let words = known.map_or("it breaks JSON's grammar", |(_, words)| words);
    let (line, column) = (error.line(), error.column());
    // In broken JSON anything may stand where a key belongs.
    let is_of_value = OF_VALUES.iter().any(|sign| text.starts_with(sign)) && !place.is_empty();
    let place = if is_of_value { format!("in {}, ", shortened(place)) } else { String::new() };
    EngineError::Refused {
        message: format!(
            "the body is not valid JSON: {words} ({place}line {line}, column {column})"
        ),
        param: None,
        code: Some("invalid_json"),
        status: 400,
    }
}

/// The beginning of a place.
fn shortened(place: &str) -> String {
    place.chars().take(200).collect()
}

/// What the JSON reader says, and what a client reads.
const IN_OUR_WORDS: [(&str, &str); 15] = [
    ("EOF", "it ends too early"),
    ("expected `:`", "a colon must follow a key"),
    ("expected `,` or `]`", "a comma or ] must follow a list's entry"),
    ("expected `,` or `}`", "a comma or } must follow a value in an object"),
    ("expected", "a value must stand here"),
    ("invalid escape", "a text has an invalid escape"),
    ("invalid number", "a number is not written as JSON writes numbers"),
    ("number out of range", "a number is out of range"),
    ("invalid unicode code point", "a text is not valid UTF-8"),
    ("control character", "a text has a control character, which must be escaped"),
    ("key must be a string", "a key must be a text in double quotes"),
    ("lone leading surrogate", "a text has half of a surrogate pair, which is not a character"),
    (
        "unexpected end of hex escape",
        "a text has half of a surrogate pair, which is not a character",
    ),
    ("trailing comma", "nothing follows a comma"),
    ("trailing characters", "something follows the end of the document"),
];
/// Signs of a value that is none in a body whose grammar is right so far.
const OF_VALUES: [&str; 6] = [
    "number out of range",
    "invalid escape",
    "invalid unicode code point",
    "control character",
    "lone leading surrogate",
    "unexpected end of hex escape",
];
/// Below serde_json's 128, with room for the objects that a request's parts are put into.
const MAX_DEPTH: usize = 110;
/// As many as 16,384 chat messages have; an interpreter makes them in some 10 ms.
const MAX_VALUES: usize = 1 << 16;
/// Token ids: more than any context holds.
const MAX_KEY_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(json: &[u8]) -> (String, Option<String>) {
        match check_body(json) {
            Err(EngineError::Refused { message, param, status: 400, .. }) => (message, param),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ordinary_bodies_pass() {
        for json in [r#"{"prompt":"x","n":1}"#, "[]", "null", r#"{"a":{"b":1},"b":[{"a":"\n"}]}"#] {
            assert_eq!(check_body(json.as_bytes()), Ok(()), "{json}");
        }
    }

    #[test]
    fn broken_bodies_are_named_by_position_only() {
        for json in [
            &b"{\"S3\":\"S3"[..],
            b"\xef\xbb\xbf{}",
            b"{}x",
            b"",
            b"{\"a\":NaN}",
            b"{\"a\":01}",
            b"{\"a\":\"\\ud83d\"}",
            b"{\"\\udc00\":1}",
            b"{\"a\":\"\xff\"}",
            b"{\"a\":\"\n\"}",
        ] {
            let (message, param) = refusal(json);
            assert!(message.starts_with("the body is not valid JSON: "), "{message}");
            assert!(!message.contains("S3") && !message.contains('\n'), "{message}");
            assert_eq!(param, None);
        }
    }

    #[test]
    fn a_text_that_is_none_is_named_by_its_place() {
        let half = "a text has half of a surrogate pair, which is not a character";
        for (json, words, place) in [
            (
                r#"{"messages":[{"content":"\ud800"}]}"#,
                half,
                "in messages[0].content, line 1, column 32",
            ),
            (r#"{"a":[1,"\udc00"]}"#, half, "in a[1], line 1, column 15"),
            (
                r#"{"schema":{"S3 secret":{"const":1e400}}}"#,
                "a number is out of range",
                "in schema.*.const, line 1, column 37",
            ),
            ("{\"a\":\n01}", "a number is not written as JSON writes numbers", "line 2, column 2"),
            ("{\"a\":[1,2", "it ends too early", "line 1, column 9"),
            ("", "it ends too early", "line 1, column 0"),
            ("{a:1}", "a key must be a text in double quotes", "line 1, column 2"),
        ] {
            let message = format!("the body is not valid JSON: {words} ({place})");
            assert_eq!(refusal(json.as_bytes()), (message, None));
        }
    }

    #[test]
    fn doubled_keys_are_refused_however_they_are_written() {
        for json in [r#"{"a":1,"b":2,"a":3}"#, r#"{"x":[{"a":1,"\u0061":2}]}"#] {
            let (message, param) = refusal(json.as_bytes());
            assert_eq!((&*message, param.as_deref()), ("a: duplicate field", Some("a")));
        }
    }

    #[test]
    fn bounds_hold_at_their_edges() {
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(check_body(deep(MAX_DEPTH).as_bytes()), Ok(()));
        for depth in [MAX_DEPTH + 1, 128, 100_000] {
            assert!(refusal(deep(depth).as_bytes()).0.contains("too deeply"), "{depth}");
        }
        let list = |entry: &str, n: usize| format!("[{}]", vec![entry; n].join(","));
        // The list itself is a value.
        assert_eq!(check_body(list("\"\"", MAX_VALUES - 1).as_bytes()), Ok(()));
        for entry in ["\"\"", "[]", "{}", "null"] {
            assert!(refusal(list(entry, MAX_VALUES).as_bytes()).0.contains("65536 values"));
        }
        assert_eq!(check_body(list("7", MAX_IDS).as_bytes()), Ok(()));
        assert!(refusal(list("7", MAX_IDS + 1).as_bytes()).0.contains("2097152 numbers"));
        let key = format!("{{\"{}\":1}}", "k".repeat(MAX_KEY_BYTES + 1));
        assert!(refusal(key.as_bytes()).0.contains("4097 bytes"));
    }

    #[test]
    fn a_bound_names_the_field_that_it_was_met_in() {
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        for (json, field) in [
            (format!(r#"{{"a":[1],"tools":{}}}"#, deep(MAX_DEPTH)), "tools"),
            (
                format!(r#"{{"chat_template_kwargs":{{"x":{}}}}}"#, deep(MAX_DEPTH)),
                "chat_template_kwargs",
            ),
            (format!(r#"{{"messages":[{}]}}"#, vec!["0"; MAX_IDS + 1].join(",")), "messages"),
        ] {
            let (message, param) = refusal(json.as_bytes());
            assert_eq!(param.as_deref(), Some(field));
            assert!(message.starts_with(&format!("{field}: the body ")), "{message}");
        }
    }

    #[test]
    fn lists_of_ids_are_checked_entry_by_entry() {
        assert_eq!(check_ids("prompt", b" [1, 2,3]", 3), Ok(3));
        for (json, what) in [
            ("[1,-1]", "prompt[1]: must be a token id from 0 to 2147483647, not -1"),
            ("[1,2147483648]", "prompt[1]: "),
            ("[1,18446744073709551615]", "prompt[1]: "),
            ("[1,1.5]", "prompt[1]: must be a token id from 0 to 2147483647, not 1.5"),
            ("[1,\"S3\"]", "prompt[1]: must be a token id from 0 to 2147483647, not a string"),
            ("[[1]]", "prompt[0]: "),
            ("[null]", "prompt[0]: "),
            ("[true]", "prompt[0]: must be a token id from 0 to 2147483647, not true"),
            ("[]", "prompt: must be a list of 1 to 3 token ids, not 0 of them"),
            ("[1,2,3,4]", "prompt: must be a list of 1 to 3 token ids, not 4 of them"),
            ("5", "prompt: must be a list of token ids"),
        ] {
            let Err(EngineError::Refused { message, .. }) = check_ids("prompt", json.as_bytes(), 3)
            else {
                panic!("{json}");
            };
            assert!(message.starts_with(what), "{json}: {message}");
            assert!(!message.contains("S3"), "{message}");
        }
    }
}
