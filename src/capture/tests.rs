//! Everything written is read back unchanged.

use std::ffi::c_char;
use std::sync::Arc;

use cupti_sys::records::{End, Table, Walker};

use super::dictionary::Dictionary;
use super::read::{Chunks, Decoder, Entry, Error};
use super::write::{Encoder, cut_short, head};
use super::{FORMAT, MAGIC, OLDEST, REMEMBERED, REMEMBERED_BYTES};
use crate::clock::align::Pair;
use crate::cupti::clock::{Reading, Stamp};
use crate::cupti::decode::{Asked, Outside};
use crate::cupti::intake::{Source, Standing};
use crate::model::doing::{CpuWait, Doing};
use crate::model::event::{MAX_WORDS, header};
use crate::model::ids::{ProcessTag, RingId};
use crate::model::selection::Selection;
use crate::model::time::{HostNs, Ticks};
use crate::pipeline::input::{Begin, Ending, Input, Level, Share};
use crate::trace::tracks::{ProcessInfo, Stages};
use crate::trace::writer::Clocks;

/// Pseudo-random numbers, the same for the same seed.
struct Random(u64);

impl Random {
    /// A number of up to `most` bits; small numbers are common.
    fn bits(&mut self, most: u32) -> u64 {
        let mut next = || {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            self.0 >> 32
        };
        let (value, width) = (next() << 32 | next(), next() as u32 % (most + 1));
        if width == 0 { 0 } else { value >> (64 - width) }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.bits(63) % bound
    }
}

fn begin() -> Begin {
    Begin {
        tag: ProcessTag::from_random(77),
        clocks: Clocks { boottime: HostNs(5_000), monotonic: 4_000, realtime: 1_795_200_300_000_000_000 },
        process: ProcessInfo {
            pid: -4711,
            name: "rank 3 · node17".into(),
            labels: vec!["rank from RANK".into(), String::new()],
            rank: Some(3),
            world_size: None,
        },
        stages: Some(Stages::Beside),
        complaints: vec!["NCCLSCOPE_PRESET=ful".into()],
        attributes: vec![("ncclscope.job".into(), "4711".into()), ("ncclscope.preset".into(), "full".into())],
        first_words: "ncclscope; preset full".into(),
        capture: Some("node17.capture".into()),
        first: Pair { ticks: Ticks(1 << 40), host: HostNs(5_100), error_ns: 20 },
        selection: Selection { every: 10, comms: vec!["tp*".into()], ..Selection::default() },
    }
}

/// The form in which entries are compared.
fn shown(entry: &Entry<'_>) -> String {
    format!("{entry:?}")
}

/// Writes and reads inputs of every kind with many different values.
fn check_inputs(seed: u64) {
    let mut random = Random(seed);
    let mut encoder = Encoder::new();
    encoder.begin(&begin(), seed.is_multiple_of(2));
    let mut expected = vec![shown(&Entry::Begin(Box::new(begin()), seed.is_multiple_of(2)))];
    let (mut ticks, mut host) = (1_u64 << 40, 5_100_u64);
    for _ in 0..500 {
        let mut words = [0_u64; MAX_WORDS];
        let texts: Vec<String> = (0..3).map(|_| "wörd ".repeat(random.below(9) as usize)).collect();
        let shares: Vec<_> = (0..random.below(4))
            .map(|_| Share {
                tid: random.bits(32) as i32,
                name: texts[0].as_str().into(),
                percent: random.bits(64) as i64,
                doing: Doing::of(random.below(9)),
                processor: (random.below(2) == 0).then(|| random.bits(31) as u32),
            })
            .collect();
        let cpu_waits: Vec<_> = (0..random.below(4))
            .map(|_| CpuWait { tid: random.bits(32) as i32, since: HostNs(random.bits(62)), ns: random.bits(64) })
            .collect();
        let input = match random.below(17) {
            0 => Input::Note { time: HostNs(random.bits(62)), name: &texts[0], text: &texts[1] },
            1 => Input::Kernels(Source {
                version: random.bits(32) as u32,
                asked: Asked { calls: random.below(2) == 0, markers: random.below(2) == 0 },
                failures: random.bits(64),
            }),
            2 => Input::ExternalIds,
            3 => {
                let passed = random.bits(40);
                ticks += passed * 2 + random.below(100);
                host += passed;
                // Now and then one of the clocks goes back.
                match random.below(8) {
                    0 => ticks /= 2,
                    1 => host /= 2,
                    _ => {}
                }
                let pair = Pair { ticks: Ticks(ticks), host: HostNs(host), error_ns: random.bits(32) as u32 };
                Input::Pass { pair, window_ns: random.below(50_000_000) }
            }
            4 => {
                let at = random.bits(62);
                Input::Reading(Reading {
                    boot_before: HostNs(at),
                    wall_before: random.bits(62),
                    cupti: (random.below(2) == 0).then(|| Stamp(random.bits(64))),
                    wall_after: random.bits(62),
                    boot_after: HostNs(at + random.below(100)),
                })
            }
            5 => Input::Standing(Standing {
                dropped: random.bits(56),
                discarded_buffers: random.bits(56),
                discarded_bytes: random.bits(56),
                refused_requests: random.bits(56),
                foreign_buffers: random.bits(56),
                failed_flushes: random.bits(56),
                flush_failure: random.bits(32) as u32,
                overdue: random.bits(56),
                failures: random.bits(56),
                fatal: random.bits(56),
                last_failure: random.bits(32) as u32,
            }),
            6 => Input::Due { all: random.below(2) == 0 },
            7 => Input::Draw,
            8 => Input::Advance,
            9 => Input::Shares(&shares),
            10 => Input::Dropped(random.bits(64)),
            11 => {
                let level = [Level::All, Level::NoSteps, Level::Hangs, Level::Ends][random.below(4) as usize];
                Input::Level { level, why: &texts[2] }
            }
            12 => Input::Flush,
            14 => Input::CpuWaits(&cpu_waits),
            13 => {
                Input::End(Ending { dropped: random.bits(56), panics: random.bits(56), lost_launches: random.bits(56) })
            }
            _ => {
                let length = 2 + random.below(MAX_WORDS as u64 - 1) as usize;
                words.iter_mut().for_each(|word| *word = random.bits(64));
                words[0] = header(random.bits(8) as u8, length, random.bits(16) as u16, random.bits(32) as i32);
                Input::Record { ring: RingId(random.bits(32) as u32), words: &words[..length] }
            }
        };
        encoder.input(&input);
        expected.push(shown(&Entry::Input(input)));
    }
    let entries = encoder.take();
    let (mut decoder, mut rest, mut seen) = (Decoder::new(FORMAT), &entries[..], Vec::new());
    while let Some(entry) = decoder.next(&mut rest).unwrap() {
        seen.push(shown(&entry));
    }
    assert_eq!(seen, expected, "seed {seed}");
}

