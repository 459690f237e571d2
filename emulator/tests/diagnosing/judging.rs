//! Whether an answer names what was planted, and whether the rest of it agrees with the traces.

use super::job::{Cause, Job, LOADED, Planted};
use crate::support::Job as Run;
use serde_json::{Value, json};

const TABLES: &str = include_str!("../../../sql/ncclscope.sql");

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judgement {
    Right,
    /// Something was planted and nothing is said, or of two causes only the first.
    NotTold,
    Wrong(String),
}

impl Job {
    /// Whether a cause in the answer is this one.
    fn is_named(&self, said: &Value, planted: &Planted) -> Result<(), String> {
        let kind = match planted.cause {
            Cause::Kernels { .. } | Cause::Another { .. } => "kernels",
            Cause::Host { .. } => "host",
            Cause::Link { .. } => "link",
            Cause::Stall { .. } => "stall",
            Cause::Pauses { .. } => "pauses",
            Cause::Unequal => "unequal-work",
        };
        let is_right = |right: bool, what: &str| if right { Ok(()) } else { Err(format!("{what}: {said}")) };
        let host = |rank: &Value| rank.as_u64().map(|rank| rank as u32 / self.ranks_per_host);
        is_right(said["kind"] == kind, "another kind")?;
        match planted.cause {
            Cause::Kernels { rank, .. } | Cause::Another { rank } | Cause::Host { rank } => {
                is_right(said["ranks"] == json!([rank]), "another rank")
            }
            Cause::Link { from, to } | Cause::Stall { from, to } => {
                let ends = (host(&said["link"]["from"]), host(&said["link"]["to"]));
                is_right(ends == (Some(from), Some(to)), "another link")
            }
            Cause::Pauses { rank } => {
                let ranks = said["ranks"].as_array().map_or(&[][..], Vec::as_slice);
                let are_right = match rank {
                    Some(rank) => *ranks == [Value::from(rank)],
                    None => ranks.is_empty() || ranks.len() == self.ranks() as usize,
                };
                is_right(are_right, "other ranks")?;
                is_right(said["every"].is_null() || said["every"] == LOADED, "in other steps")
            }
            Cause::Unequal => Ok(()),
        }
    }

    /// Whether the answer names what was planted, and nobody else before it.
    pub(super) fn judge(&self, answer: &Value) -> Judgement {
        let causes = answer["causes"].as_array().map_or(&[][..], Vec::as_slice);
        match (answer["verdict"].as_str().unwrap_or_default(), causes) {
            ("healthy", []) if self.planted.is_empty() => return Judgement::Right,
            ("healthy" | "cannot-tell", []) => return Judgement::NotTold,
            ("causes", [_, ..]) => {}
            (verdict, _) => return Judgement::Wrong(format!("{verdict} with {} causes", causes.len())),
        }
        if self.planted.is_empty() {
            return Judgement::Wrong(format!("a cause in a healthy job: {}", causes[0]));
        }
        for (place, planted) in self.planted.iter().enumerate() {
            let Some(said) = causes.get(place) else { return Judgement::NotTold };
            if let Err(wrong) = self.is_named(said, planted) {
                return Judgement::Wrong(wrong);
            }
        }
        Judgement::Right
    }
}

#[test]
fn answers_are_judged_by_whom_they_name() {
    let planted = |cause| Planted { cause, cost: 3_000 };
    let slow = planted(Cause::Kernels { rank: 2, only: None });
    let link = planted(Cause::Link { from: 1, to: 0 });
    let said = |kind: &str, more: &str| format!("{{\"kind\": \"{kind}\", {more}}}");
    let (own, other) = (said("kernels", "\"ranks\": [2]"), said("kernels", "\"ranks\": [3]"));
    let there = said("link", "\"link\": {\"from\": 3, \"to\": 0}");
    let back = said("link", "\"link\": {\"from\": 0, \"to\": 3}");
    let late = said("host", "\"ranks\": [2]");
    let all = said("pauses", "\"ranks\": [], \"every\": 10");
    let fifth = said("pauses", "\"ranks\": [], \"every\": 5");
    let judge = |planted: &[Planted], verdict: &str, causes: &[&String]| {
        let job = Job { hosts: 2, ranks_per_host: 2, planted: planted.to_vec(), ..Job::drawn(0) };
        let causes: Vec<Value> = causes.iter().map(|cause| serde_json::from_str(cause).expect("JSON")).collect();
        match job.judge(&json!({"verdict": verdict, "causes": causes})) {
            Judgement::Right => "right",
            Judgement::NotTold => "not told",
            Judgement::Wrong(_) => "wrong",
        }
    };
    assert_eq!(judge(&[], "healthy", &[]), "right");
    assert_eq!(judge(&[], "cannot-tell", &[]), "not told");
    assert_eq!(judge(&[], "causes", &[&own]), "wrong");
    assert_eq!(judge(&[slow], "causes", &[&own, &there]), "right");
    assert_eq!(judge(&[slow], "causes", &[&there, &own]), "wrong");
    assert_eq!(judge(&[slow], "causes", &[&other]), "wrong");
    assert_eq!(judge(&[slow], "causes", &[&late]), "wrong");
    assert_eq!(judge(&[slow], "healthy", &[]), "not told");
    assert_eq!(judge(&[slow], "hang", &[]), "wrong");
    assert_eq!(judge(&[link], "causes", &[&there]), "right");
    assert_eq!(judge(&[link], "causes", &[&back]), "wrong");
    assert_eq!(judge(&[slow, link], "causes", &[&own, &there]), "right");
    assert_eq!(judge(&[slow, link], "causes", &[&own]), "not told");
    assert_eq!(judge(&[slow, link], "causes", &[&there, &own]), "wrong");
    assert_eq!(judge(&[planted(Cause::Pauses { rank: None })], "causes", &[&all]), "right");
    assert_eq!(judge(&[planted(Cause::Pauses { rank: None })], "causes", &[&fifth]), "wrong");
    assert_eq!(judge(&[planted(Cause::Pauses { rank: Some(1) })], "causes", &[&all]), "wrong");
}

