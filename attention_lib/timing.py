"""Chapter 12: times that can be trusted, the work behind them, and what a machine can reach.

Operations are FLOPs, bytes are bytes and times are seconds, without a prefix.
"""

import logging
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from attention_lib import _arguments
from attention_lib._numbers import is_finite
from attention_lib._work import (
    Roofline,
    attention_bytes,
    attention_flops,
    busy_elsewhere,
    bytes_moved,
    copies,
    kind_of,
    page_faults,
    same_output,
)  # fmt: skip

# Where CUDA's compiler is installed and no GPU is, the import that follows logs that it found none.
logging.getLogger("torch.utils.cpp_extension").addFilter(lambda x: "No CUDA run" not in str(x.msg))
from torch.utils.benchmark import Timer, timer  # noqa: E402

__all__ = [
    "Comparison", "Roofline", "Timing", "attention_bytes", "attention_flops", "bytes_moved",
    "compare", "measure", "page_faults", "roofline",
]  # fmt: skip

# Kineto, under PyTorch's profiler, writes two lines to stderr for every profile below this level.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
_QUIET = 0.2  # cores that other processes may use during a sample
_WARM_UP = 0.25  # seconds: a processor that was idle needs some to reach its speed
_SHOWN = 4  # kernels in a text


@dataclass(frozen=True)
class Timing:
    """The samples of one function, and what ran.

    Attributes:
        seconds: Seconds of one call, a number for each sample.
        others: Cores that other processes used meanwhile, a number for each sample; NaN where
            the system does not tell.
        calls: Calls in one sample, over which it is a mean.
        first: Seconds of the first call of all; it is in no sample.
        device: Where the output lies.
        dtype: Dtype of the output, without ``torch.``; empty if it is no tensor.
        threads: Threads that PyTorch may use on the CPU.
        kernels: Share of the time by operation, or by kernel on a GPU, from a call under
            PyTorch's profiler, largest first.
    """

    seconds: tuple[float, ...]
    others: tuple[float, ...]
    calls: int
    first: float
    device: str
    dtype: str
    threads: int
    kernels: dict[str, float]

    @property
    def disturbed(self) -> tuple[bool, ...]:
        """For each sample, whether other processes used more than a fifth of a core."""
        return tuple(cores > _QUIET for cores in self.others)

    @property
    def noisy(self) -> bool:
        """Whether less than half of the samples are quiet; all of them count then."""
        return 2 * sum(self.disturbed) > len(self.seconds)

    @property
    def counted(self) -> tuple[float, ...]:
        """The samples that count, which are the quiet ones, or all if the timing is noisy."""
        pairs = zip(self.seconds, self.disturbed, strict=True)
        return tuple(seconds for seconds, loud in pairs if self.noisy or not loud)

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """The three quartiles in seconds."""
        return tuple(float(q) for q in np.quantile(self.counted, [0.25, 0.5, 0.75]))

    @property
    def median(self) -> float:
        """The middle quartile in seconds."""
        return self.quartiles[1]

    def __str__(self):
        low, middle, high = (1000 * q for q in self.quartiles)
        lines = [
            f"{middle:.3g} ms, half within {low:.3g} to {high:.3g}",
            f"{len(self.seconds)} samples, {sum(self.disturbed)} disturbed"
            + ", noisy" * self.noisy,
            f"{self.device} {self.dtype}, threads: {self.threads}",
        ]
        shown = list(self.kernels.items())[:_SHOWN]
        return "\n".join([*lines, *(f"{share:4.0%} {name[:33]}" for name, share in shown)])


@dataclass(frozen=True)
class Comparison:
    """Functions with equal outputs, timed in turn.

    Attributes:
        timings: A :class:`Timing` for each name.
        baseline: The name that the others are compared with.
    """

    timings: dict[str, Timing]
    baseline: str

    @property
    def ratios(self) -> dict[str, float]:
        """Median by name over that of the baseline; below 1 is faster, NaN without a baseline."""
        base = self.timings.get(self.baseline)
        base = math.nan if base is None else base.median
        return {name: timing.median / base for name, timing in self.timings.items()}

    def __str__(self):
        width = max(map(len, self.timings))
        lines = [f"{'':{width}}      ms  (quartiles)  ratio"]
        for name, timing in self.timings.items():
            low, middle, high = (1000 * q for q in timing.quartiles)
            times = f"{middle:8.3g} {f'({low:.3g}, {high:.3g})':>13s}"
            lines.append(f"{name:{width}}{times} {self.ratios[name]:5.2f}{' *' * timing.noisy}")
        if any(timing.noisy for timing in self.timings.values()):
            lines.append("* while other processes were busy")
        return "\n".join(lines)


