//! How far times may be off according to the trace, and how the GPU's timer drifts against the
//! host's clock.

use super::bench::{Answer, Bench, Plan, Question};
use crate::trace::{Channel, Seen, Verdict};

const TOPIC: &str = "clocks";
/// How long after a moment errors are collected, in ns.
const STRETCH_NS: i64 = 500_000_000;

pub(super) fn run(bench: &mut Bench) {
    // A job has a minute, including its start and end.
    let usual: &[f64] = if bench.is_short() { &[1.0, 10.0] } else { &[1.0, 10.0, 40.0] };
    let moments = if bench.suite.clock_seconds.is_empty() { usual.to_vec() } else { bench.suite.clock_seconds.clone() };
    let longest = moments.iter().copied().fold(0.0, f64::max);
    let plan = Plan::new("clocks", "clocks", bench.several()).full().with("seconds", longest + 1.0);
    let plan = plan.set("NCCLSCOPE_CAPTURE", "1");
    let mut watched: Option<Result<Vec<Seen>, Answer>> = None;
    let mut watch = |bench: &mut Bench| -> Result<Vec<Seen>, Answer> {
        watched
            .get_or_insert_with(|| {
                bench.needs_cupti()?;
                let (_, seen) = bench.watch(&plan)?;
                match seen.iter().any(|seen| !seen.channels.is_empty()) {
                    true => Ok(seen),
                    false => Err(Answer::not_run("no channel has GPU times")),
                }
            })
            .clone()
    };
    for seconds in moments {
        let text = format!("how far off may channel times be after {seconds} s, and kernel times");
        bench.ask(&Question::new(TOPIC, &format!("bound-{seconds}s"), &text), &["clocks"], |bench| {
            Ok(bound(&watch(bench)?, seconds))
        });
    }
    let question = Question::new(TOPIC, "drift", "how the GPU's timer drifts against the host's clock");
    bench.ask(&question, &["clocks"], |bench| Ok(drift(&watch(bench)?)));
}

/// The errors stated this long after the first channel.
fn bound(seen: &[Seen], seconds: f64) -> Answer {
    let (mut channels, mut kernels) = (Vec::new(), Vec::new());
    for seen in seen {
        let Some(first) = seen.channels.first() else { continue };
        let from = first.begin + (seconds * 1e9) as i64;
        let within = |begin: i64| (from..from + STRETCH_NS).contains(&begin);
        channels.extend(seen.channels.iter().filter(|it| within(it.begin)).map(|it| f64::from(it.error) / 1000.0));
        kernels.extend(seen.nccl().filter(|it| within(it.span.0)).map(|it| f64::from(it.error) / 1000.0));
    }
    if channels.is_empty() || kernels.is_empty() {
        return Answer::not_ok("there is nothing at that time");
    }
    let [(channel, worst_channel), (kernel, worst_kernel)] = [&mut channels, &mut kernels].map(|errors| {
        errors.sort_by(f64::total_cmp);
        (errors[errors.len() / 2], errors[errors.len() - 1])
    });
    Answer::ok(format!(
        "channels {channel:.2} us at the median, {worst_channel:.2} us at most; kernels {kernel:.2} us, {worst_kernel:.2} us"
    ))
    .value("channel_us", channel)
    .value("kernel_us", kernel)
}

fn drift(seen: &[Seen]) -> Answer {
    let drifts: Vec<f64> = seen.iter().filter_map(|seen| slope(&seen.channels)).collect();
    let contradictions = Verdict::of(seen, &[]).timer_contradictions;
    let faults =
        (contradictions > 0).then(|| format!("{contradictions} kernels contradict what the others say of the timer"));
    let each: Vec<String> = drifts.iter().map(|drift| format!("{drift:+.2} ppm")).collect();
    match drifts.is_empty() {
        true => Answer::not_ok("there are not enough channels"),
        false => Answer::by(format!("{} (one figure a rank)", each.join(", ")), faults.as_slice()).value("ppm", drifts),
    }
}

/// By how much more the timer advanced than the trace's clock, in parts per million, from a
/// straight line through all channels.
fn slope(channels: &[Channel]) -> Option<f64> {
    let first = channels.first()?;
    let point = |channel: &Channel| {
        let elapsed = (channel.begin - first.begin) as f64;
        (elapsed, channel.stamp.wrapping_sub(first.stamp) as i64 as f64 - elapsed)
    };
    let points: Vec<(f64, f64)> = channels.iter().map(point).collect();
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
    let (up, down) = points.iter().fold((0.0, 0.0), |(up, down), point| {
        (up + (point.0 - x) * (point.1 - y), down + (point.0 - x) * (point.0 - x))
    });
    (down > 0.0).then(|| up / down * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_that_gains_twelve_microseconds_a_second_drifts_by_twelve_ppm() {
        let channel = |second: i64| Channel {
            begin: 5_000 + second * 1_000_000_000,
            stamp: (77 + second * 1_000_012_000) as u64,
            error: 1,
        };
        let drift = slope(&(0..10).map(channel).collect::<Vec<_>>()).unwrap();
        assert!((drift - 12.0).abs() < 1e-6, "{drift}");
        assert_eq!(slope(&[]), None);
        assert_eq!(slope(&[channel(0)]), None);
    }
}
