//! Quantities with units, as they are written on the command line and printed.
//!
//! A network's `b` is a bit and `B` is a byte; prefixes are decimal: 400 Gb/s is 50 GB/s.

use serde::Serialize;

use super::catalogue;
use crate::number::significant;

/// Most tokens, layers and ranks a flag takes: beyond any model, and exact in a double.
const TOKENS_MAX: u64 = 1_000_000_000_000;

/// Links side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Link {
    /// As written.
    pub(crate) name: String,
    /// How many at once.
    pub(crate) count: u32,
    /// Of one of them, line rate.
    pub(crate) bytes_per_s: f64,
}

/// Accelerators that compute together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Accelerators {
    /// The catalogue's name, if it is one of it.
    pub(crate) name: Option<String>,
    pub(crate) count: u32,
    /// Of one of them, dense bf16.
    pub(crate) flop_per_s: f64,
}

/// `400Gb/s`, `8x400Gb/s`, `50GB/s`.
pub(crate) fn link(text: &str) -> Result<Link, String> {
    let name = text.trim();
    let (count, rate) = counted(name)?;
    let wrong = || format!("`{name}` is no link: write 400Gb/s, 50GB/s or 8x400Gb/s");
    let rate = rate.trim();
    let rate = rate.strip_suffix("/s").or_else(|| rate.strip_suffix("ps")).ok_or_else(wrong)?;
    let (rate, bits) = match rate.strip_suffix('B') {
        Some(rate) => (rate, 1.0),
        None => (rate.strip_suffix("bit").or_else(|| rate.strip_suffix('b')).ok_or_else(wrong)?, 8.0),
    };
    let (rate, prefix) = prefixed(rate);
    let bytes_per_s = positive(rate).ok_or_else(wrong)? * prefix / bits;
    Ok(Link { name: name.to_owned(), count, bytes_per_s })
}

/// `8xh100-sxm`, `h100-sxm`, `8x989TFLOP/s`.
pub(crate) fn accelerators(text: &str) -> Result<Accelerators, String> {
    let (count, one) = counted(text.trim())?;
    if let Some(rate) = one.strip_suffix("FLOP/s").or_else(|| one.strip_suffix("FLOPS")) {
        let (rate, prefix) = prefixed(rate);
        let rate = positive(rate).ok_or_else(|| format!("`{one}` is no speed: write 989TFLOP/s"))?;
        return Ok(Accelerators { name: None, count, flop_per_s: rate * prefix });
    }
    let row = catalogue::accelerator(one)?;
    Ok(Accelerators { name: Some(row.name), count, flop_per_s: row.bf16_tflops * 1e12 })
}

/// `10.5ms`, `200us`, `1s`.
pub(crate) fn time(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let wrong = || format!("`{text}` is no time: write 10.5ms, 200us or 1s");
    for (unit, a_second) in [("ms", 1e3), ("us", 1e6), ("µs", 1e6), ("s", 1.0)] {
        if let Some(number) = text.strip_suffix(unit) {
            return positive(number).map(|number| number / a_second).ok_or_else(wrong);
        }
    }
    Err(wrong())
}

/// `85%` or `0.85`: above 0, at most 1.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    fraction(text)
        .filter(|&share| share > 0.0)
        .ok_or_else(|| format!("`{}` is no share: write 85% or 0.85", text.trim()))
}

/// `30%` or `0.3`: from 0, below 1.
pub(crate) fn part(text: &str) -> Result<f64, String> {
    fraction(text)
        .filter(|&part| part < 1.0)
        .ok_or_else(|| format!("`{}` is no part below the whole: write 30% or 0.3", text.trim()))
}

fn fraction(text: &str) -> Option<f64> {
    let text = text.trim();
    let value = match text.strip_suffix('%') {
        Some(number) => number.trim().parse::<f64>().ok()? / 100.0,
        None => text.parse().ok()?,
    };
    (0.0..=1.0).contains(&value).then_some(value + 0.0)
}

/// `4:8`: prefill ranks and decode ranks.
pub(crate) fn ranks(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("`{}` is no pair of ranks: write PREFILL:DECODE, as in 4:8", text.trim());
    let (prefill, decode) = text.split_once(':').ok_or_else(wrong)?;
    let rank = |text: &str| text.trim().parse().ok().filter(|ranks| (1..=65_536).contains(ranks)).ok_or_else(wrong);
    Ok((rank(prefill)?, rank(decode)?))
}

/// A whole number of tokens, from 1.
pub(crate) fn tokens(text: &str) -> Result<u64, String> {
    whole(text).filter(|&tokens| tokens > 0).ok_or_else(|| format!("it must be a whole number from 1 to {TOKENS_MAX}"))
}

/// A whole number of tokens, from 0.
pub(crate) fn tokens_or_none(text: &str) -> Result<u64, String> {
    whole(text).ok_or_else(|| format!("it must be a whole number from 0 to {TOKENS_MAX}"))
}

fn whole(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&number| number <= TOKENS_MAX)
}

/// A finite number above 0, such as `70.55e9`.
pub(crate) fn number(text: &str) -> Result<f64, String> {
    positive(text).ok_or_else(|| "it must be a number above 0, such as 20000 or 70.55e9".to_owned())
}

