//! Matrices in device memory, as calls take them: in a slice of `cudarc`, or in memory of another library.
//!
//! What belongs here: where a matrix lies, and whether it is the one that a plan expects. Invariant: a matrix that was checked has
//! the columns and the row stride of the plan, and at least the rows of the call; a slice ends with the last of its rows.

use std::ops::RangeInclusive;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice};

use super::held::Guards;
use crate::cuda::sys::device::check_context;
use crate::cuda::sys::stream_ops::check_tracked;
use crate::error::{Error, Result};
use crate::fit::{ALL_ROWS, check_len};
use crate::plan::{Problem, strided_len};

/// A matrix in device memory that a call reads, row by row.
///
/// A slice or a view of `cudarc` becomes one by `into()`, so calls take `&slice`; then the plan says how many rows and columns it
/// has, and only its length is checked. [`DeviceMatrix::new`] says so here, and the call refuses another shape than the plan's.
/// `cudarc` makes the step wait for earlier work on a slice, and keeps the slice until the step has used it.
///
/// ```no_run
/// use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream};
/// use overlap_gemm::cuda::{DeviceMatrix, Gemm, Operands};
/// use overlap_gemm::element::bf16;
/// use std::sync::Arc;
///
/// /// A is in the first 4096 columns of a matrix of 4160, B is another library's.
/// fn multiply(
///     gemm: &Gemm,
///     stream: &Arc<CudaStream>,
///     a: &CudaSlice<bf16>,
///     b: u64,
///     d: &mut CudaSlice<bf16>,
/// ) -> overlap_gemm::Result<()> {
///     let a = DeviceMatrix::new(a, 512, 4096).with_row_stride(4160);
///     // SAFETY: 1024 × 4096 numbers start at `b`. Their owner keeps them until the stream has used them.
///     let b = unsafe { DeviceMatrix::<bf16>::from_raw(b, 1024, 4096) };
///     gemm.enqueue(stream, Operands::new(a, b, d))
/// }
/// ```
///
/// A matrix borrows its slice until the call:
///
/// ```compile_fail,E0505
/// # use overlap_gemm::Result;
/// # use overlap_gemm::cuda::{DeviceMatrix, Gemm, Operands};
/// # use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream};
/// # use overlap_gemm::element::bf16;
/// # use std::sync::Arc;
/// # fn dropped(gemm: &Gemm, stream: &Arc<CudaStream>, [a, b]: [CudaSlice<bf16>; 2], mut d: CudaSlice<bf16>) -> Result<()> {
/// let matrix = DeviceMatrix::new(&a, 512, 4096);
/// drop(a);
/// gemm.enqueue(stream, Operands::new(matrix, &b, &mut d))
/// # }
/// ```
pub struct DeviceMatrix<'a, T> {
    memory: Memory<&'a dyn DevicePtr<T>>,
    shape: Option<Shape>,
}

/// A matrix in device memory that a call writes: as [`DeviceMatrix`], and borrowed mutably.
///
/// ```no_run
/// use overlap_gemm::cuda::cudarc::driver::CudaSlice;
/// use overlap_gemm::cuda::DeviceMatrixMut;
/// use overlap_gemm::element::bf16;
///
/// /// The left half of a matrix of 1024 rows and 8192 columns.
/// fn left(d: &mut CudaSlice<bf16>) -> DeviceMatrixMut<'_, bf16> {
///     DeviceMatrixMut::new(d, 1024, 4096).with_row_stride(8192)
/// }
/// ```
pub struct DeviceMatrixMut<'a, T> {
    memory: Memory<&'a mut dyn DevicePtrMut<T>>,
    shape: Option<Shape>,
}

#[derive(Clone, Copy, Debug)]
enum Memory<S> {
    Slice(S),
    Raw(CUdeviceptr),
}

/// What the caller says of a matrix; strides in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    rows: u64,
    columns: u64,
    row_stride: u64,
}

