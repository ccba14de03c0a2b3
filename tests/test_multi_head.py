"""Chapter 4: several heads, against loops from the definition and against PyTorch.

Letters and numbers in comments, such as L03 and N24, are those of the collection of public reports
of trouble with attention code that the tests answer.
"""

import copy
import io
import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from attention_lib import SingleHeadAttention, numpy_attention, scaled_dot_product_attention
from attention_lib.block import RotaryAttention
from attention_lib.multi_head import (
    MultiHeadAttention,
    PerHeadAttention,
    merge_heads,
    numpy_multi_head_attention,
    split_heads,
)

# every axis another number, so that a swapped axis cannot pass; width of a head 3
B, H, L, S, E, KDIM, VDIM = 2, 6, 5, 7, 18, 11, 13
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def draw(*shape, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)


def random_mask(*shape, seed=1):
    """Half of it True; where it has rows, one of them may attend to nothing."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.5
    mask[..., -2:-1, :] = False  # no such row where the axis has length 1
    return mask


def random_layer(*sizes, dtype=torch.float64, seed=0, **options):
    """A layer with random biases: at 0, as they start, they would hide faults."""
    layer = MultiHeadAttention(*(sizes or (E, H)), **options).to(dtype)
    rng = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) / 3)
    return layer


def attention_by_loops(layer, query, key, value, allowed):
    """The definition, one head of one sample after the other; ``allowed`` is (b, h, q, k)."""
    d, group = layer.embed_dim // layer.num_heads, layer.num_heads // layer.num_kv_heads

    def project(linear, x, i):
        return x @ linear.weight[i * d : (i + 1) * d].T + linear.bias[i * d : (i + 1) * d]

    rows, weights = [], torch.zeros(allowed.shape, dtype=query.dtype)
    for n, a in itertools.product(range(len(query)), range(query.shape[1])):
        heads = []
        for i in range(layer.num_heads):
            q = project(layer.q_proj, query[n, a], i)
            k = project(layer.k_proj, key[n], i // group)
            v = project(layer.v_proj, value[n], i // group)
            keys = [j for j in range(len(k)) if allowed[n, i, a, j]]
            exponentials = {j: torch.exp(q @ k[j] / math.sqrt(d)) for j in keys}
            head = torch.zeros(d, dtype=query.dtype)
            for j in keys:
                weight = exponentials[j] / sum(exponentials.values())
                weights[n, i, a, j] = weight.detach()
                head = head + weight * v[j]
            heads.append(head)
        rows.append(torch.cat(heads) @ layer.out_proj.weight.T + layer.out_proj.bias)
    return torch.stack(rows).unflatten(0, query.shape[:2]), weights


MASKS = {
    "none": None,
    "(L, S)": (L, S),
    "(batch, L, S)": (B, L, S),
    "padding": (B, 1, 1, S),
    "heads": (1, H, L, S),
    "full": (B, H, L, S),
    "(1, 1, L, S)": (1, 1, L, S),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("num_kv_heads", [None, 2, 1])
@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_every_path_equals_the_loops_forward_and_backward(shape, num_kv_heads, dtype):
    # M18, M28: every rank of mask, also where groups of heads share keys (and L10: on that axis)
    exact = random_layer(E, H, KDIM, VDIM, num_kv_heads)
    inputs = [draw(B, L, E), draw(B, S, KDIM, seed=1), draw(B, S, VDIM, seed=2)]
    mask = None if shape is None else random_mask(*shape)
    allowed = torch.ones(B, H, L, S, dtype=torch.bool)
    if mask is not None:
        allowed = (mask[:, None] if mask.ndim == 3 else mask).expand(B, H, L, S)
    inputs = [x.requires_grad_() for x in inputs]
    expected, expected_weights = attention_by_loops(exact, *inputs, allowed)
    cotangent = draw(B, L, E, seed=3)
    wanted = [*inputs, *exact.parameters()]
    expected_grads = torch.autograd.grad(expected, wanted, cotangent)

    layer = copy.deepcopy(exact).to(dtype)
    inputs = [x.detach().to(dtype).requires_grad_() for x in inputs]
    close = {"rtol": 0, "atol": TOLERANCE[dtype], "check_dtype": False}
    for return_weights in (False, True):
        result = layer(*inputs, mask=mask, return_weights=return_weights)
        output = result[0] if return_weights else result
        assert output.dtype == dtype
        torch.testing.assert_close(output, expected, **close)
        if return_weights:
            torch.testing.assert_close(result[1], expected_weights, **close)
        grads = torch.autograd.grad(output, [*inputs, *layer.parameters()], cotangent.to(dtype))
        torch.testing.assert_close(
            grads, expected_grads, rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype],
            check_dtype=False,
        )  # fmt: skip
        with torch.no_grad():
            again = layer(*inputs, mask=mask, return_weights=return_weights)
        torch.testing.assert_close(again, result, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_is_causal_is_the_lower_triangle_and_adds_to_every_rank_of_mask(dtype):
    layer, x = random_layer(dtype=dtype), draw(B, L, E, dtype=dtype)
    triangle = torch.ones(L, L, dtype=torch.bool).tril()
    torch.testing.assert_close(layer(x, is_causal=True), layer(x, mask=triangle))
    # A08: both given, both hold
    for shape in ((L, L), (B, L, L), (B, 1, 1, L), (1, H, L, L)):
        mask = random_mask(*shape)
        torch.testing.assert_close(
            layer(x, mask=mask, is_causal=True), layer(x, mask=mask & triangle)
        )


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_query_that_may_attend_to_nothing_gets_the_output_bias(dtype, return_weights):
    # M25: a sample without any key
    layer, x = random_layer(dtype=dtype), draw(B, L, E, dtype=dtype).requires_grad_()
    mask = torch.ones(B, 1, 1, L, dtype=torch.bool)
    mask[1] = False
    result = layer(x, mask=mask, return_weights=return_weights)
    output = result[0] if return_weights else result
    torch.testing.assert_close(output[1], layer.out_proj.bias.expand(L, E))
    if return_weights:
        assert (result[1][1] == 0).all()
    torch.testing.assert_close(output[:1], layer(x[:1]))
    output.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in (x, *layer.parameters()))
    assert (x.grad[1] == 0).all()


def test_padding_with_causal_masks_key_columns_only():
    # M15: the row of a padded query keeps its real keys
    layer, x = random_layer(), draw(B, L, E)
    keep = torch.tensor([5, 3])[:, None] > torch.arange(L)
    _, weights = layer(x, mask=keep[:, None, None], is_causal=True, return_weights=True)
    allowed = keep[:, None, None] & torch.ones(L, L, dtype=torch.bool).tril()
    assert torch.equal(weights > 0, allowed.expand(B, H, L, L))
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, L, dtype=torch.float64))


def test_key_defaults_to_query_and_value_to_key():
    layer, x, context = random_layer(), draw(B, L, E), draw(B, S, E, seed=1)
    torch.testing.assert_close(layer(x), layer(x, x, x))
    torch.testing.assert_close(layer(x, context), layer(x, context, context))


def test_split_puts_every_number_where_its_head_expects_it():
    # L03: the direct reshape has the right shape and other numbers
    x = torch.arange(16).view(1, 4, 4)
    heads = split_heads(x, 2)
    assert heads.shape == (1, 2, 4, 2)
    assert heads[0, 0].flatten().tolist() == [0, 1, 4, 5, 8, 9, 12, 13]
    assert x.reshape(1, 2, 4, 2)[0, 0].flatten().tolist() == list(range(8))
    big = torch.arange(B * L * E).view(B, L, E)
    for n, i, a, c in itertools.product(range(B), range(H), range(L), range(E // H)):
        assert split_heads(big, H)[n, i, a, c] == big[n, a, i * (E // H) + c]


@pytest.mark.parametrize("lead", [(), (B,), (B, 11), (0,)])
def test_merge_undoes_split_on_every_rank_and_split_copies_nothing(lead):
    x = draw(*lead, L, E)
    heads = split_heads(x, H)
    assert heads.shape == (*lead, H, L, E // H)
    assert heads.data_ptr() == x.data_ptr()
    assert torch.equal(merge_heads(heads), x)


def test_layer_is_the_function_between_split_and_merge():
    layer, x, context = random_layer(), draw(B, L, E), draw(B, S, E, seed=1)
    parts = layer.q_proj(x), layer.k_proj(context), layer.v_proj(context)
    heads = scaled_dot_product_attention(*(split_heads(part, H) for part in parts))
    torch.testing.assert_close(layer(x, context), layer.out_proj(merge_heads(heads)))


def test_head_reads_its_own_rows_and_all_features():
    # C10: head i owns rows i * d to (i + 1) * d - 1, and a loss on it moves no other row
    layer, x, i, d = random_layer(), draw(B, L, E), 4, E // H
    own = slice(i * d, (i + 1) * d)
    with torch.no_grad():  # show the features of head i only
        layer.out_proj.weight.zero_()[own, own] = torch.eye(d, dtype=torch.float64)
    layer(x).square().sum().backward()
    for linear in (layer.q_proj, layer.k_proj, layer.v_proj):
        touched = linear.weight.grad != 0
        assert touched[own].all()
        assert touched.sum() == d * E


def test_sample_alone_and_in_a_batch_agree():
    # N13 (up to rounding, so in float64), L04 (folding batch and heads in two orders)
    layer, x, context = random_layer(), draw(B, L, E), draw(B, S, E, seed=1)
    mask = random_mask(B, L, S)
    alone = [layer(x[n : n + 1], context[n : n + 1], mask=mask[n : n + 1]) for n in range(B)]
    torch.testing.assert_close(
        layer(x, context, mask=mask), torch.cat(alone), rtol=0, atol=1e-12
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_transposed_and_expanded_inputs_give_what_their_copies_give(dtype):
    # L02, L07: data that was sequence first is not contiguous after the transpose
    layer, x = random_layer(dtype=dtype), draw(L, B, E, dtype=dtype)
    assert not x.transpose(0, 1).is_contiguous()
    torch.testing.assert_close(layer(x.transpose(0, 1)), layer(x.transpose(0, 1).contiguous()))
    one = draw(1, L, E, dtype=dtype)
    torch.testing.assert_close(layer(one.expand(B, -1, -1)), layer(one).expand(B, -1, -1))


@pytest.mark.parametrize("num_kv_heads", [None, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("batch", "length", "keys"), [(B, 0, S), (B, L, 0), (B, 0, 0), (0, L, S)])
def test_empty_inputs_give_empty_results_or_the_output_bias(
    batch, length, keys, dtype, num_kv_heads
):
    layer = random_layer(dtype=dtype, num_kv_heads=num_kv_heads)
    x, context = draw(batch, length, E, dtype=dtype), draw(batch, keys, E, dtype=dtype)
    mask = torch.ones(length, keys, dtype=torch.bool)
    output, weights = layer(x, context, mask=mask, return_weights=True)
    assert weights.shape == (batch, H, length, keys)
    torch.testing.assert_close(layer(x, context), output)
    assert output.shape == (batch, length, E)
    if keys == 0:
        torch.testing.assert_close(output, layer.out_proj.bias.expand(batch, length, E))
    output.sum().backward()


def test_returned_weights_are_from_before_dropout_in_both_modes():
    # N11: they sum to 1, also where PyTorch's would not
    layer, x = random_layer(dropout=0.5), draw(B, L, E)
    with torch.no_grad():
        expected = layer.eval()(x, return_weights=True)
        output, weights = layer.train()(x, return_weights=True)
    torch.testing.assert_close(weights, expected[1])
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, L, dtype=torch.float64))
    assert not torch.allclose(output, expected[0])


@pytest.mark.parametrize("return_weights", [False, True])
def test_dropout_acts_on_the_weights_and_in_training_only(return_weights):
    layer = MultiHeadAttention(2, 1, dropout=0.25)
    with torch.no_grad():
        for linear in (layer.v_proj, layer.out_proj):
            linear.weight.copy_(torch.eye(2))
    # one key with the value 3: each query keeps it, as 3 / 0.75, or drops it
    x, context = torch.ones(1, 4000, 2), torch.full((1, 1, 2), 3.0)
    torch.manual_seed(0)
    result = layer(x, context, return_weights=return_weights)
    output = result[0] if return_weights else result
    dropped = (output == 0).all(dim=-1)
    assert 0.22 < dropped.float().mean() < 0.28
    torch.testing.assert_close(output[~dropped], torch.full_like(output[~dropped], 4.0))
    assert (layer.eval()(x, context) == 3).all()


def test_state_has_four_projections_by_name_and_shape():
    # A12: the output is embed_dim wide whatever vdim is
    layer = MultiHeadAttention(E, H, kdim=KDIM, vdim=VDIM, num_kv_heads=2)
    shapes = {name: tuple(p.shape) for name, p in layer.state_dict().items()}
    assert shapes == {
        "q_proj.weight": (E, E), "q_proj.bias": (E,),
        "k_proj.weight": (6, KDIM), "k_proj.bias": (6,),
        "v_proj.weight": (6, VDIM), "v_proj.bias": (6,),
        "out_proj.weight": (E, E), "out_proj.bias": (E,),
    }  # fmt: skip
    assert not any("bias" in name for name in MultiHeadAttention(E, H, bias=False).state_dict())
    assert "num_heads=6, num_kv_heads=2, dropout=0.0" in repr(layer)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_kv_heads", [None, 1, 2, 3, 6])
@pytest.mark.parametrize(("kdim", "vdim"), [(None, None), (KDIM, None), (None, VDIM), (KDIM, VDIM)])
def test_every_combination_of_sizes_that_is_accepted_runs(kdim, vdim, num_kv_heads, bias):
    # A10, C16
    layer = MultiHeadAttention(E, H, kdim, vdim, num_kv_heads, bias, dropout=0.1)
    key, value = torch.ones(B, S, kdim or E), torch.ones(B, S, vdim or E)
    output, weights = layer(torch.ones(B, L, E), key, value, return_weights=True)
    assert (output.shape, weights.shape) == ((B, L, E), (B, H, L, S))


def test_heads_of_one_group_share_keys_with_their_neighbours():
    layer, x = random_layer(num_kv_heads=2), draw(B, L, E)
    apart, d = random_layer(), E // H
    rows = torch.cat([torch.arange(d) + d * group for group in (0, 0, 0, 1, 1, 1)])
    state = layer.state_dict()
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        state[name] = state[name][rows]
    apart.load_state_dict(state)
    torch.testing.assert_close(
        layer(x, return_weights=True), apart(x, return_weights=True), rtol=0, atol=1e-12
    )


def test_initial_weights_are_as_documented_and_larger_than_pytorchs():
    # N24: PyTorch's depend on whether the three matrices are packed
    torch.manual_seed(0)
    width = 256
    layer = MultiHeadAttention(width, 8, kdim=64, num_kv_heads=2)
    for linear in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
        expected = linear.in_features**-0.5
        assert linear.weight.std().item() == pytest.approx(expected, rel=0.02)
        assert linear.weight.abs().max() <= math.sqrt(3) * expected
        assert (linear.bias == 0).all()
    packed, apart = nn.MultiheadAttention(width, 8), nn.MultiheadAttention(width, 8, kdim=255)
    ours = layer.q_proj.weight.std()
    assert (ours / packed.in_proj_weight.std()).item() == pytest.approx(math.sqrt(2), rel=0.02)
    assert (ours / apart.q_proj_weight.std()).item() == pytest.approx(1, rel=0.02)
    assert (ours / packed.out_proj.weight.std()).item() == pytest.approx(math.sqrt(3), rel=0.02)
    assert (packed.in_proj_bias == 0).all()
    assert (packed.out_proj.bias == 0).all()


def test_inputs_of_variance_1_start_with_scores_of_variance_1():
    torch.manual_seed(0)
    layer = MultiHeadAttention(256, 4, kdim=64, num_kv_heads=2)
    query = split_heads(layer.q_proj(torch.randn(1, 500, 256)), 4)[0, 0]
    key = split_heads(layer.k_proj(torch.randn(1, 500, 64)), 2)[0, 0]
    assert (query @ key.T / 8).var().item() == pytest.approx(1, rel=0.2)


def test_layers_of_a_stack_start_different():
    # C05: copies of one layer would start equal
    first, second = (MultiHeadAttention(E, H) for _ in range(2))
    assert not torch.equal(first.q_proj.weight, second.q_proj.weight)


# One head after the other


@pytest.mark.parametrize("bias", [False, True])
def test_heads_one_after_the_other_agree_with_the_packed_layer(bias):
    layer = MultiHeadAttention(E, H, bias=bias).double().eval()
    for p in layer.parameters():
        nn.init.normal_(p, std=0.3)
    apart = PerHeadAttention.from_multi_head(layer)
    assert not apart.training
    assert sum(p.numel() for p in apart.parameters()) == sum(p.numel() for p in layer.parameters())
    x, context = draw(B, L, E).requires_grad_(), draw(B, S, E, seed=1)
    for shape in MASKS.values():
        mask = None if shape is None else random_mask(*shape)
        expected = layer(x, context, mask=mask, return_weights=True)
        actual = apart(x, context, mask=mask, return_weights=True)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(apart(x, context, mask=mask), expected[0])
    torch.testing.assert_close(apart(x, is_causal=True), layer(x, is_causal=True))
    packed = torch.autograd.grad(layer(x).square().sum(), [x, layer.k_proj.weight])
    single = [head.k_proj.weight for head in apart.heads]
    grad_x, *grads = torch.autograd.grad(apart(x).square().sum(), [x, *single])
    torch.testing.assert_close((grad_x, torch.cat(grads)), packed)


def test_taking_a_layer_apart_copies_its_weights():
    layer = random_layer(dtype=torch.float32)
    apart, x = PerHeadAttention.from_multi_head(layer), draw(B, L, E, dtype=torch.float32)
    before = apart(x)
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
    torch.testing.assert_close(apart(x), before)
    assert apart.out_proj.weight.dtype == torch.float32


@pytest.mark.refusal
def test_layer_with_a_dropout_of_the_integer_0_is_taken_apart():
    layer = MultiHeadAttention(E, H, dropout=0)
    x = draw(B, L, E, dtype=torch.float32)
    torch.testing.assert_close(PerHeadAttention.from_multi_head(layer)(x), layer(x))


class Wrapped(nn.Module):
    """A projection without a weight of its own, as adapters are."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        return self.linear(x)


