"""Chapter 14: caches, attention with a cache, the language model, generation, grouped heads."""

import copy
import math
import pickle
from functools import cache as remember
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attention_lib.block import LinearBiasAttention, RotaryAttention
from attention_lib.decoding import (
    KeyValueCache,
    LanguageModel,
    RollingCache,
    attend_with_cache,
    cache_bytes,
    generate,
    group_heads,
    next_ids,
)
from attention_lib.multi_head import MultiHeadAttention

# every axis another number, so that a swapped axis cannot pass; 6 heads in groups of 3 or 2
B, L, H, E, VOCABULARY, LAYERS = 3, 11, 6, 24, 13, 2
LAYERS_OF = {"plain": MultiHeadAttention, "rotary": RotaryAttention}
each_layer = pytest.mark.parametrize("kind", LAYERS_OF)
each_grouping = pytest.mark.parametrize("kv_heads", [6, 3, 2, 1])
each_chunking = pytest.mark.parametrize(
    "chunks", [[1] * 11, [7, 1, 1, 2], [11], [3, 5, 3]], ids=str
)


def close(one, other, atol=1e-12):
    torch.testing.assert_close(one, other, atol=atol, rtol=0)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_ids(*shape, seed=0):
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def make_layer(kind, kv_heads=H):
    torch.manual_seed(0)
    layer = LAYERS_OF[kind](E, H, num_kv_heads=kv_heads).double().requires_grad_(False)
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return layer


def make_model(kv_heads=2, window=None, **options):
    torch.manual_seed(0)
    model = LanguageModel(VOCABULARY, E, H, LAYERS, kv_heads, window=window, **options)
    return model.double().requires_grad_(False)


