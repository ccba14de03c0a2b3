"""Answers to the exercises of chapter 16: right ones, listed mistakes written anew, new mistakes.

Every answer is a test. Expected numbers come from loops in NumPy.
"""

import math

import numpy as np
import torch
from wrong_answers.lookup import typed


def numbers(x):
    return np.array(x.detach().double())


close = torch.testing.assert_close  # the chapter's name for it


def assert_near(got, want, tolerance=1e-4):
    assert np.shape(got) == np.shape(want)
    assert np.allclose(numbers(got), want, atol=tolerance, rtol=tolerance)


def draw(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape), dtype=torch.float32)


def loop_softmax(scores):
    e = [math.exp(s - max(scores)) for s in scores]
    return np.array(e) / sum(e)


def loop_attention(query, key, value, root=True):
    """Query by query, for arrays of one head."""
    query, key, value = map(numbers, (query, key, value))
    scale = 1 / math.sqrt(query.shape[1]) if root else 1.0
    rows = [loop_softmax([scale * (q @ k) for k in key]) for q in query]
    return np.array(rows) @ value


def both(*tests):
    def test(function):
        for one in tests:
            one(function)

    return test


def unlisted(good, call):
    """Bad tests of every kind, for any exercise: `good` is a right test, `call` runs it once."""

    def no_assert(function):
        call(function)

    def returned(function):
        return call(function) is None

    def constant(function):
        call(function)
        assert 1

    def swallowed(function):
        try:
            good(function)
        except AssertionError:
            print("wrong")

    def another_error(function):
        try:
            good(function)
        except AssertionError as error:
            raise ValueError("wrong") from error

    def turned(function):
        call(function)
        try:
            good(function)
        except AssertionError:
            return
        raise AssertionError("not wrong")

    def never_called(function):
        good(lambda *arguments: None) if 1 > 2 else None
        assert 1 + 1 == 2

    def too_many_arguments(function):
        good(function)
        function(*range(9))

    def stops(function):
        call(function)
        assert undefined_name == 0

    def always_false(function):
        call(function)
        assert 1 == 2

    def nothing_is_right(function):
        assert call(function) is None

    text = "def pair(function):\n    assert (call(function) is None, 'wrong')"
    pair = typed(text, {"call": call})["pair"]
    return [
        no_assert, returned, constant, swallowed, another_error, turned, never_called, stops,
        too_many_arguments, always_false, nothing_is_right, pair, "correct", 0, [good],
    ]  # fmt: skip


# ---------------------------------------------------------------------------- future_test

TOKENS = torch.tensor([7, 2, 0, 6, 1, 8])


def with_token(place, ids=TOKENS):
    changed = ids.clone()
    changed[place] = 9
    return changed


def outputs_before(model, place, ids=TOKENS, first=0):
    before, after = model(ids), model(with_token(place, ids))
    assert_near(after[first:place], numbers(before)[first:place])


def changes(model, place, output, ids=TOKENS):
    gap = (model(with_token(place, ids)) - model(ids))[output].abs().max()
    assert gap > 1e-4


def every_place(model):
    for place in range(1, 6):
        outputs_before(model, place)


def cut_off(model):
    for end in range(1, 7):
        assert_near(model(TOKENS[:end]), numbers(model(TOKENS))[:end])


def first_reaches_last(model):
    changes(model, 0, 5)


def all_reach_last(model):
    for place in range(6):
        changes(model, place, 5)


def shape_of_logits(model):
    assert tuple(model(TOKENS).shape) == (6, 11)
    assert not model(TOKENS).isnan().any()


def everything_behind_moves(model):
    for place in range(6):
        for output in range(place, 6):
            changes(model, place, output)


def picture(model):
    seen = np.zeros((6, 6))
    for place in range(6):
        gap = numbers(model(with_token(place)) - model(TOKENS))
        seen[:, place] = np.abs(gap).max(axis=1) > 1e-4
    assert np.array_equal(seen, np.tril(np.ones((6, 6))))


def last_and_first(model):
    outputs_before(model, 5)
    changes(model, 0, 5)


def page_once(model):
    ids = torch.tensor([3, 1, 4, 1, 5, 9])
    before = model(ids)
    for place in range(6):
        other = ids.clone()
        other[place] = 10
        after = model(other)
        close(after[:place], before[:place])
        assert not torch.allclose(after[-1], before[-1], atol=1e-4)


FUTURE_RIGHT = [
    both(every_place, everything_behind_moves),
    both(cut_off, all_reach_last),
    picture,
]
FUTURE = {
    "an assertion that no fault breaks": [shape_of_logits],
    "the past is never looked at": [every_place, cut_off],
    "only the first output": [
        lambda model: assert_near(model(with_token(5))[0], numbers(model(TOKENS))[0])
    ],
    "the past in place of the future": [first_reaches_last],
    "only two tokens": [
        both(
            lambda model: outputs_before(model, 1, TOKENS[:2]),
            lambda model: changes(model, 0, 1, TOKENS[:2]),
        )
    ],
    "only neighbours for the past": [
        both(cut_off, *[lambda m, n=n: changes(m, n, n + 1) for n in range(5)])
    ],
    "only the last and the first token changed": [last_and_first],
    "of the past, only what the first token changes": [
        both(cut_off, first_reaches_last),
        both(every_place, *[lambda m, n=n: changes(m, 0, n) for n in range(6)]),
    ],
    "of the past, only what the last output sees": [page_once],
}


def own_output_too(model):
    before, after = model(TOKENS), model(with_token(3))
    assert_near(after[:4], numbers(before)[:4])


def past_may_not_matter(model):
    assert_near(model(with_token(0))[1:], numbers(model(TOKENS))[1:])


FUTURE_NEW = [
    *unlisted(FUTURE_RIGHT[0], lambda model: model(TOKENS)),
    own_output_too,
    past_may_not_matter,
]

