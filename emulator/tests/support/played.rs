//! What one process of a job did, compared with its trace.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use elements::words::Datatype;
use emulator::accuracy::{Demand, judge};
use emulator::truth::{Call, Capture, Kernel, Line, Operation, Process, Transfer};
use ncclscope_tests::perfetto::{Row, Trace};
use ncclscope_tests::recording::assert_sound;
use ncclscope_tests::timeline::Figures;

use super::{Asked, accuracy};

/// What one process did, and its trace.
pub(crate) struct Played {
    /// The process.
    pub(crate) process: Process,
    /// Its kernels, including the application's own.
    pub(crate) kernels: Vec<Kernel>,
    /// Its calls into NCCL.
    pub(crate) calls: Vec<Call>,
    /// The requests of its threads to the emulator's own network.
    pub(super) transfers: Vec<Transfer>,
    /// The truth, line by line.
    pub(super) lines: Vec<Line>,
    /// The sizes of its communicators, by name.
    pub(crate) sizes: HashMap<String, u32>,
    /// The ranks in them, by name and world rank.
    pub(super) ranks: HashMap<(String, u32), u32>,
    /// The hash of each kernel's communicator, and the rank in it. A name may stand for different
    /// communicators on other ranks, and addresses are reused.
    pub(super) comms: HashMap<(i64, i64), (u64, u32)>,
    /// The host of each rank of each communicator, for the whole job, by hash.
    pub(super) hosts: HashMap<u64, HashMap<u32, u32>>,
    /// What NCCL was asked for.
    pub(super) asked: Asked,
    /// Its captures.
    pub(super) captures: Vec<Capture>,
    /// The trace; `None` when the plugin left none.
    pub(super) trace: Option<Trace>,
    /// Whether the kernels in it are another tool's.
    pub(super) is_joined: bool,
}

/// How many records may be late on a busy machine.
const LATE: u64 = 3;

impl Played {
    pub(super) fn new(lines: Vec<Line>, path: &Path) -> Played {
        let mut process = None;
        let (mut kernels, mut calls, mut captures, mut transfers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut sizes, mut ranks, mut comms) = (HashMap::new(), HashMap::new(), HashMap::new());
        // By the address on the device, up to this point of the file.
        let mut hashes: HashMap<u64, (u64, u32)> = HashMap::new();
        for line in lines.clone() {
            match line {
                Line::Process(it) => process = Some(it),
                Line::Kernel(it) => {
                    let hash = it.device_comm.and_then(|address| hashes.get(&address));
                    comms.extend(hash.map(|hash| (key(&it), *hash)));
                    kernels.push(it);
                }
                Line::Call(it) => calls.push(it),
                Line::Capture(it) => captures.push(it),
                Line::Communicator(it) => {
                    sizes.insert(it.name.clone(), it.size);
                    hashes.extend(it.device_comm.zip(it.hash.map(|hash| (hash, it.rank))));
                    ranks.insert((it.name, it.world_rank), it.rank);
                }
                Line::Transfer(it) => transfers.push(it),
                Line::Device(_) | Line::Copy(_) | Line::Lend(_) | Line::End(_) => {}
            }
        }
        let process = process.unwrap_or_else(|| panic!("{} does not begin with its process", path.display()));
        Played {
            process,
            kernels,
            calls,
            transfers,
            lines,
            sizes,
            ranks,
            comms,
            hosts: HashMap::new(),
            asked: Asked::default(),
            captures,
            trace: None,
            is_joined: false,
        }
    }

    /// The trace.
    #[track_caller]
    pub(crate) fn trace(&self) -> &Trace {
        self.trace.as_ref().unwrap_or_else(|| panic!("process {} left no trace", self.process.pid))
    }

    /// NCCL's version, as 230 for 2.30.7.
    pub(crate) fn minor(&self) -> u32 {
        self.process.nccl / 100
    }

