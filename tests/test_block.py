"""Chapter 7: blocks against PyTorch's, positions against their formulas written as loops.

Letters and numbers in comments, such as L17 and C05, are those of the collection of public reports
of trouble with attention code that the tests answer.
"""

import copy
import doctest
import io
import math

import pytest
import torch
from torch import nn

import attention_lib.block
from attention_lib import causal_mask, from_torch, padding_mask
from attention_lib.block import (
    CrossAttentionBlock,
    LinearBiasAttention,
    RotaryAttention,
    TransformerBlock,
    linear_bias_slopes,
    rotary,
    sinusoidal_positional_encoding,
)
from attention_lib.multi_head import MultiHeadAttention

# every axis another number, so that a swapped axis cannot pass; width of a head 4
B, L, S, E, H, HIDDEN = 2, 5, 7, 12, 3, 11


def draw(*shape, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)


def randomised(module, seed=0):
    """In float64, every parameter drawn: ones and zeros, as norms start, would hide faults."""
    rng = torch.Generator().manual_seed(seed)
    for parameter in module.double().parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=rng, dtype=torch.float64) / 2)
    return module


def encoder_pair(norm_first=True, dropout=0.0):
    """PyTorch's layer and ours with the same weights."""
    theirs = randomised(
        nn.TransformerEncoderLayer(E, H, HIDDEN, dropout, norm_first=norm_first, batch_first=True)
    )
    mine = TransformerBlock(E, H, HIDDEN, dropout, norm_first).double()
    copy_common(theirs, mine)
    return theirs, mine


def decoder_pair(norm_first=True, dropout=0.0):
    theirs = randomised(
        nn.TransformerDecoderLayer(E, H, HIDDEN, dropout, norm_first=norm_first, batch_first=True)
    )
    mine = CrossAttentionBlock(E, H, HIDDEN, dropout, norm_first).double()
    copy_common(theirs, mine)
    cross = from_torch(theirs.multihead_attn).state_dict()
    mine.cross_attention.load_state_dict(cross)
    mine.norm3.load_state_dict(theirs.norm3.state_dict())
    return theirs, mine


def copy_common(theirs, mine):
    mine.attention.load_state_dict(from_torch(theirs.self_attn).state_dict())
    for one, other in (
        (mine.norm1, theirs.norm1),
        (mine.norm2, theirs.norm2),
        (mine.feedforward[0], theirs.linear1),
        (mine.feedforward[3], theirs.linear2),
    ):
        one.load_state_dict(other.state_dict())


def close(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=atol)


# Blocks


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_block_equals_pytorch_forward_and_backward(norm_first, causal, padded):
    theirs, mine = encoder_pair(norm_first)
    x = draw(B, L, E).requires_grad_()
    padding = padding_mask(torch.tensor([3, L]), L) if padded else None
    expected = theirs(
        x,
        src_mask=~causal_mask(L) if causal else None,
        src_key_padding_mask=~padding[:, 0, 0] if padded else None,
    )
    actual = mine(x, mask=padding, is_causal=causal)
    close(actual, expected)
    cotangent = draw(B, L, E, seed=1)
    names = ["norm1.weight", "norm2.bias"]
    for one, other in zip(
        torch.autograd.grad(actual, [x, *map(mine.get_parameter, names)], cotangent),
        torch.autograd.grad(expected, [x, *map(theirs.get_parameter, names)], cotangent),
        strict=True,
    ):
        close(one, other, atol=1e-11)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("causal", [False, True])
def test_cross_block_equals_pytorch_with_padding_in_the_memory(norm_first, causal):
    theirs, mine = decoder_pair(norm_first)
    x, memory = draw(B, L, E), draw(B, S, E, seed=1)
    padding = padding_mask(torch.tensor([S, 4]), S)
    expected = theirs(
        x, memory,
        tgt_mask=~causal_mask(L) if causal else None,
        memory_key_padding_mask=~padding[:, 0, 0],
    )  # fmt: skip
    close(mine(x, memory, memory_mask=padding, is_causal=causal), expected)
    own = padding_mask(torch.tensor([2, L]), L)
    expected = theirs(x, memory, tgt_key_padding_mask=~own[:, 0, 0])
    close(mine(x, memory, mask=own), expected)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("cross", [False, True])
