//! `ncclscope info` for other tools' files: what they contain, and what they know about NCCL's
//! kernels.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::compare::Side;
use crate::import::knowledge::{self, duration, utc};
use crate::import::{CudaCall, Profile};
use crate::model::activity::Api;
use crate::trace::names;

/// What the file contains, as JSON.
pub(super) fn json(profile: &Profile) -> serde_json::Result<Value> {
    let mut file = serde_json::to_value(Side::of(profile))?;
    let facts = knowledge::facts(profile)
        .into_iter()
        .map(|fact| json!({ "what": fact.what, "known": fact.known, "of": fact.of, "remark": fact.remark }));
    file["kind"] = "other tool".into();
    file["known"] = facts.collect();
    Ok(file)
}

pub(super) fn print(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let bytes = std::fs::metadata(&profile.source.path).map_or(0, |data| data.len());
    let source = &profile.source;
    writeln!(out, "{}: {}, {} {}", source.path.display(), names::size(bytes), source.tool, source.version)?;
    if let Some(host) = &profile.host {
        writeln!(out, "  host          {host}")?;
    }
    for (at, process) in profile.processes.iter().enumerate() {
        let kernels = profile.kernels.iter().filter(|kernel| kernel.process == at).count();
        let rank = process.rank.map(|rank| format!(", rank {rank}")).unwrap_or_default();
        writeln!(out, "  process       {} (pid {}){rank}: {kernels} kernels", process.name, process.pid)?;
    }
    let mut devices: BTreeMap<&str, u64> = BTreeMap::new();
    profile.devices.values().for_each(|name| *devices.entry(name).or_default() += 1);
    for (name, count) in devices {
        writeln!(out, "  GPUs          {count} {name}")?;
    }
    if let Some(extent) = profile.extent() {
        let utc = match profile.clock.to_utc {
            Some(to_utc) => format!(", from {}", utc(extent.start.to_utc(to_utc))),
            None => ", at a time that the file does not relate to any other clock".into(),
        };
        writeln!(out, "  time          {}{utc}; on {}", duration(extent.duration() as f64), profile.clock.name)?;
    }
    let nccl = profile.nccl_kernels().count();
    let others = match profile.collective_kernels().count() - nccl {
        0 => String::new(),
        1 => " and 1 another collective's".into(),
        more => format!(" and {more} other collectives'"),
    };
    let is_hip = |call: &CudaCall| call.api == Api::Hip;
    let api = if profile.cuda_calls.iter().any(is_hip) { "HIP" } else { "CUDA" };
    writeln!(
        out,
        "  recorded      {} kernels, {nccl} of them NCCL's{others}; {} copies; {} calls into {api}; {} ranges",
        profile.kernels.len(),
        profile.copies.len(),
        profile.cuda_calls.len(),
        profile.ranges.len()
    )?;
    let world = profile.world.map(|world| format!(", a job of {world} ranks")).unwrap_or_default();
    match &profile.nccl_versions[..] {
        [] => writeln!(out, "  NCCL          of unknown version{world}")?,
        versions => writeln!(out, "  NCCL          {}{world}", versions.join(", "))?,
    }
    for fact in knowledge::facts(profile) {
        let remark = if fact.remark.is_empty() { String::new() } else { format!(": {}", fact.remark) };
        writeln!(out, "  {:<22} {} of {}{remark}", fact.what, fact.known, fact.of)?;
    }
    for note in profile.gaps.iter().chain(&profile.notes) {
        writeln!(out, "  note          {note}")?;
    }
    Ok(())
}
