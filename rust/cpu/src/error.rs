//! Errors of loading a model onto the CPU. Plain data, any thread.

use std::io;

/// Why a model could not be loaded. Each message is one line that names the tensor or the setting.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// A setting makes no sense.
    #[error("cpu executor: {setting} is {value}, must be {must}")]
    Setting {
        /// Field of `CpuConfig`.
        setting: &'static str,
        /// What it was.
        value: u64,
        /// What it must be.
        must: &'static str,
    },
    /// The wanted vector path needs instructions that this processor lacks.
    #[error("cpu executor: path {0} needs instructions that this processor lacks")]
    PathUnsupported(&'static str),
    /// Rounded activations need instructions that this path or processor lacks.
    #[error("cpu_precision: fast needs AVX-512 with BF16 and VNNI, which this {0}; use exact")]
    FastUnsupported(&'static str),
    /// The environment variable names no path.
    #[error("INGLE_CPU_PATH: must be auto, avx512, avx2 or portable, not {0:?}")]
    PathUnknown(String),
    /// The copy plan has no tensor for a part that the model spec asks for.
    #[error("cpu executor: the checkpoint has no tensor for {0}")]
    MissingTensor(String),
    /// A tensor's shape differs from the model spec.
    #[error("tensor {name}: shape [{rows}, {cols}], the model needs [{want_rows}, {want_cols}]")]
    Shape {
        /// Name in the file.
        name: String,
        /// Rows found.
        rows: u32,
        /// Columns found.
        cols: u32,
        /// Rows needed.
        want_rows: usize,
        /// Columns needed.
        want_cols: usize,
    },
    /// An fp8 matrix, or one to be made fp8, with an element that no scale can help.
    #[error("tensor {name}: an element is not a finite number")]
    NotFinite {
        /// Name in the file.
        name: String,
    },
    /// Reading failed.
    #[error("{file}: tensor {name}: {source}")]
    Read {
        /// File name.
        file: String,
        /// Name in the file.
        name: String,
        /// Cause.
        source: io::Error,
    },
    /// The model cannot be divided among so many ranks.
    #[error(transparent)]
    Partition(#[from] ingle_model::PartitionError),
    /// A thread could not be started.
    #[error("cpu executor: cannot start a thread: {0}")]
    Thread(io::Error),
}
