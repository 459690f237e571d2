//! What a trace shows: its tracks, and the slices on them with their arguments; also as text.
//!
//! The text has no times, no thread or process ids, and nothing that depends on the machine, so
//! that two runs of one script give the same text. It includes the recording's own figures that are
//! not zero.

use crate::perfetto::{Row, Trace, Value};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// Everything drawn in a trace.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The tracks, host threads first, each below its parent in display order.
    pub tracks: Vec<Track>,
    /// The slices and instants, in order of time.
    pub slices: Vec<Slice>,
}

/// A track.
#[derive(Clone, Debug)]
pub struct Track {
    /// Perfetto's id.
    pub id: i64,
    /// Its name; for the track of a thread's calls, the thread's name.
    pub name: String,
    /// The track above it.
    pub parent: Option<i64>,
    /// How many tracks are above it.
    pub depth: usize,
}

/// A slice or an instant.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Perfetto's id.
    pub id: i64,
    /// The slice that contains it.
    pub parent: Option<i64>,
    /// The id of its track.
    pub track: i64,
    /// Its name.
    pub name: String,
    /// Its category.
    pub category: String,
    /// When it begins, in ns of `CLOCK_BOOTTIME`.
    pub begin: i64,
    /// Its duration in ns, 0 for an instant; `None` if it has no end.
    pub duration: Option<i64>,
    /// How many slices contain it.
    pub depth: usize,
    /// Its arguments, ours without the prefix `nccl.`.
    pub args: BTreeMap<String, Value>,
}

/// Arguments whose values are times, which differ between runs.
const TIMES: [&str; 7] = [
    "clock_error_ns",
    "group_end_called_ns",
    "group_start_returned_ns",
    "gpu_start_ns",
    "gpu_stop_ns",
    "queued_ns",
    "time_error_ns",
];

/// What the recorder measures of this machine, and so no test can expect: that a thread had no
/// processor.
const MEASURED: &str = "CPU wait";

impl Timeline {
    /// Reads everything in a trace but what depends on how busy this machine is.
    ///
    /// # Panics
    ///
    /// If the trace processor does not answer.
    pub fn read(trace: &Trace) -> Timeline {
        let mut args: HashMap<i64, BTreeMap<String, Value>> = HashMap::new();
        for row in
            trace.rows("SELECT arg_set_id, key, coalesce(int_value, string_value, real_value) AS value FROM args")
        {
            let key = row.str("key");
            let key = key.strip_prefix("nccl.").unwrap_or(key).to_owned();
            args.entry(row.i64("arg_set_id")).or_default().insert(key, row.value("value").clone());
        }
        let of = |row: &Row| optional(row, "arg_set_id").and_then(|id| args.get(&id)).cloned().unwrap_or_default();
        let slices = trace.rows(
            "SELECT id, parent_id, track_id, coalesce(name, '') AS name, coalesce(category, '') AS category, ts, dur, \
             depth, arg_set_id FROM slice ORDER BY ts, id",
        );
        let slice = |row: &Row| Slice {
            id: row.i64("id"),
            parent: optional(row, "parent_id"),
            track: row.i64("track_id"),
            name: row.str("name").to_owned(),
            category: row.str("category").to_owned(),
            begin: row.i64("ts"),
            duration: Some(row.i64("dur")).filter(|duration| *duration >= 0),
            depth: row.i64("depth") as usize,
            args: of(row),
        };
        let tracks = trace.rows(
            "SELECT t.id, coalesce(t.name, thread.name, '') AS name, t.parent_id, t.source_arg_set_id AS arg_set_id, \
             utid FROM track t LEFT JOIN thread_track USING (id) LEFT JOIN thread USING (utid) ORDER BY t.id",
        );
        let number = |args: &BTreeMap<String, Value>, key| match args.get(key) {
            Some(Value::Int(number)) => *number,
            _ => 0,
        };
        let mut found: Vec<_> = tracks
            .iter()
            .map(|row| {
                let args = of(row);
                let track = Track {
                    id: row.i64("id"),
                    name: row.str("name").to_owned(),
                    parent: optional(row, "parent_id"),
                    depth: 0,
                };
                let place = (row.is_null("utid"), number(&args, "sibling_order_rank"), number(&args, "trace_id"));
                (place, track)
            })
            .collect();
        found.retain(|(_, track)| track.name != MEASURED);
        found.sort_by_key(|(place, _)| *place);
        let slices = without_measured(slices.iter().map(slice));
        let mut timeline = Timeline { tracks: Vec::new(), slices };
        timeline.add_tracks(&found.into_iter().map(|(_, track)| track).collect::<Vec<_>>(), None, 0);
        timeline
    }