    /// Whether NCCL reports only the call of an operation. Since 2.29 broadcasts take another
    /// path.
    pub(super) fn is_silent(&self, operation: &Operation) -> bool {
        self.minor() >= 229
            && self.process.environment.get("NCCL_ALLGATHERV_ENABLE") != Some(&"0".into())
            && matches!(&*operation.function, "Broadcast" | "AllGatherV")
    }

    /// The NCCL kernels for whose operations NCCL sends events.
    pub(crate) fn told_kernels(&self) -> impl Iterator<Item = &Kernel> {
        let silent = |kernel: &Kernel| kernel.operations.iter().all(|it| self.is_silent(it));
        self.kernels.iter().filter(move |kernel| kernel.device_comm.is_some() && !silent(kernel))
    }

    /// Asserts that the trace is complete, that nothing in it is doubtful, and that it has exactly
    /// what was played: each call, launch, operation and channel; and each call at its true time.
    #[track_caller]
    pub(crate) fn check(&self) {
        // NCCL stops polling a communicator that is aborted: channels of its last kernels stay
        // open.
        let aborted = self.kernels.iter().any(|kernel| kernel.aborted);
        let open = if aborted { self.count("category = 'gpu' AND dur < 0") } else { 0 };
        assert_sound(self.trace(), open as u64);
        let figures = Figures::read(self.trace());
        let mut doubts = figures.remarkable();
        // Without CUPTI short jobs do not give enough to relate a GPU's timer to the host's clock,
        // and NCCL's own miscounts are noticed.
        doubts.retain(|name, _| !name.starts_with("channels_"));
        // A thread may lose the processor between reading the clock and handing over its record,
        // which is then counted as late, and drawn at its own time all the same.
        doubts.retain(|name, count| *name != "late" || *count > LATE);
        assert_eq!(doubts, BTreeMap::new(), "doubts in a quiet job");
        self.check_calls();
        self.check_launches();
        self.check_operations();
        self.check_channels();
        self.check_proxy();
        self.check_times();
    }

    /// Each call is drawn when it was made, on the host's shifted clock, within the stated error.
    #[track_caller]
    fn check_times(&self) {
        let error = Figures::read(self.trace()).get("clock_error_ns") as i64;
        let boot = |at: u64| self.process.clocks.boot_at(at);
        let rows = self.trace().rows(
            "SELECT slice.ts, slice.dur, slice.name, thread.tid, extract_arg(arg_set_id, 'nccl.function') AS function, \
             extract_arg(arg_set_id, 'nccl.count') AS count, extract_arg(arg_set_id, 'nccl.datatype') AS datatype FROM slice JOIN \
             thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid) WHERE category = 'api' AND slice.name GLOB \
             'nccl*' ORDER BY slice.ts",
        );
        let mut found: HashMap<(i64, String), Vec<Row>> = HashMap::new();
        for row in rows {
            let name = row.str("name").split(' ').next().unwrap_or_default().to_owned();
            found.entry((row.i64("tid"), name)).or_default().push(row);
        }
        let mut expected: HashMap<(i64, String), Vec<&Call>> = HashMap::new();
        for call in self.told_calls() {
            for name in self.names(call) {
                expected.entry((i64::from(call.thread), format!("nccl{name}"))).or_default().push(call);
            }
        }
        for (key, slices) in found {
            let mut calls = expected.remove(&key).unwrap_or_default();
            calls.sort_by_key(|call| call.called);
            assert_eq!(slices.len(), calls.len(), "{key:?}");
            for (row, call) in slices.into_iter().zip(calls) {
                let (begin, end) = (row.i64("ts"), row.i64("ts") + row.i64("dur"));
                if key.1 == format!("nccl{}", call.function) {
                    let said = (row.str("function"), row.i64("count"));
                    assert_eq!(said, (&*call.function, call.count as i64), "{}", row.str("name"));
                    // NCCL has no name for some of its datatypes.
                    if row.str("datatype") == "Unknown" {
                        assert!(!matches!(&*call.datatype, "ncclFloat32" | "ncclFloat16" | "ncclBfloat16"), "{call:?}");
                    } else {
                        assert_eq!((row.str("datatype"), row.str("name")), (&*call.datatype, &*called_name(call)));
                    }
                }
                let (called, returned) = (boot(call.called), boot(call.returned));
                let inside = called - error <= begin && begin <= end && end <= returned + error;
                assert!(inside, "{key:?}: {begin}..{end} is not within {called}..{returned} to {error} ns");
            }
        }
    }

