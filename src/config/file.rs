//! Settings in a TOML file, by their names in lower case: `max_size = "4G"`.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use toml_span::value::{Table, Value, ValueInner};

use super::settings::{self, SETTINGS};

/// A file with settings is smaller than this.
const MOST_BYTES: u64 = 1 << 20;
/// The setting that names the file; it cannot be in it.
pub(super) const CONFIG: &str = "NCCLSCOPE_CONFIG";

/// The settings of a file: variables with their values.
#[derive(Debug, Default)]
pub(super) struct Settings {
    values: Vec<(&'static str, String)>,
    /// What is wrong with it, one sentence each.
    pub(super) complaints: Vec<String>,
}

impl Settings {
    /// Reads a file. One that cannot be read has no settings, and a complaint.
    pub(super) fn read(path: &str) -> Settings {
        let mut settings = Settings::default();
        match text(Path::new(path)) {
            Ok(text) => settings.parse(path, &text),
            Err(error) => {
                settings.complaints.push(format!("{CONFIG}={path}: failed to read it: {error}; it is ignored"));
            }
        }
        settings
    }

    fn parse(&mut self, path: &str, text: &str) {
        let line = |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count();
        let mut document = match toml_span::parse(text) {
            Ok(document) => document,
            Err(error) => {
                let line = line(error.span.start);
                self.complaints.push(format!("{path}:{line}: not TOML: {}; the file is ignored", error.kind));
                return;
            }
        };
        let ValueInner::Table(table) = document.take() else { return };
        // In the order of the file.
        let mut entries: Vec<_> = Table::into_iter(table).collect();
        entries.sort_by_key(|(key, _)| key.span.start);
        for (key, value) in entries {
            let name = format!("NCCLSCOPE_{}", key.name.to_ascii_uppercase());
            let known = SETTINGS.iter().find(|known| known.name == name && known.name != CONFIG);
            let wrong = match (known, as_text(value)) {
                (Some(known), Some(value)) => {
                    self.values.push((known.name, value));
                    continue;
                }
                (Some(_), None) => "a text, a number, true or false, or a list of them is needed".to_owned(),
                (None, _) => match settings::closest(&name) {
                    Some(near) => format!("it is not a setting; did you mean {}?", key_of(near)),
                    None => "it is not a setting".to_owned(),
                },
            };
            self.complaints.push(format!("{path}:{}: {}: {wrong}; it is ignored", line(key.span.start), key.name));
        }
    }

    /// The value of a variable, if it is in the file.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

fn text(path: &Path) -> std::io::Result<String> {
    // Not opened as a pipe, which would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a file"));
    }
    let mut text = String::new();
    let read = file.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    match read as u64 > MOST_BYTES {
        true => Err(std::io::Error::other("it is larger than 1 MiB")),
        false => Ok(text),
    }
}

/// The name of a setting in a file.
pub(super) fn key_of(variable: &str) -> String {
    variable.trim_start_matches("NCCLSCOPE_").to_ascii_lowercase()
}

/// A value as it would be written in a variable.
fn as_text(mut value: Value<'_>) -> Option<String> {
    match value.take() {
        ValueInner::String(text) => Some(text.into_owned()),
        ValueInner::Integer(number) => Some(number.to_string()),
        ValueInner::Boolean(is_on) => Some(u8::from(is_on).to_string()),
        ValueInner::Array(values) => {
            let texts: Option<Vec<String>> = values.into_iter().map(as_text).collect();
            Some(texts?.join(","))
        }
        ValueInner::Float(_) | ValueInner::Table(_) => None,
    }
}
