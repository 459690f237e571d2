//! Compares what our traces say of each kernel with what the workload called.
//!
//! The workload knows the order of its own calls on each communicator, and no two of them have the
//! same size. So a match is right if the kernels of a communicator, in the order in which the GPU
//! ran them, carried those operations in that order. This does not depend on anything that the
//! profiler uses for its matches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use ncclscope::model::activity::is_nccl;
use ncclscope::trace::reader::proto::ncclscope::{Function, MatchedBy};
use ncclscope::trace::reader::proto::perfetto::protos::track_event::Type;
use ncclscope::trace::reader::{self, Nccl, Packet};
use ncclscope::trace::words::{Category, instant, remark};

use crate::workload::{Piece, Told};

/// The content of a trace that the suite needs.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The world rank of the process.
    pub rank: Option<u32>,
    /// Kernels, by their beginning.
    pub kernels: Vec<Kernel>,
    /// The work of channels, by the GPU's own timer, in the order of their beginning.
    pub channels: Vec<Channel>,
    /// Hashes of communicators, in the order in which they were joined.
    pub communicators: Vec<u64>,
    /// The recording's last word; `None` if the process was killed.
    pub last_word: Option<Nccl>,
    /// The recording's notes about itself, a sentence each.
    pub notes: Vec<String>,
    /// When CUPTI was last taken back, in ns of the trace's clock.
    pub acquired: Option<i64>,
    /// Why it could not be read completely.
    pub fault: Option<String>,
    /// The size of the file in bytes.
    pub bytes: u64,
}

/// A kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kernel {
    /// When it began and ended, in ns of the trace's clock.
    pub span: (i64, i64),
    /// How far both may be off, in ns.
    pub error: u32,
    /// The device, the context and the stream in it.
    pub place: (u32, u32, u32),
    /// Its name in the symbol table.
    pub symbol: String,
    /// How it was matched: `exact_launch_bracket`; empty for the application's kernels.
    pub method: String,
    /// The communicator's hash.
    pub communicator: u64,
    /// What it carried.
    pub carried: Vec<Piece>,
    /// Why it is not matched.
    pub doubt: String,
}

/// The work of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Channel {
    /// When it began, in ns of the trace's clock.
    pub begin: i64,
    /// The same time on the GPU's timer.
    pub stamp: u64,
    /// How far `begin` may be off, in ns.
    pub error: u32,
}

/// The verdict on traces.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Verdict {
    /// Traces that were read.
    pub traces: usize,
    /// NCCL's kernels.
    pub kernels: usize,
    /// Those that are matched, by method.
    pub matched: BTreeMap<String, usize>,
    /// Those that are not, by reason.
    pub unmatched: BTreeMap<String, usize>,
    /// Matched kernels that carried the operations called at their place.
    pub right: usize,
    /// Matched kernels that did not.
    pub wrong: usize,
    /// A sentence about each of the first wrong kernels.
    pub examples: Vec<String>,
    /// Calls without a kernel; a group counts once.
    pub without_kernel: usize,
    /// The application's kernels.
    pub application: usize,
    /// Of those, kernels that ran beside one of NCCL's.
    pub beside: usize,
    /// Launches outside of graphs without a kernel.
    pub unseen: u64,
    /// Lost records of NCCL's and CUPTI's.
    pub lost: u64,
    /// Matched kernels that contain all their channels.
    pub confirmed: u64,
    /// Matched kernels that do not.
    pub contradicted: u64,
    /// Kernels that contradict what the others show about a GPU's timer.
    pub timer_contradictions: u64,
    /// Traces without a last word.
    pub open: usize,
    /// Why traces could not be read.
    pub faults: Vec<String>,
    /// Why there are no kernels, according to the recording.
    pub silence: String,
    /// The size of all traces in bytes.
    pub bytes: u64,
}

const UNMATCHED: &str = "unmatched";
/// How many wrong kernels are described one by one.
const EXAMPLES: usize = 5;
/// The suffix that turns the name of a track of kernels into that of their operations.
const OPERATIONS: &str = " · operations";

