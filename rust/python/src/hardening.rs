//! The lock-down as Python drives it: JSON in, JSON out. Decides nothing.

use ingle_hardening::{HardeningError, Readiness, Start};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error;

/// First half, first step: descriptors, limits, user, privileges.
#[pyfunction]
pub(crate) fn harden_shed<'py>(py: Python<'py>, start: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let start: Start = document(py, start)?;
    as_json(py, ingle_hardening::shed(&start))
}

/// First half, second step: files, capabilities, base filter.
#[pyfunction]
pub(crate) fn harden_confine<'py>(py: Python<'py>, start: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let start: Start = document(py, start)?;
    as_json(py, ingle_hardening::confine(&start))
}

/// The same for the process that reads the key file: only the places given, and a filter of its own.
#[pyfunction]
pub(crate) fn harden_keeper<'py>(py: Python<'py>, start: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let start: Start = document(py, start)?;
    as_json(py, ingle_hardening::confine_keeper(&start))
}

/// Second half: the tight filter on every thread, and the proof that it holds.
#[pyfunction]
pub(crate) fn harden_finish<'py>(
    py: Python<'py>,
    readiness: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let readiness: Readiness = document(py, readiness)?;
    // Other threads may wait for the interpreter; none of them needs to run for this.
    as_json(py, ingle_hardening::finish(&readiness))
}

/// The same for the process that sends spans: its own filter on every thread.
#[pyfunction]
pub(crate) fn harden_finish_exporter(py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
    as_json(py, ingle_hardening::finish_exporter())
}

/// The end of what only the late work of a device needed. Any thread.
#[pyfunction]
pub(crate) fn harden_end_recording<'py>(
    py: Python<'py>,
    readiness: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let readiness: Readiness = document(py, readiness)?;
    as_json(py, ingle_hardening::end_recording(&readiness))
}

/// JSON: what every probe of the lock-down found. `scratch` is an empty folder.
#[pyfunction]
pub(crate) fn security_check<'py>(py: Python<'py>, scratch: &str) -> PyResult<Bound<'py, PyBytes>> {
    let checked = ingle_hardening::security_check(std::path::Path::new(scratch));
    as_json(py, checked)
}

/// JSON: what this machine offers to the lock-down, and what is missing.
#[pyfunction]
pub(crate) fn hardening_survey(py: Python<'_>) -> Bound<'_, PyBytes> {
    PyBytes::new(py, ingle_hardening::survey().to_string().as_bytes())
}

/// Gives memory that nothing uses back to the system.
#[pyfunction]
pub(crate) fn give_back_memory(py: Python<'_>) {
    py.detach(ingle_hardening::give_back_memory);
}

/// Names the calling thread for the system.
#[pyfunction]
pub(crate) fn name_thread(name: &str) {
    ingle_hardening::name_thread(name);
}

/// Patterns of the environment variables that stay; `*` ends a prefix.
#[pyfunction]
pub(crate) fn kept_variables(py: Python<'_>) -> PyResult<Vec<String>> {
    ingle_hardening::kept_variables().map_err(|wrong| error::hardening_to_py(py, &wrong))
}

fn document<T: DeserializeOwned>(py: Python<'_>, json: &[u8]) -> PyResult<T> {
    serde_json::from_slice(json).map_err(|wrong| {
        error::hardening_to_py(py, &HardeningError::State(format!("the settings: {wrong}")))
    })
}

fn as_json<T: Serialize>(
    py: Python<'_>,
    report: Result<T, HardeningError>,
) -> PyResult<Bound<'_, PyBytes>> {
    let report = report.map_err(|wrong| error::hardening_to_py(py, &wrong))?;
    let json = serde_json::to_vec(&report).map_err(|wrong| {
        error::hardening_to_py(py, &HardeningError::State(format!("the report: {wrong}")))
    })?;
    Ok(PyBytes::new(py, &json))
}
