"""Compiles a step, forward or forward and backward, on every Keras backend."""

import os

import keras
from keras import ops

from benchmarks.workers import tensorflow_with_threads


def compile_step(function, tensors, variables, *, training: bool, xla: bool):
    """Returns a function without arguments that runs one step and waits for its result.

    Args:
        function: takes `tensors` as arguments and returns the outputs.
        tensors: a list of tensors.
        variables: the Keras variables that `function` reads.
        training: whether all gradients are computed, including those of the variables.
        xla: whether TensorFlow compiles with XLA. JAX always does, PyTorch never.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return _tensorflow(function, tensors, [v.value for v in variables], training, xla)
    compile_on = {"jax": _jax, "torch": _torch}[backend]
    return compile_on(function, tensors, variables, training)


def use_one_thread():
    """Limits the backend to one thread. Call it before the first computation."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        # Every case builds a new graph; this silences TensorFlow's warning about it.
        tensorflow_with_threads(1)
    elif backend == "torch":
        import torch

        torch.set_num_threads(1)
    else:
        # JAX reads XLA_FLAGS at the first computation.
        flag = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"


def _tensorflow(function, tensors, variables, training, xla):
    import tensorflow as tf

    @tf.function(jit_compile=xla)
    def step():
        if not training:
            return [tf.reduce_sum(function(*tensors))]
        with tf.GradientTape() as tape:
            tape.watch([*tensors, *variables])
            loss = tf.reduce_sum(tf.square(function(*tensors)))
        # Return all gradients: TensorFlow prunes the computation of unused ones.
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, [*tensors, *variables])]

    return lambda: step()[0].numpy()


def _jax(function, tensors, variables, training):
    import jax

    def loss(tensors, values):
        with keras.StatelessScope(state_mapping=list(zip(variables, values))):
            outputs = function(*tensors)
        return ops.sum(ops.square(outputs)) if training else ops.sum(outputs)

    step = jax.jit(jax.grad(loss, (0, 1)) if training else loss)
    values = [v.value for v in variables]
    return lambda: jax.block_until_ready(step(tensors, values))


def _torch(function, tensors, variables, training):
    import torch

    tensors = [x.requires_grad_() for x in tensors]
    values = [*tensors, *(v.value for v in variables)]

    def step():
        if training:
            torch.autograd.grad((function(*tensors) ** 2).sum(), values)
        else:
            with torch.no_grad():
                function(*tensors).sum()
        wait_for_torch()

    return step


def wait_for_torch():
    """Waits until the kernels on the GPU have finished, if there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
