//! Counts each kind of event that NCCL reports, and compares with the truth.

use std::collections::{BTreeMap, HashMap, HashSet};

use emulator::truth::{Call, Copy, Kernel, Line};
use ncclscope_tests::perfetto::{Gpu, Row};

use super::Played;
use super::played::key;

impl Played {
    /// Whether all ranks of a kernel's communicator are on one host.
    fn is_on_one_host(&self, kernel: &Kernel) -> bool {
        let comm = self.comms.get(&key(kernel));
        comm.is_some_and(|(hash, _)| self.hosts[hash].values().collect::<HashSet<_>>().len() == 1)
    }

    /// The calls that NCCL reports: operations, except those of a communicator of one rank, which
    /// only copies.
    pub(super) fn told_calls(&self) -> impl Iterator<Item = &Call> {
        let operations = self.calls.iter().filter(|call| !call.function.starts_with("Comm"));
        operations.filter(|call| self.sizes.get(&call.communicator).is_some_and(|size| *size > 1))
    }

    /// The names by which NCCL reports a call. An operation built from sends and receives is
    /// reported as those, one per peer.
    pub(super) fn names(&self, call: &Call) -> Vec<&'static str> {
        let size = self.sizes[&call.communicator] as usize;
        let is_root = i64::from(call.root) == self.rank_in(call);
        let (sends, receives) = match call.function.as_str() {
            "AlltoAll" => (size, size),
            "Gather" => (1, if is_root { size } else { 0 }),
            "Scatter" => (if is_root { size } else { 0 }, 1),
            function => {
                let known = ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "Send", "Recv"];
                let known = known.into_iter().find(|known| *known == function);
                return vec![known.unwrap_or_else(|| panic!("a call that this test does not know: {function}"))];
            }
        };
        let mut names = vec!["Send"; sends];
        names.extend(vec!["Recv"; receives]);
        names
    }

    /// The rank of the calling process in the communicator of a call.
    fn rank_in(&self, call: &Call) -> i64 {
        i64::from(self.ranks[&(call.communicator.clone(), call.rank)])
    }

    /// The copies and memsets of its streams.
    fn copies(&self) -> impl Iterator<Item = &Copy> {
        self.lines.iter().filter_map(|line| if let Line::Copy(copy) = line { Some(copy) } else { None })
    }

    #[track_caller]
    pub(super) fn check_calls(&self) {
        if self.minor() < 228 {
            return;
        }
        let mut expected: BTreeMap<String, i64> = BTreeMap::new();
        for name in self.told_calls().flat_map(|call| self.names(call)) {
            *expected.entry(format!("nccl{name}")).or_default() += 1;
        }
        let found = self.counts("category = 'api' AND name GLOB 'nccl*'");
        assert_eq!(found, expected, "calls");
        let orphans = self.count(
            "category = 'api' AND name GLOB 'nccl*' AND NOT EXISTS \
             (SELECT 1 FROM ancestor_slice(slice.id) a WHERE a.name = 'GroupApi')",
        );
        assert_eq!(orphans, 0, "every call is part of a group");
        assert_eq!(self.count("category = 'api' AND name = 'GroupApi'"), self.told_groups(), "groups of calls");
    }

    /// How many groups of calls the application made that contain a call that NCCL reports; a call
    /// outside of any group is its own group.
    fn told_groups(&self) -> i64 {
        let told: HashSet<_> = self.told_calls().map(|call| (call.thread, call.called)).collect();
        let mut calls: Vec<&Call> = self.calls.iter().collect();
        calls.sort_by_key(|call| (call.thread, call.called));
        let (mut groups, mut depth, mut is_told) = (0, 0, false);
        for call in calls {
            match &*call.function {
                "GroupStart" => depth += 1,
                "GroupEnd" => depth -= 1,
                _ => is_told |= told.contains(&(call.thread, call.called)),
            }
            if depth == 0 {
                groups += i64::from(std::mem::take(&mut is_told));
            }
        }
        groups
    }

    /// The kernels whose operations NCCL hands over, and those for which it may or may not: all
    /// replays of a node or none.
    ///
    /// A captured plan in which this rank's proxy has no part is reported once, at its capture.
    /// That is so when all ranks are on one host. In a tree it depends on the rank's place, which
    /// the truth does not have. In a ring every host has a connection in and out.
    fn told_runs(&self) -> (Vec<&Kernel>, HashMap<u64, Vec<&Kernel>>) {
        let channels = self.count("category = 'gpu'") > 0;
        let mut certain = Vec::new();
        let mut perhaps: HashMap<u64, Vec<&Kernel>> = HashMap::new();
        let mut captured = HashSet::new();
        for kernel in self.told_kernels() {
            let in_tree = kernel.operations.iter().any(|operation| operation.algorithm == "TREE");
            match kernel.graph {
                Some(place) if !captured.insert(place.original_node) && !channels => {
                    if in_tree {
                        perhaps.entry(place.original_node).or_default().push(kernel);
                    } else if !self.is_on_one_host(kernel) {
                        certain.push(kernel);
                    }
                }
                _ => certain.push(kernel),
            }
        }
        (certain, perhaps)
    }

    #[track_caller]
    pub(super) fn check_launches(&self) {
        let (certain, perhaps) = self.told_runs();
        if self.minor() >= 228 {
            let eager = self.told_kernels().filter(|kernel| kernel.graph.is_none()).count();
            let captured = self.told_kernels().filter_map(|kernel| kernel.graph).map(|place| place.original_node);
            let expected = eager + captured.collect::<HashSet<_>>().len();
            let found = self.count("category = 'api' AND name = 'KernelLaunch'");
            assert_eq!(found, expected as i64, "kernel launches, one for each captured node");
        }
        let mut expected = HashSet::from([certain.len() as i64]);
        for replays in perhaps.values() {
            expected.extend(expected.clone().into_iter().map(|sum| sum + replays.len() as i64));
        }
        let found = self.count("category = 'api' AND name = 'Group'");
        // Up to 2.26 NCCL leaves out the groups of some plans whose communicator is on one host.
        // We do not know which.
        let most = expected.iter().copied().max().unwrap_or_default();
        let right = if self.minor() < 227 { (most * 3 / 4..=most).contains(&found) } else { expected.contains(&found) };
        assert!(right, "{found} groups, and kernels that NCCL reports: {expected:?}");
    }

    #[track_caller]
    pub(super) fn check_operations(&self) {
        let (certain, perhaps) = self.told_runs();
        let count = |kernels: &mut dyn Iterator<Item = &&Kernel>| {
            let mut counts: BTreeMap<String, i64> = BTreeMap::new();
            for operation in kernels.flat_map(|kernel| &kernel.operations) {
                *counts.entry(operation.function.clone()).or_default() += 1;
            }
            counts
        };
        let certain = count(&mut certain.iter());
        let perhaps = count(&mut perhaps.values().flatten());
        let found = self.counts("category = 'operation' AND name NOT GLOB 'communicator *'");
        let functions: HashSet<_> = found.keys().chain(certain.keys()).collect();
        for function in functions {
            let of = |counts: &BTreeMap<String, i64>| counts.get(function).copied().unwrap_or_default();
            let least = if self.minor() < 227 { of(&certain) / 2 } else { of(&certain) };
            let most = of(&certain) + of(&perhaps);
            assert!((least..=most).contains(&of(&found)), "{} operations {function} of {least} to {most}", of(&found));
        }
    }

    /// Each copy and memset in the truth is drawn once, on its stream, at its true time within the
    /// stated error; and no others are.
    #[track_caller]
    pub(super) fn check_copies(&self) {
        if self.is_joined {
            return;
        }
        let arg = |key: &str| format!("extract_arg(arg_set_id, 'nccl.{key}')");
        let rows = self.trace().rows(&format!(
            "SELECT name, ts, dur, {} AS correlation, {} AS device, {} AS stream, {} AS bytes, {} AS error, {} AS matched FROM slice \
             WHERE category = 'kernel' AND {} IS NULL ORDER BY ts, dur",
            arg("correlation"),
            arg("device"),
            arg("stream_id"),
            arg("bytes"),
            arg("time_error_ns"),
            arg("match"),
            arg("kernel")
        ));
        let mut found: HashMap<(i64, i64, i64), Vec<Row>> = HashMap::new();
        for row in rows {
            found.entry((row.i64("correlation"), row.i64("device"), row.i64("stream"))).or_default().push(row);
        }
        let mut copies: Vec<&Copy> = self.copies().collect();
        copies.sort_by_key(|copy| (std::cmp::Reverse(copy.start), copy.end));
        let boot = |at: u64| self.process.clocks.boot_at(at);
        for copy in copies {
            let of = (i64::from(copy.correlation), i64::from(copy.device), i64::from(copy.stream));
            let row = found.get_mut(&of).and_then(Vec::pop).unwrap_or_else(|| panic!("the trace lacks {copy:?}"));
            let (begin, end, error) = (row.i64("ts"), row.i64("ts") + row.i64("dur"), row.i64("error"));
            for (drawn, truth) in [(begin, boot(copy.start)), (end, boot(copy.end))] {
                assert!((drawn - truth).abs() <= error, "{} ns off, {error} stated: {copy:?}", drawn - truth);
            }
            assert_eq!(row.str("name") == "memset", copy.set, "{} {copy:?}", row.str("name"));
            // A copy engine's copy has the size of the operation.
            assert!(!row.is_null("matched") || row.i64("bytes") == copy.bytes as i64, "{row:?} {copy:?}");
        }
        found.retain(|_, rows| !rows.is_empty());
        assert!(found.is_empty(), "copies that were never made: {found:?}");
    }

    /// What the trace says about itself and its GPUs, besides its events.
    #[track_caller]
    pub(super) fn check_facts(&self) {
        if self.is_joined {
            return;
        }
        let attributes = self.trace().attributes();
        let said = |key: &str| attributes.get(key).map(String::as_str);
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux has one");
        let (major, minor, patch) =
            (self.process.nccl / 10_000, self.process.nccl / 100 % 100, self.process.nccl % 100);
        // Before interface v4 nothing leads to NCCL's library.
        let version = (self.minor() >= 227).then(|| format!("{major}.{minor}.{patch}"));
        assert_eq!(said("nccl.version"), version.as_deref(), "{attributes:?}");
        assert_eq!(said("ncclscope.version"), Some(env!("CARGO_PKG_VERSION")), "{attributes:?}");
        assert_eq!(said("ncclscope.boot"), Some(boot.trim()), "{attributes:?}");
        assert_eq!(said("ncclscope.preset"), Some("full"), "{attributes:?}");
        assert!(said("cupti.release").is_some_and(|release| release != "none"), "{attributes:?}");
        let gpu = |line: &Line| {
            let Line::Device(it) = line else { return None };
            Some(Gpu { name: it.name.clone(), vendor: "NVIDIA".into(), uuid: it.uuid.to_vec() })
        };
        let used: HashSet<u32> = self.kernels.iter().map(|kernel| kernel.device).collect();
        let there: Vec<Gpu> = self.lines.iter().filter_map(gpu).collect();
        let shown = self.trace().gpus();
        assert!(shown.len() <= there.len(), "{shown:?} of {there:?}");
        for (device, shown) in shown.iter().enumerate() {
            let is_used = used.contains(&(device as u32));
            assert!(
                *shown == there[device] || !is_used && *shown == Gpu::default(),
                "GPU {device} is {:?}: {shown:?}",
                there[device]
            );
        }
        assert!(used.iter().all(|device| (*device as usize) < shown.len()), "GPUs {used:?} worked: {shown:?}");
    }

    /// Each collective of a copy engine: called, queued, synchronised before and after, copied.
    #[track_caller]
    pub(crate) fn check_copy_engine(&self) {
        let mut expected: BTreeMap<String, i64> = BTreeMap::new();
        for call in self.told_calls().filter(|call| call.function != "AllReduce") {
            *expected.entry(call.function.clone()).or_default() += 1;
        }
        assert!(!expected.is_empty(), "no call for a copy engine");
        let queued = self.counts("category = 'api' AND name GLOB 'copy engine *'");
        let all: i64 = expected.values().sum();
        assert_eq!(queued, BTreeMap::from([("copy".to_owned(), all)]), "collectives queued");
        for (function, expected) in &expected {
            let found = self.count(&format!("category = 'api' AND name GLOB 'copy engine {function} *'"));
            assert_eq!(found, *expected, "copy engine {function}");
        }
        assert_eq!(self.count("category = 'api' AND name = 'CeBatch'"), all, "one batch each");
        assert_eq!(self.count("category = 'api' AND name = 'CeSync'"), 2 * all, "one before and one after");
        // Every rank copies in these, as one batch.
        let copied = self.counts(
            "category = 'kernel' AND extract_arg(arg_set_id, 'nccl.kernel') IS NULL AND \
             extract_arg(arg_set_id, 'nccl.match') = 'exact_launch_bracket'",
        );
        for function in ["AllGather", "AlltoAll"] {
            assert_eq!(copied.get(function), expected.get(function), "{function} copied");
        }
        self.check_copies();
    }

    /// Whether NCCL was asked for the work of each channel, and the release can report it.
    fn wants_channels(&self) -> bool {
        let no_allgatherv = self.process.environment.get("NCCL_ALLGATHERV_ENABLE") == Some(&"0".into());
        let can = match self.process.nccl {
            22703 => true,
            ..22800 | 23102 => false,
            22900..23100 => no_allgatherv,
            _ => true,
        };
        self.asked.channels && can
    }

    /// Whether an operation of a kernel is a send or receive of a rank to itself.
    fn is_to_itself(&self, kernel: &Kernel, operation: u32) -> bool {
        let operation = &kernel.operations[operation as usize];
        let rank = self.comms.get(&key(kernel)).map(|(_, rank)| *rank as i32);
        matches!(operation.function.as_str(), "Send" | "Recv") && Some(operation.root) == rank
    }

    #[track_caller]
    pub(super) fn check_channels(&self) {
        // Up to 2.30 the GPU counts sends of a rank to itself, and the host does not ask for them.
        let asked = |kernel: &Kernel, operation: u32| self.minor() >= 231 || !self.is_to_itself(kernel, operation);
        let stamped = |kernel: &Kernel| {
            let stamped = kernel.channels.iter().filter(|it| it.counter.is_some());
            stamped.filter(|it| asked(kernel, it.operation)).count() as i64
        };
        let found = self.count("category = 'gpu'");
        if !self.wants_channels() {
            assert_eq!(found, 0, "kernel channels that were not requested");
            return;
        }
        let whole: i64 = self.told_kernels().filter(|kernel| !kernel.aborted).map(stamped).sum();
        // NCCL stops looking when a communicator is aborted.
        let cut: i64 = self.told_kernels().filter(|kernel| kernel.aborted).map(stamped).sum();
        assert!(whole + cut > 0 || self.told_kernels().next().is_none(), "no kernel stamped its channels");
        let right = (whole..=whole + cut).contains(&found);
        assert!(right, "{found} kernel channels of {whole}, and {cut} of aborted kernels");
    }

    /// The proxy operations that each kernel must have had: by communicator, function and
    /// direction.
    ///
    /// If each rank has a host of its own, a ring takes every channel over the network, once in
    /// and once out; and so does every channel of a send or receive whose peer is on another host.
    fn certain_proxy_operations(&self) -> BTreeMap<(i64, String, bool), i64> {
        let mut certain = BTreeMap::new();
        for kernel in self.told_kernels() {
            let Some((hash, rank)) = self.comms.get(&key(kernel)) else { continue };
            let hosts = &self.hosts[hash];
            let is_apart = hosts.values().collect::<HashSet<_>>().len() == hosts.len() && hosts.len() > 1;
            for (index, operation) in kernel.operations.iter().enumerate() {
                let channels = kernel.channels.iter().filter(|it| it.operation as usize == index).count() as i64;
                let peer = operation.root.cast_unsigned();
                let directions = match (&*operation.function, &*operation.algorithm) {
                    // Of those of one group that share a channel, 2.27 reports one.
                    ("Send" | "Recv", _) if self.minor() == 227 => &[][..],
                    ("Send", _) if hosts.get(&peer) != hosts.get(rank) => &[true][..],
                    ("Recv", _) if hosts.get(&peer) != hosts.get(rank) => &[false],
                    ("AllReduce" | "AllGather" | "ReduceScatter", "RING") if is_apart => &[true, false],
                    _ => &[],
                };
                for sends in directions {
                    *certain.entry((hash.cast_signed(), operation.function.clone(), *sends)).or_default() += channels;
                }
            }
        }
        certain
    }

    #[track_caller]
    pub(super) fn check_proxy(&self) {
        if !self.asked.proxy {
            assert_eq!(self.count("category = 'proxy'"), 0, "proxy events that were not requested");
            return;
        }
        let unfinished = self.count("category = 'proxy' AND dur < 0");
        assert_eq!(unfinished, 0, "proxy slices without an end");
        let rows = self.trace().rows(
            "SELECT extract_arg(arg_set_id, 'nccl.comm') AS comm, substr(slice.name, 1, instr(slice.name, ' ') - 1) AS function, \
             track.name GLOB '*send*' AS sends, count(*) AS n, sum(coalesce(extract_arg(arg_set_id, 'nccl.steps'), 0) = 0) AS idle \
             FROM slice JOIN track ON track.id = track_id WHERE category = 'proxy' AND slice.name GLOB '* ch *' GROUP BY 1, 2, 3",
        );
        let of = |row: &Row| ((row.i64("comm"), row.str("function").to_owned(), row.i64("sends") != 0), row.i64("n"));
        let found: BTreeMap<_, _> = rows.iter().map(of).collect();
        for (of, certain) in self.certain_proxy_operations() {
            let found = found.get(&of).copied().unwrap_or_default();
            assert!(found >= certain, "{found} proxy operations of {certain}: {of:?}");
        }
        let (found, idle) = rows.iter().fold((0, 0), |(n, idle), row| (n + row.i64("n"), idle + row.i64("idle")));
        assert!(idle < found || found == 0, "no proxy operation has a step");
        // The work that the progress thread reports it took over. This includes broadcasts, which
        // NCCL does not report otherwise, and up to 2.30 the work of channels.
        if self.minor() >= 228 {
            let taken = self.trace().rows(
                "SELECT coalesce(sum(int_value), 0) AS n FROM slice JOIN args USING (arg_set_id) WHERE category = 'proxy' AND \
                 slice.name = 'append' AND key = 'nccl.appended'",
            )[0]
            .i64("n");
            let silent = self.kernels.iter().flat_map(|kernel| &kernel.operations).filter(|it| self.is_silent(it));
            let mut silent: i64 = silent.map(|it| 2 * i64::from(it.channels.1 - it.channels.0 + 1)).sum();
            let mut told = found + self.count("category = 'proxy' AND name = 'proxy operation without progress'");
            if self.minor() < 231 {
                told += self.count("category = 'gpu'");
                // A rank's sends to itself are taken over and not asked for.
                let of = |kernel: &Kernel| {
                    kernel.channels.iter().filter(|it| self.is_to_itself(kernel, it.operation)).count()
                };
                silent += self.kernels.iter().map(of).sum::<usize>() as i64;
            }
            assert!(
                (told..=told + silent).contains(&taken),
                "{taken} proxy operations taken over, {told} told, {silent} not"
            );
        }
        if found > 0 {
            for state in ["active", "idle"] {
                assert!(
                    self.count(&format!("category = 'proxy' AND name = '{state}'")) > 0,
                    "no {state} progress thread"
                );
            }
        }
    }
}

