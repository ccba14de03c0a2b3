"""Answers to the exercises of chapter 2: right ones, listed mistakes written anew, new mistakes."""

import contextlib
import math

import numpy as np
import torch
import torch.nn.functional as F
from wrong_answers.lookup import (
    all_entries_by_loop,
    as_input,
    loop_softmax,
    naive_loop,
    one_hot_by_loop,
    rows,
    shares,
    typed,
)

# ---------------------------------------------------------------------------- shapes

SHAPES = {
    "shape of the weights": [torch.Size([2, 6, 6])],
    "width d_k": [torch.Size([2, 6, 3])],
    "width embed_dim": [(np.int64(2), np.int64(6), np.int64(8))],
    "words and width swapped": [torch.zeros(2, 5, 6).shape],
    "batch and words swapped": [torch.zeros(6, 2, 5).shape],
    "batch and words swapped, and another width": [(6, 2, 8), torch.Size([6, 2, 3])],
    "batch forgotten": [np.zeros((6, 5)).shape, (1, 6, 5)],
    "one vector for each sentence": [torch.Size([2, 5]), (2, 1, 5)],
    "sentences joined": [(2 * 6, 5), torch.Size([1, 12, 5])],
    "keys times values": [np.zeros((2, 3, 5)).shape],
    "values not averaged": [torch.Size([2, 6, 6, 5])],
}
SHAPES_RIGHT = [(2, 6, 5), torch.Size([2, 6, 5]), (np.int64(2), 6, 5)]
SHAPES_NEW = [
    (2, 6), (2, 6, 15), (2, 6, 8, 5), (2, 6, 2, 5), (6, 6), (2, 5, 3), (), (2,), (60,), (3, 6, 5),
    (2, 6, 5, 1), (2, 7, 5), (5,), (5, 6, 2), (2, 5, 6, 6), (12, 8), (2, 2, 6, 5), (2, 6, 1),
    (2, 6, 9), (2, 6, 24), (8, 5), (2, 8, 5), (6,), 60, "2, 6, 5", [2, 6, 5], ("2", "6", "5"),
]  # fmt: skip

# ---------------------------------------------------------------------------- row_output


def row_by_loop(term):
    """Adds `term(weight, value)` over the words."""

    def function(weights, values):
        total = np.zeros(values.shape[1], dtype=values.dtype)
        for weight, value in zip(weights, values, strict=True):
            total = total + term(weight, value)
        return total

    return function


def columns_by_loop(weights, values):
    result = np.empty(values.shape)
    for i, j in np.ndindex(*values.shape):
        result[i, j] = values[i, j] * weights[j]
    return result


ROW_OUTPUT = {
    "the fault is still there: weights laid along the columns": [
        columns_by_loop,
        lambda w, v: np.multiply(w[None, :], v),
    ],
    "weights along the columns, then summed over the words": [
        lambda w, v: np.ones(len(v)) @ (w * v),
        lambda w, v: v.sum(axis=0) * w,
        lambda w, v: columns_by_loop(w, v).sum(axis=0),
    ],
    "weights along the columns, then summed over the columns": [
        lambda w, v: np.dot(v, w),
        lambda w, v: np.array([(row * w).sum() for row in v]),
        lambda w, v: columns_by_loop(w, v).sum(axis=1),
    ],
    "not summed": [
        lambda w, v: (v.T * w).T,
        lambda w, v: np.array([weight * value for weight, value in zip(w, v, strict=True)]),
        lambda w, v: np.diag(w) @ v,
    ],
    "summed over the wrong axis": [
        lambda w, v: w * v.sum(axis=1),
        lambda w, v: np.einsum("s,sv->s", w, v),
    ],
    "a column times a row, the outer product": [
        lambda w, v: w.reshape(-1, 1) @ v.reshape(1, -1),
        lambda w, v: np.multiply.outer(w, v),
        lambda w, v: v.reshape(-1, 1) @ w.reshape(1, -1),
        lambda w, v: np.array([np.outer(value, w) for value in v]),
    ],
    "plain mean of the values": [
        lambda w, v: np.full(len(w), 1 / len(w)) @ v,
        lambda w, v: sum(v) / len(v),
    ],
    "one word alone": [
        lambda w, v: next(weight * value for weight, value in zip(w, v, strict=True)),
        lambda w, v: [weight * value for weight, value in zip(w, v, strict=True)][-1],
        lambda w, v: np.multiply(v[0], w[0]),
    ],
    "sum without weights": [row_by_loop(lambda w, v: v), lambda w, v: np.ones(len(w)) @ v],
    "only the word with the largest weight": [
        lambda w, v: max(zip(w, v, strict=True), key=lambda pair: pair[0])[1]
    ],
    "softmax of the weights": [
        lambda w, v: np.exp(w) @ v / np.exp(w).sum(),
        lambda w, v: np.array(loop_softmax(w.tolist())) @ v,
    ],
    "a matrix with one row": [
        lambda w, v: np.expand_dims(np.einsum("s,sv->v", w, v), 0),
        lambda w, v: w.reshape(1, -1) @ v,
    ],
    "divided by the number of words": [
        lambda w, v: (w[:, None] * v).mean(axis=0),
        lambda w, v: np.einsum("s,sv->v", w, v) / v.shape[0],
    ],
}
ROW_OUTPUT_RIGHT = [
    row_by_loop(lambda weight, value: weight * value),
    lambda w, v: (w[:, None] * v).sum(axis=0),
    lambda w, v: np.einsum("s,sv->v", w, v),
    lambda w, v: v.T @ w,
    lambda w, v: np.average(v, axis=0, weights=w).astype(v.dtype),
]
ROW_OUTPUT_NEW = [
    lambda w, v: w,
    lambda w, v: v,
    lambda w, v: v[0],
    lambda w, v: w[::-1] @ v,
    lambda w, v: w @ v[:, ::-1],
    lambda w, v: (w @ v).sum(),
    lambda w, v: w**2 @ v,
    lambda w, v: w @ v / np.sqrt(len(w)),
    lambda w, v: np.sqrt(w) @ v,
    lambda w, v: v.max(axis=0),
    lambda w, v: (w[:, None] * v).max(axis=0),
    lambda w, v: (w @ v)[:, None],
    lambda w, v: w @ v + w.max(),
    lambda w, v: np.array(loop_softmax((w @ v).tolist())),
    lambda w, v: np.cumsum(w[:, None] * v, axis=0),
    lambda w, v: (w @ v).astype(int),
    lambda w, v: (w.round(1)) @ v,
    lambda w, v: (w @ v).round(3),
    lambda w, v: (w @ v).round(4),
    lambda w, v: (w @ v).round(7),
    lambda w, v: (w @ v, w),
    lambda w, v: (w @ v).tolist()[:1],
    lambda w, v: w[1:] @ v[1:],
    lambda w, v: w[:-1] @ v[:-1],
    lambda w, v: sum(w) * v[0],
    lambda w, v: np.sort(w) @ v,
    lambda w, v: w @ v / w.max(),
    lambda w, v: w @ v / np.linalg.norm(w),
    lambda w, v: v.reshape(v.shape[::-1]) @ w,
    lambda w, v: w @ (v - v.mean(axis=0)),
    lambda w, v: (w[:, None] * v).prod(axis=0),
    lambda w, v: w @ v * (1 + 1e-7),
]

