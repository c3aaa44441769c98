//! Lists of constants: read like the conditions that would say the same.

use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Outcome, RunError, simulate};

fn run(text: &str) -> Result<Outcome, RunError> {
    let (mut sources, mut said) = load(None, text, &mut |_| Err("no libraries here".into()));
    let (program, more) = compile(&mut sources, &Settings::default());
    said.extend(more);
    let program = program.unwrap_or_else(|| panic!("it does not load: {said:#?}"));
    simulate(&program, None, &Options { record: true, ..Options::default() }, &mut |_, _| true)
}

/// With `SPEED(j)` and `WORK(s)` put in.
const FLEET: &str = "LISTS
    stage pod[3] : fifo;
    workload { arrive closed(7); init { set mine = WORK(serial - 4 * floor(serial / 4)); } }
    session {
      loop {
        choose j in 3 by (queue(pod[j]) / SPEED(j));
        run pod[j] (mine / SPEED(j));
        observe done = now;
        observe where = j;
      }
    }
    gauge speed = sum k in 3 (SPEED(k) * busy(pod[k]));
    gauge slowest = min k in 3 (queue(pod[k]) + SPEED(k));
    run { horizon 60; }";

#[test]
fn an_element_is_what_a_condition_on_its_place_is() {
    let listed = FLEET.replace("LISTS", "let speeds = [1, 2.5, 4]; let works = [3, 1 / 3, 2, 5];");
    let listed = listed.replace("SPEED(", "speeds[(").replace("WORK(", "works[(");
    // The closing bracket of an index: the argument's own parenthesis is kept.
    let listed = close_indices(&listed);
    let written = "def speed_of(k) = k == 0 ? 1 : k == 1 ? 2.5 : 4;
        def work_of(k) = k == 0 ? 3 : k == 1 ? 1 / 3 : k == 2 ? 2 : 5;";
    let conditions = FLEET.replace("LISTS", written).replace("SPEED(", "speed_of(").replace("WORK(", "work_of(");
    let (listed, conditions) = (run(&listed).expect("it runs"), run(&conditions).expect("it runs"));
    assert!(listed.samples[0].len() > 50);
    for (a, b) in listed.samples.iter().zip(&conditions.samples) {
        assert!(
            a.iter()
                .map(|s| (s.time.to_bits(), s.value.to_bits()))
                .eq(b.iter().map(|s| (s.time.to_bits(), s.value.to_bits())))
        );
    }
    assert_eq!(listed.gauge_points, conditions.gauge_points);
}

/// `speeds[(x)` becomes `speeds[(x)]`.
fn close_indices(text: &str) -> String {
    let mut closed = String::new();
    let mut depth: Vec<u32> = Vec::new();
    let mut before = ' ';
    for c in text.chars() {
        closed.push(c);
        match c {
            '(' if before == '[' => depth.push(1),
            '(' => depth.iter_mut().for_each(|d| *d += 1),
            ')' => {
                depth.iter_mut().for_each(|d| *d -= 1);
                if depth.last() == Some(&0) {
                    depth.pop();
                    closed.push(']');
                }
            }
            _ => {}
        }
        before = c;
    }
    closed
}

#[test]
fn a_place_a_list_does_not_have_stops_the_run_where_it_is_read() {
    for (index, said) in [("serial", "index 2 of a"), ("serial / 2", "index 0.5 of a"), ("serial - 1", "index -1 of a")]
    {
        let text = format!(
            "let a = [1, 2];\nworkload {{ arrive batch(3); }}\nsession {{\n  observe x = a[{index}];\n}}\nrun {{ horizon 1; }}"
        );
        let error = run(&text).expect_err("it stops");
        assert_eq!(error.message, format!("{said}: its elements are 0 to 1"));
        assert_eq!(error.at.map(|at| at.line), Some(4));
    }
}
