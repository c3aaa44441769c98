//! `serq fmt`: the canonical layout.

use std::fs;

use clap::Args;

use crate::failure::Failure;
use crate::flags::MessageFlags;
use crate::{output, program_file};

/// Lay program files out in the canonical way, in place
#[derive(Args)]
pub(crate) struct Fmt {
    /// Programs; `-` reads standard input and writes standard output
    #[arg(value_name = "FILE", required = true)]
    files: Vec<String>,

    /// Write nothing: list the files that would change, and end with status 1 if there are any
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    messages: MessageFlags,
}

impl Fmt {
    /// All files are tried; one that cannot be read or parsed stays as it is.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let mut failed = false;
        let mut listed = String::new();
        let mut formatted = String::new();
        for path in &self.files {
            match self.format(path) {
                Ok(None) => {}
                Ok(Some(_)) if self.check => listed += &format!("{}\n", if path == "-" { "<stdin>" } else { path }),
                Ok(Some(text)) if path == "-" => formatted += &text,
                Ok(Some(text)) => {
                    if let Err(error) = fs::write(path, text) {
                        output::cannot("write", path, &error).tell();
                        failed = true;
                    }
                }
                Err(failure) => {
                    failure.tell();
                    failed = true;
                }
            }
        }
        output::print(&(formatted + &listed))?;
        if failed || !listed.is_empty() { Err(Failure::Told) } else { Ok(()) }
    }

    /// The new text where it differs, and always for standard input that is to be printed.
    fn format(&self, path: &str) -> Result<Option<String>, Failure> {
        let text = program_file::read_text(path)?;
        let name = if path == "-" { "<stdin>" } else { path };
        let formatted = serq_lang::format::format(&text).map_err(|diagnostics| {
            program_file::draw_for(name, &text, &diagnostics, &self.messages);
            Failure::Told
        })?;
        let wanted = formatted != text || (path == "-" && !self.check);
        Ok(wanted.then_some(formatted))
    }
}
