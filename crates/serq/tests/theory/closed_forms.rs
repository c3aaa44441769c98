//! Closed forms of queueing theory, from formulas.
//!
//! Kleinrock I and II: Leonard Kleinrock, "Queueing Systems", volumes I (1975) and II
//! (1976). The programs' headers have the same numbers by hand.

/// A law of service times or gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// Exponential.
    Exp,
    /// Constant.
    Det,
    /// Erlang of four phases.
    Erlang4,
    /// Two exponentials with balanced means, cv2 4.
    H2,
    /// Uniform on 0 … twice the mean.
    Uniform,
}

impl Service {
    /// Its name in the programs' headers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exp => "exp",
            Self::Det => "det",
            Self::Erlang4 => "erlang",
            Self::H2 => "h2",
            Self::Uniform => "uniform",
        }
    }

    /// Its number in a program: the value of `law`.
    pub(crate) fn number_in(self, program: &str) -> &'static str {
        match (program, self) {
            ("mg1" | "loss", Self::Exp) | ("mg1_ps" | "gim1", Self::Det) => "0",
            ("mg1" | "loss", Self::Det) | ("mg1_ps", Self::Exp) | ("gim1", Self::Erlang4) => "1",
            ("mg1", Self::Erlang4) | ("mg1_ps" | "loss", Self::H2) => "2",
            ("mg1", Self::H2) => "3",
            ("mg1", Self::Uniform) => "4",
            _ => panic!("{program} does not know the law {self:?}"),
        }
    }

    /// E[S], E[S²], E[S³].
    pub(crate) fn moments(self, mean: f64) -> [f64; 3] {
        let of_mean_1 = match self {
            Self::Exp => [1.0, 2.0, 6.0],
            Self::Det => [1.0, 1.0, 1.0],
            Self::Erlang4 => [1.0, 5.0 / 4.0, 5.0 * 6.0 / 16.0],
            Self::H2 => {
                let p: f64 = 0.5 * (1.0 + (3.0f64 / 5.0).sqrt());
                let branches = [(p, 0.5 / p), (1.0 - p, 0.5 / (1.0 - p))];
                let moment =
                    |k: i32, factorial: f64| factorial * branches.map(|(p, m)| p * m.powi(k)).iter().sum::<f64>();
                [moment(1, 1.0), moment(2, 2.0), moment(3, 6.0)]
            }
            Self::Uniform => [1.0, 4.0 / 3.0, 2.0],
        };
        [of_mean_1[0] * mean, of_mean_1[1] * mean * mean, of_mean_1[2] * mean * mean * mean]
    }

    /// E[exp(-z S)] for the laws gaps have here.
    fn transform(self, mean: f64, z: f64) -> f64 {
        match self {
            Self::Det => (-z * mean).exp(),
            Self::Erlang4 => (1.0 + z * mean / 4.0).powi(-4),
            _ => panic!("no program has gaps of the law {self:?}"),
        }
    }
}

/// E[W] and E[W²] of M/G/1 in arrival order: Pollaczek and Khinchine, Takács (Kleinrock I, §5.7).
pub(crate) fn takacs(lam: f64, moments: &[f64; 3]) -> (f64, f64) {
    let idle = 1.0 - lam * moments[0];
    let wait = lam * moments[1] / (2.0 * idle);
    (wait, 2.0 * wait * wait + lam * moments[2] / (3.0 * idle))
}

/// Erlang's B: the share of calls lost by `c` lines offered `a` (Kleinrock I, §3.6).
pub(crate) fn erlang_b(c: u32, a: f64) -> f64 {
    (1..=c).fold(1.0, |b, k| a * b / (f64::from(k) + a * b))
}

/// Erlang's C: the chance to wait for one of `c` servers offered `a` (Kleinrock I, §3.5).
pub(crate) fn erlang_c(c: u32, a: f64) -> f64 {
    let b = erlang_b(c, a);
    b / (1.0 - a / f64::from(c) * (1.0 - b))
}

/// The chance to wait in GI/M/1: the root of σ = A((1 − σ)/s) below 1 (Kleinrock I, §6.4).
pub(crate) fn gim1_sigma(lam: f64, s: f64, gaps: Service) -> f64 {
    // From below the iteration rises to the least root, which is the one below 1.
    (0..10_000).fold(0.0, |sigma, _| gaps.transform(1.0 / lam, (1.0 - sigma) / s))
}

/// A closed network's figures.
#[derive(Debug)]
pub(crate) struct Closed {
    /// Rounds per clock unit.
    pub(crate) throughput: f64,
    /// Time a round spends at each station.
    pub(crate) residence: Vec<f64>,
}

/// Exact mean value analysis (Reiser and Lavenberg, J. ACM 27(2), 1980): single-server
/// stations with these demands a round, and a delay.
pub(crate) fn mean_values(sessions: u32, think: f64, demands: &[f64]) -> Closed {
    let mut number = vec![0.0; demands.len()];
    let mut closed = Closed { throughput: 0.0, residence: Vec::new() };
    for n in 1..=sessions {
        // An arrival sees the network with one session fewer.
        closed.residence = demands.iter().zip(&number).map(|(d, q)| d * (1.0 + q)).collect();
        closed.throughput = f64::from(n) / (think + closed.residence.iter().sum::<f64>());
        number = closed.residence.iter().map(|r| closed.throughput * r).collect();
    }
    closed
}

/// Mean wait by class, first class first, none interrupted (Cobham, Operations Research 2(1),
/// 1954; Kleinrock II, §3.3). A class is its arrival rate and its service's moments.
pub(crate) fn cobham(classes: &[(f64, [f64; 3])]) -> Vec<f64> {
    let residual: f64 = classes.iter().map(|(lam, moments)| lam * moments[1] / 2.0).sum();
    let mut load = 0.0;
    let mut waits = Vec::new();
    for (lam, moments) in classes {
        let before = load;
        load += lam * moments[0];
        waits.push(residual / ((1.0 - before) * (1.0 - load)));
    }
    waits
}
