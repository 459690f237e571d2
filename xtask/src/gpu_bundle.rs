//! Everything that a machine with GPUs needs for `gpu/run`, in one folder: nothing has to be built
//! or fetched there.
//!
//! ```text
//! FOLDER/run                       the suite's entry
//! FOLDER/ncclscope-gpu             its program
//! FOLDER/ncclscope                 the command line, for its traces
//! FOLDER/libncclscope.so           the profiler
//! FOLDER/libncclscope_empty.so     what its cost is compared with
//! FOLDER/python/                   the suite's programs for PyTorch, and our module
//! FOLDER/lib/                      a libnccl and a libcupti, where they were named
//! ```

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::check::RELEASED;
use crate::elf::Library;
use crate::package::{self, Tools};
use crate::steps::{Failure, Place, call, run_chore, triple};

const USAGE: &str = "usage: cargo xtask gpu-bundle [--nccl FILE] [--cupti FILE] [--output FOLDER] [--native]

  --nccl FILE      a libnccl.so.2 to take along; `emulator fetch 2.30.7` prints where one is
  --cupti FILE     a libcupti.so.12 or .13 to take along
  --output FOLDER  the folder [default: target/gpu-bundle]
  --native         built for systems like this one, without Zig";

/// The largest size of the bundle without NVIDIA's libraries, in bytes.
const ROOM: u64 = 24 << 20;

/// The command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wish {
    nccl: Option<PathBuf>,
    cupti: Option<PathBuf>,
    output: Option<PathBuf>,
    is_native: bool,
}

impl Wish {
    fn parse(words: &[String]) -> Option<Wish> {
        let mut wish = Wish::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--nccl" => wish.nccl = Some(words.next()?.into()),
                "--cupti" => wish.cupti = Some(words.next()?.into()),
                "--output" => wish.output = Some(words.next()?.into()),
                "--native" => wish.is_native = true,
                _ => return None,
            }
        }
        Some(wish)
    }
}

/// `cargo xtask gpu-bundle`
pub(crate) fn run(words: &[String]) -> ExitCode {
    let Some(wish) = Wish::parse(words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    run_chore(|place| bundle(place, &wish))
}

fn bundle(place: &Place, wish: &Wish) -> Result<(), Failure> {
    let folder = wish.output.clone().unwrap_or_else(|| place.target.join("gpu-bundle"));
    let built = build(place, wish.is_native)?;
    let _ = fs::remove_dir_all(&folder);
    let mut own = 0;
    for name in ["libncclscope.so", "libncclscope_empty.so", "ncclscope", "ncclscope-gpu"] {
        own += copy(&built.join(name), &folder.join(name))?;
        if !wish.is_native {
            let problems = Library::read(&folder.join(name))?.newer_than_glibc(package::GLIBC);
            if !problems.is_empty() {
                return Err(format!("{name}: {}", problems.join("; ")).into());
            }
        }
    }
    for (from, to) in [
        ("gpu/run", "run"),
        ("gpu/python/train.py", "python/train.py"),
        (package::MODULE, package::MODULE),
        ("docs/gpu-suite.md", "README.md"),
    ] {
        own += copy(&place.root.join(from), &folder.join(to))?;
    }
    let mut theirs = 0;
    for file in [&wish.nccl, &wish.cupti].into_iter().flatten() {
        let name = soname(file).ok_or_else(|| format!("{} is no library with a name", file.display()))?;
        theirs += copy(file, &folder.join("lib").join(name))?;
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("\n{}: {:.1} MiB of ours, {:.1} MiB of NVIDIA's", folder.display(), mib(own), mib(theirs));
    if wish.nccl.is_none() {
        println!("libnccl must be on the machine, or be named to run: --nccl FILE. It has 200 MiB and more.");
    }
    match own > ROOM {
        true => Err(format!("ours have more than {:.0} MiB", mib(ROOM)).into()),
        false => Ok(()),
    }
}

/// Builds everything; returns the folder with the results.
fn build(place: &Place, is_native: bool) -> Result<PathBuf, Failure> {
    let command = |what, of_zig| {
        let mut command = match is_native {
            true => {
                let mut cargo = place.cargo();
                cargo.args([what, "--release"]);
                cargo
            }
            false => Tools::of(place).cargo(place, of_zig, ARCH),
        };
        // Exported names stay; debug information is most of the bytes.
        command.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
        command
    };
    if !is_native {
        package::tools(place)?;
    }
    let build = || command("build", "zigbuild");
    call(build().args(["--bins", "-p", "ncclscope", "-p", "ncclscope-gpu", "-q"]))?;
    call(build().args(["-p", "ncclscope-gpu-empty", "-q"]))?;
    // The plugin comes last: with the command line it would contain readers that it does not use.
    call(command("rustc", "rustc").args(RELEASED))?;
    Ok(if is_native { place.target.join("release") } else { place.target.join(triple(ARCH)).join("release") })
}

/// Copies a file with its permissions; returns its size.
fn copy(from: &Path, to: &Path) -> Result<u64, String> {
    let folder = to.parent().unwrap_or(to);
    let copied = fs::create_dir_all(folder).and_then(|()| fs::copy(from, to));
    let bytes = copied.map_err(|error| format!("failed to copy {}: {error}", from.display()))?;
    println!("   {}  {:.1} MiB", to.display(), bytes as f64 / f64::from(1 << 20));
    Ok(bytes)
}

/// The name under which a library is looked for.
fn soname(file: &Path) -> Option<String> {
    Library::read(file).ok()?.soname
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_refused() {
        let parse = |line: &str| Wish::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let wish = parse("--native --nccl /x/libnccl.so.2").unwrap();
        assert!(wish.is_native && wish.nccl == Some("/x/libnccl.so.2".into()) && wish.cupti.is_none());
        assert_eq!(parse(""), Some(Wish::default()));
        assert_eq!(parse("--nccl"), None);
        assert_eq!(parse("--quick"), None);
    }
}
