//! Runs a [`Script`]: every line on its thread, in order, and a line of JSON about each.
//!
//! The whole state of the play travels from thread to thread with the next line. So only one thread
//! has it at a time, and nothing needs a lock. A child of `fork` can continue by itself, since its
//! only thread has the state.

use crate::company;
use crate::gpu::{self, Tool};
use crate::host::{self, Arg, Comm, Context, EventType, LogLine, Plugin, RawHandle, StateType, Text, Value};
use crate::layout;
use crate::nvtx;
use crate::script::{Argument, Handle, Line, MAIN, Nvtx, Script, StateArgument, Type, Verb};
use crate::sharer;
use serde_json::{Map, json};
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a child of `fork` may run.
const CHILD_LIMIT: Duration = Duration::from_secs(20);

/// What a play needs besides its script.
#[derive(Clone, Debug)]
pub struct Options {
    /// The plugin's library.
    pub plugin: PathBuf,
    /// The interface version to call it through.
    pub interface: u32,
    /// Start only the events that the activation mask asks for, as NCCL does.
    pub respect_mask: bool,
}

/// Plays a script to its end, unless a line ends the process first.
///
/// # Errors
///
/// If the plugin cannot be loaded, or a line calls it while it is not in memory.
///
/// # Safety
///
/// See [`Plugin::load`]; the script's raw values are passed to the plugin, too.
pub unsafe fn play(script: Script, options: Options) -> Result<(), PlayError> {
    let script = Arc::new(script);
    let mut player = Player {
        script: Arc::clone(&script),
        options,
        plugin: None,
        open: false,
        mask: Box::leak(Box::default()),
        contexts: HashMap::new(),
        events: HashMap::new(),
        texts: HashMap::new(),
        tools: HashMap::new(),
        ranges: HashMap::new(),
        children: HashSet::new(),
    };
    let mut threads = HashMap::<&str, Worker>::new();
    for (index, line) in script.lines.iter().enumerate() {
        let thread = line.thread.as_str();
        if player.children.contains(thread) {
            continue;
        }
        let result;
        if thread == MAIN {
            result = player.run(index);
        } else {
            let worker = threads.entry(thread).or_insert_with(|| Worker::new(thread));
            (player, result) = worker.run(player, index);
        }
        result?;
        if matches!(line.verb, Verb::End)
            && let Some(worker) = threads.remove(thread)
        {
            worker.join();
        }
    }
    // The other threads are left waiting, like NCCL's when a program returns from `main`.
    std::mem::forget(threads);
    Ok(())
}

/// Why a play stopped.
#[derive(Clone, Debug)]
pub struct PlayError {
    /// The line of the script, from 1.
    pub line: usize,
    /// What went wrong.
    pub message: String,
}

impl fmt::Display for PlayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for PlayError {}

type Outcome = Result<(), PlayError>;

