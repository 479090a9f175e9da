// Waiting for chunks: what a signal means on the device, and how a block gives up.
//
// What belongs here: reading signals and the epoch, the deadline, the abort word, the record of a
// failure. Who waits for what is in gathering_mainloop.cuh.
// The product of a gather's step does not wait for the end of the kernel before it, but for that kernel's word
// that all older work has ended (`begun`), which comes some microseconds earlier.
// A warp and a thread of a block share the work, because a look at a signal takes as long as the loads
// of several stages, and would leave the tensor cores without data at the start of every tile: the warp
// looks (`ChunkWatcher`), tile after tile and ahead of the loads; the thread, which loads, only asks the
// block's shared memory how far it may go (`TileGate`).
// Invariant: after `TileGate::is_open` has returned true, TMA loads of that thread see the data of the
// tile's chunks. A lane's acquire load pairs with the producer's release (a copy engine's ordered
// write, or st.release.sys after the data); its proxy fence then carries that order over from ordinary
// loads to TMA, which reads memory by another path; the warp's barrier, then release and acquire of
// `tiles_ready` within the block, hand it on to the loading thread. A block that gives up never traps:
// it says so once, tells the others through `stop`, and goes on without waiting.
#pragma once

#include <cstdint>

#include "overlap_gemm.h"
#include "rising_table.h"

#if defined(__CUDACC__)
#include "dependents.cuh"
#endif

namespace overlap_gemm {

// How the input arrives, as kernel parameters. `signals` is null where all of A is there already, and
// then nothing else is looked at. Aligned, like OrderParams, so that eight chunks fill one line.
struct alignas(64) ChunkTable {
    uint32_t const* signals = nullptr;
    uint32_t const* epoch = nullptr;
    uint64_t const* begun = nullptr;
    og_stop* stop = nullptr;
    uint32_t const* abort = nullptr;
    og_failure* failure = nullptr;
    uint64_t timeout_ns = 0;
    int32_t count = 0;
    int32_t padding = 0;
    // Chunk c has the rows chunks[c].first_row ..< chunks[c + 1].first_row (the last: to the end of A).
    og_chunk chunks[OG_MAX_CHUNKS];

#if defined(__CUDACC__)
    // The chunk that `row` lies in.
    __device__ int32_t of_row(int32_t row) const {
        return last_at_most(row, 0, count, [&](int32_t c) { return chunks[c].first_row; });
    }

