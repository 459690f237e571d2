//! Situations in NCCL that a profiler must survive, with a short script for each, and what the
//! trace then shows.

use crate::command::ncclscope;
use ncclscope_tests::fault;
use ncclscope_tests::perfetto::Value;
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::{Recording, assert_sound};
use ncclscope_tests::timeline::{Slice, Timeline};
use std::collections::BTreeMap;

/// The start of every script.
const INIT: &str = "user init world comm=0xabc rank=0 nranks=4 nodes=2 name=dp\n";
/// A collective `coll`, enclosed in the group `plan`.
const COLL: &str = "user start plan world Group\n\
                    user start coll world Coll group=plan func=AllReduce count=1Ki datatype=ncclFloat32 algo=RING\n\
                    user stop coll\n\
                    user stop plan\n";

/// Plays a script between `init` and `finalize`, through the newest interface. Nothing may be wrong
/// or left open.
#[track_caller]
fn shown(script: &str) -> Timeline {
    Recording::of(&format!("{INIT}{script}user finalize world")).timeline()
}

/// The same through this version.
#[track_caller]
fn shown_by(version: u32, script: &str) -> Timeline {
    let play = Play::new(format!("{INIT}{script}user finalize world"));
    let recording = Recording::by(play.interface(version).env("NCCLSCOPE_PRESET", "full"));
    assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
    recording.timeline()
}

/// Asserts that these are all the figures that show something doubtful or lost.
#[track_caller]
fn assert_remarkable(timeline: &Timeline, expected: &[(&str, u64)]) {
    assert_eq!(timeline.figures().remarkable(), expected.iter().copied().collect::<BTreeMap<_, _>>());
}

fn names<'a>(slices: &[&'a Slice]) -> Vec<&'a str> {
    slices.iter().map(|slice| slice.name.as_str()).collect()
}

// ---- parents ----

#[test]
fn a_second_stop_of_a_parent_makes_its_later_children_doubtful() {
    let timeline = shown(
        "user start g world GroupApi groupDepth=1\n\
         user start api world CollApi parent=g func=AllReduce count=1Ki datatype=ncclFloat32\n\
         user stop api\n\
         user start plan world Group\n\
         user start before world Coll parent=api group=plan func=AllReduce count=1Ki datatype=ncclFloat32\n\
         user stop before\n\
         user stop api\n\
         user start after world Coll parent=api group=plan func=AllReduce count=2Ki datatype=ncclFloat32\n\
         user stop after\n\
         user stop plan\n\
         user stop g\n",
    );
    assert_eq!(timeline.slice("AllReduce 4 KiB f32").str("doubt"), None);
    assert_eq!(timeline.slice("AllReduce 8 KiB f32").str("doubt"), Some("parent was stopped twice"));
    assert_remarkable(&timeline, &[("double_stops", 1)]);
    // The call itself ends with its first stop.
    let call = timeline.slice("ncclAllReduce 4 KiB f32");
    let child = timeline.slice("AllReduce 4 KiB f32");
    assert!(call.begin + call.duration.unwrap() <= child.begin);
}

#[test]
fn a_missing_parent_is_reported() {
    let case = fault::case("NCCL", "operations without a parent (NVIDIA/nccl#1544)", "each is drawn, with a doubt");
    let timeline = shown(&format!(
        "{COLL}proxy start op world ProxyOp parent=null channelId=0 peer=1 nSteps=1 chunkSize=1Ki isSend=1\n\
         proxy start step world ProxyStep parent=null step=5\n\
         proxy stop step\n\
         proxy state op OpInProgress\n\
         proxy stop op\n\
         proxy start ch world KernelCh parent=null channelId=3 pTimer=1\n\
         proxy stop ch\n\
         proxy start net world NetPlugin parent=null net=ib device=0 wr_id=1 opcode=2 qp=3 length=4\n\
         proxy stop net\n\
         user start send world P2p parent=null func=Send count=1 datatype=ncclInt8 peer=2\n\
         user stop send\n",
    ));
    for name in ["AllReduce 4 KiB f32", "unknown operation ch 0", "unknown operation", "Send 1 B i8 → 2"] {
        assert_eq!(timeline.slice(name).str("doubt"), Some("no parent"), "{name}");
    }
    assert_eq!(timeline.slice("Group").str("doubt"), None, "a group has no parent");
    let step = timeline.slice("step 5");
    assert!(timeline.place(step).ends_with("/unknown operations · steps"), "{}", timeline.place(step));
    assert_eq!(timeline.named("network event").len(), 1);
    // A channel that belongs to no operation and got no stamps.
    assert_remarkable(&timeline, &[("channels_implausible", 1)]);
    case.survived(1);
}

#[test]
fn a_parent_of_another_process_is_not_looked_up() {
    let case = fault::case("NCCL", "PXN: parents and contexts of another process (#1586)", "they are not looked up");
    let timeline = shown(
        "user start coll world Coll parent=raw:0x5af3000000000777 func=AllReduce count=1Ki datatype=ncclFloat32\n\
         user stop coll\n",
    );
    assert_eq!(timeline.slice("AllReduce 4 KiB f32").str("doubt"), Some("parent in another process"));
    case.survived(1);
}

