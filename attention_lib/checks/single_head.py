"""The exercises of chapter 2, single_head: references, cases, known mistakes, hints."""

import math
from functools import partial
from itertools import permutations

import numpy as np
import torch

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction
from attention_lib.lookup import softmax
from attention_lib.single_head import SingleHeadAttention, numpy_attention

# ---------------------------------------------------------------------------- shapes

BATCH, LENGTH, EMBED_DIM, D_K, D_V = 2, 6, 8, 3, 5


def _output_shape():
    head = SingleHeadAttention(EMBED_DIM, d_k=D_K, d_v=D_V)
    return tuple(head(torch.zeros(BATCH, LENGTH, EMBED_DIM)).shape)


shapes = PredictValue(
    level=1,
    trains="the shape of one head's output",
    answer=_output_shape,
    mistakes=(
        Mistake(
            "shape of the weights",
            "One number for each pair of words: these are the scores or the weights. The weights "
            "still meet the values. What is left of the second 6?",
            (BATCH, LENGTH, LENGTH),
        ),
        Mistake(
            "width d_k",
            "d_k is the width in which queries and keys meet. It disappears in their dot product. "
            "The output is made of values.",
            (BATCH, LENGTH, D_K),
        ),
        Mistake(
            "width embed_dim",
            "Only an output projection would bring the width back to embed_dim; this head has "
            "none. What is the width of the vectors that are averaged?",
            (BATCH, LENGTH, EMBED_DIM),
        ),
        Mistake(
            "words and width swapped",
            "The numbers are right, their order is not: the width stays last.",
            (BATCH, D_V, LENGTH),
        ),
        Mistake(
            "batch and words swapped",
            "The words come first in the default layout of PyTorch's MultiheadAttention. Here the "
            "batch goes first, and stays there.",
            (LENGTH, BATCH, D_V),
        ),
        Mistake(
            "batch and words swapped, and another width",
            "The batch goes first here and stays there. The width is not right either: what is "
            "the width of the vectors that are averaged?",
            (LENGTH, BATCH, EMBED_DIM),
            (LENGTH, BATCH, D_K),
        ),
        Mistake(
            "batch forgotten",
            "That is the output for one sentence. Both sentences go through together.",
            (LENGTH, D_V),
            (1, LENGTH, D_V),
        ),
        Mistake(
            "one vector for each sentence",
            "Every word asks its own query, so every word gets an output of its own.",
            (BATCH, D_V),
            (BATCH, 1, D_V),
        ),
        Mistake(
            "sentences joined",
            "The words of both sentences stand in one list of 12. Each sentence attends within "
            "itself, so the sentences keep an axis of their own.",
            (BATCH * LENGTH, D_V),
            (1, BATCH * LENGTH, D_V),
        ),
        Mistake(
            "keys times values",
            "d_k by d_v comes from keys.T @ values, where the words have been summed away. The "
            "weights, one row for each word, multiply the values.",
            (BATCH, D_K, D_V),
        ),
        Mistake(
            "values not averaged",
            "One value for every pair of words: that is before the average. The weighted sum over "
            "the keys removes one of the two 6s.",
            (BATCH, LENGTH, LENGTH, D_V),
        ),
    ),
    hints=(
        "Write down the shapes of queries, keys and values first, each with its own width.",
        "The weights have shape (2, 6, 6): for each sentence, a row for each word that asks.",
        "weights @ values: the last axis of the weights meets the words of the values. The other "
        "axes stay.",
    ),
)

# ---------------------------------------------------------------------------- row_output


SHARES = {
    2: (0.7, 0.3),
    3: (0.5, 0.2, 0.3),
    4: (0.1, 0.4, 0.3, 0.2),
    5: (0.3, 0.1, 0.2, 0.15, 0.25),
    6: (0.1, 0.25, 0.05, 0.2, 0.28, 0.12),
}


def _row_cases():
    rng = np.random.default_rng(4)
    yield Case("one word", np.array([1.0]), np.array([[2.0]]))
    yield Case("all weight on one word", np.array([0.0, 1.0]), np.array([[1.0, 2], [3, 4]]))
    yield Case("equal weights", np.array([0.5, 0.5]), np.array([[2.0, 0, 1], [4, 6, 3]]))
    yield Case(
        "more words than width", np.array([0.5, 0.3, 0.2]), np.array([[1.0, 2], [3, 5], [0, 4]])
    )
    for words, width in (3, 3), (4, 4), (5, 2), (2, 5), (6, 6):
        yield Case(
            "as many words as width" if words == width else "random weights",
            np.array(SHARES[words]),
            rng.normal(size=(words, width)).round(1),
        )
    single = np.array(SHARES[3]), rng.normal(size=(3, 4)).round(1)
    yield Case("float32", *(x.astype(np.float32) for x in single))
    many = np.array([0.271828, 0.314159, 0.414013])
    yield Case("numbers with many digits", many, rng.normal(size=(3, 6)).round(6))


