//! `ncclscope scrub`: no planted secret is in the copy, and the commands give the same answers for
//! the copy as for the trace.

use crate::command::ncclscope;
use crate::synthetic::Job;
use ncclscope::trace::reader::proto::perfetto::protos::gpu_render_stage_event::{ComputeKernelLaunch, ExtraComputeArg};
use ncclscope::trace::reader::proto::perfetto::protos::{
    EventCategory, GpuRenderStageEvent, InternedData, InternedGpuRenderStageSpecification,
};
use ncclscope::trace::reader::{self, TracePacket};
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::{Recording, assert_sound};
use prost::Message as _;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// What must not be in a copy, in any letter case.
const SECRETS: [&str; 14] = [
    "hushhost",
    "hushcomm",
    "hushproc",
    "hushthread",
    "hushkernel",
    "hushrange",
    "hushdomain",
    "hushpath",
    "hushuser",
    "hushvalue",
    "hushjob",
    "hushgpu",
    "10.20.30.40",
    "fd00:1::beef",
];

fn scrub(words: &[&Path]) -> Result<String, String> {
    ncclscope(&[&[Path::new("scrub")], words].concat())
}

fn packets(path: &Path) -> Vec<TracePacket> {
    let mut packets = Vec::new();
    reader::decoded(&fs::read(path).unwrap(), |packet| packets.push(packet)).unwrap();
    packets
}

/// Every string in a message, and every run of bytes that may be one, whether this build knows its
/// field or not.
fn strings(message: &[u8], all: &mut Vec<String>) {
    let mut rest = message;
    let varint = |rest: &mut &[u8]| {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (first, after) = rest.split_first()?;
            *rest = after;
            number |= u64::from(first & 0x7f) << shift;
            if *first < 0x80 {
                return Some(number);
            }
        }
        None
    };
    while !rest.is_empty() {
        let Some(tag) = varint(&mut rest) else { return };
        match tag & 7 {
            0 => drop(varint(&mut rest)),
            1 => rest = rest.get(8..).unwrap_or_default(),
            5 => rest = rest.get(4..).unwrap_or_default(),
            2 => {
                let Some(length) = varint(&mut rest).and_then(|length| usize::try_from(length).ok()) else { return };
                let Some(inner) = rest.get(..length) else { return };
                rest = &rest[length..];
                all.push(String::from_utf8_lossy(inner).into_owned());
                strings(inner, all);
            }
            _ => return,
        }
    }
}

/// Every string in the packets of a file.
fn all_strings(path: &Path) -> Vec<String> {
    let mut all = Vec::new();
    packets(path).iter().for_each(|packet| strings(&packet.encode_to_vec(), &mut all));
    all
}

#[track_caller]
fn assert_clean(path: &Path) {
    for text in all_strings(path) {
        let lower = text.to_lowercase();
        for secret in SECRETS {
            assert!(!lower.contains(secret), "{secret} is in {}: {text:?}", path.display());
        }
    }
}

/// Writes packets as a file.
fn written(packets: &[TracePacket], path: &Path) {
    let mut bytes = Vec::new();
    for packet in packets {
        prost::encoding::message::encode(1, packet, &mut bytes);
    }
    fs::write(path, bytes).unwrap();
}

