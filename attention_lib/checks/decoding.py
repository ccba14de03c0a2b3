"""The exercises of chapter 14, decoding: references, cases, known mistakes, hints."""

from functools import partial

import numpy as np

from attention_lib.checks.engine import Case, CatchFaults, Mistake, PredictValue, WriteFunction
from attention_lib.lookup import softmax

# ---------------------------------------------------------------------------- cache_size

MODEL = dict(layers=32, heads=8, width=128, positions=4096)
QUERY_HEADS = 32


def _mebibytes(layers, heads, width, positions, both=2, number=2):
    return both * layers * heads * width * positions * number / 2**20


cache_size = PredictValue(
    level=1,
    trains="the memory of a cache",
    answer=lambda: _mebibytes(**MODEL),
    tolerance=1e-6,
    mistakes=(
        Mistake(
            "query heads counted",
            "Only keys and values are stored, and there are fewer key/value heads than query "
            "heads.",
            _mebibytes(**MODEL | {"heads": QUERY_HEADS}),
        ),
        Mistake(
            "a factor of 2 is missing",
            "There are two of them: keys and values. And a number in half precision takes 2 bytes.",
            _mebibytes(**MODEL, both=1),
        ),
        Mistake(
            "two factors of 2 are missing",
            "Keys and values are two, and a number in half precision takes 2 bytes.",
            _mebibytes(**MODEL, both=1, number=1),
        ),
        Mistake(
            "a factor of 2 too many",
            "Keys and values are two, and a number in half precision takes 2 bytes, not 4. Only "
            "the 8 key/value heads are stored.",
            _mebibytes(**MODEL, number=4),
        ),
        Mistake(
            "a factor of 8 too many",
            "A number in half precision takes 2 bytes, which are 16 bits, and only the 8 "
            "key/value heads are stored.",
            _mebibytes(**MODEL) * 8,
        ),
        Mistake(
            "one layer alone",
            "Each layer has a cache of its own.",
            _mebibytes(**MODEL | {"layers": 1}),
        ),
        Mistake(
            "a factor of 8 is missing",
            "Each of the 8 key/value heads stores its own keys and values, in each of the 32 "
            "layers.",
            _mebibytes(**MODEL | {"heads": 1}),
        ),
        Mistake(
            "queries stored as well",
            "A past query is not needed again: only keys and values are stored.",
            _mebibytes(**MODEL, both=3),
            _mebibytes(**MODEL) / 2 + _mebibytes(**MODEL | {"heads": QUERY_HEADS}) / 2,
        ),
        Mistake(
            "one position alone",
            "That is what one token adds. The cache holds 4096 of them.",
            _mebibytes(**MODEL | {"positions": 1}),
        ),
        Mistake(
            "bytes, not MiB",
            "The number is that of the bytes. One MiB is 2**20 bytes.",
            _mebibytes(**MODEL) * 2**20,
        ),
        Mistake(
            "KiB or GiB, not MiB",
            "One MiB is 2**20 bytes: 1024 times a KiB, and 1024 of them are a GiB.",
            _mebibytes(**MODEL) * 1024,
            _mebibytes(**MODEL) / 1024,
        ),
        Mistake(
            "megabytes of a million bytes",
            "One MiB is 2**20 bytes, a little more than a million.",
            _mebibytes(**MODEL) * 2**20 / 1e6,
            *(round(_mebibytes(**MODEL) * 2**20 / 1e6, digits) for digits in (0, 1, 2)),
        ),
    ),
    hints=(
        "What does one token leave behind in one layer?",
        "Key and value, for each of the 8 key/value heads, of 128 numbers each, of 2 bytes each.",
        "Times 32 layers and 4096 positions, divided by 2**20.",
    ),
)

# ---------------------------------------------------------------------------- cached_step


def _numbers(*shape, seed=14):
    return np.random.default_rng([seed, *shape]).normal(size=shape).round(3)


def _step_cases():
    for (past, embed, d, v), label in {
        (1, 2, 1, 1): "one token before",
        (0, 3, 2, 2): "nothing before",
        (2, 3, 2, 2): "two tokens before",
        (3, 4, 2, 5): "values wider than keys",
        (5, 3, 3, 3): "all widths equal",
        (6, 5, 4, 2): "more tokens",
    }.items():
        yield Case(
            label, _numbers(embed), _numbers(past, d), _numbers(past, v), _numbers(d, embed),
            _numbers(d, embed, seed=15), _numbers(v, embed, seed=16),
        )  # fmt: skip


