//! Memory that several threads write disjoint parts of.
//!
//! Two shapes: [`RowBuffer`] (of A: [`ScaledRows`]), which peers fill chunk by chunk while workers read chunks that have
//! arrived; [`OutputCells`], an output that workers fill tile by tile: a caller's, or a rank's own sums. Invariant: neither
//! orders anything. Who may touch which rows when is the protocol's business for the one, the tile
//! order's (each tile once) for the other, and both are stated at every `unsafe` call.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;

use crate::element::Element;
use crate::error::{Error, Result};
use crate::plan::{BUFFERS, Problem, Scaling};

/// Which of the buffers `epoch` lives in.
pub(crate) fn buffer_of(epoch: u32) -> usize {
    (epoch % BUFFERS) as usize
}

/// An error if `bytes` are more than this machine has free.
///
/// Buffers are filled as they are made, so asking for too much would not fail but be killed.
pub(crate) fn check_memory(what: &str, bytes: u128) -> Result<()> {
    let free = free_memory().unwrap_or(isize::MAX as u64);
    if bytes <= u128::from(free) {
        return Ok(());
    }
    let value = u64::try_from(bytes).unwrap_or(u64::MAX);
    let remedy = "plan for a smaller M, fewer pieces, or fewer ranks on this machine";
    Err(Error::out_of_range(format!("the memory for {what} in bytes"), value, 0, free, remedy))
}

/// What Linux says it can still give; unknown elsewhere.
fn free_memory() -> Option<u64> {
    let report = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = report.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

/// Rows of `columns` elements each, packed.
#[derive(Debug)]
pub(crate) struct RowBuffer<T> {
    elements: Box<[UnsafeCell<T>]>,
    columns: usize,
}

// SAFETY: the buffer itself gives no access; `rows`, `rows_mut` and `OutputCells::of_buffer` are unsafe, and demand that
// nobody writes what another thread touches.
unsafe impl<T: Send + Sync> Sync for RowBuffer<T> {}

impl<T: Copy> RowBuffer<T> {
    /// `rows` rows that hold `value`.
    pub(crate) fn new(rows: usize, columns: usize, value: T) -> Self {
        let elements = (0..rows * columns).map(|_| UnsafeCell::new(value)).collect();
        RowBuffer { elements, columns }
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> u32 {
        (self.elements.len() / self.columns) as u32
    }

    /// The elements of `rows`.
    ///
    /// # Safety
    /// No thread may write any of these rows while the slice lives.
    pub(crate) unsafe fn rows(&self, rows: Range<u32>) -> &[T] {
        let cells = &self.elements[self.span(rows)];
        // SAFETY: `UnsafeCell<T>` has the layout of `T`; no writer, as the caller guarantees.
        unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) }
    }

    /// The elements of `rows`, to be written.
    ///
    /// # Safety
    /// No other thread may touch any of these rows while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "the point of an UnsafeCell; see Safety")]
    pub(crate) unsafe fn rows_mut(&self, rows: Range<u32>) -> &mut [T] {
        let cells = &self.elements[self.span(rows)];
        // SAFETY: as above, and the caller guarantees that the rows are this thread's alone.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(cells.as_ptr()), cells.len()) }
    }

    fn span(&self, rows: Range<u32>) -> Range<usize> {
        rows.start as usize * self.columns..rows.end as usize * self.columns
    }
}

/// Rows of A, with a scale each where the problem has them.
#[derive(Debug)]
pub(crate) struct ScaledRows<A> {
    pub(crate) rows: RowBuffer<A>,
    pub(crate) scales: Option<RowBuffer<f32>>,
}

impl<A: Element> ScaledRows<A> {
    /// All rows of the problem, twice, poisoned.
    pub(crate) fn buffers(problem: &Problem) -> [Self; BUFFERS as usize] {
        let (m, k) = (problem.m() as usize, problem.k() as usize);
        let scales = || RowBuffer::new(m, 1, f32::NAN);
        std::array::from_fn(|_| ScaledRows {
            rows: RowBuffer::new(m, k, A::POISON),
            scales: (problem.scaling() == Scaling::Rows).then(scales),
        })
    }
}

/// A borrowed output that workers write tile by tile.
#[derive(Debug)]
pub(crate) struct OutputCells<'a, T> {
    start: *mut T,
    len: usize,
    pitch: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `row_part`, which is unsafe and demands disjoint parts.
unsafe impl<T: Send> Sync for OutputCells<'_, T> {}
// SAFETY: as for `&mut [T]`.
unsafe impl<T: Send> Send for OutputCells<'_, T> {}

impl<'a, T> OutputCells<'a, T> {
    /// Lends `output`, whose rows start `pitch` elements apart.
    pub(crate) fn new(output: &'a mut [T], pitch: u32) -> Self {
        let (start, len) = (output.as_mut_ptr(), output.len());
        OutputCells { start, len, pitch: pitch as usize, borrow: PhantomData }
    }

    /// The columns of `buffer` from `first_column` on.
    ///
    /// # Safety
    /// No other thread may touch a part that [`OutputCells::row_part`] gives out while that lives.
    pub(crate) unsafe fn of_buffer(buffer: &'a RowBuffer<T>, first_column: u32) -> Self {
        let cells = &buffer.elements[first_column as usize..];
        let start = UnsafeCell::raw_get(cells.as_ptr());
        OutputCells { start, len: cells.len(), pitch: buffer.columns, borrow: PhantomData }
    }

    /// The index of an element.
    pub(crate) fn place(&self, row: u32, column: u32) -> usize {
        row as usize * self.pitch + column as usize
    }

    /// Columns `columns` of row `row`.
    ///
    /// # Safety
    /// No other thread may touch these elements while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "a shared view of a mutable borrow; see Safety")]
    pub(crate) unsafe fn row_part(&self, row: u32, columns: Range<u32>) -> &mut [T] {
        let begin = self.place(row, columns.start);
        let len = columns.len();
        assert!(begin + len <= self.len, "a tile lies within its output");
        // SAFETY: in bounds, and the caller guarantees that the elements are this thread's alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(begin), len) }
    }
}
