// The contract of the edge MLP ops, which fusedops.points.set_abstraction and edge_conv call after
// checks of their own; the fakes know the shapes alone.
#pragma once

#include <algorithm>
#include <array>

#include "csrc/common/checks/cloud_check.h"
#include "csrc/cuda/points/edges/edge_problem.h"

namespace fusedops {

// What the ops of an edge MLP read: contiguous tensors and sizes.
struct EdgeArguments {
  std::optional<Tensor> rows, group_rows, first_weight, operands;
  Tensor list, ends, weights, affine;
  DType dtype;
  int64_t clouds, groups, edges;  // groups: of a cloud; edges: room for rows
  std::array<int64_t, 4> widths;
  int layers;
  double slope;

  int64_t width() const { return widths[layers - 1]; }
  int64_t width_in() const { return widths[layers - 2]; }
  // Where the last layer's channels begin among those of all layers.
  int64_t first_channel() const {
    int64_t channels = 0;
    for (int l = 0; l < layers - 1; ++l) channels += widths[l];
    return channels;
  }
};

inline std::optional<Tensor> check_edge_tensor(const char* op, const char* name,
                                               const std::optional<Tensor>& tensor,
                                               const Tensor& like, ScalarType type,
                                               std::vector<int64_t> shape) {
  if (!tensor) return std::nullopt;
  FUSEDOPS_CHECK(same_device(*tensor, like), op, ": ", name, " must be on ", device_string(like),
                 "; got ", device_string(*tensor));
  FUSEDOPS_CHECK(tensor->scalar_type() == type, op, ": ", name, " must have dtype ",
                 dtype_name(type), "; got ", dtype_name(tensor->scalar_type()));
  bool fits = tensor->dim() == static_cast<int64_t>(shape.size());
  std::ostringstream text;
  for (size_t i = 0; i < shape.size(); ++i) {
    fits = fits && tensor->size(static_cast<int64_t>(i)) == shape[i];
    text << (i ? ", " : "") << shape[i];
  }
  FUSEDOPS_CHECK(fits, op, ": ", name, " must have shape (", text.str(), "); got ",
                 shape_string(*tensor));
  const Tensor contiguous = dense(*tensor);
  const bool aligned = reinterpret_cast<uintptr_t>(contiguous.const_data_ptr()) % 16 == 0;
  return aligned ? contiguous : torch::stable::clone(contiguous);
}

// The list of rows (edge_list) and where the groups' rows end in it, contiguous.
struct EdgeList {
  Tensor list, ends;

