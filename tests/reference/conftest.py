"""Excludes this folder from test collection: it has no tests, and most files need tensor2tensor."""

collect_ignore_glob = ["*.py"]
