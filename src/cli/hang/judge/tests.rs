//! What is decided about jobs that are made up.

use super::super::super::running::{Gone, How};
use super::super::super::survey::{Collective, Process, Unfinished};
use super::super::job::Seen;
use super::*;

const SECOND: u64 = 1_000_000_000;
/// When each recording ends; each host has its own clock.
const END: [HostNs; 2] = [HostNs(100 * SECOND), HostNs(5_000 * SECOND)];

fn mark(hash: u64, seq: u64) -> u64 {
    seq << 28 | hash
}

/// Ranks of a communicator, one per process and every other one on another host. Those in
/// `came` have waited in operation 5 for four seconds; all others ended with operation 4 before
/// that.
fn job(hash: u64, ranks: u32, first_process: u64, came: &[u32]) -> Job {
    let mut job = Job::default();
    add(&mut job, hash, &(0..ranks).map(|rank| first_process + u64::from(rank)).collect::<Vec<_>>(), came, 4);
    job
}

fn add(job: &mut Job, hash: u64, processes: &[u64], came: &[u32], age: u64) {
    job.ranks.insert(hash, processes.len() as u32);
    for (rank, &process) in (0..).zip(processes) {
        let end = END[(process % 2) as usize];
        job.ends.insert(process, end);
        job.processes.insert(process, Process { last: end, ..Process::default() });
        let has_come = came.contains(&rank);
        let (seq, age) = if has_come { (5, age) } else { (4, age + 1) };
        let begin = end.saturating_sub(age * SECOND);
        let last = Collective { correlation: mark(hash, seq), name: "AllReduce 1 MiB f32".into(), seq };
        job.members.push(Member {
            hash,
            rank,
            label: format!("comm {hash}"),
            process,
            world: Some(process as u32),
            place: Some(format!("pid {process} on host")),
            last: Some((last.name.clone(), begin)),
            collective: Some((last, begin)),
            gap_ns: SECOND / 10,
            longest_ns: SECOND / 10,
            has_runs: true,
            has_ended: !has_come,
            has_channels: false,
            newest: Vec::new(),
            is_at_first: false,
            moved: Some(begin),
            finalized: None,
        });
        if has_come {
            let (member, key) = (job.members.len() - 1, (hash, mark(hash, 5), None));
            job.seen.insert((key, member), Seen { handed_over: Some(begin), behind: 3, ..Seen::default() });
            job.standing.push(Standing {
                member,
                key,
                begin,
                kind: Work::Overdue,
                name: "AllReduce 1 MiB f32".into(),
                seq: Some(5),
                peer: None,
                note: String::new(),
                is_doubted: false,
            });
        }
    }
}

fn said(job: &Job) -> Vec<(bool, String)> {
    judge(job).iter().map(|hang| (hang.is_certain, hang.to_string())).collect()
}

#[test]
fn the_missing_rank_is_named() {
    let expected = "AllReduce 1 MiB f32, seq 5 on comm 7: 3 of 4 ranks have come and waited 4.0 s, missing: 2 (last seen: \
                    AllReduce 1 MiB f32, seq 4, 5.0 s before the end)";
    assert_eq!(said(&job(7, 4, 0, &[0, 1, 3])), [(true, expected.to_owned())]);
}

#[test]
fn a_broadcast_that_was_not_handed_over_is_told_by_its_calls() {
    let missing = |calls: [u64; 3]| {
        let mut job = job(7, 3, 0, &[0, 1]);
        job.seen.clear();
        job.members.iter_mut().for_each(|member| (member.last, member.collective) = (None, None));
        for Standing { member, begin, kind, .. } in std::mem::take(&mut job.standing) {
            let slice = Unfinished {
                kind,
                begin,
                place: 0,
                track: 0,
                hash: Some(7),
                correlation: Some(mark(7, 5)),
                name: "Broadcast 64 KiB bf16".into(),
                seq: None,
                peer: None,
                replay: None,
                note: String::new(),
                is_doubted: false,
            };
            job.stand(member, &slice);
        }
        let of = |(rank, made): (usize, u64)| ((rank, "Broadcast".to_owned()), (made, made));
        job.calls_of = calls.into_iter().enumerate().filter(|it| it.1 > 0).map(of).collect();
        job.number();
        said(&job).into_iter().map(|(_, text)| text).collect::<Vec<_>>()
    };
    let start = "Broadcast 64 KiB bf16 on comm 7: ranks 0 and 1 have come and waited 4.0 s, missing: 2";
    assert_eq!(missing([11, 11, 10]), [format!("{start} (it called Broadcast 10 times, the others 11 times)")]);
    assert_eq!(missing([2, 2, 1]), [format!("{start} (it called Broadcast once, the others 2 times)")]);
    assert_eq!(missing([1, 1, 0]), [format!("{start} (it handed over nothing)")]);
    assert!(!missing([11, 11, 11])[0].contains("missing"), "{:?}", missing([11, 11, 11]));
}

#[test]
fn without_a_launcher_s_numbers_the_largest_communicator_numbers_the_ranks() {
    let numbered = |with_world: bool, launched: bool| {
        let mut job = Job::default();
        add(&mut job, 8, &[3, 2], &[], 4);
        add(&mut job, 9, &[1, 0], &[], 4);
        if with_world {
            add(&mut job, 7, &[0, 1, 2, 3], &[], 4);
        }
        job.members.iter_mut().for_each(|member| member.world = None);
        job.members[0].world = launched.then_some(5);
        job.number_ranks();
        job.members.iter().map(|member| member.world).collect::<Vec<_>>()
    };
    assert_eq!(numbered(true, false), [3, 2, 1, 0, 0, 1, 2, 3].map(Some));
    assert_eq!(numbered(false, false), [None; 4]);
    assert_eq!(numbered(false, true), [Some(5), None, None, None]);
}

