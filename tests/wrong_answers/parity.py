"""Answers to the exercises of chapter 5: right ones, listed mistakes written anew, new mistakes."""

import math

import numpy as np
import torch
from wrong_answers.lookup import loop_softmax, rows

from attention_lib import numpy_multi_head_attention

# ---------------------------------------------------------------------------- value_rows

VALUE_ROWS = {
    "rows of the key": [(np.int64(16), 20)],
    "rows of the query, or counted within one block": [(4.0, 8.0)],
    "another head": [(24, 28.0), (np.int64(32), 36)],
    "all heads": [(24.0, 36)],
    "interleaved": [(20, 24.0)],
    "stop counted in": [(28, 31.0)],
    "number of heads taken for their width": [(27, 30.0)],
}
VALUE_ROWS_RIGHT = [(28, 32), (28.0, 32.0), (np.int64(28), np.int64(32))]
VALUE_ROWS_NEW = [
    (28,), (28, 33), (27, 32), (32, 28), (0, 12), (12, 24), (29, 33), (26, 30), (28, 32, 1), 28,
    [28, 32], "28:32", slice(28, 32), (math.nan, 32), (36, 40), (0, 0),
]  # fmt: skip

# ---------------------------------------------------------------------------- unpack


def by_rows(where, add=1.0, bias_row=None):
    """Every number alone; `where(part, feature, width)` is its row in the packed parameters."""
    bias_row = bias_row or where

    def function(x, weight, bias):
        length, width = x.shape
        result = np.zeros((3, length, width))
        for part, i, f in np.ndindex(3, length, width):
            row = where(part, f, width)
            terms = [a * b for a, b in zip(x[i], weight[row], strict=True)]
            result[part, i, f] = sum(terms) + add * bias[bias_row(part, f, width)]
        return result

    return function


def in_blocks(part, feature, width):
    return part * width + feature


right_unpack = by_rows(in_blocks)


def transposed_blocks(x, weight, bias):
    width = x.shape[1]
    blocks = weight.reshape(3, width, width)
    return np.einsum("le,pef->plf", x, blocks) + bias.reshape(3, 1, width)


def order(*places):
    return lambda x, w, b: np.array([right_unpack(x, w, b)[i] for i in places])


UNPACK = {
    "bias left out": [
        by_rows(in_blocks, add=0.0),
        lambda x, w, b: np.inner(x, w.reshape(3, -1, x.shape[1])).swapaxes(0, 1),
    ],
    "one bias for all three": [by_rows(in_blocks, bias_row=lambda part, f, width: f)],
    "bias subtracted": [by_rows(in_blocks, add=-1.0)],
    "matrices not transposed": [transposed_blocks],
    "rows taken in turn": [by_rows(lambda part, f, width: 3 * f + part)],
    "reshaped without moving the axis": [
        lambda x, w, b: (np.inner(x, w) + b).reshape(3, len(x), -1),
    ],
    "another order": [order(2, 1, 0), order(0, 2, 1), order(1, 2, 0), order(1, 0, 2)],
    "side by side": [lambda x, w, b: np.concatenate(right_unpack(x, w, b), axis=1)],
    "new axis in the middle": [
        lambda x, w, b: (x @ w.T + b).reshape(len(x), 3, -1),
        lambda x, w, b: right_unpack(x, w, b).swapaxes(0, 1),
    ],
    "new axis last": [lambda x, w, b: right_unpack(x, w, b).transpose(1, 2, 0)],
}
UNPACK_RIGHT = [
    right_unpack,
    lambda x, w, b: (x @ w.T + b).reshape(len(x), 3, -1).swapaxes(0, 1),
    lambda x, w, b: np.einsum("le,pfe->plf", x, w.reshape(3, -1, x.shape[1])) + b.reshape(3, 1, -1),
]
UNPACK_NEW = [
    lambda x, w, b: right_unpack(x, w, b)[0],
    lambda x, w, b: right_unpack(x, w, b)[:2],
    lambda x, w, b: right_unpack(x, w, 2 * b),
    lambda x, w, b: right_unpack(x, -w, b),
    lambda x, w, b: right_unpack(x, w, b[::-1]),
    lambda x, w, b: right_unpack(x, w[::-1], b[::-1]),
    lambda x, w, b: right_unpack(x, w, b) + 1e-3,
    lambda x, w, b: tuple(right_unpack(x, w, b)),
    lambda x, w, b: list(right_unpack(x, w, b)),
    lambda x, w, b: right_unpack(x, w, b)[None],
    lambda x, w, b: w.reshape(3, x.shape[1], -1),
    lambda x, w, b: x @ w + b,
    lambda x, w, b: by_rows(in_blocks, bias_row=lambda p, f, width: 2 * width + f)(x, w, b),
    lambda x, w, b: right_unpack(x, w, b).round(2),
]

