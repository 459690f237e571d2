//! A job described in a file: its hosts and ranks, what they do, and what goes slowly, late or
//! wrong.
//!
//! ```toml
//! title = "One rank computes more slowly than the others"
//! about = "Longer text, if there is more to say."
//! since = "2.26"          # the first release of NCCL with which it makes sense
//!
//! [job]
//! hosts = 2
//! ranks_per_host = 2
//! ranks = "processes"     # or "threads": one process per host, one thread per rank;
//!                         # or "devices": one thread per host, which drives all its GPUs
//! seed = 1                # of all random choices
//! time_limit = "60 s"     # after this everything is killed
//! hang_after = "3 s"      # how long a job goes on once a rank hangs on purpose
//! slower = 1              # everything takes this many times as long: a busy machine disturbs it less
//! program = """           # see the module `program`
//! repeat 10 {
//!   compute forward 3 ms
//!   all_reduce 16 MiB f32 sum
//! }
//! """
//!
//! [nccl]                  # NCCL's variables
//! NCCL_PROTO = "Simple"
//!
//! [gpu]
//! bandwidth = "10 GB/s"   # of one channel; if absent, as fast as the processor
//! launch_latency = "4 us"
//! timer_offset = "-60 s to 60 s"     # of the GPU's own timer, chosen in that range for each GPU
//! timer_drift = "-50 ppm to 50 ppm"
//! timer_granularity = "32 ns"
//! timer_wander = "0 ppm"             # how far its rate swings to either side, within 8 s
//!
//! [network]
//! kind = "socket"         # NCCL's own; or "plugin": the emulator's, with bandwidth and latency
//!
//! [[slow]]                # a rank whose computation or NCCL kernels take longer by a factor
//! rank = 3
//! compute = 1.5
//! kernels = 1.2
//!
//! [[link]]                # what one rank's kernels send to another
//! from = 0
//! to = 1
//! bandwidth = "1 GB/s"
//! latency = "20 us"
//!
//! [[stall]]               # a stall of an NCCL kernel
//! rank = 1
//! kernel = 5              # counted from 0
//! step = 2                # the step before which it stalls; if absent, at once
//! for = "200 ms"
//!
//! [[timer]]               # one rank's timer
//! rank = 0
//! granularity = "1 us"
//!
//! [[host]]                # a host's clocks, and NCCL's variables there
//! index = 1
//! nccl = { NCCL_SHM_DISABLE = "1" }
//! wall = { offset = "2.5 s", drift = "20 ppm", steps = [{ after = "1 s", by = "-300 ms" }] }
//! boot = { offset = "1000 s" }
//!
//! [[route]]               # between hosts, with the emulator's network
//! from = 0
//! to = 1
//! bandwidth = "1 GB/s"
//! latency = "50 us"
//! stall = { message = 20, for = "100 ms" }   # or again and again: { every = "200 ms", for = "20 ms" }
//! ```

mod file;
pub mod program;
pub mod random;
pub mod units;

use std::collections::BTreeMap;
use std::path::Path;

use crate::network;
use crate::time::ClockError;
use program::Program;

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// A short name: that of the file.
    pub name: String,
    /// What it shows, in one sentence.
    pub title: String,
    /// More about it.
    pub about: String,
    /// The first release of NCCL with which it makes sense.
    pub since: Release,
    /// How many hosts there are.
    pub hosts: u32,
    /// How many ranks each of them has.
    pub ranks_per_host: u32,
    /// How ranks are placed on a host.
    pub layout: Layout,
    /// The seed of everything that is chosen at random.
    pub seed: u64,
    /// When everything is killed, in ns.
    pub time_limit_ns: u64,
    /// How long the job goes on once a rank hangs on purpose, in ns.
    pub hang_after_ns: u64,
    /// NCCL's variables.
    pub nccl: BTreeMap<String, String>,
    /// Those that a host has beside them, or instead.
    pub nccl_of_hosts: BTreeMap<u32, BTreeMap<String, String>>,
    /// The GPUs, by rank.
    pub gpus: Vec<Gpu>,
    /// What all GPUs have in common.
    pub machine: Machine,
    /// Slow links.
    pub links: Vec<Link>,
    /// Stalls of kernels.
    pub stalls: Vec<Stall>,
    /// The clocks, by host.
    pub clocks: Vec<Clocks>,
    /// The network between the hosts.
    pub network: Network,
    /// What the ranks do.
    pub program: Program,
    /// The text it was read from.
    pub text: String,
}

