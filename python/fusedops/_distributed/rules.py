"""Which dimensions of each op may be sharded.

An op that is missing here has no sharding strategy, and torch says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.tensor import Partial, Replicate

from .._core.reduction import REDUCTIONS
from .notation import Sharding, Term, read, shard_each

# (arguments by name, the tensors among them in order) -> shardings along one dimension of a mesh
Rule = Callable[[dict[str, Any], Sequence[Any]], list[Sharding]]
RULES: dict[str, Rule] = {}


def _always(arguments: dict[str, Any]) -> bool:
    return True


def _rule(
    names: str,
    notation: str,
    letters: str = "",
    rows: Callable[[dict[str, Any]], bool] = _always,
    only_if: Callable[[dict[str, Any]], bool] = _always,
) -> None:
    """Shard the leading dimensions if `rows`, and the letters if `only_if`."""

    def rule(arguments: dict[str, Any], tensors: Sequence[Any]) -> list[Sharding]:
        given, made, lead = read(notation, tensors)
        labels = [*(lead if rows(arguments) else ()), *(letters if only_if(arguments) else "")]
        return shard_each(labels, given, made, tensors)

    for name in names.split():
        RULES[name] = rule


def _more(
    names: str, notation: str, letters: str, only_if: Callable[[dict[str, Any]], bool]
) -> None:
    """Letters that may be sharded under another condition, beside the rule that is there."""
    for name in names.split():
        first = RULES[name]

        def rule(
            arguments: dict[str, Any], tensors: Sequence[Any], first: Rule = first
        ) -> list[Sharding]:
            given, made, _ = read(notation, tensors)
            more = letters if only_if(arguments) else ""
            return first(arguments, tensors) + shard_each(more, given, made, tensors)

        RULES[name] = rule


# ---- products ----


def _is_linear(a: dict[str, Any]) -> bool:
    return bool(a["activation"] == 0)


def _unpacked(a: dict[str, Any]) -> bool:
    """Whether gate and up are two weights: the rows of a packed one are not those of the result."""
    return not a["packed"] if "packed" in a else a["w_up"] is not None


_rule("linear", "...k nk n+ -> ...n/k", "n")
_more("linear", "...k nk n+ -> ...n/k", "k", _is_linear)
_rule("linear_preact", "...k nk n -> ...n ...n", "n")
_rule("linear_moments", "...k nk -> ...n 2nb", "n", rows=lambda a: False)
_rule("linear_backward", "...n ...k nk ...n -> ...k/n nk/... n/...", "nk")
_rule("linear_input_backward", "...n nk ...k -> ...k", "k")
_rule("linear_wgrad_", "...n ...k nk -> ", "nk", rows=lambda a: False)
_rule("matmul", "mk kn n+ -> mn/k", "mn")
_more("matmul", "mk kn n+ -> mn/k", "k", _is_linear)
_rule("matmul_preact", "mk kn n -> mn mn", "mn")
_rule("act_backward_bias_grad", "...n ...n -> ...n n/...", "n")
_rule("bias_grad", "...n -> n/...", "n")

_rule("mlp_forward", "...k hk h nh n+ ...n+ -> ...n/h ...h", "hn")
_rule("mlp_backward", "...n ...h nh -> ...h/n h/...n nh/... n/...", "hn")

_GATED = "...k hk hk h h"
_rule("gated_linear", f"{_GATED} -> 2...h", "h", only_if=_unpacked)
_rule("gated_mlp_forward", f"{_GATED} nh n+ ...n+ -> ...n/h 2...h", "h", only_if=_unpacked)
_more("gated_mlp_forward", f"{_GATED} nh n+ ...n+ -> ...n 2...h", "n", _always)
_rule("gated_mlp_backward", "...n 2...h nh -> 2...h/n 2h/...n nh/... n/...", "hn")
_rule("gated_input_backward", "2...h ...k hk hk -> ...k/h hk/... hk/...", "hk")


def _of_layout(name: str) -> None:
    """Stacked gate and up are (2, ..., H), and (..., 2, H) where they come packed: rows alone."""
    unpacked = RULES[name]
    notations = {
        "gated_linear": f"{_GATED} -> ...2h",
        "gated_mlp_forward": f"{_GATED} nh n+ ...n+ -> ...n ...2h",
        "gated_mlp_backward": "...n ...2h nh -> ...2h 2h/... nh/... n/...",
        "gated_input_backward": "...2h ...k hk hk -> ...k hk/... hk/...",
    }

    def rule(arguments: dict[str, Any], tensors: Sequence[Any]) -> list[Sharding]:
        if _unpacked(arguments):
            return unpacked(arguments, tensors)
        given, made, lead = read(notations[name], tensors)
        return shard_each(lead, given, made, tensors)

    RULES[name] = rule


for _name in ("gated_linear", "gated_mlp_forward", "gated_mlp_backward", "gated_input_backward"):
    _of_layout(_name)


# ---- losses: a mean over rows knows how many of them count, which a rank alone does not ----


def _is_none(a: dict[str, Any]) -> bool:
    return bool(a["reduction"] == 0)


def _is_sum(a: dict[str, Any]) -> bool:
    return bool(a["reduction"] == 2)


_rule("cross_entropy", "mv m -> m m 1", "m", only_if=_is_none)
_more("cross_entropy", "mv m -> /m m 1", "m", _is_sum)
_rule("cross_entropy_backward", "m mv m m 1 -> mv", "m", only_if=_is_none)
_more("cross_entropy_backward", "1 mv m m 1 -> mv", "m", _is_sum)
_rule("linear_cross_entropy", "mk vk v m m -> m 1 mk vk/m v/m", "m", only_if=_is_none)
_more("linear_cross_entropy", "mk vk v m 1 -> /m 1 mk vk/m v/m", "m", _is_sum)

_rule("loss_shard_parts", "mv m -> m4", "m")
_rule("loss_shard_gradient_", "mv m m m -> ", "m")
_rule("scale_gradient_", "... 1 1 -> ")

# ---- elementwise ----

for _names, _count in (("square relu template_scale", 1), ("add square_backward", 2), ("fma", 3)):
    _rule(_names, f"{'... ' * _count}-> ...")
for _names, _count in (("square_out relu_out", 2), ("add_out", 3), ("fma_out", 4)):
    _rule(_names, f"{'... ' * _count}-> ")
_rule("scale_bias_act", "...n n n -> ...n", "n")
_rule("scale_bias_act_out", "...n n n ...n -> ", "n")
_rule("scale_bias_act_backward", "...n ...n n n -> ...n n/... n/...", "n")


def _keeps_all(a: dict[str, Any]) -> bool:
    """Whether nothing is dropped: a mask is a function of the element's place in the whole."""
    return bool(a["p"] == 0)


