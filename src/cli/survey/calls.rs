//! Which collectives, sends and receives a rank called, to be compared with the other ranks.
//!
//! NCCL numbers the calls of each collective on a communicator, from 0 on and on all ranks alike. A
//! send and its receive have a mark in common.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::trace::reader::proto::ncclscope::{Algorithm, Protocol};

/// How many calls of a function are kept, the last ones: about as many as the host of one rank can
/// be ahead of another's.
const KEPT: usize = 1024;

/// What a call asks for. In a job without a fault, it is the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::cli) struct Request {
    /// As in `AllReduce 4 MiB f32`.
    pub(in crate::cli) name: Arc<str>,
    pub(in crate::cli) count: Option<u64>,
    pub(in crate::cli) root: Option<u64>,
}

/// How NCCL runs a call, by the numbers that traces have for algorithms and protocols; 0 where one
/// does not say. All ranks have to run a call alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::cli) struct Tuning {
    pub(in crate::cli) algorithm: u8,
    pub(in crate::cli) protocol: u8,
}

impl Tuning {
    pub(in crate::cli) fn is_known(self) -> bool {
        self.algorithm != 0 && self.protocol != 0
    }
}

impl fmt::Display for Tuning {
    /// `RING SIMPLE`, as NCCL names them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let algorithm = Algorithm::try_from(i32::from(self.algorithm)).unwrap_or_default();
        let protocol = Protocol::try_from(i32::from(self.protocol)).unwrap_or_default();
        write!(f, "{} {}", algorithm.as_str_name(), protocol.as_str_name())
    }
}

/// A call of a function on a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Call {
    pub(in crate::cli) seq: u64,
    /// The place of its request.
    pub(in crate::cli) request: u32,
    pub(in crate::cli) tuning: Tuning,
}

/// Different requests, by the place where each was first put.
#[derive(Default)]
pub(in crate::cli) struct Requests {
    all: Vec<Request>,
    places: FxHashMap<Request, u32>,
}

impl Requests {
    pub(in crate::cli) fn put(&mut self, request: Request) -> u32 {
        if let Some(place) = self.places.get(&request) {
            return *place;
        }
        let place = self.all.len() as u32;
        self.all.push(request.clone());
        self.places.insert(request, place);
        place
    }

    pub(in crate::cli) fn get(&self, place: u32) -> &Request {
        &self.all[place as usize]
    }

    /// Puts all of another's, and says where.
    pub(super) fn put_all(&mut self, other: Requests) -> Vec<u32> {
        other.all.into_iter().map(|request| self.put(request)).collect()
    }
}

/// A send or a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Transfer {
    /// The same as the other side's.
    pub(in crate::cli) mark: u64,
    /// The other rank of the communicator.
    pub(in crate::cli) peer: u32,
    /// How much, bytes: the two sides may count it in different types.
    pub(in crate::cli) bytes: u64,
}

/// The calls on one track.
#[derive(Clone, Default)]
pub(in crate::cli) struct Calls {
    of: Vec<OfFunction>,
    /// The last sends, and the last receives.
    pub(in crate::cli) sends: VecDeque<Transfer>,
    pub(in crate::cli) receives: VecDeque<Transfer>,
}

/// The calls of one function.
#[derive(Clone)]
pub(in crate::cli) struct OfFunction {
    pub(in crate::cli) function: u64,
    /// The highest number of a call.
    pub(in crate::cli) last: u64,
    /// The last calls.
    pub(in crate::cli) recent: VecDeque<Call>,
}

impl Calls {
    #[inline]
    pub(in crate::cli) fn take(&mut self, function: u64, call: Call) {
        push(&mut self.reached(function, call.seq).recent, call);
    }

    #[inline]
    pub(in crate::cli) fn send(&mut self, transfer: Transfer) {
        push(&mut self.sends, transfer);
    }

    #[inline]
    pub(in crate::cli) fn receive(&mut self, transfer: Transfer) {
        push(&mut self.receives, transfer);
    }

    /// This call of a function was made, or a later one.
    #[inline]
    pub(super) fn reached(&mut self, function: u64, seq: u64) -> &mut OfFunction {
        let at = self.of.iter().position(|known| known.function == function).unwrap_or_else(|| {
            self.of.push(OfFunction { function, last: seq, recent: VecDeque::new() });
            self.of.len() - 1
        });
        let calls = &mut self.of[at];
        calls.last = calls.last.max(seq);
        calls
    }

    /// Names each request by its new place.
    pub(super) fn renumber(&mut self, places: &[u32]) {
        for call in self.of.iter_mut().flat_map(|calls| &mut calls.recent) {
            call.request = places[call.request as usize];
        }
    }

    pub(in crate::cli) fn by_function(&self) -> impl Iterator<Item = &OfFunction> {
        self.of.iter()
    }
}

/// Adds one, and forgets the oldest if there are too many.
fn push<T>(kept: &mut VecDeque<T>, next: T) {
    if kept.len() == KEPT {
        kept.pop_front();
    }
    kept.push_back(next);
}
