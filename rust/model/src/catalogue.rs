//! The tensors of the files. Both formats look up a model's parts here. Checks types and shapes; an
//! unused tensor is an error. packed.rs takes 4-bit matrices.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::collections::BTreeMap;

pub(crate) use crate::entry::{Entry, Stored};
use crate::error::{ModelError, shown};
use crate::made::MadeTensors;
use crate::quantisation::{Layout, Quantisation, scale_names};
use crate::{
    CopyPlan, GroupTensor, LayerWeight, Order, ScaleView, TensorView, WeightRole, WeightType,
};

/// Tensors by name, each taken at most once.
#[derive(Debug)]
pub(crate) struct Catalogue {
    /// For messages about tensors that no file holds.
    pub(crate) place: String,
    pub(crate) files: Vec<String>,
    entries: BTreeMap<String, (Entry, bool)>,
    pub(crate) plan: BTreeMap<WeightRole, TensorView>,
    pub(crate) quantisation: Option<Quantisation>,
    /// Shapes that packed matrices state.
    pub(crate) shapes: Vec<(GroupTensor, [u64; 2])>,
    /// Makes each tensor that is asked for, where there are no files.
    pub(crate) made: Option<MadeTensors>,
}

impl Catalogue {
    pub(crate) fn new(place: String, files: Vec<String>) -> Self {
        Self {
            place,
            files,
            entries: BTreeMap::new(),
            plan: BTreeMap::new(),
            quantisation: None,
            shapes: Vec::new(),
            made: None,
        }
    }

    /// One whose tensors are made as they are asked for.
    pub(crate) fn without_files(place: String, made: MadeTensors) -> Self {
        let files = vec![place.clone()];
        Self { made: Some(made), ..Self::new(place, files) }
    }

    /// Lets matrices be quantised so.
    pub(crate) fn set_quantisation(&mut self, quantisation: Option<Quantisation>) {
        self.quantisation = quantisation;
    }

