//! The page of every diagnostic code: what it means, a wrong program, the right one.
//!
//! A page is a file of `docs/errors/`, named as the code. Adding one is writing the
//! file and adding its code to the list below; a test compares the list with the
//! codes the crate's sources use.

macro_rules! pages {
    ($($code:literal),* $(,)?) => {
        /// Every code, in alphabetical order.
        pub const CODES: &[&str] = &[$($code),*];

        /// The page of a code.
        pub fn page(code: &str) -> Option<&'static str> {
            match code {
                $($code => Some(include_str!(concat!("../../../docs/errors/", $code, ".md"))),)*
                _ => None,
            }
        }
    };
}

// One line a code, sorted.
pages! {
    "aggregate-count",
    "aggregate-name",
    "argument-assigned",
    "argument-draws",
    "argument-live",
    "bad-amount",
    "bad-constant",
    "bad-number",
    "bad-relation",
    "bad-run",
    "binding-escapes",
    "binding-name",
    "binding-reads-state",
    "branch-guard",
    "byte-order-mark",
    "cached-without-cache",
    "chained-comparison",
    "cost-missing",
    "declared-below",
    "draw-not-allowed",
    "else-needs-block",
    "entry-holds-outside",
    "entry-parameters",
    "entry-reads-outside",
    "failure-policy",
    "file-too-large",
    "flow-stage",
    "fork-join",
    "fork-preempted",
    "from-other-queue",
    "from-without-lease",
    "held-twice",
    "hidden-attribute",
    "hidden-name",
    "hold-above-cap",
    "hold-queue-pool",
    "horizon-missing",
    "incomplete-transfer",
    "index-missing",
    "index-not-needed",
    "index-out-of-range",
    "index-set-inside",
    "latency-misplaced",
    "misplaced-clause",
    "misplaced-statement",
    "missing-semicolon",
    "no-block",
    "no-stage",
    "not-assignable",
    "not-constant",
    "not-played",
    "not-served",
    "not-verified",
    "not-yet",
    "outside-entry",
    "outside-hold",
    "pairing",
    "queue-order",
    "recursion",
    "repeated",
    "request-misplaced",
    "reserved-name",
    "reuse-without-cache",
    "role-entry",
    "server-unused",
    "several-stages",
    "share",
    "share-prefixes",
    "stale-header",
    "stray-semicolon",
    "timeless-loop",
    "too-deep",
    "too-large",
    "too-many-errors",
    "trace-missing",
    "transfer-nowhere",
    "two-sessions",
    "unclosed-block",
    "unclosed-comment",
    "unclosed-parenthesis",
    "unclosed-string",
    "unexpected-character",
    "unexpected-token",
    "unknown-distribution",
    "unknown-entry",
    "unknown-function",
    "unknown-item",
    "unknown-kind",
    "unknown-name",
    "unknown-option",
    "unknown-pool",
    "unknown-queue",
    "unknown-role",
    "unknown-setting",
    "unknown-stage",
    "unknown-statement",
    "use",
    "vary",
    "wrong-argument-count",
    "wrong-kind",
    "wrong-mode",
    "wrong-moment",
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    /// The codes in `Diagnostic::error("…"`, `self.error("…"` and their like of all sources.
    fn codes_used() -> BTreeSet<String> {
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        let mut codes = BTreeSet::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path: PathBuf = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == "rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    for start in ["error(", "Diagnostic::warning(", "finding("] {
                        for piece in text.split(start).skip(1) {
                            let Some(rest) =
                                piece.trim_start().trim_start_matches("certain,").trim_start().strip_prefix('"')
                            else {
                                continue;
                            };
                            let code = rest.split('"').next().unwrap();
                            if !code.is_empty()
                                && code.chars().all(|c| c.is_ascii_lowercase() || "-0123456789".contains(c))
                            {
                                codes.insert(code.to_owned());
                            }
                        }
                    }
                }
            }
        }
        codes
    }

    #[test]
    fn every_code_has_a_page_and_every_page_a_code() {
        let used = codes_used();
        let known: BTreeSet<String> = CODES.iter().map(|&code| code.to_owned()).collect();
        let without_page: Vec<_> = used.difference(&known).collect();
        let without_use: Vec<_> = known.difference(&used).collect();
        assert!(without_page.is_empty(), "codes without a page: {without_page:?}");
        assert!(without_use.is_empty(), "pages nothing refers to: {without_use:?}");
        assert!(CODES.is_sorted(), "the list is sorted");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let code = name.trim_end_matches(".md");
            assert!(page(code).is_some(), "docs/errors/{name} is in no list");
        }
    }

    #[test]
    fn a_page_begins_with_its_code() {
        for code in CODES {
            assert!(page(code).unwrap().starts_with(&format!("# {code}\n")), "{code}");
        }
    }
}
