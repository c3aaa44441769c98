//! Which layouts are joined, and which rank of the source a reader's rank asks for a head.
//!
//! Both sides have to be of one model: the same groups of the same layers, heads and dimensions. All
//! else may differ: block sizes, numbers of blocks, nesting, order, elements, ranks. What is
//! refused is refused here, before the first request, in a sentence that names both sides.
//!
//! ```text
//!   3 heads, source tp 1            4 heads, source tp 4          2 heads, source tp 4 (each twice)
//!   reader tp 3                     reader tp 2                   reader tp 2      reader tp 8
//!
//!   0: a b c ──▶ 0: a               0: a ──▶ 0: a b               0: a ──▶ 0: a    0: a ──▶ 0, 1: a
//!           └──▶ 1: b               1: b ──┘                      1: a             1: a ──▶ 2, 3: a
//!           └──▶ 2: c               2: c ──▶ 1: c d               2: b ──▶ 1: b    2: b ──▶ 4, 5: b
//!                                   3: d ──┘                      3: b             3: b ──▶ 6, 7: b
//! ```
//!
//! # Invariants
//!
//! - A reader's rank gets each of its heads from exactly one rank of the source.
//! - Of a head that s ranks of the source and r of the reader have, copy j of the reader's asks copy
//!   ⌊j · s / r⌋ of the source's: of the source's copies none serves two more readers than another.

use std::fmt;
use std::ops::Range;

use super::descriptor::{Content, Descriptor, Flaw};
use super::geometry::{self, Geometry};

/// The two sides of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Whose KV is read.
    Source,
    /// Who gets it.
    Reader,
}

/// Two layouts that are joined: makes plans.
#[derive(Clone, Debug)]
pub struct Conversion {
    groups: Vec<Pair>,
}

/// A group of the reader's and the same of the source's.
#[derive(Clone, Debug)]
struct Pair {
    content: Content,
    source: Vec<Geometry>,
    reader: Vec<Geometry>,
}

/// Heads that one rank of the source gives to one rank of the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Who gives.
    pub source_rank: usize,
    /// Who gets.
    pub reader_rank: usize,
    /// The model's heads.
    pub heads: Range<usize>,
}

/// Joins the layouts of a source's ranks and a reader's, each listed from rank 0.
///
/// # Errors
///
/// Says what differs, for good: nothing helps but another configuration.
pub fn join(source: &[Descriptor], reader: &[Descriptor]) -> Result<Conversion, Refusal> {
    let refuse = |difference| Refusal { source: name(source), reader: name(reader), difference };
    for (side, ranks) in [(Side::Source, source), (Side::Reader, reader)] {
        check_side(side, ranks).map_err(refuse)?;
    }
    let (one, other) = (&source[0], &reader[0]);
    if one.model != other.model {
        return Err(refuse(Difference::Model { source: one.model.clone(), reader: other.model.clone() }));
    }
    if one.groups.len() != other.groups.len() {
        return Err(refuse(Difference::Groups { source: one.groups.len(), reader: other.groups.len() }));
    }
    let mut groups = Vec::new();
    for (group, described) in other.groups.iter().enumerate() {
        // Groups may be listed in another order on the other side: their layers say which is which.
        let Some(partner) = one.groups.iter().position(|candidate| candidate.layers == described.layers) else {
            let missing = Difference::Layers { group, layers: described.layers.clone() };
            return Err(refuse(missing));
        };
        if let Some(difference) = differ(group, &one.groups[partner], described) {
            return Err(refuse(difference));
        }
        let of = |ranks: &[Descriptor], layers: &[u32]| -> Vec<Geometry> {
            let group = |rank: &Descriptor| rank.groups.iter().position(|group| group.layers == layers);
            let geometry = |rank| Geometry::of(rank, group(rank).expect("ranks have the same groups"));
            ranks.iter().map(|rank| geometry(rank).expect("checked")).collect()
        };
        groups.push(Pair {
            content: described.content,
            source: of(source, &described.layers),
            reader: of(reader, &described.layers),
        });
    }
    Ok(Conversion { groups })
}

