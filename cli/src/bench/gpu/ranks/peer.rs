//! Contenders of another program, which take turns with all others: each rank starts it, and talks to it by lines
//! of JSON (`benches/peers/torch_peer.py` says what they are).
//!
//! What belongs here: what all ranks decide together; a rank's own process is in `process.rs`. Invariants: what is
//! known of contenders is the same on all ranks, for it comes from exchanges alone; a rank waits for its process
//! less long than the others wait for the rank; if the process hangs or ends on one rank, it is killed on all, and its
//! contenders are shown with the reason in the rest of the run.

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

/// How much longer than expected a loop may take, beside the limit of any loop.
const SLACK: f64 = 20.0;

/// How long the program may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// To say that it is ready: loading a framework takes its time.
    pub start: Duration,
    /// To make the matrices of a case, to try one contender, and for a short loop.
    pub answer: Duration,
    /// To end after it was killed: a driver takes GPUs away from it first.
    pub end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let [start, answer, end] = [300, 60, 30].map(Duration::from_secs);
        Limits { start, answer, end }
    }
}

/// The program, as one rank has it.
pub struct Peer {
    command: String,
    limits: Limits,
    process: Process,
    /// Why it is not asked any more.
    gone: Option<String>,
    case: String,
    contenders: Vec<Told>,
}

/// What is known of one contender in a case, on all ranks; the program names it, and `try` adds the rest.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Told {
    pub name: String,
    /// `gemm`: a product alone; else the operation.
    pub kind: String,
    /// Whether it can be launched by graphs.
    #[serde(default)]
    pub graph: bool,
    #[serde(default)]
    pub failed: Option<String>,
}

/// What came of trying a contender.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct Tried {
    graph: bool,
    failed: Option<String>,
}

impl Peer {
    /// Starts the program on all ranks, which all call it, and waits until it is ready. An error if it is not: its command is
    /// wrong, or something is not installed, and nothing has been measured yet.
    pub fn start(command: &str, place: &Launch, group: &Group, limits: Limits) -> Result<Peer> {
        // Bound and left again: nobody else is given it in the meantime, as a rule.
        let free = || TcpListener::bind("0.0.0.0:0").and_then(|socket| socket.local_addr());
        let port = if group.rank() == 0 { free().map_or(0, |address| address.port()) } else { 0 };
        let port = all_values_within(group, "the port of a peer", &port, LIMIT)?[0];
        let variables = [
            ("RANK", group.rank().to_string()),
            ("WORLD_SIZE", group.ranks().to_string()),
            ("LOCAL_RANK", place.local_rank.to_string()),
            ("MASTER_ADDR", place.host.clone()),
            ("MASTER_PORT", port.to_string()),
        ];
        let process = Process::start(command, &variables);
        let failed = |error| unfit(command, format!("it does not start ({error})"));
        let (process, command) = (process.map_err(failed)?, command.to_owned());
        let (case, contenders) = (String::new(), Vec::new());
        let mut peer = Peer { command, limits, process, gone: None, case, contenders };
        let own = peer.process.hear(limits.start).and_then(|answer: Value| {
            let ready = answer["ready"] == true;
            if ready { Ok(()) } else { Err(Vain::Garbled("that it is not ready".into())) }
        });
        let started = peer.agree(group, "the start of the peer", own, limits.start)?;
        started.map(drop).map_err(|why| unfit(&peer.command, why))?;
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
        self.case = format!("{m}x{n}x{k} {kind}");
        if self.gone.is_none() {
            self.try_all(group, &order)?;
        }
        if let Some(why) = &self.gone {
            if self.contenders.is_empty() {
                let (name, kind) = ("peer".into(), operation.to_string());
                self.contenders = vec![Told { name, kind, graph: true, failed: None }];
            }
            for one in &mut self.contenders {
                (one.graph, one.failed) = (true, Some(why.clone()));
            }
        }
        Ok(self.contenders.clone())
    }

