//! Contenders of another program, that take turns with all others: each rank starts it, and talks to it by lines
//! of JSON (`benches/peers/torch_peer.py` says what they are).
//!
//! Invariant: no answer is waited for longer than the limit; a program that ends, or says what is no answer, is
//! named with its command; who is wrong or cannot be captured on one rank is so on all, for turns are theirs together.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use overlap_gemm::group::{Group, Launch};
use overlap_gemm::plan::{Problem, Scaling};
use overlap_gemm::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::exchange::all_values;

/// Loading a framework takes its time.
const LIMIT: Duration = Duration::from_secs(300);

/// The program, as one rank has it.
pub struct Peer {
    command: String,
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

/// What it says of one contender.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Told {
    pub name: String,
    /// `gemm`: A is there; else it is gathered first.
    pub kind: String,
    /// Whether it can be launched by graphs.
    pub graph: bool,
    pub failed: Option<String>,
}

impl Peer {
    /// Starts the program on all ranks, which all call it.
    pub fn start(command: &str, place: &Launch, group: &Group) -> Result<Peer> {
        // Bound and left again: nobody else is given it in the meantime, as a rule.
        let free = || TcpListener::bind("0.0.0.0:0").and_then(|socket| socket.local_addr());
        let port = if group.rank() == 0 { free().map_or(0, |address| address.port()) } else { 0 };
        let ports = group.all_gather("the port of a peer", &port.to_le_bytes(), LIMIT)?;
        let port = ports[0].as_slice().try_into().map_or(0, u16::from_le_bytes);
        let failed = |error: std::io::Error| unfit(command, format!("it does not start ({error})"));
        let mut child = Command::new("sh")
            .args(["-c", command])
            .env("RANK", group.rank().to_string())
            .env("WORLD_SIZE", group.ranks().to_string())
            .env("LOCAL_RANK", place.local_rank.to_string())
            .env("MASTER_ADDR", &place.host)
            .env("MASTER_PORT", port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (Some(orders), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(std::io::Error::other("it has no pipes")));
        };
        let (tell, answers) = channel();
        // A thread, so that a program that says nothing holds nobody up for ever.
        std::thread::spawn(move || {
            // Libraries print on stdout, too.
            let lines = BufReader::new(stdout).lines().map_while(std::io::Result::ok);
            for line in lines.filter(|line| line.starts_with('{')) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Peer { command: command.to_owned(), child, orders, answers })
    }

    /// Who can take part in a case on all ranks, which all call it; graphs will have so many steps.
    pub fn prepare(
        &mut self,
        group: &Group,
        problem: &Problem,
        graph_steps: usize,
    ) -> Result<Vec<Told>> {
        #[derive(Deserialize)]
        struct Answer {
            contenders: Vec<Told>,
        }
        let scaling = match problem.scaling() {
            Scaling::Rows => "rows",
            Scaling::Tensor => "tensor",
            _ => "none",
        };
        let order = json!({
            "do": "prepare", "m": problem.m(), "n": problem.n(), "k": problem.k(),
            "type": problem.elements().a.to_string(), "scaling": scaling, "steps": graph_steps,
        });
        let own = self.ask::<Answer>(&order)?.contenders;
        let ranks = all_values(group, "what a peer has", &own)?;
        together(ranks).map_err(|why| unfit(&self.command, why))
    }

    /// Microseconds a step of so many.
    pub fn run(&mut self, name: &str, graph: bool, steps: usize) -> Result<f64> {
        #[derive(Deserialize)]
        struct Answer {
            us: f64,
        }
        let order = json!({ "do": "run", "name": name, "graph": graph, "steps": steps });
        self.ask::<Answer>(&order).map(|answer| answer.us)
    }

    fn ask<A: for<'a> Deserialize<'a>>(&mut self, order: &Value) -> Result<A> {
        let failed = |why: String| unfit(&self.command, format!("asked {order}, {why}"));
        writeln!(self.orders, "{order}")
            .and_then(|()| self.orders.flush())
            .map_err(|error| failed(format!("it does not listen ({error})")))?;
        let answer = self.answers.recv_timeout(LIMIT);
        let answer = answer.map_err(|error| failed(format!("it did not answer ({error})")))?;
        serde_json::from_str(&answer).map_err(|error| failed(format!("it said {answer} ({error})")))
    }
}

/// What the programs of all ranks say together: the same on every rank.
fn together(ranks: Vec<Vec<Told>>) -> Result<Vec<Told>, String> {
    let names = |told: &[Told]| told.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
    let mut together = ranks.first().cloned().unwrap_or_default();
    together.iter_mut().for_each(|one| one.failed = None);
    for (rank, told) in ranks.into_iter().enumerate() {
        if names(&told) != names(&together) {
            let (got, expected) = (names(&told).join(", "), names(&together).join(", "));
            return Err(format!("it has {got} on rank {rank}, and {expected} on rank 0"));
        }
        for (one, told) in together.iter_mut().zip(told) {
            one.graph &= told.graph;
            let why = told.failed.map(|why| format!("rank {rank}: {why}"));
            one.failed = one.failed.take().or(why);
        }
    }
    Ok(together)
}

fn unfit(command: &str, why: String) -> Error {
    let remedy = "see what it printed; benches/peers/torch_peer.py is one that fits";
    Error::Unsupported { what: format!("the peer '{command}'"), why, remedy }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let asked = writeln!(self.orders, "{}", json!({ "do": "quit" }));
        // Some never come to an end by themselves.
        for _ in 0..100 {
            match self.child.try_wait() {
                Ok(None) if asked.is_ok() => std::thread::sleep(Duration::from_millis(50)),
                _ => break,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str, graph: bool, failed: Option<&str>) -> Told {
        let failed = failed.map(str::to_owned);
        Told { name: name.into(), kind: "gemm".into(), graph, failed }
    }

    #[test]
    fn what_one_rank_cannot_do_nobody_does() {
        let ranks = vec![
            vec![told("a", true, None), told("b", true, None), told("c", false, Some("off by 1"))],
            vec![told("a", false, None), told("b", true, Some("off by 2")), told("c", false, None)],
        ];
        let all = [
            told("a", false, None),
            told("b", true, Some("rank 1: off by 2")),
            told("c", false, Some("rank 0: off by 1")),
        ];
        assert_eq!(together(ranks).unwrap(), all);
        let fewer = vec![vec![told("a", true, None), told("b", true, None)], vec![]];
        assert_eq!(together(fewer).unwrap_err(), "it has  on rank 1, and a, b on rank 0");
    }
}
