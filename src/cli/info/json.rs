//! The output of `ncclscope info` as JSON.

use serde_json::{Map, Value, json};

use super::{Operations, Seen};
use crate::cli::differing::{Differing, Owner};
use crate::cli::hang::{After, Hang, Idle};
use crate::cli::mismatch::{Mismatch, Side};
use crate::cli::running::Gone;
use crate::cli::shared_gpus::SharedGpu;
use crate::cli::troubles::Troubles;
use crate::trace::names;
use crate::trace::reader::Nccl;

/// The version of this JSON.
pub(super) const FORMAT_VERSION: u32 = 1;

/// What is wrong with the job.
pub(super) fn troubles(found: &Troubles) -> Value {
    json!({
        "format_version": FORMAT_VERSION,
        "mismatches": found.mismatches.iter().map(mismatch).collect::<Vec<_>>(),
        "hangs": found.hangs.iter().map(hang).collect::<Vec<_>>(),
        "idle": found.idle.as_ref().map(idle),
        "ended_first": found.ended_first.iter().map(gone).collect::<Vec<_>>(),
        "shared_gpus": found.shared_gpus.iter().map(shared_gpu).collect::<Vec<_>>(),
        "differing": found.differing.iter().map(differing).collect::<Vec<_>>(),
    })
}

/// A setting that only some of the ranks have.
pub(in crate::cli) fn differing(it: &Differing) -> Value {
    let value = |(value, owners): &(Option<String>, Vec<Owner>)| {
        let ranks: Vec<Option<u32>> = owners.iter().map(|it| it.rank).collect();
        let pids: Vec<u64> = owners.iter().map(|it| it.pid).collect();
        json!({ "value": value, "ranks": ranks, "pids": pids })
    };
    let values: Vec<Value> = it.values.iter().map(value).collect();
    json!({ "text": it.to_string(), "name": it.name, "values": values })
}

/// What the ranks do not agree on.
pub(in crate::cli) fn mismatch(mismatch: &Mismatch) -> Value {
    let side = |side: &Side| json!({ "call": side.call, "ranks": side.ranks });
    json!({
        "text": mismatch.to_string(),
        "details": mismatch.details,
        "comm": hash(mismatch.hash),
        "calls": mismatch.what.sides().iter().map(side).collect::<Vec<_>>(),
    })
}

/// Where the job hangs.
pub(in crate::cli) fn hang(hang: &Hang) -> Value {
    json!({
        "text": hang.to_string(),
        "details": hang.details(),
        "certain": hang.is_certain,
        "over": hang.is_over(),
        "operation": hang.operation.name,
        "seq": hang.operation.seq,
        "comm": hash(hang.operation.hash),
        "came": hang.came,
        "ways": hang.ways.iter().map(|(tuning, ranks)| json!({
            "tuning": tuning.to_string(),
            "ranks": ranks,
        })).collect::<Vec<_>>(),
        "missing": hang.missing.iter().map(|missing| json!({
            "rank": missing.rank,
            "world_rank": missing.world,
            "last": missing.last,
            "waits_in": missing.waits.as_ref().map(ToString::to_string),
        })).collect::<Vec<_>>(),
        "circle": hang.circle.iter().map(|wait| json!({
            "world_rank": wait.rank,
            "waits_in": wait.operation.to_string(),
        })).collect::<Vec<_>>(),
        "explained": hang.is_explained(),
        "after": hang.after.as_ref().map(|After { wait, is_in_group }| json!({
            "world_rank": wait.rank,
            "waits_in": wait.operation.to_string(),
            "in_group": is_in_group,
        })),
        "unseen": hang.unseen,
        "age_ns": hang.age,
    })
}

/// A job that asks nothing of NCCL.
fn idle(idle: &Idle) -> Value {
    json!({ "text": idle.to_string(), "details": idle.details(), "since_ns": idle.since_ns })
}

