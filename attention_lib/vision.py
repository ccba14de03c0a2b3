"""Chapter 11: attention over the patches of an image, and what its maps can say."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from attention_lib import _arguments, _validate
from attention_lib.block import TransformerBlock


def patchify(
    images: Num[Tensor, "b channels height width"], patch_size: int
) -> Num[Tensor, "b patch features"]:
    """The square patches of each image, row by row, each as one vector.

    Patch ``i * columns + j`` holds the pixels of rows ``i * patch_size`` to
    ``(i + 1) * patch_size - 1`` and of the columns counted by j in the same way. Its vector holds
    the first channel row by row, then the next channel.

    Args:
        images: ``(batch, channels, height, width)``.
        patch_size: Side of a patch in pixels; divides height and width.

    Returns:
        ``(batch, patches, channels * patch_size ** 2)``.

    Raises:
        TypeError: Not a tensor, or a patch size that is not an integer.
        ValueError: Not four axes, or patches that do not divide the image.

    Source:
        Dosovitskiy et al., "An image is worth 16x16 words", 2021, section 3.1.

    Example:
        >>> patchify(torch.arange(8).view(1, 1, 2, 4), patch_size=2).tolist()
        [[[0, 1, 4, 5], [2, 3, 6, 7]]]
    """
    _arguments.tensor("images", images)
    if images.ndim != 4:
        raise ValueError(
            f"images must have shape (batch, channels, height, width); got {tuple(images.shape)}"
        )
    rows, columns = _grid(images.shape[2:], patch_size)
    batch, channels = images.shape[:2]
    cut = images.reshape(batch, channels, rows, patch_size, columns, patch_size)
    # (b, row, column, channel, row inside, column inside), then two groups of axes joined
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpatchify(
    patches: Num[Tensor, "b patch features"], image_size: tuple[int, int], patch_size: int
) -> Num[Tensor, "b channels height width"]:
    """The images that :func:`patchify` was given.

    Args:
        patches: ``(batch, patches, channels * patch_size ** 2)``.
        image_size: Height and width of an image in pixels.
        patch_size: Side of a patch in pixels; divides height and width.

    Returns:
        ``(batch, channels, height, width)``.

    Raises:
        TypeError: Patches that are not a tensor, or a size that is not an integer.
        ValueError: Patches that do not divide the image, or do not fill it.

    Example:
        >>> unpatchify(torch.tensor([[[0, 1, 4, 5], [2, 3, 6, 7]]]), (2, 4), 2).tolist()
        [[[[0, 1, 2, 3], [4, 5, 6, 7]]]]
    """
    _arguments.tensor("patches", patches)
    rows, columns = _grid(image_size, patch_size)
    shape = tuple(patches.shape)
    if len(shape) != 3 or shape[1] != rows * columns or shape[2] % patch_size**2:
        raise ValueError(
            f"patches must have shape (batch, {rows * columns}, channels * {patch_size**2}) for an "
            f"image of {tuple(image_size)} pixels; got {shape}"
        )
    channels = shape[2] // patch_size**2
    cut = patches.reshape(shape[0], rows, columns, channels, patch_size, patch_size)
    return cut.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def replace_patches(
    images: Num[Tensor, "b channels height width"],
    donors: Num[Tensor, "b channels height width"],
    chosen: Int[Tensor, "b count"],
    patch_size: int,
) -> Num[Tensor, "b channels height width"]:
    """The images with some patches of each taken from another image, at the same places.

    Args:
        images: ``(batch, channels, height, width)``.
        donors: Of the same shape: image n gets patches of donor n. Zeros erase a patch.
        chosen: ``(batch, count)``, for each image the numbers of its patches to replace.
        patch_size: Side of a patch in pixels; divides height and width.

    Returns:
        New images of the same shape; the arguments stay as they are.

    Raises:
        TypeError: Not tensors of one dtype, numbers of patches that are not int64, or a patch size
            that is not an integer.
        ValueError: Shapes or devices that do not fit together, or a patch that is not there.

    Example:
        >>> zeros, ones = torch.zeros(1, 1, 1, 3), torch.ones(1, 1, 1, 3)
        >>> replace_patches(zeros, ones, torch.tensor([[2, 0]]), patch_size=1).tolist()
        [[[[1.0, 0.0, 1.0]]]]
    """
    _arguments.tensor("images", images)
    _arguments.tensor("donors", donors)
    _validate._same_kind("donors", donors, "images", images)
    if not isinstance(chosen, Tensor) or chosen.dtype != torch.int64:
        raise TypeError(f"chosen must be an int64 tensor; got {_arguments.kind(chosen)}")
    if donors.shape != images.shape or chosen.ndim != 2 or len(chosen) != len(images):
        raise ValueError(
            "donors must have the shape of the images, and chosen the shape (batch, count); got "
            f"images {tuple(images.shape)}, donors {tuple(donors.shape)}, chosen "
            f"{tuple(chosen.shape)}"
        )
    patches, others = patchify(images, patch_size), patchify(donors, patch_size)
    if chosen.numel() and not 0 <= chosen.min() <= chosen.max() < patches.shape[1]:
        raise ValueError(
            f"chosen must hold numbers from 0 to {patches.shape[1] - 1}; "
            f"got {chosen.min().item()} to {chosen.max().item()}"
        )
    index = chosen[..., None].expand(-1, -1, patches.shape[2])
    mixed = patches.scatter(1, index, others.gather(1, index))
    return unpatchify(mixed, images.shape[2:], patch_size)


class PatchClassifier(nn.Module):
    """A classifier of images: blocks over the patches and one more token, which is then read.

    Each patch is projected to ``embed_dim``. The class token, a learned vector, comes before the
    patches, and a learned vector for each place is added. After the blocks the class token goes
    through a norm and a linear layer, to one logit for each class.

    Args:
        image_size: Height and width of an image in pixels.
        patch_size: Side of a patch in pixels; divides height and width.
        num_classes: Number of classes.
        embed_dim: Width of a token.
        num_heads: Number of heads; divides ``embed_dim``.
        num_layers: Number of blocks.
        channels: Number of channels, 1 for grey images.
        dropout: Probability with which a number is dropped in training.

    Attributes:
        embed: A :class:`torch.nn.Linear` layer from a patch to a token.
        class_token: ``(embed_dim,)``.
        positions: ``(1 + patches, embed_dim)``, the class token's first.
        blocks: The :class:`~attention_lib.block.TransformerBlock` layers, norm first, with a hidden
            layer of ``2 * embed_dim``.
        norm, head: The norm and the linear layer of the class token.

    Raises:
        TypeError: A size that is not an integer.
        ValueError: A size below 1, patches or heads that do not divide, a dropout that is no
            probability.

    Source:
        Dosovitskiy et al., 2021, equations 1 to 4. Class token and positions start with a standard
        deviation of 0.3, about as large as a projected patch, and not with the usual 0.02: small
        positions must grow before the model can tell two places apart.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: int,
        num_classes: int,
        embed_dim: int = 64,
        num_heads: int = 4,
        num_layers: int = 2,
        channels: int = 1,
        dropout: float = 0.0,
    ):
        super().__init__()
        _validate.layer_sizes(
            embed_dim=embed_dim, num_heads=num_heads, num_classes=num_classes,
            num_layers=num_layers, channels=channels, dropout=dropout,
        )  # fmt: skip
        rows, columns = _grid(image_size, patch_size)
        self.image_size, self.patch_size, self.channels = tuple(image_size), patch_size, channels
        self.embed = nn.Linear(channels * patch_size**2, embed_dim)
        self.class_token = nn.Parameter(0.3 * torch.randn(embed_dim))
        self.positions = nn.Parameter(0.3 * torch.randn(1 + rows * columns, embed_dim))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(embed_dim, num_heads, 2 * embed_dim, dropout)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(
        self, images: Float[Tensor, "b channels height width"], return_weights: bool = False
    ) -> (
        Float[Tensor, "b classes"]
        | tuple[Float[Tensor, "b classes"], Float[Tensor, "b layer h token token"]]
    ):
        """One logit for each image and class.

        Args:
            images: ``(batch, channels, height, width)``, of the sizes the model was made for.
            return_weights: Return the weights as well; nothing else changes.

        Returns:
            The logits ``(batch, num_classes)``. With ``return_weights`` a pair: the logits and
            the weights of all layers, ``(batch, num_layers, num_heads, 1 + patches, 1 + patches)``
            before dropout. Token 0 is the class token.

        Raises:
            TypeError: Not a tensor, or not of the model's dtype (autocast may bring another one).
            ValueError: Another shape, or another device than the model's.
        """
        _arguments.float_tensor("images", images)
        _arguments.flags(return_weights=return_weights)
        _validate._same_kind(
            "images", images, "the model's weights", _validate._weight(self.embed), True
        )
        expected = (self.channels, *self.image_size)
        if tuple(images.shape[1:]) != expected:
            raise ValueError(
                "images must have shape (batch, channels, height, width) = "
                f"(batch, {', '.join(map(str, expected))}); got {tuple(images.shape)}"
            )
        patches = self.embed(patchify(images, self.patch_size))
        first = self.class_token.expand(len(images), 1, -1)
        x = self.dropout(torch.cat((first, patches), dim=1) + self.positions)
        weights = []
        for block in self.blocks:
            x = block(x, return_weights=return_weights)
            if return_weights:
                x, weights_of_block = x
                weights.append(weights_of_block)
        logits = self.head(self.norm(x[:, 0]))
        return (logits, torch.stack(weights, dim=1)) if return_weights else logits

    def extra_repr(self) -> str:
        """The sizes of image and patch, for ``print``."""
        return (
            f"image_size={self.image_size}, patch_size={self.patch_size}, channels={self.channels}"
        )


