//! The operations on threads, from the outside.

#[path = "common/threads.rs"]
mod threads;
#[path = "common/totals.rs"]
mod totals;

#[path = "host/batches.rs"]
mod batches;
#[path = "host/columns.rs"]
mod columns;
#[path = "host/executor.rs"]
mod executor;
#[path = "host/faults.rs"]
mod faults;
#[path = "host/leaving.rs"]
mod leaving;
#[path = "host/reduce_alone.rs"]
mod reduce_alone;
#[path = "host/reduction_faults.rs"]
mod reduction_faults;
#[path = "host/reductions.rs"]
mod reductions;
#[path = "host/slice_lengths.rs"]
mod slice_lengths;

use std::time::Duration;

use overlap_gemm::host::GroupOptions;
use overlap_gemm::plan::Timeouts;

/// A group whose waits have that limit.
fn patient(limit: Duration) -> GroupOptions {
    GroupOptions { timeouts: Timeouts::new(limit, limit), ..GroupOptions::default() }
}
