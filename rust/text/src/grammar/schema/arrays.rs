//! Keywords about arrays.

use serde_json::{Value, json};

use super::path::Path;
use super::rewriter::{Node, Rewriter, is_any, is_never};
use super::strings::count;

/// Handles a keyword that is independent of others; returns false if it is not about arrays.
pub(super) fn keyword<'a>(
    rewriter: &mut Rewriter<'a>,
    node: &mut Node<'a, '_>,
    key: &str,
    value: &'a Value,
    path: &Path<'_>,
) -> Result<bool, String> {
    match key {
        "minItems" | "maxItems" => {
            node.out.insert(key.into(), count(value, path)?.into());
        }
        // Up to 2019-09 a list of items is what prefixItems is now.
        "items" if value.is_array() => put_prefix(rewriter, node, value, path)?,
        "prefixItems" if node.get("items").is_some_and(Value::is_array) => {
            return Err(path.refuse("cannot stand beside items that are a list"));
        }
        "prefixItems" => put_prefix(rewriter, node, value, path)?,
        "items" => {
            let items = rewriter.schema(value, path)?;
            node.out.insert("items".into(), items);
        }
        // Without a list of items it has no effect.
        "additionalItems" if node.get("items").is_some_and(Value::is_array) => {
            let items = rewriter.schema(value, path)?;
            node.out.insert("items".into(), items);
        }
        "minContains" | "maxContains" if node.get("contains").is_some() => _ = count(value, path)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn put_prefix<'a>(
    rewriter: &mut Rewriter<'a>,
    node: &mut Node<'a, '_>,
    value: &'a Value,
    path: &Path<'_>,
) -> Result<(), String> {
    let schemas = value.as_array().ok_or_else(|| path.must_be("a list of schemas", value))?;
    let schemas: Result<Vec<Value>, String> =
        schemas.iter().enumerate().map(|(i, each)| rewriter.schema(each, &path.index(i))).collect();
    node.out.insert("prefixItems".into(), schemas?.into());
    Ok(())
}

/// Keywords whose meaning depends on others: `uniqueItems`, `contains`, `unevaluatedItems`.
pub(super) fn combine<'a>(
    rewriter: &mut Rewriter<'a>,
    node: &mut Node<'a, '_>,
) -> Result<(), String> {
    if !node.may_be("array") {
        for key in ["prefixItems", "items", "minItems", "maxItems"] {
            node.out.remove(key);
        }
        return Ok(());
    }
    contains(node)?;
    match node.get("uniqueItems") {
        None | Some(Value::Bool(false)) => {}
        // One item has no other that it could equal.
        Some(Value::Bool(true)) if most_items(node) <= 1 => {}
        Some(Value::Bool(true)) => match sequences(rewriter, node) {
            Some(all) => {
                node.out.insert("enum".into(), all.into());
            }
            None => {
                return Err(node.refuse(
                    "uniqueItems",
                    "allowed are false, and true where maxItems is at most 1, or where items list their \
                     values (enum, const, boolean) and there are few orders of them",
                ));
            }
        },
        Some(other) => return Err(node.path.key("uniqueItems").must_be("true or false", other)),
    }
    let Some(rest) = node.get("unevaluatedItems") else { return Ok(()) };
    let is_covered = node.out.contains_key("items") || is_any(rest);
    if is_covered {
        return Ok(());
    }
    if node.has_applicator() || node.get("contains").is_some() {
        return Err(node.refuse(
            "unevaluatedItems",
            "allowed beside items, and where no schema is applied besides, as by allOf or contains",
        ));
    }
    let items = rewriter.schema(rest, &node.path.key("unevaluatedItems"))?;
    node.out.insert("items".into(), items);
    Ok(())
}

/// All lists of different items, where the items list their values and no other keyword looks at them.
fn sequences(rewriter: &Rewriter<'_>, node: &Node<'_, '_>) -> Option<Vec<Value>> {
    let others = ["prefixItems", "contains", "unevaluatedItems", "enum", "const"];
    if node.given.get("type") != Some(&json!("array"))
        || others.iter().any(|key| node.get(key).is_some())
    {
        return None;
    }
    let mut values = rewriter.listed(node.get("items")?)?;
    values.sort_by_key(Value::to_string);
    values.dedup();
    let size = |key: &str| node.out.get(key).and_then(Value::as_u64).map(|size| size as usize);
    let (least, most) = (size("minItems").unwrap_or(0), size("maxItems").unwrap_or(values.len()));
    let (mut all, mut longest) = (Vec::new(), vec![Vec::new()]);
    for length in 0..=most.min(values.len()) {
        if length > 0 {
            let longer = longest.iter().flat_map(|list: &Vec<Value>| {
                let unused = values.iter().filter(|value| !list.contains(value));
                unused.map(|value| [&list[..], std::slice::from_ref(value)].concat())
            });
            longest = longer.take(MAX_SEQUENCES + 1).collect();
        }
        if length >= least {
            all.extend(longest.iter().map(|list| Value::from(list.clone())));
        }
        if longest.len().max(all.len()) > MAX_SEQUENCES {
            return None;
        }
    }
    (!all.is_empty()).then_some(all)
}

/// Lists of different items: those of five values in any number, or of seven in up to three.
const MAX_SEQUENCES: usize = 400;

/// The most items that are possible.
fn most_items(node: &Node<'_, '_>) -> u64 {
    let most = node.out.get("maxItems").and_then(Value::as_u64).unwrap_or(u64::MAX);
    let prefix = node.out.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
    let is_closed = node.out.get("items").is_some_and(is_never);
    if is_closed { most.min(prefix as u64) } else { most }
}

/// `contains` where it is a count of all items, or forbids nothing.
fn contains(node: &mut Node<'_, '_>) -> Result<(), String> {
    let Some(wanted) = node.get("contains") else { return Ok(()) };
    let size = |key: &str| node.get(key).and_then(Value::as_f64).map(|count| count as u64);
    let (least, most) = (size("minContains").unwrap_or(1), size("maxContains"));
    if least == 0 && most.is_none() {
        return Ok(());
    }
    if is_never(wanted) {
        node.is_never |= least > 0 && node.out.get("type") == Some(&json!("array"));
        if least == 0 {
            return Ok(());
        }
    }
    // Each item is one of those that count.
    let all_count =
        is_any(wanted) || (node.get("items") == Some(wanted) && node.get("prefixItems").is_none());
    if !all_count {
        return Err(node.refuse(
            "contains",
            "allowed are a schema that allows everything, the schema of items, and minContains 0",
        ));
    }
    let given = |key: &str| node.out.get(key).and_then(Value::as_u64);
    let least = given("minItems").unwrap_or(0).max(least);
    let most = [given("maxItems"), most].into_iter().flatten().min();
    node.out.insert("minItems".into(), least.into());
    if let Some(most) = most {
        node.out.insert("maxItems".into(), most.into());
    }
    Ok(())
}
