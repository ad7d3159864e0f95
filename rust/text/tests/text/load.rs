//! What a checkpoint's tokenizer files may say, and what is refused by name.

use std::sync::Arc;

use ingle_text::{Detokenizer, GgufVocab, Tokenizer};
use serde_json::{Value, json};

use crate::vocabularies::{byte_level, sentencepiece, tiny_with};

/// What is done to a good file, and a part of the error that it makes.
type Change<'c, T> = (&'c dyn Fn(&mut T), &'c str);

fn tiny() -> Value {
    tiny_with(Value::Null, byte_level(true))
}

fn load(file: &Value, config: &Value) -> Result<Tokenizer, String> {
    let config = config.to_string();
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), Some(config.as_bytes()));
    tokenizer.map_err(|error| error.to_string())
}

#[test]
fn test_what_is_not_supported_is_refused_by_name() {
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut file = tiny();
        change(&mut file);
        load(&file, &json!({})).unwrap_err()
    };
    let unigram =
        json!({"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]], "byte_fallback": true});
    let cases: [Change<'_, Value>; 14] = [
        (&|file| file["model"] = unigram.clone(), "model type \"Unigram\""),
        (&|file| file["model"]["type"] = "WordPiece".into(), "model type \"WordPiece\""),
        (&|file| file["model"]["dropout"] = 0.1.into(), "model dropout"),
        (&|file| file["model"]["vocab"] = json!({}), "empty vocabulary"),
        (&|file| file["model"]["vocab"]["a"] = 5_000_000.into(), "beyond the limit"),
        (&|file| file["model"]["vocab"]["a"] = file["model"]["vocab"]["b"].clone(), "share id"),
        (&|file| file["model"]["merges"][0] = json!(["a", "never heard"]), "\"never heard\""),
        (&|file| file["model"]["merges"][0] = json!("a b c"), "not two tokens"),
        (&|file| file["decoder"] = json!({"type": "WordPiece"}), "decoder type \"WordPiece\""),
        (&|file| file["decoder"] = Value::Null, "decoder type \"none\""),
        (&|file| file["post_processor"]["type"] = "Odd".into(), "post-processor type \"Odd\""),
        (&|file| file["post_processor"]["single"] = json!([]), "0 texts"),
        (&|file| file["normalizer"] = json!({"type": "Odd"}), "tokenizer.json: "),
        (&|file| file["added_tokens"][0]["single_word"] = true.into(), "single_word"),
    ];
    for (change, wanted) in cases {
        let error = changed(change);
        assert!(error.starts_with("tokenizer.json: ") && error.contains(wanted), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
    assert!(Tokenizer::from_json(b"{", None).is_err());
    let twice = tiny().to_string().replacen("\"vocab\":{", "\"vocab\":{\"a\":7,", 1);
    let error = Tokenizer::from_json(twice.as_bytes(), None).unwrap_err().to_string();
    assert!(
        error.starts_with("tokenizer.json: vocab: \"a\" is listed twice, as 7 and as"),
        "{error}"
    );
    assert!(load(&tiny(), &json!({"add_bos_token": true, "bos_token": "<none>"})).is_err());
}

#[test]
fn test_tokenizer_config_decides_about_special_tokens() {
    let frame = |config: Value| {
        let tokenizer = load(&tiny(), &config).unwrap();
        (tokenizer.encode("", true).unwrap(), tokenizer.encode("", false).unwrap())
    };
    let names =
        json!({"bos_token": "<|bos|>", "eos_token": {"content": "<|eos|>", "special": true}});
    let with = |key: &str, value: bool| {
        let mut config = names.clone();
        config[key] = value.into();
        config
    };
    assert_eq!(frame(json!({})), (vec![0], vec![]));
    assert_eq!(frame(with("add_bos_token", false)), (vec![], vec![]));
    assert_eq!(frame(with("add_eos_token", true)), (vec![0, 1], vec![]));
    assert_eq!(frame(json!({"add_bos_token": true})), (vec![], vec![]), "no such token: off");

    let tokenizer = load(&tiny(), &names).unwrap();
    assert_eq!((tokenizer.bos_token_id(), tokenizer.eos_token_ids()), (Some(0), &[1][..]));
    assert_eq!(tokenizer.vocab_size(), 388);
    assert_eq!(tokenizer.named_tokens()[1], ("eos_token".to_string(), "<|eos|>".to_string()));
    // The config names a token of the plain vocabulary special, and adds one.
    let config = json!({"pad_token": "a", "added_tokens_decoder": {
        "400": {"content": "<new>", "special": true}, "2": {"content": "<|pad|>", "special": false}}});
    let tokenizer = load(&tiny(), &config).unwrap();
    let a = tokenizer.token_to_id("a").unwrap();
    assert!(tokenizer.is_special(a) && tokenizer.is_special(400) && !tokenizer.is_special(2));
    assert_eq!(tokenizer.vocab_size(), 401);
    assert_eq!(tokenizer.token_bytes(400), Some(&b"<new>"[..]));
    assert_eq!((tokenizer.token_bytes(399), tokenizer.token_bytes(u32::MAX)), (None, None));
}

/// A GGUF vocabulary of the llama kind: characters, words, and bytes if asked for.
fn llama(bytes: bool) -> GgufVocab {
    let mut vocab =
        GgufVocab { model: "llama".into(), unk_token_id: Some(0), ..Default::default() };
    let mut add = |token: &str, kind: i32, score: f32| {
        vocab.tokens.push(token.into());
        vocab.token_types.push(kind);
        vocab.scores.push(score);
    };
    add("<unk>", 2, 0.0);
    add("<s>", 3, 0.0);
    add("</s>", 3, 0.0);
    add("<tool>", 4, 0.0);
    for (index, token) in ["▁", "a", "b", "ab", "▁a", "▁ab", "ö!", "<", "s", ">"].iter().enumerate()
    {
        add(token, 1, -(index as f32));
    }
    for byte in (0..=255u8).filter(|_| bytes) {
        add(&format!("<0x{byte:02X}>"), 6, 0.0);
    }
    (vocab.bos_token_id, vocab.eos_token_id, vocab.eot_token_id) = (Some(1), Some(2), Some(1));
    vocab
}

#[test]
fn test_llama_vocabularies_merge_by_score_and_fall_back_to_bytes() {
    let tokenizer = Tokenizer::from_gguf(llama(true)).unwrap();
    let byte = |byte: u8| 14 + u32::from(byte);
    let encode = |text: &str| tokenizer.encode(text, false).unwrap();
    // "ab" has the better score, so "▁a" never forms.
    assert_eq!(encode("ab"), [9]);
    assert_eq!(encode("a ab"), [8, 9]);
    // No token: its bytes. Part of a token though no token itself: merged, as llama.cpp does.
    assert_eq!(encode("é"), [4, byte(0xC3), byte(0xA9)]);
    assert_eq!(encode("ö!"), [4, 10]);
    assert_eq!(encode("ö"), [4, byte(0xC3), byte(0xB6)]);
    // Control tokens in text are text; tokens of the user's are tokens, and a space follows them.
    assert_eq!(encode("<s>"), [4, 11, 12, 13]);
    assert_eq!(encode("<tool>a"), [3, 8]);
    assert_eq!(tokenizer.encode("", true).unwrap(), [1]);
    assert_eq!(tokenizer.eos_token_ids(), [2, 1]);
    assert_eq!(tokenizer.decode(&[1, 9, 4, byte(0xC3), byte(0xB6)], true), "ab ö");

    let unknown = Tokenizer::from_gguf(llama(false)).unwrap();
    assert_eq!(unknown.encode("é", false).unwrap(), [4, 0]);
    let plain = GgufVocab { add_space_prefix: Some(false), add_bos: Some(false), ..llama(true) };
    let plain = Tokenizer::from_gguf(plain).unwrap();
    assert_eq!(plain.encode("ab", true).unwrap(), [7]);
    assert_eq!(plain.decode(&[9], false), " ab");
}

#[test]
fn test_broken_gguf_vocabularies_are_refused_by_key() {
    let error = |change: &dyn Fn(&mut GgufVocab)| {
        let mut vocab = llama(true);
        change(&mut vocab);
        Tokenizer::from_gguf(vocab).unwrap_err().to_string()
    };
    let cases: [Change<'_, GgufVocab>; 14] = [
        (&|vocab| vocab.model = "bert".into(), "tokenizer.ggml.model: model \"bert\""),
        (&|vocab| vocab.tokens.clear(), "tokenizer.ggml.tokens: 0 tokens"),
        (&|vocab| vocab.scores.truncate(269), "tokenizer.ggml.scores: 269 entries for 270 tokens"),
        (&|vocab| vocab.scores.clear(), "tokenizer.ggml.scores: missing"),
        (&|vocab| vocab.scores[5] = f32::NAN, "token 5 is not a number"),
        (&|vocab| vocab.token_types.truncate(269), "tokenizer.ggml.token_type: 269"),
        (&|vocab| vocab.token_types[5] = 9, "token 5 has type 9"),
        (&|vocab| vocab.tokens[6] = "a".into(), "\"a\" is listed twice, the second time as 6"),
        (&|vocab| vocab.tokens[20] = "<0xG0>".into(), "byte token 20"),
        (&|vocab| vocab.tokens[3] = "t".repeat(257), "token 3 has 257 bytes; at most 256"),
        (&|vocab| vocab.tokens[5] = "t".repeat(200_000), "at most 1024 are allowed"),
        (&|vocab| vocab.eos_token_id = Some(270), "tokenizer.ggml.eos_token_id: 270"),
        (
            &|vocab| (vocab.add_bos, vocab.bos_token_id) = (Some(true), None),
            "tokenizer.ggml.add_bos_token: true",
        ),
        (
            &|vocab| {
                (vocab.unk_token_id, vocab.tokens[20]) = (None, "x".into());
                vocab.token_types[20] = 1;
            },
            "256 byte tokens",
        ),
    ];
    for (change, wanted) in cases {
        let error = error(change);
        assert!(error.contains(wanted), "{error}");
    }
    let gpt2 = |pre: Option<&str>, merge: &str| {
        let tokens =
            (0..=255u8).map(|byte| char::from_u32(256 + u32::from(byte)).unwrap().to_string());
        let vocab = GgufVocab {
            model: "gpt2".into(),
            pre: pre.map(String::from),
            tokens: tokens.chain(["a".into(), "b".into()]).collect(),
            merges: Some(merge)
                .filter(|merge| !merge.is_empty())
                .map(String::from)
                .into_iter()
                .collect(),
            ..GgufVocab::default()
        };
        Tokenizer::from_gguf(vocab).unwrap_err().to_string()
    };
    assert!(gpt2(Some("odd"), "a b").starts_with("tokenizer.ggml.pre: pre-tokeniser \"odd\""));
    assert!(gpt2(None, "a b").starts_with("tokenizer.ggml.pre: missing"));
    let merge = "tokenizer.ggml.merges: merge 0 needs the token \"ab\"";
    assert!(gpt2(Some("gpt-2"), "a b").starts_with(merge));
    assert!(gpt2(Some("gpt-2"), "").starts_with("tokenizer.ggml.merges: missing"));
}

#[test]
fn test_pieces_of_text_join_to_the_text() {
    let file = sentencepiece("llama-2").to_string();
    let tokenizer = Arc::new(Tokenizer::from_json(file.as_bytes(), None).unwrap());
    let ids = tokenizer.encode("the house 🔥", false).unwrap();
    let text = |mut stream: Detokenizer, ids: &[u32]| {
        let (mut out, mut pieces) = (String::new(), Vec::new());
        for &id in ids {
            stream.push(id, &mut out);
            pieces.push(std::mem::take(&mut out));
        }
        stream.finish(&mut out);
        pieces.push(out);
        assert!(pieces.iter().rev().skip(1).all(|piece| !piece.contains('\u{FFFD}')), "{pieces:?}");
        pieces.concat()
    };
    let fresh = |skip| Detokenizer::new(Arc::clone(&tokenizer), skip);
    assert_eq!(text(fresh(true), &ids), "the house 🔥");
    let continuing = Detokenizer::continuing(Arc::clone(&tokenizer), true);
    assert_eq!(text(continuing, &ids), " the house 🔥");
    // A special token inside a character, an id beyond the vocabulary, a character cut off.
    let (end, fire) = (2, [0xF0, 0x9F, 0x94, 0xA5].map(|byte: u32| 5 + byte));
    let broken = [fire[0], end, fire[1], 1_000_000, fire[2], fire[3]];
    assert_eq!(text(fresh(true), &broken), "🔥");
    assert_eq!(text(fresh(true), &fire[..3]), "\u{FFFD}");
    assert_eq!(text(fresh(false), &[end]), "</s>");
}
