"""The exercises of chapter 12, timing: references, cases, known mistakes, hints."""

from functools import partial
from statistics import mean, median

import numpy as np

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction
from attention_lib.timing import Roofline, attention_flops

# ---------------------------------------------------------------------------- best_speed

PEAK, BANDWIDTH, FLOPS, BYTES = 400.0, 25.0, 12.0, 2.0  # GFLOP/s, GB/s, GFLOP, GB


def _best_speed():
    return Roofline(PEAK, BANDWIDTH, "cpu", "float32", 1).reachable(FLOPS / BYTES)


best_speed = PredictValue(
    level=1,
    trains="reading a roofline",
    answer=_best_speed,
    mistakes=(
        Mistake(
            "the peak",
            "Only from the ridge on, at 16 FLOPs a byte here, the peak can be reached. How many "
            "FLOPs does this computation do for each byte?",
            PEAK,
        ),
        Mistake(
            "the bandwidth",
            "That is how many GB a second can be moved. How many FLOPs come with each byte?",
            BANDWIDTH,
        ),
        Mistake(
            "the ridge",
            "That is peak over bandwidth: the intensity from which on the peak can be reached. The "
            "question is about the speed at this computation's intensity.",
            PEAK / BANDWIDTH,
        ),
        Mistake(
            "the intensity",
            "These are FLOPs for each byte. How many bytes can be moved in a second?",
            FLOPS / BYTES,
        ),
        Mistake(
            "intensity upside down",
            "The intensity is FLOPs over bytes, 12 over 2.",
            BANDWIDTH * BYTES / FLOPS,
            BYTES / FLOPS,
        ),
        Mistake(
            "FLOPs times bytes",
            "The intensity says how many FLOPs there are for each byte: divide 12 by 2.",
            FLOPS * BYTES,
            FLOPS * BYTES * BANDWIDTH,
        ),
        Mistake(
            "bandwidth times bytes",
            "Bandwidth times bytes is no speed. Bytes over bandwidth is the time of moving, and "
            "bandwidth times intensity is a speed.",
            BANDWIDTH * BYTES,
        ),
        Mistake(
            "not divided by the bytes",
            "That is bandwidth times FLOPs. What counts is how many FLOPs come with each byte: "
            "divide by the 2 GB.",
            BANDWIDTH * FLOPS,
        ),
        Mistake(
            "how often in a second",
            "So often a second the bytes could be moved, or the operations done. The question is "
            "about GFLOP a second.",
            BANDWIDTH / BYTES,
            PEAK / FLOPS,
        ),
        Mistake(
            "the work",
            "That is what the computation takes, 12 GFLOP or 2 GB. How many GFLOP can be done in a "
            "second?",
            FLOPS,
            BYTES,
        ),
        Mistake(
            "a time",
            "That is a time, in seconds or milliseconds: of the arithmetic, of the memory, or of "
            "both. The question is about GFLOP a second.",
            *(
                unit * seconds
                for seconds in (
                    FLOPS / PEAK,
                    BYTES / BANDWIDTH,
                    FLOPS / PEAK + BYTES / BANDWIDTH,
                )
                for unit in (1, 1000)
            ),
        ),
        Mistake(
            "FLOP, MFLOP or TFLOP a second",
            "The speed is right, the unit is not: the question is about GFLOP a second.",
            *(unit * BANDWIDTH * FLOPS / BYTES for unit in (1e9, 1e3, 1e-3)),
        ),
        Mistake(
            "peak and bandwidth added up",
            "GFLOP and GB are different things, so their sum means nothing. Turn the bandwidth "
            "into GFLOP a second first.",
            PEAK + BANDWIDTH,
        ),
        Mistake(
            "peak and memory added up",
            "The two limits hold at the same time: the smaller one decides.",
            PEAK + BANDWIDTH * FLOPS / BYTES,
        ),
        Mistake(
            "one after the other",
            "That is the speed if arithmetic waits until all bytes are there. At best both go on "
            "at the same time, and the slower one decides.",
            FLOPS / (FLOPS / PEAK + BYTES / BANDWIDTH),
        ),
        Mistake(
            "a share of the peak",
            "As a share of the peak this is right. The question is about GFLOP a second.",
            BANDWIDTH * FLOPS / BYTES / PEAK,
            100 * BANDWIDTH * FLOPS / BYTES / PEAK,
        ),
    ),
    hints=(
        "First the intensity: how many FLOPs come with each byte?",
        "The ridge is at 400 / 25 = 16 FLOPs a byte. On which side of it is 12 / 2 = 6?",
        "Left of the ridge the limit is intensity times bandwidth.",
    ),
)

# ---------------------------------------------------------------------------- core_flops

