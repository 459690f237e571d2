//! How long things take: the pace of each GPU and of its links, and stalls.
//!
//! Time is real time. A channel that moves bytes faster than its GPU's pace allows sleeps before
//! it hands them on. If a sleep takes too long, the next one is shorter, so that the total over
//! many small pieces is right. A pace can only slow things down: a machine too busy for the pace
//! takes longer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use crate::time::{self, DeviceTimer};

/// How long things take on each GPU of this process, by CUDA ordinal.
#[derive(Debug)]
pub struct Pace {
    /// The GPUs.
    pub gpus: Vec<GpuPace>,
}

impl Pace {
    /// The pace of a GPU.
    ///
    /// # Panics
    ///
    /// When the process has no such GPU.
    pub fn gpu(&self, device: u32) -> &GpuPace {
        &self.gpus[device as usize]
    }
}

/// How long things take on one GPU. All but its timer may be changed while kernels run.
#[derive(Debug)]
pub struct GpuPace {
    timer: DeviceTimer,
    /// The bits of an `f64`.
    bandwidth: AtomicU64,
    /// The bits of an `f64`.
    factor: AtomicU64,
    links: RwLock<Vec<Link>>,
    stalls: Mutex<Vec<Stall>>,
    kernels: AtomicU64,
}

impl GpuPace {
    /// A GPU that works as fast as the processor does.
    pub fn new(timer: DeviceTimer) -> GpuPace {
        GpuPace {
            timer,
            bandwidth: AtomicU64::new(f64::INFINITY.to_bits()),
            factor: AtomicU64::new(1_f64.to_bits()),
            links: RwLock::default(),
            stalls: Mutex::default(),
            kernels: AtomicU64::new(0),
        }
    }

    /// The GPU's timer.
    pub fn timer(&self) -> &DeviceTimer {
        &self.timer
    }

    /// How many bytes one channel moves per ns.
    pub fn bandwidth(&self) -> f64 {
        f64::from_bits(self.bandwidth.load(Ordering::Relaxed))
    }

    /// Sets how many bytes one channel moves per ns; infinity means as many as the processor can.
    /// Kernels see it at their next step.
    ///
    /// # Panics
    ///
    /// When it is not above 0.
    pub fn set_bandwidth(&self, bytes_per_ns: f64) {
        assert!(bytes_per_ns > 0.0, "a bandwidth is above 0, not {bytes_per_ns}");
        self.bandwidth.store(bytes_per_ns.to_bits(), Ordering::Relaxed);
    }

    /// By which factor everything takes longer on this GPU.
    pub fn factor(&self) -> f64 {
        f64::from_bits(self.factor.load(Ordering::Relaxed))
    }

    /// Sets by which factor everything takes longer on this GPU: 1 is normal, 2 half as fast.
    /// Kernels see it at their next step.
    ///
    /// # Panics
    ///
    /// When it is not above 0, or not finite.
    pub fn set_factor(&self, factor: f64) {
        assert!(factor > 0.0 && factor.is_finite(), "a factor is finite and above 0, not {factor}");
        self.factor.store(factor.to_bits(), Ordering::Relaxed);
    }

    /// Slows a link from the next work on. If several entries match a link, the last counts.
    ///
    /// # Panics
    ///
    /// When its bandwidth is not above 0.
    pub fn add_link(&self, link: Link) {
        assert!(link.bandwidth > 0.0, "a bandwidth is above 0, not {}", link.bandwidth);
        self.links.write().unwrap_or_else(PoisonError::into_inner).push(link);
    }

    /// Stalls a future kernel; [`GpuPace::kernels`] gives the number of the next one.
    pub fn add_stall(&self, stall: Stall) {
        self.stalls.lock().unwrap_or_else(PoisonError::into_inner).push(stall);
    }

    /// How many kernels of NCCL this GPU has begun.
    pub fn kernels(&self) -> u64 {
        self.kernels.load(Ordering::Relaxed)
    }

    /// Counts a kernel that begins; returns the stalls that it will meet.
    pub(super) fn begin_kernel(&self) -> Vec<Halt> {
        let mut stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        let kernel = self.kernels.fetch_add(1, Ordering::Relaxed);
        let met = stalls.iter().filter(|stall| stall.kernel == kernel);
        let halts = met.map(|stall| Halt { step: stall.step, for_ns: stall.for_ns, until: OnceLock::new() }).collect();
        stalls.retain(|stall| stall.kernel > kernel);
        halts
    }

    /// The link to a rank of a communicator, if it is slow.
    pub(super) fn link(&self, communicator: u64, peer: u32) -> Option<Link> {
        let links = self.links.read().unwrap_or_else(PoisonError::into_inner);
        let fits = |link: &&Link| link.peer == peer && link.communicator.is_none_or(|own| own == communicator);
        links.iter().rev().find(fits).copied()
    }

    /// How long a channel takes, in ns, for what took the processor `took_ns`.
    pub(super) fn cost(&self, bytes: f64, took_ns: f64) -> f64 {
        let bandwidth = self.bandwidth();
        let cost = if bandwidth.is_finite() { bytes / bandwidth } else { took_ns };
        cost * self.factor()
    }
}

