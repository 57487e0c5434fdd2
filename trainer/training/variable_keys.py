"""Keys of variables in checkpoints. Keys are attribute paths, which are equal in every process.

Keras's automatic names depend on the objects that a process created before. For example, the second
model has variables `transformer_1/...`. Attribute paths, `encoder_layers/0/...`, do not.
"""

from collections import deque

import keras

_PART_TYPES = (keras.layers.Layer, keras.random.SeedGenerator, keras.Variable)


def model_keys(model: keras.layers.Layer) -> dict[str, keras.Variable]:
    """Returns the variables of a built model by attribute path, in the order of `model.variables`.

    The states of seed generators are included.

    Raises:
        ValueError: if a variable of the model is not an attribute of the model or its layers.

    Example:
        >>> layer = keras.layers.Dense(2)
        >>> layer.build((None, 3))
        >>> list(model_keys(layer))
        ['kernel', 'bias']
    """
    paths = {id(v): "/".join(path) for path, v in _walk(model) if isinstance(v, keras.Variable)}
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

    The key of a slot is the key of its variable plus the name of the slot. The key of another
    variable is its name.
    """
    # Keras names a slot after its variable, with "_" for "/".
    prefixes = {f"{v.path.replace('/', '_')}_": key for key, v in model_keys(model).items()}
    keys = {}
    for variable in optimizer.variables:
        name = variable.name
        prefix = max((p for p in prefixes if name.startswith(p)), key=len, default=None)
        key = name if prefix is None else f"{prefixes[prefix]}/{name.removeprefix(prefix)}"
        keys[key] = variable
    return keys


def parts(model: keras.layers.Layer, part_type: type) -> list:
    """Returns the layers, seed generators and variables of a model that are of a given class."""
    return [part for _, part in _walk(model) if isinstance(part, part_type)]


def _walk(model):
    """Yields (path, part) of layers, seed generators and variables in breadth-first order."""
    queue, seen = deque([((), model)]), {id(model)}
    while queue:
        path, owner = queue.popleft()
        yield path, owner
        if isinstance(owner, keras.Variable):
            continue
        for inner, value in _attributes(owner):
            if isinstance(value, _PART_TYPES) and id(value) not in seen:
                seen.add(id(value))
                queue.append(((*path, *inner), value))


def _attributes(owner):
    """Yields (path, value) of public attributes, entries of public containers, and variables."""
    for name, value in vars(owner).items():
        if isinstance(value, keras.Variable):
            # Dense stores its kernel in `_kernel` and has a property `kernel`.
            yield (name.lstrip("_"),), value
        elif name.startswith("_"):
            continue
        elif isinstance(value, (list, tuple)):
            yield from (((name, str(index)), entry) for index, entry in enumerate(value))
        elif isinstance(value, dict):
            yield from (((name, str(key)), entry) for key, entry in value.items())
        else:
            yield (name,), value
