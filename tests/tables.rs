//! `ncclscope export`: the tables of synthetic ranks, for which the truth is known.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::command::ncclscope;
use crate::synthetic::Job;
use ncclscope_tests::{play, pypi};
use serde_json::Value;
use tempfile::TempDir;

const RANKS: u32 = 8;
const HOSTS: u32 = 4;
const STEPS: u64 = 60;

const ASK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/ask_tables.py");
const NEWER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/newer_tables.py");
const REWRITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/rewrite_tables.py");
const SQL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sql/tables");

/// The traces of a job, and the folder of its tables.
struct Place(TempDir);

impl Place {
    fn new(job: &Job) -> Place {
        Place::of_first(job, RANKS)
    }

    fn of_first(job: &Job, ranks: u32) -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        fs::create_dir(place.traces()).unwrap();
        job.write_to(&place.traces(), ranks, true);
        place
    }

    fn traces(&self) -> PathBuf {
        self.0.path().join("traces")
    }

    fn tables(&self) -> PathBuf {
        self.0.path().join("tables")
    }

    fn export(&self, what: &Path) -> Result<String, String> {
        ncclscope(&["export".as_ref(), what.as_os_str(), "--parquet".as_ref(), self.tables().as_os_str()])
    }

    /// All files of the tables, and when they were written.
    fn files(&self) -> Vec<(PathBuf, SystemTime)> {
        let (mut folders, mut files) = (vec![self.tables()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false => files.push((entry.path(), entry.metadata().unwrap().modified().unwrap())),
                }
            }
        }
        files.sort();
        files
    }

    fn ask(&self, more: &str) -> Option<Value> {
        self.ask_by("duckdb", more)
    }

    fn ask_by(&self, engine: &str, more: &str) -> Option<Value> {
        let said = pypi::tables(&[ASK, engine, &self.tables().to_string_lossy(), SQL, more])?;
        let mut all: Value = serde_json::from_str(&said).unwrap();
        // Rows that are equal to the question may come in any order, and sums of floats, too.
        for rows in all.as_object_mut().unwrap().values_mut().filter_map(Value::as_array_mut) {
            for value in rows.iter_mut().filter_map(Value::as_object_mut).flat_map(|row| row.values_mut()) {
                if let Some(number) = value.as_f64().filter(|_| value.is_f64()) {
                    *value = format!("{number:.9e}").into();
                }
            }
            rows.sort_by_cached_key(Value::to_string);
        }
        Some(all)
    }
}

#[test]
fn ranks_are_exported_one_by_one_and_only_once() {
    let job = Job::new(RANKS, HOSTS, STEPS);
    let place = Place::new(&job);
    let first = place.traces().join(job.name(0));
    assert!(place.export(&first).unwrap().contains(": 1 trace exported, "));
    let of_first = place.files();
    assert_eq!(of_first.len(), 9 + 1, "{of_first:?}");
    // The others are added, and what is there stays.
    let said = place.export(&place.traces()).unwrap();
    assert!(said.contains(": 7 traces exported, ") && said.ends_with("; 1 were there already\n"), "{said}");
    let all = place.files();
    assert_eq!(all.len(), 8 * 10);
    assert!(of_first.iter().all(|file| all.contains(file)));
    // What an interrupted export leaves: a hidden part, and no whole table.
    let table =
        all.iter().map(|it| &it.0).find(|path| path.to_string_lossy().contains("kernels/job=synthetic/rank=3/"));
    let table = table.unwrap();
    let part = table.with_file_name(format!(".{}.elsewhere-1.part", table.file_name().unwrap().to_string_lossy()));
    fs::rename(table, &part).unwrap();
    let said = place.export(&place.traces()).unwrap();
    assert!(said.contains(": 1 trace exported, ") && said.ends_with("; 7 were there already\n"), "{said}");
    assert!(table.exists() && !part.exists());
    assert_eq!(place.files().len(), 8 * 10);
}

#[test]
fn a_trace_that_ends_early_says_so_and_is_exported_again_when_it_has_grown() {
    // Long enough for several compressed packets.
    let job = Job::new(RANKS, HOSTS, 10 * STEPS);
    let place = Place::new(&job);
    let path = place.traces().join(job.name(1));
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 100]).unwrap();
    place.export(&place.traces()).unwrap();
    const CLOSED: &str = "SELECT rank, is_closed FROM clock_bounds WHERE NOT is_closed";
    if let Some(asked) = place.ask(CLOSED) {
        let lost: Vec<_> = asked["6"].as_array().unwrap().iter().map(|row| (&row["rank"], &row["what"])).collect();
        assert!(lost.iter().any(|(rank, what)| (*rank, *what) == (&1.into(), &"file".into())), "{lost:?}");
        assert_eq!(asked["more.1"].as_array().unwrap().len(), 1, "{asked}");
    }
    fs::write(&path, &whole).unwrap();
    assert!(place.export(&place.traces()).unwrap().contains(": 1 trace exported, "));
    if let Some(asked) = place.ask(CLOSED) {
        assert_eq!((&asked["6"], &asked["more.1"]), (&Value::Array(Vec::new()), &Value::Array(Vec::new())));
    }
    assert_eq!(place.files().len(), 8 * 10);

    // A damaged one is named. What was exported whole would not be read again.
    fs::remove_dir_all(place.tables()).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle..middle + 64].fill(0xff);
    fs::write(&path, damaged).unwrap();
    let said = place.export(&place.traces()).unwrap_err();
    assert!(said.contains(&job.name(1)) && said.contains("cannot be read"), "{said}");
}

