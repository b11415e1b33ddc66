from collections.abc import Callable
from typing import Any, Protocol

class _OfCall(Protocol):
    def __call__(
        self,
        m: int,
        n: int,
        k: int,
        *,
        a: tuple[int, int, int],
        b: tuple[int, int, int],
        dtype: str,
        epilogue: str,
        activation: int,
        allow_tf32: bool,
        capability: int,
        sm_count: int,
    ) -> dict[str, Any]: ...

def build_info() -> dict[str, Any]: ...
def enums() -> dict[str, list[str]]: ...
def gemm_configs() -> list[dict[str, Any]]: ...
def select_config(
    m: int,
    n: int,
    k: int,
    dtype: str = "bfloat16",
    *,
    epilogue: str = "fused",
    a_major: str = "k",
    b_major: str = "k",
    math: str = "native",
    activation: int = 0,
    aligned: bool = True,
    capability: int = 90,
    sm_count: int = 132,
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]: ...
def stream_k_tail(tiles: int, slots: int, k_steps: int) -> tuple[int, int, int]: ...

prepare_gemm: _OfCall
thin_gemm: _OfCall
unaligned_gemm: _OfCall

def narrow_backward(
    m: int,
    n: int,
    k: int,
    *,
    x: tuple[int, int, int],
    weight: tuple[int, int, int],
    dtype: str,
    activation: int,
    dx: bool,
    dweight: bool,
    dbias: bool,
    capability: int,
    sm_count: int,
) -> bool: ...
def plan_gemm(problem: dict[str, Any], capability: int, sm_count: int) -> dict[str, Any]: ...
def add_tuned_plan(
    problem: dict[str, Any], plan: dict[str, Any], capability: int, sm_count: int
) -> bool: ...
def clear_tuned_plans() -> None: ...
def set_tuned_loader(loader: Callable[[], object]) -> None: ...
def start_recording() -> None: ...
def stop_recording() -> list[tuple[dict[str, Any], int, int]]: ...
def reduce_plan(
    sizes: list[int],
    strides: list[int],
    reduced: list[bool],
    *,
    element_bytes: int = 2,
    alignment: int = 0,
    indexed: bool = False,
    sm_count: int = 132,
) -> dict[str, Any]: ...
