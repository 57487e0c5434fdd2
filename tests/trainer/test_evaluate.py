import re

import pytest
import sacrebleu
from pair_corpus import PairCorpus
from programs import Program

from examples.synthetic_corpus import generate
from trainer import atomic_files, evaluate, metrics
from trainer.data import corpus, text_files
from trainer.model_dir import ModelDirectory
from trainer.serving import model_versions, translation_module
from trainer.serving.translation_module import TranslationSettings
from trainer.serving.translator import Translation

FILES = f"--source={__file__} --target={__file__}"
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" + sacrebleu.__version__
SOURCES = ["Ein Hund schläft jetzt.", "the dog sees a man", "", "she reads a long book now"]
REFERENCES = ["Ein Hund schläft jetzt.", "the dog sees a cat", "", "she reads a long book"]


run = Program(evaluate)


@pytest.fixture
def pair_files(tmp_path):
    """Returns flags with a source file and a reference file."""
    for name, lines in (("source", SOURCES), ("target", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return f"--source={tmp_path / 'source'}", f"--target={tmp_path / 'target'}"


@pytest.fixture
def load_calls(monkeypatch):
    """Replaces exported models by an echo that truncates texts above 20 bytes, in the result only.

    Returns the arguments of the calls of `model_versions.load`.
    """
    calls = []

    def load(*arguments):
        calls.append(arguments)
        return lambda texts: [Translation(text, 0.0, len(text) > 20) for text in texts]

    monkeypatch.setattr(model_versions, "load", load)
    return calls


@pytest.fixture
def read_calls(monkeypatch):
    """Replaces sets of TensorFlow Datasets. Returns the arguments of the calls of `read_tfds`."""
    calls = []

    def read_tfds(*arguments):
        calls.append(arguments)
        return PairCorpus(tuple(zip(SOURCES, REFERENCES))[: 3 if arguments[1] == "dev" else 4])

    monkeypatch.setattr(corpus, "read_tfds", read_tfds)
    return calls


def printed_scores(label, names, sources=SOURCES, references=REFERENCES):
    """Returns the lines that the program prints for metrics of the echoed sources."""
    scores = (metrics.score(name, sources, references) for name in names)
    return [f"{label} {each.name} = {each.value:.2f}  {each.signature}" for each in scores]


def test_files_have_one_line_of_bleu_its_signature_and_a_line_per_metric(
    load_calls, pair_files, tmp_path, capsys
):
    output = tmp_path / "out"
    run("--saved_model=any", *pair_files, "--label=mine", f"--output={output}", "--batch_size=2")
    assert output.read_text().splitlines() == SOURCES
    score = sacrebleu.corpus_bleu(SOURCES, [REFERENCES]).score
    assert 0.0 < score < 100.0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        f"mine BLEU = {score:.2f}",
        SIGNATURE,
        *printed_scores("mine", metrics.DEFAULT_METRICS),
    ]
    assert printed.err == (
        "mine data: 4 pairs, 1 with a blank side.\n"
        "warning: 2 sentences of mine were truncated to the maximum input length of the model.\n"
    )
    run("--saved_model=any", *pair_files, "--metrics=")
    assert capsys.readouterr().out.splitlines() == [f"test BLEU = {score:.2f}", SIGNATURE]
    assert load_calls == [("any", None)] * 2


def test_several_splits_are_evaluated(load_calls, read_calls, capsys):
    flags = ["--direction=en-fr", "--data_dir=folder", "--alpha=1.0", "--metrics=chrf,bleu_lc"]
    run("--saved_model=any", "--data=set", "--split=test,dev", *flags)
    assert read_calls == [("set", split, "en-fr", "folder") for split in ("test", "dev")]
    assert load_calls == [("any", 1.0)]
    printed = capsys.readouterr()
    few = SOURCES[:3], REFERENCES[:3]
    assert printed.out.splitlines() == [
        f"test BLEU = {sacrebleu.corpus_bleu(SOURCES, [REFERENCES]).score:.2f}",
        f"dev BLEU = {sacrebleu.corpus_bleu(few[0], [few[1]]).score:.2f}",
        SIGNATURE,
        *printed_scores("test", ["chrf", "bleu_lc"]),
        *printed_scores("dev", ["chrf", "bleu_lc"], *few),
    ]
    assert "2 sentences of test were" in printed.err and "1 sentences of dev were" in printed.err
    run("--saved_model=any", "--data=set", "--metrics=")
    assert read_calls[-1] == ("set", "test", None, None)


def test_several_models_are_compared_with_the_paired_bootstrap(pair_files, monkeypatch, capsys):
    def load(path, alpha):
        change = bytes.lower if path == "lower" else bytes
        return lambda texts: [Translation(change(text), 0.0, False) for text in texts]

    monkeypatch.setattr(model_versions, "load", load)
    run("--saved_model=first,lower,other", *pair_files)
    printed = capsys.readouterr()
    header, names, first, lower, other, *signatures = printed.out.splitlines()
    assert header == "test, paired bootstrap against first:"
    assert names.split() == ["model", "BLEU", "p", "chrF2", "p"]
    for line, texts in ((first, SOURCES), (lower, [text.lower() for text in SOURCES])):
        bleu = sacrebleu.corpus_bleu(texts, [REFERENCES]).score
        chrf = sacrebleu.corpus_chrf(texts, [REFERENCES]).score
        values = line.split()
        assert (values[1], values[5]) == (f"{bleu:.2f}", f"{chrf:.2f}")
    assert first.split()[4] == "-" and 0.0 < float(lower.split()[4]) < 1.0
    assert other.split()[1:4] == first.split()[1:4]
    assert other.split()[4] == other.split()[8] == "1.0000"
    assert [line.partition("|version")[0] for line in signatures] == [
        "BLEU  nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp",
        "chrF2  nrefs:1|bs:1000|seed:12345|case:mixed|eff:yes|nc:6|nw:0|space:no",
    ]
    assert printed.err.count("test data: 4 pairs") == 3


def test_tokenizer_of_bleu(load_calls, tmp_path, capsys):
    (tmp_path / "text").write_text("你好，世界！\n今天天气很好。\n")
    flags = [f"--{name}={tmp_path / 'text'}" for name in ("source", "target")]
    warning = "  warning: with the tokenizer 13a, the references have almost no sequences of 4"
    for tokenize, score in (("13a", 0), ("zh", 100)):
        run("--saved_model=any", *flags, f"--bleu_tokenize={tokenize}", "--metrics=bleu_lc")
        printed = capsys.readouterr()
        bleu, signature, bleu_lc = printed.out.splitlines()
        assert bleu == f"test BLEU = {score:.2f}"
        assert bleu_lc.startswith(f"test BLEU lower-cased = {score:.2f}  ")
        assert all(f"|tok:{tokenize}|" in line for line in (signature, bleu_lc))
        assert (warning in printed.err) == (tokenize == "13a")


def test_report_of_unknown_tokens(exported_dir, tmp_path, capsys):
    (tmp_path / "source").write_text("the ｄog\n\nΩ\n")
    (tmp_path / "target").write_text("der Hund\n你好\nein Hund\n")
    flags = [f"--{name}={tmp_path / name}" for name in ("source", "target")]
    run(f"--saved_model={exported_dir}", *flags, "--metrics=")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "test data: 3 pairs, 1 with a blank side."
    assert lines[1].startswith("  source: ") and "1 unknown (" in lines[1]
    assert lines[1].endswith("normalization changes 1 of 3 lines")
    assert lines[2].startswith("  target: ") and "1 unknown (" in lines[2]
    assert [line[:11] for line in lines[3:]] == ["  warning: "] * 3


@pytest.mark.slow
def test_model_directory_and_export_print_equal_scores(
    each_model_dir, each_exported_dir, sentences, tmp_path, capsys
):
    """Their translations are those of `generate`, and each side has its own vocabulary."""
    references = [target for _, target in generate("test", size=len(sentences))]
    for name, lines in (("source", sentences), ("target", references)):
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    files = f"--source={tmp_path / 'source'}", f"--target={tmp_path / 'target'}", "--batch_size=5"
    run(f"--model_dir={each_model_dir}", *files, f"--output={tmp_path / 'one'}")
    printed, report = capsys.readouterr()
    run(f"--saved_model={each_exported_dir}", *files, f"--output={tmp_path / 'two'}")
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text()
    assert capsys.readouterr().out == printed
    hypotheses = (tmp_path / "one").read_text().splitlines()
    directory = ModelDirectory.open(each_model_dir)
    model, tokenizers = directory.load_model(), directory.load_tokenizers()
    ids = tokenizers.source.tokenize(sentences[:1]).to_tensor()
    found = model.generate(ids, max_length=ids.shape[1] + 50, jit_compile=False)
    assert hypotheses[0].encode() == tokenizers.target.detokenize(found).numpy()[0]
    sides = zip(tokenizers, (sentences, references))
    counts = [sum(map(len, each.tokenize(side).to_list())) - len(side) for each, side in sides]
    assert [int(n) for n in re.findall(r"  (?:source|target): (\d+) tokens, ", report)] == counts
    score = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert 0.0 < score < 100.0 and printed.startswith(f"test BLEU = {score:.2f}\n")


@pytest.mark.parametrize(
    ("arguments", "language"),
    [
        ("--data=any --direction=en-fr", "fr"),
        ("--data=any", "de"),
        (FILES, "de"),
        (f"{FILES} --language=en", "en"),
        ("--data=any --direction=en-fr --language=it", "it"),
    ],
)
def test_language_defaults_to_the_target_language(
    load_calls, read_calls, monkeypatch, capsys, arguments, language
):
    monkeypatch.setattr(text_files, "read_text", lambda *_: PairCorpus((("l'air", "l'air"),)))
    run("--saved_model=any", "--metrics=compound_bleu", *arguments.split())
    assert f"|tok:moses-{language}|" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {}),
        (["--beam_size=1", "--alpha=0"], {"beam_size": 1, "alpha": 0.0}),
        (["--beam_size=40"], {"beam_size": 40, "max_beam_size": 40}),
    ],
)
def test_settings_of_the_search_of_a_checkpoint(finished, monkeypatch, capsys, arguments, expected):
    def stop(model, tokenizers, settings):
        raise ValueError(repr(settings))

    monkeypatch.setattr(translation_module, "TranslationModule", stop)
    directory = ModelDirectory.open(finished)
    # No sentence that was allowed in training is truncated.
    directory.write_run(directory.read_run() | {"max_length": 512})
    settings = TranslationSettings(**{"max_input_length": 512} | expected)
    flags = *FILES.split(), *arguments, f"--model_dir={finished}", "--checkpoint=6"
    run.fails(re.escape(repr(settings)), *flags)
    assert capsys.readouterr().out == f"checkpoint {finished}/checkpoints/step-000006\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (FILES, "Expected either --model_dir or --saved_model. Received: neither."),
        (f"{FILES} --model_dir=a --saved_model=b", "Expected either .* Received: both."),
        ("--model_dir=a", "Expected a test set. Received: none."),
        ("--data=files", "Expected a test set. Received: none."),
        ("--data=any --source=x", "Expected no --source with --data. Received: 'x'."),
        ("--data=any --label=x", "Expected no --label with --data."),
        ("--source=x", "Expected source and target files. Received: only source files, x."),
        (f"{FILES} --split=dev", r"Expected no --split with files. Received: \['dev'\]."),
        (f"{FILES} --data_dir=d", "Expected no --data_dir with files."),
        (f"{FILES} --direction=en-de", "Expected no --direction with files."),
        ("--data=wmt15_translat/de-en", "Expected the name of a translation set of .*Received:"),
        (f"{FILES} --metrics=chrf,bleurt", "Expected metrics among bleu_lc, .*Received:"),
        (f"{FILES} --bleu_tokenize=flores101", "Expected bleu_tokenize to be one of 13a,"),
        (f"{FILES} --saved_model=b --checkpoint=best", "Expected no --checkpoint with --saved_m"),
        (f"{FILES} --saved_model=b --beam_size=2", "Expected no --beam_size with --saved_model,"),
        (f"{FILES} --saved_model=absent", "Expected the directory of a SavedModel, .*Received:"),
        (f"{FILES} --model_dir=absent", "Expected a model directory, .*Received: absent, which"),
        (f"{FILES} --model_dir=a,b --output=x", "Expected no --output with several models."),
        (f"{FILES} --model_dir=a,a", "Expected models that differ. Received: a,a."),
        (f"{FILES} --model_dir=a --beam_size=0", "Expected beam_size to be at least 1."),
    ],
)
def test_invalid_flags_raise(arguments, message):
    run.fails(message, *arguments.split())