row_output = WriteFunction(
    level=1,
    trains="which side of a product holds the weights",
    reference=lambda weights, values: weights @ values,
    cases=tuple(_row_cases()),
    mistakes=(
        Mistake(
            "the fault is still there: weights laid along the columns",
            "Each weight meets a column of the values. That fails unless there are as many columns "
            "as words, and then it is silently something else. A weight belongs to a word, so to "
            "a row.",
            lambda w, v: v * w,
            lambda w, v: v * w[: v.shape[1]],
        ),
        Mistake(
            "weights along the columns, then summed over the words",
            "The sum is right, but each weight has met a column in place of its word. Give "
            "the weights a second axis before you multiply.",
            lambda w, v: (v * w).sum(axis=0),
            lambda w, v: (v * w[: v.shape[1]]).sum(axis=0),
        ),
        Mistake(
            "weights along the columns, then summed over the columns",
            "The result has one number for each word: all weights have met the numbers of one "
            "word. It fails unless there are as many columns as words. The output has one number "
            "for each column, summed over the words.",
            lambda w, v: v @ w,
            lambda w, v: v @ w[: v.shape[1]],
        ),
        Mistake(
            "not summed",
            "Every value has met its own weight: good. The output is the sum of these rows.",
            lambda w, v: w[:, None] * v,
        ),
        Mistake(
            "summed over the wrong axis",
            "Every value has met its own weight, but the sum runs across its numbers. Sum over the "
            "words, so that one vector of width d_v is left.",
            lambda w, v: (w[:, None] * v).sum(axis=1),
        ),
        Mistake(
            "a column times a row, the outer product",
            "Everything is multiplied with everything. One word's output needs each weight with "
            "its own value only: a row of weights times a column of values.",
            np.outer,
            lambda w, v: np.outer(v, w),
            lambda w, v: w[:, None, None] * v,
            lambda w, v: v[..., None] * w,
            lambda w, v: v[:, None] * w[:, None],
        ),
        Mistake(
            "one word alone",
            "The result is one weight times its value, for the first word or the last. The "
            "products of all words must be added up before the result is returned.",
            lambda w, v: w[0] * v[0],
            lambda w, v: w[-1] * v[-1],
        ),
        Mistake(
            "plain mean of the values",
            "The weights are not used: every word counts the same.",
            lambda w, v: v.mean(axis=0),
        ),
        Mistake(
            "sum without weights",
            "The weights are not used: the values are added as they are.",
            lambda w, v: v.sum(axis=0),
        ),
        Mistake(
            "only the word with the largest weight",
            "That is a hard lookup. All words count here, each by its weight.",
            lambda w, v: v[w.argmax()],
        ),
        Mistake(
            "softmax of the weights",
            "The weights have been through a softmax already; a second one makes them more even.",
            lambda w, v: softmax(w) @ v,
        ),
        Mistake(
            "a matrix with one row",
            "The numbers are right, the shape is (1, d_v). One word's output is a vector (d_v,).",
            lambda w, v: w[None, :] @ v,
        ),
        Mistake(
            "divided by the number of words",
            "The weights add to 1 already, so the weighted sum is the average.",
            lambda w, v: w @ v / len(w),
        ),
    ),
    hints=(
        "Which axis of values counts the words? Each weight belongs to one word.",
        "Write it as a loop first: add weights[i] * values[i] for each word i.",
        "A row of S weights times a matrix with S rows: the weights go to the left of @.",
    ),
)

# ---------------------------------------------------------------------------- self_attention


def _sentences():
    rng = np.random.default_rng(5)
    eye = np.eye(2)
    yield Case("one word", np.array([[1.0, 2]]), eye, eye, np.array([[1.0, 1]]))
    yield Case(
        "two words", np.array([[1.0, 0], [2, 1]]), eye, 2 * eye, np.array([[1.0, 2], [0, 1]])
    )
    yield Case("equal words", np.ones((2, 2)), eye, eye, np.array([[1.0, 2], [3, 1], [0, 1]]))
    beyond = np.array([[10.0, 0.0], [10.0, 2.0], [9.0, 4.0]])
    yield Case("scores beyond 50", beyond, eye, eye, eye)
    sizes = {
        (3, 4, 2, 5): "d_v larger than d_k",
        (5, 3, 4, 2): "d_v smaller than d_k",
        (3, 4, 1, 3): "d_k = 1",
        (3, 3, 3, 3): "all sizes equal",
        (4, 5, 3, 3): "d_v = d_k",
        (2, 6, 5, 4): "random words",
        (6, 2, 3, 4): "random words",
        (4, 4, 4, 4): "random words",
    }
    for (words, embed_dim, d_k, d_v), label in sizes.items():
        widths = (words, d_k, d_k, d_v)
        yield Case(label, *(rng.normal(size=(width, embed_dim)).round(1) for width in widths))
    single = (rng.normal(size=(width, 4)).round(1) for width in (3, 2, 2, 3))
    yield Case("float32", *(x.astype(np.float32) for x in single))
    apart = np.array([[40.0, 0.0], [40.0, 1.0], [1.0, 0.0]])
    yield Case("scores beyond 700", apart, eye, eye, eye, extreme=True)
    words, *projections = (rng.normal(size=(2, 2)).round(1) for _ in range(4))
    yield Case("large inputs (overflow)", (100 * words).round(), *projections, extreme=True)


def _head(x, w_q, w_k, w_v, weights=softmax, scale=lambda x, w_q, w_v: len(w_q) ** -0.5):
    """Self-attention with a choice of softmax and scale."""
    return weights(x @ w_q.T @ (x @ w_k.T).T * scale(x, w_q, w_v)) @ (x @ w_v.T)


def _unstable(scores, axis=-1):
    return np.exp(scores) / np.exp(scores).sum(axis=axis, keepdims=True)


def _scale(rule):
    return partial(_head, scale=rule)


def _one_hot(scores):
    return np.eye(scores.shape[-1])[scores.argmax(axis=-1)]


def _shares(scores):
    return scores / scores.sum(axis=-1, keepdims=True)


def _over_all(scores):
    return softmax(scores.ravel()).reshape(scores.shape)


def _causal(scores):
    return softmax(np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf))