#[test]
fn the_number_of_a_communicator_s_track_is_left_out() {
    let mut several = job(7, 4, 0, &[0, 1, 3]);
    several.members[0].label = "comm 7 #2".into();
    assert!(said(&several)[0].1.starts_with("AllReduce 1 MiB f32, seq 5 on comm 7: "), "{:?}", said(&several));
}

#[test]
fn a_wait_no_longer_than_earlier_ones_is_not_called_a_hang() {
    let mut late = job(7, 4, 0, &[0, 1, 3]);
    late.members[2].gap_ns = 2 * SECOND;
    assert!(!said(&late)[0].0, "the rank that is missing paused for as long before");
    let mut slow = job(7, 4, 0, &[0, 1, 2, 3]);
    assert!(said(&slow)[0].0);
    slow.members[1].longest_ns = 2 * SECOND;
    assert!(!said(&slow)[0].0, "operations took as long before");
    (slow.members[1].longest_ns, slow.members[1].gap_ns) = (0, 2 * SECOND);
    assert!(said(&slow)[0].0, "only the host paused");
    slow.members[1].has_runs = false;
    assert!(!said(&slow)[0].0, "it may have paused for the GPU");
}

#[test]
fn a_first_operation_may_take_long() {
    let mut first = job(7, 2, 0, &[0, 1]);
    first.members[1].is_at_first = true;
    assert!(!said(&first)[0].0, "NCCL may be connecting the ranks");
    first.ends.values_mut().for_each(|end| *end = end.saturating_add(30 * SECOND));
    assert!(said(&first)[0].0);
    // Inside the first call, nothing has been handed over.
    let mut call = job(7, 2, 0, &[0, 1]);
    call.members.iter_mut().for_each(|member| (member.last, member.collective) = (None, None));
    assert!(!said(&call)[0].0);
}

#[test]
fn a_call_that_does_not_return_is_told_with_those_who_wait_for_its_rank() {
    let mut job = job(7, 3, 0, &[1, 2]);
    let since = HostNs(END[0].0 - 5 * SECOND);
    let call = Standing {
        member: 0,
        key: (7, UNNUMBERED, None),
        begin: since,
        kind: Work::Call,
        name: "Send 16 KiB f32".into(),
        seq: None,
        ..job.standing[0].clone()
    };
    job.standing.push(call);
    job.calls.push((job.members[0].process, "GroupApi".to_owned(), since));
    let call = "Send 16 KiB f32 on comm 7: the call has not returned for 5.0 s on these ranks: 0";
    let others = "AllReduce 1 MiB f32, seq 5 on comm 7: 2 of 3 ranks have come and waited 4.0 s, missing: 0";
    let [(true, first), (true, second)] = &said(&job)[..] else { panic!("{:?}", said(&job)) };
    assert_eq!(*first, format!("{call}; no other rank is inside a call"));
    assert!(second.starts_with(others), "{second}");
    let unclear = format!("{call}. NCCL does not say which others have come");
    let faults: [fn(&mut Job); 4] = [
        |job| job.calls.push((job.members[1].process, "ncclRecv 16 KiB f32".to_owned(), HostNs(0))),
        |job| job.processes.get_mut(&job.members[1].process).unwrap().is_lossy = true,
        |job| job.processes.get_mut(&job.members[2].process).unwrap().is_full = true,
        |job| _ = job.ranks.insert(7, 4),
    ];
    for fault in faults {
        let mut job = job.clone();
        fault(&mut job);
        assert!(said(&job).iter().any(|(_, text)| *text == unclear), "{:?}", said(&job));
    }
}

#[test]
fn channels_show_whose_gpu_has_not_begun() {
    let mut job = job(7, 3, 0, &[0, 1, 2]);
    job.standing.retain(|it| it.member != 1);
    // The hosts were far ahead: rank 0 handed it over 60 s before.
    let begun = END[0].saturating_sub(4 * SECOND);
    for it in &mut job.standing {
        it.kind = Work::Channel;
        let seen = job.seen.get_mut(&(it.key, it.member)).expect("an operation");
        (seen.has_begun, seen.handed_over) = (true, Some(begun.saturating_sub(60 * SECOND)));
    }
    job.members.iter_mut().for_each(|member| (member.has_runs, member.has_channels) = (false, true));
    let hangs = judge(&job);
    assert_eq!((hangs[0].waited, hangs[0].is_certain), (4 * SECOND, true), "{hangs:?}");
    assert_eq!(hangs[0].notes, ["rank 1, pid 1 on host: the GPU has not been seen to begin with it"]);
    job.members[2].longest_ns = 2 * SECOND;
    assert!(!judge(&job)[0].is_certain, "a channel took as long before");
    job.members[1].has_channels = false;
    assert_eq!(judge(&job)[0].notes, [""; 0], "NCCL reports no channels there");
}

#[test]
fn losses_make_a_hang_uncertain() {
    let mut job = job(7, 4, 0, &[0, 1, 3]);
    job.processes.get_mut(&2).expect("the process of rank 2").is_lossy = true;
    let (is_certain, text) = &said(&job)[0];
    assert!(!is_certain && text.contains("records were dropped there, so it may have come"), "{text}");
}

