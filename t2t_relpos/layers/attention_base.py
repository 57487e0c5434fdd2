"""The base class of multi-head attention layers, and its projections into heads and out of them."""

import math

import keras
import numpy as np

from t2t_relpos import _checks, backend
from t2t_relpos.attention.masks import combine_masks
from t2t_relpos.backend import ops, track_variables
from t2t_relpos.backend.keras_private import kernel_variable
from t2t_relpos.layers.layer_mixin import (
    LayerMixin,
    clone_initializer,
    config_of,
    quantized_dtype,
    sublayer_dtype,
    traced_output_spec,
)

_SELF_ATTENTION = "For self-attention, pass the same tensor as both: layer(x, x)."


class AttentionBase(LayerMixin, keras.layers.Layer):
    """Projections, heads and dropout of an attention layer, without the attention itself.

    The arguments are those of `keras.layers.MultiHeadAttention`, and those of tables.
    `RelativeMultiHeadAttention` documents them.
    """

    # Axes of the inputs, with a name for each size.
    _INPUTS = {"query": "B T D", "value": "B S Dv", "key": "B S Dk"}
    _SHAPE_ADVICE = (
        "Lengths of `value` and `key` must be equal, and all batch sizes. Fold further axes into "
        "the batch."
    )

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        use_gate=False,
        seed=None,
        *,
        share_heads=True,
        table_initializer="glorot_uniform",
        lora_rank=None,
        lora_alpha=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = _checks.positive_int(num_heads, "num_heads")
        self.num_key_value_heads = self.num_heads  # Layers with grouped queries set another number.
        self.key_dim = _checks.positive_int(key_dim, "key_dim")
        self.value_dim = (
            self.key_dim if value_dim is None else _checks.positive_int(value_dim, "value_dim")
        )
        self.dropout = _checks.rate(dropout, "dropout")
        self.use_bias = use_bias
        self.output_dim = _output_dim(output_shape)
        self.use_gate = use_gate
        self.seed = seed
        self.share_heads = share_heads
        self.table_initializer = keras.initializers.get(table_initializer)
        self.lora_rank = None if lora_rank is None else _checks.positive_int(lora_rank, "lora_rank")
        self.lora_alpha = lora_alpha
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.projection_activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        # The batch size of packed inputs is 1, and not that of other inputs.
        self._check_inputs(query_shape, value_shape, key_shape, same_batch=False)
        depth, output_axes = self.value_dim, self._output_axes(query_shape)
        num_heads, num_groups = self.num_heads, self.num_key_value_heads
        self.query_dense = self._into_heads("query", num_heads, self.key_dim, query_shape)
        self.key_dense = self._into_heads("key", num_groups, self.key_dim, key_shape)
        if self.use_gate:
            self.gate_dense = self._into_heads("gate", num_heads, depth, query_shape, "sigmoid")
        self.value_dense = self._into_heads("value", num_groups, depth, value_shape)
        self.output_dense = self._projection(
            "attention_output",
            out_of_heads(len(output_axes)),
            (None, *output_axes),
            (None, None, self.num_heads, depth),
        )
        self.dropout_layer = keras.layers.Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy
        )

    def _into_heads(self, name, num_heads, depth, input_shape, activation=None):
        shape = (None, None, input_shape[-1])
        return self._projection(name, INTO_HEADS, (None, num_heads, depth), shape, activation)

    def __call__(self, *args, **kwargs):
        if len(args) < 2 and "value" not in kwargs:
            raise TypeError(f"Expected `query` and `value`. {_SELF_ATTENTION}")
        return super().__call__(*args, **kwargs)

    def _check_inputs(self, *shapes, same_batch=True):
        """Checks the shapes of query, value and key. Returns sizes by the name of the axis."""
        sizes = {}
        if self.built:
            projections = {"D": self.query_dense, "Dv": self.value_dense, "Dk": self.key_dense}
            sizes = {name: dense.input_spec.axes[-1] for name, dense in projections.items()}
        for (name, axes), shape in zip(self._INPUTS.items(), shapes, strict=True):
            advice = _checks.EMBED_IDS if len(shape) == 2 else self._SHAPE_ADVICE
            sizes = _checks.check_shape(shape, name, axes, sizes, advice=advice)
            if not same_batch:
                sizes.pop("B", None)
        return sizes

    def _check_call(self, inputs, padding_masks, attention_mask=None):
        """Checks inputs and masks. Returns the sizes, and N, by the name of the axis.

        Inputs and padding masks are those of query, value and key. Masks have the axes of the
        inputs except the last. Only the batch axis may have size 1: one value per sequence would
        mask all of it or nothing.
        """
        for name, x in zip(self._INPUTS, inputs):
            if x is None:
                raise ValueError(
                    f"Expected `{name}` to be a tensor. Received: None. {_SELF_ATTENTION}"
                )
        sizes = self._check_inputs(*(x.shape for x in inputs))
        for (name, axes), mask in zip(self._INPUTS.items(), padding_masks, strict=True):
            axes = axes.rpartition(" ")[0]
            _checks.check(mask, f"{name}_mask", axes, "mask", sizes, broadcast="B")
        sizes["N"], pairs = self.num_heads, "B T S | T S | B N T S"
        _checks.check(attention_mask, "attention_mask", pairs, "mask", sizes, broadcast="B N T S")
        return sizes

    def _output_axes(self, query_shape):
        """Returns the sizes of the axes that replace the last axis of `query` in the outputs."""
        if self.output_dim is None:
            return (query_shape[-1],)
        return self.output_dim if isinstance(self.output_dim, tuple) else (self.output_dim,)

    def _projection(self, name, equation, output_shape, input_shape, activation=None):
        projection = HeadProjection(
            equation,
            output_shape,
            activation=activation,
            # The axes of the equation's outputs after [batch, length].
            bias_axes=equation.split("->ab")[1] if self.use_bias else None,
            kernel_initializer=clone_initializer(self.kernel_initializer),
            bias_initializer=clone_initializer(self.bias_initializer),
            kernel_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            activity_regularizer=self.projection_activity_regularizer,
            kernel_constraint=self.kernel_constraint,
            bias_constraint=self.bias_constraint,
            lora_rank=self.lora_rank,
            lora_alpha=self.lora_alpha,
            dtype=sublayer_dtype(self, name),
            trainable=self.trainable,
            name=name,
        )
        projection.build(input_shape)
        return projection

    def _projections(self):
        """Returns the projections of a built layer."""
        _checks.built(self)
        projections = [self.query_dense, self.key_dense, self.value_dense, self.output_dense]
        return [*projections, self.gate_dense] if self.use_gate else projections

    def enable_lora(self, rank, lora_alpha=None, a_initializer="he_uniform", b_initializer="zeros"):
        """Adds LoRA to all projections, as `keras.layers.EinsumDense.enable_lora` to one.

        The kernels of the projections are frozen. Biases and tables are not: set `trainable` of
        these variables to False to train LoRA only. A saved layer has the merged kernels and,
        with `lora_rank` in its config, new LoRA kernels.

        Args:
            rank: rank of the updates of the kernels.
            lora_alpha: the updates are scaled by `lora_alpha / rank`. Default: `rank`.
            a_initializer: initializer of the first LoRA kernels. Default: `"he_uniform"`.
            b_initializer: initializer of the second LoRA kernels. Default: `"zeros"`.

        Raises:
            ValueError: if the layer is not built, `rank` is not a positive integer, a projection
                has LoRA, or the layer has a kernel constraint.

        Example:
        >>> import numpy as np
        >>> from t2t_relpos.layers import RelativeMultiHeadAttention
        >>> layer = RelativeMultiHeadAttention(num_heads=2, key_dim=4, max_relative_position=16)
        >>> outputs = layer(np.ones((3, 7, 8)), np.ones((3, 7, 8)))
        >>> layer.enable_lora(rank=4)
        >>> len([v for v in layer.trainable_variables if "lora" in v.name])
        8
        """
        rank = _checks.positive_int(rank, "rank")
        projections = self._projections()
        found = [each.path for each in projections if each.lora_enabled]
        if found:
            raise ValueError(
                f"Expected projections without LoRA. Received: LoRA in {', '.join(found)}. Call "
                "`enable_lora` of the other projections."
            )
        for projection in projections:
            projection.enable_lora(
                rank,
                lora_alpha,
                clone_initializer(keras.initializers.get(a_initializer)),
                clone_initializer(keras.initializers.get(b_initializer)),
            )
        self.lora_rank, self.lora_alpha = rank, projection.lora_alpha

    def quantize(self, mode=None, type_check=True, config=None):
        """Quantizes all projections, as `keras.Model.quantize`. Tables and biases stay float.

        Args:
            mode: `"int8"`, or another mode of `keras.layers.EinsumDense.quantize`. Default: that
                of `config`.
            type_check: not used. Default: True.
            config: a `keras.quantizers.QuantizationConfig`. Default: None, that of the mode.

        Raises:
            ValueError: if the layer is not built, or a projection is quantized.

        Example:
        >>> import numpy as np
        >>> from t2t_relpos.layers import RelativeMultiHeadAttention
        >>> layer = RelativeMultiHeadAttention(num_heads=2, key_dim=4, max_relative_position=16)
        >>> outputs = layer(np.ones((3, 7, 8)), np.ones((3, 7, 8)))
        >>> layer.quantize("int8")
        >>> layer.query_dense.kernel.dtype
        'int8'
        """
        projections = self._projections()
        found = [each.path for each in projections if each.quantization_mode is not None]
        if found:
            raise ValueError(
                f"Expected projections that are not quantized. Received: {', '.join(found)}, "
                "already quantized. Call `quantize` of the other projections."
            )
        for projection in projections:
            projection.quantize(mode, config=config)
        track_variables(self)

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        self._check_inputs(query_shape, value_shape, key_shape)
        return (*query_shape[:-1], *self._output_axes(query_shape))

    def compute_output_spec(self, query, value, key=None, *args, **kwargs):
        if not self.built:
            self.build(query.shape, value.shape, None if key is None else key.shape)
        return traced_output_spec(self, query, value, key, *args, **kwargs)

    def _drop(self, weights, training):
        """Returns attention weights after dropout."""
        # Not a call of the layer, which Keras could not rematerialize on JAX.
        weights = ops.cast(weights, self.compute_dtype)
        return self.dropout_layer.call(weights, training=training) if self.dropout else weights

    def project_query(self, query):
        """Returns the queries of all heads, multiplied by `H ** -0.5`.

        Args:
            query: `[B, T, D]`.

        Returns:
            `[B, N, T, H]`.
        """
        return swap_heads(self.query_dense(query) * self.key_dim**-0.5)

    def project_key(self, key):
        """Returns the keys of all heads.

        Args:
            key: `[B, S, D]`.

        Returns:
            `[B, N, S, H]`, with `num_key_value_heads` for N.
        """
        return swap_heads(self.key_dense(key))

    def project_value(self, value):
        """Returns the values of all heads.

        Args:
            value: `[B, S, D]`.

        Returns:
            `[B, N, S, Hv]`, with `num_key_value_heads` for N.
        """
        return swap_heads(self.value_dense(value))

    def project_output(self, outputs, query):
        """Returns the projection of the outputs of all heads.

        Args:
            outputs: `[B, N, T, Hv]`.
            query: the input of the layer, which the gate of `use_gate` reads.

        Returns:
            `[B, T, D]`. If `output_shape` is a tuple, its axes replace D.
        """
        return self._merge_heads(swap_heads(outputs), query)

    def _merge_heads(self, outputs, query):
        """Returns the projection of `[B, T, N, Hv]`, after the gate."""
        if self.use_gate:
            outputs = outputs * self.gate_dense(query)
        return self.output_dense(outputs)

    def get_config(self):
        lora = {"lora_rank": self.lora_rank, "lora_alpha": self.lora_alpha}
        return {
            **super().get_config(),
            **({} if self.lora_rank is None else lora),
            **config_of(
                self,
                "num_heads key_dim value_dim dropout use_bias use_gate seed share_heads "
                "table_initializer kernel_initializer bias_initializer kernel_regularizer "
                "bias_regularizer kernel_constraint bias_constraint",
            ),
            "output_shape": self.output_dim,
            "activity_regularizer": keras.regularizers.serialize(
                self.projection_activity_regularizer
            ),
            **quantized_dtype(self),
        }

    def _add_table(self, name, rows, depth):
        """Adds a weight `[rows, depth]`, or `[N, rows, depth]` unless the heads share it.

        The initializer None is t2t's normal distribution of standard deviation `depth ** -0.5`.
        """
        if self.table_initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=depth**-0.5)
        else:
            initializer = clone_initializer(self.table_initializer)
        shape = (rows, depth) if self.share_heads else (self.num_heads, rows, depth)
        return self.add_weight(name=name, shape=shape, initializer=initializer)


