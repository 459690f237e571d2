//! The trace file and the one thread that writes it, so that a slow disk stalls nothing but itself.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use flate2::{Compress, Compression, FlushCompress};

use crate::capture::file::CaptureFile;
use crate::trace::fields::{trace, trace_packet};
use crate::trace::wire::Buf;
use crate::{memory, message, sys};

/// Chunks under way. The collector waits when there are more; then the rings fill, and what they cannot hold is
/// dropped and counted.
const QUEUE: usize = 4;

/// Why nothing more is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stopped {
    /// It still is.
    No = 0,
    /// The file system is nearly full.
    NoSpace = 1,
    /// A write failed.
    Error = 2,
}

/// What the writing thread tells the others.
#[derive(Debug, Default)]
struct Shared {
    /// Bytes in the file.
    written: AtomicU64,
    /// Bytes of packets that these were before compression.
    packed: AtomicU64,
    /// Bytes of packets handed over and not yet written.
    queued: AtomicU64,
    stopped: AtomicU8,
    error: Mutex<String>,
    /// Why the capture has ended before the recording.
    capture_ended: Mutex<Option<String>>,
}

/// Where chunks go.
pub struct TraceFile {
    sender: SyncSender<Command>,
    shared: Arc<Shared>,
    path: PathBuf,
    compresses: bool,
    capture: Option<PathBuf>,
    thread: Option<JoinHandle<()>>,
}

enum Command {
    /// Whole packets.
    Chunk(Vec<u8>),
    /// Whole entries of the capture.
    Capture(Vec<u8>),
    /// Answer once everything before this is in the file.
    Flush(Sender<()>),
}

/// How the file is written.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// zlib packets.
    pub compress: bool,
    /// Free space of the file system to leave, bytes.
    pub min_free: u64,
    /// Where a capture is to be made, most bytes that it may have.
    pub capture: Option<u64>,
}