class Quantized(Wrapped):
    """A projection whose weight is a method, as PyTorch's quantized layers have it."""

    def __init__(self, linear):
        super().__init__(lambda x: linear(x))

    def weight(self):
        raise NotImplementedError


def pruned(linear):
    return prune.l1_unstructured(linear, "weight", 0.5)


def changed(change, layer):
    """The layer with other projections in it, of all inputs and of the output."""
    for module in list(layer.modules()):
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            if isinstance(getattr(module, name, None), nn.Linear):
                setattr(module, name, change(getattr(module, name)))
    return layer


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_projection_may_be_scripted():
    layer, x = MultiHeadAttention(E, H), draw(B, L, E, dtype=torch.float32)
    expected = layer(x)
    layer.q_proj = torch.jit.script(layer.q_proj)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("change", [pruned, Wrapped, Quantized])
@pytest.mark.parametrize("kind", [MultiHeadAttention, PerHeadAttention, SingleHeadAttention])
def test_dtype_is_known_where_a_projection_has_no_weight_before_its_call(kind, change):
    layer, x = kind(E, H).double(), draw(B, L, E)
    expected = layer(x)
    actual = changed(change, layer)(x)
    if change is not pruned:
        torch.testing.assert_close(actual, expected)
    if change is not Quantized:
        assert layer.float()(x.float()).dtype == torch.float32
        with pytest.raises(TypeError, match=r"the layer's weights torch\.float32 and query"):
            layer(x)


