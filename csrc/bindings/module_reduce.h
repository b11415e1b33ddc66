// The part of fusedops._C that shows how reductions are planned.
#pragma once

#include <pybind11/pybind11.h>

namespace fusedops {

void bind_reduce(pybind11::module_& m);

}  // namespace fusedops
