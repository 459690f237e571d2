//! The shapes of Kineto's JSON. Releases differ in what they write, so each field is read
//! leniently: null or a value of an unexpected type counts as absent.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};
use serde_json::value::{RawValue, Value};

/// The parts of a Chrome trace event that are used.
#[derive(Deserialize)]
pub(super) struct Event {
    #[serde(default, deserialize_with = "lenient")]
    pub(super) ph: String,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) cat: String,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) name: String,
    #[serde(default)]
    pub(super) pid: Id,
    #[serde(default)]
    pub(super) tid: Id,
    /// The id of an arrow.
    #[serde(default)]
    pub(super) id: Id,
    pub(super) ts: Option<Box<RawValue>>,
    pub(super) dur: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "not_null")]
    pub(super) args: Arguments,
}

impl Event {
    /// The correlation id of its call, from CUPTI or AMD's equivalent; 0 if it has none.
    pub(super) fn correlation(&self) -> u32 {
        self.args.correlation.and_then(|it| u32::try_from(it).ok()).unwrap_or(0)
    }
}

/// The arguments of an event.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Arguments {
    #[serde(deserialize_with = "lenient")]
    pub(super) name: Option<String>,
    #[serde(deserialize_with = "lenient")]
    pub(super) device: Option<i64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) context: Option<i64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) stream: Option<i64>,
    #[serde(deserialize_with = "lenient")]
    correlation: Option<i64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) bytes: Option<u64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) grid: Vec<u32>,
    #[serde(deserialize_with = "lenient")]
    pub(super) block: Vec<u32>,
    #[serde(rename = "graph node id", deserialize_with = "lenient")]
    pub(super) graph_node: Option<u64>,
    #[serde(rename = "Collective name", deserialize_with = "lenient")]
    pub(super) collective: Option<String>,
    #[serde(rename = "In msg nelems", deserialize_with = "lenient")]
    pub(super) elements_in: Option<u64>,
    #[serde(rename = "Out msg nelems", deserialize_with = "lenient")]
    pub(super) elements_out: Option<u64>,
    #[serde(rename = "Group size", deserialize_with = "lenient")]
    pub(super) group_size: Option<i32>,
    #[serde(rename = "dtype", deserialize_with = "lenient")]
    pub(super) datatype: Option<String>,
    #[serde(rename = "Process Group Name", deserialize_with = "lenient")]
    pub(super) group_name: Option<String>,
    #[serde(rename = "Process Group Description", deserialize_with = "lenient")]
    pub(super) group_description: Option<String>,
    #[serde(rename = "Process Group Ranks", deserialize_with = "lenient")]
    pub(super) group_ranks: Option<String>,
    #[serde(rename = "Src Rank", deserialize_with = "lenient")]
    pub(super) source_rank: Option<i32>,
    #[serde(rename = "Dst Rank", deserialize_with = "lenient")]
    pub(super) target_rank: Option<i32>,
    #[serde(rename = "Seq", deserialize_with = "lenient")]
    pub(super) sequence: Option<u64>,
}

/// A value of the expected type, or the default: one odd argument does not invalidate an event.
fn lenient<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Lenient<T> {
        Wanted(T),
        Other(IgnoredAny),
    }
    Ok(match Lenient::deserialize(deserializer)? {
        Lenient::Wanted(value) => value,
        Lenient::Other(IgnoredAny) => T::default(),
    })
}

/// A value, or the default for null.
fn not_null<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A process or a thread: a number, a word where there is no number (`Spans`), or both where
/// several ranks were merged: `[TP01] 4711`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Id {
    /// The text before the number.
    pub(super) label: String,
    /// The number.
    pub(super) number: Option<i64>,
}

impl Id {
    fn of(text: &str) -> Id {
        if let Ok(number) = text.parse() {
            return Id { label: String::new(), number: Some(number) };
        }
        let label = text.trim_end_matches(|it: char| it.is_ascii_digit());
        Id { label: label.trim().to_owned(), number: text[label.len()..].parse().ok() }
    }

    /// The rank in the job, if it names one: `rank 3`, `[Rank_3] 4711`.
    pub(super) fn rank(&self) -> Option<i32> {
        let number = self.number.map(|number| number.to_string()).unwrap_or_default();
        rank(&format!("{} {number}", self.label))
    }
}

/// The rank in the job, if the text names one.
pub(super) fn rank(text: &str) -> Option<i32> {
    let lower = text.to_ascii_lowercase();
    let rest = lower[lower.find("rank")? + "rank".len()..].trim_start_matches([' ', '_', '-', '=', ':', '#']);
    let end = rest.find(|it: char| !it.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
        Ok(match Value::deserialize(deserializer)? {
            Value::Number(number) => Id { label: String::new(), number: number.as_i64() },
            Value::String(text) => Id::of(&text),
            _ => Id::default(),
        })
    }
}