# ---------------------------------------------------------------------------- axis_test


def loop_weights(query, key):
    (b, h, length, d), s = query.shape, key.shape[2]
    result = np.zeros((b, h, length, s))
    for n, m, i in np.ndindex(b, h, length):
        result[n, m, i] = loop_softmax([float(query[n, m, i] @ k) / d**0.5 for k in key[n, m]])
    return result


def weights_of(b, h, length, s, d=5):
    def test(weights):
        query, key = draw(b, h, length, d, seed=1), draw(b, h, s, d, seed=2)
        assert_near(weights(query, key), loop_weights(query, key))

    return test


def in_float64(weights):
    query, key = draw(3, 2, 5, 4).double(), draw(3, 2, 7, 4, seed=1).double()
    assert_near(weights(query, key), loop_weights(query, key), 1e-9)


def sums(weights):
    total = numbers(weights(draw(2, 3, 5, 4), draw(2, 3, 7, 4, seed=1))).sum(axis=3)
    assert np.allclose(total, 1, atol=1e-5)


def equal_keys(weights):
    assert_near(weights(draw(2, 3, 5, 4), torch.ones(2, 3, 7, 4)), np.full((2, 3, 5, 7), 1 / 7))


def mean_of_cube(weights):
    assert abs(weights(draw(4, 4, 4, 3), draw(4, 4, 4, 3, seed=1)).mean() - 0.25) < 1e-5


def between_0_and_1(weights):
    result = weights(draw(2, 3, 5, 4), draw(2, 3, 7, 4, seed=1))
    assert 0 <= result.min() <= result.max() <= 1


def large_scores(weights):
    query, key = 12 * draw(2, 3, 5, 4), 4 * draw(2, 3, 7, 4, seed=1)
    assert (query @ key.mT).max() > 200
    assert_near(weights(query, key), loop_weights(query, key))


def sums_and_winner(weights):
    query, key = draw(2, 3, 5, 4), draw(2, 3, 7, 4, seed=1)
    result = weights(query, key)
    close(result.sum(-1), torch.ones(2, 3, 5))
    assert (result.argmax(-1) == (query @ key.mT).argmax(-1)).all()


def first_row(weights):
    query, key = draw(2, 3, 5, 4), draw(2, 3, 7, 4, seed=1)
    assert_near(weights(query, key)[0, 0, 0], loop_weights(query, key)[0, 0, 0])


AXIS_RIGHT = [weights_of(2, 3, 5, 7), in_float64, large_scores]
AXIS = {
    "an assertion that no fault breaks": [between_0_and_1],
    "only the sums of the rows, or equal keys": [sums, equal_keys],
    "only the sum of everything, with equal sizes": [mean_of_cube],
    "only one head": [weights_of(3, 1, 2, 5)],
    "only one query": [weights_of(3, 2, 1, 5)],
    "one query and one head": [weights_of(3, 1, 1, 5)],
    "only one row": [first_row],
    "the sums, and which key wins": [sums_and_winner],
}


def columns_sum_to_one(weights):
    assert np.allclose(numbers(weights(draw(2, 3, 5, 4), draw(2, 3, 7, 4))).sum(axis=2), 1)


def unscaled(weights):
    query, key = draw(2, 3, 5, 4), draw(2, 3, 7, 4, seed=1)
    assert_near(weights(query, key), numbers((query @ key.mT).softmax(-1)))


AXIS_NEW = [
    *unlisted(AXIS_RIGHT[0], lambda weights: weights(draw(2, 3, 5, 4), draw(2, 3, 7, 4))),
    columns_sum_to_one,
    unscaled,
]

# ---------------------------------------------------------------------------- heads_test


def heads_of(b, length, heads, d, part=lambda got: slice(None)):
    def test(split):
        x = torch.arange(float(b * length * heads * d)).reshape(b, length, heads * d)
        got = split(x, heads)
        want = np.zeros((b, heads, length, d))
        for n, h, i, j in np.ndindex(want.shape):
            want[n, h, i, j] = x[n, i, h * d + j]
        assert np.shape(got) == want.shape
        assert_near(got[part(got)], want[part(want)])

    return test


def each_head_is_a_slice(split):
    x = draw(3, 4, 10)
    for h in range(5):
        assert torch.equal(split(x, 5)[:, h], x[:, :, 2 * h : 2 * h + 2])


def no_number_lost(split):
    x = draw(2, 5, 12)
    assert sorted(split(x, 3).ravel().tolist()) == sorted(x.ravel().tolist())


def four_axes(split):
    assert list(split(draw(2, 5, 12), 3).size()) == [2, 3, 5, 4]


def first_number(split):
    x = draw(2, 5, 12)
    assert split(x, 3)[0, 0, 0, 0] == x[0, 0, 0]


def part_of_heads(part):
    def test(split):
        x = draw(2, 5, 12)
        close(split(x, 3)[part], x.unflatten(-1, (3, 4)).transpose(1, 2)[part])

    return test


def merged_back(split):
    x = draw(2, 5, 12)
    close(split(x, 3).transpose(1, 2).flatten(2), x)


def no_gap_in_memory(split):
    merged_back(split)
    assert split(draw(2, 5, 12), 3).is_contiguous()


def no_copy(split):
    x = draw(2, 5, 12)
    assert split(x, 3).data_ptr() == x.data_ptr()


HEADS_RIGHT = [heads_of(2, 5, 3, 4), each_head_is_a_slice, merged_back]
HEADS = {
    "an assertion that no fault breaks": [no_number_lost],
    "only the shape, or equal numbers": [four_axes],
    "only one sample": [heads_of(1, 7, 2, 5)],
    "only one head": [heads_of(3, 7, 1, 5)],
    "only one token": [heads_of(3, 1, 2, 5)],
    "only the first number": [first_number],
    "heads of width 1": [heads_of(3, 7, 4, 1)],
    "only the last sample": [part_of_heads(1), part_of_heads((-1, slice(1, None)))],
    "only the first sample": [part_of_heads(0)],
}


