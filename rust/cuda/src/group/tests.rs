//! Groups on the scripted driver: the order of calls, and failures at every rank and call.

use super::*;
use crate::context::Context;
use crate::device_slice::{DevicePtr, DeviceSlice};
use crate::exchange::{ExchangeSizes, connect};
use crate::fake;
use crate::memory::{PinnedBuffer, copy_to_device, copy_to_host};
use crate::slots::Staging;

/// A stream and a graph on one of the scripted cards.
struct Scripted {
    context: Arc<Context>,
    stream: Stream,
    graph: GraphExec,
}

impl Member for Scripted {
    fn make_current(&self) -> Result<(), CudaError> {
        self.context.make_current()
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }
}

fn group(ranks: i32) -> Group<Scripted> {
    let contexts: Vec<Arc<Context>> = (0..ranks).map(fake::context_of).collect();
    let sizes = ExchangeSizes {
        hidden_size: 64,
        vocab_size: 256,
        samples: 4,
        vocabularies: (0..ranks as u32).map(|rank| rank * 64..rank * 64 + 64).collect(),
        grid: 8,
    };
    let places = connect(&contexts, &sizes).unwrap();
    let member = |context: Arc<Context>| {
        context.make_current().unwrap();
        let stream = Stream::new(&context).unwrap();
        let graph = GraphExec::capture(&stream, Arc::new(()), || Ok(())).unwrap();
        Scripted { context, stream, graph }
    };
    let exchange = Some(Arc::clone(&places[0].memory));
    Group { ranks: contexts.into_iter().map(member).collect(), exchange }
}

/// What a step of the executor queues.
struct Step {
    meta: PinnedBuffer,
    staging: Staging,
    out: PinnedBuffer,
}

fn words() -> DeviceSlice<u32> {
    DeviceSlice::new(DevicePtr::new(1 << 20), 64)
}

impl Step {
    fn new(group: &Group<Scripted>) -> Self {
        let buffer = || PinnedBuffer::new(&group.leader().context, 256).unwrap();
        Self { meta: buffer(), staging: Staging::new(buffer()), out: buffer() }
    }

    fn queue(&mut self, group: &Group<Scripted>) -> Result<(), CudaError> {
        let Self { meta, staging, out } = self;
        staging.reset();
        group.step(
            |rank| {
                staging.rewind();
                copy_to_device(&rank.stream, words(), meta, 64)?;
                // The second one does not fit, so that its copy may wait for the stream.
                staging.push(&rank.stream, words(), &[1; 40])?;
                staging.push(&rank.stream, words(), &[2; 40])
            },
            |_, rank| rank.graph.launch(&rank.stream),
        )?;
        copy_to_host(&group.leader().stream, out, words(), 64)
    }
}

/// Calls that may wait for a device.
const MAY_WAIT: [&str; 9] = [
    fake::PAGEABLE,
    "cuMemcpyHtoDAsync",
    "cuStreamSynchronize",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemCreate",
    "cuLibraryLoadData",
    "cuGraphInstantiate",
    "cuGraphUpload",
];

#[test]
fn ranks_are_launched_in_order_and_nothing_waits_between_them() {
    for ranks in [2, 4, 8] {
        let group = group(ranks);
        let mut step = Step::new(&group);
        let log = fake::log_of(|| step.queue(&group).unwrap());
        let is_launch = |call: &(i32, &str)| call.1 == "cuGraphLaunch";
        let launched: Vec<i32> = log.iter().filter(|call| is_launch(call)).map(|c| c.0).collect();
        assert_eq!(launched, (0..ranks).collect::<Vec<_>>());
        let first = log.iter().position(is_launch).unwrap();
        let last = log.iter().rposition(is_launch).unwrap();
        let between: Vec<_> = log[first..last].iter().filter(|c| MAY_WAIT.contains(&c.1)).collect();
        assert!(between.is_empty(), "{between:?}");
        // Each rank has its uploads, the slow ones too, before that.
        let slow = |rank| log[..first].iter().filter(|c| **c == (rank, fake::PAGEABLE)).count();
        assert!((0..ranks).all(|rank| slow(rank) == 1), "{log:?}");
        // Results come from the leader.
        assert_eq!(log.last(), Some(&(0, "cuMemcpyDtoHAsync")));
    }
}

#[test]
fn a_failure_at_any_rank_and_call_loses_the_group_and_names_the_rank() {
    const RANKS: i32 = 3;
    let group = group(RANKS);
    let mut step = Step::new(&group);
    let calls = fake::log_of(|| step.queue(&group).unwrap());
    let num_calls = |name: &str| calls.iter().filter(|call| call.1 == name).count();
    for name in ["cuCtxSetCurrent", "cuMemcpyHtoDAsync", fake::PAGEABLE, "cuGraphLaunch"] {
        assert!(num_calls(name) >= RANKS as usize, "{name}");
        for index in 0..num_calls(name) {
            let (device, _) = calls.iter().filter(|call| call.1 == name).nth(index).unwrap();
            fake::fail(name, index, 719);
            let mut failed = None;
            let log = fake::log_of(|| failed = step.queue(&group).err());
            let Some(error) = failed else { panic!("{name} {index}: no error") };
            assert!(error.is_sticky(), "{error}");
            let launches = log.iter().filter(|call| call.1 == "cuGraphLaunch").count();
            if let CudaError::Rank { name: rank, .. } = &error {
                assert_eq!(*rank, format!("rank {device} (cuda:{device})"), "{name} {index}");
            } else {
                // The leader's context, when all ranks have their work.
                assert_eq!((name, *device), ("cuCtxSetCurrent", 0), "{error}");
            }
            if name != "cuGraphLaunch" && name != "cuCtxSetCurrent" {
                assert_eq!(launches, 0, "{name} {index}");
            }
        }
    }
}

#[test]
fn an_abort_reaches_the_word_that_all_ranks_read() {
    let group = group(2);
    let exchange = group.exchange().unwrap();
    let text = CudaError::Unsupported("launch failed".to_owned());
    assert_eq!(exchange.fault.reason(&text), "launch failed");
    assert!(!exchange.fault.is_aborted());
    group.abort();
    assert!(exchange.fault.is_aborted());
    exchange.fault.name_missing(1);
    let reason = exchange.fault.reason(&text);
    assert_eq!(reason, "rank 1 (cuda:1) has sent nothing for 10 s; then launch failed");
}

#[test]
fn one_rank_makes_no_call_of_its_own() {
    let mut alone = group(2);
    alone.ranks.truncate(1);
    alone.exchange = None;
    let mut step = Step::new(&alone);
    let log = fake::log_of(|| step.queue(&alone).unwrap());
    let names: Vec<&str> = log.iter().map(|call| call.1).collect();
    let want = ["cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync", fake::PAGEABLE, "cuGraphLaunch"];
    assert_eq!(names, [&want[..], &["cuMemcpyDtoHAsync"]].concat());
}
