//! The stale header: a hold that reads an attribute last set from live state.
//!
//! The session reads the state when it reaches the `set`, the scheduler the header when
//! it tries the head of the queue; between lies the wait.

use std::collections::{BTreeMap, BTreeSet};

use serq_ir::{self as ir, Expr, StmtKind};

use crate::link::{Linker, Part};

/// Most stale attributes followed at a time; every branch copies them.
const STALE_MAX: usize = 1_000;

/// Looks at every header of a session.
pub(crate) fn check(linker: &mut Linker<'_>, session: &ir::Block, workload: &ir::Workload) {
    Stale { linker, set: BTreeMap::new(), near: BTreeSet::new() }.session(session, workload);
}

/// The attributes that are stale at some point of the session.
struct Stale<'l, 'a> {
    linker: &'l mut Linker<'a>,
    /// Attributes whose last `set` on some path read the state: where, and what it read.
    set: BTreeMap<u32, (ir::Place, String)>,
    /// Those set above in the same block, or above a branch or loop around: certainly
    /// stale. Behind a branch and inside another hold it is likely, which is a warning.
    near: BTreeSet<u32>,
}

impl Stale<'_, '_> {
    fn session(mut self, session: &ir::Block, workload: &ir::Workload) {
        self.block(&workload.init);
        self.near.clear();
        self.block(session);
    }

    fn block(&mut self, block: &[ir::Stmt]) {
        for stmt in block {
            match &stmt.kind {
                StmtKind::Set { attribute, value } => match self.live(value) {
                    Some(what) => {
                        if self.set.len() < STALE_MAX {
                            self.set.insert(*attribute, (stmt.at, what));
                            self.near.insert(*attribute);
                        }
                    }
                    None => {
                        self.set.remove(attribute);
                        self.near.remove(attribute);
                    }
                },
                StmtKind::Choose { attribute, .. } => {
                    self.set.remove(attribute);
                }
                StmtKind::Hold(hold) => {
                    self.header(stmt, hold);
                    let near = std::mem::take(&mut self.near);
                    self.block(&hold.body);
                    self.near = near;
                }
                StmtKind::Branch { then, otherwise, .. } => {
                    let before = self.set.clone();
                    let near = self.near.clone();
                    self.block(then);
                    let after = std::mem::replace(&mut self.set, before);
                    self.near.clone_from(&near);
                    self.block(otherwise);
                    self.near = near;
                    // Stale on one way is stale behind both.
                    for (attribute, from) in after {
                        self.set.entry(attribute).or_insert(from);
                    }
                }
                StmtKind::Loop { body } => {
                    let near = self.near.clone();
                    self.block(body);
                    self.near = near;
                }
                StmtKind::Shielded { body } => self.block(body),
                StmtKind::Fork { body } => {
                    // It sets a copy of the attributes.
                    let (set, near) = (self.set.clone(), self.near.clone());
                    self.block(body);
                    (self.set, self.near) = (set, near);
                }
                StmtKind::Run(run) => run.then.iter().for_each(|then| self.block(&then.body)),
                _ => {}
            }
        }
    }

    fn live(&self, value: &Expr) -> Option<String> {
        let mut found: Option<String> = None;
        value.each(&mut |e| {
            if found.is_some() {
                return;
            }
            found = match e {
                Expr::Pool(figure, pool) => {
                    let word = crate::expression::POOL_FIGURES.iter().find(|(_, f)| f == figure).map_or("", |(w, _)| w);
                    Some(format!("{word}({})", self.linker.pool_name(pool)))
                }
                Expr::Stage(figure, stage) => {
                    let word =
                        crate::expression::STAGE_FIGURES.iter().find(|(_, f)| f == figure).map_or("", |(w, _)| w);
                    Some(format!("{word}({})", self.linker.stage_name(stage)))
                }
                Expr::Price(stage, ..) => Some(format!("price({})", self.linker.stage_name(stage))),
                _ => None,
            };
        });
        found
    }

    fn header(&mut self, stmt: &ir::Stmt, hold: &ir::Hold) {
        let mut parts: Vec<(&Expr, Part, &'static str)> = Vec::new();
        for (k, grab) in hold.grabs.iter().enumerate() {
            parts.push((&grab.units, Part::Units(k), "units"));
            if let Some(reserve) = &grab.reserve {
                parts.push((reserve, Part::Reserve(k), "reserve"));
            }
        }
        if let Some(reuse) = &hold.reuse {
            parts.push((reuse, Part::Value, "reuse"));
        }
        for (e, part, what) in parts {
            let mut stale: Option<u32> = None;
            e.each(&mut |e| {
                if let Expr::Attribute(a) = e
                    && stale.is_none()
                    && self.set.contains_key(a)
                {
                    stale = Some(*a);
                }
            });
            let Some(attribute) = stale else { continue };
            let (at, read) = self.set[&attribute].clone();
            let name = self.linker.attribute_name(attribute);
            let span = self.linker.places.span(stmt.at, part);
            let note = self.linker.places.span(at, Part::Value);
            let value = note.and_then(|at| self.linker.places.text(at)).unwrap_or("…").to_string();
            let certain = self.near.contains(&attribute);
            let e = self
                .linker
                .finding(
                    certain,
                    "stale-header",
                    span,
                    format!("the hold's {what} read `{name}`, set before the session queued"),
                )
                .label("by admission this may be another number")
                .help(format!("read it at admission: `at admission ({name} = {value})`"));
            let e = match note {
                Some(note) => e.note(note, format!("reads `{read}` here, before the wait")),
                None => e,
            };
            e.done(self.linker);
        }
    }
}
