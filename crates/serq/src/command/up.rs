//! `serq up`: what a program names, for real.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serq_engine::decisions::Decisions;
use serq_engine::instances::threads;
use serq_engine::kernels::{Compute, Path};
use serq_engine::model_files;
use serq_engine::served::{NamedStore, Served};

use super::instance::TransportFlags;
use crate::failure::Failure;
use crate::flags::{MessageFlags, ProgramFlags, SettingFlags};
use crate::output;
use crate::program_file::ProgramFile;
use crate::serving::http::Http;
use crate::serving::processes::Processes;
use crate::serving::{Instances, Serving};

/// Start the instances a program names, behind an OpenAI-compatible server
#[derive(Args)]
pub(crate) struct Up {
    #[command(flatten)]
    served: ServedFlags,

    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,

    /// At which port; 0: one that is free
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    port: u16,

    /// Take the time that the program's costs say, and compute nothing: an answer says its prompt again
    #[arg(long)]
    modelled: bool,

    /// Each instance in a process of its own, started again if it ends
    #[arg(long, conflicts_with = "modelled")]
    processes: bool,

    #[command(flatten)]
    transport: TransportFlags,

    /// How often a request is routed again whose instance is gone or whose KV did not arrive
    #[arg(long, value_name = "COUNT", default_value_t = 3, requires = "processes")]
    retries: u32,

    /// The blocks of a store, a pool that others spill into, are in this file: NAME=FILE. It is made anew, and removed
    /// at the end
    #[arg(long = "store-file", value_name = "NAME=FILE", conflicts_with_all = ["modelled", "processes"])]
    store_files: Vec<String>,

    /// Write what the kernel is told and decides to a file, for `serq replay`
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
}

/// A program and a model, the same for every process of a deployment.
#[derive(Args)]
pub(crate) struct ServedFlags {
    /// The program's text
    #[arg(value_name = "FILE")]
    pub(crate) file: String,

    #[command(flatten)]
    settings: SettingFlags,

    #[command(flatten)]
    messages: MessageFlags,

    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

/// The model, and how it is computed.
#[derive(Args, Clone)]
pub(crate) struct EngineFlags {
    /// A name of `serq model list`, a GGUF file, a Hugging Face folder, or `tiny`: random weights
    /// that are built in
    #[arg(long, value_name = "MODEL", default_value = "tiny")]
    pub(crate) model: String,

    /// With which instructions: `portable`, `avx2`, `avx512` or `avx512-bf16` [default: the best there are]
    #[arg(long, value_name = "PATH")]
    pub(crate) kernels: Option<Path>,

    /// In what matrices are multiplied [default: what suits how they are stored]
    #[arg(long, value_name = "KIND", value_enum)]
    pub(crate) compute: Option<ComputeFlag>,

    /// Cores to compute on [default: all]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ComputeFlag {
    /// Singles.
    F32,
    /// Weights and activations rounded to bf16.
    Bf16,
    /// Weights as integers in blocks of 32, activations rounded to such.
    Int8,
}

impl EngineFlags {
    /// As a command line has them.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![format!("--model={}", self.model)];
        arguments.extend(self.kernels.map(|path| format!("--kernels={path}")));
        arguments.extend(
            self.compute.and_then(|compute| Some(format!("--compute={}", compute.to_possible_value()?.get_name()))),
        );
        arguments.extend(self.threads.map(|threads| format!("--threads={threads}")));
        arguments
    }

    /// Opens the model.
    pub(crate) fn open(&self) -> Result<Serving, Failure> {
        let checkpoint = model_files::open(&self.model).map_err(|error| Failure::Failed(error.to_string()))?;
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let name = std::path::Path::new(&self.model);
        let name = name.file_stem().filter(|_| name.exists()).map(|stem| stem.to_string_lossy().into_owned());
        Ok(Serving {
            name: name.unwrap_or_else(|| self.model.clone()),
            checkpoint,
            path: self.kernels.unwrap_or_else(Path::best),
            compute: self.compute.map(|compute| match compute {
                ComputeFlag::F32 => Compute::F32,
                ComputeFlag::Bf16 => Compute::Bf16,
                ComputeFlag::Int8 => Compute::Int8,
            }),
            cores: self.threads.map_or_else(cores, usize::from),
        })
    }
}

impl ServedFlags {
    /// The program, compiled to be served.
    pub(crate) fn served(&self) -> Result<Served, Failure> {
        let Self { file, settings, messages, .. } = self;
        let flags = ProgramFlags { file: file.clone(), settings: settings.clone(), messages: messages.clone() };
        let program = ProgramFile::open(&flags)?;
        let linked = program.link_to_serve(settings)?;
        Served::new(linked.program).map_err(|why| Failure::Failed(format!("{file}: {why}")))
    }

    /// The program as a command line has it.
    fn program(&self) -> Vec<String> {
        let mut arguments = vec![self.file.clone()];
        arguments.extend(self.settings.arguments());
        arguments
    }
}