#[test]
fn work_for_another_process_has_tracks_of_its_own() {
    let case =
        fault::case("NCCL", "PXN: a proxy that works for another process", "its operations have tracks of their own");
    let timeline = shown(&format!(
        "{COLL}proxy start own world ProxyOp parent=coll channelId=0 peer=3 nSteps=1 chunkSize=1Ki isSend=1\n\
         proxy state own OpInProgress\n\
         proxy start theirs raw:0x5af3000000000101 ProxyOp parent=raw:0x5af3000000000777 rank=1 pid=424242 \
           channelId=1 peer=3 nSteps=1 chunkSize=2Ki isSend=1\n\
         proxy state theirs OpInProgress\n\
         proxy start step raw:0x5af3000000000101 ProxyStep parent=theirs rank=1 step=7\n\
         proxy state step StepSendGpuWait\n\
         proxy state step StepSendWait value=2Ki\n\
         proxy start net raw:0x5af3000000000101 NetPlugin parent=step net=ib device=1 wr_id=9 opcode=2 qp=3 length=4\n\
         proxy stop net\n\
         proxy stop step\n\
         proxy stop theirs\n\
         proxy stop own\n",
    ));
    let own = timeline.slice("AllReduce 4 KiB f32 ch 0");
    assert!(timeline.place(own).ends_with("/dp · send → 3"));
    assert_eq!((own.str("doubt"), own.int("foreign_pid")), (None, None));

    let theirs = timeline.slice("unknown operation ch 1");
    assert!(timeline.place(theirs).ends_with("/for another process · send → 3"));
    assert_eq!(theirs.str("doubt"), Some("parent in another process"));
    assert_eq!(theirs.int("foreign_pid"), Some(424_242));
    assert_eq!(theirs.int("comm"), None);

    let step = timeline.slice("step 7");
    assert!(timeline.place(step).ends_with("/for another process · send → 3 · steps"));
    let phases = timeline.inside(step);
    assert_eq!(names(&phases), ["GPU wait", "network wait"]);
    assert_eq!(phases[1].int("bytes"), Some(2048));
    assert_eq!(timeline.named("network event").len(), 1);
    assert_remarkable(&timeline, &[("foreign_events", 1)]);
    case.survived(1);
}

// ---- states ----

#[test]
fn null_state_arguments_are_taken_as_absent() {
    let case = fault::case("NCCL", "null arguments of states", "taken as absent");
    let timeline = shown(&format!(
        "user start g world GroupApi groupDepth=1\n\
         user state g GroupStartApiStop\n\
         user state g GroupEndApiStart noargs\n\
         user stop g\n\
         {COLL}proxy start op world ProxyOp parent=coll channelId=0 peer=1 nSteps=1 chunkSize=1Ki isSend=1\n\
         proxy state op OpInProgress noargs\n\
         proxy start step world ProxyStep parent=op step=0\n\
         proxy state step StepSendGpuWait noargs\n\
         proxy state step StepSendWait noargs\n\
         proxy start net world NetPlugin parent=step net=ib device=0 wr_id=1 opcode=2 qp=3 length=4\n\
         proxy state net NetUpdate noargs\n\
         proxy stop net\n\
         proxy stop step\n\
         proxy stop op\n\
         proxy start ch world KernelCh parent=coll channelId=3 pTimer=77\n\
         proxy state ch KernelChStop noargs\n\
         proxy stop ch\n\
         proxy start ctrl world ProxyCtrl\n\
         proxy state ctrl CtrlAppend noargs\n\
         proxy state ctrl CtrlAppendEnd noargs\n\
         proxy stop ctrl\n",
    ));
    let group = timeline.slice("GroupApi");
    assert!(group.int("group_start_returned_ns") <= group.int("group_end_called_ns"));
    assert!(group.int("group_end_called_ns") <= group.duration);
    let phases = timeline.inside(timeline.slice("step 0 · AllReduce 4 KiB f32"));
    assert_eq!(names(&phases), ["GPU wait", "network wait"]);
    assert_eq!(phases[1].int("bytes"), None);
    assert_eq!(timeline.named("network update").len(), 1);
    assert_eq!(timeline.named("append").len(), 1);
    assert_remarkable(&timeline, &[("channels_implausible", 1)]);

    // NCCL 2.26 passes null with every state of a step.
    let timeline = shown_by(
        3,
        "proxy start op world ProxyOp channelId=0 peer=1 nSteps=1 chunkSize=1Ki isSend=1\n\
         proxy start step world ProxyStep parent=op step=0\n\
         proxy state step StepSendGpuWait\n\
         proxy state step StepSendWait value=1Ki\n\
         proxy stop step\n\
         proxy state op OpSendDone noargs\n\
         proxy stop op\n",
    );
    assert_eq!(names(&timeline.inside(timeline.slice("step 0"))), ["GPU wait", "network wait"]);
    assert_eq!(names(&timeline.inside(timeline.slice("unknown operation ch 0"))), ["done"]);
    assert_remarkable(&timeline, &[]);
    case.survived(1);
}

#[test]
fn a_step_that_is_refused_repeatedly_is_one_step() {
    let case = fault::case(
        "NCCL",
        "the network refuses a receive again and again, and only the last start is stopped (#1658, #1682)",
        "one step is drawn",
    );
    let timeline = shown(&format!(
        "{COLL}proxy start op world ProxyOp parent=coll channelId=0 peer=1 nSteps=2 chunkSize=1Ki isSend=0\n\
         proxy start first world ProxyStep parent=op step=0\n\
         proxy start again world ProxyStep parent=op step=0\n\
         proxy start other world ProxyStep parent=op step=1\n\
         proxy state again StepRecvWait\n\
         proxy state again StepRecvWait\n\
         proxy state again StepRecvFlushWait value=64\n\
         proxy stop again\n\
         proxy stop other\n\
         proxy stop op\n",
    ));
    let step = timeline.slice("step 0 · AllReduce 4 KiB f32");
    assert_eq!(step.int("starts"), Some(2));
    let phases = timeline.inside(step);
    assert_eq!(names(&phases), ["network wait", "flush wait"], "a repeated state is one phase");
    assert_eq!(phases[1].int("bytes"), Some(64));
    assert_eq!(timeline.slice("step 1 · AllReduce 4 KiB f32").int("starts"), None);
    assert_remarkable(&timeline, &[]);
    case.survived(1);
}

