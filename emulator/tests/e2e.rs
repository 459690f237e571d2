//! The real NCCL on emulated GPUs, with the plugin loaded: its trace is compared with the truth.
//!
//! `cargo xtask e2e` fetches the libraries and runs these tests with the releases that every
//! change is tested with; `--all` runs them with all releases. A test's name begins with its
//! release.

use ncclscope_tests::fault;
use ncclscope_tests::recording::assert_sound;
use std::collections::BTreeSet;

use crate::support::{Job, Plan, Tool, plugin_said};

/// Each collective once, and sends and receives, in three layouts: one process per rank, one
/// thread per rank, and one thread for several GPUs.
fn every_operation(nccl: &str) {
    for scenario in ["small", "threads", "devices"] {
        Plan::new(nccl, scenario).run().succeeded().check();
    }
}

/// A program closes the trace's descriptor, and opens its own file under that number.
fn descriptor_taken_over(nccl: &str) {
    let case = fault::case(
        "files",
        "under the real NCCL, on emulated GPUs: a program closes the trace's descriptor and opens its own file under that number",
        "not one byte goes into it; the trace agrees with the truth",
    );
    let (folder, program) = ncclscope_tests::play::compile("program.c");
    let checkpoint = folder.path().join("checkpoint");
    let [program, file] = [&program, &checkpoint].map(|path| path.to_str().unwrap());
    let plan = Plan::new(nccl, "small").with("LD_PRELOAD", program).with("CHECKPOINT", file).with("TAKE_OVER", "1");
    plan.run().succeeded().check();
    assert_eq!(std::fs::read_to_string(checkpoint).unwrap(), "", "the program's own");
    case.survived(1);
}

/// A job with `program.c` loaded into its processes, which does what these variables say.
fn disturbed(nccl: &str, scenario: &str, deeds: &[(&str, &str)]) -> Disturbed {
    let (folder, program) = ncclscope_tests::play::compile("program.c");
    let checkpoint = folder.path().join("checkpoint");
    let plan = Plan::new(nccl, scenario).with("LD_PRELOAD", program.to_str().unwrap());
    let plan = plan.with("CHECKPOINT", checkpoint.to_str().unwrap());
    let job = deeds.iter().fold(plan, |plan, (name, value)| plan.with(name, value)).run().succeeded();
    let reported = std::fs::read_to_string(&checkpoint).unwrap_or_default();
    let reports = reported.lines().map(|line| {
        let words: Vec<_> = line.split(' ').collect();
        (words[0].to_owned(), words[1].parse().unwrap(), words[2].parse().unwrap())
    });
    Disturbed { reports: reports.collect(), job }
}

/// How the job ended.
struct Disturbed {
    /// The program's reports: the kind, a count, and how many of those were bad.
    reports: Vec<(String, u64, u64)>,
    job: Job,
}

/// Processes fork children while their first `init` runs, and a moment later. Each child uses the
/// library.
fn children_in_init(nccl: &str) {
    let case = fault::case(
        "processes",
        "under the real NCCL, on emulated GPUs: children forked while the first `init` creates its file, and after it; \
         each uses the plugin",
        "every child ends and says that it is not recorded; the traces agree with the truth",
    );
    let Disturbed { reports, job } = disturbed(nccl, "small", &[("FORK_IN_INIT", "1")]);
    // In both processes, ten while the file is created, and three times ten after that.
    assert_eq!(reports, vec![("children".to_owned(), 10, 0); 8], "{}", job.logs());
    job.check();
    let told = plugin_said(&job).iter().filter(|line| line.contains("forked after ncclscope had begun")).count();
    assert_eq!(told, 80, "each child says that it is not recorded");
    case.survived(80);
}

/// A thread is cancelled in its own `init`, where it waits for another one that is running. It
/// ends later, inside NCCL.
fn cancelled_in_init(nccl: &str) {
    let case = fault::case(
        "threads",
        "under the real NCCL, on emulated GPUs: a thread in `ncclCommInitRank` is cancelled while it waits in our `init`",
        "that `init` completes and is recorded, then NCCL ends the thread; the traces agree with the truth",
    );
    let Disturbed { reports, job } = disturbed(nccl, "small", &[("CANCEL_IN_INIT", "1")]);
    // In both processes the cancellation was held back during `init`, and took effect later.
    assert_eq!(reports, vec![("cancelled".to_owned(), 1, 0); 2], "{}", job.logs());
    for played in job.check() {
        assert_eq!(played.count("name = 'communicator init'"), 2, "its own is recorded too");
        assert_eq!(played.count("name = 'communicator finalize'"), 1);
        assert_eq!(played.count("name = 'recording ended'"), 1);
    }
    case.survived(2);
}

