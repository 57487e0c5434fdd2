import gzip
import os
import pty
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from programs import Program
from subprocesses import ROOT, environment, python_command, run_python

from trainer import translate
from trainer.inference import progress, resumable_output
from trainer.serving import saved_models
from trainer.serving.translator import Translation, Translator, translate_lines

FAKE_PROGRAM = Path(__file__).parent / "inference/fake_translate.py"

# Runs the program without the packages that it must not require. Writes the names of TensorFlow and
# of this project's modules, if the program imported them.
PROGRAM = """
import importlib.abc, runpy, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        absent = ("t2t_relpos", "sentencepiece", "sacrebleu", "tensorflow_datasets")
        if name.split(".")[0] in absent:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
modules, sys.argv[1:] = sys.argv[1], sys.argv[2:]
try:
    runpy.run_module("trainer.translate", run_name="__main__", alter_sys=True)
finally:
    with open(modules, "w") as file:
        ours = (name for name in sys.modules if name.split(".")[0] in ("trainer", "t2t_relpos"))
        file.write(" ".join([*sorted(ours), *{"tensorflow"} & sys.modules.keys()]))
"""


run = Program(translate)


@pytest.fixture
def run_fake(monkeypatch, tmp_path):
    """Returns `run_fake(capsys, lines, ...)`, which returns the output and the lines on stderr.

    It runs the program with a fake model that translates lines to upper case and truncates those
    above 6 characters.
    """
    monkeypatch.setattr(saved_models, "load", lambda path, **options: Translator(to_upper_case))
    monkeypatch.setattr(saved_models, "fingerprint", lambda path: "fake")

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
    }


def test_standard_input_to_standard_output(exported_dir, exported, sentences, tmp_path):
    lines = [
        *(sentence.encode() for sentence in sentences),
        b"",
        b"bad \xff bytes",
        b"house " * 10_000,
        b"the end",
    ]
    arguments = tmp_path / "modules", f"--saved_model={exported_dir}", "--batch_size=3"
    options = {"input": b"\n".join(lines), "text": False, "cwd": tmp_path, "timeout": 300}
    done = run_python("-c", PROGRAM, *arguments, **options)
    assert done.stdout.split(b"\n") == [answer.text for answer in exported(lines)] + [b""]
    warnings = [line for line in done.stderr.decode().splitlines() if line.startswith("warning: ")]
    assert warnings == ["warning: line 14 was truncated to the maximum input length of the model."]
    used = set((tmp_path / "modules").read_text().split())
    assert used <= {
        "tensorflow",
        "trainer",
        "trainer.allocator",
        "trainer.atomic_files",
        "trainer.data",
        "trainer.data.corpus",
        "trainer.data.text_files",
        "trainer.entry_point",
        "trainer.quiet_start",
        "trainer.serving",
        "trainer.serving.saved_models",
        "trainer.serving.translator",
        "trainer.translate",
        "trainer.inference",
        *(
            f"trainer.inference.{name}"
            for name in ("output_lines", "progress", "streams", "resumable_output")
        ),
    }
    assert re.fullmatch(
        r"15 sentences in \d+\.\d s: [\d.]+ sentences per second, excluding model loading",
        done.stderr.decode().splitlines()[-1],
    )


def test_input_file_to_output_file(exported_dir, exported, sentences, tmp_path):
    (tmp_path / "in").write_bytes("\r\n".join([*sentences, "", "x"]).encode())
    run(
        f"--saved_model={exported_dir / '1'}",
        f"--input={tmp_path / 'in'}",
        f"--output={tmp_path / 'out'}",
        "--window=5",
    )
    assert (tmp_path / "out").read_bytes().split(b"\n") == [
        a.text for a in exported([*sentences, "", "x"])
    ] + [b""]


def test_warnings_have_the_numbers_of_truncated_lines(run_fake, capsys):
    lines = [b"one", b"a long one", b"", b"another long one"]
    output, messages = run_fake(capsys, lines, "--window=3", "--batch_size=2")
    assert output == b"ONE\nA LONG ONE\n\nANOTHER LONG ONE\n"
    assert [re.search(r"line (\d+) was truncated", text)[1] for text in messages[:-1]] == [
        "2",
        "4",
    ]
    assert messages[-1].startswith("4 sentences in ")


