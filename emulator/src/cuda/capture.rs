//! Captures: calls on capturing streams become a graph.
//!
//! A capture begins in one stream. Another stream joins by waiting for an event that was recorded
//! in the capture. Each stream has a frontier: the nodes that its next node depends on.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::event::{Event, Meaning};
use super::graph::{Dependency, Graph, NodeOrigin};
use super::stream::Stream;
use super::threads::lock;
use super::work::Action;
use super::{Error, machine, observe, threads};

/// `cudaStreamCaptureModeRelaxed`.
const RELAXED: i32 = 2;

/// One capture, from its beginning to its end.
pub(super) struct Capture {
    /// As `cudaStreamGetCaptureInfo` returns it; unique in the process.
    pub(super) id: u64,
    pub(super) graph: Arc<Graph>,
    /// The number of the stream in which it began.
    origin: u64,
    mode: i32,
    thread: u32,
    state: AtomicU8,
    members: Mutex<Vec<Weak<Stream>>>,
}

mod state {
    pub(super) const ACTIVE: u8 = 0;
    pub(super) const INVALID: u8 = 1;
    pub(super) const ENDED: u8 = 2;
}

/// A stream's part in a capture.
pub(super) struct Membership {
    pub(super) capture: Arc<Capture>,
    pub(super) frontier: Vec<Dependency>,
    /// The last answer to a query for the frontier; the caller holds pointers into it.
    pub(super) answer: Answer,
}

/// A frontier as CUDA shows it.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) nodes: Vec<usize>,
    pub(super) edges: Vec<[u8; 8]>,
}

/// A point of a capture, as an event holds it. It does not keep the capture alive, because the
/// capture's graph may hold the event.
#[derive(Clone)]
pub(super) struct Captured {
    capture: Weak<Capture>,
    frontier: Vec<Dependency>,
}

impl Captured {
    fn new(capture: &Arc<Capture>, frontier: Vec<Dependency>) -> Captured {
        Captured { capture: Arc::downgrade(capture), frontier }
    }

    /// The capture, while it lasts.
    fn active(&self) -> Option<Arc<Capture>> {
        self.capture.upgrade().filter(|capture| capture.status() == Status::Active)
    }
}

/// Whether a stream is capturing, as in `cudaStreamCaptureStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    None = 0,
    Active = 1,
    Invalidated = 2,
}

impl Capture {
    /// Begins a capture in a stream.
    pub(super) fn begin(stream: &Arc<Stream>, mode: i32) -> Result<(), Error> {
        if stream.is_default() {
            return Err(Error::StreamCaptureUnsupported);
        }
        if !(0..=RELAXED).contains(&mode) {
            return Err(Error::InvalidValue);
        }
        let mut membership = stream.membership();
        if membership.is_some() {
            return Err(Error::IllegalState);
        }
        let graph = Graph::create(stream.device);
        let capture = Arc::new(Capture {
            id: machine().captures.fetch_add(1, Ordering::Relaxed) + 1,
            graph: graph.clone(),
            origin: stream.number,
            mode,
            thread: threads::id(),
            state: AtomicU8::new(state::ACTIVE),
            members: Mutex::new(vec![Arc::downgrade(stream)]),
        });
        *membership = Some(Membership { capture, frontier: Vec::new(), answer: Answer::default() });
        drop(membership);
        machine().graphs.insert(graph.clone());
        observe::graph_created(&graph);
        Ok(())
    }

    /// Ends the capture that began in this stream.
    pub(super) fn end(stream: &Arc<Stream>) -> Result<Arc<Graph>, Error> {
        let mut membership = stream.membership();
        let Some(Membership { capture, frontier, .. }) = &*membership else { return Err(Error::IllegalState) };
        if capture.origin != stream.number {
            return Err(Error::StreamCaptureUnmatched);
        }
        if capture.mode != RELAXED && capture.thread != threads::id() {
            return Err(Error::StreamCaptureWrongThread);
        }
        let (capture, frontier) = (capture.clone(), frontier.clone());
        *membership = None;
        // The other members are checked below, and each has a lock like this one.
        drop(membership);
        let valid = capture.state.swap(state::ENDED, Ordering::AcqRel) == state::ACTIVE;
        let joined = capture.graph.with_all_before(&frontier);
        let mut unjoined = false;
        for member in lock(&capture.members).iter().filter_map(Weak::upgrade) {
            let mut membership = lock(&member.capture);
            let Some(other) = membership.as_ref().filter(|other| Arc::ptr_eq(&other.capture, &capture)) else {
                continue;
            };
            // Nodes that were added by hand count as joined: NCCL ends its own streams by
            // recording an event that nothing in the graph waits for.
            let left =
                |dependency: &Dependency| !joined[dependency.node as usize] && capture.graph.captured(dependency.node);
            unjoined |= other.frontier.iter().any(left);
            *membership = None;
        }
        if valid && !unjoined {
            return Ok(capture.graph.clone());
        }
        Graph::destroy(super::registry::handle(&capture.graph))?;
        Err(if valid { Error::StreamCaptureUnjoined } else { Error::StreamCaptureInvalidated })
    }

    /// Marks the capture invalid after something that a capture cannot hold; further calls in it
    /// are refused.
    fn invalidate(&self) {
        let _ = self.state.compare_exchange(state::ACTIVE, state::INVALID, Ordering::AcqRel, Ordering::Acquire);
    }

    fn status(&self) -> Status {
        match self.state.load(Ordering::Acquire) {
            state::ACTIVE => Status::Active,
            state::INVALID => Status::Invalidated,
            _ => Status::None,
        }
    }
}

