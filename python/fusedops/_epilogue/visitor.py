"""The CUDA C++ of an expression: what a main loop calls.

A program computes in float, one statement for each node, with the hardware's approximations where
they are finer than the rounding of 16-bit results.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..jit.kit import include_dir
from .graph import ACCUMULATOR, Node, order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ABI = "csrc/cutlass/kernels/visitor/visitor_abi.h"
FULL, COLUMN, ROW, NUMBER = "full", "column", "row", "number"
# (M, N) operands behind the first one that are loaded a block ahead, for 32 registers each. On an
# H100 18 products took up to 6 % less time so (median 2.5 %).
MOST_AHEAD = 2
# What an expression costs for an element, from which on it is long: by one copy of its instructions
# for each block, warps wait for instructions.
LONG_FROM = 12
# Instructions for an element, where they are not about one.
_COSTS = {"div": 8, "log": 8, "sqrt": 8, "pow": 20, "sin": 40, "cos": 40, "tanh": 8, "sigmoid": 4}
_COSTS |= {"normal_cdf": 20, "erf": 20}

_CALLS = {
    "neg": "-{}",
    "add": "{} + {}",
    "mul": "{} * {}",
    "div": "divide({}, {})",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "eq": "{} == {}",
    "where": "{} ? {} : {}",
    "exp": "exp2_approx(1.4426950408889634f * {})",
    "log": "logf({})",
    "sqrt": "sqrtf({})",
    "pow": "powf({}, {})",
    "sin": "sinf({})",
    "cos": "cosf({})",
    "maximum": "max_or_nan({}, {})",
    "minimum": "min_or_nan({}, {})",
}

# Two 16-bit values are one word. NOTE: bfloat16 is the upper half of a float.
ELEMENT_TEXT = {
    "bf16": """
__device__ __forceinline__ float low(unsigned w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high(unsigned w) { return __uint_as_float(w & 0xffff0000u); }
__device__ __forceinline__ unsigned packed(float a, float b) {
  unsigned w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(b), "f"(a));
  return w;
}
""",
    "fp16": """
