import gzip
import io
import os
import pty
import queue
import re
import sys
import threading
from types import SimpleNamespace

import pytest
import tensorflow as tf
from absl import flags
from programs import Program
from subprocesses import run_python

from trainer import translate
from trainer.serving import model_versions
from trainer.serving.translator import Alignment, Translation, Translator

# Runs the program without the packages that it must not require.
PROGRAM = """
import importlib.abc, runpy, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        absent = ("t2t_relpos", "sentencepiece", "sacrebleu", "tensorflow_datasets")
        if name.split(".")[0] in absent:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
runpy.run_module("trainer.translate", run_name="__main__", alter_sys=True)
"""
INVALID = r"warning: expected UTF-8 text. Received: invalid bytes b'\xff'"

run = Program(translate)


@pytest.fixture
def fake_model(monkeypatch):
    """Replaces exported models by one that translates to upper case.

    It truncates sentences above 6 characters, in the result only.
    """
    monkeypatch.setattr(model_versions, "load", lambda path, **options: Translator(to_upper_case))


@pytest.fixture
def run_fake(fake_model, tmp_path):
    """Returns `run_fake(capsys, lines, ...)`, which returns the output and the lines on stderr."""

    def run_on(capsys, lines, *arguments):
        (tmp_path / "in").write_bytes(b"".join(line + b"\n" for line in lines))
        paths = [f"--{name}={tmp_path / name.removesuffix('put')}" for name in ("input", "output")]
        run("--saved_model=any", *paths, *arguments)
        return (tmp_path / "out").read_bytes(), capsys.readouterr().err.splitlines()

    return run_on


def to_upper_case(text):
    sentences = text.numpy().tolist()
    return {
        "translations": tf.constant([sentence.upper() for sentence in sentences], tf.string),
        "scores": tf.constant([-1.0] * len(sentences)),
        "truncated": tf.constant([len(sentence) > 6 for sentence in sentences]),
        "complete": tf.constant([sentence != b"endless" for sentence in sentences]),
    }


@pytest.mark.slow
def test_standard_input_to_standard_output(exported_dir, exported, sentences, tmp_path):
    lines = [
        *(sentence.encode() for sentence in sentences),
        b"",
        b"bad \xff bytes",
        b"house " * 10_000,
        b"the end",
    ]
    options = {"input": b"\n".join(lines), "text": False, "cwd": tmp_path, "timeout": 300}
    done = run_python("-c", PROGRAM, f"--saved_model={exported_dir}", "--batch_size=3", **options)
    assert done.stdout.split(b"\n") == [answer.text for answer in exported(lines)] + [b""]
    warnings = [line for line in done.stderr.decode().splitlines() if line.startswith("warning: ")]
    assert warnings == [
        f"{INVALID} in line 13, read as U+FFFD.",
        "warning: line 14 was truncated to the maximum input length of the model.",
    ]
    assert re.fullmatch(
        r"15 sentences in \d+\.\d s: [\d.]+ sentences per second, excluding model loading",
        done.stderr.decode().splitlines()[-1],
    )


def test_standard_streams(fake_model, monkeypatch, capsysbinary):
    lines = io.BytesIO(b"one\r\n\nbad \xff bytes\nthe end")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(lines))
    run("--saved_model=any", "--batch_size=3")
    printed = capsysbinary.readouterr()
    assert printed.out == b"ONE\n\nBAD \xff BYTES\nTHE END\n"
    *warnings, counts, rate = printed.err.decode().splitlines()
    assert len(warnings) == 3 and counts == "Read 4 lines: 1 blank, 2 cut."
    assert re.fullmatch(
        r"4 sentences in \d+\.\d s: [\d.,]+ sentences per second, excluding model loading", rate
    )


@pytest.mark.parametrize("typed", [[], [b"one"], [b"one", b"", b"\xff"]])
def test_lines_typed_at_a_terminal_are_translated_at_once(fake_model, monkeypatch, typed):
    ours, theirs = pty.openpty()
    printed = queue.Queue()
    screen = io.BytesIO()
    screen.write = printed.put
    seen = []

    def type_lines():
        try:
            for line in typed:
                os.write(ours, line + b"\n")
                seen.append(printed.get(timeout=10))
        finally:
            os.write(ours, b"\x04")  # Ctrl-D

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(open(theirs, "rb")))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(screen))
    typist = threading.Thread(target=type_lines)
    typist.start()
    run("--saved_model=any")
    typist.join()
    os.close(ours)
    assert seen == [line.upper() + b"\n" for line in typed]
    sys.stdin.close()