impl Shape {
    fn packed(rows: u64, columns: u64) -> Self {
        Shape { rows, columns, row_stride: columns }
    }
}

/// What a plan says of a matrix: its rows in this call, and the most that were planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedMatrix {
    rows: [u32; 2],
    columns: u32,
    row_stride: u32,
}

impl PlannedMatrix {
    pub(crate) fn a(problem: &Problem, rows: [u32; 2]) -> Self {
        PlannedMatrix { rows, columns: problem.k(), row_stride: problem.lda() }
    }

    pub(crate) fn b(problem: &Problem) -> Self {
        let (rows, columns) = problem.b_extent();
        PlannedMatrix { rows: [rows; 2], columns, row_stride: problem.ldb() }
    }

    /// D, and C, which lies as D does.
    pub(crate) fn d(problem: &Problem, rows: [u32; 2]) -> Self {
        PlannedMatrix { rows, columns: problem.d_columns(), row_stride: problem.ldd() }
    }

    /// Rows without padding.
    pub(crate) fn packed(rows: [u32; 2], columns: u32) -> Self {
        PlannedMatrix { rows, columns, row_stride: columns }
    }

    /// An error unless a matrix has this shape, if it says which it has, and a slice the length and the context.
    fn check<T>(
        self,
        what: &str,
        shape: Option<Shape>,
        slice: Option<&dyn DeviceSlice<T>>,
        context: &Arc<CudaContext>,
    ) -> Result<()> {
        self.check_shape(what, shape)?;
        let Some(slice) = slice else { return Ok(()) };
        check_context(what, slice.stream().context(), context)?;
        check_len(what, slice.len(), self.lens(shape), ALL_ROWS)
    }

    fn check_shape(self, what: &str, shape: Option<Shape>) -> Result<()> {
        let Some(Shape { rows, columns, row_stride }) = shape else { return Ok(()) };
        let extents = [
            ("columns", columns, u64::from(self.columns)),
            // Behind the only row comes none: any stride will do.
            ("row stride", row_stride, if rows > 1 { self.row_stride.into() } else { row_stride }),
        ];
        for (extent, got, planned) in extents {
            if got != planned {
                let remedy = "pass the matrix that was planned, or plan with this one's shape";
                return Err(Error::mismatch(
                    format!("the {extent} of {what}"),
                    got,
                    planned,
                    remedy,
                ));
            }
        }
        let [least, most] = self.rows.map(u64::from);
        Error::check_range(format!("the rows of {what}"), rows, least..=most, ALL_ROWS)
    }

    /// How long a slice may be: as the rows of the call, up to as all that were planned. Device memory is allocated once, for the
    /// largest M, and graphs keep its addresses. Of a matrix that says its rows: as these.
    fn lens(self, shape: Option<Shape>) -> RangeInclusive<u64> {
        let [least, most] = shape.map_or(self.rows.map(u64::from), |shape| [shape.rows; 2]);
        strided_len(least, self.columns, self.row_stride)..=most * u64::from(self.row_stride)
    }
}

impl<'a, T> DeviceMatrix<'a, T> {
    /// `rows` rows of `columns` elements each, without padding.
    pub fn new(slice: &'a impl DevicePtr<T>, rows: u64, columns: u64) -> Self {
        DeviceMatrix { memory: Memory::Slice(slice), shape: Some(Shape::packed(rows, columns)) }
    }

    /// [`DeviceMatrix::new`] in memory that is not `cudarc`'s.
    ///
    /// # Safety
    /// `address` is memory that the plan's device can read, of that many elements (padding included, where
    /// [`DeviceMatrix::with_row_stride`] says so), until the work that a call enqueues has ended. Nothing writes there meanwhile,
    /// but for chunks of an [`AsyncGemm`](crate::cuda::AsyncGemm)'s A before their signals. Nothing orders the work behind
    /// earlier work on this memory but the caller.
    pub unsafe fn from_raw(address: CUdeviceptr, rows: u64, columns: u64) -> Self {
        DeviceMatrix { memory: Memory::Raw(address), shape: Some(Shape::packed(rows, columns)) }
    }