    /// Each launch contains its call into CUDA, on the thread that made it, within the stated
    /// error.
    #[track_caller]
    pub(crate) fn check_launch_times(&self) {
        let error = Figures::read(self.trace()).get("clock_error_ns") as i64;
        let boot = |at: u64| self.process.clocks.boot_at(at);
        let mut launches: HashMap<i64, Vec<(i64, i64)>> = HashMap::new();
        for row in self.trace().rows(
            "SELECT slice.ts, slice.dur, thread.tid FROM slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING \
             (utid) WHERE category = 'api' AND slice.name = 'KernelLaunch' ORDER BY slice.ts",
        ) {
            launches.entry(row.i64("tid")).or_default().push((row.i64("ts"), row.i64("ts") + row.i64("dur")));
        }
        for kernel in self.told_kernels().filter(|kernel| kernel.graph.is_none()) {
            let of_thread = launches.get_mut(&i64::from(kernel.thread));
            let (called, returned) = (boot(kernel.called), boot(kernel.returned));
            let own = of_thread.and_then(|launches| {
                let around = |(begin, end): &(i64, i64)| begin - error <= called && returned <= end + error;
                Some(launches.remove(launches.iter().position(around)?))
            });
            assert!(own.is_some(), "no launch around {called}..{returned}: {kernel:?}");
        }
    }

    /// Each message that NCCL passed to the network is drawn in two ways, within the stated error:
    /// as a step that waited for the network until NCCL learned that the message was done, and as
    /// an event of the network itself, inside the calls, with the bytes that were moved.
    #[track_caller]
    pub(crate) fn check_transfers(&self) {
        let error = Figures::read(self.trace()).get("clock_error_ns") as i64;
        let boot = |at: u64| self.process.clocks.boot_at(at);
        assert!(!self.transfers.is_empty(), "the network was not used");
        let threads: HashSet<u32> = self.transfers.iter().map(|transfer| transfer.thread).collect();
        assert_eq!(threads.len(), 1, "one communicator has one progress thread");
        // NCCL reports an event after the network's call and before its next one.
        let mut calls: Vec<u64> = self.transfers.iter().flat_map(|it| [it.called, it.asked]).collect();
        calls.sort_unstable();
        let next =
            |after: u64| calls.get(calls.partition_point(|call| *call <= after)).copied().unwrap_or(u64::MAX >> 2);
        // A receive's size is reported when it is flushed.
        let waits = self.trace().rows(
            "SELECT wait.ts, wait.dur, track.name GLOB '*send*' AS sends, extract_arg(coalesce(flush.arg_set_id, wait.arg_set_id), \
             'nccl.bytes') AS bytes FROM slice AS wait JOIN track ON track.id = wait.track_id LEFT JOIN slice AS flush ON \
             flush.parent_id = wait.parent_id AND flush.name = 'flush wait' WHERE wait.category = 'proxy' AND wait.name = 'network wait' \
             ORDER BY wait.ts",
        );
        let events = self.trace().rows(
            "SELECT ts, dur, extract_arg(arg_set_id, 'nccl.net_opcode') AS sends, extract_arg(arg_set_id, 'nccl.net_length') AS bytes \
             FROM slice WHERE category = 'net' ORDER BY ts",
        );
        for sends in [true, false] {
            let mut transfers: Vec<_> = self.transfers.iter().filter(|it| it.sends == sends).collect();
            transfers.sort_by_key(|it| it.called);
            let of =
                |rows: &[Row]| rows.iter().filter(|row| (row.i64("sends") != 0) == sends).cloned().collect::<Vec<_>>();
            let (waits, events) = (of(&waits), of(&events));
            assert_eq!((waits.len(), events.len()), (transfers.len(), transfers.len()), "sends: {sends}");
            for ((wait, event), truth) in waits.iter().zip(&events).zip(transfers) {
                let within = |at: i64, from: u64, to: u64| boot(from) - error <= at && at <= boot(to) + error;
                let (begin, end) = (wait.i64("ts"), wait.i64("ts") + wait.i64("dur"));
                assert!(within(begin, truth.called, next(truth.called)), "waits from {begin}: {truth:?}");
                assert!(within(end, truth.asked, next(truth.asked)), "waits to {end}: {truth:?}");
                assert_eq!(wait.i64("bytes") as u64, truth.bytes, "{truth:?}");
                let (begin, end) = (event.i64("ts"), event.i64("ts") + event.i64("dur"));
                assert!(within(begin, truth.called, truth.returned), "event from {begin}: {truth:?}");
                assert!(within(end, truth.asked, truth.answered), "event to {end}: {truth:?}");
                // The size of the buffer, for a receive.
                assert!(
                    event.i64("bytes") as u64 >= truth.bytes && (!sends || event.i64("bytes") as u64 == truth.bytes),
                    "{truth:?}"
                );
            }
        }
    }