    /// Adds a tensor; a name that another file has too is an error.
    pub(crate) fn add(&mut self, name: String, entry: Entry) -> Result<(), ModelError> {
        if let Some((other, _)) = self.entries.get(&name) {
            let reason = format!("also in {}", self.file(other.file));
            return Err(ModelError::tensor(self.file(entry.file), &name, reason));
        }
        self.entries.insert(name, (entry, false));
        Ok(())
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        let would_hold = || MadeTensors::would_hold(name, self.quantisation.as_ref());
        self.entries.contains_key(name) || self.made.is_some() && would_hold()
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name).map(|(entry, _)| entry)
    }

    pub(crate) fn shape(&self, name: &str) -> Option<&[u64]> {
        self.entries.get(name).map(|(entry, _)| entry.shape.as_slice())
    }

    /// Takes `[len]`.
    pub(crate) fn vector(
        &mut self,
        role: WeightRole,
        name: &str,
        len: u64,
    ) -> Result<(), ModelError> {
        let entry = self.take(name, &[len])?;
        self.view(&entry, name, Part { role, first_row: 0, rows: 1, order: Order::Rows }, len, None)
    }

    /// Takes `[rows, cols]`.
    pub(crate) fn matrix(
        &mut self,
        role: WeightRole,
        name: &str,
        rows: u64,
        cols: u64,
    ) -> Result<(), ModelError> {
        self.rows(name, &[rows, cols], &[(role, rows)])
    }

    /// Takes a tensor whose last dimension is the columns and whose other dimensions are rows, the
    /// parts one below the other.
    pub(crate) fn rows(
        &mut self,
        name: &str,
        shape: &[u64],
        parts: &[(WeightRole, u64)],
    ) -> Result<(), ModelError> {
        if let Some((stem, form)) = self.packed(name, parts) {
            return self.packed_rows((&stem, form), shape, parts);
        }
        let entry = self.take(name, shape)?;
        let may_be_fp8 = parts.iter().all(|(role, _)| !is_never_quantised(*role));
        let scale = if may_be_fp8 { self.scale_of(name, &entry)? } else { None };
        let cols = shape.last().copied().unwrap_or(0);
        let mut first_row: u64 = 0;
        for &(role, rows) in parts {
            let part = Part { role, first_row, rows, order: Order::Rows };
            self.view(&entry, name, part, cols, scale.as_ref())?;
            first_row = first_row.saturating_add(rows);
        }
        Ok(())
    }

    /// Lets a tensor play a second part, if it is planned for the first one.
    pub(crate) fn plan_again(&mut self, first: WeightRole, second: WeightRole) {
        if let Some(view) = self.plan.get(&first).cloned() {
            self.plan.insert(second, view);
        }
    }

    /// Takes a matrix in which parts alternate: a band of each, `bands` times. `parts`: their rows in all bands.
    pub(crate) fn bands(
        &mut self,
        name: &str,
        cols: u64,
        parts: &[(WeightRole, u64)],
        bands: u64,
    ) -> Result<(), ModelError> {
        if let Some((stem, _)) = self.packed(name, parts) {
            let field = format!("quantization_config of tensor {}", shown(&stem));
            let found = "4-bit codes of parts that alternate";
            return Err(ModelError::unsupported(&self.place, &field, found, "BF16, F16, F32, fp8"));
        }
        let rows = parts.iter().fold(0_u64, |sum, (_, rows)| sum.saturating_add(*rows));
        let in_band = |rows: u64| rows.checked_div(bands).and_then(|rows| u32::try_from(rows).ok());
        let entry = self.take(name, &[rows, cols])?;
        let scale = self.scale_of(name, &entry)?;
        let mut first_row: u64 = 0;
        for &(role, part_rows) in parts {
            let (Some(band), Some(stride)) = (in_band(part_rows), in_band(rows)) else {
                return Err(ModelError::tensor(self.file(entry.file), name, "is too large"));
            };
            let order = Order::Bands { rows: band, stride };
            let part = Part { role, first_row, rows: part_rows, order };
            self.view(&entry, name, part, cols, scale.as_ref())?;
            first_row = first_row.saturating_add(u64::from(band));
        }
        Ok(())
    }

    /// Takes a tensor `[.., cols, rows]` that holds matrices `[rows, cols]` transposed, or `[.., rows]` that
    /// holds vectors: for each of them its parts, whose rows alternate and which have equally many.
    pub(crate) fn alternating(
        &mut self,
        name: &str,
        shape: &[u64],
        matrices: &[Vec<WeightRole>],
    ) -> Result<(), ModelError> {
        if self.mx_experts(name, shape, matrices)?.is_some() {
            return Ok(());
        }
        self.columns(name, shape, matrices, true)
    }

    /// As `alternating`, but columns of the first part come before those of the next one.
    pub(crate) fn side_by_side(
        &mut self,
        name: &str,
        shape: &[u64],
        matrices: &[Vec<WeightRole>],
    ) -> Result<(), ModelError> {
        self.columns(name, shape, matrices, false)
    }

    fn columns(
        &mut self,
        name: &str,
        shape: &[u64],
        matrices: &[Vec<WeightRole>],
        in_turn: bool,
    ) -> Result<(), ModelError> {
        let entry = self.take(name, shape)?;
        let file = self.file(entry.file);
        let Stored::Known(weight_type @ (WeightType::F32 | WeightType::F16 | WeightType::Bf16)) =
            entry.stored
        else {
            let field = format!("type of tensor {}", shown(name));
            let kind = format!("{:?}", entry.stored);
            return Err(ModelError::unsupported(file, &field, kind, "F32, F16, BF16"));
        };
        let mut views = Vec::new();
        for (index, parts) in (0_u64..).zip(matrices) {
            for (part, role) in (0_u64..).zip(parts) {
                let place = (index, part, parts.len());
                let view = columns_of(&entry, (weight_type, shape), place, in_turn);
                let view = view.ok_or_else(|| ModelError::tensor(file, name, "is too large"))?;
                views.push((*role, TensorView { name: name.to_owned(), ..view }));
            }
        }
        self.plan.extend(views);
        Ok(())
    }

    /// Takes a tensor without planning it: the caller plans or reads its parts.
    pub(crate) fn take(&mut self, name: &str, shape: &[u64]) -> Result<Entry, ModelError> {
        self.make_if_missing(name, shape);
        let Some((entry, taken)) = self.entries.get_mut(name) else {
            return Err(ModelError::MissingTensor {
                file: self.place.clone(),
                tensor: shown(name),
            });
        };
        *taken = true;
        let entry = entry.clone();
        if entry.shape != shape {
            let reason = format!("shape is {:?}, the model needs {shape:?}", entry.shape);
            return Err(ModelError::tensor(self.file(entry.file), name, reason));
        }
        Ok(entry)
    }

    fn make_if_missing(&mut self, name: &str, shape: &[u64]) {
        if let Some(made) = &mut self.made
            && !self.entries.contains_key(name)
        {
            let entry = made.make(name, shape, self.quantisation.as_ref());
            self.entries.insert(name.to_owned(), (entry, false));
        }
    }

    /// The plan, if everything was taken except what `harmless` knows.
    pub(crate) fn finish(
        self,
        harmless: impl Fn(&str, &Entry) -> bool,
    ) -> Result<CopyPlan, ModelError> {
        let mut unused =
            self.entries.iter().filter(|(name, (entry, taken))| !taken && !harmless(name, entry));
        if let Some((name, (entry, _))) = unused.next() {
            return Err(ModelError::UnusedTensor {
                file: self.file(entry.file).to_owned(),
                tensor: shown(name),
                count: unused.count().saturating_add(1),
            });
        }
        Ok(CopyPlan { files: self.files, tensors: self.plan })
    }

    /// The type that holds most bytes of what was taken so far.
    pub(crate) fn main_type(&self) -> WeightType {
        let mut totals: Vec<(WeightType, u64)> = Vec::new();
        for view in self.plan.values() {
            match totals.iter_mut().find(|(kind, _)| *kind == view.weight_type) {
                Some((_, total)) => *total = total.saturating_add(view.byte_len),
                None => totals.push((view.weight_type, view.byte_len)),
            }
        }
        totals.iter().max_by_key(|(_, total)| *total).map_or(WeightType::F32, |(kind, _)| *kind)
    }

    pub(crate) fn file(&self, index: usize) -> &str {
        self.files.get(index).map_or("", String::as_str)
    }

    /// Takes the scale of a matrix that is fp8.
    fn scale_of(&mut self, name: &str, entry: &Entry) -> Result<Option<Scale>, ModelError> {
        if entry.stored != Stored::Known(WeightType::F8E4M3) {
            return Ok(None);
        }
        if let Some(Quantisation::Fp8(scheme)) = &self.quantisation
            && let Some(layout) = scheme.layouts.first().copied()
        {
            let [own, _] = scale_names(name);
            self.make_if_missing(&own, &MadeTensors::scale_shape(layout, &entry.shape));
        }
        let refused = |reason| ModelError::tensor(self.file(entry.file), name, reason);
        let Some(Quantisation::Fp8(scheme)) = &self.quantisation else {
            let reason = "F8_E4M3, but no quantization_config says how it is scaled";
            return Err(refused(reason.to_owned()));
        };
        let names = scale_names(name);
        let Some(own) = names.iter().find(|own| self.entries.contains_key(*own)) else {
            let [a, b] = names.map(|name| shown(&name));
            return Err(refused(format!("F8_E4M3, but there is neither {a} nor {b}")));
        };
        let found = self.shape(own).unwrap_or_default().to_vec();
        let shapes = |layout: &Layout| layout.shapes(&entry.shape);
        let Some(layout) = scheme.layouts.iter().find(|layout| shapes(layout).contains(&found))
        else {
            let allowed: Vec<_> =
                scheme.layouts.iter().flat_map(shapes).map(|s| format!("{s:?}")).collect();
            let reason = format!(
                "shape is {found:?}, the scale of {:?} is {}",
                entry.shape,
                allowed.join(" or ")
            );
            return Err(ModelError::tensor(self.file(entry.file), own, reason));
        };
        let layout = *layout;
        let entry = self.take(own, &found)?;
        let weight_type = self.number_type(own, &entry)?;
        Ok(Some(Scale { name: own.clone(), entry, weight_type, layout }))
    }

    /// The type of a tensor of scales.
    pub(crate) fn number_type(&self, name: &str, entry: &Entry) -> Result<WeightType, ModelError> {
        if let Stored::Known(kind @ (WeightType::F32 | WeightType::F16 | WeightType::Bf16)) =
            entry.stored
        {
            return Ok(kind);
        }
        let field = format!("type of tensor {}", shown(name));
        let (file, kind) = (self.file(entry.file), entry.stored.name());
        Err(ModelError::unsupported(file, &field, kind, "F32, F16, BF16"))
    }

    fn view(
        &mut self,
        entry: &Entry,
        name: &str,
        part: Part,
        cols: u64,
        scale: Option<&Scale>,
    ) -> Result<(), ModelError> {
        let file = self.file(entry.file);
        let unsupported = |kind: &str| {
            let field = format!("type of tensor {}", shown(name));
            ModelError::unsupported(file, &field, kind, SUPPORTED_TYPES)
        };
        let weight_type = match &entry.stored {
            Stored::Known(WeightType::F8E4M3) if scale.is_none() => {
                return Err(unsupported("F8_E4M3"));
            }
            Stored::Known(weight_type) => *weight_type,
            Stored::Other(kind) => return Err(unsupported(kind)),
        };
        let scale = scale
            .map(|scale| {
                let matrix_rows = entry.shape.iter().nth_back(1).copied().unwrap_or(1);
                scale.part(&part, matrix_rows, cols).ok_or_else(|| {
                    let place = match part.order {
                        Order::Bands { rows, .. } => format!("a band of {rows} rows"),
                        _ => format!("row {}", part.first_row),
                    };
                    let reason = format!(
                        "{place} of {:?} begins inside a block of scales ({:?})",
                        entry.shape, scale.layout
                    );
                    ModelError::tensor(file, &scale.name, reason)
                })
            })
            .transpose()?;
        let view = part_of(entry, weight_type, &part, cols).ok_or_else(|| {
            let reason = format!(
                "rows of {cols} elements do not divide into blocks of {} ({weight_type:?}), or {} \
                 rows from row {} lie outside its {} bytes",
                weight_type.block_elements(),
                part.rows,
                part.first_row,
                entry.byte_len
            );
            ModelError::tensor(file, name, reason)
        })?;
        self.plan.insert(part.role, TensorView { name: name.to_owned(), scale, ..view });
        Ok(())
    }
}

