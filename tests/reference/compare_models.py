"""Compares this project's models with recordings of tensor2tensor's (models/)."""

import copy

import keras
import numpy as np
import tensorflow as tf
from gradients import output_and_gradients, with_values
from measurement import Measurement, relative_error
from recorded_model import NAMES, WithoutCache, recorded_model

from t2t_relpos.decoding import BeamSampler
from t2t_relpos.t2t import t2t_weights
from t2t_relpos.t2t.weight_names import embedding_names, t2t_names
from trainer.training.label_smoothed_cross_entropy import label_smoothed_cross_entropy

LABEL_SMOOTHING = 0.1
EOS_ID = 1
# tensor2tensor's score of an empty beam.
NO_BEAM = -1e7

LIMITS = {
    "logits, real positions": 1e-5,
    "logits, padding": 1e-5,
    "loss": 1e-6,
    "loss without smoothing": 1e-6,
    "gradients": 1e-4,
    "beam ids": 0,
    "beam scores": 1e-4,
    "greedy ids": 0,
    "greedy scores": 1e-4,
    "weights that differ": 0,
    "ids, single vs. batch": 0,
    "scores, single vs. batch": 1e-4,
    "ids, cached vs. uncached": 0,
    "scores, cached vs. uncached": 1e-4,
}


def measured(case, quantity, error, count):
    return Measurement(case.name, quantity, float(error), LIMITS[quantity], int(count))


def logits_of(case, record):
    """Returns the logits of the recorded batch."""
    if case.is_language_model:
        return case.model(record["targets"], training=True)
    batch = {name: record[name] for name in ("inputs", "targets")}
    return case.model(batch, training=True)


def loss_and_gradient(logits, targets, label_smoothing):
    """Returns the trainer's loss and its gradient with respect to the logits."""
    logits, targets = tf.constant(logits), tf.constant(targets)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        # With the identity as table, the states are the logits.
        table = tf.eye(logits.shape[-1])
        losses, _ = label_smoothed_cross_entropy(targets, logits, table, label_smoothing)
        loss = tf.reduce_sum(losses) / tf.reduce_sum(tf.cast(targets != 0, tf.float32))
    return float(loss), tape.gradient(loss, logits).numpy()


def compare_forward(case):
    """Yields measurements of logits and losses."""
    record = case.recorded("forward")
    logits = keras.ops.convert_to_numpy(logits_of(case, record))
    expected, largest = record["logits"], np.abs(record["logits"]).max()
    errors = np.abs(logits - expected) / largest
    for quantity, where in (
        ("logits, real positions", record["targets"] != 0),
        ("logits, padding", record["targets"] == 0),
    ):
        yield measured(case, quantity, errors[where].max(), errors[where].size)
    for quantity, key, smoothing in (
        ("loss", "loss", LABEL_SMOOTHING),
        ("loss without smoothing", "eval_loss", 0.0),
    ):
        loss, _ = loss_and_gradient(logits, record["targets"], smoothing)
        error = abs(loss - float(record[key]))
        yield measured(case, quantity, error, 1)


def compare_gradients(case):
    """Yields the error of the gradients of all variables, relative to their largest entries."""
    record, expected = case.recorded("forward"), case.recorded("gradients")
    tables = embedding_names(case.model)
    weights = {**t2t_names(case.model), **tables}
    # Attention kernels have three axes here, and two in tensor2tensor.
    variables = {name: getattr(weight, "variable", weight) for name, weight in weights.items()}
    values = {name: keras.ops.convert_to_numpy(v) for name, v in variables.items()}

    def logits_with(values):
        ordered = [values[name] for name in variables]
        return with_values(variables.values(), ordered, lambda: logits_of(case, record))

    logits = keras.ops.convert_to_numpy(logits_of(case, record))
    _, d_logits = loss_and_gradient(logits, record["targets"], LABEL_SMOOTHING)
    _, gradients = output_and_gradients(logits_with, values, d_logits)
    for scope in tables:
        shards = sum(name.startswith(f"{scope}/weights_") for name in expected)
        expected[scope] = np.concatenate(
            [expected.pop(f"{scope}/weights_{i}") for i in range(shards)]
        )
    if expected.keys() != gradients.keys():
        raise ValueError(f"Expected gradients of {set(expected)}. Received: {set(gradients)}.")
    errors = [
        relative_error(gradient.reshape(expected[name].shape), expected[name])
        for name, gradient in gradients.items()
    ]
    yield measured(case, "gradients", max(errors), len(errors))


