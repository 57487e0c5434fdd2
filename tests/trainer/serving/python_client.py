"""Calls signatures of an exported model. This project can't be imported here.

The standard input has a JSON object with the `path` of the model, names of `ops`, and `calls`. The
standard output has a JSON object with the ops that are `missing` before TensorFlow Text is
imported, modules of this project that were `loaded`, and the `answers`.
"""

import importlib.abc
import json
import sys


class Absent(importlib.abc.MetaPathFinder):
    """Hides this project and packages that only training requires."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("t2t_relpos", "trainer", "sentencepiece", "sacrebleu"):
            raise ModuleNotFoundError(name, name=name)


def main():
    sys.meta_path.insert(0, Absent())
    task = json.load(sys.stdin)
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry

    missing = [name for name in task["ops"] if op_def_registry.get(name) is None]
    import tensorflow_text  # noqa: F401  registers ops

    model = tf.saved_model.load(task["path"])
    loaded = sorted(n for n in sys.modules if n.split(".")[0] in ("t2t_relpos", "trainer"))
    answers = []
    for name, arguments in task["calls"]:
        specs = model.signatures[name].structured_input_signature[1]
        tensors = {key: tf.constant(value, specs[key].dtype) for key, value in arguments.items()}
        answer = model.signatures[name](**tensors)
        answers.append({key: plain(value) for key, value in answer.items()})
    json.dump({"missing": missing, "loaded": loaded, "answers": answers}, sys.stdout)


def plain(tensor):
    """Returns the values of a tensor as nested lists of numbers or str."""
    return json.loads(json.dumps(tensor.numpy().tolist(), default=bytes.decode))


if __name__ == "__main__":
    main()
