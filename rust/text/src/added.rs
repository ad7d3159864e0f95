//! [2] Finds added tokens in text: special tokens and ordinary additions to the vocabulary. Any
//! thread. The leftmost match wins, and the longest at that position, as in the tokenizers library.
//!
//! There is one deliberate difference: a special token or marker that is not honoured at its
//! position, because user text contains it, is ignored, so that a shorter or later token can still
//! match.

/// One entry of the added vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    pub(crate) content: String,
    /// What is looked for: the content, or what a normaliser makes of it.
    pub(crate) pattern: String,
    pub(crate) special: bool,
    /// Whether white space before the token belongs to it.
    pub(crate) lstrip: bool,
    /// Whether white space after the token belongs to it.
    pub(crate) rstrip: bool,
    /// Whether the token is looked for in the normalised text instead of the text as given.
    pub(crate) normalized: bool,
}

/// What an added token is, which decides where it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// The vocabulary calls it special.
    Special,
    /// Not special, but written to say what text is: `</think>`, `<tool_call>`, `[TOOL]`.
    Marker,
    /// Ordinary text that has a token of its own: words, runs of spaces, HTML tags.
    Word,
}

impl AddedToken {
    pub(crate) fn kind(&self) -> TokenKind {
        match self.special {
            true => TokenKind::Special,
            false if is_marker(&self.content) => TokenKind::Marker,
            false => TokenKind::Word,
        }
    }
}

/// Whether a token that is not special looks like a marker: a word in brackets that is not an HTML tag.
/// Gemma's vocabulary has the usual HTML tags as tokens of ordinary text.
fn is_marker(content: &str) -> bool {
    let inside = |open: char, close: char| content.strip_prefix(open)?.strip_suffix(close);
    if content.contains(char::is_whitespace) {
        return false;
    }
    if let Some(name) = inside('<', '>') {
        let name = name.strip_prefix('/').unwrap_or(name).to_ascii_lowercase();
        return !name.is_empty() && !HTML.contains(&name.as_str());
    }
    inside('[', ']').or_else(|| inside('{', '}')).is_some_and(|name| !name.is_empty())
}

/// The elements of HTML that vocabularies have tokens for.
const HTML: [&str; 42] = [
    "a",
    "b",
    "big",
    "blockquote",
    "body",
    "br",
    "caption",
    "center",
    "code",
    "dd",
    "div",
    "dl",
    "dt",
    "em",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "html",
    "i",
    "img",
    "li",
    "ol",
    "p",
    "pre",
    "s",
    "span",
    "strong",
    "sub",
    "sup",
    "table",
    "tbody",
    "td",
    "tfoot",
    "th",
    "thead",
    "tr",
    "u",
    "ul",
];

/// A part of the text: an added token, or text between two of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    /// Ordinary text, never empty.
    Text(&'t str),
    /// The id of an added token.
    Token(u32),
}

/// A matcher for a set of added tokens.
#[derive(Debug, Default)]
pub(crate) struct AddedMatcher {
    tokens: Vec<AddedToken>,
    /// What each of them is.
    kinds: Vec<TokenKind>,
    nodes: Vec<Node>,
    /// Whether some token begins with this byte; keeps the common case to one look-up a byte.
    first: Vec<bool>,
}

#[derive(Debug, Default)]
struct Node {
    children: Vec<(u8, usize)>,
    token: Option<usize>,
}

impl AddedMatcher {
    /// Builds the matcher; of two tokens with the same text the first one counts.
    pub(crate) fn new(tokens: Vec<AddedToken>) -> Self {
        let mut matcher =
            Self { nodes: vec![Node::default()], first: vec![false; 256], ..Self::default() };
        for token in tokens {
            matcher.insert(token);
        }
        matcher
    }

    /// Whether there is nothing to look for.
    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whether a token of this text is looked for.
    pub(crate) fn contains(&self, content: &str) -> bool {
        self.tokens.iter().any(|token| token.content == content)
    }

    /// The longest token at the beginning of a text: its id and its length.
    pub(crate) fn token_at_start(&self, text: &str) -> Option<(u32, usize)> {
        let (index, end) = self.longest_at(text, 0, &|_, _, _| true)?;
        Some((self.tokens[index].id, end))
    }

    fn insert(&mut self, token: AddedToken) {
        let mut at = 0;
        for &byte in token.pattern.as_bytes() {
            at = match self.child(at, byte) {
                Some(next) => next,
                None => {
                    let next = self.nodes.len();
                    self.nodes.push(Node::default());
                    self.nodes[at].children.push((byte, next));
                    next
                }
            };
        }
        if at != 0 && self.nodes[at].token.is_none() {
            self.first[usize::from(token.pattern.as_bytes()[0])] = true;
            self.nodes[at].token = Some(self.tokens.len());
            self.kinds.push(token.kind());
            self.tokens.push(token);
        }
    }

    fn child(&self, at: usize, byte: u8) -> Option<usize> {
        self.nodes[at].children.iter().find(|(b, _)| *b == byte).map(|(_, next)| *next)
    }

