//! The words of a line, and its `name=value` options.

use super::Result;
use std::fmt;

/// One word of a line.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) bytes: Vec<u8>,
    /// Whether any of it was quoted, so that it can only be a text.
    pub(super) quoted: bool,
}

impl Word {
    pub(super) fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.bytes).map_err(|_| format!("expected text, found {self}"))
    }

    pub(super) fn label(&self, expected: &str) -> Result<String> {
        let text = self.text()?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
        let number = text.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        match !text.is_empty() && text != "null" && !number && text.chars().all(plain) {
            true => Ok(text.to_owned()),
            false => Err(format!("expected {expected} made of letters, digits and _-./, found {self}")),
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.bytes.escape_ascii())
    }
}

/// The unread words of a line.
pub(super) struct Words(pub(super) std::vec::IntoIter<Word>);

impl Words {
    pub(super) fn next(&mut self, expected: &str) -> Result<Word> {
        self.0.next().ok_or_else(|| format!("expected {expected}, found the end of the line"))
    }

    pub(super) fn optional(&mut self) -> Option<Word> {
        self.0.next()
    }

    pub(super) fn options(&mut self) -> Result<Options> {
        self.options_with(&[])
    }

    /// The rest of the line as `name=value`, or as one of the words in `alone`.
    pub(super) fn options_with(&mut self, alone: &[&str]) -> Result<Options> {
        let mut options: Vec<(String, Word)> = Vec::new();
        for word in self.0.by_ref() {
            let (name, value) = match word.bytes.iter().position(|byte| *byte == b'=') {
                Some(at) => (&word.bytes[..at], &word.bytes[at + 1..]),
                None if alone.iter().any(|name| name.as_bytes() == word.bytes) => (&word.bytes[..], &[][..]),
                None => return Err(format!("expected NAME=VALUE, found {word}")),
            };
            let name = String::from_utf8_lossy(name).into_owned();
            if options.iter().any(|(known, _)| *known == name) {
                return Err(format!("expected `{name}` once"));
            }
            options.push((name, Word { bytes: value.to_vec(), quoted: word.quoted }));
        }
        Ok(Options(options))
    }
}

/// The `name=value` part of a line.
pub(super) struct Options(pub(super) Vec<(String, Word)>);

impl Options {
    pub(super) fn take(&mut self, name: &str) -> Option<Word> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(at).1)
    }

    pub(super) fn done(self, expected: &[&str]) -> Result<()> {
        match self.0.first() {
            Some((name, _)) => Err(format!("expected one of {}, found `{name}`", expected.join(", "))),
            None => Ok(()),
        }
    }
}

/// Splits a line into words, without its comment.
pub(super) fn words(line: &str) -> Result<Vec<Word>> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'#' if word.is_none() => break,
            b' ' | b'\t' => words.extend(word.take()),
            b'"' => {
                let word = word.get_or_insert(Word { bytes: Vec::new(), quoted: true });
                word.quoted = true;
                quoted(&mut bytes, &mut word.bytes)?;
            }
            _ => word.get_or_insert(Word { bytes: Vec::new(), quoted: false }).bytes.push(byte),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Reads up to the closing quote.
fn quoted(source: &mut std::str::Bytes<'_>, content: &mut Vec<u8>) -> Result<()> {
    let open = || "expected a closing quote before the end of the line".to_owned();
    loop {
        match source.next().ok_or_else(open)? {
            b'"' => return Ok(()),
            b'\\' => match source.next().ok_or_else(open)? {
                escaped @ (b'"' | b'\\') => content.push(escaped),
                b'x' => {
                    let digits = [source.next().ok_or_else(open)?, source.next().ok_or_else(open)?];
                    let byte = std::str::from_utf8(&digits).ok().and_then(|d| u8::from_str_radix(d, 16).ok());
                    content.push(byte.ok_or("expected two hexadecimal digits after `\\x`")?);
                }
                _ => return Err("expected `\\\"`, `\\\\` or `\\xNN` after the backslash".into()),
            },
            byte => content.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_what_is_in_quotes() {
        let words = words(r#"  user name "NCCL Progress 0"	x="a \"b\" \\ \xff" # "rest"#).unwrap();
        let words: Vec<_> = words.iter().map(|word| word.bytes.as_slice()).collect();
        let expected: [&[u8]; 4] = [b"user", b"name", b"NCCL Progress 0", b"x=a \"b\" \\ \xff"];
        assert_eq!(words, expected);
    }
}
