//! Quantities with their units, as scenarios write them: `4 us`, `16 MiB`, `50 ppm`, `20 GB/s`.
//!
//! A number, a space, a unit. Nothing is guessed: a quantity without a unit, or with one of
//! another kind, is an error.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A kind of quantity: its units, and the size of each.
pub trait Kind {
    /// Its name in messages.
    const NAME: &'static str;
    /// A valid example.
    const EXAMPLE: &'static str;
    /// The units, each with its size in the base unit.
    const UNITS: &'static [(&'static str, f64)];
}

/// A time, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {}

impl Kind for Time {
    const NAME: &'static str = "time";
    const EXAMPLE: &'static str = "20 us";
    const UNITS: &'static [(&'static str, f64)] = &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
}

/// An amount of memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {}

impl Kind for Size {
    const NAME: &'static str = "size";
    const EXAMPLE: &'static str = "16 MiB";
    const UNITS: &'static [(&'static str, f64)] =
        &[("B", 1.0), ("KiB", 1024.0), ("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0)];
}

/// A rate, in bytes per ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bandwidth {}

impl Kind for Bandwidth {
    const NAME: &'static str = "bandwidth";
    const EXAMPLE: &'static str = "20 GB/s";
    const UNITS: &'static [(&'static str, f64)] = &[("KB/s", 1e-6), ("MB/s", 1e-3), ("GB/s", 1.0)];
}

/// A drift, in parts per million.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drift {}

impl Kind for Drift {
    const NAME: &'static str = "drift";
    const EXAMPLE: &'static str = "50 ppm";
    const UNITS: &'static [(&'static str, f64)] = &[("ppm", 1.0)];
}

/// Reads a quantity.
///
/// # Errors
///
/// Says what was expected.
pub fn parse<K: Kind>(text: &str) -> Result<f64, String> {
    let expected = || {
        let units: Vec<_> = K::UNITS.iter().map(|(unit, _)| *unit).collect();
        format!("expected a {} such as `{}` (units: {}), not `{text}`", K::NAME, K::EXAMPLE, units.join(", "))
    };
    let mut words = text.split_whitespace();
    let (Some(number), Some(unit), None) = (words.next(), words.next(), words.next()) else { return Err(expected()) };
    let digits = number.strip_prefix(['-', '+']).unwrap_or(number);
    let plain = !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        && !digits.starts_with('.')
        && !digits.ends_with('.');
    let worth = K::UNITS.iter().find(|(name, _)| *name == unit).map(|(_, worth)| *worth);
    let (true, Ok(number), Some(worth)) = (plain, number.parse::<f64>(), worth) else { return Err(expected()) };
    Ok(number * worth)
}

/// Reads a quantity that is whole in its base unit and not negative: a time in ns, a size in bytes.
///
/// # Errors
///
/// Says what was expected.
pub fn whole<K: Kind>(text: &str) -> Result<u64, String> {
    // Beyond this an f64 no longer holds every whole number.
    const MOST: f64 = (1_u64 << 53) as f64;
    let value = parse::<K>(text)?;
    let base = K::UNITS[0].0;
    if value < 0.0 {
        return Err(format!("a {} is not negative: `{text}`", K::NAME));
    }
    // 2.3 us are 2300 ns, although 2.3 has no exact f64.
    let rounded = value.round();
    if (value - rounded).abs() > 1e-6 * value.max(1.0) {
        return Err(format!("`{text}` is not a whole number of {base}"));
    }
    if rounded > MOST {
        return Err(format!("`{text}` is too large"));
    }
    Ok(rounded as u64)
}

/// A quantity in a TOML string, in its base unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantity<K> {
    /// The value in the base unit.
    pub value: f64,
    kind: PhantomData<K>,
}

impl<K> Quantity<K> {
    /// A quantity from a value in the base unit.
    pub fn new(value: f64) -> Quantity<K> {
        Quantity { value, kind: PhantomData }
    }
}

impl Quantity<Time> {
    /// In ns, rounded.
    pub fn ns(self) -> i64 {
        self.value.round() as i64
    }
}

/// One value, or a range of values: `50 ppm`, `-50 ppm to 50 ppm`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range<K> {
    /// The least.
    pub least: Quantity<K>,
    /// The most.
    pub most: Quantity<K>,
}

impl<K> Range<K> {
    /// A range, in the base unit.
    pub fn new(least: f64, most: f64) -> Range<K> {
        Range { least: Quantity::new(least), most: Quantity::new(most) }
    }
}

impl<'de, K: Kind> Deserialize<'de> for Quantity<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Quantity<K>, D::Error> {
        text::<K, D, _>(deserializer, |text| parse::<K>(text).map(Quantity::new))
    }
}

impl<'de, K: Kind> Deserialize<'de> for Range<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Range<K>, D::Error> {
        text::<K, D, _>(deserializer, |text| match text.split_once(" to ") {
            None => parse::<K>(text).map(|value| Range::new(value, value)),
            Some((least, most)) => {
                let (least, most) = (parse::<K>(least)?, parse::<K>(most)?);
                if least > most { Err(format!("`{text}` starts above its end")) } else { Ok(Range::new(least, most)) }
            }
        })
    }
}

/// Reads a TOML string with `read`. Any other type gives an error that shows how a quantity is
/// written.
fn text<'de, K: Kind, D: Deserializer<'de>, T>(
    deserializer: D,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    struct Text<K, F>(F, PhantomData<K>);

    impl<'de, K: Kind, T, F: Fn(&str) -> Result<T, String>> Visitor<'de> for Text<K, F> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a {} in quotes, such as \"{}\"", K::NAME, K::EXAMPLE)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            (self.0)(text).map_err(E::custom)
        }
    }

    deserializer.deserialize_str(Text::<K, _>(read, PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_in_their_units() {
        assert_eq!(whole::<Time>("4 us"), Ok(4_000));
        assert_eq!(whole::<Time>("2.3 us"), Ok(2_300));
        assert_eq!(whole::<Time>("1.5 s"), Ok(1_500_000_000));
        assert_eq!(whole::<Size>("16 MiB"), Ok(16 << 20));
        assert_eq!(whole::<Size>("12 B"), Ok(12));
        assert_eq!(parse::<Drift>("-50 ppm"), Ok(-50.0));
        assert_eq!(parse::<Bandwidth>("20 GB/s"), Ok(20.0));
        assert_eq!(parse::<Time>("  -1.5   ms "), Ok(-1.5e6));
    }

    #[test]
    fn an_invalid_quantity_shows_a_valid_one() {
        let of_time = |text: &str| parse::<Time>(text).unwrap_err();
        assert_eq!(of_time("4"), "expected a time such as `20 us` (units: ns, us, ms, s), not `4`");
        for text in [
            "", "us", "4us", "4 MiB", "4 US", "four us", "4 us ago", ". us", "1e3 us", "inf s", "nan s", "1. s",
            "--1 s",
        ] {
            assert!(of_time(text).starts_with("expected a time"), "{text}: {}", of_time(text));
        }
        assert_eq!(whole::<Size>("1.5 B").unwrap_err(), "`1.5 B` is not a whole number of B");
        assert_eq!(whole::<Time>("-1 s").unwrap_err(), "a time is not negative: `-1 s`");
        assert_eq!(whole::<Time>("99999999 s").unwrap_err(), "`99999999 s` is too large");
    }
}
