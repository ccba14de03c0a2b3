"""Answers to the exercises of chapter 12: right ones, listed mistakes anew, new mistakes."""

import math
import statistics

import numpy as np
import torch

# ---------------------------------------------------------------------------- best_speed

BEST_SPEED = {
    "the peak": [400],
    "the bandwidth": [np.float64(25)],
    "the ridge": [16],
    "the intensity": [6],
    "intensity upside down": [25 / 6, 1 / 6],
    "peak and memory added up": [550],
    "one after the other": [1200 / 11],
    "a share of the peak": [0.375, 37.5],
    "FLOPs times bytes": [24, 600],
    "bandwidth times bytes": [50.0],
    "the work": [12, 2],
    "not divided by the bytes": [300],
    "how often in a second": [12.5, 100 / 3],
    "a time": [0.03, 0.08, 0.11, 80],
    "FLOP, MFLOP or TFLOP a second": [1.5e11, 150_000, 0.15],
    "peak and bandwidth added up": [425],
}
BEST_SPEED_RIGHT = [150, 150.0, np.float64(150)]
BEST_SPEED_NEW = [
    0, 1, 3, 151, 149, -150, 1.5, 15, 4800, 10000, 1500, math.nan, math.inf, "150", (150,), True,
]  # fmt: skip

# ---------------------------------------------------------------------------- core_flops


def counted(shapes, backward=None):
    """kFLOP of products of matrices: `shapes` gives their sizes (rows, inner, columns)."""

    def function(batch, heads, q, k, d, v, back):
        chosen = backward if back and backward is not None else shapes
        totals = []
        for queries in q:
            sizes = {"q": int(queries), "k": k, "d": d, "v": v}
            one = sum(2 * n * sizes[a] * sizes[b] * sizes[c] for n, a, b, c in chosen)
            totals.append(batch * heads * one / 1e3)
        return np.array(totals)

    return function


SCORES, AVERAGE = (1, "q", "d", "k"), (1, "q", "k", "v")
GRADIENTS = [(1, "q", "k", "d"), (1, "k", "q", "d"), (1, "q", "v", "k"), (1, "k", "q", "v")]
right_flops = counted([SCORES, AVERAGE], GRADIENTS)


def by_loop(batch, heads, q, k, d, v, backward):
    total = np.zeros(len(q))
    for _ in range(batch * heads):
        total += q * k * (d + d) / 1e3
        total += q * v * (k + k) / 1e3
    return total + total if backward else total


def scaled(factor, back=None):
    return lambda *sizes: right_flops(*sizes) * (back if sizes[-1] and back is not None else factor)


def with_sizes(change):
    def function(batch, heads, q, k, d, v, backward):
        return right_flops(*change(batch, heads, q, k, d, v), backward)

    return function


def softmax_too(batch, heads, q, k, d, v, backward):
    one = 2 * q * k * d + 2 * q * k * v + q * k
    return batch * heads * one * (1 + backward) / 1e3


def one_product_wrong(batch, heads, q, k, d, v, backward):
    return batch * heads * (2 * q * k * d + 2 * q * d * v) * (1 + backward) / 1e3