def _step(
    x, keys, values, w_q, w_k, w_v, new_key=1, new_value=1, scale=None, weights=softmax, kept=None
):
    """One step; `kept` says which of the old rows stay, `scale` is given what may be its width."""
    query, key, value = w_q @ x, w_k @ x, w_v @ x
    keys = np.vstack([keys[kept or slice(None)], new_key * key[None]])
    values = np.vstack([values[kept or slice(None)], new_value * value[None]])
    scale = len(query) ** -0.5 if scale is None else scale(keys, values, x)
    return weights(keys @ query * scale) @ values


def _old_only(x, keys, values, w_q, w_k, w_v, empty=None):
    """Attention without the new token; of an empty cache comes what `empty` gives, or an error."""
    if not len(keys):
        return empty(w_v @ x)
    return softmax(keys @ (w_q @ x) / len(w_q) ** 0.5) @ values


def _turned(x, keys, values, w_q, w_k, w_v):
    """The new key in front of the old ones, the new value behind."""
    keys = np.vstack([w_k @ x, keys])
    return softmax(keys @ (w_q @ x) / len(w_q) ** 0.5) @ np.vstack([values, w_v @ x])


def _keys_averaged(x, keys, values, w_q, w_k, w_v):
    keys = np.vstack([keys, w_k @ x])
    return softmax(keys @ (w_q @ x) / len(w_q) ** 0.5) @ keys


cached_step = WriteFunction(
    level=1,
    trains="one step with a cache",
    reference=lambda x, keys, values, w_q, w_k, w_v: _step(x, keys, values, w_q, w_k, w_v),
    cases=tuple(_step_cases()),
    mistakes=(
        Mistake(
            "the token does not see itself",
            "The new key and the new value belong to what is attended to.",
            _old_only,
            partial(_old_only, empty=np.zeros_like),
            partial(_old_only, empty=np.copy),
        ),
        Mistake(
            "the newest token of the cache is lost",
            "The new key and value go below all others. Here they stand in place of the last.",
            partial(_step, kept=slice(-1)),
        ),
        Mistake(
            "the oldest token of the cache is lost",
            "The new key and value go below all others: the first row of the cache counts, too.",
            partial(_step, kept=slice(1, None)),
        ),
        Mistake(
            "keys and values in different orders",
            "The new token's key comes first and its value last, so the weights go to the values "
            "of other tokens.",
            _turned,
        ),
        Mistake(
            "keys averaged",
            "The weights go to the keys. What they average are the values.",
            _keys_averaged,
        ),
        Mistake(
            "the token sees itself only",
            "The output is the new value: what is in the cache has no influence.",
            lambda x, keys, values, w_q, w_k, w_v: w_v @ x,
        ),
        Mistake(
            "no scale",
            "The scores are divided by the root of the key width.",
            partial(_step, scale=lambda *given: 1),
        ),
        Mistake(
            "divided by the root of the number of keys",
            "The divisor is the root of the width of a key, however many keys there are.",
            partial(_step, scale=lambda keys, values, x: len(keys) ** -0.5),
        ),
        Mistake(
            "divided by the width, not its root",
            "The divisor is the root of the key width.",
            partial(_step, scale=lambda keys, values, x: 1 / keys.shape[1]),
        ),
        Mistake(
            "divided by the root of another width",
            "The divisor is the root of the key width, not of that of the values or of x.",
            partial(_step, scale=lambda keys, values, x: values.shape[1] ** -0.5),
            partial(_step, scale=lambda keys, values, x: len(x) ** -0.5),
        ),
        Mistake(
            "the top-left mask",
            "The new token sees only the first key. It is the last token: it sees all of them.",
            partial(_step, weights=lambda scores: np.eye(len(scores))[0]),
        ),
        Mistake(
            "the largest score alone",
            "One value comes out unchanged. The softmax mixes all of them.",
            partial(_step, weights=lambda scores: np.eye(len(scores))[scores.argmax()]),
        ),
        Mistake(
            "no softmax",
            "The scores themselves are used as weights.",
            partial(_step, weights=lambda scores: scores),
        ),
        Mistake(
            "the weights do not add to 1",
            "Exponentials alone are no weights: each is divided by the sum of all.",
            partial(_step, weights=np.exp),
            partial(_step, weights=lambda scores: np.exp(scores - scores.max())),
        ),
        Mistake(
            "each weight is 1",
            "All values are added up. That is so where each score is alone in its softmax: the "
            "scores of all keys belong into one.",
            partial(_step, weights=np.ones_like),
        ),
        Mistake(
            "the mean of all values",
            "All weights are equal here: the query has no influence.",
            partial(_step, weights=lambda scores: np.full(len(scores), 1 / len(scores))),
        ),
        Mistake(
            "query and key matrix swapped",
            "The query comes from w_q, the new key from w_k.",
            lambda x, keys, values, w_q, w_k, w_v: _step(x, keys, values, w_k, w_q, w_v),
        ),
        Mistake(
            "the query stored as the key",
            "The new key is w_k @ x. Here w_q @ x stands in its place.",
            lambda x, keys, values, w_q, w_k, w_v: _step(x, keys, values, w_q, w_q, w_v),
        ),
        Mistake(
            "the new key as zeros",
            "The new score is 0, as of a key of zeros.",
            partial(_step, new_key=0),
        ),
        Mistake(
            "the new value as zeros",
            "The new token has a weight, but nothing is added for it.",
            partial(_step, new_value=0),
        ),
    ),
    hints=(
        "Which three vectors come from x? Where do two of them go?",
        "np.vstack([keys, key]) is the matrix with one more row. Then attention with one query.",
        "softmax(keys @ query / np.sqrt(len(query))) @ values, after the new rows are below.",
    ),
)

