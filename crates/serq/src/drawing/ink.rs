//! How wide text is, without the font at hand.
//!
//! Widths are those of DejaVu Sans, the widest of the fonts a picture is likely to be shown in,
//! so that what fits here fits everywhere.

/// Size of names, px.
pub(super) const NAME: f64 = 13.0;
/// Size of what stands below them, px.
pub(super) const DETAIL: f64 = 11.0;
/// Most of a text that is shown, px: a picture is no place for a name of a thousand letters.
const TEXT_MAX: f64 = 230.0;

/// In px, of a text of a size.
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(em).sum::<f64>() * size
}

/// Of a name, which is bold.
pub(super) fn width_of_name(text: &str) -> f64 {
    width(text, NAME) * 1.12
}

fn em(letter: char) -> f64 {
    match letter {
        'i' | 'l' | 'j' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | ' ' => 0.34,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '-' | '/' | '"' | '!' => 0.42,
        'm' | 'M' | 'w' | 'W' | '%' | '@' => 1.0,
        '_' => 0.5,
        'A'..='Z' | '×' | '+' | '<' | '>' | '=' | '~' | '#' | '&' | '…' => 0.84,
        ' '..='~' => 0.65,
        // Ideographs are as wide as they are high, and nothing a name is made of is wider.
        _ => 1.1,
    }
}

/// As much of a text as is shown; characters that no picture can hold are left out.
pub(super) fn shown(text: &str, size: f64) -> String {
    let clean: String = text.chars().filter(|letter| !letter.is_control()).collect();
    if width(&clean, size) <= TEXT_MAX {
        return clean;
    }
    let mut cut = String::new();
    let mut used = em('…') * size;
    for letter in clean.chars() {
        used += em(letter) * size;
        if used > TEXT_MAX {
            break;
        }
        cut.push(letter);
    }
    cut + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_to_fit() {
        assert_eq!(shown("P.kv", NAME), "P.kv");
        for long in ["x".repeat(1000), "W".repeat(300), "語".repeat(200)] {
            let cut = shown(&long, NAME);
            assert!(cut.ends_with('…') && width(&cut, NAME) <= TEXT_MAX, "{cut}");
        }
        assert_eq!(shown("a\u{1}b\nc", NAME), "abc");
    }
}
