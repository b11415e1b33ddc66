// The time model as a shared library whose constants can be set: what fit_time_model.py compiles,
// with FUSEDOPS_TIME_CONSTANT as a variable, together with csrc/cutlass/select.
#include <cstdint>
#include <cstring>
#include <vector>

#include "csrc/cutlass/select/select.h"
#include "csrc/cutlass/select/time_constants.h"

namespace {

using namespace fusedops;

struct NamedConstant {
  const char* name;
  double* value;
};
NamedConstant g_constants[] = {
#include "named_constants.inc"  // written by the script: {"name", &time_constants::name},
};

struct Product {
  GemmProblem problem;
  std::vector<int64_t> wanted;  // positions among its candidates
};
std::vector<Product> g_products;

}  // namespace

extern "C" {

bool set_constant(const char* name, double value) {
  for (const NamedConstant& constant : g_constants) {
    if (std::strcmp(constant.name, name) != 0) continue;
    *constant.value = value;
    return true;
  }
  return false;
}

// A product of bfloat16 matrices without padding, and which of its candidates count.
void add_product(int64_t m, int64_t n, int64_t k, bool a_along_k, bool b_along_k, int epilogue,
                 int activation, const int64_t* wanted, int64_t count) {
  GemmProblem p;
  p.m = m;
  p.n = p.ldd = n;
  p.k = k;
  p.a.major = a_along_k ? Major::kK : Major::kMN;
  p.b.major = b_along_k ? Major::kK : Major::kMN;
  p.a.ld = a_along_k ? k : m;
  p.b.ld = b_along_k ? k : n;
  p.a.data = p.b.data = p.d = p.preact = reinterpret_cast<void*>(256);  // only its alignment counts
  p.epilogue = static_cast<Epilogue>(epilogue);
  p.activation = static_cast<Activation>(activation);
  g_products.push_back({p, std::vector<int64_t>(wanted, wanted + count)});
}

// The expected us of every candidate that counts, product by product.
void predict(int capability, int sm_count, double* us) {
  for (const Product& product : g_products) {
    const auto candidates = enumerate_candidates(product.problem, {capability, sm_count});
    for (int64_t i : product.wanted) *us++ = candidates.at(i).plan.expected_us;
  }
}
}