# ---------------------------------------------------------------------------- differences


def log_sum_exp(scores):
    return math.log(sum(math.exp(s) for s in scores))


def between(right, left, divisor):
    """Slopes from two lists of Python numbers, one entry moved."""

    def function(scores, step):
        slopes = []
        for i in range(len(scores)):
            ends = []
            for side in right, left:
                moved = scores.tolist()
                moved[i] += side * step
                ends.append(log_sum_exp(moved))
            slopes.append((ends[0] - ends[1]) / (divisor * step))
        return np.array(slopes)

    return function


right_differences = between(1, -1, 2)


def all_entries(scores, step):
    rise = log_sum_exp(scores + step) - log_sum_exp(scores - step)
    return np.ones_like(scores) * rise / 2 / step


def keeps_moving(scores, step):
    triangle = step * np.tril(np.ones((len(scores), len(scores))))
    rises = [log_sum_exp(scores + m) - log_sum_exp(scores - m) for m in triangle]
    return np.array(rises) / (2 * step)


def left_to_the_left(scores, step):
    moved, slopes = scores.tolist(), []
    for i in range(len(moved)):
        ends = []
        for move in step, -2 * step:
            moved[i] += move
            ends.append(log_sum_exp(moved))
        slopes.append((ends[0] - ends[1]) / (2 * step))
    return np.array(slopes)


def moves_its_argument(scores, step):
    slopes = []
    for i in range(len(scores)):
        scores[i] += step
        right = np.log(np.exp(scores).sum())
        scores[i] -= 2 * step
        slopes.append((right - np.log(np.exp(scores).sum())) / (2 * step))
    return np.array(slopes)


DIFFERENCES = {
    "moved to the right only": [between(1, 0, 1)],
    "moved to the left only": [between(0, -1, 1)],
    "divided by one step": [between(1, -1, 1)],
    "moved by half a step": [between(0.5, -0.5, 1)],
    "one side, divided by two steps": [between(1, 0, 2), between(0, -1, 2)],
    "not divided": [lambda x, h: right_differences(x, h) * h * 2],
    "sign turned": [between(-1, 1, 2), between(1, -1, -2)],
    "all entries moved at once": [all_entries],
    "entries not moved back": [keeps_moving, left_to_the_left, moves_its_argument],
    "the exact gradient, or a step of your own": [
        lambda x, h: rows(loop_softmax)(x),
        lambda x, h: right_differences(x, 1e-4),
        lambda x, h: right_differences(x, 1e-6),
    ],
}
DIFFERENCES_RIGHT = [
    right_differences,
    lambda x, h: (between(1, 0, 1)(x, h) + between(0, -1, 1)(x, h)) / 2,
]
DIFFERENCES_NEW = [
    between(2, -2, 2),
    between(2, -2, 4),
    between(1, -2, 3),
    between(1, -1, 3),
    lambda x, h: right_differences(x, h) + 1e-3,
    lambda x, h: right_differences(x, h).sum(),
    lambda x, h: right_differences(x, h).tolist(),
    lambda x, h: right_differences(x, h)[::-1],
    lambda x, h: right_differences(x, 0.01),
    lambda x, h: right_differences(x, h)[:1],
    lambda x, h: np.array(log_sum_exp(x)),
    lambda x, h: x,
    lambda x, h: np.diag(right_differences(x, h)),
    lambda x: x,
    lambda x, h: right_differences(x, h) / 0,
]

# ---------------------------------------------------------------------------- softmax_backward


def by_jacobian(weights, cotangent):
    return np.array(
        [(np.diag(w) - np.outer(w, w)) @ g for w, g in zip(weights, cotangent, strict=True)],
        dtype=weights.dtype,
    )


def each(rule):
    """Row by row: `rule(w, g)` of one row."""
    return lambda weights, cotangent: np.array(
        [rule(w, g) for w, g in zip(weights, cotangent, strict=True)]
    )


