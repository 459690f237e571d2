//! Equal process ids: each host counts its own, each container counts from 1, and Perfetto takes
//! equal ids for one process.

use std::collections::{BTreeSet, HashMap};

use super::members::replaced;
use crate::model::ids::ProcessTag;
use crate::trace::fields::{
    interned_data, interned_graphics_context as context, process_descriptor, thread_descriptor, trace_packet,
    track_descriptor,
};
use crate::trace::reader::Packet;
use crate::trace::reader::wire::{fields, put_bytes, put_uint};
use crate::trace::writer::TRACK_BITS;
use crate::trace::{names, stages};

/// Linux gives no process a larger id. A process's further GPUs have ids above it: this times the
/// GPU.
const SYSTEM: u64 = 1 << 22;

/// The processes of the files.
#[derive(Default)]
pub(super) struct Numbers(Vec<Process>);

/// A process of a file.
struct Process {
    pid: u64,
    name: String,
    /// Its tags: what an earlier merge put beside a recording has one of its own.
    marks: BTreeSet<u64>,
}

/// New ids, by process tag and old id.
#[derive(Default)]
pub(super) struct Renumbered(HashMap<(u64, u64), u64>);

impl Numbers {
    /// Takes the next packet of a file.
    pub(super) fn look(&mut self, packet: &Packet<'_>) {
        let Some(descriptor) = packet.track_descriptor() else { return };
        if let Some(process) = &descriptor.process
            && let Ok(pid) = u64::try_from(process.pid())
        {
            self.add(pid % SYSTEM, process.process_name(), descriptor.uuid() >> TRACK_BITS);
        }
    }

    fn add(&mut self, pid: u64, name: &str, mark: u64) {
        let is_it = |known: &&mut Process| known.pid == pid && (known.name == name || known.marks.contains(&mark));
        match self.0.iter_mut().find(is_it) {
            Some(known) => _ = known.marks.insert(mark),
            None => self.0.push(Process { pid, name: name.to_owned(), marks: BTreeSet::from([mark]) }),
        }
    }

    /// Adds those of another file.
    pub(super) fn merge(&mut self, other: Numbers) {
        self.0.extend(other.0);
    }

    /// New ids for processes whose id an earlier process has.
    pub(super) fn renumbered(&self) -> Renumbered {
        let mut taken: BTreeSet<u64> = self.0.iter().map(|process| process.pid).collect();
        let mut free = (1..SYSTEM).rev();
        let (mut seen, mut new) = (BTreeSet::new(), HashMap::new());
        for Process { pid, marks, .. } in self.0.iter().filter(|process| !seen.insert(process.pid)) {
            if let Some(other) = free.find(|other| taken.insert(*other)) {
                new.extend(marks.iter().map(|mark| ((*mark, *pid), other)));
            }
        }
        Renumbered(new)
    }
}

impl Renumbered {
    pub(super) fn concern(&self, marks: &BTreeSet<u64>) -> bool {
        self.0.keys().any(|(mark, _)| marks.contains(mark))
    }

    /// The new id of a process, or of one of its further GPUs.
    fn new_pid(&self, mark: u64, pid: u64) -> Option<u64> {
        Some(self.0.get(&(mark, pid % SYSTEM))? + pid / SYSTEM * SYSTEM)
    }

    /// A packet that describes a process, a thread or a GPU's context, if the process has a new id.
    /// The process says which one it has on its host.
    pub(super) fn packet(&self, packet: &[u8]) -> Option<Vec<u8>> {
        if self.0.is_empty() {
            return None;
        }
        let described = self.described(packet);
        let packet = described.as_deref().unwrap_or(packet);
        let interned = fields(packet).find(|field| field.number == trace_packet::INTERNED_DATA);
        let interned = interned.and_then(|interned| self.interned(interned.bytes()));
        interned.map(|new| replaced(packet, trace_packet::INTERNED_DATA, &new)).or(described)
    }

    /// The same for interned data: render stages tell their process by the context.
    pub(super) fn interned(&self, interned: &[u8]) -> Option<Vec<u8>> {
        let is_context = |number| number == interned_data::GRAPHICS_CONTEXTS;
        if self.0.is_empty() || fields(interned).all(|entry| !is_context(entry.number)) {
            return None;
        }
        let mut changes = false;
        let mut out = Vec::with_capacity(interned.len() + 8);
        for entry in fields(interned) {
            let uint = |which| Some(fields(entry.bytes()).find(|field| field.number == which)?.uint());
            let new = || {
                let mark = uint(context::IID)? >> stages::NUMBER_BITS & ((1 << ProcessTag::BITS) - 1);
                self.new_pid(mark, uint(context::PID)?)
            };
            match is_context(entry.number).then(new).flatten() {
                Some(new) => {
                    changes = true;
                    put_bytes(&mut out, entry.number, &with_uint(entry.bytes(), context::PID, new));
                }
                None => out.extend_from_slice(entry.raw),
            }
        }
        changes.then_some(out)
    }

