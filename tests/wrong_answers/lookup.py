"""Answers to the exercises of chapter 1: right ones, listed mistakes written anew, new mistakes."""

import linecache
import math
import warnings

import numpy as np


def typed(source, names):
    """The names that a cell defines, as in a notebook: warnings pass, its source can be read."""
    filename = f"<cell {len(linecache.cache)}>"
    linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, filename, "exec"), names)
    return names


# ---------------------------------------------------------------------------- softmax


def rows(of_one_row):
    """A function of one list of scores, applied along the last axis with loops."""

    def function(scores):
        scores = np.asarray(scores)
        flat = scores.reshape(-1, scores.shape[-1])
        result = np.array([of_one_row(row.tolist()) for row in flat])
        return result.reshape(scores.shape)

    return function


def as_input(function):
    """Like `function`, with the dtype of a float input."""

    def kept(x, *rest):
        dtype = x.dtype if x.dtype.kind == "f" else float
        return np.asarray(function(x, *rest)).astype(dtype)

    return kept


def shares(numbers):
    total = math.fsum(numbers)
    return [number / total for number in numbers]


def loop_softmax(row):
    return shares([math.exp(score - max(row)) for score in row])


def softmax_by_pairs(x):
    return 1 / np.exp(x[..., None, :] - x[..., :, None]).sum(-1)


def softmax_by_logaddexp(x):
    return np.exp(x - np.logaddexp.reduce(x, axis=-1, keepdims=True)).astype(
        x.dtype if x.dtype.kind == "f" else float
    )


def softmax_moved_axis(x):
    x = np.moveaxis(x, -1, 0)
    e = np.exp(x - np.amax(x, axis=0))
    return np.moveaxis(e / np.sum(e, axis=0), 0, -1)


def first_axis_by_loop(x):
    columns = np.moveaxis(x, 0, -1)
    return np.moveaxis(rows(loop_softmax)(columns), -1, 0)


def all_entries_by_loop(x):
    weights = loop_softmax([float(score) for score in np.nditer(x)])
    return np.array(weights).reshape(x.shape)


def one_maximum_by_loop(x):
    top = float(max(np.nditer(x)))
    return rows(lambda row: shares([math.exp(score - top) for score in row]))(x)


def maximum_without_keepdims(x):
    e = np.exp(np.subtract(x, np.amax(x, axis=x.ndim - 1)))
    return np.divide(e, np.expand_dims(np.add.reduce(e, axis=-1), -1))


def sum_without_keepdims(x):
    e = np.exp(x - np.take_along_axis(x, x.argmax(-1)[..., None], -1))
    return np.einsum("...i->...i", e) * (1 / np.einsum("...i->...", e))


def both_without_keepdims(x):
    shifted = x + -np.max(x, -1)
    exponentials = np.exp(shifted)
    return np.true_divide(exponentials, np.sum(exponentials, -1))


def one_hot_by_loop(row):
    best = row.index(max(row))
    return [1.0 if i == best else 0.0 for i in range(len(row))]


def integer_by_loop(x):
    result = np.empty(x.shape, dtype=x.dtype)
    for place in np.ndindex(x.shape[:-1]):
        result[place] = loop_softmax(x[place].tolist())
    return result


def naive_loop(row):
    exponentials = [math.exp(score) for score in row]
    return [e / sum(exponentials) for e in exponentials]


def naive_softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def naive_first(x):
    weights = naive_softmax(x)
    return weights if np.isfinite(weights).all() else softmax_by_pairs(x)


def repaired_by_loop(row):
    weights = naive_softmax(np.array(row)).tolist()
    return [0.0 if math.isnan(weight) else weight for weight in weights]


def changes_its_argument(x):
    x -= x.max(axis=-1, keepdims=True)
    e = np.exp(x)
    return e / e.sum(axis=-1, keepdims=True)


