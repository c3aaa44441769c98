//! How fast the kernels are, beside what the machine can do.
//!
//! ```sh
//! cargo run --release -p serq-engine --example kernel_bench -- --threads 2
//! ```
//!
//! Runs every kernel of a forward pass in its order on random weights of SmolLM2-135M's shape,
//! all layers and the output head, each layer with weights of its own so that caches see what
//! they would. Prints tokens a second, the bytes and operations of weights and KV a second,
//! and the part of each kernel. Others may use the machine, so a kernel's time is the 5th
//! percentile of its calls, and a pass's the sum of these; the quickest whole pass is printed
//! beside it, and comes close where the machine is quiet. `--smoke` runs a small shape once,
//! for a check that it runs.

// The machine's limits are measured with its instructions, which are asked for first.
#![allow(unsafe_code)]

use std::env;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serq_engine::kernels::{Activations, Attention, Chunk, Compute, Element, KvLayout, Matrix, Path, Rotation};
use serq_engine::weights::{Stored, Tensor};
use serq_engine::workers::Workers;

const USAGE: &str = "kernel_bench [--smoke] [--threads N] [--kernels portable|avx2|avx512|avx512-bf16] \
                     [--compute f32|bf16|int8] [--context N] [--seconds S]";

fn main() {
    let mut arguments = env::args().skip(1);
    let mut smoke = false;
    let mut threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut path = Path::best();
    let (mut only, mut context, mut seconds) = (None, 128, 2.0);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--smoke" => smoke = true,
            "--threads" => threads = value(&argument, arguments.next()),
            "--kernels" => path = value(&argument, arguments.next()),
            "--compute" => only = Some(value::<String>(&argument, arguments.next())),
            "--context" => context = value(&argument, arguments.next()),
            "--seconds" => seconds = value(&argument, arguments.next()),
            _ => quit(USAGE),
        }
    }
    let time = Duration::from_secs_f64(if smoke { 0.0 } else { seconds });
    let workers = Workers::new(threads);
    let shape = if smoke { Shape { layers: 2, vocabulary: 1024, ..SMOLLM2 } } else { SMOLLM2 };
    let limits = Limits::measure(&workers, smoke);
    println!("kernels {path}, {threads} threads");
    println!("an empty job {:.0} ns", limits.empty_s * 1e9);
    println!("limits: read {:.1} GB/s", limits.read);
    for (name, peak) in &limits.peaks {
        println!("limits: {name} {peak:.0} GFLOP/s");
    }
    for (name, compute) in [("f32", Compute::F32), ("bf16", Compute::Bf16), ("int8", Compute::Int8)] {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let mut model = Model::new(shape, path, compute, context.max(512));
        let prompt = [(0, if smoke { 40 } else { 512 })];
        report(name, "prefill", &mut model, &workers, &prompt, 1, time, &limits);
        for batch in [1, 8, 16] {
            let tokens = vec![(context - 1, 1); batch];
            report(name, &format!("decode b{batch}"), &mut model, &workers, &tokens, batch, time, &limits);
        }
    }
}

fn value<T: FromStr<Err: Display>>(flag: &str, value: Option<String>) -> T {
    let value = value.unwrap_or_else(|| quit(&format!("{flag} wants a value")));
    value.parse().unwrap_or_else(|error| quit(&format!("{flag} {value}: {error}")))
}

fn quit(message: &str) -> ! {
    eprintln!("{message}");
    std::process::exit(2);
}

/// A model's sizes.
#[derive(Clone, Copy)]
struct Shape {
    layers: usize,
    width: usize,
    inner: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocabulary: usize,
}

const SMOLLM2: Shape =
    Shape { layers: 30, width: 576, inner: 1536, heads: 9, kv_heads: 3, head_dim: 64, vocabulary: 49152 };
const BLOCK_TOKENS: usize = 16;
/// More than are computed, and odd, so that a sequence's blocks do not fall upon the same sets of
/// a cache.
const SEQUENCES: usize = 17;

struct Layer {
    qkv: Matrix,
    out: Matrix,
    gate_up: Matrix,
    down: Matrix,
}

