"""Answers to the exercises of chapter 7: right ones, listed mistakes written anew, new mistakes."""

import math

import numpy as np
import torch

from attention_lib import rotary, sinusoidal_positional_encoding

# --------------------------------------------------------------------- feedforward_parameters

FEEDFORWARD_PARAMETERS = {
    "biases forgotten": [512.0],
    "one of the two biases": [544.0, np.int64(520)],
    "PyTorch's width by default": [34824.0],
    "one of the two layers": [288.0, np.int64(264), 256.0],
    "hidden layer as wide as the stream": [144.0, 128],
    "the same bias for both": [576.0, np.float64(528)],
    "the whole block": [872.0],
    "with a norm": [np.int64(568), 584.0],
    "another hidden width": [280, 416.0],
    "features counted": [40.0, 48],
    "once for each head": [1104.0],
}
FEEDFORWARD_PARAMETERS_RIGHT = [552, 552.0, np.int64(552)]
FEEDFORWARD_PARAMETERS_NEW = [
    551, 553, 551.9999999, 552 + 1e-9, 0, 8, 32, 1024, -552, 5520, math.nan, math.inf,
    "552 parameters", (552,), [552],
]  # fmt: skip

# ---------------------------------------------------------------------------- waves


def wave_by_loop(
    angle=lambda p, i, width: p / 10000 ** (i / width), first=math.sin, second=math.cos,
    put=lambda table, p, i, a, b: table.__setitem__((p, slice(i, i + 2)), (a, b)),
):  # fmt: skip
    """One pair at one position after the other; i is the even column."""

    def function(length, width):
        table = np.zeros((length, width))
        for p in range(length):
            for i in range(0, width, 2):
                put(table, p, i, first(angle(p, i, width)), second(angle(p, i, width)))
        return table

    return function


def in_halves(table, p, i, a, b):
    table[p, i // 2], table[p, i // 2 + table.shape[1] // 2] = a, b


def column_angles(length, width, factor=1):
    table = np.zeros((length, width))
    for p, c in np.ndindex(length, width):
        table[p, c] = (math.cos if c % 2 else math.sin)(p / 10000 ** (factor * c / width))
    return table


def from_library(length, width):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return sinusoidal_positional_encoding(length, width).numpy()
    finally:
        torch.set_default_dtype(before)


def in_float32(length, width):
    columns = torch.arange(0, width, 2, dtype=torch.float32)
    angles = torch.outer(torch.arange(length).float(), torch.exp(-columns / width * math.log(1e4)))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).double().numpy()


