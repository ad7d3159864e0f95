//! The weights of latent attention. Keys and values of a head are products of the latent; both products are moved to
//! where they cost least, so that only the latent is kept: see `LatentSpec`.

use std::io;

use ingle_model::{
    LatentSpec, LayerWeight, Order, TensorView, WeightRole, WeightSource, WeightType, dequantise,
};

use super::reader::Reader;
use crate::CpuError;
use crate::matrix::PackedMatrix;
use crate::matrix_reader::{File, read_matrix};

/// Latent attention.
#[derive(Debug)]
pub(crate) struct LatentWeights {
    /// What queries are computed from, where it is not the residual stream's norm itself.
    pub(crate) query_down: Option<QueryDown>,
    pub(crate) query: PackedMatrix,
    /// To the latent and the key that rotates.
    pub(crate) down: PackedMatrix,
    pub(crate) down_bias: Option<Vec<f32>>,
    /// Of the latent.
    pub(crate) norm: Vec<f32>,
    /// Of each head, `[rank, plain_dim]`: from the elements of a query that do not rotate to what is compared with the
    /// latent.
    pub(crate) key_up: Vec<PackedMatrix>,
    /// Of each head, `[value_dim, rank]`: from the sum of latents to the head's result.
    pub(crate) value_up: Vec<PackedMatrix>,
    pub(crate) output: PackedMatrix,
    pub(crate) output_bias: Option<Vec<f32>>,
}

/// The first half of the projection to queries.
#[derive(Debug)]
pub(crate) struct QueryDown {
    pub(crate) matrix: PackedMatrix,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) norm: Vec<f32>,
}

impl LatentWeights {
    pub(super) fn matrices(&self) -> Vec<&PackedMatrix> {
        let of_query = self.query_down.iter().map(|down| &down.matrix);
        let of_heads = self.key_up.iter().chain(&self.value_up);
        [&self.query, &self.down, &self.output]
            .into_iter()
            .chain(of_query)
            .chain(of_heads)
            .collect()
    }
}

impl Reader<'_> {
    pub(super) fn latent(
        &self,
        index: u32,
        latent: &LatentSpec,
    ) -> Result<LatentWeights, CpuError> {
        use LayerWeight as W;
        let role = |part| WeightRole::Layer(index, part);
        let (spec, hidden) = (self.spec, self.spec.hidden_size as usize);
        let heads = spec.num_attention_heads as usize;
        let (rank, kept) = (latent.rank as usize, latent.kept_dim() as usize);
        let optional =
            |wanted: bool, part, len| wanted.then(|| self.vector(role(part), len)).transpose();
        let has_biases = spec.attention.qkv_bias;
        let query_down = match latent.query_rank.map(|width| width as usize) {
            None => None,
            Some(width) => Some(QueryDown {
                matrix: self.matrix(role(W::QueryDown), width, hidden)?,
                bias: optional(has_biases, W::QueryDownBias, width)?,
                norm: self.norm(role(W::QueryDownNorm), width)?,
            }),
        };
        let query_input = latent.query_rank.map_or(hidden, |width| width as usize);
        let queries = heads * latent.query_dim() as usize;
        let (key_up, value_up) = self.latent_up(role(W::LatentUp), latent)?;
        Ok(LatentWeights {
            query_down,
            query: self.matrix(role(W::Query), queries, query_input)?,
            down: self.matrix(role(W::LatentDown), kept, hidden)?,
            down_bias: optional(has_biases, W::LatentDownBias, kept)?,
            norm: self.norm(role(W::LatentNorm), rank)?,
            key_up,
            value_up,
            output: self.matrix(role(W::Output), hidden, heads * latent.value_dim as usize)?,
            output_bias: optional(spec.attention.o_bias, W::OutputBias, hidden)?,
        })
    }

    /// Each head's two matrices: as stored where elements are plain numbers, else in f32, since scales of blocks and
    /// groups do not follow a matrix that is transposed.
    fn latent_up(
        &self,
        role: WeightRole,
        latent: &LatentSpec,
    ) -> Result<(Vec<PackedMatrix>, Vec<PackedMatrix>), CpuError> {
        let (heads, rank) = (self.spec.num_attention_heads, latent.rank);
        let rows = (heads * latent.up_rows()) as usize;
        let view = self.view(role, rows, rank as usize)?;
        let is_plain =
            matches!(view.weight_type, WeightType::F32 | WeightType::F16 | WeightType::Bf16);
        let widened;
        let (file, view) = if is_plain && view.order == Order::Rows {
            (File { names: self.file.names, source: self.file.source, ..self.file }, view.clone())
        } else {
            widened = Numbers(self.widened(view)?);
            let file = File { names: self.file.names, source: &widened, ..self.file };
            let (weight_type, order) = (WeightType::F32, Order::Rows);
            let (offset, scale, groups) = (0, None, None);
            (file, TensorView { offset, weight_type, order, scale, groups, ..view.clone() })
        };
        let size = view.weight_type.block_bytes() as u64;
        let part = |first_row: u32, rows, cols, order| TensorView {
            offset: view.offset + u64::from(first_row) * u64::from(rank) * size,
            byte_len: u64::from(rows) * u64::from(cols) * size,
            rows,
            cols,
            order,
            ..view.clone()
        };
        let mut pool = self.pool.borrow_mut();
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let transposed = Order::Columns { stride: rank, step: 1 };
        for head in 0..heads {
            let first = head * latent.up_rows();
            let key = part(first, rank, latent.plain_dim, transposed);
            keys.push(read_matrix(&file, &key, &mut pool)?);
            let value = part(first + latent.plain_dim, latent.value_dim, rank, Order::Rows);
            values.push(read_matrix(&file, &value, &mut pool)?);
        }
        Ok((keys, values))
    }

    /// A matrix in f32, little-endian, row by row.
    fn widened(&self, view: &TensorView) -> Result<Vec<u8>, CpuError> {
        let (rows, cols) = (view.rows as usize, view.cols as usize);
        let error = |source| self.file.error(view.file, &view.name, source);
        let mut values = vec![0.0; rows * cols];
        match &view.groups {
            Some(groups) => {
                let read = view.read_grouped(self.file.source, 0, rows).map_err(error)?;
                let column_groups =
                    groups.column_groups(self.file.source, view.cols).map_err(error)?;
                read.widen(view.weight_type, &column_groups, &mut values);
            }
            None => {
                let mut stored = vec![0; view.byte_len as usize];
                self.file.read(view, 0, &mut stored)?;
                dequantise(view.weight_type, &stored, &mut values);
            }
        }
        if let Some(scale) = &view.scale {
            let scales = scale
                .read(self.file.source)
                .map_err(|source| self.file.error(scale.file, &scale.name, source))?;
            for (row, values) in values.chunks_exact_mut(cols).enumerate() {
                let line = &scales[row / scale.block_rows as usize * scale.cols as usize..];
                for (values, scale) in values.chunks_mut(scale.block_cols as usize).zip(line) {
                    values.iter_mut().for_each(|value| *value *= scale);
                }
            }
        }
        if values.iter().any(|value| !value.is_finite()) {
            return Err(CpuError::NotFinite { name: view.name.clone() });
        }
        Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }
}

/// A file in memory that holds one matrix.
struct Numbers(Vec<u8>);

impl WeightSource for Numbers {
    fn read_at(&self, _: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        match self.0.get(start..).and_then(|rest| rest.get(..buffer.len())) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }
}
