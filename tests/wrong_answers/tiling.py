"""Answers to the exercises of chapter 13: right ones, listed mistakes rewritten, new mistakes."""

import math
from contextlib import suppress

import numpy as np
import torch
from wrong_answers.lookup import loop_softmax, rows

# ---------------------------------------------------------------------------- window_blocks

WINDOW_BLOCKS = {
    "all blocks": [64.0, np.int64(64)],
    "the triangle's blocks": [36.0],
    "the diagonal alone": [8.0],
    "two in a row": [15.0, np.float32(16)],
    "three in every row": [24.0],
    "the last block left out": [18.0],
    "four in a row": [26.0, 32.0],
    "the window on both sides": [34.0, 28.0],
    "pairs divided by the size of a block": [10.99, np.int64(11)],
}
WINDOW_BLOCKS_RIGHT = [21, 21.0, np.int64(21), np.array(21)]
WINDOW_BLOCKS_NEW = [
    0, 1, 20, 22, 7, 23, 128, 200, -21, 1000, math.nan, math.inf, "21", (21,), [21], True,
]  # fmt: skip

# ---------------------------------------------------------------------------- merge_parts


def query_by_query(shares):
    """A merge that asks `shares(a, b)` for the two factors of every query."""

    def merge(first, first_lse, second, second_lse):
        result = np.zeros(first.shape)
        for place in np.ndindex(first_lse.shape):
            one, two = shares(float(first_lse[place]), float(second_lse[place]))
            result[place] = one * first[place] + two * second[place]
        return result

    return merge


def exp(x):
    return float(np.exp(np.float64(x)))


def right_shares(a, b):
    if a == b == -math.inf:
        return 0.0, 0.0
    top = max(a, b)
    one, two = exp(a - top), exp(b - top)
    return one / (one + two), two / (one + two)


def power_shares(a, b):
    if a == b == -math.inf:
        return 0.0, 0.0
    share = 0.5 * (1 + math.tanh((max(a, -1e9) - max(b, -1e9)) * math.log(2) / 2))
    return share, 1 - share


def by_logaddexp(first, first_lse, second, second_lse):
    lse = np.logaddexp(first_lse, second_lse)
    lse = np.where(np.isneginf(lse), 0.0, lse)[..., None]
    return np.exp(first_lse[..., None] - lse) * first + np.exp(second_lse[..., None] - lse) * second


def by_torch(first, first_lse, second, second_lse):
    lse = torch.stack([torch.tensor(x) for x in (first_lse, second_lse)])
    share = lse.softmax(dim=0).nan_to_num(0.0)[..., None]
    parts = torch.stack([torch.tensor(x) for x in (first, second)])
    return (share * parts).sum(dim=0).numpy()


def of_logs(a, b):
    with np.errstate(all="ignore"):
        share = np.float64(a) / np.float64(a + b)
        rest = np.float64(b) / np.float64(a + b)
    return float(share), float(rest)


def raw(a, b):
    one, two = np.exp(np.float64(a)), np.exp(np.float64(b))
    return float(one / (one + two)), float(two / (one + two))


def maximum_without_care(a, b):
    top = np.float64(max(a, b))
    one, two = np.exp(a - top), np.exp(b - top)
    return float(one / (one + two)), float(two / (one + two))


def one_share(first, first_lse, second, second_lse):
    with np.errstate(all="ignore"):
        share = 1 / (1 + np.exp(second_lse.mean() - first_lse.mean()))
    share = 0.0 if np.isnan(share) else share
    return share * first + (1 - share) * second


def along_width(first, first_lse, second, second_lse):
    with np.errstate(all="ignore"):
        share = np.nan_to_num(1 / (1 + np.exp(second_lse - first_lse)))
    return first * share + second * (1 - share)


def shifted(by):
    """Shares from exponentials relative to `by(a, b)`, or to 0 where that is minus infinity."""

    def shares(a, b):
        top = by(a, b)
        top = np.float64(0.0 if top == -math.inf else top)
        one, two = np.exp(a - top), np.exp(b - top)
        total = one + two or 1.0
        return float(one / total), float(two / total)

    return shares


def one_maximum(first, first_lse, second, second_lse):
    top = np.concatenate([first_lse, second_lse]).max()
    one, two = np.exp(first_lse - top), np.exp(second_lse - top)
    total = np.where(one + two == 0, 1, one + two)
    return np.einsum("...,...v->...v", one / total, first) + (two / total)[..., None] * second


