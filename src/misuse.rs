//! Programs that must not compile, for as long as they would be wrong.
//!
//! What belongs here: misuse of matrices, signals and operations that borrows, `Send` and `unsafe` stop, where no item's own documentation
//! has it. Invariant: each program fails for the one reason in its attribute (`.ci/run` compares the error codes, which stable Rust
//! ignores), and compiles without the line that is marked.
//!
//! What is not here because it is no misuse: once a call has returned, slices, streams, signals, workspaces, groups and devices may be
//! dropped in any order. `cudarc` keeps slices until the stream has used them, operations keep the rest. Dropping signals or a
//! collective operation waits for its work; a product's memory is freed in the order of its stream.

/// On threads. A slot that is lent out is no longer writable when its step runs:
///
/// ```compile_fail,E0499
/// # use overlap_gemm::{Result, element::bf16, host::{AllGatherGemm, Shard, Stream}};
/// fn step(layer: &mut AllGatherGemm<bf16>, stream: &Stream, b: &[bf16], d: &mut [bf16]) -> Result<()> {
///     let slot = layer.local_shard(None)?;
///     layer.enqueue(stream, Shard::in_place(), b, d)?;
///     slot[0] = bf16::ONE; // wrong: the pusher reads it
///     Ok(())
/// }
/// ```
///
/// Two products have two outputs:
///
/// ```compile_fail,E0499
/// # use overlap_gemm::{Result, element::bf16, host::{AllGatherGemm, Product, Stream}};
/// fn step(layer: &mut AllGatherGemm<bf16>, stream: &Stream, [a, b]: [&[bf16]; 2], d: &mut [bf16]) -> Result<()> {
///     let mut products = [
///         Product::new(b, d),
///         Product::new(b, d), // wrong
///     ];
///     layer.enqueue_all(stream, a, &mut products)
/// }
/// ```
///
/// An operation has one step at a time:
///
/// ```compile_fail,E0499
/// # use overlap_gemm::{element::bf16, host::{AllReduce, Stream}};
/// fn steps(reduce: &mut AllReduce<bf16>, stream: &Stream, [one, two]: [&mut [bf16]; 2]) {
///     std::thread::scope(|scope| {
///         scope.spawn(|| reduce.enqueue_in_place(stream, None, one));
///         scope.spawn(|| reduce.enqueue_in_place(stream, None, two)); // wrong
///     });
/// }
/// ```
struct OnThreads;

/// On GPUs, matrices. A view ends with its slice:
///
/// ```compile_fail,E0505
/// # use overlap_gemm::{Result, cuda::{Gemm, Operands}, element::bf16};
/// # use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream};
/// # use std::sync::Arc;
/// fn step(gemm: &Gemm, stream: &Arc<CudaStream>, [a, b]: [CudaSlice<bf16>; 2], d: &mut CudaSlice<bf16>) -> Result<()> {
///     let first = a.slice(0..4096);
///     drop(a); // wrong
///     gemm.enqueue(stream, Operands::new(&first, &b, d))
/// }
/// ```
///
/// D is nothing else in its call. Not A:
///
/// ```compile_fail,E0502
/// # use overlap_gemm::{Result, cuda::{Gemm, Operands}, element::bf16};
/// # use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream};
/// # use std::sync::Arc;
/// fn step(gemm: &Gemm, stream: &Arc<CudaStream>, [a, b, d]: [&mut CudaSlice<bf16>; 3]) -> Result<()> {
///     let d = a; // wrong
///     gemm.enqueue(stream, Operands::new(&*d, &*b, &mut *d))
/// }
/// ```
///
/// not C:
///
/// ```compile_fail,E0502
/// # use overlap_gemm::{Result, cuda::{Gemm, Operands}, element::bf16};
/// # use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream};
/// # use std::sync::Arc;
/// fn step(gemm: &Gemm, stream: &Arc<CudaStream>, [a, b, d]: [&mut CudaSlice<bf16>; 3]) -> Result<()> {
///     let operands = Operands::new(&*a, &*b, &mut *d);
///     let operands = operands.c(&*d, 1.0); // wrong
///     gemm.enqueue(stream, operands)
/// }
/// ```
///
/// and nobody reads it between the two:
///
/// ```compile_fail,E0502
/// # use overlap_gemm::{Result, cuda::{DeviceMatrixMut, Gemm, Operands}, element::bf16};
/// # use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream};
/// # use std::sync::Arc;
/// fn step(gemm: &Gemm, stream: &Arc<CudaStream>, [a, b, d]: [&mut CudaSlice<bf16>; 3]) -> Result<()> {
///     let output = DeviceMatrixMut::new(d, 512, 1024);
///     let _early = stream.clone_dtoh(&*d); // wrong
///     gemm.enqueue(stream, Operands::new(&*a, &*b, output))
/// }
/// ```
///
/// What is written is borrowed mutably:
///
/// ```compile_fail,E0277
/// # use overlap_gemm::{Result, cuda::AllReduce, element::bf16};
/// # use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream};
/// # use std::sync::Arc;
/// fn step(reduce: &mut AllReduce, stream: &Arc<CudaStream>, sums: &mut CudaSlice<bf16>) -> Result<()> {
///     let sums = &*sums; // wrong
///     reduce.enqueue_in_place(stream, None, sums)
/// }
/// ```
///
/// Records are read when the call has returned:
///
/// ```compile_fail,E0502
/// # use overlap_gemm::{Result, cuda::{Gemm, Operands, TileRecords}, element::bf16};
/// # use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream};
/// # use std::sync::Arc;
/// fn step(gemm: &Gemm, stream: &Arc<CudaStream>, [a, b, d]: [&mut CudaSlice<bf16>; 3], records: &mut TileRecords) -> Result<()> {
///     let operands = Operands::new(&*a, &*b, d).records(records);
///     let _early = records.len(); // wrong
///     gemm.enqueue(stream, operands)
/// }
/// ```
#[cfg(feature = "cuda")]
struct Matrices;

