//! Processes that end abnormally, and processes that fork.

use std::time::Duration;

use super::world::{Team, World};
use super::{Name, Told};
use crate::nccl::Operation;

/// Events older than this are in the file when a process is killed: CUPTI is flushed once a
/// second, and kernels wait for NCCL's events about them.
const SETTLED: Duration = Duration::from_millis(2_500);

/// Works a little, reports that, and ends. Nothing is destroyed.
pub(super) fn run(world: &mut World<'_>, mut team: Team, told: &mut Told) -> Result<(), String> {
    work(world, &mut team)?;
    if world.workload.name == Name::ForkAfter {
        let child = fork()?;
        work(world, &mut team)?;
        wait(child, told);
    }
    team.stream.synchronize()?;
    if world.workload.name == Name::ExitHung {
        const FOR_EVER: u64 = 3_600_000_000_000;
        world.gpu.spin(world.gpu.stream()?, FOR_EVER)?;
    }
    if matches!(world.workload.name, Name::ExitAtOnce | Name::ExitAbort | Name::ExitTerminated) {
        std::thread::sleep(SETTLED);
    }
    told.asked.push(team.list());
    super::memory(told);
    world.workload.tell(told)?;
    match world.workload.name {
        // SAFETY: it takes a number and does not return.
        Name::ExitAtOnce => unsafe { libc::_exit(0) },
        Name::ExitAbort => std::process::abort(),
        Name::ExitPanic => panic!("this is what was asked for"),
        Name::ExitTerminated => {
            // SAFETY: a signal to this process, whose default action is to end it.
            unsafe { libc::raise(libc::SIGTERM) };
            Err("SIGTERM did not end the process".into())
        }
        _ => Ok(()),
    }
}

fn work(world: &mut World<'_>, team: &mut Team) -> Result<(), String> {
    for _ in 0..world.workload.repeats {
        if team.comm.ranks > 1 {
            world.ask(team, &[Operation::AllReduce], 1024)?;
        }
        world.ring(team, 1024)?;
    }
    Ok(())
}

/// Forks a child that does nothing and leaves at once, as a data loader's worker might; returns
/// its process id.
pub(super) fn fork() -> Result<i32, String> {
    // SAFETY: the child only calls `usleep` and `_exit`, which a forked child of a process with
    // threads may call.
    match unsafe { libc::fork() } {
        -1 => Err(format!("failed to fork: {}", std::io::Error::last_os_error())),
        0 => {
            // SAFETY: as above.
            unsafe {
                libc::usleep(50_000);
                libc::_exit(0)
            }
        }
        child => Ok(child),
    }
}

/// Waits for the child; reports how it ended, where 0 is success.
pub(super) fn wait(child: i32, told: &mut Told) {
    let mut status = 0;
    // SAFETY: a child of this process, and a writable number.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    told.figures.insert("child".into(), if waited == child { f64::from(status) } else { -1.0 });
}