NO_KEEPDIMS = (
    lambda s: np.exp(s) / np.exp(s).sum(axis=-1),
    lambda s: np.exp(s - s.max(-1, keepdims=True)) / np.exp(s - s.max(-1, keepdims=True)).sum(-1),
    lambda s: np.exp(s - s.max(-1)) / np.exp(s - s.max(-1)).sum(-1),
    lambda s: np.exp(s - s.max()) / np.exp(s - s.max()).sum(-1),
    lambda s: np.exp(s - s.max(-1)) / np.exp(s - s.max(-1)).sum(-1, keepdims=True),
)


def _not_itself(scores):
    """A softmax over all words but the one that asks."""
    return softmax(np.where(np.eye(*scores.shape[-2:], dtype=bool), -np.inf, scores))


def _one_query(row):
    """The weights of one word for all words."""
    return lambda scores: np.broadcast_to(softmax(scores[row]), scores.shape)


def _equal(scores):
    return np.full(scores.shape, 1 / scores.shape[-1])


def _keys_reshaped(x, w_q, w_k, w_v):
    keys = (x @ w_k.T).reshape(len(w_k), len(x))
    return softmax(x @ w_q.T @ keys / np.sqrt(len(w_q))) @ (x @ w_v.T)


self_attention = WriteFunction(
    level=2,
    trains="projections, scores, weights and output in NumPy",
    reference=lambda inputs, w_q, w_k, w_v: _head(inputs, w_q, w_k, w_v),
    cases=tuple(_sentences()),
    mistakes=(
        Mistake(
            "no scale",
            "The scores go into the softmax as they are. They are divided by the root of d_k "
            "first; chapter 3 measures why.",
            _scale(lambda x, w_q, w_v: 1),
        ),
        Mistake(
            "divided by d_k, not by its root",
            "The scores come out too small, and the weights too even. It is the root.",
            _scale(lambda x, w_q, w_v: 1 / len(w_q)),
        ),
        Mistake(
            "divided by the root of embed_dim",
            "The dot product runs over d_k numbers, the width of queries and keys. The width of "
            "the inputs does not matter.",
            _scale(lambda x, w_q, w_v: x.shape[1] ** -0.5),
        ),
        Mistake(
            "divided by the root of d_v",
            "d_v is the width of the values, and they are not part of the scores. Which width do "
            "queries and keys share?",
            _scale(lambda x, w_q, w_v: len(w_v) ** -0.5),
        ),
        Mistake(
            "divided by the root of the number of words",
            "The number of words is the number of keys. The scale comes from the width of one key.",
            _scale(lambda x, w_q, w_v: len(x) ** -0.5),
        ),
        Mistake(
            "multiplied by the root",
            "The scores have grown by the root of d_k, where they should shrink by it. To divide "
            "by d_k ** -0.5 is to multiply by the root.",
            _scale(lambda x, w_q, w_v: len(w_q) ** 0.5),
        ),
        Mistake(
            "softmax over the queries",
            "Each column of the weights adds to 1. Each row should: a word that asks shares out a "
            "weight of 1 among the keys, along the last axis.",
            partial(_head, weights=partial(softmax, axis=0)),
        ),
        Mistake(
            "weights returned",
            "These are the weights, (L, L). One step is missing: they average the values.",
            lambda x, q, k, v: softmax(x @ q.T @ (x @ k.T).T / np.sqrt(len(q))),
        ),
        Mistake(
            "queries and keys swapped",
            "The scores are transposed: in row i word i must ask, with its query, all keys.",
            lambda x, q, k, v: _head(x, k, q, v),
        ),
        Mistake(
            "inputs in place of values",
            "The weights average the inputs. The third projection, w_v, is not used.",
            lambda x, q, k, v: _head(x, q, k, np.eye(x.shape[1])),
        ),
        Mistake(
            "keys in place of values",
            "The weights average the keys. Keys are for finding; the values come from w_v.",
            lambda x, q, k, v: _head(x, q, k, k),
        ),
        Mistake(
            "queries in place of values",
            "The weights average the queries. The values come from w_v.",
            lambda x, q, k, v: _head(x, q, k, q),
        ),
        Mistake(
            "keys not projected",
            "The queries meet the inputs themselves. That runs only where d_k equals embed_dim; "
            "w_k is not used.",
            lambda x, q, k, v: softmax(x @ q.T @ x.T / np.sqrt(len(q))) @ (x @ v.T),
        ),
        Mistake(
            "neither queries nor keys projected",
            "The inputs meet themselves, so the scores are the same in both directions. w_q makes "
            "what a word asks, w_k what it can be found by.",
            lambda x, q, k, v: softmax(x @ x.T / np.sqrt(len(q))) @ (x @ v.T),
            lambda x, q, k, v: softmax(x @ x.T / np.sqrt(x.shape[1])) @ (x @ v.T),
            lambda x, q, k, v: softmax(x @ x.T) @ (x @ v.T),
        ),
        Mistake(
            "keys reshaped, not transposed",
            "The shape (d_k, L) is right, the numbers stand at other places: a reshape keeps the "
            "reading order and cuts it anew. keys.T turns rows into columns.",
            _keys_reshaped,
        ),
        Mistake(
            "no softmax",
            "Scores can be negative and need not add to 1. A softmax makes weights of them.",
            partial(_head, weights=lambda scores: scores),
            partial(_head, weights=lambda scores: scores, scale=lambda x, w_q, w_v: 1),
        ),
        Mistake(
            "scaled after the softmax",
            "The softmax has seen scores that are too large, and all numbers of the output are too "
            "small by the root of d_k. The scale belongs to the scores, before the softmax.",
            lambda x, q, k, v: softmax(x @ q.T @ (x @ k.T).T) / np.sqrt(len(q)) @ (x @ v.T),
        ),
        Mistake(
            "scores divided by their sum",
            "The rows add to 1, but a negative score is a negative weight, and the scale cancels "
            "out. The exponential makes weights positive.",
            partial(_head, weights=_shares),
        ),
        Mistake(
            "softmax taken twice",
            "The weights are much too even: a softmax has been taken of weights that were already "
            "one.",
            partial(_head, weights=lambda scores: softmax(softmax(scores))),
        ),
        Mistake(
            "weights transposed",
            "Each word's own weights are right, but they stand in a column, and the rows multiply "
            "the values. Row i must hold the weights of the word that asks, word i.",
            partial(_head, weights=lambda scores: softmax(scores).T),
        ),
        Mistake(
            "not divided by the sum",
            "The exponentials weigh the values, but in no row do they add to 1: the output is no "
            "average.",
            partial(_head, weights=np.exp),
            partial(_head, weights=lambda scores: np.exp(scores - scores.max(-1, keepdims=True))),
        ),
        Mistake(
            "softmax over all entries at once",
            "All weights of the table together add to 1. Each row has a weight of 1 to share out.",
            partial(_head, weights=_over_all),
        ),
        Mistake(
            "keepdims forgotten in the softmax",
            "Each sum meets a column in place of its row. The scores of a sentence are square, so "
            "NumPy does not object. keepdims=True keeps a sum with its row.",
            *(partial(_head, weights=weights) for weights in NO_KEEPDIMS),
        ),
        Mistake(
            "multiplied by the values twice",
            "The output is multiplied by the values once more, which fits only where d_v equals "
            "the number of words. Weights times values is the output already.",
            lambda x, q, k, v: _head(x, q, k, v) @ (x @ v.T),
        ),
        Mistake(
            "scores returned",
            "These are the scores, (L, L). Two steps are missing: their softmax, and the average "
            "of the values.",
            lambda x, q, k, v: x @ q.T @ (x @ k.T).T / np.sqrt(len(q)),
            lambda x, q, k, v: x @ q.T @ (x @ k.T).T,
        ),
        Mistake(
            "w_q used for the keys, too",
            "Queries and keys are the same vectors here. The keys have a projection of their own.",
            lambda x, q, k, v: _head(x, q, q, v),
        ),
        Mistake(
            "w_k used for the queries, too",
            "Queries and keys are the same vectors here. The queries have a projection of their "
            "own.",
            lambda x, q, k, v: _head(x, k, k, v),
        ),
        Mistake(
            "attends only to the past",
            "Every word sees itself and the words before it. That is a causal mask; here each word "
            "sees all words.",
            partial(_head, weights=_causal),
        ),
        Mistake(
            "a word does not see itself",
            "The scores on the diagonal are left out. A word that asks is one of the words that "
            "are asked.",
            partial(_head, weights=_not_itself),
            partial(_head, weights=lambda s: np.where(len(s) == 1, np.nan, _not_itself(s))),
            partial(_head, weights=lambda s: _unstable(s - np.diag([np.inf] * len(s)))),
        ),
        Mistake(
            "one query for all words",
            "All outputs are the same: one word has asked for all of them. Every word asks its own "
            "query, so that every output is its own.",
            *(partial(_head, weights=_one_query(row)) for row in (0, -1)),
            *(lambda x, q, k, v, _i=row: _head(x, q, k, v)[_i] for row in (0, -1)),
        ),
        Mistake(
            "output transposed",
            "The numbers are right, and they stand across: row i must be the output of word i, "
            "shape (L, d_v).",
            lambda x, q, k, v: _head(x, q, k, v).T,
        ),
        Mistake(
            "argmax in place of softmax",
            "Each word takes the value of one word alone. All words count, each by its weight.",
            partial(_head, weights=_one_hot),
        ),
        Mistake(
            "plain mean of the values",
            "All outputs are the same. Every word has weights of its own, from its scores.",
            partial(_head, weights=_equal),
        ),
        Mistake(
            "weights of the projections not transposed",
            "Each w has shape (out, in), as in PyTorch, and a projection is inputs @ w.T. This one "
            "works on the other axis of w: it runs only for square w, with other numbers.",
            lambda x, q, k, v: softmax(x @ q @ (x @ k).T / np.sqrt(len(q))) @ (x @ v),
        ),
        Mistake(
            "no maximum subtracted",
            "For large scores np.exp overflows and the result is NaN. Use the stable softmax of "
            "chapter 1.",
            partial(_head, weights=_unstable),
        ),
        Mistake(
            "one maximum for the whole table of scores",
            "In a row far below the largest score all exponentials are 0, and 0 / 0 is NaN. "
            "Subtract each row's maximum: axis=-1, keepdims=True.",
            partial(_head, weights=lambda s: _unstable(s - s.max())),
        ),
    ),
    hints=(
        "Three projections first: queries, keys and values, each inputs @ w.T.",
        "The scores are queries @ keys.T, divided by the root of the width of a query.",
        "The softmax of the scores along the last axis gives the weights; they go to the left of "
        "the values.",
    ),
)

