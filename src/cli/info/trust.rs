//! Whether a trace can be trusted: what its recordings lost, left open, or found to contradict
//! itself.
//!
//! Only what would mislead a reader counts. Inferred matches and shared tracks are normal, and
//! marked where they are drawn. Impossible samples of GPU channels are not drawn; some releases of
//! NCCL report them in healthy jobs.

use std::collections::BTreeMap;

use super::{HostClock, Info, sum};
use crate::model::selection::Ranks;
use crate::trace::names;
use crate::trace::reader::{Extent, Nccl};

/// A figure in the recordings' last remarks: what it counts, and whether it is a reason to doubt.
pub(super) type Figure = (&'static str, fn(&Nccl) -> u64, bool);

/// Figures of NCCL's calls.
pub(super) const CALLS: &[Figure] = &[
    ("dropped for lack of room", Nccl::dropped, true),
    ("left out at the size limit", Nccl::discarded, true),
    ("late", Nccl::late, true),
    ("double stops", Nccl::double_stops, true),
    ("stops or states of unknown events", Nccl::unknown_handles, true),
    ("foreign handles", Nccl::foreign_handles, true),
    ("unknown parents", Nccl::unknown_parents, true),
    ("for other processes", Nccl::foreign_events, false),
    ("given up open", Nccl::evicted_open, true),
    ("proxy operations without progress", Nccl::silent_proxy_ops, false),
    ("unknown types or states", Nccl::unknown_types, true),
    ("without a lane", Nccl::lanes_missing, true),
    ("communicators without tracks of their own", Nccl::communicators_sharing, false),
    ("threads without tracks of their own", Nccl::threads_sharing, false),
    ("operations left out by settings", Nccl::operations_left_out, false),
    ("kernels, copies and ranges left out by settings", Nccl::activities_left_out, false),
    ("slices on tracks of several communicators, peers or threads", Nccl::slices_sharing, false),
    ("panics", Nccl::panics, true),
];

/// Figures of kernels.
pub(super) const KERNELS: &[Figure] = &[
    (
        "of NCCL, exactly matched",
        |end| end.kernels_launch_bracket() + end.kernels_external_id() + end.kernels_graph_node(),
        false,
    ),
    (
        "of NCCL, match inferred",
        |end| {
            let by_order = end.kernels_call_bracket() + end.kernels_thread_order();
            by_order + end.kernels_device_timer() + end.kernels_graph_replay()
        },
        false,
    ),
    ("of NCCL, whose match NCCL's own times contradict", Nccl::kernels_contradicted, true),
    ("of NCCL, unmatched", Nccl::kernels_unmatched, true),
    ("of the application", Nccl::kernels_application, false),
    ("launches without a kernel", Nccl::launches_without_kernel, true),
    ("of NCCL, missing because their times are impossible", Nccl::kernels_untimed, true),
    ("launches lost", Nccl::launches_lost, true),
    ("that had not ended when CUPTI was flushed by force", Nccl::kernels_unfinished, true),
    ("records dropped by CUPTI", Nccl::activities_dropped, true),
    ("buffers lost", Nccl::activity_buffers_discarded, true),
    ("records left out at the size limit", Nccl::activities_discarded, true),
    ("impossible records", Nccl::activities_implausible, true),
    ("external ids of others", Nccl::external_ids_foreign, false),
    ("whose times contradict NCCL's own", Nccl::kernels_mistimed, true),
    ("that contradict the others about a GPU's timer", Nccl::timer_contradictions, true),
    ("NVTX markers without their other half", Nccl::markers_unpaired, false),
];

/// How far off host times may be before that is worth a reservation, ns. Events that people compare
/// across ranks take microseconds.
const HOST_TIMES_NS: u64 = 1_000_000;
/// How many communicators are named.
const NAMED: usize = 4;

/// Whether a trace can be trusted; the greater, the worse.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trust {
    /// Yes, as far as the trace itself shows; with what supports that.
    Full(String),
    /// Yes, with these reservations.
    But(Vec<String>),
    /// No, because it cannot be read to its end.
    Not(String),
}