impl Seen {
    /// Reads a trace. Everything before a fault is used.
    #[must_use]
    pub fn of(path: &Path) -> Seen {
        let mut reader = Reader::default();
        let read = reader::read_file(path, |packet| {
            reader.take(packet);
            Ok::<_, reader::Error>(())
        });
        // A killed process leaves an unfinished packet, which is no fault.
        reader.seen.fault = read.err().map(|fault| format!("{}: {fault}", path.display()));
        reader.seen.bytes = std::fs::metadata(path).map_or(0, |file| file.len());
        reader.finish()
    }

    /// NCCL's kernels that began since CUPTI was taken back; `None` if it was not.
    #[must_use]
    pub fn kernels_since_acquired(&self) -> Option<usize> {
        self.acquired.map(|acquired| self.nccl().filter(|kernel| kernel.span.0 > acquired).count())
    }

    /// Whether the recording says that CUPTI's records go elsewhere.
    #[must_use]
    pub fn says_silent(&self) -> bool {
        self.notes.iter().any(|note| note.starts_with(remark::SILENT))
    }

    /// NCCL's kernels.
    pub fn nccl(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.iter().filter(|kernel| !kernel.method.is_empty() || is_nccl(&kernel.symbol))
    }

    /// What the kernels of each communicator carried, in the order in which they ran, in order to
    /// compare two runs of one workload. An unmatched kernel counts for the communicator whose
    /// stream it ran on.
    #[must_use]
    pub fn owners(&self) -> Vec<Vec<Owner>> {
        let of = |hash: &u64| {
            let mine = |kernel: &&Kernel| kernel.method != UNMATCHED && kernel.communicator == *hash;
            let places: BTreeSet<_> = self.nccl().filter(mine).map(|kernel| kernel.place).collect();
            let here =
                |kernel: &&Kernel| mine(kernel) || (kernel.method == UNMATCHED && places.contains(&kernel.place));
            self.nccl().filter(here).map(Kernel::owner).collect()
        };
        self.communicators.iter().map(of).collect()
    }
}

/// What a kernel carried, in the order of names; `None` if unknown.
pub type Owner = Option<Vec<Piece>>;

impl Kernel {
    fn owner(&self) -> Owner {
        let mut carried = self.carried.clone();
        carried.sort_unstable();
        (self.method != UNMATCHED).then_some(carried)
    }
}

/// A comparison of two runs of one workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Kernels whose operations both runs know.
    pub both: usize,
    /// Of those, the kernels for which both agree.
    pub same: usize,
    /// Kernels whose operations only one run knows, or that only one run has.
    pub one: usize,
}

impl Agreement {
    /// Compares runs, rank by rank and kernel by kernel.
    #[must_use]
    pub fn of(one: &[Seen], other: &[Seen]) -> Agreement {
        let mut agreement = Agreement::default();
        for seen in one {
            let Some(twin) = other.iter().find(|twin| twin.rank == seen.rank) else { continue };
            for (mine, theirs) in seen.owners().iter().zip(twin.owners()) {
                agreement.one += mine.len().abs_diff(theirs.len());
                for pair in mine.iter().zip(&theirs) {
                    let (Some(mine), Some(theirs)) = pair else {
                        agreement.one += 1;
                        continue;
                    };
                    agreement.both += 1;
                    agreement.same += usize::from(mine == theirs);
                }
            }
        }
        agreement
    }
}

impl Verdict {
    /// Judges the traces of a job by what its processes reported, in the order of ranks.
    #[must_use]
    pub fn of(seen: &[Seen], told: &[Option<Told>]) -> Verdict {
        let mut verdict = Verdict::default();
        for seen in seen {
            let told = seen.rank.and_then(|rank| told.get(rank as usize)?.as_ref());
            verdict.add(seen, told);
        }
        verdict
    }

