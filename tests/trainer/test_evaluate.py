import errno
import os
import re
import shutil
from types import SimpleNamespace

import pytest
import sacrebleu
from programs import Program

from examples.synthetic_corpus import generate
from t2t_relpos.models import TransformerConfig
from trainer import atomic_files, evaluate, metrics, weights
from trainer.data import text_files, tfds_sets
from trainer.data.corpus import PairCorpus
from trainer.model_dir import ModelDirectory
from trainer.serving import fast_transformer, saved_models, translation_module
from trainer.serving.fast_transformer import FastTransformer
from trainer.serving.translation_module import TranslationModule, TranslationSettings
from trainer.serving.translator import Translation

FILES = [f"--source={__file__}", f"--target={__file__}"]
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" + sacrebleu.__version__


run = Program(evaluate)


@pytest.fixture
def pair_files(tmp_path, sentences):
    """Returns the paths of a source file and a reference file with a few sentences."""
    references = [target for _, target in generate("test", size=len(sentences))]
    for name, lines in (("source", sentences), ("target", references)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path / "source", tmp_path / "target"


def test_evaluate_equals_sacrebleu_and_keeps_the_order():
    answers = {
        "a man sleeps here now": "Ein Mann schläft jetzt hier .",
        "the dog": "Der Hund",
        "she reads a long book": "sie liest ein langes Buch",
    }
    references = ["Ein Mann schläft jetzt hier.", "Der Hund", "Sie liest ein langes Buch"]
    batches = []

    def translate(sentences):
        batches.append(sentences)
        return [
            Translation(answers[s.decode()].encode(), 0.0, s.startswith(b"she")) for s in sentences
        ]

    result = evaluate.evaluate(translate, PairCorpus(tuple(zip(answers, references))), batch_size=2)
    assert result.hypotheses == list(answers.values())
    # The tokenizer 13a separates the full stop, so only "sie" differs. The factors are the
    # precisions of n-grams of the orders 1 to 4.
    expected = 100 * (12 / 13 * 9 / 10 * 6 / 7 * 4 / 5) ** 0.25
    assert result.score.value == pytest.approx(expected)
    assert result.score.signature == SIGNATURE
    assert result.truncated == 1
    assert [len(batch) for batch in batches] == [2, 1] and batches[0][0] == b"the dog"


def test_exact_translations_have_a_bleu_of_100():
    pairs = tuple(generate("dev", size=17))
    corpus = PairCorpus(pairs)

    def answer(change):
        known = {
            source.encode(): Translation(change(target).encode(), 0.0, False)
            for source, target in pairs
        }
        return lambda sentences: [known[sentence] for sentence in sentences]

    assert evaluate.evaluate(answer(str), corpus, batch_size=5).score.value == pytest.approx(100.0)
    assert evaluate.evaluate(answer(str.lower), corpus, batch_size=5).score.value < 70.0


@pytest.mark.slow
def test_model_directory_and_export_print_equal_scores(
    trained_model_dir, exported_dir, pair_files, tmp_path, capsys
):
    arguments = [f"--source={pair_files[0]}", f"--target={pair_files[1]}", "--batch_size=5"]
    run(f"--model_dir={trained_model_dir}", *arguments, f"--output={tmp_path / 'one'}")
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    run(f"--saved_model={exported_dir}", *arguments, "--label=mine", f"--output={tmp_path / 'two'}")
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text()
    hypotheses = (tmp_path / "one").read_text().splitlines()
    references = pair_files[1].read_text().splitlines()
    score = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert 0.0 < score < 100.0
    assert lines[:2] == [f"test BLEU = {score:.2f}", SIGNATURE]
    others = [metrics.score(name, hypotheses, references) for name in metrics.DEFAULT_METRICS]
    assert lines[2:] == [
        f"test {other.name} = {other.value:.2f}  {other.signature}" for other in others
    ]
    assert capsys.readouterr().out.splitlines() == [
        line.replace("test", "mine", 1) for line in lines
    ]


@pytest.fixture
def splits(monkeypatch):
    """Replaces `--data=any` by the first sentences of the synthetic corpus."""

    def read_tfds(_, split, *options):
        return PairCorpus(tuple(generate(split, size={"test": 7}.get(split, 5))))

    monkeypatch.setattr(tfds_sets, "read_tfds", read_tfds)


def test_several_splits_are_evaluated(exported_dir, splits, capsys):
    run(
        f"--saved_model={exported_dir}",
        "--data=any",
        "--split=test,test_longer",
        "--alpha=1.0",
        "--metrics=chrf",
    )
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert re.fullmatch(r"test BLEU = \d+\.\d\d", lines[0])
    assert re.fullmatch(r"test_longer BLEU = \d+\.\d\d", lines[1])
    assert lines[2] == SIGNATURE
    for line, label in zip(lines[3:], ("test", "test_longer"), strict=True):
        assert re.fullmatch(rf"{label} chrF2 = \d+\.\d\d  nrefs:1\|case:mixed\|.*", line)
    # The exported model has a maximum input length of 47 ids, and some sentences are longer.
    assert re.search(
        r"warning: \d sentences of test_longer were truncated to the maximum input length of the "
        r"model.",
        printed.err,
    )


def echo(texts):
    """Returns the texts as their own translations."""
    return [Translation(text, 0.0, False) for text in texts]


def test_test_split_of_wmt14_is_newstest2014(exported_dir, wmt14, tmp_path, monkeypatch, capsys):
    translated = []

    def translate(texts):
        translated.extend(texts)
        return echo(texts)

    monkeypatch.setattr(saved_models, "load", lambda *_: translate)
    data = [
        "--saved_model=any",
        "--data=wmt14_translate/de-en",
        f"--data_dir={wmt14.data_dir}",
        "--metrics=",
    ]
    run(*data, "--direction=en-de", f"--output={tmp_path / 'out'}")
    assert sorted(text.decode() for text in translated) == sorted(
        source for source, _ in wmt14.pairs("newstest2014")
    )
    hypotheses = (tmp_path / "out").read_text().splitlines()
    references = dict(wmt14.pairs("newstest2014"))
    score = sacrebleu.corpus_bleu(hypotheses, [[references[source] for source in hypotheses]]).score
    assert capsys.readouterr().out.splitlines() == [f"test BLEU = {score:.2f}", SIGNATURE]
    translated.clear()
    run(*data, "--direction=de-en", "--split=dev")
    assert sorted(text.decode() for text in translated) == sorted(
        target for _, target in wmt14.pairs("newstest2013")
    )
    assert capsys.readouterr().out.startswith("dev BLEU = ")


def test_language_defaults_to_the_target_language(monkeypatch, capsys):
    monkeypatch.setattr(saved_models, "load", lambda *_: echo)
    corpus = PairCorpus((("l'air", "l'air"),))
    monkeypatch.setattr(tfds_sets, "read_tfds", lambda *_: corpus)
    monkeypatch.setattr(text_files, "read_text", lambda *_: corpus)
    chosen = ["--saved_model=any", "--metrics=compound_bleu"]
    for arguments, language in (
        (["--data=any", "--direction=en-fr"], "fr"),
        (["--data=any"], "de"),
        (["--source=s", "--target=t"], "de"),
        (["--source=s", "--target=t", "--language=en"], "en"),
        (["--data=any", "--direction=en-fr", "--language=it"], "it"),
    ):
        run(*chosen, *arguments)
        assert f"|tok:moses-{language}|" in capsys.readouterr().out


@pytest.mark.slow
def test_checkpoint_flag_selects_a_checkpoint(
    trained_model_dir, pair_files, tmp_path, monkeypatch, capsys
):
    model = ModelDirectory.open(trained_model_dir).load_model()
    chosen = []
    monkeypatch.setattr(
        weights,
        "find_checkpoint",
        lambda directory, which: chosen.append((directory.path, which)) or which,
    )
    monkeypatch.setattr(
        weights,
        "load_transformer",
        lambda directory, path: chosen.append((directory.path, path)) or model,
    )
    arguments = [
        f"--model_dir={trained_model_dir}",
        f"--source={pair_files[0]}",
        f"--target={pair_files[1]}",
        "--beam_size=1",
    ]
    run(*arguments, "--checkpoint=best", "--metrics=", f"--output={tmp_path / 'out'}")
    assert chosen == 2 * [(trained_model_dir, "best")]
    assert capsys.readouterr().out.startswith("checkpoint best\n")
    module = TranslationModule(
        FastTransformer(model),
        ModelDirectory.open(trained_model_dir).load_tokenizer(),
        TranslationSettings(beam_size=1),
    )
    translations = module.serve(pair_files[0].read_text().splitlines())["translations"].numpy()
    assert (tmp_path / "out").read_text().splitlines() == [text.decode() for text in translations]
    monkeypatch.undo()
    run.fails(
        "Expected a checkpoint of step 2 in .*Received: no checkpoints.",
        *arguments,
        "--checkpoint=2",
    )


def test_beam_size_and_alpha_flags_set_the_search(trained_model_dir, pair_files, monkeypatch):
    class Chosen(Exception):
        pass

    def stop(transformer, tokenizer, settings):
        raise Chosen(settings)

    monkeypatch.setattr(translation_module, "TranslationModule", stop)
    arguments = [f"--model_dir={trained_model_dir}"]
    arguments += [f"--source={pair_files[0]}", f"--target={pair_files[1]}"]
    with pytest.raises(Chosen) as chosen:
        run("--beam_size=1", "--alpha=0", *arguments)
    assert chosen.value.args == (TranslationSettings(beam_size=1, alpha=0.0),)
    with pytest.raises(Chosen) as chosen:
        run(*arguments)
    assert chosen.value.args == (TranslationSettings(beam_size=4, alpha=0.6),)
    with pytest.raises(Chosen) as chosen:
        run("--beam_size=40", *arguments)
    assert chosen.value.args == (TranslationSettings(beam_size=40, max_beam_size=40),)


@pytest.mark.parametrize(
    ("architecture", "trained", "longest"),
    [
        ({}, 512, 512),
        ({}, 64, 256),
        ({"position": "learned", "max_length": 512}, 512, 512),
        ({"position": "learned", "max_length": 100}, None, 100),
    ],
)
def test_no_sentence_that_was_allowed_in_training_is_truncated(
    trained_model_dir, pair_files, tmp_path, monkeypatch, architecture, trained, longest
):
    directory = ModelDirectory(shutil.copytree(trained_model_dir, tmp_path / "model"))
    directory.write_run({"max_length": trained})
    changed = directory.read_config()["architecture"] | architecture
    model = SimpleNamespace(config=TransformerConfig.from_dict(changed))
    chosen = []
    monkeypatch.setattr(weights, "load_model", lambda *_: model)
    monkeypatch.setattr(fast_transformer, "FastTransformer", lambda transformer: transformer)

    def stop(transformer, tokenizer, settings):
        chosen.append(settings.max_input_length)
        raise ValueError("stop")

    monkeypatch.setattr(translation_module, "TranslationModule", stop)
    files = f"--source={pair_files[0]}", f"--target={pair_files[1]}"
    run.fails("stop", f"--model_dir={directory.path}", *files)
    assert chosen == [longest]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (FILES, "Expected either --model_dir or --saved_model. Received: neither."),
        (
            [*FILES, "--model_dir=a", "--saved_model=b"],
            "Expected either --model_dir or --saved_model. Received: both.",
        ),
        (
            ["--model_dir=a"],
            "Expected a test set. Received: none. Give --source and --target, or --data=",
        ),
        (
            ["--data=any", "--source=x"],
            "Expected no --source with --data. Received: 'x'. Leave one of them out.",
        ),
        (
            ["--data=any", "--label=x"],
            "Expected no --label with --data. Received: 'x'. Leave one of them out.",
        ),
        (["--source=x"], "Expected source and target files. Received: only source files, x."),
        (
            ["--source=x", "--target=y", "--split=dev"],
            "Expected no --split with files. Received: both. Name the test set",
        ),
        (
            ["--source=x", "--target=y", "--data_dir=d"],
            "Expected no --data_dir with files. Received: 'd'. Leave it out.",
        ),
        (
            ["--source=x", "--target=y", "--direction=en-de"],
            "Expected no --direction with files. Received: 'en-de'. Leave it out.",
        ),
        (["--data=files"], "Expected a test set. Received: none. Give --source and --target, or"),
        (
            ["--data=wmt15_translat/de-en"],
            "Expected the name of a translation set of .*Received: 'wmt15_translat/de-en'. The "
            "sets are listed at .* For text files, leave out --data.$",
        ),
        (
            [*FILES, "--metrics=chrf,bleurt"],
            "Expected metrics among bleu_lc, .*Received: 'bleurt'. Correct --metrics.",
        ),
        (
            [*FILES, "--saved_model=b", "--checkpoint=best"],
            "Expected no --checkpoint with --saved_model. Received: 'best'. Give its --model_dir.",
        ),
        (
            [*FILES, "--saved_model=b", "--beam_size=2"],
            "Expected no --beam_size with --saved_model, whose beam size is fixed. Received: 2. "
            "Export",
        ),
        (
            [*FILES, "--saved_model=absent"],
            "Expected the directory of a SavedModel, .*Received: absent, which does not",
        ),
        (
            [*FILES, "--model_dir=absent"],
            "Expected a model directory, .*Received: absent, which does not exist.",
        ),
        (
            [*FILES, "--model_dir=a", "--beam_size=0"],
            "Expected beam_size to be at least 1. Received: 0.",
        ),
    ],
)
def test_invalid_flags_raise(arguments, message):
    run.fails(message, *arguments)


