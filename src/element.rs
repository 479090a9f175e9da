//! Element types: which numbers a matrix may hold, and what each may do.
//!
//! Two views of one list. [`ElementType`] is the run-time name (plans, the command line, device
//! code); [`Element`] is the Rust type behind it (buffers, arithmetic). Invariant: widening any
//! element to `f32` is exact, narrowing rounds to nearest, ties to even. So every product here is
//! "exact inputs, `f32` accumulation, one rounding at the end".

use std::fmt;
use std::str::FromStr;

pub use float8::{F8E4M3, F8E5M2};
use half::slice::HalfFloatSliceExt as _;
pub use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The name of an element type, as plans and the command line carry it.
///
/// ```
/// use overlap_gemm::ElementType;
///
/// let element: ElementType = "e4m3".parse()?;
/// assert_eq!((element.size(), element.max_finite()), (1, 448.0));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// bfloat16: 8 exponent bits, 7 mantissa bits.
    Bf16,
    /// IEEE half: 5 exponent bits, 10 mantissa bits.
    F16,
    /// IEEE single.
    F32,
    /// OCP fp8 E4M3 (finite range ±448, one NaN pattern a sign, no infinity).
    E4m3,
    /// OCP fp8 E5M2 (finite range ±57344, infinities and NaNs).
    E5m2,
}

impl ElementType {
    /// All element types, in declaration order.
    pub const ALL: [ElementType; 5] = [
        ElementType::Bf16,
        ElementType::F16,
        ElementType::F32,
        ElementType::E4m3,
        ElementType::E5m2,
    ];

    /// Size of one element in bytes.
    pub const fn size(self) -> u32 {
        match self {
            ElementType::F32 => 4,
            ElementType::Bf16 | ElementType::F16 => 2,
            ElementType::E4m3 | ElementType::E5m2 => 1,
        }
    }

    /// The type of the C and the bias of a D of this type: bf16 where that is fp8, else the same.
    pub const fn addend(self) -> Self {
        if self.is_fp8() { ElementType::Bf16 } else { self }
    }

    /// Whether this is one of the two 8-bit types, which carry scales beside them.
    pub const fn is_fp8(self) -> bool {
        matches!(self, ElementType::E4m3 | ElementType::E5m2)
    }

    /// The unit roundoff: half the distance from 1 to the next larger number.
    pub const fn unit_roundoff(self) -> f64 {
        let stored_mantissa_bits = match self {
            ElementType::Bf16 => 7,
            ElementType::F16 => 10,
            ElementType::F32 => 23,
            ElementType::E4m3 => 3,
            ElementType::E5m2 => 2,
        };
        1.0 / (1u64 << (stored_mantissa_bits + 1)) as f64
    }

    /// The smallest positive number of the type (a subnormal), as `f64`.
    pub fn min_positive(self) -> f64 {
        let exponent = match self {
            ElementType::Bf16 => -133,
            ElementType::F16 => -24,
            ElementType::F32 => -149,
            ElementType::E4m3 => -9,
            ElementType::E5m2 => -16,
        };
        2f64.powi(exponent)
    }

    /// The largest finite number of the type, as `f64`.
    pub const fn max_finite(self) -> f64 {
        match self {
            ElementType::Bf16 => 3.3895313892515355e38,
            ElementType::F16 => 65504.0,
            ElementType::F32 => f32::MAX as f64,
            ElementType::E4m3 => 448.0,
            ElementType::E5m2 => 57344.0,
        }
    }