def pair_mask(query_mask, key_masks, *masks):
    """Returns the conjunction of padding masks and other masks, as `combine_masks`."""
    query_mask = None if query_mask is None else ops.expand_dims(query_mask, -1)
    key_masks = (None if mask is None else ops.expand_dims(mask, 1) for mask in key_masks)
    return combine_masks(query_mask, *key_masks, *masks)


def swap_heads(x):
    """Swaps the axes of positions and heads, `[B, T, N, H]` <-> `[B, N, T, H]`."""
    return ops.transpose(x, (0, 2, 1, 3))


def _output_dim(output_shape):
    """Returns the size of the last axis, a tuple of sizes of several axes, or None."""
    if output_shape is None:
        return None
    try:
        sizes = tuple(output_shape)
    except TypeError:
        sizes = (output_shape,)
    if not sizes or not all(_checks.is_integer(size) and size > 0 for size in sizes):
        raise ValueError(
            "Invalid `output_shape`: expected a positive integer, or a tuple or list of them. "
            f"Received: output_shape={output_shape!r}"
        )
    sizes = tuple(int(size) for size in sizes)
    return sizes if len(sizes) > 1 else sizes[0]


_OUTPUT_AXES = "efghijklmnopqrstuvwxyz"


def out_of_heads(num_axes):
    """Returns the equation of a projection from heads to `num_axes` axes."""
    axes = _OUTPUT_AXES[:num_axes]
    return f"abcd,cd{axes}->ab{axes}"


