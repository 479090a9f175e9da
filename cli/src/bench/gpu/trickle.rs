//! The product while its chunks arrive, at a rate of the bench's choosing.
//!
//! Chunks are already in place; what arrives are their signals, written by a second stream. Between
//! two signals that stream copies from pinned host memory to somewhere else: the copy engine does
//! that without an SM (copies within the device need SMs, which the product has) and without the host,
//! and its speed is measured first, so that a copy can last as long as a chunk should take. Nothing
//! depends on how well that works: arrivals are measured by events, like all else. Invariant: a step is
//! compared with the ideal of its own arrivals.

use std::ffi::c_void;
use std::sync::Arc;

use overlap_gemm::Result;
use overlap_gemm::cuda::cudarc::driver::{CudaEvent, CudaStream, PinnedHostSlice, sys};
use overlap_gemm::cuda::{AsyncGemm, GemmOptions, Signals};
use overlap_gemm::plan::{Chunks, Problem};

use super::super::report::Arrivals;
use super::super::statistics::median;
use super::driver::{Block, Gpu, call, elapsed_ms, record, status};
use super::inputs::Inputs;
use super::own::operands;
use super::timing::Product;

/// The longest single copy.
const PIECE: u64 = 32 << 20;

/// Steps before the timed ones in every round, so that the host is ahead of the device.
const LEAD_IN: usize = 4;

/// The least and the most steps of each kind in a round.
const STEPS: std::ops::RangeInclusive<usize> = 8..=100;

/// What makes a stream wait.
struct Pace {
    stream: Arc<CudaStream>,
    host: PinnedHostSlice<u8>,
    host_address: *const c_void,
    sink: Block,
    /// Milliseconds of a signal and a copy of nothing, and of a byte.
    fixed_ms: f64,
    byte_ms: f64,
}

impl Pace {
    fn new(gpu: &Gpu) -> Result<Pace> {
        let context = gpu.device.context();
        // SAFETY: nobody reads what is in it but the copy engine, to which all bytes are alike.
        let host = unsafe { context.alloc_pinned::<u8>(PIECE as usize) };
        let host = call("cuMemHostAlloc", host)?;
        let host_address = call("cuEventSynchronize", host.as_ptr())?.cast();
        let (stream, sink) = (gpu.device.new_stream()?, gpu.allocate(PIECE)?);
        gpu.synchronize()?;
        Ok(Pace { stream, host, host_address, sink, fixed_ms: 0.0, byte_ms: 1.0 })
    }

    /// Measures how long a signal and a copy take, on signals that nobody waits for.
    fn calibrate(&mut self, gpu: &Gpu, signals: &Signals) -> Result<()> {
        const SIGNALS: u32 = 16;
        let (begin, end) = (gpu.event()?, gpu.event()?);
        let timed = |bytes: u64| -> Result<f64> {
            let mut all = Vec::new();
            for _ in 0..5 {
                // The first is not counted: the stream may have to wake up.
                self.copy(bytes)?;
                record(&begin, &self.stream)?;
                for _ in 0..SIGNALS {
                    self.copy(bytes)?;
                    signals.write(&self.stream, 0)?;
                }
                record(&end, &self.stream)?;
                all.push(elapsed_ms(&begin, &end)? / f64::from(SIGNALS));
            }
            Ok(median(&all).unwrap_or_default())
        };
        let (small, large) = (1 << 18, 1 << 22);
        let (small_ms, large_ms) = (timed(small)?, timed(large)?);
        let byte_ms = ((large_ms - small_ms) / (large - small) as f64).max(1e-12);
        let fixed_ms = (small_ms - byte_ms * small as f64).max(0.0);
        (self.fixed_ms, self.byte_ms) = (fixed_ms, byte_ms);
        Ok(())
    }

    /// Enqueues copies that, with a signal behind them, take about `ms`.
    fn wait(&self, ms: f64) -> Result<()> {
        let mut bytes = ((ms - self.fixed_ms).max(0.0) / self.byte_ms) as u64;
        while bytes > 0 {
            self.copy(bytes.min(PIECE))?;
            bytes -= bytes.min(PIECE);
        }
        Ok(())
    }

