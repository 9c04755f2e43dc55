import pytest


def pytest_collection_modifyitems(items):
    """GPU tests are skipped by name where there is no GPU."""
    try:
        import torch

        gpu = torch.cuda.is_available()
    except ImportError:
        gpu = False
    for item in items:
        if item.get_closest_marker("gpu") and not gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU"))


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU")
