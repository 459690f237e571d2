//! Many ranks and hosts are described together: nobody reads a page for each.

use super::{Job, Value, fs, ncclscope};
use crate::synthetic::Damage;

const RANKS: u32 = 36;
const HOSTS: u32 = 18;

#[test]
fn many_traces_are_described_together_and_doubtful_ones_named() {
    let folder = tempfile::tempdir().unwrap();
    let job = Job::new(RANKS, HOSTS, 40);
    // Uncompressed, so that a part of a file can be read.
    job.write_to(folder.path(), RANKS, false);
    let said = ncclscope(&["info".as_ref(), folder.path().as_os_str()]).unwrap();
    assert!(said.lines().count() < 50, "{said}");
    let first: Vec<&str> = said.lines().take(4).collect();
    assert!(first[0].starts_with("36 traces: ") && first[0].ends_with(" slices"), "{said}");
    let trusted = "trusted: nothing was lost, left unmatched or contradicted; host times to 0 ns";
    assert_eq!(first[1], format!("  verdict       {trusted}"));
    assert_eq!(first[2], "  processes     36 on 18 hosts: ranks 0-35");
    assert!(first[3].contains(" world: ranks 0-35 of 36 on 18 hosts, NCCL "), "{said}");
    let of_host = said.lines().filter(|line| line.contains(" tp: ranks 0-1 of 2 on 1 host, NCCL ")).count();
    assert!(of_host == 15 && said.contains("  communicator  3 more"), "{said}");
    assert!(said.contains("  recorded      36 processes: "), "{said}");

    // One is cut off, one is damaged, and of one nothing is left.
    let path = folder.path().join(job.name(20));
    fs::write(&path, &fs::read(&path).unwrap()[..5]).unwrap();
    let refused = ncclscope(&["diagnose".as_ref(), path.as_os_str()]).unwrap_err();
    assert!(refused.ends_with("its process was killed before anything was written"), "{refused}");
    for (rank, damage) in [(5, Damage::Cut), (9, Damage::ZeroedTail)] {
        let path = folder.path().join(job.name(rank));
        let mut bytes = fs::read(&path).unwrap();
        damage.wreak(&mut bytes, Vec::new);
        fs::write(&path, bytes).unwrap();
    }
    let json = folder.path().join("info.json");
    let flag = format!("--json={}", json.display());
    let said = ncclscope(&["info".as_ref(), flag.as_ref(), folder.path().as_os_str()]).unwrap();
    let verdicts: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("  verdict       ")).collect();
    let [empty, damaged, cut, trusted] = verdicts[..] else { panic!("{said}") };
    let ends =
        "not trusted: the trace ends inside its first packet: its process was killed before anything was written";
    assert_eq!(empty, format!("{ends} ({})", job.name(20)));
    assert!(damaged.starts_with("not trusted: the packet at byte ") && damaged.contains(&job.name(9)), "{damaged}");
    let no_end =
        "with reservations: the recording has no end: what it lost is not known; its last packet is unfinished";
    assert_eq!((cut, trusted), (&*format!("{no_end} ({})", job.name(5)), "trusted: 33 traces"));
    assert!(said.lines().any(|line| line.starts_with("  not closed    these recordings have no end")), "{said}");
    let report: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let files = report["files"].as_array().unwrap();
    let trusted = files.iter().filter(|file| file["verdict"]["text"] == "trusted").count();
    assert_eq!((files.len(), trusted), (36, 33));
}

#[test]
fn the_clocks_of_many_hosts_are_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    Job::new(RANKS, HOSTS, 40).write_to(folder.path(), RANKS, true);
    let merged = folder.path().join("all");
    let said = ncclscope(&["merge".as_ref(), folder.path().as_os_str(), "-o".as_ref(), merged.as_os_str()]).unwrap();
    let line = "17 hosts: their times are put on the clock of another by the order of events on both, to ";
    let [clocks, written] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert!(clocks.starts_with(line) && written.contains(": 36 files, "), "{said}");
    let error = clocks.strip_prefix(line).and_then(|rest| rest.split_once(" at worst, on node")).unwrap().0;

    let said = ncclscope(&["info".as_ref(), merged.as_os_str()]).unwrap();
    assert!(said.contains(&format!("; host times to 0 ns, between hosts to {error}\n")), "{said}");
    assert!(said.contains(&format!("  note          {clocks}\n")) && said.lines().count() < 50, "{said}");
    // Of a few hosts, each is told.
    let few = folder.path().join("few");
    let words =
        ["cut".as_ref(), merged.as_os_str(), "--ranks".as_ref(), "0-1".as_ref(), "-o".as_ref(), few.as_os_str()];
    ncclscope(&words).unwrap();
    assert!(ncclscope(&["info".as_ref(), few.as_os_str()]).unwrap().contains("  process       rank 1 · node0 · "));
}

#[test]
fn the_summary_of_many_ranks_leaves_out_rows_of_single_ones() {
    let folder = tempfile::tempdir().unwrap();
    Job::new(RANKS, HOSTS, 40).write_to(folder.path(), RANKS, true);
    let said = ncclscope(&["summary".as_ref(), folder.path().as_os_str()]).unwrap();
    let operations = said.split("\noperations ").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
    assert!(operations.lines().skip(2).all(|line| line.starts_with("  all ")), "{operations}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("rows of single ranks are left out: ") && last.contains("72 of operations"), "{last}");
    let words = ["summary".as_ref(), folder.path().as_os_str(), "--table".as_ref(), "operations".as_ref()];
    let whole = ncclscope(&words).unwrap();
    assert!(whole.lines().any(|line| line.starts_with("  35 ")), "{whole}");
}

#[test]
fn ranks_with_another_nccl_are_named_across_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Job::new(4, 1, 20);
    job.write_to(folder.path(), 4, true);
    let said = ncclscope(&["info".as_ref(), folder.path().as_os_str()]).unwrap();
    assert!(!said.contains("mixed NCCL"), "{said}");
    job.nccl = 22_809;
    job.write_to(folder.path(), 1, true);
    let said = ncclscope(&["info".as_ref(), folder.path().as_os_str()]).unwrap();
    let world = "mixed NCCL    communicator 1f2e3d4c5b6a7988 has NCCL 2.28.9 on rank 0 and 2.30.7 on ranks 1-3";
    assert_eq!(said.lines().next(), Some(world), "{said}");
}
