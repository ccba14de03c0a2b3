"""The exercises of chapter 10, alignment: references, cases, known mistakes, hints."""

import numpy as np

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction

# ---------------------------------------------------------------------------- rows_that_move

ROWS, CHANGED = 11, 4


def _rows_that_move():
    """Rows CHANGED to ROWS - 1 of a decoder that reads from left to right."""
    return ROWS - CHANGED


rows_that_move = PredictValue(
    level=1,
    trains="what later characters see of an input",
    answer=_rows_that_move,
    mistakes=(
        Mistake(
            "the row of the changed input forgotten",
            "The row at the changed input reads it, too: it writes what comes after it.",
            ROWS - CHANGED - 1,
        ),
        Mistake(
            "the rows before",
            "Rows 0 to 3 are the rows that stay: no position reads a later input.",
            CHANGED,
        ),
        Mistake(
            "rows 0 to 4",
            "Rows 0 to 4 are five rows, but rows 0 to 3 stay: no position reads a later input. "
            "And the rows after row 4?",
            CHANGED + 1,
        ),
        Mistake(
            "row 3 counted as well",
            "The inputs are numbered from 0. Row 3 comes before input number 4, so it stays.",
            ROWS - CHANGED + 1,
        ),
        Mistake(
            "all rows but one",
            "More than one row stays: which rows were computed before input number 4 was read?",
            ROWS - 1,
        ),
        Mistake(
            "one row alone",
            "The decoder's state goes on to the next position, and what was read goes with it.",
            1,
        ),
        Mistake(
            "all rows",
            "A row moves only if it reads the changed input. Which rows were computed before it?",
            ROWS,
        ),
        Mistake(
            "a few rows",
            "The state is handed on from each position to the next, to the end.",
            2,
            3,
        ),
        Mistake(
            "no row",
            "The later rows do read the input: that is what teacher forcing feeds them.",
            0,
        ),
    ),
    hints=(
        "Which positions have read the input number 4 when they give their scores?",
        "Positions 0 to 3 come before it. Position 4 reads it first.",
        "Count the positions from 4 to 10.",
    ),
)

# ---------------------------------------------------------------------------- decoder_inputs


def _inputs(target, start):
    first = np.broadcast_to(start, target[:, :1].shape)
    return np.concatenate([first, target[:, :-1]], axis=1)


def _roll(target, start):
    return np.roll(target, 1, axis=1)


def _first_numbers(target, start):
    return np.broadcast_to(start[0], target[..., :1].shape)


def _embedded_cases():
    rng = np.random.default_rng(40)
    yield Case("one sequence of two", np.array([[[1.0], [2.0]]]), np.array([9.0]))
    yield Case("one sequence of one", np.array([[[1.5, 2.5]]]), np.array([7.0, 8.0]))
    sizes = {
        (1, 3, 1): "one sequence",
        (2, 3, 2): "two sequences",
        (3, 3, 3): "all sizes equal",
        (2, 2, 2): "all sizes two",
        (3, 2, 4): "more sequences",
        (2, 5, 3): "longer",
    }
    for (batch, length, width), label in sizes.items():
        target = rng.normal(size=(batch, length, width)).round(3)
        yield Case(label, target, rng.normal(size=width).round(3))


