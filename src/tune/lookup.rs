//! What the table says of a problem that may not be in it.
//!
//! What belongs here: which entries are near, what may be carried over from one size to another, and what not.
//! Invariant: the answer follows from the table and the question alone; nothing in it was refused by [`Fits`].
//!
//! **How rows travel** (strategy, engine, pieces) changes slowly with the size: where it is better, it is better by a
//! little more or less next door. So the nearest entries vote: each says how far behind every way was *there*, with
//! the cost model's kernel wherever that was measured, so that one way's better kernel is not taken for a better
//! way; and the way that is least behind on the whole, nearer entries counting for more, is taken.
//!
//! **The kernel** changes abruptly: 1.0 waves of tiles are one, 1.1 are two. So it is carried over only from an entry
//! whose product falls into the same waves, equally full; else it is left to the cost model, which knows of
//! waves. What is carried over is what *differs* from the model's choice: where that was the best, it is asked
//! again.

use std::fmt;

use super::entry::{Entry, Family, Gathering, Measured, Multiplying, Order, Shape};

/// Entries farther away than this say nothing: a side that is 2.8 times as long, or two that are twice as long.
const FARTHEST: f64 = 1.5;
/// How many of the nearest vote.
const VOTERS: usize = 4;
/// A distance at which a vote counts half as much as one from the same place.
const HALF: f64 = 0.5;
/// How far behind a way is held to be where it was not tried.
const UNTRIED: f64 = 1.25;
/// Waves beyond which the last one does not matter, and how much less full the last one may be.
const MANY_WAVES: u64 = 8;
const AS_FULL: f64 = 0.08;
/// Slices of K are carried over to a K no more than this much longer or shorter.
const SAME_K: f64 = 1.5;

/// A question.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Which problems are looked at.
    pub family: Family,
    /// The problem's size.
    pub shape: Shape,
    /// Rows of the largest shard.
    pub most_rows: u32,
}

impl Asked {
    /// Whether every rank has as many rows as any, but for the last.
    fn is_even(&self) -> bool {
        self.most_rows == self.shape.m.div_ceil(self.family.ranks.max(1))
    }

    /// Rows that one product has in that order.
    fn rows(&self, order: Order) -> u32 {
        if order == Order::Pipelined { self.most_rows } else { self.shape.m }
    }
}

/// What whoever asks can do, and has left open.
pub trait Fits {
    /// Whether rows can travel so.
    fn gathering(&self, gathering: &Gathering) -> bool;
    /// Whether this kernel can multiply so, in that order.
    fn multiplying(&self, order: Order, multiplying: &Multiplying) -> bool;
}

/// Everything fits: to look at a table where no kernels are.
#[derive(Clone, Copy, Debug)]
pub struct Anything;

impl Fits for Anything {
    fn gathering(&self, _: &Gathering) -> bool {
        true
    }

    fn multiplying(&self, _: Order, _: &Multiplying) -> bool {
        true
    }
}

/// Where an answer comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// This very problem was measured.
    Tuned(Box<Measured>),
    /// Others were, the nearest first.
    Interpolated(Vec<Shape>),
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// How rows should travel.
    pub gathering: Gathering,
    /// What should multiply; `None`: what the cost model chooses.
    pub multiplying: Option<Multiplying>,
    /// Where it comes from.
    pub source: Source,
    /// The drivers that it was measured with, each once.
    pub drivers: Vec<String>,
}

impl Answer {
    /// Whether this very problem was measured.
    pub fn is_tuned(&self) -> bool {
        matches!(self.source, Source::Tuned(_))
    }
}