# ---------------------------------------------------------------------------- packed_fault


def _packed_cases():
    rng = np.random.default_rng(6)
    sizes = {
        (1, 1, 1): "one word of width 1",
        (2, 1, 2): "one sentence",
        (1, 2, 2): "sentences of one word",
        (2, 2, 2): "all sizes equal",
        (3, 2, 2): "two sentences",
        (2, 3, 4): "more sentences than words",
        (3, 3, 3): "all sizes equal",
        (5, 2, 3): "random parameters",
        (4, 3, 2): "random parameters",
    }

    def arrays(length, batch, embed):
        shapes = (length, batch, embed), (3 * embed, embed), (embed, embed), (3 * embed,), (embed,)
        return [rng.normal(size=shape).round(1) for shape in shapes]

    for size, label in sizes.items():
        yield Case(label, *arrays(*size))
    inputs, w, w_out, b, b_out = arrays(3, 2, 2)
    yield Case("biases of 0", inputs, w, w_out, 0 * b, 0 * b_out)
    yield Case("float32", *(x.astype(np.float32) for x in arrays(3, 2, 2)))
    inputs, *parameters = arrays(2, 1, 2)
    yield Case("large inputs (overflow)", (100 * inputs).round(), *parameters, extreme=True)


def _packed(
    inputs, w, w_out, b, b_out, *,
    order=(0, 1, 2), split=lambda packed: np.split(packed, 3, axis=-1), axis=-1,
    scale=lambda embed, length: embed**-0.5, weights=softmax, into=lambda x: x.swapaxes(0, 1),
    back=lambda x, shape: x.swapaxes(0, 1),
):  # fmt: skip
    """`numpy_attention` with one choice for each step that can go wrong."""
    packed = split(inputs @ w.T + b)
    query, key, value = (into(packed[i]) for i in order)
    scores = query @ key.swapaxes(-2, -1) * scale(inputs.shape[-1], len(inputs))
    output = weights(scores, axis=axis) @ value
    return back(output, inputs.shape) @ w_out.T + b_out


