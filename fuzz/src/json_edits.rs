//! Breaks JSON: as bytes, and as a tree.

use serde_json::{Map, Value, json};

use crate::rng::Rng;

/// Flips, cuts, repeats or inserts a few bytes.
pub(crate) fn damaged(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=rng.below(4) {
        let place = rng.below(bytes.len());
        let end = (place + 1 + rng.below(24)).min(bytes.len());
        match rng.below(5) {
            0 if !bytes.is_empty() => bytes[place] ^= 1 << rng.below(8),
            1 => drop(bytes.drain(place..end)),
            2 => {
                let again = bytes[place..end].to_vec();
                bytes.splice(place..place, again);
            }
            3 => bytes.insert(place, *rng.pick(b"\0\xff\"{}[],:-0e\\\n")),
            _ => bytes.truncate(place),
        }
    }
    bytes
}

/// Replaces one value anywhere in the tree by one that code gets wrong.
pub(crate) fn replaced(mut tree: Value, rng: &mut Rng) -> Value {
    let count = num_values(&tree);
    if count == 1 {
        return odd_value(rng);
    }
    let target = 1 + rng.below(count - 1);
    let value = odd_value(rng);
    *nth(&mut tree, &mut { target }).unwrap() = value;
    tree
}

/// One value anywhere in the tree becomes one of another tree.
pub(crate) fn grafted(mut tree: Value, mut other: Value, rng: &mut Rng) -> Value {
    let from = rng.below(num_values(&other));
    let part = nth(&mut other, &mut { from }).unwrap().take();
    let to = rng.below(num_values(&tree));
    *nth(&mut tree, &mut { to }).unwrap() = part;
    tree
}

/// A value of any type, at its limits.
pub(crate) fn odd_value(rng: &mut Rng) -> Value {
    match rng.below(12) {
        0 => Value::Null,
        1 => json!(rng.one_in(2)),
        2 => json!(0),
        3 => json!(-1),
        4 | 5 => json!(rng.edge()),
        6 => json!(i64::MIN),
        7 => json!(*rng.pick(&[0.5, -0.0, 1e300, 1e-320, f64::MAX])),
        8 => json!(""),
        9 => json!("x\u{0}\n\u{202e}".repeat(1 + rng.below(500))),
        10 => json!([[[]], {}]),
        _ => nested(rng.below(100)),
    }
}

/// A list in a list in a list.
pub(crate) fn nested(depth: usize) -> Value {
    (0..depth).fold(json!([]), |inner, _| Value::Array(vec![inner]))
}

/// Takes away one key of one object, the outermost more often than others.
pub(crate) fn without_key(mut tree: Value, rng: &mut Rng) -> Value {
    let mut at = &mut tree;
    loop {
        let object = at.as_object().filter(|object| !object.is_empty());
        let Some(object) = object else { return tree };
        let keys: Vec<String> = object.keys().cloned().collect();
        let key = rng.pick(&keys).clone();
        let inner = at[&key].as_object().is_some_and(|inner| !inner.is_empty());
        if inner && rng.one_in(2) {
            at = &mut at[&key];
            continue;
        }
        at.as_object_mut().unwrap().shift_remove(&key);
        return tree;
    }
}

/// The text of an object with one of its keys twice.
pub(crate) fn with_key_twice(object: &Map<String, Value>, rng: &mut Rng) -> Vec<u8> {
    let keys: Vec<&String> = object.keys().collect();
    let key = *rng.pick(&keys);
    let text = Value::Object(object.clone()).to_string();
    let (key, value) = (json!(key), odd_value(rng));
    format!("{{{key}:{value},{}", &text[1..]).into_bytes()
}

fn num_values(tree: &Value) -> usize {
    1 + match tree {
        Value::Array(items) => items.iter().map(num_values).sum(),
        Value::Object(items) => items.values().map(num_values).sum(),
        _ => 0,
    }
}

fn nth<'a>(tree: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(tree);
    }
    *left -= 1;
    match tree {
        Value::Array(items) => items.iter_mut().find_map(|item| nth(item, left)),
        Value::Object(items) => items.values_mut().find_map(|item| nth(item, left)),
        _ => None,
    }
}