def wants_a_reshape(split):
    x = draw(2, 5, 12)
    assert torch.equal(split(x, 3), x.reshape(2, 3, 5, 4))


def wants_no_transpose(split):
    assert split(draw(2, 5, 12), 3).shape == (2, 5, 3, 4)


HEADS_NEW = [
    *unlisted(HEADS_RIGHT[0], lambda split: split(draw(2, 5, 12), 3)),
    wants_a_reshape,
    wants_no_transpose,
    no_gap_in_memory,
    no_copy,
]

# ---------------------------------------------------------------------------- samples_test


def samples(x, which=slice(None)):
    def test(layer):
        want = np.array([loop_attention(sample, sample, sample) for sample in x])
        assert_near(layer(x)[which], want[which])

    return test


def alone_is_together(layer):
    x = draw(5, 3, 4)
    for n in range(5):
        assert_near(layer(x[n : n + 1])[0], numbers(layer(x))[n])


def neighbours_replaced(layer):
    x = draw(5, 3, 4)
    for n in range(5):
        changed = draw(5, 3, 4, seed=1)
        changed[n] = x[n]
        assert_near(layer(changed)[n], numbers(layer(x))[n])


def tokens_mix(layer):
    x = draw(5, 3, 4)
    changed = x.clone()
    changed[:, 0] += 1
    assert (layer(changed) - layer(x))[:, 1:].abs().amin(0).max() > 1e-4


def another_than_the_input(layer):
    alone_is_together(layer)
    assert not torch.allclose(layer(draw(5, 3, 4)), draw(5, 3, 4))


def mean_of_all(layer):
    x = draw(4, 5, 3)
    want = [loop_attention(sample, sample, sample) for sample in x]
    assert_near(layer(x).mean((0, 1)), np.mean(want, axis=(0, 1)))


def fused_one_by_one(layer):
    x = draw(4, 5, 3)
    fused = torch.nn.functional.scaled_dot_product_attention
    for n, got in enumerate(layer(x)):
        close(got, fused(x[n : n + 1], x[n : n + 1], x[n : n + 1])[0])


def zeros_stay(layer):
    x = torch.zeros(4, 5, 3)
    close(layer(x), x)


SAMPLES_RIGHT = [samples(draw(4, 5, 3)), fused_one_by_one]
SAMPLES = {
    "an assertion that no fault breaks": [
        lambda layer: assert_near(torch.tensor(layer(draw(4, 5, 3)).shape), np.array([4, 5, 3])),
        zeros_stay,
    ],
    "samples that cannot be told apart": [
        samples(draw(1, 6, 3)),
        samples(torch.cat([draw(1, 6, 3)] * 4)),
    ],
    "nothing to mix": [alone_is_together, neighbours_replaced],
    "only one token": [samples(draw(5, 1, 3))],
    "samples apart, and another result than the input": [another_than_the_input],
    "samples apart and tokens mixed, and no numbers": [
        both(alone_is_together, tokens_mix),
        both(neighbours_replaced, tokens_mix),
    ],
    "only a mean over all samples": [mean_of_all],
    "only the last sample": [samples(draw(4, 5, 3), 3)],
    "only the first two samples": [samples(draw(5, 4, 3), slice(2)), samples(draw(2, 4, 3))],
    "the first sample alone, and nothing to mix": [
        lambda layer: assert_near(layer(draw(6, 5, 4))[:1], numbers(layer(draw(6, 5, 4)[:1]))),
    ],
    "only one neighbour replaced": [
        lambda layer: assert_near(
            layer(torch.cat([draw(1, 5, 4), draw(1, 5, 4, seed=3), draw(2, 5, 4, seed=4)]))[0],
            numbers(
                layer(torch.cat([draw(1, 5, 4), draw(1, 5, 4, seed=5), draw(2, 5, 4, seed=4)]))[0]
            ),
        ),
    ],
}


def wants_sequence_first(layer):
    x = draw(4, 5, 3)
    samples(x.transpose(0, 1))(lambda t: layer(t.transpose(0, 1)))


SAMPLES_NEW = [
    *unlisted(SAMPLES_RIGHT[0], lambda layer: layer(draw(4, 5, 3))),
    wants_sequence_first,
    lambda layer: assert_near(layer(draw(4, 5, 3)), numbers(draw(4, 5, 3))),
]

# ---------------------------------------------------------------------------- blocked_test

ALLOWED = torch.tensor([[1, 1, 0, 0, 1], [0, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 1, 0]]) == 1


def blocked(*changes, allowed=ALLOWED):
    def test(weights):
        for high, low in changes:
            scores = draw(4, 5) + high * ~allowed + low * allowed
            want = np.zeros((4, 5))
            for i, row in enumerate(allowed):
                want[i, row] = loop_softmax(numbers(scores[i, row]).tolist())
            assert_near(weights(scores, allowed), want)

    return test


def no_trace_of_blocked(weights):
    for shift, low in [(1.0, 0.0), (-5.0, 0.0), (400.0, 0.0), (0.0, -5e4)]:
        scores = draw(4, 5) + low * ALLOWED
        assert_near(
            weights(scores + shift * ~ALLOWED, ALLOWED),
            numbers(scores.masked_fill(~ALLOWED, -math.inf).softmax(-1)),
        )


def zeros_and_sums(*changes):
    def test(weights):
        for high, low in changes:
            result = weights(draw(4, 5) + high * ~ALLOWED + low * ALLOWED, ALLOWED)
            close(result.sum(-1), torch.ones(4))
            assert (result[~ALLOWED] == 0).all()

    return test


