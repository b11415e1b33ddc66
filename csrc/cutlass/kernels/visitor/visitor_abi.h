// What a visitor, the compiled expression of an epilogue of one's own (python/fusedops/_epilogue),
// and the main loop that calls it agree on. Plain, and complete in itself: NVRTC reads this file
// alone.
#pragma once

namespace fusedops {

inline constexpr int kVisitorFull = 4;     // (M, N) operands
inline constexpr int kVisitorVectors = 6;  // (M, 1), (N,) and one-element operands
inline constexpr int kVisitorScalars = 8;  // numbers

// An (M, N) operand of the product's element type; rows begin at multiples of 16 bytes.
struct VisitorFull {
  const void* data;
  long long row_stride;  // elements
};

// A vector along M or N, whose memory begins at a multiple of 16 bytes.
struct VisitorVector {
  const void* data;
  int element_bytes;
  bool along_rows;  // one value for each row
};

struct VisitorArguments {
  VisitorFull full[kVisitorFull];
  VisitorVector vectors[kVisitorVectors];
  float scalars[kVisitorScalars];
  int num_vectors;
  int rows, columns;  // of the result
};

// The values of a thread in 64 rows by 64 columns, as WGMMA leaves them: number 4 j + 2 i + e is
// that of row `row` + 8 i and column `column` + 8 j + e.
inline constexpr int kVisitorValues = 32;

// Where they are; and in shared memory the vectors of the tile, and of the first (M, N) operand the
// row threadIdx.x % 16 of these 16 of the warp: 16 bytes for eight columns j, at j ^ (row % 8).
struct VisitorPlace {
  int row, column;            // in the result
  int tile_row, tile_column;  // in the tile of vectors
  const unsigned char* vectors;
  int vector_bytes;  // from one vector to the next
  const unsigned char* operand;
};

// What a thread has loaded of (M, N) operands for one place. Only the visitor knows the order.
struct alignas(16) VisitorWords {
  unsigned words[kVisitorFull][16];
};

}  // namespace fusedops
