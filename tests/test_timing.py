"""Chapter 12: equal functions, timed in turn, with the noise marked; work counted by formula."""

import itertools
import math
import mmap
import os
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from tqdm import tqdm

from attention_lib import (
    _work,
    attention_bytes,
    attention_flops,
    bytes_moved,
    compare,
    measure,
    page_faults,
    roofline,
    timing,
)
from attention_lib.timing import Comparison, Roofline, Timing

# every axis another prime
B, H, Q, K, D, V = 2, 3, 17, 13, 11, 7
SHORT = {"repeats": 3, "seconds": 1e-4}
x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))


def made(seconds, others=None, **changes):
    """A Timing with these samples."""
    others = [0.0] * len(seconds) if others is None else others
    fields = {
        "calls": 2, "first": 0.5, "device": "cpu", "dtype": "float32", "threads": 1,
        "kernels": {"mm": 0.75, "add": 0.25},
    } | changes  # fmt: skip
    return Timing(tuple(seconds), tuple(others), **fields)


@pytest.fixture
def scripted(monkeypatch):
    """Replace the samples by given pairs of seconds and cores, in the order they are taken."""

    def script(*pairs):
        left = iter(pairs)
        monkeypatch.setattr(timing, "_sample", lambda sampler, calls: next(left))

    return script


# Samples and what is said of them


def test_quartiles_are_those_of_the_samples():
    seconds = [0.007, 0.001, 0.003, 0.013, 0.002]
    expected = statistics.quantiles(seconds, n=4, method="inclusive")
    assert made(seconds).quartiles == pytest.approx(expected)
    assert made(seconds).median == statistics.median(seconds)
    assert made([0.5]).quartiles == (0.5, 0.5, 0.5)


def test_samples_taken_while_others_worked_do_not_count():
    timing_ = made([1.0, 9.0, 2.0, 3.0], [0.0, 1.5, 0.1, 0.2])
    assert timing_.disturbed == (False, True, False, False)
    assert timing_.counted == (1.0, 2.0, 3.0)
    assert timing_.median == 2.0
    assert not timing_.noisy


def test_all_samples_count_where_most_are_disturbed_and_the_text_says_so():
    timing_ = made([1.0, 9.0, 8.0], [0.0, 1.5, 0.3])
    assert timing_.noisy
    assert timing_.median == 8.0
    assert "3 samples, 2 disturbed, noisy" in str(timing_)
    comparison = Comparison({"f": timing_, "g": made([4.0])}, "f")
    first, second = str(comparison).splitlines()[1:3]
    assert (first[-2:], "*" in second) == (" *", False)
    assert str(comparison).endswith("* while other processes were busy")


def test_half_of_the_samples_quiet_is_enough():
    assert not made([1.0, 2.0], [0.0, 1.0]).noisy


def test_nobody_is_blamed_where_the_system_does_not_tell():
    timing_ = made([1.0, 2.0, 3.0], [math.nan] * 3)
    assert (timing_.disturbed, timing_.noisy) == ((False,) * 3, False)


def test_ratios_are_medians_over_the_baselines():
    timings = {"f": made([2.0, 4.0, 9.0]), "g": made([1.0, 1.0, 7.0]), "h": made([8.0])}
    assert Comparison(timings, "f").ratios == {"f": 1.0, "g": 0.25, "h": 2.0}
    assert math.isnan(Comparison(timings, "lost").ratios["g"])


def test_texts_fit_a_phone_and_name_what_ran():
    text = str(made([0.0123456] * 3, kernels={"a" * 99: 0.6, "b": 0.3, "c": 0.1, "d": 0, "e": 0}))
    assert max(map(len, text.splitlines())) <= 38
    assert "12.3 ms" in text
    assert "60% aaa" in text
    assert len(text.splitlines()) == 7
    table = str(Comparison({"packed": made([0.1234]), "half": made([0.0567])}, "packed"))
    assert table.splitlines()[0] == "            ms  (quartiles)  ratio"
    assert max(map(len, table.splitlines())) <= 38
    assert "half      56.7  (56.7, 56.7)  0.46" in table


# What is measured


def test_samples_go_into_the_timing(scripted):
    scripted((3.0, 0.0), (1.0, 0.7), (2.0, 0.1))
    timing_ = measure(lambda: x + 1, **SHORT)
    assert timing_.seconds == (3.0, 1.0, 2.0)
    assert timing_.others == (0.0, 0.7, 0.1)


