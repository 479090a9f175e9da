//! Problems drawn at random, so that nothing can be tuned to a list of them.
//!
//! What belongs here: the arguments and the draw. Invariant: the same arguments and seed draw the same problems on every
//! machine.

use std::str::FromStr;

use overlap_gemm::random::Random;

use super::cases::Shape;

/// The least and the largest N and K: those of layers, divided among ranks or not.
const COLUMNS: (u64, u64) = (1024, 16384);

/// How many problems are drawn, and from which.
#[derive(clap::Args)]
pub struct Drawn {
    /// Draw this number of problems at random, by --seed, evenly over the logarithms of their sizes
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["shapes", "set"],
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    random: Option<u32>,

    /// The least and the largest M, for --random
    #[arg(long, value_name = "LEAST-MOST", default_value = "512-16384", requires = "random")]
    random_rows: Rows,

    /// What N and K are multiples of, for --random; they are between 1024 and 16384
    #[arg(long, value_name = "STEP", default_value_t = 128, requires = "random",
          value_parser = clap::value_parser!(u64).range(1..=1024))]
    random_step: u64,
}

impl Drawn {
    /// The problems; `None` if none are to be drawn.
    pub fn shapes(&self, seed: u64) -> Option<Vec<Shape>> {
        let mut random = Random::new(seed);
        let Rows(least, most) = self.random_rows;
        let mut shape = || {
            let m = log_uniform(&mut random, least, most, 1);
            let [n, k] =
                [0; 2].map(|_| log_uniform(&mut random, COLUMNS.0, COLUMNS.1, self.random_step));
            Shape { m, n, k }
        };
        self.random.map(|count| (0..count).map(|_| shape()).collect())
    }
}

/// A multiple of `step` between two others, if there is one.
fn log_uniform(random: &mut Random, least: u64, most: u64, step: u64) -> u64 {
    let (low, high) = ((least as f64).ln(), (most as f64).ln());
    let drawn = (low + random.fraction() * (high - low)).exp();
    let steps = (drawn / step as f64).round() as u64;
    (steps * step).clamp(least.next_multiple_of(step), most - most % step)
}

/// The least and the largest number of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rows(u64, u64);

impl FromStr for Rows {
    type Err = String;

    /// Reads `512-16384`.
    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('-').map(|(least, most)| (least.parse(), most.parse()));
        match numbers {
            Some((Ok(least), Ok(most))) if (1..=most).contains(&least) => Ok(Rows(least, most)),
            _ => Err("give the least and the largest, such as 512-16384".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(random: Option<u32>, rows: &str, step: u64) -> Drawn {
        Drawn { random, random_rows: rows.parse().unwrap(), random_step: step }
    }

    #[test]
    fn a_seed_draws_the_same_problems_within_the_limits() {
        let args = drawn(Some(200), "512-16384", 128);
        let shapes = args.shapes(7).unwrap();
        assert_eq!(shapes, args.shapes(7).unwrap());
        assert_ne!(shapes, args.shapes(8).unwrap());
        assert_eq!(shapes.len(), 200);
        for Shape { m, n, k } in shapes {
            assert!((512..=16384).contains(&m));
            assert!([n, k].iter().all(|size| size % 128 == 0 && (1024..=16384).contains(size)));
        }
        assert!(drawn(None, "1-1", 8).shapes(7).is_none());
        // Steps that do not divide the limits.
        for Shape { m, n, .. } in drawn(Some(100), "1-1", 1000).shapes(1).unwrap() {
            assert!(m == 1 && (2000..=16000).contains(&n) && n % 1000 == 0, "{n}");
        }
    }

    #[test]
    fn rows_are_two_numbers() {
        assert_eq!("1-511".parse(), Ok(Rows(1, 511)));
        for text in ["", "5", "0-5", "6-5", "a-b", "1-2-3", "-5-6"] {
            assert!(text.parse::<Rows>().is_err(), "{text}");
        }
    }
}
