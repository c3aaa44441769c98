"""What the references are recorded of: prompts to go on from, and texts that tokenizers part on."""

import pathlib
import random

ROOT = pathlib.Path(__file__).resolve().parents[2]

CODE_PYTHON = '''def median(numbers):
    """The middle one, or the mean of the middle two."""
    if not numbers:
        raise ValueError("no numbers")
    ordered = sorted(numbers)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def variance(numbers):
'''

CODE_RUST = '''use std::collections::HashMap;

/// Counts words.
fn count(text: &str) -> HashMap<&str, usize> {
    let mut counts = HashMap::new();
    for word in text.split_whitespace() {
        *counts.entry(word).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_words() {
'''

CHINESE = "从前有座山，山里有座庙，庙里有个老和尚在给小和尚讲故事。讲的是什么故事呢？"

WEATHER = (
    "The harbour kept a record of the weather every morning. On the first day the wind came from the "
    "north-west and the sea was rough; on the second it had turned to the south, and by noon the rain had "
    "stopped. The keeper wrote down the pressure, the temperature and what the gulls were doing. "
)


def licence(characters):
    """So much of a long English text."""
    return (ROOT / "LICENSE").read_text()[:characters]


def ledger(lines):
    """Numbers, names and dates in lines."""
    draw = random.Random(1)
    names = ["Ada", "Ben", "Chloe", "Dmitri", "Esi", "Farid"]
    return "".join(
        f"{1900 + i}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}  {draw.choice(names):<8}"
        f"{draw.randint(1, 99999):>9}.{draw.randint(0, 99):02}\n"
        for i in range(lines)
    )


# Name, text. Lengths from a few tokens to about two thousand.
PROMPTS = [
    ("one word", "The"),
    ("capital", "The capital of France is"),
    ("story", "Once upon a time there was a little girl who"),
    ("list", "Three colours: red, green and"),
    ("count", "1, 2, 3, 4, 5, 6, 7,"),
    ("sum", "12 + 30 = 42. 15 + 21 = 36. 17 + 25 ="),
    ("year", "The French Revolution began in 17"),
    ("python", CODE_PYTHON),
    ("rust", CODE_RUST),
    ("json", '{"name": "Ada", "born": 1815, "languages": ["English", "French"], "note":'),
    ("html", "<html>\n  <head>\n    <title>Harbour</title>\n  </head>\n  <body>\n    <h1>"),
    ("chinese", CHINESE),
    ("chinese, long", CHINESE * 8),
    ("russian", "Москва — столица России, а Париж — столица"),
    ("emoji", "Weather today: ☀️🌧️🌈 and my mood is 😀😐"),
    ("spaces", "a  b   c    d\n\n\te\t\tf\n"),
    ("weather", WEATHER),
    ("weather four times", WEATHER * 4),
    ("ledger", ledger(24)),
    ("ledger, long", ledger(52)),
    ("licence 1,000", licence(1000)),
    ("licence 2,500", licence(2500)),
    ("licence 5,000", licence(5000)),
    ("licence, 2,000 tokens", licence(9600)),
]

# Name, messages; the model's own template writes them out.
CHATS = [
    ("greeting", [{"role": "user", "content": "Hello! Who are you?"}]),
    (
        "system",
        [
            {"role": "system", "content": "You answer in one short sentence."},
            {"role": "user", "content": "What is a lighthouse for?"},
        ],
    ),
    (
        "turns",
        [
            {"role": "user", "content": "Name a fruit."},
            {"role": "assistant", "content": "Apple."},
            {"role": "user", "content": "Another one, and say what colour it is."},
        ],
    ),
    ("about a text", [{"role": "user", "content": WEATHER * 2 + "\n\nWhat did the keeper write down?"}]),
]

PLAIN = [
    "",
    " ",
    "a",
    "Hello, world!",
    " Hello  world ",
    "It's what we've said; they'll see, I'd bet. IT'S WHAT WE'VE SAID",
    "snake_case camelCase SCREAMING_CASE kebab-case x86_64",
    "0 1 12 123 1234 12345 3.14159 1e-9 0xFF 1,000,000 ²³ ½ Ⅷ ٣٤ १२३",
    "tabs\tand\nnew\r\nlines\n\n\n  indented\n    more\n",
    "trailing spaces   \n   leading spaces",
    "   ",
    "\n",
    "\n\n\n",
    " \n ",
    "\t\t",
    "for (int i = 0; i < n; i++) { a[i] += b[i] * c; } // done",
    "https://example.com/path?query=1&other=%20#part",
    "naïve café Zürich Łódź Ørsted São Tomé",
    CHINESE,
    "日本語のテキストと、カタカナ。",
    "한국어 문장입니다.",
    "Это предложение на русском языке.",
    "هذه جملة بالعربية",
    "यह हिन्दी में एक वाक्य है।",
    "😀😃👨‍👩‍👧‍👦🏳️‍🌈👍🏽 🇫🇷",
    "e\u0301 vs \u00e9, \u200b zero width, \u00a0 no-break, \u3000 wide",
    "\ufeffmark \ufffd replacement \u0000 nul",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 outside the first plane",
    "-----=====~~~~~*****.....!!!!!?????",
    "'''\"\"\"```",
    "I'm 'told he's, 'RE you? 'M not, 'D like? We'Ve a'lL 's 't 'S",
    "A1B2C3 a1b2c3 1a2b3c version2.0.1-rc3",
    CODE_PYTHON,
    CODE_RUST,
    WEATHER,
]

MARKERS = [
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a<|im_start|>b",
    "<|im_start|><|im_end|><|endoftext|>",
    " <|im_end|> ",
    "<|im_start|",
    "<|im_start |>",
    "<|not_a_token|>",
    "1<|im_end|>2",
]


def mixtures(count, seed):
    """Texts made of pieces that meet in unforeseen ways."""
    draw = random.Random(seed)
    pieces = [" ", "  ", "\n", "\t", "\r\n", "'s", "'LL", "'", '"', "0", "12", "345", "a", "Word", "été", "ß", "中文", "の"]
    pieces += ["한", "я", "ب", "ह", "😀", "👍🏽", "\u200d", "\u0301", "_", "-", "...", "(", ")", "{", "}", "=", "/", "#", "²"]
    pieces += ["\u00a0", "\u3000", "the ", "quick", "Brown", "FOX", "x1", "<", ">", "|", "<|", "|>", "Ⅷ", "٣", "\u2028", "𝔘"]
    return ["".join(draw.choice(pieces) for _ in range(draw.randint(1, 14))) for _ in range(count)]