/// A process that ended before the others.
pub(in crate::cli) fn gone(gone: &Gone) -> Value {
    json!({ "text": gone.line(), "world_rank": gone.rank, "early_ns": gone.early_ns })
}

/// A GPU that several ranks share.
pub(in crate::cli) fn shared_gpu(shared: &SharedGpu) -> Value {
    json!({ "text": shared.to_string(), "details": shared.details(), "gpu": shared.uuid, "ranks": shared.ranks })
}

impl Seen<'_> {
    /// What one trace contains.
    pub(super) fn json(&self) -> Value {
        let Seen { path, bytes, info, trust, fault, is_running } = self;
        let mut recordings: Vec<_> = info.recordings.iter().collect();
        recordings.sort_unstable();
        let recording = |(tag, process): &(&u64, &String)| {
            let end = info.ended.iter().position(|ended| ended == *tag).map(|at| &info.ends[at]);
            let state = match info.is_closed(tag) {
                true => "closed",
                false if *is_running => "running",
                false => "running or killed",
            };
            json!({ "process": process, "state": state, "figures": end.map(figures) })
        };
        let note = |text: String, times: u64| json!({ "text": text, "times": times });
        let clocks = info.clocks.iter().map(|(host, clock)| note(format!("{host}: {}", clock.how), 1));
        let notes = info.notes.iter().map(|(text, times)| note(text.clone(), *times));
        json!({
            "kind": "trace",
            "file": path.display().to_string(),
            "bytes": bytes,
            "slices": info.slices,
            "verdict": trust.as_ref().map(|trust| json!({ "text": trust.word(), "reasons": trust.reasons() })),
            "processes": info.processes,
            "communicators": info.communicators.iter().map(communicator).collect::<Vec<_>>(),
            "operations": info.operations.iter().map(|((comm, function), of)| {
                let (count, bytes, not_handed_over) = Operations::all(of.values());
                json!({
                    "comm": hash(*comm),
                    "function": function,
                    "count": count,
                    "bytes": bytes,
                    "not_handed_over": not_handed_over,
                })
            }).collect::<Vec<_>>(),
            "notes": clocks.chain(notes).collect::<Vec<_>>(),
            "recordings": recordings.iter().map(recording).collect::<Vec<_>>(),
            "fault": fault,
        })
    }
}

/// As in the text; a JSON number could not hold it.
fn hash(hash: u64) -> String {
    format!("{hash:016x}")
}

fn communicator(nccl: &Nccl) -> Value {
    let version = Some(nccl.nccl_version()).filter(|version| *version > 0).map(names::nccl_version);
    json!({
        "comm": nccl.comm.map(hash),
        "name": nccl.comm_name,
        "rank": nccl.rank,
        "ranks": nccl.ranks,
        "hosts": nccl.nodes,
        "nccl": version,
        "interface": nccl.interface,
    })
}

/// The figures of a last remark, by their names in the trace, without those that are absent.
pub(super) fn figures(end: &Nccl) -> Map<String, Value> {
    macro_rules! figures {
        ($($name:ident)*) => { [$((stringify!($name), end.$name.map(Value::from))),*] };
    }
    let all = figures!(
        recorded dropped discarded late double_stops unknown_handles foreign_handles unknown_parents foreign_events evicted_open
        silent_proxy_ops unknown_types lanes_missing communicators_sharing threads_sharing slices_sharing panics clock_error_ns
        kernels_launch_bracket kernels_external_id kernels_graph_node kernels_call_bracket kernels_thread_order
        kernels_device_timer kernels_graph_replay kernels_unmatched kernels_application kernels_unfinished kernels_confirmed kernels_contradicted kernels_mistimed
        kernels_untimed
        launches_without_kernel launches_lost activities_dropped activity_buffers_discarded activities_discarded
        activities_implausible external_ids_foreign markers_unpaired channels_inside_kernel channels_without_kernel
        channels_unmapped channels_implausible operations_left_out activities_left_out
        timer_contradictions cupti_off_least_ns cupti_off_most_ns
    );
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