right_waves = wave_by_loop()
WAVES = {
    "an angle of its own for each column": [
        column_angles,
        lambda length, width: column_angles(length, width, 2),
    ],
    "the even column doubled": [wave_by_loop(lambda p, i, width: p / 10000 ** (2 * i / width))],
    "last position first": [
        lambda length, width: np.array([right_waves(length, width)[~p] for p in range(length)]),
    ],
    "sines first, then cosines": [wave_by_loop(put=in_halves)],
    "cosines first, then sines": [
        wave_by_loop(first=math.cos, second=math.sin, put=in_halves),
    ],
    "sine and cosine swapped": [wave_by_loop(first=math.cos, second=math.sin)],
    "the number of the pair in the exponent": [
        wave_by_loop(lambda p, i, width: p / 10000 ** (i // 2 / width)),
    ],
    "not divided by the width": [wave_by_loop(lambda p, i, width: p / 10000.0**i)],
    "positions from 1": [wave_by_loop(lambda p, i, width: (p + 1) / 10000 ** (i / width))],
    "multiplied by the power": [wave_by_loop(lambda p, i, width: p * 10000 ** (i / width))],
    "another base": [
        wave_by_loop(lambda p, i, width: p / 1000 ** (i / width)),
        wave_by_loop(lambda p, i, width: p / 1e5 ** (i / width)),
    ],
    "sines alone": [wave_by_loop(second=math.sin)],
    "cosines alone": [wave_by_loop(first=math.cos)],
    "odd columns left 0": [wave_by_loop(second=lambda angle: 0.0)],
    "turned backwards": [wave_by_loop(lambda p, i, width: -p / 10000 ** (i / width))],
    "pairs numbered from 1": [wave_by_loop(lambda p, i, width: p / 10000 ** ((i + 2) / width))],
    "brackets missing": [wave_by_loop(lambda p, i, width: p / (10000.0**i / width))],
    "exponents up to 1": [
        wave_by_loop(lambda p, i, width: p / 10000 ** (i / (width - 2 or np.inf))),
    ],
    "angles alone": [
        wave_by_loop(first=float, second=float),
        lambda length, width: np.arange(length)[:, None] / 1e4 ** (np.arange(0, width, 2) / width),
    ],
    "rows mixed": [
        lambda length, width: np.array(
            [right_waves(length, width)[:, k::2] for k in (0, 1)]
        ).reshape(length, width),
    ],
    "transposed": [
        lambda length, width: np.array(list(zip(*right_waves(length, width), strict=True)))
    ],
}
WAVES_RIGHT = [right_waves, from_library, in_float32]
WAVES_NEW = [
    lambda length, width: np.zeros((length, width)),
    lambda length, width: right_waves(length, width) + 1e-5,
    lambda length, width: right_waves(length, width)[:, ::-1],
    lambda length, width: -right_waves(length, width),
    lambda length, width: right_waves(length, width) + 1e-3,
    lambda length, width: right_waves(length, width).round(2),
    lambda length, width: right_waves(length, width)[None],
    lambda length, width: right_waves(length, width).tolist(),
    lambda length, width: right_waves(length + 1, width),
    lambda length, width: right_waves(length, width + 2),
    lambda length, width: right_waves(length, width) * width**0.5,
    lambda length, width: right_waves(length, width).astype(np.float32),
    wave_by_loop(first=math.tan),
    wave_by_loop(lambda p, i, width: p),
    wave_by_loop(lambda p, i, width: p / 10000 ** (i / (width + 2))),
    wave_by_loop(lambda p, i, width: math.degrees(p / 10000 ** (i / width))),
    wave_by_loop(lambda p, i, width: 2 * math.pi * p / 10000 ** (i / width)),
    lambda length: right_waves(length, 4),
]

# ---------------------------------------------------------------------------- add_positions


def add_by_loop(row=lambda b, p, x, table: table[p], combine=lambda a, c: a + c):
    def function(x, table):
        result = np.empty_like(x)
        for b, p in np.ndindex(*x.shape[:2]):
            result[b, p] = combine(x[b, p], row(b, p, x, table))
        return result

    return function


def joined(x, table):
    return np.stack([np.hstack((sample, table[: len(sample)])) for sample in x])


right_add = add_by_loop()
ADD_POSITIONS = {
    "the fault is still there: one vector for each sample": [
        add_by_loop(lambda b, p, x, table: table[b]),
    ],
    "as many rows as samples": [lambda x, table: np.add(table[: x.shape[0]], x)],
    "as many rows as features": [lambda x, table: np.add(table[: x.shape[-1]], x)],
    "one axis too many": [
        lambda x, table: np.swapaxes(table[: x.shape[1]][None], 0, 1) + x,
        lambda x, table: x + np.stack([row[None] for row in table[: x.shape[1]]]),
    ],
    "one row for all": [
        add_by_loop(lambda b, p, x, table: table[len(x[0])]),
        add_by_loop(lambda b, p, x, table: table[len(x[0]) - 1]),
        add_by_loop(lambda b, p, x, table: table[len(x)]),
    ],
    "once for each sample": [add_by_loop(lambda b, p, x, table: table[p] * len(x))],
    "the first sample alone": [add_by_loop(lambda b, p, x, table: table[p] * (b == 0))],
    "positions that run on": [add_by_loop(lambda b, p, x, table: table[b * len(x[0]) + p])],
    "the words scaled": [lambda x, table: right_add(x * math.sqrt(len(x[0, 0])), table)],
    "right and wrong together": [add_by_loop(lambda b, p, x, table: table[p] + table[b])],
    "nothing added": [lambda x, table: x],
    "subtracted": [add_by_loop(combine=lambda a, c: a - c)],
    "the first row for all": [add_by_loop(lambda b, p, x, table: table[0])],
    "the last rows of the table": [
        add_by_loop(lambda b, p, x, table: table[len(table) - len(x[0]) + p]),
    ],
    "positions from 1": [add_by_loop(lambda b, p, x, table: table[p + 1])],
    "in reverse": [add_by_loop(lambda b, p, x, table: table[len(x[0]) - 1 - p])],
    "multiplied": [add_by_loop(combine=lambda a, c: a * c)],
    "the words are gone": [add_by_loop(combine=lambda a, c: c)],
    "added twice": [add_by_loop(combine=lambda a, c: a + c + c)],
    "side by side": [joined],
}
ADD_POSITIONS_RIGHT = [
    right_add,
    lambda x, table: table[None, : x.shape[-2]] + x,
    lambda x, table: np.stack([sample + table[: len(sample)] for sample in x]),
]


def in_place(x, table):
    x += table[: x.shape[1]]
    return x


ADD_POSITIONS_NEW = [
    lambda x, table: right_add(x, table) / 2,
    lambda x, table: right_add(x, table)[0],
    lambda x, table: right_add(x, table)[None],
    lambda x, table: right_add(x, table).tolist(),
    lambda x, table: right_add(x, table) + 1e-3,
    lambda x, table: right_add(x, table)[::-1],
    lambda x, table: right_add(x, table).swapaxes(0, 1),
    lambda x, table: x + table,
    lambda x, table: x + table[: x.shape[1] - len(table)],
    lambda x, table: x + table.mean(axis=0),
    lambda x, table: x + table[-1],
    lambda x, table: right_add(x, table).round(),
    add_by_loop(lambda b, p, x, table: table[b + p]),
    lambda x: x,
    in_place,
]

# ---------------------------------------------------------------------------- layer_norm


def norm_by_loop(
    mean=lambda v: sum(v) / len(v),
    scale=lambda v, m, eps: math.sqrt(sum((a - m) ** 2 for a in v) / len(v) + eps),
    finish=lambda z, g, b: z * g + b, top=lambda a, m: a - m,
):  # fmt: skip
    """One vector after the other, one number after the other."""

    def function(x, gain, bias, eps):
        result = np.empty_like(x, dtype=float)
        for place in np.ndindex(*x.shape[:-1]):
            v = x[place]
            m = mean(v)
            s = scale(v, m, eps)
            for i, a in enumerate(v):
                with np.errstate(all="ignore"):
                    z = np.divide(top(a, m), s)
                result[(*place, i)] = finish(z, gain[i], bias[i])
        return result

    return function


def by_torch(x, gain, bias, eps):
    parts = (torch.tensor(p, dtype=torch.float64) for p in (x, gain, bias))
    x, gain, bias = parts
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gain, bias, eps).numpy()


def squares(v, m):
    return sum((a - m) ** 2 for a in v)


def all_at_once(x, gain, bias, eps):
    flat = x.ravel()
    m = sum(flat) / len(flat)
    return gain * (x - m) / math.sqrt(squares(flat, m) / len(flat) + eps) + bias


def along_first(x, gain, bias, eps):
    moved = np.moveaxis(x, 0, -1)
    ones, zeros = np.ones(moved.shape[-1]), np.zeros(moved.shape[-1])
    return np.moveaxis(norm_by_loop()(moved, ones, zeros, eps), -1, 0) * gain + bias


def sample_by_sample(x, gain, bias, eps):
    m, v = (f(x.reshape(len(x), -1), axis=1) for f in (np.mean, np.var))
    m, v = (a.reshape(-1, *[1] * (x.ndim - 1)) for a in (m, v))
    return gain * (x - m) / (v + eps) ** 0.5 + bias


def scales(x, eps):
    """One number for each vector, without an axis for the features."""
    return (((x - x.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1) / x.shape[-1] + eps) ** 0.5


LAYER_NORM = {
    "one mean for everything": [all_at_once],
    "over the first axis": [along_first],
    "not the last axis for every shape": [
        lambda x, gain, bias, eps: (
            gain * (x - x.mean(1, keepdims=True)) / (x.var(1, keepdims=True) + eps) ** 0.5 + bias
        ),
        lambda x, gain, bias, eps: (
            gain * (x - x.mean(-2, keepdims=True)) / (x.var(-2, keepdims=True) + eps) ** 0.5 + bias
        ),
        lambda x, gain, bias, eps: (
            gain * (x - x.mean(2, keepdims=True)) / (x.var(2, keepdims=True) + eps) ** 0.5 + bias
        ),
    ],
    "axis not kept": [
        lambda x, gain, bias, eps: gain * (x - x.mean(-1)) / (x.var(-1) + eps) ** 0.5 + bias,
        lambda x, gain, bias, eps: gain * (x - x.mean(-1)) / scales(x, eps)[..., None] + bias,
        lambda x, gain, bias, eps: gain * (x - x.mean(-1)[..., None]) / scales(x, eps) + bias,
    ],
    "a fixed eps": [lambda x, gain, bias, eps: right_norm(x, gain, bias, 1e-5)],
    "eps squared": [lambda x, gain, bias, eps: right_norm(x, gain, bias, eps * eps)],
    "only the mean divided": [
        lambda x, gain, bias, eps: (
            gain * x - x.mean(-1)[..., None] / scales(x, eps)[..., None] + bias
        ),
        lambda x, gain, bias, eps: gain * (x - (x.mean(-1) / scales(x, eps))[..., None]) + bias,
    ],
    "a sum in place of a mean": [
        norm_by_loop(scale=lambda v, m, eps: math.sqrt(squares(v, m) + eps)),
        norm_by_loop(mean=sum, scale=lambda v, m, eps: math.sqrt(np.var(v) + eps)),
    ],
    "mean not taken off": [
        norm_by_loop(mean=lambda v: 0.0),
        norm_by_loop(top=lambda a, m: a),
    ],
    "divided by one less": [
        norm_by_loop(scale=lambda v, m, eps: math.sqrt(squares(v, m) / (len(v) - 1) + eps)),
    ],
    "eps outside the root": [
        norm_by_loop(scale=lambda v, m, eps: math.sqrt(squares(v, m) / len(v)) + eps),
    ],
    "no eps": [norm_by_loop(scale=lambda v, m, eps: math.sqrt(squares(v, m) / len(v)))],
    "one mean for each sample": [sample_by_sample],
    "eps outside the root, and divided by one less": [
        norm_by_loop(scale=lambda v, m, eps: math.sqrt(squares(v, m) / (len(v) - 1)) + eps),
    ],
    "eps above the line": [lambda x, gain, bias, eps: right_norm(x, gain, bias, 0.0) + eps],
    "the larger of variance and eps": [
        norm_by_loop(scale=lambda v, m, eps: math.sqrt(max(squares(v, m) / len(v), eps))),
    ],
    "half of it, not its root": [
        norm_by_loop(scale=lambda v, m, eps: (squares(v, m) / len(v) + eps) ** 1 / 2),
    ],
    "two roots": [
        norm_by_loop(scale=lambda v, m, eps: math.sqrt(math.sqrt(squares(v, m) / len(v)) + eps)),
    ],
    "multiplied by the root": [
        norm_by_loop(scale=lambda v, m, eps: (squares(v, m) / len(v) + eps) ** -0.5),
    ],
    "the mean of the squares of x": [
        norm_by_loop(scale=lambda v, m, eps: math.sqrt(squares(v, 0) / len(v) + eps)),
    ],
    "one variance for everything": [
        lambda x, gain, bias, eps: norm_by_loop(
            scale=lambda v, m, eps: math.sqrt(squares(x.ravel(), x.mean()) / x.size + eps)
        )(x, gain, bias, eps),
    ],
    "divided by len(x)": [
        lambda x, gain, bias, eps: norm_by_loop(
            scale=lambda v, m, eps: math.sqrt(squares(v, m) / len(x) + eps)
        )(x, gain, bias, eps),
    ],
    "bias divided too": [
        lambda x, gain, bias, eps: (
            (gain * (x - x.mean(-1, keepdims=True)) + bias) / scales(x, eps)[..., None]
        ),
    ],
    "bias subtracted": [norm_by_loop(finish=lambda z, g, b: z * g - b)],
    "divided by the gain": [norm_by_loop(finish=lambda z, g, b: z / g + b)],
    "no root": [norm_by_loop(scale=lambda v, m, eps: squares(v, m) / len(v) + eps)],
    "gain and bias left out": [norm_by_loop(finish=lambda z, g, b: z)],
    "gain left out": [norm_by_loop(finish=lambda z, g, b: z + b)],
    "bias left out": [norm_by_loop(finish=lambda z, g, b: z * g)],
    "bias scaled too": [norm_by_loop(finish=lambda z, g, b: (z + b) * g)],
    "gain and bias swapped": [norm_by_loop(finish=lambda z, g, b: z * b + g)],
}
right_norm = norm_by_loop()
LAYER_NORM_RIGHT = [right_norm, by_torch]
LAYER_NORM_NEW = [
    lambda x, gain, bias, eps: x,
    lambda x, gain, bias, eps: gain * x + bias,
    lambda x, gain, bias, eps: right_norm(x, gain, bias, eps) + 1e-3,
    lambda x, gain, bias, eps: right_norm(x, gain, bias, eps)[None],
    lambda x, gain, bias, eps: right_norm(x, gain, bias, eps).tolist(),
    lambda x, gain, bias, eps: right_norm(x, gain, bias, eps).round(1),
    lambda x, gain, bias, eps: right_norm(-x, gain, bias, eps),
    lambda x, gain, bias, eps: right_norm(x, gain, bias, eps) + x,
    lambda x, gain, bias, eps: right_norm(x, gain[::-1], bias[::-1], eps),
    lambda x, gain, bias, eps: right_norm(x, 1 + gain, bias, eps),
    lambda x, gain, bias: x,
    norm_by_loop(mean=np.median),
    norm_by_loop(scale=lambda v, m, eps: max(v) - min(v) + eps),
    norm_by_loop(scale=lambda v, m, eps: 1.0),
]

# ---------------------------------------------------------------------------- rotary_test

X = np.random.default_rng(5).normal(size=(5, 6))


def expected(x):
    return rotary(torch.tensor(np.asarray(x, dtype=float))).numpy()


def same_numbers(rotate):
    assert np.allclose(rotate(X), expected(X))


def by_pairs(rotate):
    result = rotate(X)
    for p in range(5):
        for i in range(3):
            angle = p / 10000 ** (2 * i / 6)
            a, b = X[p, 2 * i : 2 * i + 2]
            assert math.isclose(
                result[p][2 * i], a * math.cos(angle) - b * math.sin(angle), abs_tol=1e-9
            )
            assert math.isclose(
                result[p][2 * i + 1], a * math.sin(angle) + b * math.cos(angle), abs_tol=1e-9
            )


def looks_at(look, x=X):
    def test(rotate):
        assert np.allclose(look(np.asarray(rotate(x))), look(expected(x)))

    return test


def keeps_lengths(rotate):
    assert np.allclose((np.asarray(rotate(X)) ** 2).sum(-1), (X**2).sum(-1))


def keeps_shape(rotate):
    assert np.shape(rotate(X)) == (5, 6)


def sees_distances(rotate):
    q = np.asarray(rotate(np.ones((6, 1)) * np.array([[3.0, 1, 4, 1, 5, 9]])))
    for i in range(5):
        assert np.isclose(q[0] @ q[1], q[i] @ q[i + 1])


ROTARY_TEST = {
    "only what every fault keeps too": [
        keeps_lengths,
        keeps_shape,
        sees_distances,
        looks_at(lambda y: y, 0 * X),
    ],
    "position 0 only": [looks_at(lambda y: y[:1]), looks_at(lambda y: y, X[:1])],
    "one pair only": [looks_at(lambda y: y, X[:, :2]), looks_at(lambda y: y[..., [0, 1]])],
    "position 1 only": [looks_at(lambda y: y[1:2])],
    "first features only": [
        looks_at(lambda y: y[:, [0, 2, 4]], np.array([[2.0, 0] * 3] * 5)),
    ],
}
ROTARY_TEST_RIGHT = [same_numbers, by_pairs, looks_at(lambda y: y, X[:3])]


def one_place_at_random(rotate):
    p, i = np.random.randint(5), np.random.randint(6)  # noqa: NPY002
    assert math.isclose(rotate(X)[p][i], expected(X)[p, i])


def one_or_the_other(rotate):
    y, right = np.asarray(rotate(X)), expected(X)
    assert np.allclose(y[:, ::2], right[:, ::2]) or np.allclose(y[:, 1::2], right[:, 1::2])


def changes_x_first(rotate):
    x = X.copy()
    right = x
    right[:] = expected(x)
    assert np.allclose(rotate(x), right)


def row_by_row(rotate):
    for mine, right in zip(rotate(X), expected(X), strict=False):
        assert np.allclose(mine, right)


def wants_no_turn(rotate):
    assert np.allclose(rotate(X), X)


def wants_halves(rotate):
    order = [0, 3, 1, 4, 2, 5]
    assert np.allclose(rotate(X), expected(X[:, order])[:, np.argsort(order)])


def from_one_and_zero(places):
    """Both features of two pairs are compared, but a turn of (1, 0) is its mirror image too."""

    def test(rotate):
        result = np.asarray(rotate(np.tile([1.0, 0.0, 1.0, 0.0], (3, 1))))
        for p in places:
            a, b = p, p / 100
            right = [math.cos(a), math.sin(a), math.cos(b), math.sin(b)]
            assert np.allclose(result[p], right)

    return test


def wants_list(rotate):
    assert rotate(X) == expected(X).tolist()


def never_calls(rotate):
    assert np.allclose(expected(X).sum(), expected(X).sum())


def no_assert(rotate):
    np.allclose(rotate(X), expected(X))


def swallows(rotate):
    try:
        assert np.allclose(rotate(X), expected(X))
    except AssertionError:
        print("wrong")


def stops(rotate):
    assert rotate(X).shape == undefined_name


def two_arguments(rotate):
    assert rotate(X, 10000).shape == (5, 6)


def raises_another(rotate):
    if not np.allclose(rotate(X), expected(X)):
        raise ValueError("wrong")


def wants_odd_width(rotate):
    assert rotate(X[:, :5]).shape == (5, 5)


def bit_by_bit(rotate):
    assert (rotate(X * 1e3) == expected(X * 1e3)).all()


def exceeds(rotate):
    assert (np.asarray(rotate(X)) > 100).all()


ROTARY_TEST_NEW = [
    one_place_at_random, one_or_the_other, changes_x_first,
    looks_at(lambda y: y[:, ::2]), looks_at(lambda y: y[:, 1::2]), looks_at(lambda y: y[2, 2]),
    looks_at(lambda y: y[:, [0, 2]]), looks_at(lambda y: y[:, :4]), looks_at(lambda y: y[:, -2:]),
    looks_at(lambda y: y[1:]), looks_at(lambda y: y, X[:2]), looks_at(lambda y: y, np.ones((5, 6))),
    looks_at(lambda y: y, np.tile([1.0, 2.0], (5, 3))), looks_at(lambda y: y, X[:, :4][:4]),
    looks_at(lambda y: y, np.tile(X[:1], (5, 1))), looks_at(np.sign), row_by_row,
    looks_at(lambda y: y, np.tile([0.0, 1.0], (5, 3))),
    looks_at(lambda y: np.arctan2(y[:, 1::2], y[:, 0::2])),
    looks_at(lambda y: y[-1]), looks_at(np.sum), looks_at(np.sort), looks_at(np.abs),
    wants_no_turn, wants_halves, wants_list, never_calls, no_assert, swallows, stops,
    two_arguments, raises_another, wants_odd_width, bit_by_bit, exceeds,
    lambda rotate: rotate(X), from_one_and_zero([1]), from_one_and_zero([0, 1, 2]),
]  # fmt: skip

ANSWERS = {
    "feedforward_parameters": (
        FEEDFORWARD_PARAMETERS_RIGHT,
        FEEDFORWARD_PARAMETERS,
        FEEDFORWARD_PARAMETERS_NEW,
    ),
    "waves": (WAVES_RIGHT, WAVES, WAVES_NEW),
    "add_positions": (ADD_POSITIONS_RIGHT, ADD_POSITIONS, ADD_POSITIONS_NEW),
    "layer_norm": (LAYER_NORM_RIGHT, LAYER_NORM, LAYER_NORM_NEW),
    "rotary_test": (ROTARY_TEST_RIGHT, ROTARY_TEST, ROTARY_TEST_NEW),
}
