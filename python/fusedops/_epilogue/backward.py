"""The CUDA C++ of a derived backward: a kernel over elements, which also sums along rows and
columns of its blocks, and one that adds up those sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .graph import ACCUMULATOR, BEHIND, Node
from .visitor import COLUMN, ELEMENT_TEXT, FULL, MATH_TEXT, NUMBER, ROW, statements, unrolled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROWS_PER_BLOCK, COLUMNS_PER_BLOCK = 64, 256
SUMS_PER_BLOCK = {COLUMN: 32, ROW: 256}


@dataclass
class _Backward:
    """The parts of the kernel of a backward, while they are gathered."""

    parameters: list[str]
    inputs: list[str]  # of an element
    before: list[str] = field(default_factory=list)  # of a thread
    sums: list[str] = field(default_factory=list)  # of a row, also where it has no columns
    row_loads: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)  # of an element, behind the expressions
    stores: list[str] = field(default_factory=list)  # of a row
    finish: list[str] = field(default_factory=list)  # of a thread

    def read(self, name: str, kind: str, size: int) -> None:
        """An operand comes in."""
        if kind == FULL:
            self.parameters.append(f"const uint4* __restrict__ p_{name}")
        elif kind == NUMBER:
            self.parameters.append(f"const float in_{name}")
        else:
            c_type = "float" if size == 4 else "unsigned short"
            self.parameters.append(f"const {c_type}* __restrict__ p_{name}")
            if kind == ROW:
                self.row_loads.append(f"const float in_{name} = {_read(name, size, 'row')};")
                return
            value = _read(name, size, "column + e")
            self.before.append(
                f"float c_{name}[8]; for (int e = 0; e < 8; ++e) "
                f"c_{name}[e] = inside ? {value} : 0.0f;"
            )
            self.inputs.append(f"const float in_{name} = c_{name}[e];")

    def write(self, name: str, kind: str, result: str) -> None:
        """A gradient goes out."""
        c_type = "uint4" if kind == FULL else "float"
        self.parameters.append(f"{c_type}* __restrict__ d_{name}")
        if kind == FULL:
            words = ", ".join(f"packed(o_{name}[{2 * i}], o_{name}[{2 * i + 1}])" for i in range(4))
            self.row_loads.append(f"float o_{name}[8];")
            self.steps.append(f"o_{name}[e] = {result};")
            self.stores.append(f"d_{name}[at] = make_uint4({words});")
        elif kind == COLUMN:
            self.before.append(f"float s_{name}[8] = {{}};")
            self.steps.append(f"s_{name}[e] += {result};")
            self.finish.append(
                f"column_sums(s_{name}, d_{name} + block_row * columns, column, inside);"
            )
        else:
            self.sums.append(f"float r_{name} = 0.0f;")
            self.steps.append(f"r_{name} += {result};")
            self.stores.append(
                f"}} r_{name} = warp_sum(r_{name}); if (threadIdx.x == 0) "
                f"d_{name}[row * blocks_across + block_column] = r_{name}; if (inside) {{"
            )


def backward_source(
    gradients: Mapping[str, Node], operands: Mapping[str, tuple[str, int]], element: str
) -> str:
    """fusedops_backward: gradients of `gradients`' names, elementwise or as partial sums.

    Its parameters: rows, columns, dy, acc, then each operand, then the results in the order of
    gradients: (M, N) for acc and (M, N) operands, (blocks above each other, N) of float for
    columns, (M, blocks side by side) of float for rows. Where there are such sums, fusedops_sums
    (`_sums`) follows.
    """
    kinds = {ACCUMULATOR: FULL, **{name: kind for name, (kind, _) in operands.items()}}
    lines, results = statements(list(gradients.values()), coarse=False)
    reads = [BEHIND, ACCUMULATOR, *(n for n, (kind, _) in operands.items() if kind == FULL)]
    loads = [f"const uint4 w_{name} = __ldcs(p_{name} + at);" for name in reads]
    parts = _Backward(
        ["const long long rows", "const long long columns"],
        [f"const float in_{name} = of(w_{name}, e);" for name in reads],
    )
    for name in reads[:2]:
        parts.read(name, FULL, 2)
    for name, (kind, size) in operands.items():
        parts.read(name, kind, size)
    for name, result in zip(gradients, results, strict=True):
        parts.write(name, kinds[name], result)
    gap = "\n      "
    return f"""{ELEMENT_TEXT[element]}{MATH_TEXT}{_BACKWARD_PARTS}
