//! CUDA graphs: recorded sequences of launches that one call replays. The capture thread records
//! and instantiates, the engine thread launches.

use std::any::Any;
use std::sync::Arc;

use crate::CudaError;
use crate::context::Context;
use crate::stream::Stream;
use crate::sys::driver::*;

/// An instantiated graph. Holds whatever its nodes use.
pub(crate) struct GraphExec {
    context: Arc<Context>,
    handle: CuGraphExec,
    num_nodes: usize,
    _keeps: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraphExec").field("num_nodes", &self.num_nodes).finish()
    }
}

// SAFETY: graph objects may move between threads, one call at a time (driver API, "Graph object thread
// safety"): the capture thread is done with it before the engine thread gets it.
unsafe impl Send for GraphExec {}
// SAFETY: `launch` is the only call on a shared reference, and only the engine thread makes it.
unsafe impl Sync for GraphExec {}

impl GraphExec {
    /// Records what `body` queues on `stream`, instantiates it and uploads it.
    ///
    /// `keeps` owns every buffer, module and handle that the recorded work uses.
    pub(crate) fn capture(
        stream: &Stream,
        keeps: Arc<dyn Any + Send + Sync>,
        body: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        let context = &stream.context;
        let api = &context.driver.api;
        // SAFETY: the stream is live and not capturing; only this thread is restricted meanwhile.
        let code = unsafe {
            api.cuStreamBeginCapture_v2(stream.handle, STREAM_CAPTURE_MODE_THREAD_LOCAL)?
        };
        context.check("cuStreamBeginCapture", code)?;
        let recorded = body();
        let mut graph = std::ptr::null_mut();
        // SAFETY: ends the capture begun above on the same thread, also after a failed body.
        let code = unsafe { api.cuStreamEndCapture(stream.handle, &raw mut graph)? };
        // The capture must end even after an error; dropping the graph frees what was captured.
        let graph = Captured { context, handle: graph };
        recorded?;
        context.check("cuStreamEndCapture", code)?;
        let (mut handle, mut num_nodes) = (std::ptr::null_mut(), 0usize);
        // SAFETY: `graph` is the captured one, alive until it is dropped below; a null node list asks
        // for the count; the executable graph does not need `graph` any more.
        let code = unsafe {
            let _ = api.cuGraphGetNodes(graph.handle, std::ptr::null_mut(), &raw mut num_nodes);
            api.cuGraphInstantiateWithFlags(&raw mut handle, graph.handle, 0)?
        };
        context.check("cuGraphInstantiate", code)?;
        drop(graph);
        let exec = Self { context: Arc::clone(context), handle, num_nodes, _keeps: keeps };
        // SAFETY: both handles are live.
        let code = unsafe { api.cuGraphUpload(exec.handle, stream.handle)? };
        context.check("cuGraphUpload", code)?;
        stream.synchronise()?;
        Ok(exec)
    }

    /// Queues one replay.
    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are live, and what the nodes use is held by `_keeps`.
        let code = unsafe { self.context.driver.api.cuGraphLaunch(self.handle, stream.handle)? };
        self.context.check("cuGraphLaunch", code)
    }

    /// Recorded nodes.
    pub(crate) fn num_nodes(&self) -> usize {
        self.num_nodes
    }
}

/// What a capture recorded, until it is instantiated or given up.
struct Captured<'a> {
    context: &'a Context,
    /// Null where the capture brought nothing.
    handle: CuGraph,
}

impl Drop for Captured<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: cuStreamEndCapture gave it to its caller, who destroys it once, here.
            let _ = unsafe { self.context.driver.api.cuGraphDestroy(self.handle) };
        }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: instantiated in `capture`, destroyed once; the driver waits for running replays.
        let _ = unsafe { self.context.driver.api.cuGraphExecDestroy(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    fn failed() -> Result<(), CudaError> {
        Err(CudaError::Unsupported("a launch that failed".to_owned()))
    }

    /// However a capture ends, its graph and the executable one are each destroyed once.
    #[test]
    fn every_graph_is_destroyed_once() {
        let context = fake::context();
        let stream = Stream::new(&context).unwrap();
        let capture = |body: fn() -> Result<(), CudaError>| {
            GraphExec::capture(&stream, Arc::new(()), body).map(|exec| exec.num_nodes())
        };
        let destroyed =
            || (fake::calls("cuGraphDestroy").len(), fake::calls("cuGraphExecDestroy").len());
        assert_eq!(capture(|| Ok(())).unwrap(), 3);
        assert_eq!(destroyed(), (1, 1));
        // The body failed, but the capture ended without an error.
        let error = capture(failed).unwrap_err().to_string();
        assert_eq!((error.as_str(), destroyed()), ("a launch that failed", (2, 1)));
        fake::fail("cuGraphInstantiate", 0, 2);
        assert!(capture(|| Ok(())).is_err());
        assert_eq!(destroyed(), (3, 1));
        fake::fail("cuGraphUpload", 0, 2);
        assert!(capture(|| Ok(())).is_err());
        assert_eq!(destroyed(), (4, 2));
        // An invalidated capture returns no graph.
        fake::fail("cuStreamEndCapture", 0, 901);
        assert!(capture(failed).is_err());
        assert_eq!(destroyed(), (4, 2));
    }
}
