//! How a gpt2 vocabulary splits text into words, by the name in `tokenizer.ggml.pre`. llama.cpp's
//! converter writes these names; the patterns are those of the converted tokenizers. At model load
//! only. An unknown name is refused: with another split, a model would silently read other tokens
//! than it was trained on.

use crate::TextError;
use crate::words::patterns;
use crate::words::splitter::Splitter;

/// How a vocabulary is to be used.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) splitter: Splitter,
    /// Whether text is brought to normalisation form C first: GGUF has no key for it.
    pub(super) nfc: bool,
    /// Whether a word that is a token becomes that token without merging.
    pub(super) whole_words: bool,
    /// Whether texts begin with the begin token if no key decides it.
    pub(super) add_bos: bool,
}

/// A family of names.
struct Family {
    names: &'static [&'static str],
    way: Way,
    nfc: bool,
    /// As Llama 3: whole words, and a begin token.
    like_llama3: bool,
}

enum Way {
    Gpt2Digits,
    Patterns(&'static [&'static str]),
}

impl Cut {
    /// # Errors
    /// `TextError` for a name that is not known, or for no name and a vocabulary that is not known.
    pub(super) fn of(pre: Option<&str>, tokens: &[String]) -> Result<Self, TextError> {
        let name = match pre.filter(|name| !name.is_empty()) {
            Some(name) => name,
            None => by_tokens(tokens).ok_or_else(|| {
                let message = "missing, and the tokens are those of no vocabulary that is known";
                TextError::load(KEY, format!("{message}; it can be one of {}", known()))
            })?,
        };
        let family = FAMILIES.iter().find(|family| family.names.contains(&name));
        let family = family.ok_or_else(|| {
            let name = crate::error::excerpt(name);
            let message = format!("pre-tokeniser {name:?} is not one of {}", known());
            TextError::load(KEY, message)
        })?;
        let splitter = match family.way {
            Way::Gpt2Digits => Splitter::Gpt2Digits,
            Way::Patterns(patterns) => Splitter::of_patterns(KEY, "its cut", patterns)?,
        };
        let (nfc, like_llama3) = (family.nfc, family.like_llama3);
        Ok(Self { splitter, nfc, whole_words: like_llama3, add_bos: like_llama3 })
    }
}

fn known() -> String {
    let mut names: Vec<&str> = FAMILIES.iter().flat_map(|family| family.names).copied().collect();
    names.sort_unstable();
    names.join(", ")
}

/// Files of before May 2024 have no name. Some vocabularies are known by tokens that stand where no other
/// vocabulary has them.
fn by_tokens(tokens: &[String]) -> Option<&'static str> {
    let at = |id: usize| tokens.get(id).map(String::as_str);
    match tokens.len() {
        50_257 if at(50_256) == Some("<|endoftext|>") => Some("gpt-2"),
        131_072 if at(3) == Some("[INST]") && at(4) == Some("[/INST]") => Some("tekken"),
        _ if at(128_000) == Some("<|begin_of_text|>") => Some("llama-bpe"),
        _ if at(151_643) == Some("<|endoftext|>") && at(151_644) == Some("<|im_start|>") => {
            Some("qwen2")
        }
        _ => None,
    }
}

const fn family(names: &'static [&'static str], patterns: &'static [&'static str]) -> Family {
    Family { names, way: Way::Patterns(patterns), nfc: false, like_llama3: false }
}

static FAMILIES: &[Family] = &[
    family(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
        ],
        &[patterns::GPT2],
    ),
    Family {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        way: Way::Gpt2Digits,
        nfc: false,
        like_llama3: false,
    },
    Family {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        way: Way::Patterns(&[patterns::LLAMA3]),
        nfc: false,
        like_llama3: true,
    },
    family(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], &[patterns::LLAMA3]),
    Family {
        names: &["qwen2", "deepseek-r1-qwen"],
        way: Way::Patterns(&[patterns::QWEN2]),
        nfc: true,
        like_llama3: false,
    },
    family(
        &["megrez", "kormo", "f2llmv2", "stablelm2", "hunyuan", "solar-open", "grok-2"],
        &[patterns::QWEN2],
    ),
    Family {
        names: &["qwen35"],
        way: Way::Patterns(&[patterns::QWEN35]),
        nfc: true,
        like_llama3: false,
    },
    Family {
        names: &["tekken"],
        way: Way::Patterns(&[patterns::TEKKEN]),
        nfc: false,
        like_llama3: true,
    },
    family(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[patterns::O200K]),
    family(&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], &patterns::DEEPSEEK_V3),
    family(&["deepseek-llm"], &patterns::DEEPSEEK_LLM),
    family(&["deepseek-coder"], &patterns::DEEPSEEK_CODER),
    family(&["default"], &patterns::LLAMA_CPP_DEFAULT),
    family(&["falcon"], &patterns::FALCON),
    family(&["bloom", "poro-chat", "gpt3-finnish"], &[patterns::BLOOM]),
    family(&["viking"], &[patterns::BLOOM, r"\p{N}"]),
    family(&["bailingmoe", "bailingmoe2", "llada-moe"], &[patterns::BAILING]),
    family(&["seed-coder"], &[patterns::SEED_CODER]),
];

const KEY: &str = "tokenizer.ggml.pre";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_every_name_has_a_cut_of_its_own_and_others_are_refused_with_the_list() {
        for name in FAMILIES.iter().flat_map(|family| family.names) {
            let cut = Cut::of(Some(name), &[]).unwrap();
            let mut words = Vec::new();
            cut.splitter.split("Don't 12345!\n\nça va？", |word| words.push(word)).unwrap();
            assert_eq!(words.concat(), "Don't 12345!\n\nça va？", "{name}");
            let families = FAMILIES.iter().filter(|family| family.names.contains(name));
            assert_eq!(families.count(), 1, "{name}");
        }
        for name in ["whitespace", "kimi-k2", "llama-bpe2"] {
            let error = Cut::of(Some(name), &[]).unwrap_err().to_string();
            assert!(error.starts_with("tokenizer.ggml.pre: pre-tokeniser "), "{error}");
            assert!(error.contains(name) && error.contains("tekken, trillion, viking"), "{error}");
        }
    }

    #[test]
    fn test_without_a_name_only_a_vocabulary_that_is_known_is_taken() {
        let tokens = |len: usize, named: &[(usize, &str)]| {
            let mut tokens: Vec<String> = (0..len).map(|id| format!("t{id}")).collect();
            for (id, token) in named {
                tokens[*id] = (*token).to_string();
            }
            tokens
        };
        let name = |tokens: &[String]| by_tokens(tokens);
        let llama3 = tokens(128_256, &[(128_000, "<|begin_of_text|>")]);
        assert_eq!(name(&llama3), Some("llama-bpe"));
        assert!(Cut::of(None, &llama3).unwrap().add_bos);
        let qwen2 = tokens(151_936, &[(151_643, "<|endoftext|>"), (151_644, "<|im_start|>")]);
        assert_eq!(name(&qwen2), Some("qwen2"));
        assert_eq!(name(&tokens(50_257, &[(50_256, "<|endoftext|>")])), Some("gpt-2"));
        assert_eq!(name(&tokens(131_072, &[(3, "[INST]"), (4, "[/INST]")])), Some("tekken"));
        for tokens in [tokens(300, &[]), tokens(50_257, &[(0, "<|endoftext|>")])] {
            let error = Cut::of(Some(""), &tokens).unwrap_err().to_string();
            assert!(error.starts_with("tokenizer.ggml.pre: missing"), "{error}");
        }
    }
}