    fn add_tracks(&mut self, all: &[Track], parent: Option<i64>, depth: usize) {
        for track in all.iter().filter(|track| track.parent == parent) {
            self.tracks.push(Track { depth, ..track.clone() });
            self.add_tracks(all, Some(track.id), depth + 1);
        }
    }

    /// The slices with this name, in order of time.
    pub fn named(&self, name: &str) -> Vec<&Slice> {
        self.slices.iter().filter(|slice| slice.name == name).collect()
    }

    /// The only slice with this name.
    ///
    /// # Panics
    ///
    /// If there is none or more than one, with everything in the trace.
    #[track_caller]
    pub fn slice(&self, name: &str) -> &Slice {
        match self.named(name)[..] {
            [slice] => slice,
            ref found => panic!("{} slices are named `{name}` in\n{}", found.len(), self.text(&BTreeMap::new())),
        }
    }

    /// The slices directly inside one.
    pub fn inside(&self, slice: &Slice) -> Vec<&Slice> {
        self.slices.iter().filter(|inner| inner.parent == Some(slice.id)).collect()
    }

    /// The names of a slice's track and of those above it, from the top, separated by slashes.
    pub fn place(&self, slice: &Slice) -> String {
        let find = |id| self.tracks.iter().find(|track| track.id == id);
        let mut names = Vec::new();
        let mut next = find(slice.track);
        while let Some(track) = next {
            names.push(track.name.as_str());
            next = track.parent.and_then(find);
        }
        names.reverse();
        names.join("/")
    }

    /// The recording's own figures, from its final event.
    ///
    /// # Panics
    ///
    /// If there is no final event, or more than one.
    #[track_caller]
    pub fn figures(&self) -> Figures {
        let last = self.slice("recording ended");
        let number = |(key, value): (&String, &Value)| match value {
            Value::Int(number) => (key.clone(), number.cast_unsigned()),
            other => panic!("{key} is no number: {other}"),
        };
        Figures(last.args.iter().map(number).collect())
    }

    /// All of it as text; `threads` are the threads' names by id.
    pub fn text(&self, threads: &BTreeMap<i32, String>) -> String {
        self.text_without(threads, &[])
    }

    /// The same, without these arguments.
    pub fn text_without(&self, threads: &BTreeMap<i32, String>, left_out: &[&str]) -> String {
        let mut text = String::new();
        for track in &self.tracks {
            let slices: Vec<_> = self.slices.iter().filter(|slice| slice.track == track.id).collect();
            if track.name.is_empty() && slices.is_empty() {
                continue;
            }
            let indent = "  ".repeat(track.depth);
            let _ = writeln!(text, "{indent}{}", without_numbers(&track.name, threads));
            for slice in slices {
                let _ = write!(text, "{indent}  | {}{}", "  ".repeat(slice.depth), slice.name);
                if slice.duration.is_none() {
                    text.push_str(" (open)");
                }
                for (key, value) in &slice.args {
                    let quiet = slice.name == "recording ended" && *value == Value::Int(0);
                    if quiet || left_out.contains(&key.as_str()) {
                        continue;
                    }
                    let _ = match (key.as_str(), value) {
                        ("tid", Value::Int(tid)) => match threads.get(&(*tid as i32)) {
                            Some(thread) => write!(text, " thread={thread}"),
                            None => write!(text, " thread=?"),
                        },
                        ("comm" | "stream" | "send_buffer" | "recv_buffer" | "user_tag", Value::Int(bits)) => {
                            write!(text, " {key}={bits:#x}")
                        }
                        (key, Value::Int(_)) if TIMES.contains(&key) => write!(text, " {key}"),
                        // The version, and this machine's clock.
                        ("note", _) if ["recording started", "cost of the recording"].contains(&&*slice.name) => {
                            write!(text, " note")
                        }
                        _ => write!(text, " {key}={value}"),
                    };
                }
                text.push('\n');
            }
        }
        text
    }
}

/// The recording's figures, by their names in the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures(BTreeMap<String, u64>);

impl Figures {
    /// The figures of a trace that is too large to be read completely.
    ///
    /// # Panics
    ///
    /// If there is no final event, or more than one.
    #[track_caller]
    pub fn read(trace: &Trace) -> Figures {
        let rows = trace.rows(
            "SELECT substr(key, 6) AS key, int_value FROM slice JOIN args USING (arg_set_id) \
             WHERE slice.name = 'recording ended'",
        );
        let figures: BTreeMap<_, _> =
            rows.iter().map(|row| (row.str("key").to_owned(), row.i64("int_value").cast_unsigned())).collect();
        assert!(!figures.is_empty() && figures.len() == rows.len(), "expected one last word, found {rows:?}");
        Figures(figures)
    }

    /// One of them.
    ///
    /// # Panics
    ///
    /// If there is none with this name.
    #[track_caller]
    pub fn get(&self, name: &str) -> u64 {
        *self.0.get(name).unwrap_or_else(|| panic!("no figure `{name}` among {:?}", self.0))
    }

