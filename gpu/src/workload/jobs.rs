//! The workloads that call NCCL.

use std::time::{Duration, Instant};

use super::profiler::Profiler;
use super::world::{Team, World};
use super::{Name, Told, Workload, cost, exits};
use crate::nccl::{ELEMENT, Nccl, Operation};

/// The collectives of every release.
const COLLECTIVES: [Operation; 5] =
    [Operation::AllReduce, Operation::AllGather, Operation::ReduceScatter, Operation::Broadcast, Operation::Reduce];

/// The collectives that came with 2.28.
const NEWER: [Operation; 3] = [Operation::AllToAll, Operation::Gather, Operation::Scatter];

/// The size of a small operation, in elements.
const SMALL: usize = 1024;

/// Runs a workload that needs NCCL.
pub(super) fn run(workload: &Workload, told: &mut Told) -> Result<(), String> {
    let mut world = World::open(workload)?;
    if workload.name == Name::AttachLate {
        // A kernel is running when the profiler takes CUPTI. Whether it is recorded does not
        // matter.
        world.gpu.spin(world.gpu.stream()?, 2_000_000_000)?;
    }
    let mut team = world.join()?;
    let mut teams = Vec::new();
    match workload.name {
        Name::Groups => groups(&mut world, &mut team)?,
        Name::Communicators => {
            let mut other = world.join()?;
            communicators(&mut world, &mut team, &mut other)?;
            teams.push(other);
        }
        Name::Graphs => graphs(&mut world, &mut team)?,
        Name::Overlap => overlap(&mut world, &mut team, told)?,
        Name::Mixed => {
            // Graphs get a communicator of their own: up to 2.30 NCCL confuses the channels of a
            // communicator that replays graphs.
            let (mut other, mut captured) = (world.join()?, world.join()?);
            groups(&mut world, &mut team)?;
            communicators(&mut world, &mut team, &mut other)?;
            graphs(&mut world, &mut captured)?;
            teams.extend([other, captured]);
        }
        Name::Clocks => clocks(&mut world, &mut team)?,
        Name::AttachLate => groups(&mut world, &mut team)?,
        Name::Lend => teams.extend(lend(&mut world, &mut team, told)?),
        Name::SecondNccl => groups(&mut world, &mut team)?,
        Name::Cost => cost::run(&mut world, &mut team, told)?,
        Name::ExitReturn
        | Name::ExitHung
        | Name::ExitAtOnce
        | Name::ExitPanic
        | Name::ExitAbort
        | Name::ExitTerminated
        | Name::ForkAfter => {
            return exits::run(&mut world, team, told);
        }
        Name::ForkBefore => groups(&mut world, &mut team)?,
        _ => {
            collectives(&mut world, &mut team)?;
            let mut other = world.join()?;
            newer(&mut world, &mut other)?;
            teams.push(other);
        }
    }
    teams.insert(0, team);
    world.close(teams, told)?;
    if workload.name == Name::SecondNccl {
        second(&mut world, told)?;
    }
    Ok(())
}

/// Kernels of the suite's own, without NCCL.
pub(super) fn kernels(workload: &Workload, told: &mut Told) -> Result<(), String> {
    let gpu = workload.open_gpu()?;
    let stream = gpu.stream()?;
    for _ in 0..workload.repeats {
        gpu.spin(stream, 20_000)?;
        told.spins += 1;
    }
    gpu.synchronize()
}

/// Sizes in elements, from one up to the requested maximum, each eight times the previous one.
fn sizes(workload: &Workload) -> Vec<usize> {
    let most = workload.bytes / ELEMENT;
    std::iter::successors(Some(1), |count| Some(count * 8)).take_while(|count| *count <= most).collect()
}

fn collectives(world: &mut World<'_>, team: &mut Team) -> Result<(), String> {
    for count in sizes(world.workload) {
        for operation in COLLECTIVES {
            world.ask(team, &[operation], count)?;
        }
        world.ring(team, count)?;
    }
    Ok(())
}

/// Some releases do these as one operation, others as sends and receives, so their order is not
/// reported.
fn newer(world: &mut World<'_>, team: &mut Team) -> Result<(), String> {
    team.is_known = false;
    for count in sizes(world.workload) {
        for operation in NEWER {
            if world.nccl.has(operation) {
                world.ask(team, &[operation], count)?;
            }
        }
    }
    Ok(())
}

/// Waits for a short, varying time, never twice the same, where the ways of matching are compared.
/// The times of kernels tell them apart only if they are irregular, as in a program that computes.
fn pause(workload: &Workload, turn: u32) {
    if workload.name == Name::Mixed {
        std::thread::sleep(Duration::from_micros(u64::from(turn + 1) * 7_919 % 3_000));
    }
}

