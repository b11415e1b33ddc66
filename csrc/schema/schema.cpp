// Defines every op, in every build: CPU and CUDA files only add implementations. The schemas are in
// csrc/cpu/schema/, one file per family.
// NOTE: python/fusedops/_fakes/ holds a fake of each; test_contract.py walks this list.
#include <torch/csrc/stable/library.h>

#include <span>
#include <string>

#include "csrc/common/checks/tensor_check.h"
#include "csrc/schema/batch_norm.h"
#include "csrc/schema/conv.h"
#include "csrc/schema/edge_rows.h"
#include "csrc/schema/elementwise.h"
#include "csrc/schema/fp8.h"
#include "csrc/schema/gemm.h"
#include "csrc/schema/mlp.h"
#include "csrc/schema/neighbours.h"
#include "csrc/schema/points.h"
#include "csrc/schema/reduce.h"
#include "csrc/schema/rows.h"
#include "csrc/schema/scan.h"
#include "csrc/schema/stencil.h"
#include "csrc/schema/template.h"

namespace fusedops {
namespace {

constexpr std::span<const char* const> kFamilies[] = {
    kElementwiseSchemas, kGemmSchemas,      kNeighbourSchemas, kPointsSchemas, kMlpSchemas,
    kStencilSchemas,     kReduceSchemas,    kRowSchemas,       kScanSchemas,   kTemplateSchemas,
    kFp8Schemas,         kBatchNormSchemas, kEdgeRowsSchemas,  kConvSchemas,
};

#ifndef USE_CUDA
// Instead of the dispatcher's page of backends.
void refuse_cuda(StableIValue* /*stack*/, uint64_t /*num_inputs*/, uint64_t /*num_outputs*/) {
  fail(
      "fusedops: got CUDA tensors, but this build has no CUDA kernels; rebuild with USE_CUDA=1 "
      "(python -m fusedops info shows how it was built)");
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(fusedops, m) {
  for (const auto& family : kFamilies) {
    for (const char* schema : family) m.def(schema);
  }
}

#ifndef USE_CUDA
STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  for (const auto& family : kFamilies) {
    for (const std::string schema : family) {
      m.impl(schema.substr(0, schema.find('(')).c_str(), &refuse_cuda);
    }
  }
}
#endif

}  // namespace fusedops
