//! Numbers of one format as numbers of another.
//!
//! Everything goes through a single: to a single every format here converts exactly, and from it a
//! number is rounded once, to the nearest, ties to even. Written so that LLVM makes vectors of
//! the loops: no branches, no tables, only the arithmetic of the baseline.
//!
//! How far off the result is, for a finite x in the target's range:
//!
//! | to | at most | below the smallest normal | above the range |
//! |---|---|---|---|
//! | bf16 | 2⁻⁸ · \|x\| | 2⁻¹³⁴ | infinity, from (2 − 2⁻⁸) · 2¹²⁷ |
//! | f16 | 2⁻¹¹ · \|x\| | 2⁻²⁵ | infinity, from 65520 |
//! | fp8 under scale s | 2⁻⁴ · \|x\| | 2⁻¹⁰ · s | ±448 · s |
//!
//! From (2 − 2⁻⁴) · 2¹²⁷ on, the number of the nearest fp8 code under its scale is no single any more, and is
//! read as an infinity.
//!
//! # Invariants
//!
//! - Zeros and NaNs keep their sign. Infinities stay, but fp8 has none: there they become ±448.
//! - A NaN becomes a NaN. A payload that fits the narrower format is kept, so that from a narrow
//!   format to a wide one and back gives the same bits for all of them; fp8 has one NaN.
//! - A scale that is chosen here is a power of two, so to divide by it and to multiply with it again is
//!   exact, and a number is changed by its rounding alone.

use super::descriptor::Element;

/// A format whose numbers stand for themselves.
pub(super) trait Number {
    /// As stored.
    type Bytes: Copy;

    fn split(bytes: &[u8]) -> &[Self::Bytes];
    fn split_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
    fn read(bytes: Self::Bytes) -> f32;
    fn write(number: f32) -> Self::Bytes;
    fn extent(bytes: &[u8]) -> Extent;
}

pub(super) struct F32;
pub(super) struct Bf16;
pub(super) struct F16;

impl Number for F32 {
    type Bytes = [u8; 4];

    fn split(bytes: &[u8]) -> &[[u8; 4]] {
        bytes.as_chunks().0
    }

    fn split_mut(bytes: &mut [u8]) -> &mut [[u8; 4]] {
        bytes.as_chunks_mut().0
    }

    #[inline(always)]
    fn read(bytes: [u8; 4]) -> f32 {
        f32::from_le_bytes(bytes)
    }

    #[inline(always)]
    fn write(number: f32) -> [u8; 4] {
        number.to_le_bytes()
    }

    fn extent(bytes: &[u8]) -> Extent {
        let magnitudes = Self::split(bytes).iter().map(|bytes| (u32::from_le_bytes(*bytes) & MAGNITUDE) as i32);
        let (largest, infinite) = magnitudes.fold((0, false), |(largest, infinite), magnitude| {
            let finite = if magnitude < INFINITY as i32 { magnitude } else { 0 };
            (finite.max(largest), infinite | (magnitude == INFINITY as i32))
        });
        Extent { largest: f32::from_bits(largest as u32), infinite }
    }
}

impl Number for Bf16 {
    type Bytes = [u8; 2];

    fn split(bytes: &[u8]) -> &[[u8; 2]] {
        bytes.as_chunks().0
    }

    fn split_mut(bytes: &mut [u8]) -> &mut [[u8; 2]] {
        bytes.as_chunks_mut().0
    }

    #[inline(always)]
    fn read(bytes: [u8; 2]) -> f32 {
        f32_from_bf16(u16::from_le_bytes(bytes))
    }

    #[inline(always)]
    fn write(number: f32) -> [u8; 2] {
        bf16_from_f32(number).to_le_bytes()
    }

    fn extent(bytes: &[u8]) -> Extent {
        let (largest, infinite) = short_extent(Self::split(bytes), 0x7f80);
        Extent { largest: f32_from_bf16(largest), infinite }
    }
}

impl Number for F16 {
    type Bytes = [u8; 2];

    fn split(bytes: &[u8]) -> &[[u8; 2]] {
        bytes.as_chunks().0
    }

    fn split_mut(bytes: &mut [u8]) -> &mut [[u8; 2]] {
        bytes.as_chunks_mut().0
    }

    #[inline(always)]
    fn read(bytes: [u8; 2]) -> f32 {
        f32_from_f16(u16::from_le_bytes(bytes))
    }

    #[inline(always)]
    fn write(number: f32) -> [u8; 2] {
        f16_from_f32(number).to_le_bytes()
    }

    fn extent(bytes: &[u8]) -> Extent {
        let (largest, infinite) = short_extent(Self::split(bytes), 0x7c00);
        Extent { largest: f32_from_f16(largest), infinite }
    }
}