/// The log of decisions, where one is wanted.
pub(crate) fn decisions(path: Option<&PathBuf>, served: &Served, modelled: bool) -> Result<Option<Decisions>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let file = File::create(path).map_err(|error| output::cannot("write", path, &error))?;
    let log = Log { file, path: path.clone(), failed: false };
    Ok(Some(Decisions::new(served, modelled, Box::new(BufWriter::with_capacity(1 << 16, log)))))
}

/// By member of a pool: the file its blocks are in.
fn store_files(flags: &[String], stores: &[NamedStore]) -> Result<BTreeMap<u32, PathBuf>, Failure> {
    let mut files = BTreeMap::new();
    for flag in flags {
        let (name, file) = flag
            .split_once('=')
            .filter(|(name, file)| !name.is_empty() && !file.is_empty())
            .ok_or_else(|| Failure::Usage(format!("--store-file {flag}: NAME=FILE is meant")))?;
        let Some(store) = stores.iter().find(|store| store.name == name) else {
            let names: Vec<&str> = stores.iter().map(|store| store.name.as_str()).collect();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(Failure::Usage(format!("the program has no store {name}; its stores: {there}")));
        };
        if files.insert(store.pool, PathBuf::from(file)).is_some() {
            return Err(Failure::Usage(format!("{name} has two files")));
        }
    }
    Ok(files)
}

impl Up {
    pub(crate) fn execute(self) -> Result<(), Failure> {
        if !self.processes && self.transport.argument().is_some() {
            return Err(Failure::Usage("--transport is for --processes: in one process KV is copied".into()));
        }
        let served = self.served.served()?;
        let serving = self.served.engine.open()?;
        let (named, stores, brings) = (served.instances(), served.stores(), served.brings());
        let files = store_files(&self.store_files, &stores)?;
        let decisions = decisions(self.decisions.as_ref(), &served, self.modelled)?;
        let cores = serving.cores;
        let http = Http::listen(self.host, self.port)?;
        let mut processes = None;
        let instances = match (self.modelled, self.processes) {
            (true, _) => Instances::Modelled,
            (false, false) => Instances::Here { files: files.clone() },
            (false, true) => {
                let mut command = self.served.program();
                command.extend(self.transport.argument());
                let started = Processes::start(&named, &command, &self.served.engine, cores)?;
                let apart = started.apart(self.retries);
                processes = Some(started);
                Instances::Apart(apart)
            }
        };
        let (backend, model) = serving.start(served, instances, decisions).map_err(Failure::Failed)?;
        let name = backend.model.id.clone();
        let mut text = String::new();
        let groups = threads(named.len(), cores);
        for (nth, instance) in named.iter().enumerate() {
            let (blocks, block) = (instance.memory.blocks, instance.memory.block);
            text +=
                &format!("  {:6} ready   block {block}   {blocks} blocks = {} tokens", instance.name, blocks * block);
            if let Some(model) = &model {
                let bytes = blocks * model.kv_layout(block).block_bytes();
                let threads = groups[nth % groups.len()];
                let s = if threads == 1 { "" } else { "s" };
                text += &format!(", {:.0} MB   {threads} thread{s}", bytes as f64 / 1e6);
            }
            if let Some(processes) = &processes {
                text += &format!("   {}", processes.describe(nth));
            }
            text += "\n";
        }
        for store in &stores {
            let (blocks, block) = (store.memory.blocks, store.memory.block);
            text += &format!("  {:6} store   block {block}   {blocks} blocks = {} tokens", store.name, blocks * block);
            if let Some(model) = &model {
                let megabytes = (blocks * model.kv_layout(block).block_bytes()) as f64 / 1e6;
                let place =
                    files.get(&store.pool).map_or_else(|| "in memory".to_owned(), |file| file.display().to_string());
                text += &format!(", {megabytes:.0} MB   {place}");
            }
            text += "\n";
        }
        match &model {
            Some(model) => {
                let (path, compute) = (model.path(), format!("{:?}", model.compute()).to_lowercase());
                text += &format!("  model  {name}, {compute}, {path} kernels\n");
            }
            None if processes.is_some() => text += &format!("  model  {name}, in processes of their own\n"),
            None => text += &format!("  model  {name}, modelled: the program's costs, and no tokens of its own\n"),
        }
        text += &format!("  request: {}\n", brings.join(", "));
        text += &http.invitation(&name);
        output::print(&text)?;
        http.serve(backend);
        drop(processes);
        Ok(())
    }
}

/// A log's file, which says once that it cannot be written.
struct Log {
    file: File,
    path: PathBuf,
    failed: bool,
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted && !std::mem::replace(&mut self.failed, true) {
                let (path, reason) = (self.path.display(), output::reason(error));
                output::tell(&format!(
                    "cannot write {path}: {reason}; the log of decisions breaks off, requests go on"
                ));
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
