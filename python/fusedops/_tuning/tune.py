"""tune: measure GEMM kernels on this machine and remember the best."""

from __future__ import annotations

import contextlib
import functools
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from .. import _C
from .._core.activation import ACTIVATIONS, activation_code
from .._core.text import table
from ..ops.linear import linear
from .measure import (
    TUNABLE,
    candidates,
    error_of,
    is_right,
    kernel_of,
    make_sets,
    median_us,
    orders,
    our_call,
)
from .names import plan_text, problem_text, us_text
from .plan_store import PROBLEM, GpuKey, Plan, gpu_key, install, merge_plans, problem_of, read_plans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from .measure import Candidate, Inputs, Problem

__all__ = ["TuneReport", "TunedGemm", "tune"]

MODEL_SLACK = 2.5  # a candidate whose expected time is further from the best is not tried
MAX_CANDIDATES = 40
KEEP_WITHIN = 1.4  # of the best time of the first round
FINALISTS = 4  # that try every swizzle
ROUNDS = 5
LEAST_GAIN = 0.01  # a plan that gains less is noise: the present choice stays


@dataclass(frozen=True)
class TunedGemm:
    """One product that was measured."""

    product: str  # "8192x4096x1024 bfloat16 TN gelu_tanh"
    kernel: str
    us: float
    before: str  # what selection chose until now
    before_us: float

    @property
    def gain(self) -> float:
        """Time before over time now."""
        return self.before_us / self.us


@dataclass
class TuneReport:
    """What `tune` did: print it for a table.

    Attributes:
        gpu: The GPU's name.
        tuned: The products that were measured.
        known: How many products the table held already.
        skipped: (product, reason) of those that were left to selection.
        path: The file that holds the table, None where it could not be written.
    """

    gpu: str
    tuned: list[TunedGemm] = field(default_factory=list)
    known: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    path: Path | None = None

    def __str__(self) -> str:
        lines = [
            f"tuned {len(self.tuned)} product(s) on {self.gpu}, {self.known} known before, "
            f"skipped {len(self.skipped)}; table: {self.path or 'this process only'}"
        ]
        rows = [
            (t.product, t.kernel, us_text(t.us), f"{t.gain:.2f}x", t.before) for t in self.tuned
        ]
        if rows:
            lines += ["", *table(("product", "kernel", "time", "gain", "before"), rows)]
        if self.skipped:
            lines += ["", *table(("skipped", "reason"), self.skipped)]
        return "\n".join(lines)

    __repr__ = __str__


def tune(
    model_or_shapes: Callable[..., Any] | Sequence[tuple[int, int, int]],
    *inputs: Any,
    dtype: torch.dtype = torch.bfloat16,
    activation: str | None = None,
    backward: bool = True,
    force: bool = False,
    progress: bool = True,
) -> TuneReport:
    """Measure the kernels that fit each GEMM of a model, and use the fastest from now on.

    The model runs once without and once with gradients while every product that fusedops is asked
    for is noted; then each distinct one is timed with the kernels, splits and tile orders that can
    run it, in interleaved rounds over buffers that do not stay in L2. What beats the present choice
    by 1 % or more enters a table on disk, one per GPU model, driver and build, in
    ``$FUSEDOPS_CACHE_DIR`` or the user's cache directory; every later process reads it when it
    first needs a kernel. Any number of processes may tune at once.

    Args:
        model_or_shapes: A module or any callable, run as ``model(*inputs)``; or a sequence of
            (M, N, K), each standing for ``fusedops.linear`` of x (M, K) and weight (N, K).
        inputs: What the model is called with; CUDA tensors where it takes tensors.
        dtype: Dtype of the shapes' tensors.
        activation: Activation of the shapes' linear, as in `fusedops.linear`.
        backward: Whether the products of backward are measured as well.
        force: Measure products again that the table holds.
        progress: Show a bar while measuring, on a terminal.

    Returns:
        A report; ``print`` it for a table.

    Raises:
        RuntimeError: There is no CUDA GPU.
        ValueError: The activation is unknown.
        TypeError: `model_or_shapes` is neither, or shapes came with inputs.

    float64 products and fp32-accurate ones (TF32 not allowed) are skipped. Parameters' ``.grad``,
    ``main_grad``, buffers and torch's random state are left as they were; of a function or method,
    those of the modules that it is bound to, refers to by name or gets as an input.

    Example:
        >>> print(fusedops.tune(model, batch))
        >>> print(fusedops.tune([(8192, 4096, 1024)], activation="gelu"))
    """
    code = activation_code(activation, op="tune")
    if not torch.cuda.is_available():
        raise RuntimeError("tune: a CUDA GPU must be visible, kernels are measured on it; got none")
    device = torch.device("cuda", torch.cuda.current_device())
    work: Iterable[tuple[Callable[..., Any], tuple[Any, ...]]]
    if callable(model_or_shapes):
        work = [(model_or_shapes, inputs)]
    else:
        work = _shape_calls(model_or_shapes, inputs, dtype, ACTIVATIONS[code], device)
    problems: list[Problem] = []
    for model, arguments in work:
        problems += record_problems(model, arguments, backward, device)
    return tune_problems(problems, device, force=force, progress=progress)


