//! Facts as JSON, in a file or on the standard output.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

/// Writes them where they are wanted. Whether they went to `out`, so that nothing else may go there.
///
/// # Errors
///
/// When the file is there already, or cannot be written.
pub(super) fn write(wanted: Option<&Path>, facts: &impl Serialize, out: &mut dyn Write) -> Result<bool, String> {
    let Some(path) = wanted else { return Ok(false) };
    let text = serde_json::to_string_pretty(facts).map_err(|error| format!("failed to write JSON: {error}"))? + "\n";
    if path == Path::new("-") {
        out.write_all(text.as_bytes()).map_err(|error| format!("failed to write: {error}"))?;
        return Ok(true);
    }
    let failed = |error| format!("failed to write {}: {error}", path.display());
    super::create(path, false)?.write_all(text.as_bytes()).map_err(failed)?;
    Ok(false)
}
