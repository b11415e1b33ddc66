"""Launching what was linked: configurations, kernel parameters, the driver's functions."""

from __future__ import annotations

import ctypes
import functools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_SHARED_LIMIT = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CLUSTER, _OVERLAP = 4, 6  # CUlaunchAttributeID
_MAP_TYPES = {torch.float16: 6, torch.bfloat16: 9}  # CUtensorMapDataType
_RASTER_WIDTH = 8  # clusters of tiles that a persistent grid walks side by side
_PARAMS_BYTES = 1152  # sizeof(VisitorParams); sm90_visitor_ir.cu checks these


@dataclass(frozen=True)
class Config:
    """A main loop: a row of kSm90Configs, and what its kernel takes."""

    number: int
    tile_m: int
    tile_n: int
    cluster_m: int
    cluster_n: int
    shared_bytes: int
    rate: float  # of the tensor cores' speed, where tiles are many

    @property
    def ctas(self) -> int:
        return self.cluster_m * self.cluster_n


CONFIGS = (
    Config(10, 128, 256, 2, 1, 193536, 1.0),
    Config(12, 256, 128, 1, 2, 187392, 1.0),
    Config(1, 128, 128, 2, 1, 203776, 0.93),
    Config(13, 64, 128, 1, 1, 211968, 0.75),
)


