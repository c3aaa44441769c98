//! Real instances, in this process or in others, behind the gateway.

mod backend;
pub(crate) mod http;
pub(crate) mod processes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serq_engine::apart::{At, Identity, RemoteInstances, Token};
use serq_engine::chat::ChatTemplate;
use serq_engine::decisions::Decisions;
use serq_engine::instances::LocalInstances;
use serq_engine::kernels::{Compute, Path};
use serq_engine::model::{Model, compute_of};
use serq_engine::served::Served;
use serq_engine::service::Service;
use serq_engine::tokenizer::Tokenizer;
use serq_engine::weights::Checkpoint;

pub(crate) use backend::EngineBackend;

/// What a model is served with.
pub(crate) struct Serving {
    /// Its name for clients.
    pub(crate) name: String,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) path: Path,
    /// `None`: what suits how its weights are stored.
    pub(crate) compute: Option<Compute>,
    /// To compute on.
    pub(crate) cores: usize,
}

/// Where a program's instances are.
pub(crate) enum Instances {
    /// In this process; by member of a pool, the files that stores are in.
    Here { files: BTreeMap<u32, PathBuf> },
    /// Nowhere: they take the time that the program's costs say.
    Modelled,
    /// In processes of their own.
    Apart(Apart),
}

/// Instances in processes of their own.
pub(crate) struct Apart {
    pub(crate) addresses: Vec<At>,
    /// What all processes of the deployment know.
    pub(crate) token: Token,
    /// How often a request is routed again whose instance is gone or whose copy failed.
    pub(crate) retries: u32,
}

/// A number that no earlier process at an address had.
pub(crate) fn incarnation() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64
}

/// A model ready to compute, with its words.
pub(crate) struct Packed {
    pub(crate) model: Arc<Model>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) chat: Option<ChatTemplate>,
    /// Ids that end an answer.
    pub(crate) ends: Vec<u32>,
    pub(crate) cores: usize,
}

impl Serving {
    /// Packs the weights.
    ///
    /// # Errors
    ///
    /// One sentence: what of the model is not to be had.
    pub(crate) fn pack(self) -> Result<Packed, String> {
        let Self { checkpoint, path, compute, cores, .. } = self;
        let compute = compute.unwrap_or_else(|| compute_of(&checkpoint));
        Ok(Packed {
            model: Arc::new(Model::new(&checkpoint, path, compute)),
            tokenizer: Tokenizer::of(&checkpoint).map_err(|error| error.to_string())?,
            chat: ChatTemplate::of(&checkpoint).map_err(|error| error.to_string())?,
            ends: checkpoint.config.eos.iter().copied().collect(),
            cores,
        })
    }

    /// Starts the program's instances, or finds them.
    ///
    /// # Errors
    ///
    /// One sentence: what of the model is not to be had, or what does not fit this machine.
    pub(crate) fn start(
        self,
        served: Served,
        instances: Instances,
        decisions: Option<Decisions>,
    ) -> Result<(EngineBackend, Option<Arc<Model>>), String> {
        let Self { name, checkpoint, path, compute, cores } = self;
        let tokenizer = Tokenizer::of(&checkpoint).map_err(|error| error.to_string())?;
        let chat = ChatTemplate::of(&checkpoint).map_err(|error| error.to_string())?;
        let config = &checkpoint.config;
        // What no instance's memory can hold is no context to promise.
        let tokens = served.instances().into_iter().map(|instance| instance.memory.blocks * instance.memory.block);
        let largest = tokens.max().unwrap_or(0);
        let model = serq_gateway::backend::Model {
            id: name,
            created: 0,
            context_tokens: config.context.min(largest) as u32,
            vocabulary_tokens: config.vocabulary as u32,
        };
        let ends = config.eos.iter().copied().collect();
        let (service, packed, peers) = match instances {
            Instances::Modelled => (Service::modelled(served, decisions), None, None),
            Instances::Here { files } => {
                let compute = compute.unwrap_or_else(|| compute_of(&checkpoint));
                let packed = Arc::new(Model::new(&checkpoint, path, compute));
                let note = |note: &str| crate::output::tell(note);
                let instances = LocalInstances::with_files(&served, &packed, cores, memory_free(), &files, note)?;
                (Service::start(served, Box::new(instances), decisions), Some(packed), None)
            }
            Instances::Apart(Apart { addresses, token, retries }) => {
                let (identity, note) = (Identity::of(&served, &checkpoint), |note: &str| crate::output::tell(note));
                let remote =
                    RemoteInstances::start(&served, identity, &addresses, token, incarnation(), retries, note)?;
                let peers = remote.peers();
                (Service::start(served, Box::new(remote), decisions), None, Some(peers))
            }
        };
        let tokenizer = Arc::new(tokenizer);
        Ok((EngineBackend { model, service, tokenizer, chat, ends, peers, live: Arc::default() }, packed))
    }
}

/// Bytes of memory that can still be taken, as the system says; where it does not, all there could be.
pub(crate) fn memory_free() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib * 1024)
}
