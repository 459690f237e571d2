//! Whether kernels are matched to the right operations: reads what a trace says, for
//! [`emulator::accuracy`] to judge.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use emulator::accuracy::{
    CONTRADICTED, Claim, Demand, Seen, SeenChannel, SeenKernel, SeenOperation, Verdict, judge_job,
};
use emulator::scenario;
use emulator::scenario::random::Dice;
use emulator::truth::Line;
use ncclscope::model::event::{Event, P2p};
use ncclscope::model::ids::Handle;
use ncclscope::model::time::HostNs;
use ncclscope::model::timeline::{Comm, Operation};
use ncclscope::model::word::Word;
use ncclscope_tests::perfetto::{Row, Trace, Value};

use super::{Job, Plan};

/// A job to judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Case {
    /// Its name.
    pub(crate) name: String,
    /// A scenario's name, or a file.
    pub(crate) scenario: String,
    /// The release of CUPTI.
    pub(crate) cupti: &'static str,
    /// How CUPTI misbehaves.
    pub(crate) misbehaviour: String,
    /// The demand where NCCL reports launches, from 2.28 on.
    pub(crate) demand: Demand,
    /// Whether it is random. Then it may have no kernel that NCCL reports, and CUPTI may use more
    /// buffers than the recording has, as long as the recording says so.
    pub(crate) is_random: bool,
}

/// A case by name: the scenario, the release of CUPTI, its misbehaviour, and the demand.
type Fixed = (&'static str, &'static str, &'static str, &'static str, Demand);

/// The NCCL releases that are judged: those of the first four profiler interfaces, and those that
/// report launches.
pub(crate) const RELEASES: [&str; 6] = ["2.23.4", "2.26.5", "2.27.7", "2.28.9", "2.30.7", "2.32.3"];

/// The case in which the wall clock is set while CUPTI's times are on it. In the other one CUPTI's
/// times are on `CLOCK_BOOTTIME`, as when the recording begins in `cuInit`.
const WALL_CLOCK: &str = "clock step, wall clock";

/// The case in which kernels of graphs name other launches than their own: their times tell them
/// apart.
const CONFUSED: &str = "lent, launches confused";

/// The fixed cases.
const FIXED: [Fixed; 41] = [
    ("training", "training", "13.0", "", Demand::Whole),
    ("groups", "groups", "12.9", "", Demand::Whole),
    ("communicators", "communicators", "13.0", "", Demand::Whole),
    ("graphs", "replays", "13.3", "", Demand::Whole),
    ("graphs and eager", "graphs", "13.0", "", Demand::Whole),
    ("everything", "mixed", "13.5", "", Demand::Whole),
    ("several GPUs", "devices", "13.5", "", Demand::Whole),
    ("threads", "threads", "12.0", "", Demand::Whole),
    ("all to all", "all_to_all", "13.1", "", Demand::Whole),
    ("timers", "timers", "13.0", "", Demand::Whole),
    ("clock step", "clock_drift", "13.0", "", Demand::Whole),
    (WALL_CLOCK, "clock_drift", "13.0", "", Demand::Whole),
    ("late, unordered", "communicators", "13.0", "late=300ms,reorder,partial,seed=5", Demand::Whole),
    ("late graphs", "graphs", "13.0", "late=300ms,reorder,partial,seed=5", Demand::Whole),
    ("drops", "communicators", "13.0", "drop=10%,seed=6", Demand::WholeButDropped),
    ("drops in graphs", "graphs", "13.0", "drop=10%,seed=6", Demand::WholeButDropped),
    ("no callbacks", "graphs", "13.0", "withhold", Demand::NeverWrong),
    ("no callbacks, eager", "training", "13.0", "withhold", Demand::NeverWrong),
    ("CUPTI 1 ms late", "groups", "13.0", "skew=1ms", Demand::Whole),
    ("CUPTI 30 ms late", "training", "13.0", "skew=30ms", Demand::Whole),
    ("CUPTI 1 ms early", "groups", "13.0", "skew=-1ms", Demand::Whole),
    ("CUPTI 30 ms early", "groups", "13.0", "skew=-30ms", Demand::Whole),
    ("CUPTI 2 ms late later", "training", "13.0", "skew=2ms@20", Demand::Whole),
    ("CUPTI 20 us late", "training", "13.0", "skew=20us", Demand::Whole),
    ("CUPTI 20 us early", "training", "13.0", "skew=-20us", Demand::Whole),
    ("conversion to 5 us", "timers", "13.0", "conversion=5us,seed=3", Demand::Whole),
    ("conversion to 10 us", "training", "13.5", "conversion=10us,seed=4", Demand::Whole),
    ("steps of 10 us", "coarse_timers", "13.0", "", Demand::Whole),
    ("rates that change", "changing_timers", "13.0", "", Demand::Whole),
    ("lent", "lending", "13.0", "", Demand::Whole),
    ("lent, late", "lending", "13.3", "late=150ms,reorder,partial,seed=8", Demand::Whole),
    (CONFUSED, "lending", "13.0", "confuse,seed=12", Demand::NeverWrong),
    ("names confused", "training", "13.0", "rename=30%,seed=13", Demand::Whole),
    ("lent, missed, dropped", "lending", "13.0", "miss=5%,drop=5%,seed=9", Demand::NeverWrongButDropped),
    ("missed and dropped", "replays", "13.0", "miss=5%,drop=5%,seed=7", Demand::NeverWrongButDropped),
    ("missed, unordered", "graphs", "13.0", "miss=5%,late=150ms,reorder,partial,seed=10", Demand::NeverWrong),
    ("graphs updated", "updates", "13.3", "", Demand::Whole),
    ("graphs updated, before 13.0", "updates", "12.9", "", Demand::NeverWrong),
    ("child graphs, clones", "nested", "13.3", "", Demand::Whole),
    ("launches swapped", "groups", "13.0", "swap=20%,seed=11", Demand::Contradicted),
    ("CUPTI taken", "small", "13.0", "taken=Nsight Systems", Demand::Nothing),
];

