//! The tensors that the files hold, and the one place where a model's parts are found among them:
//! both formats end here. Checks types and shapes; an unused tensor is an error.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use crate::error::{ModelError, shown};
use crate::{CopyPlan, TensorView, WeightRole, WeightType};

/// How a file says a tensor is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// A type that executors read.
    Known(WeightType),
    /// The name of one that they do not.
    Other(String),
}

/// A tensor of a file, its range already checked against the file's size.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) file: usize,
    /// From the start of the file.
    pub(crate) offset: u64,
    pub(crate) byte_len: u64,
    pub(crate) stored: Stored,
    /// Outermost first, as Hugging Face writes it.
    pub(crate) shape: Vec<u64>,
}

/// Tensors by name, each taken at most once.
#[derive(Debug)]
pub(crate) struct Catalogue {
    /// For messages about tensors that no file holds.
    place: String,
    files: Vec<String>,
    entries: BTreeMap<String, (Entry, bool)>,
    plan: BTreeMap<WeightRole, TensorView>,
}

impl Catalogue {
    pub(crate) fn new(place: String, files: Vec<String>) -> Self {
        Self { place, files, entries: BTreeMap::new(), plan: BTreeMap::new() }
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
        self.entries.contains_key(name)
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
        self.view(&entry, name, Part { role, first_row: 0, rows: 1 }, len)
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
        let entry = self.take(name, shape)?;
        let cols = shape.last().copied().unwrap_or(0);
        let mut first_row: u64 = 0;
        for &(role, rows) in parts {
            self.view(&entry, name, Part { role, first_row, rows }, cols)?;
            first_row = first_row.saturating_add(rows);
        }
        Ok(())
    }

    /// Takes a tensor without planning it: the caller plans or reads its parts.
    pub(crate) fn take(&mut self, name: &str, shape: &[u64]) -> Result<Entry, ModelError> {
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

    fn view(&mut self, entry: &Entry, name: &str, part: Part, cols: u64) -> Result<(), ModelError> {
        let file = self.file(entry.file);
        let weight_type = match &entry.stored {
            Stored::Known(weight_type) => *weight_type,
            Stored::Other(kind) => {
                let field = format!("type of tensor {}", shown(name));
                return Err(ModelError::unsupported(file, &field, kind, SUPPORTED_TYPES));
            }
        };
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
        self.plan.insert(part.role, TensorView { name: name.to_owned(), ..view });
        Ok(())
    }
}

/// Rows of a tensor and what they are.
struct Part {
    role: WeightRole,
    first_row: u64,
    rows: u64,
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
        quantise: false,
    })
}

const SUPPORTED_TYPES: &str =
    "F32, F16, BF16; in GGUF also Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K";
