//! Takes 4-bit matrices: the tensors that stand for one, their shapes and types, and the numbers of small
//! ones that say how the others are to be read.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::catalogue::{Catalogue, Entry, Stored, is_never_quantised};
use crate::error::{ModelError, shown};
use crate::quantisation::{FourBit, LinearForm, Quantisation};
use crate::{
    GroupTensor, GroupView, Order, Packing, ScaleType, TensorView, WeightRole, WeightSource,
    WeightType, Zero,
};

impl Catalogue {
    /// The name before `.weight`, if the matrix of that name is packed.
    pub(crate) fn packed(
        &self,
        name: &str,
        parts: &[(WeightRole, u64)],
    ) -> Option<(String, LinearForm)> {
        let Some(Quantisation::FourBit(FourBit::Linear(form))) = self.quantisation else {
            return None;
        };
        let stem = name.strip_suffix(".weight")?;
        let may_be_packed = parts.iter().all(|(role, _)| !is_never_quantised(*role));
        let is_packed = || self.contains(&names(stem, form.packing).codes);
        let found = may_be_packed && !self.contains(name) && is_packed();
        found.then(|| (stem.to_owned(), form))
    }

    /// As `rows`, of a matrix that is packed.
    pub(crate) fn packed_rows(
        &mut self,
        (stem, form): (&str, LinearForm),
        shape: &[u64],
        parts: &[(WeightRole, u64)],
    ) -> Result<(), ModelError> {
        let names = names(stem, form.packing);
        let packing = form.packing;
        let &[rows, cols] = shape else {
            let reason = format!("the model needs {shape:?}, not a matrix");
            return Err(ModelError::tensor(&self.place, &names.codes, reason));
        };
        let is_whole =
            cols.is_multiple_of(8) && (packing == Packing::Rows || rows.is_multiple_of(8));
        if !is_whole || rows == 0 || cols == 0 {
            let reason = format!("{rows} rows and {cols} columns do not fill words of 8");
            return Err(ModelError::tensor(&self.place, &names.codes, reason));
        }
        // No group is wider than the matrix.
        let group = u64::from(form.group.unwrap_or(u32::MAX)).min(cols);
        let shapes = shapes(packing, rows, cols, cols.div_ceil(group));
        let entry = self.typed(&names.codes, &shapes.codes, "I32")?;
        let scale = self.take(&names.scales, &shapes.scales)?;
        let scale_type = ScaleType::Number(self.number_type(&names.scales, &scale)?);
        let zero = match form.stored_zeros {
            None => Zero::Constant(8),
            Some(add) => Zero::Stored { tensor: self.part(&names.zeros, &shapes.zeros)?, add },
        };
        if let Some(name) = names.shape.filter(|name| self.contains(name)) {
            let tensor = part_of(&name, &self.typed(&name, &[2], "I64")?);
            self.shapes.push((tensor, [rows, cols]));
        }
        let groups_of_columns = match names.groups_of_columns {
            Some(name) if self.contains(&name) => Some(self.part(&name, &[cols])?),
            _ => None,
        };
        let view = GroupView {
            packing,
            first_row: 0,
            row_step: 1,
            tensor_rows: self.size(&names.codes, rows)?,
            first_col: 0,
            tensor_cols: self.size(&names.codes, cols)?,
            first_group: 0,
            tensor_groups: self.size(&names.codes, cols.div_ceil(group))?,
            group: self.size(&names.codes, group)?,
            scale: part_of(&names.scales, &scale),
            scale_type,
            zero,
            groups_of_columns,
        };
        let mut first_row: u64 = 0;
        for &(role, rows) in parts {
            let own = GroupView { first_row: self.size(&names.codes, first_row)?, ..view.clone() };
            let sizes = [self.size(&names.codes, rows)?, self.size(&names.codes, cols)?];
            let view = grouped((&names.codes, &entry), WeightType::Int4, sizes, own);
            self.plan.insert(role, view);
            first_row = first_row.saturating_add(rows);
        }
        Ok(())
    }

