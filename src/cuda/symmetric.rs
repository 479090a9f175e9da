//! Memory that every rank has on its own GPU, and that all others reach: of the same size everywhere, at
//! the same offsets.
//!
//! What belongs here: making it together, and where each rank's part is. What is written there, and in
//! which order, is up to whoever uses it. Invariant: when [`SymmetricMemory::new`] returns, all ranks have
//! mapped all parts; a part lives as long as any rank has it mapped, so nobody writes into nothing, and
//! dropping waits for no other rank.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use cudarc::driver::sys::CUdeviceptr;

use super::device::Device;
use super::vmm::{Mapping, Physical};
use crate::error::{Error, Result};
use crate::group::Group;

/// One rank's view of memory that all ranks of a group have.
///
/// ```no_run
/// use std::time::Duration;
/// use overlap_gemm::cuda::{Device, SymmetricMemory};
/// use overlap_gemm::group::{Group, GroupOptions};
///
/// let group = Group::from_env(&GroupOptions::default())?;
/// let device = Device::open(group.rank() as usize)?;
/// let memory = SymmetricMemory::new(&group, &device, 1 << 20, Duration::from_secs(30))?;
/// let next = (group.rank() + 1) % group.ranks();
/// println!("the next rank's part is at {:#x}", memory.address(next)?);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Debug)]
pub struct SymmetricMemory {
    rank: u32,
    /// Every rank's part, its own among them.
    parts: Vec<Mapping>,
}

impl SymmetricMemory {
    /// Allocates `bytes` bytes on `device` and maps all other ranks' parts. All ranks call it, with the same
    /// number of bytes; what the memory holds is unspecified.
    pub fn new(group: &Group, device: &Device, bytes: u64, limit: Duration) -> Result<Self> {
        const WHAT: &str = "symmetric memory";
        let own = Physical::new(device, bytes).and_then(|memory| {
            let file = memory.export()?;
            Ok((memory.map()?, file))
        });
        // Whoever fails tells the others, for they would wait for it.
        let tell = |error: Error| {
            group.abort(&format!("rank {} has no {WHAT}: {error}", group.rank()));
            error
        };
        let (own, file) = own.map_err(tell)?;
        let size = own.memory().bytes();
        let sizes =
            group.all_gather("the size of symmetric memory", &bytes.to_le_bytes(), limit)?;
        for (rank, theirs) in (0..).zip(sizes.iter()) {
            if *theirs != bytes.to_le_bytes() {
                let theirs = <[u8; 8]>::try_from(theirs.as_slice()).map_or(0, u64::from_le_bytes);
                let what = format!("the bytes of {WHAT} on rank {rank}");
                let expected = format!("{bytes}, as on rank {}", group.rank());
                let remedy = "ask for the same on every rank";
                return Err(Error::mismatch(what, theirs, expected, remedy));
            }
        }
        let files = group.exchange_handles(WHAT, &[file.as_fd()], limit)?;
        let mut own = Some(own);
        let part = |(rank, files): (u32, &Vec<OwnedFd>)| match (
            own.take_if(|_| rank == group.rank()),
            files.first(),
        ) {
            (Some(own), _) => Ok(own),
            (None, Some(file)) => Physical::import(device, file, size)?.map(),
            (None, None) => Err(Error::Cuda {
                call: "cuMemImportFromShareableHandle",
                detail: format!("rank {rank} has sent no handle"),
            }),
        };
        let parts = (0..).zip(&files).map(part).collect::<Result<Vec<_>>>().map_err(tell)?;
        group.barrier("symmetric memory is mapped", limit)?;
        Ok(SymmetricMemory { rank: group.rank(), parts })
    }

    /// This rank's number.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks have a part.
    pub fn ranks(&self) -> u32 {
        self.parts.len() as u32
    }

    /// How many bytes each part has: what was asked for, rounded up to whole pages.
    pub fn bytes(&self) -> u64 {
        self.parts[self.rank as usize].memory().bytes()
    }

    /// Where the part of `rank` starts, for this rank's GPU.
    pub fn address(&self, rank: u32) -> Result<CUdeviceptr> {
        let part = self.parts.get(rank as usize).map(Mapping::address);
        part.ok_or_else(|| {
            let most = u64::from(self.ranks()) - 1;
            Error::out_of_range("the rank", rank.into(), 0, most, "ranks count from 0")
        })
    }

    /// Where this rank's own part starts.
    pub fn own_address(&self) -> CUdeviceptr {
        self.parts[self.rank as usize].address()
    }
}
