//! The tables of `ncclscope export` for jobs of the real NCCL with known answers: two engines find
//! the same in them, and the same as in the traces.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::support::{Job, Plan, command};
use ncclscope_tests::perfetto::{Row, Trace};
use ncclscope_tests::pypi;
use serde_json::Value;

const NCCL: &str = "2.30.7";
const CUPTI: &str = "13.0";

/// The jobs that are asked about. The last one hangs.
const JOBS: [&str; 5] = ["straggler", "slow_link", "graphs", "groups", "hang"];

/// The tables of a job once more, as a newer version of the schema would write them.
const NEWER: &str = "newer";

/// The page with the example in Python.
const PAGE: &str = include_str!("../../docs/tables.md");

/// The trace's own tables.
const OF_TRACES: &str = include_str!("../../sql/ncclscope.sql");

/// What the tables and the trace must have in common, for each job: in the words of the tables, and
/// in those of the trace. Only sums, since a job may have many rows.
const SAME: [(&str, &str, &str); 6] = [
    (
        "operations on the GPU",
        "SELECT job, count(*) AS n, sum(begin_ns) AS ts, sum(duration_ns) AS dur, sum(bytes) AS bytes, sum(replay) AS replays, \
         count(DISTINCT operation) AS marks, sum(proxy_wait_ns) AS waited FROM execution GROUP BY job",
        "SELECT count() AS n, sum(ts) AS ts, sum(dur) AS dur, sum(bytes) AS bytes, sum(ifnull(replay, 0)) AS replays, \
         count(DISTINCT operation) AS marks, sum(proxy_wait) AS waited FROM nccl_execution",
    ),
    (
        "kernels",
        "SELECT k.job, count(*) AS n, sum(ns(k.begin) - c.utc_offset_ns) AS ts, sum(k.duration_ns) AS dur, count(k.matched_by) AS matched, \
         sum(k.graph) AS graphs, sum(k.stream) AS streams, sum(k.time_error_ns) AS errors FROM kernels AS k \
         JOIN clock AS c ON c.job = k.job AND c.process = k.process GROUP BY k.job",
        "SELECT count() AS n, sum(ts) AS ts, sum(dur) AS dur, count(match) AS matched, sum(graph) AS graphs, sum(stream) AS streams, \
         sum(time_error) AS errors FROM nccl_kernel",
    ),
    (
        "transfers",
        "SELECT job, count(*) AS n, sum(duration_ns) AS dur, sum(CASE WHEN duration_ns IS NULL THEN 1 ELSE 0 END) AS open, sum(bytes) AS bytes, \
         sum(peer) AS peers, sum(CASE WHEN direction = 'send' THEN 1 ELSE 0 END) AS sends, sum(channel) AS channels, \
         sum(CASE WHEN duration_ns IS NOT NULL THEN gpu_wait_ns END) AS gpu, sum(CASE WHEN duration_ns IS NOT NULL THEN peer_wait_ns END) AS peer, \
         sum(CASE WHEN duration_ns IS NOT NULL THEN network_wait_ns END) AS network, sum(flush_wait_ns) AS flush \
         FROM proxy_steps GROUP BY job",
        "SELECT count() AS n, sum(iif(dur < 0, NULL, dur)) AS dur, sum(dur < 0) AS open, sum(bytes) AS bytes, sum(peer) AS peers, \
         sum(direction = 'send') AS sends, sum(channel) AS channels, sum(iif(dur < 0, NULL, gpu_wait)) AS gpu, \
         sum(iif(dur < 0, NULL, peer_wait)) AS peer, sum(iif(dur < 0, NULL, network_wait)) AS network, sum(flush_wait) AS flush FROM nccl_step",
    ),
    (
        "peers",
        "SELECT job, count(*) AS n, sum(peer) AS peers FROM peers WHERE transport = 'net' GROUP BY job",
        "SELECT count() AS n, sum(peer) AS peers FROM \
         (SELECT DISTINCT upid, comm, peer FROM nccl_proxy_operation WHERE transport = 'net')",
    ),
    (
        "channels",
        "SELECT job, count(*) AS n, sum(duration_ns) AS dur, sum(channel) AS channels, count(gpu_stop_ns) AS stops FROM channel_times GROUP BY job",
        "SELECT count() AS n, sum(iif(dur < 0, NULL, dur)) AS dur, sum(extract_arg(arg_set_id, 'nccl.channel')) AS channels, \
         sum(extract_arg(arg_set_id, 'nccl.gpu_stop_ns') IS NOT NULL) AS stops FROM nccl_slice \
         WHERE category = 'gpu' AND extract_arg(arg_set_id, 'nccl.channel') IS NOT NULL",
    ),
    (
        "hand-overs",
        "SELECT job, count(handed_over) AS n, count(DISTINCT tid) AS threads FROM operations WHERE tid IS NOT NULL GROUP BY job",
        "SELECT count() AS n, count(DISTINCT extract_arg(arg_set_id, 'nccl.tid')) AS threads FROM nccl_slice \
         WHERE category = 'operation' AND extract_arg(arg_set_id, 'nccl.tid') IS NOT NULL",
    ),
];

