//! The steps that every collective consists of: data comes from peers or from a user buffer, is
//! reduced, and goes to peers or to a user buffer.
//!
//! A connection has eight slots. The sender may fill the slot of step n once `head` is above
//! `n-8`. The receiver may read it once `tail` is above n (Simple), or once the flags in its lines
//! are those of step n (LL). The other side is the peer's kernel, or NCCL's proxy with a network
//! behind it, which also needs the number of bytes in the slot.

use super::block::{Aborted, Block};
use super::function::Protocol;
use super::memory::{LINE, LINE_DATA, Place, open_line, write_line};
use super::pace::{Debt, Link};
use super::unplayable::Unplayable;
use crate::time;
use elements::reduce::Operator;

/// `NCCL_STEPS`
const SLOTS: u64 = 8;

/// The connections of a work, and the pace at which it proceeds.
pub(super) struct Primitives<'b> {
    block: &'b Block<'b>,
    operator: Operator,
    ll: bool,
    /// Slices of a chunk.
    slices: usize,
    /// Steps of a slice.
    steps: u64,
    /// Bytes of a step.
    step_bytes: usize,
    receives: Vec<Connection>,
    sends: Vec<Connection>,
    /// How many works share the channel.
    load: f64,
    debt: Debt,
    /// Space for reduced elements that have no other place yet.
    scratch: Vec<u64>,
    /// The data from LL lines, by connection.
    opened: Vec<Vec<u64>>,
}

/// How a work uses its connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wiring<'w> {
    /// How data travels.
    pub(super) protocol: Protocol,
    /// Slices of a chunk and steps of a slice, with Simple.
    pub(super) slicing: (usize, u64),
    /// The operation on the elements.
    pub(super) operator: Operator,
    /// The ranks that are received from, up to the first negative one.
    pub(super) receive: &'w [i32],
    /// The ranks that are sent to, up to the first negative one.
    pub(super) send: &'w [i32],
    /// The index of the connection to each of them: 0 for collectives, 1 for sends and receives.
    pub(super) connection: usize,
    /// Bytes of a step with Simple, where they do not follow from the buffers.
    pub(super) step_bytes: Option<usize>,
    /// How many works share the channel.
    pub(super) load: usize,
}

/// One direction of a connection.
struct Connection {
    /// `ncclConnInfo`
    place: Place,
    head: Place,
    tail: Place,
    buffer: Place,
    /// What is exchanged with the proxy about each step, if there is one.
    fifo: Option<Place>,
    /// Bytes from one slot to the next.
    slot_bytes: usize,
    /// The next step.
    step: u64,
    /// The link to the peer, if it is slow, and the time it owes.
    link: Option<(Link, Debt)>,
}

/// Where the data of one step comes from and where it goes.
#[derive(Clone, Copy)]
struct Flow {
    receive: bool,
    send: bool,
    /// The user's own elements.
    input: Option<*const u8>,
    output: Option<*mut u8>,
}

impl Flow {
    const SEND: Flow = Flow { receive: false, send: true, input: None, output: None };
    const RECEIVE: Flow = Flow { receive: true, send: false, input: None, output: None };
    const BOTH: Flow = Flow { receive: true, ..Flow::SEND };
}

