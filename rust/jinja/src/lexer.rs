//! Splits a template's source into tokens as Jinja2's lexer does with `trim_blocks` and
//! `lstrip_blocks`. At load only. Linear in the source, without recursion.

use std::sync::Arc;

use crate::error::CompileError;

/// A token and the line where it begins.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) line: u32,
    pub(crate) kind: TokenKind,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TokenKind {
    Data(Arc<str>),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(Arc<str>),
    Str(Arc<str>),
    Int(i128),
    Float(f64),
    Op(&'static str),
    Eof,
}

/// All tokens of a source; the last one is `Eof`.
pub(crate) fn tokens(source: &str) -> Result<Vec<Token>, CompileError> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer { source: &source, at: 0, line: 1, line_starting: true, out: Vec::new() };
    while lexer.at < source.len() {
        lexer.data()?;
    }
    lexer.push(TokenKind::Eof);
    Ok(lexer.out)
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: u32,
    /// Whether the last character ended a line.
    line_starting: bool,
    out: Vec<Token>,
}

/// A tag that begins with `{`.
enum Opening {
    Variable,
    Block,
    Comment,
    /// Bytes of the entire `{% raw %}`.
    Raw(usize),
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        self.source.get(self.at..).unwrap_or("")
    }

    fn push(&mut self, kind: TokenKind) {
        self.out.push(Token { line: self.line, kind });
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T, CompileError> {
        Err(CompileError { line: self.line, message: message.into() })
    }

    /// Skips bytes and counts their lines.
    fn skip(&mut self, bytes: usize) {
        let passed = self.rest().get(..bytes).unwrap_or("");
        let lines = passed.bytes().filter(|byte| *byte == b'\n').count();
        self.line = self.line.saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
        self.line_starting = passed.ends_with('\n');
        self.at += bytes;
    }

    /// Reads text up to the next tag, then the tag.
    fn data(&mut self) -> Result<(), CompileError> {
        let rest = self.rest();
        let mut from = 0;
        let (start, opening) = loop {
            let Some(found) = rest.get(from..).and_then(|rest| rest.find('{')) else {
                self.push(TokenKind::Data(rest.into()));
                self.skip(rest.len());
                return Ok(());
            };
            let start = from + found;
            match opening(rest.get(start..).unwrap_or("")) {
                Some(opening) => break (start, opening),
                None => from = start + 1,
            }
        };
        let sign = rest.as_bytes().get(start + 2).copied();
        let lstrip = !matches!(opening, Opening::Variable);
        self.push_data(start, sign, lstrip);
        let signed = usize::from(matches!(sign, Some(b'-' | b'+')));
        match opening {
            Opening::Variable => {
                self.push(TokenKind::VariableBegin);
                self.skip(2 + signed);
                self.tag("}}", false)
            }
            Opening::Block => {
                self.push(TokenKind::BlockBegin);
                self.skip(2 + signed);
                self.tag("%}", true)
            }
            Opening::Comment => {
                self.skip(2 + signed);
                let Some(end) = self.rest().find("#}") else {
                    return self.fail("Missing end of comment tag");
                };
                let before = self.rest().as_bytes().get(end.wrapping_sub(1)).copied();
                let sign = before.filter(|c| end > 0 && matches!(c, b'-' | b'+'));
                self.skip(end);
                self.close_tag(2, sign, true);
                Ok(())
            }
            Opening::Raw(length) => {
                self.skip(length);
                self.raw()
            }
        }
    }

    /// The text before a tag, stripped as the tag requires.
    fn push_data(&mut self, length: usize, sign: Option<u8>, lstrip: bool) {
        let text = self.rest().get(..length).unwrap_or("");
        let mut kept = text;
        if sign == Some(b'-') {
            kept = text.trim_end_matches(is_space);
        } else if sign != Some(b'+') && lstrip {
            let line = text.rfind('\n').map_or(0, |at| at + 1);
            let indent = text.get(line..).unwrap_or("");
            let blank = !indent.is_empty() && indent.chars().all(is_space);
            if (line > 0 || self.line_starting) && blank {
                kept = text.get(..line).unwrap_or("");
            }
        }
        if !kept.is_empty() {
            self.push(TokenKind::Data(kept.into()));
        }
        self.skip(length);
    }

    /// Skips the end of a tag and the white space that belongs to it.
    fn close_tag(&mut self, length: usize, sign: Option<u8>, trims_line: bool) {
        let rest = self.rest().get(length..).unwrap_or("");
        let space = match sign {
            Some(b'-') => rest.len() - rest.trim_start_matches(is_space).len(),
            Some(b'+') => 0,
            _ => usize::from(trims_line && rest.starts_with('\n')),
        };
        self.skip(length + space);
    }

    fn raw(&mut self) -> Result<(), CompileError> {
        let rest = self.rest();
        let mut from = 0;
        while let Some(found) = rest.get(from..).and_then(|rest| rest.find("{%")) {
            let start = from + found;
            let tag = rest.get(start + 2..).unwrap_or("");
            let sign = tag.bytes().next().filter(|c| matches!(c, b'-' | b'+'));
            let name = tag.get(usize::from(sign.is_some())..).unwrap_or("");
            if let Some(after) = name.trim_start_matches(is_space).strip_prefix("endraw") {
                let after = after.trim_start_matches(is_space);
                let end_sign = after.bytes().next().filter(|c| matches!(c, b'-' | b'+'));
                let close = after.get(usize::from(end_sign.is_some())..).unwrap_or("");
                if close.starts_with("%}") {
                    let end = rest.len() - close.len();
                    self.push_data(start, sign, true);
                    self.skip(end - start);
                    self.close_tag(2, end_sign, true);
                    return Ok(());
                }
            }
            from = start + 2;
        }
        self.fail("Missing end of raw directive")
    }

    /// The tokens inside a tag, its end included.
    fn tag(&mut self, end: &'static str, is_block: bool) -> Result<(), CompileError> {
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            let rest = self.rest();
            let Some(first) = rest.chars().next() else {
                return Ok(());
            };
            if open.is_empty() {
                let sign = rest.bytes().next().filter(|c| *c == b'-' || (is_block && *c == b'+'));
                let signed = usize::from(sign.is_some());
                if rest.get(signed..).is_some_and(|rest| rest.starts_with(end)) {
                    self.push(if is_block { TokenKind::BlockEnd } else { TokenKind::VariableEnd });
                    self.close_tag(signed + 2, sign, is_block);
                    return Ok(());
                }
            }
            if is_space(first) {
                self.skip(rest.len() - rest.trim_start_matches(is_space).len());
            } else if first.is_ascii_digit() {
                self.number()?;
            } else if first == '_' || first.is_alphanumeric() {
                self.name()?;
            } else if first == '\'' || first == '"' {
                self.string(first)?;
            } else {
                self.operator(&mut open)?;
            }
        }
    }

    fn operator(&mut self, open: &mut Vec<&'static str>) -> Result<(), CompileError> {
        let rest = self.rest();
        let Some(&op) = OPERATORS.iter().find(|op| rest.starts_with(**op)) else {
            let c = rest.chars().next().unwrap_or(' ');
            return self.fail(format!("unexpected char {c:?}"));
        };
        match op {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" => match open.pop() {
                Some(expected) if expected != op => {
                    return self.fail(format!("unexpected '{op}', expected '{expected}'"));
                }
                Some(_) => {}
                None => return self.fail(format!("unexpected '{op}'")),
            },
            _ => {}
        }
        self.push(TokenKind::Op(op));
        self.skip(op.len());
        Ok(())
    }

    fn name(&mut self) -> Result<(), CompileError> {
        let rest = self.rest();
        let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
        let name = rest.get(..end).unwrap_or("");
        if !name.starts_with(|c: char| c == '_' || c.is_alphabetic()) {
            return self.fail("Invalid character in identifier");
        }
        self.push(TokenKind::Name(name.into()));
        self.skip(end);
        Ok(())
    }

    fn number(&mut self) -> Result<(), CompileError> {
        let rest = self.rest();
        // After a dot, digits are an index and not the beginning of a float.
        let after_dot = self.source.get(..self.at).is_some_and(|before| before.ends_with('.'));
        if let Some(length) = float_length(rest).filter(|_| !after_dot) {
            let digits: String = rest.chars().take(length).filter(|c| *c != '_').collect();
            self.push(TokenKind::Float(digits.parse().unwrap_or(f64::NAN)));
            self.skip(length);
            return Ok(());
        }
        let (radix, prefix) = match rest.as_bytes() {
            [b'0', b'b' | b'B', ..] => (2, 2),
            [b'0', b'o' | b'O', ..] => (8, 2),
            [b'0', b'x' | b'X', ..] => (16, 2),
            _ => (10, 0),
        };
        let mut length = prefix + digits_length(rest.get(prefix..).unwrap_or(""), radix);
        let (mut radix, mut digits) = (radix, rest.get(prefix..length).unwrap_or(""));
        if length == prefix {
            // `0x` without a digit is the number 0 and a name.
            (radix, digits, length) = (10, "0", 1);
        } else if prefix == 0 && rest.starts_with('0') {
            let zeros = rest.find(|c| c != '0' && c != '_').unwrap_or(rest.len());
            length = rest.get(..zeros).unwrap_or("").trim_end_matches('_').len();
            digits = "0";
        }
        match i128::from_str_radix(&digits.replace('_', ""), radix) {
            Ok(value) => self.push(TokenKind::Int(value)),
            Err(_) => return self.fail("an integer has more than 127 bits"),
        }
        self.skip(length);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<(), CompileError> {
        let rest = self.rest();
        let mut chars = rest.char_indices().skip(1);
        let mut end = None;
        while let Some((at, c)) = chars.next() {
            if c == '\\' {
                chars.next();
            } else if c == quote {
                end = Some(at);
                break;
            }
        }
        let Some(end) = end else {
            return self.fail(format!("unexpected char {quote:?}"));
        };
        match unescaped(rest.get(1..end).unwrap_or("")) {
            Ok(text) => self.push(TokenKind::Str(text.into())),
            Err(message) => return self.fail(message),
        }
        self.skip(end + 1);
        Ok(())
    }
}