INTO_HEADS, OUT_OF_HEADS = "abc,cde->abde", out_of_heads(1)


@keras.saving.register_keras_serializable(package="t2t_relpos")
class HeadProjection(keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` into heads or out of heads, computed as one matrix product.

    Variables, LoRA and quantization are those of `EinsumDense`. The equation is `INTO_HEADS` with
    a kernel `[D, N, H]`, `OUT_OF_HEADS` with a kernel `[N, H, D]`, or `out_of_heads(n)` for outputs
    of several axes.
    """

    def __init__(self, equation, output_shape, **kwargs):
        super().__init__(equation, output_shape, **kwargs)
        if equation not in (INTO_HEADS, out_of_heads(len(self.partial_output_shape) - 1)):
            raise ValueError(
                f"Expected the equation {INTO_HEADS!r} or {OUT_OF_HEADS!r}. Received: {equation!r} "
                f"with the output shape {output_shape!r}. Use keras.layers.EinsumDense."
            )
        self.supports_masking = True

    def build(self, input_shape):
        super().build(input_shape)
        # `EinsumDense` checks the rank only.
        axes = {-1: input_shape[-1]}
        self.input_spec = keras.layers.InputSpec(ndim=len(input_shape), axes=axes)

    def call(self, inputs, training=None):
        backend.check_dense(inputs, "the inputs of a projection")
        bias = None if self.bias is None else ops.convert_to_tensor(self.bias)
        kernel = ops.convert_to_tensor(self.kernel)
        x = backend.project(inputs, kernel, bias, self.num_contracted_axes)
        return x if self.activation is None else self.activation(x)

    @property
    def num_contracted_axes(self):
        """Number of axes of the kernel that are axes of the inputs: 1 into heads, otherwise 2."""
        return 1 if self.equation == INTO_HEADS else 2

    @property
    def matrix(self):
        """The kernel as a `KernelMatrix`."""
        return KernelMatrix(self)

    def load_own_variables(self, store):
        first = ops.convert_to_numpy(self.lora_kernel_a) if self.lora_enabled else None
        super().load_own_variables(store)
        if first is not None:
            # The base class sets both LoRA kernels to zeros, and their gradients are zeros then.
            self.lora_kernel_a.assign(first)

    def quantize(self, mode=None, type_check=True, config=None):
        # With `type_check=True`, the base class raises an error for subclasses.
        super().quantize(mode, type_check=False, config=config)


class KernelMatrix:
    """The kernel of a `HeadProjection` as a matrix: `[D, N·H]`, or `[N·H, D]` out of heads.

    `numpy.asarray` returns its values, including LoRA updates. `assign` changes `variable`, the
    kernel variable of rank 3 or more.
    """

    def __init__(self, projection):
        self._projection = projection
        shape, contracted = projection.kernel.shape, projection.num_contracted_axes
        self.shape = math.prod(shape[:contracted]), math.prod(shape[contracted:])

    @property
    def variable(self):
        self.check_floating()
        return kernel_variable(self._projection)

    def numpy(self):
        """Returns the matrix as an array."""
        self.check_floating()
        kernel = ops.convert_to_numpy(ops.convert_to_tensor(self._projection.kernel))
        return np.array(kernel.reshape(self.shape))

    def __array__(self, dtype=None, copy=None):
        # NumPy passes None for the default, which `astype` would take for float64.
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def assign(self, matrix):
        """Sets the kernel to a matrix of the shape `shape`."""
        if self._projection.lora_enabled:
            raise ValueError(
                f"Expected a projection without LoRA. Received: {self._projection.path} with "
                "LoRA. Assign weights before `enable_lora`."
            )
        self.variable.assign(np.reshape(matrix, self.variable.shape))

    def check_floating(self):
        """Raises ValueError if the kernel is quantized."""
        if self._projection.quantization_mode is not None:
            raise ValueError(
                "Expected a projection with a floating-point kernel. Received: "
                f"{self._projection.path}, quantized to {self._projection.quantization_mode}. "
                "Use the model as it was before `quantize`."
            )
