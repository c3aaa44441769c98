//! A grid of settings, the same seeds in every cell, and what differs.
//!
//! ```text
//!              seed 1   seed 2   seed 3
//!   thr=1        a        b        c       the baseline
//!   thr=512      d        e        f       d-a, e-b, f-c: paired by seed
//! ```
//!
//! A seed brings the same arrivals to every cell, so most of the noise of a run is
//! in both members of a pair and leaves with the difference (common random numbers;
//! Law, "Simulation Modeling and Analysis", §11.2).

use crate::replicate::{Figures, Stopped, Summary, in_order};

/// One setting and the values it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The constant.
    pub name: String,
    /// Expressions, as written.
    pub values: Vec<String>,
}

/// The settings of one cell: a value for every axis, in the axes' order.
pub type Cell = Vec<(String, String)>;

/// Every combination; the last axis changes fastest.
pub fn cells(axes: &[Axis]) -> Vec<Cell> {
    axes.iter().fold(vec![Vec::new()], |cells, axis| {
        let extend = |cell: &Cell, value: &String| {
            let mut cell = cell.clone();
            cell.push((axis.name.clone(), value.clone()));
            cell
        };
        cells.iter().flat_map(|cell| axis.values.iter().map(move |value| extend(cell, value))).collect()
    })
}

/// For every cell the cell it is compared with: itself, with the baseline's values put in.
///
/// # Errors
///
/// One sentence: no such axis, or the axis does not take that value.
pub fn baselines(axes: &[Axis], baseline: &[(String, String)]) -> Result<Vec<usize>, String> {
    let mut fixed: Vec<Option<usize>> = vec![None; axes.len()];
    for (name, value) in baseline {
        let at = axes
            .iter()
            .position(|axis| axis.name == *name)
            .ok_or_else(|| format!("the baseline names `{name}`, which is not swept"))?;
        let place = axes[at].values.iter().position(|other| same(other, value)).ok_or_else(|| {
            format!("the baseline {name}={value} is not in the sweep: {name} is {}", axes[at].values.join(", "))
        })?;
        fixed[at] = Some(place);
    }
    let count: usize = axes.iter().map(|axis| axis.values.len()).product();
    let of = |cell: usize| {
        let mut rest = cell;
        let mut answer = 0;
        let mut weight = 1;
        for (axis, fixed) in axes.iter().zip(&fixed).rev() {
            let place = rest % axis.values.len();
            rest /= axis.values.len();
            answer += weight * fixed.unwrap_or(place);
            weight *= axis.values.len();
        }
        answer
    };
    Ok((0..count).map(of).collect())
}

/// One text, or one number written in two ways.
fn same(a: &str, b: &str) -> bool {
    a == b || matches!((a.parse::<f64>(), b.parse::<f64>()), (Ok(a), Ok(b)) if a == b)
}

/// The error of one run of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub enum SweepError<E> {
    /// A run failed: the first in order of cells, then seeds.
    Failed {
        /// Index of its cell.
        cell: usize,
        /// Its seed.
        seed: u64,
        /// What.
        error: E,
    },
    /// `done` answered no.
    Asked,
}

/// Runs every (cell, seed) on `jobs` threads; answers one row of runs a cell.
///
/// `known` answers runs that need not be repeated; `done` is told the others, as
/// they come, and answers whether to go on.
///
/// # Errors
///
/// [`SweepError`].
pub fn sweep<E: Send>(
    cells: usize,
    seeds: &[u64],
    jobs: usize,
    known: &dyn Fn(usize, u64) -> Option<Figures>,
    run: impl Fn(usize, u64) -> Result<Figures, E> + Sync,
    done: &mut dyn FnMut(usize, u64, &Figures) -> bool,
) -> Result<Vec<Vec<Figures>>, SweepError<E>> {
    let pairs: Vec<(usize, u64)> = (0..cells).flat_map(|cell| seeds.iter().map(move |&seed| (cell, seed))).collect();
    let mut runs: Vec<Option<Figures>> = pairs.iter().map(|&(cell, seed)| known(cell, seed)).collect();
    let open: Vec<usize> = (0..pairs.len()).filter(|&at| runs[at].is_none()).collect();
    let task = |at: usize| run(pairs[open[at]].0, pairs[open[at]].1);
    let mut tell = |at: usize, figures: &Figures| done(pairs[open[at]].0, pairs[open[at]].1, figures);
    match in_order(open.len(), jobs, task, &mut tell) {
        Ok(new) => {
            for (at, figures) in open.into_iter().zip(new) {
                runs[at] = Some(figures);
            }
        }
        Err(Stopped::Failed { task, error }) => {
            let (cell, seed) = pairs[open[task]];
            return Err(SweepError::Failed { cell, seed, error });
        }
        Err(Stopped::Asked) => return Err(SweepError::Asked),
    }
    let mut runs = runs.into_iter().flatten();
    Ok((0..cells).map(|_| runs.by_ref().take(seeds.len()).collect()).collect())
}

/// One figure of a cell minus the same figure of its baseline, seed by seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Of the differences; seeds where either figure does not exist are left out.
    pub summary: Summary,
    /// Seeds where the cell's is lower.
    pub lower: usize,
    /// Seeds where the cell's is higher.
    pub higher: usize,
}

/// What the differences show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The interval lies below 0.
    Lower,
    /// The interval lies above 0.
    Higher,
    /// The same in every seed.
    Equal,
    /// The interval has 0 in it.
    NotShown,
    /// Fewer than two pairs.
    TooFew,
}