#[test]
fn a_size_is_read_only_in_the_two_states_that_have_one() {
    let case = fault::case("NCCL", "a stale size in the states that have none", "it is not read");
    let timeline = shown(&format!(
        "{COLL}proxy start send world ProxyOp parent=coll channelId=0 peer=1 nSteps=1 chunkSize=1Ki isSend=1\n\
         proxy start out world ProxyStep parent=send step=0\n\
         proxy state out StepSendGpuWait value=777\n\
         proxy state out StepSendPeerWait value=777\n\
         proxy state out StepSendWait value=9\n\
         proxy stop out\n\
         proxy stop send\n\
         proxy start recv world ProxyOp parent=coll channelId=0 peer=1 nSteps=1 chunkSize=1Ki isSend=0\n\
         proxy start in world ProxyStep parent=recv step=1\n\
         proxy state in StepRecvWait value=777\n\
         proxy state in StepRecvFlushWait value=11\n\
         proxy state in StepRecvGpuWait value=777\n\
         proxy stop in\n\
         proxy stop recv\n",
    ));
    let sizes = |name: &str| -> Vec<_> {
        let phases = timeline.inside(timeline.slice(name));
        phases.iter().map(|phase| (phase.name.clone(), phase.int("bytes"))).collect()
    };
    let named = |expected: [(&str, Option<i64>); 3]| expected.map(|(name, bytes)| (name.to_owned(), bytes));
    assert_eq!(
        sizes("step 0 · AllReduce 4 KiB f32"),
        named([("GPU wait", None), ("peer wait", None), ("network wait", Some(9))])
    );
    assert_eq!(
        sizes("step 1 · AllReduce 4 KiB f32"),
        named([("network wait", None), ("flush wait", Some(11)), ("GPU wait", None)])
    );
    case.survived(1);
}

#[test]
fn a_proxy_operation_without_progress_is_an_instant() {
    let case = fault::case("NCCL", "proxy operations that NCCL starts and never stops", "an instant that says so");
    let timeline = shown(&format!(
        "{COLL}proxy start op world ProxyOp parent=coll channelId=2 peer=3 nSteps=8 chunkSize=128Ki isSend=0\n"
    ));
    let op = timeline.slice("proxy operation without progress");
    assert_eq!(op.duration, Some(0));
    assert!(timeline.place(op).ends_with("/dp · receive ← 3"));
    assert_eq!((op.int("channel"), op.int("steps"), op.int("chunk_bytes")), (Some(2), Some(8), Some(128 << 10)));
    assert_remarkable(&timeline, &[("silent_proxy_ops", 1)]);
    case.survived(1);
}

#[test]
fn queued_proxy_operations_are_reported_as_queued() {
    // More than there are lanes. Each waits for the previous one, as in NCCL. The last three never
    // report progress.
    const OPERATIONS: usize = 200;
    let taken = |n: usize| {
        format!("proxy start op{n} world ProxyOp parent=coll channelId=2 peer=3 nSteps=1 chunkSize=128Ki isSend=0\n")
    };
    let done = |n: usize| format!("proxy state op{n} OpInProgress\nproxy sleep 20us\nproxy stop op{n}\n");
    let taken: String = (0..OPERATIONS).map(taken).collect();
    let done: String = (0..OPERATIONS - 3).map(done).collect();
    let timeline = shown(&format!("{COLL}{taken}{done}"));
    let drawn: Vec<_> = timeline.slices.iter().filter(|slice| slice.name == "AllReduce 4 KiB f32 ch 2").collect();
    assert_eq!(drawn.len(), OPERATIONS - 3);
    let (track, first) = (drawn[0].track, drawn[0].begin);
    let (mut taken, mut end) = (0, 0);
    for slice in drawn {
        let since = slice.begin - slice.int("queued_ns").expect("how long it queued");
        assert!(since > taken && since < first, "all were taken one after the other, and then begun: {slice:?}");
        assert!(slice.track == track && slice.begin >= end, "{slice:?}");
        (taken, end) = (since, slice.begin + slice.duration.expect("its end"));
    }
    let queue = timeline.slice("AllReduce 4 KiB f32 ch 2 and 2 more queued");
    assert_eq!((queue.duration, queue.int("operations"), queue.track), (Some(0), Some(3), track));
    assert!(queue.begin - queue.int("queued_ns").expect("how long it queued") > taken);
    assert!(timeline.slices.iter().all(|slice| slice.name != "proxy operation without progress"));
    assert_remarkable(&timeline, &[]);
}

#[test]
fn a_proxy_operation_that_hangs_stays_open() {
    let recording = Recording::of(&format!(
        "{INIT}{COLL}proxy start op world ProxyOp parent=coll channelId=2 peer=3 nSteps=8 chunkSize=128Ki isSend=1\n\
         proxy state op OpInProgress\n\
         user finalize world"
    ));
    let trace = recording.traces.open();
    assert_sound(&trace, 1);
    let timeline = Timeline::read(&trace);
    assert_eq!(timeline.slice("AllReduce 4 KiB f32 ch 2").duration, None);
    assert_remarkable(&timeline, &[]);
}

#[test]
fn an_unstopped_call_ends_with_the_enclosing_call_or_the_thread() {
    let case = fault::case("NCCL", "calls that are never stopped", "they end with what encloses them, with a doubt");
    let timeline = shown(
        "user start g world GroupApi groupDepth=1\n\
         user start api world CollApi parent=g func=AllReduce count=1Ki datatype=ncclFloat32\n\
         user stop g\n\
         job start launch world KernelLaunch parent=g stream=0x10\n\
         job end\n",
    );
    for name in ["ncclAllReduce 4 KiB f32", "KernelLaunch"] {
        let slice = timeline.slice(name);
        assert!(slice.duration.is_some(), "{name} is open");
        assert_eq!(slice.str("doubt"), Some("no stop before the end of the enclosing call"), "{name}");
    }
    assert_eq!(timeline.slice("GroupApi").str("doubt"), None);
    case.survived(1);
}

