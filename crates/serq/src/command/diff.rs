//! `serq diff`: two reports side by side.

use clap::Args;
use serde_json::Value;

use crate::failure::Failure;
use crate::output;
use crate::program_file::read_text;
use crate::report::side_by_side::{Side, SideBySide};

/// Put two reports side by side: what was predicted, what was measured, and how far off it is
#[derive(Args)]
pub(crate) struct Diff {
    /// The prediction: what `serq run --json` or `serq load --json` printed
    #[arg(value_name = "A.json")]
    predicted: String,

    /// The measurement, likewise
    #[arg(value_name = "B.json")]
    measured: String,

    /// Status 1 if the mean of an observation is further off, as in 5%
    #[arg(long, value_name = "SHARE", value_parser = share)]
    within: Option<f64>,

    /// The comparison as one JSON object
    #[arg(long)]
    json: bool,
}

impl Diff {
    /// Compares and prints.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let [predicted, measured] = [&self.predicted, &self.measured].map(|path| read(path));
        let sides = SideBySide::of(predicted?, measured?).map_err(Failure::Failed)?;
        output::print(&if self.json { sides.json(self.within) } else { sides.text(output::width()) })?;
        match self.within.map(|within| (within, sides.beyond(within))) {
            Some((within, beyond)) if !beyond.is_empty() => {
                let (verb, within) = (if beyond.len() == 1 { "is" } else { "are" }, 100.0 * within);
                Err(Failure::Failed(format!("{} {verb} off by more than {within} %", beyond.join(", "))))
            }
            _ => Ok(()),
        }
    }
}

fn read(path: &str) -> Result<Side, Failure> {
    let text = read_text(path)?;
    let json: Value = serde_json::from_str(&text).map_err(|_| {
        Failure::Failed(format!("{path} is no JSON: give what --json of `serq run` or `serq load` printed"))
    })?;
    Side::of(path, &json).map_err(Failure::Failed)
}

/// `5%` or `0.05`.
fn share(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let value: Option<f64> = number.trim().parse().ok();
    value
        .map(|value| value / unit)
        .filter(|value| (0.0..f64::INFINITY).contains(value))
        .ok_or_else(|| "a share is meant, as 5% or 0.05".into())
}