def one_low_score_in_a_row(weights):
    blocked((0, 0), (300, 0))(weights)
    scores = draw(4, 5)
    scores[:, 2] = torch.where(ALLOWED[:, 2], -3e4, scores[:, 2])
    assert_near(weights(scores, ALLOWED), numbers(_exact(scores)))


def _exact(scores):
    return scores.masked_fill(~ALLOWED, -math.inf).softmax(-1)


BLOCKED_RIGHT = [blocked((0, 0), (500, 0), (0, -4e4)), no_trace_of_blocked]
BLOCKED = {
    "an assertion that no fault breaks": [
        lambda weights: assert_near(weights(draw(4, 5), ALLOWED) >= 0, np.ones((4, 5))),
    ],
    "only that blocked weights are 0": [
        lambda weights: assert_near(
            weights(draw(4, 5), ALLOWED) * ~ALLOWED, np.zeros((4, 5)), 1e-12
        ),
    ],
    "only that rows sum to 1": [
        lambda weights: assert_near(weights(draw(4, 5), ALLOWED).sum(dim=1), np.ones(4)),
    ],
    "a mask that blocks nothing": [blocked((0, 0), allowed=ALLOWED | ~ALLOWED)],
    "only scores near 0": [blocked((0, 0)), blocked((3, 0), (-3, 0))],
    "no row of very low scores": [blocked((0, 0), (250, 0)), one_low_score_in_a_row],
    "that blocked weights are 0, and sums": [
        zeros_and_sums((0, -3e4)),
        zeros_and_sums((300, -3e4), (0, -3e4)),
    ],
    "only that a hidden score does not matter": [
        lambda weights: assert_near(
            weights(draw(4, 5) + 700 * ~ALLOWED, ALLOWED), numbers(weights(draw(4, 5), ALLOWED))
        ),
    ],
}
BLOCKED_NEW = [
    *unlisted(BLOCKED_RIGHT[0], lambda weights: weights(draw(4, 5), ALLOWED)),
    lambda weights: blocked((0, 0))(lambda s, m: weights(s, ~m)),
    lambda weights: assert_near(
        weights(draw(4, 5), ALLOWED), numbers(draw(4, 5).softmax(-1) * ALLOWED)
    ),
]

# ---------------------------------------------------------------------------- divisor_test


def divided(h, length, s, d, v):
    def test(attention):
        query, key, value = 2 * draw(h, length, d), 2 * draw(h, s, d, seed=1), draw(h, s, v, seed=2)
        want = [loop_attention(*head) for head in zip(query, key, value, strict=True)]
        assert_near(attention(query, key, value), np.array(want))

    return test


def spread_of_scores(attention):
    """The logarithms of the weights give the scores back, up to a number for each row."""
    query, key, value = draw(3, 5, 8), draw(3, 4, 8, seed=1), torch.eye(4).expand(3, 4, 4)
    logs = numbers(attention(query, key, value).log())
    scores = numbers(query @ key.mT) / math.sqrt(8)
    assert_near(torch.tensor(logs - logs[..., :1]), scores - scores[..., :1], 1e-3)


def a_part(look):
    def test(attention):
        q, k, v = draw(3, 5, 4), draw(3, 7, 4, seed=1), draw(3, 7, 2, seed=2)
        close(look(attention(q, k, v)), look((q @ k.mT / 4**0.5).softmax(dim=-1) @ v))

    return test


def a_label_wins(attention):
    query, key = draw(3, 5, 4), draw(3, 7, 4, seed=1)
    labels = torch.eye(7).expand(3, 7, 7)
    winners = attention(query, key, labels).argmax(-1)
    assert torch.equal(winners, (query @ key.mT).argmax(-1))


def heads_alike(attention):
    key = torch.tensor([[1.0] * 4, [0.0] * 4]).expand(3, 2, 4)
    value = torch.tensor([[1.0], [0.0]]).expand(3, 2, 1)
    want = 1 / (1 + math.exp(-2))
    assert_near(attention(torch.ones(3, 1, 4), key, value), np.full((3, 1, 1), want))


def ones_stay(attention):
    q, v = torch.zeros(2, 6, 6), torch.ones(2, 6, 3)
    close(attention(q, q, v), v)


DIVISOR_RIGHT = [divided(2, 5, 7, 3, 11), spread_of_scores]
DIVISOR = {
    "an assertion that no fault breaks": [ones_stay],
    "only which key wins, or one key": [
        lambda attention: assert_near(
            attention(draw(2, 5, 3), draw(2, 1, 3), draw(2, 1, 4)).mean(1),
            numbers(draw(2, 1, 4)[:, 0]),
        ),
        a_label_wins,
    ],
    "only one of several heads": [a_part(lambda y: y[0])],
    "only a mean or a sum over the heads, or heads alike": [
        a_part(torch.mean),
        a_part(lambda y: y.sum(0)),
        heads_alike,
    ],
    "only one head": [divided(1, 5, 7, 3, 2)],
    "as many heads as features of a head": [divided(3, 5, 7, 3, 2)],
    "as many keys as features": [divided(2, 5, 7, 7, 3)],
    "values as wide as the query": [divided(2, 5, 7, 3, 3)],
    "keys and values of the query's width": [divided(2, 5, 3, 3, 3)],
    "all sizes equal": [divided(3, 3, 3, 3, 3)],
    "features of width 1": [divided(2, 5, 7, 1, 3)],
}


def wants_full_width(attention):
    query, key, value = draw(2, 5, 3), draw(2, 7, 3, seed=1), draw(2, 7, 4, seed=2)
    assert_near(
        attention(query, key, value), numbers((query @ key.mT / 6**0.5).softmax(-1) @ value)
    )


DIVISOR_NEW = [
    *unlisted(DIVISOR_RIGHT[0], lambda f: f(draw(2, 5, 3), draw(2, 7, 3), draw(2, 7, 4))),
    wants_full_width,
    lambda attention: assert_near(attention(*[draw(2, 5, 3)] * 3), numbers(draw(2, 5, 3))),
]

