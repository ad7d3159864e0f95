//! The Python module `ingle._core`: converts arguments and results, lets go of the interpreter lock
//! for anything above 20 us, turns errors into exceptions. Decides nothing.

mod engine;
mod error;
mod events;
mod hardening;

use ingle_engine::Effort;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The Rust core as Python sees it; `python/ingle/_core.pyi` documents it.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    ingle_engine::log_panics_without_text();
    error::import_classes(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("FRAME", events::FRAME)?;
    module.add("END", events::END)?;
    module.add("ERROR", events::ERROR)?;
    module.add("DELTA", events::DELTA)?;
    module.add("HEADED", events::HEADED)?;
    module.add("TIMES", events::TIMES)?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<engine::SharedDevice>()?;
    module.add_class::<engine::LoadProgress>()?;
    module.add_function(wrap_pyfunction!(engine::metrics, module)?)?;
    module.add_function(wrap_pyfunction!(check_body, module)?)?;
    module.add_function(wrap_pyfunction!(check_ids, module)?)?;
    module.add_function(wrap_pyfunction!(sampling_fields, module)?)?;
    module.add_function(wrap_pyfunction!(request_limits, module)?)?;
    module.add_function(wrap_pyfunction!(may_follow, module)?)?;
    module.add_function(wrap_pyfunction!(may_use_gpu, module)?)?;
    module.add_function(wrap_pyfunction!(render_template, module)?)?;
    module.add_function(wrap_pyfunction!(doctor, module)?)?;
    module.add_function(wrap_pyfunction!(plan, module)?)?;
    module.add_function(wrap_pyfunction!(hardening::harden_shed, module)?)?;
    module.add_function(wrap_pyfunction!(hardening::harden_confine, module)?)?;
    module.add_function(wrap_pyfunction!(hardening::harden_keeper, module)?)?;
    module.add_function(wrap_pyfunction!(hardening::harden_finish, module)?)?;
    module.add_function(wrap_pyfunction!(hardening::harden_finish_exporter, module)?)?;
    module.add_function(wrap_pyfunction!(hardening::harden_end_recording, module)?)?;
    module.add_function(wrap_pyfunction!(hardening::kept_variables, module)?)?;
    module.add_function(wrap_pyfunction!(hardening::hardening_survey, module)?)?;
    module.add_function(wrap_pyfunction!(hardening::name_thread, module)?)?;
    module.add_function(wrap_pyfunction!(hardening::give_back_memory, module)?)?;
    module.add_function(wrap_pyfunction!(hardening::security_check, module)?)
}

/// Refuses JSON that is broken, has a key twice, or holds too many values.
#[pyfunction]
fn check_body(py: Python<'_>, json: &[u8]) -> PyResult<()> {
    py.detach(|| ingle_engine::check_body(json)).map_err(|error| error::to_py(py, error))
}

/// Refuses JSON that is not a list of token ids; their number.
#[pyfunction]
fn check_ids(py: Python<'_>, field: &str, json: &[u8], most: usize) -> PyResult<usize> {
    let count = py.detach(|| ingle_engine::check_ids(field, json, most));
    count.map_err(|error| error::to_py(py, error))
}

/// JSON: the limits of other fields.
#[pyfunction]
fn request_limits(py: Python<'_>) -> Bound<'_, PyBytes> {
    PyBytes::new(py, &ingle_engine::request_limits())
}

/// JSON: the plain sampling fields of a request.
#[pyfunction]
fn sampling_fields(py: Python<'_>) -> Bound<'_, PyBytes> {
    PyBytes::new(py, &ingle_engine::sampling_fields())
}

/// Whether a path in a model's folder may be opened; a symbolic link out of it may not always.
#[pyfunction]
fn may_follow(folder: std::path::PathBuf, path: std::path::PathBuf) -> bool {
    ingle_engine::may_follow(&folder, &path)
}

/// Whether a GPU may be used: for a value of `--device`, or the name of a device that was built.
#[pyfunction]
fn may_use_gpu(device: &str) -> bool {
    ingle_engine::may_use_gpu(device)
}

/// What a chat template makes of a JSON object of variables.
#[pyfunction]
#[pyo3(signature = (source, variables, brief = false))]
fn render_template(
    py: Python<'_>,
    source: &str,
    variables: &[u8],
    brief: bool,
) -> PyResult<String> {
    let effort = if brief { Effort::Brief } else { Effort::Full };
    let text = py.detach(|| ingle_engine::render_template(source, variables, effort));
    text.map_err(|error| error::to_py(py, error))
}

/// JSON: what a simulated fleet did with a load.
#[pyfunction]
fn plan<'py>(py: Python<'py>, document: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let report = py.detach(|| ingle_engine::plan(document));
    Ok(PyBytes::new(py, &report.map_err(|error| error::to_py(py, error))?))
}

/// JSON: what this machine offers to the engine and what is missing.
#[pyfunction]
fn doctor<'py>(py: Python<'py>, places: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let report = py.detach(|| ingle_engine::doctor(places));
    Ok(PyBytes::new(py, &report.map_err(|error| error::to_py(py, error))?))
}