/// The job uses at most 200 MiB more address space than without the plugin.
fn few_addresses(nccl: &str) {
    let case = fault::case(
        "memory",
        "under the real NCCL, on emulated GPUs: `RLIMIT_AS` 200 MiB above the job's peak without us",
        "everything is recorded and agrees with the truth",
    );
    // Otherwise each thread that allocates may or may not reserve 64 MiB more.
    let arenas = ("MALLOC_ARENA_MAX", "2");
    let alone = disturbed(nccl, "small", &[arenas, ("REPORT_PEAK", "1"), ("NCCLSCOPE_ENABLE", "0")]);
    assert_eq!(plugin_said(&alone.job), [""; 0]);
    let peak = alone.reports.iter().map(|report| report.1).max().unwrap();
    let limit = (peak + (200 << 10)).to_string();
    let Disturbed { reports, job } =
        disturbed(nccl, "small", &[arenas, ("ADDRESS_LIMIT_KIB", &limit), ("REPORT_PEAK", "1")]);
    println!("{peak} KiB alone, {reports:?} with the recording");
    job.check();
    case.survived(2);
}

/// Everything in one job: groups, splits, communicators that come and go, rings and trees.
fn mixed(nccl: &str) {
    Plan::new(nccl, "mixed").run().succeeded().check();
}

/// Simple and LL, ring and tree.
fn protocols(nccl: &str) {
    Plan::new(nccl, "protocols").run().succeeded().check();
}

/// Graphs that are captured once and launched many times, between launches outside of graphs.
fn graphs(nccl: &str) {
    Plan::new(nccl, "graphs").run().succeeded().check();
}

/// The demo's scenario.
fn training(nccl: &str) {
    Plan::new(nccl, "training").run().succeeded().check();
}

/// Hosts whose clocks are off, drift and step.
fn clock_drift(nccl: &str) {
    Plan::new(nccl, "clock_drift").run().succeeded().check();
}

/// Every kernel is in the trace, at its true time, with the operations that it carried.
fn kernels(nccl: &str) {
    for scenario in ["small", "graphs", "mixed"] {
        let job = Plan::new(nccl, scenario).with_cupti("13.0").run().succeeded();
        // While a graph exists, NCCL hands over sends in another order than they are called in.
        assert_eq!(said(&job, "mismatch"), [""; 0], "{scenario}");
        let verdicts = said(&job, "verdict");
        // Where a busy machine lets a job stand still for seconds, CUPTI is flushed by force.
        let is_right = |verdict: &String| {
            let flushed = "with reservations: GPU kernels: ";
            verdict.starts_with("trusted: ") || verdict.starts_with(flushed) && verdict.ends_with(" flushed by force")
        };
        let processes = job.processes();
        assert_eq!(verdicts.len(), processes.len(), "{scenario}: {verdicts:?}");
        assert!(verdicts.iter().all(is_right), "{scenario}: {verdicts:?}");
        for played in processes {
            played.check_kernels();
            played.check_runs();
            played.check_launch_times();
            played.check_arrows();
            let several = played.check_calls_of_launches();
            // KernelLaunch came with 2.28.
            assert!(scenario == "graphs" || played.minor() < 228 || several > 0, "{scenario}: no group has arrows");
            played.check_outstanding();
        }
    }
}

/// A job that runs a program on one host with two GPUs, with CUPTI.
#[track_caller]
fn of_two(nccl: &str, program: &str) -> crate::support::Job {
    let text = format!("title = \"Of two\"\n[job]\nhosts = 1\nranks_per_host = 2\nprogram = \"\"\"\n{program}\"\"\"\n");
    Plan::of_text(nccl, &text).with_cupti("13.0").run().succeeded()
}

/// The lines of `ncclscope info` on its traces that begin with `what`.
fn said(job: &crate::support::Job, what: &str) -> Vec<String> {
    job.info().lines().filter_map(|line| Some(line.trim().strip_prefix(what)?.trim().to_owned())).collect()
}

/// A group of more operations than there are lanes. Each operation has its hand-over, and its run
/// with an arrow.
fn large_groups(nccl: &str) {
    let operation = "    all_reduce 1 KiB f32 sum on world\n".repeat(200);
    let group = format!("  group {{\n{operation}  }}\n  wait world\n");
    let job = of_two(nccl, &format!("communicator world = all\nrepeat 2 {{\n{group}}}\nsync\n"));
    for played in job.processes() {
        for category in ["operation", "run"] {
            let rows = played.trace().rows(&format!(
                "SELECT count(DISTINCT extract_arg(arg_set_id, 'nccl.seq')) AS numbers, count() AS slices, \
                 sum(id IN (SELECT slice_in FROM flow UNION SELECT slice_out FROM flow)) AS arrows FROM slice \
                 WHERE category = '{category}' AND extract_arg(arg_set_id, 'nccl.function') = 'AllReduce'"
            ));
            assert_eq!(["numbers", "slices", "arrows"].map(|it| rows[0].i64(it)), [400; 3], "{category}");
        }
    }
    let counted = said(&job, "operations");
    assert!(
        counted.len() == 2 && counted.iter().all(|it| it.ends_with("AllReduce: 400, 400 KiB in all")),
        "{counted:?}"
    );
}