    /// The name used on the command line and in serialized plans.
    pub const fn name(self) -> &'static str {
        match self {
            ElementType::Bf16 => "bf16",
            ElementType::F16 => "f16",
            ElementType::F32 => "f32",
            ElementType::E4m3 => "e4m3",
            ElementType::E5m2 => "e5m2",
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ElementType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        ElementType::ALL.into_iter().find(|t| t.name() == name).ok_or_else(|| Error::Unsupported {
            what: format!("element type '{name}'"),
            why: "it is not one this crate knows".into(),
            remedy: "use one of bf16, f16, f32, e4m3, e5m2",
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that a matrix of this crate can hold. Sealed: the five types of [`ElementType`].
///
/// ```
/// use overlap_gemm::Element;
/// use overlap_gemm::element::bf16;
///
/// let rounded = bf16::narrow(1.0 / 3.0);
/// assert_eq!(rounded.widen(), 0.333_984_375);
/// ```
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + fmt::Debug + 'static {
    /// The run-time name of this type.
    const TYPE: ElementType;
    /// A NaN: what undefined outputs and not yet arrived inputs hold.
    const POISON: Self;
    /// The type of the C and the bias of a D of this type: [`ElementType::addend`].
    type Addend: Element;

    /// The exact value as `f32`.
    fn widen(self) -> f32;

    /// The nearest representable value, ties to even; the fp8 types saturate.
    fn narrow(value: f32) -> Self;

    /// Widens a row: as many elements as the shorter of the two has.
    ///
    /// The same values as [`Element::widen`], faster: a shift that vectorises for bf16, the
    /// processor's own conversion for f16, a table of all 256 values for fp8.
    fn widen_row(from: &[Self], to: &mut [f32]);
}

/// The values of all bit patterns of an 8-bit type.
type Table = std::sync::LazyLock<[f32; 256]>;

static E4M3_VALUES: Table =
    Table::new(|| std::array::from_fn(|bits| F8E4M3::from_bits(bits as u8).to_f32()));
static E5M2_VALUES: Table =
    Table::new(|| std::array::from_fn(|bits| F8E5M2::from_bits(bits as u8).to_f32()));

fn widen_bf16_row(from: &[bf16], to: &mut [f32]) {
    for (from, to) in from.iter().zip(to) {
        *to = f32::from_bits(u32::from(from.to_bits()) << 16);
    }
}

fn widen_f16_row(from: &[f16], to: &mut [f32]) {
    let len = from.len().min(to.len());
    from[..len].convert_to_f32_slice(&mut to[..len]);
}

fn widen_e4m3_row(from: &[F8E4M3], to: &mut [f32]) {
    let values: &[f32; 256] = &E4M3_VALUES;
    from.iter().zip(to).for_each(|(from, to)| *to = values[usize::from(from.to_bits())]);
}

fn widen_e5m2_row(from: &[F8E5M2], to: &mut [f32]) {
    let values: &[f32; 256] = &E5M2_VALUES;
    from.iter().zip(to).for_each(|(from, to)| *to = values[usize::from(from.to_bits())]);
}

fn widen_f32_row(from: &[f32], to: &mut [f32]) {
    let len = from.len().min(to.len());
    to[..len].copy_from_slice(&from[..len]);
}

macro_rules! element {
    ($type:ty, $name:ident, $addend:ty, $poison:expr, $widen:expr, $narrow:expr, $widen_row:expr) => {
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;
            const POISON: Self = $poison;
            type Addend = $addend;

            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self)
            }

            #[inline(always)]
            fn narrow(value: f32) -> Self {
                $narrow(value)
            }

            fn widen_row(from: &[Self], to: &mut [f32]) {
                $widen_row(from, to)
            }
        }
    };
}

element!(bf16, Bf16, bf16, bf16::NAN, bf16::to_f32, bf16::from_f32, widen_bf16_row);
element!(f16, F16, f16, f16::NAN, f16::to_f32, f16::from_f32, widen_f16_row);
element!(f32, F32, f32, f32::NAN, std::convert::identity, std::convert::identity, widen_f32_row);
element!(
    F8E4M3,
    E4m3,
    bf16,
    F8E4M3::from_bits(0x7f),
    |x: F8E4M3| x.to_f32(),
    F8E4M3::from_f32,
    widen_e4m3_row
);
element!(
    F8E5M2,
    E5m2,
    bf16,
    F8E5M2::from_bits(0x7f),
    |x: F8E5M2| x.to_f32(),
    F8E5M2::from_f32,
    widen_e5m2_row
);

/// `$run!(A, B, D)` with the Rust types of `$types`, an `ElementTypes`; `$other` if no product has such types.
#[doc(hidden)]
#[macro_export]
macro_rules! of_types {
    ($types:expr, $run:ident, $other:expr) => {{
        use $crate::element::ElementType::{Bf16, E4m3, E5m2, F16, F32};
        use $crate::element::{F8E4M3, F8E5M2, bf16, f16};
        let types = $types;
        match (types.a, types.b, types.d) {
            (Bf16, Bf16, Bf16) => $run!(bf16, bf16, bf16),
            (Bf16, Bf16, F16) => $run!(bf16, bf16, f16),
            (Bf16, Bf16, F32) => $run!(bf16, bf16, f32),
            (F16, F16, Bf16) => $run!(f16, f16, bf16),
            (F16, F16, F16) => $run!(f16, f16, f16),
            (F16, F16, F32) => $run!(f16, f16, f32),
            (F32, F32, F32) => $run!(f32, f32, f32),
            (E4m3, E4m3, Bf16) => $run!(F8E4M3, F8E4M3, bf16),
            (E4m3, E4m3, F16) => $run!(F8E4M3, F8E4M3, f16),
            (E4m3, E4m3, E4m3) => $run!(F8E4M3, F8E4M3, F8E4M3),
            (E4m3, E5m2, Bf16) => $run!(F8E4M3, F8E5M2, bf16),
            (E4m3, E5m2, F16) => $run!(F8E4M3, F8E5M2, f16),
            (E4m3, E5m2, E5m2) => $run!(F8E4M3, F8E5M2, F8E5M2),
            (E5m2, E4m3, Bf16) => $run!(F8E5M2, F8E4M3, bf16),
            (E5m2, E4m3, F16) => $run!(F8E5M2, F8E4M3, f16),
            (E5m2, E4m3, E5m2) => $run!(F8E5M2, F8E4M3, F8E5M2),
            _ => $other,
        }
    }};
}
#[doc(hidden)]
pub use of_types;

