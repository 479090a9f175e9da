//! What one of several ranks brings to a step.
//!
//! Invariant: row scales are there exactly if they are needed.

use cudarc::driver::sys::CUdeviceptr;

use super::raw_operands::check_there;
use crate::error::Result;

/// What one rank brings to a step: its rows of A; in a [reduction](crate::cuda::GemmReduce), all rows of A
/// over its slice of K.
///
/// ```no_run
/// use overlap_gemm::cuda::Shard;
///
/// // This rank's rows are at an address; in this step the ranks have 100 and 28 rows.
/// # let address = 4096;
/// let shard = Shard::at(address).rows(&[100, 28]);
/// # let _ = shard;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Shard<'a> {
    pub(crate) rows: Option<&'a [u32]>,
    pub(crate) at: Option<CUdeviceptr>,
    pub(crate) scales: CUdeviceptr,
}

impl<'a> Shard<'a> {
    /// The rows are in their slot: [`AllGatherGemm::local_shard`](crate::cuda::AllGatherGemm::local_shard).
    pub fn in_place() -> Self {
        Shard::default()
    }

    /// The rows are at `address`, as far apart as the problem's `lda` says, and are copied from there.
    pub fn at(address: CUdeviceptr) -> Self {
        Shard { at: Some(address), ..Shard::default() }
    }

    /// `rows[r]` is the number of rows of rank r in this step, the same on all ranks (default: as planned).
    #[must_use]
    pub fn rows(mut self, rows: &'a [u32]) -> Self {
        self.rows = Some(rows);
        self
    }

    /// The scales of these rows, for [`Scaling::Rows`](crate::plan::Scaling::Rows): one f32 each; of all rows, where each rank has
    /// them ([`CollectiveOptions::replicated_row_scales`](crate::cuda::CollectiveOptions::replicated_row_scales)).
    #[must_use]
    pub fn scales(mut self, address: CUdeviceptr) -> Self {
        self.scales = address;
        self
    }

    /// An error unless row scales are there exactly if they are needed.
    pub(crate) fn check_scales(&self, needed: bool) -> Result<()> {
        let remedy = "give scales of the rank's rows, or of all if they are replicated, exactly if the problem scales by rows";
        check_there("the scales of the shard", needed, self.scales, remedy)
    }
}
