//! What is special about the newer families, and the values that each of them refuses.

use serde_json::{Value, json};

use super::{family, refused, spec, with};

#[test]
fn test_smollm3_rotates_where_its_list_says_so() {
    let smollm3 = |changes: Value| family("smollm3", "SmolLM3ForCausalLM", changes);
    let rotating = |changes: Value| -> Vec<bool> {
        spec(&smollm3(changes)).layers.iter().map(|layer| layer.rope.is_some()).collect()
    };
    assert_eq!(rotating(json!({})), [true, true, true, false]);
    assert_eq!(rotating(json!({"no_rope_layer_interval": 2})), [true, false, true, false]);
    let list = json!({"no_rope_layers": [0, 1, 1, 1], "no_rope_layer_interval": 2});
    assert_eq!(rotating(list), [false, true, true, true]);
    let spec = spec(&smollm3(json!({})));
    assert_eq!(spec.ropes[0].theta, 2e6);
    assert!(spec.tie_word_embeddings);
    for (changes, reason) in [
        (json!({"no_rope_layers": [1, 0]}), "no_rope_layers: has 2 entries for 4 layers"),
        (json!({"no_rope_layers": [1, 0, 2, 1]}), "is not a list with 0 or 1 for each layer"),
        (json!({"no_rope_layer_interval": 0}), "no_rope_layer_interval: 0"),
        (json!({"use_sliding_window": true}), "use_sliding_window: true is not supported"),
        (json!({"sliding_window": 8}), "sliding_window: 8 is not supported"),
    ] {
        let error = refused(&with(smollm3(json!({})), changes));
        assert!(error.contains(reason), "{error}");
    }
}
