//! One process of a job: its ranks, the calls they make, and whether the results are right.
//!
//! ```text
//!  clocks ─► truth ─► NVML ─► libnccl, patched ─► GPUs ─► ranks run the program ─► end
//! ```

pub(crate) mod meeting;
mod nccl;
pub mod patience;
mod ranks;
pub(crate) mod tally;

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::cuda;
use crate::kernel::{GpuPace, NcclKernels, Pace, Stall};
use crate::library::Library;
use crate::network;
use crate::scenario::{Layout, NetworkKind, Scenario};
use crate::time::{DeviceTimer, HostClocks};
use crate::truth::{self, Line, Truth};
use crate::wheel;
use meeting::Meeting;
use nccl::Nccl;
use ranks::{Ending, Ranks};
use tally::Tally;

/// What the launcher passes to a process.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct Process {
    /// Its number, from 0.
    #[arg(long)]
    pub number: u32,
    /// The scenario's file.
    #[arg(long)]
    pub scenario: PathBuf,
    /// The scenario's seed.
    #[arg(long)]
    pub seed: u64,
    /// The libnccl to load.
    #[arg(long)]
    pub nccl: PathBuf,
    /// The true time at which the job began: [`crate::time::now`].
    #[arg(long)]
    pub reference: u64,
    /// The true wall clock then, in ns since 1970.
    #[arg(long)]
    pub wall: u64,
    /// Where the processes meet.
    #[arg(long)]
    pub meeting: PathBuf,
    /// The file for the truth.
    #[arg(long)]
    pub truth: PathBuf,
    /// The file in which results are counted.
    #[arg(long)]
    pub tally: PathBuf,
    /// Whether calls into CUDA are logged on stderr.
    #[arg(long)]
    pub trace: bool,
}

/// What the threads of a process share.
struct Job {
    scenario: Scenario,
    nccl: Nccl,
    pace: Arc<Pace>,
    meeting: Meeting,
    tally: Arc<Tally>,
}

/// The exit statuses of a process that failed.
mod status {
    /// A call failed or a result was wrong.
    pub(super) const FAILED: u8 = 1;
    /// The library cannot be run.
    pub(super) const UNSUITABLE: u8 = 3;
}

/// Why a process could not do its work, and the exit status that says so.
struct Failure {
    status: u8,
    reason: String,
}

impl From<String> for Failure {
    fn from(reason: String) -> Failure {
        Failure { status: status::FAILED, reason }
    }
}

/// Runs one process of a job. This must come first in the process: clocks are set before anything
/// reads them.
pub fn run(process: &Process) -> ExitCode {
    end_at_panic();
    match work(process) {
        Ok(code) => code,
        Err(Failure { status, reason }) => {
            eprintln!("emulator: process {}: {reason}", process.number);
            // Other threads may be inside NCCL for good.
            leave(i32::from(status))
        }
    }
}

fn work(process: &Process) -> Result<ExitCode, Failure> {
    let name = process.scenario.display().to_string();
    let scenario = Scenario::load(&name, Some(process.seed))?;
    let host = scenario.host_of(process.number);
    let ranks: Vec<u32> = scenario.ranks_of(process.number).collect();
    let errors = &scenario.clocks[host as usize];
    let clocks = HostClocks { reference: process.reference, wall: errors.wall.clone(), boot: errors.boot.clone() };
    clocks.clone().install();

    let truth = Truth::create(&process.truth);
    let truth = Arc::new(truth.map_err(|error| format!("failed to create {}: {error}", process.truth.display()))?);
    let tally = Tally::create(&process.tally);
    let tally = Arc::new(tally.map_err(|error| format!("failed to create {}: {error}", process.tally.display()))?);

    let library = load(&process.nccl)?;
    truth.write(&Line::Process(truth::Process {
        pid: std::process::id(),
        host,
        ranks: ranks.clone(),
        nccl: library.version(),
        seed: scenario.seed,
        clocks,
        environment: truth::nccl_environment(),
    }));
    let pace = Arc::new(pace(&scenario, process, host));
    for (device, gpu) in (0..).zip(&pace.gpus) {
        let (name, uuid) = cuda::device::identity(device);
        truth.write(&Line::Device(truth::Device { device, name, uuid, timer: gpu.timer().clone() }));
    }
    set_up_gpus(library, &scenario, &pace, &truth, process.trace)?;
    if std::env::var_os(DRIVER).is_some() {
        load_driver()?;
    }
    if scenario.network.kind == NetworkKind::Plugin {
        let to = scenario.network.routes.iter().filter(|(from, ..)| *from == host);
        let to = to.map(|(_, to, link)| (*to, *link)).collect();
        let truth = Some(Arc::clone(&truth));
        network::Network { host, usual: scenario.network.usual, to, truth }.install();
    }

    let meeting = Meeting { folder: process.meeting.clone(), patience: Duration::from_nanos(scenario.time_limit_ns) };
    let nccl = Nccl { library, truth: Arc::clone(&truth) };
    let job = Job { scenario, nccl, pace, meeting, tally };
    let ending = run_ranks(&job, &ranks)?;

    let (checked, wrong) = job.tally.counts();
    truth.write(&Line::End(truth::End { checked, wrong, lost: truth.lost() }));
    let status = if wrong == 0 { 0 } else { status::FAILED };
    match ending {
        Ending::Done => Ok(ExitCode::from(status)),
        Ending::Left => leave(i32::from(status)),
    }
}

