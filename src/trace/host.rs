//! What host threads did, by CUPTI. It comes later than what NCCL says of them and may lie inside of it or across, so it is not drawn among
//! NCCL's calls but on tracks below the thread's own.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::fields::nccl;
use super::lanes::{FamilyId, Look, Placing};
use super::names::Text;
use super::tracks::Tracks;
use super::writer::{Category, Form, Place, Track};
use crate::model::activity::{Api, CudaCall, Marker};
use crate::model::time::HostNs;

/// Calls of one thread that seem to overlap, because some came late.
const LANES: usize = 8;
/// Threads that get tracks of their own; the rest share one family each, so that the viewer stays usable.
const THREADS: usize = 512;
/// Where these are found.
const OTHERS: i32 = i32::MIN;
/// Domains of NVTX's that get tracks of their own, over all threads; the rest share those of the default one.
const DOMAINS: usize = 256;
/// Ranges that overlap without nesting, which those with a handle may.
const RANGE_LANES: usize = 16;
/// Where the ranges of the process are found.
const PROCESS: i32 = 0;

/// The host threads of CUPTI's records, by the system's number.
#[derive(Default)]
pub(super) struct Host {
    threads: FxHashMap<i32, Families>,
    ranges: FxHashMap<(i32, Option<Arc<str>>), FamilyId>,
    /// The ranges are those of PyTorch's profiler, not NVTX's.
    by_pytorch: bool,
}

/// The tracks of a thread, each made with the first thing drawn on it.
#[derive(Default)]
struct Families {
    parent: Option<Track>,
    /// The thread's own track was made here: NCCL had not been called on it.
    is_new: bool,
    /// Calls, by whose functions they are.
    calls: FxHashMap<Api, FamilyId>,
}

impl Host {
    /// By what ranges were marked: their category, how their tracks begin, and what these show.
    fn marked(&self) -> (Category, &'static str, &'static str) {
        match self.by_pytorch {
            false => (Category::Nvtx, "NVTX", "Ranges that the program marks by NVTX, by CUPTI."),
            true => (Category::PyTorch, "PyTorch", "Operators and annotations, by PyTorch's profiler."),
        }
    }

    /// The track of a thread that CUPTI's records named before its first call of NCCL's; once.
    pub(super) fn take_track(&mut self, tid: i32) -> Option<Track> {
        let families = self.threads.get_mut(&tid).filter(|families| families.is_new)?;
        families.is_new = false;
        families.parent
    }
}

impl Tracks {
    /// A call into CUDA.
    pub(super) fn cuda_call(&mut self, call: &CudaCall) {
        let (start, end) = (call.span.start, call.span.end);
        let families = self.host_thread(call.tid, &call.thread, start);
        let (parent, known) = (families.parent, families.calls.get(&call.api).copied());
        let (rank, description) = match call.api {
            Api::Runtime => (1, "Calls into CUDA, by CUPTI."),
            Api::Driver => (2, "Calls into CUDA, by CUPTI."),
            Api::Hip => (3, "Calls into HIP."),
        };
        let placing = Placing { parent, rank, description };
        let name = call.api.name();
        let family = known.unwrap_or_else(|| match parent {
            Some(_) => self.lanes.family(name.into(), placing, LANES),
            None => self.lanes.shared_family(format!("{name} · other threads"), placing),
        });
        self.host_thread(call.tid, &call.thread, start).calls.insert(call.api, family);
        self.args.clear().nonzero(nccl::CORRELATION, u64::from(call.correlation)).time_error(call.span.error_ns);
        if call.result != 0 {
            self.args.uint(nccl::RESULT, u64::from(call.result));
        }
        if parent.is_none() {
            self.args.int(nccl::TID, call.tid);
        }
        self.lanes.whole(family, start, end, &Look::new(Category::Cuda, &Text(&call.name)), &mut self.args);
    }

    /// From here on ranges are those that PyTorch's profiler recorded: its operators, and what the program marked with it.
    pub fn ranges_by_pytorch(&mut self) {
        self.host.by_pytorch = true;
    }

    /// A range of NVTX, or a mark. Ranges are drawn when they have ended, inner ones first.
    pub(super) fn range(&mut self, marker: &Marker, end: Option<HostNs>, is_open: bool) {
        let family = self.ranges_of(marker);
        self.args.clear().time_error(marker.error_ns);
        if let Some(domain) = marker.domain.as_ref().filter(|_| !self.host.by_pytorch) {
            self.args.text(nccl::NVTX_DOMAIN, domain);
        }
        if self.lanes.is_shared(family)
            && let Some(tid) = marker.tid
        {
            self.args.int(nccl::TID, tid);
        }
        if is_open {
            self.args.text(nccl::DOUBT, "no end before that of the recording: begin only");
        }
        let (name, category) = (Text(&marker.name), self.host.marked().0);
        match end {
            Some(end) => self.lanes.nested(family, marker.time, end, &Look::new(category, &name), &mut self.args),
            None => self.lanes.instant(family, marker.time, category, &name, &self.args),
        }
    }

    fn ranges_of(&mut self, marker: &Marker) -> FamilyId {
        let (parent, key) = match marker.tid {
            Some(tid) => {
                let key = self.host_thread_key(tid);
                (self.host_thread(tid, &marker.thread, marker.time).parent, key)
            }
            None => (self.process(), PROCESS),
        };
        let crowded = self.host.ranges.len() >= DOMAINS + THREADS || !self.lanes.is_roomy();
        let domain = marker.domain.clone().filter(|_| !crowded);
        if let Some(&family) = self.host.ranges.get(&(key, domain.clone())) {
            return family;
        }
        let (_, word, description) = self.host.marked();
        let name = domain.as_ref().map_or_else(|| word.to_owned(), |domain| format!("{word} · {domain}"));
        let placing = Placing { parent, rank: 0, description };
        let family = match key {
            OTHERS => self.lanes.shared_family(name, placing),
            _ => self.lanes.family(name, placing, RANGE_LANES),
        };
        self.host.ranges.insert((key, domain), family);
        family
    }

    /// Where the tracks of a thread are found.
    fn host_thread_key(&self, tid: i32) -> i32 {
        let full = self.host.threads.len() >= THREADS || !self.lanes.is_roomy();
        if full && !self.host.threads.contains_key(&tid) { OTHERS } else { tid }
    }

    /// The tracks of a thread, below its own.
    fn host_thread(&mut self, tid: i32, name: &str, time: HostNs) -> &mut Families {
        let key = self.host_thread_key(tid);
        if !self.host.threads.contains_key(&key) {
            let mut families = Families::default();
            if key != OTHERS {
                families.parent = self.track_of_tid(tid, time);
                if families.parent.is_none() {
                    let form = Form::Thread { pid: self.pid, tid, name };
                    families.parent = self.lanes.writer.track(form, Place::default());
                    families.is_new = true;
                }
            }
            self.host.threads.insert(key, families);
        }
        self.host.threads.entry(key).or_default()
    }
}