    /// Each operation on a communicator's track lasts as long as a kernel on the GPU's stream that
    /// carried one of its function.
    #[track_caller]
    pub(crate) fn check_runs(&self) {
        let alone = self.trace().rows(
            "SELECT name, ts, dur FROM slice AS run WHERE category = 'run' AND NOT EXISTS (SELECT 1 FROM slice AS kernel WHERE \
             kernel.category = 'kernel' AND kernel.ts = run.ts AND kernel.dur = run.dur AND extract_arg(kernel.arg_set_id, 'nccl.comm') \
             = extract_arg(run.arg_set_id, 'nccl.comm'))",
        );
        assert!(alone.is_empty(), "operations that ran without a kernel: {alone:?}");
        let mut found = self.counts("category = 'run'");
        // NCCL 2.29 and newer does not report broadcasts. Those that are alone in their group are
        // found by the call all the same.
        if self.minor() >= 229 {
            found.remove("Broadcast");
        }
        let mut expected: BTreeMap<String, i64> = BTreeMap::new();
        for operation in self.told_kernels().flat_map(|kernel| kernel.operations.iter().take(16)) {
            *expected.entry(operation.function.clone()).or_default() += 1;
        }
        if self.minor() >= 229 {
            expected.remove("Broadcast");
        }
        assert_eq!(found, expected, "operations while the GPU worked on them");
    }