/// Operations are counted as often as they ran, even if NCCL does not hand over a graph's replays
/// on a rank.
fn counted_replays(nccl: &str) {
    let operation = "  all_reduce 4 KiB f32 sum on world\n";
    let eager = format!("communicator world = all\nrepeat 5 {{\n{operation}}}\n");
    let graph = format!("capture step {{\n{operation}  wait world\n}}\nreplay step 126 times\nsync\n");
    let counted = said(&of_two(nccl, &(eager + &graph)), "operations");
    assert!(
        counted.len() == 2 && counted.iter().all(|it| it.contains("AllReduce: 131, 524 KiB in all")),
        "{counted:?}"
    );
}

/// If channels were not asked for, the trace reports them as missing, with the reason.
fn refused_channels(nccl: &str) {
    let job = Plan::new(nccl, "small").run().succeeded();
    let processes = job.processes();
    for played in &processes {
        let rows = played.trace().rows(
            "SELECT extract_arg(arg_set_id, 'nccl.note') AS note FROM slice WHERE name = 'no GPU time per channel'",
        );
        assert_eq!(rows.len(), 1);
        assert!(rows[0].str("note").starts_with("NCCL 2.29 and 2.30 can hang when asked for it"));
    }
    let noted = said(&job, "note");
    let noted = noted.iter().filter(|note| note.starts_with("no GPU time per channel: NCCL 2.29")).count();
    assert_eq!(noted, processes.len());
}

/// The same with the file of another tool that held CUPTI, merged with ours, whether its clock is
/// ahead or behind.
fn kernels_of_another_tool(nccl: &str) {
    for (scenario, ahead) in [("small", 0), ("groups", 4_000_000), ("all_to_all", -900_000)] {
        let job = Plan::new(nccl, scenario).with("NCCLSCOPE_CUPTI", "0").run().succeeded();
        for tool in [Tool::Kineto, Tool::Nsight] {
            for played in job.joined_with(tool, ahead, &|_| ()).processes {
                played.check_kernels();
                played.check_steps();
            }
        }
    }
}

/// The same with graphs: each of their kernels is matched by the order of capture, and to its
/// replay. It is tested with and without channel events, with which NCCL hands over every replay
/// that it would otherwise hand over only once.
fn graphs_of_another_tool(nccl: &str) {
    for (scenario, channels) in [("graphs", "0"), ("graphs", "1"), ("training", "0"), ("training", "1")] {
        let plan = Plan::new(nccl, scenario).with("NCCLSCOPE_CUPTI", "0").with("NCCLSCOPE_KERNEL_CH", channels);
        let job = plan.run().succeeded();
        for tool in [Tool::Kineto, Tool::Nsight] {
            let beside = job.joined_with(tool, 2_000_000, &|_| ());
            let verdict = &beside.verdict;
            let said = verdict.examples.join("\n");
            let wrong = (verdict.all_wrong(), verdict.other_run, verdict.all_unmatched());
            assert_eq!(wrong, (0, 0, 0), "{scenario}, {tool:?}: {said}");
            assert!(verdict.right.contains_key("inferred_capture_order"), "{scenario}, {tool:?}: {:?}", verdict.right);
            for played in beside.processes {
                played.check_kernels();
                played.check_steps();
            }
        }
    }
}

/// A job that runs a program on `hosts` hosts with `ranks` GPUs each, and leaves CUPTI to another
/// tool; `channels` is whether NCCL is asked for channels.
#[track_caller]
fn left_to_another_tool(hosts: u32, ranks: u32, channels: &str, program: &str) -> crate::support::Job {
    // A few launches outside of graphs, from which the clocks' offset is found.
    let text = format!(
        "title = \"graphs\"\n[job]\nhosts = {hosts}\nranks_per_host = {ranks}\nprogram = \"\"\"\ncommunicator world = all\n\
         repeat 8 {{\n  all_reduce 16 KiB f32 sum on world\n  wait world\n}}\nsync\n{program}\nsync\n\"\"\"\n\
         [nccl]\nNCCL_ALLGATHERV_ENABLE = \"0\"\n"
    );
    let plan = Plan::of_text("2.30.7", &text).with("NCCLSCOPE_CUPTI", "0");
    plan.with("NCCLSCOPE_KERNEL_CH", channels).run().succeeded()
}

