"""What all layers share: calls as Keras requires them, and the settings of sublayers."""

import inspect
import re

import keras
from keras import ops

from t2t_relpos import _checks, backend
from t2t_relpos._suggestions import did_you_mean
from t2t_relpos.backend import keras_private


class LayerMixin:
    """Mixin for layers whose calls have arguments other than tensors.

    It has to precede `keras.layers.Layer` in the list of base classes.
    """

    def __init__(self, *args, **kwargs):
        _check_spelling(type(self), kwargs)
        super().__init__(*args, **kwargs)

    def __call__(self, *args, **kwargs):
        backend.check_inputs_dense(self, (args, kwargs))
        return super().__call__(*args, **kwargs)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        """Returns `layer_call`, rematerialized as `keras.RematScope` requires.

        Keras would rematerialize a function of all arguments. JAX can't trace arguments such as
        `training=True`, and the padding masks attached to tensors would be lost.
        """
        tensors, restore = _tensors(args, kwargs, ops.is_tensor)

        def call_with_tensors(*tensors):
            args, kwargs = restore(tensors)
            return layer_call(*args, **kwargs)

        # Keras may ask for the output spec of these arguments.
        args, kwargs = keras.tree.map_structure(_without_mask, (args, kwargs))
        rematerialized = super().rematerialized_call(call_with_tensors, *args, **kwargs)
        # Keras calls the result with the arguments of this method.
        return lambda *_, **__: rematerialized(*tensors)

    def __setattr__(self, name, value):
        # `get_config` returns attributes, and NumPy's numbers are not JSON types.
        super().__setattr__(name, _checks.plain(value))

    def __getattr__(self, name):
        try:
            # On PyTorch, a base class finds variables and sublayers with this method.
            return super().__getattr__(name)
        except AttributeError:
            pass
        hint = ""
        if not name.startswith("_") and not self.__dict__.get("built", True):
            hint = (
                ". The layer is not built. If `build` creates this attribute, call the layer or "
                "its `build` first."
            )
        message = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
        raise AttributeError(message, name=name, obj=self)


def _check_spelling(cls, arguments):
    """Raises ValueError if an argument is a misspelled one of the constructors of a class.

    Keras reports other unknown arguments.
    """
    signatures = (inspect.signature(base.__init__) for base in cls.__mro__)
    names = dict.fromkeys(name for each in signatures for name in each.parameters)
    for name in arguments.keys() - names.keys():
        hint = did_you_mean(name, list(names))
        if hint:
            raise ValueError(f"{cls.__name__} has no argument {name!r}.{hint}")


def _without_mask(value):
    """Returns the spec of a tensor, without its padding mask, and other values unchanged."""
    if not ops.is_tensor(value):
        return value
    return keras.KerasTensor(value.shape, keras.backend.standardize_dtype(value.dtype))


def traced_output_spec(layer, *args, **kwargs):
    """Returns the specs of the outputs of `layer.call`, whose number depends on the arguments.

    Inputs and variables are cast as in a call of the layer, so that the specs are correct outside
    of a call too.
    """
    specs, restore = _tensors(args, kwargs, lambda x: isinstance(x, keras.KerasTensor))
    dtype, autocast = layer.compute_dtype, layer.autocast

    def call_with_tensors(*tensors):
        convert = layer.dtype_policy.convert_input
        args, kwargs = restore([convert(x, autocast, dtype) for x in tensors])
        return layer.call(*args, **kwargs)

    variable_dtype = dtype if autocast else None
    return keras_private.output_spec(
        call_with_tensors, *specs, dtype=variable_dtype, variables=layer.variables
    )


def _tensors(args, kwargs, is_tensor):
    """Returns the tensors among the arguments of a call, and a function that replaces them.

    If two arguments are the same tensor, it is returned once, and they are the same afterwards.
    """
    leaves = keras.tree.flatten((args, kwargs))
    tensors = list({id(x): x for x in leaves if is_tensor(x)}.values())

    def restore(new_tensors):
        new = {id(old): each for old, each in zip(tensors, new_tensors, strict=True)}
        for old in tensors:
            mask = keras_private.attached_mask(old)
            if mask is not None and not isinstance(mask, keras.KerasTensor):
                keras_private.attach_mask(new[id(old)], mask)
        return keras.tree.pack_sequence_as((args, kwargs), [new.get(id(x), x) for x in leaves])

    return tensors, restore


def config_of(layer, names):
    """Returns the attributes with these names, separated by spaces, in the form of a config."""
    values = {name: getattr(layer, name) for name in names.split()}
    return {
        name: x if isinstance(x, (tuple, list)) else keras.saving.serialize_keras_object(x)
        for name, x in values.items()
    }


def clone_initializer(initializer):
    """Returns a copy of an initializer, with a new random seed unless it has an explicit seed.

    A single initializer object would give all weights of the same shape the same values. Keras also
    accepts functions, which `keras.initializers.get` makes of arrays too, and None. They are
    returned unchanged.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    return initializer.__class__.from_config(initializer.get_config())


def quantized_dtype(layer):
    """Returns `{"dtype": policies}` for the config of a layer, or `{}` if nothing is quantized.

    Keras stores the quantization of a layer in that layer's config. A layer that creates its own
    sublayers therefore has to add their dtype policies to its config.
    """
    parts = keras_private.sublayers(layer)
    quantized = [part for part in parts if getattr(part, "quantization_mode", None) is not None]
    if not quantized:
        return {}
    policy = layer.dtype_policy
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        policy = keras.dtype_policies.get(policy.default_policy)
    policies = keras.dtype_policies.DTypePolicyMap(default_policy=policy.name)
    for part in quantized:
        inner = part.path.removeprefix(f"{layer.path}/")
        # Enclosing models prepend their names to paths.
        policies[f"(.*/)?{re.escape(layer.name)}/{re.escape(inner)}"] = part.dtype_policy
    return {"dtype": keras.saving.serialize_keras_object(policies)}


def sublayer_dtype(layer, name):
    """Returns the dtype policy for a sublayer that `layer.build` creates.

    The sublayer gets a single policy, not the `DTypePolicyMap` of `layer`. With a map, Keras could
    not save a quantized sublayer, because it reads the mode from the map's default policy.
    """
    policy = layer.dtype_policy
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return policy[f"{layer.path}/{name}"]
    return policy
