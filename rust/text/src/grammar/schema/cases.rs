//! Conditions about one property of an object as a list of cases: schemas of which exactly one applies.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// A condition about one property, and what follows from it.
pub(super) struct Condition {
    pub(super) name: String,
    pub(super) about: About,
    /// What follows where it holds, rewritten.
    pub(super) then: Option<Value>,
    /// What follows where it fails, rewritten.
    pub(super) otherwise: Option<Value>,
}

/// What a condition says of its property.
pub(super) enum About {
    /// The property is there.
    Presence,
    /// It has one of these values; `all` that it can have. An object without the property meets a
    /// condition that does not need it.
    Values { chosen: Vec<Value>, all: Vec<Value>, needs_it: bool },
}

/// One schema for conditions that must all hold: what follows from each value of a property is one case, so that
/// a list of conditions about one property has as many cases as values, and not all combinations.
pub(super) fn cases_of_all(mut conditions: Vec<Condition>) -> Vec<Value> {
    let mut found = Vec::new();
    while let Some(first) = conditions.first() {
        let name = first.name.clone();
        let is_alone = matches!(first.about, About::Presence);
        let belongs = |condition: &Condition| {
            condition.name == name && matches!(condition.about, About::Values { .. })
        };
        let group: Vec<Condition> = if is_alone {
            vec![conditions.remove(0)]
        } else {
            conditions.extract_if(.., |condition| belongs(condition)).collect()
        };
        found.push(cases(&group));
    }
    found
}

/// The cases of conditions about one property.
pub(super) fn cases(group: &[Condition]) -> Value {
    let name = &group[0].name;
    let case = |schema: Value, holds: &dyn Fn(&Condition) -> bool| {
        let follows = group.iter().filter_map(|condition| {
            if holds(condition) { condition.then.clone() } else { condition.otherwise.clone() }
        });
        let all: Vec<Value> = std::iter::once(schema).chain(follows).collect();
        if all.contains(&Value::Bool(false)) { Value::Bool(false) } else { json!({ "allOf": all }) }
    };
    let About::Values { all, .. } = &group[0].about else {
        let there = case(json!({ "required": [name] }), &|_| true);
        let absent = case(json!({ "properties": { name: false } }), &|_| false);
        return json!({ "anyOf": [there, absent] });
    };
    let holds_for = |value: Option<&Value>, condition: &Condition| match (&condition.about, value) {
        (About::Values { chosen, .. }, Some(value)) => chosen.contains(value),
        (About::Values { needs_it, .. }, None) => !needs_it,
        (About::Presence, value) => value.is_some(),
    };
    let signs = |value: Option<&Value>| -> Vec<bool> {
        group.iter().map(|condition| holds_for(value, condition)).collect()
    };
    let absent = signs(None);
    let mut by_signs: BTreeMap<Vec<bool>, Vec<&Value>> = BTreeMap::new();
    by_signs.entry(absent.clone()).or_default();
    for value in all {
        by_signs.entry(signs(Some(value))).or_default().push(value);
    }
    let each = by_signs.into_iter().map(|(signs, values)| {
        let allowed = if values.is_empty() { json!(false) } else { json!({ "enum": values }) };
        let mut schema = json!({ "properties": { name: allowed } });
        if signs != absent {
            schema["required"] = json!([name]);
        }
        let holds = |condition: &Condition| {
            let place = group.iter().position(|each| std::ptr::eq(each, condition));
            place.is_some_and(|place| signs[place])
        };
        case(schema, &holds)
    });
    json!({ "anyOf": each.collect::<Vec<_>>() })
}
