//! Which crate may lean on which: the drawing of ARCHITECTURE.md as a test.
//!
//! `cargo metadata` says which arrows there are. An arrow inside the workspace must be one
//! of the drawing, for tests too. Crates below the binary also have a list of what they
//! may use from outside, so that a clock, an async runtime or a file system does not come
//! in with a dependency unnoticed.

use std::collections::BTreeMap;
use std::env;
use std::process::Command;

use serde_json::Value;

use crate::program::root;

/// What a crate may use.
struct Allowed {
    name: &'static str,
    /// Of the workspace.
    inside: &'static [&'static str],
    /// From outside, not for tests; `None`: whatever it needs.
    outside: Option<&'static [&'static str]>,
}

const BELOW_THE_BINARY: &[&str] =
    &["serq-ir", "serq-lang", "serq-kernel", "serq-sim", "serq-oracle", "serq-transfer", "serq-engine", "serq-gateway"];

const DRAWING: &[Allowed] = &[
    Allowed { name: "serq-ir", inside: &[], outside: Some(&["schemars", "serde", "serde_json"]) },
    Allowed { name: "serq-kernel", inside: &["serq-ir"], outside: Some(&["libm", "smallvec"]) },
    Allowed { name: "serq-lang", inside: &["serq-ir"], outside: Some(&["annotate-snippets", "libm"]) },
    Allowed {
        name: "serq-sim",
        inside: &["serq-ir", "serq-kernel"],
        outside: Some(&["libm", "serde", "serde_json", "statrs"]),
    },
    Allowed {
        name: "serq-oracle",
        inside: &["serq-ir", "serq-sim"],
        outside: Some(&["flate2", "serde", "serde_json"]),
    },
    Allowed {
        name: "serq-transfer",
        inside: &[],
        outside: Some(&[
            "getrandom",
            "half",
            "hmac",
            "libc",
            "libloading",
            "memmap2",
            "serde",
            "serde_json",
            "sha2",
            "socket2",
        ]),
    },
    Allowed { name: "serq-engine", inside: &["serq-ir", "serq-kernel", "serq-transfer"], outside: None },
    Allowed { name: "serq-gateway", inside: &["serq-ir", "serq-kernel"], outside: None },
    Allowed { name: "serq", inside: BELOW_THE_BINARY, outside: None },
    Allowed { name: "serq-python", inside: BELOW_THE_BINARY, outside: None },
    Allowed { name: "xtask", inside: BELOW_THE_BINARY, outside: None },
];

/// Compares the workspace's arrows with the drawing.
///
/// # Errors
///
/// Every arrow that is not in it, and what to do.
pub fn check() -> Result<String, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let arrows = arrows(&metadata)?;
    let wrong = wrong(&arrows);
    if wrong.is_empty() {
        let count: usize = arrows.values().map(Vec::len).sum();
        Ok(format!("{} crates, {count} arrows, all in the drawing", arrows.len()))
    } else {
        let advice = "An arrow that is meant goes into ARCHITECTURE.md and xtask/src/layers.rs with its reason.";
        Err(format!("{}\n{advice}", wrong.join("\n")))
    }
}

/// Per crate: what it depends on, and whether for tests only.
type Arrows = BTreeMap<String, Vec<(String, bool)>>;

fn arrows(metadata: &Value) -> Result<Arrows, String> {
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or("a name in cargo metadata is no text");
    let list = |value: &Value| value.as_array().cloned().ok_or("a list in cargo metadata is none");
    let mut arrows = Arrows::new();
    for package in list(&metadata["packages"])? {
        let mut to = Vec::new();
        for dependency in list(&package["dependencies"])? {
            to.push((text(&dependency["name"])?, dependency["kind"] == "dev"));
        }
        arrows.insert(text(&package["name"])?, to);
    }
    Ok(arrows)
}

fn wrong(arrows: &Arrows) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, to) in arrows {
        let Some(allowed) = DRAWING.iter().find(|a| a.name == name) else {
            wrong.push(format!("{name} is not in the drawing"));
            continue;
        };
        for (target, for_tests) in to {
            let inside = DRAWING.iter().any(|a| a.name == target);
            let good = match allowed.outside {
                _ if inside => allowed.inside.contains(&target.as_str()),
                Some(outside) => *for_tests || outside.contains(&target.as_str()),
                None => true,
            };
            if !good {
                wrong.push(format!("{name} must not depend on {target}"));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_arrow(from: &str, to: &str, for_tests: bool) -> Vec<String> {
        wrong(&Arrows::from([(from.to_owned(), vec![(to.to_owned(), for_tests)])]))
    }

    #[test]
    fn an_arrow_that_is_not_drawn_is_found() {
        assert_eq!(check_arrow("serq-sim", "serq-kernel", false), [""; 0]);
        assert_eq!(check_arrow("serq-sim", "serq-lang", true), ["serq-sim must not depend on serq-lang"]);
        assert_eq!(check_arrow("serq-kernel", "rand", false), ["serq-kernel must not depend on rand"]);
        assert_eq!(check_arrow("serq-kernel", "expect-test", true), [""; 0]);
        assert_eq!(check_arrow("serq-tools", "serq-ir", false), ["serq-tools is not in the drawing"]);
    }
}
