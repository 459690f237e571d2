//! The settings that select a part of the job: what they leave out, what stays, and what is
//! counted.

use super::{CUDA, KERNEL, library_path, record};
use crate::command::ncclscope;
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::Recording;
use ncclscope_tests::timeline::Timeline;
use std::process::Command;
use std::{fs, thread};

/// A collective as NCCL runs it: group, call, launch with its kernel, hand-over, and the proxy's
/// work for it. Its label distinguishes it.
pub(super) fn collective(label: &str, comm: &str, count: &str) -> String {
    let facts = format!("func=AllReduce count={count} datatype=ncclFloat32");
    format!(
        "user start g{label} {comm} GroupApi groupDepth=1\n\
         user start {label} {comm} CollApi parent=g{label} {facts}\n\
         user stop {label}\n\
         user start l{label} {comm} KernelLaunch parent=g{label} stream=0x10\n\
         user kernel {KERNEL} for=1ms\n\
         user stop l{label}\n\
         user start p{label} {comm} Group\n\
         user start c{label} {comm} Coll parent={label} group=p{label} {facts}\n\
         user stop c{label}\n\
         user stop p{label}\n\
         user stop g{label}\n\
         proxy start x{label} {comm} ProxyOp parent=c{label} channelId=0 peer=1 nSteps=1 chunkSize=1Ki isSend=1\n\
         proxy state x{label} OpInProgress\n\
         proxy start s{label} {comm} ProxyStep parent=x{label} step=0\n\
         proxy stop s{label}\n\
         proxy stop x{label}\n"
    )
}

/// A job with these collectives, a kernel of the application after each.
pub(super) fn job(collectives: &[String]) -> String {
    let body: String = collectives.iter().map(|it| format!("{it}user kernel gemm for=1ms\n")).collect();
    format!(
        "{CUDA}user init dp comm=0xabc rank=0 nranks=2 name=dp\n\
         user init tp comm=0xdef rank=1 nranks=2 name=tensor\n\
         {body}user finalize dp\nuser finalize tp\n"
    )
}

/// How many slices are drawn of operations with this size: calls, hand-overs, runs, kernels, and
/// the proxy's operations and transfers.
fn drawn(timeline: &Timeline, size: &str) -> [usize; 5] {
    let of = |category: &str| {
        let all = timeline.slices.iter().filter(|it| it.category == category && it.name.contains(size));
        all.count()
    };
    [of("api"), of("operation"), of("run"), of("kernel"), of("proxy")]
}

fn figures(timeline: &Timeline) -> [u64; 2] {
    ["operations_left_out", "activities_left_out"].map(|name| timeline.figures().get(name))
}

#[test]
fn an_operation_is_kept_or_left_out_with_all_that_belongs_to_it() {
    let script = job(&[collective("a", "dp", "1Ki"), collective("b", "dp", "1Mi"), collective("c", "dp", "2Ki")]);
    let all = record(&script, &[]).timeline();
    assert_eq!([drawn(&all, "4 KiB"), drawn(&all, "4 MiB"), drawn(&all, "8 KiB")], [[1, 1, 1, 1, 2]; 3]);
    assert!(all.named("left out by settings").is_empty());
    for kind in ["GroupApi", "KernelLaunch", "Group"] {
        assert_eq!(all.named(kind).len(), 3, "{kind}");
    }
    let large = record(&script, &[("NCCLSCOPE_MIN_BYTES", "64K")]).timeline();
    assert_eq!(
        [drawn(&large, "4 KiB"), drawn(&large, "4 MiB"), drawn(&large, "8 KiB")],
        [[0; 5], [1, 1, 1, 1, 2], [0; 5]]
    );
    for kind in ["GroupApi", "KernelLaunch", "Group"] {
        assert_eq!(large.named(kind).len(), 1, "{kind}");
    }
    assert_eq!(large.named("gemm").len(), 3, "the application's kernels stay");
    assert_eq!(figures(&large), [2, 0]);
    assert_eq!(large.slice("left out by settings").str("note"), Some("min_bytes 65536"));
    // What is drawn is matched as well as ever.
    let kernel = large.slices.iter().find(|it| it.category == "kernel" && it.name.contains("4 MiB")).unwrap();
    assert_eq!(kernel.str("match"), Some("exact_launch_bracket"));
}

