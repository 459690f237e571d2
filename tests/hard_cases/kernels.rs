//! Kernel channels as NCCL reports them, and replays of graphs.

use super::arguments::assert_arguments;
use super::{COLL, assert_remarkable, shown};
use ncclscope_tests::fault;
use ncclscope_tests::timeline::Slice;

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
fn a_kernel_channel_stopped_without_a_start_changes_no_other() {
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
    const NO_CLOCK: &str = "as NCCL saw it: the GPU's timer is not known on the host's clock";
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
