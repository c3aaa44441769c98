//! A GGUF file's keys and tensors [GGUF].
//!
//! ```text
//!   "GGUF" | version | tensors | keys | key, type, value … | name, sizes, type, offset … | pad | numbers
//! ```
//!
//! Only the header is read. Its counts and lengths are believed as far as the file has bytes
//! for them, so what is kept is never larger than the file. An array stays in the file until
//! somebody asks for its elements.

mod cursor;
pub(super) mod model;

use std::collections::BTreeMap;

use self::cursor::Cursor;
use super::error::Trouble;
use super::stored::Stored;
use super::tensor::{Bytes, Tensor};

/// A token that marks something: `tokenizer.ggml.token_type`.
pub(crate) const CONTROL: i128 = 3;
/// A token that is text, and taken out of a text before anything else is looked at.
pub(crate) const USER_DEFINED: i128 = 4;

/// A file's header.
pub(crate) struct Gguf {
    bytes: Bytes,
    keys: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Tensor>,
}

/// What a key says.
enum Value {
    Integer(i128),
    Number(f64),
    Flag(bool),
    Text(String),
    Array { kind: Kind, count: usize, start: usize },
}

/// A value's type.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Unsigned { bytes: usize },
    Signed { bytes: usize },
    Single,
    Double,
    Flag,
    Text,
    Array,
}

/// Arrays in arrays beyond this are nonsense, and would be read on the stack.
const DEPTH_MAX: usize = 4;

impl Gguf {
    /// Reads the header.
    pub(crate) fn read(bytes: Bytes) -> Result<Self, Trouble> {
        let mut cursor = Cursor::new((*bytes).as_ref());
        if cursor.take(4)? != b"GGUF" {
            return Err(Trouble::Damaged("it does not begin with GGUF".into()));
        }
        match cursor.u32()? {
            2 | 3 => {}
            version if matches!(version.swap_bytes(), 1..=3) => {
                return Err(Trouble::Unsupported("a big-endian GGUF file".into()));
            }
            version => return Err(Trouble::Unsupported(format!("GGUF version {version}"))),
        }
        let tensor_count = cursor.u64()?;
        let key_count = cursor.u64()?;
        let mut keys = BTreeMap::new();
        for _ in 0..key_count {
            let key = cursor.text()?.to_owned();
            let kind = Kind::of(cursor.u32()?, &key)?;
            let value = Value::read(kind, &mut cursor, &key)?;
            if keys.insert(key.clone(), value).is_some() {
                return Err(Trouble::Damaged(format!("the key `{key}` is there twice")));
            }
        }
        let mut gguf = Self { bytes: bytes.clone(), keys, tensors: BTreeMap::new() };
        gguf.read_tensors(cursor, tensor_count)?;
        Ok(gguf)
    }

    fn read_tensors(&mut self, mut cursor: Cursor<'_>, count: u64) -> Result<(), Trouble> {
        let alignment = self.size("general.alignment")?.unwrap_or(32);
        if !alignment.is_power_of_two() {
            return Err(Trouble::Damaged(format!("numbers are aligned to {alignment} bytes")));
        }
        let mut places = BTreeMap::new();
        for _ in 0..count {
            let name = cursor.text()?.to_owned();
            let place = Place::read(&mut cursor, &name)?;
            if places.insert(name.clone(), place).is_some() {
                return Err(Trouble::Damaged(format!("the tensor `{name}` is there twice")));
            }
        }
        let start = cursor.at().checked_next_multiple_of(alignment);
        for (name, Place { rows, columns, stored, offset }) in places {
            let tensor = if offset.is_multiple_of(alignment) {
                match start.and_then(|start| start.checked_add(offset)) {
                    Some(start) => Tensor::read(rows, columns, stored, self.bytes.clone(), start),
                    None => Err(format!("it begins at byte {offset} of the numbers")),
                }
            } else {
                Err(format!("it begins at byte {offset} of the numbers, which is not aligned to {alignment}"))
            };
            let tensor = tensor.map_err(|why| Trouble::Damaged(format!("the tensor `{name}`: {why}")))?;
            self.tensors.insert(name, tensor);
        }
        Ok(())
    }

    /// The tensors, by name; they are taken out.
    pub(crate) fn take_tensors(&mut self) -> BTreeMap<String, Tensor> {
        std::mem::take(&mut self.tensors)
    }

    /// A size or an id.
    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>, Trouble> {
        self.value(key, "a whole number of 0 or more", |value| match value {
            Value::Integer(number) => usize::try_from(*number).ok(),
            _ => None,
        })
    }

    /// A number.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, Trouble> {
        self.value(key, "a number", |value| match value {
            Value::Number(number) => Some(*number),
            Value::Integer(number) => Some(*number as f64),
            _ => None,
        })
    }

    /// A yes or no.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, Trouble> {
        self.value(key, "true or false", |value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, Trouble> {
        self.value(key, "a text", |value| match value {
            Value::Text(text) => Some(&text[..]),
            _ => None,
        })
    }

    /// An array of texts.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, Trouble> {
        self.array(key, "a list of texts", |kind| kind == Kind::Text, |_, cursor| cursor.text())
    }

    /// An array of whole numbers.
    pub(crate) fn integers(&self, key: &str) -> Result<Option<Vec<i128>>, Trouble> {
        let fits = |kind| matches!(kind, Kind::Unsigned { .. } | Kind::Signed { .. });
        self.array(key, "a list of whole numbers", fits, |kind, cursor| kind.integer(cursor))
    }

    fn value<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        of: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Trouble> {
        let Some(value) = self.keys.get(key) else { return Ok(None) };
        match of(value) {
            Some(found) => Ok(Some(found)),
            None => Err(Trouble::Unsupported(format!("the key `{key}` is not {expected}"))),
        }
    }

    fn array<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        fits: impl FnOnce(Kind) -> bool,
        element: impl Fn(Kind, &mut Cursor<'a>) -> Result<T, Trouble>,
    ) -> Result<Option<Vec<T>>, Trouble> {
        let found = self.value(key, expected, |value| match value {
            Value::Array { kind, count, start } if fits(*kind) => Some((*kind, *count, *start)),
            _ => None,
        })?;
        let Some((kind, count, start)) = found else { return Ok(None) };
        let mut cursor = Cursor::new((*self.bytes).as_ref());
        cursor.skip(start)?;
        (0..count).map(|_| element(kind, &mut cursor)).collect::<Result<_, _>>().map(Some)
    }
}