    /// As `alternating`, of matrices in MXFP4: codes `[experts, rows, cols / 32, 16]` of bytes, scales
    /// `[experts, rows, cols / 32]`. `None` if they are not.
    pub(crate) fn mx_experts(
        &mut self,
        name: &str,
        shape: &[u64],
        matrices: &[Vec<WeightRole>],
    ) -> Result<Option<()>, ModelError> {
        let blocks_name = format!("{name}_blocks");
        let is_mx = self.quantisation == Some(Quantisation::FourBit(FourBit::Mxfp4));
        let &[experts, cols, rows] = shape else { return Ok(None) };
        if !is_mx || self.contains(name) || !self.contains(&blocks_name) {
            return Ok(None);
        }
        let block = u64::from(MX_BLOCK);
        if !cols.is_multiple_of(block) || cols == 0 {
            let reason = format!("{cols} columns do not divide into blocks of {block}");
            return Err(ModelError::tensor(&self.place, &blocks_name, reason));
        }
        let blocks = cols.div_ceil(block);
        let entry = self.typed(&blocks_name, &[experts, rows, blocks, 16], "U8")?;
        let scale_name = format!("{name}_scales");
        let scale = self.typed(&scale_name, &[experts, rows, blocks], "U8")?;
        let tensor_rows = self.size(&blocks_name, experts.saturating_mul(rows))?;
        let cols = self.size(&blocks_name, cols)?;
        for (expert, parts) in (0_u64..).zip(matrices) {
            let step = u64::try_from(parts.len()).unwrap_or(u64::MAX);
            let above = expert.saturating_mul(rows);
            for (part, role) in (0_u64..).zip(parts) {
                let own = GroupView {
                    packing: Packing::Rows,
                    first_row: self.size(&blocks_name, above.saturating_add(part))?,
                    row_step: self.size(&blocks_name, step)?,
                    tensor_rows,
                    first_col: 0,
                    tensor_cols: cols,
                    first_group: 0,
                    tensor_groups: cols.div_ceil(MX_BLOCK),
                    group: MX_BLOCK,
                    scale: part_of(&scale_name, &scale),
                    scale_type: ScaleType::E8M0,
                    zero: Zero::None,
                    groups_of_columns: None,
                };
                let rows = rows.checked_div(step).unwrap_or(0);
                let sizes = [self.size(&blocks_name, rows)?, cols];
                let view = grouped((&blocks_name, &entry), WeightType::F4E2M1, sizes, own);
                self.plan.insert(*role, view);
            }
        }
        Ok(Some(()))
    }

    /// Compares stored shapes with the model's, and drops orders of columns that are the usual one.
    ///
    /// # Errors
    /// Another shape, or a group that does not exist.
    pub(crate) fn check_packed(&mut self, source: &dyn WeightSource) -> Result<(), ModelError> {
        for (tensor, values) in &self.shapes {
            let file = self.file(tensor.file);
            let mut bytes = [0; 16];
            source
                .read_at(tensor.file, tensor.offset, &mut bytes)
                .map_err(|cause| ModelError::io(file, "read", cause))?;
            let (stored, _) = bytes.as_chunks::<8>();
            if !stored.iter().map(|bytes| u64::from_le_bytes(*bytes)).eq(*values) {
                let stored: Vec<i64> =
                    stored.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
                let reason = format!("holds {stored:?}, the model needs {values:?}");
                return Err(ModelError::tensor(file, &tensor.name, reason));
            }
        }
        let files = &self.files;
        for view in self.plan.values_mut() {
            let cols = view.cols;
            let Some(groups) = &mut view.groups else { continue };
            let Some(tensor) = &groups.groups_of_columns else { continue };
            let found = groups.column_groups(source, cols).map_err(|cause| {
                let file = files.get(tensor.file).map_or("", String::as_str);
                match cause.kind() {
                    std::io::ErrorKind::InvalidData => {
                        let text = cause.to_string();
                        let reason = text.strip_prefix(&tensor.name).unwrap_or(&text);
                        ModelError::tensor(file, &tensor.name, reason.trim_start())
                    }
                    _ => ModelError::io(file, "read", cause),
                }
            })?;
            let usual = (0..cols).map(|column| column.checked_div(groups.group).unwrap_or(0));
            if usual.eq(found) {
                groups.groups_of_columns = None;
            }
        }
        Ok(())
    }

