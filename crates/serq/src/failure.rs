//! How a command ends when it does not end well.

use std::process::ExitCode;

use crate::output::tell;

/// Why, with what standard error still has to say.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line asks for something that makes no sense. Status 2.
    Usage(String),
    /// The world or the run: one sentence. Status 1.
    Failed(String),
    /// Everything has been said already. Status 1.
    Told,
    /// Ctrl-C: one sentence. Status 130, as a shell's.
    Interrupted(String),
    /// The reader of standard output went away. It wanted no more, so this is no failure.
    ReaderGone,
}

impl Failure {
    /// Says it on standard error and answers the exit status.
    pub(crate) fn tell(self) -> ExitCode {
        match self {
            Self::Usage(sentence) => {
                tell(&format!("error: {sentence}\n\nFor more information, try '--help'."));
                ExitCode::from(2)
            }
            Self::Failed(sentence) => {
                tell(&format!("error: {sentence}"));
                ExitCode::from(1)
            }
            Self::Told => ExitCode::from(1),
            Self::Interrupted(sentence) => {
                tell(&sentence);
                ExitCode::from(130)
            }
            Self::ReaderGone => ExitCode::SUCCESS,
        }
    }
}
