//! Whose turn it is.
//!
//! Invariant: in each round everybody has one, and what comes before whom is another thing from round to round.

use overlap_gemm::random::Random;

/// The order in which `count` contenders run in round `round`: drawn anew each time, so that nobody always follows the same
/// neighbour, and the same wherever it is asked for.
pub fn turn(round: usize, count: usize) -> Vec<usize> {
    let mut random = Random::of_stream(count as u64, round as u64);
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, random.within(0..=last as u64) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_has_a_turn_and_neighbours_change() {
        for count in 0..20 {
            for round in 0..50 {
                let mut order = turn(round, count);
                order.sort();
                assert!(order.into_iter().eq(0..count), "{count} contenders, round {round}");
            }
        }
        let before = |round| {
            let order = turn(round, 8);
            order.iter().position(|nth| *nth == 0).map(|at| order[(at + 7) % 8])
        };
        let neighbours: std::collections::HashSet<_> = (0..50).map(before).collect();
        assert_eq!(neighbours.len(), 7, "each of the others comes before the first at times");
    }
}
