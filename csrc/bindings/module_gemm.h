// The part of fusedops._C that shows and steers GEMM selection.
#pragma once

#include <pybind11/pybind11.h>

namespace fusedops {

void bind_gemm(pybind11::module_& m);

}  // namespace fusedops
