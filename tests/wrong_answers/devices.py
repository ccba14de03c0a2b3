"""Answers to the exercises of chapter 15: right ones, mistakes written anew, new mistakes."""

import math
from contextlib import suppress

import numpy as np
import torch
from wrong_answers.lookup import loop_softmax, rows

# ---------------------------------------------------------------------------- ring_bytes

STEP = 2 * 1024 * 256 * 2
RING_BYTES = {
    "one step too many": [4.0 * STEP],
    "one step alone": [float(STEP)],
    "four times too much": [12.0 * STEP],
    "half of it": [1.5 * STEP],
    "numbers of the keys alone": [0.75 * STEP],
    "the queries travel too": [4.5 * STEP],
    "twice as much": [6.0 * STEP, 3 * 4096 * 256 * 2],
    "all keys once": [2.0 * STEP, 4096 * 256 * 2],
    "the backward pass too": [(3 + 3 + 4 * 2) * STEP, 14680064, (3 + 3 + 4) * STEP],
    "the backward pass alone": [(3 + 4 * 2) * STEP, 11534336, (3 + 4) * STEP],
    "in another unit": [3.145728, 3, 3.0, 3145.728, 3072, 24 * STEP, 25165824],
    "more than keys and values": [
        3.0 * (STEP + 72),
        3.0 * (STEP + 8 * 1024),
        3.0 * (STEP + 8 * 1024 + 72),
    ],
}
RING_BYTES_RIGHT = [3 * STEP, 3.0 * STEP, np.int64(3 * STEP)]
RING_BYTES_NEW = [
    0, 1, 3 * (STEP + 64), STEP / 2, 3 * STEP + 1, -3 * STEP, 3 * STEP / 4096, math.nan, math.inf,
    str(3 * STEP), (3 * STEP,), [3 * STEP], True, 8 * STEP, 9 * STEP, 3.1,
]  # fmt: skip

# ---------------------------------------------------------------------------- merge_slices


def shared_out(share):
    """Every query alone: `share(lses of its parts)`, a list, times its outputs."""

    def function(outputs, lses):
        merged = np.zeros(outputs.shape[1:], dtype=outputs.dtype)
        for i in range(outputs.shape[1]):
            shares = share([float(x) for x in lses[:, i]])
            for part, weight in zip(outputs[:, i], shares, strict=True):
                merged[i] += weight * part
        return merged

    return function


right_merge = shared_out(loop_softmax)


def by_logaddexp(outputs, lses):
    merged, so_far = outputs[0], lses[0]
    for part, lse in zip(outputs[1:], lses[1:], strict=True):
        both = np.logaddexp(so_far, lse)
        merged = merged * np.exp(so_far - both)[:, None] + part * np.exp(lse - both)[:, None]
        so_far = both
    return merged


def lost_so_far(outputs, lses):
    merged, before = outputs[0], lses[0]
    for part, lse in zip(outputs[1:], lses[1:], strict=True):
        both = np.logaddexp(before, lse)
        merged = merged * np.exp(before - both)[:, None] + part * np.exp(lse - both)[:, None]
        before = lse
    return merged


def over_all(outputs, lses):
    weights = np.exp(lses - lses.max())
    return (weights[..., None] / weights.sum() * outputs).sum(0)


def over_queries(outputs, lses):
    return np.einsum("pq,pqv->qv", rows(loop_softmax)(lses), outputs)


def plain_exponentials(outputs, lses):
    weights = np.exp(lses)
    return np.einsum("pq,pqv->qv", weights, outputs) / weights.sum(axis=0)[:, None]


def one_maximum(outputs, lses):
    weights = np.exp(lses - np.max(lses))
    return np.einsum("pq,pqv->qv", weights, outputs) / weights.sum(axis=0)[:, None]


def first_shares(outputs, lses):
    shares = loop_softmax([float(x) for x in lses[:, 0]])
    return sum(share * part for share, part in zip(shares, outputs, strict=True))


def winner(lses):
    return [float(i == int(np.argmax(lses))) for i in range(len(lses))]


