"""Answers to the exercises of chapter 6: right ones, listed mistakes written anew, new mistakes."""

import math
from contextlib import suppress

import numpy as np
import torch
from wrong_answers.lookup import loop_softmax, rows

# ---------------------------------------------------------------------------- visible_pairs

VISIBLE_PAIRS = {
    "rows of the padding left out": [18.0],
    "padding alone": [np.int64(35)],
    "the triangle alone": [30.0],
    "blocked pairs counted": [26.0],
    "own position left out": [17.0],
    "or in place of and": [41.0],
    "one sentence alone": [15.0, np.int64(9)],
    "all pairs": [50.0],
}
VISIBLE_PAIRS_RIGHT = [24, 24.0, np.int64(24)]
VISIBLE_PAIRS_NEW = [
    0, 1, 25, 23, 10, 12, 7, 2.4, -24, math.nan, math.inf, "24", (24,), [24], True, 100,
]  # fmt: skip

# ---------------------------------------------------------------------------- batch_mask


def pair_by_pair(allowed):
    """Every pair alone: `allowed(query, key, length)`."""

    def function(lengths, size):
        mask = np.zeros((len(lengths), 1, size, size), dtype=bool)
        for b, _, i, j in np.ndindex(mask.shape):
            mask[b, 0, i, j] = allowed(i, j, lengths[b])
        return mask

    return function


right_batch_mask = pair_by_pair(lambda i, j, n: j <= i and j < n)


def by_tril_and_stack(lengths, size):
    masks = []
    for length in lengths:
        mask = np.tril(np.ones((size, size), dtype=bool))
        mask[:, length:] = False
        masks.append(mask)
    return np.stack(masks)[:, None]


BATCH_MASK = {
    "upside down": [pair_by_pair(lambda i, j, n: j > i or j >= n)],
    "the triangle is missing": [
        pair_by_pair(lambda i, j, n: j < n),
        lambda n, size: (np.arange(size)[None] < n[:, None]).reshape(len(n), 1, 1, size),
    ],
    "the padding is missing": [
        pair_by_pair(lambda i, j, n: j <= i),
        lambda n, size: np.tri(size, dtype=bool).reshape(1, 1, size, size),
    ],
    "rows of padding masked": [
        pair_by_pair(lambda i, j, n: j <= i < n),
        lambda n, size: right_batch_mask(n, size) & right_batch_mask(n, size).any(2)[..., None],
    ],
    "the triangle turned": [pair_by_pair(lambda i, j, n: i <= j < n)],
    "own position blocked": [pair_by_pair(lambda i, j, n: j < min(i, n))],
    "one word of the future": [pair_by_pair(lambda i, j, n: j < min(i + 2, n))],
    "one padding token too many": [pair_by_pair(lambda i, j, n: j <= min(i, n))],
    "or in place of and": [pair_by_pair(lambda i, j, n: not (j > i and j >= n))],
    "no axis for the heads": [lambda n, size: right_batch_mask(n, size).reshape(-1, size, size)],
    "padding as (batch, size)": [
        lambda n, size: np.tri(size, dtype=bool) * (np.arange(size)[None] < n[:, None]),
    ],
    "padding on the left": [
        lambda n, size: np.stack(
            [np.tri(size, dtype=bool) & (np.arange(size) + k >= size) for k in n]
        )[:, None],
    ],
    "rows and columns exchanged": [pair_by_pair(lambda i, j, n: i <= j and i < n)],
    "padding sees itself": [pair_by_pair(lambda i, j, n: j == i or (j < i and j < n))],
    "padding sees itself alone": [pair_by_pair(lambda i, j, n: j == i or j < i < n)],
}
BATCH_MASK_RIGHT = [
    right_batch_mask,
    by_tril_and_stack,
    pair_by_pair(lambda i, j, n: j < min(i + 1, n)),
]
BATCH_MASK_NEW = [
    lambda n, size: right_batch_mask(n, size).astype(int),
    lambda n, size: right_batch_mask(n, size).astype(float),
    lambda n, size: right_batch_mask(n, size)[:, 0, 0],
    lambda n, size: right_batch_mask(n, size)[None],
    lambda n, size: right_batch_mask(n[::-1], size),
    lambda n, size: right_batch_mask(n, size)[..., ::-1],
    lambda n, size: right_batch_mask(n, size).tolist(),
    lambda n, size: right_batch_mask(n, max(n)),
    lambda n, size: np.ones((len(n), 1, size, size), dtype=bool),
    lambda n, size: np.zeros((len(n), 1, size, size), dtype=bool),
    lambda n, size: np.where(right_batch_mask(n, size), 0.0, -np.inf),
    lambda n, size: ~pair_by_pair(lambda i, j, n: j < n)(n, size),
    pair_by_pair(lambda i, j, n: j <= i and i - j < n),
    pair_by_pair(lambda i, j, n: j <= i and j >= n),
    lambda n: n,
    lambda n, size: right_batch_mask(n, size).swapaxes(0, 1),
]

