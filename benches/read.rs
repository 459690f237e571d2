//! How much processor time reading a trace takes, on all threads together, compared with inflating
//! it on one, with the same library: no reader can avoid that.
//!
//! ```text
//! cargo bench --bench read [-- FILE]
//! ```
//!
//! Without a file, two million operations of one rank are written first, compressed as in a
//! recording.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flate2::bufread::ZlibDecoder;
use flate2::write::ZlibEncoder;
use ncclscope::cli;
use ncclscope::model::ids::ProcessTag;
use ncclscope::model::time::HostNs;
use ncclscope::trace::args::Args;
use ncclscope::trace::fields::nccl;
use ncclscope::trace::names::Fixed;
use ncclscope::trace::reader::{self, Error};
use ncclscope::trace::words::Category;
use ncclscope::trace::writer::{Clocks, Extra, Form, Place, Writer};
use prost::Message as _;

const OPERATIONS: u64 = 2_000_000;
/// How often each is measured; the quickest time counts.
const TIMES: usize = 5;
/// Bytes of packets that are compressed together.
const PACKET: usize = 192 << 10;

fn main() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let given = std::env::args().skip(1).find(|word| !word.starts_with("--")).map(PathBuf::from);
    let path = match given {
        Some(path) => path,
        None => written(folder.path())?,
    };
    let whole = |error: Error| io::Error::other(error.to_string());
    let (inflating, plain) = timed(|| inflated(&path))?;
    let (reading, slices) = timed(|| {
        let mut slices = 0_u64;
        let read = reader::read_file::<Error>(&path, |packet| {
            slices += u64::from(packet.event.is_some_and(|event| !event.name.is_empty()));
            Ok(())
        });
        read.map(|_| slices).map_err(whole)
    })?;
    let (decoding, _) = timed(|| {
        let mut bytes = 0_u64;
        let read = reader::read_file::<Error>(&path, |packet| {
            bytes = bytes.wrapping_add(packet.event.map_or(0, |event| event.nccl().bytes()));
            Ok(())
        });
        read.map(|_| bytes).map_err(whole)
    })?;
    let size = fs::metadata(&path)?.len();
    println!("{slices} slices and instants, {size} bytes, {plain} unpacked\n");
    println!("| | seconds | of inflating |\n| --- | --- | --- |");
    let row = |what: &str, seconds: f64| println!("| {what} | {seconds:.2} | {:.1} |", seconds / inflating);
    row("inflating, one core", inflating);
    row("every packet followed", reading);
    row("and all arguments of every event decoded", decoding);
    let [joined, archive, cut] = ["joined", "joined.tar", "cut"].map(|name| folder.path().join(name));
    let words = |words: &[&Path]| words.iter().map(|it| it.as_os_str().to_owned()).collect::<Vec<_>>();
    for (what, words) in [
        ("`ncclscope info`", words(&["ncclscope".as_ref(), "info".as_ref(), &path])),
        (
            "`ncclscope merge` into an archive",
            words(&["ncclscope".as_ref(), "merge".as_ref(), "-o".as_ref(), &archive, &path]),
        ),
        (
            "`ncclscope merge`, which reads it twice to mark causes",
            words(&["ncclscope".as_ref(), "merge".as_ref(), "-o".as_ref(), &joined, &path]),
        ),
        ("`ncclscope cut`", {
            let part = ["ncclscope", "cut", "--time", "1s..2s", "-o"].map(Path::new);
            words(&[&part[..], &[&*cut, &*path]].concat())
        }),
    ] {
        let (seconds, ()) = timed(|| {
            // An earlier run wrote it.
            for written in [&joined, &archive, &cut] {
                fs::remove_file(written).or_else(|error| match error.kind() {
                    io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })?;
            }
            cli::run(words.clone(), &mut io::sink()).map_err(|failure| io::Error::other(failure.to_string()))
        })?;
        row(what, seconds);
    }
    Ok(())
}

/// Also returns the least number of seconds of processor time that it took in this process.
fn timed<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Result<(f64, T)> {
    let mut once = || {
        let begin = processor_time();
        let made = work()?;
        Ok::<_, io::Error>((processor_time() - begin, made))
    };
    let mut quickest = once()?;
    for _ in 1..TIMES {
        let again = once()?;
        quickest = if again.0 < quickest.0 { again } else { quickest };
    }
    Ok(quickest)
}

fn processor_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable during the call.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(status, 0, "every Linux has this clock");
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Bytes of all packets, unpacked one after the other.
fn inflated(path: &Path) -> io::Result<u64> {
    let (bytes, mut inner, mut all) = (fs::read(path)?, Vec::new(), 0);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        // The frame of a packet, and the frame of its only field.
        let wrong = |error: prost::DecodeError| io::Error::other(error.to_string());
        prost::encoding::decode_key(&mut rest).map_err(wrong)?;
        let length = prost::encoding::decode_varint(&mut rest).map_err(wrong)? as usize;
        let (mut packet, after) = rest.split_at(length);
        rest = after;
        let (field, _) = prost::encoding::decode_key(&mut packet).map_err(wrong)?;
        if field == ncclscope::trace::fields::trace_packet::COMPRESSED_PACKETS {
            prost::encoding::decode_varint(&mut packet).map_err(wrong)?;
            inner.clear();
            all += io::Read::read_to_end(&mut ZlibDecoder::new(packet), &mut inner)? as u64;
        }
    }
    Ok(all)
}

/// A trace of operations on one track.
fn written(folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join("trace");
    let mut file = fs::File::create(&path)?;
    let clocks = Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 };
    let mut writer = Writer::new(ProcessTag::from_random(0x9e37_79b9_7f4a_7c15), clocks);
    let track = writer.track(Form::Plain { name: "track" }, Place::default()).expect("a track");
    let sequence = writer.sequence(track, HostNs(0));
    let (mut args, mut pending) = (Args::new(), Vec::new());
    for n in 0..OPERATIONS {
        let time = n * 20_000 + n.wrapping_mul(0x9e37_79b9) % 5_000;
        args.clear()
            .uint(nccl::SEQ, n)
            .uint(nccl::BYTES, 1 << 24)
            .uint(nccl::COUNT, 1 << 22)
            .uint(nccl::DATATYPE, 24)
            .uint(nccl::FUNCTION, 2)
            .uint(nccl::CHANNELS, 8);
        let extra = Extra { args: args.bytes(), correlation: Some(7 + n), flows: &[0x1234_5000_0000_0000 | n] };
        writer.begin(sequence, track, HostNs(time), Category::Operation, &Fixed("AllReduce 16 MiB f32"), &extra);
        writer.end(sequence, track, HostNs(time + 9_000), &Extra::default());
        if n % 1024 == 0 || n + 1 == OPERATIONS {
            pending.extend(writer.take());
        }
        if pending.len() >= PACKET || n + 1 == OPERATIONS {
            let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&pending)?;
            let packet =
                reader::TracePacket { compressed_packets: Some(encoder.finish()?), ..reader::TracePacket::default() };
            file.write_all(&reader::Trace { packet: vec![packet] }.encode_to_vec())?;
            pending.clear();
        }
    }
    Ok(path)
}