#[test]
fn lateness_across_hosts_is_right_within_its_error() {
    let job = Job::new(RANKS, HOSTS, STEPS);
    let place = Place::new(&job);
    place.export(&place.traces()).unwrap();
    let more = "SELECT rank, seq, late_ns, late_error_ns FROM lateness WHERE label = 'world' ORDER BY seq, rank";
    let Some(asked) = place.ask(more) else { return };
    let rows = asked["more.1"].as_array().unwrap();
    assert_eq!(rows.len() as u64, u64::from(RANKS) * STEPS / 2);
    let (mut known, mut tight) = (0, 0);
    for row in rows {
        let [rank, seq] = ["rank", "seq"].map(|column| row[column].as_u64().unwrap());
        let came = |rank: u32| job.truth(rank, 2 * seq)[0] as i64;
        let first = (0..RANKS).map(came).min().unwrap();
        if let (Some(late), Some(error)) = (row["late_ns"].as_i64(), row["late_error_ns"].as_i64()) {
            known += 1;
            assert!((late - (came(rank as u32) - first)).abs() <= error, "{row} {}", came(rank as u32) - first);
            // Ranks come within 400 us; an order is tight only where the last of all is on one of
            // the hosts.
            tight += usize::from(error < 200_000);
        }
    }
    assert_eq!(known, rows.len());
    assert!(2 * tight > known, "{tight} of {known}");
}

#[test]
fn a_reader_of_this_version_reads_newer_files() {
    let job = Job::new(RANKS, HOSTS, STEPS);
    let place = Place::new(&job);
    place.export(&place.traces()).unwrap();
    let Some(before) = place.ask("") else { return };
    let tables = place.tables();
    let tables = tables.to_string_lossy();
    let schema = "import sys, ncclscope\nfor name, table in ncclscope.tables(sys.argv[1]).items(): print(name, table.count_rows(), *table.schema.names)";
    let of_this = pypi::tables(&["-c", schema, &tables]).unwrap();
    pypi::tables(&[NEWER, &tables, "job=*/rank=[4-7]"]).unwrap();
    assert_eq!(before, place.ask_by("compacted", "").unwrap());
    // The questions name what they read.
    assert_eq!(before, place.ask("").unwrap());
    // As does a program that knows the older schema.
    let older = "import sys, pyarrow.dataset as ds\n\
        for line in sys.argv[2].splitlines():\n    name, _, *columns = line.split(' ')\n    \
        rows = ds.dataset(f'{sys.argv[1]}/{name}', partitioning='hive').to_table(columns=columns)\n    \
        print(name, len(rows), *rows.schema.names)";
    assert_eq!(of_this, pypi::tables(&["-c", older, &tables, &of_this]).unwrap());
    assert_eq!(of_this.lines().count(), 9, "{of_this}");
}

/// Prints what a file says about itself.
const ABOUT: &str = r#"
import pathlib, sys
import pyarrow, pyarrow.parquet as parquet
for path in sorted(pathlib.Path(sys.argv[1]).glob("*/job=*/rank=0/*.parquet")):
    file = parquet.ParquetFile(path)
    table = path.parts[-4]
    said = file.schema_arrow.metadata or {}
    told = file.metadata.metadata
    assert told[b"ncclscope.schema_version"] == b"2" and told[b"ncclscope.table"] == table.encode(), told
    for field in file.schema_arrow:
        assert field.metadata and field.metadata[b"description"], field
        if field.name.endswith("_ns"):
            assert field.metadata[b"unit"].startswith(b"ns"), field
        if pyarrow.types.is_timestamp(field.type):
            assert str(field.type) == "timestamp[ns, tz=UTC]", field
        else:
            assert not pyarrow.types.is_string(field.type), field
    times = [field.name for field in file.schema_arrow if pyarrow.types.is_timestamp(field.type)]
    for group in range(file.num_row_groups if times else 0):
        by = file.metadata.row_group(group).sorting_columns[0]
        assert file.schema_arrow[by.column_index].name == times[0], by
        values = [value for value in file.read_row_group(group)[times[0]].cast("int64").to_pylist() if value is not None]
        assert values == sorted(values), path
    print(table, file.metadata.num_rows)
"#;

#[test]
fn files_state_units_versions_and_order() {
    let place = Place::new(&Job::new(RANKS, HOSTS, STEPS));
    place.export(&place.traces()).unwrap();
    let Some(said) = pypi::tables(&["-c", ABOUT, &place.tables().to_string_lossy()]) else { return };
    let rows: Vec<_> = said.lines().collect();
    assert_eq!(rows.len(), 9);
    let has = |table: &str, number: u64| assert!(rows.contains(&&*format!("{table} {number}")), "{table}: {said}");
    has("operations", STEPS);
    has("kernels", STEPS);
    has("proxy_steps", STEPS / 2);
    has("communicators", 2);
    has("losses", 0);
    has("clock_bounds", 1);
    has("peers", 1);
}