    __device__ uint32_t const* signal_of(int32_t chunk) const {
        return signals + chunks[chunk].signal;
    }
#endif
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

__device__ inline uint64_t load_relaxed_gpu(uint64_t const* word) {
    uint64_t value;
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

// What `og_gather`'s word `begun` is at least, once the step has begun; below are the epoch's bits.
constexpr uint64_t kBegun = 1ull << 32;
// Added where the step before was in the same buffer: its signals are this one's, reset right before.
constexpr uint64_t kAgain = 1ull << 33;

// What `og_stop::given_up` says when step `epoch` was given up: differs from the zero that the word starts
// with, and from every earlier step's value. (Steps that look at toggles all have one; after one of them
// was given up, no later one goes on.)
__device__ inline uint64_t given_up_at(uint32_t epoch) { return (1ull << 32) | epoch; }

// Gives step `epoch` up; true for one thread of all that do.
__device__ inline bool is_first_to_give_up(og_stop* stop, uint32_t epoch) {
    auto* word = reinterpret_cast<unsigned long long*>(&stop->given_up);
    uint64_t before = load_relaxed_gpu(&stop->given_up);
    if (before == given_up_at(epoch)) return false;
    return atomicCAS(word, before, given_up_at(epoch)) == before;
}

// Tells the host why. One thread of the step.
__device__ inline void record_failure(og_failure* record, og_failure_kind kind, uint32_t epoch,
                                      uint32_t chunk, uint32_t signal, uint32_t tile_m,
                                      uint32_t tile_n) {
    record->chunk = chunk;
    record->signal = signal;
    record->epoch = epoch;
    record->tile_m = tile_m;
    record->tile_n = tile_n;
    store_release_system(&record->kind, kind);
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

// The watching warp's side: all its lanes call it together. It lives as long as the kernel.
class ChunkWatcher {
public:
    // Waits until chunks first ..= last are there, or this block or another gives up; then opens the
    // gate of the next tile. `last` below `first` waits for nothing.
    __device__ void open_next(ChunkTable const& table, int32_t first, int32_t last, uint32_t tile_m,
                              uint32_t tile_n) {
        if (!stopped_ && !wait(table, first, last, tile_m, tile_n)) {
            stopped_ = true;
            if (lane() == 0) block_waits().stopped = 1;
        }
        ++tiles_;
        // Every lane's loads and fences come before the gate opens.
        __syncwarp();
        if (lane() == 0) TileGate::publish(tiles_);
    }

private:
    static constexpr uint32_t kAllLanes = 0xffffffff;
    static constexpr int32_t kLanes = 32;
    // How often the abort word is looked at, by all blocks of the grid together.
    static constexpr uint64_t kAbortLookNs = 50000;

    static __device__ uint32_t lane() {
        uint32_t id;
        asm("mov.u32 %0, %laneid;" : "=r"(id));
        return id;
    }

    // False if this block or another has given up.
    __device__ bool wait(ChunkTable const& table, int32_t first, int32_t last, uint32_t tile_m,
                         uint32_t tile_n) {
        uint64_t begin = 0;
        for (uint32_t looks = 0;; ++looks) {
            // Chunks seen before are not looked at again; they are remembered as one run, which is
            // enough because tiles follow the order of the chunks.
            if (first >= ready_begin_ && first < ready_end_) first = ready_end_;
            if (first > last) return true;

            // Each lane looks at one chunk, from `first` on. Only parameters before this line: signals
            // and epoch belong to this step once the kernel before this one has ended, or has said that it
            // has begun. No load needs another's value, so that a look is one trip to memory.
            int32_t chunk = first + int32_t(lane());
            bool exists = chunk < table.count;
            uint32_t const* signal = table.signal_of(exists ? chunk : first);
            if (!table.begun) wait_for_kernels_before();
            uint64_t begun = table.begun ? load_relaxed_gpu(table.begun)
                                         : load_relaxed_system(table.epoch) | kBegun;
            uint64_t given_up = load_relaxed_gpu(&table.stop->given_up);
            uint64_t next_look = load_relaxed_gpu(&table.stop->next_look_ns);
            uint32_t value = load_acquire_system(signal);
            if (__any_sync(kAllLanes, begun < kBegun)) {
                // Without limit, as for the end of a kernel: it comes when what is older has ended. The host may
                // end it all the same; every block looks for itself, about once a millisecond.
                bool looks_up = looks % 1024 == 1023 && table.abort;
                if (__any_sync(kAllLanes, looks_up && load_relaxed_system(table.abort) != 0)) return false;
                if (looks > 8) __nanosleep(20);
                continue;
            }
            if (!has_begun_) {
                // With the load of `begun`, an acquire: pairs with gather.cu's release. What older kernels
                // wrote is there from here on.
                __threadfence();
                has_begun_ = true;
                // Nothing orders the loads of one look, so this one's signals may be from before they were reset.
                if (__any_sync(kAllLanes, (begun & kAgain) != 0)) continue;
            }
            uint32_t epoch = uint32_t(begun);
            uint32_t missing = __ballot_sync(kAllLanes, !exists || int32_t(value - epoch) < 0);
            int32_t run = missing ? __ffs(missing) - 1 : kLanes;
            if (run > 0) {
                fence_tma_after_loads();
                if (first != ready_end_) ready_begin_ = first;
                ready_end_ = first + run;
                continue;
            }

            if (__any_sync(kAllLanes, given_up == given_up_at(epoch))) return false;
            uint64_t now = global_timer();
            if (begin == 0) begin = now;
            if (__any_sync(kAllLanes, is_aborted(table, now, next_look))) {
                give_up(table, OG_FAILURE_ABORTED, epoch, first, tile_m, tile_n);
                return false;
            }
            if (__any_sync(kAllLanes, now - begin > table.timeout_ns)) {
                give_up(table, OG_FAILURE_TIMEOUT, epoch, first, tile_m, tile_n);
                return false;
            }
            if (looks > 8) __nanosleep(20);
        }
    }

    // One lane of one block looks every now and then; the others hear of it by `given_up`.
    static __device__ bool is_aborted(ChunkTable const& table, uint64_t now, uint64_t next_look) {
        if (!table.abort || lane() != 0) return false;
        // Unsigned: a time that is over, or that no block has ever set.
        if (next_look - now <= kAbortLookNs) return false;
        auto* word = reinterpret_cast<unsigned long long*>(&table.stop->next_look_ns);
        if (atomicCAS(word, next_look, now + kAbortLookNs) != next_look) return false;
        return load_relaxed_system(table.abort) != 0;
    }

    // The first block to get here in this epoch writes the record.
    static __device__ void give_up(ChunkTable const& table, og_failure_kind kind, uint32_t epoch,
                                   int32_t chunk, uint32_t tile_m, uint32_t tile_n) {
        if (lane() != 0) return;
        if (!is_first_to_give_up(table.stop, epoch)) return;
        uint32_t signal = load_relaxed_system(table.signal_of(chunk));
        record_failure(table.failure, kind, epoch, uint32_t(chunk), signal, tile_m, tile_n);
    }

    bool stopped_ = false;
    bool has_begun_ = false;
    uint32_t tiles_ = 0;
    // The run of chunks that have been seen ready.
    int32_t ready_begin_ = 0;
    int32_t ready_end_ = 0;
};

#endif  // __CUDACC__

}  // namespace overlap_gemm
