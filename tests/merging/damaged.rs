//! Files that were cut off or damaged.

use super::{identities, recorded};
use crate::command::ncclscope;
use crate::synthetic::{Damage, Job};
use ncclscope::trace::reader::proto::perfetto::protos::track_event::Type;
use ncclscope::trace::reader::{self, whole_length};
use ncclscope::trace::words::Category;
use ncclscope::trace::writer::TRACK_BITS;
use ncclscope_tests::perfetto::{Problem, Trace};
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::{Recording, assert_sound};
use std::collections::HashMap;
use std::fs;

/// Byte positions to cut at: in the first packet, in the middle, around the last packet, and
/// others.
fn cuts(length: usize) -> [usize; 9] {
    [1, 2, 40, length / 4, length / 2, length * 3 / 4, length - 40, length - 2, length - 1]
}

#[test]
fn a_cut_file_can_be_opened_up_to_the_cut() {
    for compress in [true, false] {
        let file = recorded("eager_allreduce", compress);
        assert_eq!(whole_length(&file), file.len());
        let all = identities(&Trace::from_bytes(&file[..]).unwrap()).len();
        let mut before = 0;
        for cut in cuts(file.len()) {
            let trace = match Trace::from_bytes(&file[..cut]) {
                Ok(trace) => trace,
                Err(error) => panic!("cut at {cut} of {}: {error}", file.len()),
            };
            let bad = trace.rows("SELECT name FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')");
            assert!(bad.is_empty(), "cut at {cut} of {}: {bad:?}", file.len());
            let slices = trace.rows("SELECT count(*) AS n FROM slice")[0].i64("n") as usize;
            assert!(slices >= before && slices <= all, "cut at {cut}: {slices} slices after {before} of {all}");
            before = slices;
        }
    }
}

#[test]
fn a_cut_file_can_be_merged_without_its_tail() {
    // Uncompressed, it has hundreds of packets, and most cuts go through one.
    let cut_file = recorded("eager_allreduce", false);
    let other = recorded("graph_replay", true);
    let others = identities(&Trace::from_bytes(&other[..]).unwrap());
    for cut in cuts(cut_file.len()) {
        let bytes = &cut_file[..cut];
        let whole = &bytes[..whole_length(bytes)];
        // Nothing whole is lost: the next packet begins where the whole ones end, and the cut is
        // inside it. The largest one describes our arguments.
        assert!(cut_file[whole.len()] == 0x0a && cut - whole.len() < 8192, "cut at {cut}: {} are whole", whole.len());
        for (order, joined) in [[whole, &other[..]].concat(), [&other[..], whole].concat()].into_iter().enumerate() {
            let joined = Trace::from_bytes(joined).unwrap();
            let problems: Vec<_> = joined.check();
            // What was open at the cut has lost its end, and nothing else is wrong.
            let wrong = problems.iter().filter(|problem| !matches!(problem, Problem::OpenSlices { .. }));
            let wrong: Vec<_> = wrong.map(ToString::to_string).collect();
            assert!(wrong.is_empty(), "cut at {cut}, order {order}: {wrong:?}");
            let joined = identities(&joined);
            let missing = others.iter().filter(|slice| joined.binary_search(slice).is_err()).count();
            assert_eq!(missing, 0, "cut at {cut}, order {order}: slices of the file that was not cut");
        }
    }
}

#[test]
fn a_file_after_an_unremoved_tail_is_silently_lost() {
    // This is why the tail must be removed first.
    let file = recorded("eager_allreduce", true);
    let other = recorded("graph_replay", true);
    let joined = Trace::from_bytes([&file[..file.len() - 2], &other[..]].concat());
    let fine = joined.is_ok_and(|joined| {
        let slices = joined.rows("SELECT count(*) AS n FROM slice WHERE name LIKE 'AllReduce 4 MiB%'");
        joined.check().is_empty() && slices[0].i64("n") > 0
    });
    assert!(!fine);
}

#[test]
fn damaged_files_are_left_out_and_ranks_without_a_file_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = |rank: u32| folder.path().join(format!("{rank}.perfetto-trace"));
    for rank in 0..6 {
        let play = Play::new(format!("user init a comm=1 rank={rank} nranks=8\nuser finalize a"));
        let play = play.env("NCCLSCOPE_RANK", rank.to_string());
        fs::copy(Recording::by(play).traces.file(), file(rank)).unwrap();
    }
    let merge = |output: &str| {
        let output = folder.path().join(output);
        ncclscope(&["merge".as_ref(), "-o".as_ref(), output.as_os_str(), folder.path().as_os_str()])
    };
    assert_eq!(merge("six").unwrap().lines().next(), Some("no file of ranks 6-7 of 8"));
    // An empty file, one that cannot be a trace, and a trace with something else in the middle.
    fs::write(file(1), "").unwrap();
    fs::write(file(3), "neither a trace nor anything else\n").unwrap();
    let mut bytes = fs::read(file(4)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 20].fill(0xff);
    fs::write(file(4), bytes).unwrap();
    let said = merge("three").unwrap();
    for rank in [1, 3, 4] {
        let name = file(rank);
        let line = said.lines().find(|line| line.contains(&*name.to_string_lossy()));
        assert!(line.is_some_and(|line| line.starts_with("left out: ")), "{rank}: {said}");
    }
    assert!(said.contains("no file of ranks 1,3-4,6-7 of 8\n"), "{said}");
    let trace = Trace::open(folder.path().join("three")).unwrap();
    assert_sound(&trace, 0);
    assert_eq!(trace.rows("SELECT count(DISTINCT pid) AS n FROM process WHERE pid > 0")[0].i64("n"), 3);
}