impl Difference {
    /// Pairs two figures by seed.
    pub fn of(cell: &[f64], baseline: &[f64]) -> Self {
        assert_eq!(cell.len(), baseline.len(), "the same seeds in every cell");
        let differences: Vec<f64> = cell.iter().zip(baseline).map(|(a, b)| if a == b { 0.0 } else { a - b }).collect();
        Self {
            lower: differences.iter().filter(|&&d| d < 0.0).count(),
            higher: differences.iter().filter(|&&d| d > 0.0).count(),
            summary: Summary::of(differences),
        }
    }

    /// By the 95 % interval of the mean difference.
    pub fn verdict(&self) -> Verdict {
        let Summary { count, mean, ci, .. } = self.summary;
        match () {
            () if count < 2 => Verdict::TooFew,
            () if self.lower == 0 && self.higher == 0 => Verdict::Equal,
            () if mean + ci < 0.0 => Verdict::Lower,
            () if mean - ci > 0.0 => Verdict::Higher,
            () => Verdict::NotShown,
        }
    }

    /// The verdict for a person: `lower in 20 of 20`.
    ///
    /// Lower and not better: of a share or a throughput nobody but the reader knows which way is good.
    pub fn words(&self) -> String {
        match self.verdict() {
            Verdict::Lower => format!("lower in {} of {}", self.lower, self.summary.count),
            Verdict::Higher => format!("higher in {} of {}", self.higher, self.summary.count),
            Verdict::Equal => "equal".into(),
            Verdict::NotShown => "no difference shown".into(),
            Verdict::TooFew => "too few seeds".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicate::{FigureName, Part};

    fn axis(name: &str, values: &[&str]) -> Axis {
        Axis { name: name.into(), values: values.iter().map(|&v| v.into()).collect() }
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.into(), value.into())
    }

    fn one(value: f64) -> Figures {
        let name = FigureName { part: Part::Observe, name: "x".into(), index: None, figure: "mean".into() };
        Figures { names: vec![name], values: vec![value], ..Figures::default() }
    }

    #[test]
    fn the_last_axis_changes_fastest() {
        let grid = cells(&[axis("a", &["1", "2"]), axis("b", &["x", "y"])]);
        let texts: Vec<String> = grid.iter().map(|cell| format!("{}{}", cell[0].1, cell[1].1)).collect();
        assert_eq!(texts, ["1x", "1y", "2x", "2y"]);
        assert_eq!(cells(&[]), vec![Vec::new()]);
    }

    #[test]
    fn a_baseline_fixes_its_axis_and_leaves_the_others() {
        let axes = [axis("a", &["1", "2", "inf"]), axis("b", &["x", "y"])];
        assert_eq!(baselines(&axes, &[pair("a", "2.0")]).unwrap(), [2, 3, 2, 3, 2, 3]);
        assert_eq!(baselines(&axes, &[pair("b", "y"), pair("a", "inf")]).unwrap(), [5; 6]);
        assert_eq!(baselines(&axes, &[]).unwrap(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(
            baselines(&axes, &[pair("a", "7")]).unwrap_err(),
            "the baseline a=7 is not in the sweep: a is 1, 2, inf"
        );
        assert_eq!(baselines(&axes, &[pair("c", "1")]).unwrap_err(), "the baseline names `c`, which is not swept");
    }

    #[test]
    fn known_runs_are_not_repeated() {
        let mut told = Vec::new();
        let rows = sweep(
            2,
            &[1, 2],
            2,
            &|cell, seed| (cell == 0 && seed == 2).then(|| one(-1.0)),
            |cell, seed| Ok::<_, ()>(one((10 * cell) as f64 + seed as f64)),
            &mut |cell, seed, _| {
                told.push((cell, seed));
                true
            },
        )
        .unwrap();
        let values: Vec<Vec<f64>> = rows.iter().map(|row| row.iter().map(|run| run.values[0]).collect()).collect();
        assert_eq!(values, [[1.0, -1.0], [11.0, 12.0]]);
        told.sort_unstable();
        assert_eq!(told, [(0, 1), (1, 1), (1, 2)]);
    }

    #[test]
    fn an_error_names_its_cell_and_seed() {
        let run = |cell: usize, seed: u64| if cell == 1 && seed >= 8 { Err("no") } else { Ok(one(0.0)) };
        let error = sweep(3, &[7, 8, 9], 3, &|_, _| None, run, &mut |_, _, _| true).unwrap_err();
        assert_eq!(error, SweepError::Failed { cell: 1, seed: 8, error: "no" });
    }

    #[test]
    fn pairing_shows_what_ranges_hide() {
        // The ranges overlap widely; every seed is lower by about one.
        let baseline = [10.0, 20.0, 30.0, 40.0];
        let cell = [9.0, 18.9, 29.1, 39.0];
        let difference = Difference::of(&cell, &baseline);
        assert!((difference.summary.mean + 1.0).abs() < 1e-12);
        assert_eq!(difference.words(), "lower in 4 of 4");
        assert_eq!(Difference::of(&baseline, &cell).words(), "higher in 4 of 4");
        assert_eq!(Difference::of(&[1.0, 2.0, 3.0], &[2.0, 2.0, 2.0]).words(), "no difference shown");
        assert_eq!(Difference::of(&[1.0, f64::INFINITY], &[1.0, f64::INFINITY]).words(), "equal");
        assert_eq!(Difference::of(&[1.0], &[2.0]).words(), "too few seeds");
    }

    #[test]
    fn a_pair_with_a_missing_figure_is_left_out() {
        let difference = Difference::of(&[1.0, f64::NAN, 1.0], &[2.0, 2.0, 2.1]);
        assert_eq!((difference.summary.count, difference.lower), (2, 2));
    }
}
