"""Training, dev and test examples from the source code of the Python standard library."""

import collections
import hashlib
import pathlib
import random
import sysconfig
import warnings

import keras
import numpy as np

from examples.python_trees import graphs

SPLITS = ("train", "dev", "test")
# Ids of names: 0 is padding. Variables follow, then the frequent names of the training set.
UNKNOWN, HOLE_ID, NAMELESS, FIRST_VARIABLE = 1, 2, 3, 4
FIRST_WORD = FIRST_VARIABLE + graphs.MAX_VARIABLES
FIRST_IDS = {"kinds": 2, "roles": 2, "names": FIRST_WORD}
_EXCLUDED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


def assign_split(module):
    """Returns the split of a module by a hash of its path: 80 % train, 10 % dev, 10 % test."""
    digit = int(hashlib.sha256(module.encode()).hexdigest(), 16) % 10
    return {0: "dev", 1: "test"}.get(digit, "train")


def read_examples(folder=None, max_nodes=64, max_holes=4):
    """Returns {split: examples} from the functions of at most `max_nodes` nodes in a folder.

    Functions that differ from an earlier one only in the names of the function and of its variables
    are skipped, so the splits share no function. The default folder is the standard library of the
    running Python, without its tests. `max_holes` examples per function are chosen at random.
    """
    folder = pathlib.Path(folder or sysconfig.get_path("stdlib"))
    splits, known = {split: [] for split in SPLITS}, set()
    for path in sorted(folder.rglob("*.py")):
        module = path.relative_to(folder)
        if _EXCLUDED_FOLDERS & set(module.parts):
            continue
        rng = random.Random(f"0 {module.as_posix()}")
        for tree in _read_trees(path):
            if len(tree.kinds) <= max_nodes and tree[:4] not in known:
                known.add(tree[:4])
                examples = graphs.make_examples(tree, rng)
                chosen = rng.sample(examples, min(max_holes, len(examples)))
                splits[assign_split(module.as_posix())] += chosen
    return splits


def _read_trees(path):
    with warnings.catch_warnings():
        # Old files contain invalid escape sequences.
        warnings.simplefilter("ignore")
        try:
            return [graphs.make_tree(node) for node in graphs.find_functions(path.read_bytes())]
        except (SyntaxError, ValueError):
            # Some files are templates or have another encoding.
            return []


def make_vocabulary(examples, min_count=5, size=2000):
    """Returns {"kinds", "roles", "names": {word: id}} of words in `min_count` or more examples."""
    vocabulary = {}
    for field, first in FIRST_IDS.items():
        counts = collections.Counter()
        for example in examples:
            counts.update(set(getattr(example, field)) - {"", graphs.HOLE})
        words = sorted((-count, word) for word, count in counts.items() if count >= min_count)
        vocabulary[field] = {word: first + i for i, (_, word) in enumerate(words[:size])}
    return vocabulary


class Batches(keras.utils.PyDataset):
    """Batches of functions of similar size: pairs (inputs, answers) from `make_batch`.

    With a seed, the order and the numbers of the variables change in every epoch, so that a model
    can't learn anything about a particular number. Without, the order is fixed.
    """

    def __init__(self, examples, vocabulary, batch_size, *, edges=True, seed=None):
        super().__init__()
        self.examples, self.vocabulary, self.batch_size = examples, vocabulary, batch_size
        self.edges = edges
        self.rng = None if seed is None else np.random.default_rng(seed)
        self.on_epoch_end()

    def on_epoch_end(self):
        sizes = np.array([len(example.kinds) for example in self.examples])
        if self.rng is not None:
            # Functions of slightly different sizes share batches, which differ between epochs.
            sizes += self.rng.integers(0, 8, len(sizes))
        order, size = np.argsort(sizes, kind="stable"), self.batch_size
        self.batches = [order[i : i + size] for i in range(0, len(order), size)]
        if self.rng is not None:
            self.batches = [self.batches[i] for i in self.rng.permutation(len(self.batches))]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        examples = [self.examples[i] for i in self.batches[index]]
        inputs, answers = make_batch(examples, self.vocabulary, edges=self.edges)
        if self.rng is not None:
            answers = permute_variables(inputs["names"], answers, self.rng)
        return inputs, answers


def make_batch(examples, vocabulary, *, edges=True):
    """Returns (inputs, answers), padded to the largest function.

    The inputs are a dict of int32 "kinds", "roles", "names" `[B, T]`, padded with 0, and with
    `edges` int8 "tree_labels", "name_labels" `[B, T, T]`, padded with -1. Answers are int32 `[B]`.
    """
    shape = len(examples), max(len(example.kinds) for example in examples)
    batch = {field: np.zeros(shape, np.int32) for field in vocabulary}
    if edges:
        labels = np.full((2, *shape, shape[1]), graphs.NO_EDGE, np.int8)
        batch |= {"tree_labels": labels[0], "name_labels": labels[1]}
    names = vocabulary["names"] | {graphs.HOLE: HOLE_ID, "": NAMELESS}
    for i, example in enumerate(examples):
        size = len(example.kinds)
        for field, ids in (vocabulary | {"names": names}).items():
            batch[field][i, :size] = [ids.get(word, UNKNOWN) for word in getattr(example, field)]
        variables = np.array(example.variables)
        np.copyto(batch["names"][i, :size], FIRST_VARIABLE + variables, where=variables >= 0)
        if edges:
            labels[0, i, :size, :size] = graphs.label_tree_edges(example.parents)
            labels[1, i, :size, :size] = graphs.label_name_edges(example.variables, example.hole)
    return batch, np.array([example.answer for example in examples], np.int32)


def permute_variables(names, answers, rng):
    """Renumbers variables at random, in `names` `[B, T]` in place, and returns the new answers."""
    numbers = np.tile(np.arange(graphs.MAX_VARIABLES, dtype=np.int32), (len(names), 1))
    numbers = rng.permuted(numbers, axis=1)
    examples, nodes = np.nonzero((names >= FIRST_VARIABLE) & (names < FIRST_WORD))
    names[examples, nodes] = (
        FIRST_VARIABLE + numbers[examples, names[examples, nodes] - FIRST_VARIABLE]
    )
    return numbers[np.arange(len(answers)), answers]
