//! Descriptors as text, their hashes, and where they say that numbers stand.

use serq_transfer::layout::{Content, Descriptor, Element, Geometry, Group, Nesting, Order};

use crate::shapes::{Draws, ELEMENTS, describe, group, layouts};

fn any(draws: &mut Draws) -> Descriptor {
    let groups: Vec<Group> = (0..draws.below(3) as u32 + 1)
        .map(|nth| {
            let (nesting, order) = draws.of(&layouts());
            let heads = Content::Heads { kv_heads: 4, head_dim: draws.below(9) + 1 };
            let latent = Content::Latent { dim: draws.below(9) + 1 };
            Group {
                content: if order.packed() { heads } else { draws.of(&[heads, latent]) },
                layers: vec![nth, nth + 10],
                window: draws.of(&[None, Some(128)]),
                block_tokens: draws.below(32) + 1,
                blocks: draws.below(99),
                first_byte: draws.below(9999),
                nesting,
                order,
                element: draws.of(&ELEMENTS),
            }
        })
        .collect();
    let degree = draws.of(&[1, 2, 8]);
    describe("prefill/0", degree, &groups).remove(draws.below(degree))
}

#[test]
fn a_descriptor_written_and_read_is_the_same() {
    let mut draws = Draws(20);
    for _ in 0..500 {
        let descriptor = any(&mut draws);
        assert_eq!(Descriptor::from_json(&descriptor.to_json()), Ok(descriptor));
    }
}

/// The text that goes over the wire; a change of it is a new version.
#[test]
fn the_text_of_a_descriptor_is_as_documented() {
    let text = concat!(
        r#"{"version":1,"instance":"decode/0","model":"tiny","tensor_parallel":{"degree":2,"rank":1},"groups":[{"#,
        r#""content":{"kind":"heads","kv_heads":2,"head_dim":3},"layers":[0,1],"window":128,"block_tokens":4,"blocks":7,"#,
        r#""first_byte":64,"nesting":"layer_block_major","order":"packed_nhd","element":"fp8_e4m3"}]}"#,
    );
    let expected = Group {
        window: Some(128),
        blocks: 7,
        first_byte: 64,
        nesting: Nesting::LayerBlockMajor,
        order: Order::PackedNhd,
        element: Element::Fp8E4m3,
        ..group()
    };
    let expected = describe("decode/0", 2, &[expected]).remove(1);
    assert_eq!(expected.to_json(), text);
    assert_eq!(Descriptor::from_json(text), Ok(expected));
}