/// What in two groups of the same layers keeps them from being joined.
fn differ(group: usize, source: &super::Group, reader: &super::Group) -> Option<Difference> {
    if source.layers != reader.layers {
        return Some(Difference::Layers { group, layers: reader.layers.clone() });
    }
    let content = match (source.content, reader.content) {
        (
            Content::Heads { kv_heads: source_heads, head_dim: source_dim },
            Content::Heads { kv_heads: reader_heads, head_dim: reader_dim },
        ) => [("kv heads", source_heads, reader_heads), ("numbers a head", source_dim, reader_dim)],
        (Content::Latent { dim: source }, Content::Latent { dim: reader }) => {
            [("numbers a latent", source, reader), ("", 0, 0)]
        }
        (source, reader) => return Some(Difference::Content { group, source, reader }),
    };
    if let Some(&(what, source, reader)) = content.iter().find(|(_, source, reader)| source != reader) {
        return Some(Difference::Count { group, what, source, reader });
    }
    (source.window != reader.window).then_some(Difference::Window {
        group,
        source: source.window,
        reader: reader.window,
    })
}

/// That these are the ranks of one instance, all of them and in order.
fn check_side(side: Side, ranks: &[Descriptor]) -> Result<(), Difference> {
    let Some(first) = ranks.first() else {
        return Err(Difference::NoRanks { side });
    };
    for (rank, described) in ranks.iter().enumerate() {
        described.check().map_err(|flaw| Difference::Flaw { side, rank, flaw })?;
        let found = described.tensor_parallel;
        if found.degree != ranks.len() || found.rank != rank {
            let (degree, found) = (found.degree, found.rank);
            return Err(Difference::Ranks { side, given: ranks.len(), place: rank, degree, found });
        }
        let alike = described.model == first.model
            && described.groups.len() == first.groups.len()
            && first.groups.iter().all(|group| {
                let partner = described.groups.iter().find(|partner| partner.layers == group.layers);
                partner.is_some_and(|partner| differ(0, partner, group).is_none())
            });
        if !alike {
            return Err(Difference::RanksDiffer { side, rank });
        }
    }
    Ok(())
}

fn name(ranks: &[Descriptor]) -> String {
    ranks.first().map_or_else(|| "an instance without ranks".into(), |first| first.instance.clone())
}

impl Conversion {
    /// How many groups there are, numbered as in the reader's descriptors.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Who gives which heads of a group to whom, by the reader's rank.
    pub fn shares(&self, group: usize) -> Vec<Share> {
        let Pair { content, source, reader } = &self.groups[group];
        let heads = content.heads();
        let mut shares: Vec<Share> = Vec::new();
        for (reader_rank, geometry) in reader.iter().enumerate() {
            for head in geometry.heads.clone() {
                let source_rank = source_rank(heads, source.len(), reader.len(), reader_rank, head);
                match shares.last_mut() {
                    Some(last) if (last.source_rank, last.reader_rank) == (source_rank, reader_rank) => {
                        last.heads.end = head + 1;
                    }
                    _ => shares.push(Share { source_rank, reader_rank, heads: head..head + 1 }),
                }
            }
        }
        shares
    }

    /// Where a group's numbers stand on each rank of a side.
    pub fn geometries(&self, group: usize, side: Side) -> &[Geometry] {
        let pair = &self.groups[group];
        match side {
            Side::Source => &pair.source,
            Side::Reader => &pair.reader,
        }
    }

    /// Empties blocks of a reader's rank that were handed to another text: their scales are 0 after it.
    /// Of elements without scales there is nothing to be done.
    ///
    /// # Panics
    ///
    /// When a block is none of the group's, or the memory is shorter than the rank's descriptor says.
    pub fn empty(&self, group: usize, reader_rank: usize, blocks: &[u32], memory: &mut [u8]) {
        let geometry = &self.groups[group].reader[reader_rank];
        if !geometry.element.scaled() {
            return;
        }
        for &block in blocks {
            assert!((block as usize) < geometry.blocks, "block {block} is the group's");
            let first = geometry.scale(block as usize, 0, 0, 0);
            memory[first..][..geometry.block_scales() * geometry::SCALE_BYTES].fill(0);
        }
    }
}

/// The rank of the source that gives a head to a rank of the reader.
fn source_rank(heads: usize, source: usize, reader: usize, reader_rank: usize, head: usize) -> usize {
    let (given, got) = (geometry::replicas(heads, source), geometry::replicas(heads, reader));
    if source <= heads {
        return head / (heads / source);
    }
    head * given + reader_rank % got * given / got
}

/// Why two layouts are not joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The source's name.
    pub source: String,
    /// The reader's name.
    pub reader: String,
    /// What is in the way.
    pub difference: Difference,
}

