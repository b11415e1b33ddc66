#pragma once
#include <cstdint>
#include <functional>
namespace emulated {
uint32_t address_of(const void*); unsigned char* at(uint32_t); void async_copy(uint32_t, const void*, int); void commit(); void wait_groups(int);
void bar_init(uint32_t, int); void bar_expect(uint32_t, uint32_t); void bar_wait(uint32_t, uint32_t); void remote(uint32_t, uint32_t, const uint32_t*, int); void cl_wait();
void run_cluster(int grid, int cluster, int size, size_t bytes, const std::function<void()>&);
}