def test_seconds_are_those_of_one_call():
    timing_ = measure(lambda: time.sleep(2e-3), repeats=2, seconds=9e-3)
    assert min(timing_.seconds) >= 2e-3
    assert 1 <= timing_.calls <= 5
    assert (timing_.device, timing_.dtype) == ("cpu", "")


def test_a_sample_takes_at_least_the_time_that_is_asked_for(monkeypatch):
    class FixedTimer:
        def __init__(self, *_, **__):
            pass

        def timeit(self, calls):
            return type("Measurement", (), {"median": 3e-3})

    monkeypatch.setattr(timing, "Timer", FixedTimer)
    assert measure(lambda: x, repeats=1, seconds=1e-2).calls == 4


@pytest.mark.parametrize(("seconds", "calls"), [(1.0, 15), (1 / 32, 5)])
def test_machine_is_warmed_up_for_a_quarter_of_a_second_or_three_samples(
    monkeypatch, seconds, calls
):
    clock, called, timed = itertools.count(64), [], []

    class FixedTimer:
        def __init__(self, *_, **__):
            pass

        def timeit(self, number):
            timed.append(number)
            return type("Measurement", (), {"median": seconds / 7})

    monkeypatch.setattr(timing, "timer", lambda: next(clock) / 64)  # a tick for each look at it
    monkeypatch.setattr(timing, "Timer", FixedTimer)
    monkeypatch.setattr(timing, "_kernels", lambda function: {})
    timing._race({"f": lambda: called.append(1)}, {"f": (x, 0.0)}, 2, seconds)
    assert len(called) == calls
    assert timed == [1, 7, 7]


def test_bar_goes_away_at_the_end(monkeypatch, capsys):
    monkeypatch.setattr(timing, "tqdm", partial(tqdm, disable=False))
    measure(lambda: x, **SHORT)
    shown = capsys.readouterr().err.rstrip("\r").split("\r")
    assert "0/3" in shown[1]
    assert not shown[-1].strip()


@pytest.mark.parametrize("gpu", [False, True])
def test_time_is_that_of_the_gpu_where_one_was_used(monkeypatch, gpu):
    seen = []

    def row(key, device, on_cpu, on_gpu):
        kind = SimpleNamespace(name=device)
        return SimpleNamespace(
            key=key, device_type=kind, self_cpu_time_total=on_cpu, self_device_time_total=on_gpu
        )

    rows = [row("aten::add", "CPU", 2, 0), row("aten::mm", "CPU", 6, 0)]
    rows += [row("add_kernel", "CUDA", 0, 1), row("mm_kernel", "CUDA", 0, 4)] if gpu else []

    @contextmanager
    def profile(activities):
        seen.extend(activity.name for activity in activities)
        yield SimpleNamespace(key_averages=lambda: rows)

    monkeypatch.setattr(timing, "profile", profile)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(timing, "timer", lambda: seen.append("waits"))
    expected = {"mm_kernel": 0.8, "add_kernel": 0.2} if gpu else {"mm": 0.75, "add": 0.25}
    found = timing._kernels(lambda: x)
    assert list(found.items()) == list(expected.items())
    assert seen == ["CPU", *["CUDA"] * gpu, "waits"]
    rows.clear()
    assert timing._kernels(lambda: x) == {}


def test_first_call_is_timed_from_its_start_to_its_end(monkeypatch):
    clock = iter([5.0, 8.0])
    monkeypatch.setattr(timing, "timer", lambda: next(clock))
    assert timing._first_call(lambda: "output") == ("output", 3.0)


def test_first_call_is_told_apart():
    waits = iter([0.03])
    timing_ = measure(lambda: time.sleep(next(waits, 0.0)), **SHORT)
    assert timing_.first >= 0.03


@pytest.mark.parametrize("threads", [1, 2])
def test_as_many_threads_as_pytorch_uses_outside(threads):
    before, seen = torch.get_num_threads(), set()
    torch.set_num_threads(threads)
    try:
        timing_ = measure(lambda: seen.add(torch.get_num_threads()), **SHORT)
    finally:
        torch.set_num_threads(before)
    assert (timing_.threads, seen) == (threads, {threads})


def test_gradients_are_recorded_or_not_as_outside():
    seen = set()
    with torch.no_grad():
        measure(lambda: seen.add(torch.is_grad_enabled()), **SHORT)
    assert seen == {False}


