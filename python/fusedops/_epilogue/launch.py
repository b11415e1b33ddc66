"""Launching what was linked: configurations, kernel parameters, the driver's functions."""

from __future__ import annotations

import ctypes
import functools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .visitor import FULL, NUMBER, ROW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_SHARED_LIMIT = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CLUSTER, _OVERLAP = 4, 6  # CUlaunchAttributeID
_MAP_TYPES = {torch.float16: 6, torch.bfloat16: 9}  # CUtensorMapDataType
# Clusters of tiles that a persistent grid walks side by side, by the CTAs of a cluster: as the
# built-in kernels have them (raster_width_of in csrc/cutlass/select/families/sm90.cpp).
_RASTER_WIDTHS = {1: 8, 2: 16}
# Sizes in bytes of VisitorParams and of what lies in front of an operand's map and of
# VisitorArguments; sm90_visitor_ir.cu checks all offsets.
_PARAMS_BYTES, _OPERAND, _ARGUMENTS = 1280, 896, 1024
_ADDRESS, _FLOAT = struct.Struct("=Q"), struct.Struct("=f")


@dataclass(frozen=True)
class Needs:
    """What an epilogue takes of a main loop."""

    full: int  # (M, N) operands
    long: bool  # an expression of many instructions
    keep: bool  # the product, too

    def met_by(self, config: Config) -> bool:
        # NOTE: accumulators of 192 columns leave 48 registers.
        return config.tile_n != 192 or self.full <= (not self.long)


@dataclass(frozen=True)
class Config:
    """A main loop: a row of kSm90Configs, and what its kernel takes."""

    number: int
    tile_m: int
    tile_n: int
    cluster_m: int
    cluster_n: int
    shared_bytes: int
    rate: float  # of the fastest main loop's speed
    apart: int  # what no main loop hides of a tile's epilogue, as that much of K

    @property
    def name(self) -> str:
        """That in its file's name, behind the element's."""
        return str(self.number)

    @property
    def ctas(self) -> int:
        return self.cluster_m * self.cluster_n


# Rates and times of 15 products on H100 (K from 1024 to 4096); those of tiles of 192 columns are
# the built-in kernel's, the last one's are guesses. Where a place for an operand would cost a stage
# of the main loop, there is one with and one without it.
CONFIGS = (
    Config(10, 128, 256, 2, 1, 228352, 0.9, 330),
    Config(12, 256, 128, 1, 2, 222208, 0.87, 390),
    Config(1, 128, 128, 2, 1, 222208, 0.87, 110),
    Config(5, 128, 192, 1, 1, 224256, 0.9, 90),
    Config(6, 128, 192, 2, 1, 224256, 0.91, 90),
    Config(13, 64, 128, 1, 1, 214016, 0.7, 110),
)
# The K from which on tiles of 192 columns hide a loop over their blocks. On H100 gelu took 115
# instead of 128 us without a loop at K = 1024, and 218 instead of 209 at 2048.
_HIDES_FROM = 1536


def choose(m: int, n: int, k: int, sms: int, needs: Needs) -> Config:
    """The configuration whose waves of tiles take least time."""

    def cost(config: Config) -> float:
        clusters = _up(_up(m, config.tile_m), config.cluster_m) * _up(
            _up(n, config.tile_n), config.cluster_n
        )
        waves = _up(clusters, sms // config.ctas)
        return waves * config.tile_m * config.tile_n * (k / config.rate + config.apart)

    return min(filter(needs.met_by, CONFIGS), key=cost)


def loops(config: Config, k: int, needs: Needs) -> bool:
    """Whether one copy of the instructions serves all blocks of a tile.

    NOTE: where a tile's main loop is short, what a loop takes longer is not hidden.
    """
    return needs.long and (config.tile_n != 192 or needs.full > 0 or k >= _HIDES_FROM)


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


class Launch:
    """Attributes of a launch, as the driver takes them."""

    def __init__(self, cluster: int = 1, overlap: bool = False) -> None:
        attributes = b""
        if cluster > 1:
            attributes += struct.pack("=ii3I52x", _CLUSTER, 0, cluster, 1, 1)
        if overlap:
            attributes += struct.pack("=iii60x", _OVERLAP, 0, 1)
        self._memory = ctypes.create_string_buffer(attributes, max(len(attributes), 1))
        self.address, self.count = ctypes.addressof(self._memory), (cluster > 1) + overlap


ALONE = Launch(overlap=True)  # no cluster; starts while the kernel before it drains


@functools.cache
def _driver() -> Any:
    driver, pointer, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p, ctypes.c_uint
    driver.cuLaunchKernelEx.argtypes = (pointer, pointer, pointer, pointer)
    driver.cuTensorMapReplaceAddress.argtypes = (pointer, pointer)
    driver.cuTensorMapEncodeTiled.argtypes = (
        *(pointer, number, number, pointer, pointer, pointer, pointer, pointer),
        *(number, number, number, number),
    )
    return driver


def _check(what: str, status: int) -> None:
    if status:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(status, ctypes.byref(name))
        said = (name.value or b"?").decode()
        raise RuntimeError(f"fusedops.epilogue: {what} fails: {said} ({status})")


def _enter(device: int) -> None:
    """Makes torch's context of a device this thread's.

    The runtime does so at a thread's first launch or allocation; torch's own threads of backward
    may come here before.
    """
    number, context = ctypes.c_int(), ctypes.c_void_p()
    _check("finding the device", _driver().cuDeviceGet(ctypes.byref(number), device))
    # NOTE: held until the process ends, as torch holds it.
    status = _driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), number)
    _check("finding the device's context", status)
    _check("entering the device's context", _driver().cuCtxSetCurrent(context))


