"""The template op: what every elementwise op's test looks like."""

from __future__ import annotations

import pytest
import torch

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
scale = torch.ops.fusedops.template_scale


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (1000,), (7, 33, 5)], ids=str)
def test_matches_torch(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=dtype, device=device)
    y = scale(x, -1.25)
    torch.testing.assert_close(y, x * -1.25, rtol=0, atol=0)
    assert y.is_contiguous()


def test_strides_and_special_values(device: str) -> None:
    x = torch.randn(6, 8, device=device).t()[::2]
    torch.testing.assert_close(scale(x, 3.0), x * 3.0, rtol=0, atol=0)
    x = torch.tensor([float("nan"), float("inf"), -0.0], device=device)
    torch.testing.assert_close(scale(x, 2.0), x * 2.0, rtol=0, atol=0, equal_nan=True)


def test_scalar_arrives_whole(device: str) -> None:
    """A kernel that takes float instead of double reads garbage: nothing checks it for us."""
    value = 1 + 2.0**-40
    assert scale(torch.ones(1, dtype=torch.float64, device=device), value).item() == value


def test_error_names_the_argument(device: str) -> None:
    x = torch.ones(2, dtype=torch.int64, device=device)
    with pytest.raises(RuntimeError, match=r"template_scale: x must be float16.*; got int64"):
        scale(x, 2.0)


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_31_elements() -> None:
    x = torch.ones(2**31 + 5, dtype=torch.float16, device="cuda")
    y = scale(x, 2.0)
    assert y[-1].item() == 2.0
    assert torch.all(y == 2.0)


@pytest.mark.gpu
def test_side_stream_and_graph() -> None:
    x = torch.randn(4096, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x.mul_(2)
        y = scale(x, 0.5)
    stream.synchronize()
    torch.testing.assert_close(y, x * 0.5)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = scale(x, 4.0)
    x.fill_(3.0)
    graph.replay()
    assert torch.all(y == 12.0)


@pytest.mark.multi_gpu
def test_second_device() -> None:
    x = torch.ones(1000, device="cuda:1")
    assert torch.all(scale(x, 2.0) == 2.0)
    assert torch.cuda.current_device() == 0