impl TraceFile {
    /// Creates a new file in `folder`, readable by its owner only: `name.perfetto-trace`, or with a number behind
    /// the name where that exists. The capture beside it has the same name and the ending `capture`; where there can be none, a line
    /// says so, and the trace is made without.
    ///
    /// # Errors
    ///
    /// What the operating system says against the folder, the file, or the thread.
    pub fn create(folder: &Path, name: &str, options: Options) -> std::io::Result<TraceFile> {
        std::fs::create_dir_all(folder)?;
        let (file, path) = create_new(folder, name)?;
        let shared = Arc::new(Shared::default());
        // Not waiting for the first flush: a job may end before.
        check_space(&path, options.min_free, &shared);
        let capture = options.capture.and_then(|max_size| {
            let path = path.with_extension("capture");
            let say = |error| message::line(&format!("no capture: failed to create {}: {error}", path.display()));
            CaptureFile::create(&path, max_size).map_err(say).ok().map(|file| (file, path))
        });
        let (capture, capture_path) = capture.unzip();
        let (sender, receiver) = sync_channel(QUEUE);
        let thread = {
            let (shared, path) = (Arc::clone(&shared), path.clone());
            let body = move || {
                memory::on_our_thread(|| write_chunks(file, capture, &path, options, &receiver, &shared));
            };
            sys::without_signals(|| std::thread::Builder::new().name("ncclscope write".into()).spawn(body))?
        };
        let compresses = options.compress;
        Ok(TraceFile { sender, shared, path, compresses, capture: capture_path, thread: Some(thread) })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether packets are compressed.
    #[must_use]
    pub fn compresses(&self) -> bool {
        self.compresses
    }

    /// Where the capture is, if one is made.
    #[must_use]
    pub fn capture(&self) -> Option<&Path> {
        self.capture.as_deref()
    }

    /// Hands over whole entries of the capture; waits while too many are under way.
    pub fn write_capture(&self, entries: Vec<u8>) {
        if !entries.is_empty() {
            // Fails only when the thread is gone.
            let _ = self.sender.send(Command::Capture(entries));
        }
    }

    /// Why the capture has ended before the recording, if it has.
    #[must_use]
    pub fn capture_ended(&self) -> Option<String> {
        self.shared.capture_ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Hands over whole packets; waits while too many are under way.
    pub fn write(&self, chunk: Vec<u8>) {
        if !chunk.is_empty() && self.stopped() != Stopped::Error {
            self.shared.queued.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            // Fails only when the thread is gone, which `stopped` says from then on.
            let _ = self.sender.send(Command::Chunk(chunk));
        }
    }

    /// Waits until all that was handed over is in the file, or the time is up.
    pub fn flush(&self, limit: Duration) {
        let (done, wait) = channel();
        if self.sender.send(Command::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(limit);
        }
    }

    /// Bytes in the file.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.shared.written.load(Ordering::Relaxed)
    }

    /// Bytes the file may grow to once what is under way and `more` bytes of packets are in it: by twice what the
    /// packets so far would lead to, or their full size where that is less.
    #[must_use]
    pub fn size_with(&self, more: u64) -> u64 {
        let (written, packed) = (self.size(), self.shared.packed.load(Ordering::Relaxed));
        let coming = self.shared.queued.load(Ordering::Relaxed) + more;
        let likely =
            if packed == 0 { coming } else { (u128::from(coming) * u128::from(written) / u128::from(packed)) as u64 };
        written + coming.min(2 * likely)
    }

    /// Whether and why writing has ended.
    #[must_use]
    pub fn stopped(&self) -> Stopped {
        match self.shared.stopped.load(Ordering::Relaxed) {
            0 => Stopped::No,
            1 => Stopped::NoSpace,
            _ => Stopped::Error,
        }
    }

    /// What went wrong, if something did.
    #[must_use]
    pub fn error(&self) -> String {
        self.shared.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes what is under way and ends the thread.
    pub fn close(mut self) {
        self.flush(Duration::from_secs(60));
        let (sender, _) = sync_channel(0);
        drop(std::mem::replace(&mut self.sender, sender));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Names tried for one process before it counts as an error.
const NAMES: u32 = 100;

fn create_new(folder: &Path, name: &str) -> std::io::Result<(File, PathBuf)> {
    let mut number = 0;
    loop {
        let path = match number {
            0 => folder.join(format!("{name}.perfetto-trace")),
            _ => folder.join(format!("{name}-{number}.perfetto-trace")),
        };
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && number < NAMES => number += 1,
            Err(error) => return Err(error),
        }
    }
}

fn write_chunks(
    mut file: File,
    mut capture: Option<CaptureFile>,
    path: &Path,
    options: Options,
    commands: &Receiver<Command>,
    shared: &Shared,
) {
    let mut packer = Packer::new();
    for command in commands {
        match command {
            Command::Chunk(chunk) => {
                let raw = chunk.len() as u64;
                if shared.stopped.load(Ordering::Relaxed) != Stopped::Error as u8 {
                    let packed = if options.compress { packer.pack(&chunk) } else { &chunk };
                    match file.write_all(packed) {
                        Ok(()) => {
                            shared.written.fetch_add(packed.len() as u64, Ordering::Relaxed);
                            shared.packed.fetch_add(raw, Ordering::Relaxed);
                        }
                        Err(error) => {
                            // A part of the packet may be in the file: a reader skips such a tail.
                            let error = format!("failed to write {}: {error}; recording ended", path.display());
                            message::line(&error);
                            *shared.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
                            shared.stopped.store(Stopped::Error as u8, Ordering::Relaxed);
                        }
                    }
                }
                shared.queued.fetch_sub(raw, Ordering::Relaxed);
                check_space(path, options.min_free, shared);
            }
            Command::Capture(entries) => capture = capture.and_then(|capture| write_entries(capture, &entries, shared)),
            Command::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

/// Appends to the capture; it is gone when it has ended.
fn write_entries(mut capture: CaptureFile, entries: &[u8], shared: &Shared) -> Option<CaptureFile> {
    let is_full = shared.stopped.load(Ordering::Relaxed) == Stopped::NoSpace as u8;
    let result = if is_full { Err("NCCLSCOPE_MIN_FREE is reached".into()) } else { capture.append(entries) };
    let Err(why) = result else { return Some(capture) };
    let why = capture.end(&why);
    message::line(&why);
    *shared.capture_ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    None
}

/// Ends the recording before the disk is full: the job's checkpoints matter more.
fn check_space(path: &Path, min_free: u64, shared: &Shared) {
    if shared.stopped.load(Ordering::Relaxed) == Stopped::No as u8
        && let Some(free) = sys::free_bytes(path)
        && free < min_free
    {
        let error = format!(
            "only {} free at {}, less than NCCLSCOPE_MIN_FREE ({}); recording ended",
            crate::trace::names::size(free),
            path.display(),
            crate::trace::names::size(min_free),
        );
        message::line(&error);
        *shared.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        shared.stopped.store(Stopped::NoSpace as u8, Ordering::Relaxed);
    }
}

/// Wraps packets into one compressed packet. Equal packets make equal bytes.
pub struct Packer {
    zlib: Compress,
    deflated: Vec<u8>,
    packet: Buf,
}

impl Default for Packer {
    fn default() -> Packer {
        Packer::new()
    }
}

impl Packer {
    /// For a new file.
    #[must_use]
    pub fn new() -> Packer {
        // With zlib's header: Perfetto refuses a bare deflate stream.
        Packer { zlib: Compress::new(Compression::fast(), true), deflated: Vec::new(), packet: Buf::new() }
    }

    /// One packet with these in it; they themselves where they cannot be compressed.
    #[must_use]
    pub fn pack<'p>(&'p mut self, chunk: &'p [u8]) -> &'p [u8] {
        self.zlib.reset();
        self.deflated.clear();
        // More than deflate ever adds: 5 bytes a block of 16 KiB and a frame.
        self.deflated.reserve(chunk.len() + chunk.len() / 1000 + 64);
        let status = self.zlib.compress_vec(chunk, &mut self.deflated, FlushCompress::Finish);
        if !matches!(status, Ok(flate2::Status::StreamEnd)) {
            return chunk;
        }
        self.packet.clear();
        let deflated = &self.deflated;
        self.packet.message(trace::PACKET, |packet| packet.bytes_field(trace_packet::COMPRESSED_PACKETS, deflated));
        self.packet.bytes()
    }
}