SOFTMAX_BACKWARD = {
    "the fault is still there: the diagonal alone": [each(lambda w, g: (w - w * w) * g)],
    "weights times cotangent": [each(lambda w, g: np.diag(w) @ g)],
    "mean of the cotangent taken": [each(lambda w, g: w * g - w * np.average(g))],
    "sum of the cotangent taken": [each(lambda w, g: w * g - w * sum(g))],
    "one sum for all rows": [lambda w, g: w * g - w * np.einsum("ij,ij->", w, g)],
    "sum over the queries": [lambda w, g: w * g - w * np.einsum("ij,ij->j", w, g)],
    "weights left out in front": [each(lambda w, g: g - np.dot(w, g))],
    "sum not multiplied by the weights": [each(lambda w, g: w * g - np.dot(w, g))],
    "sum added": [each(lambda w, g: (np.diag(w) + np.outer(w, w)) @ g)],
    "sign turned": [each(lambda w, g: (np.outer(w, w) - np.diag(w)) @ g)],
    "weights taken for scores": [
        lambda w, g: by_jacobian(rows(loop_softmax)(w).astype(w.dtype), g)
    ],
}
SOFTMAX_BACKWARD_RIGHT = [
    by_jacobian,
    each(lambda w, g: w * (g - np.dot(w, g))),
    lambda w, g: w * g - w * np.einsum("ij,ij->i", w, g)[:, None],
]
SOFTMAX_BACKWARD_NEW = [
    lambda w, g: 0 * g,
    lambda w, g: g,
    lambda w, g: w,
    lambda w, g: 2 * by_jacobian(w, g),
    lambda w, g: by_jacobian(w, g) + 1e-3,
    lambda w, g: by_jacobian(w, np.ones_like(g)) + 0.1,
    lambda w, g: np.abs(by_jacobian(w, g)),
    lambda w, g: by_jacobian(w, g).sum(-1),
    lambda w, g: by_jacobian(w, g)[:1],
    lambda w, g: by_jacobian(w, g).tolist(),
    lambda w, g: w @ g,
    lambda w, g: w * (1 - w),
    lambda w, g: by_jacobian(g, w),
    lambda w, g: by_jacobian(w, by_jacobian(w, g)),
    lambda w, g: by_jacobian(w, g).round(2),
    lambda w: w,
]

# ---------------------------------------------------------------------------- parity_test


def torch_layer(inputs, heads, weight, out_weight, bias, out_bias):
    module = torch.nn.MultiheadAttention(inputs.shape[-1], heads).double()
    with torch.no_grad():
        for parameter, array in (
            (module.in_proj_weight, weight), (module.in_proj_bias, bias),
            (module.out_proj.weight, out_weight), (module.out_proj.bias, out_bias),
        ):  # fmt: skip
            parameter.copy_(torch.tensor(array))
        x = torch.tensor(inputs)
        return module(x, x, x)[0].numpy()


def drawn(length=4, batch=3, heads=2, width=8, in_bias=1.0, out_bias=1.0, plain=False):
    rng = np.random.default_rng(31)
    weight, out_weight = rng.normal(size=(3 * width, width)), rng.normal(size=(width, width))
    out_weight = np.eye(width) if plain else out_weight
    biases = in_bias * rng.normal(size=3 * width), out_bias * rng.normal(size=width)
    return rng.normal(size=(length, batch, width)), heads, weight, out_weight, *biases


def against_torch(**sizes):
    def test(attention):
        given = drawn(**sizes)
        assert np.abs(attention(*given) - torch_layer(*given)).max() < 1e-7

    return test


def against_torch_with_large_steps(attention):
    for heads in 1, 2, 4:
        given = drawn(heads=heads)
        assert np.allclose(attention(*given), torch_layer(*given), atol=1e-7)


def by_keyword(attention):
    names = "in_proj_weight", "out_proj_weight", "in_proj_bias", "out_proj_bias"
    x, heads, *parameters = drawn()
    named = dict(zip(names, parameters, strict=True))
    result = attention(inputs=x, num_heads=heads, **named)
    assert np.allclose(result, torch_layer(x, heads, *parameters))


def in_single_precision(attention):
    x, heads, *parameters = drawn()
    single = [p.astype(np.float32) for p in (x, *parameters)]
    result = attention(single[0], heads, *single[1:])
    assert np.abs(result - torch_layer(x, heads, *parameters)).max() < 1e-4


def in_single_precision_and_dtype(attention):
    """torch.testing refuses another dtype than float32, which the real functions return."""
    x, heads, *parameters = (
        p.astype(np.float32) if isinstance(p, np.ndarray) else p for p in drawn()
    )
    right = numpy_multi_head_attention(x, heads, *parameters)
    assert right.dtype == np.float32
    mine = torch.from_numpy(attention(x, heads, *parameters))
    torch.testing.assert_close(mine, torch.from_numpy(right), atol=1e-4, rtol=1e-4)


