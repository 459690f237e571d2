//! Communicators, and those that ended recently.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::model::event::CommInit;
use crate::model::ids::Handle;
use crate::model::timeline::Comm;

/// How many communicators are remembered after their end, for events that arrive late.
const ENDED: usize = 256;

/// Communicators by their context.
#[derive(Debug, Default)]
pub(super) struct Comms {
    known: FxHashMap<Handle, Comm>,
    count: u32,
    /// Those that were finalized, oldest first.
    ended: VecDeque<Handle>,
    /// The newest profiler interface that one of them uses.
    pub(super) interface: u8,
}

impl Comms {
    pub(super) fn get(&self, context: &Handle) -> Option<&Comm> {
        self.known.get(context)
    }

    /// A communicator was created.
    pub(super) fn add(&mut self, init: &CommInit, name: Option<Box<str>>) -> &Comm {
        self.count += 1;
        self.interface = self.interface.max(init.interface);
        let comm = Comm {
            context: init.context,
            number: self.count,
            hash: init.hash,
            name,
            rank: init.rank,
            ranks: init.ranks,
            nodes: init.nodes,
            interface: init.interface,
            version: init.version,
            device: init.device_plus_one.checked_sub(1),
            timer: init.timer,
        };
        self.known.entry(init.context).insert_entry(comm).into_mut()
    }

    /// Its names as known now. Returns the communicator if its hash changed.
    pub(super) fn identify(&mut self, context: Handle, hash: u64, name: Option<Box<str>>) -> Option<&Comm> {
        let comm = self.known.get_mut(&context).filter(|comm| comm.hash != hash)?;
        comm.hash = hash;
        // The name that the program gave it at its creation stays.
        comm.name = comm.name.take().or(name);
        Some(comm)
    }

    /// A communicator has ended. Returns the one that ended longest ago, which is forgotten.
    pub(super) fn end(&mut self, context: Handle) -> Option<Handle> {
        self.ended.push_back(context);
        let oldest = if self.ended.len() > ENDED { self.ended.pop_front() } else { None }?;
        self.known.remove(&oldest);
        Some(oldest)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}
