//! CUPTI's own thread.

use std::ffi::{CString, c_char};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use observe::Machine;

use super::delivery::deliver;
use super::work::catch_up;
use super::{TRACER, Tracer, WORK, with};
use crate::buffers::Take;
use crate::names::domain;
use crate::options::State;
use crate::process::{self, lock};
use crate::{result, subscriber};

/// How often CUPTI's own thread has checked for things to do.
static ROUNDS: AtomicU64 = AtomicU64::new(0);
static STARTED: Once = Once::new();

/// Waits until CUPTI's own thread, if there is one, has checked once more for things to do.
pub(crate) fn wait_for_round() {
    // One check may be running.
    let round = ROUNDS.load(Ordering::SeqCst) + 2;
    while STARTED.is_completed() && ROUNDS.load(Ordering::SeqCst) < round {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts CUPTI's own thread, once there is a machine.
pub(super) fn start_worker() {
    let Some(machine) = process::attached() else { return };
    STARTED.call_once(|| {
        let blocked = block_signals();
        let started = std::thread::Builder::new().name("emulated cupti".to_owned()).spawn(move || work(machine));
        unblock_signals(&blocked);
        if let Err(error) = started {
            eprintln!("emulated CUPTI: failed to start its thread: {error}");
        }
    });
}

/// Blocks all signals of this thread, so that a new thread inherits that; returns the previous
/// mask.
fn block_signals() -> libc::sigset_t {
    let mut all = std::mem::MaybeUninit::uninit();
    let mut before = std::mem::MaybeUninit::uninit();
    // SAFETY: the first call initialises the set, the second reads it and writes the other.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn unblock_signals(before: &libc::sigset_t) {
    // SAFETY: a set that `block_signals` got from the system.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

/// The main loop of CUPTI's thread.
fn work(machine: &'static Machine) {
    /// How long it lets work accumulate.
    const REST: Duration = Duration::from_millis(2);
    /// How long it sleeps if there is nothing to do.
    const SLEEP: Duration = Duration::from_millis(500);
    let mut states = process::options().states.iter();
    let mut next_state = states.next();
    let mut rival = process::options().rival.as_ref();
    loop {
        wait_for_work(if next_state.is_some() || rival.is_some() { REST } else { SLEEP });
        if let Some((name, _)) = rival.take_if(|(_, after)| *after <= process::elapsed()) {
            compete(name);
        }
        while let Some((_, state)) = next_state.filter(|(after, _)| *after <= process::elapsed()) {
            report(*state);
            next_state = states.next();
        }
        ROUNDS.fetch_add(1, Ordering::SeqCst);
        catch_up(machine, false);
        deliver(Take::Full);
        std::thread::sleep(REST);
    }
}

/// Waits until work was done, or a full buffer may be returned, or `longest` has passed.
fn wait_for_work(longest: Duration) {
    let guard = lock(&TRACER);
    let idle = |tracer: &mut Option<Tracer>| {
        tracer.as_ref().is_none_or(|tracer| tracer.work.done.is_empty() && !tracer.has_full())
    };
    drop(WORK.wait_timeout_while(guard, longest, idle));
}

/// Another tool tries to subscribe. If it succeeds, it stays subscribed.
fn compete(name: &str) {
    let own_name = CString::new(name).unwrap_or_default();
    match subscriber::subscribe(None, std::ptr::null_mut(), own_name, false, false) {
        Ok(_) => eprintln!("emulated CUPTI: {name} subscribed"),
        Err(_) => {
            eprintln!("emulated CUPTI: {name} asked to subscribe: {}", result::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
        }
    }
}

/// `CUpti_StateData`.
#[repr(C)]
pub(crate) struct StateData {
    pub(crate) result: u32,
    pub(crate) message: *const c_char,
}

/// Reports one of CUPTI's own failures. After a fatal one everything is unsubscribed and disabled.
fn report(state: State) {
    let data = StateData { result: result::UNKNOWN, message: c"as EMULATED_CUPTI asks for".as_ptr() };
    subscriber::call_back(domain::STATE, state as u32, &data);
    if state == State::Fatal {
        subscriber::detach();
        with(|tracer| {
            tracer.clients.retain(|client, _| *client == subscriber::PROCESS);
            for share in tracer.clients.values_mut() {
                share.enabled = 0;
                share.functions.clear();
            }
            tracer.publish();
        });
    }
}