    /// Asserts that the trace has every kernel of the truth, on its stream, at its true time
    /// within the stated error. For each of NCCL's kernels it must name all operations that it
    /// carried, and never a wrong one.
    #[track_caller]
    pub(crate) fn check_kernels(&self) {
        let arg = |key: &str| {
            format!(
                "(SELECT coalesce(int_value, string_value) FROM args WHERE args.arg_set_id = slice.arg_set_id AND \
                 key = 'nccl.{key}')"
            )
        };
        let rows = self.trace().rows(&format!(
            "SELECT ts, dur, name, {} AS correlation, {} AS node, {} AS error, {} AS by, {} AS operations, {} AS device, \
             {} AS stream, {} AS replay, {} AS count FROM slice WHERE category = 'kernel' AND {} IS NOT NULL ORDER BY ts",
            arg("correlation"),
            arg("graph_node"),
            arg("time_error_ns"),
            arg("match"),
            arg("operations"),
            arg("device"),
            arg("stream_id"),
            arg("replay"),
            arg("count"),
            arg("kernel")
        ));
        let boot = |at: u64| self.process.clocks.boot_at(at);
        let optional = |row: &Row, key: &str| if row.is_null(key) { 0 } else { row.i64(key) };
        let mut found: HashMap<(i64, i64), Vec<Row>> = HashMap::new();
        for row in rows {
            found.entry((row.i64("correlation"), optional(&row, "node"))).or_default().push(row);
        }
        for kernel in &self.kernels {
            let rows = found.remove(&key(kernel)).unwrap_or_else(|| panic!("the trace lacks {kernel:?}"));
            let [row] = &rows[..] else { panic!("{} slices of {kernel:?}", rows.len()) };
            assert_eq!(row.i64("device"), i64::from(kernel.device), "{kernel:?}");
            assert_eq!(row.i64("stream"), i64::from(kernel.stream), "{kernel:?}");
            let error = row.i64("error");
            let (begin, end) = (row.i64("ts"), row.i64("ts") + row.i64("dur"));
            for (drawn, truth) in [(begin, boot(kernel.start)), (end, boot(kernel.end))] {
                assert!((drawn - truth).abs() <= error, "{} ns off, {error} stated: {kernel:?}", drawn - truth);
            }
            self.check_match(kernel, row);
        }
        assert!(found.is_empty(), "kernels that never ran: {found:?}");
        // Before 2.28 NCCL does not report launches.
        let demand = if self.minor() < 228 { Demand::NeverWrong } else { Demand::Whole };
        let mut verdict = judge(&self.lines, &accuracy::seen(&self.lines, self.trace()));
        // How large channels' errors may be is up to the accuracy tests: on a busy machine, and
        // without CUPTI, they are large.
        verdict.timer.wide = 0;
        if self.is_joined {
            // Another tool's kernels have no arrows from our launches.
            verdict.arrows = [0; 2];
        }
        assert_eq!(verdict.faults(demand), [""; 0], "{}", verdict.examples.join("\n"));
        self.check_copies();
        self.check_facts();
    }

    /// The kernels, the calls that launched them and the calls that made graphs, as Kineto writes
    /// them, at true times plus `offset` ns. Launches during a capture are not included.
    pub(super) fn kineto(&self, offset: i64) -> Vec<String> {
        let micros = |ns: i64| format!("{}.{:03}", ns / 1000, ns % 1000);
        let time = |at: u64| micros(self.process.clocks.boot_at(at) + offset);
        let call = |name: &str, thread: u32, (called, returned): (u64, u64), correlation: u32| {
            format!(
                "{{\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"{name}\", \"pid\": {}, \"tid\": {thread}, \"ts\": {}, \
                 \"dur\": {}, \"args\": {{\"correlation\": {correlation}}}}}",
                self.process.pid,
                time(called),
                micros((returned - called) as i64)
            )
        };
        let mut events = Vec::new();
        for Capture { thread, begin, end, instantiate } in &self.captures {
            events.push(call("cudaStreamBeginCapture", *thread, *begin, 0));
            events.push(call("cudaStreamEndCapture", *thread, *end, 0));
            events.push(call("cudaGraphInstantiateWithFlags", *thread, *instantiate, 0));
        }
        // Each thread that launches is in one step until the middle launch, and in the next from
        // there on.
        let mut launches: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
        for kernel in &self.kernels {
            launches.entry(kernel.thread).or_default().push((kernel.called, kernel.returned));
        }
        for (thread, mut launches) in launches {
            launches.sort_unstable();
            let calls = self.calls.iter().filter(|call| call.thread == thread).map(|call| call.called);
            let begin = calls.chain([launches[0].0]).min().unwrap_or(0);
            let (middle, end) = (launches[launches.len() / 2].0, launches[launches.len() - 1].1);
            for (step, from, to) in [(1, begin - 1_000, middle), (2, middle, end + 1_000)] {
                events.push(format!(
                    "{{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"ProfilerStep#{step}\", \"pid\": {}, \"tid\": {thread}, \
                     \"ts\": {}, \"dur\": {}}}",
                    self.process.pid,
                    time(from),
                    micros((to - from) as i64)
                ));
            }
        }
        let mut launched = HashSet::new();
        for kernel in &self.kernels {
            let Kernel { correlation, device, context, stream, grid, symbol, thread, .. } = kernel;
            let node = kernel.graph.map_or_else(String::new, |place| format!(", \"graph node id\": {}", place.node));
            events.push(format!(
                "{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"{symbol}\", \"pid\": {device}, \"tid\": {stream}, \"ts\": {}, \"dur\": {}, \
                 \"args\": {{\"device\": {device}, \"context\": {context}, \"stream\": {stream}, \"correlation\": {correlation}, \
                 \"grid\": [{grid}, 1, 1]{node}}}}}",
                time(kernel.start),
                micros((kernel.end - kernel.start) as i64)
            ));
            if launched.insert(correlation) {
                let name = if kernel.graph.is_some() { "cudaGraphLaunch" } else { "cudaLaunchKernelExC" };
                events.push(call(name, *thread, (kernel.called, kernel.returned), *correlation));
            }
        }
        events
    }

