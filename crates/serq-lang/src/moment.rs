//! At which moment each clause of a program is evaluated, and what exists then.
//!
//! Every expression stands in a [`Clause`]; the clause has one [`Moment`]; the
//! moment says which context variables, attributes, draws and figures may be read.

use serq_ir::{Context, StageFigure};

/// When an expression is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// By the linker.
    Constant,
    /// By a session, at the statement.
    Session,
    /// When the head of a queue is tried.
    Admit,
    /// When a cached entry must go.
    Evict,
    /// When a growth looks for a victim.
    Preempt,
    /// When a `ps` stage's population changes.
    Ps,
    /// Before an iteration is planned.
    Budget,
    /// For each resident, while an iteration is planned.
    Serve,
    /// When an iteration has been planned.
    Step,
    /// Between events.
    Gauge,
    /// Between arrivals.
    Gap,
}

/// Where an expression stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "describe() has the words")]
pub(crate) enum Clause {
    Let,
    Constant(&'static str),
    Value,
    Guard,
    Chance,
    Work,
    Count,
    ChooseKey,
    Amount(&'static str),
    Cache,
    LeaseTime,
    Prefix,
    Units,
    Reserve,
    Reuse,
    Binding,
    BindingBody,
    QueueKey,
    EvictKey,
    Spill,
    PreemptKey,
    Rate,
    Budget,
    Chunk,
    ServeKey,
    ServeOnly,
    Cost,
    Gauge,
    Gap,
}

impl Clause {
    /// When it is evaluated.
    pub(crate) fn moment(self) -> Moment {
        match self {
            Self::Let | Self::Constant(_) => Moment::Constant,
            Self::Value
            | Self::Guard
            | Self::Chance
            | Self::Work
            | Self::Count
            | Self::ChooseKey
            | Self::Amount(_)
            | Self::Cache
            | Self::LeaseTime
            | Self::Prefix
            | Self::BindingBody => Moment::Session,
            Self::Units | Self::Reserve | Self::Reuse | Self::Binding | Self::QueueKey => Moment::Admit,
            Self::EvictKey | Self::Spill => Moment::Evict,
            Self::PreemptKey => Moment::Preempt,
            Self::Rate => Moment::Ps,
            Self::Budget | Self::Chunk => Moment::Budget,
            Self::ServeKey | Self::ServeOnly => Moment::Serve,
            Self::Cost => Moment::Step,
            Self::Gauge => Moment::Gauge,
            Self::Gap => Moment::Gap,
        }
    }

    /// In a sentence: "`now` can't be read in …".
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Let => "a `let`".into(),
            Self::Constant(what) => format!("{what}, a constant"),
            Self::Value => "a statement".into(),
            Self::Guard => "a `branch`".into(),
            Self::Chance => "a `branch with`".into(),
            Self::Work => "an amount of work".into(),
            Self::Count => "the count of a `choose`".into(),
            Self::ChooseKey => "the keys of a `choose`".into(),
            Self::Amount(what) => format!("the amount of a `{what}`"),
            Self::Cache => "a `cache` clause".into(),
            Self::LeaseTime => "a `lease` clause".into(),
            Self::Prefix => "`prefix (…)`".into(),
            Self::Units => "the units of a hold".into(),
            Self::Reserve => "a `reserve` clause".into(),
            Self::Reuse => "a `reuse` clause".into(),
            Self::Binding => "`at admission (…)`".into(),
            Self::BindingBody => "an `at admission` name the body reads".into(),
            Self::QueueKey => "the keys of a pool's queue".into(),
            Self::EvictKey => "the keys of `evict by`".into(),
            Self::Spill => "a `spill` clause".into(),
            Self::PreemptKey => "the keys of `preempt by`".into(),
            Self::Rate => "the rate of a `ps` stage".into(),
            Self::Budget => "`budget`".into(),
            Self::Chunk => "`chunk`".into(),
            Self::ServeKey => "the keys of `serve by`".into(),
            Self::ServeOnly => "`serve only`".into(),
            Self::Cost => "`cost`".into(),
            Self::Gauge => "a gauge".into(),
            Self::Gap => "the gap of `renewal`".into(),
        }
    }

    /// Part of a hold's header.
    pub(crate) fn in_header(self) -> bool {
        matches!(self, Self::Units | Self::Reserve | Self::Reuse | Self::Binding)
    }

    /// A draw may be taken.
    pub(crate) fn may_draw(self) -> bool {
        !matches!(
            self,
            Self::Let
                | Self::Constant(_)
                | Self::Units
                | Self::Reserve
                | Self::Reuse
                | Self::Binding
                | Self::BindingBody
                | Self::QueueKey
                | Self::ServeKey
                | Self::ServeOnly
                | Self::PreemptKey
                | Self::Gauge
        )
    }