/// A recording, with a secret in every place where a string can be.
fn planted(folder: &Path) -> PathBuf {
    let script = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/eager_allreduce.txt")).unwrap();
    let play = Play::new(script.replace("data parallel", "hushcomm:17")).env("NCCLSCOPE_PRESET", "full");
    let play =
        play.env("NCCLSCOPE_RANK", "3").env("SLURM_JOB_PARTITION", "hushvalue").env("NCCLSCOPE_RUN_ID", "hushjob-4711");
    let recording = Recording::by(play.env("NCCL_DEBUG_FILE", "/home/hushuser/hushpath.%h"));
    let mut packets = packets(&recording.traces.file());
    for packet in &mut packets {
        if let Some(track) = &mut packet.track_descriptor {
            track.description =
                track.description.take().map(|text| format!("{text} Of hushuser on hushhost, 10.20.30.40."));
            if let Some(process) = &mut track.process {
                process.process_name = Some("rank 3 · hushhost · GPU 0 (hushgpu)".into());
                process
                    .process_labels
                    .extend(["/scratch/hushpath/train.py --token hushvalue".to_owned(), "hushjob, hushproc".into()]);
            } else if let Some(thread) = &mut track.thread {
                thread.thread_name = Some("hushthread".into());
            } else if let Some(name) = &mut track.name {
                name.push_str(" · hushthread (17)");
            }
            if let Some(counter) = &mut track.counter {
                counter.unit_name = Some("hushvalues".into());
            }
        }
        for name in packet.interned_data.iter_mut().flat_map(|it| &mut it.event_names).step_by(3) {
            name.name = Some("hushkernel<hushrange>(float*)".into());
        }
        if let Some(event) = &mut packet.track_event {
            if event.name.is_some() {
                event.name = Some("hushrange at [fd00:1::beef]:4711".into());
            }
            let args = event.nccl.get_or_insert_default();
            for text in [
                &mut args.variant,
                &mut args.sync_strategy,
                &mut args.doubt,
                &mut args.function_text,
                &mut args.datatype_text,
                &mut args.algorithm_text,
                &mut args.protocol_text,
                &mut args.note,
                &mut args.comm_hash,
                &mut args.kernel,
                &mut args.uuid,
                &mut args.nvtx_domain,
                &mut args.nvtx_range,
            ] {
                *text = Some("hushuser@hushhost:/hushpath hushvalue, 10.20.30.40".into());
            }
            args.note = Some("from hushuser at [fd00:1::beef]:4711 and fd00:1::beef, hushhost.example".into());
            args.nvtx_domain = Some("hushdomain".into());
            args.send_buffer = Some(0x7f12_dead_beef);
        }
        for said in packet.trace_attributes.iter_mut().flat_map(|it| &mut it.attribute) {
            if said.key() == "ncclscope.preset" {
                said.key = Some("hushuser.key".into());
            }
        }
        if let Some(info) = &mut packet.gpu_info {
            info.gpus.iter_mut().for_each(|gpu| {
                (gpu.name, gpu.vendor, gpu.uuid) =
                    (Some("hushgpu".into()), Some("hushgpu".into()), Some(b"hushgpu.hushgpu.".to_vec()));
            });
        }
        if let Some(extension) = &mut packet.extension_descriptor {
            extension.extension_set.get_or_insert_default().extend(b"\x0a\x08hushuser");
        }
    }
    let name = |name: &str| Some(name.to_owned());
    let arg = ExtraComputeArg {
        name: name("hushkernel"),
        string_value: name("hushkernel_Z"),
        uint_value: Some(0x7f12_dead_beef),
    };
    let launch = ComputeKernelLaunch { args: vec![arg], ..ComputeKernelLaunch::default() };
    packets.push(TracePacket {
        timestamp: Some(6),
        trusted_packet_sequence_id: Some(77),
        interned_data: Some(InternedData {
            event_categories: vec![EventCategory { iid: Some(9), name: name("hushdomain") }],
            gpu_specifications: vec![InternedGpuRenderStageSpecification {
                iid: Some(9),
                name: name("hushkernel"),
                description: name("of hushuser"),
                ..InternedGpuRenderStageSpecification::default()
            }],
            ..InternedData::default()
        }),
        gpu_render_stage_event: Some(GpuRenderStageEvent {
            name: name("hushkernel<hushrange>"),
            launch: Some(launch),
            ..GpuRenderStageEvent::default()
        }),
        ..TracePacket::default()
    });
    let path = folder.join("hushhost.4711.1795000000.perfetto-trace");
    written(&packets, &path);
    // Fields that this build does not know: in a packet, and a packet of nothing else.
    let mut bytes = fs::read(&path).unwrap();
    let mut unknown = TracePacket { timestamp: Some(5), ..TracePacket::default() }.encode_to_vec();
    prost::encoding::string::encode(4_711, &"hushuser".to_owned(), &mut unknown);
    prost::encoding::bytes::encode(1, &unknown, &mut bytes);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn nothing_that_was_planted_is_in_the_copy() {
    let folder = tempfile::tempdir().unwrap();
    let path = planted(folder.path());
    let before = all_strings(&path).join("\n").to_lowercase();
    for secret in SECRETS {
        assert!(before.contains(secret), "{secret} was planted");
    }
    for (more, name) in [(&[][..], "plain"), (&[Path::new("--keep-names")][..], "kept")] {
        let copy = folder.path().join(name);
        let said = scrub(&[&[&*path, Path::new("-o"), &copy], more].concat()).unwrap();
        assert!(said.lines().count() == 1 && said.contains("2 host names") && said.contains("pointers"), "{said}");
        if more.is_empty() {
            assert_clean(&copy);
            // Nor is what was there before.
            let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
            let is_host =
                |text: &String| text.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == host.trim());
            assert_eq!(all_strings(&copy).iter().find(|text| is_host(text)), None);
        }
        Trace::open(&copy).unwrap();
        assert!(!all_strings(&copy).concat().contains("/home/"));
    }
}

