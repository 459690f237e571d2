//! Hosts with different clocks: the traces that `ncclscope merge` makes, compared with the truth.
//!
//! Other random jobs are played with `CLOCKS_SEED=SEED`. `CLOCKS_KEEP=FOLDER` keeps the traces and
//! the truth of each job there.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use crate::support::{Job, Plan, Played, in_order_of_ranks};
use emulator::scenario::random::Dice;
use emulator::truth::{Kernel, Operation};
use ncclscope_tests::perfetto::{Row, Trace};

const NCCL: &str = "2.30.7";
const CUPTI: &str = "13.0";

const TABLES: &str = include_str!("../../sql/ncclscope.sql");

/// A job on several hosts, merged.
struct Merged {
    job: Job,
    processes: Vec<Played>,
    trace: Trace,
    said: String,
    /// How far a host's times may be off at worst between the first and the last operation, in ns.
    errors: HashMap<u32, i64>,
    /// The processes in the order of their files. All times are on the clock of the first one's
    /// host.
    by_name: Vec<usize>,
}

impl Merged {
    #[track_caller]
    fn of(scenario: &str) -> Merged {
        let mut plan = Plan::of_text(NCCL, scenario).with_cupti(CUPTI);
        if let Some(kept) = std::env::var_os("CLOCKS_KEEP") {
            plan = plan.in_folder(tempfile::Builder::new().disable_cleanup(true).tempdir_in(kept).expect("a folder"));
        }
        let job: Job = plan.run().succeeded();
        let (trace, said) = job.joined();
        trace.query(TABLES).unwrap_or_else(|error| panic!("{error}"));
        let processes = job.processes();
        // Files are in the order of their names, and hosts in the order of their first file.
        let mut by_name: Vec<usize> = (0..processes.len()).collect();
        by_name.sort_by_key(|number| format!("{}.", processes[*number].process.pid));
        let mut hosts: Vec<u32> = Vec::new();
        for number in &by_name {
            let host = processes[*number].process.host;
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        let worst = |line: &str| {
            let (_, worst) = line.split_once(" at best and ")?;
            Some(nanoseconds(worst.split_once(" at worst")?.0))
        };
        let errors = [0].into_iter().chain(said.lines().filter_map(worst));
        let errors: HashMap<u32, i64> = hosts.iter().copied().zip(errors).collect();
        assert_eq!(errors.len(), hosts.len(), "{said}");
        Merged { job, processes, trace, said, errors, by_name }
    }

    /// A true time on the common clock.
    fn reference(&self, truth: i64) -> i64 {
        let clocks = &self.processes[self.by_name[0]].process.clocks;
        truth + clocks.boot.at(truth - clocks.reference as i64)
    }

    /// Asserts that every slice about the communicator is drawn at its true time, within the
    /// stated error.
    #[track_caller]
    fn check_times(&self) {
        let mut transfers = 0;
        for played in &self.processes {
            let (clocks, error) = (&played.process.clocks, self.errors[&played.process.host]);
            // A clock that is 100 ppm fast is off by 100 us after a second, and nobody knows when
            // that second began.
            let truth = |at: i64| (0..3).fold(at, |truth, _| at - clocks.boot.at(truth - clocks.reference as i64));
            let sql = format!(
                "SELECT s.ts, s.name FROM slice s JOIN process_track t ON t.id = s.track_id JOIN process p USING (upid) \
                 WHERE p.pid = {} AND (s.category IN ('run', 'operation') AND t.name GLOB 'world · rank {} of *' OR \
                 s.category = 'proxy' AND (t.name GLOB 'world · send *' OR t.name GLOB 'world · receive *'))",
                played.process.pid, played.process.ranks[0]
            );
            // By name first: what is a nanosecond apart on one clock may be at one time on another.
            // The trace processor of these tests does not sort so many names rightly.
            let sorted = |trace: &Trace| {
                let mut all: Vec<(String, i64)> =
                    trace.rows(&sql).iter().map(|row| (row.str("name").to_owned(), row.i64("ts"))).collect();
                all.sort_unstable();
                all
            };
            let (own, moved) = (sorted(played.trace()), sorted(&self.trace));
            transfers += own.iter().filter(|(name, _)| name.starts_with("step ")).count();
            assert!(own.len() > 20 && own.len() == moved.len(), "{} slices, and {}", own.len(), moved.len());
            // Before the first operation and after the last, less is known.
            let shared = &played
                .trace()
                .rows("SELECT min(ts) AS first, max(ts + dur) AS last FROM slice WHERE category = 'run'")[0];
            let shared = shared.i64("first")..=shared.i64("last");
            for ((name, own), (its, moved)) in own.iter().zip(&moved).filter(|((_, own), _)| shared.contains(own)) {
                assert_eq!(name, its);
                let off = moved - self.reference(truth(*own));
                // What the truth is on a clock that drifts is rounded.
                assert!(off.abs() <= error + 2, "{name}: off by {off} ns, not {error}: {}", self.said);
            }
        }
        assert!(transfers > 20, "{transfers} transfers between hosts");
    }

    /// Asserts of a job with one process per host that the archive's offsets put each operation
    /// where it truly was, within the error that is stated for them.
    #[track_caller]
    fn check_archive(&self) {
        let (archive, said) = self.job.joined_as("job.tar");
        let worst = |line: &str| Some(nanoseconds(line.split_once(" off by ")?.1.split_once(" at worst")?.0));
        let errors: Vec<i64> = [0].into_iter().chain(said.lines().filter_map(worst)).collect();
        // The manifest comes first, after a header.
        let archive = std::fs::read(archive).expect("it was just written");
        let manifest = archive[512..].split(|byte| *byte == 0).next().expect("it is padded with zeros");
        let manifest: serde_json::Value = serde_json::from_slice(manifest).expect("JSON");
        let files = manifest["perfetto_manifest"]["files"].as_array().expect("files");
        let offsets: Vec<i64> = files.iter().map(|file| file["clocks"]["offset_ns"].as_i64().unwrap_or(0)).collect();
        assert_eq!((errors.len(), offsets.len()), (self.processes.len(), self.processes.len()), "{said}{manifest}");
        for (number, (offset, error)) in self.by_name.iter().zip(offsets.into_iter().zip(errors)) {
            let played = &self.processes[*number];
            let clocks = &played.process.clocks;
            let runs = played.trace().rows("SELECT ts FROM slice WHERE category = 'run'");
            assert!(!runs.is_empty());
            for own in runs.iter().map(|row| row.i64("ts")) {
                let truth = (0..3).fold(own, |truth, _| own - clocks.boot.at(truth - clocks.reference as i64));
                let off = own + offset - self.reference(truth);
                assert!(off.abs() <= error + 2, "in the archive: off by {off} ns, not {error}: {said}");
            }
        }
    }

    /// Asserts for each AllReduce that the trace is right about who came last, by how much, and
    /// how long each rank waited. Returns how many name a rank, and how many there are.
    #[track_caller]
    fn check_waits(&self) -> (usize, usize) {
        // When each rank truly began, by collective, and which collective has which mark.
        let of_rank = self.kernels(|it| it.function == "AllReduce");
        let begun = |kernels: &Kernels<'_>| -> Vec<i64> {
            kernels.all.iter().map(|kernel| self.reference(kernel.start as i64)).collect()
        };
        let begun: Vec<(i64, Vec<i64>)> = of_rank.iter().map(|(rank, kernels)| (*rank, begun(kernels))).collect();
        let lasts: Vec<i64> = (0..begun[0].1.len())
            .map(|number| begun.iter().map(|(_, begun)| begun[number]).max().unwrap_or_default())
            .collect();
        let last = self.trace.rows(
            "SELECT s.ts + s.dur AS ts, s.name, extract_arg(arg_set_id, 'nccl.last_rank') AS rank, extract_arg(arg_set_id, 'nccl.late_ns') \
             AS late, extract_arg(arg_set_id, 'nccl.time_error_ns') AS error, (SELECT operation FROM nccl_wait w WHERE w.label = 'world' AND \
             w.operations IS NULL AND w.end_ts - w.transfer = s.ts + s.dur) AS operation FROM slice s JOIN track t ON t.id = s.track_id WHERE \
             t.name = 'world · first to last rank' ORDER BY ts",
        );
        few_are_missing(last.len(), lasts.len());
        let mut named = 0;
        // Of the others the trace says that the clocks cannot tell.
        for row in last.iter().filter(|row| row.str("name").starts_with("rank ")) {
            // A rank whose wall clock was set may have come a second earlier, as far as the trace
            // knows, and still not have been the last.
            let number = of_rank.values().find_map(|kernels| kernels.place(row, &lasts)).expect("its operation");
            let mut came: Vec<(i64, i64)> = begun.iter().map(|(rank, begun)| (begun[number], *rank)).collect();
            came.sort_unstable();
            let [.., before, last] = came[..] else { panic!("one rank") };
            let (late, error) = (last.0 - before.0, row.i64("error"));
            assert_eq!(row.i64("rank"), last.1, "{number}, late by {late} ns: {}", self.said);
            let said = row.i64("late");
            assert!((said - late).abs() <= error, "{number}: {said} not {late} within {error}: {}", self.said);
            named += 1;
        }
        let all_waits = self.trace.rows(
            "SELECT rank, operation, end_ts - transfer - wait AS ts, wait, error FROM nccl_wait \
             WHERE label = 'world' AND operations IS NULL AND doubt IS NULL",
        );
        for (rank, begun_here) in &begun {
            let waits: Vec<_> = all_waits.iter().filter(|row| row.i64("rank") == *rank).collect();
            few_are_missing(waits.len(), begun_here.len());
            for row in &waits {
                let number = of_rank[rank].place(row, begun_here).expect("its operation");
                let (wait, error) = (lasts[number] - begun_here[number], row.i64("error"));
                let off = (row.i64("wait") - wait).abs();
                assert!(off <= error, "rank {rank}, {number}: off by {off} ns, not {error}: {}", self.said);
            }
        }
        (named, last.len())
    }