/// Where the file says a tensor is.
struct Place {
    rows: usize,
    columns: usize,
    stored: Stored,
    offset: usize,
}

impl Place {
    fn read(cursor: &mut Cursor<'_>, name: &str) -> Result<Self, Trouble> {
        let damaged = |what: String| Trouble::Damaged(format!("the tensor `{name}` {what}"));
        let dimensions = cursor.u32()?;
        if !(1..=4).contains(&dimensions) {
            return Err(damaged(format!("has {dimensions} dimensions")));
        }
        let columns = cursor.size()?;
        let mut rows = 1_usize;
        for _ in 1..dimensions {
            let size = cursor.size()?;
            rows = rows.checked_mul(size).ok_or_else(|| damaged("is larger than memory can name".into()))?;
        }
        if rows == 0 || columns == 0 {
            return Err(damaged("has no numbers".into()));
        }
        let stored = match cursor.u32()? {
            0 => Stored::F32,
            1 => Stored::F16,
            2 => Stored::Q4_0,
            3 => Stored::Q4_1,
            8 => Stored::Q8_0,
            12 => Stored::Q4K,
            14 => Stored::Q6K,
            30 => Stored::Bf16,
            number => {
                let format = format_name(number).map_or(format!("number {number}"), str::to_owned);
                return Err(Trouble::Unsupported(format!("the tensor `{name}` is stored in the format {format}")));
            }
        };
        Ok(Self { rows, columns, stored, offset: cursor.size()? })
    }
}

/// Formats that are ggml's and not read here [ggml: `ggml.h`, `ggml_type`].
fn format_name(number: u32) -> Option<&'static str> {
    Some(match number {
        6 => "Q5_0",
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        13 => "Q5_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        _ => return None,
    })
}

impl Kind {
    fn of(number: u32, key: &str) -> Result<Self, Trouble> {
        Ok(match number {
            0 => Self::Unsigned { bytes: 1 },
            1 => Self::Signed { bytes: 1 },
            2 => Self::Unsigned { bytes: 2 },
            3 => Self::Signed { bytes: 2 },
            4 => Self::Unsigned { bytes: 4 },
            5 => Self::Signed { bytes: 4 },
            6 => Self::Single,
            7 => Self::Flag,
            8 => Self::Text,
            9 => Self::Array,
            10 => Self::Unsigned { bytes: 8 },
            11 => Self::Signed { bytes: 8 },
            12 => Self::Double,
            _ => return Err(Trouble::Damaged(format!("the key `{key}` has a value of the unknown type {number}"))),
        })
    }

    /// Bytes of a value, where all have the same.
    fn bytes(self) -> Option<usize> {
        match self {
            Self::Unsigned { bytes } | Self::Signed { bytes } => Some(bytes),
            Self::Single => Some(4),
            Self::Double => Some(8),
            Self::Flag => Some(1),
            Self::Text | Self::Array => None,
        }
    }

    /// A value of a whole number's kind.
    fn integer(self, cursor: &mut Cursor<'_>) -> Result<i128, Trouble> {
        let length = self.bytes().expect("a whole number's kind");
        let bytes = cursor.take(length)?;
        let negative = matches!(self, Self::Signed { .. }) && bytes[length - 1] & 0x80 != 0;
        let mut number = [if negative { 0xff } else { 0 }; 16];
        number[..length].copy_from_slice(bytes);
        Ok(i128::from_le_bytes(number))
    }
}

impl Value {
    fn read(kind: Kind, cursor: &mut Cursor<'_>, key: &str) -> Result<Self, Trouble> {
        Ok(match kind {
            Kind::Unsigned { .. } | Kind::Signed { .. } => Self::Integer(kind.integer(cursor)?),
            Kind::Single => Self::Number(f32::from_bits(cursor.u32()?).into()),
            Kind::Double => Self::Number(f64::from_bits(cursor.u64()?)),
            Kind::Flag => Self::Flag(cursor.take(1)?[0] != 0),
            Kind::Text => Self::Text(cursor.text()?.to_owned()),
            Kind::Array => {
                let (kind, count, start) = skip_array(cursor, key, 0)?;
                Self::Array { kind, count, start }
            }
        })
    }
}

/// Passes over an array: its elements' kind, how many they are and where they begin.
fn skip_array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<(Kind, usize, usize), Trouble> {
    let kind = Kind::of(cursor.u32()?, key)?;
    let count = cursor.size()?;
    let start = cursor.at();
    match (kind.bytes(), kind) {
        (Some(bytes), _) => cursor.skip(count.saturating_mul(bytes))?,
        (None, Kind::Text) => {
            for _ in 0..count {
                cursor.text()?;
            }
        }
        (None, _) if depth < DEPTH_MAX => {
            for _ in 0..count {
                skip_array(cursor, key, depth + 1)?;
            }
        }
        (None, _) => return Err(Trouble::Damaged(format!("the key `{key}` is a list in a list in a list"))),
    }
    Ok((kind, count, start))
}
