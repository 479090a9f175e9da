//! cuBLASLt as a contender: what the library suggests for a problem, each as a product.
//!
//! cuBLASLt is column-major; a row-major matrix is a column-major one transposed. So it is asked for
//! Dᵀ (N×M) = Bᵀ · Aᵀ: its A is our B, its scales of A are our scales of B. Invariant: it gets what
//! own kernels get (the same matrices, types, scales, accumulation) and as much workspace as it likes.

mod api;
mod tiles;

use std::ffi::{c_int, c_void};
use std::rc::Rc;

use overlap_gemm::plan::{BLayout, Problem, Scaling};
use overlap_gemm::{ElementType, Error, Result};

use super::driver::{Block, Gpu};
use super::inputs::Inputs;
use crate::exit::Failure;
use crate::installed;
use api::{Api, Opaque, Status, Suggestion, attribute, config, data_type};

/// More than any kernel was seen to want on Hopper.
const WORKSPACE_BYTES: u64 = 64 << 20;

/// Suggestions that are tried.
const SUGGESTIONS: u32 = 16;

/// The library's file, where the loader and pip do not have it.
const VARIABLE: &str = "OVERLAP_GEMM_CUBLASLT";

/// The loaded library, with a handle and a workspace.
pub struct Cublaslt {
    api: Api,
    handle: Opaque,
    workspace: Block,
    place: String,
}

impl Cublaslt {
    /// Loads the library and starts it on the GPU.
    pub fn open(gpu: &Gpu) -> Result<Rc<Cublaslt>, Failure> {
        let (api, place) = Api::load(std::env::var_os(VARIABLE).as_deref())?;
        let workspace = gpu.allocate(WORKSPACE_BYTES)?;
        let mut handle: Opaque = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable; the device's context is current, since memory
        // has just been allocated in it.
        let created = unsafe { (api.create)(&mut handle) };
        outcome("cublasLtCreate", created)?;
        Ok(Rc::new(Cublaslt { api, handle, workspace, place }))
    }

    /// `13.1.0, libcublasLt.so.13`.
    pub fn version(&self) -> String {
        // SAFETY: takes nothing, touches nothing.
        let version = unsafe { (self.api.get_version)() };
        format!("{}, {}", installed::cublaslt_version(version), self.place)
    }
}

impl Drop for Cublaslt {
    fn drop(&mut self) {
        // SAFETY: created by `open`, and no product is left that uses it. A failure frees nothing,
        // and the process is about to end.
        unsafe { (self.api.destroy)(self.handle) };
    }
}

/// One problem, described to the library.
struct Description {
    library: Rc<Cublaslt>,
    product: Opaque,
    a: Opaque,
    b: Opaque,
    c: Opaque,
    d: Opaque,
}

impl Description {
    /// Describes `problem` with the scales of `inputs`; [`Error::Unsupported`] if the library knows no such.
    fn new(library: &Rc<Cublaslt>, problem: &Problem, inputs: &Inputs) -> Result<Description> {
        let null = std::ptr::null_mut();
        let library = library.clone();
        // Filled in step by step: an error on the way frees what was created before it.
        let mut it = Description { library, product: null, a: null, b: null, c: null, d: null };
        let api = &it.library.api;
        // SAFETY: the pointer is to a live field.
        let created =
            unsafe { (api.desc_create)(&mut it.product, api::COMPUTE_32F, data_type::R_32F) };
        outcome("cublasLtMatmulDescCreate", created)?;
        let (m, n, k) = (problem.m().into(), problem.n().into(), problem.k().into());
        let types = problem.elements();
        let (b_rows, b_columns, b_op) = match problem.b_layout() {
            BLayout::Nk => (k, n, api::OP_T),
            BLayout::Kn => (n, k, api::OP_N),
        };
        it.a = it.layout(types.b, b_rows, b_columns, problem.ldb())?;
        it.b = it.layout(types.a, k, m, problem.lda())?;
        it.c = it.layout(types.d.addend(), n, m, problem.ldd())?;
        it.d = it.layout(types.d, n, m, problem.ldd())?;
        it.set("TRANSA", attribute::TRANSA, &b_op)?;
        it.set("TRANSB", attribute::TRANSB, &api::OP_N)?;
        if types.a.is_fp8() {
            it.set("FAST_ACCUM", attribute::FAST_ACCUM, &1i8)?;
        }
        if let (Some(scale_a), Some(scale_b)) = (&inputs.scale_a, &inputs.scale_b) {
            it.set("A_SCALE_POINTER", attribute::A_SCALE_POINTER, &scale_b.address)?;
            it.set("B_SCALE_POINTER", attribute::B_SCALE_POINTER, &scale_a.address)?;
        }
        if problem.scaling() == Scaling::Rows {
            it.set("A_SCALE_MODE", attribute::A_SCALE_MODE, &api::SCALE_OUTER_VEC_32F)?;
            it.set("B_SCALE_MODE", attribute::B_SCALE_MODE, &api::SCALE_OUTER_VEC_32F)?;
        }
        Ok(it)
    }