/// The largest finite magnitude of a format of 16 bits, whose codes go upwards with the numbers, and whether an
/// infinity is among them.
fn short_extent(codes: &[[u8; 2]], infinity: i16) -> (u16, bool) {
    let magnitudes = codes.iter().map(|bytes| (u16::from_le_bytes(*bytes) & 0x7fff) as i16);
    let (largest, infinite) = magnitudes.fold((0, 0), |(largest, infinite): (i16, i16), magnitude| {
        let finite = if magnitude < infinity { magnitude } else { 0 };
        (finite.max(largest), infinite | i16::from(magnitude == infinity))
    });
    (largest as u16, infinite != 0)
}

const MAGNITUDE: u32 = 0x7fff_ffff;
const INFINITY: u32 = 0x7f80_0000;
const MANTISSA: u32 = 0x007f_ffff;

/// A single with the bits of a bf16 above.
#[inline(always)]
pub fn f32_from_bf16(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// The nearest bf16, ties to even.
#[inline(always)]
pub fn bf16_from_f32(number: f32) -> u16 {
    let bits = number.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1))) >> 16;
    let payload = bits >> 16;
    // A payload that is all below would leave an infinity.
    let nan = payload | if payload & 0x7f == 0 { 0x40 } else { 0 };
    (if bits & MAGNITUDE > INFINITY { nan } else { rounded }) as u16
}

/// A half's single.
#[inline(always)]
pub fn f32_from_f16(code: u16) -> f32 {
    const LEAST: u32 = 113 << 23;
    let magnitude = u32::from(code & 0x7fff) << 13;
    let normal = magnitude + (112 << 23);
    // The mantissa of the smallest normal's binade, the binade taken off again: exact.
    let small = (f32::from_bits(magnitude + LEAST) - f32::from_bits(LEAST)).to_bits();
    let special = magnitude + (224 << 23);
    let bits = if magnitude < 1 << 23 {
        small
    } else if magnitude >= 31 << 23 {
        special
    } else {
        normal
    };
    f32::from_bits(bits | u32::from(code & 0x8000) << 16)
}

/// The nearest half, ties to even.
#[inline(always)]
pub fn f16_from_f32(number: f32) -> u16 {
    let bits = number.to_bits();
    let magnitude = bits & MAGNITUDE;
    // 2¹⁶ would be the next number after the largest, and has infinity's code.
    let clamped = f32::from_bits(least(magnitude, 143 << 23));
    let payload = magnitude >> 13 & 0x3ff;
    let nan = 0x7c00 | payload | if payload == 0 { 0x200 } else { 0 };
    let code = if magnitude > INFINITY { nan } else { rounded::<10, -14>(clamped) };
    (code | bits >> 16 & 0x8000) as u16
}

/// The single of a code of fp8 e4m3fn, as under the scale 1.
#[inline(always)]
pub fn f32_from_e4m3(code: u8) -> f32 {
    let magnitude = u32::from(code & 0x7f);
    let normal = (magnitude << 20) + (120 << 23);
    // Steps of 2⁻⁹ below the smallest normal.
    let small = (magnitude as i32 as f32 * (1.0 / 512.0)).to_bits();
    let bits = if magnitude < 8 {
        small
    } else if magnitude == 0x7f {
        0x7fc0_0000
    } else {
        normal
    };
    f32::from_bits(bits | u32::from(code & 0x80) << 24)
}

/// The code of the nearest number of fp8 e4m3fn, ties to even; what is larger than 448, infinities
/// too, becomes 448.
#[inline(always)]
pub fn e4m3_from_f32(number: f32) -> u8 {
    let bits = number.to_bits();
    let magnitude = bits & MAGNITUDE;
    let clamped = f32::from_bits(least(magnitude, 448f32.to_bits()));
    let code = if magnitude > INFINITY { 0x7f } else { rounded::<3, -6>(clamped) };
    (code | bits >> 24 & 0x80) as u8
}

/// The code of a number that is not negative in a format with so many bits of mantissa and that least
/// exponent of a normal number.
///
/// A power of two is added whose last bit is worth the format's last bit at this number, so
/// that the addition rounds. What it added to the bits is the number in the format's last bits: the
/// mantissa with its leading one, or without where the number is below the normal ones.
#[inline(always)]
fn rounded<const BITS: u32, const LEAST: i32>(number: f32) -> u32 {
    let least = (127 + LEAST) as u32;
    let exponent = greatest(number.to_bits() >> 23, least);
    let power = (exponent + 23 - BITS) << 23;
    let steps = (number + f32::from_bits(power)).to_bits().wrapping_sub(power);
    ((exponent - least) << BITS) + steps
}

