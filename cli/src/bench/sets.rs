//! Problems by name: the layers of known models, as one of several GPUs multiplies them.
//!
//! What belongs here: the sizes that models publish, and how tensor parallelism cuts them. A layer whose input is
//! gathered is cut by columns: N is its columns divided by the ranks, K is the model's width, M counts tokens. The layer
//! behind it, whose output is reduced, is cut by rows of its weight: N is the width, K its rows divided by the ranks.
//! Invariant: a shape is what a rank really multiplies; a model that does not divide is refused, not rounded.

use clap::ValueEnum;
use overlap_gemm::plan::Operation;

use super::cases::Shape;
use crate::exit::Failure;

/// A set of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LayerSet {
    /// The twelve shapes of the project's tables, as they are, for any number of ranks
    Headline,
    /// Llama-3 8B: queries, keys and values; gate (and up) of the MLP; reduced: the attention's output, down of the MLP
    #[value(name = "llama3-8b")]
    Llama8,
    /// Llama-3 70B, the same layers
    #[value(name = "llama3-70b")]
    Llama70,
    /// Llama-3 405B, the same layers
    #[value(name = "llama3-405b")]
    Llama405,
    /// GPT-3 175B: queries, keys and values; the MLP's first product
    Gpt3,
    /// Few rows, as while tokens are generated: the layers of Llama-3 8B, 70B and 405B, M from 16 to 512
    Decode,
}

/// M of models, unless others are asked for: a prompt or a micro-batch of training.
const LONG: [u64; 6] = [512, 1024, 2048, 4096, 8192, 16384];
/// M while tokens are generated: one token for each request.
const FEW: [u64; 6] = [16, 32, 64, 128, 256, 512];

/// What is known of a model.
struct Model {
    name: &'static str,
    /// K of both layers; N of those that are reduced, the first of which has as many rows.
    width: u64,
    /// Columns of queries, keys and values together.
    qkv: u64,
    /// Columns of the MLP's first product; in Llama, of the gate and of the up projection each.
    mlp: u64,
}

const LLAMA8: Model = Model { name: "llama3-8b", width: 4096, qkv: (32 + 2 * 8) * 128, mlp: 14336 };
const LLAMA70: Model =
    Model { name: "llama3-70b", width: 8192, qkv: (64 + 2 * 8) * 128, mlp: 28672 };
const LLAMA405: Model =
    Model { name: "llama3-405b", width: 16384, qkv: (128 + 2 * 8) * 128, mlp: 53248 };
const GPT3: Model = Model { name: "gpt3", width: 12288, qkv: 3 * 12288, mlp: 4 * 12288 };

const fn shape(m: u64, n: u64, k: u64) -> Shape {
    Shape { m, n, k }
}

/// The shapes of the project's tables; N and K are exchanged where sums are reduced.
pub const HEADLINE: [Shape; 12] = [
    shape(4096, 3584, 8192),
    shape(8192, 3584, 8192),
    shape(16384, 3584, 8192),
    shape(8192, 6656, 16384),
    shape(2048, 3584, 8192),
    shape(4096, 1792, 4096),
    shape(16384, 1792, 4096),
    shape(64, 3584, 8192),
    shape(256, 3584, 8192),
    shape(512, 3584, 8192),
    shape(1024, 3584, 8192),
    shape(512, 1792, 4096),
];

/// What is measured between GPUs where nobody names anything.
pub const USUAL: [Shape; 4] = [
    shape(4096, 3584, 8192),
    shape(8192, 3584, 8192),
    shape(2048, 3584, 8192),
    shape(4096, 1792, 4096),
];

/// Down projections of Llama-3 8B and 70B, as one of eight GPUs multiplies them.
pub const MLPS: [Shape; 8] = [
    shape(64, 4096, 1792),
    shape(1024, 4096, 1792),
    shape(4096, 4096, 1792),
    shape(16384, 4096, 1792),
    shape(64, 8192, 3584),
    shape(1024, 8192, 3584),
    shape(4096, 8192, 3584),
    shape(16384, 8192, 3584),
];

/// What is measured on threads where nobody names anything.
pub const SMALL: [Shape; 4] =
    [shape(256, 512, 1024), shape(512, 512, 1024), shape(1024, 512, 1024), shape(2048, 512, 1024)];

/// The shapes of a gather as that operation has them: a reduction multiplies what such a gather leaves, so N and K are exchanged.
pub fn turned(operation: Operation, shapes: &[Shape]) -> Vec<Shape> {
    let turn =
        |&Shape { m, n, k }| if operation.reduces() { shape(m, k, n) } else { shape(m, n, k) };
    shapes.iter().map(turn).collect()
}

