//! The class `ingle._core.Engine`. Any Python thread; never decides, never keeps the interpreter lock
//! while it tokenises, loads or waits.

use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ingle_engine::{ClientSocket, SleepLevel};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::error::to_py;
use crate::events;

/// A device that several models share.
#[pyclass(frozen, module = "ingle._core")]
pub(crate) struct SharedDevice {
    inner: ingle_engine::SharedDevice,
}

#[pymethods]
impl SharedDevice {
    #[new]
    #[pyo3(signature = (memory_bytes = None, patience_s = 60))]
    fn new(py: Python<'_>, memory_bytes: Option<u64>, patience_s: u32) -> PyResult<Self> {
        let inner = match memory_bytes {
            None => ingle_engine::SharedDevice::new(),
            Some(bytes) => ingle_engine::SharedDevice::with_memory(bytes, patience_s)
                .map_err(|error| to_py(py, error))?,
        };
        Ok(Self { inner })
    }
}

/// How far the weights of a model are that is being loaded.
#[pyclass(frozen, module = "ingle._core")]
pub(crate) struct LoadProgress {
    inner: Arc<ingle_engine::LoadProgress>,
}

#[pymethods]
impl LoadProgress {
    #[new]
    fn new() -> Self {
        Self { inner: Arc::default() }
    }

    fn so_far(&self) -> (u64, u64) {
        self.inner.so_far()
    }
}

