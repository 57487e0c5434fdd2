"""All uses of undocumented Keras APIs. Each raises an error if the API is different."""

import inspect

import keras

from trainer.training.variable_keys import model_keys, parts


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Returns the states of a model's seed generators, each `[seed, number of the next draw]`.

    Raises:
        ImportError: if a state is missing, has another layout, or can't be replaced in a
            `StatelessScope`. In these cases, replicas would share dropout masks.
    """
    try:
        generators = parts(model, keras.random.SeedGenerator)
        states = [generator.state for generator in generators]
        changed = any(tuple(state.shape) != (2,) for state in states)
        changed = changed or any(not _draws_from_scope(generator) for generator in generators)
    except (AttributeError, ValueError) as error:
        raise _changed("keras.random.SeedGenerator") from error
    random = [v for v in model.non_trainable_variables if "int" in str(v.dtype)]
    drops = any(getattr(layer, "rate", 0) for layer in parts(model, keras.layers.Layer))
    if changed or {id(v) for v in states} != {id(v) for v in random} or (drops and not states):
        raise _changed("the state of keras.random.SeedGenerator")
    return states


def _draws_from_scope(generator):
    """Returns whether a generator draws from the state that a `StatelessScope` defines."""
    state = generator.state
    drawn = []
    for seed in (3, 5):
        value = keras.ops.convert_to_tensor([seed, 7], dtype=state.dtype)
        with keras.StatelessScope(state_mapping=[(state, value)]) as scope:
            drawn.append(keras.ops.convert_to_numpy(generator.next()).tolist())
        after = keras.ops.convert_to_numpy(scope.get_current_value(state)).tolist()
        drawn.append(after)
    return drawn == [[3, 7], [3, 8], [5, 7], [5, 8]]


def adam_slots(
    optimizer: keras.optimizers.Adam, variable: keras.Variable
) -> tuple[keras.Variable, keras.Variable]:
    """Returns the momentum and velocity of a variable; in a replica context, of that replica."""
    try:
        index = optimizer._get_variable_index(variable)
        return optimizer._momentums[index], optimizer._velocities[index]
    except AttributeError as error:
        raise _changed("the slots of keras.optimizers.Adam") from error


def optimizer_keys(
    optimizer: keras.optimizers.Optimizer, model: keras.layers.Layer
) -> dict[str, keras.Variable]:
    """Returns the variables of a built optimizer by key.

    The key of a slot is the key of its variable plus the name of the slot. The key of another
    variable is its name.

    Raises:
        ImportError: if a slot is not named after its variable.
        ValueError: if two variables would have the same key.
    """
    # Keras names a slot after its variable, with "_" for "/".
    prefixes = {f"{v.path.replace('/', '_')}_": key for key, v in model_keys(model).items()}
    keys = {}
    for variable in optimizer.variables:
        name = variable.name
        prefix = max((p for p in prefixes if name.startswith(p)), key=len, default=None)
        if prefix is None and len(variable.shape):  # Only slots are not scalars.
            raise _changed("the name of a slot of keras.optimizers.Optimizer")
        key = name if prefix is None else f"{prefixes[prefix]}/{name.removeprefix(prefix)}"
        if key in keys:
            raise ValueError(f"Expected unique keys of optimizer variables. Received: {key} twice.")
        keys[key] = variable
    return keys


def skip_gradient_sum(optimizer: keras.optimizers.Optimizer):
    """Makes an optimizer expect gradients that are already summed over replicas.

    By default, Keras optimizers clip each replica's gradients before they sum them.
    """
    _check_called(type(optimizer), "_all_reduce_sum_gradients", "keras.optimizers.Optimizer")
    optimizer._all_reduce_sum_gradients = lambda gradients_and_variables: gradients_and_variables


class WithoutSymbolicBuild:
    """Mixin of a built model that disables the symbolic build in `fit`.

    The symbolic build reduces a batch over replicas, which fails if their batches have different
    sizes.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        _check_called(keras.Model, "_maybe_symbolic_build", "keras.Model")

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        pass


def _check_called(owner, name, public_name):
    """Checks that a class has a method and that the class's module calls it."""
    method = getattr(owner, name, None)
    caller = "" if method is None else inspect.getsource(inspect.getmodule(method))
    if f"self.{name}(" not in caller:
        raise _changed(f"{name} of {public_name}")


def _changed(name):
    return ImportError(
        f"{name} is missing or different in Keras {keras.__version__}. Install a version of Keras "
        "that setup.cfg allows."
    )
