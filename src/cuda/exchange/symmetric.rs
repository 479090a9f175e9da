//! Memory that every rank has on its own GPU, and that all others reach: of the same size everywhere, at
//! the same offsets.
//!
//! What belongs here: making it together, where each rank's part is, and moving bytes between parts. The
//! user decides what is written there, and in which order. Invariant: when [`SymmetricMemory::new`] returns, all ranks have
//! mapped all parts; a part lives as long as any rank has it mapped, so nobody writes into nothing, and
//! dropping waits for no other rank.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use crate::cuda::sys::device::Device;
use crate::cuda::sys::stream_ops;
use crate::cuda::sys::vmm::{Mapping, Physical, in_whole_pages};
use crate::error::{Error, Result};
use crate::group::Group;

const WHAT: &str = "symmetric memory";

/// One rank's view of memory that all ranks of a group have. [`SignalPad`](crate::cuda::SignalPad) has an example.
///
/// ```no_run
/// use std::time::Duration;
/// use overlap_gemm::cuda::{Device, SymmetricMemory};
/// use overlap_gemm::group::GroupOptions;
///
/// let (group, device) = Device::join(&GroupOptions::default())?;
/// let stream = device.new_stream()?;
/// let memory = SymmetricMemory::new(&group, &device, 1 << 20, Duration::from_secs(30))?;
/// let peer = (group.rank() + 1) % group.ranks();
/// // SAFETY: nobody else uses the first word of the peer's part.
/// unsafe { memory.post(&stream, peer, 0, 1) }?;
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Debug)]
pub struct SymmetricMemory {
    rank: u32,
    device: Device,
    /// Every rank's part, its own among them; or the own one alone.
    parts: Vec<Option<Mapping>>,
}

impl SymmetricMemory {
    /// Allocates `bytes` bytes on `device`, uninitialized, and maps all other ranks' parts. Collective: all ranks pass
    /// the same `bytes`. Blocks until all have mapped all parts; `limit` is the timeout of each wait.
    pub fn new(group: &Group, device: &Device, bytes: u64, limit: Duration) -> Result<Self> {
        let memory = SymmetricMemory::reserve(group, device, bytes)?;
        memory.grow(group, bytes, limit)?;
        Ok(memory)
    }

    /// Addresses for `bytes` bytes of every rank, with no memory yet.
    pub(crate) fn reserve(group: &Group, device: &Device, bytes: u64) -> Result<Self> {
        let reserved = in_whole_pages(device, bytes).and_then(|bytes| {
            (0..group.ranks()).map(|_| Mapping::reserve(device, bytes).map(Some)).collect()
        });
        let parts = reserved.map_err(|error| refused(group, error))?;
        Ok(SymmetricMemory { rank: group.rank(), device: device.clone(), parts })
    }

    /// Adds at least `bytes` bytes to every part. All ranks call it, with the same number. What was mapped before stays.
    pub(crate) fn grow(&self, group: &Group, bytes: u64, limit: Duration) -> Result<()> {
        let own = Physical::new(&self.device, bytes).and_then(|memory| {
            let file = memory.export()?;
            Ok((memory, file))
        });
        // A rank that fails tells the others, which would wait for it.
        let (own, file) = own.map_err(|error| refused(group, error))?;
        let size = own.bytes;
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
        let append = |((rank, part), files): ((u32, &Option<Mapping>), &Vec<OwnedFd>)| {
            let memory = match (own.take_if(|_| rank == self.rank), files.first()) {
                (Some(own), _) => own,
                (None, Some(file)) => Physical::import(&self.device, file, size)?,
                (None, None) => {
                    return Err(Error::Cuda {
                        call: "cuMemImportFromShareableHandle",
                        code: None,
                        detail: format!("rank {rank} has sent no handle"),
                    });
                }
            };
            part.as_ref().map_or(Ok(()), |part| part.append(memory))
        };
        let appended = (0..).zip(&self.parts).zip(&files).try_for_each(append);
        appended.map_err(|error| refused(group, error))?;
        group.barrier("symmetric memory is mapped", limit)
    }