def _do(what: str, device: int, name: str, *arguments: Any) -> None:
    """Calls the driver; where the thread has no context, in the device's."""
    function = getattr(_driver(), name)
    status = function(*arguments)
    if status == _NO_CONTEXT:
        _enter(device)
        status = function(*arguments)
    _check(what, status)


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
        stream: int,
        grid: tuple[int, int],
        threads: tuple[int, int],
        arguments: Sequence[int],
        attributes: Launch = ALONE,
    ) -> None:
        """On a stream of the current device; arguments: the address of each parameter."""
        if self._shared_bytes and device not in self._devices:
            raising = (_SHARED_LIMIT, self._shared_bytes, self._kernel, device)
            _do("raising the limit of shared memory", device, "cuKernelSetAttribute", *raising)
            self._devices.add(device)
        config = _LaunchConfig(
            (*grid, 1),
            (*threads, 1),
            self._shared_bytes,
            stream,
            attributes.address,
            attributes.count,
        )
        pointers = (ctypes.c_void_p * len(arguments))(*arguments)
        launch = (ctypes.addressof(config), self._kernel, ctypes.addressof(pointers), None)
        _do("the launch", device, "cuLaunchKernelEx", *launch)


# ---- parameters of a main loop ----


def _tensor_map(tensor: Tensor, box_rows: int, outer: bool, to: int) -> None:
    """Boxes of 128 bytes by box_rows, swizzled; `to`: 64-byte aligned memory for the map."""
    rows, columns = tensor.shape
    sizes = (ctypes.c_uint64 * 3)(columns, rows, 1)
    strides = (ctypes.c_uint64 * 2)(columns * 2, rows * columns * 2)
    box, steps = (ctypes.c_uint32 * 3)(64, box_rows, 1), (ctypes.c_uint32 * 3)(1, 1, 1)
    _do(
        "a tensor map",
        tensor.get_device(),
        "cuTensorMapEncodeTiled",
        to,
        _MAP_TYPES[tensor.dtype],
        3 if outer else 2,
        tensor.data_ptr(),
        ctypes.addressof(sizes),
        ctypes.addressof(strides),
        ctypes.addressof(box),
        ctypes.addressof(steps),
        0,  # no interleave
        3,  # swizzle of 128 bytes
        2,  # L2 promotion of 128 bytes
        0,  # zeros outside
    )