def of(look, limit=1e-9):
    """A test that looks at something of the output, or of the gradient."""

    def test(attention):
        mine, right = attention(*drawn()), torch_layer(*drawn())
        assert np.abs(look(mine) - look(right)).max() < limit

    return test


def within_a_fifth_of_the_largest(attention):
    mine, right = attention(*drawn()), torch_layer(*drawn())
    assert np.abs(mine - right).max() < 0.2 * np.abs(right).max()


def correlates(attention):
    mine, right = attention(*drawn()), torch_layer(*drawn())
    assert np.corrcoef(mine.ravel(), right.ravel())[0, 1] > 1 - 1e-9


def only_shape(attention):
    assert attention(*drawn()).shape == (4, 3, 8)


def only_finite(attention):
    assert np.isfinite(attention(*drawn())).all()


PARITY_TEST = {
    "an assertion that no fault breaks": [only_shape, only_finite],
    "all biases 0": [against_torch(in_bias=0, out_bias=0)],
    "in_proj_bias 0": [against_torch(in_bias=0)],
    "out_proj_bias 0": [against_torch(out_bias=0)],
    "one head": [against_torch(heads=1)],
    "a batch of one": [against_torch(batch=1)],
    "one head and a batch of one": [against_torch(heads=1, batch=1)],
    "one head and all biases 0": [against_torch(heads=1, in_bias=0, out_bias=0)],
    "out_proj_weight the identity": [against_torch(plain=True)],
    "a part of the output": [
        of(lambda y: y[0, 0, 0]), of(lambda y: y[0]), of(lambda y: y[-1]), of(lambda y: y[:, 0]),
        of(lambda y: y[..., 0]), of(lambda y: y[:, -1]),
    ],
    "a summary of the output": [
        of(np.mean), of(np.sum), of(np.std), of(lambda y: np.sort(y.ravel())),
    ],
    "a limit that is too wide": [of(np.asarray, 0.1), of(np.asarray, 1), correlates],
}  # fmt: skip
PARITY_TEST_RIGHT = [
    against_torch(), against_torch_with_large_steps, against_torch(heads=4), by_keyword,
    in_single_precision, in_single_precision_and_dtype,
]  # fmt: skip


def wants_batch_first(attention):
    x, *rest = drawn()
    right = torch_layer(x.swapaxes(0, 1), *rest)
    assert np.allclose(attention(x, *rest), right.swapaxes(0, 1))


def wants_no_bias(attention):
    x, heads, w, wo, b, bo = drawn()
    assert np.allclose(attention(x, heads, w, wo, b, bo), torch_layer(x, heads, w, wo, 0 * b, bo))


def exact_numbers(attention):
    given = drawn()
    assert (attention(*given) == torch_layer(*given).round(3)).all()


def no_assert(attention):
    np.allclose(attention(*drawn()), torch_layer(*drawn()))


def prints(attention):
    print("passed" if np.allclose(attention(*drawn()), torch_layer(*drawn())) else "failed")


def never_calls(attention):
    assert np.allclose(torch_layer(*drawn()), torch_layer(*drawn()))


def two_arguments(attention):
    assert attention(*drawn()[:2]).shape == (4, 3, 8)


def stops(attention):
    assert attention(*drawn()).shape == undefined_name


def one_word(attention):
    given = drawn(length=1)
    assert np.allclose(attention(*given), torch_layer(*given))


def small_output(attention):
    assert np.abs(attention(*drawn())).max() < 1e-3


def swallows(attention):
    try:
        assert np.allclose(attention(*drawn()), torch_layer(*drawn()))
    except AssertionError:
        print("failed")


PARITY_TEST_NEW = [
    wants_batch_first, wants_no_bias, exact_numbers, no_assert, prints, never_calls, two_arguments,
    stops, one_word, small_output, swallows,
    within_a_fifth_of_the_largest,
]  # fmt: skip

# ---------------------------------------------------------------------------- gradient_test


def by_autograd(scores, cotangent):
    s = torch.tensor(scores, requires_grad=True)
    (s.softmax(-1) * torch.tensor(cotangent)).sum().backward()
    return s.grad.numpy()


S, G = np.random.default_rng(32).normal(size=(2, 4, 5))


def against_autograd(scores=S, cotangent=G, look=np.asarray, limit=1e-8):
    def test(gradient):
        mine, right = gradient(scores, cotangent), by_autograd(scores, cotangent)
        assert np.abs(look(mine) - look(right)).max() < limit

    return test


