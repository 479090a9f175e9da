//! A plain matrix product on one GPU: planned once, enqueued many times.
//!
//! What belongs here: the safe value over the C functions, and the rules for what it accepts.
//! Invariant: whatever may allocate, load a module, ask the device or fail for the shape's sake
//! happens in [`Gemm::plan`]; [`Gemm::enqueue`] checks its buffers and enqueues, and neither
//! allocates nor waits. Both refuse what the kernels cannot carry out with an error that names the
//! value; the C side applies the same rules once more (`the_two_sides_agree` compares them).

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, sys::CUdeviceptr};

use super::device::Device;
use super::{driver_error, ffi};
use crate::element::{ElementType, bf16};
use crate::error::{Error, Result};
use crate::plan::{BLayout, ElementTypes, Problem, Scaling, TMA_ALIGNMENT};

/// The largest M, N and K: rounding up to a tile has to stay within 31 bits.
pub const MAX_EXTENT: u32 = 2_147_483_392;

/// The fewest SMs a kernel runs on: one cluster of two thread blocks.
pub const MIN_SM_COUNT: u32 = 2;

/// The sizes that go to the C side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Product {
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) lda: u32,
    pub(super) ldb: u32,
    pub(super) ldd: u32,
    /// How many SMs the kernel may occupy; 0 means all.
    pub(super) sm_limit: u32,
}

/// The addresses that go to the C side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) d: u64,
}

impl Product {
    /// What the kernels make of a problem, or why they cannot.
    ///
    /// Pitches need TMA's 16 bytes, and so does the width of D: a TMA store writes whole 16-byte
    /// pieces, and on a GPU a ragged end was seen to write zeros behind it. A ragged K is harmless:
    /// loads beyond it give zeros. [`Problem::check_tma`] asks more: it has a gathered A in mind,
    /// which lies packed, so that K is a pitch too.
    fn of(problem: &Problem, sm_limit: Option<u32>) -> Result<Product> {
        let unsupported = |what: String, why: &str, remedy| {
            Err(Error::Unsupported { what, why: why.into(), remedy })
        };
        let ElementTypes { a, b, d } = problem.elements();
        if problem.elements() != ElementTypes::all(ElementType::Bf16) {
            let what = format!("the product {a} × {b} → {d} on the GPU");
            return unsupported(what, "there is no kernel for it yet", "use bf16, or the host");
        }
        if problem.b_layout() != BLayout::Nk {
            let what = "B stored as K rows of N on the GPU".into();
            return unsupported(what, "there is no kernel for it yet", "store B as N rows of K");
        }
        if problem.scaling() != Scaling::None {
            let what = "scaling of bf16 products on the GPU".into();
            return unsupported(what, "only fp8 has scales", "leave the scales out");
        }
        for (what, value) in [("m", problem.m()), ("n", problem.n()), ("k", problem.k())] {
            if !(1..=MAX_EXTENT).contains(&value) {
                let remedy = "split the product into several";
                return Err(Error::out_of_range(what, value.into(), 1, MAX_EXTENT.into(), remedy));
            }
        }
        let pitches = [
            ("the pitch of A (lda)", problem.lda(), a),
            ("the pitch of B (ldb)", problem.ldb(), b),
            ("the pitch of D (ldd)", problem.ldd(), d),
        ];
        for (what, elements, element) in pitches {
            let bytes = u64::from(elements) * u64::from(element.size());
            misaligned(what, bytes, "pad the rows of the matrix to a multiple of 16 bytes")?;
        }
        let width = u64::from(problem.n()) * u64::from(d.size());
        misaligned("the width of D (n)", width, "add columns to B until n is a multiple of 8")?;
        if let Some(limit) = sm_limit.filter(|limit| *limit < MIN_SM_COUNT) {
            let (min, max) = (MIN_SM_COUNT.into(), u32::MAX.into());
            let remedy = "leave the limit out to use the whole GPU";
            return Err(Error::out_of_range("the SM limit", limit.into(), min, max, remedy));
        }
        Ok(Product {
            m: problem.m(),
            n: problem.n(),
            k: problem.k(),
            lda: problem.lda(),
            ldb: problem.ldb(),
            ldd: problem.ldd(),
            sm_limit: sm_limit.unwrap_or(0),
        })
    }
}

fn misaligned(what: &'static str, bytes: u64, remedy: &'static str) -> Result<()> {
    if bytes.is_multiple_of(TMA_ALIGNMENT) {
        return Ok(());
    }
    Err(Error::Misaligned { what, bytes, multiple_of: TMA_ALIGNMENT, remedy })
}

