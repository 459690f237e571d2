//! The processes in the trace: the recorded one, with its first GPU, and one for each further GPU.

use rustc_hash::FxHashMap;

use super::names;
use super::writer::{Form, Place, Track, Writer};
use crate::model::activity::Device;

/// GPUs of a process that get a process of their own in the trace.
const SEATS: usize = 63;
/// The most GPUs of a process.
const DEVICES: usize = 64;
/// The display ranks of a process's groups.
const COMMS_RANK: u32 = 1;
const GPU_RANK: u32 = 2;

const COMMS: &str = "One track per communicator, in order of creation.";
const GPU: &str = "What ran on the GPU, from CUPTI: one track per stream.";

/// What names a process in the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its id.
    pub pid: i32,
    /// `rank 3 · node17 · GPU 3 (H200)`; without the GPU if it is not known when the recording
    /// starts.
    pub name: String,
    /// Further facts, shown beside the name.
    pub labels: Vec<String>,
    /// Its rank in the job, if that is known.
    pub rank: Option<u32>,
    /// Ranks of the job, if that is known.
    pub world_size: Option<u32>,
}

/// The recorded process and its GPUs.
pub(super) struct Processes {
    pub(super) pid: i32,
    /// The process's name without its GPU: `rank 3 · node17`.
    pub(super) who: String,
    rank: Option<u32>,
    world_size: Option<u32>,
    /// The process itself, and the GPU whose tracks are in it.
    first: Seat,
    first_device: Option<u32>,
    /// The seats of further GPUs.
    seats: FxHashMap<u32, Seat>,
    /// Name and UUID by device number; the name is empty if it is not known.
    devices: Vec<(String, [u8; 16])>,
}

/// The tracks of one GPU. Those of the first GPU are in the process itself, those of each further
/// GPU in a process of its own.
#[derive(Clone, Copy)]
struct Seat {
    process: Option<Track>,
    comms: Option<Track>,
    /// Made when something is first drawn in it: many recordings have no CUPTI.
    gpu: Option<Track>,
}

impl Seat {
    fn new(writer: &mut Writer, form: Form<'_>, rank: u32) -> Seat {
        let process = writer.track(form, Place { orders_children: true, rank: Some(rank), ..Place::default() });
        Seat { process, comms: group(writer, process, "Communicators", COMMS_RANK, COMMS), gpu: None }
    }
}

impl Processes {
    pub(super) fn new(writer: &mut Writer, process: &ProcessInfo) -> Processes {
        let (who, first_device) = names::without_gpu(&process.name);
        let form = Form::Process { pid: process.pid, name: &process.name, labels: &process.labels };
        Processes {
            pid: process.pid,
            who: who.to_owned(),
            rank: process.rank,
            world_size: process.world_size,
            first: Seat::new(writer, form, process_rank(process.rank, 0)),
            first_device,
            seats: FxHashMap::default(),
            devices: Vec::new(),
        }
    }

    /// The process itself.
    pub(super) fn track(&self) -> Option<Track> {
        self.first.process
    }

    /// A group for what belongs to no GPU. `rank` is its place in the process.
    pub(super) fn group(&self, writer: &mut Writer, name: &str, rank: u32, description: &str) -> Option<Track> {
        group(writer, self.first.process, name, rank, description)
    }

    /// This process's rank in its job and the size of the job, if they are known.
    pub(super) fn world(&self) -> Option<(u32, u32)> {
        self.rank.zip(self.world_size)
    }

    /// The group of a GPU's communicators; that of an unknown GPU is in the process itself.
    pub(super) fn comms(&mut self, writer: &mut Writer, device: Option<u32>) -> Option<Track> {
        self.seat(writer, device).comms
    }

    /// The group of a GPU's streams.
    pub(super) fn gpu(&mut self, writer: &mut Writer, device: Option<u32>) -> Option<Track> {
        let seat = self.seat(writer, device);
        if seat.gpu.is_none() {
            seat.gpu = group(writer, seat.process, "GPU", GPU_RANK, GPU);
        }
        seat.gpu
    }

    /// From here on a GPU's name and number are known. Returns whether they were unknown before.
    pub(super) fn found(&mut self, writer: &mut Writer, device: &Device) -> bool {
        let number = device.device as usize;
        if number >= DEVICES || self.model(device.device).is_some() {
            return false;
        }
        self.devices.resize(self.devices.len().max(number + 1), Default::default());
        self.devices[number] = (device.name.to_string(), device.uuid);
        let known: Vec<_> = self.devices.iter().map(|(name, uuid)| (&**name, *uuid)).collect();
        writer.gpus(&known);
        true
    }

    /// A GPU's model name, if it is known.
    fn model(&self, device: u32) -> Option<&str> {
        self.devices.get(device as usize).map(|(name, _)| &**name).filter(|name| !name.is_empty())
    }

    /// Where the tracks of a GPU are; those of an unknown GPU are in the process itself.
    fn seat(&mut self, writer: &mut Writer, device: Option<u32>) -> &mut Seat {
        let Some(device) = device else { return &mut self.first };
        if *self.first_device.get_or_insert(device) == device {
            return &mut self.first;
        }
        if !self.seats.contains_key(&device) {
            if self.seats.len() >= SEATS {
                return &mut self.first;
            }
            // A Linux process id has at most 22 bits.
            let made_up = (device as i32 + 1) << 22 | self.pid;
            let name = names::on_gpu(&self.who, device, self.model(device));
            let form = Form::Process { pid: made_up, name: &name, labels: &[names::of_process(self.pid)] };
            let seat = Seat::new(writer, form, process_rank(self.rank, device.saturating_add(1)));
            self.seats.insert(device, seat);
        }
        self.seats.get_mut(&device).unwrap_or(&mut self.first)
    }
}

/// A group of tracks, which keeps them in order.
pub(super) fn group(
    writer: &mut Writer,
    parent: Option<Track>,
    name: &str,
    rank: u32,
    description: &str,
) -> Option<Track> {
    let place = Place { parent, rank: Some(rank), orders_children: true, description, ..Place::default() };
    writer.track(Form::Plain { name }, place)
}

/// The display rank of a process in a file: by the job's ranks, processes without one last, and a
/// process's further GPUs right after it.
fn process_rank(rank: Option<u32>, seat: u32) -> u32 {
    const SEAT_BITS: u32 = 7;
    let last = u32::MAX >> 1 >> SEAT_BITS;
    rank.unwrap_or(last).min(last) << SEAT_BITS | seat.min((1 << SEAT_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::process_rank;

    #[test]
    fn processes_go_by_rank_and_each_of_their_gpus_behind_them() {
        let ranks = [Some(0), Some(1), Some(2), Some(10), Some(1_000_000), None];
        let places: Vec<u32> =
            ranks.iter().flat_map(|rank| [0, 1, 2, 64].map(|seat| process_rank(*rank, seat))).collect();
        assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{places:?}");
        assert!(places.iter().all(|place| i32::try_from(*place).is_ok()), "the field is an int32: {places:?}");
    }
}
