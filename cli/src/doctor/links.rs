//! The links between this machine's GPUs, by NVML.
//!
//! NVML knows the far end of each NVLink by its PCI address and its kind. Invariant: the matrix is
//! square, and a link that NVML does not report is `Unknown`.

use std::ffi::{c_int, c_uint, c_void};
use std::io::{self, Write};

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus};
use overlap_gemm::topology::{Link, Topology};

/// The most NVLinks that a GPU of NVML's can have.
const MAX_LINKS: u32 = 18;

/// The NVLinks of one GPU.
struct NvLinks {
    to_switches: u32,
    /// The far ends that are GPUs or unknown, one a link: domain, bus, device.
    to_others: Vec<(u32, u32, u32)>,
}

/// The matrix of links between `devices`.
pub fn between(devices: &[Device]) -> Vec<Vec<Link>> {
    let far_ends = FarEnds::load();
    let nvlinks: Vec<NvLinks> = devices.iter().map(|device| far_ends.nvlinks(device)).collect();
    let address =
        |device: &Device| device.pci_info().ok().map(|pci| (pci.domain, pci.bus, pci.device));
    let link = |from: usize, to: usize| {
        if from == to {
            return Link::Itself;
        }
        let switched = nvlinks[from].to_switches.min(nvlinks[to].to_switches);
        let ends = nvlinks[from].to_others.iter();
        let direct = ends.filter(|&&end| Some(end) == address(&devices[to])).count() as u32;
        let readable = devices[from].p2p_status(&devices[to], P2pCapabilitiesIndex::Read).ok();
        classify(switched, direct, readable)
    };
    let all = 0..devices.len();
    all.clone().map(|from| all.clone().map(|to| link(from, to)).collect()).collect()
}

fn classify(switched: u32, direct: u32, readable: Option<P2pStatus>) -> Link {
    match (switched, direct, readable) {
        (0, 0, Some(P2pStatus::Ok)) => Link::Pcie,
        (0, 0, Some(P2pStatus::Unknown) | None) => Link::Unknown,
        (_, _, Some(status)) if status != P2pStatus::Ok && status != P2pStatus::Unknown => {
            Link::Unreachable
        }
        (0, links, _) => Link::Direct { links },
        (links, _, _) => Link::Switched { links },
    }
}

type GetRemoteDeviceType = unsafe extern "C" fn(*mut c_void, c_uint, *mut c_int) -> c_uint;

/// Asks what kind of thing an NVLink ends at.
///
/// `NvLink::remote_device_type` of nvml-wrapper 0.13 lets NVML write into a temporary and always
/// answers `Unknown`, so the function is called here. Without it every far end is unknown.
struct FarEnds {
    library: Option<libloading::Library>,
}

impl FarEnds {
    fn load() -> Self {
        // SAFETY: NVML is loaded already, or there would be no device to ask; this is one more
        // reference to it.
        FarEnds { library: unsafe { libloading::Library::new("libnvidia-ml.so.1") }.ok() }
    }

    /// Whether `link` of `device` ends at a switch; `None` if NVML does not say.
    fn is_switch(&self, device: &Device, link: u32) -> Option<bool> {
        // From nvmlIntNvLinkDeviceType_enum.
        const GPU: c_int = 0;
        const SWITCH: c_int = 2;
        let name = b"nvmlDeviceGetNvLinkRemoteDeviceType\0";
        // SAFETY: the signature is that of nvml.h: a device handle, a link, a pointer to an enum.
        let ask = unsafe { self.library.as_ref()?.get::<GetRemoteDeviceType>(name) }.ok()?;
        let mut kind: c_int = -1;
        // SAFETY: the handle belongs to a live `Device`, and `kind` outlives the call.
        let code = unsafe { ask(device.handle().cast(), link, &mut kind) };
        match (code, kind) {
            (0, SWITCH) => Some(true),
            (0, GPU) => Some(false),
            _ => None,
        }
    }

    fn nvlinks(&self, device: &Device) -> NvLinks {
        let mut found = NvLinks { to_switches: 0, to_others: Vec::new() };
        for index in 0..MAX_LINKS {
            let link = device.link_wrapper_for(index);
            if !link.is_active().unwrap_or(false) {
                continue;
            }
            match (self.is_switch(device, index), link.remote_pci_info()) {
                (Some(true), _) => found.to_switches += 1,
                (_, Ok(pci)) => found.to_others.push((pci.domain, pci.bus, pci.device)),
                (_, Err(_)) => {}
            }
        }
        found
    }
}

/// Writes the matrix and what its entries mean; nothing for fewer than two GPUs.
pub fn write_matrix(stdout: &mut dyn Write, links: &[Vec<Link>]) -> io::Result<()> {
    if links.len() < 2 {
        return Ok(());
    }
    write!(stdout, "\n  between GPUs")?;
    for to in 0..links.len() {
        write!(stdout, "{to:>11}")?;
    }
    writeln!(stdout)?;
    for (from, row) in links.iter().enumerate() {
        write!(stdout, "  {from:>12}")?;
        for link in row {
            let entry = match link {
                Link::Itself => "·".into(),
                Link::Switched { links } => format!("switch×{links}"),
                Link::Direct { links } => format!("direct×{links}"),
                Link::Pcie => "PCIe".into(),
                Link::Unreachable => "none".into(),
                _ => "?".into(), // unknown, and what later versions may add
            };
            write!(stdout, "{entry:>11}")?;
        }
        writeln!(stdout)?;
    }
    let entries = || links.iter().flatten();
    let meanings = [
        (
            "switch×n: n NVLinks each, through NVSwitch",
            entries().any(|l| matches!(l, Link::Switched { .. })),
        ),
        (
            "direct×n: n NVLinks from one to the other",
            entries().any(|l| matches!(l, Link::Direct { .. })),
        ),
        (
            "PCIe: reachable, but several times slower than NVLink",
            entries().any(|l| *l == Link::Pcie),
        ),
        (
            "none: these GPUs cannot read each other's memory",
            entries().any(|l| *l == Link::Unreachable),
        ),
        ("?: NVML does not say", entries().any(|l| *l == Link::Unknown)),
    ];
    for (meaning, _) in meanings.into_iter().filter(|(_, occurs)| *occurs) {
        writeln!(stdout, "    {meaning}")?;
    }
    writeln!(stdout, "  all GPUs together: {}", Topology::of(links))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_told_apart() {
        let ok = Some(P2pStatus::Ok);
        assert_eq!(classify(18, 0, ok), Link::Switched { links: 18 });
        assert_eq!(classify(0, 4, None), Link::Direct { links: 4 });
        assert_eq!(classify(0, 0, ok), Link::Pcie);
        assert_eq!(classify(0, 0, None), Link::Unknown);
        assert_eq!(classify(18, 0, Some(P2pStatus::NotSupported)), Link::Unreachable);
    }

    #[test]
    fn the_matrix_explains_what_it_shows() {
        let links = Link::Switched { links: 18 };
        let mut text = Vec::new();
        write_matrix(&mut text, &[vec![Link::Itself, links], vec![links, Link::Itself]]).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("·  switch×18\n") && text.contains("through NVSwitch"), "{text}");
        assert!(text.ends_with("  all GPUs together: NVSwitch\n"), "{text}");
        assert!(!text.contains("PCIe"), "{text}");
    }
}
