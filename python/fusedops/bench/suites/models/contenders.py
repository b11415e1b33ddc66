"""One model in each of the ways that are compared: plain, ours, compiled, patched by Liger."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import fusedops
from fusedops.bench.suites.base import PeerUnavailableError

from .spec import layers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

    from fusedops.bench.suites.base import Call

    from .spec import Loaded, Model

VARIANTS = ("fuse", "inductor", "fuse_compile", "inductor_graphs")  # ours
PEERS = ("eager", "compile", "compile_whole", "compile_graphs", "liger")
GRAPHS = "_graphs"  # in CUDA graphs
RECORDING = 3  # calls until CUDA graphs of forward and backward are replayed
Results = dict[str, Tensor]  # the loss and the gradients by name, or the output
Globals = dict[ModuleType, dict[str, Any]]
Context = Callable[[], contextlib.AbstractContextManager[Any]]


def make(name: str, loaded: Loaded, pass_: str) -> Call:
    """What runs one step or one inference of the model in the way `name`.

    Our own run forward inside fast_attention, which is torch's attention in another order.
    """
    module = loaded.module if name == "eager" else loaded.twin()
    module.train(pass_ == "step")
    function = loaded.spec.loss if pass_ == "step" else loaded.spec.output
    if name in ("fuse", "fuse_compile"):
        fusedops.fuse(module)
    if name == "fuse" and pass_ == "step" and loaded.spec.criterion is not None:
        function = fused_loss(loaded.spec)
    around: Context = fusedops.fast_attention if name in VARIANTS else contextlib.nullcontext
    if name == "liger":
        return _patched(liger(module), as_pass(loaded, module, function, pass_))
    if name == "compile" and layers(module):
        for layer in layers(module):
            layer.compile(dynamic=False)
    elif name not in ("eager", "fuse"):
        function = torch.compile(own_code(function, name), dynamic=False, **_options(name))
    call = as_pass(loaded, module, function, pass_, around)
    return recorded(call) if name.endswith(GRAPHS) else call


def fused_loss(spec: Model) -> Callable[..., Tensor]:
    """The loss of a model whose criterion stands beside it."""
    assert spec.criterion is not None
    criterion = fusedops.fuse_loss(spec.criterion)

    def loss(module: nn.Module, *data: Tensor) -> Tensor:
        found: Tensor = criterion(spec.output(module, *data), data[-1])
        return found

    return loss


def _options(name: str) -> dict[str, Any]:
    mode = "reduce-overhead" if name.endswith(GRAPHS) else None
    if name.startswith("inductor"):
        return fusedops.inductor(mode)
    return {"mode": mode} if mode else {}


def recorded(call: Call) -> Call:
    """A call that warms up and records its CUDA graphs at first: what is checked is a replay."""
    ready = False

    def run(*data: Tensor) -> Results:
        nonlocal ready
        for _ in range(0 if ready else RECORDING):
            call(*data)
        ready = True
        results: Results = call(*data)
        return results

    return run


def as_pass(
    loaded: Loaded,
    module: nn.Module,
    function: Callable[..., Tensor],
    pass_: str,
    around: Context = contextlib.nullcontext,
) -> Callable[..., Results]:
    """One step or inference; `around` is the context of its forward."""

    def infer(*data: Tensor) -> Results:
        with torch.no_grad(), around(), loaded.precision():
            return {"output": function(module, *data)}

    parameters = dict(module.named_parameters())

    def step(*data: Tensor) -> Results:
        with around(), loaded.precision():
            loss = function(module, *data)
        loss.backward()
        return {"loss": loss.detach(), **taken_gradients(parameters)}

    return step if pass_ == "step" else infer


def taken_gradients(parameters: Mapping[str, nn.Parameter]) -> Results:
    """The gradients, which the parameters give away: nothing adds up between contenders."""
    found = {}
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            found[name] = parameter.grad
            parameter.grad = None
    return found


def own_code(function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """Dynamo keeps what it compiled by code object: each contender searches among its own."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=f"{function.__code__.co_name}_{name}")
    return FunctionType(
        code, function.__globals__, code.co_name, function.__defaults__, function.__closure__
    )


# ---- Liger ----


def liger(module: nn.Module) -> Globals:
    """Patches the model; returns what belongs into transformers' modules while it runs.

    Liger also replaces functions of those modules (RoPE), which the other contenders call.
    """
    if not torch.cuda.is_available():
        raise PeerUnavailableError("Liger needs a GPU")
    if not type(module).__module__.startswith("transformers."):
        raise PeerUnavailableError("Liger has no patches for this model")
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
    except ImportError as error:
        raise PeerUnavailableError(f"Liger is not installed ({error})") from error
    if module.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise PeerUnavailableError("Liger has no patches for this model")
    return changed_globals("transformers.models.", lambda: _apply_liger_kernel_to_instance(module))


def changed_globals(prefix: str, action: Callable[[], object]) -> Globals:
    """What `action` changes in the modules named so; they are as before even where it raises."""
    before = {m: dict(vars(m)) for m in _modules(prefix)}
    changed: Globals = {}
    try:
        action()
    finally:
        for module, names in before.items():
            new = {k: v for k, v in vars(module).items() if k in names and names[k] is not v}
            if new:
                changed[module] = new
                vars(module).update({k: names[k] for k in new})
    return changed


def _modules(prefix: str) -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.startswith(prefix) and type(module) is ModuleType:
            yield module


def _patched(changed: Globals, call: Callable[..., Results]) -> Callable[..., Results]:
    """`call` with those globals in place."""
    usual = {m: {k: vars(m)[k] for k in names} for m, names in changed.items()}

    def run(*data: Tensor) -> Results:
        try:
            for module, names in changed.items():
                vars(module).update(names)
            return call(*data)
        finally:
            for module, names in usual.items():
                vars(module).update(names)

    return run


def available(loaded_package: str, variants: Sequence[str] = PEERS) -> tuple[str, ...]:
    """The peers of a model: Liger patches transformers' only."""
    return tuple(p for p in variants if p != "liger" or loaded_package == "transformers")
