"""Greedy longest match as TensorFlow ops: words to the ids of the longest subtokens that they
begin with, again and again.

tensorflow_text has WordPiece for this, but none of it takes every vocabulary: the fast one stops at
subtokens of 256 bytes and at NUL, the other one needs a resource and, in long words, time.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

# Code points have 21 bits.
_CHARACTER_BITS = 21


class LongestMatch:
    """Cuts words into subtokens, from the front, always the longest that fits.

    All characters of all words are looked at side by side: first the longest subtoken at every
    character, going down a trie once for all; then, from the words' first characters on, where one
    subtoken's end is the next one's beginning.

    Args:
        ids: the id of every subtoken; none is empty.

    Example:

    >>> match = LongestMatch({"a": 2, "b": 3, "ab": 4, "abab": 5})
    >>> match(tf.constant(["abaab", "", "abababb"])).to_list()
    [[4, 2, 4], [], [5, 4, 3]]
    """

    def __init__(self, ids: Mapping[str, int]):
        children, node_ids = _trie(ids)
        self._edges = np.array(sorted(children), np.int64)
        self._children = np.array([children[edge] for edge in sorted(children)], np.int64)
        self._node_ids = np.array(node_ids, np.int32)

    def __call__(self, words: tf.Tensor) -> tf.RaggedTensor:
        """The ids of words.

        Args:
            words: string `[W]`, UTF-8.

        Returns:
            int32 RaggedTensor `[W, (ids)]`; a character that no subtoken begins with is -1.
        """
        characters = tf.strings.unicode_decode(words, "UTF-8")
        place = tf.range(tf.size(characters.values), dtype=tf.int64)
        word = characters.value_rowids()
        left = tf.gather(characters.row_limits(), word) - place
        lengths, ids = self._longest_everywhere(tf.cast(characters.values, tf.int64), left)
        begins = _reached(place == tf.gather(characters.row_starts(), word), place + lengths, left)
        return tf.RaggedTensor.from_value_rowids(
            tf.boolean_mask(ids, begins),
            tf.boolean_mask(word, begins),
            characters.nrows(),
            validate=False,
        )

    def _longest_everywhere(self, characters, left):
        """Length and id of the longest subtoken at every character, `left` characters before its
        word's end: `[n]` each.
        """

        def step(depth, place, node, lengths, ids):
            edge = _edge(node, tf.gather(characters, place + depth))
            found = tf.minimum(tf.searchsorted(self._edges, edge), len(self._edges) - 1)
            alive = tf.gather(self._edges, found) == edge
            place, node = (
                tf.boolean_mask(place, alive),
                tf.gather(self._children, tf.boolean_mask(found, alive)),
            )
            depth += 1
            node_ids = tf.gather(self._node_ids, node)
            ends = node_ids >= 0
            matched = tf.boolean_mask(place, ends)[:, None]
            lengths = tf.tensor_scatter_nd_update(
                lengths, matched, tf.fill(tf.shape(matched)[:1], depth)
            )
            ids = tf.tensor_scatter_nd_update(ids, matched, tf.boolean_mask(node_ids, ends))
            goes_on = tf.gather(left, place) > depth
            return (
                depth,
                tf.boolean_mask(place, goes_on),
                tf.boolean_mask(node, goes_on),
                lengths,
                ids,
            )

        size = tf.size(characters)
        place = tf.range(tf.cast(size, tf.int64))
        state = (
            tf.constant(0, tf.int64),
            place,
            tf.zeros_like(place),
            tf.ones_like(place),
            tf.fill([size], -1),
        )
        *_, lengths, ids = tf.while_loop(
            lambda depth, place, *_: tf.size(place) > 0,
            step,
            state,
            shape_invariants=_growing(state),
        )
        return lengths, ids


def _reached(begins, following, left):
    """Which characters a subtoken begins at: the words' first, and from each such one the
    `following`. Bool `[n]`.

    After round r the first 2^r subtokens of every word are known, so that rounds number the
    logarithm of the longest word.
    """

    def double(known, begins, following):
        targets = tf.boolean_mask(following, begins)[:, None]
        begins = tf.tensor_scatter_nd_update(
            begins, targets, tf.ones(tf.shape(targets)[:1], tf.bool)
        )
        return known * 2, begins, tf.gather(following, following)

    # One place after the last: where the last word's subtokens lead to. Word ends lead to the next
    # word's beginning.
    end = tf.size(following, tf.int64)[None]
    state = (
        tf.constant(1, tf.int64),
        tf.concat([begins, [False]], 0),
        tf.concat([following, end], 0),
    )
    longest = tf.reduce_max(left)
    _, begins, _ = tf.while_loop(
        lambda known, *_: known < longest, double, state, shape_invariants=_growing(state)
    )
    return begins[:-1]


def _growing(state):
    return tuple(tf.TensorShape([None] * tensor.shape.rank) for tensor in state)


def _edge(node, character):
    return node * (1 << _CHARACTER_BITS) + character


def _trie(ids):
    """(node, character) -> node, and the id of the subtoken that each node ends, or -1.

    The root is node 0.
    """
    children, node_ids = {}, [-1]
    for subtoken, subtoken_id in ids.items():
        node = 0
        for character in subtoken:
            edge = _edge(node, ord(character))
            if edge not in children:
                children[edge] = len(node_ids)
                node_ids.append(-1)
            node = children[edge]
        node_ids[node] = subtoken_id
    return children, node_ids
