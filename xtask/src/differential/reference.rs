//! The reference release in a process of its own.
//!
//! One process answers all programs, a line each; it is started anew when it does not
//! answer in time or dies.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::answer::Answer;
use crate::program::root;

/// What an answer may take. A generated program takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where the reference release is installed.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Installation {
    /// A Python that can run the reference release.
    #[arg(long, env = "SERQ_REFERENCE_PYTHON", default_value = "python3")]
    python: String,
    /// Where `pip install --target` put the release, unless that Python has it.
    #[arg(long, env = "SERQ_REFERENCE_PATH")]
    reference_path: Option<PathBuf>,
}

pub(crate) struct Reference {
    installation: Installation,
    /// The releases it may be.
    releases: &'static [&'static str],
    process: Process,
    asked: u64,
    /// What an answer may take.
    pub(crate) patience: Duration,
}

struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(installation: &Installation, releases: &[&str]) -> Result<Self, String> {
        let Installation { python, reference_path } = installation;
        let script = root().join("tools/reference.py");
        let mut command = Command::new(python);
        command.arg(&script).args(reference_path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("{python} {}: {e}", script.display()))?;
        let input = child.stdin.take().expect("stdin is piped");
        let output = child.stdout.take().expect("stdout is piped");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let process = Self { child, input, lines };
        let hello = process.lines.recv_timeout(PATIENCE).map_err(|_| {
            format!(
                "{python} has no pyserq: `pip install --target FOLDER pyserq=={}` and --reference-path FOLDER",
                releases[0]
            )
        })?;
        let hello: Value = serde_json::from_str(&hello).map_err(|e| e.to_string())?;
        match hello["release"].as_str() {
            Some(release) if releases.contains(&release) => Ok(process),
            other => Err(format!("the reference is {}, {python} has {other:?}", releases.join(" or "))),
        }
    }
}

impl Reference {
    pub(crate) fn start(installation: &Installation, releases: &'static [&'static str]) -> Result<Self, String> {
        let process = Process::start(installation, releases)?;
        Ok(Self { installation: installation.clone(), releases, process, asked: 0, patience: PATIENCE })
    }

    /// Sends a program; [`Reference::answer`] waits for what it did.
    pub(crate) fn ask(&mut self, text: &str) -> Result<(), String> {
        self.send(json!({ "source": text }))
    }

    /// Sends a program that reads other files.
    pub(crate) fn ask_file(&mut self, path: &Path) -> Result<(), String> {
        self.send(json!({ "path": path }))
    }

    fn send(&mut self, mut line: Value) -> Result<(), String> {
        self.asked += 1;
        line["id"] = json!(self.asked);
        // A dead process is seen when its answer is waited for.
        let _ = writeln!(self.process.input, "{line}").and_then(|()| self.process.input.flush());
        Ok(())
    }

    pub(crate) fn answer(&mut self) -> Result<Answer, String> {
        match self.process.lines.recv_timeout(self.patience) {
            Ok(line) => {
                let answered: Value = serde_json::from_str(&line).map_err(|e| format!("{e} in {line}"))?;
                if answered["id"] != json!(self.asked) {
                    return Err(format!("an answer to {}, not to {}", answered["id"], self.asked));
                }
                let message = answered["message"].as_str().unwrap_or_default().to_owned();
                Ok(match answered["status"].as_str() {
                    Some("ok") => Answer::Ran(answered),
                    Some("refused") => Answer::Refused(message),
                    Some("stopped") => Answer::Stopped(None, message),
                    _ => Answer::Panicked(message),
                })
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                self.process = Process::start(&self.installation, self.releases)?;
                Ok(Answer::Silent)
            }
        }
    }
}