def test_separate_heads_start_as_packed_ones_do():
    torch.manual_seed(0)
    apart = PerHeadAttention(256, 4)
    for linear in (apart.heads[1].k_proj, apart.out_proj):
        assert linear.weight.std().item() == pytest.approx(1 / 16, rel=0.02)
        assert (linear.bias == 0).all()


# NumPy


@pytest.mark.parametrize("bias", [False, True])
def test_numpy_function_is_pytorchs_layer_with_random_biases(bias):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(E, H, bias=bias, dtype=torch.float64)
    for p in module.parameters():
        nn.init.normal_(p)  # both biases start at 0, which would hide them
    inputs = draw(L, B, E)
    expected, _ = module(inputs, inputs, inputs)
    p = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    actual = numpy_multi_head_attention(
        inputs.numpy(), H, p["in_proj_weight"], p["out_proj.weight"], p.get("in_proj_bias"),
        p.get("out_proj.bias"),
    )  # fmt: skip
    np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=0, atol=1e-12)


def test_numpy_function_with_one_head_is_chapter_2s_and_keeps_the_dtype():
    rng = np.random.default_rng(0)
    shapes = (L, B, E), (3 * E, E), (E, E), (3 * E,), (E,)
    inputs, *rest = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    actual = numpy_multi_head_attention(inputs, 1, *rest)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, numpy_attention(inputs, *rest), rtol=1e-5, atol=1e-5)