# ---------------------------------------------------------------------------- defaults_test

Q, K, V = draw(3, 4, seed=5), draw(3, 4, seed=6), draw(3, 4, seed=7)


def way(query, key, value, /, *given, **named):
    return lambda attention: assert_near(
        attention(*given, **named), loop_attention(query, key, value)
    )


ONLY_Q = way(Q, Q, Q, Q)
KEY_TOO = way(Q, K, K, Q, K)
VALUE_TOO = way(Q, Q, V, Q, value=V)
ALL_THREE = way(Q, K, V, Q, K, V)


def against_each_other(attention):
    assert_near(attention(Q), numbers(attention(Q, Q, Q)))
    assert_near(attention(Q, K), numbers(attention(Q, K, K)))
    assert_near(attention(Q, value=V), numbers(attention(Q, Q, V)))
    assert_near(attention(Q, K, V), loop_attention(Q, K, V))


def explicit_none(attention):
    assert_near(attention(Q, None, V), loop_attention(Q, Q, V))
    assert_near(attention(Q, K, None), loop_attention(Q, K, K))


def of_zeros(attention):
    close(attention(torch.zeros(3, 4), torch.zeros(3, 4)), torch.zeros(3, 4))


DEFAULTS_RIGHT = [both(ONLY_Q, KEY_TOO, VALUE_TOO, ALL_THREE), against_each_other]
DEFAULTS = {
    "an assertion that no fault breaks": [
        lambda attention: assert_near(attention(Q, Q, Q), loop_attention(Q, Q, Q)),
        of_zeros,
    ],
    "only the query given": [ONLY_Q],
    "key and value are never given together": [explicit_none, both(KEY_TOO, VALUE_TOO, ONLY_Q)],
    "only that keys of another length run": [
        lambda attention: assert_near(attention(Q, draw(9, 4)).isfinite(), np.ones((3, 4))),
    ],
    "only with all three given": [ALL_THREE],
    "only query and key": [KEY_TOO, way(Q, K, K, Q, key=K)],
    "a value is never given alone": [both(KEY_TOO, ALL_THREE)],
    "a key is never given alone": [both(ALL_THREE, VALUE_TOO)],
    "only a value given alone": [VALUE_TOO],
}
DEFAULTS_NEW = [
    *unlisted(DEFAULTS_RIGHT[0], lambda attention: attention(Q, K)),
    way(Q, K, Q, Q, K),
    way(Q, V, V, Q, value=V),
]

# ---------------------------------------------------------------------------- copy_test


def parameters(bias=1.0, spread=1.0, width=6):
    shapes = [("in_weight", (3 * width, width)), ("out_weight", (width, width))]
    shapes += [("in_bias", (3 * width,)), ("out_bias", (width,))]
    made = {n: 1 + spread * draw(*shape, seed=k) for k, (n, shape) in enumerate(shapes)}
    return {n: p * (bias if n.endswith("bias") else 1) for n, p in made.items()}


def copied(*names, source=parameters, later=False, intact=False):
    names = names or ("in_weight", "in_bias", "out_weight", "out_bias")

    def test(copy):
        original = source()
        target = copy(original)
        if intact:
            assert all(torch.equal(original[n], source()[n]) for n in names)
        if later:
            for parameter in original.values():
                parameter.mul_(2)
        for name in names:
            assert_near(target[name], numbers(source()[name]))

    return test


def own_memory(copy):
    source = parameters()
    target = copy(source)
    addresses = {p.data_ptr() for p in source.values()} & {p.data_ptr() for p in target.values()}
    assert len(addresses) == 0


def one_parameter_alone(copy):
    source = {"in_weight": draw(12, 4)}
    close(copy(source)["in_weight"], source["in_weight"])


def same_order_of_names(copy):
    copied(later=True, intact=True)(copy)
    assert list(copy(parameters())) == list(parameters())


COPY_RIGHT = [copied(later=True, intact=True), both(copied(intact=True), own_memory)]
COPY = {
    "an assertion that no fault breaks": [
        lambda copy: assert_near(torch.tensor(len(copy(parameters()))), np.array(4)),
    ],
    "biases that are 0, or not compared": [
        copied("in_weight", "out_weight"),
        copied(source=lambda: parameters(bias=0.0)),
    ],
    "weights that are alike, or not compared": [
        copied("in_bias", "out_bias"),
        copied(source=lambda: parameters(spread=0.0)),
    ],
    "only the numbers of the copy": [copied()],
    "a later change of the source is not tried": [copied(intact=True)],
    "only the storage": [own_memory],
    "what the copy did to the source": [copied(later=True), both(own_memory, copied())],
}
COPY_NEW = [
    *unlisted(COPY_RIGHT[0], lambda copy: copy(parameters())),
    one_parameter_alone,
    same_order_of_names,
    lambda copy: assert_near(copy(parameters())["in_bias"], np.zeros(18)),
    lambda copy: assert_near(
        copy(parameters())["out_weight"], numbers(parameters()["out_weight"].T)
    ),
]

# ---------------------------------------------------------------------------- grader_test


def plain(scores):
    return torch.softmax(scores, dim=-1)


def with_maximum(scores):
    e = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return e / e.sum(dim=-1, keepdim=True)


def winner(scores):
    return (scores == scores.amax(dim=-1, keepdim=True)).float()


def one_hot(scores):
    return torch.nn.functional.one_hot(scores.argmax(dim=-1), scores.shape[-1])


def alike(scores):
    return torch.ones_like(scores) / scores.size(-1)


def rows_not_columns(scores):
    return torch.softmax(scores, dim=0)


def stops(scores):
    return scores.no_such_method()