__device__ __forceinline__ float low(unsigned w) {
  float x;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(x) : "r"(w));
  return x;
}
__device__ __forceinline__ float high(unsigned w) { return low(w >> 16); }
__device__ __forceinline__ unsigned packed(float a, float b) {
  unsigned w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(b), "f"(a));
  return w;
}
""",
}
MATH_TEXT = """
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float tanh_coarse(float x) {  // relative error 2^-11
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float tanh_fine(float x) {
  const float m = fabsf(x), e = exp2_approx(-2.885390081777927f * m);
  const float far = (1.0f - e) * reciprocal(1.0f + e), near = m * (1.0f - m * m * 0.33333333f);
  return copysignf(m < 0.05f ? near : far, x);
}
__device__ __forceinline__ float sigmoid_coarse(float x) {  // absolute error 2^-12
  return 0.5f * tanh_coarse(0.5f * x) + 0.5f;
}
__device__ __forceinline__ float sigmoid_fine(float x) {
  return reciprocal(1.0f + exp2_approx(-1.4426950408889634f * x));
}
// Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: absolute error 1.5e-7.
__device__ __forceinline__ float half_erfc_of_size(float m) {
  const float t = reciprocal(1.0f + 0.3275911f * m);
  float poly = 0.5f * 1.061405429f;
  poly = poly * t - 0.5f * 1.453152027f;
  poly = poly * t + 0.5f * 1.421413741f;
  poly = poly * t - 0.5f * 0.284496736f;
  poly = poly * t + 0.5f * 0.254829592f;
  return poly * t * exp2_approx(-1.4426950408889634f * m * m);
}
__device__ __forceinline__ float normal_cdf(float x) {
  const float tail = half_erfc_of_size(fabsf(x) * 0.7071067811865476f);
  return x >= 0.0f ? 1.0f - tail : tail;
}
// NOTE: __fdividef alone takes subnormal divisors for zeros and those from 2^126 on for infinities.
__device__ __forceinline__ float divide(float a, float b) {
  const float m = fabsf(b), scale = m > 0x1p125f ? 0.25f : m < 0x1p-126f ? 0x1p24f : 1.0f;
  return __fdividef(a * scale, b * scale);
}
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
__device__ __forceinline__ float min_or_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
"""


def statements(outputs: Sequence[Node], coarse: bool) -> tuple[list[str], list[str]]:
    """One statement for each node, and the word for each output.

    coarse: bfloat16 results, for which tanh, and a sigmoid that only scales, are approximated.
    """
    nodes = order(list(outputs))
    scales = _only_factors(nodes, outputs)
    words: dict[int, str] = {}
    lines = []
    for number, node in enumerate(nodes):
        if node.op == "input":
            words[id(node)] = f"in_{node.value}"
        elif node.op == "const":
            words[id(node)] = _number(float(node.value))
        else:
            call = _call(node, coarse, scales).format(*(words[id(arg)] for arg in node.args))
            words[id(node)] = f"t{number}"
            lines.append(f"const auto t{number} = {call};")
    return lines, [words[id(output)] for output in outputs]


def _only_factors(nodes: Sequence[Node], outputs: Sequence[Node]) -> set[int]:
    """Nodes that are read by products alone."""
    others = {id(arg) for node in nodes if node.op != "mul" for arg in node.args}
    others |= {id(output) for output in outputs}
    return {id(node) for node in nodes} - others


def _number(value: float) -> str:
    value = ctypes.c_float(value).value
    if value != value:
        return "__int_as_float(0x7fc00000)"
    if value in (float("inf"), float("-inf")):
        return f"__int_as_float(0x{'7f8' if value > 0 else 'ff8'}00000)"
    return f"({value!r}f)" if "e" in repr(value) or "." in repr(value) else f"({value!r}.0f)"


def _call(node: Node, coarse: bool, scales: set[int]) -> str:
    if node.op in _CALLS:
        return _CALLS[node.op]
    if node.op == "tanh":
        return "tanh_coarse({})" if coarse else "tanh_fine({})"
    if node.op == "sigmoid":
        return "sigmoid_coarse({})" if coarse and id(node) in scales else "sigmoid_fine({})"
    return {"normal_cdf": "normal_cdf({})", "erf": "erff({})"}[node.op]


def _abi() -> str:
    return (include_dir() / ABI).read_text().replace("#pragma once", "")


def _row_values(name: str, element_bytes: int, at: str) -> str:
    """Declares those of this thread's two rows, by the address of a vector."""
    if element_bytes == 4:
        value = f"*reinterpret_cast<const float*>({at} + (place->tile_row + 8 * i) * 4)"
    else:
        word = f"*reinterpret_cast<const unsigned short*>({at} + (place->tile_row + 8 * i) * 2)"
        value = f"low({word})"
    return f"float {name}[2]; for (int i = 0; i < 2; ++i) {name}[i] = {value};"


def _column_values(name: str, element_bytes: int, at: str) -> str:
    """Declares those of a pair of columns, which one load reads."""
    word, column = f"w_{name}", "(place->tile_column + 8 * j)"
    if element_bytes == 4:
        read = f"const float2 {word} = *reinterpret_cast<const float2*>({at} + {column} * 4);"
        return f"{read} const float {name}[2] = {{{word}.x, {word}.y}};"
    read = f"const unsigned {word} = *reinterpret_cast<const unsigned*>({at} + {column} * 2);"
    return f"{read} const float {name}[2] = {{low({word}), high({word})}};"


@dataclass
class _Forward:
    """The parts of the visitor, while they are gathered."""

    ahead: bool  # whether (M, N) operands behind the first one are loaded a block ahead
    before: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)  # a block ahead
    reads: list[str] = field(default_factory=list)  # what was loaded, or loads
    exchanges: list[str] = field(default_factory=list)  # behind all reads
    pairs: list[str] = field(default_factory=list)  # of columns
    values: list[str] = field(default_factory=list)  # of an element
    full: int = 0
    vectors: int = 0
    numbers: int = 0

    def add(self, kind: str, size: int) -> None:
        """The next operand."""
        if kind == FULL and self.full == 0:
            self.before.append("SharedWords f0;")
            self.pairs.append("if (j % 2 == 0) f0.read(*place, j);")
            self.values.append("f0.at(i, j, e)")
            self.full = 1
        elif kind == FULL:
            name = f"f{self.full}"
            read = f"{name}.read(a->full[{self.full}], *place, *a);"
            words = f"words->words[{self.full}]"
            self.loads += [f"FullWords {name};", read, f"{name}.put({words});"]
            self.before.append(f"FullWords {name};")
            self.reads.append(f"{name}.take({words});" if self.ahead else read)
            self.exchanges.append(f"{name}.exchange();")
            self.values.append(f"{name}.at(i, j, e)")
            self.full += 1
        elif kind == NUMBER:
            self.values.append(f"a->scalars[{self.numbers}]")
            self.numbers += 1
        else:
            name, loop = f"v{self.vectors}", "i" if kind == ROW else "e"
            at = f"(place->vectors + {self.vectors} * place->vector_bytes)"
            if kind == ROW:
                self.before.append(_row_values(name, size, at))
            else:
                self.pairs.append(_column_values(name, size, at))
            self.values.append(f"{name}[{loop}]")
            self.vectors += 1