def test_warnings_have_the_numbers_of_lines(run_fake, capsys):
    lines = ["größe".encode(), b"one", b"a long one", b"", b"endless", b"b \xff", b"\xe4"]
    output, messages = run_fake(capsys, lines, "--window=3", "--batch_size=2")
    assert output == b"".join(line.upper() + b"\n" for line in lines)
    warnings = [text for text in messages if text.startswith("warning: ")]
    assert sorted(warnings) == [
        "warning: 2 lines are not UTF-8 text.",
        f"{INVALID} in line 6, read as U+FFFD.",
        *(
            f"warning: line {number} was truncated to the maximum input length of the model."
            for number in (1, 3, 5)
        ),
        "warning: the translation of line 5 was cut at the maximum length of the output.",
    ]
    assert messages[-1].startswith("7 sentences in ")


def test_empty_input_writes_empty_output(run_fake, capsys):
    output, messages = run_fake(capsys, [])
    assert output == b"" and messages[0] == "Read 0 lines: 0 blank, 0 cut."
    assert messages[1].startswith("0 sentences in 0.0 s: 0.0 sentences")


def test_rate_excludes_the_preparation_of_the_graph(run_fake, capsys, monkeypatch):
    seconds, calls = [1000.0, 2.0], []

    def translate_slowly(text):
        calls.append(text)
        return to_upper_case(text)

    clock = SimpleNamespace(monotonic=lambda: sum(seconds[: len(calls)]))
    monkeypatch.setattr(translate, "time", clock)
    monkeypatch.setattr(model_versions, "load", lambda path, **_: Translator(translate_slowly))
    _, messages = run_fake(capsys, [b"a", b"b"])
    rate = "2 sentences in 2.0 s: 1.0 sentences per second, excluding model loading"
    assert messages == ["Read 2 lines: 0 blank, 0 cut.", rate]


@pytest.mark.parametrize("text", ["a\n\nb", "a\n\nb\n"])
def test_progress_bar_on_a_terminal(fake_model, monkeypatch, tmp_path, text):
    (tmp_path / "in").write_text(text)
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    files = f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}"
    run("--saved_model=any", *files)
    screen = terminal.getvalue()
    assert "0/3 [" in screen and "3/3 [" in screen and "3 sentences in " in screen


@pytest.mark.parametrize(
    ("count", "seconds", "text"),
    [
        (0, 0.0, "0 sentences in 0.0 s: 0.0 sentences"),
        (12345, 1234.56, "12,345 sentences in 1,234.6 s: 10.0 sentences"),
        (5_000_000, 1000.0, "5,000,000 sentences in 1,000.0 s: 5,000 sentences"),
    ],
)
def test_rate_formats_thousands_and_zero_seconds(count, seconds, text):
    assert translate.format_rate(count, seconds) == text + " per second, excluding model loading"


def test_compressed_input_is_decompressed(run_fake, capsys, tmp_path):
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"a dog\nthe\n"))
    output, _ = run_fake(capsys, [], f"--input={tmp_path / 'in.gz'}", "--window=1")
    assert output == b"A DOG\nTHE\n"


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("Expected no --scores with --nbest, whose lines contain", ["--nbest=2", "--scores"]),
        ("Expected --alignments and --tokens to be files. Received: -, the", ["--alignments=-"]),
        ("Expected --tokens and --alignments to be", ["--alignments=a", "--tokens=./a"]),
        ("Expected --output and --input to be different files. Received:", ["--output=link"]),
        ("Expected the directory of a SavedModel,", ["--saved_model=absent", "--output=out"]),
        ("Expected a text file at absent. Received: no such file. Check the", ["--input=absent"]),
        ("Expected a text file at /. Received: a directory. Check the path.", ["--input=/"]),
        (r"Expected a file that can be .* Received: absent/out \(No such", ["--output=absent/out"]),
    ],
)
def test_unsuitable_files_and_flags_raise(message, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_text("a\n")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    run.fails(message, "--saved_model=any", "--input=in", *arguments)
    assert (tmp_path / "in").read_text() == "a\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "link"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ValueError("stop")])
def test_interrupted_run_changes_no_file(run_fake, capsys, monkeypatch, tmp_path, interruption):
    (tmp_path / "out").write_text("before\n")
    calls = iter([to_upper_case] * 3)

    def fail_later(text):
        for call in calls:
            return call(text)
        raise interruption

    monkeypatch.setattr(model_versions, "load", lambda path, **options: Translator(fail_later))
    with pytest.raises(SystemExit):
        run_fake(capsys, [b"a"] * 9, "--window=1")
    assert (tmp_path / "out").read_text() == "before\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_options_that_the_model_rejects_leave_no_files(fake_model, tmp_path, monkeypatch):
    def reject(sentences):
        raise ValueError("Expected max_length from 1 to 97.")

    monkeypatch.setattr(model_versions, "load", lambda path, **_: SimpleNamespace(n_best=reject))
    (tmp_path / "in").write_text("a\n")
    files = {"input": tmp_path / "in", "output": tmp_path / "out"}
    run.fails("Expected max_length from 1 to 97.$", "--saved_model=any", **files)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    "name", ["beam_size", "nbest", "max_length", "batch_size", "window", "alpha"]
)
def test_flags_below_their_minimum_raise(name):
    with pytest.raises(flags.IllegalFlagValueError, match=f"--{name}=-1: -1"):
        run("--saved_model=any", f"--{name}=-1")