SOFTMAX = {
    "no maximum subtracted": [
        rows(naive_loop),
        lambda x: np.exp(x) * (1 / np.einsum("...k->...", np.exp(x)))[..., None],
        lambda x: np.e ** x.astype(float) / np.sum(np.e ** x.astype(float), -1, keepdims=True),
    ],
    "softmax over the first axis": [
        first_axis_by_loop,
        lambda x: np.exp(x - x.max(axis=0)) / np.exp(x - x.max(axis=0)).sum(axis=0),
        lambda x: np.exp(x) / np.exp(x).sum(axis=0),
        lambda x: np.exp(x - np.max(x)) / sum(np.exp(x - np.max(x))) if x.max() < 9 else np.nan,
        lambda x: (lambda e: e / sum(e))(np.exp(x - x.max(-1, keepdims=True))),
    ],
    "softmax over all entries at once": [
        all_entries_by_loop,
        lambda x: np.exp(x - np.max(x)) / np.sum(np.exp(x - np.max(x))),
        lambda x: np.exp(x) / np.exp(x).sum(),
    ],
    "another number than the maximum subtracted": [
        rows(lambda row: naive_loop([score - min(row) for score in row])),
        rows(lambda row: naive_loop([score - sum(row) / len(row) for score in row])),
        rows(lambda row: naive_loop([score - row[0] for score in row])),
        rows(lambda row: naive_loop([score - row[-1] for score in row])),
        rows(lambda row: naive_loop([score - sorted(map(abs, row))[-1] for score in row])),
        lambda x: rows(naive_loop)(x - float(min(np.nditer(x)))),
    ],
    "the maximum subtracted for large scores only": [
        lambda x: naive_softmax(x) if np.abs(x).max() <= 700 else softmax_by_pairs(x),
        lambda x: softmax_by_logaddexp(x) if np.amax(x) > 500 else naive_softmax(x),
        lambda x: softmax_by_pairs(x) if x.dtype != np.float32 else naive_softmax(x),
    ],
    "scores clipped": [
        lambda x: naive_softmax(np.clip(x, -80, 80)),
        lambda x: naive_softmax(np.minimum(x, 700)),
        lambda x: naive_softmax(np.minimum(x, 50)),
        lambda x: softmax_by_pairs(np.clip(x, -500, 500)),
        rows(lambda row: loop_softmax([min(score, 60.0) for score in row])),
        rows(lambda row: naive_loop([max(min(score, 200.0), -200.0) for score in row])),
    ],
    "NaN repaired after the overflow": [
        lambda x: np.nan_to_num(naive_softmax(x)),
        lambda x: np.where(np.isnan(naive_softmax(x)), 0, naive_softmax(x)),
        naive_first,
        rows(repaired_by_loop),
    ],
    "a small number added to the sum": [
        rows(
            lambda row: [
                w / (1 + 1e-6 / sum(math.exp(s - max(row)) for s in row)) for w in loop_softmax(row)
            ]
        ),
        lambda x: 1 / (1 / softmax_by_pairs(x) + 1e-8 * np.exp(x.max(-1, keepdims=True) - x)),
    ],
    "axis 1 in place of the last axis": [
        lambda x: (
            np.exp(x - x.max(1, keepdims=True))
            / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)
        ),
        lambda x: softmax_by_pairs(np.swapaxes(x, 1, -1)).swapaxes(1, -1),
        lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True),
        lambda x: (
            np.exp(x - x.max(axis=1)[:, None])
            / np.exp(x - x.max(axis=1)[:, None]).sum(axis=1)[:, None]
        ),
    ],
    "right for one and two axes only": [
        lambda x: (
            softmax_by_pairs(x)
            if x.ndim < 3
            else softmax_by_pairs(x.swapaxes(1, -1)).swapaxes(1, -1)
        ),
    ],
    "Python's max or sum": [
        lambda x: (lambda e: e / sum(e))(np.exp(x - max(x))),
        lambda x: np.exp(x - max(x)) / np.exp(x - max(x)).sum(axis=-1, keepdims=True),
    ],
    "one sum for the whole array": [
        lambda x: (
            np.exp(x - x.max(-1, keepdims=True)) / np.sum(np.exp(x - x.max(-1, keepdims=True)))
        ),
    ],
    "one maximum for the whole array": [one_maximum_by_loop],
    "keepdims forgotten in the maximum": [maximum_without_keepdims],
    "keepdims forgotten in the sum": [
        sum_without_keepdims,
        lambda x: np.exp(x) / np.exp(x).sum(-1),
    ],
    "keepdims forgotten in the maximum and the sum": [both_without_keepdims],
    "scores divided by their sum": [
        rows(shares),
        lambda x: np.einsum("...k,...->...k", x, 1 / x.sum(axis=-1)),
    ],
    "argmax in place of softmax": [
        rows(one_hot_by_loop),
        lambda x: np.equal(x, np.amax(x, -1, keepdims=True)),
    ],
    "logarithm of the softmax": [
        lambda x: np.log(softmax_by_pairs(x)),
        lambda x: x - np.logaddexp.reduce(x, axis=-1, keepdims=True),
    ],
    "not divided by the sum": [
        rows(lambda row: [math.exp(score - max(row)) for score in row]),
        rows(lambda row: [math.exp(score) for score in row]),
        lambda x: np.exp(x) / np.exp(x).max(-1, keepdims=True),
    ],
    "sigmoid of every score": [lambda x: (1 + np.tanh(x / 2)) / 2],
    "powers of 2 in place of e": [
        rows(lambda row: shares([2.0 ** (score - max(row)) for score in row])),
        lambda x: np.exp2(x) / np.exp2(x).sum(-1, keepdims=True),
    ],
    "smallest score wins": [
        rows(lambda row: shares([math.exp(min(row) - score) for score in row])),
        lambda x: np.exp(-x) / np.exp(-x).sum(-1, keepdims=True),
    ],
    "integer weights for integer scores": [integer_by_loop],
}

SOFTMAX_RIGHT = [
    as_input(rows(loop_softmax)),
    softmax_by_pairs,
    softmax_by_logaddexp,
    softmax_moved_axis,
]

SOFTMAX_NEW = [
    lambda x: x,
    lambda x: np.ones(x.shape) / x.shape[-1],
    lambda x: np.exp(x - x.max(-1, keepdims=True)) / x.shape[-1],
    lambda x: softmax_by_pairs(x)[..., ::-1],
    lambda x: softmax_by_pairs(np.abs(x)),
    lambda x: softmax_by_pairs(x / 2),
    lambda x: np.sqrt(softmax_by_pairs(2 * x)),
    lambda x: softmax_by_pairs(x).round(2),
    lambda x: softmax_by_pairs(x) + 1e-4,
    lambda x: softmax_by_pairs(np.atleast_2d(x)),
    lambda x: softmax_by_pairs(x).sum(-1),
    lambda x: softmax_by_pairs(np.sort(x, axis=-1)),
    lambda x: rows(loop_softmax)(x).tolist()[0],
    lambda x: np.maximum(x, 0) / np.maximum(x, 0).sum(-1, keepdims=True),
    lambda x: x**2 / (x**2).sum(-1, keepdims=True),
    lambda x: first_axis_by_loop(x) if x.ndim > 2 else softmax_by_pairs(x),
    lambda x: softmax_by_pairs(np.swapaxes(x, 0, -1)),
    lambda x: softmax_by_pairs(x) if x.ndim < 4 else softmax_by_pairs(x[0]),
    lambda x: softmax_by_pairs(x) * (1 + 1e-7),
    lambda x: np.where(softmax_by_pairs(x) < 1e-300, 0, softmax_by_pairs(np.tanh(x / 90) * 90)),
    lambda x: softmax_by_pairs(x - x.max()) if x.ndim < 3 else softmax_by_pairs(x.T).T,
    lambda x: np.array([softmax_by_pairs(row) for row in x[0]]) if x.ndim == 3 else None,
    lambda x: np.maximum(softmax_by_pairs(x), 1e-7),
    lambda x: softmax_by_pairs(x).astype(np.float16),
    lambda x: (softmax_by_pairs(x), x.max(axis=-1)),
    lambda x: np.exp(x.round()) / np.exp(x.round()).sum(-1, keepdims=True),
    lambda x: softmax_by_pairs(x) if len(x) > 1 else x * 0,
    lambda x: np.exp(x - x.max(-1, keepdims=True)) / np.exp(x).sum(-1, keepdims=True),
    lambda x: softmax_by_pairs(x.astype(int)),
    lambda x: softmax_by_pairs(x) ** 2 / (softmax_by_pairs(x) ** 2).sum(-1, keepdims=True),
]

