//! Text to IR: lexer, parser, resolver, linker, lints, diagnostics, formatter.
//!
//! ```text
//!   text ─lexer─▶ tokens ─parser─▶ ast ─link (resolve, queue, lint)─▶ ir::Program
//! ```
//!
//! Every arrow returns a value and diagnostics; none of them fails, and none opens
//! a file: the input is a [`source::SourceMap`] somebody filled.

mod arrival;
pub mod ast;
mod call;
mod compile;
mod declare;
mod definition;
pub mod diagnostic;
pub mod explain;
mod expression;
mod family;
mod fold;
pub mod format;
mod hold;
pub mod lexer;
mod link;
mod lint;
mod member;
mod moment;
mod name;
pub mod nearest;
pub mod parser;
pub mod played;
mod queue;
mod reference;
mod resolve;
mod run;
mod scope;
mod service;
pub mod source;
mod stage_reference;
mod stale;
mod statement;
mod unsugar;
mod walk;
mod workload;

pub use compile::{Settings, TEXT, compile, load};
pub use format::format;
pub use parser::{parse, parse_expr};
pub use unsugar::unsugar;
