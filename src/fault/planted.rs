//! Errors that tests plant.
//!
//! `PLANTED_FAULT=panic@startEvent` plants a panic at the place of that name, `panic@startEvent:10`
//! at every tenth visit of it. Instead of a `panic`, a thread can `end` there, stand still
//! (`stall`), become `slow`, `hoard` all the memory there is, `allocate` once, or make a system
//! `call`. With `PLANTED_AFTER=FILE` nothing happens before there is such a file. Several faults
//! are separated by commas. `libc@heap` leaves us without a heap of our own, so that whoever counts
//! libc's allocations counts ours. Builds without debug assertions have no such places.

#[cfg(debug_assertions)]
pub(super) use self::places::plant;
#[cfg(debug_assertions)]
pub(crate) use self::places::{at, is_planted};

#[cfg(debug_assertions)]
mod places {
    use std::hint::black_box;
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    struct Fault {
        kind: String,
        place: String,
        every: u64,
        after: Option<PathBuf>,
        visits: AtomicU64,
    }

    static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();

    /// Reads which faults are planted, if any.
    pub(in crate::fault) fn plant() {
        FAULTS.get_or_init(|| {
            let text = std::env::var("PLANTED_FAULT").unwrap_or_default();
            text.split(',').filter_map(Fault::parse).collect()
        });
    }

    /// A place where a fault may be planted.
    pub(crate) fn at(place: &str) {
        let Some(faults) = FAULTS.get() else { return };
        for fault in faults {
            if fault.place == place {
                fault.strike();
            }
        }
    }

    /// Whether this one is planted.
    pub(crate) fn is_planted(kind: &str, place: &str) -> bool {
        FAULTS.get().into_iter().flatten().any(|fault| fault.kind == kind && fault.place == place)
    }

    impl Fault {
        fn parse(text: &str) -> Option<Fault> {
            let (kind, place) = text.split_once('@')?;
            let (place, every) = place.split_once(':').unwrap_or((place, "1"));
            let every = every.parse().ok()?;
            let after = std::env::var_os("PLANTED_AFTER").map(PathBuf::from);
            let (kind, place) = (kind.to_owned(), place.to_owned());
            Some(Fault { kind, place, every, after, visits: AtomicU64::new(0) })
        }

        fn strike(&self) {
            if self.after.as_ref().is_some_and(|file| !file.exists()) {
                return;
            }
            if !(self.visits.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.every) {
                return;
            }
            match &*self.kind {
                "panic" => panic!("a planted fault"),
                // SAFETY: a thread of ours; what it had locked stays so, which is the fault.
                "end" => drop(unsafe { libc::syscall(libc::SYS_exit, 0) }),
                "slow" => std::thread::sleep(Duration::from_millis(300)),
                "stall" => loop {
                    std::thread::park();
                },
                "hoard" => loop {
                    std::mem::forget(black_box(Vec::<u8>::with_capacity(64 << 10)));
                },
                "allocate" => drop(black_box(Box::new(0_u64))),
                // SAFETY: takes nothing and changes nothing.
                "call" => drop(unsafe { libc::syscall(libc::SYS_getppid) }),
                _ => {}
            }
        }
    }
}

/// Nothing is planted in this build.
#[cfg(not(debug_assertions))]
pub(super) fn plant() {}

/// Nothing is planted in this build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) fn at(_: &str) {}

/// Nothing is planted in this build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) fn is_planted(_: &str, _: &str) -> bool {
    false
}
