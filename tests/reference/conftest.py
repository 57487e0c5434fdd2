"""Excludes this folder from test collection: it contains helpers, which tests import by name."""

collect_ignore_glob = ["*.py"]