/// The scale tensor of an fp8 matrix.
struct Scale {
    name: String,
    entry: Entry,
    weight_type: WeightType,
    layout: Layout,
}

impl Scale {
    /// The scales of some rows; `None` if there is no cut at them.
    fn part(&self, part: &Part, matrix_rows: u64, cols: u64) -> Option<ScaleView> {
        let own = self.layout.part(part.first_row, part.rows, matrix_rows, cols)?;
        let blocks = |rows: u32| {
            let block_rows = u32::try_from(own.block.0).ok()?;
            if rows.checked_rem(block_rows)? == 0 { rows.checked_div(block_rows) } else { None }
        };
        let order = match part.order {
            Order::Bands { rows, stride } if self.layout != Layout::Tensor => {
                Order::Bands { rows: blocks(rows)?, stride: blocks(stride)? }
            }
            _ => Order::Rows,
        };
        let size = u64::try_from(self.weight_type.block_bytes()).ok()?;
        let row_bytes = own.cols.checked_mul(size)?;
        let start = own.first.checked_mul(row_bytes)?;
        let byte_len = own.rows.checked_mul(row_bytes)?;
        if start.checked_add(byte_len)? > self.entry.byte_len {
            return None;
        }
        Some(ScaleView {
            name: self.name.clone(),
            file: self.entry.file,
            offset: self.entry.offset.checked_add(start)?,
            byte_len,
            weight_type: self.weight_type,
            rows: u32::try_from(own.rows).ok()?,
            cols: u32::try_from(own.cols).ok()?,
            block_rows: u32::try_from(own.block.0).ok()?,
            block_cols: u32::try_from(own.block.1).ok()?,
            order,
        })
    }
}

