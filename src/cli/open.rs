//! `ncclscope open`: shows a trace in Perfetto's viewer, without uploading it.
//!
//! The viewer is a page that runs in the browser only. Our server on the loopback interface hands
//! it the trace, below a path that nobody can guess, and once. The link carries what a trace
//! cannot: what to pin, what to compute, where to look first.

mod link;
mod port;
mod serve;

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::compare::runs;
use super::diagnose::{self, Seen};
use super::hang;
use super::merge;
use super::survey::Survey;
use crate::cli::reason::Reason;
use crate::model::selection::{self, Window, duration};
use crate::sys;
use crate::trace::names;

/// The only port of this machine that the viewer at ui.perfetto.dev may read from.
const PORT: u16 = 9001;

/// For a trace with more slices, a part of it is proposed: the viewer took 34 s for 5.3 million,
/// and runs out of memory at about ten million.
const MANY_SLICES: u64 = 3_000_000;

/// How to open a trace.
#[derive(clap::Args)]
pub(super) struct Wish {
    /// Trace files, or folders with them; several that share a clock are shown as one
    #[arg(required = true, value_name = "FOLDER|FILE")]
    traces: Vec<PathBuf>,
    /// A folder with a copy of the viewer, instead of ui.perfetto.dev
    #[arg(long, value_name = "FOLDER")]
    ui: Option<PathBuf>,
    /// A port other than 9001, with --ui; ui.perfetto.dev may read from no other
    #[arg(long, requires = "ui", default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// How long to wait for the trace to be read
    #[arg(long = "for", value_name = "TIME", default_value = "10min", value_parser = selection::nanoseconds)]
    patience: u64,
    /// Only print the link, even where there is a desktop
    #[arg(long)]
    no_browser: bool,
}

pub(super) fn run(wish: &Wish, out: &mut dyn Write) -> Result<(), Reason> {
    let traces = &runs::traces(&wish.traces)?[..];
    if traces.len() > 1 {
        merge::must_share_clock(traces)?;
    }
    let survey = Survey::with_work(traces)?;
    let Some(span) = survey.span else {
        return Err(Reason::file(&traces[0])("there is nothing in this trace to show"));
    };
    let ui = wish.ui.as_deref().map(serve::viewer).transpose()?;
    let listener = port::listen(wish.port)?;
    let shared = serve::Shared::new(&survey, ui);
    let said = Reason::Output;

    let hangs = hang::find(&survey);
    // What hangs shows better than what was slow before it.
    let is_large = survey.slices > MANY_SLICES;
    let hang = hangs.iter().find(|hang| !hang.is_over());
    let causes = if hang.is_none() && !is_large { diagnose::causes(traces) } else { Vec::new() };
    let busy = link::busy(&survey, hang, span);
    let view = causes.first().map_or(busy, |cause| cause.time);
    let first = link::First { hang, causes: &causes, view };
    let link = link::link(&survey, &first, wish.port, &shared.path, wish.ui.is_some());
    introduce(traces, &survey, (busy.0.since(span.0), busy.1.since(span.0)), out).map_err(said)?;
    if let Some(Seen { text, .. }) = causes.first() {
        writeln!(out, "{text}. The first view shows it").map_err(said)?;
    }
    let has_browser = !wish.no_browser && browse(&link);
    explain(&link, has_browser, wish, out).map_err(said)?;

    let on_read = || {
        let _ = match wish.ui {
            None => writeln!(out, "The trace was read. It is now only in the browser's memory."),
            Some(_) => {
                writeln!(out, "The trace was read. The viewer's own files stay for a while, for what it loads later.")
            }
        };
    };
    match serve::serve(listener, shared, Duration::from_nanos(wish.patience), on_read)? {
        serve::End::Read => Ok(()),
        serve::End::Never => Err(Reason::Refused(format!(
            "nobody read the trace within {}; run the command again, and with --for 1h if that was too short",
            duration(wish.patience)
        ))),
    }
}

