//! The calls into NCCL that make up one rank's part of an operation.

use super::super::nccl::{Caller, Nccl, Passed, c_number};
use super::communicators::Communicator;
use crate::library::api::Api;
use crate::scenario::program::{Operation, What};
use elements::words::Reduction;

/// NCCL's own function for an operation, if it exists and is wanted.
pub(super) fn native(api: &Api, operation: &Operation) -> Option<&'static str> {
    match operation.what {
        What::AllReduce(_) => Some("AllReduce"),
        What::AllGather => Some("AllGather"),
        What::ReduceScatter(_) => Some("ReduceScatter"),
        What::Broadcast { .. } => Some("Broadcast"),
        What::Reduce { .. } => Some("Reduce"),
        What::Send { .. } | What::Ring => None,
        What::AllToAll => api.all_to_all.filter(|_| operation.native).map(|_| "AlltoAll"),
        What::Gather { .. } => api.gather.filter(|_| operation.native).map(|_| "Gather"),
        What::Scatter { .. } => api.scatter.filter(|_| operation.native).map(|_| "Scatter"),
    }
}

/// One rank's part of an operation. The memory that is passed is as large as the operation needs,
/// and is held by the work on the stream until that is done.
pub(super) struct Part<'r> {
    pub(super) nccl: &'r Nccl,
    pub(super) caller: Caller<'r>,
    pub(super) communicator: &'r Communicator,
    pub(super) operation: &'r Operation,
    /// What all its calls have in common.
    pub(super) passed: Passed,
}

impl Part<'_> {
    pub(super) fn call(&self) -> Result<(), String> {
        match native(self.nccl.library.api(), self.operation) {
            Some(function) => self.whole(function),
            None => self.by_peers(),
        }
    }

    /// Calls NCCL's own function.
    fn whole(&self, function: &str) -> Result<(), String> {
        let api = self.nccl.library.api();
        let Passed { count, send, receive, stream, .. } = self.passed;
        let (comm, datatype) = (self.communicator.handle.0, self.operation.datatype.number());
        let op = Reduction::number;
        let root = match self.operation.what {
            What::Broadcast { root } | What::Reduce { root, .. } | What::Gather { root } | What::Scatter { root } => {
                c_number(root)
            }
            _ => -1,
        };
        // SAFETY: the communicator exists, and the memory is as `Part` says.
        self.nccl.call(self.caller, function, Passed { root, ..self.passed }, || unsafe {
            match self.operation.what {
                What::AllReduce(reduction) => {
                    (api.all_reduce)(send, receive, count, datatype, op(reduction), comm, stream)
                }
                What::AllGather => (api.all_gather)(send, receive, count, datatype, comm, stream),
                What::ReduceScatter(reduction) => {
                    (api.reduce_scatter)(send, receive, count, datatype, op(reduction), comm, stream)
                }
                What::Broadcast { .. } => (api.broadcast)(send, receive, count, datatype, root, comm, stream),
                What::Reduce { reduction, .. } => {
                    (api.reduce)(send, receive, count, datatype, op(reduction), root, comm, stream)
                }
                What::AllToAll => {
                    let function = api.all_to_all.expect("it was found");
                    function(send, receive, count, datatype, comm, stream)
                }
                What::Gather { .. } => {
                    let function = api.gather.expect("it was found");
                    function(send, receive, count, datatype, root, comm, stream)
                }
                What::Scatter { .. } => {
                    let function = api.scatter.expect("it was found");
                    function(send, receive, count, datatype, root, comm, stream)
                }
                What::Send { .. } | What::Ring => unreachable!("they have no function of their own"),
            }
        })
    }

    /// Sends to peers and receives from them.
    fn by_peers(&self) -> Result<(), String> {
        let Communicator { rank: own, size, .. } = *self.communicator;
        match self.operation.what {
            What::Send { from, to } => {
                if own == from {
                    self.send(to, 0)?;
                } else if own == to {
                    self.receive(from, 0)?;
                }
            }
            What::Ring => {
                self.send((own + 1) % size, 0)?;
                self.receive((own + size - 1) % size, 0)?;
            }
            What::AllToAll => {
                for peer in 0..size {
                    self.send(peer, peer)?;
                    self.receive(peer, peer)?;
                }
            }
            What::Gather { root } => {
                self.send(root, 0)?;
                if own == root {
                    (0..size).try_for_each(|peer| self.receive(peer, peer))?;
                }
            }
            What::Scatter { root } => {
                if own == root {
                    (0..size).try_for_each(|peer| self.send(peer, peer))?;
                }
                self.receive(root, 0)?;
            }
            other => unreachable!("{} is a function of NCCL", other.word()),
        }
        Ok(())
    }

    /// Sends from the element `at` times `count` of the buffer.
    fn send(&self, peer: u32, at: u32) -> Result<(), String> {
        let Passed { count, stream, .. } = self.passed;
        // SAFETY: the buffer has that many elements before and `count` from there on.
        let send = unsafe { self.passed.send.byte_add(self.bytes(at)) };
        let (peer, comm) = (c_number(peer), self.communicator.handle.0);
        let passed = Passed { receive: std::ptr::null_mut(), send, root: peer, ..self.passed };
        // SAFETY: the communicator exists, and the memory is as `Part` says.
        self.nccl.call(self.caller, "Send", passed, || unsafe {
            (self.nccl.library.api().send)(send, count, self.operation.datatype.number(), peer, comm, stream)
        })
    }

    /// Receives to the element `at` times `count` of the buffer.
    fn receive(&self, peer: u32, at: u32) -> Result<(), String> {
        let Passed { count, stream, .. } = self.passed;
        // SAFETY: as for sending.
        let receive = unsafe { self.passed.receive.byte_add(self.bytes(at)) };
        let (peer, comm) = (c_number(peer), self.communicator.handle.0);
        let passed = Passed { receive, send: std::ptr::null_mut(), root: peer, ..self.passed };
        // SAFETY: as for sending.
        self.nccl.call(self.caller, "Recv", passed, || unsafe {
            (self.nccl.library.api().recv)(receive, count, self.operation.datatype.number(), peer, comm, stream)
        })
    }

    /// The bytes of `times` times `count` elements.
    fn bytes(&self, times: u32) -> usize {
        times as usize * self.passed.count * self.operation.datatype.size()
    }
}
