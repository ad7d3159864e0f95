//! Decides which patterns mean the same in Oniguruma, for which they were written, and in the
//! linear engine. At model load only. The input is hostile: anything that is not on the lists below
//! is refused by name.

use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::{
    Ast, ClassPerlKind, ClassSetBinaryOpKind, ClassSetItem, ClassUnicodeKind, Group, GroupKind,
    HexLiteralKind, Literal, LiteralKind, RepetitionKind, SpecialLiteralKind, Visitor, visit,
};
use regex_syntax::hir::translate::TranslatorBuilder;
use regex_syntax::hir::{Hir, HirKind};

use crate::error::excerpt;

/// A pattern that may be compiled.
pub(super) struct Checked {
    /// The alternatives: the pattern, and `\s+` if `gives_back_space`.
    pub(super) hirs: Vec<Hir>,
    /// Whether the pattern ends with `\s+(?!\S)|\s+`.
    pub(super) gives_back_space: bool,
}

/// Parses a pattern; the error says what is not supported.
pub(super) fn check(pattern: &str) -> Result<Checked, String> {
    let pattern = without_possessives(pattern);
    let body = SPACE_TAILS.iter().find_map(|tail| pattern.strip_suffix(tail));
    let gives_back_space = body.is_some();
    let mut hirs = vec![translate(body.unwrap_or(&pattern))?];
    if gives_back_space {
        hirs.push(translate(r"\s+")?);
    }
    Ok(Checked { hirs, gives_back_space })
}

/// Published patterns say that they never give back; there the characters that follow are others, so it
/// makes no difference.
fn without_possessives(pattern: &str) -> String {
    let mut pattern = pattern.to_owned();
    for (possessive, plain) in POSSESSIVES {
        pattern = pattern.replace(possessive, plain);
    }
    pattern
}

fn translate(pattern: &str) -> Result<Hir, String> {
    let mut parser = ParserBuilder::new().nest_limit(MAX_NESTING).build();
    let ast = parser.parse(pattern).map_err(|error| {
        let span = error.span();
        let part = pattern.get(span.start.offset..span.end.offset).unwrap_or_default();
        format!("{} at {:?}", error.kind(), excerpt(part))
    })?;
    visit(&ast, Allowed { pattern })?;
    let mut translator = TranslatorBuilder::new().multi_line(true).build();
    let hir = translator.translate(pattern, &ast).map_err(|error| error.kind().to_string())?;
    if hir.properties().minimum_len().is_none_or(|len| len == 0) {
        return Err("it matches the empty text, or nothing".into());
    }
    check_repetitions(&hir)?;
    Ok(hir)
}

/// Engines differ in how they repeat an empty match.
fn check_repetitions(hir: &Hir) -> Result<(), String> {
    match hir.kind() {
        HirKind::Repetition(repetition) => {
            let is_option = repetition.max == Some(1);
            if !is_option && repetition.sub.properties().minimum_len().is_none_or(|len| len == 0) {
                return Err("a repetition of what may be empty is not supported".into());
            }
            check_repetitions(&repetition.sub)
        }
        HirKind::Capture(capture) => check_repetitions(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().try_for_each(check_repetitions)
        }
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => Ok(()),
    }
}

/// Refuses every construct that is not known to mean the same.
struct Allowed<'p> {
    pattern: &'p str,
}

impl Allowed<'_> {
    fn refuse(&self, what: &str, span: &regex_syntax::ast::Span) -> Result<(), String> {
        let part = self.pattern.get(span.start.offset..span.end.offset).unwrap_or_default();
        Err(format!("{what} {:?} is not supported", excerpt(part)))
    }

    fn literal(&self, literal: &Literal) -> Result<(), String> {
        match literal.kind {
            LiteralKind::Verbatim
            | LiteralKind::Meta
            | LiteralKind::Superfluous
            | LiteralKind::Special(
                SpecialLiteralKind::Tab
                | SpecialLiteralKind::LineFeed
                | SpecialLiteralKind::CarriageReturn
                | SpecialLiteralKind::FormFeed
                | SpecialLiteralKind::VerticalTab,
            )
            | LiteralKind::HexFixed(HexLiteralKind::UnicodeShort)
            | LiteralKind::HexBrace(HexLiteralKind::X) => Ok(()),
            _ => self.refuse("escape", &literal.span),
        }
    }

    fn group(&self, group: &Group) -> Result<(), String> {
        match &group.kind {
            GroupKind::CaptureIndex(_) => Ok(()),
            GroupKind::NonCapturing(flags) if flags.items.is_empty() => Ok(()),
            // Without regard to case Oniguruma also matches one character for two (ß for ss).
            GroupKind::NonCapturing(_) => {
                let span = &group.span;
                let part = self.pattern.get(span.start.offset..span.end.offset);
                if part.is_some_and(|part| CONTRACTIONS.contains(&part)) {
                    return Ok(());
                }
                self.refuse("group with flags", span)
            }
            GroupKind::CaptureName { .. } => self.refuse("named group", &group.span),
        }
    }

    fn class_name(&self, kind: &ClassUnicodeKind) -> bool {
        match kind {
            ClassUnicodeKind::OneLetter(letter) => "LMNPSZC".contains(*letter),
            ClassUnicodeKind::Named(name) => CLASSES.contains(&name.as_str()),
            ClassUnicodeKind::NamedValue { .. } => false,
        }
    }
}

