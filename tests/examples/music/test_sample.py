"""Tests of `examples.music.sample` with small checkpoints of random weights."""

import keras
import numpy as np
import pytest
from programs import loaded, start

from examples.music import performance, sample
from examples.music.performance import Note
from t2t_relpos import CausalLM
from t2t_relpos.t2t import config_from_hparams, parse_hparams
from trainer.import_t2t import write_checkpoint

pytestmark = pytest.mark.slow
# `write_checkpoint` writes embeddings in 16 shards.
SIZES = "num_hidden_layers=1,hidden_size=16,filter_size=32,num_heads=2"
SIZES += ",symbol_modality_num_shards=16"
V2 = "t_rel_len2048_h512_att512_fs1024_n8_dropout10"
V2_SIZES = f"{SIZES},attention_key_channels=16,max_relative_position=8"
PRIMER = [Note(0.0, 0.5, 60, 77), Note(0.5, 1.0, 64, 77), Note(1.0, 2.0, 67, 77)]


@pytest.fixture
def write_model(tmp_path):
    """Returns a function that writes a checkpoint and returns (its model, its prefix)."""

    def write(hparams_set, hparams):
        values = parse_hparams(hparams_set, hparams)
        keras.utils.set_random_seed(3)
        config = config_from_hparams(values, performance.VOCAB_SIZE, language_model=True)
        model, prefix = CausalLM(config=config), str(tmp_path / "model.ckpt-7")
        write_checkpoint(model, prefix)
        return model, prefix

    return write


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs the program. It returns the ids of the output, as notes."""
    pytest.importorskip("mido")

    def run(**values):
        values = {"output": tmp_path / "y.mid", "hparams": SIZES, "events": 40} | values
        start("examples.music.sample", *(f"--{name}={value}" for name, value in values.items()))
        return performance.read_midi(values["output"])[0]

    return run


def rows(notes):
    return sorted((round(n.start, 9), round(n.end, 9), n.pitch, n.velocity) for n in notes)


@pytest.mark.parametrize("hparams_set, sizes", [("transformer_tpu", SIZES), (V2, V2_SIZES)])
def test_load_model_computes_the_logits_of_the_checkpoint(hparams_set, sizes, write_model):
    model, prefix = write_model(hparams_set, sizes)
    loaded_model = sample.load_model(prefix, hparams_set, sizes)
    ids = np.array([performance.encode(PRIMER)])
    assert loaded_model.config.relative_v2 == (hparams_set == V2)
    np.testing.assert_allclose(loaded_model(ids), model(ids), atol=1e-5)


def test_continues_a_primer(write_model, run, tmp_path, capsys):
    model, prefix = write_model("transformer_tpu", SIZES)
    performance.write_midi(tmp_path / "x.mid", PRIMER)
    notes = run(checkpoint=tmp_path, primer=tmp_path / "x.mid", picture=tmp_path / "y.png", seed=2)
    primer = performance.encode(PRIMER)
    sampler = sample.TopPSampler(1.0, seed=2)
    (ids,) = model.generate(np.array([primer]), sampler, len(primer) + 40).tolist()
    assert ids[: len(primer)] == primer
    assert rows(notes) == rows(performance.decode(ids)[0])
    # A note of the primer whose key is not struck again stays as it is.
    assert (0.0, 0.5, 60, 77) in rows(notes)
    output = capsys.readouterr().out
    assert f"{tmp_path}/x.mid: Notes: 3\n" in output
    assert f"{tmp_path}/y.mid: Notes: {len(notes)}\n" in output
    assert (tmp_path / "y.png").read_bytes().startswith(b"\x89PNG")


def test_cuts_a_long_primer_and_says_so(write_model, run, tmp_path, capsys):
    write_model("transformer_tpu", SIZES)
    performance.write_midi(tmp_path / "x.mid", PRIMER)
    # The velocity, the first note with its end, and the start of the second.
    notes = run(checkpoint=tmp_path, primer=tmp_path / "x.mid", max_primer=5, events=1)
    assert (0.0, 0.5, 60, 77) in rows(notes)
    assert "x.mid: Events removed at the end (--max_primer): 5\n" in capsys.readouterr().out


def test_starts_from_nothing(write_model, run, tmp_path, capsys):
    write_model("transformer_tpu", SIZES)
    notes = run(checkpoint=tmp_path)
    # A primer without notes for a piano gives the same.
    performance.write_midi(tmp_path / "x.mid", [])
    assert rows(run(checkpoint=tmp_path, primer=tmp_path / "x.mid")) == rows(notes)
    assert "no notes for a piano, so the performance starts from" in capsys.readouterr().out


def test_errors(tmp_path, run):
    with pytest.raises(SystemExit, match="music.sample: Expected the prefix of a TF1 checkpoint"):
        run(checkpoint=tmp_path / "missing")
    (tmp_path / "x.mid").write_text("text")
    with pytest.raises(SystemExit, match="music.sample: .*x.mid must be a MIDI file"):
        run(checkpoint=tmp_path, primer=tmp_path / "x.mid")


def test_picture_without_matplotlib(monkeypatch):
    with loaded("examples.music.sample") as program:
        monkeypatch.setattr(program.importlib.util, "find_spec", lambda name: None)
        program.FLAGS(["sample", "--checkpoint=x", "--output=y.mid", "--picture=y.png"])
        with pytest.raises(SystemExit, match="--picture needs matplotlib"):
            program.main([])