    fn add(&mut self, seen: &Seen, told: Option<&Told>) {
        self.traces += 1;
        self.bytes += seen.bytes;
        self.faults.extend(seen.fault.clone());
        let said = seen.notes.iter().flat_map(|note| note.split("; "));
        if let Some(why) = said.filter(|part| part.contains("no GPU kernels")).last() {
            why.clone_into(&mut self.silence);
        }
        let mut unmatched = 0;
        for kernel in seen.nccl() {
            self.kernels += 1;
            let counts = if kernel.method == UNMATCHED || kernel.method.is_empty() {
                unmatched += 1;
                self.unmatched.entry(kernel.doubt.clone())
            } else {
                self.matched.entry(kernel.method.clone())
            };
            *counts.or_default() += 1;
        }
        let nccl: Vec<(i64, i64)> = seen.nccl().map(|kernel| kernel.span).collect();
        for kernel in seen.kernels.iter().filter(|kernel| kernel.method.is_empty() && !is_nccl(&kernel.symbol)) {
            self.application += 1;
            let beside = nccl.iter().any(|(begin, end)| kernel.span.0 < *end && *begin < kernel.span.1);
            self.beside += usize::from(beside);
        }
        if let Some(told) = told {
            for (hash, asked) in seen.communicators.iter().zip(&told.asked) {
                if !asked.is_empty() {
                    let kernels = seen.nccl().filter(|it| it.communicator == *hash && it.method != UNMATCHED);
                    self.compare(asked, kernels, unmatched);
                }
            }
        }
        match &seen.last_word {
            None => self.open += 1,
            Some(word) => {
                self.lost += word.dropped() + word.discarded() + word.activities_dropped();
                self.lost += word.activity_buffers_discarded() + word.activities_discarded() + word.launches_lost();
                self.unseen += word.launches_without_kernel();
                self.confirmed += word.kernels_confirmed();
                self.contradicted += word.kernels_contradicted();
                self.timer_contradictions += word.timer_contradictions();
            }
        }
    }

    /// Compares the kernels of a communicator with its calls. As many calls may be without a known
    /// kernel as there are unmatched kernels.
    fn compare<'k>(&mut self, asked: &[Vec<Piece>], kernels: impl Iterator<Item = &'k Kernel>, unmatched: usize) {
        let mut spare = unmatched;
        let mut at = 0;
        let mut rest: Vec<Piece> = asked.first().cloned().unwrap_or_default();
        for kernel in kernels {
            if kernel.carried.is_empty() || !without(&mut rest, &kernel.carried) {
                let later = asked
                    .iter()
                    .skip(at + 1)
                    .take(spare)
                    .position(|group| !kernel.carried.is_empty() && without(&mut group.clone(), &kernel.carried));
                let Some(skipped) = later else {
                    self.wrong += 1;
                    if self.examples.len() < EXAMPLES {
                        let expected = asked.get(at).map_or_else(|| "nothing".into(), |group| text(group));
                        self.examples.push(format!(
                            "{} is matched to {} where {expected} was requested ({})",
                            kernel.symbol,
                            text(&kernel.carried),
                            kernel.method
                        ));
                    }
                    continue;
                };
                spare -= skipped + 1;
                self.without_kernel += skipped + 1;
                at += skipped + 1;
                rest = asked[at].clone();
                without(&mut rest, &kernel.carried);
            }
            self.right += 1;
            if rest.is_empty() {
                at += 1;
                rest = asked.get(at).cloned().unwrap_or_default();
            }
        }
        self.without_kernel += asked.len().saturating_sub(at);
    }

    /// The number of matched kernels, by any method.
    #[must_use]
    pub fn all_matched(&self) -> usize {
        self.matched.values().sum()
    }

    /// The number of unmatched kernels.
    #[must_use]
    pub fn all_unmatched(&self) -> usize {
        self.unmatched.values().sum()
    }

    /// What is not as required, a sentence each: every kernel must be there and matched, and none
    /// wrongly.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = self.wrongs();
        faults.extend(self.open_ends());
        // A kernel that is not matched has left a call without one, which is reported already.
        let without = self.without_kernel.saturating_sub(self.all_unmatched());
        faults.extend((without > 0).then(|| format!("{without} requests have no kernel")));
        faults
    }

    /// The same, if kernels may stay unmatched.
    #[must_use]
    pub fn wrongs(&self) -> Vec<String> {
        let mut faults = self.faults.clone();
        let mut fault = |is: bool, text: String| faults.extend(is.then_some(text));
        fault(self.traces == 0, "there is no trace".into());
        let silence = if self.silence.is_empty() { String::new() } else { format!(": {}", self.silence) };
        fault(self.traces > 0 && self.kernels == 0, format!("the trace has no kernel of NCCL's{silence}"));
        fault(self.wrong > 0, format!("{} matched wrongly: {}", self.wrong, self.examples.join("; ")));
        fault(self.contradicted > 0, format!("{} matches are contradicted by their channels", self.contradicted));
        fault(self.lost > 0, format!("{} records were lost", self.lost));
        faults
    }

    /// How many launches have no kernel, if any.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        (self.unseen > 0).then(|| format!("{} launches have no kernel", self.unseen))
    }

    /// How many kernels are unmatched, and why.
    #[must_use]
    pub fn open_ends(&self) -> Option<String> {
        let reasons: Vec<String> = self.unmatched.iter().map(|(why, count)| format!("{count} {why}")).collect();
        (!reasons.is_empty()).then(|| format!("unmatched: {}", reasons.join(", ")))
    }

    /// The methods and their counts, in words.
    #[must_use]
    pub fn methods(&self) -> String {
        let each: Vec<String> = self.matched.iter().map(|(method, count)| format!("{count} {method}")).collect();
        if each.is_empty() { "none".into() } else { each.join(", ") }
    }
}