MERGE_SLICES = {
    "the fault is still there: averaged": [shared_out(lambda x: [1 / len(x)] * len(x))],
    "parts added": [shared_out(lambda x: [1.0] * len(x))],
    "shares that do not add up to 1": [shared_out(lambda x: list(np.exp(x)))],
    "log-sum-exps as shares": [shared_out(lambda x: [a / sum(x) for a in x])],
    "log-sum-exps as factors": [shared_out(lambda x: x)],
    "softmax over the queries": [over_queries],
    "softmax over everything": [over_all],
    "sign turned": [shared_out(lambda x: loop_softmax([-a for a in x]))],
    "one part alone": [
        lambda o, x: np.array(o[0]),
        lambda o, x: o[len(o) - 1].copy(),
    ],
    "the largest part alone": [shared_out(winner)],
    "exponentials overflow": [plain_exponentials],
    "log-sum-exp of the last part kept": [lost_so_far],
    "one maximum for all queries": [one_maximum],
    "two parts alone": [lambda o, x: by_logaddexp(o[:2], x[:2])],
    "the first query's shares for all": [first_shares],
    "shared out, and averaged": [
        shared_out(lambda x: [share / len(x) for share in loop_softmax(x)])
    ],
}
MERGE_SLICES_RIGHT = [
    right_merge,
    by_logaddexp,
    lambda o, x: (torch.tensor(x).softmax(0)[..., None] * torch.tensor(o)).sum(0).numpy(),
]
MERGE_SLICES_NEW = [
    lambda o, x: right_merge(o, x)[None],
    lambda o, x: right_merge(o, x).tolist(),
    lambda o, x: 2 * right_merge(o, x),
    lambda o, x: right_merge(o, x).round(2),
    lambda o, x: right_merge(o, x) + 1e-3,
    lambda o, x: right_merge(o, x / 2),
    lambda o, x: right_merge(o, 2 * x),
    lambda o, x: right_merge(o[::-1], x),
    lambda o, x: right_merge(o, x)[::-1],
    lambda o, x: right_merge(o, x).sum(-1),
    lambda o, x: right_merge(o, x).astype(np.float16),
    lambda o, x: o,
    lambda o, x: np.median(o, axis=0),
    lambda o, x: right_merge(o, x * np.log(2)),
    lambda o, x: right_merge(o, np.broadcast_to(x.mean(1, keepdims=True), x.shape)),
    lambda o, x: o.max(axis=0),
    lambda o, x: np.log(np.exp(x).sum(0)),
]

# ---------------------------------------------------------------------------- sum_of_parts


def number_by_number(column, bias=1, ranks=None):
    """Every number alone; `column(rank, j, width, count)` meets number j of a rank."""

    def function(heads, weight, b):
        count, length, width = heads.shape
        result = np.zeros((length, len(weight)), dtype=heads.dtype)
        for i, o in np.ndindex(result.shape):
            total = bias(count) * b[o] if callable(bias) else bias * b[o]
            for r in range(count) if ranks is None else ranks(count):
                for j in range(width):
                    total += heads[r, i, j] * weight[o, column(r, j, width, count)]
            result[i, o] = total
        return result

    return function


def neighbours(r, j, width, count):
    return r * width + j


right_sum = number_by_number(neighbours)


def joined(heads, weight, bias):
    return np.concatenate(list(heads), axis=-1) @ weight.T + bias


def rows_cut(heads, weight, bias):
    cut = weight.reshape(len(heads), len(weight), -1)
    return sum(h @ part.T for h, part in zip(heads, cut, strict=True)) + bias


