//! Events of the engine as Python tuples (key, kind, payload).

use ingle_engine::{Delta, Event, LogEntry, Payload, StopCause, Times};
use pyo3::IntoPyObjectExt as _;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

pub(crate) const FRAME: u8 = 0;
pub(crate) const END: u8 = 1;
pub(crate) const ERROR: u8 = 2;
pub(crate) const DELTA: u8 = 3;
pub(crate) const HEADED: u8 = 4;
pub(crate) const TIMES: u8 = 5;

/// One event.
pub(crate) fn event<'py>(py: Python<'py>, event: Event) -> PyResult<Bound<'py, PyTuple>> {
    let (kind, payload) = match event.payload {
        Payload::Frame(bytes) => (FRAME, PyBytes::new(py, &bytes).into_any()),
        Payload::Headed(bytes) => (HEADED, PyBytes::new(py, &bytes).into_any()),
        Payload::StreamEnd => (END, py.None().into_bound(py)),
        Payload::Body(bytes) => (END, PyBytes::new(py, &bytes).into_any()),
        Payload::UsageEnd(usage) => {
            let counts = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens);
            (END, counts.into_bound_py_any(py)?)
        }
        Payload::Times(times) => (TIMES, self::times(py, *times)?.into_any()),
        Payload::Error(bytes) => (ERROR, PyBytes::new(py, &bytes).into_any()),
        Payload::Delta(delta) => (DELTA, self::delta(py, *delta)?.into_any()),
    };
    (event.key, kind, payload).into_pyobject(py)
}

/// (scheduled_us, first_token_us, end_us, prompt_tokens, cached_tokens, completion_tokens, finish_reasons)
fn times(py: Python<'_>, times: Times) -> PyResult<Bound<'_, PyTuple>> {
    (
        times.scheduled_us,
        times.first_token_us,
        times.end_us,
        times.prompt_tokens,
        times.cached_tokens,
        times.completion_tokens,
        times.finish_reasons,
    )
        .into_pyobject(py)
}

/// (choice_index, text, token_ids, log_probs, finish_reason, stop_reason)
fn delta<'py>(py: Python<'py>, delta: Delta) -> PyResult<Bound<'py, PyTuple>> {
    let log_probs = match &delta.log_probs {
        None => py.None().into_bound(py),
        Some(entries) => {
            let entries: Vec<_> = entries.iter().map(log_entry).collect();
            PyList::new(py, entries)?.into_any()
        }
    };
    let (finish, stop) = match delta.finish {
        None => (None, py.None().into_bound(py)),
        Some(finish) => {
            let stop = match finish.stop {
                StopCause::None => py.None().into_bound(py),
                StopCause::Text(text) => text.into_bound_py_any(py)?,
                StopCause::Token(id) => id.into_bound_py_any(py)?,
            };
            (Some(finish.reason), stop)
        }
    };
    (delta.index, delta.text, delta.token_ids, log_probs, finish, stop).into_pyobject(py)
}

/// A token, its log-prob, its rank, and (token, log-prob) of the most likely ones.
type LogTuple = (u32, Option<f32>, u32, Vec<(u32, f32)>);

fn log_entry(entry: &LogEntry) -> LogTuple {
    (entry.token, entry.log_prob, entry.rank, entry.top.clone())
}
