//! Planning an operation: what one rank decides, what all have to agree on, and the memory that they share.
//!
//! Invariant: what is wrong with a call is found on every rank before anything is made, and leaves the group
//! as it was; what goes wrong after that is sent to all ranks, which would wait. In every operation ranks come
//! to `agree` by the same exchanges, those of [`obstacle`](crate::cuda::exchange::reach::obstacle): so ranks that plan
//! different operations learn of it there.

use std::sync::Arc;

use cudarc::driver::result;

use super::Gatherer;
use crate::cuda::exchange::chunk_table::check_count;
use crate::cuda::exchange::concurrent::Concurrent;
use crate::cuda::exchange::given_up::GivenUp;
use crate::cuda::exchange::layout::Layout;
use crate::cuda::exchange::reach::{agree, comparable};
use crate::cuda::exchange::signals::Signals;
use crate::cuda::exchange::step_order::StepOrder;
use crate::cuda::exchange::step_shape::{Part, StepShape};
use crate::cuda::exchange::symmetric::SymmetricMemory;
use crate::cuda::movers::by_nccl::ByNccl;
use crate::cuda::movers::copy_engines::CopyEngines;
use crate::cuda::movers::course::Course;
use crate::cuda::movers::nccl::{Communicator, Nccl};
use crate::cuda::movers::options::CollectiveOptions;
use crate::cuda::sys::Driver;
use crate::cuda::sys::device::Device;
use crate::cuda::sys::host_words::HostWords;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::plan::{Engine, Operation, Partials, Plan, PlanOptions, Problem, Scaling, Tiling, Way};
use crate::sync::lock;

/// What is planned.
pub(crate) struct Purpose<'a> {
    /// In words, the same on all ranks.
    pub(crate) kind: &'a str,
    /// How the rows will be read.
    pub(crate) tiling: Tiling,
    pub(crate) operation: Operation,
    /// How it is carried out.
    pub(crate) way: Way,
    /// What a reduction sends: the columns of all products together, and their type.
    pub(crate) sums: Option<(u32, Partials)>,
}

impl Gatherer {
    /// Joins the operation: all ranks call it with the same.
    pub(crate) fn join(
        group: &Arc<Group>,
        device: &Device,
        problem: &Problem,
        purpose: &Purpose<'_>,
        options: &CollectiveOptions,
    ) -> Result<Self> {
        let limit = options.timeouts.first;
        if let Some(workspace) = &options.workspace {
            let fits = workspace.check_plan(group, device);
            fits.map_err(|error| Self::refuse(group, options, error))?;
        }
        let planned = settle(group, problem, purpose, options)?;
        let layout = match purpose.sums {
            Some(sums) => Layout::of_sums(&planned.plan, sums)?,
            None => Layout::new(&planned.plan, options.replicated_row_scales)?,
        };
        let tell = |error: &Error| {
            group.abort(&format!("rank {} cannot plan an operation: {error}", group.rank()));
        };
        let bytes = layout.bytes;
        let apart = |layout, memory| Part { layout, memory: Arc::new(memory), place: None };
        let part = match (&options.workspace, &planned.nccl) {
            (Some(workspace), _) => {
                let (layout, memory, place) = workspace.place(layout)?;
                Part { layout, memory, place: Some(place) }
            }
            (None, Some(_)) => {
                let alone = SymmetricMemory::alone(group, device, bytes).inspect_err(tell)?;
                apart(layout, alone)
            }
            // Tells by itself, where that is the way.
            (None, None) => apart(layout, SymmetricMemory::new(group, device, bytes, limit)?),
        };
        let made = Self::make(group, device, planned, options, part);
        let gatherer = made.inspect_err(tell)?;
        // Nobody may write here before the words are there.
        group.barrier("an operation is planned", limit)?;
        gatherer
            .copies
            .try_the_way(&gatherer.part, group.rank(), group.ranks())
            .inspect_err(tell)?;
        group.barrier("an operation can begin", limit)?;
        Ok(gatherer)
    }

    /// Instead of joining: tells the others, who would wait, that this rank has no plan, and why; returns that.
    pub(crate) fn refuse(group: &Group, options: &CollectiveOptions, error: Error) -> Error {
        // Whether they hear it or not, this is what is wrong here.
        let _ = agree(group, Err(&error), options.timeouts.first);
        error
    }

