//! What restarts change in a trace: nothing but where it can be read from.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::replay::{Replay, walk};
use crate::import::{self, Communicator, Kernel, Profile, Wanted};
use crate::model::ids::ProcessTag;
use crate::model::time::HostNs;
use crate::trace::fields::track_event::r#type as kind;
use crate::trace::reader::{self, Ends, Error};
use crate::trace::tracks::{ProcessInfo, Tracks};
use crate::trace::words::{Category, remark, track};
use crate::trace::writer::{Clocks, MARKER};

/// The recordings of tests/captures: graphs, a hung job, several GPUs, settings of all kinds.
fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let files = folder.read_dir().unwrap().map(|file| file.unwrap().path());
    let mut captures: Vec<_> = files.filter(|path| path.extension().is_some_and(|it| it == "capture")).collect();
    captures.sort();
    assert!(captures.len() >= 8, "{captures:?}");
    captures
}

fn replayed(path: &Path, mut replay: Replay) -> Vec<u8> {
    let mut trace = Vec::new();
    walk(File::open(path).unwrap(), |entry| replay.take(entry, None, &mut |packets| trace.extend(packets))).unwrap();
    replay.finish(&mut |packets| trace.extend(packets));
    trace
}

/// The events of a trace, and its tracks by their uuids.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    events: Vec<String>,
    tracks: BTreeMap<u64, Vec<u8>>,
    /// The slices that are open at the end, with their names, but for what threads do: that may be
    /// the same for hours.
    open: BTreeMap<u64, Vec<String>>,
}

/// What a trace shows, without what restarts repeat.
fn shown(trace: &[u8]) -> Shown {
    let mut shown = Shown::default();
    let mut names = HashMap::new();
    reader::read(trace, |packet| {
        if let Some(described) = packet.track_descriptor() {
            names.insert(described.uuid(), described.name().to_owned());
            shown.tracks.insert(described.uuid(), packet.descriptor.unwrap().to_vec());
        }
        let Some(event) = &packet.event else { return Ok(()) };
        let is_repeated = event.category == Some(Category::Newest)
            || names.get(&event.track).is_some_and(|name| name == track::DROPS) && event.value != Some(0);
        if is_repeated {
            return Ok(());
        }
        let open = shown.open.entry(event.track).or_default();
        match event.kind {
            kind::TYPE_SLICE_BEGIN => open.push(event.name.to_owned()),
            kind::TYPE_SLICE_END => _ = open.pop(),
            _ => {}
        }
        let flows: Vec<u64> = event.flows().collect();
        let all = (packet.time, event.kind, event.track, event.name, event.category, event.correlation, event.value);
        shown.events.push(format!("{all:?} {flows:?} {:?}", event.args()));
        Ok::<_, Error>(())
    })
    .unwrap();
    let is_state = |uuid: &u64| names.get(uuid).is_some_and(|name| name.starts_with(track::DOES) || name == "state");
    shown.open.retain(|uuid, open| !open.is_empty() && !is_state(uuid));
    shown
}

/// Where the restarts of a trace begin.
fn restarts(trace: &[u8]) -> Vec<usize> {
    memchr::memmem::find_iter(trace, &MARKER).map(|at| at - 5).collect()
}

#[test]
fn restarts_change_nothing_that_is_shown() {
    for path in captures() {
        let name = path.display();
        let plain = shown(&replayed(&path, Replay::restarting(usize::MAX)));
        let restarted = replayed(&path, Replay::restarting(2 << 10));
        let all = shown(&restarted);
        assert_eq!(all.events.len(), plain.events.len(), "{name}");
        for (with, without) in all.events.iter().zip(&plain.events) {
            assert_eq!(with, without, "{name}");
        }
        assert_eq!((&all.tracks, &all.open), (&plain.tracks, &plain.open), "{name}");

        let places = restarts(&restarted);
        assert!(places.len() > 3, "{name}: {}", restarted.len());
        for at in &places {
            let rest = shown(&restarted[*at..]);
            let from = all.events.len() - rest.events.len();
            assert!(rest.events == all.events[from..], "{name} from byte {at} on");
        }
        // What is open at the end was begun after the last restart but one.
        if let [.., before, _] = places[..] {
            assert_eq!(shown(&restarted[before..]).open, all.open, "{name}");
        }
    }
}