impl Trust {
    /// The verdict on a trace; `None` if it contains no recording of ours. `damage` says why it was
    /// not read to its end.
    pub(super) fn of(info: &Info, extent: Extent, damage: Option<&str>) -> Option<Trust> {
        let ours = info.recordings.keys().filter(|tag| !info.imported.contains(tag)).count();
        if ours == 0 {
            return None;
        }
        if let Some(damage) = damage {
            return Some(Trust::Not(damage.to_owned()));
        }
        let mut reasons = Vec::new();
        let open = info.recordings.keys().filter(|tag| !info.is_closed(tag)).count();
        match open {
            0 => {}
            1 if ours == 1 => reasons.push("the recording has no end: what it lost is not known".into()),
            _ => reasons.push(format!("{open} of {ours} recordings have no end: what they lost is not known")),
        }
        if extent.unfinished > 0 {
            reasons.push("its last packet is unfinished".into());
        }
        for (of, figures) in [("NCCL's calls", CALLS), ("GPU kernels", KERNELS)] {
            let doubts = figures.iter().filter(|(_, _, is_doubt)| *is_doubt);
            let doubts: Vec<_> = doubts
                .map(|(what, figure, _)| (sum(&info.ends, *figure), what))
                .filter(|(count, _)| *count > 0)
                .map(|(count, what)| format!("{count} {what}"))
                .collect();
            if !doubts.is_empty() {
                reasons.push(format!("{of}: {}", doubts.join(", ")));
            }
        }
        let cannot_be = |end: &Nccl| {
            end.cupti_off_least_ns.is_some_and(|ns| ns > 0) || end.cupti_off_most_ns.is_some_and(|ns| ns < 0)
        };
        if info.ends.iter().any(cannot_be) {
            reasons.push("CUPTI's times are off, by what NCCL's threads saw".into());
        }
        let host_times = info.ends.iter().map(Nccl::clock_error_ns).max().unwrap_or_default();
        if host_times > HOST_TIMES_NS {
            reasons.push(format!("host times are known to {} only", names::duration(host_times as f64)));
        }
        if info.clocks.values().any(HostClock::contradicts) {
            reasons.push("operations on several hosts contradict each other, see the notes".into());
        }
        reasons.extend(newer(info));
        reasons.extend(mixed_releases(info.communicators.iter()));
        if !reasons.is_empty() {
            return Some(Trust::But(reasons));
        }
        let host_times = names::duration(host_times as f64);
        let between = info.between_hosts_ns;
        let between =
            between.map_or_else(String::new, |ns| format!(", between hosts to {}", names::duration(ns as f64)));
        Some(Trust::Full(format!(
            "nothing was lost, left unmatched or contradicted; host times to {host_times}{between}"
        )))
    }

    /// The verdict in a word, for programs too.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Trust::Full(_) => "trusted",
            Trust::But(_) => "with reservations",
            Trust::Not(_) => "not trusted",
        }
    }

    /// Why the verdict is not better.
    pub(super) fn reasons(&self) -> &[String] {
        match self {
            Trust::Full(_) => &[],
            Trust::But(reasons) => reasons,
            Trust::Not(reason) => std::slice::from_ref(reason),
        }
    }

    /// The exit status of `ncclscope info`.
    pub(super) fn status(&self) -> u8 {
        match self {
            Trust::Full(_) => 0,
            Trust::But(_) => 1,
            Trust::Not(_) => 2,
        }
    }
}

impl std::fmt::Display for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let why = match self {
            Trust::Full(why) | Trust::Not(why) => why.clone(),
            Trust::But(reasons) => reasons.join("; "),
        };
        write!(f, "{}: {why}", self.word())
    }
}

/// A reservation about the version that recorded it.
fn newer(info: &Info) -> Option<String> {
    let newer = info.versions.iter().filter(|version| number(version) > number(env!("CARGO_PKG_VERSION")));
    let newest = newer.max_by_key(|version| number(version))?;
    Some(format!("it was recorded by ncclscope {newest}, and this version may not know everything in it"))
}

/// Communicators whose ranks have different releases of NCCL.
pub(super) fn mixed_releases<'a>(communicators: impl Iterator<Item = &'a Nccl>) -> Vec<String> {
    let mut all: BTreeMap<u64, BTreeMap<u32, Vec<u32>>> = BTreeMap::new();
    for it in communicators.filter(|it| it.comm() != 0 && it.nccl_version() > 0) {
        let ranks = all.entry(it.comm()).or_default().entry(it.nccl_version()).or_default();
        ranks.extend(it.rank.and_then(|rank| u32::try_from(rank).ok()));
    }
    let release = |(version, ranks): (u32, Vec<u32>)| {
        let on = match &ranks[..] {
            [] => String::new(),
            [rank] => format!(" on rank {rank}"),
            _ => format!(" on ranks {}", Ranks::of(ranks)),
        };
        format!("{}{on}", names::nccl_version(version))
    };
    let mixed = all.into_iter().filter(|(_, releases)| releases.len() > 1).take(NAMED);
    mixed
        .map(|(hash, releases)| {
            let releases: Vec<String> = releases.into_iter().map(release).collect();
            format!("communicator {hash:016x} has NCCL {}", releases.join(" and "))
        })
        .collect()
}

