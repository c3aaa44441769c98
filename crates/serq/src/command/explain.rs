//! `serq explain`: a program without its sugar.

use clap::Args;

use crate::failure::Failure;
use crate::flags::ProgramFlags;
use crate::output;
use crate::program_file::ProgramFile;

/// Print the program with queues, calls and definitions written out
#[derive(Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    program: ProgramFlags,
}

impl Explain {
    /// Prints.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let file = ProgramFile::open(&self.program)?;
        let linked = file.link(&self.program.settings, &[], None)?;
        file.warn(&linked);
        output::print(&serq_lang::unsugar(&linked.program))
    }
}