/// Asserts that the part of a trace in which each cause is said to show has kernels in it.
#[track_caller]
pub(super) fn has_kernels_where_it_says_to_look(answer: &Value) {
    for cause in answer["causes"].as_array().map_or(&[][..], Vec::as_slice) {
        let look = &cause["look_at"];
        let folder = tempfile::tempdir().expect("a folder for a part");
        let part = folder.path().join("part.perfetto-trace");
        let window = format!("{}ns..{}ns", look["from_ns"], look["to_ns"]);
        let file = look["file"].as_str().expect("a file");
        let part_name = part.to_str().expect("a plain name");
        let line = ["ncclscope", "cut", file, "--time", &window, "-o", part_name];
        ncclscope::cli::run(line, &mut Vec::new()).unwrap_or_else(|error| panic!("{window}: {error}"));
        let kernels = ncclscope::import::open(&part).unwrap_or_else(|error| panic!("{error}")).kernels.len();
        assert!((1..1_000).contains(&kernels), "{kernels} kernels in {window}: {cause:#}");
    }
}

/// Asserts that what a rank's step goes into adds up to a step.
#[track_caller]
pub(super) fn adds_up(answer: &Value) {
    let step = answer["steps"]["mean_ns"].as_f64().expect("a duration");
    let has_steps = answer["steps"]["count"] != 0;
    for rank in answer["ranks"].as_array().filter(|_| has_steps).map_or(&[][..], Vec::as_slice) {
        let parts = ["own_ns", "exposed_ns", "waits_ns", "idle_ns"].map(|part| rank[part].as_f64().expect("a part"));
        let sum: f64 = parts.iter().sum();
        // A step is that of the middle rank, each time of another.
        assert!((sum - step).abs() <= 0.15 * step, "{sum} instead of {step}: {rank}");
    }
}

/// Asserts that a merged trace marks each cause, in a step of a rank that has it: from the begin of
/// a kernel, or from the end of one for what the GPU did not do.
#[track_caller]
pub(super) fn is_marked_in_a_merged_trace(run: &Run, answer: &Value) {
    let (trace, _) = run.joined();
    trace.query(TABLES).unwrap_or_else(|error| panic!("{error}"));
    let marks = trace.rows(
        "SELECT slice.name, slice.ts, dur FROM slice JOIN track ON track.id = track_id WHERE track.name = 'Diagnosis' \
         ORDER BY slice.id",
    );
    let causes = answer["causes"].as_array().map_or(&[][..], Vec::as_slice);
    assert_eq!(marks.len(), causes.len(), "{marks:?}");
    // The answer is in view before anything is expanded, over all steps.
    let shown = trace.rows(
        "SELECT slice.name, dur FROM slice JOIN track ON track.id = track_id WHERE track.name = 'Job' AND \
         track.parent_id IS NULL",
    );
    assert_eq!(shown.len(), usize::from(answer["verdict"] != "cannot-tell"), "{shown:?}");
    for shown in shown {
        assert_eq!(shown.str("name"), answer["text"].as_str().expect("a text"));
        let [count, mean] = ["count", "mean_ns"].map(|part| answer["steps"][part].as_f64().expect("a number"));
        assert!((shown.i64("dur") as f64 - count * mean).abs() <= 0.2 * count * mean, "{shown:?}");
    }
    for cause in causes {
        let text = cause["text"].as_str().expect("a text");
        let mark = marks.iter().find(|mark| mark.str("name").starts_with(text)).expect("each cause has a mark");
        // Files of several hosts were moved onto one clock, and a step's first kernel with them.
        let kernels = trace.rows(&format!(
            "SELECT kernel.ts FROM nccl_kernel AS kernel JOIN nccl_process AS process USING (upid) \
             WHERE process.name GLOB 'rank {} *' AND abs(kernel.ts {} - {}) <= 2",
            cause["ranks"][0],
            if ["host", "pauses", "host-bound"].contains(&cause["kind"].as_str().expect("a kind")) {
                "+ dur"
            } else {
                ""
            },
            mark.i64("ts")
        ));
        let step = cause["look_at"]["to_ns"].as_i64().zip(cause["look_at"]["from_ns"].as_i64());
        let step = step.map(|(to, from)| to - from).expect("a step");
        assert_eq!(kernels.len(), 1, "{mark:?}");
        assert!((mark.i64("dur") - step).abs() <= step / 1_000, "{mark:?} {step}");
    }
}