/// A version as numbers to compare.
fn number(version: &str) -> Vec<u64> {
    version.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use prost::Message as _;

    use super::*;
    use crate::summary::LOSSES;
    use crate::trace::wire::Buf;

    /// A trace of two recordings with this last remark.
    fn trace(end: Nccl) -> Info {
        Info {
            recordings: HashMap::from([(1, "rank 0".to_owned()), (2, "rank 1".to_owned())]),
            ended: vec![1, 2],
            ends: vec![Nccl { recorded: Some(9), clock_error_ns: Some(79), ..Nccl::default() }, end],
            ..Info::default()
        }
    }

    fn of(info: &Info) -> Trust {
        Trust::of(info, Extent::default(), None).expect("it has recordings")
    }

    #[test]
    fn a_healthy_recording_is_trusted() {
        let healthy = Nccl {
            recorded: Some(100_000),
            clock_error_ns: Some(200),
            silent_proxy_ops: Some(12),
            foreign_events: Some(4),
            communicators_sharing: Some(3),
            slices_sharing: Some(70),
            kernels_launch_bracket: Some(500),
            kernels_thread_order: Some(20),
            kernels_application: Some(1_000),
            external_ids_foreign: Some(3),
            markers_unpaired: Some(1),
            cupti_off_least_ns: Some(-5_000),
            cupti_off_most_ns: Some(9_000),
            channels_without_kernel: Some(2),
            channels_implausible: Some(5),
            ..Nccl::default()
        };
        let trust = of(&trace(healthy));
        assert_eq!(
            trust.to_string(),
            "trusted: nothing was lost, left unmatched or contradicted; host times to 200 ns"
        );
        assert_eq!((trust.status(), trust.reasons()), (0, &[][..]));
    }

    #[test]
    fn each_loss_and_contradiction_is_a_reservation_with_its_figure() {
        let base = Nccl::default;
        for (end, said) in [
            (Nccl { dropped: Some(3), late: Some(1), ..base() }, "NCCL's calls: 3 dropped for lack of room, 1 late"),
            (Nccl { kernels_unmatched: Some(4), ..base() }, "GPU kernels: 4 of NCCL, unmatched"),
            (Nccl { cupti_off_least_ns: Some(7), ..base() }, "CUPTI's times are off, by what NCCL's threads saw"),
            (Nccl { cupti_off_most_ns: Some(-7), ..base() }, "CUPTI's times are off, by what NCCL's threads saw"),
            (Nccl { clock_error_ns: Some(2_500_000), ..base() }, "host times are known to 2.50 ms only"),
        ] {
            let trust = of(&trace(end));
            assert_eq!((trust.status(), trust.to_string()), (1, format!("with reservations: {said}")));
        }
    }

    /// What the other lists of figures have: the summary's, the JSON's and the SQL's, which is the
    /// summary's.
    #[test]
    fn all_lists_of_figures_have_the_same_losses() {
        // Said elsewhere, or in healthy jobs too.
        let untold = ["channels_unmapped", "channels_implausible"];
        let mut doubts = 0;
        for (field, name) in LOSSES {
            let mut args = Buf::new();
            args.uint(field, 3);
            let end = Nccl::decode(args.bytes()).unwrap();
            let of: Vec<_> = CALLS.iter().chain(KERNELS).filter(|(_, figure, _)| figure(&end) == 3).collect();
            assert_eq!(of.len(), usize::from(!untold.contains(&name)), "{name}");
            doubts += of.iter().filter(|(.., is_doubt)| *is_doubt).count();
            assert_eq!(super::super::json::figures(&end).get(name), Some(&3.into()), "{name}");
        }
        assert_eq!(doubts, CALLS.iter().chain(KERNELS).filter(|(.., is_doubt)| *is_doubt).count());
    }

    #[test]
    fn unfinished_and_unreadable_traces_are_reported() {
        let mut info = trace(Nccl::default());
        info.ended.pop();
        info.ends.pop();
        assert_eq!(of(&info).reasons(), ["1 of 2 recordings have no end: what they lost is not known"]);
        let cut = Trust::of(&info, Extent { whole: 10, unfinished: 3 }, None).unwrap();
        assert_eq!((cut.reasons().len(), cut.status()), (2, 1));
        let damaged = Trust::of(&info, Extent::default(), Some("byte 7 is none of a trace")).unwrap();
        assert_eq!((damaged.to_string(), damaged.status()), ("not trusted: byte 7 is none of a trace".into(), 2));
        // ncclscope does not know what other tools' recordings lost.
        info.imported = vec![1, 2];
        assert_eq!(Trust::of(&info, Extent::default(), None), None);
        assert_eq!(Trust::of(&Info::default(), Extent::default(), None), None);
    }

    #[test]
    fn incompatible_versions_are_reported() {
        let mut info = trace(Nccl::default());
        let rank = |comm, rank, nccl_version| Nccl {
            comm: Some(comm),
            rank: Some(rank),
            nccl_version: Some(nccl_version),
            ..Nccl::default()
        };
        info.communicators = vec![rank(7, 0, 23207), rank(7, 1, 23207), rank(8, 0, 22809), rank(8, 1, 0)];
        info.versions = ["0.0.9".to_owned(), env!("CARGO_PKG_VERSION").to_owned()].into();
        assert_eq!(of(&info).status(), 0);
        info.communicators.push(rank(7, 2, 22809));
        info.versions.insert("99.0.0".into());
        let [newer, mixed] = of(&info).reasons().to_owned().try_into().expect("two reasons");
        assert!(newer.contains("ncclscope 99.0.0"), "{newer}");
        assert_eq!(mixed, "communicator 0000000000000007 has NCCL 2.28.9 on rank 2 and 2.32.7 on ranks 0-1");
    }
}
