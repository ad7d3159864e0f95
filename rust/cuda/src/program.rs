//! One build of a kernel file, and the input of NVRTC for it. At load only.

use crate::builds::Wanted;
use crate::compile::Unit;
use crate::contract::Dims;
use crate::dtypes::Dtypes;
use crate::limits::DeviceLimits;
use crate::registry::Source;
use crate::variant::Variant;

/// What the builds of a model share.
#[derive(Clone, Debug)]
pub(crate) struct KernelSettings {
    pub(crate) dims: Dims,
    pub(crate) dtypes: Dtypes,
}

/// A file in one of its builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program {
    pub(crate) source: Source,
    pub(crate) variant: Variant,
}

impl Program {
    /// Every program that the model needs on a card, once.
    pub(crate) fn of(wanted: &Wanted<'_>) -> Vec<Self> {
        Self::collect(|source| (source.builds().of_model)(wanted))
    }

    /// Every program that any model can need on a card, once.
    pub(crate) fn of_any_model(limits: &DeviceLimits, dtypes: Dtypes) -> Vec<Self> {
        Self::collect(|source| (source.builds().of_any_model)(limits, dtypes))
    }

    fn collect(variants: impl Fn(Source) -> Vec<Variant>) -> Vec<Self> {
        let programs = |&source: &Source| {
            variants(source).into_iter().map(move |variant| Self { source, variant })
        };
        let mut programs: Vec<_> = Source::ALL.iter().flat_map(programs).collect();
        programs.sort_unstable();
        programs.dedup();
        programs
    }

    /// The name, without suffix, of its run-time build among the prebuilt kernels.
    pub(crate) fn runtime_name(self, settings: &KernelSettings) -> String {
        let stem = self.source.file().trim_end_matches(".cu");
        format!("{stem}-{}{}", settings.dtypes.act().name(), self.variant.suffix())
    }

    /// What NVRTC gets for a build with these very dimensions.
    pub(crate) fn unit(self, settings: &KernelSettings) -> Unit {
        let mut unit = self.runtime_unit(settings);
        unit.options.extend(self.variant.dims(settings.dims).macros());
        unit
    }

    /// What NVRTC gets for a build that reads its dimensions at run time.
    pub(crate) fn runtime_unit(self, settings: &KernelSettings) -> Unit {
        let mut options = self.variant.macros();
        options.extend(settings.dtypes.macros());
        Unit { name: self.source.file(), source: self.source.text(), options }
    }
}
