//! Six requests, a decoder with room for one, a prefiller with room for two: the story told
//! in the headers of `examples/pd-disaggregation/decoder_full*.sq`, moment by moment.
//!
//! With leases the prefiller stops once the decoder is full and two prompts wait to be
//! read. With a store between them it computes all six prompts without a pause.

use std::fs;
use std::path::Path;

use serq_ir::Program;
use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Outcome, simulate};

/// A run with everything recorded.
struct Story {
    program: Program,
    outcome: Outcome,
}

impl Story {
    fn of(file: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pd-disaggregation");
        let path = folder.join(file);
        let text = fs::read_to_string(&path).expect("the example can be read");
        let (mut sources, found) = load(path.to_str(), &text, &mut |_| Err("it uses nothing".into()));
        let (program, more) = compile(&mut sources, &Settings::default());
        assert_eq!((found, more), (vec![], vec![]));
        let program = program.expect("there is nothing wrong with it");
        let options = Options { record: true, ..Options::default() };
        let outcome = simulate(&program, None, &options, &mut |_, _| true).expect("it runs");
        Self { program, outcome }
    }

    /// The values of an observation in the order of the requests.
    fn observed(&self, name: &str) -> Vec<f64> {
        let at = self.program.observes.iter().position(|observe| observe == name).expect("it is observed");
        let mut samples: Vec<_> = self.outcome.samples[at].iter().collect();
        samples.sort_by_key(|sample| sample.session);
        samples.iter().map(|sample| sample.value).collect()
    }

    /// When a gauge changed, and to what.
    fn gauge(&self, name: &str) -> &[(f64, f64)] {
        let at = self.program.gauges.iter().position(|gauge| gauge.name == name).expect("it is a gauge");
        &self.outcome.gauge_points[at]
    }
}

#[test]
fn a_full_decoder_stops_the_prefiller_that_leases() {
    let story = Story::of("decoder_full.sq");
    // Three prompts without a pause; then one for every request the decoder finishes.
    assert_eq!(story.observed("prefilled"), [1.0, 2.0, 3.0, 9.0, 15.0, 21.0]);
    assert_eq!(story.observed("done"), [7.0, 13.0, 19.0, 25.0, 31.0, 37.0]);
    // The first is read at once, the second waits for the decoder (2 to 7), the others
    // wait for the one before them, too.
    assert_eq!(story.observed("lease"), [1.0, 6.0, 11.0, 11.0, 11.0, 11.0]);
    // Between 2 and 26 the prefiller is full: with one prompt in work and one leased up to
    // 3, then with two leased, for a moment at a time with one more in work.
    assert_eq!(story.gauge("prefiller_memory"), [(0.0, 10.0), (1.0, 20.0), (26.0, 10.0), (32.0, 0.0)],);
    assert_eq!(story.gauge("decoder_memory").iter().map(|point| point.1).fold(0.0, f64::max), 14.0);
}

#[test]
fn a_full_decoder_costs_the_prefiller_nothing_when_it_stores_and_forwards() {
    let story = Story::of("decoder_full_store_and_forward.sq");
    assert_eq!(story.observed("prefilled"), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(story.observed("done"), [7.0, 12.0, 17.0, 22.0, 27.0, 32.0]);
    assert_eq!(story.gauge("prefiller_memory"), [(0.0, 10.0), (1.0, 20.0), (6.0, 10.0), (7.0, 0.0)],);
    // Nothing but the end of the work stops the store from growing.
    assert_eq!(story.gauge("store_waiting").iter().map(|point| point.1).fold(0.0, f64::max), 4.0,);
}
