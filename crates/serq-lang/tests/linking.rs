//! Programs that link: each passes verification, reads back from JSON, and printed
//! without sugar is the same program again.

use std::path::{Path, PathBuf};

use serq_ir as ir;
use serq_lang::diagnostic::{Style, render};
use serq_lang::{Settings, compile, load, unsugar};

fn link(path: Option<&str>, text: &str) -> ir::Program {
    let read = &mut |path: &str| std::fs::read_to_string(path).map_err(|e| e.to_string());
    let (mut sources, mut said) = load(path, text, read);
    let settings = Settings { horizon: Some(1e6), ..Settings::default() };
    let (program, more) = compile(&mut sources, &settings);
    said.extend(more);
    program.unwrap_or_else(|| panic!("{}", render(&sources, &said, Style::Plain)))
}

fn programs() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    let mut folders =
        vec![root.join("tests/sim"), root.join("tests/pd"), root.join("tests/cases"), root.join("examples")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "sq") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Names without dots and no places: what printing and linking again may change.
fn bare(mut program: ir::Program) -> String {
    fn block(block: &mut ir::Block) {
        for stmt in block {
            stmt.at = ir::Place::default();
            match &mut stmt.kind {
                ir::StmtKind::Hold(hold) => block_of(&mut hold.body),
                ir::StmtKind::Branch { then, otherwise, .. } => {
                    block_of(then);
                    block_of(otherwise);
                }
                ir::StmtKind::Loop { body } | ir::StmtKind::Shielded { body } | ir::StmtKind::Fork { body } => {
                    block_of(body);
                }
                ir::StmtKind::Run(run) => run.then.iter_mut().for_each(|then| block_of(&mut then.body)),
                _ => {}
            }
        }
    }
    fn block_of(b: &mut ir::Block) {
        block(b);
    }
    program.name = String::new();
    block(&mut program.session);
    block(&mut program.workload.init);
    block(&mut program.workload.turn);
    let names: Vec<String> = program.attributes.iter().map(|a| a.name.replace('.', "_")).collect();
    for attribute in &mut program.attributes {
        attribute.name = attribute.name.replace('.', "_");
    }
    for pool in &mut program.pools {
        pool.name = pool.name.replace('.', "_");
    }
    for stage in &mut program.stages {
        stage.name = stage.name.replace('.', "_");
    }
    // Attributes are numbered by where the text sets them first, which printing moves.
    let mut text = ir::json::print(&program);
    for (k, name) in names.iter().enumerate().rev() {
        text = text.replace(&format!("\"attribute\": {k}\n"), &format!("\"attribute\": \"{name}\"\n"));
        text = text.replace(&format!("\"attribute\": {k},"), &format!("\"attribute\": \"{name}\","));
    }
    let attributes = text.find("\"attributes\"").unwrap();
    let pools = text.find("\"pools\"").unwrap();
    text.replace_range(attributes..pools, "");
    text
}

fn check(path: Option<&str>, text: &str) {
    let program = link(path, text);
    assert_eq!(ir::verify::verify(&program), Ok(()));
    assert_eq!(ir::json::read(&ir::json::print(&program)).as_ref(), Ok(&program), "JSON");
    let plain = unsugar(&program);
    let again = link(None, &plain);
    assert_eq!(bare(again.clone()), bare(program), "{plain}");
    assert_eq!(unsugar(&again).lines().skip(1).collect::<Vec<_>>(), plain.lines().skip(1).collect::<Vec<_>>());
}

#[test]
fn programs_link_and_are_the_same_without_sugar() {
    for path in programs() {
        let path = path.to_str().unwrap();
        println!("{path}");
        check(Some(path), &std::fs::read_to_string(path).unwrap());
    }
}

