//! What an event loop may wait for: work that takes longer stops and leaves nothing.

use serde_json::{Value, json};

use super::harness::{Bench, MAX_QUEUE, SHAPE, says};

fn chat(content: &str) -> Value {
    json!({ "chat": { "messages": [{ "role": "user", "content": content }] } })
}

fn submit_if_brief(bench: &Bench, content: &str) -> Option<u64> {
    let request = json!({
        "prompts": [chat(content)],
        "max_tokens": 4,
        "output": { "format": "completion" },
    });
    bench.engine.submit_if_brief(request.to_string().as_bytes()).unwrap()
}

fn in_system(bench: &Bench) -> u64 {
    let health: Value = serde_json::from_slice(&bench.engine.health()).unwrap();
    health["in_system"].as_u64().unwrap()
}

#[test]
fn test_what_is_not_brief_stops_and_leaves_its_place() {
    for costly in ["{{ 'x ' * 40000 }}", "{% for i in range(30000) %}{% endfor %}"] {
        let template = "{% if messages[0].content == 'go' %}COSTLY{% endif %}x";
        let bench = Bench::with_template(says("x"), &template.replace("COSTLY", costly));
        for _ in 0..=SHAPE.max_num_seqs + MAX_QUEUE {
            assert_eq!(submit_if_brief(&bench, "go"), None, "{costly}");
        }
        assert_eq!(in_system(&bench), 0);
        let prompt = chat("go").to_string();
        assert_eq!(bench.engine.tokenize_if_brief(prompt.as_bytes()), Ok(None));
        assert_eq!(bench.engine.tokenize_json_if_brief(prompt.as_bytes(), true), Ok(None));
        // With time it is done, and other chats are brief.
        assert!(!bench.engine.tokenize(prompt.as_bytes()).unwrap().is_empty());
        assert!(submit_if_brief(&bench, "stay").is_some());
    }
}

#[test]
fn test_a_list_of_ids_does_not_become_any_length_of_text() {
    let bench = Bench::manual(says("x"));
    let id = *bench.engine.tokenize(br#"{"text": " the"}"#).unwrap().last().unwrap();
    let bytes = bench.engine.detokenize(&[id]).unwrap().len();
    let most = (64 << 20) / bytes;
    assert!(bench.engine.detokenize(&vec![id; most / 64]).is_ok());
    let error = bench.engine.detokenize(&vec![id; most + 1]).unwrap_err().to_string();
    assert!(error.starts_with("tokens: their text has 6"), "{error}");
}