# ---------------------------------------------------------------------------- one_mask


def from_pairs(allowed):
    """Every pair alone: `allowed(a, p)` of what the two masks say of it."""

    def function(attn_mask, key_padding_mask):
        length, keys = attn_mask.shape
        mask = np.zeros((len(key_padding_mask), 1, length, keys), dtype=bool)
        for b, _, i, j in np.ndindex(mask.shape):
            mask[b, 0, i, j] = allowed(attn_mask[i, j], key_padding_mask[b, j])
        return mask

    return function


right_one_mask = from_pairs(lambda a, p: not a and not p)


def padding_as_rows(a, p):
    return np.stack([~a & ~row[:, None] for row in p])[:, None]


def padding_on_both_axes(a, p):
    mask = right_one_mask(a, p)
    if a.shape[0] == a.shape[1]:
        for b, row in enumerate(p):
            mask[b, 0, row] = False
    return mask


ONE_MASK = {
    "True still means blocked": [from_pairs(lambda a, p: a or p)],
    "attn_mask not inverted": [from_pairs(lambda a, p: a and not p)],
    "key_padding_mask not inverted": [from_pairs(lambda a, p: not a and p)],
    "neither inverted": [from_pairs(lambda a, p: a and p)],
    "or in place of and": [from_pairs(lambda a, p: not (a and p))],
    "attn_mask alone": [from_pairs(lambda a, p: not a), lambda a, p: np.logical_not(a)],
    "key_padding_mask alone": [
        from_pairs(lambda a, p: not p),
        lambda a, p: np.logical_not(p).reshape(len(p), 1, 1, -1),
    ],
    "padding on the queries": [padding_as_rows],
    "padding on the queries as well": [padding_on_both_axes],
    "attn_mask transposed": [
        lambda a, p: np.stack([~(a.transpose() | row) for row in p])[:, None],
    ],
    "exactly one in place of any": [
        from_pairs(lambda a, p: a == p),
        from_pairs(lambda a, p: a != p),
    ],
    "padding as (batch, S)": [
        lambda a, p: ~a & ~p,
        lambda a, p: np.logical_not(np.logical_or(a, p)),
        lambda a, p: (~a & ~p)[None, None],
    ],
    "no axis for the heads": [lambda a, p: np.stack([~a & ~row for row in p])],
}
ONE_MASK_RIGHT = [
    right_one_mask,
    lambda a, p: np.stack([~(a | row) for row in p])[:, None],
    lambda a, p: np.logical_not(a)[None, None] * np.logical_not(p)[:, None, None],
]
ONE_MASK_NEW = [
    lambda a, p: right_one_mask(a, p).astype(int),
    lambda a, p: right_one_mask(a, p).astype(float),
    lambda a, p: right_one_mask(a, p)[:1],
    lambda a, p: right_one_mask(a, p)[None],
    lambda a, p: right_one_mask(a, p).any(axis=0, keepdims=True),
    lambda a, p: right_one_mask(a, p)[..., ::-1],
    lambda a, p: right_one_mask(a, p[::-1]),
    lambda a, p: right_one_mask(a[::-1], p),
    lambda a, p: right_one_mask(a, p).tolist(),
    lambda a, p: right_one_mask(a, p).all(axis=2),
    lambda a, p: np.where(right_one_mask(a, p), 0.0, -np.inf),
    lambda a, p: right_one_mask(a, ~p[::-1]),
    lambda a, p: right_one_mask(a, p).swapaxes(0, 1),
    from_pairs(lambda a, p: True),
    from_pairs(lambda a, p: False),
    lambda a: a,
]