@pytest.mark.parametrize("output", [x.half(), [x.half(), x], {"a": (x.half(),)}])
def test_dtype_is_that_of_the_first_output(output):
    assert measure(lambda: output, **SHORT).dtype == "float16"


def test_dtype_of_an_array_is_named():
    assert measure(lambda: np.ones(3), **SHORT).dtype == "float64"


def test_what_ran_is_named_and_the_shares_sum_to_one():
    kernels = measure(lambda: (x @ x.T).softmax(-1), **SHORT).kernels
    assert {"mm", "_softmax"} <= set(kernels)
    assert sum(kernels.values()) == pytest.approx(1)
    assert list(kernels.values()) == sorted(kernels.values(), reverse=True)
    q = torch.randn(1, 2, 64, 16)
    names = " ".join(measure(lambda: F.scaled_dot_product_attention(q, q, q), **SHORT).kernels)
    assert "_scaled_dot_product_flash_attention" in names


def test_only_a_large_product_takes_the_time_of_a_large_product():
    big = torch.randn(1000, 1000)
    assert next(iter(measure(lambda: (big @ big)[0] + 1, **SHORT).kernels)) == "mm"


def test_busy_elsewhere_is_all_but_idle_and_our_own(tmp_path, monkeypatch):
    path = tmp_path / "stat"
    # user nice system idle iowait irq softirq steal guest guest_nice
    path.write_text("cpu  1000 200 30 99999 88888 4 5 600 77777 66666\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    monkeypatch.setattr(_work.time, "process_time", lambda: 1.5)
    busy = 1839 / os.sysconf("SC_CLK_TCK")
    assert _work.busy_elsewhere(path) == pytest.approx(busy - 1.5)
    assert math.isnan(_work.busy_elsewhere(tmp_path / "missing"))


def test_others_are_cores_over_the_time_of_the_sample(monkeypatch):
    busy, clock = iter([10.0, 13.0]), iter([100.0, 102.0])
    monkeypatch.setattr(timing, "busy_elsewhere", lambda: next(busy))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    sampler = type("Sampler", (), {"timeit": lambda _, n: type("M", (), {"median": 0.25})})()
    assert timing._sample(sampler, 3) == (0.25, 1.5)


# Comparing


def test_every_round_samples_every_function_once_in_changing_orders(monkeypatch):
    taken = []

    class Named:
        def __init__(self, stmt, globals, num_threads):
            self.function = globals["function"]

        def timeit(self, calls):
            return type("Measurement", (), {"median": 1.0})

    monkeypatch.setattr(timing, "Timer", Named)
    monkeypatch.setattr(timing, "_sample", lambda t, c: (taken.append(t.function), (1.0, 0.0))[1])
    functions = {name: (lambda n=name: x * len(n)) for name in "abcd"}
    result = compare(functions, repeats=9, seconds=1e-4)
    rounds = [tuple(taken[i : i + 4]) for i in range(0, 36, 4)]
    assert all(set(r) == set(functions.values()) for r in rounds)
    assert len(set(rounds)) > 4
    compare(functions, repeats=9, seconds=1e-4)
    assert taken[36:] == taken[:36], "the same order every time"
    assert list(result.timings) == list("abcd")
    assert all(len(t.seconds) == 9 for t in result.timings.values())


def test_default_is_eleven_samples_of_a_tenth_of_a_second(monkeypatch):
    seen, race = [], dict.fromkeys(("", "product", "copy"), made([1.0]))
    monkeypatch.setattr(timing, "_race", lambda _, __, *numbers: seen.append(numbers) or race)
    measure(lambda: x)
    compare({"f": lambda: x})
    roofline(size=3, copied=3)
    assert seen == [(11, 0.1)] * 3


def test_tolerance_of_0_takes_equal_outputs_only():
    compare({"f": lambda: x, "g": lambda: x.clone()}, tolerance=0.0, **SHORT)
    functions = {"f": lambda: x, "g": lambda: x * (1 + 1e-6)}
    with pytest.raises(ValueError, match="'g' must give the output of 'f'"):
        compare(functions, tolerance=0.0, **SHORT)


def test_baseline_is_the_first_or_the_one_named():
    functions = {"f": lambda: x + 0, "g": lambda: x - 0}
    assert compare(functions, **SHORT).baseline == "f"
    named = compare(functions, baseline="g", **SHORT)
    assert named.baseline == "g"
    assert named.ratios["g"] == 1


def test_equal_outputs_of_other_kinds_are_compared():
    half = compare({"f": lambda: x, "g": lambda: x.bfloat16()}, tolerance=0.02, **SHORT)
    assert half.timings["g"].dtype == "bfloat16"
    compare({"f": lambda: (x, {"w": x}), "g": lambda: [x.numpy(), (x,)]}, **SHORT)
    compare({"f": lambda: x[:0], "g": lambda: x[:0]}, **SHORT)


FINITE = "^'g' must give finite numbers, to be compared; its output contains "
SHAPES = r"^'g' must give outputs of the shapes of 'f', \[\(5, 7\)\]; got "


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: x + 2, "^'g' must give the output of 'f'; the largest difference is 2$"),
        (lambda: x * (1 + 3e-4), "the largest difference is 0.000"),
        (lambda: x / 0 * 0, rf"{FINITE}NaN$"),
        (lambda: x / 0, rf"{FINITE}infinity$"),
        (lambda: x.roll(1, 0), "the largest difference is"),
        (lambda: x[:1], rf"{SHAPES}\[\(1, 7\)\]$"),
        (lambda: (x, x), rf"{SHAPES}\[\(5, 7\), \(5, 7\)\]$"),
    ],
)
def test_functions_that_differ_are_not_timed(other, message, monkeypatch):
    monkeypatch.setattr(timing, "_race", None)
    with pytest.raises(ValueError, match=message):
        compare({"f": lambda: x + 0, "g": other}, **SHORT)


