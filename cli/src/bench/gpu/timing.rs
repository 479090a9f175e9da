//! Loops of launches, timed by events on the device.
//!
//! A [`Loop`] is the same number of products for every contender of a case, going round the sets of
//! matrices, in CUDA graphs or launched one by one. Invariant: what is timed begins behind work of the
//! same contender that is not timed, so that neither clocks nor caches are another's; and everyone is
//! launched alike.

use overlap_gemm::Result;
use overlap_gemm::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use overlap_gemm::cuda::cudarc::driver::{CudaEvent, CudaGraph};

use super::super::wanted::{Launch, LoopTimes};
use super::driver::{Gpu, call};

/// Launches that a graph has at least, where a loop is long enough for them.
const LAUNCHES: usize = 20;

/// What can be launched again and again: enqueues one product on the set of that number.
pub type Product<'a> = dyn Fn(usize) -> Result<()> + 'a;

/// The two ends of what is timed.
pub struct Watch {
    begin: CudaEvent,
    end: CudaEvent,
}

impl Watch {
    /// Two events.
    pub fn new(gpu: &Gpu) -> Result<Watch> {
        Ok(Watch { begin: gpu.event()?, end: gpu.event()? })
    }

    /// Milliseconds that the device takes for what `enqueue` enqueues; waits for it.
    pub fn time(&self, gpu: &Gpu, enqueue: impl FnOnce() -> Result<()>) -> Result<f64> {
        call("cuEventRecord", self.begin.record(&gpu.stream))?;
        enqueue()?;
        call("cuEventRecord", self.end.record(&gpu.stream))?;
        call("cuEventElapsedTime", self.begin.elapsed_ms(&self.end)).map(f64::from)
    }
}

/// How long a loop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// Products in one graph: a multiple of the sets.
    pub launches: usize,
    /// Graphs in one loop that are not timed, before those that are.
    pub warm: usize,
    /// Graphs in one loop that are timed.
    pub replays: usize,
}

impl Length {
    /// Long enough for `times` when a product takes `product_ms`.
    pub fn new(product_ms: f64, sets: usize, times: LoopTimes) -> Length {
        let sets = sets.max(1);
        let product_ms = product_ms.max(1e-4);
        // Few enough launches that one graph is no longer than a loop.
        let most = ((times.timed_ms / product_ms) as usize).max(1);
        let launches = sets * LAUNCHES.min(most).div_ceil(sets);
        let replays = |ms: f64| (ms / (product_ms * launches as f64)).ceil().max(1.0) as usize;
        Length { launches, warm: replays(times.warm_ms), replays: replays(times.timed_ms) }
    }

    /// Products that are timed in one loop.
    pub fn products(self) -> usize {
        self.launches * self.replays
    }
}

/// One contender's loop, ready to be timed.
pub struct Loop<'a> {
    product: &'a Product<'a>,
    sets: usize,
    length: Length,
    graph: Option<CudaGraph>,
}

impl<'a> Loop<'a> {
    /// Captures the graph, if there is to be one. The product must have run before: first uses load
    /// modules, which no capture survives.
    pub fn new(
        gpu: &Gpu,
        product: &'a Product<'a>,
        sets: usize,
        length: Length,
        launch: Launch,
    ) -> Result<Loop<'a>> {
        let mut it = Loop { product, sets, length, graph: None };
        if launch == Launch::Graph {
            it.graph = capture(gpu, || it.enqueue())?;
        }
        Ok(it)
    }

    /// One loop: microseconds a product.
    pub fn time(&self, gpu: &Gpu, watch: &Watch) -> Result<f64> {
        (0..self.length.warm).try_for_each(|_| self.launch())?;
        let ms = watch.time(gpu, || (0..self.length.replays).try_for_each(|_| self.launch()))?;
        Ok(1e3 * ms / self.length.products() as f64)
    }

    fn launch(&self) -> Result<()> {
        match &self.graph {
            Some(graph) => call("cuGraphLaunch", graph.launch()),
            None => self.enqueue(),
        }
    }

    fn enqueue(&self) -> Result<()> {
        (0..self.length.launches).try_for_each(|nth| (self.product)(nth % self.sets))
    }
}

/// What `enqueue` enqueues, as a graph.
pub fn capture(gpu: &Gpu, enqueue: impl FnOnce() -> Result<()>) -> Result<Option<CudaGraph>> {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    call("cuStreamBeginCapture", gpu.stream.begin_capture(mode))?;
    let enqueued = enqueue();
    // Ended in any case, or the stream would go on capturing.
    let captured = gpu.stream.end_capture(CUgraphInstantiate_flags(0));
    enqueued?;
    call("cuStreamEndCapture", captured)
}

/// Milliseconds a product takes, roughly: once round the sets, after a first time that is not counted.
pub fn estimate_ms(gpu: &Gpu, product: &Product<'_>, sets: usize, watch: &Watch) -> Result<f64> {
    let round = || (0..sets).try_for_each(product);
    round()?;
    Ok(watch.time(gpu, round)? / sets.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::super::super::wanted::Loops;
    use super::*;

    const BURST: LoopTimes = LoopTimes { warm_ms: 25.0, timed_ms: 25.0 };

    #[test]
    fn loops_are_long_enough_and_go_round_the_sets() {
        for (product_ms, sets) in [(0.015, 4), (0.3, 3), (2.6, 3), (40.0, 2), (1e-9, 64)] {
            let length = Length::new(product_ms, sets, BURST);
            assert_eq!(length.launches % sets, 0, "{length:?}");
            let least = if product_ms < 1e-4 { 0.0 } else { 25.0 };
            assert!(length.products() as f64 * product_ms >= least, "{length:?}");
        }
        let length = |product_ms, sets, times| {
            let Length { launches, warm, replays } = Length::new(product_ms, sets, times);
            (launches, warm, replays)
        };
        assert_eq!(length(0.3, 3, BURST), (21, 4, 4));
        assert_eq!(length(2.6, 3, BURST), (9, 2, 2));
        assert_eq!(length(40.0, 2, BURST), (2, 1, 1));
        assert_eq!(length(0.3, 3, Loops::Sustained.times()), (21, 24, 48));
    }
}