def searches(case, kind):
    """Yields (key in decoded.npz, inputs, maximum steps) of every recorded search of a kind."""
    inputs, settings = case.recorded("decoded")["inputs"], case.settings
    if case.is_language_model:
        for extra in settings["continuations"]:
            yield f"{kind}_0_{extra}", inputs[:1, :0], extra
        return
    for extra in settings["extra_steps"]:
        yield f"{kind}_{extra}", inputs, inputs.shape[1] + extra
    for row, source in enumerate(inputs):
        single = source[None, : np.count_nonzero(source)]
        yield f"{kind}_alone_{row}", single, single.shape[1] + settings["extra_steps_alone"]


def compare_beams(case):
    """Yields measurements of t2t-exact beam search that returns one result or all beams.

    Beams of language models have no prompt. Those with relative_v2 have no recorded beams.
    """
    record = case.recorded("decoded")
    if not any(key.startswith("beam") for key in record):
        return
    different, sentences, errors = 0, 0, []
    for kind in ("best", "beam"):
        for key, inputs, max_length in searches(case, kind):
            ids, scores = case.search(inputs, max_length, kind)
            expected, expected_scores = record[f"{key}_ids"], record[f"{key}_scores"]
            if kind == "best":
                expected, expected_scores = expected[:, None], expected_scores[:, None]
            # tensor2tensor's outputs have the length of the search. Ours have the maximum length.
            missing = max_length - expected.shape[-1]
            expected = np.pad(expected, [(0, 0), (0, 0), (0, missing)])
            different += (ids != expected).any(-1).sum()
            sentences += ids.shape[0] * ids.shape[1]
            exists = expected_scores > NO_BEAM / 2
            if (exists != (scores > NO_BEAM / 2)).any():
                raise ValueError(
                    f"{case.name} {key}: the missing beams differ from tensor2tensor's."
                )
            errors.append(np.abs(scores - expected_scores)[exists].max())
    yield measured(case, "beam ids", different, sentences)
    yield measured(case, "beam scores", max(errors), sentences)


def until_eos(ids):
    """Returns `ids` with zeros after the first end of sentence of each row."""
    ended = np.cumsum(ids == EOS_ID, axis=-1) - (ids == EOS_ID)
    return np.where(ended > 0, 0, ids)


def compare_greedy(case):
    """Yields measurements of greedy search up to the end of sentence.

    tensor2tensor returns scores only for models without relative positions.
    """
    if case.is_language_model:
        yield from compare_continuations(case)
        return
    record = case.recorded("decoded")
    different, sentences, errors = 0, 0, []
    for key, inputs, max_length in searches(case, "greedy"):
        ids, scores = case.search(inputs, max_length, "greedy")
        expected = until_eos(record[f"{key}_ids"])
        expected = np.pad(expected, [(0, 0), (0, max_length - expected.shape[-1])])
        different += (ids[:, 0] != expected).any(-1).sum()
        sentences += len(ids)
        if f"{key}_scores" in record:
            errors.append(np.abs(scores[:, 0] - record[f"{key}_scores"]).max())
    yield measured(case, "greedy ids", different, sentences)
    if errors:
        yield measured(case, "greedy scores", max(errors), sentences)