def _shape_calls(
    shapes: Any, inputs: tuple[Any, ...], dtype: torch.dtype, activation: str, device: torch.device
) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    if inputs:
        raise TypeError("tune: shapes must come without inputs; those belong to a model")
    try:
        sizes = [(int(m), int(n), int(k)) for m, n, k in shapes]
    except (TypeError, ValueError):
        raise TypeError(
            "tune: model_or_shapes must be a callable or a sequence of (M, N, K); got "
            f"{type(shapes).__name__}"
        ) from None
    for m, n, k in sizes:
        make = [torch.zeros(s, dtype=dtype, device=device) for s in ((m, k), (n, k), (n,))]
        yield (
            lambda x, w, b: linear(x, w, b, activation),
            tuple(tensor.requires_grad_() for tensor in make),
        )


# ---- what a model computes ----


def record_problems(
    model: Callable[..., Any], inputs: tuple[Any, ...], backward: bool, device: torch.device
) -> list[Problem]:
    """The distinct products of model(*inputs), without gradients and (`backward`) with them."""
    modules = _modules([model, *inputs])
    with _unchanged(modules, device):
        _C.start_recording()
        try:
            with torch.no_grad():
                model(*inputs)
            if backward:
                _forward_backward(model, inputs, modules)
        finally:
            recorded = _C.stop_recording()
    key = gpu_key(device)
    here = [p for p, *where in recorded if where == [key.capability, key.sm_count]]
    return list({problem_of(problem): problem for problem in here}.values())


def _modules(values: Sequence[Any]) -> nn.ModuleList:
    """The modules among values, and those that functions among them are bound to or name."""
    from torch.utils._pytree import tree_leaves

    held = list(values)
    for value in values:
        if isinstance(value, functools.partial):
            held += [*_modules([value.func, *value.args, *value.keywords.values()])]
        owner = getattr(value, "__self__", None)
        held += [owner, *getattr(owner, "__dict__", {}).values()]
        function = inspect.unwrap(getattr(value, "__func__", value))
        if inspect.isfunction(function):
            with contextlib.suppress(ValueError):  # a name that has no value yet
                names = inspect.getclosurevars(function)
                held += [*names.nonlocals.values(), *names.globals.values()]
    return nn.ModuleList(leaf for leaf in tree_leaves(held) if isinstance(leaf, nn.Module))


def _forward_backward(
    model: Callable[..., Any], inputs: tuple[Any, ...], modules: nn.ModuleList
) -> None:
    from torch.utils._pytree import tree_leaves

    def wants_grad(values: Any) -> list[Tensor]:
        return [t for t in values if isinstance(t, Tensor) and t.requires_grad]

    with torch.enable_grad():
        outputs = wants_grad(tree_leaves(model(*inputs)))
        sources = wants_grad([*tree_leaves(inputs), *modules.parameters()])
        if outputs and sources:
            ones = [torch.ones_like(output) for output in outputs]
            torch.autograd.grad(outputs, sources, ones, allow_unused=True)


@contextlib.contextmanager
def _unchanged(modules: nn.ModuleList, device: torch.device) -> Iterator[None]:
    """Restores what a training step writes: buffers, main_grad, the random state."""
    buffers = [(buffer, buffer.clone()) for buffer in modules.buffers()]
    attributes = ("main_grad", "grad_added_to_main_grad")
    kept = [
        (p, a, getattr(p, a)) for p in modules.parameters() for a in attributes if hasattr(p, a)
    ]
    for parameter, name, value in kept:
        if isinstance(value, Tensor):
            setattr(parameter, name, torch.zeros_like(value))
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        for parameter, name, value in kept:
            setattr(parameter, name, value)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


# ---- measuring ----


