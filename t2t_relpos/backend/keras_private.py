"""Uses of private Keras APIs that do not depend on the backend.

If Keras changes its private API, importing this module raises an ImportError with the version.
"""

import inspect

import keras


def changed(name):
    """Returns the error for a private name that Keras changed."""
    return ImportError(
        f"{name} is missing or different in Keras {keras.__version__}. Install a version of Keras "
        "that setup.cfg allows."
    )


try:
    from keras.src.backend import (
        AutocastScope,
        compute_output_spec,
        get_keras_mask,
        set_keras_mask,
    )
    from keras.src.backend.common.stateless_scope import in_stateless_scope
except ImportError as error:
    raise changed(f"keras.src.backend ({error})") from error
if not hasattr(keras.layers.Layer, "_flatten_layers"):
    raise changed("_flatten_layers of keras.layers.Layer")
_EXPORT = inspect.unwrap(keras.Model.export).__code__
if "format" not in _EXPORT.co_varnames[: _EXPORT.co_argcount]:
    raise changed("the argument `format` of keras.Model.export")
# keras.layers.MultiHeadAttention has public properties for these projections, but not for the gate.
_PUBLIC_PROJECTIONS = ("query", "key", "value", "output")


def attached_mask(tensor):
    """Returns the padding mask that Keras attached to a tensor, or None."""
    return get_keras_mask(tensor)


def attach_mask(tensor, mask):
    """Attaches a padding mask to a tensor, as Keras does."""
    set_keras_mask(tensor, mask)


def output_spec(function, *specs, dtype, variables):
    """Returns the output specs of a function for `keras.KerasTensor` specs of its arguments.

    The variables that it reads are cast to `dtype`, the compute dtype of a layer, or None.
    """
    if in_stateless_scope():
        function = _with_values(function, variables)
    try:
        with AutocastScope(dtype):
            found = compute_output_spec(function, *_with_known_batch_size(specs))
    except TypeError as error:
        # Keras makes an error of the same class with another message, which JAX's errors can't be.
        raise TypeError(str(error)) from error
    return _cast_specs(found, dtype) if keras.backend.backend() == "torch" else found


def _with_values(function, variables):
    """Returns a function that sees the current values of variables in Keras's traces too.

    In training on JAX, only the current stateless scope has them, and a trace is another one.
    """
    values = [(variable, variable.value) for variable in variables]

    def function_with_values(*tensors):
        with keras.StatelessScope(values):
            return function(*tensors)

    return function_with_values


def _with_known_batch_size(specs):
    """Returns specs with the known batch size in place of an unknown one.

    Keras replaces an unknown size by a number on PyTorch, and by a symbol on JAX. Both differ from
    the known size.
    """
    sizes = {spec.shape[0] for spec in specs if len(spec.shape) > 1} - {None, 1}
    if len(sizes) != 1:
        return specs
    [size] = sizes
    return [
        keras.KerasTensor((size, *spec.shape[1:]), dtype=spec.dtype)
        if len(spec.shape) > 1 and spec.shape[0] is None
        else spec
        for spec in specs
    ]


def _cast_specs(specs, dtype):
    """Returns specs whose floating-point dtypes are `dtype`, unless it is None.

    For PyTorch, Keras does not cast variables while it infers shapes.
    """

    def cast(spec):
        if dtype is None or "float" not in spec.dtype:
            return spec
        return keras.KerasTensor(spec.shape, dtype=dtype)

    return keras.tree.map_structure(cast, specs)


def sublayers(layer):
    """Returns all layers within a layer, at any depth."""
    return layer._flatten_layers(include_self=False)


def kernel_variable(dense):
    """Returns the kernel of a `keras.layers.EinsumDense` as a variable, without LoRA updates."""
    return _attribute(dense, "_kernel", "keras.layers.EinsumDense")


def attention_projections(attention):
    """Returns the projections of a built `keras.layers.MultiHeadAttention` as a dict by name."""
    projections = {name: getattr(attention, f"{name}_dense") for name in _PUBLIC_PROJECTIONS}
    if attention.get_config()["use_gate"]:
        owner = "keras.layers.MultiHeadAttention"
        projections["gate"] = _attribute(attention, "_gate_dense", owner)
    return projections


def running_export_format():
    """Returns the argument `format` of the running `keras.Model.export`, or None."""
    variables = variables_of_running(_EXPORT)
    return None if variables is None else variables["format"]


def variables_of_running(code):
    """Returns the local variables of the innermost running call of a function, or None.

    Layers can't query Keras for the method that calls them, so the call stack is searched for it.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return None if frame is None else frame.f_locals


def _attribute(instance, name, owner):
    try:
        return getattr(instance, name)
    except AttributeError as error:
        raise changed(f"{name} of {owner}") from error
