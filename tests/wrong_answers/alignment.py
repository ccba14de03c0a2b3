"""Answers to the exercises of chapter 10: right ones, known mistakes written anew, new ones."""

import itertools
import math

import numpy as np

# ---------------------------------------------------------------------------- rows_that_move

ROWS_THAT_MOVE = {
    "the row of the changed input forgotten": [6.0, np.int64(6)],
    "the rows before": [4.0],
    "rows 0 to 4": [np.float64(5)],
    "row 3 counted as well": [8.0],
    "all rows but one": [10.0],
    "one row alone": [1.0],
    "all rows": [11.0, np.int64(11)],
    "a few rows": [2.0, 3.0],
    "no row": [0.0],
}
ROWS_THAT_MOVE_RIGHT = [7, 7.0, np.int64(7), np.array(7)]
ROWS_THAT_MOVE_NEW = [
    9, 12, -1, -7, 77, 6.5, math.nan, math.inf, (7,), [7], "7", True, 110, range(4, 11),
]  # fmt: skip

# ---------------------------------------------------------------------------- decoder_inputs


def by_position(rule, length=lambda T: T):
    """Every position alone: `rule(sequence, start, t)` is its vector."""

    def function(target, start):
        return np.array(
            [[rule(seq, start, t) for t in range(length(len(seq)))] for seq in target]
        ).reshape(len(target), length(target.shape[1]), target.shape[2])

    return function


def right_inputs(target, start):
    result = np.empty_like(target)
    result[:, 0] = start
    result[:, 1:] = target[:, :-1]
    return result


def overwritten(target, start):
    result = target.copy()
    for t in range(1, target.shape[1]):
        result[:, t] = result[:, t - 1]
    result[:, 0] = start
    return result


DECODER_INPUTS = {
    "not shifted": [by_position(lambda y, s, t: y[t])],
    "shifted to the left": [by_position(lambda y, s, t: [*y, s][t + 1])],
    "rolled around": [by_position(lambda y, s, t: y[t - 1])],
    "first character replaced": [by_position(lambda y, s, t: y[t] if t else s)],
    "last character kept": [by_position(lambda y, s, t: [s, *y][t], lambda T: T + 1)],
    "no start": [by_position(lambda y, s, t: y[t], lambda T: T - 1)],
    "zeros in front": [by_position(lambda y, s, t: y[t - 1] if t else 0 * s)],
    "shifted along the batch": [
        lambda y, s: np.stack([np.tile(s, (y.shape[1], 1)), *y][:-1]),
    ],
    "shifted along the features": [
        by_position(lambda y, s, t: [y[t][-1], *y[t][:-1]]),
        by_position(lambda y, s, t: [s[0], *y[t][:-1]]),
    ],
    "the first character everywhere": [overwritten],
    "read from right to left": [by_position(lambda y, s, t: y[-t] if t else s)],
    "shifted by two": [by_position(lambda y, s, t: y[t - 2] if t > 1 else s)],
}
DECODER_INPUTS_RIGHT = [
    right_inputs,
    by_position(lambda y, s, t: [s, *y][t]),
    lambda y, s: np.insert(y, 0, s, axis=1)[:, :-1],
]
DECODER_INPUTS_NEW = [
    lambda y, s: right_inputs(y, s)[0],
    lambda y, s: right_inputs(y, s).swapaxes(0, 1),
    lambda y, s: right_inputs(y, s) + 1e-3,
    lambda y, s: right_inputs(y, -s),
    lambda y, s: right_inputs(y, s).tolist(),
    lambda y, s: right_inputs(y, s)[..., :1],
    lambda y, s: right_inputs(y, s)[..., None],
    lambda y, s: np.concatenate([y, right_inputs(y, s)[:, :1]], axis=1),
    lambda y, s: right_inputs(y + s, s),
    lambda y, s: right_inputs(y, s) + y,
    lambda y, s: right_inputs(0 * y, s),
    lambda y, s: right_inputs(y, s).round(0),
    lambda y, s: right_inputs(y, s.mean() + 1),
    lambda y: y,
    lambda y, s: s,
]

# ---------------------------------------------------------------------------- padded_loss


def surprises(scores, target):
    """-log p as nested lists of Python numbers, padding included."""
    return [
        [math.log(sum(math.exp(x) for x in row)) - row[y] for row, y in zip(rows, ids, strict=True)]
        for rows, ids in zip(scores.tolist(), target.tolist(), strict=True)
    ]


def kept(scores, target, keep=lambda y: y != 0):
    """The -log p of the positions that `keep` keeps, one list for each text."""
    pairs = zip(surprises(scores, target), target.tolist(), strict=True)
    return [[v for v, y in zip(row, ys, strict=True) if keep(y)] for row, ys in pairs]