# batch, heads, numbers of queries, keys, width, value width, backward
SIZES = {
    "one sample and head": (1, 1, [2], 3, 5, 7, False),
    "one score": (1, 1, [1], 1, 13, 29, False),
    "one head": (1, 1, [2, 3], 3, 5, 7, False),
    "two heads": (1, 2, [2, 9], 3, 5, 7, False),
    "a batch": (3, 2, [5, 1, 8], 7, 11, 13, False),
    "as many keys as queries": (2, 3, [5, 4], 5, 7, 11, False),
    "one query": (2, 4, [1], 100, 16, 16, False),
    "many queries": (1, 8, [16, 64], 64, 16, 16, False),
    "backward": (3, 2, [5, 6], 7, 11, 13, True),
    "backward, one query": (2, 4, [1], 100, 16, 8, True),
}


def _core_flops(batch, heads, q, k, d, v, backward):
    counts = [attention_flops(batch, heads, int(n), k, d, v, backward=backward) for n in q]
    return np.array(counts) / 1e3


def _flops(count, backward=2.0):
    """`count(batch, heads, q, k, d, v)` for the forward pass, and a factor for the other one."""
    return lambda b, h, q, k, d, v, back: (
        (count(b, h, q, k, d, v) + 0.0 * q) * (backward if back else 1) / 1e3
    )


def _products(b, h, q, k, d, v):
    return 2 * b * h * q * k * (d + v)


def _in_flops(b, h, q, k, d, v, back):
    return _products(b, h, q, k, d, v) * (2.0 if back else 1.0)


