//! What of a program its clients can know.
//!
//! A client knows what its workload draws, when it asks, when the first token comes and when the answer
//! ends. It does not know pools, stages, who was chosen, and what time it was while the server did
//! something unseen. An observation of such a thing is the server's, and so is one that is made in a
//! branch such a thing decides.

use std::collections::BTreeSet;

use serq_ir::{BuiltIn, Context, Expr, Program, Stmt, StmtKind};
use serq_lang::played::{ANSWER, FIRST_TOKEN, LEFT_OUT};

/// Of each observation, whether the clients make it.
pub(crate) fn known(program: &Program) -> Vec<bool> {
    let mut look = Look {
        program,
        unknown: BTreeSet::from([BuiltIn::Cached as u32, BuiltIn::Computed as u32]),
        known: vec![true; program.observes.len()],
    };
    // What is unknown somewhere may be read further up, in a loop.
    loop {
        let before = look.unknown.len();
        look.block(&program.workload.init, State::default());
        look.block(&program.workload.turn, State::default());
        look.block(&program.session, State::default());
        if look.unknown.len() == before {
            return look.known;
        }
    }
}

struct Look<'p> {
    program: &'p Program,
    /// Attributes.
    unknown: BTreeSet<u32>,
    known: Vec<bool>,
}

/// Where a statement stands.
#[derive(Clone, Copy, Default)]
struct State {
    /// In a branch that something unknown decides.
    guarded: bool,
    /// Behind something unseen, before the answer's next piece.
    late: bool,
}

impl Look<'_> {
    fn block(&mut self, block: &[Stmt], mut state: State) -> State {
        for stmt in block {
            state = self.stmt(stmt, state);
        }
        state
    }

    fn stmt(&mut self, stmt: &Stmt, mut state: State) -> State {
        match &stmt.kind {
            StmtKind::Set { attribute, value } => {
                let name = &self.program.attributes[*attribute as usize].name;
                if name.ends_with(LEFT_OUT) {
                    state.late = true;
                } else if matches!(value, Expr::Context(Context::Now)) && !state.late && name.contains('.') {
                    // A mark behind a piece of the answer, whichever call it is of.
                } else if state.guarded || self.is_unknown(value, state) {
                    self.unknown.insert(*attribute);
                }
            }
            StmtKind::Observe { observe, value } => {
                self.known[*observe as usize] &= !state.guarded && !self.is_unknown(value, state);
            }
            StmtKind::Choose { attribute, .. } => {
                self.unknown.insert(*attribute);
            }
            StmtKind::Branch { test, then, otherwise, .. } => {
                let inside = State { guarded: state.guarded || self.is_unknown(test, state), ..state };
                let (a, b) = (self.block(then, inside), self.block(otherwise, inside));
                state.late = a.late || b.late;
            }
            StmtKind::Loop { body } | StmtKind::Shielded { body } => {
                let once = self.block(body, state);
                self.block(body, State { late: state.late || once.late, ..state });
                state.late = once.late;
            }
            StmtKind::Hold(hold) => state = self.block(&hold.body, state),
            StmtKind::Run(run) => {
                let name = |stage: u32| &self.program.stages[stage as usize].name[..];
                if run.stages.iter().any(|stage| [FIRST_TOKEN, ANSWER].contains(&name(stage.stage))) {
                    state.late = false;
                }
            }
            _ => {}
        }
        state
    }

    fn is_unknown(&self, value: &Expr, state: State) -> bool {
        value.any(&|part| match part {
            Expr::Attribute(attribute) => self.unknown.contains(attribute),
            Expr::Context(Context::Now) => state.late,
            Expr::Context(_) | Expr::Pool(..) | Expr::Stage(..) | Expr::Price(..) => true,
            // What stands where nobody knows anything.
            Expr::Number(number) => number.0.is_nan(),
            Expr::Binary(serq_ir::Binary::Divide, a, b) => {
                [a, b].iter().all(|part| matches!(&***part, Expr::Number(number) if number.0 == 0.0))
            }
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use serq_lang::source::SourceMap;
    use serq_lang::{Settings, compile, load};

    use super::*;

    fn split(mut sources: SourceMap) -> (Vec<String>, Vec<String>) {
        let settings = Settings { horizon: Some(1e6), played: true, ..Settings::default() };
        let (program, found) = compile(&mut sources, &settings);
        let program = program.unwrap_or_else(|| panic!("{found:?}"));
        let known = known(&program);
        let of = |wanted: bool| {
            let names = program.observes.iter().zip(&known).filter(|(_, known)| **known == wanted);
            names.map(|(name, _)| name.clone()).collect()
        };
        (of(true), of(false))
    }

    #[test]
    fn a_client_of_llm_d_knows_when_its_tokens_come_and_no_lease() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/pd-disaggregation/");
        for (name, theirs) in [
            ("llmd_nixl_pull.sq", &["remote_tokens", "lease", "local_tokens", "remote"][..]),
            ("vllm_0_32_pull.sq", &["remote_tokens", "lease", "local_tokens", "remote"]),
        ] {
            let path = format!("{folder}{name}");
            let text = std::fs::read_to_string(&path).unwrap();
            let mut read = |path: &str| std::fs::read_to_string(path).map_err(|error| error.to_string());
            let (known, unknown) = split(load(Some(&path), &text, &mut read).0);
            assert_eq!(known, ["too_long", "ttft", "response"], "{name}");
            let mut unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
            let mut theirs = theirs.to_vec();
            unknown.sort_unstable();
            theirs.sort_unstable();
            assert_eq!(unknown, theirs, "{name}");
        }
    }

    /// What is known depends on what stands before it, in every turn of a loop.
    #[test]
    fn time_is_known_where_something_is_seen() {
        let text = "
            queue D : decode {
              pool kv { cap 100; admit via D; }
              serve step { budget 10; cost 1; memory kv; }
              decode (x) { hold kv (x + n) { prefill x; mark first; decode (n - 1); mark over; } }
            }
            queue R : gateway {
              route {
                set t = now;
                run hop (0.1);
                observe hop_over = now - t;
                set late = now;
                D.decode (10);
                observe first = D.first - t;
                observe last = D.over - t;
                observe all = now - t;
                observe since_hop = now - late;
                branch (queued(D.kv) > 0) { observe busy = 1; set n = 2; } else { set m = 1; }
              }
            }
            stage hop : delay;
            workload {
              arrive batch(1);
              hidden n;
              turn { observe drawn = n; set n = 5; set m = 0; observe turn = turn_no; }
              session { loop { turn; observe again = old; request R; set old = m; } }
            }";
        let (known, unknown) = split(SourceMap::new("a.sq", text));
        assert_eq!(known, ["turn", "first", "last", "all"]);
        assert_eq!(unknown, ["drawn", "again", "hop_over", "since_hop", "busy"]);
    }
}
