from typing import Any

def build_info() -> dict[str, Any]: ...
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
    aligned: bool = True,
    capability: int = 90,
    sm_count: int = 132,
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]: ...
