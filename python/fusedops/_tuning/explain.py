"""explain: which kernel a call takes, how long it should take, and why."""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

import torch
from torch import Tensor

from .. import _C
from .._autograd.main_grad import main_grad_owner
from .._core.activation import ACTIVATIONS, SAVES_PREACT, activation_code
from .._core.checks import raise_not_tensor
from .._core.fp8 import PADDING, ceil_div
from .._core.info import built_archs, chosen_as
from ..fp8.decide import Fp8Estimate, estimate
from ..fp8.recipe import Recipe, check_recipe
from ..ops.linear import _autocast_dtype, _tf32_allowed
from . import plan_store  # noqa: F401  (the tuned plans)
from .names import DEFAULT_RASTER_WIDTH, DTYPES, plan_text, problem_text, us_text

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ExplainedGemm", "Explanation", "explain"]


@runtime_checkable
class HasReport(Protocol):
    """What `inductor` gave: a layer above this one."""

    @property
    def report(self) -> object: ...


Shape = tuple[int, ...]
View = tuple[int, int, int]  # row stride, column stride, address modulo 16
H200 = ("NVIDIA H200 (assumed: no GPU is visible)", 90, 132)
RUNNERS_UP = 4
ONE_KERNEL = "few features: one kernel forms every gradient in one pass over the rows"
IN_PLACE = {
    "thin": "few features: a kernel that streams the rows is the fastest by its time model",
    "unaligned": "operands begin anywhere: a kernel that reads them so is the fastest by its time"
    " model",
    "parts": "fp32 as three bf16 parts on the way to Tensor Cores is the fastest by its time model",
}
WHY = {  # kChosenBy of module_gemm.cpp
    "tuned": "measured on this machine by fusedops.tune, of {} candidates",
    "measured": "measured on an H200 for exactly this product (the table that is compiled in)",
    "skinny": "the fastest by the time model of the kernels for few rows, which go first",
    "model": "the fastest of {} candidates by the time model",
}