# ---------------------------------------------------------------------------- self_attention


def attend_by_loop(
    scale, ask=lambda q, k, v: q, find=lambda q, k, v: k, give=lambda q, k, v: v,
    weigh=loop_softmax, over_queries=False, transpose=True,
):  # fmt: skip
    """Self-attention word by word; `scale(d_k, embed_dim, d_v, words)` multiplies the scores."""

    def function(inputs, w_q, w_k, w_v):
        def project(w):
            return [(w if transpose else w.T) @ word for word in inputs]

        q, k, v = (project(w) for w in (w_q, w_k, w_v))
        asking, found, given = ask(q, k, v), find(q, k, v), give(q, k, v)
        factor = scale(len(w_q), inputs.shape[1], len(w_v), len(inputs))
        scores = [[float(sum(a * b for a, b in zip(x, y, strict=True))) * factor for y in found]
                  for x in asking]  # fmt: skip
        if over_queries:
            weights = np.array([weigh(list(c)) for c in zip(*scores, strict=True)]).T
        else:
            weights = np.array([weigh(row) for row in scores])
        return np.array([sum(w * x for w, x in zip(row, given, strict=True)) for row in weights])

    return function


def root(d_k, embed_dim, d_v, words):
    return 1 / math.sqrt(d_k)


def by_einsum(factor=root, normalise=None):
    """The same with einsum, softmax without subtracting: overflows for large inputs."""

    def function(x, w_q, w_k, w_v):
        q, k, v = (np.einsum("le,de->ld", x, w) for w in (w_q, w_k, w_v))
        scores = np.einsum("qd,kd->qk", q, k) * factor(len(w_q), x.shape[1], len(w_v), len(x))
        return np.einsum("qk,kv->qv", (normalise or naive)(scores), v)

    return function


def naive(scores):
    return np.exp(scores) / np.exp(scores).sum(axis=1)[:, None]


def torch_attention(**options):
    def function(x, *weights):
        q, k, v = (F.linear(*map(torch.from_numpy, (x, w))) for w in weights)
        return F.scaled_dot_product_attention(q, k, v, **options).numpy()

    return function


def without_diagonal(scores):
    scores = scores.copy()
    np.fill_diagonal(scores, -np.inf)
    return naive(scores)


def others(x, w_q, w_k, w_v, i):
    """The output of word i, from all other words."""
    keys, values = np.delete(x, i, 0) @ w_k.T, np.delete(x, i, 0) @ w_v.T
    if not len(keys):
        return np.full(len(w_v), np.nan)
    scores = keys @ (w_q @ x[i]) / math.sqrt(len(w_q))
    return np.array(loop_softmax(scores.tolist())) @ values


