//! `serq model`, from outside; what fetching does is tested beside it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A models' folder of its own for a test.
fn folder(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("model-{}-{test}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

fn serq(folder: &PathBuf, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_serq"))
        .arg("model")
        .args(arguments)
        .env("SERQ_MODELS", folder)
        .env_remove("COLUMNS")
        .output()
        .expect("it runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn the_list_says_what_is_here_and_whole() {
    let folder = folder("list");
    let lines = || {
        let output = serq(&folder, &["list"]);
        assert!(output.status.success());
        stdout(&output)
    };
    assert_eq!(
        lines(),
        format!(
            "  model            size               what\n  \
             tiny                   built in     random weights, bytes for tokens\n  \
             smollm2-135m  98.4 MB  not fetched  SmolLM2 135M Instruct, Q4_1\n\n\
             Models are kept in {}\n",
            folder.display()
        )
    );
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("SmolLM2-135M-Instruct.Q4_1.gguf"), "GGUF").unwrap();
    assert!(lines().contains("  damaged  "), "{}", lines());
    let json = stdout(&serq(&folder, &["list", "--json"]));
    let entries: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&entries[0]["name"], &entries[1]["state"]), (&"tiny".into(), &"damaged".into()));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_wrong_fetch_is_told_in_a_sentence() {
    let folder = folder("fetch");
    let wrong = |arguments: &[&str]| {
        let output = serq(&folder, &[&["fetch"], arguments].concat());
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        String::from_utf8(output.stderr).expect("text")
    };
    assert_eq!(wrong(&["tiny"]), "error: the model `tiny` is built in: there is nothing to fetch\n");
    assert_eq!(wrong(&["smollm2-136m"]), "error: no model is called `smollm2-136m`: is it `smollm2-135m`?\n");
    assert_eq!(wrong(&["gpt-5"]), "error: no model is called `gpt-5`: `serq model list` has them all\n");
    assert_eq!(
        wrong(&["smollm2-135m", "--from", "Cargo.toml"]),
        "error: what came from Cargo.toml is not SmolLM2-135M-Instruct.Q4_1.gguf: its SHA-256 is another. Try again\n"
    );
    assert!(wrong(&["smollm2-135m", "--from", "no.whl"]).starts_with("error: cannot read no.whl"));
    fs::remove_dir_all(folder).unwrap();
}
