//! Contenders of another program, which take turns with all others: each rank starts it, and talks to it by lines
//! of JSON (`benches/peers/torch_peer.py` says what they are).
//!
//! What belongs here: what all ranks decide together; a rank's own process is in `process.rs`. Invariants: what is
//! known of contenders is the same on all ranks, for it comes from exchanges alone; a rank waits for its process
//! less long than the others wait for the rank; if the process fails on one rank, it is ended on all.
//!
//! A contender that hangs, or whose process ends, is left out of the rest of the run, and shown with that reason in
//! every case; the program is started again for the others, up to [`RESTARTS`] times a run.

use std::collections::BTreeMap;
use std::mem;
use std::net::TcpListener;
use std::time::Duration;

use overlap_gemm::group::{Group, Launch};
use overlap_gemm::plan::{Operation, Problem, Scaling};
use overlap_gemm::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::exchange::all_values_within;
use super::loops::LIMIT;
use super::process::{Process, Vain};

/// How often the program is started again in a run.
const RESTARTS: u32 = 3;

/// How much longer than expected a loop may take, beside the limit of any loop.
const SLACK: f64 = 20.0;

/// How long the program may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// To say that it is ready: loading a framework takes its time.
    pub start: Duration,
    /// To make the matrices of a case, and to try one contender.
    pub prepare: Duration,
    /// For a short loop.
    pub round: Duration,
    /// To end after it was killed: a driver takes GPUs away from it first.
    pub end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let [start, prepare, round, end] = [300, 60, 60, 30].map(Duration::from_secs);
        Limits { start, prepare, round, end }
    }
}

/// The program, as one rank has it.
pub struct Peer {
    command: String,
    place: Launch,
    limits: Limits,
    process: Option<Process>,
    /// How often it was started.
    starts: u32,
    /// Whether the process has said that it is.
    ready: bool,
    case: Case,
    contenders: Vec<Contender>,
    /// Whether the process can run the contenders of the case, or why not; of none if that is not known yet.
    prepared: Option<Result<(), String>>,
    /// Contenders that failed, and how.
    left_out: BTreeMap<String, String>,
    /// Why the program is not started again.
    gone: Option<String>,
}

/// What is known of one contender in a case, on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub name: String,
    /// `gemm`: a product alone; else the operation.
    pub kind: String,
    /// Whether it can be launched by graphs.
    pub graph: bool,
    pub failed: Option<String>,
}

/// A contender as the program names it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct Named {
    name: String,
    kind: String,
}

/// What came of trying a contender.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct Tried {
    graph: bool,
    failed: Option<String>,
}

/// What is to be prepared.
#[derive(Default)]
struct Case {
    name: String,
    order: Value,
}

struct Contender {
    named: Named,
    /// By the first process that did it in this case.
    tried: Option<Tried>,
}

impl Peer {
    /// Starts the program on all ranks, which all call it.
    pub fn start(command: &str, place: &Launch, group: &Group, limits: Limits) -> Result<Peer> {
        let mut peer = Peer {
            command: command.into(),
            place: place.clone(),
            limits,
            process: None,
            starts: 0,
            ready: false,
            case: Case::default(),
            contenders: Vec::new(),
            prepared: None,
            left_out: BTreeMap::new(),
            gone: None,
        };
        peer.launch(group)?;
        Ok(peer)
    }