# Where layers are used


@pytest.mark.refusal  # without the shape hook too: the compiler cannot read it
@pytest.mark.parametrize("num_kv_heads", [None, 2])
def test_layer_compiles_into_one_graph(num_kv_heads):
    layer = random_layer(dtype=torch.float32, num_kv_heads=num_kv_heads, dropout=0.1).eval()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x, mask = draw(B, L, E, dtype=torch.float32).requires_grad_(), random_mask(B, L, L)
    for options in ({}, {"mask": mask, "is_causal": True}, {"mask": mask, "return_weights": True}):
        expected, actual = layer(x, **options), compiled(x, **options)
        torch.testing.assert_close(actual, expected)
    actual[0].sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, return_weights=True), layer(x, return_weights=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_agrees_with_full_precision_with_and_without_weights(dtype):
    layer, x = random_layer(dtype=torch.float32), draw(B, L, E, dtype=torch.float32)
    expected = layer(x, return_weights=True)
    with torch.autocast("cpu", dtype=dtype):
        output, weights = layer(x, return_weights=True)
        torch.testing.assert_close(layer(x), output, rtol=0, atol=8 * torch.finfo(dtype).eps)
        # two halves of a model may bring two dtypes; autocast unites them
        torch.testing.assert_close(layer(x, x.to(dtype)), output, rtol=0, atol=0.05)
    assert output.dtype == weights.dtype == dtype
    for actual, exact in zip((output, weights), expected, strict=True):
        error = (actual - exact).abs().max()
        assert error < 16 * torch.finfo(dtype).eps


def test_autocast_leaves_the_scores_in_single_precision():
    layer = MultiHeadAttention(512, 1)
    with torch.no_grad():
        for linear in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
            linear.weight.copy_(torch.eye(512))
    x = torch.full((1, 3, 512), 60.0)  # scores beyond 65504, the largest number of float16
    with torch.autocast("cpu", dtype=torch.float16):
        output, weights = layer(x, return_weights=True)
    torch.testing.assert_close(weights.float(), torch.full((1, 1, 3, 3), 1 / 3), rtol=0, atol=1e-3)
    torch.testing.assert_close(output.float(), x, rtol=0, atol=0.1)


def test_copies_and_pickles_compute_the_same_and_share_nothing():
    layer, x = random_layer(num_kv_heads=2, dropout=0.1).eval(), draw(B, L, E)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert torch.equal(other(x), layer(x))
        assert other.q_proj.weight.data_ptr() != layer.q_proj.weight.data_ptr()


def test_layer_on_the_meta_device_gives_shapes_and_can_be_filled_later():
    with torch.device("meta"):
        layer = MultiHeadAttention(E, H, num_kv_heads=2)
        x = torch.empty(B, L, E)
        mask = torch.empty(B, 1, 1, L, dtype=torch.bool)
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            output, weights = layer.to(dtype)(x.to(dtype), mask=mask, return_weights=True)
            assert (output.shape, weights.shape) == ((B, L, E), (B, H, L, L))
            assert layer(x.to(dtype)).is_meta
    layer = layer.float().to_empty(device="cpu")
    torch.manual_seed(0)
    layer.reset_parameters()
    assert 0.1 < layer(torch.randn(B, L, E)).std() < 1


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch's own jvp
def test_function_transforms_work_with_and_without_gradients():
    layer, x = random_layer(), draw(3, B, L, E)
    expected = torch.stack([layer(sample, return_weights=True)[1] for sample in x])
    tangent = draw(B, L, E, seed=5)

    def weights(sample):
        return layer(sample, return_weights=True)[1]

    _, derivative = torch.func.jvp(weights, (x[0],), (tangent,))
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(weights)(x), expected)
        torch.testing.assert_close(torch.func.jvp(weights, (x[0],), (tangent,))[1], derivative)


