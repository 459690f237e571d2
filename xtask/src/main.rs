//! The project's chores. Continuous integration runs exactly `cargo xtask check`.

use std::process::ExitCode;

mod accuracy;
mod bindings;
mod check;
mod deep;
mod demo;
mod deny;
mod e2e;
mod elf;
mod gpu_bundle;
mod imports;
mod instructions;
mod package;
mod pictures;
mod reliability;
mod steps;

const USAGE: &str = "\
usage: cargo xtask CHORE [STEP...]
       cargo xtask accuracy [--runs N] [--seed S] [--scenario NAME] [--nccl VERSION]
       cargo xtask bindings [--check | --fetch]
       cargo xtask demo [SCENARIO]
       cargo xtask e2e [--all]
       cargo xtask gpu-bundle [--nccl FILE] [--cupti FILE] [--output FOLDER] [--native]
       cargo xtask pictures [SCENARIO...]

  accuracy  how many kernels are matched rightly, in many jobs on emulated GPUs: a table
  demo      the real NCCL on emulated GPUs, with the plugin: a trace of a whole job; --list for more
  bindings  CUPTI's functions, constants and record layouts, from its headers; --check compares
  check     everything that must hold before a change is taken
  e2e       the real NCCL on emulated GPUs against the plugin; --all with every release
  gpu-bundle  what a machine with GPUs needs for gpu/run, in one folder, for any Linux since glibc 2.28
  deep      sanitizers and Miri: slower, and more is needed
  pictures  the pictures of docs/, in Perfetto's own user interface; needs Chromium
  package   a wheel and an archive for any Linux since glibc 2.28, each tried where there is nothing else

Each chore has steps; naming some runs only those:
";

fn main() -> ExitCode {
    let chores = [("check", check::STEPS), ("deep", deep::STEPS), ("package", package::STEPS)];
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.split_first() {
        Some((name, rest)) if name == "accuracy" => return accuracy::run(rest),
        Some((name, rest)) if name == "bindings" => return bindings::run(rest),
        Some((name, rest)) if name == "demo" => return demo::run(rest),
        Some((name, rest)) if name == "e2e" => return e2e::run(rest),
        Some((name, rest)) if name == "gpu-bundle" => return gpu_bundle::run(rest),
        Some((name, rest)) if name == "pictures" => return pictures::run(rest),
        _ => {}
    }
    if let Some((name, wanted)) = words.split_first()
        && let Some((_, steps)) = chores.iter().find(|(chore, _)| chore == name)
        && wanted.iter().all(|word| steps.iter().any(|step| step.name == word))
    {
        return steps::run(steps, wanted);
    }

    eprint!("{USAGE}");
    for (chore, steps) in chores {
        eprintln!();
        for step in steps {
            eprintln!("  {chore:<7}  {:<8}  {}", step.name, step.about);
        }
    }
    match words.first().map(String::as_str) {
        Some("help" | "--help" | "-h") => ExitCode::SUCCESS,
        _ => ExitCode::from(2),
    }
}