def make_cache(kv_heads=2, capacity=L, rolling=False, batch=B, dtype=torch.float64):
    kind = RollingCache if rolling else KeyValueCache
    return kind(batch, kv_heads, capacity, E // H, dtype=dtype)


def turned(vector, position):
    """A vector of one head as rotary turns it, pair by pair."""
    result = []
    for i in range(0, len(vector), 2):
        angle = position / 10000 ** (i / len(vector))
        x, y = vector[i].item(), vector[i + 1].item()
        result += [
            x * math.cos(angle) - y * math.sin(angle),
            x * math.sin(angle) + y * math.cos(angle),
        ]
    return torch.tensor(result, dtype=vector.dtype)


def loop_attention(layer, x, window=None):
    """One sample ``(L, E)``, from the definition: head by head, query by query, key by key."""
    d, group = E // layer.num_heads, layer.num_heads // layer.num_kv_heads
    turn = turned if isinstance(layer, RotaryAttention) else lambda vector, position: vector
    rows = []
    for i in range(len(x)):
        heads = []
        for h in range(layer.num_heads):
            mine, shared = slice(h * d, (h + 1) * d), slice(h // group * d, (h // group + 1) * d)
            query = turn(layer.q_proj(x[i])[mine], i)
            first = 0 if window is None else max(0, i - window + 1)
            scores, values = [], []
            for j in range(first, i + 1):
                scores.append(query @ turn(layer.k_proj(x[j])[shared], j) / math.sqrt(d))
                values.append(layer.v_proj(x[j])[shared])
            weights = torch.stack(scores).softmax(dim=0)
            heads.append(sum(w * value for w, value in zip(weights, values, strict=True)))
        rows.append(layer.out_proj(torch.cat(heads)))
    return torch.stack(rows)


@remember
def expected(kind, kv_heads, window=None):
    """`loop_attention` for `make_layer(kind, kv_heads)` and the samples `normal(B, L, E)`."""
    layer = make_layer(kind, kv_heads)
    return torch.stack([loop_attention(layer, sample, window) for sample in normal(B, L, E)])


def in_chunks(x, chunks, step):
    """What `step` gives for one chunk of positions after the other."""
    return torch.cat([step(part) for part in x.split(chunks, dim=1)], dim=1)


# ---------------------------------------------------------------------------- the cache


def test_cache_returns_what_was_appended_with_its_positions():
    cache, key, value = make_cache(), normal(B, 2, 7, 4), normal(B, 2, 7, 4, seed=1)
    cache.append(key[:, :, :5], value[:, :, :5])
    keys, values, positions = cache.append(key[:, :, 5:], value[:, :, 5:])
    assert torch.equal(keys, key)
    assert torch.equal(values, value)
    assert positions.tolist() == [[0, 1, 2, 3, 4, 5, 6]] * B
    assert cache.lengths.tolist() == [7] * B
    assert cache.positions().tolist() == [[0, 1, 2, 3, 4, 5, 6, -1, -1, -1, -1]] * B


def test_memory_is_taken_once_and_views_of_it_come_back():
    cache, places = make_cache(), set()
    for step in range(L):
        keys, values, _ = cache.append(normal(B, 2, 1, 4), normal(B, 2, 1, 4))
        places.add((keys.data_ptr(), values.data_ptr()))
        assert keys.shape[2] == step + 1
    assert places == {(cache.keys.data_ptr(), cache.values.data_ptr())}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bytes_are_those_of_the_formula_and_do_not_grow(dtype):
    cache = make_cache(dtype=dtype)
    counted = cache_bytes(
        num_layers=1, num_kv_heads=2, width=4, positions=L, batch_size=B,
        bytes_per_number=dtype.itemsize,
    )  # fmt: skip
    storage = cache.keys.untyped_storage().nbytes() + cache.values.untyped_storage().nbytes()
    assert cache.nbytes == storage == counted == 2 * B * 2 * L * 4 * dtype.itemsize
    cache.append(*normal(2, B, 2, 5, 4, dtype=dtype))
    assert cache.nbytes == counted


def test_bytes_are_those_of_one_sample_in_half_precision_by_default():
    assert cache_bytes(2, 3, 5, 7) == 2 * 2 * 3 * 5 * 7 * torch.float16.itemsize


@pytest.mark.refusal
def test_bytes_beyond_64_bits_are_counted():
    assert cache_bytes(*[np.int64(2**20)] * 4) == 2**82


def test_padding_takes_no_slot_on_whichever_side_it_stands():
    real = torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    cache, key = make_cache(), normal(B, 2, 4, 4)
    keys, _, positions = cache.append(key, key, real)
    assert cache.lengths.tolist() == [3, 2, 0]
    assert positions.tolist() == [[0, 1, 2], [0, 1, -1], [-1, -1, -1]]
    assert torch.equal(keys[0], key[0, :, 1:])
    assert torch.equal(keys[1, :, :2], key[1, :, :2])
    for b, length in enumerate(cache.lengths):
        assert not cache.keys[b, :, length:].any()
        assert not cache.values[b, :, length:].any()
    assert cache.next_positions(2).tolist() == [[3, 4], [2, 3], [0, 1]]
    assert cache.next_positions(4, real).tolist() == [[-1, 3, 4, 5], [2, 3, -1, -1], [-1] * 4]


def test_rolling_cache_holds_the_last_positions_in_slots_that_go_round():
    cache, key = make_cache(capacity=5, rolling=True), normal(B, 2, 8, 4)
    for step in range(8):
        now = key[:, :, step : step + 1]
        keys, _, positions = cache.append(now, now)
    assert positions.tolist() == [[5, 6, 7, 3, 4]] * B
    assert torch.equal(keys, key[:, :, positions[0]])
    assert cache.window == 5
    assert cache.nbytes == 2 * B * 2 * 5 * 4 * 8


@pytest.mark.parametrize("real", [None, torch.tensor([[1] * 8, [1] * 6 + [0] * 2, [0] * 7 + [1]])])
def test_rolling_cache_keeps_the_end_of_a_chunk_that_is_longer_than_itself(real):
    cache, key = make_cache(capacity=5, rolling=True), normal(B, 2, 8, 4)
    real = None if real is None else real.bool()
    returned, _, at = cache.append(key, key, real)
    assert torch.equal(returned, key)  # its early queries still need the early keys
    for b, positions in enumerate(cache.positions().tolist()):
        mine = key[b] if real is None else key[b][:, real[b]]
        assert sorted(p for p in positions if p >= 0) == list(range(mine.shape[1]))[-5:]
        for slot, p in enumerate(positions):
            assert p < 0 or torch.equal(cache.keys[b, :, slot], mine[:, p])
    assert at.shape == (B, 8)


def test_rewinding_forgets_and_the_next_tokens_go_on_from_there():
    cache, key = make_cache(), normal(B, 2, 9, 4)
    cache.append(key, key)
    cache.rewind(4)
    assert cache.lengths.tolist() == [4] * B
    assert not cache.keys[:, :, 4:].any()
    keys, values, positions = cache.append(key[:, :, 4:6], key[:, :, 4:6])
    assert torch.equal(keys, key[:, :, :6])
    assert torch.equal(values, key[:, :, :6])
    assert positions.tolist() == [[0, 1, 2, 3, 4, 5]] * B
    cache.rewind(0)
    assert not cache.lengths.any()
    assert not cache.keys.any()
    assert not cache.values.any()


def test_rewinding_leaves_shorter_samples_as_they_are():
    cache, real = make_cache(), torch.ones(B, 4).bool()
    real[1, 2:] = False
    cache.append(*normal(2, B, 2, 4, 4), real)
    cache.rewind(3)
    assert cache.lengths.tolist() == [3, 2, 3]


def test_number_that_is_not_finite_does_not_come_back_after_a_rewind():
    layer, x = make_layer("plain", 2), normal(B, L, E)
    cache = make_cache()
    attend_with_cache(layer, x[:, :3], cache)
    attend_with_cache(
        layer, x[:, 3:6] * math.inf, cache, torch.tensor([[1, 1, 1], [0] * 3, [0] * 3]) > 0
    )
    cache.rewind(3)
    close(attend_with_cache(layer, x[:, 3:], cache), layer(x, is_causal=True)[:, 3:])


def test_rolling_cache_can_go_back_until_it_went_round():
    cache, key = make_cache(capacity=5, rolling=True), normal(B, 2, 5, 4)
    cache.append(key, key)
    cache.rewind(2)
    assert cache.positions().tolist() == [[0, 1, -1, -1, -1]] * B
    cache.append(key, key)
    cache.rewind(0)
    assert (cache.positions() == -1).all()


def test_appending_changes_no_argument_and_a_copy_or_pickle_goes_its_own_way():
    cache, key, value = make_cache(), normal(B, 2, 3, 4), normal(B, 2, 3, 4, seed=1)
    before, real = (key.clone(), value.clone()), torch.ones(B, 3).bool()
    cache.append(key, value, real)
    assert torch.equal(key, before[0])
    assert torch.equal(value, before[1])
    assert real.all()
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        other.append(key, value)
        assert other.lengths.tolist() == [6] * B
    assert cache.lengths.tolist() == [3] * B


# ---------------------------------------------------------------------------- attention


@each_layer
@each_grouping
@each_chunking
def test_layer_with_a_cache_is_the_loop_for_every_step_and_chunk(kind, kv_heads, chunks):
    layer, x = make_layer(kind, kv_heads), normal(B, L, E)
    cache = make_cache(kv_heads)
    mine = in_chunks(x, chunks, lambda part: attend_with_cache(layer, part, cache))
    close(mine, expected(kind, kv_heads))
    close(mine, layer(x, is_causal=True))


@each_layer
@each_chunking
@pytest.mark.parametrize("window", [1, 3, 5, 11, 13])
def test_rolling_cache_is_a_window_mask_over_everything(kind, chunks, window):
    layer, x = make_layer(kind, 2), normal(B, L, E)
    cache = make_cache(2, window, rolling=True)
    mine = in_chunks(x, chunks, lambda part: attend_with_cache(layer, part, cache))
    close(mine, expected(kind, 2, window))


@each_layer
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("rolling", [False, True])
def test_batch_of_several_lengths_is_each_sample_alone(kind, side, rolling):
    layer, x, lengths = make_layer(kind, 3), normal(B, L, E), (7, 2, 4)
    prompt, real = torch.full((B, 7, E), 3.0, dtype=x.dtype), torch.zeros(B, 7).bool()
    for b, n in enumerate(lengths):
        place = slice(7 - n, 7) if side == "left" else slice(0, n)
        prompt[b, place], real[b, place] = x[b, :n], True
    cache = make_cache(3, 3 if rolling else L, rolling)
    first = attend_with_cache(layer, prompt, cache, real)
    steps = [x[range(B), [n + i for n in lengths]][:, None] for i in range(4)]
    later = torch.cat([attend_with_cache(layer, step, cache) for step in steps], dim=1)
    for b, n in enumerate(lengths):
        alone = loop_attention(layer, x[b, : n + 4], 3 if rolling else None)
        close(first[b][real[b]], alone[:n])
        close(later[b], alone[n:])
        close(first[b][~real[b]], layer.out_proj.bias.expand(7 - n, E))


def test_new_token_sees_every_key_as_pytorch_does_without_a_mask():
    layer, x, cache = make_layer("plain"), normal(B, L, E), make_cache(H)
    attend_with_cache(layer, x[:, :-1], cache)
    mine = attend_with_cache(layer, x[:, -1:], cache)
    query, key, value = layer._heads(x[:, -1:], x, x)
    theirs = F.scaled_dot_product_attention(query, key, value)
    close(mine, layer.out_proj(theirs.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-6), (torch.float16, 3e-3), (torch.bfloat16, 3e-2)]
)
def test_other_dtypes_work_and_keep_their_dtype(dtype, atol):
    layer, x = make_layer("rotary", 2), normal(B, L, E)
    exact = layer(x, is_causal=True)
    cache = make_cache(dtype=dtype)
    step = layer.to(dtype)
    mine = in_chunks(x.to(dtype), [4] + [1] * 7, lambda p: attend_with_cache(step, p, cache))
    assert mine.dtype == dtype
    close(mine.double(), exact, atol=atol)


def test_under_autocast_a_cache_of_its_dtype_works():
    layer, x, cache = (
        make_layer("rotary", 2).float(),
        normal(B, L, E),
        make_cache(dtype=torch.bfloat16),
    )
    x = x.float()
    with torch.autocast("cpu", torch.bfloat16):
        mine = in_chunks(x, [4] + [1] * 7, lambda part: attend_with_cache(layer, part, cache))
    close(mine.float(), layer(x, is_causal=True), atol=5e-2)


def test_empty_chunk_changes_nothing():
    layer, cache = make_layer("plain", 2), make_cache()
    assert attend_with_cache(layer, normal(B, 0, E), cache).shape == (B, 0, E)
    assert not cache.lengths.any()


# ---------------------------------------------------------------------------- the model


@each_grouping
@each_chunking
@pytest.mark.parametrize("window", [None, 4])
def test_model_with_caches_is_the_model_without(kv_heads, chunks, window):
    model, ids = make_model(kv_heads, window), random_ids(B, L)
    caches = model.new_caches(B, L)
    close(in_chunks(ids, chunks, lambda part: model(part, caches)), model(ids))


def test_model_is_its_blocks_one_after_the_other():
    model, ids = make_model(), random_ids(B, L)
    x = model.embed(ids)
    for block in model.blocks:
        y = block.norm1(x)
        x = x + torch.stack([loop_attention(block.attention, row) for row in y])
        x = x + block.feedforward(block.norm2(x))
    close(model(ids), model.out(model.norm(x)))


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch_gives_each_sample_what_it_gets_alone(window, side):
    model, ids, lengths = make_model(window=window), random_ids(B, L), (11, 2, 5)
    places = torch.arange(L).expand(B, L)
    n = torch.tensor(lengths)[:, None]
    real = places >= L - n if side == "left" else places < n
    both = model(ids, real=real), model(ids, model.new_caches(B, L), real)
    for b in range(B):
        alone = model(ids[b : b + 1, real[b]])[0]
        for scores in both:
            close(scores[b, real[b]], alone)


def test_two_layers_with_a_window_see_further_than_one_window():
    model, ids = make_model(window=3), random_ids(1, L)
    changed = ids.clone()
    changed[0, 4] = (changed[0, 4] + 1) % VOCABULARY
    moved = (model(changed) - model(ids)).abs().amax(dim=-1)[0] > 1e-9
    assert moved.nonzero().flatten().tolist() == [4, 5, 6, 7, 8]  # 1 + LAYERS * (3 - 1) positions


def test_new_caches_fit_the_model():
    full, rolling = make_model().new_caches(B, 7), make_model(window=4).new_caches(B, 7)
    assert [type(cache) for cache in full] == [KeyValueCache] * LAYERS
    assert [type(cache) for cache in rolling] == [RollingCache] * LAYERS
    assert full[0].keys.shape == (B, 2, 7, E // H)
    assert rolling[0].keys.shape == (B, 2, 4, E // H)
    assert full[0].keys.dtype == torch.float64
    assert full[0].keys.data_ptr() != full[1].keys.data_ptr()
    assert type(make_model(window=7).new_caches(B, 7)[0]) is KeyValueCache


@pytest.mark.parametrize("window", [None, 3])
def test_default_device_does_not_matter_to_a_model_that_has_one(window):
    model, ids, real = make_model(window=window), random_ids(B, L), torch.ones(B, L).bool()
    expected = model(ids, real=real)
    with torch.device("meta"):
        close(model(ids, real=real), expected)
        close(model(ids), expected)
        close(in_chunks(ids, [5, 6], partial(model, caches=model.new_caches(B, L))), expected)


def test_model_learns_a_pattern():
    from attention_lib.training import train

    torch.manual_seed(0)
    model, ids = LanguageModel(5, 16, 2, 1), torch.arange(24).remainder(5).view(2, 12)

    def loss():
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    losses = train(model, loss, 60, 1e-2)
    assert losses[-1] < 0.1 < losses[0]
    written = [int(new) for new in generate(model, torch.tensor([[3, 4]]), 7, temperature=0)]
    assert written == [0, 1, 2, 3, 4, 0, 1]


# ---------------------------------------------------------------------------- generation


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("length", [1, 4])
def test_generation_is_the_model_asked_again_for_all_so_far(window, length):
    model, ids = make_model(window=window), random_ids(B, length)
    written = ids
    for new in generate(model, ids, 9, temperature=0):
        assert torch.equal(new, model(written)[:, -1].argmax(dim=-1))
        written = torch.cat([written, new[:, None]], dim=1)
    assert written.shape == (B, length + 9)


@pytest.mark.parametrize("side", ["left", "right"])
def test_prompts_of_several_lengths_are_continued_as_each_alone(side):
    model, ids, lengths = make_model(), random_ids(B, 7), (7, 2, 4)
    places, n = torch.arange(7).expand(B, 7), torch.tensor(lengths)[:, None]
    real = places >= 7 - n if side == "left" else places < n
    together = torch.stack(list(generate(model, ids, 5, temperature=0, real=real)), dim=1)
    for b in range(B):
        alone = generate(model, ids[b : b + 1, real[b]], 5, temperature=0)
        assert together[b].tolist() == [int(new) for new in alone]


def test_generator_decides_what_is_drawn_and_the_global_one_stays():
    model, ids, state = make_model(), random_ids(B, 4), torch.get_rng_state()

    def drawn(seed):
        rng = torch.Generator().manual_seed(seed)
        return torch.stack(list(generate(model, ids, 9, generator=rng)))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    assert torch.equal(torch.get_rng_state(), state)


def test_generation_records_no_gradient_and_leaves_grad_mode_as_it_was():
    torch.manual_seed(0)
    model = LanguageModel(VOCABULARY, E, H, LAYERS)
    for new in generate(model, random_ids(B, 4), 2):
        assert torch.is_grad_enabled()
        assert not new.requires_grad


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [None, 4, 3, 2, 1])
def test_ids_come_up_as_often_as_the_softmax_says(temperature, top_k):
    scores = torch.tensor([1.0, 3.0, 2.0, 0.5])
    kept = [1, 2, 0, 3][:top_k]
    powers = {i: math.exp(scores[i].item() / temperature) for i in kept}
    expected = torch.tensor([powers.get(i, 0) / sum(powers.values()) for i in range(4)])
    rng = torch.Generator().manual_seed(0)
    drawn = next_ids(scores.expand(20_000, 4), temperature, top_k, rng)
    torch.testing.assert_close(drawn.bincount(minlength=4) / 20_000, expected, atol=0.015, rtol=0)


def test_one_row_has_its_largest_scores_kept_and_those_equal_to_the_last_of_them():
    scores = torch.tensor([[1.0, 3.0, 2.0, 0.5, 2.0]])
    rng = torch.Generator().manual_seed(0)
    assert {next_ids(scores, 9.0, 1, rng).item() for _ in range(99)} == {1}
    assert {next_ids(scores, 9.0, 2, rng).item() for _ in range(99)} == {1, 2, 4}


def test_temperature_is_1_by_default():
    scores, model, ids = normal(97, VOCABULARY), make_model(), random_ids(B, 4)

    def drawn(*temperature):
        rng = torch.Generator().manual_seed(0)
        written = generate(model, ids, 9, *temperature, generator=rng)
        return next_ids(scores, *temperature, generator=rng).tolist(), torch.cat(
            [*written]
        ).tolist()

    assert drawn() == drawn(1.0) != drawn(2.0)


def test_temperature_zero_takes_the_largest_and_huge_scores_do_no_harm():
    scores = torch.tensor([[1.0, 7.0, 2.0], [9.0, 1.0, 3.0]])
    assert next_ids(scores, temperature=0).tolist() == [1, 0]
    assert next_ids(scores * 1e30, temperature=1e-3).tolist() == [1, 0]
    assert next_ids(scores, temperature=1e-320).tolist() == [1, 0]
    assert next_ids(scores.half(), temperature=1e-3, top_k=50).tolist() == [1, 0]


# ---------------------------------------------------------------------------- grouped heads


@each_layer
@pytest.mark.parametrize(("old", "new"), [(6, 6), (6, 3), (6, 2), (6, 1), (2, 1)])
def test_grouped_head_is_the_mean_of_those_it_stands_for(kind, old, new):
    layer = make_layer(kind, old)
    grouped = group_heads(layer, new)
    assert type(grouped) is type(layer)
    d, size = E // H, old // new
    for name in ("k_proj", "v_proj"):
        for parameter in ("weight", "bias"):
            rows, mine = (getattr(getattr(x, name), parameter) for x in (layer, grouped))
            assert len(mine) == new * d
            for head in range(new):
                members = [rows[(head * size + i) * d :][:d] for i in range(size)]
                close(mine[head * d : (head + 1) * d], sum(members) / size)
    for name in ("q_proj", "out_proj"):
        assert torch.equal(getattr(grouped, name).weight, getattr(layer, name).weight)


def test_grouping_equal_heads_changes_no_output_and_not_the_layer():
    layer, x = group_heads(make_layer("rotary"), 2), normal(B, L, E)
    apart = RotaryAttention(E, H).double().requires_grad_(False)
    state = layer.state_dict()
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        state[name] = state[name].unflatten(0, (2, 4)).repeat_interleave(3, dim=0).flatten(0, 1)
    apart.load_state_dict(state)
    before = {name: p.clone() for name, p in apart.state_dict().items()}
    close(group_heads(apart, 2)(x, is_causal=True), apart(x, is_causal=True))
    assert all(torch.equal(p, before[name]) for name, p in apart.state_dict().items())


def test_layer_without_bias_and_in_half_precision_is_grouped_too():
    layer = MultiHeadAttention(E, H, bias=False, dropout=0.5).half().eval()
    grouped = group_heads(layer, 2)
    assert grouped.k_proj.bias is None
    assert grouped.k_proj.weight.dtype == torch.float16
    assert grouped.dropout == 0.5
    assert not grouped.training


# ---------------------------------------------------------------------------- refusals

KEY = torch.zeros(B, 2, 1, 4, dtype=torch.float64)
SHAPE = "must have the cache's shape (batch, key/value heads, L, d) = (3, 2, L, 4); got"
NO_GRADIENT = (
    "must not record a gradient, a cache is overwritten in place: append under torch.no_grad()"
)


def refuses(error, message, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert str(caught.value) == message


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (KEY[:2], ValueError, f"{SHAPE} (2, 2, 1, 4)"),
        (KEY[:, :1], ValueError, f"{SHAPE} (3, 1, 1, 4)"),
        (KEY[..., :3], ValueError, f"{SHAPE} (3, 2, 1, 3)"),
        (KEY[0], ValueError, f"{SHAPE} (2, 1, 4)"),
        (KEY[None], ValueError, f"{SHAPE} (1, 3, 2, 1, 4)"),
        (
            KEY.float(),
            TypeError,
            "must have the cache's dtype torch.float64; got torch.float32",
        ),
        (KEY.long(), TypeError, "must have a real floating dtype; got torch.int64"),
        (KEY.tolist(), TypeError, "must be a torch.Tensor; got list"),
        (KEY.to("meta"), ValueError, "must be on the cache's device cpu; got meta"),
        (KEY.clone().requires_grad_(), ValueError, NO_GRADIENT),
    ],
)
@pytest.mark.parametrize("rolling", [False, True])
def test_tensors_that_do_not_fit_the_cache_are_refused(key, error, message, rolling):
    cache = make_cache(rolling=rolling)
    refuses(error, f"key {message}", cache.append, key, KEY)
    refuses(error, f"value {message}", cache.append, KEY, key)
    assert not cache.lengths.any()


@pytest.mark.refusal
def test_full_cache_refuses_and_keeps_what_it_has():
    cache = make_cache(capacity=5)
    cache.append(KEY.expand(-1, -1, 4, -1), KEY.expand(-1, -1, 4, -1))
    before = cache.keys.clone()
    two = torch.ones(B, 2, 2, 4, dtype=torch.float64)
    message = (
        "the cache has room for capacity = 5 positions; 6 are needed, "
        "the longest sample holds 4 now"
    )
    refuses(ValueError, message, cache.append, two, two)
    assert torch.equal(cache.keys, before)
    assert cache.lengths.tolist() == [4] * B
    cache.append(KEY, KEY)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("real", "error", "message"),
    [
        (
            torch.ones(B, 1),
            TypeError,
            "real must be a bool tensor, True = a token; got torch.float32",
        ),
        ([[True]] * B, TypeError, "real must be a bool tensor, True = a token; got list"),
        (
            torch.ones(B, 2).bool(),
            ValueError,
            "real must have shape (batch, L) = (3, 1); got (3, 2)",
        ),
        (
            torch.ones(1, 1).bool(),
            ValueError,
            "real must have shape (batch, L) = (3, 1); got (1, 1)",
        ),
        (
            torch.ones(B, 1, device="meta").bool(),
            ValueError,
            "real must be on the device cpu; got meta",
        ),
    ],
)
def test_real_that_does_not_fit_is_refused(real, error, message):
    refuses(error, message, make_cache().append, KEY, KEY, real)
    refuses(error, message, make_model(), random_ids(B, 1), real=real)
    refuses(error, message, generate, make_model(), random_ids(B, 1), 2, real=real)


