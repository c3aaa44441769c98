//! The known word nearest to a misspelt one.

/// The candidate with the fewest edits from `word`, if few enough to be a misspelling:
/// at most a third of the word's length. Ties go to the first candidate.
///
/// An edit inserts, deletes or replaces one character, or swaps two neighbours
/// (optimal string alignment). A change of case alone is no edit.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A longer word is no misspelling of anything, and the cost is quadratic.
    const CHARACTERS_MAX: usize = 64;
    if word.chars().nth(CHARACTERS_MAX).is_some() {
        return None;
    }
    let word: Vec<char> = word.to_lowercase().chars().collect();
    let allowed = (word.len() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let letters: Vec<char> = candidate.to_lowercase().chars().collect();
        if letters.len().abs_diff(word.len()) > allowed {
            continue;
        }
        let edits = distance(&word, &letters);
        // A word of one letter has nothing left after one edit.
        if edits > allowed || edits >= word.len().max(letters.len()) {
            continue;
        }
        if best.is_none_or(|(fewest, _)| edits < fewest) {
            best = Some((edits, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = above;
        above = row;
    }
    above[b.len()]
}

/// `` `a`, `b` or `c` ``
pub(crate) fn list(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slip_is_recognised() {
        let words = ["horizon", "warmup", "seed", "arrivals"];
        assert_eq!(nearest("horzion", words), Some("horizon"));
        assert_eq!(nearest("Seed", words), Some("seed"));
        assert_eq!(nearest("arival", words), Some("arrivals"));
        assert_eq!(nearest("granule", words), None);
        assert_eq!(nearest("x", ["y"]), None);
    }

    #[test]
    fn lists_read_as_a_sentence() {
        assert_eq!(list(&["a"]), "`a`");
        assert_eq!(list(&["a", "b", "c"]), "`a`, `b` or `c`");
    }
}
