//! What gated delta nets keep of sequences: `[place][layer]`, a place for each slot, then one for each
//! snapshot. kernels/delta_net.cu has the layout of a layer's part. The loading thread creates it; steps
//! write it in the stream's order.

use std::sync::Arc;

use ingle_core::StateCopy;
use ingle_model::{DeltaNetSpec, ModelSpec};

use crate::CudaError;
use crate::arena::Region;
use crate::context::Context;
use crate::device_slice::{DevicePtr, DeviceSlice};
use crate::memory::copy_on_device;
use crate::stream::Stream;
use crate::weights::DEVICE_TYPE_BYTES;

/// Sizes of a model's states. Plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateLayout {
    /// Bytes of a place.
    place_stride: u64,
    /// Where each layer's part begins in a place.
    offsets: Vec<u64>,
    /// Places of running sequences, and of copies.
    pub(crate) num_slots: u32,
    pub(crate) num_snapshots: u32,
}

impl StateLayout {
    /// Of a model of which so many sequences may run; `None` where no layer keeps a state.
    pub(crate) fn of(spec: &ModelSpec, max_num_seqs: u32) -> Option<Self> {
        let mut place_stride = 0;
        let mut offsets = Vec::with_capacity(spec.layers.len());
        for layer in &spec.layers {
            offsets.push(place_stride);
            place_stride += layer.delta_net.as_ref().map_or(0, layer_bytes);
        }
        (place_stride > 0).then(|| Self {
            place_stride,
            offsets,
            num_slots: state_slots(max_num_seqs),
            num_snapshots: SNAPSHOTS * max_num_seqs,
        })
    }

    /// Bytes of all places.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.num_slots + self.num_snapshots) * self.place_stride
    }
}

/// Slots of a model with states: they weigh too much for two a request. An ended request keeps its own until the steps
/// that name it are done; then a new one waits if there is no other.
pub(crate) fn state_slots(max_num_seqs: u32) -> u32 {
    max_num_seqs + max_num_seqs.div_ceil(8)
}

/// Copies of states of a model of which so many sequences may run.
pub(crate) fn num_snapshots(spec: &ModelSpec, max_num_seqs: u32) -> u32 {
    let keeps_state = spec.layers.iter().any(|layer| layer.delta_net.is_some());
    if keeps_state { SNAPSHOTS * max_num_seqs } else { 0 }
}

/// Bytes that states take for each request that may run, copies of them included; 0 for a model without.
#[must_use]
pub fn state_bytes(spec: &ModelSpec, max_num_seqs: u32) -> u64 {
    StateLayout::of(spec, max_num_seqs).map_or(0, |layout| layout.bytes())
}

/// The state in f32 and the last inputs, to whole 256 bytes.
fn layer_bytes(net: &DeltaNetSpec) -> u64 {
    let state = u64::from(net.value_width()) * u64::from(net.key_dim) * 4;
    let inputs = u64::from(net.conv_kernel - 1) * u64::from(net.channels()) * DEVICE_TYPE_BYTES;
    (state + inputs).next_multiple_of(256)
}

/// The memory of all places.
#[derive(Debug)]
pub(crate) struct StatePool {
    layout: StateLayout,
    region: Region,
}

/// What one layer keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateLayer {
    /// The first place.
    pub(crate) base: DevicePtr<u8>,
    /// Bytes from a place to the next, and to this layer in a place.
    pub(crate) place_stride: u64,
    pub(crate) layer_offset: u64,
    /// Places.
    pub(crate) num_places: u32,
}

impl StateLayer {
    /// Asserts that there is a place for each slot.
    pub(crate) fn check(&self, num_slots: u32) {
        assert!(self.num_places >= num_slots, "{self:?}, want {num_slots}");
    }
}

impl StatePool {
    /// Takes the memory.
    pub(crate) fn new(context: &Arc<Context>, layout: StateLayout) -> Result<Self, CudaError> {
        let region = Region::backed(context, layout.bytes())?;
        Ok(Self { layout, region })
    }

    pub(crate) fn num_snapshots(&self) -> u32 {
        self.layout.num_snapshots
    }

    /// A layer's part.
    pub(crate) fn layer(&self, index: usize) -> StateLayer {
        let StateLayout { place_stride, num_slots, num_snapshots, .. } = self.layout;
        StateLayer {
            base: self.region.base(),
            place_stride,
            layer_offset: self.layout.offsets[index],
            num_places: num_slots + num_snapshots,
        }
    }

    fn place(&self, place: u32) -> DeviceSlice<u8> {
        self.region.mapped().row(u64::from(place), self.layout.place_stride)
    }

    /// Queues the copy with which an opened slot goes on from a snapshot.
    pub(crate) fn restore(&self, stream: &Stream, copy: &StateCopy) -> Result<(), CudaError> {
        let from = self.place(self.layout.num_slots + copy.snapshot.0);
        copy_on_device(stream, self.place(copy.slot.number()), from)
    }

    /// Loads the driver's code for copies, so that no step has to.
    pub(crate) fn warm(&self, stream: &Stream) -> Result<(), CudaError> {
        copy_on_device(stream, self.place(0), self.place(self.layout.num_slots))
    }
}

/// Copies of states for each request that may run.
const SNAPSHOTS: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_hold_the_state_and_the_inputs_of_every_net() {
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/published");
        let spec = |name: &str| {
            let path = std::path::Path::new(models).join(name);
            ingle_model::open_without_weights(&path).unwrap().spec
        };
        assert_eq!(StateLayout::of(&spec("qwen3-8b"), 8), None);
        let spec = spec("qwen3.6-27b");
        let layout = StateLayout::of(&spec, 8).unwrap();
        // 48 heads of 128 x 128 in f32, three inputs of 10,240 channels.
        let layer = 48 * 128 * 128 * 4 + 3 * 10_240 * 2;
        assert_eq!(layout.place_stride, 48 * layer);
        assert_eq!(layout.offsets[..5], [0, layer, 2 * layer, 3 * layer, 3 * layer]);
        assert_eq!((layout.num_slots, layout.num_snapshots), (9, 16));
        assert_eq!(state_bytes(&spec, 8), 25 * 48 * layer);
    }
}