def choose(m: int, n: int, sms: int) -> Config:
    """The configuration whose waves of tiles take least time."""

    def cost(config: Config) -> float:
        clusters = _up(_up(m, config.tile_m), config.cluster_m) * _up(
            _up(n, config.tile_n), config.cluster_n
        )
        waves = _up(clusters, sms // config.ctas)
        return waves * config.tile_m * config.tile_n / config.rate

    return min(CONFIGS, key=cost)


def _up(a: int, b: int) -> int:
    return -(-a // b)


# ---- the driver ----


class _LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(what: str, status: int) -> None:
    if status:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(status, ctypes.byref(name))
        said = (name.value or b"?").decode()
        raise RuntimeError(f"fusedops.epilogue: {what} fails: {said} ({status})")


class Kernel:
    """A kernel of a cubin, loaded once for all devices."""

    def __init__(self, cubin: bytes, name: str, shared_bytes: int = 0) -> None:
        self._library, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._shared_bytes, self._devices, self._cubin = shared_bytes, set[int](), cubin
        driver, none = _driver(), ctypes.c_void_p()
        status = driver.cuLibraryLoadData(
            ctypes.byref(self._library), cubin, none, none, 0, none, none, 0
        )
        _check("loading a kernel", status)
        status = driver.cuLibraryGetKernel(ctypes.byref(self._kernel), self._library, name.encode())
        _check("finding a kernel", status)

    def launch(
        self,
        device: int,
        grid: tuple[int, int],
        block: tuple[int, int],
        arguments: Sequence[Any],
        cluster: int = 1,
        overlap: bool = False,
    ) -> None:
        """On the device's current stream; arguments: ctypes values, one for each parameter."""
        driver = _driver()
        if self._shared_bytes and device not in self._devices:
            status = driver.cuKernelSetAttribute(
                _SHARED_LIMIT, self._shared_bytes, self._kernel, device
            )
            _check("raising the limit of shared memory", status)
            self._devices.add(device)
        attributes = b""
        if cluster > 1:
            attributes += struct.pack("=ii3I52x", _CLUSTER, 0, cluster, 1, 1)
        if overlap:
            attributes += struct.pack("=iii60x", _OVERLAP, 0, 1)
        held = ctypes.create_string_buffer(attributes, max(len(attributes), 1))
        config = _LaunchConfig(
            (ctypes.c_uint * 3)(*grid, 1),
            (ctypes.c_uint * 3)(*block, 1),
            self._shared_bytes,
            torch.cuda.current_stream(device).cuda_stream,
            ctypes.addressof(held),
            (cluster > 1) + overlap,
        )
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        status = driver.cuLaunchKernelEx(
            ctypes.byref(config), self._kernel, pointers, ctypes.c_void_p()
        )
        _check("the launch", status)


# ---- parameters of a main loop ----


def _tensor_map(tensor: Tensor, box_rows: int, outer: bool, to: int) -> None:
    """Boxes of 128 bytes by box_rows, swizzled; `to`: 64-byte aligned memory for the map."""
    rows, columns = tensor.shape
    stride = tensor.stride(0) if rows > 1 else columns
    rank = 3 if outer else 2
    sizes = (ctypes.c_uint64 * 3)(columns, rows, 1)
    strides = (ctypes.c_uint64 * 2)(stride * 2, rows * stride * 2)
    box, steps = (ctypes.c_uint32 * 3)(64, box_rows, 1), (ctypes.c_uint32 * 3)(1, 1, 1)
    status = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(to),
        _MAP_TYPES[tensor.dtype],
        rank,
        ctypes.c_void_p(tensor.data_ptr()),
        sizes,
        strides,
        box,
        steps,
        0,  # no interleave
        3,  # swizzle of 128 bytes
        2,  # L2 promotion of 128 bytes
        0,  # zeros outside
    )
    _check("a tensor map", status)


def _fast_division(divisor: int) -> bytes:
    """cutlass::FastDivmod."""
    if divisor == 1:
        return struct.pack("=iII", 1, 0, 0)
    power = 31 + (divisor - 1).bit_length()
    return struct.pack("=iII", divisor, ((1 << power) + divisor - 1) // divisor, power - 32)


def _schedule(clusters_m: int, clusters_n: int, k_steps: int) -> bytes:
    """make_tile_schedule of sm90_tile_scheduler.h."""
    width = min(_RASTER_WIDTH, clusters_n)
    bands, count = (clusters_n - 1) // width, clusters_m * clusters_n
    facts = (count, count, k_steps, 0, 0, 0, width, bands * width * clusters_m, 0)
    divisors = (count, width * clusters_m, width, clusters_n - bands * width)
    return struct.pack("=9i", *facts) + b"".join(map(_fast_division, divisors))


def launch_main_loop(
    kernel: Kernel,
    config: Config,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    sums: Tensor | None,
    full: Sequence[Tensor],
    vectors: Sequence[tuple[Tensor, bool]],
    numbers: Sequence[float],
) -> None:
    """out (M, N) = the visitor's of x (M, K) @ weight (N, K).T, and the product into sums."""
    (m, k), n = x.shape, weight.shape[0]
    memory = ctypes.create_string_buffer(_PARAMS_BYTES + 64)
    at = -(-ctypes.addressof(memory) // 64) * 64
    skip = at - ctypes.addressof(memory)
    cluster_m, cluster_n = config.cluster_m, config.cluster_n
    _tensor_map(x, config.tile_m // (2 if cluster_n == 2 else 1), False, at)
    _tensor_map(weight, config.tile_n // (2 if cluster_m == 2 else 1), False, at + 128)
    _tensor_map(out, 64, True, at + 256)
    if sums is not None:
        _tensor_map(sums, 64, True, at + 384)
    struct.pack_into("=QQiiq???", memory, skip + 640, 0, 0, n, m, 0, False, sums is not None, False)
    clusters_m, clusters_n = (
        _up(_up(m, config.tile_m), cluster_m),
        _up(_up(n, config.tile_n), cluster_n),
    )
    schedule = _schedule(clusters_m, clusters_n, _up(k, 64))
    struct.pack_into("=84s", memory, skip + 768, schedule)
    base = skip + 880
    for i, tensor in enumerate(full):
        struct.pack_into("=Qq", memory, base + 16 * i, tensor.data_ptr(), tensor.stride(0))
    for i, (tensor, along_rows) in enumerate(vectors):
        facts = (tensor.data_ptr(), tensor.element_size(), along_rows)
        struct.pack_into("=Qi?", memory, base + 64 + 16 * i, *facts)
    struct.pack_into(f"={len(numbers)}f", memory, base + 160, *numbers)
    struct.pack_into("=iii", memory, base + 192, len(vectors), m, n)
    device = x.get_device()
    slots = _sms(device) // config.ctas
    grid = min(clusters_m * clusters_n, slots) * config.ctas
    params = (ctypes.c_char * _PARAMS_BYTES).from_buffer(memory, skip)
    kernel.launch(device, (grid, 1), (384, 1), [params], config.ctas, overlap=True)


@functools.cache
def _sms(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
