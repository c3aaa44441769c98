//! Text to IR: lexer, parser, resolver, linker, lints, diagnostics, formatter.
//!
//! ```text
//!   text ─lexer─▶ tokens ─parser─▶ ast ─link (resolve, queue, lint)─▶ ir::Program
//! ```
//!
//! Every arrow returns a value and diagnostics; none of them fails, and none opens
//! a file: the input is a [`source::SourceMap`] somebody filled.

pub mod ast;
mod compile;
mod definition;
pub mod diagnostic;
mod expression;
pub mod explain;
mod family;
mod fold;
pub mod format;
pub mod lexer;
mod link;
mod lint;
mod moment;
pub mod nearest;
pub mod parser;
mod queue;
mod reference;
mod resolve;
mod scope;
pub mod source;
mod statement;
mod unsugar;
mod walk;
mod workload;

pub use format::format;
pub use compile::{Settings, TEXT, compile, load};
pub use parser::{parse, parse_expr};
pub use unsugar::unsugar;
