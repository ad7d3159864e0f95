//! Five hundred bombs: each is refused or read in little time and memory. One test, since it looks at the
//! memory of the process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test reports what it measured")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ingle_engine::check_body;
use ingle_fuzz::bombs::{Input, bomb};
use ingle_fuzz::cost::{CountingAllocator, measured};
use ingle_text::{
    ChatInput, ChatTemplate, GrammarBudget, GrammarFactory, GrammarSource, GrammarSpec, Tokenizer,
};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const NUM_BOMBS: usize = 500;
const MAX_BYTES: usize = 64 << 20;
/// Also in the tests' profile, which optimises our crates less than a wheel's.
const MAX_CPU: Duration = Duration::from_millis(200);

#[test]
fn test_bombs_cost_little() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models/qwen3/tokenizer.json");
    let tokenizer = Tokenizer::from_json(&std::fs::read(path).unwrap(), None).unwrap();
    let tokenizer = Arc::new(tokenizer);
    let factory = GrammarFactory::start(Arc::clone(&tokenizer), 512, &[1, 4]).unwrap();
    // What the first grammar builds is kept for all.
    assert!(grammar(&factory, GrammarSource::JsonObject));
    let mut kinds: BTreeMap<&str, (u32, u32, Duration, usize)> = BTreeMap::new();
    let mut faults = Vec::new();
    for number in 0..NUM_BOMBS {
        let bomb = bomb(number);
        let (accepted, cost) = measured(|| set_off(bomb.input, &tokenizer, &factory));
        if cost.cpu > MAX_CPU || cost.peak_bytes > MAX_BYTES {
            faults.push(format!("bomb {number}, {}: {cost:?}", bomb.kind));
        }
        let kind = kinds.entry(bomb.kind).or_default();
        kind.0 += 1;
        kind.1 += u32::from(accepted);
        kind.2 = kind.2.max(cost.cpu);
        kind.3 = kind.3.max(cost.peak_bytes);
    }
    for (kind, (count, accepted, cpu, bytes)) in kinds {
        println!("{count:4} {accepted:4} accepted, {cpu:9.2?}, {:6} KiB  {kind}", bytes >> 10);
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Whether the input was accepted.
fn set_off(input: Input, tokenizer: &Arc<Tokenizer>, factory: &GrammarFactory) -> bool {
    match input {
        Input::Body(body) => check_body(&body).is_ok(),
        Input::Template(source) => {
            let Ok(template) = ChatTemplate::for_tokenizer(&source, tokenizer) else {
                return false;
            };
            let messages = json!([{"role": "user", "content": "x"}]);
            template.render(&ChatInput { messages, ..ChatInput::default() }).is_ok()
        }
        Input::Schema(schema) => grammar(factory, GrammarSource::JsonSchema(schema)),
        Input::Regex(regex) => grammar(factory, GrammarSource::Regex(regex)),
        Input::Lark(text) => grammar(factory, GrammarSource::Lark(text)),
        Input::Text(text) => {
            let ids = tokenizer.encode(&text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, false), text);
            true
        }
    }
}

/// Compiles, and computes a first mask.
fn grammar(factory: &GrammarFactory, source: GrammarSource) -> bool {
    let spec = GrammarSpec { field: "response_format", source, reasoning: None };
    match factory.compile(&spec, GrammarBudget::default()) {
        Ok(grammar) => grammar.start().mask().is_ok(),
        Err(_) => false,
    }
}