impl Visitor for Allowed<'_> {
    type Output = ();
    type Err = String;

    fn finish(self) -> Result<(), String> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), String> {
        match ast {
            Ast::Empty(_) | Ast::Dot(_) | Ast::Alternation(_) | Ast::Concat(_) => Ok(()),
            Ast::ClassBracketed(_) => Ok(()),
            Ast::Literal(literal) => self.literal(literal),
            Ast::Group(group) => self.group(group),
            Ast::Assertion(assertion) => match assertion.kind {
                regex_syntax::ast::AssertionKind::EndLine => Ok(()),
                _ => self.refuse("assertion", &assertion.span),
            },
            Ast::ClassPerl(class) => match class.kind {
                ClassPerlKind::Digit | ClassPerlKind::Space => Ok(()),
                ClassPerlKind::Word => self.refuse("class", &class.span),
            },
            Ast::ClassUnicode(class) if self.class_name(&class.kind) => Ok(()),
            Ast::ClassUnicode(class) => self.refuse("class", &class.span),
            Ast::Flags(flags) => self.refuse("flags", &flags.span),
            Ast::Repetition(repetition) => {
                let counted = matches!(repetition.op.kind, RepetitionKind::Range(_));
                let stacked = matches!(*repetition.ast, Ast::Repetition(_));
                if stacked || (counted && !repetition.greedy) {
                    return self.refuse("repetition", &repetition.span);
                }
                Ok(())
            }
        }
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), String> {
        match item {
            ClassSetItem::Empty(_) | ClassSetItem::Bracketed(_) | ClassSetItem::Union(_) => Ok(()),
            ClassSetItem::Literal(literal) => self.literal(literal),
            ClassSetItem::Range(range) => {
                self.literal(&range.start)?;
                self.literal(&range.end)
            }
            ClassSetItem::Ascii(class) => self.refuse("class", &class.span),
            ClassSetItem::Unicode(class) if self.class_name(&class.kind) => Ok(()),
            ClassSetItem::Unicode(class) => self.refuse("class", &class.span),
            ClassSetItem::Perl(class) => match class.kind {
                ClassPerlKind::Digit | ClassPerlKind::Space => Ok(()),
                ClassPerlKind::Word => self.refuse("class", &class.span),
            },
        }
    }

    fn visit_class_set_binary_op_pre(
        &mut self,
        op: &regex_syntax::ast::ClassSetBinaryOp,
    ) -> Result<(), String> {
        match op.kind {
            ClassSetBinaryOpKind::Intersection => Ok(()),
            // Two characters of a class there, a set operation here.
            _ => self.refuse("class", &op.span),
        }
    }
}

/// Both are the same: where `\s+` may not be followed by text, it stops one space short of it, and a
/// single space is left to the last alternative.
const SPACE_TAILS: [&str; 2] = [r"|\s+(?!\S)|\s+", r"|\s+(?!\S)|\s"];

const POSSESSIVES: [(&str, &str); 2] = [
    (r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+"),
    (r" ?[^\s\p{L}\p{N}]++[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n]*"),
];

/// Groups without regard to case in which no two characters together have a case of their own.
const CONTRACTIONS: [&str; 3] =
    ["(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:[sdmt]|ll|ve|re)", "(?i:s|t|re|ve|m|ll|d)"];

/// General categories and scripts that both engines have from Unicode 16.
pub(super) const CLASSES: [&str; 48] = [
    "L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc",
    "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "Cc",
    "Cf", "Co", "Han", "Hiragana", "Katakana", "Hangul", "Bopomofo", "Thai", "Lao", "Khmer",
    "Myanmar", "Arabic", "Hebrew", "Cyrillic", "Greek", "Latin",
];
const MAX_NESTING: u32 = 32;
