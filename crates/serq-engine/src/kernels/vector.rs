//! What a kernel may do with the machine's vectors.
//!
//! Kernels are written once over [`Vector`] and compiled for each [`Path`](super::Path). A
//! value of a `Vector` type is the proof that the machine has its instructions: it is made in
//! [`dispatch`](super::dispatch) only, after the machine was asked. So arithmetic is safe, and
//! what is unsafe is to follow pointers.

/// A kernel: code that is compiled once for each kind of vector.
pub(super) trait Kernel {
    /// Its body, to be marked `#[inline(always)]`: only so is it compiled with the vector's
    /// instructions.
    fn run<V: Vector>(self, v: V);
}

/// A kind of vector: `LANES` singles or `LANES` words of 32 bits.
pub(super) trait Vector: Copy {
    /// Singles in a vector.
    const LANES: usize;
    /// Rows and vectors of the tiles of a product with numbers, the most rows first.
    const TILES: &[(usize, usize)];
    /// Those of a product with blocks of integers.
    const BLOCK_TILES: &[(usize, usize)];
    /// Whether bf16 are multiplied in pairs. If not, they are widened and multiplied with singles.
    const PAIRS: bool;
    /// Singles.
    type F: Copy;
    /// Words.
    type I: Copy;

    /// Runs a kernel as a function of its own, compiled with this vector's instructions.
    fn call(self, kernel: impl Kernel);

    fn splat(self, number: f32) -> Self::F;
    unsafe fn load(self, from: *const f32) -> Self::F;
    unsafe fn store(self, to: *mut f32, a: Self::F);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a·b + c, rounded once where the path says so.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Adds to two sums the products of one number with two others.
    #[inline(always)]
    unsafe fn add_two_products(self, sums: [Self::F; 2], number: *const f32, others: [Self::F; 2]) -> [Self::F; 2] {
        // SAFETY: the caller says that the number is there.
        let number = self.splat(unsafe { number.read_unaligned() });
        [self.mul_add(number, others[0], sums[0]), self.mul_add(number, others[1], sums[1])]
    }
    /// The same with an even number of them.
    #[inline(always)]
    unsafe fn add_products<const WIDTH: usize>(
        self,
        sums: &mut [Self::F; WIDTH],
        number: *const f32,
        others: &[Self::F; WIDTH],
    ) {
        for at in (0..WIDTH).step_by(2) {
            // SAFETY: the caller's word.
            let two = unsafe { self.add_two_products([sums[at], sums[at + 1]], number, [others[at], others[at + 1]]) };
            [sums[at], sums[at + 1]] = two;
        }
    }
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    fn abs(self, a: Self::F) -> Self::F;
    /// The nearest integer, of two the even one; for |a| < 2²².
    fn nearest(self, a: Self::F) -> Self::F;
    /// 2ⁿ for integers n from -126 to 127.
    fn power_of_two(self, n: Self::F) -> Self::F;
    /// `a` where `x` > `limit`, else 0.
    fn where_above(self, x: Self::F, limit: Self::F, a: Self::F) -> Self::F;
    /// The sum of the lanes, in an order of the path's.
    fn sum(self, a: Self::F) -> f32;
    /// The largest lane.
    fn largest(self, a: Self::F) -> f32;

    /// Widens `LANES` halves.
    unsafe fn load_f16(self, from: *const u16) -> Self::F;
    /// Rounds to bf16, of two the even one.
    unsafe fn store_bf16(self, to: *mut u16, a: Self::F);
    /// Stores integers from -127 to 127 as bytes.
    unsafe fn store_i8(self, to: *mut i8, a: Self::F);

    /// Asks memory for a cache line that will be read. It may be anywhere.
    fn prefetch(self, line: *const u8);

    fn splat_word(self, word: i32) -> Self::I;
    /// One word, in every lane.
    unsafe fn load_splat_word(self, from: *const u8) -> Self::I;
    unsafe fn load_words(self, from: *const u8) -> Self::I;
    unsafe fn store_words(self, to: *mut u32, a: Self::I);
    /// `LANES` short words, each in a word.
    unsafe fn load_shorts(self, from: *const u16) -> Self::I;
    /// Short words in the lower and the upper half of each word.
    fn pair(self, low: Self::I, high: Self::I) -> Self::I;
    /// Reads `LANES` words from each of `LANES` rows, and writes the first of each row to `to`,
    /// the second `stride` words after it, and so on.
    unsafe fn transpose(self, rows: &[*const u8], to: *mut u32, stride: usize);
    fn to_singles(self, a: Self::I) -> Self::F;
    /// The bf16 in the lower half of each word.
    fn low_bf16(self, a: Self::I) -> Self::F;
    /// The bf16 in the upper half of each word.
    fn high_bf16(self, a: Self::I) -> Self::F;
    /// The low nibble of each byte.
    fn low_nibbles(self, a: Self::I) -> Self::I;
    /// The high nibble of each byte.
    fn high_nibbles(self, a: Self::I) -> Self::I;
    /// Adds to each single the two products of the bf16 in its word.
    #[inline(always)]
    fn dot_bf16(self, sum: Self::F, a: Self::I, b: Self::I) -> Self::F {
        let sum = self.mul_add(self.low_bf16(a), self.low_bf16(b), sum);
        self.mul_add(self.high_bf16(a), self.high_bf16(b), sum)
    }
    /// Adds to each word the four products of its bytes, of `a` from 0 to 255, of `b` from
    /// -127 to 127.
    fn dot_bytes(self, sum: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// As `dot_bytes`, of `a` from 0 to 15.
    fn dot_nibbles(self, sum: Self::I, a: Self::I, b: Self::I) -> Self::I;

    /// eˣ within 2 units in the last place, up to x = 88; 0 from -87 down. The polynomial is
    /// Cephes' `expf`.
    #[inline(always)]
    fn exp(self, x: Self::F) -> Self::F {
        let lowest = self.splat(-87.0);
        let clamped = self.min(self.max(x, lowest), self.splat(88.0));
        let n = self.nearest(self.mul(clamped, self.splat(std::f32::consts::LOG2_E)));
        // ln 2 in two parts, the first of few bits, so that its multiple is exact.
        let r = self.mul_add(n, self.splat(-0.693_359_4), clamped);
        let r = self.mul_add(n, self.splat(2.121_944_4e-4), r);
        let mut sum = self.splat(1.987_569_1e-4);
        for factor in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
            sum = self.mul_add(sum, r, self.splat(factor));
        }
        let sum = self.mul_add(self.mul(r, r), sum, self.add(r, self.splat(1.0)));
        self.where_above(x, lowest, self.mul(sum, self.power_of_two(n)))
    }
}