def test_arguments_stay_as_they_were():
    layer, arguments = random_layer(), [draw(B, L, E, seed=i) for i in range(3)]
    mask = random_mask(B, L, L)
    copies = [x.clone() for x in (*arguments, mask)]
    with torch.no_grad():
        layer(*arguments, mask=mask, is_causal=True, return_weights=True)
        layer(*arguments, mask=mask)
    for now, before in zip((*arguments, mask), copies, strict=True):
        assert torch.equal(now, before)


def test_hooks_of_the_projections_run():
    layer, seen = random_layer(), []
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        getattr(layer, name).register_forward_hook(lambda *_, name=name: seen.append(name))
    layer(draw(B, L, E))
    assert sorted(seen) == ["k_proj", "out_proj", "q_proj", "v_proj"]


def test_no_warning_is_given_on_any_path():
    # M14: two masks together, every warning an error
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            layer, x = random_layer(dtype=dtype, dropout=0.1), draw(B, L, E, dtype=dtype)
            for return_weights in (False, True):
                layer(
                    x, mask=random_mask(B, 1, 1, L), is_causal=True, return_weights=return_weights
                )


# Refusals

X, Y = torch.ones(B, L, E), torch.ones(B, S, E)
REFUSED = [
    ({"query": np.zeros((B, L, E))}, TypeError, "query must be a torch.Tensor; got ndarray"),
    ({"key": [[1.0]]}, TypeError, "key must be a torch.Tensor; got list"),
    ({"query": X.long()}, TypeError, "query must have a real floating dtype; got torch.int64"),
    (
        {"query": X.double()},
        TypeError,
        "one dtype; got the layer's weights torch.float32 and query torch.float64",
    ),
    (
        {"value": Y.half()},
        TypeError,
        "one dtype; got the layer's weights torch.float32 and value torch.float16",
    ),
    (
        {"key": Y.to("meta")},
        ValueError,
        "one device; got the layer's weights on cpu and key on meta",
    ),
    (
        {"query": X[0]},
        ValueError,
        "query must have shape (batch, position, embed_dim = 18); got (5, 18)",
    ),
    ({"query": X[None]}, ValueError, "got (1, 2, 5, 18)"),
    (
        {"key": torch.ones(B, S, KDIM)},
        ValueError,
        "key must have shape (batch, position, kdim = 18); got (2, 7, 11)",
    ),
    (
        {"value": torch.ones(B, S, VDIM)},
        ValueError,
        "value must have shape (batch, position, vdim = 18); got (2, 7, 13)",
    ),
    (
        {"key": Y[:1], "value": Y[:1]},
        ValueError,
        "same batch size (axis 0), nothing is broadcast; got query (2, 5, 18), key (1, 7, 18)",
    ),
    ({"value": Y[:1]}, ValueError, "value (1, 7, 18). Inputs are batch first"),
    (
        {"value": Y[:, :3]},
        ValueError,
        "key and value must have the same length (axis 1); got query (2, 5, 18), key (2, 7, 18), "
        "value (2, 3, 18)",
    ),
    ({"mask": np.ones((L, S), bool)}, TypeError, "must be a torch.Tensor of bool; got ndarray"),
    (
        {"mask": torch.ones(L, S)},
        TypeError,
        "mask must be bool with True = may attend; got torch.float32",
    ),
    ({"mask": torch.ones(L, S).long()}, TypeError, "got torch.int64"),
    (
        {"mask": torch.ones(L, S, dtype=torch.bool, device="meta")},
        ValueError,
        "mask must be on the query's device cpu; got meta",
    ),
    ({"is_causal": True}, ValueError, "as many queries as keys; got L = 5, S = 7"),
    ({"is_causal": 1}, TypeError, "is_causal must be True or False; got int"),
]  # fmt: skip