    fn copy(&self, bytes: u64) -> Result<()> {
        debug_assert!(bytes <= PIECE && self.host.len() as u64 == PIECE);
        let (to, from, bytes) = (self.sink.address, self.host_address, bytes as usize);
        // SAFETY: both are `PIECE` bytes long and live as long as this does, which waits for the
        // stream before it goes; what lies there means nothing.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, self.stream.cu_stream()) };
        status("cuMemcpyHtoDAsync", copied)
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        // An error here was an error before, and has been told.
        let _ = self.stream.synchronize();
    }
}

/// The product and its arriving chunks, ready to be timed.
pub struct Trickle<'a> {
    gpu: &'a Gpu,
    inputs: &'a Inputs,
    /// The same product without signals, for the comparison.
    plain: &'a dyn Product,
    gemm: AsyncGemm,
    signals: Signals,
    pace: Pace,
    chunks: Chunks,
    bytes_per_chunk: u64,
    interval_ms: f64,
    gated_share: f64,
    gated_share_in_waves: f64,
}

/// The events of one step.
struct Marks {
    begin: CudaEvent,
    arrived: Option<CudaEvent>,
    done: CudaEvent,
}

/// What one round gave, in milliseconds: a median over steps each.
pub struct Round {
    pub total: f64,
    pub last_arrival: f64,
    pub product: f64,
    pub over_ideal: f64,
    pub over_ideal_in_waves: f64,
}

