//! Timelines of the same step beside each other: what was measured, and what was predicted, say.
//!
//! What belongs here: which timelines, what they are called, and where each one's time begins; `svg` and `chrome` draw
//! them. Invariant: all share one time axis, on which every timeline's zero is the same place.

use std::time::Duration;

use super::Timeline;

/// Timelines with names, to be drawn rank by rank on one time axis.
///
/// ```
/// use overlap_gemm::plan::{Problem, Strategy};
/// use overlap_gemm::predict::{Machine, Setup, timeline};
/// use overlap_gemm::trace::SideBySide;
/// use std::time::Duration;
///
/// let problem = Problem::builder(4096, 3584, 8192).ranks(2).build()?;
/// let step = |machine: Machine| {
///     let setup = Setup::usual(&machine, &problem, Strategy::Fused)?;
///     timeline(&machine, &setup.plan(&problem)?, &setup, 0..2)
/// };
/// let (whole, half) = (step(Machine::h200())?, step(Machine::h200().with_link(190.0))?);
/// let both = SideBySide::default()
///     .with_zero("the whole link", &whole, Duration::ZERO)
///     .with_zero("half of it", &half, Duration::ZERO);
/// let picture = both.to_svg("what the link is for");
/// assert!(picture.contains(">rank 1: half of it<"));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SideBySide<'a> {
    pub(super) all: Vec<Named<'a>>,
    pub(super) note: Option<&'a str>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a> {
    /// Nothing, if it is alone.
    pub(super) name: &'a str,
    pub(super) timeline: &'a Timeline,
    /// The instant of its clock that all have in common.
    pub(super) zero: Duration,
}

impl<'a> SideBySide<'a> {
    /// One timeline that needs no name.
    pub(super) fn alone(timeline: &'a Timeline) -> Self {
        SideBySide::default().with("", timeline)
    }

    /// With another one, whose time begins with its first event.
    #[must_use]
    pub fn with(self, name: &'a str, timeline: &'a Timeline) -> Self {
        self.with_zero(name, timeline, timeline.begin())
    }

    /// With another one, whose time begins at `zero` of its own clock; what was before is not drawn.
    #[must_use]
    pub fn with_zero(mut self, name: &'a str, timeline: &'a Timeline, zero: Duration) -> Self {
        self.all.push(Named { name, timeline, zero });
        self
    }

    /// With a line of words below the legend of a picture: what the zeros are, say.
    #[must_use]
    pub fn noting(self, note: &'a str) -> Self {
        SideBySide { note: Some(note), ..self }
    }

    /// From the common zero to the last event of any.
    pub(super) fn span(&self) -> Duration {
        self.all.iter().map(|one| one.since_zero(one.timeline.end())).max().unwrap_or_default()
    }
}

impl Named<'_> {
    /// A time of its clock on the common one.
    pub(super) fn since_zero(&self, time: Duration) -> Duration {
        time.saturating_sub(self.zero)
    }

    /// What a rank is called in it.
    pub(super) fn rank(&self, rank: u32) -> String {
        match self.name {
            "" => format!("rank {rank}"),
            name => format!("rank {rank}: {name}"),
        }
    }
}
