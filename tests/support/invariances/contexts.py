"""Ways to run a call that must not change results, for `tests/test_invariances.py`.

A new one joins as a function with the decorator `context`. Each has the arguments of an `Entry` as
plain tensors, and returns results as `results.results` does. Results that a context does not have,
such as the gradients in inference, are missing.
"""

import copy
import dataclasses
import functools
import io
import pathlib
import pickle
import tempfile
import threading
from collections.abc import Callable

import keras
import numpy as np
from invariances.entries import BACKEND, ENTRIES
from invariances.results import results
from subprocesses import run_python

# `attend`, a layer and a model; on PyTorch also its module, and a replaced model.
NAMES = {
    "tensorflow": ("attend", "layer relative", "CausalLM"),
    "jax": ("attend", "layer relative", "CausalLM"),
    "torch": (
        *("attend", "attend, long", "layer relative", "w2v-BERT"),
        *("module", "from_multihead_attention"),
    ),
}[BACKEND]
CONTEXT_ENTRIES = {name: ENTRIES[name] for name in NAMES}
PROGRAM = pathlib.Path(__file__).with_name("two_replicas.py")


@dataclasses.dataclass(frozen=True)
class Context:
    """A way to run a call.

    Args:
        name: id of the context.
        run: `run(entry, subject, arguments)` returns results.
        tolerance: largest difference, relative to the largest value.
        takes_modules: whether the context changes a layer or a module, so that `attend` has none.
    """

    name: str
    run: Callable
    tolerance: float = 2e-5
    takes_modules: bool = False

    def applies(self, entry):
        """Returns whether an entry has the context."""
        return not self.takes_modules or not entry.name.startswith("attend")


CONTEXTS = {}


def context(name, **options):
    """Returns a decorator that adds a function to CONTEXTS."""

    def add(run):
        CONTEXTS[name] = Context(name, run, **options)
        return run

    return add


def wrapped(name, **options):
    """Returns a decorator for `wrap(subject, entry)`, which returns another function to call."""

    def add(wrap):
        context(name, **options)(
            lambda entry, subject, arguments: results(
                entry, subject, arguments, wrap(subject, entry)
            )
        )
        return wrap

    return add


def changed(name, **options):
    """Returns a decorator for `change(module)`, which returns the module or another one."""

    def add(change):
        def run(entry, subject, arguments):
            module = change(entry.make().module)
            return results(entry, dataclasses.replace(subject, module=module), arguments)

        context(name, takes_modules=True, **options)(run)
        return change

    return add


def transformed(name, transform, **options):
    """Adds a context: `transform` of a function of tensors, as positional arguments."""

    def wrap(subject, entry):
        def run(**arguments):
            tensors = _tensors(entry, arguments)
            numbers = {key: x for key, x in arguments.items() if key not in tensors}
            call = lambda *values: subject(**dict(zip(tensors, values)), **numbers)
            return transform(call)(*tensors.values())

        return run

    wrapped(name, **options)(wrap)


def _tensors(entry, arguments):
    return {name: x for name, x in arguments.items() if entry.kind(name) != "number"}


# Every backend


@context("second call")
def _second_call(entry, subject, arguments):
    results(entry, subject, arguments)
    return results(entry, subject, arguments)


@context("second thread")
def _second_thread(entry, subject, arguments):
    found = {}
    thread = threading.Thread(target=lambda: found.update(results(entry, subject, arguments)))
    thread.start()
    thread.join()
    return found


changed("deepcopy")(copy.deepcopy)


@changed("pickling")
def _pickled(module):
    return pickle.loads(pickle.dumps(module))


@changed("saving")
def _saved(module):
    """Returns the module after its usual way to a file and back."""
    file = io.BytesIO()
    if not isinstance(module, keras.Layer):
        import torch

        torch.save(module, file)
        file.seek(0)
        return torch.load(file, weights_only=False)
    config = keras.saving.serialize_keras_object(module)
    other = keras.saving.deserialize_keras_object(config)
    other.set_weights(module.get_weights())
    return other


