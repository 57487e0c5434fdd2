"""Nothing here is a test; most of it runs in tensor2tensor's environment only."""

collect_ignore_glob = ["*.py"]
