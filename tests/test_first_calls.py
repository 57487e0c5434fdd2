"""Calls every public name as its documentation does first, with default arguments.

The lengths are those of the README. Values are compared with the definitions in NumPy.
"""

import functools
import importlib
import json
import pkgutil
import re
import shlex
import shutil
import subprocess

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from critical_lengths import SEARCH_LENGTHS, attention_lengths
from definition import (
    array,
    attend,
    attention_layer,
    best_output,
    block,
    clipped,
    distances,
    embed,
    feed_forward,
    logits_of_language_model,
    logits_of_transformer,
    relative_attention,
    softmax,
    unclipped,
    with_residual,
)
from keras import ops
from subprocesses import environment, python_command

import t2t_relpos
from t2t_relpos import attention, decoding, layers, models, t2t
from t2t_relpos.attention import dispatch

SHORT, LONG = 64, 1000
HEADS, DEPTH, WIDTH, K, VOCAB = 2, 4, 8, 16, 23
TOLERANCES = {"rtol": 1e-4, "atol": 1e-4}
FIRST_CALLS = {}


def first_call(*names, lengths=(SHORT, LONG)):
    """Registers a test of the first call of these names: `test(rng)`, or `test(rng, length)`."""

    def register(test):
        FIRST_CALLS.update(dict.fromkeys(names, (test, lengths)))
        return test

    return register


# Attention.


def random_tensors(rng, length, count=3):
    return [rng.normal(size=(2, HEADS, length, DEPTH)).astype("float32") for _ in range(count)]


def random_tables(rng):
    return [rng.normal(size=(2 * K + 1, DEPTH)).astype("float32") for _ in range(2)]


def expected_attention(tensors, tables, mask=True):
    distance = distances(tensors[0].shape[2])
    return attend(*tensors, *(clipped(table, distance) for table in tables), mask=mask)


@first_call("attend", "portable")
def check_attend(rng, length):
    tensors, tables = random_tensors(rng, length), random_tables(rng)
    expected = expected_attention(tensors, tables)
    assert_all_close(attention.attend(*tensors, *tables), expected, **TOLERANCES)
    with attention.portable():
        assert_all_close(attention.attend(*tensors, *tables), expected, **TOLERANCES)


@first_call("dot_product_attention_relative", "relative_attention_inner")
def check_port(rng, length):
    tensors, tables = random_tensors(rng, length), random_tables(rng)
    found = attention.dot_product_attention_relative(*tensors, None, *tables, K)
    assert_all_close([found], [expected_attention(tensors, tables)[0]], **TOLERANCES)
    query, key, vectors = *tensors[:2], clipped(tables[0], distances(length))
    expected = query @ np.swapaxes(key, -1, -2) + np.einsum("bnth,tsh->bnts", query, vectors)
    found = attention.relative_attention_inner(query, key, vectors, True)
    assert_all_close([found], [expected], **TOLERANCES)


@first_call("explain")
def check_explain(rng, length):
    explanation = attention.explain(length)
    rows = {row.name for row in dispatch.TABLE}
    assert {explanation.chosen, *explanation.reasons} == rows
    assert str(explanation).startswith(f"{explanation.chosen}: chosen\n")
    tensors, tables = random_tensors(rng, length), random_tables(rng)
    options = {"return_weights": False, "implementation": explanation.chosen}
    found, _ = attention.attend(*tensors, *tables, **options)
    assert_all_close([found], [expected_attention(tensors, tables)[0]], **TOLERANCES)


