use super::rows::ROWS;
use super::*;
use crate::trace::fields::nccl;
use crate::trace::wire::Buf;
use crate::trace::words::instant;

/// An event's arguments: numbers by field.
fn args(fields: &[(u32, u64)]) -> Vec<u8> {
    let mut buf = Buf::new();
    fields.iter().for_each(|(field, value)| buf.uint(*field, *value));
    buf.bytes().to_vec()
}

const HASH: u64 = 0xabcd;

/// A process with rank 1 in a communicator of this many.
fn on(ranks: u64) -> Summary {
    let mut summary = Summary::new();
    summary.process("rank 1 · node7 · GPU 0 (H200)");
    let init = args(&[(nccl::COMM, HASH), (nccl::RANK, 1), (nccl::RANKS, ranks), (nccl::INTERFACE, 6)]);
    summary.comm_init(HostNs(0), &Facts::of(&init));
    summary
}

/// An operation that runs for this long, and what else is known.
fn run(summary: &mut Summary, function: Word, bytes: u64, (start, ns): (u64, u64), more: &[(u32, u64)]) {
    let mut fields = vec![
        (nccl::COMM, HASH),
        (nccl::FUNCTION, function.0.into()),
        (nccl::DATATYPE, Word::INT8.0.into()),
        (nccl::COUNT, bytes),
        (nccl::BYTES, bytes),
    ];
    fields.extend(more);
    let args = args(&fields);
    let run = summary.run(&Facts::of(&args));
    summary.ran(&run, HostNs(start), Some(ns));
}