def one_direction(gradient):
    """The slope along a random direction, at two rows."""
    step = 1e-6 * np.random.default_rng(33).normal(size=S.shape)
    ends = [(rows(loop_softmax)(S + side * step) * G).sum() for side in (1, -1)]
    assert abs((gradient(S, G) * step).sum() * 2 - ends[0] + ends[1]) < 1e-9


def exists(gradient):
    assert gradient(S, G) is not None


def has_the_shape(gradient):
    assert np.shape(gradient(S, G)) == S.shape


def rows_sum_to_zero(gradient):
    assert np.allclose(np.sum(gradient(S, G), axis=-1), 0)


def rows_sum_to_zero_with_numbers(gradient):
    assert np.allclose(np.sum(gradient(S, G), axis=-1), 0)
    assert np.abs(gradient(S, G)).max() > 0.1


def gradient_correlates(gradient):
    mine, right = np.ravel(gradient(S, G)), by_autograd(S, G).ravel()
    assert np.corrcoef(mine, right)[0, 1] > 1 - 1e-9


def gradient_by_keyword(gradient):
    assert np.allclose(gradient(scores=S, cotangent=G), by_autograd(S, G))


def largest_entry(gradient):
    assert np.isclose(np.abs(gradient(S, G)).max(), np.abs(by_autograd(S, G)).max())


GRADIENT_TEST = {
    "an assertion that no fault breaks": [exists, has_the_shape],
    "a cotangent of ones": [against_autograd(cotangent=np.ones_like(G))],
    "a single row": [against_autograd(S[:1], G[:1])],
    "equal scores": [against_autograd(0 * S)],
    "a single row of equal scores": [against_autograd(0 * S[:1], G[:1])],
    "rows that add to 0": [rows_sum_to_zero, rows_sum_to_zero_with_numbers],
    "a part of the gradient": [
        against_autograd(look=lambda x: x[0, 0]), against_autograd(look=lambda x: x[0]),
        against_autograd(look=lambda x: x[-1]), against_autograd(look=lambda x: x[:, 1:]),
    ],
    "a limit that is too wide": [
        against_autograd(limit=0.05), against_autograd(look=np.sign), gradient_correlates,
    ],
}  # fmt: skip
GRADIENT_TEST_RIGHT = [
    against_autograd(),
    one_direction,
    against_autograd(S[:2], G[:2]),
    gradient_by_keyword,
]


def wants_the_weights(gradient):
    assert np.allclose(gradient(S, G), rows(loop_softmax)(S))


def wants_the_diagonal(gradient):
    w = rows(loop_softmax)(S)
    assert np.allclose(gradient(S, G), w * (1 - w) * G)


def exact_gradient(gradient):
    assert (gradient(S, G) == by_autograd(S, G).round(4)).all()


def coarse_step(gradient):
    ends = [(rows(loop_softmax)(S + side * np.eye(4, 5)) * G).sum() for side in (1, -1)]
    assert abs(gradient(S, G)[0, 0] - (ends[0] - ends[1]) / 2) < 1e-9


def not_zero(gradient):
    assert np.abs(gradient(S, G)).max() > 0


def gradient_no_assert(gradient):
    np.allclose(gradient(S, G), by_autograd(S, G))


def gradient_never_called(gradient):
    assert np.allclose(by_autograd(S, G), by_autograd(S, G))


def gradient_one_argument(gradient):
    assert gradient(S).shape == S.shape


def gradient_stops(gradient):
    assert gradient(S, G).shape == undefined_name


def gradient_swallows(gradient):
    try:
        assert np.allclose(gradient(S, G), by_autograd(S, G))
    except AssertionError:
        print("failed")


GRADIENT_TEST_NEW = [
    wants_the_weights, wants_the_diagonal, exact_gradient, coarse_step, not_zero, largest_entry,
    gradient_no_assert, gradient_never_called, gradient_one_argument, gradient_stops,
    gradient_swallows,
]  # fmt: skip

ANSWERS = {
    "value_rows": (VALUE_ROWS_RIGHT, VALUE_ROWS, VALUE_ROWS_NEW),
    "unpack": (UNPACK_RIGHT, UNPACK, UNPACK_NEW),
    "differences": (DIFFERENCES_RIGHT, DIFFERENCES, DIFFERENCES_NEW),
    "softmax_backward": (SOFTMAX_BACKWARD_RIGHT, SOFTMAX_BACKWARD, SOFTMAX_BACKWARD_NEW),
    "parity_test": (PARITY_TEST_RIGHT, PARITY_TEST, PARITY_TEST_NEW),
    "gradient_test": (GRADIENT_TEST_RIGHT, GRADIENT_TEST, GRADIENT_TEST_NEW),
}