# ---------------------------------------------------------------------------- soft_lookup


def lookup_by_loop(weigh, pick=lambda key, value: value):
    """One query after the other; `weigh(query, keys, temperature)` gives a list of weights."""

    def function(query, keys, values, temperature=1.0):
        def answer(one):
            weights = weigh(one, keys, temperature)
            picked = [pick(k, v) for k, v in zip(keys, values, strict=True)]
            return sum(w * x for w, x in zip(weights, picked, strict=True))

        return np.array([answer(q) for q in query]) if query.ndim == 2 else answer(query)

    return function


def dots(query, keys):
    return [float(sum(q * k for q, k in zip(query, key, strict=True))) for key in keys]


def loop_weights(scores, temperature=1.0):
    return loop_softmax([score / temperature for score in scores])


def squared_distances(query, keys):
    return [float(sum((q - k) ** 2 for q, k in zip(query, key, strict=True))) for key in keys]


def cosines(query, keys):
    return [dot / math.hypot(*query) / math.hypot(*key)
            for dot, key in zip(dots(query, keys), keys, strict=True)]  # fmt: skip


def softmax_over_queries_by_loop(query, keys, values, temperature=1.0):
    if query.ndim == 1:
        return lookup_by_loop(lambda q, k, t: loop_weights(dots(q, k), t))(
            query, keys, values, temperature
        )
    columns = [loop_weights(dots(key, query), temperature) for key in keys]
    return sum(np.multiply.outer(c, v) for c, v in zip(columns, values, strict=True))


def over_all_by_loop(query, keys, values, temperature=1.0):
    scores = np.array([dots(q, keys) for q in np.atleast_2d(query)]) / temperature
    weights = all_entries_by_loop(scores).reshape(*query.shape[:-1], len(keys))
    return np.tensordot(weights, values, axes=1)


def weights_by_loop(query, keys, values, temperature=1.0):
    if query.ndim == 1:
        return np.array(loop_weights(dots(query, keys), temperature))
    return np.array([loop_weights(dots(q, keys), temperature) for q in query])


def naive_lookup(query, keys, values, temperature=1.0):
    exponentials = np.exp(np.einsum("...d,kd->...k", query, keys) / temperature)
    return (exponentials @ values) / exponentials.sum(-1).reshape(
        query.shape[:-1] + (1,) * (values.ndim - 1)
    )


def wrong_axis_naive(query, keys, values, temperature=1.0):
    exponentials = np.exp(query @ keys.T / temperature)
    return (
        (exponentials / exponentials.sum(axis=0)) @ values
        if query.ndim == 2
        else (exponentials / exponentials.sum()) @ values
    )