    /// For each rank, its kernels that carried only such operations.
    fn kernels(&self, is_one: fn(&Operation) -> bool) -> BTreeMap<i64, Kernels<'_>> {
        let of_rank = |played: &'_ Played| i64::from(played.process.ranks[0]);
        self.processes.iter().map(|played| (of_rank(played), Kernels::of(played, is_one))).collect()
    }

    /// Asserts for each kernel with sends and receives that the trace is right about how long it
    /// waited and for whom. Each of them must be the same one for all ranks. Returns how many waits
    /// name a rank, and how many kernels there are.
    #[track_caller]
    fn check_exchanges(&self) -> (usize, usize) {
        let of_rank = self.kernels(|it| it.function == "Send" || it.function == "Recv");
        let waits = self.trace.rows(
            "SELECT rank, operation, end_ts - transfer - wait AS ts, operations, wait, error FROM nccl_wait \
             WHERE label = 'world' AND operations IS NOT NULL",
        );
        // For whom each rank waited, by when it began to.
        let whom = self.trace.rows(
            "SELECT t.name AS track, s.ts, s.name FROM slice s JOIN track t ON t.id = s.track_id \
             WHERE s.category = 'job' AND s.name GLOB 'waits for rank *' AND t.name GLOB 'world · rank * · waits'",
        );
        let whom: HashMap<(String, i64), &str> =
            whom.iter().map(|row| ((row.str("track").to_owned(), row.i64("ts")), row.str("name"))).collect();
        let (mut named, mut all) = (0, 0);
        for (rank, kernels) in &of_rank {
            let track = format!("world · rank {rank} of {} · waits", of_rank.len());
            let rows: Vec<_> = waits.iter().filter(|row| row.i64("rank") == *rank).collect();
            few_are_missing(rows.len(), kernels.all.len());
            let starts: Vec<i64> = kernels.all.iter().map(|kernel| self.reference(kernel.start as i64)).collect();
            for row in &rows {
                let number = kernels.place(row, &starts).expect("its operation");
                let kernel = kernels.all[number];
                let apart = kernel.operations.iter().filter(|it| i64::from(it.root) != *rank);
                // Otherwise a peer's part is missing, and the trace says so.
                if row.i64("operations") < apart.clone().count() as i64 {
                    continue;
                }
                // When each peer that it may have waited for truly began.
                let peers =
                    apart.map(|it| (of_rank[&i64::from(it.root)].all[number].start, i64::from(it.root), &it.function));
                let came = peers.filter(|(start, _, function)| *function == "Recv" || *start < kernel.end);
                let (last, by, _) = came.max().unwrap_or((kernel.start, *rank, &kernel.operations[0].function));
                let wait = self.reference(last.max(kernel.start) as i64) - self.reference(kernel.start as i64);
                let (said, error) = (row.i64("wait"), row.i64("error"));
                assert!(
                    (said - wait).abs() <= error,
                    "rank {rank}, {number}: {said} not {wait} within {error}: {}",
                    self.said
                );
                if let Some(whom) = whom.get(&(track.clone(), row.i64("ts"))) {
                    assert_eq!(*whom, format!("waits for rank {by}"), "rank {rank}, {number}: {}", self.said);
                    named += 1;
                }
            }
            all += rows.len();
        }
        (named, all)
    }
}

