//! Declarations: everything that stands outside of statements.

use super::statement::STATEMENTS;
use super::{Parser, Place, Read, Stop};
use crate::ast::{
    Def, DefBody, Entry, File, Item, Let, Policy, Pool, PoolOption, PoolOptionKind, Preempt, Queue, QueueItem,
    Relation, Run, RunField, RunFieldKind, ServeRule, SessionBlock, Share, Stage, StageKind, StageKindKind, StepOption,
    StepOptionKind, Use, Workload, WorkloadItem,
};
use crate::diagnostic::Diagnostic;
use crate::lexer::TokenKind;
use crate::source::Span;

const ITEMS: &[&str] =
    &["let", "use", "vary", "def", "pool", "stage", "queue", "share", "workload", "session", "server", "gauge", "run"];
const POOL_OPTIONS: &[&str] = &["cap", "block", "evict", "preempt", "queue", "admit", "share", "spill"];
const STAGE_KINDS: &[&str] = &["fifo", "ps", "delay", "step"];
const STEP_OPTIONS: &[&str] = &["budget", "cost", "chunk", "memory", "serve", "asynchronous"];
const WORKLOAD_ITEMS: &[&str] = &["arrive", "trace", "hidden", "prefix", "init", "turn", "request", "session"];
const RUN_FIELDS: &[&str] = &["horizon", "warmup", "seed", "arrivals"];
const POLICIES: &[&str] = &["maxmin", "bottleneck"];

