"""Keys of variables in checkpoints: attribute paths that are the same in every process.

Automatic names of Keras depend on what a process made before: the second model of a process has
variables `transformer_1/...`. The path of attributes, `encoder_layers/0/...`, does not.
"""

from collections import deque
from collections.abc import Iterator

import keras


def model_keys(model: keras.layers.Layer) -> dict[str, keras.Variable]:
    """Returns the variables of a built model by attribute path, in the order of `model.variables`.

    Seed generators contribute their states.

    Raises:
        ValueError: if a variable of the model is not an attribute of the model or its layers.

    Example:
        >>> layer = keras.layers.Dense(2)
        >>> layer.build((None, 3))
        >>> list(model_keys(layer))
        ['kernel', 'bias']
    """
    paths = {id(variable): path for path, variable in _walk(model)}
    missing = [variable.path for variable in model.variables if id(variable) not in paths]
    if missing:
        raise ValueError(
            "Expected every variable to be an attribute of the model or of one of its layers, "
            f"so that checkpoints can name it. Received: {', '.join(missing)}."
        )
    return {paths[id(variable)]: variable for variable in model.variables}


def optimizer_keys(
    optimizer: keras.optimizers.Optimizer, model: keras.layers.Layer
) -> dict[str, keras.Variable]:
    """Returns the variables of a built optimizer by key.

    A slot has the key of its variable plus the name of the slot. Other variables have their names.

    Raises:
        ValueError: if two variables would have the same key.
    """
    # Keras names a slot after its variable, with "_" for "/".
    prefixes = {
        variable.path.replace("/", "_") + "_": key for key, variable in model_keys(model).items()
    }
    keys = {}
    for variable in optimizer.variables:
        prefix = max((p for p in prefixes if variable.name.startswith(p)), key=len, default=None)
        key = variable.name
        if prefix is not None:
            key = f"{prefixes[prefix]}/{variable.name.removeprefix(prefix)}"
        if key in keys:
            raise ValueError(f"Expected unique keys of optimizer variables. Received: {key} twice.")
        keys[key] = variable
    return keys


def seed_generators(model: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    """Returns the seed generators of a model and its layers."""
    return [owner for _, owner in _owners(model) if isinstance(owner, keras.random.SeedGenerator)]


def _walk(model) -> Iterator[tuple[str, keras.Variable]]:
    for path, owner in _owners(model):
        for name, value in vars(owner).items():
            if isinstance(value, keras.Variable):
                # Dense keeps its kernel in `_kernel`, with a property `kernel`.
                yield "/".join([*path, name.lstrip("_")]), value
            elif isinstance(value, (list, tuple)) and not name.startswith("_"):
                for index, entry in enumerate(value):
                    if isinstance(entry, keras.Variable):
                        yield "/".join([*path, name, str(index)]), entry


def _owners(model):
    """Yields (path, object) of layers and seed generators, closest to the model first."""
    queue, seen = deque([((), model)]), {id(model)}
    while queue:
        path, owner = queue.popleft()
        yield path, owner
        for name, value in vars(owner).items():
            if name.startswith("_"):
                continue
            entries = [((*path, name), value)]
            if isinstance(value, (list, tuple)):
                entries = [((*path, name, str(i)), entry) for i, entry in enumerate(value)]
            elif isinstance(value, dict):
                entries = [((*path, name, str(key)), entry) for key, entry in value.items()]
            for inner, entry in entries:
                is_owner = isinstance(entry, (keras.layers.Layer, keras.random.SeedGenerator))
                if is_owner and id(entry) not in seen:
                    seen.add(id(entry))
                    queue.append((inner, entry))
