//! Several subscribers, as the headers of 13.3 to 13.5 describe them.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use emulated_cupti::layout::kind;

use crate::alone::{alone, dies};
use crate::calls::{Params, subscribe_v2};
use crate::cupti;
use crate::host::{self, run};
use crate::library::{Cupti, Handle};

type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize, *mut c_void);
type Complete = unsafe extern "C" fn(*mut u8, usize, usize, *mut c_void);

/// Bytes that each of two subscribers got back.
static BYTES: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

unsafe extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, most: *mut usize, _: *mut c_void) {
    // SAFETY: places provided by CUPTI.
    unsafe {
        buffer.write(Box::leak(vec![0_u64; 8 << 10].into_boxed_slice()).as_mut_ptr().cast());
        size.write(64 << 10);
        most.write(0);
    }
}

unsafe extern "C" fn complete<const WHO: usize>(_: *mut u8, _: usize, valid: usize, _: *mut c_void) {
    BYTES[WHO].fetch_add(valid, Ordering::SeqCst);
}

/// Subscribes under this name. Returns CUPTI's answer, the handle, and the first subscriber's name.
fn subscribe(cupti: Cupti, name: &CStr, allow: u8) -> (u32, Handle, String) {
    let mut old_name = [0 as c_char; 64];
    let mut params = Params {
        size: 40,
        name: name.as_ptr(),
        old_name: old_name.as_mut_ptr(),
        old_name_size: 64,
        allow_multiple: allow,
    };
    let (code, handle) = subscribe_v2(cupti, &mut params);
    // SAFETY: CUPTI ended it with a zero, or nobody wrote to it.
    (code, handle, unsafe { CStr::from_ptr(old_name.as_ptr()) }.to_string_lossy().into_owned())
}

fn register(cupti: Cupti, handle: Handle, complete: Complete) {
    let code =
        cupti!(cupti, cuptiActivityRegisterCallbacks_v2(Handle = handle, Request = request, Complete = complete));
    assert_eq!(code, 0);
}

fn enable(cupti: Cupti, handle: Handle, kind: u32) -> u32 {
    cupti!(cupti, cuptiActivityEnable_v2(Handle = handle, u32 = kind, usize = 0))
}

#[test]
fn each_subscriber_has_its_own_buffers_kinds_and_losses() {
    alone("release=13.5,share", || {
        let cupti = Cupti::emulated();
        let (code, first, name) = subscribe(cupti, c"first", 1);
        assert_eq!((code, name.as_str()), (0, ""));
        let (code, second, name) = subscribe(cupti, c"second", 1);
        assert_eq!((code, name.as_str()), (0, "CUPTI for first"));
        assert_ne!(first, second);
        register(cupti, first, complete::<0>);
        register(cupti, second, complete::<1>);
        assert_eq!(enable(cupti, first, kind::CONCURRENT_KERNEL), 0);
        run(2);
        assert_eq!(enable(cupti, second, kind::CONCURRENT_KERNEL), 0);
        run(3);
        // One flush returns everybody's.
        cupti.flush(false);
        let [of_first, of_second] = [0, 1].map(|who| BYTES[who].load(Ordering::SeqCst));
        assert!(of_second > 0 && of_first * 3 == of_second * 5, "{of_first} and {of_second} bytes");
        for handle in [first, second] {
            let mut dropped = 7;
            let code = cupti!(
                cupti,
                cuptiActivityGetNumDroppedRecords_v2(Handle = handle, usize = 0, u32 = 0, *mut usize = &raw mut dropped)
            );
            assert_eq!((code, dropped), (0, 0));
        }
        assert_eq!(cupti!(cupti, cuptiUnsubscribe(Handle = second)), 0);
        assert_eq!(enable(cupti, second, kind::CONCURRENT_KERNEL), 1, "it is gone");
        run(1);
        cupti.flush(false);
        assert_eq!(BYTES[1].load(Ordering::SeqCst), of_second);
        assert_eq!(BYTES[0].load(Ordering::SeqCst), of_first / 5 * 6);
    });
}

#[test]
fn sharing_is_refused_unless_the_driver_allows_it() {
    alone("release=13.3", || assert_eq!(subscribe(Cupti::emulated(), c"first", 1).0, 39));
}

#[test]
fn subscribers_that_share_and_one_that_does_not_exclude_each_other() {
    alone("release=13.3,share", || {
        let cupti = Cupti::emulated();
        let (_, first, _) = subscribe(cupti, c"first", 1);
        let (code, _, name) = subscribe(cupti, c"second", 0);
        assert_eq!((code, name.as_str()), (39, "CUPTI for first"));
        assert_eq!(cupti!(cupti, cuptiUnsubscribe(Handle = first)), 0);
        let (code, ..) = subscribe(cupti, c"second", 0);
        assert_eq!(code, 0);
        let (code, _, name) = subscribe(cupti, c"first", 1);
        assert_eq!((code, name.as_str()), (39, "CUPTI for second"));
    });
}

#[test]
fn functions_of_the_whole_process_are_refused_beside_sharing() {
    alone("release=13.5,share", || {
        let cupti = Cupti::emulated();
        let (_, handle, _) = subscribe(cupti, c"first", 1);
        let mut word = 0_u64;
        assert_eq!(cupti!(cupti, cuptiGetTimestamp(*mut u64 = &raw mut word)), 14);
        assert_eq!(cupti!(cupti, cuptiActivityPushExternalCorrelationId(u32 = 5, u64 = 1)), 14);
        assert_eq!(cupti!(cupti, cuptiSetThreadIdType(u32 = 1)), 27);
        assert_eq!(cupti!(cupti, cuptiGetTimestamp_v2(Handle = handle, *mut u64 = &raw mut word)), 0);
        assert!(word > host::WALL_AHEAD);
    });
}

#[test]
fn a_mix_ends_the_process() {
    dies("release=13.5,share", "cuptiActivityEnable was called beside subscribers that share", || {
        let cupti = Cupti::emulated();
        subscribe(cupti, c"first", 1);
        cupti!(cupti, cuptiActivityEnable(u32 = 10));
    });
}

#[test]
fn a_buffer_read_for_a_subscriber_that_is_gone_ends_the_process() {
    dies("release=13.5,share", "a subscriber that is gone", || {
        let cupti = Cupti::emulated();
        let (_, handle, _) = subscribe(cupti, c"first", 1);
        assert_eq!(cupti!(cupti, cuptiUnsubscribe(Handle = handle)), 0);
        let (mut bytes, mut record) = ([0_u64; 4], 0_usize);
        cupti!(
            cupti,
            cuptiActivityGetNextRecord_v2(
                Handle = handle, *mut u64 = bytes.as_mut_ptr(), usize = 32, *mut usize = &raw mut record
            )
        );
    });
}