SUM_OF_PARTS = {
    "the bias on every rank": [number_by_number(neighbours, bias=lambda n: n)],
    "no all-reduce": [
        number_by_number(neighbours, ranks=lambda n: [0]),
        number_by_number(neighbours, ranks=lambda n: [n - 1]),
    ],
    "parts left apart": [
        lambda h, w, b: np.stack(
            [x @ part.T + b for x, part in zip(h, np.split(w, len(h), axis=1), strict=True)]
        ),
        lambda h, w, b: h @ np.stack(np.split(w, len(h), axis=1)).swapaxes(1, 2),
    ],
    "averaged": [lambda h, w, b: (joined(h, w, b) - b) / len(h) + b],
    "no bias": [number_by_number(neighbours, bias=0)],
    "columns dealt out in turn": [number_by_number(lambda r, j, width, count: j * count + r)],
    "the first columns for every rank": [number_by_number(lambda r, j, width, count: j)],
    "ranks in reverse": [
        number_by_number(lambda r, j, width, count: (count - 1 - r) * width + j),
    ],
    "the average of bias and parts": [lambda h, w, b: joined(h, w, b) / len(h)],
    "heads not side by side": [lambda h, w, b: np.reshape(h, (h.shape[1], -1)) @ w.T + b],
    "the matrix cut along its rows": [rows_cut],
    "a part of the bias": [number_by_number(neighbours, bias=lambda n: 1 / n)],
    "two ranks alone": [number_by_number(neighbours, ranks=lambda n: range(min(n, 2)))],
    "the last rank is lost": [number_by_number(neighbours, ranks=lambda n: range(n - 1))],
}
SUM_OF_PARTS_RIGHT = [right_sum, joined]
SUM_OF_PARTS_NEW = [
    lambda h, w, b: right_sum(h, w, b)[None],
    lambda h, w, b: right_sum(h, w, b).T,
    lambda h, w, b: right_sum(h, w, b).tolist(),
    lambda h, w, b: right_sum(h, w, b).round(1) + 0.01,
    lambda h, w, b: 2 * right_sum(h, w, b),
    lambda h, w, b: right_sum(h, w, -b),
    lambda h, w, b: right_sum(h, w, 2 * b),
    lambda h, w, b: right_sum(h, w, b * max(1, len(h) - 1)),
    lambda h, w, b: right_sum(h, w, b)[::-1],
    lambda h, w, b: right_sum(h, -w, b),
    lambda h, w, b: joined(h, w, b).astype(np.float16),
    lambda h, w, b: joined(h, w[::-1], b),
    lambda h, w, b: joined(h, w[:, ::-1], b),
    lambda h, w, b: joined(h, w, b).sum(0),
    lambda h, w, b: np.concatenate(list(h), axis=-1),
    lambda h, w, b: np.concatenate(list(h), axis=0) @ w.T + b,
    lambda h, w, b: b,
]

# ---------------------------------------------------------------------------- rank_output


def row_by_row(allowed, scaled=True, of_row=loop_softmax, size=None):
    """Every query alone; `allowed(rank, i, owner, j)` says whether it sees key j of a slice."""

    def function(query, keys, values, rank):
        n, d = query.shape
        result = np.zeros((n, values.shape[-1]), dtype=values.dtype)
        for i in range(n):
            seen = [o for o in np.ndindex(keys.shape[:2]) if allowed(rank, i, *o, n)]
            if not seen:
                result[i] = np.nan
                continue
            root = math.sqrt(size(query, values) if size else d) if scaled else 1
            scores = [float(query[i] @ keys[o]) / root for o in seen]
            for weight, o in zip(of_row(scores), seen, strict=True):
                result[i] += weight * values[o]
        return result

    return function


def overflowing(scores):
    e = np.exp(np.array(scores))
    return list(e / e.sum())


def up_to(offset):
    return lambda rank, i, owner, j, n: owner * n + j <= offset(rank, n) + i


right_rank = row_by_row(up_to(lambda rank, n: rank * n))


def slice_by_slice(weight):
    def function(query, keys, values, rank):
        total = 0
        for owner in range(rank + 1):
            part = row_by_row(lambda r, i, o, j, n, own=owner: o == own and o * n + j <= r * n + i)
            total = total + part(query, keys, values, rank)
        return total * weight(rank + 1)

    return function


def hidden_weighed(weigh):
    """All scores of a query at once, with what is hidden: `weigh(scores, hidden)`."""

    def function(query, keys, values, rank):
        n, d = query.shape
        result = np.zeros((n, values.shape[-1]), dtype=values.dtype)
        for i in range(n):
            scores = np.array([key @ query[i] / math.sqrt(d) for key in keys.reshape(-1, d)])
            weights = weigh(scores, np.arange(len(scores)) > rank * n + i)
            result[i] = weights @ values.reshape(len(scores), -1)
        return result

    return function


def after_softmax(scores, hidden):
    weights = np.array(loop_softmax(list(scores)))
    weights[hidden] = 0
    return weights


def filled(number):
    def weigh(scores, hidden):
        scores[hidden] = number
        return np.array(loop_softmax(list(scores)))

    return weigh


def minus_largest(scores, hidden):
    e = np.exp(scores - max(scores))
    e[hidden] = 0
    return e / e.sum()


def as_they_arrive(query, keys, values, rank):
    order = [(rank - step) % len(keys) for step in range(len(keys))]
    return right_rank(query, keys[order], values[order], rank)


