"""Chapter 5: parity with PyTorch's layer in every form it has, and the check of gradients.

Letters and numbers in comments are those of the collection of public reports of trouble with
attention code that the tests answer.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune

from attention_lib.block import LinearBiasAttention, RotaryAttention
from attention_lib.multi_head import MultiHeadAttention
from attention_lib.parity import check_gradients, from_torch, to_torch

# every axis another number, so that a swapped axis cannot pass; width of a head 3
B, H, L, S, E, KDIM, VDIM = 2, 4, 5, 7, 12, 11, 13
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
WIDTHS = [(None, None), (KDIM, None), (None, VDIM), (KDIM, VDIM), (E, E)]


def draw(*shape, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)


def randomised(module, seed=0):
    """Random values for all parameters: PyTorch's biases start at 0, which would hide them."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=rng) / 3)
    return module


def pytorch(dtype=torch.float64, **options):
    options = {"batch_first": True} | options
    return randomised(nn.MultiheadAttention(E, H, dtype=dtype, **options))


def arguments(kdim=None, vdim=None, dtype=torch.float64):
    shapes = (B, L, E), (B, S, kdim or E), (B, S, vdim or E)
    return [draw(*shape, dtype=dtype, seed=i).requires_grad_() for i, shape in enumerate(shapes)]


def unpacked(module):
    """Gradients of PyTorch's parameters, one for each of ours, by their documented order."""
    if module.in_proj_weight is None:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
        parts = [p.grad for p in weights]
    else:
        parts = [module.in_proj_weight.grad[i * E : (i + 1) * E] for i in range(3)]
    if module.in_proj_bias is not None:
        biases = [module.in_proj_bias.grad[i * E : (i + 1) * E] for i in range(3)]
        parts = list(itertools.chain(*zip(parts, biases, strict=True)))
    return [*parts, *(p.grad for p in module.out_proj.parameters())]


def call_pytorch(module, query, key, value, **options):
    """PyTorch's layer with our layout; weights for each head."""
    if not module.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    output, weights = module(query, key, value, average_attn_weights=False, **options)
    return output if module.batch_first else output.transpose(0, 1), weights


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kdim", "vdim"), WIDTHS)
def test_outputs_weights_and_gradients_equal_pytorchs(
    kdim, vdim, bias, batch_first, training, dtype
):
    # L02: both layouts
    theirs = pytorch(dtype, kdim=kdim, vdim=vdim, bias=bias, batch_first=batch_first)
    ours = from_torch(theirs.train(training))
    assert ours.training == training
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    cotangent = draw(B, L, E, dtype=dtype, seed=9)
    for need_weights in (True, False):
        x, y = arguments(kdim, vdim, dtype), arguments(kdim, vdim, dtype)
        expected = call_pytorch(theirs, *x, need_weights=need_weights)
        actual = ours(*y, return_weights=True) if need_weights else (ours(*y), None)
        torch.testing.assert_close(actual, expected, **close)
        theirs.zero_grad(), ours.zero_grad()
        expected[0].backward(cotangent)
        actual[0].backward(cotangent)
        torch.testing.assert_close([p.grad for p in y], [p.grad for p in x], **close)
        grads = [p.grad for p in ours.parameters()]
        torch.testing.assert_close(grads, unpacked(theirs), **close)


def masks():
    """Name, our mask, PyTorch's arguments: there True is blocked. No row is empty."""
    rng = torch.Generator().manual_seed(0)
    first = torch.arange(S) == 0

    def allowed(*shape):
        return (torch.rand(shape, generator=rng) > 0.5) | first

    matrix, samples, full, padding = (
        allowed(L, S), allowed(B, L, S), allowed(B, H, L, S), allowed(B, S)
    )  # fmt: skip
    per_sample = samples.repeat_interleave(H, dim=0)  # batch-major: sample 0's heads come first
    yield "attn_mask (L, S)", matrix, {"attn_mask": ~matrix}
    yield "attn_mask (N * h, L, S) by sample", samples, {"attn_mask": ~per_sample}
    yield "attn_mask (N * h, L, S) by head", full, {"attn_mask": ~full.flatten(0, 1)}
    yield "key_padding_mask (N, S)", padding[:, None, None], {"key_padding_mask": ~padding}
    yield (
        "both",
        matrix & padding[:, None, None],
        {"attn_mask": ~matrix, "key_padding_mask": ~padding},
    )
    yield (
        "additive attn_mask",
        matrix,
        {"attn_mask": torch.zeros(L, S, dtype=torch.float64).masked_fill(~matrix, -torch.inf)},
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("mask", "theirs"), [m[1:] for m in masks()], ids=[m[0] for m in masks()])
def test_every_kind_of_mask_gives_pytorchs_numbers(mask, theirs, training):
    module = pytorch(kdim=KDIM, vdim=VDIM).train(training)
    layer, inputs = from_torch(module), arguments(KDIM, VDIM)
    for need_weights in (True, False):
        expected = call_pytorch(module, *inputs, need_weights=need_weights, **theirs)
        actual = layer(*inputs, mask=mask, return_weights=True)
        torch.testing.assert_close(actual[0], expected[0], rtol=0, atol=1e-12)
        if need_weights:
            torch.testing.assert_close(actual[1], expected[1], rtol=0, atol=1e-12)
    grads = [
        torch.autograd.grad(output.square().sum(), inputs) for output in (actual[0], expected[0])
    ]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-11)