/// Asserts that every ring between hosts left and entered each of them once per channel, over the
/// traces of all processes.
#[track_caller]
pub(super) fn check_rings(processes: &[Played]) {
    let mut expected: BTreeMap<i64, i64> = BTreeMap::new();
    let mut found: BTreeMap<i64, i64> = BTreeMap::new();
    for played in processes {
        // In 2.23 several communicators may have one hash.
        for kernel in played.told_kernels().filter(|_| played.minor() >= 224) {
            // The total is what the ring's first rank knows, times the number of hosts.
            let Some((hash, 0)) = played.comms.get(&key(kernel)) else { continue };
            let hosts = played.hosts[hash].values().collect::<HashSet<_>>().len() as i64;
            let rings = kernel.operations.iter().enumerate().filter(|(_, it)| {
                it.algorithm == "RING" && matches!(&*it.function, "AllReduce" | "AllGather" | "ReduceScatter")
            });
            for (index, _) in rings.filter(|_| hosts > 1) {
                let channels = kernel.channels.iter().filter(|it| it.operation as usize == index).count() as i64;
                *expected.entry(hash.cast_signed()).or_default() += 2 * hosts * channels;
            }
        }
        for row in played.trace().rows(
            "SELECT extract_arg(arg_set_id, 'nccl.comm') AS comm, count(*) AS n FROM slice WHERE category = 'proxy' AND (name GLOB \
             'AllReduce * ch *' OR name GLOB 'AllGather * ch *' OR name GLOB 'ReduceScatter * ch *') GROUP BY 1",
        ) {
            *found.entry(row.i64("comm")).or_default() += row.i64("n");
        }
    }
    for (comm, expected) in expected {
        let found = found.get(&comm).copied().unwrap_or_default();
        assert!(found >= expected, "{found} proxy operations of {expected} in the rings of {comm:#x}");
    }
}
