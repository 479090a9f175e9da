//! On a GPU: one launch of this crate's kernel. A stream copies chunks to the device meanwhile, each with its signal.

use std::error::Error;
use std::ffi::{c_int, c_void};

use overlap_gemm::cuda::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, sys::CUstream};
use overlap_gemm::cuda::{ChunkWait, Device, KernelInput, Signals};
use overlap_gemm::element::bf16;
use overlap_gemm::plan::{Chunks, Problem};

use crate::{CHUNKS, K, M, N, Operands};

unsafe extern "C" {
    /// `csrc/swiglu.cu`.
    fn own_kernel_swiglu(
        input: *const c_void,
        a: *const c_void,
        gate: *const c_void,
        up: *const c_void,
        d: *mut c_void,
        m: c_int,
        n: c_int,
        k: c_int,
        blocks: c_int,
        stream: CUstream,
    ) -> c_int;
}

pub fn run(problem: &Problem, operands: &Operands) -> Result<Vec<bf16>, Box<dyn Error>> {
    let device = Device::open(0)?;
    let (stream, copies) = (device.new_stream()?, device.new_stream()?);
    let chunks = Chunks::even(problem.shards(), CHUNKS)?;
    let wait = ChunkWait::plan(problem, &chunks, 0)?;
    let signals = Signals::new(&device, chunks.signals())?;

    let gate = stream.clone_htod(&operands.gate)?;
    let up = stream.clone_htod(&operands.up)?;
    // What is not overwritten would be seen.
    let mut a = stream.clone_htod(&vec![bf16::NAN; M * K])?;
    let mut d = stream.clone_htod(&vec![bf16::NAN; M * N])?;
    let addresses = [a.device_ptr(&stream).0, gate.device_ptr(&stream).0, up.device_ptr(&stream).0];
    let d_address = d.device_ptr_mut(&stream).0;

    signals.advance(&stream)?;
    copies.join(&stream)?;
    let input = wait.input(&stream, &signals)?;
    // SAFETY: all are on this device, as long as the kernel takes them to be, and outlive it. Chunks of A are written before
    // their signals.
    unsafe { launch(&device, &stream, &input, addresses, d_address)? };
    // Behind the launch: the kernel is waiting now.
    for chunk in chunks.need_order(0) {
        let rows = chunks.rows(chunk);
        let part = rows.start as usize * K..rows.end as usize * K;
        copies.memcpy_htod(&operands.a[part.clone()], &mut a.slice_mut(part))?;
        signals.write(&copies, chunk)?;
    }
    stream.synchronize()?;
    signals.check()?; // a chunk that did not come in time is named here
    Ok(stream.clone_dtoh(&d)?)
}

/// # Safety
/// As for the kernel: see `csrc/swiglu.cu`.
unsafe fn launch(
    device: &Device,
    stream: &CudaStream,
    input: &KernelInput<'_>,
    [a, gate, up]: [u64; 3],
    d: u64,
) -> Result<(), Box<dyn Error>> {
    device.context().bind_to_thread()?;
    let [m, n, k] = [M, N, K].map(|size| size as c_int);
    let blocks = device.info().sm_count as c_int;
    let [a, gate, up] = [a, gate, up].map(|address| address as *const c_void);
    let (input, stream) = (input.as_ptr(), stream.cu_stream());
    // SAFETY: the caller's promise; the context is current.
    match unsafe { own_kernel_swiglu(input, a, gate, up, d as *mut _, m, n, k, blocks, stream) } {
        0 => Ok(()),
        code => Err(format!("the kernel was not launched: CUDA error {code}").into()),
    }
}
