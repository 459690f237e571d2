//! Lists in sentences.

use crate::model::selection::Ranks;

/// How many items a sentence names.
const NAMED: usize = 6;

/// `a`, `a and b`, `a, b and c`.
pub(super) fn all<T: AsRef<str>>(words: &[T]) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match &words[..] {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// As [`all`]; of many, `a, b, c and 9 more`.
pub(super) fn some<T: AsRef<str>>(words: &[T]) -> String {
    match words.len() {
        few if few <= NAMED => all(words),
        many => {
            let named: Vec<&str> = words[..NAMED - 1].iter().map(AsRef::as_ref).collect();
            format!("{} and {} more", named.join(", "), many - named.len())
        }
    }
}

/// `rank 2`, `ranks 0 and 1`, `ranks 4 to 11 and 16`, `ranks 0, 8, 16, 24, 32 and 11 more`.
pub(super) fn ranks(numbers: impl IntoIterator<Item = u32>) -> String {
    let ranks = Ranks::of(numbers.into_iter().collect());
    let mut parts: Vec<(String, usize)> = Vec::new();
    for (first, last) in ranks.ranges() {
        match last - first {
            0 | 1 => parts.extend((first..=last).map(|rank| (rank.to_string(), 1))),
            more => parts.push((format!("{first} to {last}"), more as usize + 1)),
        }
    }
    let count: usize = parts.iter().map(|it| it.1).sum();
    let mut names: Vec<String> = parts.iter().map(|it| it.0.clone()).collect();
    if parts.len() > NAMED {
        names.truncate(NAMED - 1);
        let named: usize = parts[..NAMED - 1].iter().map(|it| it.1).sum();
        names.push(format!("{} more", count - named));
    }
    format!("{} {}", if count == 1 { "rank" } else { "ranks" }, all(&names))
}

/// `process 70`, `processes 70 and 71`.
pub(super) fn processes(pids: impl IntoIterator<Item = u64>) -> String {
    let pids: Vec<String> = pids.into_iter().map(|pid| pid.to_string()).collect();
    format!("{} {}", if pids.len() == 1 { "process" } else { "processes" }, some(&pids))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_well_and_are_short() {
        assert_eq!(all::<&str>(&[]), "");
        assert_eq!(all(&["a", "b", "c"]), "a, b and c");
        assert_eq!(some(&["a", "b", "c", "d", "e", "f"]), "a, b, c, d, e and f");
        assert_eq!(some(&["a", "b", "c", "d", "e", "f", "g"]), "a, b, c, d, e and 2 more");
        assert_eq!(ranks([3]), "rank 3");
        assert_eq!(ranks([1, 0]), "ranks 0 and 1");
        assert_eq!(ranks((96..112).chain([3])), "ranks 3 and 96 to 111");
        assert_eq!(ranks((0..128).step_by(8)), "ranks 0, 8, 16, 24, 32 and 11 more");
        assert_eq!(ranks((0..8).chain((16..64).step_by(8)).chain(90..94)), "ranks 0 to 7, 16, 24, 32, 40 and 6 more");
    }
}