/// The tag at the start of this text, which begins with `{`.
fn opening(text: &str) -> Option<Opening> {
    match text.as_bytes().get(1)? {
        b'{' => Some(Opening::Variable),
        b'#' => Some(Opening::Comment),
        b'%' => {
            let tag = text.get(2..).unwrap_or("");
            let tag = tag.strip_prefix(['-', '+']).unwrap_or(tag);
            let Some(after) = tag.trim_start_matches(is_space).strip_prefix("raw") else {
                return Some(Opening::Block);
            };
            let after = after.trim_start_matches(is_space);
            let end = match (after.strip_prefix("-%}"), after.strip_prefix("%}")) {
                (Some(rest), _) => rest.trim_start_matches(is_space),
                (_, Some(rest)) => rest,
                _ => return Some(Opening::Block),
            };
            Some(Opening::Raw(text.len() - end.len()))
        }
        _ => None,
    }
}

/// Bytes of digits, with single underscores between them (and before the first after a prefix).
fn digits_length(text: &str, radix: u32) -> usize {
    let mut length = 0;
    let mut underscore = false;
    for (at, c) in text.char_indices() {
        if c.is_digit(radix) {
            (length, underscore) = (at + 1, false);
        } else if c == '_' && !underscore {
            underscore = true;
        } else {
            break;
        }
    }
    length
}