def rollout(
    weights: Float[Tensor, "*batch layer h token token"],
) -> Float[Tensor, "*batch token token"]:
    """Where the tokens after all layers come from, if attention and residuals were all there is.

    Each layer mixes the tokens by the mean of its heads, and half of each token stays where it
    is, which stands for the residual. The product of the layers, the last one on the left, is the
    rollout. It knows nothing of values, of the feed-forward parts or of the classes.

    Args:
        weights: ``(..., layers, heads, tokens, tokens)``, of all layers from first to last.

    Returns:
        ``(..., tokens, tokens)``; each row sums to 1.

    Raises:
        TypeError: Not a float tensor.
        ValueError: Less than four axes, or as many keys as queries missing.

    Source:
        Abnar and Zuidema, "Quantifying attention flow in transformers", 2020, section 3.

    Example:
        >>> rollout(torch.full((1, 3, 2, 2), 0.5))
        tensor([[0.7500, 0.2500],
                [0.2500, 0.7500]])
    """
    _arguments.float_tensor("weights", weights)
    if weights.ndim < 4 or weights.shape[-1] != weights.shape[-2]:
        raise ValueError(
            "weights must have shape (..., layers, heads, tokens, tokens); "
            f"got {tuple(weights.shape)}"
        )
    identity = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    total = identity.expand(*weights.shape[:-4], *identity.shape)
    for layer in weights.mean(dim=-3).unbind(dim=-3):
        total = (layer + identity) / 2 @ total
    return total


def _grid(image_size, patch_size):
    """Number of patches from top to bottom and from left to right."""
    if not isinstance(image_size, Sequence) or len(image_size) != 2:
        raise TypeError(f"image_size must be a pair, (height, width); got {image_size!r}")
    height, width = image_size
    _arguments.positive(patch_size=patch_size)
    for size in image_size:
        _arguments.positive(image_size=size)
    if height % patch_size or width % patch_size:
        raise ValueError(
            "patch_size must divide height and width; "
            f"got patch_size = {patch_size}, image {height} x {width}"
        )
    return height // patch_size, width // patch_size
