//! The schedulers' side: asked as they are, or their answers as they were recorded.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use crate::scenario::Scenario;
use crate::{Refused, Request, Step, Story};

/// What `tools/oracle/schedulers.py` answers, as far as it is compared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    requests: BTreeMap<String, Legs>,
    trace: Vec<Traced>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Legs {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefill: Option<Prefill>,
    decode: Decode,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Prefill {
    arrive: Option<u64>,
    admit: Option<u64>,
    finish: Option<u64>,
    free: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Decode {
    arrive: Option<u64>,
    park: Option<u64>,
    read_done: Option<u64>,
    promote: Option<u64>,
    admit: Option<u64>,
    first_token: Option<u64>,
    finish: Option<u64>,
    preempted: Vec<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Traced {
    step: u64,
    engines: BTreeMap<String, Engine>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Engine {
    scheduled: BTreeMap<String, u64>,
    preempted: Vec<String>,
    free_scheduled: u64,
    free: u64,
}

impl Answer {
    /// As a story of the scenario it answers.
    pub fn story(&self, scenario: &Scenario) -> Story {
        let mut story = Story::default();
        for traced in &self.trace {
            let engines = traced.engines.iter().map(|(name, engine)| {
                let Engine { scheduled, preempted, free_scheduled, free } = engine.clone();
                (name.clone(), (Step { scheduled, preempted, free: free_scheduled }, free))
            });
            story.steps.insert(traced.step, engines.collect());
        }
        for asked in &scenario.requests {
            let mut request = Request { name: asked.name.clone(), ..Request::default() };
            if let Some(legs) = self.requests.get(&asked.name) {
                let decode = &legs.decode;
                let mut events = vec![
                    ("decode arrive", decode.arrive),
                    ("park", decode.park),
                    ("read done", decode.read_done),
                    ("promote", decode.promote),
                    ("admit", decode.admit),
                    ("first token", decode.first_token),
                    ("finish", decode.finish),
                ];
                if let Some(prefill) = &legs.prefill {
                    events.extend([
                        ("prefill arrive", prefill.arrive),
                        ("prefill admit", prefill.admit),
                        ("prefill finish", prefill.finish),
                        // Of what was leased: an abort before gives back at once.
                        ("prefill free", prefill.free.filter(|_| prefill.finish.is_some())),
                    ]);
                }
                request.events = events.into_iter().filter_map(|(event, step)| Some((event, step?))).collect();
                request.preempted.clone_from(&decode.preempted);
            }
            story.requests.push(request);
        }
        story
    }
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Refused {
    Refused(format!("cannot {what} {}: {error}", path.display()))
}

/// A line of the schedulers' output.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Wrong { error: String },
    Right(Answer),
}

/// The schedulers, running.
#[derive(Debug)]
pub struct Schedulers {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Schedulers {
    /// Starts them: a Python with vLLM, and the script.
    ///
    /// # Errors
    ///
    /// Where either is missing or does not start.
    pub fn start(python: &Path, script: &Path) -> Result<Self, Refused> {
        let missing = [(python, "Python of the oracle"), (script, "oracle's script")];
        if let Some((path, what)) = missing.iter().find(|(path, _)| !path.exists()) {
            return Err(Refused(format!(
                "the {what} is not at {}: run tools/oracle/install.sh, or name it (--python, --script), or give recorded answers with --recorded",
                path.display()
            )));
        }
        let mut child = Command::new(python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| cannot("start", python, &error))?;
        let (to, from) = (child.stdin.take(), child.stdout.take().expect("it is piped"));
        Ok(Self { child, to, from: BufReader::new(from) })
    }

    /// What they do with a scenario.
    ///
    /// # Errors
    ///
    /// What they say against it, or that they are gone.
    pub fn ask(&mut self, scenario: &Scenario) -> Result<Answer, Refused> {
        let gone = || Refused("the oracle's process ended without an answer: run it by hand to see why".into());
        let line = serde_json::to_string(scenario).expect("names and numbers");
        let to = self.to.as_mut().expect("it is open until dropped");
        writeln!(to, "{line}").and_then(|()| to.flush()).map_err(|_| gone())?;
        let mut answer = String::new();
        if self.from.read_line(&mut answer).map_err(|_| gone())? == 0 {
            return Err(gone());
        }
        match serde_json::from_str(&answer) {
            Ok(Line::Right(answer)) => Ok(answer),
            Ok(Line::Wrong { error }) => Err(Refused(format!("{}: the oracle refuses it: {error}", scenario.name))),
            Err(error) => Err(Refused(format!("{}: the oracle's answer does not read: {error}", scenario.name))),
        }
    }
}

impl Drop for Schedulers {
    fn drop(&mut self) {
        // Its input's end is its end.
        self.to = None;
        let _ = self.child.wait();
    }
}

/// Where answers come from.
#[derive(Debug)]
pub enum Source {
    /// A file of them.
    Recorded(Vec<Recorded>, PathBuf),
    /// The schedulers.
    Live(Schedulers),
}

impl Source {
    /// The file, if there is one, else the schedulers, started: a Python with vLLM, and the script.
    ///
    /// # Errors
    ///
    /// A file that does not read, schedulers that do not start.
    pub fn open(recorded: Option<&Path>, python: &Path, script: &Path) -> Result<Self, Refused> {
        match recorded {
            Some(path) => Ok(Self::Recorded(Recorded::read(path)?, path.to_owned())),
            None => Schedulers::start(python, script).map(Self::Live),
        }
    }

    /// What the schedulers do with a scenario.
    ///
    /// # Errors
    ///
    /// There is no answer to this very scenario, or what they say against it.
    pub fn answer(&mut self, scenario: &Scenario) -> Result<Answer, Refused> {
        match self {
            Self::Recorded(all, path) => Recorded::find(all, scenario, path).cloned(),
            Self::Live(schedulers) => schedulers.ask(scenario),
        }
    }
}

/// A scenario with the schedulers' answer to it, a line of a file of them, which is gzipped.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recorded {
    /// As it was asked.
    pub scenario: Scenario,
    /// What the schedulers did.
    pub answer: Answer,
}

impl Recorded {
    /// All of a file.
    ///
    /// # Errors
    ///
    /// A file that does not read.
    pub fn read(path: &Path) -> Result<Vec<Self>, Refused> {
        let file = File::open(path).map_err(|error| cannot("read", path, &error))?;
        let mut recorded = Vec::new();
        for (at, line) in BufReader::new(GzDecoder::new(file)).lines().enumerate() {
            let line = line.map_err(|error| cannot("read", path, &error))?;
            recorded.push(
                serde_json::from_str(&line)
                    .map_err(|error| Refused(format!("{}: line {}: {error}", path.display(), at + 1)))?,
            );
        }
        Ok(recorded)
    }

    /// Writes a file of them.
    ///
    /// # Errors
    ///
    /// A file that can't be written.
    pub fn write(all: &[Self], path: &Path) -> Result<(), Refused> {
        let cannot = |error| cannot("write", path, &error);
        let mut file = GzEncoder::new(File::create(path).map_err(cannot)?, Compression::best());
        for one in all {
            writeln!(file, "{}", serde_json::to_string(one).expect("names and numbers")).map_err(cannot)?;
        }
        file.finish().map(drop).map_err(cannot)
    }

    /// The answer to this very scenario. Programs in several folders may have one name.
    ///
    /// # Errors
    ///
    /// There is none, or it was another scenario.
    pub fn find<'r>(all: &'r [Self], scenario: &Scenario, path: &Path) -> Result<&'r Answer, Refused> {
        if let Some(recorded) = all.iter().find(|recorded| recorded.scenario == *scenario) {
            return Ok(&recorded.answer);
        }
        let (name, path) = (&scenario.name, path.display());
        Err(Refused(if all.iter().any(|recorded| recorded.scenario.name == *name) {
            format!("{name} was another scenario when {path} was recorded: record it anew (--record)")
        } else {
            format!("{path} has no answer to {name}")
        }))
    }
}