    /// Rows start that many elements apart. The last row may end without padding. Without effect on a slice that became a matrix
    /// by `into()`: there the plan alone says it.
    #[must_use]
    pub fn with_row_stride(mut self, elements: u64) -> Self {
        self.shape = self.shape.map(|shape| Shape { row_stride: elements, ..shape });
        self
    }

    /// An error if this is a slice: `cudarc` makes a later copy into it wait for the product that reads it.
    pub(crate) fn check_may_arrive(&self) -> Result<()> {
        let Memory::Slice(_) = self.memory else { return Ok(()) };
        Err(Error::Unsupported {
            what: "an A that is a slice of `cudarc`, in a product that waits for its rows".into(),
            why: "a copy into the slice would wait for the product, which waits for the copy"
                .into(),
            remedy: "give the slice's address to `DeviceMatrix::from_raw`",
        })
    }

    pub(crate) fn check(
        &self,
        what: &str,
        planned: PlannedMatrix,
        context: &Arc<CudaContext>,
    ) -> Result<()> {
        let slice = match self.memory {
            Memory::Slice(slice) => Some(slice as &dyn DeviceSlice<T>),
            Memory::Raw(_) => None,
        };
        planned.check(what, self.shape, slice, context)
    }

    /// The address, for reads that come after earlier writes.
    pub(crate) fn read<'s>(self, guards: &mut Guards<'s>) -> Result<CUdeviceptr>
    where
        'a: 's,
    {
        match self.memory {
            Memory::Slice(slice) => guards.read(slice),
            Memory::Raw(address) => Ok(address),
        }
    }
}

impl<'a, T> DeviceMatrixMut<'a, T> {
    /// `rows` rows of `columns` elements each, without padding.
    pub fn new(slice: &'a mut impl DevicePtrMut<T>, rows: u64, columns: u64) -> Self {
        DeviceMatrixMut { memory: Memory::Slice(slice), shape: Some(Shape::packed(rows, columns)) }
    }

    /// [`DeviceMatrixMut::new`] in memory that is not `cudarc`'s.
    ///
    /// # Safety
    /// As for [`DeviceMatrix::from_raw`]; the device can write this memory, and nothing else reads or writes it, or overlaps it,
    /// until the work that a call enqueues has ended.
    pub unsafe fn from_raw(address: CUdeviceptr, rows: u64, columns: u64) -> Self {
        DeviceMatrixMut { memory: Memory::Raw(address), shape: Some(Shape::packed(rows, columns)) }
    }

    /// As [`DeviceMatrix::with_row_stride`]; nothing is written between the rows.
    #[must_use]
    pub fn with_row_stride(mut self, elements: u64) -> Self {
        self.shape = self.shape.map(|shape| Shape { row_stride: elements, ..shape });
        self
    }

    pub(crate) fn check(
        &self,
        what: &str,
        planned: PlannedMatrix,
        context: &Arc<CudaContext>,
    ) -> Result<()> {
        let slice = match &self.memory {
            Memory::Slice(slice) => Some(&**slice as &dyn DeviceSlice<T>),
            Memory::Raw(_) => None,
        };
        planned.check(what, self.shape, slice, context)
    }

    /// An error if [`DeviceMatrixMut::write`] for work on that stream would be one.
    pub(crate) fn check_tracked(&self, stream: &CudaStream) -> Result<()> {
        match &self.memory {
            Memory::Slice(slice) => check_tracked(slice.stream(), stream),
            Memory::Raw(_) => Ok(()),
        }
    }

    /// The address, for writes that come after earlier reads and writes.
    pub(crate) fn write<'s>(self, guards: &mut Guards<'s>) -> Result<CUdeviceptr>
    where
        'a: 's,
    {
        match self.memory {
            Memory::Slice(slice) => guards.write(slice),
            Memory::Raw(address) => Ok(address),
        }
    }
}

