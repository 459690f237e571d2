//! The scripted host's command line: plays a script, sends a load, or makes every call in an
//! environment where nothing else is allowed, all through a built profiler plugin.
//!
//! Standard output has a line of JSON for each line of the script, or one in total. Standard error
//! is the plugin's, except for an error of the host itself, which then exits with status 2.

use ncclscope_tests::flood::{self, Flood, Kind};
use ncclscope_tests::gpu;
use ncclscope_tests::player::{self, Options};
use ncclscope_tests::quiet::{self, Noise, Quiet};
use ncclscope_tests::script::Script;
use std::error::Error;
use std::io::Read;
use std::process::ExitCode;
use std::str::FromStr;

const USAGE: &str = "\
usage: scripted-host play --plugin LIBRARY --interface N [--respect-mask] SCRIPT|-
       scripted-host flood --plugin LIBRARY --interface N --threads T --events M [--comms C]
                     [--rate CALLS_PER_SECOND] [--kind step|coll|mixed] [--short-threads K] [--latency]
       scripted-host quiet --plugin LIBRARY --interface N --rounds R [--cold] [--loud] [--cupti]
                     [--noise system-call|allocation]";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let result = match words.next().as_deref() {
        Some("play") => play(Arguments(words.collect())),
        Some("flood") => send(Arguments(words.collect())),
        Some("quiet") => be_quiet(Arguments(words.collect())),
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scripted-host: {error}");
            ExitCode::from(2)
        }
    }
}

/// The emulated CUDA libraries find the GPU through this function.
///
/// # Safety
///
/// As in [`observe::Attach`].
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclscope_emulator_attach(observer: *const observe::Observer) -> *const observe::Machine {
    // SAFETY: the caller's promise.
    unsafe { gpu::attach(observer) }
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn play(mut arguments: Arguments) -> Result<()> {
    let options = Options {
        plugin: arguments.need("--plugin")?,
        interface: arguments.need("--interface")?,
        respect_mask: arguments.flag("--respect-mask"),
    };
    let path = arguments.last()?;
    let source = match path.as_str() {
        "-" => {
            let mut source = String::new();
            std::io::stdin().read_to_string(&mut source)?;
            source
        }
        _ => std::fs::read_to_string(&path).map_err(|error| format!("failed to read {path}: {error}"))?,
    };
    let script: Script = source.parse()?;
    // SAFETY: whoever runs this program names a profiler plugin, and writes raw values into a
    // script to see the plugin take them as values.
    unsafe { player::play(script, options)? };
    Ok(())
}

fn send(mut arguments: Arguments) -> Result<()> {
    let flood = Flood {
        plugin: arguments.need("--plugin")?,
        interface: arguments.need("--interface")?,
        threads: arguments.need("--threads")?,
        comms: arguments.option("--comms")?.unwrap_or(1),
        events: arguments.option("--events")?.unwrap_or(0),
        rate: arguments.option("--rate")?,
        kind: match arguments.option::<String>("--kind")?.as_deref() {
            None | Some("mixed") => Kind::Mixed,
            Some("step") => Kind::Step,
            Some("coll") => Kind::Coll,
            Some(other) => return Err(format!("expected --kind step, coll or mixed, found {other}").into()),
        },
        short_threads: arguments.option("--short-threads")?,
        latency: arguments.flag("--latency"),
    };
    arguments.none()?;
    if flood.events == 0 && flood.short_threads.is_none() {
        return Err("expected --events or --short-threads".into());
    }
    // SAFETY: whoever runs this program names a profiler plugin; everything else it gets is its
    // own.
    let report = unsafe { flood::run(&flood)? };
    println!("{}", report.to_json(&flood));
    Ok(())
}

fn be_quiet(mut arguments: Arguments) -> Result<()> {
    let quiet = Quiet {
        plugin: arguments.need("--plugin")?,
        interface: arguments.need("--interface")?,
        rounds: arguments.need("--rounds")?,
        cold: arguments.flag("--cold"),
        loud: arguments.flag("--loud"),
        cupti: arguments.flag("--cupti"),
        noise: match arguments.option::<String>("--noise")?.as_deref() {
            None => None,
            Some("system-call") => Some(Noise::SystemCall),
            Some("allocation") => Some(Noise::Allocation),
            Some(other) => return Err(format!("expected --noise system-call or allocation, found {other}").into()),
        },
    };
    arguments.none()?;
    // SAFETY: whoever runs this program names a profiler plugin; everything else it gets is its
    // own.
    println!("{}", unsafe { quiet::run(&quiet)? });
    Ok(())
}

/// The unread words of a command line.
struct Arguments(Vec<String>);

impl Arguments {
    fn flag(&mut self, name: &str) -> bool {
        let at = self.0.iter().position(|word| word == name);
        at.map(|at| self.0.remove(at)).is_some()
    }

    fn option<T: FromStr>(&mut self, name: &str) -> Result<Option<T>> {
        let Some(at) = self.0.iter().position(|word| word == name) else { return Ok(None) };
        let mut words = self.0.drain(at..self.0.len().min(at + 2)).skip(1);
        let word = words.next().ok_or_else(|| format!("expected a value after {name}"))?;
        match word.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(format!("expected another value for {name}, found {word}").into()),
        }
    }

    fn need<T: FromStr>(&mut self, name: &str) -> Result<T> {
        let missing = || format!("expected {name}\n{USAGE}");
        Ok(self.option(name)?.ok_or_else(missing)?)
    }

    fn last(mut self) -> Result<String> {
        match (self.0.pop(), self.0.is_empty()) {
            (Some(word), true) => Ok(word),
            _ => Err(USAGE.into()),
        }
    }

    fn none(self) -> Result<()> {
        match self.0.first() {
            None => Ok(()),
            Some(word) => Err(format!("expected no {word}\n{USAGE}").into()),
        }
    }
}