#[test]
fn a_program_with_everything_is_the_same_without_sugar() {
    check(
        None,
        r"
        let N = 2; let big = 1e300; let tiny = 2e-9;
        def capped(x, m) = min(x, m);
        def both(p, x) { hold p (x) { run disk (x); } cache (x) }
        pool a { cap 10; block 2.5; evict by (-size, age); preempt by (position, -admission); queue by (waited > 3 ? 0 : 1, now); }
        pool b[N] { cap inf; spill a via disk (size * 2) when (age > 1 && !waiting); }
        stage disk : fifo(2);
        stage cpu : ps(present ^ 2 / -(-2));
        stage gpu[N] : step { budget 8 + residents; chunk kv_decode; cost 1 + max(tokens, 2); memory b; serve only (remaining > 0) by (decoding ? 0 : 1, -admission); }
        stage out[2] : ps(10); stage in_[2] : ps(5);
        share bottleneck;
        workload { arrive renewal(~erlang(2, 3)); hidden o; init { set o = ~uniform(1, 2); observe born = now; } turn { set x = -(2 - 3) - (4 - 5); } }
        session {
          turn;
          fork { set x = 2; hold b[1] (x) { run disk (x); } cache (x) lease b[1] (3 + x) renewed x * 2 every 1 / x abandoned (2) }
          choose j in N by (used(b[j]), -j);
          both(a, capped(x > 2 ? 1 : 2, 3));
          hold b[j] (1 + x) reserve (2) reuse (budget_left(gpu[0])) at admission (n = serial + 1, m = n * 2) {
            load b[j] (0);
            grow b[j] (m > 1 ? 1 : 0);
            run gpu[j] prefill (n) growing b[j];
            run out[0], in_[1] (20);
            release b[j];
          } cache (m) lease b[j] (inf)
          drop a;
          join;
          release b[1];
          loop { branch with (0.5) { end; } else { run cpu (price(disk, 1, 2) + est_wait(disk)); } }
        }
        gauge g = max k in N (used(b[k]) / (1 + sum i in 2 (i * k + holders(b[i]))));
        run { horizon 10; warmup 1; seed 7; arrivals 3; }
        ",
    );
}

#[test]
fn every_arrival_law_is_the_same_without_sugar() {
    for law in [
        "none",
        "batch(3)",
        "closed(3)",
        "renewal(2 + ~exp(1))",
        "poisson(1 / 3)",
        "poisson(n) for 600, (0) for 2 * 150, (8) for 1e-3, repeat",
        "poisson(n) for 600, (8) for n",
        "poisson(0) for 600, (8)",
        "bursts(8) for 10, (0) for 50",
        "bursts(8) for 10, (n) for 50, (0.5) for 1",
        "trace",
        "trace(n / 4)",
    ] {
        check(None, &format!("let n = 2; workload {{ arrive {law}; trace \"a.csv\"; }} run {{ horizon 10; }}"));
    }
}

/// Substitution must not take more stack than a test's thread has, nor more time than
/// anybody waits.
#[test]
fn deep_and_wide_substitution_is_refused_in_time() {
    let refuse = |text: &str, code: &str| {
        let (mut sources, _) = load(None, text, &mut |_| unreachable!());
        let settings = Settings { horizon: Some(1e6), ..Settings::default() };
        let (program, said) = compile(&mut sources, &settings);
        assert!(program.is_none());
        assert!(said.iter().any(|d| d.code == code), "{:?}", said.iter().map(|d| d.code).collect::<Vec<_>>());
        assert!(said.len() < 5, "{} findings", said.len());
    };
    // One definition in another, further than anything may nest.
    let mut chain = String::from("def d0(x) = x;\n");
    for k in 1..2000 {
        chain += &format!("def d{k}(x) = (d{0}(x) + 1);\n", k - 1);
    }
    refuse(&(chain + "session { observe n = d1999(serial); }"), "too-deep");
    // Arguments in arguments.
    let mut nest = String::from("stage disk : delay;\ndef s0(x) { run disk (x); }\n");
    for k in 1..2000 {
        nest += &format!("def s{k}(x) {{ s{0}(x + 1); }}\n", k - 1);
    }
    refuse(&(nest + "session { s1999(serial); }"), "too-deep");
    // Twice as much at every line.
    let mut twice = String::from("stage disk : delay;\ndef t0() { run disk (1); }\n");
    for k in 1..60 {
        twice += &format!("def t{k}() {{ t{0}(); t{0}(); }}\n", k - 1);
    }
    refuse(&(twice + "session { t59(); }"), "too-large");
    // Entries in entries.
    let mut calls = String::from("queue Q0 : prefill { serve fifo; prefill (x) { run (x); } }\n");
    for k in 1..60 {
        calls +=
            &format!("queue Q{k} : prefill {{ prefill (x) {{ Q{0}.prefill (x + 1); Q{0}.prefill (x); }} }}\n", k - 1);
    }
    refuse(&(calls + "session { Q59.prefill (serial); }"), "too-large");
}