def mean(values):
    return sum(values) / len(values) if values else math.nan


def joined(rows):
    return list(itertools.chain.from_iterable(rows))


def means(rows):
    return np.array([mean(row) for row in rows])


def right_loss(scores, target):
    return means(kept(scores, target))


def chances(scores, target, of=lambda p: p):
    return means([[of(math.exp(-x)) for x in row] for row in kept(scores, target)])


def padding_in_the_sum(scores, target):
    pairs = zip(surprises(scores, target), kept(scores, target), strict=True)
    return np.array([sum(row) / len(real) for row, real in pairs])


def one_padding_kept(scores, target):
    counts = [len(row) + 1 for row in kept(scores, target)]
    return means([row[:n] for row, n in zip(surprises(scores, target), counts, strict=True)])


def without_padding_class(scores, target):
    far = scores.copy()
    far[..., 0] = -700
    return right_loss(far, target)


def by_mean_length(scores, target):
    rows = kept(scores, target)
    return np.array([sum(row) for row in rows]) / mean([len(row) for row in rows])


def over_positions(scores, target):
    e = np.exp(scores)
    p = e / e.sum(axis=1, keepdims=True)
    return means(
        [[-math.log(p[i, t, y]) for t, y in enumerate(row) if y] for i, row in enumerate(target)]
    )


def raw(scores, target):
    return means(
        [[-scores[i, t, y] for t, y in enumerate(row) if y] for i, row in enumerate(target)]
    )


PADDED_LOSS = {
    "the fault is still there: padding counts": [lambda s, y: means(surprises(s, y))],
    "padding is zero, but divided by": [
        lambda s, y: np.array([sum(row) / y.shape[1] for row in kept(s, y)]),
    ],
    "padding in the sum": [padding_in_the_sum],
    "one padding kept": [one_padding_kept],
    "padding taken out of the softmax": [without_padding_class],
    "divided by the mean length": [by_mean_length],
    "one mean for all texts": [
        lambda s, y: np.array([mean(joined(kept(s, y)))] * len(y)),
        lambda s, y: np.float64(mean(joined(kept(s, y)))),
    ],
    "divided by the number of texts": [
        lambda s, y: np.array([sum(row) / len(y) for row in kept(s, y)]),
    ],
    "the sum": [lambda s, y: np.array([sum(row) for row in kept(s, y)])],
    "sign turned": [lambda s, y: -right_loss(s, y)],
    "only the padding": [lambda s, y: means(kept(s, y, lambda y: y == 0))],
    "softmax over the positions": [over_positions],
    "probability in place of its logarithm": [
        chances,
        lambda s, y: chances(s, y, lambda p: -p),
        lambda s, y: chances(s, y, lambda p: 1 - p),
    ],
    "logarithm of the mean": [lambda s, y: -np.log(chances(s, y))],
    "scores without softmax": [raw],
}
PADDED_LOSS_RIGHT = [
    right_loss,
    lambda s, y: np.array([sum(row) for row in kept(s, y)]) / np.count_nonzero(y, axis=1),
    lambda s, y: np.average(surprises(s, y), weights=y != 0, axis=1),
]
PADDED_LOSS_NEW = [
    lambda s, y: right_loss(s, y) / math.log(2),
    lambda s, y: means(kept(s, y, lambda y: y > 1)),
    lambda s, y: padding_in_the_sum(s * (y != 0)[..., None], y),
    lambda s, y: np.array([sum(row) for row in kept(s, y)]) / (y[0] != 0).sum(),
    lambda s, y: 2 * right_loss(s, y),
    lambda s, y: right_loss(s, y) + 1e-3,
    lambda s, y: np.array(surprises(s, y)),
    lambda s, y: np.array([max(row) for row in kept(s, y)]),
    lambda s, y: np.array([row[0] for row in kept(s, y)]),
    lambda s, y: right_loss(s, y)[::-1],
    lambda s, y: right_loss(2 * s, y),
    lambda s, y: right_loss(-s, y),
    lambda s, y: np.exp(right_loss(s, y)),
    lambda s, y: right_loss(s, y) ** 2,
    lambda s, y: 0 * right_loss(s, y),
    lambda s, y: right_loss(s, y).tolist(),
    lambda s, y: str(right_loss(s, y)),
    lambda s: s,
]

# ---------------------------------------------------------------------------- forward_steps


def places(weights):
    return [[max(range(len(row)), key=row.__getitem__) for row in m] for m in weights.tolist()]


def passed(path, counts):
    return [counts(a, b) for a, b in itertools.pairwise(path)]


def shares(paths, counts=lambda a, b: b >= a):
    return means([passed(path, counts) for path in paths])


