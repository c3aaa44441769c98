//! A program's deployment as a picture: a queueing network in SVG.
//!
//! ```text
//!   ir::Program ─▶ holding (what encloses what) ─▶ network (places, arrows) ─▶ layout ─▶ svg
//! ```
//!
//! Stages are servers with their queues, pools enclose what runs while they are held, families
//! are stacks with their count, flows over several stages are links, and arrows are the ways of
//! a session. Columns are in the order in which a session first comes to them.
//!
//! # Invariants
//!
//! - One program, one picture, byte for byte.
//! - Every pool family and every stage family is named once.
//! - No text is wider than the box it stands in (by [`ink::width`], which errs to the wide side).

mod arrow;
mod enclosure;
mod holding;
mod ink;
mod label;
mod layout;
mod network;
mod svg;

use serq_ir::Program;

/// The picture.
pub(crate) fn draw(program: &Program) -> String {
    let network = network::of(program);
    let page = layout::of(&network);
    svg::paint(&program.name, &network, &page)
}