#[cfg(test)]
mod tests {
    use super::*;

    fn poison_is_nan<T: Element>() {
        assert!(T::POISON.widen().is_nan(), "{}", T::TYPE);
        assert_eq!(size_of::<T>() as u32, T::TYPE.size(), "{}", T::TYPE);
        assert_eq!(T::narrow(1.0).widen(), 1.0);
        assert_eq!(<T::Addend as Element>::TYPE, T::TYPE.addend());
    }

    #[test]
    fn every_type_has_a_nan_and_its_size() {
        poison_is_nan::<bf16>();
        poison_is_nan::<f16>();
        poison_is_nan::<f32>();
        poison_is_nan::<F8E4M3>();
        poison_is_nan::<F8E5M2>();
    }

    #[test]
    fn unit_roundoff_is_where_rounding_starts() {
        fn check<T: Element>() {
            let u = T::TYPE.unit_roundoff();
            assert_eq!(T::narrow((1.0 + u) as f32).widen(), 1.0, "ties to even, {}", T::TYPE);
            if T::TYPE != ElementType::F32 {
                assert!(T::narrow((1.0 + 1.5 * u) as f32).widen() > 1.0, "{}", T::TYPE);
            }
            let least = T::narrow(T::TYPE.min_positive() as f32).widen();
            assert_eq!(f64::from(least), T::TYPE.min_positive(), "{}", T::TYPE);
            let most = T::narrow(T::TYPE.max_finite() as f32).widen();
            assert_eq!(f64::from(most), T::TYPE.max_finite(), "{}", T::TYPE);
        }
        check::<bf16>();
        check::<f16>();
        check::<f32>();
        check::<F8E4M3>();
        check::<F8E5M2>();
    }

    #[test]
    fn fp8_saturates() {
        fn check<T: Element>() {
            let most = T::TYPE.max_finite() as f32;
            for value in [most * 1.01, most * 1.5, f32::MAX, f32::INFINITY] {
                assert_eq!(T::narrow(value).widen(), most, "{value}");
                assert_eq!(T::narrow(-value).widen(), -most, "{value}");
            }
            assert!(T::narrow(f32::NAN).widen().is_nan());
        }
        check::<F8E4M3>();
        check::<F8E5M2>();
    }

    #[test]
    fn fp8_round_trips_every_bit_pattern() {
        for bits in 0..=u8::MAX {
            let x = F8E4M3::from_bits(bits);
            if !x.widen().is_nan() {
                assert_eq!(F8E4M3::narrow(x.widen()).to_bits(), bits);
            }
            let x = F8E5M2::from_bits(bits);
            if x.widen().is_finite() {
                assert_eq!(F8E5M2::narrow(x.widen()).to_bits(), bits);
            }
        }
    }

    #[test]
    fn rows_widen_like_their_elements() {
        fn check<T: Element>() {
            let row: Vec<T> = (0..1000).map(|i| T::narrow((i as f32 - 500.0) * 0.37)).collect();
            let mut wide = vec![0.0; 999]; // one short: only what fits is written
            T::widen_row(&row, &mut wide);
            let single: Vec<f32> = row[..999].iter().map(|x| x.widen()).collect();
            assert_eq!(wide, single, "{}", T::TYPE);
        }
        check::<bf16>();
        check::<f16>();
        check::<f32>();
        check::<F8E4M3>();
        check::<F8E5M2>();
    }

    #[test]
    fn names_round_trip() {
        for t in ElementType::ALL {
            assert_eq!(t.name().parse::<ElementType>().unwrap(), t);
        }
        assert!("int8".parse::<ElementType>().is_err());
    }
}