/// Random jobs that once came out wrong, by seed, with what was wrong. Since the fix every test
/// run plays them. They date from before random jobs had options for CUPTI and timers, and are
/// played without these.
pub(crate) const RIGHT_AGAIN: &[(u64, &str)] = &[
    (27, "operations of which NCCL tells a part were taken for wrong"),
    (32, "runs of a graph confused, where records come in another order"),
    (40, "runs of a graph confused, where records come in another order"),
    (109, "runs of a graph confused, where records are lost, and a timer bounded by stamps of other operations"),
    (1_795_312_578, "a graph of whose replays NCCL tells nothing, where the last one's kernel comes first"),
    (
        1_795_313_562,
        "channels of a communicator that sends to itself drawn as the GPU's: on 2.28.9 they may be other operations'",
    ),
    (1_795_225_008, "a broadcast of two GPUs in one group: one kernel got the calls of both"),
    (
        1_795_314_384,
        "on a loaded machine, a channel before the first kernels: a stated error larger than its kernel is long",
    ),
    (
        1_795_314_454,
        "the same; and before, channels of over a second whose end was drawn by another clock than their begin",
    ),
    (1_795_330_649, "two works that began within one step of the timer: the yardstick took one for the other"),
];

/// The fixed cases.
pub(crate) fn fixed() -> Vec<Case> {
    let case = |(name, scenario, cupti, misbehaviour, demand): Fixed| Case {
        name: name.into(),
        scenario: scenario.into(),
        cupti,
        misbehaviour: misbehaviour.into(),
        demand,
        is_random: false,
    };
    FIXED.into_iter().map(case).collect()
}

/// One of the fixed cases.
#[track_caller]
pub(crate) fn named(name: &str) -> Case {
    fixed().into_iter().find(|case| case.name == name).unwrap_or_else(|| panic!("there is no case {name}"))
}

/// How CUPTI's times are off in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// By less than can be noticed from outside.
    Little,
    /// By a millisecond or more.
    Skew,
}

impl Case {
    /// Plays it with an NCCL release and judges every trace.
    ///
    /// # Panics
    ///
    /// When it cannot be played, or leaves no trace.
    #[track_caller]
    pub(crate) fn judge(&self, nccl: &str) -> Verdict {
        let mut job = read(&self.play(nccl));
        if self.name == CONFUSED {
            job.iter_mut().for_each(|(truth, seen)| know_by_times(truth, seen));
        }
        judge_job(&job)
    }

