//! What is said on an arrow: under which condition, or how often, a session goes that way.

use super::enclosure::quantity;

/// When a session goes a way.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Label {
    Words(String),
    Chance(f64),
}

impl Label {
    /// Under both; a condition says more than a chance, and the later one more than the first.
    pub(super) fn and(before: Option<&Self>, now: Option<Self>) -> Option<Self> {
        match (before, now) {
            (Some(Self::Chance(before)), Some(Self::Chance(now))) => Some(Self::Chance(before * now)),
            (Some(Self::Words(words)), Some(Self::Chance(_))) => Some(Self::Words(words.clone())),
            (before, None) => before.cloned(),
            (_, now) => now,
        }
    }

    /// Either, where they exclude each other; nothing if that is always, or cannot be said.
    pub(super) fn or(one: Option<&Self>, other: Option<&Self>) -> Option<Self> {
        match (one, other) {
            (Some(Self::Chance(one)), Some(Self::Chance(other))) => {
                Some(Self::Chance(one + other)).filter(|_| one + other < 1.0 - 1e-9)
            }
            (one, other) if one == other => one.cloned(),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Words(words) => words.clone(),
            Self::Chance(chance) => format!("{} %", quantity((chance * 1000.0).round() / 10.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Label;

    #[test]
    fn chances_multiply_on_the_way_and_add_up_where_ways_meet() {
        let chance = |chance| Some(Label::Chance(chance));
        assert_eq!(Label::and(chance(0.5).as_ref(), chance(0.5)), chance(0.25));
        assert_eq!(Label::or(chance(0.25).as_ref(), chance(0.5).as_ref()), chance(0.75));
        assert_eq!(Label::or(chance(0.3).as_ref(), chance(0.7).as_ref()), None, "always is not said");
        let words = Some(Label::Words("remote".into()));
        assert_eq!(Label::and(words.as_ref(), chance(0.5)), words);
        assert_eq!(Label::and(chance(0.5).as_ref(), words.clone()), words);
        assert_eq!(Label::or(words.as_ref(), None), None);
        assert_eq!(chance(1.0 / 3.0).map(|label| label.text()), Some("33.3 %".into()));
    }
}