/// Parts that executors keep in a plain type.
pub(crate) fn is_never_quantised(role: WeightRole) -> bool {
    use LayerWeight::{Router, SharedScore};
    matches!(
        role,
        WeightRole::Embedding
            | WeightRole::TokenInputEmbedding
            | WeightRole::Layer(_, Router | SharedScore)
    )
}

/// Rows of a tensor and their meaning.
struct Part {
    role: WeightRole,
    first_row: u64,
    rows: u64,
    /// `Rows` or `Bands`.
    order: Order,
}

fn part_of(entry: &Entry, weight_type: WeightType, part: &Part, cols: u64) -> Option<TensorView> {
    let block_elements = u64::try_from(weight_type.block_elements()).ok()?;
    let block_bytes = u64::try_from(weight_type.block_bytes()).ok()?;
    if cols.checked_rem(block_elements)? != 0 {
        return None;
    }
    let row_bytes = cols.checked_div(block_elements)?.checked_mul(block_bytes)?;
    let start = part.first_row.checked_mul(row_bytes)?;
    let byte_len = part.rows.checked_mul(row_bytes)?;
    if start.checked_add(byte_len)? > entry.byte_len {
        return None;
    }
    Some(TensorView {
        name: String::new(),
        file: entry.file,
        offset: entry.offset.checked_add(start)?,
        byte_len,
        weight_type,
        rows: u32::try_from(part.rows).ok()?,
        cols: u32::try_from(cols).ok()?,
        scale: None,
        groups: None,
        order: part.order,
        quantise: false,
    })
}

