// The fibers, warps and blocks of emulated.h, and the functions of CUDA's runtime that launches
// ask.
#include "emulated.h"

#include <ucontext.h>

#include <vector>

namespace emulated {
namespace {

constexpr size_t kStackBytes = 1 << 17, kSharedBytes = 1 << 18;

struct Warp {
  uint64_t shown[8][32];
  int arrived = 0, alive = 0;
  uint64_t generation = 0;
};

struct Copy {
  void* to;
  const void* from;
  int group;
};

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  dim3 index;
  int number = 0;
  bool done = false;
  std::vector<Copy> copies;
  int groups = 0;  // of copies, that have ended
};

std::vector<Thread> threads;
std::vector<Warp> warps;
std::vector<Warp> warpgroups;  // of which none ends before the others
Thread* now = nullptr;
ucontext_t scheduler;
dim3 grid, block, place;
int arrived = 0, alive = 0;
uint64_t generation = 0;
const std::function<void()>* kernel = nullptr;
alignas(128) unsigned char memory[kSharedBytes];

Warp& warp() { return warps[now->number / 32]; }

// All that are alive go on once the last has come.
void wait_for(int& count, uint64_t& turn, int all) {
  const uint64_t mine = turn;
  if (++count == all) {
    count = 0;
    ++turn;
    return;
  }
  while (turn == mine) swapcontext(&now->context, &scheduler);
}

void leave(int& count, uint64_t& turn, int& all) {
  if (--all > 0 && count == all) {
    count = 0;
    ++turn;
  }
}

void enter() {
  (*kernel)();
  if (!now->copies.empty()) {
    std::fprintf(stderr, "emulated: a thread ends with copies that it has not waited for\n");
    std::abort();
  }
  now->done = true;
  leave(warp().arrived, warp().generation, warp().alive);
  leave(arrived, generation, alive);
  swapcontext(&now->context, &scheduler);
}

void start(int number) {
  Thread& t = threads[number];
  t.number = number;
  t.done = false;
  t.index = dim3(number % block.x, number / block.x % block.y, number / (block.x * block.y));
  ++warps[number / 32].alive;
  getcontext(&t.context);
  t.context.uc_stack.ss_sp = t.stack.data();
  t.context.uc_stack.ss_size = t.stack.size();
  t.context.uc_link = nullptr;
  makecontext(&t.context, enter, 0);
}

void run_block(int count) {
  std::memset(memory, 0xff, sizeof memory);  // NaN where nothing is written
  warps.assign((count + 31) / 32, {});
  warpgroups.assign((count + 127) / 128, {});
  alive = count;
  arrived = 0;
  for (int i = 0; i < count; ++i) start(i);
  while (alive > 0) {
    for (int i = 0; i < count; ++i) {
      if (threads[i].done) continue;
      now = &threads[i];
      swapcontext(&scheduler, &now->context);
    }
  }
}

}  // namespace

dim3& thread_index() { return now->index; }
dim3& block_index() { return place; }
dim3& block_size() { return block; }
dim3& grid_size() { return grid; }
int lane() { return now->number % 32; }
unsigned char* shared_memory() { return memory; }
uint64_t* shown(int which) { return warp().shown[which]; }
void warp_barrier() { wait_for(warp().arrived, warp().generation, warp().alive); }
void warpgroup_barrier() {
  Warp& group = warpgroups[now->number / 128];
  wait_for(group.arrived, group.generation, 128);
}
void block_barrier() { wait_for(arrived, generation, alive); }
void copy_later(void* to, const void* from) { now->copies.push_back({to, from, now->groups}); }
void commit_copies() { ++now->groups; }
void wait_for_copies(int pending) {
  std::erase_if(now->copies, [pending](const Copy& copy) {
    if (pending > 0 && copy.group >= now->groups - pending) return false;
    std::memcpy(copy.to, copy.from, 16);
    return true;
  });
}

void run(dim3 blocks, dim3 size, size_t bytes, const std::function<void()>& body) {
  if (bytes > kSharedBytes) std::abort();
  grid = blocks;
  block = size;
  kernel = &body;
  const int count = static_cast<int>(size.x * size.y * size.z);
  if (static_cast<int>(threads.size()) < count) threads.resize(count);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        place = dim3(x, y, z);
        run_block(count);
      }
    }
  }
}

}  // namespace emulated

extern "C" {
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = 232448, cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  return *attributes = {}, cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  return *blocks = 1, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  return *blocks = 1, cudaSuccess;
}
}
