//! Times, durations and ranks as users type them.

use std::fmt;
use std::str::FromStr;

use crate::cli::reason::Reason;

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

/// A range of time, in nanoseconds from the trace's start: `1.5s..2s`, `300ms..`, `..40us`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Window {
    pub(super) begin: u64,
    /// `None`: to the trace's end.
    pub(super) end: Option<u64>,
}

impl Window {
    /// The range between two times.
    pub(in super::super) fn between(begin: u64, end: u64) -> Window {
        Window { begin, end: Some(end) }
    }
}

impl FromStr for Window {
    type Err = Reason;

    fn from_str(text: &str) -> Result<Window, Reason> {
        let Some((begin, end)) = text.split_once("..") else {
            return Err("two times with .. between them are needed, as in 1.5s..2s".into());
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
            Some(end) if end <= begin => Err("the second time is not after the first one".into()),
            _ => Ok(Window { begin, end }),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..", duration(self.begin))?;
        self.end.map_or(Ok(()), |end| f.write_str(&duration(end)))
    }
}

/// A time with its unit, such as `1.5s`, as nanoseconds.
pub(in super::super) fn nanoseconds(text: &str) -> Result<u64, Reason> {
    let help = "a number and ns, us, ms, s, min or h, as in 1.5s";
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit.trim()) else {
        let what = if unit.is_empty() { "has no unit".into() } else { format!("has no unit that is known: {unit:?}") };
        return Err(Reason::Refused(format!("{text:?} {what}; a time is {help}")));
    };
    // Not parsed as a floating-point number, which would change its digits.
    let wrong = || Reason::Refused(format!("{text:?} is no time; a time is {help}"));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.len() > 15 {
        return Err(wrong());
    }
    let whole: u128 = whole.parse().map_err(|_| wrong())?;
    let parts: u128 = fraction.parse().map_err(|_| wrong())?;
    let scale = u128::from(*scale);
    let value = whole.checked_mul(scale).ok_or_else(wrong)? + parts * scale / 10_u128.pow(fraction.len() as u32);
    u64::try_from(value).map_err(|_| wrong())
}

/// Nanoseconds as text, in a unit that reads well and loses no significant digits: `1.5s`, `300ms`.
/// [`nanoseconds`] reads it.
pub(in super::super) fn duration(ns: u64) -> String {
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
pub(in super::super) struct Ranks(Vec<(u32, u32)>);

impl Ranks {
    /// These ranks in order, consecutive ones as ranges.
    pub(in crate::cli) fn of(mut ranks: Vec<u32>) -> Ranks {
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

    pub(super) fn contains(&self, rank: u32) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&rank))
    }

    pub(in crate::cli) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Ranks {
    type Err = Reason;

    fn from_str(text: &str) -> Result<Ranks, Reason> {
        let rank = |word: &str| {
            let wrong = |_| Reason::Refused(format!("{word:?} is no rank; ranks are given as in 0,4,8-12"));
            word.trim().parse::<u32>().map_err(wrong)
        };
        let range = |part: &str| match part.split_once('-') {
            None => rank(part).map(|rank| (rank, rank)),
            Some((first, last)) => match (rank(first)?, rank(last)?) {
                (first, last) if first > last => Err(Reason::Refused(format!("{part:?} runs backwards"))),
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

#[cfg(test)]
mod tests {
    use super::*;

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
            ("1x..2x", "no unit that is known: \"x\""),
            ("2s..1s", "not after"),
            ("1s..1s", "not after"),
            (".s..1s", "no time"),
            ("1.2.3s..4s", "no time"),
            ("99999999999999999999h..", "no time"),
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
}