/// Says what is opened, and what to do if it is too much for the viewer.
fn introduce(traces: &[PathBuf], survey: &Survey, busy: (u64, u64), out: &mut dyn Write) -> std::io::Result<()> {
    let bytes = survey.extents.iter().map(|(_, extent)| extent.whole).sum();
    let name = match traces {
        [trace] => trace.display().to_string(),
        traces => format!("{} traces as one", traces.len()),
    };
    writeln!(out, "{name}: {}, {} slices, {}", names::size(bytes), survey.slices, duration(survey.duration()))?;
    for (path, extent) in survey.extents.iter().filter(|(_, extent)| extent.unfinished > 0) {
        writeln!(out, "{}: without its unfinished last packet of {} bytes", path.display(), extent.unfinished)?;
    }
    if survey.slices > MANY_SLICES {
        let window = Window::between(busy.0, busy.1);
        writeln!(
            out,
            "That is a lot for a browser: it takes minutes to load, and may not fit in memory. A part is quicker:"
        )?;
        let trace = match traces {
            [trace] => trace.display().to_string(),
            _ => {
                writeln!(out, " ncclscope merge TRACES -o all.perfetto-trace")?;
                "all.perfetto-trace".to_owned()
            }
        };
        writeln!(out, " ncclscope cut {trace} -o part.perfetto-trace --time {window} --no-steps")?;
    }
    Ok(())
}

/// Says where to go, from this machine or from another.
fn explain(link: &str, has_browser: bool, wish: &Wish, out: &mut dyn Write) -> std::io::Result<()> {
    if has_browser {
        writeln!(out, "A browser is opening it. If none does, the link is:")?;
    } else if has_desktop() {
        writeln!(out, "Open this link in a browser on this machine:")?;
    } else {
        let (port, host) = (wish.port, sys::host_name());
        let user = env::var("USER").or_else(|_| env::var("LOGNAME")).map_or_else(|_| String::new(), |user| user + "@");
        writeln!(
            out,
            "This machine has no desktop. On your own machine, forward the port, then open the link:\n ssh -L \
             {port}:127.0.0.1:{port} {user}{host}"
        )?;
    }
    writeln!(out, "  {link}")?;
    if wish.ui.is_none() {
        writeln!(
            out,
            "The browser may ask whether ui.perfetto.dev may reach this device. It is for this trace; allow it."
        )?;
    }
    writeln!(
        out,
        "The trace can be read once, by whoever has the link; this waits {} for that. Ctrl-C ends it.",
        duration(wish.patience)
    )?;
    out.flush()
}

fn has_desktop() -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Opens a link as a click would, if there is a desktop. Returns whether a browser was found.
fn browse(link: &str) -> bool {
    let found =
        |name: &str| env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|at| at.join(name).is_file());
    if !has_desktop() || !found("xdg-open") {
        return false;
    }
    let mut command = Command::new("xdg-open");
    command.arg(link).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().is_ok()
}

/// The name that the viewer shows.
fn title(survey: &Survey) -> String {
    let first = survey.extents.first().and_then(|(path, _)| Path::new(path).file_name());
    let name = first.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    name.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::HostNs;

    fn introduced(slices: u64) -> String {
        let span = Some((HostNs(1_000_000_000), HostNs(4_500_000_000)));
        let survey = Survey { slices, span, ..Survey::default() };
        let mut said = Vec::new();
        introduce(&["a.perfetto-trace".into()], &survey, (250_000_000, 1_750_000_000), &mut said).unwrap();
        String::from_utf8(said).unwrap()
    }

    #[test]
    fn a_part_of_a_large_trace_is_proposed() {
        assert_eq!(introduced(MANY_SLICES), "a.perfetto-trace: 0 B, 3000000 slices, 3.5s\n");
        let said = introduced(MANY_SLICES + 1);
        let proposal = "ncclscope cut a.perfetto-trace -o part.perfetto-trace --time 250ms..1.75s --no-steps";
        assert!(said.contains(proposal), "{said}");
    }
}