    /// Asserts that each operation on the GPU names the step of [`Played::kineto`] in which it was
    /// called, or its graph launched; and that the steps are in order on each stream.
    #[track_caller]
    pub(crate) fn check_steps(&self) {
        let rows = self.trace().rows(
            "SELECT extract_arg(arg_set_id, 'nccl.stream_id') AS stream, extract_arg(arg_set_id, 'nccl.nvtx_step') AS step FROM slice \
             WHERE category = 'kernel' AND extract_arg(arg_set_id, 'nccl.match') GLOB '*_*' ORDER BY ts",
        );
        let mut last = HashMap::new();
        for row in &rows {
            let before = last.insert(row.i64("stream"), row.i64("step")).unwrap_or(1);
            assert!((before..=2).contains(&row.i64("step")), "{before} before {row:?}");
        }
        assert!(last.values().any(|step| *step == 2), "no operation of the second step: {last:?}");
    }

    /// Asserts that each NCCL kernel with one all-reduce, according to its match in the trace, has
    /// the right size.
    #[track_caller]
    pub(crate) fn check_sizes(&self) {
        let arg = |key: &str| format!("extract_arg(arg_set_id, 'nccl.{key}')");
        let rows = self.trace().rows(&format!(
            "SELECT {} AS correlation, {} AS node, {} AS count FROM slice WHERE category = 'kernel' AND name GLOB 'AllReduce*' AND {} = 1",
            arg("correlation"),
            arg("graph_node"),
            arg("count"),
            arg("operations")
        ));
        for row in rows {
            let node = if row.is_null("node") { 0 } else { row.i64("node") };
            let kernel = self.kernels.iter().find(|kernel| key(kernel) == (row.i64("correlation"), node));
            let kernel = kernel.unwrap_or_else(|| panic!("{row:?} never ran"));
            let counts: Vec<u64> = kernel.operations.iter().map(|operation| operation.count).collect();
            assert_eq!(counts, [row.i64("count") as u64], "{row:?}");
        }
    }

    /// Asserts that each kernel matched by its launch has an arrow from that launch, and that each
    /// of its operations on the communicator's track has an arrow from its hand-over; or to it, if
    /// the kernel had already begun.
    #[track_caller]
    pub(crate) fn check_arrows(&self) {
        let arg = |of: &str, key: &str| {
            format!("(SELECT int_value FROM args WHERE args.arg_set_id = {of}.arg_set_id AND key = 'nccl.{key}')")
        };
        let bare = |category: &str, from: &str, more: &str| {
            self.trace().rows(&format!(
                "SELECT slice.name AS name FROM slice WHERE category = '{category}' AND {} IS NULL AND extract_arg(arg_set_id, \
                 'nccl.match') = 'exact_launch_bracket' AND NOT EXISTS (SELECT 1 FROM flow JOIN slice AS origin ON \
                 origin.id IN (flow.slice_out, flow.slice_in) WHERE slice.id IN (flow.slice_in, flow.slice_out) AND \
                 origin.category = '{from}' AND {more})",
                arg("slice", "replay")
            ))
        };
        let launched = "origin.name = 'KernelLaunch' AND origin.ts <= slice.ts";
        assert!(bare("kernel", "api", launched).is_empty(), "kernels without their launch's arrow");
        let same = format!("{} = {} AND origin.name = slice.name", arg("origin", "comm"), arg("slice", "comm"));
        let runs = bare("run", "operation", &same);
        assert!(runs.is_empty(), "operations without the arrow from their hand-over: {runs:?}");
    }

