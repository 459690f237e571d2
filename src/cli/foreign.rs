//! `ncclscope info` for other tools' files: what they hold, and what they know about NCCL's kernels.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::compare::Side;
use crate::import::knowledge::{self, duration};
use crate::import::{CudaCall, Profile};
use crate::model::activity::Api;
use crate::trace::names;

/// What the file holds, for programs.
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
            Some(offset) => format!(", from {}", utc(extent.shifted(offset).start)),
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
    for note in &profile.notes {
        writeln!(out, "  note          {note}")?;
    }
    Ok(())
}

/// Nanoseconds since 1970 as a date: `2026-05-26 07:59:22.034 UTC`.
pub(super) fn utc(ns: i64) -> String {
    let (seconds, millis) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000) / 1_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to a date by the proleptic Gregorian calendar, in years that begin in March.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millis:03} UTC")
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn dates_are_right() {
        for (ns, text) in [
            (0, "1970-01-01 00:00:00.000 UTC"),
            (1_779_782_330_176_752_435, "2026-05-26 07:58:50.176 UTC"),
            (951_782_399_999_000_000, "2000-02-28 23:59:59.999 UTC"),
            (951_868_800_000_000_000, "2000-03-01 00:00:00.000 UTC"),
        ] {
            assert_eq!(utc(ns), text);
        }
    }
}
