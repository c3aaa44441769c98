//! Simulation against queueing theory.
//!
//! A *law* is a program of `tests/sim/theory/` with figures theory knows in closed form. It
//! is run on [`experiment::SEEDS`] seeds; for every figure the Student-t interval of the
//! seeds' means must cover the closed form. The same program with a planted bug (service
//! 5 % longer, say) is run too, and its interval must miss the closed form by six standard
//! errors at least: a test that can't fail shows nothing. Sharing of links and the running
//! estimates are deterministic and compared with a second computation to 1e-9.
//!
//! # False alarms
//!
//! An interval misses with chance 1e-4, and there are 107 of them, so another choice of seeds
//! would alarm somewhere in about 1 % of choices. The seeds are fixed: a given program passes
//! always or never, and a failure after a change is that change's, unless it draws its
//! random numbers differently.
//!
//! Not in the budget are the interval's own approximations: that a seed's mean is normal
//! (2,500 sessions a seed at least), the bias of one run's ratios and quantiles (of order
//! 1/sessions), and what is left of the empty start. A queue of load 0.6 forgets it as
//! exp(-t/τ) with τ about 19.7 (1 + cv2)/2 mean services, cv2 of the service [Morse,
//! "Stochastic Properties of Waiting Lines", Operations Research 3(3), 1955, for M/M/1];
//! warm-ups are ten such times where cv2 is 4 and twenty or more elsewhere, so about 5e-5 of
//! the initial gap is left at most when counting starts.

mod closed_forms;
mod estimates;
mod experiment;
mod sharing;

use closed_forms::{Service, cobham, erlang_b, erlang_c, gim1_sigma, mean_values, takacs};
use experiment::{BUG, Law};

#[test]
fn mm1() {
    let (lam, s) = (0.6, 1.0);
    let (rho, rate) = (lam * s, 1.0 / s - lam);
    Law::new("mm1")
        .figure("mean sojourn", "/observes/sojourn/mean", 1.0 / rate)
        .figure("cv2 of sojourn", "/observes/sojourn/cv2", 1.0)
        .twin("even", "0.1")
        .figure("median sojourn", "/observes/sojourn/p50", 2f64.ln() / rate)
        .figure("90 % sojourn", "/observes/sojourn/p90", 10f64.ln() / rate)
        .figure("99 % sojourn", "/observes/sojourn/p99", 100f64.ln() / rate)
        .figure("mean number", "/stages/0/mean_number", rho / (1.0 - rho))
        .figure("mean live", "/mean_live", rho / (1.0 - rho))
        .figure("mean waiting", "/gauges/waiting/mean", rho * rho / (1.0 - rho))
        .figure("utilization", "/stages/0/utilization", rho)
        .figure("mean wait", "/stages/0/mean_wait", rho / rate)
        .figure("mean service", "/stages/0/mean_service", s)
        .figure("throughput", "/stages/0/throughput", lam)
        .twin("lam", "0.63")
        .check();
}

#[test]
fn mmc_as_servers() {
    let (lam, s, c) = (2.0, 1.0, 3);
    let wait = erlang_c(c, lam * s) / (f64::from(c) / s - lam);
    // p0 = 1 / (Σ_{k<c} a^k/k! + a^c/c! / (1 - a/c)).
    let p0 = 1.0 / (1.0 + 2.0 + 2.0 + 8.0 / 6.0 * 3.0);
    Law::new("mmc_fifo")
        .figure("chance to wait", "/observes/waits/mean", erlang_c(c, lam * s))
        .figure("mean wait", "/stages/0/mean_wait", wait)
        .figure("mean sojourn", "/observes/sojourn/mean", wait + s)
        .figure("mean number", "/stages/0/mean_number", lam * (wait + s))
        .figure("mean waiting", "/gauges/waiting/mean", lam * wait)
        .figure("mean busy", "/gauges/busy_desks/mean", lam * s)
        .figure("utilization", "/stages/0/utilization", 1.0 - p0)
        .check();
}