def test_dropout_falls_where_pytorch_has_it(norm_first, cross):
    theirs, mine = (decoder_pair if cross else encoder_pair)(norm_first, dropout=0.4)
    # one sample: PyTorch keeps the batch on another axis and would draw in another order
    inputs = [draw(1, L, E), draw(1, S, E, seed=1)][: 1 + cross]
    torch.manual_seed(3)
    expected = theirs(*inputs)
    torch.manual_seed(3)
    actual = mine(*inputs)
    close(actual, expected)
    assert (actual - mine(*inputs)).abs().max() > 0.1, "another draw gives another result"
    close(mine.eval()(*inputs), theirs.eval()(*inputs))


def test_block_is_the_formula_of_its_order():
    x = draw(B, L, E)
    for norm_first in (True, False):
        block = randomised(TransformerBlock(E, H, norm_first=norm_first))
        a, f = block.attention, block.feedforward
        if norm_first:
            y = x + a(block.norm1(x))
            expected = y + f(block.norm2(y))
        else:
            y = block.norm1(x + a(x))
            expected = block.norm2(y + f(y))
        close(block(x), expected)


@pytest.mark.parametrize("kind", [TransformerBlock, CrossAttentionBlock])
def test_default_is_norm_first_without_dropout(kind):
    x = draw(B, L, E)
    inputs = (x, x)[: 1 + (kind is CrossAttentionBlock)]
    block = randomised(kind(E, H)).train()
    same = kind(E, H, 4 * E, 0.0, norm_first=True).double()
    same.load_state_dict(block.state_dict())
    assert torch.equal(block(*inputs), same(*inputs))
    assert torch.equal(block(*inputs), block.eval()(*inputs))


def test_hidden_layer_is_four_times_as_wide_by_default():
    assert TransformerBlock(E, H).feedforward[0].out_features == 4 * E
    assert CrossAttentionBlock(E, H).feedforward[0].out_features == 4 * E
    assert TransformerBlock(E, H, HIDDEN).feedforward[0].out_features == HIDDEN


def test_returned_weights_change_nothing_and_are_those_of_the_attention():
    block = randomised(TransformerBlock(E, H))
    x = draw(B, L, E)
    output, weights = block(x, is_causal=True, return_weights=True)
    close(output, block(x, is_causal=True))
    close(weights, block.attention(block.norm1(x), is_causal=True, return_weights=True)[1])
    cross = randomised(CrossAttentionBlock(E, H))
    memory = draw(B, S, E, seed=1)
    output, own, other = cross(x, memory, return_weights=True)
    close(output, cross(x, memory))
    assert own.shape == (B, H, L, L)
    assert other.shape == (B, H, L, S)
    close(other.sum(-1), torch.ones(B, H, L, dtype=torch.float64))


def test_block_without_positions_moves_with_its_words():
    block = randomised(TransformerBlock(E, H))
    x, order = draw(B, L, E), [3, 0, 4, 1, 2]
    close(block(x[:, order]), block(x)[:, order])


def test_padding_changes_nothing_for_the_words():
    block = randomised(TransformerBlock(E, H))
    x = draw(B, L, E)
    longer = torch.cat((x, 100 * draw(B, 2, E, seed=1)), dim=1)
    mask = padding_mask(torch.tensor([L, L]), L + 2)
    close(block(longer, mask=mask)[:, :L], block(x))


def test_module_can_take_the_place_of_the_attention():
    for kind in (RotaryAttention, LinearBiasAttention):
        attention = kind(E, H)
        block = randomised(TransformerBlock(E, H, attention=attention))
        assert block.attention is attention
        x, order = draw(B, L, E), [3, 0, 4, 1, 2]
        assert (block(x[:, order]) - block(x)[:, order]).abs().max() > 0.01, "it knows positions"


def test_module_without_sizes_can_take_the_place_of_the_attention():
    class Mean(nn.Module):
        def forward(self, x, mask=None, is_causal=False, return_weights=False):
            return x.mean(dim=1, keepdim=True).expand_as(x)

    block, x = randomised(TransformerBlock(E, H, attention=Mean())), draw(B, L, E)
    y = x + block.norm1(x).mean(dim=1, keepdim=True)
    close(block(x), y + block.feedforward(block.norm2(y)))


def test_norm_may_have_no_weight():
    block, x = TransformerBlock(E, H).double(), draw(B, L, E)
    expected = block(x)  # the norm begins with 1 and 0
    block.norm1 = nn.LayerNorm(E, elementwise_affine=False)
    close(block(x), expected)