/// On GPUs, signals: a kernel's input ends with the signals that it waits for,
///
/// ```compile_fail,E0505
/// # use overlap_gemm::{Result, cuda::{ChunkWait, Signals}};
/// # use overlap_gemm::cuda::cudarc::driver::CudaStream;
/// # use std::sync::Arc;
/// fn step(wait: ChunkWait, signals: Signals, stream: &Arc<CudaStream>, launch: impl Fn(*const std::ffi::c_void)) -> Result<()> {
///     let input = wait.input(stream, &signals)?;
///     drop(signals); // wrong
///     Ok(launch(input.as_ptr()))
/// }
/// ```
///
/// and with the chunks:
///
/// ```compile_fail,E0505
/// # use overlap_gemm::{Result, cuda::{ChunkWait, Signals}};
/// # use overlap_gemm::cuda::cudarc::driver::CudaStream;
/// # use std::sync::Arc;
/// fn step(wait: ChunkWait, signals: Signals, stream: &Arc<CudaStream>, launch: impl Fn(*const std::ffi::c_void)) -> Result<()> {
///     let input = wait.input(stream, &signals)?;
///     drop(wait); // wrong
///     Ok(launch(input.as_ptr()))
/// }
/// ```
///
/// Words, and memory of other libraries, are the caller's promise:
///
/// ```compile_fail,E0133
/// # use overlap_gemm::{Result, cuda::{Device, Signals}};
/// fn words(device: &Device, words: u64) -> Result<Signals> {
///     Signals::at(device, words, 8, 0) // wrong
/// }
/// ```
///
/// ```compile_fail,E0133
/// # use overlap_gemm::{cuda::DeviceMatrix, element::bf16};
/// fn theirs<'a>(address: u64) -> DeviceMatrix<'a, bf16> {
///     DeviceMatrix::from_raw(address, 512, 4096) // wrong
/// }
/// ```
///
/// ```compile_fail,E0133
/// # use overlap_gemm::{Result, cuda::SymmetricMemory};
/// # use overlap_gemm::cuda::cudarc::driver::CudaStream;
/// # use std::sync::Arc;
/// fn send(memory: &SymmetricMemory, stream: &Arc<CudaStream>) -> Result<()> {
///     memory.put(stream, 1, 0, memory.own_address(), 64) // wrong
/// }
/// ```
#[cfg(feature = "cuda")]
struct Words;

/// On GPUs, threads. These move, and those that have calls with `&self` are shared:
///
/// ```
/// use overlap_gemm::cuda::*;
/// fn moves<T: Send>() {}
/// fn is_shared<T: Send + Sync>() {}
/// moves::<AllGather>();
/// moves::<AllGatherGemm>();
/// moves::<GemmReduceScatter>();
/// moves::<GemmAllReduce>();
/// moves::<ReduceScatter>();
/// moves::<AllReduce>();
/// moves::<StepRecord>();
/// moves::<TileRecords>();
/// is_shared::<Gemm>();
/// is_shared::<AsyncGemm>();
/// is_shared::<ChunkWait>();
/// is_shared::<Signals>();
/// is_shared::<SignalPad>();
/// is_shared::<SharedWorkspace>();
/// is_shared::<SymmetricMemory>();
/// is_shared::<Device>();
/// is_shared::<overlap_gemm::group::Group>();
/// ```
///
/// Operands do not move: they are borrowed by the call that enqueues them.
///
/// ```compile_fail,E0277
/// # use overlap_gemm::{cuda::{Gemm, Operands}, element::bf16};
/// # use overlap_gemm::cuda::cudarc::driver::CudaStream;
/// # use std::sync::Arc;
/// fn step(gemm: &Gemm, stream: &Arc<CudaStream>, operands: Operands<'_, bf16, bf16, bf16>) {
///     std::thread::scope(|scope| {
///         scope.spawn(|| gemm.enqueue(stream, operands)); // wrong
///     });
/// }
/// ```
///
/// Nor does a matrix,
///
/// ```compile_fail,E0277
/// # use overlap_gemm::{cuda::DeviceMatrixMut, element::bf16};
/// fn send(matrix: DeviceMatrixMut<'_, bf16>) {
///     std::thread::scope(|scope| {
///         scope.spawn(|| drop(matrix)); // wrong
///     });
/// }
/// ```
///
/// nor a kernel's input:
///
/// ```compile_fail,E0277
/// # use overlap_gemm::cuda::KernelInput;
/// fn send(input: KernelInput<'_>) {
///     std::thread::scope(|scope| {
///         scope.spawn(|| drop(input)); // wrong
///     });
/// }
/// ```
///
/// A collective operation has one step at a time:
///
/// ```compile_fail,E0596
/// # use overlap_gemm::{Result, cuda::{AllGatherGemm, Operands}, element::bf16};
/// # use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream};
/// # use std::sync::Arc;
/// fn step(layer: &mut AllGatherGemm, stream: &Arc<CudaStream>, [a, b, d]: [&mut CudaSlice<bf16>; 3]) -> Result<()> {
///     let layer = &*layer; // wrong
///     layer.enqueue(stream, [Operands::new(&*a, &*b, d)])
/// }
/// ```
#[cfg(feature = "cuda")]
struct Threads;
