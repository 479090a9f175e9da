//! The figures of a machine.
//!
//! What belongs here: plain figures, each measurable by itself, and the cost of one product by them.
//! Invariant: no figure is fitted to one shape; each names its source, and
//! docs/predicting.md names the measurements that it was fitted to.

use serde::Serialize;

use crate::error::{Error, Result};
use crate::kernels::{Kernel, Work, beside};
use crate::plan::Engine;

/// The most SMs of a GPU: a prediction keeps a clock for each. The largest GPU has some two hundred.
const MOST_SMS: u32 = 1 << 16;

/// The figures of equal GPUs and of the links between them. A GB is 10⁹ bytes; directions of a link
/// do not share its rate.
///
/// ```
/// use overlap_gemm::predict::Machine;
///
/// // Half the link, all else unchanged.
/// let machine = Machine::h200().with_link(185.0);
/// assert_eq!(machine.link_gbps, 185.0);
/// assert_eq!(machine.sms, Machine::h200().sms);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Machine {
    /// SMs of a GPU.
    pub sms: u32,
    /// Seconds of a product per second of the kernels' cost model, for 16-bit inputs.
    pub product_scale: f64,
    /// The same for fp8.
    pub product_scale_fp8: f64,
    /// What memory gives and takes, in GB/s, all SMs together.
    pub memory_gbps: f64,
    /// From one kernel to the next on a stream, until tiles are computed, and from the last tile to the end, in µs.
    pub launch_us: f64,
    /// What a GPU sends, or receives, at most, in GB/s.
    pub link_gbps: f64,
    /// What a GPU sends to any one other, at most, in GB/s: less than the link's where GPUs are connected in pairs.
    pub peer_gbps: f64,
    /// The part of the link's rate that is left where copies to several peers are under way at once.
    pub several_share: f64,
    /// What each copy costs the engine besides its bytes, in µs. Copies of two streams do not share it.
    pub copy_us: f64,
    /// From the end of a copy until its signal is seen, and the stream goes on, in µs.
    pub signal_us: f64,
    /// Until a step has begun, in µs, and the product behind has seen it: from then on it may read this rank's own rows.
    pub own_us: f64,
    /// Until the ranks have allowed each other to send, and a pushing stream has seen it, in µs.
    pub begin_us: f64,
    /// The same where the kernel that begins the step pushes as well: until its first byte leaves.
    pub begin_push_us: f64,
    /// What each piece that a kernel pushes costs besides its bytes, in µs.
    pub push_us: f64,
    /// What one block of such a kernel sends, in GB/s.
    pub push_block_gbps: f64,
    /// A kernel that waits for rows, from their signals to what comes next, in µs.
    pub await_us: f64,
    /// What a kernel that waits for all ranks' sums and adds them up costs besides the bytes that it reads, in µs: what a step of
    /// one row takes longer than its product.
    pub exchange_us: f64,
    /// What a kernel that adds up sums which have arrived costs besides their bytes, in µs.
    pub adding_us: f64,
    /// What one block of such a kernel reads and writes while it adds up, in GB/s.
    pub adding_block_gbps: f64,
    /// How much longer a tile takes while the link is busy: its bytes take their part of memory and of the power limit.
    pub busy_slowdown: f64,
    /// How much of a time in which nothing is computed the next product gains: at the power limit a GPU that has
    /// rested runs at a higher clock.
    pub rest_gain: f64,
    /// The largest part of its time that a product gains so.
    pub rest_gain_most: f64,
    /// What NCCL's all-gather costs besides its bytes, in µs.
    pub nccl_us: f64,
    /// What each rank but one adds to that, in µs.
    pub nccl_rank_us: f64,
    /// NCCL's share of the link's rate.
    pub nccl_share: f64,
    /// NCCL has a second protocol, for few bytes. What it costs besides these, for any number of ranks, in µs.
    pub nccl_small_us: f64,
    /// What NCCL sends by that protocol at most, in GB/s.
    pub nccl_small_gbps: f64,
}

