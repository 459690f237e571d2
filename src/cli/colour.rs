//! Colour for what the eye should find first; only on a terminal.

use std::env;
use std::fmt::Display;
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::{AnsiColor, Style};

/// Something is wrong.
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();
/// Something is worth knowing.
pub(super) const NOTE: Style = AnsiColor::Yellow.on_default();
/// All is well.
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
/// The answer to the question.
pub(super) const ANSWER: Style = Style::new().bold();

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Decides whether standard output goes to a person who wants colour, by the rule of
/// <https://no-color.org>.
pub(super) fn decide() {
    let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
    IS_ON.store(io::stdout().is_terminal() && !unwanted && !dumb, Ordering::Relaxed);
}

/// A text in a style, or unchanged where there is no colour.
pub(super) fn paint(style: Style, text: impl Display) -> String {
    if IS_ON.load(Ordering::Relaxed) { format!("{style}{text}{style:#}") } else { text.to_string() }
}
