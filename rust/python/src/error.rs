//! The one place where the engine's errors become Python exceptions.

use ingle_engine::EngineError;
use ingle_hardening::HardeningError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// Classes of python/ingle/errors.py.
struct Classes {
    refused: Py<PyType>,
    overloaded: Py<PyType>,
    failed: Py<PyType>,
    fatal: Py<PyType>,
    model: Py<PyType>,
    hardening: Py<PyType>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

/// Looks the classes up; once, when the module is imported.
pub(crate) fn import_classes(py: Python<'_>) -> PyResult<()> {
    classes(py).map(|_| ())
}

/// The exception for an error of the engine.
pub(crate) fn to_py(py: Python<'_>, error: EngineError) -> PyErr {
    let classes = match classes(py) {
        Ok(classes) => classes,
        Err(error) => return error,
    };
    let class = |class: &Py<PyType>| class.bind(py).clone();
    match error {
        EngineError::Refused { message, param, code, status } => {
            PyErr::from_type(class(&classes.refused), (message, param, code, status))
        }
        EngineError::Overloaded { message, retry_after_s, status } => {
            let retry_after_s = f64::from(retry_after_s);
            PyErr::from_type(class(&classes.overloaded), (message, retry_after_s, status))
        }
        EngineError::Failed(message) => PyErr::from_type(class(&classes.failed), (message,)),
        EngineError::Fatal(message) => PyErr::from_type(class(&classes.fatal), (message,)),
        // Only the methods with `if_brief` in their name end so, and they give None.
        EngineError::NotBrief => PyErr::from_type(class(&classes.failed), (error.to_string(),)),
        EngineError::Model(message) => PyErr::from_type(class(&classes.model), (message,)),
    }
}

/// The exception for a lock-down that failed.
pub(crate) fn hardening_to_py(py: Python<'_>, error: &HardeningError) -> PyErr {
    match classes(py) {
        Ok(classes) => PyErr::from_type(classes.hardening.bind(py).clone(), (error.to_string(),)),
        Err(error) => error,
    }
}

fn classes(py: Python<'_>) -> PyResult<&Classes> {
    CLASSES.get_or_try_init(py, || {
        let module = py.import("ingle.errors")?;
        let class = |name: &str| -> PyResult<Py<PyType>> {
            Ok(module.getattr(name)?.cast_into::<PyType>()?.unbind())
        };
        Ok(Classes {
            refused: class("RefusedError")?,
            overloaded: class("OverloadedError")?,
            failed: class("FailedError")?,
            fatal: class("FatalError")?,
            model: class("ModelError")?,
            hardening: class("HardeningError")?,
        })
    })
}
