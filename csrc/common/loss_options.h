// What a loss over classes is told by number.
#pragma once

#include <cstdint>

namespace fusedops {

struct LossOptions {
  int64_t ignore_index = 0;
  double label_smoothing = 0;
  double softcap = 0;  // 0: none
  double z_loss = 0;
};

}  // namespace fusedops