def _fast_division(divisor: int) -> bytes:
    """cutlass::FastDivmod."""
    if divisor == 1:
        return struct.pack("=iII", 1, 0, 0)
    power = 31 + (divisor - 1).bit_length()
    return struct.pack("=iII", divisor, ((1 << power) + divisor - 1) // divisor, power - 32)


def _schedule(clusters_m: int, clusters_n: int, k_steps: int, width: int) -> bytes:
    """make_tile_schedule of sm90_tile_scheduler.h."""
    width = min(width, clusters_n)
    bands, count = (clusters_n - 1) // width, clusters_m * clusters_n
    facts = (count, count, k_steps, 0, 0, 0, width, bands * width * clusters_m, 0)
    divisors = (count, width * clusters_m, width, clusters_n - bands * width)
    return struct.pack("=9i", *facts) + b"".join(map(_fast_division, divisors))


class MainLoop:
    """A main loop with a visitor for one product (M, N, K): its parameters but for addresses."""

    def __init__(
        self,
        kernel: Kernel,
        config: Config,
        sms: int,
        maps: Sequence[Tensor],
        operands: Sequence[tuple[str, int]],
    ) -> None:
        """maps: x (M, K), weight (N, K), the result (M, N), and the product where it is kept;
        operands: of each its kind and the bytes of an element."""
        (m, k), n = maps[0].shape, maps[1].shape[0]
        self._kernel, self._maps = kernel, len(maps)
        clusters_m = _up(_up(m, config.tile_m), config.cluster_m)
        clusters_n = _up(_up(n, config.tile_n), config.cluster_n)
        clusters = min(clusters_m * clusters_n, sms // config.ctas)
        self._grid, self._cluster = (clusters * config.ctas, 1), Launch(config.ctas, overlap=True)
        memory, at, skip = _parameters()
        boxes = (
            config.tile_m // (2 if config.cluster_n == 2 else 1),
            config.tile_n // (2 if config.cluster_m == 2 else 1),
            *(64, 64),
        )
        for i, tensor in enumerate(maps):
            _tensor_map(tensor, boxes[i], i > 1, at + 128 * i)
        epilogue = (0, 0, n, m, 0, False, len(maps) == 4, False)
        struct.pack_into("=QQiiq???", memory, skip + 640, *epilogue)
        width = _RASTER_WIDTHS[config.ctas]
        schedule = _schedule(clusters_m, clusters_n, _up(k, 64), width)
        struct.pack_into("=84s", memory, skip + 768, schedule)
        self._places = self._describe(memory, skip + _ARGUMENTS, operands, m, n)
        full = [i for i, (kind, _) in enumerate(operands) if kind == FULL]
        self._operand = full[0] if full else None
        if full:  # of the result's shape and type
            _tensor_map(maps[2], 64, False, at + _OPERAND)
        self._template = memory[skip : skip + _PARAMS_BYTES]

    def _describe(
        self, memory: Any, at: int, operands: Sequence[tuple[str, int]], m: int, n: int
    ) -> list[tuple[Any, int]]:
        """What is constant of VisitorArguments; of each operand how and where its value goes."""
        full = vectors = numbers = 0
        places: list[tuple[Any, int]] = []
        for kind, size in operands:
            if kind == NUMBER:
                places.append((_FLOAT, _ARGUMENTS + 160 + 4 * numbers))
                numbers += 1
            elif kind == FULL:
                places.append((_ADDRESS, _ARGUMENTS + 16 * full))
                struct.pack_into("=q", memory, at + 16 * full + 8, n)
                full += 1
            else:
                places.append((_ADDRESS, _ARGUMENTS + 64 + 16 * vectors))
                struct.pack_into("=i?", memory, at + 64 + 16 * vectors + 8, size, kind == ROW)
                vectors += 1
        struct.pack_into("=iii", memory, at + 192, vectors, m, n)
        return places

    def launch(
        self, device: int, stream: int, maps: Sequence[Tensor], values: Sequence[int | float]
    ) -> None:
        """maps as before, perhaps elsewhere; values: of each operand its address or number."""
        memory, at, skip = _parameters()
        ctypes.memmove(at, self._template, _PARAMS_BYTES)
        replaced = [(at + 128 * i, tensor.data_ptr()) for i, tensor in enumerate(maps)]
        if self._operand is not None:
            replaced.append((at + _OPERAND, int(values[self._operand])))
        for address in replaced:
            _do("a tensor map", device, "cuTensorMapReplaceAddress", *address)
        for (form, place), value in zip(self._places, values, strict=True):
            form.pack_into(memory, skip + place, value)
        self._kernel.launch(device, stream, self._grid, (384, 1), (at,), self._cluster)


def _parameters() -> tuple[Any, int, int]:
    """Memory for the parameters, the address in it that they begin at, and where that is in it."""
    memory = ctypes.create_string_buffer(_PARAMS_BYTES + 64)
    skip = -ctypes.addressof(memory) % 64
    return memory, ctypes.addressof(memory) + skip, skip


@functools.cache
def multiprocessors(device: int) -> int:
    """The number of multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