/// A release of NCCL, by its first two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32);

impl Release {
    /// The release in texts such as `2.26` and `2.30.7+cuda13.3`.
    pub fn parse(text: &str) -> Option<Release> {
        let mut numbers = text.split(['.', '+']).map(|number| number.parse().ok());
        Some(Release(numbers.next()??, numbers.next()??))
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// How ranks are placed on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Each rank is a process.
    Processes,
    /// Each rank is a thread of the host's one process.
    Threads,
    /// Each rank is a GPU of the host's one process, which has one thread for all of them.
    Devices,
}

/// One rank's GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// How far its timer is ahead of the wall clock, in ns.
    pub timer_offset_ns: i64,
    /// How much faster the timer runs, in parts per million.
    pub timer_drift_ppm: f64,
    /// The granularity of the timer, in ns.
    pub timer_granularity_ns: u64,
    /// How far the timer's rate swings to either side, in parts per million.
    pub timer_wander_ppm: f64,
    /// The factor by which the application's kernels take longer.
    pub compute: f64,
    /// The factor by which NCCL's kernels take longer.
    pub kernels: f64,
}

/// What all GPUs have in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// The bandwidth of one channel, in bytes per ns; infinity means as fast as the processor.
    pub bandwidth: f64,
    /// From a launch to the start of the kernel, in ns.
    pub launch_latency_ns: u64,
    /// Whether GPUs of a host can access each other's memory.
    pub peer_access: bool,
    /// Whether the GPUs have virtual memory management.
    pub virtual_memory: bool,
}

/// A slow link between two ranks' GPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// The rank that sends.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// In bytes per ns.
    pub bandwidth: f64,
    /// Added to each step, in ns.
    pub latency_ns: u64,
}

/// A stall of a kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Stall {
    /// The rank whose GPU stalls.
    pub rank: u32,
    /// Which of NCCL's kernels there, counted from 0.
    pub kernel: u64,
    /// The step before which it stalls; `None` for at once.
    pub step: Option<u32>,
    /// How long, in ns.
    pub for_ns: u64,
}

/// The errors of a host's clocks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Clocks {
    /// `CLOCK_REALTIME`.
    pub wall: ClockError,
    /// `CLOCK_BOOTTIME`.
    pub boot: ClockError,
}

/// The network between the hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// Whose network it is.
    pub kind: NetworkKind,
    /// Every link that is not in `routes`.
    pub usual: network::Link,
    /// Links between particular hosts, from the first to the second.
    pub routes: Vec<(u32, u32, network::Link)>,
}

/// Whose network it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkKind {
    /// NCCL's, over sockets.
    Socket,
    /// The emulator's, as a network plugin.
    Plugin,
}

/// The most ranks of a job, and the most GPUs of a host.
pub const MOST_RANKS: u32 = 16;

impl Scenario {
    /// Reads a scenario. `seed` overrides the one in the file.
    ///
    /// # Errors
    ///
    /// Names the place, and says what is allowed there.
    pub fn parse(name: &str, text: &str, seed: Option<u64>) -> Result<Scenario, String> {
        file::parse(name, text, seed)
    }

