"""The verbs on a GPU, with a driver and a compiler that only pretend: what is measured against what, and what is printed."""

import json
import os

import pytest

FAKE = {
    "TILEWISE_CUDA_DRIVER_PATH": os.environ.get("TILEWISE_FAKE_CUDA", ""),
    "TILEWISE_NVRTC_PATH": os.environ.get("TILEWISE_FAKE_NVRTC", ""),
    "TILEWISE_CACHE_DIR": "/dev/null",
    "TILEWISE_PACK": "",
    "TILEWISE_JIT": "",
    "TILEWISE_ALGORITHM": "",
}
CELL = ["bench", "--device", "cuda", "--batch", "1", "--heads", "2", "--full", "--seconds", "0.01"]
MILLISECOND = 1e-3  # what the pretended clock says of everything


def bench(tool, *arguments, gpu="90"):
    return json.loads(tool.good(*CELL, *arguments, "--json", **FAKE, FAKE_CUDA_DEVICES=gpu))


@pytest.mark.parametrize(
    "gpu, dtype, peak, rate",
    [
        ("90", "bf16", "wgmma m64n256k16 bf16 from shared memory", 132 * 2 * 128 * 256 * 64),
        (
            "90",
            "fp32",
            "mma.sync m16n8k8 tf32 in registers, three for a product of fp32",
            132 * 2 * 8 * 2 * 64 * 32 * 8,
        ),
        ("80", "fp16", "mma.sync m16n8k16 fp16 in registers", 132 * 2 * 8 * 2 * 64 * 32 * 16),
    ],
)
def test_bench_against_the_tensor_cores(tool, gpu, dtype, peak, rate):
    lines = bench(
        tool, "--seqlen", "4096", "--dim", "128", "--dtype", dtype, "--algorithm", "fa2,unfused", gpu=gpu
    )
    assert [line["algorithm"] for line in lines] == ["fa2", "unfused"]
    for line in lines:
        assert line["peak"] == peak
        assert line["peak_per_second"] == pytest.approx(
            512 * rate / MILLISECOND
        )  # 2 ms of steps, by the clock of 256
        burst = 2 * 2 * 4096**2 * 2 * 128 / line["flops_per_second"] / MILLISECOND  # runs a millisecond
        assert 1 / burst == pytest.approx(5)
        assert line["share_of_peak"] == pytest.approx(line["flops_per_second"] / line["peak_per_second"])
        assert 0 < line["host_seconds"] < 1e-2


def test_bench_against_copying(tool):
    [line] = bench(
        tool, "--seqlen", "1", "--seqlen-k", "65536", "--dim", "128", "--dtype", "bf16", "--kv-heads", "1"
    )
    assert line["peak"] == "copy in device memory"
    assert line["peak_per_second"] == pytest.approx(2 * 8 * 2**28 / MILLISECOND)
    assert "bytes_per_second" in line and line["share_of_peak"] > 0


def test_bench_table_names_the_peak(tool):
    text = tool.good(
        *CELL, "--seqlen", "4096", "--dim", "128", "--dtype", "bf16", **FAKE, FAKE_CUDA_DEVICES="90"
    )
    assert "TFLOP/s" in text and "host" in text and "%" in text
    assert text.strip().split("\n")[-1].startswith("peak: wgmma m64n256k16 bf16 from shared memory, ")


def test_check_runs_every_family_and_notices_kernels_that_do_nothing(tool):
    result = tool("check", "--device", "cuda", **FAKE, FAKE_CUDA_DEVICES="90")
    lines = result.stdout.split("\n")
    for family, passes in [
        ("wgmma", ["forward"]),
        ("fa2", ["forward", "backward"]),
        ("fa1", ["forward", "backward"]),
        ("unfused", ["forward", "backward"]),
    ]:
        for name in passes:
            [line] = [x for x in lines if x.split()[:2] == [family, name]]
            assert " 0 right, " in line and ", 0 wrong" not in line.split(";")[0]
    assert result.returncode == 1 and "NOT right" in result.stdout and "not run" not in result.stdout
