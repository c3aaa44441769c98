//! How fast layouts are converted, beside a plain copy of as many bytes.
//!
//! ```sh
//! cargo run --release -p serq-transfer --example layout_bench
//! ```
//!
//! The KV of 512 tokens of SmolLM2-135M (30 layers, 3 heads of 64 numbers; 11.8 MB in bf16) lies in
//! blocks in random order and goes to another instance's. Copies and conversions take turns, for the
//! machine is shared; a time is that of the quickest run. GB/s are the source's bytes over the
//! time, so a plain copy of the same bytes is the bar where the numbers stay as wide. `--smoke` runs
//! everything once, for a check that it runs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serq_transfer::layout::{
    self, BlockTable, Content, Descriptor, Element, Group, Nesting, Order, TensorParallel, VERSION,
};

const TOKENS: usize = 512;

/// What a side has: ranks, and how its one group lies.
#[derive(Clone, Copy)]
struct Shape {
    ranks: usize,
    kv_heads: usize,
    block_tokens: usize,
    nesting: Nesting,
    order: Order,
    element: Element,
}

const ENGINE: Shape = Shape {
    ranks: 1,
    kv_heads: 3,
    block_tokens: 16,
    nesting: Nesting::BlockMajor,
    order: Order::Nhd,
    element: Element::Bf16,
};

fn main() {
    let smoke = match std::env::args().nth(1).as_deref() {
        Some("--smoke") => true,
        None => false,
        Some(_) => {
            eprintln!("layout_bench [--smoke]");
            std::process::exit(2);
        }
    };
    let seconds = if smoke { 0.0 } else { 2.0 };
    let four = Shape { kv_heads: 4, ..ENGINE };
    let singles = Shape { element: Element::F32, ..ENGINE };
    let codes = Shape { element: Element::Fp8E4m3, ..ENGINE };
    let cases = [
        ("blocks of 16 to 16", ENGINE, ENGINE),
        ("blocks of 16 to 32", ENGINE, Shape { block_tokens: 32, ..ENGINE }),
        ("block-major to layer-major", ENGINE, Shape { nesting: Nesting::LayerMajor, ..ENGINE }),
        ("nhd to hnd", ENGINE, Shape { order: Order::Hnd, ..ENGINE }),
        ("nhd to packed", ENGINE, Shape { order: Order::PackedNhd, ..ENGINE }),
        ("tp 2 to 1, 4 heads", Shape { ranks: 2, ..four }, four),
        ("tp 1 to 2, 4 heads", four, Shape { ranks: 2, ..four }),
        ("f32 to bf16", singles, ENGINE),
        ("bf16 to f32", ENGINE, singles),
        ("bf16 to f16", ENGINE, Shape { element: Element::F16, ..ENGINE }),
        ("f32 to f16", singles, Shape { element: Element::F16, ..ENGINE }),
        ("bf16 to fp8", ENGINE, codes),
        ("fp8 to bf16", codes, ENGINE),
        ("fp8 to fp8, 16 to 32", codes, Shape { block_tokens: 32, ..codes }),
    ];
    println!("{:<28} {:>8} {:>10} {:>10} {:>7} {:>10}", "", "MB", "GB/s", "copy", "ratio", "plan, us");
    for (name, source, reader) in cases {
        measure(name, source, reader, Duration::from_secs_f64(seconds));
    }
}