    /// A session's attributes may be read.
    pub(crate) fn may_read_attributes(self) -> bool {
        // 0.1.3 reads attributes in `cost`, `budget`, `chunk` and the rate as 0:
        // nobody means that, there is no one session an iteration belongs to.
        matches!(self.moment(), Moment::Session | Moment::Admit | Moment::Evict | Moment::Preempt | Moment::Serve)
    }

    /// A workload's hidden attributes may be read.
    pub(crate) fn may_read_hidden(self) -> bool {
        self.moment() == Moment::Session
    }

    /// Pools and stages may be looked at.
    pub(crate) fn may_read_state(self) -> bool {
        !matches!(self.moment(), Moment::Constant | Moment::Gap) && self != Self::BindingBody
    }

    /// `cachedin` has a session to speak of.
    pub(crate) fn may_read_own_cache(self) -> bool {
        self.may_read_state() && !matches!(self.moment(), Moment::Gauge | Moment::Ps | Moment::Budget | Moment::Step)
    }

    /// This figure of a stage may be read.
    pub(crate) fn may_read_stage(self, figure: StageFigure) -> bool {
        self.may_read_state()
            && match figure {
                StageFigure::Work => !matches!(self, Self::Gauge | Self::ServeOnly),
                StageFigure::BudgetLeft => !matches!(self, Self::Gauge | Self::Budget | Self::Chunk | Self::PreemptKey),
                _ => true,
            }
    }

    /// The context variable exists here.
    pub(crate) fn has(self, variable: Context) -> bool {
        use Context as C;
        match self {
            Self::Let | Self::Constant(_) | Self::Gap | Self::Gauge => false,
            _ if variable == C::Reached => matches!(
                self,
                Self::BindingBody | Self::Value | Self::Units | Self::Reserve | Self::Reuse | Self::Binding
            ),
            Self::BindingBody => false,
            _ if variable == C::Failed => self.moment() == Moment::Session,
            _ if variable == C::Now => true,
            Self::QueueKey => matches!(variable, C::Waited | C::Admission),
            Self::EvictKey | Self::Spill => matches!(variable, C::Size | C::Age | C::Last | C::Waiting),
            Self::PreemptKey => matches!(variable, C::Admission | C::Position | C::Decoding),
            Self::Rate => variable == C::Present,
            Self::Budget | Self::Chunk => {
                matches!(variable, C::Residents | C::Decoders | C::KvDecode | C::KvPrefill)
            }
            Self::ServeKey | Self::ServeOnly => matches!(
                variable,
                C::Residents | C::Decoders | C::KvDecode | C::KvPrefill | C::Decoding | C::Admission | C::Remaining
            ),
            Self::Cost => matches!(
                variable,
                C::Tokens | C::Prefilled | C::Attention | C::Residents | C::Decoders | C::KvDecode | C::KvPrefill
            ),
            _ => false,
        }
    }
}

/// The context variables by name.
pub(crate) const CONTEXT: [(&str, Context); 20] = [
    ("now", Context::Now),
    ("waited", Context::Waited),
    ("size", Context::Size),
    ("age", Context::Age),
    ("last", Context::Last),
    ("waiting", Context::Waiting),
    ("admission", Context::Admission),
    ("position", Context::Position),
    ("decoding", Context::Decoding),
    ("present", Context::Present),
    ("residents", Context::Residents),
    ("decoders", Context::Decoders),
    ("kv_decode", Context::KvDecode),
    ("kv_prefill", Context::KvPrefill),
    ("remaining", Context::Remaining),
    ("tokens", Context::Tokens),
    ("prefilled", Context::Prefilled),
    ("attention", Context::Attention),
    ("reached", Context::Reached),
    ("failed", Context::Failed),
];

/// The context variable of this name.
pub(crate) fn context(name: &str) -> Option<Context> {
    CONTEXT.iter().find(|(word, _)| *word == name).map(|&(_, c)| c)
}

/// Where a context variable can be read.
pub(crate) fn where_it_exists(variable: Context) -> &'static str {
    use Context as C;
    match variable {
        C::Now => "statements, holds, queue orders and a stage's own clauses",
        C::Waited => "the keys of `queue by`",
        C::Size | C::Age | C::Last | C::Waiting => "`evict by` and `spill`",
        C::Position => "`preempt by`",
        C::Admission => "`serve by`, `serve only`, `preempt by` and `queue by`",
        C::Decoding => "`serve by`, `serve only` and `preempt by`",
        C::Present => "the rate of a `ps` stage",
        C::Member => "`budget` and `chunk`",
        C::Reached => "statements and the header of a hold",
        C::Failed => "statements",
        C::Residents | C::Decoders | C::KvDecode | C::KvPrefill => {
            "`budget`, `chunk`, `serve by`, `serve only` and `cost`"
        }
        C::Remaining => "`serve by` and `serve only`",
        C::Tokens | C::Prefilled | C::Attention => "`cost`",
    }
}
