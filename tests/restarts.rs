//! Traces that are restarted: Perfetto and our commands read them as if they were not.

use crate::command::ncclscope;
use crate::synthetic::Job;
use ncclscope::capture::replay::{Replay, walk};
use ncclscope::trace::wire::Buf;
use ncclscope::trace::writer::MARKER;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::timeline::difference;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// Recordings of two jobs: a hung one on two ranks, and one with graphs.
const CAPTURES: [&str; 4] = [
    "h100-nccl-2.30.7-stuck-0",
    "h100-nccl-2.30.7-stuck-1",
    "h100-nccl-2.28.9-graphs",
    "emulated-nccl-2.32.3-cupti-13.0",
];

/// All slices and instants with their arguments, and all samples of counters, without what restarts
/// repeat.
const SHOWN: &str = "
    SELECT s.ts, s.dur, s.name, s.category, t.name AS track, p.name AS process,
      (SELECT group_concat(a.key || '=' || a.display_value, ' ') FROM (
        SELECT key, display_value FROM args WHERE arg_set_id = s.arg_set_id ORDER BY key, display_value) a) AS args
    FROM slice s LEFT JOIN track t ON s.track_id = t.id
      LEFT JOIN process_track pt ON pt.id = t.id LEFT JOIN process p ON p.upid = pt.upid
    WHERE s.category != 'newest' ORDER BY s.ts, s.dur, t.name, s.name, args;";
const COUNTED: &str = "
    SELECT DISTINCT c.ts, c.value, t.name FROM counter c JOIN track t ON c.track_id = t.id
    ORDER BY c.ts, t.name, c.value;";
const TRACKS: &str = "
    SELECT t.name, t.type, parent.name AS parent FROM track t LEFT JOIN track parent ON t.parent_id = parent.id
    ORDER BY 1, 2, 3;";

/// The traces of these captures in a new folder, restarted after so many bytes.
fn traces(folder: &Path, restart_after: usize) -> PathBuf {
    fs::create_dir(folder).unwrap();
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    for name in CAPTURES {
        let (mut replay, mut trace) = (Replay::restarting(restart_after), Vec::new());
        let capture = File::open(captures.join(format!("{name}.capture"))).unwrap();
        walk(capture, |entry| replay.take(entry, None, &mut |packets| trace.extend(packets))).unwrap();
        replay.finish(&mut |packets| trace.extend(packets));
        fs::write(folder.join(format!("{name}.perfetto-trace")), trace).unwrap();
    }
    folder.to_owned()
}

/// The same traces, without restarts and with as many as possible.
fn both() -> (tempfile::TempDir, [PathBuf; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let both =
        [("plain", usize::MAX), ("again", 2 << 10)].map(|(name, after)| traces(&folder.path().join(name), after));
    (folder, both)
}

/// What Perfetto shows of a trace.
fn shown(path: &Path) -> String {
    let trace = Trace::open(path).unwrap();
    let bad = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0;";
    assert_eq!(trace.rows(bad), [], "{}", path.display());
    [SHOWN, COUNTED, TRACKS].map(|sql| trace.text(sql)).concat()
}

#[track_caller]
fn assert_same(plain: &str, again: &str) {
    if plain != again {
        let differs = plain.lines().zip(again.lines()).position(|(plain, again)| plain != again);
        let around = |text: &str| {
            text.lines().skip(differs.unwrap_or(0).saturating_sub(2)).take(6).collect::<Vec<_>>().join("\n")
        };
        panic!("line {differs:?}\n{}", difference(&around(plain), &around(again)));
    }
}

#[test]
fn perfetto_shows_a_restarted_trace_like_any_other() {
    let (_folder, [plain, again]) = both();
    for name in CAPTURES.map(|name| format!("{name}.perfetto-trace")) {
        assert_ne!(fs::read(plain.join(&name)).unwrap(), fs::read(again.join(&name)).unwrap());
        assert_same(&shown(&plain.join(&name)), &shown(&again.join(&name)));
    }
}

/// JSON without the sizes and paths of files.
fn comparable(text: &str, folder: &Path) -> String {
    fn without_bytes(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| !["bytes", "file_bytes"].contains(&&**name));
                fields.values_mut().for_each(without_bytes);
            }
            Value::Array(values) => values.iter_mut().for_each(without_bytes),
            _ => {}
        }
    }
    let mut value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    without_bytes(&mut value);
    format!("{value:#}").replace(&folder.display().to_string(), "traces")
}

#[test]
fn commands_read_restarted_traces_like_any_others() {
    let (_folder, both) = both();
    for words in [&["info", "--json", "-"][..], &["summary", "--json", "-"], &["diagnose", "--json", "-"]] {
        let [plain, again] = both.each_ref().map(|folder| {
            let words = words.iter().map(Path::new).chain([folder.as_path()]).collect::<Vec<_>>();
            ncclscope(&words).map(|said| comparable(&said, folder)).unwrap_or_else(|why| why)
        });
        assert_same(&plain, &again);
    }
    let [plain, again] = both.each_ref().map(|folder| {
        let (merged, part) = (folder.with_extension("merged"), folder.with_extension("part"));
        let stuck = CAPTURES.map(|name| folder.join(format!("{name}.perfetto-trace")));
        ncclscope(&[Path::new("merge"), Path::new("-o"), &merged, &stuck[0], &stuck[1]]).unwrap();
        let words = ["cut", "--time", "200ms..900ms", "-o"].map(Path::new);
        ncclscope(&[&words[..], &[&part, &stuck[0]]].concat()).unwrap();
        shown(&merged) + &shown(&part)
    });
    assert_same(&plain, &again);
    let [plain, again] = both.each_ref().map(|folder| {
        let tables = folder.with_extension("tables");
        let words = ["export", "--job", "job", "--parquet"].map(Path::new);
        ncclscope(&[&words[..], &[&tables, folder]].concat()).unwrap();
        let mut rows = Vec::new();
        for table in ["operations", "kernels", "proxy_steps", "communicators", "peers"] {
            let parts = walkdir(&tables.join(table));
            rows.extend(parts.into_iter().map(|path| (path.file_name().unwrap().to_owned(), fs::read(path).unwrap())));
        }
        rows.sort();
        assert!(rows.len() > CAPTURES.len(), "{}", rows.len());
        rows
    });
    assert!(plain == again, "the tables differ");
}

