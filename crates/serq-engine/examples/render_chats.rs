//! Writes conversations out by templates, for `tools/model/templates.py`: JSON lines in, JSON
//! strings out, `null` where the template refuses or cannot be read.

use std::collections::BTreeMap;
use std::io;

use serde::Deserialize;
use serq_engine::chat::{ChatOptions, ChatTemplate, Value};

#[derive(Deserialize)]
struct Case {
    template: String,
    bos_token: String,
    eos_token: String,
    messages: Vec<Value>,
    variables: BTreeMap<String, Value>,
    add_generation_prompt: bool,
}

fn main() {
    for line in io::stdin().lines() {
        let case: Case = serde_json::from_str(&line.expect("text")).expect("a case");
        let options = ChatOptions {
            add_generation_prompt: case.add_generation_prompt,
            variables: case.variables,
            ..ChatOptions::default()
        };
        let text = ChatTemplate::new(&case.template, &case.bos_token, &case.eos_token)
            .map_err(|error| error.to_string())
            .and_then(|template| template.render(&case.messages, &options).map_err(|error| error.to_string()));
        if let Err(why) = &text {
            eprintln!("{why}");
        }
        println!("{}", serde_json::to_string(&text.ok()).expect("text"));
    }
}