/// A thread of the script.
struct Worker {
    lines: mpsc::Sender<(Player, usize)>,
    results: mpsc::Receiver<(Player, Outcome)>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn new(name: &str) -> Worker {
        let (lines, todo) = mpsc::channel::<(Player, usize)>();
        let (done, results) = mpsc::channel();
        let body = move || {
            for (mut player, index) in todo {
                let outcome = player.run(index);
                if done.send((player, outcome)).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(body).expect("a thread can be started");
        Worker { lines, results, thread }
    }

    fn run(&self, player: Player, index: usize) -> (Player, Outcome) {
        let gone = "the thread waits for lines until it is joined";
        assert!(self.lines.send((player, index)).is_ok(), "{gone}");
        self.results.recv().expect(gone)
    }

    fn join(self) {
        drop(self.lines);
        self.thread.join().expect("the thread has run all its lines");
    }
}

/// The state of a play.
struct Player {
    script: Arc<Script>,
    options: Options,
    plugin: Option<Plugin>,
    /// Whether the plugin was opened and not closed since.
    open: bool,
    mask: &'static AtomicI32,
    contexts: HashMap<String, Context>,
    events: HashMap<String, RawHandle>,
    texts: HashMap<String, Text>,
    /// Other tools that hold CUPTI.
    tools: HashMap<String, Tool>,
    /// NVTX ranges by label.
    ranges: HashMap<String, u64>,
    /// Threads whose lines were for a child.
    children: HashSet<String>,
}

/// What to report about a line.
#[derive(Default)]
struct Report {
    label: Option<String>,
    handle: Option<RawHandle>,
    status: Option<i32>,
    mask: Option<i32>,
    mapped: Option<bool>,
    child: Option<(i32, Ended)>,
    skipped: Option<String>,
    began: u64,
    before: u64,
    after: u64,
}

/// How a child ended.
enum Ended {
    Status(i32),
    Signal(i32),
}

impl Player {
    fn run(&mut self, index: usize) -> Outcome {
        let script = Arc::clone(&self.script);
        let line = &script.lines[index];
        let now = boottime();
        let mut report = Report { began: now, before: now, after: now, ..Report::default() };
        let outcome = self.verb(index, line, &mut report);
        let outcome = outcome.map_err(|message| PlayError { line: line.number, message });
        if outcome.is_ok() {
            report.print(line);
        }
        outcome
    }

    fn verb(&mut self, index: usize, line: &Line, report: &mut Report) -> Result<(), String> {
        match &line.verb {
            Verb::Name(name) => set_thread_name(name),
            Verb::Load => self.load()?,
            Verb::Unload => {
                let plugin = self.plugin()?;
                report.time(|| plugin.close());
                report.mapped = Some(plugin.is_mapped());
                self.open = false;
            }
            Verb::Init { label, comm, rank, nranks, nodes, name } => {
                if !self.open {
                    self.load()?;
                }
                let comm = Comm { id: *comm, name: name.as_deref(), nodes: *nodes, nranks: *nranks, rank: *rank };
                let plugin = self.plugin()?;
                let context = report.time(|| plugin.init(&comm));
                report.label = Some(label.clone());
                report.handle = Some(context.handle);
                report.status = Some(context.status);
                report.mask = Some(context.mask);
                self.contexts.insert(label.clone(), context);
            }
            Verb::Start { label, context, kind, parent, fields } => {
                report.label = Some(label.clone());
                let handle = self.start(report, context, kind, parent, fields)?;
                report.handle = Some(handle);
                self.events.insert(label.clone(), handle);
            }
            Verb::State { handle, state, argument } => self.state(report, handle, state, argument)?,
            Verb::Stop(event) => {
                report.label = Some(event.to_string());
                let Some(handle) = self.live(event, report)? else {
                    return Ok(());
                };
                let plugin = self.plugin()?;
                report.status = Some(report.time(|| plugin.stop(handle)));
            }
            Verb::Finalize(context) => {
                report.label = Some(context.to_string());
                let context = self.context(context)?;
                let plugin = self.plugin()?;
                report.handle = Some(context.handle);
                report.status = Some(report.time(|| plugin.finalize(&context)));
            }
            Verb::Mask(value) => {
                if let Some(value) = value {
                    self.mask.store(*value, Ordering::Relaxed);
                }
                report.mask = Some(self.mask.load(Ordering::Relaxed));
            }
            Verb::Text { label, content } => match self.texts.get(label) {
                Some(text) => text.overwrite(content),
                None => {
                    self.texts.insert(label.clone(), Text::new(content));
                }
            },
            Verb::Call { function, library } => {
                let library = self.library(library.as_deref())?;
                report.label = Some(function.clone());
                // SAFETY: the author of the script knows the function.
                report.status = Some(report.time(|| unsafe { gpu::call(&library, function) })?);
            }
            Verb::Race(functions) => {
                let library = self.library(None)?;
                let body = |function: &String| {
                    (0..100).try_for_each(|_| {
                        // Pause, so that other threads get their turn.
                        thread::sleep(Duration::from_micros(50));
                        // SAFETY: as above.
                        unsafe { gpu::call(&library, function) }.map(drop)
                    })
                };
                report.time(|| {
                    thread::scope(|scope| {
                        let threads: Vec<_> = functions.iter().map(|it| scope.spawn(|| body(it))).collect();
                        threads.into_iter().try_for_each(|thread| thread.join().expect("the plugin does not panic"))
                    })
                })?;
            }
            Verb::Storm(functions) => {
                for function in functions.clone() {
                    let library = self.library(None)?;
                    // SAFETY: as above.
                    let body = move || while unsafe { gpu::call(&library, &function) }.is_ok() {};
                    thread::Builder::new().spawn(body).map_err(|error| error.to_string())?;
                }
            }
            Verb::NameComm(name) => {
                let library = self.library(None)?;
                let name = name.as_ref().map(|name| CString::new(name.as_str())).transpose();
                let name = name.map_err(|error| error.to_string())?;
                // SAFETY: the plugin's function, as declared in its header.
                unsafe { gpu::name_comm(&library, name.as_deref()) }?;
            }
            Verb::Step(number) => {
                let library = self.library(None)?;
                // SAFETY: the plugin's function, as declared in its header.
                unsafe { gpu::step(&library, *number) }?;
            }
            Verb::Kernel { name, time, wait } => {
                let name = CString::new(name.as_str()).map_err(|error| error.to_string())?;
                let running = report.time(|| gpu::kernel(name, *time));
                if *wait {
                    report.time(|| running.join()).map_err(|_| "the kernel ended badly")?;
                }
            }
            Verb::Capture(node) => report.time(|| gpu::capture(*node)),
            Verb::HostNode { node, time } => report.time(|| gpu::host_node(*node, *time)),
            Verb::Nvtx(call) => match call {
                Nvtx::Push { text, domain } => report.time(|| nvtx::push(text, domain.as_deref())),
                Nvtx::Pop { domain } => report.time(|| nvtx::pop(domain.as_deref())),
                Nvtx::Mark(text) => report.time(|| nvtx::mark(text)),
                Nvtx::Start { label, text } => {
                    let id = report.time(|| nvtx::start(text));
                    self.ranges.insert(label.clone(), id);
                }
                Nvtx::End(label) => {
                    let id = self.ranges.remove(label).ok_or("the range has not begun")?;
                    report.time(|| nvtx::end(id));
                }
            },
            Verb::Subscribe(label) => {
                let (tool, answer) = report.time(Tool::subscribe)?;
                report.label = Some(label.clone());
                report.status = Some(answer);
                self.tools.extend(tool.map(|tool| (label.clone(), tool)));
            }
            Verb::Unsubscribe(label) => {
                let tool = self.tools.remove(label).ok_or("the tool has not subscribed")?;
                report.label = Some(label.clone());
                report.status = Some(report.time(|| tool.unsubscribe())?);
            }
            Verb::Profile(label) => {
                report.label = Some(label.clone());
                report.status = Some(report.time(company::begin)?);
            }
            Verb::Unprofile(label) => {
                report.label = Some(label.clone());
                report.status = Some(report.time(company::end)?);
            }
            Verb::Share(label) => {
                report.label = Some(label.clone());
                report.status = Some(report.time(sharer::begin)?);
            }
            Verb::Unshare(label) => {
                report.label = Some(label.clone());
                report.status = Some(report.time(sharer::end)?);
            }
            Verb::Clock(label) => {
                report.label = Some(label.clone());
                report.status = Some(report.time(company::take_clock)?);
            }
            Verb::Sleep(time) => report.time(|| sleep(*time)),
            Verb::WaitFor(file) => report.time(|| {
                while !file.exists() {
                    thread::sleep(Duration::from_millis(1));
                }
            }),
            Verb::End => {}
            Verb::Fork(name) => {
                report.child = Some(self.fork(index, name)?);
                report.after = boottime();
                self.children.insert(name.clone());
            }
            Verb::Exit(status) => {
                report.print(line);
                std::process::exit(*status);
            }
            Verb::ExitNow(status) => {
                report.print(line);
                // SAFETY: ends the process, which is all it does.
                unsafe { libc::_exit(*status) }
            }
            Verb::Abort => {
                report.print(line);
                std::process::abort();
            }
            Verb::Kill(signal) => {
                report.print(line);
                // SAFETY: sends this process a signal, whose effect is what the script wants. A
                // shell that starts a background process has it ignore SIGINT, which would make the
                // line do nothing.
                unsafe {
                    let before = libc::signal(*signal, libc::SIG_DFL);
                    if before != libc::SIG_IGN && before != libc::SIG_ERR {
                        libc::signal(*signal, before);
                    }
                    libc::kill(libc::getpid(), *signal);
                }
            }
        }
        Ok(())
    }

    fn load(&mut self) -> Result<(), String> {
        let Options { plugin: path, interface, .. } = &self.options;
        // SAFETY: `play` was promised what this needs.
        let plugin = unsafe { Plugin::load_with_mask(path, *interface, self.mask) };
        self.plugin = Some(plugin.map_err(|error| error.to_string())?);
        self.open = true;
        Ok(())
    }

    /// The name to open a library by: the plugin's, or another one.
    fn library(&self, name: Option<&str>) -> Result<CString, String> {
        let name = match name {
            Some(name) => name.as_bytes(),
            None => self.options.plugin.as_os_str().as_encoded_bytes(),
        };
        CString::new(name).map_err(|error| error.to_string())
    }

    /// The plugin, if its code can be called: an undeletable library can be called even after it
    /// was closed.
    fn plugin(&self) -> Result<&Plugin, String> {
        match &self.plugin {
            None => Err("the plugin is not loaded: expected an earlier `init` or `load`".into()),
            Some(plugin) if self.open || plugin.is_mapped() => Ok(plugin),
            Some(_) => Err("the plugin is no longer in memory since it was unloaded".into()),
        }
    }

    fn start(
        &self,
        report: &mut Report,
        context: &Handle,
        kind: &Type,
        parent: &Handle,
        fields: &[(String, Argument)],
    ) -> Result<RawHandle, String> {
        if let Type::Named(name) = kind
            && self.options.respect_mask
            && layout::kind(name).is_some_and(|kind| self.mask.load(Ordering::Relaxed) as u64 & kind.asked_by == 0)
        {
            report.skipped = Some(format!("the mask does not ask for {name}"));
            return Ok(RawHandle::NULL);
        }
        let context = self.context(context)?;
        let parent = self.event(parent)?;
        let mut texts = Vec::new();
        for (_, value) in fields {
            if let Argument::Fresh(content) = value {
                texts.push(Text::new(content));
            }
        }
        let mut fresh = texts.iter();
        let mut values = Vec::new();
        for (name, argument) in fields {
            let value = match argument {
                Argument::Bits(bits) => Value::Bits(*bits),
                Argument::Now(offset) => Value::Bits(time_of_day(*offset)),
                Argument::Ticks(mhz, offset) => Value::Bits(ticks(*mhz, *offset)),
                Argument::Text(content) => Value::Text(content),
                Argument::Fresh(_) => Value::Cell(fresh.next().expect("a text for each")),
                Argument::Cell(label) => Value::Cell(self.texts.get(label).ok_or("the text was never set")?),
                Argument::Handle(handle) => self.event(handle)?.into(),
                Argument::Net(network) => Value::Net(*network),
            };
            values.push((name.as_str(), value));
        }
        let kind = match kind {
            Type::Named(name) => EventType::Named(name),
            Type::Number(number) => EventType::Number(*number),
        };
        let plugin = self.plugin()?;
        let Some(mut descriptor) = plugin.descriptor(&context, kind, &values, parent) else {
            report.skipped = Some(format!("v{} has no such event", self.options.interface));
            return Ok(RawHandle::NULL);
        };
        let started = report.time(|| plugin.start_prepared(context.handle, &mut descriptor));
        report.status = Some(started.status);
        Ok(started.handle)
    }

    fn state(&self, report: &mut Report, event: &Handle, state: &Type, argument: &StateArgument) -> Result<(), String> {
        report.label = Some(event.to_string());
        let Some(handle) = self.live(event, report)? else {
            return Ok(());
        };
        let arg = match argument {
            StateArgument::Default => Arg::Default,
            StateArgument::Null => Arg::Null,
            StateArgument::Value(value, steps) => {
                let bits = match value {
                    Argument::Bits(bits) => *bits,
                    Argument::Now(offset) => time_of_day(*offset),
                    Argument::Ticks(mhz, offset) => ticks(*mhz, *offset),
                    Argument::Handle(handle) => self.event(handle)?.0,
                    _ => return Err("expected a number as the state's value".into()),
                };
                match steps {
                    Some(steps) => Arg::Progress { trans_size: bits, steps: *steps },
                    None => Arg::Value(bits),
                }
            }
            StateArgument::Net(network) => Arg::Net(network),
        };
        let state = match state {
            Type::Named(name) => StateType::Named(name),
            Type::Number(number) => StateType::Number(*number as i32),
        };
        let plugin = self.plugin()?;
        match plugin.state_call(state, arg) {
            Some(mut call) => {
                report.status = Some(report.time(|| plugin.state_prepared(handle, &mut call)));
            }
            None => report.skipped = Some(format!("v{} has no such state", self.options.interface)),
        }
        Ok(())
    }

    fn event(&self, handle: &Handle) -> Result<RawHandle, String> {
        match handle {
            Handle::Null => Ok(RawHandle::NULL),
            Handle::Raw(bits) => Ok(RawHandle(*bits)),
            Handle::Label(label) => {
                self.events.get(label).copied().ok_or_else(|| format!("`{label}` was not started in this process"))
            }
        }
    }

    /// The handle to stop or to record a state on. A null label has nothing to stop.
    fn live(&self, event: &Handle, report: &mut Report) -> Result<Option<RawHandle>, String> {
        let handle = self.event(event)?;
        report.handle = Some(handle);
        if handle.is_null() && matches!(event, Handle::Label(_)) {
            report.skipped = Some("there is no such event".into());
            return Ok(None);
        }
        Ok(Some(handle))
    }

    fn context(&self, handle: &Handle) -> Result<Context, String> {
        match handle {
            Handle::Null => Ok(Context::foreign(RawHandle::NULL)),
            Handle::Raw(bits) => Ok(Context::foreign(RawHandle(*bits))),
            Handle::Label(label) => {
                self.contexts.get(label).cloned().ok_or_else(|| format!("`{label}` was not made in this process"))
            }
        }
    }

    fn fork(&mut self, index: usize, name: &str) -> Result<(i32, Ended), String> {
        // SAFETY: the child goes on in this thread, which has all of the play's state to itself; no
        // other thread of the host holds a lock, because all of them wait for lines.
        match unsafe { libc::fork() } {
            -1 => Err(format!("failed to fork: {}", std::io::Error::last_os_error())),
            0 => self.be_child(index, name),
            child => wait_for(child),
        }
    }

    fn be_child(&mut self, index: usize, name: &str) -> ! {
        let script = Arc::clone(&self.script);
        let mut status = 0;
        for (later, line) in script.lines.iter().enumerate().skip(index + 1) {
            if line.thread == name
                && let Err(error) = self.run(later)
            {
                eprintln!("scripted-host: {error}");
                status = 2;
                break;
            }
        }
        // SAFETY: ends the process, which is all it does.
        unsafe { libc::_exit(status) }
    }
}

impl Report {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        self.before = boottime();
        let result = call();
        self.after = boottime();
        result
    }

    fn print(&self, line: &Line) {
        let mut object = Map::new();
        object.insert("line".into(), line.number.into());
        object.insert("thread".into(), line.thread.as_str().into());
        object.insert("pid".into(), std::process::id().into());
        object.insert("tid".into(), thread_id().into());
        object.insert("verb".into(), line.verb.word().into());
        object.insert("began".into(), self.began.into());
        object.insert("before".into(), self.before.into());
        object.insert("after".into(), self.after.into());
        let mut optional = |key: &str, value: Option<serde_json::Value>| {
            if let Some(value) = value {
                object.insert(key.into(), value);
            }
        };
        optional("label", self.label.as_deref().map(Into::into));
        optional("handle", self.handle.map(|handle| handle.to_string().into()));
        optional("status", self.status.map(Into::into));
        optional("mask", self.mask.map(Into::into));
        optional("mapped", self.mapped.map(Into::into));
        optional("skipped", self.skipped.as_deref().map(Into::into));
        if let Some((pid, ended)) = &self.child {
            optional(
                "child",
                Some(match ended {
                    Ended::Status(status) => json!({ "pid": pid, "status": status }),
                    Ended::Signal(signal) => json!({ "pid": pid, "signal": signal }),
                }),
            );
        }
        let log = host::take_log();
        if !log.is_empty() {
            let entry = |LogLine { level, format, .. }: &LogLine| json!([level, format]);
            optional("log", Some(log.iter().map(entry).collect()));
        }
        let mut text = serde_json::Value::Object(object).to_string();
        text.push('\n');
        // SAFETY: standard output stays open, and `ManuallyDrop` does not close it. There is no
        // buffer in between that a child could inherit or an abrupt end could lose.
        let mut out = ManuallyDrop::new(unsafe { File::from_raw_fd(libc::STDOUT_FILENO) });
        // The reader may be gone; the script continues anyway.
        let _ = out.write_all(text.as_bytes());
    }
}

/// Nanoseconds of `CLOCK_BOOTTIME`.
pub fn boottime() -> u64 {
    clock(libc::CLOCK_BOOTTIME)
}

/// The time of day in ticks of a clock of this many MHz.
fn ticks(mhz: u64, offset: i64) -> u64 {
    (u128::from(time_of_day(offset)) * u128::from(mhz) / 1000) as u64
}

fn time_of_day(offset: i64) -> u64 {
    clock(libc::CLOCK_REALTIME).wrapping_add_signed(offset)
}

pub(crate) fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time` only.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps, or spins if the kernel would sleep much longer than asked.
fn sleep(time: Duration) {
    const SHORTEST_SLEEP: Duration = Duration::from_micros(200);
    if time >= SHORTEST_SLEEP {
        return thread::sleep(time);
    }
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn thread_id() -> i32 {
    // SAFETY: takes nothing and changes nothing.
    unsafe { libc::gettid() }
}

fn set_thread_name(name: &[u8]) {
    let mut name = name.to_vec();
    name.truncate(15);
    name.retain(|byte| *byte != 0);
    let name = CString::new(name).expect("no NUL is left");
    // SAFETY: the name is a C string of less than 16 bytes, and the thread is the calling one.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
}

fn wait_for(child: i32) -> Result<(i32, Ended), String> {
    let deadline = Instant::now() + CHILD_LIMIT;
    let mut status = 0;
    loop {
        // SAFETY: writes to `status` only; the child is this process's, and nobody else waits for
        // it.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            // SAFETY: the child was not waited for yet, so the number is still its own.
            0 => unsafe {
                libc::kill(child, libc::SIGKILL);
            },
            -1 => {
                return Err(format!("failed to wait for the child: {}", std::io::Error::last_os_error()));
            }
            _ if libc::WIFSIGNALED(status) => {
                return Ok((child, Ended::Signal(libc::WTERMSIG(status))));
            }
            _ => return Ok((child, Ended::Status(libc::WEXITSTATUS(status)))),
        }
    }
}