@first_call(
    *("causal_mask", "combine_masks", "key_padding_mask", "make_attention_mask"),
    *("key_positions", "masked_softmax", "relative_ids", "relative_ids_from_positions"),
    *("relative_positions_matrix", "window_mask"),
)
def check_masks_and_ids(rng, length):
    distance = distances(length)
    ids = np.clip(distance, -K, K) + K
    is_token = np.arange(length) < rng.integers(1, length, size=(2, 1))
    scores = rng.normal(size=(2, 1, length, length)).astype("float32")
    causal, padding = attention.causal_mask(length, length), attention.key_padding_mask(is_token)
    mask = attention.combine_masks(causal, padding)
    expected_mask = (distance <= 0) & is_token[:, None, None]
    found = {
        "causal_mask": (causal, distance <= 0),
        "key_padding_mask": (padding, is_token[:, None, None]),
        "combine_masks": (mask, expected_mask),
        "make_attention_mask": (
            attention.make_attention_mask((length, length), causal=True),
            distance <= 0,
        ),
        "window_mask": (attention.window_mask(length, length, 3), np.abs(distance) < 3),
        "key_positions": (attention.key_positions(length, length), np.arange(length)),
        "relative_ids": (attention.relative_ids(length, length, K), ids),
        "relative_ids_from_positions": (
            attention.relative_ids_from_positions(np.arange(length), np.arange(length), K),
            ids,
        ),
        "relative_positions_matrix": (attention.relative_positions_matrix(length, length, K), ids),
        "masked_softmax": (
            attention.masked_softmax(scores, mask),
            softmax(np.where(expected_mask, scores, -np.inf)),
        ),
    }
    for name, (values, expected) in found.items():
        message = f"{name} of {length}"
        np.testing.assert_allclose(array(values), expected, atol=1e-6, err_msg=message)


# Layers.


def sequence(rng, length):
    return rng.normal(size=(2, length, WIDTH)).astype("float32")


@first_call("RelativeMultiHeadAttention")
def check_relative_layer(rng, length):
    layer, x = (
        layers.RelativeMultiHeadAttention(HEADS, DEPTH, max_relative_position=K),
        sequence(rng, length),
    )
    assert_all_close([layer(x, x)], [relative_attention(layer, x)], **TOLERANCES)
    found = layer(x, x, use_causal_mask=True)
    assert_all_close([found], [relative_attention(layer, x, causal=True)], **TOLERANCES)


@first_call("RelativeMultiHeadAttentionV2")
def check_layer_without_clipping(rng, length):
    layer, x = (
        layers.RelativeMultiHeadAttentionV2(HEADS, DEPTH, max_relative_position=K),
        sequence(rng, length),
    )
    assert_all_close([layer(x, x)], [relative_attention(layer, x)], **TOLERANCES)


