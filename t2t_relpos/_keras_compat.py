"""All uses of private Keras APIs in the library.

If Keras changes its private API, these functions raise an ImportError with the version number.
"""

import inspect

import keras

# keras.layers.MultiHeadAttention has public properties for these projections, but not for the gate.
_PUBLIC_PROJECTIONS = ("query", "key", "value", "output")


def attached_mask(tensor):
    """Returns the padding mask that Keras attached to a tensor, or None."""
    try:
        from keras.src.backend import get_keras_mask
    except ImportError as error:
        raise _changed("keras.src.backend.get_keras_mask") from error
    return get_keras_mask(tensor)


def attach_mask(tensor, mask):
    """Attaches a padding mask to a tensor, as Keras does."""
    try:
        from keras.src.backend import set_keras_mask
    except ImportError as error:
        raise _changed("keras.src.backend.set_keras_mask") from error
    set_keras_mask(tensor, mask)


def output_spec(function, *specs, dtype, variables):
    """Returns the output specs of a function whose variables are cast to a dtype.

    Args:
        function: a function of tensors.
        *specs: its arguments, `keras.KerasTensor`.
        dtype: the compute dtype of a layer, or None to leave the variables as they are.
        variables: the variables that the function reads.
    """
    try:
        from keras.src.backend import AutocastScope, compute_output_spec
        from keras.src.backend.common.stateless_scope import in_stateless_scope
    except ImportError as error:
        name = "keras.src.backend.AutocastScope, compute_output_spec or in_stateless_scope"
        raise _changed(name) from error
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
    flatten = _attribute(layer, "_flatten_layers", "keras.layers.Layer")
    return flatten(include_self=False)


def track_on_torch(layer):
    """Registers the variables of a layer with PyTorch, in place of those that it no longer has."""
    if keras.backend.backend() == "torch":
        for each in (layer, *sublayers(layer)):
            _attribute(each, "_track_variables", "keras.layers.Layer")()


def torch_device():
    """Returns the device on which Keras puts new tensors of PyTorch, such as "cuda" or "meta"."""
    try:
        from keras.src.backend.torch.core import get_device
    except ImportError as error:
        raise _changed("keras.src.backend.torch.core.get_device") from error
    return str(get_device())


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
    """Returns the argument `format` of the running `keras.Model.export`, or None.

    Layers can't query Keras for a running export, so the call stack is searched for it.
    """
    export = inspect.unwrap(keras.Model.export)
    code = getattr(export, "__code__", None)
    if code is None or "format" not in code.co_varnames[: code.co_argcount]:
        raise _changed("the argument `format` of keras.Model.export")
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["format"]


def _attribute(instance, name, owner):
    try:
        return getattr(instance, name)
    except AttributeError as error:
        raise _changed(f"{name} of {owner}") from error


def _changed(name):
    return ImportError(
        f"{name} is missing or different in Keras {keras.__version__}. Install a version of Keras "
        "that setup.cfg allows."
    )
