//! `serq demo`: prefill on one instance, decode on another, and the same text; and what a long
//! prompt does to others' tokens in three set-ups.

mod interference;
mod programs;
mod same_text;

use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serq_engine::request::{Choice, Event, Mute, Request};
use serq_engine::sampler::Sampling;
use serq_engine::service::{Service, Submitted};

use crate::command::up::EngineFlags;
use crate::failure::Failure;
use crate::output;
use interference::Interference;
use same_text::SameText;

/// Show that disaggregated instances say the same, and what they save
#[derive(Args)]
pub(crate) struct Demo {
    #[command(flatten)]
    engine: EngineFlags,

    /// As one JSON object
    #[arg(long)]
    json: bool,

    /// Break a part, to see that it is noticed
    #[arg(long, value_name = "PART", value_enum)]
    sabotage: Option<Sabotage>,

    /// The undisaggregated side, in a process of its own
    #[arg(long, hide = true)]
    alone: bool,
}

/// What can be broken.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sabotage {
    /// Half of what a read should copy is not copied
    Copy,
}

#[derive(Serialize)]
struct Shown {
    model: String,
    same_text: SameText,
    interference: Vec<Interference>,
}

impl Demo {
    pub(crate) fn execute(self) -> Result<(), Failure> {
        if self.alone {
            return same_text::alone(&self.engine);
        }
        let alone = same_text::other_process(&self.engine)?;
        let packed = self.engine.open()?.pack().map_err(Failure::Failed)?;
        let same_text = same_text::show(&packed, &alone, self.sabotage)?;
        let equal = same_text.equal;
        if !self.json {
            output::print(&same_text.text())?;
        }
        let interference = match self.sabotage {
            None => interference::show(&packed)?,
            Some(_) => Vec::new(),
        };
        if self.json {
            let shown = Shown { model: self.engine.model.clone(), same_text, interference };
            let json = serde_json::to_string_pretty(&shown).expect("figures are plain data");
            output::print(&format!("{json}\n"))?;
        } else if !interference.is_empty() {
            output::print(&interference::text(&interference))?;
        }
        match equal {
            true => Ok(()),
            false => Err(Failure::Failed("the texts differ".into())),
        }
    }
}

/// A request under way, and when its events came.
struct Asked {
    events: Receiver<(Instant, Event)>,
    at: Instant,
    _submitted: Submitted,
}

/// Asks for the likeliest tokens, exactly so many where it does not `end`.
fn ask(service: &Service, prompt: Vec<u32>, max_tokens: usize, ends: Vec<u32>) -> Asked {
    let (tell, events) = mpsc::channel();
    let sampling = Sampling { temperature: 0.0, ends, ..Sampling::default() };
    let request =
        Request { prompt, max_tokens, choices: vec![Choice { sampling, stops: Vec::new(), voice: Box::new(Mute) }] };
    let at = Instant::now();
    let submitted = service.submit(request, Box::new(move |event| drop(tell.send((Instant::now(), event)))));
    Asked { events, at, _submitted: submitted }
}