extern "C" __global__ void __launch_bounds__(256) fusedops_backward(
    {", ".join(parts.parameters)}) {{
  wait_for_predecessor();
  const unsigned blocks_across = (columns + {COLUMNS_PER_BLOCK - 1}) / {COLUMNS_PER_BLOCK};
  const unsigned block_row = blockIdx.x / blocks_across, block_column = blockIdx.x % blocks_across;
  const long long column = block_column * {COLUMNS_PER_BLOCK}ll + threadIdx.x * 8;
  const bool inside = column < columns;
{unrolled(parts.before)}
#pragma unroll 2
  for (int r = threadIdx.y; r < {ROWS_PER_BLOCK}; r += 8) {{
    const long long row = block_row * {ROWS_PER_BLOCK}ll + r;
    if (row >= rows) break;
    const long long at = (row * columns + column) / 8;
    {gap.join([*parts.sums, *parts.row_loads])}
    if (inside) {{
      {gap.join(loads)}
#pragma unroll
      for (int e = 0; e < 8; ++e) {{
        {gap.join([*parts.inputs, *lines, *parts.steps])}
      }}
      {gap.join(parts.stores)}
    }}
  }}
  {gap.join(parts.finish)}
}}
{_sums([(name, *operands[name]) for name in gradients if kinds[name] != FULL])}"""


def _sums(results: Sequence[tuple[str, str, int]]) -> str:
    """fusedops_sums: partial sums, added in order; results: of each name, kind, element's bytes.

    Its parameters: rows, columns, the blocks of a result, then of each result the sums and where
    they go, in the operand's dtype. SUMS_PER_BLOCK says what a block of 32 by 8 threads adds.
    """
    if not results:
        return ""
    parameters = ["const long long rows", "const long long columns", "const unsigned blocks"]
    cases = []
    for number, (name, kind, size) in enumerate(results):
        to = "float" if size == 4 else "unsigned short"
        parameters += [f"const float* __restrict__ p_{name}", f"{to}* __restrict__ d_{name}"]
        along = "columns" if kind == COLUMN else "rows"
        cases.append(
            f"if (which == {number}) sums_of_{along}(p_{name}, d_{name}, rows, columns, block);"
        )
    gap = "\n  "
    return f"""{_SUMS}
extern "C" __global__ void __launch_bounds__(256) fusedops_sums({", ".join(parameters)}) {{
  wait_for_predecessor();
  const unsigned which = blockIdx.x / blocks, block = blockIdx.x % blocks;
  {gap.join(cases)}
}}
"""


def _read(name: str, size: int, index: str) -> str:
    """A value of a vector in global memory."""
    return f"p_{name}[{index}]" if size == 4 else f"low(p_{name}[{index}])"


_BACKWARD_PARTS = """
// The kernel may start while the one before it drains; so may the next one.
__device__ __forceinline__ void wait_for_predecessor() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ float of(const uint4& w, int e) {
  const unsigned word = e < 2 ? w.x : e < 4 ? w.y : e < 6 ? w.z : w.w;
  return e % 2 ? high(word) : low(word);
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
// The sums of a block's eight warps, in order.
__device__ __forceinline__ void column_sums(const float (&sums)[8], float* to, long long column,
                                            bool inside) {
  __shared__ float parts[8][32][9];
  __syncthreads();
#pragma unroll
  for (int e = 0; e < 8; ++e) parts[threadIdx.y][threadIdx.x][e] = sums[e];
  __syncthreads();
  if (!inside) return;
  float sum = 0.0f;  // of column e = threadIdx.y
  for (int warp = 0; warp < 8; ++warp) sum += parts[warp][threadIdx.x][threadIdx.y];
  to[column + threadIdx.y] = sum;
}
"""

_SUMS = f"""
__device__ __forceinline__ void put(float* to, float x) {{ *to = x; }}
__device__ __forceinline__ void put(unsigned short* to, float x) {{
  *to = static_cast<unsigned short>(packed(x, 0.0f));
}}
template <class To>
__device__ __forceinline__ void sums_of_columns(const float* from, To* to, long long rows,
                                                long long columns, unsigned block) {{
  __shared__ float parts[8][32];
  const long long down = (rows + {ROWS_PER_BLOCK - 1}) / {ROWS_PER_BLOCK};
  const long long column = block * {SUMS_PER_BLOCK[COLUMN]}ll + threadIdx.x;
  float sum = 0.0f;
#pragma unroll 8
  for (long long i = threadIdx.y; i < down; i += 8) {{
    sum += column < columns ? from[i * columns + column] : 0.0f;
  }}
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int i = 1; i < 8; ++i) sum += parts[i][threadIdx.x];
  put(to + column, sum);
}}
template <class To>
__device__ __forceinline__ void sums_of_rows(const float* from, To* to, long long rows,
                                             long long columns, unsigned block) {{
  const long long across = (columns + {COLUMNS_PER_BLOCK - 1}) / {COLUMNS_PER_BLOCK};
  const long long row = block * {SUMS_PER_BLOCK[ROW]}ll + threadIdx.y * 32 + threadIdx.x;
  if (row >= rows) return;
  float sum = 0.0f;
#pragma unroll 8
  for (long long i = 0; i < across; ++i) sum += from[row * across + i];
  put(to + row, sum);
}}
"""
