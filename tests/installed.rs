//! Program, library and Python module in the layouts of the wheel and the archive: they must find
//! each other. `cargo xtask package` does the same with the real ones. This test belongs to the
//! package `ncclscope`, because Cargo tells only that package's tests where the program is.

use ncclscope_tests::play;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const LIBRARY: &str = "libncclscope.so";

/// Where the program, the library and the folder of the module are.
struct Installed {
    root: TempDir,
    program: PathBuf,
    library: PathBuf,
    modules: PathBuf,
}

impl Installed {
    /// As a wheel is installed in a virtual environment of the local Python: `scripts` for the
    /// program, `platlib` for the library and the module.
    fn wheel() -> Installed {
        let root = folder();
        let text = "import sys, sysconfig\n\
            paths = sysconfig.get_paths('posix_prefix', vars={'base': sys.argv[1], 'platbase': sys.argv[1]})\n\
            print(paths['scripts'], paths['platlib'], sep='\\n')";
        let said = said(Command::new("python3").args(["-c", text]).arg(root.path()));
        let (scripts, platlib) = said.split_once('\n').unwrap();
        let modules = PathBuf::from(platlib);
        fs::create_dir_all(modules.join(concat!("ncclscope-", env!("CARGO_PKG_VERSION"), ".dist-info"))).unwrap();
        Installed::new(root, &PathBuf::from(scripts), modules.join("ncclscope"), modules)
    }

    fn archive() -> Installed {
        let root = folder();
        let top = root.path().join("ncclscope-x86_64-linux");
        Installed::new(root, &top, top.clone(), top.join("python"))
    }

    fn new(root: TempDir, programs: &Path, libraries: PathBuf, modules: PathBuf) -> Installed {
        let module = modules.join("ncclscope");
        for folder in [programs, &libraries, &module] {
            fs::create_dir_all(folder).unwrap();
        }
        let (program, library) = (programs.join("ncclscope"), libraries.join(LIBRARY));
        play::copy_program(Path::new(env!("CARGO_BIN_EXE_ncclscope")), &program);
        fs::write(&library, "").unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/ncclscope/__init__.py");
        fs::copy(source, module.join("__init__.py")).unwrap();
        Installed { root, program, library, modules }
    }

    /// `ncclscope lib`, started through a link on the PATH.
    fn lib(&self) -> Command {
        let link = self.root.path().join("link");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&self.program, &link).unwrap();
        let mut command = Command::new(link);
        play::clean_environment(command.arg("lib"));
        command
    }

    fn plugin_path(&self) -> Command {
        let mut command = Command::new("python3");
        play::clean_environment(&mut command);
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONPATH", &self.modules).current_dir(&self.root);
        command.args(["-c", "import ncclscope; print(ncclscope.plugin_path())"]);
        command
    }
}

/// By its real path, which a running program knows.
fn folder() -> TempDir {
    TempDir::new_in(std::env::temp_dir().canonicalize().unwrap()).unwrap()
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("failed to start {command:?}: {error}"))
}

#[track_caller]
fn said(command: &mut Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

#[track_caller]
fn refused(command: &mut Command) -> String {
    let output = output(command);
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn program_and_python_module_find_the_library_in_wheel_and_archive() {
    for installed in [Installed::wheel(), Installed::archive()] {
        let library = installed.library.to_str().unwrap();
        assert_eq!(said(&mut installed.lib()), library);
        assert_eq!(said(&mut installed.plugin_path()), library);
    }
}

#[test]
fn with_several_pythons_the_library_of_this_version_is_found() {
    let installed = Installed::wheel();
    for other in ["lib/python3.0/site-packages", "lib/python3.999/site-packages"] {
        let modules = installed.root.path().join(other);
        fs::create_dir_all(modules.join("ncclscope")).unwrap();
        fs::create_dir(modules.join("ncclscope-0.0.1.dist-info")).unwrap();
        fs::write(modules.join("ncclscope").join(LIBRARY), "").unwrap();
    }
    assert_eq!(said(&mut installed.lib()), installed.library.to_str().unwrap());
}

#[test]
fn without_a_library_both_say_where_to_get_it() {
    let installed = Installed::wheel();
    fs::remove_file(&installed.library).unwrap();
    let reason = refused(&mut installed.lib());
    let folder = installed.program.parent().unwrap();
    for words in [
        format!("there is no libncclscope.so beside {}", installed.program.display()),
        "The wheel and the archive have both".to_owned(),
        "cargo build --release --lib --no-default-features && cp".to_owned(),
        format!(" {}/\n", folder.display()),
    ] {
        assert!(reason.contains(&words), "{reason}");
    }
    let reason = refused(&mut installed.plugin_path());
    assert!(reason.contains("FileNotFoundError: there is no libncclscope.so in "), "{reason}");
    assert!(reason.contains("`ncclscope lib` prints where another is"), "{reason}");
}

#[test]
fn completions_and_manual_pages_have_every_command_except_hidden_ones() {
    let folder = folder();
    let mut generate = Command::new(env!("CARGO_BIN_EXE_ncclscope"));
    said(generate.arg("generate").arg(folder.path()));
    let help = said(Command::new(env!("CARGO_BIN_EXE_ncclscope")).arg("--help"));
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands = commands.lines().map_while(|line| line.split_whitespace().next());
    let commands: BTreeSet<String> = commands.filter(|name| *name != "help").map(str::to_owned).collect();

    let complete =
        "source \"$0\"; COMP_WORDS=(ncclscope ''); COMP_CWORD=1; _ncclscope ncclscope ''; echo \"${COMPREPLY[@]}\"";
    let proposed =
        said(Command::new("bash").args(["-c", complete]).arg(folder.path().join("completions/ncclscope.bash")));
    let proposed = proposed.split_whitespace().filter(|word| !word.starts_with('-') && *word != "help");
    assert_eq!(proposed.map(str::to_owned).collect::<BTreeSet<_>>(), commands);
    for (shell, file) in [("zsh", "_ncclscope"), ("fish", "ncclscope.fish")] {
        let text = fs::read_to_string(folder.path().join("completions").join(file)).unwrap();
        assert!(commands.iter().all(|name| text.contains(name.as_str())), "{shell}");
        assert!(!text.contains("generate") && !text.contains("sentinel"), "{shell}");
    }

    let pages = fs::read_dir(folder.path().join("man")).unwrap();
    let pages: BTreeSet<String> = pages.map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    let mut wanted: BTreeSet<String> = commands.iter().map(|name| format!("ncclscope-{name}.1")).collect();
    wanted.insert("ncclscope.1".into());
    assert_eq!(pages, wanted);
}