    /// Plays it with an NCCL release.
    #[track_caller]
    pub(crate) fn play(&self, nccl: &str) -> Job {
        let clock = if self.scenario == "clock_drift" && self.name != WALL_CLOCK { "boottime" } else { "wall" };
        let plan = Plan::new(nccl, &self.scenario).with_cupti(self.cupti).misbehaving(&self.misbehaviour);
        let plan = plan.with("NCCLSCOPE_CUPTI_CLOCK", clock);
        plan.quiet().run().succeeded()
    }

    /// What falls short of the demand with an NCCL release, a sentence each.
    pub(crate) fn faults(&self, nccl: &str, verdict: &Verdict) -> Vec<String> {
        let minor: u32 = nccl.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or_default();
        let demand = match self.demand(nccl) {
            Demand::Whole if self.is_random && verdict.discarded > 0 => Demand::WholeButDropped,
            Demand::NeverWrong if self.is_random && verdict.discarded > 0 => Demand::NeverWrongButDropped,
            demand => demand,
        };
        let mut verdict = verdict.clone();
        if self.name == WALL_CLOCK {
            // Times may be exactly as uncertain as stated.
            [verdict.clock.wide, verdict.timer.wide] = [0; 2];
        }
        if self.demand == Demand::Contradicted {
            // Before the GPU's timer is known, a channel is as uncertain as its kernel, which is
            // another tool's.
            verdict.timer.wide = 0;
        }
        let planted = self.planted();
        if planted != Planted::Nothing {
            // They are drawn at a wrong time, as their label says.
            *verdict.right.entry(CONTRADICTED.to_owned()).or_default() += std::mem::take(&mut verdict.contradicted[1]);
            // They may be off by an amount that cannot be noticed, if the recording states how
            // much that may be.
            [verdict.clock.outside, verdict.timer.outside] = [0; 2];
            // And where they are known to be off, they say so, however short they are.
            [verdict.clock.wide, verdict.timer.wide] = [0; 2];
        }
        if planted == Planted::Skew {
            // The last ones may end after their records are read.
            verdict.unfinished += verdict.refused;
        }
        let demand = match (planted, demand) {
            // If launches were not seen, wrong times may rule out every run of its graph for a
            // kernel.
            (Planted::Skew, Demand::Whole) => Demand::NeverWrong,
            (Planted::Skew, Demand::WholeButDropped) => Demand::NeverWrongButDropped,
            (_, demand) => demand,
        };
        let mut faults = verdict.faults(demand);
        let [off, set] = verdict.remarks;
        match planted {
            Planted::Nothing if off > 0 => {
                faults.push(format!("{off} remarks that CUPTI's times are off, which they are not"));
            }
            // A random job may have no kernel that NCCL's threads see soon enough. Where launches
            // are not reported, no match is certain enough to say so.
            Planted::Skew if off == 0 && !self.is_random && minor >= 28 => {
                faults.push("no remark that CUPTI's times are off".into());
            }
            Planted::Little if off > 0 => faults.push(format!("{off} remarks on errors that nobody can see")),
            _ => {}
        }
        // If no thread sees a kernel soon enough, a jump of CUPTI's times looks like one of a
        // timer: the note is documented for both.
        let jumps = self.scenario == "clock_drift" || self.misbehaviour.contains("skew=2ms@");
        if set > 0 && !jumps {
            faults.push(format!("{set} remarks that a GPU's timer was set, which none was"));
        }
        if planted != Planted::Nothing && verdict.unexplained > 0 {
            faults.push(format!("{} off by more than is stated and CUPTI's times may be", verdict.unexplained));
        }
        // A fixed case must contain what it tests.
        if verdict.kernels == 0 && !self.is_random {
            faults.push("no kernel ran".to_owned());
        }
        // Without callbacks the GPUs' timers show what a kernel carried. Before 2.31 they show
        // nothing once a graph has been replayed. Where CUPTI's first buffers come one by one, some
        // kernels are tried before their neighbours are there, and stay without an owner. In
        // `training`, a communicator may also be destroyed before NCCL's threads have seen the end
        // of the last kernel of each of its four ranks.
        let (least, reason) = match (&*self.misbehaviour, &*self.scenario) {
            ("withhold", _) if minor >= 31 => (verdict.kernels / 4 * 3, "three quarters can be"),
            ("withhold", "graphs") => (0, ""),
            ("withhold", _) if minor >= 28 => (verdict.kernels / 2, "half of them can be"),
            ("withhold", _) => (0, ""),
            // By the order of launches, where NCCL does not report them; for graphs hardly any.
            _ if minor < 28 && self.scenario != "replays" => (1, "some can be"),
            _ => (0, ""),
        };
        if !self.is_random && self.demand != Demand::Nothing && verdict.all_right() < least {
            faults.push(format!("{} of {} were matched, and {reason}", verdict.all_right(), verdict.kernels));
        }
        if !self.is_random && self.misbehaviour.contains("drop=") && verdict.missing == 0 {
            faults.push("nothing was dropped".to_owned());
        }
        faults
    }