#[test]
fn what_ran_is_imported_from_the_ends_of_a_file() {
    let (folder, mut count) = (tempfile::tempdir().unwrap(), 0);
    for path in captures() {
        let name = path.display();
        let trace = folder.path().join(path.file_stem().unwrap()).with_extension("perfetto-trace");
        fs::write(&trace, replayed(&path, Replay::restarting(2 << 10))).unwrap();
        let length = fs::metadata(&trace).unwrap().len();
        let mut shorter = length;
        for least in (0..10).rev().map(|part| length * part / 20) {
            let Some(ends) = Ends::of(&mut File::open(&trace).unwrap(), 8 << 10, least).unwrap() else { continue };
            let read = ends.bytes(length) - (8 << 10);
            assert!((least..=shorter).contains(&read), "{name}: {read} of {length} for {least}");
            shorter = read;
            let profile = |ends| import::open_as(&trace, 2, (Wanted::Arrows, ends), |_| ()).unwrap();
            let (whole, part) = (profile(None), profile(Some(ends)));
            assert_eq!((part.begin, &part.processes, &part.clock), (whole.begin, &whole.processes, &whole.clock));
            // With several ranks in a process, any of them may come last.
            let rank = |it: &Communicator| it.rank.filter(|_| it.device().is_some());
            let text =
                |it: &Communicator| format!("{:?}", Communicator { rank: rank(it), created: None, ..it.clone() });
            let known = |of: &Profile| of.communicators.iter().map(text).collect::<BTreeSet<_>>();
            assert!(known(&part).is_subset(&known(&whole)), "{name}: {:?}\n{:?}", known(&part), known(&whole));
            // Between the ends, one may have been created.
            let created = |of: &Profile| of.communicators.iter().filter_map(|it| it.created).collect::<BTreeSet<_>>();
            assert!(created(&part).is_subset(&created(&whole)), "{name}");
            // Where they are in the lists of operations and communicators is another matter.
            let kernel = |of: &Profile, it: &Kernel| {
                let operation = |at: &usize| format!("{:?}", of.operations[*at].request);
                let carried: Vec<String> = it.carried.operations.iter().map(operation).collect();
                format!("{:?} {} {:?} {carried:?}", it.span, it.name, it.carried.replay)
            };
            let kernels = |of: &Profile| of.kernels.iter().map(|it| kernel(of, it)).collect::<BTreeSet<_>>();
            assert!(kernels(&part).is_subset(&kernels(&whole)), "{name}");
            if let Some(last) = part.kernels.last() {
                assert_eq!(Some(kernel(&part, last)), whole.kernels.last().map(|it| kernel(&whole, it)), "{name}");
            }
            count += usize::from((1..whole.kernels.len()).contains(&part.kernels.len()));
        }
    }
    assert!(count >= 6, "{count} are read in part");
}

#[test]
fn what_was_lost_is_said_again() {
    let process = ProcessInfo { pid: 1, name: String::new(), labels: Vec::new(), rank: None, world_size: None };
    let clocks = Clocks { boottime: HostNs(1), monotonic: 1, realtime: 1 };
    let mut tracks = Tracks::new(ProcessTag::from_random(7), clocks, &process);
    tracks.restart_after(1);
    tracks.note(HostNs(5), remark::DISCARDED, "too fast");
    let lost = |trace: &[u8]| {
        let mut lost = Vec::new();
        reader::read(trace, |packet| {
            let event = packet.event.as_ref().filter(|event| event.name == remark::DISCARDED);
            lost.extend(event.map(|event| (packet.time, event.category)));
            Ok::<_, Error>(())
        })
        .unwrap();
        lost
    };
    for category in [Category::Ncclscope, Category::Newest, Category::Newest] {
        assert_eq!(lost(&tracks.take()), [(Some(HostNs(5)), Some(category))]);
    }
}
