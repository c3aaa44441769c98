//! Vectors of 256 bits: Haswell and Zen on.
//!
//! Products and sums are fused where `mul_add` says so. Products of bytes are sums of 16 bits
//! on their way, which are kept from saturating.

use std::arch::x86_64::*;

use super::vector::{Kernel, Vector};
use super::x86;

/// Eight lanes. A value exists only where [`Avx2::detect`] found the instructions.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// Asks the machine.
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"))
            .then_some(Self(()))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
fn called(v: Avx2, kernel: impl Kernel) {
    kernel.run(v);
}

x86::two_products!(__m256, ymm_reg, "avx2,fma");

// SAFETY of all calls below: a value of `Avx2` proves the instructions. Where a pointer is
// followed, the caller says that as many numbers are there as the vector has.
impl Vector for Avx2 {
    const LANES: usize = 8;
    // 12 sums leave registers for two vectors of weights.
    const TILES: &[(usize, usize)] = &[(6, 2), (4, 2), (2, 4), (1, 4)];
    const BLOCK_TILES: &[(usize, usize)] = &[(4, 1), (2, 2), (1, 2)];
    const PAIRS: bool = false;
    type F = __m256;
    type I = __m256i;

    #[inline(always)]
    fn call(self, kernel: impl Kernel) {
        unsafe { called(self, kernel) }
    }

    #[inline(always)]
    fn splat(self, number: f32) -> __m256 {
        unsafe { _mm256_set1_ps(number) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: __m256) {
        unsafe { _mm256_storeu_ps(to, a) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn add_two_products(self, sums: [__m256; 2], number: *const f32, others: [__m256; 2]) -> [__m256; 2] {
        unsafe { add_two_products(sums, number, others) }
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }

    #[inline(always)]
    fn nearest(self, a: __m256) -> __m256 {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    fn power_of_two(self, n: __m256) -> __m256 {
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
        }
    }

    #[inline(always)]
    fn where_above(self, x: __m256, limit: __m256, a: __m256) -> __m256 {
        unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(x, limit), a) }
    }

    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        unsafe {
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        }
    }

    #[inline(always)]
    fn largest(self, a: __m256) -> f32 {
        unsafe {
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, a: __m256) {
        unsafe {
            let words = _mm256_castps_si256(a);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(words), _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_add_epi32(words, half);
            // Of what is not a number, a bit is kept that says so.
            let unordered = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(a, a));
            let quiet = _mm256_or_si256(words, _mm256_set1_epi32(0x40_0000));
            let high = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, unordered));
            let halves = _mm256_packus_epi32(high, high);
            let halves = _mm256_permute4x64_epi64::<0b1000>(halves);
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(halves));
        }
    }

    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8, a: __m256) {
        unsafe {
            let words = _mm256_cvtps_epi32(a);
            let shorts = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storel_epi64(to.cast(), _mm_packs_epi16(shorts, shorts));
        }
    }

    #[inline(always)]
    fn prefetch(self, line: *const u8) {
        // What is not there is not asked for.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }

    #[inline(always)]
    fn splat_word(self, word: i32) -> __m256i {
        unsafe { _mm256_set1_epi32(word) }
    }

    #[inline(always)]
    unsafe fn load_splat_word(self, from: *const u8) -> __m256i {
        unsafe { _mm256_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_words(self, from: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_words(self, to: *mut u32, a: __m256i) {
        unsafe { _mm256_storeu_si256(to.cast(), a) }
    }

    #[inline(always)]
    unsafe fn load_shorts(self, from: *const u16) -> __m256i {
        unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    fn pair(self, low: __m256i, high: __m256i) -> __m256i {
        unsafe { _mm256_or_si256(low, _mm256_slli_epi32::<16>(high)) }
    }

    #[inline(always)]
    unsafe fn transpose(self, rows: &[*const u8], to: *mut u32, stride: usize) {
        unsafe {
            let mut a = [_mm256_setzero_si256(); 8];
            for (a, row) in a.iter_mut().zip(rows) {
                *a = _mm256_loadu_si256(row.cast());
            }
            // Within halves: word j of the halves of four rows.
            let mut b = a;
            for at in (0..8).step_by(2) {
                b[at] = _mm256_unpacklo_epi32(a[at], a[at + 1]);
                b[at + 1] = _mm256_unpackhi_epi32(a[at], a[at + 1]);
            }
            for at in [0, 4] {
                a[at] = _mm256_unpacklo_epi64(b[at], b[at + 2]);
                a[at + 1] = _mm256_unpackhi_epi64(b[at], b[at + 2]);
                a[at + 2] = _mm256_unpacklo_epi64(b[at + 1], b[at + 3]);
                a[at + 3] = _mm256_unpackhi_epi64(b[at + 1], b[at + 3]);
            }
            // Then halves.
            for word in 0..4 {
                let (first, last) = (a[word], a[word + 4]);
                self.store_words(to.add(word * stride), _mm256_permute2x128_si256::<0x20>(first, last));
                self.store_words(to.add((word + 4) * stride), _mm256_permute2x128_si256::<0x31>(first, last));
            }
        }
    }

    #[inline(always)]
    fn to_singles(self, a: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn low_nibbles(self, a: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, _mm256_set1_epi8(15)) }
    }

    #[inline(always)]
    fn high_nibbles(self, a: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(_mm256_srli_epi16::<4>(a), _mm256_set1_epi8(15)) }
    }

    #[inline(always)]
    fn low_bf16(self, a: __m256i) -> __m256 {
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(a)) }
    }

    #[inline(always)]
    fn high_bf16(self, a: __m256i) -> __m256 {
        unsafe { _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32(-0x1_0000))) }
    }

    #[inline(always)]
    fn dot_bytes(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // 255 · 127 · 2 is more than 16 bits hold, 128 · 127 · 2 is not.
        let top = unsafe { _mm256_and_si256(a, _mm256_set1_epi8(-128)) };
        let rest = unsafe { _mm256_andnot_si256(_mm256_set1_epi8(-128), a) };
        self.dot_nibbles(self.dot_nibbles(sum, rest, b), top, b)
    }

    #[inline(always)]
    fn dot_nibbles(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        unsafe {
            let pairs = _mm256_maddubs_epi16(a, b);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
}
