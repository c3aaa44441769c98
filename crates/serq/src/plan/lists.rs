//! The catalogue as tables.

use super::catalogue::{Accelerator, Model};
use super::shape::Kept;
use super::text::paragraph;
use crate::number::{NOTHING, exact, significant};
use crate::table::Columns;

/// `serq plan models`.
pub(crate) fn models(models: &[Model], width: usize) -> String {
    let mut table = Columns::new(1, ["model", "layers", "kept", "windows", "KV bytes", "params", "checked"]).left(6);
    for model in models {
        let shape = model.shape();
        let kept = match shape.kept {
            Kept::Heads { kv_heads, head_dim } => format!("{kv_heads} × {head_dim}"),
            Kept::Latent { kv_lora_rank, qk_rope_head_dim, .. } => format!("{kv_lora_rank}+{qk_rope_head_dim}"),
        };
        let windows = match shape.window_layers {
            0 => NOTHING.to_owned(),
            layers => format!("{layers} × {}", shape.window),
        };
        let all = exact(model.params_b);
        let params = if model.params_b == model.active_b { all } else { format!("{all}/{}", exact(model.active_b)) };
        table.row(vec![
            model.name.clone(),
            model.layers.to_string(),
            kept,
            windows,
            significant(shape.kv_bytes_a_token(2.0), 7),
            params,
            model.checked.word().into(),
        ]);
    }
    let mut text = table.draw(width);
    text.push('\n');
    for note in [
        "kept by a layer of a token: KV heads × head dim, a key and a value each; a latent and its position. windows: layers × tokens they keep. KV bytes: a token's, 2 B a number, without those layers. params: billions, all or all/active, as publishers round them.",
        "checked: the row's KV fields stand in the page this arithmetic is from (seed, docs/plan.md), in the publisher's repository (repo), or in a public copy of the publisher's file; no: not verified here. --json has every field and its source.",
    ] {
        text += &paragraph("  ", "", note, width);
    }
    text
}

/// `serq plan accelerators`.
pub(crate) fn accelerators(accelerators: &[Accelerator], width: usize) -> String {
    let mut table = Columns::new(1, ["accelerator", "TFLOP/s", "HBM GB/s", "HBM GB", "link GB/s", "link", "checked"])
        .left(5)
        .left(6);
    for row in accelerators {
        table.row(vec![
            row.name.clone(),
            significant(row.bf16_tflops, 4),
            significant(row.hbm_gb_s, 4),
            significant(row.hbm_gb, 4),
            significant(row.link_gb_s, 4),
            row.link.clone(),
            row.checked.word().into(),
        ]);
    }
    let note = "Peaks of one accelerator: dense bf16, its link in one direction. checked: seed: its TFLOP/s stand in the page this arithmetic is from (docs/plan.md); no: from vendor data sheets, not verified here.";
    table.draw(width) + "\n" + &paragraph("  ", "", note, width)
}