def blind(value):
    def merge(first, first_lse, second, second_lse):
        result = by_logaddexp(first, first_lse, second, second_lse)
        for place in np.ndindex(first_lse.shape):
            if first_lse[place] == second_lse[place] == -math.inf:
                result[place] = value(first[place], second[place])
        return result

    return merge


def over_queries_of_a_part(first, first_lse, second, second_lse):
    parts = []
    for values, lse in (first, first_lse), (second, second_lse):
        shares = np.exp(lse - lse.max(axis=-1, keepdims=True))
        shares = shares / shares.sum(axis=-1, keepdims=True)
        parts.append(values * shares[..., None])
    return parts[0] + parts[1]


MERGE_PARTS = {
    "the mean of the two": [query_by_query(lambda a, b: (0.5, 0.5))],
    "the sum of the two": [query_by_query(lambda a, b: (1, 1))],
    "the larger part alone": [
        query_by_query(lambda a, b: (1, 0) if a >= b else (0, 1)),
        query_by_query(lambda a, b: (1, 0) if a > b else (0, 1)),
    ],
    "shares exchanged": [query_by_query(lambda a, b: right_shares(a, b)[::-1])],
    "shares from the logarithms": [query_by_query(of_logs)],
    "not divided by the sum": [
        query_by_query(
            lambda a, b: (0, 0) if a == b == -math.inf else (exp(min(a - b, 0)), exp(min(b - a, 0)))
        )
    ],
    "exponentials as shares": [query_by_query(lambda a, b: (exp(a), exp(b)))],
    "no maximum subtracted": [
        query_by_query(raw),
        lambda *parts: np.nan_to_num(query_by_query(raw)(*parts)),
    ],
    "NaN for a query that saw nothing": [query_by_query(maximum_without_care)],
    "powers of 2": [query_by_query(power_shares)],
    "only one part's log-sum-exp subtracted": [
        query_by_query(shifted(lambda a, b: a)),
        query_by_query(shifted(lambda a, b: b)),
        query_by_query(shifted(min)),
    ],
    "one maximum for all queries": [one_maximum],
    "not 0 for a query that saw nothing": [
        blind(lambda f, s: f),
        blind(lambda f, s: s),
        blind(lambda f, s: 0.5 * f + 0.5 * s),
    ],
    "one part alone": [lambda f, a, s, b: f.copy(), lambda f, a, s, b: s.copy()],
    "a softmax over the queries": [over_queries_of_a_part],
    "shares along the width": [along_width],
    "one share for all queries": [one_share],
    "the share of the first part for both": [
        query_by_query(lambda a, b: (right_shares(a, b)[0],) * 2)
    ],
}
MERGE_PARTS_RIGHT = [query_by_query(right_shares), by_logaddexp, by_torch]


def changed(first, first_lse, second, second_lse):
    result = by_logaddexp(first, first_lse, second, second_lse)
    first *= 0
    return result


def one_dead_part_only(first, first_lse, second, second_lse):
    result = by_logaddexp(first, first_lse, second, second_lse)
    return np.where(np.isneginf(first_lse)[..., None], 0.0, result)


def clipped(first, first_lse, second, second_lse):
    one, two = (np.exp(np.clip(x, -700, 700))[..., None] for x in (first_lse, second_lse))
    return (one * first + two * second) / (one + two)


MERGE_PARTS_NEW = [
    changed,
    one_dead_part_only,
    lambda f, a, s, b: np.logaddexp(a, b),
    clipped,
    lambda f, a, s, b: np.where(np.isneginf(b)[..., None], 0.0, by_logaddexp(f, a, s, b)),
    lambda f, a, s, b: by_logaddexp(f, a, s, b).astype(np.float32),
    lambda f, a, s, b: by_logaddexp(f, a, s, b).tolist(),
    lambda f, a, s, b: by_logaddexp(f, a, s, b) + 1e-3,
    lambda f, a, s, b: by_logaddexp(f, a, s, b)[..., :1],
    lambda f, a, s, b: by_logaddexp(f, a, s, b)[..., None],
    lambda f, a, s, b: (by_logaddexp(f, a, s, b), np.logaddexp(a, b)),
    lambda f, a, s, b: None,
    lambda f, a, s, b: by_logaddexp(f, 2 * a, s, 2 * b),
    lambda f, a, s, b: by_logaddexp(f, a + 1, s, b),
    lambda f, a, s, b: np.concatenate([f, s]),
    lambda f, a: f,
]

