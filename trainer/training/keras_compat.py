"""All uses of private Keras. Each fails with the version number if Keras changes."""

import inspect

import keras

from trainer.training.variable_keys import parts


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Returns the states `[seed, number of the next draw]` of a model's seed generators.

    Raises:
        ImportError: if a state is missing, has another layout, or can't be replaced by a
            `StatelessScope`. Replicas would then share dropout masks.
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
    """Returns whether a generator draws from the state that a `StatelessScope` gives it."""
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
    """Returns momentum and velocity of a variable; within a replica, those of the replica."""
    try:
        index = optimizer._get_variable_index(variable)
        return optimizer._momentums[index], optimizer._velocities[index]
    except AttributeError as error:
        raise _changed("the slots of keras.optimizers.Adam") from error


def skip_gradient_sum(optimizer: keras.optimizers.Optimizer):
    """Makes an optimizer expect gradients that are already summed over replicas.

    By default a Keras optimizer clips before it sums, by the norm of a replica's gradient.
    """
    _check_called(type(optimizer), "_all_reduce_sum_gradients", "keras.optimizers.Optimizer")
    optimizer._all_reduce_sum_gradients = lambda gradients_and_variables: gradients_and_variables


class WithoutSymbolicBuild:
    """Mixin for a built model: `fit` does not build it symbolically.

    The symbolic build reduces a batch over the replicas, which fails if they have batches of
    different sizes.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        _check_called(keras.Model, "_maybe_symbolic_build", "keras.Model")

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        pass


def _check_called(owner, name, public_name):
    """Checks that a class has a method, and that its module calls it."""
    method = getattr(owner, name, None)
    caller = "" if method is None else inspect.getsource(inspect.getmodule(method))
    if f"self.{name}(" not in caller:
        raise _changed(f"{name} of {public_name}")


def _changed(name):
    return ImportError(
        f"{name} is missing or different in Keras {keras.__version__}. Install a version of Keras "
        "that setup.cfg allows."
    )
