//! Communicators, and for a while those that have ended.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::model::event::CommInit;
use crate::model::ids::Handle;
use crate::model::timeline::Comm;

/// Communicators remembered after their end, for events that come late.
const ENDED: usize = 256;

/// Communicators by their context.
#[derive(Debug, Default)]
pub(super) struct Comms {
    known: FxHashMap<Handle, Comm>,
    count: u32,
    /// Those that were finalized, oldest first.
    ended: VecDeque<Handle>,
    /// The newest interface that one of them uses.
    pub(super) interface: u8,
}

impl Comms {
    pub(super) fn get(&self, context: &Handle) -> Option<&Comm> {
        self.known.get(context)
    }

    /// One was made.
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
        };
        self.known.entry(init.context).insert_entry(comm).into_mut()
    }

    /// What names it is known by now. The communicator, if its hash is another.
    pub(super) fn identify(&mut self, context: Handle, hash: u64, name: Option<Box<str>>) -> Option<&Comm> {
        let comm = self.known.get_mut(&context).filter(|comm| comm.hash != hash)?;
        comm.hash = hash;
        // The program's name for it, given at its birth, stays.
        comm.name = comm.name.take().or(name);
        Some(comm)
    }

    /// One has ended: the answer is the one that ended longest ago, which is forgotten.
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
