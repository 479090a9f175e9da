//! How much memory a process and its GPU use, so that a test sees what is left behind.

use overlap_gemm::cuda::cudarc::driver::result::mem_get_info;

/// What may be added: less than a hundredth of what keeping each stream would take.
const MOST_BYTES: usize = 8 << 20;

pub struct InUse {
    /// Bytes of this process in the host's memory.
    host: usize,
    /// Free bytes of the current context's GPU.
    free: usize,
}

impl InUse {
    pub fn now() -> Self {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
        InUse { host: pages * 4096, free: mem_get_info().unwrap().0 }
    }

    /// Panics if much has been added since.
    pub fn check(&self) {
        let now = Self::now();
        let (host, device) =
            (now.host.saturating_sub(self.host), self.free.saturating_sub(now.free));
        println!("{host} bytes more on the host, {device} on the device");
        assert!(host < MOST_BYTES && device < MOST_BYTES, "{host} and {device} bytes");
    }
}
