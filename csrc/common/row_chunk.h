// Chunks of rows, as the host plans them and kernels hold them.
#pragma once

namespace fusedops {

inline constexpr int kRowChunks = 4;  // the most chunks of a row that a thread holds

template <class T>
inline constexpr int kChunkOf = 16 / sizeof(T);  // elements of a chunk

}  // namespace fusedops