def grades(yes=(), no=()):
    def test(grader):
        verdicts = [bool(grader(answer)) for answer in (*yes, *no)]
        assert verdicts == [True] * len(yes) + [False] * len(no)

    return test


GRADER_RIGHT = [
    grades([plain], [winner, rows_not_columns, alike, stops]),
    grades([with_maximum, plain], [one_hot, stops, rows_not_columns, lambda s: s, alike]),
    grades(
        [
            lambda s: s.softmax(dim=1),
            lambda s: (s - s.max()).softmax(1),
            lambda s: torch.stack([row.exp() / row.exp().sum() for row in s]),
        ],
        [one_hot, stops, rows_not_columns, alike],
    ),
]
GRADER = {
    "only right answers": [grades([plain]), grades([plain, with_maximum])],
    "only wrong answers": [grades([], [winner, alike, rows_not_columns, stops])],
    "an answer far from right, and no other": [grades([with_maximum], [alike])],
    "no hard argmax": [grades([with_maximum], [alike, rows_not_columns, stops])],
    "no softmax over another axis": [grades([plain], [alike, winner, stops])],
    "no answer that raises": [grades([plain], [alike, winner, rows_not_columns])],
    "a hard argmax and no other wrong answer": [
        grades([plain], [winner]),
        grades([plain], [one_hot]),
    ],
    "another axis and no other wrong answer": [grades([plain], [rows_not_columns])],
    "only a wrong shape": [grades([plain], [lambda s: s.max(dim=-1).indices])],
}
GRADER_NEW = [
    *unlisted(GRADER_RIGHT[0], lambda grader: grader(plain)),
    grades([winner]),
    grades([alike], [plain]),
    grades([plain], [with_maximum]),
]

# ---------------------------------------------------------------------------- places_test

TABLE = draw(8, 3, seed=9)


def places(b, length, x=None, table=TABLE):
    def test(add):
        tokens = draw(b, length, 3, seed=8) if x is None else torch.full((b, length, 3), x)
        want = np.array(
            [[numbers(tokens[n, i] + table[i]) for i in range(length)] for n in range(b)]
        )
        assert_near(add(tokens, table), want)

    return test


def place_by_place(add):
    x = draw(4, 5, 3)
    y = add(x, TABLE)
    for n in range(4):
        for i in range(5):
            assert torch.allclose(y[n, i], x[n, i] + TABLE[i], atol=1e-5)


def added(add):
    x = draw(4, 5, 3)
    return add(x, TABLE) - x


def part_of_sum(look):
    def test(add):
        x = draw(3, 5, 3)
        close(look(add(x, TABLE)), look(x + TABLE[:5]))

    return test


PLACES_RIGHT = [places(4, 5), place_by_place]
PLACES = {
    "an assertion that no fault breaks": [
        lambda add: assert_near(torch.tensor(add(draw(4, 5, 3), TABLE).shape), np.array([4, 5, 3])),
    ],
    "only one place": [places(4, 1)],
    "only one sample": [places(1, 6)],
    "one sample of one token": [places(1, 1)],
    "only that places differ": [lambda add: assert_near((added(add)[0].std(0) > 1e-4).all(), True)],
    "only tokens of 0": [places(4, 5, x=0.0)],
    "rows of the table alike": [places(4, 5, table=torch.ones(8, 3))],
    "only that samples are treated alike": [
        lambda add: assert_near(added(add)[0], numbers(added(add)[3])),
    ],
    "one sample with tokens of 0": [places(1, 4, x=0.0)],
    "only one of several samples": [part_of_sum(lambda y: y[1])],
    "the first token not compared": [part_of_sum(lambda y: y[:, 1:])],
    "only sums over the samples": [
        part_of_sum(lambda y: y.sum((0, 2))),
        part_of_sum(lambda y: y.mean(0)),
    ],
}
PLACES_NEW = [
    *unlisted(PLACES_RIGHT[0], lambda add: add(draw(4, 5, 3), TABLE)),
    lambda add: assert_near(added(add)[0], numbers(TABLE[1:6])),
    lambda add: assert_near(added(add)[:, 0], numbers(TABLE[:4])),
]

# ---------------------------------------------------------------------------- evaluation_test

ONES = torch.ones(40, 100)


def evaluation_is_input(make):
    layer = make(0.3)
    layer.eval()
    assert_near(layer(ONES), np.ones((40, 100)))


def training_drops(make, p=0.3):
    y = numbers(make(p)(ONES))
    kept = y[y != 0]
    assert abs(1 - kept.size / y.size - p) < 0.06
    assert np.allclose(kept, 1 / (1 - p))


def training_after_evaluation(make, p=0.3):
    layer = make(p).eval()
    layer.train()
    assert (layer(ONES) == 0).float().mean() > 0.1


def training_is_random(make):
    layer = make(0.3)
    assert (layer(ONES) != layer(ONES)).any()


def same_twice(make):
    layer = make(0.3).eval()
    assert_near(layer(ONES), numbers(layer(ONES)))


def same_twice_without_gradients(make):
    with torch.no_grad():
        same_twice(make)


def in_turn(make):
    """One layer, in training and evaluation by turns."""
    layer = make(0.2)
    for _ in range(2):
        layer.train()
        y = layer(ONES)
        assert abs((y == 0).float().mean() - 0.2) < 0.06
        assert abs(y.mean() - 1) < 0.1
        layer.eval()
        assert torch.equal(layer(ONES), ONES)


def mean_and_some_zero(make):
    layer = make(0.25)
    assert torch.equal(layer.eval()(ONES), ONES)
    y = layer.train()(ONES)
    assert abs(y.mean() - 1) < 0.08
    assert (y == 0).any()


def few_zeros_and_largest(make):
    layer = make(0.25)
    close(layer.eval()(ONES), ONES)
    y = layer.train()(ONES)
    assert (y == 0).float().mean() < 0.3
    assert y.max() > 1.3


