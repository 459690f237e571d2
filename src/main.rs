//! The command line's entry point: parse, run, explain, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    ncclscope::cli::main()
}
