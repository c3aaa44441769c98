//! A list of seeds on the command line: `1..20` (both ends), `1,5,9`, `1..3,7`.

use std::str::FromStr;

/// Most seeds one command takes: more is a slip of the finger.
const SEEDS_MAX: u64 = 100_000;

/// Seeds in the order written, none twice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seeds(pub(crate) Vec<u64>);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut seeds: Vec<u64> = Vec::new();
        for piece in text.split(',') {
            let (first, last) = match piece.split_once("..") {
                Some((first, last)) => (whole(first)?, whole(last.strip_prefix('=').unwrap_or(last))?),
                None => (whole(piece)?, whole(piece)?),
            };
            if first > last {
                return Err(format!("{first}..{last} has no seeds: write the smaller first"));
            }
            if last - first >= SEEDS_MAX - seeds.len() as u64 {
                return Err(format!("more than {SEEDS_MAX} seeds"));
            }
            seeds.extend(first..=last);
        }
        let mut sorted = seeds.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("seed {} is there twice", pair[0]));
        }
        Ok(Self(seeds))
    }
}

impl Seeds {
    /// As a person writes them.
    pub(crate) fn words(&self) -> String {
        let seeds = &self.0;
        let (Some(&first), Some(&last)) = (seeds.first(), seeds.last()) else { return "no seeds".into() };
        if seeds.len() > 1 && seeds.windows(2).all(|pair| pair[1] == pair[0] + 1) {
            return format!("seeds {first}..{last}");
        }
        let listed: Vec<String> = seeds.iter().map(u64::to_string).collect();
        match listed.len() {
            1 => format!("seed {first}"),
            2..=8 => format!("seeds {}", listed.join(",")),
            count => format!("{count} seeds"),
        }
    }
}

fn whole(text: &str) -> Result<u64, String> {
    let text = text.trim();
    text.parse().map_err(|_| format!("`{text}` is no seed: a whole number from 0 to {}", u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_both_ends_and_may_be_listed() {
        let seeds = |text: &str| text.parse::<Seeds>().map(|seeds| seeds.0);
        assert_eq!(seeds("1..3"), Ok(vec![1, 2, 3]));
        assert_eq!(seeds("1..=3"), Ok(vec![1, 2, 3]));
        assert_eq!(seeds("9,1,5..6"), Ok(vec![9, 1, 5, 6]));
        assert_eq!(seeds("7..7"), Ok(vec![7]));
        assert_eq!(seeds("3..1"), Err("3..1 has no seeds: write the smaller first".into()));
        assert_eq!(seeds("1,1"), Err("seed 1 is there twice".into()));
        assert_eq!(seeds("0..18446744073709551615"), Err("more than 100000 seeds".into()));
        assert!(seeds("").unwrap_err().starts_with("`` is no seed"));
        assert!(seeds("-1").is_err() && seeds("1.5").is_err() && seeds("1..").is_err() && seeds("nan").is_err());
    }

    #[test]
    fn seeds_in_words() {
        let words = |text: &str| text.parse::<Seeds>().unwrap().words();
        assert_eq!(words("1..20"), "seeds 1..20");
        assert_eq!(words("1,5,9"), "seeds 1,5,9");
        assert_eq!(words("4"), "seed 4");
    }
}
