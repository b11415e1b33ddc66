// Philox4x32-7: four random words from a key and a counter, the same on CPU and GPU. Seven rounds
// are the fewest that pass BigCrush in Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy
// as 1, 2, 3 (SC 2011); at ten the GPU computes longer than memory takes.
#pragma once

#include <cstdint>

namespace fusedops {

inline constexpr int kPhiloxRounds = 7;

struct Random4 {
  uint32_t word[4];
};

// The words of kCount counters from `first` on; they share the rounds' keys.
template <int kCount>
constexpr void philox(uint64_t key, uint64_t first, Random4 (&random)[kCount]) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int i = 0; i < kCount; ++i) {
    const uint64_t counter = first + i;
    random[i] = {{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}};
  }
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (Random4& r : random) {
      const uint64_t a = uint64_t{0xD2511F53} * r.word[0];
      const uint64_t b = uint64_t{0xCD9E8D57} * r.word[2];
      r = {{static_cast<uint32_t>(b >> 32) ^ r.word[1] ^ k0, static_cast<uint32_t>(b),
            static_cast<uint32_t>(a >> 32) ^ r.word[3] ^ k1, static_cast<uint32_t>(a)}};
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
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