def reversed_words(sentence, rank):
    """Returns a translation with the words of the sentence in reverse order and their alignment."""
    words = sentence.split()
    alignment = Alignment(words, words[::-1], list(range(len(words)))[::-1])
    return Translation(b" ".join(words[::-1]) + b"!" * rank, -0.5 - rank, False, alignment)


def test_nbest_alignments_and_tokens(run_fake, capsys, monkeypatch, tmp_path):
    loads = []

    def load(path, nbest, **options):
        loads.append((path, nbest, options))
        lists = lambda texts: [[reversed_words(text, rank) for rank in (0, 1)] for text in texts]
        return SimpleNamespace(n_best=lists)

    monkeypatch.setattr(model_versions, "load", load)
    paths = {name: tmp_path / name for name in ("alignments", "tokens")}
    options = ["--nbest=2", "--beam_size=3", "--alpha=1", "--max_length=20"]
    files = [f"--{name}={path}" for name, path in paths.items()]
    output, _ = run_fake(capsys, [b"a big dog", b"x"], *options, *files)
    asked = {"beam_size": 3, "alpha": 1.0, "max_length": 20, "aligned": True}
    assert loads == [("any", 2, asked)]
    assert output.splitlines() == [
        b"0 ||| dog big a ||| Score= -0.5000 ||| -0.5000",
        b"0 ||| dog big a! ||| Score= -1.5000 ||| -1.5000",
        b"1 ||| x ||| Score= -0.5000 ||| -0.5000",
        b"1 ||| x! ||| Score= -1.5000 ||| -1.5000",
    ]
    links, tokens = (path.read_text().splitlines() for path in paths.values())
    assert links == ["2-0 1-1 0-2"] * 2 + ["0-0"] * 2
    assert tokens == ["a big dog ||| dog big a"] * 2 + ["x ||| x"] * 2


def test_scores_are_a_second_column(run_fake, capsys):
    output, _ = run_fake(capsys, [b"one", b""], "--scores")
    assert output == b"ONE\t-1.0000\n\t-1.0000\n"


HOSTILE = Translation(b"ein\tHund\nund\r\nmehr", -2.0, False)
ALIGNED = Translation(b"", 0.0, False, Alignment([], [], []))


def test_formats_write_one_line_per_sentence():
    assert translate.format_best(7, [HOSTILE]) == b"ein\tHund und mehr\n"
    assert translate.format_best_and_score(7, [HOSTILE]) == b"ein Hund und mehr\t-2.0000\n"
    line = b"6 ||| ein\tHund und mehr ||| Score= -2.0000 ||| -2.0000\n"
    assert translate.format_n_best(7, [HOSTILE, HOSTILE]) == 2 * line
    # A separator in a translation makes no field.
    line = b"0 ||| a| | |b ||| Score= -2.0000 ||| -2.0000\n"
    assert translate.format_n_best(1, [Translation(b"a|||b", -2.0, False)]) == line
    assert translate.format_best(1, [ALIGNED]) == b"\n"
    assert translate.format_links(1, [ALIGNED]) == b"\n"
    assert translate.format_tokens(1, [ALIGNED]) == b" ||| \n"


@pytest.mark.parametrize(
    ("token", "word"),
    [
        (b"a b", "a▁b"),
        (b" ", "▁"),
        (b"", "▁"),
        (b"\n", "▁"),
        (b"a\r", "a"),
        (b"|||", "|▁|▁|"),
        ("▁ein".encode(), "▁ein"),
    ],
)
def test_tokens_are_single_words(token, word):
    aligned = Alignment([b"x", token], [token], [1])
    line = translate.format_tokens(1, [Translation(b"", 0.0, False, aligned)]).decode()
    assert line == f"x {word} ||| {word}\n"
