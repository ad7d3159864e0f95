//! Memory through which the ranks of a group exchange partial sums and logits (kernels/ranks.cu): a region of each
//! rank that all of them can write, and a word of the host that ends all waits. At load.

use std::ops::Range;
use std::sync::Arc;

use ingle_model::ModelSpec;

use crate::CudaError;
use crate::arena::{LayoutBuilder, Region};
use crate::context::Context;
use crate::contract::{
    CONTROL_ALONE, EXCHANGE_FLAGS, EXCHANGE_GRID, EXCHANGE_ROWS, EXCHANGE_SECONDS, FAULT_ABORT,
    FAULT_RANK,
};
use crate::device_slice::DeviceSlice;
use crate::launch::{Exchange, RanksGather};
use crate::memory::{PinnedBuffer, fill, upload, upload_starts};
use crate::stream::Stream;

/// The regions and the fault block, kept as long as a rank uses them.
#[derive(Debug)]
pub(crate) struct ExchangeMemory {
    pub(crate) fault: Fault,
    _regions: Vec<Region>,
}

/// Words of the host that every rank reads while it waits, and the names of the ranks' devices.
#[derive(Debug)]
pub(crate) struct Fault {
    words: PinnedBuffer,
    devices: Vec<String>,
}

impl Fault {
    /// Ends the waits of all ranks; nothing runs on their devices after that.
    pub(crate) fn abort(&self) {
        self.words.write_shared(FAULT_ABORT as usize, 1);
    }

    /// Why the group is lost: a rank that others have waited for in vain is named.
    pub(crate) fn reason(&self, error: &CudaError) -> String {
        let missing = self.words.read_shared(FAULT_RANK as usize) as usize;
        match missing.checked_sub(1).and_then(|rank| Some((rank, self.devices.get(rank)?))) {
            Some((rank, device)) => format!(
                "rank {rank} ({device}) has sent nothing for {EXCHANGE_SECONDS} s; then {error}"
            ),
            None => error.to_string(),
        }
    }

    /// Whether waits are to end.
    #[cfg(test)]
    pub(crate) fn is_aborted(&self) -> bool {
        self.words.read_shared(FAULT_ABORT as usize) == 1
    }

    /// As a kernel does that has waited for a rank in vain.
    #[cfg(test)]
    pub(crate) fn name_missing(&self, rank: u32) {
        self.words.write_shared(FAULT_RANK as usize, rank + 1);
    }

    /// `rank 1 (cuda:1)`
    pub(crate) fn name(&self, rank: usize) -> String {
        format!("rank {rank} ({})", self.devices.get(rank).map_or("", String::as_str))
    }
}

/// What a rank knows of its group: its end of the exchange and its part of the head.
#[derive(Clone, Debug)]
pub(crate) struct RankPlace {
    pub(crate) exchange: Exchange,
    /// The rank's rows of the head, columns of the logits.
    pub(crate) vocabulary: Range<u32>,
    /// The most that a rank has.
    pub(crate) most_columns: u32,
    /// `[S, vocab_size]`, where all ranks write.
    pub(crate) logits: DeviceSlice<f32>,
    /// Bytes from the start of the region to them.
    pub(crate) logits_at: u64,
    /// Keeps the addresses mapped.
    pub(crate) memory: Arc<ExchangeMemory>,
}

impl RankPlace {
    pub(crate) fn head_rows(&self) -> u32 {
        self.vocabulary.len() as u32
    }

    /// The gathering of the rank's columns in `local` with those of the others.
    pub(crate) fn gather(&self, local: DeviceSlice<f32>) -> RanksGather {
        RanksGather {
            local,
            logits_at: self.logits_at,
            first: self.vocabulary.start,
            columns: self.head_rows(),
            most_columns: self.most_columns,
        }
    }
}

/// Sizes of a group's exchange.
#[derive(Clone, Debug)]
pub(crate) struct ExchangeSizes {
    pub(crate) hidden_size: u32,
    pub(crate) vocab_size: u32,
    /// Most rows of logits.
    pub(crate) samples: u64,
    /// Rows of the head of each rank.
    pub(crate) vocabularies: Vec<Range<u32>>,
    /// Most blocks of a launch.
    pub(crate) grid: u32,
}