#[test]
fn a_copy_is_a_sound_trace_with_the_same_figures() {
    let folder = tempfile::tempdir().unwrap();
    for scenario in ["eager_allreduce", "graph_replay", "net_plugin", "grouped", "pxn", "copy_engine"] {
        let script = fs::read_to_string(format!("{}/scenarios/{scenario}.txt", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let recording = Recording::by(Play::new(script).env("NCCLSCOPE_PRESET", "full").env("NCCLSCOPE_RANK", "0"));
        let (trace, copy) = (recording.traces.file(), folder.path().join(scenario));
        scrub(&[&trace, Path::new("-o"), &copy]).unwrap();
        assert_sound(&Trace::open(&copy).unwrap(), 0);
        for sql in [
            "SELECT ts, dur, depth, category FROM slice ORDER BY ts, dur, depth, category",
            "SELECT ts, CAST(value AS INT) AS value FROM counter ORDER BY ts, value",
            "SELECT count(*) AS n FROM flow",
            "SELECT key, int_value FROM args WHERE int_value IS NOT NULL AND key NOT GLOB '*buffer' AND key NOT GLOB '*stream' \
             AND key NOT GLOB '*net_*' AND key NOT GLOB '*user_tag' AND key NOT GLOB '*_id' ORDER BY key, int_value",
        ] {
            let table = |path: &Path| format!("{:?}", Trace::open(path).unwrap().rows(sql));
            assert_eq!(table(&trace), table(&copy), "{scenario}: {sql}");
        }
        assert_eq!(figures(&trace), figures(&copy), "{scenario}");
        let verdict = |path: &Path| {
            let said = ncclscope(&[Path::new("info"), path]).unwrap();
            said.lines().nth(1).unwrap().to_owned()
        };
        assert_eq!(verdict(&trace), verdict(&copy), "{scenario}");
        // Scrubbing again finds nothing that would change a figure.
        let again = folder.path().join(format!("{scenario}-again"));
        scrub(&[&copy, Path::new("-o"), &again]).unwrap();
        assert_eq!(figures(&copy), figures(&again), "{scenario}");
    }
}

/// The numbers of `ncclscope summary`, without texts and without counts of texts.
fn figures(path: &Path) -> Vec<String> {
    let said = ncclscope(&["summary".as_ref(), path.as_os_str(), "--format".as_ref(), "json".as_ref()]).unwrap();
    let whole: Value = serde_json::from_str(&said).unwrap();
    let mut all = Vec::new();
    for (name, table) in whole["tables"].as_object().unwrap().iter().filter(|it| it.0 != "environment") {
        for row in table.as_array().unwrap() {
            let numbers = row.as_object().unwrap().iter().filter(|it| it.1.is_number());
            all.push(format!("{name} {:?}", numbers.collect::<Vec<_>>()));
        }
    }
    assert!(all.len() > 3);
    all.sort();
    all
}

#[test]
fn files_of_one_job_have_the_same_stand_ins_and_merge() {
    let folder = tempfile::tempdir().unwrap();
    let (traces, copies) = (folder.path().join("traces"), folder.path().join("copies"));
    fs::create_dir(&traces).unwrap();
    let mut job = Job::new(8, 2, 40);
    job.world = "hushcomm".into();
    job.write_to(&traces, 8, true);
    fs::write(traces.join("node0.1000.1795000000.summary.txt"), "not for sharing").unwrap();
    let said = scrub(&[&traces, Path::new("-o"), &copies]).unwrap();
    assert!(said.contains("8 traces") && said.contains("2 host names, 2 names of communicators"), "{said}");
    let mut names: Vec<_> =
        fs::read_dir(&copies).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, (0..8).map(|rank| format!("rank-{rank}.perfetto-trace")).collect::<Vec<_>>());
    names.iter().for_each(|name| assert_clean(&copies.join(name)));

    // All commands give the same answers, except for names.
    let diagnosis = |path: &Path| -> Value {
        let said = ncclscope(&["diagnose".as_ref(), path.as_os_str(), "--json".as_ref(), "-".as_ref()]).unwrap();
        let mut whole: Value = serde_json::from_str(&said).unwrap();
        whole["ranks"].as_array_mut().unwrap().sort_by_key(|rank| rank["rank"].to_string());
        whole
    };
    let (before, after) = (diagnosis(&traces), diagnosis(&copies));
    for part in ["verdict", "what_if"] {
        assert_eq!(before[part], after[part], "{part}");
    }
    for (one, other) in before["ranks"].as_array().unwrap().iter().zip(after["ranks"].as_array().unwrap()) {
        for column in ["rank", "own_ns", "exposed_ns", "waits_ns", "last"] {
            assert_eq!(one[column], other[column], "{column}");
        }
        assert!(other["host"].as_str().unwrap().starts_with("host-"), "{other}");
    }
    assert_eq!(figures(&traces), figures(&copies));
    let merged = |folder_of: &Path, name: &str| {
        let path = folder.path().join(name);
        ncclscope(&["merge".as_ref(), folder_of.as_os_str(), "-o".as_ref(), path.as_os_str()]).unwrap();
        path
    };
    let [whole, copy] = [merged(&traces, "whole"), merged(&copies, "copy")];
    assert_eq!(figures(&whole), figures(&copy));
    // A merged file can be scrubbed as well as merged from scrubbed ones.
    let scrubbed = folder.path().join("scrubbed");
    scrub(&[&whole, Path::new("-o"), &scrubbed]).unwrap();
    assert_clean(&scrubbed);
    assert_eq!(figures(&whole), figures(&scrubbed));
    let waits =
        "SELECT count(*) AS n, sum(dur) AS ns FROM slice WHERE category = 'job' AND name GLOB 'waits for rank *'";
    let [one, two, three] =
        [&whole, &copy, &scrubbed].map(|path| format!("{:?}", Trace::open(path).unwrap().rows(waits)));
    assert!(one == two && one == three, "{one} {two} {three}");
    assert_sound(&Trace::open(&scrubbed).unwrap(), 0);
}

#[test]
fn an_unfinished_last_packet_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let original = planted(folder.path());
    let mut bytes = fs::read(&original).unwrap();
    bytes.extend([0x0a, 100, 1, 2, 3]);
    fs::write(&original, bytes).unwrap();
    let copy = folder.path().join("copy");
    let said = scrub(&[&original, Path::new("-o"), &copy]).unwrap();
    assert!(said.starts_with(&format!("{}: left out an unfinished packet of 5 bytes\n", original.display())), "{said}");
}