fn positive(text: &str) -> Option<f64> {
    // Beyond these a product of a few of them is no finite number.
    text.trim().parse().ok().filter(|value| (1e-30..=1e30).contains(value))
}

/// `8xREST`; without a count, 1.
fn counted(text: &str) -> Result<(u32, &str), String> {
    let Some((count, rest)) = text.split_once(['x', '×']) else { return Ok((1, text)) };
    if count.is_empty() || !count.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok((1, text));
    }
    match count.parse() {
        Ok(count) if (1..=65_536).contains(&count) => Ok((count, rest)),
        _ => Err(format!("`{count}` is no count: it is from 1 to 65536")),
    }
}

fn prefixed(text: &str) -> (&str, f64) {
    for (letter, factor) in [('k', 1e3), ('K', 1e3), ('M', 1e6), ('G', 1e9), ('T', 1e12), ('P', 1e15)] {
        if let Some(rest) = text.strip_suffix(letter) {
            return (rest, factor);
        }
    }
    (text, 1.0)
}

/// `327 680 B`, `1.342 GB`.
pub(crate) fn bytes(value: f64, digits: u32) -> String {
    // A token's KV is read in bytes, a prompt's in gigabytes.
    if value < 1e7 && value.fract() == 0.0 {
        return format!("{} B", significant(value, digits));
    }
    scaled(value, digits, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")], "B")
}

/// `50 GB/s`.
pub(crate) fn rate(value: f64, digits: u32) -> String {
    scaled(value, digits, &[(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")], "B/s")
}

/// `989 TFLOP/s`.
pub(crate) fn flop_rate(value: f64) -> String {
    scaled(value, 4, &[(1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s")], "FLOP/s")
}

/// `146 ms`.
pub(crate) fn seconds(value: f64, digits: u32) -> String {
    if value == 0.0 {
        return "0 ms".into();
    }
    // 0.9999996 s is a second, not 1000 ms.
    let unit = if value >= 0.9995 {
        (1.0, "s")
    } else if value >= 0.9995e-3 {
        (1e-3, "ms")
    } else {
        (1e-6, "µs")
    };
    format!("{} {}", significant(value / unit.0, digits), unit.1)
}

/// `18.4 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{} %", significant(share * 100.0, 3))
}

fn scaled(value: f64, digits: u32, units: &[(f64, &str)], plain: &str) -> String {
    let (size, unit) = units.iter().copied().find(|(size, _)| value >= *size).unwrap_or((1.0, plain));
    format!("{} {unit}", significant(value / size, digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_an_eighth_of_a_byte() {
        for (text, count, rate) in [
            ("400Gb/s", 1, 50e9),
            ("400Gbps", 1, 50e9),
            ("50GB/s", 1, 50e9),
            ("8x400Gbit/s", 8, 50e9),
            ("3.2Tb/s", 1, 400e9),
            ("64 MB/s", 1, 64e6),
            ("8b/s", 1, 1.0),
        ] {
            let link = link(text).unwrap();
            assert_eq!((link.count, link.bytes_per_s), (count, rate), "{text}");
        }
        for wrong in
            ["400", "400Gb", "Gb/s", "-1Gb/s", "0x1Gb/s", "99999999x1Gb/s", "x1Gb/s", "nanGb/s", "1e99Gb/s", ""]
        {
            assert!(link(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn accelerators_by_name_or_speed() {
        assert_eq!(accelerators("8xH100-SXM").unwrap().flop_per_s, 989e12);
        assert_eq!(accelerators("2×rtx-a6000").unwrap().count, 2);
        let own = accelerators("4x1.5PFLOP/s").unwrap();
        assert_eq!((own.name, own.count, own.flop_per_s), (None, 4, 1.5e15));
        for wrong in ["h101x", "TFLOP/s", "8x", "", "0xh100-sxm"] {
            assert!(accelerators(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_shares_and_ranks() {
        assert_eq!((time("10.5ms"), time("2s"), time("200us")), (Ok(0.0105), Ok(2.0), Ok(0.0002)));
        assert!(time("5").is_err() && time("ms").is_err() && time("-1s").is_err() && time("infs").is_err());
        assert_eq!((share("85%"), share("0.85"), share("1"), part("0")), (Ok(0.85), Ok(0.85), Ok(1.0), Ok(0.0)));
        assert!(share("0").is_err() && share("101%").is_err() && share("x").is_err() && share("nan").is_err());
        assert!(part("100%").is_err() && part("-1%").is_err());
        assert_eq!(ranks("4:8"), Ok((4, 8)));
        assert!(ranks("4").is_err() && ranks("0:1").is_err() && ranks("4:8:2").is_err());
    }

    #[test]
    fn printed() {
        assert_eq!(bytes(327_680.0, 4), "327 680 B");
        assert_eq!(bytes(1_342_177_280.0, 4), "1.342 GB");
        assert_eq!((rate(50e9, 4), flop_rate(989e12)), ("50 GB/s".into(), "989 TFLOP/s".into()));
        assert_eq!((seconds(0.0268, 3), seconds(0.0, 3)), ("26.8 ms".into(), "0 ms".into()));
        assert_eq!(
            (seconds(1.5, 3), seconds(0.99999, 3), seconds(42e-6, 3)),
            ("1.50 s".into(), "1.00 s".into(), "42 µs".into())
        );
    }
}