struct Model {
    shape: Shape,
    path: Path,
    layers: Vec<Layer>,
    head: Matrix,
    norm: Vec<f32>,
    angles: Vec<f32>,
    layout: KvLayout,
    store: Vec<u8>,
    tables: Vec<Vec<u32>>,
    attention: Attention,
    activations: Activations,
    inner: Activations,
    x: Vec<f32>,
    qkv: Vec<f32>,
    queries: Vec<f32>,
    mixed: Vec<f32>,
    logits: Vec<f32>,
}

/// What a pass consists of.
const PARTS: [&str; 8] = ["norm", "qkv", "rotate", "attend", "out", "gate up", "down", "head"];

/// Seconds of each call of each part.
type Calls = [Vec<f64>; 8];

impl Model {
    fn new(shape: Shape, path: Path, compute: Compute, positions: usize) -> Self {
        let Shape { width, inner, heads, kv_heads, head_dim, .. } = shape;
        let mut seed = 1u32;
        let mut random = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 8
        };
        let stored = if compute == Compute::Int8 { Stored::Q4_1 } else { Stored::F32 };
        let mut tensor = |rows: usize, columns: usize, stored: Stored| {
            let bytes: Vec<u8> = match stored {
                // Scales and least numbers of about 2^-8.
                Stored::Q4_1 => (0..rows * columns / 32)
                    .flat_map(|_| {
                        [0, 0x1c, 0, 0xa0].into_iter().chain((0..16).map(|_| random() as u8)).collect::<Vec<_>>()
                    })
                    .collect(),
                Stored::Q8_0 => (0..rows * columns / 32)
                    .flat_map(|_| [0, 0x0c].into_iter().chain((0..32).map(|_| random() as u8)).collect::<Vec<_>>())
                    .collect(),
                _ => (0..rows * columns)
                    .flat_map(|_| ((random() as f32 / (1 << 23) as f32 - 1.0) / 16.0).to_le_bytes())
                    .collect(),
            };
            Tensor::new(rows, columns, stored, Arc::new(bytes), 0)
        };
        let query = tensor(heads * head_dim, width, stored);
        let key = tensor(kv_heads * head_dim, width, stored);
        let out = tensor(width, heads * head_dim, stored);
        let gate = tensor(inner, width, stored);
        let down = tensor(width, inner, stored);
        let pack = |tensors: &[&Tensor]| Matrix::pack(path, compute, tensors);
        let layers = (0..shape.layers)
            .map(|_| Layer {
                qkv: pack(&[&query, &key, &key]),
                out: pack(&[&out]),
                gate_up: Matrix::pack_gated(path, compute, &gate, &gate),
                down: pack(&[&down]),
            })
            .collect();
        let head = tensor(shape.vocabulary, width, if compute == Compute::Int8 { Stored::Q8_0 } else { stored });
        let layout =
            KvLayout { block_tokens: BLOCK_TOKENS, layers: shape.layers, kv_heads, head_dim, element: Element::Bf16 };
        let blocks = positions.div_ceil(BLOCK_TOKENS);
        Self {
            shape,
            path,
            layers,
            head: pack(&[&head]),
            norm: vec![1.0; width],
            angles: vec![0.7; positions * head_dim / 2],
            layout,
            store: vec![0; SEQUENCES * blocks * layout.block_bytes()],
            // Blocks of different sequences lie between each other.
            tables: (0..SEQUENCES)
                .map(|sequence| (0..blocks).map(|block| (block * SEQUENCES + sequence) as u32).collect())
                .collect(),
            attention: Attention::new(path, layout, heads),
            activations: Activations::new(path, compute),
            inner: Activations::new(path, compute),
            x: Vec::new(),
            qkv: Vec::new(),
            queries: Vec::new(),
            mixed: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// Computes tokens of several sequences, each with (first position, tokens), and the logits
    /// of the last `sampled` rows.
    fn step(&mut self, workers: &Workers, tokens: &[(usize, usize)], sampled: usize, calls: &mut Calls) {
        let Shape { width, heads, kv_heads, head_dim, vocabulary, .. } = self.shape;
        let chunks: Vec<Chunk<'_>> = tokens
            .iter()
            .zip(&self.tables)
            .map(|(&(start, tokens), table)| Chunk { blocks: table, start, tokens })
            .collect();
        let rows: usize = tokens.iter().map(|(_, tokens)| tokens).sum();
        self.x.clear();
        self.x.extend((0..rows * width).map(|at| (at % 173) as f32 / 100.0 - 0.8));
        self.qkv.resize(rows * (heads + 2 * kv_heads) * head_dim, 0.0);
        self.queries.resize(rows * heads * head_dim, 0.0);
        self.mixed.resize(rows * heads * head_dim, 0.0);
        self.logits.resize(sampled * vocabulary, 0.0);
        let rotation = Rotation { cos: &self.angles, sin: &self.angles, norms: None };
        let mut last = Instant::now();
        let mut took = |part: usize| {
            let now = Instant::now();
            calls[part].push((now - last).as_secs_f64());
            last = now;
        };
        for (index, layer) in self.layers.iter().enumerate() {
            self.activations.prepare_normed(workers, &self.x, &self.norm, 1e-5);
            took(0);
            layer.qkv.multiply(workers, &self.activations, &mut self.qkv);
            took(1);
            let (store, queries) = (&mut self.store, &mut self.queries);
            rotation.rotate_and_store(self.path, workers, &self.qkv, &chunks, &self.layout, index, store, queries);
            took(2);
            self.attention.attend(workers, queries, &chunks, index, store, &mut self.mixed);
            took(3);
            self.activations.prepare(workers, &self.mixed, heads * head_dim);
            layer.out.multiply_add(workers, &self.activations, &mut self.x);
            took(4);
            self.activations.prepare_normed(workers, &self.x, &self.norm, 1e-5);
            took(0);
            layer.gate_up.multiply_gated(workers, &self.activations, &mut self.inner);
            took(5);
            layer.down.multiply_add(workers, &self.inner, &mut self.x);
            took(6);
        }
        let from = (rows - sampled) * width;
        self.activations.prepare_normed(workers, &self.x[from..], &self.norm, 1e-5);
        self.head.multiply(workers, &self.activations, &mut self.logits);
        took(7);
    }

    fn weight_bytes(&self) -> usize {
        let layer = |layer: &Layer| layer.qkv.bytes() + layer.out.bytes() + layer.gate_up.bytes() + layer.down.bytes();
        self.head.bytes() + self.layers.iter().map(layer).sum::<usize>()
    }
}

/// What the machine can do.
struct Limits {
    /// GB/s.
    read: f64,
    /// GFLOP/s.
    peaks: Vec<(&'static str, f64)>,
    empty_s: f64,
}

#[expect(clippy::too_many_arguments, reason = "a line of the report")]
fn report(
    compute: &str,
    what: &str,
    model: &mut Model,
    workers: &Workers,
    tokens: &[(usize, usize)],
    sampled: usize,
    time: Duration,
    limits: &Limits,
) {
    let Shape { layers, width, inner, heads, kv_heads, head_dim, vocabulary } = model.shape;
    let mut calls = Calls::default();
    let (start, mut passes, mut best) = (Instant::now(), 0, f64::INFINITY);
    while passes == 0 || start.elapsed() < time {
        let pass = Instant::now();
        model.step(workers, tokens, sampled, &mut calls);
        (passes, best) = (passes + 1, best.min(pass.elapsed().as_secs_f64()));
    }
    let parts = calls.map(|mut calls| low(&mut calls) * (calls.len() / passes) as f64);
    let took: f64 = parts.iter().sum();
    let rows: usize = tokens.iter().map(|(_, tokens)| tokens).sum();
    let read_positions: usize = tokens.iter().map(|(start, tokens)| start + tokens).sum();
    let seen: usize = tokens.iter().map(|&(start, tokens)| (start + 1..=start + tokens).sum::<usize>()).sum();
    let weights = width * ((heads + 2 * kv_heads) * head_dim + heads * head_dim + 3 * inner);
    let operations = 2 * (layers * (weights * rows + 2 * heads * head_dim * seen) + vocabulary * width * sampled);
    let bytes = model.weight_bytes() + read_positions * layers * 4 * kv_heads * head_dim;
    // As what numbers are multiplied.
    let multiplied = if compute == "bf16" && model.path != Path::Avx512Bf16 { "f32" } else { compute };
    let (reads, computes) = (bytes as f64 / took / 1e9, operations as f64 / took / 1e9);
    println!(
        "\n{compute} {what}: {:.0} tok/s (whole pass {:.0}, of {} passes), {:.1} GB/s = {:.0} % of read, {:.0} GFLOP/s{}",
        rows as f64 / took,
        rows as f64 / best,
        passes,
        reads,
        100.0 * reads / limits.read,
        computes,
        limits
            .peaks
            .iter()
            .find(|(name, _)| *name == multiplied)
            .map_or(String::new(), |(_, peak)| format!(" = {:.0} % of {multiplied}'s peak", 100.0 * computes / peak)),
    );
    let parts: Vec<String> = PARTS.iter().zip(parts).map(|(name, part)| format!("{name} {:.0}", part * 1e6)).collect();
    println!("  µs: {} of {:.0}", parts.join(", "), took * 1e6);
}

impl Limits {
    fn measure(workers: &Workers, smoke: bool) -> Self {
        let calls = if smoke { 1 } else { 20 };
        let buffer = large_pages(if smoke { 1 << 20 } else { 1 << 27 });
        let part = (1 << 20) / workers.count();
        let mut reads = Vec::new();
        for _ in 0..calls {
            for start in (0..buffer.len()).step_by(1 << 20) {
                reads.push(seconds(|| {
                    workers.run(workers.count(), &|_, index| {
                        let part = &buffer[start + index * part..][..part];
                        let sums = part.as_chunks::<64>().0.iter().fold([0u64; 64], |mut sums, numbers| {
                            for (sum, number) in sums.iter_mut().zip(numbers) {
                                *sum ^= number;
                            }
                            sums
                        });
                        std::hint::black_box(sums);
                    });
                }));
            }
        }
        let mut empty: Vec<f64> =
            (0..calls * 1000).map(|_| seconds(|| workers.run(workers.count(), &|_, _| ()))).collect();
        Self {
            read: (part * workers.count() * 8) as f64 / low(&mut reads) / 1e9,
            peaks: peaks(workers, calls * 50),
            empty_s: low(&mut empty),
        }
    }
}

/// Numbers in the system's large pages, as packed weights are.
fn large_pages(count: usize) -> Vec<u64> {
    let mut buffer: Vec<u64> = Vec::with_capacity(count);
    #[cfg(target_os = "linux")]
    {
        let room = buffer.spare_capacity_mut();
        let start = room.as_ptr().addr().next_multiple_of(4096) - room.as_ptr().addr();
        // SAFETY: advice on memory that is this vector's, from a page's start on.
        unsafe {
            libc::madvise(room.as_mut_ptr().byte_add(start).cast(), size_of_val(room) - start, libc::MADV_HUGEPAGE);
        }
    }
    buffer.resize(count, 1);
    buffer
}

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// The 5th percentile.
fn low(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 20]
}

#[cfg(not(target_arch = "x86_64"))]
fn peaks(_: &Workers, _: usize) -> Vec<(&'static str, f64)> {
    Vec::new()
}

/// What products of vectors of 512 bits can do, from registers.
#[cfg(target_arch = "x86_64")]
fn peaks(workers: &Workers, calls: usize) -> Vec<(&'static str, f64)> {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    const ROUNDS: usize = 10_000;

    #[target_feature(enable = "avx512f,avx512bf16,avx512vnni")]
    fn run(kind: &str) {
        let ones = black_box(_mm512_set1_epi32(0x3f80_3f80));
        let single = _mm512_castsi512_ps(ones);
        // SAFETY: both are 64 bytes of which every value is one.
        let pairs: __m512bh = unsafe { std::mem::transmute(ones) };
        let mut sums = [_mm512_setzero_ps(); 16];
        let mut integers = [_mm512_setzero_si512(); 16];
        for _ in 0..ROUNDS {
            match kind {
                "f32" => sums = sums.map(|sum| _mm512_fmadd_ps(single, single, sum)),
                "bf16" => sums = sums.map(|sum| _mm512_dpbf16_ps(sum, pairs, pairs)),
                _ => integers = integers.map(|sum| _mm512_dpbusd_epi32(sum, ones, ones)),
            }
        }
        black_box((sums, integers));
    }

    if !Path::Avx512Bf16.is_here() {
        return Vec::new();
    }
    [("f32", 32), ("bf16", 64), ("int8", 128)]
        .map(|(kind, operations)| {
            // SAFETY: the machine has the instructions, it was asked.
            let call = || seconds(|| workers.run(workers.count(), &|_, _| unsafe { run(kind) }));
            let mut times: Vec<f64> = (0..calls).map(|_| call()).collect();
            (kind, (workers.count() * ROUNDS * 16 * operations) as f64 / low(&mut times) / 1e9)
        })
        .to_vec()
}