impl Machine {
    /// NVIDIA H200 with NVLink through NVSwitch. What each figure was fitted to:
    ///
    /// - `product_scale`, `product_scale_fp8`, `memory_gbps`, `launch_us`, `copy_us`, `signal_us`, `own_us`, `begin_us`,
    ///   `begin_push_us`, `push_us`, `await_us`, `busy_slowdown`, `nccl_us`, `nccl_small_us`: all results that
    ///   `docs/predicting.md` compares with predictions, together, three times: each time that the kernels' figures were
    ///   fitted anew. They started from figures of 115 tuned problems, and none moved by more than half at a time. Both scales
    ///   again with the kernels' figures of 2026-11-28.
    /// - `exchange_us`: `benches/results/2026-11-29-h200x2-few-all-reduce.json` and the reduce-scatter's file beside it.
    /// - `adding_block_gbps`: both reductions in `benches/results/2026-11-26-h200x2-few-sums.txt`.
    /// - `adding_us`: both by copies, `2026-11-26-h200x2-all-reduce.json` and `2026-11-26-h200x2-adding-product.txt` there.
    /// - `push_block_gbps`: those 115 problems (version 1 of `src/tune/h200.json`, in the repository's history).
    /// - `several_share`: all-gathers alone between four H200, `benches/results/2026-11-22-h200x4-streams.json`.
    /// - `link_gbps`, `nccl_rank_us`, `nccl_share`: all-gathers alone between eight H200, 2 to
    ///   32 MiB a rank, in one and four pieces, on one and two streams, and NCCL's.
    /// - `rest_gain`, `rest_gain_most`: `sequential` of 8192 and 16384 × 3584 × 8192 in
    ///   `benches/results/2026-11-21-h200x2-all-gather-gemm-bf16.json`, and NCCL with cuBLAS on eight H200.
    /// - `nccl_small_gbps`: `nccl-cublaslt` of 64, 256 and 2048 × 3584 × 8192 there; that ranks add
    ///   nothing to `nccl_small_us`: the same of 64 and 128 rows in `benches/results/2026-11-22-h200x4-told-together.json`.
    pub const fn h200() -> Self {
        Machine {
            sms: 132,
            product_scale: 1.19,
            product_scale_fp8: 1.25,
            memory_gbps: 3920.0,
            launch_us: 0.97,
            link_gbps: 380.0,
            peer_gbps: 380.0,
            several_share: 0.68,
            copy_us: 10.7,
            signal_us: 1.33,
            own_us: 5.2,
            begin_us: 2.4,
            begin_push_us: 4.0,
            push_us: 1.8,
            push_block_gbps: 37.0,
            await_us: 2.6,
            exchange_us: 7.2,
            adding_us: 3.1,
            adding_block_gbps: 44.0,
            busy_slowdown: 0.134,
            rest_gain: 0.2,
            rest_gain_most: 0.15,
            nccl_us: 25.3,
            nccl_rank_us: 3.0,
            nccl_share: 0.92,
            nccl_small_us: 7.0,
            nccl_small_gbps: 110.0,
        }
    }

    /// With another link, `gbps` in each direction and to each peer.
    #[must_use]
    pub const fn with_link(self, gbps: f64) -> Self {
        Machine { link_gbps: gbps, peer_gbps: gbps, ..self }
    }

    /// With that many SMs, as fast as these each.
    #[must_use]
    pub const fn with_sms(self, sms: u32) -> Self {
        Machine { sms, ..self }
    }

