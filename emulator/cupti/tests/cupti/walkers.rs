//! Our buffers, read by the real walkers record by record.
//!
//! `cuptiActivityGetNextRecord` of 12.0, 12.9, 13.0 and 13.1 works on a machine without a driver.
//! From 13.3 on it does not; for those only the headers' structures are checked (`headers.rs`).

use emulated_cupti::layout::{self, kind};
use emulated_cupti::names;
use emulated_cupti::release::Release;
use observe::{Activity, ActivityKind, Resource, ResourceKind};

use crate::alone::{real, release, run_with};
use crate::consumer::{self, Buffer};
use crate::cupti;
use crate::host;
use crate::library::Cupti;
use crate::nvtx;
use crate::wheels::WHEELS;

/// Runs a body for each release whose real library works here, with the emulated one and the real
/// one.
macro_rules! beside_the_real_one {
    ($body:expr) => {
        for wheel in WHEELS.iter().filter(|wheel| wheel.release < Release::V13_3) {
            let Some(unpacked) = wheel.unpacked() else { continue };
            let options = format!("release={}", wheel.release.name());
            let ended = run_with(&options, Some(&unpacked.library), || {
                $body(Cupti::emulated(), real().expect("the parent names it"), release());
            });
            ended.succeeded(&options);
        }
    };
}

/// Records of every kind that the release has, in buffers of different sizes.
fn make_buffers(cupti: Cupti, release: Release) -> Vec<Buffer> {
    consumer::supply(|supply| supply.size = 4 << 10);
    let kinds: Vec<u32> = kind::WRITTEN.into_iter().filter(|kind| layout::size(*kind, release).is_some()).collect();
    host::exists(host::resource(ResourceKind::ContextCreated));
    cupti.subscribe_deaf();
    cupti.register(consumer::request, consumer::complete);
    for kind in kinds {
        assert_eq!(cupti!(cupti, cuptiActivityEnableAndDump(u32 = kind)), 0);
    }
    nvtx::attach(cupti);
    nvtx::mark(c"here");
    assert_eq!(cupti!(cupti, cuptiActivityPushExternalCorrelationId(u32 = 5, u64 = 1)), 0);
    for round in 0..20 {
        let kinds = [ActivityKind::Kernel, ActivityKind::Memcpy, ActivityKind::Memset, ActivityKind::HostNode];
        for (turn, kind) in kinds.into_iter().cycle().take(1 + round % 7).enumerate() {
            host::call(c"cudaGraphLaunch", None, |correlation| {
                host::call_as(correlation, c"cuGraphLaunch", None, |_| ());
                let peer = (turn / 4) as u32 % 2;
                let node_id = (round % 2) as u64;
                let name = host::KERNEL.as_ptr();
                let work = Activity { correlation, peer, node_id, name, ..host::activity(kind, 13) };
                host::queue(&work);
                host::finish_here(work, host::now(), 1_000);
            });
        }
        let stream = host::stream(ResourceKind::StreamCreated, 0x5000 + round, 20 + round as u32);
        host::tell(&Resource { ..stream });
        if round % 5 == 0 {
            cupti.flush(false);
        }
    }
    cupti.flush(true);
    consumer::take()
}

#[test]
fn the_real_walker_finds_the_records_that_were_written() {
    beside_the_real_one!(|ours: Cupti, real: Cupti, release: Release| {
        assert_eq!(ours.version(), real.version());
        let buffers = make_buffers(ours, release);
        let mut kinds = std::collections::BTreeSet::new();
        let mut records = 0;
        for buffer in &buffers {
            let (bytes, start) = (buffer.bytes(), buffer.bytes().as_ptr() as usize);
            assert_eq!(start % 8, 0);
            let (offsets, end) = real.walk(bytes);
            assert_eq!((offsets.clone(), end), ours.walk(bytes));
            assert_eq!(end, 12);
            let ends = offsets.iter().skip(1).copied().chain([bytes.len()]);
            for (from, to) in offsets.iter().copied().zip(ends) {
                let kind = u32::from_ne_bytes(*bytes[from..].first_chunk().expect("a record has a kind"));
                assert_eq!(Some(to - from), layout::size(kind, release), "kind {kind}");
                kinds.insert(kind);
                records += 1;
            }
        }
        let expected = kind::WRITTEN.into_iter().filter(|kind| layout::size(*kind, release).is_some());
        // Kernels have one of the two kinds.
        let expected = expected.filter(|kind| *kind != kind::KERNEL).collect();
        assert_eq!(kinds, expected);
        assert!(buffers.len() > 5 && records > 100, "{records} records in {} buffers", buffers.len());
    });
}

#[test]
fn both_walkers_stop_at_the_same_place() {
    beside_the_real_one!(|ours: Cupti, real: Cupti, release: Release| {
        let buffers = make_buffers(ours, release);
        // Truncated anywhere.
        let bytes = buffers[0].bytes();
        for valid in 0..bytes.len().min(1_000) {
            assert_eq!(real.walk(&bytes[..valid]), ours.walk(&bytes[..valid]), "{valid} bytes");
        }
        // A record of unknown kind, in the middle and at the end.
        let (offsets, _) = ours.walk(bytes);
        for offset in [offsets[1], *offsets.last().expect("there are records")] {
            for kind in [0, release.kinds() + 4, 500, u32::MAX] {
                let mut broken: Vec<u64> = vec![0; bytes.len() / 8];
                // SAFETY: the words hold this many bytes, aligned as a buffer must be.
                let broken = unsafe { std::slice::from_raw_parts_mut(broken.as_mut_ptr().cast::<u8>(), bytes.len()) };
                broken.copy_from_slice(bytes);
                broken[offset..offset + 4].copy_from_slice(&kind.to_ne_bytes());
                assert_eq!(real.walk(broken), ours.walk(broken), "kind {kind} at {offset}");
            }
        }
    });
}

#[test]
fn results_and_functions_have_the_names_that_the_real_library_gives() {
    beside_the_real_one!(|ours: Cupti, real: Cupti, release: Release| {
        for code in (0..60).chain([500, 999, u32::MAX]) {
            assert_eq!(ours.result_string(code), real.result_string(code), "code {code}");
        }
        for (domain, _, id) in names::all(Release::V13_5).chain([(1, c"", 9_999), (3, c"", 1)]) {
            let name = |cupti: Cupti| {
                let mut name: *const std::ffi::c_char = std::ptr::null();
                let code = cupti!(
                    cupti,
                    cuptiGetCallbackName(u32 = domain, u32 = id, *mut *const std::ffi::c_char = &raw mut name)
                );
                // SAFETY: null or a constant of the library's.
                (code, (!name.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(name) }))
            };
            assert_eq!(name(ours), name(real), "function {id} of domain {domain} in {}", release.name());
        }
    });
}
