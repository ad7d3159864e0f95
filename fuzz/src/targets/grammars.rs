//! Schemas that become grammars, and grammars that are walked.

use std::sync::Arc;
use std::time::Duration;

use ingle_text::{
    Grammar, GrammarBudget, GrammarError, GrammarFactory, GrammarSource, GrammarSpec, GrammarState,
    Tokenizer,
};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::cost::Cost;
use crate::driver::{Outcome, Target};
use crate::rng::Rng;

/// A JSON schema: what answers under its grammar end as is JSON of the schema's type.
pub(super) struct Schema {
    factory: GrammarFactory,
    tokenizer: Arc<Tokenizer>,
}

impl Schema {
    pub(super) fn new(tokenizer: &Arc<Tokenizer>) -> Self {
        Self { factory: factory(tokenizer), tokenizer: Arc::clone(tokenizer) }
    }
}

impl Target for Schema {
    fn name(&self) -> &'static str {
        "schema"
    }

    fn is_json(&self) -> bool {
        true
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "\"type\":\"object\"",
            "\"type\":\"string\"",
            "\"type\":[\"integer\",\"null\"]",
            "\"properties\":{",
            "\"required\":[",
            "\"additionalProperties\":false",
            "\"items\":",
            "\"minItems\":",
            "\"maxLength\":",
            "\"pattern\":\"",
            "(a{1,999}){1,999}",
            "\"enum\":[",
            "\"const\":",
            "\"anyOf\":[",
            "\"allOf\":[",
            "\"oneOf\":[",
            "\"$ref\":\"#/$defs/a\"",
            "\"$defs\":{\"a\":",
            "\"minimum\":",
            "\"multipleOf\":",
            "\"format\":\"date-time\"",
            "{}",
            "\"uniqueItems\":true",
            "\"prefixItems\":[",
            "\"patternProperties\":{",
            "\"not\":{",
        ]
    }

    fn limit(&self) -> Cost {
        // The fuel of the grammar library bounds each of compilation and masks; with this crate's
        // optimisation a compilation that uses it all takes a second.
        Cost { cpu: Duration::from_secs(4), peak_bytes: 512 << 20 }
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let Ok(schema) = serde_json::from_slice::<Value>(input) else {
            return Outcome::of("not JSON");
        };
        let source = GrammarSource::JsonSchema(schema.clone());
        let grammar = match compile(&self.factory, source) {
            Ok(grammar) => grammar,
            Err(message) => return Outcome::refused(&message),
        };
        let mut rng = Rng::new(input.len() as u64);
        let mut state = grammar.start();
        let mut taken = Vec::new();
        while taken.len() < 60 {
            let allowed = match state.mask() {
                Ok(mask) => ids(&mask),
                Err(GrammarError::TooComplex(_)) => return Outcome::of("too complex"),
                Err(other) => panic!("{other:?}"),
            };
            assert!(!allowed.is_empty(), "no token is allowed after {taken:?}");
            if let Some(end) = allowed.iter().find(|id| EOS.contains(id)) {
                state.accept(*end).unwrap();
                let text = self.tokenizer.decode(&taken, false);
                serde_json::from_str::<IgnoredAny>(&text)
                    .unwrap_or_else(|error| panic!("{text:?} is not JSON: {error}"));
                // JSON's grammar has numbers that no double holds, such as 1e999.
                if let Ok(value) = serde_json::from_str::<Value>(&text) {
                    assert!(has_type(&value, &schema), "{text} is not of the type in {schema}");
                }
                return Outcome::of(("ended", text.len().checked_ilog2()));
            }
            let token = *rng.pick(&allowed);
            match state.accept(token) {
                Ok(()) => taken.push(token),
                Err(GrammarError::TooComplex(_)) => return Outcome::of("too complex"),
                Err(other) => panic!("{other:?} for a token that the mask allows"),
            }
        }
        Outcome::of("long")
    }
}

/// Bytes that choose among tokens: the mask allows exactly those that are accepted.
pub(super) struct Step {
    grammars: Vec<Arc<Grammar>>,
}

impl Step {
    pub(super) fn new(tokenizer: &Arc<Tokenizer>) -> Self {
        let factory = factory(tokenizer);
        let person = json!({"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0},
            "tags": {"type": "array", "items": {"enum": ["a", "bb", "🙂"]}, "maxItems": 3},
        }, "required": ["name"], "additionalProperties": false});
        let sources = [
            GrammarSource::JsonObject,
            GrammarSource::JsonSchema(person),
            GrammarSource::Regex("(foo|ba[rz]+)( \\p{Greek}{1,3}|[0-9]{2,5})*".to_owned()),
            GrammarSource::Choice(vec!["yes".into(), "yes, but".into(), "no\n".into()]),
            GrammarSource::Lark("start: \"(\" start \")\" | /[a-c]+/ start?\n".to_owned()),
        ];
        let grammars = sources.map(|source| compile(&factory, source).unwrap());
        Self { grammars: grammars.to_vec() }
    }
}

impl Target for Step {
    fn name(&self) -> &'static str {
        "grammar_step"
    }

    fn max_len(&self) -> usize {
        200
    }

    fn run(&mut self, input: &[u8]) -> Outcome {
        let Some((&which, choices)) = input.split_first() else { return Outcome::of("empty") };
        let number = usize::from(which) % self.grammars.len();
        let grammar = &self.grammars[number];
        let mut state = grammar.start();
        let mut taken = Vec::new();
        for &choice in choices {
            let Ok(mask) = state.mask() else { return Outcome::of("too complex") };
            let allowed = ids(&mask);
            let other = u32::from(choice) * 2 % ROWS;
            if !allowed.contains(&other) {
                let error = replayed(grammar, &taken).accept(other);
                assert_eq!(error, Err(GrammarError::Token(other)), "after {taken:?}");
            }
            let Some(&token) = allowed.get(usize::from(choice) % allowed.len().max(1)) else {
                break;
            };
            state.accept(token).unwrap_or_else(|error| panic!("{error} after {taken:?}"));
            if EOS.contains(&token) {
                break;
            }
            taken.push(token);
        }
        Outcome::of((number, taken.len().min(24), state.is_finished()))
    }
}

/// A second position that has gone the same way.
fn replayed(grammar: &Grammar, taken: &[u32]) -> GrammarState {
    let mut state = grammar.start();
    for &token in taken {
        state.accept(token).unwrap();
    }
    state.mask().unwrap();
    state
}

fn factory(tokenizer: &Arc<Tokenizer>) -> GrammarFactory {
    GrammarFactory::start(Arc::clone(tokenizer), ROWS, &EOS).unwrap()
}

fn compile(factory: &GrammarFactory, source: GrammarSource) -> Result<Arc<Grammar>, String> {
    let spec = GrammarSpec { field: "response_format", source, reasoning: None };
    let result = factory.compile(&spec, GrammarBudget::default());
    result.map_err(|error| error.to_string())
}

fn ids(mask: &[u32]) -> Vec<u32> {
    (0..ROWS).filter(|&id| mask[id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

/// Whether a value is of the schema's own `type`; other keywords are the grammar's tests' matter.
fn has_type(value: &Value, schema: &Value) -> bool {
    let is = |name: &Value| match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => true,
    };
    match schema.get("type") {
        Some(Value::Array(names)) => names.is_empty() || names.iter().any(is),
        Some(name) => is(name),
        None => true,
    }
}

/// End tokens of the golden tokenizer.
const EOS: [u32; 2] = [1, 4];
/// Rows of the model's last layer: more than the tokenizer has.
const ROWS: u32 = 512;
