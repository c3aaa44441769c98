//! What a rank says about its KV: sent at the handshake, as JSON.
//!
//! A descriptor says what is physically there, after every choice that an engine's kernels make for
//! themselves, not what was configured: two engines with one configuration may differ in block size.
//! Strides and sizes are not sent. They follow from the fields ([`super::Geometry`]), so that they
//! cannot contradict them.
//!
//! # Invariants
//!
//! - [`Descriptor::check`] accepts only what every other function of this module can work with:
//!   sizes that fit memory, heads that can be split, layers that are in one group.
//! - Two descriptors with one [`Descriptor::compatibility_hash`] are of one model with the same
//!   groups, whatever their layouts.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::geometry::Geometry;

/// The version of descriptors that this build writes, and the only one it reads.
pub const VERSION: u32 = 1;

/// The KV memory of one rank of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// Of this format: [`VERSION`].
    pub version: u32,
    /// Who this is, for sentences: `prefill/0`. In no hash.
    pub instance: String,
    /// Which weights, by a name or a hash on which both sides agree.
    pub model: String,
    /// Which part of the heads is here.
    pub tensor_parallel: TensorParallel,
    /// The cache groups. Layers that are paged together are one group; a model whose layers are all
    /// alike has one.
    pub groups: Vec<Group>,
}

/// A rank among those that split a model's heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorParallel {
    /// How many ranks.
    pub degree: usize,
    /// Which one, from 0.
    pub rank: usize,
}

/// Layers whose KV is paged alike.
///
/// Its memory begins at `first_byte` of the rank's and has `blocks` blocks; regions of two groups may
/// be the same memory when the engine gives each block to one of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What a token leaves in a layer.
    pub content: Content,
    /// The model's layers that are here, numbered from 0 over the whole model, upwards.
    pub layers: Vec<u32>,
    /// A token sees that many positions, itself among them; none: all before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Token slots of a block.
    pub block_tokens: usize,
    /// How many blocks.
    pub blocks: usize,
    /// Where the group's region begins in the rank's memory, in bytes.
    pub first_byte: usize,
    /// How blocks, layers, keys and values are nested.
    pub nesting: Nesting,
    /// What comes in which order inside of them.
    pub order: Order,
    /// How numbers are stored.
    pub element: Element,
}

/// What a token leaves in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Content {
    /// A key and a value for each head. Ranks split the heads; where there are more ranks than
    /// heads, a head is on several of them.
    Heads {
        /// Of the model, not of the rank.
        kv_heads: usize,
        /// Numbers of a key, and of a value.
        head_dim: usize,
    },
    /// One latent vector that stands for all keys and values, whole on every rank (MLA).
    Latent {
        /// Its numbers, those of the rotary part included.
        dim: usize,
    },
}

/// How blocks, layers, keys and values are nested, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nesting {
    /// `[block][layer][keys, values]`: a block is one piece of memory. `serq-engine` has this one.
    BlockMajor,
    /// `[layer][keys, values][block]`: a tensor of keys and one of values a layer.
    LayerMajor,
    /// `[layer][block][keys, values]`: a tensor a layer.
    LayerBlockMajor,
}

/// The order inside a block's part of a layer.
///
/// In the packed orders the key and the value of a head stand side by side, so that there is no
/// axis of keys and values further out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// `[token][head][dim]`.
    Nhd,
    /// `[head][token][dim]`.
    Hnd,
    /// `[token][head][key dim, value dim]`.
    PackedNhd,
    /// `[head][token][key dim, value dim]`.
    PackedHnd,
}

/// How numbers are stored, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// IEEE single.
    F32,
    /// The upper half of a single.
    Bf16,
    /// IEEE half.
    F16,
    /// OCP's e4m3fn: 4 bits of exponent, 3 of mantissa, up to 448, no infinity. A number is its code
    /// times a scale.
    ///
    /// A scale is a single, finite and not negative. There is one for the keys and one for the values
    /// of each block, layer and head of the rank, as `[block][layer][keys, values][head]`, whatever
    /// the nesting of the elements; the table begins at the first multiple of 4 bytes behind
    /// the group's elements. A scale of 0 says that all numbers under it are zero, or that the
    /// block is empty.
    ///
    /// The tokens of a block share scales. So a range that fills only a part of a reader's block
    /// may multiply the scale, and then the block's other codes are brought under the new one.
    /// A range that fills the block chooses the scale anew. A block that is handed to another
    /// text has to be emptied before ([`super::Conversion::empty`]), or the scales of what it held
    /// make the new numbers coarser than they need be.
    #[serde(rename = "fp8_e4m3")]
    Fp8E4m3,
}

