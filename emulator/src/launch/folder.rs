//! The folder of a job.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::Error;
use crate::job::meeting::HUNG;

/// The file that marks a folder as one of ours.
pub(super) const SCENARIO: &str = "scenario.toml";

/// The folder of a job, while it runs.
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// Where its processes meet; removed afterwards.
    pub(super) meeting: PathBuf,
    /// Held as long as the job runs.
    pub(super) _lock: File,
}

impl Folder {
    /// Makes the folder, or takes that of an earlier job and removes what that job left.
    pub(super) fn open(path: &Path) -> Result<Folder, Error> {
        let failed = |error: io::Error| Error::System(format!("failed to use the folder {}: {error}", path.display()));
        fs::create_dir_all(path).map_err(failed)?;
        let path = path.canonicalize().map_err(failed)?;
        let mut files = Vec::new();
        for entry in fs::read_dir(&path).map_err(failed)? {
            files.push(entry.map_err(failed)?.path());
        }
        if !files.is_empty() && !path.join(SCENARIO).exists() {
            return Err(Error::Refused(format!(
                "{} is not empty and not the folder of an earlier job: it is not overwritten",
                path.display()
            )));
        }
        let lock = File::create(path.join("lock")).map_err(failed)?;
        // SAFETY: the file is open.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let advice = "another job is running there; --output names another folder";
            return Err(Error::Refused(format!("{}: {advice}", path.display())));
        }
        let traces = fs::read_dir(folder_of_traces(&path)).into_iter().flatten().flatten().map(|entry| entry.path());
        for file in files.into_iter().chain(traces).filter(|file| is_left_by_a_job(file)) {
            if file.is_dir() { fs::remove_dir_all(&file) } else { fs::remove_file(&file) }.map_err(failed)?;
        }
        let meeting = path.join("meeting");
        fs::create_dir(&meeting).map_err(failed)?;
        Ok(Folder { path, meeting, _lock: lock })
    }

    pub(super) fn file(&self, kind: &str, process: u32, extension: &str) -> PathBuf {
        self.path.join(format!("{kind}-{process}.{extension}"))
    }

    pub(super) fn someone_hangs(&self) -> bool {
        let mut files = fs::read_dir(&self.meeting).into_iter().flatten().flatten();
        files.any(|file| file.file_name().to_string_lossy().starts_with(HUNG))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.meeting);
        let _ = fs::remove_file(self.path.join("lock"));
    }
}

/// Whether an earlier job made this file.
fn is_left_by_a_job(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let numbered = |kind: &str, extension: &str| {
        let number = name.strip_prefix(kind).and_then(|rest| rest.strip_suffix(extension));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    name == "meeting"
        || numbered("truth-", ".jsonl")
        || numbered("process-", ".log")
        || numbered("nccl-", ".log")
        || name.ends_with(".perfetto-trace")
}

/// Where the profiler's traces go by default.
pub fn folder_of_traces(output: &Path) -> PathBuf {
    output.join("trace")
}