/// A link from this GPU to another one that is slower than the GPU's own pace, so each step that
/// it sends arrives later. Steps do not overlap on the link, so each one adds the latency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// The device communicator ([`crate::truth::Communicator::device_comm`]), or any.
    pub communicator: Option<u64>,
    /// The other GPU's rank in it.
    pub peer: u32,
    /// How many bytes it moves per ns; infinity means as many as the GPU can.
    pub bandwidth: f64,
    /// How much later each step arrives, in ns.
    pub latency_ns: u64,
}

impl Link {
    /// How long the link takes for a step of this many bytes, in ns.
    pub(super) fn cost(&self, bytes: f64) -> f64 {
        bytes / self.bandwidth + self.latency_ns as f64
    }
}

/// A stall of one NCCL kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// The kernel: the number of NCCL kernels that this GPU begins before it.
    pub kernel: u64,
    /// The step, counted from 0, before which each channel stops; or `None` to stop before
    /// everything, including the profiler's stamps.
    pub step: Option<u32>,
    /// How long, in ns, from when the first channel stops; an abort ends it. `u64::MAX` means
    /// forever.
    pub for_ns: u64,
}

/// A stall that a kernel meets.
#[derive(Debug)]
pub(super) struct Halt {
    /// Before which step; `None` for before everything.
    pub(super) step: Option<u32>,
    for_ns: u64,
    until: OnceLock<u64>,
}

impl Halt {
    /// The true time at which it ends. It begins when the first block asks.
    pub(super) fn until(&self) -> u64 {
        *self.until.get_or_init(|| time::now().saturating_add(self.for_ns))
    }
}

/// How long things should have taken less how long they took, in ns.
#[derive(Debug, Default)]
pub(super) struct Debt(f64);

impl Debt {
    /// A sleep shorter than this is not worth it.
    const WORTH_A_SLEEP: f64 = 10_000.0;
    /// Lateness beyond this is not made up for.
    const CREDIT: f64 = 2_000_000.0;

    /// Adds a thing that should have taken `should` and took `took`. Returns how long to sleep
    /// now.
    pub(super) fn charge(&mut self, should: f64, took: f64) -> Option<u64> {
        self.0 = (self.0 + should - took).max(-Self::CREDIT);
        (self.0 >= Self::WORTH_A_SLEEP).then_some(self.0.ceil() as u64)
    }

    /// Subtracts a sleep that took `took`.
    pub(super) fn slept(&mut self, took: f64) {
        self.0 = (self.0 - took).max(-Self::CREDIT);
    }

    /// How long to sleep at the end to pay off the rest.
    pub(super) fn rest(&self) -> Option<u64> {
        (self.0 > 0.0).then_some(self.0.ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> GpuPace {
        GpuPace::new(DeviceTimer { base: 0, reference: 0, drift_ppm: 0.0, granularity_ns: 1, wander_ppm: 0.0 })
    }

    #[test]
    fn small_debts_add_up() {
        let mut debt = Debt::default();
        assert_eq!(debt.charge(6000.0, 500.0), None);
        assert_eq!(debt.rest(), Some(5500));
        assert_eq!(debt.charge(6000.0, 500.0), Some(11_000));
        // The sleep took longer than asked, so the next debts are reduced.
        debt.slept(14_000.0);
        assert_eq!(debt.rest(), None);
        assert_eq!(debt.charge(12_000.0, 0.0), None);
        assert_eq!(debt.charge(1000.0, 0.0), Some(10_000));
    }

    #[test]
    fn large_delays_are_not_made_up_for() {
        let mut debt = Debt::default();
        assert_eq!(debt.charge(0.0, 1e9), None);
        assert_eq!(debt.charge(3e6, 0.0), Some(1_000_000));
    }

    #[test]
    fn a_gpu_takes_its_time() {
        let gpu = gpu();
        assert_eq!(gpu.cost(1000.0, 7.0), 7.0);
        gpu.set_factor(3.0);
        assert_eq!(gpu.cost(1000.0, 7.0), 21.0);
        gpu.set_bandwidth(10.0);
        assert_eq!(gpu.cost(1000.0, 7.0), 300.0);
    }

    #[test]
    fn the_last_entry_for_a_link_counts() {
        let gpu = gpu();
        let any = Link { communicator: None, peer: 1, bandwidth: 1.0, latency_ns: 0 };
        let one = Link { communicator: Some(7), latency_ns: 9, ..any };
        gpu.add_link(any);
        gpu.add_link(one);
        assert_eq!(gpu.link(7, 1), Some(one));
        assert_eq!(gpu.link(8, 1), Some(any));
        assert_eq!(gpu.link(7, 2), None);
        assert_eq!(one.cost(100.0), 109.0);
    }

    #[test]
    fn a_stall_happens_once() {
        let gpu = gpu();
        gpu.add_stall(Stall { kernel: 1, step: Some(4), for_ns: u64::MAX });
        assert!(gpu.begin_kernel().is_empty());
        let halts = gpu.begin_kernel();
        assert_eq!(halts.len(), 1);
        assert_eq!(halts[0].step, Some(4));
        assert_eq!(halts[0].until(), u64::MAX);
        assert!(gpu.begin_kernel().is_empty());
        assert_eq!(gpu.kernels(), 3);
    }
}
