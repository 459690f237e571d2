//! Parents that are missing or stopped, states that do not fit, types and handles that nobody
//! knows.

use super::{COLL, INIT, assert_remarkable, names, shown, shown_by};
use ncclscope_tests::fault;
use ncclscope_tests::recording::{Recording, assert_sound};
use ncclscope_tests::timeline::Timeline;

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
fn a_proxy_operation_that_hangs_stays_open_until_its_communicator_is_finalized() {
    for (last, is_open) in [("user sleep 1ms", true), ("user finalize world", false)] {
        let recording = Recording::of(&format!(
            "{INIT}{COLL}proxy start op world ProxyOp parent=coll channelId=2 peer=3 nSteps=8 chunkSize=128Ki isSend=1\n\
             proxy state op OpInProgress\n\
             {last}"
        ));
        let trace = recording.traces.open();
        assert_sound(&trace, u64::from(is_open));
        let timeline = Timeline::read(&trace);
        let slice = timeline.slice("AllReduce 4 KiB f32 ch 2");
        assert_eq!(slice.duration.is_none(), is_open);
        assert_eq!(slice.str("doubt"), (!is_open).then_some("its communicator was finalized"));
        assert_remarkable(&timeline, &[]);
    }
}

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
    assert_eq!(timeline.slice("unknown event type").int("unknown"), Some(3), "two kinds at once are not one kind");
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