def the_very_same_object(make):
    layer = make(0.3).eval()
    assert layer(ONES) is ONES


def same_seed_same_zeros(make):
    in_turn(make)
    layer, results = make(0.25), []
    for _ in range(2):
        torch.manual_seed(1)
        results.append(layer(ONES))
    close(*results)


EVALUATION_RIGHT = [both(evaluation_is_input, training_drops, training_after_evaluation), in_turn]
EVALUATION = {
    "an assertion that no fault breaks": [
        lambda make: assert_near(make(0.0).eval()(ONES), np.ones((40, 100))),
    ],
    "only training": [training_drops, both(training_is_random, training_drops)],
    "only that training is random": [training_is_random],
    "only that evaluation repeats itself": [same_twice],
    "evaluation under no_grad alone": [same_twice_without_gradients],
    "only evaluation": [evaluation_is_input],
    "evaluation, and randomness in training": [both(training_is_random, evaluation_is_input)],
    "never back to training": [both(training_drops, evaluation_is_input)],
    "only p = 0.5": [
        both(
            evaluation_is_input,
            lambda make: training_drops(make, 0.5),
            lambda make: training_after_evaluation(make, 0.5),
        )
    ],
    "the zeros are not counted": [mean_and_some_zero],
    "zeros from one side only, and no mean": [few_zeros_and_largest],
    "both modes, and not what training does": [
        both(evaluation_is_input, training_after_evaluation),
    ],
}
EVALUATION_NEW = [
    *unlisted(EVALUATION_RIGHT[0], lambda make: make(0.3)(ONES)),
    the_very_same_object,
    same_seed_same_zeros,
    lambda make: assert_near(make(0.3)(ONES), np.ones((40, 100))),
    lambda make: assert_near((make(0.3).eval()(ONES) == 0).any(), True),
]

# ---------------------------------------------------------------------------- backward_test

OPEN = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 1]]) == 1
MIX = draw(4, 3, seed=11)


def loop_rows(scores, mask, mix):
    """Weights and gradient of (weights * mix).sum(), row by row, by the formula."""
    weights, gradient = np.zeros(scores.shape), np.zeros(scores.shape)
    for i, row in enumerate(mask):
        if row.any():
            w, c = loop_softmax(numbers(scores[i, row]).tolist()), numbers(mix[i, row])
            weights[i, row], gradient[i, row] = w, w * (c - w @ c)
    return weights, gradient


def rows(mask=OPEN, mix=MIX, forward=True, values=True, finite=False):
    def test(weights):
        scores = draw(4, 3, seed=10).requires_grad_()
        w, g = loop_rows(scores, mask, mix)
        got = weights(scores, mask)
        if forward:
            assert_near(got, w)
        if values or finite:
            (got * mix).sum().backward()
            assert scores.grad.isfinite().all()
        if values:
            assert_near(scores.grad, g)

    return test


def in_double(weights):
    scores = draw(4, 3, seed=12).double().requires_grad_()
    w, g = loop_rows(scores, OPEN, MIX)
    got = weights(scores, OPEN)
    (gradient,) = torch.autograd.grad(got, scores, MIX.double())
    assert_near(got, w, 1e-9)
    assert_near(gradient, g, 1e-9)


def one_sign(weights):
    scores = draw(4, 3, seed=10).requires_grad_()
    got = weights(scores, OPEN)
    assert_near(got, loop_rows(scores, OPEN, MIX)[0])
    got[0, 0].backward()
    assert scores.grad[0, 0] > 0
    assert scores.grad.isfinite().all()


def scores_far_apart(weights):
    scores = (3000 * draw(4, 3, seed=10)).requires_grad_()
    got = weights(scores, OPEN)
    (got * MIX).sum().backward()
    w, g = loop_rows(scores, OPEN, MIX)
    assert_near(got, w)
    assert_near(scores.grad, g)


BACKWARD_RIGHT = [rows(), in_double]
BACKWARD = {
    "an assertion that no fault breaks": [
        lambda weights: assert_near(weights(draw(4, 3), OPEN | True).sum(1), np.ones(4)),
    ],
    "only the forward pass": [rows(values=False)],
    "no dead row": [rows(mask=OPEN[[0, 3, 2, 3]])],
    "a mask that blocks nothing": [rows(mask=OPEN | True)],
    "only that the gradient is finite": [
        rows(forward=False, values=False, finite=True),
        rows(forward=False, values=False, finite=True, mix=torch.ones(4, 3)),
    ],
    "only a sign of the gradient": [one_sign],
    "the gradient is not compared, or is about 0": [
        scores_far_apart,
        rows(values=False, finite=True),
        rows(mix=torch.ones(4, 3)),
    ],
    "not the weights of dead rows": [rows(forward=False)],
}
BACKWARD_NEW = [
    *unlisted(BACKWARD_RIGHT[0], lambda weights: weights(draw(4, 3), OPEN)),
    lambda weights: assert_near(weights(draw(4, 3), OPEN).sum(1), np.ones(4)),
    lambda weights: assert_near(weights(draw(4, 3), OPEN)[1], np.full(3, 1 / 3)),
]

# ---------------------------------------------------------------------------- paths_test

X = draw(4, 3, seed=13)


def loop_paths(causal):
    weights = np.zeros((4, 4))
    for i in range(4):
        seen = i + 1 if causal else 4
        weights[i, :seen] = loop_softmax([float(X[i] @ X[j]) / math.sqrt(3) for j in range(seen)])
    return weights @ numbers(X), weights


def paths(*calls, outputs=True, weights=True):
    """Calls by two letters: c or n for causal or not, w or o for with weights or the output."""

    def test(attention):
        for causal, asked in calls:
            want = loop_paths(causal == "c")
            got = attention(X, causal == "c", asked == "w")
            output, w = got if asked == "w" else (got, None)
            if outputs:
                assert_near(output, want[0])
            if weights and asked == "w":
                assert_near(w, want[1])

    return test


