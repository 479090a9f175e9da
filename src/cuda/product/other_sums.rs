//! Other ranks' sums, which a product adds to its own.
//!
//! What belongs here: where they lie, as addresses. Invariant: the epilogue reads them only after an earlier kernel of the stream
//! has waited for them; `stop` and `epoch` say whether that wait was given up.

use cudarc::driver::sys::CUdeviceptr;

use crate::cuda::sys::bindings::og_other_sums;
use crate::element::ElementType;

/// `og_other_sums`, by its addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherSums {
    pub(crate) slots: CUdeviceptr,
    /// Elements between two slots, and between two rows of a slot.
    pub(crate) slot_pitch: i64,
    pub(crate) pitch: i64,
    pub(crate) count: i32,
    pub(crate) stop: CUdeviceptr,
    pub(crate) epoch: CUdeviceptr,
}

impl OtherSums {
    /// Those of the rows from `first` on, where elements have that type.
    pub(super) fn rows_from(self, first: u32, element: ElementType) -> Self {
        let behind = u64::from(first) * self.pitch.unsigned_abs() * u64::from(element.size());
        OtherSums { slots: self.slots + behind, ..self }
    }
}

impl From<OtherSums> for og_other_sums {
    fn from(others: OtherSums) -> Self {
        og_other_sums {
            slots: others.slots as *const _,
            slot_pitch: others.slot_pitch,
            pitch: others.pitch,
            count: others.count,
            reserved: 0,
            stop: others.stop as *const _,
            epoch: others.epoch as *const _,
        }
    }
}