    /// The longest token at `start` that may be honoured: its index and its end.
    fn longest_at(
        &self,
        text: &str,
        start: usize,
        honoured: &impl Fn(TokenKind, usize, usize) -> bool,
    ) -> Option<(usize, usize)> {
        let (mut at, mut found) = (0, None);
        for (offset, &byte) in text.as_bytes()[start..].iter().enumerate() {
            at = match self.child(at, byte) {
                Some(next) => next,
                None => break,
            };
            if let Some(token) = self.nodes[at].token {
                let end = start + offset + 1;
                let kind = self.kinds[token];
                if kind == TokenKind::Word || honoured(kind, start, end) {
                    found = Some((token, end));
                }
            }
        }
        found
    }

    /// Splits `text` and calls `part` for every piece in order. `honoured(kind, start, end)`
    /// decides whether these bytes of `text` may form a special token or marker.
    pub(crate) fn split<'t, E>(
        &self,
        text: &'t str,
        honoured: &impl Fn(TokenKind, usize, usize) -> bool,
        part: &mut impl FnMut(Part<'t>) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = text.as_bytes();
        let (mut text_start, mut at) = (0, 0);
        while !self.tokens.is_empty() && at < bytes.len() {
            if !self.first[usize::from(bytes[at])] {
                at += 1;
                continue;
            }
            let Some((index, end)) = self.longest_at(text, at, honoured) else {
                at += 1;
                continue;
            };
            let token = &self.tokens[index];
            let (start, stop) = token.with_stripped_space(text, text_start, at, end);
            if text_start < start {
                part(Part::Text(&text[text_start..start]))?;
            }
            part(Part::Token(token.id))?;
            (text_start, at) = (stop, stop);
        }
        if text_start < text.len() {
            part(Part::Text(&text[text_start..]))?;
        }
        Ok(())
    }
}

impl AddedToken {
    /// A special token that is looked for as it is.
    pub(crate) fn special(id: u32, text: &str) -> Self {
        Self {
            id,
            content: text.to_owned(),
            pattern: text.to_owned(),
            special: true,
            lstrip: false,
            rstrip: false,
            normalized: false,
        }
    }

    /// Widens the match `[start, end)` over white space where the token asks for it.
    fn with_stripped_space(
        &self,
        text: &str,
        floor: usize,
        start: usize,
        end: usize,
    ) -> (usize, usize) {
        let (mut from, mut to) = (start, end);
        if self.lstrip {
            from = floor + text[floor..start].trim_end().len();
        }
        if self.rstrip {
            to = text.len() - text[end..].trim_start().len();
        }
        (from, to)
    }
}

/// Published added tokens have at most some 60 bytes.
pub(crate) const MAX_ADDED_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, content: &str, special: bool) -> AddedToken {
        AddedToken {
            id,
            content: content.into(),
            pattern: content.into(),
            special,
            lstrip: false,
            rstrip: false,
            normalized: false,
        }
    }

    fn split(matcher: &AddedMatcher, text: &str, honoured: bool) -> Vec<String> {
        let mut parts = Vec::new();
        matcher
            .split(text, &|_, _, _| honoured, &mut |part| {
                parts.push(match part {
                    Part::Text(text) => text.to_string(),
                    Part::Token(id) => format!("#{id}"),
                });
                Ok::<(), ()>(())
            })
            .unwrap();
        parts
    }

    #[test]
    fn test_longest_at_the_leftmost_place_wins() {
        let matcher = AddedMatcher::new(vec![
            token(1, "<a", false),
            token(2, "<a>b", false),
            token(3, "b", false),
        ]);
        assert_eq!(split(&matcher, "x<a>b<a>", true), ["x", "#2", "#1", ">"]);
        assert_eq!(split(&matcher, "", true), [""; 0]);
        assert_eq!(split(&matcher, "b", true), ["#3"]);
    }

    #[test]
    fn test_special_token_in_user_text_stays_text() {
        let matcher = AddedMatcher::new(vec![token(1, "<s>", true), token(2, "s", false)]);
        assert_eq!(split(&matcher, "a<s>", true), ["a", "#1"]);
        assert_eq!(split(&matcher, "a<s>", false), ["a<", "#2", ">"]);
    }

    #[test]
    fn test_words_in_brackets_are_markers_and_html_is_not() {
        for content in ["</think>", "<tool_call>", "<|fim|>", "<｜call▁begin｜>", "[TOOL]", "{end}"]
        {
            assert_eq!(token(1, content, false).kind(), TokenKind::Marker, "{content}");
        }
        for content in ["<table>", "</h1>", "    ", "word", "<", "<>", "< a>", "[]", "\n\n"] {
            assert_eq!(token(1, content, false).kind(), TokenKind::Word, "{content}");
        }
        assert_eq!(token(1, "word", true).kind(), TokenKind::Special);
    }

    #[test]
    fn test_strip_takes_space_that_no_earlier_token_took() {
        let mut both = token(1, "<m>", true);
        (both.lstrip, both.rstrip) = (true, true);
        let matcher = AddedMatcher::new(vec![both]);
        assert_eq!(split(&matcher, "a \u{3000}<m> \n<m>b", true), ["a", "#1", "#1", "b"]);
    }
}