SELF_ATTENTION = {
    "no scale": [
        attend_by_loop(lambda *sizes: 1),
        by_einsum(lambda *sizes: 1),
        torch_attention(scale=1.0),
    ],
    "divided by d_k, not by its root": [
        attend_by_loop(lambda d_k, *rest: 1 / d_k),
        by_einsum(lambda d_k, *rest: 1 / d_k),
    ],
    "divided by the root of embed_dim": [
        attend_by_loop(lambda d_k, embed, *rest: embed**-0.5),
        by_einsum(lambda d_k, embed, *rest: embed**-0.5),
    ],
    "divided by the root of d_v": [attend_by_loop(lambda d_k, embed, d_v, words: d_v**-0.5)],
    "divided by the root of the number of words": [
        attend_by_loop(lambda d_k, embed, d_v, words: words**-0.5)
    ],
    "multiplied by the root": [
        attend_by_loop(lambda d_k, *rest: math.sqrt(d_k)),
        by_einsum(lambda d_k, *rest: 1 / (d_k**-0.5)),
    ],
    "softmax over the queries": [
        attend_by_loop(root, over_queries=True),
        by_einsum(normalise=lambda s: np.exp(s) / np.exp(s).sum(axis=0)),
    ],
    "weights returned": [
        as_input(
            lambda x, q, k, v: attend_by_loop(root, give=lambda *_: np.eye(len(x)))(x, q, k, v)
        ),
        lambda x, q, k, v: naive((x @ q.T) @ (k @ x.T) / math.sqrt(len(k))),
    ],
    "queries and keys swapped": [
        attend_by_loop(root, ask=lambda q, k, v: k, find=lambda q, k, v: q),
        lambda x, q, k, v: naive((x @ k.T) @ (q @ x.T) / math.sqrt(len(k))) @ x @ v.T,
    ],
    "inputs in place of values": [
        lambda x, q, k, v: attend_by_loop(root, give=lambda *_: list(x))(x, q, k, v),
        lambda x, q, k, v: by_einsum()(x, q, k, np.eye(x.shape[1])),
    ],
    "keys in place of values": [attend_by_loop(root, give=lambda q, k, v: k)],
    "queries in place of values": [attend_by_loop(root, give=lambda q, k, v: q)],
    "keys not projected": [
        lambda x, q, k, v: attend_by_loop(root, find=lambda *_: list(x))(x, q, k, v),
    ],
    "neither queries nor keys projected": [
        lambda x, q, k, v: attend_by_loop(root, ask=lambda *_: list(x), find=lambda *_: list(x))(
            x, q, k, v
        ),
        lambda x, q, k, v: F.scaled_dot_product_attention(
            *map(torch.from_numpy, (x, x, x @ v.T))
        ).numpy(),
        lambda x, q, k, v: np.array([loop_softmax(row.tolist()) for row in x @ x.T]) @ x @ v.T,
    ],
    "keys reshaped, not transposed": [
        lambda x, q, k, v: (
            naive((x @ q.T) @ (x @ k.T).ravel().reshape(-1, len(x)) / math.sqrt(len(q))) @ (x @ v.T)
        ),
    ],
    "no softmax": [attend_by_loop(root, weigh=list), by_einsum(normalise=lambda scores: scores)],
    "scaled after the softmax": [
        lambda x, q, k, v: attend_by_loop(lambda *sizes: 1)(x, q, k, v) * len(q) ** -0.5,
        lambda x, q, k, v: by_einsum(lambda *sizes: 1)(x, q, k, v) / len(k) ** 0.5,
    ],
    "scores divided by their sum": [attend_by_loop(root, weigh=shares)],
    "softmax taken twice": [
        attend_by_loop(root, weigh=lambda row: loop_softmax(loop_softmax(row))),
        by_einsum(normalise=lambda s: naive(naive(s))),
    ],
    "weights transposed": [
        by_einsum(normalise=lambda s: naive(s).T),
        lambda x, q, k, v: (
            (lambda e: e / e.sum(axis=0))(np.exp(x @ k.T @ (x @ q.T).T / math.sqrt(len(q))))
            @ (x @ v.T)
        ),
    ],
    "not divided by the sum": [
        attend_by_loop(root, weigh=lambda row: [math.exp(s) for s in row]),
        attend_by_loop(root, weigh=lambda row: [math.exp(s - max(row)) for s in row]),
    ],
    "softmax over all entries at once": [
        by_einsum(normalise=lambda s: np.exp(s) / np.exp(s).sum()),
        by_einsum(normalise=all_entries_by_loop),
    ],
    "keepdims forgotten in the softmax": [
        by_einsum(normalise=lambda s: (np.exp(s).T / np.exp(s).sum(axis=1)[:, None]).T),
        by_einsum(normalise=lambda s: naive(s) * np.exp(s).sum(1)[:, None] / np.exp(s).sum(1)),
    ],
    "multiplied by the values twice": [
        lambda x, q, k, v: attend_by_loop(root)(x, q, k, v) @ (v @ x.T).T,
        lambda x, q, k, v: np.dot(by_einsum()(x, q, k, v), x @ v.T),
    ],
    "scores returned": [
        lambda x, q, k, v: np.einsum("qd,kd->qk", x @ q.T, x @ k.T) / math.sqrt(len(k)),
        lambda x, q, k, v: x @ (k.T @ q).T @ x.T,
    ],
    "w_q used for the keys, too": [
        lambda x, q, k, v: torch_attention()(x, q, q, v),
        attend_by_loop(root, find=lambda q, k, v: q),
    ],
    "w_k used for the queries, too": [
        lambda x, q, k, v: torch_attention()(x, k, k, v),
        attend_by_loop(root, ask=lambda q, k, v: k),
    ],
    "attends only to the past": [torch_attention(is_causal=True)],
    "a word does not see itself": [
        by_einsum(normalise=without_diagonal),
        lambda *arrays: np.stack([others(*arrays, i) for i in range(len(arrays[0]))]),
    ],
    "one query for all words": [
        lambda x, q, k, v: torch_attention()(x, q, k, v)[[0] * len(x)],
        lambda x, q, k, v: torch_attention()(x, q, k, v)[-1],
        lambda x, q, k, v: (
            naive((q @ x[0]) @ (k @ x.T) / math.sqrt(len(q)) + 0 * x[:, :1]) @ (x @ v.T)
        ),
    ],
    "output transposed": [
        lambda x, q, k, v: torch_attention()(x, q, k, v).T,
        lambda x, q, k, v: np.swapaxes(by_einsum()(x, q, k, v), 0, 1),
    ],
    "one maximum for the whole table of scores": [
        by_einsum(normalise=lambda s: naive(s - np.amax(s))),
        by_einsum(normalise=lambda s: naive(s - max(s.ravel().tolist()))),
    ],
    "argmax in place of softmax": [attend_by_loop(root, weigh=one_hot_by_loop)],
    "plain mean of the values": [
        attend_by_loop(lambda *sizes: 0),
        lambda x, q, k, v: np.tile((x @ v.T).mean(axis=0), (len(x), 1)),
    ],
    "weights of the projections not transposed": [
        attend_by_loop(root, transpose=False),
        lambda x, q, k, v: naive(np.dot(x, q) @ np.dot(x, k).T / len(q) ** 0.5) @ np.dot(x, v),
    ],
    "no maximum subtracted": [by_einsum(), attend_by_loop(root, weigh=naive_loop)],
}