  // K: there is room for every entry of a group.
  int neighbours() const { return static_cast<int>(list.size(0) / ends.numel()); }
};

inline EdgeList check_edge_list(const char* op, const Tensor& list, const Tensor& ends) {
  FUSEDOPS_CHECK(list.dim() == 2, op, ": list must have shape (E, 4); got ", shape_string(list));
  const auto list_ = check_edge_tensor(op, "list", list, ends, ScalarType::Int, {list.size(0), 4});
  const auto ends_ = check_edge_tensor(op, "ends", ends, ends, ScalarType::Int, {ends.numel()});
  FUSEDOPS_CHECK(ends.numel() > 0 && list.numel() > 0 && list.size(0) % ends.numel() == 0, op,
                 ": there must be groups of as many rows; got ", ends.numel(), " groups and ",
                 list.size(0), " rows");
  return {*list_, *ends_};
}

// The number of groups of each of `clouds` clouds.
inline int64_t check_edge_groups(const char* op, const Tensor& ends, int64_t clouds) {
  FUSEDOPS_CHECK(clouds > 0 && ends.numel() % clouds == 0, op,
                 ": ends must have as many groups for each of ", clouds, " clouds; got ",
                 ends.numel());
  return ends.numel() / clouds;
}

// Whether inference has kernels of their own for the widths.
inline bool is_edge_shape(const std::array<int64_t, 4>& widths, int layers) {
  return layers == 3 && std::any_of(kEdgeShapes, kEdgeShapes + kEdgeShapeCount, [&](EdgeShape s) {
           return s.first == widths[0] && s.middle == widths[1] && s.last == widths[2];
         });
}

// Whether training has.
inline bool is_edge_taper(const std::array<int64_t, 4>& widths, int layers) {
  return layers == 3 && widths[0] == kEdgeTaper.first && widths[1] == kEdgeTaper.middle &&
         widths[2] == kEdgeTaper.last;
}

inline EdgeArguments check_edges(const char* op, const std::optional<Tensor>& rows,
                                 const std::optional<Tensor>& group_rows,
                                 const std::optional<Tensor>& first_weight,
                                 const std::optional<Tensor>& operands, const Tensor& list,
                                 const Tensor& ends, const Tensor& weights, const Tensor& affine,
                                 int64_t clouds, const std::array<int64_t, 4>& widths, double slope,
                                 bool infers = false) {
  EdgeArguments a{.widths = widths, .slope = slope};
  const EdgeList rows_of = check_edge_list(op, list, ends);
  a.list = rows_of.list, a.ends = rows_of.ends;
  a.edges = list.size(0);
  FUSEDOPS_CHECK(rows || operands, op, ": operands must be a tensor where rows is None; got None");
  FUSEDOPS_CHECK(operands.has_value() == first_weight.has_value(), op,
                 ": operands and first_weight must come together");
  a.clouds = clouds;
  if (rows) {
    check_dim(op, "rows", *rows, 3, "(B, N, C)");
    FUSEDOPS_CHECK(rows->size(1) > 0, op, ": clouds must have points; got ", shape_string(*rows));
  }
  if (operands) check_dim(op, "operands", *operands, 3, "(planes, E, 8)");
  const int64_t planes = operands ? operands->size(0) : 0;
  FUSEDOPS_CHECK(planes <= 2, op, ": operands must have 1 or 2 planes; got ", planes);
  a.groups = check_edge_groups(op, ends, a.clouds);
  a.dtype = check_floating(op, "weights", weights);
  FUSEDOPS_CHECK(weights.element_size() == 2, op, ": weights must be float16 or bfloat16; got ",
                 dtype_name(weights.scalar_type()));
  int64_t values = 0, channels = 0;
  for (a.layers = 0; a.layers < 4 && widths[a.layers] > 0; ++a.layers) {
    const int64_t width = widths[a.layers];
    channels += width;
    if (a.layers > 0) values += width * widths[a.layers - 1];
  }
  FUSEDOPS_CHECK(a.layers > 0, op, ": there must be 1 to 4 widths; got 0");
  const bool tapers =
      (infers && is_edge_shape(widths, a.layers)) || is_edge_taper(widths, a.layers);
  for (int l = 0; l < a.layers - 1 && !tapers; ++l) {
    const int64_t width = widths[l];
    FUSEDOPS_CHECK(width == widths[0] && (width == 32 || width == 64 || width == 128), op,
                   ": widths but the last must all be 32, 64 or 128; got ", width);
  }
  const int64_t last = a.width();
  FUSEDOPS_CHECK(last == 32 || last == 64 || (last % 128 == 0 && last <= 1024), op,
                 ": the last width must be 32, 64 or a multiple of 128 up to 1024; got ", last);
  const ScalarType half = weights.scalar_type(), fp32 = ScalarType::Float;
  a.rows = check_edge_tensor(op, "rows", rows, list, fp32,
                             {a.clouds, rows ? rows->size(1) : 0, widths[0]});
  a.group_rows =
      check_edge_tensor(op, "group_rows", group_rows, list, fp32, {a.clouds, a.groups, widths[0]});
  a.first_weight =
      check_edge_tensor(op, "first_weight", first_weight, list, half, {planes, widths[0], 8});
  a.operands = check_edge_tensor(op, "operands", operands, list, half, {planes, a.edges, 8});
  a.weights = *check_edge_tensor(op, "weights", weights, list, half, {values});
  const int64_t given = affine.dim() == 2 ? affine.size(0) : 0;  // those of layers behind, too
  a.affine = *check_edge_tensor(op, "affine", affine, list, fp32, {std::max(channels, given), 2});
  return a;
}

}  // namespace fusedops
