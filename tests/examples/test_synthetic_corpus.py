"""Tests of the synthetic corpus: recorded sentences, disjoint splits, and files."""

import functools
import hashlib
import json

import pytest

from examples import synthetic_corpus
from examples.synthetic_corpus import __main__ as corpus_program

SHA256 = {
    "train": "cff84596d1e25c221df18aa4375a9eebca38598095c392747997480e31260a50",
    "dev": "f9fde2a71186606c427686a926c699180b1bcb4934a9e3993aa5e6a27d37182f",
    "test": "109bf22a826eefda45c63d063a6c54df67c366a4442143ffd77214c355521ceb",
    "test_longer": "856571c77d42d4fdfe406970013072703db74316efd3e5bfce11f338fd55a239",
}


generate = functools.cache(synthetic_corpus.generate)


# The other splits take longer.
@pytest.mark.parametrize(
    "split",
    ["dev", "test_longer", *(pytest.param(s, marks=pytest.mark.slow) for s in ("train", "test"))],
)
def test_sentences_equal_recorded_hashes(split):
    """Published results were measured on these sentences. They use every rule of the grammar."""
    pairs = generate(split)
    assert len(pairs) == synthetic_corpus.SPLITS[split]
    assert hashlib.sha256(json.dumps(pairs).encode()).hexdigest() == SHA256[split]


@pytest.mark.slow
def test_program_writes_two_files_per_split(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(corpus_program, "generate", lambda split, size: generate(split))
    corpus_program.main(["", str(tmp_path / "new" / "folder")])
    for split in synthetic_corpus.SPLITS:
        for language, lines in zip(("en", "de"), zip(*generate(split))):
            text = (tmp_path / "new" / "folder" / f"{split}.{language}").read_text("utf-8")
            assert text == "".join(f"{line}\n" for line in lines)
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 8
    assert "test_longer.en, .de: 500 sentence pairs" in capsys.readouterr().out


def test_file_instead_of_a_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"synthetic_corpus: .*file \(File exists\)"):
        corpus_program.main(["", str(tmp_path / "file")])


def test_generate_rejects_invalid_arguments():
    message = "Expected split to be one of train, dev, test, test_longer. Received: 'valid'"
    with pytest.raises(ValueError, match=message):
        synthetic_corpus.generate("valid")
    with pytest.raises(ValueError, match="Expected size to be at least 1. Received: 0. Omit it"):
        synthetic_corpus.generate("dev", size=0)