decoder_inputs = WriteFunction(
    level=1,
    trains="inputs of teacher forcing, shifted by one",
    reference=lambda target, start: _inputs(target, start),
    cases=tuple(_embedded_cases()),
    mistakes=(
        Mistake(
            "not shifted",
            "This is the target itself: each position would read what it should write.",
            lambda y, s: y.copy(),
        ),
        Mistake(
            "shifted to the left",
            "Each position holds the character after its own. The inputs hold the one before.",
            lambda y, s: np.concatenate([y[:, 1:], np.broadcast_to(s, y[:, :1].shape)], axis=1),
        ),
        Mistake(
            "rolled around",
            "The last character has come to the front. The start belongs there.",
            _roll,
        ),
        Mistake(
            "first character replaced",
            "The start takes the place of the first character, which nobody reads then. It goes in "
            "front, and everything moves by one.",
            lambda y, s: np.concatenate([_inputs(y, s)[:, :1], y[:, 1:]], axis=1),
        ),
        Mistake(
            "last character kept",
            "The inputs are longer than the target by one. Nothing is to be written after the last "
            "character, so it is no input.",
            lambda y, s: np.concatenate([np.broadcast_to(s, y[:, :1].shape), y], axis=1),
        ),
        Mistake(
            "no start",
            "The last character is left out, and nothing stands in front: the first character has "
            "no input.",
            lambda y, s: y[:, :-1],
        ),
        Mistake(
            "zeros in front",
            "Zeros stand where the vector of the start should.",
            lambda y, s: _inputs(y, 0 * s),
        ),
        Mistake(
            "shifted along the batch",
            "Whole sequences have moved. Axis 0 counts the sequences, axis 1 the positions.",
            lambda y, s: np.concatenate([np.broadcast_to(s, y[:1].shape), y[:-1]], axis=0),
        ),
        Mistake(
            "shifted along the features",
            "The numbers inside each vector have moved. The last axis counts them, axis 1 the "
            "positions.",
            lambda y, s: np.roll(y, 1, axis=2),
            lambda y, s: np.concatenate([_first_numbers(y, s), y[..., :-1]], axis=2),
        ),
        Mistake(
            "the first character everywhere",
            "Behind the start, each position holds the first character. It should hold the one "
            "before its own.",
            lambda y, s: np.concatenate([_inputs(y, s)[:, :1], 0 * y[:, 1:] + y[:, :1]], axis=1),
        ),
        Mistake(
            "read from right to left",
            "The order is turned. Start, then the target from its first character on.",
            lambda y, s: _inputs(y[:, ::-1], s),
        ),
        Mistake(
            "shifted by two",
            "Each position holds what stands two before it. One step is enough.",
            lambda y, s: _inputs(_inputs(y, s), s),
        ),
    ),
    hints=(
        "The first of the T inputs is the start, the last is the target's last but one.",
        "target[:, :-1] leaves out the last position. np.broadcast_to(start, target[:, :1].shape) "
        "is one start for each sequence.",
        "Join the two with np.concatenate along axis 1.",
    ),
)

# ---------------------------------------------------------------------------- padded_loss


def _log_softmax(scores, axis=-1):
    shifted = scores - scores.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def _nll(scores, target, axis=-1):
    """-log p of each target, (batch, T)."""
    return -np.take_along_axis(_log_softmax(scores, axis), target[..., None], -1)[..., 0]


def _masked_mean(values, keep):
    with np.errstate(all="ignore"):  # 0 / 0 where nothing is kept
        return (values * keep).sum(axis=1) / keep.sum(axis=1)


def _loss(scores, target):
    return _masked_mean(_nll(scores, target), target != 0)


def _probability(scores, target):
    return _masked_mean(np.exp(-_nll(scores, target)), target != 0)


def _without_padding_class(scores, target):
    """Padding taken out of the softmax; where it is the target, the number does not count."""
    surprise = _nll(scores[..., 1:], np.maximum(target - 1, 0))
    return _masked_mean(surprise, target != 0)


def _one_padding_kept(scores, target):
    before = np.concatenate([target[:, :1], target[:, :-1]], axis=1)
    return _masked_mean(_nll(scores, target), before != 0)


def _loss_cases():
    rng = np.random.default_rng(41)
    yield Case(
        "one character and one padding",
        np.array([[[0.0, 1.0, 2.0], [3.0, 0.0, 1.0]]]),
        np.array([[2, 0]]),
    )
    yield Case("no padding", rng.normal(size=(2, 2, 3)).round(3), np.array([[1, 2], [2, 2]]))
    targets = {
        "two lengths": [[1, 2, 3], [4, 0, 0]],
        "three lengths": [[1, 2, 3, 4], [2, 0, 0, 0], [3, 3, 0, 0]],
        "much padding": [[4, 1, 1, 2, 3], [1, 0, 0, 0, 0]],
        "as many characters as positions": [[1, 4, 2, 3, 0], [2, 2, 0, 0, 0]],
    }
    for label, target in targets.items():
        target = np.array(target)
        yield Case(label, 2 * rng.normal(size=(*target.shape, 5)).round(3), target)