@pytest.mark.slow
def test_output_of_several_test_sets_raises(exported_dir, splits, tmp_path):
    message = "Expected a single test set with --output. Received: 2. Evaluate them separately."
    arguments = [f"--saved_model={exported_dir}", "--data=any", "--split=dev,test"]
    run.fails(message, *arguments, f"--output={tmp_path / 'out'}")
    message = (
        r"Expected a file that can be written. Received: .*/absent/out \(No such file or "
        r"directory\). Choose an --output in a folder that exists and can be written."
    )
    run.fails(message, *arguments[:2], f"--output={tmp_path / 'absent/out'}")


def test_output_is_replaced_only_when_complete(
    exported_dir, pair_files, tmp_path, capsys, fill_disk, monkeypatch
):
    output = tmp_path / "out"
    output.write_text("before\n")
    source, target = pair_files
    arguments = [f"--saved_model={exported_dir}", f"--source={source}", f"--target={target}"]
    arguments.append(f"--output={output}")

    fill_disk(atomic_files, "flush")
    run.fails(
        rf"Expected a file that can be written. Received: {output} \(No space left on device\). "
        "Its content is unchanged. Free space",
        *arguments,
    )
    monkeypatch.undo()
    assert output.read_text() == "before\n"
    # BLEU is printed even though the output can't be written.
    assert "test BLEU = " in capsys.readouterr().out
    run(*arguments)
    assert len(output.read_text().splitlines()) == 11


def test_output_equal_to_a_test_file_raises(exported_dir, pair_files, tmp_path):
    source, target = pair_files
    before = target.read_text()
    arguments = [f"--saved_model={exported_dir}", f"--source={source},{source}"]
    arguments += [f"--target={target}, {target}", f"--output={tmp_path}/./target"]
    run.fails(
        "Expected --output and --target to be different files. Received: .*/target", *arguments
    )
    message = "Expected --output and --source to be different files."
    run.fails(message, *arguments[:3], f"--output={source}")
    assert target.read_text() == before


def test_unreadable_file_is_reported_in_one_line(pair_files, monkeypatch):
    def forbid(path, mode):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(text_files, "open", forbid, raising=False)
    message = (
        r"Expected a file that can be read or written. Received: .*source \(Permission denied\)."
    )
    run.fails(message, "--model_dir=x", f"--source={pair_files[0]}", f"--target={pair_files[1]}")