    /// Learns the names of the case's contenders, and tries each.
    fn try_all(&mut self, group: &Group, order: &Value) -> Result<()> {
        #[derive(Deserialize)]
        struct Answer {
            contenders: Vec<Told>,
        }
        let limit = self.limits.answer;
        let own = self.process.ask(order, limit).map(|Answer { contenders }| contenders);
        let what = format!("preparing {}", self.case);
        let Ok(ranks) = self.agree(group, &what, own, limit)? else { return Ok(()) };
        self.contenders = same_names(&ranks).map_err(|why| unfit(&self.command, why))?;
        for nth in 0..self.contenders.len() {
            let name = &self.contenders[nth].name;
            let own = self.process.ask::<Tried>(&json!({ "do": "try", "name": name }), limit);
            let what = format!("trying '{name}' in {}", self.case);
            let Ok(ranks) = self.agree(group, &what, own, limit)? else { return Ok(()) };
            let Tried { graph, failed } = together(ranks);
            (self.contenders[nth].graph, self.contenders[nth].failed) = (graph, failed);
        }
        Ok(())
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
        if let Some(why) = &self.gone {
            return Ok(Err(why.clone()));
        }
        let order = json!({ "do": "run", "name": name, "graph": graph, "steps": steps });
        let more = SLACK * steps as f64 * expected.unwrap_or(0.0) * 1e-6;
        let limit = self.limits.answer + Duration::try_from_secs_f64(more).unwrap_or_default();
        let own = self.process.ask(&order, limit).and_then(|Answer { us }| match us > 0.0 {
            true => Ok(us),
            false => Err(Vain::Garbled(format!("{us} µs"))),
        });
        let launched = if graph { "graph" } else { "plain" };
        let what = format!("a loop of '{name}' ({launched}) in {}", self.case);
        let all = self.agree(group, &what, own, limit)?;
        Ok(all.map(|all| all.into_iter().fold(0.0, f64::max)))
    }

    /// What the process said on each rank, or why one said nothing, on all ranks: then it is killed on all. `limit` is
    /// how long each rank waited.
    fn agree<T: Serialize + DeserializeOwned>(
        &mut self,
        group: &Group,
        what: &str,
        own: Result<T, Vain>,
        limit: Duration,
    ) -> Result<Result<Vec<T>, String>> {
        let all = all_values_within(group, "what a peer said", &own, limit + LIMIT)?;
        let (mut said, mut vain) = (Vec::new(), Vec::new());
        for (rank, own) in all.into_iter().enumerate() {
            match own {
                Ok(own) => said.push(own),
                Err(why) => vain.push((rank, why)),
            }
        }
        // One that ended is why others wait in vain.
        let first = vain.into_iter().min_by_key(|(_, why)| matches!(why, Vain::Hung(_)));
        let Some((rank, vain)) = first else { return Ok(Ok(said)) };
        let end = self.limits.end;
        let ended = self.process.kill(end);
        let all = all_values_within(group, "the end of a peer", &ended, end + LIMIT)?;
        all.into_iter().collect::<Result<(), String>>().map_err(|why| unfit(&self.command, why))?;
        let how = if matches!(vain, Vain::Hung(_)) { "hung" } else { "failed" };
        let why = format!("the peer {how}: {what}, rank {rank}: {vain}");
        self.gone = Some(why.clone());
        Ok(Err(why))
    }
}

/// The contenders, if all ranks name the same.
fn same_names(ranks: &[Vec<Told>]) -> Result<Vec<Told>, String> {
    let first = ranks.first().cloned().unwrap_or_default();
    match ranks.iter().position(|names| *names != first) {
        None => Ok(first),
        Some(rank) => {
            let list =
                |all: &[Told]| all.iter().map(|one| &*one.name).collect::<Vec<_>>().join(", ");
            let (got, expected) = (list(&ranks[rank]), list(&first));
            Err(format!("it has '{got}' on rank {rank}, and '{expected}' on rank 0"))
        }
    }
}

/// What one rank cannot do, nobody does: turns are theirs together.
fn together(ranks: Vec<Tried>) -> Tried {
    let graph = ranks.iter().all(|tried| tried.graph);
    let mut failed = ranks.into_iter().enumerate();
    let failed = failed.find_map(|(rank, tried)| Some(format!("rank {rank}: {}", tried.failed?)));
    Tried { graph, failed }
}

fn unfit(command: &str, why: String) -> Error {
    let remedy = "see what it printed; benches/peers/torch_peer.py is one that fits";
    Error::Unsupported { what: format!("the peer '{command}'"), why, remedy }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if self.gone.is_none() {
            self.process.quit(&json!({ "do": "quit" }));
        }
    }
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
