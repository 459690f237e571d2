//! `ncclscope replay`: makes the trace of a capture again.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::capture::{Contents, open};
use super::info;
use crate::capture::read::Chunks;
use crate::capture::replay::{self, End, Replay};
use crate::cli::reason::Reason;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) fn run(path: &Path, output: Option<PathBuf>, out: &mut dyn Write) -> Result<(), Reason> {
    let output = output.unwrap_or_else(|| path.with_extension("replayed.perfetto-trace"));
    let version = Chunks::open(open(path)?).map_err(Reason::file(path))?.version().to_owned();
    let remark = (version != VERSION).then(|| {
        format!("by ncclscope {VERSION}, from a capture of {version}: it may differ from the trace of the recording")
    });
    let failed = Reason::write(&output);
    let file = super::create(&output, true)?;
    let mut file = BufWriter::new(file);
    let mut result = Ok(());
    let mut sink = |packets: &[u8]| {
        if result.is_ok() {
            result = file.write_all(packets);
        }
    };
    let (mut trace, mut contents) = (Replay::new(), Contents::default());
    let end = replay::walk(open(path)?, |entry| {
        contents.take(entry);
        trace.take(entry, remark.as_deref(), &mut sink);
    });
    trace.finish(&mut sink);
    if let Err(error) = result.and_then(|()| file.flush()) {
        let _ = std::fs::remove_file(&output);
        return Err(failed(error));
    }
    drop(file);
    if contents.begin.is_none() {
        // An empty trace shows nothing.
        let _ = std::fs::remove_file(&output);
        return Err(match end {
            Err(error) => Reason::file(path)(error),
            Ok(End::CutShort(why)) => Reason::file(path)(format!("the capture ended before anything was in it: {why}")),
            Ok(End::Open | End::Closed) => {
                Reason::file(path)("there is nothing in it but its header: the process was killed right away")
            }
        });
    }
    let wrote = Reason::Output;
    writeln!(out, "{}: {}", path.display(), contents.figures()).map_err(wrote)?;
    if let Some(remark) = &remark {
        writeln!(out, "  replayed      {remark}").map_err(wrote)?;
    }
    let damage = contents.print_end(end, out).map_err(wrote)?;
    info::say(&output, out)?;
    match damage {
        Some(error) => Err(Reason::file(path)(format!("{error}. {} has everything before it", output.display()))),
        None => Ok(()),
    }
}

/// Prints how the owners of the kernels of one launching call were decided.
pub(super) fn explain(path: &Path, correlation: u32, out: &mut dyn Write) -> Result<(), Reason> {
    let mut replay = Replay::explaining(correlation);
    let (mut found, mut written) = (false, Ok(()));
    let mut print = |steps: Vec<String>| {
        for step in steps {
            found = true;
            let indent = if step.starts_with("kernel ") { "" } else { "  " };
            written = std::mem::replace(&mut written, Ok(())).and_then(|()| writeln!(out, "{indent}{step}"));
        }
    };
    let end = replay::walk(open(path)?, |entry| {
        replay.take(entry, None, &mut |_| ());
        print(replay.take_explained());
    });
    written.map_err(Reason::Output)?;
    end.map_err(Reason::file(path))?;
    if found { Ok(()) } else { Err(Reason::file(path)(format!("no kernel of the call {correlation} is in it"))) }
}