    /// An error if a figure makes no sense, or `kernel` does not fit on the SMs.
    pub(super) fn check(&self, kernel: &Kernel) -> Result<()> {
        let rates = [
            ("the link's GB/s", self.link_gbps),
            ("the GB/s to one peer", self.peer_gbps),
            ("the memory's GB/s", self.memory_gbps),
            ("NCCL's share of the link", self.nccl_share),
            ("NCCL's GB/s for little", self.nccl_small_gbps),
            ("the scale of products", self.product_scale),
            ("push_block_gbps", self.push_block_gbps),
            ("adding_block_gbps", self.adding_block_gbps),
            ("several_share", self.several_share),
            ("the scale of fp8 products", self.product_scale_fp8),
        ];
        if let Some((what, rate)) =
            rates.iter().find(|(_, rate)| !(rate.is_finite() && *rate > 0.0))
        {
            let remedy = "give a figure that could be measured";
            return Err(Error::mismatch(*what, rate, "a finite number above zero", remedy));
        }
        let costs = [
            ("launch_us", self.launch_us),
            ("copy_us", self.copy_us),
            ("signal_us", self.signal_us),
            ("own_us", self.own_us),
            ("begin_us", self.begin_us),
            ("begin_push_us", self.begin_push_us),
            ("push_us", self.push_us),
            ("await_us", self.await_us),
            ("exchange_us", self.exchange_us),
            ("adding_us", self.adding_us),
            ("busy_slowdown", self.busy_slowdown),
            ("rest_gain", self.rest_gain),
            ("nccl_us", self.nccl_us),
            ("nccl_rank_us", self.nccl_rank_us),
            ("nccl_small_us", self.nccl_small_us),
        ];
        if let Some((what, cost)) =
            costs.iter().find(|(_, cost)| !(cost.is_finite() && *cost >= 0.0))
        {
            let remedy = "give a figure that could be measured";
            return Err(Error::mismatch(*what, cost, "a finite number, not below zero", remedy));
        }
        if !(0.0..1.0).contains(&self.rest_gain_most) {
            let remedy = "a product gains less than all of its time";
            let what = "rest_gain_most";
            return Err(Error::mismatch(what, self.rest_gain_most, "0 or more, below 1", remedy));
        }
        let remedy =
            "give the machine as many SMs as a GPU has, and one cluster of the kernel needs";
        Error::check_range("the number of SMs", self.sms, kernel.cluster_size()..=MOST_SMS, remedy)
    }

    /// What a product takes, on this machine.
    pub(super) fn product(&self, work: &Work, fp8: bool) -> ProductTimes {
        let scale = 1e6 * if fp8 { self.product_scale_fp8 } else { self.product_scale };
        let waves = work.waves as f64;
        let moving = 1e6 * work.moving(1e9 * self.memory_gbps) / waves;
        let computing = scale * (work.unit + work.power / waves);
        let unit = beside(computing, moving);
        let ahead = unit - beside(computing, (1.0 - work.ahead) * moving);
        ProductTimes { unit, ahead, joining: scale * work.joining }
    }

    /// What adding up takes: `bytes` of sums and outputs through memory.
    pub(super) fn adding(&self, engine: Engine, bytes: f64) -> f64 {
        let rate = match engine {
            Engine::Kernel { blocks } => {
                self.memory_gbps.min(self.adding_block_gbps * f64::from(blocks))
            }
            _ => self.memory_gbps,
        };
        bytes / (1e3 * rate)
    }

    /// Until a step's first rows are sent, in µs.
    pub(super) fn sends_at(&self, engine: Engine) -> f64 {
        match engine {
            Engine::Nccl => 0.0,
            Engine::Kernel { .. } => self.begin_push_us,
            Engine::CopyEngines { .. } | Engine::Thread => self.begin_us,
        }
    }

    /// Bytes a µs from one GPU to one other.
    pub(super) fn rate(&self, engine: Engine) -> f64 {
        let link = self.link_gbps.min(self.peer_gbps);
        1e3 * match engine {
            Engine::Kernel { blocks } => link.min(self.push_block_gbps * f64::from(blocks)),
            Engine::CopyEngines { .. } | Engine::Nccl | Engine::Thread => link,
        }
    }
}

/// A product's parts, in µs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProductTimes {
    /// One unit of a cluster.
    pub(super) unit: f64,
    /// What a unit that waits for its rows gains at most: it loads B meanwhile.
    pub(super) ahead: f64,
    /// Adding up slices of K, once.
    pub(super) joining: f64,
}
