"""Chapter 11: patches and the classifier over them, against loops and against PyTorch.

Letters and numbers in comments, such as L16, are those of the collection of public reports of
trouble with attention code that the tests answer.
"""

import copy
import io
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

from attention_lib.parity import to_torch
from attention_lib.vision import PatchClassifier, patchify, replace_patches, rollout, unpatchify

# every axis another number, so that a swapped axis cannot pass
B, C, ROWS, COLUMNS, P = 11, 5, 2, 7, 3
SIZE = ROWS * P, COLUMNS * P
L, E, H, LAYERS, CLASSES = 1 + ROWS * COLUMNS, 12, 4, 2, 13


def draw(*shape, seed=0):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )  # fmt: skip


def images():
    return draw(B, C, *SIZE)


def random_model(**options):
    """A model all of whose parameters are random: biases at 0 would hide faults."""
    options = {"channels": C, "embed_dim": E, "num_heads": H, "num_layers": LAYERS, **options}
    model = PatchClassifier(SIZE, P, CLASSES, **options).double().eval()
    rng = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) / 2)
    return model


# Patches


def test_patchify_puts_every_pixel_where_the_loops_put_it():
    x = torch.arange(B * C * SIZE[0] * SIZE[1]).view(B, C, *SIZE)
    patches = patchify(x, P)
    assert patches.shape == (B, ROWS * COLUMNS, C * P * P)
    for i, j in itertools.product(range(ROWS), range(COLUMNS)):
        expected = x[:, :, i * P : (i + 1) * P, j * P : (j + 1) * P].reshape(B, -1)
        assert torch.equal(patches[:, i * COLUMNS + j], expected)


def test_patchify_is_pytorchs_unfold_and_a_projection_of_it_a_convolution():
    x, linear = images(), nn.Linear(C * P * P, E).double()
    unfolded = nn.functional.unfold(x, P, stride=P).transpose(1, 2)
    assert torch.equal(patchify(x, P), unfolded)
    kernel = linear.weight.view(E, C, P, P)
    expected = nn.functional.conv2d(x, kernel, linear.bias, stride=P)
    torch.testing.assert_close(linear(patchify(x, P)), expected.flatten(2).transpose(1, 2))


@given(*[st.integers(1, 4)] * 5)
def test_unpatchify_undoes_patchify_for_every_size(batch, channels, rows, columns, patch):
    x = torch.arange(batch * channels * rows * columns * patch**2)
    x = x.view(batch, channels, rows * patch, columns * patch)
    assert torch.equal(unpatchify(patchify(x, patch), x.shape[2:], patch), x)


def test_patches_of_one_pixel_are_pixels_and_one_patch_is_the_image():
    x = images()
    assert torch.equal(patchify(x, 1), x.flatten(2).transpose(1, 2))
    assert torch.equal(patchify(x[..., :6], 6), x[..., :6].reshape(B, 1, -1))


def test_patches_of_a_transposed_image_are_those_of_its_copy():
    # L07: data that is not contiguous
    x = draw(B, C, *SIZE[::-1]).transpose(2, 3)
    assert torch.equal(patchify(x, P), patchify(x.contiguous(), P))
    patches = draw(B, C * P * P, L - 1).transpose(1, 2)
    assert torch.equal(unpatchify(patches, SIZE, P), unpatchify(patches.contiguous(), SIZE, P))


def test_patches_of_no_image_are_empty():
    assert patchify(torch.zeros(0, C, *SIZE), P).shape == (0, L - 1, C * P * P)
    assert unpatchify(torch.zeros(0, L - 1, C * P * P), SIZE, P).shape == (0, C, *SIZE)


def test_replaced_patches_are_the_donors_and_the_others_stay():
    x, donors = images(), draw(B, C, *SIZE, seed=1)
    before = x.clone()
    chosen = torch.stack([torch.arange(4) * 3 + n % 3 for n in range(B)])  # another set for each
    mixed = replace_patches(x, donors, chosen, P)
    expected = x.clone()
    for n, patch in itertools.product(range(B), range(ROWS * COLUMNS)):
        if patch in chosen[n]:
            rows, columns = (slice(i * P, (i + 1) * P) for i in divmod(patch, COLUMNS))
            expected[n, :, rows, columns] = donors[n, :, rows, columns]
    assert torch.equal(mixed, expected)
    assert torch.equal(x, before)
    assert torch.equal(replace_patches(x, donors, chosen[:, :0], P), x)
    last = replace_patches(x, donors, torch.full((B, 1), ROWS * COLUMNS - 1), P)
    assert torch.equal(last[..., -P:, -P:], donors[..., -P:, -P:])
    every = torch.arange(ROWS * COLUMNS).repeat(B, 1)
    assert torch.equal(replace_patches(x, donors, every, P), donors)