    fn described(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let descriptor = fields(packet).find(|field| field.number == trace_packet::TRACK_DESCRIPTOR)?.bytes();
        let mark = fields(descriptor).find(|field| field.number == track_descriptor::UUID)?.uint() >> TRACK_BITS;
        let what =
            [(track_descriptor::PROCESS, process_descriptor::PID), (track_descriptor::THREAD, thread_descriptor::PID)];
        let (field, number) =
            what.iter().find_map(|(what, pid)| Some((fields(descriptor).find(|it| it.number == *what)?, *pid)))?;
        let pid = fields(field.bytes()).find(|field| field.number == number)?.uint();
        let mut out = with_uint(field.bytes(), number, self.new_pid(mark, pid)?);
        // An earlier merge may have given it another id, and says which it has.
        let mut labels = fields(field.bytes()).filter(|part| part.number == process_descriptor::PROCESS_LABELS);
        let is_told = labels.any(|label| names::told_pid(&String::from_utf8_lossy(label.bytes())).is_some());
        if field.number == track_descriptor::PROCESS && pid < SYSTEM && !is_told {
            put_bytes(&mut out, process_descriptor::PROCESS_LABELS, names::pid_on_its_host(pid).as_bytes());
        }
        Some(replaced(packet, trace_packet::TRACK_DESCRIPTOR, &replaced(descriptor, field.number, &out)))
    }
}

/// A message with another number in one of its fields.
fn with_uint(message: &[u8], number: u32, new: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len() + 8);
    for field in fields(message) {
        if field.number == number { put_uint(&mut out, number, new) } else { out.extend_from_slice(field.raw) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pids_that_are_taken_change() {
        let mut numbers = Numbers::default();
        // The second file is a merge with another tool's file. The third one's host has the same
        // name.
        for file in [&[(1, "a", 1), (SYSTEM - 1, "a", 1)][..], &[(7, "b", 2), (1, "b", 2), (1, "b", 4)], &[(1, "a", 3)]]
        {
            let mut of_file = Numbers::default();
            file.iter().for_each(|(pid, name, mark)| of_file.add(*pid, name, *mark));
            numbers.merge(of_file);
        }
        let Renumbered(new) = numbers.renumbered();
        assert_eq!(new, HashMap::from([((2, 1), SYSTEM - 2), ((4, 1), SYSTEM - 2), ((3, 1), SYSTEM - 3)]));
    }

    #[test]
    fn a_process_its_threads_and_its_gpus_are_renumbered_alike() {
        use crate::trace::reader::TracePacket;
        use crate::trace::reader::proto::perfetto::protos::{ProcessDescriptor, ThreadDescriptor, TrackDescriptor};
        use prost::Message as _;

        let renumbered = Renumbered(HashMap::from([((2, 7), 100)]));
        let described = |mark: u64, process: Option<i32>, thread: Option<i32>| {
            let descriptor = TrackDescriptor {
                uuid: Some(mark << TRACK_BITS | 5),
                process: process.map(|pid| ProcessDescriptor { pid: Some(pid), ..Default::default() }),
                thread: thread.map(|pid| ThreadDescriptor { pid: Some(pid), tid: Some(7), ..Default::default() }),
                ..Default::default()
            };
            let packet = TracePacket { track_descriptor: Some(descriptor), ..Default::default() };
            let new = renumbered.packet(&packet.encode_to_vec())?;
            TracePacket::decode(&new[..]).unwrap().track_descriptor
        };
        let process = described(2, Some(7), None).unwrap().process.unwrap();
        assert_eq!((process.pid(), &process.process_labels[..]), (100, &["pid 7 on its host".to_owned()][..]));
        assert_eq!(names::told_pid(&process.process_labels[0]), Some(7));
        let gpu = described(2, Some(3 << 22 | 7), None).unwrap().process.unwrap();
        assert_eq!((gpu.pid(), gpu.process_labels.len()), (3 << 22 | 100, 0));
        let thread = described(2, None, Some(7)).unwrap().thread.unwrap();
        assert_eq!((thread.pid(), thread.tid()), (100, 7));
        assert_eq!(described(1, Some(7), None), None, "another process");
        assert_eq!(described(2, Some(8), None), None, "another number");
    }

    #[test]
    fn contexts_of_render_stages_are_renumbered_with_their_process() {
        use crate::trace::reader::TracePacket;
        use crate::trace::reader::proto::perfetto::protos::{
            InternedData, InternedGpuRenderStageSpecification, InternedGraphicsContext,
        };
        use prost::Message as _;

        let renumbered = Renumbered(HashMap::from([((2, 7), 100)]));
        let interned = |contexts: &[(u64, i32)]| TracePacket {
            timestamp: Some(5),
            interned_data: Some(InternedData {
                graphics_contexts: contexts
                    .iter()
                    .map(|(mark, pid)| InternedGraphicsContext {
                        iid: Some(mark << stages::NUMBER_BITS | 3),
                        pid: Some(*pid),
                        ..Default::default()
                    })
                    .collect(),
                gpu_specifications: vec![InternedGpuRenderStageSpecification { iid: Some(1), ..Default::default() }],
                ..Default::default()
            }),
            ..Default::default()
        };
        let new = renumbered.packet(&interned(&[(2, 7), (1, 7), (2, 8)]).encode_to_vec()).unwrap();
        assert_eq!(TracePacket::decode(&new[..]).unwrap(), interned(&[(2, 100), (1, 7), (2, 8)]));
        assert_eq!(renumbered.packet(&interned(&[(1, 7)]).encode_to_vec()), None, "another process");
        assert_eq!(renumbered.packet(&interned(&[]).encode_to_vec()), None, "no context");
    }
}
