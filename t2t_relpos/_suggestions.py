"""Suggestions of similar names in error messages."""

import difflib


def most_similar(word, words):
    """Returns the name that a misspelled word stands for, or None if there is none.

    A suggestion corrects letters, not words or versions: those would be other names.

    >>> from t2t_relpos._suggestions import most_similar
    >>> most_similar("tyni", ["base", "tiny"]), most_similar("base_v2", ["base", "base_v1"])
    ('tiny', None)
    """
    similar = [other for other in words if sorted(other) == sorted(word)]
    similar += difflib.get_close_matches(word, words, n=1, cutoff=0.88)
    return next((other for other in similar if _digits(other) == _digits(word)), None)


def did_you_mean(word, words):
    """Returns the end of an error message with the most similar name, or an empty string."""
    similar = most_similar(word, words)
    return f" Did you mean {similar!r}?" if similar else ""


def _digits(text):
    return [character for character in text if character.isdigit()]
