"""Tests the answers to flags of tensor2tensor."""

import importlib
import re
from pathlib import Path

import pytest
from absl import flags

from trainer import t2t_flags
from trainer.errors import PROGRAMS

TRAINER = "problem model hparams_set hparams data_dir output_dir train_steps eval_steps worker_gpu"
GUIDE = Path(__file__).parents[2] / t2t_flags.PAGE
# Programs of tensor2tensor on that page, and those that replace them.
OLD = {"trainer": "train", "avg-all": "average", "exporter": "export", "decoder": "translate"}
OLD["bleu"] = "evaluate"
DECODER = "problem model output_dir decode_from_file decode_to_file decode_hparams checkpoint_path"


def flags_of(program):
    values = flags.FlagValues()
    importlib.import_module(f"trainer.{program}").define_flags(values)
    return {*values}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("given", [TRAINER, DECODER, "output_dir n min_steps"], ids=lambda x: x)
def test_every_program_knows_flags_of_tensor2tensor(program, given):
    own, given = flags_of(program), given.split()
    found = t2t_flags.replacements(program, given, own)
    assert {*given} - own <= {*found}
    assert [name for name in given if name in found] == [*found]


def test_replacements_are_flags_that_exist():
    own = {program: flags_of(program) for program in PROGRAMS}
    every = {"help"}.union(*own.values())
    for flag, texts in t2t_flags._REPLACEMENTS.items():
        for program, text in texts.items():
            named = {*re.findall(r"--(\w+)", text)}
            owners = re.findall(rf"\b({'|'.join(PROGRAMS)})\b", text)
            allowed = own[program] if program and not owners else every
            assert named <= allowed | {"help"}, (flag, program, text)


def test_flags_with_another_meaning_are_named_only_beside_others():
    own = flags_of("train")
    assert t2t_flags.replacements("train", ["data_dir", "train_steps"], own) == {}
    found = t2t_flags.replacements("train", ["nogenerate_data", "data_dir", "train_steps"], own)
    assert [*found] == ["nogenerate_data", "data_dir"]
    assert t2t_flags.replacements("train", ["no_such_flag"], own) == {}


def test_error_has_a_line_for_each_flag():
    found = t2t_flags.replacements("train", TRAINER.split(), flags_of("train"))
    first, *lines, last = t2t_flags.describe("trainer.train", found).splitlines()
    expected = "Expected flags of trainer.train. Received: flags of tensor2tensor. Give instead:"
    assert first == f"trainer.train: {expected}"
    names = ["--problem", "--model", "--data_dir", "--output_dir", "--eval_steps", "--worker_gpu"]
    assert [line.split()[0] for line in lines] == names
    assert lines[3] == "  --output_dir  --model_dir"
    assert last == f"Complete commands, old and new: {t2t_flags.PAGE}, section Commands."


def test_commands_of_the_page_are_answered():
    lines = re.findall(r"^t2t-(\S+) (--.*)$", GUIDE.read_text().replace("\\\n", ""), re.MULTILINE)
    assert [name for name, _ in lines] == ["trainer", "avg-all", "exporter", "decoder", "bleu"]
    for name, line in lines:
        program, given = OLD[name], re.findall(r"--(\w+)", line)
        own = flags_of(program)
        found = t2t_flags.replacements(program, given, own)
        assert found and {*given} <= own | {*found}, name
