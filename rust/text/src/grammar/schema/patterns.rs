//! Rewrites patterns with look-ahead where an equivalent pattern exists.

/// Patterns that together match what `pattern` does. `^(?=A)B` means A from the beginning and B; some libraries
/// write a look-ahead of the other kind, and always the same. Anything else stays.
pub(super) fn without_look_ahead(pattern: &str) -> Vec<String> {
    if let Some((_, plain)) = KNOWN.iter().find(|(known, _)| *known == pattern) {
        return vec![(*plain).to_owned()];
    }
    let same = || vec![pattern.to_owned()];
    let Some(ahead) = pattern.strip_prefix("^(?=") else { return same() };
    let Some(end) = closing(ahead) else { return same() };
    let (condition, rest) = (&ahead[..end], &ahead[end + 1..]);
    if has_alternatives(rest) {
        return same();
    }
    // What follows begins where the condition did; it may be another one.
    let mut all = vec![format!("^(?:{condition})")];
    all.extend(without_look_ahead(&format!("^{rest}")));
    all
}

/// Where the group that is open at the beginning closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_u32;
    for (at, c) in outside_classes(text) {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(at),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Whether there is a `|` outside of groups.
fn has_alternatives(text: &str) -> bool {
    let mut depth = 0_i32;
    outside_classes(text).any(|(_, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == '|' && depth == 0
    })
}

/// The characters that are neither escaped nor in brackets.
fn outside_classes(text: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut escaped, mut in_class) = (false, false);
    text.char_indices().filter(move |&(_, c)| {
        if std::mem::take(&mut escaped) {
            return false;
        }
        escaped = c == '\\';
        let was_in_class = in_class;
        in_class = if in_class { c != ']' } else { c == '[' };
        !escaped && !was_in_class && c != '['
    })
}

/// Patterns that libraries generate, and equivalent ones without look-ahead.
const KNOWN: [(&str, &str); 2] = [
    // zod 4, `z.email()`: no dot at the beginning, no two in a row; the part behind the @ can have none in a row.
    (
        r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
        r"^([A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+\-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
    ),
    // pydantic 2, `Decimal`: at least one digit.
    (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", r"^[+\-]?([0-9]+\.?[0-9]*|\.[0-9]+)$"),
];

/// Whether a regex is one. Other dialects have look-around and back references, which may pass where nothing is
/// made from it.
pub(super) fn check_pattern(pattern: &str, is_unused: bool) -> Result<(), String> {
    use regex_syntax::ast::ErrorKind;
    let error = match regex_syntax::Parser::new().parse(pattern) {
        Ok(found) if !is_unused && found.properties().look_set().contains_word() => {
            return Err("\\b and \\B cannot be enforced".into());
        }
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    match error {
        regex_syntax::Error::Parse(error) => match error.kind() {
            ErrorKind::UnsupportedLookAround | ErrorKind::UnsupportedBackreference if is_unused => {
                Ok(())
            }
            ErrorKind::UnsupportedLookAround => {
                Err("look-around, as (?=, (?!, (?<= and (?<!, cannot be \
                 enforced, except (?= directly behind a ^ at the beginning"
                    .into())
            }
            ErrorKind::UnsupportedBackreference => {
                Err("back references, as \\1, cannot be enforced".into())
            }
            kind => Err(format!("invalid regex: {kind}")),
        },
        regex_syntax::Error::Translate(error) => Err(format!("invalid regex: {}", error.kind())),
        _ => Err("invalid regex".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_look_ahead_at_the_beginning_is_a_pattern_of_its_own() {
        let plain = |pattern| without_look_ahead(pattern);
        assert_eq!(plain(r"^(?=.{1,9}\.?$)[a-z]+$"), [r"^(?:.{1,9}\.?$)", "^[a-z]+$"]);
        assert_eq!(
            plain(r"^(?=.*[)(A-Z])(?=.*\d).{8,}$"),
            [r"^(?:.*[)(A-Z])", r"^(?:.*\d)", "^.{8,}$"]
        );
        // With alternatives the condition would not apply to all; elsewhere it depends on its position.
        for same in [r"^(?=a)b|c", r"(?=a)b", r"a(?=b)", r"^(?!a)b", "^(?=a"] {
            assert_eq!(plain(same), [same]);
        }
    }
}
