//! `if`, `then`, `else` about one property of an object.

use serde_json::{Value, json};

use crate::keywords::check;

#[test]
fn test_conditions_about_one_property_are_enforced() {
    // As the guide of json-schema.org has them: one condition after the other in allOf.
    let address = json!({
        "type": "object",
        "properties": { "country": { "enum": ["US", "CA", "NL"] }, "code": { "type": "string" } },
        "required": ["country", "code"],
        "additionalProperties": false,
        "allOf": [
            { "if": { "properties": { "country": { "const": "US" } }, "required": ["country"] },
              "then": { "properties": { "code": { "pattern": "^[0-9]{2}$" } } } },
            { "if": { "properties": { "country": { "enum": ["CA", "NL"] } } },
              "then": { "properties": { "code": { "pattern": "^[A-Z]{2}$" } } } },
        ],
    });
    let optional = json!({
        "type": "object",
        "properties": { "on": { "type": "boolean" }, "port": { "type": "integer" } },
        "additionalProperties": false,
        "if": { "properties": { "on": { "const": true } }, "required": ["on"] },
        "then": { "required": ["port"] },
        "else": { "properties": { "port": false } },
    });
    let without_required = json!({
        "type": "object",
        "properties": { "on": { "type": "boolean" }, "port": { "type": "integer" } },
        "additionalProperties": false,
        "if": { "properties": { "on": { "const": true } } },
        "then": { "required": ["port"] },
    });
    check(&[
        (
            address,
            &[r#"{"country": "US", "code": "12"}"#, r#"{"country": "NL", "code": "AB"}"#],
            &[r#"{"country": "US", "code": "AB"}"#, r#"{"country": "CA", "code": "12"}"#],
        ),
        (
            optional,
            &["{}", r#"{"on": false}"#, r#"{"on": true, "port": 1}"#],
            &[r#"{"on": true}"#, r#"{"on": false, "port": 1}"#, r#"{"port": 1}"#],
        ),
        (
            without_required,
            &[r#"{"on": false}"#, r#"{"port": 1}"#, r#"{"on": true, "port": 1}"#],
            &["{}", r#"{"on": true}"#],
        ),
    ]);
}

/// One case for each value, not all combinations of them.
#[test]
fn test_many_conditions_about_one_property_are_enforced() {
    let values: Vec<String> = (0..20).map(|i| format!("v{i}")).collect();
    let one = |(i, value): (usize, &String)| {
        let names = ["a", "b"];
        json!({ "if": { "properties": { "k": { "const": value } }, "required": ["k"] },
            "then": { "required": [names[i % 2]] } })
    };
    let all: Vec<Value> = values.iter().enumerate().map(one).collect();
    let schema = json!({ "type": "object", "additionalProperties": false, "allOf": all,
        "properties": { "k": { "enum": values }, "a": { "type": "null" }, "b": { "type": "null" } } });
    check(&[(
        schema,
        &["{}", r#"{"k": "v2", "a": null}"#, r#"{"k": "v19", "b": null}"#, r#"{"b": null}"#],
        &[r#"{"k": "v2"}"#, r#"{"k": "v2", "b": null}"#, r#"{"k": "v19", "a": null}"#],
    )]);
}

#[test]
fn test_conditions_about_presence_and_chains_of_them_are_enforced() {
    let presence = json!({
        "type": "object",
        "properties": { "card": { "type": "integer" }, "name": { "type": "null" } },
        "additionalProperties": false,
        "if": { "required": ["card"] },
        "then": { "required": ["name"] },
        "else": { "properties": { "name": false } },
    });
    let chain = json!({
        "type": "object",
        "properties": { "k": { "$ref": "#/$defs/K" }, "v": {} },
        "required": ["k", "v"],
        "additionalProperties": false,
        "$defs": { "K": { "type": "string", "enum": ["a", "b", "c"] } },
        "if": { "properties": { "k": { "const": "a" } } },
        "then": { "properties": { "v": { "type": "null" } } },
        "else": {
            "if": { "properties": { "k": { "const": "b" } } },
            "then": { "properties": { "v": { "type": "boolean" } } },
            "else": { "properties": { "v": { "type": "integer" } } },
        },
    });
    check(&[
        (
            presence,
            &["{}", r#"{"card": 1, "name": null}"#],
            &[r#"{"card": 1}"#, r#"{"name": null}"#],
        ),
        (
            chain,
            &[r#"{"k": "a", "v": null}"#, r#"{"k": "b", "v": true}"#, r#"{"k": "c", "v": 3}"#],
            &[r#"{"k": "a", "v": 3}"#, r#"{"k": "b", "v": null}"#, r#"{"k": "c", "v": true}"#],
        ),
    ]);
}
