"""The training loop does what it says, and says what went wrong."""

import math
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from attention_lib import training


def line(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(31, 3, generator=generator)
    model = nn.Linear(3, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    target = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 3
    return model, lambda: (model(x) - target).square().mean()


def test_training_finds_the_line_and_returns_every_loss():
    model, loss = line()
    losses = training.train(model, loss, steps=300, learning_rate=0.3)
    assert len(losses) == 300
    assert losses[-1] < 1e-4 * losses[0]
    torch.testing.assert_close(model.bias, torch.tensor([3.0]), atol=1e-2, rtol=0)


def test_two_runs_are_equal():
    first, second = (training.train(*line(), steps=20) for _ in range(2))
    assert first == second


def test_weight_decay_pulls_weights_to_zero():
    model = nn.Linear(2, 1)
    before = model.weight.norm()
    training.train(model, lambda: 0 * model.weight.sum(), 50, 0.1, weight_decay=1.0)
    assert model.weight.norm() < 0.2 * before


def test_model_trains_in_training_mode_and_is_left_in_evaluation_mode():
    model, loss = line()
    modes = []
    training.train(model, lambda: (modes.append(model.training), loss())[1], steps=2)
    assert modes == [True, True]
    assert not model.training


def test_one_long_step_is_clipped():
    model = nn.Linear(1, 1, bias=False)
    norms = []
    model.weight.register_post_accumulate_grad_hook(lambda p: norms.append(p.grad.norm().item()))
    optimizer_saw = []
    step = torch.optim.AdamW.step

    def seen(self, *arguments):
        optimizer_saw.append(model.weight.grad.norm().item())
        return step(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", seen)
        training.train(model, lambda: 1e6 * model.weight.sum(), steps=1)
    assert norms == [1e6]
    assert optimizer_saw == [pytest.approx(1)]


def test_an_interrupt_keeps_what_was_learned(capsys):
    model, loss = line()
    calls = iter(range(100))

    def interrupted():
        if next(calls) == 7:
            raise KeyboardInterrupt
        return loss()

    losses = training.train(model, interrupted, steps=50)
    assert len(losses) == 7
    assert losses[-1] < losses[0]
    assert not model.training
    assert "interrupted after 7 of 50 steps" in capsys.readouterr().out


@pytest.mark.parametrize(("disable", "seen"), [("1", False), ("", True)])
def test_a_person_sees_a_progress_bar_and_a_stored_run_does_not(disable, seen):
    code = (
        "import torch; from attention_lib.training import train; m = torch.nn.Linear(1, 1);"
        "train(m, lambda: m.weight.sum(), steps=3)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TQDM_DISABLE": disable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == ""
    assert ("0/3" in run.stderr) is seen


@pytest.mark.refusal
def test_a_loss_that_is_not_finite_is_named_with_its_step():
    model, loss = line()
    calls = iter([1.0, 1.0, math.nan])
    with pytest.raises(FloatingPointError, match="the loss is nan at step 2"):
        training.train(model, lambda: loss() * next(calls), steps=9)


@pytest.mark.refusal
def test_no_steps_and_unknown_records_are_refused():
    with pytest.raises(ValueError, match="steps must be at least 1; got 0"):
        training.train(*line(), steps=0)
    with pytest.raises(ValueError, match=r"name must be one of \[.*\]; got 'nothing'"):
        training.recorded("nothing")
