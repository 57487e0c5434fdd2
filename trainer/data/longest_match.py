"""Splits words into subtokens by greedy longest match, with TensorFlow ops.

tensorflow_text's WordPiece ops don't accept every vocabulary. The fast one does not support
subtokens of 256 bytes or NUL characters. The other one requires a lookup resource and is slow on
long words.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

# Code points have 21 bits.
_CHARACTER_BITS = 21


class LongestMatch:
    """Splits words into subtokens from left to right, each time taking the longest match.

    All characters of all words are processed in parallel. One loop descends a trie to find the
    longest subtoken that starts at every character. A second loop marks the characters where the
    subtokens of a word start: its first character, and every character after a marked subtoken.

    Args:
        ids: ids by subtoken. Subtokens must not be empty.

    Example:

    >>> match = LongestMatch({"a": 2, "b": 3, "ab": 4, "abab": 5})
    >>> match(tf.constant(["abaab", "", "abababb"])).to_list()
    [[4, 2, 4], [], [5, 4, 3]]
    """

    def __init__(self, ids: Mapping[str, int]):
        children, node_ids = _make_trie(ids)
        self._edges = np.array(sorted(children), np.int64)
        self._children = np.array([children[edge] for edge in sorted(children)], np.int64)
        self._node_ids = np.array(node_ids, np.int32)

    def __call__(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of words.

        Args:
            words: string `[W]`, UTF-8.

        Returns:
            int32 RaggedTensor `[W, (ids)]`. A character at which no subtoken starts has the id -1.
        """
        characters = tf.strings.unicode_decode(words, "UTF-8")
        position = tf.range(tf.size(characters.values), dtype=tf.int64)
        word = characters.value_rowids()
        remaining = tf.gather(characters.row_limits(), word) - position
        lengths, ids = self._longest_matches(tf.cast(characters.values, tf.int64), remaining)
        is_first = position == tf.gather(characters.row_starts(), word)
        is_start = _mark_starts(is_first, position + lengths, tf.reduce_max(remaining))
        return tf.RaggedTensor.from_value_rowids(
            tf.boolean_mask(ids, is_start),
            tf.boolean_mask(word, is_start),
            characters.nrows(),
            validate=False,
        )

    def _longest_matches(self, characters, remaining):
        """Returns length and id of the longest subtoken that starts at every character, `[n]` each.

        `remaining` is the number of characters from each character to the end of its word, `[n]`.
        """

        def descend(depth, position, node, lengths, ids):
            edge = _edge(node, tf.gather(characters, position + depth))
            found = tf.minimum(tf.searchsorted(self._edges, edge), len(self._edges) - 1)
            exists = tf.gather(self._edges, found) == edge
            position = tf.boolean_mask(position, exists)
            node = tf.gather(self._children, tf.boolean_mask(found, exists))
            depth += 1
            node_ids = tf.gather(self._node_ids, node)
            is_subtoken = node_ids >= 0
            matched = tf.boolean_mask(position, is_subtoken)[:, None]
            length = tf.fill(tf.shape(matched)[:1], depth)
            lengths = tf.tensor_scatter_nd_update(lengths, matched, length)
            matched_ids = tf.boolean_mask(node_ids, is_subtoken)
            ids = tf.tensor_scatter_nd_update(ids, matched, matched_ids)
            continues = tf.gather(remaining, position) > depth
            position, node = tf.boolean_mask(position, continues), tf.boolean_mask(node, continues)
            return depth, position, node, lengths, ids

        size = tf.size(characters)
        position = tf.range(tf.cast(size, tf.int64))
        root, length, no_id = tf.zeros_like(position), tf.ones_like(position), tf.fill([size], -1)
        state = tf.constant(0, tf.int64), position, root, length, no_id
        *_, lengths, ids = _loop(lambda depth, position, *_: tf.size(position) > 0, descend, state)
        return lengths, ids


def _mark_starts(is_first, following, longest):
    """Returns whether a subtoken starts at each character, bool `[n]`.

    After iteration r, the first 2^r subtokens of every word are marked. The number of iterations is
    therefore logarithmic in the length of the longest word. `following` is the index of the
    character after the longest subtoken at each character.
    """

    def double(marked, is_start, following):
        targets = tf.boolean_mask(following, is_start)[:, None]
        is_start = tf.tensor_scatter_nd_update(
            is_start, targets, tf.ones(tf.shape(targets)[:1], tf.bool)
        )
        return marked * 2, is_start, tf.gather(following, following)

    # The last subtoken of a word is followed by the first character of the next word, which is
    # already marked. The last word is followed by an additional entry.
    end = tf.size(following, tf.int64)[None]
    is_start, following = tf.concat([is_first, [False]], 0), tf.concat([following, end], 0)
    state = tf.constant(1, tf.int64), is_start, following
    _, is_start, _ = _loop(lambda marked, *_: marked < longest, double, state)
    return is_start[:-1]


def _loop(condition, body, state):
    """Runs tf.while_loop on tensors whose sizes change."""
    shapes = tuple(tf.TensorShape([None] * tensor.shape.rank) for tensor in state)
    return tf.while_loop(condition, body, state, shape_invariants=shapes)


def _edge(node, character):
    return node * (1 << _CHARACTER_BITS) + character


def _make_trie(ids):
    """Returns a trie: {edge: node}, and for every node the id of the subtoken that ends there.

    The id is -1 if no subtoken ends at a node. The root is node 0.
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