def prompts_of(case):
    """Yields (key in decoded.npz, prompts, number of steps) of each recorded continuation."""
    prompts, settings = case.recorded("decoded")["inputs"], case.settings
    for extra in settings["continuations"]:
        for length in settings["prompt_lengths"]:
            yield f"greedy_{length}_{extra}", prompts[:, :length], extra
    for row in range(len(prompts)):
        prompt = prompts[row : row + 1, : row + 1]
        yield f"greedy_alone_{row}", prompt, max(settings["continuations"])


def generate(model, prompts, sampler, max_length):
    # Compiling for each shape with XLA would take longer than all searches.
    jit_compile = keras.backend.backend() == "jax"
    return model.generate(prompts, sampler, max_length=max_length, jit_compile=jit_compile)


def compare_continuations(case):
    """Yields measurements of the continuations of prompts that `generate` finds greedily."""
    record, different, prompts = case.recorded("decoded"), 0, 0
    for key, prompt, extra in prompts_of(case):
        length = prompt.shape[1]
        ids = generate(case.model, prompt, "greedy", length + extra)
        # tensor2tensor's outputs do not contain the prompt.
        kept = (ids[:, :length] == prompt).all(-1)
        expected = until_eos(record[f"{key}_ids"])
        expected = np.pad(expected, [(0, 0), (0, extra - expected.shape[-1])])
        different += (~kept | (ids[:, length:] != expected).any(-1)).sum()
        prompts += len(prompt)
    yield measured(case, "greedy ids", different, prompts)


def compare_caches(case):
    """Yields differences between beam search with caches and with the whole model in each step."""
    if not case.is_language_model:
        return
    uncached = copy.copy(case)
    uncached.model = WithoutCache(case.model)
    settings, prompts = case.settings, case.recorded("decoded")["inputs"]
    beams, max_length = settings["beam_size"], prompts.shape[1] + max(settings["continuations"])
    sampler = BeamSampler(num_beams=beams, alpha=settings["alpha"], num_results=beams)
    ids, scores = case.search(prompts, max_length, "continuations")
    expected, expected_scores = uncached.search(prompts, max_length, "continuations")
    generated = generate(case.model, prompts, sampler, max_length)
    different = ((ids != expected) | (generated != expected)).any(-1)
    yield measured(case, "ids, cached vs. uncached", different.sum(), different.size)
    error = np.abs(scores - expected_scores).max()
    yield measured(case, "scores, cached vs. uncached", error, scores.size)


def compare_batches(case):
    """Yields differences between default beam search in a batch of one and in a larger batch."""
    if case.is_language_model:
        return
    inputs, settings = case.recorded("decoded")["inputs"], case.settings
    different, errors = 0, []
    for extra in (settings["extra_steps_alone"], max(settings["extra_steps"])):
        limits = np.count_nonzero(inputs, axis=1) + extra
        together = case.search(inputs, limits.max(), "default", limits)
        for row, source in enumerate(inputs):
            single = source[None, : np.count_nonzero(source)]
            ids, scores = case.search(single, limits[row], "default", limits[row : row + 1])
            padded = np.pad(ids[0], [(0, 0), (0, limits.max() - limits[row])])
            different += (padded != together[0][row]).any()
            errors.append(np.abs(scores[0] - together[1][row]).max())
    yield measured(case, "ids, single vs. batch", different, len(errors))
    yield measured(case, "scores, single vs. batch", max(errors), len(errors))


def compare_weights(case):
    """Yields the number of exported weights that differ from the checkpoint in any bit."""
    exported = t2t_weights(case.model, case.num_shards)
    expected = case.weights()
    different = sum(
        array.dtype != expected[name].dtype or array.tobytes() != expected[name].tobytes()
        for name, array in exported.items()
    )
    yield measured(case, "weights that differ", different, len(exported))


COMPARISONS = (compare_forward, compare_gradients, compare_weights)
SEARCHES = (compare_beams, compare_greedy, compare_batches, compare_caches)


def measurements():
    """Yields all measurements of all recorded models."""
    for name in NAMES:
        case = recorded_model(name)
        for compare in (*COMPARISONS, *(SEARCHES if case.is_decoded else ())):
            yield from compare(case)
