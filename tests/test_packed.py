"""One product for query, key and value gives what three give, whatever becomes of the layers.

Where gradients are recorded there are always three products, and tests/test_multi_head.py
compares those with the definition. Here they are the reference for the one product.
"""

import copy
import io
import itertools
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.utils import parametrizations, prune
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from attention_lib import _packed
from attention_lib.block import LinearBiasAttention, RotaryAttention
from attention_lib.multi_head import MultiHeadAttention

B, L, E, H = 2, 5, 21, 7
NAMES = ("q_proj", "k_proj", "v_proj")
MASKS = {"none": None, "matrix": (L, L), "samples": (B, L, L), "heads": (1, H, L, L)}


def draw(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_layer(seed=0, kind=MultiHeadAttention, sizes=(E, H), **options):
    """A float64 layer in evaluation whose biases are not 0."""
    layer = kind(*sizes, **options).double().eval()
    with torch.no_grad():
        for i, parameter in enumerate(layer.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=10 * seed + i) / 3)
    return layer


class Products(TorchFunctionMode):
    """Counts the calls of ``F.linear``."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += function is F.linear
        return function(*args, **(kwargs or {}))


def outcome(layer, *args, **options):
    """What the layer gives without gradients, and the number of products it took."""
    with torch.no_grad(), Products() as products:
        result = layer(*args, **options)
    return result, products.count


def assert_right(layer, products=None, x=None, **options):
    """Without gradients the layer gives what it gives with them, by so many products."""
    x = draw(B, L, E) if x is None else x
    expected = layer(x, **options)
    actual, count = outcome(layer, x, **options)
    torch.testing.assert_close(actual, expected)
    assert products in (None, count)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_one_product_gives_what_three_give(shape, return_weights, bias):
    mask = None if shape is None else draw(*shape, seed=4) > 0
    assert_right(random_layer(bias=bias), 2, mask=mask, return_weights=return_weights)


def test_other_inputs_for_keys_or_values_take_three_products():
    layer = random_layer()
    x, other = draw(B, L, E), draw(B, L, E, seed=3)
    for arguments in itertools.product((x, other), repeat=3):
        expected = layer(*arguments)
        actual, products = outcome(layer, *arguments)
        torch.testing.assert_close(actual, expected)
        assert products == (2 if len(set(map(id, arguments))) == 1 else 4)


@pytest.mark.parametrize(
    "options", [{"num_kv_heads": 1}, {"kdim": 11}, {"vdim": 13}, {"sizes": (129, 1)}]
)
def test_wide_layers_and_unequal_projections_keep_their_memory(options):
    layer = random_layer(**options)
    assert layer._block is None
    starts = {getattr(layer, name).weight.untyped_storage().data_ptr() for name in NAMES}
    assert len(starts) == 3


def test_what_is_done_to_a_layer_without_its_parts_leaves_them_alone():
    layer = random_layer().to_empty(device="meta", recurse=False)
    assert {parameter.device.type for parameter in layer.parameters()} == {"cpu"}


def test_layer_of_the_largest_width_is_still_packed():
    assert_right(random_layer(sizes=(128, 2)), 2, draw(B, L, 128))


@pytest.mark.parametrize("kind", [RotaryAttention, LinearBiasAttention])
def test_layers_that_turn_or_bend_the_heads_get_the_same_heads(kind):
    assert_right(random_layer(kind=kind, sizes=(22, 11)), 2, draw(B, L, 22))


# What may become of the projections: a change, and the products the layer takes after it


class Adapter(nn.Linear):
    """A layer that adds something to a product, as those for fine-tuning do."""

    def forward(self, x):
        return super().forward(x) + x


def own(layer, name, make):
    """Give a projection's weight memory that the function makes from its numbers."""
    weight = getattr(layer, name).weight
    weight.data = make(weight.data)


def shift(layer):
    """The three weights one row further on in a memory of their own, out of step by one row."""
    memory = draw(3 * E + 1, E, seed=6)
    for i, name in enumerate(NAMES):
        rows = memory[i * E + (i > 0) :][:E]
        own(layer, name, lambda _, rows=rows: rows)


