//! Numbers as a person reads them.
//!
//! Files and `--facts` do not use this module: they keep every digit, or a fixed number.

/// What stands for a figure that does not exist.
pub(crate) const NOTHING: &str = "–";

/// With this many significant digits; whole numbers whole, thousands apart.
pub(crate) fn significant(value: f64, digits: u32) -> String {
    if value.is_nan() {
        return NOTHING.into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    if value == 0.0 {
        return "0".into();
    }
    // Rounded first, so that 9.9999 has the digits of 10.
    let exponent = exponent_rounded(value, digits);
    if !(-4..15).contains(&exponent) {
        return format!("{value:.*e}", digits as usize - 1);
    }
    if value.fract() == 0.0 {
        return fixed(value, 0);
    }
    fixed(value, (digits as i32 - 1 - exponent).max(0) as usize)
}

/// A mean and the half-width of its interval, the mean as precise as the half-width lets it be.
pub(crate) fn with_interval(mean: f64, half_width: f64) -> (String, String) {
    if !half_width.is_finite() || !mean.is_finite() || half_width == 0.0 {
        let half = if half_width == 0.0 { "±0".into() } else { String::new() };
        return (significant(mean, 4), half);
    }
    // Two digits of the half-width, unless that is more than the mean is worth.
    let decimals = 1 - exponent_rounded(half_width, 2);
    let most = if mean == 0.0 { decimals } else { 5 - exponent_rounded(mean, 6) };
    if decimals.min(most) > 9 {
        return (significant(mean, 4), format!("±{}", significant(half_width, 2)));
    }
    let decimals = decimals.min(most).max(0) as usize;
    if decimals == 0 && half_width < 0.5 {
        return (significant(mean, 6), format!("±{}", significant(half_width, 1)));
    }
    (fixed(mean, decimals), format!("±{}", fixed(half_width, decimals)))
}

/// Two numbers to be read together: where they are of about one size, with equally many decimals.
pub(crate) fn pair(low: f64, high: f64, digits: u32) -> (String, String) {
    let exponents = [low, high].map(|end| exponent_rounded(end, digits));
    let plain = |end: f64| end.is_finite() && end != 0.0;
    let alike = plain(low) && plain(high) && exponents.iter().all(|e| (-4..digits as i32).contains(e));
    if !alike || exponents[0].abs_diff(exponents[1]) > 1 || (low.fract() == 0.0 && high.fract() == 0.0) {
        return (significant(low, digits), significant(high, digits));
    }
    let decimals = (digits as i32 - 1 - exponents[0].min(exponents[1])).max(0) as usize;
    (fixed(low, decimals), fixed(high, decimals))
}

/// `2.5` as `+2.500`, for differences.
pub(crate) fn signed(value: f64, digits: u32) -> String {
    let text = significant(value, digits);
    match text.strip_prefix('-') {
        Some(rest) => format!("−{rest}"),
        None if value > 0.0 => format!("+{text}"),
        None => text,
    }
}

/// The shortest text that reads back to the same double.
pub(crate) fn exact(value: f64) -> String {
    let size = value.abs();
    if value.is_finite() && size != 0.0 && !(1e-5..1e17).contains(&size) {
        format!("{value:e}")
    } else {
        format!("{value}")
    }
}

/// `1 thing`, `12 345 things`.
pub(crate) fn count(number: u64, thing: &str) -> String {
    let number_text = fixed(number as f64, 0);
    if number == 1 { format!("{number_text} {thing}") } else { format!("{number_text} {thing}s") }
}

/// With this many decimals, thousands apart.
fn fixed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (sign, rest) = text.strip_prefix('-').map_or(("", &text[..]), |rest| ("-", rest));
    let (whole, fraction) = rest.split_once('.').map_or((rest, None), |(whole, fraction)| (whole, Some(fraction)));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        let left = whole.len() - at;
        // 1234 reads well as it is.
        if at > 0 && left % 3 == 0 && whole.len() > 4 {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    let sign = if rest.bytes().all(|b| matches!(b, b'0' | b'.')) { "" } else { sign };
    fraction.map_or_else(|| format!("{sign}{grouped}"), |fraction| format!("{sign}{grouped}.{fraction}"))
}

/// The decimal exponent after rounding to so many digits.
fn exponent_rounded(value: f64, digits: u32) -> i32 {
    let text = format!("{value:.*e}", digits.max(1) as usize - 1);
    text.rsplit_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn significant_digits() {
        for (value, text) in [
            (0.0288, "0.02880"),
            (2.5, "2.500"),
            (9.99996, "10.00"),
            (1234.567, "1235"),
            (12345.67, "12 346"),
            (47595.0, "47 595"),
            (1e300, "1.000e300"),
            (1.5e-7, "1.500e-7"),
            (-3.25, "-3.250"),
            (0.0, "0"),
            (-0.0, "0"),
            (f64::NAN, "–"),
            (f64::INFINITY, "inf"),
            (160_000.0, "160 000"),
        ] {
            assert_eq!(significant(value, 4), text);
        }
    }

    #[test]
    fn a_mean_is_as_precise_as_its_interval() {
        let pair = |mean, half| {
            let (mean, half) = with_interval(mean, half);
            format!("{mean} {half}")
        };
        assert_eq!(pair(0.028_812_34, 0.000_712), "0.02881 ±0.00071");
        assert_eq!(pair(1650.2, 31.0), "1650 ±31");
        assert_eq!(pair(123_456.7, 0.001), "123 457 ±0.001");
        assert_eq!(pair(2.5, f64::NAN), "2.500 ");
        assert_eq!(pair(2.5, 0.0), "2.500 ±0");
        assert_eq!(pair(0.0, 0.25), "0.00 ±0.25");
    }

    #[test]
    fn numbers_read_together_have_equally_many_decimals() {
        let text = |low, high| {
            let (low, high) = pair(low, high, 3);
            format!("{low} – {high}")
        };
        assert_eq!(text(0.9981, 1.0042), "0.998 – 1.004");
        assert_eq!(text(28.31, 30.0), "28.3 – 30.0");
        assert_eq!(text(1.0, 900.25), "1 – 900");
        assert_eq!(text(335.4, 12345.6), "335 – 12 346");
        assert_eq!(text(0.0, 0.25), "0 – 0.250");
        assert_eq!(text(1e-9, 2e-9), "1.00e-9 – 2.00e-9");
    }

    #[test]
    fn exact_text_reads_back() {
        for value in [0.1, 1e300, 5e-324, -2.5, 1.0, 1e22, 0.0, f64::MAX] {
            assert_eq!(exact(value).parse::<f64>().unwrap().to_bits(), value.to_bits());
        }
        assert_eq!(exact(1e300), "1e300");
        assert_eq!(exact(3.0), "3");
    }

    #[test]
    fn differences_have_a_sign() {
        assert_eq!(signed(-0.0008, 2), "−0.00080");
        assert_eq!(signed(3.0, 2), "+3");
        assert_eq!(signed(0.0, 2), "0");
    }
}
