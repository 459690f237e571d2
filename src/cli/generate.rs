//! The archive's shell completions and manual pages, made by clap's own generators.

use std::fs;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use super::Arguments;
use crate::cli::reason::Reason;

/// Writes them into a folder: `completions/` and `man/`.
pub(super) fn run(folder: &Path) -> Result<(), Reason> {
    let (completions, man) = (folder.join("completions"), folder.join("man"));
    let write = || {
        fs::create_dir_all(&completions)?;
        fs::create_dir_all(&man)?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut shown(), "ncclscope", &completions)?;
        }
        clap_mangen::generate_to(shown(), &man)
    };
    write().map_err(Reason::write(folder))
}

/// The command line without hidden parts, which completions would otherwise include.
fn shown() -> Command {
    let all = Arguments::command();
    let about = all.get_about().cloned().unwrap_or_default();
    let commands = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    Command::new("ncclscope").version(env!("CARGO_PKG_VERSION")).about(about).subcommands(commands)
}