# ---------------------------------------------------------------------------- empty_slots


def _slots_cases():
    for (capacity, d, v, length), label in {
        (2, 1, 1, 1): "one of two slots in use",
        (3, 2, 2, 3): "full",
        (4, 2, 3, 1): "one slot in use",
        (4, 3, 2, 2): "half full",
        (5, 2, 2, 4): "all but one in use",
        (6, 3, 4, 3): "three of six in use",
        (7, 4, 2, 5): "five of seven in use",
    }.items():
        arrays = _numbers(d), _numbers(capacity, d), _numbers(capacity, v, seed=15)
        yield Case(label, *arrays, length)
    zeros = np.zeros((3, 2))
    zeros[:2] = _numbers(2, 2)
    yield Case("zeros in the empty slots", _numbers(2), zeros, zeros.copy(), 2)
    query, keys, values = np.ones(4), _numbers(4, 4), _numbers(4, 2, seed=15)
    low, old = keys.copy(), keys.copy()
    low[:2] -= 100  # scores of about -200
    old[3] = 400  # a score of 800
    yield Case("low scores", query, low, values, 2, extreme=True)
    yield Case("an old key with a large score", query, old, values, 2, extreme=True)


def _used(query, keys, values, length, first=0, more=0, weights=softmax):
    used = slice(first, max(length + more, 1))
    return weights(keys[used] @ query / len(query) ** 0.5) @ values[used]


def _all_slots(query, keys, values, length, change=lambda scores, used: scores, after=None):
    used = np.arange(len(keys)) < length
    weights = softmax(change(keys @ query / len(query) ** 0.5, used))
    return (weights if after is None else after(weights, used)) @ values


def _filled(number):
    return partial(_all_slots, change=lambda scores, used: np.where(used, scores, number))


def _of_slots(choose):
    """Attention to the slots where `choose`, given keys and scores, is true."""

    def function(query, keys, values, length):
        scores = keys @ query / len(query) ** 0.5
        chosen = choose(keys, scores)
        return softmax(scores[chosen]) @ values[chosen]

    return function


def _zeros_assumed(query, keys, values, length):
    exponentials = np.exp(keys @ query / len(query) ** 0.5)
    return exponentials[:length] @ values[:length] / (exponentials.sum() - len(keys) + length)


def _ends(query, keys, values, length):
    return softmax(keys[:length] @ query / len(query) ** 0.5) @ values[len(keys) - length :]