#[test]
fn a_file_that_cannot_be_scrubbed_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let out = path("out");
    let refused = |file: &Path| {
        let reason = scrub(&[file, Path::new("-o"), &out]).unwrap_err();
        assert!(!out.exists(), "{reason}");
        reason
    };
    let data = |name: &str| PathBuf::from(format!("{}/{name}", env!("CARGO_MANIFEST_DIR")));
    assert!(refused(&data("data/kineto_1rank_nccl.json.gz")).contains("only traces of ncclscope can be scrubbed"));
    assert!(
        refused(&data("captures/emulated-nccl-2.32.3-cupti-13.0.capture")).contains("ncclscope replay makes a trace")
    );
    fs::create_dir(path("empty")).unwrap();
    assert!(
        refused(&path("empty")).contains("the folder has no") || refused(&path("empty")).contains("there is no trace")
    );
    let foreign = TracePacket { timestamp: Some(7), ..TracePacket::default() };
    written(&[foreign], &path("foreign"));
    assert!(refused(&path("foreign")).contains("nothing in this one says that ncclscope wrote it"));
    let job = Job::new(2, 1, 20);
    let mut bytes = Vec::new();
    job.write(0, true, &mut bytes).unwrap();
    let half = bytes.len() / 2;
    bytes[half..half + 64].fill(7);
    fs::write(path("damaged"), &bytes).unwrap();
    assert!(refused(&path("damaged")).contains("cannot be read"));
    fs::write(&out, "").unwrap();
    assert!(scrub(&[&path("damaged"), Path::new("-o"), &out]).unwrap_err().contains("exists already"));
}
