//! [7] Python literals as JSON: models write them in calls with keywords, and templates print them.

use std::fmt::Write as _;

use super::json_text::quoted;

/// The JSON text of a literal: numbers, texts in quotes, True, False, None, lists, tuples and dicts,
/// also with JSON's true, false and null in them; `None` for anything else.
pub(crate) fn to_json(text: &str) -> Option<String> {
    let mut reader = Reader { rest: text.trim(), json: String::with_capacity(text.len()) };
    reader.value(MAX_DEPTH)?;
    reader.rest.is_empty().then_some(reader.json)
}

struct Reader<'a> {
    /// Begins with no white space.
    rest: &'a str,
    json: String,
}

impl Reader<'_> {
    fn value(&mut self, depth: u32) -> Option<()> {
        match self.rest.chars().next()? {
            '[' => self.list("[", "]", depth),
            '(' => self.list("(", ")", depth),
            '{' => self.dict(depth),
            '\'' | '"' => {
                let text = self.string()?;
                self.json.push_str(&quoted(&text));
                Some(())
            }
            _ => self.word(),
        }
    }

    fn list(&mut self, open: &str, close: &str, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        self.eat(open);
        self.json.push('[');
        let mut num_items = 0;
        while !self.eat(close) {
            if num_items > 0 {
                self.eat(",").then_some(())?;
                if self.eat(close) {
                    break;
                }
                self.json.push_str(", ");
            }
            self.value(depth)?;
            num_items += 1;
        }
        self.json.push(']');
        Some(())
    }

    fn dict(&mut self, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        self.eat("{");
        self.json.push('{');
        let mut num_items = 0;
        while !self.eat("}") {
            if num_items > 0 {
                self.eat(",").then_some(())?;
                if self.eat("}") {
                    break;
                }
                self.json.push_str(", ");
            }
            let key = self.rest.starts_with(['\'', '"']).then(|| self.string())??;
            self.eat(":").then_some(())?;
            // Writing to a String cannot fail.
            _ = write!(self.json, "{}: ", quoted(&key));
            self.value(depth)?;
            num_items += 1;
        }
        self.json.push('}');
        Some(())
    }

    /// A name of a constant, or a number.
    fn word(&mut self) -> Option<()> {
        let len = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-._".contains(c)));
        let (word, rest) = self.rest.split_at(len.unwrap_or(self.rest.len()));
        match word {
            "True" | "true" => self.json.push_str("true"),
            "False" | "false" => self.json.push_str("false"),
            "None" | "null" => self.json.push_str("null"),
            _ => {
                let plain = word.strip_prefix('+').unwrap_or(word);
                if serde_json::from_str::<serde_json::Number>(plain).is_ok() {
                    self.json.push_str(plain);
                } else {
                    // 5. and .5 are numbers here; inf and nan are none in JSON.
                    let number = plain.parse().ok().and_then(serde_json::Number::from_f64)?;
                    _ = write!(self.json, "{number}");
                }
            }
        }
        self.rest = rest.trim_start();
        Some(())
    }

    /// A text in quotes, with its escapes undone.
    fn string(&mut self) -> Option<String> {
        let quote = self.rest.chars().next()?;
        let mut chars = self.rest[1..].chars();
        let mut text = String::new();
        loop {
            match chars.next()? {
                c if c == quote => break,
                '\\' => match chars.next()? {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{c}'),
                    c @ ('\\' | '\'' | '"' | '/') => text.push(c),
                    '\n' => {}
                    'x' => text.push(number(&mut chars, 2)?),
                    'u' => text.push(pair(&mut chars)?),
                    'U' => text.push(number(&mut chars, 8)?),
                    c => text.extend(['\\', c]),
                },
                c => text.push(c),
            }
        }
        self.rest = chars.as_str().trim_start();
        Some(text)
    }

    fn eat(&mut self, mark: &str) -> bool {
        let rest = self.rest.strip_prefix(mark);
        self.rest = rest.map_or(self.rest, str::trim_start);
        rest.is_some()
    }
}

fn digits(chars: &mut std::str::Chars<'_>, len: usize) -> Option<u32> {
    let digits = chars.as_str().get(..len)?;
    let value = u32::from_str_radix(digits, 16).ok()?;
    *chars = chars.as_str()[len..].chars();
    Some(value)
}

fn number(chars: &mut std::str::Chars<'_>, len: usize) -> Option<char> {
    char::from_u32(digits(chars, len)?)
}

/// Four digits, or twice four as JSON writes a character beyond them.
fn pair(chars: &mut std::str::Chars<'_>) -> Option<char> {
    let high = digits(chars, 4)?;
    if !(0xD800..0xDC00).contains(&high) {
        return char::from_u32(high);
    }
    (chars.next()? == '\\' && chars.next()? == 'u').then_some(())?;
    let low = digits(chars, 4)?.checked_sub(0xDC00).filter(|low| *low < 0x400)?;
    char::from_u32(0x1_0000 + ((high - 0xD800) << 10) + low)
}

/// Levels of lists and dicts.
const MAX_DEPTH: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_literals_become_json() {
        for (python, json) in [
            ("True", "true"),
            (" None ", "null"),
            ("false", "false"),
            ("-1.5e3", "-1.5e3"),
            ("+7", "7"),
            (".5", "0.5"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("'a \"b\" \\'c\\' \\n \\d'", r#""a \"b\" 'c' \n \\d""#),
            (r#""\u00e9\ud83d\udd25\x41\U0001F525""#, "\"é🔥A🔥\""),
            ("[1, 'a', (2, 3,), {'k': [True, None]},]", r#"[1, "a", [2, 3], {"k": [true, null]}]"#),
            ("{}", "{}"),
            ("()", "[]"),
        ] {
            assert_eq!(to_json(python).as_deref(), Some(json), "{python}");
        }
        let deep = "[".repeat(100_000);
        for other in [
            "",
            "word",
            "f(1)",
            "[1",
            "'a",
            "{1: 2}",
            "nan",
            "[1 2]",
            "'a' 'b'",
            "\"\\ud83d\"",
            &deep,
        ] {
            assert_eq!(to_json(other), None);
        }
    }
}
