//! What may be asked of a gather, or of a reduction.
//!
//! Invariant: values that do nothing; the rules that decide what is left open are `engines`'s and [`plan`](crate::plan)'s.

use std::time::Duration;

use crate::cuda::exchange::shared_workspace::SharedWorkspace;
use crate::plan::{Engine, Strategy, Timeouts};

/// Options of a gather or a reduction, with or without a product: how rows, or sums, travel. All ranks have to ask for the same.
///
/// ```
/// use overlap_gemm::cuda::CollectiveOptions;
/// use overlap_gemm::plan::Engine;
/// let options = CollectiveOptions::default().with_engine(Engine::CopyEngines { streams: 2 });
/// assert_eq!(options.pieces, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectiveOptions {
    /// The order of moving and multiplying (default: what was measured, or is predicted, to be the fastest; the operation's
    /// `explain` says which). Operations without a product refuse any but sequential.
    pub strategy: Option<Strategy>,
    /// What moves the rows, or sums (default: the operation chooses, and says why in its `explain`; NCCL if some GPU cannot
    /// reach another's memory).
    pub engine: Option<Engine>,
    /// Chunks of a shard (default: chosen with the engine).
    pub pieces: Option<u32>,
    /// Whether a step overwrites with NaN the received rows or sums of the step before, and the own sums that peers read until it
    /// has computed them (default: no). A read too early or too late then shows as NaN in the result. It is for finding faults, and
    /// costs up to two memsets a step.
    pub poison: bool,
    /// The timeout of each wait for another rank: `first` (default: 60 s) in planning and the first step, `steady` (default: 10 s)
    /// in later steps and in graphs.
    pub timeouts: Timeouts,
    /// The epoch before the first.
    #[doc(hidden)]
    pub first_epoch: u32,
    /// Whether each rank has the row scales of all rows of A, so that none are gathered (default: of its own rows). For an all-gather +
    /// GEMM with [`Scaling::Rows`](crate::plan::Scaling::Rows); a step then takes the scales of all rows.
    pub replicated_row_scales: bool,
    /// Memory that other operations use, too (default: the operation has memory of its own).
    pub workspace: Option<SharedWorkspace>,
}

impl CollectiveOptions {
    /// The order of moving and multiplying.
    #[must_use]
    pub fn with_strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = Some(strategy);
        self
    }

    /// What moves the rows.
    #[must_use]
    pub fn with_engine(mut self, engine: Engine) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Chunks per shard.
    #[must_use]
    pub fn with_pieces(mut self, pieces: u32) -> Self {
        self.pieces = Some(pieces);
        self
    }

    /// Whether each step overwrites with NaN what the step before has received: [`CollectiveOptions::poison`].
    #[must_use]
    pub fn with_poison(mut self, poison: bool) -> Self {
        self.poison = poison;
        self
    }

    /// The timeouts: in planning and the first step, and in later steps.
    #[must_use]
    pub fn with_timeouts(mut self, first: Duration, steady: Duration) -> Self {
        self.timeouts = Timeouts::new(first, steady);
        self
    }

    /// Whether each rank has the row scales of all rows of A.
    #[must_use]
    pub fn with_replicated_row_scales(mut self, replicated: bool) -> Self {
        self.replicated_row_scales = replicated;
        self
    }

    /// In memory that other operations use, too.
    #[must_use]
    pub fn with_workspace(mut self, workspace: &SharedWorkspace) -> Self {
        self.workspace = Some(workspace.clone());
        self
    }

    /// Begins as if `epoch` had been the last step's: for tests of the wrap.
    #[doc(hidden)]
    #[must_use]
    pub fn with_first_epoch(mut self, epoch: u32) -> Self {
        self.first_epoch = epoch;
        self
    }
}
