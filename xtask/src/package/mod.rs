//! The packages for other machines: a wheel, an archive, and what `cargo install` builds.
//!
//! ```text
//! target/package/ncclscope-VERSION-py3-none-manylinux_2_28_ARCH.whl
//! target/package/ncclscope-VERSION-ARCH-linux.tar.gz
//! target/package/ncclscope-VERSION-ARCH-linux/                       what is in it
//! ```
//!
//! Everything is linked against an old glibc with Zig's linker: the library by cargo-zigbuild, the
//! program by maturin, which also uses that linker. The tools are installed below the target
//! folder only, at the versions given here.

mod archive;
mod first_page;
mod fresh;

use std::env::{self, consts::ARCH};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::check::RELEASED;
use crate::e2e::lines_of;
use crate::elf::Library;
use crate::steps::{Failure, Outcome, Place, Step, call, step, triple};

pub(crate) const STEPS: &[Step] = &[
    step("tools", "cargo-zigbuild, maturin and Zig, where they are missing", tools),
    step("library", "libncclscope.so", |place| for_each(place, library)),
    step("wheel", "the program, and both with the Python module in a wheel", |place| for_each(place, wheel)),
    step("archive", "all of it, completions and manual pages in an archive", |place| for_each(place, archive::make)),
    step("fresh", "wheel and archive where there is nothing else", fresh::packages),
    step("install", "cargo install, and the library as its program says", fresh::cargo_install),
];

/// From PyPI: the name there with the version.
const CARGO_ZIGBUILD: &str = "cargo-zigbuild-0.24.0";
const MATURIN: &str = "maturin-1.16.0";
const ZIG: &str = "ziglang-0.15.2";

/// The architectures to package for.
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

/// The glibc of RHEL 8, the oldest system that NCCL's own packages still run on.
pub(crate) const GLIBC: (u32, u32) = (2, 28);

const VERSION: &str = env!("CARGO_PKG_VERSION");
const LIBRARY: &str = "libncclscope.so";
const PROGRAM: &str = "ncclscope";
/// The Python module.
pub(crate) const MODULE: &str = "python/ncclscope/__init__.py";

/// The largest size of the library, in bytes.
const ROOM: u64 = 3_000_000;

/// Where the tools are.
pub(crate) struct Tools {
    folder: PathBuf,
}

impl Tools {
    pub(crate) fn of(place: &Place) -> Tools {
        Tools { folder: place.target.join("tools") }
    }

    /// `cargo build`, called `zigbuild` here, or `cargo rustc`, for the target of the packages.
    pub(crate) fn cargo(&self, place: &Place, what: &str, arch: &str) -> Command {
        let mut command = place.command(self.folder.join(CARGO_ZIGBUILD).join("bin/cargo-zigbuild"));
        self.tell(&mut command);
        command.args([what, "--release", "--target"]);
        command.arg(format!("{}.{}.{}", triple(arch), GLIBC.0, GLIBC.1));
        command
    }

    /// `maturin`, for any of its commands.
    fn maturin(&self, place: &Place) -> Command {
        let mut command = place.command(self.folder.join(MATURIN).join("bin/maturin"));
        self.tell(&mut command);
        command
    }

    /// Sets where Zig is, and where all tools keep their files. Source paths in panics do not
    /// contain this machine's folders.
    fn tell(&self, command: &mut Command) {
        let cache = self.folder.join("cache");
        let home = env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(env::home_dir()?.join(".cargo"))).unwrap_or_default();
        command
            .env("CARGO_ZIGBUILD_ZIG_PATH", self.folder.join(ZIG).join("ziglang/zig"))
            .env("CARGO_ZIGBUILD_CACHE_DIR", &cache)
            .env("ZIG_GLOBAL_CACHE_DIR", cache)
            .env("RUSTFLAGS", format!("--remap-path-prefix={}/registry/src/=", home.display()));
    }
}

pub(crate) fn tools(place: &Place) -> Result<Outcome, Failure> {
    for tool in [CARGO_ZIGBUILD, MATURIN, ZIG] {
        let folder = Tools::of(place).folder.join(tool);
        if !folder.exists() {
            // Into a folder, not into any Python; completely or not at all.
            let mut install = place.command("python3");
            install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
            install.args(["--root-user-action=ignore", "--no-deps", "--target"]).arg(folder);
            let (name, version) = tool.rsplit_once('-').unwrap_or((tool, ""));
            call(install.arg(format!("{name}=={version}")))?;
        }
    }
    Ok(Outcome::Done)
}

/// Calls `make` for each architecture that this machine can build for.
fn for_each(place: &Place, make: fn(&Place, &str) -> Result<(), Failure>) -> Result<Outcome, Failure> {
    let mut left_out = Vec::new();
    for arch in ARCHITECTURES {
        if has_standard_library(place, arch)? {
            make(place, arch)?;
        } else {
            left_out.push(format!(
                "{arch} was left out for want of Rust's standard library: rustup target add {}",
                triple(arch)
            ));
        }
    }
    Ok(if left_out.is_empty() { Outcome::Done } else { Outcome::Partly(left_out.join("; ")) })
}