# ---------------------------------------------------------------------------- tiled_fault


def pair_by_pair(allowed, scale=None):
    """The formula, score by score; `allowed(i, j, block)` says which pairs are seen."""

    def function(query, key, value, block):
        output = np.zeros((len(query), value.shape[1]))
        for i, q in enumerate(query):
            seen = [j for j in range(len(key)) if allowed(i, j, block)]
            factor = 1 / math.sqrt(len(q)) if scale is None else scale
            scores = np.array([sum(q * key[j]) * factor for j in seen], dtype=float)
            if seen:
                e = np.exp(scores - scores.max())
                output[i] = sum(w * value[j] for w, j in zip(e, seen, strict=True)) / e.sum()
            else:
                output[i] = np.nan
        return output

    return function


right_tiled = pair_by_pair(lambda i, j, block: j <= i)


def stream(correct_sums=True, correct_total=True, start=-math.inf):
    """Query by query, a list of blocks of scores for each."""

    def function(query, key, value, block):
        output = np.zeros((len(query), value.shape[1]))
        for i, q in enumerate(query):
            largest, total, sums = start, 0.0, 0.0
            # every query of a block starts with the same blocks, so none is cut at i + 1 alone
            for j in range(0, i + 1, block):
                scores = np.array([q @ k for k in key[j : min(j + block, i + 1)]], dtype=float)
                scores = scores / math.sqrt(len(q))
                new = max(largest, scores.max())
                factor = np.exp(np.float64(largest - new))
                total = total * (factor if correct_total else 1) + np.exp(scores - new).sum()
                part = np.exp(scores - new) @ value[j : j + len(scores)]
                sums = sums * (factor if correct_sums else 1) + part
                largest = new
            output[i] = sums / total
        return output

    return function


def whole_blocks_only(query, key, value, block):
    whole = len(key) // block * block
    output = np.full((len(query), value.shape[1]), 0.0)
    if whole:
        output[:whole] = right_tiled(query[:whole], key[:whole], value[:whole], block)
    return output


def first_query_zero(query, key, value, block):
    return np.nan_to_num(pair_by_pair(lambda i, j, b: j < i)(query, key, value, block))


def each_block_alone(mean):
    def function(query, key, value, block):
        output = np.zeros((len(query), value.shape[1]))
        for i in range(len(query)):
            last = i // block
            for b in range(last + 1):
                keys = slice(b * block, min((b + 1) * block, i + 1))
                one = np.array(loop_softmax(key[keys] @ query[i] / math.sqrt(key.shape[1])))
                output[i] += one @ value[keys] / (last + 1 if mean else 1)
        return output

    return function


def by_torch_causal(query, key, value, block):
    q, k, v = (torch.tensor(x).double() for x in (query, key, value))
    mask = torch.ones(len(q), len(q), dtype=torch.bool).tril()
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).numpy()


def same_corner(i, j, block):
    """The block's own triangle, for a block that does not lie above the diagonal."""
    return j % block <= i % block and j // block <= i // block


def not_later(i, j, block, offset):
    """The triangle moved by `offset` in every block that is not above the diagonal."""
    return j // block <= i // block and j % block <= i % block + offset


