//! One module a command.

pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod draw;
pub(crate) mod explain;
pub(crate) mod explain_error;
pub(crate) mod fmt;
pub(crate) mod ir;
pub(crate) mod plan;
pub(crate) mod run;
pub(crate) mod sweep;