// ---- types, handles ----

#[test]
fn unknown_types_and_states_are_counted_and_shown() {
    let case = fault::case("NCCL", "unknown types and states", "counted and shown");
    let timeline = shown(
        "user start new world type:0x100000\n\
         user state new state:99\n\
         user state new StepSendWait value=1\n\
         user stop new\n\
         user start coll world Coll func=AllReduce count=1Ki datatype=ncclFloat32\n\
         user state coll StepSendWait value=1\n\
         user stop coll\n",
    );
    assert_eq!(timeline.slice("unknown event type").int("unknown"), Some(0x10_0000));
    assert_remarkable(&timeline, &[("unknown_types", 4)]);
    case.survived(1);
}

#[test]
fn a_network_update_on_another_event_is_counted() {
    let timeline = shown(&format!(
        "user start g world GroupApi groupDepth=1\n\
         user state g NetUpdate net=ib device=0 wr_id=1 opcode=2 qp=3 length=4\n\
         user stop g\n\
         {COLL}proxy start op world ProxyOp parent=coll channelId=0 peer=1 nSteps=1 chunkSize=1Ki isSend=1\n\
         proxy state op OpInProgress\n\
         proxy state op NetUpdate net=ib device=0 wr_id=1 opcode=2 qp=3 length=4\n\
         proxy stop op\n"
    ));
    assert_eq!(timeline.named("network update").len(), 0);
    assert_remarkable(&timeline, &[("unknown_types", 2)]);
}

#[test]
fn before_v5_only_one_byte_of_the_type_is_read() {
    let case =
        fault::case("NCCL", "up to v4 the type has one byte, with garbage beside it (#1973)", "only that byte is read");
    const EVENTS: &str = "user start plan world Group\n\
                          user start coll world Coll group=plan func=AllReduce count=1Ki datatype=ncclFloat32\n\
                          user stop coll\n\
                          user start send world P2p group=plan func=Send count=4 datatype=ncclInt32 peer=1\n\
                          user stop send\n\
                          user stop plan\n\
                          proxy start op world ProxyOp parent=coll channelId=0 peer=1 nSteps=1 chunkSize=1Ki isSend=1\n\
                          proxy start step world ProxyStep parent=op step=0\n\
                          proxy stop step\n\
                          proxy stop op\n\
                          proxy start ctrl world ProxyCtrl\n\
                          proxy state ctrl CtrlIdle\n\
                          proxy stop ctrl\n\
                          proxy end\n";
    // What the host leaves after the type is not zero.
    for version in 1..=4 {
        let timeline = shown_by(version, EVENTS);
        assert_remarkable(&timeline, &[]);
        for name in [
            "Group",
            "AllReduce 4 KiB f32",
            "Send 16 B i32 → 1",
            "AllReduce 4 KiB f32 ch 0",
            "step 0 · AllReduce 4 KiB f32",
            "idle",
        ] {
            timeline.slice(name);
        }
    }
    let timeline = shown_by(1, "user start x world type:3\nuser stop x\n");
    assert_eq!(timeline.slice("unknown event type").int("unknown"), Some(3), "two at once are none");
    let timeline = shown_by(5, "user start x world type:0xa5a5a5a5a5a5a502\nuser stop x\n");
    assert_remarkable(&timeline, &[("unknown_types", 1)]);
    case.survived(4);
}

#[test]
fn meaningless_handles_do_nothing() {
    let case = fault::case(
        "NCCL",
        "null, unknown and foreign handles; a `finalize` of none; events after `finalize`; a second stop",
        "counted",
    );
    let recording = Recording::of(&format!(
        "{INIT}{COLL}user stop null\n\
         user state null StepSendWait value=1\n\
         user state null NetUpdate net=ib device=0 wr_id=1 opcode=2 qp=3 length=4\n\
         user stop raw:0x1234\n\
         user state raw:0x1234 GroupEndApiStart\n\
         user finalize null\n\
         user finalize raw:0x5af3000000000101\n\
         user finalize world\n\
         user start late world Coll parent=coll func=Reduce count=1 datatype=ncclInt8\n\
         user stop late\n\
         user stop coll"
    ));
    let timeline = recording.timeline();
    assert_eq!(timeline.named("communicator finalize").len(), 1);
    assert_eq!(timeline.slice("Reduce 1 B i8").str("doubt"), None, "events may come after `finalize`");
    let figures = timeline.figures();
    assert_eq!(figures.get("recorded"), recording.calls());
    assert_eq!(figures.get("foreign_handles"), 2);
    assert_eq!(figures.get("double_stops"), 1);
    case.survived(1);
}

// ---- texts ----

#[test]
fn new_words_are_kept_as_text() {
    let timeline = shown(
        "user start a world Coll func=AllJuggle count=3 datatype=ncclPosit8 algo=SPIRAL proto=WARP9\n\
         user stop a\n\
         user start b world Coll func=fresh:AllJuggle count=4 datatype=fresh:ncclFloat32 algo=fresh:RING \
           proto=fresh:WARP9\n\
         user stop b\n\
         user start c world Coll func=AllReduce count=5 datatype=Unknown algo=null proto=null\n\
         user stop c\n",
    );
    let new = timeline.slice("AllJuggle 3 elements");
    assert_eq!(new.str("function_text"), Some("AllJuggle"));
    assert_eq!(new.str("datatype_text"), Some("ncclPosit8"));
    assert_eq!(new.str("algorithm_text"), Some("SPIRAL"));
    assert_eq!(new.str("protocol_text"), Some("WARP9"));
    assert_eq!((new.int("count"), new.int("bytes"), new.str("algorithm")), (Some(3), None, None));

    let known = timeline.slice("AllJuggle 16 B f32");
    assert_eq!((known.str("datatype"), known.str("datatype_text")), (Some("ncclFloat32"), None));
    assert_eq!((known.str("algorithm"), known.str("algorithm_text")), (Some("RING"), None));
    assert_eq!(known.str("protocol_text"), Some("WARP9"));

    let unknown = timeline.slice("AllReduce 5 elements");
    assert_eq!((unknown.str("datatype"), unknown.int("bytes")), (Some("Unknown"), None));
    assert_eq!((unknown.str("algorithm"), unknown.str("algorithm_text")), (None, None));
}