    /// This rank's part alone, which no other rank reaches.
    pub(crate) fn alone(group: &Group, device: &Device, bytes: u64) -> Result<Self> {
        let own = Mapping::reserve(device, in_whole_pages(device, bytes)?)?;
        own.append(Physical::new(device, bytes)?)?;
        let mut parts: Vec<_> = (0..group.ranks()).map(|_| None).collect();
        parts[group.rank() as usize] = Some(own);
        Ok(SymmetricMemory { rank: group.rank(), device: device.clone(), parts })
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
        self.own().bytes()
    }

    /// Where the part of `rank` starts, for this rank's GPU.
    pub fn address(&self, rank: u32) -> Result<CUdeviceptr> {
        let part = self.parts.get(rank as usize).and_then(Option::as_ref);
        part.map(|part| part.address).ok_or_else(|| {
            let most = u64::from(self.ranks()) - 1;
            Error::out_of_range("the rank", rank.into(), 0, most, "ranks count from 0")
        })
    }

    /// Where all parts start, in the order of the ranks.
    pub(crate) fn addresses(&self) -> Result<Vec<CUdeviceptr>> {
        (0..self.ranks()).map(|rank| self.address(rank)).collect()
    }

    /// Enqueues a copy of this GPU's memory into the part of `peer`, `offset` bytes from its start.
    ///
    /// # Safety
    /// `from` is `bytes` of this GPU's memory. It and this value stay alive until the stream has carried out the copy. The
    /// caller orders this copy and every other access to the place that it writes.
    pub unsafe fn put(
        &self,
        stream: &Arc<CudaStream>,
        peer: u32,
        offset: u64,
        from: CUdeviceptr,
        bytes: u64,
    ) -> Result<()> {
        let to = self.place(stream, peer, offset, bytes)?;
        // SAFETY: the caller's promise, and the place is inside the part.
        unsafe { stream_ops::copy(stream, to, from, bytes) }
    }

    /// Enqueues the writing of a word of 32 bits into the part of `peer`, `offset` bytes from its start. It is written when
    /// every GPU sees all earlier work of `stream`: after a [`put`](Self::put) it signals that the bytes have arrived. It needs
    /// no SM. A graph writes the same value in each launch.
    ///
    /// # Safety
    /// As for [`put`](Self::put).
    pub unsafe fn post(
        &self,
        stream: &Arc<CudaStream>,
        peer: u32,
        offset: u64,
        value: u32,
    ) -> Result<()> {
        const BYTES: u64 = size_of::<u32>() as u64;
        let word = self.place(stream, peer, offset, BYTES)?;
        if !offset.is_multiple_of(BYTES) {
            let remedy = "words lie at multiples of their size";
            return Err(Error::mismatch("the offset of a word", offset, "a multiple of 4", remedy));
        }
        // SAFETY: the caller's promise, and the word is inside the part.
        unsafe { stream_ops::write(stream, word, value) }
    }

    /// Where `bytes` bytes of a part are, for work on `stream`.
    fn place(
        &self,
        stream: &CudaStream,
        peer: u32,
        offset: u64,
        bytes: u64,
    ) -> Result<CUdeviceptr> {
        let start = self.address(peer)?;
        let (what, remedy) = ("in symmetric memory", "stay inside the part of a rank");
        Error::check_range(format!("the length {what}"), bytes, 0..=self.bytes(), remedy)?;
        let most = self.bytes() - bytes;
        Error::check_range(format!("the offset {what}"), offset, 0..=most, remedy)?;
        self.device.check_stream(stream)?;
        self.device.bind()?;
        Ok(start + offset)
    }

    /// Where this rank's own part starts.
    pub fn own_address(&self) -> CUdeviceptr {
        self.own().address
    }

    fn own(&self) -> &Mapping {
        // Both constructors put it there.
        self.parts[self.rank as usize].as_ref().expect("a rank has its own part")
    }
}

/// Tells the others, who would wait, that this rank has no memory, and why.
fn refused(group: &Group, error: Error) -> Error {
    group.abort(&format!("rank {} has no {WHAT}: {error}", group.rank()));
    error
}
