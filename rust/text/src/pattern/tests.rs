//! The linear engine finds what Oniguruma finds, refuses what it cannot guarantee, and stays
//! linear.

use proptest::prelude::*;
use tokenizers::utils::SysRegex;

use super::*;
use crate::words::patterns;
use crate::words::testing::text;

fn pattern(pattern: &str) -> Pattern {
    Pattern::new("tokenizer.json", "pre_tokenizer", pattern).unwrap()
}

fn error(pattern: &str) -> String {
    Pattern::new("tokenizer.json", "pre_tokenizer", pattern).unwrap_err().to_string()
}

fn found(pattern: &Pattern, text: &str) -> Result<Vec<(usize, usize)>, TextError> {
    let mut all = Vec::new();
    pattern.matches(text, &mut |found| {
        all.push((found.start, found.end));
        Ok(())
    })?;
    Ok(all)
}

/// Published patterns, and small ones for each construct that is let through.
const PATTERNS: &[&str] = &[
    patterns::GPT2,
    patterns::LLAMA3,
    patterns::QWEN2,
    patterns::QWEN35,
    patterns::O200K,
    patterns::TEKKEN,
    patterns::BAILING,
    patterns::SEED_CODER,
    EXAONE_MOE,
    patterns::BLOOM,
    patterns::DEEPSEEK_V3[0],
    patterns::DEEPSEEK_V3[1],
    patterns::DEEPSEEK_V3[2],
    patterns::DEEPSEEK_LLM[0],
    patterns::DEEPSEEK_LLM[1],
    patterns::DEEPSEEK_LLM[2],
    patterns::DEEPSEEK_LLM[3],
    patterns::DEEPSEEK_LLM[4],
    patterns::DEEPSEEK_CODER[1],
    patterns::DEEPSEEK_CODER[2],
    HAN_APART,
    "[0-9][0-9][0-9]",
    r"\s+$",
    r".+?e|\n",
    r"a+?b?|[^\S\n]+",
    r"(?:\p{L}\p{M}*)+|\d+",
    r"[a-z&&[^aeiou]]+",
    r"\x{41}|\u00e9|\t|\/",
    r"\p{Pd}|\p{Sc}+|\P{L}\p{Zs}",
];

/// Several words with one space between them are one piece.
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
/// In the manner of Kimi K2: classes that leave out another one.
const HAN_APART: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|\s+(?!\S)|\s+";

#[test]
fn test_matches_are_those_of_oniguruma() {
    let pairs: Vec<_> =
        PATTERNS.iter().map(|text| (*text, pattern(text), SysRegex::new(text).unwrap())).collect();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(150));
    let run = runner.run(&text(), |text| {
        for (name, ours, theirs) in &pairs {
            let wanted: Vec<(usize, usize)> = theirs.find_iter(&text).collect();
            prop_assert_eq!(found(ours, &text).unwrap(), wanted, "{} on {:?}", name, text);
        }
        Ok(())
    });
    run.unwrap();
}

#[test]
fn test_every_character_is_classed_as_oniguruma_does() {
    for name in syntax::CLASSES {
        let text: String = ('\0'..=char::MAX).collect();
        let name = format!(r"\p{{{name}}}");
        let wanted: Vec<(usize, usize)> = SysRegex::new(&name).unwrap().find_iter(&text).collect();
        assert!(found(&pattern(&name), &text).unwrap() == wanted, "{name}");
    }
}

#[test]
fn test_what_may_differ_is_refused_by_name() {
    for (pattern, wanted) in [
        (r"(a|a)*$", "empty"),
        (r"(?:a|a)*$|!", "empty"),
        (r"(?:a*)+b", "a repetition of what may be empty"),
        (r"a++b", "repetition \"a++\""),
        (r"\p{N}{1,3}+", "repetition"),
        (r"a{2,3}?", "repetition"),
        (r"\w+", r#"class "\\w""#),
        (r"[\W]", "class"),
        (r"[[:alpha:]]", "class"),
        (r"\p{Alphabetic}", "class"),
        (r"[a--b]", "class"),
        (r"\bword\b", "assertion"),
        (r"^a", "assertion"),
        (r"(?i)a", "flags"),
        (r"(?i:ss)", "group with flags"),
        (r"(?<name>a)", "named group"),
        (r"a(?=b)", "look-around"),
        (r"(?<!a)b", "look-around"),
        (r"(a)\1", "backreference"),
        (r"\h", "escape"),
        (r"(a", "unclosed group"),
        (r"\p{L}{1000}{1000}", "repetition"),
        (r"(?:(?:\p{L}{1000}){1000}){1000}", "too large"),
    ] {
        let error = error(pattern);
        assert!(error.starts_with("tokenizer.json: pre_tokenizer: pattern "), "{error}");
        assert!(error.to_lowercase().contains(wanted), "{pattern}: {error}");
        assert!(!error.contains('\n') && error.len() < 300, "{error}");
    }
    assert!(
        error(&"(?:a".repeat(40)).contains("unclosed")
            || error(&"(?:a".repeat(40)).contains("nest")
    );
    assert!(error(&"a".repeat(9000)).contains("longer than 8192 bytes"));
}

#[test]
fn test_a_pattern_that_reads_ahead_for_ever_ends_the_request() {
    let text = "a".repeat(1 << 14);
    for costly in ["a*b|a", ".*z|a", "(?:a|aa)+c|a"] {
        let error = found(&pattern(costly), &text).unwrap_err().to_string();
        assert!(error.contains("reads this text too often"), "{error}");
    }
    // As many states as there are sets of places.
    let states = pattern(r"[ab]*a[ab]{400}c|[ab]");
    let text: String = (0..1u32 << 17)
        .map(|n| if n.wrapping_mul(2_654_435_761) >> 13 & 1 == 0 { 'a' } else { 'b' })
        .collect();
    assert!(found(&states, &text).is_err());
    // And the next text is served.
    assert_eq!(found(&states, "ab").unwrap(), [(0, 1), (1, 2)]);
    for name in PATTERNS {
        let pattern = pattern(name);
        for piece in ["a", " ", "\n", "1", "'", "é", "<", "A", " a", "\u{301}", "汉", "\t ", "a1"]
        {
            assert!(found(&pattern, &piece.repeat(2000)).is_ok(), "{name} on {piece:?}");
        }
    }
}
