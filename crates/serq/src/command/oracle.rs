//! `serq oracle`: the same scenario through vLLM's schedulers and through the kernel.

use std::path::PathBuf;

use clap::Args;
use serq_oracle::{EVENTS, Recorded, Refused, Request, Scenario, Source, Story, Verdict, compare, simulate};

use crate::failure::Failure;
use crate::flags::{MessageFlags, ProgramFlags, SettingFlags};
use crate::number::{NOTHING, count};
use crate::output;
use crate::program_file::ProgramFile;
use crate::table::Columns;

/// Compare scenarios with vLLM's own schedulers, step by step
#[derive(Args)]
pub(crate) struct Oracle {
    /// Programs that are scenarios (docs/oracle.md)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<String>,

    #[command(flatten)]
    settings: SettingFlags,

    #[command(flatten)]
    messages: MessageFlags,

    /// The Python that has vLLM's schedulers
    #[arg(long, value_name = "PATH", default_value = "target/oracle-venv/bin/python")]
    python: PathBuf,

    /// The script that drives them
    #[arg(long, value_name = "PATH", default_value = "tools/oracle/schedulers.py")]
    script: PathBuf,

    /// Take the schedulers' answers from a file that --record wrote, without Python
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    recorded: Option<PathBuf>,

    /// Write the schedulers' answers to a file (gzipped)
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Print what befell every request, of more than one scenario too
    #[arg(long)]
    table: bool,
}

impl Oracle {
    /// Compares and prints; fails where anything differs.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        // Opened when a program has turned out to be a scenario.
        let mut source = None;
        let mut written = Vec::new();
        let (mut compared, mut differ) = (0, 0);
        let mut text = String::new();
        for name in &self.files {
            let flags =
                ProgramFlags { file: name.clone(), settings: self.settings.clone(), messages: self.messages.clone() };
            let file = ProgramFile::open(&flags)?;
            let linked = file.link(&self.settings, &[], None)?;
            file.warn(&linked);
            let scenario = Scenario::of(&linked.program).map_err(refuse)?;
            let kernel =
                simulate(&linked.program, &scenario).map_err(|error| file.refuse_run(&linked.sources, &error, ""))?;
            let source = match &mut source {
                Some(source) => source,
                None => {
                    source.insert(Source::open(self.recorded.as_deref(), &self.python, &self.script).map_err(refuse)?)
                }
            };
            let answer = source.answer(&scenario).map_err(refuse)?;
            let schedulers = answer.story(&scenario);
            if self.table || self.files.len() == 1 {
                text += &format!("{}\n", table(&schedulers, &kernel, output::width()));
            }
            let Verdict { compared: steps, difference } = compare(&scenario, &schedulers, &kernel);
            compared += steps;
            match difference {
                None => text += &format!("{name}: the same\n"),
                Some(difference) => {
                    differ += 1;
                    text += &format!("{name}: {difference}");
                }
            }
            written.push(Recorded { scenario, answer });
        }
        if let Some(path) = &self.record {
            Recorded::write(&written, path).map_err(refuse)?;
        }
        let scenarios = count(self.files.len() as u64, "scenario");
        text += &format!("{scenarios}, {} of engines compared: {differ} differ\n", count(compared, "step"));
        output::print(&text)?;
        if differ == 0 { Ok(()) } else { Err(Failure::Told) }
    }
}

fn refuse(Refused(why): Refused) -> Failure {
    Failure::Failed(why)
}

/// What befell every request: a line where both sides agree, two where they don't. What befell nobody
/// is left out.
fn table(schedulers: &Story, kernel: &Story, width: usize) -> String {
    let all = || schedulers.requests.iter().chain(&kernel.requests);
    let events: Vec<&str> =
        EVENTS.into_iter().filter(|event| all().any(|request| request.events.contains_key(event))).collect();
    let preempted = all().any(|request| !request.preempted.is_empty());
    let heads = ["request", ""].into_iter().chain(events.iter().copied()).chain(preempted.then_some("preempted"));
    let mut table = Columns::new(2, heads).left(1);
    for (theirs, ours) in schedulers.requests.iter().zip(&kernel.requests) {
        let mut row = |whose: &str, request: &Request| {
            let mut cells = vec![request.name.clone(), whose.to_owned()];
            cells.extend(events.iter().map(|event| steps(request.events.get(event))));
            cells.extend(preempted.then(|| steps(&request.preempted)));
            table.row(cells);
        };
        if theirs == ours {
            row("", ours);
        } else {
            row("vLLM", theirs);
            row("kernel", ours);
        }
    }
    table.draw(width)
}

fn steps<'s>(of: impl IntoIterator<Item = &'s u64>) -> String {
    let steps: Vec<String> = of.into_iter().map(u64::to_string).collect();
    if steps.is_empty() { NOTHING.into() } else { steps.join(", ") }
}
