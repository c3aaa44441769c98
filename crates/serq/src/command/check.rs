//! `serq check`: does it load, and what is in it.

use clap::Args;
use serde::Serialize;
use serq_ir::json::Number;
use serq_ir::{BuiltIn, Program, StageKind};

use crate::failure::Failure;
use crate::flags::ProgramFlags;
use crate::number::{self, count};
use crate::output;
use crate::program_file::ProgramFile;

/// Read, link and check a program without running it
#[derive(Args)]
pub(crate) struct Check {
    #[command(flatten)]
    program: ProgramFlags,

    /// Constants, observations, gauges, pools and stages as one JSON object
    #[arg(long)]
    json: bool,
}

impl Check {
    /// Prints.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let file = ProgramFile::open(&self.program)?;
        let linked = file.link(&self.program.settings, &[], None)?;
        // A trace that does not read is a program that does not run.
        let trace = file.trace(&linked.program, &self.program.settings)?;
        file.warn(&linked);
        if self.json {
            let mut text = serde_json::to_string_pretty(&contents(&linked.program)).expect("names and numbers");
            text.push('\n');
            return output::print(&text);
        }
        let traced = trace.map(|trace| {
            let mut sessions = count(u64::from(trace.sessions()), "trace session");
            if let Some(last) = trace.arrivals().and_then(<[f64]>::last) {
                sessions += &format!(" until {}", number::exact(*last));
            }
            match trace.skipped() {
                0 => sessions,
                skipped => format!("{sessions} ({} left out)", count(skipped, "wrong row")),
            }
        });
        output::print(&format!("{}: {}\n", file.path, line(&linked.program, traced)))
    }
}

/// What is in a program, in one line.
fn line(program: &Program, traced: Option<String>) -> String {
    let members = |sizes: &mut dyn Iterator<Item = Option<u32>>| sizes.map(|size| u64::from(size.unwrap_or(1))).sum();
    let attributes = program.attributes.len().saturating_sub(BuiltIn::NAMES.len());
    let mut parts = vec![
        count(program.constants.len() as u64, "constant"),
        count(members(&mut program.pools.iter().map(|pool| pool.size)), "pool"),
        count(members(&mut program.stages.iter().map(|stage| stage.size)), "stage"),
        count(attributes as u64, "attribute"),
        count(program.observes.len() as u64, "observation"),
        count(program.gauges.len() as u64, "gauge"),
    ];
    parts.extend(traced);
    parts.join(", ")
}

#[derive(Serialize)]
struct Contents<'a> {
    program: &'a str,
    constants: &'a [serq_ir::Constant],
    lists: &'a [serq_ir::List],
    attributes: Vec<Attribute<'a>>,
    observes: &'a [String],
    gauges: Vec<&'a str>,
    pools: Vec<Pool<'a>>,
    stages: Vec<Stage<'a>>,
    run: &'a serq_ir::Run,
}

#[derive(Serialize)]
struct Attribute<'a> {
    name: &'a str,
    hidden: bool,
}

#[derive(Serialize)]
struct Pool<'a> {
    name: &'a str,
    size: Option<u32>,
    cap: Number,
    block: Option<Number>,
}

#[derive(Serialize)]
struct Stage<'a> {
    name: &'a str,
    size: Option<u32>,
    kind: &'static str,
    shared: bool,
}

fn contents(program: &Program) -> Contents<'_> {
    let kind = |kind: &StageKind| match kind {
        StageKind::Fifo { .. } => "fifo",
        StageKind::Ps { .. } => "ps",
        StageKind::Delay => "delay",
        StageKind::Step(_) => "step",
    };
    Contents {
        program: &program.name,
        constants: &program.constants,
        lists: &program.lists,
        // The built-in ones are every program's.
        attributes: program
            .attributes
            .iter()
            .skip(BuiltIn::NAMES.len())
            .map(|attribute| Attribute { name: &attribute.name, hidden: attribute.hidden })
            .collect(),
        observes: &program.observes,
        gauges: program.gauges.iter().map(|gauge| &gauge.name[..]).collect(),
        pools: program
            .pools
            .iter()
            .map(|pool| Pool { name: &pool.name, size: pool.size, cap: pool.cap, block: pool.block })
            .collect(),
        stages: program
            .stages
            .iter()
            .map(|stage| Stage { name: &stage.name, size: stage.size, kind: kind(&stage.kind), shared: stage.shared })
            .collect(),
        run: &program.run,
    }
}