@first_call("RelativeMultiHeadAttention2D")
def check_layer_of_images(rng, length):
    layer = layers.RelativeMultiHeadAttention2D(HEADS, DEPTH, max_relative_position=3)
    height = {SHORT: 8, LONG: 25}[length]
    image = sequence(rng, length).reshape(2, height, length // height, WIDTH)
    found = layer(image, image)
    row, column = np.divmod(np.arange(length), length // height)
    vectors = unclipped(array(layer.height_embedding), row - row[:, None])
    vectors = vectors + unclipped(array(layer.width_embedding), column - column[:, None])
    x = image.reshape(2, length, WIDTH)
    expected = attention_layer(layer, x, x, vectors).reshape(image.shape)
    assert_all_close([found], [expected], **TOLERANCES)


@first_call("LocalRelativeMultiHeadAttention")
def check_local_layer(rng, length):
    layer, x = layers.LocalRelativeMultiHeadAttention(HEADS, DEPTH), sequence(rng, length)
    found = layer(x, x)
    distance, block_number = distances(length), np.arange(length) // 128
    # The last row belongs to distance 0.
    vectors = array(layer.key_embedding)[:, np.clip(distance, -255, 0) - 1]
    mask = (distance <= 0) & (block_number >= block_number[:, None] - 1)
    assert_all_close([found], [attention_layer(layer, x, x, vectors, mask=mask)], **TOLERANCES)


@first_call("RelationMultiHeadAttention")
def check_relation_layer(rng, length):
    layer = layers.RelationMultiHeadAttention(HEADS, DEPTH, num_relations=3)
    x, relations = sequence(rng, length), rng.integers(-1, 3, size=(2, length, length))
    found = layer(x, x, relations=relations)
    # Label -1 is the absence of an edge, which has no vector.
    vectors = (
        np.pad(array(table), [(0, 1), (0, 0)])[relations][:, None]
        for table in (*layer.key_tables, *layer.value_tables)
    )
    assert_all_close([found], [attention_layer(layer, x, x, *vectors)], **TOLERANCES)


@first_call("RelativePositionEmbedding")
def check_position_vectors(rng, length):
    for given, left in ((K, K), ((K, 7), K), ((7, K), 7)):
        layer = layers.RelativePositionEmbedding(max_relative_position=given, depth=DEPTH)
        found = layer(sequence(rng, length))
        assert_all_close([found], [clipped(array(layer.table), distances(length), left)], rtol=0)


@first_call("SinusoidalPositionEncoding")
def check_sinusoids(rng, length):
    frequencies = 10_000.0 ** -np.linspace(0, 1, WIDTH // 2)
    angles = np.arange(length)[:, None] * frequencies
    # An odd width has a column of zeros.
    signal = np.concatenate([np.sin(angles), np.cos(angles), np.zeros((length, 1))], axis=-1)
    for width in (WIDTH, WIDTH + 1):
        x = rng.normal(size=(2, length, width)).astype("float32")
        expected = x + signal[:, :width]
        assert_all_close([layers.SinusoidalPositionEncoding()(x)], [expected], atol=1e-3)


@first_call("LearnedPositionEmbedding", "FeedForward", "TransformerEncoder")
def check_layers_of_a_sequence(rng, length):
    x, with_positions = sequence(rng, length), lambda layer, x: x + array(layer.embeddings)
    for layer, expected in (
        (layers.LearnedPositionEmbedding(max_length=length), with_positions),
        (layers.FeedForward(intermediate_dim=5), feed_forward),
        (layers.TransformerEncoder(16, HEADS, max_relative_position=K), block),
    ):
        found = layer(x)
        assert_all_close([found], [expected(layer, x)], **TOLERANCES)


@first_call("TokenEmbedding")
def check_token_embedding(rng, length):
    layer, ids = layers.TokenEmbedding(VOCAB, WIDTH), rng.integers(0, VOCAB, (2, length))
    vectors = layer(ids)
    assert_all_close([vectors], [embed(layer, ids)], **TOLERANCES)
    expected = array(vectors) @ array(layer.embeddings).T
    assert_all_close([layer(vectors, reverse=True)], [expected], **TOLERANCES)


@first_call("Residual")
def check_residual(rng, length):
    layer, x = layers.Residual(), sequence(rng, length)
    found = layer(x, sublayer=ops.tanh)
    assert_all_close([found], [with_residual(layer, x, np.tanh)], **TOLERANCES)


@first_call("TransformerDecoder")
def check_decoder(rng, length):
    layer = layers.TransformerDecoder(16, HEADS, max_relative_position=K)
    x, encoded = sequence(rng, length), sequence(rng, length)
    found = layer(x, encoded)
    assert_all_close([found], [block(layer, x, encoded, causal=True)], **TOLERANCES)


@first_call("Packing")
def check_packing(rng, length):
    x, lengths = sequence(rng, length), (length, length // 2)
    mask = np.arange(length) < np.array(lengths)[:, None]
    packing = layers.Packing(mask)
    packed = packing.pack(x)
    restored = packing.unpack(packed)
    assert_all_close([packed, restored], [x[mask][None], x * mask[..., None]], rtol=0)
    layer = layers.TransformerEncoder(16, HEADS, max_relative_position=K)
    found = layer(packed, packing=packing)
    expected = [block(layer, x[i : i + 1, :end])[0] for i, end in enumerate(lengths)]
    assert_all_close([found[0]], [np.concatenate(expected)], **TOLERANCES)


# Models.


@functools.cache
def language_model():
    """Returns a language model that tests must not change."""
    keras.utils.set_random_seed(7)
    model = models.CausalLM(VOCAB, 1, WIDTH, 16, HEADS, 4)
    return _with_unlikely_ends(model, model.embedding)


@functools.cache
def transformer():
    """Returns a Transformer that tests must not change."""
    keras.utils.set_random_seed(7)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": WIDTH}
    model = models.Transformer.from_preset("tiny", vocab_size=VOCAB, **sizes)
    return _with_unlikely_ends(model, model.target_embedding)


def _with_unlikely_ends(model, embedding):
    """Enlarges the differences of logits, except those of id 1, so that outputs are long."""
    table = 3 * array(embedding.embeddings)
    table[1] /= 6
    embedding.embeddings.assign(table)
    return model


def random_ids(rng, length, rows=2):
    return rng.integers(2, VOCAB, size=(rows, length))


@first_call("CausalLM")
def check_language_model(rng, length):
    ids = random_ids(rng, length)
    found = language_model()(ids)
    assert_all_close([found], [logits_of_language_model(language_model(), ids)], **TOLERANCES)


@first_call("Transformer")
def check_transformer(rng, length):
    source, targets = random_ids(rng, length), random_ids(rng, length)
    found = transformer()({"inputs": source, "targets": targets})
    expected = logits_of_transformer(transformer(), source, targets)
    assert_all_close([found], [expected], **TOLERANCES)
    scores = transformer().score(source, targets)
    log_probs = np.log(softmax(expected))
    token_scores = np.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
    expected = [token_scores, token_scores.sum(axis=1), np.full(2, length)]
    assert_all_close(scores, expected, rtol=1e-4, atol=1e-3)


@first_call("TransformerConfig", lengths=())
def check_config(rng):
    config = models.TransformerConfig(vocab_size=VOCAB)
    assert (config.hidden_dim, config.num_heads, config.max_relative_position) == (512, 8, 16)
    assert models.TransformerConfig.from_dict(config.to_dict()) == config


@first_call("PRESETS", lengths=())
def check_presets(rng):
    for name, settings in models.PRESETS.items():
        config = models.TransformerConfig.from_preset(name, vocab_size=VOCAB)
        assert config == models.TransformerConfig(vocab_size=VOCAB, **settings), name


# Searches and samplers.


def ids_of(output):
    """Returns the ids of an output without padding, as a list."""
    output = np.asarray(output).tolist()
    return output[: output.index(1) + 1] if 1 in output else output


TABLE_OF_STEP = np.random.default_rng(3).normal(size=(VOCAB, VOCAB)).astype("float32")
TABLE_OF_STEP[:, 1] -= 3  # Outputs are long.


def run_search(search, length, **settings):
    """Returns the ids and the score of a search whose step depends on the last id only."""
    step = lambda ids, state: (ops.take(TABLE_OF_STEP, ids, axis=0), state)
    result = search(step, {"none": np.zeros((1, 1))}, 1, length, **settings)
    assert isinstance(result, decoding.DecodingResult)
    ids = ids_of(ops.convert_to_numpy(result.ids)[0, 0])
    assert ops.convert_to_numpy(result.lengths).tolist() == [[len(ids)]]
    assert not ops.convert_to_numpy(result.ids)[0, 0, len(ids) :].any()
    return ids, float(result.scores[0, 0])


def log_probs_of_step(outputs):
    return np.log(softmax(TABLE_OF_STEP[[[0, *ids][-1] for ids in outputs]].astype("float64")))


def total_of(ids):
    return sum(log_probs_of_step([ids[:i]])[0, token] for i, token in enumerate(ids))


@first_call("beam_search", "DecodingResult", "length_penalty")
def check_beam_search(rng, length):
    ids, score = run_search(decoding.beam_search, length)
    assert ids == best_output(log_probs_of_step, length)
    assert score * float(decoding.length_penalty(len(ids), 0.6)) == pytest.approx(
        total_of(ids), rel=1e-4
    )


@first_call("greedy_search")
def check_greedy_search(rng, length):
    ids, score = run_search(decoding.greedy_search, length)
    assert ids == best_output(log_probs_of_step, length, beam_size=1, alpha=0)
    assert score == pytest.approx(total_of(ids), rel=1e-4)


@first_call("sample_search")
def check_sample_search(rng, length):
    ids, score = run_search(decoding.sample_search, length, seed=3)
    assert (ids, score) == run_search(decoding.sample_search, length, seed=3)
    assert ids != run_search(decoding.sample_search, length)[0]
    assert score == pytest.approx(total_of(ids), rel=1e-4)
    ids, _ = run_search(decoding.sample_search, length, top_k=1)
    assert ids == run_search(decoding.greedy_search, length)[0]


@first_call("score_tokens", "TokenScores")
def check_score_tokens(rng, length):
    logits = rng.normal(size=(2, length, VOCAB)).astype("float32")
    ids = np.where(np.arange(length) < [[length], [7]], random_ids(rng, length), 0)
    result = decoding.score_tokens(logits, ids)
    assert isinstance(result, decoding.TokenScores)
    scores = np.take_along_axis(np.log(softmax(logits)), ids[..., None], axis=-1)[..., 0] * (
        ids > 0
    )
    assert_all_close(
        result, [scores, scores.sum(axis=1), np.array([length, 7])], rtol=1e-4, atol=1e-4
    )


def log_probs_of(model, source, max_length):
    """Returns a function of outputs: the log-probabilities of the ids that follow, in NumPy."""

    def log_probs(outputs):
        ids = np.zeros((len(outputs), max_length), "int32")
        for row, output in zip(ids, outputs):
            row[: len(output)] = output
        sources = np.repeat(source, len(outputs), axis=0)
        logits = logits_of_transformer(model, sources, ids)
        positions = [len(output) for output in outputs]
        return np.log(softmax(logits[range(len(outputs)), positions]))

    return log_probs


def ranks(model, source, output):
    """Returns how many ids are more likely than each id of an output."""
    targets = np.array([output])
    is_transformer = isinstance(model, models.Transformer)
    logits = array(model({"inputs": source, "targets": targets} if is_transformer else targets))[0]
    logits[:, 0] = -np.inf
    return (logits > np.take_along_axis(logits, targets.T, axis=1)).sum(axis=1)


@pytest.mark.usefixtures("eager_searches")
def test_generate_of_a_transformer_without_arguments(rng):
    source = random_ids(rng, 3, rows=1)
    (output,) = transformer().generate(source)
    assert output.shape == (53,)
    assert ids_of(output) == best_output(log_probs_of(transformer(), source, 53), 53)


@pytest.mark.usefixtures("eager_searches")
def test_generate_of_a_language_model_without_arguments(rng):
    prompt = random_ids(rng, 3, rows=1)
    (output,) = language_model().generate(prompt)
    assert output.shape == (53,)
    assert output[:3].tolist() == prompt[0].tolist()
    assert not ranks(language_model(), prompt, ids_of(output))[3:].any()


LARGEST_RANK = {"BeamSampler": VOCAB, "GreedySampler": 0, "TopKSampler": 4, "TopPSampler": VOCAB}


@first_call(*LARGEST_RANK, lengths=())
def check_samplers(rng):
    source = random_ids(rng, 3, rows=1)
    found = {}
    for name, largest_rank in LARGEST_RANK.items():
        sampler = getattr(decoding, name)()
        found[name] = ids_of(transformer().generate(source, sampler=sampler, max_length=8)[0])
        assert ranks(transformer(), source, found[name]).max() <= largest_rank, name
    log_probs = log_probs_of(transformer(), source, 8)
    assert found["BeamSampler"] == best_output(log_probs, 8)


@first_call("Sampler", lengths=())
def check_custom_sampler(rng):
    class ShortSampler(decoding.Sampler):
        def search(self, step, state, batch_size, max_length, *arguments, **settings):
            return decoding.greedy_search(step, state, batch_size, 2)

    source = random_ids(rng, 3, rows=1)
    found = transformer().generate(source, sampler=ShortSampler(), max_length=4)
    log_probs = log_probs_of(transformer(), source, 4)
    assert ids_of(found[0]) == best_output(log_probs, 2, beam_size=1, alpha=0)


# tensor2tensor.


@first_call("SETS", "parse_hparams", lengths=())
def check_hparams(rng):
    for name, settings in t2t.SETS.items():
        hparams = t2t.parse_hparams(name)
        assert {key: hparams[key] for key in settings} == settings, name


@first_call(
    *("config_from_hparams", "t2t_weights", "load_t2t_weights", "is_language_model"),
    lengths=(SHORT,),
)
def check_weights(rng, length):
    hparams = t2t.parse_hparams("transformer_relative_tiny", "hidden_size=8,num_hidden_layers=1")
    config = t2t.config_from_hparams(hparams, vocab_size=VOCAB)
    first, second = models.Transformer(config), models.Transformer(config)
    arrays = t2t.t2t_weights(first)
    assert not t2t.is_language_model(arrays)
    shards = [arrays[f"transformer/symbol_modality_23_8/shared/weights_{i}"] for i in range(16)]
    np.testing.assert_array_equal(np.concatenate(shards), array(first.source_embedding.embeddings))
    t2t.load_t2t_weights(second, arrays)
    ids = {"inputs": random_ids(rng, length), "targets": random_ids(rng, length)}
    assert_all_close([second(ids)], [first(ids)], rtol=0)


@first_call("decode_eighth_power", lengths=())
def check_eighth_powers(rng):
    weights = rng.uniform(-1, 1, size=100)
    found = t2t.decode_eighth_power(np.sign(weights) * (128 * np.abs(weights)) ** 8)
    np.testing.assert_allclose(found, weights, rtol=1e-5)


# The tests.


SEARCHES = check_beam_search, check_greedy_search, check_sample_search


def parameters():
    for test, lengths in dict(FIRST_CALLS.values()).items():
        for length in lengths or [None]:
            marks = [pytest.mark.slow] if length == LONG and test in SEARCHES else []
            name = test.__name__.removeprefix("check_")
            yield pytest.param(test, length, marks=marks, id=f"{name}-{length}" if length else name)


@pytest.mark.usefixtures("eager_searches")
@pytest.mark.parametrize(("test", "length"), [*parameters()])
def test_first_call_equals_numpy(test, length, rng):
    test(rng, *([] if length is None else [length]))


def test_every_public_name_has_a_first_call():
    folders = [each.name for each in pkgutil.iter_modules(t2t_relpos.__path__) if each.ispkg]
    modules = [importlib.import_module(f"t2t_relpos.{folder}") for folder in folders]
    public = {name for module in (t2t_relpos, *modules) for name in getattr(module, "__all__", ())}
    assert set(FIRST_CALLS) == public


def implementation(length, *, causal):
    return attention.explain(length, causal=causal, key_dim=DEPTH).chosen


@pytest.mark.parametrize("causal", [False, True])
def test_attention_where_the_implementation_changes(causal, rng, run_log):
    """The lengths are found here, because all processes that collect tests would find them."""
    lengths = attention_lengths(causal=causal)
    for length in lengths:
        tensors, tables = random_tensors(rng, length), random_tables(rng)
        found, _ = attention.attend(*tensors, *tables, causal=causal, return_weights=False)
        mask = distances(length) <= 0 if causal else True
        expected = expected_attention(tensors, tables, mask)[0]
        assert_all_close([found], [expected], **TOLERANCES)
    assert run_log == [implementation(length, causal=causal) for length in lengths]


def test_beam_search_where_loops_begin():
    ids, _ = run_search(decoding.beam_search, SEARCH_LENGTHS[-1])
    assert ids == best_output(log_probs_of_step, SEARCH_LENGTHS[-1])


# Programs.

# The first command of each program's help, with these flags for a small corpus and few steps.
ADDED_FLAGS = {
    "train": "--vocab_size=200 --batch_tokens=256 --train_steps=20 --checkpoint_every=1 "
    "--keep_checkpoints=20",
    "average": "",
    "evaluate": "",
    "export": "",
    "translate": "",
    "export_ctranslate2": "",
    "visualize": "",
    "import_t2t": "--hparams=hidden_size=8,num_hidden_layers=1",
}


def first_command(program):
    """Returns the first command of a program's docstring, which `--help` prints."""
    text = importlib.import_module(f"trainer.{program}").__doc__.replace("\\\n", " ")
    (command,) = re.findall(r"^    python (-m trainer\..*)$", text, re.MULTILINE)[:1]
    return " ".join(command.split())


# Runs programs one after the other, each as `python -m` does.
RUN_PROGRAMS = """
import json, runpy, sys
from absl import app
from absl.testing import flagsaver

app.define_help_flags()  # `app.run` defines them once.
for name, *arguments in json.loads(sys.argv[1]):
    sys.argv = [name, *arguments]
    try:
        with flagsaver.flagsaver():
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as stopped:
        assert not stopped.code, (name, stopped.code)
"""


def run_first_commands(programs, folder):
    """Returns the output of the first commands of programs, run in one new process in a folder."""
    commands, streams = [], ""
    for program in programs:
        arguments, *files = re.split(r" [<>] ", first_command(program))
        commands.append(shlex.split(f"{arguments} {ADDED_FLAGS[program]}")[1:])
        streams += "".join(f" {sign} {file}" for sign, file in zip("<>", files))
    command = python_command("-c", RUN_PROGRAMS, json.dumps(commands))
    done = subprocess.run(
        ["bash", "-c", shlex.join(command) + streams],
        cwd=folder,
        env=environment(KERAS_BACKEND="tensorflow"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{programs}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def write_first_inputs(folder):
    """Writes the files that the first commands read."""
    from examples.synthetic_corpus import generate
    from trainer.import_t2t import write_checkpoint

    for name, size in (("train", 400), ("test", 5)):
        for side, lines in zip(("en", "de"), zip(*generate(name, size=size))):
            (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))
    shutil.copy(folder / "test.en", folder / "source.txt")
    subtokens = ["<pad>_", "<EOS>_", *sorted(set("\\_u;0123456789<pad>EOS"))]
    vocabulary = folder / re.search(r"--vocab=(\S+)", first_command("import_t2t"))[1]
    vocabulary.write_text("".join(f"'{each}'\n" for each in subtokens))
    overrides = ADDED_FLAGS["import_t2t"].removeprefix("--hparams=")
    hparams = t2t.parse_hparams("transformer_relative", overrides)
    model = models.Transformer(t2t.config_from_hparams(hparams, len(subtokens)))
    write_checkpoint(model, str(folder / "model.ckpt-250000"))


@pytest.mark.slow
def test_first_commands_of_programs(tf, tmp_path):
    """Tests of each program compare its results. Here, commands find what others have written."""
    write_first_inputs(tmp_path)
    run_first_commands(["train"], tmp_path)
    for name in ("NAME", "big"):
        shutil.copytree(tmp_path / "runs/first", tmp_path / "runs" / name)
    others = [name for name in ADDED_FLAGS if name not in ("train", "translate")]
    output = run_first_commands(others, tmp_path)
    run_first_commands(["translate"], tmp_path)
    assert "test chrF2 = " in output
    assert len((tmp_path / "translation.txt").read_text().splitlines()) == 5
    assert "A dog runs." in (tmp_path / "page.html").read_text()
    for name in ("runs/big-average/model.keras", "runs/imported/model.keras"):
        assert (tmp_path / name).stat().st_size > 0
    assert (tmp_path / "ctranslate2/NAME/model.bin").stat().st_size > 0