def tune_problems(
    problems: Sequence[Problem], device: torch.device, *, force: bool, progress: bool
) -> TuneReport:
    """Measures each problem that the table lacks; stores and installs the winners one by one."""
    from .._timing.progress import Progress

    key = gpu_key(device)
    report = TuneReport(key.gpu)
    stored = {problem_of(plan): plan for plan in read_plans(key.path)}
    # A stored plan that this build cannot take is as good as none.
    todo = [
        p
        for p in problems
        if force or problem_of(p) not in stored or not install(key, [stored[problem_of(p)]])
    ]
    report.known = len(problems) - len(todo)
    report.path = key.path if stored else None
    with Progress(len(todo), "tune") if progress else contextlib.nullcontext() as bar:
        for problem in todo:
            outcome = skip_reason(problem) or _measured(problem, key, device)
            if isinstance(outcome, str):
                report.skipped.append((problem_text(problem), outcome))
            else:
                _keep(report, key, problem, *outcome)
            if bar is not None:
                bar.step()
    return report


def skip_reason(problem: Problem) -> str | None:
    """Why a problem cannot be measured."""
    if problem["dtype"] == "float64":
        return "float64 kernels are few: selection knows them"
    if problem["math"] == "fp32":
        return "fp32-accurate products are not tunable; TF32 ones are"
    if problem["epilogue"] not in TUNABLE:
        return f"the {problem['epilogue']} epilogue cannot be measured on its own"
    if min(problem["m"], problem["n"], problem["k"]) < 1:
        return "nothing to compute"
    return None


def _measured(problem: Problem, key: GpuKey, device: torch.device) -> tuple[Plan, Plan] | str:
    try:
        return measure_problem(problem, key, device)
    except torch.cuda.OutOfMemoryError:
        return "not enough GPU memory to measure it"
    finally:
        torch.cuda.empty_cache()


def _keep(report: TuneReport, key: GpuKey, problem: Problem, best: Plan, before: Plan) -> None:
    plan = {name: problem[name] for name in PROBLEM} | best | {"default_us": before["us"]}
    report.tuned.append(
        TunedGemm(
            problem_text(problem), plan_text(best), best["us"], plan_text(before), before["us"]
        )
    )
    install(key, [plan])
    try:
        report.path = merge_plans(key, [plan])
    except OSError as error:
        report.path = None
        report.skipped.append((problem_text(problem), f"not stored: {error}"))


def measure_problem(problem: Problem, key: GpuKey, device: torch.device) -> tuple[Plan, Plan] | str:
    """(the best plan, the one used until now), timed in "us"; or why there is none."""
    before = _C.plan_gemm(problem, key.capability, key.sm_count)["selected"]
    if before is None:
        return "no kernel takes it"
    pool = contenders(candidates(problem, key), before)
    sets, reference = make_sets(problem, device)
    pool = [p for p in pool if is_right(problem, error_of(problem, p, sets[0], reference))]
    if not any(_same(plan, before) for plan in pool):
        return f"the present choice, {plan_text(before)}, is wrong or cannot run here"
    times = _time(problem, pool, sets, 1, device)
    limit = KEEP_WITHIN * min(times)
    pool = [p for p, us in zip(pool, times, strict=True) if us <= limit or _same(p, before)]
    times = _time(problem, pool, sets, ROUNDS, device)
    ranked = [plan for _, plan in sorted(zip(times, pool, strict=True), key=lambda pair: pair[0])]
    final = [*orders(ranked[:FINALISTS]), before]
    times = _time(problem, final, sets, ROUNDS, device)
    timed = [_plan(plan, us) for plan, us in zip(final, times, strict=True)]
    best = min(timed, key=lambda plan: cast("float", plan["us"]))
    if best["us"] > (1 - LEAST_GAIN) * timed[-1]["us"]:
        best = timed[-1]
    return best, timed[-1]


def contenders(ranked: Sequence[Candidate], before: Candidate) -> list[Candidate]:
    """The candidates worth a measurement, by expected time; the present choice always."""
    limit = MODEL_SLACK * ranked[0]["expected_us"]
    kernels: dict[tuple[Any, ...], Candidate] = {}
    for candidate in ranked:
        if candidate["expected_us"] <= limit:
            kernels.setdefault(kernel_of(candidate), candidate)
    near = list(kernels.values())[:MAX_CANDIDATES]
    return [before, *(c for c in near if not _same(c, before))]


def _plan(candidate: Candidate, us: float) -> Plan:
    names = ("family", "name", "index", "splits", "swizzle")
    return {name: candidate[name] for name in names} | {"us": round(us, 3)}


def _same(a: Candidate, b: Candidate) -> bool:
    """The same kernel and splits; the swizzle is tried later."""
    return kernel_of(a) == kernel_of(b)


def _time(
    problem: Problem,
    plans: Sequence[Candidate],
    sets: Sequence[Inputs],
    rounds: int,
    device: torch.device,
) -> list[float]:
    calls = [(our_call(problem, plan), plan["expected_us"]) for plan in plans]
    return median_us(calls, sets, rounds, device)