padded_loss = WriteFunction(
    level=2,
    trains="a loss that leaves padding out",
    reference=lambda scores, target: _loss(scores, target),
    cases=tuple(_loss_cases()),
    mistakes=(
        Mistake(
            "the fault is still there: padding counts",
            "The mean runs over padding, too. Who learns to write padding well gets a low loss.",
            lambda s, y: _nll(s, y).mean(axis=1),
        ),
        Mistake(
            "padding is zero, but divided by",
            "The padding adds nothing to the sum, but it is counted in the divisor.",
            lambda s, y: (_nll(s, y) * (y != 0)).mean(axis=1),
        ),
        Mistake(
            "padding in the sum",
            "The divisor counts the characters, but the sum holds padding, too.",
            lambda s, y: _nll(s, y).sum(axis=1) / (y != 0).sum(axis=1),
        ),
        Mistake(
            "one padding kept",
            "The first padding behind each text counts as a character.",
            _one_padding_kept,
        ),
        Mistake(
            "padding taken out of the softmax",
            "Padding is one of the choices that the model has: its score stays in the softmax. "
            "Only the positions that hold padding are left out.",
            _without_padding_class,
        ),
        Mistake(
            "divided by the mean length",
            "All sums are divided by one number, the mean length. Each text has its own length.",
            lambda s, y: (_nll(s, y) * (y != 0)).sum(axis=1) / (y != 0).sum(axis=1).mean(),
        ),
        Mistake(
            "one mean for all texts",
            "This is the mean over the characters of all texts. Each text has a loss of its own.",
            lambda s, y: np.full(len(y), _nll(s, y)[y != 0].mean()),
            lambda s, y: _nll(s, y)[y != 0].mean(),
        ),
        Mistake(
            "divided by the number of texts",
            "Divide by the number of characters that each text has.",
            lambda s, y: (_nll(s, y) * (y != 0)).sum(axis=1) / len(y),
        ),
        Mistake(
            "the sum",
            "This is the sum. The loss is a mean over the characters that are no padding.",
            lambda s, y: (_nll(s, y) * (y != 0)).sum(axis=1),
        ),
        Mistake(
            "sign turned",
            "A logarithm of a probability is negative. The loss is its negative.",
            lambda s, y: -_loss(s, y),
        ),
        Mistake(
            "only the padding",
            "The choice is upside down: this is the mean over the padding. Where there is none, it "
            "is NaN.",
            lambda s, y: _masked_mean(_nll(s, y), y == 0),
        ),
        Mistake(
            "softmax over the positions",
            "The softmax runs over the characters to choose from, the last axis.",
            lambda s, y: _masked_mean(_nll(s, y, axis=1), y != 0),
        ),
        Mistake(
            "probability in place of its logarithm",
            "This is the mean probability of the right characters. The loss is the mean of -log p.",
            _probability,
            lambda s, y: -_probability(s, y),
            lambda s, y: 1 - _probability(s, y),
        ),
        Mistake(
            "logarithm of the mean",
            "The logarithm comes first, then the mean.",
            lambda s, y: -np.log(_probability(s, y)),
        ),
        Mistake(
            "scores without softmax",
            "The scores were averaged. Turn them into log-probabilities first.",
            lambda s, y: _masked_mean(-np.take_along_axis(s, y[..., None], -1)[..., 0], y != 0),
        ),
    ),
    hints=(
        "Which positions have a character, and how many are there?",
        "real = target != 0 is True where there is a character; as a factor it is 1 there, else 0.",
        "(surprise * real).sum(axis=1) sums over the characters. Divide by how many there are.",
    ),
)

# ---------------------------------------------------------------------------- forward_steps


def _path(weights):
    return weights.argmax(axis=-1)  # (batch, L)


def _share(path, back=np.greater_equal):
    """The share of steps, in each row, whose difference passes `back(difference, 0)`."""
    return back(np.diff(path), 0).mean(axis=1)


def _beside(weights, others):
    """The share of rows, all but the first, whose key is at or behind those of `others`."""
    return (_path(weights)[:, 1:] >= others).mean(axis=1)


