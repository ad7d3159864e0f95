//! The loaded kernel entries of a model. Created at load; the engine thread and the capture thread
//! only read it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::CudaError;
use crate::context::Context;
use crate::module::{Kernel, Module};
use crate::program::{KernelSettings, Program};
use crate::registry::Entry;
use crate::variant::Variant;

/// All entries, ready to launch.
#[derive(Debug)]
pub(crate) struct Kernels {
    by_build: BTreeMap<(Entry, Variant), Kernel>,
    /// By number of the entry; `None` if the model has it in no build or in several.
    alone: Vec<Option<Kernel>>,
}

impl Kernels {
    /// Loads the cubins of `programs`, given in the same order.
    pub(crate) fn load(
        context: &Arc<Context>,
        programs: &[Program],
        cubins: &[Vec<u8>],
        settings: &KernelSettings,
    ) -> Result<Self, CudaError> {
        let mut by_build = BTreeMap::new();
        for (program, cubin) in programs.iter().zip(cubins) {
            let Program { source, variant } = *program;
            let module = Module::load(context, source.file(), cubin)?;
            for &entry in source.entries() {
                let symbol = entry.symbol(settings.dtypes.act().name());
                let kernel =
                    Kernel::new(&module, &symbol, variant.shared_bytes(settings.dtypes.kv()))?;
                by_build.insert((entry, variant), kernel);
            }
        }
        let alone = |&entry: &Entry| {
            let mut builds = by_build.iter().filter(|((of, _), _)| *of == entry);
            builds.next().filter(|_| builds.next().is_none()).map(|(_, kernel)| kernel.clone())
        };
        let alone = Entry::ALL.iter().map(alone).collect();
        Ok(Self { by_build, alone })
    }

    /// An entry of which the model has one build.
    ///
    /// # Errors
    /// `Unsupported` if it has none, or several: our own mistake.
    pub(crate) fn only(&self, entry: Entry) -> Result<&Kernel, CudaError> {
        let kernel = self.alone.get(entry as usize).and_then(Option::as_ref);
        kernel.ok_or_else(|| CudaError::Unsupported(format!("kernel {entry:?} has no one build")))
    }

    /// An entry in this build.
    ///
    /// # Errors
    /// `Unsupported` if the model has no such build.
    pub(crate) fn build(&self, entry: Entry, variant: Variant) -> Result<&Kernel, CudaError> {
        let kernel = self.by_build.get(&(entry, variant));
        kernel.ok_or_else(|| {
            CudaError::Unsupported(format!("kernel {entry:?} was not built as {variant:?}"))
        })
    }

    /// All builds of an entry.
    pub(crate) fn builds(&self, entry: Entry) -> impl Iterator<Item = (Variant, &Kernel)> {
        let of_entry = self.by_build.iter().filter(move |((of, _), _)| *of == entry);
        of_entry.map(|((_, variant), kernel)| (*variant, kernel))
    }
}
