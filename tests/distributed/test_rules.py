"""Every op on DTensors, in every sharding that its rule lists and in others: the whole's result."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch

import fusedops  # noqa: F401  (registers the ops)
from samples import CUDA_ONLY, SAMPLES

tensor = pytest.importorskip("torch.distributed.tensor")
init_device_mesh = torch.distributed.device_mesh.init_device_mesh
from fusedops._distributed.rules import RULES  # noqa: E402

OPS = torch.ops.fusedops
# They return what they made as well, which DTensor's in-place ops cannot; it says that it has none.
# And what DTensors do not reach: passes of layers over edges, which are composed for them, and FP8,
# without which their layers run.
WITHOUT = (  # batch_norm_act and conv_bn_act of DTensors are torch's functions
    *(name for name in SAMPLES if name.startswith("batch_norm_")),
    *("first_conv", "first_conv_image", "first_conv_weight"),
    *("depthwise_conv", "depthwise_conv_backward", "pointwise_conv"),
    *("image_conv", "image_conv_backward"),
    *("mlp_backward_", "gated_mlp_backward_"),
    *(
        "fp8_quantize",
        "_fp8_quantize_pair",
        "_fp8_norm",
        "_fp8_hidden_grads",
        "_fp8_matmul",
        "_fp8_wgrad_",
    ),
    *CUDA_ONLY,
)
# What a rank makes depends on all clouds
WHOLE = ("ball_query_scales", "radius_count", "radius_fill", "point_grid")
CODES = (0, 1, 2)  # activations: none, one that saves its output, one that saves what it is given
MOST = 4  # samples of an op that are tried, each in all shardings of its rule and in others
TOLERANCE = {torch.float64: (1e-7, 1e-9), torch.float32: (1e-4, 1e-5)}


def spread(found, most):
    """Some of many, from all over them."""
    step = max(1, -(-len(found) // most))
    return found[::step]


def written(op):
    return [i for i, a in enumerate(op._schema.arguments) if a.alias_info is not None]


def flat(result):
    if result is None:
        return []
    return list(result) if isinstance(result, (tuple, list)) else [result]


def on_copies(op, arguments):
    """What an op returns and writes, on copies of what it writes."""
    given = list(arguments)
    changed = [i for i in written(op) if given[i] is not None]
    for i in changed:
        given[i] = given[i].clone()
    return [*flat(op(*given)), *(given[i] for i in changed)]


def any_placements(arguments):
    """Choices for each argument: replicated, or sharded along a dimension."""
    choices = [
        [tensor.Replicate(), *map(tensor.Shard, range(t.dim()))]
        if isinstance(t, torch.Tensor)
        else [None]
        for t in arguments
    ]
    return spread(list(itertools.product(*choices))[1:], 2)


def placements_of_rule(op, name, arguments):
    """What the op's rule says of these arguments, for all of them."""
    schema = op._schema.arguments
    is_tensor = [str(a.type) in ("Tensor", "Optional[Tensor]") for a in schema]
    tensors = [t for t, known in zip(arguments, is_tensor, strict=True) if known]
    named = {a.name: value for a, value in zip(schema, arguments, strict=True)}
    for _, placements in RULES[name](named, tensors):
        rest = iter(placements)
        yield [next(rest) if known else None for known in is_tensor]


def place(whole, mesh, placement):
    if placement is None:
        return whole
    if placement.is_partial():
        return tensor.DTensor.from_local(whole / mesh.size(), mesh, [placement])
    return tensor.distribute_tensor(whole, mesh, [placement])


def check_op(name, device):
    """Compare an op with itself on whole tensors; returns whether a result came in parts."""
    mesh = init_device_mesh(device, (2,))
    op = getattr(OPS, name).default
    in_parts = False
    for arguments in spread(list(SAMPLES[name](device, torch.float64, CODES)), MOST):
        expected = on_copies(op, arguments)
        of_rule = list(placements_of_rule(op, name, arguments))
        for placements in [*of_rule, *any_placements(arguments)]:
            pairs = zip(arguments, placements, strict=True)
            given = [place(t, mesh, p) for t, p in pairs]
            try:
                got = on_copies(op, given)
            except RuntimeError as error:
                if "what the op writes to" not in str(error):
                    raise
                continue
            for one, want in zip(got, expected, strict=True):
                in_parts |= not one.placements[0].is_replicate()
                if want.numel():
                    rtol, atol = TOLERANCE.get(want.dtype, (0, 0))
                    torch.testing.assert_close(
                        one.full_tensor(), want, rtol=rtol, atol=atol, equal_nan=True,
                        msg=lambda text, p=placements: f"{name} {p}: {text}",
                    )  # fmt: skip
    return in_parts


@pytest.mark.parametrize("op", [name for name in SAMPLES if name not in WITHOUT])
def test_an_op_on_shards(ranks, op):
    assert ranks.run(check_op, op, ranks.device) == [op not in WHOLE] * 2


def test_rules_come_with_dtensor_and_not_before():
    code = (
        "import sys, torch, fusedops\n"
        "assert 'torch.distributed.tensor' not in sys.modules\n"
        "import torch.distributed.tensor\n"
        "rules = torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator\n"
        "assert torch.ops.fusedops.linear.default in rules.op_strategy_funcs\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_torch_that_registers_otherwise_is_a_warning():
    code = (
        "import warnings, torch.distributed.tensor\n"
        "del torch.distributed.tensor._ops.utils.expand_to_full_mesh_op_strategy\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    import fusedops\n"
        "assert any('no DTensor rules' in str(w.message) for w in seen)\n"
        "fusedops.linear(torch.ones(2, 2), torch.ones(2, 2))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_op_has_a_rule():
    assert {*RULES} == {*SAMPLES} - {*WITHOUT}