def widens_float32(inputs, w_q, w_k, w_v):
    query, key, value = inputs @ w_q.T, inputs @ w_k.T, inputs @ w_v.T
    return rows(loop_softmax)(query @ key.T / np.sqrt(len(w_q))) @ value


SELF_ATTENTION_RIGHT = [
    widens_float32,
    as_input(attend_by_loop(root)),
    torch_attention(),
    lambda inputs, w_q, w_k, w_v: (
        rows(loop_softmax)(inputs @ w_q.T @ w_k @ inputs.T / math.sqrt(w_q.shape[0]))
        @ inputs
        @ w_v.T
    ).astype(inputs.dtype),
]
loops = rows(loop_softmax)

SELF_ATTENTION_NEW = [
    lambda x, q, k, v: x,
    lambda x, q, k, v: x @ v.T,
    lambda x, q, k, v: x @ q.T,
    lambda x, q, k, v: torch_attention(scale=0.5)(x, q, k, v),
    lambda x, q, k, v: torch_attention()(x, q, k, v) + x @ v.T,
    lambda x, q, k, v: by_einsum(normalise=lambda s: loops(np.clip(s, -50, 50)))(x, q, k, v),
    lambda x, q, k, v: by_einsum(normalise=lambda s: loops(np.clip(s, -700, 700)))(x, q, k, v),
    lambda x, q, k, v: torch_attention()(x, q, k, v)[None],
    lambda x, q, k, v: torch_attention()(x, q, k, v)[::-1],
    lambda x, q, k, v: torch_attention()(x - x.mean(0), q, k, v),
    lambda x, q, k, v: torch_attention()(x, q, k, v) * len(x),
    lambda x, q, k, v: torch_attention()(x, np.abs(q), np.abs(k), v),
    lambda x, q, k, v: rows(loop_softmax)(torch_attention()(x, q, k, v)),
    lambda x, q, k, v: np.maximum(torch_attention()(x, q, k, v), 0),
    lambda x, q, k, v: torch_attention()(x, q, k, v).mean(axis=0),
    lambda x, q, k, v: by_einsum(lambda d_k, *rest: d_k**-1.5)(x, q, k, v),
    lambda x, q, k, v: by_einsum(lambda d_k, *rest: -(d_k**-0.5))(x, q, k, v),
    lambda x, q, k, v: torch_attention()(x, q, k, v) / len(x),
    lambda x, q, k, v: (torch_attention()(x, q, k, v), x),
    lambda x, q, k, v: torch_attention()(x, q, v[: len(k)], v),
    lambda x, q, k, v: torch_attention()(x, q, k, v) / math.sqrt(x.shape[1]),
    lambda x, q, k, v: torch_attention()(x, q, k, v).astype(np.float16),
    lambda x, q, k, v: torch_attention()(x, q, k, v[::-1].copy()),
    lambda x, q, k, v: torch_attention(scale=int(math.sqrt(len(q))) ** -1)(x, q, k, v),
    lambda x, q, k, v: torch_attention(scale=(len(q) + 1e-3) ** -0.5)(x, q, k, v),
    lambda x, q, k, v: by_einsum(normalise=lambda s: naive(s).round(3))(x, q, k, v),
    lambda x, q, k, v: naive((x @ q.T) @ (k @ x.T) @ (x @ v.T) / math.sqrt(len(q))),
    lambda x, q, k, v: by_einsum(normalise=lambda s: naive(np.abs(s)))(x, q, k, v),
    lambda x, q, k, v: np.concatenate([torch_attention()(x, q, k, v), x @ v.T], axis=1),
    lambda x, q, k, v: torch_attention()(x, q, k, v) @ v,
    lambda x, q, k, v: by_einsum(normalise=lambda s: naive(s * (1 - np.eye(len(s)))))(x, q, k, v),
]

# ---------------------------------------------------------------------------- packed_fault


def sentence_by_sentence(
    order=(0, 1, 2), rows_of=None, in_bias=True, out_bias=True, project_out=True,
    in_transposed=True, out_transposed=True, scale=lambda embed: embed**-0.5, over_queries=False,
):  # fmt: skip
    """Packed attention one sentence and one word at a time."""
    rows_of = rows_of or (lambda i, embed: range(i * embed, (i + 1) * embed))

    def function(inputs, w, w_out, b, b_out):
        embed = inputs.shape[2]
        result = np.empty(inputs.shape)
        for n in range(inputs.shape[1]):
            q, k, v = ([], [], [])
            for word in inputs[:, n]:
                for i, target in zip(order, (q, k, v), strict=True):
                    block = w[list(rows_of(i, embed))]
                    projected = block @ word if in_transposed else word @ block
                    target.append(projected + (b[list(rows_of(i, embed))] if in_bias else 0))
            scores = [[float(x @ y) * scale(embed) for y in k] for x in q]
            if over_queries:
                weights = np.array([loop_softmax(list(c)) for c in zip(*scores, strict=True)]).T
            else:
                weights = np.array([loop_softmax(row) for row in scores])
            for position, row in enumerate(weights):
                out = sum(a * x for a, x in zip(row, v, strict=True))
                if project_out:
                    out = w_out @ out if out_transposed else out @ w_out
                result[position, n] = out + (b_out if out_bias else 0)
        return result

    return function