/// Two graphs without any difference that the other tool could see.
const TWINS: [&str; 2] = [
    "capture one {\n  compute forward 200 us\n  all_reduce 128 KiB f32 sum on world\n  wait world\n}\n",
    "capture two {\n  compute forward 200 us\n  all_reduce 64 KiB f32 sum on world\n  wait world\n}\n",
];
const IN_TURN: &str = "repeat 5 {\n  replay one\n  replay two\n}\n";
const SEVERAL: &str = "several captures could be its graph's, or several graphs of its capture";
const NO_CAPTURE: &str = "no capture in the trace has the launches of its graph, in their order";

/// The kernels of graphs: how many are matched, and how many unmatched by reason. Asserts that
/// none is matched wrongly.
#[track_caller]
fn of_graphs(beside: &crate::support::Beside) -> (u64, Vec<(&str, u64)>) {
    let verdict = &beside.verdict;
    assert_eq!((verdict.all_wrong(), verdict.other_run), (0, 0), "{}", verdict.examples.join("\n"));
    beside.processes.iter().for_each(crate::support::Played::check_sizes);
    for (reason, count) in &verdict.unmatched {
        assert!(beside.said.contains(&format!(" unmatched: {reason}\n")), "{count} {reason}: {}", beside.said);
    }
    let matched = verdict.right.get("inferred_capture_order").copied().unwrap_or_default();
    (matched, verdict.unmatched.iter().map(|(reason, count)| (reason.as_str(), *count)).collect())
}

#[test]
fn graphs_that_look_alike_are_told_apart_by_hand_overs_or_not_at_all() {
    let [one, two] = TWINS;
    let program = format!("{one}{two}{IN_TURN}");
    // Over the network, and where it reports channels, NCCL hands over each replay.
    for (hosts, ranks, channels) in [(2, 1, "0"), (1, 2, "1")] {
        let job = left_to_another_tool(hosts, ranks, channels, &program);
        assert_eq!(of_graphs(&job.joined_with_another_tool(700_000, &|_| ())), (20, vec![]), "{hosts} hosts");
    }
    let job = left_to_another_tool(1, 2, "0", &program);
    assert_eq!(of_graphs(&job.joined_with_another_tool(700_000, &|_| ())), (0, vec![(SEVERAL, 20)]));
    // If the second is captured after the first has run, the order in time shows which is which.
    let job = left_to_another_tool(1, 2, "0", &format!("{one}replay one 2 times\nsync\n{two}{IN_TURN}"));
    assert_eq!(of_graphs(&job.joined_with_another_tool(-700_000, &|_| ())), (24, vec![]));
    // Without the calls that make graphs, captures look like consecutive launches: here one or two
    // of them.
    let without = |events: &mut Vec<String>| events.retain(|it| !it.contains("Capture") && !it.contains("Instantiate"));
    assert_eq!(of_graphs(&job.joined_with_another_tool(-700_000, &without)), (0, vec![(SEVERAL, 24)]));
}

#[test]
fn graphs_missing_from_the_other_file_leave_their_kernels_unmatched() {
    let program = "capture one {\n  all_reduce 128 KiB f32 sum on world\n  all_gather 64 KiB bf16 on world\n  wait world\n}\n\
                   capture two {\n  compute forward 200 us\n  all_reduce 64 KiB f16 sum on world\n  wait world\n}\n";
    let job = left_to_another_tool(2, 1, "0", &format!("{program}{IN_TURN}"));
    let joined = |edit: &dyn Fn(&mut Vec<String>)| job.joined_with_another_tool(300_000, edit);
    assert_eq!(of_graphs(&joined(&|_| ())), (30, vec![]));

    let nodes = |events: &mut Vec<String>| {
        for event in events {
            if let Some((before, _)) = event.split_once(", \"graph node id\"") {
                *event = format!("{before}}}}}");
            }
        }
    };
    assert_eq!(of_graphs_by_call(&joined(&nodes)), [("the file does not say from which node of its graph it ran", 30)]);

    // The all-gather's records are missing, and the node with them.
    let missing =
        |events: &mut Vec<String>| events.retain(|it| !(it.contains("AllGather") && it.contains("graph node")));
    let beside = joined(&missing);
    assert_eq!(beside.verdict.missing, 10);
    assert_eq!(of_graphs(&beside), (10, vec![(NO_CAPTURE, 10)]));

    // From the third replay on, one node runs another kernel.
    let changed = |events: &mut Vec<String>| {
        let gathers = events.iter_mut().filter(|it| it.contains("AllGather"));
        gathers.skip(2).for_each(|it| *it = it.replace("AllGather", "ReduceScatter"));
    };
    let reason = "its graph may have been updated, so that its nodes are not those captured";
    assert_eq!(of_graphs(&joined(&changed)), (10, vec![(reason, 20)]));
    let updated = |events: &mut Vec<String>| {
        let instantiated = events.iter().find(|it| it.contains("Instantiate")).expect("there are two").clone();
        events.push(instantiated.replace("cudaGraphInstantiateWithFlags", "cudaGraphExecUpdate"));
    };
    assert_eq!(of_graphs(&joined(&updated)), (0, vec![(reason, 30)]));

    // The file has a capture with two kernels more than the launches in our trace.
    let names = |events: &mut Vec<String>| {
        for event in events.iter_mut().filter(|it| it.contains("graph node id")) {
            *event = event.replace("AllReduce_Sum_f16", "AllReduce_Sum_f32");
        }
    };
    assert_eq!(of_graphs(&joined(&names)), (20, vec![(NO_CAPTURE, 10)]));
}

