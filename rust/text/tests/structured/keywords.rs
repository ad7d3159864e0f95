//! Every keyword of JSON Schema is enforced, forbids nothing here and is accepted, or is refused by its path.

use ingle_text::{GrammarBudget, GrammarFactory, GrammarSource, TextError};
use serde_json::{Value, json};

use crate::walk::{allowed, factory, spec, tokenizer};

fn refusal(factory: &GrammarFactory, schema: &Value) -> String {
    let source = GrammarSource::JsonSchema(schema.clone());
    match factory.compile(&spec(source), GrammarBudget::default()) {
        Err(TextError::Input { message, .. }) => message,
        other => panic!("{schema}: {other:?}"),
    }
}

/// Whether the whole text may be the answer.
fn takes(factory: &GrammarFactory, schema: &Value, text: &str) -> bool {
    let source = GrammarSource::JsonSchema(schema.clone());
    let grammar = factory
        .compile(&spec(source), GrammarBudget::default())
        .unwrap_or_else(|error| panic!("{schema}: {error}"));
    let mut state = grammar.start();
    let fits = tokenizer()
        .encode(text, false)
        .unwrap()
        .into_iter()
        .all(|id| allowed(&state.mask().unwrap()).contains(&id) && state.accept(id).is_ok());
    fits && state.may_end()
}

/// Whether each schema takes the first texts and none of the others.
pub(crate) fn check(cases: &[(Value, &[&str], &[&str])]) {
    let factory = factory();
    for (schema, right, wrong) in cases {
        for text in *right {
            assert!(takes(&factory, schema, text), "{schema} forbids {text}");
        }
        for text in *wrong {
            assert!(!takes(&factory, schema, text), "{schema} allows {text}");
        }
    }
}