#[test]
fn one_in_n_is_counted_per_communicator() {
    let both = |n: usize| collective(&format!("d{n}"), "dp", "1Ki") + &collective(&format!("t{n}"), "tp", "2Ki");
    let collectives: Vec<_> = (0..5).map(both).collect();
    let timeline = record(&job(&collectives), &[("NCCLSCOPE_EVERY", "3")]).timeline();
    assert_eq!([drawn(&timeline, "4 KiB"), drawn(&timeline, "8 KiB")], [[2, 2, 2, 2, 4]; 2]);
    assert_eq!(figures(&timeline), [6, 0]);
}

#[test]
fn commands_know_what_was_left_out() {
    let collectives: Vec<_> = (0..30).map(|n| collective(&format!("d{n}"), "dp", "1Ki")).collect();
    let by = |settings: &[(&str, &str)], command: &str| {
        let recording = record(&job(&collectives), settings);
        ncclscope(&[command, recording.traces.file().to_str().unwrap()]).unwrap()
    };
    let said = by(&[("NCCLSCOPE_EVERY", "3")], "diagnose");
    assert!(said.starts_with("Cannot tell: the settings left out a part of what ran (every 3)"), "{said}");
    assert!(said.contains("What the settings left out counts as idle time"), "{said}");
    let said = by(&[("NCCLSCOPE_OPERATIONS", "5..24")], "diagnose");
    assert!(!said.contains("left out"), "{said}");
    let said = by(&[("NCCLSCOPE_EVERY", "3"), ("NCCLSCOPE_KERNELS", "nccl")], "info");
    assert!(said.contains("left out by settings: every 3, kernels nccl"), "{said}");
    assert!(said.contains("; 20 operations left out by settings; 30 kernels, copies and ranges left out"), "{said}");
    let said = by(&[("NCCLSCOPE_EVERY", "3")], "summary");
    assert!(said.contains("operations_left_out"), "{said}");
    let driver = said.lines().find(|line| line.contains(" driver ")).unwrap_or_else(|| panic!("{said}"));
    assert!(driver.contains("CUDA 1"), "{driver}");
}

#[test]
fn communicators_are_selected_by_name_and_kernels_by_owner() {
    let script = job(&[collective("a", "dp", "1Ki"), collective("b", "tp", "2Ki")]);
    for wanted in ["tens*", "tensor", "other,tensor", "def"] {
        let timeline = record(&script, &[("NCCLSCOPE_COMMS", wanted), ("NCCLSCOPE_KERNELS", "nccl")]).timeline();
        assert_eq!([drawn(&timeline, "4 KiB"), drawn(&timeline, "8 KiB")], [[0; 5], [1, 1, 1, 1, 2]], "{wanted}");
        assert_eq!((timeline.named("gemm").len(), figures(&timeline)), (0, [1, 2]), "{wanted}");
        assert_eq!(timeline.named("communicator init").len(), 2, "{wanted}: the job has both");
    }
}

