# ruff: noqa: N802
"""A driver for machines without a GPU: what was generated runs on fibers of a CPU, as
scripts/emulate has them, behind a product that torch makes of a launch's parameters."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
EMULATE = ROOT / "scripts" / "emulate"
ELEMENTS = {9: torch.bfloat16, 6: torch.float16}  # CUtensorMapDataType

# The instructions of the generated text, as a CPU says them.
INSTRUCTIONS = (
    (r"cvt\.rn\.bf16x2", "w = of_pair(__float2bfloat16(a), __float2bfloat16(b))"),
    (r"cvt\.rn\.f16x2", "w = of_pair(__float2half(a), __float2half(b))"),
    (r"\{\.reg", "__half h; unsigned short s = w; std::memcpy(&h, &s, 2); x = __half2float(h)"),
    (r"ex2", "y = std::exp2(x)"),
    (r"rcp", "y = 1.0f / x"),
    (r"tanh", "y = std::tanh(x)"),
    (r"griddepcontrol", ""),
    (r"ldmatrix", "read_matrices(words, place.operand + unit * 16)"),
    (r"max", "y = emulated::max_or_nan(a, b)"),
    (r"min", "y = -emulated::max_or_nan(-a, -b)"),
)
HEAD = """
#include <utility>
template <class T> unsigned of_pair(T a, T b) {
  unsigned w;
  std::memcpy(&w, &a, 2);
  std::memcpy(reinterpret_cast<char*>(&w) + 2, &b, 2);
  return w;
}
template <class V> V __ldcs(const V* from) { return *from; }
inline size_t __cvta_generic_to_shared(const void* at) { return reinterpret_cast<size_t>(at); }
inline void read_matrices(unsigned* words, const unsigned char* row) {
  const int lane = emulated::lane();
  for (int i = 0; i < 4; ++i) {
    std::memcpy(&words[i], __shfl_sync(~0u, row, 8 * i + lane / 4) + lane % 4 * 4, 4);
  }
}
inline float __fdividef(float a, float b) {  // as the CUDA C++ Programming Guide has it
  const float m = std::fabs(b);
  if (m < 0x1p-126f) return a / std::copysign(0.0f, b);
  return m > 0x1p126f ? a * std::copysign(0.0f, b) : a / b;
}
"""
BACKWARD = """
template <class... A, size_t... kPlaces>
void call(void (*kernel)(A...), void** from, std::index_sequence<kPlaces...>) {
  kernel(*static_cast<std::remove_cv_t<A>*>(from[kPlaces])...);
}
template <class... A> void call(void (*kernel)(A...), void** from) {
  call(kernel, from, std::make_index_sequence<sizeof...(A)>{});
}
extern "C" void launch(unsigned blocks, void** parameters) {
  emulated::run(dim3(blocks), dim3(32, 8), 0, [&] { call(fusedops_backward, parameters); });
}
"""
SUMS = """
extern "C" void launch_sums(unsigned blocks, void** parameters) {
  emulated::run(dim3(blocks), dim3(32, 8), 0, [&] { call(fusedops_sums, parameters); });
}
"""
# As sm90_visitor.cuh: a warpgroup has 64 rows by 64 columns, vectors and the first (M, N) operand
# lie in shared memory, and what is outside of them is zero.
FORWARD = """
extern "C" void launch(float* acc, const VisitorArguments* a) {  // acc: whole tiles of 64 by 64
  const int tiles_n = (a->columns + 63) / 64, width = tiles_n * 64;
  for (int tile = 0; tile < (a->rows + 63) / 64 * tiles_n; ++tile) {
    const int row0 = tile / tiles_n * 64, column0 = tile % tiles_n * 64;
    alignas(16) static unsigned char vectors[kVisitorVectors][256];
    for (int i = 0; i < a->num_vectors; ++i) {
      const VisitorVector& v = a->vectors[i];
      const int first = v.along_rows ? row0 : column0;
      const int count = std::min(64, (v.along_rows ? a->rows : a->columns) - first);
      std::memset(vectors[i], 0, 256);
      std::memcpy(vectors[i], static_cast<const char*>(v.data) + first * v.element_bytes,
                  count * v.element_bytes);
    }
    alignas(128) static unsigned char operand[64][128];
    std::memset(operand, 0, sizeof operand);
    for (int row = row0; fusedops_reads() && row < std::min(row0 + 64, a->rows); ++row) {
      for (int column = column0; column < std::min(column0 + 64, a->columns); column += 8) {
        const auto* from = static_cast<const unsigned short*>(a->full[0].data);
        std::memcpy(&operand[row - row0][(((column - column0) / 8) ^ (row % 8)) * 16],
                    from + row * a->full[0].row_stride + column, 16);
      }
    }
    emulated::run(dim3(1), dim3(128), 0, [&] {
      const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
      const VisitorPlace place{row0 + row, column0 + column, row, column, vectors[0], 256,
                               operand[threadIdx.x / 32 * 16 + threadIdx.x % 16]};
      float v[kVisitorValues];
      auto at = [&](int n) -> float& {
        return acc[(row0 + row + n / 2 % 2 * 8) * width + column0 + column + n / 4 * 8 + n % 2];
      };
      for (int n = 0; n < kVisitorValues; ++n) v[n] = at(n);
      VisitorWords words;
      fusedops_load(&words, &place, a);
      fusedops_visit(v, &words, &place, a);
      for (int n = 0; n < kVisitorValues; ++n) at(n) = v[n];
    });
  }
}
"""


def cuda_headers() -> Path | None:
    """Where the emulator finds them."""
    spec = importlib.util.spec_from_file_location("emulate", EMULATE / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.cuda_headers()


@functools.cache
def compiled(source: str, folder: Path) -> ctypes.CDLL:
    """The library of a generated text."""
    for start, words in INSTRUCTIONS:
        asm = rf'asm(?: volatile)?\("{start}.*?\);\n'
        source = re.sub(asm, words + ";\n", source, flags=re.DOTALL)
    assert "asm" not in source
    number = len(list(folder.glob("*.cpp")))
    file, library = folder / f"text{number}.cpp", folder / f"text{number}.so"
    source += BACKWARD if "fusedops_backward" in source else FORWARD
    file.write_text(HEAD + source + SUMS * ("fusedops_sums" in source))
    command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-w", "-fpermissive", f"-I{EMULATE}"]
    command += ["-isystem", str(cuda_headers()), "-include", "emulated.h", str(file)]
    command += [str(EMULATE / "emulated.cpp"), "-Wl,-Bsymbolic", "-o", str(library)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-3000:]
    return ctypes.CDLL(str(library))


class Driver:
    """The functions of libcuda that are called; a cubin is a generated text."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._kernels, self.replaced = folder, [], 0
        self.threads: list[int] | None = None  # with a context; None: all

    def cuLibraryLoadData(self, library: Any, text: bytes, *others: Any) -> int:
        self._kernels.append([compiled(text.decode(), self._folder), ""])
        library._obj.value = len(self._kernels)
        return 0

    def cuLibraryGetKernel(self, kernel: Any, library: Any, name: bytes) -> int:
        self._kernels[library.value - 1][1] = name.decode()
        kernel._obj.value = library.value
        return 0

    def cuKernelSetAttribute(self, *facts: Any) -> int:
        return 0

    def cuTensorMapEncodeTiled(
        self, to: int, element: int, rank: int, data: int, *rest: int
    ) -> int:
        if self._outside():
            return 201
        assert to % 64 == 0
        assert data % 16 == 0
        sizes, strides, box = (
            ctypes.cast(rest[i], ctypes.POINTER(t))
            for i, t in enumerate((ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32))
        )
        assert strides[0] == sizes[0] * 2
        assert box[0] * 2 == 128
        fields = (ctypes.c_uint64 * 16).from_address(to)
        fields[:4] = (data, element, sizes[0], sizes[1])
        return 0

    def cuTensorMapReplaceAddress(self, to: int, data: int) -> int:
        if self._outside():
            return 201
        assert data % 16 == 0
        ctypes.c_uint64.from_address(to).value = data
        self.replaced += 1
        return 0

    def _outside(self) -> bool:
        """Whether the thread has no context."""
        return self.threads is not None and threading.get_ident() not in self.threads

    def cuDeviceGet(self, number: Any, device: int) -> int:
        number._obj.value = 10 + device
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, number: Any) -> int:
        context._obj.value = 100 + number.value
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        assert self.threads is not None
        assert context.value == 110
        self.threads.append(threading.get_ident())
        return 0

    def cuLaunchKernelEx(self, config: int, kernel: Any, parameters: int, extra: None) -> int:
        if self._outside():
            return 201
        library, name = self._kernels[kernel.value - 1]
        (first,) = (ctypes.c_void_p * 1).from_address(parameters)
        if name != "fusedops_visitor":
            launch = library.launch_sums if name == "fusedops_sums" else library.launch
            launch(ctypes.c_uint.from_address(config).value, ctypes.c_void_p(parameters))
            return 0
        x, weight, y = (of_map(first + 128 * i) for i in range(3))
        (m, n) = y.shape
        acc = torch.zeros(-(-m // 64) * 64, -(-n // 64) * 64)
        acc[:m, :n] = x.float() @ weight.float().t()
        if ctypes.c_bool.from_address(first + 256 + 417).value:
            of_map(first + 384).copy_(acc[:m, :n])
        if library.fusedops_reads():
            operand = of_map(first + 896)
            assert operand.shape == y.shape
            assert operand.data_ptr() == ctypes.c_uint64.from_address(first + 1024).value
        library.launch(ctypes.c_void_p(acc.data_ptr()), ctypes.c_void_p(first + 1024))
        y.copy_(acc[:m, :n])
        return 0


def of_map(at: int) -> torch.Tensor:
    """The matrix that a tensor map describes."""
    data, element, columns, rows = (ctypes.c_uint64 * 4).from_address(at)
    memory = (ctypes.c_uint8 * (rows * columns * 2)).from_address(data)
    return torch.frombuffer(memory, dtype=ELEMENTS[element]).view(rows, columns)