@pytest.mark.refusal
@pytest.mark.parametrize("kind", [KeyValueCache, RollingCache])
def test_sizes_of_a_cache_that_do_not_fit_are_refused(kind):
    refuses(ValueError, "capacity must be at least 1; got 0", kind, 1, 1, 0, 1)
    refuses(ValueError, "batch_size must be at least 1; got -2", kind, -2, 1, 1, 1)
    refuses(TypeError, "width must be an integer; got 2.0", kind, 1, 1, 1, 2.0)
    refuses(TypeError, "num_kv_heads must be an integer; got True", kind, 1, True, 1, 1)
    cache = kind(1, 1, 1, 1)
    refuses(ValueError, "length must be at least 0; got -1", cache.rewind, -1)
    refuses(TypeError, "length must be an integer; got 1.5", cache.rewind, 1.5)
    refuses(ValueError, "length must be at least 0; got -1", cache.next_positions, -1)


@pytest.mark.refusal
def test_dtype_and_device_of_a_cache_that_do_not_fit_are_refused():
    message = "dtype must be a float dtype of 16, 32 or 64 bits; got torch.int64"
    refuses(TypeError, message, KeyValueCache, 1, 1, 1, 1, torch.int64)
    message = "device must be one of PyTorch, such as 'cpu' or 'cuda:0'; got 'nowhere'"
    refuses(ValueError, message, KeyValueCache, 1, 1, 1, 1, None, "nowhere")