fn text(pieces: &[Piece]) -> String {
    let each: Vec<String> = pieces.iter().map(|piece| format!("{} {} B", piece.function, piece.bytes)).collect();
    if each.is_empty() { "nothing".into() } else { each.join(" + ") }
}

/// Removes pieces from others, and returns whether they were all there. If not, nothing is
/// removed.
fn without(from: &mut Vec<Piece>, pieces: &[Piece]) -> bool {
    let mut rest = from.clone();
    for piece in pieces {
        let Some(place) = rest.iter().position(|it| it == piece) else { return false };
        rest.swap_remove(place);
    }
    *from = rest;
    true
}

#[derive(Default)]
struct Reader {
    seen: Seen,
    tracks: HashMap<u64, Track>,
    /// Kernels that carried several operations, and those operations, by track and time.
    carried: HashMap<(String, i64, i64), Vec<Piece>>,
    several: Vec<(usize, (String, i64, i64))>,
}

#[derive(Default)]
struct Track {
    name: String,
    open: Vec<(i64, Option<Category>, Nccl)>,
}

impl Reader {
    fn take(&mut self, packet: &Packet<'_>) {
        if let Some(descriptor) = packet.track_descriptor() {
            if let Some(process) = &descriptor.process {
                let rank =
                    process.process_name().strip_prefix("rank ").and_then(|name| name.split(' ').next()?.parse().ok());
                self.seen.rank = self.seen.rank.or(rank);
            }
            descriptor.name().clone_into(&mut self.tracks.entry(descriptor.uuid()).or_default().name);
        }
        let (Some(event), Some(time)) = (&packet.event, packet.time) else { return };
        let time = time.0 as i64;
        let track = self.tracks.entry(event.track).or_default();
        match event.r#type() {
            Type::SliceBegin => track.open.push((time, event.category, event.nccl())),
            Type::SliceEnd => {
                if let Some((begin, category, nccl)) = track.open.pop() {
                    let name = track.name.clone();
                    self.slice(&name, category, (begin, time), &nccl);
                }
            }
            Type::Instant => self.instant(event.name, time, event.nccl()),
            _ => {}
        }
    }

    fn instant(&mut self, name: &str, time: i64, nccl: Nccl) {
        if name == remark::TAKEN_AGAIN {
            self.seen.acquired = Some(time);
        }
        match name {
            instant::COMM_INIT => self.seen.communicators.push(nccl.comm()),
            instant::ENDED => self.seen.last_word = Some(nccl),
            _ if nccl.note.is_some() => self.seen.notes.push(format!("{name}: {}", nccl.note())),
            _ => {}
        }
    }

    fn slice(&mut self, track: &str, category: Option<Category>, span: (i64, i64), nccl: &Nccl) {
        match category {
            Some(Category::Kernel) if nccl.kernel.is_some() => {
                let is_matched = nccl.r#match() != MatchedBy::MatchAbsent && nccl.r#match() != MatchedBy::Unmatched;
                let several = is_matched && nccl.operations() != 1;
                if several {
                    self.several.push((self.seen.kernels.len(), (track.to_owned(), span.0, span.1)));
                }
                self.seen.kernels.push(Kernel {
                    span,
                    error: nccl.time_error_ns(),
                    place: (nccl.device(), nccl.context(), nccl.stream_id()),
                    symbol: nccl.kernel().to_owned(),
                    method: match nccl.r#match() {
                        MatchedBy::MatchAbsent => String::new(),
                        method => method.as_str_name().to_owned(),
                    },
                    communicator: nccl.comm(),
                    carried: if is_matched && !several { vec![piece(nccl)] } else { Vec::new() },
                    doubt: nccl.doubt().to_owned(),
                });
            }
            Some(Category::Carried) => {
                let of = track.strip_suffix(OPERATIONS).unwrap_or(track).to_owned();
                self.carried.entry((of, span.0, span.1)).or_default().push(piece(nccl));
            }
            Some(Category::Gpu) if nccl.phase.is_none() => {
                if let (Some(stamp), Some(error)) = (nccl.gpu_start_ns, nccl.time_error_ns) {
                    self.seen.channels.push(Channel { begin: span.0, stamp, error });
                }
            }
            _ => {}
        }
    }

    fn finish(mut self) -> Seen {
        for (kernel, key) in std::mem::take(&mut self.several) {
            self.seen.kernels[kernel].carried = self.carried.remove(&key).unwrap_or_default();
        }
        self.seen.kernels.sort_by_key(|kernel| kernel.span);
        self.seen.channels.sort_by_key(|channel| channel.begin);
        self.seen
    }
}