@pytest.mark.refusal
@pytest.mark.parametrize(("change", "error", "message"), REFUSED)
@pytest.mark.parametrize("layer", [MultiHeadAttention(E, H), PerHeadAttention(E, H)])
def test_arguments_that_do_not_fit_are_refused_with_rule_and_what_came(
    layer, change, error, message
):
    arguments = {"query": X, "key": Y, "value": Y} | change
    with pytest.raises(error) as caught:
        layer(**arguments)
    assert message in str(caught.value)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((S,), ""),
        ((1, 1, S), ""),
        ((S, L), ""),
        ((L, 1), ""),
        ((1, L, S), ""),
        ((B, 1, S), ""),
        ((B, 1, L, 1), ""),
        ((3, 1, L, S), ""),
        ((B, 2, L, S), ""),
        ((B, H, L, S, 1), ""),
        ((), ""),
        ((B, S), " A padding mask (batch, S) goes in as mask[:, None, None]."),
        ((H, L, S), " One mask for each head, (heads, L, S), goes in as mask[None]."),
        ((B * H, L, S), "goes in as mask.unflatten(0, (2, 6)), with True = may attend."),
    ],
)
def test_other_shapes_of_mask_are_refused_with_the_three_that_fit(shape, hint):
    mask = torch.ones(shape, dtype=torch.bool)
    for layer in (MultiHeadAttention(E, H), PerHeadAttention(E, H)):
        with pytest.raises(ValueError, match="mask of a layer") as caught:
            layer(X, Y, mask=mask)
        message = str(caught.value)
        assert (
            "must have shape (L, S) = (5, 7), (batch, L, S) = (2, 5, 7), or "
            "(batch or 1, heads or 1, L or 1, S) = (2 or 1, 6 or 1, 5 or 1, 7); "
            f"got {shape}." in message
        )
        assert message.endswith(hint)


