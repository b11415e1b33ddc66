"""An allocation that fails inside an op: torch's own error and text, nothing on stderr, no loss."""

from __future__ import annotations

import pytest
import torch

import fusedops
from fusedops._core.calls import public

HUGE = 2**48  # elements of one stride-0 value: no machine has room for a result of this size


def huge(device, *tail, dtype=torch.float32):
    return torch.ones(1, device=device, dtype=dtype).expand(HUGE, *tail)


CALLS = {
    "square": lambda d: fusedops.square(huge(d)),
    "relu": lambda d: fusedops.relu(huge(d, dtype=torch.bfloat16)),
    "softmax": lambda d: fusedops.softmax(huge(d, 4), dim=1),
    "layer_norm": lambda d: fusedops.layer_norm(huge(d, 4), (4,)),
    "linear": lambda d: fusedops.linear(huge(d, 8), torch.ones(4, 8, device=d)),
    "mlp": lambda d: fusedops.mlp(
        huge(d, 8), torch.ones(4, 8, device=d), None, torch.ones(8, 4, device=d), None, "relu"
    ),
    "sum": lambda d: fusedops.sum(huge(d, 2), dim=1),
    "cumsum": lambda d: fusedops.cumsum(huge(d, 2), dim=1),
    "group": lambda d: fusedops.points.group(
        torch.ones(1, 1, 1, device=d).expand(1, HUGE, 1),
        torch.zeros(1, 1, 1, dtype=torch.int64, device=d).expand(1, HUGE, 1),
    ),
    "square_backward": lambda d: torch.ops.fusedops.square_backward(huge(d), huge(d)),
    "linear_backward": lambda d: torch.ops.fusedops.linear_backward(
        huge(d, 4), huge(d, 8), torch.ones(4, 8, device=d), None, 0, True, False, False, False, True
    ),
}


def failure(call):
    """Type and text of the error: the error itself would keep the frames' tensors."""
    try:
        call()
    except RuntimeError as error:
        return type(error), str(error)
    pytest.fail("no error")


@pytest.mark.parametrize("call", CALLS)
def test_an_allocation_that_fails_raises_torchs_error(device, call, capfd):
    torchs = failure(lambda: torch.empty(HUGE, 2, device=device))
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
    capfd.readouterr()
    ours = failure(lambda: CALLS[call](device))
    assert ours[0] is torchs[0]
    start = torchs[1][:28]
    assert start in ("[enforce fail at alloc_cpu.c", "CUDA out of memory. Tried to")
    assert ours[1].startswith(start)
    assert capfd.readouterr().err == ""
    if device == "cuda":
        assert torch.cuda.memory_allocated() == before
    x = torch.randn(5, 8, device=device)
    assert torch.equal(fusedops.square(x), x * x)


def test_the_text_of_the_error_alone_is_enough():
    """What an op of the stable ABI gives in torch 2.14."""

    @public
    def function(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate 2"):
        function(torch.ones(1))


@pytest.mark.gpu
@pytest.mark.parametrize("op", [fusedops.square, lambda x: fusedops.linear(x, x), fusedops.softmax])
def test_a_step_beyond_the_limit_of_memory(op, capfd):
    x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
    total = torch.cuda.get_device_properties(0).total_memory
    op(x).sum().backward()  # workspaces are there
    torch.cuda.empty_cache()
    y = op(x)
    limit = torch.cuda.memory_reserved()
    filler = []

    def fill():
        while True:
            filler.append(torch.empty_like(x))

    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    try:
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            fill()
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            op(x)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            y.backward(torch.ones(1, device="cuda").expand_as(y))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        filler.clear()
    assert capfd.readouterr().err == ""
    op(x).sum().backward()