@dataclass(frozen=True)
class ExplainedGemm:
    """One product of a call.

    Attributes:
        role: "forward", "dx" or "dweight".
        problem: What the kernels see, after packing.
        plan: The kernel, its splits and tile order; None where no product is computed.
        why: Where the choice comes from, or why there is nothing to choose.
        expected_us: By the time model.
        measured_us: By `fusedops.tune` on this machine, None where it was not asked.
        runners_up: (kernel, expected us) of the next best.
        refused: (kernels, reason) of those that cannot run it.
        notes: Copies and other work around the kernel.
    """

    role: str
    problem: dict[str, Any]
    plan: dict[str, Any] | None
    why: str
    expected_us: float = math.nan
    measured_us: float | None = None
    runners_up: tuple[tuple[str, float], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def kernel(self) -> str:
        """The kernel with its splits and tile order; why there is none where nothing runs."""
        return self.why if self.plan is None else plan_text(self.plan)

    def __str__(self) -> str:
        lines = [f"{self.role}: {problem_text(self.problem)}"]
        if self.plan is None:
            return "\n".join([*lines, f"  {self.why}"])
        tile = self.plan.get("tile") or config_of(self.plan)["tile"]
        tiles = math.prod(
            -(-self.problem[extent] // size) for extent, size in zip("mn", tile, strict=False)
        )
        lines += [
            f"  kernel    {self.kernel}",
            f"  grid      {tiles * max(self.plan['splits'], 1)} tiles of {tile[0]} x {tile[1]}",
            f"  time      {us_text(self.expected_us)} expected"
            + (f", {us_text(self.measured_us)} measured by tune" if self.measured_us else ""),
            f"  why       {self.why}",
        ]
        lines += [f"  next      {name}: {us_text(us)} expected" for name, us in self.runners_up]
        lines += [f"  refused   {kernels}: {reason}" for kernels, reason in self.refused]
        return "\n".join([*lines, *(f"  note      {note}" for note in self.notes)])


@dataclass(frozen=True)
class Explanation:
    """What a call of `fusedops.linear` runs: print it for a report."""

    call: str
    gpu: str
    products: list[ExplainedGemm] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fp8: Fp8Estimate | None = None  # where a recipe was given

    def __str__(self) -> str:
        head = [f"{self.call} on {self.gpu}", *self.notes]
        return "\n\n".join(["\n".join(head), *(str(product) for product in self.products)])

    __repr__ = __str__


@overload
def explain(x: HasReport) -> object: ...
@overload
def explain(
    x: Tensor | Sequence[int],
    weight: Tensor | Sequence[int],
    bias: Tensor | Sequence[int] | None = ...,
    activation: str | None = ...,
    *,
    dtype: torch.dtype | None = ...,
    backward: bool | None = ...,
    recipe: Recipe | None = ...,
) -> Explanation: ...
def explain(
    x: Tensor | Sequence[int] | HasReport,
    weight: Any = None,
    bias: Tensor | Sequence[int] | None = None,
    activation: str | None = None,
    *,
    dtype: torch.dtype | None = None,
    backward: bool | None = None,
    recipe: Recipe | None = None,
) -> Explanation | object:
    """Say which kernel ``fusedops.linear(x, weight, bias, activation)`` takes, and why.

    Nothing is computed. The report names the kernel, its tile, schedule, cluster, splits and tile
    order, the expected time and, after `fusedops.tune`, the measured one, the runners-up, why the
    other kernels were refused, and which operand is copied first. Precision, autocast and
    ``requires_grad`` count as they would in the call.

    Args:
        x: Input (..., K): a tensor on any device, a fake or meta tensor, or a shape. Or, alone,
            what `fusedops.inductor` gave: the report is then that of its graph pass.
        weight: Weight (N, K), likewise.
        bias: Bias (N,), likewise, or None.
        activation: As in `fusedops.linear`.
        dtype: Dtype of the shapes; bfloat16 by default.
        backward: Whether to include the products of backward; None: where a tensor requires grad.
        recipe: Says as well whether FP8 pays for the call; the products are those without it.

    Returns:
        The report; ``print`` it. Its fields hold the same facts.

    Raises:
        ValueError: The activation is unknown.
        TypeError: An argument is neither a tensor nor a shape, or `dtype` is no torch.dtype.
        RuntimeError: What the call itself would raise for these shapes and dtypes.

    The GPU is that of x, else the current one, else an H200 is assumed. Layers of point clouds have
    `explain_set_abstraction` and `explain_edge_conv`.

    Example:
        >>> print(fusedops.explain(x, weight, bias, "gelu"))
        >>> print(fusedops.explain((8192, 1024), (4096, 1024), backward=True))
    """
    if isinstance(x, HasReport):
        return x.report
    code = activation_code(activation, op="explain")
    tensors = [_as_tensor(name, t, dtype) for name, t in (("x", x), ("weight", weight))]
    bias_tensor = None if bias is None else _as_tensor("bias", bias, dtype)
    real_x, real_weight = tensors
    wants = [_wants_grad(t, backward) for t in (*tensors, bias_tensor)]
    compute = _compute_dtype(real_x)
    paper = [_paper(t, compute) for t in (real_x, real_weight, bias_tensor) if t is not None]
    torch.ops.fusedops.linear.default(*paper, *([None] * (3 - len(paper))), code, False)  # checks
    gpu, capability, sm_count = _gpu(real_x)
    x_rows, note = _rows(paper[0])
    view_x = _operand(x_rows, real_x)
    view_weight = _operand(paper[1], real_weight)
    where = {"capability": capability, "sm_count": sm_count}
    m, k = x_rows.shape
    n = paper[1].shape[0]
    tf32 = paper[0].dtype is torch.float32 and _tf32_allowed()
    same = {"dtype": DTYPES[paper[0].dtype], "allow_tf32": tf32, **where}
    epilogue = "preact" if any(wants) and SAVES_PREACT[code] else "fused"
    forward = {"epilogue": epilogue, "activation": code, **same}
    names = ("x", "weight")
    products = [_explain_gemm("forward", m, n, k, view_x, _transposed(view_weight), names, forward)]
    owner = main_grad_owner("linear", real_weight) if wants[1] else None
    master = paper[0].dtype.itemsize == 2 and real_weight.dtype is torch.float32
    products += _explain_backward(
        (m, n, k),
        (view_x, view_weight),
        (wants[0], wants[1], wants[2]),
        main_grad=owner is not None,
        fp32_dweight=master or owner is not None,
        options={**forward, "epilogue": "fused"},
    )
    notes = [note] if note else []
    if isinstance(x, Tensor) and x.device.type == "cpu":
        notes.append("x is on the CPU, where plain C++ runs; this is for the same call on the GPU")
    found = None
    if recipe is not None:
        found = _explain_fp8((m, n, k), (wants[0], wants[1]), recipe, gpu, notes)
    shapes = f"x {tuple(paper[0].shape)}, weight {tuple(paper[1].shape)}, {same['dtype']}"
    return Explanation(f"linear of {shapes}, {ACTIVATIONS[code]}", gpu, products, notes, found)


def _explain_fp8(
    sizes: tuple[int, int, int],
    wants: tuple[bool, bool],
    recipe: Recipe,
    gpu: str,
    notes: list[str],
) -> Fp8Estimate:
    """What the recipe's "auto" decides for the call, with a note of it."""
    m, n, k = sizes
    check_recipe("explain", recipe)
    found = estimate(m, n, k, *wants, gpu=gpu)
    chosen = "in FP8" if found.pays or recipe.when == "always" else "in bf16"
    notes.append(f"FP8 ({recipe.scaling} scaling, {recipe.when}): runs {chosen}, {found.reason}")
    if k % PADDING:
        notes.append(f"K is padded to {ceil_div(k, PADDING) * PADDING} by the quantiser")
    return found


def _explain_backward(
    sizes: tuple[int, int, int],
    views: tuple[View, View],
    wants: tuple[bool, bool, bool],
    *,
    main_grad: bool,
    fp32_dweight: bool,
    options: dict[str, Any],
) -> list[ExplainedGemm]:
    """dx and dweight as LinearFunction.backward forms them."""
    m, n, k = sizes
    view_x, view_weight = views
    dz = (n, 1, 0)
    plain = options | {"activation": 0}
    fp32 = fp32_dweight and options["dtype"] in ("float16", "bfloat16")
    wgrad = plain | {"epilogue": "accumulator" if fp32 else "fused"}
    products = (
        ("dx", m, k, n, dz, view_weight, ("dz", "weight"), plain),
        ("dweight", n, k, m, _transposed(dz), view_x, ("dz", "x"), wgrad),
    )
    wanted = [product for product, want in zip(products, wants, strict=False) if want]
    # Into main_grad dweight is a product of its own.
    if main_grad or not _is_one_kernel(sizes, views, wants, options):
        return [_explain_gemm(*product) for product in wanted]
    return [
        ExplainedGemm(role, _C.prepare_gemm(*of, a=a, b=b, **how)["problem"], None, ONE_KERNEL)
        for role, *of, a, b, _, how in wanted
    ]


def _is_one_kernel(
    sizes: tuple[int, int, int],
    views: tuple[View, View],
    wants: tuple[bool, bool, bool],
    options: dict[str, Any],
) -> bool:
    m, n, k = sizes
    x, weight = views
    dx, dweight, dbias = wants
    same: dict[str, Any] = {
        name: options[name] for name in ("dtype", "activation", "capability", "sm_count")
    }
    return _C.narrow_backward(
        m, n, k, x=x, weight=weight, dx=dx, dweight=dweight, dbias=dbias, **same
    )


# ---- the arguments ----


def _as_tensor(name: str, value: Tensor | Sequence[int], dtype: torch.dtype | None) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"explain: dtype must be a torch.dtype; got {dtype!r}")
    if not isinstance(value, (list, tuple)):
        raise_not_tensor("explain", **{name: value})
    try:
        sizes = [operator.index(s) for s in value]
    except TypeError:
        sizes = [-1]
    if min(sizes, default=0) < 0:
        raise TypeError(f"explain: {name} must be a Tensor or a shape of integers; got {value!r}")
    return torch.empty(sizes, dtype=dtype or torch.bfloat16, device="meta")


def _wants_grad(tensor: Tensor | None, backward: bool | None) -> bool:
    if tensor is None or backward is not None:
        return tensor is not None and bool(backward)
    return bool(torch.is_grad_enabled() and tensor.requires_grad)


def _compute_dtype(x: Tensor) -> torch.dtype | None:
    """What autocast makes of x."""
    compute = _autocast_dtype(x)
    return compute if compute is not None and x.dtype is not torch.float64 else None


def _paper(tensor: Tensor, compute: torch.dtype | None) -> Tensor:
    """A meta tensor of the same sizes and strides, in the dtype that the kernel sees."""
    sizes = [int(s) for s in tensor.shape]
    strides = [int(s) for s in tensor.stride()]
    return torch.empty_strided(sizes, strides, dtype=compute or tensor.dtype, device="meta")


def _rows(x: Tensor) -> tuple[Tensor, str]:
    """x as (M, K), and a note when that takes a copy."""
    rows = math.prod(x.shape[:-1])
    try:
        return x.view(rows, x.shape[-1]), ""
    except RuntimeError:
        note = "x is copied first: its leading dimensions do not collapse to one stride"
        return x.contiguous().view(rows, x.shape[-1]), note


def _operand(paper: Tensor, tensor: Tensor) -> View:
    return paper.stride(0), paper.stride(1), _address(tensor)


def _transposed(view: View) -> View:
    return view[1], view[0], view[2]


def _address(tensor: Tensor) -> int:
    """The address modulo 16 as far as it is known: allocations are aligned, slices may not be."""
    offset = int(tensor.storage_offset()) * tensor.element_size()
    return offset % 16 if tensor.device.type == "meta" or _is_fake(tensor) else _data_ptr(tensor)


def _is_fake(tensor: Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def _data_ptr(tensor: Tensor) -> int:
    return int(tensor.data_ptr()) % 16


def _gpu(x: Tensor) -> tuple[str, int, int]:
    """(name, capability for selection, SMs) of the GPU that is meant."""
    if not torch.cuda.is_available():
        return H200
    own = x.device.type == "cuda" and x.device.index is not None
    index = x.device.index if own else torch.cuda.current_device()
    facts = torch.cuda.get_device_properties(index)
    capability = chosen_as((facts.major, facts.minor), built_archs())
    return facts.name, capability, facts.multi_processor_count


# ---- one product ----


def _explain_gemm(
    role: str,
    m: int,
    n: int,
    k: int,
    a: View,
    b: View,
    names: tuple[str, str],
    options: dict[str, Any],
) -> ExplainedGemm:
    prepared = _C.prepare_gemm(m, n, k, a=a, b=b, **options)
    problem = prepared["problem"]
    unaligned = _C.unaligned_gemm(m, n, k, a=a, b=b, **options)
    if unaligned["takes"]:
        notes = _packing_notes(names, unaligned)
        return _explain_in_place(role, (m, n, k), "unaligned", unaligned, problem, notes)
    thin = _C.thin_gemm(m, n, k, a=a, b=b, **options)
    if thin["takes"]:
        return _explain_in_place(role, (m, n, k), "thin", thin, problem)
    if m == 0 or n == 0:
        return ExplainedGemm(role, problem, None, "nothing is computed: the output is empty")
    if k == 0:
        return ExplainedGemm(role, problem, None, "K is 0: the output is act(bias), no product")
    answer = _C.plan_gemm(problem, options["capability"], options["sm_count"])
    chosen, tuned = answer["chosen"], answer["tuned"]
    refused = _refused(answer["candidates"])
    if chosen is None:
        return ExplainedGemm(role, problem, None, "no kernel takes it", refused=refused)
    ranked = sorted(
        (c for c in answer["candidates"] if c["rejected"] is None), key=lambda c: c["expected_us"]
    )
    others = [c for c in ranked if not _same(c, chosen)]
    notes = _packing_notes(names, prepared)
    if problem["ldd"] != n:
        notes.append("its rows are padded to 16 bytes, and a pass copies them")
    return ExplainedGemm(
        role=role,
        problem=problem,
        plan=chosen,
        why=WHY[chosen["chosen_by"]].format(len(ranked)),
        expected_us=next(c["expected_us"] for c in ranked if _same(c, chosen)),
        measured_us=tuned["expected_us"] if tuned else None,
        runners_up=tuple((plan_text(c), c["expected_us"]) for c in others[:RUNNERS_UP]),
        refused=refused,
        notes=tuple(notes),
    )


def _explain_in_place(
    role: str,
    sizes: tuple[int, int, int],
    family: str,
    found: dict[str, Any],
    packed: dict[str, Any],
    notes: list[str] | None = None,
) -> ExplainedGemm:
    """A product through a kernel that reads its operands where they lie, or copies as noted."""
    m, n, k = sizes
    plan = {"name": found["name"], "family": family, "splits": found.get("splits", 1)}
    plan |= {"tile": found["tile"], "swizzle": DEFAULT_RASTER_WIDTH}
    parts = family == "unaligned" and packed["dtype"] == "float32"
    return ExplainedGemm(
        role=role,
        problem=packed | {"m": m, "n": n, "k": k, "ldd": n},
        plan=plan,
        why=IN_PLACE["parts" if parts else family],
        expected_us=found["expected_us"],
        runners_up=(("the other kernels, with their copies", found["other_us"]),),
        notes=tuple(notes or ()),
    )


def _packing_notes(names: tuple[str, str], found: dict[str, Any]) -> list[str]:
    packs = zip(names, (found["pack_a"], found["pack_b"]), strict=True)
    return [f"{name} is packed first: {reason}" for name, reason in packs if reason]


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """The same candidate; the bands of families other than cluster make none of their own."""
    names = ("family", "index", "splits", *(("swizzle",) if a["family"] == "cluster" else ()))
    return all(a[name] == b[name] for name in names)


def _refused(candidates: Sequence[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    """("sm80, 6 kernels", reason) for every reason of a family."""
    kernels = {(c["family"], c["index"], c["rejected"]) for c in candidates if c["rejected"]}
    count = Counter((family, reason) for family, _, reason in kernels)
    return tuple(
        (f"{family}, {number} kernel{'s' if number > 1 else ''}", reason)
        for (family, reason), number in sorted(count.items())
    )


def config_of(plan: dict[str, Any]) -> dict[str, Any]:
    """The compiled configuration that a plan names."""
    configs = _C.gemm_configs()
    return next(c for c in configs if (c["family"], c["index"]) == (plan["family"], plan["index"]))
