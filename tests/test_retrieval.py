"""Chapter 8: tables and texts to look up in, the two models, and what is read from them."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attention_lib.lookup import hard_lookup, soft_lookup
from attention_lib.retrieval import (
    InductionModel,
    RecallTask,
    RepeatTask,
    RetrievalModel,
    after_earlier_copies,
    weight_on,
)
from attention_lib.training import train

# every axis another number, so that a swapped axis cannot pass
B, S, K, V, E = 3, 5, 11, 7, 13
VOCAB, L, H, LAYERS, WIDTH = 17, 19, 2, 3, 12


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def retrieval_model(dtype=torch.float64):
    torch.manual_seed(0)
    return RetrievalModel(K, V, E).to(dtype)


def induction_model(num_layers=LAYERS, dtype=torch.float64):
    torch.manual_seed(1)
    return InductionModel(VOCAB, WIDTH, H, num_layers).to(dtype)


def tables(batch=B, slots=S):
    return RecallTask(K, V).draw(batch, slots, generator())


# ---------------------------------------------------------------------------- tables


def test_answer_of_a_table_is_what_a_dict_gives():
    table = RecallTask(K, V).draw(200, S, generator())
    assert table.keys.shape == table.values.shape == (200, S)
    for keys, values, query, answer in zip(*(x.tolist() for x in table), strict=True):
        pairs = dict(zip(keys, values, strict=True))
        assert len(pairs) == S
        assert pairs[query] == answer


def test_every_key_value_and_place_comes_up():
    table = RecallTask(K, V).draw(2000, K, generator())
    assert (table.keys.sort(dim=1).values == torch.arange(K)).all()
    assert all(x.dtype == torch.int64 for x in table)
    for x, count in ((table.values, V), (table.query, K), (table.keys[:, 0], K)):
        share = x.flatten().bincount(minlength=count) / x.numel()
        torch.testing.assert_close(share, torch.full((count,), 1 / count), atol=0.02, rtol=0)
    places = (table.keys == table.query[:, None]).int().argmax(dim=1).bincount(minlength=K) / 2000
    torch.testing.assert_close(places, torch.full((K,), 1 / K), atol=0.02, rtol=0)


def test_generator_decides_what_is_drawn_and_the_global_one_stays():
    state = torch.get_rng_state()
    one, same, other = (RecallTask(K, V).draw(B, S, generator(seed)) for seed in (4, 4, 5))
    first, again = (RepeatTask(VOCAB).draw(B, L, generator(4)) for _ in range(2))
    assert (torch.get_rng_state() == state).all()
    assert all(map(torch.equal, one, same))
    assert torch.equal(first, again)
    assert not all(map(torch.equal, one, other))


def test_tasks_have_64_keys_32_values_and_32_tokens_by_default():
    task = RecallTask()
    assert (task.num_keys, task.num_values, RepeatTask().vocab_size) == (64, 32, 32)
    table = task.draw(1, slots=64, generator=generator())
    assert table.keys.sort().values.tolist() == [list(range(64))]


# ---------------------------------------------------------------------------- the table model


def test_model_computes_attention_over_the_sums_of_key_and_value():
    model, table = retrieval_model(), tables()
    logits, weights = model(*table[:3], return_weights=True)
    layer = model.attention
    q_w, k_w, v_w, o_w = (
        p.weight.detach() for p in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj)
    )
    for b in range(B):
        query = q_w @ model.key_embedding.weight[table.query[b]]
        slots = [
            model.key_embedding.weight[key] + model.value_embedding.weight[value]
            for key, value in zip(table.keys[b], table.values[b], strict=True)
        ]
        scores = torch.stack([query @ (k_w @ slot) / math.sqrt(E) for slot in slots])
        expected = scores.exp() / scores.exp().sum()
        output = sum(w * (v_w @ slot) for w, slot in zip(expected, slots, strict=True))
        torch.testing.assert_close(weights[b], expected)
        torch.testing.assert_close(logits[b], model.unembedding.weight @ (o_w @ output))
    torch.testing.assert_close(model(*table[:3]), logits)


def test_four_tables_of_numbers_are_the_whole_model():
    model, table = retrieval_model(), tables()
    logits, weights = model(*table[:3], return_weights=True)
    of_keys, of_values = model.scores_of_keys(), model.scores_of_values()
    assert of_keys.shape == (K, K)
    assert of_values.shape == (K, V)
    keys_out, values_out = model.logits_of_keys(), model.logits_of_values()
    assert keys_out.shape == (K, V)
    assert values_out.shape == (V, V)
    query = table.query[:, None]
    scores = of_keys[query, table.keys] + of_values[query, table.values]
    torch.testing.assert_close(weights, scores.softmax(dim=-1))
    slots = keys_out[table.keys] + values_out[table.values]
    torch.testing.assert_close(logits, (weights[..., None] * slots).sum(dim=1))
    assert not any(t.requires_grad for t in (of_keys, of_values, keys_out, values_out))


def test_nothing_in_the_model_has_a_bias():
    assert all(name.endswith(".weight") for name in retrieval_model().state_dict())


def test_model_is_the_soft_lookup_of_chapter_1():
    model, (keys, values, query, _) = retrieval_model(), tables()
    logits = model(keys, values, query)
    with torch.no_grad():
        slots = model.key_embedding(keys) + model.value_embedding(values)
        asked = model.attention.q_proj(model.key_embedding(query)).numpy()
        stored = model.attention.k_proj(slots).numpy()
        contents = model.unembedding(model.attention.out_proj(model.attention.v_proj(slots)))
    for b in range(B):
        expected = soft_lookup(asked[b], stored[b], contents[b].numpy(), temperature=math.sqrt(E))
        torch.testing.assert_close(logits[b].detach(), torch.tensor(expected))


def test_order_of_the_slots_does_not_matter():
    model, (keys, values, query, _) = retrieval_model(), tables()
    order = torch.tensor([3, 0, 4, 1, 2])
    logits, weights = model(keys, values, query, return_weights=True)
    moved, moved_weights = model(keys[:, order], values[:, order], query, return_weights=True)
    torch.testing.assert_close(moved, logits)
    torch.testing.assert_close(moved_weights, weights[:, order])


def test_model_set_by_hand_is_the_dict():
    model = RetrievalModel(K, V, K + V).double()
    key, value = torch.eye(K + V).double().split([K, V])  # one place each
    with torch.no_grad():
        model.key_embedding.weight.copy_(key)
        model.value_embedding.weight.copy_(value)
        model.attention.q_proj.weight.copy_(100 * math.sqrt(K + V) * torch.eye(K + V))
        model.attention.k_proj.weight.copy_(key.T @ key)
        model.attention.v_proj.weight.copy_(torch.eye(K + V))
        model.attention.out_proj.weight.copy_(torch.eye(K + V))
        model.unembedding.weight.copy_(value)
    torch.testing.assert_close(model.scores_of_keys(), 100 * torch.eye(K).double())
    torch.testing.assert_close(model.logits_of_values(), torch.eye(V).double())
    table = RecallTask(K, V).draw(50, K, generator())
    logits = model(*table[:3])
    torch.testing.assert_close(logits, F.one_hot(table.answer, V).double())
    keys, values, query, answer = (x.numpy() for x in table)
    assert hard_lookup(query[:1], keys[0][:, None], values[0]) == answer[0]


def test_a_short_training_finds_the_table():
    torch.manual_seed(0)
    task, rng = RecallTask(8, 5), generator()
    model = RetrievalModel(8, 5, 16)

    def loss():
        table = task.draw(64, 4, rng)
        return F.cross_entropy(model(*table[:3]), table.answer)

    losses = train(model, loss, 300, 0.02)
    assert losses[-1] < 0.05 < 1 < losses[0]
    assert (model.scores_of_keys().argmax(dim=1) == torch.arange(8)).all()
    assert (model.logits_of_values().argmax(dim=1) == torch.arange(5)).all()
    table = task.draw(200, 8, generator(1))  # twice as long as in training
    assert (model(*table[:3]).argmax(dim=1) == table.answer).double().mean() > 0.97


# ---------------------------------------------------------------------------- texts


def test_text_repeats_a_piece_without_doubles():
    periods = set()
    for text in RepeatTask(VOCAB).draw(300, L, generator()).tolist():
        period = text.index(text[0], 1)
        periods.add(period)
        assert len(set(text[:period])) == period
        assert text == (text[:period] * L)[:L]
    assert periods == set(range(L // 4, L // 2 + 1))


def test_every_token_comes_first_about_as_often():
    first = RepeatTask(VOCAB).draw(4000, 8, generator())[:, 0]
    share = first.bincount(minlength=VOCAB) / 4000
    torch.testing.assert_close(share, torch.full((VOCAB,), 1 / VOCAB), atol=0.015, rtol=0)


def test_shortest_and_longest_text():
    assert RepeatTask(2).draw(B, 4, generator()).shape == (B, 4)
    assert RepeatTask(VOCAB).draw(B, 2 * VOCAB + 1, generator()).max() == VOCAB - 1


# ---------------------------------------------------------------------------- the text model


def turned(x):
    """Each pair of features turned by its angle, as complex numbers."""
    length, d = x.shape
    pairs = torch.view_as_complex(x.reshape(length, d // 2, 2))
    rate = 10000.0 ** (-2 * torch.arange(d // 2, dtype=x.dtype) / d)
    angle = torch.arange(length, dtype=x.dtype)[:, None] * rate
    return torch.view_as_real(pairs * torch.exp(1j * angle)).reshape(length, d)


def test_text_model_adds_the_output_of_every_layer():
    model, tokens = induction_model(), RepeatTask(VOCAB).draw(B, L, generator())
    logits, weights = model(tokens, return_weights=True)
    assert weights.shape == (B, LAYERS, H, L, L)
    x, d = model.embedding.weight[tokens[1]], WIDTH // H
    for n, layer in enumerate(model.layers):
        heads = []
        for h in range(H):
            rows = slice(h * d, (h + 1) * d)
            q, k, v = (x @ p.weight[rows].T for p in (layer.q_proj, layer.k_proj, layer.v_proj))
            scores = turned(q) @ turned(k).T / math.sqrt(d)
            future = torch.ones(L, L).triu(1).bool()
            expected = scores.masked_fill(future, -math.inf).softmax(dim=-1)
            torch.testing.assert_close(weights[1, n, h], expected)
            heads.append(expected @ v)
        x = x + torch.cat(heads, dim=-1) @ layer.out_proj.weight.T
    torch.testing.assert_close(logits[1], x @ model.unembedding.weight.T + model.unembedding.bias)
    torch.testing.assert_close(model(tokens), logits)


def test_no_prediction_sees_the_future():
    model, tokens = induction_model(), RepeatTask(VOCAB).draw(B, L, generator())
    changed = tokens.clone()
    changed[:, 11:] = (tokens[:, 11:] + 1) % VOCAB
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(after[:, :11], before[:, :11])
    assert (after[:, 11:] != before[:, 11:]).any(dim=-1).all()


@pytest.mark.parametrize("make", [retrieval_model, induction_model])
def test_models_can_be_copied_pickled_saved_and_loaded(make, tmp_path):
    model = make()
    inputs = tables()[:3] if make is retrieval_model else (torch.arange(8)[None],)
    expected = model(*inputs)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = copy.deepcopy(model)
    nn.init.zeros_(next(other.parameters()))
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), other):
        torch.testing.assert_close(clone(*inputs), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [retrieval_model, induction_model])
def test_results_have_the_models_dtype(make, dtype):
    model = make(dtype=dtype)
    inputs = tables()[:3] if make is retrieval_model else (torch.arange(8)[None],)
    assert {x.dtype for x in model(*inputs, return_weights=True)} == {dtype}


# ---------------------------------------------------------------------------- maps


def test_marked_places_are_those_behind_earlier_copies():
    rng = generator()
    tokens = torch.randint(4, (B, L), generator=rng)
    marked = after_earlier_copies(tokens)
    assert marked.shape == (B, L, L)
    for b in range(B):
        for i in range(L):
            for j in range(L):
                expected = 0 < j <= i and tokens[b, j - 1] == tokens[b, i]
                assert marked[b, i, j] == expected


def test_default_device_does_not_matter_to_tokens_that_have_one():
    tokens = torch.randint(4, (B, L), generator=generator())
    expected = after_earlier_copies(tokens)
    with torch.device("meta"):
        assert torch.equal(after_earlier_copies(tokens), expected)


def test_weight_on_marked_keys_is_a_mean_over_queries_that_have_some():
    rng = generator()
    weights = torch.rand(B, H, L, S, generator=rng, dtype=torch.float64).softmax(dim=-1)
    marked = torch.rand(B, L, S, generator=rng) > 0.8
    assert not marked.any(dim=-1).all()
    result = weight_on(weights, marked)
    for h in range(H):
        sums = [
            weights[b, h, i][marked[b, i]].sum()
            for b in range(B)
            for i in range(L)
            if marked[b, i].any()
        ]
        torch.testing.assert_close(result[h], torch.stack(sums).mean())


def test_one_mark_for_all_texts_broadcasts_and_full_marks_give_one():
    weights = torch.rand(B, H, L, S, generator=generator()).softmax(dim=-1)
    marked = torch.eye(L, S).bool()
    torch.testing.assert_close(
        weight_on(weights, marked[None]), weight_on(weights, marked.expand(B, L, S))
    )
    torch.testing.assert_close(weight_on(weights, torch.ones(1, L, S).bool()), torch.ones(H))
    assert weight_on(weights, torch.zeros(1, L, S).bool()).isnan().all()


def test_two_layers_set_to_look_back_are_recognised():
    tokens = RepeatTask(VOCAB).draw(B, L, generator())
    previous = torch.diag(torch.ones(L - 1), -1).expand(B, 1, L, L)
    marked = after_earlier_copies(tokens)
    induction = (marked / marked.sum(dim=-1, keepdim=True).clamp(min=1))[:, None]
    weights = torch.cat((previous, induction), dim=1)
    on_previous = weight_on(weights, previous[:, 0] > 0)
    assert on_previous[0] == 1
    assert on_previous[1] < 0.1
    on_copies = weight_on(weights, marked)
    assert on_copies[0] == 0
    torch.testing.assert_close(on_copies[1], torch.tensor(1.0))


# ---------------------------------------------------------------------------- refusals


def ids(*shape):
    return torch.zeros(shape, dtype=torch.int64)


def refuses(error, message, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert str(caught.value) == message


SLOTS = "a table holds each key at most once, so slots must be at most num_keys ="
LENGTH = "length must be at least 4, and half of it at most vocab_size ="
DIVIDE = "num_heads must divide embed_dim, each head takes embed_dim / num_heads of it; got"
EVEN = "each head must have an even width, rotary turns pairs of features; got"
SIZES = [
    (lambda: RecallTask(0), ValueError, "num_keys must be at least 1; got 0"),
    (lambda: RecallTask(3, 2.0), TypeError, "num_values must be an integer; got 2.0"),
    (lambda: RecallTask().draw(0, 4), ValueError, "batch must be at least 1; got 0"),
    (lambda: RecallTask().draw(True, 4), TypeError, "batch must be an integer; got True"),
    (lambda: RecallTask().draw(2, 0), ValueError, "slots must be at least 1; got 0"),
    (lambda: RecallTask().draw(2, 65), ValueError, f"{SLOTS} 64; got 65"),
    (lambda: RetrievalModel(3, 4, 0), ValueError, "embed_dim must be at least 1; got 0"),
    (lambda: RepeatTask(-1), ValueError, "vocab_size must be at least 1; got -1"),
    (lambda: RepeatTask(8).draw(2, 3), ValueError, f"{LENGTH} 8; got 3"),
    (lambda: RepeatTask(8).draw(2, 18), ValueError, f"{LENGTH} 8; got 18"),
    (lambda: InductionModel(8, 12, 2, 0), ValueError, "num_layers must be at least 1; got 0"),
    (
        lambda: InductionModel(8, 12, 5, 1),
        ValueError,
        f"{DIVIDE} embed_dim = 12, num_heads = 5",
    ),
    (lambda: InductionModel(8, 12, 4, 1), ValueError, f"{EVEN} embed_dim / num_heads = 3"),
]


@pytest.mark.refusal
@pytest.mark.parametrize(("call", "error", "message"), SIZES)
def test_sizes_that_do_not_fit_are_refused(call, error, message):
    refuses(error, message, call)


@pytest.mark.refusal
@pytest.mark.parametrize("task", [RecallTask(K, V), RepeatTask(VOCAB)])
def test_generators_that_are_none_are_refused(task):
    refuses(TypeError, "generator must be a torch.Generator; got int", task.draw, B, S, 0)


ONE = "and hold at least one number; got"
EACH = "each table needs a value for each key, and one query; got keys (3, 5), values"
INPUTS = [
    (
        (ids(0, 5), ids(0, 5), ids(0)),
        ValueError,
        f"keys must have shape (batch, slots) {ONE} (0, 5)",
    ),
    (
        (ids(3, 0), ids(3, 0), ids(3)),
        ValueError,
        f"keys must have shape (batch, slots) {ONE} (3, 0)",
    ),
    ((ids(5), ids(5), ids(1)), ValueError, f"keys must have shape (batch, slots) {ONE} (5,)"),
    (
        (ids(3, 5), ids(3), ids(3)),
        ValueError,
        f"values must have shape (batch, slots) {ONE} (3,)",
    ),
    (
        (ids(3, 5), ids(3, 5), ids(3, 1)),
        ValueError,
        f"query must have shape (batch) {ONE} (3, 1)",
    ),
    ((ids(3, 5), ids(3, 4), ids(3)), ValueError, f"{EACH} (3, 4), query (3,)"),
    ((ids(3, 5), ids(3, 5), ids(1)), ValueError, f"{EACH} (3, 5), query (1,)"),
    (
        (ids(3, 5) + K, ids(3, 5), ids(3)),
        ValueError,
        "keys must lie between 0 and 10; got 11 to 11",
    ),
    (
        (ids(3, 5), ids(3, 5) + V, ids(3)),
        ValueError,
        "values must lie between 0 and 6; got 7 to 7",
    ),
    (
        (ids(3, 5), ids(3, 5), ids(3) - 1),
        ValueError,
        "query must lie between 0 and 10; got -1 to -1",
    ),
    (
        (ids(3, 5).float(), ids(3, 5), ids(3)),
        TypeError,
        "keys must be an int64 or int32 tensor; got torch.float32",
    ),
    (([[0]], ids(1, 1), ids(1)), TypeError, "keys must be an int64 or int32 tensor; got list"),
]


@pytest.mark.refusal
@pytest.mark.parametrize(("inputs", "error", "message"), INPUTS)
def test_tables_that_do_not_fit_are_refused(inputs, error, message):
    refuses(error, message, retrieval_model(), *inputs)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        (ids(0, 7), ValueError, f"tokens must have shape (batch, length) {ONE} (0, 7)"),
        (ids(7), ValueError, f"tokens must have shape (batch, length) {ONE} (7,)"),
        (ids(2, 7) + VOCAB, ValueError, "tokens must lie between 0 and 16; got 17 to 17"),
        (ids(2, 7) > 0, TypeError, "tokens must be an int64 or int32 tensor; got torch.bool"),
    ],
)
def test_texts_that_do_not_fit_are_refused(tokens, error, message):
    refuses(error, message, induction_model(), tokens)
    if "lie between" not in message:  # any token may repeat
        refuses(error, message, after_earlier_copies, tokens)


@pytest.mark.refusal
def test_weights_and_marks_that_do_not_fit_are_refused():
    weights, marked = torch.ones(B, H, L, S), torch.ones(B, L, S).bool()
    message = "weights must be a torch.Tensor; got list"
    refuses(TypeError, message, weight_on, weights.tolist(), marked)
    message = "weights must have shape (..., h, q, k); got (19, 5)"
    refuses(ValueError, message, weight_on, weights[0, 0], marked[0])
    message = "marked must be a bool tensor, True = counts; got torch.int64"
    refuses(TypeError, message, weight_on, weights, marked.long())
    for wrong in (marked[:2], marked[:, None]):
        message = f"marked must broadcast to (..., q, k) = (3, 19, 5); got {tuple(wrong.shape)}"
        refuses(ValueError, message, weight_on, weights, wrong)


def test_weight_of_many_rows_in_half_precision_does_not_overflow():
    weights, marked = torch.full((1, 200_000, 2), 0.5).half(), torch.tensor([[True, False]])
    assert weight_on(weights, marked).dtype == torch.float16
    assert weight_on(weights, marked).item() == 0.5


def test_marks_of_the_keys_alone_hold_for_every_query():
    weights, marked = torch.rand(H, L, S, generator=generator()), torch.arange(S) % 2 == 0
    every = marked.expand(L, S)
    torch.testing.assert_close(weight_on(weights, marked), weight_on(weights, every))


def test_weight_of_one_text_needs_no_axis_for_the_batch():
    weights, marked = torch.rand(H, L, S, generator=generator()), torch.eye(L, S).bool()
    torch.testing.assert_close(weight_on(weights, marked), weight_on(weights[None], marked[None]))
