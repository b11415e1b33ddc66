#include <cstdio>
#include <vector>
#include <random>
#include <functional>
#include "emulated.h"
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) { s &= 31; return s ? lo >> s | hi << (32 - s) : lo; }