#[test]
fn graphs_of_several_gpus_in_one_process_are_never_confused() {
    for scenario in ["devices", "threads"] {
        let job = Plan::new("2.30.7", scenario).with("NCCLSCOPE_CUPTI", "0").run().succeeded();
        let beside = job.joined_with_another_tool(0, &|_| ());
        let graphs =
            beside.processes.iter().flat_map(|played| played.told_kernels()).filter(|it| it.graph.is_some()).count();
        let (matched, unmatched) = of_graphs(&beside);
        // They are captured alike, and neither file says which GPU a capture belongs to. Threads
        // may capture one after the other.
        let left: u64 = unmatched.iter().filter(|(reason, _)| *reason == SEVERAL).map(|(_, count)| *count).sum();
        assert_eq!(matched + left, graphs as u64, "{scenario}: {unmatched:?}");
        assert!(matched == 0 || scenario == "threads", "{matched}");
    }
}

/// The unmatched kernels, for files without the node numbers that identify kernels in the truth.
fn of_graphs_by_call(beside: &crate::support::Beside) -> Vec<(&str, u64)> {
    let mut unmatched: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
    for line in beside.said.lines() {
        if let Some((count, reason)) = line.trim().split_once(" unmatched: ") {
            *unmatched.entry(reason).or_default() += count.parse::<u64>().unwrap();
        }
    }
    unmatched.into_iter().collect()
}

