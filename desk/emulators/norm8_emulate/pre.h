#include "emulated.h"
#include <cuda_fp8.h>
#include <math_constants.h>
#include "emu.h"
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
template <class T> T atomicMax(T* to, T v) { T old = *to; *to = v > old ? v : old; return old; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <class V> V __shfl_sync(unsigned, V v, int from, int width) { return emulated::taken_from(v, emulated::lane() / width * width + from % width); }
inline unsigned __reduce_max_sync(unsigned, unsigned v) { for (int b = 16; b; b /= 2) { unsigned o = emulated::taken_from(v, emulated::lane() ^ b); v = o > v ? o : v; } return v; }
inline unsigned __reduce_min_sync(unsigned, unsigned v) { for (int b = 16; b; b /= 2) { unsigned o = emulated::taken_from(v, emulated::lane() ^ b); v = o < v ? o : v; } return v; }
