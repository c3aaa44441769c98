//! `serq explain-error`: a diagnostic's page.

use clap::Args;
use serq_lang::explain::{CODES, page};
use serq_lang::nearest::nearest;

use crate::failure::Failure;
use crate::output;
use crate::program_file::RUN_ERROR;

/// The page of what only a run can find; the language knows the others.
const RUN_ERROR_PAGE: &str = include_str!("run_error.md");

/// Print the page of a diagnostic: what it means, a wrong program, the right one
#[derive(Args)]
pub(crate) struct ExplainError {
    /// What stands in the brackets of `error[…]`; without it, all codes are listed
    #[arg(value_name = "CODE")]
    code: Option<String>,
}

impl ExplainError {
    /// Prints.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let Some(code) = self.code else {
            let mut codes: Vec<&str> = CODES.iter().copied().chain([RUN_ERROR]).collect();
            codes.sort_unstable();
            return output::print(&(codes.join("\n") + "\n"));
        };
        // Pasted with its brackets, it is still the code.
        let code = code.trim_start_matches("error").trim_start_matches("warning").trim_matches(['[', ']']);
        if code == RUN_ERROR {
            return output::print(RUN_ERROR_PAGE);
        }
        match page(code) {
            Some(page) => output::print(&format!("{}\n", page.trim_end())),
            None => {
                let near = nearest(code, CODES.iter().copied().chain([RUN_ERROR]));
                let hint = near.map_or("`serq explain-error` lists them all".into(), |near| format!("is it `{near}`?"));
                Err(Failure::Failed(format!("no diagnostic has the code `{code}`: {hint}")))
            }
        }
    }
}
