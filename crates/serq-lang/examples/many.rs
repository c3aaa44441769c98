use serq_lang::diagnostic::{Severity, Style, render};
use std::io::Read;
fn main() {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).unwrap();
    let v: Vec<String> = serde_json::from_str(&text).unwrap();
    let mut out = Vec::new();
    for c in v {
        let (mut s, _) = serq_lang::load(None, &c, &mut |_| Err(String::new()));
        let (p, d) = serq_lang::compile(&mut s, &Default::default());
        let pos: Vec<String> = d.iter().filter(|d| d.severity == Severity::Error).map(|d| d.span.map_or("-".into(), |x| { let (l, c) = s.line_column(x); format!("{l}:{c}") })).collect();
        let verify = p.as_ref().map(|p| serq_ir::verify::verify(p).err());
        out.push(serde_json::json!({"ok": p.is_some(), "pos": pos, "codes": d.iter().map(|d| d.code).collect::<Vec<_>>(), "text": render(&s, &d, Style::Plain), "verify": verify}));
    }
    println!("{}", serde_json::to_string(&out).unwrap());
}