empty_slots = WriteFunction(
    level=2,
    trains="slots of a cache that hold nothing yet",
    reference=lambda query, keys, values, length: _used(query, keys, values, length),
    cases=tuple(_slots_cases()),
    mistakes=(
        Mistake(
            "the fault is still there: empty slots get weight",
            "All slots take part in the softmax. Only the first `length` of them hold a token.",
            _all_slots,
        ),
        Mistake(
            "weights set to 0 after the softmax",
            "The weights that are left do not add to 1: the empty slots still count in the sum.",
            partial(_all_slots, after=lambda weights, used: weights * used),
        ),
        Mistake(
            "taken out after the softmax",
            "Beside one large old score the softmax leaves exactly 0 for all others, and dividing "
            "again is 0 / 0. Take the empty slots out before.",
            partial(_all_slots, after=lambda weights, used: weights * used / weights[used].sum()),
        ),
        Mistake(
            "a number that is low here only",
            "The empty slots got a low score, but the scores of tokens can be lower: then the "
            "empty slots win. Minus infinity is below all.",
            *map(_filled, (-10.0, -20.0, -30.0)),
        ),
        Mistake(
            "slots guessed from their numbers",
            "An empty slot may hold old numbers. Only `length` says which slots are in use.",
            _of_slots(lambda keys, scores: keys.any(axis=1)),
            _of_slots(lambda keys, scores: scores != 0),
        ),
        Mistake(
            "zeros assumed in the empty slots",
            "A 1 was taken from the sum for each empty slot, as for a score of 0. An empty slot "
            "may hold old numbers.",
            _zeros_assumed,
        ),
        Mistake(
            "keys from the front, values from the end",
            "The weights of the first `length` slots go to the values of the last ones.",
            _ends,
        ),
        Mistake(
            "scores set to 0",
            "A score of 0 is a score like others: its weight is not 0.",
            partial(_all_slots, change=lambda scores, used: scores * used),
        ),
        Mistake(
            "the last token left out",
            "With length tokens the slots 0 to length - 1 are in use.",
            partial(_used, more=-1),
        ),
        Mistake(
            "one empty slot seen",
            "With length tokens the slots 0 to length - 1 are in use, not slot length.",
            partial(_used, more=1),
        ),
        Mistake(
            "the first slot alone",
            "The query is that of the last token: it sees all tokens so far.",
            lambda query, keys, values, length: values[0],
        ),
        Mistake(
            "the last token alone",
            "The value of slot length - 1 comes out. The query sees all tokens so far.",
            lambda query, keys, values, length: values[length - 1],
        ),
        Mistake(
            "the mask upside down",
            "The empty slots are attended to and the others hidden.",
            lambda query, keys, values, length: _used(query, keys, values, len(keys), length),
            partial(_all_slots, change=lambda s, used: np.where(used & ~used.all(), -np.inf, s)),
        ),
        Mistake(
            "no scale",
            "The scores are divided by the root of the key width, as before.",
            lambda query, keys, values, length: _used(
                query * len(query) ** 0.5, keys, values, length
            ),
        ),
        Mistake(
            "divided by the width, not its root",
            "The divisor is the root of the key width.",
            lambda query, keys, values, length: _used(
                query / len(query) ** 0.5, keys, values, length
            ),
        ),
        Mistake(
            "no softmax",
            "The scores themselves are used as weights.",
            partial(_used, weights=lambda scores: scores),
        ),
        Mistake(
            "slots from the end",
            "The last `length` slots are used. The cache is filled from slot 0 on.",
            lambda query, keys, values, length: _used(
                query, keys, values, len(keys), len(keys) - length
            ),
        ),
        Mistake(
            "the mean of the tokens",
            "All tokens get the same weight: the query has no influence.",
            lambda query, keys, values, length: values[:length].mean(axis=0),
        ),
    ),
    hints=(
        "Which slots hold a token after `length` tokens came in?",
        "Leave the others out before the softmax. After it the rest must be divided by its sum "
        "again, and beside one large old score nothing is left to divide.",
        "keys[:length] and values[:length] are all that is needed.",
    ),
)

# ---------------------------------------------------------------------------- shared_keys


def _shared_cases():
    for (heads, shared, keys, d, v), label in {
        (2, 1, 2, 1, 1): "two heads share one",
        (3, 3, 2, 2, 2): "each head its own",
        (4, 2, 3, 2, 2): "two groups of two",
        (6, 2, 4, 3, 2): "two groups of three",
        (6, 3, 5, 2, 4): "three groups of two",
        (4, 1, 3, 2, 3): "four heads share one",
        (4, 2, 4, 4, 4): "equal sizes",
    }.items():
        yield Case(label, _numbers(heads, d), _numbers(shared, keys, d),
                   _numbers(shared, keys, v, seed=15))  # fmt: skip


def _group(h, heads, shared):
    return h // (heads // shared)