#[test]
fn every_input_is_read_back_unchanged() {
    (0..40).for_each(check_inputs);
}

#[test]
fn a_mark_says_why_the_capture_ends() {
    let entries = cut_short("the disk is full");
    let (mut decoder, mut rest) = (Decoder::new(FORMAT), &entries[..]);
    assert!(matches!(decoder.next(&mut rest), Ok(Some(Entry::CutShort("the disk is full")))));
    assert!(matches!(decoder.next(&mut rest), Ok(None)));
}

/// A process whose answers change, as when the memory of a name is used again.
struct Moody(u64);

impl Outside for Moody {
    fn text(&mut self, address: *const c_char) -> Arc<str> {
        self.0 += 1;
        // From every third question on, an address has a different answer.
        format!("kernel at {} as of {}", address.addr(), self.0 / 3).into()
    }

    fn function(&mut self, domain: u32, id: u32) -> Arc<str> {
        format!("function {domain}/{id}").into()
    }

    fn thread(&mut self, tid: i32) -> Arc<str> {
        if tid < 0 { "".into() } else { format!("thread {tid}").into() }
    }
}

/// Walks in steps of different lengths, and can end with an error.
struct Uneven {
    step: usize,
    ends_well: bool,
}

impl Walker for Uneven {
    fn next(&mut self, _: &Table, buffer: &[u8], at: Option<usize>) -> Result<usize, End> {
        self.step = self.step % 24 + 8;
        let next = at.map_or(0, |at| at + self.step);
        match next + 8 <= buffer.len() {
            true => Ok(next),
            false if self.ends_well => Err(End::Done),
            false => Err(End::Truncated { at: at.unwrap_or(0) }),
        }
    }
}

/// Everything that a decoder asks about a buffer, with the answers.
fn ask(buffer: &[u8], mut walker: impl Walker, outside: &mut impl Outside) -> Vec<String> {
    let (table, mut at, mut seen) = (Table::new(28), None, Vec::new());
    loop {
        match walker.next(&table, buffer, at) {
            Ok(next) => at = Some(next),
            Err(end) => {
                seen.push((end == End::Done).to_string());
                return seen;
            }
        }
        let byte = usize::from(buffer[at.unwrap_or(0)]);
        seen.push(format!("{at:?} {byte}"));
        seen.push(outside.text(std::ptr::without_provenance(byte % 5)).to_string());
        seen.push(outside.function(byte as u32 % 2, byte as u32 % 7).to_string());
        seen.push(outside.thread(byte as i32 % 4 - 1).to_string());
    }
}