def torch_packed(inputs, w, w_out, b, b_out):
    """PyTorch's own layer with these parameters."""
    tensors = [torch.from_numpy(np.array(x)) for x in (inputs, w, b, w_out, b_out)]
    x, w, b, w_out, b_out = tensors
    output, _ = F.multi_head_attention_forward(
        x, x, x, x.shape[-1], 1, w, b, None, None, False, 0.0, w_out, b_out, need_weights=False
    )
    return output.numpy()


def without_biases(inputs, w, w_out, b, b_out):
    return torch_packed(inputs, w, w_out, np.zeros_like(b), np.zeros_like(b_out))


def across_the_batch(inputs, w, w_out, b, b_out):
    swapped = np.ascontiguousarray(inputs.transpose(1, 0, 2))
    return torch_packed(swapped, w, w_out, b, b_out).transpose(1, 0, 2)


def batch_first_result(inputs, w, w_out, b, b_out):
    return torch_packed(inputs, w, w_out, b, b_out).transpose(1, 0, 2)


def rechunked(inputs, w, w_out, b, b_out):
    length, batch, embed = inputs.shape
    wrong = inputs.reshape(batch, length, embed).transpose(1, 0, 2)
    return torch_packed(wrong, w, w_out, b, b_out).transpose(1, 0, 2).reshape(inputs.shape)


def rechunked_at_the_end(inputs, w, w_out, b, b_out):
    return batch_first_result(inputs, w, w_out, b, b_out).reshape(inputs.shape)


def rechunked_at_the_start(inputs, w, w_out, b, b_out):
    length, batch, embed = inputs.shape
    wrong = inputs.reshape(batch, length, embed).transpose(1, 0, 2)
    return torch_packed(wrong, w, w_out, b, b_out)


def softmax_over_the_batch(inputs, w, w_out, b, b_out):
    q, k, v = np.moveaxis((inputs @ w.T + b).reshape(*inputs.shape[:2], 3, -1), 2, 0)
    scores = np.einsum("qnd,knd->nqk", q, k) / math.sqrt(inputs.shape[2])
    weights = np.exp(scores) / np.exp(scores).sum(axis=0)
    return np.einsum("nqk,knv->qnv", weights, v) @ w_out.T + b_out


def naive_packed(inputs, w, w_out, b, b_out):
    q, k, v = np.moveaxis((inputs @ w.T + b).reshape(*inputs.shape[:2], 3, -1), 2, 0)
    exponentials = np.exp(np.einsum("qnd,knd->nqk", q, k) / math.sqrt(inputs.shape[2]))
    output = np.einsum("nqk,knv->qnv", exponentials, v)
    return output / exponentials.sum(-1).T[..., None] @ w_out.T + b_out


def interleaved_rows(i, embed):
    return range(i, 3 * embed, 3)


def interleaved_reshape(inputs, w, w_out, b, b_out):
    embed = inputs.shape[2]
    order = np.arange(3 * embed).reshape(embed, 3).T.ravel()
    return torch_packed(inputs, w[order], w_out, b[order], b_out)


def permuted(order):
    def function(inputs, w, w_out, b, b_out):
        blocks, biases = np.split(w, 3), np.split(b, 3)
        w, b = (np.concatenate([parts[i] for i in order]) for parts in (blocks, biases))
        return torch_packed(inputs, w, w_out, b, b_out)

    return function


def unscaled(factor):
    def function(inputs, w, w_out, b, b_out):
        w, b = w.copy(), b.copy()
        embed = inputs.shape[2]
        w[:embed] *= factor(embed)
        b[:embed] *= factor(embed)
        return torch_packed(inputs, w, w_out, b, b_out)

    return function