def measure(function: Callable[[], object], repeats: int = 11, seconds: float = 0.1) -> Timing:
    """The time of a call, as samples with their spread.

    The first call is timed apart, one call is profiled, and a quarter of a second of calls warms
    the machine up. Then come the samples, by :class:`torch.utils.benchmark.Timer`, which waits
    for a GPU before it reads the clock, and calls twice before each sample. An interrupt ends
    the measurement early and keeps the samples taken.

    Args:
        function: Called without arguments.
        repeats: Number of samples.
        seconds: How long a sample takes at least: calls are added until it does. Below 0.1 the
            system's clock is too coarse to tell what other processes do.

    Returns:
        A :class:`Timing`.

    Raises:
        TypeError: Not a function, or numbers of another type.
        ValueError: ``repeats`` below 1, or ``seconds`` not positive.

    Example:
        >>> timing = measure(lambda: torch.ones(3) + 1, repeats=3, seconds=1e-4)
        >>> len(timing.seconds), timing.device, timing.dtype
        (3, 'cpu', 'float32')
    """
    _refuse({"function": function}, repeats, seconds)
    output, first = _first_call(function)
    timings = _race({"": function}, {"": (output, first)}, repeats, seconds)
    return timings[""]


def compare(
    functions: dict[str, Callable[[], object]],
    baseline: str | None = None,
    repeats: int = 11,
    seconds: float = 0.1,
    tolerance: float = 1e-4,
) -> Comparison:
    """Times of functions that compute the same, each round in another order.

    Nothing is timed unless all outputs agree, on a first call and on a second one, so that a
    function that changes its input in place is found. Each sample is taken as in
    :func:`measure`. An interrupt ends the comparison early and keeps the samples taken.

    What this does not see: another dtype, since numbers alone are compared (each
    :class:`Timing` names its own); a result that was stored and is only handed out again; an
    output that is wrong from the third call on; gradients.

    Args:
        functions: A function without arguments for each name; it returns a tensor or an array,
            or a tuple, list or dict of them.
        baseline: The name that the others are compared with; the first by default.
        repeats: Number of rounds; each gives every function one sample.
        seconds: How long a sample takes at least.
        tolerance: How far an output may lie from the baseline's, as a share of the largest
            number in that, in absolute value. Half precision needs about 0.02.

    Returns:
        A :class:`Comparison`; after an interrupt with the functions that have a sample.

    Raises:
        TypeError: Not functions, numbers of another type, or an output without a tensor.
        ValueError: Outputs that differ, by how much and of which function; an output with NaN or
            infinity; an unknown baseline, no function, or numbers out of range.

    Example:
        >>> x = torch.ones(3)
        >>> compare({"sum": lambda: x + x, "square": lambda: x**2})
        Traceback (most recent call last):
            ...
        ValueError: 'square' must give the output of 'sum'; the largest difference is 1
    """
    _refuse(functions, repeats, seconds)
    baseline = next(iter(functions)) if baseline is None else baseline
    if baseline not in list(functions):
        raise ValueError(f"baseline must be one of {list(functions)}; got {baseline!r}")
    if not (is_finite(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance must be a finite number of at least 0; got {tolerance!r:.60}")
    expected = copies(baseline, functions[baseline]())
    firsts = {}
    for name, function in functions.items():
        firsts[name] = _first_call(function)
        same_output(name, copies(name, firsts[name][0]), baseline, expected, tolerance)
        same_output(name, copies(name, function()), baseline, expected, tolerance)
    return Comparison(_race(functions, firsts, repeats, seconds), baseline)


def roofline(
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    size: int | None = None,
    copied: int = 2**28,
    repeats: int = 11,
) -> Roofline:
    """Measure what this machine reaches, in a few seconds.

    The peak is that of the fastest sample of a product of two square matrices, and the bandwidth
    that of the fastest sample of a copy into memory that exists already.

    Args:
        device: Any device of PyTorch.
        dtype: Float dtype of the product.
        size: Rows of the matrices; 1024 on a CPU and 8192 elsewhere by default.
        copied: Bytes to copy. They should not fit into the caches.
        repeats: Number of samples of each.

    Returns:
        A :class:`Roofline`.

    Raises:
        TypeError: ``dtype`` is not a float dtype, or a size is not an integer.
        ValueError: A size below 1, or a device that PyTorch does not know.
    """
    device = _arguments.device(device) or torch.get_default_device()
    _arguments.float_dtype("dtype", dtype)
    size = (1024 if device.type == "cpu" else 8192) if size is None else size
    _arguments.positive(size=size, copied=copied, repeats=repeats)
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    product, source = torch.empty_like(a), torch.ones(copied, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    calls = {
        "product": lambda: torch.mm(a, b, out=product),
        "copy": lambda: target.copy_(source),
    }
    firsts = {name: _first_call(call) for name, call in calls.items()}
    timings = _race(calls, firsts, repeats, 0.1)
    best = {name: min(timing.counted) for name, timing in timings.items()}
    ran = timings["product"]
    peak, bandwidth = 2 * size**3 / best["product"], 2 * copied / best["copy"]
    return Roofline(peak, bandwidth, ran.device, ran.dtype, ran.threads)


def _refuse(functions, repeats, seconds):
    if not isinstance(functions, dict):
        raise TypeError(f"functions must be a dict of functions; got {type(functions).__name__}")
    if not functions:
        raise ValueError(f"functions must be a dict with at least one; got {functions!r}")
    _arguments.texts("the names of functions", functions)
    _arguments.function(**functions)
    _arguments.positive(repeats=repeats)
    if not isinstance(seconds, Real) or isinstance(seconds, bool):
        raise TypeError(f"seconds must be a number; got {seconds!r}")
    if not (is_finite(seconds) and seconds > 0):
        raise ValueError(f"seconds must be positive and finite; got {seconds!r:.60}")


def _race(functions, firsts, repeats, seconds):
    """A Timing for each function, sampled in a new order each round."""
    kernels = {name: _kernels(function) for name, function in functions.items()}
    threads = torch.get_num_threads()  # the Timer's own default is one
    timers = {
        name: Timer("function()", globals={"function": function}, num_threads=threads)
        for name, function in functions.items()
    }
    start = timer()
    while timer() - start < min(_WARM_UP, seconds * 3):
        for function in functions.values():
            function()
    calls = {n: math.ceil(seconds / max(t.timeit(1).median, 1e-7)) for n, t in timers.items()}
    samples, order = {name: [] for name in functions}, random.Random(0)
    try:
        for _ in tqdm(range(repeats), leave=False):
            for name in order.sample(list(functions), len(functions)):
                samples[name].append(_sample(timers[name], calls[name]))
    except KeyboardInterrupt:
        if not any(samples.values()):
            raise
        taken = [len(taken) for taken in samples.values()]
        print(f"interrupted: {min(taken)} of {repeats} rounds are kept")
    return {
        name: Timing(
            *zip(*taken, strict=True), calls[name], firsts[name][1], *kind_of(firsts[name][0]),
            threads, kernels[name],
        )
        for name, taken in samples.items() if taken
    }  # fmt: skip


def _sample(sampler, calls):
    """Seconds of one call, and cores that other processes used."""
    busy, start = busy_elsewhere(), time.perf_counter()
    seconds = sampler.timeit(calls).median
    return seconds, (busy_elsewhere() - busy) / (time.perf_counter() - start)


def _first_call(function):
    """The output of the call, and its seconds."""
    start = timer()
    output = function()
    return output, timer() - start


def _kernels(function):
    """Share of the time by kernel of a GPU if one was used, else by operation on the CPU."""
    gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    with profile(activities=[ProfilerActivity.CPU, *gpu]) as profiler:
        function()
        timer()  # waits for a GPU
    rows = profiler.key_averages()
    on_gpu = [row for row in rows if row.device_type.name != "CPU"]
    times = {row.key: row.self_device_time_total for row in on_gpu}
    times = times or {row.key.removeprefix("aten::"): row.self_cpu_time_total for row in rows}
    total = sum(times.values()) or 1
    largest = sorted(times, key=times.get, reverse=True)
    return {name: times[name] / total for name in largest}
