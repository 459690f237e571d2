//! The text of a release's headers, searched for C declarations.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::steps::Failure;

/// The text of a release's headers.
#[derive(Default)]
pub(super) struct Headers {
    /// With comments, which name each kind's struct.
    pub(super) whole: String,
    /// Without comments.
    pub(super) bare: String,
    /// Every word of `bare`.
    pub(super) words: BTreeSet<String>,
}

pub(super) fn headers(folder: &Path) -> Result<Headers, Failure> {
    let mut whole = String::new();
    let mut names: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        names.push(entry.map_err(|error| error.to_string())?.path());
    }
    names.sort();
    for path in names.iter().filter(|path| path.is_file()) {
        // Some have a copyright sign in Latin-1.
        let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        whole.push_str(&String::from_utf8_lossy(&bytes));
    }
    let bare = without_comments(&whole);
    let words = bare.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map(str::to_owned).collect();
    Ok(Headers { whole, bare, words })
}

pub(super) fn without_comments(text: &str) -> String {
    let mut bare = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(slash) = rest.find('/') {
        let comment = &rest[slash..];
        let end = match comment.as_bytes().get(1) {
            Some(b'*') => comment[2..].find("*/").map_or(comment.len(), |end| end + 4),
            Some(b'/') => comment.find('\n').unwrap_or(comment.len()),
            _ => 1,
        };
        bare.push_str(&rest[..slash]);
        bare.push_str(if end == 1 { "/" } else { " " });
        rest = &comment[end..];
    }
    bare.push_str(rest);
    bare
}

impl Headers {
    /// The C name of a struct, and the text between its braces.
    pub(super) fn body(&self, name: &str) -> Option<(String, &str)> {
        for (at, _) in self.bare.match_indices(name) {
            let before = self.bare[..at].trim_end();
            let after = self.bare[at + name.len()..].trim_start();
            let tagged = before.ends_with("struct") && after.starts_with('{');
            if tagged {
                let body = &after[1..];
                return Some((format!("struct {name}"), &body[..unpaired(body.char_indices(), '{', '}')?]));
            }
            if before.ends_with('}') && after.starts_with(';') {
                let body = &before[..before.len() - 1];
                return Some((name.to_owned(), &body[unpaired(body.char_indices().rev(), '}', '{')? + 1..]));
            }
        }
        None
    }

    /// The struct that the comment of each kind names: number, name, struct.
    pub(super) fn kinds(&self) -> Result<Vec<(u32, String, String)>, Failure> {
        const KIND: &str = "CUPTI_ACTIVITY_KIND_";
        let start = self.whole.find("CUPTI_ACTIVITY_KIND_INVALID").ok_or("no kinds".to_owned())?;
        let end = self.whole[start..].find("CUpti_ActivityKind;").ok_or("no end of the kinds".to_owned())?;
        let mut kinds = Vec::new();
        for part in self.whole[start..start + end].split("/**").skip(1) {
            let Some((comment, rest)) = part.split_once("*/") else { continue };
            let Some((name, number)) = rest.split_once('=') else { continue };
            let Some(name) = name.trim().strip_prefix(KIND) else { continue };
            let number = number.split(|c: char| !c.is_ascii_alphanumeric()).find(|word| !word.is_empty());
            // Some are only placeholders and name no struct.
            let (Some(Ok(number)), Some(at)) = (number.map(str::parse), comment.find("CUpti_Activity")) else {
                continue;
            };
            let end = comment[at..].find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let record = &comment[at..at + end.unwrap_or(comment.len() - at)];
            kinds.push((number, name.to_owned(), record.to_owned()));
        }
        Ok(kinds)
    }
}

/// The place of the first brace `outer` that is not part of a pair; `inner` is the other brace of a
/// pair, which comes first. This works in both reading directions.
fn unpaired(mut text: impl Iterator<Item = (usize, char)>, inner: char, outer: char) -> Option<usize> {
    let mut depth = 0;
    text.find_map(|(at, c)| {
        if c == outer && depth == 0 {
            return Some(at);
        }
        depth += i32::from(c == inner) - i32::from(c == outer);
        None
    })
}

/// Whether a struct has a member. `path` may lead into members of it.
pub(super) fn has_member(body: &str, path: &str) -> bool {
    let member = path.split('.').next().unwrap_or(path);
    body.match_indices(member).any(|(at, _)| {
        let before = body[..at].chars().next_back();
        let after = body[at + member.len()..].trim_start().chars().next();
        before.is_some_and(|c| c.is_whitespace() || c == '*') && matches!(after, Some(';' | '['))
    })
}