/// A planned product D = A · Bᵀ of bf16 matrices: f32 accumulation, one rounding at the end.
///
/// ```no_run
/// use overlap_gemm::cuda::{Device, Gemm};
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::plan::Problem;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open(0)?;
/// let stream = device.new_stream()?;
/// let problem = Problem::builder(4096, 3584, 8192).build()?;
/// let gemm = Gemm::plan(&device, &problem, None)?;
///
/// let a = stream.clone_htod(&vec![bf16::ONE; 4096 * 8192])?;
/// let b = stream.clone_htod(&vec![bf16::ONE; 3584 * 8192])?;
/// let mut d = stream.alloc_zeros::<bf16>(4096 * 3584)?;
/// gemm.enqueue(&stream, &a, &b, &mut d)?;
/// assert_eq!(stream.clone_dtoh(&d)?[0], bf16::from_f32(8192.0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Gemm {
    device: Device,
    problem: Problem,
    product: Product,
    prepared: ffi::Prepared,
    /// Used by one call at a time: the lock orders the calls, `cudarc`'s events the streams.
    workspace: Option<Mutex<CudaSlice<u8>>>,
}

impl Gemm {
    /// Checks that the kernels can carry out `problem` as a plain product (all its rows, however they
    /// are shared out), loads the kernel and allocates what it needs. `sm_limit` keeps SMs free for
    /// others. Slow: modules are loaded, so this is for start-up, not for the steady loop.
    pub fn plan(device: &Device, problem: &Problem, sm_limit: Option<u32>) -> Result<Gemm> {
        Gemm::check(problem, sm_limit)?;
        let product = Product::of(problem, sm_limit)?;
        if let Some(limit) = sm_limit.filter(|limit| *limit > device.info().sm_count) {
            let (min, max) = (MIN_SM_COUNT.into(), device.info().sm_count.into());
            let remedy = "leave the limit out to use the whole GPU";
            return Err(Error::out_of_range("the SM limit", limit.into(), min, max, remedy));
        }
        device.bind()?;
        // SAFETY: `bind` has made the device's context current.
        let prepared = unsafe { ffi::prepare(&product) }?;
        let workspace = match prepared.workspace_bytes() {
            0 => None,
            bytes => {
                let stream = device.new_stream()?;
                // SAFETY: the kernel writes what it reads of its workspace.
                let memory = unsafe { stream.alloc::<u8>(bytes as usize) }
                    .map_err(|error| driver_error("cuMemAllocAsync", error))?;
                // Other streams will use it, and the allocation is in the order of this one.
                stream.synchronize().map_err(|error| driver_error("cuStreamSynchronize", error))?;
                Some(Mutex::new(memory))
            }
        };
        Ok(Gemm { device: device.clone(), problem: problem.clone(), product, prepared, workspace })
    }

    /// The part of [`Gemm::plan`] that needs no device: whether there is a kernel for `problem`.
    pub fn check(problem: &Problem, sm_limit: Option<u32>) -> Result<()> {
        let product = Product::of(problem, sm_limit)?;
        super::kernels_built()?;
        ffi::check(&product, &Addresses::default())
    }

    /// The problem that was planned.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// How many SMs the kernel may occupy.
    pub fn sm_count(&self) -> u32 {
        self.prepared.sm_count()
    }

    /// Enqueues D = A · Bᵀ on `stream` and returns. Slices and views of `cudarc` will do.
    ///
    /// While `cudarc` tracks events (its default), it also makes `stream` wait for the last use of
    /// each buffer on other streams; turn that off to capture the call into a graph.
    pub fn enqueue(
        &self,
        stream: &CudaStream,
        a: &impl DevicePtr<bf16>,
        b: &impl DevicePtr<bf16>,
        d: &mut impl DevicePtrMut<bf16>,
    ) -> Result<()> {
        let context = self.device.context();
        let contexts = [
            ("the device of the stream", stream.context()),
            ("the device of A", a.stream().context()),
            ("the device of B", b.stream().context()),
            ("the device of D", d.stream().context()),
        ];
        for (what, other) in contexts {
            if other != context {
                let remedy = "plan the product on the device that holds its matrices";
                let (got, expected) = (other.ordinal(), context.ordinal());
                return Err(Error::mismatch(what, got, expected, remedy));
            }
        }
        let lengths = [
            ("the length of A", a.len(), self.problem.a_len(self.problem.m())),
            ("the length of B", b.len(), self.problem.b_len()),
            ("the length of D", d.len(), self.problem.d_len()),
        ];
        for (what, got, needed) in lengths {
            if (got as u64) < needed {
                let remedy = "give a slice that holds every row of the planned problem";
                return Err(Error::mismatch(what, got, format!("at least {needed}"), remedy));
            }
        }
        // The guards record the use of the buffers on the stream when they are dropped, so they
        // have to outlive the launch.
        let (a, _a) = a.device_ptr(stream);
        let (b, _b) = b.device_ptr(stream);
        let (d, _d) = d.device_ptr_mut(stream);
        // SAFETY: the three buffers belong to this device, are as long as the problem says, and stay
        // allocated until the work that their events record is done.
        unsafe { self.enqueue_raw(stream, a, b, d) }
    }

