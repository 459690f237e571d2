//! Kineto's arrows from calls to their GPU work (`ac2g`), for files whose events do not have the
//! correlation id of their call.

use std::collections::HashMap;

use super::event::Id;
use crate::import::Profile;
use crate::model::time::FileNs;

/// Where and when an arrow begins or ends: process or GPU, and thread or stream, as indices into
/// the names, and the time.
type End = (u32, u32, FileNs);

/// The arrows of a file. An arrow's number is the correlation id of the call.
#[derive(Default)]
pub(super) struct Arrows {
    places: HashMap<Id, u32>,
    names: Vec<Id>,
    begins: HashMap<i64, Vec<End>>,
    ends: HashMap<End, i64>,
    /// Kernels and copies that do not say which call they come from, by index.
    kernels: Vec<(usize, End)>,
    copies: Vec<(usize, End)>,
}

impl Arrows {
    /// Where an arrow begins.
    pub(super) fn begin(&mut self, number: i64, (pid, tid): (&Id, &Id), time: FileNs) {
        let end = (self.place(pid), self.place(tid), time);
        self.begins.entry(number).or_default().push(end);
    }

    /// Where an arrow ends.
    pub(super) fn end(&mut self, number: i64, (gpu, stream): (&Id, &Id), time: FileNs) {
        let end = (self.place(gpu), self.place(stream), time);
        self.ends.insert(end, number);
    }

    /// A kernel that does not say which call it comes from.
    pub(super) fn kernel(&mut self, at: usize, (gpu, stream): (&Id, &Id), start: FileNs) {
        let end = (self.place(gpu), self.place(stream), start);
        self.kernels.push((at, end));
    }

    /// A copy that does not say which call it comes from.
    pub(super) fn copy(&mut self, at: usize, (gpu, stream): (&Id, &Id), start: FileNs) {
        let end = (self.place(gpu), self.place(stream), start);
        self.copies.push((at, end));
    }

    fn place(&mut self, id: &Id) -> u32 {
        if let Some(known) = self.places.get(id) {
            return *known;
        }
        let new = self.names.len() as u32;
        self.names.push(id.clone());
        self.places.insert(id.clone(), new);
        new
    }

    /// Gives kernels and copies at the end of an arrow the correlation id of the call that it comes
    /// from.
    pub(super) fn follow(&self, profile: &mut Profile, processes: &HashMap<Id, usize>) {
        if self.ends.is_empty() || self.kernels.is_empty() && self.copies.is_empty() {
            return;
        }
        let calls = profile.cuda_calls.iter().enumerate();
        let calls: HashMap<(usize, i64, FileNs), usize> =
            calls.map(|(at, call)| ((call.process, call.tid, call.span.start), at)).collect();
        let origin = |end: &End| -> Option<(usize, i64)> {
            let number = *self.ends.get(end)?;
            let begins = self.begins.get(&number)?.iter().filter_map(|(pid, tid, time)| {
                let process = processes.get(&self.names[*pid as usize])?;
                calls.get(&(*process, self.names[*tid as usize].number?, *time)).copied()
            });
            // In merged files several arrows may have the same number.
            let [call] = begins.collect::<Vec<_>>()[..] else { return None };
            Some((call, number))
        };
        let mut found = |end: &End| -> Option<u32> {
            let (call, number) = origin(end)?;
            let call = &mut profile.cuda_calls[call];
            if call.correlation == 0 {
                call.correlation = u32::try_from(number).unwrap_or(0);
            }
            Some(call.correlation)
        };
        let kernels: Vec<_> = self.kernels.iter().filter_map(|(at, end)| Some((*at, found(end)?))).collect();
        let copies: Vec<_> = self.copies.iter().filter_map(|(at, end)| Some((*at, found(end)?))).collect();
        kernels.into_iter().for_each(|(at, number)| profile.kernels[at].correlation = number);
        copies.into_iter().for_each(|(at, number)| profile.copies[at].correlation = number);
    }
}
