//! What a thread is doing when it is sampled, and what it waited for since it was last.

use super::time::HostNs;

/// For how long a progress thread waited for a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuWait {
    /// The system's id.
    pub tid: i32,
    /// From when until now.
    pub since: HostNs,
    /// For how much of that the thread was ready to run and had no processor, in ns.
    pub ns: u64,
}

/// What a thread waits in, or whether it runs. The numbers are those of captures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Doing {
    /// The system does not say.
    #[default]
    Unknown = 0,
    /// It runs, or is about to.
    Running = 1,
    /// It waits for descriptors: `poll`, `epoll_wait`, `select`.
    Poll = 2,
    /// It waits for another thread: `futex`.
    Futex = 3,
    /// It waits for a message: `recvmsg`, `recvfrom`.
    Receive = 4,
    /// It waits for a connection: `accept`.
    Accept = 5,
    /// It sleeps for a time: `nanosleep`.
    Sleep = 6,
    /// It reads or writes.
    File = 7,
    /// It is in another system call.
    Call = 8,
}

impl Doing {
    const ALL: [Doing; 9] = [
        Doing::Unknown,
        Doing::Running,
        Doing::Poll,
        Doing::Futex,
        Doing::Receive,
        Doing::Accept,
        Doing::Sleep,
        Doing::File,
        Doing::Call,
    ];

    /// The state with this number; unknown for a number that none has.
    #[must_use]
    pub fn of(number: u64) -> Doing {
        usize::try_from(number).ok().and_then(|number| Doing::ALL.get(number)).copied().unwrap_or_default()
    }

    /// As the trace has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Doing::Unknown => "unknown",
            Doing::Running => "running",
            Doing::Poll => "in poll",
            Doing::Futex => "in futex",
            Doing::Receive => "in recvmsg",
            Doing::Accept => "in accept",
            Doing::Sleep => "in nanosleep",
            Doing::File => "in read or write",
            Doing::Call => "in another system call",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_its_number() {
        for (number, doing) in Doing::ALL.into_iter().enumerate() {
            assert_eq!((doing as usize, Doing::of(number as u64)), (number, doing));
        }
        assert_eq!(Doing::of(u64::MAX), Doing::Unknown);
    }
}