#[test]
fn where_kernels_were_lost_an_operation_may_be_over() {
    let certain = |job: &Job| said(job)[0].0;
    let lose = |job: &mut Job, processes: &[u64]| {
        for process in processes {
            job.processes.get_mut(process).expect("a process").lost_kernels = Some(job.ends[process]);
        }
    };
    // What a rank handed over does not depend on kernels.
    let mut job_of_missing = job(7, 3, 0, &[0, 1]);
    lose(&mut job_of_missing, &[0, 1, 2]);
    assert!(certain(&job_of_missing), "rank 2 called nothing");
    // But in which run of a graph it is does.
    let replayed = |job: &mut Job| {
        for it in &mut job.standing {
            it.key.2 = Some(30);
        }
        job.seen.clear();
    };
    for (lost, is_certain) in [(&[][..], true), (&[2], false), (&[0], true), (&[0, 1], false)] {
        let after = |seconds| {
            let mut job = Job::default();
            add(&mut job, 7, &[0, 1, 2], &[0, 1], seconds);
            replayed(&mut job);
            lose(&mut job, lost);
            certain(&job)
        };
        assert_eq!(after(12), is_certain, "{lost:?}");
        assert!(!after(8), "rank 2 may have come, and its recording not have shown it yet");
    }
    for (lost, is_certain) in [(&[][..], true), (&[0], true), (&[0, 1, 2], false)] {
        let mut job = job(7, 3, 0, &[0, 1, 2]);
        lose(&mut job, lost);
        assert_eq!(certain(&job), is_certain, "{lost:?}: {:?}", said(&job));
        // Nothing that was lost before it was handed over can have been its kernel.
        for process in job.processes.values_mut() {
            process.lost_kernels = process.lost_kernels.map(|last| last.saturating_sub(60 * SECOND));
        }
        assert!(certain(&job), "{lost:?}: {:?}", said(&job));
        // The recordings know of losses that nothing else shows.
        for it in job.standing.iter_mut().filter(|it| lost.contains(&(it.member as u64))) {
            it.is_doubted = true;
        }
        assert_eq!(certain(&job), is_certain, "{lost:?}: {:?}", said(&job));
    }
}

#[test]
fn a_rank_whose_file_was_full_or_left_something_out_did_not_fall_silent() {
    let mut full = job(7, 4, 0, &[0, 1, 3]);
    full.processes.get_mut(&2).expect("the process of rank 2").is_full = true;
    let (is_certain, text) = &said(&full)[0];
    assert!(!is_certain && text.contains("its file was full, so it may have come"), "{text}");

    let healthy = job(7, 4, 0, &[0, 1, 3]);
    assert_eq!(healthy.silent(), [2]);
    for cut in [|it: &mut Process| it.is_full = true, |it: &mut Process| it.is_partial = true] {
        let mut job = healthy.clone();
        cut(job.processes.get_mut(&2).expect("the process of rank 2"));
        assert_eq!(job.silent(), [0_usize; 0]);
    }
}

#[test]
fn a_full_file_tells_how_far_its_rank_has_come() {
    let mut job = job(7, 4, 0, &[0, 1, 3]);
    job.ends.values_mut().for_each(|end| *end = end.saturating_add(60 * SECOND));
    let end = job.ends[&2];
    let process = job.processes.get_mut(&2).expect("the process of rank 2");
    (process.is_full, process.alive) = (true, Some(end.saturating_sub(8 * SECOND)));
    let newest = |job: &mut Job, name: &str, seq, age: u64| {
        let at = end.saturating_sub(age * SECOND);
        job.members[2].newest = vec![(name.to_owned(), seq, at)];
        job.members[2].last = Some((name.to_owned(), at));
    };
    newest(&mut job, "AllReduce 1 MiB f32", 4, 66);
    let expected = "AllReduce 1 MiB f32, seq 5 on comm 7: 3 of 4 ranks have come and waited 64.0 s, missing: 2 (last \
                    seen: AllReduce 1 MiB f32, seq 4, 66.0 s before the end)";
    assert_eq!(said(&job), [(true, expected.to_owned())]);
    // It came between its last words and the end, or has gone on.
    for (seq, has_come) in [(5, true), (9, true), (4, false)] {
        newest(&mut job, "AllReduce 2 MiB f32", seq, 66);
        assert_eq!(said(&job)[0].1.contains("all 4 ranks have come"), has_come, "{seq}: {:?}", said(&job));
    }
    let may_have_come = |job: &Job| {
        let (is_certain, text) = &said(job)[0];
        !is_certain && text.contains("its file was full, so it may have come")
    };
    newest(&mut job, "AllGather 1 MiB f32", 4, 66);
    assert!(may_have_come(&job), "of another function nothing follows: {:?}", said(&job));
    newest(&mut job, "AllReduce 1 MiB f32", 4, 66);
    job.processes.get_mut(&2).expect("the process of rank 2").alive = Some(end.saturating_sub(63 * SECOND));
    assert!(!said(&job)[0].0, "a second after the others had come, it was merely late");
    job.processes.get_mut(&2).expect("the process of rank 2").alive = None;
    assert!(may_have_come(&job), "nothing was said after the file was full: {:?}", said(&job));
}