pub(crate) fn has_standard_library(place: &Place, arch: &str) -> Result<bool, Failure> {
    let asked = place.command("rustc").args(["--print", "target-libdir", "--target", &triple(arch)]).output();
    let output = asked.map_err(|error| format!("failed to start rustc: {error}"))?;
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end());
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    Ok(files.map(|file| file.file_name()).any(|name| name.to_string_lossy().starts_with("libstd-")))
}

/// The folder that becomes the archive.
fn tree(place: &Place, arch: &str) -> PathBuf {
    place.target.join("package").join(format!("ncclscope-{VERSION}-{arch}-linux"))
}

fn library(place: &Place, arch: &str) -> Result<(), Failure> {
    let mut build = Tools::of(place).cargo(place, "rustc", arch);
    call(build.env("CARGO_PROFILE_RELEASE_STRIP", "symbols").args(RELEASED))?;
    // Everything in it is created again.
    let _ = fs::remove_dir_all(tree(place, arch));
    let path = deliver(place, arch, LIBRARY)?;
    let library = Library::read(&path)?;
    let mut problems = library.as_plugin();
    let size = fs::metadata(&path).map_err(|error| error.to_string())?.len();
    problems.extend((size >= ROOM).then(|| format!("it has {size} bytes, and may have {ROOM}")));
    accept(LIBRARY, &library, problems)
}

fn wheel(place: &Place, arch: &str) -> Result<(), Failure> {
    // pyproject.toml names this folder, wherever the target folder is. The content of "platlib" is
    // installed beside the modules.
    let data = place.root.join("target/wheel");
    copy(&tree(place, arch).join(LIBRARY), &data.join("platlib/ncclscope").join(LIBRARY))?;
    // The content of "data" is installed below the prefix. Without pictures, which are larger than
    // all else.
    let pages = data.join("data/share/ncclscope");
    archive::copy_pages(&place.root, &pages, |file| file.extension().is_none_or(|end| end != "png"))?;
    if let Ok(before) = find_wheel(place, arch) {
        fs::remove_file(&before).map_err(|error| format!("failed to remove {}: {error}", before.display()))?;
    }
    let mut build = Tools::of(place).maturin(place);
    build.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    build.args(["build", "--release", "--locked", "--quiet", "--zig", "--compatibility"]).arg(manylinux());
    let built = call(build.args(["--target", &triple(arch), "--out"]).arg(place.target.join("package")));
    // So that `pip install .` reports it as missing, and does not install an old one.
    let _ = fs::remove_dir_all(&data);
    built?;
    let wheel = find_wheel(place, arch)?;
    println!("   {}", wheel.display());
    holds_all(place, &wheel)?;

    let program = Library::read(&deliver(place, arch, PROGRAM)?)?;
    accept(PROGRAM, &program, program.foreign_libraries())
}

/// A wheel for another architecture is not installed here, but its content can be checked.
fn holds_all(place: &Place, wheel: &Path) -> Result<(), Failure> {
    const LIST: &str = r"import sys, zipfile; print(*zipfile.ZipFile(sys.argv[1]).namelist(), sep='\n')";
    let files = lines_of(place.command("python3").args(["-c", LIST]).arg(wheel))?;
    let wanted = [
        ".data/scripts/ncclscope",
        ".data/platlib/ncclscope/libncclscope.so",
        ".data/data/share/ncclscope/docs/queries.md",
        "ncclscope/__init__.py",
        "/LICENSE-MIT",
    ];
    let missing: Vec<&str> = wanted.into_iter().filter(|end| !files.iter().any(|file| file.ends_with(end))).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("it lacks {}", missing.join(", ")).into()) }
}

fn manylinux() -> String {
    format!("manylinux_{}_{}", GLIBC.0, GLIBC.1)
}

/// The wheel that was built. Its name has the version in Python's spelling.
fn find_wheel(place: &Place, arch: &str) -> Result<PathBuf, String> {
    let folder = place.target.join("package");
    let end = format!("-py3-none-{}_{arch}.whl", manylinux());
    let files = fs::read_dir(&folder).map_err(|error| format!("failed to read {}: {error}", folder.display()))?;
    let mut files = files.flatten().map(|file| file.path());
    let found = files.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(&end)));
    found.ok_or_else(|| format!("{} has no ncclscope-VERSION{end}", folder.display()))
}

/// Copies the result of a build to where it is looked for.
fn deliver(place: &Place, arch: &str, name: &str) -> Result<PathBuf, String> {
    let path = tree(place, arch).join(name);
    copy(&place.target.join(triple(arch)).join("release").join(name), &path)?;
    Ok(path)
}

/// Copies a file with its permissions, and prints its size.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let folder = to.parent().unwrap_or(to);
    let size = fs::create_dir_all(folder).and_then(|()| fs::copy(from, to));
    let size = size.map_err(|error| format!("failed to copy {}: {error}", from.display()))?;
    println!("   {}  {:.2} MB", to.display(), size as f64 / 1e6);
    Ok(())
}

/// Fails if there are problems, debug symbols, or a need for a newer glibc.
fn accept(name: &str, file: &Library, mut problems: Vec<String>) -> Result<(), Failure> {
    println!("   needs {}", file.needed.join(", "));
    problems.extend(file.newer_than_glibc(GLIBC));
    problems.extend((!file.stripped).then(|| "it is not stripped".to_owned()));
    if problems.is_empty() { Ok(()) } else { Err(format!("{name}: {}", problems.join("; ")).into()) }
}
