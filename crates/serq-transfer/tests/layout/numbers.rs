//! Formats of numbers against `half`, the definition of e4m3fn, and the stated bounds.

use half::{bf16, f16};
use serq_transfer::layout::number::{
    bf16_from_f32, e4m3_from_f32, f16_from_f32, f32_from_bf16, f32_from_e4m3, f32_from_f16, scale_for,
};

use crate::naive;
use crate::shapes::Draws;

/// Bits of singles: all exponents with the mantissas around every place where something is rounded, and at random.
fn singles() -> impl Iterator<Item = f32> {
    let edges = (0..=255_u32).flat_map(|exponent| {
        (0..=23).flat_map(move |bit| [0, 1, 2].map(move |near| (exponent << 23) + ((1 << bit) - 1 + near)))
    });
    let mut draws = Draws(10);
    let drawn = (0..2_000_000).map(move |_| draws.next() as u32);
    let ties = (0..=0xffff_u32)
        .flat_map(|upper| [0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001].map(|low| upper << 16 | low));
    edges.chain(drawn).chain(ties).flat_map(|bits| [bits, bits | 1 << 31]).map(f32::from_bits)
}

#[test]
fn every_narrow_number_is_read_exactly_and_written_back_with_the_same_bits() {
    for code in 0..=u16::MAX {
        let (half, brain) = (f16::from_bits(code), bf16::from_bits(code));
        if !half.is_nan() {
            assert_eq!(f32_from_f16(code).to_bits(), half.to_f32().to_bits(), "f16 {code:#06x}");
        }
        if !brain.is_nan() {
            assert_eq!(f32_from_bf16(code).to_bits(), brain.to_f32().to_bits(), "bf16 {code:#06x}");
        }
        assert_eq!(f32_from_f16(code).is_nan(), half.is_nan());
        assert_eq!(f16_from_f32(f32_from_f16(code)), code, "NaNs with their payloads too");
        assert_eq!(bf16_from_f32(f32_from_bf16(code)), code, "NaNs with their payloads too");
    }
    for code in 0..=u8::MAX {
        let (found, expected) = (f32_from_e4m3(code), naive::e4m3(code));
        assert!(f64::from(found) == expected || found.is_nan() && expected.is_nan(), "{code:#04x}: {found}");
        assert_eq!(found.is_sign_negative(), expected.is_sign_negative());
        assert_eq!(e4m3_from_f32(found), code);
    }
}

#[test]
fn singles_are_rounded_to_the_nearest_as_half_does() {
    for number in singles() {
        if number.is_nan() {
            assert!(f32_from_f16(f16_from_f32(number)).is_nan() && f32_from_bf16(bf16_from_f32(number)).is_nan());
            let sign = number.is_sign_negative();
            assert_eq!(f32_from_f16(f16_from_f32(number)).is_sign_negative(), sign);
            assert_eq!(f32_from_bf16(bf16_from_f32(number)).is_sign_negative(), sign);
            assert_eq!(e4m3_from_f32(number), if sign { 0xff } else { 0x7f });
            continue;
        }
        assert_eq!(f16_from_f32(number), f16::from_f32(number).to_bits(), "f16 of {number:e}");
        assert_eq!(bf16_from_f32(number), bf16::from_f32(number).to_bits(), "bf16 of {number:e}");
    }
}

#[test]
fn singles_are_rounded_to_the_nearest_code_of_e4m3() {
    for number in singles().step_by(7).filter(|number| !number.is_nan()) {
        assert_eq!(e4m3_from_f32(number), naive::to_e4m3(f64::from(number)), "{number:e}");
    }
    // Every tie, and its neighbours.
    for code in 0..0x7e_u8 {
        let tie = ((naive::e4m3(code) + naive::e4m3(code + 1)) / 2.0) as f32;
        for number in [tie, tie.next_down(), tie.next_up(), -tie] {
            assert_eq!(e4m3_from_f32(number), naive::to_e4m3(f64::from(number)), "{number:e}");
        }
    }
    for (number, code) in [(448.0, 0x7e), (449.0, 0x7e), (1e30, 0x7e), (f32::INFINITY, 0x7e), (-f32::INFINITY, 0xfe)] {
        assert_eq!(e4m3_from_f32(number), code);
    }
    assert_eq!([e4m3_from_f32(0.0), e4m3_from_f32(-0.0)], [0, 0x80]);
}

/// The table in `docs/kv-layouts.md`.
#[test]
fn rounding_is_within_the_stated_bounds_and_reaches_them() {
    let mut worst = [0f64; 2];
    for number in singles().filter(|number| number.is_finite()) {
        let exact = f64::from(number);
        let error = |found: f32| (f64::from(found) - exact).abs();
        if number.abs() < 65520.0 {
            let error = error(f32_from_f16(f16_from_f32(number)));
            assert!(error <= (exact.abs() * 2f64.powi(-11)).max(2f64.powi(-25)), "f16 of {number:e}");
            if number.abs() >= 2f32.powi(-14) {
                worst[0] = worst[0].max(error / exact.abs());
            }
        } else {
            assert!(f32_from_f16(f16_from_f32(number)).is_infinite());
        }
        let found = f32_from_bf16(bf16_from_f32(number));
        if found.is_finite() {
            let error = error(found);
            assert!(error <= (exact.abs() * 2f64.powi(-8)).max(2f64.powi(-134)), "bf16 of {number:e}");
            if number.abs() >= f32::MIN_POSITIVE {
                worst[1] = worst[1].max(error / exact.abs());
            }
        } else {
            assert!(exact.abs() >= (2.0 - 2f64.powi(-8)) * 2f64.powi(127));
        }
    }
    assert!(worst[0] > 0.99 * 2f64.powi(-11) && worst[1] > 0.99 * 2f64.powi(-8), "{worst:?}");
}

#[test]
fn a_scale_is_the_least_power_of_two_under_which_a_number_fits() {
    for number in singles().filter(|number| number.is_finite() && *number > 0.0).step_by(3) {
        let scale = scale_for(number);
        assert_eq!(scale.to_bits() & 0x007f_ffff, 0, "a power of two");
        assert!(f64::from(number) <= 448.0 * f64::from(scale), "{number:e} under {scale:e}");
        let half = f64::from(scale) / 2.0;
        assert!(f64::from(number) > 448.0 * half || scale == f32::MIN_POSITIVE, "{number:e} under {scale:e}");
        assert!(scale.is_normal() && (1.0 / scale).is_normal(), "to divide is exact");
    }
}