@pytest.mark.refusal
@pytest.mark.parametrize(
    "name",
    ["num_layers", "num_kv_heads", "width", "positions", "batch_size", "bytes_per_number"],
)
def test_negative_sizes_have_no_bytes(name):
    sizes = {"num_layers": 2, "num_kv_heads": 3, "width": 5, "positions": 7} | {name: -1}
    refuses(ValueError, f"{name} must be at least 0; got -1", cache_bytes, **sizes)


@pytest.mark.refusal
def test_key_and_value_of_two_lengths_are_refused():
    message = "key and value must have one shape; got (3, 2, 1, 4) and (3, 2, 2, 4)"
    refuses(ValueError, message, make_cache().append, KEY, KEY.expand(-1, -1, 2, -1))


@pytest.mark.refusal
def test_rolling_cache_that_went_round_does_not_go_back():
    cache = make_cache(capacity=5, rolling=True)
    cache.append(KEY.expand(-1, -1, 6, -1), KEY.expand(-1, -1, 6, -1))
    for length in (5, 1):
        message = (
            "a rolling cache of capacity = 5 that holds 6 positions has overwritten what "
            f"position {length} would see; rewind(0) empties it"
        )
        refuses(ValueError, message, cache.rewind, length)
    cache.rewind(6)
    assert cache.lengths.tolist() == [6] * B


