//! What the GPU tests share: the GPU, the kernels to try on it, and doing something with each.
//!
//! [`case`] is a product to try, [`call`] its operands on both sides, whatever their types; [`plain`]
//! runs a product whose input is there, [`arrival`] one that waits for it.
//! Invariant: a failure names the kernel or the case that it happened to, on whichever thread.

#![allow(dead_code)] // each test file uses its share

pub mod arrival;
pub mod call;
pub mod case;
pub mod inputs;
pub mod memory;
pub mod plain;
pub mod ranks;

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overlap_gemm::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use overlap_gemm::cuda::cudarc::driver::{CudaGraph, CudaSlice, CudaStream, DeviceRepr};
use overlap_gemm::cuda::{Device, Kernel, kernels};
use overlap_gemm::random::Random;

/// Far longer than anything here takes, far shorter than anybody watches a test.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A GPU, and a stream of whoever uses it.
#[derive(Clone)]
pub struct Gpu {
    pub device: Device,
    pub stream: Arc<CudaStream>,
}

impl Gpu {
    pub fn open() -> Gpu {
        Gpu::of(&Device::open(0).unwrap())
    }

    /// A GPU on which `cudarc` does not order buffers by events: the test does it by streams.
    pub fn untracked() -> Gpu {
        let device = Device::open(0).unwrap();
        // SAFETY: the tests that call this keep their buffers until their streams are through.
        unsafe { device.context().disable_event_tracking() };
        Gpu::of(&device)
    }

    /// The same GPU with a new stream.
    pub fn of(device: &Device) -> Gpu {
        Gpu { device: device.clone(), stream: device.new_stream().unwrap() }
    }

    pub fn upload<T: DeviceRepr>(&self, values: &[T]) -> CudaSlice<T> {
        let slice = self.stream.clone_htod(values).unwrap();
        self.stream.synchronize().unwrap();
        slice
    }

    pub fn download<T: DeviceRepr>(&self, slice: &CudaSlice<T>) -> Vec<T> {
        let values = self.stream.clone_dtoh(slice).unwrap();
        self.stream.synchronize().unwrap();
        values
    }
}

/// The kernels to try: all, or those whose names hold `OVERLAP_GEMM_TEST_KERNEL`.
pub fn tried_kernels() -> Vec<&'static Kernel> {
    let wanted = std::env::var("OVERLAP_GEMM_TEST_KERNEL").unwrap_or_default();
    let all = kernels().unwrap().iter().filter(|kernel| kernel.name.contains(&wanted));
    let all: Vec<_> = all.collect();
    assert!(!all.is_empty(), "no kernel's name contains '{wanted}'");
    all
}

/// One of them that is not transposed.
pub fn one_kernel() -> &'static Kernel {
    tried_kernels().into_iter().find(|kernel| !kernel.transposed).unwrap()
}

/// The graph of what `enqueue` enqueues on the stream, which allocates nothing and waits for nothing where `is_strict`.
pub fn captured(stream: &Arc<CudaStream>, is_strict: bool, enqueue: impl FnOnce()) -> CudaGraph {
    let mode = match is_strict {
        true => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        false => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    };
    stream.begin_capture(mode).unwrap();
    enqueue();
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap()
}

/// The kernels that are tried, by rows of csrc/kernels.txt: the widths of a row are one kernel on the device. A row lists the
/// widest first, and what follows a row is wider than its last width, or differs in more.
fn tried_rows() -> Vec<Vec<&'static Kernel>> {
    let split = |kernel: &Kernel| {
        let mut rest = kernel.clone();
        rest.name.clear();
        let width = if rest.transposed { &mut rest.tile.m } else { &mut rest.tile.n };
        (std::mem::take(width), rest)
    };
    let are_of_a_row = |one: &&Kernel, next: &&Kernel| {
        let ((width, rest), (next_width, next_rest)) = (split(one), split(next));
        rest == next_rest && next_width < width
    };
    tried_kernels().chunk_by(are_of_a_row).map(<[_]>::to_vec).collect()
}

/// How many of `rounds` this kernel gets: the widths of a row share them. Each gets one at least.
pub fn share_of_rounds(kernel: &Kernel, rounds: u64) -> u64 {
    let rows = tried_rows();
    let row = rows.iter().find(|row| row.contains(&kernel)).unwrap();
    rounds.div_ceil(row.len() as u64)
}

/// Does something with one kernel after the other, of each row with the widest and the narrowest, on an untracked GPU, with the
/// same random numbers for each. Products that wait have the GPU for themselves: where several wait, each keeps SMs
/// from what the others wait for.
pub fn on_every_kernel(seed: u64, mut run: impl FnMut(&Gpu, &'static Kernel, &mut Random)) {
    let gpu = Gpu::untracked();
    let ends = |row: Vec<&'static Kernel>| [Some(row[0]), row[1..].last().copied()];
    for kernel in tried_rows().into_iter().flat_map(ends).flatten() {
        let with_kernel = AssertUnwindSafe(|| run(&gpu, kernel, &mut Random::new(seed)));
        if let Err(panic) = catch_unwind(with_kernel) {
            println!("{kernel}: FAILED");
            resume_unwind(panic);
        }
        println!("{kernel}: right");
    }
}

/// Does something with every item (and its index) on all cores, for inputs and references take them far
/// longer than products take the GPU. Each thread has a stream of its own.
pub fn in_parallel<T: Sync + Display>(items: &[T], run: impl Fn(&Gpu, usize, &T) + Sync) {
    let device = Device::open(0).unwrap();
    on_all_cores(items, || Gpu::of(&device), run);
}

/// The threads of [`in_parallel`], each with something of its own. Nothing new is begun after a failure,
/// and the caller panics with the items that failed.
pub fn on_all_cores<T: Sync + Display, Own>(
    items: &[T],
    own: impl Fn() -> Own + Sync,
    run: impl Fn(&Own, usize, &T) + Sync,
) {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        let own = own();
        loop {
            // Relaxed: a counter; each item goes to one thread.
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { break };
            if catch_unwind(AssertUnwindSafe(|| run(&own, at, item))).is_err() {
                next.store(items.len(), Ordering::Relaxed);
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(item.to_string());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..cores.min(items.len()) {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(failed.is_empty(), "failed, with its reason above:\n{}", failed.join("\n"));
}
