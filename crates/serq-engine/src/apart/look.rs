//! Whether a peer's KV arrives as attention reads it.
//!
//! A canary's keys and values are known numbers, so what attention makes of them is too: it is computed here once
//! more, in doubles and from the pattern alone. Bytes that are misplaced, exchanged or of another type come out
//! as other numbers.

use std::sync::Arc;

use serq_transfer::layout::Half;
use serq_transfer::layout::canary::{self, Row};

use crate::kernels::Attention;
use crate::kernels::{Chunk, Element};
use crate::kv::KvStore;
use crate::model::Model;
use crate::workers::Workers;

/// Queries are that small, so that no position has all the weight.
const QUERY: f32 = 1.0 / 512.0;

/// Attends over the first tokens of a block that has the canary.
pub(super) fn look(model: &Model, store: &Arc<KvStore>) -> impl FnMut(u32, usize) -> Result<(), String> + Send + use<> {
    let (store, layout) = (Arc::clone(store), store.layout());
    let heads = model.config().heads;
    let mut attention = Attention::new(model.path(), layout, heads);
    let workers = Workers::new(1);
    // Where KV is singles, so is what attention computes with.
    let within = match layout.element {
        Element::F32 => 1e-3,
        Element::Bf16 => 0.15,
    };
    move |block, tokens| {
        let dim = layout.head_dim;
        // Every number of a head counts differently.
        let queries: Vec<f32> = (0..tokens * heads * dim).map(|at| ((at * 7) % 13) as f32 * QUERY).collect();
        let mut out = vec![0.0; queries.len()];
        let chunk = Chunk { blocks: &[block], start: 0, tokens };
        for layer in 0..layout.layers {
            store.with_connectors(|bytes| attention.attend(&workers, &queries, &[chunk], layer, bytes, &mut out));
            for (at, found) in out.iter().enumerate() {
                let (token, head, nth) = (at / dim / heads, at / dim % heads, at % dim);
                let query = &queries[(token * heads + head) * dim..][..dim];
                let row =
                    |half, token| Row { layer: layer as u32, half, head: head / (heads / layout.kv_heads), token };
                let expected = attended(query, token, |half, token, nth| canary::number(row(half, token), nth), nth);
                if (f64::from(*found) - expected).abs() > within {
                    return Err(format!(
                        "attention finds {found} and not {expected:.4} in layer {layer}, head {head}, token {token}, number {nth}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A number of what a query attends to, over tokens up to this one.
fn attended(query: &[f32], token: usize, number: impl Fn(Half, usize, usize) -> f32, nth: usize) -> f64 {
    let scale = 1.0 / (query.len() as f64).sqrt();
    let (mut weights, mut sum) = (0.0, 0.0);
    for position in 0..=token {
        let products =
            query.iter().enumerate().map(|(dim, q)| f64::from(*q) * f64::from(number(Half::Keys, position, dim)));
        let weight = (products.sum::<f64>() * scale).exp();
        weights += weight;
        sum += weight * f64::from(number(Half::Values, position, nth));
    }
    sum / weights
}

#[cfg(test)]
mod tests {
    use serq_transfer::layout::BlockTable;

    use super::*;
    use crate::kernels::{Compute, Path};
    use crate::weights::Checkpoint;

    /// Any two slots, heads or halves exchanged are seen, in singles and in bf16; the pattern itself is right.
    #[test]
    fn rows_that_are_exchanged_are_seen_by_attention() {
        for (compute, path) in
            [(Compute::F32, Path::Portable), (Compute::F32, Path::best()), (Compute::Bf16, Path::best())]
        {
            let model = Model::new(&Checkpoint::tiny(7), path, compute);
            let layout = model.kv_layout(8);
            let (store, memory) = KvStore::shared(layout, 3, "P", "tiny", 0).unwrap();
            let store = Arc::new(store);
            let block = 2;
            let mut bytes = vec![0; memory.descriptor.memory_bytes()];
            let table = BlockTable { first_token: 0, blocks: &[block] };
            canary::fill(&memory.descriptor, 0, &table, 0..8, &mut bytes);
            memory.region.write(0, &bytes).unwrap();
            let mut look = look(&model, &store);
            assert_eq!(look(block, 8), Ok(()), "{compute:?}");
            let (row, first) = (layout.head_bytes(), block as usize * layout.block_bytes());
            let rows = layout.block_bytes() / row;
            for (one, other) in (0..rows).flat_map(|one| (one + 1..rows).map(move |other| (one, other))).step_by(17) {
                let mut wrong = bytes.clone();
                let (one, other) = (first + one * row, first + other * row);
                for at in 0..row {
                    wrong.swap(one + at, other + at);
                }
                memory.region.write(0, &wrong).unwrap();
                assert!(look(block, 8).is_err(), "{compute:?}: rows at {one} and {other} of {rows}");
            }
        }
    }
}