def same_output(attention):
    for causal in (True, False):
        assert_near(attention(X, causal, True)[0], numbers(attention(X, causal)))


def upper_triangle(attention):
    _, weights = attention(X, is_causal=True, return_weights=True)
    assert np.triu(numbers(weights), 1).max() == 0


def calls_agree(attention):
    for causal in (False, True):
        output, w = attention(X, causal, True)
        close(attention(X, causal), output)
        close(output, w @ X)
        assert bool((w.triu(1) == 0).all()) == causal


def ends(attention):
    for causal in (False, True):
        output, w = attention(X, causal, True)
        assert_near(w, loop_paths(causal)[1])
        assert_near(output[-1], loop_paths(causal)[0][-1])
        assert_near(attention(X, causal)[0], loop_paths(causal)[0][0])


def zeros_again(attention):
    close(attention(torch.zeros(5, 3)), torch.zeros(5, 3))


PATHS_RIGHT = [paths("no", "nw", "co", "cw"), both(paths("no", "co", "nw"), paths("cw"))]
PATHS = {
    "an assertion that no fault breaks": [
        lambda attention: assert_near(
            torch.tensor(attention(X, True, True)[0].shape), np.array([4, 3])
        ),
        zeros_again,
    ],
    "only that the calls agree with each other": [calls_agree],
    "only the ends of the outputs": [ends],
    "only the causal outputs": [paths("co", "cw", weights=False)],
    "weights are never asked for": [paths("co", "no")],
    "weights are always asked for": [paths("cw", "nw")],
    "never causal": [paths("nw", "no")],
    "always causal": [paths("cw", "co")],
    "only that the two outputs agree": [same_output],
    "only that the weights have no future": [upper_triangle],
    "the weights are not compared": [paths("no", "nw", "co", "cw", weights=False)],
}


def weights_first(attention):
    assert_near(attention(X, True, True)[0], loop_paths(True)[1])


PATHS_NEW = [
    *unlisted(PATHS_RIGHT[0], lambda attention: attention(X, True)),
    weights_first,
    lambda attention: assert_near(attention(X, True), loop_paths(False)[0]),
]

# ---------------------------------------------------------------------------- launch_test


def simulate(measure, calls=4, launch=2.0, work=7.0, first=50.0):
    """A device in three closures; returns the result and what was called, as a text."""
    state, log = {"now": 0.0, "end": 0.0}, []

    def start():
        state["now"] += launch
        state["end"] = max(state["now"], state["end"]) + work
        state["end"] += first if "l" not in log else 0
        log.append("l")

    def finish():
        state["now"] = max(state["now"], state["end"])
        log.append("w")

    def look():
        log.append("c")
        return state["now"]

    return measure(start, finish, look, calls), "".join(log)


def takes(want, tolerance=1e-9, **device):
    def test(measure):
        assert abs(simulate(measure, **device)[0] - want) <= tolerance

    return test


def order_of_events(measure):
    """One launch and a wait outside, then the clock, the launches, a wait, the clock."""
    log = simulate(measure, calls=4)[1].replace("ww", "w").rstrip("w")
    assert log == "lwcllllwc"
    takes(30 / 4)(measure)


LAUNCH_RIGHT = [takes(30 / 4), order_of_events]
LAUNCH = {
    "an assertion that no fault breaks": [
        lambda measure: assert_near(torch.tensor(simulate(measure)[0] >= 0), True),
    ],
    "a device that does not run ahead": [takes(2.0, work=0.0)],
    "only one call": [takes(9.0, calls=1)],
    "no slow first call": [takes(30 / 4, first=0.0)],
    "only a lower bound": [
        lambda measure: assert_near(torch.tensor(simulate(measure)[0] > 7), True)
    ],
    "only that it waits": [
        lambda measure: assert_near(torch.tensor("w" in simulate(measure)[1]), True)
    ],
    "a loose tolerance": [takes(7.5, tolerance=4.5, first=0.0)],
    "only the number of launches": [
        lambda measure: assert_near(torch.tensor(simulate(measure)[1].count("l")), np.array(5)),
    ],
}


def two_waits_and_no_more(measure):
    assert simulate(measure)[1] == "lwcllllwc"


LAUNCH_NEW = [
    *unlisted(LAUNCH_RIGHT[0], lambda measure: simulate(measure)),
    two_waits_and_no_more,
    takes(2.0),
    takes(30.0),
]

ANSWERS = {
    "future_test": (FUTURE_RIGHT, FUTURE, FUTURE_NEW),
    "axis_test": (AXIS_RIGHT, AXIS, AXIS_NEW),
    "heads_test": (HEADS_RIGHT, HEADS, HEADS_NEW),
    "samples_test": (SAMPLES_RIGHT, SAMPLES, SAMPLES_NEW),
    "blocked_test": (BLOCKED_RIGHT, BLOCKED, BLOCKED_NEW),
    "divisor_test": (DIVISOR_RIGHT, DIVISOR, DIVISOR_NEW),
    "defaults_test": (DEFAULTS_RIGHT, DEFAULTS, DEFAULTS_NEW),
    "copy_test": (COPY_RIGHT, COPY, COPY_NEW),
    "grader_test": (GRADER_RIGHT, GRADER, GRADER_NEW),
    "places_test": (PLACES_RIGHT, PLACES, PLACES_NEW),
    "evaluation_test": (EVALUATION_RIGHT, EVALUATION, EVALUATION_NEW),
    "backward_test": (BACKWARD_RIGHT, BACKWARD, BACKWARD_NEW),
    "paths_test": (PATHS_RIGHT, PATHS, PATHS_NEW),
    "launch_test": (LAUNCH_RIGHT, LAUNCH, LAUNCH_NEW),
}