// Signed, because that comparison is in every machine's vectors; neither has the upper bit.
#[inline(always)]
fn least(one: u32, other: u32) -> u32 {
    (one as i32).min(other as i32) as u32
}

#[inline(always)]
fn greatest(one: u32, other: u32) -> u32 {
    (one as i32).max(other as i32) as u32
}

/// What moves a row of one format into one of another, element by element. The rows have as many
/// elements.
pub(super) type Convert = fn(&[u8], &mut [u8]);

/// For formats without scales; none: the bytes are the same.
pub(super) fn conversion(source: Element, reader: Element) -> Option<Convert> {
    use Element::{Bf16 as B, F16 as H, F32 as S};
    match (source, reader) {
        (S, B) => Some(row::<F32, Bf16>),
        (S, H) => Some(row::<F32, F16>),
        (B, S) => Some(row::<Bf16, F32>),
        (B, H) => Some(row::<Bf16, F16>),
        (H, S) => Some(row::<F16, F32>),
        (H, B) => Some(row::<F16, Bf16>),
        _ => None,
    }
}

fn row<S: Number, R: Number>(source: &[u8], reader: &mut [u8]) {
    for (from, to) in S::split(source).iter().zip(R::split_mut(reader)) {
        *to = R::write(S::read(*from));
    }
}

/// Codes under a scale as numbers.
pub(super) struct Decoder<R: Number> {
    scale: f32,
    /// Every code's number, when so many are to come that it pays.
    numbers: Option<[R::Bytes; 256]>,
}

impl<R: Number> Decoder<R> {
    /// Of this scale, for so many codes.
    pub(super) fn new(scale: f32, codes: usize) -> Self {
        let all = || {
            let mut numbers = [R::write(0.0); 256];
            for (code, number) in numbers.iter_mut().enumerate() {
                *number = R::write(f32_from_e4m3(code as u8) * scale);
            }
            numbers
        };
        Self { scale, numbers: (codes >= 512).then(all) }
    }

    pub(super) fn decode(&self, codes: &[u8], reader: &mut [u8]) {
        let places = codes.iter().zip(R::split_mut(reader));
        match &self.numbers {
            Some(numbers) => places.for_each(|(code, to)| *to = numbers[usize::from(*code)]),
            None => places.for_each(|(code, to)| *to = R::write(f32_from_e4m3(*code) * self.scale)),
        }
    }
}

/// Numbers as codes under the scale whose inverse this is.
pub(super) fn encode<S: Number>(source: &[u8], inverse: f32, codes: &mut [u8]) {
    for (from, code) in S::split(source).iter().zip(codes) {
        *code = e4m3_from_f32(S::read(*from) * inverse);
    }
}

/// Codes under one scale as codes under another one; `factor` is the old divided by the new.
pub(super) fn recode(source: &[u8], factor: f32, codes: &mut [u8]) {
    for (from, code) in source.iter().zip(codes) {
        *code = e4m3_from_f32(f32_from_e4m3(*from) * factor);
    }
}

/// As [`recode`], where they stand.
pub(super) fn recode_in_place(codes: &mut [u8], factor: f32) {
    for code in codes {
        *code = e4m3_from_f32(f32_from_e4m3(*code) * factor);
    }
}

/// What a scale depends on, of numbers that come under it.
#[derive(Clone, Copy, Default)]
pub(super) struct Extent {
    /// The largest finite magnitude.
    largest: f32,
    /// An infinity is among them.
    infinite: bool,
}

impl Extent {
    /// Of both.
    pub(super) fn and(self, other: Self) -> Self {
        Self { largest: self.largest.max(other.largest), infinite: self.infinite || other.infinite }
    }

    /// The least power of two under which the largest finite magnitude is not above 448. 0 when
    /// all numbers are zeros or NaN; 1 when there are infinities besides.
    pub(super) fn scale(self) -> f32 {
        match (self.largest > 0.0, self.infinite) {
            (true, _) => scale_for(self.largest),
            (false, true) => 1.0,
            (false, false) => 0.0,
        }
    }
}

/// The scale of a block's head whose largest finite magnitude is this: the least normal power of
/// two s with magnitude ≤ 448 · s.
pub fn scale_for(magnitude: f32) -> f32 {
    let bits = (magnitude / 448.0).to_bits();
    let exponent = (bits >> 23) + u32::from(bits & MANTISSA != 0);
    f32::from_bits(exponent.max(1) << 23)
}

/// A scale as read from memory: what cannot be one is none, which is 0.
pub(super) fn valid_scale(read: f32) -> f32 {
    if read.is_finite() && read > 0.0 { read } else { 0.0 }
}

/// What to multiply with to come under a scale.
pub(super) fn inverse(scale: f32) -> f32 {
    if scale > 0.0 { 1.0 / scale } else { 1.0 }
}
