//! The C functions of `csrc/overlap_gemm.h`, with statuses turned into errors.
//!
//! What belongs here: the generated declarations and one thin function for each C function; nobody
//! else calls C. Invariant: a status that is not OK becomes an [`Error`] that carries the message
//! the C side left on this thread. `ffi_missing.rs` is the twin for builds without kernels and has
//! the same functions.

use std::ffi::{CStr, c_void};

use crate::error::{Error, Result};

mod bindings {
    #![allow(
        clippy::undocumented_unsafe_blocks,
        dead_code,
        missing_docs,
        non_camel_case_types,
        unreachable_pub,
        reason = "generated from csrc/overlap_gemm.h, which documents and keeps the C names"
    )]
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

use super::gemm::{Addresses, MAX_EXTENT, MIN_SM_COUNT, Product};
use crate::plan::TMA_ALIGNMENT;
use bindings::{og_gemm_params, og_gemm_plan, og_status};

// The limits have two homes, because Rust must know them where there are no kernels.
const _: () = assert!(MAX_EXTENT as u64 == bindings::OG_MAX_EXTENT as u64);
const _: () = assert!(MIN_SM_COUNT as u64 == bindings::OG_MIN_SM_COUNT as u64);
const _: () = assert!(TMA_ALIGNMENT == bindings::OG_ALIGNMENT_BYTES as u64);

/// What `og_gemm_prepare` found out; only [`prepare`] makes one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared(og_gemm_plan);

impl Prepared {
    /// Bytes of device memory that every enqueue needs beside the matrices.
    pub(super) fn workspace_bytes(&self) -> u64 {
        self.0.workspace_bytes
    }

    /// SMs that the kernel may occupy.
    pub(super) fn sm_count(&self) -> u32 {
        self.0.sm_count.unsigned_abs()
    }
}

fn params(product: &Product, addresses: &Addresses) -> og_gemm_params {
    og_gemm_params {
        m: product.m.into(),
        n: product.n.into(),
        k: product.k.into(),
        lda: product.lda.into(),
        ldb: product.ldb.into(),
        ldd: product.ldd.into(),
        a: addresses.a as *const c_void,
        b: addresses.b as *const c_void,
        d: addresses.d as *mut c_void,
        sm_count: i32::try_from(product.sm_limit).unwrap_or(i32::MAX),
    }
}

/// Whether the objects in this binary were compiled from the header that Rust was compiled with.
pub(super) fn check_abi() -> Result<()> {
    // SAFETY: takes nothing, touches nothing.
    let compiled = unsafe { bindings::og_abi_version() };
    if i64::from(compiled) == i64::from(bindings::OG_ABI_VERSION) {
        return Ok(());
    }
    Err(Error::KernelsNotBuilt {
        reason: format!(
            "the objects have ABI version {compiled}, this crate needs {}: run cargo clean and \
             build again",
            bindings::OG_ABI_VERSION
        ),
    })
}

/// `og_gemm_check`: needs no device.
pub(super) fn check(product: &Product, addresses: &Addresses) -> Result<()> {
    // SAFETY: the pointer is to a live struct of the declared layout; the addresses in it are
    // compared with the alignment and not followed.
    outcome("og_gemm_check", unsafe { bindings::og_gemm_check(&params(product, addresses)) })
}

/// `og_gemm_prepare`.
///
/// # Safety
/// The CUDA context of the device is current on this thread.
pub(super) unsafe fn prepare(product: &Product) -> Result<Prepared> {
    let params = params(product, &Addresses::default());
    let mut plan = og_gemm_plan::default();
    // SAFETY: both pointers are to live structs of the declared layout; the context is current.
    outcome("og_gemm_prepare", unsafe { bindings::og_gemm_prepare(&params, &mut plan) })?;
    Ok(Prepared(plan))
}

/// `og_gemm_enqueue`.
///
/// # Safety
/// The context that `prepared` was made in is current on this thread, `stream` belongs to it, the
/// addresses are of device memory as long as sizes and pitches say, `workspace` of
/// [`Prepared::workspace_bytes`]; all of it stays valid until the product is done.
pub(super) unsafe fn enqueue(
    product: &Product,
    prepared: &Prepared,
    addresses: &Addresses,
    workspace: u64,
    stream: *mut c_void,
) -> Result<()> {
    let params = params(product, addresses);
    // SAFETY: the structs are live and of the declared layout; the rest is the caller's promise.
    let status = unsafe {
        bindings::og_gemm_enqueue(&params, &prepared.0, workspace as *mut c_void, stream)
    };
    outcome("og_gemm_enqueue", status)
}

