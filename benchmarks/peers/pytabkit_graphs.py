"""pytabkit's training steps, recorded once as a CUDA graph and replayed: for scores, not for times.

What is computed stays pytabkit's, and torch's Adam. Rates, decays and dropout, which change from
step to step, are read from a table on the device that pytabkit's own schedules have filled.
Predictions then differ by rounding and by the masks of dropout. On the CPU nothing is recorded.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["replay_steps"]

EAGER_STEPS = 3  # that come before the recording
# Of a rate of 0, as the first one is, the Adam that can be recorded makes 0 / 0.
LEAST_RATE = 1e-20


class Replayed:
    """A step, a function of tensors of one shape: recorded after some calls, then replayed."""

    def __init__(self, step: Callable[..., torch.Tensor]) -> None:
        self.step, self.num_calls = step, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        if self.num_calls <= EAGER_STEPS or not tensors[0].is_cuda:
            return self.step(*tensors)
        if self.graph is None:
            self.inputs = [each.clone() for each in tensors]
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = self.step(*self.inputs)
        for own, each in zip(self.inputs, tensors, strict=True):
            own.copy_(each)
        self.graph.replay()
        return self.loss


def replay_steps() -> None:
    """Let pytabkit's TabM and RealMLP replay their steps from now on."""
    _replay_tabm()
    _replay_realmlp()


def _replay_tabm() -> None:
    """Compile its `fit` anew, with the loop's body as a function."""
    from pytabkit.models.alg_interfaces import tabm_interface as module

    source = textwrap.dedent(inspect.getsource(module.TabMSubSplitInterface.fit))
    start = source.index("            optimizer.zero_grad(set_to_none=True)\n")
    end = source.index("        val_score = evaluate('val')")
    body = textwrap.indent(textwrap.dedent(source[start:end]), "        ")
    call = "            replayed.setdefault(len(batch_idx), Replayed(step))(batch_idx)\n\n"
    source = source[:start] + call + source[end:]
    loop = "    for epoch in range(n_epochs):\n"
    step = f"    def step(batch_idx):\n{body}        return loss.detach()\n    replayed = {{}}\n"
    for old, new in (
        (loop, step + loop),
        (
            "weight_decay=weight_decay)",
            "weight_decay=weight_decay, capturable=device.type == 'cuda')",
        ),
        # A graph of the clones would keep nodes that add gradients on another stream.
        (
            "[p.clone() for p in model.parameters()]",
            "[p.detach().clone() for p in model.parameters()]",
        ),
    ):
        if source.count(old) != 1:
            raise SystemExit(f"expected pytabkit 1.7.3, with {old.strip()!r} once in TabM's fit")
        source = source.replace(old, new)
    names = {**vars(module), "Replayed": Replayed}
    exec(compile(source, "pytabkit's fit", "exec"), names)
    module.TabMSubSplitInterface.fit = names["fit"]


class _Numbers:
    """What schedules say of each step of a fit, on the device, and which step it is."""

    def __init__(self, module: Any, optimizer: Any) -> None:
        self.groups = optimizer.opt.param_groups
        self.layers = [each for each in module.modules() if type(each).__name__ == "DropoutLayer"]
        batches = len(module.train_dl)
        rows = []
        for number in range(module.progress.max_epochs * batches):
            module.progress.epoch_float = number / batches
            module.hp_manager.update_hypers(module)
            rows.append(self._row(optimizer))
        module.progress.epoch_float = 0.0
        module.hp_manager.update_hypers(module)
        device = self.groups[0]["params"][0].device
        self.rows = torch.tensor(rows, dtype=torch.float32, device=device)
        self.number = torch.zeros(1, dtype=torch.long, device=device)
        for idx, group in enumerate(self.groups):
            group["betas"] = tuple(optimizer.get_hyper_values(b, idx) for b in ("mom", "sq_mom"))
            group["eps"] = optimizer.get_hyper_values("opt_eps", idx)
            group["capturable"] = device.type == "cuda"

    def _row(self, optimizer: Any) -> list[float]:
        rates, kept = [], []
        for idx, group in enumerate(self.groups):
            factors = group["params"][0].hyper_factors
            rates.append(max(optimizer.get_hyper_values("lr", idx), LEAST_RATE))
            decay = optimizer.get_hyper_values("wd", idx) * factors.get("wd", 1.0)
            kept.append(1 - decay * rates[-1] * factors.get("lr", 1.0))
        return [*rates, *kept, *(layer.hyper_getter() for layer in self.layers)]

    def take(self) -> None:
        """Give layers and groups what this step has, and go on to the next."""
        row, count = self.rows.index_select(0, self.number)[0], len(self.groups)
        for idx, layer in enumerate(self.layers, 2 * count):
            layer.rate = row[idx]
        for idx, group in enumerate(self.groups):
            group["lr"], group["kept"] = row[idx], row[count + idx]
        self.number.add_(1)


class _Steps:
    """The steps of one fit of RealMLP."""

    def __init__(self, module: Any, names: list[str]) -> None:
        self.module, self.names = module, names
        self.optimizer = module.optimizers().optimizer
        self.numbers = _Numbers(module, self.optimizer)
        self.replayed = Replayed(self._step)

    def _step(self, *tensors: torch.Tensor) -> torch.Tensor:
        self.numbers.take()
        output = self.module.model(dict(zip(self.names, tensors, strict=True)))
        loss: torch.Tensor = self.module.criterion(output["x_cont"], output["y"]).sum()
        loss.backward()
        with torch.no_grad():
            for group in self.numbers.groups:
                group["params"][0].mul_(group["kept"])
        self.optimizer.opt.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def end(self) -> None:
        """Leave nothing of the device in what pytabkit keeps."""
        for layer in self.numbers.layers:
            del layer.rate
        for group in self.numbers.groups:
            del group["lr"], group["kept"]


def _replay_realmlp() -> None:
    from pytabkit.models.nn_models.nn import DropoutLayer
    from pytabkit.models.training.lightning_modules import TabNNModule

    eager, ended, fits = DropoutLayer.forward_cont, TabNNModule.on_fit_end, dict[int, _Steps]()

    def dropped(layer: Any, x: torch.Tensor) -> Any:
        if not (layer.training and hasattr(layer, "rate")):
            return eager(layer, x)
        return x * (torch.rand_like(x) >= layer.rate) / (1 - layer.rate)

    def training_step(module: Any, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        if id(module) not in fits:
            fits[id(module)] = _Steps(module, sorted(batch))
        steps = fits[id(module)]
        loss = steps.replayed(*(batch[name] for name in steps.names))
        progress = module.progress
        progress.total_samples += batch["y"].shape[-2]
        progress.epoch_float = progress.total_samples / module.train_dl.get_num_iterated_samples()
        return loss

    def on_fit_end(module: Any) -> None:
        fits.pop(id(module)).end()
        ended(module)

    DropoutLayer.forward_cont = dropped
    TabNNModule.training_step, TabNNModule.on_fit_end = training_step, on_fit_end