def test_causal_attention_gives_pytorchs_numbers():
    module, x = pytorch(), draw(B, L, E)
    blocked = torch.ones(L, L, dtype=torch.bool).triu(1)
    expected, _ = module(x, x, x, attn_mask=blocked, is_causal=True, need_weights=False)
    torch.testing.assert_close(from_torch(module)(x, is_causal=True), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_fast_path_of_pytorch_is_met_too(dtype):
    module, x = pytorch(dtype).eval(), draw(B, L, E, dtype=dtype)
    layer, padding = from_torch(module), torch.arange(L) >= torch.tensor([4, 2])[:, None]
    with torch.no_grad():  # evaluation, no gradients, self-attention, an even number of heads
        for blocked in (None, padding):
            mask = None if blocked is None else ~blocked[:, None, None]
            expected = call_pytorch(module, x, x, x, key_padding_mask=blocked)
            actual = layer(x, mask=mask, return_weights=True)
            close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
            torch.testing.assert_close(actual, expected, **close)


def test_averaged_weights_of_pytorch_are_the_mean_of_ours_over_the_heads():
    module, inputs = pytorch(), arguments()
    _, averaged = module(*inputs)
    _, weights = from_torch(module)(*inputs, return_weights=True)
    torch.testing.assert_close(weights.mean(dim=1), averaged)


def test_pytorch_returns_weights_after_dropout_and_we_before():
    # N11
    module = pytorch(dropout=0.5)
    layer = from_torch(module)
    assert layer.dropout == 0.5
    ones = torch.ones(B, H, L, dtype=torch.float64)
    torch.testing.assert_close(layer(*arguments(), return_weights=True)[1].sum(-1), ones)
    assert not torch.allclose(call_pytorch(module, *arguments())[1].sum(-1), ones)


@pytest.mark.parametrize(
    ("training", "need_weights", "gives_nan"),
    [(True, True, True), (True, False, False), (False, True, True), (False, False, True)],
)
def test_pytorch_has_two_answers_for_a_query_without_keys_and_we_one(
    training, need_weights, gives_nan
):
    module, x = pytorch().train(training), draw(B, L, E)
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[1] = True
    layer = from_torch(module)
    with torch.set_grad_enabled(training):  # without gradients the fast path is taken
        theirs, _ = module(x, x, x, key_padding_mask=padding, need_weights=need_weights)
        ours = layer(x, mask=~padding[:, None, None])
    expected = layer.out_proj.bias.expand(L, E)
    torch.testing.assert_close(ours[1], expected)
    if gives_nan:
        assert theirs[1].isnan().all()
    else:
        torch.testing.assert_close(theirs[1], expected)


def test_one_sample_without_keys_spoils_pytorchs_gradients_and_not_ours():
    module, x = pytorch(), draw(B, L, E)
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[1] = True
    module(x, x, x, key_padding_mask=padding)[0][0].sum().backward()  # the loss of the other one
    assert module.in_proj_weight.grad.isnan().any()
    layer = from_torch(module)
    layer(x, mask=~padding[:, None, None], return_weights=True)[0][0].sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kdim", "vdim"), WIDTHS)
def test_there_and_back_gives_the_same_module(kdim, vdim, bias, batch_first, dtype):
    module = pytorch(
        dtype, kdim=kdim, vdim=vdim, bias=bias, batch_first=batch_first, dropout=0.3
    ).eval()  # fmt: skip
    back = to_torch(from_torch(module), batch_first=batch_first)
    for name in ("batch_first", "training", "dropout", "kdim", "vdim", "num_heads"):
        assert getattr(back, name) == getattr(module, name)
    state = module.state_dict()
    assert list(back.state_dict()) == list(state)
    for name, p in back.state_dict().items():
        assert p.dtype == dtype
        assert torch.equal(p, state[name])


def test_our_own_layer_gives_the_same_numbers_in_pytorch():
    layer = randomised(MultiHeadAttention(E, H, KDIM, VDIM).double())
    module = to_torch(layer)
    assert module.batch_first
    torch.testing.assert_close(
        call_pytorch(module, *arguments(KDIM, VDIM)),
        layer(*arguments(KDIM, VDIM), return_weights=True),
    )


@pytest.mark.parametrize(("kdim", "vdim"), WIDTHS)
def test_copies_share_no_memory_with_the_original(kdim, vdim):
    module = pytorch(kdim=kdim, vdim=vdim)
    layer = from_torch(module)
    back = to_torch(layer)
    before = [p.clone() for p in layer.parameters()]
    with torch.no_grad():
        for p in (*module.parameters(), *back.parameters()):
            p.zero_()
    assert all(torch.equal(p, q) for p, q in zip(layer.parameters(), before, strict=True))
    assert all(p.is_leaf and p.requires_grad for p in (*layer.parameters(), *back.parameters()))


def test_layers_on_the_meta_device_convert_too():
    module = nn.MultiheadAttention(E, H, device="meta")
    layer = from_torch(module)
    assert layer.q_proj.weight.is_meta
    assert to_torch(layer).in_proj_weight.is_meta


@pytest.mark.refusal
@pytest.mark.parametrize("bias_kv", [True, False])
def test_modules_that_add_a_key_are_refused(bias_kv):
    with pytest.raises(ValueError, match="add a key") as caught:
        from_torch(nn.MultiheadAttention(E, H, add_bias_kv=bias_kv, add_zero_attn=not bias_kv))
    assert str(caught.value) == (
        "add_bias_kv and add_zero_attn add a key that no input holds, which this layer does not "
        f"do; got add_bias_kv={bias_kv}, add_zero_attn={not bias_kv}"
    )


@pytest.mark.refusal
def test_grouped_heads_are_refused_by_to_torch():
    message = (
        r"^torch\.nn\.MultiheadAttention has a key/value head for each query head; "
        "got num_heads = 4, num_kv_heads = 2$"
    )
    with pytest.raises(ValueError, match=message):
        to_torch(MultiHeadAttention(E, H, num_kv_heads=2))


@pytest.mark.refusal
def test_other_modules_are_refused():
    with pytest.raises(
        TypeError, match=r"torch.nn.MultiheadAttention; got .*modules.linear.Linear"
    ):
        from_torch(nn.Linear(2, 3))
    with pytest.raises(TypeError, match=r"subclass.*; got torch.nn.*MultiheadAttention"):
        to_torch(nn.MultiheadAttention(E, H))


@pytest.mark.refusal
@pytest.mark.parametrize("kind", [RotaryAttention, LinearBiasAttention])
def test_layers_that_attend_in_another_way_are_refused_by_to_torch(kind):
    with pytest.raises(TypeError) as caught:
        to_torch(kind(4, 2))
    assert str(caught.value) == (
        "module must be a MultiHeadAttention of attention_lib, and no subclass, which may attend "
        f"in another way; got attention_lib.block.{kind.__name__}"
    )


@pytest.mark.refusal
def test_weights_that_are_made_anew_in_each_call_are_refused():
    layer, module = MultiHeadAttention(E, H), nn.MultiheadAttention(E, H)
    parametrizations.weight_norm(layer.out_proj)
    with pytest.raises(ValueError, match="got for out_proj ParametrizedLinear with"):
        to_torch(layer)
    prune.l1_unstructured(module.out_proj, "weight", 0.5)
    message = (
        r"^module must have the parameters that PyTorch gives it; got \['out_proj.weight_orig'\] "
        "as well$"
    )
    with pytest.raises(ValueError, match=message):
        from_torch(module)


# Gradients


@pytest.mark.parametrize(
    ("num_kv_heads", "options"), [(None, {}), (1, {"is_causal": True, "return_weights": True})]
)
def test_gradients_of_our_layer_are_right_and_the_one_of_the_key_bias_is_0(num_kv_heads, options):
    # N15: weights and inputs are float32, and dropout is on, until the check takes its copy
    layer = MultiHeadAttention(4, 2, kdim=3, num_kv_heads=num_kv_heads, dropout=0.5)
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    x, key, value = draw(1, 3, 4).float(), draw(1, 3, 3, seed=1), draw(1, 3, 4, seed=2)
    sizes = check_gradients(layer, x, key, value, mask=mask, **options)
    assert list(sizes) == ["input 0", "input 1", "input 2", *dict(layer.named_parameters())]
    assert sizes.pop("k_proj.bias") < 1e-14
    assert min(sizes.values()) > 1e-3
    assert layer.training
    assert layer.q_proj.weight.dtype == torch.float32
    assert all(p.grad is None for p in layer.parameters())


def test_gradients_of_pytorchs_layer_are_right():
    module = randomised(nn.MultiheadAttention(4, 2, batch_first=True))
    x = draw(1, 3, 4)
    before = x.clone()
    sizes = check_gradients(module, x, x, x)
    assert list(sizes)[3:] == ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    assert torch.equal(x, before)


def test_sizes_are_the_largest_entries_of_the_gradients_along_the_random_direction():
    x = draw(3)
    sizes = check_gradients(lambda x, factor: x * factor, x, factor=draw(3, seed=1))
    rng = torch.Generator().manual_seed(0)
    cotangent = torch.randn(3, generator=rng, dtype=torch.float64)
    assert sizes["factor"] == pytest.approx((cotangent * x).abs().max().item(), rel=1e-14)


def test_named_arguments_reach_a_module():
    layer, x = randomised(MultiHeadAttention(4, 2)).double(), draw(1, 3, 4)
    triangle = torch.ones(3, 3, dtype=torch.bool).tril()
    named = check_gradients(layer, x, mask=triangle)
    assert named == check_gradients(lambda x: layer(x, mask=triangle), x) | named
    assert named["input 0"] != check_gradients(layer, x)["input 0"]


def test_named_argument_called_as_a_parameter_is_another_tensor():
    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(5.0))

        def forward(self, x, weight):
            return x * self.weight + 7 * weight

    x, weight = torch.tensor(2.0), torch.tensor(3.0)
    sizes = check_gradients(Line(), x, weight=weight)
    unit = sizes["weight"] / 2  # the random factor of the output
    assert sizes == pytest.approx(
        {"input 0": 5 * unit, "input weight": 7 * unit, "weight": 2 * unit}
    )