SOFT_LOOKUP = {
    "multiplied by the temperature": [
        lookup_by_loop(lambda q, k, t: loop_weights(dots(q, k), 1 / t))
    ],
    "temperature applied after the softmax": [
        lookup_by_loop(lambda q, k, t: [w / t for w in loop_weights(dots(q, k))])
    ],
    "temperature ignored": [
        lookup_by_loop(lambda q, k, t: loop_weights(dots(q, k))),
        lambda q, k, v, t=1.0: naive_lookup(q, k, v),
        lambda q, k, v, t=1.0: weights_of(q @ k.T - t) @ v,
        lambda q, k, v, t=1.0: (
            (lambda w: w / w.sum(-1, keepdims=True))(weights_of(q @ k.T) / t) @ v
        ),
    ],
    "low temperatures raised to a least one": [
        lookup_by_loop(lambda q, k, t: loop_weights(dots(q, k), t if t > 0.1 else 0.1)),
        lambda q, k, v, t=1.0: weights_of(q @ k.T, np.clip(t, 0.02, None)) @ v,
        lambda q, k, v, t=1.0: weights_of(np.inner(q, k), t + 1e-3) @ v,
    ],
    "the nearest key alone at low temperatures": [
        lookup_by_loop(
            lambda q, k, t: one_hot_by_loop(dots(q, k)) if t < 0.01 else loop_weights(dots(q, k), t)
        ),
    ],
    "softmax over all entries at once": [
        over_all_by_loop,
        lambda q, k, v, t=1.0: np.exp(q @ k.T / t) / np.exp(q @ k.T / t).sum() @ v,
    ],
    "softmax along axis 1": [
        lambda q, k, v, t=1.0: (lambda e: e / e.sum(axis=1, keepdims=True) @ v)(
            np.exp(q @ k.T / t)
        ),
        lambda q, k, v, t=1.0: np.stack(
            [weights_of(row, t) @ v for row in np.einsum("qd,kd->qk", q, k)]
        ),
    ],
    "right for one query only": [
        lambda q, k, v, t=1.0: weights_of(np.dot(k, q), t) @ v,
        lambda q, k, v, t=1.0: weights_of(np.array([key @ q for key in k]), t) @ v,
        lambda q, k, v, t=1.0: weights_of(np.einsum("kd,kd->k", k, k * 0 + q), t) @ v,
    ],
    "not divided by the sum": [
        lookup_by_loop(lambda q, k, t: [math.exp(s / t) for s in dots(q, k)]),
        lookup_by_loop(lambda q, k, t: [math.exp((s - max(dots(q, k))) / t) for s in dots(q, k)]),
    ],
    "softmax taken twice": [
        lookup_by_loop(lambda q, k, t: loop_softmax(loop_weights(dots(q, k), t))),
        lambda q, k, v, t=1.0: weights_of(weights_of(q @ k.T), t) @ v,
    ],
    "argmax in place of softmax": [lookup_by_loop(lambda q, k, t: one_hot_by_loop(dots(q, k)))],
    "softmax over the queries": [softmax_over_queries_by_loop, wrong_axis_naive],
    "scores used as weights": [
        lookup_by_loop(lambda q, k, t: [s / t for s in dots(q, k)]),
        lookup_by_loop(lambda q, k, t: dots(q, k)),
    ],
    "scores divided by their sum": [
        lookup_by_loop(lambda q, k, t: shares(dots(q, k))),
        lookup_by_loop(lambda q, k, t: shares([s / t for s in dots(q, k)])),
    ],
    "keys averaged in place of values": [
        lookup_by_loop(lambda q, k, t: loop_weights(dots(q, k), t), lambda key, value: key),
        lambda q, k, v, t=1.0: naive_lookup(q, k, k, t),
    ],
    "weights returned": [weights_by_loop],
    "divided by the root of the width": [
        lookup_by_loop(lambda q, k, t: loop_weights(dots(q, k), t * len(q) ** 0.5)),
        lambda q, k, v, t=1.0: naive_lookup(q / np.sqrt(k.shape[1]), k, v, t),
    ],
    "distance in place of the dot product": [
        lookup_by_loop(lambda q, k, t: loop_weights([-d for d in squared_distances(q, k)], t)),
        lookup_by_loop(
            lambda q, k, t: loop_weights([-(d**0.5) for d in squared_distances(q, k)], t)
        ),
        # the query's own square is the same for all keys, so it cancels
        lambda q, k, v, t=1.0: weights_of(q @ k.T - (k**2).sum(-1) / 2, t) @ v,
    ],
    "query and keys brought to length 1": [
        lookup_by_loop(lambda q, k, t: loop_weights(cosines(q, k), t))
    ],
    "smallest score wins": [
        lookup_by_loop(lambda q, k, t: loop_weights([-s for s in dots(q, k)], t)),
        lambda q, k, v, t=1.0: naive_lookup(-q, k, v, t),
    ],
    "no maximum subtracted": [
        naive_lookup,
        lookup_by_loop(lambda q, k, t: naive_loop([s / t for s in dots(q, k)])),
    ],
}


def weights_of(scores, temperature=1.0):
    return softmax_by_pairs(scores / temperature)


SOFT_LOOKUP_RIGHT = [
    as_input(lookup_by_loop(lambda q, k, t: loop_weights(dots(q, k), t))),
    lambda q, k, v, t=1.0: np.tensordot(weights_of(np.inner(q, k), t), v, axes=1),
    lambda query, keys, values, temperature=1.0: (
        softmax_by_logaddexp(np.einsum("...d,kd->...k", query, keys) / temperature) @ values
    ),
]

SOFT_LOOKUP_NEW = [
    lambda q, k, v, t=1.0: v,
    lambda q, k, v, t=1.0: v.mean(axis=0),
    lambda q, k, v, t=1.0: q @ k.T,
    lambda q, k, v, t=1.0: weights_of(q @ k.T, t**2) @ v,
    lambda q, k, v, t=1.0: weights_of(q @ k.T, np.sqrt(t)) @ v,
    lambda q, k, v, t=1.0: weights_of(q @ k.T / q.shape[-1], t) @ v,
    lambda q, k, v, t=1.0: weights_of(q @ k.T, t) @ v / len(k),
    lambda q, k, v, t=1.0: weights_of(q @ k.T, t) @ v[::-1],
    lambda q, k, v, t=1.0: weights_of(np.abs(q @ k.T), t) @ v,
    lambda q, k, v, t=1.0: weights_of(np.atleast_2d(q) @ k.T, t) @ v,
    lambda q, k, v, t=1.0: np.sum(weights_of(q @ k.T, t)[..., None] * v, axis=-1),
    lambda q, k, v, t=1.0: np.max(weights_of(q @ k.T, t), -1)[..., None] * v[0],
    lambda q, k, v, t=1.0: weights_of(q @ k.T, t) @ v + 1e-3,
    lambda q, k, v, t=1.0: weights_of(q @ k.T, t) @ v if q.ndim == 1 else None,
    lambda q, k, v, t=1.0: weights_of(q @ k, t) @ v,
    lambda q, k, v, t=1.0: weights_of(np.divide(q @ k.T, t, out=q @ k.T)) @ v,
    lambda q, k, v, t=1.0: weights_of(q @ k.T, t) @ v if t > 0.005 else v.mean(axis=0),
    lambda q, k, v, t=1.0: weights_of(q @ k.T, min(t, 500)) @ v,
    lambda q, k, v, t=1.0: weights_of(q @ k.T, int(t) or t) @ v,
    lambda q, k, v, t=1.0: weights_of((q @ k.T).astype(np.float32), t) @ v,
    lambda q, k, v, t=1.0: (weights_of(q @ k.T, t) @ v, weights_of(q @ k.T, t)),
    lambda q, k, v, t=1.0: weights_of(q @ k.T) ** (1 / t) @ v,
    lambda q, k, v, t=1.0: weights_of(np.einsum("qd,kd->k", np.atleast_2d(q), k), t) @ v,
    lambda q, k, v, t=1.0: weights_of(q @ k.T, t) @ v if len(q) != len(k) else v.T @ v,
    lambda q, k, v, t=1.0: v.T @ weights_of(q @ k.T, t).T,
]

