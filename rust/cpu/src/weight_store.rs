//! Where executors get weights from: at load, and whenever they wake up. Executors on one store share one copy,
//! which is gone when all of them sleep. Driver threads; blocking while another one reads.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ingle_model::{CopyPlan, ModelSpec, RankModel, WeightSource};

use crate::pool::Pool;
use crate::weights::{self, Weights};
use crate::{CpuConfig, CpuError};

/// A checkpoint's weights, in memory or in its open files.
pub(crate) struct WeightStore {
    spec: ModelSpec,
    /// The model as a rank computes it.
    of_rank: ModelSpec,
    /// Whether they are read more than once.
    keeps_files: bool,
    state: Mutex<State>,
}

struct State {
    /// `None` after the one read, where there is only one.
    files: Option<(Vec<RankModel>, Arc<dyn WeightSource>)>,
    loaded: Weak<Weights>,
}

impl WeightStore {
    /// With `config.can_sleep`, the weights can be read again when all executors have given them back.
    ///
    /// # Errors
    /// `CpuError` if the model cannot be divided as `config` says.
    pub(crate) fn new(
        spec: &ModelSpec,
        plan: &CopyPlan,
        source: &Arc<dyn WeightSource>,
        config: &CpuConfig,
    ) -> Result<Self, CpuError> {
        let partition = config.partition(spec)?;
        let ranks = (0..partition.ranks()).map(|rank| partition.rank_model(rank, plan));
        let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
        let of_rank = ranks[0].spec.clone();
        let state = State { files: Some((ranks, Arc::clone(source))), loaded: Weak::new() };
        let (spec, state) = (spec.clone(), Mutex::new(state));
        Ok(Self { spec, of_rank, keeps_files: config.can_sleep, state })
    }

    pub(crate) fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    pub(crate) fn of_rank(&self) -> &ModelSpec {
        &self.of_rank
    }

    /// Whether weights that all executors have given back can be read again.
    pub(crate) fn keeps_files(&self) -> bool {
        self.keeps_files
    }

    /// The copy in memory, else reads one with the pool's threads.
    ///
    /// # Errors
    /// `CpuError` for a tensor that does not fit the spec, or failed reads.
    ///
    /// # Panics
    /// If they were read, given back by all, and the files were not kept.
    pub(crate) fn take(&self, pool: &mut Pool) -> Result<Arc<Weights>, CpuError> {
        // A panic of a reader leaves the files and the last copy, or none.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(weights) = state.loaded.upgrade() {
            return Ok(weights);
        }
        let (ranks, source) = state.files.as_ref().expect("files of weights that are read again");
        let weights = Arc::new(weights::load(ranks, &**source, pool)?);
        state.loaded = Arc::downgrade(&weights);
        if !self.keeps_files {
            state.files = None;
        }
        Ok(weights)
    }
}

impl fmt::Debug for WeightStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeightStore").field("spec", &self.spec).finish_non_exhaustive()
    }
}
