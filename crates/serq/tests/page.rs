//! `--report out.html`: the page needs nothing else, says what the report says, and is the same
//! for the same run.

mod binary;

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use binary::serq;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

fn file(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("page");
    fs::create_dir_all(&folder).unwrap();
    folder.join(name).to_str().unwrap().to_owned()
}

/// What the command prints, and the page.
fn page(name: &str, arguments: &[&str]) -> (String, String) {
    let path = file(name);
    let arguments = [arguments, &["--report", &path]].concat();
    let (status, out, err) = serq(&arguments);
    assert_eq!((status, &err[..]), (0, ""), "{arguments:?}");
    (out, fs::read_to_string(path).unwrap())
}

fn pull() -> String {
    format!("{EXAMPLES}/pd-disaggregation/llmd_nixl_pull.sq")
}

/// Every picture is XML, the whole fetches nothing and runs nothing, and elements are closed.
fn check(page: &str) -> usize {
    assert!(page.starts_with("<!DOCTYPE html>"));
    let mut pictures = 0;
    let mut rest = page;
    while let Some(start) = rest.find("<svg") {
        let end = start + rest[start..].find("</svg>").expect("a picture ends") + "</svg>".len();
        roxmltree::Document::parse(&rest[start..end]).unwrap_or_else(|error| panic!("{error}: {}", &rest[start..end]));
        pictures += 1;
        rest = &rest[end..];
    }
    let without_names = page.replace("http://www.w3.org/2000/svg", "");
    for foreign in ["http:", "https:", "<script", "<link", "<img", "<iframe", "@import", "url(", "src=", "NaN"] {
        assert!(!without_names.contains(foreign), "{foreign}");
    }
    for element in ["html", "body", "main", "section", "div", "table", "tr", "td", "figure", "span", "h2", "ul"] {
        let (open, closed) = (format!("<{element}"), format!("</{element}>"));
        let opened = page
            .match_indices(&open)
            .filter(|(at, _)| page[at + open.len()..].starts_with(|next: char| next == '>' || next.is_whitespace()));
        assert_eq!(opened.count(), page.matches(&closed).count(), "{element}");
    }
    pictures
}

/// The cells of the table row that begins with a name.
fn row(page: &str, name: &str) -> Vec<String> {
    let start = format!("<tr><td>{name}</td>");
    let from = page.find(&start).unwrap_or_else(|| panic!("there is a row {name}"));
    let row = &page[from..from + page[from..].find("</tr>").unwrap()];
    row.split("</td>").map(|cell| cell.rsplit('>').next().unwrap().to_owned()).collect()
}

