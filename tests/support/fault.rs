//! The table of faults: what is done to a job, and what holds. Each case writes a row when its test
//! has passed, and `cargo xtask check reliability` compares the rows with docs/reliability.md.

use std::panic::Location;
use std::path::PathBuf;
use std::{env, fs, thread};

/// A case, until its test is done.
#[derive(Debug)]
#[must_use = "it has no row before it says that it was survived"]
pub struct Case {
    group: &'static str,
    fault: &'static str,
    holds: &'static str,
    file: &'static str,
}

/// The case of a test: what is done, and what holds. A test has at most one.
#[track_caller]
pub fn case(group: &'static str, fault: &'static str, holds: &'static str) -> Case {
    Case { group, fault, holds, file: Location::caller().file() }
}

impl Case {
    /// Writes the row. `runs` is the number of jobs, or inputs, to which it was done in this test.
    ///
    /// # Panics
    ///
    /// If the row cannot be written, or is called outside a test.
    pub fn survived(self, runs: u64) {
        let folder = folder();
        fs::create_dir_all(&folder).expect("a folder for the rows");
        let thread = thread::current();
        let test = thread.name().expect("a test's thread has its name");
        let Case { group, fault, holds, file } = self;
        let name = format!("{}.{}", file.replace('/', "."), test.replace("::", "."));
        let row = [group, fault, holds, file, test, &runs.to_string()].join("\t");
        fs::write(folder.join(name), format!("{row}\n")).expect("the row can be written");
    }
}

/// Where the rows are: beside the folder of the tests' programs.
fn folder() -> PathBuf {
    let program = env::current_exe().expect("a test has a program");
    program.ancestors().nth(2).expect("it is in a folder of the build").join("faults")
}