@pytest.mark.refusal
def test_layers_and_inputs_that_do_not_fit_are_refused():
    layer, x = make_layer("plain", 2), normal(B, 1, E)
    rule = (
        "layer must be a MultiHeadAttention or a RotaryAttention, others would have to say what a "
        "position means to them; got"
    )
    other = LinearBiasAttention(E, H)
    refuses(TypeError, f"{rule} LinearBiasAttention", attend_with_cache, other, x, make_cache(H))
    refuses(TypeError, f"{rule} int", attend_with_cache, 3, x, make_cache(H))
    message = "x must have shape (batch, L, embed_dim); got (3, 24)"
    refuses(ValueError, message, attend_with_cache, layer, x[:, 0], make_cache())
    message = "x must have a real floating dtype; got torch.int64"
    refuses(TypeError, message, attend_with_cache, layer, x.long(), make_cache())
    message = "query must have shape (batch, position, embed_dim = 24); got (3, 1, 5)"
    refuses(ValueError, message, attend_with_cache, layer, x[..., :5], make_cache())
    message = (
        "all inputs must have one dtype; "
        "got the layer's weights torch.float64 and query torch.float32"
    )
    refuses(TypeError, message, attend_with_cache, layer, x.float(), make_cache())
    message = "cache must be a KeyValueCache; got list"
    refuses(TypeError, message, attend_with_cache, layer, x, [make_cache()])
    message = f"key {SHAPE.replace('(3, 2, L', '(3, 6, L')} (3, 2, 1, 4)"
    refuses(ValueError, message, attend_with_cache, layer, x, make_cache(kv_heads=6))
    layer = MultiHeadAttention(E, H).double()
    refuses(ValueError, f"key {NO_GRADIENT}", attend_with_cache, layer, x, make_cache(H))


