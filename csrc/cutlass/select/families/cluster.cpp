// The kernels of one wave of clusters, for few tiles.
#include <algorithm>
#include <cmath>

#include "csrc/common/int_math.h"
#include "csrc/cutlass/configs/cluster_configs.h"
#include "csrc/cutlass/select/families.h"
#include "csrc/cutlass/select/time_model.h"

namespace fusedops {
namespace {

// The kernels of one wave of clusters, fitted to the choice between them and sm90_us. WGMMAs of
// few columns wait for their issue; mainloops share L2 with those of other SMs; a row that is
// loaded for several blocks costs more than one for one block, wherever it lies; what blocks send
// each other and what they store come on top.
double cluster_us(const GemmProblem& p, const GemmConfig& c, const TileCluster& cluster,
                  double tiles, const DeviceModel& device) {
  const bool shared = cluster.tiles() > 1;
  const auto cost = [&](Major major, int64_t line) {
    const double minor = major == Major::kMN ? kMinor : 0;
    if (shared) return kSharedRow + minor;
    return 1 + minor +
           (is_cut(p, line, 32)    ? kClusterCutSector
            : is_cut(p, line, 128) ? kClusterCutLine
                                   : 0);
  };
  const double rows_a = double(c.tile_m) / cluster.n * cost(p.a.major, line_of_a(p));
  const double rows_b = double(c.tile_n) / cluster.m * cost(p.b.major, line_of_b(p));
  const double l2 = step_bytes(p, rows_a, rows_b, kClusterCold) / kClusterL2BytesPerCycle *
                    (1 + kCrowding * (tiles * c.cluster_n / device.sm_count - 1));
  const double outputs = double(c.tile_m) * c.tile_n;
  const double mma = std::max(outputs * 64 / kClusterMmaPerCycle, kIssueCycles);
  const double steps = static_cast<double>(ceil_div(ceil_div(p.k, 64), c.cluster_n));
  const double cycles = steps * overlap(mma, l2, kClusterOverlap);
  const double sent = outputs * 4 * (c.cluster_n - 1) / c.cluster_n;
  const double stored = outputs / c.cluster_n * output_bytes(p);
  return (c.cluster_n > 1 ? kClusterSplitUs
          : shared        ? kClusterSharedUs
                          : kClusterAloneUs) +
         std::max(cycles / (kClockGhz * 1e3), dram_bytes(p) / kDramBytesPerUs) +
         sent / kSentBytesPerUs + stored / kStoredBytesPerUs +
         (p.epilogue == Epilogue::kNorm ? kClusterNormUs : 0);
}

}  // namespace

void add_cluster(const GemmProblem& problem, const DeviceModel& device, Candidates& candidates) {
  const char* refusal = device.hopper() ? tma_refusal(problem) : kNotHopper;
  for (int i = 0; i < kNumClusterConfigs; ++i) {
    const ClusterConfig& config = kClusterConfigs[i];
    for (int together : kTileClusters) {
      if (together > 1 && config.cluster_n > 1) break;
      const TileCluster cluster = tile_cluster(config, problem, together);
      Candidate candidate{{.family = Family::kCluster, .config = i, .shared_tiles = together},
                          refusal};
      if (!refusal) candidate.rejected = cluster_refusal(config, problem);
      const int64_t tiles = cluster.tiles_of(config, problem);
      const int64_t slots = cluster_slots(together * config.cluster_n, device);
      if (!candidate.rejected && tiles > slots * together) {
        candidate.rejected = "more tiles than clusters that run at a time";
      }
      if (!candidate.rejected) {
        candidate.plan.expected_us = cluster_us(problem, config, cluster, double(tiles), device);
      }
      candidates.push_back(candidate);
    }
  }
}

}  // namespace fusedops
