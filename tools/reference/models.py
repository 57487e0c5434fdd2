"""Records complete Transformers of tensor2tensor 1.15.7 for the parity tests.

Trains a small model on a toy task for each case in model_cases.py, or for the cases that the
arguments name. Writes the folder `models/NAME/` for each.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

import model_cases
import numpy as np
import t2t_transformer
from shared import FOLDER, save_arrays

BEAM_SIZE, ALPHA = 4, 0.6
# Numbers of steps in addition to the padded source length: too few, about enough, more than enough.
EXTRA_STEPS = (-7, 2, 17)
EXTRA_STEPS_ALONE = 2
EOS_ID = 1
# For language models: lengths of prompts, and numbers of steps after the prompt.
PROMPT_LENGTHS = (0, 1, 4)
CONTINUATIONS = (3, 17)
REPETITIONS = 3


def toy_batch(case, rng, lengths):
    """Returns a batch of the toy task, a dict of ids by feature."""
    task = repeated_motifs if case.language_model else translations
    return dict(zip(case.features, task(case, rng, lengths)))


def repeated_motifs(case, rng, lengths):
    """Yields the targets: each text is three times the same motif, shorter for some texts."""
    end = case.num_used_ids or case.vocab_size
    motifs = [rng.integers(2, end, size=1 + length // 3) for length in lengths]
    yield pad([[*np.tile(motif, REPETITIONS), EOS_ID] for motif in motifs])


def prompts(case, rng):
    """Returns five prompts, two repetitions of a motif each, without EOS."""
    end = case.num_used_ids or case.vocab_size
    return np.tile(rng.integers(2, end, size=(5, 3)), 2).astype("int32")


def translations(case, rng, lengths):
    """Returns inputs and targets. Each source token is translated once, twice or not at all."""
    table = np.random.default_rng(case.seed).permutation(np.arange(2, case.vocab_size))
    pairs = []
    for length in lengths:
        source = rng.integers(2, case.source_vocab_size or case.vocab_size, size=length)
        copies = rng.choice([0, 1, 2], p=[0.1, 0.8, 0.1], size=length)
        pairs.append((source, np.repeat(table[(source - 2) % len(table)], copies)))
    return tuple(pad([side + [EOS_ID] for side in map(list, sides)]) for sides in zip(*pairs))


def pad(rows):
    width = max(map(len, rows))
    return np.array([row + [0] * (width - len(row)) for row in rows], np.int32)


def training_batches(case):
    rng = np.random.default_rng(case.seed)
    for _ in range(case.steps):
        yield toy_batch(case, rng, rng.integers(2, 12, size=32))


def make_checkpoint(case, folder):
    """Trains a model and writes one checkpoint to `folder`. Returns its name."""
    with tempfile.TemporaryDirectory() as scratch:
        save_at = {case.steps - 20, case.steps - 10, case.steps} if case.averaged else {case.steps}
        prefixes = t2t_transformer.train(case, training_batches(case), scratch, save_at)
        prefix = prefixes[0]
        if case.averaged:
            prefix = t2t_transformer.average(prefixes, scratch)
        for path in pathlib.Path(scratch).glob(os.path.basename(prefix) + ".*"):
            shutil.move(path, folder / path.name)
    return os.path.basename(prefix)


def decode_all(case, prefix, inputs):
    """Returns greedy and beam results.

    Args:
        case: a ModelCase.
        prefix: prefix of the checkpoint's files.
        inputs: source ids, or the prompts of a language model.

    Raises:
        ValueError: if a relative weight change of about 1e-6 changes an output.
    """
    options = {
        "greedy": {},
        "best": {"beam_size": BEAM_SIZE, "top_beams": 1, "alpha": ALPHA},
        "beam": {"beam_size": BEAM_SIZE, "top_beams": BEAM_SIZE, "alpha": ALPHA},
    }
    if not has_beam_search(case):
        options = {"greedy": {}}
    decode = continue_prompts if case.language_model else translate
    record = {}
    for name, arguments in options.items():
        decoder = t2t_transformer.Decoder(case, prefix, **arguments)
        results = list(decode(decoder, name, inputs))
        decoder.nudge_weights()
        nudged = list(decode(decoder, name, inputs))
        decoder.close()
        for (key, ids, scores), (_, nudged_ids, nudged_scores) in zip(results, nudged):
            if ids.shape != nudged_ids.shape or (ids != nudged_ids).any():
                raise ValueError(
                    f"{case.name} {key} depends on rounding errors: "
                    "choose another seed for this case."
                )
            record[f"{key}_ids"] = ids
            if scores is not None:
                record[f"{key}_scores"] = scores
                np.testing.assert_allclose(scores, nudged_scores, atol=1e-4)
    return record


def has_beam_search(case):
    """Returns whether the beam search of tensor2tensor runs. For relative_v2, it needs inputs."""
    return case.hparams.get("self_attention_type") != "dot_product_relative_v2"


def continue_prompts(decoder, name, prompts):
    if name != "greedy":
        # tensor2tensor confuses the prompts of a batch. Beams are comparable without prompt only.
        for extra in CONTINUATIONS:
            yield f"{name}_0_{extra}", *decoder(prompts[:1, :0], extra)
        return
    for length in PROMPT_LENGTHS:
        for extra in CONTINUATIONS:
            yield f"{name}_{length}_{extra}", *decoder(prompts[:, :length], extra)
    for row in range(len(prompts)):
        yield f"{name}_alone_{row}", *decoder(prompts[row : row + 1, : row + 1], max(CONTINUATIONS))


def translate(decoder, name, inputs):
    for extra in EXTRA_STEPS:
        yield f"{name}_{extra}", *decoder(inputs, extra)
    # Decode each sentence in its own batch, without padding, so that its length sets the limit.
    for row, source in enumerate(inputs):
        single = source[None, : np.count_nonzero(source)]
        yield f"{name}_alone_{row}", *decoder(single, EXTRA_STEPS_ALONE)


def describe(case, checkpoint):
    hparams = json.loads(t2t_transformer.hparams_of(case).to_json())
    if case.language_model:
        decoding = {"prompt_lengths": PROMPT_LENGTHS, "continuations": CONTINUATIONS}
    else:
        decoding = {"extra_steps": EXTRA_STEPS, "extra_steps_alone": EXTRA_STEPS_ALONE}
    return {
        "tensor2tensor": "1.15.7",
        "checkpoint": checkpoint,
        "hparams_set": case.hparams_set,
        "overrides": case.hparams,
        "vocab_size": case.vocab_size,
        "source_vocab_size": case.source_vocab_size,
        "target_space_id": case.target_space_id,
        "training_steps": case.steps,
        "beam_size": BEAM_SIZE,
        "alpha": ALPHA,
        "hparams": hparams,
        **decoding,
    }


def record_case(case):
    folder = FOLDER / "models" / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    checkpoint = make_checkpoint(case, folder)
    prefix = str(folder / checkpoint)
    rng = np.random.default_rng(1000 + case.seed)
    batch = toy_batch(case, rng, (11, 3, 5, 8, 2))
    forward, gradients = t2t_transformer.forward_and_gradients(case, prefix, batch)
    save_arrays(f"models/{case.name}/forward", {**batch, **forward})
    save_arrays(f"models/{case.name}/gradients", gradients)
    (folder / "model.json").write_text(
        json.dumps(describe(case, checkpoint), indent=1, sort_keys=True) + "\n"
    )
    print(f"{case.name}: loss {forward['loss']:.3f}", flush=True)
    if case.hparams.get("weight_dtype") == "bfloat16":
        save_arrays(f"models/{case.name}/weights", t2t_transformer.decoded_weights(prefix))
    if case.decoded:
        inputs = prompts(case, rng) if case.language_model else batch["inputs"]
        decoded = decode_all(case, prefix, inputs)
        save_arrays(f"models/{case.name}/decoded", {"inputs": inputs, **decoded})
        last = [key for key in decoded if key.endswith("_17_ids")][-1]
        print(f"{inputs}\n{last}:\n{decoded[last]}", flush=True)


def record(*names):
    names = names or [case.name for case in model_cases.CASES]
    unknown = set(names) - {case.name for case in model_cases.CASES}
    if unknown:
        sys.exit(f"Expected names of cases in model_cases.py. Received: {unknown}.")
    for case in model_cases.CASES:
        if case.name in names:
            record_case(case)
