//! The questions of docs/queries.md, for jobs of the real NCCL with known answers, and the commands
//! that answer them without SQL.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::support::{Job, Plan, SLOWER, command};
use ncclscope_tests::perfetto::{Row, Trace, Value as Cell};
use serde_json::{Value, json};

const NCCL: &str = "2.30.7";
const CUPTI: &str = "13.0";

const TABLES: &str = include_str!("../../sql/ncclscope.sql");
const QUESTIONS: &str = include_str!("../../docs/queries.md");

/// The SQL below the heading that begins with this number, in the order of the page.
fn sql(number: u32) -> Vec<&'static str> {
    let heading = format!("\n## {number}. ");
    let section = QUESTIONS.split(&heading).nth(1).expect("the question is on the page");
    let section = section.split("\n## ").next().unwrap_or_default();
    section.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// A trace with the project's SQL tables, and its job.
struct Asked(Trace, Job);

impl Asked {
    #[track_caller]
    fn new(plan: Plan) -> Asked {
        let job = plan.run();
        let trace = job.trace();
        trace.query(TABLES).unwrap_or_else(|error| panic!("{error}"));
        Asked(trace, job)
    }

    /// The rows of a question's answer, from its last query if it has several.
    #[track_caller]
    fn ask(&self, number: u32) -> Vec<Row> {
        let sql = sql(number);
        let answers: Vec<_> = sql.iter().map(|sql| self.0.rows(sql)).collect();
        println!("{number}: {}", self.0.text(sql.last().expect("the question has SQL")));
        answers.into_iter().next_back().unwrap_or_default()
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn rank(row: &Row, column: &str) -> i64 {
    let name = row.str(column);
    let digits = name.strip_prefix("rank ").and_then(|rest| rest.split(' ').next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{name} has no rank"))
}

#[test]
fn a_straggler_comes_last_and_sizes_and_bandwidths_add_up() {
    let trace = Asked::new(Plan::new(NCCL, "straggler").with_cupti(CUPTI));
    let late = trace.ask(1);
    assert_eq!(late.len(), 4);
    assert_eq!(rank(&late[0], "process"), 2, "rank 2 computes 1.6 times as long");
    assert!(late.iter().all(|row| row.i64("operations") == 8));
    assert!(late[0].f64("late_us") > 1.2 * late[1].f64("late_us"), "{late:?}");

    let largest = trace.ask(7);
    assert_eq!(largest.len(), 1);
    assert_eq!((largest[0].str("function"), largest[0].i64("bytes")), ("AllReduce", 2 << 20));
    assert_eq!((largest[0].i64("times"), largest[0].str("communicator")), (32, "world"));
    assert!(largest[0].f64("shortest_us") < largest[0].f64("longest_us"));

    let bandwidth = trace.ask(8);
    assert_eq!((bandwidth.len(), bandwidth[0].i64("ranks"), bandwidth[0].i64("executions")), (1, 4, 32));
    let (algorithm, bus) = (bandwidth[0].f64("algorithm_gb_per_s"), bandwidth[0].f64("bus_gb_per_s"));
    assert!((bus / algorithm - 1.5).abs() < 1e-6, "twice three quarters: {algorithm} {bus}");
    // The communicators' tracks must agree with the streams' tracks.
    const TABLE: &str = "SELECT count() AS n, sum(dur) AS ns, sum(bytes) AS bytes FROM nccl_execution";
    const STREAMS: &str = "SELECT count() AS n, sum(dur) AS ns, sum(extract_arg(arg_set_id, 'nccl.bytes')) AS bytes FROM nccl_slice \
                           WHERE category IN ('kernel', 'carried') AND extract_arg(arg_set_id, 'nccl.count') IS NOT NULL \
                           AND coalesce(extract_arg(arg_set_id, 'nccl.operations'), 1) = 1";
    for plan in [None, Some("groups"), Some("graphs")] {
        let other = plan.map(|scenario| Asked::new(Plan::new(NCCL, scenario).with_cupti(CUPTI)));
        let trace = other.as_ref().unwrap_or(&trace);
        assert_eq!(trace.0.text(TABLE), trace.0.text(STREAMS), "{plan:?}");
    }
    // Every execution had 2 MiB.
    let time = trace.0.rows("SELECT sum(dur) AS ns FROM nccl_execution")[0].i64("ns");
    assert!((algorithm - 32.0 * f64::from(2 << 20) / time as f64).abs() < 1e-6);

    assert_eq!(trace.ask(6), [], "nothing was lost");
    assert_eq!(trace.ask(5), [], "every kernel is matched exactly");
    assert_eq!(trace.ask(10), [], "nothing hangs");
}

#[test]
fn a_slow_link_and_what_waits_for_it_are_found() {
    let trace = Asked::new(Plan::new(NCCL, "network").with_cupti(CUPTI));
    // Three hosts with two ranks each; host 1 sends to host 2 at a tenth of the others' speed.
    let links = trace.ask(2);
    assert_eq!(links.len(), 3);
    let slow = &links[0];
    assert_eq!((rank(slow, "sender"), slow.i64("peer")), (3, 4));
    assert!(slow.f64("times_slower") > 2.0 && links[1].f64("times_slower") < 2.0, "{links:?}");
    assert!(slow.f64("longest_us") > 90_000.0, "it stands still for 100 ms");

    let waits = trace.ask(3);
    let of = |direction: &str, process: i64| {
        let found = waits.iter().find(|row| row.str("direction") == direction && rank(row, "process") == process);
        found.unwrap_or_else(|| panic!("no row of {process}, {direction}")).f64("network_percent")
    };
    assert!(of("send", 3) > of("send", 1) && of("send", 3) > of("send", 5), "{waits:?}");

    // NCCL starts the proxy after the kernel, so some wait for it; each for a neighbour of the ring
    // on another host.
    let late = trace.ask(11);
    let [all] = &trace.0.rows("SELECT count(proxy_wait) AS n, sum(proxy_wait) / 1e3 AS us FROM nccl_execution")[..]
    else {
        panic!("one row")
    };
    assert!(all.i64("n") > 0, "none waited");
    assert_eq!(late.iter().map(|row| row.i64("operations")).sum::<i64>(), all.i64("n"), "{late:?}");
    assert!((late.iter().map(|row| row.f64("us")).sum::<f64>() - all.f64("us")).abs() < 1.0, "{late:?}");
    for row in &late {
        let (own, peer) = (rank(row, "process"), row.i64("peer"));
        let to = if row.str("direction") == "send" { own + 1 } else { own + 5 };
        assert_eq!(peer, to % 6, "{row:?}");
    }
    for row in &waits {
        let sum: f64 = ["gpu", "peer", "network", "flush"].iter().map(|what| row.f64(&format!("{what}_percent"))).sum();
        assert!((97.0..=103.0).contains(&sum), "{row:?}");
    }
}

#[test]
fn a_link_slow_both_ways_is_told_apart_from_gpus_that_copy_slowly() {
    // Each ring crosses the link between hosts 1 and 2 once, and the second ring in the other
    // direction: its rank 5 is the job's rank 0.
    let links = Asked::new(Plan::new(NCCL, "slow_link").with_cupti(CUPTI)).ask(2);
    let of = |row: &Row| (row.str("communicator").to_owned(), rank(row, "sender"), row.i64("peer"));
    let slow: BTreeSet<_> = links.iter().filter(|row| row.f64("times_slower") > 2.0).map(of).collect();
    assert_eq!(links.len(), 6, "{links:?}");
    assert_eq!(slow, BTreeSet::from([("world".to_owned(), 3, 4), ("back".to_owned(), 4, 2)]), "{links:?}");

    let trace = Asked::new(Plan::new(NCCL, "slow_copies").with_cupti(CUPTI));
    let links = trace.ask(2);
    assert_eq!(links.len(), 2, "{links:?}");
    assert!(links.iter().all(|row| row.f64("times_slower") < 2.0), "the network is not slow: {links:?}");
    let waits = trace.ask(3);
    let slow = waits.iter().find(|row| row.str("direction") == "send" && rank(row, "process") == 1);
    assert!(
        slow.is_some_and(|row| row.f64("gpu_percent") > row.f64("network_percent")),
        "it waits for its GPU: {waits:?}"
    );
}

#[test]
fn counters_are_shown_in_their_units() {
    let trace = Asked::new(Plan::new(NCCL, "small").with_cupti(CUPTI));
    let rows =
        trace.0.rows("SELECT DISTINCT substr(name, 1, instr(name || ' ·', ' ·') - 1) AS name, unit FROM counter_track");
    let units: BTreeMap<&str, &str> = rows.iter().map(|row| (row.str("name"), row.str("unit"))).collect();
    assert_eq!(units.len(), rows.len(), "one unit for each counter: {rows:?}");
    for (name, unit) in [
        ("busbw", "B/s"),
        ("algbw", "B/s"),
        ("outstanding", "operations"),
        ("operations queued", "operations"),
        ("steps in flight", "steps"),
        ("records dropped", "records"),
    ] {
        assert_eq!(units.get(name), Some(&unit), "{units:?}");
    }
    assert!(units.get("CPU").is_none_or(|unit| *unit == "%"), "{units:?}");
    assert!(!units.values().any(|unit| *unit == "count"), "{units:?}");
}

#[test]
fn a_gpu_that_waits_for_its_host_is_told_apart_from_one_that_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let idle = |name: &str, pause: &str| {
        let trace = Asked::new(Plan::new(NCCL, &pausing(folder.path(), name, pause)).with_cupti(CUPTI));
        let rows = trace.ask(4);
        assert_eq!(rows.len(), 2, "{rows:?}");
        rows.iter().map(|row| row.f64("idle_percent")).fold(0.0, f64::max)
    };
    let (host_bound, busy) = (idle("paused", PAUSE), idle("busy", ""));
    assert!(host_bound > 50.0 && busy < host_bound / 2.0, "{host_bound} {busy}");
}

/// What hosts do after each step while their GPUs are idle.
const PAUSE: &str = "  sync\n  sleep 40 ms\n";

/// The path of a scenario with nine steps of which each ends in this way.
fn pausing(folder: &Path, name: &str, pause: &str) -> String {
    let text = format!(
        "title = \"{name}\"\nabout = \"{name}\"\n[job]\nhosts = 1\nranks_per_host = 2\nprogram = \"\"\"\n\
         repeat 9 {{\n  compute forward 4 ms\n  all_reduce 256 KiB f32 sum\n  wait world\n{pause}}}\nsync\n\"\"\"\n"
    );
    let path = folder.join(format!("{name}.toml"));
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Plays a job until the query finds what is planted and `diagnose` names it as its first cause: on
/// a busy machine something else may really hold it up.
#[track_caller]
fn agreed(scenario: &str, planted: Value, of_query: impl Fn(&Asked) -> Value, of_cause: impl Fn(&Value) -> Value) {
    let mut told = Vec::new();
    for slower in SLOWER {
        let trace = Asked::new(Plan::new(NCCL, scenario).slower(slower).with_cupti(CUPTI));
        let answer = trace.1.answer("diagnose");
        println!("{}", answer["text"]);
        let both = [of_query(&trace), of_cause(&answer["causes"][0])];
        if both.iter().all(|it| *it == planted) {
            return;
        }
        told.push(both);
    }
    panic!("{planted} is planted: {told:#?}");
}

#[test]
fn diagnose_names_whom_the_queries_find() {
    let late = |trace: &Asked| json!(["kernels", [rank(&trace.ask(1)[0], "process")]]);
    agreed("straggler", json!(["kernels", [2]]), late, |cause| json!([cause["kind"], cause["ranks"]]));

    // The second communicator counts the ranks from behind.
    let slow = |trace: &Asked| {
        let rows = trace.ask(2);
        let most = rows.iter().map(|row| row.f64("times_slower")).fold(4.0, f64::max);
        let ends = rows.iter().filter(|row| row.f64("times_slower") > most / 2.0).map(|row| {
            match (row.str("communicator"), rank(&row, "sender"), row.i64("peer")) {
                ("back", sender, peer) => (sender, 5 - peer),
                (_, sender, peer) => (sender, peer),
            }
        });
        json!(["link", ends.collect::<BTreeSet<_>>()])
    };
    agreed("slow_link", json!(["link", [[3, 4], [4, 3]]]), slow, |cause| {
        let ends = array(&cause["links"]).iter().map(|link| (link["from"].as_i64(), link["to"].as_i64()));
        json!([cause["kind"], ends.collect::<BTreeSet<_>>()])
    });

    let folder = tempfile::tempdir().unwrap();
    // Of both ranks.
    let idle = |trace: &Asked| trace.ask(4).iter().map(|row| json!(row.f64("idle_percent") > 50.0)).collect::<Value>();
    let host_bound = |cause: &Value| json!(vec![cause["kind"] == "host-bound"; 2]);
    agreed(&pausing(folder.path(), "paused", PAUSE), json!([true, true]), idle, host_bound);
    agreed(&pausing(folder.path(), "busy", ""), json!([false, false]), idle, host_bound);
}

/// The rows of a table of `ncclscope summary`, for all traces of a job.
#[track_caller]
fn summed(job: &Job, table: &str) -> Vec<Value> {
    let folder = job.traces();
    let said = command(["summary".into(), folder, "--format".into(), "json".into()]);
    let whole: Value = serde_json::from_str(&said).unwrap();
    let rows = array(&whole["tables"][table]).iter();
    rows.filter(|row| row["rank"] != "all").cloned().collect()
}

/// Asserts that each process of a job that came to its end left the same summary as its trace has.
#[track_caller]
fn same_in_process_and_file(job: &Job) -> usize {
    let folder = std::fs::read_dir(job.traces()).unwrap().map(|entry| entry.unwrap().path());
    let traces: Vec<_> = folder.filter(|path| path.extension().is_some_and(|it| it == "perfetto-trace")).collect();
    for trace in &traces {
        let beside = std::fs::read_to_string(trace.with_extension("summary.txt")).unwrap();
        assert_eq!(beside, command(["summary".as_ref(), trace.as_os_str()]), "{}", trace.display());
    }
    traces.len()
}

/// Durations by subject: their number, minimum, maximum and sum.
type Sums = BTreeMap<Vec<String>, [i64; 4]>;

fn add(sums: &mut Sums, key: Vec<String>, [number, least, most, total]: [i64; 4]) {
    let sum = sums.entry(key).or_insert([0, i64::MAX, 0, 0]);
    *sum = [sum[0] + number, sum[1].min(least), sum[2].max(most), sum[3] + total];
}

/// A cell of a query's answer.
fn cell(row: &Row, column: &str) -> String {
    match row.value(column) {
        Cell::Int(number) => number.to_string(),
        Cell::Text(text) => text.clone(),
        other => other.to_string(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[test]
fn summary_has_what_the_queries_and_the_truth_have() {
    for scenario in ["straggler", "groups", "graphs", "all_to_all", "network"] {
        let trace = Asked::new(Plan::new(NCCL, scenario).with_cupti(CUPTI));
        assert!(same_in_process_and_file(&trace.1) > 1, "{scenario}");

        // Operations with a kernel of their own: function, bytes, peer and their times.
        let mut found = Sums::new();
        for row in summed(&trace.1, "operations").iter().filter(|row| row["timed"] != 0) {
            let key = ["rank", "communicator", "operation", "bytes", "peer"].map(|column| text(&row[column]));
            let cells = ["timed", "kernel_min_ns", "kernel_max_ns", "kernel_total_ns"];
            add(&mut found, key.to_vec(), cells.map(|column| row[column].as_i64().unwrap()));
        }
        let mut queried = Sums::new();
        const EXECUTIONS: &str = "SELECT process.world_rank AS rank, label, function, bytes, ifnull(peer, 'null') AS peer, count() AS n, \
                                  min(dur) AS least, max(dur) AS most, sum(dur) AS total FROM nccl_execution AS execution \
                                  JOIN nccl_process AS process USING (upid) JOIN (SELECT comm, min(label) AS label FROM \
                                  nccl_communicator GROUP BY comm) USING (comm) WHERE operations IS NULL AND dur >= 0 \
                                  GROUP BY 1, 2, 3, 4, 5";
        for row in trace.0.rows(EXECUTIONS) {
            let key = ["rank", "label", "function", "bytes", "peer"].map(|column| cell(&row, column));
            add(&mut queried, key.to_vec(), ["n", "least", "most", "total"].map(|column| row.i64(column)));
        }
        assert_eq!(found, queried, "{scenario}");

        // What the proxy waited for.
        let mut found = Sums::new();
        for row in summed(&trace.1, "proxy").iter().filter(|row| row["transfers"] != 0) {
            let key = ["rank", "communicator", "direction", "peer"].map(|column| text(&row[column]));
            let cells = ["transfers", "gpu_wait_ns", "peer_wait_ns", "network_wait_ns"];
            found.insert(key.to_vec(), cells.map(|column| row[column].as_i64().unwrap()));
        }
        let mut queried = Sums::new();
        const STEPS: &str = "SELECT process.world_rank AS rank, label, direction, peer, count() AS n, sum(gpu_wait) AS gpu, \
                             sum(peer_wait) AS peer_waits, sum(network_wait) AS network FROM nccl_step JOIN nccl_process AS process USING (upid) \
                             JOIN (SELECT comm, min(label) AS label FROM nccl_communicator GROUP BY comm) USING (comm) \
                             WHERE dur >= 0 GROUP BY 1, 2, 3, 4";
        for row in trace.0.rows(STEPS) {
            let key = ["rank", "label", "direction", "peer"].map(|column| cell(&row, column));
            queried.insert(key.to_vec(), ["n", "gpu", "peer_waits", "network"].map(|column| row.i64(column)));
        }
        assert_eq!(found, queried, "{scenario}");
        assert!(scenario == "all_to_all" || !found.is_empty(), "{scenario}: the network was used");

        // What really ran: kernels with one operation by function, and those with several.
        let mut truth: BTreeMap<(String, String), [u64; 2]> = BTreeMap::new();
        for played in trace.1.processes() {
            for kernel in played.told_kernels() {
                let name = match &kernel.operations[..] {
                    [operation] => operation.function.clone(),
                    _ => "several".into(),
                };
                let sum = truth.entry((played.process.ranks[0].to_string(), name)).or_default();
                *sum = [sum[0] + 1, sum[1] + kernel.end - kernel.start];
            }
        }
        let mut told: BTreeMap<(String, String), [u64; 2]> = BTreeMap::new();
        let (operations, groups) = (summed(&trace.1, "operations"), summed(&trace.1, "groups"));
        let alone =
            operations.iter().filter(|row| row["timed"] != 0).map(|row| (&row["operation"], &row["timed"], row));
        let several = Value::from("several");
        for (name, number, row) in alone.chain(groups.iter().map(|row| (&several, &row["number"], row))) {
            let sum = told.entry((text(&row["rank"]), text(name))).or_default();
            *sum = [sum[0] + number.as_u64().unwrap(), sum[1] + row["kernel_total_ns"].as_u64().unwrap()];
        }
        let numbers =
            |of: &BTreeMap<_, [u64; 2]>| of.iter().map(|(key, sum)| (format!("{key:?}"), sum[0])).collect::<Vec<_>>();
        assert_eq!(numbers(&told), numbers(&truth), "{scenario}");
        for (key, [number, ns]) in &told {
            let (found, real) = (*ns as f64, truth[key][1] as f64);
            // CUPTI's times are rounded, and its clock may run a little fast.
            assert!(
                (found - real).abs() <= 0.001 * real + 2000.0 * *number as f64,
                "{scenario} {key:?}: {found} {real}"
            );
        }
    }
}

/// What ran outside of graphs, by communicator and function: for each rank, the numbers of the
/// collectives with their bytes, in order.
type Ran = BTreeMap<(i64, String), BTreeMap<i64, Vec<(i64, i64)>>>;

fn ran_with(settings: &[(&str, &str)]) -> (Ran, i64) {
    let plan = Plan::new(NCCL, "training").with_cupti(CUPTI);
    let Asked(trace, _job) = Asked::new(settings.iter().fold(plan, |plan, (name, value)| plan.with(name, value)));
    const RAN: &str = "SELECT comm, function, upid, seq, bytes FROM nccl_execution WHERE seq IS NOT NULL AND replay IS NULL \
                       AND operations IS NULL ORDER BY seq";
    let mut ran = Ran::new();
    for row in trace.rows(RAN) {
        let of = ran.entry((row.i64("comm"), row.str("function").to_owned())).or_default();
        of.entry(row.i64("upid")).or_default().push((row.i64("seq"), row.i64("bytes")));
    }
    let unmatched = trace.rows(
        "SELECT count() AS n FROM nccl_slice WHERE category = 'kernel' AND \
                                extract_arg(arg_set_id, 'nccl.doubt') IS NOT NULL",
    );
    (ran, unmatched[0].i64("n"))
}

#[test]
fn a_selection_draws_the_same_collectives_on_all_ranks() {
    let numbers =
        |ran: &Ran| ran.iter().map(|((_, function), ranks)| (function.clone(), ranks.len())).collect::<Vec<_>>();
    let (all, doubts) = ran_with(&[]);
    assert!(numbers(&all).len() >= 4 && doubts == 0, "{all:?}");
    let counts = |ran: &Ran, keep: &dyn Fn(usize, i64) -> bool| {
        let mut counts: Vec<_> = (ran.iter())
            .flat_map(|((_, function), ranks)| ranks.values().map(move |it| (function.clone(), it)))
            .map(|(function, it)| {
                (function, it.iter().enumerate().filter(|(at, (_, bytes))| keep(*at, *bytes)).count())
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        counts.sort();
        counts
    };
    let (third, doubts) = ran_with(&[("NCCLSCOPE_EVERY", "3")]);
    assert_eq!(doubts, 0);
    for (of, ranks) in &third {
        let first = ranks.values().next().unwrap();
        assert!(ranks.values().all(|it| it == first), "{of:?} differs between ranks: {ranks:?}");
    }
    assert_eq!(counts(&third, &|_, _| true), counts(&all, &|at, _| at % 3 == 0));
    let (large, _) = ran_with(&[("NCCLSCOPE_MIN_BYTES", "4M")]);
    assert_eq!(counts(&large, &|_, _| true), counts(&all, &|_, bytes| bytes >= 4 << 20));
}

#[test]
fn every_command_of_the_page_about_oneccls_rfc_shows_something() {
    let job = Plan::new(NCCL, "training").with_cupti(CUPTI).run();
    let page = include_str!("../../docs/oneccl-rfc.md");
    let commands: BTreeSet<&str> = page.split('`').filter(|text| text.starts_with("ncclscope summary JOB")).collect();
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        let folder = job.traces();
        let words = command.split(' ').map(|word| if word == "JOB" { folder.to_str().unwrap() } else { word });
        let mut said = Vec::new();
        ncclscope::cli::run(words, &mut said).unwrap_or_else(|error| panic!("{command}: {error}"));
        let said = String::from_utf8(said).unwrap();
        assert!(said.lines().count() > 3, "{command}: {said}");
    }
    assert!(page.contains("`ncclscope report JOB -o report.html`"));
    let drawn = tempfile::tempdir().unwrap();
    let drawn = drawn.path().join("report.html");
    let traces = job.traces();
    command(["report".as_ref(), traces.as_os_str(), "-o".as_ref(), drawn.as_os_str()]);
    assert!(std::fs::read_to_string(drawn).unwrap().contains("AllReduce"));
}

#[test]
fn a_scrubbed_job_has_the_same_diagnosis() {
    let job = Plan::new(NCCL, "straggler").with_cupti(CUPTI).run();
    let traces = job.traces();
    let above = tempfile::tempdir().unwrap();
    let copies = above.path().join("copies");
    command(["scrub".as_ref(), traces.as_os_str(), "-o".as_ref(), copies.as_os_str()]);
    let diagnosis = |folder: &std::ffi::OsStr| -> Value {
        serde_json::from_str(&command(["diagnose".as_ref(), folder, "--json".as_ref(), "-".as_ref()])).unwrap()
    };
    let [before, after] = [traces.as_os_str(), copies.as_os_str()].map(diagnosis);
    assert_eq!(before["verdict"], after["verdict"]);
    for column in ["count", "median_ns", "mean_ns"] {
        assert_eq!(before["steps"][column], after["steps"][column]);
    }
    let causes = |of: &Value| {
        let all = of["causes"].as_array().unwrap().iter();
        all.map(|cause| [&cause["kind"], &cause["ranks"], &cause["cost_ns"]].map(Value::to_string)).collect::<Vec<_>>()
    };
    assert!(!causes(&before).is_empty() && causes(&before) == causes(&after), "{before} {after}");
    let text = after.to_string();
    assert!(text.contains("host-1") && text.contains("kernel-") && !text.contains("backward"), "{text}");
}

#[test]
fn summary_answers_what_the_queries_answer() {
    let trace = Asked::new(Plan::new(NCCL, "network").with_cupti(CUPTI));
    // Question 3: what the proxy waits for.
    let waits = trace.ask(3);
    let proxy = summed(&trace.1, "proxy");
    assert!(!waits.is_empty());
    for row in &waits {
        let same = |of: &&Value| {
            of["rank"] == rank(row, "process").to_string()
                && of["communicator"] == row.str("communicator")
                && of["direction"] == row.str("direction")
                && of["peer"] == row.i64("peer")
        };
        let [of] = proxy.iter().filter(same).collect::<Vec<_>>()[..] else { panic!("one row for {row:?}: {proxy:?}") };
        let wait = |what: &str| of[format!("{what}_wait_ns")].as_f64().unwrap();
        let kinds = ["gpu", "peer", "network", "flush"];
        let all: f64 = kinds.iter().map(|what| wait(what)).sum();
        for what in kinds {
            let asked = row.f64(&format!("{what}_percent"));
            assert!((asked - 100.0 * wait(what) / all).abs() <= 0.51, "{what}: {row:?} {of}");
        }
    }
    // Questions 7 and 8: sizes and bandwidths.
    let trace = Asked::new(Plan::new(NCCL, "straggler").with_cupti(CUPTI));
    let operations = summed(&trace.1, "operations");
    let sum = |rows: &[Value], column: &str| rows.iter().map(|row| row[column].as_f64().unwrap()).sum::<f64>();
    let largest = &trace.ask(7)[0];
    assert!(operations.iter().all(|row| row["bytes"] == largest.i64("bytes")), "{operations:?}");
    assert_eq!(sum(&operations, "number"), largest.i64("times") as f64);
    let [asked] = &trace.ask(8)[..] else { panic!("one kind of operation") };
    let ns = sum(&operations, "kernel_total_ns");
    for (column, of) in [("algbw_bytes_per_s", "algorithm_gb_per_s"), ("busbw_bytes_per_s", "bus_gb_per_s")] {
        let weighted = |row: &Value| row[column].as_f64().unwrap() * row["kernel_total_ns"].as_f64().unwrap();
        let rate = operations.iter().map(weighted).sum::<f64>() / ns / 1e9;
        assert!((rate / asked.f64(of) - 1.0).abs() < 1e-6, "{column}: {rate} {asked:?}");
    }
    // Question 9: graphs. Each of the two steps of a graph has two operations.
    let trace = Asked::new(Plan::new(NCCL, "graphs").with_cupti(CUPTI));
    let kernels: i64 = trace.ask(9).iter().map(|row| row.i64("kernels")).sum();
    let (operations, groups) = (summed(&trace.1, "operations"), summed(&trace.1, "groups"));
    let from_graphs = |row: &&Value| row["graph"] != 0;
    let alone: i64 = operations.iter().filter(from_graphs).map(|row| row["timed"].as_i64().unwrap()).sum();
    let grouped: i64 = groups.iter().map(|row| row["number"].as_i64().unwrap()).sum();
    assert_eq!(alone + grouped, kernels, "{operations:?} {groups:?}");
}

#[test]
fn unmatched_kernels_and_losses_say_why() {
    let trace = Asked::new(Plan::new(NCCL, "graphs").with_cupti(CUPTI).misbehaving("withhold"));
    let unmatched = trace.ask(5);
    let reasons: Vec<&str> = unmatched.iter().map(|row| row.str("doubt")).collect();
    assert!(reasons.contains(&"no capture is known behind its node"), "{reasons:?}");
    assert!(reasons.contains(&"its launch was not seen"), "{reasons:?}");
    let kernels: i64 = unmatched.iter().map(|row| row.i64("kernels")).sum();
    let lost = trace.ask(6);
    let told: i64 = lost.iter().filter(|row| row.str("what") == "kernels_unmatched").map(|row| row.i64("count")).sum();
    assert_eq!(told, kernels, "{lost:?}");

    let info = trace.1.answer("info");
    let recordings: Vec<&Value> = array(&info["files"]).iter().flat_map(|file| array(&file["recordings"])).collect();
    let figure = |name: &str| recordings.iter().filter_map(|it| it["figures"][name].as_i64()).sum::<i64>();
    for what in lost.iter().map(|row| row.str("what")).collect::<BTreeSet<_>>() {
        let counted = lost.iter().filter(|row| row.str("what") == what).map(|row| row.i64("count")).sum::<i64>();
        assert_eq!(figure(what), counted, "{what}: {info:#}");
    }
}

#[test]
fn a_further_gpu_of_a_process_has_no_last_word_of_its_own() {
    let trace = Asked::new(Plan::new(NCCL, "devices").with_cupti(CUPTI));
    let processes = trace.0.rows("SELECT name FROM nccl_process");
    assert_eq!((processes.len(), trace.ask(6)), (4, Vec::new()), "{processes:?}");
}

#[test]
fn replays_of_graphs_are_counted() {
    let trace = Asked::new(Plan::new(NCCL, "graphs").with_cupti(CUPTI));
    let replays = trace.ask(9);
    // Two captured steps, replayed 13 and 8 times.
    assert_eq!(replays.len(), 4, "{replays:?}");
    for process in [0, 1] {
        let of_rank = replays.iter().filter(|row| rank(row, "process") == process);
        let counts: Vec<_> = of_rank.map(|row| row.i64("replays")).collect();
        assert_eq!(counts, [13, 8], "{replays:?}");
    }
    // Who comes late is known for each replay, although NCCL gives all replays the same number and
    // both graphs share it.
    let mut begins: BTreeMap<(String, i64), [Vec<i64>; 2]> = BTreeMap::new();
    let all = "SELECT process.name AS process, execution.name AS name, ifnull(replay, 0) AS replay, ts FROM nccl_execution AS execution \
               JOIN nccl_process AS process USING (upid) WHERE seq IS NOT NULL ORDER BY ts";
    for row in trace.0.rows(all) {
        let ranks = begins.entry((row.str("name").to_owned(), row.i64("replay"))).or_default();
        ranks[rank(&row, "process") as usize].push(row.i64("ts"));
    }
    let pairs: Vec<_> = begins.values().flat_map(|[one, other]| one.iter().zip(other).map(|(a, b)| b - a)).collect();
    for row in trace.ask(1) {
        let sign = if rank(&row, "process") == 0 { -1 } else { 1 };
        let most = pairs.iter().map(|after| (after * sign).max(0)).max().unwrap_or_default();
        assert_eq!((row.i64("operations"), row.f64("most_us")), (pairs.len() as i64, most as f64 / 1e3), "{row:?}");
    }
    let whole = trace.0.rows("SELECT count() AS n FROM nccl_kernel WHERE replay IS NOT NULL")[0].i64("n");
    assert_eq!(replays.iter().map(|row| row.i64("kernels")).sum::<i64>(), whole);
}

#[test]
fn a_hang_names_the_operation_and_who_is_missing() {
    let trace = Asked::new(Plan::new(NCCL, "hang").with_cupti(CUPTI));
    let missing = trace.0.rows(sql(10)[0]);
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert_eq!(
        (missing[0].i64("seq"), missing[0].str("missing_ranks")),
        (3, "1"),
        "the fourth, and rank 1 never comes"
    );
    assert!(missing[0].str("operation").contains("AllReduce"));
    let info = trace.1.answer("info");
    let hangs = array(&info["hangs"]);
    assert_eq!(hangs.len(), 1, "{info:#}");
    assert_eq!(
        (&hangs[0]["operation"], &hangs[0]["seq"]),
        (&missing[0].str("operation").into(), &3.into()),
        "{info:#}"
    );
    let of_info: Vec<String> = array(&hangs[0]["missing"]).iter().map(|it| it["rank"].to_string()).collect();
    assert_eq!(of_info.join(", "), missing[0].str("missing_ranks"), "{info:#}");

    let waiting = trace.ask(10);
    assert!(!waiting.is_empty() && waiting.iter().all(|row| rank(row, "process") == 0), "{waiting:?}");
    assert!(waiting.iter().any(|row| row.f64("network_ms") > 400.0), "it waits until it is killed: {waiting:?}");
    let lost = trace.ask(6);
    let killed: Vec<_> = lost.iter().filter(|row| row.str("what") == "no last word").collect();
    assert_eq!(killed.len(), 2, "both were killed: {lost:?}");
    let recordings = array(&info["files"]).iter().flat_map(|file| array(&file["recordings"]));
    assert_eq!(recordings.filter(|it| it["state"] != "closed").count(), killed.len(), "{info:#}");
}

#[test]
fn eleven_questions_are_asked() {
    assert_eq!(QUESTIONS.matches("\n## ").count(), 11);
    for number in 1..=11 {
        assert!(!sql(number).is_empty(), "{number}");
    }
}
