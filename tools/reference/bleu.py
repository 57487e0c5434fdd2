"""Records BLEU and tokenization of tensor2tensor 1.15.7 and Moses.

The argument is a copy of https://github.com/moses-smt/mosesdecoder from before November 2018,
because later versions of its tokenizer separate the last dot of every line. Writes `bleu.json`. The
text was written for this project.
"""

import os
import pathlib
import random
import re
import subprocess
import tempfile

from shared import write_lists
from tensor2tensor.utils import bleu_hook

from examples.synthetic_corpus import generate

# Text on which tokenizers differ: numbers, quotes, abbreviations, hyphens, symbols and scripts.
LINES = [
    "", " ", "Ja.", "3,5 % von 1.000,00 € sind 35,00 €.", "Im Jahr 2014.", "Am 3. Mai, ca. 17:30 Uhr",
    "Das E-Mail-Programm (Version 2.0) läuft - meistens - gut.", "„Gut“, sagte er, »sehr gut«.",
    "Der \"alte\" Baum; die 'neue' Hütte.", "z.B. bzw. usw. Dr. Müller u.a.", "Prof. Dr. h.c. Weiß-Schmidt",
    "a & b < c > d | e [f]", "C:\\Daten\\neu.txt", "\\\\ \\. a\\, \\(b\\)", "½. ⅓, Ⅷ. x² + y²", "٣,٤ 5،6",
    "http://www.example.org/?q=a_b&c=1-2", "name@example.org", "So ... und so… -- oder – nicht?!", "--a--b- -c",
    "20-jährige Nord-Süd-Verbindung", "1-2-3 10-20", "Rock'n'Roll geht's? L'Arc, d'accord", "mit\u00a0festem\u2009Leerzeichen",
    "Café café", "Привет, мир!", "😀 gut 👍🏽", "$5 £3 5$ ^_^ ~`|", "*#@%&/", "(((a)))", "100%ig, 24/7, 3:2",
    "USA. U.S.A. u. s. w.", "Nr. 7 und Nr. Sieben", "1. 2. 3.", "ungefähr 1.5. Dann", "Ende.\" Dann", "»a«.", "…", "'", "''", "-",
    "&quot; &amp; &#124;", "a\u200bb\u00adc", "Straße STRASSE straße",
]  # fmt: skip
# sacremoses splits Chinese text, unlike Moses.
UNSPACED = ["你好，世界。", "東京タワー（とうきょう）"]


def mangle(line, rng):
    """Returns a line with up to two random errors."""
    words = line.split(" ")
    for _ in range(rng.randint(0, 2)):
        i = rng.randrange(len(words))
        change = rng.choice(["drop", "swap", "case", "double", "glue"])
        if change == "drop":
            words[i : i + 1] = []
        elif change == "swap":
            j = rng.randrange(len(words))
            words[i], words[j] = words[j], words[i]
        elif change == "case":
            words[i] = words[i].swapcase()
        elif change == "double":
            words.insert(i, words[i])
        else:
            words[i : i + 2] = ["-".join(words[i : i + 2])]
        words = words or ["nichts"]
    return " ".join(words)


def corpora():
    """Yields (name, hypotheses, references) of each corpus."""
    rng = random.Random(20180401)
    sentences = [target for _, target in generate("dev", size=101)]
    yield "sentences", [mangle(line, rng) for line in sentences], sentences
    yield "hostile", [mangle(line, rng) for line in LINES], LINES
    yield "exact", sentences[:7], sentences[:7]
    yield "shorter", [line.rsplit(" ", 3)[0] for line in sentences[:11]], sentences[:11]
    yield "no quadruple", ["ja", "nein , doch"], ["ja", "nein , doch"]
    yield "no right pair", ["ein Mann schläft jetzt", "gut"], ["Mann ein jetzt schläft hier", "gut"]
    yield "nothing right", ["eins zwei drei vier fünf"], ["one two three four five six"]
    yield "empty", ["", ""], ["ein Mann", "eine Frau"]


def t2t(hypotheses, references):
    """Returns cased and uncased BLEU of t2t-bleu in full precision."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("references", "hypotheses")]
        for path, lines in zip(paths, (references, hypotheses)):
            pathlib.Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return {
            name: 100 * float(bleu_hook.bleu_wrapper(*paths, case_sensitive=name == "cased"))
            for name in ("cased", "uncased")
        }


def moses(script, lines, *arguments):
    """Returns the output of a Perl script of Moses."""
    text = "".join(f"{line}\n" for line in lines)
    return subprocess.run(
        ["perl", script, *arguments], input=text, capture_output=True, text=True, check=False
    ).stdout


def split(lines):
    return moses("-ple", lines, "s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g").split("\n")[:-1]


def compound_bleu(root, hypotheses, references):
    """Returns the tokenized lines of both sides and the result of multi-bleu.

    Follows get_ende_bleu.sh, but also tokenizes the references.
    """
    tokenizer = str(root / "scripts/tokenizer/tokenizer.perl")
    tokenised = [
        moses(tokenizer, lines, "-l", "de", "-q").split("\n")[:-1]
        for lines in (hypotheses, references)
    ]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in split(tokenised[1]))
        file.flush()
        printed = moses(
            str(root / "scripts/generic/multi-bleu.perl"), split(tokenised[0]), file.name
        )
    found = re.match(r"BLEU = ([\d.]+), .*\(BP=([\d.]+), .*hyp_len=(\d+), ref_len=(\d+)\)", printed)
    return {
        "tokenised": tokenised,
        "multi_bleu": found
        and {"bleu": float(found[1]), "hyp_len": int(found[3]), "ref_len": int(found[4])},
    }


def record(root):
    results = []
    for name, hypotheses, references in corpora():
        entry = {"name": name, "hypotheses": hypotheses, "references": references} | t2t(
            hypotheses, references
        )
        results.append(entry | compound_bleu(pathlib.Path(root), hypotheses, references))
    tokens = [[line, bleu_hook.bleu_tokenize(line)] for line in LINES + UNSPACED]
    write_lists("bleu", {"corpora": results, "tokens": tokens})
