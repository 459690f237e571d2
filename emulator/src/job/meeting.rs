//! Where the processes of a job meet: a folder with one file per unique id.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::library::api::UniqueId;

/// The folder, private to the job.
#[derive(Debug, Clone)]
pub(super) struct Meeting {
    pub(super) folder: PathBuf,
    /// How long to wait for others.
    pub(super) patience: Duration,
}

impl Meeting {
    /// Publishes the id of a communicator.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(super) fn publish(&self, name: &str, id: &UniqueId) -> Result<(), String> {
        self.write(&format!("id.{name}"), &id.0).map_err(|error| format!("failed to publish the id of {name}: {error}"))
    }

    /// The id of a communicator; waits until somebody has published it.
    ///
    /// # Errors
    ///
    /// When nobody publishes it in time.
    pub(super) fn learn(&self, name: &str) -> Result<UniqueId, String> {
        let path = self.folder.join(format!("id.{name}"));
        let begin = Instant::now();
        loop {
            match fs::read(&path) {
                Ok(bytes) => {
                    let id = bytes.try_into().map_err(|_| format!("{}: not an id", path.display()))?;
                    return Ok(UniqueId(id));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(format!("failed to read {}: {error}", path.display()));
                }
                Err(_) if begin.elapsed() > self.patience => {
                    return Err(format!(
                        "waited {} s for the unique id of {name}: its rank 0 has not made it",
                        self.patience.as_secs()
                    ));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Tells the launcher that a rank has stopped on purpose.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(super) fn hang(&self, rank: u32) -> Result<(), String> {
        self.write(&format!("{HUNG}{rank}"), b"")
            .map_err(|error| format!("failed to say that rank {rank} hangs: {error}"))
    }

    /// Writes a file so that others see all of it or none.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.folder.join(name);
        let draft = self.folder.join(format!("draft.{name}"));
        fs::write(&draft, bytes)?;
        fs::rename(&draft, &path)
    }
}

/// How the names of files begin that say a rank has stopped.
pub(crate) const HUNG: &str = "hung.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_learnt_once_it_is_published() {
        let folder = tempfile::tempdir().unwrap();
        let meeting = Meeting { folder: folder.path().into(), patience: Duration::from_millis(20) };
        let error = meeting.learn("dp.0.0").unwrap_err();
        assert_eq!(error, "waited 0 s for the unique id of dp.0.0: its rank 0 has not made it");
        let id = UniqueId([7; 128]);
        let waiting = {
            let meeting = Meeting { patience: Duration::from_secs(10), ..meeting.clone() };
            std::thread::spawn(move || meeting.learn("dp.0.0"))
        };
        meeting.publish("dp.0.0", &id).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(id));
    }
}
