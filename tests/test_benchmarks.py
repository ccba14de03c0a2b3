"""The benchmark times equal things, says how quiet the machine was, and counts right."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attention_lib import training
from benchmarks import attention, gpu

SIZE = (2, 17, 32, 4)
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
x = torch.randn(SIZE[:3], generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _gradients_on():
    yield
    torch.set_grad_enabled(True)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("with_weights", "masked"), [(False, False), (False, True), (True, False)])
def test_contenders_give_equal_outputs_weights_and_gradients(with_weights, masked, backward):
    found = attention.contenders(SIZE, with_weights, masked, backward)
    assert {attention.OURS, "nn.MultiheadAttention, train", "packed, plain formula"} <= set(found)
    attention.assert_equal(found, x.clone(), backward)


@pytest.mark.parametrize(
    ("masked", "change"),
    [
        (False, lambda out, weights: (out * 1.01, weights)),
        (False, lambda out, weights: (out.roll(1, dims=1), weights)),
        (True, lambda out, weights: (out, weights.mean(dim=1, keepdim=True).expand_as(weights))),
    ],
)
def test_a_contender_that_computes_something_else_is_not_timed(masked, change):
    found = attention.contenders(SIZE, True, masked, False)
    layer, function = found["packed, plain formula"]
    found["wrong"] = (layer, lambda x: change(*function(x)))
    with pytest.raises(AssertionError, match=r"^wrong: "):
        attention.assert_equal(found, x.clone(), backward=False)


def test_a_race_gives_one_row_a_contender_and_measures_against_the_best_peer(monkeypatch):
    monkeypatch.setattr(attention, "SAMPLE_SECONDS", 1e-3)
    monkeypatch.setattr(attention, "large_product", lambda: lambda: x[0] @ x[0].T)
    rows = attention.race(SIZE, False, False, True, rounds=2)
    peers = [row["ms"] for row in rows if row["contender"] != attention.OURS]
    for row in rows:
        assert row["to best peer"] == pytest.approx(row["ms"] / min(peers), rel=0.05)
        assert row["quartiles"][0] <= row["ms"] <= row["quartiles"][1]


def test_share_of_the_machine_is_the_operations_over_those_of_a_large_product(monkeypatch):
    monkeypatch.setattr(attention, "SAMPLE_SECONDS", 1e-3)
    monkeypatch.setattr(attention, "quartiles", lambda samples: ([4.0, 5.0, 6.0], False))
    monkeypatch.setattr(attention, "large_product", lambda: lambda: x[0] @ x[0].T)
    for row in attention.race(SIZE, False, False, False, rounds=1):
        expected = attention.flops(SIZE, False) / (2 * 2048**3)  # both take 5 ms here
        assert row["of the machine"] == round(expected, 3)


def test_samples_taken_while_others_worked_are_left_out_or_marked():
    quiet, loud = [(0.001, 0.0), (0.002, 0.1), (0.003, 0.0)], [(9.0, 1.5)] * 3
    assert attention.quartiles(quiet + loud) == ([1, 2, 3], False)
    (_, median, _), noisy = attention.quartiles(quiet[:1] + loud)
    assert noisy
    assert median == 9000


def test_operations_are_those_that_pytorch_counts():
    _, function = attention.contenders(SIZE, False, False, True)["packed, plain formula"]
    inputs = x.clone().requires_grad_()
    with FlopCounterMode(display=False) as counter:
        out = function(inputs)[0]
    assert counter.get_total_flops() == attention.flops(SIZE, backward=False)
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    batch, length, width, _ = SIZE
    # the kernel computes the scores once more in its backward pass; the formula has kept them
    again = 2 * batch * length**2 * width
    total = counter.get_total_flops() + attention.flops(SIZE, backward=False) + again
    assert total == attention.flops(SIZE, backward=True)


def test_peak_memory_is_measured_in_a_process_of_its_own():
    command = [sys.executable, attention.__file__, "--peak"]
    run = subprocess.run(
        [*command, "packed, plain formula", "forward", "1024"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(run.stdout) > 8 * 1024**2 * 4 / 2**20  # the scores of eight heads


@needs_triton
@pytest.mark.parametrize("case", [(1, 2, 1, 37, 37, 16, True), (2, 1, 1, 5, 19, 16, False)])
def test_kernels_are_checked_against_float64_and_a_wrong_one_is_found(case, monkeypatch):
    cpu = torch.device("cpu")
    row = gpu.check(cpu, torch.float32, case)
    assert max(row[gpu.OURS]) < 1e-5
    kernels = gpu.flash_attention
    monkeypatch.setattr(
        gpu, "flash_attention", lambda *x, **options: 1.001 * kernels(*x, **options)
    )
    with pytest.raises(AssertionError, match="too far from float64"):
        gpu.check(cpu, torch.float32, case)


@needs_triton
def test_kernels_race_those_that_run_and_the_others_are_named_with_the_reason(monkeypatch):
    monkeypatch.setattr(gpu, "milliseconds", lambda call: (2.0, 1.0, 3.0))
    case = (1, 2, 2, 19, 19, 16, True)
    rows = gpu.race(torch.device("cpu"), torch.float32, case)
    assert len(rows) == 8
    assert [row["backward"] for row in rows] == [False, True] * 4
    for row in rows:
        assert ("refused" in row) == (row["contender"] in ("sdpa, cuDNN", "sdpa, memory-efficient"))
        if "ms" in row:
            assert row["speed to best sdpa"] == 1
            assert row["TFLOP/s"] == pytest.approx(gpu.flops(case, row["backward"]) / 2e-3 / 1e12)


@needs_triton
def test_recorded_distances_of_the_kernels_are_found_again():
    stored = training.recorded("tiling")["runs"]
    assert [(row["dtype"], *(row[name] for name in gpu.CASE)) for row in stored] == [
        (dtype, *case) for dtype in ("float32", "float16") for case in gpu.SMALL_CASES
    ]
    for row, dtype in ((stored[2], torch.float32), (stored[11], torch.float16)):
        again = gpu.interpreted(dtype, tuple(row[name] for name in gpu.CASE))
        assert again.keys() == row.keys()
        for name in ("output", "query", "key", "value"):  # another machine rounds in another way
            assert 1 / 3 < again["kernels"][name] / row["kernels"][name] < 3


def test_interpreter_must_be_asked_for_before_it_is_recorded():
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    command = [sys.executable, gpu.__file__, "--interpreter"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 1
    assert "needs TRITON_INTERPRET=1 in the environment" in run.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_gpu_the_benchmark_of_the_kernels_says_what_it_needs():
    run = subprocess.run([sys.executable, gpu.__file__], capture_output=True, text=True)
    assert run.returncode == 1
    assert "needs a GPU that PyTorch can use; got none" in run.stderr


def test_operations_of_the_kernels_are_those_that_pytorch_counts():
    query = torch.randn(2, 3, 19, 16)
    key, value = torch.randn(2, 2, 3, 23, 16)
    with FlopCounterMode(display=False) as counter:
        gpu.formula(query, key, value, False)
    assert counter.get_total_flops() == gpu.flops((2, 3, 3, 19, 23, 16, False), backward=False)