@pytest.mark.refusal
def test_nan_of_the_baseline_is_not_blamed_on_another_function():
    functions = {"f": lambda: x, "g": lambda: x / 0 * 0}
    with pytest.raises(ValueError, match="'g' must give finite numbers"):
        compare(functions, baseline="g", **SHORT)


@pytest.mark.refusal
def test_function_whose_second_output_is_not_finite_is_named():
    outputs = iter([x, x / 0])
    with pytest.raises(ValueError, match="'g' must give finite numbers"):
        compare({"f": lambda: x, "g": lambda: next(outputs)}, **SHORT)


@pytest.mark.refusal
def test_function_that_changes_its_input_in_place_is_found_by_its_second_call():
    counter = torch.zeros(1)
    functions = {"f": lambda: torch.ones(1), "g": lambda: counter.add_(1)}
    with pytest.raises(ValueError, match=r"'g' must give the output of 'f'; .* difference is 1"):
        compare(functions, **SHORT)


@pytest.mark.refusal
def test_differences_are_those_of_the_numbers_where_a_dtype_would_wrap_around():
    functions = {"f": lambda: torch.tensor([5]).byte(), "g": lambda: torch.tensor([3]).byte()}
    with pytest.raises(ValueError, match=r"the largest difference is 2$"):
        compare(functions, **SHORT)


@pytest.mark.refusal
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_function_that_changes_the_input_of_others_is_found(dtype):
    shared = torch.ones(1, dtype=dtype)
    functions = {"f": lambda: shared.add_(1), "g": lambda: shared.clone()}
    with pytest.raises(ValueError, match="must give the output of 'f'"):
        compare(functions, **SHORT)


# Interrupts


def interrupted_after(count, monkeypatch):
    left = iter([(float(n), 0.0) for n in range(1, count + 1)])

    def sample(sampler, calls):
        pair = next(left, None)
        if pair is None:
            raise KeyboardInterrupt
        return pair

    monkeypatch.setattr(timing, "_sample", sample)


def kept_of(functions):
    """An interrupt that gets through would end the tests, not fail one."""
    try:
        return compare(functions, repeats=9, seconds=1e-4)
    except KeyboardInterrupt:
        pytest.fail("everything is lost")


def test_an_interrupt_keeps_what_was_measured(monkeypatch, capsys):
    interrupted_after(5, monkeypatch)
    result = kept_of({"f": lambda: x + 0, "g": lambda: x - 0})
    counts = [len(t.seconds) for t in result.timings.values()]
    assert sorted(counts) == [2, 3]
    assert sorted(s for t in result.timings.values() for s in t.seconds) == [1, 2, 3, 4, 5]
    assert capsys.readouterr().out == "interrupted: 2 of 9 rounds are kept\n"


