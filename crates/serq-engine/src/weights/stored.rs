//! How numbers are stored, and back to singles.
//!
//! The quantised formats are ggml's: numbers in blocks along a row, each block with a scale
//! of its own [ggml: `ggml-common.h` has the layouts, `ggml-quants.c` the arithmetic]. A
//! number's singles are the same bits as there: products and differences are rounded one by
//! one, in that order.
//!
//! ```text
//!   Q8_0   scale f16 | 32 × i8                                          q·d
//!   Q4_0   scale f16 | 16 bytes: number i low, number i+16 high         (q−8)·d
//!   Q4_1   scale f16, least f16 | as Q4_0                               q·d + m
//!   Q4_K   d f16, m f16 | 8 × (6-bit scale, 6-bit least) | 128 bytes    q·(d·s) − m·l
//!   Q6_K   128 bytes of low nibbles | 64 of high pairs | 16 × i8 | d    (q−32)·(d·s)
//! ```

use half::{bf16, f16};

/// How numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stored {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    Bf16,
    /// Blocks of 32: 8-bit numbers and a scale.
    Q8_0,
    /// Blocks of 32: 4-bit numbers about 8 and a scale.
    Q4_0,
    /// Blocks of 32: 4-bit numbers, a scale and the least.
    Q4_1,
    /// Blocks of 256: 4-bit numbers; each 32 with a scale and a least of 6 bits.
    Q4K,
    /// Blocks of 256: 6-bit numbers about 32; each 16 with a scale of 8 bits.
    Q6K,
}

impl Stored {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_0, Self::Q4_1, Self::Q4K, Self::Q6K];

    /// Its name in the field.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q4K => "Q4_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Numbers in a block, the least that can be stored by itself.
    pub fn block_numbers(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 => 32,
            Self::Q4K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q4K => 144,
            Self::Q6K => 210,
        }
    }

    /// Whole blocks as singles.
    ///
    /// # Panics
    ///
    /// When `numbers` is not as long as the blocks say.
    pub fn singles(self, bytes: &[u8], numbers: &mut [f32]) {
        assert_eq!(bytes.len() % self.block_bytes(), 0, "whole blocks");
        assert_eq!(bytes.len() / self.block_bytes() * self.block_numbers(), numbers.len());
        match self {
            Self::F32 => each(bytes, numbers, |block: &[u8; 4], [number]| *number = f32::from_le_bytes(*block)),
            Self::F16 => each(bytes, numbers, |block: &[u8; 2], [number]| *number = half(block)),
            Self::Bf16 => each(bytes, numbers, |block, [number]| *number = bf16::from_le_bytes(*block).to_f32()),
            Self::Q8_0 => each(bytes, numbers, q8_0),
            Self::Q4_0 => each(bytes, numbers, q4_0),
            Self::Q4_1 => each(bytes, numbers, q4_1),
            Self::Q4K => each(bytes, numbers, q4_k),
            Self::Q6K => each(bytes, numbers, q6_k),
        }
    }
}

/// Block after block of `BYTES` bytes and `NUMBERS` numbers.
fn each<const BYTES: usize, const NUMBERS: usize>(
    bytes: &[u8],
    numbers: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; NUMBERS]),
) {
    for (bytes, numbers) in bytes.as_chunks().0.iter().zip(numbers.as_chunks_mut().0) {
        block(bytes, numbers);
    }
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

fn q8_0(block: &[u8; 34], numbers: &mut [f32; 32]) {
    let scale = half(&block[..2]);
    for (number, &byte) in numbers.iter_mut().zip(&block[2..]) {
        *number = f32::from(byte as i8) * scale;
    }
}

fn q4_0(block: &[u8; 18], numbers: &mut [f32; 32]) {
    let scale = half(&block[..2]);
    for (i, &byte) in block[2..].iter().enumerate() {
        numbers[i] = (f32::from(byte & 15) - 8.0) * scale;
        numbers[i + 16] = (f32::from(byte >> 4) - 8.0) * scale;
    }
}

fn q4_1(block: &[u8; 20], numbers: &mut [f32; 32]) {
    let (scale, least) = (half(&block[..2]), half(&block[2..4]));
    for (i, &byte) in block[4..].iter().enumerate() {
        numbers[i] = f32::from(byte & 15) * scale + least;
        numbers[i + 16] = f32::from(byte >> 4) * scale + least;
    }
}

fn q4_k(block: &[u8; 144], numbers: &mut [f32; 256]) {
    let (scale, least) = (half(&block[..2]), half(&block[2..4]));
    let packed = &block[4..16];
    for (group, numbers) in numbers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        // The last four groups' upper two bits sit on top of the first four's six.
        let (group_scale, group_least) = match group {
            0..4 => (packed[group] & 63, packed[group + 4] & 63),
            _ => {
                (packed[group + 4] & 15 | packed[group - 4] >> 6 << 4, packed[group + 4] >> 4 | packed[group] >> 6 << 4)
            }
        };
        let (scale, least) = (scale * f32::from(group_scale), least * f32::from(group_least));
        // Two groups share 32 bytes, one in the low nibbles and one in the high.
        let bytes = &block[16 + group / 2 * 32..][..32];
        for (number, byte) in numbers.iter_mut().zip(bytes) {
            *number = scale * f32::from(byte >> (group % 2 * 4) & 15) - least;
        }
    }
}

fn q6_k(block: &[u8; 210], numbers: &mut [f32; 256]) {
    let scale = half(&block[208..]);
    for (i, number) in numbers.iter_mut().enumerate() {
        // Each half of the block by itself: four runs of 32 numbers. Low nibbles are in 64 bytes,
        // the first two runs below the last two; the upper pairs in 32 bytes, a run above another.
        let (part, run, at) = (i / 128, i % 128 / 32, i % 32);
        let low = block[part * 64 + run % 2 * 32 + at] >> (run / 2 * 4) & 15;
        let high = block[128 + part * 32 + at] >> (run * 2) & 3;
        let group_scale = block[192 + i / 16] as i8;
        *number = scale * f32::from(group_scale) * f32::from((low | high << 4) as i8 - 32);
    }
}
