//! Text to IR: lexer, parser, resolver, linker, lints, diagnostics, formatter.
//!
//! ```text
//!   text ─lexer─▶ tokens ─parser─▶ ast ─link (resolve, queue, lint)─▶ ir::Program
//! ```
//!
//! Every arrow returns a value and diagnostics; none of them fails, and none opens
//! a file: the input is a [`source::SourceMap`] somebody filled.

pub mod ast;
pub mod diagnostic;
pub mod explain;
pub mod format;
pub mod lexer;
pub mod nearest;
pub mod parser;
pub mod source;

pub use format::format;
pub use parser::{parse, parse_expr};
