//! The programs the demo runs: the examples, as they were built in.

use std::path::Path;

use serq_engine::served::Served;
use serq_lang::Settings;

const TEXTS: [(&str, &str); 4] = [
    ("pd_smollm2.sq", include_str!("../../../../../examples/local/pd_smollm2.sq")),
    ("colocated_smollm2.sq", include_str!("../../../../../examples/local/colocated_smollm2.sq")),
    ("chunked_smollm2.sq", include_str!("../../../../../examples/local/chunked_smollm2.sq")),
    ("vllm_0_32.sq", include_str!("../../../../../lib/vllm_0_32.sq")),
];

/// An example as it is served.
pub(super) fn served(name: &str, sets: &[(&str, &str)]) -> Served {
    let text = |path: &str| {
        let file = Path::new(path).file_name()?;
        TEXTS.iter().find(|(name, _)| file == *name).map(|(_, text)| (*text).to_owned())
    };
    let program = text(name).expect("the demo's programs are built in");
    let (mut sources, _) =
        serq_lang::load(Some(name), &program, &mut |path| text(path).ok_or_else(|| "not built in".into()));
    let settings = Settings {
        sets: sets.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        horizon: Some(f64::MAX),
        warmup: Some(0.0),
        served: true,
        ..Settings::default()
    };
    let program = serq_lang::compile(&mut sources, &settings).0.expect("the demo's programs are right");
    Served::new(program).expect("the demo's programs can be served")
}
