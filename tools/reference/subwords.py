"""Records encodings and decodings of the SubwordTextEncoder of tensor2tensor 1.15.7.

For each vocabulary, tensor2tensor builds the file `subwords/NAME.vocab` and reads it again. The
results are written to `subwords/NAME.json`. The text was written for this project.
"""

import collections
import random

from shared import FOLDER, write_lists
from tensor2tensor.data_generators import text_encoder, tokenizer

from examples.synthetic_corpus import generate

# Python 3.11 and older versions agree on the Unicode categories of these characters.
HOSTILE = [
    "", " ", "  ", "   ", " a", "a ", "a b", "a  b", " a b ", "a . b", ".  .", ". .", "\t",
    "a\tb", "a\nb", "\n", "\n\n", "line one\r\nline two\r", "_", "__", "a_b", "_a_", " _ ",
    "a _ b", "snake_case_name", "\\", "\\\\", "\\\\\\", "a\\b", "\\_", "_\\", "\\u", "\\\\u",
    "u\\u;", "\\1234;", "\\65;", "\\233", "\\;", "\\u0041", "C:\\new\\table_1;", ";", "&#95;",
    "&amp; &quot;", "<pad>", "<EOS>", "<pad>_", "<EOS>_ <pad>", "0123456789", "3.14", "1,000",
    "²³½⅓Ⅷ①", "٣٤٥", "१२३", "𝟘𝟙𝟚", "naïve café", "cafe\u0301", "a\u0308o\u0308", "\u0301",
    "straße ẞ", "ﬁ ﬂ", "ΑΒΓ αβγ", "Привет, мир!", "שָׁלוֹם", "مَرحبا", "हिन्दी", "ไทย",
    "你好，世界。", "東京タワー", "안녕 하세요", "㐀𠀀", "😀", "😀😀", "a😀b", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪", "☃\ufe0f",
    "\u200b", "a\u200bb", "\u200d", "\ufeffa", "a\u00a0b", "\u3000", "\u2028", "\u2029", "\x85",
    "\x00", "a\x00b", "\x01\x1f\x7f", "\ufffd", "\ufffe\uffff", "\ue000", "\U000f0000",
    "\U0010ffff", "\u0378", "'", "''", "\"", "' '", "'the_'", "don't", "“quoted”", "a-b--c",
    "e-mail@example.org", "http://example.org/?q=a_b&c=%20", "x" * 257, "-" * 300, "ab" * 600,
    "Donau" * 40 + "!", "你" * 130, "é" * 97, "\\" * 33, "_" * 34, "1" * 50,
]  # fmt: skip
# Concatenated subtokens for decoding. Some escapes are incomplete, too large, or half of a
# surrogate pair.
RUN_TOGETHER = [
    "a", "a_", "a__b_", "_", "___", "_a", "a_b", "a_ _b_", "a_._b_", "\\u_", "a_\\u_b_",
    "\\\\_", "\\\\u_", "\\\\\\u_", "\\", "\\_", "\\\\\\_", "a\\_b", "\\\\\\\\", "\\a_",
    "\\65;_", "\\65_", "\\65", "\\;_", "\\u;_", "\\6\\65;5;_", "\\0065;_", "\\0;_", "\\000;_",
    "\\95;_", "\\92;117_", "\\92;_u_", "\\55296;_", "\\57343;a_", "\\55357;a\\56832;_",
    "\\65279;_", "\\1114111;_", "\\1114112;_", "\\9999999;_", "\\10000000;_",
    "\\99999999999999999999;_", "\\12307;_", "\\128512;_", "\\233;t_\\233;", "\\32;_a_",
    "a_\\32;_b_", "\\10;_", "\\-1;_", "\\1 2;_", "1_2_", ";_0;_", "\\\\65;_", "\\57344;\\u_",
]  # fmt: skip


def sentences():
    return [text for pair in generate("dev", size=151) for text in pair]


def build(texts, target_size=None, min_count=1):
    counts = collections.Counter()
    for text in texts:
        counts.update(tokenizer.encode(text))
    if target_size:
        return text_encoder.SubwordTextEncoder.build_to_target_size(target_size, counts, 1, 1000)
    encoder = text_encoder.SubwordTextEncoder()
    encoder.build_from_token_counts(counts, min_count)
    return encoder


def vocabularies():
    """Yields (name, encoder, whether the file has quotes) of each vocabulary."""
    yield "sentences", build(sentences(), target_size=300), True
    # This vocabulary has long subtokens, line breaks, NUL and control characters.
    long_runs = [
        "".join(random.Random(i).choices("abcdefgh", k=length))
        for i, length in enumerate((255, 256, 257, 300))
    ]
    yield "hostile", build(sentences()[:40] + 2 * HOSTILE + 3 * long_runs, min_count=3), True
    yield "small", build(["to be, or not to be"]), True
    yield "unquoted", build(["bananas", "ananas"]), False


def random_texts(rng, count):
    """Yields random strings of words and separators."""
    characters = "".join(HOSTILE[:115])
    words = " ".join(sentences()[:30]).split() + ["\\", "_", "\\u", "\\10;", " ", "  ", ""]
    for _ in range(count):
        parts = [
            rng.choice(words)
            if rng.random() < 0.6
            else "".join(rng.choices(characters, k=rng.randint(1, 4)))
            for _ in range(rng.randint(1, 8))
        ]
        yield rng.choice(["", " ", "_"]).join(parts)


def record_vocabulary(name, encoder, add_single_quotes):
    path = FOLDER / "subwords" / f"{name}.vocab"
    encoder.store_to_file(str(path), add_single_quotes=add_single_quotes)
    encoder = text_encoder.SubwordTextEncoder(str(path))
    rng = random.Random(name)
    texts = [*HOSTILE, *sentences()[-20:], *random_texts(rng, 150)]
    size = encoder.vocab_size
    id_of = {subtoken: i for i, subtoken in enumerate(encoder.all_subtoken_strings)}
    ids = [[id_of[c] for c in text if c in id_of] for text in RUN_TOGETHER]
    ids += [rng.choices(range(2, size), k=rng.randint(1, 12)) for _ in range(100)]
    ids += [rng.choices([*map(id_of.get, "\\u;_015")], k=rng.randint(1, 16)) for _ in range(150)]
    ids += [[0], [1], [2, 0, 1, 3], [size], [-1, 2, size + 5]]
    write_lists(f"subwords/{name}", {
        "subtokens": list(encoder.all_subtoken_strings),
        "encoded": [[text, encoder.encode(text)] for text in texts],
        "decoded": [[row, encoder.decode(row)] for row in [*ids, *map(encoder.encode, texts)]],
    })  # fmt: skip


def record():
    (FOLDER / "subwords").mkdir(exist_ok=True)
    for vocabulary in vocabularies():
        record_vocabulary(*vocabulary)