def _maps():
    paths = {
        "one step back of two": ([[1, 2, 0]], 3),
        "a stay": ([[0, 0, 2, 1], [0, 1, 1, 1]], 3),
        "as many rows as columns": ([[3, 1, 2, 0], [0, 1, 3, 2]], 4),
        "as many maps as rows": ([[0, 2, 1], [2, 1, 1], [0, 2, 2]], 4),
        "more columns": ([[5, 6, 2, 3, 3], [1, 0, 4, 4, 2]], 7),
        "more rows": ([[0, 1, 1, 0, 2, 1, 2], [2, 2, 1, 1, 0, 0, 1]], 3),
        "year, month, day": ([[6, 7, 8, 9, 3, 4, 0, 1], [0, 1, 2, 3, 5, 6, 8, 9]], 10),
    }
    rng = np.random.default_rng(42)
    for label, (path, columns) in paths.items():
        path = np.array(path)
        weights = rng.uniform(0.2, 1, size=(*path.shape, columns))
        np.put_along_axis(weights, path[..., None], 1.5, axis=-1)
        yield Case(label, (weights / weights.sum(axis=-1, keepdims=True)).round(3))


forward_steps = WriteFunction(
    level=2,
    trains="a number for how monotone a map is",
    reference=lambda weights: _share(_path(weights)),
    cases=tuple(_maps()),
    mistakes=(
        Mistake(
            "staying counted as back",
            "A step that stays at the same key does not go back. It counts.",
            lambda w: _share(_path(w), np.greater),
        ),
        Mistake(
            "steps back counted",
            "This is the share of steps that go back. Asked for are the others.",
            lambda w: _share(_path(w), np.less),
        ),
        Mistake(
            "steps back counted, staying with them",
            "This is the share of steps that do not go forward. Asked for are the steps that do "
            "not go back.",
            lambda w: _share(_path(w), np.less_equal),
        ),
        Mistake(
            "divided by the rows",
            "There is one step less than rows.",
            lambda w: (np.diff(_path(w)) >= 0).sum(axis=1) / w.shape[1],
        ),
        Mistake(
            "number of steps",
            "This is the number of steps. Divide by how many there are.",
            lambda w: (np.diff(_path(w)) >= 0).sum(axis=1).astype(float),
        ),
        Mistake(
            "all or nothing",
            "This is 1 if no step goes back, else 0. Asked for is the share of steps.",
            lambda w: (np.diff(_path(w)) >= 0).all(axis=1).astype(float),
        ),
        Mistake(
            "one share for all maps",
            "This is the share over all maps together. Each map has its own.",
            lambda w: np.full(len(w), _share(_path(w)).mean()),
            lambda w: _share(_path(w)).mean(),
        ),
        Mistake(
            "largest weight of each column",
            "The argmax runs over the queries. Each row, a query, has its key with most weight.",
            lambda w: _share(w.argmax(axis=1)),
        ),
        Mistake(
            "mean position in place of the best key",
            "This follows the mean position under the weights. Asked for is the key with the "
            "largest weight.",
            lambda w: _share(w @ np.arange(w.shape[2])),
        ),
        Mistake(
            "compared with the first row",
            "Each step is compared with the first row. Compare it with the row before.",
            lambda w: _beside(w, _path(w)[:, :1]),
        ),
        Mistake(
            "compared with the furthest key so far",
            "Each step is compared with the furthest key of all rows before. Compare it with the "
            "one row before.",
            lambda w: _beside(w, np.maximum.accumulate(_path(w), axis=1)[:, :-1]),
        ),
        Mistake(
            "compared with the diagonal",
            "Each key is compared with the number of its row. Compare it with the key of the row "
            "before.",
            lambda w: _beside(w, np.arange(1, w.shape[1])),
            lambda w: (_path(w) >= np.arange(w.shape[1])).mean(axis=1),
        ),
        Mistake(
            "every step passes",
            "Each map gets 1, since no step counts as one back. The sign of a difference says so.",
            lambda w: _share(_path(w), lambda step, zero: abs(step) >= zero),
        ),
        Mistake(
            "long steps left out",
            "A step forward may pass over some keys. It counts, however long it is.",
            lambda w: _share(_path(w), lambda step, zero: (step == 0) | (step == 1)),
        ),
        Mistake(
            "largest weights compared, not their places",
            "This compares how large the largest weights are. Where do they stand?",
            lambda w: _share(w.max(axis=-1)),
        ),
        Mistake(
            "smallest weight",
            "The place of the smallest weight was followed.",
            lambda w: _share(w.argmin(axis=-1)),
        ),
    ),
    hints=(
        "weights.argmax(axis=-1) is the key with most weight, one number for each row of each map.",
        "np.diff gives each number minus the one before, along the last axis: one less than rows.",
        "The mean of a boolean array is the share of True. Staying, a difference of 0, counts.",
    ),
)

