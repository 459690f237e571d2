//! Kernel channels: on their kernel's stream (`gpu`), or, if their kernel is not known, on tracks
//! by communicator.

use rustc_hash::FxHashMap;

use super::canvas::{Canvas, FAMILIES, LANES};
use super::comms::Comms;
use super::flows;
use super::lanes::{FamilyId, Look, Placing};
use super::names::{Fixed, OperationName, Text};
use super::words::{Category, track};
use super::writer::Track;
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Channel, Comm, Operation};

/// The channels whose kernel is not known.
pub(super) struct Channels {
    group: Option<Track>,
    /// By communicator and number.
    families: FxHashMap<(Handle, u8), FamilyId>,
}

impl Channels {
    pub(super) fn new(canvas: &mut Canvas) -> Channels {
        let description = "Kernel channels whose kernel is not known: by the GPU's timer if the host alone bounds \
                           it, otherwise as NCCL's threads saw them. The stamps themselves are in the arguments, \
                           on the GPU's own clock.";
        Channels { group: canvas.group("GPU channels", 4, description), families: FxHashMap::default() }
    }

    /// The tracks of a communicator's channels.
    pub(super) fn of_comm(&self, context: Handle) -> impl Iterator<Item = FamilyId> {
        self.families.iter().filter(move |((of, _), _)| *of == context).map(|(_, family)| *family)
    }

    /// The tracks of a channel.
    pub(super) fn family(
        &mut self,
        canvas: &mut Canvas,
        comms: &mut Comms,
        comm: Option<&Comm>,
        channel: u8,
    ) -> FamilyId {
        let key = (comm.map_or(Handle::NONE, |comm| comm.context), channel);
        if let Some(&family) = self.families.get(&key) {
            return family;
        }
        let label = comm.and_then(|comm| comms.label(canvas, comm));
        let full = self.families.len() >= FAMILIES || !canvas.lanes.is_roomy();
        let crowded = full || comm.is_some() && label.is_none();
        let key = if crowded { (Handle::NONE, u8::MAX) } else { key };
        if let Some(&family) = self.families.get(&key) {
            return family;
        }
        let name = match label {
            Some(label) if !crowded => format!("{label}{}{channel}", track::CHANNEL),
            _ => "other channels".into(),
        };
        let number = comm.filter(|_| !crowded).map_or(u32::MAX >> 10, |comm| comm.number);
        let rank = number.min(u32::MAX >> 10) << 8 | u32::from(channel);
        let place = Placing { parent: self.group, rank, description: "" };
        let family = canvas.family(name, place, Some(LANES).filter(|_| !crowded));
        self.families.insert(key, family);
        family
    }
}

/// Begins a channel, or a phase of one, on either kind of track.
pub(super) fn begin(
    canvas: &mut Canvas,
    family: FamilyId,
    id: Handle,
    time: HostNs,
    channel: &Channel<'_>,
    comm: Option<&Comm>,
    operation: Option<&Operation>,
) {
    match (channel.phase, operation) {
        (Some((_, name)), _) => canvas.begin(family, id, time, &Look::new(Category::Gpu, &Text(name))),
        (None, Some(operation)) => {
            let (of, number) = (operation.id, channel.channel);
            let arrows = [flows::to_channel(of, number), flows::to_proxy(of, number)];
            let name = OperationName { operation, prefix: "" };
            let look = Look::new(Category::Gpu, &name).of(operation.correlation(comm)).with(&arrows);
            canvas.begin(family, id, time, &look)
        }
        (None, None) => canvas.begin(family, id, time, &Look::new(Category::Gpu, &Fixed("unknown operation"))),
    };
}