#[test]
fn half_the_files_of_a_large_job_may_be_damaged_and_the_rest_is_merged() {
    const RANKS: u32 = 64;
    const STEPS: u64 = 40;
    let job = Job::new(RANKS, 8, STEPS);
    let folder = tempfile::tempdir().unwrap();
    let path = |rank: u32| folder.path().join(job.name(rank));
    let trace = |rank: u32| {
        let mut bytes = Vec::new();
        // Every third is not compressed: no checksum tells what is wrong with it.
        let size = job.write(rank, !rank.is_multiple_of(3), &mut bytes).unwrap();
        assert_eq!(size.bytes, bytes.len() as u64);
        (bytes, size.events)
    };
    let damage = |rank: u32| (rank % 2 == 1).then(|| Damage::ALL[rank as usize / 2 % Damage::ALL.len()]);
    let mut written = 0;
    for rank in 0..RANKS {
        let (mut bytes, events) = trace(rank);
        match damage(rank) {
            Some(damage) => damage.wreak(&mut bytes, || trace((rank + 1) % RANKS).0),
            None => written += events,
        }
        fs::write(path(rank), bytes).unwrap();
    }
    let joined = folder.path().join("joined");
    let words = ["merge".as_ref(), "-o".as_ref(), joined.as_os_str(), folder.path().as_os_str()];
    let said = ncclscope(&words).unwrap();
    let lines = |rank: u32| {
        let name = path(rank).display().to_string();
        said.lines().filter(|line| line.contains(&name)).map(str::to_owned).collect::<Vec<_>>()
    };
    for rank in 0..RANKS {
        // Of twins, which have different names in a folder, the second one is left out.
        let of_twins = |line: &String| line.contains("the same recording is in ");
        let (mut lines, how) = (lines(rank), damage(rank));
        lines.retain(|line| how.is_some() || !of_twins(line));
        let is_right = match how {
            None => lines.is_empty(),
            // One that is compressed has a single packet.
            Some(Damage::Cut) => {
                let how = if rank.is_multiple_of(3) {
                    "left out an unfinished packet of "
                } else {
                    "there is no whole packet in it"
                };
                lines.len() == 1 && lines[0].contains(how)
            }
            Some(Damage::Twin) => lines.len() == 1 && of_twins(&lines[0]),
            Some(_) => lines.len() == 1 && lines[0].starts_with("left out: "),
        };
        assert!(is_right, "rank {rank}, {how:?}: {lines:?}");
    }

    // What arrives of the others is all of it, at its true time.
    let (mut ranks, mut events, mut runs) = (HashMap::new(), 0, HashMap::new());
    let mut farthest = 0;
    reader::read_file::<reader::Error>(&joined, |packet| {
        if let Some(descriptor) = packet.track_descriptor()
            && let Some(process) = &descriptor.process
            && let Some(rank) = process.process_name().strip_prefix("rank ").and_then(|name| name.split(' ').next())
        {
            ranks.insert(descriptor.uuid() >> TRACK_BITS, rank.parse::<u32>().unwrap());
        }
        let Some(event) = &packet.event else { return Ok(()) };
        // What the merge itself draws is on tracks of no process, or is about all ranks.
        let Some(&rank) = ranks.get(&(event.track >> TRACK_BITS)).filter(|_| event.category != Some(Category::Job))
        else {
            return Ok(());
        };
        if damage(rank).is_none() {
            events += u64::from(event.r#type() != Type::SliceEnd);
        }
        if event.category == Some(Category::Run) {
            let step = runs.entry(rank).or_insert(0_u64);
            let [came, _] = job.truth(rank, *step);
            farthest = farthest.max(packet.time.unwrap().0.abs_diff(came));
            *step += 1;
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(events, written);
    assert!((0..RANKS).filter(|rank| damage(*rank).is_none()).all(|rank| runs[&rank] == STEPS), "{runs:?}");
    // Offsets of hours, and operations of 20 us that bound them from both sides.
    assert!(farthest < 20_000, "{farthest} ns");
    let problems = Trace::open(&joined).unwrap().check();
    let wrong = problems.iter().filter(|problem| !matches!(problem, Problem::OpenSlices { .. }));
    let wrong: Vec<_> = wrong.map(ToString::to_string).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn overwritten_bytes_in_an_uncompressed_file_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, joined) = (folder.path().join("overwritten"), folder.path().join("joined"));
    let mut whole = Vec::new();
    Job::new(8, 2, 60).write(3, false, &mut whole).unwrap();
    let mut noise = 1_u64;
    let mut next = || {
        noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        noise >> 33
    };
    let mut missed = Vec::new();
    const TIMES: usize = 100;
    for number in 0..TIMES {
        let mut bytes = whole.clone();
        let at = next() as usize % (whole.len() - 64);
        let from = next() as usize % (whole.len() - 64);
        bytes[at..at + 64].iter_mut().enumerate().for_each(|(place, byte)| {
            *byte = match number % 4 {
                0 => 0,
                1 => 0xff,
                2 => next() as u8,
                _ => whole[from + place],
            }
        });
        fs::write(&path, bytes).unwrap();
        let said = ncclscope(&["merge".as_ref(), "-o".as_ref(), joined.as_os_str(), path.as_os_str()]);
        if said.is_ok_and(|said| !said.contains("left out")) {
            missed.push((number, at));
        }
        let _ = fs::remove_file(&joined);
    }
    // Not where a value stands in the place of a value, or a text in that of a text.
    assert!(missed.len() <= TIMES / 50, "{missed:?}");
}