def _shared(query, keys, values, of=_group, scale=lambda query, keys: query.shape[1] ** -0.5,
            weights=softmax, of_values=None, of_query=lambda h, heads, shared: h):  # fmt: skip
    """Head by head; `of`, `of_values` and `of_query` say which keys, values and query it uses."""
    numbers = [(h, len(query), len(keys)) for h in range(len(query))]
    query, keys, values = (
        part[[which(*number) for number in numbers]]
        for part, which in ((query, of_query), (keys, of), (values, of_values or of))
    )
    scores = np.einsum("hd,hkd->hk", query, keys) * scale(query, keys)
    return np.einsum("hk,hkv->hv", weights(scores), values)


def _in_turn(h, heads, shared):
    return h % shared


def _one_softmax(query, keys, values):
    """One softmax for all keys and all queries of a group."""
    folded = query.reshape(len(keys), -1, query.shape[1])
    scores = folded @ keys.swapaxes(1, 2) / query.shape[1] ** 0.5
    weights = softmax(scores.reshape(len(keys), -1)).reshape(scores.shape)
    return (weights @ values).reshape(len(query), -1)


def _mean_of_all(query, keys, values):
    return _shared(query, keys.mean(axis=0)[None], values.mean(axis=0)[None])


def _one_query_a_group(query, keys, values):
    means = query.reshape(len(keys), -1, query.shape[1]).mean(axis=1)
    return np.repeat(_shared(means, keys, values), len(query) // len(keys), axis=0)


shared_keys = WriteFunction(
    level=2,
    trains="query heads in groups that share keys and values",
    reference=lambda query, keys, values: _shared(query, keys, values),
    cases=tuple(_shared_cases()),
    mistakes=(
        Mistake(
            "heads dealt out in turn",
            "Query heads 0 and 1 are neighbours in one group; here they use different keys. With "
            "NumPy, np.repeat lays a head's copies side by side, np.tile does not.",
            partial(_shared, of=_in_turn),
        ),
        Mistake(
            "the first key/value head for all",
            "All query heads use keys[0]. Each group has a key/value head of its own.",
            partial(_shared, of=lambda h, heads, shared: 0),
        ),
        Mistake(
            "groups in reverse",
            "The first group of query heads uses the last key/value head.",
            partial(_shared, of=lambda h, heads, shared: shared - 1 - h // (heads // shared)),
        ),
        Mistake(
            "keys shared, values dealt out in turn",
            "The keys are right. The values go to the same groups.",
            partial(_shared, of_values=_in_turn),
        ),
        Mistake(
            "values shared, keys dealt out in turn",
            "The values are right. The keys go to the same groups.",
            partial(_shared, of=_in_turn, of_values=_group),
        ),
        Mistake(
            "values of the first head for all",
            "The keys are right, but all heads use values[0]. Each group has its own.",
            partial(_shared, of_values=lambda h, heads, shared: 0),
        ),
        Mistake(
            "one group a head until they run out",
            "Query head 0 uses key/value head 0, head 1 uses 1, and the rest the last one. A group "
            "is heads // shared neighbours.",
            partial(_shared, of=lambda h, heads, shared: min(h, shared - 1)),
        ),
        Mistake(
            "divided by the number of key/value heads",
            "h // shared was used. A group has heads // shared queries, so it is "
            "h // (heads // shared).",
            partial(_shared, of=lambda h, heads, shared: h // shared),
            partial(_shared, of=lambda h, heads, shared: min(h // shared, shared - 1)),
            partial(_shared, of=lambda h, heads, shared: h // shared % shared),
        ),
        Mistake(
            "the mean of all key/value heads",
            "Keys and values were averaged over the heads. Each group has its own.",
            _mean_of_all,
        ),
        Mistake(
            "one query for a group",
            "The queries of a group were averaged. They share keys and values, not the query.",
            _one_query_a_group,
        ),
        Mistake(
            "the first query of a group for all",
            "All queries of a group give one output here. They share keys and values, not the "
            "query.",
            partial(
                _shared, of_query=lambda h, heads, shared: h // (heads // shared) * heads // shared
            ),
        ),
        Mistake(
            "softmax over the heads",
            "The weights of each head must add to 1 over the keys, the last axis.",
            partial(_shared, weights=partial(softmax, axis=0)),
        ),
        Mistake(
            "one softmax for a group",
            "The weights of a whole group add to 1 here. Those of each query must.",
            _one_softmax,
        ),
        Mistake(
            "no softmax",
            "The scores themselves are used as weights.",
            partial(_shared, weights=lambda scores: scores),
        ),
        Mistake(
            "the weights do not add to 1",
            "Exponentials alone are no weights: each is divided by the sum of its row.",
            partial(_shared, weights=np.exp),
            partial(_shared, weights=lambda x: np.exp(x - x.max(axis=1, keepdims=True))),
        ),
        Mistake(
            "the mean of the values",
            "All weights are equal here: the query has no influence.",
            partial(_shared, weights=lambda scores: np.full(scores.shape, 1 / scores.shape[1])),
        ),
        Mistake(
            "divided by the width, not its root",
            "The divisor is the root of the width of a head.",
            partial(_shared, scale=lambda query, keys: 1 / query.shape[1]),
        ),
        Mistake(
            "no scale",
            "The scores are divided by the root of the width of a head.",
            partial(_shared, scale=lambda query, keys: 1),
        ),
        Mistake(
            "divided by the root of the full width",
            "The divisor is the root of the width of one head.",
            partial(_shared, scale=lambda query, keys: query.size**-0.5),
        ),
        Mistake(
            "divided by the root of the number of keys",
            "The divisor is the root of the width of one head.",
            partial(_shared, scale=lambda query, keys: keys.shape[1] ** -0.5),
        ),
    ),
    hints=(
        "How many query heads share one key/value head? Which one does query head h use?",
        "h // (heads // shared), with heads = len(query) and shared = len(keys).",
        "np.repeat(keys, len(query) // len(keys), axis=0) has one entry a query head.",
    ),
)

# ---------------------------------------------------------------------------- cache_test


def _decode(x, first, w_q, w_k, w_v, sees=lambda i, j, first: j <= i, change=None, after=None):
    """Attention of all tokens, where `sees` says whether token i attends to token j."""
    query, key, value = np.asarray(x) @ w_q.T, np.asarray(x) @ w_k.T, np.asarray(x) @ w_v.T
    if change:
        query, key, value = change(query, key, value, first)
    i, j = np.arange(len(x))[:, None], np.arange(len(x))
    seen = np.broadcast_to(sees(i, j, first), (len(x), len(x)))
    seen = seen | ~seen.any(axis=1, keepdims=True)
    scores = np.where(seen, query @ key.T / np.sqrt(key.shape[1]), -np.inf)
    output = softmax(scores) @ value
    return output if after is None else after(output, first)


def _with_cache(x, first, w_q, w_k, w_v):
    output = [_decode(x[:first], first, w_q, w_k, w_v)] if first else []
    for n in range(first, len(x)):
        output.append(_step(x[n], x[:n] @ w_k.T, x[:n] @ w_v.T, w_q, w_k, w_v)[None])
    return np.concatenate(output)


def _by_loop(x, first, w_q, w_k, w_v):
    rows = []
    for n in range(len(x)):
        e = np.exp([(w_q @ x[n]) @ (w_k @ x[j]) / np.sqrt(len(w_q)) for j in range(n + 1)])
        rows.append(sum(w * (w_v @ x[j]) for j, w in enumerate(e / e.sum())))
    return np.array(rows)


def _fault(**options):
    return partial(_decode, **options)


def _key_forgotten(query, key, value, first):
    """The key of the first decoded token was never written: its slot holds zeros."""
    key = key.copy()
    key[first : first + 1] = 0
    return query, key, value


def _last_column_lost(query, key, value, first):
    """The last number of each new value was never written."""
    value = value.copy()
    value[first:, -1] = 0
    return query, key, value


def _rounded_down(query, key, value, first):
    """The new values are stored in steps of a quarter, so no output is too large."""
    return query, key, np.concatenate([value[:first], np.floor(4 * value[first:]) / 4])


def _query_of_first(query, key, value, first):
    query = query.copy()
    query[first:] = query[first : first + 1]
    return query, key, value


def _overwritten(query, key, value, first):
    value = value.copy()
    value[first:-1] = value[-1:]
    return query, key, value


def _last_row_repeated(output, first):
    output = output.copy()
    output[first:] = output[first : first + 1]
    return output


def _row_repeated(output, first, at):
    """One new token, `at` places after the prompt, gets the row of the token before."""
    row, output = slice(first + at, first + at + 1), output.copy()
    output[row] = output[max(first + at - 1, 0) : first + at][: len(output[row])]
    return output


def _swapped(output, first):
    order = np.arange(len(output))
    order[first : first + 2] = order[first : first + 2][::-1]
    return output[order]


def _compare(length, first, rows=slice(None), look=lambda y: y, e=3, d=2, v=4, scale=1.0):
    """A test at one place: which lengths, which rows of the output, what of them."""

    def test(decode):
        x = scale * _numbers(length, e)
        w = _numbers(d, e), _numbers(d, e, seed=15), _numbers(v, e, seed=16)
        got, want = np.asarray(decode(x, first, *w)), _decode(x, first, *w)
        assert np.allclose(look(got)[rows], look(want)[rows])

    return test


def _some_rows(rows):
    return _compare(7, 3, rows)


def _consistent(decode):
    """Prompts of several lengths must give the same, whatever that is."""
    x, w = _numbers(7, 3), (_numbers(2, 3), _numbers(2, 3, seed=15), _numbers(4, 3, seed=16))
    first, *others = (np.asarray(decode(x, first, *w)) for first in (1, 2, 3, 5, 7))
    for other in others:
        assert np.allclose(first, other)


def _one_sign(decode, positive=False):
    """The largest difference; with `positive` the last column has positive numbers only."""
    x, w = _numbers(7, 3), (_numbers(2, 3), _numbers(2, 3, seed=15), _numbers(4, 3, seed=16))
    if positive:
        x[:, 0], w[2][-1] = np.abs(x[:, 0]), (1, 0, 0)
    assert np.max(decode(x, 3, *w) - _decode(x, 3, *w)) < 1e-6


def _shape(decode):
    w = _numbers(2, 3), _numbers(2, 3, seed=15), _numbers(4, 3, seed=16)
    assert np.shape(decode(_numbers(7, 3), 3, *w)) == (7, 4)


def _constant(decode):
    w = _numbers(2, 3), _numbers(2, 3, seed=15), _numbers(4, 3, seed=16)
    assert np.allclose(decode(np.ones((7, 3)), 3, *w), np.ones((7, 3)) @ w[2].T)


def _repeats(decode):
    w = _numbers(2, 3), _numbers(2, 3, seed=15), _numbers(4, 3, seed=16)
    x = _numbers(7, 3)
    assert np.allclose(decode(x, 3, *w), decode(x, 3, *w))


ROW = "It shows in one row alone: compare every row."
AFTER = (
    "It shows in the rows after the prompt. Compare them all, and set the tolerance far below "
    "what a fault changes."
)

cache_test = CatchFaults(
    level=3,
    trains="a test of decoding with a cache",
    right={
        "a causal mask over everything": _decode,
        "with a cache": _with_cache,
        "token by token": _by_loop,
    },
    faults=(
        Mistake(
            "the top-left mask for each new token",
            AFTER,
            _fault(sees=lambda i, j, first: np.where(i < first, j <= i, j < 1)),
        ),
        Mistake(
            "the prompt sees its future",
            "It shows in all rows of the prompt but the last. Use a prompt of two tokens or more.",
            _fault(sees=lambda i, j, first: (j <= i) | ((i < first) & (j < first))),
        ),
        Mistake(
            "the prompt forgotten",
            AFTER,
            _fault(sees=lambda i, j, first: (j <= i) & ((i < first) | (j >= first))),
        ),
        Mistake(
            "new tokens not stored",
            "The tokens after the prompt must see each other, not the prompt and themselves alone. "
            "Decode two or more.",
            _fault(sees=lambda i, j, first: (j <= i) & ((j < first) | (i == j))),
        ),
        Mistake(
            "a new token does not see itself",
            AFTER,
            _fault(sees=lambda i, j, first: np.where(i < first, j <= i, j < i)),
        ),
        Mistake(
            "the last token of the prompt dropped",
            AFTER,
            _fault(sees=lambda i, j, first: (j <= i) & ((i < first) | (j != first - 1))),
        ),
        Mistake("the key of the first new token lost", AFTER, _fault(change=_key_forgotten)),
        Mistake(
            "each new value written over the last",
            AFTER + " Decode several tokens.",
            _fault(change=_overwritten),
        ),
        Mistake("the query of the first new token kept", AFTER, _fault(change=_query_of_first)),
        Mistake(
            "only the last four positions kept",
            "It shows from the fifth token on, beside a result that you know another way.",
            _fault(sees=lambda i, j, first: (j <= i) & (j > i - 4)),
        ),
        Mistake(
            "one row of output for all new tokens",
            AFTER + " Decode several tokens.",
            _fault(after=_last_row_repeated),
        ),
        Mistake(
            "no scale",
            "It shows for keys wider than 1, beside a result of your own, and with scores "
            "of about 1: large ones pick one key either way.",
            _fault(change=lambda q, k, v, first: (q * np.sqrt(k.shape[1]), k, v)),
        ),
        Mistake(
            "the first new token gets the row before it",
            ROW,
            _fault(after=partial(_row_repeated, at=0)),
        ),
        Mistake(
            "the second new token gets the row before it",
            ROW,
            _fault(after=partial(_row_repeated, at=1)),
        ),
        Mistake(
            "two new rows swapped",
            "Each number is there, in another row. Compare row by row.",
            _fault(after=_swapped),
        ),
        Mistake(
            "the last column of new values lost",
            "It shows in the last column. Compare all of them.",
            _fault(change=_last_column_lost),
        ),
        Mistake(
            "new values rounded down",
            "No output is too large, some are too small by up to 0.25. Compare distances, with a "
            "small tolerance.",
            _fault(change=_rounded_down),
        ),
    ),
    mistakes=(
        Mistake(
            "an assertion that no fault breaks",
            "It holds for every faulty version, too, as one about the shape or about a single "
            "token does. Compare all numbers with a result that you know another way.",
            _shape,
            _repeats,
            _compare(1, 1),
        ),
        Mistake(
            "equal tokens",
            "With equal tokens any weights give the same output. Use different ones.",
            _constant,
        ),
        Mistake(
            "no result of your own",
            "Runs of one function are compared with each other, and all may be wrong in one way. "
            "Compare with a result that you know another way.",
            _consistent,
        ),
        Mistake(
            "the whole text as prompt",
            "Nothing is decoded if the prompt is the whole text. Make it shorter than x.",
            _compare(7, 7),
        ),
        Mistake(
            "the mask of the prompt not seen",
            "Use a prompt of two tokens or more, and compare its own rows, too.",
            _compare(7, 1),
            _compare(7, 3, slice(3, None)),
            _compare(7, 3, slice(-1, None)),
        ),
        Mistake(
            "one token decoded",
            "With one token after the prompt nothing is read back that was decoded. Decode more.",
            _compare(7, 6),
        ),
        Mistake(
            "only the prompt's rows",
            "The cache is used after the prompt. Compare all rows.",
            _compare(7, 3, slice(3)),
        ),
        Mistake(
            "only the first new token",
            "What the later tokens read back does not show. Compare all rows.",
            _compare(7, 3, slice(3, 4)),
        ),
        Mistake(
            "keys of width 1",
            "The root of 1 is 1: a missing scale does not show. Use wider keys.",
            _compare(7, 3, d=1),
        ),
        Mistake(
            "four tokens in all",
            "A cache that forgets old tokens passes a short test. Use more tokens.",
            _compare(4, 2),
        ),
        Mistake(
            "right numbers at wrong places pass",
            "That is so for a sum. Compare place by place.",
            _compare(7, 3, look=lambda y: np.array([y.sum()])),
        ),
        Mistake(
            "small or negative errors pass",
            "A fault passes that makes numbers too small, by 0.25 at most. Compare the distance, "
            "abs(got - expected), with a small tolerance.",
            _one_sign,
            partial(_one_sign, positive=True),
        ),
        Mistake(
            "the last column not compared",
            "A fault in the last column passes. Compare all of them.",
            _compare(7, 3, look=lambda y: y[:, :1]),
            _compare(7, 3, look=lambda y: y[:, :-1]),
        ),
        Mistake(
            "a row left out",
            "A fault in one row alone passes. Compare every row.",
            *map(_some_rows, ([0, -1], [1, -1], slice(None, None, 2), slice(1, None, 2))),
        ),
    ),
    hints=(
        "The right output is known another way: causal attention over all of x at once.",
        "How long is x, how long the prompt, how wide are the keys? Which rows do you compare?",
        "x of (7, 3), first = 3, keys of width 2: compare all seven rows with a loop over tokens.",
    ),
)

EXERCISES = {
    "cache_size": cache_size,
    "cached_step": cached_step,
    "empty_slots": empty_slots,
    "shared_keys": shared_keys,
    "cache_test": cache_test,
}
