//! [7] Writes the arguments of one call as an object of JSON while their values arrive.

use serde_json::Value;

use super::json_text::{escaped, quoted};
use super::values::Types;
use crate::answer_piece::Pieces;

/// What has been written of one call's arguments.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArgumentWriter {
    num_arguments: usize,
    key: String,
    /// Of the value that is read; `None` before the first one.
    types: Option<Types>,
}

impl ArgumentWriter {
    /// An argument of a function with these parameters begins.
    pub(crate) fn begin(&mut self, key: String, parameters: Option<&Value>) {
        self.types = Some(Types::of_argument(parameters, &key));
        self.key = key;
    }

    /// Whether the value is a string whatever it looks like, so that it is written as it arrives.
    pub(crate) fn is_text(&self) -> bool {
        self.types == Some(Types::STRING)
    }

    /// The value begins. `index` is the call's, as below.
    pub(crate) fn open(&mut self, index: u32, out: &mut Pieces) {
        if self.is_text() {
            self.write_key(index, out);
            out.arguments(index, "\"");
        }
    }

    /// More of a string.
    pub(crate) fn text(&self, more: &str, index: u32, out: &mut Pieces) {
        out.arguments(index, &escaped(more));
    }

    /// The value ends: all of it, or the rest of a string.
    pub(crate) fn close(&mut self, value: &str, index: u32, out: &mut Pieces) {
        if self.is_text() {
            self.text(value, index, out);
            out.arguments(index, "\"");
        } else {
            let json = self.types.unwrap_or(Types::ANY).json_of(value);
            self.json(&json, index, out);
        }
    }

    /// The whole value, as JSON.
    pub(crate) fn json(&mut self, json: &str, index: u32, out: &mut Pieces) {
        self.write_key(index, out);
        out.arguments(index, json);
    }

    /// There are no more arguments.
    pub(crate) fn end(&self, index: u32, out: &mut Pieces) {
        out.arguments(index, if self.num_arguments == 0 { "{}" } else { "}" });
    }

    /// Arguments so far.
    pub(crate) fn count(&self) -> usize {
        self.num_arguments
    }

    fn write_key(&mut self, index: u32, out: &mut Pieces) {
        let before = if self.num_arguments == 0 { "{" } else { ", " };
        out.arguments(index, &format!("{before}{}: ", quoted(&self.key)));
        self.num_arguments += 1;
    }
}