    /// How CUPTI's times are off in it.
    fn planted(&self) -> Planted {
        let word = |name: &str| self.misbehaviour.split(',').find_map(|word| word.strip_prefix(name));
        match (word("skew="), word("conversion=")) {
            (Some(skew), _) if skew.contains("ms") => Planted::Skew,
            (None, None) => Planted::Nothing,
            _ => Planted::Little,
        }
    }

    /// The demand with an NCCL release: before 2.28 it does not report launches.
    pub(crate) fn demand(&self, nccl: &str) -> Demand {
        let minor: u32 = nccl.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or_default();
        match self.demand {
            Demand::Whole if minor < 28 => Demand::NeverWrong,
            Demand::WholeButDropped if minor < 28 => Demand::NeverWrongButDropped,
            demand => demand,
        }
    }
}

/// A random case, the same for a seed on every machine, and its NCCL release.
///
/// # Panics
///
/// When the scenario cannot be written to `folder`.
#[track_caller]
pub(crate) fn random(seed: u64, folder: &Path) -> (Case, &'static str) {
    const CUPTI: [&str; 6] = ["12.0", "12.9", "13.0", "13.1", "13.3", "13.5"];
    const LATE: [&str; 3] = ["", "", "late=150ms,"];
    const ORDER: [&str; 4] = ["", "reorder,", "partial,", "reorder,partial,"];
    let mut dice = Dice::new(seed ^ 0xacc0_0000_0000_0000);
    let nccl = *dice.one_of(&RELEASES);
    let cupti = *dice.one_of(&CUPTI);
    let mut misbehaviour = format!("{}{}seed={seed}", dice.one_of(&LATE), dice.one_of(&ORDER));
    let path = folder.join(format!("random-{seed}.toml"));
    let mut demand = Demand::Whole;
    let text = if RIGHT_AGAIN.iter().any(|(known, _)| *known == seed) {
        scenario::random::scenario(seed)
    } else {
        let lost =
            *dice.one_of(&["", "", "", "", "drop=5%", "miss=2%", "withhold", "withhold=calls", "withhold=objects"]);
        let off = *dice.one_of(&[
            "",
            "",
            "",
            "conversion=3us",
            "conversion=10us",
            "skew=15us",
            "skew=-15us",
            "skew=4ms",
            "skew=-4ms",
        ]);
        for word in [lost, off].into_iter().filter(|word| !word.is_empty()) {
            misbehaviour = format!("{word},{misbehaviour}");
        }
        let text = scenario::random::scenario_with_options(seed);
        // A graph may be updated while CUPTI is lent. After that a kernel whose times contradict
        // every run of its graph has none.
        let is_early_after_lending = off.starts_with("skew=-") && text.contains("\nrelease\n");
        demand = match lost {
            "" if is_early_after_lending => Demand::NeverWrong,
            "" => Demand::Whole,
            "drop=5%" if is_early_after_lending => Demand::NeverWrongButDropped,
            "drop=5%" => Demand::WholeButDropped,
            _ => Demand::NeverWrong,
        };
        text
    };
    std::fs::write(&path, text).expect("room for a scenario");
    let scenario = path.to_string_lossy().into_owned();
    (Case { name: format!("seed {seed}"), scenario, cupti, misbehaviour, demand, is_random: true }, nccl)
}

