//! What the ranks of a group find out together before they plan: which GPUs reach each other's memory, and whether all plan
//! the same.
//!
//! What belongs here: asking the driver, telling the other ranks, and what each rank makes of it. Invariant: all ranks come
//! to the same answer, for each hears what all have found, and the group lives on: a call is wrong, not the group. `obstacle`
//! takes two exchanges of the group, so a plan asks once.

use std::ffi::CStr;
use std::time::Duration;

use cudarc::driver::sys::{self, CUdevice_P2PAttribute};

use crate::cuda::sys::device::Device;
use crate::error::{Error, Result};
use crate::group::launch::fnv1a;
use crate::group::{Group, Member, on_one_gpu};

/// What a rank found out about another rank's GPU: it is within reach, it is not, or the driver does not say.
pub(crate) const REACHED: u8 = b'y';
pub(crate) const OUT_OF_REACH: u8 = b'n';
const UNKNOWN: u8 = b'?';

/// Why the ranks cannot share memory; `None` if nothing is known to prevent it.
pub(crate) fn obstacle(group: &Group, device: &Device, limit: Duration) -> Result<Option<String>> {
    let own = device.bus_id().unwrap_or_default();
    obstacle_by(group, &own, |bus| reach(device, bus), limit)
}

/// [`obstacle`], from a GPU at the PCI bus id `own`; `reach` says whether another's is within reach.
pub(crate) fn obstacle_by(
    group: &Group,
    own: &str,
    reach: impl Fn(&[u8]) -> u8,
    limit: Duration,
) -> Result<Option<String>> {
    let own = [&[u8::from(group.shares_devices())], own.as_bytes()].concat();
    let told = group.all_gather("where the GPUs are", &own, limit)?;
    let buses: Vec<&[u8]> = told.iter().map(|told| told.get(1..).unwrap_or_default()).collect();
    // Rank 0's option counts, as where ranks join.
    if told[0].first() == Some(&0) {
        check_unique(group.members(), &buses)?;
    }
    let seen: Vec<u8> = buses.iter().map(|bus| reach(bus)).collect();
    let rows = group.all_gather("which GPUs are in reach", &seen, limit)?;
    Ok(in_the_way(group.members(), &rows))
}

/// An error if two ranks have one GPU; a group that knew no GPUs when it was formed could not see it.
fn check_unique(members: &[Member], buses: &[&[u8]]) -> Result<()> {
    let Some((first, second)) = on_one_gpu(members, buses.iter().copied()) else { return Ok(()) };
    let (first, second) = (first.rank, second.rank);
    let gpu = String::from_utf8_lossy(buses[second as usize]);
    Err(Error::Unsupported {
        what: format!("a plan of ranks {first} and {second} on one GPU, {gpu},"),
        why: "their products would wait for each other on the same SMs".into(),
        remedy: "give each rank a GPU, or allow GroupOptions::shared_devices and divide the SMs (GemmOptions::with_sm_limit)",
    })
}

/// What the driver says of the GPU at a PCI bus id, which this process may not even see.
fn reach(device: &Device, bus: &[u8]) -> u8 {
    let Ok(bus) = CStr::from_bytes_with_nul(&[bus, b"\0"].concat()).map(CStr::to_owned) else {
        return UNKNOWN;
    };
    let mut peer = 0;
    // SAFETY: a pointer to a live integer, and a C string.
    if unsafe { sys::cuDeviceGetByPCIBusId(&mut peer, bus.as_ptr()) }.result().is_err() {
        return UNKNOWN;
    }
    let own = device.context().cu_device();
    if peer == own {
        return REACHED;
    }
    let (mut can, what) = (0, CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED);
    // SAFETY: a pointer to a live integer; both devices are the driver's.
    match unsafe { sys::cuDeviceGetP2PAttribute(&mut can, what, own, peer) }.result() {
        Ok(()) if can == 0 => OUT_OF_REACH,
        Ok(()) => REACHED,
        Err(_) => UNKNOWN,
    }
}

fn in_the_way(members: &[Member], rows: &[Vec<u8>]) -> Option<String> {
    if let Some(far) = members.iter().find(|member| member.host != members[0].host) {
        return Some(format!(
            "rank {} is on {}, rank {} on {}",
            members[0].rank, members[0].host, far.rank, far.host
        ));
    }
    (0..).zip(rows).find_map(|(from, row): (u32, _)| {
        let to = row.iter().position(|seen| *seen == OUT_OF_REACH)?;
        Some(format!("the GPU of rank {from} does not reach that of rank {to}"))
    })
}

/// A text, or where there is no room for it (shards of a thousand ranks) its start and a number.
pub(crate) fn comparable(text: String) -> String {
    const MOST: usize = 4096;
    if text.len() <= MOST {
        return text;
    }
    let start: String = text.chars().take(MOST / 8).collect();
    format!("{start} … ({} bytes, number {:016x})", text.len(), fnv1a(&text))
}

/// Unless all plan the same, an error on every rank but a refused one, which has its own. The group lives on: what is wrong is
/// wrong with a call.
pub(crate) fn agree(
    group: &Group,
    own: std::result::Result<String, &Error>,
    limit: Duration,
) -> Result<()> {
    let refused = own.is_err();
    let text = own.unwrap_or_else(|error| format!("!{error}"));
    let texts = group.all_gather("the plan of an operation", text.as_bytes(), limit)?;
    if refused {
        // This rank says why itself.
        return Ok(());
    }
    let first = &texts[0];
    let mut others = (0..).zip(texts.iter());
    let Some((peer, other)) = others.find(|(_, other)| other.starts_with(b"!") || *other != first)
    else {
        return Ok(());
    };
    let (rank, words) = (group.rank(), |text: &[u8]| String::from_utf8_lossy(text).into_owned());
    match other.strip_prefix(b"!") {
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

    #[test]
    fn ranks_on_one_gpu_are_named() {
        let mut members: Vec<_> = (0..3).map(Member::this_process).collect();
        let check = |members: &[Member], buses: [&str; 3]| {
            let buses = buses.map(str::as_bytes);
            check_unique(members, &buses).map_err(|error| error.to_string())
        };
        assert_eq!(check(&members, ["1b", "2c", "3d"]), Ok(()));
        assert_eq!(check(&members, ["", "", ""]), Ok(()), "the driver does not say");
        let text = check(&members, ["1b", "2c", "1b"]).unwrap_err();
        assert!(text.starts_with("a plan of ranks 0 and 2 on one GPU, 1b,"), "{text}");
        members[2].host = "elsewhere".into();
        assert_eq!(check(&members, ["1b", "2c", "1b"]), Ok(()));
    }

    #[test]
    fn one_pair_out_of_reach_is_in_the_way_of_all() {
        let members: Vec<_> = (0..3).map(Member::this_process).collect();
        let rows = |text: [&str; 3]| text.map(|row| row.as_bytes().to_vec());
        assert_eq!(in_the_way(&members, &rows(["yyy", "yyy", "yyy"])), None);
        assert_eq!(in_the_way(&members, &rows(["yy?", "yyy", "?yy"])), None, "may well work");
        let text = in_the_way(&members, &rows(["yyy", "yyn", "yyy"])).unwrap();
        assert_eq!(text, "the GPU of rank 1 does not reach that of rank 2");
        let mut apart = members.clone();
        apart[2].host = "elsewhere".into();
        let text = in_the_way(&apart, &rows(["yyy", "yyy", "yyy"])).unwrap();
        assert!(text.ends_with("rank 2 on elsewhere"), "{text}");
    }
}
