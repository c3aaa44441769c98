//! `serq sweep`: a grid of settings, the same seeds in every cell.

use std::cell::RefCell;
use std::path::PathBuf;

use clap::Args;
use serq_ir::Program;
use serq_sim::replicate::Figures;
use serq_sim::sweep::{self, Axis, Cell, SweepError};
use serq_sim::trace::TraceFile;
use serq_sim::{Options, RunError, simulate};

use super::refuse_stuck;
use crate::failure::Failure;
use crate::flags::{JobFlags, LimitFlags, ProgramFlags, binding};
use crate::output;
use crate::page;
use crate::program_file::{Linked, ProgramFile};
use crate::report::over_cells;
use crate::resume::{StateFile, belongs_to, digest};
use crate::seeds::Seeds;
use crate::watch::Watch;

/// Most runs one command does: more is a slip of the finger.
const RUNS_MAX: usize = 1_000_000;

/// Run a grid of settings with the same seeds in every cell, and compare
#[derive(Args)]
pub(crate) struct Sweep {
    #[command(flatten)]
    program: ProgramFlags,

    /// A constant and the values it takes; repeated, the grid of all combinations
    #[arg(long, value_name = "NAME=A,B,…", value_parser = axis, required = true)]
    sweep: Vec<Axis>,

    /// Seeds of every cell: `1..20` (both ends) or `1,5,9` (default: the program's)
    #[arg(long, value_name = "SEEDS")]
    seeds: Option<Seeds>,

    /// Differences to this value, paired by seed; other swept constants stay as they are in the cell
    #[arg(long, value_name = "NAME=VALUE", value_parser = binding)]
    baseline: Vec<(String, String)>,

    /// Figures to show: `ttft` (its mean), `ttft.p99`, `P.kv.mean_used` (mean over members),
    /// `P.kv[0].used`, `mean_live`, … (default: the means of all observations)
    #[arg(long, value_name = "FIGURE,…", value_delimiter = ',')]
    show: Vec<String>,

    /// The table as one JSON object, with the value of every seed
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// The table as CSV, a row for every cell and figure
    #[arg(long)]
    csv: bool,

    /// Keep finished runs in this file, and go on from it
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,

    /// Also draw it: one HTML page of curves and tables, which needs nothing else
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    #[command(flatten)]
    jobs: JobFlags,

    #[command(flatten)]
    limits: LimitFlags,
}

/// What one cell runs.
struct Setting {
    linked: Linked,
    label: String,
}