def forward_source(
    output: Node, operands: Mapping[str, tuple[str, int]], element: str, loops: bool
) -> str:
    """fusedops_load and fusedops_visit, and the constants beside them.

    operands: of each name its kind and the bytes of an element, in order; loops: one copy of the
    instructions serves all blocks of a tile.
    """
    lines, (result,) = statements([output], coarse=element == "bf16")
    parts = _Forward(sum(kind == FULL for kind, _ in operands.values()) <= 1 + MOST_AHEAD)
    for kind, size in operands.values():
        parts.add(kind, size)
    names = ", ".join(f"float in_{name}" for name in (ACCUMULATOR, *operands))
    body = "\n  ".join(lines)
    return f"""{_abi()}
using namespace fusedops;
{ELEMENT_TEXT[element]}{MATH_TEXT}{_FULL_WORDS if parts.full else ""}
extern "C" __device__ bool fusedops_reads() {{ return {int(parts.full > 0)}; }}
extern "C" __device__ bool fusedops_loops() {{ return {int(loops)}; }}

__device__ __forceinline__ float value_at({names}) {{
  {body}
  return {result};
}}

extern "C" __device__ void fusedops_load(VisitorWords* words, const VisitorPlace* place,
                                         const VisitorArguments* a) {{
{unrolled(parts.loads if parts.ahead else [])}
}}

extern "C" __device__ void fusedops_visit(float* v, const VisitorWords* words,
                                          const VisitorPlace* place, const VisitorArguments* a) {{
{unrolled([*parts.before, *parts.reads, *parts.exchanges])}
#pragma unroll
  for (int j = 0; j < 8; ++j) {{
{unrolled(parts.pairs)}
#pragma unroll
    for (int i = 0; i < 2; ++i) {{
#pragma unroll
      for (int e = 0; e < 2; ++e) {{
        float& x = v[4 * j + 2 * i + e];
        x = value_at({", ".join(["x", *parts.values])});
      }}
    }}
  }}
}}
"""


def is_long(output: Node) -> bool:
    """Whether an expression has many instructions."""
    nodes = (node.op for node in order([output]) if node.op not in ("input", "const"))
    return sum(_COSTS.get(op, 1) for op in nodes) >= LONG_FROM


def unrolled(declarations: Sequence[str]) -> str:
    """Each declaration, and its loops unrolled."""
    return "\n".join(text.replace("for (", '\n_Pragma("unroll") for (') for text in declarations)


_FULL_WORDS = """
// The first (M, N) operand in shared memory, 16 columns at a time.
struct SharedWords {
  unsigned words[4];
  __device__ __forceinline__ void read(const VisitorPlace& place, int j) {
    const unsigned unit = (j + threadIdx.x % 32 / 16) ^ (threadIdx.x % 8);
    const auto at = static_cast<unsigned>(__cvta_generic_to_shared(place.operand + unit * 16));
    unsigned &a = words[0], &b = words[1], &c = words[2], &d = words[3];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "r"(at));
  }
  __device__ __forceinline__ float at(int i, int j, int e) const {
    const unsigned word = words[j % 2 * 2 + i];
    return e ? high(word) : low(word);
  }
};
// Word k of lane q of four becomes word q of lane k.
__device__ __forceinline__ void transpose(uint4& w) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  unsigned a = __shfl_xor_sync(0xffffffffu, odd ? w.x : w.y, 1);
  unsigned b = __shfl_xor_sync(0xffffffffu, odd ? w.z : w.w, 1);
  w = odd ? make_uint4(a, w.y, b, w.w) : make_uint4(w.x, a, w.z, b);
  a = __shfl_xor_sync(0xffffffffu, upper ? w.x : w.z, 2);
  b = __shfl_xor_sync(0xffffffffu, upper ? w.y : w.w, 2);
  w = upper ? make_uint4(a, b, w.z, w.w) : make_uint4(w.x, w.y, a, b);
}
// An (M, N) operand in 64 rows by 64 columns: words[i][h] are the pairs of row `row` + 8 i and
// columns `column` + 32 h + 0, 8, 16, 24. Each of the four lanes of a row reads eight columns at a
// time, which exist all or not at all, as N is a multiple of 8.
struct FullWords {
  uint4 words[2][2];
  __device__ __forceinline__ void read(const VisitorFull& from, const VisitorPlace& place,
                                       const VisitorArguments& a) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = place.row + 8 * i, column = place.column + threadIdx.x % 4 * 6 + 32 * h;
        const auto* at = static_cast<const unsigned short*>(from.data) + row * from.row_stride;
        words[i][h] = row < a.rows && column < a.columns
                          ? __ldg(reinterpret_cast<const uint4*>(at + column))
                          : make_uint4(0, 0, 0, 0);
      }
    }
  }
  __device__ __forceinline__ void put(unsigned* to) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4& w = words[i / 2][i % 2];
      to[4 * i] = w.x, to[4 * i + 1] = w.y, to[4 * i + 2] = w.z, to[4 * i + 3] = w.w;
    }
  }
  __device__ __forceinline__ void take(const unsigned* from) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i / 2][i % 2] =
          make_uint4(from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]);
    }
  }
  __device__ __forceinline__ void exchange() {
#pragma unroll
    for (int i = 0; i < 4; ++i) transpose(words[i / 2][i % 2]);
  }
  __device__ __forceinline__ float at(int i, int j, int e) const {
    const uint4& w = words[i][j / 4];
    const unsigned word = j % 4 == 0 ? w.x : j % 4 == 1 ? w.y : j % 4 == 2 ? w.z : w.w;
    return e ? high(word) : low(word);
  }
};
"""


def kernel_text(results: Mapping[str, Node]) -> str:
    """The statements of expressions, and which word is which result, for people."""
    lines, words = statements(list(results.values()), coarse=False)
    ends = [f"{name} = {word};" for name, word in zip(results, words, strict=True)]
    return "\n".join([*lines, *ends])
