//! The command line: reads files and flags, wires the other crates together, prints.
//!
//! ```text
//!   flags ──▶ program file ──serq-lang──▶ ir::Program ──serq-sim──▶ Report ──▶ stdout
//!     │            │                          │             │
//!     └── usage    └── cannot be read         └── diagnostics └── run-time errors ──▶ stderr
//!         status 2     status 1                   status 1        status 1
//! ```
//!
//! A command that fails writes nothing to standard output. One that is interrupted
//! ends with status 130; one whose reader went away ends quietly.

mod command;
mod drawing;
mod dump;
mod failure;
mod fetch;
mod flags;
mod number;
mod output;
mod page;
mod plan;
mod playing;
mod precision;
mod program_file;
mod report;
mod resume;
mod seeds;
mod serving;
mod shortness;
mod table;
mod timeline;
mod transient;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Simulate, check and explain prefill/decode-disaggregated LLM serving from one program.
#[derive(Parser)]
#[command(version, arg_required_else_help = true, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<command::run::Run>),
    Sweep(Box<command::sweep::Sweep>),
    Compare(Box<command::compare::Compare>),
    Check(Box<command::check::Check>),
    Fmt(command::fmt::Fmt),
    Ir(Box<command::ir::Ir>),
    Explain(Box<command::explain::Explain>),
    ExplainError(command::explain_error::ExplainError),
    Draw(Box<command::draw::Draw>),
    Oracle(Box<command::oracle::Oracle>),
    Plan(command::plan::Plan),
    Model(command::model::Model),
    Up(Box<command::up::Up>),
    Instance(Box<command::instance::Instance>),
    Gateway(Box<command::gateway::Gateway>),
    Demo(command::demo::Demo),
    Load(Box<command::load::Load>),
    Diff(command::diff::Diff),
    Replay(command::replay::Replay),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Run(command) => command.execute(),
        Command::Sweep(command) => command.execute(),
        Command::Compare(command) => command.execute(),
        Command::Check(command) => command.execute(),
        Command::Fmt(command) => command.execute(),
        Command::Ir(command) => command.execute(),
        Command::Explain(command) => command.execute(),
        Command::ExplainError(command) => command.execute(),
        Command::Draw(command) => command.execute(),
        Command::Oracle(command) => command.execute(),
        Command::Plan(command) => command.execute(),
        Command::Model(command) => command.execute(),
        Command::Up(command) => command.execute(),
        Command::Instance(command) => command.execute(),
        Command::Gateway(command) => command.execute(),
        Command::Demo(command) => command.execute(),
        Command::Load(command) => command.execute(),
        Command::Diff(command) => command.execute(),
        Command::Replay(command) => command.execute(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}