def swap(layer):
    layer.q_proj.weight, layer.k_proj.weight = layer.k_proj.weight, layer.q_proj.weight


def step(layer):
    layer(draw(B, L, E)).square().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()


def in_place(layer):
    with torch.no_grad():
        layer.v_proj.bias.add_(1)
        layer.k_proj.weight.data.mul_(2)


def two_block_halves(layer):
    """Half of the memory belongs to another layer now."""
    other = random_layer(1)
    layer.v_proj = other.v_proj
    layer.q_proj.bias = other.q_proj.bias


CHANGES = {
    "numbers written in place": (in_place, 2),
    "a step of an optimiser": (step, 2),
    "numbers loaded": (lambda m: m.load_state_dict(random_layer(1).state_dict()), 2),
    "parameters loaded": (
        lambda m: m.load_state_dict(random_layer(1).state_dict(), assign=True),
        4,
    ),
    "new memory": (lambda m: own(m, "v_proj", lambda w: w + 1), 4),
    "transposed in place": (lambda m: own(m, "k_proj", lambda w: w.T), 4),
    "rows out of step": (shift, 4),
    "two weights swapped": (swap, 4),
    "two modules swapped": (lambda m: setattr(m, "q_proj", m.v_proj), 4),
    "parts of another layer": (two_block_halves, 4),
    "a new parameter": (lambda m: setattr(m.q_proj, "weight", nn.Parameter(draw(E, E))), 4),
    "one weight for two": (lambda m: setattr(m.k_proj, "weight", m.q_proj.weight), 4),
    "no bias": (lambda m: setattr(m.v_proj, "bias", None), 4),
    "another module": (lambda m: setattr(m, "v_proj", Adapter(E, E).double()), 4),
    "a module's own forward": (
        lambda m: setattr(m.k_proj, "forward", lambda x: F.linear(x, m.k_proj.weight) * 2),
        4,
    ),
    "a hook": (lambda m: m.v_proj.register_forward_hook(lambda _, __, out: out * 2) and None, 4),
    "a hook before": (
        lambda m: m.q_proj.register_forward_pre_hook(lambda _, x: (x[0] * 2,)) and None,
        4,
    ),
    "a weight made of parts": (lambda m: parametrizations.weight_norm(m.k_proj), 4),
    "a spectral norm": (lambda m: parametrizations.spectral_norm(m.q_proj.eval()), 4),
    "pruned": (lambda m: prune.random_unstructured(m.v_proj, "weight", 0.5), 4),
    "shared with other processes": (lambda m: m.share_memory(), 2),
    "a frozen projection": (lambda m: m.q_proj.requires_grad_(False), 2),
    "moved to single precision and back": (lambda m: m.float().double(), 2),
    "one projection moved and back": (lambda m: m.v_proj.float().double() and None, 4),
}


@pytest.mark.parametrize(("change", "products"), CHANGES.values(), ids=CHANGES)
def test_layer_is_right_after(change, products):
    layer = random_layer()
    assert outcome(layer, draw(B, L, E))[1] == 2
    change(layer)
    assert_right(layer, products)
    assert_right(copy.deepcopy(layer))
    assert_right(layer.float(), x=draw(B, L, E).float())


def test_bias_given_to_a_layer_without_one_is_added():
    layer = random_layer(bias=False)
    layer.v_proj.bias = nn.Parameter(draw(E, seed=5))
    assert_right(layer, 4)


def test_key_in_another_dtype_over_the_same_memory_is_refused_as_before():
    layer, x = random_layer().half(), draw(B, L, E).half()
    layer.k_proj.weight.data = layer.k_proj.weight.data.view(torch.bfloat16)
    with torch.no_grad(), pytest.raises(RuntimeError, match="dtype"):
        layer(x)


def test_projection_on_another_device_is_called_and_can_be_brought_back():
    layer = random_layer()
    layer.v_proj.to("meta")
    with torch.no_grad(), pytest.raises((RuntimeError, NotImplementedError)):
        layer(draw(B, L, E))
    layer.to_empty(device="cpu").load_state_dict(random_layer(1).state_dict())
    assert_right(layer, 4)