def of_maps(function):
    return lambda weights: np.array([function(path) for path in places(weights)], dtype=float)


def not_back(path):
    return passed(path, lambda a, b: b >= a)


def beside_furthest(path):
    return mean([b >= max(path[:t]) for t, b in enumerate(path) if t])


def beside_diagonal(path, first=1):
    return mean([b >= t for t, b in enumerate(path) if t >= first])


FORWARD_STEPS = {
    "staying counted as back": [lambda w: shares(places(w), lambda a, b: b > a)],
    "steps back counted": [lambda w: shares(places(w), lambda a, b: b < a)],
    "steps back counted, staying with them": [lambda w: shares(places(w), lambda a, b: b <= a)],
    "divided by the rows": [of_maps(lambda path: sum(not_back(path)) / len(path))],
    "number of steps": [of_maps(lambda path: sum(not_back(path)))],
    "all or nothing": [of_maps(lambda path: path == sorted(path))],
    "one share for all maps": [
        lambda w: np.array([mean(joined(map(not_back, places(w))))] * len(w)),
        lambda w: np.float64(mean(joined(map(not_back, places(w))))),
    ],
    "largest weight of each column": [lambda w: shares(places(w.swapaxes(1, 2)))],
    "mean position in place of the best key": [
        lambda w: shares([[sum(j * x for j, x in enumerate(r)) for r in m] for m in w.tolist()]),
    ],
    "compared with the first row": [of_maps(lambda path: mean([p >= path[0] for p in path[1:]]))],
    "largest weights compared, not their places": [
        lambda w: shares([[max(r) for r in m] for m in w.tolist()]),
    ],
    "compared with the furthest key so far": [of_maps(beside_furthest)],
    "compared with the diagonal": [
        of_maps(beside_diagonal),
        of_maps(lambda path: beside_diagonal(path, first=0)),
    ],
    "every step passes": [
        of_maps(lambda path: 1),
        lambda w: (np.diff(w.argmax(-1).astype(np.uint8)) >= 0).mean(1),
    ],
    "long steps left out": [of_maps(lambda path: mean(passed(path, lambda a, b: 0 <= b - a < 2)))],
    "smallest weight": [lambda w: shares(places(-w))],
}
FORWARD_STEPS_RIGHT = [
    lambda w: shares(places(w)),
    lambda w: 1 - shares(places(w), lambda a, b: b < a),
]
FORWARD_STEPS_NEW = [
    lambda w: shares(places(w)) + 1e-3,
    lambda w: shares(places(w)) / 2,
    lambda w: shares(places(w)) ** 2,
    lambda w: np.array([not_back(path) for path in places(w)], dtype=float),
    lambda w: np.array(places(w), dtype=float),
    lambda w: shares(places(w))[::-1] + 0.25,
    lambda w: w.max(axis=(1, 2)),
    lambda w: w.max(axis=-1).mean(axis=-1),
    lambda w: shares(places(w)).tolist(),
    lambda w: str(shares(places(w))),
    lambda w: shares(places(w), lambda a, b: b == a + 1),
    lambda w: (np.diff(w.argmax(-1), axis=0) >= 0).mean(1),
    lambda w: np.full(len(w), 0.5),
    lambda w: w,
    lambda w, v: w,
]

# ---------------------------------------------------------------------------- decoder_leaks

X = np.random.default_rng(51).normal(size=(7, 2))


def moved(decoder, t, amount=2.0, tolerance=1e-7):
    """Which rows change with input t, a number or a slice."""
    other = X.copy()
    other[t] = other[t] + amount
    return (abs(decoder(X) - decoder(other)) > tolerance).any(axis=1)


def only(t, rows):
    def test(decoder):
        assert not moved(decoder, t)[rows].any()

    return test


def all_inputs(rows):
    def test(decoder):
        for t in range(1, 7):
            assert not moved(decoder, t)[rows(t)].any()

    return test


def some_inputs(*numbers, **change):
    def test(decoder):
        for t in numbers:
            assert not moved(decoder, t, **change)[:t].any()

    return test


def border(t):
    def test(decoder):
        assert not moved(decoder, slice(t, None))[:t].any()

    return test


def moving_border(decoder):
    for t in range(1, 7):
        assert not moved(decoder, slice(t, None))[t - 1]


def of_two(decoder):
    assert np.allclose(decoder(X[:2])[0], decoder(X[:2] + np.eye(2)[1][:, None])[0])


def no_copy(decoder):
    x = X.copy()
    other = x
    for t in range(1, 7):
        other[t] += 1
        assert np.allclose(decoder(x)[:t], decoder(other)[:t])


