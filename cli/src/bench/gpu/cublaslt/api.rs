//! The functions of cuBLASLt that the bench calls, found in the library at run time.
//!
//! What belongs here: declarations after `cublasLt.h` (the same in CUDA 12 and 13), and loading them.
//! Invariant: the functions stay valid as long as the [`Api`] lives, for it holds the library.

use std::ffi::OsStr;
use std::ffi::{c_int, c_void};
use std::path::Path;

use libloading::Library;
use overlap_gemm::cuda::cudarc::driver::sys::CUstream;

use crate::exit::Failure;
use crate::installed::{self, Found};

/// `cublasStatus_t`.
pub type Status = c_int;
/// `cublasLtHandle_t`, and the descriptors, which are as opaque.
pub type Opaque = *mut c_void;

pub const SUCCESS: Status = 0;
pub const NOT_SUPPORTED: Status = 15;

/// `CUBLAS_COMPUTE_32F`.
pub const COMPUTE_32F: c_int = 68;
/// `CUBLAS_OP_N`.
pub const OP_N: i32 = 0;
/// `CUBLAS_OP_T`.
pub const OP_T: i32 = 1;
/// `CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F`: a scale for each row or column.
pub const SCALE_OUTER_VEC_32F: i32 = 3;

/// `cudaDataType`.
pub mod data_type {
    use std::ffi::c_int;

    pub const R_32F: c_int = 0;
    pub const R_16F: c_int = 2;
    pub const R_16BF: c_int = 14;
    pub const R_8F_E4M3: c_int = 28;
    pub const R_8F_E5M2: c_int = 29;
}

/// `cublasLtMatmulDescAttributes_t`.
pub mod attribute {
    use std::ffi::c_int;

    pub const TRANSA: c_int = 3;
    pub const TRANSB: c_int = 4;
    pub const A_SCALE_POINTER: c_int = 17;
    pub const B_SCALE_POINTER: c_int = 18;
    pub const FAST_ACCUM: c_int = 25;
    pub const A_SCALE_MODE: c_int = 31;
    pub const B_SCALE_MODE: c_int = 32;
}

/// `CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES`.
pub const PREFERENCE_WORKSPACE_BYTES: c_int = 1;

/// `cublasLtMatmulAlgoConfigAttributes_t`.
pub mod config {
    use std::ffi::c_int;

    pub const ID: c_int = 0;
    pub const TILE: c_int = 1;
    pub const SPLIT_K: c_int = 2;
    pub const CLUSTER: c_int = 8;
}

/// `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Algorithm {
    data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Suggestion {
    pub algorithm: Algorithm,
    pub workspace_bytes: usize,
    pub state: Status,
    pub waves: f32,
    reserved: [c_int; 4],
}

/// Declares the table of functions and how it is filled.
macro_rules! functions {
    ($($field:ident = $symbol:literal: $type:ty;)*) => {
        /// The functions.
        pub struct Api {
            $(pub $field: $type,)*
            _library: Library,
        }

        impl Api {
            /// Finds all functions in `library`.
            fn of(library: Library) -> Result<Api, libloading::Error> {
                // SAFETY: the types are those of cublasLt.h, and the library stays loaded beside
                // the copies of its symbols.
                Ok(unsafe { Api {
                    $($field: *library.get::<$type>(concat!($symbol, "\0").as_bytes())?,)*
                    _library: library,
                } })
            }
        }
    };
}

type SetAttribute = unsafe extern "C" fn(Opaque, c_int, *const c_void, usize) -> Status;
type Destroy = unsafe extern "C" fn(Opaque) -> Status;

functions! {
    get_version = "cublasLtGetVersion": unsafe extern "C" fn() -> usize;
    create = "cublasLtCreate": unsafe extern "C" fn(*mut Opaque) -> Status;
    destroy = "cublasLtDestroy": Destroy;
    layout_create = "cublasLtMatrixLayoutCreate":
        unsafe extern "C" fn(*mut Opaque, c_int, u64, u64, i64) -> Status;
    layout_destroy = "cublasLtMatrixLayoutDestroy": Destroy;
    desc_create = "cublasLtMatmulDescCreate":
        unsafe extern "C" fn(*mut Opaque, c_int, c_int) -> Status;
    desc_set = "cublasLtMatmulDescSetAttribute": SetAttribute;
    desc_destroy = "cublasLtMatmulDescDestroy": Destroy;
    preference_create = "cublasLtMatmulPreferenceCreate":
        unsafe extern "C" fn(*mut Opaque) -> Status;
    preference_set = "cublasLtMatmulPreferenceSetAttribute": SetAttribute;
    preference_destroy = "cublasLtMatmulPreferenceDestroy": Destroy;
    heuristic = "cublasLtMatmulAlgoGetHeuristic":
        unsafe extern "C" fn(
            Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque,
            c_int, *mut Suggestion, *mut c_int,
        ) -> Status;
    config_get = "cublasLtMatmulAlgoConfigGetAttribute":
        unsafe extern "C" fn(*const Algorithm, c_int, *mut c_void, usize, *mut usize) -> Status;
    matmul = "cublasLtMatmul":
        unsafe extern "C" fn(
            Opaque, Opaque, *const c_void, *const c_void, Opaque, *const c_void, Opaque,
            *const c_void, *const c_void, Opaque, *mut c_void, Opaque,
            *const Algorithm, *mut c_void, usize, CUstream,
        ) -> Status;
}

const REMEDY: &str = "name the file by OVERLAP_GEMM_CUBLASLT (pip's nvidia-cublas has it), or leave it out \
                      of --contenders";

impl Api {
    /// Loads `file`, or where nobody named one, what the loader or pip has. Also says where it was.
    pub fn load(file: Option<&OsStr>) -> Result<(Api, String), Failure> {
        let missing = |what: String| Failure::Missing(format!("{what}: {REMEDY}"));
        let (place, library) = match file {
            Some(file) => {
                // SAFETY: the user of the bench named this file; loading runs its initialisers.
                let library = unsafe { Library::new(file) };
                let place = Path::new(file).display().to_string();
                let why = |error| missing(format!("cuBLASLt cannot be loaded ({error})"));
                (place, library.map_err(why)?)
            }
            None => match installed::cublaslt() {
                Found::ByLoader(name, library) => (name.to_owned(), library),
                Found::OffPath(path, library) => (path.display().to_string(), library),
                Found::Broken(path, why) => {
                    let path = path.display();
                    return Err(missing(format!("{path} is here but cannot be loaded ({why})")));
                }
                Found::Nowhere => return Err(missing("cuBLASLt was not found".into())),
            },
        };
        let why = |error| missing(format!("{place} is not cuBLASLt ({error})"));
        Ok((Api::of(library).map_err(why)?, place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(size_of::<Algorithm>(), 64);
        assert_eq!(size_of::<Suggestion>(), 64 + 8 + 4 + 4 + 16);
    }

    #[test]
    fn what_is_no_cublaslt_is_named_with_a_remedy() {
        for file in ["/nonexistent/libcublasLt.so", "/proc/self/exe", "libc.so.6"] {
            let failure = Api::load(Some(OsStr::new(file))).map(|_| ()).unwrap_err();
            assert!(matches!(failure, Failure::Missing(_)), "{failure}");
            let text = failure.to_string();
            assert!(text.contains("cuBLASLt") && text.contains("--contenders"), "{text}");
        }
    }
}