#[test]
fn the_end_of_a_file_tells_how_far_its_rank_had_come_before() {
    let mut job = job(7, 4, 0, &[0, 1, 3]);
    job.processes.get_mut(&2).expect("the process of rank 2").is_tail = true;
    let (is_certain, text) = said(&job).swap_remove(0);
    assert!(is_certain && text.contains("missing: 2 (last seen: AllReduce 1 MiB f32, seq 4"), "{text}");
    for (seq, has_come) in [(5, true), (9, true), (4, false)] {
        job.members[2].newest = vec![("AllReduce 2 MiB f32".to_owned(), seq, HostNs(SECOND))];
        assert_eq!(said(&job)[0].1.contains("all 4 ranks have come"), has_come, "{seq}: {:?}", said(&job));
    }
    // Sends and receives have no numbers.
    job.standing.iter_mut().for_each(|it| it.seq = None);
    let (is_certain, text) = said(&job).swap_remove(0);
    assert!(!is_certain && text.contains("only the end of its file was read, so it may have come"), "{text}");
}

#[test]
fn who_came_to_a_later_operation_came_to_the_first_one_before() {
    // Rank 1 is far ahead, and only that is in the part of its file that was read.
    let mut job = job(7, 4, 0, &[0, 1, 3]);
    let (key, begin) = ((7, mark(7, 6), None), END[1].saturating_sub(5 * SECOND));
    job.standing
        .iter_mut()
        .filter(|it| it.member == 1)
        .for_each(|it| (it.key, it.begin, it.seq) = (key, begin, Some(6)));
    job.processes.get_mut(&1).expect("the process of rank 1").is_tail = true;
    job.members[1].newest = vec![("AllReduce 1 MiB f32".to_owned(), 6, begin)];
    job.seen.retain(|(_, member), _| *member != 1);
    assert!(said(&job)[0].1.starts_with("AllReduce 1 MiB f32, seq 5 on comm 7: 3 of 4 ranks"), "{:?}", said(&job));
}

#[test]
fn where_others_went_on_follows_from_the_newest_that_their_files_name() {
    for (newest, name) in [(5, "AllReduce 2 MiB f32, seq 5"), (8, "AllReduce, seq 5")] {
        let mut job = job(7, 3, 0, &[0, 1]);
        job.standing.clear();
        job.seen.clear();
        for member in [0, 1] {
            let process = job.members[member].process;
            job.processes.get_mut(&process).expect("its process").is_tail = true;
            let time = job.members[member].last.as_ref().expect("an operation").1;
            job.members[member].newest = vec![("AllReduce 2 MiB f32".to_owned(), newest, time)];
        }
        assert_eq!(job.silent(), [2]);
        job.stand_where_others_went_on(&[2]);
        let text = &said(&job)[0].1;
        assert!(text.starts_with(&format!("{name} on comm 7: 2 of 3 ranks have come")), "{text}");
        assert!(text.contains("missing: 2 (last seen: AllReduce 1 MiB f32, seq 4"), "{text}");
    }
}

#[test]
fn ranks_without_files_are_not_called_missing() {
    let mut job = job(7, 4, 0, &[0, 1]);
    job.members.truncate(2);
    let text = &said(&job)[0].1;
    let others = "2 of 4 ranks have come, the files of the others are not here: 2, 3";
    assert!(text.ends_with(others) && !text.contains("missing"), "{text}");
    // What is known of those that have come is told.
    job.standing[1].note = "the GPU had not finished an earlier kernel: forward".into();
    let text = &said(&job)[0].1;
    assert!(text.ends_with(&format!("{others}; the GPU of rank 1 had not finished an earlier kernel")), "{text}");
}

#[test]
fn a_rank_that_waits_elsewhere_is_not_the_cause() {
    // Ranks 0 to 2 wait in 7 for rank 3, which waits in 9 for rank 4.
    let mut job = job(7, 4, 0, &[0, 1, 2]);
    add(&mut job, 9, &[3, 4], &[0], 3);
    let hangs = judge(&job);
    let missing = |hang: &Hang| {
        hang.missing.iter().map(|it| (it.world, it.waits.as_ref().map(ToString::to_string))).collect::<Vec<_>>()
    };
    assert_eq!(hangs.iter().map(|hang| hang.operation.hash).collect::<Vec<_>>(), [9, 7], "though 7 waits for longer");
    assert_eq!(missing(&hangs[0]), [(Some(4), None)]);
    assert_eq!(missing(&hangs[1]), [(Some(3), Some("AllReduce 1 MiB f32, seq 5 on comm 9".into()))]);
}