#[test]
fn windows_of_operations_and_of_steps_select_what_ran_in_them() {
    let step = |n: u64, label: &str, count: &str| format!("user step {n}\n{}", collective(label, "dp", count));
    let script = job(&[step(7, "a", "1Ki"), step(8, "b", "2Ki"), step(9, "c", "3Ki")]);
    let all = record(&script, &[]).timeline();
    let steps = |timeline: &Timeline| {
        timeline.slices.iter().filter(|it| it.category == "nvtx").map(|it| it.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(steps(&all), ["step 7", "step 8", "step 9"]);
    let run = all.slices.iter().find(|it| it.category == "run" && it.name.contains("8 KiB")).unwrap();
    assert_eq!(run.int("nvtx_step"), Some(8), "operations know their step");
    for (name, value) in [("NCCLSCOPE_STEPS", "8..8"), ("NCCLSCOPE_OPERATIONS", "1..1")] {
        let timeline = record(&script, &[(name, value)]).timeline();
        let sizes = ["4 KiB", "8 KiB", "12 KiB"].map(|size| drawn(&timeline, size));
        assert_eq!(sizes, [[0; 5], [1, 1, 1, 1, 2], [0; 5]], "{name}");
        assert_eq!(timeline.named("gemm").len(), 1, "{name}");
        assert_eq!(figures(&timeline)[0], 2, "{name}");
    }
    // Both together select nothing.
    let none = record(&script, &[("NCCLSCOPE_STEPS", "8..8"), ("NCCLSCOPE_OPERATIONS", "0..0")]).timeline();
    assert_eq!(figures(&none)[0], 3);
}

#[test]
fn steps_need_neither_cupti_nor_nvtx() {
    let script = "user init dp comm=0xabc rank=0 nranks=2\nuser step 1\nuser step 2\nuser finalize dp\n";
    let timeline = Recording::of(script).timeline();
    assert_eq!(timeline.slice("step 1").category, "nvtx");
    // The last one ends with the recording.
    assert!(timeline.slice("step 2").duration > Some(0));
    assert_eq!(timeline.slice("step 2").str("doubt"), None);
}

#[test]
fn a_step_without_room_is_counted_and_the_next_one_is_drawn() {
    // All rings of the smallest pool, but for that of the thread that calls `init`.
    let others = |lines: fn(usize) -> String| (1..64).map(lines).collect::<String>();
    let take = others(|n| format!("t{n} start g{n} dp Group\nt{n} stop g{n}\n"));
    let end = others(|n| format!("t{n} end\n"));
    let script = format!(
        "user init dp comm=0xabc rank=0 nranks=2\n{take}trainer step 1\n{end}user finalize dp\n\
         trainer step 2\ntrainer step 3\n"
    );
    let timeline = record(&script, &[("NCCLSCOPE_BUFFER_SIZE", "1M")]).timeline();
    assert_eq!(timeline.figures().get("dropped"), 1);
    assert_eq!([1, 2, 3].map(|number| timeline.named(&format!("step {number}")).len()), [0, 1, 1]);
}

#[test]
fn ranks_that_are_not_asked_for_record_nothing_and_say_nothing() {
    let script = job(&[collective("a", "dp", "1Ki"), collective("b", "tp", "2Ki")]);
    let by = |settings: &[(&str, &str)]| {
        Recording::by(Play::new(&script).env("LD_LIBRARY_PATH", library_path()).envs(settings))
    };
    let other = by(&[("NCCLSCOPE_RANKS", "1,4-9"), ("RANK", "3"), ("WORLD_SIZE", "16")]);
    assert_eq!((other.traces.files().len(), other.said()), (0, Vec::new()));
    let own = by(&[("NCCLSCOPE_RANKS", "1,3-9"), ("RANK", "3"), ("WORLD_SIZE", "16")]);
    assert_eq!(own.timeline().figures().get("recorded"), own.calls());
    // No launcher: ranks in communicators. It is rank 0 of dp and rank 1 of tensor.
    let timeline = by(&[("NCCLSCOPE_RANKS", "1")]).timeline();
    assert_eq!([drawn(&timeline, "4 KiB"), drawn(&timeline, "8 KiB")].map(|it| it[1]), [0, 1]);
    assert_eq!(timeline.slice("left out by settings").str("note"), Some("ranks 1"));
    let said = by(&[("NCCLSCOPE_RANKS", "1")]).outcome.stderr;
    assert!(said.contains("; ranks 1 of each communicator (no launcher tells"), "{said}");
}

#[test]
fn a_file_holds_settings_and_variables_take_precedence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ncclscope.toml");
    let script = job(&[collective("a", "dp", "1Ki"), collective("b", "tp", "2Ki")]);
    let with = |text: &str, more: &[(&str, &str)]| {
        fs::write(&path, text).unwrap();
        let mut settings = vec![("NCCLSCOPE_CONFIG", path.to_str().unwrap())];
        settings.extend(more);
        record(&script, &settings)
    };
    let text = "# what we want\ncomms = [\"dp\", \"none\"]\nmin_bytes = 64\nkernels = \"nccl\"\ncompress = false\n";
    let timeline = with(text, &[]).timeline();
    let note = "comms dp,none, min_bytes 64, kernels nccl";
    assert_eq!(timeline.slice("left out by settings").str("note"), Some(note));
    let timeline = with(text, &[("NCCLSCOPE_COMMS", "tensor")]).timeline();
    assert_eq!([drawn(&timeline, "4 KiB"), drawn(&timeline, "8 KiB")].map(|it| it[1]), [0, 1]);
    let wrong = with("evry = 3\n[every]\nn = 1\n", &[]);
    let said = wrong.said().join("\n");
    let name = path.display();
    assert!(
        said.contains(&format!("{name}:1: evry: it is not a setting; did you mean every?; it is ignored")),
        "{said}"
    );
    assert!(said.contains(&format!("{name}:2: every: a text, a number")), "{said}");
    let wrong = with("every = = 3\n", &[]);
    assert!(wrong.said().iter().any(|line| line.contains(&format!("{name}:1: not TOML"))), "{:?}", wrong.said());
    assert_eq!(wrong.timeline().named("bad setting").len(), 1);
    let missing = record(&script, &[("NCCLSCOPE_CONFIG", "/nowhere/it.toml")]);
    let line = "NCCLSCOPE_CONFIG=/nowhere/it.toml: failed to read it";
    assert!(missing.said().iter().any(|it| it.contains(line)), "{:?}", missing.said());
    // A pipe is not waited for.
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let missing = record(&script, &[("NCCLSCOPE_CONFIG", pipe.to_str().unwrap())]);
    assert!(missing.said().iter().any(|it| it.contains("it is not a file")), "{:?}", missing.said());
    let named = with("run_id = \"tuesday\"", &[]);
    let said = ncclscope(&["summary", named.traces.file().to_str().unwrap(), "--table", "environment"]).unwrap();
    assert!(said.contains("NCCLSCOPE_RUN_ID=tuesday"), "{said}");
    // The whole process can be left out by the file.
    assert!(with("preset = \"off\"", &[]).traces.files().is_empty());
}

#[test]
fn a_hang_shows_even_if_its_operation_is_left_out() {
    let hang = |settings: &[(&str, &str)]| {
        let hangs = collective("b", "dp", "2Ki");
        let script = format!(
            "{CUDA}user init dp comm=0xabc rank=0 nranks=2 name=dp\n{}{}user sleep 9s\nuser kill SIGKILL\n",
            collective("a", "dp", "1Ki"),
            hangs.split_once("proxy").unwrap().0.replace("for=1ms", "for=60s wait=0")
        );
        let recording = Recording::by(Play::new(&script).env("LD_LIBRARY_PATH", library_path()).envs(settings));
        assert_eq!(recording.outcome.signal, Some(libc::SIGKILL), "{}", recording.outcome.stderr);
        let timeline = Timeline::read(&recording.traces.open());
        timeline.slices.iter().filter(|it| it.category == "not done").map(|it| it.name.clone()).collect::<Vec<_>>()
    };
    let all: [&[(&str, &str)]; 3] = [&[], &[("NCCLSCOPE_MIN_BYTES", "1M")], &[("NCCLSCOPE_EVERY", "100")]];
    let shown = thread::scope(|scope| all.map(|it| scope.spawn(|| hang(it))).map(|it| it.join().unwrap()));
    assert_eq!(shown.map(|names| names.concat()), ["AllReduce 8 KiB f32"; 3]);
}