#[test]
fn a_word_from_another_table_keeps_its_meaning() {
    // A symmetric kernel has its variant in place of the algorithm, and no protocol.
    let timeline = shown(
        "user start a world Coll func=AllGather count=8 datatype=ncclInt8 algo=LL proto=\"\"\n\
         user stop a\n\
         user start b world Coll func=AllGather count=9 datatype=ncclInt8 algo=Unknown proto=Unknown\n\
         user stop b\n",
    );
    let symmetric = timeline.slice("AllGather 8 B");
    assert_eq!(symmetric.str("algorithm").or(symmetric.str("algorithm_text")), Some("LL"));
    assert_eq!((symmetric.str("protocol"), symmetric.str("protocol_text")), (None, None));
    let unknown = timeline.slice("AllGather 9 B");
    for key in ["algorithm", "protocol"] {
        let value = unknown.str(key).or(unknown.str(&format!("{key}_text")));
        assert!(matches!(value, None | Some("Unknown")), "{key} is {value:?}");
    }
}

#[test]
fn an_address_with_changed_content_is_read_again() {
    let case = fault::case("NCCL", "a string's address is used for another string", "the new one is read");
    let timeline = shown(
        "user text func AllReduce\n\
         user text type ncclFloat32\n\
         user start a world Coll func=@func count=1 datatype=@type\n\
         user stop a\n\
         user text func Reduce\n\
         user start b world Coll func=@func count=1 datatype=@type\n\
         user stop b\n\
         user text func ReduceScatter\n\
         user text type ncclFloat64\n\
         user start c world Coll func=@func count=1 datatype=@type\n\
         user stop c\n\
         user text func AllJuggleEverything\n\
         user start d world Coll func=@func count=1 datatype=@type\n\
         user stop d\n\
         user text func AllJuggleEverythang\n\
         user start e world Coll func=@func count=1 datatype=@type\n\
         user stop e\n",
    );
    for name in [
        "AllReduce 4 B f32",
        "Reduce 4 B f32",
        "ReduceScatter 8 B f64",
        "AllJuggleEverything 8 B f64",
        "AllJuggleEverythang 8 B f64",
    ] {
        timeline.slice(name);
    }
    case.survived(1);
}

// ---- communicators ----

/// What the trace says about the only communicator of a script.
#[track_caller]
fn communicator(init: &str) -> (String, Slice) {
    let timeline = Recording::of(&format!("user init world {init}\nuser finalize world")).timeline();
    let slice = timeline.slice("communicator init");
    (timeline.place(slice), slice.clone())
}

#[test]
fn communicators_have_names_of_all_kinds() {
    let (place, comm) = communicator("comm=0x1f2e3d4c rank=3 nranks=64 nodes=8 name=\"tensor parallel\"");
    assert_eq!(place, "Communicators/tensor parallel · rank 3 of 64");
    let expected =
        "comm=523124044 comm_hash=000000001f2e3d4c comm_name=tensor parallel interface=7 nodes=8 rank=3 ranks=64";
    assert_eq!(comm.arguments(), expected);

    let (place, comm) = communicator("comm=0xffffffff00000001 rank=0 nranks=64");
    assert_eq!(place, "Communicators/this host fffffffe · rank 0 of 64");
    assert_eq!(comm.int("comm").map(i64::cast_unsigned), Some(0xffff_ffff_0000_0001));
    assert_eq!(comm.str("comm_name"), None);

    let (place, comm) = communicator("comm=7 rank=0 nranks=1");
    assert_eq!(place, "Communicators/this host 00000007 · rank 0 of 1");
    assert_eq!(comm.int("ranks"), Some(1));

    let (_, comm) = communicator("comm=7 rank=0 nranks=2 name=\"a\\xffb\\xc3\"");
    assert_eq!(comm.str("comm_name"), Some("a\u{fffd}b\u{fffd}"));
}

#[test]
fn a_very_long_name_is_cut() {
    let case = fault::case("NCCL", "a communicator's name of thousands of bytes", "it is cut");
    let name = "0123456789".repeat(30);
    let (place, comm) = communicator(&format!("comm=7 rank=0 nranks=2 name={name}"));
    let kept = comm.str("comm_name").unwrap();
    assert!(name.starts_with(kept.trim_end_matches('…')), "{kept}");
    assert!((100..=130).contains(&kept.len()), "{} bytes are kept", kept.len());
    assert!(place.starts_with(&format!("Communicators/{kept}")), "{place}");

    // Not inside a character.
    let name = "→".repeat(100);
    let (_, comm) = communicator(&format!("comm=7 rank=0 nranks=2 name={name}"));
    assert!(name.starts_with(comm.str("comm_name").unwrap().trim_end_matches(['…', '\u{fffd}'])));
    case.survived(1);
}