_rule("bias_dropout_residual", "...n n ...n 1 -> ...n", "n", _keeps_all, _keeps_all)
_rule("bias_dropout_residual_out", "...n n ...n 1 ...n -> ", "n", _keeps_all, _keeps_all)
_rule("bias_dropout_residual_backward", "...n 1 -> ...n n/...", "n", _keeps_all, _keeps_all)


def _and_partial(name: str, results: list[Any], given: list[Any]) -> None:
    """What is linear may run on the parts of a sum."""
    first = RULES[name]
    RULES[name] = lambda a, t: [*first(a, t), (list(results), list(given))]


_and_partial("add", [Partial()], [Partial(), Partial()])
_and_partial("scale_gradient_", [], [Partial(), Replicate(), Replicate()])


# ---- reductions ----

_PARTS = {"sum": "sum", "count_nonzero": "sum", "amax": "max", "amin": "min"}


def _reduction(arguments: dict[str, Any], tensors: Sequence[Any]) -> list[Sharding]:
    x, mask = tensors[0], arguments["dims"]
    dims = range(x.ndim)
    reduced = tuple(d for d in dims if mask >> d & 1)
    kept = [d for d in dims if d not in reduced]
    labels: tuple[Any, ...] = tuple(kept)
    if arguments["keepdim"]:
        labels = tuple(None if d in reduced else d for d in dims)
    code = arguments.get("reduction")
    kind = None if code is None or arguments["several"] else _PARTS.get(REDUCTIONS[code])
    result = Term(labels, reduced if kind else (), kind or "sum")
    count = 2 if arguments["several"] else 1
    shardable = list(dims) if kind else kept
    return shard_each(shardable, [Term(tuple(dims))], [result] * count, tensors)


for _name, _several in (("reduce", False), ("var_mean", True), ("extremum_count", True)):
    RULES[_name] = lambda a, t, several=_several: _reduction({**a, "several": several}, t)  # type: ignore[misc]