    /// Asserts that the arrows to a launch come from the calls of exactly those operations that
    /// its kernel carried. Where NCCL hands over on another thread, as it does for a while after a
    /// graph, a launch that may carry several has no arrows. Returns the number of launches with
    /// arrows from several calls.
    #[track_caller]
    pub(crate) fn check_calls_of_launches(&self) -> usize {
        let rows = self.trace().rows(
            "SELECT extract_arg(kernel.arg_set_id, 'nccl.correlation') AS correlation, substr(call.name, 5, instr(call.name, ' ') - 5) AS asked, \
             (SELECT count(*) FROM flow JOIN slice AS plan ON plan.id = flow.slice_in WHERE flow.slice_out = launch.id AND \
             plan.category = 'operation') AS handed_over \
             FROM slice AS kernel JOIN flow ON flow.slice_in = kernel.id JOIN slice AS launch ON launch.id = flow.slice_out \
             LEFT JOIN flow AS arrow ON arrow.slice_in = launch.id LEFT JOIN slice AS call ON call.id = arrow.slice_out \
             WHERE kernel.category = 'kernel' AND launch.name = 'KernelLaunch' AND \
             extract_arg(kernel.arg_set_id, 'nccl.match') = 'exact_launch_bracket'",
        );
        let mut asked: BTreeMap<i64, (Vec<&str>, bool)> = BTreeMap::new();
        for row in &rows {
            let (calls, direct) = asked.entry(row.i64("correlation")).or_default();
            *direct = row.i64("handed_over") > 0;
            if !row.is_null("asked") {
                calls.push(row.str("asked"));
            }
        }
        let several = asked.values().filter(|(calls, _)| calls.len() > 1).count();
        for (correlation, (mut calls, direct)) in asked {
            let kernel = self.kernels.iter().find(|kernel| key(kernel) == (correlation, 0));
            let kernel = kernel.unwrap_or_else(|| panic!("{correlation} never ran"));
            let mut carried: Vec<&str> = kernel.operations.iter().map(|operation| &*operation.function).collect();
            calls.sort_unstable();
            carried.sort_unstable();
            let is_told_elsewhere = calls.is_empty() && !direct;
            assert!(calls == carried || is_told_elsewhere, "{calls:?}, and it carried {carried:?}: {kernel:?}");
        }
        several
    }

    /// Asserts that an operation that was handed over is outstanding until its kernel has ended,
    /// and that none is outstanding when the job is done.
    #[track_caller]
    pub(crate) fn check_outstanding(&self) {
        let counters = self.trace().rows(
            "SELECT track.name, min(value) AS least, max(value) AS most, (SELECT value FROM counter AS last WHERE \
             last.track_id = counter.track_id ORDER BY ts DESC LIMIT 1) AS left FROM counter JOIN track ON track.id = \
             counter.track_id WHERE track.name GLOB 'outstanding · *' GROUP BY counter.track_id",
        );
        assert!(!counters.is_empty(), "no operation was ever outstanding");
        for row in counters {
            let (least, most, left) = (row.f64("least"), row.f64("most"), row.f64("left"));
            assert!(least >= 0.0 && most >= 1.0 && left == 0.0, "{row:?}");
        }
    }