#[test]
fn replays_seen_by_a_tool_that_began_late_are_known_only_if_nccl_reports_them() {
    let capture = "capture one {\n  compute forward 200 us\n  all_reduce 128 KiB f32 sum on world\n  wait world\n}\n";
    let program =
        format!("{capture}repeat 9 {{\n  replay one\n  all_reduce 32 KiB f32 sum on world\n  wait world\n  sync\n}}");
    let time = |event: &str| -> f64 {
        let (_, rest) = event.split_once("\"ts\": ").expect("each has a time");
        rest.split(',').next().and_then(|time| time.parse().ok()).expect("it is a number")
    };
    let late = |events: &mut Vec<String>| {
        let launches = events.iter().filter(|it| it.contains("GraphLaunch"));
        let fourth = launches.map(|it| time(it)).nth(3).expect("there are nine");
        events.retain(|it| time(it) >= fourth);
    };
    let replays = |beside: &crate::support::Beside| -> Vec<i64> {
        let of = |played: &crate::support::Played| {
            let rows = played.trace().rows(
                "SELECT extract_arg(arg_set_id, 'nccl.replay') AS replay FROM slice WHERE category = 'kernel' AND \
                 extract_arg(arg_set_id, 'nccl.match') = 'inferred_capture_order' ORDER BY ts",
            );
            rows.iter().map(|row| if row.is_null("replay") { 0 } else { row.i64("replay") }).collect::<Vec<_>>()
        };
        let all: Vec<Vec<i64>> = beside.processes.iter().map(of).collect();
        assert_eq!(all[0], all[1]);
        all[0].clone()
    };
    // Over the network.
    let job = left_to_another_tool(2, 1, "0", &program);
    let beside = job.joined_with_another_tool(0, &late);
    assert_eq!(of_graphs(&beside), (12, vec![]));
    assert_eq!(replays(&beside), [4, 5, 6, 7, 8, 9]);
    // Within a host nothing shows it, and all replays carry the same.
    let job = left_to_another_tool(1, 2, "0", &program);
    let beside = job.joined_with_another_tool(0, &late);
    assert_eq!(of_graphs(&beside), (12, vec![]));
    assert_eq!(replays(&beside), [0; 6]);
    let beside = job.joined_with_another_tool(0, &|_| ());
    assert_eq!(replays(&beside), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    // And if our trace begins after the capture, it does not know what was captured.
    job.cut_traces();
    let beside = job.joined_with_another_tool(0, &|_| ());
    assert_eq!(
        of_graphs(&beside),
        (0, vec![("its launch was not seen", 16), ("no capture is known behind its node", 18)])
    );
}

/// The same with the plugin injected into CUDA, from the same file and from a copy.
fn injected(nccl: &str) {
    let plugin = ncclscope_tests::play::plugin_path().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.so");
    std::fs::copy(&plugin, &copy).unwrap();
    for library in [&plugin, &copy] {
        let plan = Plan::new(nccl, "graphs").with("CUDA_INJECTION64_PATH", library.to_str().unwrap());
        // Up to 2.30 NCCL confuses the stamps of different replays, which the trace reports as a
        // doubt.
        let plan = plan.with("NCCLSCOPE_KERNEL_CH", "0");
        for played in plan.with_cupti("13.0").run().succeeded().processes() {
            played.check();
            played.check_kernels();
        }
    }
}

/// A capture of what a recording read reproduces its trace byte for byte: kernels, channels and
/// graphs, calls into CUDA, CUPTI on a foreign clock.
fn captures(nccl: &str) {
    for (scenario, words, more) in [
        ("small", "clock=ticks@1ms", "NCCLSCOPE_NVTX"),
        ("graphs", "", "NCCLSCOPE_CUDA_API"),
        ("training", "drop=5%", "NCCLSCOPE_CUDA_API"),
    ] {
        let plan = Plan::new(nccl, scenario).with("NCCLSCOPE_CAPTURE", "1").with(more, "1");
        let job = plan.with_cupti("13.0").misbehaving(words).run().succeeded();
        assert_eq!(job.check_captures(), job.processes().len(), "one each");
    }
}

/// The same with several GPUs in one process, and with CUPTI of another release.
fn kernels_of_several_gpus(nccl: &str) {
    for (scenario, cupti) in [("threads", "12.9"), ("devices", "13.5")] {
        let job = Plan::new(nccl, scenario).with("NCCLSCOPE_RANK", "5").with_cupti(cupti).run().succeeded();
        for played in job.processes() {
            played.check_kernels();
            crate::support::in_order_of_ranks(played.trace(), 2);
        }
    }
}

/// Up to 2.27 NCCL does not report launches: kernels are matched by the order on their thread, or
/// not at all, and never wrongly.
fn kernels_by_order(nccl: &str) {
    for played in Plan::new(nccl, "small").with_cupti("12.9").run().succeeded().processes() {
        played.check_kernels();
        let inferred = played.count("category = 'kernel' AND name GLOB 'All*'");
        assert!(inferred > 0, "no kernel was matched");
    }
}

/// Runs a job whose CUPTI belongs to somebody else. Asserts that it ran undisturbed and that no
/// trace has a kernel. Returns the reason, which the trace and one line of each process that has a
/// trace give.
#[track_caller]
fn without_kernels(nccl: &str, misbehaviour: &str) -> String {
    let job = Plan::new(nccl, "small").with_cupti("13.0").misbehaving(misbehaviour).run().succeeded();
    let mut reasons = BTreeSet::new();
    let processes = job.processes();
    for played in &processes {
        played.check();
        assert_eq!(played.count("category = 'kernel'"), 0, "kernels of a CUPTI that was not ours");
        reasons.insert(played.why_no_kernels());
    }
    let lines: Vec<_> = plugin_said(&job).into_iter().filter(|line| line.starts_with("recording to ")).collect();
    let [reason] = &reasons.into_iter().collect::<Vec<_>>()[..] else { panic!("several reasons: {lines:?}") };
    assert!(lines.len() == 1 && lines[0].ends_with(&format!("; GPU kernels: no, {reason}")), "{lines:?}");
    reason.clone()
}

/// Tools that hold CUPTI before us: for the whole job, as Nsight Systems does, or for a while, as
/// Kineto does.
fn cupti_of_others(nccl: &str) {
    let why = without_kernels(nccl, "taken=Nsight Systems");
    assert!(why.contains("CUPTI can have only one owner") && why.contains("Nsight Systems"), "{why}");
    let why = without_kernels(nccl, "taken=Kineto,taken-for=300ms");
    assert!(why.contains("CUPTI can have only one owner") && why.contains("Kineto"), "{why}");
}

/// Layers that replace CUPTI with their own, for GPUs of another machine.
fn cupti_of_a_shim(nccl: &str) {
    for (misbehaviour, says) in [("refuse=27", "NOT_SUPPORTED"), ("refuse=999", "UNKNOWN")] {
        let why = without_kernels(nccl, misbehaviour);
        assert!(why.contains(says), "{misbehaviour}: {why}");
    }
}

/// A tool that comes after us, as torch.profiler does: it is refused, or it registers its own
/// clock with CUPTI, and our kernels stay.
fn cupti_wanted_by_others(nccl: &str) {
    let rival = "rival=Kineto@1ms";
    let job = Plan::new(nccl, "small").with_cupti("13.0").misbehaving(rival).run().succeeded();
    let processes = job.processes();
    processes.iter().for_each(crate::support::Played::check_kernels);
    let refused = job.logs().matches("emulated CUPTI: Kineto asked to subscribe: 39").count();
    assert_eq!(refused, processes.len(), "it asked in each process");

    let job = Plan::new(nccl, "training").with_cupti("13.0").misbehaving("clock=ticks@200ms").run().succeeded();
    let processes = job.processes();
    assert!(plugin_said(&job).iter().any(|line| line.contains("CUPTI's time is not the wall clock")));
    for played in processes {
        let says_so = played.count("name = 'CUPTI clock'");
        assert!(says_so > 0, "the trace says that the clock is another");
    }
}

/// Hosts on the emulator's own network, which reports each request to the profiler.
fn network(nccl: &str) {
    for played in Plan::new(nccl, "network").run().succeeded().processes() {
        played.check_transfers();
    }
}

/// Collectives done by copy engines: called, synchronised, copied.
fn copy_engine(nccl: &str) {
    let job = Plan::new(nccl, "copy_engine").with_cupti("13.0").run().succeeded();
    job.processes().iter().for_each(crate::support::Played::check_copy_engine);
}

/// Rank 0 waits in an operation that is aborted: in the trace it ends with its communicator, and it
/// alone.
fn abort(nccl: &str) {
    let job = Plan::new(nccl, "abort").run().succeeded();
    for played in job.processes() {
        let handed_over = |size: &str| {
            played.count(&format!("category = 'operation' AND slice.name = 'AllReduce {size} f32' AND dur >= 0"))
        };
        let is_waiting = i64::from(played.process.ranks[0] == 0);
        assert_eq!((handed_over("256 KiB"), handed_over("4 MiB")), (3, is_waiting));
        assert_sound(played.trace(), 0);
        // NCCL stops polling a communicator that is aborted: channels of its last kernels have no
        // end, either.
        let cut = played.trace().rows(
            "SELECT name FROM slice WHERE EXTRACT_ARG(arg_set_id, 'nccl.doubt') = 'its communicator was finalized' \
             AND category != 'gpu' AND parent_id IS NULL",
        );
        assert_eq!(!cut.is_empty(), is_waiting == 1, "{cut:?}");
        // No other operation has this size.
        assert!(cut.iter().all(|row| row.str("name").contains("AllReduce 4 MiB f32")), "{cut:?}");
    }
}

/// A rank stops calling, and the job is killed: the trace is complete up to its last second.
fn hang(nccl: &str) {
    let job = Plan::new(nccl, "hang").run().succeeded();
    let open: i64 = job.processes().iter().map(|played| played.count("dur < 0")).sum();
    assert!(open > 0, "a job that hangs leaves something open");
    check_who_is_missed(&job);
    job.processes().iter().for_each(check_service_threads);
}

/// NCCL's service and UDS threads are found although nobody named them, and only they.
fn check_service_threads(played: &crate::support::Played) {
    let found = played.trace().rows(
        "SELECT track.name, group_concat(DISTINCT slice.name) AS does \
         FROM slice JOIN track ON slice.track_id = track.id WHERE track.name GLOB 'seen ?*' GROUP BY track.id",
    );
    assert_eq!(found.len(), 2, "{found:?}");
    for row in found {
        assert!(row.str("name").starts_with("seen · NCCL service, probably ("), "{row:?}");
        assert!(row.str("does").contains("in poll"), "{row:?}");
    }
}

/// Rank 1 is missing from the fourth AllReduce.
fn check_who_is_missed(job: &Job) {
    let said = job.info();
    let first = said.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("hang          AllReduce 1 MiB f32, seq 3 on world: 1 of 2 ranks have come and waited "),
        "{said}"
    );
    let last = first.split_once(" missing: 1 (last seen: AllReduce 1 MiB f32, seq 2, ").map(|(_, last)| last);
    assert!(last.is_some_and(|last| last.ends_with(" s before the end)") && !last.contains(',')), "{said}");
}