# ---------------------------------------------------------------------------- decoding_mask


def new_by_keys(allowed):
    """Every pair alone: `allowed(place of the query, key)`."""

    def function(length, keys):
        old = keys - length
        return np.array([[allowed(old + i, j, old) for j in range(keys)] for i in range(length)])

    return function


right_decoding = new_by_keys(lambda i, j, old: j <= i)

DECODING_MASK = {
    "the fault is still there: top left": [new_by_keys(lambda i, j, old: j <= i - old)],
    "one word of the future": [new_by_keys(lambda i, j, old: j <= i + 1)],
    "own position blocked": [new_by_keys(lambda i, j, old: j < i)],
    "offset turned": [new_by_keys(lambda i, j, old: j <= i - 2 * old)],
    "another offset": [
        lambda length, keys: np.arange(keys) <= np.arange(length)[:, None] + length,
        lambda length, keys: np.arange(keys) < np.arange(length)[:, None] + length,
    ],
    "the offset of one example": [
        lambda length, keys: np.arange(keys) <= np.arange(length)[:, None] + 2,
        lambda length, keys: np.tri(length, keys, 1, dtype=bool),
    ],
    "keys from right to left": [
        lambda length, keys: np.fliplr(right_decoding(length, keys)),
        lambda length, keys: np.fliplr(np.tri(length, keys, dtype=bool)),
    ],
    "upside down": [new_by_keys(lambda i, j, old: j > i)],
    "the triangle turned": [new_by_keys(lambda i, j, old: j >= i)],
    "earlier keys hidden": [new_by_keys(lambda i, j, old: old <= j <= i)],
    "everything allowed": [new_by_keys(lambda i, j, old: True)],
    "axes exchanged": [
        lambda length, keys: np.array(
            [[j <= keys - length + i for i in range(length)] for j in range(keys)]
        )
    ],
}
DECODING_MASK_RIGHT = [
    right_decoding,
    lambda length, keys: np.tri(keys, dtype=bool)[keys - length :],
    lambda length, keys: np.arange(keys) <= np.arange(keys - length, keys)[:, None],
]
DECODING_MASK_NEW = [
    lambda length, keys: right_decoding(length, keys).astype(float),
    lambda length, keys: right_decoding(length, keys).astype(int),
    lambda length, keys: right_decoding(length, keys)[::-1],
    lambda length, keys: np.tri(length, keys, keys, dtype=bool)[:, ::-1] & (length > 1),
    lambda length, keys: right_decoding(keys, keys),
    lambda length, keys: right_decoding(length, length),
    lambda length, keys: right_decoding(length, keys)[-1],
    lambda length, keys: right_decoding(length, keys)[None],
    lambda length, keys: np.zeros((length, keys), dtype=bool),
    lambda length, keys: right_decoding(length, keys).tolist(),
    new_by_keys(lambda i, j, old: j < old),
    new_by_keys(lambda i, j, old: i - 1 <= j <= i),
    new_by_keys(lambda i, j, old: j == i),
    lambda length, keys: np.where(right_decoding(length, keys), 0.0, -np.inf),
    lambda length: length,
]

# ---------------------------------------------------------------------------- masked_softmax


def row_by_row(of_allowed, dead=0.0):
    """`of_allowed(scores)` of the allowed keys alone; `dead` in a row without any."""

    def function(scores, mask):
        weights = np.zeros(scores.shape, dtype=scores.dtype)
        for i, allowed in enumerate(mask):
            if allowed.any():
                weights[i, allowed] = of_allowed(scores[i, allowed].tolist())
            else:
                weights[i] = dead if np.isscalar(dead) else dead(scores[i].tolist())
        return weights

    return function


def plain_softmax(scores):
    return rows(loop_softmax)(scores)


def overflowing(scores):
    e = np.exp(scores)
    return e / e.sum()


def multiplied(scores, mask):
    weights = plain_softmax(scores) * mask
    return np.divide(weights, weights.sum(-1, keepdims=True))