fn groups(world: &mut World<'_>, team: &mut Team) -> Result<(), String> {
    for turn in 0..world.workload.repeats {
        world.ask(team, &[Operation::AllReduce; 3], SMALL)?;
        pause(world.workload, turn);
        world.ask(team, &[Operation::AllGather, Operation::ReduceScatter], SMALL)?;
        world.ring(team, SMALL)?;
    }
    Ok(())
}

fn communicators(world: &mut World<'_>, team: &mut Team, other: &mut Team) -> Result<(), String> {
    for turn in 0..world.workload.repeats {
        pause(world.workload, turn);
        world.ask(team, &[Operation::AllReduce], SMALL)?;
        world.ask(other, &[Operation::AllGather], SMALL)?;
        world.ring(team, SMALL)?;
        world.ring(other, 16 * SMALL)?;
    }
    Ok(())
}

fn graphs(world: &mut World<'_>, team: &mut Team) -> Result<(), String> {
    // Connections are made at the first operation of each kind, which is better not captured.
    world.ask(team, &[Operation::AllReduce], SMALL)?;
    world.ask(team, &[Operation::AllGather], SMALL)?;
    world.ring(team, SMALL)?;
    team.stream.synchronize()?;
    let captured = world.capture(team, |world, team| {
        world.ask(team, &[Operation::AllReduce], SMALL)?;
        world.ask(team, &[Operation::AllGather], SMALL)?;
        world.ring(team, SMALL)
    })?;
    for turn in 0..world.workload.repeats {
        pause(world.workload, turn);
        team.replay(&captured)?;
        world.ask(team, &[Operation::AllReduce], SMALL)?;
        world.ring(team, SMALL)?;
        team.replay(&captured)?;
    }
    team.stream.synchronize()?;
    captured.destroy()
}

/// A training step: each operation waits for the computation before it, and the next computation
/// runs beside it.
fn overlap(world: &mut World<'_>, team: &mut Team, told: &mut Told) -> Result<(), String> {
    const COMPUTE_NS: u64 = 300_000;
    let compute = world.gpu.stream()?;
    let count = world.workload.bytes / ELEMENT / 2;
    for _ in 0..world.workload.repeats {
        world.gpu.spin(compute, COMPUTE_NS)?;
        told.spins += 1;
        team.stream.wait_for(compute, world.gpu.event()?)?;
        if team.comm.ranks == 1 {
            world.ring(team, count)?;
        } else {
            world.ask(team, &[Operation::AllReduce], count)?;
        }
    }
    compute.synchronize()
}

/// Lends CUPTI to nobody, and takes it back; returns the communicators used without it and after
/// it.
fn lend(world: &mut World<'_>, team: &mut Team, told: &mut Told) -> Result<[Team; 2], String> {
    groups(world, team)?;
    team.stream.synchronize()?;
    let profiler = Profiler::find()?;
    told.figures.insert("release".into(), profiler.call(c"ncclscope_release")?.into());
    let (mut unseen, mut seen) = (world.join()?, world.join()?);
    // None of its kernels are recorded.
    unseen.is_known = false;
    groups(world, &mut unseen)?;
    unseen.stream.synchronize()?;
    told.figures.insert("acquire".into(), profiler.call(c"ncclscope_acquire")?.into());
    groups(world, &mut seen)?;
    Ok([unseen, seen])
}

/// Works with a second libnccl beside the first, and leaves that communicator.
fn second(world: &mut World<'_>, told: &mut Told) -> Result<(), String> {
    let copy = world.workload.meeting.join(format!("libnccl-{}.so", world.workload.rank));
    let original = world.workload.nccl.as_deref().ok_or("no libnccl was named")?;
    std::fs::copy(original, &copy).map_err(|error| format!("failed to copy {}: {error}", original.display()))?;
    let first = std::mem::replace(&mut world.nccl, Nccl::load_beside(&copy)?);
    // It has some hundred MiB, and is mapped by now.
    let _ = std::fs::remove_file(&copy);
    let mut other = world.join()?;
    groups(world, &mut other)?;
    world.close(vec![other], told)?;
    world.nccl = first;
    Ok(())
}

fn clocks(world: &mut World<'_>, team: &mut Team) -> Result<(), String> {
    const PAUSE: Duration = Duration::from_millis(10);
    let began = Instant::now();
    // The same number on every rank, whatever its clock says.
    let times = (world.workload.seconds / PAUSE.as_secs_f64()).ceil() as u32;
    for time in 0..times {
        if team.comm.ranks == 1 {
            world.ring(team, SMALL)?;
        } else {
            world.ask(team, &[Operation::AllReduce], SMALL)?;
        }
        team.stream.synchronize()?;
        std::thread::sleep((PAUSE * time).saturating_sub(began.elapsed()));
    }
    Ok(())
}