#[test]
fn a_peer_of_the_proxy_is_reached_by_the_network() {
    let place = Place::new(&Job::new(RANKS, HOSTS, STEPS));
    place.export(&place.traces()).unwrap();
    let more = "SELECT rank, comm, peer, transport FROM peers ORDER BY rank;\
                SELECT count(*) AS waits FROM operations WHERE coalesce(proxy_wait_ns, 0) > 0 OR proxy_wait_reason IS NOT NULL";
    let Some(asked) = place.ask(more) else { return };
    let peers = asked["more.1"].as_array().unwrap();
    assert_eq!(peers.len() as u32, RANKS, "{peers:?}");
    for row in peers {
        assert_eq!(row["peer"].as_u64(), row["rank"].as_u64().map(|rank| (rank + 1) % u64::from(RANKS)), "{row}");
        assert_eq!((&row["transport"], &row["comm"]), (&"net".into(), &"1f2e3d4c5b6a7988".into()), "{row}");
    }
    assert_eq!(asked["more.2"][0]["waits"], 0, "no kernel waits");
}

#[test]
fn a_job_can_be_given_another_name() {
    let place = Place::new(&Job::new(RANKS, HOSTS, 4));
    let words = |job: &'static str| {
        let (traces, tables) = (place.traces(), place.tables());
        let words = ["export".into(), traces.into_os_string(), "--parquet".into(), tables.into_os_string()];
        ncclscope(&words.into_iter().chain(["--job".into(), job.into()]).collect::<Vec<std::ffi::OsString>>())
    };
    words("a/b c").unwrap();
    assert!(place.tables().join("operations/job=a%2Fb%20c/rank=0").is_dir());
}

#[test]
fn a_recording_without_a_job_name_is_refused_unless_one_is_given() {
    let mut job = Job::new(RANKS, HOSTS, 4);
    job.run.clear();
    let place = Place::new(&job);
    let reason = place.export(&place.traces()).unwrap_err();
    assert!(reason.contains(&job.name(0)) && reason.contains("name it with --job"), "{reason}");
    assert!(!place.tables().exists());
}

#[test]
fn a_trace_of_too_many_processes_is_refused() {
    const PROCESSES: u32 = 64;
    let job = Job::new(PROCESSES + 1, 1, 4);
    let place = Place::new(&Job::new(RANKS, HOSTS, 0));
    let joined = place.0.path().join("joined.perfetto-trace");
    let all = |ranks: u32| {
        let mut bytes = Vec::new();
        for rank in 0..ranks {
            job.write(rank, true, &mut bytes).unwrap();
        }
        fs::write(&joined, bytes).unwrap();
        place.export(&joined)
    };
    let reason = all(PROCESSES + 1).unwrap_err();
    assert!(reason.contains("joined.perfetto-trace") && reason.contains("more than 64 processes"), "{reason}");
    assert!(!place.tables().exists() || place.files().is_empty(), "{:?}", place.files());
    all(PROCESSES).unwrap();
    assert_eq!(place.files().len() as u32, 9 * PROCESSES + 1);
}

/// Runs a program, and prints its peak memory, in KiB.
const PEAK: &str = "import resource, subprocess, sys\n\
    subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n\
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";

#[test]
fn memory_does_not_grow_with_the_number_of_ranks() {
    let peak = |ranks: u32| -> u64 {
        let (job, folder) = (Job::new(32, 4, 1_000), tempfile::tempdir().unwrap());
        job.write_to(folder.path(), ranks, true);
        let mut watched = Command::new("python3");
        watched.args(["-c", PEAK]).arg(play::program_path().unwrap()).arg("export").arg(folder.path());
        let done = watched.arg("--parquet").arg(folder.path().join("tables")).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8_lossy(&done.stdout).trim().parse().unwrap()
    };
    let (few, many) = (peak(4), peak(32));
    println!("{few} KiB of 4 ranks, {many} KiB of 32");
    assert!(many < few + 8_192, "{few} KiB of 4 ranks, {many} KiB of 32");
}

#[test]
fn files_are_hardly_larger_than_those_of_another_writer() {
    // Enough rows to outweigh what a file says about itself.
    let place = Place::of_first(&Job::new(RANKS, HOSTS, 200 * STEPS), 1);
    place.export(&place.traces()).unwrap();
    let Some(said) = pypi::tables(&[REWRITE, &place.tables().to_string_lossy()]) else { return };
    let tables: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(tables.as_object().unwrap().len(), 9);
    println!("{tables}");
    for (name, table) in tables.as_object().unwrap() {
        let [ours, theirs] = ["ours", "theirs"].map(|which| table[which].as_f64().unwrap());
        assert!(ours > 0.0 && ours <= 1.3 * theirs, "{name}: {table}");
    }
}