def multiplied_and_guarded(scores, mask):
    weights = multiplied(scores, mask)
    weights[~mask.any(axis=1)] = 0
    return weights


def zero_scores(scores, mask):
    scores = scores.copy()
    scores[~mask] = 0
    return plain_softmax(scores)


def by_torch(scores, mask):
    scores = torch.tensor(scores).masked_fill(torch.tensor(~mask), -torch.inf)
    return scores.softmax(-1).nan_to_num().numpy()


def renormalised(scores, mask):
    """Section 6.2, and 0 in place of NaN."""
    weights = plain_softmax(scores) * mask
    return np.nan_to_num(weights / weights.sum(-1, keepdims=True))


def one_maximum(scores, mask):
    e = np.exp(scores - scores[mask].max(initial=-np.inf))
    e[~mask] = 0
    return np.where(mask.any(1, keepdims=True), e / e.sum(1, keepdims=True), 0)


def small_divisor(scores, mask):
    e = np.exp(scores - scores.max(-1, keepdims=True)) * mask
    return e / (e.sum(-1, keepdims=True) + 1e-9)


def filled_and_small_divisor(scores, mask):
    filled = np.where(mask, scores, -1e20)
    e = np.exp(filled - filled.max(-1, keepdims=True)) * mask
    return e / (e.sum(-1, keepdims=True) + 1e-6)


