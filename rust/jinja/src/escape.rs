//! Escaping for HTML.

use crate::budget::Budget;
use crate::error::Res;
use crate::text::{Text, TextBuf};

/// A copy of a text in which the characters that have a meaning in HTML are escaped.
pub(crate) fn escaped(text: &Text, budget: &Budget) -> Res<Text> {
    let special = text.as_str().matches(['&', '<', '>', '"', '\'']).count();
    budget.pay(text.cost().saturating_add(special.saturating_mul(5)))?;
    let mut out = TextBuf::default();
    for (piece, source) in text.all_pieces() {
        for c in piece.chars() {
            match c {
                '&' => out.push("&amp;", source),
                '<' => out.push("&lt;", source),
                '>' => out.push("&gt;", source),
                '"' => out.push("&#34;", source),
                '\'' => out.push("&#39;", source),
                c => out.push_char(c, source),
            }
        }
    }
    Ok(out.finish())
}
