"""The exercises of chapter 5, parity: references, cases, known mistakes, hints."""

import math
from functools import partial

import numpy as np
import torch

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction
from attention_lib.lookup import softmax
from attention_lib.multi_head import numpy_multi_head_attention

# ---------------------------------------------------------------------------- value_rows

WIDTH, HEADS, HEAD = 12, 3, 1
D = WIDTH // HEADS


def _value_rows():
    return 2 * WIDTH + HEAD * D, 2 * WIDTH + (HEAD + 1) * D


value_rows = PredictValue(
    level=1,
    trains="where PyTorch packs each head's rows",
    answer=_value_rows,
    mistakes=(
        Mistake(
            "rows of the key",
            "The blocks stand in the order query, key, value. This is head 1 in the second block.",
            (WIDTH + HEAD * D, WIDTH + (HEAD + 1) * D),
        ),
        Mistake(
            "rows of the query, or counted within one block",
            "These rows lie in the first block, which is the query's. Two blocks come before the "
            "values.",
            (HEAD * D, (HEAD + 1) * D),
        ),
        Mistake(
            "another head",
            "The block is right. Head 1 is the second one: heads count from 0.",
            (2 * WIDTH, 2 * WIDTH + D),
            (2 * WIDTH + 2 * D, 2 * WIDTH + 3 * D),
        ),
        Mistake(
            "all heads",
            "That is the whole block of the values. Head 1 owns a part of it.",
            (2 * WIDTH, 3 * WIDTH),
        ),
        Mistake(
            "interleaved",
            "That would be right if query, key and value of one head stood together. PyTorch "
            "stacks three blocks, each with all heads.",
            (3 * HEAD * D + 2 * D, 3 * HEAD * D + 3 * D),
        ),
        Mistake(
            "stop counted in",
            "A slice ends before its stop: the stop is the first row that is not taken.",
            (2 * WIDTH + HEAD * D, 2 * WIDTH + (HEAD + 1) * D - 1),
        ),
        Mistake(
            "number of heads taken for their width",
            "The module has 3 heads. How many of the 12 rows of a block belong to one head?",
            (2 * WIDTH + HEAD * HEADS, 2 * WIDTH + (HEAD + 1) * HEADS),
        ),
    ),
    hints=(
        "36 rows are three blocks of 12: query, key, value. In which block are the values?",
        "In each block head 0 comes first, then head 1, then head 2. How many rows has a head?",
        "Start at two blocks and one head, and take the rows of one head.",
    ),
)

# ---------------------------------------------------------------------------- unpack


def _unpack(x, weight, bias):
    return np.stack(np.split(x @ weight.T + bias, 3, axis=-1))


def _packed_cases():
    rng = np.random.default_rng(20)
    yield Case("one word, width 1", *(np.array(a) for a in ([[2.0]], [[1.0], [3], [-1]])),
               np.array([0.5, -1, 2]))  # fmt: skip
    sizes = {(2, 2): "width 2", (3, 3): "as many words as the width", (5, 4): "width 4",
             (1, 4): "one word", (6, 4): "more words", (4, 6): "width 6"}  # fmt: skip
    for (length, width), label in sizes.items():
        shapes = (length, width), (3 * width, width), (3 * width,)
        yield Case(label, *(rng.normal(size=shape).round(3) for shape in shapes))
    shapes = (2, 6), (18, 6), (18,)
    yield Case("float32", *(rng.normal(size=shape).astype(np.float32) for shape in shapes))


def _interleaved(array):
    """Rows read as q0 k0 v0 q1 k1 v1 …, one row at a time."""
    return np.concatenate([array[part::3] for part in range(3)])


