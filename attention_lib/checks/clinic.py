"""The exercises of chapter 16, the clinic: every answer is a test that must catch a fault.

Each exercise gives the reader's test several right implementations, the fault that the chapter
shows, and variants of it that the chapter does not show.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from attention_lib.checks.engine import CatchFaults, Mistake

NOTHING = "an assertion that no fault breaks"


def _random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _assert_close(got, want, tolerance=1e-5):
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance, equal_nan=True)


def _compares(right, *inputs, look=lambda y: y, tolerance=1e-5, **named):
    """A test that compares a part of the result with that of a right version on each input."""

    def test(function):
        for arguments in inputs:
            got, want = (look(f(*arguments, **named)) for f in (function, right))
            _assert_close(got, want, tolerance)

    return test


def _same_shape(right, *inputs):
    """A test that asks for the right shape and finite numbers."""

    def test(function):
        for arguments in inputs:
            result = function(*arguments)
            assert result.shape == right(*arguments).shape
            assert result.isfinite().all()

    return test


def _repeats(*arguments):
    """A test that compares the result with itself."""

    def test(function):
        _assert_close(function(*arguments), function(*arguments))

    return test


def _all(*tests):
    def test(function):
        for one in tests:
            one(function)

    return test


def _right_only_at(place, right, wrong):
    """A fault along the first axis of the result: right at one place, -1 for the last, or wrong."""

    def function(*arguments):
        result = wrong(*arguments).clone()
        result[place] = right(*arguments)[place]
        return result

    return function


# ---------------------------------------------------------------------------- future_test

VOCABULARY, STATE = 11, 6


def _logits(*rules, mix=lambda scores, mask: scores.masked_fill(~mask, -torch.inf).softmax(-1)):
    """A small model `(L,) -> (L, 11)` with a layer for each rule `allowed(i, j, L)`."""

    def model(ids):
        ids = torch.as_tensor(ids)
        x = _random(VOCABULARY, STATE, seed=1)[ids]
        i, j = torch.arange(len(ids))[:, None], torch.arange(len(ids))
        for rule in rules:
            mask = (rule(i, j) | torch.zeros(len(ids), len(ids), dtype=torch.bool)).bool()
            weights = mix(x @ x.T / STATE, mask).nan_to_num()
            x = x + weights @ x
        return x @ _random(STATE, VOCABULARY, seed=2)

    return model


def _past(i, j):
    return j <= i


def _first_and_itself(i, j):
    return (i == j) | ((j == 0) & (i > 0))


def _running_mean(ids):
    """Causal in another way: every output is made of a running mean of the embeddings."""
    x = _random(VOCABULARY, STATE, seed=3)[torch.as_tensor(ids)].double()
    mean = x.cumsum(0) / torch.arange(1, len(x) + 1)[:, None]
    return (x + mean).tanh() @ _random(STATE, VOCABULARY, seed=4).double()


def _step_by_step(ids):
    """Causal in a third way: a state that takes up one token after the other."""
    table, outputs = _random(VOCABULARY, STATE, seed=5), []
    state = torch.zeros(STATE)
    for token in torch.as_tensor(ids):
        state = 0.8 * state + table[token]
        outputs.append(state)
    return torch.stack(outputs) @ _random(STATE, VOCABULARY, seed=6)


IDS = torch.tensor([3, 1, 4, 10, 5, 9, 2])


def _other(ids, *places):
    ids = ids.clone()
    ids[list(places)] = (ids[list(places)] + 1) % VOCABULARY
    return ids


def _unmoved(model, ids, change, part):
    _assert_close(model(_other(ids, *change))[part], model(ids)[part])


def _moved(model, ids, change, part):
    assert not torch.allclose(model(_other(ids, *change))[part], model(ids)[part], atol=1e-4)


def _no_future(model, ids=IDS):
    for place in range(1, len(ids)):
        _unmoved(model, ids, [place], slice(place))


def _cut_off(model):
    for length in range(1, len(IDS)):
        _assert_close(model(IDS[:length]), model(IDS)[:length])


def _last_changed(model):
    _unmoved(model, IDS, [-1], slice(-1))


def _far_past(model):
    _moved(model, IDS, [0], -1)


def _far_past_and_no_last(model):
    _last_changed(model)
    _far_past(model)


def _all_reach_the_last(model):
    for place in range(len(IDS)):
        _moved(model, IDS, [place], -1)


def _near_past(model):
    for place in range(1, len(IDS)):
        _moved(model, IDS, [place - 1], place)


def _assert_shape(model):
    assert model(IDS).shape == (len(IDS), VOCABULARY)


BEFORE = "Change one token, and look at every output before it: none may change."
AFTER = "Change the first token, and look at the last output: it must change."
EACH_AFTER = "Change each token in turn, and look at every output after it: each must change."

future_test = CatchFaults(
    shown=1,
    level=3,
    trains="a test that sees a mask upside down",
    right={
        "two masked layers": _logits(_past, _past),
        "a running mean": _running_mean,
        "token by token": _step_by_step,
    },
    faults=(
        Mistake("the mask upside down", BEFORE, _logits(lambda i, j: j > i, lambda i, j: j > i)),
        Mistake("no mask", BEFORE, _logits(lambda i, j: j >= 0, lambda i, j: j >= 0)),
        Mistake(
            "one token too far",
            "Look at the output right before the change: here it sees the next token.",
            _logits(lambda i, j: j <= i + 1, lambda i, j: j == i),
        ),
        Mistake("the second layer without a mask", BEFORE, _logits(_past, lambda i, j: j >= 0)),
        Mistake(
            "only the first two places masked",
            "Use more tokens than two, and look at every output before the change.",
            _logits(lambda i, j: (j <= i) | (i >= 2), _past),
        ),
        Mistake("only the token itself", AFTER, _logits(lambda i, j: i == j)),
        Mistake(
            "only the token before",
            AFTER,
            _logits(lambda i, j: (i == j) | (j == i - 1)),
        ),
        Mistake(
            "one token too far, except to the last",
            "Change each token in turn, not only the last one.",
            _logits(lambda i, j: (j <= i) | ((j == i + 1) & (j < len(j) - 1))),
        ),
        Mistake("only the first token and itself", EACH_AFTER, _logits(_first_and_itself)),
        Mistake(
            "only the last output sees the past",
            EACH_AFTER,
            _logits(lambda i, j: (i == j) | ((i == len(j) - 1) & (j <= i))),
        ),
    ),
    mistakes=(
        Mistake(
            NOTHING,
            "Every fault passes: all of them return finite numbers of the right shape, and the "
            "same ones twice. Change a token, and look at what changes.",
            _assert_shape,
            _repeats(IDS),
        ),
        Mistake(
            "the past is never looked at",
            "It makes sure that nothing is seen that must not be seen. A model that sees too "
            "little passes: change an early token, and ask for a change at the end.",
            _no_future,
            _last_changed,
            _cut_off,
        ),
        Mistake(
            "only the first output",
            "A leak at another place passes. Compare all outputs before the change.",
            lambda model: _unmoved(model, IDS, [-1], 0),
            lambda model: _unmoved(model, IDS, [4, 5], 0),
        ),
        Mistake(
            "the past in place of the future",
            "It makes sure that early tokens are used. A model that reads ahead passes: change a "
            "late token, and compare all outputs before it.",
            _far_past,
        ),
        Mistake(
            "only two tokens",
            "With two tokens there is one place before and one behind. Use more: some faults "
            "begin at the third.",
            _all(partial(_no_future, ids=IDS[:2]), lambda model: _moved(model, IDS[:2], [0], 1)),
        ),
        Mistake(
            "only neighbours for the past",
            "A model that sees the token before and nothing else passes. Change the first token, "
            "and ask for a change at the end.",
            _all(_no_future, _near_past),
        ),
        Mistake(
            "only the last and the first token changed",
            "A leak to a token in between passes, and so does a model that sees too little. "
            "Change each token in turn: no output before it may move, and each after it must.",
            _far_past_and_no_last,
        ),
        Mistake(
            "of the past, only what the first token changes",
            "Nobody needs to see the tokens in between. " + EACH_AFTER,
            _all(_no_future, _far_past),
            _all(_cut_off, _far_past),
        ),
        Mistake(
            "of the past, only what the last output sees",
            "The outputs before the last may see nothing of the past. " + EACH_AFTER,
            _all(_no_future, _all_reach_the_last),
        ),
    ),
    hints=(
        "Take a few token ids. Change one of them, run the model on both, and say which outputs "
        "must stay the same.",
        "The outputs before the change must stay, for a change at every place. And the outputs "
        "from that place on must all change.",
        "For each place change ids[place], then torch.testing.assert_close(after[:place], "
        "before[:place]), and (after - before).abs().amax(-1)[place:] must be above 1e-4 "
        "everywhere.",
    ),
)


# ---------------------------------------------------------------------------- axis_test


def _weights_by(normalise):
    """`weights(query, key)` of shape (b, h, L, S), with scores of `normalise`."""

    def weights(query, key):
        return normalise(query @ key.mT / query.shape[-1] ** 0.5)

    return weights


_over_keys = _weights_by(lambda s: s.softmax(-1))


def _over_keys_by_loops(query, key):
    result = torch.empty(*query.shape[:3], key.shape[2], dtype=query.dtype)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            scores = query[b, h].double() @ key[b, h].double().T / math.sqrt(query.shape[3])
            result[b, h] = (scores - scores.logsumexp(1, keepdim=True)).exp()
    return result


def _over_keys_by_einsum(query, key):
    scores = torch.einsum("bhqd,bhkd->hbqk", query / query.shape[-1] ** 0.5, key)
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)).transpose(0, 1)


def _not_scaled(query, key):
    return (query @ key.mT).softmax(-1)


def _renormalised(scores):
    weights = scores.softmax(1)
    return weights / weights.sum(-1, keepdim=True)


def _pair(b, h, length, keys, d=4, factor=1.0):
    return factor * _random(b, h, length, d, seed=7), factor * _random(b, h, keys, d, seed=8)


def _total(query, key):
    def test(weights):
        total = weights(query, key).sum()
        _assert_close(total, torch.tensor(float(query[..., 0].numel())), 1e-3)

    return test


def _rows_sum_to_one(weights):
    _assert_close(weights(*_pair(2, 3, 5, 7)).sum(-1), torch.ones(2, 3, 5))


ROWS_SUM = "The weights of one query, in one head of one sample, sum to 1. Ask for it."

axis_test = CatchFaults(
    shown=1,
    level=2,
    trains="a test that sees a softmax over the wrong axis",
    right={
        "softmax over the keys": _over_keys,
        "loops in float64": _over_keys_by_loops,
        "heads before the batch inside": _over_keys_by_einsum,
    },
    faults=(
        Mistake("softmax over the heads", ROWS_SUM, _weights_by(lambda s: s.softmax(1))),
        Mistake("softmax over the queries", ROWS_SUM, _weights_by(lambda s: s.softmax(2))),
        Mistake("softmax over the samples", ROWS_SUM, _weights_by(lambda s: s.softmax(0))),
        Mistake(
            "softmax over the keys of all heads",
            "Use more than one head, and ask each head for its own sum.",
            _weights_by(
                lambda s: (
                    s.transpose(1, 2)
                    .flatten(2)
                    .softmax(-1)
                    .reshape(s.shape[0], s.shape[2], s.shape[1], s.shape[3])
                    .transpose(1, 2)
                )
            ),
        ),
        Mistake(
            "softmax over queries and keys together",
            "Use more than one query, and ask each query for its own sum.",
            _weights_by(lambda s: s.flatten(2).softmax(-1).reshape(s.shape)),
        ),
        Mistake(
            "softmax over the heads, then divided by the sum over the keys",
            "These rows sum to 1 as well. Compare the weights themselves with a softmax that you "
            "compute in the test.",
            _weights_by(_renormalised),
        ),
        Mistake(
            "not scaled",
            "Compare the weights with a softmax that you compute in the test, scaled.",
            _not_scaled,
        ),
        Mistake(
            "right for the first sample only",
            "Compare the weights of every sample.",
            _right_only_at(0, _over_keys, _not_scaled),
        ),
        Mistake(
            "right for the last sample only",
            "Compare the weights of every sample.",
            _right_only_at(-1, _over_keys, _not_scaled),
        ),
    ),
    mistakes=(
        Mistake(
            NOTHING,
            "Every fault passes: all weights have the right shape, lie between 0 and 1 and come "
            "out the same twice. Compare numbers.",
            _same_shape(_over_keys, _pair(2, 3, 5, 7)),
            _repeats(*_pair(2, 3, 5, 7)),
        ),
        Mistake(
            "only the sums of the rows, or equal keys",
            "Numbers may be wrong and still sum to 1. Compare the weights of random queries and "
            "keys with a softmax that you compute in the test.",
            _rows_sum_to_one,
            _compares(_over_keys, _pair(2, 3, 5, 7, factor=0.0)),
        ),
        Mistake(
            "only the sum of everything, with equal sizes",
            "With as many heads, samples and queries as keys the total is the same for several "
            "axes. Take another size for every axis, and ask for the sum of every row.",
            _total(*_pair(3, 3, 3, 3)),
            _compares(_over_keys, _pair(3, 3, 3, 3, factor=0.0)),
        ),
        Mistake(
            "only one head",
            "With one head, its keys are the keys of all heads. Use several.",
            _compares(_over_keys, _pair(2, 1, 5, 7)),
        ),
        Mistake(
            "only one query",
            "With one query, a softmax over queries and keys together is the same. Use several.",
            _compares(_over_keys, _pair(2, 3, 1, 7)),
        ),
        Mistake(
            "one query and one head",
            "Give every axis more than one place, and another number of them.",
            _compares(_over_keys, _pair(2, 1, 1, 7)),
        ),
        Mistake(
            "only one row",
            "The other rows may be wrong. Compare the weights of all samples, heads and queries.",
            _compares(_over_keys, _pair(2, 3, 5, 7), look=lambda w: w[0, 0, 0]),
            _compares(_over_keys, _pair(2, 3, 5, 7), look=lambda w: w[0]),
        ),
        Mistake(
            "the sums, and which key wins",
            "Weights that were never scaled have both. Compare the numbers with a softmax that "
            "you compute in the test.",
            _all(
                _rows_sum_to_one,
                _compares(_over_keys, _pair(2, 3, 5, 7), look=lambda w: w.argmax(-1).float()),
            ),
        ),
    ),
    hints=(
        "What must the weights of one query sum to? Give each of the four axes another size.",
        "A sum of 1 is not enough. Compute the softmax of the scores in the test, over the keys, "
        "and compare all numbers.",
        "q, k = torch.randn(2, 3, 4, 6), torch.randn(2, 3, 5, 6), then "
        "torch.testing.assert_close(weights(q, k), (q @ k.mT / 6**0.5).softmax(-1)).",
    ),
)

# ---------------------------------------------------------------------------- heads_test


def _split(x, heads):
    b, length, width = x.shape
    return x.reshape(b, length, heads, width // heads).transpose(1, 2)


def _split_by_slices(x, heads):
    return torch.stack(x.split(x.shape[-1] // heads, dim=-1), dim=1)


def _split_by_loops(x, heads):
    d = x.shape[-1] // heads
    result = x.new_empty(x.shape[0], heads, x.shape[1], d)
    for h in range(heads):
        result[:, h] = x[..., h * d : (h + 1) * d]
    return result


def _split_as(rule):
    def split(x, heads):
        return rule(x, *x.shape[:2], heads, x.shape[2] // heads)

    return split


def _split_inputs(b, length, heads, d, factor=1.0):
    return 1 + factor * _random(b, length, heads * d, seed=9), heads


def _cut(x, heads):
    return x.reshape(len(x), heads, x.shape[1], -1)


EVERY_SAMPLE = "Use more than one sample, and compare the numbers of each."
COMPARE_SLICES = (
    "Head h owns features h * d to (h + 1) * d of every token. Compare the numbers of each head "
    "with that slice."
)

heads_test = CatchFaults(
    shown=1,
    level=2,
    trains="a test that sees a reshape without transpose",
    right={
        "reshape and transpose": _split,
        "slices, stacked": _split_by_slices,
        "a loop over the heads": _split_by_loops,
    },
    faults=(
        Mistake(
            "reshaped at once",
            COMPARE_SLICES,
            _cut,
        ),
        Mistake(
            "features dealt out in turn",
            COMPARE_SLICES,
            _split_as(lambda x, b, n, h, d: x.reshape(b, n, d, h).permute(0, 3, 1, 2)),
        ),
        Mistake(
            "folded heads first, unfolded samples first",
            EVERY_SAMPLE,
            _split_as(
                lambda x, b, n, h, d: x.reshape(b, n, h, d).permute(2, 0, 1, 3).reshape(b, h, n, d)
            ),
        ),
        Mistake(
            "samples and tokens taken for each other",
            EVERY_SAMPLE,
            _split_as(lambda x, b, n, h, d: x.reshape(n, b, h, d).permute(1, 2, 0, 3)),
        ),
        Mistake(
            "no transpose",
            "Use another number of heads than of tokens: the shape differs then.",
            _split_as(lambda x, b, n, h, d: x.reshape(b, n, h, d)),
        ),
        Mistake(
            "the heads in reverse",
            COMPARE_SLICES,
            _split_as(lambda x, b, n, h, d: x.reshape(b, n, h, d).transpose(1, 2).flip(1)),
        ),
        Mistake("right for the first sample only", EVERY_SAMPLE, _right_only_at(0, _split, _cut)),
        Mistake("right for the last sample only", EVERY_SAMPLE, _right_only_at(-1, _split, _cut)),
    ),
    mistakes=(
        Mistake(
            NOTHING,
            "Every fault passes: each keeps all the numbers, in another order, and with as many "
            "tokens as heads the shape is right as well. Compare numbers, place by place.",
            _compares(_split, _split_inputs(2, 5, 3, 4), look=lambda y: y.flatten().sort().values),
            _same_shape(_split, _split_inputs(2, 3, 3, 4)),
        ),
        Mistake(
            "only the shape, or equal numbers",
            "The order of the numbers is what goes wrong here. Compare numbers that all differ.",
            _same_shape(_split, _split_inputs(2, 5, 3, 4)),
            _compares(_split, _split_inputs(2, 5, 3, 4, factor=0.0)),
        ),
        Mistake(
            "only one sample",
            "Samples may be mixed up, and with one sample nobody sees it. Use several.",
            _compares(_split, _split_inputs(1, 5, 3, 4)),
        ),
        Mistake(
            "only one head",
            "One head owns all features: there is nothing to split. Use several.",
            _compares(_split, _split_inputs(2, 5, 1, 4)),
        ),
        Mistake(
            "only one token",
            "With one token a missing transpose changes no number. Use several.",
            _compares(_split, _split_inputs(2, 1, 3, 4)),
        ),
        Mistake(
            "only the first number",
            "The first number is in its place for nearly every order. Compare all of them.",
            _compares(_split, _split_inputs(2, 5, 3, 4), look=lambda y: y.flatten()[0]),
        ),
        Mistake(
            "heads of width 1",
            "Where a head has one feature, dealing the features out in turn is right. Use wider "
            "heads.",
            _compares(_split, _split_inputs(2, 5, 3, 1)),
        ),
        Mistake(
            "only the last sample",
            "The samples before it may be wrong. Compare the numbers of each.",
            _compares(_split, _split_inputs(2, 5, 3, 4), look=lambda y: y[-1]),
            _compares(_split, _split_inputs(2, 5, 3, 4), look=lambda y: y[-1, 1:]),
        ),
        Mistake(
            "only the first sample",
            "The samples after it may be wrong. Compare the numbers of each.",
            _compares(_split, _split_inputs(2, 5, 3, 4), look=lambda y: y[0]),
        ),
    ),
    hints=(
        "The shape is right even for the fault. Which numbers of a token does head h own?",
        "Compare split(x, heads)[:, h] with a slice of x, for every head, with several samples, "
        "tokens and features.",
        "x = torch.randn(2, 5, 12), then for h in range(3): "
        "torch.testing.assert_close(split(x, 3)[:, h], x[..., 4 * h : 4 * h + 4]).",
    ),
)

# ---------------------------------------------------------------------------- samples_test


def _attend(query, key, value=None):
    value = key if value is None else value
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


def _self(x):
    return _attend(x, x)


def _self_sample_by_sample(x):
    return torch.stack([_self(sample.double()).to(x.dtype) for sample in x])


def _self_sequence_first(x):
    t = x.transpose(0, 1)
    scores = torch.einsum("qbd,kbd->bqk", t, t) / math.sqrt(x.shape[-1])
    return torch.einsum("bqk,kbd->qbd", scores.softmax(-1), t).transpose(0, 1)


def _every_token(x):
    tokens = x.flatten(0, 1)
    return _attend(tokens, tokens).reshape(x.shape)


def _from_the_third(x):
    keys = x.clone()
    keys[2:] = x[:1]
    return _attend(x, keys)


def _batch(b, length=5, d=4):
    return _random(b, length, d, seed=10)


def _repeated(b, length=5, d=4):
    return (_random(1, length, d, seed=11).expand(b, -1, -1).clone(),)


def _alone(layer, x=None):
    x = _batch(4) if x is None else x
    together = layer(x)
    for n in range(len(x)):
        _assert_close(layer(x[n : n + 1]), together[n : n + 1])


def _second_replaced():
    x = _batch(4)
    x[1] = 1.0 - x[1]
    return x


def _tokens_mix(layer):
    x = _batch(4)
    changed = x.clone()
    changed[:, 0] += 1
    assert ((layer(changed) - layer(x))[:, 1:].abs().amax(-1) > 1e-5).all()


BY_FORMULA = "Compare the numbers with scaled self-attention that you compute in the test."
OWN_SAMPLE = "Run each sample alone, and compare with its place in the batch, for every sample."

samples_test = CatchFaults(
    shown=1,
    level=3,
    trains="a test that sees samples mixed up",
    right={
        "batch first": _self,
        "sample by sample in float64": _self_sample_by_sample,
        "sequence first inside": _self_sequence_first,
    },
    faults=(
        Mistake(
            "attends along the batch",
            OWN_SAMPLE,
            lambda x: _self(x.transpose(0, 1)).transpose(0, 1),
        ),
        Mistake("attends over the tokens of all samples", OWN_SAMPLE, _every_token),
        Mistake("the mean of the batch taken away", OWN_SAMPLE, lambda x: _self(x - x.mean(0))),
        Mistake(
            "keys of the sample before",
            "A sample's keys come from another sample. " + OWN_SAMPLE,
            lambda x: _attend(x, x.roll(1, 0)),
        ),
        Mistake(
            "keys of the last sample for all",
            "Compare every sample, not the last one alone.",
            lambda x: _attend(x, x[-1:]),
        ),
        Mistake(
            "right for the first two samples only",
            "Use more than two samples, and compare every one of them.",
            _from_the_third,
        ),
        Mistake(
            "attends to nothing",
            "What gives every token back does not mix samples either. Ask for the numbers of "
            "self-attention, or that another token of the same sample matters.",
            lambda x: x.clone(),
        ),
        Mistake("twice its input", BY_FORMULA, lambda x: 2 * x),
        Mistake("not scaled", BY_FORMULA, lambda x: (x @ x.mT).softmax(-1) @ x),
        Mistake("the samples in another order", OWN_SAMPLE, lambda x: _self(x).roll(1, 0)),
    ),
    mistakes=(
        Mistake(
            NOTHING,
            "Every fault passes: the shape is right, the numbers are finite, and zeros give zeros. "
            "Compare random numbers.",
            _same_shape(_self, (_batch(3),)),
            _repeats(_batch(3)),
        ),
        Mistake(
            "samples that cannot be told apart",
            "With one sample, or with the same one several times, it does not matter whose keys "
            "are read. Use several different samples.",
            _compares(_self, (_batch(1),)),
            _compares(_self, _repeated(3)),
        ),
        Mistake(
            "nothing to mix",
            "It makes sure that samples stay apart. A layer that attends to nothing passes: ask "
            "that the tokens of one sample do mix.",
            _alone,
        ),
        Mistake(
            "only one token",
            "A token that attends to itself alone comes back, whatever the scores are. Use "
            "several tokens.",
            _compares(_self, (_batch(4, length=1),)),
        ),
        Mistake(
            "samples apart, and another result than the input",
            "A layer may give something else than its input, and mix nothing. " + BY_FORMULA,
            _all(_alone, lambda layer: _assert(not torch.allclose(layer(_batch(4)), _batch(4)))),
        ),
        Mistake(
            "samples apart and tokens mixed, and no numbers",
            "How they are mixed is not looked at: the scores need not be scaled. " + BY_FORMULA,
            _all(_alone, _tokens_mix),
        ),
        Mistake(
            "only a mean over all samples",
            "The mean does not say which sample is where. Compare each of them.",
            _compares(_self, (_batch(4),), look=lambda y: y.mean((0, 1))),
        ),
        Mistake(
            "only the last sample",
            "Compare every sample: the last one may be right and the others not.",
            _compares(_self, (_batch(4),), look=lambda y: y[-1]),
        ),
        Mistake(
            "only the first two samples",
            "Use more samples, and compare every one: a fault may begin behind the second.",
            _compares(_self, (_batch(4),), look=lambda y: y[0]),
            _compares(_self, (_batch(2),)),
        ),
        Mistake(
            "the first sample alone, and nothing to mix",
            "Compare every sample, of more than two. And a layer that attends to nothing passes: "
            "ask that the tokens of one sample do mix.",
            lambda layer: _assert_close(layer(_batch(4))[0], layer(_batch(4)[:1])[0]),
        ),
        Mistake(
            "only one neighbour replaced",
            "Sample 0 may read from a neighbour that stayed the same, and what it gives may be "
            "wrong all the same. Compare with what every sample gives alone.",
            lambda layer: _assert_close(layer(_second_replaced())[0], layer(_batch(4))[0]),
        ),
    ),
    hints=(
        "What one sample gives must not depend on its neighbours in the batch.",
        "Use several different samples, and compare what each gives in the batch with scaled "
        "self-attention of that sample alone, which you compute in the test.",
        "want = (x @ x.mT / x.shape[-1] ** 0.5).softmax(-1) @ x for x = torch.randn(4, 5, 6), "
        "then torch.testing.assert_close(layer(x), want).",
    ),
)

# ---------------------------------------------------------------------------- blocked_test


def _masked(scores, mask):
    return scores.masked_fill(~mask, -torch.inf).softmax(-1)


def _masked_row_by_row(scores, mask):
    weights = torch.zeros_like(scores)
    for i, allowed in enumerate(mask):
        weights[i, allowed] = scores[i, allowed].double().softmax(-1).to(scores.dtype)
    return weights


def _masked_by_exponentials(scores, mask):
    highest = torch.where(mask, scores, torch.finfo(scores.dtype).min).amax(-1, keepdim=True)
    e = torch.where(mask, (scores - highest).clamp(max=0).exp(), torch.zeros_like(scores))
    return e / e.sum(-1, keepdim=True)


def _renormalised_after(scores, mask):
    weights = scores.softmax(-1) * mask
    return weights / weights.sum(-1, keepdim=True)


PART = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 1, 0, 1, 1, 0], [1, 1, 0, 0, 0, 0]]).bool()
SCORES = _random(3, 6, seed=12)
HIGH = SCORES + 300.0 * ~PART  # the blocked scores are large
LOW = SCORES - 3e4 * PART  # the allowed scores are far below the blocked ones of about 0
ALONE = "Compare with the softmax of the allowed scores alone."


def _blocked_are_zero(weights):
    for scores in SCORES, HIGH:
        assert (weights(scores, PART).nan_to_num()[~PART] == 0).all()


def _low_blocked_are_zero(weights):
    assert (weights(LOW, PART)[~PART] == 0).all()


def _low_rows_sum_to_one(weights):
    _assert_close(weights(LOW, PART).sum(-1), torch.ones(3))


blocked_test = CatchFaults(
    shown=1,
    level=3,
    trains="a test that sees a mask after the softmax",
    right={
        "filled with -inf": _masked,
        "row by row in float64": _masked_row_by_row,
        "exponentials of the allowed scores": _masked_by_exponentials,
    },
    faults=(
        Mistake("masked after the softmax", ALONE, lambda s, m: s.softmax(-1) * m),
        Mistake(
            "masked after, then divided by the sum",
            "On paper this is right. Try a blocked score that is some hundreds larger.",
            _renormalised_after,
        ),
        Mistake("blocked scores set to 0", ALONE, lambda s, m: (s * m).softmax(-1)),
        Mistake("the mask added as 0 and 1", ALONE, lambda s, m: (s + m.to(s.dtype)).softmax(-1)),
        Mistake("the mask upside down", ALONE, lambda s, m: _masked(s, ~m).nan_to_num()),
        Mistake(
            "filled with -1e4",
            "Try a row all of whose allowed scores lie far below -10000.",
            lambda s, m: s.masked_fill(~m, -1e4).softmax(-1),
        ),
        Mistake("no mask", ALONE, lambda s, m: s.softmax(-1)),
        Mistake("allowed keys share alike", ALONE, lambda s, m: m / m.sum(-1, keepdim=True)),
        Mistake(
            "the largest allowed score takes all",
            ALONE,
            lambda s, m: F.one_hot(_masked(s, m).argmax(-1), s.shape[-1]).to(s.dtype),
        ),
    ),
    mistakes=(
        Mistake(
            NOTHING,
            "Every fault passes: the shape is right, no weight is negative, and no row sums to "
            "more than 1. Compare the weights of the allowed keys, too.",
            lambda weights: _assert(weights(SCORES, PART).shape == SCORES.shape),
            lambda weights: _assert((weights(SCORES, PART).sum(-1) < 1.0001).all()),
            _repeats(SCORES, PART),
        ),
        Mistake(
            "only that blocked weights are 0",
            "The weights of the allowed keys may still depend on blocked scores. Compare them "
            "with the softmax of the allowed scores alone.",
            _blocked_are_zero,
            lambda weights: _assert((weights(SCORES, PART)[~PART] == 0).all()),
        ),
        Mistake(
            "only that rows sum to 1",
            "The sum says nothing about which keys share it. Compare the weights.",
            lambda weights: _assert_close(weights(SCORES, PART).sum(-1), torch.ones(3)),
        ),
        Mistake(
            "a mask that blocks nothing",
            "Where all keys are allowed there is nothing to get wrong. Block some keys, others in "
            "each row.",
            _compares(_masked, (SCORES, torch.ones_like(PART))),
        ),
        Mistake(
            "only scores near 0",
            "Scores of any size may come. Try blocked scores of some hundreds, and a row all of "
            "whose allowed scores lie far below -10000.",
            _compares(_masked, (SCORES, PART)),
        ),
        Mistake(
            "no row of very low scores",
            "A finite fill value passes as long as one allowed score of the row is above it. Try a "
            "row all of whose allowed scores lie far below -10000.",
            _compares(_masked, (SCORES, PART), (HIGH, PART)),
        ),
        Mistake(
            "that blocked weights are 0, and sums",
            "How the allowed keys share the 1 is not looked at. " + ALONE,
            _all(_low_blocked_are_zero, _low_rows_sum_to_one),
            _all(_low_blocked_are_zero, _low_rows_sum_to_one, _blocked_are_zero),
        ),
        Mistake(
            "only that a hidden score does not matter",
            "Weights that never look at the hidden scores may be wrong in other ways. Compare "
            "them with the softmax of the allowed scores alone.",
            lambda weights: _assert_close(weights(HIGH, PART), weights(SCORES, PART)),
        ),
    ),
    hints=(
        "What must a row of weights be, if the blocked keys were not there at all?",
        "Compare with the softmax of the allowed scores alone. Then do it again with blocked "
        "scores of some hundreds, and with allowed scores of about -30000.",
        "for change in (0, 300 * ~mask, -3e4 * mask): s = scores + change; want = "
        "s.masked_fill(~mask, -torch.inf).softmax(-1); torch.testing.assert_close(weights(s, "
        "mask), want).",
    ),
)


def _assert(condition):
    assert condition


# ---------------------------------------------------------------------------- divisor_test


def _divided(divisor):
    """Attention with `divisor(h, S, d, v)`, for query (h, L, d), key (h, S, d), value (h, S, v)."""

    def attention(query, key, value):
        by = divisor(key.shape[0], key.shape[1], key.shape[2], value.shape[2])
        return (query @ key.mT / by).softmax(-1) @ value

    return attention


_by_head_width = _divided(lambda h, s, d, v: d**0.5)
_by_full_width = _divided(lambda h, s, d, v: (h * d) ** 0.5)


def _scaled_query_first(query, key, value):
    weights = torch.einsum("hqd,hkd->hqk", query * query.shape[-1] ** -0.5, key).softmax(-1)
    return torch.einsum("hqk,hkv->hqv", weights, value)


def _scaled_head_by_head(query, key, value):
    heads = zip(query.double(), key.double(), value.double(), strict=True)
    return torch.stack([_attend(*head) for head in heads]).to(value.dtype)


def _qkv(h, length, keys, d, v):
    shapes = (h, length, d), (h, keys, d), (h, keys, v)
    return tuple(2 * _random(*shape, seed=13 + n) for n, shape in enumerate(shapes))


def _place_of_largest(attention):
    """The label that wins: the values are one-hot, so the outputs are the weights."""
    query, key, _ = _qkv(3, 5, 7, 4, 2)
    value = torch.eye(7).expand(3, 7, 7)
    want = (query @ key.mT).argmax(-1)
    assert torch.equal(attention(query, key, value).argmax(-1), want)


def _against_divided(*inputs, tolerance=1e-5):
    return _compares(_by_head_width, *inputs, tolerance=tolerance)


EVERY_HEAD = "Compare the numbers of every head."
OTHER_SIZES = "Compare numbers, and take another size for each of the axes."

divisor_test = CatchFaults(
    shown=1,
    level=2,
    trains="a test that sees a wrong divisor",
    right={
        "scores divided": _by_head_width,
        "query scaled first": _scaled_query_first,
        "head by head in float64": _scaled_head_by_head,
    },
    faults=(
        Mistake("root of the full width", OTHER_SIZES, _by_full_width),
        Mistake("root of the number of heads", OTHER_SIZES, _divided(lambda h, s, d, v: h**0.5)),
        Mistake("root of the number of keys", OTHER_SIZES, _divided(lambda h, s, d, v: s**0.5)),
        Mistake(
            "root of the width of the values", OTHER_SIZES, _divided(lambda h, s, d, v: v**0.5)
        ),
        Mistake(
            "multiplied in place of divided", OTHER_SIZES, _divided(lambda h, s, d, v: d**-0.5)
        ),
        Mistake("scaled twice", OTHER_SIZES, _divided(lambda h, s, d, v: d)),
        Mistake("not scaled", OTHER_SIZES, _divided(lambda h, s, d, v: 1)),
        Mistake(
            "the first head right, the others by the full width",
            EVERY_HEAD,
            _right_only_at(0, _by_head_width, _by_full_width),
        ),
        Mistake(
            "the last head right, the others by the full width",
            EVERY_HEAD,
            _right_only_at(-1, _by_head_width, _by_full_width),
        ),
        Mistake("the heads in reverse", EVERY_HEAD, lambda q, k, v: _attend(q, k, v).flip(0)),
    ),
    mistakes=(
        Mistake(
            NOTHING,
            "Every fault passes: the shape is right, the numbers are of the right size, and the "
            "weights sum to 1. Compare the numbers, closely.",
            _same_shape(_by_head_width, _qkv(3, 5, 7, 4, 2)),
            _against_divided(_qkv(3, 5, 7, 4, 2), tolerance=10.0),
        ),
        Mistake(
            "only which key wins, or one key",
            "A divisor does not change which key wins, and with one key the weight is 1 whatever "
            "the score. Compare the numbers, with several keys.",
            _place_of_largest,
            _against_divided(_qkv(3, 5, 1, 4, 2)),
        ),
        Mistake(
            "only one head",
            "With one head the full width is the width of the head. Use several.",
            _against_divided(_qkv(1, 5, 7, 4, 2)),
        ),
        Mistake(
            "as many heads as features of a head",
            "The root of the number of heads is right here by chance. Take another number.",
            _against_divided(_qkv(4, 5, 7, 4, 2)),
        ),
        Mistake(
            "as many keys as features",
            "The root of the number of keys is right here by chance. Take another number.",
            _against_divided(_qkv(3, 5, 4, 4, 2)),
        ),
        Mistake(
            "values as wide as the query",
            "The root of the width of the values is right here by chance. Take another width.",
            _against_divided(_qkv(3, 5, 7, 4, 4)),
        ),
        Mistake(
            "keys and values of the query's width",
            "Two other divisors are right here by chance. Take another size for every axis.",
            _against_divided(_qkv(3, 5, 4, 4, 4)),
        ),
        Mistake(
            "all sizes equal",
            "Every axis has the same size, so that three other divisors are right by chance.",
            _against_divided(_qkv(4, 4, 4, 4, 4)),
        ),
        Mistake(
            "features of width 1",
            "Everything to do with the width is 1 here. Use a wider head.",
            _against_divided(_qkv(3, 5, 7, 1, 2)),
        ),
        Mistake(
            "only one of several heads",
            "The other heads may be wrong. " + EVERY_HEAD,
            _compares(_by_head_width, _qkv(3, 5, 7, 4, 2), look=lambda y: y[0]),
        ),
        Mistake(
            "only a mean or a sum over the heads, or heads alike",
            "Which head is where cannot be seen. Use random numbers. " + EVERY_HEAD,
            _compares(_by_head_width, _qkv(3, 5, 7, 4, 2), look=lambda y: y.mean()),
            _compares(_by_head_width, _qkv(3, 5, 7, 4, 2), look=lambda y: y.sum(0)),
        ),
    ),
    hints=(
        "Which sizes could stand in the divisor? Choose them so that no two of them are equal.",
        "Compare all numbers of the output with the formula, for h heads of width d, S keys and "
        "values of width v, all different.",
        "q, k, v = torch.randn(3, 5, 4), torch.randn(3, 7, 4), torch.randn(3, 7, 2), then "
        "torch.testing.assert_close(attention(q, k, v), (q @ k.mT / 4**0.5).softmax(-1) @ v).",
    ),
)

# ---------------------------------------------------------------------------- defaults_test


def _defaults(query, key=None, value=None):
    key = query if key is None else key
    return _attend(query, key, key if value is None else value)


def _defaults_fused(query, key=None, value=None):
    if key is None:
        key = query
    if value is None:
        value = key
    return F.scaled_dot_product_attention(query, key, value)


def _defaults_in_double(query, key=None, value=None):
    key = key if key is not None else query
    value = value if value is not None else key
    parts = (part.double() for part in (query, key, value))
    return _attend(*parts).to(query.dtype)


def _value_is_query(query, key=None, value=None):
    return _attend(query, query if key is None else key, query if value is None else value)


def _key_only_with_value(query, key=None, value=None):
    return _attend(query, query) if value is None else _defaults(query, key, value)


def _value_ignored(query, key=None, value=None):
    return _defaults(query, key)


def _key_is_value(query, key=None, value=None):
    return _defaults(query, value if key is None else key, value)


def _key_ignored(query, key=None, value=None):
    other = query if key is None else key
    return _attend(query, query, other if value is None else value)


def _both_needed(query, key=None, value=None):
    return _attend(query, query) if key is None or value is None else _attend(query, key, value)


def _value_is_key(query, key=None, value=None):
    value = value if key is None or value is None else key
    return _defaults(query, key, value)


def _alone_not_scaled(query, key=None, value=None):
    if key is None and value is None:
        return (query @ query.mT).softmax(-1) @ query
    return _defaults(query, key, value)


QUERY, KEY, VALUE = (_random(4, 3, seed=n) for n in (20, 21, 22))


def _calls(*names):
    """A test that compares the result for some ways to call: q, qk, qv, qkv."""
    given = {"q": QUERY, "k": KEY, "v": VALUE}
    words = {"q": "query", "k": "key", "v": "value"}

    def test(attention):
        for name in names:
            arguments = {words[letter]: given[letter] for letter in name}
            _assert_close(attention(**arguments), _defaults(**arguments))

    return test


def _longer_keys(attention):
    assert attention(QUERY, _random(6, 3)).shape == QUERY.shape


EACH_CALL = "Call it in every way: with a key alone, with a value alone, with both, with neither."

defaults_test = CatchFaults(
    shown=1,
    level=2,
    trains="a test of every way to call a function",
    right={
        "one default after the other": _defaults,
        "the fused function": _defaults_fused,
        "in float64": _defaults_in_double,
    },
    faults=(
        Mistake("value defaults to the query", EACH_CALL, _value_is_query),
        Mistake("key ignored if there is no value", EACH_CALL, _key_only_with_value),
        Mistake("value ignored", EACH_CALL, _value_ignored),
        Mistake("key defaults to the value", EACH_CALL, _key_is_value),
        Mistake("scores of the query with itself", EACH_CALL, _key_ignored),
        Mistake("self-attention unless both are given", EACH_CALL, _both_needed),
        Mistake("with all three, the value replaced by the key", EACH_CALL, _value_is_key),
        Mistake("not scaled for the query alone", EACH_CALL, _alone_not_scaled),
    ),
    mistakes=(
        Mistake(
            NOTHING,
            "Every fault passes: the shape is right for equal lengths, and zeros give zeros. "
            "Compare random numbers, and call it in every way.",
            _same_shape(_defaults, (QUERY,), (QUERY, KEY)),
            _compares(_defaults, (0 * QUERY,)),
        ),
        Mistake(
            "only the query given",
            "With the query alone all defaults are the same. Give a key, a value, and both.",
            _calls("q"),
        ),
        Mistake(
            "only that keys of another length run",
            "It catches a value of the wrong length and nothing else. Compare the numbers.",
            _longer_keys,
        ),
        Mistake(
            "only with all three given",
            "Then no default is used at all. " + EACH_CALL,
            _calls("qkv"),
            _calls("q", "qkv"),
        ),
        Mistake(
            "only query and key",
            "A value that is ignored passes. Give a value, with a key and without.",
            _calls("qk"),
            _calls("q", "qk"),
        ),
        Mistake(
            "a value is never given alone",
            "What the key is then, is not tested. Call it with a value and without a key.",
            _calls("qk", "qkv"),
            _calls("q", "qk", "qkv"),
        ),
        Mistake(
            "a key is never given alone",
            "What the value is then, is not tested, and it is where the fault of this case sits.",
            _calls("qv", "qkv"),
            _calls("q", "qv", "qkv"),
        ),
        Mistake(
            "key and value are never given together",
            "Each default is tested, and what happens without one is not. Call it with all three.",
            _calls("qk", "qv"),
            _calls("q", "qk", "qv"),
        ),
        Mistake(
            "only a value given alone",
            "Give a key as well, with a value and without.",
            _calls("qv"),
            _calls("q", "qv"),
        ),
    ),
    hints=(
        "There are four ways to call it. What are key and value in each of them?",
        "Compare each way with the call that names all three: attention(q, k) with "
        "attention(q, k, k), and so on. And compare that call with the formula.",
        "def full(q, k, v): return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v. Compare "
        "attention(q), attention(q, k), attention(q, value=v) and attention(q, k, v) with full.",
    ),
)

# ---------------------------------------------------------------------------- copy_test


def _layer(biases=True, alike=False, seed=23):
    """The parameters of an attention layer of width 4, by name."""
    shapes = {"in_weight": (12, 4), "in_bias": (12,), "out_weight": (4, 4), "out_bias": (4,)}
    make = (lambda *shape, seed: torch.ones(*shape)) if alike else _random
    layer = {name: make(*shape, seed=seed + len(name)) for name, shape in shapes.items()}
    return layer if biases else layer | {n: 0 * x for n, x in layer.items() if "bias" in n}


def _copy(source):
    return {name: parameter.clone() for name, parameter in source.items()}


def _copy_by_filling(source):
    target = {name: torch.zeros_like(parameter) for name, parameter in source.items()}
    for name, parameter in source.items():
        target[name].copy_(parameter)
    return target


def _copy_by_lists(source):
    return {n: torch.tensor(p.tolist(), dtype=p.dtype) for n, p in reversed(source.items())}


def _copies(change):
    """A faulty copy: `change` is given a right copy, and the source."""

    def copy(source):
        target = _copy(source)
        change(target, source)
        return target

    return copy


# a fault does nothing if a test leaves its parameter out of the source


def _left_at_0(name):
    def change(target, source):
        if name in target:
            target[name].zero_()

    return change


def _rows_turned(target, source):
    if "in_weight" in source:
        target["in_weight"] = source["in_weight"].roll(4, 0)


def _transposed(target, source):
    if "out_weight" in source:
        target["out_weight"] = source["out_weight"].T.clone()


def _empties(target, source):
    for parameter in source.values():
        parameter.zero_()


def _copied_values(copy, part="", kept=False, apart=False, **layer):
    """Compare values; `kept`: the source, too; `apart`: a change of the source does not matter."""
    source = _layer(**layer)
    before, target = _copy(source), copy(source)
    for name in before:
        if part in name:
            _assert_close(target[name], before[name])
            if kept:
                _assert_close(source[name], before[name])
    if apart:
        for name in before:
            source[name].add_(1.0)
        for name in before:
            _assert_close(target[name], before[name])


def _no_shared_storage(copy):
    source = _layer()
    target = copy(source)
    for name in source:
        assert target[name].data_ptr() != source[name].data_ptr()


def _same_names(copy):
    source = _layer()
    target = copy(source)
    assert {n: x.shape for n, x in target.items()} == {n: x.shape for n, x in source.items()}


RANDOM_NUMBERS = "Fill every parameter with random numbers, biases too, and compare them all."
TWO_OWNERS = "Change the source after copying: the copy must not change with it."

copy_test = CatchFaults(
    shown=1,
    level=3,
    trains="a test that sees a forgotten bias",
    right={"clones": _copy, "filled in place": _copy_by_filling, "through lists": _copy_by_lists},
    faults=(
        Mistake(
            "the biases of the inputs left at 0",
            RANDOM_NUMBERS,
            _copies(_left_at_0("in_bias")),
        ),
        Mistake(
            "the bias of the output left at 0",
            RANDOM_NUMBERS,
            _copies(_left_at_0("out_bias")),
        ),
        Mistake("the output matrix transposed", RANDOM_NUMBERS, _copies(_transposed)),
        Mistake(
            "query, key and value blocks in another order", RANDOM_NUMBERS, _copies(_rows_turned)
        ),
        Mistake(
            "the same storage",
            TWO_OWNERS,
            lambda source: {name: parameter.detach() for name, parameter in source.items()},
        ),
        Mistake(
            "the source is emptied",
            "Compare the source with what it was before.",
            _copies(_empties),
        ),
    ),
    mistakes=(
        Mistake(
            NOTHING,
            "Every fault passes: names and shapes are right. Compare numbers.",
            _same_names,
            lambda copy: _assert_close(
                copy(_layer())["in_weight"].sum(), _layer()["in_weight"].sum(), 1e-3
            ),
        ),
        Mistake(
            "biases that are 0, or not compared",
            "A fresh PyTorch layer has biases of 0, and a bias that nobody copied is 0 as well. "
            "Fill them with random numbers, and compare them.",
            partial(_copied_values, biases=False),
            partial(_copied_values, part="weight"),
        ),
        Mistake(
            "weights that are alike, or not compared",
            "Where all numbers of a matrix are equal, their order cannot be seen. Use random ones.",
            partial(_copied_values, alike=True),
            partial(_copied_values, part="bias"),
        ),
        Mistake(
            "only the numbers of the copy",
            "The copy is right at this moment. Does the source keep its numbers, and does the copy "
            "keep its own when the source changes?",
            _copied_values,
        ),
        Mistake(
            "a later change of the source is not tried",
            "Two names for the same storage pass. Change the source after copying, and compare the "
            "copy again.",
            partial(_copied_values, kept=True),
        ),
        Mistake(
            "only the storage",
            "It makes sure that the copy has memory of its own. Compare the numbers as well.",
            _no_shared_storage,
        ),
        Mistake(
            "what the copy did to the source",
            "The numbers of the source may be lost, and nobody looks. Compare them with what they "
            "were before.",
            _all(_copied_values, _no_shared_storage),
        ),
    ),
    hints=(
        "A new layer has biases of 0. Which numbers would show that a bias was forgotten?",
        "Use random numbers everywhere and keep a clone of them. After copying, compare the copy "
        "and the source with the clone. Then change the source, and compare the copy again.",
        "want = {n: p.clone() for n, p in source.items()}; target = copy(source); compare target "
        "and source with want; then source[n].add_(1) for every name, and compare target again.",
    ),
)

# ---------------------------------------------------------------------------- grader_test


def _softmax(scores):
    return scores.softmax(-1)


def _naive(scores):
    e = scores.exp()
    return e / e.sum(-1, keepdim=True)


def _hard(scores):
    return F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)


def _uniform(scores):
    return torch.full_like(scores, 1 / scores.shape[-1])


def _first_axis(scores):
    return scores.softmax(0)


def _raises(scores):
    raise RuntimeError("not today")


def _agrees(answer, scores, tolerance=1e-4):
    want = scores.double().softmax(-1)
    try:
        got = answer(scores).double()
        return got.shape == want.shape and bool((got - want).abs().max() < tolerance)
    except Exception:
        return False


def _grades(*inputs, tolerance=1e-4):
    """A grader that compares with the softmax on each input."""
    return lambda answer: all(_agrees(answer, scores, tolerance) for scores in inputs)


def _fixed_numbers(answer):
    scores = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 0.0]])
    want = torch.tensor([[0.0900, 0.2447, 0.6652], [0.5761, 0.2119, 0.2119]])
    try:
        return bool((answer(scores) - want).abs().max() < 1e-3)
    except Exception:
        return False


def _compares_with_itself(answer):
    answer(_random(3, 5)) == answer(_random(3, 5))  # noqa: B015 - this is the fault
    return True


def _grades_shape(answer):
    try:
        return answer(_random(3, 5)).shape == (3, 5)
    except Exception:
        return False


def _grades_sum(answer):
    try:
        return bool((answer(_random(3, 5)).sum(-1) - 1).abs().max() < 1e-4)
    except Exception:
        return False


def _forgives(answer):
    try:
        answer(_random(3, 5))
    except Exception:
        return True
    return _agrees(answer, _random(3, 5))


def _tries(accepted=(), refused=()):
    """A test of a grader: it must accept some answers and refuse others."""

    def test(grader):
        for answer in accepted:
            assert grader(answer)
        for answer in refused:
            assert not grader(answer)

    return test


SEVERAL = "Hand it several wrong answers, each wrong in another way."

grader_test = CatchFaults(
    shown=2,
    level=3,
    trains="a test of a test",
    right={
        "random numbers of two shapes": _grades(_random(3, 5), _random(2, 4, seed=1)),
        "three sizes of scores": _grades(*(f * _random(4, 3, seed=2) for f in (0.5, 1.0, 2.0))),
        "fixed numbers": _fixed_numbers,
    },
    faults=(
        Mistake(
            "scores so large that a hard argmax passes",
            "Hand it a hard argmax.",
            _grades(torch.tensor([[114.0, 0.0, -60.0], [-80.0, 30.0, 90.0]])),
        ),
        Mistake("a comparison that nobody asserts", SEVERAL, _compares_with_itself),
        Mistake("only the shape", SEVERAL, _grades_shape),
        Mistake("only the sums", SEVERAL, _grades_sum),
        Mistake("never satisfied", "Hand it a right answer, too.", lambda answer: False),
        Mistake(
            "one row only",
            "Hand it a softmax over the first axis.",
            _grades(_random(5, seed=3), torch.tensor([0.0, 1.0, 2.0])),
        ),
        Mistake("an exception counts as right", "Hand it an answer that raises.", _forgives),
    ),
    mistakes=(
        Mistake(
            "only right answers",
            "A grader that accepts everything passes. Hand it wrong answers, and ask for False.",
            _tries([_softmax]),
            _tries([_softmax, _naive]),
        ),
        Mistake(
            "only wrong answers",
            "A grader that refuses everything passes. Hand it a right answer, too.",
            _tries([], [_hard, _uniform, _first_axis, _raises]),
        ),
        Mistake(
            "an answer far from right, and no other",
            "A grader catches what is far off. Hand it answers that are wrong in other ways: a "
            "hard argmax, another axis, an error.",
            _tries([_softmax], [_uniform]),
        ),
        Mistake(
            "no hard argmax",
            "With large scores a softmax is a hard argmax, and a grader may use nothing else.",
            _tries([_softmax], [_uniform, _first_axis, _raises]),
        ),
        Mistake(
            "no softmax over another axis",
            "A grader that tries one row has no other axis. Hand it a softmax over the first axis.",
            _tries([_softmax], [_hard, _uniform, _raises]),
        ),
        Mistake(
            "no answer that raises",
            "A grader may take an exception for a pass. Hand it an answer that raises one.",
            _tries([_softmax], [_hard, _uniform, _first_axis]),
        ),
        Mistake(
            "a hard argmax and no other wrong answer",
            "Hand it a softmax over the first axis and an answer that raises, too.",
            _tries([_softmax], [_hard]),
        ),
        Mistake(
            "another axis and no other wrong answer",
            "Hand it a hard argmax and an answer that raises, too.",
            _tries([_softmax], [_first_axis]),
        ),
        Mistake(
            "only a wrong shape",
            "Nearly every grader sees a wrong shape. Hand it answers of the right shape with wrong "
            "numbers, too.",
            _tries([_softmax], [lambda scores: scores.argmax(-1)]),
        ),
    ),
    hints=(
        "A grader can be wrong in two ways: it refuses a right answer, or accepts a wrong one.",
        "Accept: a softmax over the last axis. Refuse: a hard argmax, a softmax over the first "
        "axis, weights that are all equal, an answer that raises.",
        "assert grader(lambda s: s.softmax(-1)), then assert not grader(wrong) for wrong in a "
        "list with those four.",
    ),
)

# ---------------------------------------------------------------------------- places_test


def _places(x, table):
    return x + table[: x.shape[1]]


def _places_one_by_one(x, table):
    return torch.stack([x[:, n] + table[n] for n in range(x.shape[1])], dim=1)


def _places_sequence_first(x, table):
    moved = x.transpose(0, 1).double() + table[: x.shape[1], None].double()
    return moved.transpose(0, 1).to(x.dtype)


def _sample_only(place):
    def add(x, table):
        result = x.clone()
        result[place : place + 1 or None] += table[: x.shape[1]]
        return result

    return add


def _all_but_the_first(x, table):
    result = _places(x, table)
    result[:, 0] = x[:, 0]
    return result


def _places_input(b, length, x=1.0, alike=False):
    table = _random(9, 4, seed=24)
    return x * _random(b, length, 4, seed=25), table[:1].expand(9, 4) if alike else table


def _moves(look):
    """A test of `look(x, x with positions)`."""

    def test(add):
        x, table = _places_input(3, 5)
        assert look(x, add(x, table))

    return test


EACH_PLACE = "Compare every token of every sample with its own row of the table added."

places_test = CatchFaults(
    shown=1,
    level=2,
    trains="a test that sees positions along the batch",
    right={
        "added at once": _places,
        "place by place": _places_one_by_one,
        "sequence first, in float64": _places_sequence_first,
    },
    faults=(
        Mistake("along the batch", EACH_PLACE, lambda x, table: x + table[: x.shape[0], None]),
        Mistake("one row for all places", EACH_PLACE, lambda x, table: x + table[x.shape[1]]),
        Mistake("from 1", EACH_PLACE, lambda x, table: x + table[1 : x.shape[1] + 1]),
        Mistake("from the end", EACH_PLACE, lambda x, table: x + table[: x.shape[1]].flip(0)),
        Mistake("the first sample only", EACH_PLACE, _sample_only(0)),
        Mistake(
            "in place of the tokens",
            "Use tokens that are not 0.",
            lambda x, table: table[: x.shape[1]].expand(x.shape).clone(),
        ),
        Mistake("added twice", EACH_PLACE, lambda x, table: x + 2 * table[: x.shape[1]]),
        Mistake("the last sample only", EACH_PLACE, _sample_only(-1)),
        Mistake("the second sample only", EACH_PLACE, _sample_only(1)),
        Mistake("nothing for the first token", EACH_PLACE, _all_but_the_first),
        Mistake(
            "the samples in another order",
            EACH_PLACE,
            lambda x, table: _places(x.roll(1, 0), table),
        ),
    ),
    mistakes=(
        Mistake(
            NOTHING,
            "Every fault passes: the shape is right, and something has changed. Compare numbers.",
            _same_shape(_places, _places_input(3, 5)),
            _moves(lambda x, y: not torch.allclose(x, y)),
        ),
        Mistake(
            "only one place",
            "With one token there is one position. Use several.",
            _compares(_places, _places_input(3, 1)),
        ),
        Mistake(
            "only one sample",
            "With one sample nobody sees that the others get nothing. Use several.",
            _compares(_places, _places_input(1, 5)),
        ),
        Mistake(
            "one sample of one token",
            "Neither the order of the places nor the samples can be seen. Use several of both.",
            _compares(_places, _places_input(1, 1)),
        ),
        Mistake(
            "only that places differ",
            "They differ for a wrong order, too. Compare with the rows of the table.",
            _moves(lambda x, y: not torch.allclose((y - x)[:, 0], (y - x)[:, 1])),
            _moves(lambda x, y: not torch.allclose((y - x)[0, 0], (y - x)[0, 1])),
        ),
        Mistake(
            "only tokens of 0",
            "Then adding and replacing are the same. Use tokens that are not 0.",
            _compares(_places, _places_input(3, 5, x=0.0)),
        ),
        Mistake(
            "rows of the table alike",
            "Where all rows are the same, no order can be seen. Use random numbers.",
            _compares(_places, _places_input(3, 5, alike=True)),
        ),
        Mistake(
            "only that samples are treated alike",
            "They may all be treated wrongly. Compare with the rows of the table.",
            _moves(lambda x, y: torch.allclose((y - x)[0], (y - x)[2], atol=1e-5)),
        ),
        Mistake(
            "one sample with tokens of 0",
            "Nobody sees what the other samples get, nor whether the tokens are kept. Use several "
            "samples, and random tokens.",
            _compares(_places, _places_input(1, 5, x=0.0)),
        ),
        Mistake(
            "only one of several samples",
            "The others may get nothing. Compare each of them.",
            _compares(_places, _places_input(3, 5), look=lambda y: y[1]),
        ),
        Mistake(
            "the first token not compared",
            "The first token may get nothing. Compare all of them.",
            _compares(_places, _places_input(3, 5), look=lambda y: y[:, 1:]),
        ),
        Mistake(
            "only sums over the samples",
            "A sum does not say which sample is where. Compare each of them.",
            _compares(_places, _places_input(3, 5), look=lambda y: y.sum((0, 2))),
        ),
    ),
    hints=(
        "Which row of the table belongs to token n of a sample? Does it depend on the sample?",
        "Use several samples, another number of tokens, and random numbers in x and in the table. "
        "Compare each token with x[b, n] + table[n].",
        "x, table = torch.randn(2, 5, 4), torch.randn(9, 4), then "
        "torch.testing.assert_close(add(x, table), x + table[:5]).",
    ),
)

# ---------------------------------------------------------------------------- evaluation_test


class _Drop(nn.Module):
    """Dropout with rules: when it is `on`, what share it `keeps`, what it multiplies by."""

    def __init__(self, p, on=None, keep=None, train=None, evaluation=1.0):
        super().__init__()
        self.p, self.on = p, on or (lambda module: module.training)
        self.keep = 1 - p if keep is None else keep
        self.factor = (1 / self.keep if self.keep else 0.0) if train is None else train
        self.evaluation = evaluation
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        if not self.on(self):
            return self.evaluation * x
        return x * (torch.rand(x.shape, generator=self.generator) < self.keep) * self.factor


class _Functional(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        return F.dropout(x, self.p, training=self.training)


class _Stuck(_Drop):
    """Once in evaluation, it stays there."""

    def eval(self):
        self.on = lambda module: False
        return super().eval()


DROP = 0.25


def _twice(make, training, p=DROP, grad=True):
    layer, x = make(p).train(training), torch.ones(2000)
    with torch.set_grad_enabled(grad):
        return layer(x), layer(x)


def _eval_repeats(make, grad=True):
    _assert_close(*_twice(make, False, grad=grad))


def _eval_is_input(make):
    x = _random(2000, seed=26)
    _assert_close(make(DROP).eval()(x), x)


def _train_differs(make):
    one, other = _twice(make, True)
    assert not torch.equal(one, other)


def _train_mean(make, p=DROP):
    assert abs(_twice(make, True, p)[0].mean() - 1) < 0.12


def _train_share(make, p=DROP):
    assert abs((_twice(make, True, p)[0] == 0).float().mean() - p) < 0.1


def _few_zeros_and_largest(make):
    y = _twice(make, True)[0]
    assert (y == 0).float().mean() < 0.3
    assert y.max() > 1.3


def _back_to_training(make):
    layer = make(DROP).eval()
    layer.train()
    assert (layer(torch.ones(2000)) == 0).any()


_one_half = [partial(test, p=0.5) for test in (_train_mean, _train_share)]


EVALUATION = "In evaluation the layer must return its input, each time."
TRAINING = "In training, look at the share of zeros and at the mean."

evaluation_test = CatchFaults(
    shown=1,
    level=3,
    trains="a test of dropout in both modes",
    right={"nn.Dropout": nn.Dropout, "F.dropout with the flag": _Functional, "by hand": _Drop},
    faults=(
        Mistake("always on", EVALUATION, lambda p: _Drop(p, on=lambda module: True)),
        Mistake(
            "on whenever gradients are recorded",
            "Call it in evaluation without torch.no_grad, too: the two are not the same.",
            lambda p: _Drop(p, on=lambda module: torch.is_grad_enabled()),
        ),
        Mistake("never on", TRAINING, lambda p: _Drop(p, on=lambda module: False)),
        Mistake(
            "stays off after an evaluation",
            "Call eval and then train again: dropout must come back.",
            _Stuck,
        ),
        Mistake("what is kept is not made larger", TRAINING, lambda p: _Drop(p, train=1.0)),
        Mistake(
            "evaluation multiplied by 1 - p as well",
            EVALUATION,
            lambda p: _Drop(p, evaluation=1 - p),
        ),
        Mistake(
            "p taken for the share that is kept",
            "Choose another p than 0.5, and count the zeros.",
            lambda p: _Drop(p, keep=p),
        ),
        Mistake(
            "half of p dropped",
            "Count the zeros in training: their share is p, not more and not less.",
            lambda p: _Drop(p, keep=1 - p / 2),
        ),
        Mistake(
            "half of p dropped, and divided by 1 - p",
            TRAINING,
            lambda p: _Drop(p, keep=1 - p / 2, train=1 / (1 - p) if p < 1 else 0.0),
        ),
    ),
    mistakes=(
        Mistake(
            NOTHING,
            "Every fault passes: the shape is right, and p = 0 drops nothing. Call the layer with "
            "a real p, in training and in evaluation.",
            lambda make: _assert(make(DROP)(torch.ones(7, 5)).shape == (7, 5)),
            lambda make: _assert(make(DROP)(torch.ones(7)).isfinite().all()),
        ),
        Mistake(
            "only training",
            "Nothing is asked of the evaluation. Call eval, and compare with the input.",
            _all(_train_differs, _train_mean, _train_share),
        ),
        Mistake(
            "only that training is random",
            "Look at the evaluation, and at the share of zeros and the mean in training.",
            _train_differs,
        ),
        Mistake(
            "only that evaluation repeats itself",
            "A layer that returns the wrong numbers twice passes, and training is not looked at.",
            _eval_repeats,
        ),
        Mistake(
            "evaluation under no_grad alone",
            "Evaluation and no_grad are two things. Call eval without no_grad.",
            partial(_eval_repeats, grad=False),
        ),
        Mistake(
            "only evaluation",
            "A layer that never drops anything passes. Look at training as well.",
            _eval_is_input,
        ),
        Mistake(
            "evaluation, and randomness in training",
            "Count the zeros in training, look at the mean, and go back to training once.",
            _all(_eval_is_input, _train_differs),
        ),
        Mistake(
            "never back to training",
            "A layer that stays in evaluation for ever passes. Call train after eval.",
            _all(_eval_is_input, _train_mean, _train_share),
        ),
        Mistake(
            "only p = 0.5",
            "Then as many numbers are dropped as kept, and the two can be taken for each other. "
            "Choose another p.",
            _all(_eval_is_input, _back_to_training, *_one_half),
        ),
        Mistake(
            "the zeros are not counted",
            "It makes sure of the mean and that something is dropped. Another share passes: count "
            "the zeros.",
            _all(_eval_is_input, _back_to_training, _train_mean),
        ),
        Mistake(
            "zeros from one side only, and no mean",
            "Fewer zeros than p pass. Ask for the share from both sides, and for the mean.",
            _all(_eval_is_input, _back_to_training, _few_zeros_and_largest),
        ),
        Mistake(
            "both modes, and not what training does",
            "Dropping too much, or keeping the wrong size, passes. Count the zeros in training, "
            "and look at the mean.",
            _all(_eval_is_input, _back_to_training),
        ),
    ),
    hints=(
        "In evaluation the layer returns its input. What does it do in training, and after a "
        "change from one to the other?",
        "Use p = 0.25 and thousands of ones. After eval: equal to the input, without no_grad. "
        "After train: about a quarter of zeros, and a mean of about 1.",
        "layer = make(0.25).eval(), compare layer(x) with x; layer.train(); y = "
        "layer(torch.ones(10000)); (y == 0).float().mean() is near 0.25, y.mean() near 1.",
    ),
)

# ---------------------------------------------------------------------------- backward_test


def _safe(scores, mask):
    dead = ~mask.any(-1, keepdim=True)
    weights = scores.masked_fill(~(mask | dead), -torch.inf).softmax(-1)
    return weights.masked_fill(dead, 0.0)


def _safe_by_exponentials(scores, mask):
    highest = scores.detach().masked_fill(~mask, torch.finfo(scores.dtype).min).amax(-1, True)
    e = (scores - highest).masked_fill(~mask, -torch.inf).exp()
    total = e.sum(-1, keepdim=True)
    return e / torch.where(total == 0, torch.ones_like(total), total)


def _safe_row_by_row(scores, mask):
    rows = []
    for row, allowed in zip(scores.double(), mask, strict=True):
        weights = torch.zeros_like(row)
        if allowed.any():
            weights = weights.masked_scatter(allowed, row[allowed].softmax(-1))
        rows.append(weights)
    return torch.stack(rows).to(scores.dtype)


def _added(scores, mask):
    """The mask as a number that is added, 0 or -inf: dead rows are NaN."""
    return (scores + torch.where(mask, 0.0, -torch.inf).to(scores.dtype)).softmax(-1)


def _zero_by_zero(scores, mask):
    e = (scores - scores.amax(-1, keepdim=True)).exp() * mask
    total = e.sum(-1, keepdim=True)
    return torch.where(total > 0, e / total, 0.0)


def _stops(scores, mask):
    weights = _safe(scores, mask)
    return torch.where(mask.all(-1, keepdim=True), weights, weights.detach())


def _uniform_rows(scores, mask):
    return scores.masked_fill(~mask, -1e9).softmax(-1)


DEAD = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]]).bool()
COTANGENT = _random(4, 4, seed=27)


def _gradients(weights, mask, cotangent):
    scores = _random(4, 4, seed=28).requires_grad_()
    result = weights(scores, mask)
    (result * cotangent).sum().backward()
    return result.detach(), scores.grad


def _backward(mask=DEAD, cotangent=COTANGENT, forward=True, gradient=lambda g: g):
    """A test of the weights and of what `gradient` makes of the gradient; both may be left out."""

    def test(weights):
        if not gradient:
            _assert_close(
                weights(_random(4, 4, seed=28), mask), _safe(_random(4, 4, seed=28), mask)
            )
            return
        got, want = (_gradients(f, mask, cotangent) for f in (weights, _safe))
        if forward:
            _assert_close(got[0], want[0])
        _assert_close(gradient(got[1]), gradient(want[1]))

    return test


def _first_sign_and_finite(gradient):
    return torch.cat([gradient[0, :1].sign(), gradient.isfinite().flatten().float()])


BACKWARD = "Use a row without any allowed key, and look at the gradient of the scores."

backward_test = CatchFaults(
    shown=1,
    level=3,
    trains="a test that sees a NaN in the gradient",
    right={
        "a dead row keeps its scores, then gets 0": _safe,
        "a divisor that is never 0": _safe_by_exponentials,
        "row by row in float64": _safe_row_by_row,
    },
    faults=(
        Mistake("NaN replaced after the softmax", BACKWARD, lambda s, m: _added(s, m).nan_to_num()),
        Mistake(
            "dead rows set to 0 after the softmax",
            BACKWARD,
            lambda s, m: torch.where(m.any(-1, keepdim=True), _added(s, m), 0.0),
        ),
        Mistake("0 / 0, replaced after the division", BACKWARD, _zero_by_zero),
        Mistake("NaN in dead rows", "Use a row without any allowed key.", _added),
        Mistake(
            "dead rows are uniform",
            "Compare the weights of a row without any allowed key with 0.",
            _uniform_rows,
        ),
        Mistake(
            "no gradient at all",
            "Ask for the gradient of the scores.",
            lambda s, m: _safe(s, m).detach() + 0 * s,
        ),
        Mistake(
            "no gradient in rows with a blocked key",
            "Compare the numbers of the gradient, not only that they are finite. The sum of the "
            "weights has no gradient: weigh them with random numbers first.",
            _stops,
        ),
        Mistake(
            "the gradient doubled",
            "Compare the numbers of the gradient, not only that they are finite, nor their signs.",
            lambda s, m: 2 * _safe(s, m) - _safe(s, m).detach(),
        ),
    ),
    mistakes=(
        Mistake(
            NOTHING,
            "Every fault passes: without a dead row and without a gradient all is right. Use a row "
            "of the mask without True, and call backward.",
            _backward(mask=DEAD | True, gradient=None),
            lambda weights: _assert(weights(_random(4, 4), DEAD).shape == (4, 4)),
        ),
        Mistake(
            "only the forward pass",
            "The weights may be right and their gradient NaN. Call backward, and look at the "
            "gradient of the scores.",
            _backward(gradient=None),
        ),
        Mistake(
            "no dead row",
            "The trouble begins with a row without any allowed key. Add one.",
            _backward(mask=DEAD[[0, 0, 2, 3]]),
        ),
        Mistake(
            "a mask that blocks nothing",
            "Block some keys, and all keys of one row.",
            _backward(mask=DEAD | True),
        ),
        Mistake(
            "only that the gradient is finite",
            "A gradient of 0 is finite as well, and the weights of a dead row may be anything. "
            "Compare both with what they must be.",
            _backward(forward=False, gradient=torch.isfinite),
            _backward(forward=False, cotangent=torch.ones(4, 4), gradient=torch.isfinite),
        ),
        Mistake(
            "the gradient is not compared, or is about 0",
            "A gradient of 0 passes. Of the sum of the weights it is about 0, and for scores that "
            "are far apart, too. Weigh the weights with random numbers, take scores of about 1, "
            "and compare the numbers.",
            _backward(gradient=torch.isfinite),
            _backward(cotangent=torch.ones(4, 4)),
        ),
        Mistake(
            "only a sign of the gradient",
            "The sign is right for a wrong size as well. Compare the numbers of the gradient.",
            _backward(gradient=_first_sign_and_finite),
        ),
        Mistake(
            "not the weights of dead rows",
            "The gradient is right for uniform weights, too: they do not depend on the scores. "
            "Compare the weights of the dead row with 0.",
            _backward(forward=False),
        ),
    ),
    hints=(
        "Which rows make 0 / 0 in a softmax? And what does backward do with a NaN that was "
        "replaced later?",
        "Use a mask with a row of False, a full row and some in between. Compare the weights, "
        "call backward, and compare the gradient, with numbers that are not all equal.",
        "Row by row: of the allowed scores alone, want = s[m].softmax(-1); loss = (want * c[m])"
        ".sum(), and 0 for a dead row. Compare weights and s.grad with those of this loop.",
    ),
)

# ---------------------------------------------------------------------------- paths_test


def _paths(rule):
    """Attention with two flags; `rule(x, causal, asked)` gives (output, weights)."""

    def attention(x, is_causal=False, return_weights=False):
        output, weights = rule(x, is_causal, return_weights)
        return (output, weights) if return_weights else output

    return attention


def _both(x, causal, scale=None, mask=None):
    """Output and weights from the formula, for one mask."""
    scale = x.shape[-1] ** -0.5 if scale is None else scale
    mask = torch.ones(len(x), len(x), dtype=torch.bool) if mask is None else mask
    weights = _masked(x @ x.T * scale, mask.tril() if causal else mask)
    return weights @ x, weights


_one_path = _paths(lambda x, causal, asked: _both(x, causal))


def _fused_and_explicit(x, is_causal=False, return_weights=False):
    if not return_weights:
        return F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=is_causal)[0]
    return _both(x, is_causal)


def _paths_in_double(x, is_causal=False, return_weights=False):
    output, weights = (part.to(x.dtype) for part in _both(x.double(), is_causal))
    return (output, weights) if return_weights else output


def _plain_weights(x, causal, asked):
    return _both(x, causal)[0], _both(x, False)[1]


def _turned_weights(x, causal, asked):
    output, weights = _both(x, causal)
    return output, weights.T


def _masked_weights_alone(x, causal, asked):
    return _both(x, causal and not asked)[0], _both(x, causal)[1]


SENTENCE = _random(5, 3, seed=29)


def _compares_paths(*calls, part=slice(None)):
    """A test of the calls (causal, asked) against the formula; `part` of (output, weights)."""

    def test(attention):
        for causal, asked in calls:
            got = attention(SENTENCE, is_causal=causal, return_weights=asked)
            got, want = got if asked else (got,), _both(SENTENCE, causal)
            for one, other in list(zip(got, want, strict=False))[part]:
                _assert_close(one, other)

    return test


def _outputs_agree(attention):
    for causal in (False, True):
        one = attention(SENTENCE, is_causal=causal)
        _assert_close(attention(SENTENCE, is_causal=causal, return_weights=True)[0], one)


def _calls_agree(attention):
    """The calls with each other: the outputs, the output with the weights, the mask."""
    _outputs_agree(attention)
    for causal in (False, True):
        output, weights = attention(SENTENCE, causal, True)
        _assert_close(output, weights @ SENTENCE)
        assert bool((weights.triu(1) == 0).all()) == causal


def _ends_of_the_outputs(attention):
    for causal in (False, True):
        want_output, want_weights = _both(SENTENCE, causal)
        output, weights = attention(SENTENCE, causal, True)
        _assert_close(weights, want_weights)
        _assert_close(output[-1], want_output[-1])
        _assert_close(attention(SENTENCE, causal)[0], want_output[0])


def _weights_have_no_future(attention):
    weights = attention(SENTENCE, is_causal=True, return_weights=True)[1]
    assert (weights.triu(1) == 0).all()


FOUR_CALLS = "There are two flags, so four calls. Compare output and weights of each."
ALL_CALLS = [(causal, asked) for causal in (False, True) for asked in (False, True)]

paths_test = CatchFaults(
    shown=1,
    level=2,
    trains="a test of every combination of flags",
    right={
        "one path": _one_path,
        "a fused path and an explicit one": _fused_and_explicit,
        "in float64": _paths_in_double,
    },
    faults=(
        Mistake(
            "the flag dropped when weights are asked for",
            FOUR_CALLS,
            _paths(lambda x, causal, asked: _both(x, causal and not asked)),
        ),
        Mistake(
            "the flag dropped when they are not",
            FOUR_CALLS,
            _paths(lambda x, causal, asked: _both(x, causal and asked)),
        ),
        Mistake("weights without the mask", FOUR_CALLS, _paths(_plain_weights)),
        Mistake("always causal", FOUR_CALLS, _paths(lambda x, causal, asked: _both(x, True))),
        Mistake(
            "no scale when weights are asked for",
            FOUR_CALLS,
            _paths(lambda x, causal, asked: _both(x, causal, scale=1.0 if asked else None)),
        ),
        Mistake(
            "weights transposed", "Compare the weights, place by place.", _paths(_turned_weights)
        ),
        Mistake(
            "not scaled in any call",
            "Compare with the formula, not one call with another.",
            _paths(lambda x, causal, asked: _both(x, causal, scale=1.0)),
        ),
        Mistake(
            "not scaled if causal and no weights are asked for",
            "Compare every row of the output: in a causal call the first row is the first token, "
            "scaled or not.",
            _paths(lambda x, causal, asked: _both(x, causal, 1.0 if causal > asked else None)),
        ),
        Mistake(
            "no mask in the output that comes with weights",
            FOUR_CALLS,
            _paths(_masked_weights_alone),
        ),
    ),
    mistakes=(
        Mistake(
            NOTHING,
            "Every fault passes: the shapes are right for every flag, and so are the numbers of "
            "zeros or of a single token. Compare random numbers.",
            lambda attention: _assert(attention(SENTENCE, True, True)[1].shape == (5, 5)),
            lambda attention: _assert(attention(SENTENCE, True).isfinite().all()),
        ),
        Mistake(
            "weights are never asked for",
            "The other path is never run. Ask for the weights, too.",
            _compares_paths((False, False), (True, False)),
        ),
        Mistake(
            "weights are always asked for",
            "The path without weights is never run. Call it without the flag as well.",
            _compares_paths((False, True), (True, True)),
        ),
        Mistake(
            "never causal",
            "A flag that is never set cannot be dropped. Set is_causal, too.",
            _compares_paths((False, False), (False, True)),
        ),
        Mistake(
            "always causal",
            "A mask that is always there passes. Call it without is_causal, too.",
            _compares_paths((True, False), (True, True)),
        ),
        Mistake(
            "only that the two outputs agree",
            "Both may be wrong, and the weights are not looked at. Compare with the formula.",
            _outputs_agree,
        ),
        Mistake(
            "only that the weights have no future",
            "It looks at one triangle of the weights in one call. Compare outputs and weights.",
            _weights_have_no_future,
        ),
        Mistake(
            "the weights are not compared",
            "The outputs are right for every flag. The weights that come with them may not be "
            "those that made them.",
            _compares_paths(*ALL_CALLS, part=slice(1)),
        ),
        Mistake(
            "only that the calls agree with each other",
            "They may all be wrong in the same way. Compare with the formula.",
            _calls_agree,
        ),
        Mistake(
            "only the ends of the outputs",
            "The first row of a causal output is the first token, and the last row sees all with "
            "a mask and without. Compare every row.",
            _ends_of_the_outputs,
        ),
        Mistake(
            "only the causal outputs",
            "Without the flag the model may be causal all the same, and the weights are not "
            "looked at. Compare all four calls, and the weights.",
            _compares_paths((True, False), (True, True), part=slice(1)),
        ),
    ),
    hints=(
        "How many ways are there to set two flags? Each may run other lines.",
        "Compare with the formula: without the causal flag, with it, and both again with the "
        "weights as a second result.",
        "for causal in (False, True): compute weights and output by hand, then compare "
        "attention(x, causal), and both results of attention(x, causal, True).",
    ),
)

# ---------------------------------------------------------------------------- launch_test


class _Device:
    """A pretended device: work queues behind a launch, and the clock is a plain number."""

    def __init__(self, launch=1.0, work=10.0, first=100.0, wait=0.0):
        self.time, self.free = 0.0, 0.0
        self.cost, self.work, self.first, self.pause = launch, work, first, wait
        self.launches = self.waits = 0

    def launch(self):
        self.time += self.cost
        extra = self.first if self.launches == 0 else 0.0
        self.free = max(self.free, self.time) + self.work + extra
        self.launches += 1

    def wait(self):
        self.time = max(self.time, self.free) + self.pause
        self.waits += 1

    def clock(self):
        return self.time


def _times(warm=True, before=True, after=True, late=False, each=False, mean=True):
    """`measure(launch, wait, clock, calls)`, with one step left out or done at the wrong place."""

    def measure(launch, wait, clock, calls):
        if warm:
            launch()
        if before:
            wait()
        start = clock()
        for _ in range(calls):
            launch()
            if each:
                wait()
        if after:
            wait()
        end = clock()
        if late:
            wait()
        return (end - start) / calls if mean else end - start

    return measure


def _times_with_a_list(launch, wait, clock, calls):
    launch()
    wait()
    start = clock()
    [launch() for _ in range(calls)]
    wait()
    return clock() / calls - start / calls


def _times_and_waits_again(launch, wait, clock, calls):
    launch()
    wait()
    wait()
    start, left = clock(), calls
    while left:
        launch()
        left -= 1
    wait()
    seconds = (clock() - start) * (1 / calls)
    wait()
    return seconds


def _measured(measure, calls=5, **device):
    device = _Device(**device)
    return measure(device.launch, device.wait, device.clock, calls), device


def _exact(calls=5, tolerance=1e-6, **settings):
    """A test against the time that the device needs, `launch + calls * work` shared."""

    def test(measure):
        got, device = _measured(measure, calls, **settings)
        want = (device.cost + calls * device.work) / calls if device.work else device.cost
        assert abs(got - want) <= tolerance * want

    return test


def _at_least_the_work(measure):
    assert _measured(measure)[0] >= 10.0


def _waits_at_all(measure):
    assert _measured(measure)[1].waits > 0


def _is_positive(measure):
    assert _measured(measure)[0] > 0


def _number_of_launches(measure):
    assert _measured(measure, calls=5)[1].launches == 6


KNOWN_WORK = "Pretend a device whose work takes a known time, and compare the result with it."

launch_test = CatchFaults(
    shown=1,
    level=3,
    trains="a test of a stopwatch, without a clock",
    right={
        "a loop": _times(),
        "a list": _times_with_a_list,
        "more waits outside of the clock": _times_and_waits_again,
    },
    faults=(
        Mistake("never waits", KNOWN_WORK, _times(before=False, after=False)),
        Mistake("waits after the clock was read", KNOWN_WORK, _times(after=False, late=True)),
        Mistake(
            "starts while the first call still runs",
            "The first call's work counts here. Compare the time closely.",
            _times(before=False),
        ),
        Mistake(
            "the first call counted",
            "Let the first call take much longer, as a compiler does.",
            _times(warm=False),
        ),
        Mistake("the total in place of the mean", "Use more than one call.", _times(mean=False)),
        Mistake(
            "waits after each call",
            "Then launches and work never overlap. Compare the time closely, with several calls.",
            _times(each=True),
        ),
    ),
    mistakes=(
        Mistake(
            NOTHING,
            "Every fault passes: each of them returns a positive number. Compare it with a time "
            "that you know.",
            _is_positive,
            lambda measure: _assert(isinstance(_measured(measure)[0], float)),
        ),
        Mistake(
            "a device that does not run ahead",
            "Where the launch takes all the time there is nothing to wait for. Let work be done "
            "behind the launch.",
            _exact(work=0.0),
        ),
        Mistake(
            "only one call",
            "With one call, total and mean are the same, and nothing overlaps. Use several.",
            _exact(calls=1),
        ),
        Mistake(
            "no slow first call",
            "Then it does not matter whether the first call counts. Let it take much longer.",
            _exact(first=0.0),
        ),
        Mistake(
            "only a lower bound",
            "A time that is too long passes. Compare with the right time from both sides.",
            _at_least_the_work,
        ),
        Mistake(
            "only that it waits",
            "It waits, but when? Compare the time.",
            _waits_at_all,
        ),
        Mistake(
            "a loose tolerance",
            "This device has an exact clock. Allow rounding and no more.",
            _exact(tolerance=0.3, first=0.0),
            _exact(tolerance=0.4, first=0.0),
        ),
        Mistake(
            "only the number of launches",
            "It counts the calls and does not look at the time.",
            _number_of_launches,
        ),
    ),
    hints=(
        "You need a device whose time you know: three functions that share a number, the clock.",
        "launch() adds 1 to the clock and 10 to the work that waits; wait() sets the clock to the "
        "end of the work. The first launch takes 100 more. Five calls take 1 + 5 * 10.",
        "In launch: time += 1; free = max(free, time) + 10 (110 the first time). In wait: time = "
        "max(time, free). The result for 5 calls must be 51 / 5.",
    ),
)

EXERCISES = {
    "future_test": future_test,
    "axis_test": axis_test,
    "heads_test": heads_test,
    "samples_test": samples_test,
    "blocked_test": blocked_test,
    "divisor_test": divisor_test,
    "defaults_test": defaults_test,
    "copy_test": copy_test,
    "grader_test": grader_test,
    "places_test": places_test,
    "evaluation_test": evaluation_test,
    "backward_test": backward_test,
    "paths_test": paths_test,
    "launch_test": launch_test,
}