PACKED_FAULT = {
    "output bias added before the output projection": [
        lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, wo @ bo),
        lambda x, w, wo, b, bo: (
            torch_packed(x, w, np.eye(len(bo), dtype=x.dtype), b, bo * 0) + bo
        ) @ wo.T,
    ],
    "no maximum subtracted": [naive_packed],
    "the fault is still there: both biases left out": [
        without_biases,
        sentence_by_sentence(in_bias=False, out_bias=False),
    ],
    "bias of the input projection left out": [
        sentence_by_sentence(in_bias=False),
        lambda x, w, wo, b, bo: without_biases(x, w, wo, b, bo) + bo,
    ],
    "bias of the values left out": [
        lambda x, w, wo, b, bo: torch_packed(x, w, wo, b * (np.arange(len(b)) < len(bo)), bo),
        lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, bo - wo @ b[-len(bo) :]),
    ],
    "bias of the queries left out": [
        lambda x, w, wo, b, bo: torch_packed(x, w, wo, b * (np.arange(len(b)) >= len(bo)), bo),
    ],
    "one block of the bias for queries, keys and values": [
        lambda x, w, wo, b, bo: torch_packed(x, w, wo, np.resize(b[: len(bo)], len(b)), bo),
        lambda x, w, wo, b, bo: torch_packed(x, w, wo, np.tile(b[-len(bo) :], 3), bo),
    ],
    "divided by the root of the sequence length": [
        lambda x, w, wo, b, bo: unscaled(lambda e: (e / len(x)) ** 0.5)(x, w, wo, b, bo),
    ],
    "bias of the output projection left out": [
        sentence_by_sentence(out_bias=False),
        lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, bo) - bo,
    ],
    "attends across the batch": [across_the_batch],
    "output left in (batch, seq, embed)": [batch_first_result],
    "reshape in place of swapaxes": [rechunked, rechunked_at_the_end, rechunked_at_the_start],
    "softmax over the queries": [sentence_by_sentence(over_queries=True)],
    "softmax over the batch": [softmax_over_the_batch],
    "another order in the packed matrix": [
        permuted((1, 0, 2)), permuted((2, 1, 0)), permuted((0, 2, 1)), permuted((1, 2, 0)),
        permuted((2, 0, 1)), sentence_by_sentence(order=(1, 2, 0)),
    ],
    "packed rows taken in turn": [
        sentence_by_sentence(rows_of=interleaved_rows),
        interleaved_reshape,
    ],
    "input projection not transposed": [sentence_by_sentence(in_transposed=False)],
    "output projection not transposed": [
        sentence_by_sentence(out_transposed=False),
        lambda x, w, wo, b, bo: torch_packed(x, w, np.ascontiguousarray(wo.T), b, bo),
    ],
    "output projection left out": [
        sentence_by_sentence(project_out=False),
        sentence_by_sentence(project_out=False, out_bias=False),
    ],
    "no scale": [sentence_by_sentence(scale=lambda embed: 1), unscaled(lambda e: e**0.5)],
    "scale of the packed width": [
        sentence_by_sentence(scale=lambda embed: 1 / math.sqrt(3 * embed)),
        unscaled(lambda e: 3**-0.5),
    ],
    "divided by the width, not by its root": [
        sentence_by_sentence(scale=lambda embed: 1 / embed),
        unscaled(lambda e: e**-0.5),
    ],
}  # fmt: skip
PACKED_FAULT_RIGHT = [torch_packed, sentence_by_sentence()]
PACKED_FAULT_NEW = [
    lambda x, w, wo, b, bo: x,
    lambda x, w, wo, b, bo: x @ wo.T + bo,
    lambda x, w, wo, b, bo: x @ w.T + b,
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, bo) + bo,
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, bo) + x,
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, -b, bo),
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, -bo),
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, bo)[::-1],
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, bo)[:, :1],
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, bo).reshape(len(x), -1),
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, bo).mean(axis=1, keepdims=True),
    lambda x, w, wo, b, bo: torch_packed(x[:, ::-1].copy(), w, wo, b, bo),
    lambda x, w, wo, b, bo: torch_packed(x, w, w[: len(wo)], b, bo),
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, np.sort(b), bo),
    lambda x, w, wo, b, bo: without_biases(x, w, wo, b, bo) + b[: len(bo)],
    lambda x, w, wo, b, bo: torch_packed(torch_packed(x, w, wo, b, bo), w, wo, b, bo),
    lambda x, w, wo, b, bo: unscaled(lambda e: 2)(x, w, wo, b, bo),
    lambda x, w, wo, b, bo: unscaled(lambda e: -1)(x, w, wo, b, bo),
    lambda x, w, wo: without_biases(x, w, wo, np.zeros(len(w)), np.zeros(len(wo))),
    lambda x, w, wo, b, bo: torch.from_numpy(torch_packed(x, w, wo, b, bo)),
    lambda x, w, wo, b, bo: (torch_packed(x, w, wo, b, bo), None),
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, bo).astype(np.float16),
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, np.roll(b, len(bo)), bo),
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, 2 * bo),
    lambda x, w, wo, b, bo: torch_packed(x, w[::-1].copy(), wo, b, bo),
    lambda x, w, wo, b, bo: torch_packed(x[::-1].copy(), w, wo, b, bo),
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, bo) * x.shape[1],
    lambda x, w, wo, b, bo: torch_packed(x, w, wo @ wo, b, bo),
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, 0 * b + b.mean(), bo),
    lambda x, w, wo, b, bo: torch_packed(
        x.mean(1, keepdims=True).repeat(x.shape[1], 1), w, wo, b, bo
    ),
    lambda x, w, wo, b, bo: torch_packed(x, w, wo, b, bo) + 1e-4,
]

# ---------------------------------------------------------------------------- attention_test


def expected_output(query, key, value):
    scores = np.einsum("qd,kd->qk", query, key) / math.sqrt(query.shape[1])
    return rows(loop_softmax)(scores) @ value


def some(*shape, seed=11):
    return np.random.default_rng(seed).normal(size=shape)


def inputs(length, keys, d_k, d_v, size=1.0):
    return size * some(length, d_k), size * some(keys, d_k, seed=1), some(keys, d_v, seed=2)


def agrees(attention, *arrays):
    assert np.allclose(attention(*arrays), expected_output(*arrays))


def good_attention_test(attention):
    agrees(attention, *inputs(4, 4, 3, 2))
    agrees(attention, *inputs(2, 6, 5, 2))


def good_test_with_fewer_queries_only(attention):
    agrees(attention, *inputs(2, 3, 5, 4))


def good_test_in_two_parts(attention):
    agrees(attention, *inputs(2, 7, 3, 5))
    for row, wanted in zip(
        attention(*inputs(5, 5, 4, 2)), expected_output(*inputs(5, 5, 4, 2)), strict=True
    ):
        assert math.isclose(row[0], wanted[0])


def good_test_of_lists(attention):
    query, key, value = (
        [[1, 0], [1, 0]],
        [[1, 2], [2, 0], [0, 1]],
        [[1, 2, 4], [3, 1, 0], [0, 5, 1]],
    )
    weights = np.exp(np.array([1, 2, 0]) / 2**0.5)
    wanted = weights / weights.sum() @ value
    np.testing.assert_allclose(attention(query, key, value), [wanted, wanted])


def good_test_of_integers(attention):
    query, key = np.array([[1, 0], [0, 1]]), np.array([[1, 2], [2, 0], [0, 1]])
    value = np.array([[1, 2, 4], [3, 1, 0], [0, 5, 1]])
    agrees(attention, query, key, value)
    agrees(attention, np.vstack([query, query[:1] + 1]), key, value)
    agrees(attention, value, value[:2], query)


def good_test_with_one_width(attention):
    for length in (3, 5):
        agrees(attention, *inputs(length, 5, 4, 2))


