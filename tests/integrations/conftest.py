import pytest


@pytest.fixture(scope="module")
def one_thread():
    """Lets PyTorch use one thread, which is faster for small models."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
