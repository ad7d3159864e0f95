//! Sleep: weights and KV blocks leave the device. Waking backs the same addresses again, so graphs and kernels stay as
//! they are. The waiter thread sleeps and wakes, while no step is in flight.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ingle_core::RestSink;

use crate::CudaError;
use crate::model::Model;
use crate::stream::Stream;

/// To sleep or to wake up, and who hears of the end.
pub(crate) struct RestJob {
    pub(crate) rest: Rest,
    pub(crate) sleeper: Arc<Sleeper>,
    pub(crate) done: RestSink,
}

/// Which of the two.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rest {
    Sleep,
    Wake,
}

impl fmt::Debug for RestJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestJob").field("rest", &self.rest).finish_non_exhaustive()
    }
}

/// Puts a model to sleep and wakes it. Waiter thread, but for `is_asleep`.
#[derive(Debug)]
pub(crate) struct Sleeper {
    model: Arc<Model>,
    /// One for the pool; the others copy weights.
    pool_stream: Stream,
    copy_streams: Vec<Stream>,
    /// Bytes of the KV pool before it fell asleep; `None` while it is awake.
    kv_bytes: Mutex<Option<u64>>,
    is_asleep: AtomicBool,
}

impl Sleeper {
    /// With streams of its own, which the locked process could not create.
    pub(crate) fn new(model: &Arc<Model>) -> Result<Self, CudaError> {
        Ok(Self {
            model: Arc::clone(model),
            pool_stream: Stream::new(&model.context)?,
            copy_streams: (0..COPY_STREAMS)
                .map(|_| Stream::new(&model.context))
                .collect::<Result<_, _>>()?,
            kv_bytes: Mutex::default(),
            is_asleep: AtomicBool::new(false),
        })
    }

    /// Whether steps would touch memory that is not there. Any thread.
    pub(crate) fn is_asleep(&self) -> bool {
        self.is_asleep.load(Ordering::Acquire)
    }

    /// Blocks until it is done.
    ///
    /// # Errors
    /// What the driver says. Unless the error is sticky, the model is as it was; what is lost is the contents of KV
    /// blocks.
    pub(crate) fn run(&self, rest: Rest) -> Result<(), CudaError> {
        let (weights, kv) = (&self.model.weight_memory, &self.model.kv);
        let mut kv_bytes = self.kv_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        match (rest, *kv_bytes) {
            (Rest::Sleep, Some(_)) | (Rest::Wake, None) => Ok(()),
            (Rest::Sleep, None) => {
                let bytes = kv.mapped_bytes();
                self.is_asleep.store(true, Ordering::Release);
                let slept = kv.resize(&self.pool_stream, 0).and_then(|()| weights.give_back());
                if slept.is_err() {
                    self.take_back(bytes)?;
                    self.is_asleep.store(false, Ordering::Release);
                    return slept;
                }
                *kv_bytes = Some(bytes);
                Ok(())
            }
            (Rest::Wake, Some(bytes)) => {
                if let Err(error) = self.take_back(bytes) {
                    kv.resize(&self.pool_stream, 0)?;
                    weights.give_back()?;
                    return Err(error);
                }
                *kv_bytes = None;
                self.is_asleep.store(false, Ordering::Release);
                Ok(())
            }
        }
    }

    /// The copies of the weights run while the pool is mapped.
    fn take_back(&self, kv_bytes: u64) -> Result<(), CudaError> {
        let (weights, kv) = (&self.model.weight_memory, &self.model.kv);
        let taken = weights
            .take_back(&self.copy_streams)
            .and_then(|()| kv.resize(&self.pool_stream, kv_bytes));
        // All of them, also behind an error: nothing is unmapped while a copy runs.
        let streams = self.copy_streams.iter().chain([&self.pool_stream]);
        streams.map(Stream::synchronise).fold(taken, Result::and)
    }
}

/// One stream copies 32 GB/s on an H200, less than the bus carries.
const COPY_STREAMS: usize = 4;
