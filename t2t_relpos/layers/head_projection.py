"""Projections into heads and out of them, and their kernels as matrices."""

import math

import keras
import numpy as np
from keras import ops

from t2t_relpos._keras_compat import kernel_variable

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

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers.head_projection import INTO_HEADS, HeadProjection
    >>> projection = HeadProjection(INTO_HEADS, (None, 2, 5), bias_axes="de")
    >>> tuple(projection(np.ones((3, 7, 11))).shape), tuple(projection.kernel.shape)
    ((3, 7, 2, 5), (11, 2, 5))
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
        kernel = ops.convert_to_tensor(self.kernel)
        contracted = self.num_contracted_axes
        rows = math.prod(kernel.shape[:contracted])
        outer, columns = ops.shape(inputs)[:2], kernel.shape[contracted:]
        if contracted == 2:
            inputs = ops.reshape(inputs, (*outer, rows))
        x = ops.matmul(inputs, ops.reshape(kernel, (rows, math.prod(columns))))
        if self.bias is not None:
            x = ops.add(x, ops.reshape(ops.convert_to_tensor(self.bias), (-1,)))
        if self.activation is not None:
            x = self.activation(x)
        return ops.reshape(x, (*outer, *columns)) if len(columns) > 1 else x

    @property
    def num_contracted_axes(self):
        """Number of axes of the kernel that are axes of the inputs: 1 into heads, otherwise 2."""
        return 1 if self.equation == INTO_HEADS else 2

    @property
    def matrix(self):
        """The kernel as a `KernelMatrix`."""
        return KernelMatrix(self)

    def quantize(self, mode=None, type_check=True, config=None):
        # With `type_check=True`, the base class raises an error for subclasses.
        super().quantize(mode, type_check=False, config=config)


class KernelMatrix:
    """The kernel of a `HeadProjection` as a matrix: `[D, N·H]`, or `[N·H, D]` out of heads.

    `numpy.asarray` returns its values, including LoRA updates. All code that needs projection
    kernels as matrices uses this class.

    Args:
        projection: a built `HeadProjection`.

    Attributes:
        shape: shape of the matrix.
        variable: the kernel variable, of rank 3 or more, that `assign` changes.

    Raises:
        ValueError: when a quantized kernel is read or assigned, or a LoRA kernel is assigned.
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
