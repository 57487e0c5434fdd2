"""Records the hparams sets of tensor2tensor 1.15.7's Transformer and of Magenta's score2perf.

The argument is a checkout of Magenta. Writes `hparams.json`: the values of `basic_params1`, and for
every set the differences from them.
"""

import ast
import importlib.util
import json
import pathlib

import t2t_transformer
from shared import FOLDER
from tensor2tensor.layers import common_hparams
from tensor2tensor.models.research import lm_experiments  # noqa: F401, registers 11 sets

NUM_SETS = 95 + 11 + 14
BASIC_PARAMS_1 = "basic_1"  # the name in the registry


def record(magenta):
    folder = pathlib.Path(magenta) / "magenta" / "models" / "score2perf"
    load("score2perf_hparams", folder)  # registers 13 sets
    registry = t2t_transformer.registry
    names = [name for name in registry.list_hparams() if name != BASIC_PARAMS_1]
    sets = {name: values(registry.hparams(name)) for name in names}
    sets["score2perf_transformer_base"] = values(score2perf_transformer_base(folder))
    assert len(sets) == NUM_SETS, len(sets)
    base = values(common_hparams.basic_params1())
    write(base, {name: differences(sets[name], base) for name in sorted(sets)})


def values(hparams):
    """Returns the values as JSON types. A function is represented by its module and name."""
    text = json.dumps(hparams.values(), default=lambda f: f"{f.__module__}.{f.__name__}")
    return json.loads(text)


def differences(hparams, base):
    """Returns the hparams whose values or types differ. No set removes an hparam."""
    assert base.keys() <= hparams.keys()
    return {
        key: value
        for key, value in hparams.items()
        if key not in base or json.dumps(value) != json.dumps(base[key])
    }


def load(name, folder):
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def score2perf_transformer_base(folder):
    """Calls this function of `score2perf.py`, without the imports of its other functions."""
    name = "score2perf_transformer_base"
    tree = ast.parse((folder / "score2perf.py").read_text())
    (function,) = (node for node in tree.body if getattr(node, "name", None) == name)
    function.decorator_list.clear()
    scope = {
        "transformer": t2t_transformer.transformer,
        "modalities": load("modalities", folder),
    }
    exec(compile(ast.Module([function], []), name, "exec"), scope)
    return scope[name]()


def write(base, sets):
    lines = [f"{json.dumps(name)}: {json.dumps(sets[name], sort_keys=True)}" for name in sets]
    (FOLDER / "hparams.json").write_text(
        f'{{"basic_params1": {json.dumps(base, sort_keys=True)},\n'
        '"sets": {\n' + ",\n".join(lines) + "\n}}\n"
    )
