"""The suite of whole models, with one of ours in tiny widths on the CPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fusedops
from fusedops.bench import cli, together
from fusedops.bench.report import results
from fusedops.bench.suites.base import ALL, Selection, load_suite
from fusedops.bench.suites.models import check, contenders, profile, spec, suite

CPU = torch.device("cpu")
KNOWN = {model.name: model for model in suite.MODELS}
PACKAGES = {model.package for model in suite.MODELS} - {"torch"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(together, "ROUND_US", 1.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def _no_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's graphs run as they are: the suite is under test, not the compiler."""
    plain = torch.compile

    def compile(function: Any, **options: Any) -> Any:
        return plain(function, dynamic=options.get("dynamic"), backend="eager")

    monkeypatch.setattr(torch, "compile", compile)


def bench(*args: str) -> int:
    return cli.main(["models", *args, "--device", "cpu", "--rounds", "1", "--out", "out/"])


def cases(file: str = "out/models.csv") -> set[tuple[str, str, str]]:
    return {(r["case"], r["pass"], r["peer"]) for r in results.read_rows(Path(file))}


def variants(model: str, peers: tuple[str, ...], passes: tuple[str, ...]) -> set[Any]:
    names = [f"{model}/{v}" for v in contenders.VARIANTS if not v.endswith(contenders.GRAPHS)]
    return {(name, pass_, peer) for name in names for pass_ in passes for peer in peers}


# ---- the list ----


def test_it_has_twenty_models_and_more() -> None:
    assert len(KNOWN) == len(suite.MODELS) >= 20
    assert {"transformers", "timm", "torchvision", "torch_geometric"} == PACKAGES
    found = [case.name for case in load_suite("models").cases(Selection("step"))]
    assert len(found) == len(contenders.VARIANTS) * len(KNOWN)
    assert "llama/fuse_compile" in found
    assert tuple(KNOWN)[: len(suite.FIRST)] == suite.FIRST
    assert "models" not in ALL


@pytest.mark.parametrize("name", KNOWN)
def test_a_tiny_model_has_a_gradient_everywhere(name: str) -> None:
    """And its exact copy the same loss, or nothing that is compared would mean a thing."""
    model = KNOWN[name]
    pytest.importorskip(model.package)
    torch.manual_seed(0)
    narrow, more = (torch.float32, torch.float64) if model.fp32 else (torch.bfloat16, torch.float32)
    loaded = model.load(True, narrow, CPU)
    got = contenders.make("eager", loaded, "step")(*loaded.data)
    wide = loaded.exact(more)
    exact = contenders.make("eager", wide, "step")(*wide.data)
    tolerance = 1e-3 if model.fp32 else 0.5
    assert check.worst_error(got, got, exact, tolerance) < tolerance
    learnt = {n for n, p in loaded.module.named_parameters() if p.requires_grad}
    fixed = {"model.encoder.embed_positions.weight"}  # Whisper's sinusoids
    assert learnt - fixed <= got.keys()
    assert all(got[name].any() for name in learnt & got.keys())


def test_layers_are_the_outermost_that_are_named_so() -> None:
    model = KNOWN["titan_llama"].build(True)
    assert [type(layer).__name__ for layer in spec.layers(model)] == ["LlamaBlock"] * 2
    assert spec.layers(KNOWN["dlrm"].build(True)) == []


def test_a_twin_has_modules_of_its_own_around_the_same_parameters() -> None:
    loaded = KNOWN["nanogpt_autocast"].load(True, torch.bfloat16, CPU)
    twin = loaded.twin()
    assert [id(p) for p in twin.parameters()] == [id(p) for p in loaded.module.parameters()]
    assert not {id(m) for m in twin.modules()} & {id(m) for m in loaded.module.modules()}
    assert twin.lm_head.weight is twin.wte.weight
    assert loaded.exact(torch.float32).autocast is None


def test_what_is_checked_of_cuda_graphs_is_a_replay() -> None:
    seen: list[int] = []
    call = contenders.recorded(lambda *data: seen.append(data[0]))
    for i in range(2):
        call(i)
    assert seen == [0] * (contenders.RECORDING + 1) + [1]


# ---- a run ----