def test_the_random_numbers_of_others_are_left_alone():
    torch.manual_seed(0)
    check_gradients(torch.tanh, draw(3))
    left = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(left, torch.rand(3))


def test_function_of_tensors_may_return_one_number():
    assert check_gradients(torch.sum, draw(2, 3)).keys() == {"input 0"}


class Wrong(torch.autograd.Function):
    """Twice its input, with a backward that says something else."""

    factor = -7.0

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * Wrong.factor


class WrongLayer(MultiHeadAttention):
    def __init__(self, *args):
        super().__init__(*args)
        self.v_proj.register_forward_hook(lambda module, args, output: Wrong.apply(output) / 2)


def test_layer_with_a_wrong_backward_is_rejected_by_name():
    layer = randomised(WrongLayer(4, 2))
    with pytest.raises(AssertionError, match="wrong gradient") as caught:
        check_gradients(layer, draw(1, 3, 4), draw(1, 2, 4), draw(1, 2, 4))
    lines = str(caught.value).splitlines()[1:]
    assert [line.split("[")[0].strip() for line in lines] == [
        "input 2", "v_proj.weight", "v_proj.bias"
    ]  # fmt: skip
    # the source text's check, "a gradient exists", would pass
    layer(draw(1, 3, 4).float()).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_message_gives_the_worst_entry_with_both_numbers():
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0]])

    def cubed(x):  # right for entries that are 0
        return (Wrong.apply(x) / 2) ** 3

    with pytest.raises(AssertionError) as caught:
        check_gradients(cubed, x, second=False)
    found = str(caught.value).splitlines()[1]
    assert found.startswith("  input 0[1, 1]: backward gives ")
    backward, differences = (float(word.rstrip(",")) for word in found.split() if "." in word)
    assert backward / differences == pytest.approx(-3.5, rel=1e-4)