unpack = WriteFunction(
    level=2,
    trains="queries, keys and values from packed parameters",
    reference=lambda x, in_proj_weight, in_proj_bias: _unpack(x, in_proj_weight, in_proj_bias),
    cases=tuple(_packed_cases()),
    mistakes=(
        Mistake(
            "bias left out",
            "in_proj_bias is not added. This is the fault of the published test.",
            lambda x, w, b: _unpack(x, w, 0 * b),
        ),
        Mistake(
            "one bias for all three",
            "The first third of in_proj_bias belongs to the query alone; key and value have their "
            "own.",
            lambda x, w, b: _unpack(x, w, np.tile(b[: len(b) // 3], 3)),
        ),
        Mistake(
            "bias subtracted",
            "The bias is added.",
            lambda x, w, b: _unpack(x, w, -b),
        ),
        Mistake(
            "matrices not transposed",
            "A row of each matrix makes one feature: multiply by the transposed block, as "
            "nn.Linear does.",
            lambda x, w, b: np.stack(
                [x @ p + c for p, c in zip(np.split(w, 3), np.split(b, 3), strict=True)]
            ),
        ),
        Mistake(
            "rows taken in turn",
            "Every third row was taken. The query's rows stand together, then the key's, then the "
            "value's.",
            lambda x, w, b: _unpack(x, _interleaved(w), _interleaved(b)),
        ),
        Mistake(
            "reshaped without moving the axis",
            "The product is (L, 3 * embed_dim). A reshape to (3, L, embed_dim) mixes the words; "
            "split the last axis and move the new one to the front.",
            lambda x, w, b: (x @ w.T + b).reshape(3, *x.shape),
        ),
        Mistake(
            "another order",
            "The numbers are there in another order: query, key, value is the order.",
            lambda x, w, b: _unpack(x, w, b)[[0, 2, 1]],
            lambda x, w, b: _unpack(x, w, b)[[1, 0, 2]],
            lambda x, w, b: _unpack(x, w, b)[::-1],
            lambda x, w, b: _unpack(x, w, b)[[1, 2, 0]],
            lambda x, w, b: _unpack(x, w, b)[[2, 0, 1]],
        ),
        Mistake(
            "side by side",
            "The three stand in the last axis: (L, 3 * embed_dim) in place of (3, L, embed_dim).",
            lambda x, w, b: x @ w.T + b,
        ),
        Mistake(
            "new axis in the middle",
            "The axis of the three must come first: (3, L, embed_dim).",
            lambda x, w, b: np.stack(_unpack(x, w, b), axis=1),
        ),
        Mistake(
            "new axis last",
            "The axis of the three must come first: (3, L, embed_dim).",
            lambda x, w, b: np.stack(_unpack(x, w, b), axis=-1),
        ),
    ),
    hints=(
        "x @ in_proj_weight.T + in_proj_bias has shape (L, 3 * embed_dim), with query, key and "
        "value side by side.",
        "np.split(…, 3, axis=-1) cuts the last axis in three.",
        "np.stack puts the three below each other on a new first axis.",
    ),
)

# ---------------------------------------------------------------------------- differences


def _log_sum_exp(scores):
    return np.logaddexp.reduce(scores)


def _moved(scores, step, divisor=2.0, right=1, left=-1):
    """(f(x + right * step) - f(x + left * step)) / (divisor * step), entry by entry."""
    moves = step * np.eye(len(scores))
    ends = [[_log_sum_exp(scores + side * move) for side in (right, left)] for move in moves]
    return np.array([(a - b) / (divisor * step) for a, b in ends])


def _all_at_once(scores, step):
    rise = (_log_sum_exp(scores + step) - _log_sum_exp(scores - step)) / (2 * step)
    return np.full(len(scores), rise)


def _never_moved_back(scores, step):
    right, left, slopes = scores.copy(), scores.copy(), []
    for i in range(len(scores)):
        right[i] += step
        left[i] -= step
        slopes.append((_log_sum_exp(right) - _log_sum_exp(left)) / (2 * step))
    return np.array(slopes)


def _moved_to_the_left_for_good(scores, step):
    """In one copy: to the right, then two steps to the left, and the next entry."""
    moved, slopes = scores.copy(), []
    for i in range(len(scores)):
        moved[i] += step
        right = _log_sum_exp(moved)
        moved[i] -= 2 * step
        slopes.append((right - _log_sum_exp(moved)) / (2 * step))
    return np.array(slopes)


def _step_cases():
    rng = np.random.default_rng(21)
    yield Case("two scores", np.array([0.0, 1.0]), 0.5)
    yield Case("two equal scores", np.array([1.0, 1.0]), 0.25)
    yield Case("three scores", np.array([1.0, -1.0, 2.0]), 0.5)
    yield Case("a large step", np.array([0.5, 0.0, -2.0]), 2.0)
    for size, step in ((4, 0.1), (5, 0.3), (7, 1.0), (3, 0.05)):
        yield Case("random scores", rng.normal(size=size), step)


differences = WriteFunction(
    level=2,
    trains="a gradient by finite differences",
    reference=lambda scores, step: _moved(scores, step),
    cases=tuple(_step_cases()),
    mistakes=(
        Mistake(
            "moved to the right only",
            "This is the slope from x to x + step. Measured to both sides, the bend of the "
            "function cancels, and the error is much smaller.",
            lambda x, h: _moved(x, h, 1, left=0),
        ),
        Mistake(
            "moved to the left only",
            "This is the slope from x - step to x. Measured to both sides, the bend of the "
            "function cancels, and the error is much smaller.",
            lambda x, h: _moved(x, h, 1, right=0),
        ),
        Mistake(
            "divided by one step",
            "From x - step to x + step the input moves by two steps.",
            lambda x, h: _moved(x, h, 1),
        ),
        Mistake(
            "moved by half a step",
            "This moves by half a step to each side. Move by a whole one, and divide by two.",
            lambda x, h: _moved(x, h, 1, 0.5, -0.5),
        ),
        Mistake(
            "one side, divided by two steps",
            "From x to x + step the input moves by one step. Measure to both sides.",
            lambda x, h: _moved(x, h, left=0),
            lambda x, h: _moved(x, h, right=0),
        ),
        Mistake(
            "not divided",
            "This is how far the function moves. A slope is that, divided by how far the input "
            "moved.",
            lambda x, h: _moved(x, h) * 2 * h,
        ),
        Mistake(
            "sign turned",
            "The end on the right comes first: f(x + step) - f(x - step).",
            lambda x, h: -_moved(x, h),
        ),
        Mistake(
            "all entries moved at once",
            "scores + step moves every entry. A slope for one entry moves that entry alone.",
            _all_at_once,
        ),
        Mistake(
            "entries not moved back",
            "The entries before stay moved while the next one is measured. Start from a new copy "
            "for each entry.",
            _never_moved_back,
            _moved_to_the_left_for_good,
        ),
        Mistake(
            "the exact gradient, or a step of your own",
            "The softmax is the exact gradient, and a step that is much smaller than the given one "
            "comes as near to it. Use the given step: its differences are a little off, as they "
            "should be.",
            lambda x, h: softmax(x),
        ),
    ),
    hints=(
        "For entry i: one copy with step added to entry i, one with step taken from it.",
        "The slope is (f(right) - f(left)) / (2 * step), where f is np.logaddexp.reduce.",
        "The rows of step * np.eye(len(scores)) each move one entry. Collect the slopes in a list "
        "and make an array of it.",
    ),
)

# ---------------------------------------------------------------------------- softmax_backward


def _backward(weights, cotangent):
    inner = (weights * cotangent).sum(axis=-1, keepdims=True)
    return weights * (cotangent - inner)


def _weights_and_slopes():
    rng = np.random.default_rng(22)
    yield Case("two keys", np.array([[0.75, 0.25]]), np.array([[1.0, -1.0]]))
    yield Case("a cotangent of ones", np.array([[0.5, 0.25, 0.25]]), np.ones((1, 3)))
    yield Case("one key", np.array([[1.0], [1.0]]), np.array([[2.0], [3.0]]))
    sizes = {(2, 2): "two queries", (3, 3): "as many queries as keys", (4, 3): "more queries",
             (2, 5): "more keys", (1, 4): "one query"}  # fmt: skip
    for size, label in sizes.items():
        yield Case(label, softmax(rng.normal(size=size)), rng.normal(size=size))
    single = softmax(rng.normal(size=(3, 4))), rng.normal(size=(3, 4))
    yield Case("float32", *(x.astype(np.float32) for x in single))


softmax_backward = WriteFunction(
    level=2,
    trains="the backward pass of the softmax",
    reference=lambda weights, cotangent: _backward(weights, cotangent),
    cases=tuple(_weights_and_slopes()),
    mistakes=(
        Mistake(
            "the fault is still there: the diagonal alone",
            "Each score moves the weights of all keys in its row, not only its own. The sum over "
            "the row is missing.",
            lambda w, g: w * (1 - w) * g,
        ),
        Mistake(
            "weights times cotangent",
            "That is the first half. What is taken from it makes every row add to 0.",
            lambda w, g: w * g,
        ),
        Mistake(
            "mean of the cotangent taken",
            "What is taken from the cotangent is its mean weighted by the weights, not the plain "
            "mean.",
            lambda w, g: w * (g - g.mean(axis=-1, keepdims=True)),
        ),
        Mistake(
            "sum of the cotangent taken",
            "The sum runs over weights times cotangent, not over the cotangent alone.",
            lambda w, g: w * (g - g.sum(axis=-1, keepdims=True)),
        ),
        Mistake(
            "one sum for all rows",
            "Each query has a softmax of its own: sum over the last axis and keep it.",
            lambda w, g: w * (g - (w * g).sum()),
        ),
        Mistake(
            "sum over the queries",
            "The sum runs over the keys, the last axis.",
            lambda w, g: w * (g - (w * g).sum(axis=0)),
        ),
        Mistake(
            "weights left out in front",
            "Both terms are multiplied by the weights, the sum as well as the cotangent.",
            lambda w, g: g - (w * g).sum(axis=-1, keepdims=True),
        ),
        Mistake(
            "sum not multiplied by the weights",
            "The sum must be shared out by the weights: w * g - w * sum.",
            lambda w, g: w * g - (w * g).sum(axis=-1, keepdims=True),
        ),
        Mistake(
            "sum added",
            "A key gains what the others lose: the sum is taken away.",
            lambda w, g: w * (g + (w * g).sum(axis=-1, keepdims=True)),
        ),
        Mistake(
            "sign turned",
            "All signs are turned.",
            lambda w, g: -_backward(w, g),
        ),
        Mistake(
            "weights taken for scores",
            "A softmax was applied to the weights once more.",
            lambda w, g: _backward(softmax(w), g),
        ),
    ),
    hints=(
        "For a cotangent of ones the result is 0: the weights of a row always add to 1.",
        "The Jacobian of one row is diag(w) - w w^T, chapter 3. Multiply it by the row of the "
        "cotangent.",
        "weights * (cotangent - inner), where inner is the sum of weights * cotangent over the "
        "last axis, with keepdims=True.",
    ),
)

# ---------------------------------------------------------------------------- parity_test


def _floats(*arrays):
    return [np.asarray(array, dtype=float) for array in arrays]


def _with_names(function):
    """Take the six arguments by position or by their names; keep their dtype, as the library."""

    def attention(
        inputs, num_heads, in_proj_weight, out_proj_weight, in_proj_bias, out_proj_bias, **options
    ):
        given = inputs, in_proj_weight, out_proj_weight, in_proj_bias, out_proj_bias
        arrays = _floats(*given)
        result = function(arrays[0], num_heads, *arrays[1:], **options)
        dtype = np.result_type(*map(np.asarray, given))
        return result.astype(dtype if dtype.kind == "f" else float)

    attention.__qualname__ = "attention"  # what an error calls it
    return attention


@_with_names
def _attention(*given, change=None, spoil=None):
    """The library's function; `change` alters the six arguments first, `spoil` the result."""
    if change is not None:
        given = change(*given)
    with np.errstate(all="ignore"):
        result = numpy_multi_head_attention(*given)
    return result if spoil is None else spoil(result)


@_with_names
def _pytorch(x, num_heads, *parameters):
    x, w, wo, b, bo = map(torch.tensor, (x, *parameters))
    result, _ = torch.nn.functional.multi_head_attention_forward(
        x, x, x, x.shape[-1], num_heads, w, b, None, None, False, 0.0, wo, bo, training=False
    )
    return result.numpy()


@_with_names
def _head_by_head(x, num_heads, w, wo, b, bo):
    q, k, v = np.split(np.einsum("lne,fe->nlf", x, w) + b, 3, axis=-1)
    width = q.shape[-1] // num_heads
    result = bo
    for h in range(num_heads):
        part = slice(h * width, (h + 1) * width)
        scores = np.einsum("nqd,nkd->nqk", q[..., part], k[..., part]) / math.sqrt(width)
        result = result + softmax(scores) @ v[..., part] @ wo[:, part].T
    return result.swapaxes(0, 1)


def _no_in_bias(x, h, w, wo, b, bo):
    return x, h, w, wo, 0 * b, bo


def _no_out_bias(x, h, w, wo, b, bo):
    return x, h, w, wo, b, 0 * bo


def _single(x, h, w, wo, b, bo):
    return x, 1, w, wo, b, bo


def _order(x, h, w, wo, b, bo):
    """The rows read head after head, query, key and value of one head together."""

    def turn(array):
        return array.reshape(h, 3, -1, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)

    return x, h, turn(w), wo, turn(b), bo


def _full_width_scale(x, h, w, wo, b, bo):
    """Scores divided by the root of the full width: the queries are made smaller."""
    factor = np.ones(len(b))
    factor[: len(b) // 3] = h**-0.5
    return x, h, w * factor[:, None], wo, b * factor, bo


def _swap_kv(x, h, w, wo, b, bo):
    (q, k, v), (bq, bk, bv) = np.split(w, 3), np.split(b, 3)
    return x, h, np.concatenate([q, v, k]), wo, np.concatenate([bq, bv, bk]), bo


@_with_names
def _across_samples(x, *rest):
    """All words of all samples attend to each other."""
    return _attention(x.reshape(-1, 1, x.shape[-1]), *rest).reshape(x.shape)


def _not_transposed(x, h, w, wo, b, bo):
    return x, h, w, wo.T, b, bo


def _no_out_weight(x, h, w, wo, b, bo):
    return x, h, w, np.eye(len(wo)), b, bo


def _without(place):
    """Leave the first number of an array (place 0) or its last one (place -1) at 0."""

    def spoil(result):
        result = result.copy()
        result.flat[place] = 0
        return result

    return spoil


def _example(length=5, batch=2, heads=3, width=12, biases=True, plain=False):
    rng = np.random.default_rng(23)
    shapes = (3 * width, width), (width, width), (3 * width,), (width,)
    parameters = [rng.normal(size=shape) for shape in shapes]
    if not biases:
        parameters[2:] = [0 * p for p in parameters[2:]]
    if plain:
        parameters[1] = np.eye(width)
    return rng.normal(size=(length, batch, width)), heads, *parameters


def _compares(look=lambda y: y, limit=1e-8, **sizes):
    """A test that looks at one example."""

    def test(attention):
        given = _example(**sizes)
        result = np.asarray(attention(*given))
        np.testing.assert_allclose(look(result), look(_attention(*given)), atol=limit)

    return test


def _zero_in_bias(attention):
    x, h, w, wo, b, bo = _example()
    given = x, h, w, wo, 0 * b, bo
    np.testing.assert_allclose(attention(*given), _attention(*given), atol=1e-8)


def _zero_out_bias(attention):
    x, h, w, wo, b, bo = _example()
    given = x, h, w, wo, b, 0 * bo
    np.testing.assert_allclose(attention(*given), _attention(*given), atol=1e-8)


def _compare_with_itself(attention):
    np.testing.assert_allclose(attention(*_example()), attention(*_example()))


COMPARE_ALL = "Compare every number of the output: all words, all samples, all features."
CLOSER = (
    "Right versions agree to many digits. Compare the numbers themselves, with a limit such as "
    "1e-9 in float64."
)
MAKE_RANDOM = "Draw the biases at random; a new module of PyTorch has zeros there."
MORE_HEADS = "Use more than one head, and several words: with one word every weight is 1."

parity_test = CatchFaults(
    level=3,
    trains="a test for a claim of equal numbers",
    right={
        "the library's": _attention,
        "PyTorch's": _pytorch,
        "head by head": _head_by_head,
    },
    faults=(
        Mistake(
            "all numbers 0.1 % too large",
            CLOSER,
            partial(_attention, spoil=lambda y: 1.001 * y),
        ),
        Mistake("in_proj_bias left out", MAKE_RANDOM, partial(_attention, change=_no_in_bias)),
        Mistake("out_proj_bias left out", MAKE_RANDOM, partial(_attention, change=_no_out_bias)),
        Mistake("one head in place of several", MORE_HEADS, partial(_attention, change=_single)),
        Mistake("rows read head after head", MORE_HEADS, partial(_attention, change=_order)),
        Mistake(
            "scores divided by the root of the full width",
            MORE_HEADS,
            partial(_attention, change=_full_width_scale),
        ),
        Mistake(
            "key and value swapped",
            "Compare the numbers of the output.",
            partial(_attention, change=_swap_kv),
        ),
        Mistake(
            "attends across the samples",
            "Use a batch of more than one sample.",
            _across_samples,
        ),
        Mistake(
            "out_proj_weight not transposed",
            "Draw out_proj_weight at random: the identity is its own transpose.",
            partial(_attention, change=_not_transposed),
        ),
        Mistake(
            "out_proj_weight left out",
            "Draw out_proj_weight at random: a product with the identity changes nothing.",
            partial(_attention, change=_no_out_weight),
        ),
        Mistake(
            "samples exchanged",
            "Use a batch of more than one sample. " + COMPARE_ALL,
            partial(_attention, spoil=lambda y: y[:, ::-1]),
        ),
        Mistake("first number left at 0", COMPARE_ALL, partial(_attention, spoil=_without(0))),
        Mistake("last number left at 0", COMPARE_ALL, partial(_attention, spoil=_without(-1))),
    ),
    mistakes=(
        Mistake(
            "an assertion that no fault breaks",
            "Every fault passes: none of them changes the shape, and each gives the same result "
            "twice. Compare the numbers with a right result.",
            _compares(look=np.shape),
            _compare_with_itself,
        ),
        Mistake(
            "all biases 0",
            "A layer that forgets its biases passes. Draw them at random.",
            _compares(biases=False),
        ),
        Mistake(
            "in_proj_bias 0",
            "in_proj_bias is 0 here, so a layer may forget it. Draw it at random.",
            _zero_in_bias,
        ),
        Mistake(
            "out_proj_bias 0",
            "out_proj_bias is 0 here, so a layer may forget it. Draw it at random.",
            _zero_out_bias,
        ),
        Mistake(
            "one head",
            "With one head nobody can tell how heads are cut or how wide they are.",
            _compares(heads=1),
        ),
        Mistake(
            "a batch of one",
            "With one sample nobody can tell samples from words that belong together.",
            _compares(batch=1),
        ),
        Mistake(
            "one head and a batch of one",
            "Make every size larger than 1: heads, samples, words.",
            _compares(heads=1, batch=1),
        ),
        Mistake(
            "one head and all biases 0",
            "Two choices each hide a fault: use several heads, and random biases.",
            _compares(heads=1, biases=False),
        ),
        Mistake(
            "out_proj_weight the identity",
            "A layer that leaves the output projection out passes, or one that forgets to "
            "transpose it. Draw its weight at random.",
            _compares(plain=True),
        ),
        Mistake(
            "a part of the output",
            "The rest of the output may be anything. " + COMPARE_ALL,
            _compares(look=lambda y: y[0, 0, 0]),
            _compares(look=lambda y: y[-1, -1, -1]),
        ),
        Mistake(
            "a summary of the output",
            "A mean, a sum, or the numbers in order of size stay the same when samples change "
            "places. Compare number by number.",
            _compares(look=np.mean),
        ),
        Mistake(
            "a limit that is too wide",
            CLOSER,
            _compares(limit=0.3),
            _compares(limit=1),
            _compares(limit=4),
        ),
    ),
    hints=(
        "Which faults does a fresh module with zero biases hide? Which does one head hide?",
        "Draw all parameters at random; take 3 heads, 2 samples, 5 words, width 12.",
        "Compare attention(…) with numpy_multi_head_attention(…) for the same six arguments, with "
        "np.testing.assert_allclose and a tolerance.",
    ),
)

# ---------------------------------------------------------------------------- gradient_test


def _gradient(scores, cotangent, *, backward=_backward):
    scores, cotangent = _floats(scores, cotangent)
    with np.errstate(all="ignore"):
        return backward(softmax(scores), cotangent)


def _gradient_by_torch(scores, cotangent):
    s, g = map(torch.tensor, _floats(scores, cotangent))
    s.requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad((s.softmax(-1) * g).sum(), s)[0].numpy()


def _gradient_by_jacobian(scores, cotangent):
    weights, cotangent = softmax(_floats(scores)[0]), _floats(cotangent)[0]
    jacobian = weights[..., None] * (np.eye(weights.shape[-1]) - weights[..., None, :])
    return np.einsum("...ij,...i->...j", jacobian, cotangent)


SCORES, SLOPES = np.random.default_rng(24).normal(size=(2, 3, 4))


def _checks(scores=SCORES, cotangent=SLOPES, look=lambda x: x, limit=1e-6):
    def test(gradient):
        result = look(np.asarray(gradient(scores, cotangent)))
        np.testing.assert_allclose(result, look(_gradient(scores, cotangent)), atol=limit)

    return test


def _rows_add_to_0(gradient):
    np.testing.assert_allclose(np.sum(gradient(SCORES, SLOPES), axis=-1), 0, atol=1e-6)


def _rows_add_to_0_and_are_not_0(gradient):
    _rows_add_to_0(gradient)
    assert np.any(gradient(SCORES, SLOPES))


def _exists(gradient):
    result = gradient(SCORES, SLOPES)
    assert result is not None
    assert np.isfinite(result).all()


EVERY_ENTRY = "Compare every entry of the gradient: all rows, all keys."
NEARER = (
    "Finite differences in float64 give many digits. Compare the numbers themselves, with a limit "
    "such as 1e-6."
)
RANDOM = "Use random scores and a random cotangent."

gradient_test = CatchFaults(
    level=3,
    trains="a gradient check that can fail",
    right={
        "weights times what is left": _gradient,
        "PyTorch's": _gradient_by_torch,
        "by the Jacobian": _gradient_by_jacobian,
    },
    faults=(
        Mistake(
            "a factor of -3.5",
            "Where the gradient is 0, a factor cannot be seen. " + RANDOM,
            partial(_gradient, backward=lambda w, g: -3.5 * _backward(w, g)),
        ),
        Mistake(
            "always 0",
            "For a cotangent of equal numbers the gradient is 0. " + RANDOM,
            partial(_gradient, backward=lambda w, g: 0 * g),
        ),
        Mistake(
            "the diagonal alone",
            RANDOM,
            partial(_gradient, backward=lambda w, g: w * (1 - w) * g),
        ),
        Mistake(
            "one sum for all rows",
            "Use several rows that differ. " + RANDOM,
            partial(_gradient, backward=lambda w, g: w * (g - (w * g).sum())),
        ),
        Mistake(
            "plain mean in place of the weighted one",
            "Use scores that differ. " + RANDOM,
            partial(_gradient, backward=lambda w, g: w * (g - g.mean(-1, keepdims=True))),
        ),
        Mistake(
            "rows exchanged",
            "Use several rows that differ. " + EVERY_ENTRY,
            partial(_gradient, backward=lambda w, g: _backward(w, g)[::-1]),
        ),
        Mistake(
            "first entry left at 0",
            EVERY_ENTRY,
            partial(_gradient, backward=lambda w, g: _without(0)(_backward(w, g))),
        ),
        Mistake(
            "last entry left at 0",
            EVERY_ENTRY,
            partial(_gradient, backward=lambda w, g: _without(-1)(_backward(w, g))),
        ),
        Mistake(
            "1 % too large",
            NEARER,
            partial(_gradient, backward=lambda w, g: 1.01 * _backward(w, g)),
        ),
    ),
    mistakes=(
        Mistake(
            "an assertion that no fault breaks",
            "Every fault passes: a gradient that exists, is finite and has the right shape may "
            "have any number in it. Compare with finite differences.",
            _exists,
            _checks(look=np.shape),
        ),
        Mistake(
            "a cotangent of ones",
            "That is the gradient of a sum that is always 1, hence 0, and so is every multiple of "
            "it. Use a random cotangent.",
            _checks(cotangent=np.ones((3, 4))),
        ),
        Mistake(
            "a single row",
            "With one row a sum over all rows is right by luck. Use several.",
            _checks(SCORES[:1], SLOPES[:1]),
        ),
        Mistake(
            "equal scores",
            "With equal scores all weights are equal, and a weighted mean is a plain one. Use "
            "random scores.",
            _checks(scores=np.zeros((3, 4))),
        ),
        Mistake(
            "a single row of equal scores",
            "One row hides a sum over all rows, equal scores hide a plain mean. Use several rows "
            "of random scores.",
            _checks(np.zeros((1, 4)), SLOPES[:1]),
        ),
        Mistake(
            "rows that add to 0",
            "The gradient adds to 0, but many wrong ones do too. Compare its numbers with finite "
            "differences.",
            _rows_add_to_0,
            _rows_add_to_0_and_are_not_0,
        ),
        Mistake(
            "a part of the gradient",
            "The rest of the gradient may be anything. " + EVERY_ENTRY,
            _checks(look=lambda x: x[0, 0]),
            _checks(look=lambda x: x[-1, -1]),
            _checks(look=lambda x: x[0]),
            _checks(look=lambda x: x[-1]),
        ),
        Mistake(
            "a limit that is too wide",
            NEARER,
            _checks(limit=0.05),
            _checks(look=np.sign),
        ),
    ),
    hints=(
        "For a cotangent of ones the gradient is 0 everywhere. Which faults still give 0?",
        "Draw scores and cotangent at random, with several rows.",
        "Move one score at a time by 1e-5 to both sides, compute (softmax(scores) * "
        "cotangent).sum() at both ends, and compare with np.testing.assert_allclose, atol=1e-6.",
    ),
)

EXERCISES = {
    "value_rows": value_rows,
    "unpack": unpack,
    "differences": differences,
    "softmax_backward": softmax_backward,
    "parity_test": parity_test,
    "gradient_test": gradient_test,
}