/// One part of several of a matrix or vector of a tensor; see `Catalogue::alternating`.
fn columns_of(
    entry: &Entry,
    (weight_type, shape): (WeightType, &[u64]),
    (index, part, parts): (u64, u64, usize),
    in_turn: bool,
) -> Option<TensorView> {
    let size = u64::try_from(weight_type.block_bytes()).ok()?;
    let parts = u64::try_from(parts).ok()?;
    let of_part = |rows: u64| rows.checked_div(parts);
    let (rows, cols, order) = match *shape {
        [_, cols, rows] => {
            let step = if in_turn { u32::try_from(parts).ok()? } else { 1 };
            let stride = u32::try_from(rows).ok()?;
            (of_part(rows)?, cols, Order::Columns { stride, step })
        }
        [_, rows] => {
            let stride = u32::try_from(parts).ok()?;
            (1, of_part(rows)?, Order::Columns { stride, step: 1 })
        }
        _ => return None,
    };
    let byte_len = rows.checked_mul(cols)?.checked_mul(size)?;
    let start = index.checked_mul(parts)?.checked_mul(byte_len)?;
    let between = if in_turn { 1 } else { rows };
    let start = start.checked_add(part.checked_mul(between)?.checked_mul(size)?)?;
    Some(TensorView {
        name: String::new(),
        file: entry.file,
        offset: entry.offset.checked_add(start)?,
        byte_len,
        order,
        weight_type,
        rows: u32::try_from(rows).ok()?,
        cols: u32::try_from(cols).ok()?,
        scale: None,
        groups: None,
        quantise: false,
    })
}

const SUPPORTED_TYPES: &str = "F32, F16, BF16; for linear layers also F8_E4M3; in GGUF also Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K";