def test_worst_entry_is_not_the_largest():
    def wrong_at_the_small_end(x):
        return torch.cat([100 * x[:2], Wrong.apply(x[2:])])

    with pytest.raises(AssertionError, match=r"input 0\[[23]\]"):
        check_gradients(wrong_at_the_small_end, draw(4), second=False)


def test_message_is_the_same_every_time_and_another_for_another_seed():
    messages = []
    for seed in (3, 3, 4):
        with pytest.raises(AssertionError, match="wrong second derivative") as caught:
            check_gradients(Square.apply, draw(3), seed=seed)
        messages.append(str(caught.value))
    assert messages[0] == messages[1] != messages[2]


def test_gradient_of_some_millionths_in_place_of_0_is_rejected():
    class Constant(Wrong):
        @staticmethod
        def forward(ctx, x):
            return x * 0

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 4e-6

    with pytest.raises(AssertionError, match="wrong gradient"):
        check_gradients(Constant.apply, draw(3), second=False)


def test_nan_in_an_output_is_a_wrong_gradient_and_not_two_results():
    with pytest.raises(AssertionError, match="finite differences give nan"):
        check_gradients(torch.log, torch.tensor([1.0, -1.0]))


@pytest.mark.parametrize("factor", [2.001, 0.0, float("nan"), float("inf")])
def test_small_errors_missing_gradients_and_nan_are_rejected(factor, monkeypatch):
    monkeypatch.setattr(Wrong, "factor", factor)
    with pytest.raises(AssertionError, match=r"wrong gradient:\n  input 0\["):
        check_gradients(Wrong.apply, draw(3), second=False)


