//! The tables of a model's rotations on the device. Filled at load, read by rope_kv.cu.

use crate::CudaError;
use crate::device_slice::DeviceSlice;
use crate::launch::RopeTable;
use crate::memory::upload;
use crate::model::Model;
use crate::rope::{pairs_before, table_pairs};
use crate::stream::Stream;

impl Model {
    /// The angles of a layer, `[max_model_len, table_pairs]`; `None` if it does not rotate.
    pub(crate) fn rope_table(&self, layer: usize) -> Option<DeviceSlice<[f32; 2]>> {
        self.spec.layers[layer].rope.map(|rope| self.table(rope))
    }

    fn table(&self, rope: usize) -> DeviceSlice<[f32; 2]> {
        let positions = u64::from(self.engine.max_model_len);
        let pairs = u64::from(table_pairs(&self.spec.ropes[rope]));
        self.buffers
            .rope_tables
            .slice(positions * pairs_before(&self.spec, rope), positions * pairs)
    }

    /// Fills the tables of all rotations.
    pub(crate) fn fill_rope_tables(&self, stream: &Stream) -> Result<(), CudaError> {
        for (index, rope) in self.spec.ropes.iter().enumerate() {
            let tables = rope.tables(self.engine.max_model_len - 1);
            // Of a part of the pairs, the others' frequency is 0.
            let pairs = table_pairs(rope) as usize;
            let inv_freq =
                self.buffers.inv_freq.slice(pairs_before(&self.spec, index), pairs as u64);
            let used = tables.inv_freq.iter().take(pairs);
            let bytes: Vec<u8> = used.flat_map(|f| f.to_le_bytes()).collect();
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
