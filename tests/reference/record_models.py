"""Records complete Transformers of tensor2tensor 1.15.7 for the parity tests.

Run with the Python of tensor2tensor's environment (see README.md in this folder):

    T2T_PYTHON tests/reference/record_models.py [NAME …]

Trains a small model on a toy task for each case in model_cases.py, or for the named cases. Writes
the folder `models/NAME/` for each; README.md describes the files. They contain arrays and JSON, no
pickles.
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

FOLDER = pathlib.Path(__file__).parent / "models"
BEAM_SIZE, ALPHA = 4, 0.6
# Numbers of steps in addition to the padded source length: too few, about enough, more than enough.
EXTRA_STEPS = (-7, 2, 17)
EXTRA_STEPS_ALONE = 2
EOS_ID = 1


def toy_batch(case, rng, lengths):
    """Returns a batch of pairs. Each source token is translated once, twice or not at all."""
    table = np.random.default_rng(case.seed).permutation(np.arange(2, case.vocab_size))
    pairs = []
    for length in lengths:
        source = rng.integers(2, case.vocab_size, size=length)
        copies = rng.choice([0, 1, 2], p=[0.1, 0.8, 0.1], size=length)
        pairs.append((source, np.repeat(table[source - 2], copies)))
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

    Raises:
        ValueError: if a relative weight change of about 1e-6 changes an output.
    """
    options = {
        "greedy": {},
        "best": {"beam_size": BEAM_SIZE, "top_beams": 1, "alpha": ALPHA},
        "beam": {"beam_size": BEAM_SIZE, "top_beams": BEAM_SIZE, "alpha": ALPHA},
    }
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


def decode(decoder, name, inputs):
    for extra in EXTRA_STEPS:
        yield f"{name}_{extra}", *decoder(inputs, extra)
    # Decode each sentence in its own batch, without padding, so that its length sets the limit.
    for row, source in enumerate(inputs):
        single = source[None, : np.count_nonzero(source)]
        yield f"{name}_alone_{row}", *decoder(single, EXTRA_STEPS_ALONE)


def describe(case, checkpoint):
    hparams = json.loads(t2t_transformer.hparams_of(case).to_json())
    return {
        "tensor2tensor": "1.15.7",
        "checkpoint": checkpoint,
        "hparams_set": case.hparams_set,
        "overrides": case.hparams,
        "vocab_size": case.vocab_size,
        "target_space_id": case.target_space_id,
        "training_steps": case.steps,
        "beam_size": BEAM_SIZE,
        "alpha": ALPHA,
        "extra_steps": EXTRA_STEPS,
        "extra_steps_alone": EXTRA_STEPS_ALONE,
        "hparams": hparams,
    }


def record(case):
    folder = FOLDER / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    checkpoint = make_checkpoint(case, folder)
    prefix = str(folder / checkpoint)
    rng = np.random.default_rng(1000 + case.seed)
    inputs, targets = toy_batch(case, rng, (11, 3, 5, 8, 2))
    forward, gradients = t2t_transformer.forward_and_gradients(case, prefix, inputs, targets)
    np.savez_compressed(folder / "forward.npz", inputs=inputs, targets=targets, **forward)
    np.savez_compressed(folder / "gradients.npz", **gradients)
    decoded = decode_all(case, prefix, inputs)
    np.savez_compressed(folder / "decoded.npz", inputs=inputs, **decoded)
    (folder / "model.json").write_text(
        json.dumps(describe(case, checkpoint), indent=1, sort_keys=True) + "\n"
    )
    print(
        f"{case.name}: loss {forward['loss']:.3f}, best of the batch:\n{inputs}\n"
        f"{decoded['best_17_ids']}\n{decoded['beam_17_scores']}",
        flush=True,
    )


def main():
    names = sys.argv[1:] or [case.name for case in model_cases.CASES]
    unknown = set(names) - {case.name for case in model_cases.CASES}
    if unknown:
        sys.exit(f"Expected names of cases in model_cases.py. Received: {unknown}.")
    for case in model_cases.CASES:
        if case.name in names:
            record(case)


if __name__ == "__main__":
    main()
