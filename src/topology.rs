//! What lies between the GPUs of a machine, pair by pair and as a whole.
//!
//! What belongs here: names for links, and what a whole matrix of them amounts to. Pure: who asks the
//! machine fills in the matrix. Invariant: a whole is never called better than its worst pair, and what is
//! not known of one pair is not known of the whole.

use std::fmt;

use serde::Serialize;

/// What lies between one GPU and another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[non_exhaustive]
pub enum Link {
    /// Nothing: it is the same GPU.
    Itself,
    /// NVLinks to the switches that both are on.
    Switched {
        /// How many links the GPU that has fewer has.
        links: u32,
    },
    /// NVLinks from one to the other.
    Direct {
        /// How many.
        links: u32,
    },
    /// PCIe, and each can read the other's memory.
    Pcie,
    /// No way to read the other's memory.
    Unreachable,
    /// The machine does not say.
    Unknown,
}

/// What connects all GPUs of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Topology {
    /// There is one GPU, or none: nothing has to be connected.
    Single,
    /// Every pair through NVSwitch.
    Switch,
    /// Every pair by NVLinks of its own, or through NVSwitch.
    FullMesh,
    /// Every pair can reach each other, and some have nothing better than PCIe.
    Pcie,
    /// Some pair cannot reach each other.
    None,
    /// Of some pair it is not known.
    Unknown,
}

impl Topology {
    /// What a matrix of links amounts to: row by row, from each GPU to each.
    pub fn of(links: &[Vec<Link>]) -> Topology {
        let count = links.len();
        let between = |from: usize, to| links[from].get(to).copied().unwrap_or(Link::Unknown);
        let others =
            |from| (0..count).filter(move |to| *to != from).map(move |to| between(from, to));
        let all = |good: fn(Link) -> bool| (0..count).flat_map(others).all(good);
        if count < 2 {
            Topology::Single
        } else if !all(|link| !matches!(link, Link::Unknown | Link::Itself)) {
            Topology::Unknown
        } else if all(|link| matches!(link, Link::Switched { .. })) {
            Topology::Switch
        } else if all(|link| matches!(link, Link::Switched { .. } | Link::Direct { .. })) {
            Topology::FullMesh
        } else if all(|link| link != Link::Unreachable) {
            Topology::Pcie
        } else {
            Topology::None
        }
    }
}

/// As ranks tell each other, and people read it.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Topology::Single => "one GPU",
            Topology::Switch => "NVSwitch",
            Topology::FullMesh => "NVLink, every pair",
            Topology::Pcie => "PCIe",
            Topology::None => "not connected",
            Topology::Unknown => "unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose pairs have the links of `between`.
    fn machine(count: usize, between: impl Fn(usize, usize) -> Link) -> Topology {
        let link = |from, to| if from == to { Link::Itself } else { between(from, to) };
        let row = |from| (0..count).map(|to| link(from, to)).collect();
        Topology::of(&(0..count).map(row).collect::<Vec<_>>())
    }

    #[test]
    fn known_machines_are_recognised() {
        let (switched, direct) = (Link::Switched { links: 18 }, Link::Direct { links: 2 });
        assert_eq!(machine(0, |_, _| Link::Pcie), Topology::Single);
        assert_eq!(machine(1, |_, _| Link::Pcie), Topology::Single);
        assert_eq!(machine(8, |_, _| switched), Topology::Switch);
        assert_eq!(machine(4, |_, _| direct), Topology::FullMesh);
        assert_eq!(machine(4, |_, _| Link::Pcie), Topology::Pcie);
        // Pairs with a bridge, and PCIe between the pairs.
        let bridged = |from: usize, to: usize| if from / 2 == to / 2 { direct } else { Link::Pcie };
        assert_eq!(machine(4, bridged), Topology::Pcie);
    }

    #[test]
    fn one_bad_pair_spoils_the_whole() {
        let with = |bad: Link, rest: Link| {
            machine(4, move |from, to| if from + to == 3 && from < 2 { bad } else { rest })
        };
        let switched = Link::Switched { links: 18 };
        assert_eq!(with(Link::Unknown, switched), Topology::Unknown);
        assert_eq!(with(Link::Unreachable, Link::Pcie), Topology::None);
        assert_eq!(with(Link::Pcie, switched), Topology::Pcie);
        assert_eq!(with(Link::Direct { links: 1 }, switched), Topology::FullMesh);
        assert_eq!(Topology::of(&[vec![Link::Itself], vec![]]), Topology::Unknown, "not square");
    }
}
