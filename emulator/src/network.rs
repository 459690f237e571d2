//! A network between the emulated hosts: a network plugin that NCCL finds in this program itself.
//!
//! `NCCL_NET_PLUGIN=STATIC_PLUGIN` makes NCCL look for its table of functions in the program, in
//! all releases that were tried. The table here has version 10. 2.26 is the first release that
//! takes it, and the first whose profiler has network plugin events. Messages travel over TCP on
//! the loopback device. This network adds what NCCL's own socket network lacks: a link has a
//! bandwidth and a latency, it can stall, and each request calls NCCL's profiler.
//!
//! There is no thread: NCCL's proxy polls each request until it is done, and that moves the bytes.

mod connection;
mod plugin;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use plugin::table;

use crate::time;
use crate::truth::Truth;

/// The speed of messages from this process's host to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes per ns; infinity means as fast as the loopback device.
    pub bandwidth: f64,
    /// From the last byte's departure to its arrival, in ns.
    pub latency_ns: u64,
    /// When it stands still.
    pub stall: Option<Stall>,
}

/// When a link stands still, and for how many ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stall {
    /// Before this message, counted from 0.
    Before(u64, u64),
    /// Whenever this many ns of true time have passed, for all processes of a host alike.
    Every(u64, u64),
}

impl Default for Link {
    fn default() -> Link {
        Link { bandwidth: f64::INFINITY, latency_ns: 0, stall: None }
    }
}

/// The network as this process sees it.
#[derive(Debug, Clone, Default)]
pub struct Network {
    /// The host of this process.
    pub host: u32,
    /// Every link that is not in `to`.
    pub usual: Link,
    /// Links to particular hosts.
    pub to: HashMap<u32, Link>,
    /// Where every transfer is recorded.
    pub truth: Option<Arc<Truth>>,
}

static NETWORK: OnceLock<Network> = OnceLock::new();

impl Network {
    /// Makes this the network of the process. Call it before the first communicator is made.
    ///
    /// # Panics
    ///
    /// When it was called before.
    pub fn install(self) {
        assert!(NETWORK.set(self).is_ok(), "a process has one network");
    }

    fn this() -> &'static Network {
        NETWORK.get_or_init(Network::default)
    }

    fn link(&self, host: u32) -> Link {
        self.to.get(&host).copied().unwrap_or(self.usual)
    }
}

/// The traffic on a link, over all connections of this process.
#[derive(Debug, Default, Clone, Copy)]
struct Traffic {
    /// When the last message has left.
    free: u64,
    messages: u64,
}

static TRAFFIC: Mutex<Option<HashMap<u32, Traffic>>> = Mutex::new(None);

impl Traffic {
    /// When a message of `size` bytes arrives that is handed over at `now`.
    fn arrival(&mut self, link: Link, size: usize, now: u64) -> u64 {
        let mut begins = now.max(self.free);
        match link.stall {
            Some(Stall::Before(message, pause)) if message == self.messages => begins += pause,
            Some(Stall::Every(period, pause)) => begins += pause.saturating_sub(begins % period),
            _ => {}
        }
        self.messages += 1;
        self.free = begins + (size as f64 / link.bandwidth) as u64;
        self.free + link.latency_ns
    }
}

/// When a message of `size` bytes that is handed over now arrives at `host`.
fn arrival(host: u32, size: usize) -> u64 {
    let link = Network::this().link(host);
    let mut traffic = lock(&TRAFFIC);
    traffic.get_or_insert_default().entry(host).or_default().arrival(link, size, time::now())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
