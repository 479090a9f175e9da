//! What lies between the GPUs of a machine, pair by pair and as a whole.
//!
//! What belongs here: names for links, and what a whole matrix of them amounts to. Pure: who asks the
//! machine fills in the matrix. Invariant: a whole is never called better than its worst pair, and what is
//! not known of one pair is not known of the whole.

use std::fmt;

/// What lies between one GPU and another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case", tag = "kind")
)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Topology {
    /// There is one GPU, or none: nothing has to be connected.
    Single,
    /// Every pair through NVSwitch.
    Switch,
    /// Every pair by NVLinks of its own, or through NVSwitch.
    FullMesh,
    /// Every GPU by NVLink to some others, and by way of them to all: the hybrid cube mesh of eight, say.
    /// Other pairs are on PCIe, or cannot reach each other directly.
    HybridMesh,
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
        let pairs = || (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let between = |(from, to): (usize, usize)| match links[from].get(to) {
            Some(link) => *link,
            None => Link::Unknown,
        };
        let all = |good: fn(Link) -> bool| {
            pairs().filter(|(from, to)| from != to).all(|pair| good(between(pair)))
        };
        let is_nvlink = |link| matches!(link, Link::Switched { .. } | Link::Direct { .. });
        if count < 2 {
            Topology::Single
        } else if !all(|link| !matches!(link, Link::Unknown | Link::Itself)) {
            Topology::Unknown
        } else if all(|link| matches!(link, Link::Switched { .. })) {
            Topology::Switch
        } else if all(is_nvlink) {
            Topology::FullMesh
        } else if is_connected(count, |from, to| is_nvlink(between((from, to)))) {
            Topology::HybridMesh
        } else if all(|link| link != Link::Unreachable) {
            Topology::Pcie
        } else {
            Topology::None
        }
    }
}

/// Whether one can come from the first to all others over `linked` pairs.
fn is_connected(count: usize, linked: impl Fn(usize, usize) -> bool) -> bool {
    let mut reached = vec![0];
    let mut next = 0;
    while let Some(&from) = reached.get(next) {
        let new = |to: &usize| linked(from, *to) && !reached.contains(to);
        let more: Vec<_> = (0..count).filter(new).collect();
        reached.extend(more);
        next += 1;
    }
    reached.len() == count
}

/// As ranks tell each other, and people read it.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Topology::Single => "one GPU",
            Topology::Switch => "NVSwitch",
            Topology::FullMesh => "NVLink, every pair",
            Topology::HybridMesh => "NVLink, some pairs",
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
        // Two quads, each a mesh, and a link from each GPU to its twin: eight V100 in a cube.
        let cube = |from: usize, to: usize| match from / 4 == to / 4 || from % 4 == to % 4 {
            true => direct,
            false => Link::Pcie,
        };
        assert_eq!(machine(8, cube), Topology::HybridMesh);
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
        assert_eq!(with(Link::Pcie, switched), Topology::HybridMesh);
        assert_eq!(with(Link::Direct { links: 1 }, switched), Topology::FullMesh);
        assert_eq!(Topology::of(&[vec![Link::Itself], vec![]]), Topology::Unknown, "not square");
    }
}