/// The truth about each process of a job, and what its trace says about the kernels.
#[track_caller]
pub(crate) fn read(job: &Job) -> Vec<(Vec<Line>, Seen)> {
    let read = |(path, truth, trace): (std::path::PathBuf, Vec<Line>, Option<Trace>)| {
        let trace = trace.unwrap_or_else(|| panic!("{} has no trace beside it", path.display()));
        let seen = seen(&truth, &trace);
        (truth, seen)
    };
    job.told().into_iter().map(read).collect()
}

/// Identifies kernels of graphs by their node and time, not by the launch that records name.
fn know_by_times(truth: &[Line], seen: &mut Seen) {
    for kernel in seen.kernels.iter_mut().filter(|kernel| kernel.key.1 != 0) {
        let runs = truth.iter().filter_map(|line| match line {
            Line::Kernel(run) if run.graph.is_some_and(|place| place.node == kernel.key.1) => Some(run),
            _ => None,
        });
        if let Some(nearest) = runs.min_by_key(|run| (run.start as i64).abs_diff(kernel.begin)) {
            kernel.key.0 = nearest.correlation;
        }
    }
}

/// What a trace says about the kernels of the process whose truth this is.
#[track_caller]
pub(crate) fn seen(truth: &[Line], trace: &Trace) -> Seen {
    Reader { numbers: Numbers::new(truth) }.read(trace)
}

/// Reads the kernels of a trace.
struct Reader {
    numbers: Numbers,
}

/// A slice with its arguments; ours are without their `nccl.` prefix.
#[derive(Default)]
struct Slice {
    begin: i64,
    end: i64,
    track: String,
    is_kernel: bool,
    args: BTreeMap<String, Value>,
}

impl Slice {
    fn int(&self, key: &str) -> Option<i64> {
        if let Some(Value::Int(number)) = self.args.get(key) { Some(*number) } else { None }
    }

    fn text(&self, key: &str) -> Option<&str> {
        if let Some(Value::Text(text)) = self.args.get(key) { Some(text) } else { None }
    }
}

impl Reader {
    #[track_caller]
    fn read(mut self, trace: &Trace) -> Seen {
        let mut slices: BTreeMap<i64, Slice> = BTreeMap::new();
        for row in trace.rows(
            "SELECT slice.id, ts, dur, track.name AS track, category, key, coalesce(int_value, string_value) AS value \
             FROM slice JOIN track ON track.id = track_id JOIN args USING (arg_set_id) \
             WHERE category IN ('kernel', 'carried')",
        ) {
            let slice = slices.entry(row.i64("id")).or_default();
            slice.begin = row.i64("ts");
            slice.end = row.i64("ts") + row.i64("dur");
            slice.track = row.str("track").into();
            slice.is_kernel = row.str("category") == "kernel";
            let key = row.str("key");
            slice.args.insert(key.strip_prefix("nccl.").unwrap_or(key).into(), row.value("value").clone());
        }
        // The operations of a kernel with several are drawn below it, with the same duration.
        let mut carried: HashMap<(i64, i64, &str), Vec<&Slice>> = HashMap::new();
        for slice in slices.values().filter(|slice| !slice.is_kernel) {
            let stream = slice.track.trim_end_matches(" · operations");
            carried.entry((slice.begin, slice.end, stream)).or_default().push(slice);
        }
        // Where CUPTI was not available, there is no such figure.
        let figure = |name: &str| {
            let rows = trace.rows(&format!("SELECT int_value FROM args WHERE key = 'nccl.{name}'"));
            rows.first().map_or(0, |row| row.i64("int_value").cast_unsigned())
        };
        let (dropped, discarded) = (figure("activities_dropped"), figure("activity_buffers_discarded"));
        let (unfinished, refused) = (figure("kernels_unfinished"), figure("activities_implausible"));
        let channels = channels(trace);
        // The recording's last word, not notes before it.
        let bound = |name: &str| {
            let rows = trace.rows(&format!(
                "SELECT int_value FROM slice JOIN args USING (arg_set_id) WHERE slice.name = 'recording ended' AND key = 'nccl.{name}'"
            ));
            rows.first().map(|row| row.i64("int_value"))
        };
        let remarks = ["CUPTI''s times are off", "GPU timer was set"].map(|name| {
            trace.rows(&format!("SELECT count() AS times FROM slice WHERE name = '{name}'"))[0]
                .i64("times")
                .cast_unsigned()
        });
        let cupti_off = ["cupti_off_least_ns", "cupti_off_most_ns"].map(bound);
        let mut seen =
            Seen { kernels: Vec::new(), channels, dropped, discarded, unfinished, refused, cupti_off, remarks };
        let mut arrows: HashMap<i64, Vec<[i64; 2]>> = HashMap::new();
        for row in trace.rows(
            // In Perfetto arrows lead from the earlier end, which by CUPTI's times may be the
            // kernel.
            "SELECT kernel.id AS kernel, launch.ts AS ts, launch.dur AS dur FROM flow \
             JOIN slice AS launch ON launch.id IN (slice_out, slice_in) JOIN slice AS kernel ON kernel.id IN (slice_out, slice_in) \
             WHERE launch.name GLOB 'KernelLaunch*' AND kernel.category = 'kernel'",
        ) {
            arrows.entry(row.i64("kernel")).or_default().push([row.i64("ts"), row.i64("ts") + row.i64("dur")]);
        }
        // A match may be contradicted after it was drawn.
        let arg = |key: &str| {
            format!("(SELECT int_value FROM args WHERE args.arg_set_id = slice.arg_set_id AND key = 'nccl.{key}')")
        };
        let contradicted = trace.rows(&format!(
            "SELECT {} AS correlation, coalesce({}, 0) AS node FROM slice WHERE name = 'match contradicted'",
            arg("correlation"),
            arg("graph_node")
        ));
        let key = |row: &Row| (row.i64("correlation") as u32, row.i64("node").cast_unsigned());
        let contradicted: HashSet<(u32, u64)> = contradicted.iter().map(key).collect();
        for (id, slice) in slices.iter().filter(|(_, slice)| slice.is_kernel && slice.text("kernel").is_some()) {
            let below = carried.get(&(slice.begin, slice.end, slice.track.as_str()));
            let mut kernel = self.kernel(slice, below.map_or(&[][..], Vec::as_slice));
            kernel.arrows = arrows.remove(id).unwrap_or_default();
            if contradicted.contains(&kernel.key)
                && let Claim::Operations { method, .. } = &mut kernel.claim
            {
                CONTRADICTED.clone_into(method);
            }
            seen.kernels.push(kernel);
        }
        seen
    }