impl Stream {
    /// The stream's part in a capture that has not ended.
    fn membership(&self) -> MutexGuard<'_, Option<Membership>> {
        let mut membership = lock(&self.capture);
        if membership.as_ref().is_some_and(|member| member.capture.status() == Status::None) {
            *membership = None;
        }
        membership
    }

    /// Whether the stream is capturing, and what `look` returns for that.
    pub(super) fn capture_info<R>(&self, look: impl FnOnce(Option<&mut Membership>) -> R) -> (Status, R) {
        let mut membership = self.membership();
        let status = membership.as_ref().map_or(Status::None, |member| member.capture.status());
        (status, look(membership.as_mut()))
    }

    /// Fails when the stream is capturing, and makes the capture invalid: for calls that a capture
    /// cannot hold.
    pub(super) fn not_capturing(&self) -> Result<(), Error> {
        match &*self.membership() {
            None => Ok(()),
            Some(member) => {
                member.capture.invalidate();
                Err(Error::StreamCaptureUnsupported)
            }
        }
    }

    /// Turns an action into a node if the stream is capturing; returns the action if it is not.
    pub(super) fn capture_action(&self, action: Action) -> Result<Result<Point, Action>, Error> {
        let mut membership = self.membership();
        let Some(member) = &mut *membership else { return Ok(Err(action)) };
        if member.capture.status() != Status::Active {
            return Err(Error::StreamCaptureInvalidated);
        }
        let origin = NodeOrigin {
            device: self.device,
            branch: (self.number != member.capture.origin).then_some(self.number),
            captured: true,
        };
        let (graph, capture) = (member.capture.graph.clone(), member.capture.clone());
        let index = graph.add(action, &member.frontier, origin)?;
        member.frontier = vec![Dependency { node: index, at_start: false }];
        drop(membership);
        observe::node_created(&graph, index);
        Ok(Ok(Point { capture, node: index }))
    }
}

/// A node that was captured.
pub(super) struct Point {
    capture: Arc<Capture>,
    node: u32,
}

impl Point {
    /// Makes an event stand for the beginning of the node.
    pub(super) fn record_start(self, event: &Event) {
        let frontier = vec![Dependency { node: self.node, at_start: true }];
        event.record_captured(Captured::new(&self.capture, frontier));
    }
}

/// The flag that makes a wait or a record in a capture a node instead of an edge.
pub(super) const EXTERNAL: u32 = 1;

/// Records an event in a stream, capturing or not.
pub(super) fn record(stream: &Arc<Stream>, event: &Arc<Event>, flags: u32) -> Result<(), Error> {
    {
        let membership = stream.membership();
        if let Some(member) = &*membership {
            if member.capture.status() != Status::Active {
                return Err(Error::StreamCaptureInvalidated);
            }
            if flags & EXTERNAL == 0 {
                event.record_captured(Captured::new(&member.capture, member.frontier.clone()));
                return Ok(());
            }
        }
    }
    match stream.capture_action(Action::Record(event.clone()))? {
        Ok(_) => Ok(()),
        Err(_) => stream.queue_record(event.record()),
    }
}

/// Makes a stream wait for an event, or join the capture in which the event was recorded.
pub(super) fn wait(stream: &Arc<Stream>, event: &Arc<Event>, flags: u32) -> Result<(), Error> {
    let mut membership = stream.membership();
    let Some(member) = &mut *membership else {
        return match event.meaning() {
            Meaning::Nothing => Ok(()),
            Meaning::Record(record) => {
                drop(membership);
                stream.queue_wait(record)
            }
            Meaning::Captured(captured) => {
                let capture = captured.active().ok_or(Error::CapturedEvent)?;
                if stream.is_default() {
                    return Err(Error::StreamCaptureImplicit);
                }
                lock(&capture.members).push(Arc::downgrade(stream));
                *membership = Some(Membership { capture, frontier: captured.frontier, answer: Answer::default() });
                Ok(())
            }
        };
    };
    if member.capture.status() != Status::Active {
        return Err(Error::StreamCaptureInvalidated);
    }
    if flags & EXTERNAL != 0 {
        drop(membership);
        return stream.capture_action(Action::Wait(event.clone())).map(|_| ());
    }
    match event.meaning() {
        Meaning::Nothing => Ok(()),
        Meaning::Captured(captured) if Weak::as_ptr(&captured.capture) == Arc::as_ptr(&member.capture) => {
            for dependency in captured.frontier {
                if !member.frontier.contains(&dependency) {
                    member.frontier.push(dependency);
                }
            }
            Ok(())
        }
        Meaning::Captured(captured) => {
            member.capture.invalidate();
            let other = captured.active();
            other.iter().for_each(|capture| capture.invalidate());
            Err(if other.is_some() { Error::StreamCaptureMerge } else { Error::StreamCaptureIsolation })
        }
        Meaning::Record(_) => {
            member.capture.invalidate();
            Err(Error::StreamCaptureIsolation)
        }
    }
}

/// Replaces a stream's frontier, or adds to it.
pub(super) fn update_frontier(stream: &Arc<Stream>, nodes: &[(usize, bool)], replace: bool) -> Result<(), Error> {
    let mut membership = stream.membership();
    let Some(member) = &mut *membership else { return Err(Error::IllegalState) };
    let mut frontier = if replace { Vec::new() } else { std::mem::take(&mut member.frontier) };
    for &(node, at_start) in nodes {
        let dependency = Dependency { node: member.capture.graph.index(node)?, at_start };
        if !frontier.contains(&dependency) {
            frontier.push(dependency);
        }
    }
    member.frontier = frontier;
    Ok(())
}