def test_empty_input_writes_empty_output(run_fake, capsys):
    output, messages = run_fake(capsys, [])
    assert output == b"" and messages[0].startswith("0 sentences in 0.0 s: 0.0 sentences")


def test_line_numbers_of_a_resumed_run(run_fake, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(resumable_output, "SECONDS_BETWEEN_ENTRIES", 0.0)
    lines, calls = [b"%d" % number for number in range(33)] + [b"a long one"], []

    def fail_later(text):
        calls.append(text)
        if len(calls) > 8:
            raise KeyboardInterrupt
        return to_upper_case(text)

    monkeypatch.setattr(saved_models, "load", lambda path, **options: Translator(fail_later))
    arguments = "--window=10", "--batch_size=4", "--nbest=1"
    with pytest.raises(SystemExit):
        run_fake(capsys, lines, *arguments)
    assert capsys.readouterr().err.endswith("trainer.translate: interrupted.\n")
    monkeypatch.setattr(saved_models, "load", lambda path, **options: Translator(to_upper_case))
    output, messages = run_fake(capsys, lines, *arguments)
    assert messages[0] == f"Resuming after line 20 of {tmp_path}/out.partial."
    assert "line 34 was" in messages[1] and messages[2].startswith("14 sentences in ")
    assert output.count(b"\n") == 34 and b"20 ||| 20 |||" in output


def test_rate_excludes_the_preparation_of_the_graph(tmp_path):
    (tmp_path / "in").write_text("a\nb\n")
    flags = "--saved_model=any", f"--input={tmp_path / 'in'}"
    done = run_python(FAKE_PROGRAM, *flags, env=environment(FAKE_FIRST_SECONDS="1"))
    assert done.stdout == "A\nB\n"
    assert re.match(r"2 sentences in 0\.\d s: ", done.stderr), done.stderr


def test_wrong_flags_do_not_load_tensorflow(tmp_path):
    modules = tmp_path / "modules"
    done = run_python("-c", PROGRAM, modules, "--alpha=-1", "--saved_model=x", returncode=1)
    assert "--alpha=-1" in done.stderr and "Traceback" not in done.stderr
    assert "tensorflow" not in modules.read_text()


def test_progress_bar_on_a_terminal(tmp_path):
    (tmp_path / "in").write_text("a\nb\n")
    ours, theirs = pty.openpty()
    flags = "--saved_model=any", f"--input={tmp_path / 'in'}"
    subprocess.run(["stty", "rows", "24", "cols", "100"], stdin=theirs, check=True)
    options = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": theirs}
    done = run_python(FAKE_PROGRAM, *flags, text=False, **options)
    os.close(theirs)
    screen = os.read(ours, 10_000)
    os.close(ours)
    assert done.stdout == b"A\nB\n"
    assert b"0/2 [" in screen and b"2/2 [" in screen and b"2 sentences in " in screen


@pytest.mark.parametrize(
    ("count", "seconds", "text"),
    [
        (0, 0.0, "0 sentences in 0.0 s: 0.0 sentences"),
        (12345, 1234.56, "12,345 sentences in 1,234.6 s: 10.0 sentences"),
        (5_000_000, 1000.0, "5,000,000 sentences in 1,000.0 s: 5,000 sentences"),
    ],
)
def test_rate_formats_thousands_and_zero_seconds(count, seconds, text):
    assert progress.format_rate(count, seconds) == text + " per second, excluding model loading"


def peak_of(count):
    """Returns peak memory in bytes while `count` lines are translated, and the output length."""
    lines = (b"ein Satz mit der Nummer %d" % number for number in range(count))
    upper = lambda batch: [[Translation(line.upper(), 0.0, False)] for line in batch]
    tracemalloc.start()
    try:
        results = translate_lines(upper, lines, batch_size=32, window=256)
        length = sum(len(translations[0].text) for translations in results)
        return tracemalloc.get_traced_memory()[1], length
    finally:
        tracemalloc.stop()


def test_memory_does_not_depend_on_input_size():
    (short, _), (long, written) = peak_of(2_000), peak_of(60_000)
    assert written > 10 * long
    assert long < 1.1 * short


def test_missing_saved_model_raises(tmp_path):
    (tmp_path / "in").write_text("a\n")
    run.fails(
        r"Expected the directory of a SavedModel, .* Received: .*/absent, "
        r"which does not exist. Write",
        f"--saved_model={tmp_path / 'absent'}",
        f"--input={tmp_path / 'in'}",
        f"--output={tmp_path / 'out'}",
    )
    assert not (tmp_path / "out").exists()


def test_unreadable_input_raises(tmp_path):
    message = (
        r"Expected a file that can be read. Received: .*/absent \(No such file or directory\)\."
    )
    run.fails(message, "--saved_model=any", f"--input={tmp_path / 'absent'}")


def test_unwritable_output_raises(exported_dir, tmp_path):
    (tmp_path / "in").write_text("a\n")
    message = (
        r"Expected a file that can be read or written. Received: .*/absent/out\S* "
        r"\(No such file or directory\)\."
    )
    run.fails(
        message,
        f"--saved_model={exported_dir}",
        f"--input={tmp_path / 'in'}",
        f"--output={tmp_path / 'absent/out'}",
    )


def test_compressed_input_is_decompressed(run_fake, capsys, tmp_path):
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"a dog\nthe\n"))
    output, _ = run_fake(capsys, [], f"--input={tmp_path / 'in.gz'}", "--window=1")
    assert output == b"A DOG\nTHE\n"
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a dog\nthe\n")[:-9])
    message = ".*cut.gz to be a gzip file, because of its suffix. Received: a truncated or corrupt"
    run.fails(message, "--saved_model=any", f"--input={tmp_path / 'cut.gz'}")


