//! Vectors without vector instructions of any machine's: arrays of eight, for the compiler.
//!
//! Every product and every sum is rounded by itself, so the same bits come out on every
//! machine.

use half::{bf16, f16};

use super::vector::{Kernel, Vector};

/// Eight lanes.
#[derive(Clone, Copy)]
pub(super) struct Portable;

const LANES: usize = 8;
/// Added and taken away again, it leaves no fraction.
const NO_FRACTION: f32 = 12_582_912.0;

#[inline(always)]
fn each<T: Copy, U: Copy + Default>(a: [T; LANES], f: impl Fn(T) -> U) -> [U; LANES] {
    let mut b = [U::default(); LANES];
    for lane in 0..LANES {
        b[lane] = f(a[lane]);
    }
    b
}

#[inline(always)]
fn both<T: Copy>(mut a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> T) -> [T; LANES] {
    for lane in 0..LANES {
        a[lane] = f(a[lane], b[lane]);
    }
    a
}

impl Vector for Portable {
    const LANES: usize = LANES;
    const TILES: &[(usize, usize)] = &[(2, 4), (1, 4)];
    const BLOCK_TILES: &[(usize, usize)] = &[(2, 2), (1, 2)];
    const PAIRS: bool = true;
    type F = [f32; LANES];
    type I = [i32; LANES];

    #[inline(always)]
    fn call(self, kernel: impl Kernel) {
        #[inline(never)]
        fn called(kernel: impl Kernel) {
            kernel.run(Portable);
        }
        called(kernel);
    }

    #[inline(always)]
    fn splat(self, number: f32) -> Self::F {
        [number; LANES]
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        // SAFETY: the caller says that `LANES` singles are there; an array may stand anywhere
        // they may.
        unsafe { from.cast::<Self::F>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: Self::F) {
        // SAFETY: as in `load`.
        unsafe { to.cast::<Self::F>().write_unaligned(a) };
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        self.add(self.mul(a, b), c)
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        each(a, f32::abs)
    }

    #[inline(always)]
    fn nearest(self, a: Self::F) -> Self::F {
        each(a, |a| (a + NO_FRACTION) - NO_FRACTION)
    }

    #[inline(always)]
    fn power_of_two(self, n: Self::F) -> Self::F {
        each(n, |n| f32::from_bits(((n as i32 + 127) << 23) as u32))
    }

    #[inline(always)]
    fn where_above(self, x: Self::F, limit: Self::F, mut a: Self::F) -> Self::F {
        for lane in 0..LANES {
            a[lane] = if x[lane] > limit[lane] { a[lane] } else { 0.0 };
        }
        a
    }

    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        a.into_iter().sum()
    }

    #[inline(always)]
    fn largest(self, a: Self::F) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Self::F {
        // SAFETY: as in `load`.
        each(unsafe { from.cast::<[u16; LANES]>().read_unaligned() }, |bits| f16::from_bits(bits).to_f32_const())
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, a: Self::F) {
        // SAFETY: as in `load`.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(each(a, |a| bf16::from_f32(a).to_bits())) };
    }

    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8, a: Self::F) {
        // SAFETY: as in `load`.
        unsafe { to.cast::<[i8; LANES]>().write_unaligned(each(a, |a| a as i8)) };
    }

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}

    #[inline(always)]
    fn splat_word(self, word: i32) -> Self::I {
        [word; LANES]
    }

    #[inline(always)]
    unsafe fn load_splat_word(self, from: *const u8) -> Self::I {
        // SAFETY: the caller says that a word is there.
        [unsafe { from.cast::<i32>().read_unaligned() }; LANES]
    }

    #[inline(always)]
    unsafe fn load_words(self, from: *const u8) -> Self::I {
        // SAFETY: as in `load`.
        unsafe { from.cast::<Self::I>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_words(self, to: *mut u32, a: Self::I) {
        // SAFETY: as in `load`.
        unsafe { to.cast::<Self::I>().write_unaligned(a) };
    }

    #[inline(always)]
    unsafe fn load_shorts(self, from: *const u16) -> Self::I {
        // SAFETY: as in `load`.
        each(unsafe { from.cast::<[u16; LANES]>().read_unaligned() }, i32::from)
    }

    #[inline(always)]
    fn pair(self, low: Self::I, high: Self::I) -> Self::I {
        both(low, high, |low, high| low | high << 16)
    }

    #[inline(always)]
    unsafe fn transpose(self, rows: &[*const u8], to: *mut u32, stride: usize) {
        for (index, row) in rows.iter().enumerate().take(LANES) {
            for word in 0..LANES {
                // SAFETY: the caller says that the rows' words are there, and have room.
                unsafe { to.add(word * stride + index).write(row.cast::<u32>().add(word).read_unaligned()) };
            }
        }
    }

    #[inline(always)]
    fn to_singles(self, a: Self::I) -> Self::F {
        each(a, |a| a as f32)
    }

    #[inline(always)]
    fn low_nibbles(self, a: Self::I) -> Self::I {
        each(a, |a| a & 0x0f0f_0f0f)
    }

    #[inline(always)]
    fn high_nibbles(self, a: Self::I) -> Self::I {
        each(a, |a| (a >> 4) & 0x0f0f_0f0f)
    }

    #[inline(always)]
    fn low_bf16(self, a: Self::I) -> Self::F {
        each(a, |word| f32::from_bits((word << 16) as u32))
    }

    #[inline(always)]
    fn high_bf16(self, a: Self::I) -> Self::F {
        each(a, |word| f32::from_bits(word as u32 & 0xffff_0000))
    }

    #[inline(always)]
    fn dot_bytes(self, mut sum: Self::I, a: Self::I, b: Self::I) -> Self::I {
        for lane in 0..LANES {
            for byte in 0..4 {
                let a = (a[lane] >> (8 * byte)) & 0xff;
                let b = (b[lane] << (24 - 8 * byte)) >> 24;
                sum[lane] += a * b;
            }
        }
        sum
    }

    #[inline(always)]
    fn dot_nibbles(self, sum: Self::I, a: Self::I, b: Self::I) -> Self::I {
        self.dot_bytes(sum, a, b)
    }
}
