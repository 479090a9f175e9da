//! What the project wants of its products, held against what was measured.
//!
//! Invariant: a bar is passed or missed only if every case of its group was measured; otherwise it is
//! not judged, and says what is missing.

use serde::Serialize;

use super::cases::Group;
use super::gemm::Who;
use super::results::CaseResult;
use super::statistics::{geometric_mean, median};

/// Which ratio of a case a bar looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    /// One contender's time over another's.
    Times(Who, Who),
    /// Arriving chunks over the ideal.
    Trickle,
}

/// One bar.
struct Bar {
    what: &'static str,
    quantity: Quantity,
    groups: &'static [Group],
    /// The most that the geometric mean over the group may be.
    mean: Option<f64>,
    /// The most that any case may be.
    worst: Option<f64>,
}

const BESIDE: Quantity = Quantity::Times(Who::Own, Who::Cublaslt);
const LAYERS: &[Group] = &[Group::Bf16, Group::Fp8Tensor, Group::Fp8Rows];

const BARS: [Bar; 5] = [
    Bar {
        what: "own ÷ cuBLASLt",
        quantity: BESIDE,
        groups: &[Group::Bf16],
        mean: Some(0.98),
        worst: Some(1.04),
    },
    Bar {
        what: "own ÷ cuBLASLt",
        quantity: BESIDE,
        groups: &[Group::Fp8Tensor, Group::Fp8Rows],
        mean: Some(1.02),
        worst: Some(1.10),
    },
    Bar {
        what: "own ÷ cuBLASLt",
        quantity: BESIDE,
        groups: &[Group::SmallM],
        mean: Some(1.10),
        worst: None,
    },
    Bar {
        what: "all signals set ÷ none",
        quantity: Quantity::Times(Who::OwnSet, Who::Own),
        groups: LAYERS,
        mean: None,
        worst: Some(1.01),
    },
    Bar {
        what: "chunks trickling in ÷ ideal",
        quantity: Quantity::Trickle,
        groups: LAYERS,
        mean: None,
        worst: Some(1.05),
    },
];

/// How one bar stands for one group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    pub what: &'static str,
    pub group: Group,
    /// Over the cases that were measured.
    pub geometric_mean: Option<f64>,
    pub worst: Option<f64>,
    /// Which case that is.
    pub worst_case: Option<String>,
    pub mean_limit: Option<f64>,
    pub worst_limit: Option<f64>,
    pub measured: usize,
    pub of: usize,
    /// `None`: not every case was measured.
    pub passed: Option<bool>,
}

/// All bars whose groups were measured, or in part.
pub fn judge(cases: &[CaseResult]) -> Vec<Verdict> {
    let judged = Group::WITH_BARS.into_iter().flat_map(|group| {
        let of_group: Vec<_> = cases.iter().filter(|case| case.group == group).collect();
        let bars = BARS.iter().filter(move |bar| bar.groups.contains(&group));
        bars.filter_map(move |bar| bar.judge(group, &of_group)).collect::<Vec<_>>()
    });
    judged.collect()
}

impl Bar {
    /// Nothing, where nothing was measured that it speaks of.
    fn judge(&self, group: Group, cases: &[&CaseResult]) -> Option<Verdict> {
        let measured: Vec<(f64, &str)> = cases
            .iter()
            .filter_map(|case| Some((self.quantity.of(case)?, case.name.as_str())))
            .collect();
        if cases.is_empty() || !cases.iter().any(|case| self.quantity.takes_part(case)) {
            return None;
        }
        let ratios: Vec<f64> = measured.iter().map(|(ratio, _)| *ratio).collect();
        let mean = geometric_mean(&ratios);
        let worst = measured.iter().max_by(|one, other| one.0.total_cmp(&other.0));
        let within = |value: Option<f64>, limit: Option<f64>| match (value, limit) {
            (Some(value), Some(limit)) => value <= limit,
            (None, Some(_)) => false,
            (_, None) => true,
        };
        let passed = within(mean, self.mean) && within(worst.map(|(ratio, _)| *ratio), self.worst);
        Some(Verdict {
            what: self.what,
            group,
            geometric_mean: mean,
            worst: worst.map(|(ratio, _)| *ratio),
            worst_case: worst.map(|(_, name)| (*name).to_owned()),
            mean_limit: self.mean,
            worst_limit: self.worst,
            measured: measured.len(),
            of: cases.len(),
            passed: (measured.len() == cases.len()).then_some(passed),
        })
    }
}

impl Quantity {
    fn of(self, case: &CaseResult) -> Option<f64> {
        match self {
            Quantity::Times(over, under) => Some(case.ratio(over, under)?.of_rounds),
            Quantity::Trickle => median(&case.trickle.as_ref()?.over_ideal),
        }
    }

    /// Whether the run had in it what this looks at.
    fn takes_part(self, case: &CaseResult) -> bool {
        match self {
            Quantity::Times(over, under) => [over, under].iter().all(|who| case.of(*who).is_some()),
            Quantity::Trickle => case.trickle.is_some() || case.of(Who::OwnTrickle).is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::made_up::{case, timed, trickle};
    use super::super::results::{Contender, Outcome};
    use super::*;

    fn beside(group: Group, own: f64) -> CaseResult {
        case(group, vec![timed(Who::Own, &[own; 3]), timed(Who::Cublaslt, &[100.0; 3])])
    }

    #[test]
    fn means_and_worst_cases_are_judged() {
        let passed = |own: &[f64]| {
            let cases: Vec<_> = own.iter().map(|&own| beside(Group::Bf16, own)).collect();
            let verdicts = judge(&cases);
            assert_eq!(verdicts.len(), 1, "{verdicts:?}");
            verdicts[0].passed
        };
        assert_eq!(passed(&[97.0, 98.0]), Some(true));
        assert_eq!(passed(&[99.0, 99.0]), Some(false), "the mean is above 0.98");
        assert_eq!(passed(&[90.0, 105.0]), Some(false), "one is above 1.04");
    }

    #[test]
    fn what_is_missing_is_not_judged() {
        let mut cases = vec![beside(Group::SmallM, 100.0), beside(Group::SmallM, 100.0)];
        assert_eq!(judge(&cases)[0].passed, Some(true));
        cases[1].contenders[0] = Contender {
            who: Who::Own,
            what: String::new(),
            outcome: Outcome::Failed("wrong".into()),
        };
        let verdict = &judge(&cases)[0];
        assert_eq!((verdict.passed, verdict.measured, verdict.of), (None, 1, 2));
        // Without cuBLASLt in the run there is nothing to say at all.
        cases.iter_mut().for_each(|case| case.contenders.truncate(1));
        assert_eq!(judge(&cases), []);
        assert_eq!(judge(&[beside(Group::Own, 1.0)]), [], "no bar is set for these");
    }

    #[test]
    fn waiting_has_bars_of_its_own() {
        let contenders = vec![timed(Who::Own, &[100.0; 3]), timed(Who::OwnSet, &[102.0; 3])];
        let mut case = case(Group::Fp8Rows, contenders);
        case.trickle = Some(trickle(&[1.01, 1.02, 1.2]));
        let verdicts = judge(&[case]);
        let found: Vec<_> = verdicts.iter().map(|v| (v.what, v.worst, v.passed)).collect();
        assert_eq!(found[0], ("all signals set ÷ none", Some(1.02), Some(false)));
        assert_eq!(found[1], ("chunks trickling in ÷ ideal", Some(1.02), Some(true)));
    }
}