#[test]
fn mmc_as_seats() {
    let (lam, s, c) = (2.0, 1.0, 3);
    let waits = erlang_c(c, lam * s);
    let rate = f64::from(c) / s - lam;
    let wait = waits / rate;
    Law::new("mmc_pool")
        .figure("chance to wait", "/observes/waits/mean", waits)
        .figure("mean wait", "/observes/wait/mean", wait)
        .figure("wait squared", "/observes/square/mean", 2.0 * waits / (rate * rate))
        .figure("mean sojourn", "/observes/sojourn/mean", wait + s)
        .figure("pool wait", "/pools/0/mean_wait", wait)
        .figure("mean queue", "/pools/0/mean_queue", lam * wait)
        .figure("mean used", "/pools/0/mean_used", lam * s)
        .figure("mean holders", "/pools/0/mean_holders", lam * s)
        .figure("mean in service", "/stages/0/mean_number", lam * s)
        .check();
}

#[test]
fn md1() {
    let (lam, s) = (0.6, 1.0);
    let rho = lam * s;
    let wait = takacs(lam, &Service::Det.moments(s)).0;
    Law::new("md1")
        .figure("mean wait", "/stages/0/mean_wait", wait)
        .figure("mean sojourn", "/observes/sojourn/mean", wait + s)
        .figure("mean number", "/stages/0/mean_number", lam * (wait + s))
        .figure("utilization", "/stages/0/utilization", rho)
        .figure("finds it idle", "/observes/idle/mean", 1.0 - rho)
        .figure("mean wait seen", "/observes/wait/mean", wait)
        .check();
}

fn mg1(law: Service) {
    let (lam, s) = (0.6, 1.0);
    let (wait, square) = takacs(lam, &law.moments(s));
    Law::new("mg1")
        .variant(law.name(), "law", law.number_in("mg1"))
        .longer(if law == Service::H2 { 3.0 } else { 1.0 })
        .figure("mean wait", "/observes/wait/mean", wait)
        .figure("wait squared", "/observes/square/mean", square)
        .figure("mean sojourn", "/observes/sojourn/mean", wait + s)
        .figure("mean queue", "/pools/0/mean_queue", lam * wait)
        .figure("mean used", "/pools/0/mean_used", lam * s)
        .check();
}

#[test]
fn mg1_exponential() {
    mg1(Service::Exp);
}

#[test]
fn mg1_constant() {
    mg1(Service::Det);
}

#[test]
fn mg1_erlang() {
    mg1(Service::Erlang4);
}

#[test]
fn mg1_hyperexponential() {
    mg1(Service::H2);
}

#[test]
fn mg1_uniform() {
    mg1(Service::Uniform);
}

/// The sojourn of a shared processor does not know the service's law beyond its mean.
fn mg1_ps(law: Service) {
    let (lam, s) = (0.6, 1.0);
    let rho = lam * s;
    let sojourn = s / (1.0 - rho);
    let checks = Law::new("mg1_ps")
        .variant(law.name(), "law", law.number_in("mg1_ps"))
        .figure("mean sojourn", "/observes/sojourn/mean", sojourn)
        .figure("mean stretch", "/observes/stretch/mean", 1.0 / (1.0 - rho))
        .figure("mean number", "/stages/0/mean_number", rho / (1.0 - rho))
        .figure("utilization", "/stages/0/utilization", rho);
    if law == Service::Exp {
        let square = sojourn * sojourn * (1.0 + (2.0 + rho) / (2.0 - rho));
        checks.figure("sojourn squared", "/observes/square/mean", square).check();
    } else {
        checks.check();
    }
}

#[test]
fn ps_is_insensitive_constant() {
    mg1_ps(Service::Det);
}

#[test]
fn ps_is_insensitive_exponential() {
    mg1_ps(Service::Exp);
}

#[test]
fn ps_is_insensitive_hyperexponential() {
    mg1_ps(Service::H2);
}

