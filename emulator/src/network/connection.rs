//! Moves bytes between two ranks over the loopback device.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use crate::time;

/// Bytes of a message's length.
const LENGTH: usize = 8;

/// One direction between two ranks. Messages go in order, each after its length.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    /// The host at the other end, for a sender.
    pub(super) host: u32,
    pub(super) queue: VecDeque<Transfer>,
    /// The received part of the length of the current message.
    length: [u8; LENGTH],
}

pub(super) struct Transfer {
    pub(super) data: *mut u8,
    pub(super) size: usize,
    /// When the message may arrive, for a sender.
    pub(super) arrives: u64,
    /// Bytes moved so far, including those of the length.
    pub(super) moved: usize,
    pub(super) done: Arc<AtomicI64>,
}

// SAFETY: NCCL does not touch the data until the request is done, whichever of its threads asks.
unsafe impl Send for Transfer {}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> std::io::Result<Connection> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, host: 0, queue: VecDeque::new(), length: [0; LENGTH] })
    }

    pub(super) fn leak(self) -> *mut c_void {
        Box::into_raw(Box::new(Arc::new(Mutex::new(self)))).cast()
    }

    /// Moves everything that can be moved without waiting.
    pub(super) fn progress(&mut self, sends: bool) -> std::io::Result<()> {
        loop {
            let moved = if sends { self.send_some() } else { self.receive_some() };
            match moved {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a piece of the first message; returns whether there was one to send.
    fn send_some(&mut self) -> std::io::Result<bool> {
        let Some(first) = self.queue.front_mut() else { return Ok(false) };
        if time::now() < first.arrives {
            return Ok(false);
        }
        if first.moved < LENGTH {
            first.moved += self.stream.write(&(first.size as u64).to_le_bytes()[first.moved..])?;
        }
        if first.moved >= LENGTH {
            let at = first.moved - LENGTH;
            if at < first.size {
                // SAFETY: NCCL passed `size` bytes at `data`, which stay until the request is done.
                let rest = unsafe { std::slice::from_raw_parts(first.data.add(at), first.size - at) };
                first.moved += self.stream.write(rest)?;
            }
            if first.moved == LENGTH + first.size {
                first.done.store(first.size as i64, Ordering::Relaxed);
                self.queue.pop_front();
            }
        }
        Ok(true)
    }

    /// Receives a piece of the first message; returns whether one was wanted.
    fn receive_some(&mut self) -> std::io::Result<bool> {
        let Some(first) = self.queue.front_mut() else { return Ok(false) };
        if first.moved < LENGTH {
            first.moved += some(self.stream.read(&mut self.length[first.moved..])?)?;
        }
        if first.moved >= LENGTH {
            let size = u64::from_le_bytes(self.length) as usize;
            if size > first.size {
                return Err(std::io::Error::other(format!("{size} bytes came where {} were expected", first.size)));
            }
            let at = first.moved - LENGTH;
            if at < size {
                // SAFETY: NCCL passed room for that many bytes at `data`, which stays until the
                // request is done.
                let rest = unsafe { std::slice::from_raw_parts_mut(first.data.add(at), size - at) };
                first.moved += some(self.stream.read(rest)?)?;
            }
            if first.moved == LENGTH + size {
                first.done.store(size as i64, Ordering::Relaxed);
                self.queue.pop_front();
            }
        }
        Ok(true)
    }
}

/// A read that returns nothing has met the end of the connection.
fn some(read: usize) -> std::io::Result<usize> {
    if read == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
}
