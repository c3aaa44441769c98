//! `serq load`: a program's clients, for real.

use std::ops::Range;

use clap::{Args, ValueEnum};

use crate::failure::Failure;
use crate::flags::ProgramFlags;
use crate::output;
use crate::playing::{self, Endpoint, Manner, Played, Stopped};
use crate::program_file::ProgramFile;
use crate::report::played;
use crate::watch::Watch;

/// Play a program's sessions as clients of a running server, and report what they measure
#[derive(Args)]
pub(crate) struct Load {
    #[command(flatten)]
    program: ProgramFlags,

    /// The server: `http://HOST:PORT`, or with `/v1`
    #[arg(long, value_name = "URL", value_parser = endpoint)]
    url: (String, Endpoint),

    /// The model to ask for [default: the server's only one]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,

    /// Replace the program's seed
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,

    /// Prompts as token ids, or as text for servers that take no ids
    #[arg(long, value_name = "KIND", value_enum, default_value_t = TokensBy::Ids)]
    tokens_by: TokensBy,

    /// Ids to write prompts of: `1000..30000`, without the last [default: what holds no special tokens]
    #[arg(long, value_name = "FROM..TO", value_parser = ids, conflicts_with = "tokens_by")]
    token_ids: Option<Range<u32>>,

    /// Seconds after which a request has failed
    #[arg(long, value_name = "SECONDS", value_parser = patience, default_value_t = 600.0)]
    timeout: f64,

    /// The report as one JSON object
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// The figures as CSV, one a row
    #[arg(long)]
    csv: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TokensBy {
    /// As ids: exactly as many as drawn.
    Ids,
    /// As words.
    Text,
}

impl Load {
    /// Plays and prints.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let file = ProgramFile::open(&self.program)?;
        let settings = &self.program.settings;
        let linked = file.link_to_play(settings, self.seed)?;
        let trace = file.trace(&linked.program, settings)?;
        let played = Played::new(linked.program).map_err(|why| Failure::Failed(format!("{}: {why}", file.path)))?;
        let (url, endpoint) = self.url;
        let manner = Manner {
            endpoint,
            url,
            model: self.model,
            by_text: self.tokens_by == TokensBy::Text,
            ids: self.token_ids,
            patience: self.timeout,
        };
        let watch = Watch::start(1, None)?;
        let mut look = watch.run(played.program().run.horizon.0);
        let outcome = playing::play(&played, trace.as_ref(), &manner, &mut look);
        drop(look);
        watch.finish();
        let outcome = outcome.map_err(|stopped| match stopped {
            Stopped::Server(sentence) => Failure::Failed(sentence),
            Stopped::Fault(fault) => file.refuse_run(&linked.sources, &fault.into(), ""),
        })?;
        output::print(&if self.json {
            serde_json::to_string_pretty(&outcome).expect("a report has only JSON's types") + "\n"
        } else if self.csv {
            played::csv(&outcome)
        } else {
            played::draw(&outcome, output::width())
        })?;
        match watch.is_interrupted() {
            true => Err(Failure::Interrupted("interrupted: the report is of what was done by then".into())),
            false => Ok(()),
        }
    }
}

fn endpoint(text: &str) -> Result<(String, Endpoint), String> {
    Endpoint::of(text).map(|endpoint| (text.to_owned(), endpoint))
}

fn ids(text: &str) -> Result<Range<u32>, String> {
    let ends = text.split_once("..").and_then(|(from, to)| Some(from.trim().parse().ok()?..to.trim().parse().ok()?));
    ends.filter(|ends: &Range<u32>| ends.start < ends.end).ok_or_else(|| "FROM..TO is meant, as in 1000..30000".into())
}

fn patience(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.trim().parse().ok();
    seconds.filter(|seconds| *seconds > 0.0 && *seconds <= 1e6).ok_or_else(|| "seconds above 0 are meant".into())
}
