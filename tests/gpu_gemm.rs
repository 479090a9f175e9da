//! The bf16 product on the GPU against an f64 reference, and what happens where there is no GPU.
//!
//! What belongs here: [`cuda::Gemm`](overlap_gemm::cuda::Gemm) from the outside. Tests that need a
//! GPU are ignored unless asked for (`cargo test --features cuda -- --ignored`, or
//! `scripts/stage-gpu` for a machine without cargo); the others run everywhere. Inputs are random,
//! outputs are poisoned with NaN before, and what surrounds D must come back untouched.
//!
//! Outputs are compared with `reference`, whose bound follows from K and the formats. It assumes that
//! accumulation loses at most one unit roundoff of f32 for each product. Tensor cores may truncate
//! instead of round (twice the error a step) but take 16 products a step, so there is room to spare.
#![cfg(feature = "cuda")]

use half::bf16;
use overlap_gemm::Error;
use overlap_gemm::cuda::cudarc::driver::CudaStream;
use overlap_gemm::cuda::{self, Device, Gemm, GemmOptions, Operands};
use overlap_gemm::plan::Problem;
use overlap_gemm::random::Random;
use overlap_gemm::reference::{Reference, Report};

/// Elements before and after D that no kernel may touch: a multiple of 8, to keep D aligned.
const GUARD: usize = 1024;

/// Rows of D that are compared; the first, the last and those at tile borders are among them.
const CHECKED_ROWS: usize = 64;

/// Nearly normal, mean 0, deviation 1: the sum of three uniform numbers.
fn normal(random: &mut Random) -> bf16 {
    bf16::from_f32(random.signed() + random.signed() + random.signed())
}

fn matrix(random: &mut Random, len: u64) -> Vec<bf16> {
    (0..len).map(|_| normal(random)).collect()
}

/// One product to try: sizes, and how much longer than its row each pitch is.
#[derive(Clone, Copy, Debug)]
struct Case {
    m: u64,
    n: u64,
    k: u64,
    pad: [u64; 3],
    sm_limit: Option<u32>,
}

impl Case {
    fn problem(&self) -> Problem {
        let [a, b, d] = self.pad;
        Problem::builder(self.m, self.n, self.k)
            .lda(self.k + a)
            .ldb(self.k + b)
            .ldd(self.n + d)
            .build()
            .unwrap()
    }
}

impl Case {
    fn options(&self) -> GemmOptions {
        let plain = GemmOptions::default();
        self.sm_limit.map_or(plain.clone(), |limit| plain.with_sm_limit(limit))
    }
}

/// Pads that bring each pitch to a multiple of 8 elements.
fn case(m: u64, n: u64, k: u64) -> Case {
    let pad = |row: u64| row.next_multiple_of(8) - row;
    Case { m, n, k, pad: [pad(k), pad(k), pad(n)], sm_limit: None }
}

fn padded(m: u64, n: u64, k: u64, extra: [u64; 3]) -> Case {
    let base = case(m, n, k);
    let pad = [0, 1, 2].map(|i| base.pad[i] + 8 * extra[i]);
    Case { pad, ..base }
}

/// Compares some rows of D with the reference.
fn compare(problem: &Problem, a: &[bf16], b: &[bf16], d: &[bf16], rows: &[u32]) -> Report {
    Reference::new(problem, a, b, &[], &[]).unwrap().compare(d, rows.iter().copied()).unwrap()
}

