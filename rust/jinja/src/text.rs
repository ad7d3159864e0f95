//! Strings that know which of their bytes the request wrote.

use std::ops::Range;
use std::sync::Arc;

/// The origin of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The template, or the model's own files.
    Template,
    /// The request, as an earlier answer of the model.
    Answer,
    /// The request.
    Request,
}

/// An immutable string.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    text: Arc<str>,
    origin: Origin,
    /// Whether it is Jinja2's `Markup`: adding plain text to it escapes that for HTML.
    pub(crate) markup: bool,
}

#[derive(Debug, Clone)]
enum Origin {
    All(Source),
    Runs(Arc<[Run]>),
}

/// Bytes of one source, from the end of the run before to `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) end: usize,
    pub(crate) source: Source,
}

impl Text {
    pub(crate) fn new(text: impl Into<Arc<str>>, source: Source) -> Self {
        Self { text: text.into(), origin: Origin::All(source), markup: false }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// What copying it costs, in units of work.
    pub(crate) fn cost(&self) -> usize {
        match &self.origin {
            Origin::All(_) => self.text.len(),
            Origin::Runs(runs) => self.text.len() + RUN_COST * runs.len(),
        }
    }

    pub(crate) fn is_ascii(&self) -> bool {
        self.text.is_ascii()
    }

    /// The pieces of a range, each of one source. A range that cuts a character is empty.
    pub(crate) fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = (&str, Source)> {
        let runs: &[Run] = match &self.origin {
            Origin::All(_) => &[],
            Origin::Runs(runs) => runs,
        };
        let whole = match &self.origin {
            Origin::All(source) => Some((self.text.get(range.clone()).unwrap_or(""), *source)),
            Origin::Runs(_) => None,
        };
        let first = runs.partition_point(|run| run.end <= range.start);
        let mut start = range.start;
        let cut = runs.iter().skip(first).map_while(move |run| {
            (start < range.end).then(|| {
                let end = run.end.min(range.end);
                let piece = self.text.get(start..end).unwrap_or("");
                start = end;
                (piece, run.source)
            })
        });
        whole.into_iter().chain(cut)
    }

    /// All its pieces.
    pub(crate) fn all_pieces(&self) -> impl Iterator<Item = (&str, Source)> {
        self.pieces(0..self.text.len())
    }

    /// A part of the text. Copies; the caller pays.
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        if range.start == 0 && range.end == self.text.len() {
            return self.clone();
        }
        if let Origin::All(source) = self.origin {
            let mut part = Self::new(self.text.get(range).unwrap_or(""), source);
            part.markup = self.markup;
            return part;
        }
        let mut out = TextBuf::default();
        out.push_part(self, range);
        let mut part = out.finish();
        part.markup = self.markup;
        part
    }

    /// The text with each piece changed; the caller pays.
    pub(crate) fn map(&self, change: impl Fn(&str) -> String) -> Self {
        let mut out = TextBuf::default();
        for (piece, source) in self.all_pieces() {
            out.push(&change(piece), source);
        }
        out.finish()
    }

    /// The source of the byte at `at`.
    pub(crate) fn source_at(&self, at: usize) -> Source {
        match &self.origin {
            Origin::All(source) => *source,
            Origin::Runs(runs) => {
                let run = runs.get(runs.partition_point(|run| run.end <= at));
                run.map_or(Source::Request, |run| run.source)
            }
        }
    }
}

/// A growing string. Callers pay before they push.
#[derive(Debug, Default)]
pub(crate) struct TextBuf {
    text: String,
    runs: Vec<Run>,
}

impl TextBuf {
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    #[inline]
    pub(crate) fn push(&mut self, text: &str, source: Source) {
        if text.is_empty() {
            return;
        }
        self.text.push_str(text);
        let end = self.text.len();
        match self.runs.last_mut() {
            Some(run) if run.source == source => run.end = end,
            _ => self.runs.push(Run { end, source }),
        }
    }

    pub(crate) fn push_char(&mut self, c: char, source: Source) {
        self.push(c.encode_utf8(&mut [0; 4]), source);
    }

    pub(crate) fn push_text(&mut self, text: &Text) {
        match &text.origin {
            Origin::All(source) => self.push(&text.text, *source),
            Origin::Runs(_) => self.push_part(text, 0..text.len()),
        }
    }

    pub(crate) fn push_part(&mut self, text: &Text, range: Range<usize>) {
        for (piece, source) in text.pieces(range) {
            self.push(piece, source);
        }
    }

    pub(crate) fn finish(self) -> Text {
        let origin = match self.runs.as_slice() {
            [] => Origin::All(Source::Template),
            [only] => Origin::All(only.source),
            runs => Origin::Runs(runs.into()),
        };
        Text { text: self.text.into(), origin, markup: false }
    }

    pub(crate) fn into_parts(self) -> (String, Vec<Run>) {
        (self.text, self.runs)
    }
}

/// A run takes 16 bytes.
const RUN_COST: usize = 16;