fn piece(nccl: &Nccl) -> Piece {
    let function = match nccl.function() {
        Function::Absent => nccl.function_text().to_owned(),
        function => function.as_str_name().to_owned(),
    };
    Piece { function, bytes: nccl.bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<Piece> {
        let piece = |word: &str| {
            let (function, bytes) = word.split_once(':').unwrap();
            Piece { function: function.into(), bytes: bytes.parse().unwrap() }
        };
        text.split('+').map(piece).collect()
    }

    /// Kernels and calls in order: `AllReduce:4+AllReduce:8` is one with two operations, `?` an
    /// unmatched kernel.
    #[track_caller]
    fn judge(asked: &str, kernels: &str) -> Verdict {
        let kernel = |(number, word): (usize, &str)| Kernel {
            span: (number as i64, number as i64 + 1),
            symbol: "ncclDevKernel_AllReduce_Sum_f32_RING_LL".into(),
            communicator: 7,
            method: if word == "?" { UNMATCHED.into() } else { "exact_launch_bracket".into() },
            carried: if word == "?" { Vec::new() } else { pieces(word) },
            doubt: if word == "?" { "its launch was not seen".into() } else { String::new() },
            ..Kernel::default()
        };
        let seen = Seen {
            rank: Some(0),
            kernels: kernels.split(' ').enumerate().map(kernel).collect(),
            communicators: vec![7],
            last_word: Some(Nccl::default()),
            ..Seen::default()
        };
        let told = Told { asked: vec![asked.split(' ').map(pieces).collect()], ..Told::default() };
        Verdict::of(&[seen], &[Some(told)])
    }

    #[test]
    fn kernels_that_carried_the_calls_in_order_are_right() {
        let verdict = judge("AllReduce:4 Send:8+Recv:8 AllReduce:12", "AllReduce:4 Recv:8+Send:8 AllReduce:12");
        assert_eq!((verdict.right, verdict.wrong), (3, 0));
        assert!(verdict.faults().is_empty(), "{:?}", verdict.faults());
        // A group may need two kernels.
        let verdict = judge("AllReduce:4+AllGather:8 Send:8", "AllGather:8 AllReduce:4 Send:8");
        assert_eq!((verdict.right, verdict.wrong, verdict.without_kernel), (3, 0, 0));
    }

    #[test]
    fn a_swap_is_wrong() {
        let verdict = judge("AllReduce:4 AllReduce:8 AllReduce:12", "AllReduce:8 AllReduce:4 AllReduce:12");
        assert!(verdict.wrong > 0, "{verdict:?}");
        assert!(verdict.faults().iter().any(|fault| fault.contains("matched wrongly")), "{:?}", verdict.faults());
    }

    #[test]
    fn an_unmatched_kernel_is_neither_wrong_nor_a_good_answer() {
        let verdict = judge("AllReduce:4 AllReduce:8 AllReduce:12", "AllReduce:4 ? AllReduce:12");
        assert_eq!((verdict.right, verdict.wrong, verdict.without_kernel), (2, 0, 1));
        assert_eq!(verdict.faults(), ["unmatched: 1 its launch was not seen"]);
    }

    #[test]
    fn calls_without_a_kernel_are_reported() {
        let verdict = judge("AllReduce:4 AllReduce:8", "AllReduce:4");
        assert_eq!(verdict.faults(), ["1 requests have no kernel"]);
    }

    #[test]
    fn launches_without_a_kernel_are_reported_besides_calls() {
        let seen = |launches| {
            let word = Nccl { launches_without_kernel: launches, ..Nccl::default() };
            Verdict::of(&[Seen { last_word: Some(word), ..Seen::default() }], &[]).missing()
        };
        assert_eq!([seen(None), seen(Some(2))], [None, Some("2 launches have no kernel".into())]);
    }

    #[test]
    fn two_runs_agree_kernel_by_kernel_or_not() {
        let run = |kernels: &str| {
            let kernel = |(number, word): (usize, &str)| Kernel {
                span: (number as i64, number as i64 + 1),
                symbol: "ncclDevKernel_Generic".into(),
                communicator: if word == "?" { 0 } else { 7 },
                method: if word == "?" { UNMATCHED.into() } else { "inferred_device_timer".into() },
                carried: if word == "?" { Vec::new() } else { pieces(word) },
                ..Kernel::default()
            };
            let kernels = kernels.split(' ').enumerate().map(kernel).collect();
            [Seen { rank: Some(0), kernels, communicators: vec![7], ..Seen::default() }]
        };
        let reference = run("AllReduce:4 Send:8+Recv:8 AllReduce:12");
        let same = |both, same, one| Agreement { both, same, one };
        assert_eq!(Agreement::of(&reference, &run("AllReduce:4 Recv:8+Send:8 AllReduce:12")), same(3, 3, 0));
        assert_eq!(Agreement::of(&reference, &run("AllReduce:4 ? AllReduce:12")), same(2, 2, 1));
        assert_eq!(Agreement::of(&reference, &run("AllReduce:12 Send:8+Recv:8 AllReduce:4")), same(3, 1, 0));
    }

    #[test]
    fn kernels_before_cupti_came_back_do_not_count_as_after() {
        let kernel = |begin| Kernel { span: (begin, begin + 1), method: UNMATCHED.into(), ..Kernel::default() };
        let seen = |acquired| Seen { kernels: vec![kernel(4), kernel(6)], acquired, ..Seen::default() };
        assert_eq!(
            [None, Some(5), Some(7)].map(|acquired| seen(acquired).kernels_since_acquired()),
            [None, Some(1), Some(0)]
        );
    }

    #[test]
    fn a_trace_without_kernels_is_no_good_answer() {
        assert_eq!(Verdict::of(&[], &[]).faults(), ["there is no trace"]);
        assert_eq!(Verdict::of(&[Seen::default()], &[]).faults(), ["the trace has no kernel of NCCL's"]);
    }
}
