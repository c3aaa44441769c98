//! Every name a program gives becomes another one.
//!
//! Keywords are contextual, so a word's place decides what it is. Instead of deciding,
//! words the language uses anywhere are left alone: its keywords, functions, laws, built-in
//! attributes and context variables, and the stage names the serving forms look for
//! (`prefill`, `decode`, `tool`, `link`, `transfer`). Whatever other word stands in a
//! program that links is a name the program itself gives (or a library of it), and is
//! replaced wherever it stands. One spelling becomes one other spelling, so what shared a
//! name (an attribute and an observation, two parameters) still does.

use std::collections::BTreeMap;
use std::fs;

use serq_ir::Program;
use serq_lang::lexer::{TokenKind, lex};
use serq_lang::{Settings, compile, load};

/// Every word that means something by itself somewhere.
const WORDS: &[&str] = &[
    // Items and options.
    "let",
    "use",
    "def",
    "pool",
    "stage",
    "queue",
    "pull",
    "push",
    "latency",
    "share",
    "workload",
    "session",
    "server",
    "gauge",
    "claim",
    "run",
    "cap",
    "block",
    "evict",
    "preempt",
    "admit",
    "via",
    "spill",
    "prefix",
    "prefixes",
    "when",
    "by",
    "lru",
    "none",
    "lifo",
    "fifo",
    "ps",
    "delay",
    "step",
    "budget",
    "cost",
    "chunk",
    "memory",
    "serve",
    "nic",
    "admission",
    "first",
    "exclusive",
    "only",
    "maxmin",
    "bottleneck",
    "gateway",
    "route",
    "arrive",
    "poisson",
    "bursts",
    "for",
    "repeat",
    "renewal",
    "closed",
    "batch",
    "trace",
    "ordered",
    "hidden",
    "init",
    "turn",
    "horizon",
    "warmup",
    "seed",
    "arrivals",
    "self",
    // Statements.
    "set",
    "observe",
    "mark",
    "end",
    "request",
    "hold",
    "reserve",
    "reuse",
    "at",
    "cache",
    "lease",
    "renewed",
    "grow",
    "load",
    "drop",
    "release",
    "growing",
    "prefill",
    "decode",
    "tool",
    "link",
    "transfer",
    "from",
    "to",
    "on",
    "branch",
    "with",
    "else",
    "loop",
    "choose",
    "in",
    "fork",
    "join",
    "given",
    "every",
    "some",
    "iteration",
    "of",
    // Expressions.
    "inf",
    "min",
    "max",
    "sum",
    "abs",
    "floor",
    "ceil",
    "sqrt",
    "exp",
    "ln",
    "pow",
    "used",
    "free",
    "holders",
    "queued",
    "cachedin",
    "blocksize",
    "busy",
    "work",
    "budget_left",
    "est_lambda",
    "est_rho",
    "est_wait",
    "price",
    "det",
    "uniform",
    "erlang",
    "h2",
    "bernoulli",
    "serial",
    "turn_no",
    "cached",
    "computed",
    "reached",
    "new",
    "out",
    "think",
    "more",
    "forced",
    "now",
    "waited",
    "size",
    "age",
    "last",
    "waiting",
    "position",
    "decoding",
    "present",
    "residents",
    "decoders",
    "kv_decode",
    "kv_prefill",
    "remaining",
    "tokens",
    "prefilled",
    "attention",
    "total",
    "count",
    "largest",
    "smallest",
    "prefix_total",
];

/// Old names and new ones.
#[derive(Clone, Debug, Default)]
pub struct Renaming {
    new: BTreeMap<String, String>,
}

impl Renaming {
    /// A text with every name replaced.
    pub fn text(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() * 2);
        let mut done = 0;
        for token in lex(0, text).tokens {
            let range = token.span.start as usize..token.span.end as usize;
            let word = &text[range.clone()];
            if token.kind == TokenKind::Name && !WORDS.contains(&word) {
                out.push_str(&text[done..range.start]);
                out.push_str(self.name(word));
                done = range.end;
            }
        }
        out.push_str(&text[done..]);
        out
    }

    /// A new name: it sorts the other way than the old ones came, begins with any letter a
    /// name may begin with, and some begin with a word of the language.
    fn name(&mut self, word: &str) -> &str {
        let k = self.new.len();
        self.new.entry(word.to_owned()).or_insert_with(|| {
            let begin = ["λ", "_", "hold_", "Z", "now", "é", "pool"][k % 7];
            format!("{begin}{}", 9_999 - k)
        })
    }

    /// Names replaced.
    pub fn count(&self) -> usize {
        self.new.len()
    }

    /// `pool D.kv[1]` with the new names of `D` and `kv`.
    pub fn translate(&self, of: &str) -> String {
        let Some((kind, name)) = of.split_once(' ') else { return of.to_owned() };
        let (name, member) = name.find('[').map_or((name, ""), |at| name.split_at(at));
        let parts: Vec<&str> = name.split('.').map(|part| self.new.get(part).map_or(part, String::as_str)).collect();
        format!("{kind} {}{member}", parts.join("."))
    }

    /// Names the program gives that stayed.
    pub fn kept(&self, program: &Program) -> Vec<String> {
        super::given_names(program)
            .flat_map(|name| name.split('.'))
            .filter(|part| !self.new.contains_key(*part))
            .map(str::to_owned)
            .collect()
    }
}

/// Links a program with every name replaced, in its libraries too.
///
/// # Errors
///
/// The diagnostics.
pub fn link(path: &str, text: &str, settings: &Settings, names: &mut Renaming) -> Result<Program, String> {
    let text = names.text(text);
    let mut read = |path: &str| fs::read_to_string(path).map(|library| names.text(&library)).map_err(|e| e.to_string());
    let (mut sources, mut diagnostics) = load(Some(path), &text, &mut read);
    let sets = settings.sets.iter().map(|(name, value)| (names.name(name).to_owned(), value.clone())).collect();
    let (program, more) = compile(&mut sources, &Settings { sets, ..settings.clone() });
    diagnostics.extend(more);
    program.ok_or_else(|| format!("{path} with other names does not load: {diagnostics:#?}\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_language_stay_and_names_are_replaced_everywhere() {
        let mut names = Renaming::default();
        let text = names.text("pool kv { cap 4; } stage tool : fifo; session { hold kv (1) { tool 2; } } // kv\n");
        assert_eq!(text, "pool λ9999 { cap 4; } stage tool : fifo; session { hold λ9999 (1) { tool 2; } } // kv\n");
        assert_eq!(names.translate("pool D.kv[1]"), "pool D.λ9999[1]");
    }
}