impl<T> Clone for DeviceMatrix<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceMatrix<'_, T> {}

impl<'a, T, S: DevicePtr<T>> From<&'a S> for DeviceMatrix<'a, T> {
    fn from(slice: &'a S) -> Self {
        DeviceMatrix { memory: Memory::Slice(slice), shape: None }
    }
}

impl<'a, T, S: DevicePtrMut<T>> From<&'a mut S> for DeviceMatrixMut<'a, T> {
    fn from(slice: &'a mut S) -> Self {
        DeviceMatrixMut { memory: Memory::Slice(slice), shape: None }
    }
}

impl<T> std::fmt::Debug for DeviceMatrix<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceMatrix").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl<T> std::fmt::Debug for DeviceMatrixMut<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceMatrixMut").field("shape", &self.shape).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::BLayout;

    #[test]
    fn buffers_of_the_planned_rows_serve_fewer() {
        let problem = Problem::builder(64, 32, 16).lda(24).build().unwrap();
        let a = |rows| PlannedMatrix::a(&problem, rows).lens(None);
        let d = |rows| PlannedMatrix::d(&problem, rows).lens(None);
        assert_eq!(a([64, 64]), 63 * 24 + 16..=64 * 24);
        assert_eq!(a([7, 64]), 6 * 24 + 16..=64 * 24);
        assert_eq!(a([0, 64]), 0..=64 * 24);
        assert_eq!(d([64, 64]), 64 * 32..=64 * 32);
        assert_eq!(d([7, 64]), 7 * 32..=64 * 32);
        // A matrix that says its rows.
        let said = Some(Shape { rows: 9, columns: 16, row_stride: 24 });
        assert_eq!(PlannedMatrix::a(&problem, [7, 64]).lens(said), 8 * 24 + 16..=9 * 24);
    }

    #[test]
    fn matrices_of_another_shape_are_refused() {
        let problem =
            Problem::builder(64, 32, 16).lda(24).ldb(40).b_layout(BLayout::Kn).build().unwrap();
        let a = |rows, columns, row_stride| {
            let shape = Some(Shape { rows, columns, row_stride });
            let checked = PlannedMatrix::a(&problem, [7, 64]).check_shape("A", shape);
            checked.map_err(|error| error.to_string())
        };
        for rows in [7, 30, 64] {
            assert_eq!(a(rows, 16, 24), Ok(()));
        }
        let refused = [
            (a(64, 24, 24), "the columns of A is 24, but must be 16"),
            (a(16, 64, 64), "the columns of A is 64, but must be 16"),
            (a(64, 16, 16), "the row stride of A is 16, but must be 24"),
            (a(6, 16, 24), "the rows of A is 6"),
            (a(65, 16, 24), "the rows of A is 65"),
        ];
        for (found, expected) in refused {
            let text = found.unwrap_err();
            assert!(text.starts_with(expected), "{text}");
        }
        let b = |rows, columns| {
            let shape = Some(Shape { rows, columns, row_stride: 40 });
            PlannedMatrix::b(&problem).check_shape("B", shape)
        };
        assert_eq!(b(16, 32), Ok(()));
        assert!(b(32, 16).is_err(), "B, but transposed");
        // The row stride of one row is nobody's.
        for row_stride in [16, 24, 64] {
            let row = Some(Shape { rows: 1, columns: 16, row_stride });
            assert_eq!(PlannedMatrix::a(&problem, [1, 64]).check_shape("A", row), Ok(()));
        }
        // SAFETY: nothing is enqueued.
        let raw = unsafe { DeviceMatrix::<f32>::from_raw(4096, 3, 5) }.with_row_stride(8);
        assert_eq!(raw.shape, Some(Shape { rows: 3, columns: 5, row_stride: 8 }));
    }
}
