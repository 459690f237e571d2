//! Files that are cut off, compressed, or not traces.

use super::*;

/// A trace from a recording of a few calls; one of its packets is compressed.
fn sample() -> Vec<u8> {
    let mut tracks = draw(&format!("{CAST} | 1 0 start a GroupApi | 2 0 stop a"));
    let mut bytes = tracks.take();
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    tracks.finish(HostNs(9), &Figures::default());
    std::io::Write::write_all(&mut encoder, &tracks.take()).unwrap();
    bytes.extend(compressed(&encoder.finish().unwrap()));
    bytes
}

fn compressed(stream: &[u8]) -> Vec<u8> {
    let packet = TracePacket { compressed_packets: Some(stream.to_vec()), ..TracePacket::default() };
    reader::Trace { packet: vec![packet] }.encode_to_vec()
}

#[test]
fn compressed_packets_are_read_like_others() {
    let picture = Picture::read(&sample());
    assert_eq!(picture.events.last().unwrap().name, "recording ended");
}

#[test]
fn a_cut_file_is_read_up_to_its_last_whole_packet() {
    let bytes = sample();
    let mut packets = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let end = (at + 1..=bytes.len()).find(|&end| reader::whole_length(&bytes[..end]) == end).unwrap();
        packets.push(at..end);
        at = end;
    }
    assert_eq!(reader::whole_length(&bytes), bytes.len());
    for packet in packets {
        for cut in packet.clone().skip(1) {
            let extent = reader::decoded(&bytes[..cut], |_| {}).unwrap();
            let unfinished = (cut - packet.start) as u64;
            assert_eq!(extent, reader::Extent { whole: packet.start as u64, unfinished });
            assert_eq!(reader::whole_length(&bytes[..cut]), packet.start);
        }
        reader::decoded(&bytes[..packet.end], |_| {}).unwrap();
    }
}

#[test]
fn files_that_are_not_traces_are_refused() {
    for bytes in [&b"this is not a trace"[..], b"\x1f\x8b\x08", b"\0"] {
        assert!(matches!(reader::decoded(bytes, |_| {}), Err(Error::NotATrace)));
        assert_eq!(reader::whole_length(bytes), 0);
    }
    assert!(reader::decoded(&[], |_| {}).is_ok());
}

#[test]
fn a_fault_names_its_position_and_keeps_the_packets_before_it() {
    let good = sample();
    let at = good.len() as u64;
    let count = |bytes: &[u8]| {
        let mut count = 0;
        let result = reader::decoded(bytes, |_| count += 1);
        (count, result)
    };
    let (whole, result) = count(&good);
    result.unwrap();
    for fault in [
        b"no packet".to_vec(),
        // A packet that is no message, a stream that is none, and one that ends inside a packet.
        b"\x0a\x02\x0b\x0b".to_vec(),
        compressed(b"no zlib stream"),
        compressed(&deflated(b"\x0a\x20\x08")),
    ] {
        let (kept, result) = count(&[&good[..], &fault].concat());
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Packet { at: fault, .. } if fault == at), "{error}");
        assert_eq!(kept, whole);
    }
    assert_eq!(reader::whole_length(&[&good[..], b"no packet"].concat()), good.len());
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn no_bytes_make_the_reader_panic() {
    let good = sample();
    let mut random = Random::new(3);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        let _ = reader::decoded(&bytes, |_| {});
        assert!(reader::whole_length(&bytes) <= bytes.len());
    }
}
