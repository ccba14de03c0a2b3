"""Properties of every attention function and layer over generated shapes, dtypes, masks, layouts.

The oracle is the definition in plain Python numbers, which are float64; it shares no code with the
library. How near a result must come to it is derived: see :func:`assert_as_exact_as`.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import (
    Problem,
    assert_as_exact_as,
    by_definition,
    by_formula,
    gradients_by_definition,
    layer_by,
    lengths,
    masks,
    normal,
    powers,
    problems,
    seeds,
    tensors,
    widths,
)

from attention_lib import (
    KeyValueCache,
    MultiHeadAttention,
    PerHeadAttention,
    RollingCache,
    RotaryAttention,
    attend_with_cache,
    attention_weights,
    from_additive,
    numpy_attention,
    numpy_multi_head_attention,
    scaled_dot_product_attention,
    soft_lookup,
    softmax,
    tiled_attention,
    to_additive,
    window_mask,
)
from attention_lib._ring import _merge_partial

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def every_dtype(test):
    return pytest.mark.parametrize("dtype", DTYPES, ids=str)(settings(max_examples=40)(test))


# Functions of queries, keys and values


def assert_equals_the_definition(problem, block_size):
    """Every path of every function, forward; the arguments stay as they are."""
    inputs, options, allowed, scale = problem
    before = [x.clone() for x in inputs]
    output, weights, lse, size, lse_size = by_definition(*inputs, allowed.numpy(), scale)
    plain = by_formula(*inputs, allowed, scale)
    fused = scaled_dot_product_attention(*inputs, **options)
    explicit, own = scaled_dot_product_attention(*inputs, **options, return_weights=True)
    tiled, own_lse = tiled_attention(*inputs, **options, block_size=block_size, return_lse=True)
    for result in (fused, explicit, tiled):
        assert_as_exact_as(plain[0], result, output, size)
        assert (result[~allowed.any(-1)] == 0).all()
    for result in (own, attention_weights(*inputs[:2], **options)):
        assert_as_exact_as(plain[1], result, weights)
        assert (result[~allowed] == 0).all()
    assert_as_exact_as(plain[2], own_lse, lse, lse_size)
    assert all(map(torch.equal, inputs, before))


@every_dtype
@given(st.data(), st.integers(1, 6), st.booleans())
def test_every_function_is_as_exact_as_the_formula(dtype, data, block_size, grad):
    with torch.set_grad_enabled(grad):
        assert_equals_the_definition(data.draw(problems(dtype)), block_size)


@pytest.mark.parametrize("scale", [-1.0, 0.0])
def test_scale_need_not_be_positive_where_is_causal(scale):
    # PyTorch's kernel fills in -inf and multiplies it by the scale
    inputs, options = [normal(1, 2, 3, 5, seed=i).float() for i in range(3)], {"is_causal": True}
    allowed = torch.ones(1, 2, 3, 3, dtype=torch.bool).tril()
    options |= {"mask": None, "scale": scale}
    assert_equals_the_definition(Problem(inputs, options, allowed, scale), block_size=2)


@every_dtype
@given(st.data(), st.integers(1, 6))
def test_large_and_subnormal_numbers_are_no_problem(dtype, data, block_size):
    # scales whose root is exact too: PyTorch multiplies both factors of the scores by it
    problem = data.draw(problems(dtype, powers, scales=(0.25, -1.0, 0.0)))
    assert_equals_the_definition(problem, block_size)


@every_dtype
@given(st.data(), st.integers(1, 6), seeds)
def test_gradients_are_the_closed_form(dtype, data, block_size, seed):
    inputs, options, allowed, scale = data.draw(problems(dtype))
    inputs = [x.requires_grad_() for x in inputs]
    weights = by_definition(*inputs, allowed.numpy(), scale)[1]
    plain = by_formula(*inputs, allowed, scale)[0]
    cotangent = normal(*plain.shape, seed=seed, dtype=plain.dtype)
    exact, size = gradients_by_definition(*inputs, weights, scale, cotangent)
    of_plain = torch.autograd.grad(plain, inputs, cotangent)
    for output in (
        scaled_dot_product_attention(*inputs, **options),
        scaled_dot_product_attention(*inputs, **options, return_weights=True)[0],
        tiled_attention(*inputs, **options, block_size=block_size),
    ):
        gradients = torch.autograd.grad(output, inputs, cotangent)
        for numbers in zip(of_plain, gradients, exact, size, strict=True):
            assert_as_exact_as(*numbers)
        assert (gradients[0][~allowed.any(-1)] == 0).all()


@every_dtype
@given(st.data(), st.sampled_from([1e4, 1e20, -1e20, 1e-40, math.inf, -math.inf, math.nan]))
def test_finite_content_of_a_masked_slot_has_no_influence_and_nan_spreads(dtype, data, content):
    inputs, _, allowed, _ = data.draw(problems(dtype))
    if not allowed.shape[-1]:
        return
    content = 1e4 if dtype == torch.float16 and math.isfinite(content) else content
    mask, slot = allowed.clone(), data.draw(st.integers(0, allowed.shape[-1] - 1))
    mask[..., slot] = False
    for function in (
        lambda *x: scaled_dot_product_attention(*x, mask),
        lambda *x: scaled_dot_product_attention(*x, mask, return_weights=True)[0],
        lambda *x: tiled_attention(*x, mask),
    ):
        results = []
        for number in (0.0, content):
            query, key, value = (x.clone() for x in inputs)
            value[..., slot, :] = number
            if math.isfinite(content):
                key[..., slot, :] = number
            leaves = [x.requires_grad_() for x in (query, key, value)]
            output = function(*leaves)
            results.append([output, *torch.autograd.grad(output.sum(), leaves)])
        if math.isfinite(content):
            assert all(map(torch.equal, *results))
        else:  # a query without any key may get 0
            assert results[1][0][mask.any(-1)].isnan().all()


@given(problems(torch.float32), st.integers(0, 5))
def test_two_parts_of_the_keys_are_merged_by_their_log_sum_exp(problem, split):
    (query, key, value), _, allowed, scale = problem
    (output, lse), other = (
        tiled_attention(query, *x, allowed[..., at], scale=scale, return_lse=True)
        for at in (slice(None, split), slice(split, None))
        for x in [(key[..., at, :], value[..., at, :])]
    )
    _merge_partial(output, lse, *other)
    exact = by_definition(query, key, value, allowed.numpy(), scale)
    plain = by_formula(query, key, value, allowed, scale)
    assert_as_exact_as(plain[0], output, exact[0], exact[3])
    assert_as_exact_as(plain[2], lse, exact[2], exact[4])


SIZES = st.sampled_from([1, 2, 3, 5])


@pytest.mark.refusal
@given(st.data(), st.sampled_from([(), (2,), (2, 3)]), SIZES, SIZES)
def test_mask_is_broadcast_where_documented_and_refused_elsewhere(data, lead, length, keys):
    # 0 to 5 axes, most of them as they should be
    wanted = (3, *lead, length, keys)[data.draw(st.integers(0, len(lead) + 3)) :]
    shape = tuple(data.draw(st.sampled_from([size, size, 1, 2])) for size in wanted)
    query, key, value = (normal(*lead, n, 2, seed=0) for n in (length, keys, keys))
    mask, full = torch.ones(shape, dtype=torch.bool), (*lead, length, keys)
    fits = len(shape) == len(full) and all(a in (1, b) for a, b in zip(shape, full, strict=True))
    for function in (scaled_dot_product_attention, tiled_attention):
        if fits or shape in (full[-1:], full[-2:]):
            assert torch.equal(function(query, key, value, mask), function(query, key, value))
        else:
            with pytest.raises(ValueError, match=r"mask must have shape \(S,\)"):
                function(query, key, value, mask)


@pytest.mark.refusal
@given(*[st.lists(SIZES, max_size=3).map(tuple)] * 2, st.booleans())
def test_leading_axes_are_never_broadcast(lead, other, of_value):
    shapes = [lead, lead if of_value else other, other]
    query, key, value = (normal(*axes, 2, 3, seed=0) for axes in shapes)
    for function in (scaled_dot_product_attention, tiled_attention):
        if lead == other:
            assert function(query, key, value).shape == (*lead, 2, 3)
        else:
            with pytest.raises(ValueError, match="nothing is broadcast"):
                function(query, key, value)


# Layers


@torch.no_grad()
def randomised(layer, seed):
    for i, parameter in enumerate(layer.parameters()):
        parameter.copy_(normal(*parameter.shape, seed=seed + i) / parameter.shape[-1] ** 0.5)
    return layer


@st.composite
def layers(draw, kind=MultiHeadAttention, sizes=("kdim", "vdim")):
    """A layer with random weights and biases."""
    heads = draw(st.sampled_from([1, 2, 4, 6]))
    shared = draw(st.sampled_from([n for n in (1, 2, 3, 4, 6) if heads % n == 0]))
    width = heads * draw(st.sampled_from([2, 4] if kind is RotaryAttention else [1, 2, 3]))
    sizes = {name: draw(st.one_of(st.none(), widths)) for name in sizes}
    layer = kind(width, heads, **sizes, num_kv_heads=shared, bias=draw(st.booleans()))
    return randomised(layer, draw(seeds)).to(draw(st.sampled_from(DTYPES)))


@given(layers(), st.integers(0, 3), lengths, lengths, st.booleans(), st.data())
def test_layer_is_as_exact_as_the_formula(layer, batch, length, keys, is_causal, data):
    same = layer.embed_dim == layer.kdim == layer.vdim
    of_self = same and data.draw(st.booleans())
    keys = length if is_causal or of_self else keys
    sizes = (length, layer.embed_dim), (keys, layer.kdim), (keys, layer.vdim)
    sizes = [(batch, *size) for size in sizes]
    inputs = data.draw(tensors(*sizes, layer.q_proj.weight.dtype, normal))
    inputs = inputs[:1] if of_self else inputs
    full = (batch, layer.num_heads, length, keys)
    some = (*(data.draw(st.sampled_from([1, size])) for size in full[:3]), keys)
    shape = data.draw(st.sampled_from([None, full[2:], (batch, *full[2:]), full, some]))
    mask = None if shape is None else data.draw(masks(shape))
    allowed = torch.ones(full, dtype=torch.bool)
    if mask is not None:
        allowed = (mask[:, None] if mask.ndim == 3 else mask).expand(full)
    allowed = allowed.tril() if is_causal else allowed
    three = inputs * 3 if of_self else inputs
    plain, plain_weights = layer_by(by_formula, layer, three, allowed)
    exact, exact_weights, size = layer_by(by_definition, layer, three, allowed)
    options = {"mask": mask, "is_causal": is_causal}
    can_be_apart = same and layer.num_kv_heads == layer.num_heads
    for module in [layer, *([PerHeadAttention.from_multi_head(layer)] if can_be_apart else [])]:
        alone = module(*inputs, **options)
        with torch.no_grad():
            without = module(*inputs, **options)
        output, weights = module(*inputs, **options, return_weights=True)
        for result in (alone, without, output):
            assert_as_exact_as(plain, result, exact, size)
        assert_as_exact_as(plain_weights, weights, exact_weights)
        gradients = torch.autograd.grad(alone.sum(), list(module.parameters()))
        assert all(gradient.isfinite().all() for gradient in gradients)


@given(
    st.sampled_from([MultiHeadAttention, RotaryAttention]).flatmap(lambda kind: layers(kind, ())),
    st.lists(st.integers(0, 3), min_size=1, max_size=4), st.one_of(st.none(), st.integers(1, 4)),
    st.floats(0, 1), seeds,
)  # fmt: skip
@torch.no_grad()
def test_decoding_in_chunks_is_causal_attention(layer, chunks, window, padding, seed):
    batch, length, dtype = 2, sum(chunks), layer.q_proj.weight.dtype
    d = layer.embed_dim // layer.num_heads
    sizes = batch, layer.num_kv_heads, window or max(1, length), d, dtype
    cache = (RollingCache if window else KeyValueCache)(*sizes)
    x = normal(batch, length, layer.embed_dim, seed=seed, dtype=dtype)
    real = torch.from_numpy(np.random.default_rng(seed).random((batch, length)) >= padding)
    parts = zip(x.split(chunks, dim=1), real.split(chunks, dim=1), strict=True)
    output = torch.cat([attend_with_cache(layer, a, cache, b) for a, b in parts], dim=1)
    place = real.cumsum(1) - 1  # its number among the real tokens
    behind = place[:, :, None] - place[:, None]
    allowed = real[:, :, None] & real[:, None] & (behind >= 0) & (behind < (window or length + 1))
    allowed = allowed[:, None].expand(-1, layer.num_heads, -1, -1)

    def turn(heads):
        if not isinstance(layer, RotaryAttention):
            return heads
        angles = place[:, None, :, None] * 1e4 ** (-torch.arange(0, d, 2).double() / d)
        wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
        points = torch.view_as_complex(wide.unflatten(-1, (-1, 2)).contiguous())
        turned = points * torch.polar(torch.ones_like(angles), angles).to(points.dtype)
        return torch.view_as_real(turned).flatten(-2).to(heads.dtype)

    plain, _ = layer_by(by_formula, layer, [x] * 3, allowed, turn)
    exact, _, size = layer_by(by_definition, layer, [x] * 3, allowed, turn)
    assert_as_exact_as(plain, output, exact, size)


@given(
    st.sampled_from([torch.float64, torch.float32]), st.integers(0, 3), lengths,
    st.integers(1, 3), st.integers(1, 3), st.booleans(), seeds,
)  # fmt: skip
def test_numpy_functions_are_as_exact_as_the_formula(dtype, batch, length, heads, d, bias, seed):
    layer = randomised(MultiHeadAttention(heads * d, heads, bias=bias), seed).to(dtype)
    x = normal(batch, length, heads * d, seed=seed, dtype=dtype).numpy()[:, ::-1]
    # weights, then biases: of query, key and value in one piece, and of the output
    packed = []
    for kind in ["weight", "bias"] if bias else ["weight"]:
        of = [getattr(module, kind).detach().numpy() for module in layer.children()]
        packed += [np.concatenate(of[:3]), of[3]]
    actual = numpy_multi_head_attention(x.swapaxes(0, 1), heads, *packed)
    if heads == 1:
        np.testing.assert_array_equal(actual, numpy_attention(x.swapaxes(0, 1), *packed))
    inputs = [torch.from_numpy(x.copy())] * 3
    allowed = torch.ones(batch, heads, length, length, dtype=torch.bool)
    plain, _ = layer_by(by_formula, layer, inputs, allowed)
    exact, _, size = layer_by(by_definition, layer, inputs, allowed)
    assert_as_exact_as(plain, actual.swapaxes(0, 1), exact, size)


@given(st.data(), st.booleans())
def test_soft_lookup_and_softmax_are_as_exact_as_the_formula(data, one_query):
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32]))
    inputs, _, allowed, scale = data.draw(problems(dtype, scales=(0.25, 1.0, 16.0)))
    if not allowed.numel():
        return
    *inputs, allowed = (x[(0,) * (x.ndim - 2)] for x in (*inputs, allowed))
    arrays = [x.numpy() for x in inputs]
    exact, _, _, size, _ = by_definition(*inputs, np.ones(allowed.shape, bool), scale)
    plain = by_formula(*inputs, torch.ones_like(allowed), scale)[0]
    rows = 0 if one_query else slice(None)
    actual = soft_lookup(arrays[0][rows], *arrays[1:], temperature=1 / scale)
    assert_as_exact_as(plain[rows], actual, exact[rows], size[rows])
    exact = by_definition(*inputs, allowed.numpy(), scale)[1]
    plain = by_formula(*inputs, allowed, scale)[1]
    scores = np.where(allowed, arrays[0] @ arrays[1].T * arrays[0].dtype.type(scale), -np.inf)
    assert_as_exact_as(plain, softmax(scores), exact)
    assert_as_exact_as(plain, softmax(scores.T, axis=0).T, exact)


# Masks


@given(masks((3, 5)), st.sampled_from(DTYPES), seeds)
def test_additive_mask_leaves_scores_or_hides_them_whatever_they_are(mask, dtype, seed):
    additive, edge = to_additive(mask, dtype), torch.finfo(dtype)
    scores = normal(3, 5, seed=seed, dtype=dtype)
    scores[0], scores[1] = edge.max, edge.min
    assert additive.dtype == dtype
    assert torch.equal(scores + additive, torch.where(mask, scores, -math.inf))
    assert torch.equal(from_additive(additive), mask)


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_mask_can_be_made_inside_a_compiled_function(device):
    compiled = torch.compile(window_mask, fullgraph=True, backend="eager")
    assert torch.equal(compiled(5, 1, 0, device=device), window_mask(5, 1, 0))
