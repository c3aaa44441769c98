//! `cargo xtask CHORE`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::differential;

/// The project's chores.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Random programs, run here and by the reference release, compared number by number.
    Differential(differential::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().chore {
        Chore::Differential(arguments) => differential::differential(&arguments),
    };
    match done {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}