def test_an_interrupt_in_the_first_round_keeps_the_functions_that_have_a_sample(monkeypatch):
    interrupted_after(1, monkeypatch)
    result = kept_of({"f": lambda: x + 0, "g": lambda: x - 0})
    assert [t.seconds for t in result.timings.values()] == [(1.0,)]
    assert str(result)


def test_an_interrupt_before_the_first_sample_is_passed_on(monkeypatch):
    interrupted_after(0, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        measure(lambda: x, **SHORT)


# The roof


def test_roofline_is_work_over_the_fastest_quiet_sample(monkeypatch):
    product, copy = made([4e-3, 2e-3, 1e-3], [0.0, 0.0, 0.9]), made([5e-3, 8e-3])
    race = {"product": product, "copy": copy}
    monkeypatch.setattr(timing, "_race", lambda *arguments: race)
    roof = roofline(size=11, copied=1000)
    assert roof.peak == pytest.approx(2 * 11**3 / 2e-3)
    assert roof.bandwidth == pytest.approx(2 * 1000 / 5e-3)
    assert roof.ridge == pytest.approx(roof.peak / roof.bandwidth)


def test_roofline_multiplies_and_copies_what_it_says(monkeypatch):
    seen = {}

    def race(calls, firsts, repeats, seconds):
        for name, call in calls.items():
            with FlopCounterMode(display=False) as flops, Bytes() as moved:
                call()
            seen[name] = flops.get_total_flops(), moved.total
        return dict.fromkeys(calls, made([1.0]))

    monkeypatch.setattr(timing, "_race", race)
    roof = roofline(size=11, copied=1000)
    assert roof.peak == seen["product"][0]
    assert roof.bandwidth == 2000
    assert seen["copy"] == (0, 3000)  # the target is an input, too: it is changed in place


@pytest.mark.parametrize(("device", "size"), [("cpu", 1024), ("meta", 8192)])
def test_roofline_takes_larger_matrices_where_the_device_is_no_cpu(monkeypatch, device, size):
    monkeypatch.setattr(timing, "_first_call", lambda call: (None, 0.0))  # nothing is calculated
    race = dict.fromkeys(("product", "copy"), made([1.0]))
    monkeypatch.setattr(timing, "_race", lambda *_: race)
    assert roofline(device, copied=1).peak == 2 * size**3
    assert roofline("meta", size=1).bandwidth == 2 * 2**28


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_roofline_works_on_its_device_and_in_memory_that_exists_already(monkeypatch, device):
    seen = []

    def race(calls, *_):
        for call in calls.values():
            seen.append(call())
            assert call() is seen[-1]
        return dict.fromkeys(calls, made([1.0]))

    monkeypatch.setattr(timing, "_race", race)
    roofline(device, size=11, copied=7)
    assert [(x.device.type, x.shape) for x in seen] == [(device, (11, 11)), (device, (7,))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_roofline_measures_this_machine(dtype):
    roof = roofline(dtype=dtype, size=31, copied=10_000, repeats=1)
    assert roof.peak > 0
    assert roof.bandwidth > 0
    assert (roof.device, roof.dtype) == ("cpu", str(dtype)[6:])
    assert roof.threads == torch.get_num_threads()


def test_reachable_grows_with_intensity_up_to_the_peak():
    roof = Roofline(100.0, 4.0, "cpu", "float32", 1)
    assert roof.ridge == 25.0
    assert [roof.reachable(i) for i in (0, 5, 25, 99)] == [0, 20, 100, 100]
    assert type(roof.reachable(5)) is float
    assert roof.reachable(np.array([1.0, 50.0])).tolist() == [4, 100]


# Operations and bytes, counted


class Bytes(TorchDispatchMode):
    """Bytes of the inputs and results of every operation that is not a view."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple) else (result,)
        inputs = [a for a in args if isinstance(a, torch.Tensor)]
        outputs = [r for r in results if isinstance(r, torch.Tensor)]
        places = {t.untyped_storage().data_ptr() for t in inputs}
        if func._schema.is_mutable or not any(
            t.untyped_storage().data_ptr() in places for t in outputs
        ):
            self.total += sum(t.numel() * t.itemsize for t in inputs + outputs)
        return result


def tensors(*lead, v=V, dtype=torch.float32):
    """Query, key and value that ask for gradients."""
    shapes = (*lead, Q, D), (*lead, K, D), (*lead, K, v)
    return [torch.randn(s, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def plain(q, k, v):  # batch and heads in one axis, since matmul may copy
    return torch.bmm(torch.bmm(q, k.mT).softmax(dim=-1), v)


def fused(q, k, v):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v)


def counted(mode, function, inputs):
    """What the mode's total is after the forward pass, and for the backward pass alone."""
    with mode() as counter:
        output = function(*inputs)
    forward = counter.get_total_flops() if mode is quiet_flops else counter.total
    grad = torch.randn_like(output)
    with mode() as counter:
        torch.autograd.grad(output, inputs, grad)
    return forward, counter.get_total_flops() if mode is quiet_flops else counter.total


def quiet_flops():
    return FlopCounterMode(display=False)


def test_operations_are_those_that_pytorch_counts_forward_and_backward():
    sizes = (B, H, Q, K, D, V)
    expected = attention_flops(*sizes), attention_flops(*sizes, backward=True)
    assert counted(quiet_flops, plain, tensors(B * H)) == expected


def test_operations_of_a_fused_kernel_are_those_that_pytorch_counts():
    q, k, v, o = (B, H, Q, D), (B, H, K, D), (B, H, K, V), (B, H, Q, V)
    sizes = (B, H, Q, K, D, V)
    assert attention_flops(*sizes) == sdpa_flop_count(q, k, v)
    again = attention_flops(*sizes, backward=True, recompute=True)
    assert again == sdpa_backward_flop_count(o, q, k, v)


@pytest.mark.refusal
def test_work_beyond_64_bits_is_counted():
    sizes = 2**20, 2**10, 2**20, 2**20, 2**8
    for count in (attention_flops, partial(attention_bytes, fused=False)):
        assert count(*map(np.int64, sizes)) == count(*sizes) > 2**64


def test_width_of_the_values_is_that_of_the_keys_unless_given():
    assert attention_flops(B, H, Q, K, D) == attention_flops(B, H, Q, K, D, D)
    assert attention_bytes(B, H, Q, K, D) == attention_bytes(B, H, Q, K, D, D)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_bytes_of_the_plain_formula_are_those_that_its_operations_read_and_write(dtype):
    options = {"fused": False, "dtype": dtype}
    expected = [attention_bytes(B, H, Q, K, D, V, backward=b, **options) for b in (False, True)]
    assert list(counted(Bytes, plain, tensors(B * H, dtype=dtype))) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_bytes_of_a_fused_kernel_are_those_it_reads_and_writes(dtype):
    expected = [attention_bytes(B, H, Q, K, D, backward=b, dtype=dtype) for b in (False, True)]
    assert list(counted(Bytes, fused, tensors(B, H, v=D, dtype=dtype))) == expected


def test_bytes_moved_are_those_of_inputs_and_results_but_not_of_views():
    y = torch.ones(3, 5)  # 60 bytes
    assert bytes_moved(lambda: y.mT.flatten(0, 0)[1:]) == 0
    assert bytes_moved(lambda: y.exp()) == 120
    assert bytes_moved(lambda: y.clone().add_(1)) == 120 + 120
    made = torch.ones(3, 3)
    assert bytes_moved(lambda: torch.mm(y, y.mT, out=made)) == 60 + 60 + 36
    assert bytes_moved(lambda: torch.cat([y, y])) == 240
    assert bytes_moved(lambda: y.double().max(dim=0)) == 60 + 120 + 120 + 40 + 40


def test_bytes_moved_agree_with_the_formula_where_heads_have_an_axis_of_their_own():
    q, k, v = (t.detach() for t in tensors(B, H, v=D))
    assert bytes_moved(lambda: F.scaled_dot_product_attention(q, k, v)) == attention_bytes(
        B, H, Q, K, D
    )


# Page faults


@pytest.mark.skipif(os.name == "nt", reason="Windows does not tell")
def test_page_faults_count_the_pages_that_are_touched_anew():
    kept, zeros = np.ones(2**26, dtype=np.uint8), bytes(2**26)

    def fresh():
        with mmap.mmap(-1, 2**26) as memory:
            memory.write(zeros)

    def again():
        kept.fill(1)

    assert page_faults(again) < 1000
    assert page_faults(fresh) > page_faults(again)


# Refusals

POSITIVE = "seconds must be positive and finite; got"
FLOAT = "dtype must be a float dtype of 16, 32 or 64 bits; got"


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: measure(3), TypeError, "function must be a function; got int"),
        (lambda: measure(len, repeats=0), ValueError, "repeats must be at least 1; got 0"),
        (lambda: measure(len, repeats=2.0), TypeError, "repeats must be an integer; got 2.0"),
        (lambda: measure(len, seconds=0), ValueError, f"{POSITIVE} 0"),
        (lambda: measure(len, seconds=math.inf), ValueError, f"{POSITIVE} inf"),
        (lambda: measure(len, seconds="1"), TypeError, "seconds must be a number; got '1'"),
        (lambda: measure(len, seconds=True), TypeError, "seconds must be a number; got True"),
        (lambda: page_faults("f"), TypeError, "function must be a function; got str"),
        (lambda: bytes_moved(None), TypeError, "function must be a function; got NoneType"),
        (
            lambda: compare({}),
            ValueError,
            "functions must be a dict with at least one; got {}",
        ),
        (
            lambda: compare([len]),
            TypeError,
            "functions must be a dict of functions; got list",
        ),
        (lambda: compare({"f": 1}), TypeError, "f must be a function; got int"),
        (
            lambda: compare({"f": len}, "g"),
            ValueError,
            "baseline must be one of ['f']; got 'g'",
        ),
        *(
            (
                lambda tolerance=tolerance: compare({"f": len}, tolerance=tolerance),
                ValueError,
                f"tolerance must be a finite number of at least 0; got {tolerance!r}",
            )
            for tolerance in (-1, math.nan, math.inf, "0")
        ),
        (
            lambda: compare({"f": lambda: "text"}),
            TypeError,
            "'f' must return a tensor or array, or a tuple, list or dict of them, to be compared; "
            "got str",
        ),
        (
            lambda: compare({1: len}),
            TypeError,
            "the names of functions must be a list of texts; got [1]",
        ),
        (
            lambda: compare({"f": lambda: torch.ones(1) + 0j, "g": lambda: torch.ones(1) + 1j}),
            ValueError,
            "'g' must give the output of 'f'; the largest difference is 1",
        ),
        (lambda: roofline(dtype=torch.int8), TypeError, f"{FLOAT} torch.int8"),
        (lambda: roofline(dtype="float32"), TypeError, f"{FLOAT} 'float32'"),
        (lambda: roofline(size=0), ValueError, "size must be at least 1; got 0"),
        (lambda: roofline(copied=1.5), TypeError, "copied must be an integer; got 1.5"),
        (lambda: roofline(repeats=0), ValueError, "repeats must be at least 1; got 0"),
        (lambda: attention_flops(1, 1, 0, 1, 1), ValueError, "q must be at least 1; got 0"),
        (lambda: attention_flops(1, 1, 1, 1, 1.5), TypeError, "d must be an integer; got 1.5"),
        (lambda: attention_flops(1, 1, 1, 1, True), TypeError, "d must be an integer; got True"),
        (lambda: attention_bytes(1, 1, 1, 1, 1, -1), ValueError, "v must be at least 1; got -1"),
        (lambda: attention_bytes(1, 1, 1, 1, 1, dtype=4), TypeError, f"{FLOAT} 4"),
    ],
)
def test_bad_input_is_refused_with_rule_and_value(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_an_error_inside_the_function_is_the_users_own():
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0)


def test_arguments_are_not_changed():
    functions = {"f": lambda: x + 0, "g": lambda: x - 0}
    before = dict(functions)
    compare(functions, **SHORT)
    assert functions == before


@pytest.mark.parametrize(
    ("module", "lines"), [("torch.utils.benchmark", 2), ("attention_lib.timing", 1)]
)
def test_import_is_silent_with_cudas_compiler_and_no_gpu(module, lines, tmp_path):
    """PyTorch's own import logs one line there; the second line shows that warnings come back."""
    code = (
        "import torch\n"
        "torch.cuda._is_compiled, torch.cuda.is_available = lambda: True, lambda: False\n"
        'torch.version.cuda = "13.0"\n'
        f"import {module}\n"
        "from torch.utils import cpp_extension\n"
        f'assert cpp_extension.CUDA_HOME == "{tmp_path}"\n'
        'cpp_extension.logger.warning("still heard")\n'
    )
    environment = os.environ | {"CUDA_HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    logged = run.stderr.splitlines()
    assert len(logged) == lines
    assert "still heard" in logged[-1]
