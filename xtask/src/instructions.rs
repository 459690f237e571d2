//! Instructions in each callback, counted by valgrind's callgrind. The counts are the same on a
//! busy machine as on a quiet one, so they show a more expensive callback where times would not.
//!
//! Each version of the compiler has its own counts; only those of the version that recorded them
//! are compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::check::{Released, released};
use crate::steps::{Failure, Outcome, Place, call};

pub(crate) const ABOUT: &str = "no callback takes more instructions than were recorded";

/// Where the counts are kept.
const KEPT: &str = "benches/instructions.txt";
/// What the scripted host sends: proxy steps with their states, collectives, and both.
const KINDS: [&str; 3] = ["step", "coll", "mixed"];
/// NCCL's functions of the profiler that are called for every event.
const CALLS: [&str; 3] = ["start_event", "stop_event", "record_event_state"];
/// How far counts may be apart, in percent. They repeat to a thousandth; changes of the code around
/// a callback change it by less than this.
const TOLERANCE: f64 = 2.0;
/// The same where NCCL passes strings: they are looked up by their addresses, which depend on build
/// and folder, and some share a place.
const TOLERANCE_OF_STRINGS: f64 = 6.0;

pub(crate) fn check(place: &Place) -> Result<Outcome, Failure> {
    if !place.command("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return match std::env::var_os("CI") {
            None => Ok(Outcome::Partly("valgrind is missing (apt-get install valgrind)".into())),
            Some(_) => Err("valgrind is missing (apt-get install valgrind)".to_owned().into()),
        };
    }
    let built = released(place)?;
    let compiler = compiler(place)?;
    let mut counted = format!("rustc {compiler}\n");
    for kind in KINDS {
        for (name, count) in count(place, &built, kind)? {
            let _ = writeln!(counted, "{kind} {name} {count:.1}");
        }
    }
    let path = place.root.join(KEPT);
    if std::env::var_os("NCCLSCOPE_BLESS").is_some() {
        fs::write(&path, counted).map_err(|error| format!("{}: {error}", path.display()))?;
        return Ok(Outcome::Done);
    }
    let kept = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    if kept.lines().next() != counted.lines().next() {
        let by = kept.lines().next().unwrap_or_default();
        return Ok(Outcome::Partly(format!("{KEPT} was counted with {by}, and this is rustc {compiler}:\n{counted}")));
    }
    let differences = differences(&kept, &counted);
    match differences.is_empty() {
        true => Ok(Outcome::Done),
        false => Err(Failure {
            reason: format!("{}\nif that is meant: NCCLSCOPE_BLESS=1 cargo xtask check calls", differences.join("\n")),
            again: None,
        }),
    }
}

fn tolerance(name: &str) -> f64 {
    if matches!(name, "coll start_event" | "mixed start_event") { TOLERANCE_OF_STRINGS } else { TOLERANCE }
}

/// The differences, one per line.
fn differences(kept: &str, counted: &str) -> Vec<String> {
    fn read(text: &str) -> BTreeMap<&str, f64> {
        let lines = text.lines().skip(1).filter_map(|line| line.rsplit_once(' '));
        lines.filter_map(|(name, count)| Some((name, count.parse().ok()?))).collect()
    }
    let (kept, counted) = (read(kept), read(counted));
    let names = kept.keys().chain(counted.keys().filter(|name| !kept.contains_key(*name)));
    names
        .filter_map(|name| match (kept.get(name), counted.get(name)) {
            (Some(was), Some(is)) if (is - was).abs() * 100.0 <= tolerance(name) * was => None,
            (Some(was), Some(is)) => Some(format!("{name}: {is} instructions, {was} were recorded")),
            (was, _) => Some(format!("{name}: {}", if was.is_some() { "not called any more" } else { "not recorded" })),
        })
        .collect()
}