def test_layers_with_positions_take_what_the_layer_without_takes():
    for kind in (RotaryAttention, LinearBiasAttention):
        sizes = kind(E, H, 5, 7, 1, dropout=0.25)
        assert (sizes.kdim, sizes.vdim, sizes.num_kv_heads, sizes.dropout) == (5, 7, 1, 0.25)


def test_block_can_be_copied_saved_compiled_and_put_on_the_meta_device():
    block = TransformerBlock(E, H, attention=RotaryAttention(E, H)).double().eval()
    x = draw(B, L, E)
    file = io.BytesIO()
    torch.save(block, file)
    file.seek(0)
    for other in (copy.deepcopy(block), torch.load(file, weights_only=False)):
        close(other(x), block(x))
    fresh = TransformerBlock(E, H, attention=RotaryAttention(E, H)).double()
    fresh.load_state_dict(block.state_dict())
    close(fresh(x), block(x))
    with torch.device("meta"):
        assert TransformerBlock(E, H)(torch.ones(B, L, E)).is_meta
    for empty in (x[:, :0], x[:0]):
        assert block(empty).shape == empty.shape


@pytest.mark.refusal  # without the shape hook too: the compiler cannot read it
def test_block_compiles_into_one_graph():
    block = TransformerBlock(E, H, attention=RotaryAttention(E, H))
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    x = draw(B, L, E, dtype=torch.float32)
    torch.testing.assert_close(compiled(x, is_causal=True), block(x, is_causal=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_brings_half_precision_and_back(dtype):
    block = TransformerBlock(E, H, attention=RotaryAttention(E, H))
    x = draw(B, L, E, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output = block(x.to(dtype))
    torch.testing.assert_close(output.float(), block(x), rtol=0, atol=0.1)


def test_copies_start_identical_and_new_blocks_do_not():
    # C05: nn.TransformerEncoder copies the layer it is given
    block = TransformerBlock(E, H)
    copied = copy.deepcopy(block)
    assert torch.equal(block.feedforward[0].weight, copied.feedforward[0].weight)
    assert not torch.equal(
        block.feedforward[0].weight, TransformerBlock(E, H).feedforward[0].weight
    )


# Positions


@pytest.mark.parametrize(("length", "width"), [(7, 6), (5, 1), (1, 4), (11, 5)])
def test_sinusoids_are_the_formula(length, width):
    encoding = sinusoidal_positional_encoding(length, width)
    assert encoding.dtype == torch.float32
    expected = torch.empty(length, width, dtype=torch.float64)
    for p in range(length):
        for column in range(width):
            angle = p / 10000 ** ((column - column % 2) / width)
            expected[p, column] = math.cos(angle) if column % 2 else math.sin(angle)
    torch.testing.assert_close(encoding.double(), expected, rtol=0, atol=1e-7)


def test_far_positions_are_exact_to_float32():
    # computed in float32, the angle itself would be off by more
    expected = [math.sin(99_991 / 10000 ** (2 / 5)), math.cos(99_991 / 10000 ** (2 / 5))]
    encoding = sinusoidal_positional_encoding(99_992, 5)
    torch.testing.assert_close(encoding[-1, 2:4], torch.tensor(expected), rtol=0, atol=1e-7)
    x = draw(1, 4, dtype=torch.float32)
    far = rotary(x, torch.tensor([99_991])).double()
    torch.testing.assert_close(far, rotary(x.double(), torch.tensor([99_991])), rtol=0, atol=1e-6)


def test_sinusoids_follow_the_default_dtype_and_may_be_empty():
    torch.set_default_dtype(torch.float64)
    try:
        assert sinusoidal_positional_encoding(3, 4).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert sinusoidal_positional_encoding(0, 4).shape == (0, 4)


def test_distance_between_sinusoids_depends_on_the_distance_of_positions():
    encoding = sinusoidal_positional_encoding(23, 8).double()
    products = encoding @ encoding.T
    for distance in range(23):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-6)


@pytest.mark.parametrize("base", [10000.0, 7, 0.5, 2**70])
def test_rotary_turns_each_pair_by_the_formula(base):
    x = draw(B, H, L, 6)
    positions = torch.tensor([0, 3, 1, 100, 7])
    expected = torch.empty_like(x)
    for p, position in enumerate(positions.tolist()):
        for i in range(3):
            angle = position / base ** (2 * i / 6)
            first, second = x[..., p, 2 * i], x[..., p, 2 * i + 1]
            expected[..., p, 2 * i] = first * math.cos(angle) - second * math.sin(angle)
            expected[..., p, 2 * i + 1] = first * math.sin(angle) + second * math.cos(angle)
    close(rotary(x, positions, base), expected)
    close(rotary(x, base=base), rotary(x, torch.arange(L), base))


def test_rotary_keeps_lengths_and_sees_only_distances():
    q, k = draw(L, 6), draw(L, 6, seed=1)
    close(rotary(q).norm(dim=-1), q.norm(dim=-1))
    here = rotary(q) @ rotary(k).T
    positions = torch.arange(L) + 1234
    close(rotary(q, positions) @ rotary(k, positions).T, here, atol=1e-11)
    assert (rotary(q, positions) @ rotary(k).T - here).abs().max() > 0.1


def test_rotary_takes_positions_of_each_sample():
    x = draw(B, H, L, 4)
    positions = torch.stack([torch.arange(L), torch.arange(L) + 3])
    result = rotary(x, positions[:, None])
    for b in range(B):
        close(result[b], rotary(x[b], positions[b]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rotary_keeps_the_dtype_and_turns_in_float32(dtype):
    x = draw(L, 6, dtype=dtype)
    result = rotary(x)
    assert result.dtype == dtype
    torch.testing.assert_close(result, rotary(x.double()).to(dtype), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_only_the_angles_are_float64(dtype):
    x, angles = draw(L, 2, dtype=dtype), torch.arange(L, dtype=torch.float64)
    (first, second), cos, sin = x.float().T, angles.cos().float(), angles.sin().float()
    expected = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=1)
    assert torch.equal(rotary(x), expected.to(dtype))


def test_default_device_does_not_matter_to_a_tensor_that_has_one():
    x, positions = draw(B, H, L, 4), torch.arange(L) + 3
    expected = rotary(x), rotary(x, positions)
    with torch.device("meta"):
        close(rotary(x), expected[0])
        close(rotary(x, positions), expected[1])


def test_halves_and_pairs_are_the_same_rotation_of_permuted_features():
    # L18: two conventions; scores agree after permuting the features, and only then
    def by_halves(x):
        half = x.shape[-1] // 2
        angles = torch.arange(len(x))[:, None] / 10000 ** (torch.arange(half) / half)
        a, b = x[:, :half], x[:, half:]
        return torch.cat(
            (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1
        )

    q, k = draw(L, 6), draw(L, 6, seed=1)
    order = [0, 2, 4, 1, 3, 5]
    pairs = rotary(q) @ rotary(k).T
    torch.testing.assert_close(
        by_halves(q[:, order]) @ by_halves(k[:, order]).T, pairs, rtol=0, atol=1e-5
    )
    assert (by_halves(q) @ by_halves(k).T - pairs).abs().max() > 0.1


@pytest.mark.parametrize("num_kv_heads", [None, 1])
def test_rotary_attention_turns_queries_and_keys_and_not_values(num_kv_heads):
    layer = randomised(RotaryAttention(E, H, num_kv_heads=num_kv_heads))
    x, memory = draw(B, L, E), draw(B, S, E, seed=1)
    for keys in (x, memory):
        d, kv_heads = E // H, layer.num_kv_heads
        heads, expected_weights = [], []
        for h in range(H):
            q = layer.q_proj(x)[..., h * d : (h + 1) * d]
            own = h * kv_heads // H
            k = layer.k_proj(keys)[..., own * d : (own + 1) * d]
            v = layer.v_proj(keys)[..., own * d : (own + 1) * d]
            w = (rotary(q) @ rotary(k).mT / math.sqrt(d)).softmax(-1)
            heads.append(w @ v)
            expected_weights.append(w)
        output, weights = layer(x, keys, return_weights=True)
        close(output, layer.out_proj(torch.cat(heads, -1)))
        close(weights, torch.stack(expected_weights, 1))
        close(layer(x, keys), output)


@pytest.mark.parametrize("num_kv_heads", [None, 1])
def test_linear_bias_is_the_published_formula(num_kv_heads):
    layer = randomised(LinearBiasAttention(E, H, num_kv_heads=num_kv_heads))
    plain = MultiHeadAttention(E, H, num_kv_heads=num_kv_heads).double()
    plain.load_state_dict(layer.state_dict())
    x = draw(B, L, E)
    _, before = plain(x, is_causal=True, return_weights=True)
    expected = torch.zeros_like(before)
    for h in range(H):
        slope = 2 ** (-8 * (h + 1) / H)
        for i in range(L):
            for j in range(i + 1):
                expected[:, h, i, j] = before[:, h, i, j] * math.exp(-slope * (i - j))
    expected = expected / expected.sum(-1, keepdim=True)
    output, weights = layer(x, is_causal=True, return_weights=True)
    close(weights, expected)
    close(layer(x, is_causal=True), output)
    single = layer.float()
    torch.testing.assert_close(single(x.float(), is_causal=True), output.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_linear_bias_tells_far_neighbours_apart_in_half_precision(dtype, autocast):
    length = 5000  # above 256 bfloat16 rounds an integer, above 2048 float16 does
    layer = LinearBiasAttention(E, H).to(torch.float32 if autocast else dtype)
    with torch.no_grad():
        layer.k_proj.weight.zero_()
    x = draw(1, length, E, dtype=layer.q_proj.weight.dtype)
    with torch.autocast("cpu", dtype, enabled=autocast):
        # the last query, which sees all keys
        output, weights = layer(x[:, -1:], x, return_weights=True)
        fused = layer(x[:, -1:], x)
    distance = torch.arange(length - 1, -1, -1)
    expected = (-linear_bias_slopes(H)[:, None] * distance).softmax(-1)
    unit = torch.finfo(dtype).eps * expected.amax(-1, keepdim=True)
    assert ((weights[0, :, 0].double() - expected).abs() < unit).all()
    # three roundings: of the values, of the heads, of the result; numbers up to 2
    torch.testing.assert_close(fused, output, rtol=0, atol=2 * torch.finfo(dtype).eps)


def test_slopes_are_a_geometric_sequence():
    close(linear_bias_slopes(8), torch.tensor([2.0**-i for i in range(1, 9)], dtype=torch.float64))
    close(
        linear_bias_slopes(3),
        torch.tensor([2 ** (-8 / 3), 2 ** (-16 / 3), 2**-8], dtype=torch.float64),
    )


@pytest.mark.parametrize("kind", [RotaryAttention, LinearBiasAttention])
def test_gradients_of_layers_with_positions(kind):
    layer = randomised(kind(4, 2))
    x = draw(1, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, is_causal=True), (x,))


def test_doctests_of_the_module():
    assert doctest.testmod(attention_lib.block).failed == 0


# Refusals

X = torch.zeros(B, L, E)
DIVIDE = (
    "num_heads must divide embed_dim, each head takes embed_dim / num_heads of it; "
    "got embed_dim = 12, num_heads = 5"
)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: TransformerBlock(E, 5), ValueError, DIVIDE),
        (lambda: CrossAttentionBlock(E, 5), ValueError, DIVIDE),
        (
            lambda: TransformerBlock(E, H, 0),
            ValueError,
            "feedforward_dim must be at least 1; got 0",
        ),
        (
            lambda: CrossAttentionBlock(E, H, 2.5),
            TypeError,
            "feedforward_dim must be an integer; got 2.5",
        ),
        (
            lambda: TransformerBlock(E, H, dropout=2),
            ValueError,
            "dropout must be a probability between 0 and 1; got 2",
        ),
        (
            lambda: TransformerBlock(E, H, attention=torch.relu),
            TypeError,
            "attention must be a torch.nn.Module; got builtin_function_or_method",
        ),
        (
            lambda: TransformerBlock(E, H, attention=MultiHeadAttention(E, 2)),
            ValueError,
            "attention must have num_heads = 3, as the block; got 2",
        ),
        (
            lambda: TransformerBlock(E, H, attention=MultiHeadAttention(9, H)),
            ValueError,
            "attention must have embed_dim = 12, as the block; got 9",
        ),
        (
            lambda: TransformerBlock(E, H)(X[0]),
            ValueError,
            "x must have shape (batch, position, embed_dim = 12); got (5, 12)",
        ),
        (
            lambda: TransformerBlock(E, H)(X[..., 1:]),
            ValueError,
            "x must have shape (batch, position, embed_dim = 12); got (2, 5, 11)",
        ),
        (
            lambda: TransformerBlock(E, H)(X.double()),
            TypeError,
            "all inputs must have one dtype; "
            "got the block's weights torch.float32 and x torch.float64",
        ),
        (
            lambda: TransformerBlock(E, H)(X.long()),
            TypeError,
            "x must have a real floating dtype; got torch.int64",
        ),
        (lambda: TransformerBlock(E, H)([1.0]), TypeError, "x must be a torch.Tensor; got list"),
        (
            lambda: TransformerBlock(E, H)(X.to("meta")),
            ValueError,
            "all inputs must be on one device; got the block's weights on cpu and x on meta",
        ),
        (
            lambda: CrossAttentionBlock(E, H)(X, X[..., 1:]),
            ValueError,
            "memory must have shape (batch, position, embed_dim = 12); got (2, 5, 11)",
        ),
        (
            lambda: CrossAttentionBlock(E, H)(X[..., 1:], X),
            ValueError,
            "x must have shape (batch, position, embed_dim = 12); got (2, 5, 11)",
        ),
        (
            lambda: TransformerBlock(E, H, norm_first=1),
            TypeError,
            "norm_first must be True or False; got int",
        ),
        (
            lambda: sinusoidal_positional_encoding(4.0, 6),
            TypeError,
            "length must be an integer; got 4.0",
        ),
        (
            lambda: sinusoidal_positional_encoding(4, True),
            TypeError,
            "embed_dim must be an integer; got True",
        ),
        (
            lambda: sinusoidal_positional_encoding(-1, 6),
            ValueError,
            "length must be at least 0; got -1",
        ),
        (
            lambda: sinusoidal_positional_encoding(4, 0),
            ValueError,
            "embed_dim must be at least 1; got 0",
        ),
        (
            lambda: rotary(torch.zeros(2, 3)),
            ValueError,
            "x must have shape (..., position, even width); got (2, 3)",
        ),
        (
            lambda: rotary(torch.zeros(4)),
            ValueError,
            "x must have shape (..., position, even width); got (4,)",
        ),
        (
            lambda: TransformerBlock(E, H, dropout=2, attention=MultiHeadAttention(E, H)),
            ValueError,
            "dropout must be a probability between 0 and 1; got 2",
        ),
        (
            lambda: rotary(torch.zeros(2, 5, 3, 4), torch.arange(2)),
            ValueError,
            "positions must have shape (3,) or 3 axes that broadcast to (2, 5, 3); got (2,)",
        ),
        (lambda: rotary([[1.0, 0.0]]), TypeError, "x must be a torch.Tensor; got list"),
        (
            lambda: rotary(torch.zeros(2, 4), [0, 1]),
            TypeError,
            "positions must be a torch.Tensor; got list",
        ),
        *(
            (
                lambda base=base: rotary(torch.zeros(2, 4), base=base),
                ValueError,
                f"base must be a positive number; got {base!r}",
            )
            for base in (-1.0, math.inf, math.nan, "1")
        ),
        (
            lambda: rotary(torch.zeros(2, 4), base=0),
            ValueError,
            "base must be a positive number; got 0",
        ),
        (
            lambda: rotary(torch.zeros(2, 3, 4), torch.arange(2)),
            ValueError,
            "positions must have shape (3,) or 2 axes that broadcast to (2, 3); got (2,)",
        ),
        (
            lambda: rotary(torch.zeros(1, 3, 4), torch.zeros(2, 3)),
            ValueError,
            "positions must have shape (3,) or 2 axes that broadcast to (1, 3); got (2, 3)",
        ),
        (
            lambda: RotaryAttention(9, 3),
            ValueError,
            "each head must have an even width, rotary turns pairs of features; "
            "got embed_dim / num_heads = 3",
        ),
        (lambda: linear_bias_slopes(0), ValueError, "num_heads must be at least 1; got 0"),
        (lambda: linear_bias_slopes(2.0), TypeError, "num_heads must be an integer; got 2.0"),
    ],
)
def test_refusal_states_rule_expectation_and_what_came(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: TransformerBlock(E, H)(X, mask=torch.ones(L, L)),
            TypeError,
            r"mask must be bool with True = may attend",
        ),
        (
            lambda: CrossAttentionBlock(E, H)(X, X[:1]),
            ValueError,
            r"query, key and value must have the same batch size",
        ),
        (
            lambda: CrossAttentionBlock(E, H)(X, X, memory_mask=torch.ones(B, L).bool()),
            ValueError,
            r"A padding mask \(batch, S\) goes in as mask\[:, None, None\]\.",
        ),
    ],
)
def test_masks_and_memories_are_refused_by_the_attention_layers(call, error, message):
    with pytest.raises(error, match=message):
        call()