impl LayerSet {
    /// The product of each of that many ranks; M from the list, or as usual for the set if it is empty.
    pub fn shapes(
        self,
        operation: Operation,
        ranks: u32,
        m: &[u64],
    ) -> Result<Vec<Shape>, Failure> {
        let reduces = operation.reduces();
        let (models, usual): (&[Model], _) = match self {
            LayerSet::Headline if m.is_empty() => return Ok(turned(operation, &HEADLINE)),
            LayerSet::Headline => {
                let why = "the set 'headline' has its own M: leave out --m, or give --shapes";
                return Err(Failure::Usage(why.into()));
            }
            LayerSet::Llama8 => (&[LLAMA8], LONG),
            LayerSet::Llama70 => (&[LLAMA70], LONG),
            LayerSet::Llama405 => (&[LLAMA405], LONG),
            LayerSet::Gpt3 => (&[GPT3], LONG),
            LayerSet::Decode => (&[LLAMA8, LLAMA70, LLAMA405], FEW),
        };
        let rows = if m.is_empty() { &usual[..] } else { m };
        let mut shapes = Vec::new();
        for model in models {
            let cut = if reduces { [model.width, model.mlp] } else { [model.qkv, model.mlp] };
            for whole in cut {
                let part = share(model, whole, ranks)?;
                let (n, k) = if reduces { (model.width, part) } else { (part, model.width) };
                shapes.extend(rows.iter().map(|&m| shape(m, n, k)));
            }
        }
        Ok(shapes)
    }
}

/// A rank's part of the columns, or of the rows of a weight. Rows of D, or of A, begin at multiples of 16 bytes: of 8 elements.
fn share(model: &Model, columns: u64, ranks: u32) -> Result<u64, Failure> {
    const MULTIPLE: u64 = 8;
    let ranks = u64::from(ranks.max(1));
    if columns.is_multiple_of(ranks * MULTIPLE) {
        return Ok(columns / ranks);
    }
    Err(Failure::Usage(format!(
        "a layer of {} has {columns} columns, which {ranks} ranks cannot share in multiples of {MULTIPLE}: \
         use another number of ranks, or give --shapes",
        model.name
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATHER: Operation = Operation::AllGatherGemm;
    const REDUCE: Operation = Operation::GemmReduceScatter;

    #[test]
    fn models_are_cut_by_columns() {
        let shapes = LayerSet::Llama70.shapes(GATHER, 8, &[4096]).unwrap();
        assert_eq!(shapes, [shape(4096, 1280, 8192), shape(4096, 3584, 8192)]);
        assert!(HEADLINE.contains(&shapes[1]));
        for (set, m) in [(LayerSet::Llama405, 8192), (LayerSet::Llama8, 4096)] {
            let shapes = set.shapes(GATHER, 8, &[m]).unwrap();
            assert!(HEADLINE.contains(&shapes[1]), "{shapes:?}");
        }
        let shapes = LayerSet::Gpt3.shapes(GATHER, 8, &[]).unwrap();
        assert_eq!((shapes.len(), shapes[0]), (12, shape(512, 4608, 12288)));
    }

    #[test]
    fn what_is_reduced_is_cut_by_rows_of_the_weight() {
        let shapes = LayerSet::Llama70.shapes(REDUCE, 8, &[4096]).unwrap();
        assert_eq!(shapes, [shape(4096, 8192, 1024), shape(4096, 8192, 3584)]);
        let headline = LayerSet::Headline.shapes(REDUCE, 8, &[]).unwrap();
        assert!(headline.contains(&shapes[1]) && headline.len() == HEADLINE.len(), "{headline:?}");
    }

    #[test]
    fn every_set_can_be_measured_by_the_usual_numbers_of_ranks() {
        for set in LayerSet::value_variants() {
            for (operation, ranks) in [GATHER, REDUCE]
                .into_iter()
                .flat_map(|of| [1, 2, 4, 8, 16].map(|ranks| (of, ranks)))
            {
                let shapes = set.shapes(operation, ranks, &[]).unwrap();
                assert!(shapes.len() >= 12, "{set:?}");
                for (nth, shape) in shapes.iter().enumerate() {
                    assert!(!shapes[..nth].contains(shape), "{set:?} has {shape:?} twice");
                }
            }
        }
    }

    #[test]
    fn what_does_not_divide_is_refused() {
        let refused =
            |set: LayerSet, ranks, m: &[u64]| set.shapes(GATHER, ranks, m).unwrap_err().to_string();
        let why = refused(LayerSet::Llama8, 5, &[]);
        assert!(why.contains("llama3-8b has 6144 columns, which 5 ranks"), "{why}");
        let why = refused(LayerSet::Headline, 2, &[64]);
        assert!(why.contains("--shapes"), "{why}");
    }
}