RANK_OUTPUT = {
    "mask offset of rank 0": [row_by_row(up_to(lambda rank, n: 0))],
    "offset in ranks, not in positions": [row_by_row(up_to(lambda rank, n: rank))],
    "offset of the rank before": [row_by_row(up_to(lambda rank, n: max(0, rank * n - n)))],
    "offset of the rank behind": [row_by_row(up_to(lambda rank, n: rank * n + n))],
    "the own slice in full": [row_by_row(lambda rank, i, owner, j, n: owner <= rank)],
    "a triangle in every slice": [
        row_by_row(lambda rank, i, owner, j, n: owner <= rank and j <= i),
        row_by_row(lambda rank, i, owner, j, n: j <= i),
    ],
    "own slice alone": [row_by_row(lambda rank, i, owner, j, n: owner == rank and j <= i)],
    "no mask": [row_by_row(lambda *_: True)],
    "slices averaged": [slice_by_slice(lambda n: 1 / n)],
    "slices added": [slice_by_slice(lambda n: 1)],
    "not scaled": [row_by_row(up_to(lambda rank, n: rank * n), scaled=False)],
    "exponentials overflow": [row_by_row(up_to(lambda rank, n: rank * n), of_row=overflowing)],
    "the triangle turned": [
        row_by_row(lambda rank, i, owner, j, n: owner * n + j >= rank * n + i),
    ],
    "keys in the order of the ring": [as_they_arrive],
    "one position too many": [row_by_row(up_to(lambda rank, n: rank * n + 1))],
    "the own position hidden": [row_by_row(up_to(lambda rank, n: rank * n - 1))],
    "masked after the softmax": [hidden_weighed(after_softmax)],
    "0 in place of minus infinity": [hidden_weighed(filled(0))],
    "a large number in place of minus infinity": [hidden_weighed(filled(-1e3))],
    "hidden scores in the maximum": [hidden_weighed(minus_largest)],
    "the root of another size": [
        row_by_row(up_to(lambda rank, n: rank * n), size=lambda q, v: len(q)),
        row_by_row(up_to(lambda rank, n: rank * n), size=lambda q, v: v.shape[-1]),
        row_by_row(up_to(lambda rank, n: rank * n), size=lambda q, v: q.shape[-1] ** 2),
    ],
}
RANK_OUTPUT_RIGHT = [
    right_rank,
    lambda q, k, v, rank: right_rank(q, k[: rank + 1], v[: rank + 1], rank),
]
RANK_OUTPUT_NEW = [
    lambda q, k, v, rank: right_rank(q, k, v, rank)[None],
    lambda q, k, v, rank: right_rank(q, k, v, rank).tolist(),
    lambda q, k, v, rank: right_rank(q, k, v, rank) + 1e-3,
    lambda q, k, v, rank: 2 * right_rank(q, k, v, rank),
    lambda q, k, v, rank: right_rank(q, k, v, rank)[::-1],
    lambda q, k, v, rank: right_rank(q[::-1], k, v, rank),
    lambda q, k, v, rank: right_rank(q, k[::-1], v, rank),
    lambda q, k, v, rank: right_rank(q, k, v[::-1], rank),
    lambda q, k, v, rank: right_rank(-q, k, v, rank),
    lambda q, k, v, rank: right_rank(q / 2, k, v, rank),
    lambda q, k, v, rank: right_rank(q, k, v, len(k) - 1),
    lambda q, k, v, rank: right_rank(q, k, v, rank).sum(-1),
    lambda q, k, v, rank: right_rank(q, k, v, rank).astype(np.float16),
    lambda q, k, v, rank: values_of(v, rank),
    row_by_row(lambda rank, i, owner, j, n: owner == rank and j == i),
    lambda q, k, v, rank: v.mean((0, 1)),
]


def values_of(values, rank):
    return values[rank]


# ---------------------------------------------------------------------------- ring_test


def by_loops(query, key, value):
    return np.array(
        [
            sum(
                w * v
                for w, v in zip(loop_softmax(list(key @ q / math.sqrt(len(q)))), value, strict=True)
            )
            for q in query
        ]
    )


def compares(*sizes, zero_keys=False, tolerance=1e-9, seed=7, look=np.asarray):
    def test(ring):
        for length, ranks in sizes:
            rng = np.random.default_rng(seed)
            query, key, value = (rng.normal(size=(length, 3)) for _ in range(3))
            key = 0 * key if zero_keys else key
            got = ring(query, key, value, ranks)
            want = by_loops(query, key, value)
            assert np.allclose(look(got), look(want), rtol=0, atol=tolerance)

    return test


def shape_is_kept(ring):
    x = np.ones((8, 4))
    assert ring(x, x, x, 2).shape == (8, 4)


def within_values(ring):
    rng = np.random.default_rng(3)
    query, key, value = (rng.normal(size=(7, 4)) for _ in range(3))
    got = ring(query, key, value, 3)
    assert np.all(got.max(axis=0) < value.max(axis=0) + 1e-6)
    assert np.all(got.min(axis=0) > value.min(axis=0) - 1e-6)