    /// A column-major matrix.
    fn layout(&self, element: ElementType, rows: u64, columns: u64, pitch: u32) -> Result<Opaque> {
        let mut layout = std::ptr::null_mut();
        let create = self.library.api.layout_create;
        // SAFETY: the pointer is to a live variable.
        let created =
            unsafe { create(&mut layout, data_type(element), rows, columns, pitch.into()) };
        outcome("cublasLtMatrixLayoutCreate", created)?;
        Ok(layout)
    }

    fn set<T>(&self, name: &str, attribute: c_int, value: &T) -> Result<()> {
        let (value, bytes) = (std::ptr::from_ref(value).cast::<c_void>(), size_of::<T>());
        // SAFETY: the description exists, and the value has that many bytes.
        let set = unsafe { (self.library.api.desc_set)(self.product, attribute, value, bytes) };
        named(&format!("cublasLtMatmulDescSetAttribute({name})"), set)
    }

    /// What the library suggests, best first.
    fn suggestions(&self, most: u32) -> Result<Vec<Suggestion>> {
        let api = &self.library.api;
        let mut preference = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        let created = unsafe { (api.preference_create)(&mut preference) };
        outcome("cublasLtMatmulPreferenceCreate", created)?;
        let bytes = WORKSPACE_BYTES;
        let value = std::ptr::from_ref(&bytes).cast();
        let which = api::PREFERENCE_WORKSPACE_BYTES;
        // SAFETY: the preference exists, and the value has that many bytes.
        let set = unsafe { (api.preference_set)(preference, which, value, size_of::<u64>()) };
        let mut all = vec![Suggestion::default(); most as usize];
        let mut found: c_int = 0;
        // SAFETY: all descriptors exist; there is room for as many results as are asked for.
        let asked = unsafe {
            (api.heuristic)(
                self.library.handle,
                self.product,
                self.a,
                self.b,
                self.c,
                self.d,
                preference,
                most as c_int,
                all.as_mut_ptr(),
                &mut found,
            )
        };
        // SAFETY: created above, not used any more.
        unsafe { (api.preference_destroy)(preference) };
        outcome("cublasLtMatmulPreferenceSetAttribute", set)?;
        if asked != api::NOT_SUPPORTED {
            named("cublasLtMatmulAlgoGetHeuristic", asked)?;
        }
        all.truncate(found.max(0) as usize);
        all.retain(|suggestion| suggestion.state == api::SUCCESS);
        Ok(all)
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        let api = &self.library.api;
        let parts = [
            (api.layout_destroy, self.a),
            (api.layout_destroy, self.b),
            (api.layout_destroy, self.c),
            (api.layout_destroy, self.d),
            (api.desc_destroy, self.product),
        ];
        for (destroy, part) in parts.into_iter().filter(|(_, part)| !part.is_null()) {
            // SAFETY: created by `new`, destroyed once, and used by nobody after.
            unsafe { destroy(part) };
        }
    }
}

/// One suggestion for one problem: a product.
pub struct Suggested {
    description: Rc<Description>,
    suggestion: Suggestion,
    place: usize,
}