/// The same between the GPUs of one host, where no proxy works: all that is known is that its
/// kernel does not end.
fn hang_on_one_host(nccl: &str) {
    let text = include_str!("../scenarios/hang.toml")
        .replace("hosts = 2\nranks_per_host = 1", "hosts = 1\nranks_per_host = 2");
    let plan = Plan::of_text(nccl, &text).with("NCCLSCOPE_PRESET", "standard").with_cupti("13.0");
    let job = plan.run().succeeded();
    let hung = |played: &crate::support::Played| {
        let open = "SELECT extract_arg(arg_set_id, 'nccl.seq') AS seq FROM slice WHERE category = 'not done' AND dur < 0 ORDER BY 1";
        played.trace().rows(open).iter().map(|row| row.i64("seq")).collect::<Vec<_>>()
    };
    let [first, second] = &job.processes()[..] else { panic!("two processes") };
    assert_eq!(hung(first), [3], "the fourth AllReduce hangs, and it alone");
    assert!(hung(second).is_empty(), "and rank 1 did not come");
    check_who_is_missed(&job);
}

/// Kernel channels are in the trace if asked for, exactly as many as the kernels stamped; and
/// otherwise none.
fn kernel_channels(nccl: &str) {
    for preset in ["full", "light"] {
        Plan::new(nccl, "small").with("NCCLSCOPE_PRESET", preset).run().succeeded().check();
    }
}

