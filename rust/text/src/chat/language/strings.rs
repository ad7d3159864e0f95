//! [2] What Python does with texts, without regard to who asks for it.

use super::fault::Fault;
use super::value::{ListKind, Value};
use super::work::Work;

/// The text before the first character that is wanted, that character, and the text behind it.
pub(crate) fn split_at_char(
    text: &str,
    wanted: impl Fn(char) -> bool,
) -> Option<(&str, char, &str)> {
    let (at, c) = text.char_indices().find(|(_, c)| wanted(*c))?;
    Some((text.get(..at)?, c, text.get(at + c.len_utf8()..)?))
}

/// Python's `str.isspace` of one character.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Which ends are stripped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Both,
    Left,
    Right,
}

/// `strip`, `lstrip`, `rstrip`.
pub(crate) fn strip<'t>(
    text: &'t str,
    chars: Option<&str>,
    ends: Ends,
    work: &Work,
) -> Result<&'t str, Fault> {
    // Each character at the ends is looked for among all of `chars`.
    let each = chars.map_or(1, |chars| chars.len().max(1));
    work.spend(text.len().saturating_mul(each / 16).saturating_add(each))?;
    let strips = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let left = if ends == Ends::Right { text } else { text.trim_start_matches(strips) };
    let both = if ends == Ends::Left { left } else { left.trim_end_matches(strips) };
    work.spend((text.len() - both.len()).saturating_mul(each))?;
    Ok(both)
}

/// A list of texts; pays for it.
pub(crate) fn list<'t>(parts: impl Iterator<Item = &'t str>, work: &Work) -> Result<Value, Fault> {
    let mut items = Vec::new();
    for part in parts {
        work.items(1)?;
        items.push(Value::text(part, work)?);
    }
    Value::list(ListKind::List, items, work)
}

/// `split` and `rsplit` at white space or at a separator, so many times at most.
pub(crate) fn split(
    text: &str,
    separator: Option<&str>,
    most: Option<usize>,
    from_right: bool,
    work: &Work,
) -> Result<Value, Fault> {
    work.spend(text.len())?;
    let most = most.map_or(usize::MAX, |most| most.saturating_add(1));
    match (separator, from_right) {
        (Some(""), _) => Err(Fault::failed("split: the separator is empty")),
        (Some(separator), false) => list(text.splitn(most, separator), work),
        (Some(separator), true) => {
            let parts = bounded(text.rsplitn(most, separator), work)?;
            list(parts.into_iter().rev(), work)
        }
        (None, false) => list(Words { rest: text, left: most }, work),
        (None, true) => {
            // From the right only the place of the rest differs, which is found by words.
            let words = bounded(text.split(is_space).filter(|word| !word.is_empty()), work)?;
            let Some(kept) = words.len().checked_sub(most).filter(|_| most > 0) else {
                return list(words.into_iter(), work);
            };
            let last_of_rest = words.get(kept).map_or(0, |word| end_of(text, word));
            let rest = text.get(..last_of_rest).unwrap_or_default().trim_end_matches(is_space);
            list(std::iter::once(rest).chain(words.into_iter().skip(kept + 1)), work)
        }
    }
}

fn bounded<'t>(parts: impl Iterator<Item = &'t str>, work: &Work) -> Result<Vec<&'t str>, Fault> {
    let mut kept = Vec::new();
    for part in parts {
        work.items(1)?;
        kept.push(part);
    }
    Ok(kept)
}

/// Where a part of `text` ends in it.
fn end_of(text: &str, part: &str) -> usize {
    (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize) + part.len()
}

/// Words, the last one with all that is left.
struct Words<'t> {
    rest: &'t str,
    left: usize,
}

impl<'t> Iterator for Words<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        self.rest = self.rest.trim_start_matches(is_space);
        if self.rest.is_empty() {
            return None;
        }
        self.left = self.left.saturating_sub(1);
        let end = if self.left == 0 { None } else { self.rest.find(is_space) };
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        Some(word)
    }
}

/// `splitlines`.
pub(crate) fn lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((line, c, after)) = split_at_char(rest, ends_line) else {
            return Some(std::mem::take(&mut rest));
        };
        let after = if c == '\r' { after.strip_prefix('\n').unwrap_or(after) } else { after };
        let with_end = rest.get(..rest.len() - after.len()).unwrap_or(line);
        rest = after;
        Some(if keep_ends { with_end } else { line })
    })
}

fn ends_line(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// `replace`, so many times at most; pays for what it makes.
pub(crate) fn replace(
    text: &str,
    old: &str,
    new: &str,
    most: Option<usize>,
    work: &Work,
) -> Result<Value, Fault> {
    work.spend(text.len())?;
    let most = most.unwrap_or(usize::MAX);
    let count = text.match_indices(old).take(most).count();
    work.spend(count.saturating_mul(new.len()).saturating_add(text.len()))?;
    Ok(Value::Str(text.replacen(old, new, most).into()))
}

/// Fills a text up to so many characters, on its left and on its right.
pub(crate) fn pad(
    text: &str,
    width: usize,
    fill: char,
    share: impl Fn(usize) -> usize,
    work: &Work,
) -> Result<String, Fault> {
    work.spend(text.len())?;
    let missing = width.saturating_sub(text.chars().count());
    work.spend(missing.saturating_mul(fill.len_utf8()))?;
    let left = share(missing).min(missing);
    let mut out = String::with_capacity(text.len() + missing * fill.len_utf8());
    out.extend(std::iter::repeat_n(fill, left));
    out.push_str(text);
    out.extend(std::iter::repeat_n(fill, missing - left));
    Ok(out)
}

/// The first letter large, the others small.
pub(crate) fn capitalized(word: &str) -> String {
    let mut chars = word.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.chain(chars.as_str().to_lowercase().chars()).collect()
}

/// Python's `str.title`: a letter behind anything but a letter is large.
pub(crate) fn titled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = c.is_alphabetic();
    }
    out
}