    /// All contenders of a case, with those that cannot take part; all ranks call it. Graphs will have
    /// `graph_steps` steps.
    pub fn prepare(
        &mut self,
        group: &Group,
        operation: Operation,
        problem: &Problem,
        graph_steps: usize,
    ) -> Result<Vec<Told>> {
        let scaling = match problem.scaling() {
            Scaling::Rows => "rows",
            Scaling::Tensor => "tensor",
            _ => "none",
        };
        let (m, n, k) = (problem.m(), problem.n(), problem.k());
        let kind = problem.elements().a.to_string();
        let order = json!({
            "do": "prepare", "operation": operation, "m": m, "n": n, "k": k, "type": kind, "scaling": scaling,
            "steps": graph_steps,
        });
        self.case = Case { name: format!("{m}x{n}x{k} {kind}"), order };
        self.prepared = None;
        let before = mem::take(&mut self.contenders);
        let why = self.be_prepared(group)?.err();
        if self.contenders.is_empty() {
            // Nobody said who they are: those of the case before, as far as that is known.
            self.contenders = before;
        }
        if let (true, Some(why)) = (self.contenders.is_empty(), &why) {
            let (name, kind) = ("peer".into(), operation.to_string());
            return Ok(vec![Told { name, kind, graph: true, failed: Some(why.clone()) }]);
        }
        let told = |Contender { named: Named { name, kind }, tried }: &Contender| {
            let out = self.left_out.get(name).or(why.as_ref()).cloned();
            let tried = tried.clone().unwrap_or(Tried { graph: true, failed: None });
            let graph = tried.graph || out.is_some();
            let (name, kind, failed) = (name.clone(), kind.clone(), out.or(tried.failed));
            Told { name, kind, graph, failed }
        };
        Ok(self.contenders.iter().map(told).collect())
    }

    /// Microseconds a step of the slowest rank, or why there are none from now on; all ranks call it. `expected` is
    /// what a step took before.
    pub fn run(
        &mut self,
        group: &Group,
        name: &str,
        graph: bool,
        steps: usize,
        expected: Option<f64>,
    ) -> Result<Result<f64, String>> {
        #[derive(Deserialize)]
        struct Answer {
            us: f64,
        }
        if let Some(why) = self.left_out.get(name) {
            return Ok(Err(why.clone()));
        }
        if let Err(why) = self.be_prepared(group)? {
            return Ok(Err(why));
        }
        // It may have failed in being prepared again.
        if let Some(why) = self.left_out.get(name) {
            return Ok(Err(why.clone()));
        }
        let order = json!({ "do": "run", "name": name, "graph": graph, "steps": steps });
        let more = SLACK * steps as f64 * expected.unwrap_or(0.0) * 1e-6;
        let limit = self.limits.round + Duration::try_from_secs_f64(more).unwrap_or_default();
        let own = self.ask(&order, limit).and_then(|Answer { us }| match us > 0.0 {
            true => Ok(us),
            false => Err(Vain::Garbled(format!("{us} µs"))),
        });
        let launched = if graph { "graph" } else { "plain" };
        let what = format!("a loop of '{name}' ({launched}) in {}", self.case.name);
        Ok(match self.agree(group, &what, own, limit)? {
            Ok(all) => Ok(all.into_iter().fold(0.0, f64::max)),
            Err(why) => Err(self.leave_out(name, &why)),
        })
    }

    /// Starts the process; all ranks call it.
    fn launch(&mut self, group: &Group) -> Result<()> {
        // Bound and left again: nobody else is given it in the meantime, as a rule.
        let free = || TcpListener::bind("0.0.0.0:0").and_then(|socket| socket.local_addr());
        let port = if group.rank() == 0 { free().map_or(0, |address| address.port()) } else { 0 };
        let port = all_values_within(group, "the port of a peer", &port, LIMIT)?[0];
        let variables = [
            ("RANK", group.rank().to_string()),
            ("WORLD_SIZE", group.ranks().to_string()),
            ("LOCAL_RANK", self.place.local_rank.to_string()),
            ("MASTER_ADDR", self.place.host.clone()),
            ("MASTER_PORT", port.to_string()),
        ];
        let process = Process::start(&self.command, &variables);
        let failed = |error| unfit(&self.command, format!("it does not start ({error})"));
        self.process = Some(process.map_err(failed)?);
        (self.starts, self.ready) = (self.starts + 1, false);
        Ok(())
    }

