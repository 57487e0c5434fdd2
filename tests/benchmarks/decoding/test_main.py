"""The benchmark of decoding, at its smallest: it runs, and what it writes fits together."""

import csv

import pytest

from trainer.data.synthetic import generate


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "lines"
    path.write_text("".join(f"{source}\n" for source, _ in generate("train", size=97)))
    return path


@pytest.mark.slow
def test_peers_are_measured_with_one_model(run, text, tmp_path):
    pytest.importorskip(
        "ctranslate2",
        reason="the package ctranslate2 is not installed: pip install '.[ctranslate2]'",
    )
    sizes = [
        "--vocab_size=151",
        "--length=5",
        "--sentences=3",
        "--batches=1,2",
        "--beams=2",
        "--runs=2",
    ]
    done = run(
        "decoding",
        "--preset=tiny",
        f"--vocab_text={text}",
        f"--text={text}",
        f"--csv={tmp_path}/table.csv",
        *sizes,
    )
    assert done.returncode == 0, done.stderr
    assert "Skipping opennmt: no Python at --opennmt_python=None." in done.stderr
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    peers = ["ours", "ours early", "ctranslate2", "ctranslate2 int8"]
    assert [(row["batch"], row["peer"]) for row in rows] == [
        (batch, peer) for batch in "12" for peer in peers
    ]
    for row in rows:
        assert float(row["low"]) <= float(row["sentences/s"]) <= float(row["high"])
        assert (row["time over ours"] == "1.0") == (row["peer"] == "ours")
        assert (row["99th ms"] != "") == (row["batch"] == "1")
        assert float(row["megabytes"]) > 10
    assert all(float(row["as ours"]) == 1 for row in rows if row["peer"] != "ctranslate2 int8")
    assert done.stdout.count("\n") == 2 + len(rows)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "Expected either --model_dir or --preset. Received: neither."),
        (
            ["--model_dir=x", "--preset=tiny"],
            "Expected either --model_dir or --preset. Received: both.",
        ),
        (["--preset=tiny"], "Expected --vocab_text with --preset. Received: none."),
        (
            ["--model_dir=x", "--beams=0"],
            "--beams must be positive integers separated by commas. Received: '0'.",
        ),
        (
            ["--model_dir=x", "--batches=a"],
            "--batches must be positive integers separated by commas. Received: 'a'.",
        ),
        (
            ["--model_dir=x", "--peers=marian"],
            "--peers must be out of ours, ours early, ctranslate2, ctranslate2 int8, opennmt. Received: marian.",
        ),
    ],
)
@pytest.mark.slow
def test_flags(run, arguments, message):
    done = run("decoding", "--text=x", *arguments)
    assert done.returncode == 1
    assert message in " ".join((done.stdout + done.stderr).split())
