//! Asks a C compiler about the headers of a release.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use super::releases::Release;
use super::save;
use crate::steps::Failure;

/// Includes the headers of a release that are needed.
pub(super) const PROLOGUE: &str = "\
#include <stddef.h>
#include <stdio.h>
#include <cuda.h>
#include <cupti_version.h>
#include <cupti_result.h>
#include <cupti_callbacks.h>
#include <cupti_activity.h>
#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>
#include <generated_cuda_meta.h>
";

/// The flags for the C compiler and libclang: the release's headers, with an empty
/// `builtin_types.h` in front of them. The real one includes the CUDA compiler's own headers and
/// nothing that CUPTI's need. The macro makes `cuda.h` declare the old types that
/// `generated_cuda_meta.h` uses.
pub(super) fn flags(release: &Release, scratch: &Path) -> Vec<String> {
    let include = release.folder.join("include");
    let folder = |path: &Path| format!("-I{}", path.display());
    vec!["-D__CUDA_API_VERSION_INTERNAL".to_owned(), folder(scratch), folder(&include)]
}

/// A temporary folder.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Scratch, Failure> {
        let path = env::temp_dir().join(format!("xtask-bindings-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let scratch = Scratch(path);
        save(&scratch.0.join("builtin_types.h"), "")?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Compiles a program against a release's headers, runs it, and returns the words that it prints.
pub(super) fn ask(release: &Release, declarations: &str, statements: &str) -> Result<Vec<Vec<String>>, Failure> {
    let scratch = Scratch::new()?;
    let source = scratch.0.join("ask.c");
    let program = scratch.0.join("ask");
    save(&source, &format!("{PROLOGUE}{declarations}\nint main(void) {{\n{statements}return 0;\n}}\n"))?;
    let mut compiler = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-w", "-o"]).arg(&program).args(flags(release, &scratch.0)).arg(&source);
    let compiled = compiler.output().map_err(|error| format!("failed to start the C compiler: {error}"))?;
    if !compiled.status.success() {
        let words = String::from_utf8_lossy(&compiled.stderr).into_owned();
        return Err(format!("CUPTI {}: the C compiler says\n{words}", release.version).into());
    }
    let output = Command::new(&program).output().map_err(|error| format!("{}: {error}", program.display()))?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(output.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect())
}

pub(super) fn number(words: &[String], place: usize) -> Result<u32, Failure> {
    let word = words.get(place).ok_or("the C program said too little".to_owned())?;
    word.parse().map_err(|_| format!("the C program said {word}").into())
}
