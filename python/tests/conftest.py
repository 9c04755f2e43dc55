import os

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU")


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


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


def _record(line):
    """One line a test case into the file from which the whole suite's closing line is counted."""
    if path := os.environ.get("TILEWISE_TEST_LOG"):
        with open(path, "a") as log:
            log.write(line + "\n")


def _reason(report):
    return str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr).replace(
        "\n", " "
    )


def pytest_runtest_logreport(report):
    name = f"python.{report.nodeid.split('/')[-1]}"
    if report.skipped:
        _record(f"SKIP {name}: {_reason(report)}")
    elif report.failed:
        _record(f"FAIL {name}")
    elif report.when == "call":
        _record(f"PASS {name}")


def pytest_collectreport(report):
    if report.skipped:  # a module whose import is missing
        _record(f"SKIP python.{report.nodeid.split('/')[-1]}: {_reason(report)}")
    elif report.failed:
        _record(f"FAIL python.{report.nodeid.split('/')[-1]}")