impl Element {
    /// Bytes of an element, its share of a scale aside.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::Fp8E4m3 => 1,
        }
    }

    /// Whether the elements have scales beside them.
    pub fn scaled(self) -> bool {
        self == Self::Fp8E4m3
    }
}

impl Order {
    /// Whether the key and the value of a head stand side by side.
    pub fn packed(self) -> bool {
        matches!(self, Self::PackedNhd | Self::PackedHnd)
    }
}

impl Content {
    /// Heads of the model; a latent is one.
    pub fn heads(self) -> usize {
        match self {
            Self::Heads { kv_heads, .. } => kv_heads,
            Self::Latent { .. } => 1,
        }
    }

    /// Numbers of a key, a value or a latent.
    pub fn dim(self) -> usize {
        match self {
            Self::Heads { head_dim, .. } => head_dim,
            Self::Latent { dim } => dim,
        }
    }

    /// 2 for keys and values, 1 for a latent.
    pub fn halves(self) -> usize {
        match self {
            Self::Heads { .. } => 2,
            Self::Latent { .. } => 1,
        }
    }
}

impl Group {
    /// The tokens that a reader asks for: `prompt` tokens are computed at the source, `hit` of them
    /// lie at the reader already, and the reader computes the last one again to have its logits.
    /// Of a sliding window only what that token sees.
    pub fn tokens_to_read(&self, hit: usize, prompt: usize) -> std::ops::Range<usize> {
        let end = prompt.saturating_sub(1);
        let seen = self.window.map_or(0, |window| prompt.saturating_sub(window));
        hit.max(seen).min(end)..end
    }
}

impl Descriptor {
    /// Reads what a peer sent, and checks it.
    ///
    /// # Errors
    ///
    /// What is wrong, in a sentence. Another version is told before anything else.
    pub fn from_json(text: &str) -> Result<Self, Unreadable> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let versioned: Versioned = serde_json::from_str(text).map_err(|error| Unreadable::Json(error.to_string()))?;
        if versioned.version != VERSION {
            return Err(Unreadable::Flaw(Flaw::Version { found: versioned.version }));
        }
        let read: Self = serde_json::from_str(text).map_err(|error| Unreadable::Json(error.to_string()))?;
        read.check().map_err(Unreadable::Flaw)?;
        Ok(read)
    }

    /// The text that [`Descriptor::from_json`] reads.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a descriptor has only names, numbers and lists")
    }

    /// Says what no converter could work with.
    ///
    /// # Errors
    ///
    /// The first flaw that is found.
    pub fn check(&self) -> Result<(), Flaw> {
        if self.version != VERSION {
            return Err(Flaw::Version { found: self.version });
        }
        let TensorParallel { degree, rank } = self.tensor_parallel;
        if rank >= degree {
            return Err(Flaw::Rank { degree, rank });
        }
        if self.groups.is_empty() {
            return Err(Flaw::NoGroups);
        }
        let mut layers = BTreeSet::new();
        for (group, described) in self.groups.iter().enumerate() {
            described.check(group, degree)?;
            if let Some(&layer) = described.layers.iter().find(|&&layer| !layers.insert(layer)) {
                return Err(Flaw::LayerTwice { group, layer });
            }
            Geometry::of(self, group).ok_or(Flaw::Size { group })?;
        }
        Ok(())
    }

    /// Of all but the name: who sends the same hash again has not changed its memory's layout.
    /// 64 digits of a SHA-256.
    pub fn content_hash(&self) -> String {
        let nameless = Self { instance: String::new(), ..self.clone() };
        hash(&nameless.to_json())
    }

    /// Of what has to be the same on both sides: the version, the model, and the groups' contents,
    /// layers and windows, in whatever order they are listed. 64 digits of a SHA-256.
    pub fn compatibility_hash(&self) -> String {
        let mut groups: Vec<_> = self.groups.iter().map(|group| (&group.layers, group.content, group.window)).collect();
        groups.sort_by_key(|(layers, ..)| *layers);
        hash(&serde_json::to_string(&(self.version, &self.model, groups)).expect("names, numbers and lists"))
    }

    /// The same heads in one contiguous buffer for so many tokens of each group, in canonical order:
    /// `[layer][keys, values][token][head][dim]`, group after group, with the elements of
    /// `like`. Its blocks have one slot, so its block table is 0, 1, 2, … and begins at any token.
    ///
    /// This is what a stream carries: the source's side gathers into it, the reader's scatters
    /// from it. For a buffer of a reader's heads in the source's numbers call it on the reader's
    /// descriptor with the source's as `like`.
    ///
    /// # Panics
    ///
    /// When the counts or the groups of `like` are not one for each group here, or the sizes do not fit memory.
    pub fn staging(&self, tokens: &[usize], like: &Self) -> Self {
        assert_eq!(tokens.len(), self.groups.len(), "a count of tokens for each group");
        let mut staged = self.clone();
        let mut first_byte = 0;
        for (group, &blocks) in tokens.iter().enumerate() {
            let here = &self.groups[group];
            let other = like.groups.iter().find(|other| other.layers == here.layers).expect("groups of one model");
            staged.groups[group] = Group {
                block_tokens: 1,
                blocks,
                first_byte,
                nesting: Nesting::LayerMajor,
                order: Order::Nhd,
                element: other.element,
                ..here.clone()
            };
            // A boundary that suits every element.
            first_byte = Geometry::of(&staged, group).expect("it fits memory").end().next_multiple_of(4);
        }
        staged
    }

    /// Bytes that the rank's memory has at least.
    ///
    /// # Panics
    ///
    /// When the descriptor was not accepted by [`Descriptor::check`].
    pub fn memory_bytes(&self) -> usize {
        let ends = (0..self.groups.len()).map(|group| Geometry::of(self, group).expect("a checked descriptor").end());
        ends.max().unwrap_or(0)
    }
}

