//! Communicators: how ranks create and destroy them.

use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::nccl::{Handle, Passed, Window, c_number};
use super::{Rank, Ranks};
use crate::cuda::host::Stream;
use crate::kernel;
use crate::library::api::{CommHandle, Config, Status};
use crate::truth::{self, Line};

/// A rank's part of a communicator.
pub(super) struct Communicator {
    pub(super) handle: Handle,
    pub(super) stream: Stream,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) group: usize,
    pub(super) windows: Vec<Window>,
    /// Set when it was aborted, which makes its results wrong.
    pub(super) aborted: Arc<AtomicBool>,
}

impl Ranks<'_> {
    pub(super) fn create(&mut self, index: usize, active: &[usize]) -> Result<(), String> {
        let declared = &self.job.scenario.program.communicators[index];
        let name: &'static CStr = {
            // NCCL keeps the pointer for as long as it likes.
            let name = CString::new(declared.name.as_str()).expect("a name has letters, digits, `_` and `-`");
            Box::leak(name.into_boxed_c_str())
        };
        let takes_part = |rank: &Rank| match declared.split {
            None => declared.place(rank.world).is_some(),
            Some(split) => rank.communicators[split.parent].is_some(),
        };
        let taking_part: Vec<usize> =
            active.iter().copied().filter(|&active| takes_part(&self.ranks[active])).collect();
        let mut handles: Vec<CommHandle> = vec![std::ptr::null_mut(); taking_part.len()];
        let mut config = self.job.nccl.config(name);
        // From here on NCCL writes there, until the group ends.
        let (handles_at, config_at) = (handles.as_mut_ptr(), &raw mut config);

        if declared.split.is_none() {
            for &index_of_rank in &taking_part {
                let rank = &self.ranks[index_of_rank];
                let place = declared.place(rank.world).expect("it takes part");
                if place.rank == 0 {
                    let meeting = self.meeting_name(index, place.group, rank.made[index]);
                    self.job.meeting.publish(&meeting, &self.job.nccl.unique_id()?)?;
                }
            }
        }
        self.together(&taking_part, taking_part.len() > 1, |ranks| {
            for (number, &index_of_rank) in taking_part.iter().enumerate() {
                // SAFETY: within the vector, whose length bounds the loop.
                let handle_at = unsafe { handles_at.add(number) };
                ranks.make(index_of_rank, index, handle_at, config_at)?;
            }
            Ok(())
        })?;
        for (handle, index_of_rank) in handles.into_iter().zip(taking_part) {
            self.ranks[index_of_rank].made[index] += 1;
            if !handle.is_null() {
                self.adopt(index_of_rank, index, Handle(handle))?;
            }
        }
        Ok(())
    }

    /// Calls NCCL for one rank's part of a communicator. Handle and configuration live until the
    /// group has ended.
    fn make(
        &self,
        index: usize,
        communicator: usize,
        handle_at: *mut CommHandle,
        config_at: *mut Config,
    ) -> Result<(), String> {
        self.select(index)?;
        let rank = &self.ranks[index];
        let declared = &self.job.scenario.program.communicators[communicator];
        let (nccl, caller) = (&self.job.nccl, self.caller(index, communicator));
        if let Some(split) = declared.split {
            const NO_COLOR: i32 = -1;
            let parent = rank.communicators[split.parent].as_ref().expect("it takes part");
            let (color, key) = split.color_and_key(parent.rank);
            let color = color.map_or(NO_COLOR, c_number);
            nccl.call(caller, "CommSplit", Passed::nothing(), || {
                // SAFETY: the parent exists; handle and configuration live until the group has
                // ended.
                unsafe { (nccl.library.api().comm_split)(parent.handle.0, color, key, handle_at, config_at) }
            })
        } else {
            let place = declared.place(rank.world).expect("it takes part");
            let id = self.job.meeting.learn(&self.meeting_name(communicator, place.group, rank.made[communicator]))?;
            let (rank, size) = (c_number(place.rank), c_number(place.size()));
            nccl.call(caller, "CommInitRank", Passed::nothing(), || {
                // SAFETY: handle and configuration live until the group has ended.
                unsafe { (nccl.library.api().comm_init_rank_config)(handle_at, size, id, rank, config_at) }
            })
        }
    }

    fn meeting_name(&self, index: usize, group: usize, made: u64) -> String {
        format!("{}.{group}.{made}", self.job.scenario.program.communicators[index].name)
    }

    /// Registers a communicator that was just created.
    fn adopt(&mut self, index: usize, communicator: usize, handle: Handle) -> Result<(), String> {
        self.select(index)?;
        let declared = &self.job.scenario.program.communicators[communicator];
        let stream = Stream::create().map_err(|error| format!("failed to create a stream: {error}"))?;
        let rank = &mut self.ranks[index];
        let place = declared.place(rank.world).expect("NCCL made it for this rank");
        let (hash, device_comm) = self.job.nccl.insides(handle);
        self.job.nccl.truth.write(&Line::Communicator(truth::Communicator {
            name: declared.name.clone(),
            handle: handle.0 as u64,
            hash,
            device_comm,
            rank: place.rank,
            size: place.size(),
            world_rank: rank.world,
            device: rank.device,
        }));
        // A kernel identifies its peers by their ranks in the communicator.
        for link in self.job.scenario.links.iter().filter(|link| link.from == rank.world) {
            if let Some(peer) = place.ranks.iter().position(|&member| member == link.to) {
                self.job.pace.gpu(rank.device).add_link(kernel::Link {
                    communicator: device_comm,
                    peer: peer as u32,
                    bandwidth: link.bandwidth,
                    latency_ns: link.latency_ns,
                });
            }
        }
        rank.communicators[communicator] = Some(Communicator {
            handle,
            stream,
            rank: place.rank,
            size: place.size(),
            group: place.group,
            windows: Vec::new(),
            aborted: Arc::default(),
        });
        rank.order.retain(|&made| made != communicator);
        rank.order.push(communicator);
        Ok(())
    }

    pub(super) fn finalize(&mut self, index: usize, communicator: usize) -> Result<(), String> {
        self.end(index, communicator, "CommFinalize", self.job.nccl.library.api().comm_finalize)
    }

    /// Destroys a communicator on these ranks once its work is done on all of them.
    pub(super) fn destroy(&mut self, communicator: usize, active: &[usize]) -> Result<(), String> {
        self.each(communicator, active, |ranks, rank| ranks.settle(rank, communicator))?;
        self.each(communicator, active, |ranks, rank| ranks.close_windows(rank, communicator))?;
        self.each(communicator, active, |ranks, rank| {
            ranks.end(rank, communicator, "CommDestroy", ranks.job.nccl.library.api().comm_destroy)?;
            ranks.ranks[rank].communicators[communicator] = None;
            Ok(())
        })
    }

    pub(super) fn abort(&mut self, index: usize, communicator: usize) -> Result<(), String> {
        let rank = &mut self.ranks[index];
        if let Some(of_rank) = &rank.communicators[communicator] {
            of_rank.aborted.store(true, Ordering::SeqCst);
        }
        self.end(index, communicator, "CommAbort", self.job.nccl.library.api().comm_abort)?;
        let rank = &mut self.ranks[index];
        rank.graphs.retain(|_, graph| !graph.uses.contains(&communicator));
        // Its windows are gone with it.
        rank.memory.retain(|_, memory| memory.windows_of != Some(communicator));
        rank.communicators[communicator] = None;
        Ok(())
    }

    /// Waits for a communicator's operations and drops the graphs that use it, which NCCL would
    /// otherwise wait for.
    pub(super) fn settle(&mut self, index: usize, communicator: usize) -> Result<(), String> {
        let rank = &mut self.ranks[index];
        let settled = rank.compute.synchronize().and_then(|()| match &rank.communicators[communicator] {
            Some(of_rank) => of_rank.stream.synchronize(),
            None => Ok(()),
        });
        rank.graphs.retain(|_, graph| !graph.uses.contains(&communicator));
        settled.map_err(|error| format!("rank {}: failed to wait for its streams: {error}", rank.world))
    }

    /// Calls one of the functions that destroy a communicator.
    fn end(
        &self,
        index: usize,
        communicator: usize,
        function: &str,
        call: unsafe extern "C" fn(CommHandle) -> Status,
    ) -> Result<(), String> {
        let Some(of_rank) = &self.ranks[index].communicators[communicator] else { return Ok(()) };
        let caller = self.caller(index, communicator);
        // SAFETY: the communicator exists.
        self.job.nccl.call(caller, function, Passed::nothing(), || unsafe { call(of_rank.handle.0) })
    }
}