/// Some kernels of a rank.
struct Kernels<'a> {
    /// In order of their starts.
    all: Vec<&'a Kernel>,
    /// The places of those that may have carried an operation, by its mark in the trace. Runs of a
    /// graph may share one.
    places: HashMap<String, Vec<usize>>,
}

impl<'a> Kernels<'a> {
    fn of(played: &'a Played, is_one: fn(&Operation) -> bool) -> Kernels<'a> {
        let mut all: Vec<&Kernel> = played.told_kernels().filter(|it| it.operations.iter().all(is_one)).collect();
        all.sort_by_key(|kernel| kernel.start);
        // The kernels of a graph's run have one launching call.
        let of_call = |call: i64| {
            let is_of_call =
                move |(place, kernel): (usize, &&Kernel)| (i64::from(kernel.correlation) == call).then_some(place);
            all.iter().enumerate().filter_map(is_of_call)
        };
        // An operation is drawn while its kernel runs. Times of a host whose wall clock is set say
        // little about which kernel that is.
        let mut places: HashMap<String, Vec<usize>> = HashMap::new();
        for row in played.trace().rows(
            "SELECT DISTINCT extract_arg(run.arg_set_id, 'correlation_id') AS operation, extract_arg(kernel.arg_set_id, 'nccl.correlation') \
             AS call FROM slice run JOIN slice kernel ON kernel.ts = run.ts AND kernel.dur = run.dur \
             WHERE run.category = 'run' AND kernel.category = 'kernel'",
        ) {
            let of_operation = places.entry(row.str("operation").to_owned()).or_default();
            of_operation.extend(of_call(row.i64("call")));
        }
        Kernels { all, places }
    }

    /// The place of the kernel that a row is about, by the operation and, if a graph ran it several
    /// times, by the nearest of these times.
    fn place(&self, row: &Row, times: &[i64]) -> Option<usize> {
        let places = self.places.get(row.str("operation"))?;
        places.iter().copied().min_by_key(|place| times[*place].abs_diff(row.i64("ts")))
    }
}

/// Where the wall clock is set, the times of a kernel may be doubtful, and it is not drawn with the
/// others.
#[track_caller]
fn few_are_missing(found: usize, of: usize) {
    assert!(found <= of && found + 1 + of / 8 >= of, "{found} of {of}");
}

/// A time with its unit, plus a little, because it is rounded.
fn nanoseconds(text: &str) -> i64 {
    let (number, unit) = text.split_once(' ').expect("a unit");
    let unit = match unit {
        "ns" => 1.0,
        "µs" => 1e3,
        "ms" => 1e6,
        _ => 1e9,
    };
    (number.parse::<f64>().expect("a number") * unit * 1.01) as i64
}

#[test]
fn clocks_that_are_hours_apart_and_drift_are_aligned_in_a_merged_trace() {
    let merged = Merged::of(
        r#"
title = "Three hosts with clocks of their own"
[job]
hosts = 3
ranks_per_host = 1
program = """
communicator world = all
broadcast 4 KiB f32 root 1 on world
reduce 4 KiB f32 sum root 2 on world
repeat 30 {
  all_reduce 1 KiB f32 sum on world
  wait world
  send_recv ring 1 KiB f32 on world
  wait world
  sleep 20 ms
}
capture step {
  all_reduce 1 KiB f32 sum on world
  all_reduce 1 KiB f32 sum on world
  wait world
}
replay step 5 times
sync
"""
[[host]]
index = 1
wall = { offset = "2 s", drift = "100 ppm" }
boot = { offset = "3600 s", drift = "100 ppm" }
[[host]]
index = 2
wall = { drift = "-60 ppm" }
boot = { offset = "500 s", drift = "-60 ppm" }
"#,
    );
    assert!(!merged.said.contains("contradict"), "{}", merged.said);
    merged.check_times();
    merged.check_archive();
    in_order_of_ranks(&merged.trace, 3);
    assert!(merged.errors.values().all(|error| *error < 1_000_000_000), "{}", merged.said);
}

#[test]
fn a_merged_trace_says_who_waited_for_whom() {
    let merged = Merged::of(
        r#"
title = "One rank computes longer, and the hosts' clocks are hours apart"
[job]
hosts = 2
ranks_per_host = 2
program = """
communicator world = all
repeat 20 {
  compute forward 1 ms
  all_reduce 1 KiB f32 sum on world
  wait world
}
capture step {
  compute forward 1 ms
  all_reduce 1 KiB f32 sum on world
  all_reduce 1 KiB f32 sum on world
  wait world
}
replay step 5 times
sync
"""
[[slow]]
rank = 2
compute = 20
[[host]]
index = 1
wall = { drift = "80 ppm" }
boot = { offset = "3600 s", drift = "80 ppm" }
"#,
    );
    merged.check_times();
    let (named, all) = merged.check_waits();
    assert_eq!(all, 30, "20 collectives, and 2 in each of 5 replays");
    assert!(named >= 20, "only {named} of 30 have a name, where rank 2 is 19 ms late");
    // By the sender's own clock, which is a little fast, and by the common one.
    let sends = merged.trace.rows(
        "SELECT count() AS n, sum(abs(w.network_wait - s.network_wait) <= 5000 + s.network_wait / 1000 \
         AND abs(ifnull(w.peer_wait, 0) - s.peer_wait) <= 5000 + s.peer_wait / 1000) AS alike \
         FROM nccl_wait w JOIN (SELECT upid, operation, sum(network_wait) AS network_wait, sum(peer_wait) AS peer_wait FROM nccl_step \
         WHERE direction = 'send' GROUP BY 1, 2) s USING (upid, operation) WHERE w.network_wait IS NOT NULL",
    );
    assert!(sends[0].i64("n") >= 40, "both hosts send in 20 eager collectives: {}", sends[0].i64("n"));
    assert_eq!(sends[0].i64("n"), sends[0].i64("alike"), "sends whose waits agree with their steps");
    let arrows = merged.trace.rows(
        "SELECT count() AS n, min(i.ts - o.ts) AS least FROM flow f JOIN slice o ON o.id = f.slice_out JOIN slice i ON i.id = f.slice_in \
         WHERE o.name = 'sent' AND i.name = 'arrived'",
    );
    assert!(arrows[0].i64("n") > 20 && arrows[0].i64("least") >= 0, "{} arrows", arrows[0].i64("n"));
}

#[test]
fn sixteen_ranks_on_four_hosts_say_whom_they_waited_for() {
    let merged = Merged::of(
        r#"
title = "Collectives, a ring and an all-to-all across four hosts; a slow rank, and wall clocks that are set"
[job]
hosts = 4
ranks_per_host = 4
program = """
communicator world = all
repeat 4 {
  compute forward 500 us
  all_reduce 1 KiB f32 sum on world
  wait world
  compute forward 500 us
  send_recv ring 1 KiB f32 on world
  wait world
  compute forward 500 us
  all_to_all 256 B f32 on world
  wait world
}
sync
sleep 1500 ms
repeat 12 {
  compute forward 500 us
  all_reduce 1 KiB f32 sum on world
  wait world
  compute forward 500 us
  send_recv ring 1 KiB f32 on world
  wait world
  compute forward 500 us
  all_to_all 256 B f32 on world
  wait world
}
sync
"""
[[slow]]
rank = 5
compute = 40
[[host]]
index = 1
wall = { offset = "2 s", drift = "60 ppm", steps = [{ after = "400 ms", by = "-30 ms" }] }
boot = { offset = "3600 s", drift = "60 ppm" }
[[host]]
index = 2
wall = { drift = "-90 ppm", steps = [{ after = "300 ms", by = "2 s" }, { after = "900 ms", by = "-2 s" }] }
boot = { offset = "500 s", drift = "-90 ppm" }
[[host]]
index = 3
boot = { offset = "1800 s" }
"#,
    );
    merged.check_times();
    // Within a second of a step of the wall clock, CUPTI's times say little: on a quiet machine the
    // first repetitions are about then, on a busy one none is. The others come later on any.
    let (named, all) = merged.check_waits();
    assert!(named >= 6, "{named} of {all} collectives have a name, where rank 5 is 20 ms late");
    let (named, all) = merged.check_exchanges();
    // In the ring, rank 6 receives from rank 5, and in the all-to-all everybody does.
    assert!(named >= 6 * 15, "{named} of {all} kernels say for whom they waited");
}

/// A job with 2 to 4 hosts with different clocks, in which a rank, a link, all hosts, or several
/// of these may be slow.
fn drawn(seed: u64) -> String {
    let dice = &mut Dice::new(seed);
    let hosts = 2 + dice.below(3);
    let each = *dice.one_of(&[1, 2, 4, 4]);
    let mut text =
        format!("title = \"seed {seed}\"\n[job]\nhosts = {hosts}\nranks_per_host = {each}\nprogram = \"\"\"\n");
    let _ = write!(text, "communicator world = all\nrepeat {} {{\n  compute forward 500 us\n", 15 + dice.below(25));
    let _ = write!(text, "  all_reduce {} KiB f32 sum on world\n  wait world\n", dice.one_of(&[1, 1, 16, 128]));
    if dice.percent(50) {
        text.push_str("  send_recv ring 1 KiB f32 on world\n  wait world\n");
    }
    if dice.percent(40) {
        let _ = writeln!(text, "  all_to_all {} B f32 on world\n  wait world", dice.one_of(&[64, 1024, 16384]));
    }
    if dice.percent(40) {
        let _ = writeln!(text, "  sync\n  sleep {} ms", 1 + dice.below(20));
    }
    text.push_str("}\nsync\n\"\"\"\n");
    if dice.percent(50) {
        let (rank, compute) = (dice.below(hosts * each), 2 + dice.below(20));
        let _ = writeln!(text, "[[slow]]\nrank = {rank}\ncompute = {compute}");
    }
    if dice.percent(40) {
        let from = dice.below(hosts);
        let to = (from + 1) % hosts;
        let _ = writeln!(
            text,
            "[network]\nkind = \"plugin\"\nbandwidth = \"2 GB/s\"\nlatency = \"20 us\"\n[[route]]\nfrom = {from}\nto = {to}\n\
             bandwidth = \"100 MB/s\"\nlatency = \"{} us\"",
            50 + dice.below(500)
        );
    }
    for index in 0..hosts {
        // Files of one boot less than a minute apart are taken for one clock's, and all hosts here
        // have one boot.
        let (drift, offset) = (dice.below(201) as i64 - 100, 900 * index + dice.below(801));
        let step = dice.percent(30).then(|| {
            let (after, by) = (dice.below(1500), dice.below(4000) as i64 - 2000);
            format!(", steps = [{{ after = \"{after} ms\", by = \"{by} ms\" }}]")
        });
        let step = step.unwrap_or_default();
        let _ = writeln!(
            text,
            "[[host]]\nindex = {index}\nwall = {{ drift = \"{drift} ppm\"{step} }}\nboot = {{ offset = \"{offset} s\", drift = \"{drift} ppm\" }}"
        );
    }
    text
}

#[track_caller]
fn check(jobs: u64) {
    let seed = std::env::var("CLOCKS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(777_000);
    for seed in seed..seed + jobs {
        println!("CLOCKS_SEED={seed}\n{}", drawn(seed));
        let merged = Merged::of(&drawn(seed));
        merged.check_times();
        let ((named, all), (whom, kernels)) = (merged.check_waits(), merged.check_exchanges());
        let worst = merged.errors.values().max().copied().unwrap_or_default();
        println!(
            "seed {seed}: clocks to {worst} ns, {named} of {all} collectives say who was last, and {whom} of {kernels} \
             kernels with sends and receives for whom they waited"
        );
    }
}

#[test]
fn a_random_job_is_drawn_when_it_truly_ran() {
    check(1);
}

#[test]
#[ignore = "cargo xtask e2e --all"]
fn forty_random_jobs_are_drawn_when_they_truly_ran() {
    check(40);
}