#[test]
fn what_is_no_descriptor_is_told_in_a_sentence() {
    let text = describe("decode/0", 1, &[group()])[0].to_json();
    let wrong = |text: &str| Descriptor::from_json(text).unwrap_err().to_string();
    assert_eq!(
        wrong(r#"{"version":2,"anything":"else"}"#),
        "the layout descriptor is wrong: it is of version 2, this build reads version 1"
    );
    let unknown = wrong(&text.replace(r#""model""#, r#""modell""#));
    assert!(unknown.starts_with("this is no layout descriptor: unknown field `modell`"), "{unknown}");
    let unknown = wrong(&text.replace(r#""head_dim":3"#, r#""head_dim":3,"value_dim":4"#));
    assert!(unknown.starts_with("this is no layout descriptor: unknown field `value_dim`"), "{unknown}");
    let uneven = wrong(&text.replace(r#""degree":1"#, r#""degree":3"#));
    assert_eq!(uneven, "the layout descriptor is wrong: 2 kv heads of group 0 cannot be split evenly over 3 ranks");
    // Every text that is cut, and every one with a byte changed: read or refused, no panic.
    let mut draws = Draws(21);
    for length in 0..text.len() {
        assert!(Descriptor::from_json(&text[..length]).is_err());
    }
    for _ in 0..20_000 {
        let mut bytes = text.clone().into_bytes();
        let at = draws.below(bytes.len());
        bytes[at] = draws.of(b"0123456789\"{}[],:-.eaz");
        if let Ok(read) = Descriptor::from_json(&String::from_utf8(bytes).unwrap()) {
            assert!(read.check().is_ok());
            read.memory_bytes();
        }
    }
}

#[test]
fn hashes_tell_a_layout_and_a_model() {
    let one = describe("prefill/0", 2, &[group(), Group { layers: vec![2], window: Some(8), ..group() }]);
    let mut renamed = one[0].clone();
    renamed.instance = "prefill/1".into();
    assert_eq!(one[0].content_hash(), renamed.content_hash());
    assert_ne!(one[0].content_hash(), one[1].content_hash());
    assert_eq!(one[0].content_hash().len(), 64);
    let mut other = one[1].clone();
    other.groups.reverse();
    other.groups[0].block_tokens = 9;
    other.groups[1].element = Element::F16;
    assert_eq!(one[0].compatibility_hash(), other.compatibility_hash());
    other.groups[0].window = None;
    assert_ne!(one[0].compatibility_hash(), other.compatibility_hash());
    let mut model = one[0].clone();
    model.model = "large".into();
    assert_ne!(one[0].compatibility_hash(), model.compatibility_hash());
}

/// `serq-engine`'s `KvLayout`: `[block][layer][keys | values][slot in block][kv head][head dim]`, by its own formula
/// (`kernels/kv.rs`, `slot`).
#[test]
fn the_engines_layout_is_block_major_nhd() {
    for element in [Element::F32, Element::Bf16] {
        let (layers, kv_heads, head_dim, block_tokens, blocks) = (3, 2, 8, 5, 7);
        let described = Group {
            content: Content::Heads { kv_heads, head_dim },
            layers: (0..layers as u32).collect(),
            block_tokens,
            blocks,
            element,
            ..group()
        };
        let geometry = Geometry::of(&describe("prefill/0", 1, &[described])[0], 0).unwrap();
        let slot_bytes = kv_heads * head_dim * element.bytes();
        for (block, layer, half, slot, head) in every_place(blocks, layers, block_tokens, kv_heads) {
            let engine = (((block * layers + layer) * 2 + half) * block_tokens + slot) * slot_bytes
                + head * head_dim * element.bytes();
            assert_eq!(geometry.row(block, layer, half, slot, head), engine);
        }
        assert_eq!(geometry.end(), blocks * layers * 2 * block_tokens * slot_bytes);
    }
}

fn every_place(
    blocks: usize,
    layers: usize,
    slots: usize,
    heads: usize,
) -> impl Iterator<Item = (usize, usize, usize, usize, usize)> {
    (0..blocks * layers * 2 * slots * heads).map(move |nth| {
        let (head, nth) = (nth % heads, nth / heads);
        let (slot, nth) = (nth % slots, nth / slots);
        (nth / 2 / layers, nth / 2 % layers, nth % 2, slot, head)
    })
}

/// No two numbers share a byte, no byte is left over, and scales lie behind.
#[test]
fn numbers_and_scales_fill_the_groups_memory_without_overlap() {
    let mut draws = Draws(22);
    for _ in 0..300 {
        let mut descriptor = any(&mut draws);
        descriptor.groups.truncate(1);
        descriptor.groups[0].blocks = draws.below(4);
        descriptor.groups[0].block_tokens = draws.below(4) + 1;
        let geometry = Geometry::of(&descriptor, 0).unwrap();
        let first = descriptor.groups[0].first_byte;
        let mut owners = vec![0; geometry.end()];
        let mut take = |from: usize, bytes: usize| owners[from..from + bytes].iter_mut().for_each(|count| *count += 1);
        for block in 0..geometry.blocks {
            for (layer, half) in
                (0..geometry.layers).flat_map(|layer| (0..geometry.halves).map(move |half| (layer, half)))
            {
                for head in 0..geometry.heads.len() {
                    for slot in 0..geometry.block_tokens {
                        take(geometry.row(block, layer, half, slot, head), geometry.dim * geometry.element.bytes());
                    }
                    if geometry.element.scaled() {
                        assert_eq!(geometry.scale(block, layer, half, head) % 4, 0);
                        take(geometry.scale(block, layer, half, head), 4);
                    }
                }
            }
        }
        let (before, here) = owners.split_at(first.min(owners.len()));
        assert!(before.iter().all(|&count| count == 0));
        let gap = here.iter().filter(|&&count| count == 0).count();
        assert!(here.iter().all(|&count| count <= 1) && gap < 4 && (gap == 0 || geometry.element.scaled()));
    }
}
