//! What a long prompt does to the tokens of answers under way: in one instance, in one with chunked
//! prefill, and with the prefill on another instance.

use std::time::{Duration, Instant};

use serde::Serialize;
use serq_engine::instances::LocalInstances;
use serq_engine::request::{Event, Finish};
use serq_engine::service::Service;

use super::{Asked, ask, programs};
use crate::failure::Failure;
use crate::serving::Packed;

/// Answers under way, and their tokens.
const ANSWERS: usize = 4;
const TOKENS: usize = 192;
/// The long prompt comes when each of them has so many.
const BEFORE: usize = 48;
/// The long prompt is this part of what the model takes, at most so many tokens.
const LONG_MOST: usize = 1500;

/// One set-up's figures, in seconds.
#[derive(Serialize)]
pub(super) struct Interference {
    setup: &'static str,
    long_prompt_tokens: usize,
    /// From the long prompt's arrival to its first token.
    long_ttft_s: f64,
    /// Between two tokens of the others: before it came, and while its prompt was computed.
    itl_before_mean_s: f64,
    itl_during_mean_s: f64,
    itl_during_max_s: f64,
    /// When each token came since the long prompt did, and after how long: for a picture.
    #[serde(skip)]
    gaps: Vec<(f64, f64)>,
}

const SETUPS: [(&str, &str); 3] =
    [("colocated", "colocated_smollm2.sq"), ("chunked", "chunked_smollm2.sq"), ("disaggregated", "pd_smollm2.sq")];

pub(super) fn show(packed: &Packed) -> Result<Vec<Interference>, Failure> {
    let context = packed.model.config().context;
    let vocabulary = packed.model.config().vocabulary as u32;
    // Ids that mark nothing, none of them twice in a row.
    let text = |from: u32, tokens: usize| -> Vec<u32> {
        (0..tokens as u32)
            .map(|at| 40 + (from.wrapping_mul(7919).wrapping_add(at * 31)) % (vocabulary.min(2_000) - 60))
            .collect()
    };
    let long = LONG_MOST.min(context / 2);
    let mut all = Vec::new();
    for (setup, program) in SETUPS {
        // Answers under way are short: their own prompts stay where they are asked for.
        let sets: &[(&str, &str)] = if setup == "disaggregated" { &[("thr", "64")] } else { &[] };
        let served = programs::served(program, sets);
        let instances = LocalInstances::new(&served, &packed.model, packed.cores, u64::MAX).map_err(Failure::Failed)?;
        let service = Service::start(served, Box::new(instances), None);
        let tokens = TOKENS.min(context / 3);
        let running: Vec<Asked> =
            (0..ANSWERS).map(|nth| ask(&service, text(nth as u32 + 1, 16), tokens, Vec::new())).collect();
        let mut times: Vec<Vec<Instant>> = vec![Vec::new(); ANSWERS];
        for (one, times) in running.iter().zip(&mut times) {
            while times.len() < BEFORE.min(tokens / 3) {
                take(one, times)?;
            }
        }
        let asked = ask(&service, text(99, long), 2, Vec::new());
        let mut first = Vec::new();
        take(&asked, &mut first)?;
        for (one, times) in running.iter().zip(&mut times) {
            while take(one, times)? {}
        }
        let (came, answered) = (asked.at, first[0]);
        let gaps = |from: Instant, upto: Instant| -> Vec<(f64, f64)> {
            let mut gaps: Vec<(f64, f64)> = times
                .iter()
                .flat_map(|times| times.windows(2))
                .filter(|pair| pair[1] > from && pair[0] < upto)
                .map(|pair| ((pair[1] - came.min(pair[1])).as_secs_f64(), (pair[1] - pair[0]).as_secs_f64()))
                .collect();
            gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
            gaps
        };
        let mean = |gaps: &[(f64, f64)]| gaps.iter().map(|(_, gap)| gap).sum::<f64>() / gaps.len().max(1) as f64;
        let before = gaps(came - Duration::from_secs(60).min(came.elapsed()), came);
        let during = gaps(came, answered);
        all.push(Interference {
            setup,
            long_prompt_tokens: long,
            long_ttft_s: (answered - came).as_secs_f64(),
            itl_before_mean_s: mean(&before),
            itl_during_mean_s: mean(&during),
            itl_during_max_s: during.iter().map(|(_, gap)| *gap).fold(0.0, f64::max),
            gaps: during,
        });
    }
    Ok(all)
}

/// Takes an event; answers whether there will be more.
fn take(asked: &Asked, times: &mut Vec<Instant>) -> Result<bool, Failure> {
    match asked.events.recv() {
        Ok((at, Event::Token { .. })) => {
            times.push(at);
            Ok(true)
        }
        Ok((
            _,
            Event::Finished { finish: Finish::Refused(why) | Finish::Unavailable(why) | Finish::Failed(why), .. },
        )) => Err(Failure::Failed(why)),
        Ok((_, Event::Finished { .. })) => Ok(false),
        Err(_) => Err(Failure::Failed("the instances are gone".into())),
    }
}

/// A line of blocks, one for each part of the time: how long the longest gap in it was.
fn picture(gaps: &[(f64, f64)], seconds: f64, highest: f64) -> String {
    const PARTS: usize = 48;
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let mut parts = [0.0f64; PARTS];
    for &(at, gap) in gaps {
        // A gap covers the time it lasted.
        let part = |time: f64| ((time / seconds * PARTS as f64) as usize).min(PARTS - 1);
        for part in &mut parts[part((at - gap).max(0.0))..=part(at)] {
            *part = part.max(gap);
        }
    }
    let height = |gap: f64| match gap {
        0.0 => ' ',
        gap => HEIGHTS[((gap / highest * HEIGHTS.len() as f64) as usize).min(HEIGHTS.len() - 1)],
    };
    parts.into_iter().map(height).collect()
}

pub(super) fn text(all: &[Interference]) -> String {
    let mut text = format!(
        "\nFour answers under way, and a prompt of {} tokens comes: the time between two of their tokens\n\n",
        all[0].long_prompt_tokens
    );
    text += "                  before    meanwhile  longest   the prompt's first token\n";
    for one in all {
        text += &format!(
            "  {:14}{:7.1} ms {:9.1} ms {:6.0} ms {:8.0} ms\n",
            one.setup,
            one.itl_before_mean_s * 1e3,
            one.itl_during_mean_s * 1e3,
            one.itl_during_max_s * 1e3,
            one.long_ttft_s * 1e3,
        );
    }
    let seconds = all.iter().map(|one| one.long_ttft_s).fold(0.0, f64::max);
    let highest = all.iter().map(|one| one.itl_during_max_s).fold(0.0, f64::max);
    text += &format!(
        "\n  The longest gap, from when the prompt came, over {:.0} ms; the highest is {:.0} ms\n",
        seconds * 1e3,
        highest * 1e3
    );
    for one in all {
        text += &format!("  {:14}│{}│\n", one.setup, picture(&one.gaps, seconds, highest));
    }
    let (worst, best) = (&all[0], &all[all.len() - 1]);
    text += &format!(
        "\nA long prompt stops the others for {:.0} ms on one instance, and for {:.0} ms where another instance prefills.\n",
        worst.itl_during_max_s * 1e3,
        best.itl_during_max_s * 1e3
    );
    text
}