/// The cells of a table with these columns, as text.
fn cells(summary: &Summary, table: &str, columns: &[&str]) -> Vec<String> {
    let report = summary.report();
    let table = report.tables.iter().find(|it| it.name == table).unwrap();
    let at = |name: &&str| table.columns.iter().position(|column| column.name == *name).unwrap();
    let at: Vec<usize> = columns.iter().map(at).collect();
    let cell = |cell: &Cell| match cell {
        Cell::Empty => "-".to_owned(),
        Cell::Text(text) => text.clone(),
        Cell::Number(number) => number.to_string(),
    };
    table.rows.iter().map(|row| at.iter().map(|at| cell(&row[*at])).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn operations_with_the_same_arguments_are_one_row() {
    let mut summary = on(4);
    for (bytes, ns, replay) in [(64, 100, None), (64, 300, None), (32, 50, None), (64, 200, Some(7))] {
        let replay: Vec<_> = replay.map(|replay| (nccl::REPLAY, replay)).into_iter().collect();
        run(&mut summary, Word::ALL_REDUCE, bytes, (0, ns), &replay);
    }
    run(&mut summary, Word::BROADCAST, 64, (0, 10), &[(nccl::ROOT, 0)]);
    run(&mut summary, Word::BROADCAST, 64, (0, 10), &[(nccl::ROOT, 1)]);
    let columns = ["operation", "count", "root", "number", "graph", "kernel_median_ns", "kernel_total_ns"];
    let rows = cells(&summary, "operations", &columns);
    assert_eq!(
        rows,
        [
            "AllReduce 64 - 3 1 200 600",
            "AllReduce 32 - 1 0 50 50",
            "Broadcast 64 0 1 0 10 10",
            "Broadcast 64 1 1 0 10 10"
        ]
    );
    // 192 bytes in 600 ns, and each byte passes a link one and a half times.
    let rates = cells(&summary, "operations", &["algbw_bytes_per_s", "busbw_bytes_per_s"]);
    assert_eq!(rates[0], "320000000 480000000");
}

#[test]
fn an_all_to_all_is_one_operation_only_if_it_is_whole() {
    /// The groups made from sends to and receives from these ranks of four.
    fn group(parts: &[(Word, u64, u64)]) -> String {
        let mut summary = on(4);
        for (function, peer, bytes) in parts {
            let more = [(nccl::PEER, *peer), (nccl::OPERATIONS, parts.len() as u64)];
            run(&mut summary, *function, *bytes, (10, 1000), &more);
        }
        cells(&summary, "groups", &["operations", "bytes", "number", "algbw_bytes_per_s", "busbw_bytes_per_s"])
            .join("; ")
    }
    let all = |bytes: fn(u64) -> u64, ranks: &[u64]| -> Vec<(Word, u64, u64)> {
        ranks.iter().flat_map(|rank| [(Word::SEND, *rank, bytes(*rank)), (Word::RECV, *rank, bytes(*rank))]).collect()
    };
    // Rank 1 of four: what it sends to itself moves nothing over a link.
    assert_eq!(group(&all(|_| 100, &[0, 1, 2, 3])), "AlltoAll 400 1 400000000 300000000");
    assert_eq!(group(&all(|_| 100, &[0, 2, 3])), "AlltoAll 400 1 400000000 300000000");
    assert_eq!(group(&all(|rank| 100 * rank, &[0, 2, 3])), "AlltoAllv 500 1 500000000 500000000");
    // One row, whatever each expert gets in a step: 500 bytes, then 1100, each in 1 us.
    let mut steps = on(4);
    let step: [fn(u64) -> u64; 2] = [|rank| 100 * rank, |rank| 700 - 200 * rank];
    for (start, bytes) in [(10, step[0]), (5000, step[1])] {
        for (function, peer, bytes) in all(bytes, &[0, 2, 3]) {
            run(&mut steps, function, bytes, (start, 1000), &[(nccl::PEER, peer), (nccl::OPERATIONS, 6)]);
        }
    }
    let columns = ["operations", "bytes", "number", "kernel_total_ns", "algbw_bytes_per_s", "busbw_bytes_per_s"];
    assert_eq!(cells(&steps, "groups", &columns), ["AlltoAllv 800 2 2000 800000000 800000000"]);
    assert_eq!(group(&all(|_| 100, &[0, 2])), "2 Recv + 2 Send 200 1 200000000 200000000");
    let mut twice = all(|_| 100, &[0, 2, 3]);
    twice[5].1 = 2;
    assert_eq!(group(&twice), "3 Recv + 3 Send 300 1 300000000 300000000");
    let mut beyond = all(|_| 100, &[0, 2, 3]);
    beyond[0].1 = 4_000_000_000;
    assert_eq!(group(&beyond), "3 Recv + 3 Send 300 1 300000000 300000000");
}

#[test]
fn times_of_a_shared_kernel_are_those_of_the_group() {
    let mut summary = on(2);
    for start in [0, 5000] {
        for bytes in [100, 100, 300] {
            run(&mut summary, Word::ALL_REDUCE, bytes, (start, 1000), &[(nccl::OPERATIONS, 3)]);
        }
    }
    assert_eq!(
        cells(&summary, "operations", &["count", "number", "grouped", "timed", "kernel_total_ns"]),
        ["100 4 4 0 -", "300 2 2 0 -"]
    );
    assert_eq!(
        cells(&summary, "groups", &["operations", "bytes", "number", "kernel_total_ns", "busbw_bytes_per_s"]),
        ["3 AllReduce 500 2 2000 500000000"]
    );
    // One of three is missing: the next kernel begins.
    run(&mut summary, Word::ALL_REDUCE, 100, (9000, 1000), &[(nccl::OPERATIONS, 3)]);
    run(&mut summary, Word::ALL_REDUCE, 100, (11_000, 1000), &[(nccl::OPERATIONS, 2)]);
    run(&mut summary, Word::ALL_REDUCE, 100, (11_000, 1000), &[(nccl::OPERATIONS, 2)]);
    assert_eq!(cells(&summary, "groups", &["operations", "number"]), ["3 AllReduce 2", "2 AllReduce 1"]);
    assert!(cells(&summary, "losses", &["what", "number"]).contains(&"groups_incomplete 1".into()));
}

#[test]
fn contradicted_matches_have_no_times() {
    let mut summary = on(2);
    run(&mut summary, Word::ALL_REDUCE, 8, (0, 100), &[]);
    run(&mut summary, Word::ALL_REDUCE, 8, (0, 900), &[(nccl::MATCH, matched_by::contradicted)]);
    assert_eq!(cells(&summary, "operations", &["number", "timed", "kernel_max_ns", "contradicted"]), ["2 1 100 1"]);
}

#[test]
fn waits_for_the_proxy_are_added_up() {
    let mut summary = on(2);
    let columns = ["proxy_waits", "proxy_wait_total_ns"];
    run(&mut summary, Word::ALL_REDUCE, 8, (0, 100), &[]);
    assert_eq!(cells(&summary, "operations", &columns), ["0 -"]);
    run(&mut summary, Word::ALL_REDUCE, 8, (200, 100), &[(nccl::PROXY_WAIT_NS, 70)]);
    run(&mut summary, Word::ALL_REDUCE, 8, (400, 100), &[(nccl::PROXY_WAIT_NS, 30)]);
    assert_eq!(cells(&summary, "operations", &columns), ["2 100"]);
    let mut all = Summary::new();
    let _ = all.add_all(&summary);
    let _ = all.add_all(&summary);
    assert_eq!(cells(&all, "operations", &columns), ["4 200"]);
}

#[test]
fn alignment_and_buffers_are_counted() {
    let mut summary = on(2);
    for (at, alignment) in [(0x1000, 4096), (0x1000, 4096), (0x1080, 128), (0x1010, 16), (0x1004, 4), (0, 0)] {
        let buffers = [(nccl::SEND_BUFFER, at), (nccl::BUFFER_ALIGNMENT, alignment)];
        run(&mut summary, Word::ALL_REDUCE, 8, (0, 100), if at == 0 { &[] } else { &buffers });
    }
    let columns = ["aligned_128", "aligned_16", "unaligned", "alignment_unknown", "buffers"];
    assert_eq!(cells(&summary, "buffers", &columns), ["3 1 1 1 4"]);
    for at in 0..100 {
        run(&mut summary, Word::ALL_REDUCE, 8, (0, 100), &[(nccl::SEND_BUFFER, 0x1_0000 + at)]);
    }
    assert_eq!(cells(&summary, "buffers", &["buffers"]), ["more than 16"]);
}

#[test]
fn waits_of_transfers_add_up_by_what_they_wait_for() {
    let mut summary = on(2);
    let facts = args(&[(nccl::COMM, HASH), (nccl::PEER, 0)]);
    let peer = summary.peer(&Facts::of(&facts), true);
    let mut transfer = Transfer::new(peer, HostNs(100));
    transfer.waits(HostNs(100), Some(Wait::Gpu), None);
    transfer.waits(HostNs(130), Some(Wait::Peer), Some(0));
    transfer.waits(HostNs(140), None, None);
    transfer.waits(HostNs(150), Some(Wait::Network), Some(4096));
    summary.transferred(transfer, HostNs(350));
    let columns = [
        "direction",
        "peer",
        "transfers",
        "bytes",
        "gpu_wait_ns",
        "peer_wait_ns",
        "network_wait_ns",
        "longest_wait_ns",
    ];
    assert_eq!(cells(&summary, "proxy", &columns), ["send 0 1 4096 30 10 200 200"]);
}

#[test]
fn memory_is_bounded_and_what_finds_no_row_is_counted() {
    let mut summary = on(2);
    for count in 0..3000 {
        run(&mut summary, Word::ALL_REDUCE, count, (0, count), &[]);
        let facts = args(&[(nccl::COMM, HASH + count), (nccl::PEER, count)]);
        let peer = summary.peer(&Facts::of(&facts), true);
        summary.transferred(Transfer::new(peer, HostNs(0)), HostNs(1));
    }
    let numbers: u64 = cells(&summary, "operations", &["number"]).iter().map(|it| it.parse::<u64>().unwrap()).sum();
    assert_eq!((cells(&summary, "operations", &["rank"]).len(), numbers), (ROWS, 3000));
    let losses = cells(&summary, "losses", &["what", "number"]);
    assert!(losses.contains(&format!("operations_sharing {}", 3000 - ROWS + 1)), "{losses:?}");
    assert!(losses.iter().any(|it| it.starts_with("peers_sharing")), "{losses:?}");
    let others = cells(&summary, "operations", &["operation", "bytes"]);
    assert_eq!(others.iter().filter(|it| it.starts_with("others")).collect::<Vec<_>>(), ["others -"]);
}

#[test]
fn peers_keep_their_series() {
    let mut summary = on(2);
    let transfer = |summary: &mut Summary, peer: u64, bytes: u64| {
        let peer = summary.peer(&Facts::of(&args(&[(nccl::COMM, HASH), (nccl::PEER, peer)])), true);
        let mut transfer = Transfer::new(peer, HostNs(0));
        transfer.waits(HostNs(0), Some(Wait::Network), Some(bytes));
        summary.transferred(transfer, HostNs(1));
    };
    let of_others = |summary: &Summary| -> u64 {
        let metrics = summary.metrics(None);
        let line = metrics.lines().find(|line| line.contains("proxy_bytes_total{") && line.contains("\"other\""));
        line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    (0..100).for_each(|peer| transfer(&mut summary, peer, 10));
    assert_eq!(of_others(&summary), 360);
    // The counter never falls.
    transfer(&mut summary, 99, 1_000);
    assert_eq!(of_others(&summary), 1_360);
}

#[test]
fn all_have_what_each_rank_has() {
    let mut report = Report::empty();
    let row = |rank: &str, value: &str| vec![rank.into(), "RANK".into(), value.into()];
    // Two recordings of rank 0, as after a restart.
    report.tables[0].rows = vec![row("0", "a"), row("0", "a"), row("1", "b"), row("0", "c"), row("1", "c")];
    report.join_environment();
    assert_eq!(report.tables[0].rows, [row("0", "a"), row("1", "b"), row(ALL, "c")]);
    // Of some ranks, and of many between which others lie.
    report.tables[0].rows = vec![row("0", "a"), row("1", "a"), row("2", "b")];
    report.join_environment();
    assert_eq!(report.tables[0].rows, [row("0-1", "a"), row("2", "b")]);
    let value = |rank: u32| if rank.is_multiple_of(2) { "a" } else { "b" };
    report.tables[0].rows = (0..40).map(|rank| row(&rank.to_string(), value(rank))).collect();
    report.join_environment();
    assert_eq!(report.tables[0].rows, [row("20 ranks", "a"), row("20 ranks", "b")]);
}

#[test]
fn the_block_for_the_end_of_a_job_is_short() {
    let mut summary = on(64);
    assert_eq!(summary.block(), [""; 0], "nothing to say");
    for count in 1..500 {
        run(&mut summary, Word::ALL_REDUCE, count << 20, (0, count * 1000), &[]);
        run(&mut summary, Word::ALL_GATHER, count << 10, (count, count), &[(nccl::OPERATIONS, 2)]);
        run(&mut summary, Word::ALL_GATHER, count << 10, (count, count), &[(nccl::OPERATIONS, 2)]);
    }
    let facts = args(&[(nccl::COMM, HASH), (nccl::PEER, 0)]);
    let peer = summary.peer(&Facts::of(&facts), true);
    let mut transfer = Transfer::new(peer, HostNs(0));
    transfer.waits(HostNs(0), Some(Wait::Network), None);
    summary.transferred(transfer, HostNs(10));
    let ended = report::LOSSES.map(|(field, _)| (field, 1));
    summary.remark(HostNs(0), instant::ENDED, &args(&ended));
    let block = summary.block();
    println!("{}", block.join("\n"));
    assert!(block.len() <= BLOCK, "{}", block.len());
    assert!(block[2].contains("AllReduce 499 MiB i8"), "the longest comes first");
    assert!(block.iter().any(|line| line.contains("network 100 %")));
    assert!(block.iter().any(|line| line.contains("1 dropped")));
    assert!(block.iter().all(|line| line.chars().count() < 160), "{block:?}");
}

#[test]
fn the_sum_of_ranks_is_the_sum_of_their_figures() {
    let mut ranks = [on(2), on(2)];
    for (at, rank) in ranks.iter_mut().enumerate() {
        for number in 0..40 {
            run(rank, Word::ALL_REDUCE, 8, (0, 100 + number), &[]);
        }
        run(rank, Word::SEND, 8, (0, 7), &[(nccl::PEER, at as u64)]);
    }
    let mut all = Summary::new();
    ranks.iter().for_each(|rank| drop(all.add_all(rank)));
    let columns = ["operation", "peer", "number", "kernel_min_ns", "kernel_max_ns", "kernel_total_ns"];
    assert_eq!(cells(&all, "operations", &columns), ["AllReduce - 80 100 139 9560", "Send - 2 7 7 14"]);
}

#[test]
fn arbitrary_arguments_do_no_harm() {
    let (mut summary, mut state) = (on(3), 0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..20_000 {
        let mut bytes = Vec::new();
        for _ in 0..state % 40 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            bytes.extend((state >> 20).to_le_bytes());
        }
        state = state.wrapping_add(1);
        let facts = Facts::of(&bytes);
        summary.handed_over(&facts);
        let run = summary.run(&facts);
        summary.ran(&run, HostNs(state), Some(state >> 3));
        summary.comm_init(HostNs(state), &facts);
        summary.call(&facts);
        summary.peer(&facts, state % 2 == 0);
        summary.remark(HostNs(state), [instant::GPU, instant::ENDED, "x"][state as usize % 3], &bytes);
        summary.network(&facts);
    }
    let _ = (summary.report().text(), summary.block());
    let mut all = Summary::new();
    drop(all.add_all(&summary));
    drop(all.add_all(&summary));
    let _ = all.report_of_all().text();
}

#[test]
fn where_an_import_comes_from_is_no_loss() {
    let mut summary = Summary::new();
    let say = |summary: &mut Summary, name: &str, note: &str| {
        let mut buf = Buf::new();
        buf.bytes_field(nccl::NOTE, note.as_bytes());
        summary.remark(HostNs(5), name, buf.bytes());
    };
    say(&mut summary, instant::IMPORT_STARTED, "from trace.json");
    say(&mut summary, instant::PROCESS_GROUP, "dp, rank 0");
    say(&mut summary, instant::COMM, "0000000000000007, rank 0");
    summary.comm_init(HostNs(5), &Facts::of(&args(&[(nccl::COMM, HASH), (nccl::RANK, 0)])));
    say(&mut summary, instant::IMPORT_ENDED, "");
    assert_eq!(cells(&summary, "losses", &["what"]), [""; 0]);
    let environment = cells(&summary, "environment", &["name", "value"]);
    assert!(environment.contains(&"recording from trace.json".to_owned()), "{environment:?}");
    assert_eq!(cells(&summary, "communicators", &["created_ns", "created_source"]), ["- -"]);
    // What could not be read is one.
    say(&mut summary, instant::IMPORT_NOTE, "the file ends in the middle");
    assert_eq!(cells(&summary, "losses", &["what"]), [instant::IMPORT_NOTE]);
}

#[test]
fn losses_are_those_of_the_sql() {
    let sql = include_str!("../../sql/ncclscope.sql");
    let list = sql.split("AND key IN (").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
    let of_sql: Vec<&str> = list.split('\'').filter_map(|part| part.strip_prefix("nccl.")).collect();
    assert_eq!(report::LOSSES.map(|(_, name)| name).to_vec(), of_sql);
}