#[test]
fn ranks_whose_gpus_wait_for_each_other_are_named() {
    // All have come to both operations, so nobody is missing; rank 2 came to the second one first.
    let made = |swapped: bool, in_one_group: bool, has_begun: bool| {
        let mut job = Job::default();
        let all = [0, 1, 2, 3];
        add(&mut job, 7, &[10, 11, 12, 13], &all, 6);
        add(&mut job, 8, &[10, 11, 12, 13], &all, 5);
        for ((_, member), seen) in &mut job.seen {
            seen.has_begun = has_begun;
            seen.called = if in_one_group { Some(HostNs(SECOND)) } else { seen.handed_over };
            if swapped && !in_one_group && job.members[*member].hash == 8 && job.members[*member].rank == 2 {
                seen.called = seen.called.map(|time| time.saturating_sub(3 * SECOND / 2));
            }
        }
        job
    };
    let job = |swapped: bool, in_one_group: bool, has_begun: bool| {
        let hangs = judge(&made(swapped, in_one_group, has_begun));
        (hangs[0].to_string(), hangs[0].notes.clone())
    };
    let on = |hash: u64| format!("AllReduce 1 MiB f32, seq 5 on comm {hash}");
    let (seven, eight) = (on(7), on(8));
    let all_came = format!("{seven}: all 4 ranks have come, and it has not been seen to end for 6.0 s");
    assert_eq!(job(false, false, false), (all_came, Vec::new()));
    let hangs = judge(&made(false, false, false));
    assert_eq!((hangs[0].after.clone(), hangs[0].is_explained()), (None, false));
    let after = "rank 10 of the job waits in AllReduce 1 MiB f32, seq 5 on comm 7, which it came to before";
    assert!(hangs[1].details().contains(&after.to_owned()) && hangs[1].is_explained(), "{:?}", hangs[1].details());
    let (text, notes) = job(true, false, false);
    let expected = format!("rank 12 waits for rank 10 in {eight}; rank 10 for rank 12 in {seven}. They call");
    assert!(text.contains(&expected), "{text}");
    let first = [format!("rank 12 came to {eight} first"), format!("ranks 10-11,13 came to {seven} first")];
    assert_eq!(notes, first);
    // GPUs that work on both at once wait for something else.
    let (text, notes) = job(true, false, true);
    assert!(!text.contains("deadlock") && notes.is_empty(), "{text}");
    // A GPU that is busy with something else is the cause.
    let mut busy = made(true, false, false);
    busy.standing[1].note = "the GPU had not finished an earlier kernel: endless".into();
    let hangs = judge(&busy);
    assert!(hangs.iter().all(|hang| hang.circle.is_empty()), "{hangs:?}");
    // What a group has is called at once.
    let (text, notes) = job(true, true, false);
    assert!(!text.contains("deadlock") && notes.is_empty(), "{text}");
}

#[test]
fn ranks_that_wait_for_each_other_are_named() {
    // Ranks 0 and 1 share 7, 1 and 2 share 8, 2 and 0 share 9, and each has come to one of them.
    let mut job = Job::default();
    for (hash, came) in [(7, 0), (8, 1), (9, 2)] {
        add(&mut job, hash, &[came, (came + 1) % 3], &[0], 4);
    }
    // Rank 3 waits for rank 0, which is no part of the circle.
    add(&mut job, 5, &[3, 0], &[0], 6);
    let hangs = judge(&job);
    let on = |hash: u64| format!("AllReduce 1 MiB f32, seq 5 on comm {hash}");
    let (seven, eight, nine) = (on(7), on(8), on(9));
    let text = format!(
        "probably a deadlock, for 4.0 s: rank 1 waits for rank 2 in {eight}; rank 2 for rank 0 in {nine}; \
         rank 0 for rank 1 in {seven}. They call these in different orders, or one of them leaves a call out"
    );
    assert_eq!((hangs[0].to_string(), hangs[0].operation.hash), (text, 7));
    let own = "1 of 2 ranks have come and waited 4.0 s, missing: 1 (last seen: AllReduce 1 MiB f32, seq 4";
    assert!(hangs[0].details()[0].starts_with(&format!("{seven}: {own}")), "{:?}", hangs[0].details());
    assert!(hangs[1..].iter().all(|hang| hang.circle.is_empty()), "{hangs:?}");

    // If rank 2 has lost records, it may have come.
    job.processes.get_mut(&2).expect("the process of rank 2").is_lossy = true;
    assert!(judge(&job).iter().all(|hang| hang.circle.is_empty()));
}

#[test]
fn the_order_of_calls_does_not_depend_on_when_recordings_end() {
    let mut job = job(7, 2, 0, &[0]);
    // The recording of the rank that has come ends later, so it seems to have called earlier.
    *job.ends.get_mut(&0).expect("the end of rank 0") = END[0].saturating_add(2 * SECOND);
    assert_eq!(job.silent(), [1]);
}

#[test]
fn a_rank_that_never_called_may_be_loading_something() {
    // Rank 2 never called; 0 and 1 have both come to an operation behind the one without it.
    let mut job = job(7, 3, 0, &[0, 1]);
    add(&mut job, 8, &[0, 1], &[0, 1], 3);
    let rank = &mut job.members[2];
    (rank.last, rank.collective, rank.gap_ns) = (None, None, 0);
    let labels = |job: &Job| judge(job).iter().map(|hang| (hang.operation.hash, hang.is_certain)).collect::<Vec<_>>();
    assert_eq!(labels(&job), [(7, false), (8, false)]);
    assert_eq!(job.silent(), [2]);
    job.ends.values_mut().for_each(|end| *end = end.saturating_add(30 * SECOND));
    assert_eq!(labels(&job), [(7, true), (8, true)]);
}

#[test]
fn of_many_sends_those_to_a_missing_rank_are_named() {
    // An all-to-all: each rank sends to itself and to all others, the oldest first. Rank 5 never
    // came.
    let mut job = job(7, 40, 0, &[]);
    for rank in (0..40).filter(|rank| *rank != 5) {
        for by in 0..8 {
            let peer = (rank + by) % 40;
            let key = (7, u64::from(rank) << 32 | u64::from(peer), None);
            let begin = job.ends[&u64::from(rank)].saturating_sub(4 * SECOND - u64::from(by));
            for member in [rank, peer].into_iter().filter(|member| *member != 5) {
                job.seen.insert((key, member as usize), Seen { handed_over: Some(begin), ..Seen::default() });
            }
            let (kind, name, note) = (Work::Overdue, format!("Send 1 MiB f32 → {peer}"), String::new());
            let (member, seq, peer, is_doubted) = (rank as usize, None, Some(peer), false);
            job.standing.push(Standing { member, key, begin, kind, name, seq, peer, note, is_doubted });
        }
    }
    let hangs = judge(&job);
    assert!(hangs.len() == PAIRS && hangs[1..].iter().all(|hang| hang.missing.is_empty()), "{hangs:?}");
    // All that wait for it are told of at once.
    assert_eq!((&*hangs[0].operation.name, hangs[0].missing[0].rank), ("Send 1 MiB f32 → 5", 5));
    let text = hangs[0].to_string();
    assert!(text.contains(": 7 of 8 ranks have come and waited 4.0 s, missing: 5 (last seen"), "{text}");
    assert!(hangs[1..].iter().all(|hang| hang.of == 2), "none is to itself");
}

