//! `cargo xtask CHORE`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{
    bench, chaos, citations, differential, faults, identity, layers, mutate, oracle, ordered, schema, seed, tables,
    versions,
};

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
    /// The seed's program with a trace instead of draws, here and by the reference release (0.1.2, or 0.1.3 for short runs).
    Ordered(ordered::Arguments),
    /// Compares our seed program with the seed's own, bit for bit, and records the result.
    Seed {
        /// The folder with seeds/examples/pd-disaggregation/llmd_nixl_pull.sq.
        folder: PathBuf,
    },
    /// Renames every name and rescales time and units of every case; nothing may change.
    MutateCases,
    /// The two tables of the seed's page, from our program, beside the page's figures.
    Tables(tables::Runs),
    /// The seed's program and the one with vLLM 0.32.0's schedulers, paired by seed, in the settings of those tables.
    Versions(tables::Runs),
    /// Every case and example, and random programs, with leaps and without: the same bits
    Identity {
        /// How many random programs.
        #[arg(long, default_value_t = 2_000)]
        count: u64,
        /// Seed of the first one; the others follow.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How long the seed's program runs in each of its stressed settings.
        #[arg(long, default_value_t = 1_000.0)]
        horizon: f64,
    },
    /// Random scenarios through vLLM's schedulers and through the kernel, every step compared.
    Oracle(oracle::Arguments),
    /// Every line of vLLM's source that docs/validation.md cites: is it still there?
    Citations(citations::Arguments),
    /// The transfer protocol under random faults; `--planted`: bugs put into it on purpose, each must be seen.
    Faults(faults::Arguments),
    /// Real instances killed and stopped while they serve: the texts, and what is held in the end.
    Chaos(chaos::Arguments),
    /// Compares the crates' dependencies with the drawing.
    Layers,
    /// Writes docs/ir.schema.json.
    Schema,
    /// CPU time of one run of a program.
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().chore {
        Chore::Differential(arguments) => differential::differential(&arguments),
        Chore::Ordered(arguments) => ordered::ordered(&arguments),
        Chore::Seed { folder } => seed::compare_and_record(&folder),
        Chore::MutateCases => mutate::cases(),
        Chore::Tables(runs) => tables::tables(&runs),
        Chore::Versions(runs) => versions::versions(&runs),
        Chore::Identity { count, seed, horizon } => identity::identity(count, seed, horizon),
        Chore::Oracle(arguments) => oracle::oracle(&arguments),
        Chore::Citations(arguments) => citations::citations(&arguments),
        Chore::Faults(arguments) => faults::faults(&arguments),
        Chore::Chaos(arguments) => chaos::chaos(&arguments),
        Chore::Layers => layers::check(),
        Chore::Schema => schema::write(),
        Chore::Bench(arguments) => bench::bench(&arguments),
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
