//! Reads a scenario's file.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serde::Deserialize;
use toml::Spanned;

use super::program::{self, Program};
use super::random::Dice;
use super::units::{Bandwidth, Drift, Quantity, Range, Time};
use super::{Clocks, Gpu, Layout, Link, MOST_RANKS, Machine, Network, NetworkKind, Release, Scenario, Stall};
use crate::network;

/// The oldest release that the emulator supports.
const OLDEST: Release = Release(2, 23);

/// The first release that takes the emulator's version of the network interface.
const NETWORK_SINCE: Release = Release(2, 26);

/// The contents of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    #[serde(default)]
    about: String,
    since: Option<Spanned<String>>,
    job: Spanned<Job>,
    #[serde(default)]
    nccl: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    gpu: AllGpus,
    #[serde(default)]
    network: NetworkTable,
    #[serde(default)]
    slow: Vec<Spanned<Slow>>,
    #[serde(default)]
    link: Vec<Spanned<LinkTable>>,
    #[serde(default)]
    stall: Vec<Spanned<StallTable>>,
    #[serde(default)]
    timer: Vec<Spanned<Timer>>,
    #[serde(default)]
    host: Vec<Spanned<Host>>,
    #[serde(default)]
    route: Vec<Spanned<Route>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    hosts: u32,
    ranks_per_host: u32,
    #[serde(default = "processes")]
    ranks: Layout,
    #[serde(default = "one")]
    seed: u64,
    #[serde(default = "one_minute")]
    time_limit: Quantity<Time>,
    #[serde(default = "three_seconds")]
    hang_after: Quantity<Time>,
    #[serde(default = "once")]
    slower: NonZeroU32,
    program: Spanned<String>,
}

fn processes() -> Layout {
    Layout::Processes
}

fn one() -> u64 {
    1
}

fn once() -> NonZeroU32 {
    NonZeroU32::MIN
}

fn one_minute() -> Quantity<Time> {
    Quantity::new(60e9)
}

