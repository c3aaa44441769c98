//! `serq compare`: two programs over the same seeds, and what differs.
//!
//! Draws are keyed by seed, purpose, session and turn, so both programs meet the
//! same arrivals and lengths wherever they ask for them under the same names, and
//! the difference is taken seed by seed. The two are a sweep of two cells; they
//! need not have the same shape.

use clap::Args;
use serq_sim::replicate::Figures;
use serq_sim::sweep::{SweepError, sweep};
use serq_sim::trace::TraceFile;

use super::refuse_stuck;
use super::sweep::run_seed;
use crate::failure::Failure;
use crate::flags::{JobFlags, LimitFlags, MessageFlags, ProgramFlags, SettingFlags, binding};
use crate::output;
use crate::program_file::{Linked, ProgramFile};
use crate::report::{over_cells, over_pair};
use crate::seeds::Seeds;
use crate::watch::Watch;

/// Run two programs with the same seeds, and say what differs and how sure that is
#[derive(Args)]
pub(crate) struct Compare {
    /// The program compared with: text, or IR as `serq ir` prints it
    #[arg(value_name = "A")]
    a: String,

    /// The other; the same file with `--set-b` is fine
    #[arg(value_name = "B")]
    b: String,

    /// Seeds of both: `1..20` (both ends) or `1,5,9`
    #[arg(long, value_name = "SEEDS", default_value = "1..20")]
    seeds: Seeds,

    /// As --set, for A alone
    #[arg(long, value_name = "NAME=EXPR", value_parser = binding)]
    set_a: Vec<(String, String)>,

    /// As --set, for B alone
    #[arg(long, value_name = "NAME=EXPR", value_parser = binding)]
    set_b: Vec<(String, String)>,

    /// Figures to show, as for `serq sweep` (default: mean and p99 of the observations, means of
    /// the gauges and of the parts of the time to the first token that both have)
    #[arg(long, value_name = "FIGURE,…", value_delimiter = ',')]
    show: Vec<String>,

    /// The table as one JSON object, with the value of every seed
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    settings: SettingFlags,

    #[command(flatten)]
    messages: MessageFlags,

    #[command(flatten)]
    jobs: JobFlags,

    #[command(flatten)]
    limits: LimitFlags,
}

/// One of the two, ready to run.
struct Side {
    letter: &'static str,
    file: ProgramFile,
    linked: Linked,
    trace: Option<TraceFile>,
}

impl Compare {
    /// Runs and prints.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        if self.a == "-" && self.b == "-" {
            return Err(Failure::Usage("standard input is one program: name a file for the other".into()));
        }
        let sides = [self.side("A", &self.a, &self.set_a)?, self.side("B", &self.b, &self.set_b)?];
        let runs = self.run(&sides)?;
        let side = |at: usize, file, set| over_pair::Side {
            letter: sides[at].letter,
            file,
            set,
            program: &sides[at].linked.program,
            runs: &runs[at],
        };
        let show: Vec<String> = self.show.iter().map(|column| column.trim().to_owned()).collect();
        let report = over_pair::Report {
            sides: [side(0, &self.a, &self.set_a), side(1, &self.b, &self.set_b)],
            seeds: &self.seeds,
            figures: over_pair::Shared::of(&runs[0][0], &runs[1][0], &show),
        };
        output::print(&if self.json { report.json() } else { report.text(output::width()) })?;
        refuse_stuck(runs.iter().flatten())
    }

    fn side(&self, letter: &'static str, file: &str, own: &[(String, String)]) -> Result<Side, Failure> {
        let mut settings = self.settings.clone();
        // The last wins, and what is said of one program is said more exactly.
        settings.set.extend_from_slice(own);
        let flags = ProgramFlags { file: file.to_owned(), settings, messages: self.messages.clone() };
        let file = ProgramFile::open(&flags)?;
        let linked = file.link(&flags.settings, &[], None)?;
        let trace = file.trace(&linked.program, &flags.settings)?;
        file.warn(&linked);
        Ok(Side { letter, file, linked, trace })
    }

    fn run(&self, sides: &[Side; 2]) -> Result<Vec<Vec<Figures>>, Failure> {
        let options = self.limits.options();
        let seeds = &self.seeds.0;
        let all = 2 * seeds.len();
        let watch = Watch::start(all, self.limits.max_wall)?;
        let run = |at: usize, seed: u64| {
            let Side { linked, trace, .. } = &sides[at];
            run_seed(&linked.program, seed, trace.as_ref(), &options, &watch)
        };
        let mut done = 0;
        let mut firsts: [Option<Figures>; 2] = [None, None];
        let mut refused = None;
        let mut told = |at: usize, _: u64, figures: &Figures| {
            done += 1;
            watch.run_done(done, all);
            firsts[at].get_or_insert_with(|| figures.clone());
            if let [Some(a), Some(b)] = &firsts {
                refused = self.check_columns(a, b).err();
            }
            refused.is_none()
        };
        let runs = sweep(2, seeds, self.jobs.count(), &|_, _| None, run, &mut told);
        watch.finish();
        if let Some(failure) = refused {
            return Err(failure);
        }
        runs.map_err(|error| match error {
            SweepError::Failed { error, .. } if error.interrupted => {
                watch.stopped(&format!("{done} of {all} runs are done"))
            }
            SweepError::Failed { cell, seed, error } => {
                let Side { letter, file, linked, .. } = &sides[cell];
                file.refuse_run(&linked.sources, &error, &format!("{letter}, seed {seed}"))
            }
            SweepError::Asked => unreachable!("only a refusal asks"),
        })
    }

    /// A column neither has is a misspelling; one that only one has is told in the report.
    fn check_columns(&self, a: &Figures, b: &Figures) -> Result<(), Failure> {
        for column in self.show.iter().map(|column| column.trim()) {
            let (Err(what), Err(other)) = (a.places(column), b.places(column)) else { continue };
            // Where a name is two figures in one of them, that is the mistake.
            let what = if other.contains("several") { other } else { what };
            let sentence = over_cells::unknown(&what, column, &a.names);
            return Err(Failure::Failed(format!("--show: {sentence}")));
        }
        Ok(())
    }
}