def unshifted(scores, mask, cut=np.multiply):
    e = cut(np.exp(scores), mask)
    total = e.sum(axis=1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def asked_once(scores, mask):
    return plain_softmax(np.where(mask, scores, -1e20)) * (1 if mask.any() else 0)


def whole_rows_alone(scores, mask):
    weights = plain_softmax(np.where(mask, scores, -1e20))
    weights[~mask.all(axis=1)] = 0
    return weights


def uniform_to_zero(scores, mask):
    weights = plain_softmax(np.where(mask, scores, -1e9))
    weights[np.all(abs(weights - 1 / weights.shape[1]) < 1e-12, axis=1)] = 0
    return weights


def filled_and_multiplied(scores, mask):
    return plain_softmax(np.where(mask, scores, -1e4)) * mask


right_masked = row_by_row(loop_softmax)

MASKED_SOFTMAX = {
    "the fault is still there: dead rows are uniform": [
        row_by_row(loop_softmax, lambda s: [1 / len(s)] * len(s)),
    ],
    "uniform rows set to 0": [uniform_to_zero],
    "a fill that is not low enough": [filled_and_multiplied],
    "one maximum for all rows": [one_maximum],
    "a small number in the divisor": [small_divisor, filled_and_small_divisor],
    "NaN in dead rows": [row_by_row(loop_softmax, math.nan)],
    "a dead row keeps its weights": [row_by_row(loop_softmax, loop_softmax)],
    "weights set to 0 after the softmax": [
        lambda s, m: np.where(m, plain_softmax(s), 0.0),
    ],
    "blocked scores set to 0": [
        zero_scores,
        lambda s, m: zero_scores(s, m) * m.any(axis=1, keepdims=True),
    ],
    "blocked keys removed after the exponentials": [
        multiplied,
        multiplied_and_guarded,
        renormalised,
    ],
    "exponentials overflow": [
        row_by_row(overflowing),
        row_by_row(overflowing, math.nan),
        unshifted,
        lambda s, m: unshifted(s, m, lambda e, m: np.choose(m, [0 * s, e])),
    ],
    "one question for the whole mask": [
        asked_once,
        lambda s, m: row_by_row(loop_softmax, math.nan if m.any() else 0.0)(s, m),
    ],
    "all in place of any": [whole_rows_alone],
    "mask upside down": [lambda s, m: right_masked(s, np.logical_not(m))],
    "softmax over the queries": [lambda s, m: right_masked(s.T.copy(), m.T.copy()).T],
    "mask ignored": [lambda s, m: plain_softmax(s)],
}
MASKED_SOFTMAX_RIGHT = [right_masked, by_torch]
MASKED_SOFTMAX_NEW = [
    lambda s, m: right_masked(s, m) + 1e-3,
    lambda s, m: 2 * right_masked(s, m),
    lambda s, m: right_masked(s, m).sum(-1),
    lambda s, m: right_masked(s, m).tolist(),
    lambda s, m: right_masked(s, m)[:1],
    lambda s, m: right_masked(-s, m),
    lambda s, m: right_masked(s / 2, m),
    lambda s, m: right_masked(s, m).round(2),
    lambda s, m: right_masked(s, m).astype(np.float16),
    lambda s, m: np.where(m, s, 0.0),
    lambda s, m: np.where(m, s, -np.inf),
    lambda s, m: m / m.sum(-1, keepdims=True),
    lambda s, m: right_masked(s, m) ** 2,
    lambda s, m: right_masked(s, m[::-1]),
    row_by_row(loop_softmax, 1.0),
    lambda s: s,
]

# ---------------------------------------------------------------------------- leak_test


def average_of_the_past(x):
    x = np.asarray(x, dtype=float)
    outputs = []
    for i in range(len(x)):
        scores = [float(x[i] @ x[j]) / math.sqrt(x.shape[1]) for j in range(i + 1)]
        outputs.append(np.array(loop_softmax(scores)) @ x[: i + 1])
    return np.array(outputs)


TEXT = np.random.default_rng(41).normal(size=(7, 4))


def replaced(cut):
    changed = TEXT.copy()
    changed[cut:] = np.random.default_rng(42).normal(size=changed[cut:].shape)
    return changed


def reversed_future(attention):
    for cut in range(1, 7):
        changed = TEXT.copy()
        changed[cut:] = TEXT[cut:][::-1]
        assert np.allclose(attention(changed)[:cut], attention(TEXT)[:cut])


def some_cuts(*cuts, words=7):
    def test(attention):
        for cut in cuts:
            before, after = attention(TEXT[:words]), attention(replaced(cut)[:words])
            assert np.abs(before[:cut] - after[:cut]).max() < 1e-8

    return test


def every_cut(attention):
    for cut in range(1, 7):
        gap = np.abs(attention(replaced(cut))[:cut] - attention(TEXT)[:cut])
        assert gap.max() < 1e-8


def cut_off(attention):
    """The shorter sentence has the same outputs."""
    for cut in range(1, 7):
        assert np.allclose(attention(TEXT[:cut]), attention(TEXT)[:cut], atol=1e-8)


def against_loops(attention):
    assert np.allclose(attention(TEXT), average_of_the_past(TEXT), atol=1e-8)


def one_cut(part, cut=5):
    def test(attention):
        before, after = attention(TEXT)[part], attention(replaced(cut))[part]
        assert np.abs(before - after).max() < 1e-8

    return test


def has_shape(attention):
    assert np.shape(attention(TEXT)) == TEXT.shape


def repeats(attention):
    assert np.array_equal(attention(TEXT), attention(TEXT))


def uses_the_past(attention):
    changed = TEXT.copy()
    changed[0] = 3
    assert np.abs(attention(TEXT)[-1] - attention(changed)[-1]).max() > 1e-6


def last_output(attention):
    assert np.allclose(attention(TEXT)[-1], average_of_the_past(TEXT)[-1], atol=1e-8)


def word_before_the_future(attention):
    before = attention(TEXT)
    for cut in range(1, 7):
        assert np.allclose(attention(replaced(cut))[cut - 1], before[cut - 1], atol=1e-8)


def next_word(attention):
    before = attention(TEXT)
    for place in range(1, 7):
        changed = TEXT.copy()
        changed[place] = np.random.default_rng(43).normal(size=4)
        assert np.allclose(attention(changed)[place - 1], before[place - 1], atol=1e-8)


def zeros_become_ones(attention):
    before = attention(np.zeros((5, 3)))
    for cut in range(1, 5):
        changed = np.zeros((5, 3))
        changed[cut:] = 1
        assert np.allclose(attention(changed)[:cut], before[:cut], atol=1e-9)


def equal_words(attention):
    assert np.allclose(attention(np.full((7, 4), 0.5)), 0.5, atol=1e-8)


def first_output_is_first_word(attention):
    assert np.allclose(attention(TEXT)[0], TEXT[0])


LEAK_TEST = {
    "an assertion that no fault breaks": [has_shape, repeats],
    "the future only put in another order": [reversed_future],
    "only the first words": [
        one_cut(slice(0, 1)),
        first_output_is_first_word,
        some_cuts(2),
        some_cuts(1, 2),
        some_cuts(1, 2, words=3),
        some_cuts(1, words=2),
        some_cuts(1),
    ],
    "not every place of the change": [
        one_cut(slice(0, 5)),
        some_cuts(6),
        some_cuts(3),
        some_cuts(4),
        some_cuts(3, words=4),
        some_cuts(1, 6),
        some_cuts(3, 6),
        some_cuts(2, 3, 4, 5, 6),
    ],
    "the first word left out": [one_cut(slice(1, 5))],
    "neither the first word nor the one before the change": [one_cut(slice(1, 4))],
    "one word changed, one output compared": [next_word],
    "the past in place of the future": [uses_the_past],
    "only the last word": [last_output],
    "all words equal": [equal_words],
    "words of zeros": [zeros_become_ones],
}


def one_word_at_a_time(attention):
    for place in range(1, 7):
        changed = TEXT.copy()
        changed[place] += 1
        assert np.allclose(attention(changed)[:place], attention(TEXT)[:place], atol=1e-8)


LEAK_TEST_RIGHT = [
    every_cut, cut_off, against_loops, one_word_at_a_time, some_cuts(1, 2, 3, words=4),
    word_before_the_future,
]  # fmt: skip


def own_output_too(attention):
    assert np.allclose(attention(TEXT)[:6], attention(replaced(5))[:6])


def nothing_may_change(attention):
    assert np.allclose(attention(TEXT), attention(replaced(5)))


def wants_no_mask(attention):
    weights = plain_softmax(TEXT @ TEXT.T / 2)
    assert np.allclose(attention(TEXT), weights @ TEXT)


def exact_digits(attention):
    assert (attention(TEXT) == average_of_the_past(TEXT).round(3)).all()


def leak_without_assert(attention):
    np.allclose(attention(TEXT)[:5], attention(replaced(5))[:5])


def leak_printed(attention):
    print(np.allclose(attention(TEXT)[:5], attention(replaced(5))[:5]))


def leak_never_called(attention):
    assert np.allclose(average_of_the_past(TEXT)[:5], average_of_the_past(replaced(5))[:5])


def leak_two_arguments(attention):
    assert attention(TEXT, TEXT).shape == TEXT.shape


def leak_stops(attention):
    assert attention(TEXT).shape == undefined_name


def leak_swallows(attention):
    try:
        every_cut(attention)
    except AssertionError:
        print("failed")


def leak_suppresses(attention):
    with suppress(AssertionError):
        every_cut(attention)


def filled_future(value):
    def test(attention):
        for cut in range(1, 7):
            changed = TEXT.copy()
            changed[cut:] = value
            assert np.allclose(attention(changed)[:cut], attention(TEXT)[:cut])

    return test


def leak_tuple_of_words(attention):
    assert attention(TEXT[0]).shape == (4,)


LEAK_TEST_NEW = [
    own_output_too, nothing_may_change, wants_no_mask, exact_digits, leak_without_assert,
    leak_printed, leak_never_called, leak_two_arguments, leak_stops, leak_swallows,
    leak_suppresses, leak_tuple_of_words, filled_future(np.nan), filled_future(np.inf),
]  # fmt: skip

ANSWERS = {
    "visible_pairs": (VISIBLE_PAIRS_RIGHT, VISIBLE_PAIRS, VISIBLE_PAIRS_NEW),
    "batch_mask": (BATCH_MASK_RIGHT, BATCH_MASK, BATCH_MASK_NEW),
    "one_mask": (ONE_MASK_RIGHT, ONE_MASK, ONE_MASK_NEW),
    "decoding_mask": (DECODING_MASK_RIGHT, DECODING_MASK, DECODING_MASK_NEW),
    "masked_softmax": (MASKED_SOFTMAX_RIGHT, MASKED_SOFTMAX, MASKED_SOFTMAX_NEW),
    "leak_test": (LEAK_TEST_RIGHT, LEAK_TEST, LEAK_TEST_NEW),
}
