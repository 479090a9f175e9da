//! The border itself: that both sides mean the same, and that C refuses what Rust cannot even say.

use super::*;

#[test]
fn the_objects_are_of_this_header() {
    assert_eq!(kernels_built(), Ok(()));
}

/// A shape that kernel 0 takes; any kernel may be the first.
fn good() -> og_gemm_shape {
    // Square, so that B has one pitch in both layouts.
    let (m, n, k, [lda, ldb, ldc, ldd]) = (64, 64, 64, [64; 4]);
    let (kernel, sm_count, swizzle, splits, gated, reserved) = (0, 0, 1, 1, 0, 0);
    og_gemm_shape {
        m,
        n,
        k,
        lda,
        ldb,
        ldc,
        ldd,
        kernel,
        sm_count,
        swizzle,
        splits,
        gated,
        reserved,
    }
}

fn operands(address: usize) -> og_gemm_operands {
    let (a, b, d) = (address as *const _, address as *const _, address as *mut _);
    og_gemm_operands { a, b, d, alpha: 1.0, ..og_gemm_operands::default() }
}

#[test]
fn null_pointers_and_empty_plans_are_refused() {
    let (nowhere, somewhere) = (operands(0), operands(16));
    let (shape, plan) = (good(), og_gemm_plan::default());
    let none: *mut c_void = std::ptr::null_mut();
    let enqueue = |plan: *const og_gemm_plan, operands: *const og_gemm_operands| {
        let (input, records) = (std::ptr::null(), std::ptr::null_mut());
        // SAFETY: every null is one that the header promises to refuse, and a plan that no prepare
        // has filled in is refused before any address is used.
        unsafe { bindings::og_gemm_enqueue(plan, 1, operands, input, records, none, none) }
    };
    // SAFETY: as above.
    let statuses = unsafe {
        [
            bindings::og_kernel_info(0, std::ptr::null_mut()),
            bindings::og_gemm_check(std::ptr::null(), 0),
            bindings::og_gemm_prepare(std::ptr::null(), std::ptr::null_mut()),
            bindings::og_gemm_prepare(&shape, std::ptr::null_mut()),
            bindings::og_epoch_advance(std::ptr::null_mut(), none),
            bindings::og_signal_post(std::ptr::null_mut(), 1, std::ptr::null(), none),
            bindings::og_reduce(std::ptr::null(), none),
            enqueue(std::ptr::null(), &somewhere),
            enqueue(&plan, std::ptr::null()),
        ]
    };
    assert_eq!(statuses, [og_status::OG_STATUS_NULL_POINTER; 9]);
    assert_eq!(enqueue(&plan, &somewhere), og_status::OG_STATUS_BAD_PLAN);
    // Which of its two faults is named first is not promised.
    assert_ne!(enqueue(&plan, &nowhere), og_status::OG_STATUS_OK);
}

#[test]
fn the_border_refuses_what_rust_types_cannot_even_say() {
    let refused = |change: fn(&mut og_gemm_shape)| {
        let mut shape = good();
        change(&mut shape);
        // SAFETY: needs no device and follows no address.
        unsafe { bindings::og_gemm_check(&shape, 1) }
    };
    let out_of_range: [fn(&mut og_gemm_shape); 11] = [
        |s| s.m = 0,
        |s| s.n = -1,
        |s| s.k = i64::MAX,
        |s| s.sm_count = -1,
        |s| s.kernel = -1,
        |s| s.kernel = i32::MAX,
        |s| s.swizzle = 0,
        |s| s.swizzle = -1,
        |s| s.splits = 0,
        |s| s.splits = i32::MIN,
        |s| s.splits = OG_MAX_SPLITS_AND_ONE,
    ];
    const OG_MAX_SPLITS_AND_ONE: i32 = bindings::OG_MAX_SPLITS as i32 + 1;
    assert_eq!(refused(|_| ()), og_status::OG_STATUS_OK);
    for (index, change) in out_of_range.into_iter().enumerate() {
        assert_eq!(refused(change), og_status::OG_STATUS_OUT_OF_RANGE, "change {index}");
    }
    let pitches: [fn(&mut og_gemm_shape); 4] =
        [|s| s.lda = i64::MAX, |s| s.ldb = i64::MIN, |s| s.ldd = 7, |s| s.ldc = 1];
    for (index, change) in pitches.into_iter().enumerate() {
        assert_eq!(refused(change), og_status::OG_STATUS_BAD_PITCH, "pitch {index}");
    }
    assert_eq!(refused(|s| s.ldd = 65), og_status::OG_STATUS_MISALIGNED);
    assert_eq!(refused(|s| (s.gated, s.n) = (1, 56)), og_status::OG_STATUS_OUT_OF_RANGE);
}