# ---------------------------------------------------------------------------- decoder_leaks


def _running_mean(x):
    x = np.asarray(x, dtype=float)
    return np.tri(len(x)) / np.arange(1, len(x) + 1)[:, None] @ x


def _fading_sum(x):
    steps = np.arange(len(x))
    return np.tril(0.8 ** abs(steps[:, None] - steps)) @ np.asarray(x, dtype=float)


def _recurrent(x):
    x, state, states = np.asarray(x, dtype=float), 0.0, []
    for row in x:
        state = 0.9 * np.tanh(state) + row
        states.append(state)
    return np.array(states)


def _attention(x, reach=0):
    """Each position attends to itself and before, and `reach` positions further."""
    x = np.asarray(x, dtype=float)
    scores = np.tanh(x) @ np.tanh(x).T
    scores = np.where(np.tri(len(x), k=reach) > 0, scores, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return x + (e / e.sum(axis=-1, keepdims=True)) @ x


def _one_maximum(x):
    """As `_attention`, but the maximum of all scores is subtracted: last digits may differ."""
    x = np.asarray(x, dtype=float)
    scores = np.tanh(x) @ np.tanh(x).T
    e = np.tri(len(x)) * np.exp(scores - scores.max())
    return x + (e / e.sum(axis=-1, keepdims=True)) @ x


def _whole_mean(x):
    x = np.asarray(x, dtype=float)
    return x + x.mean(axis=0)


def _next_one(x):
    x = np.asarray(x, dtype=float)
    return _recurrent(x) + 0.5 * np.concatenate([x[1:], 0 * x[:1]])


def _two_ahead(x):
    x = np.asarray(x, dtype=float)
    return _recurrent(x) + 0.5 * np.concatenate([x[2:], 0 * x[:2]])[: len(x)]


def _backward(x):
    return _recurrent(np.asarray(x)[::-1])[::-1]


def _last_to_first(x):
    result = _recurrent(x)
    result[0] = result[0] + np.asarray(x)[-1]
    return result


def _last_row_only(x):
    """The last input reaches the row before it, and no other row."""
    result = _recurrent(x)
    if len(result) > 1:
        result[-2] = result[-2] + np.asarray(x)[-1]
    return result


def _reaches_first(number):
    """The input of this number reaches row 0, and no other row before it."""

    def decoder(x):
        result = _recurrent(x)
        if len(result) > number:
            result[0] = result[0] + np.asarray(x)[number]
        return result

    return decoder


def _drawn(length=6, width=3):
    return np.random.default_rng(43).normal(size=(length, width))


def _changes(rows, length=6, **tolerance):
    """A test that changes each input that is a key of `rows` and compares the rows at its value."""
    tolerance = {"rtol": 1e-9, "atol": 1e-9} | tolerance

    def test(decoder):
        x = _drawn(length)
        for changed, compared in rows.items():
            other = x.copy()
            other[changed] += 1
            np.testing.assert_allclose(decoder(x)[compared], decoder(other)[compared], **tolerance)

    return test


def _behind(first):
    """A test that changes all inputs from `first` on at once."""

    def test(decoder):
        x = _drawn()
        other = np.concatenate([x[:first], x[first:] + 1])
        np.testing.assert_allclose(decoder(x)[:first], decoder(other)[:first], atol=1e-9)

    return test


def _shape_alone(decoder):
    assert np.shape(decoder(_drawn())) == (6, 3)


def _twice_the_same(decoder):
    np.testing.assert_allclose(decoder(_drawn()), decoder(_drawn()))


EACH_ROW = "Change each input in turn, and look at every row before it."

decoder_leaks = CatchFaults(
    level=3,
    trains="a test that finds a view of later inputs",
    right={
        "running mean": _running_mean,
        "fading sum": _fading_sum,
        "attention": _attention,
        "attention, one maximum for all scores": _one_maximum,
    },
    faults=(
        Mistake("mean over all positions", EACH_ROW, _whole_mean),
        Mistake("attends to everything", EACH_ROW, lambda x: _attention(x, reach=99)),
        Mistake("attends to one more", EACH_ROW, lambda x: _attention(x, reach=1)),
        Mistake("reads the next input", EACH_ROW, _next_one),
        Mistake("reads the input two ahead", EACH_ROW, _two_ahead),
        Mistake("reads from right to left", EACH_ROW, _backward),
        Mistake("last input reaches the first row", EACH_ROW, _last_to_first),
        Mistake("last input reaches the row before it", EACH_ROW, _last_row_only),
        Mistake("second input reaches the first row", EACH_ROW, _reaches_first(1)),
        Mistake("third input reaches the first row", EACH_ROW, _reaches_first(2)),
    ),
    mistakes=(
        Mistake(
            "an assertion that no fault breaks",
            "Every fault passes: each gives the right shape, and the same result twice. Change an "
            "input by far more than rounding, and compare the rows before it.",
            _shape_alone,
            _twice_the_same,
        ),
        Mistake(
            "the last input changed, the first row compared",
            "Many leaks reach only one or two positions back. Compare all rows before the changed "
            "input.",
            _changes({5: 0}),
        ),
        Mistake(
            "only the last input changed",
            "The rows before the last input are compared, but a leak may come from another input. "
            "Change every input but the first.",
            _changes({5: slice(0, 5)}),
        ),
        Mistake(
            "one input in the middle changed",
            "Some leaks come from one input alone. Change every input but the first.",
            _changes({3: slice(0, 3)}),
            _changes({4: slice(0, 4)}),
        ),
        Mistake(
            "one input changed, one row compared",
            "Some leaks skip the row before, and some come from one input alone. Change every "
            "input but the first, and compare all rows before it.",
            _changes({3: 2}),
            _changes({2: 1}),
            _changes({1: 0}),
        ),
        Mistake(
            "only the row before the changed input compared",
            "Some leaks skip the row before. Compare all rows before the changed input.",
            _changes({t: t - 1 for t in range(1, 6)}),
        ),
        Mistake(
            "only the first row compared",
            "Every input is changed, but a leak may reach another row than the first. Compare all "
            "rows before the changed input.",
            _changes({t: 0 for t in range(1, 6)}),
        ),
        Mistake(
            "one border between old and changed inputs",
            "A leak passes if it starts and ends on the same side of the border. Let the border "
            "move.",
            _behind(3),
            _behind(2),
            _behind(4),
        ),
        Mistake(
            "the last input never changed",
            "The leaks that pass start at the last input. Change it, too.",
            _changes({t: slice(0, t) for t in range(1, 5)}),
        ),
        Mistake(
            "the second input never changed",
            "The leak that passes goes from the second input, number 1, to row 0. Change that "
            "input, too.",
            _changes({t: slice(0, t) for t in range(2, 6)}),
        ),
        Mistake(
            "two inputs alone",
            "Leaks over two positions pass. Take at least three inputs, better six.",
            _changes({1: 0}, length=2),
        ),
        Mistake(
            "a tolerance too large for the change",
            "The leaks that pass move a row by less than the tolerance. Rounding moves it by some "
            "1e-16, so a tolerance of 1e-8 is large enough.",
            *(
                _changes({t: slice(0, t) for t in range(1, 6)}, atol=atol, rtol=rtol)
                for atol, rtol in ((0.2, 0), (0.3, 0.3), (0.5, 0), (0.5, 0.5), (0.9, 0))
            ),
        ),
    ),
    hints=(
        "Draw x of shape (6, 3), copy it, and add 1 to one row of the copy. Which rows of the "
        "result must stay?",
        "If input number t changes, rows 0 to t - 1 must stay. Do it for every t from 1 on.",
        "for t in range(1, 6): compare decoder(x)[:t] with decoder(other)[:t], with "
        "np.testing.assert_allclose.",
    ),
)

EXERCISES = {
    "rows_that_move": rows_that_move,
    "decoder_inputs": decoder_inputs,
    "padded_loss": padded_loss,
    "forward_steps": forward_steps,
    "decoder_leaks": decoder_leaks,
}