def test_output_equal_to_input_raises(tmp_path):
    (tmp_path / "in").write_text("a\n")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    message = "Expected --output and --input to be different files. Received: .*/link for both."
    run.fails(
        message, "--saved_model=any", f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'link'}"
    )
    assert (tmp_path / "in").read_text() == "a\n"


@pytest.mark.slow
def test_closed_output_pipe_is_no_error(exported_dir, tmp_path):
    (tmp_path / "in").write_text("a\n" * 30_000)
    command = (
        f"{sys.executable} -m trainer.translate --saved_model={exported_dir} "
        f"--input={tmp_path / 'in'} --window=7 | head -n 2"
    )
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        cwd=ROOT,
        env=environment(),
        timeout=300,
    )
    assert done.returncode == 0 and done.stdout.count(b"\n") == 2
    assert b"Error" not in done.stderr


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (
            "Expected no --scores with --nbest, whose lines contain scores. Received: both. Leave "
            "--scores out.",
            ["--nbest=2", "--scores"],
        ),
        (
            "Expected --alignments and --tokens to be files. Received: -, the standard output",
            ["--alignments=-"],
        ),
        (
            "Expected --tokens and --alignments to be different files. Received: ./a for both.",
            ["--alignments=a", "--tokens=./a"],
        ),
    ],
)
def test_contradicting_flags_raise(message, arguments):
    run.fails(message, "--saved_model=any", *arguments)


@pytest.mark.parametrize(
    "name", ["beam_size", "nbest", "max_length", "batch_size", "window", "alpha"]
)
def test_flags_below_their_minimum_raise(name):
    with pytest.raises(flags.IllegalFlagValueError, match=f"--{name}=-1: -1"):
        run("--saved_model=any", f"--{name}=-1")


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (r"Expected beam_size from 1 to 32, .* Received: 1000\.$", ["--beam_size=1000"]),
        (r"Expected max_length from 1 to 97, .* Received: 98\.$", ["--max_length=98"]),
        (r"Expected alpha to be a finite number .* Received: inf\.$", ["--alpha=inf"]),
        (
            r"Expected --nbest to be at most the beam size, 2\. Received: 3\. Give a larger "
            r"--beam_size\.$",
            ["--nbest=3", "--beam_size=2"],
        ),
        (r"Expected --nbest to be at most the beam size, 4\. Received: 5\. ", ["--nbest=5"]),
    ],
)
def test_flags_above_the_limits_of_the_model_raise(exported_dir, tmp_path, message, options):
    (tmp_path / "in").write_text("a\n")
    files = f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}"
    run.fails(message, f"--saved_model={exported_dir}", *files, *options)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.slow