impl<'a> Trickle<'a> {
    /// Plans the product for chunks that arrive at `bytes_per_second`.
    pub fn plan(
        gpu: &'a Gpu,
        inputs: &'a Inputs,
        plain: &'a dyn Product,
        (problem, chunks): (&Problem, Chunks),
        options: &GemmOptions,
        bytes_per_second: f64,
    ) -> Result<Trickle<'a>> {
        let gemm = AsyncGemm::plan(&gpu.device, problem, &chunks, 0, options)?;
        let signals = Signals::new(&gpu.device, chunks.len())?;
        let mut pace = Pace::new(gpu)?;
        pace.calibrate(gpu, &signals)?;
        let bytes_per_chunk = problem.row_bytes(&chunks.rows(chunks.len() - 1)) as u64;
        let interval_ms = 1e3 * bytes_per_chunk as f64 / bytes_per_second;
        let last = chunks.need_order(0).last().unwrap_or_default();
        let order = gemm.tile_order();
        let all = order.tile_count();
        // The last chunk gates the tiles that it touches.
        let gated = order.tiles().filter(|&tile| order.chunks_of(tile).contains(&last)).count();
        let (gated_share, gated_share_in_waves) =
            shares(gated as u64, all, u64::from(gemm.sm_count()));
        Ok(Trickle {
            gpu,
            inputs,
            plain,
            gemm,
            signals,
            pace,
            chunks,
            bytes_per_chunk,
            interval_ms,
            gated_share,
            gated_share_in_waves,
        })
    }

    /// One step on the set of that number, chunks arriving; does not wait for it.
    pub fn enqueue(&self, set: usize) -> Result<()> {
        self.trickling(set).map(|_| ())
    }

    /// An error if a chunk did not come in time. Waits.
    pub fn check(&self) -> Result<()> {
        self.gpu.synchronize()?;
        self.signals.check()
    }

    fn trickling(&self, set: usize) -> Result<Marks> {
        let (gpu, producer) = (self.gpu, &self.pace.stream);
        let (gate, arrived) = (gpu.event()?, gpu.event()?);
        self.signals.advance(&gpu.stream)?;
        for chunk in self.chunks.of_rank(0) {
            self.signals.post(&gpu.stream, chunk)?;
        }
        // Before the product is enqueued, so that nothing it waits for is behind it.
        record(&gate, &gpu.stream)?;
        call("cuStreamWaitEvent", producer.wait(&gate))?;
        for chunk in self.chunks.need_order(0).skip(self.chunks.of_rank(0).len()) {
            self.pace.wait(self.interval_ms)?;
            self.signals.write(producer, chunk)?;
        }
        record(&arrived, producer)?;
        let begin = gpu.event()?;
        record(&begin, &gpu.stream)?;
        // SAFETY: the set is as large as the problem says and lives until the stream is through.
        unsafe {
            self.gemm.enqueue_raw(&gpu.stream, &operands(self.inputs, set), &self.signals)?;
        }
        let done = gpu.event()?;
        record(&done, &gpu.stream)?;
        Ok(Marks { begin, arrived: Some(arrived), done })
    }

    /// The same step with nothing to wait for.
    fn standing(&self, set: usize) -> Result<Marks> {
        let gpu = self.gpu;
        self.signals.advance(&gpu.stream)?;
        let (begin, done) = (gpu.event()?, gpu.event()?);
        record(&begin, &gpu.stream)?;
        self.plain.enqueue(gpu, self.inputs, set)?;
        record(&done, &gpu.stream)?;
        Ok(Marks { begin, arrived: None, done })
    }

    /// One round: steps of both kinds, as many as last `target_ms` at `product_ms`.
    pub fn round(&self, nth: usize, product_ms: f64, target_ms: f64) -> Result<Round> {
        let count = (target_ms / product_ms.max(1e-3)).ceil() as usize;
        let count = count.clamp(*STEPS.start(), *STEPS.end());
        let (mut standing, mut trickling) = (Vec::new(), Vec::new());
        // Neither kind always comes first.
        let first = nth.is_multiple_of(2);
        for trickles in [first, !first] {
            let step = |i: usize| {
                let set = i % self.inputs.sets.len();
                if trickles { self.trickling(set) } else { self.standing(set) }
            };
            (0..LEAD_IN).try_for_each(|i| step(i).map(|_| ()))?;
            let marks = (0..count).map(step).collect::<Result<Vec<_>>>()?;
            if trickles {
                trickling = marks
            } else {
                standing = marks
            }
            self.check()?;
        }
        let times = |marks: &[Marks]| -> Result<Vec<f64>> {
            marks.iter().map(|step| elapsed_ms(&step.begin, &step.done)).collect()
        };
        let (product, totals) = (times(&standing)?, times(&trickling)?);
        let arrivals: Vec<f64> = trickling
            .iter()
            .filter_map(|step| Some(elapsed_ms(&step.begin, step.arrived.as_ref()?)))
            .collect::<Result<_>>()?;
        let middle = |values: &[f64]| median(values).unwrap_or_default();
        let product = middle(&product);
        let over = |share: f64| {
            let steps = totals.iter().zip(&arrivals);
            let ratios: Vec<f64> =
                steps.map(|(total, arrival)| total / ideal(product, *arrival, share)).collect();
            middle(&ratios)
        };
        Ok(Round {
            total: middle(&totals),
            last_arrival: middle(&arrivals),
            product,
            over_ideal: over(self.gated_share),
            over_ideal_in_waves: over(self.gated_share_in_waves),
        })
    }

    /// All rounds, for the report: microseconds a step, and how its chunks arrived.
    pub fn results(&self, rounds: &[Round]) -> (Vec<f64>, Arrivals) {
        let each = |of: fn(&Round) -> f64| rounds.iter().map(of).collect();
        let arrivals = Arrivals {
            chunks: self.chunks.len(),
            bytes_per_chunk: self.bytes_per_chunk,
            last_us: each(|round| 1e3 * round.last_arrival),
            product_us: each(|round| 1e3 * round.product),
            gated_share: self.gated_share,
            over_ideal: each(|round| round.over_ideal),
            over_ideal_in_waves: each(|round| round.over_ideal_in_waves),
        };
        (each(|round| 1e3 * round.total), arrivals)
    }
}

/// The time below which nobody can be: the product's own, and what is left when the last chunk is here.
fn ideal(product: f64, last_arrival: f64, gated_share: f64) -> f64 {
    product.max(last_arrival + gated_share * product)
}

/// The part of the tiles that is gated, and the part of the waves of `workers` tiles at a time.
fn shares(gated: u64, all: u64, workers: u64) -> (f64, f64) {
    let waves = |tiles: u64| tiles.div_ceil(workers.max(1)) as f64;
    let all = all.max(1);
    (gated as f64 / all as f64, waves(gated) / waves(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_is_the_later_of_two() {
        assert_eq!(ideal(100.0, 50.0, 0.125), 100.0, "all hidden");
        assert_eq!(ideal(100.0, 200.0, 0.125), 212.5, "the link decides");
        assert_eq!(ideal(100.0, -5.0, 0.125), 100.0, "all there before it began");
    }

    #[test]
    fn waves_are_rounded_up() {
        assert_eq!(shares(28, 224, 132), (0.125, 0.5));
        assert_eq!(shares(224, 224, 132), (1.0, 1.0));
        assert_eq!(shares(0, 0, 0), (0.0, 0.0));
    }
}
