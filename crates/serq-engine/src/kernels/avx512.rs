//! Vectors of 512 bits with byte products: Ice Lake and Zen 4 on. With `PAIRS` bf16 are
//! multiplied in pairs.
//!
//! Products and sums are fused where `mul_add` says so. `vdpbf16ps` takes subnormal numbers
//! for 0, and so does `vcvtneps2bf16`.

use std::arch::x86_64::*;

use super::vector::{Kernel, Vector};
use super::x86;

/// Sixteen lanes. A value exists only where [`Avx512::detect`] found the instructions.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const PAIRS: bool>(());

impl<const PAIRS: bool> Avx512<PAIRS> {
    /// Asks the machine.
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && (!PAIRS || is_x86_feature_detected!("avx512bf16")))
        .then_some(Self(()))
    }
}

/// Whether this machine multiplies pairs of bf16 more slowly than it multiplies singles: Intel's
/// begin a `vdpbf16ps` every other cycle, and two `vfmadd231ps` a cycle (measured on a Sapphire
/// Rapids: 176 GFLOP/s of 372); AMD's begin as many of both.
pub(super) fn pairs_are_slow() -> bool {
    let vendor = __cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline(never)]
fn called(v: Avx512<false>, kernel: impl Kernel) {
    kernel.run(v);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
#[inline(never)]
fn called_with_pairs(v: Avx512<true>, kernel: impl Kernel) {
    kernel.run(v);
}

x86::two_products!(__m512, zmm_reg, "avx512f");

// SAFETY of all calls below: a value of `Avx512` proves the instructions. Where a pointer is
// followed, the caller says that as many numbers are there as the vector has.
impl<const PAIRS: bool> Vector for Avx512<PAIRS> {
    const LANES: usize = 16;
    // 24 sums leave registers for two vectors of weights.
    const TILES: &[(usize, usize)] =
        &[(12, 2), (8, 2), (6, 2), (4, 4), (4, 2), (3, 4), (3, 2), (2, 4), (2, 2), (1, 4), (1, 2)];
    // A block's weights take eight registers.
    const BLOCK_TILES: &[(usize, usize)] = &[(12, 1), (8, 1), (4, 2), (2, 2), (1, 4), (1, 2)];
    const PAIRS: bool = PAIRS;
    type F = __m512;
    type I = __m512i;

    #[inline(always)]
    fn call(self, kernel: impl Kernel) {
        if PAIRS { unsafe { called_with_pairs(Avx512(()), kernel) } } else { unsafe { called(Avx512(()), kernel) } }
    }

    #[inline(always)]
    fn splat(self, number: f32) -> __m512 {
        unsafe { _mm512_set1_ps(number) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: __m512) {
        unsafe { _mm512_storeu_ps(to, a) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn add_two_products(self, sums: [__m512; 2], number: *const f32, others: [__m512; 2]) -> [__m512; 2] {
        unsafe { add_two_products(sums, number, others) }
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        unsafe { _mm512_abs_ps(a) }
    }

    #[inline(always)]
    fn nearest(self, a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    fn power_of_two(self, n: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(_mm512_set1_ps(1.0), n) }
    }

    #[inline(always)]
    fn where_above(self, x: __m512, limit: __m512, a: __m512) -> __m512 {
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, limit), a) }
    }

    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(a) }
    }

    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(a) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, a: __m512) {
        if PAIRS {
            unsafe { to.cast::<__m256bh>().write_unaligned(_mm512_cvtneps_pbh(a)) }
        } else {
            unsafe {
                let words = _mm512_castps_si512(a);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(words), _mm512_set1_epi32(1));
                let rounded = _mm512_add_epi32(words, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
                // Of what is not a number, a bit is kept that says so.
                let unordered = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
                let rounded = _mm512_mask_or_epi32(rounded, unordered, words, _mm512_set1_epi32(0x40_0000));
                _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded)));
            }
        }
    }

    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8, a: __m512) {
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a))) }
    }

    #[inline(always)]
    fn prefetch(self, line: *const u8) {
        // What is not there is not asked for.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }

    #[inline(always)]
    fn splat_word(self, word: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(word) }
    }

    #[inline(always)]
    unsafe fn load_splat_word(self, from: *const u8) -> __m512i {
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_words(self, from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_words(self, to: *mut u32, a: __m512i) {
        unsafe { _mm512_storeu_si512(to.cast(), a) }
    }

    #[inline(always)]
    unsafe fn load_shorts(self, from: *const u16) -> __m512i {
        unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    fn pair(self, low: __m512i, high: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(low, _mm512_slli_epi32::<16>(high)) }
    }

    #[inline(always)]
    unsafe fn transpose(self, rows: &[*const u8], to: *mut u32, stride: usize) {
        unsafe {
            let mut a = [_mm512_setzero_si512(); 16];
            for (a, row) in a.iter_mut().zip(rows) {
                *a = _mm512_loadu_si512(row.cast());
            }
            // Within quarters: word j of the quarters of four rows.
            let mut b = a;
            for at in (0..16).step_by(2) {
                b[at] = _mm512_unpacklo_epi32(a[at], a[at + 1]);
                b[at + 1] = _mm512_unpackhi_epi32(a[at], a[at + 1]);
            }
            for at in (0..16).step_by(4) {
                a[at] = _mm512_unpacklo_epi64(b[at], b[at + 2]);
                a[at + 1] = _mm512_unpackhi_epi64(b[at], b[at + 2]);
                a[at + 2] = _mm512_unpacklo_epi64(b[at + 1], b[at + 3]);
                a[at + 3] = _mm512_unpackhi_epi64(b[at + 1], b[at + 3]);
            }
            // Then quarters: the even ones of all rows, and the odd ones.
            for word in 0..4 {
                let (first, last) = ((a[word], a[word + 4]), (a[word + 8], a[word + 12]));
                let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(first.0, first.1);
                let odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(first.0, first.1);
                let even_last = _mm512_shuffle_i32x4::<0b10_00_10_00>(last.0, last.1);
                let odd_last = _mm512_shuffle_i32x4::<0b11_01_11_01>(last.0, last.1);
                self.store_words(to.add(word * stride), _mm512_shuffle_i32x4::<0b10_00_10_00>(even, even_last));
                self.store_words(to.add((word + 4) * stride), _mm512_shuffle_i32x4::<0b10_00_10_00>(odd, odd_last));
                self.store_words(to.add((word + 8) * stride), _mm512_shuffle_i32x4::<0b11_01_11_01>(even, even_last));
                self.store_words(to.add((word + 12) * stride), _mm512_shuffle_i32x4::<0b11_01_11_01>(odd, odd_last));
            }
        }
    }

    #[inline(always)]
    fn to_singles(self, a: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn low_nibbles(self, a: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    fn high_nibbles(self, a: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(a), _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    fn low_bf16(self, a: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(a)) }
    }

    #[inline(always)]
    fn high_bf16(self, a: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(-0x1_0000))) }
    }

    #[inline(always)]
    fn dot_bf16(self, sum: __m512, a: __m512i, b: __m512i) -> __m512 {
        assert!(PAIRS, "singles are multiplied one by one");
        // SAFETY: both are 64 bytes of which every value is one.
        let [a, b]: [__m512bh; 2] = unsafe { std::mem::transmute([a, b]) };
        unsafe { _mm512_dpbf16_ps(sum, a, b) }
    }

    #[inline(always)]
    fn dot_bytes(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sum, a, b) }
    }

    #[inline(always)]
    fn dot_nibbles(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        self.dot_bytes(sum, a, b)
    }
}