impl fmt::Display for Answer {
    /// `tuned: measured for this problem, 431.4 µs in graphs`; `interpolated from 4096×3584×8192, …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Tuned(measured) => {
                f.write_str("tuned: measured for this problem")?;
                for (time, how) in [(measured.graph, "in graphs"), (measured.plain, "one by one")] {
                    if let Some(time) = time {
                        write!(f, ", {:.1} µs {how}", time.us)?;
                    }
                }
            }
            Source::Interpolated(from) => {
                let from: Vec<_> = from.iter().map(Shape::to_string).collect();
                write!(f, "interpolated from {}", from.join(", "))?;
            }
        }
        if self.multiplying.is_none() {
            f.write_str("; the kernel by the cost model")?;
        }
        Ok(())
    }
}

/// What `entries` say. `None`: nothing near was measured, or nothing that was measured fits.
pub(super) fn look_up(entries: &[Entry], asked: &Asked, fits: &dyn Fits) -> Option<Answer> {
    let possible = |way: &Gathering| way.pieces <= asked.most_rows && fits.gathering(way);
    let family = || entries.iter().filter(|entry| entry.family == asked.family);
    let exact = family().find(|entry| entry.shape == asked.shape && asked.is_even());
    if let Some(answer) = exact.and_then(|entry| tuned(entry, &possible, fits)) {
        return Some(answer);
    }
    let mut near: Vec<(f64, &Entry)> = family()
        .map(|entry| (entry.shape.distance(asked.shape), entry))
        .filter(|(distance, _)| *distance <= FARTHEST)
        .collect();
    near.sort_by(|(one, a), (other, b)| one.total_cmp(other).then(a.shape.cmp(&b.shape)));
    near.truncate(VOTERS);
    let gathering = vote(&near, &possible)?;
    let from = near.iter().map(|(_, entry)| entry.shape).collect();
    Some(Answer {
        gathering,
        multiplying: carried_over(&near, asked, &gathering, fits),
        source: Source::Interpolated(from),
        drivers: drivers(near.iter().map(|(_, entry)| *entry)),
    })
}

/// The best of what was measured that fits; if no kernel does, the best way to gather.
fn tuned(entry: &Entry, possible: &dyn Fn(&Gathering) -> bool, fits: &dyn Fits) -> Option<Answer> {
    let ways = || entry.measured.iter().filter(|one| possible(&one.gathering));
    let whole = ways().find(|one| fits.multiplying(one.gathering.order, &one.multiplying));
    let one = whole.or_else(|| ways().find(|one| one.by_model)).or_else(|| ways().next())?;
    Some(Answer {
        gathering: one.gathering,
        multiplying: whole.map(|one| one.multiplying.clone()),
        source: Source::Tuned(Box::new(one.clone())),
        drivers: drivers([entry]),
    })
}

/// The way that is least behind.
fn vote(near: &[(f64, &Entry)], possible: &dyn Fn(&Gathering) -> bool) -> Option<Gathering> {
    let mut ways: Vec<Gathering> = Vec::new();
    for measured in near.iter().flat_map(|(_, entry)| &entry.measured) {
        if possible(&measured.gathering) && !ways.contains(&measured.gathering) {
            ways.push(measured.gathering);
        }
    }
    let ballots: Vec<_> = near
        .iter()
        .map(|(distance, entry)| (1.0 / (1.0 + (distance / HALF).powi(2)), behind(entry, &ways)))
        .collect();
    let mut best: Option<(f64, Gathering)> = None;
    for (nth, way) in ways.iter().enumerate() {
        let cost: f64 = ballots.iter().map(|(weight, behind)| weight * behind[nth].ln()).sum();
        // Among equals the first: what the nearest found best.
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, *way));
        }
    }
    best.map(|(_, way)| way)
}