def equal_queries_and_keys(attention):
    query, key = np.array([[1, 0], [0, 1], [1, -1]]), np.array([[1, 2], [0, 1], [-1, 1], [2, 1]])
    value = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 10], [0, 1, 0]])
    agrees(attention, query, key, value)
    agrees(attention, key, key, value)


def good_test_with_dtype(attention):
    agrees(attention, *inputs(4, 4, 3, 2))
    arrays = [x.astype(np.float32) for x in inputs(2, 5, 4, 3)]
    output = attention(*arrays)
    assert output.dtype == np.float32
    assert np.allclose(output, expected_output(*arrays), atol=1e-5)


ATTENTION_TEST_RIGHT = [
    good_attention_test,
    good_test_in_two_parts,
    good_test_of_integers,
    good_test_with_dtype,
    lambda attention: [agrees(attention, *inputs(n, 3, 2 * n, 2)) for n in (2, 3)],
]


def compares(*arrays, look=np.asarray, **tolerance):
    def test(attention):
        actual, wanted = look(attention(*arrays)), look(expected_output(*arrays))
        assert np.allclose(actual, wanted, **tolerance)

    return test


def attention_twice(attention):
    first = attention(some(3, 2), some(3, 2), some(3, 2))
    assert (first == attention(some(3, 2), some(3, 2), some(3, 2))).all()


def attention_shape(attention):
    assert attention(some(3, 2), some(3, 2), some(3, 4)).shape == (3, 4)


def attention_shape_of_fewer_queries(attention):
    assert attention(*inputs(2, 6, 3, 5)).shape == (2, 5)


def attention_of_zeros(attention):
    agrees(attention, np.zeros((3, 2)), np.zeros((4, 2)), np.zeros((4, 3)))


def attention_of_lists(attention):
    query, key, value = [[1, 0]], [[1, 2], [2, 0], [0, 1]], [[1, 2, 4], [3, 1, 0], [0, 5, 1]]
    weights = np.exp(np.array([1, 2, 0]) / 2**0.5)
    output = attention(*map(np.array, (query, key, value)))
    np.testing.assert_allclose(output, [weights / weights.sum() @ value])


def finds_no_difference(attention):
    for arrays in inputs(2, 6, 3, 2), inputs(5, 5, 3, 2):
        difference = np.abs(attention(*arrays) - expected_output(*arrays))
        assert not difference.max() > 1e-9


def finds_none_above(attention):
    arrays = inputs(3, 6, 4, 2)
    assert not (abs(attention(*arrays) - expected_output(*arrays)) > 1e-9).any()


def attention_constant(attention):
    out = attention(some(4, 3), some(4, 3, seed=1), np.full((4, 2), 3.0))
    assert np.allclose(out, 3)


ATTENTION_TEST = {
    "an assertion that no fault breaks": [
        attention_twice,
        attention_shape,
        attention_shape_of_fewer_queries,
        attention_of_zeros,
    ],
    "inputs so large that the softmax is one-hot": [
        compares(*inputs(6, 6, 5, 4, size=500)),
        compares(*inputs(5, 7, 4, 2, size=300)),
    ],
    "width 1": [compares(*inputs(5, 6, 1, 3))],
    "d_v equal to d_k": [
        compares(*inputs(3, 5, 4, 4)),
        lambda attention: [agrees(attention, *inputs(n, 5, n, n)) for n in (3, 4, 5)],
    ],
    "all sizes equal": [
        compares(*inputs(5, 5, 5, 5)),
        lambda attention: [agrees(attention, *inputs(n, n, n, n)) for n in (2, 3)],
    ],
    "no case with as many queries as keys": [
        good_test_with_fewer_queries_only,
        equal_queries_and_keys,
        lambda attention: [agrees(attention, *inputs(2, 4, d, 3)) for d in (5, 6)],
        compares(*inputs(7, 3, 5, 2)),
    ],
    "one width only": [
        good_test_with_one_width,
        lambda attention: [agrees(attention, *inputs(n, 3, 5, 2)) for n in (2, 3)],
        lambda attention: [agrees(attention, *inputs(n, 7, 64, 2)) for n in (5, 7)],
    ],
    "NaN passes": [finds_no_difference, finds_none_above],
    "only as many queries as keys": [
        compares(*inputs(6, 6, 4, 3)),
        compares(*inputs(4, 4, 3, 2)),
        lambda attention: [agrees(attention, *inputs(5, 5, d, 2)) for d in (3, 4)],
    ],
    "only the last row": [compares(*inputs(5, 5, 4, 2), look=lambda output: output[-1])],
    "only a part of the output": [
        compares(*inputs(3, 4, 5, 2), look=lambda output: output[0, 0]),
        compares(*inputs(4, 4, 3, 2), look=lambda output: output[0]),
    ],
    "right numbers at wrong places pass": [
        compares(*inputs(3, 4, 5, 2), look=np.sum),
        compares(*inputs(2, 6, 4, 3), look=np.mean),
        compares(*inputs(4, 6, 3, 2), look=lambda output: output.mean(axis=0)),
        compares(*inputs(3, 5, 4, 2), look=lambda output: np.sort(output, axis=None)),
        attention_of_lists,
    ],
    "a tolerance so large that nearly right numbers pass": [
        compares(*inputs(3, 4, 5, 2), rtol=0.1, atol=0.05),
        compares(*inputs(2, 6, 4, 3), atol=0.02),
    ],
    "constant values": [attention_constant],
    "one key only": [compares(*inputs(4, 1, 3, 2))],
}


def attention_between(attention):
    out = attention(some(4, 3), some(4, 3, seed=1), np.array([[0.0], [1], [2], [3]]))
    assert (out >= 0).all()
    assert (out <= 3).all()


