//! Resolves the references of a schema and names their targets for the compiled schema. Only
//! references within the document are followed; nothing is fetched.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

use super::path::{Path, shown};

/// The document and the targets of its references.
pub(super) struct References<'a> {
    root: &'a Value,
    /// Pointers of schemas with a name of their own: `$id`, `$anchor`, `$dynamicAnchor`.
    names: BTreeMap<&'a str, Vec<String>>,
    /// Numbers of the places, by pointer.
    places: BTreeMap<String, usize>,
    /// Targets whose schemas have not been rewritten yet.
    waiting: VecDeque<(String, &'a Value, String)>,
}

impl<'a> References<'a> {
    /// Looks for names in the whole document.
    ///
    /// # Errors
    /// One line.
    pub(super) fn new(root: &'a Value) -> Result<Self, String> {
        let mut names = BTreeMap::new();
        collect(root, "", &mut names);
        Ok(Self { root, names, places: BTreeMap::new(), waiting: VecDeque::new() })
    }

    /// The next place that was referred to: its name in `$defs`, its schema, its pointer.
    pub(super) fn next(&mut self) -> Option<(String, &'a Value, String)> {
        self.waiting.pop_front()
    }

    /// What takes the place of the reference `value` of the keyword `key`: `#/$defs/N`.
    ///
    /// # Errors
    /// The path and the reference: it leads out of the document, or to nothing.
    pub(super) fn follow(
        &mut self,
        key: &str,
        value: &Value,
        path: &Path<'_>,
    ) -> Result<String, String> {
        let text = value.as_str().ok_or_else(|| path.must_be("a string", value))?;
        let pointer = self
            .pointer(key, text, &self.resource_of(&path.pointer()))
            .map_err(|what| path.refuse(format_args!("{} {what}", shown(value))))?;
        let target = self.root.pointer(&pointer).ok_or_else(|| {
            path.refuse(format_args!("{} leads to nothing in this schema", shown(value)))
        })?;
        let number = match self.places.get(&pointer) {
            Some(number) => *number,
            None => {
                let number = self.places.len();
                self.places.insert(pointer.clone(), number);
                self.waiting.push_back((number.to_string(), target, pointer));
                number
            }
        };
        Ok(format!("#/$defs/{number}"))
    }

    /// The schema that a reference leads to, if it leads to one.
    pub(super) fn target(&self, schema: &'a Value) -> Option<&'a Value> {
        let text = schema.get("$ref")?.as_str()?;
        // The schema's position is unknown here, so it is also unknown which of several resources is meant.
        let is_clear = self.resources().iter().all(String::is_empty);
        let pointer = self.pointer("$ref", text, "").ok().filter(|_| is_clear)?;
        self.root.pointer(&pointer)
    }

    /// The pointers of the resources: the document and schemas with an `$id`.
    fn resources(&self) -> &[String] {
        self.names.get("$id").map(Vec::as_slice).unwrap_or_default()
    }

    /// The innermost resource around a place.
    fn resource_of(&self, pointer: &str) -> String {
        let around = self.resources().iter().filter(|resource| {
            pointer
                .strip_prefix(resource.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        around.max_by_key(|resource| resource.len()).cloned().unwrap_or_default()
    }

    /// The JSON pointer that a reference means.
    fn pointer(&self, key: &str, text: &str, around: &str) -> Result<String, &'static str> {
        if key != "$ref" && self.resources().len() > 1 {
            return Err("cannot be followed in a schema of several resources; use $ref");
        }
        let (resource, fragment) = text.split_once('#').unwrap_or((text, ""));
        let base = if resource.is_empty() {
            around.to_owned()
        } else {
            self.named(resource).ok_or(
                "leads out of this schema; only references within it are followed, such as #/$defs/NAME",
            )?
        };
        if fragment.is_empty() {
            return Ok(base);
        }
        let fragment = decoded(fragment);
        if fragment.starts_with('/') {
            return Ok(base + &fragment);
        }
        self.named(&fragment).ok_or("names an anchor that this schema has not, or has twice")
    }

    /// The one schema of this name.
    fn named(&self, name: &str) -> Option<String> {
        match &self.names.get(name)?[..] {
            [only] => Some(only.clone()),
            _ => None,
        }
    }
}

/// Finds all names in `value`, which is at `pointer`. The depth has been bounded.
fn collect<'a>(value: &'a Value, pointer: &str, names: &mut BTreeMap<&'a str, Vec<String>>) {
    match value {
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                collect(item, &format!("{pointer}/{i}"), names);
            }
        }
        Value::Object(fields) => {
            for (key, field) in fields {
                if let (Value::String(name), true) = (field, NAMING.contains(&key.as_str())) {
                    let name = name.trim_end_matches('#').trim_start_matches('#');
                    names.entry(name).or_default().push(pointer.to_owned());
                    if key == "$id" {
                        names.entry("$id").or_default().push(pointer.to_owned());
                    }
                }
                if matches!(field, Value::Array(_) | Value::Object(_)) {
                    let step = key.replace('~', "~0").replace('/', "~1");
                    collect(field, &format!("{pointer}/{step}"), names);
                }
            }
        }
        _ => {}
    }
}

/// Percent-decodes a fragment. One that is not UTF-8 is unchanged and has no target.
fn decoded(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let [first, more @ ..] = rest {
        let escape = more.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = escape.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            _ => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| fragment.to_owned())
}

/// Keywords that give a schema a name.
const NAMING: [&str; 4] = ["$id", "id", "$anchor", "$dynamicAnchor"];