#[test]
fn an_exchange_is_told_of_once() {
    // Each of four ranks sends to each other in one group, and then comes to operation 5 of
    // communicator 8.
    let job = |came: &[u32], gap_of_2: u64| {
        let mut job = job(7, 4, 10, &[]);
        add(&mut job, 8, &[10, 11, 12, 13], came, 3);
        job.members.iter_mut().filter(|it| it.rank == 2).for_each(|it| it.gap_ns = gap_of_2);
        for (rank, peer) in (0..4).flat_map(|rank| (0..4).map(move |peer| (rank, peer))) {
            let key = (7, u64::from(rank) << 32 | u64::from(peer), None);
            for (member, peer, function) in [(rank, peer, "Send"), (peer, rank, "Recv")] {
                if came.contains(&member) && (member != peer || function == "Send") {
                    let arrow = if function == "Send" { '→' } else { '←' };
                    let (kind, name) = (Work::Overdue, format!("{function} 1 MiB f32 {arrow} {peer}"));
                    // Those with rank 2 are handed over last.
                    let called = END[member as usize % 2].saturating_sub(4 * SECOND);
                    let begin = HostNs(called.0 + u64::from(member == 2 || peer == 2));
                    let seen = Seen { handed_over: Some(begin), called: Some(called), ..Seen::default() };
                    job.seen.insert((key, member as usize), seen);
                    let (member, seq, peer, note, is_doubted) =
                        (member as usize, None, Some(peer), String::new(), false);
                    job.standing.push(Standing { member, key, begin, kind, name, seq, peer, note, is_doubted });
                }
            }
        }
        for ((hash, _, _), member) in job.seen.keys().copied().collect::<Vec<_>>() {
            if hash == 8 {
                let it = job.seen.get_mut(&((8, mark(8, 5), None), member)).expect("it has come");
                it.called = it.handed_over;
            }
        }
        judge(&job)
    };
    let hangs = job(&[0, 1, 2, 3], SECOND / 10);
    let said: Vec<String> = hangs.iter().map(ToString::to_string).collect();
    let end = "all 4 ranks have come, and it has not been seen to end for";
    let exchange = "Send and Recv 1 MiB f32 among 0-3 on comm 7";
    assert_eq!(
        said,
        [format!("{exchange}: {end} 4.0 s"), format!("AllReduce 1 MiB f32, seq 5 on comm 8: {end} 3.0 s")]
    );
    assert!(!hangs[0].is_explained() && hangs[1].is_explained(), "{hangs:?}");

    let hangs = job(&[0, 1, 3], SECOND / 10);
    let names: Vec<(&str, u64, usize)> =
        hangs.iter().map(|it| (&*it.operation.name, it.operation.hash, it.of)).collect();
    let exchange = ("Send and Recv 1 MiB f32 with 2", 7, 4);
    assert_eq!(names[0], exchange);
    assert_eq!(names[1..], [("AllReduce 1 MiB f32", 8, 4), ("Send and Recv 1 MiB f32 among 0-1,3", 7, 3)]);
    // A GPU ends all operations of a group at once.
    let after = "rank 10 of the job waits in Send 1 MiB f32 → 2 on comm 7, which is in the same group";
    assert!(hangs[2].is_explained() && hangs[2].details().contains(&after.into()), "{:?}", hangs[2].details());
    // If the missing rank is new and may only be slow, what waits in the same group is no more
    // certain.
    let said: Vec<(bool, String)> =
        job(&[0, 1, 3], 0).into_iter().map(|it| (it.is_certain, it.operation.name)).collect();
    assert_eq!(said[0], (false, exchange.0.to_owned()), "{said:?}");
    assert!(said.iter().all(|it| !it.0), "{said:?}");
}

#[test]
fn what_a_rank_went_on_after_is_forgotten_on_that_rank() {
    let mut job = job(7, 2, 0, &[0, 1]);
    let names = |job: &Job| job.standing.iter().map(|it| it.member).collect::<Vec<_>>();
    job.seen.get_mut(&((7, mark(7, 5), None), 1)).expect("rank 1 has come").is_over = true;
    assert_eq!(names(&job), [0, 1]);
    job.forget_what_is_over();
    assert_eq!(names(&job), [0]);
}

#[test]
fn the_first_operation_of_a_communicator_is_named() {
    let mut job = job(7, 2, 0, &[0, 1]);
    for member in [0, 1] {
        let key = (7, mark(7, 6), None);
        let begin = job.members[member].last.as_ref().expect("an operation").1.saturating_add(10);
        job.standing.insert(0, Standing { key, begin, seq: Some(6), ..job.standing[member].clone() });
        job.seen.insert((key, member), Seen { handed_over: Some(begin), behind: 2, ..Seen::default() });
    }
    let hangs = judge(&job);
    assert_eq!(hangs.iter().map(|hang| (hang.operation.seq, hang.behind)).collect::<Vec<_>>(), [(Some(5), 3)]);
}

