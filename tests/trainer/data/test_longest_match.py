"""Tests of greedy longest match: examples, and comparison with a loop in Python."""

import random

import pytest
import tensorflow as tf

from trainer.data.subword_tokenizer import LongestMatch

SIGNATURE = [tf.TensorSpec([None], tf.string)]


def plain_match(ids, word):
    """Returns the ids of a word, found with a loop over all possible ends."""
    found, start = [], 0
    while start < len(word):
        end = next((end for end in range(len(word), start, -1) if word[start:end] in ids), None)
        found.append(ids[word[start:end]] if end else -1)
        start = end or start + 1
    return found


@pytest.mark.parametrize(
    ("subtokens", "words", "expected"),
    [
        ("a:7 ab:3 abc:5 cd:2 d:11", "abcd abd a dcdabca", [[5, 11], [3, 11], [7], [11, 2, 5, 7]]),
        ("a:0 b:1 aaaab:2 aab:3", "aaaaaab aaaa aab", [[0, 0, 2], [0, 0, 0, 0], [3]]),
        ("ab:4 b:2", "abab aab zbz", [[4, 4], [-1, 4], [-1, 2, -1]]),
        ("a:0 b:1 ab:2", "a b ab a  b", [[0], [1], [2], [0], [], [1]]),
    ],
    ids=["greedy", "shorter subtokens", "-1 without a subtoken", "does not cross words"],
)
def test_match_of_words(subtokens, words, expected):
    ids = {name: int(i) for name, _, i in (part.partition(":") for part in subtokens.split())}
    assert LongestMatch(ids)(tf.constant(words.split(" "))).to_list() == expected


def test_match_of_empty_words():
    match = tf.function(LongestMatch({"a": 0}), input_signature=SIGNATURE)
    for words in ([], [""], ["", "", ""]):
        ids = match(tf.constant(words, tf.string))
        assert ids.dtype == tf.int32
        assert ids.to_list() == [[] for _ in words]


@pytest.mark.parametrize("seed", [0, 3, 6])
def test_match_equals_the_loop(seed):
    random_choice = random.Random(seed)
    characters = random_choice.sample("ab_\\1é字😀\u0301 \t\x00\n\U0010ffff", k=2 + seed)
    draw = lambda low, high: "".join(
        random_choice.choices(characters, k=random_choice.randint(low, high))
    )
    subtokens = {draw(1, 11) for _ in range(41)}
    ids = {subtoken: 101 + 3 * i for i, subtoken in enumerate(sorted(subtokens))}
    words = [draw(0, 67) for _ in range(53)]
    expected = [plain_match(ids, word) for word in words]
    assert LongestMatch(ids)(tf.constant(words)).to_list() == expected


def test_match_of_a_very_long_word():
    match = LongestMatch({"a": 0, "b": 1, "ab" * 30: 2, "aba": 3})
    ids = match(tf.constant(["ab" * 5_021, "a"])).to_list()
    # 5,021 = 167 * 30 + 5 * 2 + 1.
    assert ids == [[2] * 167 + [3, 1] * 5 + [0, 1], [0]]