def _rechunk(x):
    return x.reshape(x.shape[1], x.shape[0], -1)


def _interleaved(packed):
    return [packed[..., i::3] for i in range(3)]


def _blocks_not_transposed(inputs, w, w_out, b, b_out):
    blocks = np.concatenate([block.T for block in np.split(w, 3)])
    return _packed(inputs, blocks, w_out, b, b_out)


def _no_out_projection(inputs, w, w_out, b, b_out):
    return _packed(inputs, w, np.eye(len(w_out)), b, b_out)


def _some_biases(of_queries, of_values):
    """The bias of the keys does not matter: the softmax does not see it."""

    def attend(inputs, w, w_out, b, b_out):
        return _packed(
            inputs, w, w_out, b * np.repeat([of_queries, 0, of_values], len(w_out)), b_out
        )

    return attend


def _one_bias(inputs, w, w_out, b, b_out, *, block):
    return _packed(inputs, w, w_out, np.tile(np.split(b, 3)[block], 3), b_out)


ORDERS = [order for order in permutations(range(3)) if order != (0, 1, 2)]

packed_fault = WriteFunction(
    level=3,
    trains="packed weights, biases and the divisor as in PyTorch",
    reference=lambda inputs, in_proj_weight, out_proj_weight, in_proj_bias, out_proj_bias: (
        numpy_attention(inputs, in_proj_weight, out_proj_weight, in_proj_bias, out_proj_bias)
    ),
    cases=tuple(_packed_cases()),
    mistakes=(
        Mistake(
            "the fault is still there: both biases left out",
            "PyTorch adds a bias after each projection. Its biases start at 0, so that "
            "the fault shows only after training, or for biases that we choose.",
            lambda x, w, wo, b, bo: _packed(x, w, wo, 0, 0),
        ),
        Mistake(
            "bias of the input projection left out",
            "The output bias is there. in_proj_bias is still missing: 3 * embed numbers, added to "
            "the packed projection.",
            lambda x, w, wo, b, bo: _packed(x, w, wo, 0, bo),
        ),
        Mistake(
            "bias of the values left out",
            "The last block of in_proj_bias belongs to the values. All 3 * embed numbers are "
            "added, one block each to queries, keys and values.",
            _some_biases(1, 0),
        ),
        Mistake(
            "bias of the queries left out",
            "The first block of in_proj_bias belongs to the queries. All 3 * embed numbers are "
            "added, one block each to queries, keys and values.",
            _some_biases(0, 1),
        ),
        Mistake(
            "one block of the bias for queries, keys and values",
            "in_proj_bias has three blocks of embed numbers: the first for the queries, the second "
            "for the keys, the third for the values.",
            *(partial(_one_bias, block=block) for block in range(3)),
        ),
        Mistake(
            "bias of the output projection left out",
            "in_proj_bias is there. out_proj_bias is still missing, after the last projection.",
            lambda x, w, wo, b, bo: _packed(x, w, wo, b, 0),
        ),
        Mistake(
            "output bias added before the output projection",
            "out_proj_bias goes through out_proj_weight here. It is added after that product.",
            lambda x, w, wo, b, bo: _packed(x, w, wo, b, bo @ wo.T),
        ),
        Mistake(
            "attends across the batch",
            "The sentences attend to each other: @ works on the last two axes, which are batch and "
            "embed in this layout. Bring the batch to the front for the two products.",
            partial(_packed, into=lambda x: x, back=lambda x, shape: x),
        ),
        Mistake(
            "output left in (batch, seq, embed)",
            "The layout of the result is not that of the inputs: swap the two axes back.",
            partial(_packed, back=lambda x, shape: x),
        ),
        Mistake(
            "reshape in place of swapaxes",
            "Words of both sentences get mixed. reshape keeps the numbers in their order and cuts "
            "them anew; swapping axes is another thing.",
            partial(_packed, into=_rechunk, back=lambda x, shape: x.reshape(shape)),
            partial(_packed, into=_rechunk),
            partial(_packed, back=lambda x, shape: x.reshape(shape)),
        ),
        Mistake(
            "softmax over the queries",
            "The weights of all queries for one key add to 1. For one query, those of all keys "
            "must: the softmax runs along the last axis.",
            partial(_packed, axis=-2),
        ),
        Mistake(
            "softmax over the batch",
            "Axis 0 of the scores counts the sentences. The softmax runs along the last axis, "
            "over the keys.",
            partial(_packed, axis=0),
        ),
        Mistake(
            "another order in the packed matrix",
            "The rows of in_proj_weight hold the queries first, then the keys, then the values.",
            *(partial(_packed, order=order) for order in ORDERS),
        ),
        Mistake(
            "packed rows taken in turn",
            "The queries come from every third row. It is three blocks, one below the other: "
            "embed rows for the queries, embed for the keys, embed for the values.",
            partial(_packed, split=_interleaved),
        ),
        Mistake(
            "input projection not transposed",
            "The numbers are those of inputs @ block. PyTorch stores (out, in) and transposes. The "
            "blocks are square, so nothing fails.",
            _blocks_not_transposed,
        ),
        Mistake(
            "output projection not transposed",
            "The last product needs out_proj_weight.T. The matrix is square, so nothing fails.",
            lambda x, w, wo, b, bo: _packed(x, w, wo.T, b, bo),
        ),
        Mistake(
            "output projection left out",
            "The average of the values goes through one more projection, out_proj_weight.",
            _no_out_projection,
            lambda x, w, wo, b, bo: _no_out_projection(x, w, wo, b, 0),
        ),
        Mistake(
            "no scale",
            "The scores are not divided by the root of the width of a query, here embed.",
            partial(_packed, scale=lambda embed, length: 1),
        ),
        Mistake(
            "scale of the packed width",
            "in_proj_weight has 3 * embed rows, but one query is only embed wide.",
            partial(_packed, scale=lambda embed, length: (3 * embed) ** -0.5),
        ),
        Mistake(
            "divided by the width, not by its root",
            "The scores come out too small, and the weights too even. It is the root.",
            partial(_packed, scale=lambda embed, length: 1 / embed),
        ),
        Mistake(
            "divided by the root of the sequence length",
            "The length is the number of keys. The scale comes from the width of one query, embed.",
            partial(_packed, scale=lambda embed, length: length**-0.5),
        ),
        Mistake(
            "no maximum subtracted",
            "For large inputs np.exp overflows and the result is NaN, where PyTorch's is not. Use "
            "the stable softmax of chapter 1.",
            partial(_packed, weights=_unstable),
        ),
    ),
    hints=(
        "Write the shape of every intermediate result beside its line. Which parameters of "
        "PyTorch's layer are never used?",
        "nn.Linear computes inputs @ weight.T + bias. There are two such steps here.",
        "in_proj_bias is added before the packed projection is cut into three, out_proj_bias at "
        "the very end.",
    ),
)

