//! What a rank may choose when it joins a group.
//!
//! What belongs here: the options and their defaults. Invariant: what has to be the same on all ranks is rank 0's value.

use std::time::Duration;

use super::identity::{Member, Rules};
use super::launch::FIRST_LIMIT;

/// The options of a rank that joins a group.
///
/// ```
/// use std::time::Duration;
/// use overlap_gemm::group::GroupOptions;
///
/// let options = GroupOptions::default().limit(Duration::from_secs(10)).several_hosts(true);
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct GroupOptions {
    pub(super) limit: Duration,
    pub(super) device: String,
    pub(super) rules: Rules,
}

impl Default for GroupOptions {
    /// A minute for all to join; no GPU; one machine, and no GPU shared by ranks.
    fn default() -> Self {
        GroupOptions { limit: FIRST_LIMIT, device: String::new(), rules: Rules::default() }
    }
}

impl GroupOptions {
    /// The time limit for all ranks to join.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The PCI bus id of this rank's GPU.
    pub fn device(mut self, bus_id: &str) -> Self {
        bus_id.clone_into(&mut self.device);
        self
    }

    /// Allows several ranks on one GPU, as [`Group::local`](super::Group::local) does. Rank 0's value counts. Without it, ranks
    /// that name one GPU ([`GroupOptions::device`]) cannot join, and ranks that have one without naming it cannot plan operations
    /// on it.
    pub fn shared_devices(mut self, allowed: bool) -> Self {
        self.rules.shared_devices = allowed;
        self
    }

    /// Allows ranks on several machines. Rank 0's value counts.
    pub fn several_hosts(mut self, allowed: bool) -> Self {
        self.rules.several_hosts = allowed;
        self
    }

    pub(super) fn member(&self, rank: u32) -> Member {
        Member { device: self.device.clone(), ..Member::this_process(rank) }
    }
}