/// `distributedInfo`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Distributed {
    #[serde(deserialize_with = "lenient")]
    pub(super) rank: Option<i32>,
    #[serde(deserialize_with = "lenient")]
    pub(super) world_size: Option<i32>,
    #[serde(deserialize_with = "lenient")]
    pub(super) nccl_version: Option<String>,
    #[serde(deserialize_with = "lenient")]
    pub(super) pg_config: Vec<GroupConfig>,
}

/// A process group of `distributedInfo`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct GroupConfig {
    #[serde(deserialize_with = "lenient")]
    pub(super) pg_name: String,
    #[serde(deserialize_with = "lenient")]
    pub(super) pg_desc: String,
    #[serde(deserialize_with = "lenient")]
    pub(super) pg_size: Option<i32>,
    /// World ranks: as a list, or as text.
    #[serde(deserialize_with = "lenient")]
    ranks: Ranks,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ranks {
    List(Vec<i32>),
    Text(String),
}

impl Default for Ranks {
    fn default() -> Ranks {
        Ranks::List(Vec::new())
    }
}

impl GroupConfig {
    /// World ranks of the members.
    pub(super) fn ranks(&self) -> Vec<i32> {
        match &self.ranks {
            Ranks::List(ranks) => ranks.clone(),
            Ranks::Text(text) => self::ranks(text),
        }
    }
}

/// World ranks in a text like `[0, 1]`. None of a list that PyTorch has shortened, `[0, 1, ...,
/// 127]`.
pub(super) fn ranks(text: &str) -> Vec<i32> {
    let all = text.trim_matches(['[', ']', ' ']).split(',').map(|it| it.trim().parse());
    all.collect::<Result<_, _>>().unwrap_or_default()
}

/// A GPU of `deviceProperties`.
#[derive(Deserialize)]
pub(super) struct DeviceProperties {
    pub(super) id: u32,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) name: String,
}

/// Decimal microseconds as whole nanoseconds: further digits are dropped. `None` if it is no number
/// or does not fit.
pub(super) fn nanoseconds(raw: Option<&RawValue>) -> Option<i64> {
    let text = raw?.get().trim_matches('"');
    if text.contains(['e', 'E']) {
        let value = text.parse::<f64>().ok()? * 1000.0;
        return (value.abs() < 9e18).then_some(value.round() as i64);
    }
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if !decimals.chars().all(|it| it.is_ascii_digit()) {
        return None;
    }
    let digits: String = decimals.chars().chain("000".chars()).take(3).collect();
    let micros = whole.parse::<i64>().ok()?.checked_mul(1000)?;
    let nanos = digits.parse::<i64>().ok()?;
    micros.checked_add(if whole.starts_with('-') { -nanos } else { nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_merged_files_have_a_label_and_a_number() {
        for (json, label, number, rank) in [
            ("4711", "", Some(4711), None),
            ("\"4711\"", "", Some(4711), None),
            ("-1", "", Some(-1), None),
            ("\"Spans\"", "Spans", None, None),
            ("\"[TP01] 4711\"", "[TP01]", Some(4711), None),
            ("\"[Rank 3] 4711\"", "[Rank 3]", Some(4711), Some(3)),
            ("\"rank 3\"", "rank", Some(3), Some(3)),
            ("\"rank_12: 0\"", "rank_12:", Some(0), Some(12)),
            ("\"GPU 0 Counters\"", "GPU 0 Counters", None, None),
            ("null", "", None, None),
            ("1.5", "", None, None),
        ] {
            let id: Id = serde_json::from_str(json).unwrap();
            assert_eq!((id.label.as_str(), id.number, id.rank()), (label, number, rank), "{json}");
        }
    }

    #[test]
    fn null_and_odd_values_are_absent() {
        let event: Event = serde_json::from_str(
            r#"{"ph": "X", "cat": null, "name": 7, "pid": null, "ts": null, "args": {"device": "zero", "bytes": null, "grid": [1, 2]}}"#,
        )
        .unwrap();
        assert_eq!((event.cat.as_str(), event.name.as_str(), event.pid.number), ("", "", None));
        assert_eq!((event.args.device, event.args.bytes, &event.args.grid[..]), (None, None, &[1, 2][..]));
        let event: Event = serde_json::from_str(r#"{"ph": "X", "args": null}"#).unwrap();
        assert_eq!(event.correlation(), 0);
        let info: Distributed = serde_json::from_str(
            r#"{"rank": null, "world_size": 4, "pg_config": [{"pg_name": "0", "ranks": "[0, 2]"}, {"ranks": [1]}, {"ranks": null}]}"#,
        )
        .unwrap();
        let ranks: Vec<_> = info.pg_config.iter().map(GroupConfig::ranks).collect();
        assert_eq!((info.rank, info.world_size, ranks), (None, Some(4), vec![vec![0, 2], vec![1], vec![]]));
    }
}
