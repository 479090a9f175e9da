//! Several timelines of one step, for example the measured one and the predicted one.
//!
//! What belongs here: the timelines, their names and their zeros; `svg` draws them. Invariant: all share one
//! time axis, and all zeros are at the same place on it.

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
/// let picture = both.to_svg("two links");
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
    /// Empty for a single timeline.
    pub(super) name: &'a str,
    pub(super) timeline: &'a Timeline,
    /// The instant of its clock that is the common zero.
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

    /// With another one, whose time begins at `zero` of its clock; earlier times are not drawn.
    #[must_use]
    pub fn with_zero(mut self, name: &'a str, timeline: &'a Timeline, zero: Duration) -> Self {
        self.all.push(Named { name, timeline, zero });
        self
    }

    /// With a line of text below the legend of a picture, for example about the zeros.
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

    /// The name of a rank in it.
    pub(super) fn rank(&self, rank: u32) -> String {
        match self.name {
            "" => format!("rank {rank}"),
            name => format!("rank {rank}: {name}"),
        }
    }
}