@pytest.mark.parametrize(
    "register", [register_module_forward_hook, register_module_forward_pre_hook]
)
def test_hooks_of_all_modules_see_the_projections(register):
    layer, seen = random_layer(), []
    with register(lambda module, *_: seen.append(module)):
        outcome(layer, draw(B, L, E))
    assert {layer.q_proj, layer.k_proj, layer.v_proj} < set(seen)


class Operations(TorchDispatchMode):
    """The names of the operations that PyTorch runs, as those who count them see it."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_those_who_count_operations_see_what_runs_without_them():
    with torch.no_grad(), Operations() as seen:
        random_layer()(draw(B, L, E))
    assert seen.names.count("aten::addmm") == 2


# Copies, files, and what others do with the parameters


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return file


def loaded(thing):
    file = saved(thing)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "remake", [copy.deepcopy, loaded, lambda layer: pickle.loads(pickle.dumps(layer))]
)
def test_copy_takes_one_product_of_its_own_memory(remake):
    layer = random_layer()
    other = remake(layer)
    assert_right(other, 2)
    before = outcome(layer, draw(B, L, E))[0]
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(outcome(layer, draw(B, L, E))[0], before)
    assert not outcome(other, draw(B, L, E))[0].any()


def test_file_of_a_layer_is_loaded_with_its_classes_allowed_and_no_others():
    layer, file = random_layer(), saved(random_layer())
    file.seek(0)
    with torch.serialization.safe_globals([MultiHeadAttention, nn.Linear]):
        other = torch.load(file, weights_only=True)
    assert_right(other, 2)
    assert torch.equal(other(draw(B, L, E)), layer(draw(B, L, E)))


class Watching(MultiHeadAttention):
    """Its projection knows it, so that a copy of either meets the other half made."""

    def __init__(self, *args):
        super().__init__(*args)
        self.q_proj.register_forward_hook(self.watch)

    def watch(self, *_):
        self.watched = True


@pytest.mark.parametrize("remake", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_projection_that_knows_its_layer_is_copied_with_it(remake):
    layer = random_layer(kind=Watching)
    projection, other = remake([layer.q_proj, layer])
    assert other.q_proj is projection
    assert_right(other, 4)
    assert other.watched
    assert not hasattr(layer, "watched")
    assert torch.equal(remake(layer.q_proj).weight, projection.weight)


def test_shallow_copy_shares_the_parameters():
    layer = random_layer()
    other = copy.copy(layer)
    in_place(other)
    for each in (layer, other):
        assert_right(each, 2)
    assert torch.equal(layer(draw(B, L, E)), other(draw(B, L, E)))


def test_saved_parameters_take_no_more_room_and_do_not_overlap():
    state = random_layer().state_dict()
    apart = {name: value.clone() for name, value in state.items()}
    assert len(saved(state).getvalue()) < 1.05 * len(saved(apart).getvalue())
    places = sorted((value.data_ptr(), value.nbytes) for value in state.values())
    for (start, size), (following, _) in itertools.pairwise(places):
        assert start + size <= following


def test_memory_that_others_share_stays_where_it_is():
    layer = random_layer()
    for name in NAMES:  # a memory of the user's own, as those who flatten parameters have
        own(layer, name, torch.clone)
    places = [p.data_ptr() for p in layer.parameters()]
    layer.to(torch.float64)
    assert [p.data_ptr() for p in layer.parameters()] == places
    layer.share_memory()
    again = random_layer()
    again.load_state_dict(layer.state_dict(), assign=True)
    places = [p.data_ptr() for p in again.parameters()]
    again.__setstate__({**again.__dict__, "_block": None})  # as another process does
    assert [p.data_ptr() for p in again.parameters()] == places
    assert again.k_proj.weight.is_shared()


def test_vector_of_all_parameters_still_holds_them_when_it_comes_from_a_file():
    layer = random_layer()
    vector, start = torch.nn.utils.parameters_to_vector(layer.parameters()).detach(), 0
    for parameter in layer.parameters():
        parameter.data = vector[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    vector, layer = loaded([vector, layer])
    vector.zero_()
    assert not any(p.any() for p in layer.parameters())


def test_layer_made_in_inference_mode_can_still_be_called():
    with torch.inference_mode():
        layer = random_layer()
        x = draw(B, L, E)
        expected = F.linear(x, layer.q_proj.weight, layer.q_proj.bias).unflatten(-1, (H, -1))
        torch.testing.assert_close(layer._heads(x, x, x)[0].mT, expected.permute(0, 2, 3, 1))


def test_moving_a_layer_in_inference_mode_keeps_its_numbers():
    layer, x = random_layer(), draw(B, L, E)
    expected = layer(x)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), expected)
        torch.testing.assert_close(layer.float().double()(x), expected, rtol=0, atol=1e-4)


def test_parameters_from_outside_are_used():
    layer, other, x = random_layer(), random_layer(1), draw(B, L, E)
    expected = other(x)
    for named in (dict(other.named_parameters()), other.state_dict()):
        with torch.no_grad():
            actual = torch.func.functional_call(layer, named, x)
        torch.testing.assert_close(actual, expected)
    assert_right(layer, 2)


def test_stacked_parameters_are_used_one_after_the_other():
    layers, x = [random_layer(i) for i in range(3)], draw(B, L, E)
    stacked, _ = torch.func.stack_module_state(layers)
    with torch.no_grad():
        actual = torch.func.vmap(lambda named: torch.func.functional_call(layers[0], named, x))(
            stacked
        )
    torch.testing.assert_close(actual, torch.stack([layer(x) for layer in layers]))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch's own jvp
def test_transforms_of_the_input_take_one_product_as_well():
    layer, x, tangent = random_layer(), draw(3, B, L, E), draw(3, B, L, E, seed=8)
    expected = torch.func.jvp(layer, (x[0],), (tangent[0],))
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(layer)(x), torch.stack([layer(y) for y in x]))
        torch.testing.assert_close(torch.func.jvp(layer, (x[0],), (tangent[0],)), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traced_layer_keeps_three_parameters():
    layer, x = random_layer(), draw(B, L, E)
    with torch.no_grad():
        traced = torch.jit.trace(layer, x)
        own(layer, "k_proj", lambda weight: weight + 1)
    names = [name for name, _ in traced.named_parameters()]
    assert len(names) == 8
    assert "k_proj" in str(traced.inlined_graph)


def test_trace_takes_the_parameters_that_it_is_given():
    layer, x, named = random_layer(), draw(B, L, E), dict(random_layer().named_parameters())

    def call(parameters, x):
        return torch.func.functional_call(layer, parameters, x)

    with torch.no_grad():
        traced = make_fx(call)(dict(layer.named_parameters()), x)
        assert not any("constant" in name for name, _ in traced.named_buffers())
        other = {name: p + 1 for name, p in named.items()}
        torch.testing.assert_close(traced(other, x), call(other, x))


def test_autocast_gives_what_three_products_give():
    layer, x = random_layer().float(), draw(B, L, E, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = layer(x)
        actual, products = outcome(layer, x)
    assert actual.dtype == torch.bfloat16
    assert products == 2
    torch.testing.assert_close(actual, expected)


def test_gradients_of_a_packed_layer_are_those_of_separate_ones():
    layer, x = random_layer(), draw(B, L, E)
    apart = random_layer()
    for name in NAMES:
        own(apart, name, torch.clone)
    for each in (layer, apart):
        each(x).square().sum().backward()
    for (name, p), q in zip(layer.named_parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)


def test_layers_that_cannot_move_do_not():
    plain = [nn.Linear(E, E) for _ in range(3)]
    hooked = copy.deepcopy(plain)
    hooked[1].register_forward_hook(lambda *_: None)
    for layers in (
        [plain[0], plain[0], plain[1]],
        [*plain[:2], nn.Linear(E, E, bias=False)],
        [*plain[:2], nn.Linear(E, E).double()],
        [*plain[:2], nn.Linear(E, E + 2)],
        [*plain[:2], nn.Linear(E, E, device="meta")],
        [*plain[:2], None],
        hooked,
    ):
        places = [p.data_ptr() for layer in layers if layer for p in layer.parameters()]
        assert _packed.pack(layers) is None
        assert places == [p.data_ptr() for layer in layers if layer for p in layer.parameters()]
    assert _packed.pack(plain).holds(plain)
