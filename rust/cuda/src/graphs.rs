//! Whole-step graphs by padded size. A dedicated thread records them. The engine thread replays
//! those that are ready and launches the others kernel by kernel.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::CudaError;
use crate::graph::GraphExec;
use crate::launches::{LaunchCounters, LaunchStats};
use crate::model::{Model, StepShape};
use crate::stream::Stream;

/// Takes one line for the operator, after the start; may block, and is not called by the engine thread.
pub type WarningSink = Arc<dyn Fn(&str) + Send + Sync>;

/// Graphs of one model and the thread that records them.
#[derive(Debug)]
pub(crate) struct Graphs {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// How far recording is, and how steps were launched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphStats {
    /// As /metrics has them.
    pub launches: LaunchStats,
    /// Nodes of the largest graph.
    pub nodes_max: usize,
    /// Why the last failed graph failed; such steps stay plain launches.
    pub last_error: Option<String>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    counters: Arc<LaunchCounters>,
    warn: WarningSink,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("counters", &self.counters).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    graphs: HashMap<StepShape, Entry>,
    wanted: VecDeque<StepShape>,
    /// Nothing more is recorded.
    stop: bool,
    /// Nothing but what was asked for before.
    sealed: bool,
    last_error: Option<String>,
}

#[derive(Debug)]
enum Entry {
    Requested,
    Ready(Arc<GraphExec>),
    Failed,
}