/// The viewer gets slow with more than a few thousand tracks. Communicators without tracks of their
/// own share some, are named in the arguments, and are counted.
#[test]
fn ten_thousand_communicators_make_only_a_few_thousand_tracks() {
    let case = fault::case("NCCL", "10,000 communicators", "all are recorded, on a bounded number of tracks");
    const COMMUNICATORS: i64 = 10_000;
    let mut script = String::new();
    for n in 0..COMMUNICATORS {
        script += &format!(
            "user init c{n} comm={:#x} rank=0 nranks=2 nodes=2\n\
             user start plan c{n} Group\n\
             user start coll c{n} Coll group=plan func=AllReduce count=1Ki datatype=ncclFloat32 algo=RING\n\
             user stop coll\n\
             user stop plan\n\
             proxy{} start op c{n} ProxyOp parent=coll channelId={} peer=1 nSteps=1 chunkSize=1Ki isSend=1\n\
             proxy{} start step c{n} ProxyStep parent=op step=5\n\
             proxy{} stop step\n\
             proxy{} stop op\n\
             user finalize c{n}\n",
            0xc000 + n,
            n % 200,
            n % 64,
            n % 200,
            n % 200,
            n % 200,
        );
    }
    let play = Play::new(script).env("NCCLSCOPE_PRESET", "full").env("NCCLSCOPE_BUFFER_SIZE", "256M");
    let recording = Recording::by(play);
    assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
    let trace = recording.traces.open();
    assert_eq!(trace.check(), []);
    let number = |sql: &str| trace.rows(sql)[0].i64("n");
    let tracks = number("SELECT count(*) AS n FROM track");
    assert!((1_000..5_000).contains(&tracks), "{tracks} tracks");
    const OPERATIONS: &str = "SELECT count(*) AS n FROM slice s JOIN track t ON t.id = s.track_id \
                              WHERE s.category = 'operation' AND s.dur >= 0 AND extract_arg(s.arg_set_id, 'nccl.count') > 0";
    assert_eq!(number(OPERATIONS), COMMUNICATORS, "each is drawn");
    let shared = format!("{OPERATIONS} AND t.name = 'other communicators · handed over'");
    let whose = "count(DISTINCT extract_arg(s.arg_set_id, 'nccl.comm'))";
    let sharing = number(&shared.replace("count(*)", whose));
    assert!(sharing > COMMUNICATORS * 9 / 10, "{sharing} share");
    assert_eq!(number(&shared), sharing, "each says its own communicator");
    let inits = number("SELECT count(*) AS n FROM slice WHERE name = 'communicator init'");
    assert_eq!(inits, COMMUNICATORS);
    let steps = number(
        "SELECT count(*) AS n FROM slice s JOIN track t ON t.id = s.track_id WHERE s.name GLOB 'step 5 · *' \
         AND (t.name NOT GLOB 'other peers*' OR extract_arg(s.arg_set_id, 'nccl.comm') > 0)",
    );
    assert_eq!(steps, COMMUNICATORS);
    let figures = recording.timeline().figures();
    assert_eq!((figures.get("communicators_sharing") as i64, figures.get("lanes_missing")), (sharing, 0));
    assert!(figures.get("slices_sharing") as i64 >= 2 * sharing);
    let said = ncclscope(&["info", recording.traces.file().to_str().unwrap()]).unwrap();
    assert!(said.contains(&format!("{sharing} communicators without tracks of their own")), "{said}");
    assert!(said.lines().count() < 200, "a page: {} lines", said.lines().count());
    case.survived(10_000);
}

#[test]
fn two_ranks_of_one_communicator_may_be_in_one_process() {
    let case = fault::case("NCCL", "two ranks of one communicator in one process", "each has its own tracks");
    let timeline = Recording::of(
        "one init a comm=0xc1 rank=0 nranks=2\n\
         two init b comm=0xc1 rank=1 nranks=2\n\
         one start x a Coll seqNumber=4 func=AllReduce count=1Ki datatype=ncclFloat32\n\
         two start y b Coll seqNumber=4 func=AllReduce count=1Ki datatype=ncclFloat32\n\
         one start s a P2p func=Send count=1 datatype=ncclInt8 peer=1\n\
         two start r b P2p func=Recv count=1 datatype=ncclInt8 peer=0\n\
         one stop s\n\
         two stop r\n\
         one stop x\n\
         two stop y\n\
         one finalize a\n\
         two finalize b",
    )
    .timeline();
    for name in ["communicator init", "communicator finalize"] {
        let ranks: Vec<_> = timeline.named(name).iter().map(|comm| comm.int("rank")).collect();
        assert_eq!(ranks, [Some(0), Some(1)]);
    }
    // The same operation has the same colour on both ranks.
    let operations = timeline.named("AllReduce 4 KiB f32");
    let [x, y] = operations[..] else { panic!("{operations:?}") };
    assert_eq!(x.str("correlation_id"), y.str("correlation_id"));
    assert!(x.str("correlation_id").is_some());
    let (send, recv) = (timeline.slice("Send 1 B i8 → 1"), timeline.slice("Recv 1 B i8 ← 0"));
    assert_eq!(send.str("correlation_id"), recv.str("correlation_id"));
    assert_ne!(send.str("correlation_id"), x.str("correlation_id"));
    // They overlap, and are distinguished by thread.
    assert_ne!(x.track, y.track);
    assert_ne!(x.int("tid"), y.int("tid"));
    case.survived(1);
}

// ---- payloads ----

/// Compares a slice's arguments: `name=value`, separated by spaces.
#[track_caller]
fn assert_arguments(timeline: &Timeline, name: &str, expected: &str) {
    assert_eq!(timeline.slice(name).arguments(), expected, "{name}");
}

#[test]
fn network_payloads_are_kept_to_the_last_bit() {
    let timeline = shown(
        "net start ib world NetPlugin net=ib device=-1 wr_id=0x7fffffffffffffff opcode=-2147483648 qp=2147483647 \
           length=0x123456789a\n\
         net stop ib\n",
    );
    let expected = "net_device=-1 net_id=65537 net_length=78187493530 net_opcode=-2147483648 \
                    net_queue_pair=2147483647 net_type=1 net_work_request=9223372036854775807";
    assert_arguments(&timeline, "network event", expected);

    let timeline = shown(
        "net start sock world NetPlugin net=socket fd=1023 op=-7 length=64Gi\n\
         net state sock NetUpdate net=socket fd=1023 op=3 length=5\n\
         net stop sock\n",
    );
    let expected = "net_device=1023 net_id=131073 net_length=68719476736 net_opcode=-7 net_type=1";
    assert_arguments(&timeline, "network event", expected);
    assert_arguments(&timeline, "network update", "net_device=1023 net_length=5 net_opcode=3 net_type=1");
    assert_eq!(timeline.slice("network update").parent, Some(timeline.slice("network event").id));
}