impl Parser<'_> {
    pub(super) fn program(&mut self) -> File {
        let mut items = Vec::new();
        while self.kind() != TokenKind::End {
            let first = self.at;
            self.layout.units.push(first);
            match self.item() {
                Ok(item) => items.push(item),
                Err(Stop) => self.skip_item(Place::Top),
            }
            if self.at == first {
                self.advance();
            }
        }
        File { items }
    }

    fn item(&mut self) -> Read<Item> {
        let first = self.at;
        let keyword = self.token().span;
        let Some(word) = self.word() else {
            return Err(self.no_item());
        };
        if matches!(self.word_ahead(1), Some("pull" | "push")) && self.kind_ahead(2) == TokenKind::Name {
            return self.relation().map(Item::Relation);
        }
        if !ITEMS.contains(&word) {
            if matches!(self.word_ahead(1), Some("pull" | "push")) {
                return self.relation().map(Item::Relation);
            }
            return Err(self.no_item());
        }
        self.advance();
        Ok(match word {
            "let" => Item::Let(self.named_value(first, "the constant's name")?),
            "gauge" => Item::Gauge(self.named_value(first, "the gauge's name")?),
            "use" | "vary" => {
                let uses = word == "use";
                let (path, path_span) = self.path()?;
                self.semicolon(ITEMS)?;
                let file = Use { path, path_span, span: self.span_from(first) };
                if uses { Item::Use(file) } else { Item::Vary(file) }
            }
            "def" => {
                let name = self.name("the definition's name")?;
                self.layout.hugging.push(self.at);
                let parameters = self.parameters()?;
                let body = if self.eat(TokenKind::Assign) {
                    DefBody::Expr(self.value(ITEMS)?)
                } else if self.kind() == TokenKind::BraceOpen {
                    DefBody::Block(self.block()?)
                } else {
                    return Err(self.unexpected("`=` and an expression, or `{` and statements"));
                };
                Item::Def(Def { name, parameters, body, span: self.span_from(first) })
            }
            "pool" => {
                let name = self.name("the pool's name")?;
                let size = self.bracketed()?;
                let options = self.pool_options()?;
                Item::Pool(Pool { name, size, options, span: self.span_from(first) })
            }
            "stage" => {
                let name = self.name("the stage's name")?;
                let size = self.bracketed()?;
                self.expect(TokenKind::Colon)?;
                let kind = self.stage_kind()?;
                self.semicolon_after(&kind, ITEMS)?;
                Item::Stage(Stage { name, size, kind, span: self.span_from(first) })
            }
            "queue" => self.queue(first).map(Item::Queue)?,
            "share" => {
                let policy = self.policy()?;
                self.semicolon(ITEMS)?;
                Item::Share(Share { policy, span: self.span_from(first) })
            }
            "workload" => {
                let items = self.braced(Place::Workload, Self::workload_item, |parser| {
                    parser.skip_item(Place::Workload);
                })?;
                let span = self.span_from(first);
                Item::Workload(Workload { items, keyword_span: keyword, span })
            }
            "session" => Item::Session(SessionBlock { body: self.block()?, keyword_span: keyword }),
            "server" => Item::Server(SessionBlock { body: self.block()?, keyword_span: keyword }),
            _ => {
                let fields = self.braced(Place::Inner, Self::run_field, |parser| {
                    parser.skip_item(Place::Inner);
                })?;
                Item::Run(Run { fields, keyword_span: keyword })
            }
        })
    }

    fn no_item(&mut self) -> Stop {
        let span = self.token().span;
        let Some(word) = self.word() else {
            return match self.kind() {
                TokenKind::Semicolon => self.stray_semicolon(),
                TokenKind::BraceClose => {
                    let message = "this `}` closes nothing";
                    let diagnostic = Diagnostic::error("unexpected-token", span, message)
                        .help("leave it out, or look for a `}` too many above");
                    self.report(diagnostic)
                }
                _ => self.unexpected("a declaration"),
            };
        };
        if word == "claim" {
            let diagnostic = Diagnostic::error("not-yet", span, "`claim` is not in this version")
                .help("observe the figure instead: `observe name = expr;` or `gauge name = expr;`");
            return self.report(diagnostic);
        }
        let short = crate::lexer::shorten(word);
        let message = format!("no declaration begins with `{short}`");
        let near = crate::nearest::nearest(word, ITEMS.iter().copied());
        let help = match word {
            _ if self.kind_ahead(1) == TokenKind::Assign => format!("a constant is `let {short} = …;`"),
            "fn" => "write `def name(x) = …;` or `def name(x) { … }`; what a session does stands in `session { … }`"
                .to_owned(),
            "engine" | "device" => {
                "an engine is a `queue NAME : prefill { … }` or a `stage NAME : step { … }`".to_owned()
            }
            word if STATEMENTS.contains(&word) => {
                format!("`{short}` is a statement; statements stand in `session {{ … }}`")
            }
            _ => match near {
                Some(near) => format!("write `{near}`"),
                None => format!("write {}, or `READER pull SOURCE …`", crate::nearest::list(ITEMS)),
            },
        };
        self.report(Diagnostic::error("unknown-item", span, message).help(help))
    }

    /// `NAME = expr ;`
    fn named_value(&mut self, first: usize, what: &str) -> Read<Let> {
        let name = self.name(what)?;
        self.expect(TokenKind::Assign)?;
        let value = self.value(ITEMS)?;
        Ok(Let { name, value, span: self.span_from(first) })
    }

    fn path(&mut self) -> Read<(String, Span)> {
        if self.kind() != TokenKind::String {
            let message = format!("expected a path, found {}", self.found());
            let diagnostic = Diagnostic::error("unexpected-token", self.token().span, message)
                .help("a path is written between `\"` and `\"`");
            return Err(self.report(diagnostic));
        }
        let spelling = self.spelling_at(self.at);
        let span = self.token().span;
        self.advance();
        Ok((spelling[1..spelling.len() - 1].to_owned(), span))
    }

    fn relation(&mut self) -> Read<Relation> {
        let first = self.at;
        let first_name = self.name("a queue's name")?;
        let verb_span = self.token().span;
        let push = self.is_word("push");
        self.advance();
        let second_name =
            self.name(if push { "the name of the queue written to" } else { "the name of the queue read from" })?;
        let (reader, source) = if push { (second_name, first_name) } else { (first_name, second_name) };
        let latency = match self.eat_word("latency") {
            true => Some(self.expression()?),
            false => None,
        };
        if !self.is_word("share") {
            let expected = if latency.is_some() { "`share`" } else { "`latency` or `share`" };
            let message = format!("expected {expected}, found {}", self.found());
            let diagnostic = Diagnostic::error("unexpected-token", self.token().span, message)
                .help("say how concurrent reads divide the links: `share maxmin` or `share bottleneck`");
            return Err(self.report(diagnostic));
        }
        self.advance();
        let policy = self.policy()?;
        self.semicolon(ITEMS)?;
        let span = self.span_from(first);
        Ok(Relation { reader, push, verb_span, source, latency, policy, span })
    }

    fn policy(&mut self) -> Read<Policy> {
        let policy = match self.word() {
            Some("maxmin") => Policy::Maxmin,
            Some("bottleneck") => Policy::Bottleneck,
            _ => return Err(self.unknown("unknown-kind", "sharing policy", POLICIES)),
        };
        self.advance();
        Ok(policy)
    }

    fn pool_options(&mut self) -> Read<Vec<PoolOption>> {
        self.braced(Place::Inner, Self::pool_option, |parser| parser.skip_item(Place::Inner))
    }

    fn pool_option(&mut self) -> Read<PoolOption> {
        let first = self.at;
        let word = self.option_word(POOL_OPTIONS, "option of a pool")?;
        let kind = match word {
            "cap" => PoolOptionKind::Cap(self.expression()?),
            "block" => PoolOptionKind::Block(self.expression()?),
            "evict" => PoolOptionKind::Evict(match self.choice(&["lru", "by"], "eviction order")? {
                "by" => Some(self.expressions(false)?),
                _ => None,
            }),
            "preempt" => PoolOptionKind::Preempt(match self.choice(&["none", "lifo", "by"], "preemption rule")? {
                "none" => Preempt::None,
                "lifo" => Preempt::Lifo,
                _ => Preempt::By(self.expressions(false)?),
            }),
            "queue" => PoolOptionKind::Queue(match self.choice(&["fifo", "by"], "queue order")? {
                "by" => Some(self.expressions(false)?),
                _ => None,
            }),
            "admit" => {
                self.expect_word("via")?;
                PoolOptionKind::AdmitVia(self.reference("a stage's name")?)
            }
            "share" => {
                self.expect_word("prefixes")?;
                PoolOptionKind::SharePrefixes(self.eat_word("scheduled"))
            }
            _ => {
                let pool = self.reference("a pool's name")?;
                self.expect_word("via")?;
                let stage = self.reference("a stage's name")?;
                let work = self.parenthesised()?;
                self.expect_word("when")?;
                let when = self.parenthesised()?;
                PoolOptionKind::Spill { pool, stage, work, when }
            }
        };
        self.semicolon(POOL_OPTIONS)?;
        Ok(PoolOption { kind, span: self.span_from(first) })
    }

    /// The option's word; a lone `;` is no option.
    fn option_word<'w>(&mut self, words: &'w [&'w str], what: &str) -> Read<&'w str> {
        if self.kind() == TokenKind::Semicolon {
            return Err(self.stray_semicolon());
        }
        match words.iter().find(|&&word| self.is_word(word)) {
            Some(word) => {
                self.advance();
                Ok(word)
            }
            None => Err(self.unknown("unknown-option", what, words)),
        }
    }

    /// One of a few words that say how.
    pub(super) fn choice<'w>(&mut self, words: &'w [&'w str], what: &str) -> Read<&'w str> {
        match words.iter().find(|&&word| self.is_word(word)) {
            Some(word) => {
                self.advance();
                Ok(word)
            }
            None => Err(self.unknown("unknown-kind", what, words)),
        }
    }

    fn stage_kind(&mut self) -> Read<StageKind> {
        let first = self.at;
        let kind = match self.choice(STAGE_KINDS, "stage kind")? {
            "fifo" => StageKindKind::Fifo(match self.kind() {
                TokenKind::ParenOpen => {
                    self.layout.hugging.push(self.at);
                    Some(self.parenthesised()?)
                }
                _ => None,
            }),
            "ps" => {
                self.layout.hugging.push(self.at);
                StageKindKind::Ps(self.parenthesised()?)
            }
            "delay" => StageKindKind::Delay,
            _ => StageKindKind::Step(self.braced(Place::Inner, Self::step_option, |parser| {
                parser.skip_item(Place::Inner);
            })?),
        };
        Ok(StageKind { kind, span: self.span_from(first) })
    }

    /// The `;` behind a stage's kind; behind `step { … }` it may be left out.
    fn semicolon_after(&mut self, kind: &StageKind, words: &[&str]) -> Read<()> {
        if !matches!(kind.kind, StageKindKind::Step(_)) {
            return self.semicolon(words);
        }
        if self.kind() == TokenKind::Semicolon {
            self.layout.idle.push(self.at);
            self.advance();
        }
        Ok(())
    }

    fn step_option(&mut self) -> Read<StepOption> {
        let first = self.at;
        let kind = match self.option_word(STEP_OPTIONS, "option of a step stage")? {
            "budget" => StepOptionKind::Budget(self.expression()?),
            "cost" => StepOptionKind::Cost(self.expression()?),
            "chunk" => StepOptionKind::Chunk(self.expression()?),
            "memory" => StepOptionKind::Memory(self.reference("a pool's name")?),
            "asynchronous" => StepOptionKind::Asynchronous(self.expression()?, self.eat_word("fenced")),
            _ => StepOptionKind::Serve(self.serve_rule()?),
        };
        self.semicolon(STEP_OPTIONS)?;
        Ok(StepOption { kind, span: self.span_from(first) })
    }

    fn serve_rule(&mut self) -> Read<ServeRule> {
        const RULES: &[&str] = &["admission", "by", "decode", "exclusive", "only"];
        const AFTER_ONLY: &[&str] = &["admission", "by", "decode"];
        Ok(match self.choice(RULES, "serve rule")? {
            "exclusive" => {
                self.expect_word("prefill")?;
                ServeRule::ExclusivePrefill
            }
            "only" => {
                let test = self.parenthesised()?;
                let rule = match self.kind() {
                    TokenKind::Name => {
                        let word = self.choice(AFTER_ONLY, "serve rule after `only`")?;
                        Some(Box::new(self.serve_order(word)?))
                    }
                    _ => None,
                };
                ServeRule::Only(test, rule)
            }
            word => self.serve_order(word)?,
        })
    }

    fn serve_order(&mut self, word: &str) -> Read<ServeRule> {
        Ok(match word {
            "by" => ServeRule::By(self.expressions(false)?),
            "decode" => {
                self.expect_word("first")?;
                ServeRule::DecodeFirst
            }
            _ => ServeRule::Admission,
        })
    }

    fn queue(&mut self, first: usize) -> Read<Queue> {
        let name = self.name("the queue's name")?;
        let size = self.bracketed()?;
        let roles = match self.eat(TokenKind::Colon) {
            true => self.names("a role: `gateway`, `prefill`, `decode` or `link`")?,
            false => Vec::new(),
        };
        let items = self.braced(Place::Queue, Self::queue_item, |parser| {
            parser.skip_item(Place::Queue);
        })?;
        Ok(Queue { name, size, roles, items, span: self.span_from(first) })
    }

    fn queue_item(&mut self) -> Read<QueueItem> {
        let first = self.at;
        if self.kind() == TokenKind::Semicolon {
            return Err(self.stray_semicolon());
        }
        let named = self.kind_ahead(1) == TokenKind::Name;
        match self.word() {
            Some("pool") => {
                self.advance();
                let name = self.name("the pool's name")?;
                if self.kind() == TokenKind::BracketOpen {
                    let diagnostic = Diagnostic::error(
                        "unexpected-token",
                        self.token().span,
                        "a pool inside a queue has no size of its own",
                    )
                    .help("leave it out: every member of the queue has this pool");
                    return Err(self.report(diagnostic));
                }
                let options = self.pool_options()?;
                Ok(QueueItem::Pool(Pool { name, size: None, options, span: self.span_from(first) }))
            }
            Some("serve") if named => {
                self.advance();
                let kind = self.stage_kind()?;
                let latency = match self.eat_word("latency") {
                    true => Some(self.expression()?),
                    false => None,
                };
                if latency.is_some() {
                    self.semicolon(&[])?;
                } else {
                    self.semicolon_after(&kind, &["nic", "pool"])?;
                }
                Ok(QueueItem::Serve { kind, latency, span: self.span_from(first) })
            }
            Some("nic") if named => {
                self.advance();
                let kind = self.stage_kind()?;
                self.semicolon_after(&kind, &["serve", "pool"])?;
                Ok(QueueItem::Nic { kind, span: self.span_from(first) })
            }
            _ => self.entry().map(QueueItem::Entry),
        }
    }

    fn entry(&mut self) -> Read<Entry> {
        let first = self.at;
        let verb = self.name("`pool`, `serve`, `nic` or an entry: `route`, `prefill`, `decode`, `transfer`")?;
        let parameters = match self.kind() {
            TokenKind::ParenOpen => Some(self.parameters()?),
            _ => None,
        };
        let from = match self.eat_word("from") {
            true => Some(self.name("the name of what it reads from")?),
            false => None,
        };
        let header_span = self.span_from(first);
        if self.kind() != TokenKind::BraceOpen && parameters.is_none() && from.is_none() {
            const WORDS: &[&str] = &["pool", "serve", "nic", "route", "prefill", "decode", "transfer"];
            let after = self.found();
            let message = format!("expected `(` or `{{` after `{}`, found {after}", crate::lexer::shorten(&verb.text));
            let diagnostic = Diagnostic::error("unexpected-token", self.token().span, message);
            let help = match crate::nearest::nearest(&verb.text, WORDS.iter().copied()) {
                Some(word) if word != verb.text => format!("write `{word}`"),
                Some(word @ ("serve" | "nic")) => {
                    format!("write `{word} KIND;` with `fifo`, `ps(rate)`, `delay` or `step {{ … }}`")
                }
                _ => "an entry is a verb, its parameters and a block: `prefill (prompt) { … }`".to_owned(),
            };
            return Err(self.report(diagnostic.help(help)));
        }
        let body = self.block()?;
        Ok(Entry { verb, parameters, from, body, header_span, span: self.span_from(first) })
    }

    fn workload_item(&mut self) -> Read<WorkloadItem> {
        let first = self.at;
        let keyword = self.token().span;
        Ok(match self.option_word(WORKLOAD_ITEMS, "item of a workload")? {
            "arrive" => {
                let law = self.law()?;
                self.semicolon(WORKLOAD_ITEMS)?;
                WorkloadItem::Arrive(law, self.span_from(first))
            }
            "trace" => {
                let (path, _) = self.path()?;
                let ordered = self.eat_word("ordered");
                self.semicolon(WORKLOAD_ITEMS)?;
                WorkloadItem::Trace { path, ordered, span: self.span_from(first) }
            }
            "hidden" => {
                let names = self.names("an attribute's name")?;
                self.semicolon(WORKLOAD_ITEMS)?;
                WorkloadItem::Hidden(names, self.span_from(first))
            }
            "prefix" => {
                let parts = self.expressions(false)?;
                self.semicolon(WORKLOAD_ITEMS)?;
                WorkloadItem::Prefix(parts, self.span_from(first))
            }
            "init" => WorkloadItem::Init(self.block()?),
            "turn" => WorkloadItem::Turn(self.block()?),
            "request" => WorkloadItem::Request(self.block()?, keyword),
            _ => WorkloadItem::Session(SessionBlock { body: self.block()?, keyword_span: keyword }),
        })
    }

    fn run_field(&mut self) -> Read<RunField> {
        let first = self.at;
        let kind = match self.option_word(RUN_FIELDS, "setting of a run")? {
            "horizon" => RunFieldKind::Horizon,
            "warmup" => RunFieldKind::Warmup,
            "seed" => RunFieldKind::Seed,
            _ => RunFieldKind::Arrivals,
        };
        let value = self.expression()?;
        self.semicolon(RUN_FIELDS)?;
        Ok(RunField { kind, value, span: self.span_from(first) })
    }
}