/// Gives this process emulated GPUs and this libnccl, for a program that calls both by itself. The
/// truth about the program's work goes to `truth`. Call this before anything else of CUDA or NCCL,
/// with [`launch::BASIC`](crate::launch::BASIC) in the environment and `EMULATED_GPUS` equal to
/// `gpus`.
///
/// # Errors
///
/// Why the library cannot be run, or the truth cannot be written.
///
/// # Panics
///
/// When the process has such GPUs already.
pub fn stand_in(nccl: &Path, gpus: u32, truth: &Path) -> Result<(), String> {
    // The timer has an offset and drifts, as real ones do.
    let text = format!(
        "title = \"a program of its own\"\n[job]\nhosts = 1\nranks_per_host = {gpus}\nprogram = \"sync\"\n\
         [gpu]\ntimer_offset = \"-3 s\"\ntimer_drift = \"12 ppm\"\ntimer_granularity = \"32 ns\"\n"
    );
    let scenario = Scenario::parse("stand-in", &text, None)?;
    let reference = crate::time::now();
    HostClocks { reference, ..HostClocks::default() }.install();
    let process = Process {
        number: 0,
        scenario: PathBuf::new(),
        seed: scenario.seed,
        nccl: nccl.to_owned(),
        reference,
        wall: HostClocks::wall_at(reference),
        meeting: PathBuf::new(),
        truth: truth.to_owned(),
        tally: PathBuf::new(),
        trace: false,
    };
    let truth = Truth::create(truth).map_err(|error| format!("failed to create {}: {error}", truth.display()))?;
    let library = load(nccl).map_err(|failure| failure.reason)?;
    let pace = Arc::new(pace(&scenario, &process, 0));
    set_up_gpus(library, &scenario, &pace, &Arc::new(truth), false).map_err(|failure| failure.reason)
}

/// Loads a libnccl, after the emulated NVML.
fn load(path: &Path) -> Result<&'static Library, Failure> {
    let unsuitable =
        |reason| Failure { status: status::UNSUITABLE, reason: format!("failed to run {}: {reason}", path.display()) };
    load_nvml()?;
    let inspected = Library::inspect(path, &wheel::cache()).map_err(|reason| unsuitable(reason.to_string()))?;
    let library = Library::load(inspected).map_err(|reason| unsuitable(reason.to_string()))?;
    Ok(Box::leak(Box::new(library)))
}

/// Makes the GPUs and redirects libnccl to them.
fn set_up_gpus(
    library: &'static Library,
    scenario: &Scenario,
    pace: &Arc<Pace>,
    truth: &Arc<Truth>,
    trace: bool,
) -> Result<(), Failure> {
    let unsuitable = |reason: String| {
        let path = library.path().display();
        Failure { status: status::UNSUITABLE, reason: format!("failed to run {path}: {reason}") }
    };
    let config = cuda::Config {
        devices: scenario.ranks_per_host,
        virtual_memory: scenario.machine.virtual_memory,
        peer_access: scenario.machine.peer_access,
        trace,
        launch_latency_ns: scenario.machine.launch_latency_ns,
        ..cuda::Config::default()
    };
    let kernels = NcclKernels::new(library, Arc::clone(pace)).map_err(|reason| unsuitable(reason.to_string()))?;
    let name = |address: *const std::ffi::c_void| library.symbols().name(address as usize).map(str::to_owned);
    cuda::install(config, name, Box::new(kernels), Arc::clone(truth));
    let table = cuda::runtime_table(|name| library.symbols().address(name).is_some());
    // SAFETY: the table has the machine's functions, made to replace these; no thread runs libnccl
    // yet.
    unsafe { library.patch(&table) }.map_err(|reason| unsuitable(reason.to_string()))?;
    Ok(())
}