#[test]
fn sums_that_cannot_be_added_are_refused() {
    let good = og_reduction {
        words: std::ptr::null(),
        sums_at: 0,
        own: 16 as *const c_void,
        slots: 32 as *const c_void,
        slot_pitch: 640,
        pitch: 64,
        rows: 10,
        n: 56,
        ranks: 3,
        rank: 1,
        sum_type: og_type::OG_TYPE_BF16,
        d_type: og_type::OG_TYPE_F32,
        d: 64 as *mut c_void,
        c: std::ptr::null(),
        bias: 48 as *const c_void,
        ldd: 60,
        alpha: 1.0,
        beta: 0.0,
        activation: og_activation::OG_ACTIVATION_NONE,
        average: 1,
        // So that nothing is enqueued: this is looked at last.
        stop: std::ptr::null(),
        epoch: std::ptr::null(),
    };
    let status = |change: fn(&mut og_reduction)| {
        let mut reduction = good;
        change(&mut reduction);
        // SAFETY: refused before any address is used.
        unsafe { bindings::og_reduce(&reduction, std::ptr::null_mut()) }
    };
    assert_eq!(status(|_| ()), og_status::OG_STATUS_NULL_POINTER, "all but that is right");
    let out_of_range: [fn(&mut og_reduction); 9] = [
        |r| r.ranks = 0,
        |r| r.rank = 3,
        |r| r.rows = 0,
        |r| r.n = -8,
        |r| r.sum_type = og_type::OG_TYPE_F16,
        |r| r.d_type = og_type::OG_TYPE_E4M3,
        |r| r.slot_pitch = -1,
        |r| r.average = 2,
        |r| r.activation = og_activation(4),
    ];
    for (index, change) in out_of_range.into_iter().enumerate() {
        assert_eq!(status(change), og_status::OG_STATUS_OUT_OF_RANGE, "change {index}");
    }
    assert_eq!(status(|r| r.pitch = 48), og_status::OG_STATUS_BAD_PITCH);
    assert_eq!(status(|r| r.ldd = 52), og_status::OG_STATUS_BAD_PITCH);
    let misaligned: [fn(&mut og_reduction); 7] = [
        |r| (r.words, r.sums_at) = (16 as *const _, 8),
        |r| r.pitch = 68,
        |r| r.n = 52,
        |r| r.slot_pitch = 644,
        |r| r.d = 72 as *mut c_void,
        |r| r.bias = 8 as *const c_void,
        |r| r.c = 20 as *const c_void,
    ];
    for (index, change) in misaligned.into_iter().enumerate() {
        assert_eq!(status(change), og_status::OG_STATUS_MISALIGNED, "change {index}");
    }
}

#[test]
fn kernels_beyond_the_last_are_refused() {
    assert!(kernel_info(kernel_count().unwrap()).is_err());
    assert!(kernel_info(u32::MAX).is_err());
}

#[test]
fn without_a_driver_prepare_says_so() {
    if crate::cuda::sys::device::devices().is_ok() {
        return; // The GPU tests prepare for real.
    }
    // SAFETY: without a driver there is no context, and the runtime's first call fails.
    let errors = unsafe { [prepare(&good()).map(|_| ()), signals_prepare()] };
    for error in errors {
        // The code of the runtime's words: "CUDA driver version is insufficient for CUDA runtime version".
        assert!(matches!(error, Err(Error::Cuda { code: Some(35), .. })), "{error:?}");
    }
}