    fn part(&mut self, name: &str, shape: &[u64]) -> Result<GroupTensor, ModelError> {
        let entry = self.typed(name, shape, "I32")?;
        Ok(part_of(name, &entry))
    }

    /// Takes a tensor of integers.
    fn typed(
        &mut self,
        name: &str,
        shape: &[u64],
        kind: &'static str,
    ) -> Result<Entry, ModelError> {
        let entry = self.take(name, shape)?;
        match &entry.stored {
            Stored::Other(stored) if stored == kind => Ok(entry),
            other => {
                let field = format!("type of tensor {}", shown(name));
                let file = self.file(entry.file);
                Err(ModelError::unsupported(file, &field, other.name(), kind))
            }
        }
    }

    fn size(&self, name: &str, size: u64) -> Result<u32, ModelError> {
        u32::try_from(size).map_err(|_| ModelError::tensor(&self.place, name, "is too large"))
    }
}

/// Whether this is a bias of zeros. AutoGPTQ gives every layer a bias, also where the model has none.
pub(crate) fn is_zero_bias(source: &dyn WeightSource, name: &str, entry: &Entry) -> bool {
    if !name.ends_with("_proj.bias") || entry.byte_len > MAX_BIAS_BYTES {
        return false;
    }
    let mut bytes = vec![0; usize::try_from(entry.byte_len).unwrap_or(0)];
    let read = source.read_at(entry.file, entry.offset, &mut bytes);
    read.is_ok() && bytes.iter().all(|byte| *byte == 0)
}

/// The tensors of a packed matrix.
struct Names {
    codes: String,
    scales: String,
    zeros: String,
    shape: Option<String>,
    groups_of_columns: Option<String>,
}

fn names(stem: &str, packing: Packing) -> Names {
    let name = |part: &str| format!("{stem}.{part}");
    match packing {
        Packing::Rows => Names {
            codes: name("weight_packed"),
            scales: name("weight_scale"),
            zeros: name("weight_zero_point"),
            shape: Some(name("weight_shape")),
            groups_of_columns: Some(name("weight_g_idx")),
        },
        Packing::Awq | Packing::Gptq => Names {
            codes: name("qweight"),
            scales: name("scales"),
            zeros: name("qzeros"),
            shape: None,
            groups_of_columns: (packing == Packing::Gptq).then(|| name("g_idx")),
        },
    }
}

/// Their shapes; see `Packing`.
struct Shapes {
    codes: [u64; 2],
    scales: [u64; 2],
    zeros: [u64; 2],
}

fn shapes(packing: Packing, rows: u64, cols: u64, groups: u64) -> Shapes {
    let (row_words, col_words) = (rows.div_ceil(8), cols.div_ceil(8));
    let (codes, scales, zeros) = match packing {
        Packing::Rows => ([rows, col_words], [rows, groups], [row_words, groups]),
        Packing::Awq => ([cols, row_words], [groups, rows], [groups, row_words]),
        Packing::Gptq => ([col_words, rows], [groups, rows], [groups, row_words]),
    };
    Shapes { codes, scales, zeros }
}

fn part_of(name: &str, entry: &Entry) -> GroupTensor {
    GroupTensor {
        name: name.to_owned(),
        file: entry.file,
        offset: entry.offset,
        byte_len: entry.byte_len,
    }
}

fn grouped(
    (name, entry): (&str, &Entry),
    weight_type: WeightType,
    [rows, cols]: [u32; 2],
    groups: GroupView,
) -> TensorView {
    TensorView {
        name: name.to_owned(),
        file: entry.file,
        offset: entry.offset,
        byte_len: u64::from(rows).saturating_mul(u64::from(cols)).div_ceil(2),
        order: Order::Rows,
        weight_type,
        rows,
        cols,
        scale: None,
        groups: Some(groups),
        quantise: false,
    }
}

/// Far above those of published models.
const MAX_BIAS_BYTES: u64 = 1 << 20;

/// Columns of a block of MXFP4.
const MX_BLOCK: u32 = 32;