# ---------------------------------------------------------------------------- nearest_fault


def best_by_loop(score, pick=lambda i, key, value: value, better=max):
    """For every query the key with the best score, found with a loop over pairs."""

    def function(query, keys, values):
        result = []
        for q in query:
            scores = [score(q, key) for key in keys]
            i = scores.index(better(scores))
            result.append(pick(i, keys[i], values[i]))
        return np.array(result)

    return function


def dot(q, k):
    return dots(q, [k])[0]


def over_queries_by_loop(query, keys, values):
    nearest = []
    for key in keys:
        scores = [dot(q, key) for q in query]
        nearest.append(scores.index(max(scores)))
    return np.stack([values[i] for i in nearest])


def last_of_ties_by_loop(query, keys, values):
    result = []
    for q in query:
        best = 0
        for i, key in enumerate(keys):
            if dot(q, key) >= dot(q, keys[best]):
                best = i
        result.append(values[best])
    return np.array(result)


def from_start_by_loop(start):
    def function(query, keys, values):
        if query.ndim == 1:
            return function(query[None], keys, values)[0]
        result = []
        for q in query:
            best, place = start, 0
            for i, key in enumerate(keys):
                if dot(q, key) > best:
                    best, place = dot(q, key), i
            result.append(values[place])
        return np.array(result)

    return function


NEAREST = {
    "the fault is still there: argmax over the queries": [
        over_queries_by_loop,
        lambda q, k, v: np.take(v, np.inner(k, q).argmax(axis=1), axis=0),
    ],
    "argmin in place of argmax": [
        best_by_loop(dot, better=min),
        lambda q, k, v: v[(-q @ k.T).argmax(axis=1)],
        lambda q, k, v: v[np.argsort(q @ k.T, axis=-1)[..., 0]],
    ],
    "index returned": [best_by_loop(dot, lambda i, key, value: i)],
    "key returned": [best_by_loop(dot, lambda i, key, value: key)],
    "score returned": [lambda q, k, v: np.array([max(dots(one, k)) for one in q])],
    "one argmax over all scores": [
        lambda q, k, v: v[(q @ k.T).ravel().tolist().index((q @ k.T).max())],
        lambda q, k, v: v[np.unravel_index(np.inner(q, k).argmax(), (len(q), len(k)))[1]],
    ],
    "largest absolute score": [best_by_loop(lambda q, k: abs(dot(q, k)))],
    "smallest distance": [
        best_by_loop(math.dist, better=min),
        lambda q, k, v: v[(2 * q @ k.T - (k * k).sum(1)).argmax(1)],
    ],
    "keys brought to length 1": [best_by_loop(lambda q, k: dot(q, k) / math.hypot(*k))],
    "the last of tied keys": [
        last_of_ties_by_loop,
        lambda q, k, v: v[(q @ k.T + 1e-6 * np.arange(len(k))).argmax(-1)],
        lambda q, k, v: v[::-1][(q @ k[::-1].T).argmax(1)],
    ],
    "softmax in place of argmax": [
        lookup_by_loop(lambda q, k, t: loop_weights(dots(q, k))),
        naive_lookup,
        lookup_by_loop(lambda q, k, t: loop_weights(dots(q, k), 0.01)),
        lambda q, k, v: weights_of(q @ k.T, 1e-6) @ v,
    ],
    "tied values added": [
        lambda q, k, v: np.isclose(q @ k.T, (q @ k.T).max(-1)[..., None]) @ v,
        lambda q, k, v: np.equal(q @ k.T, (q @ k.T).max(-1)[..., None]) @ v,
    ],
    "nearly equal scores taken for equal": [
        lambda q, k, v: v[(q @ k.T).round(4).argmax(-1)],
        lambda q, k, v: v[np.argmax(np.isclose(q @ k.T, (q @ k.T).max(-1)[..., None]), axis=-1)],
        lambda q, k, v: v[np.argmax(q @ k.T > (q @ k.T).max(-1)[..., None] - 1e-5, axis=-1)],
    ],
    "mean of tied values": [
        lookup_by_loop(lambda q, k, t: loop_weights(dots(q, k), 1e-9)),
        lambda q, k, v: weights_of(q @ k.T, 1e-10) @ v,
        lambda q, k, v: weights_of(q @ k.T, 1e-3).round(2) @ v,
    ],
    "a search that starts at 0 or another fixed score": [
        *(from_start_by_loop(start) for start in (0, -1, -5, -10, -100, -999, -99999)),
        lambda q, k, v: v[np.maximum(q @ k.T, 0).argmax(-1)],
    ],
    "right for several queries, not for one": [
        best_by_loop(dot),
        lambda q, k, v: v[np.einsum("qd,kd->qk", q, k).argmax(1)],
        lambda q, k, v: np.array([v[np.argmax(k @ one)] for one in q]),
    ],
}

