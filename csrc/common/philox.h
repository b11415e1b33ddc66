// Philox4x32-10: four random words from a key and a counter, the same on CPU and GPU.
// Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
#pragma once

#include <cstdint>

namespace fusedops {

struct Random4 {
  uint32_t word[4];
};

constexpr Random4 philox(uint64_t key, uint64_t counter) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c0;
    const uint64_t b = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

// Dropout: element i is dropped where word i % 4 of counter i / 4 is less than p * 2^32, so the
// mask is a function of the seed and of the element's position alone.
struct DropoutRule {
  bool drops = false;
  uint32_t limit = 0;  // the largest word that drops
  double scale = 1;    // 1 / (1 - p) for what is kept

  DropoutRule() = default;
  explicit DropoutRule(double p) {
    const auto threshold = static_cast<uint64_t>(p * 4294967296.0 + 0.5);
    drops = threshold > 0;
    limit = static_cast<uint32_t>(threshold - drops);
    scale = p < 1 ? 1 / (1 - p) : 0;
  }
  constexpr bool keeps(uint32_t word) const { return word > limit; }
};

}  // namespace fusedops
