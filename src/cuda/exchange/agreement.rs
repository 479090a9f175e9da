//! Whether all ranks of a group plan the same.
//!
//! What belongs here: one exchange of texts, and what each rank makes of it. Invariant: all ranks come to an error or none
//! does, and the group lives on: a call is wrong, not the group.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::group::Group;

/// A text, or where there is no room for it (shards of a thousand ranks) its start, and a number that is another one for
/// any other text, up to one chance in 10¹⁹: FNV-1a.
pub(crate) fn comparable(text: String) -> String {
    const MOST: usize = 4096;
    if text.len() <= MOST {
        return text;
    }
    let start: String = text.chars().take(MOST / 8).collect();
    let number = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{start} … ({} bytes, number {number:016x})", text.len())
}

/// An error on all ranks unless all plan the same; a refused rank says why. The group lives on: what is wrong is wrong with a
/// call.
pub(crate) fn agree(
    group: &Group,
    own: std::result::Result<String, &Error>,
    limit: Duration,
) -> Result<()> {
    let refused = own.is_err();
    let text = own.unwrap_or_else(|error| format!("!{error}"));
    let texts = group.all_gather("the plan of a gather", text.as_bytes(), limit)?;
    let first = &texts[0];
    let mut others = (0..).zip(texts.iter());
    let Some((peer, other)) = others.find(|(_, other)| other.starts_with(b"!") || *other != first)
    else {
        return Ok(());
    };
    let (rank, words) = (group.rank(), |text: &[u8]| String::from_utf8_lossy(text).into_owned());
    match other.strip_prefix(b"!") {
        // Whose own plan was refused says so itself.
        Some(_) if refused => Ok(()),
        Some(why) => {
            let reason = format!("rank {peer} cannot plan it: {}", words(why));
            Err(Error::Aborted { rank, reason })
        }
        None => {
            let what = format!("the plan of rank {peer}");
            let expected = format!("rank 0's: {}", words(first));
            let remedy = "plan the same operations in the same order on every rank";
            Err(Error::mismatch(what, words(other), expected, remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Problem;

    #[test]
    fn plans_of_many_ranks_are_compared_in_little_room() {
        let of = |rows: u64| {
            let problem = Problem::builder(rows, 16, 64).ranks(1024).build().unwrap();
            comparable(format!("several products {problem:?} {problem:?} {problem:?}"))
        };
        let (one, other) = (of(1 << 20), of((1 << 20) + 1));
        assert!(one.len() < 4096 && one.starts_with("several products"), "{one}");
        assert_eq!(one, of(1 << 20));
        assert_ne!(one, other);
        assert_eq!(comparable("short".into()), "short");
    }
}