    /// [`Gemm::enqueue`] for memory that is not `cudarc`'s: another library's, or a peer's.
    ///
    /// # Safety
    /// The addresses are readable (`d`: writable) on this plan's device for
    /// [`Problem::a_len`], [`Problem::b_len`] and [`Problem::d_len`] elements, until the work is
    /// done; `d` overlaps neither of the others; nothing else writes to them meanwhile.
    pub unsafe fn enqueue_raw(
        &self,
        stream: &CudaStream,
        a: CUdeviceptr,
        b: CUdeviceptr,
        d: CUdeviceptr,
    ) -> Result<()> {
        let remedy = "start the matrix at a multiple of 16 bytes";
        misaligned("the address of A", a, remedy)?;
        misaligned("the address of B", b, remedy)?;
        misaligned("the address of D", d, remedy)?;
        self.device.bind()?;
        let mut workspace = self
            .workspace
            .as_ref()
            .map(|memory| memory.lock().unwrap_or_else(PoisonError::into_inner));
        let workspace = workspace.as_mut().map(|memory| memory.device_ptr_mut(stream));
        let workspace = workspace.as_ref().map_or(0, |(address, _guard)| *address);
        let stream = stream.cu_stream().cast::<c_void>();
        // SAFETY: the context is current; the plan was prepared in it; addresses and their lengths
        // are the caller's promise; the workspace is used by one stream only.
        unsafe {
            ffi::enqueue(&self.product, &self.prepared, &Addresses { a, b, d }, workspace, stream)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(m: u64, n: u64, k: u64) -> Problem {
        Problem::builder(m, n, k).build().unwrap()
    }

    #[test]
    fn plans_may_move_between_threads() {
        fn check<T: Send + Sync>() {}
        check::<Gemm>();
        check::<Device>();
    }

    #[test]
    fn misaligned_pitches_are_named() {
        let error = Gemm::check(&of(64, 64, 12), None).unwrap_err();
        assert!(matches!(error, Error::Misaligned { bytes: 24, multiple_of: 16, .. }), "{error}");
        assert!(error.to_string().starts_with("the pitch of A (lda) is 24 bytes"), "{error}");
        let error = Gemm::check(&of(64, 63, 64), None).unwrap_err();
        assert!(error.to_string().starts_with("the pitch of D (ldd) is 126 bytes"), "{error}");
        let ragged = Problem::builder(64, 60, 64).ldd(64).build().unwrap();
        let error = Gemm::check(&ragged, None).unwrap_err();
        assert!(error.to_string().starts_with("the width of D (n) is 120 bytes"), "{error}");
    }

    #[test]
    fn sizes_beyond_a_tile_are_named() {
        let error = Product::of(&of(i32::MAX as u64, 8, 8), None).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { value: 0x7fff_ffff, .. }), "{error}");
        let error = Product::of(&of(8, 8, 8), Some(1)).unwrap_err();
        assert!(error.to_string().starts_with("the SM limit is 1"), "{error}");
    }

    #[test]
    fn what_has_no_kernel_is_unsupported() {
        use ElementType::*;
        let types = [(F16, F16), (F32, F32), (Bf16, F32), (E4m3, Bf16)];
        for (input, output) in types {
            let problem = Problem::builder(64, 64, 64).elements(input, input, output);
            let error = Gemm::check(&problem.build().unwrap(), None).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        }
        let problem = Problem::builder(64, 64, 64).b_layout(BLayout::Kn).build().unwrap();
        assert!(matches!(Gemm::check(&problem, None), Err(Error::Unsupported { .. })));
    }

    /// The rules are written down twice, in `Product::of` and in `csrc/abi.cu`.
    #[cfg(overlap_gemm_kernels)]
    #[test]
    fn the_two_sides_agree() {
        use proptest::prelude::*;
        let extent = || {
            prop_oneof![
                1..=64u32,
                (1..=64u32).prop_map(|n| 8 * n),
                1..=i32::MAX as u32,
                MAX_EXTENT - 2..=MAX_EXTENT + 2
            ]
        };
        let pad = || prop_oneof![Just(0u32), 0..=64u32];
        let limit = prop_oneof![Just(None), (0..=4u32).prop_map(Some)];
        proptest!(|(m in extent(), n in extent(), k in extent(), pads in [pad(), pad(), pad()], limit in limit)| {
            let pitch = |row: u32, pad: u32| u64::from(row.saturating_add(pad)).min(i32::MAX as u64);
            let problem = Problem::builder(m.into(), n.into(), k.into())
                .lda(pitch(k, pads[0]))
                .ldb(pitch(k, pads[1]))
                .ldd(pitch(n, pads[2]))
                .build();
            let Ok(problem) = problem else { return Ok(()) };
            let rust = Product::of(&problem, limit);
            // What Rust would have passed on had it not looked.
            let product = Product {
                m, n, k,
                lda: problem.lda(),
                ldb: problem.ldb(),
                ldd: problem.ldd(),
                sm_limit: limit.unwrap_or(0),
            };
            let c = ffi::check(&product, &Addresses::default());
            let many_tiles = u64::from(m.div_ceil(128)) * u64::from(n.div_ceil(256)) > i32::MAX as u64;
            // Two differences: the number of tiles is the kernel's affair, and a limit of 0 means
            // "no limit" in C where Rust has `None` for it.
            if !many_tiles && limit != Some(0) {
                prop_assert_eq!(rust.is_ok(), c.is_ok(), "{:?} {:?}", rust, c);
            }
        });
    }
}
