//! The lock-down as Python drives it: JSON in, JSON out. Decides nothing.

use ingle_hardening::{HardeningError, Readiness, Report, Start};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::de::DeserializeOwned;

use crate::error;

/// First half, first step: descriptors, limits, user, privileges.
#[pyfunction]
pub(crate) fn harden_shed<'py>(py: Python<'py>, start: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let start: Start = document(py, start)?;
    reported(py, ingle_hardening::shed(&start))
}

/// First half, second step: files, capabilities, base filter.
#[pyfunction]
pub(crate) fn harden_confine<'py>(py: Python<'py>, start: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let start: Start = document(py, start)?;
    reported(py, ingle_hardening::confine(&start))
}

/// The same for the process that reads the key file: only the places given, and a filter of its own.
#[pyfunction]
pub(crate) fn harden_keeper<'py>(py: Python<'py>, start: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let start: Start = document(py, start)?;
    reported(py, ingle_hardening::confine_keeper(&start))
}

/// Second half: the tight filter on every thread, and the proof that it holds.
#[pyfunction]
pub(crate) fn harden_finish<'py>(
    py: Python<'py>,
    readiness: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let readiness: Readiness = document(py, readiness)?;
    // Other threads may wait for the interpreter; none of them needs to run for this.
    reported(py, ingle_hardening::finish(&readiness))
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

fn reported(
    py: Python<'_>,
    report: Result<Report, HardeningError>,
) -> PyResult<Bound<'_, PyBytes>> {
    let report = report.map_err(|wrong| error::hardening_to_py(py, &wrong))?;
    let json = serde_json::to_vec(&report).map_err(|wrong| {
        error::hardening_to_py(py, &HardeningError::State(format!("the report: {wrong}")))
    })?;
    Ok(PyBytes::new(py, &json))
}