/// Rows worth looking at: the ends, tile borders, and random others.
fn some_rows(m: u32, random: &mut Random) -> Vec<u32> {
    if m as usize <= CHECKED_ROWS {
        return (0..m).collect();
    }
    let mut rows = vec![0, 127, 128, 255, 256, m / 128 * 128, m - 1];
    rows.retain(|&row| row < m);
    while rows.len() < CHECKED_ROWS {
        rows.push((random.next_u64() % u64::from(m)) as u32);
    }
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Runs one case twice with different inputs through one plan, and checks everything.
fn run(device: &Device, stream: &std::sync::Arc<CudaStream>, case: Case, random: &mut Random) {
    let problem = case.problem();
    let gemm = Gemm::plan(device, &problem, &case.options()).unwrap();
    let (m, n) = (case.m as usize, case.n as usize);
    let ldd = n + case.pad[2] as usize;
    // Poison and guards are NaNs of different bits, so that neither can be taken for the other.
    let (poison, guard) = (bf16::from_bits(0x7fc1), bf16::from_bits(0x7fd5));
    let mut before = vec![guard; GUARD + problem.d_len() as usize + GUARD];
    for row in 0..m {
        before[GUARD + row * ldd..][..n].fill(poison);
    }
    for round in 0..2 {
        let a = matrix(random, problem.a_len(problem.m()));
        let b = matrix(random, problem.b_len());
        let (a_gpu, b_gpu) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
        let mut d_gpu = stream.clone_htod(&before).unwrap();
        let mut middle = d_gpu.slice_mut(GUARD..GUARD + problem.d_len() as usize);
        gemm.enqueue(stream, Operands::new(&a_gpu, &b_gpu, &mut middle)).unwrap();
        let after = stream.clone_dtoh(&d_gpu).unwrap();
        stream.synchronize().unwrap();

        for (at, (old, new)) in before.iter().zip(&after).enumerate() {
            if old.to_bits() == guard.to_bits() {
                assert_eq!(new.to_bits(), guard.to_bits(), "{case:?}: guard {at} was overwritten");
            } else {
                assert!(!new.is_nan(), "{case:?}: D[{}] is NaN", at - GUARD);
            }
        }
        let d = &after[GUARD..GUARD + problem.d_len() as usize];
        let report = compare(&problem, &a, &b, d, &some_rows(problem.m(), random));
        assert_eq!(report.wrong, 0, "{case:?}: {report:?}");
        // A missing or doubled slice of K, 64 wide, would show as about √(64 / K) here. Rounding to
        // bf16 alone costs about 2⁻⁹, and never more than 2⁻⁸.
        assert!(report.relative_error < 2f64.powi(-7), "{case:?}: {report:?}");
        let Case { m, n, k, pad, .. } = case;
        println!(
            "{m:>6} × {n:>6} × {k:>6}  pads {pad:?}  round {round}  sms {:>3}  max error {:.3e} \
             ({:4.1} % of the bound)  relative Frobenius {:.3e}",
            gemm.sm_count(),
            report.max_error,
            100.0 * report.worst_fraction,
            report.relative_error
        );
    }
}

fn on_the_gpu(cases: impl IntoIterator<Item = Case>) {
    let device = Device::open(0).unwrap();
    let stream = device.new_stream().unwrap();
    println!("{:?}, {:?}", device.info(), cuda::build_info().unwrap());
    let mut random = Random::new(0x6a09_e667_f3bc_c908);
    for case in cases {
        run(&device, &stream, case, &mut random);
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn whole_tiles() {
    on_the_gpu([
        case(128, 256, 64),
        case(256, 512, 128),
        case(1024, 1024, 1024),
        case(2048, 3584, 8192),
        case(4096, 1792, 4096),
    ]);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn sizes_that_no_tile_divides() {
    on_the_gpu([
        case(1, 8, 8),
        case(1, 8, 1),
        case(7, 264, 72),
        case(127, 248, 64),
        case(129, 264, 65),
        case(300, 504, 700),
        case(1, 4096, 4096),
        case(4096, 8, 4096),
        case(1000, 3000, 1),
        case(1023, 2056, 4097),
        case(130, 4096, 16384),
    ]);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn pitches_longer_than_rows() {
    on_the_gpu([
        padded(128, 256, 64, [1, 2, 3]),
        padded(300, 520, 136, [5, 0, 7]),
        padded(77, 1000, 333, [0, 9, 1]),
        padded(1024, 2048, 512, [64, 128, 256]),
    ]);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn random_sizes() {
    let mut random = Random::new(0xbb67_ae85_84ca_a73b);
    let mut up_to = move |most: u64| random.next_u64() % most + 1;
    let cases: Vec<_> = (0..60)
        .map(|_| {
            let extra = [up_to(9) - 1, up_to(9) - 1, up_to(9) - 1];
            padded(up_to(900), 8 * up_to(188), up_to(1200), extra)
        })
        .collect();
    on_the_gpu(cases);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn fewer_sms_give_the_same() {
    let limits = [2, 3, 16, 77];
    on_the_gpu(limits.map(|limit| Case { sm_limit: Some(limit), ..case(1000, 2000, 512) }));
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn any_thread_may_enqueue() {
    let device = Device::open(0).unwrap();
    let problem = case(512, 512, 512).problem();
    let gemm = Gemm::plan(&device, &problem, &GemmOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for seed in 1..=4u64 {
            let (device, gemm) = (&device, &gemm);
            // A thread on which no context is current, with a stream of its own.
            scope.spawn(move || {
                let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let stream = device.new_stream().unwrap();
                let (a, b) = (matrix(&mut random, 512 * 512), matrix(&mut random, 512 * 512));
                let a_gpu = stream.clone_htod(&a).unwrap();
                let b_gpu = stream.clone_htod(&b).unwrap();
                let mut d_gpu = stream.clone_htod(&vec![bf16::NAN; 512 * 512]).unwrap();
                for _ in 0..10 {
                    gemm.enqueue(&stream, Operands::new(&a_gpu, &b_gpu, &mut d_gpu)).unwrap();
                }
                let d = stream.clone_dtoh(&d_gpu).unwrap();
                stream.synchronize().unwrap();
                let report = compare(gemm.problem(), &a, &b, &d, &some_rows(512, &mut random));
                assert_eq!(report.wrong, 0, "{report:?}");
            });
        }
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_captured_product_replays_on_new_inputs() {
    use cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
    let device = Device::open(0).unwrap();
    // SAFETY: one stream orders everything here.
    unsafe { device.context().disable_event_tracking() };
    let stream = device.new_stream().unwrap();
    let case = case(300, 520, 1000);
    let gemm = Gemm::plan(&device, &case.problem(), &GemmOptions::default()).unwrap();
    let mut random = Random::new(99);
    let mut inputs = || (matrix(&mut random, 300 * 1000), matrix(&mut random, 520 * 1000));
    let (a, b) = inputs();
    let (mut a_gpu, mut b_gpu) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
    let poison = vec![bf16::NAN; 300 * 520];
    let mut d_gpu = stream.clone_htod(&poison).unwrap();
    stream.synchronize().unwrap();

    // The strictest mode: an allocation or a wait in `enqueue` would end the capture with an error.
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    gemm.enqueue(&stream, Operands::new(&a_gpu, &b_gpu, &mut d_gpu)).unwrap();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    for _ in 0..5 {
        let (a, b) = inputs();
        stream.memcpy_htod(&a, &mut a_gpu).unwrap();
        stream.memcpy_htod(&b, &mut b_gpu).unwrap();
        stream.memcpy_htod(&poison, &mut d_gpu).unwrap();
        graph.launch().unwrap();
        let d = stream.clone_dtoh(&d_gpu).unwrap();
        stream.synchronize().unwrap();
        let report = compare(gemm.problem(), &a, &b, &d, &[0, 127, 128, 255, 256, 299]);
        assert_eq!(report.wrong, 0, "{report:?}");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn buffers_that_do_not_fit_are_refused() {
    let device = Device::open(0).unwrap();
    let stream = device.new_stream().unwrap();
    let problem = case(64, 64, 64).problem();
    let gemm = Gemm::plan(&device, &problem, &GemmOptions::default()).unwrap();
    let full = stream.alloc_zeros::<bf16>(64 * 64 + 8).unwrap();
    let mut d = stream.clone_htod(&vec![bf16::from_f32(7.0); 64 * 64]).unwrap();

    let short = full.slice(..64 * 64 - 1);
    let error = gemm.enqueue(&stream, Operands::new(&short, &full, &mut d)).unwrap_err();
    assert!(error.to_string().starts_with("the length of A is 4095"), "{error}");
    let odd = full.slice(1..64 * 64 + 1);
    let error = gemm.enqueue(&stream, Operands::new(&full, &odd, &mut d)).unwrap_err();
    assert!(matches!(error, Error::Misaligned { multiple_of: 16, .. }), "{error}");
    let error = Gemm::plan(&device, &problem, &GemmOptions::default().with_sm_limit(100_000))
        .map(|_| ())
        .unwrap_err();
    assert!(error.to_string().starts_with("the SM limit is 100000"), "{error}");

    // Nothing was enqueued by any of it.
    let untouched = stream.clone_dtoh(&d).unwrap();
    stream.synchronize().unwrap();
    assert!(untouched.iter().all(|x| x.to_f32() == 7.0));
}

/// The check of the check: had the kernel read stale input, the comparison would have said so.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn the_reference_catches_a_wrong_product() {
    let device = Device::open(0).unwrap();
    let stream = device.new_stream().unwrap();
    let case = case(256, 256, 1024);
    let gemm = Gemm::plan(&device, &case.problem(), &GemmOptions::default()).unwrap();
    let mut random = Random::new(42);
    let (mut a, b) = (matrix(&mut random, 256 * 1024), matrix(&mut random, 256 * 1024));
    let (a_gpu, b_gpu) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
    let mut d_gpu = stream.clone_htod(&vec![bf16::NAN; 256 * 256]).unwrap();
    gemm.enqueue(&stream, Operands::new(&a_gpu, &b_gpu, &mut d_gpu)).unwrap();
    let d = stream.clone_dtoh(&d_gpu).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(compare(gemm.problem(), &a, &b, &d, &[0, 255]).wrong, 0);
    // As if the kernel had read one K tile of one row before it arrived.
    a[255 * 1024 + 512..][..64].fill(bf16::ZERO);
    let report = compare(gemm.problem(), &a, &b, &d, &[0, 255]);
    assert!(report.wrong > 64, "a stale K tile went all but unnoticed: {report:?}");
}

#[test]
fn without_a_gpu_every_door_says_so() {
    let Err(error) = cuda::devices() else { return };
    assert!(matches!(error, Error::NoDevice { .. }), "{error:?}");
    assert!(error.to_string().starts_with("no usable GPU: "), "{error}");
    for ordinal in [0, 1, usize::MAX] {
        assert_eq!(Device::open(ordinal).map(|_| ()), Err(error.clone()));
    }
}

#[test]
fn with_or_without_kernels_the_build_says_so() {
    match cuda::build_info() {
        Ok(info) => {
            assert!(cuda::kernels_built().is_ok());
            assert!(info.toolkit.split('.').count() >= 2 && info.cutlass.starts_with("4."));
            assert!(!info.instances.is_empty(), "{info:?}");
        }
        Err(error) => {
            assert!(matches!(error, Error::KernelsNotBuilt { .. }), "{error:?}");
            assert_eq!(cuda::kernels_built(), Err(error.clone()));
            assert_eq!(
                Gemm::check(&case(64, 64, 64).problem(), &GemmOptions::default()),
                Err(error)
            );
        }
    }
}

#[test]
fn impossible_products_are_refused_without_a_device() {
    let misaligned = Problem::builder(64, 64, 12).build().unwrap();
    let error = Gemm::check(&misaligned, &GemmOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Misaligned { bytes: 24, multiple_of: 16, .. }), "{error:?}");
    for (m, n, k) in [(0, 8, 8), (8, 0, 8), (8, 8, 0), (1 << 31, 8, 8), (8, 8, u64::MAX)] {
        let error = Problem::builder(m, n, k).build().unwrap_err();
        assert!(matches!(error, Error::OutOfRange { .. }), "{error:?}");
    }
    let huge = Problem::builder(8, 8, i32::MAX as u64).lda(i32::MAX as u64).build().unwrap();
    assert!(matches!(Gemm::check(&huge, &GemmOptions::default()), Err(Error::OutOfRange { .. })));
    if cuda::kernels_built().is_ok() {
        assert_eq!(
            Gemm::check(&case(100, 96, 98).problem(), &GemmOptions::default().with_sm_limit(64)),
            Ok(())
        );
        let ragged =
            Gemm::check(&case(100, 99, 98).problem(), &GemmOptions::default()).unwrap_err();
        assert!(ragged.to_string().starts_with("the width of D (n) is 198 bytes"), "{ragged}");
    }
}