#[test]
fn a_run_with_prefill_and_decode() {
    let settings = ["--horizon", "200", "--warmup", "20", "--slo", "ttft=0.05", "--slo", "response=0.15"];
    let (out, html) = page("pull.html", &[&["run", &pull(), "--json"], &settings[..]].concat());
    // The deployment, seven spreads at most and four instances of up to four curves.
    let pictures = check(&html);
    assert!((15..=24).contains(&pictures), "{pictures}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let observe = |name: &str, figure: &str| report["observes"][name][figure].as_f64().unwrap();
    let ttft = row(&html, "ttft");
    assert!((ttft[1].parse::<f64>().unwrap() / observe("ttft", "mean") - 1.0).abs() < 0.01, "{ttft:?}");
    assert_eq!(ttft[7], format!("{}", observe("ttft", "count")));
    for part in ["prefill queue", "prefill", "hop", "transfer", "first step"] {
        let told = report["ttft"]["parts"][part.replace(' ', "_")]["mean"].as_f64().unwrap();
        let shown = row(&html, part)[1].parse::<f64>().unwrap();
        assert!((shown / told - 1.0).abs() < 0.06, "{part}: {shown}, not {told}");
    }
    for said in ["What made ttft late", "What made response late", ">P[0]<", ">D[1]<", "P.nic", "memory in use"] {
        assert!(html.contains(said), "{said}");
    }
}

#[test]
fn the_same_run_the_same_page() {
    let settings = ["run", &pull(), "--horizon", "60", "--warmup", "0", "--slo", "ttft=0.05"];
    let (first_out, first) = page("same.html", &settings);
    let (second_out, second) = page("same.html", &settings);
    assert!(first == second && first_out == second_out);
    let (_, single) = page("single.html", &[&settings[..], &["--no-leap"]].concat());
    assert!(first == single, "leaps change nothing");
    let (status, without, _) = serq(&settings);
    assert_eq!((status, without), (0, first_out), "the text is the same without a page");
}

#[test]
fn many_seeds_have_the_first_ones_page() {
    let settings = ["--horizon", "60", "--warmup", "0", "--slo", "ttft=0.05"];
    let (_, one) = page("one.html", &[&["run", &pull(), "--seed", "3"], &settings[..]].concat());
    let (_, many) = page("many_seeds.html", &[&["run", &pull(), "--seeds", "3..5"], &settings[..]].concat());
    check(&many);
    let from = many.find("Over seeds 3..5").expect("a section of its own");
    let end = from + many[from..].find("</section>").unwrap() + "</section>".len();
    let start = many[..from].rfind("<section>").unwrap();
    for said in ["ttft: transfer", "within the limit: ttft", "response"] {
        assert!(many[start..end].contains(said), "{said}");
    }
    assert!(format!("{}{}", &many[..start], &many[end..]) == one, "the rest is the page of seed 3");
}

/// The six of `decoder_full.sq`, done at 7, 13, 19 | 25, 31, 37. Those within 20 waited 0, 1 and 2
/// for the prefiller, and 0, 5 and 10 for the decoder; the late ones 8, 14 and 20, and 10 each.
/// So above the medians (1 and 5) the first late one is 7 and 5, the others 13 and 19, and 5.
#[test]
fn late_requests_have_a_cause() {
    let example = format!("{EXAMPLES}/pd-disaggregation/decoder_full.sq");
    let (_, html) = page("late.html", &["run", &example, "--slo", "done=20"]);
    check(&html);
    let from = html.find("What made done late").expect("some are late");
    let section = &html[from..from + html[from..].find("</section>").unwrap()];
    assert!(section.contains("3 samples of 6 above 20,"), "{section}");
    assert!(section.contains("prefill queue <b>100 %</b>"), "{section}");
}

#[test]
fn every_example_has_a_page() {
    let mut examples = 0;
    for folder in fs::read_dir(EXAMPLES).unwrap() {
        for example in fs::read_dir(folder.unwrap().path()).unwrap() {
            let path = example.unwrap().path();
            if path.extension().is_some_and(|end| end == "sq") {
                let path = path.to_str().unwrap();
                let (_, html) = page("example.html", &["run", path, "--horizon", "60", "--warmup", "0"]);
                assert!(check(&html) >= 2, "{path}");
                examples += 1;
            }
        }
    }
    assert!(examples > 10);
}

/// The end is not known before: it is at some 7 of the 10 000 the run may last.
#[test]
fn a_run_that_ends_with_its_last_arrival() {
    let settings = ["run", &pull(), "--arrivals", "5", "--horizon", "10000", "--warmup", "0"];
    let (out, html) = page("arrivals.html", &settings);
    assert!(out.contains(" of 10 000"), "{out}");
    check(&html);
    // Curves of a hundred points and more have that many corners.
    let longest = html.split("points=\"").map(|points| points.split('"').next().unwrap().split(' ').count()).max();
    assert!(longest.unwrap() > 100, "{longest:?}");
}

#[test]
fn many_instances_are_one_mean_one() {
    let settings = ["run", &pull(), "--horizon", "20", "--warmup", "0", "--set", "NP=9", "--set", "ND=20"];
    let (_, html) = page("many.html", &settings);
    assert!(check(&html) < 20);
    assert!(html.contains("P, mean of 9") && html.contains("D, mean of 20"));
}

#[test]
fn names_are_no_markup() {
    let program = file("<b>&amp;.sq");
    fs::write(
        &program,
        "stage desk : fifo; session { desk (1); end; } workload { arrive batch(3); } run { horizon 9; }",
    )
    .unwrap();
    let text = fs::read_to_string(&program).unwrap().replace("desk (1)", "run desk (1)");
    fs::write(&program, text).unwrap();
    let (_, html) = page("names.html", &["run", &program]);
    check(&html);
    assert!(html.contains("&lt;b&gt;&amp;amp;") && !html.contains("<b>&"));
}

#[test]
fn a_sweep() {
    let arguments = [
        "sweep",
        &pull(),
        "--horizon",
        "40",
        "--warmup",
        "0",
        "--seeds",
        "1..3",
        "--sweep",
        "thr=1,512,inf",
        "--sweep",
        "Lambda=0.6,1.2",
        "--baseline",
        "thr=1",
        "--show",
        "ttft,ttft.prefill,remote",
    ];
    let (out, html) = page("sweep.html", &arguments);
    // A chart a figure, and the deployment.
    assert_eq!(check(&html), 4);
    assert!(html.contains("Lambda=0.6") && html.contains("Against thr=1"));
    let (_, again) = page("sweep.html", &[&arguments[..], &["--jobs", "1"]].concat());
    assert!(html == again);
    // The table's first row is the text's.
    let shown = row(&html, "1");
    let told = out.lines().find(|line| line.trim_start().starts_with("1 ")).unwrap();
    assert!(told.contains(&shown[2]), "{told} has {shown:?}");
}

#[test]
fn a_wrong_name_is_told_before_the_run() {
    for command in [&["run", &pull()][..], &["sweep", &pull(), "--sweep", "thr=1,2"][..]] {
        let (status, out, err) = serq(&[command, &["--report", "out.pdf"]].concat());
        assert_eq!((status, &out[..]), (2, ""));
        assert!(err.starts_with("error: --report out.pdf: the page is HTML: write out.html\n"), "{err}");
        let (status, _, err) = serq(&[command, &["--report", "no/such/folder/out.html"]].concat());
        assert_eq!((status, &err[..]), (1, "error: cannot write no/such/folder/out.html: there is no such file\n"));
    }
}