/// Makes a trace large: before its first restart come so many bytes that say nothing and take no
/// room on the disk, and so many before each of the others.
fn pad(path: &Path, first: u64, others: u64) {
    const MOST: u64 = 64 << 20;
    let trace = fs::read(path).unwrap();
    let restarts = trace.windows(MARKER.len()).enumerate().filter(|it| it.1 == MARKER).map(|it| it.0 - 5);
    let mut file = File::create(path).unwrap();
    let mut written = 0;
    for (number, restart) in restarts.enumerate() {
        file.write_all(&trace[written..restart]).unwrap();
        written = restart;
        let mut left = if number == 0 { first } else { others };
        while left > 0 {
            let padding = left.min(MOST);
            let (mut packet, mut framed) = (Buf::new(), Buf::new());
            // A field that the schema does not have.
            packet.varint(999 << 3 | 2);
            packet.varint(padding);
            framed.varint(1 << 3 | 2);
            framed.varint(packet.len() as u64 + padding);
            file.write_all(&[framed.bytes(), packet.bytes()].concat()).unwrap();
            file.seek(SeekFrom::Current(padding as i64)).unwrap();
            left -= padding;
        }
    }
    file.write_all(&trace[written..]).unwrap();
}

#[test]
fn of_gigabytes_the_ends_are_read_first() {
    let (_folder, [_, traces]) = both();
    let trace = |name: &str| traces.join(format!("{name}.perfetto-trace"));
    let stuck = [trace(CAPTURES[0]), trace(CAPTURES[1])];
    stuck.iter().for_each(|path| pad(path, 520 << 20, 0));
    let info = Path::new("info");
    let said = ncclscope(&[info, &stuck[0], &stuck[1]]).unwrap();
    let [hang, .., read] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    let whole = ncclscope(&[info, Path::new("--whole"), &stuck[0], &stuck[1]]).unwrap();
    assert!(hang.contains("all 2 ranks have come") && whole.starts_with(hang), "{said}\n{whole}");
    assert!(
        read.contains("the ends of 2 traces, of 1 GiB in all") && !whole.contains("the ends of"),
        "{said}\n{whole}"
    );
    let json = ncclscope(&[info, Path::new("--json"), Path::new("-"), &stuck[0], &stuck[1]]).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["only_ends_read"], json["hangs"].as_array().map(Vec::len)), (&true.into(), Some(1)), "{json}");

    // Where nothing is wrong, all is read.
    let healthy = trace(CAPTURES[2]);
    pad(&healthy, 1100 << 20, 0);
    let said = ncclscope(&[info, &healthy]).unwrap();
    assert!(said.contains("verdict") && !said.contains("the ends of"), "{said}");
}

#[test]
fn of_gigabytes_diagnose_reads_the_ends() {
    const STEPS: u64 = 40_000;
    let folder = tempfile::tempdir().unwrap();
    let job = Job::new(2, 1, STEPS).with_slow(1, STEPS - 8_000);
    job.write_to(folder.path(), 2, true);
    let traces: Vec<PathBuf> = (0..2).map(|rank| folder.path().join(job.name(rank))).collect();
    let diagnose = |words: &[&str]| {
        let words = [&["diagnose"], words].concat();
        let text = ncclscope(&[words.iter().map(Path::new).collect::<Vec<_>>(), vec![folder.path()]].concat()).unwrap();
        text.replace(&folder.path().display().to_string(), "traces")
    };
    // Half of the steps are those of all ranks.
    let slow =
        "Rank 1 on node0 computes longer than the others: its `forward` takes 2.45 ms a step instead of 1.95 ms. ";
    let whole = diagnose(&[]);
    let since = " Since step 16000, a step takes 2.50 ms instead of 2.00 ms.\n";
    assert!(whole.starts_with(slow) && whole.contains(since), "{whole}");
    assert!(whole.contains("Steps 16000 to 19998 of 19999;") && !whole.contains("the ends of the files"), "{whole}");

    traces.iter().for_each(|path| pad(path, 500 << 20, 28 << 20));
    let ends = diagnose(&[]);
    assert!(ends.starts_with(slow) && ends.contains(" a step takes 2.50 ms instead of 2.00 ms."), "{ends}");
    assert!(ends.contains(" of the last "), "{ends}");
    assert!(ends.contains("Only the ends of the files were read, 123.5 MiB of 1.1 GiB"), "{ends}");
    assert_eq!(diagnose(&["--whole"]), whole);
    let before = diagnose(&["--steps", "100..900"]);
    assert!(before.starts_with("Healthy: ") && before.contains("Steps 100 to 899 of 19999"), "{before}");
}

/// All files below a folder.
fn walkdir(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { walkdir(&path) } else { vec![path] }).collect()
}