#[test]
fn an_ended_process_is_reported_as_ended() {
    let mut job = job(7, 3, 0, &[0, 1]);
    let process = job.processes.get_mut(&2).expect("the process of rank 2");
    process.ended = Some(END[0].saturating_sub(3 * SECOND));
    let text = &said(&job)[0].1;
    assert!(text.contains("missing: 2 (") && text.contains("its recording ended 3.0 s before the end"), "{text}");
}

#[test]
fn transfers_show_where_it_hangs_if_all_ranks_have_come() {
    let mut job = job(7, 3, 0, &[0, 1, 2]);
    let since = END[0].saturating_sub(4 * SECOND);
    for (track, phase) in [("send → 1", "network wait"), ("send → 1", "network wait"), ("receive ← 2", "network wait")]
    {
        job.transfers.push((0, format!("comm 7 · {track} · steps"), phase.into(), since));
    }
    job.transfers.push((2, "comm 7 · receive ← 1 · steps".into(), "GPU wait".into(), since));
    job.transfers.push((2, "comm 7 · send → 0 · steps".into(), "GPU wait".into(), since));
    let hang = &judge(&job)[0];
    assert_eq!(
        hang.notes,
        [
            "rank 0 → 1: 2 transfers in flight for 4.0 s, from pid 0 on host to pid 1 on host",
            "rank 2, pid 2 on host: its GPU has not taken 1 transfer from 1 for 4.0 s"
        ]
    );
    assert!(hang.to_string().ends_with(" for 4.0 s"), "two links, and nothing says which one: {hang}");
    let taken = job.transfers.remove(3);
    let end = "; what rank 0 sent to 1 was still in flight";
    assert!(judge(&job)[0].to_string().ends_with(end), "{}", judge(&job)[0]);
    job.transfers = vec![taken];
    let end = "; the GPU of rank 2 had not taken what 1 sent";
    assert!(judge(&job)[0].to_string().ends_with(end), "{}", judge(&job)[0]);
}

#[test]
fn ranks_of_a_part_of_the_job_are_named_by_their_numbers_in_the_job_too() {
    // Ranks 0 and 1 of the communicator are 4 and 5 of the job.
    let mut missing = job(7, 2, 4, &[0]);
    let hang = &judge(&missing)[0];
    assert!(hang.to_string().contains("missing: 1 (rank 5 of the job) (last seen"), "{hang}");
    assert_eq!(hang.details()[0], "rank 1 (rank 5 of the job) is pid 5 on host");
    missing.members[1].world = None;
    missing.members[0].world = None;
    assert!(judge(&missing)[0].to_string().contains("missing: 1 (last seen"), "where that is not known");

    let mut stuck = job(7, 2, 4, &[0, 1]);
    stuck.standing[1].note = "the GPU had not finished an earlier kernel: forward".into();
    let since = END[1].saturating_sub(4 * SECOND);
    stuck.transfers.push((1, "comm 7 · receive ← 0 · steps".into(), "GPU wait".into(), since));
    let hang = &judge(&stuck)[0];
    let end = " s; the GPU of rank 1 (rank 5 of the job) had not finished an earlier kernel";
    assert!(hang.to_string().ends_with(end), "{hang}");
    let mut dead = hang.clone();
    dead.gone = BTreeMap::from([(0, Gone::default()), (1, Gone::default())]);
    let busy = "; the GPU of rank 1 (rank 5 of the job) had not finished an earlier kernel";
    let both = " 4.0 s; ranks 0 (rank 4 of the job), 1 (rank 5 of the job) show no sign of life at the end";
    assert!(dead.to_string().ends_with(&format!("{both}{busy}")), "{dead}");
    dead.gone.remove(&0);
    let one = " 4.0 s; rank 1 (rank 5 of the job) shows no sign of life at the end";
    assert!(dead.to_string().ends_with(&format!("{one}{busy}")), "{dead}");
    let with_its_host = Gone { how: How::WithItsHost { others: 1 }, ..Gone::default() };
    let copied = Hang { gone: BTreeMap::from([(0, with_its_host)]), ..dead.clone() };
    assert!(copied.to_string().ends_with(&format!(" 4.0 s{busy}")), "its files may be older: {copied}");
    let after = After { wait: Wait { rank: 4, operation: Operation::default() }, is_in_group: false };
    let explained = Hang { after: Some(after), ..dead };
    assert!(explained.to_string().ends_with(" 4.0 s"), "its cause is in another line: {explained}");
    assert_eq!(
        hang.notes,
        [
            "rank 1 (rank 5 of the job), pid 5 on host: the GPU had not finished an earlier kernel: forward",
            "rank 1 (rank 5 of the job), pid 5 on host: its GPU has not taken 1 transfer from 0 (rank 4 of the job) for 4.0 s"
        ]
    );
}

#[test]
fn without_a_hang_nothing_is_reported() {
    assert_eq!(said(&job(7, 3, 0, &[])), []);
}

/// Those that came finalize the communicator this long after they came, ns, and all go on for
/// `more`.
fn finalize(job: &mut Job, after: u64, more: u64) {
    job.ends.values_mut().for_each(|end| *end = end.saturating_add(after + more).saturating_sub(4 * SECOND));
    for it in &job.standing {
        job.members[it.member].finalized = Some(it.begin.saturating_add(after));
    }
}