/// How long things take on the GPUs that this process sees.
fn pace(scenario: &Scenario, process: &Process, host: u32) -> Pace {
    let first = host * scenario.ranks_per_host;
    let gpus = (first..first + scenario.ranks_per_host).map(|rank| {
        let of_rank = &scenario.gpus[rank as usize];
        let gpu = GpuPace::new(DeviceTimer {
            base: process.wall.saturating_add_signed(of_rank.timer_offset_ns),
            reference: process.reference,
            drift_ppm: of_rank.timer_drift_ppm,
            granularity_ns: of_rank.timer_granularity_ns,
            wander_ppm: of_rank.timer_wander_ppm,
        });
        gpu.set_bandwidth(scenario.machine.bandwidth);
        gpu.set_factor(of_rank.kernels);
        for stall in scenario.stalls.iter().filter(|stall| stall.rank == rank) {
            gpu.add_stall(Stall { kernel: stall.kernel, step: stall.step, for_ns: stall.for_ns });
        }
        gpu
    });
    Pace { gpus: gpus.collect() }
}

/// Runs the program on all ranks of this process.
fn run_ranks(job: &Job, ranks: &[u32]) -> Result<Ending, String> {
    let run = |ranks: &[u32]| {
        let mut ranks = Ranks::new(job, ranks.iter().copied())?;
        let ending = ranks.run()?;
        if ending != Ending::Done {
            // What the process leaves behind is not cleaned up.
            std::mem::forget(ranks);
        }
        Ok::<_, String>(ending)
    };
    if job.scenario.layout != Layout::Threads {
        return run(ranks);
    }
    let endings: Vec<Ending> = thread::scope(|scope| {
        let threads = ranks.iter().map(|&rank| {
            let work = move || match run(&[rank]) {
                Ok(ending) => ending,
                Err(reason) => {
                    eprintln!("emulator: {reason}");
                    // The other threads may wait for this rank forever.
                    leave(i32::from(status::FAILED))
                }
            };
            thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, work)
        });
        let threads: Vec<_> = threads.collect::<Result<_, _>>()?;
        let join = |thread: thread::ScopedJoinHandle<'_, Ending>| thread.join().expect("a panic ends the process");
        Ok::<_, std::io::Error>(threads.into_iter().map(join).collect())
    })
    .map_err(|error| format!("failed to start a thread for each rank: {error}"))?;
    let left = endings.into_iter().find(|ending| *ending != Ending::Done);
    Ok(left.unwrap_or(Ending::Done))
}

/// Loads the emulated NVML, which NCCL then finds by its name.
fn load_nvml() -> Result<(), String> {
    const FILE: &str = "libemulated_nvml.so";
    let program = std::env::current_exe().map_err(|error| format!("failed to find this program: {error}"))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(FILE), folder.join("deps").join(FILE)];
    let Some(path) = places.iter().find(|place| place.is_file()) else {
        return Err(format!(
            "{FILE} is not beside the program, in {}: build it with `cargo build -p ncclscope-emulator-nvml`, in the \
             profile of the program",
            folder.display()
        ));
    };
    let name = CString::new(path.as_os_str().as_bytes()).expect("a path has no zero byte");
    // SAFETY: the name is a C string, and the library is ours: no code runs when it is loaded.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        // SAFETY: after a failure dlerror gives a C string, which is copied before the next call.
        let error = unsafe { std::ffi::CStr::from_ptr(libc::dlerror()) }.to_string_lossy();
        return Err(format!("failed to load {}: {error}", path.display()));
    }
    Ok(())
}

/// Set in a process that has an emulated driver and an emulated CUPTI on its library path.
pub const DRIVER: &str = "EMULATED_DRIVER";

/// Loads the emulated driver and CUPTI and initialises the driver, as a framework has done before
/// it calls NCCL: profilers look for libraries that are already mapped.
fn load_driver() -> Result<(), String> {
    let open = |name: &CStr| {
        // SAFETY: the name is a C string. What runs when these libraries are loaded is ours.
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }
    };
    let driver = open(c"libcuda.so.1");
    // SAFETY: the handle is checked, the name is a C string.
    let init = if driver.is_null() { driver } else { unsafe { libc::dlsym(driver, c"cuInit".as_ptr()) } };
    if init.is_null() {
        return Err("failed to load the emulated libcuda.so.1: it is not in the folder of --cupti".into());
    }
    if open(c"libcupti.so.13").is_null() && open(c"libcupti.so.12").is_null() {
        return Err("failed to load the emulated libcupti: it is not in the folder of --cupti".into());
    }
    // SAFETY: cuInit has this type, in the real driver and in the emulated one.
    let init: extern "C" fn(u32) -> i32 = unsafe { std::mem::transmute(init) };
    match init(0) {
        0 => Ok(()),
        error => Err(format!("the emulated cuInit failed with {error}")),
    }
}

/// From now on a panic on any thread ends the process: the others might wait for that thread
/// forever.
fn end_at_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        leave(101)
    }));
}

/// Ends the process without any cleanup.
fn leave(status: i32) -> ! {
    // SAFETY: it takes a number and does not return.
    unsafe { libc::_exit(status) }
}