ALL = (7, 1), (7, 2), (7, 3), (7, 4)
RING_TEST = {
    "nothing about the numbers": [shape_is_kept],
    "the last row is not compared": [
        compares(*ALL, look=lambda x: x[0]),
        compares(*ALL, look=lambda x: x[:-1]),
    ],
    "the last column is not compared": [
        compares(*ALL, look=lambda x: x[:, 0]),
        compares(*ALL, look=lambda x: x[:, :-1]),
    ],
    "one number of all": [compares(*ALL, look=np.mean), compares(*ALL, look=np.sum)],
    "a wide tolerance": [compares(*ALL, tolerance=0.1)],
    "neither two nor four ranks": [compares((7, 3)), compares((7, 1), (8, 3))],
    "two ranks are not tried": [compares((7, 4)), compares((7, 1), (7, 3), (7, 4))],
    "three ranks at most": [compares((11, 2), (11, 3)), compares((7, 1), (7, 2), (7, 3))],
    "one rank alone": [compares((7, 1)), compares((5, 1))],
    "two ranks alone": [compares((8, 2)), compares((4, 2))],
    "slices of one length": [compares((8, 4)), compares((9, 3))],
    "keys that are all alike": [compares((8, 2), (8, 4), zero_keys=True)],
    "averages within the range of the values": [within_values],
}
RING_TEST_RIGHT = [
    compares((7, 1), (7, 2), (7, 3), (7, 4)),
    compares((11, 2), (11, 4)),
    compares((13, 4), (13, 2), seed=1),
    compares((5, 2), (5, 4), (5, 5), tolerance=1e-3),
]


def wants_exact(ring):
    query, key, value = np.random.default_rng(0).normal(size=(3, 7, 4))
    assert (ring(query, key, value, 3) == by_loops(query, key, value)).all()


def wants_causal(ring):
    query, key, value = np.random.default_rng(0).normal(size=(3, 7, 4))
    assert np.allclose(ring(query, key, value, 3)[0], value[0])


def wants_average(ring):
    query, key, value = np.random.default_rng(0).normal(size=(3, 6, 4))
    halves = [by_loops(query, key[i], value[i]) for i in (slice(3), slice(3, 6))]
    assert np.allclose(ring(query, key, value, 2), sum(halves) / 2)


def never_calls(ring):
    assert callable(ring)


def no_assert(ring):
    query, key, value = np.random.default_rng(0).normal(size=(3, 7, 4))
    np.allclose(ring(query, key, value, 3), by_loops(query, key, value))


def prints(ring):
    query, key, value = np.random.default_rng(0).normal(size=(3, 7, 4))
    print(np.abs(ring(query, key, value, 3) - by_loops(query, key, value)).max())


def three_arguments(ring):
    query, key, value = np.random.default_rng(0).normal(size=(3, 7, 4))
    assert np.allclose(ring(query, key, value), by_loops(query, key, value))


def swallows(ring):
    with suppress(AssertionError):
        compares((7, 3))(ring)


def another_scale(ring):
    query, key, value = np.random.default_rng(0).normal(size=(3, 7, 4))
    assert np.allclose(ring(query, key, value, 3), by_loops(query / 2, key, value))


def raises_value_error(ring):
    query, key, value = np.random.default_rng(0).normal(size=(3, 7, 4))
    for ranks in range(1, 5):
        if not np.allclose(ring(query, key, value, ranks), by_loops(query, key, value)):
            raise ValueError("different")


def two_arguments(ring, more):
    compares((7, 3))(ring)


RING_TEST_NEW = [
    wants_exact, wants_causal, wants_average, never_calls, no_assert, prints, three_arguments,
    swallows, another_scale, raises_value_error, two_arguments,
]  # fmt: skip

ANSWERS = {
    "ring_bytes": (RING_BYTES_RIGHT, RING_BYTES, RING_BYTES_NEW),
    "merge_slices": (MERGE_SLICES_RIGHT, MERGE_SLICES, MERGE_SLICES_NEW),
    "sum_of_parts": (SUM_OF_PARTS_RIGHT, SUM_OF_PARTS, SUM_OF_PARTS_NEW),
    "rank_output": (RANK_OUTPUT_RIGHT, RANK_OUTPUT, RANK_OUTPUT_NEW),
    "ring_test": (RING_TEST_RIGHT, RING_TEST, RING_TEST_NEW),
}