    /// Asserts that the operations that the trace names for a kernel are those it carried.
    #[track_caller]
    fn check_match(&self, kernel: &Kernel, row: &Row) {
        if kernel.device_comm.is_none() {
            assert!(row.is_null("by"), "the application's kernel {} is matched: {kernel:?}", row.str("name"));
            return;
        }
        let by = row.str("by");
        let exact = by.starts_with("exact");
        let silent = !self.told_kernels().any(|told| std::ptr::eq(told, kernel));
        if self.is_joined && kernel.graph.is_some() {
            assert_eq!(by, "inferred_capture_order", "{} {kernel:?}", row.str("name"));
            let replay = kernel.graph.map_or(0, |place| place.replay as i64 + 1);
            assert_eq!(row.i64("replay"), replay, "{} {kernel:?}", row.str("name"));
        } else if self.minor() >= 228 && !silent {
            assert!(exact, "{by}: {} {kernel:?}", row.str("name"));
        }
        if by == "unmatched" {
            return;
        }
        let first = row.str("name").split(' ').next().unwrap_or_default();
        let all = |function: &str| kernel.operations.iter().filter(|operation| operation.function == function).count();
        let (sends, receives) = (all("Send"), all("Recv"));
        let carried = match first.starts_with("AlltoAll") && sends > 0 {
            true => sends == receives && sends + receives == kernel.operations.len(),
            false => all(first) > 0,
        };
        assert!(carried, "{} is none of {:?}", row.str("name"), kernel.operations);
        if let [operation] = &kernel.operations[..]
            && exact
            && !matches!(first, "Send" | "Recv")
        {
            assert_eq!(row.i64("count"), operation.count as i64, "{} {kernel:?}", row.str("name"));
        }
    }

    /// Why there are no kernels, in the trace's first message.
    #[track_caller]
    pub(crate) fn why_no_kernels(&self) -> String {
        let rows = self.trace().rows(
            "SELECT string_value AS note FROM slice JOIN args USING (arg_set_id) WHERE slice.name = 'recording started' \
             AND key = 'nccl.note'",
        );
        let notes: Vec<&str> = rows.iter().map(|row| row.str("note")).collect();
        let reason = notes.iter().find_map(|note| Some(note.split_once("no GPU kernels: ")?.1.to_owned()));
        reason.unwrap_or_else(|| panic!("the trace does not say why it has no kernels: {notes:?}"))
    }

    /// How many slices match a condition.
    #[track_caller]
    pub(crate) fn count(&self, condition: &str) -> i64 {
        self.trace().rows(&format!("SELECT count(*) AS n FROM slice WHERE {condition}"))[0].i64("n")
    }

    /// How many slices match a condition, by the first word of their names.
    #[track_caller]
    pub(super) fn counts(&self, condition: &str) -> BTreeMap<String, i64> {
        let mut counts = BTreeMap::new();
        for row in self.trace().rows(&format!("SELECT name, count(*) AS n FROM slice WHERE {condition} GROUP BY name"))
        {
            let first = row.str("name").split(' ').next().unwrap_or_default().to_owned();
            *counts.entry(first).or_default() += row.i64("n");
        }
        counts
    }
}

/// How the trace should name a call.
fn called_name(call: &Call) -> String {
    let datatype = Datatype::ALL.into_iter().find(|it| it.nccl_name() == call.datatype);
    let datatype = datatype.unwrap_or_else(|| panic!("a datatype that this test does not know: {}", call.datatype));
    let size = call.count * datatype.size() as u64;
    let in_units = |shift: u32| {
        let tenths = (size as f64 / f64::from(1 << shift) * 10.0).round() as u64;
        if tenths.is_multiple_of(10) { format!("{}", tenths / 10) } else { format!("{}.{}", tenths / 10, tenths % 10) }
    };
    let size = match size {
        0..1024 => format!("{size} B"),
        1024..1_048_576 => format!("{} KiB", in_units(10)),
        _ => format!("{} MiB", in_units(20)),
    };
    format!("nccl{} {size} {}", call.function, datatype.word())
}

/// What identifies a kernel in the truth and in CUPTI's records: the call that launched it and, in
/// a graph, the node.
pub(super) fn key(kernel: &Kernel) -> (i64, i64) {
    (i64::from(kernel.correlation), kernel.graph.map_or(0, |place| place.node.cast_signed()))
}