/// A loaded model and its engine thread.
#[pyclass(frozen, module = "ingle._core")]
pub(crate) struct Engine {
    inner: ingle_engine::Engine,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (options, sockets = Vec::new(), device = None, progress = None))]
    fn new(
        py: Python<'_>,
        options: &[u8],
        sockets: Vec<i32>,
        device: Option<Py<SharedDevice>>,
        progress: Option<Py<LoadProgress>>,
    ) -> PyResult<Self> {
        let sockets = sockets.into_iter().map(duplicate).collect::<PyResult<Vec<_>>>()?;
        let device = device.as_ref().map(|device| &device.get().inner);
        let progress = progress.map(|progress| Arc::clone(&progress.get().inner));
        let start = || ingle_engine::Engine::start_with(options, sockets, device, progress);
        let inner = py.detach(start);
        Ok(Self { inner: inner.map_err(|error| to_py(py, error))? })
    }

    fn info<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.inner.info())
    }

    fn event_fd(&self) -> i32 {
        self.inner.event_fd().as_raw_fd()
    }

    fn submit(&self, py: Python<'_>, request: &[u8]) -> PyResult<u64> {
        py.detach(|| self.inner.submit(request)).map_err(|error| to_py(py, error))
    }

    fn submit_if_brief(&self, py: Python<'_>, request: &[u8]) -> PyResult<Option<u64>> {
        py.detach(|| self.inner.submit_if_brief(request)).map_err(|error| to_py(py, error))
    }

    fn abort(&self, key: u64) {
        self.inner.abort(key);
    }

    #[pyo3(signature = (key, fd, frames_seen = 0, head = None))]
    fn attach_socket(
        &self,
        key: u64,
        fd: i32,
        frames_seen: u64,
        head: Option<&[u8]>,
    ) -> PyResult<()> {
        let fd = duplicate(fd)?;
        let head = head.unwrap_or_default().to_vec();
        self.inner.attach_socket(key, ClientSocket { fd, frames_seen, head });
        Ok(())
    }

    fn ping(&self, key: u64) {
        self.inner.ping(key);
    }

    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for event in self.inner.drain() {
            list.append(events::event(py, event)?)?;
        }
        Ok(list)
    }

    fn tokenize(&self, py: Python<'_>, request: &[u8]) -> PyResult<Vec<u32>> {
        py.detach(|| self.inner.tokenize(request)).map_err(|error| to_py(py, error))
    }

    fn tokenize_if_brief(&self, py: Python<'_>, request: &[u8]) -> PyResult<Option<Vec<u32>>> {
        py.detach(|| self.inner.tokenize_if_brief(request)).map_err(|error| to_py(py, error))
    }

    fn detokenize(&self, py: Python<'_>, token_ids: Vec<u32>) -> PyResult<String> {
        py.detach(|| self.inner.detokenize(&token_ids)).map_err(|error| to_py(py, error))
    }

    #[pyo3(signature = (request, texts = false))]
    fn tokenize_json<'py>(
        &self,
        py: Python<'py>,
        request: &[u8],
        texts: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let body = py.detach(|| self.inner.tokenize_json(request, texts));
        Ok(PyBytes::new(py, &body.map_err(|error| to_py(py, error))?))
    }

    #[pyo3(signature = (request, texts = false))]
    fn tokenize_json_if_brief<'py>(
        &self,
        py: Python<'py>,
        request: &[u8],
        texts: bool,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let body = py.detach(|| self.inner.tokenize_json_if_brief(request, texts));
        Ok(body.map_err(|error| to_py(py, error))?.map(|body| PyBytes::new(py, &body)))
    }

    fn detokenize_json<'py>(&self, py: Python<'py>, ids: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let body = py.detach(|| self.inner.detokenize_json(ids));
        Ok(PyBytes::new(py, &body.map_err(|error| to_py(py, error))?))
    }

    fn seal_device(&self, py: Python<'_>) -> bool {
        py.detach(|| self.inner.seal_device())
    }

    fn memory_room(&self, enough: u64) -> u64 {
        self.inner.memory_room(enough)
    }

    #[pyo3(signature = (exemplars = false))]
    fn metrics<'py>(&self, py: Python<'py>, exemplars: bool) -> Bound<'py, PyBytes> {
        let text = py.detach(|| self.inner.metrics(exemplars));
        PyBytes::new(py, text.as_bytes())
    }

    fn health<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.health())
    }

    fn reset_prefix_cache(&self) {
        self.inner.reset_prefix_cache();
    }

    fn sleep(&self, py: Python<'_>, level: u8) -> PyResult<()> {
        let level = SleepLevel::ALL.get(usize::from(level)).copied();
        let level = level.ok_or_else(|| PyValueError::new_err("level: must be 0, 1 or 2"))?;
        let slept = py.detach(|| {
            self.inner.sleep(level)?;
            // The allocator keeps what the weights leave otherwise.
            ingle_hardening::give_back_memory();
            Ok(())
        });
        slept.map_err(|error| to_py(py, error))
    }

    fn wake(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.wake()).map_err(|error| to_py(py, error))
    }

    fn sleep_level(&self) -> Option<u8> {
        self.inner.sleep_level().map(|level| level as u8)
    }

    fn memory_state(&self) -> Option<(&'static str, u64, bool, Option<String>)> {
        let (word, memory) = self.inner.device_place()?.shown()?;
        Some((word, memory.bytes, memory.is_pinned, self.inner.failed_return()))
    }

    fn send_away(&self) -> bool {
        self.inner.device_place().is_some_and(ingle_engine::DevicePlace::send_away)
    }

    fn call(&self) {
        if let Some(place) = self.inner.device_place() {
            place.call();
        }
    }

    fn pin(&self, is_pinned: bool) -> Option<(u64, u64)> {
        self.inner.device_place()?.pin(is_pinned).err()
    }

    fn start_drain(&self) {
        self.inner.start_drain();
    }

    fn shutdown(&self, py: Python<'_>) {
        py.detach(|| self.inner.shutdown());
    }
}

/// Prometheus text of several models.
#[pyfunction]
#[pyo3(signature = (engines, exemplars = false))]
pub(crate) fn metrics<'py>(
    py: Python<'py>,
    engines: Vec<Py<Engine>>,
    exemplars: bool,
) -> Bound<'py, PyBytes> {
    let each: Vec<&ingle_engine::Engine> =
        engines.iter().map(|engine| &engine.get().inner).collect();
    let text = py.detach(|| ingle_engine::Engine::metrics_of(&each, exemplars));
    PyBytes::new(py, text.as_bytes())
}

/// A descriptor of our own for a socket of Python's. The caller holds the interpreter lock.
fn duplicate(fd: i32) -> PyResult<OwnedFd> {
    if fd < 0 {
        return Err(PyValueError::new_err(format!("fd: {fd} is not a file descriptor")));
    }
    // SAFETY: borrow_raw wants a descriptor that is not -1 (checked above) and stays open while
    // the borrow lives. The borrow ends with this statement, and the caller's socket object,
    // which owns the descriptor, cannot be closed meanwhile: this thread holds the interpreter
    // lock. A number that was never open makes the duplication fail with EBADF, nothing else.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?)
}
