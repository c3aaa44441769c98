//! `serq ir`: the linked program as JSON.

use clap::Args;

use crate::failure::Failure;
use crate::flags::{MessageFlags, ProgramFlags, SettingFlags};
use crate::output;
use crate::program_file::ProgramFile;

/// Print the linked program as JSON, which `run` reads too
#[derive(Args)]
pub(crate) struct Ir {
    /// Program text, or IR; `-` reads standard input
    #[arg(value_name = "FILE", required_unless_present = "schema")]
    file: Option<String>,

    /// Print the JSON Schema of the IR instead
    #[arg(long, conflicts_with = "file")]
    schema: bool,

    #[command(flatten)]
    settings: SettingFlags,

    #[command(flatten)]
    messages: MessageFlags,

    /// Replace the seed
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
}

impl Ir {
    /// Prints.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let Self { file, settings, messages, seed, .. } = self;
        let Some(file) = file else { return output::print(&serq_ir::json::schema()) };
        let flags = ProgramFlags { file, settings, messages };
        let file = ProgramFile::open(&flags)?;
        let linked = file.link(&flags.settings, &[], seed)?;
        file.warn(&linked);
        output::print(&serq_ir::json::print(&linked.program))
    }
}