impl ExchangeSizes {
    /// For ranks on these devices. Where several share one, a launch takes at most a part of its multiprocessors, so that
    /// the blocks of all ranks are resident at once and other kernels find room beside them.
    pub(crate) fn new(
        spec: &ModelSpec,
        samples: u64,
        vocabularies: Vec<Range<u32>>,
        contexts: &[Arc<Context>],
    ) -> Self {
        let of_device = |context: &Arc<Context>| {
            let sharing = contexts.iter().filter(|c| c.info.device == context.info.device).count();
            let parts = if sharing == 1 { 1 } else { 2 * sharing as u32 };
            (context.info.limits.num_sms / parts).max(1)
        };
        let grid = contexts.iter().map(of_device).min().unwrap_or(1).min(EXCHANGE_GRID);
        let (hidden_size, vocab_size) = (spec.hidden_size, spec.vocab_size);
        Self { hidden_size, vocab_size, samples, vocabularies, grid }
    }

    fn ranks(&self) -> u64 {
        self.vocabularies.len() as u64
    }
}

/// The parts of a region, in the order in which ranks.cu expects them.
struct Parts {
    logits: DeviceSlice<f32>,
    logits_at: u64,
    table: DeviceSlice<u64>,
    control: DeviceSlice<u32>,
    bytes: u64,
}

impl Parts {
    fn over(start: DeviceSlice<u8>, sizes: &ExchangeSizes) -> Self {
        let ranks = sizes.ranks();
        let flags = u64::from(EXCHANGE_FLAGS) * ranks * u64::from(EXCHANGE_GRID) * 8;
        let inbox = 2 * ranks * u64::from(EXCHANGE_ROWS) * u64::from(sizes.hidden_size) * 4;
        let logits_at = flags + inbox;
        let logits_len = sizes.samples * u64::from(sizes.vocab_size);
        let table_at = (logits_at + logits_len * 4).next_multiple_of(256);
        let control_at = table_at + (ranks * 8).next_multiple_of(256);
        let bytes = control_at + 256;
        let at = |offset: u64, bytes: u64| start.slice(offset, bytes);
        Self {
            logits: at(logits_at, logits_len * 4).of(),
            logits_at,
            table: at(table_at, ranks * 8).of(),
            control: at(control_at, 16).of(),
            bytes,
        }
    }
}

/// Makes the regions, opens each to all ranks, and tells each rank where they are. All ranks are alone until
/// `set_alone`.
///
/// # Errors
/// Devices that cannot write each other's memory, by name.
pub(crate) fn connect(
    contexts: &[Arc<Context>],
    sizes: &ExchangeSizes,
) -> Result<Vec<RankPlace>, CudaError> {
    let measured = Parts::over(LayoutBuilder::measuring_bytes(), sizes).bytes;
    let devices: Vec<i32> = contexts.iter().map(|context| context.info.device).collect();
    let mut regions = Vec::with_capacity(contexts.len());
    for context in contexts {
        context.make_current()?;
        let region = Region::shared(context, measured, &devices).map_err(|error| {
            let owner = context.info.device;
            let text = format!("memory of cuda:{owner} for ranks on devices {devices:?}: {error}");
            CudaError::Unsupported(text)
        });
        regions.push(region?);
    }
    let parts: Vec<Parts> =
        regions.iter().map(|region| Parts::over(region.mapped(), sizes)).collect();
    let starts: Vec<DeviceSlice<u8>> = regions.iter().map(Region::mapped).collect();
    for (context, (region, part)) in contexts.iter().zip(regions.iter().zip(&parts)) {
        context.make_current()?;
        let stream = Stream::new(context)?;
        fill(&stream, region.mapped(), 0)?;
        upload_starts(&stream, part.table, &starts)?;
        stream.synchronise()?;
        set_alone(&stream, part.control, true)?;
    }
    let names = contexts.iter().map(|context| format!("cuda:{}", context.info.device)).collect();
    let fault = Fault { words: PinnedBuffer::new(&contexts[0], 256)?, devices: names };
    let words = fault.words.on_device();
    let memory = Arc::new(ExchangeMemory { fault, _regions: regions });
    let most_columns = sizes.vocabularies.iter().map(|columns| columns.len() as u32).max();
    let place = |(rank, part): (usize, &Parts)| RankPlace {
        exchange: Exchange {
            regions: part.table,
            control: part.control,
            fault: words,
            rank: rank as u32,
            ranks: contexts.len() as u32,
            grid: sizes.grid,
        },
        vocabulary: sizes.vocabularies[rank].clone(),
        most_columns: most_columns.unwrap_or(0),
        logits: part.logits,
        logits_at: part.logits_at,
        memory: Arc::clone(&memory),
    };
    Ok(parts.iter().enumerate().map(place).collect())
}

/// Whether a rank takes part in exchanges, or computes for itself. Waits for the stream.
pub(crate) fn set_alone(
    stream: &Stream,
    control: DeviceSlice<u32>,
    alone: bool,
) -> Result<(), CudaError> {
    upload(stream, control.slice(u64::from(CONTROL_ALONE), 1), &u32::from(alone).to_le_bytes())
}
