//! What is refused, and in which words.

use serq_transfer::layout::{self, BlockTable, Content, Descriptor, Group, Order, PlanError, Side};

use crate::shapes::{describe, group};

fn sentence(source: &[Descriptor], reader: &[Descriptor]) -> String {
    layout::join(source, reader).expect_err("refused").to_string()
}

fn with(change: impl Fn(&mut Group)) -> Vec<Descriptor> {
    let mut groups = [group()];
    change(&mut groups[0]);
    describe("decode/0", 1, &groups)
}

#[test]
fn a_refusal_names_both_sides_and_what_differs() {
    let source = describe("prefill/0", 1, &[group()]);
    let window = |descriptors: &mut Vec<Descriptor>| descriptors[0].groups[0].window = Some(128);
    let mut windowed = describe("decode/0", 1, &[group()]);
    window(&mut windowed);
    let mut other_model = describe("decode/0", 1, &[group()]);
    other_model[0].model = "large".into();
    let mut old = describe("decode/0", 1, &[group()]);
    old[0].version = 7;
    let uneven = |kv_heads| move |group: &mut Group| group.content = Content::Heads { kv_heads, head_dim: 3 };
    let three = describe("prefill/0", 2, &[Group { content: Content::Heads { kv_heads: 3, head_dim: 3 }, ..group() }]);
    let mixed = {
        let mut ranks = describe("decode/0", 2, &[group()]);
        ranks[1].groups[0].content = Content::Heads { kv_heads: 4, head_dim: 3 };
        ranks
    };
    let cases = [
        (other_model, "the model is tiny at prefill/0 and large at decode/0"),
        (
            describe("decode/0", 1, &[Group { layers: vec![0], ..group() }, Group { layers: vec![1], ..group() }]),
            "there are 1 cache groups at prefill/0 and 2 at decode/0",
        ),
        (
            with(|group| group.layers = vec![0, 1, 2, 5]),
            "group 0 at decode/0 has layers 0..=2, 5, and no group at prefill/0 has the same",
        ),
        (with(uneven(4)), "group 0 has 2 kv heads at prefill/0 and 4 at decode/0"),
        (
            with(|group| group.content = Content::Heads { kv_heads: 2, head_dim: 4 }),
            "group 0 has 3 numbers a head at prefill/0 and 4 at decode/0",
        ),
        (
            with(|group| group.content = Content::Latent { dim: 4 }),
            "group 0 has keys and values at prefill/0 and latents at decode/0",
        ),
        (windowed, "group 0 has no window at prefill/0 and a window of 128 at decode/0"),
        (
            with(|group| group.block_tokens = 0),
            "the descriptor of rank 0 of decode/0 is wrong: group 0 has 0 slots of a block",
        ),
        (old, "the descriptor of rank 0 of decode/0 is wrong: it is of version 7, this build reads version 1"),
        (
            describe("decode/0", 2, &[group()])[..1].to_vec(),
            "1 descriptors of decode/0 were given, of which number 0 says that it is rank 0 of 2",
        ),
        (mixed, "rank 1 of decode/0 describes another model than rank 0"),
    ];
    for (reader, words) in cases {
        assert_eq!(sentence(&source, &reader), format!("decode/0 cannot read the KV of prefill/0: {words}"));
    }
    assert_eq!(
        sentence(&three, &three),
        "prefill/0 cannot read the KV of prefill/0: the descriptor of rank 0 of prefill/0 is wrong: \
         3 kv heads of group 0 cannot be split evenly over 2 ranks"
    );
    assert_eq!(
        sentence(&source, &[]),
        "an instance without ranks cannot read the KV of prefill/0: no descriptor of an instance without ranks was given"
    );
}