impl Group {
    fn check(&self, group: usize, degree: usize) -> Result<(), Flaw> {
        let counts = [
            ("heads", self.content.heads()),
            ("numbers of a head", self.content.dim()),
            ("layers", self.layers.len()),
            ("slots of a block", self.block_tokens),
            ("positions of a window", self.window.unwrap_or(1)),
        ];
        if let Some(&(what, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(Flaw::None { group, what });
        }
        if !self.layers.is_sorted_by(|one, next| one < next) {
            return Err(Flaw::LayersUnordered { group });
        }
        match self.content {
            Content::Heads { kv_heads, .. } if !kv_heads.is_multiple_of(degree) && !degree.is_multiple_of(kv_heads) => {
                Err(Flaw::HeadsUneven { group, kv_heads, degree })
            }
            Content::Latent { .. } if self.order.packed() => Err(Flaw::LatentPacked { group }),
            _ => Ok(()),
        }
    }
}

fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What makes a descriptor useless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It is of another version of the format.
    Version {
        /// Which one.
        found: u32,
    },
    /// Its rank is not among its ranks.
    Rank {
        /// How many ranks it says there are.
        degree: usize,
        /// Which one it says it is.
        rank: usize,
    },
    /// It describes no memory.
    NoGroups,
    /// A group has nothing of something.
    None {
        /// The group's number.
        group: usize,
        /// Of what.
        what: &'static str,
    },
    /// A group's layers are not listed upwards.
    LayersUnordered {
        /// The group's number.
        group: usize,
    },
    /// A layer is in two groups.
    LayerTwice {
        /// The second group's number.
        group: usize,
        /// The layer.
        layer: u32,
    },
    /// Ranks cannot have the same number of heads, nor heads of ranks.
    HeadsUneven {
        /// The group's number.
        group: usize,
        /// Heads of the model.
        kv_heads: usize,
        /// Ranks.
        degree: usize,
    },
    /// A latent has no key and value to be packed.
    LatentPacked {
        /// The group's number.
        group: usize,
    },
    /// The group's bytes do not fit an address space.
    Size {
        /// The group's number.
        group: usize,
    },
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { found } => write!(f, "it is of version {found}, this build reads version {VERSION}"),
            Self::Rank { degree, rank } => write!(f, "it is rank {rank} of {degree}"),
            Self::NoGroups => write!(f, "it has no groups"),
            Self::None { group, what } => write!(f, "group {group} has 0 {what}"),
            Self::LayersUnordered { group } => write!(f, "the layers of group {group} are not listed upwards"),
            Self::LayerTwice { group, layer } => write!(f, "layer {layer} of group {group} is in a group before it"),
            Self::HeadsUneven { group, kv_heads, degree } => {
                write!(f, "{kv_heads} kv heads of group {group} cannot be split evenly over {degree} ranks")
            }
            Self::LatentPacked { group } => {
                write!(f, "group {group} is a latent, which has no values to be packed with")
            }
            Self::Size { group } => write!(f, "group {group} has more bytes than an address space"),
        }
    }
}

/// Why a text is no descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It is not the JSON of one, in the words of the JSON reader.
    Json(String),
    /// It is one that nobody can work with.
    Flaw(Flaw),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(words) => write!(f, "this is no layout descriptor: {words}"),
            Self::Flaw(flaw) => write!(f, "the layout descriptor is wrong: {flaw}"),
        }
    }
}

impl std::error::Error for Unreadable {}