@pytest.mark.parametrize("shape", [(B, S), (H, L, S), (B * H, L, S)])
def test_the_hint_for_a_mask_of_another_shape_works(shape):
    mask = random_mask(*shape)
    fits = {(B, S): lambda: mask[:, None, None], (H, L, S): lambda: mask[None]}
    fitted = fits.get(shape, lambda: mask.unflatten(0, (B, H)))()
    assert random_layer(dtype=torch.float32)(X, Y, mask=fitted).shape == (B, L, E)


@pytest.mark.refusal
def test_inputs_with_the_sequence_first_are_told_which_axis_is_the_batch():
    # A03
    layer = MultiHeadAttention(E, H)
    with pytest.raises(
        ValueError, match=r"batch size \(axis 0\).*batch first: x.transpose\(0, 1\)"
    ):
        layer(X.transpose(0, 1), Y.transpose(0, 1))


@pytest.mark.refusal
def test_layer_with_its_own_width_of_keys_needs_a_key():
    with pytest.raises(ValueError, match=r"key must have shape \(batch, position, kdim = 11\)"):
        MultiHeadAttention(E, H, kdim=KDIM)(X)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ((18, 5), ValueError, "num_heads must divide embed_dim, .* embed_dim = 18, num_heads = 5"),
        ((18, 0), ValueError, "num_heads must be at least 1; got 0"),
        ((-18, 6), ValueError, "embed_dim must be at least 1; got -18"),
        ((18.0, 6), TypeError, "embed_dim must be an integer; got 18.0"),
        ((18, True), TypeError, "num_heads must be an integer; got True"),
        ((18, 6, 0), ValueError, "kdim must be at least 1; got 0"),
        ((18, 6, None, "13"), TypeError, "vdim must be an integer; got '13'"),
        (
            (18, 6, None, None, 4),  # A11
            ValueError,
            "num_kv_heads must divide num_heads, .* num_heads = 6, num_kv_heads = 4",
        ),
        ((18, 6, None, None, 12), ValueError, "num_heads = 6, num_kv_heads = 12"),
        ((18, 6, None, None, 0), ValueError, "num_kv_heads must be at least 1; got 0"),
        ((18, 6, None, None, None, True, 1.5), ValueError, "dropout must be a probability .* 1.5"),
        ((18, 6, None, None, None, True, None), ValueError, "dropout must be a .* got None"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_when_the_layer_is_made(sizes, error, message):
    with pytest.raises(error, match=message):
        MultiHeadAttention(*sizes)
    if len(sizes) == 2:
        with pytest.raises(error, match=message):
            PerHeadAttention(*sizes)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kdim": KDIM}, "got kdim = 11, vdim = 18, num_heads=6, num_kv_heads=6, dropout=0.0"),
        ({"vdim": VDIM}, "got kdim = 18, vdim = 13"),
        ({"num_kv_heads": 2}, "num_kv_heads=2"),
        ({"dropout": 0.1}, "dropout=0.1"),
    ],
)
def test_layer_that_separate_heads_cannot_express_is_not_taken_apart(options, message):
    with pytest.raises(ValueError, match="only a layer without kdim, vdim") as caught:
        PerHeadAttention.from_multi_head(MultiHeadAttention(E, H, **options))
    assert message in str(caught.value)


@pytest.mark.refusal
def test_split_and_merge_refuse_what_is_not_there():
    with pytest.raises(ValueError, match="num_heads must divide embed_dim"):
        split_heads(X, 5)
    with pytest.raises(ValueError, match=r"\(\.\.\., position, width\); got \(18,\)"):
        split_heads(X[0, 0], 6)
    with pytest.raises(ValueError, match=r"\(\.\.\., heads, position, d\); got \(5, 18\)"):
        merge_heads(X[0])


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("shapes", "heads", "message"),
    [
        (((L, E), (3 * E, E), (E, E)), 6, r"must have shape \(seq, batch, embed\); got \(5, 18\)"),
        (((L, B, E), (E, E), (E, E)), 6, r"in_proj_weight must have shape \(54, 18\)"),
        (((L, B, E), (3 * E, E), (KDIM, E)), 6, r"out_proj_weight must have shape \(18, 18\)"),
        (((L, B, E), (3 * E, E), (E, E), (E,)), 6, r"in_proj_bias must have shape \(54,\)"),
        (((L, B, E), (3 * E, E), (E, E)), 5, "num_heads must divide embed_dim"),
    ],
)
def test_numpy_function_refuses_shapes_that_do_not_fit(shapes, heads, message):
    inputs, *rest = (np.zeros(shape) for shape in shapes)
    with pytest.raises(ValueError, match=message):
        numpy_multi_head_attention(inputs, heads, *rest)


