//! Kineto's arrows from calls to what they asked of the GPU (`ac2g`), for files whose events do not have the number of their call.

use std::collections::HashMap;

use super::event::Id;
use crate::import::{Profile, Span};

/// Where an arrow begins or ends: process or GPU, thread or stream, and when.
type End = (Id, Id, i64);

/// The arrows of a file. An arrow's number is that of the call.
#[derive(Default)]
pub(super) struct Arrows {
    begins: HashMap<i64, Vec<End>>,
    ends: HashMap<End, i64>,
}

impl Arrows {
    /// Where one begins.
    pub(super) fn begin(&mut self, number: i64, end: End) {
        self.begins.entry(number).or_default().push(end);
    }

    /// Where one ends.
    pub(super) fn end(&mut self, number: i64, end: End) {
        self.ends.insert(end, number);
    }

    /// Gives what an arrow leads to the number of the call that it comes from, where neither says so itself.
    pub(super) fn follow(&self, profile: &mut Profile, calls: &[(Id, Id)], kernels: &[(Id, Id)], copies: &[(Id, Id)]) {
        if self.ends.is_empty() {
            return;
        }
        let mut places: HashMap<End, usize> = HashMap::new();
        for (at, (call, (pid, tid))) in profile.cuda_calls.iter().zip(calls).enumerate() {
            places.insert((pid.clone(), tid.clone(), call.span.start), at);
        }
        let targets = (profile.kernels.iter_mut().map(|it| (it.span, &mut it.correlation)).zip(kernels))
            .chain(profile.copies.iter_mut().map(|it| (it.span, &mut it.correlation)).zip(copies));
        for ((Span { start, .. }, correlation), (gpu, stream)) in targets {
            if *correlation != 0 {
                continue;
            }
            let Some(number) = self.ends.get(&(gpu.clone(), stream.clone(), start)) else { continue };
            let begins = self.begins.get(number).map_or(&[][..], Vec::as_slice);
            let [call] = begins.iter().filter_map(|begin| places.get(begin).copied()).collect::<Vec<_>>()[..] else {
                continue;
            };
            let call = &mut profile.cuda_calls[call];
            if call.correlation == 0 {
                call.correlation = u32::try_from(*number).unwrap_or(0);
            }
            *correlation = call.correlation;
        }
    }
}