/// How far behind the quickest of them each way was there.
fn behind(entry: &Entry, ways: &[Gathering]) -> Vec<f64> {
    let least = |by_model: bool, way: &Gathering| {
        let of_way = entry.measured.iter().filter(|one| one.gathering == *way);
        of_way
            .filter(|one| one.by_model || !by_model)
            .map(|one| entry.ratio(one))
            .fold(f64::INFINITY, f64::min)
    };
    let each = |by_model: bool| ways.iter().map(|way| least(by_model, way)).collect::<Vec<_>>();
    // With any kernel, where none was the model's.
    let alike = each(true);
    let ratios = if alike.iter().any(|ratio| ratio.is_finite()) { alike } else { each(false) };
    let quickest = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    if !quickest.is_finite() {
        return vec![1.0; ways.len()];
    }
    let relative = |ratio: f64| if ratio.is_finite() { ratio / quickest } else { UNTRIED };
    ratios.into_iter().map(relative).collect()
}

/// The kernel of the nearest entry where another than the model's was best, if it falls into the same waves here.
fn carried_over(
    near: &[(f64, &Entry)],
    asked: &Asked,
    gathering: &Gathering,
    fits: &dyn Fits,
) -> Option<Multiplying> {
    let order = gathering.order;
    for (_, entry) in near {
        let Some(best) = entry.measured.iter().find(|one| one.gathering.order == order) else {
            continue;
        };
        let there = Asked {
            family: entry.family.clone(),
            shape: entry.shape,
            most_rows: entry.shape.m.div_ceil(entry.family.ranks.max(1)),
        };
        let one = &best.multiplying;
        let waves = |asked: &Asked| Waves::of(one, asked.rows(order), asked.shape.n, entry.sms);
        let ratio = f64::from(asked.shape.k) / f64::from(entry.shape.k);
        let same_k = one.splits == 1 || (1.0 / SAME_K..=SAME_K).contains(&ratio);
        if waves(asked).is_like(waves(&there)) && same_k {
            return (!best.by_model && fits.multiplying(order, one)).then(|| one.clone());
        }
    }
    None
}

/// How often all SMs are given tiles, and how full they are on the whole.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Waves {
    count: u64,
    full: f64,
}

impl Waves {
    fn of(multiplying: &Multiplying, m: u32, n: u32, sms: u32) -> Waves {
        let Multiplying { tile, cluster, splits, .. } = multiplying;
        let units = |len: u32, tile: u32, cluster: u32| {
            u64::from(len).div_ceil((u64::from(tile) * u64::from(cluster)).max(1))
        };
        let work = units(m, tile.m, cluster.m) * units(n, tile.n, cluster.n) * u64::from(*splits);
        let blocks = cluster.m.saturating_mul(cluster.n).max(1);
        let at_once = u64::from((sms / blocks).max(1));
        let count = work.div_ceil(at_once).max(1);
        Waves { count, full: work as f64 / (count * at_once) as f64 }
    }

    fn is_like(self, other: Waves) -> bool {
        let same = self.count == other.count || self.count.min(other.count) > MANY_WAVES;
        same && (self.full - other.full).abs() <= AS_FULL
    }
}

