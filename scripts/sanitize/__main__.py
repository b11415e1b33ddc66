"""Runs every kernel on small operands: the program to put under compute-sanitizer.

    compute-sanitizer --tool memcheck --error-exitcode 1 python scripts/sanitize
    compute-sanitizer --tool memcheck --error-exitcode 1 python scripts/sanitize rows scan
    compute-sanitizer --tool racecheck --error-exitcode 1 python scripts/sanitize --no-clusters
    compute-sanitizer --tool initcheck --error-exitcode 1 python scripts/sanitize --poison gemm
    compute-sanitizer python scripts/sanitize kernels --match "sm90 64x64" --part 1/4
    python scripts/sanitize/tools.py    # every tool over every family, in parallel, with a log

Families run in the order given, all of them by default. racecheck fails inside itself on thread
block clusters: --no-clusters leaves out what reaches them. Sizes are ragged on every side.
`--part I/N` is every N-th item of the long families (`kernels`, `gemm`, `reduce`, `fp8_matmul`).

initcheck does not see what TMA writes, and calls whoever reads it an error. `--poison` fills the
memory of new tensors with NaN, so that nothing is left for initcheck, and instead raises an error
where a NaN comes out of an op.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import conv
import edges
import elementwise
import embeddings
import epilogue
import fp8
import gemm
import losses
import points
import reduce
import rows
import scan
from options import Options

FAMILIES = {
    "gemm": gemm.run_ops,
    "gradients": gemm.run_gradients,
    "narrow": gemm.run_narrow,
    "thin": gemm.run_thin,
    "one_row": gemm.run_one_row,
    "unaligned": gemm.run_unaligned,
    "kernels": gemm.run_kernels,  # each GEMM kernel by itself
    "epilogue": epilogue.run,
    "fp8_matmul": fp8.run_matmul,
    "fp8_quantize": fp8.run_quantize,
    "fp8_hidden": fp8.run_hidden,
    "fp8_norm": fp8.run_norm,
    "reduce": reduce.run,
    "rows": rows.run,
    "losses": losses.run,
    "embeddings": embeddings.run,
    "scan": scan.run,
    "elementwise": elementwise.run,
    "conv": conv.run,
    "sampling": points.run_sampling,
    "neighbours": points.run_neighbours,
    "offsets": points.run_hostile_offsets,
    "edges": edges.run,
}
GPU_ONLY = ("kernels",)


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 1 to N; got {text}")
    return int(found[1]) - 1, int(found[2])


ATEN = torch.ops.aten
PRODUCTS = {  # which cuBLAS writes by TMA, too
    ATEN.mm.default: ATEN.mm.out,
    ATEN.bmm.default: ATEN.bmm.out,
    ATEN.addmm.default: ATEN.addmm.out,
    ATEN.baddbmm.default: ATEN.baddbmm.out,
}


class NoNans(TorchDispatchMode):
    """New tensors are full of NaN, and none of them comes out of an op, but of those in half, which
    may overflow, and of steps of edge layers, whose tensors have room that nobody reads.
    """

    def __enter__(self) -> Any:
        torch.use_deterministic_algorithms(True, warn_only=True)  # what the filling depends on
        torch.utils.deterministic.fill_uninitialized_memory = True
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in PRODUCTS:
            a, b = args[-2:]
            out = a.new_zeros((*a.shape[:-1], b.shape[-1]))
            return PRODUCTS[func](*args, **kwargs, out=out)
        results = func(*args, **kwargs)
        if func.namespace.startswith("fusedops") and not str(func).startswith("fusedops.edge_"):
            for t in tree_leaves(results):
                floating = isinstance(t, torch.Tensor) and t.is_floating_point()
                if floating and t.dtype != torch.float16:
                    assert not t.float().isnan().any(), f"{func}: NaN"
        return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="sanitize", description=__doc__.splitlines()[0])
    parser.add_argument("family", nargs="*", help=", ".join(FAMILIES))
    parser.add_argument("--no-clusters", action="store_true", help="for racecheck")
    parser.add_argument("--poison", action="store_true", help="for initcheck where TMA writes")
    parser.add_argument("--match", default="", help="regular expression: only such GEMM kernels")
    parser.add_argument("--part", type=_part, default=(0, 1), metavar="I/N")
    parser.add_argument("--device", default="cuda", help="cpu: a trial of this program")
    wanted = parser.parse_args()
    unknown = sorted({*wanted.family} - {*FAMILIES})
    if unknown:
        parser.error(f"no family {', '.join(unknown)}; choose from {', '.join(FAMILIES)}")
    options = Options(wanted.device, not wanted.no_clusters, wanted.match, wanted.part)
    gpu = torch.cuda.get_device_name() if wanted.device == "cuda" else "a CPU"
    print(f"on {gpu}, torch {torch.__version__}", flush=True)
    count: Counter[str] = Counter()
    for family in wanted.family or FAMILIES:
        if family in GPU_ONLY and wanted.device == "cpu":
            print(f"{family}: skipped, it needs a GPU", flush=True)
            continue
        with NoNans() if wanted.poison else nullcontext():
            FAMILIES[family](options, count)
        if wanted.device == "cuda":
            torch.cuda.synchronize()
        print(f"{family}: no error so far", flush=True)
    print(f"{sum(count.values())} calls, {len(count)} kinds, no error")


if __name__ == "__main__":
    main()