/// NCCL's primitives, each by the user's buffers that it takes and what it does beside them.
macro_rules! primitives {
    ($($(#[$about:meta])+ $name:ident($($buffer:ident: $pointer:ty),+): $flow:expr;)+) => { $(
        $(#[$about])+
        ///
        /// # Safety
        ///
        /// `input` is `count` readable elements and `output` as many writable ones, in buffers that
        /// the user has given to this work. Both are the same or do not overlap.
        pub(super) unsafe fn $name(&mut self, $($buffer: $pointer,)+ count: usize) -> Result<(), Aborted> {
            // SAFETY: the caller's promise.
            unsafe { self.chunk(Flow { $($buffer: Some($buffer),)+ ..$flow }, count) }
        }
    )+ };
}

impl<'b> Primitives<'b> {
    /// Loads the connections.
    pub(super) fn new(block: &'b Block<'b>, wiring: &Wiring<'_>) -> Primitives<'b> {
        let ll = match wiring.protocol {
            Protocol::Ll => true,
            Protocol::Simple => false,
            Protocol::Ll128 => unreachable!("a plan has no works with LL128"),
        };
        let (slices, steps) = if ll { (1, 1) } else { wiring.slicing };
        let buffer_step = block.comm.buffer_bytes[wiring.protocol.index()] / SLOTS as usize;
        let step_bytes = wiring.step_bytes.filter(|_| !ll).unwrap_or(buffer_step);
        let connect = |peer: i32, sends: bool| {
            let layout = &block.model.layout.channel_peer;
            let direction = if sends { layout.send } else { layout.recv };
            let place = block
                .peer(peer)
                .map(|place| place.at(direction + wiring.connection * block.model.layout.conn_info.size))
                .unwrap_or_else(|| block.refuse(&not_connected(peer)));
            let mut connection = Connection::load(block, place, wiring.protocol, step_bytes)
                .unwrap_or_else(|| block.refuse(&not_connected(peer)));
            // A work with chunks of several steps begins at a whole chunk.
            connection.step = connection.step.next_multiple_of(slices as u64 * steps);
            if sends {
                let link = block.gpu.link(block.comm.place.address(), peer as u32);
                connection.link = link.map(|link| (link, Debt::default()));
            } else if !ll {
                // The skipped steps are free as well.
                connection.head.release(connection.step);
            }
            connection
        };
        let peers = |ranks: &[i32], sends| {
            ranks.iter().take_while(|rank| **rank >= 0).map(|&rank| connect(rank, sends)).collect()
        };
        let receives: Vec<Connection> = peers(wiring.receive, false);
        Primitives {
            block,
            operator: wiring.operator,
            ll,
            slices,
            steps,
            step_bytes,
            sends: peers(wiring.send, true),
            load: wiring.load as f64,
            debt: Debt::default(),
            scratch: Vec::new(),
            opened: receives.iter().map(|_| Vec::new()).collect(),
            receives,
        }
    }

    primitives! {
        /// Sends from the user's buffer.
        send(input: *const u8): Flow::SEND;
        /// Copies from one of the user's buffers to another, and sends it.
        copy_send(input: *const u8, output: *mut u8): Flow::SEND;
        /// Receives into the user's buffer.
        receive(output: *mut u8): Flow::RECEIVE;
        /// Receives into the user's buffer, and sends it on.
        receive_copy_send(output: *mut u8): Flow::BOTH;
        /// Receives, reduces it with the user's own elements, and sends it on.
        receive_reduce_send(input: *const u8): Flow::BOTH;
        /// Receives and reduces with the user's own elements, which completes the reduction.
        receive_reduce_copy(input: *const u8, output: *mut u8): Flow::RECEIVE;
        /// The same, and sends the result.
        receive_reduce_copy_send(input: *const u8, output: *mut u8): Flow::BOTH;
    }

    /// Ends the work: waits until it has taken its time, and stores the steps for the next one.
    pub(super) fn finish(self) -> Result<(), Aborted> {
        let links = self.sends.iter().filter_map(|connection| connection.link.as_ref()?.1.rest());
        if let Some(rest) = links.chain(self.debt.rest()).max() {
            self.block.sleep_until(time::now().saturating_add(rest))?;
        }
        for connection in self.receives.iter().chain(&self.sends) {
            connection.place.set_word(self.block.model.layout.conn_info.step, connection.step);
        }
        Ok(())
    }

    /// Moves a chunk, slice by slice.
    ///
    /// # Safety
    ///
    /// As [`Primitives::send`].
    unsafe fn chunk(&mut self, flow: Flow, count: usize) -> Result<(), Aborted> {
        let size = self.operator.size();
        let slice = if self.ll {
            count
        } else {
            let least = self.step_bytes / size * self.steps as usize / 32;
            (count.div_ceil(16 * self.slices) * 16).max(least)
        };
        let mut done = 0;
        for _ in 0..self.slices {
            let count = slice.min(count - done);
            let at = done * size;
            let flow = Flow {
                input: flow.input.map(|input| input.wrapping_add(at)),
                output: flow.output.map(|output| output.wrapping_add(at)),
                ..flow
            };
            // SAFETY: the caller's promise, for a part of the elements.
            unsafe { self.slice(flow, count) }?;
            done += count;
        }
        Ok(())
    }

    /// Moves a slice, which may be empty, because the other side counts steps.
    ///
    /// # Safety
    ///
    /// As [`Primitives::send`].
    unsafe fn slice(&mut self, flow: Flow, count: usize) -> Result<(), Aborted> {
        let bytes = count * self.operator.size();
        self.block.step()?;
        if flow.receive {
            self.await_data(bytes)?;
        }
        if flow.send {
            self.await_slots(bytes)?;
        }
        let begun = time::now();
        // SAFETY: the caller's promise; the data has arrived and the slots are free.
        let data = unsafe { self.combine(flow, count) };
        self.take_time(bytes, begun)?;
        if flow.receive {
            for connection in &mut self.receives {
                connection.step += self.steps;
                connection.head.release(connection.step);
            }
        }
        if flow.send {
            self.take_links_time(bytes, begun)?;
            for connection in &mut self.sends {
                if self.ll {
                    // SAFETY: `combine` returns readable bytes; the slot has room for them in
                    // lines.
                    unsafe { connection.write_lines(data, bytes) };
                }
                connection.step += self.steps;
                if !self.ll {
                    connection.tail.release(connection.step);
                }
            }
        }
        Ok(())
    }

    /// Waits until the data to receive is there. LL lines are opened as they arrive.
    fn await_data(&mut self, bytes: usize) -> Result<(), Aborted> {
        for (connection, opened) in self.receives.iter().zip(&mut self.opened) {
            if self.ll {
                let slot = connection.slot(self.block, Protocol::Ll);
                let flag = connection.flag();
                let lines = bytes.div_ceil(LINE_DATA);
                opened.resize(lines.max(opened.len()), 0);
                for (index, data) in opened[..lines].iter_mut().enumerate() {
                    let line = slot.at(index * LINE);
                    self.block.wait(|| match open_line(line, flag) {
                        Some(content) => {
                            *data = content;
                            true
                        }
                        None => false,
                    })?;
                }
            } else {
                let tail = connection.tail;
                let step = connection.step + self.steps;
                self.block.wait(|| tail.acquire() >= step)?;
            }
        }
        Ok(())
    }

    /// Waits until there is room for the data to send, and tells the proxy its size.
    fn await_slots(&mut self, bytes: usize) -> Result<(), Aborted> {
        for connection in &self.sends {
            let head = connection.head;
            let step = connection.step + self.steps;
            // While a shared buffer gives no credit, its head is below 0.
            self.block.wait(|| head.acquire().wrapping_add(SLOTS) >= step)?;
            if let Some(fifo) = connection.fifo {
                let size = if self.ll { bytes.div_ceil(LINE_DATA) * LINE } else { bytes };
                let layout = &self.block.model.layout.conn_fifo;
                fifo.at(connection.slot_index() * layout.size).set_word(layout.bytes, size as u64);
            }
        }
        Ok(())
    }

    /// Reduces what a slice consists of and writes it to every destination except LL lines.
    /// Returns where the result is.
    ///
    /// # Safety
    ///
    /// As [`Primitives::send`]. In addition, the data from peers is there, and the slots to peers
    /// are free.
    unsafe fn combine(&mut self, flow: Flow, count: usize) -> *const u8 {
        let bytes = count * self.operator.size();
        if bytes == 0 {
            return std::ptr::null();
        }
        let block = self.block;
        let arrived: [Option<*const u8>; MOST_PEERS] = std::array::from_fn(|index| {
            let connection = self.receives.get(index).filter(|_| flow.receive)?;
            Some(if self.ll {
                self.opened[index].as_ptr().cast()
            } else {
                connection.checked_slot(block, bytes, self.steps).as_ptr().cast_const()
            })
        });
        let mut sources = flow.input.into_iter().chain(arrived.into_iter().flatten());
        let first = sources.next().expect("a step has a source");
        let mut others = sources.peekable();
        let prepares = flow.input.is_some() && self.operator.prepares();
        // The rank that adds the last elements has the complete result.
        let finishes = flow.receive && flow.input.is_some() && flow.output.is_some() && self.operator.finishes();

        let slots: [Option<*mut u8>; MOST_PEERS] = std::array::from_fn(|index| {
            let connection = self.sends.get(index).filter(|_| flow.send && !self.ll)?;
            Some(connection.checked_slot(block, bytes, self.steps).as_ptr())
        });
        let data = if others.peek().is_none() && !prepares && !finishes {
            first
        } else {
            // If the result has a first destination, compute it there.
            let place = flow.output.or(slots[0]).unwrap_or_else(|| {
                self.scratch.resize(bytes.div_ceil(8).max(self.scratch.len()), 0);
                self.scratch.as_mut_ptr().cast()
            });
            // SAFETY: sources and destinations have this many bytes, by the caller's promise or
            // because slots and scratch space were measured. Input and output may be the same,
            // which `copy` allows. Data from peers overlaps with neither.
            unsafe {
                std::ptr::copy(first, place, bytes);
                if prepares {
                    self.operator.prepare(place, count);
                }
                for other in others {
                    self.operator.reduce(place, other, count);
                }
                if finishes {
                    self.operator.finish(place, count);
                }
            }
            place.cast_const()
        };
        for destination in flow.output.into_iter().chain(slots.into_iter().flatten()) {
            if destination.cast_const() != data {
                // SAFETY: as above.
                unsafe { std::ptr::copy(data, destination, bytes) };
            }
        }
        data
    }

    /// Sleeps for the rest of the time that the GPU would have needed for a slice.
    fn take_time(&mut self, bytes: usize, begun: u64) -> Result<(), Aborted> {
        let took = (time::now() - begun) as f64;
        let cost = self.block.gpu.cost(bytes as f64 * self.load, took);
        pay(self.block, &mut self.debt, cost, took)
    }

    /// Sleeps for the rest of the time that slow links would have needed for a slice.
    fn take_links_time(&mut self, bytes: usize, begun: u64) -> Result<(), Aborted> {
        for connection in &mut self.sends {
            if let Some((link, debt)) = &mut connection.link {
                pay(self.block, debt, link.cost(bytes as f64), (time::now() - begun) as f64)?;
            }
        }
        Ok(())
    }
}

/// The most connections of a work in one direction, for a tree's children.
const MOST_PEERS: usize = 3;

impl Connection {
    fn load(block: &Block<'_>, place: Place, protocol: Protocol, step_bytes: usize) -> Option<Connection> {
        let layout = &block.model.layout.conn_info;
        let ll = protocol == Protocol::Ll;
        Some(Connection {
            place,
            head: place.follow(layout.head)?,
            tail: place.follow(layout.tail)?,
            buffer: place.follow(layout.buffs + 8 * protocol.index())?,
            fifo: place.follow(layout.conn_fifo),
            slot_bytes: if ll { step_bytes } else { place.int(layout.step_size) as usize },
            step: place.word(layout.step),
            link: None,
        })
    }

    fn slot_index(&self) -> usize {
        (self.step % SLOTS) as usize
    }

    /// The value of both flags in the lines of this step.
    fn flag(&self) -> u32 {
        self.step as u32 + 1
    }

    /// The slot of this step.
    fn slot(&self, block: &Block<'_>, protocol: Protocol) -> Place {
        /// `NCCL_MODE_OFFSET`: connections share buffers, and the proxy says where the slot is.
        const MODE_OFFSET: i32 = 1;

        let layout = &block.model.layout.conn_fifo;
        let told = self.fifo.map(|fifo| fifo.at(self.slot_index() * layout.size));
        match told {
            Some(told) if protocol == Protocol::Simple && told.int(layout.mode) == MODE_OFFSET => {
                self.buffer.at(told.int(layout.offset) as usize)
            }
            _ => self.buffer.at(self.slot_index() * self.slot_bytes),
        }
    }

    /// The slot of this step with Simple; checks that this many bytes fit.
    fn checked_slot(&self, block: &Block<'_>, bytes: usize, steps: u64) -> Place {
        let room = self.slot_bytes * steps as usize;
        assert!(bytes <= room, "{bytes} bytes are to go into {steps} slots of {} bytes", self.slot_bytes);
        self.slot(block, Protocol::Simple)
    }

    /// Writes data into the lines of this step.
    ///
    /// # Safety
    ///
    /// `data` is `bytes` readable bytes.
    unsafe fn write_lines(&self, data: *const u8, bytes: usize) {
        let lines = bytes.div_ceil(LINE_DATA);
        assert!(lines * LINE <= self.slot_bytes, "{lines} lines are to go into a slot of {} bytes", self.slot_bytes);
        let slot = self.buffer.at(self.slot_index() * self.slot_bytes);
        let flag = self.flag();
        let whole = bytes / LINE_DATA;
        for index in 0..whole {
            // SAFETY: within the bytes.
            let content = unsafe { data.add(index * LINE_DATA).cast::<u64>().read_unaligned() };
            write_line(slot.at(index * LINE), content, flag);
        }
        if whole < lines {
            let mut rest = [0; LINE_DATA];
            let done = whole * LINE_DATA;
            // SAFETY: the remaining bytes, fewer than a line has.
            unsafe { std::ptr::copy_nonoverlapping(data.add(done), rest.as_mut_ptr(), bytes - done) };
            write_line(slot.at(whole * LINE), u64::from_le_bytes(rest), flag);
        }
    }
}

/// Charges a thing that should have taken `should` and took `took`; sleeps when enough is owed.
fn pay(block: &Block<'_>, debt: &mut Debt, should: f64, took: f64) -> Result<(), Aborted> {
    if let Some(sleep) = debt.charge(should, took) {
        let begun = time::now();
        block.sleep_until(begun.saturating_add(sleep))?;
        debt.slept((time::now() - begun) as f64);
    }
    Ok(())
}

fn not_connected(peer: i32) -> Unplayable {
    Unplayable::misread(format!("it is not connected to rank {peer}"))
}
