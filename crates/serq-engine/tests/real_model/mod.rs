//! The real model, for tests that want it.

use serq_engine::model_files::{self, KNOWN, ModelError};
use serq_engine::weights::Checkpoint;

/// SmolLM2, if its file is here. Where `SERQ_NEED_MODELS` is set (`.ci/run` sets it), a missing
/// file is a failure.
pub(crate) fn smollm2() -> Option<Checkpoint> {
    match model_files::open(KNOWN[0].name) {
        Ok(model) => Some(model),
        Err(error @ ModelError::NotFetched(_)) if std::env::var_os("SERQ_NEED_MODELS").is_none() => {
            eprintln!("\nSKIPPED, NOTHING WAS TESTED: {error}\n");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