    /// Makes sure that the process runs and has prepared the case, or says why it cannot.
    fn be_prepared(&mut self, group: &Group) -> Result<Result<(), String>> {
        loop {
            if let Some(why) = &self.gone {
                return Ok(Err(why.clone()));
            }
            if let Some(prepared) = &self.prepared {
                return Ok(prepared.clone());
            }
            if self.process.is_none() {
                if self.starts > RESTARTS {
                    let why = format!("left out: the peer has failed {} times", self.starts);
                    self.gone = Some(why);
                    continue;
                }
                self.launch(group)?;
            }
            if !self.ready {
                self.be_ready(group)?;
            } else if self.name_contenders(group)? {
                self.try_contenders(group)?;
            }
        }
    }

    /// Waits until the process has started.
    fn be_ready(&mut self, group: &Group) -> Result<()> {
        #[derive(Deserialize)]
        struct Answer {
            ready: bool,
        }
        let limit = self.limits.start;
        let own = self.process.as_mut().map_or(Err(not_there()), |process| process.hear(limit));
        let own = own.and_then(|Answer { ready }| match ready {
            true => Ok(()),
            false => Err(Vain::Garbled("that it is not ready".into())),
        });
        match self.agree(group, "the start of the peer", own, limit)? {
            Ok(_) => self.ready = true,
            // Its command is wrong, or something is not installed: nothing has been measured yet.
            Err(why) if self.starts == 1 && !why.hung => {
                return Err(unfit(&self.command, why.text));
            }
            Err(why) => self.gone = Some(why.text),
        }
        Ok(())
    }

    /// Learns the names of the case's contenders. Whether there are any to try.
    fn name_contenders(&mut self, group: &Group) -> Result<bool> {
        #[derive(Deserialize)]
        struct Answer {
            contenders: Vec<Named>,
        }
        let (order, limit) = (self.case.order.clone(), self.limits.prepare);
        let own = self.ask(&order, limit).map(|Answer { contenders }| contenders);
        let why = match self.agree(group, &format!("preparing {}", self.case.name), own, limit)? {
            Ok(ranks) => match same_names(&ranks) {
                Ok(names) if self.contenders.is_empty() => {
                    let contender = |named| Contender { named, tried: None };
                    self.contenders = names.into_iter().map(contender).collect();
                    return Ok(true);
                }
                Ok(names) if self.contenders.iter().map(|one| &one.named).eq(&names) => {
                    return Ok(true);
                }
                Ok(_) => "failed: the peer named other contenders before".into(),
                Err(why) => format!("failed: {why}"),
            },
            Err(why) => why.text,
        };
        self.prepared = Some(Err(why));
        Ok(false)
    }

    /// Tries all that have not failed yet; ends early if the process fails.
    fn try_contenders(&mut self, group: &Group) -> Result<()> {
        let limit = self.limits.prepare;
        for nth in 0..self.contenders.len() {
            let Contender { named, tried } = &self.contenders[nth];
            let (name, before) = (named.name.clone(), tried.clone());
            let has_failed = before.as_ref().is_some_and(|tried| tried.failed.is_some());
            if has_failed || self.left_out.contains_key(&name) {
                continue;
            }
            let own = self.ask::<Tried>(&json!({ "do": "try", "name": name }), limit);
            let what = format!("trying '{name}' in {}", self.case.name);
            let now = match self.agree(group, &what, own, limit)? {
                Ok(ranks) => together(ranks),
                Err(why) => {
                    self.leave_out(&name, &why);
                    // What is left needs another process, if anything is.
                    let is_out = |one: &Contender| self.left_out.contains_key(&one.named.name);
                    if self.contenders.iter().all(is_out) {
                        self.prepared = Some(Err("left out: nothing of the peer is left".into()));
                    }
                    return Ok(());
                }
            };
            match before {
                Some(before) if now.failed.is_some() || before.graph && !now.graph => {
                    let why = now.failed.unwrap_or("it can no longer be captured".into());
                    let why = format!("failed when the peer was started again: {why}");
                    self.left_out.insert(name, why);
                }
                _ => self.contenders[nth].tried = Some(now),
            }
        }
        self.prepared = Some(Ok(()));
        Ok(())
    }