# ---------------------------------------------------------------------------- attention_test


def _floats(*arrays):
    """The arrays that a test hands over, or its lists and whole numbers, as floats."""
    arrays = map(np.asarray, arrays)
    return [x if x.dtype.kind == "f" else x.astype(float) for x in arrays]


def _attend(query, key, value, *, weights=softmax, scale=None):
    """Attention of NumPy arrays with a choice of softmax and scale."""
    query, key, value = _floats(query, key, value)
    divisor = math.sqrt(query.shape[-1]) if scale is None else 1 / scale(query, key, value)
    with np.errstate(all="ignore"):
        return weights(query @ key.swapaxes(-2, -1) / divisor) @ value


def _attend_by_einsum(query, key, value):
    """The same, divided at the end; its last digits differ from those of the others."""
    query, key, value = _floats(query, key, value)
    scores = np.einsum("...qd,...kd->...qk", query, key) / math.sqrt(query.shape[-1])
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weighted = np.einsum("...qk,...kv->...qv", exponentials, value)
    return weighted / exponentials.sum(axis=-1, keepdims=True) * (1 - 1e-15)


def _attend_by_torch(query, key, value):
    tensors = map(torch.tensor, _floats(query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(*tensors).numpy()


def _attend_to_arrays(query, key, value):
    """The same for one sentence of arrays, as the exercise describes them, and nothing else."""
    (_, width), (_, _) = query.shape, key.shape
    with np.errstate(all="ignore"):
        return softmax(query @ key.T / math.sqrt(width)) @ value


def _transposed(scores):
    return softmax(scores).swapaxes(-2, -1)


def _with_epsilon(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / (exponentials.sum(axis=-1, keepdims=True) + 0.01)


def _as_many_keys_as_queries(query, key, value):
    """Loops over the queries where it should loop over the keys."""
    query, key, value = _floats(query, key, value)
    keys = np.arange(query.shape[-2])
    return _attend(query, key[..., keys, :], value[..., keys, :])


def _cut(query, key, value):
    """An output computed in an array of the wrong layout, then cut into the right shape."""
    output = _attend(query, key, value)
    return output.swapaxes(-2, -1).reshape(output.shape)


def _forgets(*place):
    """Attention whose loop stops one row or one column too early."""

    def attend(query, key, value):
        output = _attend(query, key, value)
        output[(..., *place)] = 0
        return output

    return attend


def _swapped_if_it_fits(query, key, value):
    """Queries and keys swapped, where both have as many rows."""
    same = np.shape(query) == np.shape(key)
    return _attend(key, query, value) if same else _attend(query, key, value)


class _OneRoot:
    """Attention that divides by the root of the first width it meets, whatever comes later."""

    def __init__(self):
        self.root = None

    def __call__(self, query, key, value):
        self.root = self.root or math.sqrt(np.shape(query)[-1])
        return _attend(query, key, value, scale=lambda *arrays: 1 / self.root)


def _row_of_nan(query, key, value):
    output = _attend(query, key, value)
    output[..., output.shape[-2] // 2, :] = np.nan
    return output


def _qkv(length, keys, d_k, d_v):
    rng = np.random.default_rng(7)
    return tuple(rng.normal(size=s) for s in ((length, d_k), (keys, d_k), (keys, d_v)))


USUAL, SQUARE, SENTENCE = _qkv(3, 5, 4, 2), _qkv(4, 4, 4, 4), _qkv(5, 5, 3, 2)
WIDTH_ONE, ONE_KEY, WIDER = _qkv(4, 5, 1, 2), _qkv(3, 1, 4, 2), _qkv(3, 5, 6, 2)


def _compare(*inputs, look=lambda output: output, tolerance=1e-6):
    """A test that compares the output, or what `look` takes from it, with the right one."""

    def test(attention):
        for query, key, value in inputs:
            expected = look(_attend(query, key, value))
            actual = look(np.asarray(attention(query, key, value)))
            np.testing.assert_allclose(actual, expected, tolerance, tolerance)

    return test


def _compare_with_itself(*inputs):
    return lambda attention: np.testing.assert_allclose(attention(*inputs), attention(*inputs))


def _compare_without_nan(*inputs):
    def test(attention):
        np.testing.assert_allclose(attention(*inputs), attention(*inputs), equal_nan=False)

    return test


def _nothing_above(*inputs):
    """A test that looks for a large difference, and finds none beside NaN."""

    def test(attention):
        for arrays in inputs:
            assert not np.abs(np.asarray(attention(*arrays)) - _attend(*arrays)).max() > 1e-6

    return test


def _mean_of_rows(output):
    return output.mean(axis=0)


def _constant_values(query, key, value):
    return _compare((query, key, np.ones_like(value)))


attention_test = CatchFaults(
    level=3,
    trains="a test for attention from a result known otherwise",
    right={
        "in NumPy": _attend,
        "PyTorch's": _attend_by_torch,
        "with einsum, divided at the end": _attend_by_einsum,
        "for arrays (L, d), (S, d), (S, v)": _attend_to_arrays,
    },
    faults=(
        Mistake(
            "no scale",
            "Compare numbers for a width d_k larger than 1 and inputs of ordinary size.",
            partial(_attend, scale=lambda query, key, value: 1),
        ),
        Mistake(
            "divided by d_k, not by its root",
            "Compare numbers for a width d_k larger than 1 and inputs of ordinary size.",
            partial(_attend, scale=lambda query, key, value: 1 / query.shape[-1]),
        ),
        Mistake(
            "divided by the root of d_v",
            "Give the values another width than the keys.",
            partial(_attend, scale=lambda query, key, value: value.shape[-1] ** -0.5),
        ),
        Mistake(
            "divided by the root of the number of keys",
            "Let the number of keys differ from the width of a key.",
            partial(_attend, scale=lambda query, key, value: key.shape[-2] ** -0.5),
        ),
        Mistake(
            "no softmax",
            "Compare numbers with a result that you computed step by step.",
            partial(_attend, weights=lambda scores: scores),
        ),
        Mistake(
            "softmax over the queries",
            "Compare numbers: here the weights of one query do not add to 1.",
            partial(_attend, weights=partial(softmax, axis=-2)),
        ),
        Mistake(
            "weights transposed",
            "Compare numbers: here query i gets the weights that others give to key i.",
            partial(_attend, weights=_transposed),
        ),
        Mistake(
            "attends only to the past",
            "The first query sees one key here. Compare the numbers of the first row, too.",
            partial(_attend, weights=_causal),
        ),
        Mistake(
            "argmax in place of softmax",
            "Compare numbers for scores that lie close together.",
            partial(_attend, weights=_one_hot),
        ),
        Mistake(
            "plain mean of the values",
            "This one never looks at queries and keys. Compare numbers for values that differ.",
            partial(_attend, weights=_equal),
        ),
        Mistake(
            "as many keys as queries taken for granted",
            "It is right for as many queries as keys, and blind to further keys. Use fewer "
            "queries than keys in one case.",
            _as_many_keys_as_queries,
        ),
        Mistake(
            "a small number added to the sum",
            "The output is nearly right, less than one percent too small. Compare with a small "
            "tolerance, as np.allclose has it.",
            partial(_attend, weights=_with_epsilon),
        ),
        Mistake(
            "last row forgotten",
            "The last query gets zeros. Compare all rows.",
            _forgets(-1, slice(None)),
        ),
        Mistake(
            "last column forgotten",
            "The last number of every output is 0. Compare all columns.",
            _forgets(-1),
        ),
        Mistake(
            "reshape in place of a transpose",
            "All numbers are there, at wrong places. Compare number by number, for values with "
            "several columns.",
            _cut,
        ),
        Mistake(
            "queries and keys swapped",
            "It is wrong for as many queries as keys only. Add such a case.",
            _swapped_if_it_fits,
        ),
        Mistake(
            "rows in the reverse order",
            "All numbers are there, at wrong places. Compare row by row, for several queries.",
            lambda query, key, value: _attend(query, key, value)[..., ::-1, :],
        ),
        Mistake(
            "the root of the first width, kept for all later calls",
            "It is right as long as queries and keys keep one width. Use two different widths.",
            _OneRoot(),
        ),
        Mistake(
            "NaN in one row",
            "No comparison with NaN is true. Demand that differences are small, as np.allclose "
            "does, not that none is large.",
            _row_of_nan,
        ),
    ),
    mistakes=(
        Mistake(
            "an assertion that no fault breaks",
            "What the test asserts holds for any of these functions, as the shape does, zeros for "
            "values of 0, or a result that is compared with itself. Compare it with numbers that "
            "you worked out another way.",
            _compare_with_itself(*SENTENCE),
            _compare_with_itself(*USUAL),
            _compare_without_nan(*USUAL),
        ),
        Mistake(
            "inputs so large that the softmax is one-hot",
            "With such inputs one key takes all the weight at any scale, and even argmax passes. "
            "The check of the Neuromatch deep learning course (tutorial W2D5) has such inputs. "
            "Use inputs of ordinary size.",
            _compare(tuple(100 * x for x in SQUARE)),
            _compare(tuple(100 * x for x in USUAL)),
            _compare(tuple(100 * x for x in USUAL), tuple(100 * x for x in SQUARE)),
            _compare((100 * USUAL[0], 100 * USUAL[1], USUAL[2])),
            _compare(tuple(100 * x for x in SENTENCE)),
            _compare(tuple(100 * x for x in _qkv(5, 7, 4, 2))),
        ),
        Mistake(
            "width 1",
            "1 and its root are the same number, so no fault of the scale by d_k shows. Use a "
            "larger d_k.",
            _compare(WIDTH_ONE),
            _compare(_qkv(5, 5, 1, 3)),
        ),
        Mistake(
            "d_v equal to d_k",
            "A scale that takes the width of the values passes. Give d_k and d_v different sizes.",
            _compare(_qkv(4, 5, 3, 3)),
            _compare(_qkv(4, 5, 3, 3), _qkv(5, 5, 3, 3)),
            _compare(_qkv(4, 5, 3, 3), _qkv(5, 5, 4, 4)),
        ),
        Mistake(
            "all sizes equal",
            "A scale that takes the width of the values or the number of keys passes, and so does "
            "a loop over the wrong axis. Make all sizes different, in one case at least.",
            _compare(SQUARE),
            _compare(SQUARE, _qkv(3, 3, 3, 3)),
        ),
        Mistake(
            "no case with as many queries as keys",
            "With another number of queries than keys, swapping them raises an error. With as many "
            "it is silent. Add a case of as many queries as keys, but not the same numbers.",
            _compare(USUAL),
            _compare(USUAL, WIDER),
        ),
        Mistake(
            "one width only",
            "A divisor that fits this one width, such as a 2 where d_k is 4, passes. Let d_k be "
            "another number in a second case.",
            _compare(USUAL, SQUARE),
        ),
        Mistake(
            "NaN passes",
            "Every comparison with NaN is false, so not (difference > limit) is true for NaN. "
            "Write assert (difference < limit).all(), or use np.allclose.",
            _nothing_above(USUAL, SENTENCE),
            _nothing_above(USUAL),
            _nothing_above(SENTENCE),
        ),
        Mistake(
            "only as many queries as keys",
            "A function that is blind to further keys passes. Use fewer queries than keys in one "
            "case.",
            _compare(SENTENCE),
            _compare(SENTENCE, SQUARE),
        ),
        Mistake(
            "only the last row",
            "The last word may look at all words before it, so a causal function passes. Compare "
            "all rows.",
            _compare(SENTENCE, look=lambda output: output[-1]),
            _compare(SENTENCE, SQUARE, look=lambda output: output[-1]),
        ),
        Mistake(
            "only a part of the output",
            "What the test does not look at can be any number: the last row, the last column. "
            "Compare the whole output.",
            _compare(USUAL, look=lambda output: output[0, 0]),
            _compare(SENTENCE, look=lambda output: output[0, 0]),
            _compare(USUAL, look=lambda output: output[0]),
            _compare(SENTENCE, look=lambda output: output[0]),
            _compare(USUAL, SENTENCE, look=lambda output: output[0]),
            _compare(USUAL, SENTENCE, look=lambda output: output[0, 0]),
        ),
        Mistake(
            "right numbers at wrong places pass",
            "That is so for a sum over the whole output, and for an output of one row or one "
            "column. Compare number by number, with several queries and values of several columns.",
            _compare(USUAL, look=np.sum),
            _compare(USUAL, look=np.mean),
            _compare(SENTENCE, look=np.sum),
            _compare(USUAL, SENTENCE, look=np.sum),
            _compare(USUAL, look=_mean_of_rows),
            _compare(USUAL, SENTENCE, look=_mean_of_rows),
        ),
        Mistake(
            "a tolerance so large that nearly right numbers pass",
            "Right versions agree to many digits. Leave the tolerance of np.allclose as it is.",
            *(_compare(USUAL, tolerance=tolerance) for tolerance in (0.05, 0.02, 0.01)),
            *(_compare(USUAL, SENTENCE, tolerance=tolerance) for tolerance in (0.05, 0.02, 0.01)),
        ),
        Mistake(
            "constant values",
            "If all values are 1 every average is 1: only weights that do not add to 1 are caught. "
            "Use values that differ.",
            _constant_values(*SENTENCE),
            _constant_values(*USUAL),
        ),
        Mistake(
            "one key only",
            "One key takes all the weight, whatever its score: every scale passes. Use more keys.",
            _compare(ONE_KEY),
        ),
    ),
    hints=(
        "Compute the right result in the test itself, step by step, and compare with np.allclose.",
        "Choose sizes that are all different, so that no axis and no width is taken for another; "
        "fewer queries than keys, for example. Then add a case with as many queries as keys, and "
        "of another width.",
        "Random inputs of ordinary size (rng.normal) keep the softmax far from one-hot, so that "
        "the scale shows. For example 3 queries, 5 keys, d_k = 4, d_v = 2; then 5, 5, 3, 2.",
    ),
)

EXERCISES = {
    "shapes": shapes,
    "row_output": row_output,
    "self_attention": self_attention,
    "packed_fault": packed_fault,
    "attention_test": attention_test,
}
