//! What x86's vectors of both lengths do alike.

/// `add_two_products`: adds to two sums the products of the number at an address with two others.
///
/// By hand, so that it stays in this order: the compiler reads all numbers of a tile's step first, and has no
/// registers left for the sums (a prompt took 1.4 times as long).
macro_rules! two_products {
    ($vector:ty, $class:ident, $features:literal) => {
        #[target_feature(enable = $features)]
        #[inline]
        unsafe fn add_two_products(sums: [$vector; 2], number: *const f32, others: [$vector; 2]) -> [$vector; 2] {
            let [mut first, mut second] = sums;
            let _number: $vector;
            // SAFETY: the caller says that the number is there.
            unsafe {
                std::arch::asm!(
                    "vbroadcastss {number}, dword ptr [{at}]",
                    "vfmadd231ps {first}, {number}, {one}",
                    "vfmadd231ps {second}, {number}, {other}",
                    at = in(reg) number,
                    number = out($class) _number,
                    first = inout($class) first,
                    second = inout($class) second,
                    one = in($class) others[0],
                    other = in($class) others[1],
                    options(readonly, nostack, preserves_flags),
                );
            }
            [first, second]
        }
    };
}
pub(super) use two_products;
