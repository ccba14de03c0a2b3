"""The training loop does what it says, and says what went wrong."""

import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from tqdm import tqdm

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


def watch_steps(monkeypatch, watch):
    """Call ``watch`` with the optimizer before each of its steps."""
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self, *others: (watch(self), step(self, *others))[1]
    )


def test_one_long_step_is_clipped(monkeypatch):
    model = nn.Linear(1, 1, bias=False)
    norms = []
    model.weight.register_post_accumulate_grad_hook(lambda p: norms.append(p.grad.norm().item()))
    optimizer_saw = []
    watch_steps(monkeypatch, lambda _: optimizer_saw.append(model.weight.grad.norm().item()))
    training.train(model, lambda: 1e6 * model.weight.sum(), steps=1)
    assert norms == [1e6]
    assert optimizer_saw == [pytest.approx(1)]


def test_short_steps_are_not_clipped_and_gradients_do_not_add_up(monkeypatch):
    model = nn.Linear(1, 1, bias=False)
    seen = []
    watch_steps(monkeypatch, lambda _: seen.append(model.weight.grad.item()))
    training.train(model, lambda: 0.5 * model.weight.sum(), steps=3)
    assert seen == [0.5] * 3


def test_rate_rises_over_a_tenth_of_the_steps_and_falls_as_a_cosine_to_almost_0(monkeypatch):
    seen = []
    watch_steps(monkeypatch, lambda optimizer: seen.append(dict(optimizer.param_groups[0])))
    training.train(*line(), steps=50)
    assert {group["weight_decay"] for group in seen} == {0}
    top, rates = 3e-3, [group["lr"] for group in seen]
    assert rates[:5] == sorted(rates[:5])
    assert rates[0] < top / 20
    falling = [top * (1 + math.cos(math.pi * i / 45)) / 2 for i in range(46)]
    assert rates[4:] == pytest.approx(falling, abs=1e-4 * top)
    seen.clear()
    training.train(*line(), 50, 0.5, weight_decay=0.25)
    assert max(group["lr"] for group in seen) == pytest.approx(0.5)
    assert {group["weight_decay"] for group in seen} == {0.25}


@pytest.mark.parametrize("steps", range(1, 41))
def test_any_number_of_steps_ends_at_almost_0(steps, monkeypatch):
    rates = []
    watch_steps(monkeypatch, lambda optimizer: rates.append(optimizer.param_groups[0]["lr"]))
    assert len(training.train(*line(), steps)) == len(rates) == steps
    assert max(rates) <= 3e-3
    assert steps == 1 or rates[-1] < 1e-6


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
    said = capsys.readouterr().out
    assert said == "interrupted after 7 of 50 steps; the model keeps what it learned\n"


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


def test_bar_goes_away_at_the_end(monkeypatch, capsys):
    monkeypatch.setattr(training, "tqdm", partial(tqdm, disable=False))
    training.train(*line(), steps=3)
    shown = capsys.readouterr().err.rstrip("\r").split("\r")
    assert "0/3" in shown[1]
    assert not shown[-1].strip()


def test_record_has_where_and_when_it_was_made_and_its_runs():
    record = training.recorded("classifier")
    assert set(record) == {"date", "machine", "versions", "runs"}
    assert all("seed" in run and run["seconds"] > 0 for run in record["runs"])


def refuses(error, message, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert str(caught.value) == message


@pytest.mark.refusal
def test_a_loss_that_is_not_finite_is_named_with_its_step():
    model, loss = line()
    calls = iter([1.0, 1.0, math.nan])
    message = "the loss is nan at step 2"
    refuses(FloatingPointError, message, training.train, model, lambda: loss() * next(calls), 9)


@pytest.mark.refusal
def test_no_steps_and_unknown_records_are_refused():
    refuses(ValueError, "steps must be at least 1; got 0", training.train, *line(), steps=0)
    folder = Path(training.__file__).with_name("recorded")
    names = sorted(path.stem for path in folder.glob("*.json"))
    message = f"name must be one of {names}; got 'nothing'"
    refuses(ValueError, message, training.recorded, "nothing")