def test_unsuitable_output_raises(load_calls, read_calls, pair_files, tmp_path):
    several = "--saved_model=any", "--data=any", "--split=dev,test"
    message = "Expected a single test set with --output. Received: 2. Evaluate them separately."
    run.fails(message, *several, output=tmp_path / "out")
    message = (
        r"Expected a file that can be read or written. Received: .*/absent/out \(No such file or "
        r"directory\)."
    )
    run.fails(message, *several[:2], output=tmp_path / "absent/out")
    twice = [f"{flag}, {flag.partition('=')[2]}" for flag in pair_files]
    message = "Expected --output and --target to be different files. Received: .*/target"
    run.fails(message, several[0], *twice, output=f"{tmp_path}/./target")
    message = "Expected --output and --source to be different files."
    run.fails(message, several[0], *pair_files, output=tmp_path / "source")
    assert (tmp_path / "target").read_text().splitlines() == REFERENCES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_output_is_unchanged_if_it_can_not_be_written(
    load_calls, pair_files, tmp_path, capsys, fill_disk
):
    output = tmp_path / "out"
    output.write_text("before\n")
    fill_disk(atomic_files, "_flush")
    run.fails(
        rf"Expected a file that can be read or written. Received: {output} \(No space left on "
        r"device\). Free space",
        *("--saved_model=any", *pair_files, f"--output={output}"),
    )
    assert output.read_text() == "before\n"
    # BLEU is printed even though the output can't be written.
    assert "test BLEU = " in capsys.readouterr().out