impl Suggested {
    /// The first suggestions for `problem`. An error if there is none: [`Error::Unsupported`].
    pub fn all(
        library: &Rc<Cublaslt>,
        problem: &Problem,
        inputs: &Inputs,
    ) -> Result<Vec<Suggested>> {
        let described = Description::new(library, problem, inputs)?;
        let suggestions = described.suggestions(SUGGESTIONS)?;
        if suggestions.is_empty() {
            return Err(Error::Unsupported {
                what: "this product".into(),
                why: "cuBLASLt offers no kernel for these types, scales and sizes on this GPU"
                    .into(),
                remedy: "compare with another scaling or type",
            });
        }
        let description = Rc::new(described);
        let suggested = suggestions.into_iter().enumerate();
        let all = suggested.map(|(place, suggestion)| Suggested {
            description: description.clone(),
            suggestion,
            place,
        });
        Ok(all.collect())
    }

    /// Which it is: `112x128, cluster 1x2, splits 1 (suggestion 3, algorithm 66)`, like the names of own kernels: rows and
    /// columns of D, and along M and N.
    pub fn describe(&self) -> String {
        let get = |which| -> Option<u32> {
            let (mut value, mut written) = (0u64, 0);
            let place = std::ptr::from_mut(&mut value).cast();
            // Some attributes have two bytes, most have four; on a little-endian machine the rest
            // of the eight stays zero.
            for bytes in [4, 2] {
                let get = self.description.library.api.config_get;
                // SAFETY: the algorithm came from the library, and there is room for eight bytes.
                let got =
                    unsafe { get(&self.suggestion.algorithm, which, place, bytes, &mut written) };
                if got == api::SUCCESS {
                    return u32::try_from(value).ok();
                }
            }
            None
        };
        let extents = |which, decode: fn(u32) -> Option<[u32; 2]>| match get(which) {
            None => "unknown".into(),
            Some(id) => match decode(id) {
                Some([rows, columns]) => format!("{rows}x{columns}"),
                None => format!("number {id}"),
            },
        };
        let number = |which| get(which).map_or("?".into(), |value| value.to_string());
        format!(
            "{}, cluster {}, splits {} (suggestion {}, algorithm {})",
            extents(config::TILE, tiles::tile),
            extents(config::CLUSTER, tiles::cluster),
            number(config::SPLIT_K),
            self.place,
            number(config::ID),
        )
    }

    /// Enqueues the product on the set of that number.
    pub fn enqueue(&self, gpu: &Gpu, inputs: &Inputs, set: usize) -> Result<()> {
        let it = &self.description;
        let (library, set) = (&it.library, &inputs.sets[set]);
        let (alpha, beta) = (1.0f32, 0.0f32);
        // SAFETY: all descriptors exist and describe these matrices, which are live and as large as
        // the problem says; the factors are read before the call returns (host pointers are the
        // default); the workspace is as large as was promised, and one stream uses it.
        let enqueued = unsafe {
            (library.api.matmul)(
                library.handle,
                it.product,
                std::ptr::from_ref(&alpha).cast(),
                set.b.address as *const c_void,
                it.a,
                set.a.address as *const c_void,
                it.b,
                std::ptr::from_ref(&beta).cast(),
                // C times 0, which is not read.
                std::ptr::null(),
                it.c,
                set.d.address as *mut c_void,
                it.d,
                &self.suggestion.algorithm,
                library.workspace.address as *mut c_void,
                WORKSPACE_BYTES as usize,
                gpu.stream.cu_stream(),
            )
        };
        outcome("cublasLtMatmul", enqueued)
    }
}

fn data_type(element: ElementType) -> c_int {
    match element {
        ElementType::Bf16 => data_type::R_16BF,
        ElementType::F16 => data_type::R_16F,
        ElementType::F32 => data_type::R_32F,
        ElementType::E4m3 => data_type::R_8F_E4M3,
        ElementType::E5m2 => data_type::R_8F_E5M2,
    }
}

/// Turns a status into an error.
fn outcome(call: &'static str, status: Status) -> Result<()> {
    match status {
        api::SUCCESS => Ok(()),
        code => Err(Error::Cuda { call, code: None, detail: format!("cuBLAS status {code}") }),
    }
}

/// An attribute or a combination that the library does not know is a product that it does not offer.
fn named(call: &str, status: Status) -> Result<()> {
    match status {
        api::SUCCESS => Ok(()),
        code => Err(Error::Unsupported {
            what: "this product".into(),
            why: format!("{call} returned cuBLAS status {code}"),
            remedy: "use a newer cuBLASLt, or compare with another scaling or type",
        }),
    }
}