NEAREST_RIGHT = [
    lambda q, k, v: best_by_loop(dot)(q, k, v) if q.ndim == 2 else best_by_loop(dot)([q], k, v)[0],
    lambda q, k, v: v[np.einsum("...d,kd->...k", q, k).argmax(-1)],
    lambda q, k, v: np.take(v, (k @ q.T).argmax(axis=0), axis=0),
]

NEAREST_NEW = [
    lambda q, k, v: v,
    lambda q, k, v: v[: len(q)],
    lambda q, k, v: v[(q @ k.T).argmax(1) - 1],
    lambda q, k, v: v[(q @ k.T).argmax(1)][0],
    lambda q, k, v: v[(q @ k.T).argmax(1)][::-1],
    lambda q, k, v: v[(q @ k.T).argmax(1)][:, None],
    lambda q, k, v: v[q.argmax(1) % len(v)],
    lambda q, k, v: v[(q @ k).argmax(1)],
    lambda q, k, v: np.sort(v, axis=0)[(q @ k.T).argmax(1)],
    lambda q, k, v: np.array([v[(q[0] @ k.T).argmax()]] * len(q)),
    lambda q, k, v: v[(q @ k.T).argmax(1)].mean(0),
    lambda q, k, v: [v[i] for i in (q @ k.T).argmax(1)][-1:],
    lambda q, k, v: v[np.argsort(q @ k.T, axis=1)[:, -2 % len(k)]],
    lambda q, k, v: dict(enumerate(v)),
    lambda q, k, v: np.take(v, (q @ k.T).argmax(-1)),
    lambda q, k, v: v[(q @ k.T).argmax(-1) + (len(k) > 16)],
    lambda q, k, v: v[np.where((q @ k.T).max(-1) < -1e6, 0, (q @ k.T).argmax(-1))][..., None],
    lambda q, k, v: v[np.where((q @ k.T) == (q @ k.T).max())[0]],
    lambda q, k, v: v[weights_of((q @ k.T).T).T.argmax(-1)],
    lambda q, k, v: np.max((q @ k.T)[..., None] * v.reshape(len(v), -1), axis=-2),
    lambda q, k, v: v[(q @ k.T).argmax(-1)].astype(int),
    lambda q, k, v: v[(q @ k.T).round().argmax(-1)],
    lambda q, k, v: v[np.argmax(np.atleast_2d(q) @ k.T, axis=-1)],
    lambda q, k, v: (v[(q @ k.T).argmax(-1)], (q @ k.T).argmax(-1)),
    lambda q, k, v: v[(q @ k.T).argmax(axis=0 if len(q) == len(k) else -1)],
    lambda q, k, v: v[((q @ k.T) ** 2).sum(0).argmax()],
    lambda q, k, v: v[np.where(q @ k.T > 0)[-1]],
]

# ---------------------------------------------------------------------------- tie


TIE = {
    "the first of the tied keys wins": [10.0, np.float64(10)],
    "the last of the tied keys wins": [np.int64(20), 20.0],
    "the sum of the tied values": [np.array(30.0)],
    "weights that add to more than 1": [np.sum([10, 20, 90]), sum([10, 20, 90]) / 2],
    "the result at temperature 1": [float(softmax_by_pairs(np.array([1, 1, -2])) @ [10, 20, 90])],
    "the plain mean of all values": [(10 + 20 + 90) / 3],
    "the largest value wins": [max(10, 20, 90.0)],
    "dividing by zero": [math.nan, 0.0, -0.0, math.inf],
}
TIE_RIGHT = [15, 15.0, np.float32(15), np.array(15), 15.001]
TIE_NEW = [
    14.0,
    16,
    12.5,
    -15,
    55,
    16.0,
    15.1,
    1.5,
    150,
    14.9,
    45.0,
    100,
    (15,),
    [15],
    "15",
    True,
    15 + 0j,
]

# ---------------------------------------------------------------------------- softmax_test

SMALL = np.array([[0.0, 1.0, 3.0], [2.0, -1.0, 0.5]])
BIG = np.array([1000.0, 998.0, 997.0])
APART = np.array([[1000.0], [-1000.0]])
CUBE = np.array([[[0.0, 1.0], [2.0, -1.0]], [[0.5, 0.3], [-2.0, 0.1]]])


def expected(scores):
    return rows(loop_softmax)(scores)


def asserts_nothing_new(softmax):
    weights = softmax(SMALL)
    again = softmax(SMALL)
    assert np.array_equal(weights, again), "not repeatable"


def only_finite(softmax):
    assert np.isfinite(softmax([[1000.0, 0.0], [0.0, 1.0]])).all()


def only_shape(softmax):
    if np.shape(softmax(np.zeros((3, 4)))) != (3, 4):
        raise AssertionError("shape")


def only_sums(softmax):
    for row in softmax([[0.1, 0.2], [0.4, -0.8], [1.5, 1.0]]):
        assert abs(np.sum(row) - 1) < 1e-9


def only_sums_of_large(softmax):
    only_sums(softmax)
    assert abs(sum(softmax([2000.0, 1999.0])) - 1) < 1e-9


def only_sum_of_one_row(softmax):
    assert math.isclose(sum(softmax([0.3, 0.1, -0.5])), 1)


def only_one_row(softmax):
    assert list(softmax([0.0, math.log(3)])) == approx([0.25, 0.75])
    assert list(softmax(BIG)) == approx(loop_softmax(BIG.tolist()))


def only_one_small_row(softmax):
    first, second = softmax([0.0, math.log(4)])
    assert abs(first - 0.2) < 1e-6
    assert abs(second - 0.8) < 1e-6


def only_two_digits(softmax):
    assert np.allclose(softmax([0.0, 1.0]), [0.27, 0.73], atol=0.01)