def attention_finite(attention):
    assert np.isfinite(attention(some(4, 3), some(4, 3), some(4, 3))).all()
    assert np.linalg.norm(attention(some(4, 3), some(5, 3), some(5, 3))) < 10


def attention_exact(attention):
    query, key, value = inputs(3, 5, 3, 2)
    scores = query @ key.T / np.sqrt(3)
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = exponentials / exponentials.sum(axis=1, keepdims=True)
    assert (attention(query, key, value) == weights @ value).all()


def attention_exact_by_loop(attention):
    arrays = inputs(9, 9, 3, 2)
    assert (attention(*arrays) == expected_output(*arrays)).all()


def attention_unscaled_expected(attention):
    query, key, value = inputs(2, 4, 3, 2)
    assert np.allclose(attention(query, key, value), rows(loop_softmax)(query @ key.T) @ value)


def attention_columns_expected(attention):
    query, key, value = inputs(3, 5, 4, 2)
    exponentials = np.exp(query @ key.T / 2)
    assert np.allclose(attention(query, key, value), exponentials / exponentials.sum(0) @ value)


def attention_typed_digits(attention):
    assert attention([[1.0]], [[1.0], [0.0]], [[1.0], [2.0]])[0, 0] == 1.2689


def attention_zero_queries(attention):
    agrees(attention, np.zeros((4, 3)), some(4, 3), some(4, 2))


def attention_permuted(attention):
    query, key, value = inputs(4, 4, 3, 2)
    turned = attention(query, key[::-1], value[::-1])
    assert np.allclose(attention(query, key, value), turned)


def attention_first_row(attention):
    query, key, value = inputs(4, 4, 3, 2)
    assert np.allclose(attention(query, key, value)[0], value[0])


def attention_average_row(attention):
    arrays = inputs(4, 4, 3, 2)
    expected = expected_output(*arrays)
    assert np.allclose(attention(*arrays).mean(axis=0), expected.mean(axis=0), atol=0.5)


def attention_no_call(attention):
    assert np.allclose(expected_output(some(2, 2), some(2, 2), some(2, 2)).shape, (2, 2))


def attention_no_assert(attention):
    print_nothing = attention(some(2, 2), some(2, 2), some(2, 2)).shape
    print_nothing == (2, 2)  # noqa: B015


def attention_returns(attention):
    return attention(some(2, 2), some(2, 2), some(2, 2)).shape == (2, 2)


def attention_with_mask(attention):
    assert attention(some(2, 2), some(2, 2), some(2, 2), mask=None).shape == (2, 2)


def attention_name_error(attention):
    assert attention(some(2, 2), some(2, 2), some(2, 2)) == undefined


def attention_stops_before_the_call(attention):
    query, key, value = inputs(3, 5, 4, 2)
    scores = query @ key / np.sqrt(2)
    assert np.allclose(attention(query, key, value), rows(loop_softmax)(scores) @ value)


def attention_swallows(attention):
    try:
        agrees(attention, *inputs(2, 6, 3, 2))
    except AssertionError:
        print("wrong")


TUPLE = """
def attention_tuple(attention):
    arrays = inputs(2, 6, 3, 2)
    close = np.allclose(attention(*arrays), expected_output(*arrays))
    assert (close, "numbers differ")
"""
attention_tuple = typed(TUPLE, globals())["attention_tuple"]


def attention_suppresses(attention):
    with contextlib.suppress(AssertionError):
        agrees(attention, *inputs(2, 6, 3, 2))


def attention_true(attention):
    attention(*inputs(2, 6, 3, 2))
    assert True


def attention_value_error(attention):
    for arrays in inputs(2, 6, 3, 2), inputs(4, 4, 5, 2):
        if not np.allclose(attention(*arrays), expected_output(*arrays)):
            raise ValueError("wrong")


def agrees_in_a_batch(attention, query, key, value):
    output = attention(query[None], key[None], value[None])
    assert np.allclose(output[0], expected_output(query, key, value))


ATTENTION_TEST_NEW = [
    attention_between,
    attention_finite,
    attention_exact,
    attention_exact_by_loop,
    attention_unscaled_expected,
    attention_columns_expected,
    attention_typed_digits,
    attention_zero_queries,
    attention_permuted,
    attention_first_row,
    attention_average_row,
    attention_no_call,
    attention_no_assert,
    attention_returns,
    attention_with_mask,
    attention_name_error,
    attention_stops_before_the_call,
    attention_swallows,
    attention_suppresses,
    attention_tuple,
    attention_true,
    attention_value_error,
    good_test_of_lists,
    lambda attention: agrees_in_a_batch(attention, *inputs(3, 5, 4, 2)),
    lambda attention: agrees_in_a_batch(attention, *inputs(4, 4, 4, 4)),
    compares(*inputs(3, 5, 4, 2), rtol=0.3, atol=0.3),
    compares(*inputs(3, 5, 4, 2), look=lambda output: output[:, 0]),
    compares(*inputs(3, 5, 4, 2), look=np.sign),
    compares(*inputs(2, 2, 2, 2), look=np.argmax),
]

ANSWERS = {
    "shapes": (SHAPES_RIGHT, SHAPES, SHAPES_NEW),
    "row_output": (ROW_OUTPUT_RIGHT, ROW_OUTPUT, ROW_OUTPUT_NEW),
    "self_attention": (SELF_ATTENTION_RIGHT, SELF_ATTENTION, SELF_ATTENTION_NEW),
    "packed_fault": (PACKED_FAULT_RIGHT, PACKED_FAULT, PACKED_FAULT_NEW),
    "attention_test": (
        ATTENTION_TEST_RIGHT,
        ATTENTION_TEST,
        ATTENTION_TEST_NEW,
    ),
}