fn drivers<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for entry in entries {
        if !all.contains(&entry.driver) {
            all.push(entry.driver.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::made_up::{
        by_model, entry, family, gathering, measured, multiplying, synthetic, ways,
    };
    use super::*;

    fn asked(m: u32, n: u32, k: u32) -> Asked {
        Asked { family: family(), shape: Shape { m, n, k }, most_rows: m.div_ceil(2) }
    }

    /// All but what is said not to fit.
    struct Without(Vec<Gathering>, Vec<&'static str>);

    impl Fits for Without {
        fn gathering(&self, gathering: &Gathering) -> bool {
            !self.0.contains(gathering)
        }

        fn multiplying(&self, _: Order, multiplying: &Multiplying) -> bool {
            !self.1.contains(&&*multiplying.kernel)
        }
    }

    #[test]
    fn what_was_measured_is_taken_as_it_was() {
        let table = [entry(
            4096,
            3584,
            8192,
            vec![
                by_model("model's", 1, 104.0),
                measured("best", 2, 100.0),
                measured("third", 4, 109.0),
            ],
        )];
        let answer = look_up(&table, &asked(4096, 3584, 8192), &Anything).unwrap();
        assert!(answer.is_tuned());
        assert_eq!(answer.gathering, gathering(1, 2));
        assert_eq!(answer.multiplying.as_ref().unwrap().kernel, "best");
        assert_eq!(answer.to_string(), "tuned: measured for this problem, 100.0 µs in graphs");
        // The next best where the best is not to be had.
        let without = Without(vec![], vec!["best"]);
        let answer = look_up(&table, &asked(4096, 3584, 8192), &without).unwrap();
        assert_eq!(
            (answer.gathering.pieces, answer.multiplying.unwrap().kernel.as_str()),
            (1, "model's")
        );
        let without = Without(vec![gathering(1, 2), gathering(1, 1)], vec![]);
        let answer = look_up(&table, &asked(4096, 3584, 8192), &without).unwrap();
        assert_eq!(answer.gathering, gathering(1, 4));
        // No kernel of these: how rows travel is known all the same, for the model's kernel.
        let without = Without(vec![], vec!["best", "model's", "third"]);
        let answer = look_up(&table, &asked(4096, 3584, 8192), &without).unwrap();
        assert_eq!((answer.gathering.pieces, &answer.multiplying), (1, &None));
        assert!(answer.to_string().ends_with("the kernel by the cost model"));
    }

    #[test]
    fn other_families_say_nothing() {
        let table = [entry(4096, 3584, 8192, vec![measured("a", 1, 10.0)])];
        let change = |change: &dyn Fn(&mut Family)| {
            let mut asked = asked(4096, 3584, 8192);
            change(&mut asked.family);
            look_up(&table, &asked, &Anything)
        };
        assert!(change(&|_| {}).is_some());
        assert_eq!(change(&|family| family.gpu = "NVIDIA H100 80GB HBM3".into()), None);
        assert_eq!(change(&|family| family.ranks = 4), None);
        assert_eq!(change(&|family| family.b_layout = crate::plan::BLayout::Kn), None);
        assert_eq!(change(&|family| family.scaling = crate::plan::Scaling::Rows), None);
        let f16 = crate::plan::ElementTypes::all(crate::element::ElementType::F16);
        assert_eq!(change(&|family| family.elements = f16), None);
    }

    #[test]
    fn what_is_far_away_says_nothing_and_uneven_shards_are_not_the_same_problem() {
        let table = [entry(4096, 3584, 8192, vec![measured("a", 1, 10.0)])];
        assert!(look_up(&table, &asked(8192, 3584, 8192), &Anything).is_some());
        assert!(look_up(&table, &asked(8192, 7168, 8192), &Anything).is_some());
        assert_eq!(look_up(&table, &asked(16384, 3584, 8192), &Anything), None);
        assert_eq!(look_up(&table, &asked(8192, 7168, 16384), &Anything), None);
        let uneven = Asked { most_rows: 3000, ..asked(4096, 3584, 8192) };
        let answer = look_up(&table, &uneven, &Anything).unwrap();
        assert_eq!(answer.source, Source::Interpolated(vec![Shape { m: 4096, n: 3584, k: 8192 }]));
        assert_eq!(look_up(&[], &asked(1, 1, 1), &Anything), None);
    }

    #[test]
    fn the_nearest_vote_and_one_way_s_better_kernel_is_no_better_way() {
        // Two pieces are 2 % better everywhere; here and there one piece was given a better kernel.
        let odd = |m| {
            entry(
                m,
                3584,
                8192,
                vec![by_model("a", 1, 102.0), by_model("a", 2, 100.0), measured("b", 1, 97.0)],
            )
        };
        let table = [odd(2048), odd(8192)];
        let answer = look_up(&table, &asked(4096, 3584, 8192), &Anything).unwrap();
        assert_eq!(answer.gathering.pieces, 2);
        // A near one counts for more than a far one.
        let says = |m, one: f64, two: f64| {
            entry(m, 3584, 8192, vec![by_model("a", 1, one), by_model("a", 2, two)])
        };
        let table = [says(3900, 100.0, 103.0), says(8192, 103.0, 100.0)];
        let pieces =
            |m| look_up(&table, &asked(m, 3584, 8192), &Anything).unwrap().gathering.pieces;
        assert_eq!([pieces(4096), pieces(7800)], [1, 2]);
        // But who is far behind is not outvoted by who is a little ahead.
        let table = [says(3900, 100.0, 100.5), says(5000, 130.0, 100.0)];
        let answer = look_up(&table, &asked(4096, 3584, 8192), &Anything).unwrap();
        assert_eq!(answer.gathering.pieces, 2);
    }

    #[test]
    fn a_kernel_is_carried_over_only_into_the_same_waves() {
        // 128 × 128 in clusters of two: 66 clusters at once. 4096 × 3584: 16 × 28 = 448 units, 6.8 waves.
        let table = |by: bool| {
            let mut best = measured("best", 1, 100.0);
            best.by_model = by;
            [entry(4096, 3584, 8192, vec![best, by_model("model's", 1, 104.0)])]
        };
        let kernel = |by, m| {
            let answer = look_up(&table(by), &asked(m, 3584, 8192), &Anything).unwrap();
            answer.multiplying.map(|multiplying| multiplying.kernel)
        };
        assert_eq!(kernel(false, 4096 - 64).as_deref(), Some("best"));
        assert_eq!(kernel(false, 4096 + 256), None, "7.2 waves");
        assert_eq!(kernel(false, 2048), None, "3.4 waves");
        assert_eq!(kernel(true, 4096 - 64), None, "the model is asked again");
        // Slices of K belong to a K.
        let mut sliced = measured("sliced", 1, 10.0);
        sliced.multiplying.splits = 4;
        let table = [entry(256, 1024, 8192, vec![sliced])];
        let kernel = |k| look_up(&table, &asked(256, 1024, k), &Anything).unwrap().multiplying;
        assert!(kernel(7168).is_some() && kernel(4096).is_none());
    }

    #[test]
    fn waves_are_counted_in_clusters() {
        let one = multiplying("a", 128, 128);
        let waves = |m, n| Waves::of(&one, m, n, 132);
        assert_eq!(waves(256, 128), Waves { count: 1, full: 1.0 / 66.0 });
        assert_eq!(waves(256 * 66, 128), Waves { count: 1, full: 1.0 });
        assert_eq!(waves(256 * 66 + 1, 128).count, 2);
        assert!(waves(256 * 66 * 20, 128).is_like(waves(256 * 66 * 40, 128)));
        assert!(!waves(256 * 66, 128).is_like(waves(256 * 66 * 2, 128)));
        let giant = Multiplying { splits: u32::MAX, ..one };
        assert!(Waves::of(&giant, 1, 1, 0).count > 0, "whatever a file says");
    }

    proptest! {
        #[test]
        fn answers_always_fit_and_are_always_the_same(
            shapes in prop::collection::vec((1u32..20_000, 1u32..9_000, 64u32..20_000), 1..8),
            m in 1u32..20_000, n in 1u32..9_000, k in 64u32..20_000, refused in 0usize..36,
        ) {
            let table: Vec<_> =
                shapes.iter().map(|&(m, n, k)| synthetic(Shape { m, n, k })).collect();
            let fits = Without(ways()[..refused].to_vec(), vec!["a"]);
            let asked = asked(m, n, k);
            let answer = look_up(&table, &asked, &fits);
            let mut turned = table.clone();
            turned.reverse();
            prop_assert_eq!(&look_up(&turned, &asked, &fits), &answer, "the order of entries");
            if let Some(answer) = answer {
                prop_assert!(fits.gathering(&answer.gathering));
                prop_assert!(answer.gathering.pieces <= asked.most_rows);
                prop_assert_eq!(answer.multiplying, None);
            }
        }
    }
}
