//! What host threads did, according to CUPTI. This arrives later than NCCL's calls and may nest in
//! them or cross them. So it is not drawn among NCCL's calls, but on tracks below the thread's own.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::canvas::Canvas;
use super::fields::nccl;
use super::lanes::{FamilyId, Look, Placing};
use super::names::Text;
use super::threads::Threads;
use super::words::{Category, track};
use super::writer::Track;
use crate::model::activity::{Api, CudaCall, Marker};
use crate::model::time::HostNs;

/// Lanes for calls of one thread that seem to overlap, because some arrived late.
const LANES: usize = 8;
/// Threads that get tracks of their own; the rest share one family of each kind, so that the viewer
/// stays usable.
const THREADS: usize = 512;
/// The key of the threads that share.
const OTHERS: i32 = i32::MIN;
/// NVTX domains that get tracks of their own, over all threads; the rest share those of the default
/// domain.
const DOMAINS: usize = 256;
/// Lanes for ranges that overlap without nesting, which ranges with a handle may do.
const RANGE_LANES: usize = 16;
/// The key of the ranges of the process.
const PROCESS: i32 = 0;

/// The host threads of CUPTI's records, by the system's thread id.
#[derive(Default)]
pub(super) struct Host {
    threads: FxHashMap<i32, Families>,
    ranges: FxHashMap<(i32, Option<Arc<str>>), FamilyId>,
    /// The ranges come from PyTorch's profiler, not from NVTX.
    by_pytorch: bool,
}

/// The tracks of a thread, each made when something is first drawn on it.
struct Families {
    parent: Option<Track>,
    /// Calls, by API.
    calls: FxHashMap<Api, FamilyId>,
}

impl Host {
    /// For the source of the ranges: their category, the start of their track names, and a
    /// description.
    fn marked(&self) -> (Category, &'static str, &'static str) {
        match self.by_pytorch {
            false => (Category::Nvtx, "NVTX", "Ranges that the program marks with NVTX, from CUPTI."),
            true => (Category::PyTorch, track::PYTORCH, "Operators and annotations, from PyTorch's profiler."),
        }
    }

    /// A call into CUDA.
    pub(super) fn cuda_call(&mut self, canvas: &mut Canvas, threads: &mut Threads, call: &CudaCall) {
        let families = self.thread(canvas, threads, call.tid, &call.thread, call.span.start);
        let parent = families.parent;
        let family = *families.calls.entry(call.api).or_insert_with(|| {
            let (rank, description) = match call.api {
                Api::Runtime => (1, "Calls into CUDA, from CUPTI."),
                Api::Driver => (2, "Calls into CUDA, from CUPTI."),
                Api::Hip => (3, "Calls into HIP."),
            };
            let placing = Placing { parent, rank, description };
            let name = call.api.name();
            match parent {
                Some(_) => canvas.lanes.family(name.into(), placing, LANES),
                None => canvas.lanes.shared_family(format!("{name} · other threads"), placing),
            }
        });
        canvas.args.clear().nonzero(nccl::CORRELATION, u64::from(call.correlation)).time_error(call.span.error_ns);
        if call.result != 0 {
            canvas.args.uint(nccl::RESULT, u64::from(call.result));
        }
        if parent.is_none() {
            canvas.args.int(nccl::TID, call.tid);
        }
        canvas.whole(family, (call.span.start, call.span.end), &Look::new(Category::Cuda, &Text(&call.name)));
    }

    /// From here on ranges come from PyTorch's profiler: its operators, and what the program marked
    /// with it.
    pub(super) fn ranges_by_pytorch(&mut self) {
        self.by_pytorch = true;
    }

    /// An NVTX range or mark. Ranges are drawn when they have ended, inner ones first.
    pub(super) fn range(
        &mut self,
        canvas: &mut Canvas,
        threads: &mut Threads,
        marker: &Marker,
        end: Option<HostNs>,
        is_open: bool,
    ) {
        let family = self.ranges_of(canvas, threads, marker);
        canvas.args.clear().time_error(marker.error_ns);
        if let Some(domain) = marker.domain.as_ref().filter(|_| !self.by_pytorch) {
            canvas.args.text(nccl::NVTX_DOMAIN, domain);
        }
        if canvas.lanes.is_shared(family)
            && let Some(tid) = marker.tid
        {
            canvas.args.int(nccl::TID, tid);
        }
        if is_open {
            canvas.args.text(nccl::DOUBT, "no end before the recording ended: begin only");
        }
        let (name, category) = (Text(&marker.name), self.marked().0);
        match end {
            Some(end) => canvas.nested(family, (marker.time, end), &Look::new(category, &name)),
            None => canvas.instant(family, marker.time, category, &name),
        }
    }

    fn ranges_of(&mut self, canvas: &mut Canvas, threads: &mut Threads, marker: &Marker) -> FamilyId {
        let (parent, key) = match marker.tid {
            Some(tid) => {
                let key = self.key(canvas, tid);
                (self.thread(canvas, threads, tid, &marker.thread, marker.time).parent, key)
            }
            None => (canvas.processes.track(), PROCESS),
        };
        let crowded = self.ranges.len() >= DOMAINS + THREADS || !canvas.lanes.is_roomy();
        let domain = marker.domain.clone().filter(|_| !crowded);
        let (_, word, description) = self.marked();
        *self.ranges.entry((key, domain)).or_insert_with_key(|(key, domain)| {
            let name = domain.as_ref().map_or_else(|| word.to_owned(), |domain| format!("{word} · {domain}"));
            let placing = Placing { parent, rank: 0, description };
            canvas.family(name, placing, Some(RANGE_LANES).filter(|_| *key != OTHERS))
        })
    }

    /// The key of a thread's tracks.
    fn key(&self, canvas: &Canvas, tid: i32) -> i32 {
        let full = self.threads.len() >= THREADS || !canvas.lanes.is_roomy();
        if full && !self.threads.contains_key(&tid) { OTHERS } else { tid }
    }

    /// The tracks of a thread, below its own.
    fn thread(
        &mut self,
        canvas: &mut Canvas,
        threads: &mut Threads,
        tid: i32,
        name: &str,
        time: HostNs,
    ) -> &mut Families {
        let key = self.key(canvas, tid);
        self.threads.entry(key).or_insert_with(|| {
            let parent = if key == OTHERS { None } else { threads.track_of(canvas, tid, name, time) };
            Families { parent, calls: FxHashMap::default() }
        })
    }
}