impl Graphs {
    /// Starts the thread and asks for `first`, in that order. The first failure goes to `warn`.
    pub(crate) fn start(
        model: &Arc<Model>,
        first: &[StepShape],
        counters: &Arc<LaunchCounters>,
        warn: &WarningSink,
    ) -> Result<Self, CudaError> {
        let shared = Arc::new(Shared::new(first, counters, warn));
        let (model, for_thread) = (Arc::clone(model), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("ingle-capture".to_owned())
            .spawn(move || record_steps(&model, &for_thread))
            .map_err(|source| CudaError::Io { what: "capture thread".to_owned(), source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The graph of a shape, or `None` until it is recorded; asks for it before those that wait.
    pub(crate) fn ready(&self, shape: StepShape) -> Option<Arc<GraphExec>> {
        self.shared.ready(shape)
    }

    /// Blocks until nothing waits to be recorded. For benchmarks and tests.
    pub(crate) fn wait_until_idle(&self) {
        drop(self.shared.wait_until_idle());
    }

    /// Ends recording, from any thread.
    pub(crate) fn seal(&self) -> GraphSeal {
        GraphSeal(Arc::clone(&self.shared))
    }

    /// Nodes of the largest graph, and why the last failed one failed.
    pub(crate) fn nodes_and_error(&self) -> (usize, Option<String>) {
        let state = self.shared.lock();
        let nodes = state.graphs.values().map(|entry| match entry {
            Entry::Ready(graph) => graph.num_nodes(),
            Entry::Requested | Entry::Failed => 0,
        });
        (nodes.max().unwrap_or(0), state.last_error.clone())
    }
}

/// Ends the recording of graphs, for a process that keeps no system call for it.
#[derive(Debug)]
pub struct GraphSeal(Arc<Shared>);

impl GraphSeal {
    /// Blocks until the graphs asked for until now are recorded. Steps of other shapes are launched kernel by kernel
    /// from then on. Returns whether all could be: otherwise there may be products whose code the library has yet to
    /// load, for which the process must go on being able to.
    pub fn close(&self) -> bool {
        self.0.wait_until_idle().sealed = true;
        self.0.counters.read().graphs_failed == 0
    }
}

impl Drop for Graphs {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread's panic has been reported; Drop must not panic again.
            let _ = thread.join();
        }
    }
}

fn record_steps(model: &Arc<Model>, shared: &Shared) {
    let _closing = Closing(shared);
    let stream = model.context.make_current().and_then(|()| Stream::new(&model.context));
    let stream = match stream {
        Ok(stream) => stream,
        Err(error) => return shared.give_up(&error),
    };
    shared.record_wanted(|shape| {
        let keeps: Arc<Model> = Arc::clone(model);
        GraphExec::capture(&stream, keeps, || {
            // Replays run on the stream of all steps, each after the metadata of a step of this shape.
            model.step(&stream, shape)
        })
    });
}

/// Ends recording however its thread ends, so that nothing waits for graphs that will not come.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Shared {
    fn new(first: &[StepShape], counters: &Arc<LaunchCounters>, warn: &WarningSink) -> Self {
        let mut state = State::default();
        for shape in first {
            if state.graphs.insert(*shape, Entry::Requested).is_none() {
                state.wanted.push_back(*shape);
                counters.ask();
            }
        }
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            counters: Arc::clone(counters),
            warn: Arc::clone(warn),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until_idle(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while self.counters.read().graphs_waiting > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    fn ready(&self, shape: StepShape) -> Option<Arc<GraphExec>> {
        let mut state = self.lock();
        match state.graphs.get(&shape) {
            Some(Entry::Ready(graph)) => return Some(Arc::clone(graph)),
            Some(Entry::Requested | Entry::Failed) => return None,
            None if state.sealed => return None,
            None => self.counters.ask(),
        }
        if state.stop {
            state.graphs.insert(shape, Entry::Failed);
            self.counters.settle(false);
        } else {
            state.graphs.insert(shape, Entry::Requested);
            state.wanted.push_front(shape);
        }
        drop(state);
        self.changed.notify_all();
        None
    }

    /// Records what is wanted, one after the other, until the executor goes away.
    fn record_wanted(&self, mut capture: impl FnMut(StepShape) -> Result<GraphExec, CudaError>) {
        while let Some(shape) = self.next_wanted() {
            // The library may load the code of a product while it is recorded; a driver that refuses that in a recording has
            // it for the second try.
            let captured = capture(shape).or_else(|_| capture(shape));
            let mut state = self.lock();
            let (entry, failure) = match captured {
                Ok(graph) => (Entry::Ready(Arc::new(graph)), None),
                Err(error) => {
                    let StepShape { tokens, samples, .. } = shape;
                    let text = format!("{tokens} token rows and {samples} samples: {error}");
                    (Entry::Failed, Some(text))
                }
            };
            self.counters.settle(failure.is_none());
            state.graphs.insert(shape, entry);
            let is_first = failure.is_some() && state.last_error.is_none();
            state.last_error = failure.clone().or(state.last_error.take());
            drop(state);
            self.changed.notify_all();
            if let Some(failure) = failure.filter(|_| is_first) {
                (self.warn)(&format!(
                    "no CUDA graph for steps of {failure}; such steps are launched kernel by kernel, \
                     which is slower, and further failures are only counted (ingle:device_graphs)"
                ));
            }
        }
    }

    /// Sleeps until a shape is wanted; `None` when the executor goes away.
    fn next_wanted(&self) -> Option<StepShape> {
        let mut state = self.lock();
        loop {
            if state.stop {
                return None;
            }
            if let Some(shape) = state.wanted.pop_front() {
                return Some(shape);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nothing can be recorded at all.
    fn give_up(&self, error: &CudaError) {
        self.lock().last_error = Some(error.to_string());
        (self.warn)(&format!(
            "no CUDA graphs: {error}; all steps are launched kernel by kernel, which is slower"
        ));
    }

    /// What still waits, and whatever is asked for from now on, has failed.
    fn close(&self) {
        let mut state = self.lock();
        state.stop = true;
        state.wanted.clear();
        for entry in state.graphs.values_mut() {
            if matches!(entry, Entry::Requested) {
                *entry = Entry::Failed;
                self.counters.settle(false);
            }
        }
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    const SHAPES: [StepShape; 3] = [
        StepShape { tokens: 1, samples: 1, has_prompts: false },
        StepShape { tokens: 2, samples: 2, has_prompts: false },
        StepShape { tokens: 4, samples: 4, has_prompts: false },
    ];

    /// Shapes that wait, and where the warnings go.
    fn waiting() -> (Shared, Arc<Mutex<Vec<String>>>) {
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&warnings);
        let warn: WarningSink =
            Arc::new(move |text: &str| written.lock().unwrap().push(text.to_owned()));
        (Shared::new(&SHAPES, &Arc::default(), &warn), warnings)
    }

    fn numbers(shared: &Shared) -> [u64; 3] {
        let stats = shared.counters.read();
        [stats.graphs_ready, stats.graphs_waiting, stats.graphs_failed]
    }

    /// A graph that cannot be captured is counted, and the first one is reported with its reason.
    #[test]
    fn failures_are_counted_and_the_first_is_kept() {
        let context = fake::context();
        let stream = Stream::new(&context).unwrap();
        let (shared, warnings) = waiting();
        assert_eq!(numbers(&shared), [0, 3, 0]);
        let mut order = Vec::new();
        shared.record_wanted(|shape| {
            order.push(shape.tokens);
            // The next two are captured twice each and end in an error.
            if order.len() == 1 {
                for nth in 1..=4 {
                    fake::fail("cuStreamEndCapture", nth, 901);
                }
            }
            shared.lock().stop = order.len() == 5;
            GraphExec::capture(&stream, Arc::new(()), || Ok(()))
        });
        assert_eq!(order, [1, 2, 2, 4, 4]);
        assert_eq!(numbers(&shared), [1, 0, 2]);
        assert!(shared.ready(SHAPES[0]).is_some());
        assert!(shared.ready(SHAPES[1]).is_none() && shared.ready(SHAPES[2]).is_none());
        assert_eq!(numbers(&shared), [1, 0, 2]);
        let warnings = warnings.lock().unwrap();
        let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(
            warning.starts_with(
                "no CUDA graph for steps of 2 token rows and 2 samples: cuStreamEndCapture"
            ),
            "{warning}"
        );
        assert!(shared.lock().last_error.as_ref().unwrap().starts_with("4 token rows"));
    }

    /// A driver may refuse a first recording that loads code.
    #[test]
    fn a_second_try_may_succeed_and_the_seal_says_what_failed() {
        let context = fake::context();
        let stream = Stream::new(&context).unwrap();
        let (shared, warnings) = waiting();
        let shared = Arc::new(shared);
        fake::fail("cuStreamEndCapture", 1, 901);
        let mut left = SHAPES.len();
        shared.record_wanted(|shape| {
            if shape == SHAPES[2] {
                shared.lock().stop = true;
                return Err(CudaError::Unsupported("never".to_owned()));
            }
            left -= 1;
            GraphExec::capture(&stream, Arc::new(()), || Ok(()))
        });
        assert_eq!((left, numbers(&shared)), (0, [2, 0, 1]));
        assert_eq!(warnings.lock().unwrap().len(), 1);
        assert!(!GraphSeal(shared).close());
    }

    /// When the thread ends, also by a panic, nothing stays waiting.
    #[test]
    fn nothing_waits_for_a_thread_that_has_ended() {
        let (shared, warnings) = waiting();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _closing = Closing(&shared);
            shared.give_up(&CudaError::Unsupported("no stream".to_owned()));
            std::panic::resume_unwind(Box::new("the thread's own mistake"));
        }));
        assert!(ended.is_err());
        assert_eq!(numbers(&shared), [0, 0, 3]);
        assert!(shared.ready(StepShape { tokens: 8, samples: 8, has_prompts: false }).is_none());
        assert_eq!(numbers(&shared), [0, 0, 4]);
        assert!(shared.next_wanted().is_none());
        let warnings = warnings.lock().unwrap();
        assert_eq!(
            *warnings,
            ["no CUDA graphs: no stream; all steps are launched kernel by kernel, which is slower"]
        );
    }

    /// What is asked for after the seal is launched kernel by kernel, without a word and without a failure.
    #[test]
    fn nothing_is_recorded_after_the_seal() {
        let context = fake::context();
        let stream = Stream::new(&context).unwrap();
        let (shared, warnings) = waiting();
        let shared = Arc::new(shared);
        let mut left = SHAPES.len();
        shared.record_wanted(|_| {
            left -= 1;
            shared.lock().stop = left == 0;
            GraphExec::capture(&stream, Arc::new(()), || Ok(()))
        });
        shared.lock().stop = false;
        assert!(GraphSeal(Arc::clone(&shared)).close());
        assert!(shared.ready(SHAPES[2]).is_some());
        assert!(shared.ready(StepShape { tokens: 8, samples: 8, has_prompts: false }).is_none());
        assert_eq!(numbers(&shared), [3, 0, 0]);
        assert!(warnings.lock().unwrap().is_empty());
    }

    /// What a step needs now is recorded before what was asked for in advance.
    #[test]
    fn a_step_s_own_shape_goes_first() {
        let (shared, _) = waiting();
        let own = StepShape { tokens: 64, samples: 0, has_prompts: false };
        assert!(shared.ready(own).is_none() && shared.ready(own).is_none());
        assert_eq!(numbers(&shared), [0, 4, 0]);
        assert_eq!(shared.next_wanted(), Some(own));
        assert_eq!(shared.next_wanted(), Some(SHAPES[0]));
    }
}
