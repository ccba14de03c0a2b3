"""The training loop of chapters 7 to 16, and the figures of long runs."""

import json
import math
from collections.abc import Callable
from importlib.resources import files

import torch
from torch import Tensor, nn
from tqdm import tqdm


def train(
    model: nn.Module,
    loss: Callable[[], Tensor],
    steps: int,
    learning_rate: float = 3e-3,
    weight_decay: float = 0.0,
) -> list[float]:
    """Train the model and return the loss of every step.

    Adam with decoupled weight decay; the rate rises over the first tenth of the steps and falls
    as a cosine to almost 0; gradients are clipped to norm 1. The model is in training mode
    meanwhile and in evaluation mode afterwards. A person sees a progress bar; the environment
    variable ``TQDM_DISABLE=1`` hides it. An interrupt ends the training early and keeps what was
    learned.

    Args:
        model: Its parameters are changed in place.
        loss: Called without arguments once a step; draws a batch and returns a scalar.
        steps: Number of steps.
        learning_rate: The largest rate.
        weight_decay: As in :class:`torch.optim.AdamW`.

    Returns:
        One number a step, ``steps`` of them, or fewer after an interrupt.

    Raises:
        ValueError: ``steps`` below 1.
        FloatingPointError: The loss is NaN or infinite; the message names the step.

    Example:
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> losses = train(model, lambda: (model.weight - 2).square().sum(), 200, 0.1)
        >>> bool(losses[-1] < 1e-3)
        True
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1; got {steps}")
    # the rate of every step is set by OneCycleLR
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=weight_decay)
    rise = 0.1 if steps != 10 else 0.11  # of 10 steps a tenth is 0 to PyTorch, which divides by it
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, steps, pct_start=rise)
    losses = []
    model.train()
    try:
        for step in tqdm(range(steps), leave=False):
            optimizer.zero_grad()
            value = loss()
            losses.append(value.item())
            if not math.isfinite(losses[-1]):
                raise FloatingPointError(f"the loss is {losses[-1]} at step {step}")
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rate.step()
    except KeyboardInterrupt:
        print(f"interrupted after {len(losses)} of {steps} steps; the model keeps what it learned")
    finally:
        model.eval()
    return losses


def recorded(name: str) -> dict:
    """Figures that take longer than a chapter may: a training with several seeds, mostly.

    Args:
        name: Name of the chapter's module.

    Returns:
        ``{"date": …, "machine": …, "versions": {…}, "runs": [{"seed": …, "seconds": …, …}, …]}``.

    Raises:
        ValueError: Nothing of this name was recorded.
    """
    folder = files("attention_lib") / "recorded"
    names = sorted(path.name.removesuffix(".json") for path in folder.iterdir())
    if name not in names:
        raise ValueError(f"name must be one of {names}; got {name!r}")
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