#[test]
fn a_descriptor_that_is_wrong_by_itself_is_told_by_its_flaw() {
    let flaw = |change: &dyn Fn(&mut Descriptor)| {
        let mut descriptor = describe("prefill/0", 1, &[group()]).remove(0);
        change(&mut descriptor);
        descriptor.check().expect_err("a flaw").to_string()
    };
    assert_eq!(flaw(&|it| it.tensor_parallel.rank = 1), "it is rank 1 of 1");
    assert_eq!(flaw(&|it| it.tensor_parallel.degree = 0), "it is rank 0 of 0");
    assert_eq!(flaw(&|it| it.groups.clear()), "it has no groups");
    assert_eq!(flaw(&|it| it.groups[0].layers.clear()), "group 0 has 0 layers");
    assert_eq!(flaw(&|it| it.groups[0].window = Some(0)), "group 0 has 0 positions of a window");
    assert_eq!(flaw(&|it| it.groups[0].layers = vec![1, 0]), "the layers of group 0 are not listed upwards");
    assert_eq!(flaw(&|it| it.groups[0].layers = vec![1, 1]), "the layers of group 0 are not listed upwards");
    assert_eq!(
        flaw(&|it| it.groups.push(Group { layers: vec![1, 2], ..group() })),
        "layer 1 of group 1 is in a group before it"
    );
    assert_eq!(flaw(&|it| it.groups[0].blocks = usize::MAX), "group 0 has more bytes than an address space");
    assert_eq!(flaw(&|it| it.groups[0].first_byte = usize::MAX), "group 0 has more bytes than an address space");
    let latent = |it: &mut Descriptor| {
        it.groups[0].content = Content::Latent { dim: 3 };
        it.groups[0].order = Order::PackedHnd;
    };
    assert_eq!(flaw(&latent), "group 0 is a latent, which has no values to be packed with");
}

#[test]
fn a_table_that_does_not_hold_the_tokens_is_an_error_not_a_panic() {
    let mut groups = [group()];
    groups[0].blocks = 3;
    let ranks = describe("prefill/0", 1, &groups);
    let conversion = layout::join(&ranks, &ranks).unwrap();
    let good = BlockTable { first_token: 0, blocks: &[0, 2, 1] };
    let plan = |range: std::ops::Range<usize>, source: BlockTable<'_>, reader: BlockTable<'_>| {
        conversion.plan(0, range, &[source], &[reader]).map(drop).unwrap_err()
    };
    let cases = [
        (plan(0..13, good, good), "the block table of the source's rank 0 has no block for token 12"),
        (
            plan(0..4, BlockTable { first_token: 4, ..good }, good),
            "the block table of the source's rank 0 has no block for token 0",
        ),
        (
            plan(4..8, good, BlockTable { first_token: 2, ..good }),
            "the block table of the reader's rank 0 begins at token 2, inside of a block of 4",
        ),
        (
            plan(0..8, good, BlockTable { first_token: 0, blocks: &[0, 3] }),
            "the block table of the reader's rank 0 names block 3, of blocks 0..3",
        ),
        (
            plan(0..8, good, BlockTable { first_token: 0, blocks: &[1, 1] }),
            "the block table of the reader's rank 0 names block 1 twice in the range",
        ),
        (plan(std::ops::Range { start: 5, end: 4 }, good, good), "tokens 5..4 end before they start"),
    ];
    for (error, words) in cases {
        assert_eq!(error.to_string(), words);
    }
    let error = conversion.plan(0, 0..4, &[good, good], &[good]).unwrap_err();
    assert_eq!(error, PlanError::Tables { side: Side::Source, ranks: 1, tables: 2 });
    assert_eq!(error.to_string(), "the source has 1 ranks, and 2 block tables were given");
    // A source's block may be read twice, an empty range needs no block, and blocks outside the range are not looked at.
    let twice = BlockTable { first_token: 0, blocks: &[1, 1, 9] };
    assert!(conversion.plan(0, 0..8, &[twice], &[good]).is_ok());
    assert!(conversion.plan(0, 2..2, &[BlockTable { first_token: 0, blocks: &[] }], &[good]).is_ok());
    // Places at the end of all numbers.
    let far = BlockTable { first_token: usize::MAX - 3, blocks: &[0] };
    assert!(conversion.plan(0, usize::MAX - 3..usize::MAX, &[far], &[far]).is_ok());
    let short = BlockTable { first_token: usize::MAX - 3, blocks: &[] };
    assert!(matches!(conversion.plan(0, usize::MAX - 3..usize::MAX, &[short], &[far]), Err(PlanError::NoToken { .. })));
}