def prefixes(decoder):
    for t in range(1, 8):
        assert np.allclose(decoder(X[:t]), decoder(X)[:t])


def upper_triangle(decoder):
    table = np.array([moved(decoder, t) for t in range(7)])  # (input, row)
    assert not np.tril(table, k=-1).any()


def finite(decoder):
    assert np.isfinite(decoder(X)).all()


def as_many_rows(decoder):
    assert len(decoder(X)) == 7


def too_small_a_change(decoder):
    assert not moved(decoder, 6, 0.0)[:6].any()


DECODER_LEAKS = {
    "an assertion that no fault breaks": [finite, as_many_rows, too_small_a_change, no_copy],
    "the last input changed, the first row compared": [only(6, [0])],
    "only the last input changed": [only(6, [0, 1, 2, 3, 4, 5])],
    "one input in the middle changed": [only(4, [0, 1, 2, 3]), only(3, [0, 1, 2])],
    "one input changed, one row compared": [only(4, [3]), only(2, [1]), only(1, [0])],
    "only the row before the changed input compared": [all_inputs(lambda t: [t - 1])],
    "only the first row compared": [all_inputs(lambda t: [0])],
    "one border between old and changed inputs": [border(3), border(2), border(5)],
    "the last input never changed": [some_inputs(1, 2, 3, 4, 5)],
    "the second input never changed": [some_inputs(2, 3, 4, 5, 6)],
    "two inputs alone": [of_two],
    "a tolerance too large for the change": [
        some_inputs(*range(1, 7), tolerance=1.0),
        some_inputs(*range(1, 7), tolerance=1.5),
        some_inputs(*range(1, 7), amount=1e-6, tolerance=5e-7),
    ],
}
DECODER_LEAKS_RIGHT = [
    all_inputs(lambda t: list(range(t))),
    prefixes,
    upper_triangle,
    moving_border,
    some_inputs(1, 2, 3, 4, 5, 6, amount=1e6),
]


def leak_no_assert(decoder):
    moved(decoder, 6).any()


def leak_prints(decoder):
    print("leaks" if moved(decoder, 6)[:6].any() else "passed")


def never_called(decoder):
    assert (X[:3] == X[:3]).all()


def wants_no_memory(decoder):
    assert not moved(decoder, 0)[1:].any()


def wants_nothing_to_move(decoder):
    assert not moved(decoder, 3).any()


def wants_the_input(decoder):
    assert np.allclose(decoder(X), X)


def two_arguments(decoder):
    assert not decoder(X, X).any()


def stops(decoder):
    assert decoder(X).shape == undefined_name


def swallows(decoder):
    try:
        assert not moved(decoder, 6)[:6].any()
    except AssertionError:
        print("leaks")


def middle_rows(decoder):
    for t in (2, 4, 5):
        assert not moved(decoder, t)[:t].any()


def last_two_turned(decoder):
    assert np.allclose(decoder(np.concatenate([X[:5], X[:4:-1]]))[:5], decoder(X)[:5])


def wants_finite_rows(decoder):
    for t in range(1, 7):
        assert not moved(decoder, t, amount=np.nan)[:t].any()
        assert np.isfinite(decoder(np.where(np.arange(7)[:, None] < t, X, np.nan))[:t]).all()


def row_of_the_change_as_well(decoder):
    for t in range(1, 7):
        assert not moved(decoder, t)[: t + 1].any()


def another_error(decoder):
    for t in range(1, 7):
        if moved(decoder, t)[:t].any():
            raise ValueError("it leaks")


def returned(decoder):
    return not any(moved(decoder, t)[:t].any() for t in range(1, 7))


DECODER_LEAKS_NEW = [
    last_two_turned, wants_finite_rows, row_of_the_change_as_well, another_error, returned,
    some_inputs(1, 2, 3, 4, 5, 6, tolerance=0.0),
    leak_no_assert, leak_prints, never_called, wants_no_memory, wants_nothing_to_move,
    wants_the_input, two_arguments, stops, swallows, middle_rows,
]  # fmt: skip

ANSWERS = {
    "rows_that_move": (ROWS_THAT_MOVE_RIGHT, ROWS_THAT_MOVE, ROWS_THAT_MOVE_NEW),
    "decoder_inputs": (DECODER_INPUTS_RIGHT, DECODER_INPUTS, DECODER_INPUTS_NEW),
    "padded_loss": (PADDED_LOSS_RIGHT, PADDED_LOSS, PADDED_LOSS_NEW),
    "forward_steps": (FORWARD_STEPS_RIGHT, FORWARD_STEPS, FORWARD_STEPS_NEW),
    "decoder_leaks": (DECODER_LEAKS_RIGHT, DECODER_LEAKS, DECODER_LEAKS_NEW),
}