    /// A scenario by the path of its file, or by the name of one that comes with the emulator.
    ///
    /// # Errors
    ///
    /// When there is none, or it is invalid.
    pub fn load(wanted: &str, seed: Option<u64>) -> Result<Scenario, String> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == wanted) {
            return Scenario::parse(name, text, seed);
        }
        let path = Path::new(wanted);
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if wanted.ends_with(".toml") => return Err(format!("failed to read {wanted}: {error}")),
            Err(_) => {
                let known: Vec<_> = SHIPPED.iter().map(|(name, _)| *name).collect();
                return Err(format!(
                    "{wanted} is neither a file nor a scenario; the scenarios are {}",
                    known.join(", ")
                ));
            }
        };
        let name = path.file_stem().map_or_else(|| wanted.into(), |stem| stem.to_string_lossy());
        Scenario::parse(&name, &text, seed).map_err(|error| format!("{wanted}: {error}"))
    }

    /// Makes everything that takes time take this many times as long.
    fn slow_down(&mut self, by: u32) {
        let times = |ns: &mut u64| *ns *= u64::from(by);
        let bandwidth = |it: &mut f64| *it /= f64::from(by);
        times(&mut self.time_limit_ns);
        times(&mut self.machine.launch_latency_ns);
        bandwidth(&mut self.machine.bandwidth);
        for link in &mut self.links {
            times(&mut link.latency_ns);
            bandwidth(&mut link.bandwidth);
        }
        self.stalls.iter_mut().for_each(|stall| times(&mut stall.for_ns));
        let routes = self.network.routes.iter_mut().map(|(_, _, link)| link);
        for link in routes.chain([&mut self.network.usual]) {
            times(&mut link.latency_ns);
            bandwidth(&mut link.bandwidth);
            match &mut link.stall {
                Some(network::Stall::Before(_, pause)) => times(pause),
                Some(network::Stall::Every(between, pause)) => [between, pause].into_iter().for_each(times),
                None => {}
            }
        }
        self.program.change_times(&times);
    }

    /// How many ranks the job has.
    pub fn ranks(&self) -> u32 {
        self.hosts * self.ranks_per_host
    }

    /// How many processes the job has.
    pub fn processes(&self) -> u32 {
        match self.layout {
            Layout::Processes => self.ranks(),
            Layout::Threads | Layout::Devices => self.hosts,
        }
    }

    /// The host of a process.
    pub fn host_of(&self, process: u32) -> u32 {
        match self.layout {
            Layout::Processes => process / self.ranks_per_host,
            Layout::Threads | Layout::Devices => process,
        }
    }

    /// The ranks in a process.
    pub fn ranks_of(&self, process: u32) -> std::ops::Range<u32> {
        match self.layout {
            Layout::Processes => process..process + 1,
            Layout::Threads | Layout::Devices => process * self.ranks_per_host..(process + 1) * self.ranks_per_host,
        }
    }

    /// The CUDA ordinal of a rank's GPU. A process sees all GPUs of its host.
    pub fn device_of(&self, rank: u32) -> u32 {
        rank % self.ranks_per_host
    }
}

/// The scenarios that come with the emulator, by name.
pub const SHIPPED: &[(&str, &str)] = &[
    ("training", include_str!("../../scenarios/training.toml")),
    ("straggler", include_str!("../../scenarios/straggler.toml")),
    ("late_host", include_str!("../../scenarios/late_host.toml")),
    ("pauses", include_str!("../../scenarios/pauses.toml")),
    ("unequal", include_str!("../../scenarios/unequal.toml")),
    ("slow_link", include_str!("../../scenarios/slow_link.toml")),
    ("stalling_link", include_str!("../../scenarios/stalling_link.toml")),
    ("slow_copies", include_str!("../../scenarios/slow_copies.toml")),
    ("host_bound", include_str!("../../scenarios/host_bound.toml")),
    ("hang", include_str!("../../scenarios/hang.toml")),
    ("communicators", include_str!("../../scenarios/communicators.toml")),
    ("clock_drift", include_str!("../../scenarios/clock_drift.toml")),
    ("all_to_all", include_str!("../../scenarios/all_to_all.toml")),
    ("graphs", include_str!("../../scenarios/graphs.toml")),
    ("lending", include_str!("../../scenarios/lending.toml")),
    ("replays", include_str!("../../scenarios/replays.toml")),
    ("updates", include_str!("../../scenarios/updates.toml")),
    ("nested", include_str!("../../scenarios/nested.toml")),
    ("groups", include_str!("../../scenarios/groups.toml")),
    ("timers", include_str!("../../scenarios/timers.toml")),
    ("coarse_timers", include_str!("../../scenarios/coarse_timers.toml")),
    ("changing_timers", include_str!("../../scenarios/changing_timers.toml")),
    ("mixed", include_str!("../../scenarios/mixed.toml")),
    ("abort", include_str!("../../scenarios/abort.toml")),
    ("threads", include_str!("../../scenarios/threads.toml")),
    ("devices", include_str!("../../scenarios/devices.toml")),
    ("small", include_str!("../../scenarios/small.toml")),
    ("protocols", include_str!("../../scenarios/protocols.toml")),
    ("network", include_str!("../../scenarios/network.toml")),
    ("copy_engine", include_str!("../../scenarios/copy_engine.toml")),
];

#[cfg(test)]
mod tests;
