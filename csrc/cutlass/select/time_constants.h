// Constants of the time model: written by perf/gemm/fit_time_model.py, which fits them to sweeps
// in perf/results/h200. A comment says where a figure comes from that no sweep determines.
//
// Over the products of a sweep, the kernel that the time model alone chooses takes so much longer
// than the best one:
//   gemm_sweep.csv: 2.16 % (1119 products)
//   gemm_sweep_large.csv: 1.95 % (375 products)
//   skinny_sweep.csv: 0.77 % (28 products)
#pragma once

#ifndef FUSEDOPS_TIME_CONSTANT  // a variable in perf/gemm/time_model_probe.cpp
#define FUSEDOPS_TIME_CONSTANT inline constexpr double
#endif

// clang-format off
namespace fusedops {

// ---- all families ----

// The unit of cycles: H200 runs long products at about that clock. By hand.
FUSEDOPS_TIME_CONSTANT kClockGhz = 1.6;
FUSEDOPS_TIME_CONSTANT kMmaPerCycle = 1988;  // 16-bit multiply-adds per SM
FUSEDOPS_TIME_CONSTANT kDramBytesPerUs = 4.2e+06;
// What copies of operands move, there and back, and those that transpose. By hand, from six copies
// on an H100, whose memory does not reach the rate above.
FUSEDOPS_TIME_CONSTANT kCopiedBytesPerUs = 2.86e+06;
FUSEDOPS_TIME_CONSTANT kTransposedBytesPerUs = 2.02e+06;
// The launch, and the least that a row of few elements takes. By hand, from graphs on an H200.
FUSEDOPS_TIME_CONSTANT kCopyUs = 1.5;
FUSEDOPS_TIME_CONSTANT kCopiedRowUs = 8e-05;
FUSEDOPS_TIME_CONSTANT kLaunchUs = 3.28;
FUSEDOPS_TIME_CONSTANT kDramOverlap = 4;  // of the time of SMs and of DRAM, but for slices of K
FUSEDOPS_TIME_CONSTANT kReduceUs = 3.79;  // the split-K reduction, launch included
// What less it takes behind fp32 kernels in a CUDA graph. By hand, from 1700 and 8600 runs on an H200.
FUSEDOPS_TIME_CONSTANT kReduceOverlapUs = 2;

// ---- sm90 ----

FUSEDOPS_TIME_CONSTANT kSharedBytesPerCycle = 84.8;  // operands of a WGMMA come from shared memory
FUSEDOPS_TIME_CONSTANT kSharedBytesOfTwo = 93.2;  // where two warpgroups multiply at a time
FUSEDOPS_TIME_CONSTANT kL2BytesPerCycle = 68.9;  // into shared memory, per SM
// Fractions by which bytes cost more: of the larger operand, which comes from DRAM; for each CTA of
// a cluster where rows cut lines of 128 bytes; where they cut sectors of 32.
FUSEDOPS_TIME_CONSTANT kCold = 0.141;
FUSEDOPS_TIME_CONSTANT kCutLine = 0.39;
FUSEDOPS_TIME_CONSTANT kCutSector = 0.62;
// What bytes out of L2 cost in a training step, where the card is at its power limit. By hand, from
// perf/results/h100/gemm_sustained.csv: the sweeps time products at rest.
FUSEDOPS_TIME_CONSTANT kPowerUs = 100;  // products that take longer, by their arithmetic
FUSEDOPS_TIME_CONSTANT kPowerBytesPerUs = 4e+07;
FUSEDOPS_TIME_CONSTANT kPowerOverlap = 2;
FUSEDOPS_TIME_CONSTANT kFillCycles = 358;  // of a kernel: until the first MMA
// Every tile costs the first, and the next two by its bytes and elements.
FUSEDOPS_TIME_CONSTANT kEpilogueCycles = 286;
FUSEDOPS_TIME_CONSTANT kEpilogueByteCycles = 0.0586;
FUSEDOPS_TIME_CONSTANT kEpilogueElementCycles = 0.009;
FUSEDOPS_TIME_CONSTANT kActivationCycles = 0.0093;  // an element, other than relu
// An element of the grad epilogue: act' and sums of columns. By hand: no sweep times it, since
// gemm_with_config has no such epilogue.
FUSEDOPS_TIME_CONSTANT kGradientCycles = 0.2;
// An element that is added to what memory holds, and of a kernel that has brought it into L2 (only
// cooperative ones do). By hand, from weight gradients in the profiles of two models on an H100:
// 128256x2048x2048 in bf16 took 4.0 ms instead of 1.4 and 151936x1024x1365 in fp32 2.0 instead of
// .6. No sweep times it.
FUSEDOPS_TIME_CONSTANT kAddCycles = 2;
FUSEDOPS_TIME_CONSTANT kPrefetchedAddCycles = 0.1;
FUSEDOPS_TIME_CONSTANT kCooperativeEpilogue = 0.75;  // two warpgroups store a tile
FUSEDOPS_TIME_CONSTANT kExposedEpilogue = 0.8;  // of one of pingpong that outlasts the mainloop
// A step of a tile with few rows of A: the CTAs of all columns want the same few cache lines.
FUSEDOPS_TIME_CONSTANT kHotRowCycles = 0.33;
FUSEDOPS_TIME_CONSTANT kHotRowPower = 1.49;
// What sending or adding the accumulators of a shared tile takes.
FUSEDOPS_TIME_CONSTANT kExchangeCycles = 1342;
FUSEDOPS_TIME_CONSTANT kExchangeByteCycles = 0.041;

// ---- cluster ----

// Launches: of a tile a block, of tiles that share operands, of tiles that split K.
FUSEDOPS_TIME_CONSTANT kClusterAloneUs = 2.02;
FUSEDOPS_TIME_CONSTANT kClusterSharedUs = 3.29;
FUSEDOPS_TIME_CONSTANT kClusterSplitUs = 2.61;
FUSEDOPS_TIME_CONSTANT kClusterNormUs = 0.35;  // by hand: vectors of a norm that all threads share
FUSEDOPS_TIME_CONSTANT kClusterMmaPerCycle = 2127;
FUSEDOPS_TIME_CONSTANT kIssueCycles = 194;  // of a step, at least
FUSEDOPS_TIME_CONSTANT kClusterL2BytesPerCycle = 63.5;
FUSEDOPS_TIME_CONSTANT kClusterCold = 0.387;  // as kCold, kCutSector and kCutLine
FUSEDOPS_TIME_CONSTANT kClusterCutSector = 0.7;
FUSEDOPS_TIME_CONSTANT kClusterCutLine = 0.193;
FUSEDOPS_TIME_CONSTANT kMinor = 0.09;  // the fraction more where K is not contiguous
FUSEDOPS_TIME_CONSTANT kSharedRow = 1.54;  // of what a row for one block costs
FUSEDOPS_TIME_CONSTANT kCrowding = 0.529;  // of L2's time with a block on every SM
FUSEDOPS_TIME_CONSTANT kClusterOverlap = 7.6;  // infinite: the longer of two times; 1: their sum
FUSEDOPS_TIME_CONSTANT kSentBytesPerUs = 2e+04;
FUSEDOPS_TIME_CONSTANT kStoredBytesPerUs = 1.45e+04;

// ---- skinny ----

FUSEDOPS_TIME_CONSTANT kSkinnyLaunchUs = 1.08;
FUSEDOPS_TIME_CONSTANT kSkinnyWaveUs = 2;
FUSEDOPS_TIME_CONSTANT kSkinnyDramBytesPerUs = 4.37e+06;
FUSEDOPS_TIME_CONSTANT kSkinnyLatencyUs = 1.28;  // of the bytes in flight
FUSEDOPS_TIME_CONSTANT kSkinnySmBytesPerUs = 1.65e+05;
FUSEDOPS_TIME_CONSTANT kPairBytesPerUs = 2.67e+04;  // what two blocks send each other
FUSEDOPS_TIME_CONSTANT kPairUs = 0.27;
FUSEDOPS_TIME_CONSTANT kPieceUs = 0.124;  // the epilogue of 8 rows
FUSEDOPS_TIME_CONSTANT kMinMmaCycles = 15;
FUSEDOPS_TIME_CONSTANT kSkinnyCyclesPerUs = 1700;
FUSEDOPS_TIME_CONSTANT kSkinnyOverlap = 3.5;  // as kClusterOverlap
FUSEDOPS_TIME_CONSTANT kIdlePower = 0.46;  // of the fraction of SMs with a block, in DRAM's rate
FUSEDOPS_TIME_CONSTANT kUneven = 0.305;  // the fraction more where SMs have more blocks than others
// The fraction more where more clusters of four or eight blocks than run at a time share SMs or
// wait, and what eight blocks take beside kPairUs. By hand, from 41 products on an H200.
FUSEDOPS_TIME_CONSTANT kCrowded = 0.1;
FUSEDOPS_TIME_CONSTANT kEightUs = 0.3;
// The fraction more where rows cut sectors of 32 bytes, half of it for two blocks. By hand, from
// eight products on an H200: the sweep has none.
FUSEDOPS_TIME_CONSTANT kSkinnyCutSector = 0.45;
// Early blocks of the next launch take the other half of the SMs, in pairs with late ones of this
// one: some graphs replay 40 % slower (9.0 us or 13 for 8x4096x4096). By hand, from graph replays:
// a sweep queues calls without a graph.
FUSEDOPS_TIME_CONSTANT kUnsteady = 1.12;

// ---- sm80 and FMA ----

// Fractions of kMmaPerCycle, cycles of a tile beside its MMAs, fractions of the FMA rate by tile.
// By hand: no sweep holds these kernels.
FUSEDOPS_TIME_CONSTANT kSm80Half = 0.5;
FUSEDOPS_TIME_CONSTANT kSm80Tf32 = 0.22;
FUSEDOPS_TIME_CONSTANT kTileCycles = 2000;
// The FMA kernels, fitted to 1682 runs on an H200, which they meet within 5 to 10 % (rms): parts of
// the FMA rate by size of tile; cycles of one of K for a small tile alone.
FUSEDOPS_TIME_CONSTANT kSimtLarge = 0.71;
FUSEDOPS_TIME_CONSTANT kSimtMedium = 0.615;
FUSEDOPS_TIME_CONSTANT kSimtSmall = 0.3;
FUSEDOPS_TIME_CONSTANT kSimtAlone = 16;
// Instructions of a thread for a word of an operand that does not begin at 16 bytes, of which an SM
// issues 128 a cycle. By hand, counted in machine code: no GPU has timed it.
FUSEDOPS_TIME_CONSTANT kWordInstructions = 8;
FUSEDOPS_TIME_CONSTANT kWordsStreamed = 0.5;  // the part of DRAM's rate that words reach
// Outputs, padding to tiles included, that an SM writes a cycle where rows of d do not begin at 16
// bytes. By hand, from seven forward products and input gradients on an H100: at 16 bits all of N
// 241 to 433 and K 1 to 31 lost 2.0 to 2.2 ps an output, at fp32 those of N 89 to 210 and K 1 to 30
// lost 3.0 to 5.2, of which this is about the least.
FUSEDOPS_TIME_CONSTANT kCutHalves = 2.2;
FUSEDOPS_TIME_CONSTANT kCutWords = 1.5;
// The same of the FMA kernels where rows begin at 16 bytes. By hand, from two products on an H200.
FUSEDOPS_TIME_CONSTANT kStoredWords = 2;
// From the data sheets of the A100 (80 GB) and of GeForce GPUs of Ampere and Ada.
FUSEDOPS_TIME_CONSTANT kA100DramBytesPerUs = 1.9e+06;
FUSEDOPS_TIME_CONSTANT kOtherDramBytesPerUs = 9.5e+05;

}  // namespace fusedops