    #[track_caller]
    fn kernel(&mut self, slice: &Slice, below: &[&Slice]) -> SeenKernel {
        let number = |key: &str| slice.int(key).unwrap_or_else(|| panic!("a kernel without {key}: {:?}", slice.args));
        let device = number("device") as u32;
        let comm = slice.int("comm").map(i64::cast_unsigned);
        let claim = match slice.text("match") {
            None => Claim::Application,
            Some("unmatched") => Claim::Unmatched(slice.text("doubt").unwrap_or("no reason").into()),
            Some(method) => {
                let count = number("operations").cast_unsigned();
                let shown = if count == 1 { &[slice][..] } else { below };
                assert!(shown.len() as u64 == count.min(16), "{} of {count} operations are drawn", shown.len());
                let shown = shown.iter().map(|operation| self.operation(operation, comm, device)).collect();
                let run = slice.int("replay").map(i64::cast_unsigned);
                Claim::Operations { method: method.into(), comm, run, count, shown }
            }
        };
        SeenKernel {
            key: (number("correlation") as u32, slice.int("graph_node").unwrap_or(0).cast_unsigned()),
            device,
            stream: number("stream_id") as u32,
            symbol: slice.text("kernel").unwrap_or_default().into(),
            begin: slice.begin,
            end: slice.end,
            error: number("time_error_ns"),
            claim,
            arrows: Vec::new(),
        }
    }