/// An engine's answers, by the number of the question.
struct Answers(Value);

impl Answers {
    /// The rows about a job, each as its columns.
    fn of(&self, question: &str, job: &str) -> Vec<&Value> {
        let rows = self.0[question].as_array().unwrap_or_else(|| panic!("{question} was asked"));
        rows.iter().filter(|row| row["job"] == job).collect()
    }

    /// All rows, without their order where it does not matter, and with numbers rounded so that
    /// engines agree.
    fn rows(&self, question: &str) -> Vec<BTreeMap<String, String>> {
        let text = |value: &Value| match value.as_f64() {
            Some(number) => format!("{number:.6e}"),
            None => value.to_string(),
        };
        let row = |row: &Value| {
            row.as_object().unwrap().iter().map(|(name, value)| (name.clone(), text(value))).collect::<BTreeMap<_, _>>()
        };
        let mut rows: Vec<_> = self.0[question].as_array().unwrap().iter().map(row).collect();
        rows.sort();
        rows
    }
}

fn asked(run: fn(&[&str]) -> Option<String>, engine: &str, folder: &Path) -> Option<Answers> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let (program, sql) = (format!("{root}/tests/ask_tables.py"), format!("{root}/sql/tables"));
    let more: Vec<&str> = SAME.iter().map(|(_, ours, _)| *ours).collect();
    let said = run(&[&program, engine, &folder.to_string_lossy(), &sql, &more.join(";")])?;
    Some(Answers(serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))))
}

/// The next test runs by itself. What it asks is fetched here, while others run.
#[test]
fn spark_and_matplotlib_can_be_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let _ = pypi::spark(&["-c", "import pyspark"]);
    let _ = pypi::plots(folder.path(), "import matplotlib");
}

