//! What has to be known of a template's source before it is compiled. Load time only.

/// A string constant of a template.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Literal {
    pub(crate) text: String,
    /// Whether the template looks for it in other text (`'x' in content`, `content.split('x')`)
    /// rather than writing it.
    pub(crate) searched: bool,
}

/// The template with `{% generation %}` blocks, which transformers uses to find the assistant's
/// tokens in training, turned into blocks that only open a scope.
pub(crate) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let inner = &rest[start + 2..start + length];
        let name = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        out.push_str(&rest[..start + 2]);
        match name {
            "generation" => out.push_str(&inner.replace(name, "with _generation = none")),
            "endgeneration" => out.push_str(&inner.replace(name, "endwith")),
            _ => out.push_str(inner),
        }
        rest = &rest[start + length..];
    }
    out.push_str(rest);
    out
}

/// All string constants inside the template's tags.
pub(crate) fn literals(source: &str) -> Vec<Literal> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(start) = rest.find(['{']) {
        rest = &rest[start + 1..];
        if let Some(tag) = rest.strip_prefix(['{', '%']) {
            rest = literals_of_tag(tag, &mut found);
        } else if let Some(comment) = rest.strip_prefix('#') {
            rest = comment.find("#}").map_or("", |end| &comment[end + 2..]);
        }
    }
    found
}

/// Collects the constants up to the end of the tag and returns what follows it.
fn literals_of_tag<'s>(tag: &'s str, found: &mut Vec<Literal>) -> &'s str {
    let mut at = 0;
    while let Some(next) = tag[at..].find(['\'', '"', '}', '%']) {
        at += next;
        let c = tag.as_bytes()[at];
        match c {
            b'\'' | b'"' => {
                let Some((text, end)) = literal_at(&tag[at + 1..], char::from(c)) else {
                    return "";
                };
                let after = &tag[at + 1 + end..];
                let searched = is_searched(&tag[..at], after);
                found.push(Literal { text, searched });
                at += 1 + end;
            }
            _ if tag[at + 1..].starts_with('}') => return &tag[at + 2..],
            _ => at += 1,
        }
    }
    ""
}

/// The constant that begins after an opening quote, and where the text after its closing quote is.
fn literal_at(text: &str, quote: char) -> Option<(String, usize)> {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => match chars.next()?.1 {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                other => out.push(other),
            },
            c if c == quote => return Some((out, at + c.len_utf8())),
            c => out.push(c),
        }
    }
    None
}

/// Whether a constant between these two pieces of source is looked for in other text.
fn is_searched(before: &str, after: &str) -> bool {
    let methods =
        ["split", "startswith", "endswith", "replace", "strip", "find", "partition", "count"];
    let call = before.trim_end().strip_suffix('(').map(str::trim_end);
    let after = after.trim_start();
    call.is_some_and(|before| methods.iter().any(|method| before.ends_with(method)))
        || after.strip_prefix("not ").map_or(after, str::trim_start).starts_with("in ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_generation_tags_become_scopes_with_the_same_trimming() {
        let source =
            "{%- generation -%}a{% endgeneration +%}{% if generation %}{{ '%}' }}{% endif %}";
        assert_eq!(
            without_generation_tags(source),
            "{%- with _generation = none -%}a{% endwith +%}{% if generation %}{{ '%}' }}{% endif %}"
        );
        assert_eq!(without_generation_tags("{% open"), "{% open");
    }

    #[test]
    fn test_literals_are_found_with_their_use() {
        let source =
            "'no' {# 'no' #}{% if '</a>' in m %}{{ m.split('</b>')[0] ~ \"<\\n'c>\" }}{% endif %}";
        let wanted = [("</a>", true), ("</b>", true), ("<\n'c>", false)];
        let wanted = wanted.map(|(text, searched)| Literal { text: text.into(), searched });
        assert_eq!(literals(source), wanted);
        assert_eq!(literals("{{ 'open"), []);
    }
}
