//! Inputs: programs with a few changes, tokens in any order, any bytes, IR with a few changes.
//!
//! Input number k of a kind depends on k alone, so a failing one is named by its number.

use serde_json::Value;

/// Numbers from a seed (SplitMix64: Steele, Lea, Flood, OOPSLA '14).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Of input number `k`.
    pub(crate) fn new(k: u64) -> Self {
        Self(k.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5e49_0000_0000_0001)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Below `limit`; 0 for a limit of 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

/// Pieces of programs.
const SOUP: &[&str] = &[
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ",",
    ";",
    ":",
    "?",
    "=",
    ".",
    "~",
    "+",
    "-",
    "*",
    "/",
    "^",
    "<",
    "<=",
    "==",
    "&&",
    "||",
    "!",
    "0",
    "1",
    "-1",
    "1.5",
    ".5",
    "1.",
    "1..5",
    "1e",
    "1e400",
    "1e-300",
    "65537",
    "inf",
    "0/0",
    "\"a\"",
    "\"",
    "/*",
    "*/",
    "//",
    "\n",
    "\r\n",
    "\t",
    "\u{feff}",
    "λ",
    "#",
    "max k in 3 (",
    "sum k in 5000 (",
    "let",
    "let x = ",
    "use \"vllm.sq\";",
    "def f(a)",
    "def f(a) = a + a;",
    "f(f(f(1)))",
    "pool",
    "pool p { cap 4; }",
    "stage s :",
    "step {",
    "fifo",
    "fifo(3)",
    "ps(",
    "delay",
    "queue Q : prefill {",
    "prefill (",
    "decode (",
    "transfer",
    "fails (",
    "else recompute;",
    "else retry 2 then error;",
    "fail;",
    "failed",
    "from",
    "to",
    "on",
    "hold",
    "hold kv (1) {",
    "reserve (",
    "reuse (",
    "at admission (",
    "cache (",
    "lease",
    "branch (",
    "branch with (",
    "else",
    "loop {",
    "choose i in 3 by (",
    "in",
    "by (",
    "run",
    "run {",
    "session {",
    "server {",
    "workload {",
    "arrive",
    "arrive batch(2);",
    "arrive poisson(1);",
    "arrive poisson(1) for 2, (0) for 3, repeat;",
    "arrive bursts(8) for 1, (0) for 2;",
    "arrive trace;",
    "for",
    "repeat",
    "arrive closed(1);",
    "turn;",
    "end;",
    "set x = ",
    "observe y = ",
    "mark z;",
    "request;",
    "request gw;",
    "grow kv (1);",
    "release kv;",
    "drop kv;",
    "growing",
    "share maxmin;",
    "D pull P",
    "latency",
    "gauge g = ",
    "preempt lifo;",
    "preempt none;",
    "block 4;",
    "evict by (",
    "admit via eng;",
    "spill",
    "x",
    "kv",
    "mem",
    "slot",
    "eng",
    "now",
    "serial",
    "cached",
    "computed",
    "reached",
    "used(kv)",
    "cachedin(mem)",
    "budget_left(eng)",
    "~exp(1)",
    "~uniform(0, 1)",
    "~bernoulli(0.5)",
    "self",
    "hidden o;",
];

fn boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// A word, number or sign of the text: its range.
fn token(text: &str, random: &mut Random) -> (usize, usize) {
    let at = boundary(text, random.below(text.len() + 1));
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let start = text[..at].rfind(|c| !word(c)).map_or(0, |k| k + text[k..].chars().next().map_or(1, char::len_utf8));
    let end = text[at..].find(|c| !word(c)).map_or(text.len(), |k| at + k);
    if start < end { (start, end) } else { (at, text[at..].chars().next().map_or(at, |c| at + c.len_utf8())) }
}

/// A program with one to four changes; about half of them leave its tokens whole, so that
/// many still link.
pub(crate) fn mutated(programs: &[String], random: &mut Random) -> String {
    let mut text = programs[random.below(programs.len())].clone();
    for _ in 0..=random.below(4) {
        match random.below(10) {
            // A token becomes another one of the text.
            0..=2 => {
                let (from, to) = token(&text, random);
                let other = text[from..to].to_owned();
                let (start, end) = token(&text, random);
                text.replace_range(start..end, &other);
            }
            // A number becomes another.
            3..=5 => {
                let numbers: Vec<(usize, &str)> = text
                    .match_indices(|c: char| c.is_ascii_digit())
                    .filter(|(at, _)| !text[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.'))
                    .collect();
                if !numbers.is_empty() {
                    let at = numbers[random.below(numbers.len())].0;
                    let end = text[at..].find(|c: char| !c.is_ascii_digit() && c != '.').map_or(text.len(), |k| at + k);
                    let other =
                        ["0", "1", "2", "3", "7.5", "0.1", "100", "1e-9", "(-1)", "(0/0)", "inf", "1e9", "1e18"];
                    // A million phases are allowed and take 10 ms a draw, more than all else together.
                    let known = if text.contains("erlang") { &other[..10] } else { &other[..] };
                    text.replace_range(at..end, random.of(known));
                }
            }
            // A line goes, or comes twice.
            6 => {
                let lines: Vec<&str> = text.lines().collect();
                let at = random.below(lines.len());
                let times = random.below(3);
                let changed = lines
                    .iter()
                    .enumerate()
                    .flat_map(|(k, line)| std::iter::repeat_n(*line, if k == at { times } else { 1 }));
                text = changed.collect::<Vec<_>>().join("\n");
            }
            // Anything anywhere.
            7 => {
                let at = boundary(&text, random.below(text.len() + 1));
                text.insert_str(at, random.of(SOUP));
            }
            8 => {
                let at = boundary(&text, random.below(text.len() + 1));
                let end = boundary(&text, at + random.below(12));
                text.replace_range(at..end, if random.below(2) == 0 { "" } else { random.of(SOUP) });
            }
            _ => {
                let at = boundary(&text, random.below(text.len() + 1));
                text.insert(at, char::from_u32(random.below(0x300) as u32).unwrap_or(' '));
            }
        }
        if text.len() > 40_000 {
            text.truncate(boundary(&text, 40_000));
        }
    }
    text
}

/// Pieces of programs in any order.
pub(crate) fn soup(random: &mut Random) -> String {
    let mut text = String::new();
    for _ in 0..random.below(60) {
        text.push_str(random.of(SOUP));
        text.push_str(random.of(&["", " ", " ", "\n"]));
    }
    text
}

/// Any bytes, as far as they are text; some kinds of bytes more than others.
pub(crate) fn bytes(random: &mut Random) -> String {
    let kind = random.below(4);
    let byte = |random: &mut Random| match kind {
        0 => random.below(256) as u8,
        1 => random.below(128) as u8,
        2 => b" \n{}()[];=.\"/*0e_x"[random.below(18)],
        _ => [0xe2, 0x88, 0x92, 0xf0, 0x9f, 0x80, b'"', b'/'][random.below(8)],
    };
    let length = random.below(300);
    let bytes: Vec<u8> = (0..length).map(|_| byte(random)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// An IR and where its numbers stand.
pub(crate) struct Ir {
    value: Value,
    /// JSON pointers to the numbers that are no places in the text.
    numbers: Vec<String>,
}

impl Ir {
    pub(crate) fn new(value: Value) -> Self {
        fn walk(value: &Value, at: &str, found: &mut Vec<String>) {
            match value {
                Value::Number(_) => found.push(at.to_owned()),
                Value::Array(list) => list.iter().enumerate().for_each(|(k, v)| walk(v, &format!("{at}/{k}"), found)),
                Value::Object(map) => {
                    map.iter()
                        .filter(|(key, _)| *key != "at")
                        .for_each(|(key, v)| walk(v, &format!("{at}/{key}"), found));
                }
                _ => {}
            }
        }
        let mut numbers = Vec::new();
        walk(&value, "", &mut numbers);
        Self { value, numbers }
    }
}

/// An IR with one to four changes. Two of three change one number only, so that many are
/// still programs; the others change any values of the tree, or characters of its text.
pub(crate) fn mutated_ir(programs: &[Ir], random: &mut Random) -> String {
    let Ir { value, numbers } = &programs[random.below(programs.len())];
    let mut program = value.clone();
    if random.below(3) != 0 {
        let at = &numbers[random.below(numbers.len())];
        *program.pointer_mut(at).expect("the pointer is the program's") = number(random);
        return program.to_string();
    }
    let changes = 1 + random.below(4);
    if random.below(4) == 0 {
        let mut text = program.to_string();
        for _ in 0..changes {
            let at = boundary(&text, random.below(text.len()));
            let end = boundary(&text, at + random.below(4));
            text.replace_range(at..end, random.of(&["", "0", "\"", "{", "}", "[", "]", ",", "null", "-1", "1e999"]));
        }
        return text;
    }
    for _ in 0..changes {
        let donor = subtree(&programs[random.below(programs.len())].value, random).clone();
        let place = place(&mut program, random);
        let new = match (random.below(4), &*place) {
            (0, _) => donor,
            (1 | 2, Value::Number(_)) | (1, _) => number(random),
            (_, Value::String(_)) => Value::from(random.of(&["inf", "-inf", "now", "max", "sum", "", "used", "min"])),
            (_, Value::Array(list)) if !list.is_empty() => {
                let mut list = list.clone();
                let at = random.below(list.len());
                if random.below(2) == 0 {
                    list.remove(at);
                } else {
                    let again = list[at].clone();
                    list.insert(at, again);
                }
                Value::Array(list)
            }
            (_, Value::Bool(value)) => Value::from(!value),
            _ => Value::Null,
        };
        *place = new;
    }
    program.to_string()
}

fn number(random: &mut Random) -> Value {
    let whole = [0, 1, 2, 3, 4, 5, 7, 9, 10, 12, 100, 65_536, 1_000_000_000, u64::from(u32::MAX), u64::MAX];
    let others = [-1.0, -0.0, 0.5, 1e-9, 1e18, 1e308];
    let at = random.below(whole.len() + others.len());
    whole.get(at).map_or_else(|| Value::from(others[at - whole.len()]), |n| Value::from(*n))
}

fn children(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    }
}

/// Descends as long as it likes.
fn subtree<'a>(mut value: &'a Value, random: &mut Random) -> &'a Value {
    while children(value) > 0 && random.below(12) != 0 {
        let at = random.below(children(value));
        value = match value {
            Value::Array(list) => &list[at],
            Value::Object(map) => map.values().nth(at).expect("counted"),
            _ => break,
        };
    }
    value
}

fn place<'a>(mut value: &'a mut Value, random: &mut Random) -> &'a mut Value {
    while children(value) > 0 && random.below(12) != 0 {
        let at = random.below(children(value));
        value = match value {
            Value::Array(list) => &mut list[at],
            Value::Object(map) => map.values_mut().nth(at).expect("counted"),
            _ => unreachable!("it has children"),
        };
    }
    value
}