# The classifier


def test_model_is_a_convolution_and_pytorchs_encoder_layers():
    model, x = random_model(), images()
    kernel = model.embed.weight.view(E, C, P, P)
    tokens = nn.functional.conv2d(x, kernel, model.embed.bias, stride=P).flatten(2).transpose(1, 2)
    tokens = torch.cat([model.class_token.repeat(B, 1, 1), tokens], 1) + model.positions
    expected_weights = []
    for block in model.blocks:
        layer = nn.TransformerEncoderLayer(
            E, H, 2 * E, 0.0, batch_first=True, norm_first=True, dtype=torch.float64
        )
        layer.self_attn = to_torch(block.attention)
        layer.linear1, layer.linear2 = block.feedforward[0], block.feedforward[3]
        layer.norm1, layer.norm2 = block.norm1, block.norm2
        normed = layer.norm1(tokens)
        expected_weights.append(
            layer.self_attn(normed, normed, normed, average_attn_weights=False)[1]
        )
        tokens = layer(tokens)
    expected = model.head(model.norm(tokens[:, 0]))
    logits, weights = model(x, return_weights=True)
    assert weights.shape == (B, LAYERS, H, L, L)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(weights, torch.stack(expected_weights, 1), rtol=0, atol=1e-10)
    torch.testing.assert_close(model(x), logits, rtol=0, atol=1e-10)


def test_image_alone_and_in_a_batch_agree():
    model, x = random_model(), images()
    alone = torch.cat([model(image[None]) for image in x])
    torch.testing.assert_close(model(x), alone, rtol=0, atol=1e-10)


def test_without_positions_the_order_of_the_patches_does_not_matter():
    model, x = random_model(), images()
    order = torch.randperm(L - 1, generator=torch.Generator().manual_seed(1))
    shuffled = unpatchify(patchify(x, P)[:, order], SIZE, P)
    assert not torch.allclose(model(shuffled), model(x))
    moved = copy.deepcopy(model)
    with torch.no_grad():
        moved.positions[1:] = model.positions[1:][order]
    torch.testing.assert_close(moved(shuffled), model(x), rtol=0, atol=1e-10)
    with torch.no_grad():
        model.positions.zero_()
    torch.testing.assert_close(model(shuffled), model(x), rtol=0, atol=1e-10)


def test_positions_differ_by_place_and_every_parameter_gets_a_gradient():
    # L16: one vector for all places would be broadcast in silence
    model = random_model()
    assert model.positions.shape == (L, E)
    model(images()).square().sum().backward()
    for name, parameter in model.named_parameters():
        # a bias of the keys moves all scores of a row alike, and softmax does not see it
        assert (parameter.grad.norm() > 1e-8) == ("k_proj.bias" not in name), name
    assert (model.positions.grad.norm(dim=1) > 0).all()


def test_start_of_class_token_and_positions_is_as_documented_and_layers_differ():
    torch.manual_seed(0)
    model = PatchClassifier((32, 32), 2, 10, embed_dim=64)
    assert model.positions.std().item() == pytest.approx(0.3, rel=0.05)
    assert model.class_token.std().item() == pytest.approx(0.3, rel=0.4)
    first, second = (block.attention.q_proj.weight for block in model.blocks)
    assert not torch.equal(first, second)


def test_default_is_two_layers_of_width_64_with_four_heads_for_grey_images_without_dropout():
    model = PatchClassifier(SIZE, P, CLASSES).train()
    assert model.embed.weight.shape == (64, P * P)
    assert [(block.num_heads, block.dropout.p) for block in model.blocks] == [(4, 0.0)] * 2
    assert {block.feedforward[0].out_features for block in model.blocks} == {2 * 64}
    x = images()[:, :1].float()
    torch.testing.assert_close(model(x), model.eval()(x))


def test_dropout_acts_on_tokens_and_in_training_only():
    model, x = random_model(dropout=0.5), images()
    expected = random_model()(x)
    torch.testing.assert_close(model(x), expected)
    assert not torch.allclose(model.train()(x), expected)
    assert {block.dropout.p for block in model.blocks} == {0.5}
    for block in model.blocks:
        block.eval()  # what is left is the dropout of the tokens
    assert not torch.allclose(model(x), expected)


def test_no_image_gives_no_logits():
    logits, weights = random_model()(images()[:0], return_weights=True)
    assert logits.shape == (0, CLASSES)
    assert weights.shape == (0, LAYERS, H, L, L)