#[test]
fn test_keywords_that_forbid_nothing_are_accepted() {
    let factory = factory();
    let plain = json!({ "type": "object", "properties": { "a": { "type": "array",
        "items": { "type": "integer" }, "maxItems": 1 } }, "required": ["a"],
        "additionalProperties": false });
    let of_object = [
        json!({ "propertyNames": { "type": "string" } }),
        json!({ "propertyNames": true, "dependentRequired": {}, "dependentSchemas": {} }),
        json!({ "dependentRequired": { "a": [], "b": ["c"] }, "dependencies": { "a": ["a"] } }),
        json!({ "if": { "required": ["a"] } }),
        json!({ "then": { "required": ["z"] }, "else": false }),
        json!({ "if": {}, "then": {}, "else": { "required": ["z"] } }),
        json!({ "unevaluatedProperties": false }),
        json!({ "unevaluatedProperties": { "type": "string" } }),
        json!({ "not": false, "allOf": [{ "not": { "not": {} } }] }),
        json!({ "$comment": "x", "title": "x", "description": "x", "default": 3, "deprecated": true }),
        json!({ "examples": [{ "minLength": 1e30 }], "readOnly": true, "writeOnly": false }),
        json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:x", "$anchor": "y" }),
        json!({ "$vocabulary": {}, "$dynamicAnchor": "z", "$recursiveAnchor": true, "id": "w" }),
        json!({ "contentMediaType": "application/json", "contentEncoding": "base64", "contentSchema": {} }),
        json!({ "minProperties": 0, "patternProperties": {}, "discriminator": {}, "x-order": 3 }),
        json!({ "$defs": { "unused": { "uniqueItems": true } }, "definitions": {} }),
        json!({ "format": "int32", "uniqueItems": true, "contains": { "minLength": 2 } }),
    ];
    let of_array = [
        json!({ "uniqueItems": false }),
        json!({ "uniqueItems": true }),
        json!({ "minContains": 3, "maxContains": 4 }),
        json!({ "contains": { "type": "string" }, "minContains": 0 }),
        json!({ "unevaluatedItems": false, "additionalItems": false }),
        json!({ "minItems": 0.0, "pattern": "^never$", "multipleOf": 3, "format": "regex" }),
    ];
    let cases =
        of_object.iter().map(|more| (more, false)).chain(of_array.iter().map(|more| (more, true)));
    for (more, is_array) in cases {
        let mut schema = plain.clone();
        let place = if is_array { &mut schema["properties"]["a"] } else { &mut schema };
        for (key, value) in more.as_object().unwrap() {
            place[key] = value.clone();
        }
        assert!(takes(&factory, &schema, r#"{"a": [12]}"#), "{more}");
        assert!(takes(&factory, &schema, r#"{"a": []}"#), "{more}");
        for wrong in [r#"{"a": [1, 2]}"#, r#"{"a": ["x"]}"#, r#"{"a": [], "b": 1}"#, "{}"] {
            assert!(!takes(&factory, &schema, wrong), "{more} allows {wrong}");
        }
    }
}

#[test]
fn test_keywords_about_objects_with_an_equal_in_others_are_enforced() {
    check(&[
        (
            json!({ "type": "object", "propertyNames": { "enum": ["a", "b"] }, "additionalProperties": { "type": "integer" } }),
            &["{}", r#"{"a": 1}"#, r#"{"a": 1, "b": 2}"#],
            &[r#"{"c": 1}"#, r#"{"a": "x"}"#],
        ),
        (
            json!({ "type": "object", "propertyNames": { "anyOf": [{ "const": "a" }, { "const": "b" }] } }),
            &[r#"{"b": null}"#],
            &[r#"{"c": 1}"#],
        ),
        (
            json!({ "type": "object", "propertyNames": { "pattern": "^x" }, "additionalProperties": { "type": "integer" } }),
            &["{}", r#"{"xa": 1, "xb": 2}"#],
            &[r#"{"a": 1}"#, r#"{"x": "y"}"#],
        ),
        (
            json!({ "type": "object", "propertyNames": { "minLength": 2, "maxLength": 3 } }),
            &[r#"{"ab": 1}"#, r#"{"abc": 1}"#],
            &[r#"{"a": 1}"#, r#"{"abcd": 1}"#],
        ),
        (json!({ "type": "object", "propertyNames": false }), &["{}"], &[r#"{"a": 1}"#]),
        (
            json!({ "type": "object", "properties": { "a": {} }, "required": ["a"],
            "dependentRequired": { "a": ["b"] }, "dependentSchemas": { "a": { "properties": { "b": { "type": "null" } } } } }),
            &[r#"{"a": 1, "b": null}"#],
            &[r#"{"a": 1}"#, r#"{"a": 1, "b": 2}"#],
        ),
        (
            json!({ "type": "object", "properties": { "a": {} }, "unevaluatedProperties": false }),
            &[r#"{"a": 1}"#],
            &[r#"{"b": 1}"#],
        ),
        (
            json!({ "type": "array", "prefixItems": [{ "type": "null" }], "unevaluatedItems": { "type": "integer" } }),
            &["[null, 1]"],
            &["[null, null]", "[1]"],
        ),
    ]);
}

#[test]
fn test_keywords_with_an_equal_in_others_are_enforced() {
    check(&[
        (
            json!({ "type": "array", "contains": true, "minContains": 2, "maxContains": 3 }),
            &["[1, 2]", "[1, 2, 3]"],
            &["[1]", "[1, 2, 3, 4]"],
        ),
        (
            json!({ "type": "array", "items": { "type": "integer" }, "contains": { "type": "integer" } }),
            &["[1]"],
            &["[]"],
        ),
        (
            json!({ "if": true, "then": { "type": "null" }, "else": { "type": "string" } }),
            &["null"],
            &["\"x\"", "1"],
        ),
        (
            json!({ "if": false, "then": { "type": "null" }, "else": { "type": "boolean" } }),
            &["true"],
            &["null"],
        ),
        (
            json!({ "not": { "type": ["object", "array", "string"] } }),
            &["1", "null"],
            &["[]", "\"\""],
        ),
        (
            json!({ "type": "object", "properties": { "a": { "not": {} }, "b": { "type": "null" } } }),
            &["{}", r#"{"b": null}"#],
            &[r#"{"a": 1}"#],
        ),
        (
            json!({ "type": "integer", "minimum": 3, "exclusiveMinimum": true, "maximum": 5, "exclusiveMaximum": false }),
            &["4", "5"],
            &["3", "6"],
        ),
        (
            json!({ "$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
            "items": [{ "type": "null" }], "additionalItems": { "type": "integer" } }),
            &["[]", "[null, 3]"],
            &["[3]", "[null, null]"],
        ),
        (
            json!({ "type": "string", "format": "json-pointer" }),
            &["\"\"", "\"/a~1b\""],
            &["\"a\"", "\"/~2\""],
        ),
        (
            json!({ "type": "string", "pattern": "^(?=.*[0-9])(?=.{3,})[a-z0-9]+$" }),
            &["\"ab1\""],
            &["\"abc\"", "\"a1\"", "\"A12\""],
        ),
        (json!({ "type": "array", "minItems": 1.0, "maxItems": 2.0 }), &["[1]"], &["[]"]),
        (json!({ "type": ["null", "null"] }), &["null"], &["1"]),
        (
            json!({ "$dynamicRef": "#node", "$defs": { "n": { "$dynamicAnchor": "node", "type": "null" } } }),
            &["null"],
            &["1"],
        ),
        (json!({ "type": "array", "items": { "$recursiveRef": "#" } }), &["[[], [[]]]"], &["[1]"]),
    ]);
}

#[test]
fn test_a_divisor_near_which_a_binary_fraction_lies_is_enforced_by_its_digits() {
    check(&[
        (json!({ "type": "number", "multipleOf": 0.07 }), &["0.07", "1.4", "7"], &["0.08", "1"]),
        (json!({ "type": "integer", "multipleOf": 1.5 }), &["3", "-6"], &["1", "4"]),
    ]);
}

#[test]
fn test_unique_items_of_listed_values_are_enforced() {
    check(&[
        (
            json!({ "type": "array", "uniqueItems": true, "items": { "enum": ["a", "b", "c"] } }),
            &["[]", r#"["b"]"#, r#"["c", "a"]"#, r#"["c", "a", "b"]"#],
            &[r#"["a", "a"]"#, r#"["a", "b", "a"]"#, r#"["d"]"#],
        ),
        // pydantic 2: set[Kind], of an Enum.
        (
            json!({ "type": "array", "uniqueItems": true, "minItems": 1, "items": { "$ref": "#/$defs/Kind" },
                "$defs": { "Kind": { "enum": ["x", "y"], "title": "Kind", "type": "string" } } }),
            &[r#"["y"]"#, r#"["x", "y"]"#],
            &["[]", r#"["x", "x"]"#],
        ),
        // A value that the item's other keywords forbid is none.
        (
            json!({ "type": "array", "uniqueItems": true, "maxItems": 2,
                "items": { "type": "string", "enum": ["a", 1, "bb"], "maxLength": 1 } }),
            &["[]", r#"["a"]"#],
            &["[1]", r#"["bb"]"#, r#"["a", "a"]"#],
        ),
        (
            json!({ "type": "array", "uniqueItems": true, "items": { "type": "boolean" } }),
            &["[true, false]"],
            &["[true, true]"],
        ),
    ]);
    let letters: Vec<String> = ('a'..='h').map(String::from).collect();
    let many = json!({ "type": "object", "properties": { "s": { "type": "array", "uniqueItems": true,
        "items": { "enum": letters } } } });
    assert!(refusal(&factory(), &many).starts_with("properties.s.uniqueItems: true cannot be"));
}

#[test]
fn test_references_lead_within_the_schema_whatever_names_the_place() {
    check(&[
        (
            json!({ "$ref": "#/definitions/a%20b~1c", "definitions": { "a b/c": { "type": "null" } } }),
            &["null"],
            &["1"],
        ),
        (
            json!({ "$ref": "#here", "components": { "x": { "$anchor": "here", "type": "null" } } }),
            &["null"],
            &["1"],
        ),
        (
            json!({ "$id": "https://example.com/root", "$ref": "https://example.com/root#/$defs/a",
            "$defs": { "a": { "type": "null" } } }),
            &["null"],
            &["1"],
        ),
        // Within a resource of its own, # is that resource.
        (
            json!({ "$ref": "https://example.com/list", "$defs": { "list": { "$id": "https://example.com/list",
            "type": "array", "items": { "$ref": "#/$defs/item" }, "$defs": { "item": { "type": "null" } } } } }),
            &["[null]"],
            &["[1]"],
        ),
        (
            json!({ "type": "object", "properties": { "next": { "anyOf": [{ "$ref": "#" }, { "type": "null" }] } },
            "required": ["next"], "additionalProperties": false }),
            &[r#"{"next": {"next": null}}"#],
            &[r#"{"next": 1}"#],
        ),
    ]);
}

#[test]
fn test_one_of_is_any_of_where_options_exclude_each_other() {
    // As pydantic writes a union that a field tells apart.
    let pets = json!({
        "$defs": {
            "Cat": { "type": "object", "title": "Cat", "properties": { "kind": { "const": "cat", "type": "string" },
                "lives": { "type": "integer" } }, "required": ["kind", "lives"] },
            "Dog": { "type": "object", "title": "Dog", "properties": { "kind": { "const": "dog", "type": "string" },
                "owner": { "oneOf": [{ "type": "string" }, { "type": "null" }] } }, "required": ["kind", "owner"] }
        },
        "oneOf": [{ "$ref": "#/$defs/Cat" }, { "$ref": "#/$defs/Dog" }],
        "discriminator": { "mapping": { "cat": "#/$defs/Cat", "dog": "#/$defs/Dog" }, "propertyName": "kind" }
    });
    check(&[
        (
            pets,
            &[r#"{"kind": "cat", "lives": 9}"#, r#"{"kind": "dog", "owner": null}"#],
            &[r#"{"kind": "cat", "owner": null}"#, r#"{"kind": "cow"}"#],
        ),
        (json!({ "oneOf": [{ "enum": [1, 2] }, { "enum": [3, "x"] }] }), &["3", "1"], &["4"]),
        (
            json!({ "oneOf": [
            { "type": "object", "required": ["a"], "properties": { "a": {} }, "additionalProperties": false },
            { "type": "object", "required": ["b"], "properties": { "b": {} }, "additionalProperties": false }] }),
            &[r#"{"a": 1}"#, r#"{"b": 1}"#],
            &["{}"],
        ),
    ]);
    let factory = factory();
    for overlapping in [
        json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }),
        json!({ "oneOf": [{ "enum": [1] }, { "enum": [1.0] }] }),
        json!({ "oneOf": [{ "properties": { "a": { "const": 1 } }, "required": ["a"] },
            { "properties": { "a": { "const": 2 } }, "required": ["a"] }] }),
    ] {
        let schema = json!({ "type": "object", "properties": { "x": overlapping } });
        let error = refusal(&factory, &schema);
        assert!(error.starts_with("properties.x.oneOf: options 0 and 1 may both match"), "{error}");
    }
}

#[test]
fn test_what_libraries_write_is_accepted() {
    check(&[
        // zod 4: z.record(z.string(), z.number()), z.record(z.enum([..]), ..), z.never(), z.int().
        (
            json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "propertyNames": { "type": "string" }, "additionalProperties": { "type": "number" } }),
            &[r#"{"a": 1.5}"#],
            &[r#"{"a": "x"}"#],
        ),
        (
            json!({ "type": "object", "propertyNames": { "type": "string", "enum": ["a", "b"] },
            "additionalProperties": { "type": "number" }, "required": ["a", "b"] }),
            &[r#"{"a": 1, "b": 2}"#],
            &[r#"{"a": 1}"#],
        ),
        (
            json!({ "type": "integer", "minimum": -9007199254740991_i64, "maximum": 9007199254740991_i64 }),
            &["0", "-9007199254740991"],
            &["9007199254740992"],
        ),
        (
            json!({ "type": "string", "format": "email", "pattern":
            "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$" }),
            &["\"a.b@c.de\"", "\"x@y.zz\""],
            &["\".a@b.cd\"", "\"a..b@c.de\"", "\"a@b\""],
        ),
        (
            json!({ "type": "string", "format": "base64", "contentEncoding": "base64",
            "pattern": "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$" }),
            &["\"\"", "\"YQ==\""],
            &["\"Y\""],
        ),
        (
            json!({ "type": "array", "prefixItems": [{ "type": "string" }, { "type": "number" }] }),
            &["[\"a\", 1]"],
            &["[1]"],
        ),
        // pydantic 2: Optional, Decimal, SecretStr, a described reference, a default.
        (
            json!({ "type": "object", "properties": {
            "a": { "anyOf": [{ "type": "integer" }, { "type": "null" }], "default": null, "title": "A" },
            "b": { "$ref": "#/$defs/B", "description": "which", "default": "x" },
            "c": { "type": "string", "format": "password", "writeOnly": true },
            "d": { "anyOf": [{ "type": "number" }, { "type": "string",
                "pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$" }] } },
            "required": ["a", "b", "c", "d"], "title": "M", "$defs": { "B": { "enum": ["x", "y"], "title": "B", "type": "string" } } }),
            &[r#"{"a": null, "b": "x", "c": "pw", "d": "-1.50"}"#],
            &[r#"{"a": null, "b": "x", "c": "pw", "d": "+."}"#],
        ),
        // zod-to-json-schema, as LangChain and the AI SDK use it: draft 7.
        (
            json!({ "$ref": "#/definitions/answer", "definitions": { "answer": { "type": "object",
            "properties": { "a": { "type": "array", "items": { "type": "string" }, "uniqueItems": false } },
            "required": ["a"], "additionalProperties": false } }, "$schema": "http://json-schema.org/draft-07/schema#" }),
            &[r#"{"a": ["x"]}"#],
            &[r#"{"a": [1]}"#, "{}"],
        ),
    ]);
}

#[test]
fn test_what_cannot_be_enforced_is_refused_by_its_path() {
    let factory = factory();
    for (schema, want) in [
        (
            json!({ "uniqueItems": true }),
            "properties.x.uniqueItems: true cannot be enforced; allowed are false",
        ),
        (
            json!({ "contains": { "const": 1 } }),
            "properties.x.contains: an object cannot be enforced",
        ),
        (json!({ "if": { "type": "null" }, "then": { "const": 1 } }), "properties.x.if: "),
        (json!({ "not": { "const": 1 } }), "properties.x.not: "),
        (
            json!({ "dependentRequired": { "a": ["b"] } }),
            "properties.x.dependentRequired.a: cannot be enforced",
        ),
        (
            json!({ "dependentSchemas": { "a": { "minProperties": 2 } } }),
            "properties.x.dependentSchemas.a: ",
        ),
        (
            json!({ "dependencies": { "a": { "minProperties": 2 } } }),
            "properties.x.dependencies.a: ",
        ),
        (
            json!({ "propertyNames": { "format": "email" } }),
            "properties.x.propertyNames: cannot be enforced",
        ),
        (
            json!({ "unevaluatedProperties": false, "anyOf": [{}, {}] }),
            "properties.x.unevaluatedProperties: ",
        ),
        (json!({ "unevaluatedItems": false, "contains": {} }), "properties.x.unevaluatedItems: "),
        (json!({ "format": "idn-email" }), "properties.x.format: \"idn-email\" cannot be enforced"),
        (
            json!({ "$ref": "https://example.com/a.json" }),
            "properties.x.$ref: \"https://example.com/a.json\" leads out of this schema",
        ),
        (json!({ "$ref": "#/$defs/none" }), "properties.x.$ref: \"#/$defs/none\" leads to nothing"),
        (json!({ "$ref": "#none" }), "properties.x.$ref: \"#none\" names an anchor"),
        (json!({ "$ref": 3 }), "properties.x.$ref: must be a string, not 3"),
        (json!({ "pattern": "(?<!a)b" }), "properties.x.pattern: look-around"),
        (json!({ "pattern": "(a)\\1" }), "properties.x.pattern: back references"),
        (json!({ "pattern": "a**(" }), "properties.x.pattern: invalid regex"),
        (json!({ "type": "strng" }), "properties.x.type: must be one of array, boolean, integer"),
        (json!({ "type": [] }), "properties.x.type: must be one of"),
        (json!({ "enum": [] }), "properties.x.enum: must be a list of one value or more, not []"),
        (json!({ "anyOf": [] }), "properties.x.anyOf: must be a list of one schema or more"),
        (json!({ "anyOf": [{}, 3] }), "properties.x.anyOf[1]: must be a schema"),
        (json!({ "minLength": -1 }), "properties.x.minLength: must be an integer from 0, not -1"),
        (json!({ "maxItems": 1e9 }), "properties.x.maxItems: is 1000000000.0, at most 10000"),
        (json!({ "minimum": "3" }), "properties.x.minimum: must be a number, not \"3\""),
        (json!({ "multipleOf": 0 }), "properties.x.multipleOf: must be a number above 0"),
        (json!({ "required": "a" }), "properties.x.required: must be a list of strings"),
        (json!({ "properties": [] }), "properties.x.properties: must be an object"),
        (json!({ "items": { "type": "int" } }), "properties.x.items.type: must be one of"),
        (json!({ "x-guidance": {} }), "properties.x.x-guidance: "),
    ] {
        let schema = json!({ "type": "object", "properties": { "x": schema } });
        let error = refusal(&factory, &schema);
        assert!(error.starts_with(want), "{schema}: {error}");
    }
    let in_definition = json!({ "$ref": "#/$defs/a", "$defs": { "a": { "uniqueItems": true } } });
    assert!(refusal(&factory, &in_definition).starts_with("$defs.a.uniqueItems: true"));
}

#[test]
fn test_every_keyword_is_in_the_table() {
    let table = include_str!("../../../../docs/JSON_SCHEMA.md");
    // 2020-12's vocabularies, and what drafts 4 to 2019-09 had besides.
    for keyword in "$schema $vocabulary $id $anchor $dynamicRef $dynamicAnchor $ref $defs $comment \
        prefixItems items contains additionalProperties properties patternProperties dependentSchemas \
        propertyNames if then else allOf anyOf oneOf not unevaluatedItems unevaluatedProperties type enum \
        const multipleOf maximum exclusiveMaximum minimum exclusiveMinimum maxLength minLength pattern \
        maxItems minItems uniqueItems maxContains minContains maxProperties minProperties required \
        dependentRequired title description default deprecated readOnly writeOnly examples format \
        contentEncoding contentMediaType contentSchema definitions dependencies additionalItems id \
        $recursiveRef $recursiveAnchor"
        .split_whitespace()
    {
        assert!(table.contains(&format!("`{keyword}`")), "{keyword} is missing");
    }
}

#[test]
fn test_an_escaped_spelling_of_a_name_does_not_get_round_its_schema() {
    let closed = json!({ "type": "object", "properties": { "a": { "type": "string" } },
        "additionalProperties": false });
    let string = json!({ "type": "string" });
    check(&[
        (
            json!({ "type": "object", "properties": { "a": { "type": "integer" } } }),
            &[r#"{"a":1}"#, r#"{"b":"\n\"é"}"#],
            &[r#"{"\u0061":"x"}"#, r#"{"a":1,"\u0061":2}"#],
        ),
        (
            json!({ "type": "object", "patternProperties": { "b": { "type": "integer" } } }),
            &[r#"{"xb":1}"#, r#"{"x":"y"}"#],
            &[r#"{"x\u0062":"y"}"#, r#"{"\u0061b":"y"}"#],
        ),
        (
            json!({ "anyOf": [{ "type": "null" }, { "type": "object", "required": ["a"],
                "additionalProperties": string, "properties": { "a": { "const": 1 } } }] }),
            &[r#"{"a":1,"b":"x"}"#],
            &[r#"{"a":1,"\u0061":"x"}"#],
        ),
        // Where there are no others, letters may be escaped; where no name has a schema too.
        (closed, &[r#"{"a":"\u0061"}"#], &[r#"{"\u0061":"x"}"#]),
        (
            json!({ "type": "object", "additionalProperties": string }),
            &[r#"{"\u0061":"\u0062"}"#],
            &[r#"{"\u0061":1}"#],
        ),
    ]);
}
