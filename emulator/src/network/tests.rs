use std::ffi::{c_int, c_void};
use std::ptr;

use super::plugin::{
    Handle, REMOTE_ERROR, SUCCESS, accept, close_connection, close_listen, connect, irecv, isend, listen, test,
};
use super::{Link, Stall, Traffic};

/// A connected pair of a sender and a receiver.
fn pair() -> (*mut c_void, *mut c_void) {
    let mut handle = Handle { port: 0, host: 0 };
    let mut listener = ptr::null_mut();
    let mut sender = ptr::null_mut();
    let mut receiver: *mut c_void = ptr::null_mut();
    // SAFETY: all places are ours; each object is closed once, by the caller or here.
    unsafe {
        assert_eq!(listen(0, &raw mut handle, &raw mut listener), SUCCESS);
        assert_eq!(connect(0, ptr::null_mut(), &raw const handle, &raw mut sender, ptr::null_mut()), SUCCESS);
        while receiver.is_null() {
            assert_eq!(accept(listener, &raw mut receiver, ptr::null_mut()), SUCCESS);
        }
        close_listen(listener);
    }
    (sender, receiver)
}

/// Tests both requests until both are done; returns the sizes that were moved.
fn finish(requests: [*mut c_void; 2]) -> [c_int; 2] {
    let mut sizes = [-1; 2];
    let mut open = [true; 2];
    while open != [false; 2] {
        for index in 0..2 {
            if open[index] {
                let mut done = 0;
                // SAFETY: the request is not done yet.
                assert_eq!(unsafe { test(requests[index], &raw mut done, &raw mut sizes[index]) }, SUCCESS);
                open[index] = done == 0;
            }
        }
    }
    sizes
}

#[test]
fn messages_arrive_in_order_whole_and_short_and_empty() {
    let (sender, receiver) = pair();
    for size in [5, 3_000_000, 0, 1] {
        let mut data: Vec<u8> = (0..size).map(|index| (index * 7) as u8).collect();
        let mut room = vec![0; size + 9];
        let (mut sending, mut receiving) = (ptr::null_mut(), ptr::null_mut());
        let null = ptr::null_mut();
        // SAFETY: the buffers outlive the requests, which are finished below.
        unsafe {
            isend(sender, data.as_mut_ptr(), size, 0, null, null, &raw mut sending);
            let (mut place, mut capacity, mut tag) = (room.as_mut_ptr(), room.len(), 0);
            let places = (&raw mut place, &raw mut capacity, &raw mut tag);
            let none = ptr::null_mut();
            irecv(receiver, 1, places.0, places.1, places.2, none, none, &raw mut receiving);
        }
        assert_eq!(finish([sending, receiving]), [size as c_int; 2]);
        assert_eq!(room[..size], data);
    }
    // SAFETY: no requests are pending.
    unsafe {
        close_connection(sender);
        close_connection(receiver);
    }
}

#[test]
fn a_message_that_is_too_long_is_an_error_and_not_a_crash() {
    let (sender, receiver) = pair();
    let (mut sending, mut receiving) = (ptr::null_mut(), ptr::null_mut());
    let mut data = [1_u8; 64];
    let mut room = [0_u8; 8];
    let null = ptr::null_mut();
    let mut done = 0;
    // SAFETY: the buffers live to the end of the test, and no request is touched after that.
    let status = unsafe {
        isend(sender, data.as_mut_ptr(), 64, 0, null, null, &raw mut sending);
        let (mut place, mut capacity, mut tag) = (room.as_mut_ptr(), 8, 0);
        let none = ptr::null_mut();
        irecv(receiver, 1, &raw mut place, &raw mut capacity, &raw mut tag, none, none, &raw mut receiving);
        while done == 0 {
            test(sending, &raw mut done, ptr::null_mut());
        }
        let mut status = SUCCESS;
        for _ in 0..1000 {
            status = test(receiving, &raw mut done, ptr::null_mut());
            if status != SUCCESS {
                break;
            }
            std::thread::yield_now();
        }
        status
    };
    assert_eq!(status, REMOTE_ERROR);
}

#[test]
fn a_link_takes_its_time() {
    let link = Link { bandwidth: 2.0, latency_ns: 30, stall: Some(Stall::Before(2, 1_000)) };
    let mut traffic = Traffic::default();
    assert_eq!(traffic.arrival(link, 100, 5_000), 5_080);
    // The second waits while the first is on the link.
    assert_eq!(traffic.arrival(link, 100, 5_010), 5_130);
    // The third meets the stall.
    assert_eq!(traffic.arrival(link, 100, 9_000), 10_080);
    // Another stands still for the first 100 of each 1000 ns.
    let link = Link { stall: Some(Stall::Every(1_000, 100)), ..link };
    let mut traffic = Traffic::default();
    assert_eq!(traffic.arrival(link, 100, 5_010), 5_180);
    assert_eq!(traffic.arrival(link, 100, 5_700), 5_780);
    assert_eq!(traffic.arrival(link, 100, 6_099), 6_180);
    assert_eq!(Traffic::default().arrival(Link::default(), 100, 5_000), 5_000);
}