def test_state_saves_and_loads_and_fits_no_other_size():
    model, x = random_model(), images()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    sizes = {"channels": C, "embed_dim": E, "num_heads": H}
    loaded = PatchClassifier(SIZE, P, CLASSES, **sizes).double().eval()
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(loaded(x), model(x))
    with pytest.raises(RuntimeError, match=r"size mismatch for positions: .*\(\[8, 12\]\)"):
        PatchClassifier((3, 21), P, CLASSES, **sizes).load_state_dict(model.state_dict())


def test_model_copies_shows_its_options_and_runs_in_half_precision():
    model, x = random_model(), images()
    torch.testing.assert_close(copy.deepcopy(model)(x), model(x))
    assert f"image_size={SIZE}, patch_size={P}, channels={C}" in repr(model)
    assert model.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    model = model.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x.float()).isfinite().all()
        assert model(x.bfloat16()).isfinite().all()


# Rollout


def test_embedding_of_patches_may_be_pruned():
    model, x = random_model().double(), images().double()
    prune.l1_unstructured(model.embed, "weight", 0.5)
    assert model.float()(x.float()).dtype == torch.float32
    said = "got the model's weights torch.float32 and images torch.float64"
    refuses(TypeError, f"all inputs must have one dtype; {said}", model, x)


def weights_of(*shape):
    return draw(*shape).softmax(-1)


def test_rollout_is_the_sum_over_all_paths():
    # the definition as paths: at each layer a token stays, or goes to a key of the mean head
    weights = weights_of(B, 3, H, 4, 4)
    mean, n = weights.mean(2), 4
    total = torch.zeros(B, n, n, dtype=torch.float64)
    for path in itertools.product(range(n), repeat=4):  # token after layer 3, 2, 1, and the input
        steps = [(mean[:, 2 - i, a, b] + (a == b)) / 2 for i, (a, b) in
                 enumerate(itertools.pairwise(path))]  # fmt: skip
        total[:, path[0], path[-1]] += torch.stack(steps).prod(0)
    torch.testing.assert_close(rollout(weights), total)


def test_rollout_rows_sum_to_1_and_one_layer_is_half_mean_half_identity():
    weights = weights_of(B, 3, H, 7, 7)
    torch.testing.assert_close(rollout(weights).sum(-1), torch.ones(B, 7, dtype=torch.float64))
    one = (weights[:, 0].mean(1) + torch.eye(7)) / 2
    torch.testing.assert_close(rollout(weights[:, :1]), one)
    torch.testing.assert_close(rollout(weights[0]), rollout(weights)[0])


def test_rollout_of_no_layers_leaves_every_token_where_it_is():
    assert torch.equal(rollout(weights_of(B, 0, H, 7, 7)), torch.eye(7).double().repeat(B, 1, 1))


def test_default_device_does_not_matter_to_weights_that_have_one():
    weights = weights_of(B, 3, H, 7, 7)
    expected = rollout(weights)
    with torch.device("meta"):
        assert torch.equal(rollout(weights), expected)


def test_rollout_sees_neither_the_last_values_nor_the_classes():
    model, x = random_model(), images()
    logits, weights = model(x, return_weights=True)
    with torch.no_grad():
        for parameter in (
            *model.blocks[-1].attention.v_proj.parameters(),
            *model.head.parameters(),
        ):
            parameter.mul_(-2)
    other, same = model(x, return_weights=True)
    assert not torch.allclose(other, logits)
    assert torch.equal(rollout(same), rollout(weights))


# Refusals, as a user meets them


