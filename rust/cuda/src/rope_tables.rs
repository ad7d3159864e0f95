//! The tables of a model's rotations on the device. Filled at load, read by rope_kv.cu.

use crate::CudaError;
use crate::device_slice::DeviceSlice;
use crate::launch::RopeTable;
use crate::memory::upload;
use crate::model::Model;
use crate::rope::rotary_dim;
use crate::stream::Stream;

impl Model {
    /// The angles of a layer, `[max_model_len, rotary_dim / 2]`; `None` if it does not rotate.
    pub(crate) fn rope_table(&self, layer: usize) -> Option<DeviceSlice<[f32; 2]>> {
        self.spec.layers[layer].rope.map(|rope| self.table(rope))
    }

    fn table(&self, rope: usize) -> DeviceSlice<[f32; 2]> {
        let half = u64::from(rotary_dim(&self.spec) / 2);
        self.buffers.rope_tables.row(rope as u64, u64::from(self.engine.max_model_len) * half)
    }

    /// Fills the tables of all rotations.
    pub(crate) fn fill_rope_tables(&self, stream: &Stream) -> Result<(), CudaError> {
        for (index, rope) in self.spec.ropes.iter().enumerate() {
            let tables = rope.tables(self.engine.max_model_len - 1);
            let inv_freq = self.buffers.inv_freq.row(index as u64, tables.inv_freq.len() as u64);
            let bytes: Vec<u8> = tables.inv_freq.iter().flat_map(|f| f.to_le_bytes()).collect();
            upload(stream, inv_freq, &bytes)?;
            self.launcher(stream).rope_table(&RopeTable {
                inv_freq,
                table: self.table(index),
                attention_factor: tables.attention_factor,
                positions: self.engine.max_model_len,
            })?;
        }
        Ok(())
    }
}