/// NCCL crashes if it is asked for kernel channels and there is no shared memory for them. With
/// Docker's default size it is not asked; with twice that, only until a second communicator comes.
#[test]
#[ignore = "cargo xtask e2e --all; only root may mount"]
fn little_shared_memory() {
    let text = "title = \"Two communicators of two GPUs, without a network\"\n\
                [job]\nhosts = 1\nranks_per_host = 2\n\
                program = \"\"\"\ncommunicator world = all\nall_reduce 1 MiB f32 sum on world\nsync\n\
                communicator more = all\nall_reduce 1 MiB f32 sum on more\nall_reduce 1 MiB f32 sum on world\n\"\"\"\n\
                [gpu]\npeer_access = true\nvirtual_memory = true\n";
    let plan = |size| Plan::of_text("2.28.9", text).with_shared_memory(size);
    let channels = |job: &Job| {
        job.told()
            .iter()
            .map(|(.., trace)| {
                let trace = trace.as_ref().expect("a trace");
                trace.rows("SELECT count() AS n FROM slice WHERE category = 'gpu'")[0].i64("n")
            })
            .collect::<Vec<_>>()
    };
    for (size, has_some, is_said) in [("64m", false, true), ("128m", true, true), ("1g", true, false)] {
        let job = plan(size).run().succeeded();
        assert_eq!(job.logs().contains("crash when asked for it with too little shared memory"), is_said, "{size}");
        assert_eq!(channels(&job).iter().all(|channels| *channels > 0), has_some, "{size}: {:?}", channels(&job));
    }
    let crashed = plan("64m").with("NCCLSCOPE_KERNEL_CH", "force").run();
    assert_eq!(crashed.status, Some(1), "if this is mended, so is nccl#2326: {}", crashed.stderr);
}

/// A release's tests; those of `more` run on request only.
macro_rules! release {
    (always $module:ident, $version:literal, [$($test:ident),* $(,)?]) => {
        mod $module {
            $(
                #[test]
                fn $test() {
                    super::$test($version);
                }
            )*
        }
    };
    (more $module:ident, $version:literal, [$($test:ident),* $(,)?]) => {
        mod $module {
            $(
                #[test]
                #[ignore = "cargo xtask e2e --all"]
                fn $test() {
                    super::$test($version);
                }
            )*
        }
    };
}

release!(
    always nccl_2_28_9,
    "2.28.9",
    [every_operation, mixed, protocols, graphs, abort, hang, kernel_channels, kernels, injected, captures]
);
release!(
    always nccl_2_30_7,
    "2.30.7",
    [
        every_operation, mixed, protocols, graphs, training, clock_drift, abort, hang, hang_on_one_host, kernel_channels, kernels,
        kernels_of_several_gpus, kernels_of_another_tool, graphs_of_another_tool, network, copy_engine, cupti_of_others, cupti_of_a_shim, cupti_wanted_by_others,
        large_groups, counted_replays, refused_channels,
    ]
);
release!(
    always nccl_2_32_3,
    "2.32.3",
    [
        every_operation, descriptor_taken_over, children_in_init, cancelled_in_init, few_addresses, mixed, protocols, graphs, abort, hang, kernel_channels, kernels,
        kernels_of_another_tool, injected, captures,
    ]
);

// 2.23.4 and 2.24.3 cannot be aborted: when a peer has closed its connection, the proxy thread
// retries forever without checking the abort flag, and ncclCommAbort waits for it.
release!(more nccl_2_23_4, "2.23.4", [every_operation, mixed]);
release!(more nccl_2_24_3, "2.24.3", [every_operation, mixed]);
release!(more nccl_2_26_5, "2.26.5", [every_operation, mixed, graphs, abort, kernels_by_order]);
release!(more nccl_2_27_3, "2.27.3", [every_operation, mixed, graphs, abort, kernels_by_order]);
release!(more nccl_2_27_7, "2.27.7", [every_operation, mixed, graphs, abort, kernels_by_order]);
release!(more nccl_2_28_9_too, "2.28.9", [graphs_of_another_tool]);
release!(more nccl_2_29_7, "2.29.7", [every_operation, mixed, graphs, abort, kernels]);
release!(more nccl_2_31_2, "2.31.2", [every_operation, mixed, graphs, abort, kernels]);
release!(more nccl_2_32_3_too, "2.32.3", [graphs_of_another_tool]);
