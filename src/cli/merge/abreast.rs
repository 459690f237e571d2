//! Many files on all cores: they are read in parallel, and written one after the other while their
//! packets are compressed.

use std::fs::File;
use std::io::{self, Take, Write as _};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use crate::cli::reason::Reason;
use crate::trace::packer::Packer;
use crate::trace::reader::{self, blocks};

/// How many files' results each thread may have ready before they are taken in order.
const AHEAD: usize = 2;

/// Calls `work` for all items in parallel, and `each` with the results, in the items' order. `work`
/// also gets how many threads it may use itself. Memory holds little more than the items being
/// worked on.
pub(in crate::cli) fn look<'a, T: Sync, R: Send>(
    all: &'a [T],
    work: impl Fn(&'a T, usize) -> R + Sync,
    mut each: impl FnMut(&'a T, R),
) {
    let cores = blocks::cores();
    let abreast = cores.min(all.len());
    if abreast < 2 {
        all.iter().for_each(|it| each(it, work(it, cores)));
        return;
    }
    thread::scope(|scope| {
        let worker = |first: usize| {
            let (done, made) = sync_channel(AHEAD);
            let work = &work;
            scope.spawn(move || {
                let mut its = all.iter().skip(first).step_by(abreast);
                its.try_for_each(|it| done.send(work(it, cores / abreast)))
            });
            made
        };
        let workers: Vec<_> = (0..abreast).map(worker).collect();
        for (it, made) in all.iter().zip(workers.iter().cycle()) {
            // A thread that panicked is joined at the end of the scope, which then panics.
            let Ok(made) = made.recv() else { return };
            each(it, made);
        }
    });
}

/// What comes next in the output file.
pub(super) enum Piece<'a> {
    /// Packets to compress.
    Packets(Vec<u8>),
    /// Bytes to write as they are.
    Ready(Vec<u8>),
    /// A part of another file, to copy as it is.
    File(&'a Path, Take<File>),
}

/// Takes the pieces of the output file.
pub(super) struct Pieces<'a> {
    to: Vec<SyncSender<Piece<'a>>>,
    next: usize,
}

impl<'a> Pieces<'a> {
    /// Hands on the next piece. Waits while too many are being worked on.
    ///
    /// # Errors
    ///
    /// If nothing more is written; [`write()`] returns the reason.
    pub(super) fn put(&mut self, piece: Piece<'a>) -> Result<(), reader::Error> {
        let to = self.next % self.to.len();
        self.next += 1;
        self.to[to].send(piece).map_err(|_| reader::Error::Io(io::ErrorKind::BrokenPipe.into()))
    }
}

/// Writes the pieces that `make` hands over, in order. Returns how many bytes that was. Memory
/// holds a few pieces for each core.
pub(super) fn write<'a>(
    path: &Path,
    output: &mut File,
    make: impl FnOnce(&mut Pieces<'a>) -> Result<(), Reason>,
) -> Result<u64, Reason> {
    thread::scope(|scope| {
        let (mut to, mut from) = (Vec::new(), Vec::new());
        for _ in 0..blocks::cores() {
            let (piece, pieces) = sync_channel(1);
            let (done, ready) = sync_channel(1);
            scope.spawn(move || {
                let mut packer = Packer::new();
                let packed = |piece| match piece {
                    Piece::Packets(packets) => Piece::Ready(packer.pack(&packets).to_vec()),
                    other => other,
                };
                pieces.into_iter().map(packed).try_for_each(|piece| done.send(piece))
            });
            to.push(piece);
            from.push(ready);
        }
        let written = scope.spawn(move || {
            let mut written = 0;
            // The first thread without another piece ends it: the threads after it have none
            // either.
            for piece in from.iter().cycle().map_while(|from| from.recv().ok()) {
                written += match piece {
                    Piece::Packets(bytes) | Piece::Ready(bytes) => {
                        output.write_all(&bytes).map_err(Reason::write(path))?;
                        bytes.len() as u64
                    }
                    Piece::File(from, mut bytes) => {
                        io::copy(&mut bytes, output).map_err(Reason::failed(format!("copy {}", from.display())))?
                    }
                };
            }
            Ok::<u64, Reason>(written)
        });
        let mut pieces = Pieces { to, next: 0 };
        let made = make(&mut pieces);
        drop(pieces);
        // If writing failed, making failed because of it.
        let written = written.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        made.map(|()| written)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_side_by_side_work_are_in_order() {
        let numbers: Vec<u64> = (0..1_000).collect();
        let mut made = Vec::new();
        let wait = |number: u64| thread::sleep(std::time::Duration::from_micros(number * 7 % 50));
        let work = |number: &u64, threads: usize| {
            wait(*number);
            number + threads.min(1) as u64
        };
        look(&numbers, work, |number, its| made.push((*number, its)));
        assert_eq!(made, (0..1_000).map(|number| (number, number + 1)).collect::<Vec<_>>());
        look(&[] as &[u64], work, |_, _| panic!("there is none"));
    }

    #[test]
    fn pieces_are_written_in_order_until_the_disk_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("written");
        let mut output = File::create(&path).unwrap();
        let ready = |n: u8| Piece::Ready(vec![n; 1 + usize::from(n)]);
        let all = |pieces: &mut Pieces<'_>| (0..100).try_for_each(|n| pieces.put(ready(n)));
        let written = write(&path, &mut output, |pieces| all(pieces).map_err(Reason::file(&path))).unwrap();
        let expected: Vec<u8> = (0..100_u8).flat_map(|n| vec![n; 1 + usize::from(n)]).collect();
        assert_eq!((std::fs::read(&path).unwrap(), written), (expected, 5_050));

        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let reason = write(Path::new("/dev/full"), &mut full, |pieces| {
            while pieces.put(ready(7)).is_ok() {}
            Err("not this one".into())
        });
        assert!(reason.unwrap_err().to_string().contains("No space left on device"));
    }
}
