//! `serq draw`: the deployment as a picture.

use std::fs;

use clap::Args;

use crate::drawing;
use crate::failure::Failure;
use crate::flags::ProgramFlags;
use crate::output;
use crate::program_file::ProgramFile;

/// Draw the deployment as a queueing network, as SVG
#[derive(Args)]
pub(crate) struct Draw {
    #[command(flatten)]
    program: ProgramFlags,

    /// Where the picture goes; `-` is standard output
    #[arg(long, value_name = "SVG")]
    out: String,
}

impl Draw {
    /// Draws.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let file = ProgramFile::open(&self.program)?;
        let linked = file.link(&self.program.settings, &[], None)?;
        file.warn(&linked);
        let picture = drawing::draw(&linked.program);
        if self.out == "-" {
            return output::print(&picture);
        }
        fs::write(&self.out, picture).map_err(|error| output::cannot("write", &self.out, &error))
    }
}
