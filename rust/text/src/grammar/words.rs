//! Refusals of the grammar library in our words. Its own texts name its settings, its source, or places
//! in the grammar that we wrote around the client's; they never reach a client.

/// Why a JSON schema, a regex or a list of texts cannot be compiled.
pub(super) fn of_compilation(message: &str) -> String {
    let rest = without_place(message).1;
    let rest = rest.strip_prefix("failed to compile JSON schema: ").unwrap_or(rest);
    if is_unsatisfiable(rest) {
        return match UNSATISFIABLE.iter().find(|(sign, _)| rest.contains(sign)) {
            Some((_, words)) => format!("nothing can match it: {words}"),
            None => NOTHING.to_owned(),
        };
    }
    match OTHERS.iter().find(|(sign, _)| rest.contains(sign)) {
        Some((_, words)) => (*words).to_owned(),
        // These are the words of the regex parser, about the client's own text.
        None if rest.starts_with(REGEX) => rest.to_owned(),
        None => "it cannot be compiled".to_owned(),
    }
}

/// Why a grammar that the client wrote cannot be compiled, with its place in it.
pub(super) fn of_lark(message: &str) -> String {
    let (place, rest) = without_place(message);
    let rest = rest.split_once(" (at ").map_or(rest, |(rest, _)| rest);
    let rest = rest.split_once("; following ").map_or(rest, |(rest, _)| rest);
    let words = match IN_LARK.iter().find(|(sign, _)| rest.starts_with(sign)) {
        Some((_, words)) => (*words).to_owned(),
        None if rest.starts_with("failed to compile JSON schema: ") || is_unsatisfiable(rest) => {
            format!("%json: {}", of_compilation(rest))
        }
        None if OTHERS.iter().any(|(sign, _)| rest.contains(sign)) => of_compilation(rest),
        None => {
            let plain =
                rest.replace("Expected token ", "expected ").replace("'\\n'", "a line feed");
            let mut chars = plain.chars();
            chars.next().map_or(plain.clone(), |first| first.to_lowercase().chain(chars).collect())
        }
    };
    match place {
        Some((line, column)) => format!("line {line}, column {column}: {words}"),
        None => words,
    }
}

/// Whether a refusal means that no text matches, which an optional part may.
pub(super) fn is_unsatisfiable(message: &str) -> bool {
    message.contains("Unsatisfiable schema: ") || message == NOTHING
}

/// The line and column in front of a message, and the message.
fn without_place(message: &str) -> (Option<(u32, u32)>, &str) {
    let text = message.strip_prefix("at ").unwrap_or(message);
    let found = text.split_once("): ").and_then(|(place, rest)| {
        let (line, column) = place.split_once('(')?;
        Some(((line.parse().ok()?, column.parse().ok()?), rest))
    });
    found.map_or((None, message), |(place, rest)| (Some(place), rest))
}

/// What is said of a grammar without a text.
pub(super) const NOTHING: &str = "nothing can match it";
const REGEX: &str = "invalid regex: ";

/// Signs of what contradicts itself; the first one found counts.
const UNSATISFIABLE: [(&str, &str); 10] = [
    ("Regex is empty", "no string fits its pattern, format, lengths and values together"),
    ("does not contain a multiple", "no multiple of multipleOf lies between its bounds"),
    ("contains no integer", "no whole number lies between its bounds"),
    ("exclusiveM", "no number lies between its bounds"),
    ("is greater than", "a lower bound is above an upper bound"),
    ("minProperties > maxProperties", "a lower bound is above an upper bound"),
    ("incompatible types", "its types exclude each other"),
    ("doesn't match", "no value of enum or const fits its other keywords"),
    ("required property", "a required property can have no value"),
    ("required item", "an item that must be there can have no value"),
];

/// Signs of what the library does not take.
const OTHERS: [(&str, &str); 19] = [
    (
        "lookarounds not supported",
        "\\b, \\B, and ^ or $ anywhere but at the ends of a pattern, cannot be enforced",
    ),
    ("schema too large", "allOf, anyOf and $ref make too many combinations to compile"),
    ("Schema intersection stack level", "allOf, anyOf and $ref are nested too deeply"),
    (
        "circular references with sibling keys",
        "a $ref that leads back to itself has keywords beside it",
    ),
    (
        "are not disjoint",
        "patternProperties whose patterns can match the same name cannot be enforced",
    ),
    (
        "min/maxProperties only supported",
        "minProperties and maxProperties can be enforced only if every property that is named is required",
    ),
    ("Invalid type", "type must be a JSON type"),
    ("Unimplemented keys", "it has a keyword that cannot be enforced"),
    ("Unknown format", "a format cannot be enforced"),
    ("oneOf constraints", "oneOf cannot be enforced"),
    ("Default retriever", "a $ref leads out of the schema"),
    ("Reference", "a $ref leads to nothing in the schema"),
    ("'multipleOf'", "a multipleOf of so many digits cannot be enforced"),
    ("too big", "it is too large to compile"),
    ("too large", "it is too large to compile"),
    ("fuel exhausted", "it is too large to compile"),
    ("lexer precomputation failed", "it is too large to compile"),
    ("too deeply nested", "it is nested too deeply"),
    (NOTHING, NOTHING),
];

/// Beginnings of refusals of a grammar's text that need other words.
const IN_LARK: [(&str, &str); 8] = [
    (NOTHING, NOTHING),
    ("lexer error", "no part of a grammar begins here"),
    ("lexer special token", "no part of a grammar begins here"),
    ("failed to parse \"%json\"", "%json is not followed by valid JSON"),
    ("failed to parse %regex", "%regex is not followed by an object of its options"),
    ("failed to parse %llguidance", "%llguidance is not followed by an object of its options"),
    ("error parsing string", "the text in quotes has a wrong escape"),
    ("Token range end too large", "a token id is outside the vocabulary"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_no_text_of_the_library_is_left() {
        for (message, words) in [
            ("at 1(8): failed to compile JSON schema: schema too large", OTHERS[1].1),
            ("something that a later version says", "it cannot be compiled"),
            ("Unsatisfiable schema: something new", NOTHING),
            (
                "at 1(8): failed to compile JSON schema: Unsatisfiable schema: Regex is empty:  (And x)",
                "nothing can match it: no string fits its pattern, format, lengths and values together",
            ),
            ("invalid regex: unclosed group", "invalid regex: unclosed group"),
            ("invalid regex \"a\\\\b\" (in regex): lookarounds not supported yet; x", OTHERS[0].1),
        ] {
            assert_eq!(of_compilation(message), words);
        }
    }

    #[test]
    fn test_a_place_in_the_clients_grammar_is_kept() {
        for (message, words) in [
            (
                "1(2): Expected token ':', found '\\n' (at \"\\n\" ('\\n'))",
                "line 1, column 2: expected ':', found a line feed",
            ),
            ("at 2(4): unknown name: \"b\"", "line 2, column 4: unknown name: \"b\""),
            ("2(1): lexer error", "line 2, column 1: no part of a grammar begins here"),
            (
                "at 1(8): failed to compile JSON schema: Unsatisfiable schema: x",
                "line 1, column 8: %json: nothing can match it",
            ),
            (
                "at 1(1): Unknown common regex: a.X; following are available: b",
                "line 1, column 1: unknown common regex: a.X",
            ),
            ("no start rule found", "no start rule found"),
        ] {
            assert_eq!(of_lark(message), words);
        }
    }
}