def test_heads_one_after_the_other_take_values_of_their_own():
    layer, (query, key, value) = random_layer(), (draw(B, n, E, seed=n) for n in (L, S, S))
    value = value + 1
    expected = layer(query, key, value)
    actual = PerHeadAttention.from_multi_head(layer)(query, key, value)
    torch.testing.assert_close(actual, expected)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: split_heads([1.0], H), TypeError, "x must be a torch.Tensor; got list"),
        (lambda: merge_heads([1.0]), TypeError, "x must be a torch.Tensor; got list"),
        (
            lambda: PerHeadAttention.from_multi_head(torch.nn.Linear(E, E)),
            TypeError,
            "layer must be a MultiHeadAttention of attention_lib, and no subclass, which may "
            "attend in another way; got torch.nn.modules.linear.Linear",
        ),
        (
            lambda: PerHeadAttention.from_multi_head(RotaryAttention(E, 9)),
            TypeError,
            "layer must be a MultiHeadAttention of attention_lib, and no subclass, which may "
            "attend in another way; got attention_lib.block.RotaryAttention",
        ),
        (
            lambda: PerHeadAttention.from_multi_head(changed(pruned, MultiHeadAttention(E, H))),
            ValueError,
            "the projections of layer must be torch.nn.Linear with weight and bias alone; got for "
            "q_proj Linear with ['bias', 'weight_orig']",
        ),
        (
            lambda: PerHeadAttention.from_multi_head(changed(Wrapped, MultiHeadAttention(E, H))),
            ValueError,
            "the projections of layer must be torch.nn.Linear with weight and bias alone; got for "
            "q_proj Wrapped with []",
        ),
        (
            lambda: PerHeadAttention.from_multi_head(MultiHeadAttention(E, H, kdim=KDIM)),
            ValueError,
            "only a layer without kdim, vdim, num_kv_heads and dropout can be taken apart; "
            "got kdim = 11, vdim = 18, num_heads=6, num_kv_heads=6, dropout=0.0",
        ),
    ],
)
def test_helpers_refuse_in_whole_sentences(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((3, L, S), ""),
        (
            (B * H, L, S),
            " nn.MultiheadAttention's (batch * heads, L, S) goes in as "
            "mask.unflatten(0, (2, 6)), with True = may attend.",
        ),
    ],
)
def test_refusal_of_a_mask_ends_with_the_hint_or_with_the_shape(shape, hint):
    with pytest.raises(ValueError, match="mask of a layer") as caught:
        MultiHeadAttention(E, H)(X, Y, mask=torch.ones(shape, dtype=torch.bool))
    assert str(caught.value) == (
        "mask of a layer must have shape (L, S) = (5, 7), (batch, L, S) = (2, 5, 7), or (batch or "
        "1, heads or 1, L or 1, S) = (2 or 1, 6 or 1, 5 or 1, 7); "
        f"got {shape}.{hint}"
    )


@pytest.mark.refusal
@pytest.mark.parametrize("shape", [(B, S, E), (1, L, E)])
def test_value_is_compared_with_the_key_where_query_and_key_are_one_tensor(shape):
    for layer in (MultiHeadAttention(E, H), PerHeadAttention(E, H)):
        with pytest.raises(ValueError, match=r"key and value must have the same (length|batch)"):
            layer(X, X, torch.ones(shape))


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"num_heads": 4},
            "num_heads must divide embed_dim, each head takes embed_dim / num_heads of it; "
            "got embed_dim = 18, num_heads = 4",
        ),
        (
            {"num_heads": 6, "num_kv_heads": 4},
            "num_kv_heads must divide num_heads, equal groups of query heads share a key/value "
            "head; got num_heads = 6, num_kv_heads = 4",
        ),
    ],
)
def test_heads_that_do_not_divide_are_refused_with_the_reason(sizes, message):
    with pytest.raises(ValueError, match="must divide") as caught:
        MultiHeadAttention(E, **sizes)
    assert str(caught.value) == message


def test_small_integers_do_not_wrap_around_in_the_numpy_function():
    rng = np.random.default_rng(0)
    x, *weights = (rng.integers(0, 200, n, np.uint8) for n in ((3, 5, 4), (12, 4), (4, 4)))
    floats = (weight.astype(np.float64) for weight in weights)
    expected = numpy_multi_head_attention(x.astype(np.float64), 2, *floats)
    np.testing.assert_array_equal(numpy_multi_head_attention(x, 2, *weights), expected)
