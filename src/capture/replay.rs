//! Makes a recording again from its capture (pure except for reading the file).

use std::io::Read;

use super::dictionary::Dictionary;
use super::read::{Chunks, Damage, Decoder, Entry, Error, Fault};
use crate::pipeline::Pipeline;
use crate::pipeline::input::{Begin, Input, remark};
use crate::trace::packer::Packer;

/// How a capture ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// With the recording's end.
    Closed,
    /// Before the recording's end, for this reason.
    CutShort(String),
    /// Without an end: the process was killed.
    Open,
}

/// The trace of a capture, as it is made.
#[derive(Default)]
pub struct Replay {
    pipeline: Option<Pipeline>,
    dictionary: Dictionary,
    packer: Option<Packer>,
    /// Correlation id of the call whose kernels are explained.
    explains: Option<u32>,
    /// After how many bytes of packets the trace is restarted, if not as in a recording.
    restart_after: Option<usize>,
}

/// Reads a capture from beginning to end and passes each entry to `each`.
///
/// # Errors
///
/// What is wrong with the capture. The entries before that were passed on.
pub fn walk(source: impl Read, mut each: impl FnMut(&Entry<'_>)) -> Result<End, Error> {
    let mut chunks = Chunks::open(source)?;
    let mut decoder = Decoder::new(chunks.format());
    let (mut has_begun, mut end) = (false, None);
    while let Some((at, mut entries)) = chunks.next_chunk()? {
        let damaged = |fault| Error::Damaged { at, what: Damage::Entry(fault) };
        while let Some(entry) = decoder.next(&mut entries).map_err(damaged)? {
            if end.is_some() {
                return Err(damaged(Fault("an entry after the end")));
            }
            match &entry {
                Entry::Begin(..) if has_begun => return Err(damaged(Fault("a second beginning"))),
                Entry::Begin(..) => has_begun = true,
                // May also be the first entry, if the disk was full.
                Entry::CutShort(why) => end = Some(End::CutShort((*why).to_owned())),
                _ if !has_begun => return Err(damaged(Fault("its first entry is not the recording's beginning"))),
                Entry::Input(Input::End(_)) => end = Some(End::Closed),
                _ => {}
            }
            each(&entry);
        }
    }
    Ok(end.unwrap_or(End::Open))
}

impl Replay {
    /// A trace that starts with the next entry.
    #[must_use]
    pub fn new() -> Replay {
        Replay::default()
    }

    /// A trace with the decisions about the kernels of the call with this correlation id.
    #[must_use]
    pub fn explaining(correlation: u32) -> Replay {
        Replay { explains: Some(correlation), ..Replay::default() }
    }

    /// A trace that is restarted after so many bytes of packets, which a recording does after many
    /// more: for tests of what reads traces.
    #[must_use]
    pub fn restarting(after: usize) -> Replay {
        Replay { restart_after: Some(after), ..Replay::default() }
    }

    /// The decisions since the last call, one per line.
    pub fn take_explained(&mut self) -> Vec<String> {
        self.pipeline.as_mut().map(Pipeline::take_explained).unwrap_or_default()
    }

    /// Takes the next entry, and passes the packets that it completes to `sink`. `remark` is drawn
    /// at the beginning of the trace: it says so if another version makes the replay.
    pub fn take(&mut self, entry: &Entry<'_>, remark: Option<&str>, sink: &mut dyn FnMut(&[u8])) {
        if let Entry::Begin(begin, compresses) = entry {
            self.begin(begin, *compresses, remark);
        }
        let Some(pipeline) = &mut self.pipeline else { return };
        let mut is_due = false;
        match entry {
            Entry::Input(input) => {
                pipeline.take(input);
                is_due = matches!(input, Input::Flush | Input::End(_));
            }
            Entry::Buffer { now, bytes, steps, answers } => {
                pipeline.buffer(*now, bytes, steps.again(), &mut self.dictionary.answering(answers));
            }
            Entry::Begin(..) => {}
            Entry::CutShort(why) => pipeline.remark(remark::CAPTURE_ENDED, why),
        }
        // Messages of the recording are not repeated.
        let _ = pipeline.take_said();
        if is_due || pipeline.is_full() || self.restart_after.is_some() {
            self.write(sink);
        }
    }

    /// Passes on the remaining packets of a capture that does not reach the recording's end.
    pub fn finish(mut self, sink: &mut dyn FnMut(&[u8])) {
        self.write(sink);
    }

    fn begin(&mut self, begin: &Begin, compresses: bool, remark: Option<&str>) {
        let mut pipeline = Pipeline::new(begin);
        if let Some(text) = remark {
            pipeline.remark(remark::REPLAYED, text);
        }
        if let Some(correlation) = self.explains {
            pipeline.explain(correlation);
        }
        self.restart_after.iter().for_each(|after| pipeline.restart_after(*after));
        self.pipeline = Some(pipeline);
        self.packer = compresses.then(Packer::new);
    }

    fn write(&mut self, sink: &mut dyn FnMut(&[u8])) {
        let chunk = self.pipeline.as_mut().map(Pipeline::chunk).unwrap_or_default();
        if !chunk.is_empty() {
            match &mut self.packer {
                Some(packer) => sink(packer.pack(&chunk)),
                None => sink(&chunk),
            }
        }
    }
}
