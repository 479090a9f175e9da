//! What a GPU draws and how fast it runs while a loop is timed, as NVML tells.
//!
//! Invariant: nothing here can fail a bench: without NVML, or in loops that are too short for its counter, there is no
//! figure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::{Device, Nvml};

use super::super::report::Power;
use super::driver::Gpu;

/// How often NVML is asked. Its energy counter moves every 20 to 100 ms.
const INTERVAL: Duration = Duration::from_millis(2);

/// Asks NVML about one GPU.
pub struct Meter {
    /// NVML, and the GPU's name there; `None` if NVML does not know it.
    device: Option<(Nvml, String)>,
}

/// One answer.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    millijoules: u64,
    mhz: u32,
}

impl Meter {
    /// Of this GPU.
    pub fn open(gpu: &Gpu) -> Meter {
        let found = || {
            let bytes = gpu.device.context().uuid().ok()?.bytes;
            let hex: Vec<String> =
                bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
            let part = |from: usize, to: usize| hex[from..to].concat();
            let parts = [part(0, 4), part(4, 6), part(6, 8), part(8, 10), part(10, 16)];
            let nvml = Nvml::init().ok()?;
            let uuid = format!("GPU-{}", parts.join("-"));
            sample(&nvml.device_by_uuid(uuid.as_str()).ok()?)?;
            Some((nvml, uuid))
        };
        Meter { device: found() }
    }

    /// Runs `work`, which ends with a timed part and says how long that took: the means over that part.
    pub fn around<E>(
        &self,
        work: impl FnOnce() -> Result<Duration, E>,
    ) -> Result<Option<Power>, E> {
        let device = self.device.as_ref().and_then(|(nvml, uuid)| {
            // Each time anew: the handle borrows from `nvml`.
            nvml.device_by_uuid(uuid.as_str()).ok()
        });
        let Some(device) = device else { return work().map(|_| None) };
        let done = AtomicBool::new(false);
        let (timed, end, samples) = std::thread::scope(|scope| {
            let sampler = scope.spawn(|| {
                let mut samples = Vec::new();
                // Relaxed: the samples travel by the join.
                while !done.load(Ordering::Relaxed) {
                    samples.extend(sample(&device));
                    std::thread::sleep(INTERVAL);
                }
                samples
            });
            let timed = work();
            let end = Instant::now();
            done.store(true, Ordering::Relaxed);
            (timed, end, sampler.join().unwrap_or_default())
        });
        Ok(end.checked_sub(timed?).and_then(|begin| means(&samples, begin, end)))
    }
}

fn sample(device: &Device<'_>) -> Option<Sample> {
    let millijoules = device.total_energy_consumption().ok()?;
    let mhz = device.clock_info(Clock::SM).ok()?;
    Some(Sample { at: Instant::now(), millijoules, mhz })
}

/// The means from `begin` to `end`. The counter moves in steps, so its slope is that from the first step to the last.
fn means(samples: &[Sample], begin: Instant, end: Instant) -> Option<Power> {
    let within: Vec<_> =
        samples.iter().filter(|sample| (begin..=end).contains(&sample.at)).collect();
    let moved = |pair: &&[&Sample]| pair[0].millijoules != pair[1].millijoules;
    let steps: Vec<&Sample> = within.windows(2).filter(moved).map(|pair| pair[1]).collect();
    let (first, last) = (steps.first()?, steps.last()?);
    let seconds = last.at.duration_since(first.at).as_secs_f64();
    if seconds == 0.0 {
        return None;
    }
    let watts = 1e-3 * last.millijoules.checked_sub(first.millijoules)? as f64 / seconds;
    let sum: f64 = within.iter().map(|sample| f64::from(sample.mhz)).sum();
    Some(Power { watts, mhz: sum / within.len() as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_those_of_the_timed_part() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        // 700 W, of which the counter tells every 20 ms; 100 W before.
        let energy = |ms: u64| {
            let ms = ms / 20 * 20;
            100 * ms.min(150) + 700 * ms.saturating_sub(150)
        };
        let samples: Vec<_> = (0..450)
            .step_by(2)
            .map(|ms| Sample {
                at: at(ms),
                millijoules: energy(ms),
                mhz: if ms < 150 { 345 } else { 1500 },
            })
            .collect();
        let power = means(&samples, at(150), at(450)).unwrap();
        assert!((power.watts - 700.0).abs() < 1.0, "{power:?}");
        assert_eq!(power.mhz, 1500.0);
        // Too short for two steps of the counter.
        assert_eq!(means(&samples, at(162), at(175)), None);
        assert_eq!(means(&[], at(0), at(1)), None);
    }
}