fn three_seconds() -> Quantity<Time> {
    Quantity::new(3e9)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct AllGpus {
    bandwidth: Option<Quantity<Bandwidth>>,
    launch_latency: Quantity<Time>,
    timer_offset: Range<Time>,
    timer_drift: Range<Drift>,
    timer_granularity: Quantity<Time>,
    timer_wander: Quantity<Drift>,
    peer_access: bool,
    virtual_memory: bool,
}

impl Default for AllGpus {
    fn default() -> AllGpus {
        AllGpus {
            bandwidth: None,
            launch_latency: Quantity::new(2e3),
            timer_offset: Range::new(-120e9, 120e9),
            timer_drift: Range::new(-50.0, 50.0),
            timer_granularity: Quantity::new(32.0),
            timer_wander: Quantity::new(0.0),
            peer_access: false,
            virtual_memory: false,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NetworkTable {
    kind: NetworkKind,
    bandwidth: Option<Quantity<Bandwidth>>,
    latency: Option<Quantity<Time>>,
}

impl Default for NetworkTable {
    fn default() -> NetworkTable {
        NetworkTable { kind: NetworkKind::Socket, bandwidth: None, latency: None }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Slow {
    rank: u32,
    compute: Option<f64>,
    kernels: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkTable {
    from: u32,
    to: u32,
    bandwidth: Option<Quantity<Bandwidth>>,
    latency: Option<Quantity<Time>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StallTable {
    rank: u32,
    kernel: u64,
    step: Option<u32>,
    #[serde(rename = "for")]
    duration: Quantity<Time>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Timer {
    rank: u32,
    offset: Option<Range<Time>>,
    drift: Option<Range<Drift>>,
    granularity: Option<Quantity<Time>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    index: u32,
    wall: Option<Clock>,
    boot: Option<Clock>,
    #[serde(default)]
    nccl: BTreeMap<String, Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Clock {
    offset: Option<Range<Time>>,
    drift: Option<Range<Drift>>,
    #[serde(default)]
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    after: Quantity<Time>,
    by: Quantity<Time>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Route {
    from: u32,
    to: u32,
    bandwidth: Option<Quantity<Bandwidth>>,
    latency: Option<Quantity<Time>>,
    stall: Option<RouteStall>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteStall {
    message: Option<u64>,
    every: Option<Quantity<Time>>,
    #[serde(rename = "for")]
    duration: Quantity<Time>,
}

pub(super) fn parse(name: &str, text: &str, seed: Option<u64>) -> Result<Scenario, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    let reader = Reader { text, ranks: 0, hosts: 0 };
    let job = reader.job(&file.job)?;
    let reader = Reader { ranks: job.hosts * job.ranks_per_host, hosts: job.hosts, ..reader };
    let mut dice = Dice::new(seed.unwrap_or(job.seed));

    let mut since = match &file.since {
        None => OLDEST,
        Some(since) => Release::parse(since.get_ref())
            .ok_or_else(|| reader.error(since, "expected a release of NCCL such as `2.26`"))?,
    };
    if file.network.kind == NetworkKind::Plugin {
        since = since.max(NETWORK_SINCE);
    }
    let program = reader.program(&job.program, job.ranks)?;
    if program.needs_windows() && !(file.gpu.peer_access && file.gpu.virtual_memory) {
        return Err("`symmetric` needs peer_access = true and virtual_memory = true in [gpu]".into());
    }
    let mut scenario = Scenario {
        name: name.into(),
        title: file.title,
        about: file.about,
        since,
        hosts: job.hosts,
        ranks_per_host: job.ranks_per_host,
        layout: job.ranks,
        seed: seed.unwrap_or(job.seed),
        time_limit_ns: job.time_limit.ns() as u64,
        hang_after_ns: job.hang_after.ns() as u64,
        nccl: reader.nccl(&file.nccl)?,
        nccl_of_hosts: reader.nccl_of_hosts(&file.host)?,
        gpus: reader.gpus(&file.gpu, &file.timer, &file.slow, &mut dice)?,
        machine: reader.machine(&file.gpu)?,
        links: file.link.iter().map(|link| reader.link(link)).collect::<Result<_, _>>()?,
        stalls: file.stall.iter().map(|stall| reader.stall(stall)).collect::<Result<_, _>>()?,
        clocks: reader.clocks(&file.host, &mut dice)?,
        network: reader.network(&file.network, &file.route)?,
        program,
        text: text.into(),
    };
    scenario.slow_down(job.slower.get());
    Ok(scenario)
}

/// The text for the line numbers, and what values are checked against.
struct Reader<'a> {
    text: &'a str,
    ranks: u32,
    hosts: u32,
}

impl Reader<'_> {
    /// A message with the number of the line in which `place` begins.
    fn error<T>(&self, place: &Spanned<T>, message: impl std::fmt::Display) -> String {
        format!("line {}: {message}", self.line(place.span().start))
    }

    fn line(&self, byte: usize) -> usize {
        self.text[..byte.min(self.text.len())].matches('\n').count() + 1
    }

    fn job<'a>(&self, job: &'a Spanned<Job>) -> Result<&'a Job, String> {
        let it = job.get_ref();
        let ranks = it.hosts.saturating_mul(it.ranks_per_host);
        if !(1..=MOST_RANKS).contains(&ranks) {
            return Err(self.error(
                job,
                format!("a job has 1 to {MOST_RANKS} ranks, not {} hosts of {}", it.hosts, it.ranks_per_host),
            ));
        }
        for (name, time) in [("time_limit", it.time_limit), ("hang_after", it.hang_after)] {
            if time.value < 1e6 {
                return Err(self.error(job, format!("`{name}` is at least 1 ms")));
            }
        }
        Ok(it)
    }

    fn program(&self, program: &Spanned<String>, layout: Layout) -> Result<Program, String> {
        // A text in triple quotes begins after the line break that follows them.
        let span = program.span();
        let begins = self.text.get(span.start..).unwrap_or_default();
        let opening = ["\"\"\"", "'''"].into_iter().find(|quotes| begins.starts_with(quotes));
        let skipped = opening.is_some_and(|quotes| begins[quotes.len()..].trim_start_matches('\r').starts_with('\n'));
        let first = self.line(span.start) + usize::from(skipped);
        let at = |line: usize, message: &str| format!("line {}: {message}", first + line - 1);
        let parsed = Program::parse(program.get_ref(), self.ranks);
        let parsed = parsed.map_err(|program::Error { line, message }| at(line, &message))?;
        if layout == Layout::Threads && !parsed.variables().is_empty() {
            let message = "`environment` needs ranks = \"processes\" or \"devices\": the threads of a process share it";
            return Err(self.error(program, message));
        }
        Ok(parsed)
    }

    fn nccl(&self, nccl: &BTreeMap<String, Spanned<String>>) -> Result<BTreeMap<String, String>, String> {
        for (name, value) in nccl {
            if !name.starts_with("NCCL_") {
                return Err(self.error(value, format!("`{name}` is not a variable of NCCL's: they begin with NCCL_")));
            }
        }
        Ok(nccl.iter().map(|(name, value)| (name.clone(), value.get_ref().clone())).collect())
    }

    fn nccl_of_hosts(&self, hosts: &[Spanned<Host>]) -> Result<BTreeMap<u32, BTreeMap<String, String>>, String> {
        hosts.iter().map(|host| Ok((host.get_ref().index, self.nccl(&host.get_ref().nccl)?))).collect()
    }

    fn machine(&self, gpu: &AllGpus) -> Result<Machine, String> {
        if gpu.launch_latency.value < 0.0 {
            return Err("[gpu]: `launch_latency` is not negative".into());
        }
        Ok(Machine {
            bandwidth: bandwidth(gpu.bandwidth).map_err(|message| format!("[gpu]: {message}"))?,
            launch_latency_ns: gpu.launch_latency.ns() as u64,
            peer_access: gpu.peer_access,
            virtual_memory: gpu.virtual_memory,
        })
    }

    fn gpus(
        &self,
        all: &AllGpus,
        timers: &[Spanned<Timer>],
        slow: &[Spanned<Slow>],
        dice: &mut Dice,
    ) -> Result<Vec<Gpu>, String> {
        for timer in timers {
            self.rank(timer, timer.get_ref().rank)?;
        }
        for slow in slow {
            let Slow { rank, compute, kernels } = *slow.get_ref();
            self.rank(slow, rank)?;
            for factor in [compute, kernels].into_iter().flatten() {
                if !(0.01..=1e6).contains(&factor) {
                    return Err(self.error(slow, format!("a factor is from 0.01 to 1000000, not {factor}")));
                }
            }
        }
        let mut gpus = Vec::new();
        for rank in 0..self.ranks {
            let mut gpu = Gpu {
                timer_offset_ns: dice.within(&all.timer_offset).round() as i64,
                timer_drift_ppm: dice.within(&all.timer_drift),
                timer_granularity_ns: granularity(all.timer_granularity)?,
                timer_wander_ppm: all.timer_wander.value,
                compute: 1.0,
                kernels: 1.0,
            };
            for timer in timers.iter().filter(|timer| timer.get_ref().rank == rank) {
                let Timer { offset, drift, granularity: steps, .. } = timer.get_ref();
                if let Some(range) = offset {
                    gpu.timer_offset_ns = dice.within(range).round() as i64;
                }
                if let Some(range) = drift {
                    gpu.timer_drift_ppm = dice.within(range);
                }
                if let Some(steps) = steps {
                    gpu.timer_granularity_ns = granularity(*steps).map_err(|message| self.error(timer, message))?;
                }
            }
            for slow in slow.iter().map(Spanned::get_ref).filter(|slow| slow.rank == rank) {
                gpu.compute = slow.compute.unwrap_or(gpu.compute);
                gpu.kernels = slow.kernels.unwrap_or(gpu.kernels);
            }
            gpus.push(gpu);
        }
        Ok(gpus)
    }

    fn link(&self, link: &Spanned<LinkTable>) -> Result<Link, String> {
        let it = link.get_ref();
        self.rank(link, it.from)?;
        self.rank(link, it.to)?;
        let latency_ns = not_negative(it.latency).map_err(|message| self.error(link, message))?;
        let bandwidth = bandwidth(it.bandwidth).map_err(|message| self.error(link, message))?;
        Ok(Link { from: it.from, to: it.to, bandwidth, latency_ns })
    }

    fn stall(&self, stall: &Spanned<StallTable>) -> Result<Stall, String> {
        let it = stall.get_ref();
        self.rank(stall, it.rank)?;
        let for_ns = not_negative(Some(it.duration)).map_err(|message| self.error(stall, message))?;
        Ok(Stall { rank: it.rank, kernel: it.kernel, step: it.step, for_ns })
    }

    fn clocks(&self, hosts: &[Spanned<Host>], dice: &mut Dice) -> Result<Vec<Clocks>, String> {
        let mut clocks = vec![Clocks::default(); self.hosts as usize];
        for host in hosts {
            let it = host.get_ref();
            let count = self.hosts;
            let Some(of_host) = clocks.get_mut(it.index as usize) else {
                return Err(self.error(host, format!("there is no host {}: the job has {count}", it.index)));
            };
            for (clock, error) in [(&it.wall, &mut of_host.wall), (&it.boot, &mut of_host.boot)] {
                let Some(clock) = clock else { continue };
                error.offset_ns = clock.offset.as_ref().map_or(0, |range| dice.within(range).round() as i64);
                error.drift_ppm = clock.drift.as_ref().map_or(0.0, |range| dice.within(range));
                for step in &clock.steps {
                    let after = not_negative(Some(step.after)).map_err(|message| self.error(host, message))?;
                    error.steps.push((after, step.by.ns()));
                }
            }
        }
        Ok(clocks)
    }

    fn network(&self, table: &NetworkTable, routes: &[Spanned<Route>]) -> Result<Network, String> {
        let shaped = table.bandwidth.is_some() || table.latency.is_some();
        if table.kind == NetworkKind::Socket && shaped {
            return Err("[network]: only kind = \"plugin\" has a bandwidth and a latency".into());
        }
        let place = |message| format!("[network]: {message}");
        let usual = network::Link {
            bandwidth: bandwidth(table.bandwidth).map_err(place)?,
            latency_ns: not_negative(table.latency).map_err(place)?,
            stall: None,
        };
        let mut all = Vec::new();
        for route in routes {
            let it = route.get_ref();
            if table.kind == NetworkKind::Socket {
                return Err(self.error(route, "a route needs the emulator's network: [network] kind = \"plugin\""));
            }
            for host in [it.from, it.to] {
                if host >= self.hosts {
                    return Err(self.error(route, format!("there is no host {host}: the job has {}", self.hosts)));
                }
            }
            let place = |message| self.error(route, message);
            let stall = match &it.stall {
                None => None,
                Some(stall) => {
                    let pause = not_negative(Some(stall.duration)).map_err(place)?;
                    Some(match (stall.message, stall.every) {
                        (Some(message), None) => network::Stall::Before(message, pause),
                        (None, Some(every)) if every.ns() as u64 > pause => {
                            network::Stall::Every(every.ns() as u64, pause)
                        }
                        (None, Some(_)) => return Err(place("`every` is longer than `for`".into())),
                        _ => return Err(place("a stall has either a `message` or `every`".into())),
                    })
                }
            };
            let link = network::Link {
                bandwidth: match it.bandwidth {
                    None => usual.bandwidth,
                    some => bandwidth(some).map_err(place)?,
                },
                latency_ns: match it.latency {
                    None => usual.latency_ns,
                    some => not_negative(some).map_err(place)?,
                },
                stall,
            };
            all.push((it.from, it.to, link));
        }
        Ok(Network { kind: table.kind, usual, routes: all })
    }

    fn rank<T>(&self, place: &Spanned<T>, rank: u32) -> Result<(), String> {
        if rank < self.ranks {
            return Ok(());
        }
        Err(self.error(place, format!("there is no rank {rank}: the job has {}", self.ranks)))
    }
}

/// In bytes per ns; if absent, unlimited.
fn bandwidth(quantity: Option<Quantity<Bandwidth>>) -> Result<f64, String> {
    match quantity {
        None => Ok(f64::INFINITY),
        Some(quantity) if quantity.value > 0.0 => Ok(quantity.value),
        Some(_) => Err("a bandwidth is above 0".into()),
    }
}

/// In ns; if absent, 0.
fn not_negative(time: Option<Quantity<Time>>) -> Result<u64, String> {
    match time.map_or(0, Quantity::ns) {
        time @ 0.. => Ok(time as u64),
        _ => Err("this time is not negative".into()),
    }
}

fn granularity(steps: Quantity<Time>) -> Result<u64, String> {
    let ns = steps.ns();
    if (1..=1_000_000_000).contains(&ns) { Ok(ns as u64) } else { Err("a granularity is from 1 ns to 1 s".into()) }
}
