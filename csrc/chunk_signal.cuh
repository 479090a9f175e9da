// Waiting for chunks: what a signal means on the device, and how a block gives up.
//
// What belongs here: reading signals and the epoch, the deadline, the abort word, the record of a
// failure. Who waits for what is in gathering_mainloop.cuh.
// Invariant: after `ChunkWaiter::wait` has returned true, TMA loads of this thread see the chunk's
// data. The acquire load pairs with the producer's release (a copy engine's ordered write, or
// st.release.sys after the data); the proxy fence then carries that order from ordinary loads over
// to TMA, which reads memory by another path. A block that gives up never traps: it says so once,
// tells the others through `stop`, and goes on without waiting.
#pragma once

#include <cstdint>

#include "overlap_gemm.h"

namespace overlap_gemm {

// Chunks as kernel parameters: chunk c has the rows first_row[c] ..< first_row[c + 1] (the last: to
// the end of A). One chunk, or none, means that rows do not matter.
struct ChunkTable {
    int32_t count = 0;
    int32_t first_row[OG_MAX_CHUNKS];

#if defined(__CUDACC__)
    // The chunk that `row` lies in.
    __device__ int32_t of_row(int32_t row) const {
        int32_t low = 0;
        int32_t high = count;
        while (high - low > 1) {
            int32_t middle = (low + high) >> 1;
            if (first_row[middle] <= row) {
                low = middle;
            } else {
                high = middle;
            }
        }
        return low;
    }
#endif
};

// Where the signals are, as kernel parameters. `signals` is null where all of A is there already.
struct SignalTable {
    uint32_t const* signals = nullptr;
    uint32_t const* epoch = nullptr;
    unsigned long long* stop = nullptr;
    uint32_t const* abort = nullptr;
    og_failure* failure = nullptr;
    unsigned long long timeout_ns = 0;
    uint16_t slot[OG_MAX_CHUNKS];
};

#if defined(__CUDACC__)

// Pairs with the producers' release at system scope: a peer's GPU, the copy engine, the host.
__device__ inline uint32_t load_acquire_system(uint32_t const* word) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

// For words whose neighbours are not looked at: the abort word, the epoch, `stop`.
__device__ inline uint32_t load_relaxed_system(uint32_t const* word) {
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ inline unsigned long long load_relaxed_gpu(unsigned long long const* word) {
    unsigned long long value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

// Pairs with the host's acquire of `og_failure::kind`.
__device__ inline void store_release_system(uint32_t* word, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ inline unsigned long long global_timer() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// From here on TMA loads of this thread see what its ordinary loads have seen.
__device__ inline void fence_tma_after_loads() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

// What a block remembers about its chunks during one launch. In shared memory although one thread
// alone loads: that thread has 40 registers, and needs them for its loads.
struct BlockWaits {
    uint32_t epoch;
    // Whether this block has given up. The warps that store D look at it too: the loading thread
    // writes it before it hands over the first stage of a tile (release through the stage's
    // mbarrier), they read it after they have consumed that stage (acquire).
    uint32_t stopped;
    // The run of chunks that have been seen ready: begin ..< end.
    int32_t ready_begin;
    int32_t ready_end;
    // Tiles begun so far.
    uint32_t tiles;
};

// At the end of the launch's dynamic shared memory, behind all that CUTLASS lays out there. (A static
// variable would come first, and shift the tiles off the alignment that TMA needs.)
constexpr int kBlockWaitsBytes = 32;
static_assert(sizeof(BlockWaits) <= kBlockWaitsBytes);

__device__ inline BlockWaits& block_waits() {
    extern __shared__ char smem[];
    uint32_t size;
    asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(size));
    return *reinterpret_cast<BlockWaits*>(smem + size - kBlockWaitsBytes);
}

// The loading thread's side. All functions are for that thread alone.
struct ChunkWaiter {
    SignalTable const& table;
    BlockWaits& waits;

    // Before the first tile of a launch, and after the grid before this one has ended.
    __device__ void begin_launch() const {
        waits.epoch = load_relaxed_system(table.epoch);
        waits.stopped = 0;
        waits.ready_begin = 0;
        waits.ready_end = 0;
    }

    // Before each tile: whether this block or another has given up.
    __device__ bool has_stopped() const {
        if (!waits.stopped && load_relaxed_gpu(table.stop) == stop_value()) waits.stopped = 1;
        return waits.stopped;
    }

    // Whether all of chunks first ..= last are there. Those seen before are not looked at again; they
    // are remembered as one run, which is enough because tiles follow the order of the chunks.
    __device__ bool poll(int32_t first, int32_t last) const {
        return missing(first, last) > last;
    }

    // Waits for chunks first ..= last. False if this block or another has given up.
    __device__ bool wait(int32_t first, int32_t last, uint32_t tile_m, uint32_t tile_n) const {
        unsigned long long begin = global_timer();
        for (uint32_t polls = 0;; ++polls) {
            int32_t chunk = missing(first, last);
            if (chunk > last) return true;
            // The abort word is in the host's memory, a microsecond away: now and then will do.
            if (polls % 16 == 0 && table.abort && load_relaxed_system(table.abort)) {
                give_up(OG_FAILURE_ABORTED, chunk, tile_m, tile_n);
            } else if (global_timer() - begin > table.timeout_ns) {
                give_up(OG_FAILURE_TIMEOUT, chunk, tile_m, tile_n);
            }
            if (has_stopped()) return false;
            if (polls > 8) __nanosleep(20);
        }
    }

private:
    // Differs from every earlier epoch's value and from the zero that the word starts with.
    __device__ unsigned long long stop_value() const { return (1ull << 32) | waits.epoch; }

    // The first chunk of first ..= last that is not there, or last + 1.
    __device__ int32_t missing(int32_t first, int32_t last) const {
        while (first <= last) {
            if (first >= waits.ready_begin && first < waits.ready_end) {
                first = waits.ready_end;
                continue;
            }
            uint32_t value = load_acquire_system(table.signals + table.slot[first]);
            if (int32_t(value - waits.epoch) < 0) return first;
            if (first != waits.ready_end) waits.ready_begin = first;
            waits.ready_end = ++first;
        }
        fence_tma_after_loads();
        return last + 1;
    }

    // The first block to get here in this epoch writes the record.
    __device__ void give_up(og_failure_kind kind, int32_t chunk, uint32_t tile_m,
                            uint32_t tile_n) const {
        waits.stopped = 1;
        unsigned long long before = load_relaxed_gpu(table.stop);
        if (before == stop_value()) return;
        if (atomicCAS(table.stop, before, stop_value()) != before) return;
        og_failure* record = table.failure;
        record->chunk = uint32_t(chunk);
        record->signal = load_relaxed_system(table.signals + table.slot[chunk]);
        record->epoch = waits.epoch;
        record->tile_m = tile_m;
        record->tile_n = tile_n;
        store_release_system(&record->kind, kind);
    }
};

#endif  // __CUDACC__

}  // namespace overlap_gemm