    fn make(
        group: &Arc<Group>,
        device: &Device,
        planned: Planned,
        options: &CollectiveOptions,
        part: Part,
    ) -> Result<Self> {
        device.bind()?;
        let Part { layout, memory, place } = &part;
        let starts = match planned.nccl {
            Some(_) => Vec::new(),
            None => {
                let starts = (0..group.ranks()).map(|peer| part.start_of(peer));
                starts.collect::<Result<Vec<_>>>()?
            }
        };
        let (start, words) = (part.start(), layout.first_words(options.first_epoch, &starts));
        // Rows of other operations may be in use.
        let bytes = if place.is_some() { layout.words_bytes() } else { layout.bytes };
        // SAFETY: this rank's part is so long, and nobody uses these bytes before the barrier.
        unsafe {
            result::memset_d8_sync(start, 0xff, bytes as usize)
                .and_then(|()| result::memcpy_htod_sync(start, &words))
        }
        .in_call("cuMemcpyHtoD")?;
        // Neither call promises that the memory has been written when it returns.
        device.context().synchronize().in_call("cuCtxSynchronize")?;
        let (host, file) = HostWords::with_file(device)?;
        let signals = Signals::shared(
            device,
            memory,
            host,
            [start, part.stop()],
            layout.slots(),
            options.first_epoch,
        )?;
        group.tell(&signals.host, HostWords::hear);
        let given_up = match planned.nccl {
            // Its ranks send nothing by themselves, and may be on several machines.
            Some(_) => GivenUp::default(),
            None => GivenUp::exchange(group, &file, options.timeouts.first)?,
        };

        let Planned { plan, nccl } = planned;
        let join = |nccl| Communicator::join(nccl, group, device, options.timeouts.first);
        let nccl = nccl.as_ref().map(join).transpose()?;
        let streams = match plan.options().engine {
            Engine::CopyEngines { streams } => streams,
            // One, to try the way.
            Engine::Kernel { .. } => 1,
            Engine::Nccl | Engine::Thread => 0,
        };
        let streams = match &options.workspace {
            Some(workspace) => workspace.copy_streams(streams)?,
            None => (0..streams).map(|_| device.new_stream()).collect::<Result<_>>()?,
        };
        let copies = CopyEngines::new(device, streams)?;
        let concurrent = Concurrent::of(group, device)?;
        lock(&concurrent).join(group, &signals.failures);
        let course = Course::new(StepOrder::new(device)?, options.first_epoch);
        let first = StepShape::new(plan.schedule(group.rank()), &plan, layout)?;
        Ok(Gatherer {
            signals,
            given_up,
            group: Arc::clone(group),
            device: device.clone(),
            plan: Arc::new(plan),
            options: options.clone(),
            nccl: nccl.map(ByNccl::new),
            part,
            copies,
            shapes: vec![Arc::new(first)],
            course,
            failed: None,
            marks: None,
            concurrent,
            waiting_sms: 0,
        })
    }
}

/// What one rank has found out by itself.
struct Planned {
    plan: Plan,
    nccl: Option<Arc<Nccl>>,
}

/// What this rank plans, once all ranks have agreed to it.
fn settle(
    group: &Group,
    problem: &Problem,
    purpose: &Purpose<'_>,
    options: &CollectiveOptions,
) -> Result<Planned> {
    let planned = plan(group, problem, purpose, options);
    let text = || format!("{} of {problem}, {problem:?}, {options:?}", purpose.kind);
    agree(group, planned.as_ref().map(|_| comparable(text())), options.timeouts.first)?;
    planned
}

