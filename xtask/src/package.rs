//! The library and the program for other people's machines, and what a program needs to talk to the library.
//!
//! Both are linked against an old glibc by cargo-zigbuild, with the linker of Zig. Both tools are
//! installed below the target folder, at the versions given here, and nowhere else.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::check::PLUGIN;
use crate::elf::Library;
use crate::steps::{Failure, Outcome, Place, Step, call, triple};

pub(crate) const STEPS: &[Step] = &[
    Step { name: "tools", about: "cargo-zigbuild and Zig, where they are missing", run: tools },
    Step { name: "plugin", about: "libncclscope.so", run: plugin },
    Step { name: "program", about: "ncclscope", run: program },
    Step { name: "interface", about: "ncclscope.h and ncclscope.py", run: interface },
];

const CARGO_ZIGBUILD: &str = "0.24.1";
const ZIG: &str = "0.15.2";

/// That of RHEL 8, the oldest system that NCCL's own packages still run on.
pub(crate) const GLIBC: (u32, u32) = (2, 28);

/// Where the tools are.
pub(crate) struct Tools {
    cargo_zigbuild: PathBuf,
    zig: PathBuf,
    cache: PathBuf,
}

impl Tools {
    pub(crate) fn of(place: &Place) -> Tools {
        let folder = place.target.join("tools");
        Tools {
            cargo_zigbuild: folder.join(format!("cargo-zigbuild-{CARGO_ZIGBUILD}/bin/cargo-zigbuild")),
            zig: folder.join(format!("zig-{ZIG}/ziglang/zig")),
            cache: folder.join("cache"),
        }
    }

    /// `cargo build` for the target of the packages.
    pub(crate) fn build(&self, place: &Place) -> Command {
        let mut command = place.command(&self.cargo_zigbuild);
        command
            .env("CARGO_ZIGBUILD_ZIG_PATH", &self.zig)
            .env("CARGO_ZIGBUILD_CACHE_DIR", &self.cache)
            .env("ZIG_GLOBAL_CACHE_DIR", &self.cache)
            .args(["zigbuild", "--release", "--target"])
            .arg(format!("{}.{}.{}", triple(), GLIBC.0, GLIBC.1));
        command
    }
}

pub(crate) fn tools(place: &Place) -> Result<Outcome, Failure> {
    let tools = Tools::of(place);
    if !tools.cargo_zigbuild.exists() {
        let mut install = place.cargo();
        install.args(["install", "--quiet", "--locked", "--root"]).args(tools.cargo_zigbuild.ancestors().nth(2));
        call(install.arg(format!("cargo-zigbuild@{CARGO_ZIGBUILD}")))?;
    }
    if !tools.zig.exists() {
        // Into a folder, not into any Python; all of it or nothing.
        let mut install = place.command("python3");
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        install.args(["--root-user-action=ignore", "--no-deps", "--target"]).args(tools.zig.ancestors().nth(2));
        call(install.arg(format!("ziglang=={ZIG}")))?;
    }
    Ok(Outcome::Done)
}

fn plugin(place: &Place) -> Result<Outcome, Failure> {
    call(Tools::of(place).build(place).args(PLUGIN))?;
    let library = deliver(place, "libncclscope.so")?;
    accept("libncclscope.so", &library, library.as_plugin())
}

fn program(place: &Place) -> Result<Outcome, Failure> {
    let what = ["-p", "ncclscope", "--bin", "ncclscope", "-q"];
    call(Tools::of(place).build(place).args(what))?;
    let program = deliver(place, "ncclscope")?;
    accept("ncclscope", &program, program.foreign_libraries())
}

fn interface(place: &Place) -> Result<Outcome, Failure> {
    let folder = place.target.join("package");
    for name in ["include/ncclscope.h", "python/ncclscope.py"] {
        let path = folder.join(name);
        let copied =
            fs::create_dir_all(path.parent().unwrap_or(&folder)).and_then(|()| fs::copy(place.root.join(name), &path));
        copied.map_err(|error| format!("failed to copy {name}: {error}"))?;
        println!("   {}", path.display());
    }
    Ok(Outcome::Done)
}

/// Copies what was built to where it is looked for, and reads it.
fn deliver(place: &Place, name: &str) -> Result<Library, String> {
    let folder = place.target.join("package");
    let built = place.target.join(triple()).join("release").join(name);
    let path = folder.join(name);
    let copied = fs::create_dir_all(&folder).and_then(|()| fs::copy(&built, &path));
    let size = copied.map_err(|error| format!("failed to copy {}: {error}", built.display()))?;
    println!("   {}  {:.1} MiB", path.display(), size as f64 / f64::from(1 << 20));
    Library::read(&path)
}

/// Fails where there are problems, or a glibc is needed that is too new.
fn accept(name: &str, file: &Library, mut problems: Vec<String>) -> Result<Outcome, Failure> {
    println!("   needs {}", file.needed.join(", "));
    problems.extend(file.newer_than_glibc(GLIBC));
    if problems.is_empty() { Ok(Outcome::Done) } else { Err(format!("{name}: {}", problems.join("; ")).into()) }
}
