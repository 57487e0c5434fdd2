"""All uses of private Keras. Each fails with the version number if Keras changes."""

import inspect

import keras

from trainer.training.variable_keys import seed_generators

_STATE_NAME = "seed_generator_state"


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Returns the states `[seed, number of the next draw]` of a model's seed generators.

    Raises:
        ImportError: if a state is missing or has another layout. Replicas would then share dropout
            masks.
    """
    states = [generator.state for generator in seed_generators(model)]
    named = [v for v in model.non_trainable_variables if v.name == _STATE_NAME]
    if {id(v) for v in states} != {id(v) for v in named}:
        raise _changed("the state of keras.random.SeedGenerator")
    if any(tuple(v.shape) != (2,) for v in states):
        raise _changed("the layout of the state of keras.random.SeedGenerator")
    return states


def adam_slots(
    optimizer: keras.optimizers.Adam, variable: keras.Variable
) -> tuple[keras.Variable, keras.Variable]:
    """Returns momentum and velocity of a variable, within a replica those of the replica."""
    try:
        index = optimizer._get_variable_index(variable)
        return optimizer._momentums[index], optimizer._velocities[index]
    except AttributeError as error:
        raise _changed("the slots of keras.optimizers.Adam") from error


def skip_gradient_sum(optimizer: keras.optimizers.Optimizer):
    """Makes an optimizer expect gradients that are summed over replicas already.

    By default a Keras optimizer clips before it sums, by the norm of a replica's part.
    """
    method = getattr(type(optimizer), "_all_reduce_sum_gradients", None)
    caller = "" if method is None else inspect.getsource(inspect.getmodule(method))
    if "self._all_reduce_sum_gradients(" not in caller:
        raise _changed("_all_reduce_sum_gradients of keras.optimizers.Optimizer")
    optimizer._all_reduce_sum_gradients = lambda gradients_and_variables: gradients_and_variables


class WithoutSymbolicBuild:
    """Mixin for a built model: `fit` does not build it symbolically.

    The symbolic build reduces a batch over the replicas, which fails if they have batches of
    different sizes.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if not callable(getattr(keras.Model, "_maybe_symbolic_build", None)):
            raise _changed("_maybe_symbolic_build of keras.Model")

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        pass


def _changed(name):
    return ImportError(
        f"{name} is missing or different in Keras {keras.__version__}. Install a version of Keras "
        "that setup.cfg allows."
    )