    /// The figures that count something doubtful or lost, and are not zero.
    pub fn remarkable(&self) -> BTreeMap<&str, u64> {
        let plain = [
            "recorded",
            "clock_error_ns",
            "kernels_launch_bracket",
            "kernels_external_id",
            "kernels_graph_node",
            "kernels_call_bracket",
            "kernels_thread_order",
            "kernels_device_timer",
            "kernels_application",
            "cupti_off_least_ns",
            "cupti_off_most_ns",
            "kernels_confirmed",
            "channels_inside_kernel",
            "channels_without_kernel",
        ];
        let remarkable = self.0.iter().filter(|(name, number)| **number != 0 && !plain.contains(&name.as_str()));
        remarkable.map(|(name, number)| (name.as_str(), *number)).collect()
    }
}

impl Slice {
    /// An argument that is a number.
    pub fn int(&self, key: &str) -> Option<i64> {
        match self.args.get(key) {
            Some(Value::Int(number)) => Some(*number),
            _ => None,
        }
    }

    /// An argument that is a text.
    pub fn str(&self, key: &str) -> Option<&str> {
        match self.args.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// All arguments, as `name=value` separated by spaces.
    pub fn arguments(&self) -> String {
        let words: Vec<_> = self.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
        words.join(" ")
    }
}

/// The other slices, where they would be without the measured ones: events at one time nest, the
/// later inside the earlier. A slice comes after the one it is inside of.
fn without_measured(slices: impl Iterator<Item = Slice>) -> Vec<Slice> {
    let mut left_out: HashMap<i64, Option<i64>> = HashMap::new();
    let mut raised: HashMap<i64, usize> = HashMap::new();
    let mut kept = Vec::new();
    for mut slice in slices {
        let levels = slice
            .parent
            .map_or(0, |it| raised.get(&it).copied().unwrap_or(0) + usize::from(left_out.contains_key(&it)));
        slice.depth -= levels;
        raised.insert(slice.id, levels);
        if let Some(above) = slice.parent.and_then(|it| left_out.get(&it)) {
            slice.parent = *above;
        }
        if slice.name == MEASURED {
            left_out.insert(slice.id, slice.parent);
        } else {
            kept.push(slice);
        }
    }
    kept
}

fn optional(row: &Row, column: &str) -> Option<i64> {
    (!row.is_null(column)).then(|| row.i64(column))
}

/// A track's name with the thread's name in place of its id: `progress thread (4711)`.
fn without_numbers(name: &str, threads: &BTreeMap<i32, String>) -> String {
    let number = name.strip_suffix(')').and_then(|name| name.rsplit_once(" (")?.1.parse().ok());
    match number {
        Some(tid) => {
            let thread = threads.get(&tid).map_or("?", String::as_str);
            name.replace(&format!("({tid})"), &format!("({thread})"))
        }
        None => name.to_owned(),
    }
}

/// How `new` differs from `old`: removed lines with the prefix `-`, added ones with `+`, each with
/// up to two lines of context. Empty if they do not differ.
pub fn difference(old: &str, new: &str) -> String {
    const AROUND: usize = 2;
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    // The longest common subsequence of the rest of both, from each pair of lines on.
    let mut common = vec![vec![0_u32; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let mut lines = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push((' ', old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(('-', old[i]));
            i += 1;
        } else {
            lines.push(('+', new[j]));
            j += 1;
        }
    }
    let changed: Vec<_> = (0..lines.len()).filter(|&at| lines[at].0 != ' ').collect();
    let mut text = String::new();
    let mut last = None;
    for (at, (sign, line)) in lines.iter().enumerate() {
        if changed.iter().any(|&change| change.abs_diff(at) <= AROUND) {
            if last.is_some_and(|last| last + 1 != at) {
                text.push_str("  ...\n");
            }
            let _ = writeln!(text, "{sign} {line}");
            last = Some(at);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_shows_changes_with_context() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), "");
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let new = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n10\n";
        assert_eq!(difference(old, new), "  3\n  4\n- 5\n+ five\n  6\n  7\n  8\n  9\n+ 10\n");
        assert_eq!(difference("a\nb\nc\nd\ne\nf\ng\n", "b\nc\nd\ne\nf\n"), "- a\n  b\n  c\n  ...\n  e\n  f\n- g\n");
    }

    #[test]
    fn a_thread_is_shown_by_name_in_place_of_its_id() {
        let threads = BTreeMap::from([(4711, "proxy".to_owned())]);
        assert_eq!(without_numbers("progress thread (4711)", &threads), "progress thread (proxy)");
        assert_eq!(without_numbers("progress thread (12)", &threads), "progress thread (?)");
        assert_eq!(without_numbers("other peers · send", &threads), "other peers · send");
    }
}
