use serq_lang::diagnostic::{Severity, Style, render};
fn main() {
    let mut ir = false; let mut plain = false;
    for a in std::env::args().skip(1) {
        if a == "--ir" { ir = true; continue; }
        if a == "--plain" { plain = true; continue; }
        let text = std::fs::read_to_string(&a).unwrap();
        let (mut s, mut d) = serq_lang::load(Some(&a), &text, &mut |p| std::fs::read_to_string(p).map_err(|e| e.to_string()));
        let t = std::time::Instant::now();
        let (p, more) = serq_lang::compile(&mut s, &Default::default());
        d.extend(more);
        let errors = d.iter().filter(|d| d.severity == Severity::Error).count();
        println!("{a}: {} errors={errors} {:?}", if p.is_some() { "LINKED" } else { "REFUSED" }, t.elapsed());
        print!("{}", render(&s, &d, Style::Plain));
        if let Some(p) = p {
            if let Err(e) = serq_ir::verify::verify(&p) { println!("VERIFY {e}"); }
            if plain { println!("{}", serq_lang::unsugar(&p)); }
            if ir { println!("{}", serq_ir::json::print(&p)); }
        }
    }
}
