// How the gradient of an embedding sums the entries of a row, on the host and on the device.
#pragma once

#include <cstdint>

namespace fusedops {

// Entries of a chunk: a row's entries are summed chunk by chunk in ascending order, and a last part
// that fills no chunk behind them. About the root of all entries, so that a row which has them all
// waits neither for long chunks nor for many.
constexpr int64_t embedding_chunk(int64_t entries) {
  int64_t chunk = 64;
  while (chunk * chunk < entries) chunk *= 2;
  return chunk;
}

}  // namespace fusedops
