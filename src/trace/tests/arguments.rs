//! Our typed arguments: their descriptor, their words, and the arguments of events.

use super::*;

/// The parts of Google's descriptors that matter here.
#[derive(Clone, PartialEq, prost::Message)]
struct DescriptorSet {
    #[prost(message, repeated, tag = "1")]
    file: Vec<FileDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FileDescriptor {
    #[prost(string, tag = "2")]
    package: String,
    #[prost(message, repeated, tag = "4")]
    messages: Vec<MessageDescriptor>,
    #[prost(message, repeated, tag = "5")]
    enums: Vec<EnumDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MessageDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    fields: Vec<FieldDescriptor>,
    #[prost(message, repeated, tag = "6")]
    extensions: Vec<FieldDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FieldDescriptor {
    #[prost(string, tag = "2")]
    extendee: String,
    #[prost(int32, tag = "3")]
    number: i32,
    #[prost(string, tag = "6")]
    type_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EnumDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    values: Vec<FieldDescriptorOfEnum>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FieldDescriptorOfEnum {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "2")]
    number: i32,
}

fn descriptor() -> FileDescriptor {
    let set = DescriptorSet::decode(EXTENSION).expect("a set of descriptors");
    let [file] = &set.file[..] else { panic!("one file") };
    file.clone()
}

#[test]
fn the_file_carries_the_descriptor_of_our_arguments() {
    let file = descriptor();
    assert_eq!(file.package, "ncclscope");
    let extensions: Vec<_> = file.messages.iter().flat_map(|message| &message.extensions).collect();
    let [extension] = &extensions[..] else { panic!("one extension") };
    assert_eq!(extension.number, nccl_field());
    assert_eq!((&*extension.extendee, &*extension.type_name), (".perfetto.protos.TrackEvent", ".ncclscope.Nccl"));

    let mut writer = Writer::new(tag(), clocks(0));
    let mut carried = Vec::new();
    reader::decoded(&writer.take(), |packet| carried.extend(packet.extension_descriptor)).unwrap();
    assert_eq!(carried.len(), 1);
    assert_eq!(carried[0].extension_set(), EXTENSION);
}

fn nccl_field() -> i32 {
    fields::track_event::NCCL as i32
}

#[test]
fn the_arguments_are_in_field_9900() {
    assert_eq!(nccl_field(), 9900);
}

#[test]
fn words_have_the_same_numbers_in_memory_and_in_the_trace() {
    // Names that an enum needs and NCCL does not have.
    const OWN: &[(&str, Word)] = &[
        ("FUNCTION_ABSENT", Word::ABSENT),
        ("DATATYPE_ABSENT", Word::ABSENT),
        ("ALGORITHM_ABSENT", Word::ABSENT),
        ("PROTOCOL_ABSENT", Word::ABSENT),
    ];
    let mut spelled = 0;
    // How a kernel was matched and how a peer is reached are our words, not NCCL's.
    let descriptor = descriptor();
    let ours = ["MATCH_ABSENT", "TRANSPORT_ABSENT"];
    let words = descriptor.enums.iter().filter(|it| !ours.contains(&it.values[0].name.as_str()));
    for value in words.flat_map(|it| &it.values) {
        if let Some((_, word)) = OWN.iter().find(|(name, _)| *name == value.name) {
            assert_eq!(value.number, i32::from(word.0), "{}", value.name);
        } else {
            let word = Word::known(value.name.as_bytes());
            assert_eq!(word, Some(Word(value.number as u16)), "{}", value.name);
            spelled += 1;
        }
    }
    // MC and UC are written as text; all others have a name.
    let known = (1..Word::FIRST_TEXT.0).filter(|&number| Word(number).spelling().is_some()).count();
    assert_eq!(spelled, known - 2);
    // The reader's types agree.
    assert_eq!(words::Function::AllReduce as u16, Word::ALL_REDUCE.0);
    assert_eq!(words::DataType::NcclFloat32 as u16, Word::FLOAT32.0);
}

#[test]
fn each_match_method_of_a_recording_has_its_own_count() {
    let matched = std::array::from_fn(|index| 1 << index);
    let mut args = Args::new();
    args.matches(&Matches { matched, ..Matches::default() }, 0);
    let said = Nccl::decode(args.bytes()).expect("our own message");
    for (method, count) in Method::ALL.into_iter().zip(matched) {
        let written = match method {
            Method::Bracket => said.kernels_launch_bracket,
            Method::External => said.kernels_external_id,
            Method::GraphNode => said.kernels_graph_node,
            Method::GraphReplay => said.kernels_graph_replay,
            Method::ApiBracket => said.kernels_call_bracket,
            Method::ThreadOrder => said.kernels_thread_order,
            Method::DeviceTimer => said.kernels_device_timer,
            Method::Contradicted => said.kernels_contradicted,
            Method::CaptureOrder | Method::Range | Method::KernelName => continue,
        };
        assert_eq!(written, Some(count), "{method:?}");
    }
}

/// An event's arguments, in the order of their fields.
fn arguments(input: &str) -> String {
    let picture = picture(draw(input));
    let args = |event: &Drawn| {
        let all = format!("{:?}", event.args);
        let set: Vec<String> = all
            .trim_start_matches("Nccl { ")
            .split(", ")
            .filter_map(|field| {
                let (name, value) = field.split_once(": Some(")?;
                Some(format!("{name}={}", value.trim_end_matches([' ', '}', ')'])))
            })
            .collect();
        set.join(" ")
    };
    let said = picture.events.iter().map(|event| (event, args(event))).filter(|(_, args)| !args.is_empty());
    said.map(|(event, args)| format!("{}: {args}\n", if event.name.is_empty() { "end" } else { &event.name })).collect()
}

#[test]
fn events_have_the_known_facts_as_arguments() {
    let said = arguments(
        "0 0 thread 100 python3 | 0 1 thread 200 NCCL | 0 0 text $1 AllShuffle
         0 0 comm C hash=7 rank=0 ranks=2 nodes=1
         1 0 start g GroupApi depth=2
         2 0 state g GROUP_START_API_STOP
         3 0 start api CollApi parent=g captured count=16
         4 0 stop api
         5 0 start ar Coll parent=api seq=3 count=16 func=$1
         6 0 stop ar
         7 0 stop g
        20 1 start p ProxyOp parent=ar peer=1 channel=2 steps=4
        21 1 start s ProxyStep parent=p step=3
        22 1 state s PROXY_STEP_SEND_WAIT argument=512
        23 1 start s2 ProxyStep parent=p step=3
        24 1 stop s2
        25 1 stop p
        30 1 start k KernelCh parent=ar channel=3 gpu=1000
        31 1 state k KERNEL_CH_STOP argument=1200
        32 1 stop k
        33 1 start c ProxyCtrl | 33 1 state c PROXY_CTRL_APPEND | 34 1 state c PROXY_CTRL_APPEND_END argument=6
        35 1 start n NetPlugin parent=s bytes=100
        finish",
    );
    let expected = unindent(
        "
        communicator init: rank=0 comm=7 ranks=2 nodes=1 interface=5 comm_hash=\"0000000000000007\"
        GroupApi: depth=2 comm=7
        ncclAllReduce 64 B f32: bytes=64 count=16 datatype=NcclFloat32 function=AllReduce captured=true comm=7
        AllShuffle 64 B f32: seq=3 bytes=64 count=16 datatype=NcclFloat32 algorithm=Ring protocol=Simple \
            root=0 warps=0 replay=1 reduction=0 comm=7 function_text=\"AllShuffle\" tid=100
        end: group_start_returned_ns=1
        AllShuffle 64 B f32 ch 2: seq=3 bytes=64 channel=2 peer=1 steps=4 chunk_bytes=0 comm=7 queued_ns=1 transport=Net
        step 3 · AllShuffle 64 B f32: channel=2 step=3
        network wait: bytes=512
        end: starts=2
        AllShuffle 64 B f32: channel=3 gpu_start_ns=1000 comm=7 doubt=\"as NCCL saw it: this release may take \
            the stamps of other operations for its own\"
        end: gpu_stop_ns=1200
        append: comm=7
        end: appended=6 append_batch=1
        network event: net_id=65537 net_type=0 net_device=0 net_work_request=0 net_opcode=0 net_queue_pair=0 \
            net_length=100",
    );
    let said = said.trim_end();
    // The first ones are the recording's own.
    let said = said.split_once("communicator init").map(|(_, rest)| format!("communicator init{rest}")).unwrap();
    assert!(said == expected, "\n-- said --\n{said}\n-- expected --\n{expected}\n");
}