@pytest.mark.refusal
def test_models_and_their_inputs_that_do_not_fit_are_refused():
    model = make_model()
    message = "ids must be an int64 or int32 tensor; got torch.float32"
    refuses(TypeError, message, model, torch.zeros(B, 1))
    message = "ids must lie between 0 and 12; got 13 to 13"
    refuses(ValueError, message, model, torch.full((1, 1), 13))
    refuses(ValueError, message, generate, model, torch.full((1, 1), 13), 1)
    sizes = (VOCABULARY, E, H)
    refuses(ValueError, "num_layers must be at least 1; got 0", LanguageModel, *sizes, 0)
    refuses(ValueError, "window must be at least 1; got 0", LanguageModel, *sizes, 1, window=0)
    message = (
        "num_kv_heads must divide num_heads, equal groups of query heads share a key/value head; "
        "got num_heads = 6, num_kv_heads = 4"
    )
    refuses(ValueError, message, LanguageModel, *sizes, 1, num_kv_heads=4)


@pytest.mark.refusal
def test_caches_that_would_give_wrong_numbers_are_refused():
    model, ids = make_model(), random_ids(B, 1)
    caches, longer = model.new_caches(B, 3), model.new_caches(B, 3)
    for wrong, got in ((caches[:1], "1, 1"), ([caches[0]] * 2, "2, 1"), (caches * 2, "4, 2")):
        message = f"there must be 2 caches, one for each block; got {got} of them different"
        refuses(ValueError, message, model, ids, wrong)
    refuses(TypeError, "each cache must be a KeyValueCache; got int", model, ids, [1, 2])
    model(ids, longer)
    message = "all caches must hold the same number of tokens; got [0, 0, 0] and [1, 1, 1]"
    refuses(ValueError, message, model, ids, [caches[0], longer[1]])
    near, rule = make_model(window=2), "each cache must have the model's window,"
    rolling = near.new_caches(B, 3)
    message = f"{rule} 2, or no window and no larger capacity; got window None and capacity 3"
    refuses(ValueError, message, near, ids, caches)
    message = f"{rule} None, or no window and no larger capacity; got window 2 and capacity 2"
    refuses(ValueError, message, model, ids, rolling)
    near(ids, model.new_caches(B, 2))  # where nothing leaves the window


