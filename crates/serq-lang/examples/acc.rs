use serq_lang::diagnostic::{Severity, Style, render};
fn main() {
    let v: serde_json::Value = serde_json::from_str(&std::fs::read_to_string("tests/cases/acceptance.json").unwrap()).unwrap();
    let mut bad = 0;
    let cases = v.as_object().unwrap().values().find_map(|x| x.as_array()).unwrap();
    for c in cases {
        let (mut s, _) = serq_lang::load(None, c["source"].as_str().unwrap(), &mut |_| Err(String::new()));
        let (p, d) = serq_lang::compile(&mut s, &Default::default());
        let want = c["outcome"].as_str().unwrap();
        let got = if p.is_some() { "accepted" } else { "refused" };
        let pos: Vec<String> = d.iter().filter(|d| d.severity == Severity::Error).map(|d| d.span.map_or("-".into(), |x| { let (l, c) = s.line_column(x); format!("{l}:{c}") })).collect();
        let wp = c["position"].as_str();
        let ok = want == got && wp.is_none_or(|w| pos.iter().any(|p| p == w)) ;
        if !ok || (want == "refused" && wp.is_some() && pos[0] != wp.unwrap()) || pos.len() > 1 {
            bad += 1;
            println!("== {} want {want} {wp:?} got {got} {pos:?} ok={ok}\n{}", c["title"], render(&s, &d, Style::Plain));
        }
    }
    println!("{bad} differ of {}", cases.len());
}