core_flops = WriteFunction(
    level=1,
    trains="counting operations",
    reference=lambda batch, heads, q, k, d, v, backward: _core_flops(
        batch, heads, q, k, d, v, backward
    ),
    cases=tuple(
        Case(label, batch, heads, np.array(q), *rest)
        for label, (batch, heads, q, *rest) in SIZES.items()
    ),
    mistakes=(
        Mistake(
            "not in thousands",
            "These are single FLOPs. The task asks for thousands of them: divide by 1000.",
            _in_flops,
        ),
        Mistake(
            "in thousands for one pass alone",
            "One pass is in thousands, the other one in single FLOPs. In `a if backward else b / "
            "1e3` the division belongs to b alone: put the whole choice in parentheses.",
            lambda *sizes: _in_flops(*sizes) / (1 if sizes[-1] else 1e3),
            lambda *sizes: _in_flops(*sizes) / (1e3 if sizes[-1] else 1),
        ),
        Mistake(
            "in millions",
            "The task asks for thousands of FLOPs: divide by 1000 once.",
            lambda *sizes: _in_flops(*sizes) / 1e6,
        ),
        Mistake(
            "in units of 1024",
            "A thousand FLOPs are 1000 of them.",
            lambda *sizes: _in_flops(*sizes) / 1024,
        ),
        Mistake(
            "the rest below a thousand lost",
            "Whole thousands alone are left: // and rounding drop the rest. Divide by 1000 with /.",
            lambda *sizes: _in_flops(*sizes) // 1000,
            lambda *sizes: np.round(_in_flops(*sizes) / 1000),
        ),
        Mistake(
            "an addition and a multiplication counted as one",
            "A sum of d products takes d multiplications and about as many additions: two FLOPs "
            "for each pair of numbers. And all scores count: there is no mask here.",
            _flops(lambda b, h, q, k, d, v: b * h * q * k * (d + v)),
        ),
        Mistake(
            "the scores alone",
            "The product of queries and keys is right. The weights are multiplied with the values, "
            "too.",
            _flops(lambda b, h, q, k, d, v: 2 * b * h * q * k * d),
        ),
        Mistake(
            "the average alone",
            "The product of weights and values is right. The scores are a product, too.",
            _flops(lambda b, h, q, k, d, v: 2 * b * h * q * k * v),
        ),
        Mistake(
            "values as wide as keys",
            "The second product is (q, k) times (k, v), so its last size is v, not d.",
            _flops(lambda b, h, q, k, d, v: 4 * b * h * q * k * d),
        ),
        Mistake(
            "keys as wide as values",
            "The first product is (q, d) times (d, k). Its inner size is d, not v.",
            _flops(lambda b, h, q, k, d, v: 4 * b * h * q * k * v),
        ),
        Mistake(
            "a second product of other sizes",
            "The weights are (q, k) and the values (k, v). That is 2 * q * k * v, whatever d is.",
            _flops(lambda b, h, q, k, d, v: 2 * b * h * (q * k * d + q * d * v)),
            _flops(lambda b, h, q, k, d, v: 2 * b * h * (q * k * d + k * d * v)),
        ),
        Mistake(
            "as many keys as queries",
            "Each query meets all keys: q times k scores, not q times q, nor k times k.",
            _flops(lambda b, h, q, k, d, v: _products(b, h, q, q, d, v)),
            _flops(lambda b, h, q, k, d, v: _products(b, h, k, k, d, v)),
        ),
        Mistake(
            "heads counted twice",
            "d and v are the widths of one head, so the products of one head are counted once for "
            "each head.",
            _flops(lambda b, h, q, k, d, v: _products(b, h * h, q, k, d, v)),
        ),
        Mistake(
            "the sizes multiplied",
            "Two products one after the other: their FLOPs are added, d plus v for each score.",
            _flops(lambda b, h, q, k, d, v: 2 * b * h * q * k * d * v),
        ),
        Mistake(
            "one head",
            "d is the width of one head, and each head does its own two products. Do not divide "
            "by the number of heads.",
            _flops(lambda b, h, q, k, d, v: _products(b, 1, q, k, d, v)),
            _flops(lambda b, h, q, k, d, v: _products(b, h, q, k, d // h, v // h)),
            _flops(lambda b, h, q, k, d, v: _products(b, 1, q, k, d / h, v / h)),
        ),
        Mistake(
            "one sample",
            "Each sample of the batch has products of its own.",
            _flops(lambda b, h, q, k, d, v: _products(1, h, q, k, d, v)),
        ),
        Mistake(
            "backward as much as forward",
            "Each of the two products has two factors, and each factor gets a gradient.",
            _flops(_products, backward=1.0),
        ),
        Mistake(
            "backward in both cases",
            "Where backward is False, the two products of the forward pass alone are asked for.",
            lambda *sizes: 2.0 * _products(*sizes[:-1]) / 1e3,
        ),
        Mistake(
            "both passes together",
            "That is forward and backward. With backward=True the backward pass alone is asked "
            "for.",
            _flops(_products, backward=3.0),
        ),
        Mistake(
            "the scores computed again",
            "A fused kernel does that. Here the weights were kept, so that four products are left.",
            lambda b, h, q, k, d, v, back: (
                2 * b * h * q * k * ((3 * d + 2 * v) if back else d + v) / 1e3
            ),
            _flops(_products, backward=2.5),
        ),
        Mistake(
            "the softmax counted as well",
            "Only the products count here; the softmax is a few operations for each score.",
            _flops(lambda b, h, q, k, d, v: _products(b, h, q, k, d, v) + b * h * q * k),
            _flops(lambda b, h, q, k, d, v: _products(b, h, q, k, d, v) + 3 * b * h * q * k),
            _flops(lambda b, h, q, k, d, v: _products(b, h, q, k, d, v) + 5 * b * h * q * k),
        ),
    ),
    hints=(
        "One head of one sample: which two products of matrices, of which sizes?",
        "(q, d) times (d, k) takes 2 * q * k * d FLOPs; (q, k) times (k, v) takes 2 * q * k * v.",
        "Times batch and heads, over 1000; and twice as much backward, a gradient for each of two "
        "factors.",
    ),
)

# ---------------------------------------------------------------------------- speed_up

TIMES = {
    "no scatter": ([9.0, 4.0, 4.0, 4.0], [[5.0, 2.0, 2.0, 2.0]]),
    "one call was disturbed": (
        [9.0, 4.0, 5.0, 6.0, 90.0],
        [[20.0, 2.0, 2.5, 2.25, 2.0], [8.0, 6.0, 7.0, 50.0, 6.5]],
    ),
    "slow first calls": ([50.0, 3.0, 4.0, 5.0], [[900.0, 1.0, 1.5, 2.5]]),
    "slower versions": ([3.0, 2.0, 2.5, 2.0], [[8.0, 7.0, 6.5, 5.0], [9.0, 3.0, 2.5, 4.0]]),
    "unequal numbers of calls": ([8.0, 6.0, 5.0, 7.0, 7.5, 6.5], [[4.0, 3.0, 1.0, 2.0]]),
    "an even number of samples": ([8.0, 6.0, 5.0, 7.0, 12.0], [[9.0, 1.0, 4.0, 2.0, 3.0]]),
    "a fast first call": ([0.5, 4.0, 5.0, 7.0], [[0.25, 2.0, 4.0, 3.0], [1.0, 8.0, 5.0, 6.0]]),
    "more calls of a version": ([9.0, 4.0, 4.5], [[5.0, 2.0, 2.5, 8.0, 8.5, 9.0]]),
    "ten calls": (
        [9.0, 8.0, 7.5, 7.0, 6.5, 4.0, 5.0, 5.75, 90.0, 5.5],
        [[8.0, 2.0, 2.5, 50.0, 3.0, 3.25, 4.0, 4.5, 2.75, 2.25]],
    ),
    "two samples": ([1.0, 3.0, 5.0], [[7.0, 2.0, 8.0], [1.0, 4.0, 3.0], [2.0, 2.0, 5.0]]),
}


def _speed_up(baseline, versions, centre=median, skip=1, combine=lambda a, b: a / b):
    base = centre(list(baseline)[skip:])
    return np.array([combine(base, centre(list(mine)[skip:])) for mine in versions])


def _of(**choices):
    return partial(_speed_up, **choices)


def _ratio_by_ratio(baseline, versions, centre=median):
    count = min(len(baseline), len(versions[0]))
    return np.array([centre([baseline[i] / m[i] for i in range(1, count)]) for m in versions])


def _one_median(baseline, versions):
    return median(list(baseline)[1:]) / np.full(len(versions), np.median(versions[:, 1:]))


def _upper(values):
    return sorted(values)[len(values) // 2]


def _lower(values):
    return sorted(values)[(len(values) - 1) // 2]


def _trimmed_mean(values, cut):
    """The mean without a number, or without a share, of the smallest and of the largest."""
    cut = cut if cut >= 1 else int(cut * len(values))
    inner = sorted(values)[cut : len(values) - cut]
    return mean(inner or values)


def _in_the_middle(values):
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def _sorts_all_but(rest):
    """The middle of the values, sorted unless their number modulo 2 is `rest`."""
    return lambda values: _in_the_middle(values if len(values) % 2 == rest else sorted(values))


def _equal_numbers(baseline, versions):
    count = min(len(baseline), len(versions[0]))
    return _speed_up(baseline[:count], versions[:, :count])


def _without_the_largest(values):
    return median(sorted(values)[:-1] or values)


def _first_of_one_side(baseline, versions, skips):
    base = median(list(baseline)[skips[0] :])
    return np.array([base / median(list(mine)[skips[1] :]) for mine in versions])


speed_up = WriteFunction(
    level=2,
    trains="medians of interleaved samples",
    reference=lambda baseline, versions: _speed_up(baseline, versions),
    cases=tuple(Case(label, *map(np.array, times)) for label, times in TIMES.items()),
    mistakes=(
        Mistake(
            "the fault is still there: means, with the first call",
            "One disturbed call moves a mean as far as it likes, and the first call pays for what "
            "happens once.",
            _of(centre=mean, skip=0),
        ),
        Mistake(
            "means",
            "The first call is out: good. One disturbed call still moves a mean by any amount.",
            _of(centre=mean),
        ),
        Mistake(
            "a mean on one side",
            "One side has a median: good. On the other one a disturbed call still moves the mean.",
            lambda a, b: mean(a[1:]) / np.median(b[:, 1:], axis=1),
            lambda a, b: median(a[1:]) / np.mean(b[:, 1:], axis=1),
        ),
        Mistake(
            "a trimmed mean",
            "How many disturbed calls there are is not known before, so a fixed number of calls "
            "left out may be too small. The median holds until half of them are disturbed.",
            *(_of(centre=partial(_trimmed_mean, cut=cut)) for cut in (1, 2, 0.2, 0.25, 0.4)),
            _of(centre=partial(_trimmed_mean, cut=1), skip=0),
        ),
        Mistake(
            "the first call kept",
            "Medians: good. The first call pays for what happens once, and does not belong to the "
            "samples.",
            _of(skip=0),
        ),
        Mistake(
            "the first call kept on one side",
            "One side is without its first call: good. The other one needs the same.",
            partial(_first_of_one_side, skips=(1, 0)),
            partial(_first_of_one_side, skips=(0, 1)),
        ),
        Mistake(
            "the last call dropped, not the first",
            "The first call pays for what happens once; the last one is a sample like the others.",
            _of(centre=lambda values: median(values[:-1]), skip=0),
        ),
        Mistake(
            "two calls dropped",
            "Only the first call pays for what happens once. The second one is a sample.",
            _of(skip=2),
        ),
        Mistake(
            "the largest call dropped",
            "Which call to drop is known before the times are: the first one. Dropping what looks "
            "bad makes a number smaller than what is usual.",
            _of(centre=_without_the_largest, skip=0),
            _of(centre=_without_the_largest),
        ),
        Mistake(
            "the first calls alone",
            "These are the calls that pay for what happens once.",
            _of(centre=lambda values: values[0], skip=0),
        ),
        Mistake(
            "one call of each",
            "A single call says little: it may be a disturbed one. Take the median of all samples.",
            _of(centre=lambda values: values[0]),
            _of(centre=lambda values: values[-1]),
        ),
        Mistake(
            "upside down",
            "A speed-up of 2 means half the time: the baseline's time over that of the version.",
            _of(combine=lambda a, b: b / a),
        ),
        Mistake(
            "upside down, and more",
            "A speed-up is the baseline's time over that of the version. And what does the first "
            "call, or one disturbed call, do to your numbers?",
            _of(combine=lambda a, b: b / a, centre=mean),
            _of(combine=lambda a, b: b / a, centre=mean, skip=0),
            _of(combine=lambda a, b: b / a, skip=0),
        ),
        Mistake(
            "samples thrown away",
            "The numbers of calls may differ: each side has a median of all its own samples.",
            _equal_numbers,
            lambda a, b: _speed_up(a[: len(b[0])], b),
            lambda a, b: _speed_up(a, b[:, : len(a)]),
        ),
        Mistake(
            "the middle without sorting",
            "The median is the one in the middle after sorting; np.median sorts by itself.",
            _of(centre=_in_the_middle),
            _of(centre=lambda values: values[len(values) // 2]),
        ),
        Mistake(
            "rounded",
            "Do not round, and divide with /: digits that are lost here are lost to the reader.",
            *(_of(combine=lambda a, b, n=n: np.round(a / b, n)) for n in (0, 1, 2)),
            _of(combine=lambda a, b: a // b),
        ),
        Mistake(
            "in percent",
            "Return the ratio: twice as fast is 2, not 200.",
            _of(combine=lambda a, b: 100 * a / b),
        ),
        Mistake(
            "the fastest calls",
            "Two fastest calls compare luck with luck. Take what is usual: the median.",
            _of(centre=min),
            _of(centre=min, skip=0),
        ),
        Mistake(
            "the slowest calls",
            "These are the most disturbed ones.",
            _of(centre=max),
            _of(centre=max, skip=0),
        ),
        Mistake(
            "totals",
            "A total depends on the number of calls, and on the disturbed ones.",
            _of(centre=sum),
        ),
        Mistake(
            "ratios of single calls",
            "Calls were paired by their number. They have nothing in common, and there may be more "
            "of one than of the other.",
            _ratio_by_ratio,
            partial(_ratio_by_ratio, centre=mean),
        ),
        Mistake(
            "a difference",
            "A difference is in seconds. A speed-up is a ratio.",
            _of(combine=lambda a, b: a - b),
        ),
        Mistake(
            "the time that is saved",
            "That is the saved share of the time. A speed-up is the ratio of the two times.",
            _of(combine=lambda a, b: 1 - b / a),
        ),
        Mistake(
            "how much faster",
            "Twice as fast is a speed-up of 2 here, not of 1: the ratio itself is asked for.",
            _of(combine=lambda a, b: a / b - 1),
        ),
        Mistake(
            "the upper one of the two in the middle",
            "With an even number of samples the median is the mean of the two in the middle.",
            _of(centre=_upper),
        ),
        Mistake(
            "the lower one of the two in the middle",
            "With an even number of samples the median is the mean of the two in the middle. "
            "torch.median gives the lower one; np.median gives the mean.",
            _of(centre=_lower),
        ),
        Mistake(
            "one median of all versions",
            "Each version has a median of its own, along the last axis.",
            _one_median,
        ),
    ),
    hints=(
        "Which call does not belong to the samples, and what does one disturbed call do to a mean?",
        "baseline[1:] and versions[:, 1:] are without the first call; np.median takes an axis.",
        "Divide np.median(baseline[1:]) by np.median(versions[:, 1:], axis=1).",
    ),
)

# ---------------------------------------------------------------------------- reached

# FLOPs, bytes, seconds of several runs; peak, bandwidth
RUNS = {
    "far left of the ridge": ([10.0], [100.0], [8.0], 400.0, 25.0),
    "left of the ridge": ([40.0], [10.0], [0.5], 400.0, 25.0),
    "on the ridge": ([160.0], [10.0], [1.0], 400.0, 25.0),
    "right of the ridge": ([4000.0, 800.0], [10.0, 4.0], [16.0, 3.0], 400.0, 25.0),
    "far right of the ridge": ([9000.0], [1.0], [30.0], 500.0, 20.0),
    "at the roof": ([50.0], [10.0], [0.5], 300.0, 20.0),
    "above the roof": ([50.0, 900.0], [10.0, 1.0], [0.2, 1.5], 300.0, 20.0),
    "both sides": ([7.0, 90.0, 30.0], [3.0, 1.0, 2.0], [0.5, 2.0, 1.0], 90.0, 8.0),
    "near the ridge": ([112.0, 58.0], [10.0, 5.0], [2.0, 0.75], 90.0, 8.0),
}


def _reached(
    flops,
    bytes,
    seconds,
    peak,
    bandwidth,
    roof=np.minimum,
    share=lambda mine, roof: mine / roof,
):
    return share(flops / seconds, roof(peak, flops / bytes * bandwidth))


def _rounded_ridge(digits, flops, bytes, seconds, peak, bandwidth):
    slope = flops / bytes < digits(peak / bandwidth)
    return flops / seconds / np.where(slope, flops / bytes * bandwidth, peak)


reached = WriteFunction(
    level=2,
    trains="the fraction of a peak",
    reference=lambda flops, bytes, seconds, peak, bandwidth: _reached(
        flops, bytes, seconds, peak, bandwidth
    ),
    cases=tuple(Case(label, *map(np.array, run[:3]), *run[3:]) for label, run in RUNS.items()),
    mistakes=(
        Mistake(
            "share of the peak",
            "Left of the ridge nothing can reach the peak. Divide by what can be reached at this "
            "intensity.",
            lambda f, b, s, p, w: f / s / p,
        ),
        Mistake(
            "share of the bandwidth",
            "Right of the ridge arithmetic is the limit. Divide by the smaller of the two limits.",
            lambda f, b, s, p, w: b / s / w,
        ),
        Mistake(
            "the larger limit",
            "Both limits hold, so the smaller limit decides, and the smaller limit gives the "
            "larger share.",
            partial(_reached, roof=np.maximum),
        ),
        Mistake(
            "both limits added up",
            "The limits are not added: the smaller one decides.",
            partial(_reached, roof=np.add),
        ),
        Mistake(
            "the ridge rounded",
            "The ridge is peak / bandwidth, with all its digits. Rounded, it puts runs near it on "
            "the wrong side.",
            *(partial(_rounded_ridge, digits) for digits in (np.floor, np.round, np.ceil)),
        ),
        Mistake(
            "one roof for all runs",
            "Each run has an intensity and a roof of its own. np.minimum compares number by "
            "number; min and np.min take one out of all.",
            lambda f, b, s, p, w: f / s / np.min([p, *(f / b * w)]),
            lambda f, b, s, p, w: f / s / min(p, f / b * w),  # an error for several runs
            lambda f, b, s, p, w: f / s / min(p, np.mean(f / b) * w),
            lambda f, b, s, p, w: f / s / min(p, np.sum(f) / np.sum(b) * w),
        ),
        Mistake(
            "the bytes of each number counted",
            "`bytes` has bytes already, not numbers of 4 or 8 bytes.",
            *(
                lambda f, b, s, p, w, size=size: _reached(f, b * size, s, p, w)
                for size in (4, 8, 1 / 4, 1 / 8)
            ),
        ),
        Mistake(
            "bandwidth times bytes",
            "That is no speed. The intensity, flops / bytes, times the bandwidth is one.",
            lambda f, b, s, p, w: f / s / np.minimum(p, b * w),
        ),
        Mistake(
            "bandwidth times FLOPs",
            "The intensity is flops / bytes: FLOPs for each byte.",
            lambda f, b, s, p, w: f / s / np.minimum(p, f * w),
        ),
        Mistake(
            "intensity upside down",
            "The intensity is FLOPs for each byte.",
            lambda f, b, s, p, w: f / s / np.minimum(p, b / f * w),
        ),
        Mistake(
            "upside down",
            "A run at half of what can be reached has a share of 0.5, not of 2.",
            partial(_reached, share=lambda mine, roof: roof / mine),
        ),
        Mistake(
            "what is missing",
            "That is the share which the run does not reach.",
            partial(_reached, share=lambda mine, roof: 1 - mine / roof),
        ),
        Mistake(
            "rounded",
            "Do not round, and divide with /.",
            *(
                partial(_reached, share=lambda mine, roof, n=n: np.round(mine / roof, n))
                for n in (0, 1, 2, 3)
            ),
            partial(_reached, share=lambda mine, roof: mine // roof),
        ),
        Mistake(
            "the speed itself",
            "That is the speed in FLOPs a second. How much is it of what can be reached?",
            partial(_reached, share=lambda mine, roof: mine),
        ),
        Mistake(
            "what can be reached itself",
            "That is the roof. Which share of it does this run reach?",
            partial(_reached, share=lambda mine, roof: roof),
        ),
        Mistake(
            "bytes for a bandwidth in FLOPs",
            "The bandwidth is in bytes a second: times the intensity it is in FLOPs a second.",
            lambda f, b, s, p, w: f / s / min(p, w),
        ),
        Mistake(
            "cut off at 1",
            "A share above 1 tells that a number is wrong, or that the roof does not hold for this "
            "run. Cut off at 1 it would look perfect: return it as it is.",
            lambda *run: np.minimum(1.0, _reached(*run)),
        ),
        Mistake(
            "the seconds left out",
            "FLOPs over FLOPs a second is a time, the shortest that is possible. The run took "
            "seconds.",
            lambda f, b, s, p, w: f / np.minimum(p, f / b * w),
        ),
        Mistake(
            "times the seconds",
            "The speed of a run is its FLOPs over its seconds.",
            lambda f, b, s, p, w: f * s / np.minimum(p, f / b * w),
        ),
        Mistake(
            "in percent",
            "Return a share: 0.5, not 50.",
            partial(_reached, share=lambda mine, roof: 100 * mine / roof),
        ),
        Mistake(
            "arithmetic after memory",
            "At best both go on at the same time: the time is the longer of the two, not their "
            "sum.",
            lambda f, b, s, p, w: (f / p + b / w) / s,
        ),
    ),
    hints=(
        "The speed of the run is flops / seconds. What could it be at most?",
        "The intensity is flops / bytes, and memory allows intensity * bandwidth.",
        "Divide flops / seconds by np.minimum(peak, flops / bytes * bandwidth).",
    ),
)

# ---------------------------------------------------------------------------- timer_test


def _run(submit, clock):
    """Seconds until the result is there."""
    start = clock()
    submit().result()
    return clock() - start


def _timer(submit, clock, repeats, centre=median, warm=1, run=_run):
    for _ in range(warm):
        submit().result()
    return float(centre([run(submit, clock) for _ in range(repeats)]))


def _with(**choices):
    return partial(_timer, **choices)


def _launch(submit, clock):
    start = clock()
    future = submit()
    seconds = clock() - start
    future.result()
    return seconds


def _wait_only(submit, clock):
    future = submit()
    start = clock()
    future.result()
    return clock() - start


def _never_waits(submit, clock, repeats):
    seconds = []
    for _ in range(repeats + 1):
        start = clock()
        submit()
        seconds.append(clock() - start)
    return float(median(seconds[1:]))


def _first_counts(submit, clock, repeats):
    return _timer(submit, clock, repeats, warm=0)


def _one_more_sample(submit, clock, repeats):
    return float(median([_run(submit, clock) for _ in range(repeats + 1)]))


def _last(values):
    return values[-1]


def _first(values):
    return values[0]


def _warm_up_not_awaited(submit, clock, repeats):
    submit()
    return _timer(submit, clock, repeats, warm=0)


def _awaits_the_warm_up(submit, clock, repeats):
    first, seconds = submit(), []
    first.result()
    for _ in range(repeats):
        start = clock()
        submit()
        first.result()
        seconds.append(clock() - start)
    return float(median(seconds))


def _all_at_once(submit, clock, repeats):
    submit().result()
    started = [(clock(), submit()) for _ in range(repeats)]
    seconds = []
    for start, future in started:
        future.result()
        seconds.append(clock() - start)
    return float(median(seconds))


# Right timers read the clock as often as they like: none of these does it 2 * repeats times.
def _by_hand(submit, clock, repeats):
    clock()
    submit().result()
    times = []
    while len(times) < repeats:
        times.append(-clock())
        submit().result()
        times[-1] += clock()
    return np.median(times)


def _first_dropped(submit, clock, repeats):
    return float(np.median([_run(submit, clock) for _ in range(repeats + 1)][1:]))


def _between_the_runs(submit, clock, repeats):
    submit().result()
    readings = [clock()]
    for _ in range(repeats):
        submit().result()
        readings.append(clock())
    return float(median(np.diff(readings)))


class _Job:
    """A clock that launches and works move on; in a queue a work starts when the last one ended."""

    def __init__(self, works, launch, queue):
        self.now = self.free = 0.0
        self.works, self.launch, self.queue, self.started = works, launch, queue, 0

    def clock(self):
        return self.now

    def submit(self):
        self.now += self.launch
        work, self.started = self.works[self.started % len(self.works)], self.started + 1
        self.free = max(self.now, self.free) + work
        return _Future(self, work, self.free)


class _Future:
    def __init__(self, job, work, end):
        self.job, self.work, self.end = job, work, end

    def result(self):
        job = self.job
        job.now = max(job.now, self.end) if job.queue else job.now + self.work


def _expects(works, launch, *pairs, queue=True):
    """A test with a job of this kind: pairs of repeats and the seconds that must come out."""

    def test(timer):
        for repeats, expected in pairs:
            job = _Job(works, launch, queue)
            assert abs(timer(job.submit, job.clock, repeats) - expected) < 1e-9

    return test


def _weak(works, launch, *pairs):
    """The same with one number of repeats or all, and with or without a queue."""
    several = (pairs, pairs[:1])
    return [_expects(works, launch, *p, queue=queue) for p in several for queue in (True, False)]


def _only_positive(timer):
    job = _Job([3.0, 1.0, 2.0, 7.0, 2.0], 1.0, True)
    assert timer(job.submit, job.clock, 3) > 0


def _longer_than_the_launch(timer):
    job = _Job([9.0, 1.0, 2.0, 7.0, 2.0], 1.0, True)
    assert timer(job.submit, job.clock, 3) > 1.5


WORKS = [50.0, 5.0, 9.0, 100.0, 6.0, 4.0, 50.0]
SHORT_LAST = [*WORKS[:-1], 5.0]  # lets a second warm-up through

timer_test = CatchFaults(
    level=3,
    trains="a test for a timer",
    right={
        "a clock read between the runs": _between_the_runs,
        "by hand": _by_hand,
        "first one dropped": _first_dropped,
    },
    faults=(
        Mistake(
            "times the launch",
            "Give submit and result a different time each: one timer stops its clock after submit.",
            _with(run=_launch),
        ),
        Mistake(
            "never waits",
            "Let most of the time pass in result(): one timer never calls it.",
            _never_waits,
        ),
        Mistake(
            "times the wait alone",
            "Let time pass in submit(), too, and more of it than your test tolerates: one timer "
            "starts its clock after it.",
            _with(run=_wait_only),
        ),
        Mistake(
            "no warm-up",
            "One timer counts the first run and leaves out the last. Let that move the median: the "
            "first run longer than the median, the last one shorter.",
            _first_counts,
        ),
        Mistake(
            "the warm-up counts",
            "Let the first run take another time than the rest, and the others differ, so that one "
            "more sample moves the median.",
            _one_more_sample,
        ),
        Mistake(
            "mean",
            "Ask for three runs or more, and let one take much longer than the others: a mean "
            "moves.",
            _with(centre=mean),
        ),
        Mistake(
            "a trimmed mean",
            "One timer leaves out the fastest and the slowest run, and takes the mean of the "
            "others. Of three or four runs that is the median: ask for five, with numbers for "
            "which it is not, and compare closely.",
            _with(centre=partial(_trimmed_mean, cut=1)),
        ),
        Mistake(
            "an odd number not sorted",
            "Of an odd number of runs let the one in the middle take another time than the median.",
            _with(centre=_sorts_all_but(1)),
        ),
        Mistake(
            "an even number not sorted",
            "Of an even number of runs let the two in the middle be others than those of the "
            "median.",
            _with(centre=_sorts_all_but(0)),
        ),
        Mistake(
            "the warm-up's result awaited again",
            "Let each future wait for the end of its own work, not for that of the latest one.",
            _awaits_the_warm_up,
        ),
        Mistake("the fastest", "Let the runs take different times.", _with(centre=min)),
        Mistake("the slowest", "Let the runs take different times.", _with(centre=max)),
        Mistake(
            "total", "Ask for several repeats: one timer returns their sum.", _with(centre=sum)
        ),
        Mistake(
            "the first sample alone",
            "Let the first run after the warm-up take another time than the median.",
            _with(centre=_first),
        ),
        Mistake(
            "the last sample alone",
            "Let the last run take another time than the median.",
            _with(centre=_last),
        ),
        Mistake(
            "one sample too few",
            "Let the last run decide the median: one timer stops before it.",
            lambda submit, clock, repeats: _timer(submit, clock, max(1, repeats - 1)),
        ),
        Mistake(
            "two warm-ups",
            "One timer leaves out the run after the warm-up, too, and makes one more at the end. "
            "Let that one be slow, or count the runs.",
            _with(warm=2),
        ),
        Mistake(
            "always five runs",
            "Ask for several numbers of repeats: one timer does not look at it.",
            lambda submit, clock, repeats: _timer(submit, clock, 5),
        ),
        Mistake(
            "the lower one of the two in the middle",
            "Ask for an even number of repeats, too: its median is a mean of two.",
            _with(centre=_lower),
        ),
        Mistake(
            "all started first",
            "Let the work queue, or note what happens in which order: one timer starts all runs "
            "before it waits for the first.",
            _all_at_once,
        ),
        Mistake(
            "the warm-up is not awaited",
            "One timer starts the warm-up and does not wait for it. Note whose result was asked "
            "for; or let the work queue, and the first run after the warm-up be a short one.",
            _warm_up_not_awaited,
        ),
    ),
    nearly=(
        Mistake(
            "readings counted",
            "It accepts only timers that read the clock twice for each run, no more and no less. "
            "Let the works move the clock, not its readings.",
            _timer,
        ),
    ),
    mistakes=(
        Mistake(
            "only that a number comes out",
            "Most faults pass: they return a positive number, too. Choose how long each run "
            "takes, and compare with the time that must come out.",
            _only_positive,
        ),
        Mistake(
            "one number of repeats",
            "A timer that always takes five runs may pass, and so may one with another median of "
            "an even number of samples. Ask for an odd and an even number.",
            *_weak(WORKS, 1.0, (5, 7.0)),
            *_weak(SHORT_LAST, 1.0, (5, 7.0)),
        ),
        Mistake(
            "a warm-up that need not be awaited",
            "A warm-up that nobody waits for costs nothing here. Let each work begin when the one "
            "before has ended, the warm-up take long, and the first run after it be shorter than "
            "the median; or note whose result was asked for.",
            _expects(WORKS, 1.0, (5, 7.0), (4, 8.5), queue=False),
            _expects(SHORT_LAST, 1.0, (5, 7.0), (4, 8.5), queue=False),
        ),
        Mistake(
            "all runs take the same time",
            "Then the fastest, the slowest, the mean and the median are equal, and the warm-up is "
            "like the rest. Let each run take another time.",
            *_weak([2.0], 1.0, (3, 3.0), (4, 3.0)),
        ),
        Mistake(
            "no time passes in submit",
            "A timer that starts its clock after submit passes. Let a launch take time, too, and "
            "more of it than the test tolerates.",
            *_weak(WORKS, 0.0, (5, 6.0), (4, 7.5)),
        ),
        Mistake(
            "all time passes in submit",
            "Then there is nothing to wait for, and a timer that stops at the launch passes. "
            "Let result() take time.",
            *_weak([0.0], 3.0, (5, 3.0), (4, 3.0)),
        ),
        Mistake(
            "a single repeat",
            "One sample is its own median, mean, minimum and total. Ask for several.",
            *_weak([50.0, 4.0, 6.0], 1.0, (1, 5.0)),
        ),
        Mistake(
            "no slow first run",
            "Here the first run is like the others, so that a timer without a warm-up passes. Let "
            "it be much slower.",
            *_weak([6.0, *WORKS[1:]], 1.0, (5, 7.0)),
        ),
        Mistake(
            "only longer than the launch",
            "A bound catches the timers that stop at the launch, and lets through many that do "
            "not. Compare with the time that must come out.",
            _longer_than_the_launch,
        ),
    ),
    hints=(
        "A clock may be any function that returns a number: write one that you move yourself.",
        "submit() moves the clock by the launch, and notes when its work will end: it begins when "
        "the work before it has ended. result() moves the clock to that end. Let the first run be "
        "slow, and let one of the others be much slower.",
        "With works of 50, 5, 9, 100, 6, 4 and 50, each begun when the one before has ended, and a "
        "launch of 1, the median is 7 for 5 repeats and 8.5 for 4. Ask for both.",
    ),
)

EXERCISES = {
    "best_speed": best_speed,
    "core_flops": core_flops,
    "speed_up": speed_up,
    "reached": reached,
    "timer_test": timer_test,
}