@pytest.mark.refusal
def test_generation_refuses_at_the_call_not_at_the_first_step():
    model, ids = make_model(), random_ids(B, 3)
    refuses(TypeError, "model must be a LanguageModel; got Linear", generate, model.out, ids, 1)
    refuses(ValueError, "steps must be at least 1; got 0", generate, model, ids, 0)
    for temperature in (-1, math.nan, math.inf, "1"):
        message = f"temperature must be a finite number from 0 on; got {temperature!r}"
        refuses(ValueError, message, generate, model, ids, 1, temperature)
    refuses(ValueError, "top_k must be at least 1; got 0", generate, model, ids, 1, top_k=0)
    message = "generator must be a torch.Generator; got int"
    refuses(TypeError, message, generate, model, ids, 1, generator=0)
    message = "ids must have shape (batch, position) and hold at least one number; got (3, 0)"
    refuses(ValueError, message, generate, model, ids[:, :0], 1)
    real = torch.ones(B, 3).bool()
    real[1] = False
    message = "each prompt needs at least one token; got a row of padding only"
    refuses(ValueError, message, generate, model, ids, 1, real=real)


@pytest.mark.refusal
def test_scores_that_nothing_can_be_drawn_from_are_refused():
    scores = torch.zeros(2, 3)
    refuses(TypeError, "top_k must be an integer; got 0.5", next_ids, scores, top_k=0.5)
    message = "scores must have a real floating dtype; got torch.int64"
    refuses(TypeError, message, next_ids, scores.long())
    for wrong in (math.nan, math.inf, -math.inf):
        rows = torch.tensor([[0, -math.inf], [wrong, -math.inf]])
        message = f"each row of scores must have a finite maximum; got [0.0, {wrong}]"
        for temperature in (0, 1.0):
            refuses(ValueError, message, next_ids, rows, temperature)
    for wrong in (scores[0], scores[:, :0], scores[None]):
        message = f"scores must have shape (batch, vocabulary); got {tuple(wrong.shape)}"
        refuses(ValueError, message, next_ids, wrong)


@pytest.mark.refusal
def test_groups_that_do_not_divide_are_refused():
    layer = make_layer("plain")
    refuses(ValueError, "num_kv_heads must divide the layer's 6; got 4", group_heads, layer, 4)
    refuses(ValueError, "num_kv_heads must be at least 1; got 0", group_heads, layer, 0)
    message = (
        "layer must be a MultiHeadAttention or RotaryAttention or LinearBiasAttention of "
        "attention_lib, and no subclass, which may attend in another way; "
        "got torch.nn.modules.linear.Linear"
    )
    refuses(TypeError, message, group_heads, layer.q_proj, 2)
