// Clusters of blocks at once, threads in random order, messages delivered late.
#include "emulated.h"
#include "emu.h"
#include <ucontext.h>
#include <map>
#include <random>
#include <vector>
namespace emulated {
namespace {
constexpr size_t kStack = 1 << 17;
struct Warp { uint64_t shown[8][32]; int arrived = 0, alive = 0; uint64_t generation = 0; };
struct Copy { uint32_t to; const void* from; int bytes, group; };
struct Thread { ucontext_t context; std::vector<char> stack = std::vector<char>(kStack); dim3 index; int number=0, block=0; bool done=false; std::vector<Copy> copies; int groups=0; };
struct Block { int arrived=0, alive=0; uint64_t generation=0; std::vector<Warp> warps; };
struct Bar { int expected=0, pending=0; long tx=0; uint64_t phase=0; bool ok=false; };
struct Message { uint32_t to, barrier; uint32_t words[2]; int n; };
std::vector<Thread> threads; std::vector<Block> blocks; Thread* now; ucontext_t scheduler;
dim3 gridsize, blocksize; int cluster_, first_block; int cl_arrived, cl_alive; uint64_t cl_generation;
const std::function<void()>* kernel; std::vector<unsigned char> arena; std::map<uint32_t, Bar> bars; std::vector<Message> mail; std::mt19937 rng(1);
constexpr uint32_t kSpan = 1u << 20;
void yield() { swapcontext(&now->context, &scheduler); }
void wait_for(int& count, uint64_t& turn, int& all) { uint64_t mine = turn; if (++count == all) { count = 0; ++turn; return; } while (turn == mine) yield(); }
void leave(int& c, uint64_t& t, int& all) { if (--all > 0 && c == all) { c = 0; ++t; } }
void check(Bar& b) { if (b.pending == 0 && b.tx == 0) { ++b.phase; b.pending = b.expected; } }
void enter() { (*kernel)(); 
  for (auto& c : now->copies) if (c.bytes) { fprintf(stderr, "copies not waited for at the end\n"); abort(); }
  now->done = true; Block& b = blocks[now->block]; Warp& w = b.warps[now->number / 32];
  leave(w.arrived, w.generation, w.alive); leave(b.arrived, b.generation, b.alive); leave(cl_arrived, cl_generation, cl_alive); yield(); }
void deliver(Message m) { int r = m.to / kSpan - 1; if (blocks[r].alive == 0) { fprintf(stderr, "message to a block that has ended\n"); abort(); }
  memcpy(at(m.to), m.words, 4 * m.n); Bar& b = bars.at(m.barrier); b.tx -= 4 * m.n; check(b); }
}
unsigned char* at(uint32_t a) { return arena.data() + a; }
dim3& thread_index() { return now->index; }
dim3& block_index() { static dim3 d; d = dim3(first_block + now->block); return d; }
dim3& block_size() { return blocksize; }
dim3& grid_size() { return gridsize; }
int lane() { return now->number % 32; }
unsigned char* shared_memory() { return arena.data() + (now->block + 1) * kSpan; }
uint64_t* shown(int which) { return blocks[now->block].warps[now->number / 32].shown[which]; }
void warp_barrier() { Warp& w = blocks[now->block].warps[now->number / 32]; wait_for(w.arrived, w.generation, w.alive); }
void warpgroup_barrier() { abort(); }
void block_barrier() { Block& b = blocks[now->block]; wait_for(b.arrived, b.generation, b.alive); }
void copy_later(void*, const void*) { abort(); }
void wait_for_copies() { abort(); }
// of emu.h
uint32_t address_of(const void* p) { return uint32_t((const unsigned char*)p - arena.data()); }
void async_copy(uint32_t to, const void* from, int bytes) { memset(at(to), 0xff, 16); now->copies.push_back({to, from, bytes, now->groups}); }
void commit() { ++now->groups; }
void wait_groups(int pending) { auto& c = now->copies; size_t k = 0; for (auto& x : c) { if (x.group < now->groups - pending) { memset(at(x.to), 0, 16); memcpy(at(x.to), x.from, x.bytes); } else c[k++] = x; } c.resize(k); }
void bar_init(uint32_t a, int n) { bars[a] = {n, n, 0, 0, true}; }
void bar_expect(uint32_t a, uint32_t bytes) { Bar& b = bars.at(a); b.tx += bytes; --b.pending; check(b); }
void bar_wait(uint32_t a, uint32_t parity) { Bar& b = bars.at(a); for (int i = 0; b.phase % 2 == parity % 2; ) { if (++i > 10000000) { fprintf(stderr, "stuck\n"); abort(); } yield(); } }
void remote(uint32_t to, uint32_t barrier, const uint32_t* w, int n) { Message m{to, barrier, {w[0], n > 1 ? w[1] : 0}, n}; mail.push_back(m); }
void cl_arrive() { }
void cl_wait() { wait_for(cl_arrived, cl_generation, cl_alive); }
void run_cluster(int grid, int cluster, int size, size_t bytes, const std::function<void()>& body) {
  if (bytes > 232448) abort();
  gridsize = dim3(grid); blocksize = dim3(size); kernel = &body; cluster_ = cluster;
  arena.assign(size_t(cluster + 1) * kSpan, 0xff);
  if ((int)threads.size() < cluster * size) threads.resize(cluster * size);
  for (first_block = 0; first_block < grid; first_block += cluster) {
    std::fill(arena.begin(), arena.end(), 0xff); bars.clear(); mail.clear(); blocks.assign(cluster, {}); cl_arrived = 0; cl_alive = cluster * size; cl_generation = 0;
    for (int b = 0; b < cluster; ++b) { blocks[b].warps.assign(size / 32, {}); blocks[b].alive = size; for (auto& w : blocks[b].warps) w.alive = 32; }
    std::vector<int> order;
    for (int i = 0; i < cluster * size; ++i) { Thread& t = threads[i]; t.number = i % size; t.block = i / size; t.done = false; t.index = dim3(t.number); t.copies.clear(); t.groups = 0;
      getcontext(&t.context); t.context.uc_stack.ss_sp = t.stack.data(); t.context.uc_stack.ss_size = t.stack.size(); t.context.uc_link = nullptr; makecontext(&t.context, enter, 0); order.push_back(i); }
    int left = cluster * size; long sweeps = 0;
    while (left > 0) {
      // whole warps in random order; at times lanes of it, or one block much more often than others
      std::vector<int> warps; for (int w = 0; w < cluster * size / 32; ++w) warps.push_back(w);
      std::shuffle(warps.begin(), warps.end(), rng);
      int favoured = rng() % cluster, lazy = rng() % 3;
      for (int w : warps) { if (lazy && w / (size / 32) != favoured && rng() % 4) continue;
        int turn = rng() % 32; for (int l = 0; l < 32; ++l) { int i = w * 32 + (l + turn) % 32; if (threads[i].done) continue; now = &threads[i]; swapcontext(&scheduler, &now->context); if (threads[i].done) --left; } }
      size_t n = mail.size(); std::shuffle(mail.begin(), mail.end(), rng); size_t send = n ? 1 + rng() % n : 0;
      for (size_t i = 0; i < send; ++i) { Message m = mail.back(); mail.pop_back(); deliver(m); }
      if (++sweeps > 3000000) { fprintf(stderr, "hangs\n"); abort(); }
    }
    if (!mail.empty()) { fprintf(stderr, "messages left at the end\n"); abort(); }
    for (auto& [a, b] : bars) if (b.tx || b.pending != b.expected) { fprintf(stderr, "barrier not even\n"); abort(); }
  }
}
}