fn compiler(place: &Place) -> Result<String, Failure> {
    let output = place.command("rustc").arg("--version").output().map_err(|error| format!("rustc: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.split(' ').nth(1).map(str::to_owned).ok_or_else(|| format!("rustc said {said}").into())
}

/// Instructions in one call of each function on average, including its callees.
fn count(place: &Place, built: &Released, kind: &str) -> Result<Vec<(&'static str, f64)>, Failure> {
    let folder = place.target.join("instructions");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let counts = folder.join("counts");
    let mut command = place.command("valgrind");
    command
        .args(["--quiet", "--tool=callgrind"])
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .arg(&built.host)
        .args(["flood", "--interface", "7", "--threads", "1", "--events", "20000", "--kind", kind, "--plugin"])
        .arg(&built.plugin)
        .env("NCCLSCOPE_OUTPUT", &folder)
        .env("NCCLSCOPE_MIN_FREE", "0")
        .env_remove("NCCLSCOPE_BLESS")
        .stdout(std::process::Stdio::null());
    call(&mut command)?;
    let found = read(&counts)?;
    let of = |name: &'static str| {
        let (calls, instructions) = found.get(name).filter(|(calls, _)| *calls > 0)?;
        Some((name, *instructions as f64 / *calls as f64))
    };
    let counts: Vec<_> = CALLS.into_iter().filter_map(of).collect();
    match counts.len() == CALLS.len() {
        true => Ok(counts),
        false => Err(format!("callgrind did not see all of {} being called", CALLS.join(", ")).into()),
    }
}

/// Calls of each of [`CALLS`], and their instructions. In callgrind's format a name is written out
/// once, `cfn=(7) name`, and `(7)` from then on; a line `calls=` follows, and one with the costs.
///
/// Source: <https://valgrind.org/docs/manual/cl-format.html>.
fn read(path: &Path) -> Result<BTreeMap<&'static str, (u64, u64)>, Failure> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut found: BTreeMap<&'static str, (u64, u64)> = BTreeMap::new();
    let (mut called, mut calls) = ("", None);
    for line in text.lines() {
        if let Some(function) = line.strip_prefix("cfn=").or_else(|| line.strip_prefix("fn=")) {
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            if !name.is_empty() {
                names.insert(number, name);
            }
            if line.starts_with('c') {
                called = number;
            }
        } else if let Some(number) = line.strip_prefix("calls=") {
            calls = number.split(' ').next().and_then(|number| number.parse::<u64>().ok());
        } else if let Some(calls) = calls.take() {
            let name = names.get(called).and_then(|name| name.strip_prefix("ncclscope::abi::"));
            let known = name.and_then(|name| CALLS.into_iter().find(|known| *known == name));
            let cost = line.rsplit(' ').next().and_then(|cost| cost.parse::<u64>().ok());
            if let (Some(name), Some(cost)) = (known, cost) {
                let sums = found.entry(name).or_default();
                *sums = (sums.0 + calls, sums.1 + cost);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dearer_and_cheaper_callbacks_are_reported() {
        let kept = "rustc 1\nstep start_event 100.0\nstep stop_event 50.0\ncoll stop_event 9.0\n";
        let counted = "rustc 1\nstep start_event 101.9\nstep stop_event 48.0\nmixed stop_event 1.0\n";
        let expected = [
            "coll stop_event: not called any more",
            "step stop_event: 48 instructions, 50 were recorded",
            "mixed stop_event: not recorded",
        ];
        assert_eq!(differences(kept, counted), expected);
        assert!(differences(kept, kept).is_empty());
    }

    #[test]
    fn callgrinds_counts_are_read() {
        let path = std::env::temp_dir().join(format!("ncclscope-counts-{}", std::process::id()));
        let text = "fn=(1) main\n16 3\ncfn=(2) ncclscope::abi::stop_event\ncalls=3 20\n17 330\n18 1\ncfn=(2)\ncalls=1 20\n\
                    +1 70\ncfn=(3) other\ncalls=9 1\n1 1\n";
        fs::write(&path, text).unwrap();
        assert_eq!(read(&path).ok().unwrap(), BTreeMap::from([("stop_event", (4, 400))]));
        fs::remove_file(path).unwrap();
    }
}
