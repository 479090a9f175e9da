//! What loops of all contenders, the bench's and `tune`'s, have in common.

use std::time::Duration;

/// Steps in one graph: even, for both buffers, and a multiple of the sets.
pub const GRAPH_STEPS: usize = 20;
/// Sets of matrices that take turns.
pub const SETS: usize = 4;
/// How long ranks wait for each other between loops.
pub const LIMIT: Duration = Duration::from_secs(120);