    fn ask<A: DeserializeOwned>(&mut self, order: &Value, limit: Duration) -> Result<A, Vain> {
        self.process.as_mut().map_or(Err(not_there()), |process| process.ask(order, limit))
    }

    /// What the process said on each rank, or why one said nothing, on all ranks: then it is ended on all. `limit` is
    /// how long each rank waited.
    fn agree<T: Serialize + DeserializeOwned>(
        &mut self,
        group: &Group,
        what: &str,
        own: Result<T, Vain>,
        limit: Duration,
    ) -> Result<Result<Vec<T>, Why>> {
        let all = all_values_within(group, "what a peer said", &own, limit + LIMIT)?;
        let (mut said, mut vain) = (Vec::new(), Vec::new());
        for (rank, own) in all.into_iter().enumerate() {
            match own {
                Ok(own) => said.push(own),
                Err(why) => vain.push((rank, why)),
            }
        }
        // One that ended is why others wait in vain.
        let Some((rank, vain)) =
            vain.into_iter().min_by_key(|(_, why)| matches!(why, Vain::Hung(_)))
        else {
            return Ok(Ok(said));
        };
        self.end(group)?;
        let hung = matches!(vain, Vain::Hung(_));
        let how = if hung { "hung" } else { "failed" };
        Ok(Err(Why { hung, text: format!("{how}: {what}, rank {rank}: {vain}") }))
    }

    /// Ends the process on all ranks.
    fn end(&mut self, group: &Group) -> Result<()> {
        let limit = self.limits.end;
        let own = self.process.take().map_or(Ok(()), |mut process| process.kill(limit));
        let all: Vec<Result<(), String>> =
            all_values_within(group, "the end of a peer", &own, limit + LIMIT)?;
        if let Some((rank, Err(why))) = all.iter().enumerate().find(|(_, ended)| ended.is_err()) {
            self.gone = Some(format!("left out: rank {rank}: {why}"));
        }
        self.prepared = None;
        Ok(())
    }

    /// Leaves a contender out of the rest of the run, and says why.
    fn leave_out(&mut self, name: &str, why: &Why) -> String {
        let why = format!("{}; left out of the rest of the run", why.text);
        self.left_out.insert(name.into(), why.clone());
        why
    }
}

/// Why a process was ended.
struct Why {
    hung: bool,
    text: String,
}

fn not_there() -> Vain {
    Vain::Ended("it was not started".into())
}

/// The contenders, if all ranks name the same.
fn same_names(ranks: &[Vec<Named>]) -> Result<Vec<Named>, String> {
    let first = ranks.first().cloned().unwrap_or_default();
    let Some(rank) = ranks.iter().position(|names| *names != first) else { return Ok(first) };
    let list = |all: &[Named]| {
        let names: Vec<_> = all.iter().map(|one| format!("{} ({})", one.name, one.kind)).collect();
        if names.is_empty() { "nothing".into() } else { names.join(", ") }
    };
    let (got, expected) = (list(&ranks[rank]), list(&first));
    Err(format!("the peer has {got} on rank {rank}, and {expected} on rank 0"))
}

/// What one rank cannot do, nobody does: turns are theirs together.
fn together(ranks: Vec<Tried>) -> Tried {
    let graph = ranks.iter().all(|tried| tried.graph);
    let failed = ranks.into_iter().enumerate();
    let mut failed =
        failed.filter_map(|(rank, tried)| Some(format!("rank {rank}: {}", tried.failed?)));
    Tried { graph, failed: failed.next() }
}

fn unfit(command: &str, why: String) -> Error {
    let remedy = "see what it printed; benches/peers/torch_peer.py is one that fits";
    Error::Unsupported { what: format!("the peer '{command}'"), why, remedy }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.quit(&json!({ "do": "quit" }));
        }
    }
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