fn measure(name: &str, source: Shape, reader: Shape, time: Duration) {
    let (from, to) = (describe("source", source), describe("reader", reader));
    let conversion = layout::join(&from, &to).unwrap_or_else(|refusal| panic!("{refusal}"));
    let (from_blocks, to_blocks) = (shuffled(source), shuffled(reader));
    let from_tables = vec![BlockTable { first_token: 0, blocks: &from_blocks }; from.len()];
    let to_tables = vec![BlockTable { first_token: 0, blocks: &to_blocks }; to.len()];
    let plan = || conversion.plan(0, 0..TOKENS, &from_tables, &to_tables).expect("the tables hold the tokens");
    let memories: Vec<Vec<u8>> = from.iter().map(numbers).collect();
    let mut arrived: Vec<Vec<u8>> = to.iter().map(|rank| vec![0; rank.memory_bytes()]).collect();
    let moved = plan();
    let bytes = moved.source_bytes();
    let (whole, mut copy) = (vec![1u8; bytes], vec![0u8; bytes]);
    let (mut conversions, mut copies, mut plans) = (Vec::new(), Vec::new(), Vec::new());
    let begin = Instant::now();
    loop {
        conversions.push(timed(|| moved.copy_all(black_box(&memories), black_box(&mut arrived))));
        copies.push(timed(|| black_box(&mut copy).copy_from_slice(black_box(&whole))));
        plans.push(timed(|| drop(black_box(plan()))));
        if begin.elapsed() >= time {
            break;
        }
    }
    let rate = |times: Vec<f64>| bytes as f64 / quickest(&times) / 1e9;
    let (converted, copied) = (rate(conversions), rate(copies));
    println!(
        "{name:<28} {:>8.1} {converted:>10.2} {copied:>10.2} {:>7.2} {:>10.1}",
        bytes as f64 / 1e6,
        converted / copied,
        quickest(&plans) * 1e6
    );
}

fn describe(instance: &str, shape: Shape) -> Vec<Descriptor> {
    let group = Group {
        content: Content::Heads { kv_heads: shape.kv_heads, head_dim: 64 },
        layers: (0..30).collect(),
        window: None,
        block_tokens: shape.block_tokens,
        blocks: TOKENS / shape.block_tokens + 8,
        first_byte: 0,
        nesting: shape.nesting,
        order: shape.order,
        element: shape.element,
    };
    let rank = |rank| Descriptor {
        version: VERSION,
        instance: instance.into(),
        model: "SmolLM2-135M".into(),
        tensor_parallel: TensorParallel { degree: shape.ranks, rank },
        groups: vec![group.clone()],
    };
    (0..shape.ranks).map(rank).collect()
}

/// Blocks in an order as after many requests: the same one each time.
fn shuffled(shape: Shape) -> Vec<u32> {
    let count = TOKENS / shape.block_tokens;
    let mut blocks: Vec<u32> = (0..count as u32 + 8).collect();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for at in (1..blocks.len()).rev() {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        blocks.swap(at, (state >> 33) as usize % (at + 1));
    }
    blocks.truncate(count);
    blocks
}

/// A rank's memory with numbers between -2 and 2, under fp8 with scales of 1/16 to 1/2.
fn numbers(rank: &Descriptor) -> Vec<u8> {
    let element = rank.groups[0].element;
    let mut memory = vec![0; rank.memory_bytes()];
    for (nth, to) in memory.chunks_exact_mut(element.bytes()).enumerate() {
        let number = ((nth * 7919 % 4001) as f32 - 2000.0) / 1000.0;
        match element {
            Element::F32 => to.copy_from_slice(&number.to_le_bytes()),
            Element::Bf16 => to.copy_from_slice(&layout::number::bf16_from_f32(number).to_le_bytes()),
            Element::F16 => to.copy_from_slice(&layout::number::f16_from_f32(number).to_le_bytes()),
            Element::Fp8E4m3 => to[0] = layout::number::e4m3_from_f32(number * 16.0),
        }
    }
    if element.scaled() {
        let scales = layout::Geometry::of(rank, 0).expect("fits memory").scale(0, 0, 0, 0);
        for (nth, to) in memory[scales..].chunks_exact_mut(4).enumerate() {
            to.copy_from_slice(&(0.0625 * (1 << (nth * 7 % 4)) as f32).to_le_bytes());
        }
    }
    memory
}

fn timed(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}

fn quickest(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}