/// What can be planned without asking the others.
fn plan(
    group: &Group,
    problem: &Problem,
    purpose: &Purpose<'_>,
    options: &CollectiveOptions,
) -> Result<Planned> {
    if problem.ranks() != group.ranks() {
        let remedy = "plan for as many ranks as the group has";
        let (got, expected) = (problem.ranks(), group.ranks());
        return Err(Error::mismatch("the number of ranks in the plan", got, expected, remedy));
    }
    problem.check_tma()?;
    let gathers_scales =
        purpose.operation == Operation::AllGatherGemm && problem.scaling() == Scaling::Rows;
    if options.replicated_row_scales && !gathers_scales {
        return Err(Error::Unsupported {
            what: format!("replicated row scales of {}", purpose.operation),
            why: "it gathers no row scales".into(),
            remedy: "ask for them in an all-gather + GEMM with Scaling::Rows",
        });
    }
    let Way { strategy, engine, pieces } = purpose.way;
    let (operation, tiling, pieces) = (purpose.operation, purpose.tiling, Some(pieces));
    let plan = Plan::new(problem, PlanOptions { operation, strategy, engine, pieces, tiling })?;
    let plan = match purpose.sums {
        Some((columns, _)) if columns != problem.n() => plan.of_several_products(),
        _ => plan,
    };
    if engine == Engine::Nccl && options.workspace.is_some() {
        return Err(Error::Unsupported {
            what: "NCCL in a shared workspace".into(),
            why: "it works in memory that no other rank reaches".into(),
            remedy: "plan without the workspace, or with another engine",
        });
    }
    let nccl = if engine == Engine::Nccl { Some(Nccl::load(None)?) } else { None };
    check_count(plan.chunks())?;
    Ok(Planned { plan, nccl })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cuda::exchange::reach::{OUT_OF_REACH, REACHED, obstacle_by};
    use crate::cuda::movers::engines::choose;
    use crate::plan::Strategy;

    const LIMIT: Duration = Duration::from_secs(60);

    /// What one rank of two plans, as [`Gatherer::join`] does, and whether its GPU reaches the other's.
    struct Asks {
        kind: &'static str,
        m: u64,
        refused: Option<Error>,
        reaches: u8,
    }

    impl Default for Asks {
        fn default() -> Self {
            Asks { kind: "all-gather", m: 64, refused: None, reaches: REACHED }
        }
    }

    /// What becomes of it on each rank. The group lives on: else this panics.
    fn settled(asks: [Asks; 2]) -> [Result<Engine>; 2] {
        let ask = |group: &Group, asks: &Asks| {
            let reach = |bus: &[u8]| if bus == b"0" { REACHED } else { asks.reaches };
            let obstacle = obstacle_by(group, &group.rank().to_string(), reach, LIMIT)?;
            let options = CollectiveOptions::default().with_strategy(Strategy::Fused);
            let problem = Problem::builder(asks.m, 16, 64).ranks(2).build();
            let refuse = |error| Gatherer::refuse(group, &options, error);
            let problem = problem.map_err(refuse)?;
            asks.refused.clone().map_or(Ok(()), Err).map_err(refuse)?;
            let (way, _) = choose(&options, &problem, obstacle.as_deref()).map_err(refuse)?;
            let (kind, tiling) = (asks.kind, PlanOptions::default().tiling);
            let operation = Operation::AllGatherGemm;
            let purpose = Purpose { kind, tiling, operation, way, sums: None };
            let settled = settle(group, &problem, &purpose, &options);
            settled.map(|planned| planned.plan.options().engine)
        };
        let groups = <[Group; 2]>::try_from(Group::local(2).unwrap()).unwrap();
        std::thread::scope(|scope| {
            let mut groups = groups.into_iter();
            asks.map(|asks| {
                let group = groups.next().unwrap();
                scope.spawn(move || {
                    let settled = ask(&group, &asks);
                    group.barrier("what comes next", LIMIT).unwrap();
                    settled
                })
            })
            .map(|rank| rank.join().unwrap())
        })
    }

    #[test]
    fn ranks_that_plan_the_same_agree() {
        let engines = settled([Asks::default(), Asks::default()]).map(Result::unwrap);
        assert_eq!(engines, [Engine::Kernel { blocks: 8 }; 2]);
    }

    #[test]
    fn ranks_that_plan_different_operations_hear_of_it() {
        let product = Asks { kind: "all-gather + GEMM", ..Asks::default() };
        let taller = Asks { m: 128, ..Asks::default() };
        for other in [product, taller] {
            let words = format!("{} of {}", other.kind, other.m);
            for error in settled([Asks::default(), other]).map(Result::unwrap_err) {
                assert!(matches!(error, Error::Mismatch { .. }), "{words}: {error}");
                assert!(error.to_string().contains("rank 1"), "{words}: {error}");
            }
        }
    }

    #[test]
    fn a_rank_that_is_refused_says_why_and_the_other_hears_it() {
        let why = Error::out_of_range("the number of stages", 9, 1, 4, "ask for fewer");
        let refused = Asks { refused: Some(why.clone()), ..Asks::default() };
        let [other, own] = settled([Asks::default(), refused]).map(Result::unwrap_err);
        assert_eq!(own.to_string(), why.to_string());
        assert!(matches!(other, Error::Aborted { rank: 0, .. }), "{other}");
        assert!(other.to_string().contains("the number of stages is 9"), "{other}");
    }

    #[test]
    fn a_rank_that_has_no_problem_to_plan_keeps_nobody_waiting() {
        let too_many = Asks { m: 1 << 40, ..Asks::default() };
        let [own, other] = settled([too_many, Asks::default()]).map(Result::unwrap_err);
        assert!(matches!(own, Error::OutOfRange { .. }), "{own}");
        assert!(matches!(other, Error::Aborted { rank: 1, .. }), "{other}");
        assert!(other.to_string().contains(&own.to_string()), "{other}");
    }

    #[test]
    fn what_no_group_can_plan_is_refused() {
        let refused = |ranks: u64, options: &CollectiveOptions, operation| {
            let group = Group::local(1).unwrap().remove(0);
            let problem = Problem::builder(64, 16, 64).ranks(ranks).build().unwrap();
            let (way, _) = choose(options, &problem, None).unwrap();
            let (kind, tiling) = ("any", PlanOptions::default().tiling);
            let purpose = Purpose { kind, tiling, operation, way, sums: None };
            plan(&group, &problem, &purpose, options).map(drop).unwrap_err().to_string()
        };
        let options = CollectiveOptions::default();
        let text = refused(2, &options, Operation::AllGatherGemm);
        assert!(text.starts_with("the number of ranks in the plan is 2, but must be 1"), "{text}");
        let options = options.with_replicated_row_scales(true);
        let text = refused(1, &options, Operation::GemmReduceScatter);
        assert!(text.starts_with("replicated row scales of GEMM + reduce-scatter"), "{text}");
    }

    #[test]
    fn what_one_rank_does_not_reach_is_refused_on_all() {
        let apart = Asks { reaches: OUT_OF_REACH, ..Asks::default() };
        for error in settled([apart, Asks::default()]).map(Result::unwrap_err) {
            let why = "the GPU of rank 0 does not reach that of rank 1";
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
