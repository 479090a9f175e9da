//! Whose turn it is.
//!
//! Invariant: in each round everybody has one, and what comes before whom is another thing from round to round.

use overlap_gemm::plan::Problem;
use overlap_gemm::random::Random;

/// The order in which `count` contenders of a problem run in round `round`, the same on all ranks. It is drawn anew for each
/// problem and round, so that nobody always follows the same neighbour: at the power limit a contender's time depends on the one
/// before it, and with one order for all problems the same contender would gain in every row.
pub fn turn(problem: &Problem, round: usize, count: usize) -> Vec<usize> {
    let sizes = [problem.m(), problem.n(), problem.k()];
    let seed = sizes
        .iter()
        .fold(count as u64, |seed, size| Random::of_stream(seed, u64::from(*size)).next_u64());
    let mut random = Random::of_stream(seed, round as u64);
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, random.within(0..=last as u64) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn problem(m: u64) -> Problem {
        Problem::builder(m, 64, 64).build().unwrap()
    }

    #[test]
    fn everyone_has_a_turn_and_neighbours_change() {
        for count in 0..20 {
            for round in 0..50 {
                let mut order = turn(&problem(64), round, count);
                order.sort();
                assert!(order.into_iter().eq(0..count), "{count} contenders, round {round}");
            }
        }
        let before = |(m, round)| {
            let order = turn(&problem(m), round, 8);
            order.iter().position(|nth| *nth == 0).map(|at| order[(at + 7) % 8])
        };
        let of_rounds: HashSet<_> = (0..50).map(|round| before((64, round))).collect();
        let of_problems: HashSet<_> = (0..50).map(|m| before((64 + m, 0))).collect();
        for neighbours in [of_rounds, of_problems] {
            assert_eq!(neighbours.len(), 7, "each of the others comes before the first at times");
        }
    }
}
