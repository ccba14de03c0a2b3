"""Answers to the exercises of chapter 4: right ones, listed mistakes written anew, new mistakes."""

import math

import numpy as np
import torch
from wrong_answers.lookup import loop_softmax, rows

# ---------------------------------------------------------------------------- head_parameters

HEAD_PARAMETERS = {
    "biases forgotten": [144, 144.0],
    "one projection alone": [52, np.int64(48)],
    "all heads together": [468, 432.0],
    "the head reads its own features only": [60.0],
    "output projection counted as well": [204, 208, 192.0],
    "the whole layer": [624, np.float64(576)],
    "a bias for each feature that is read": [180.0],
    "as many rows as there are heads": [117, 108],
}
HEAD_PARAMETERS_RIGHT = [156, 156.0, np.float32(156), np.array(156)]
HEAD_PARAMETERS_NEW = [
    0, 1, 12, 36, 72, 100, 157, 155, -156, 1000, math.nan, math.inf, (156,), [156], "156", True,
]  # fmt: skip

# ---------------------------------------------------------------------------- split_fault


def place(shape, rule):
    """A split that asks `rule(x, num_heads, i)` for every entry i of a result of `shape`."""

    def function(x, num_heads):
        b, words, width = x.shape
        sizes = {"b": b, "l": words, "h": num_heads, "d": width // num_heads, "e": width}
        result = np.empty([math.prod(sizes[s] for s in axis) for axis in shape], x.dtype)
        for i in np.ndindex(*result.shape):
            result[i] = rule(x, num_heads, i)
        return result

    return function


def right_place(x, h, i):
    return x[i[0], i[2], i[1] * (x.shape[2] // h) + i[3]]


softmax_by_rows = rows(loop_softmax)
right_split = place("bhld", right_place)


def split_by_hand(x, num_heads):
    return np.stack(np.split(x, num_heads, axis=-1), axis=1)


def split_by_torch(x, num_heads):
    return torch.tensor(x).unflatten(-1, (num_heads, -1)).transpose(1, 2).numpy()


def split_by_einsum(x, num_heads):
    return np.einsum("blhd->bhld", x.reshape(*x.shape[:2], num_heads, -1))


def flat(x, h):
    """Each sentence as one row of numbers, cut into the right shape."""
    return np.stack([row.ravel().reshape(h, len(row), -1) for row in x])


def mixed(x, h):
    heads = np.stack(np.split(x, h, axis=-1))
    return np.concatenate([sample for head in heads for sample in head]).reshape(
        len(x), h, x.shape[1], -1
    )


SPLIT_FAULT = {
    "the fault is still there: reshaped at once": [
        flat,
        lambda x, h: x.ravel().reshape(len(x), h, x.shape[1], -1),
    ],
    "no transpose": [
        place("blhd", lambda x, h, i: x[i[0], i[1], i[2] * (x.shape[2] // h) + i[3]]),
        lambda x, h: np.stack(np.split(x, h, axis=-1), axis=2),
    ],
    "features dealt out in turn": [
        place("bhld", lambda x, h, i: x[i[0], i[2], i[3] * h + i[1]]),
        lambda x, h: np.stack([x[..., i::h] for i in range(h)], axis=1),
    ],
    "number of heads and width of a head swapped": [
        lambda x, h: split_by_hand(x, x.shape[-1] // h),
    ],
    "words last": [
        lambda x, h: split_by_hand(x, h).swapaxes(2, 3),
        lambda x, h: x.swapaxes(1, 2).reshape(len(x), h, -1, x.shape[1]),
    ],
    "transposed first, then cut": [
        lambda x, h: flat(x.swapaxes(1, 2).reshape(x.shape), h),
        lambda x, h: np.stack([s.T.ravel().reshape(h, len(s), -1) for s in x]),
    ],
    "heads before the batch": [lambda x, h: np.stack(np.split(x, h, axis=-1))],
    "batch and heads folded into one axis": [
        lambda x, h: np.concatenate([np.stack(np.split(sample, h, axis=-1)) for sample in x]),
    ],
    "batch and heads mixed up": [mixed],
    "heads in reverse": [lambda x, h: np.stack(np.split(x, h, axis=-1)[::-1], axis=1)],
    "every head gets the same features": [
        lambda x, h: np.stack([x[..., : x.shape[-1] // h]] * h, axis=1),
    ],
    "every head gets all features": [
        place("bhle", lambda x, h, i: x[i[0], i[2], i[3]]),
        lambda x, h: np.stack([x] * h, axis=1),
    ],
}
SPLIT_FAULT_RIGHT = [
    right_split, split_by_hand, split_by_einsum,
    lambda x, h: x.reshape(*x.shape[:2], h, -1).transpose(0, 2, 1, 3),
]  # fmt: skip
SPLIT_FAULT_NEW = [
    lambda x, h: x,
    lambda x, h: right_split(x, h)[:, :, ::-1],
    lambda x, h: right_split(x, h)[..., ::-1],
    lambda x, h: right_split(x, h) + 1e-3,
    lambda x, h: right_split(x, h)[:, :1],
    lambda x, h: right_split(x, h)[None],
    lambda x, h: right_split(x, h)[0],
    lambda x, h: right_split(x, h).tolist(),
    lambda x, h: right_split(x, h).round(),
    lambda x, h: right_split(x[::-1], h),
    lambda x, h: np.roll(right_split(x, h), 1, axis=1),
    lambda x, h: np.sort(right_split(x, h), axis=-1),
    lambda x, h: tuple(np.split(x, h, axis=-1)),
    lambda x, h: right_split(x, h).ravel(),
    lambda x: x,
]

# ---------------------------------------------------------------------------- merge


def heads_of(x):
    return [x[:, i] for i in range(x.shape[1])]


def merge_by_hand(x):
    return np.concatenate(heads_of(x), axis=-1)


def merge_by_loop(x):
    b, h, words, d = x.shape
    result = np.empty((b, words, h * d), x.dtype)
    for i in range(h):
        result[:, :, i * d : (i + 1) * d] = x[:, i]
    return result


MERGE = {
    "reshaped at once": [
        lambda x: np.stack([sample.ravel().reshape(x.shape[2], -1) for sample in x]),
    ],
    "joined along the words": [
        lambda x: np.concatenate(heads_of(x), axis=-2),
        lambda x: np.stack([s.swapaxes(0, 1).reshape(-1, s.shape[-1]) for s in x]),
    ],
    "no reshape": [lambda x: np.stack(heads_of(x), axis=2)],
    "features laid in turn": [
        lambda x: np.stack(heads_of(x), axis=-1).reshape(len(x), x.shape[2], -1),
    ],
    "the wrong two axes swapped": [
        lambda x: np.einsum("bhld->bhdl", x).reshape(len(x), x.shape[2], -1),
    ],
    "heads added": [lambda x: sum(heads_of(x))],
    "heads averaged": [lambda x: sum(heads_of(x)) / x.shape[1]],
    "one head alone": [lambda x: heads_of(x)[0], lambda x: heads_of(x)[-1]],
    "words before the batch": [lambda x: merge_by_hand(x).swapaxes(0, 1)],
    "batch and words folded into one axis": [lambda x: np.concatenate(list(merge_by_hand(x)))],
    "heads in reverse": [lambda x: np.concatenate(heads_of(x)[::-1], axis=-1)],
}
MERGE_RIGHT = [
    merge_by_hand, merge_by_loop,
    lambda x: x.transpose(0, 2, 1, 3).reshape(len(x), x.shape[2], -1),
]  # fmt: skip
MERGE_NEW = [
    lambda x: x,
    lambda x: merge_by_hand(x)[:, ::-1],
    lambda x: merge_by_hand(x)[..., ::-1],
    lambda x: merge_by_hand(x)[::-1],
    lambda x: merge_by_hand(x) + 1e-3,
    lambda x: merge_by_hand(x)[None],
    lambda x: merge_by_hand(x)[:1],
    lambda x: merge_by_hand(x).tolist(),
    lambda x: merge_by_hand(x).swapaxes(1, 2),
    lambda x: merge_by_hand(x).round(),
    lambda x: x.max(axis=1),
    lambda x: x.reshape(len(x), -1),
    lambda x: np.sort(merge_by_hand(x), axis=-1),
    lambda x, h: merge_by_hand(x),
]

# ---------------------------------------------------------------------------- multi_head


def layer_by_loop(
    rows_of=lambda part, head, h, d, e: range(part * e + head * d, part * e + (head + 1) * d),
    weights_of=softmax_by_rows, scale=lambda h, d: 1 / math.sqrt(d), join=np.hstack,
    biases=(1, 1), last=lambda w: w.T, project=lambda w: w.T, out=lambda y: y,
):  # fmt: skip
    """Sentence by sentence and head by head."""

    def function(inputs, h, w, w_out, b, b_out):
        e = inputs.shape[-1]
        d, result = e // h, np.empty_like(inputs)
        for n in range(inputs.shape[1]):
            x, heads = inputs[:, n], []
            for head in range(h):
                q, k, v = (
                    x @ project(w)[:, chosen] + biases[0] * b[chosen]
                    for chosen in (list(rows_of(part, head, h, d, e)) for part in range(3))
                )
                heads.append(weights_of(q @ k.T * scale(h, d)) @ v)
            result[:, n] = join(heads) @ last(w_out) + biases[1] * b_out
        return out(result)

    return function


right_layer = layer_by_loop()


def by_torch(inputs, h, w, w_out, b, b_out):
    x, *parameters = (torch.tensor(array) for array in (inputs, w, b, w_out, b_out))
    w, b, w_out, b_out = parameters
    return torch.nn.functional.multi_head_attention_forward(
        x, x, x, x.shape[-1], h, w, b, None, None, False, 0.0, w_out, b_out
    )[0].numpy()


def in_steps(inputs, h, w, wo, b, bo, *, split, merge, weights=softmax_by_rows, turn=True):
    """All heads at once, batch first."""
    packed = inputs @ w.T + b
    packed = packed.transpose(1, 0, 2) if turn else packed
    q, k, v = (split(part, h) for part in np.split(packed, 3, axis=-1))
    scores = np.einsum("...qd,...kd->...qk", q, k) / math.sqrt(inputs.shape[-1] // h)
    output = merge(np.einsum("...qk,...kv->...qv", weights(scores), v))
    return (output.transpose(1, 0, 2) if turn else output) @ wo.T + bo


def steps(**choices):
    return lambda *arguments: in_steps(*arguments, **choices)


def flat_merge(x):
    return np.stack([sample.ravel().reshape(x.shape[2], -1) for sample in x])


def in_turn(part, head, h, d, e):
    return range(part * e + head, part * e + e, h)


def by_head(part, head, h, d, e):
    return range(head * 3 * d + part * d, head * 3 * d + (part + 1) * d)


def swapped(one, other):
    def rows_of(part, head, h, d, e):
        part = {one: other, other: one}.get(part, part)
        return range(part * e + head * d, part * e + (head + 1) * d)

    return rows_of


def averaged(scores):
    weights = softmax_by_rows(scores)
    heads = weights.shape[1]
    return np.stack([sum(weights[:, h] for h in range(heads)) / heads] * heads, axis=1)


def over_heads(scores):
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def over_sentences(scores):
    e = np.exp(scores - scores.max(0))
    return e / e.sum(0)


def plain_exponentials(scores):
    with np.errstate(all="ignore"):
        return np.exp(scores) / np.exp(scores).sum(-1)[:, None]


def blocks_transposed(w):
    return np.hstack(np.split(w, 3))


MULTI_HEAD = {
    "split by a reshape alone": [
        steps(split=flat, merge=merge_by_hand),
        steps(split=flat, merge=flat_merge),
    ],
    "merged by a reshape alone": [steps(split=split_by_hand, merge=flat_merge)],
    "features laid in turn when the heads are merged": [
        layer_by_loop(join=lambda heads: np.dstack(heads).reshape(len(heads[0]), -1)),
    ],
    "heads attend to heads": [
        steps(
            split=lambda x, h: np.stack(np.split(x, h, axis=-1), axis=2),
            merge=lambda x: x.reshape(x.shape[0], x.shape[1], -1),
        ),
    ],
    "features dealt out to the heads in turn": [
        layer_by_loop(in_turn),
        layer_by_loop(in_turn, join=lambda heads: np.dstack(heads).reshape(len(heads[0]), -1)),
    ],
    "one head of full width": [
        lambda x, h, *parameters: right_layer(x, 1, *parameters),
        lambda x, h, *parameters: by_torch(x, 1, *parameters),
    ],
    "divided by the root of the full width": [
        layer_by_loop(scale=lambda h, d: 1 / math.sqrt(h * d)),
    ],
    "divided by the root of the number of heads": [
        layer_by_loop(scale=lambda h, d: 1 / math.sqrt(h)),
    ],
    "divided by the width of a head, not by its root": [
        layer_by_loop(scale=lambda h, d: 1 / d),
    ],
    "no scale": [layer_by_loop(scale=lambda h, d: 1)],
    "one table of weights for all heads": [
        steps(split=split_by_hand, merge=merge_by_hand, weights=averaged),
    ],
    "softmax over the heads": [
        steps(split=split_by_hand, merge=merge_by_hand, weights=over_heads),
    ],
    "softmax over the queries": [
        layer_by_loop(weights_of=lambda s: softmax_by_rows(s.T).T),
    ],
    "softmax over the batch": [
        steps(split=split_by_hand, merge=merge_by_hand, weights=over_sentences),
    ],
    "weights transposed": [layer_by_loop(weights_of=lambda s: softmax_by_rows(s).T)],
    "attends only to the past": [
        layer_by_loop(weights_of=lambda s: softmax_by_rows(s - np.triu(np.full(s.shape, 1e9), 1))),
    ],
    "packed rows taken head by head": [layer_by_loop(by_head)],
    "another order of queries, keys and values": [
        layer_by_loop(swapped(0, 1)),
        layer_by_loop(swapped(1, 2)),
    ],
    "both biases left out": [layer_by_loop(biases=(0, 0))],
    "bias of the input projection left out": [layer_by_loop(biases=(0, 1))],
    "bias of the output projection left out": [layer_by_loop(biases=(1, 0))],
    "output bias added before the output projection": [
        lambda x, h, w, wo, b, bo: right_layer(x, h, w, wo, b, wo @ bo),
    ],
    "output projection left out": [
        layer_by_loop(last=lambda w: np.eye(len(w))),
        layer_by_loop(last=lambda w: np.eye(len(w)), biases=(1, 0)),
    ],
    "output projection not transposed": [layer_by_loop(last=lambda w: w)],
    "input projection not transposed": [layer_by_loop(project=blocks_transposed)],
    "attends across the batch": [
        steps(split=split_by_hand, merge=merge_by_hand, turn=False),
        lambda x, *rest: right_layer(x.swapaxes(0, 1), *rest).swapaxes(0, 1),
    ],
    "output left in (batch, seq, embed)": [layer_by_loop(out=lambda y: y.swapaxes(0, 1))],
    "no maximum subtracted": [layer_by_loop(weights_of=plain_exponentials)],
}
MULTI_HEAD_RIGHT = [
    right_layer, by_torch,
    steps(split=split_by_hand, merge=merge_by_hand),
    steps(split=right_split, merge=merge_by_loop),
]  # fmt: skip
MULTI_HEAD_NEW = [
    layer_by_loop(scale=lambda h, d: math.sqrt(d)),
    layer_by_loop(scale=lambda h, d: 1 / math.sqrt(3 * h * d)),
    layer_by_loop(scale=lambda h, d: 0.5),
    layer_by_loop(weights_of=lambda s: s),
    layer_by_loop(weights_of=lambda s: np.full(s.shape, 1 / len(s))),
    layer_by_loop(weights_of=lambda s: np.eye(len(s))[s.argmax(-1)]),
    layer_by_loop(join=lambda heads: np.hstack(heads[::-1])),
    layer_by_loop(biases=(-1, 1)),
    layer_by_loop(biases=(1, 2)),
    layer_by_loop(out=lambda y: y + 1e-3),
    layer_by_loop(out=lambda y: y[:1]),
    layer_by_loop(out=lambda y: y.tolist()),
    layer_by_loop(out=lambda y: y[::-1]),
    layer_by_loop(out=lambda y: y.round(1)),
    lambda x, h, w, wo, b, bo: x,
    lambda x, h, w, wo, b, bo: x @ wo.T + bo,
    lambda x, h, w, wo: x,
]

# ---------------------------------------------------------------------------- split_test

X = np.arange(2 * 3 * 8.0).reshape(2, 3, 8)


def good_split_test(split):
    heads = split(X, 4)
    for b, h, word, i in np.ndindex(2, 4, 3, 2):
        assert heads[b][h][word][i] == X[b, word, 2 * h + i]
    assert np.shape(heads) == (2, 4, 3, 2)


def good_split_test_by_hand(split):
    x = np.zeros((2, 3, 8))
    x[1, 2, 5] = 1
    expected = np.zeros((2, 4, 3, 2))
    expected[1, 2, 2, 1] = 1
    np.testing.assert_array_equal(split(x, 4), expected)
    np.testing.assert_array_equal(split(X, 4), right_split(X, 4))


def compare(batch, words, heads, d, look=np.asarray):
    def test(split):
        x = np.random.default_rng(3).normal(size=(batch, words, heads * d))
        np.testing.assert_allclose(look(split(x, heads)), look(split_by_hand(x, heads)))

    return test


def only_axes(split):
    heads = split(X, 4)
    assert heads.ndim == 4
    assert list(heads.shape) == [2, 4, 3, 2]


def only_repeats(split):
    assert (split(X, 4) == split(X.copy(), 4)).all()


def only_size(split):
    assert np.size(split(X, 4)) == X.size


def zeros_and_shape(split):
    result = split(np.full((2, 3, 8), 5.0), 4)
    assert result.shape == (2, 4, 3, 2)
    assert (result == 5).all()


def there_and_back(split):
    heads = split(X, 4)
    assert np.allclose(np.concatenate([heads[:, i] for i in range(heads.shape[1])], -1), X)


SPLIT_TEST = {
    "only the shape": [only_axes, compare(2, 3, 4, 2, np.shape)],
    "an assertion that no fault breaks": [only_repeats, only_size],
    "one head only": [compare(3, 4, 1, 5)],
    "one word only": [compare(3, 1, 4, 2)],
    "one sentence only": [compare(1, 3, 4, 2)],
    "heads of width 1": [compare(3, 4, 5, 1)],
    "number and width of the heads not told apart": [compare(2, 3, 4, 4), there_and_back],
    "constant input": [zeros_and_shape],
    "right numbers at wrong places pass": [
        compare(2, 3, 4, 2, np.sum),
        compare(2, 3, 4, 2, lambda heads: sorted(np.ravel(heads))),
    ],
    "only the first head": [compare(2, 5, 4, 3, lambda heads: heads[:, 0])],
    "only the first sentence": [compare(2, 5, 3, 4, lambda heads: heads[0])],
    "only the first word": [compare(2, 5, 3, 4, lambda heads: heads[0, 0, 0])],
}
SPLIT_TEST_RIGHT = [good_split_test, good_split_test_by_hand, compare(2, 3, 4, 5)]


def wants_the_fault(split):
    assert np.allclose(split(X, 4), flat(X, 4))


def wants_no_transpose(split):
    assert np.shape(split(X, 4)) == (2, 3, 4, 2)


def wants_list(split):
    assert split(X, 4) == right_split(X, 4).tolist()


def never_calls(split):
    assert np.allclose(right_split(X, 4).sum(), X.sum())


def no_assert(split):
    np.allclose(split(X, 4), right_split(X, 4))


def swallows(split):
    try:
        assert np.allclose(split(X, 4), right_split(X, 4))
    except AssertionError:
        print("wrong")


def stops(split):
    assert split(X, 4).shape == undefined_name


def three_arguments(split):
    assert split(X, 4, 2).shape == (2, 4, 3, 2)


def raises_another(split):
    if not np.array_equal(split(X, 4), right_split(X, 4)):
        raise ValueError("wrong")


def only_last_word(split):
    assert np.allclose(split(X, 4)[:, :, -1], right_split(X, 4)[:, :, -1])


def only_last_head(split):
    assert np.allclose(split(X, 4)[:, -1], right_split(X, 4)[:, -1])


SPLIT_TEST_NEW = [
    wants_the_fault, wants_no_transpose, wants_list, never_calls, no_assert,
    swallows, stops, three_arguments, raises_another, only_last_word, only_last_head,
    lambda split: split(X, 4),
]  # fmt: skip

ANSWERS = {
    "head_parameters": (HEAD_PARAMETERS_RIGHT, HEAD_PARAMETERS, HEAD_PARAMETERS_NEW),
    "split_fault": (SPLIT_FAULT_RIGHT, SPLIT_FAULT, SPLIT_FAULT_NEW),
    "merge": (MERGE_RIGHT, MERGE, MERGE_NEW),
    "multi_head": (MULTI_HEAD_RIGHT, MULTI_HEAD, MULTI_HEAD_NEW),
    "split_test": (SPLIT_TEST_RIGHT, SPLIT_TEST, SPLIT_TEST_NEW),
}
