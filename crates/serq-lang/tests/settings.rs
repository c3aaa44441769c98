//! What a caller changes without touching the text, and files that `use` files.

use std::collections::BTreeMap;

use serq_ir as ir;
use serq_lang::diagnostic::{Style, render};
use serq_lang::{Settings, compile, load};

const PROGRAM: &str = "
let N = 2;
let rate = 1;
def cost(n) = n * 2;
pool kv[N] { cap 10 * N; }
stage disk : ps(rate);
workload { arrive poisson(rate); }
session { run disk (cost(serial)); }
run { horizon 10; seed 3; }
";

/// The program, or the short form of what is said.
fn with(settings: &Settings) -> Result<ir::Program, String> {
    let (mut sources, _) = load(None, PROGRAM, &mut |_| unreachable!());
    let (program, said) = compile(&mut sources, settings);
    program.ok_or_else(|| render(&sources, &said, Style::Short))
}

fn sets(list: &[(&str, &str)]) -> Settings {
    Settings { sets: list.iter().map(|(n, e)| (n.to_string(), e.to_string())).collect(), ..Settings::default() }
}

#[test]
fn a_let_is_replaced_even_where_it_sizes_a_family() {
    let program = with(&sets(&[("N", "1"), ("rate", "max(1, 2) / 4"), ("N", "3")])).unwrap();
    assert_eq!(program.pools[0].size, Some(3));
    assert_eq!(program.pools[0].cap.0, 30.0);
    assert_eq!(program.constants[1].value.0, 0.5);
    assert_eq!(program.workload.arrive, ir::Arrive::Poisson(0.5.into()));
}

#[test]
fn a_replacement_that_can_not_be_says_why_and_where() {
    let refused = |list: &[(&str, &str)], wanted: &str| {
        let said = with(&sets(list)).unwrap_err();
        assert!(said.contains(wanted), "{said}");
    };
    refused(&[("Nn", "1")], "no constant is named `Nn`");
    refused(&[("rate", "N + 1")], "--set rate:1:1: error[not-constant]: `N` is not a constant");
    refused(&[("rate", "~exp(1)")], "--set rate:1:2: error[draw-not-allowed]");
    refused(&[("rate", "1 +")], "--set rate:1:4: error[");
    refused(&[("rate", "0 / 0")], "--set rate:1:1: error[bad-constant]");
    refused(&[("N", "0")], "error[bad-constant]: a family has 1 to 65536 members, not 0");
    refused(&[("rate", "-1")], "error[bad-constant]");
}

#[test]
fn a_definition_is_replaced() {
    let settings = Settings { defs: vec![("cost".into(), "n + 7".into())], ..Settings::default() };
    let program = with(&settings).unwrap();
    let ir::StmtKind::Run(run) = &program.session[0].kind else { panic!() };
    let seven = ir::Expr::Number(7.0.into());
    let serial = ir::Expr::Attribute(ir::BuiltIn::Serial as u32);
    assert_eq!(run.work, ir::Expr::Binary(ir::Binary::Add, Box::new(serial), Box::new(seven)));
    let unknown = Settings { defs: vec![("costs".into(), "1".into())], ..Settings::default() };
    assert!(with(&unknown).unwrap_err().contains("no definition of a value is named `costs`"));
}

#[test]
fn run_settings_of_the_caller_win() {
    let settings = Settings {
        horizon: Some(20.0),
        warmup: Some(5.0),
        seed: Some(u64::MAX),
        arrivals: Some(9),
        ..Settings::default()
    };
    let run = with(&settings).unwrap().run;
    assert_eq!((run.horizon.0, run.warmup.0, run.seed, run.arrivals), (20.0, 5.0, u64::MAX, Some(9)));
    let late = Settings { warmup: Some(10.0), ..Settings::default() };
    assert!(with(&late).unwrap_err().contains("error[bad-run]: the warm-up of 10 does not end before"));
    let never = Settings { horizon: Some(f64::NAN), ..Settings::default() };
    assert!(with(&never).unwrap_err().contains("a `horizon` of NaN is not positive and finite"));
}

/// Links `main.sq` of a folder of files.
fn files(list: &[(&str, &str)]) -> Result<ir::Program, String> {
    let files: BTreeMap<&str, &str> = list.iter().copied().collect();
    let mut read = |path: &str| files.get(path).map(|t| t.to_string()).ok_or_else(|| "no such file".to_string());
    let (mut sources, mut said) = load(Some("main.sq"), files["main.sq"], &mut read);
    let settings = Settings { horizon: Some(1.0), ..Settings::default() };
    let (program, more) = compile(&mut sources, &settings);
    said.extend(more);
    program.ok_or_else(|| render(&sources, &said, Style::Short))
}

