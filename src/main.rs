//! The command line's front door: parse, run, explain, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    ncclscope::cli::main()
}
