//! Which part of a job is recorded or kept, as users type it: ranges of time, ranks, communicators.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Malformed {}

/// A range of time, in nanoseconds from the trace's start: `1.5s..2s`, `300ms..`, `..40us`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first nanosecond.
    pub begin: u64,
    /// The first nanosecond after it; `None`: to the trace's end.
    pub end: Option<u64>,
}

impl Window {
    /// The range between two times.
    #[must_use]
    pub fn between(begin: u64, end: u64) -> Window {
        Window { begin, end: Some(end) }
    }
}

impl FromStr for Window {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Window, Malformed> {
        let Some((begin, end)) = text.split_once("..") else {
            return Err(Malformed("two times with .. between them are needed, as in 1.5s..2s".into()));
        };
        let (begin, end) = (begin.trim(), end.trim());
        // "300..400ms": one unit for both.
        let unit = end.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let begin = match begin {
            "" => 0,
            bare if bare.ends_with(|c: char| c.is_ascii_digit()) => nanoseconds(&format!("{bare}{unit}"))?,
            begin => nanoseconds(begin)?,
        };
        let end = if end.is_empty() { None } else { Some(nanoseconds(end)?) };
        match end {
            Some(end) if end <= begin => Err(Malformed("the second time is not after the first one".into())),
            _ => Ok(Window { begin, end }),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |ns| Some(duration(ns)).filter(|text| nanoseconds(text) == Ok(ns)).unwrap_or(format!("{ns}ns"));
        write!(f, "{}..", exact(self.begin))?;
        self.end.map_or(Ok(()), |end| f.write_str(&exact(end)))
    }
}

/// A time with its unit, such as `1.5s`, as nanoseconds.
///
/// # Errors
///
/// What is wrong with it.
pub fn nanoseconds(text: &str) -> Result<u64, Malformed> {
    let help = "a number and ns, us, ms, s, min or h, as in 1.5s";
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit.trim()) else {
        let what = if unit.is_empty() { "has no unit".into() } else { format!("has an unknown unit: {unit:?}") };
        return Err(Malformed(format!("{text:?} {what}; a time is {help}")));
    };
    // Not parsed as a floating-point number, which would change its digits.
    let wrong = || Malformed(format!("{text:?} is not a time; a time is {help}"));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.len() > 15 {
        return Err(wrong());
    }
    let whole: u128 = whole.parse().map_err(|_| wrong())?;
    let parts: u128 = fraction.parse().map_err(|_| wrong())?;
    let scale = u128::from(*scale);
    let part = parts * scale / 10_u128.pow(fraction.len() as u32);
    let value = whole.checked_mul(scale).and_then(|whole| whole.checked_add(part)).ok_or_else(wrong)?;
    u64::try_from(value).map_err(|_| wrong())
}

/// Nanoseconds as text, in a unit that reads well and loses no significant digits: `1.5s`, `300ms`.
/// [`nanoseconds`] reads it.
#[must_use]
pub fn duration(ns: u64) -> String {
    let (unit, scale) = match ns {
        0..1_000 => ("ns", 1),
        1_000..1_000_000 => ("us", 1_000),
        1_000_000..1_000_000_000 => ("ms", 1_000_000),
        _ => ("s", 1_000_000_000),
    };
    let thousandths = (u128::from(ns) * 1000 / scale) as u64;
    let (whole, rest) = (thousandths / 1000, thousandths % 1000);
    match rest {
        0 => format!("{whole}{unit}"),
        _ => format!("{whole}.{}{unit}", format!("{rest:03}").trim_end_matches('0')),
    }
}

/// Ranks as a list with ranges: `0,4,8-12`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks(Vec<(u32, u32)>);

impl Ranks {
    /// These ranks, in order, consecutive ones as ranges.
    #[must_use]
    pub fn of(mut ranks: Vec<u32>) -> Ranks {
        ranks.sort_unstable();
        ranks.dedup();
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for rank in ranks {
            match ranges.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
                _ => ranges.push((rank, rank)),
            }
        }
        Ranks(ranges)
    }

    /// Those below `size` that are not among `present`, which are in order.
    #[must_use]
    pub fn lacking(size: u32, present: impl Iterator<Item = u32>) -> Ranks {
        let (mut ranges, mut next) = (Vec::new(), 0);
        for rank in present.take_while(|rank| *rank < size).chain([size]) {
            if rank > next {
                ranges.push((next, rank - 1));
            }
            next = rank.saturating_add(1);
        }
        Ranks(ranges)
    }

    /// The first and the last of each range, in order.
    pub fn ranges(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().copied()
    }

    /// Whether this rank is one of them.
    #[must_use]
    pub fn contains(&self, rank: u32) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&rank))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Ranks {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Ranks, Malformed> {
        let rank = |word: &str| {
            let wrong = |_| Malformed(format!("{word:?} is not a rank; ranks are given as in 0,4,8-12"));
            word.trim().parse::<u32>().map_err(wrong)
        };
        let range = |part: &str| match part.split_once('-') {
            None => rank(part).map(|rank| (rank, rank)),
            Some((first, last)) => match (rank(first)?, rank(last)?) {
                (first, last) if first > last => Err(Malformed(format!("{part:?} runs backwards"))),
                range => Ok(range),
            },
        };
        text.split(',').map(range).collect::<Result<_, _>>().map(Ranks)
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

/// Numbers from one to another, both included: `1000..2000`, `..9`, `5..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The first.
    pub first: u64,
    /// The last; `None`: without end.
    pub last: Option<u64>,
}

impl Numbers {
    /// Whether this number is one of them.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        number >= self.first && !self.are_over(number)
    }

    /// Whether this number is above all of them.
    #[must_use]
    pub fn are_over(&self, number: u64) -> bool {
        self.last.is_some_and(|last| number > last)
    }
}

