//! A chart as SVG: curves, bands, limits, on a linear axis, a logarithmic one, or words.
//!
//! Charts are drawn as wide as a phone and scaled with the page, so that their letters stay
//! legible there. Colours are the light ones; the page's style replaces them in the dark by the
//! attribute they stand in.
//!
//! The library's sizes are whole numbers, so a picture is drawn in finer units than the page's.
//!
//! # Invariants
//!
//! - A chart with a curve has an axis of some length, whatever the curve's values.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::number::significant;

/// Units of a picture in one of the page's: the library draws at whole ones.
const FINE: i32 = 4;
/// Values beyond are at the edge.
const LARGEST: f64 = 1e100;
const WIDTH: i32 = 290;
const HEIGHT: i32 = 150;
/// Of letters.
const SIZE: i32 = 12;

const INK: RGBColor = RGBColor(0x4d, 0x55, 0x5f);
const GRID: RGBColor = RGBColor(0xdd, 0xe2, 0xe7);
const LIMIT: RGBColor = RGBColor(0xc8, 0x1e, 0x3a);

/// The colours of curves, in their order; `style.css` has them again for the dark.
pub(super) const COLOURS: [RGBColor; 8] = [
    RGBColor(0x2f, 0x6f, 0xbf),
    RGBColor(0xb2, 0x5a, 0x10),
    RGBColor(0x2a, 0x7d, 0x3c),
    RGBColor(0x7a, 0x4b, 0xb5),
    RGBColor(0x0e, 0x7c, 0x86),
    RGBColor(0xb0, 0x3a, 0x78),
    RGBColor(0x7d, 0x6a, 0x12),
    RGBColor(0x59, 0x63, 0x6e),
];

/// A line, and what it may be within.
pub(super) struct Curve {
    pub(super) points: Vec<(f64, f64)>,
    /// x, low, high.
    pub(super) band: Vec<(f64, f64, f64)>,
    /// Dots at the points.
    pub(super) dots: bool,
}

/// What x is.
pub(super) enum Axis {
    Linear(f64, f64),
    Log(f64, f64),
    /// Words at 0, 1, 2 …
    Words(Vec<String>),
}

/// The chart.
pub(super) struct Chart {
    pub(super) x: Axis,
    /// From 0 where it is to be seen as a whole; else as the curves lie.
    pub(super) from_zero: bool,
    /// The top, where it is known.
    pub(super) top: Option<f64>,
    pub(super) percent: bool,
    pub(super) curves: Vec<Curve>,
    /// An upright line at x.
    pub(super) limit: Option<f64>,
}

impl Chart {
    /// Draws.
    pub(super) fn draw(&self) -> String {
        let mut svg = String::new();
        {
            let size = ((WIDTH * FINE) as u32, (HEIGHT * FINE) as u32);
            let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            let y = self.y_range();
            // Into memory: nothing can fail but the library itself, and then there is no picture.
            let (left, right) = self.x_range();
            let drawn = match &self.x {
                Axis::Log(..) => self.paint(&area, (left..right).log_scale(), y),
                Axis::Linear(..) | Axis::Words(_) => self.paint(&area, left..right, y),
            };
            drop(drawn);
        }
        svg
    }

    /// The ends of the axis.
    fn x_range(&self) -> (f64, f64) {
        match &self.x {
            Axis::Linear(from, to) => (from.clamp(-LARGEST, LARGEST), more(*from, *to)),
            Axis::Log(from, to) => (from.clamp(1.0 / LARGEST, LARGEST), more(*from, *to)),
            Axis::Words(words) => (-0.25, words.len() as f64 - 0.75),
        }
    }

    fn y_range(&self) -> std::ops::Range<f64> {
        let of_curve = |curve: &Curve| {
            let bands = curve.band.iter().flat_map(|(_, low, high)| [*low, *high]).collect::<Vec<f64>>();
            curve.points.iter().map(|(_, y)| *y).chain(bands).collect::<Vec<f64>>()
        };
        let values: Vec<f64> = self.curves.iter().flat_map(of_curve).filter(|y| y.is_finite()).collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if values.is_empty() {
            return 0.0..1.0;
        }
        let low = if self.from_zero { low.min(0.0) } else { low };
        let high = self.top.unwrap_or(high);
        let air = if self.top.is_some() { 0.0 } else { (high - low) * 0.06 };
        let bottom = if self.from_zero && low == 0.0 { 0.0 } else { low - air };
        bottom.clamp(-LARGEST, LARGEST)..more(bottom, high + air)
    }

