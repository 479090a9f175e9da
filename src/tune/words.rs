//! The table's words for what `predict` has words for, too.
//!
//! Invariant: there and back is the same; what a table has no words for (NCCL, a product alone) is `None`.

use super::entry::{Gathering, Mover, Multiplying, Order};
use super::lookup::Answer;
use crate::predict::{Choice, Engine, Kernel, Setup, Strategy};

impl Order {
    pub(crate) fn strategy(self) -> Strategy {
        match self {
            Order::Fused => Strategy::Fused,
            Order::Pipelined => Strategy::Pipelined,
            Order::Sequential => Strategy::Sequential,
        }
    }

    fn of_strategy(strategy: Strategy) -> Option<Order> {
        match strategy {
            Strategy::Fused => Some(Order::Fused),
            Strategy::Pipelined => Some(Order::Pipelined),
            Strategy::Sequential => Some(Order::Sequential),
            Strategy::Plain => None,
        }
    }
}

impl Mover {
    pub(super) fn engine(self) -> Engine {
        match self {
            Mover::CopyEngines { streams } => Engine::CopyEngines { streams },
            Mover::Kernel { blocks } => Engine::Kernel { blocks },
        }
    }

    pub(super) fn of_engine(engine: Engine) -> Option<Mover> {
        match engine {
            Engine::CopyEngines { streams } => Some(Mover::CopyEngines { streams }),
            Engine::Kernel { blocks } => Some(Mover::Kernel { blocks }),
            Engine::Nccl => None,
        }
    }
}

impl Gathering {
    /// How rows travel where a step is carried out so; `None`: they do not, or by NCCL.
    pub fn of_setup(setup: &Setup) -> Option<Gathering> {
        let (order, mover) = (Order::of_strategy(setup.strategy)?, Mover::of_engine(setup.engine)?);
        Some(Gathering { order, mover, pieces: setup.pieces })
    }
}

impl Multiplying {
    /// That kernel, run that way.
    pub fn of(kernel: &Kernel, choice: Choice) -> Multiplying {
        let Kernel { name, tile, cluster, .. } = kernel;
        let Choice { swizzle, splits, .. } = choice;
        Multiplying { kernel: name.clone(), tile: *tile, cluster: *cluster, swizzle, splits }
    }
}

impl Answer {
    /// How a step is carried out by it; `None`: whoever asks chooses the kernel, or nobody knows it.
    pub fn setup(&self) -> Option<Setup> {
        let Gathering { order, mover, pieces } = self.gathering;
        let multiplying = self.multiplying.as_ref()?;
        Some(Setup {
            strategy: order.strategy(),
            engine: mover.engine(),
            pieces,
            kernel: Kernel::from_name(&multiplying.kernel)?,
            swizzle: multiplying.swizzle,
            splits: multiplying.splits,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::problem;
    use super::*;
    use crate::predict::Machine;

    #[test]
    fn there_and_back_is_the_same() {
        let problem = problem(4096, 3584, 8192);
        for strategy in Strategy::ALL {
            let mut setup = Setup::usual(&Machine::h200(), &problem, strategy).unwrap();
            let Some(gathering) = Gathering::of_setup(&setup) else {
                assert_eq!(strategy, Strategy::Plain);
                continue;
            };
            assert_eq!(gathering.order.strategy(), strategy);
            assert_eq!((gathering.mover.engine(), gathering.pieces), (setup.engine, setup.pieces));
            let multiplying = Multiplying::of(&setup.kernel, Choice::new(0, 4, 1));
            assert_eq!(
                (&multiplying.kernel, multiplying.tile),
                (&setup.kernel.name, setup.kernel.tile)
            );
            assert_eq!((multiplying.swizzle, multiplying.splits), (4, 1));
            setup.engine = Engine::Nccl;
            assert_eq!(Gathering::of_setup(&setup), None);
        }
    }
}