if BACKEND == "tensorflow":
    import tensorflow as tf

    @wrapped("tf.function, known lengths")
    def _known_lengths(subject, entry):
        return tf.function(subject, autograph=False)

    @wrapped("tf.function, unknown lengths")
    def _unknown_lengths(subject, entry):
        def run(**arguments):
            tensors = _tensors(entry, arguments)
            specs = {
                name: tf.TensorSpec(
                    [
                        None if axis in "BTS" else size
                        for axis, size in zip(entry.axes(name), x.shape)
                    ],
                    x.dtype,
                    name=name,
                )
                for name, x in tensors.items()
            }
            call = lambda **tensors: subject(**tensors | dict(entry.numbers))
            function = tf.function(call, autograph=False).get_concrete_function(**specs)
            return function(**tensors)

        return run

    @wrapped("jit_compile")
    def _jit_compile(subject, entry):
        return tf.function(subject, autograph=False, jit_compile=True)

    transformed("recompute_grad", tf.recompute_grad)

    @functools.cache
    def _results_in_replicas():
        """Returns the results of all entries, from a process with two logical CPUs."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "results.npz")
            run_python(PROGRAM, file, *CONTEXT_ENTRIES)
            return dict(np.load(file))

    @context("MirroredStrategy")
    def _mirrored_strategy(entry, subject, arguments):
        found, prefix = _results_in_replicas(), f"{entry.name}/"
        return {key.removeprefix(prefix): x for key, x in found.items() if key.startswith(prefix)}


if BACKEND == "jax":
    import jax

    transformed("jit", jax.jit)
    transformed("checkpoint", jax.checkpoint)


if BACKEND in ("jax", "torch"):

    @wrapped("vmap")
    def _vmap(subject, entry):
        vmap = jax.vmap if BACKEND == "jax" else torch.vmap

        def run(**arguments):
            tensors = _tensors(entry, arguments)
            of_batch = {name: x for name, x in tensors.items() if "B" in entry.axes(name)}
            others = {name: x for name, x in arguments.items() if name not in of_batch}

            def one(of_entry):
                return subject(**{k: x[None] for k, x in of_entry.items()}, **others)[0]

            return vmap(one)(of_batch)

        return run


if BACKEND == "torch":
    import peft
    import torch
    from torch.nn.utils import parametrizations, prune
    from torch.utils.checkpoint import checkpoint

    def _compiled(**options):
        def wrap(subject, entry):
            torch.compiler.reset()
            return torch.compile(subject, fullgraph=True, **options)

        return wrap

    wrapped("torch.compile")(_compiled(backend="aot_eager"))
    wrapped("torch.compile, dynamic")(_compiled(backend="aot_eager", dynamic=True))
    wrapped("torch.compile, inductor")(_compiled())

    for mode in (torch.inference_mode, torch.no_grad):

        @context(mode.__name__)
        def _without_gradients(entry, subject, arguments, mode=mode):
            with mode():
                return results(entry, subject, arguments | {"cotangent": None})

    @wrapped("autocast", tolerance=0.05)
    def _autocast(subject, entry):
        def run(**arguments):
            with torch.autocast("cpu", torch.bfloat16):
                return subject(**arguments)

        return run

    for reentrant in (False, True):
        transformed(
            f"checkpoint, use_reentrant={reentrant}",
            lambda call, reentrant=reentrant: functools.partial(
                checkpoint, call, use_reentrant=reentrant
            ),
        )

    def _linear_weights(module):
        """Returns (module, name) of all matrices of a module, not those of tables."""
        return [
            (child, name)
            for child in module.modules()
            for name, weight in child.named_parameters(recurse=False)
            if weight.ndim == 2
            and "table" not in name
            and "embedding" not in type(child).__name__.lower()
        ]

    @changed("to_empty and load_state_dict")
    def _to_empty(module):
        state = {name: x.clone() for name, x in module.state_dict().items()}
        module = module.to("meta").to_empty(device="cpu")
        module.load_state_dict(state)
        return module

    @changed("frozen")
    def _frozen(module):
        if isinstance(module, keras.Layer):
            module.trainable = False
            return module
        return module.requires_grad_(False)

    @changed("pruned")
    def _pruned(module):
        for child, name in _linear_weights(module):
            prune.custom_from_mask(child, name, torch.ones_like(getattr(child, name)))
        return module

    @changed("parametrized")
    def _parametrized(module):
        for child, name in _linear_weights(module):
            parametrizations.weight_norm(child, name)
        return module

    @changed("PEFT")
    def _adapted(module):
        """A new LoRA adapter changes nothing."""
        names = [n for n, x in module.named_modules() if isinstance(x, torch.nn.Linear)]
        config = peft.LoraConfig(r=2, target_modules=names)
        return peft.get_peft_model(module, config).base_model.model