impl FromStr for Numbers {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Numbers, Malformed> {
        let number = |text: &str| {
            text.trim().parse::<u64>().map_err(|_| Malformed(format!("{text:?} is not a number, as in 1000..2000")))
        };
        let Some((first, last)) = text.split_once("..") else {
            return Err(Malformed("two numbers with .. between them are needed, as in 1000..2000".into()));
        };
        let first = if first.trim().is_empty() { 0 } else { number(first)? };
        let last = if last.trim().is_empty() { None } else { Some(number(last)?) };
        match last {
            Some(last) if last < first => Err(Malformed("the second number is below the first one".into())),
            _ => Ok(Numbers { first, last }),
        }
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..", self.first)?;
        self.last.map_or(Ok(()), |last| write!(f, "{last}"))
    }
}

/// Which part of a job is recorded; everything by default. Something is recorded if all conditions
/// hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Ranks in the communicator. Ranks in the job need no selection: the others record nothing.
    pub ranks: Option<Ranks>,
    /// Names of communicators; with a `*` at its end, how names begin. Empty: all.
    pub comms: Vec<String>,
    /// Operations of fewer bytes are left out.
    pub min_bytes: u64,
    /// Every Nth operation is kept; 0 and 1: each.
    pub every: u64,
    /// Counted from the start of the recording.
    pub time: Option<Window>,
    /// By their number in the process, from 0.
    pub operations: Option<Numbers>,
    /// By the numbers that the program gives its steps.
    pub steps: Option<Numbers>,
    /// Kernels and copies of the application are left out.
    pub only_nccl: bool,
}

impl Selection {
    /// Whether nothing is left out.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Selection { every: self.every, ..Selection::default() } && self.every <= 1
    }

    /// The parts that leave something out, each as a word and its value: `every`, `10`.
    #[must_use]
    pub fn parts(&self) -> Vec<(&'static str, String)> {
        let Selection { ranks, comms, min_bytes, every, time, operations, steps, only_nccl } = self;
        let mut parts = Vec::new();
        parts.extend(ranks.iter().map(|it| ("ranks", it.to_string())));
        parts.extend((!comms.is_empty()).then(|| ("comms", comms.join(","))));
        parts.extend((*min_bytes > 0).then(|| ("min_bytes", min_bytes.to_string())));
        parts.extend((*every > 1).then(|| ("every", every.to_string())));
        parts.extend(time.iter().map(|it| ("time", it.to_string())));
        parts.extend(operations.iter().map(|it| ("operations", it.to_string())));
        parts.extend(steps.iter().map(|it| ("steps", it.to_string())));
        parts.extend(only_nccl.then(|| ("kernels", "nccl".to_owned())));
        parts
    }

    /// The selection with these parts, as [`Selection::parts`] gives them; `None` if one of them is
    /// malformed.
    #[must_use]
    pub fn from_parts<'a>(parts: impl Iterator<Item = (&'a str, &'a str)>) -> Option<Selection> {
        let mut selection = Selection::default();
        for (part, value) in parts {
            match part {
                "ranks" => selection.ranks = Some(value.parse().ok()?),
                "comms" => selection.comms = names(value),
                "min_bytes" => selection.min_bytes = value.parse().ok()?,
                "every" => selection.every = value.parse().ok()?,
                "time" => selection.time = Some(value.parse().ok()?),
                "operations" => selection.operations = Some(value.parse().ok()?),
                "steps" => selection.steps = Some(value.parse().ok()?),
                "kernels" if value == "nccl" => selection.only_nccl = true,
                _ => return None,
            }
        }
        Some(selection)
    }
}

/// Whether a selection leaves out part of what ran while it recorded, not only whole times. The
/// parts are in one text, `every 10, time 1s..2s`.
#[must_use]
pub fn leaves_gaps(parts: &str) -> bool {
    const GAPS: [&str; 5] = ["ranks ", "comms ", "min_bytes ", "every ", "kernels "];
    parts.split(", ").any(|part| GAPS.iter().any(|gap| part.starts_with(gap)))
}