def refuses(error, message, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert str(caught.value) == message


@pytest.mark.refusal
def test_refuses_images_and_patches_that_do_not_fit():
    x = torch.zeros(1, 1, 8, 9)
    rule = "patch_size must divide height and width; got patch_size = 2, image"
    refuses(ValueError, f"{rule} 8 x 9", patchify, x, 2)
    refuses(ValueError, f"{rule} 9 x 8", patchify, x.mT, 2)
    refuses(ValueError, f"{rule} 8 x 9", unpatchify, x[0], (8, 9), 2)
    refuses(ValueError, f"{rule} 8 x 9", PatchClassifier, (8, 9), 2, 10)
    message = "images must have shape (batch, channels, height, width); got (8, 9)"
    refuses(ValueError, message, patchify, x[0, 0], 2)
    refuses(TypeError, "images must be a torch.Tensor; got list", patchify, [x], 2)
    refuses(TypeError, "patches must be a torch.Tensor; got list", unpatchify, [x], (8, 8), 2)
    refuses(TypeError, "patch_size must be an integer; got 2.0", patchify, x, 2.0)
    refuses(TypeError, "patch_size must be an integer; got True", patchify, x, True)
    refuses(ValueError, "patch_size must be at least 1; got 0", patchify, x, 0)
    rule = "patches must have shape (batch, 4, channels * 9) for an image of (6, 6) pixels; got"
    for shape in ((1, 5, 9), (1, 4, 10), (1, 4, 12), (4, 9), (1, 4, 9, 9)):
        refuses(ValueError, f"{rule} {shape}", unpatchify, torch.zeros(shape), (6, 6), 3)


@pytest.mark.refusal
def test_refuses_donors_and_numbers_of_patches_that_do_not_fit():
    x, chosen = torch.zeros(2, 1, 6, 9), torch.zeros(2, 4, dtype=torch.long)
    rule = "donors must have the shape of the images, and chosen the shape (batch, count); got"
    for donors, numbers in ((x[:1], chosen), (x, chosen[:1]), (x, chosen[0])):
        got = f"images (2, 1, 6, 9), donors {tuple(donors.shape)}, chosen {tuple(numbers.shape)}"
        refuses(ValueError, f"{rule} {got}", replace_patches, x, donors, numbers, 3)
    for wrong in (6, -1):
        message = f"chosen must hold numbers from 0 to 5; got {min(wrong, 0)} to {max(wrong, 0)}"
        chosen[1, 2] = wrong
        refuses(ValueError, message, replace_patches, x, x, chosen, 3)
    message = "chosen must be an int64 tensor; got"
    refuses(TypeError, f"{message} list", replace_patches, x, x, [[0]], 3)
    refuses(TypeError, f"{message} torch.int32", replace_patches, x, x, chosen.int(), 3)
    refuses(
        TypeError, "images must be a torch.Tensor; got list", replace_patches, [x], x, chosen, 3
    )
    refuses(
        TypeError, "donors must be a torch.Tensor; got list", replace_patches, x, [x], chosen, 3
    )
    message = "all inputs must have one dtype; got images torch.float32 and donors torch.float64"
    refuses(TypeError, message, replace_patches, x, x.double(), chosen, 3)


@pytest.mark.refusal
def test_refuses_sizes_of_a_model():
    def refused(error, message, size=(8, 8), classes=10, **options):
        refuses(error, message, PatchClassifier, size, 2, classes, **options)

    refused(ValueError, "image_size must be at least 1; got 0", size=(0, 8))
    refused(TypeError, "image_size must be an integer; got 8.0", size=(8, 8.0))
    rule = "image_size must be a pair, (height, width); got"
    refused(TypeError, f"{rule} (8, 8, 8)", size=(8, 8, 8))
    refused(TypeError, f"{rule} 8", size=8)
    refused(ValueError, "num_classes must be at least 1; got 0", classes=0)
    refused(ValueError, "num_layers must be at least 1; got 0", num_layers=0)
    refused(ValueError, "channels must be at least 1; got 0", channels=0)
    message = (
        "num_heads must divide embed_dim, each head takes embed_dim / num_heads of it; "
        "got embed_dim = 64, num_heads = 5"
    )
    refused(ValueError, message, num_heads=5)
    refused(ValueError, "dropout must be a probability between 0 and 1; got 2", dropout=2)


@pytest.mark.refusal
def test_refuses_images_that_the_model_was_not_made_for():
    model = PatchClassifier((8, 8), 2, 10)
    rule = "images must have shape (batch, channels, height, width) = (batch, 1, 8, 8); got"
    for shape in ((3, 8, 8), (3, 3, 8, 8), (3, 1, 8, 10), (1, 8, 8, 1)):
        refuses(ValueError, f"{rule} {shape}", model, torch.zeros(shape))
    x = torch.zeros(3, 1, 8, 8)
    refuses(TypeError, "images must be a torch.Tensor; got ndarray", model, x.numpy())
    refuses(TypeError, "images must have a real floating dtype; got torch.int64", model, x.long())
    rule = "got the model's weights torch.float32 and images torch.float64"
    refuses(TypeError, f"all inputs must have one dtype; {rule}", model, x.double())
    rule = "got the model's weights on cpu and images on meta"
    refuses(ValueError, f"all inputs must be on one device; {rule}", model, x.to("meta"))


@pytest.mark.refusal
def test_refuses_weights_that_cannot_be_rolled_out():
    rule = "weights must have shape (..., layers, heads, tokens, tokens); got"
    for shape in ((4, 7, 7), (2, 4, 7, 5)):
        refuses(ValueError, f"{rule} {shape}", rollout, torch.zeros(shape))
    message = "weights must have a real floating dtype; got torch.int64"
    refuses(TypeError, message, rollout, torch.zeros(1, 2, 3, 3).long())
