//! Communicators as workloads use them: each with its own stream, memory, and a list of its
//! operations.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Piece, Told, Workload};
use crate::cuda::{Buffer, Exec, Gpu, Stream};
use crate::nccl::{Communicator, ELEMENT, Nccl, Operation, UniqueId};

/// How long ranks wait for each other.
const PATIENCE: Duration = Duration::from_secs(120);

/// This process's GPU and NCCL, and the communicators it has joined.
#[derive(Debug)]
pub(super) struct World<'w> {
    pub(super) workload: &'w Workload,
    pub(super) gpu: Gpu,
    pub(super) nccl: Nccl,
    joined: u32,
    serial: usize,
}

/// A communicator, its stream, and its operations.
#[derive(Debug)]
pub(super) struct Team {
    pub(super) comm: Communicator,
    pub(super) stream: Stream,
    from: Buffer,
    to: Buffer,
    room: usize,
    asked: Vec<Vec<Piece>>,
    captured: Option<Vec<Vec<Piece>>>,
    /// Whether its kernels have the order of its list.
    pub(super) is_known: bool,
}

/// Captured work.
#[derive(Debug)]
pub(super) struct Captured {
    exec: Exec,
    graph: crate::cuda::Graph,
    work: Vec<Vec<Piece>>,
}

impl<'w> World<'w> {
    pub(super) fn open(workload: &'w Workload) -> Result<World<'w>, String> {
        let path = workload.nccl.as_deref().ok_or("no libnccl was named")?;
        let gpu = workload.open_gpu()?;
        Ok(World { workload, gpu, nccl: Nccl::load(path)?, joined: 0, serial: 0 })
    }

    /// Joins the next communicator, which contains all ranks.
    pub(super) fn join(&mut self) -> Result<Team, String> {
        let Workload { rank, ranks, meeting, bytes, .. } = self.workload;
        let file = meeting.join(format!("id-{}", self.joined));
        self.joined += 1;
        if *rank == 0 {
            publish(&file, self.nccl.unique_id()?)?;
        }
        let comm = self.nccl.join(find(&file)?, *rank, *ranks)?;
        // Room for the part of each rank, and for the elements that make each operation different.
        let room = (bytes + 64 * 1024) * *ranks as usize;
        let (stream, from, to) = (self.gpu.stream()?, self.gpu.memory(room)?, self.gpu.memory(room)?);
        Ok(Team { comm, stream, from, to, room, asked: Vec::new(), captured: None, is_known: true })
    }

    /// Calls operations of about this many elements, as a group if there are several. No two have
    /// the same size.
    pub(super) fn ask(&mut self, team: &mut Team, operations: &[Operation], count: usize) -> Result<(), String> {
        let mut group = Vec::new();
        let nccl = &self.nccl;
        let serial = &mut self.serial;
        let mut each = || {
            for &operation in operations {
                // A receive has the size of its send.
                *serial += usize::from(!matches!(operation, Operation::Recv(_)));
                let count = count + *serial % 4096;
                if count * ELEMENT * team.comm.ranks as usize > team.room {
                    return Err(format!("{count} elements do not fit the buffers"));
                }
                // SAFETY: there is room, as checked above; all work on the memory is on this
                // stream. The content does not matter.
                unsafe { nccl.ask(operation, [team.from.at(0), team.to.at(0)], count, &team.comm, team.stream)? };
                group.push(Piece { function: operation.name().into(), bytes: (count * ELEMENT) as u64 });
            }
            Ok(())
        };
        if operations.len() == 1 {
            each()?;
        } else {
            nccl.group(each)?;
        }
        // With one rank a collective is at most a copy.
        let alone = team.comm.ranks == 1;
        group.retain(|piece| !alone || matches!(piece.function.as_str(), "Send" | "Recv"));
        if !group.is_empty() {
            team.captured.as_mut().unwrap_or(&mut team.asked).push(group);
        }
        Ok(())
    }

    /// Sends to the next rank and receives from the one before: with one rank, to itself.
    pub(super) fn ring(&mut self, team: &mut Team, count: usize) -> Result<(), String> {
        let (rank, ranks) = (team.comm.rank, team.comm.ranks);
        let pair = [Operation::Send((rank + 1) % ranks), Operation::Recv((rank + ranks - 1) % ranks)];
        self.ask(team, &pair, count)
    }

    /// Captures the calls that `body` makes.
    pub(super) fn capture(
        &mut self,
        team: &mut Team,
        body: impl FnOnce(&mut World<'w>, &mut Team) -> Result<(), String>,
    ) -> Result<Captured, String> {
        team.stream.begin_capture()?;
        team.captured = Some(Vec::new());
        body(self, team)?;
        let work = team.captured.take().unwrap_or_default();
        let graph = team.stream.end_capture()?;
        Ok(Captured { exec: graph.instantiate()?, graph, work })
    }

    /// Leaves all communicators, and reports their operations.
    pub(super) fn close(&self, teams: Vec<Team>, told: &mut Told) -> Result<(), String> {
        for team in &teams {
            team.stream.synchronize()?;
        }
        for team in teams {
            told.asked.push(team.list());
            self.nccl.leave(team.comm)?;
        }
        Ok(())
    }
}

impl Team {
    /// Its operations, if the order is known.
    pub(super) fn list(&self) -> Vec<Vec<Piece>> {
        if self.is_known { self.asked.clone() } else { Vec::new() }
    }

    /// Replays captured work.
    pub(super) fn replay(&mut self, captured: &Captured) -> Result<(), String> {
        captured.exec.launch(self.stream)?;
        self.asked.extend(captured.work.iter().cloned());
        Ok(())
    }
}

impl Captured {
    pub(super) fn destroy(self) -> Result<(), String> {
        self.exec.destroy()?;
        self.graph.destroy()
    }
}

/// Writes a unique id where the other ranks look for it.
fn publish(file: &Path, id: UniqueId) -> Result<(), String> {
    let unfinished = file.with_extension("unfinished");
    let written = std::fs::write(&unfinished, id.0).and_then(|()| std::fs::rename(&unfinished, file));
    written.map_err(|error| format!("failed to write {}: {error}", file.display()))
}

/// Waits for the unique id that rank 0 writes.
fn find(file: &Path) -> Result<UniqueId, String> {
    let began = Instant::now();
    loop {
        if let Ok(bytes) = std::fs::read(file) {
            return bytes.try_into().map(UniqueId).map_err(|_| format!("{} is not a unique id", file.display()));
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("rank 0 did not write {}", file.display()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