TILED_FAULT = {
    "the fault is still there: one triangle for all blocks": [
        pair_by_pair(same_corner),
        pair_by_pair(lambda i, j, block: j % block <= i % block),
    ],
    "the triangle left out": [pair_by_pair(lambda i, j, block: True)],
    "the diagonal's blocks seen whole": [
        pair_by_pair(lambda i, j, block: j // block <= i // block)
    ],
    "the diagonal's blocks alone": [
        pair_by_pair(lambda i, j, block: j <= i and j // block == i // block)
    ],
    "offset turned": [
        pair_by_pair(lambda i, j, block: j % block <= i % block + (j // block - i // block) * block)
    ],
    "own position hidden": [first_query_zero],
    "offset counted in blocks": [
        pair_by_pair(lambda i, j, block: not_later(i, j, block, i // block - j // block)),
    ],
    "the offset always 1": [pair_by_pair(lambda i, j, block: not_later(i, j, block, 1))],
    "the offset without the first key": [
        pair_by_pair(lambda i, j, block: not_later(i, j, block, i // block * block)),
    ],
    "the first block skipped": [
        pair_by_pair(lambda i, j, block: j <= i and not j < block <= i),
    ],
    "the diagonal one too far": [
        pair_by_pair(lambda i, j, block: j <= i + 1 and j // block <= i // block),
    ],
    "one key of the future": [pair_by_pair(lambda i, j, block: j <= i + 1)],
    "the sums not corrected": [stream(correct_sums=False)],
    "the total not corrected": [stream(correct_total=False)],
    "neither sum corrected": [stream(correct_sums=False, correct_total=False)],
    "the largest starts at 0": [stream(start=0.0)],
    "the last block left out": [whole_blocks_only],
    "the scale left out": [pair_by_pair(lambda i, j, block: j <= i, scale=1)],
    "a softmax for each block": [each_block_alone(False), each_block_alone(True)],
}
TILED_FAULT_RIGHT = [right_tiled, stream(), by_torch_causal]


def changes_key(query, key, value, block):
    result = right_tiled(query, key, value, block)
    key += 1
    return result


TILED_FAULT_NEW = [
    changes_key,
    pair_by_pair(lambda i, j, block: j >= i),
    pair_by_pair(lambda i, j, block: j < i),
    pair_by_pair(lambda i, j, block: j == i),
    pair_by_pair(lambda i, j, block: j <= i and j >= i - block),
    pair_by_pair(lambda i, j, block: j <= i, scale=0.5),
    lambda q, k, v, block: right_tiled(q, k, v, block) + 1e-3,
    lambda q, k, v, block: right_tiled(q, k, v, block).astype(np.float32),
    lambda q, k, v, block: right_tiled(q, k, v, block).tolist(),
    lambda q, k, v, block: right_tiled(q, k, v, block)[:, :1],
    lambda q, k, v, block: right_tiled(q, k, v, block)[None],
    lambda q, k, v, block: right_tiled(k, q, v, block),
    lambda q, k, v, block: right_tiled(q, q, v, block),
    lambda q, k, v, block: v,
    lambda q, k, v, block: None,
    lambda q, k, v, block: right_tiled(q, k, v, block) / block,
    lambda q, k, v: right_tiled(q, k, v, 2),
]

# ---------------------------------------------------------------------------- scores_gradient


def entry_by_entry(rule):
    """A gradient that asks `rule(weight, of_weight, shared)` for every score, query and key."""

    def function(scores, value, output, lse, grad_output):
        result = np.zeros(scores.shape)
        for i, j in np.ndindex(scores.shape):
            weight = 0.0 if scores[i, j] == -math.inf else exp(scores[i, j] - lse[i])
            of_weight = sum(grad_output[i] * value[j])
            result[i, j] = rule(weight, of_weight, sum(grad_output[i] * output[i]))
        return result

    return function


right_gradient = entry_by_entry(lambda w, g, s: w * (g - s))


def query_rows(rule):
    """A gradient that asks `rule(scores, of_weights, lse, output, grad)` for every query."""

    def function(scores, value, output, lse, grad_output):
        result = [
            rule(s, np.array([g @ v for v in value]), x, o, g)
            for s, x, o, g in zip(scores, lse, output, grad_output, strict=True)
        ]
        return np.array(result, dtype=float)

    return function


def weights_of(s, x):
    return np.array([0.0 if t == -math.inf else exp(t - x) for t in s])


def block_softmax(s):
    e = np.array([0.0 if t == -math.inf else exp(t - max(s)) for t in s])
    return e / (e.sum() or 1)


def by_autograd(scores, value, output, lse, grad_output):
    """Of a softmax over this block and one more key that stands for all others."""
    result = np.zeros(scores.shape)
    for i in range(len(scores)):
        w, g = weights_of(scores[i], lse[i]), value @ grad_output[i]
        rest = output[i] @ grad_output[i] - w @ g  # what the other keys hold of the shared part
        result[i] = w * g - w * (w @ g + rest)
    return result


def no_guard(scores, value, output, lse, grad_output):
    with np.errstate(all="ignore"):
        w = np.stack([np.exp(s - x) for s, x in zip(scores, lse, strict=True)])
    return w * (grad_output @ value.T - np.einsum("iv,iv->i", grad_output, output)[:, None])


def over_queries(scores, value, output, lse, grad_output):
    w = np.stack([weights_of(s, x) for s, x in zip(scores, lse, strict=True)])
    return w * (grad_output @ value.T - np.trace(grad_output @ output.T))


def over_queries_by_width(scores, value, output, lse, grad_output):
    w = np.stack([weights_of(s, x) for s, x in zip(scores, lse, strict=True)])
    return w * (grad_output @ value.T - np.einsum("iv,iv->v", grad_output, output))


def values_gradient(scores, value, output, lse, grad_output):
    w = np.stack([weights_of(s, x) for s, x in zip(scores, lse, strict=True)])
    return np.einsum("ij,iv->jv", w, grad_output)


def raw_exp(s):
    return np.array([exp(t) for t in s])


SCORES_GRADIENT = {
    "the shared part left out": [entry_by_entry(lambda w, g, s: w * g)],
    "the shared part added": [entry_by_entry(lambda w, g, s: w * (g + s))],
    "the shared part from this block alone": [
        query_rows(lambda s, g, x, o, d: weights_of(s, x) * (g - weights_of(s, x) @ g))
    ],
    "the softmax of the block": [
        query_rows(lambda s, g, x, o, d: block_softmax(s) * (g - d @ o)),
        query_rows(lambda s, g, x, o, d: raw_exp(s - np.log(sum(np.exp(s)))) * (g - d @ o)),
    ],
    "everything from the block": [
        query_rows(lambda s, g, x, o, d: block_softmax(s) * (g - block_softmax(s) @ g)),
    ],
    "exponentials not divided": [query_rows(lambda s, g, x, o, d: raw_exp(s) * (g - d @ o))],
    "divided by the logarithm": [query_rows(lambda s, g, x, o, d: raw_exp(s) * (g - d @ o) / x)],
    "the sign turned": [entry_by_entry(lambda w, g, s: w * (s - g))],
    "the shared part outside the product": [entry_by_entry(lambda w, g, s: w * g - s)],
    "the effect on its own weight alone": [entry_by_entry(lambda w, g, s: w * (1 - w) * g)],
    "divided by the root of a width": [
        lambda s, v, o, lse, g: right_gradient(s, v, o, lse, g / math.sqrt(v.shape[1])),
    ],
    "the log-sum-exp added": [
        query_rows(lambda s, g, x, o, d: raw_exp(s + max(x, -1e9)) * (g - d @ o)),
    ],
    "two exponentials divided": [
        query_rows(lambda s, g, x, o, d: raw_exp(s) / (np.exp(x) or 1) * (g - d @ o)),
        query_rows(lambda s, g, x, o, d: raw_exp(s) / np.exp(x) * (g - d @ o)),
    ],
    "the weights left out": [entry_by_entry(lambda w, g, s: g - s)],
    "the gradient of the weights": [entry_by_entry(lambda w, g, s: g)],
    "the gradient of the values": [values_gradient],
    "the shared part summed over the queries": [over_queries, over_queries_by_width],
    "the mean in place of the sum": [
        query_rows(lambda s, g, x, o, d: weights_of(s, x) * (g - np.mean(d * o)))
    ],
    "the output without the gradient": [
        query_rows(lambda s, g, x, o, d: weights_of(s, x) * (g - sum(o))),
        query_rows(lambda s, g, x, o, d: weights_of(s, x) * (g - o @ o)),
        query_rows(lambda s, g, x, o, d: weights_of(s, x) * (g - sum(d))),
    ],
    "NaN for a query that sees nothing": [no_guard],
}
SCORES_GRADIENT_RIGHT = [right_gradient, by_autograd]


def changes_grad(scores, value, output, lse, grad_output):
    result = right_gradient(scores, value, output, lse, grad_output)
    grad_output *= 2
    return result


SCORES_GRADIENT_NEW = [
    changes_grad,
    lambda s, v, o, lse, g: right_gradient(s, v, o, lse, g) * 2,
    lambda s, v, o, lse, g: right_gradient(s, v, o, lse, g) + 1e-3,
    lambda s, v, o, lse, g: right_gradient(s, v, o, lse, g) / np.sqrt(s.shape[1]),
    lambda s, v, o, lse, g: right_gradient(s, v, o, lse, g).astype(np.float32),
    lambda s, v, o, lse, g: right_gradient(s, v, o, lse, g).tolist(),
    lambda s, v, o, lse, g: right_gradient(s, v, o, lse, g).T,
    lambda s, v, o, lse, g: right_gradient(s, v, o, lse, g)[:, :1],
    lambda s, v, o, lse, g: right_gradient(s, v, g, lse, o),
    entry_by_entry(lambda w, g, s: w),
    entry_by_entry(lambda w, g, s: w * s),
    entry_by_entry(lambda w, g, s: w * (1 - w) * (g - s)),
    entry_by_entry(lambda w, g, s: 0.0),
    lambda s, v, o, lse, g: None,
    lambda s, v, o, lse: s,
]

# ---------------------------------------------------------------------------- tiled_test

RNG = np.random.default_rng(77)
SIZES = {
    "mixed": ((5, 8, 3), (8, 5, 3), (3, 2, 7)),
    "ragged": ((5, 8, 3), (8, 5, 3)),
}


def numbers(*shape):
    return 2 * RNG.normal(size=shape)


INPUTS = {
    size: (numbers(size[0], 3), numbers(size[1], 3), numbers(size[1], 2))
    for size in [
        *SIZES["mixed"], (4, 8, 2), (8, 4, 2), (2, 2, 6), (6, 9, 3), (9, 6, 3), (3, 3, 9),
        (8, 8, 2), (8, 8, 3), (2, 2, 5), (3, 5, 9), (5, 8, 9), (8, 5, 9), (5, 8, 1), (8, 5, 1),
        (3, 2, 9), (7, 7, 4), (6, 12, 3), (12, 6, 3), (4, 8, 4), (8, 4, 4), (7, 6, 3), (5, 6, 3),
        (4, 3, 8),
    ]
}  # fmt: skip


def softmax_by_rows(scores):
    return np.array(rows(loop_softmax)(scores))


def expected(query, key, value):
    return softmax_by_rows(query @ key.T / math.sqrt(query.shape[1])) @ value


def agrees(sizes, change=lambda q, k, v: (q, k, v), part=slice(None), close=None):
    def test(tiled):
        for size in sizes:
            q, k, v = change(*INPUTS[size])
            right, mine = expected(q, k, v), tiled(q, k, v, size[2])
            assert mine.shape == right.shape
            if close:
                assert close(mine, right)
            else:
                np.testing.assert_allclose(mine[part], right[part], atol=1e-8)

    return test


def shapes_only(tiled):
    for size in SIZES["mixed"]:
        q, k, v = INPUTS[size]
        assert tiled(q, k, v, size[2]).shape == (len(q), v.shape[1])


def twice(tiled):
    q, k, v = INPUTS[5, 8, 3]
    first = tiled(q, k, v, 3)
    assert (first == tiled(q, k, v, 3)).all()


TILED_TEST = {
    "only the shape": [shapes_only],
    "an assertion that no fault breaks": [twice],
    "multiples of the block only": [
        agrees([(7, 6, 3), (5, 6, 3), (4, 3, 8)]),
        agrees([(4, 8, 2), (8, 4, 2), (4, 3, 8)]),
        agrees([(4, 8, 2), (8, 4, 2), (2, 2, 6)]),
        agrees([(6, 9, 3), (9, 6, 3), (3, 3, 9)]),
    ],
    "as many keys as queries, in whole blocks": [agrees([(8, 8, 2)])],
    "as many keys as queries": [agrees([(8, 8, 3), (2, 2, 5)])],
    "the same number of keys and queries, and no long block": [
        agrees([(8, 8, 3)]),
        agrees([(7, 7, 4)]),
    ],
    "never more queries than keys": [agrees([(5, 8, 3), (3, 5, 9)])],
    "never more keys than queries": [agrees([(8, 5, 3), (3, 2, 9)])],
    "no block longer than the sequence": [agrees(SIZES["ragged"])],
    "one block only": [agrees([(5, 8, 9), (8, 5, 9)])],
    "whole blocks only": [
        agrees([(5, 8, 1), (8, 5, 1)]),
        agrees([(4, 8, 2), (8, 4, 2)]),
        agrees([(6, 12, 3), (12, 6, 3)]),
        agrees([(4, 8, 4), (8, 4, 4)]),
    ],
    "equal scores": [agrees(SIZES["mixed"], lambda q, k, v: (np.zeros_like(q), k, v))],
    "constant values": [agrees(SIZES["mixed"], lambda q, k, v: (q, k, np.ones_like(v)))],
    "only the first query": [agrees(SIZES["mixed"], part=slice(1))],
    "only the last query": [agrees(list(INPUTS), part=slice(-1, None))],
    "only a sum or a mean": [
        agrees(SIZES["mixed"], close=lambda mine, right: abs(mine.sum() - right.sum()) < 1e-8),
        agrees(SIZES["mixed"], close=lambda mine, right: abs((mine - right).mean()) < 1e-8),
    ],
    "a difference with its sign": [
        agrees(list(INPUTS), close=lambda mine, right: (mine - right < 1e-8).all()),
    ],
    "a coarse comparison": [
        agrees(SIZES["mixed"], close=lambda mine, right: np.allclose(mine, right, atol=0.02)),
    ],
    "values as wide as the queries": [
        agrees(SIZES["mixed"], lambda q, k, v: (q, k, np.hstack([v, v[:, :1] ** 2]))),
    ],
}
TILED_TEST_RIGHT = [
    agrees(SIZES["mixed"]),
    agrees(list(INPUTS)),
    agrees([*SIZES["mixed"], (4, 8, 2)], lambda q, k, v: (3 * q, k, v)),
]


def unscaled(tiled):
    q, k, v = INPUTS[5, 8, 3]
    assert np.allclose(tiled(q, k, v, 3), softmax_by_rows(q @ k.T) @ v)


def causal_expected(tiled):
    q, k, v = INPUTS[8, 8, 3]
    scores = np.where(np.tri(8, dtype=bool), q @ k.T / math.sqrt(3), -np.inf)
    assert np.allclose(tiled(q, k, v, 3), softmax_by_rows(scores) @ v)


def exact(tiled):
    q, k, v = INPUTS[5, 8, 3]
    scores = q @ k.T / np.sqrt(3)
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    assert np.array_equal(tiled(q, k, v, 3), e @ v / e.sum(axis=1, keepdims=True))


def without_assert(tiled):
    for size in SIZES["mixed"]:
        np.allclose(tiled(*INPUTS[size], size[2]), expected(*INPUTS[size]))


def never_called(tiled):
    assert expected(*INPUTS[5, 8, 3]).shape == (5, 2)


def no_block_given(tiled):
    assert tiled(*INPUTS[5, 8, 3]).shape == (5, 2)


def asks_for_lse(tiled):
    _, lse = tiled(*INPUTS[5, 8, 3], 3)
    assert lse.shape == (5,)


def stops(tiled):
    q, k, v = INPUTS[5, 8, 3]
    right = q @ k / math.sqrt(3)
    assert np.allclose(tiled(q, k, v, 3), right)


def swallows(tiled):
    try:
        agrees(SIZES["mixed"])(tiled)
    except AssertionError:
        print("wrong")


def suppresses(tiled):
    with suppress(AssertionError):
        agrees(SIZES["mixed"])(tiled)


def wants_a_batch(tiled):
    q, k, v = (x[None] for x in INPUTS[5, 8, 3])
    assert tiled(q, k, v, 3).shape == (1, 5, 2)


def another_error(tiled):
    for size in SIZES["mixed"]:
        mine, right = tiled(*INPUTS[size], size[2]), expected(*INPUTS[size])
        if mine.shape != right.shape or not np.allclose(mine, right):
            raise ValueError("wrong")


TILED_TEST_NEW = [
    unscaled, causal_expected, exact, without_assert, never_called, no_block_given, asks_for_lse,
    stops, swallows, suppresses, wants_a_batch, another_error,
]  # fmt: skip

ANSWERS = {
    "window_blocks": (WINDOW_BLOCKS_RIGHT, WINDOW_BLOCKS, WINDOW_BLOCKS_NEW),
    "merge_parts": (MERGE_PARTS_RIGHT, MERGE_PARTS, MERGE_PARTS_NEW),
    "tiled_fault": (TILED_FAULT_RIGHT, TILED_FAULT, TILED_FAULT_NEW),
    "scores_gradient": (SCORES_GRADIENT_RIGHT, SCORES_GRADIENT, SCORES_GRADIENT_NEW),
    "tiled_test": (TILED_TEST_RIGHT, TILED_TEST, TILED_TEST_NEW),
}