    fn operation(&mut self, slice: &Slice, comm: Option<u64>, device: u32) -> SeenOperation {
        let function = slice.text("function").or(slice.text("function_text")).unwrap_or_default();
        let address = |key: &str| slice.int(key).map(i64::cast_unsigned);
        let peer = slice.int("peer").map(|peer| peer as i32);
        let id = slice.text("correlation_id").and_then(|id| id.rsplit('#').next()?.parse().ok());
        let number = match (slice.int("seq"), peer, comm) {
            (Some(seq), ..) => Some(seq.cast_unsigned()),
            (None, Some(peer), Some(comm)) => id.and_then(|id| self.numbers.find(id, (comm, device), function, peer)),
            _ => None,
        };
        SeenOperation {
            function: function.into(),
            send: address("send_buffer"),
            receive: address("recv_buffer"),
            bytes: address("bytes"),
            count: address("count"),
            // NCCL has no name for some datatypes.
            datatype: slice.text("datatype").filter(|it| *it != "Unknown").map(str::to_owned),
            algorithm: slice.text("algorithm").or(slice.text("algorithm_text")).map(str::to_owned),
            protocol: slice.text("protocol").or(slice.text("protocol_text")).map(str::to_owned),
            root: slice.int("root").map(|root| root as i32).or(peer),
            number,
            id,
        }
    }
}

/// The work of channels for which the trace says when the GPU did it, and how far off that may be.
#[track_caller]
fn channels(trace: &Trace) -> Vec<SeenChannel> {
    let arg = |key: &str| {
        format!("(SELECT int_value FROM args WHERE args.arg_set_id = slice.arg_set_id AND key = 'nccl.{key}')")
    };
    let [channel, stamp, error] = ["channel", "gpu_start_ns", "time_error_ns"].map(arg);
    // The end of work that the GPU's timer began may still be NCCL's, or that of its communicator,
    // and work that found no lane is drawn without one.
    let seen = "EXISTS (SELECT 1 FROM args WHERE args.arg_set_id = slice.arg_set_id AND key IN ('nccl.doubt', 'nccl.note') \
                AND (string_value GLOB 'as NCCL saw it*' OR string_value GLOB '*begin only*' \
                OR string_value = 'its communicator was finalized'))";
    let rows = trace.rows(&format!(
        "SELECT name, ts, dur, {channel} AS channel, {stamp} AS stamp, {error} AS error, {seen} AS seen FROM slice \
         WHERE category = 'gpu' AND {} IS NULL AND {stamp} IS NOT NULL AND {error} IS NOT NULL",
        arg("phase")
    ));
    let read = |row: &Row| SeenChannel {
        name: row.str("name").to_owned(),
        channel: row.i64("channel") as u32,
        timer_start: row.i64("stamp").cast_unsigned(),
        begin: row.i64("ts"),
        end: (row.i64("dur") >= 0 && row.i64("seen") == 0).then(|| row.i64("ts") + row.i64("dur")),
        error: row.i64("error"),
    };
    rows.iter().map(read).collect()
}

/// The number of a send or receive among those of its communicator, peer and direction. The trace
/// has it only inside a correlation id.
struct Numbers {
    /// The rank and size, by communicator and device.
    ranks: HashMap<(u64, u32), (u32, u32)>,
    /// By rank, communicator, direction and peer, the numbers behind the ids.
    known: HashMap<(u64, u32, bool, i32), HashMap<u64, u64>>,
}

impl Numbers {
    fn new(truth: &[Line]) -> Numbers {
        let mut ranks = HashMap::new();
        for line in truth {
            if let Line::Communicator(it) = line {
                ranks.extend(it.hash.map(|hash| ((hash, it.device), (it.rank, it.size))));
            }
        }
        Numbers { ranks, known: HashMap::new() }
    }

    fn find(&mut self, id: u64, of: (u64, u32), function: &str, peer: i32) -> Option<u64> {
        /// More than any job here makes with one peer.
        const MOST: u32 = 2_048;
        let (hash, device) = of;
        let &(rank, size) = self.ranks.get(&of)?;
        let is_receive = function == "Recv";
        let known = self.known.entry((hash, device, is_receive, peer)).or_insert_with(|| {
            let comm = Comm {
                context: Handle::NONE,
                number: 1,
                hash,
                name: None,
                rank: rank as i32,
                ranks: size as i32,
                nodes: 1,
                interface: 5,
                version: 0,
                device: None,
                timer: Default::default(),
            };
            let func = if is_receive { Word::RECV } else { Word::SEND };
            let id = |number: u32| {
                let event = Event::P2p(P2p { func, peer, ..P2p::default() });
                Operation { id: Handle::NONE, since: HostNs(0), asked: None, event, texts: None, number }
                    .correlation(Some(&comm))
            };
            (0..MOST).filter_map(|number| Some((id(number)?, u64::from(number)))).collect()
        });
        known.get(&id).copied()
    }
}