#[test]
fn copy_engine_events_are_kept_to_the_last_bit() {
    let timeline = shown(
        "user start ce world CeColl seqNumber=5 ceSeqNum=4294967295 func=AlltoAll sendBuff=0x1000 recvBuff=0x2000 \
           count=3 root=9 datatype=ncclFloat64 syncStrategy=UC intraBatchSync=true batchSize=7 numBatches=8 \
           stream=0x30 userTag=0x11\n\
         user start sync world CeSync parent=ce isComplete=true nRanks=6\n\
         user stop sync\n\
         user start batch world CeBatch parent=ce numOps=12 totalBytes=0x100000000 useIntraSync=true\n\
         user stop batch\n\
         user stop ce\n",
    );
    assert_arguments(
        &timeline,
        "copy engine AlltoAll 24 B f64",
        "batch_size=7 batches=8 buffer_alignment=4096 bytes=24 ce_seq=4294967295 comm=2748 count=3 datatype=ncclFloat64 doubt=no parent \
         function=AlltoAll intra_batch_sync=1 recv_buffer=8192 send_buffer=4096 seq=5 stream=48 sync_strategy=UC \
         user_tag=17",
    );
    assert_arguments(&timeline, "CeSync", "comm=2748 complete=1 ranks=6");
    assert_arguments(&timeline, "CeBatch", "bytes=4294967296 comm=2748 copies=12 intra_batch_sync=1");
    let around = timeline.slice("copy engine AlltoAll 24 B f64").id;
    assert_eq!(timeline.slice("CeSync").parent, Some(around));
    assert_eq!(timeline.slice("CeBatch").parent, Some(around));
}

#[test]
fn a_long_channel_states_the_error_of_its_end_too() {
    // It is drawn after a second. At its end the timer is less accurate than at its begin, because
    // the clocks may have drifted apart.
    let launched = |name: &str| {
        format!(
            "user start g{name} world GroupApi groupDepth=1\n\
             user start api{name} world CollApi parent=g{name} func={name} count=1Ki datatype=ncclFloat32\n\
             user stop api{name}\n\
             user start launch{name} world KernelLaunch parent=g{name} stream=0x10\n\
             user stop launch{name}\n\
             user start plan{name} world Group\n\
             user start coll{name} world Coll parent=api{name} group=plan{name} func={name} count=1Ki datatype=ncclFloat32\n\
             user stop coll{name}\n\
             user stop plan{name}\n\
             user stop g{name}\n\
             gpu start ch{name} world KernelCh parent=coll{name} channelId=0 pTimer=now\n"
        )
    };
    let ends =
        |name: &str, late: &str| format!("gpu state ch{name} KernelChStop value=now-{late}\ngpu stop ch{name}\n");
    // On a busy machine, some of them are seen too late to relate the clocks.
    let short = (launched("AllReduce") + &ends("AllReduce", "1ns")).repeat(8);
    let (long, late_end) = (launched("AllGather"), ends("AllGather", "1ms"));
    let timeline = shown(&format!("{short}{long}user sleep 1500ms\n{late_end}"));
    let channels: Vec<&Slice> = timeline.slices.iter().filter(|slice| slice.category == "gpu").collect();
    let [.., long] = channels[..] else { panic!("{channels:?}") };
    let Some(error) = long.int("time_error_ns") else { panic!("{long:?}") };
    assert!(error >= 200_000, "{error} ns after 1.5 s in which clocks may drift by 200 ppm");
    assert_eq!(long.str("doubt"), None);
}

/// NVIDIA/nccl#2221: the handle that NCCL stops is null, or still that of the channel's last event.
#[test]
fn a_kernel_channel_that_is_stopped_without_a_start_changes_none() {
    let case = fault::case(
        "NCCL",
        "kernel channels that are stopped and never started (#2221): by null, or by the last one's handle",
        "they are counted; the last one keeps its times",
    );
    let timeline = shown(&format!(
        "{COLL}gpu start ch world KernelCh parent=coll channelId=2 pTimer=1000\n\
         gpu state ch KernelChStop value=2000\n\
         gpu stop ch\n\
         gpu state null KernelChStop value=3000\n\
         gpu stop null\n\
         gpu state ch KernelChStop value=4000\n\
         gpu stop ch\n",
    ));
    let channels: Vec<_> = timeline.slices.iter().filter(|it| it.int("gpu_start_ns").is_some()).collect();
    let [channel] = channels[..] else { panic!("one channel: {channels:?}") };
    assert_eq!((channel.int("gpu_start_ns"), channel.int("gpu_stop_ns")), (Some(1000), Some(2000)));
    // The timer is related to nothing.
    assert_remarkable(&timeline, &[("channels_unmapped", 1), ("double_stops", 1)]);
    case.survived(1);
}

/// NVIDIA/nccl#2353, #2368: of an operation's channels some have no event, one has no stop of the
/// GPU's, and one has the stamps of an earlier operation.
#[test]
fn missing_and_shifted_kernel_channels_are_not_made_up() {
    let case = fault::case(
        "NCCL",
        "kernel channels that are missing, have no stop of the GPU's, or an earlier one's stamps (#2353, #2368)",
        "what came is drawn with its own stamps, and no other",
    );
    let timeline = shown(&format!(
        "{}gpu start one world KernelCh parent=coll channelId=1 pTimer=1000\n\
         gpu stop one\n\
         gpu start two world KernelCh parent=coll channelId=2 pTimer=500\n\
         gpu state two KernelChStop value=400\n\
         gpu stop two\n",
        COLL.replace("algo=RING", "algo=RING nChannels=4")
    ));
    let channels: Vec<_> = timeline.slices.iter().filter(|it| it.int("gpu_start_ns").is_some()).collect();
    let stamps: Vec<_> =
        channels.iter().map(|it| (it.int("channel"), it.int("gpu_start_ns"), it.int("gpu_stop_ns"))).collect();
    assert_eq!(stamps, [(Some(1), Some(1000), None), (Some(2), Some(500), Some(400))]);
    assert!(channels.iter().all(|it| it.str("doubt").is_some()), "{channels:?}");
    case.survived(1);
}

