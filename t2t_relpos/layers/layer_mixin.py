"""What Keras's contract for layers requires beyond `call`: output specs and rematerialization."""

import keras
from keras import ops

from t2t_relpos import _keras_compat


class LayerMixin:
    """Mixin for layers whose calls have arguments other than tensors.

    It has to precede `keras.layers.Layer` in the list of base classes.
    """

    def rematerialized_call(self, layer_call, *args, **kwargs):
        """Returns `layer_call`, rematerialized as `keras.RematScope` requires.

        Keras would rematerialize a function of all arguments. JAX can't trace arguments such as
        `training=True`, and the padding masks attached to tensors would be lost.
        """
        tensors, restore = _tensors(args, kwargs, ops.is_tensor)

        def call_with_tensors(*tensors):
            args, kwargs = restore(tensors)
            return layer_call(*args, **kwargs)

        rematerialized = super().rematerialized_call(call_with_tensors, *args, **kwargs)
        # Keras calls the result with the arguments of this method.
        return lambda *_, **__: rematerialized(*tensors)

    def __getattr__(self, name):
        # On PyTorch, a base class finds variables and sublayers with this method.
        if hasattr(super(), "__getattr__"):
            try:
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

    def _traced_output_spec(self, *args, **kwargs):
        """Returns the specs of the outputs of `call`, whose number depends on the arguments.

        Inputs and variables are cast as in a call of the layer, so that the specs are correct
        outside of a call too.
        """
        specs, restore = _tensors(args, kwargs, lambda x: isinstance(x, keras.KerasTensor))
        dtype, autocast = self.compute_dtype, self.autocast

        def call_with_tensors(*tensors):
            convert = self.dtype_policy.convert_input
            args, kwargs = restore([convert(x, autocast, dtype) for x in tensors])
            return self.call(*args, **kwargs)

        variable_dtype = dtype if autocast else None
        return _keras_compat.output_spec(call_with_tensors, *specs, dtype=variable_dtype)


def _tensors(args, kwargs, is_tensor):
    """Returns the tensors among the arguments of a call, and a function that replaces them.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        is_tensor: a function that returns whether a value is one of the tensors.

    Returns:
        (tensors, each once; a function that returns (args, kwargs) with other tensors in their
        place). If two arguments are the same tensor, they are the same afterwards: attention layers
        recognize self-attention by this.
    """
    leaves = keras.tree.flatten((args, kwargs))
    tensors = list({id(x): x for x in leaves if is_tensor(x)}.values())

    def restore(new_tensors):
        new = {id(old): each for old, each in zip(tensors, new_tensors, strict=True)}
        for old in tensors:
            mask = _keras_compat.attached_mask(old)
            if mask is not None and not isinstance(mask, keras.KerasTensor):
                _keras_compat.attach_mask(new[id(old)], mask)
        return keras.tree.pack_sequence_as((args, kwargs), [new.get(id(x), x) for x in leaves])

    return tensors, restore