    fn paint<X>(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        x: X,
        y: std::ops::Range<f64>,
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let error = |_| "the picture can't be drawn";
        let bottom = y.start;
        // What lies far outside can't be placed: it is at the edge.
        let (left, right) = self.x_range();
        let (low, high) = (y.start, y.end);
        let within = |x: f64, y: f64| (x.clamp(left, right), y.clamp(low, high));
        let words = matches!(self.x, Axis::Words(_));
        let mut chart = ChartBuilder::on(area)
            .margin_top(6 * FINE)
            .margin_right(18 * FINE)
            .x_label_area_size(20 * FINE)
            .y_label_area_size(46 * FINE)
            .build_cartesian_2d(x, y)
            .map_err(error)?;
        let percent = self.percent;
        chart
            .configure_mesh()
            .x_labels(if words { 0 } else { 6 })
            .y_labels(5)
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.stroke_width(FINE as u32))
            .axis_style(INK.stroke_width(FINE as u32))
            .label_style(("sans-serif", SIZE * FINE).into_font().color(&INK))
            .x_label_formatter(&|x| label(*x))
            .y_label_formatter(&|y| if percent { format!("{} %", label(100.0 * y)) } else { label(*y) })
            .draw()
            .map_err(error)?;
        // The first is on top.
        for (at, curve) in self.curves.iter().enumerate().rev() {
            let colour = COLOURS[at % COLOURS.len()];
            let band: Vec<_> = curve.band.iter().filter(|(_, low, high)| low.is_finite() && high.is_finite()).collect();
            let points = || curve.points.iter().filter(|(_, y)| y.is_finite()).map(|&(x, y)| within(x, y));
            if !band.is_empty() {
                let there = band.iter().map(|&&(x, low, _)| within(x, low));
                let back = band.iter().rev().map(|&&(x, _, high)| within(x, high));
                let outline: Vec<(f64, f64)> = there.chain(back).collect();
                chart.draw_series([Polygon::new(outline, colour.mix(0.22))]).map_err(error)?;
            }
            let style = colour.stroke_width(5 * FINE as u32 / 4);
            chart.draw_series(LineSeries::new(points(), style)).map_err(error)?;
            if curve.dots {
                let dots = points().map(|point| Circle::new(point, 3 * FINE, colour.filled()));
                chart.draw_series(dots).map_err(error)?;
            }
        }
        if let Some(limit) = self.limit.filter(|limit| (left..=right).contains(limit)) {
            let top = chart.y_range().end;
            let style = LIMIT.stroke_width(FINE as u32);
            chart.draw_series([PathElement::new(vec![(limit, bottom), (limit, top)], style)]).map_err(error)?;
        }
        if let Axis::Words(words) = &self.x {
            let style = TextStyle::from(("sans-serif", SIZE * FINE).into_font())
                .color(&INK)
                .pos(Pos::new(HPos::Center, VPos::Top));
            for (at, word) in words.iter().enumerate() {
                let (x, y) = chart.backend_coord(&(at as f64, bottom));
                area.draw(&Text::new(word.clone(), (x, y + 5 * FINE), style.clone())).map_err(error)?;
            }
        }
        area.present().map_err(error)?;
        Ok(())
    }
}

/// An end that is well above the start: ticks closer than a double can tell apart would never end.
fn more(start: f64, end: f64) -> f64 {
    let (start, end) = (start.clamp(-LARGEST, LARGEST), end.clamp(-LARGEST, LARGEST));
    if end > start && end - start > 1e-6 * start.abs().max(end.abs()) && end - start > 1.0 / LARGEST {
        end
    } else {
        start + start.abs().max(1.0)
    }
}

/// A number at an axis. Sums of tenths end in many nines.
fn label(value: f64) -> String {
    let text = significant(if value.abs() < 1e-12 { 0.0 } else { value }, 3);
    if !text.contains('.') || text.contains('e') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(x: Axis, points: &[(f64, f64)]) -> String {
        let band = points.iter().map(|&(x, y)| (x, y, y)).collect();
        let curves = vec![Curve { points: points.to_vec(), band, dots: true }];
        Chart { x, from_zero: false, top: None, percent: false, curves, limit: Some(1.0) }.draw()
    }

    /// A curve of extremes is no pretty one, but it is drawn, and in no time.
    #[test]
    fn extreme_values_are_drawn() {
        let tiny = f64::from_bits(1);
        for (low, high) in [(0.0, tiny), (0.0, f64::MAX), (1e15, 1e15 + 0.125), (-3.0, -3.0), (-f64::MAX, f64::MAX)] {
            let points = [(low, low), (high, high), (low, f64::INFINITY), (low, f64::NAN)];
            let svg = chart(Axis::Linear(low, high), &points);
            assert!(svg.ends_with("</svg>\n") && svg.contains("<text"), "{low}, {high}: {svg}");
            if low > 0.0 {
                assert!(chart(Axis::Log(low, high), &points).contains("<text"));
            }
        }
        assert!(chart(Axis::Words(vec!["a".into(), "b".into()]), &[(0.0, 2.0), (1.0, 3.0)]).contains("a\n</text>"));
        assert!(chart(Axis::Linear(0.0, 1.0), &[]).contains("<text"));
    }
}