/// Turns a status into an error with the words that the C side left behind.
fn outcome(call: &'static str, status: og_status) -> Result<()> {
    if status == og_status::OG_STATUS_OK {
        return Ok(());
    }
    // SAFETY: both functions return C strings that are never null; the message stays valid until
    // this thread's next call, and is copied before.
    let (name, message) = unsafe {
        let name = CStr::from_ptr(bindings::og_status_string(status));
        let message = CStr::from_ptr(bindings::og_last_error_message());
        (name.to_string_lossy(), message.to_string_lossy())
    };
    Err(match status {
        og_status::OG_STATUS_OUT_OF_RANGE
        | og_status::OG_STATUS_BAD_PITCH
        | og_status::OG_STATUS_MISALIGNED => Error::Unsupported {
            what: format!("this product ({name})"),
            why: message.into_owned(),
            remedy: "change the named value",
        },
        og_status::OG_STATUS_ARCHITECTURE => {
            Error::NoDevice { reason: format!("{message}; use a Hopper GPU (H100, H200, GH200)") }
        }
        // Null pointers and empty plans cannot come from this crate, nor may CUTLASS throw: all
        // faults of ours if they occur, and told apart by the name.
        _ => Error::Cuda { call, detail: format!("{name}: {message}") },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_are_of_this_header() {
        assert_eq!(check_abi(), Ok(()));
    }

    const PRODUCT: Product = Product { m: 8, n: 8, k: 8, lda: 8, ldb: 8, ldd: 8, sm_limit: 0 };

    #[test]
    fn null_pointers_and_empty_plans_are_refused() {
        let nowhere = params(&PRODUCT, &Addresses::default());
        let somewhere = params(&PRODUCT, &Addresses { a: 16, b: 16, d: 16 });
        let plan = og_gemm_plan::default();
        let none: *mut c_void = std::ptr::null_mut();
        // SAFETY: every null is one that the header promises to refuse, and a plan that no prepare
        // has filled in is refused before any address is used.
        let statuses = unsafe {
            [
                bindings::og_gemm_check(std::ptr::null()),
                bindings::og_gemm_prepare(std::ptr::null(), none.cast()),
                bindings::og_gemm_prepare(&nowhere, none.cast()),
                bindings::og_gemm_enqueue(&nowhere, std::ptr::null(), none, none),
                bindings::og_gemm_enqueue(&nowhere, &plan, none, none),
                bindings::og_gemm_enqueue(&somewhere, &plan, none, none),
            ]
        };
        assert_eq!(statuses[..5], [og_status::OG_STATUS_NULL_POINTER; 5]);
        assert_eq!(statuses[5], og_status::OG_STATUS_BAD_PLAN);
    }

    #[test]
    fn the_border_refuses_what_rust_types_cannot_even_say() {
        let good = params(&PRODUCT, &Addresses::default());
        let refused = |change: fn(&mut og_gemm_params)| {
            let mut params = good;
            change(&mut params);
            // SAFETY: needs no device and follows no address.
            unsafe { bindings::og_gemm_check(&params) }
        };
        assert_eq!(refused(|_| ()), og_status::OG_STATUS_OK);
        assert_eq!(refused(|p| p.m = 0), og_status::OG_STATUS_OUT_OF_RANGE);
        assert_eq!(refused(|p| p.n = -1), og_status::OG_STATUS_OUT_OF_RANGE);
        assert_eq!(refused(|p| p.k = i64::MAX), og_status::OG_STATUS_OUT_OF_RANGE);
        assert_eq!(refused(|p| p.sm_count = -1), og_status::OG_STATUS_OUT_OF_RANGE);
        assert_eq!(refused(|p| p.sm_count = 1), og_status::OG_STATUS_OUT_OF_RANGE);
        assert_eq!(refused(|p| p.lda = i64::MAX), og_status::OG_STATUS_BAD_PITCH);
        assert_eq!(refused(|p| p.ldb = i64::MIN), og_status::OG_STATUS_BAD_PITCH);
        assert_eq!(refused(|p| p.ldd = 7), og_status::OG_STATUS_BAD_PITCH);
        assert_eq!(refused(|p| p.ldd = 12), og_status::OG_STATUS_MISALIGNED);
        assert_eq!(refused(|p| p.a = 24 as *const c_void), og_status::OG_STATUS_MISALIGNED);
        let many = |p: &mut og_gemm_params| {
            (p.m, p.n, p.ldd) = (MAX_EXTENT.into(), MAX_EXTENT.into(), MAX_EXTENT.into());
        };
        assert_eq!(refused(many), og_status::OG_STATUS_OUT_OF_RANGE, "2^47 tiles");
    }

    #[test]
    fn every_status_has_a_name() {
        for number in 0..=og_status::OG_STATUS_INTERNAL.0 + 1 {
            // SAFETY: any number is allowed, and the answer is never null.
            let name = unsafe { CStr::from_ptr(bindings::og_status_string(og_status(number))) };
            let known = number <= og_status::OG_STATUS_INTERNAL.0;
            assert_eq!(name.to_str() != Ok("unknown status"), known, "{number}");
        }
    }

    #[test]
    fn without_a_driver_prepare_says_so() {
        if super::super::devices().is_ok() {
            return; // The GPU tests prepare for real.
        }
        // SAFETY: without a driver there is no context, and the runtime's first call fails.
        let error = unsafe { prepare(&PRODUCT) }.unwrap_err();
        assert!(matches!(error, Error::Cuda { .. }), "{error:?}");
        assert!(error.to_string().contains("cudaGetDevice"), "{error}");
    }
}