def test_nbest_alignments_and_tokens(exported_dir, loaded, sentences, tmp_path):
    (tmp_path / "in").write_text("\n".join([*sentences, "", "x"]) + "\n")
    paths = {name: tmp_path / name for name in ("output", "alignments", "tokens")}
    files = [
        f"--saved_model={exported_dir}",
        f"--input={tmp_path / 'in'}",
        *(f"--{name}={path}" for name, path in paths.items()),
    ]
    run(*files, "--nbest=2", "--beam_size=3", "--alpha=1", "--max_length=20")
    options = {"beam_size": 3, "alpha": 1.0, "max_length": 20, "num_results": 2}
    answer = loaded.translate(text=tf.constant([*sentences, "", "x"]), **options)
    expected = [
        (str(number), text.decode(), score)
        for number, row in enumerate(zip(answer["translations"].numpy(), answer["scores"].numpy()))
        for text, score in zip(*row)
        if score > -1e6
    ]
    rows = [line.split(" ||| ") for line in paths["output"].read_text().splitlines()]
    assert [(number, text) for number, text, *_ in rows] == [
        (number, text) for number, text, _ in expected
    ]
    assert [row[2] for row in rows] == [f"Score= {row[3]}" for row in rows]
    np.testing.assert_allclose(
        [float(row[3]) for row in rows], [score for *_, score in expected], atol=2e-4
    )

    links, tokens = (paths[name].read_text().splitlines() for name in ("alignments", "tokens"))
    assert len(links) == len(tokens) == len(rows)
    for pairs, line, (_, text, *_) in zip(links, tokens, rows):
        source, target = (side.split() for side in line.split(" ||| "))
        assert [int(pair.split("-")[1]) for pair in pairs.split()] == list(range(len(target)))
        assert all(int(pair.split("-")[0]) < len(source) for pair in pairs.split())
        assert "".join(target).replace("▁", " ").strip() == text.strip()


def test_scores_are_a_second_column(exported_dir, exported, sentences, tmp_path):
    (tmp_path / "in").write_text("\n".join([*sentences, ""]) + "\n")
    run(
        f"--saved_model={exported_dir}",
        f"--input={tmp_path / 'in'}",
        f"--output={tmp_path / 'out'}",
        "--scores",
    )
    rows = [line.split("\t") for line in (tmp_path / "out").read_text().split("\n")[:-1]]
    expected = exported([*sentences, ""])
    assert [text for text, _ in rows] == [each.text.decode() for each in expected]
    np.testing.assert_allclose(
        [float(score) for _, score in rows], [each.score for each in expected], atol=2e-4
    )


def kill_after_growth(process, file, size):
    """Kills a process when a file has grown by a number of bytes, unless it ends before."""
    before = file.stat().st_size if file.exists() else 0
    while process.poll() is None:
        if file.exists() and file.stat().st_size > before + size:
            process.kill()
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_run_resumes(exported_dir, sentences, tmp_path):
    (tmp_path / "in").write_text("\n".join(sentences * 60) + "\n")

    def start(name):
        flags = [f"--saved_model={exported_dir}", "--window=20", "--scores"]
        flags += [f"--input={tmp_path / 'in'}", f"--output={tmp_path / name}"]
        command = python_command("-m", "trainer.translate", *flags)
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    with start("whole") as process:
        assert "660 sentences in " in process.stderr.read()
    kills = 0
    while not (tmp_path / "killed").exists():
        with start("killed") as process:
            if kills < 2:
                kill_after_growth(process, tmp_path / "killed.partial.log", 200)
            stderr = process.stderr.read()
        assert process.returncode in (0, -signal.SIGKILL), stderr
        kills += process.returncode != 0
    assert kills > 0 and "Resuming after line " in stderr
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "whole").read_bytes()