#[test]
fn a_replayed_buffer_has_the_same_walk_and_answers() {
    let mut random = Random(5);
    let (mut encoder, mut process, mut expected) = (Encoder::new(), Moody(0), Vec::new());
    let buffers: Vec<Vec<u8>> =
        (0..60).map(|_| (0..random.below(600)).map(|_| random.below(256) as u8).collect()).collect();
    for (number, bytes) in buffers.iter().enumerate() {
        let walker = Uneven { step: number, ends_well: number % 5 > 0 };
        encoder.buffer(HostNs(number as u64), bytes, walker, &mut process, |walker, outside| {
            expected.push(ask(bytes, walker, outside));
        });
    }
    let entries = encoder.take();
    assert!(entries.len() < buffers.iter().map(Vec::len).sum::<usize>() * 4, "what was told is not told again");
    let (mut decoder, mut rest, mut dictionary) = (Decoder::new(FORMAT), &entries[..], Dictionary::default());
    for (number, expected) in expected.iter().enumerate() {
        let Ok(Some(Entry::Buffer { now, bytes, steps, answers })) = decoder.next(&mut rest) else {
            panic!("buffer {number}");
        };
        assert_eq!((now, bytes), (HostNs(number as u64), &buffers[number][..]));
        assert_eq!(ask(bytes, steps.again(), &mut dictionary.answering(answers)), *expected, "buffer {number}");
    }
}

#[test]
fn what_the_writer_forgot_is_recorded_again() {
    /// Names of so many bytes.
    struct Wordy(usize);
    impl Outside for Wordy {
        fn text(&mut self, address: *const c_char) -> Arc<str> {
            format!("{:0width$}", address.addr(), width = self.0).into()
        }
        fn function(&mut self, _: u32, _: u32) -> Arc<str> {
            "".into()
        }
        fn thread(&mut self, _: i32) -> Arc<str> {
            "".into()
        }
    }
    for (width, rounds) in [(16 << 10, 5_000), (8, 20_000)] {
        let (mut encoder, mut decoder, mut dictionary) = (Encoder::new(), Decoder::new(FORMAT), Dictionary::default());
        let mut told = 0;
        for round in 0..rounds {
            // Some addresses are asked about repeatedly, some once.
            let address = std::ptr::without_provenance(if round % 2 == 0 { round % 10 } else { 10 + round });
            let walker = Uneven { step: 0, ends_well: true };
            let mut answered: Arc<str> = "".into();
            encoder.buffer(HostNs(0), &[], walker, &mut Wordy(width), |_, outside| answered = outside.text(address));
            let entries = encoder.take();
            let mut rest = &entries[..];
            let Ok(Some(Entry::Buffer { answers, .. })) = decoder.next(&mut rest) else { panic!("round {round}") };
            told += answers.len();
            assert_eq!(dictionary.answering(answers).text(address), answered, "round {round}");
        }
        // Each of the five again whenever everything was forgotten, and nothing else.
        let forgotten = told / REMEMBERED.min(REMEMBERED_BYTES / width);
        assert!(forgotten > 0 && (1..=5).contains(&(told - rounds / 2 - 5 * forgotten)), "{told}, {forgotten}");
    }
}

#[test]
fn another_version_may_ask_in_another_order() {
    let (mut encoder, name) = (Encoder::new(), std::ptr::without_provenance(77));
    struct Real;
    impl Outside for Real {
        fn text(&mut self, _: *const c_char) -> Arc<str> {
            "kernel".into()
        }
        fn function(&mut self, _: u32, id: u32) -> Arc<str> {
            format!("function {id}").into()
        }
        fn thread(&mut self, _: i32) -> Arc<str> {
            "".into()
        }
    }
    encoder.buffer(HostNs(0), &[], Uneven { step: 0, ends_well: true }, &mut Real, |_, outside| {
        outside.function(1, 7);
        outside.text(name);
    });
    let (entries, mut decoder, mut dictionary) = (encoder.take(), Decoder::new(FORMAT), Dictionary::default());
    let mut rest = &entries[..];
    let Ok(Some(Entry::Buffer { answers, .. })) = decoder.next(&mut rest) else { panic!() };
    let mut answering = dictionary.answering(answers);
    assert_eq!(&*answering.text(name), "kernel");
    assert_eq!(&*answering.function(1, 7), "function 7");
    assert_eq!(&*answering.function(1, 8), "(unknown)", "never asked before");
}

#[test]
fn a_file_that_is_not_a_capture_is_named_for_what_it_is() {
    let whole = head();
    assert!(Chunks::open(&whole[..]).is_ok());
    assert!(matches!(Chunks::open(&b""[..]), Err(Error::Empty)));
    assert!(matches!(Chunks::open(&b"\x0a\x05trace of ours"[..]), Err(Error::Foreign)));
    assert!(matches!(Chunks::open(&b"x"[..]), Err(Error::Foreign)));
    for length in 1..whole.len() {
        assert!(matches!(Chunks::open(&whole[..length]), Err(Error::Cut { at: 0 })), "{length}");
    }
    let mut mangled = whole.clone();
    mangled.retain(|byte| *byte != b'\r');
    assert!(matches!(Chunks::open(&mangled[..]), Err(Error::Mangled)));
    for (format, is_newer) in [(OLDEST - 1, false), (FORMAT + 1, true), (u32::MAX, true)] {
        let mut other = whole.clone();
        other[MAGIC.len()..][..4].copy_from_slice(&format.to_le_bytes());
        let error = Chunks::open(&other[..]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("format {format}")) && text.contains(env!("CARGO_PKG_VERSION")), "{text}");
        assert_eq!(matches!(error, Error::Newer { .. }), is_newer);
    }
}