impl Sweep {
    /// Runs and prints.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let baselines = self.check()?;
        let file = ProgramFile::open(&self.program)?;
        if file.is_ir() {
            return Err(Failure::Failed(format!(
                "{} is IR, where constants are folded: sweep the program's text",
                file.path
            )));
        }
        let cells = sweep::cells(&self.sweep);
        let settings = self.link(&file, &cells)?;
        if let Some(path) = &self.report {
            page::prepare(path)?;
        }
        // The trace's name is in no constant: it is every cell's.
        let trace = file.trace(&settings[0].linked.program, &self.program.settings)?;
        let trace = trace.as_ref();
        let seeds = match &self.seeds {
            Some(seeds) => seeds.clone(),
            None => Seeds(vec![settings[0].linked.program.run.seed]),
        };
        let state = match &self.resume {
            Some(path) => Some(RefCell::new(StateFile::open(path, &self.belongs_to(&file, trace))?)),
            None => None,
        };
        let runs = self.run(&file, &settings, trace, &seeds, state.as_ref())?;
        let columns = self.columns(&settings[0]);
        let report = over_cells::Report {
            program: &settings[0].linked.program,
            cells: &cells,
            runs: &runs,
            seeds: &seeds,
            columns: &columns,
            baseline: &self.baseline,
            baselines: baselines.as_deref(),
        };
        let text = if self.json {
            report.json()
        } else if self.csv {
            report.csv()
        } else {
            report.text(output::width())
        };
        if let Some(path) = &self.report {
            page::write(path, &page::draw_sweep(&report).map_err(Failure::Failed)?)?;
        }
        output::print(&text.map_err(Failure::Failed)?)?;
        refuse_stuck(runs.iter().flatten())
    }

    /// What can be refused before the file is opened.
    fn check(&self) -> Result<Option<Vec<usize>>, Failure> {
        for (at, axis) in self.sweep.iter().enumerate() {
            if self.sweep[..at].iter().any(|other| other.name == axis.name) {
                return Err(Failure::Usage(format!("--sweep {} is there twice: list its values in one", axis.name)));
            }
            if self.program.settings.set.iter().any(|(name, _)| *name == axis.name) {
                return Err(Failure::Usage(format!("{} is both set and swept", axis.name)));
            }
        }
        let runs = self.sweep.iter().map(|axis| axis.values.len()).fold(1, usize::saturating_mul);
        let runs = runs.saturating_mul(self.seeds.as_ref().map_or(1, |seeds| seeds.0.len()));
        if runs > RUNS_MAX {
            return Err(Failure::Usage(format!("that is {runs} runs, at most {RUNS_MAX} are done at once")));
        }
        if self.baseline.is_empty() {
            return Ok(None);
        }
        sweep::baselines(&self.sweep, &self.baseline).map(Some).map_err(Failure::Usage)
    }

    /// All cells before the first run: a value that does not load is told at once.
    fn link(&self, file: &ProgramFile, cells: &[Cell]) -> Result<Vec<Setting>, Failure> {
        let flags = &self.program.settings;
        let mut settings = Vec::with_capacity(cells.len());
        for cell in cells {
            let label = over_cells::label(cell);
            let told = |failure: Failure| {
                if matches!(failure, Failure::Told) {
                    output::tell(&format!("  in the cell {label}"));
                }
                failure
            };
            let linked = file.link(flags, cell, None).map_err(told)?;
            // The cells' warnings are nearly always the same ones.
            if settings.is_empty() {
                file.warn(&linked);
            }
            settings.push(Setting { linked, label });
        }
        Ok(settings)
    }

    fn run(
        &self,
        file: &ProgramFile,
        settings: &[Setting],
        trace: Option<&TraceFile>,
        seeds: &Seeds,
        state: Option<&RefCell<StateFile>>,
    ) -> Result<Vec<Vec<Figures>>, Failure> {
        let options = self.limits.options();
        let all = settings.len() * seeds.0.len();
        let watch = Watch::start(all, self.limits.max_wall)?;
        let known = |cell: usize, seed: u64| state.and_then(|state| state.borrow().run(&settings[cell].label, seed));
        let mut done = (0..settings.len())
            .flat_map(|cell| seeds.0.iter().map(move |&seed| (cell, seed)))
            .filter(|&(cell, seed)| state.is_some_and(|state| state.borrow().has(&settings[cell].label, seed)))
            .count();
        watch.run_done(done, all);
        let run = |cell: usize, seed: u64| run_seed(&settings[cell].linked.program, seed, trace, &options, &watch);
        let mut refused = None;
        let mut told = |cell: usize, seed: u64, figures: &Figures| {
            done += 1;
            watch.run_done(done, all);
            // A column nobody has is told after the cell's first run, not after the last.
            let outcome = self.check_columns(&settings[cell], figures).and_then(|()| match state {
                Some(state) => state.borrow_mut().add(&settings[cell].label, seed, figures),
                None => Ok(()),
            });
            refused = outcome.err();
            refused.is_none()
        };
        let runs = sweep::sweep(settings.len(), &seeds.0, self.jobs.count(), &known, run, &mut told);
        watch.finish();
        if let Some(failure) = refused {
            return Err(failure);
        }
        runs.map_err(|error| match error {
            SweepError::Failed { error, .. } if error.interrupted => {
                let kept = match &self.resume {
                    Some(path) => format!(" and are kept in {}", path.display()),
                    None => String::from("; --resume FILE would keep them"),
                };
                watch.stopped(&format!("{done} of {all} runs are done{kept}"))
            }
            SweepError::Failed { cell, seed, error } => {
                let Setting { linked, label } = &settings[cell];
                file.refuse_run(&linked.sources, &error, &format!("{label}, seed {seed}"))
            }
            SweepError::Asked => unreachable!("only a refusal asks"),
        })
    }

    fn columns(&self, first: &Setting) -> Vec<String> {
        let observes = &first.linked.program.observes;
        match (self.show.is_empty(), observes.is_empty()) {
            (false, _) => self.show.iter().map(|column| column.trim().to_owned()).collect(),
            (true, false) => observes.iter().map(|name| format!("observe:{name}")).collect(),
            (true, true) => vec!["mean_live".into()],
        }
    }

    fn check_columns(&self, setting: &Setting, run: &Figures) -> Result<(), Failure> {
        for column in &self.columns(setting) {
            let Err(what) = run.places(column) else { continue };
            let what = format!("{what} in the cell {}", setting.label);
            let sentence = over_cells::unknown(&what, column, &run.names);
            return Err(Failure::Failed(format!("--show: {sentence}")));
        }
        Ok(())
    }

    /// What a state file must be continued with.
    fn belongs_to(&self, file: &ProgramFile, trace: Option<&TraceFile>) -> String {
        let flags = &self.program.settings;
        // Neither changes a figure.
        let LimitFlags { strict, exact, max_events, max_wall: _, no_leap: _ } = self.limits;
        let speed = flags.speed;
        let settings = format!("{:?} {speed:?} {strict} {exact} {max_events:?}", flags.settings(&[], None));
        // Paths are where the same texts happen to lie.
        let trace = digest(&trace);
        let own = [env!("CARGO_PKG_VERSION"), &settings, &trace];
        belongs_to(own.into_iter().chain(file.texts()))
    }
}

/// The figures of one program and seed.
pub(super) fn run_seed(
    program: &Program,
    seed: u64,
    trace: Option<&TraceFile>,
    options: &Options,
    watch: &Watch,
) -> Result<Figures, Box<RunError>> {
    let mut program = program.clone();
    program.run.seed = seed;
    let outcome = simulate(&program, trace, options, &mut watch.run(program.run.horizon.0))?;
    Ok(Figures::from(&outcome.report))
}

/// `name=a,b,c`; commas inside parentheses belong to their value.
fn axis(text: &str) -> Result<Axis, String> {
    let (name, list) = binding(text)?;
    let mut values = vec![String::new()];
    let mut depth = 0usize;
    for letter in list.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                values.push(String::new());
                continue;
            }
            _ => {}
        }
        values.last_mut().expect("one at least").push(letter);
    }
    let values: Vec<String> = values.iter().map(|value| value.trim().to_owned()).collect();
    if values.iter().any(String::is_empty) {
        return Err(format!("`{list}` has an empty value: write NAME=A,B,C"));
    }
    for (at, value) in values.iter().enumerate() {
        if values[..at].contains(value) {
            return Err(format!("{name} takes {value} twice"));
        }
    }
    Ok(Axis { name, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes() {
        let values = |text: &str| axis(text).map(|axis| axis.values);
        assert_eq!(values("thr=1, 512 ,inf"), Ok(vec!["1".into(), "512".into(), "inf".into()]));
        assert_eq!(values("a=max(1,2),3"), Ok(vec!["max(1,2)".into(), "3".into()]));
        for wrong in ["a", "a=", "a=1,,2", "a=1,1", "a=1,"] {
            assert!(values(wrong).is_err(), "{wrong}");
        }
    }
}