#[test]
fn kernel_channels_and_phases_keep_the_gpus_times() {
    // Stamps that no launch and no kernel relates to the host's clock.
    const NO_CLOCK: &str = "as NCCL saw it: the GPU's timer is not related to the host's clock";
    let timeline = shown(&format!(
        "{COLL}gpu start ch world KernelCh parent=coll channelId=255 pTimer=1000\n\
         gpu start ph world KernelPhase parent=ch channelId=255 phaseId=3 phaseName=reduce_scatter pTimer=1010\n\
         gpu state ph KernelPhaseStop value=1020\n\
         gpu stop ph\n\
         gpu state ch KernelChStop value=0x7fffffffffffffff\n\
         gpu stop ch\n",
    ));
    let [coll, channel] = timeline.named("AllReduce 4 KiB f32")[..] else { panic!("operation and channel") };
    let correlation = coll.str("correlation_id").unwrap();
    assert_eq!(
        channel.arguments(),
        format!(
            "channel=255 comm=2748 correlation_id={correlation} doubt={NO_CLOCK} gpu_start_ns=1000 \
             gpu_stop_ns=9223372036854775807"
        )
    );
    let expected = &format!("channel=255 comm=2748 doubt={NO_CLOCK} gpu_start_ns=1010 gpu_stop_ns=1020 phase=3");
    assert_arguments(&timeline, "reduce_scatter", expected);
    assert_eq!(timeline.place(channel), "GPU channels/dp · channel 255");
}

#[test]
fn operations_keep_all_their_fields() {
    let timeline = shown(
        "user start g world GroupApi graphCaptured=true groupDepth=2\n\
         user start api world P2pApi parent=g func=Recv count=6 datatype=ncclUint64 stream=0x7000 graphCaptured=true \
           userTag=0x8000000000000001\n\
         user stop api\n\
         user start launch world KernelLaunch parent=g stream=0x7001\n\
         user stop launch\n\
         user start plan world Group\n\
         user start recv world P2p parent=api group=plan func=Recv buff=0x4000 count=6 datatype=ncclUint64 peer=3 \
           nChannels=4 userTag=5\n\
         user stop recv\n\
         user start bc world Coll parent=api group=plan seqNumber=0x1ffffffff func=Broadcast sendBuff=0x1 recvBuff=0x2 \
           count=0x100000000 root=3 datatype=ncclInt8 nChannels=255 nWarps=17 algo=NVLS_TREE proto=LL128 \
           kernelVariant=BC_x isSymColl=true userTag=6\n\
         user stop bc\n\
         user stop plan\n\
         user stop g\n",
    );
    let without_colour = |name: &str| {
        let mut slice = timeline.slice(name).clone();
        assert!(slice.args.remove("correlation_id").is_some(), "{name} has a colour");
        assert!(matches!(slice.args.remove("tid"), Some(Value::Int(_))), "{name} has a thread");
        slice.arguments()
    };
    let group = timeline.slice("GroupApi");
    assert_eq!(group.arguments(), "captured=1 comm=2748 depth=2");
    assert_arguments(
        &timeline,
        "ncclRecv 48 B u64",
        "bytes=48 captured=1 comm=2748 count=6 datatype=ncclUint64 function=Recv stream=28672 \
         user_tag=-9223372036854775807",
    );
    assert_arguments(&timeline, "KernelLaunch", "comm=2748 stream=28673");
    assert_eq!(
        without_colour("Recv 48 B u64 ← 3"),
        "buffer_alignment=4096 bytes=48 channels=4 comm=2748 count=6 datatype=ncclUint64 function=Recv peer=3 replay=1 send_buffer=16384 \
         user_tag=5"
    );
    assert_eq!(
        without_colour("Broadcast 4 GiB"),
        "algorithm=NVLS_TREE buffer_alignment=1 bytes=4294967296 channels=255 comm=2748 count=4294967296 datatype=ncclInt8 \
         function=Broadcast protocol=LL128 recv_buffer=2 replay=2 root=3 send_buffer=1 seq=8589934591 symmetric=1 \
         user_tag=6 variant=BC_x warps=17"
    );
}

#[test]
fn replays_of_a_graph_are_counted_by_call() {
    let mut script = String::from("user start g world GroupApi graphCaptured=true groupDepth=2\n");
    for (call, count) in [("x", 1), ("y", 2)] {
        script += &format!(
            "user start {call} world CollApi parent=g func=AllReduce count={count} datatype=ncclFloat32 \
               graphCaptured=true\n\
             user stop {call}\n"
        );
    }
    script += "user stop g\n";
    for call in ["x", "x", "y", "x", "y"] {
        let count = if call == "x" { 1 } else { 2 };
        script += &format!(
            "callback start coll world Coll parent={call} func=AllReduce count={count} datatype=ncclFloat32\n\
             callback stop coll\n"
        );
    }
    let timeline = shown(&script);
    let replays = |name| timeline.named(name).iter().map(|slice| slice.int("replay")).collect::<Vec<_>>();
    assert_eq!(replays("AllReduce 4 B f32"), [Some(1), Some(2), Some(3)]);
    assert_eq!(replays("AllReduce 8 B f32"), [Some(1), Some(2)]);
    assert_remarkable(&timeline, &[]);
}
