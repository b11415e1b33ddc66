#include "emulated.h"
#include <vector_functions.h>
#undef __noinline__
#define __noinline__
inline double __hiloint2double(int h, int l) { return __builtin_bit_cast(double, (uint64_t)(uint32_t)h << 32 | (uint32_t)l); }
inline int __double2hiint(double d) { return (int)(__builtin_bit_cast(uint64_t, d) >> 32); }
inline int __double2loint(double d) { return (int)__builtin_bit_cast(uint64_t, d); }
template <class V> V __shfl_up_sync(unsigned, V value, int delta) { int f = emulated::lane() - delta; return emulated::taken_from(value, f < 0 ? emulated::lane() : f); }
template <class V> V __shfl_down_sync(unsigned, V value, int delta) { int f = emulated::lane() + delta; return emulated::taken_from(value, f > 31 ? emulated::lane() : f); }
inline bool __any_sync(unsigned m, bool p) { return __ballot_sync(m, p) != 0; }
inline bool __all_sync(unsigned m, bool p) { return __ballot_sync(m, p) == ~0u; }
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) { return (unsigned)(((uint64_t)hi << 32 | lo) >> (s & 31)); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }
inline int __float2int_rd(float x) { return (int)std::floor(x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
template <class T> T atomicOr(T* p, T v) { T o = *p; *p |= v; return o; }
using std::isinf; using std::isnan; using std::isfinite;
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float a) { return std::exp(a); }
inline float __logf(float a) { return std::log(a); }
#include <cstring>
#include <cuda_runtime_api.h>
#define cudaMemcpyAsync(d,s,n,k,st) std::memcpy(d,s,n)
#define cudaMemsetAsync(d,v,n,st) std::memset(d,v,n)
inline size_t __cvta_generic_to_shared(const void* p) { return (size_t)p; }
