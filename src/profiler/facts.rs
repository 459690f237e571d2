//! What the trace says about the recording and its process.

use std::path::Path;

use crate::clock::host::Source;
use crate::config::{self, Config, Process};
use crate::cupti::{self, Cupti};
use crate::sys;
use crate::trace::names;
use crate::trace::tracks::ProcessInfo;
use crate::trace::words::attribute;

/// When a recording starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    CommInit,
    CudaInit,
}

/// The process, by the names that files and the trace use.
pub(super) fn this_process(config: &Config) -> Process {
    let job = config::job(&|name| std::env::var(name).ok()).unwrap_or_else(|| {
        // The ranks that one launcher started on this host share their parent, and so a folder.
        let parent = config.rank.and_then(|_| sys::parent_start());
        sys::utc(parent.unwrap_or_else(|| sys::realtime_ns() / 1_000_000_000))
    });
    Process { host: sys::host_name(), pid: std::process::id() as i32, job }
}

/// How the trace shows it.
pub(super) fn process_info(config: &Config, process: &Process, moment: Moment) -> ProcessInfo {
    let who = match config.rank {
        Some((rank, _)) => format!("rank {rank}"),
        None => std::env::current_exe().map_or_else(|_| "process".into(), |program| file_name(&program)),
    };
    let labels = match config.rank {
        Some((_, source)) => vec![format!("rank from {source}")],
        None => vec!["rank unknown".into()],
    };
    let rank = config.rank.map(|(rank, _)| rank);
    let name = format!("{who} · {}", process.host);
    // Within `cuInit`, nothing is asked of the driver.
    let gpu = if moment == Moment::CudaInit { None } else { cupti::current_gpu() };
    ProcessInfo {
        pid: process.pid,
        name: gpu.map_or(name.clone(), |(device, model)| names::on_gpu(&name, device, model.as_deref())),
        labels,
        rank,
        world_size: config.world_size,
    }
}

/// The first remark of the trace.
pub(super) fn first_words(config: &Config, source: Source, objection: Option<&str>) -> String {
    let clock = match objection {
        Some(objection) => format!("{} (not the processor's counter: {objection})", source.name()),
        None => source.name().to_owned(),
    };
    format!("ncclscope {}; preset {}; clock {clock}", env!("CARGO_PKG_VERSION"), config.wish())
}

/// What the trace says about the recording, for programs.
pub(super) fn attributes(
    config: &Config,
    process: &Process,
    cupti: Option<&Cupti>,
    moment: Moment,
) -> Vec<(String, String)> {
    let events = Some(config.events.to_string()).filter(|events| !events.is_empty());
    let cupti_release = cupti.map_or("none", |cupti| cupti.facts().release());
    let attributes = [
        (attribute::VERSION, Some(env!("CARGO_PKG_VERSION").into())),
        (attribute::PRESET, Some(config.preset.name().into())),
        (attribute::EVENTS, events),
        (attribute::JOB, Some(process.job.clone())),
        (attribute::BOOT, sys::boot_id()),
        (attribute::RUN, config.run.clone()),
        (attribute::FLUSH, Some(config.flush_period_ms).filter(|ms| *ms > 1_000).map(|ms| ms.to_string())),
        (attribute::CUPTI_RELEASE, Some(cupti_release.into())),
        (attribute::DRIVER, driver(moment)),
    ];
    let environment = config::environment(config.env, sys::variables().into_iter());
    let environment = environment.into_iter().map(|(name, value)| (format!("{}{name}", attribute::ENVIRONMENT), value));
    let attributes = attributes.into_iter().filter_map(|(name, value)| Some((name.into(), value?)));
    attributes.chain(environment).collect()
}

/// The driver, as its kernel module and its library tell.
fn driver(moment: Moment) -> Option<String> {
    let module = std::fs::read_to_string("/sys/module/nvidia/version").ok().map(|text| text.trim().to_owned());
    // Within `cuInit`, nothing is asked of the driver.
    let cuda = if moment == Moment::CudaInit { None } else { cupti::driver_cuda() };
    let parts: Vec<_> = module.into_iter().chain(cuda.map(|cuda| format!("CUDA {cuda}"))).collect();
    Some(parts.join(", ")).filter(|text| !text.is_empty())
}

pub(super) fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