fn gim1(law: Service) {
    let (lam, s) = (0.6, 1.0);
    let sigma = gim1_sigma(lam, s, law);
    Law::new("gim1")
        .variant(law.name(), "law", law.number_in("gim1"))
        .figure("chance to wait", "/observes/waits/mean", sigma)
        .figure("mean sojourn", "/observes/sojourn/mean", s / (1.0 - sigma))
        .figure("mean wait", "/stages/0/mean_wait", s * sigma / (1.0 - sigma))
        .figure("cv2 of sojourn", "/observes/sojourn/cv2", 1.0)
        .twin("even", "0.1")
        .figure("mean number", "/stages/0/mean_number", lam * s / (1.0 - sigma))
        .figure("utilization", "/stages/0/utilization", lam * s)
        .check();
}

#[test]
fn renewal_arrivals_constant() {
    gim1(Service::Det);
}

#[test]
fn renewal_arrivals_erlang() {
    gim1(Service::Erlang4);
}

fn loss(law: Service) {
    let (lam, s, lines) = (3.0, 1.0, 4);
    let lost = erlang_b(lines, lam * s);
    Law::new("loss")
        .variant(law.name(), "law", law.number_in("loss"))
        .figure("lost", "/observes/lost/mean", lost)
        .figure("mean used", "/pools/0/mean_used", lam * s * (1.0 - lost))
        .check();
}

#[test]
fn loss_is_insensitive_exponential() {
    loss(Service::Exp);
}

#[test]
fn loss_is_insensitive_constant() {
    loss(Service::Det);
}

#[test]
fn loss_is_insensitive_hyperexponential() {
    loss(Service::H2);
}

#[test]
fn infinite_servers() {
    let (lam, s) = (3.0, 1.0);
    let a = lam * s;
    Law::new("mginf")
        .figure("mean number", "/stages/0/mean_number", a)
        .figure("seen", "/observes/seen/mean", a)
        .figure("seen squared", "/observes/square/mean", a + a * a)
        .figure("mean stay", "/observes/stay/mean", s)
        .check();
}

#[test]
fn closed_network() {
    let (think, cpu, disk, visits) = (5.0, 1.0, 1.6, 0.5);
    let network = mean_values(5, think, &[cpu, visits * disk]);
    let (x, residence) = (network.throughput, &network.residence);
    Law::new("closed")
        .figure("throughput", "/stages/0/throughput", x)
        .figure("mean response", "/observes/response/mean", residence[0] + residence[1])
        .figure("at the cpu", "/stages/1/mean_number", x * residence[0])
        .figure("at the disk", "/stages/2/mean_number", x * residence[1])
        .figure("thinking", "/stages/0/mean_number", x * think)
        .figure("cpu utilization", "/stages/1/utilization", x * cpu)
        .figure("disk utilization", "/stages/2/utilization", x * visits * disk)
        .figure("cpu sojourn", "/stages/1/mean_service", residence[0])
        .figure("disk sojourn", "/observes/at_disk/mean", residence[1] / visits)
        .check();
}

#[test]
fn two_priorities() {
    let lam = 0.3;
    let (urgent, patient) = (Service::Exp.moments(0.8), Service::Uniform.moments(1.2));
    let waits = cobham(&[(lam, urgent), (lam, patient)]);
    Law::new("priority")
        .figure("urgent wait", "/observes/urgent_wait/mean", waits[0])
        .twin("fair", "1")
        .and_twin(BUG)
        .figure("patient wait", "/observes/patient_wait/mean", waits[1])
        .twin("fair", "1")
        .and_twin(BUG)
        .figure("mean queue", "/pools/0/mean_queue", lam * (waits[0] + waits[1]))
        .twin("fair", "1")
        .and_twin(BUG)
        .figure("mean used", "/pools/0/mean_used", lam * (0.8 + 1.2))
        .check();
}

/// The interval's constant against printed tables.
#[test]
fn students_t_is_the_tables() {
    let t = experiment::student(0.05, 19.0);
    assert!((t - 2.093).abs() < 5e-4, "Student's t for 95 %, 19 degrees of freedom, is {t}");
    let t = experiment::student(1e-4, 30.0);
    assert!((t - 4.482).abs() < 5e-4, "Student's t for 1 - 1e-4, 30 degrees of freedom, is {t}");
}
