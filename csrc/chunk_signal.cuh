// Waiting for chunks: what a signal means on the device, and how a block gives up.
//
// What belongs here: reading signals and the epoch, the deadline, the abort word, the record of a
// failure. Who waits for what is in gathering_mainloop.cuh.
// Two threads of a block share the work, because a look at a signal takes as long as the loads of
// several stages, and would leave the tensor cores without data at the start of every tile: one looks
// (`ChunkWatcher`), tile after tile and ahead of the loads; the other, which loads, only asks the block's
// shared memory how far it may go (`TileGate`).
// Invariant: after `TileGate::is_open` has returned true, TMA loads of that thread see the data of the
// tile's chunks. The watcher's acquire load pairs with the producer's release (a copy engine's
// ordered write, or st.release.sys after the data); its proxy fence then carries that order over from
// ordinary loads to TMA, which reads memory by another path; release and acquire of `tiles_ready`
// within the block hand it on to the loading thread. A block that gives up never traps: it says so
// once, tells the others through `stop`, and goes on without waiting.
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

// What the threads of a block tell each other about its chunks during one launch, in shared memory.
struct BlockWaits {
    // How many of this block's tiles have all their chunks. Written by the watcher.
    uint32_t tiles_ready;
    // Whether this block has given up. Written by the watcher before the `tiles_ready` that it
    // concerns. The warps that store D look at it too, after the loads of that tile have reached
    // them through a stage's mbarrier.
    uint32_t stopped;
    // How many tiles the loading thread has begun.
    uint32_t tiles_begun;
};

// At the end of the launch's dynamic shared memory, behind all that CUTLASS lays out there. (A static
// variable would come first, and shift the tiles off the alignment that TMA needs.)
constexpr int kBlockWaitsBytes = 16;
static_assert(sizeof(BlockWaits) <= kBlockWaitsBytes);

__device__ inline BlockWaits& block_waits() {
    extern __shared__ char smem[];
    uint32_t size;
    asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(size));
    return *reinterpret_cast<BlockWaits*>(smem + size - kBlockWaitsBytes);
}

// Before any other thread of the block looks; whoever calls it also starts the block's first barrier.
__device__ inline void begin_block_waits() {
    block_waits() = BlockWaits{0, 0, 0};
    __threadfence_block();
}

// The loading thread's side.
struct TileGate {
    // Whether tile `tile` of this block (counted from 0) may be loaded. Pairs with `publish`.
    static __device__ bool is_open(uint32_t tile) {
        uint32_t ready;
        uint32_t address = uint32_t(__cvta_generic_to_shared(&block_waits().tiles_ready));
        asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(ready) : "r"(address) : "memory");
        return ready > tile;
    }

    static __device__ void publish(uint32_t tiles) {
        uint32_t address = uint32_t(__cvta_generic_to_shared(&block_waits().tiles_ready));
        asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(address), "r"(tiles) : "memory");
    }
};

// The watching thread's side; it lives as long as the kernel.
class ChunkWatcher {
public:
    // Waits until chunks first ..= last are there, or this block or another gives up; then opens the
    // gate of the next tile. `last` below `first` waits for nothing.
    __device__ void open_next(SignalTable const& table, int32_t first, int32_t last, uint32_t tile_m,
                              uint32_t tile_n) {
        if (tiles_ == 0) epoch_ = load_relaxed_system(table.epoch);
        if (!stopped_ && !wait(table, first, last, tile_m, tile_n)) {
            stopped_ = true;
            block_waits().stopped = 1;
        }
        TileGate::publish(++tiles_);
    }

private:
    // False if this block or another has given up.
    __device__ bool wait(SignalTable const& table, int32_t first, int32_t last, uint32_t tile_m,
                         uint32_t tile_n) {
        unsigned long long begin = 0;
        for (uint32_t polls = 0;; ++polls) {
            int32_t chunk = missing(table, first, last);
            if (chunk > last) return true;
            if (load_relaxed_gpu(table.stop) == stop_value()) return false;
            unsigned long long now = global_timer();
            if (polls == 0) begin = now;
            // The abort word is in the host's memory, a microsecond away: now and then will do.
            if (polls % 16 == 0 && table.abort && load_relaxed_system(table.abort)) {
                give_up(table, OG_FAILURE_ABORTED, chunk, tile_m, tile_n);
                return false;
            }
            if (now - begin > table.timeout_ns) {
                give_up(table, OG_FAILURE_TIMEOUT, chunk, tile_m, tile_n);
                return false;
            }
            if (polls > 8) __nanosleep(20);
        }
    }

    // The first chunk of first ..= last that is not there, or one past last. Chunks seen before are not
    // looked at again; they are remembered as one run, which is enough because tiles follow the
    // order of the chunks.
    __device__ int32_t missing(SignalTable const& table, int32_t first, int32_t last) {
        bool looked = false;
        while (first <= last) {
            if (first >= ready_begin_ && first < ready_end_) {
                first = ready_end_;
                continue;
            }
            uint32_t value = load_acquire_system(table.signals + table.slot[first]);
            if (int32_t(value - epoch_) < 0) return first;
            if (first != ready_end_) ready_begin_ = first;
            ready_end_ = ++first;
            looked = true;
        }
        if (looked) fence_tma_after_loads();
        return last + 1;
    }

    // Differs from every earlier epoch's value and from the zero that the word starts with.
    __device__ unsigned long long stop_value() const { return (1ull << 32) | epoch_; }

    // The first block to get here in this epoch writes the record.
    __device__ void give_up(SignalTable const& table, og_failure_kind kind, int32_t chunk,
                            uint32_t tile_m, uint32_t tile_n) const {
        unsigned long long before = load_relaxed_gpu(table.stop);
        if (before == stop_value()) return;
        if (atomicCAS(table.stop, before, stop_value()) != before) return;
        og_failure* record = table.failure;
        record->chunk = uint32_t(chunk);
        record->signal = load_relaxed_system(table.signals + table.slot[chunk]);
        record->epoch = epoch_;
        record->tile_m = tile_m;
        record->tile_n = tile_n;
        store_release_system(&record->kind, kind);
    }

    bool stopped_ = false;
    uint32_t tiles_ = 0;
    uint32_t epoch_ = 0;
    // The run of chunks that have been seen ready.
    int32_t ready_begin_ = 0;
    int32_t ready_end_ = 0;
};

#endif  // __CUDACC__

}  // namespace overlap_gemm
