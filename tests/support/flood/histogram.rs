//! How long calls took.

use super::{Latency, now};

/// Counts of times, in buckets a sixteenth of their value wide.
pub(super) struct Histogram {
    buckets: Box<[u64; 1024]>,
    max: u64,
}

impl Histogram {
    pub(super) fn new() -> Histogram {
        Histogram { buckets: Box::new([0; 1024]), max: 0 }
    }

    #[inline]
    pub(super) fn count(&mut self, value: u64) {
        self.buckets[Histogram::bucket(value)] += 1;
        self.max = self.max.max(value);
    }

    pub(super) fn add(&mut self, other: &Histogram) {
        for (bucket, count) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *bucket += count;
        }
        self.max = self.max.max(other.max);
    }

    pub(super) fn latency(&self) -> Latency {
        Latency {
            median_ns: self.quantile(0.5),
            p99_ns: self.quantile(0.99),
            p999_ns: self.quantile(0.999),
            max_ns: self.max,
            clock_ns: clock_cost(),
        }
    }

    /// The largest value in the bucket that contains this quantile.
    fn quantile(&self, share: f64) -> u64 {
        let total: u64 = self.buckets.iter().sum();
        let wanted = (total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Histogram::last_of(index).min(self.max);
            }
        }
        self.max
    }

    fn bucket(value: u64) -> usize {
        match value {
            0..16 => value as usize,
            _ => {
                let exponent = value.ilog2();
                let part = (value >> (exponent - 4)) & 15;
                (exponent as usize - 3) * 16 + part as usize
            }
        }
    }

    fn last_of(bucket: usize) -> u64 {
        match bucket {
            0..16 => bucket as u64,
            _ => {
                let exponent = bucket / 16 + 3;
                let width = 1 << (exponent - 4);
                (1 << exponent) + (bucket as u64 % 16) * width + (width - 1)
            }
        }
    }
}

/// The smallest cost of two clock readings, in ns.
fn clock_cost() -> u64 {
    let cost = |_| {
        let before = now();
        now() - before
    };
    (0..1000).map(cost).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_at_most_a_sixteenth_wide() {
        for value in (0..10_000).chain([1 << 40, u64::from(u32::MAX), 1_234_567_890]) {
            let last = Histogram::last_of(Histogram::bucket(value));
            assert!(last >= value && last - value <= value / 16, "{value} is counted as {last}");
        }
    }

    #[test]
    fn quantiles_follow_the_counts() {
        let mut histogram = Histogram::new();
        (0..1000).for_each(|_| histogram.count(10));
        histogram.count(5000);
        assert_eq!(histogram.quantile(0.5), 10);
        assert_eq!(histogram.quantile(0.9999), 5000);
    }
}