def only_small(softmax):
    np.testing.assert_array_almost_equal(softmax(SMALL), expected(SMALL))


def only_small_of_three_axes(softmax):
    only_small(softmax)
    assert np.allclose(softmax(SMALL[None]), expected(SMALL))


def good_test_of_rows_alike(softmax):
    only_small_of_three_axes(softmax)
    assert np.allclose(softmax(BIG + SMALL), expected(BIG + SMALL))


def good_test_of_one_large_row(softmax):
    only_small(softmax)
    assert np.allclose(softmax([1000.0, 0.0]), [1, 0])


def good_test_of_shifted_rows(softmax):
    only_small_of_three_axes(softmax)
    assert np.allclose(softmax(SMALL + APART), expected(SMALL))


def good_test_of_two_axes(softmax):
    scores = np.array([[0.0, math.log(3)], [1000.0, 1000.0], [-1000.0, 0.0]])
    assert np.allclose(softmax(scores), [[0.25, 0.75], [0.5, 0.5], [0, 1]])


def good_test_of_one_and_two_axes(softmax):
    good_test_of_two_axes(softmax)
    assert np.allclose(softmax([0.0, math.log(3)]), [0.25, 0.75])
    assert np.allclose(softmax([1000.0, 0.0]), [1, 0])


def finds_no_difference(softmax):
    for scores in SMALL, CUBE, BIG, SMALL * 1000, SMALL + APART:
        assert not abs(softmax(scores) - expected(scores)).max() > 1e-9


def finds_none_above(softmax):
    assert not (abs(softmax(SMALL) - expected(SMALL)) > 1e-9).any()


def only_one_hot(softmax):
    np.testing.assert_array_almost_equal(softmax([-900.0, 900.0, 100.0]), [0, 1, 0])


def only_largest(softmax):
    assert list(softmax([0.2, 0.9, 0.4])).index(max(softmax([0.2, 0.9, 0.4]))) == 1


def only_largest_of_rows(softmax):
    weights = softmax(SMALL)
    assert weights[0].argmax() == 2
    assert weights[1].argmax() == 0


class approx(list):
    """A list that equals another up to rounding."""

    def __eq__(self, other):
        return len(self) == len(other) and all(
            math.isclose(a, b, abs_tol=1e-7) for a, b in zip(self, other, strict=True)
        )

    __hash__ = None


SOFTMAX_TEST = {
    "an assertion that no fault breaks": [asserts_nothing_new],
    "nothing but NaN is noticed": [only_finite],
    "only the shape": [only_shape],
    "only that the weights add to 1": [only_sums, only_sums_of_large, only_sum_of_one_row],
    "NaN passes": [finds_no_difference, finds_none_above],
    "only one row": [only_one_row],
    "only one row of small scores": [only_one_small_row, only_two_digits],
    "only small scores": [only_small, only_small_of_three_axes],
    "no rows far apart": [good_test_of_rows_alike, good_test_of_one_large_row],
    "no large score beside small ones": [good_test_of_shifted_rows],
    "no input with three axes": [good_test_of_two_axes, good_test_of_one_and_two_axes],
    "only scores so far apart that the softmax is one-hot": [only_one_hot],
    "only which weight is the largest": [only_largest, only_largest_of_rows],
}


def good_test(softmax):
    scores = np.array([[[0.0, math.log(3)], [1000.0, 1000.0], [-1000.0, 0.0]]])
    assert np.allclose(softmax(scores), [[[0.25, 0.75], [0.5, 0.5], [0, 1]]])


def my_softmax_test(softmax):
    scores = np.log([[1.0, 2.0, 5.0], [4.0, 3.0, 1.0]])
    expected = np.array([[1, 2, 5], [4, 3, 1]]) / 8
    far = np.array([[1000.0], [-1000.0]])  # rows far apart
    np.testing.assert_allclose(softmax(scores + far), expected)
    np.testing.assert_allclose(softmax(np.array([0.0, 0.0, 1000.0])), [0, 0, 1])
    np.testing.assert_allclose(softmax((scores + far)[None]), expected[None])


def good_test_by_loop(softmax):
    for scores in SMALL, np.stack([BIG, -BIG]), 1000 * SMALL, SMALL.reshape(3, 1, 2), CUBE:
        np.testing.assert_allclose(softmax(scores), expected(scores), atol=1e-12)


def good_test_by_shift(softmax):
    wanted = np.exp(CUBE) / np.exp(CUBE).sum(-1, keepdims=True)
    assert np.allclose(softmax(CUBE), wanted), "values"
    assert np.allclose(softmax(CUBE + APART), softmax(CUBE)), "shift"
    assert list(softmax([0, 0, 900])) == approx([0, 0, 1])


def good_test_of_single_precision(softmax):
    weights = softmax(SMALL.astype(np.float32))
    assert weights.dtype == np.float32
    assert np.allclose(weights, expected(SMALL))
    assert np.isfinite(softmax([[1000.0, 0.0], [-1000.0, -1000.0]])).all()
    assert np.allclose(softmax(CUBE.astype(np.float32)), expected(CUBE))


def good_test_with_minus_infinity(softmax):
    scores = np.array([[1.0, 2.0, -np.inf], [0.0, 1.0, 2.0]])
    wanted = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert np.allclose(softmax(scores), wanted)
    assert np.allclose(softmax((scores + APART)[None]), [wanted])


def good_test_with_raise(softmax):
    ((first, second, third),) = softmax([[[0, math.log(3)], [1000, 0], [-1000, -1000]]])
    for weight, wanted in (first[0], 0.25), (second[0], 1), (third[0], 0.5):
        if not abs(weight - wanted) < 1e-6:
            raise AssertionError("wrong weights")