_rule("reduce_backward", "... ... ... -> ...")


def _but_one(results: int, arguments_: int = 1) -> Rule:
    """Any dimension but the one that the op runs along."""

    def rule(arguments: dict[str, Any], tensors: Sequence[Any]) -> list[Sharding]:
        ndim = tensors[0].ndim
        along = arguments.get("dim", -1) % max(ndim, 1)
        term = Term(tuple(range(ndim)))
        labels = [d for d in range(ndim) if d != along]
        return shard_each(labels, [term] * arguments_, [term] * results, tensors)

    return rule


def _rope(arguments: dict[str, Any], tensors: Sequence[Any]) -> list[Sharding]:
    """Batch, time and heads; a single head of one of the two goes with all of the other's."""
    q, k, cos = tensors[:3]
    own, other, table = "bhtd", "bhtd", "tw" if cos.ndim == 2 else "btw"
    if k is not None and 1 in (q.shape[arguments["heads_dim"]], k.shape[arguments["heads_dim"]]):
        other = "bgtd"
    if arguments["heads_dim"] == 2:
        own, other = (text[0] + text[2] + text[1] + text[3] for text in (own, other))
    made_k = "1" if k is None else other
    given, made, _ = read(f"{own} {other} {table} {table} -> {own} {made_k}", tensors)
    return shard_each("bth", given, made, tensors)


RULES["rope"] = _rope
_rule("embedding_backward", "...d ... -> vd/...", "d")
RULES["softmax"] = _but_one(1)
RULES["softmax_backward"] = _but_one(1, 2)
RULES["cumsum"] = RULES["cumprod"] = _but_one(1)
RULES["cummax"] = RULES["cummin"] = RULES["topk"] = _but_one(2)
_rule("histogram bincount", "... -> b/...")


def _segments(text: str) -> Rule:
    """Segments lie along the first dimension; any other may be sharded."""

    def rule(arguments: dict[str, Any], tensors: Sequence[Any]) -> list[Sharding]:
        given, made, lead = read(text, tensors)
        return shard_each(lead, given, made, tensors)

    return rule


RULES["segment_reduce"] = _segments("r... o -> s... s...")
RULES["segment_reduce_backward"] = _segments("s... o s... -> r...")


def _stencil(results: int) -> Rule:
    """Batch dimensions; those of the taps and the channels of their own weights stay whole."""

    def rule(arguments: dict[str, Any], tensors: Sequence[Any]) -> list[Sharding]:
        weight = tensors[-1]
        x = Term(tuple(range(tensors[0].ndim)))
        lead = range(tensors[0].ndim - weight.ndim)
        taps = Term(tuple("abcd"[: weight.ndim]), tuple(lead))
        given = [x] * (len(tensors) - 1) + [Term(taps.labels)]
        return shard_each(lead, given, [x, taps][:results], tensors)

    return rule


RULES["stencil"] = _stencil(1)
RULES["stencil_backward"] = _stencil(2)


# ---- point clouds: by cloud, where each lies in its own row ----


def _padded(a: dict[str, Any]) -> bool:
    packed = ("offsets", "query_offsets", "out_offsets", "grid")
    return all(a.get(name) is None for name in packed)


_CLOUDS = "bpd bqd b b o o g"
_rule("farthest_point_sample", "bpd b o b o -> bn", "b", only_if=_padded)
_rule("knn", f"{_CLOUDS} -> bqk bqk", "b", only_if=_padded)
_rule("ball_query", f"{_CLOUDS} -> bqk bqk bq", "b", only_if=_padded)
_rule("group", "bpc bqk bpd bqd -> bqkc", "b")
_rule("group_backward", "bqkc bqk -> bpc", "b")
_rule("interpolate", "bpc bqk bqk -> bqc", "b")
_rule("interpolate_backward", "bqc bpc bqk bqk -> bpc bqk", "b")


def _knn_backward(arguments: dict[str, Any], tensors: Sequence[Any]) -> list[Sharding]:
    given, made, _ = read("bqk bpd bqd bqk -> bpd bqd", tensors)
    return shard_each("b" if tensors[1].ndim == 3 else "", given, made, tensors)


RULES["knn_backward"] = _knn_backward

# ---- the whole op on every rank: what a rank makes depends on all clouds ----

for _name in ("ball_query_scales", "radius_count", "radius_fill", "point_grid"):
    RULES[_name] = lambda a, t: []