#[test]
fn a_wait_ends_when_the_communicator_is_finalized() {
    let mut aborted = job(7, 4, 0, &[0, 1, 3]);
    finalize(&mut aborted, 10 * SECOND, 3 * SECOND);
    let hang = &judge(&aborted)[0];
    assert_eq!((hang.verb(), hang.waited, hang.age), ("hang", 10 * SECOND, 13 * SECOND));
    let fate = "then its communicator was finalized, as by ncclCommAbort, 3.0 s before the end";
    assert_eq!(hang.details()[..2], [fate.to_owned(), "rank 2 is pid 2 on host".to_owned()]);
    let transfer = |job: &mut Job| {
        let since = job.standing[0].begin;
        job.transfers.push((0, "comm 7 · send → 1 · steps".into(), "network wait".into(), since));
    };
    let mut stuck = job(7, 2, 0, &[0, 1]);
    transfer(&mut stuck);
    finalize(&mut stuck, 10 * SECOND, 60 * SECOND);
    assert_eq!(
        judge(&stuck)[0].notes,
        ["rank 0 → 1: 1 transfer in flight for 10.0 s, from pid 0 on host to pid 1 on host"]
    );
    // Rank 2 fell silent only after the others had given up.
    let mut late = job(7, 4, 0, &[0, 1, 3]);
    finalize(&mut late, SECOND, 60 * SECOND);
    assert_eq!(judge(&late)[0].verb(), "waits");
}

#[test]
fn what_the_job_went_on_after_is_over() {
    for (later, verb) in [(4, "hung"), (1, "hang")] {
        let mut job = job(7, 4, 0, &[0, 1, 3]);
        // The same processes have another communicator.
        add(&mut job, 9, &[0, 1, 2, 3], &[], 4);
        finalize(&mut job, 10 * SECOND, 60 * SECOND);
        assert!(!judge(&job)[0].is_over());
        for member in 0..4 {
            let finalized = job.members[0].finalized.expect("it is finalized");
            let on_its_clock = job.ends[&(member as u64)].saturating_sub(job.age(0, finalized));
            let last = on_its_clock.saturating_add(later * SECOND);
            job.members[4 + member].last = Some(("AllReduce 1 MiB f32".into(), last));
        }
        job.index.take();
        let hang = &judge(&job)[0];
        assert_eq!((hang.operation.hash, hang.verb(), hang.waiting.len()), (7, verb, 3));
    }
}

/// Its kernel may have ended without a record, unless the wait was far longer than any healthy one.
#[test]
fn an_operation_that_all_came_to_before_their_communicator_was_finalized_may_be_over() {
    for (waited, verb) in [(10, "waits"), (40, "hang")] {
        let mut all = job(7, 3, 0, &[0, 1, 2]);
        finalize(&mut all, waited * SECOND, 20 * SECOND);
        assert_eq!(judge(&all)[0].verb(), verb);
        // The last to come has run it.
        let (last, ago) = (all.standing[2].clone(), all.age(0, all.members[0].finalized.expect("it is finalized")));
        for (after, is_over) in [(0, true), (4, true), (6, false)] {
            let ran = all.ends[&2].saturating_sub(ago).saturating_add(after * SECOND);
            all.seen.get_mut(&(last.key, 2)).expect("an operation").ran = Some(ran);
            assert_eq!(judge(&all).is_empty(), is_over);
        }
        let mut lossy = job(7, 3, 0, &[0, 1, 2]);
        finalize(&mut lossy, waited * SECOND, 2 * SECOND);
        lossy.standing[1].is_doubted = true;
        assert_eq!(judge(&lossy)[0].verb(), "waits");
    }
}

#[test]
fn a_job_whose_ranks_ask_nothing_of_nccl_is_idle() {
    // All ranks have been alive for so long since their last operation.
    let idle_for = |seconds: u64| {
        let mut job = job(7, 4, 0, &[]);
        for (process, end) in &mut job.ends {
            *end = end.saturating_add((seconds - 5) * SECOND);
            let process = job.processes.get_mut(process).expect("a process");
            (process.last, process.silence_ns) = (*end, Some(5 * SECOND));
        }
        job
    };
    let said = |job: &Job| job.idle().map(|idle| idle.to_string());
    let last = "AllReduce 1 MiB f32, seq 4 on comm 7";
    let expected = format!("no rank has handed over an operation for 20.0 s; the last was {last}, and has ended");
    assert_eq!(said(&idle_for(20)), Some(expected));
    assert_eq!(said(&idle_for(9)), None, "any job pauses");
    let changed = |change: fn(&mut Member, &mut Process)| {
        let mut job = idle_for(20);
        change(&mut job.members[2], job.processes.get_mut(&2).expect("a process"));
        said(&job)
    };
    assert_eq!(changed(|member, _| member.gap_ns = 8 * SECOND), None, "it paused for nearly as long before");
    assert_eq!(changed(|member, process| member.moved = Some(process.last)), None, "one goes on");
    assert_eq!(changed(|_, process| process.ended = Some(HostNs(0))), None, "one has ended");
    assert_eq!(changed(|_, process| process.last = HostNs(0)), None, "one has probably ended");
    assert_eq!(changed(|_, process| process.silence_ns = None), None, "it does not say whether it lives");
    assert_eq!(changed(|_, process| process.is_lossy = true), None, "it may have lost what came after");
    let mut computes = idle_for(20);
    computes.kernels.insert(2, computes.ends[&2].saturating_sub(SECOND));
    assert_eq!(said(&computes), None, "a GPU works on something else");
    let unknown = changed(|member, _| member.has_ended = false).expect("it is idle");
    assert!(unknown.ends_with(last), "{unknown}");
    let captured = changed(|_, process| process.captures = true).expect("it is idle");
    assert!(captured.ends_with(last), "{captured}");
}