/// Bytes of the float that a text begins with; it needs a fraction or an exponent.
fn float_length(text: &str) -> Option<usize> {
    let whole = digits_length(text, 10);
    let after = |at: usize| text.get(at..).unwrap_or("");
    let mut end = whole;
    if let Some(fraction) = after(end).strip_prefix('.')
        && fraction.starts_with(|c: char| c.is_ascii_digit())
    {
        end += 1 + digits_length(fraction, 10);
    }
    if let Some(exponent) = after(end).strip_prefix(['e', 'E']) {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if digits.starts_with(|c: char| c.is_ascii_digit()) {
            end += 1 + exponent.len() - digits.len() + digits_length(digits, 10);
        }
    }
    (end > whole).then_some(end)
}

/// The text of a string constant, escapes decoded as Python's `unicode-escape` does.
fn unescaped(text: &str) -> Result<String, &'static str> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, escape)) = rest.split_once('\\') {
        out.push_str(before);
        let Some(c) = escape.chars().next() else {
            return Err("a string ends in a backslash");
        };
        let after = escape.get(c.len_utf8()..).unwrap_or("");
        rest = after;
        let plain = match c {
            '\n' => continue,
            '\\' | '\'' | '"' => c,
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{C}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{B}',
            '0'..='7' => {
                let length =
                    escape.bytes().take(3).take_while(|c| matches!(c, b'0'..=b'7')).count();
                rest = escape.get(length..).unwrap_or("");
                code(escape.get(..length), 8)?
            }
            'x' | 'u' | 'U' => {
                let length = match c {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                rest = after.get(length..).unwrap_or("");
                code(after.get(..length), 16)?
            }
            'N' => return Err("characters by name are not supported in strings"),
            other => {
                out.push('\\');
                other
            }
        };
        out.push(plain);
    }
    out.push_str(rest);
    Ok(out)
}

fn code(digits: Option<&str>, radix: u32) -> Result<char, &'static str> {
    let digits = digits.filter(|digits| digits.chars().all(|c| c.is_digit(radix)));
    let code = digits.and_then(|digits| u32::from_str_radix(digits, radix).ok());
    code.and_then(char::from_u32).ok_or("a string has an escape that is no character")
}

/// What Python's `\s` matches.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1C}'..='\u{1F}')
}

/// Longer ones first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_escapes_are_pythons() {
        let cases = [
            (r"a\nb\t\\\'\d", "a\nb\t\\'\\d"),
            (r"\x41\u00e9\U0001F600\101\0", "Aé😀A\0"),
            ("a\\\nb", "ab"),
        ];
        for (given, wanted) in cases {
            assert_eq!(unescaped(given).unwrap(), wanted);
        }
        assert!(unescaped(r"\ud800").is_err());
        assert!(unescaped(r"\x4").is_err());
    }

    #[test]
    fn test_errors_name_the_line() {
        for (source, line) in
            [("a\n{# b", 2), ("\n\n{{ ` }}", 3), ("{% raw %}\nx", 1), ("{{ (] }}", 1)]
        {
            assert_eq!(tokens(source).unwrap_err().line, line, "{source}");
        }
    }
}