#[test]
fn two_engines_find_the_straggler_and_the_slow_link_that_the_traces_show() {
    let folder = tempfile::tempdir().unwrap();
    let tables = folder.path().join("tables");
    let mut traces: BTreeMap<&str, Trace> = BTreeMap::new();
    for name in JOBS {
        let job: Job = Plan::new(NCCL, name).with_cupti(CUPTI).quiet().run();
        let said =
            command(["export", &job.traces().to_string_lossy(), "--parquet", &tables.to_string_lossy(), "--job", name]);
        println!("{name}: {said}");
        let trace = job.trace();
        trace.query(OF_TRACES).unwrap_or_else(|error| panic!("{error}"));
        traces.insert(name, trace);
    }
    if written_newer(&tables).is_none() {
        return;
    }
    let Some(duckdb) = asked(pypi::tables, "duckdb", &tables) else { return };

    // Rank 2 computes 1.6 times as long as the others.
    let late = duckdb.of("1", "straggler");
    assert_eq!(late.len(), 4, "{late:?}");
    assert_eq!((&late[0]["rank"], &late[0]["operations"]), (&2.into(), &8.into()), "{late:?}");
    assert!(late[0]["times_last_surely"].as_i64() > Some(4), "{late:?}");
    assert!(late[0]["late_us"].as_f64() > late[0]["error_us"].as_f64(), "{late:?}");
    // Each ring crosses the link between hosts 1 and 2 once, and the second ring in the other
    // direction: its rank 5 is the job's rank 0.
    let slow: BTreeSet<_> = duckdb
        .of("2", "slow_link")
        .into_iter()
        .filter(|row| row["times_slower"].as_f64() > Some(2.0))
        .collect::<Vec<_>>()
        .iter()
        .map(|row| (row["label"].to_string(), row["rank"].as_i64(), row["peer_rank"].as_i64()))
        .collect();
    let expected = [("\"world\"", 3, 4), ("\"back\"", 4, 3)];
    assert_eq!(slow, expected.map(|(label, from, to)| (label.to_owned(), Some(from), Some(to))).into(), "{slow:?}");
    // Rank 1 never comes to the fourth collective.
    let missing = duckdb.of("10.1", "hang");
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert_eq!((&missing[0]["seq"], &missing[0]["missing_rank"]), (&3.into(), &1.into()), "{missing:?}");
    assert!(duckdb.of("10.2", "hang").iter().all(|row| row["rank"] == 0), "only rank 0 waits");
    let lost = duckdb.of("6", "hang");
    let killed: BTreeSet<_> = lost.iter().map(|row| row["rank"].as_i64()).collect();
    assert_eq!(killed, [Some(0), Some(1)].into(), "both processes were killed: {lost:?}");

    // What the tables have is what the traces have.
    for (place, (what, _, theirs)) in SAME.iter().enumerate() {
        for (name, trace) in &traces {
            let [theirs] = &trace.rows(theirs)[..] else { panic!("one row") };
            let ours = duckdb.of(&format!("more.{}", place + 1), name);
            same(&format!("{what} of {name}"), &ours, theirs);
        }
    }

    // Each wait for the proxy is one for a peer that the network reaches.
    for name in ["straggler", "slow_link"] {
        let rows = duckdb.of("11", name);
        let us = rows.iter().map(|row| row["us"].as_f64().unwrap()).sum::<f64>();
        let [all] = duckdb.of("more.1", name)[..] else { panic!("one row") };
        let waited = all["waited"].as_f64().unwrap_or(0.0);
        println!("{name}: waits for the proxy of {waited} ns: {rows:?}");
        assert!((us * 1e3 - waited).abs() < 1.0, "{us} {waited}: {rows:?}");
        assert!(rows.iter().all(|row| row["transport"] == "net"), "{rows:?}");
    }
    assert!(!duckdb.of("11", "slow_link").is_empty());

    let Some(spark) = asked(pypi::spark, "spark", &tables) else { return };
    for question in duckdb.0.as_object().unwrap().keys() {
        assert_eq!(duckdb.rows(question), spark.rows(question), "question {question}");
        // To a question that was written for this version, a newer one is the same.
        let of = |job: &str| {
            let rows = duckdb.rows(question).into_iter().filter(|row| row["job"] == format!("{job:?}"));
            rows.map(|mut row| row.remove("job").map(|_| row)).collect::<Vec<_>>()
        };
        assert_eq!(of("straggler"), of(NEWER), "question {question}");
    }

    let example = PAGE.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let Some(said) = pypi::plots(folder.path(), example) else { return };
    assert_eq!(said.trim(), "comes last: 2");
    let picture = fs::read(folder.path().join("operations.png")).unwrap();
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000, "{} bytes", picture.len());
}

/// Copies the tables of the straggler to those of a job of a newer version.
fn written_newer(tables: &Path) -> Option<()> {
    for table in fs::read_dir(tables).unwrap().map(|table| table.unwrap().path()) {
        for rank in fs::read_dir(table.join("job=straggler")).into_iter().flatten().map(Result::unwrap) {
            let to = table.join(format!("job={NEWER}")).join(rank.file_name());
            fs::create_dir_all(&to).unwrap();
            for file in fs::read_dir(rank.path()).unwrap().map(Result::unwrap) {
                fs::copy(file.path(), to.join(file.file_name())).unwrap();
            }
        }
    }
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/newer_tables.py");
    pypi::tables(&[program, &tables.to_string_lossy(), &format!("job={NEWER}/rank=*")]).map(drop)
}

/// Compares a row of the tables with one of the trace.
#[track_caller]
fn same(what: &str, ours: &[&Value], theirs: &Row) {
    // Without any, there is no row of the job.
    let [ours] = ours else {
        assert_eq!((ours.len(), theirs.i64("n")), (0, 0), "{what}");
        return;
    };
    for (column, value) in ours.as_object().unwrap().iter().filter(|(column, _)| *column != "job") {
        let theirs = theirs.value(column);
        let text = theirs.to_string();
        assert!(
            value.to_string() == text || value.is_null() && (text == "0" || text == "NULL"),
            "{what}, {column}: {value} and {text}"
        );
    }
}