#[test]
fn files_use_files_once_each() {
    let program = files(&[
        ("main.sq", "use \"lib/a.sq\"; use \"lib/b.sq\"; use \"lib/./a.sq\"; session { observe n = a(b(1)); }"),
        ("lib/a.sq", "use \"b.sq\"; def a(x) = b(x) + 1;"),
        ("lib/b.sq", "use \"a.sq\"; def b(x) = x * 2;"),
        ("lib/./a.sq", "def never(x) = x;"),
    ]);
    let program = program.unwrap();
    assert_eq!(program.name, "main");
    let ir::StmtKind::Observe { value, .. } = &program.session[0].kind else { panic!() };
    assert_eq!(*value, ir::Expr::Number(5.0.into()));
}

#[test]
fn files_that_are_missing_or_hold_more_than_definitions_are_refused() {
    let said = files(&[("main.sq", "use \"no.sq\"; session { end; }")]).unwrap_err();
    assert_eq!(said.matches("error[").count(), 1, "{said}");
    assert!(said.contains("main.sq:1:5: error[use]: `no.sq` can't be read: no such file"), "{said}");
    let said =
        files(&[("main.sq", "use \"lib.sq\"; session { end; }"), ("lib.sq", "def f(x) = x;\nlet n = 1;")]).unwrap_err();
    assert!(said.contains("lib.sq:2:5: error[use]"), "{said}");
}

/// Texts by path, the first of them the program's.
fn compiled(files: &[(&str, &str)], settings: &Settings) -> Result<ir::Program, String> {
    let texts: BTreeMap<&str, &str> = files.iter().copied().collect();
    let mut read = |path: &str| texts.get(path).map(|text| (*text).to_owned()).ok_or_else(|| "not there".to_owned());
    let (mut sources, mut said) = load(Some(files[0].0), files[0].1, &mut read);
    let (program, more) = compile(&mut sources, settings);
    said.extend(more);
    program.ok_or_else(|| render(&sources, &said, Style::Short))
}

#[test]
fn a_variant_is_the_program_with_other_numbers() {
    let files = [
        ("a/b/variant.sq", "vary \"../middle.sq\"; let N = 1 + 2;"),
        ("a/b/../middle.sq", "vary \"base/program.sq\"; let N = 9; let rates = [4, 5]; run { horizon 7; }"),
        ("a/b/../base/program.sq", BASE),
    ];
    let program = compiled(&files, &Settings::default()).unwrap();
    assert_eq!(program.name, "variant");
    assert_eq!(program.pools[0].size, Some(3));
    assert_eq!(program.workload.arrive, ir::Arrive::Poisson(9.0.into()));
    assert_eq!(program.workload.trace.as_ref().unwrap().path, "../base/rows.csv");
    assert_eq!((program.run.horizon.0, program.run.seed), (7.0, 1));
    let set = compiled(&files, &sets(&[("N", "5")])).unwrap();
    assert_eq!(set.pools[0].size, Some(5));
}

const BASE: &str = "
let N = 2;
let rates = [1, 2, 3];
pool kv[N] { cap 10; }
workload { arrive poisson(sum k in (len(rates)) (rates[k])); trace \"rows.csv\"; }
session { }
run { horizon 10; seed 3; }
";

#[test]
fn a_variant_that_can_not_be_says_why_and_where() {
    let refused = |text: &str, wanted: &str| {
        let said = compiled(&[("v.sq", text), ("base.sq", BASE), ("w.sq", "vary \"v.sq\";")], &Settings::default())
            .unwrap_err();
        assert!(said.contains(wanted), "{said}");
    };
    refused("vary \"none.sq\";", "v.sq:1:6: error[use]: `none.sq` can't be read: not there");
    refused("vary \"v.sq\";", "v.sq:1:6: error[vary]: `v.sq` is a variant of itself");
    refused("vary \"w.sq\";", "w.sq:1:6: error[vary]: `v.sq` is a variant of itself");
    refused("vary \"base.sq\"; let M = 2;", "v.sq:1:21: error[unknown-setting]: no constant is named `M`");
    refused("vary \"base.sq\"; pool p { }", "v.sq:1:22: error[vary]: a variant says other numbers and no more");
    refused("vary \"base.sq\"; vary \"base.sq\";", "v.sq:1:17: error[vary]");
    refused("vary \"base.sq\"; let N = rates[0];", "v.sq:1:25: error[");
    let text = load(None, "vary \"base.sq\";", &mut |_| unreachable!());
    let said = render(&text.0, &compile(&mut text.0.clone(), &Settings::default()).1, Style::Short);
    assert!(said.contains("a program given as text can't `vary` a file"), "{said}");
}