@pytest.mark.usefixtures("_no_inductor")
def test_a_run_stores_every_variant_beside_every_peer(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--case", "titan_llama/*") == 0
    peers = ("eager", "compile", "compile_whole")
    assert cases() == variants("titan_llama", peers, ("step", "infer"))
    out = capsys.readouterr().out
    assert "6 cases" in out
    found = results.read_rows(Path("out/models.csv"))
    step = {r["peer_us"] for r in found if (r["pass"], r["peer"]) == ("step", "eager")}
    assert len(step) == 1  # one run, one time
    shares = Path("out/models_shares.csv").read_text().splitlines()
    assert shares[0] == ",".join(results.SHARES_COLUMNS)
    assert len(shares) == 1 + 2 * (len(peers) + 3)
    assert bench("--case", "titan_llama/*", "--missing") == 0
    assert capsys.readouterr().out.startswith("0 cases")
    assert cli.main(["--merge", "out"]) == 0
    merged = Path("perf/results/cpu/models_shares.csv").read_text().splitlines()
    assert sorted(merged) == sorted(shares)
    assert cases("perf/results/cpu/models.csv") == cases()


@pytest.mark.usefixtures("_no_inductor")
def test_a_run_goes_on_where_the_last_one_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--case", "dlrm/fuse", "--pass", "infer", "--peers", "eager") == 0
    assert bench("--case", "dlrm/*", "--pass", "infer", "--peers", "eager", "--missing") == 0
    assert "2 cases" in capsys.readouterr().out
    assert cases() == variants("dlrm", ("eager",), ("infer",))
    assert bench("--case", "dlrm/*", "--peers", "eager", "--budget", "1e-9") == 0
    assert "budget spent: 6 cases left" in capsys.readouterr().out


@pytest.mark.usefixtures("_no_inductor")
@pytest.mark.parametrize("pass_", ["step", "infer"])
def test_a_wrong_variant_gets_no_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pass_: str
) -> None:
    class Wrong(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -super().forward(x)

    def fuse(model: Any) -> None:
        model.top[2].__class__ = Wrong

    monkeypatch.setattr(fusedops, "fuse", fuse)
    assert bench("--case", "dlrm/*", "--pass", pass_, "--peers", "eager") == 1
    out = capsys.readouterr().out
    assert "FAILED WrongModelError" in out
    assert "FAILED models dlrm/fuse_compile" in out
    assert cases() == {("dlrm/inductor", pass_, "eager")}


@pytest.mark.usefixtures("_no_inductor")
def test_a_peer_that_is_wrong_or_raises_gets_no_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make = contenders.make

    def patched(name: str, *args: Any) -> Any:
        if name == "compile":
            raise RuntimeError("no backend\nand more")
        return make(name, *args)

    monkeypatch.setattr(suite, "make", patched)
    assert bench("--case", "dlrm/fuse", "--pass", "infer") == 0
    out = capsys.readouterr().out
    assert "compile: FAILED RuntimeError: no backend;" in out
    assert "compile_whole: skipped: the same as compile" in out
    assert cases() == {("dlrm/fuse", "infer", "eager")}


@pytest.mark.usefixtures("_no_inductor")
@pytest.mark.parametrize("out_of_memory", ["compile", "dlrm/inductor"])
def test_what_raises_in_its_turn_is_dropped_and_the_others_are_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out_of_memory: str
) -> None:
    """Between others a contender may find less memory than alone."""
    make, calls = contenders.make, 0

    def patched(name: str, *args: Any) -> Any:
        call = make(name, *args)

        def limited(*data: Any) -> Any:
            nonlocal calls
            limits = name == out_of_memory.split("/")[-1]
            calls += limits
            if limits and calls > 5:  # the check, the warm-up and two of one alone
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
            return call(*data)

        return limited

    monkeypatch.setattr(suite, "make", patched)
    failed = "dlrm" in out_of_memory
    args = ("--case", "dlrm/*", "--pass", "infer", "--peers", "eager,compile")
    assert bench(*args) == failed
    assert "FAILED OutOfMemoryError: CUDA out of memory" in capsys.readouterr().out
    left = variants("dlrm", ("eager", "compile") if failed else ("eager",), ("infer",))
    assert cases() == {row for row in left if row[0] != out_of_memory}


def test_nobody_is_dropped_where_the_gpu_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    found = together.Contenders({"eager": lambda: None})
    monkeypatch.setattr(together.timing, "synchronize", lost)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        together._time(found, (), CPU, 1)
    assert list(found.calls) == ["eager"]


@pytest.mark.usefixtures("_no_inductor")
def test_a_model_that_does_not_run_here_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, made = contenders.make, []

    def patched(name: str, loaded: spec.Loaded, pass_: str) -> Any:
        made.append(name)
        if name == "eager":
            raise RuntimeError("not implemented for fp32")
        return make(name, loaded, pass_)

    monkeypatch.setattr(suite, "make", patched)
    assert bench("--case", "dlrm/*", "--pass", "step") == 1
    assert capsys.readouterr().out.count("FAILED RuntimeError: not implemented for fp32") == 3
    assert made == ["eager"]


@pytest.mark.usefixtures("_no_inductor")
@pytest.mark.parametrize("kind", [RuntimeError, AssertionError])
def test_times_count_where_no_profile_is_allowed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: type[Exception]
) -> None:
    def refuse(*_: Any) -> Any:
        raise kind("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    monkeypatch.setattr(suite, "shares", refuse)
    assert bench("--case", "dlrm/fuse", "--pass", "infer", "--peers", "eager") == 0
    assert "fuse: no profile: CUPTI_ERROR" in capsys.readouterr().out
    assert cases() == {("dlrm/fuse", "infer", "eager")}
    assert not Path("out/models_shares.csv").exists()


@pytest.mark.parametrize("name", ["pointnet2", "pointnet2_bn"])
def test_largest_features_are_compared_in_fp32(name: str) -> None:
    """In bf16 other rows are the largest of their groups than in fp32, in eager too."""
    args = ("--case", f"{name}/fuse", "--pass", "step", "--peers", "eager", "--dtype", "fp32")
    assert bench(*args) == 0
    assert cases() == {(f"{name}/fuse", "step", "eager")}


def test_a_missing_package_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert bench("--case", "llama/*", "--pass", "step") == 0
    out = capsys.readouterr().out
    assert out.count("skipped: transformers is not installed (import of transformers halted") == 3
    assert not Path("out/models.csv").exists()


def test_models_have_no_shapes() -> None:
    with pytest.raises(SystemExit, match="do not fit suite models: models have the sizes"):
        bench("--shapes", "8x8")


@pytest.mark.slow
def test_compiled_variants_are_the_model() -> None:
    """With Inductor and the graph pass: the run checks loss and gradients of each."""
    assert bench("--case", "dlrm/*", "--pass", "step", "--dtype", "fp32") == 0
    assert cases() == variants("dlrm", ("eager", "compile"), ("step",))


@pytest.mark.gpu
def test_a_gpu_run_has_memory_and_shares() -> None:
    args = ["models", "--case", "dlrm/*", "--pass", "step", "--rounds", "2", "--out", "out/"]
    assert cli.main(args) == 0
    found = results.read_rows(Path("out/models.csv"))
    assert {r["peer"] for r in found} == {"eager", "compile", "compile_graphs"}
    plain = [r for r in found if not r["case"].endswith(contenders.GRAPHS)]
    assert len(plain) == 9  # variants by peers
    assert all(float(r["ours_extra_mb"]) > 0 for r in plain)
    lines = Path("out/models_shares.csv").read_text().splitlines()[1:]
    assert all(float(line.split(",")[5]) > 0.1 for line in lines)  # GEMMs


# ---- its parts ----


def test_errors_are_held_against_eagers() -> None:
    exact = {"loss": torch.tensor(2.0), "a": torch.ones(100), "zero": torch.zeros(4)}
    plain = {k: t + 0.01 for k, t in exact.items()} | {"zero": torch.full((4,), 1e-4)}
    near = {k: t + 0.02 for k, t in exact.items()} | {"zero": torch.full((4,), 2e-4)}
    assert check.worst_error(near, plain, exact, 1e-3) == pytest.approx(0.06, rel=0.2)
    for name, value in (("a", torch.ones(100) + 0.04), ("zero", torch.full((4,), 1e-2))):
        with pytest.raises(check.WrongModelError, match=f"{name}: relative error"):
            check.worst_error(near | {name: value}, plain, exact, 1e-3)
    with pytest.raises(check.WrongModelError, match="a: relative error nan"):
        check.worst_error(near | {"a": torch.full((100,), torch.nan)}, plain, exact, 1e-3)
    with pytest.raises(check.WrongModelError, match="gradients of a on one side"):
        check.worst_error({"loss": exact["loss"], "zero": exact["zero"]}, plain, exact, 1e-3)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", "gemm"),
        ("void fusedops::sm90::gemm_kernel<cutlass::bfloat16_t>", "gemm"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_kernel<cutlass::half_t>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3", "norm"),
        ("void fusedops::norm_backward_kernel<float>", "norm"),
        ("triton_poi_fused_add_mul_silu_2", "other"),
        ("aten::addmm", "gemm"),
        ("aten::add", "other"),
        ("fusedops::gated_mlp_forward", "gemm"),
    ],
)  # fmt: skip
def test_kernels_are_sorted_by_name(name: str, kind: str) -> None:
    assert profile.kind(name) == kind


def test_what_liger_replaces_is_in_place_while_it_runs_only() -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    from transformers.models.llama import modeling_llama

    rope = modeling_llama.apply_rotary_pos_emb
    other = len

    def patch() -> None:
        modeling_llama.apply_rotary_pos_emb = other

    changed = contenders.changed_globals("transformers.models.", patch)
    assert changed == {modeling_llama: {"apply_rotary_pos_emb": other}}
    assert modeling_llama.apply_rotary_pos_emb is rope
    run = contenders._patched(changed, lambda: modeling_llama.apply_rotary_pos_emb)
    assert run() is other
    assert modeling_llama.apply_rotary_pos_emb is rope

    def patch_half() -> None:
        patch()
        raise AttributeError("of another version of transformers")

    with pytest.raises(AttributeError):
        contenders.changed_globals("transformers.models.", patch_half)
    assert modeling_llama.apply_rotary_pos_emb is rope