CORE_FLOPS = {
    "not in thousands": [scaled(1e3), lambda *sizes: right_flops(*sizes) * 1000.0],
    "in millions": [scaled(1e-3)],
    "the rest below a thousand lost": [
        lambda *sizes: right_flops(*sizes) // 1,
        lambda *sizes: right_flops(*sizes).round(),
        lambda *sizes: np.array([int(n) for n in right_flops(*sizes)]),
    ],
    "in thousands for one pass alone": [scaled(1.0, 1e3), scaled(1e3, 1.0)],
    "in units of 1024": [scaled(1000 / 1024)],
    "heads counted twice": [
        lambda *sizes: sizes[1] * right_flops(*sizes),
        with_sizes(lambda b, h, q, k, d, v: (b, h, q, k, h * d, h * v)),
    ],
    "the sizes multiplied": [
        lambda b, h, q, k, d, v, back: q * (b * h * k * d * v * (4 if back else 2) / 1e3)
    ],
    "keys as wide as values": [with_sizes(lambda b, h, q, k, d, v: (b, h, q, k, v, v))],
    "a second product of other sizes": [one_product_wrong],
    "backward in both cases": [lambda *sizes: 2 * right_flops(*sizes[:-1], False)],
    "an addition and a multiplication counted as one": [scaled(0.5)],
    "the scores alone": [counted([SCORES], GRADIENTS[:2])],
    "the average alone": [counted([AVERAGE], GRADIENTS[2:])],
    "values as wide as keys": [with_sizes(lambda b, h, q, k, d, v: (b, h, q, k, d, d))],
    "as many keys as queries": [
        lambda b, h, q, k, d, v, back: b * h * q**2 * (d + v) * (4 if back else 2) / 1e3,
        with_sizes(lambda b, h, q, k, d, v: (b, h, q * 0 + k, k, d, v)),
    ],
    "one head": [
        with_sizes(lambda b, h, q, k, d, v: (b, 1, q, k, d, v)),
        with_sizes(lambda b, h, q, k, d, v: (b, h, q, k, d / h, v / h)),
        with_sizes(lambda b, h, q, k, d, v: (b, h, q, k, d // h, v // h)),
    ],
    "one sample": [with_sizes(lambda b, h, q, k, d, v: (1, h, q, k, d, v))],
    "backward as much as forward": [counted([SCORES, AVERAGE])],
    "both passes together": [counted([SCORES, AVERAGE], [SCORES, AVERAGE, *GRADIENTS])],
    "the scores computed again": [
        counted([SCORES, AVERAGE], [SCORES, *GRADIENTS]),
        scaled(1.0, 1.25),
    ],
    "the softmax counted as well": [softmax_too],
}
CORE_FLOPS_RIGHT = [right_flops, by_loop]
CORE_FLOPS_NEW = [
    scaled(2.0),
    scaled(1.0, 0.0),
    scaled(1.0, 3.0),
    scaled(-1.0),
    scaled(1e-9),
    counted([SCORES, AVERAGE], GRADIENTS[:3]),
    counted([SCORES, (3, "q", "k", "v")], GRADIENTS),
    with_sizes(lambda b, h, q, k, d, v: (b, h, q + k, k, d, v)),
    lambda *sizes: right_flops(*sizes) + 1,
    lambda *sizes: np.full(len(sizes[2]), 4.0),
    lambda *sizes: np.full(len(sizes[2]), math.inf),
    lambda *sizes: right_flops(*sizes)[:1],
    lambda *sizes: right_flops(*sizes).sum(),
    lambda batch, heads, q, k, d, v, backward: batch * heads * q * k * (d + v - 1) / 1e3,
    lambda *sizes: tuple(right_flops(*sizes)),
    lambda *sizes: torch.as_tensor(right_flops(*sizes)).float().tolist(),
    lambda batch, heads, q, k, d, v: 1.0,
]

# ---------------------------------------------------------------------------- speed_up


def middle(values):
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def ratio(centre, first=1, combine=lambda a, b: a / b):
    def function(baseline, versions):
        base = centre(baseline[first:])
        return np.array([float(combine(base, centre(row[first:]))) for row in versions])

    return function


def pairs(centre):
    def function(baseline, versions):
        n = min(len(baseline), versions.shape[1])
        return centre(baseline[1:n] / versions[:, 1:n], axis=1)

    return function


def sorted_middle(values):
    return np.sort(values)[len(values) // 2]


def by_axis(baseline, versions):
    return np.median(baseline[1:]) / np.median(versions[:, 1:], axis=-1)


def all_in_one(baseline, versions):
    return np.array([np.median(baseline[1:]) / np.median(versions[:, 1:].ravel())] * len(versions))


def torch_median(values):
    return torch.as_tensor(values).median().item()


def largest_dropped(values):
    return middle(np.delete(values, np.argmax(values)))


def without_outliers(values):
    gaps = abs(values - values.mean())
    return np.median(values[gaps <= 2 * values.std()])


def inner(values):
    ordered = np.sort(values)
    return (ordered[1:-1] if len(ordered) > 2 else ordered).mean()


def cut_to(a_calls, b_calls):
    def function(a, b):
        both = {"a": len(a), "b": len(b[0]), "min": min(len(a), len(b[0]))}
        return by_axis(a[: both[a_calls]], b[:, : both[b_calls]])

    return function


SPEED_UP = {
    "a mean on one side": [
        lambda a, b: np.mean(a[1:]) / np.median(b[:, 1:], axis=1),
        lambda a, b: np.median(a[1:]) / np.mean(b[:, 1:], axis=1),
    ],
    "a trimmed mean": [ratio(inner)],
    "upside down, and more": [
        ratio(np.mean, 0, lambda a, b: b / a),
        ratio(np.mean, 1, lambda a, b: b / a),
        ratio(middle, 0, lambda a, b: b / a),
    ],
    "samples thrown away": [cut_to("min", "min"), cut_to("b", "b"), cut_to("a", "a")],
    "the middle without sorting": [ratio(lambda values: values[len(values) // 2])],
    "rounded": [
        lambda a, b: by_axis(a, b).round(2),
        lambda a, b: np.median(a[1:]) // np.median(b[:, 1:], axis=1),
    ],
    "in percent": [lambda a, b: 100 * by_axis(a, b)],
    "the first call kept on one side": [
        lambda a, b: np.median(a[1:]) / np.median(b, axis=1),
        lambda a, b: np.median(a) / np.median(b[:, 1:], axis=1),
    ],
    "the last call dropped, not the first": [
        lambda a, b: np.median(a[:-1]) / np.median(b[:, :-1], axis=1)
    ],
    "two calls dropped": [ratio(np.median, 2)],
    "the largest call dropped": [ratio(largest_dropped, 0)],
    "the first calls alone": [lambda a, b: a[0] / b[:, 0]],
    "one call of each": [lambda a, b: a[-1] / b[:, -1], lambda a, b: a[1] / b[:, 1]],
    "how much faster": [lambda a, b: by_axis(a, b) - 1],
    "the lower one of the two in the middle": [ratio(torch_median)],
    "the fault is still there: means, with the first call": [ratio(np.mean, 0)],
    "means": [ratio(lambda values: sum(values) / len(values))],
    "the first call kept": [ratio(middle, 0)],
    "upside down": [lambda a, b: 1 / by_axis(a, b)],
    "the fastest calls": [ratio(np.min), ratio(np.min, 0)],
    "the slowest calls": [ratio(np.max), ratio(np.max, 0)],
    "totals": [ratio(np.sum)],
    "ratios of single calls": [pairs(np.median), pairs(np.mean)],
    "a difference": [ratio(middle, combine=lambda a, b: a - b)],
    "the time that is saved": [ratio(middle, combine=lambda a, b: (a - b) / a)],
    "the upper one of the two in the middle": [ratio(sorted_middle)],
    "one median of all versions": [all_in_one],
}
SPEED_UP_RIGHT = [by_axis, ratio(np.median), ratio(middle), ratio(statistics.median)]
SPEED_UP_NEW = [
    lambda a, b: by_axis(a[:-1], b[:, :-1]),
    lambda a, b: a[2] / b[:, 2],
    lambda a, b: np.sqrt(by_axis(a, b)),
    lambda a, b: by_axis(a[:6], b[:, :6]),
    ratio(without_outliers),
    lambda a, b: by_axis(a, b) + 1,
    lambda a, b: np.median(a[2:]) / np.median(b[:, 1:], axis=1),
    ratio(np.median, 3),
    lambda a, b: np.full(len(b), 2.0),
    ratio(lambda values: np.quantile(values, 0.25)),
    ratio(lambda values: np.exp(np.log(values).mean())),
    lambda a, b: by_axis(a, b)[0],
    lambda a, b: by_axis(a, b)[::-1].round(1),
    lambda a: 1.0,
]

# ---------------------------------------------------------------------------- reached


def by_seconds(flops, bytes, seconds, peak, bandwidth):
    return np.maximum(flops / peak, bytes / bandwidth) / seconds


def by_ridge(flops, bytes, seconds, peak, bandwidth):
    left = flops / bytes < peak / bandwidth
    return np.where(left, bytes / seconds / bandwidth, flops / seconds / peak)


def run_by_run(flops, bytes, seconds, peak, bandwidth):
    runs = zip(flops, bytes, seconds, strict=True)
    return np.array([f / s / min(peak, bandwidth * f / b) for f, b, s in runs])


def with_ridge(digits):
    def function(flops, bytes, seconds, peak, bandwidth):
        roof = np.where(flops / bytes < digits(peak / bandwidth), flops / bytes * bandwidth, peak)
        return flops / seconds / roof

    return function


REACHED = {
    "the ridge rounded": [with_ridge(round), with_ridge(math.floor), with_ridge(math.ceil)],
    "one roof for all runs": [
        lambda f, b, s, p, w: f / s / min(p, *(f / b * w)),
        lambda f, b, s, p, w: f / (s * min(f / b * w, p)),
        lambda f, b, s, p, w: f / s / min(p, (f / b).mean() * w),
    ],
    "the bytes of each number counted": [lambda f, b, s, p, w: by_seconds(f, 4 * b, s, p, w)],
    "bandwidth times bytes": [lambda f, b, s, p, w: np.maximum(f / p, f / b / w) / s],
    "bandwidth times FLOPs": [lambda f, b, s, p, w: np.maximum(f / p, 1 / w) / s],
    "what is missing": [lambda *run: 1 - by_seconds(*run)],
    "rounded": [lambda *run: by_seconds(*run).round(2), lambda *run: by_seconds(*run) // 1],
    "share of the peak": [lambda f, b, s, p, w: f / (s * p)],
    "share of the bandwidth": [lambda f, b, s, p, w: b / (w * s)],
    "the larger limit": [lambda f, b, s, p, w: np.minimum(f / p, b / w) / s],
    "both limits added up": [lambda f, b, s, p, w: f / s / (p + w * f / b)],
    "intensity upside down": [lambda f, b, s, p, w: f / s / np.minimum(p, w * b / f)],
    "upside down": [lambda *run: 1 / by_seconds(*run)],
    "the speed itself": [lambda f, b, s, p, w: f / s],
    "what can be reached itself": [lambda f, b, s, p, w: f / np.maximum(f / p, b / w)],
    "bytes for a bandwidth in FLOPs": [lambda f, b, s, p, w: np.maximum(f / s / p, f / s / w)],
    "cut off at 1": [lambda *run: np.clip(by_seconds(*run), 0, 1)],
    "the seconds left out": [lambda f, b, s, p, w: np.maximum(f / p, b / w)],
    "times the seconds": [lambda f, b, s, p, w: s * np.maximum(f / p, b / w)],
    "in percent": [lambda *run: by_seconds(*run) * 100],
    "arithmetic after memory": [lambda f, b, s, p, w: f / p / s + b / w / s],
}
REACHED_RIGHT = [by_seconds, by_ridge, run_by_run]
REACHED_NEW = [
    lambda *run: np.minimum(1.0, 2 * by_seconds(*run)),
    lambda *run: by_seconds(*run) ** 2,
    lambda *run: 1000 * by_seconds(*run),
    lambda *run: 0.5 + 0 * run[0],
    lambda f, b, s, p, w: f / b,
    lambda f, b, s, p, w: p / w + 0 * f,
    lambda f, b, s, p, w: f / b / (p / w),
    lambda f, b, s, p, w: s * np.minimum(p, f / b * w),
    lambda *run: np.minimum(1.5, by_seconds(*run)),
    lambda f, b, s, p, w: f * math.nan,
    lambda f, b, s, p: 1.0,
]

# ---------------------------------------------------------------------------- timer_test


def job(launch, works, queue=False):
    """A clock, and a submit whose future moves it on; the last work is repeated."""
    now, left = [0.0, 0.0], list(works)

    class Future:
        def __init__(self):
            now[0] += launch
            self.work = left.pop(0) if len(left) > 1 else left[0]
            now[1] = self.end = max(now) + self.work

        def result(self):
            now[0] = max(now[0], self.end) if queue else now[0] + self.work

    return Future, lambda: now[0]


def comes_out(expected, launch, works, repeats, look=None, queue=False):
    def test(timer):
        found = timer(*job(launch, works, queue), repeats)
        found = found if look is None else look(found)
        assert math.isclose(found, expected)

    return test


def all_of(*tests):
    def test(timer):
        for one in tests:
            one(timer)

    return test


WORKS = [50.0, 5.0, 9.0, 100.0, 6.0, 4.0, 80.0]
ODD, EVEN = (comes_out(s, 1.0, WORKS, n, queue=True) for s, n in ((7.0, 5), (8.5, 4)))


def any_number(timer):
    assert timer(*job(2.0, [3.0, 8.0, 1.0, 5.0]), 3) >= 0


def is_a_number(timer):
    assert np.isfinite(timer(*job(1.0, [9.0, 1.0, 4.0, 2.0]), 3))


def above_the_launch(timer):
    assert timer(*job(1.0, [9.0, 1.0, 2.0, 7.0, 2.0], queue=True), 3) > 1.01


def all_awaited(launch, works, repeats):
    """Work that does not queue, and a look at whose result was asked for."""

    def test(timer):
        futures = []
        submit, clock = job(launch, works)

        def noted():
            assert all(future.awaited for future in futures)
            future = submit()
            future.awaited, result = False, future.result

            def asked():
                future.awaited = True
                result()

            future.result = asked
            futures.append(future)
            return future

        expected = launch + statistics.median(works[1 : repeats + 1])
        assert math.isclose(timer(noted, clock, repeats), expected)
        assert len(futures) == repeats + 1

    return test


TIMER_TEST = {
    "only that a number comes out": [any_number, is_a_number],
    "one number of repeats": [ODD, comes_out(7.0, 1.0, [50.0, 9.0, 5.0, 100.0, 6.0, 4.0], 5)],
    "a warm-up that need not be awaited": [
        all_of(comes_out(7.0, 1.0, WORKS, 5), comes_out(8.5, 1.0, WORKS, 4)),
    ],
    "all runs take the same time": [comes_out(7.0, 2.0, [5.0], 5)],
    "no time passes in submit": [comes_out(6.0, 0.0, [80.0, 9.0, 5.0, 200.0, 6.0, 4.0], 5)],
    "all time passes in submit": [comes_out(4.0, 4.0, [0.0], 3)],
    "a single repeat": [comes_out(8.0, 3.0, [70.0, 5.0, 9.0], 1)],
    "no slow first run": [comes_out(8.0, 2.0, [6.0, 5.0, 9.0, 100.0, 6.0, 4.0, 60.0], 5)],
    "only longer than the launch": [above_the_launch],
}


def two_jobs(timer):
    all_awaited(1.0, WORKS, 5)(timer)
    all_awaited(2.0, [60.0, 3.0, 8.0, 1.0, 7.0, 9.0, 2.0], 6)(timer)


def raises(timer):
    for repeats, expected in ((5, 8.0), (4, 9.5)):
        found = timer(*job(2.0, WORKS, queue=True), repeats)
        if abs(found - expected) > 1e-6:
            raise AssertionError(found)


def readings_counted(timer):
    """Right timers may read the clock as often as they like."""
    submit, clock = job(1.0, WORKS, queue=True)
    read = []
    timer(submit, lambda: read.append(0) or clock(), 5)
    assert len(read) == 10
    all_of(ODD, EVEN)(timer)


TIMER_TEST_RIGHT = [all_of(ODD, EVEN), two_jobs, raises]


def never_calls(timer):
    submit, clock = job(1.0, [2.0])
    submit().result()
    assert clock() == 3.0


def no_assert(timer):
    abs(timer(*job(1.0, [50.0, 9.0, 5.0, 100.0, 6.0, 4.0]), 5) - 7.0) < 1e-9  # noqa: B015


def another_error(timer):
    try:
        all_of(ODD, EVEN)(timer)
    except AssertionError as error:
        raise ValueError("wrong") from error


def swallows(timer):
    try:
        comes_out(7.0, 1.0, [50.0, 9.0, 5.0, 100.0, 6.0, 4.0], 5)(timer)
    except AssertionError:
        print("wrong")


def no_clock(timer):
    assert timer(job(1.0, [50.0, 9.0])[0], 5) == 7.0


def stops(timer):
    assert timer(*job(1.0, [50.0, 9.0]), 2) == undefined_name


def scripted(timer):
    """A clock that moves when it is read: right for the plainest timer alone."""
    for repeats, expected in ((5, 7.0), (4, 8.5)):
        steps = iter([x for seconds in (6.0, 10.0, 101.0, 7.0, 5.0) for x in (3.0, seconds)])
        readings = iter(np.cumsum([*steps, *[3.0] * 20]))
        assert timer(job(0.0, [0.0])[0], lambda r=readings: next(r), repeats) == expected


def latest_end(timer):
    """Each future waits for the end of the latest work, not of its own."""
    for repeats, expected in ((5, 7.0), (4, 8.5)):
        now, works = [0.0, 0.0], iter(WORKS)

        class Future:
            def __init__(self, now=now, works=works):
                now[0] += 1.0
                now[1] = max(now) + next(works)

            def result(self, now=now):
                now[0] = max(now)

        assert timer(Future, lambda now=now: now[0], repeats) == expected


TIMER_TEST_NEW = [
    scripted,
    latest_end,
    all_of(
        *(
            comes_out(s, 1.0, [50.0, 5, 6, 9, 100, 4, 80], n, queue=True)
            for s, n in ((7, 5), (8.5, 4))
        )
    ),
    all_of(
        *(
            comes_out(s, 1.0, [50.0, 5, 9, 6, 4, 100, 80], n, queue=True)
            for s, n in ((7, 5), (6.5, 4))
        )
    ),
    readings_counted,
    never_calls,
    no_assert,
    another_error,
    swallows,
    no_clock,
    stops,
    comes_out(1.0, 1.0, [50.0, 9.0, 5.0, 100.0, 6.0, 4.0], 5),
    comes_out(6.0, 1.0, [50.0, 9.0, 5.0, 100.0, 6.0, 4.0], 5),
    comes_out(25.8, 1.0, [50.0, 9.0, 5.0, 100.0, 6.0, 4.0], 5),
    comes_out(5.0, 1.0, [50.0, 9.0, 5.0, 100.0, 6.0, 4.0], 5),
    comes_out(101.0, 1.0, [50.0, 9.0, 5.0, 100.0, 6.0, 4.0], 5),
    comes_out(7, 1.0, [50.0, 9.0, 5.0, 100.0, 6.0, 4.0], 5, look=lambda found: found.hex()),
    lambda timer: timer(*job(1.0, [50.0, 9.0]), 2),
]

ANSWERS = {
    "best_speed": (BEST_SPEED_RIGHT, BEST_SPEED, BEST_SPEED_NEW),
    "core_flops": (CORE_FLOPS_RIGHT, CORE_FLOPS, CORE_FLOPS_NEW),
    "speed_up": (SPEED_UP_RIGHT, SPEED_UP, SPEED_UP_NEW),
    "reached": (REACHED_RIGHT, REACHED, REACHED_NEW),
    "timer_test": (TIMER_TEST_RIGHT, TIMER_TEST, TIMER_TEST_NEW),
}