SOFTMAX_TEST_RIGHT = [
    good_test,
    my_softmax_test,
    good_test_by_loop,
    good_test_by_shift,
    good_test_of_single_precision,
    good_test_with_minus_infinity,
    good_test_with_raise,
]


def only_positive(softmax):
    assert (np.asarray(softmax(SMALL)) > 0).all()


def only_below_one(softmax):
    assert np.asarray(softmax(SMALL)).max() <= 1


def exact_equality(softmax):
    scores = np.linspace(-1, 1, 14).reshape(2, 7) ** 3
    assert (softmax(scores) == np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)).all()
    assert np.isfinite(softmax(BIG)).all()


def expects_a_wrong_value(softmax):
    assert np.allclose(softmax([0.0, 1.0]), [0.5, 0.5])


def always_fails(softmax):
    softmax(SMALL)
    raise AssertionError


def stops(softmax):
    assert softmax(SMALL).shape == undefined_name


def calls_with_two_arguments(softmax):
    assert softmax(SMALL, 0).shape == SMALL.shape


def never_calls(softmax):
    assert np.allclose(expected(SMALL).sum(-1), 1)


def compares_without_assert(softmax):
    np.allclose(softmax(SMALL), expected(SMALL))


def returns_a_comparison(softmax):
    return np.allclose(softmax(SMALL), expected(SMALL))


def only_uniform_scores(softmax):
    assert np.allclose(softmax(np.ones((2, 4))), 0.25)


def only_order(softmax):
    weights = np.asarray(softmax(SMALL))
    assert (np.argsort(weights, -1) == np.argsort(SMALL, -1)).all()


def expects_sums_of_columns(softmax):
    assert np.allclose(softmax(SMALL).sum(axis=0), 1)


def expects_the_first_axis(softmax):
    e = np.exp(SMALL)
    np.testing.assert_allclose(softmax(SMALL), e / e.sum(axis=0), err_msg="wrong weights")
    assert np.isfinite(softmax(BIG)).all()


def demands_positive_weights(softmax):
    assert (softmax(BIG * np.array([1, 1, 0])) > 0).all()


def demands_positive_weights_of_one_row(softmax):
    assert (softmax(np.array([0.0, -2000.0])) > 0).all()


def expects_nan(softmax):
    wanted = np.exp(BIG) / np.exp(BIG).sum()
    assert np.allclose(softmax(BIG), wanted)


def expects_nan_in_one_line(softmax):
    np.testing.assert_allclose(softmax(BIG), np.exp(BIG) / np.exp(BIG).sum())


def swallows(softmax):
    try:
        good_test(softmax)
    except Exception:
        print("wrong")


def swallows_after_the_call(softmax):
    weights = softmax(SMALL)
    try:
        assert np.allclose(weights, expected(SMALL))
    except AssertionError as error:
        print(error)


def asserts_true(softmax):
    softmax(SMALL)
    assert True


def asserts_true_alone(softmax):
    assert True


def raises_value_error(softmax):
    try:
        good_test(softmax)
    except AssertionError as error:
        raise ValueError("wrong") from error


def stops_before_the_call(softmax):
    wanted = SMALL @ SMALL
    assert np.allclose(softmax(SMALL), wanted)


TUPLE = """
def tuple_assert(softmax):
    assert (np.allclose(softmax(SMALL), expected(SMALL)), "numbers differ")
    assert np.isfinite(softmax(BIG)).all()
"""
tuple_assert = typed(TUPLE, globals())["tuple_assert"]


def only_one_number(softmax):
    assert abs(np.ravel(softmax(SMALL))[2] - expected(SMALL)[0, 2]) < 1e-9


def only_overflow_of_one_score(softmax):
    assert softmax([1000.0]) == [1]


SOFTMAX_TEST_NEW = [
    expects_sums_of_columns,
    expects_the_first_axis,
    demands_positive_weights,
    demands_positive_weights_of_one_row,
    expects_nan,
    expects_nan_in_one_line,
    swallows,
    swallows_after_the_call,
    asserts_true,
    asserts_true_alone,
    raises_value_error,
    stops_before_the_call,
    tuple_assert,
    only_one_number,
    only_overflow_of_one_score,
    only_positive,
    only_below_one,
    exact_equality,
    expects_a_wrong_value,
    always_fails,
    stops,
    calls_with_two_arguments,
    never_calls,
    compares_without_assert,
    returns_a_comparison,
    only_uniform_scores,
    only_order,
]


def named(answer):
    """The same answer with the parameter names of the task."""
    return lambda query, keys, values, temperature=1.0: answer(query, keys, values, temperature)


SOFT_LOOKUP = {name: [*map(named, answers)] for name, answers in SOFT_LOOKUP.items()}
SOFT_LOOKUP_RIGHT = [*map(named, SOFT_LOOKUP_RIGHT)]
SOFT_LOOKUP_NEW = [
    *map(named, SOFT_LOOKUP_NEW),
    lambda query, keys, values, T=1.0: weights_of(query @ keys.T, T) @ values,
    lambda query, keys, values: weights_of(query @ keys.T) @ values,
]

ANSWERS = {
    "tie": (TIE_RIGHT, TIE, TIE_NEW),
    "softmax": (SOFTMAX_RIGHT, SOFTMAX, SOFTMAX_NEW),
    "soft_lookup": (SOFT_LOOKUP_RIGHT, SOFT_LOOKUP, SOFT_LOOKUP_NEW),
    "nearest_fault": (NEAREST_RIGHT, NEAREST, NEAREST_NEW),
    "softmax_test": (SOFTMAX_TEST_RIGHT, SOFTMAX_TEST, SOFTMAX_TEST_NEW),
}
