//! Which GPUs of a group reach each other's memory.
//!
//! What belongs here: asking the driver, telling the other ranks, and whether anything is in the way of memory
//! that all ranks map. Invariant: all ranks come to the same answer, for each hears what all have found. It takes two
//! exchanges of the group, so a plan asks once.

use std::ffi::CStr;
use std::time::Duration;

use cudarc::driver::sys::{self, CUdevice_P2PAttribute};

use crate::cuda::sys::device::Device;
use crate::error::Result;
use crate::group::{Group, Member};

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
    let buses = group.all_gather("where the GPUs are", own.as_bytes(), limit)?;
    let seen: Vec<u8> = buses.iter().map(|bus| reach(bus)).collect();
    let rows = group.all_gather("which GPUs are in reach", &seen, limit)?;
    Ok(in_the_way(group.members(), &rows))
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

#[cfg(test)]
mod tests {
    use super::*;

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