/// What keeps two layouts from being joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// No descriptor was given for a side.
    NoRanks {
        /// Which side.
        side: Side,
    },
    /// A descriptor is wrong by itself.
    Flaw {
        /// Whose.
        side: Side,
        /// Which one of the list.
        rank: usize,
        /// What is wrong.
        flaw: Flaw,
    },
    /// The list is not all ranks in order.
    Ranks {
        /// Whose.
        side: Side,
        /// How many descriptors were given.
        given: usize,
        /// Where in the list.
        place: usize,
        /// The degree that is said there.
        degree: usize,
        /// The rank that is said there.
        found: usize,
    },
    /// Ranks of one side are of different models.
    RanksDiffer {
        /// Which side.
        side: Side,
        /// The first rank that is unlike rank 0.
        rank: usize,
    },
    /// Other weights.
    Model {
        /// Of the source.
        source: String,
        /// Of the reader.
        reader: String,
    },
    /// Not as many cache groups.
    Groups {
        /// Of the source.
        source: usize,
        /// Of the reader.
        reader: usize,
    },
    /// The source has no group of these layers.
    Layers {
        /// The reader's group.
        group: usize,
        /// Its layers.
        layers: Vec<u32>,
    },
    /// Keys and values on one side, latents on the other.
    Content {
        /// The reader's group.
        group: usize,
        /// Of the source.
        source: Content,
        /// Of the reader.
        reader: Content,
    },
    /// Another number of heads, or of numbers in one.
    Count {
        /// The reader's group.
        group: usize,
        /// Of what.
        what: &'static str,
        /// Of the source.
        source: usize,
        /// Of the reader.
        reader: usize,
    },
    /// Another sliding window.
    Window {
        /// The reader's group.
        group: usize,
        /// Of the source.
        source: Option<usize>,
        /// Of the reader.
        reader: Option<usize>,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (one, other) = (&self.source, &self.reader);
        write!(f, "{other} cannot read the KV of {one}: ")?;
        let named = |side: &Side| match side {
            Side::Source => one,
            Side::Reader => other,
        };
        match &self.difference {
            Difference::NoRanks { side } => write!(f, "no descriptor of {} was given", named(side)),
            Difference::Flaw { side, rank, flaw } => {
                write!(f, "the descriptor of rank {rank} of {} is wrong: {flaw}", named(side))
            }
            Difference::Ranks { side, given, place, degree, found } => write!(
                f,
                "{given} descriptors of {} were given, of which number {place} says that it is rank {found} of {degree}",
                named(side)
            ),
            Difference::RanksDiffer { side, rank } => {
                write!(f, "rank {rank} of {} describes another model than rank 0", named(side))
            }
            Difference::Model { source, reader } => {
                write!(f, "the model is {source} at {one} and {reader} at {other}")
            }
            Difference::Groups { source, reader } => {
                write!(f, "there are {source} cache groups at {one} and {reader} at {other}")
            }
            Difference::Layers { group, layers } => {
                write!(f, "group {group} at {other} has layers {}, and no group at {one} has the same", spans(layers))
            }
            Difference::Content { group, source, reader } => {
                let kind = |content: &Content| match content {
                    Content::Heads { .. } => "keys and values",
                    Content::Latent { .. } => "latents",
                };
                write!(f, "group {group} has {} at {one} and {} at {other}", kind(source), kind(reader))
            }
            Difference::Count { group, what, source, reader } => {
                write!(f, "group {group} has {source} {what} at {one} and {reader} at {other}")
            }
            Difference::Window { group, source, reader } => {
                let window = |window: &Option<usize>| match window {
                    Some(positions) => format!("a window of {positions}"),
                    None => "no window".into(),
                };
                write!(f, "group {group} has {} at {one} and {} at {other}", window(source), window(reader))
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// Numbers that go upwards, in short: `0..=3, 8`.
fn spans(numbers: &[u32]) -> String {
    let mut spans = Vec::new();
    let mut first = 0;
    for at in 0..numbers.len() {
        if at + 1 == numbers.len() || numbers[at + 1] != numbers[at] + 1 {
            spans.push((numbers[first], numbers[at]));
            first = at + 1;
        }
    }
    let word =
        |&(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}..={last}") };
    spans.iter().map(word).collect::<Vec<_>>().join(", ")
}
