//! Whole-step graphs by padded size. A thread of their own records them; the engine thread replays what
//! is ready and launches plainly what is not.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::CudaError;
use crate::graph::GraphExec;
use crate::model::{Model, StepShape};
use crate::stream::Stream;

/// Graphs of one model and the thread that records them.
#[derive(Debug)]
pub(crate) struct Graphs {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// How far recording is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphStats {
    /// Recorded.
    pub ready: usize,
    /// Asked for and not yet recorded.
    pub waiting: usize,
    /// Nodes of the largest one.
    pub nodes_max: usize,
    /// Why the last failed one failed; such steps stay plain launches.
    pub last_error: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    graphs: HashMap<StepShape, Entry>,
    wanted: VecDeque<StepShape>,
    busy: bool,
    stop: bool,
    last_error: Option<String>,
}

#[derive(Debug)]
enum Entry {
    Requested,
    Ready(Arc<GraphExec>),
    Failed,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Graphs {
    /// Starts the thread and asks for `first`, in that order.
    pub(crate) fn start(model: &Arc<Model>, first: &[StepShape]) -> Result<Self, CudaError> {
        let shared = Arc::new(Shared::default());
        {
            let mut state = shared.lock();
            for shape in first {
                if state.graphs.insert(*shape, Entry::Requested).is_none() {
                    state.wanted.push_back(*shape);
                }
            }
        }
        let (model, for_thread) = (Arc::clone(model), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("ingle-capture".to_owned())
            .spawn(move || record_wanted(&model, &for_thread))
            .map_err(|source| CudaError::Io { what: "capture thread".to_owned(), source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The graph of a shape, or `None` until it is recorded; asks for it before those that wait.
    pub(crate) fn ready(&self, shape: StepShape) -> Option<Arc<GraphExec>> {
        let mut state = self.shared.lock();
        match state.graphs.get(&shape) {
            Some(Entry::Ready(graph)) => Some(Arc::clone(graph)),
            Some(_) => None,
            None => {
                state.graphs.insert(shape, Entry::Requested);
                state.wanted.push_front(shape);
                drop(state);
                self.shared.changed.notify_all();
                None
            }
        }
    }

    /// Blocks until nothing waits to be recorded. For benchmarks and tests.
    pub(crate) fn wait_until_idle(&self) {
        let mut state = self.shared.lock();
        while (state.busy || !state.wanted.is_empty()) && !state.stop {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How far recording is.
    pub(crate) fn stats(&self) -> GraphStats {
        let state = self.shared.lock();
        let ready = state.graphs.values().filter_map(|entry| match entry {
            Entry::Ready(graph) => Some(graph.num_nodes()),
            _ => None,
        });
        GraphStats {
            ready: ready.clone().count(),
            waiting: state.wanted.len() + usize::from(state.busy),
            nodes_max: ready.max().unwrap_or(0),
            last_error: state.last_error.clone(),
        }
    }
}

impl Drop for Graphs {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened; Drop must not add one.
            let _ = thread.join();
        }
    }
}

fn record_wanted(model: &Arc<Model>, shared: &Shared) {
    let stream = model.context.make_current().and_then(|()| Stream::new(&model.context));
    let stream = match stream {
        Ok(stream) => stream,
        Err(error) => {
            let mut state = shared.lock();
            state.last_error = Some(error.to_string());
            state.stop = true;
            drop(state);
            shared.changed.notify_all();
            return;
        }
    };
    while let Some(shape) = next_wanted(shared) {
        let keeps: Arc<Model> = Arc::clone(model);
        let graph = GraphExec::capture(&stream, keeps, || {
            // SAFETY: the stream is being captured; replays run on the one stream of all steps, each
            // behind a step whose padded sizes are `shape`.
            unsafe { model.step(&stream, shape) }
        });
        let mut state = shared.lock();
        state.busy = false;
        let entry = match graph {
            Ok(graph) => Entry::Ready(Arc::new(graph)),
            Err(error) => {
                state.last_error = Some(format!("{shape:?}: {error}"));
                Entry::Failed
            }
        };
        state.graphs.insert(shape, entry);
        drop(state);
        shared.changed.notify_all();
    }
}

/// Sleeps until a shape is wanted; `None` when the executor goes away.
fn next_wanted(shared: &Shared) -> Option<StepShape> {
    let mut state = shared.lock();
    loop {
        if state.stop {
            return None;
        }
        if let Some(shape) = state.wanted.pop_front() {
            state.busy = true;
            return Some(shape);
        }
        state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}