/// The names of a list with commas.
#[must_use]
pub fn names(list: &str) -> Vec<String> {
    list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lacking_ranks_are_the_gaps() {
        let lacking = |size, present: &[u32]| Ranks::lacking(size, present.iter().copied()).to_string();
        assert_eq!(lacking(8, &[0, 1, 4, 7]), "2-3,5-6");
        assert_eq!(lacking(4, &[0, 1, 2, 3]), "");
        assert_eq!(lacking(3, &[2, 9]), "0-1");
        assert_eq!(lacking(u32::MAX, &[1]), "0,2-4294967294");
    }

    #[test]
    fn windows_are_read_with_their_units() {
        for (text, begin, end) in [
            ("1.5s..2s", 1_500_000_000, Some(2_000_000_000)),
            ("300ms..400ms", 300_000_000, Some(400_000_000)),
            ("300..400ms", 300_000_000, Some(400_000_000)),
            ("0.000000001s..2us", 1, Some(2000)),
            ("..40us", 0, Some(40_000)),
            ("1.5min..", 90_000_000_000, None),
            ("7ns..1h", 7, Some(3_600_000_000_000)),
        ] {
            assert_eq!(text.parse::<Window>().unwrap(), Window { begin, end }, "{text}");
        }
    }

    #[test]
    fn invalid_windows_say_why() {
        for (text, says) in [
            ("1s", "two times with .."),
            ("1..2", "\"12\" has no unit"),
            ("1x..2x", "an unknown unit: \"x\""),
            ("2s..1s", "not after"),
            ("1s..1s", "not after"),
            (".s..1s", "not a time"),
            ("1.2.3s..4s", "not a time"),
            ("99999999999999999999h..", "not a time"),
        ] {
            let reason = text.parse::<Window>().unwrap_err().to_string();
            assert!(reason.contains(says) || text == "1..2" && reason.contains("has no unit"), "{text}: {reason}");
        }
    }

    #[test]
    fn printed_durations_can_be_read_back() {
        for (ns, text) in [(0, "0ns"), (999, "999ns"), (1500, "1.5us"), (2_000_000, "2ms"), (3_007_000_000, "3.007s")] {
            assert_eq!(duration(ns), text);
            assert_eq!(nanoseconds(text).unwrap(), ns);
        }
        assert!(nanoseconds("340282366920938463463374607431768211.9us").is_err());
    }

    #[test]
    fn ranks_are_a_list_with_ranges() {
        let ranks: Ranks = "0,4,8-12".parse().unwrap();
        let kept: Vec<u32> = (0..20).filter(|rank| ranks.contains(*rank)).collect();
        assert_eq!(kept, [0, 4, 8, 9, 10, 11, 12]);
        assert_eq!(ranks.to_string(), "0,4,8-12");
        assert_eq!(Ranks::of(vec![3, 1, 2, 7, 2]).to_string(), "1-3,7");
        for wrong in ["", "a", "3-1", "1-", "-1", "1,,2"] {
            assert!(wrong.parse::<Ranks>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn numbers_are_a_range_with_both_ends() {
        for (text, inside, outside) in [("1000..2000", [1000, 2000], [999, 2001]), ("..9", [0, 9], [10, 11])] {
            let numbers: Numbers = text.parse().unwrap();
            assert!(inside.iter().all(|it| numbers.contains(*it)) && !outside.iter().any(|it| numbers.contains(*it)));
        }
        assert!("5..".parse::<Numbers>().unwrap().contains(u64::MAX));
        for wrong in ["5", "a..b", "9..5", "-1..5", ""] {
            assert!(wrong.parse::<Numbers>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_windows_leave_no_gaps() {
        assert!(!leaves_gaps("time 1s..2s, operations 5.., steps 7..9") && !leaves_gaps(""));
        for part in ["ranks 1", "comms dp,tp*", "min_bytes 5", "every 2", "kernels nccl"] {
            assert!(leaves_gaps(part) && leaves_gaps(&format!("time 1s..2s, {part}")), "{part}");
        }
    }

    #[test]
    fn a_selection_comes_back_from_its_parts() {
        let selection = Selection {
            ranks: Some("0,4,8-12".parse().unwrap()),
            comms: vec!["dp".into(), "tp*".into()],
            min_bytes: 65536,
            every: 10,
            time: Some("1.23456789s..2s".parse().unwrap()),
            operations: Some("1000..2000".parse().unwrap()),
            steps: Some("7..".parse().unwrap()),
            only_nccl: true,
        };
        let back = |selection: &Selection| {
            let parts = selection.parts();
            Selection::from_parts(parts.iter().map(|(part, value)| (*part, value.as_str())))
        };
        assert_eq!(back(&selection), Some(selection.clone()));
        assert!(!selection.is_all() && Selection::default().is_all() && back(&Selection::default()).unwrap().is_all());
        assert_eq!(Selection::from_parts([("every", "x")].into_iter()), None);
        assert_eq!(Selection::from_parts([("weather", "1")].into_iter()), None);
    }
}