def test_right_backward_is_accepted(monkeypatch):
    monkeypatch.setattr(Wrong, "factor", 2.0)
    assert check_gradients(Wrong.apply, draw(3))


def test_detached_input_is_rejected_by_its_own_name():
    with pytest.raises(AssertionError) as caught:
        check_gradients(lambda x, y: x.detach() * y, draw(3), y=draw(3, seed=1))
    assert "input 0[" in str(caught.value)
    assert "backward gives 0, " in str(caught.value)
    assert "y[" not in str(caught.value)


def test_error_that_a_plain_sum_hides_is_found():
    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.softmax(-1)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 0

    x = draw(5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: Softmax.apply(x).sum(), (x,))
    with pytest.raises(AssertionError, match="wrong gradient"):
        check_gradients(Softmax.apply, x)


class Square(torch.autograd.Function):
    """A right gradient that cannot be differentiated again, since it was cut off."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0].detach()


def test_wrong_second_derivative_is_rejected_and_can_be_left_out():
    x = draw(3).requires_grad_()
    assert not torch.autograd.gradgradcheck(Square.apply, (x,), raise_exception=False)
    assert check_gradients(Square.apply, x, second=False)
    with pytest.raises(AssertionError, match=r"wrong second derivative:\n  input 0\["):
        check_gradients(Square.apply, x)


def test_backward_that_does_not_pass_derivatives_on_is_rejected():
    class Twice(torch.autograd.Function):
        """Its second derivative by x is right, 0; that by the gradient that comes in is not."""

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return (gradient.detach() * 2).requires_grad_()

    with pytest.raises(AssertionError, match=r"^wrong second derivative: .*\n.*numerical"):
        check_gradients(Twice.apply, draw(3))


def test_wrong_mixed_second_derivative_is_rejected():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, gradient):
            x, y = ctx.saved_tensors
            return gradient * y.detach(), gradient * x

    with pytest.raises(AssertionError, match="wrong second derivative") as caught:
        check_gradients(Product.apply, draw(3), draw(3, seed=1))
    assert "input 1[" in str(caught.value)


def test_several_outputs_empty_inputs_and_parameters_without_use_are_fine():
    module = nn.Bilinear(2, 3, 1)
    module.unused = nn.Parameter(torch.ones(2))
    sizes = check_gradients(module, draw(4, 2), draw(4, 3))
    assert sizes["unused"] == 0
    assert check_gradients(lambda x, y: (x.sin(), None, y.exp()), draw(3), draw(0))["input 1"] == 0


TWO_RESULTS = "^the function gives two results for one input; switch dropout off$"


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: x.detach(),
            "^no floating input or parameter reaches an output through autograd$",
        ),
        (lambda x: {"output": x}, "^no floating input or parameter reaches an output"),
        (lambda x: torch.complex(x, x), "^no floating input or parameter reaches an output"),
        (lambda x: F.dropout(x, 0.5), TWO_RESULTS),
        (lambda x: x + 1e-12 * torch.rand(()), TWO_RESULTS),
        (lambda x: x.flatten()[: torch.randint(2, 6, ())], TWO_RESULTS),
        (lambda x: [x] * torch.randint(2, 6, ()), TWO_RESULTS),
        (
            lambda x: F.scaled_dot_product_attention(x, x, x),
            "no second derivatives, pass second=False",
        ),
    ],
)
def test_what_cannot_be_checked_is_refused_in_words(function, message):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=message):
        check_gradients(function, draw(1, 1, 3, 4))


@pytest.mark.refusal
def test_inputs_without_floating_numbers_are_refused():
    with pytest.raises(ValueError, match="no floating input"):
        check_gradients(lambda x: x + 1, torch.ones(3, dtype=torch.long))
