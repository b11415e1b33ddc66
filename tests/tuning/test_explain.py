"""explain: the same choice as the call's, from tensors of any kind, without a GPU."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import fusedops
from fusedops import _C
from fusedops.__main__ import main
from fusedops._core.activation import CODES
from gemm.test_select import measured_rows

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="names the visible GPU instead")


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta")


def product(*args, role="forward", **options):
    found = fusedops.explain(*args, **options).products
    return next(p for p in found if p.role == role)


@NO_GPU
@pytest.mark.parametrize("shape", [(8192, 4096, 1024), (64, 4096, 4096), (1, 4096, 4096)])
def test_it_is_the_choice_of_selection(shape):
    m, n, k = shape
    chosen, candidates = _C.select_config(m, n, k)
    found = product((m, k), (n, k))
    for name in ("name", "splits", "swizzle"):
        assert found.plan[name] == chosen[name]
    usable = [c for c in candidates if c["rejected"] is None]
    assert found.expected_us == pytest.approx(chosen["expected_us"])
    assert ("kernels for few rows" in found.why) == (m <= 64)
    assert len(usable) > 4
    assert found.measured_us is None
    times = [us for _, us in found.runners_up]
    assert times == sorted(times)
    assert len(times) == 4


@NO_GPU
def test_why_is_what_selection_did():
    table = "measured on an H200 for exactly this product"
    assert "few rows" in product((100, 64), (1000, 64)).why
    decided = 0
    for m, n, k, a, b, epilogue, costly, (*_, swizzle) in measured_rows():
        if (a, b, epilogue) == ("k", "k", "fused"):
            activation = "gelu_tanh" if costly else None
            found = product((m, k), (n, k), activation=activation)
            assert found.why.startswith(table), (m, n, k)
            candidates = _C.select_config(m, n, k, activation=CODES[activation])[1]
            same = [
                c["expected_us"]
                for c in candidates
                if (c["name"], c["splits"]) == (found.plan["name"], found.plan["splits"])
                and (c["family"] != "cluster" or c["swizzle"] == swizzle)
            ]
            assert same == [found.expected_us]
            decided += 1
    assert decided > 50


@NO_GPU
def test_the_time_model_is_named_where_it_chose():
    for m in range(2000, 2400, 8):
        if _C.select_config(m, 1000, 328)[0]["chosen_by"] == "model":
            assert "candidates by the time model" in product((m, 328), (1000, 328)).why
            return
    pytest.fail("the table holds every product")


@NO_GPU
def test_few_features_go_back_in_one_kernel():
    def backward(m, features, **options):
        shapes = (m, features), (features, features)
        found = fusedops.explain(*shapes, None, "relu", backward=True, **options).products[1:]
        return [("one kernel" in p.why, p.plan is None) for p in found]

    assert backward(65536, 256) == [(True, True)] * 2
    assert backward(65536, 256, dtype=torch.float32) == [(False, False)] * 2
    assert backward(65536, 264) == [(False, False)] * 2
    assert backward(512, 64) == [(False, False)] * 2


@NO_GPU
def test_a_gradient_in_fp32_takes_the_accumulator():
    x, w = torch.empty(16384, 768), torch.empty(3072, 768, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = product(x, w, role="dweight")
    assert found.problem["epilogue"] == "accumulator"
    half = w.detach().bfloat16().requires_grad_()
    assert product(x.bfloat16(), half, role="dweight").problem["epilogue"] == "fused"
    half.main_grad = torch.zeros(3072, 768)
    assert product(x.bfloat16(), half, role="dweight").problem["epilogue"] == "accumulator"
    narrow = torch.empty(256, 256, dtype=torch.bfloat16, requires_grad=True)
    narrow.main_grad = torch.zeros(256, 256)
    assert product(meta(65536, 256), narrow, None, "relu", role="dweight").plan is not None


def test_shapes_tensors_meta_and_fake_tensors_agree():
    sizes = (96, 64), (48, 64), (48,)
    with FakeTensorMode():
        fake = [torch.empty(s, dtype=torch.bfloat16) for s in sizes]
        of_fakes = str(product(*fake, "relu"))
    real = [torch.empty(s, dtype=torch.bfloat16) for s in sizes]
    for arguments in (sizes, [meta(*s) for s in sizes], real):
        assert str(product(*arguments, "relu")) == of_fakes


def test_the_report_reads_like_this():
    text = str(fusedops.explain((8192, 1024), (4096, 1024), None, "gelu_tanh", backward=True))
    assert text.startswith("linear of x (8192, 1024), weight (4096, 1024), bfloat16, gelu_tanh on ")
    for line in (
        "forward: 8192x4096x1024 bfloat16 TN gelu_tanh + preact",
        "dx: 8192x1024x4096 bfloat16 NN none",
        "dweight: 4096x1024x8192 bfloat16 NT none",
        "  kernel    sm",
        "  why       ",
        "  next      ",
        "  refused   ",
    ):
        assert line in text


@NO_GPU
def test_an_odd_n_names_what_tma_refuses():
    found = product((1024, 512), (1001, 512))
    assert found.plan["family"] == "sm80"
    reasons = [reason for kernels, reason in found.refused if kernels.startswith("sm90")]
    assert reasons == ["the output or the bias is not 16-byte aligned"]


def test_a_ragged_k_is_packed_and_says_so():
    found = product((3000, 521), (1000, 521))
    assert found.problem["k"] == 528
    assert [note.split(" is packed first")[0] for note in found.notes] == ["x", "weight"]
    assert "not a multiple of 16 bytes" in found.notes[0]


@NO_GPU
def test_a_row_major_weight_is_copied_where_the_pre_activation_is_stored():
    weight, bias = meta(1024, 4096).t(), meta(4096)
    found = product(meta(8192, 1024), weight, bias, "gelu_tanh", backward=True)
    assert [note.split(" reads")[0].split(" read ")[0] for note in found.notes] == [
        "weight is packed first: kernels that store the pre-activation"
    ]
    assert found.plan["splits"] == 1
    for rows, backward in ((8192, False), (256, True)):  # no z; so few rows that a copy is much
        x = meta(rows, 1024)
        assert not product(x, weight, bias, "gelu_tanh", backward=backward).notes


def test_strides_and_offsets_count():
    x = meta(256, 1024)[:, ::2]
    assert "neither of its strides is 1" in product(x, meta(512, 512)).notes[0]
    shifted = meta(256 * 512 + 1)[1:].view(256, 512)
    assert "not a multiple of 16 bytes" in product(shifted, meta(512, 512)).notes[0]
    assert "overlap" in product(meta(1, 512).expand(256, 512), meta(512, 512)).notes[0]
    transposed = meta(512, 256).t()
    assert product(transposed, meta(512, 512)).problem["a_major"] == "mn"
    assert not product(transposed, meta(512, 512)).notes


def test_leading_dimensions_collapse_or_are_copied():
    assert product(meta(4, 8, 64), meta(16, 64)).problem["m"] == 32
    assert product(meta(64), meta(16, 64)).problem["m"] == 1
    cut = fusedops.explain(meta(4, 8, 64)[:, :3], meta(16, 64))
    assert any("do not collapse" in note for note in cut.notes)


def test_gradients_decide_what_is_explained():
    def roles(x_grad, w_grad, b_grad, **options):
        tensors = [torch.empty(s) for s in ((8, 16), (4, 16), (4,))]
        for tensor, grad in zip(tensors, (x_grad, w_grad, b_grad), strict=True):
            tensor.requires_grad_(grad)
        products = fusedops.explain(*tensors, "gelu", **options).products
        return [p.role for p in products], products[0].problem["epilogue"]

    assert roles(False, False, False) == (["forward"], "fused")
    assert roles(True, False, False) == (["forward", "dx"], "preact")
    assert roles(False, True, False) == (["forward", "dweight"], "preact")
    assert roles(False, False, True) == (["forward"], "preact")
    assert roles(False, True, False, backward=False) == (["forward"], "fused")
    with torch.no_grad():
        assert roles(True, True, True) == (["forward"], "fused")


@NO_GPU
def test_fp32_follows_the_precision_setting():
    shapes = (4096, 4096), (4096, 4096)
    exact = product(*shapes, dtype=torch.float32)
    assert exact.plan["name"].startswith("parts")
    assert "bf16 parts" in exact.why
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert product(*shapes, dtype=torch.float32).problem["math"] == "tf32"
        dx = product(*shapes, dtype=torch.float32, backward=True, role="dx")
        assert "TF32 WGMMA reads K-major operands" in dx.notes[0]
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert product((512, 512), (512, 512), dtype=torch.float64).plan["family"] == "sm80"


def test_autocast_decides_the_dtype():
    x, w = torch.empty(64, 64), torch.empty(64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        assert product(x, w).problem["dtype"] == "bfloat16"
        assert product(x.double(), w.double()).problem["dtype"] == "float64"


def test_empty_products_compute_nothing():
    assert "the output is empty" in product((0, 64), (16, 64)).why
    assert "no product" in product((8, 0), (16, 0)).why
    assert "no product" in str(product((8, 0), (16, 0)))


def test_the_errors_are_those_of_the_call():
    with pytest.raises(ValueError, match="explain: activation must be"):
        fusedops.explain((8, 8), (8, 8), None, "softmax")
    with pytest.raises(TypeError, match="explain: weight must be a Tensor; got int"):
        fusedops.explain((8, 8), 3)
    for shape in ((float("inf"), 4), (8, -1), (2.5, 4)):
        with pytest.raises(TypeError, match="explain: x must be a Tensor or a shape of integers"):
            fusedops.explain(shape, (8, 4))
    for shape in ("88", {8: 1, 4: 2}):
        with pytest.raises(TypeError, match="explain: x must be a Tensor; got"):
            fusedops.explain(shape, (8, 4))
    with pytest.raises(TypeError, match=r"explain: dtype must be a torch.dtype; got 'bfloat16'"):
        fusedops.explain((8, 8), (8, 8), dtype="bfloat16")
    with pytest.raises(RuntimeError, match=r"linear: weight must have shape \(N, 8\)"):
        fusedops.explain((8, 8), (8, 9))
    with pytest.raises(RuntimeError, match=r"linear: bias must have shape \(8,\)"):
        fusedops.explain((8, 8), (8, 8), (7,))


def test_the_command(capsys):
    assert main(["explain", "8192x4096x1024,16x8x8", "--activation", "relu", "--forward"]) == 0
    out = capsys.readouterr().out
    assert "forward: 8192x4096x1024 bfloat16 TN relu" in out
    assert "forward: 16x8x8 bfloat16 TN relu" in out
    with pytest.raises(SystemExit):
        main(["explain", "8192x4096"])
    for words, message in (
        (["--dtype", "foo"], "expected one of float16, bfloat16, float32, float64; got foo"),
        (["--dtype", "nn"], "got nn"),
        (["--activation", "foo"], "invalid choice: 'foo'"),
    ):
        with pytest.raises(SystemExit):
            main(["explain", "8x8x8", *words])
        assert message in capsys.readouterr().err


@pytest.mark.sm90
def test_on_a_gpu_it_explains_that_gpu():
    x, w = (torch.randn(s, device="cuda").bfloat16() for s in [(4096, 256), (4096, 256)])
    report = fusedops.explain(x, w)
    assert torch.cuda.get_device_name() in str(report)
    assert report.products[0].plan["family"] == "sm90"
    assert product(x[:, 1:], w[:, 1:]).notes
