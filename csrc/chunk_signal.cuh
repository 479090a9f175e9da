// Waiting for chunks: what a signal means on the device, and how a block gives up.
// Kernels of other crates may include this and async_input_scheduler.cuh: docs/building-cuda.md, "Kernels of your own".
//
// What belongs here: reading signals and the epoch, the deadline, the abort word, the record of a
// failure. Who waits for what is in gathering_mainloop.cuh.
// The product of a gather's step does not wait for the end of the kernel before it, but for that kernel's word
// that all older work has ended (`begun`), which comes some microseconds earlier.
// Two warps of a block share the work, because a look at a signal takes as long as the loads
// of several stages, and would leave the tensor cores without data at the start of every tile: one warp
// looks (`ChunkWatcher`), tile after tile and ahead of the loads; the warp that loads only asks the
// block's shared memory how far it may go (`TileGate`). One of its lanes issues the loads: the loading thread.
// Invariant: after `TileGate::is_open` has returned true, TMA loads of that thread see the data of the
// tile's chunks. A lane's acquire load pairs with the producer's release (a copy engine's ordered
// write, or st.release.sys after the data); its proxy fence then carries that order over from ordinary
// loads to TMA, which reads memory by another path; the warp's barrier, then release and acquire of the
// gate within the block, and the loading warp's barrier, hand it on to the loading thread, and that thread's
// arrival at a stage's barrier to the warps that multiply and store. A block that gives up never traps: it says
// so once, tells the others through `stop`, and goes on without waiting.
#pragma once

#include <algorithm>
#include <cstdint>

#include "overlap_gemm.h"
#include "rising_table.h"

#if defined(__CUDACC__)
#include "dependents.cuh"
#endif

namespace overlap_gemm {

// What all waits of a step have in common: see og_gemm_input. All null where nothing is waited for.
struct StepWords {
    uint32_t const* epoch = nullptr;
    uint64_t const* begun = nullptr;
    og_stop* stop = nullptr;
    uint32_t const* abort = nullptr;
    og_failure* failure = nullptr;
    uint64_t timeout_ns = 0;
};

inline StepWords make_step_words(og_gemm_input const& input) {
    return {input.epoch, input.begun, input.stop, input.abort, input.failure, input.timeout_ns};
}

// What an SM fetches of kernel parameters at a time. The first use of each line takes a fraction of a microsecond.
constexpr int kLineBytes = 64;

// How the input arrives, as kernel parameters. `signals` is null where all of A is there already, and
// then nothing else is looked at. Aligned, like OrderParams, so that eight chunks fill one line.
struct alignas(kLineBytes) ChunkTable {
    uint32_t const* signals = nullptr;
    StepWords step;
    int32_t count = 0;
    // Signal s is written by rank s / slots_per_rank; 0: by nobody whose departure is announced.
    uint16_t slots_per_rank = 0;
    // A signal is 1 << share_bits words, 1 << writer_bits for each span of columns.
    uint8_t share_bits = 0;
    uint8_t writer_bits = 0;
    // Chunk c has the rows chunks[c].first_row ..< chunks[c + 1].first_row (the last: to the end of A).
    og_chunk chunks[OG_MAX_CHUNKS];

#if defined(__CUDACC__)
    // The chunk that `row` lies in.
    __device__ int32_t of_row(int32_t row) const {
        return last_at_most(row, 0, count, [&](int32_t c) { return chunks[c].first_row; });
    }

    // The words of all chunks' signals are counted chunk after chunk.
    __device__ int32_t first_word(int32_t chunk) const { return chunk << share_bits; }
    __device__ int32_t chunk_of(int32_t word) const { return word >> share_bits; }
    __device__ uint32_t const* at(int32_t word) const {
        int32_t chunk = chunk_of(word);
        return signals + (first_word(chunks[chunk].signal) + word - first_word(chunk));
    }
    // Those of one span are counted chunk after chunk, too.
    __device__ int32_t first_of_span(int32_t chunk) const { return chunk << writer_bits; }
    __device__ int32_t word_of_span(int32_t nth, int32_t span) const {
        int32_t chunk = nth >> writer_bits;
        return first_word(chunk) + first_of_span(span) + nth - first_of_span(chunk);
    }
    __device__ bool has_spans() const { return writer_bits != share_bits; }

    __device__ uint32_t rank_of(int32_t chunk) const {
        return uint32_t(chunks[chunk].signal / slots_per_rank);
    }
#endif
};

// For one launch. `input` null: all of A is there.
inline ChunkTable make_chunk_table(og_gemm_input const* input) {
    ChunkTable table{};
    if (!input) return table;
    table.signals = input->signals;
    table.step = make_step_words(*input);
    table.count = input->chunk_count;
    table.slots_per_rank = uint16_t(input->slots_per_rank);
    table.share_bits = uint8_t(input->share_bits);
    table.writer_bits = uint8_t(input->share_bits - input->span_bits);
    std::copy_n(input->chunks, table.count, table.chunks);
    return table;
}

#if defined(__CUDACC__)

// Pairs with the producers' release at system scope: a peer's GPU, the copy engine, the host.
__device__ inline uint32_t load_acquire_system(uint32_t const* word) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

// Without acquire: for words that this rank's own kernels write, its epoch among them, and for the record of a failure. The
// next function is for `stop`, and for `begun`, which a fence follows.
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

// For signals, the counts of a pad, and `og_failure::kind`: pairs with their readers' acquire. And for the epoch, whose readers
// come later on the stream, or behind `begun`, and need none.
__device__ inline void store_release_system(uint32_t* word, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ inline unsigned long long global_timer() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Whether the host's words at `abort` say that `rank` has left. Acquire: pairs with the host's release, so
// that the next look at a word of that rank's sees the last that it will ever hold.
__device__ inline bool has_left(uint32_t const* abort, uint32_t rank) {
    return rank < OG_MAX_RANKS && (load_acquire_system(abort + 1 + rank / 32) >> rank % 32 & 1) != 0;
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
// was given up, no later one goes on. Operations that share a workspace share the word, and may have equal epochs: there a step
// that was given up ends all operations, see signal_pad.cu.)
__device__ inline uint64_t given_up_at(uint32_t epoch) { return (1ull << 32) | epoch; }

// Gives step `epoch` up; true for one thread of all that do.
__device__ inline bool is_first_to_give_up(og_stop* stop, uint32_t epoch) {
    auto* word = reinterpret_cast<unsigned long long*>(&stop->given_up);
    uint64_t before = load_relaxed_gpu(&stop->given_up);
    if (before == given_up_at(epoch)) return false;
    return atomicCAS(word, before, given_up_at(epoch)) == before;
}

// Whether this lane, of all that wait in a step, is the one that looks at the host's words now: looks of many blocks come one
// after the other, 1 us each.
__device__ inline bool is_my_look(og_stop* stop, uint64_t now, uint64_t interval_ns) {
    uint64_t next_look = load_relaxed_gpu(&stop->next_look_ns);
    // Unsigned: a time that is over, or that no block has ever set.
    if (next_look - now <= interval_ns) return false;
    auto* word = reinterpret_cast<unsigned long long*>(&stop->next_look_ns);
    return atomicCAS(word, next_look, now + interval_ns) == next_look;
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

// The most blocks of a cluster that load rows together.
constexpr int kMostSharers = 4;

// What the threads of a block, and blocks of a cluster, tell each other about chunks during one launch, in
// shared memory.
struct BlockWaits {
    // An mbarrier for each of the blocks that load rows together, this one among them: its first phase is over
    // when that block has given up. For the warps that store: a whole warp can look at it without a branch that
    // the lanes may take differently, behind which the compiler would not keep the tensor cores' descriptors in
    // uniform registers.
    uint64_t stopped_by[kMostSharers];
    // How many spans of this block's tiles have all their chunks, and kStopped. Only atomic operations touch it.
    // For the loading warp.
    uint32_t gate;
};

// In the gate: this block has given up. It stays, so what it computes from now on is no result.
constexpr uint32_t kStopped = 1u << 31;

// At the end of the launch's dynamic shared memory, where PersistentKernel::Rest ends. (A static
// variable would come first, and shift the tiles off the alignment that TMA needs.)
constexpr int kBlockWaitsBytes = 48;
static_assert(sizeof(BlockWaits) <= kBlockWaitsBytes);

__device__ inline BlockWaits& block_waits() {
    extern __shared__ __align__(1024) char smem[];
    uint32_t size;
    asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(size));
    return *reinterpret_cast<BlockWaits*>(smem + size - kBlockWaitsBytes);
}

template <class T>
__device__ inline uint32_t shared_address(T const& variable) {
    return uint32_t(__cvta_generic_to_shared(&variable));
}

// Before any other thread of the cluster looks; the caller then meets all threads of the cluster.
// `kSharers` blocks of a cluster load rows together.
template <int kSharers>
__device__ inline void begin_block_waits() {
    static_assert(kSharers <= kMostSharers);
    BlockWaits& waits = block_waits();
    waits.gate = 0;
    for (int i = 0; i < kSharers; ++i) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(waits.stopped_by[i]))
                     : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __threadfence_block();
}

// The gate of a block's tiles, one span of columns after the other. Without spans a tile is one.
struct TileGate {
    // What it holds. Pairs with `open`. All lanes of a warp call it together. Each of them looks: where one did for all, the
    // branch around it would cost the loads their uniform registers.
    static __device__ uint32_t look() {
        uint32_t gate;
        asm volatile("atom.acquire.cta.shared::cta.or.b32 %0, [%1], 0;"
                     : "=r"(gate)
                     : "r"(shared_address(block_waits().gate))
                     : "memory");
        // What any lane has seen comes before what the others do now; and the compiler knows that it is the same for all.
        __syncwarp();
        return __shfl_sync(0xffffffff, gate, 0);
    }

    // Whether span `nth` of this block (counted from 0, over all tiles) may be loaded.
    static __device__ bool is_open(uint32_t gate, uint32_t nth) { return gate % kStopped > nth; }

    // Opens the gate for the next span. With `gives_up` the loading warp loads zeros for it and all later ones. That comes
    // once, after `stop` and `tell`, so that no zeros are loaded before them.
    static __device__ void open(bool gives_up) {
        uint32_t step = gives_up ? 1 + kStopped : 1;
        asm volatile("red.release.cta.shared::cta.add.u32 [%0], %1;" ::"r"(shared_address(block_waits().gate)),
                     "r"(step)
                     : "memory");
    }

    // This block, the `own`-th of those that load rows together, has given up. Once.
    static __device__ void stop(int own) {
        asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(
                         shared_address(block_waits().stopped_by[own]))
                     : "memory");
    }

    // Tells block `mate` of the cluster, which must not have ended.
    static __device__ void tell(uint32_t mate, int own) {
        uint32_t there;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                     : "=r"(there)
                     : "r"(shared_address(block_waits().stopped_by[own])), "r"(mate));
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
    }
};

// Whether this block, or another of the `kSharers` that load rows together, has given up. Pairs with `stop` and
// `tell`. A thread that has waited for a stage which was loaded behind a gate sees what came before that gate opened.
template <int kSharers>
__device__ inline bool is_stopped() {
    uint32_t stopped = 0;
    for (int i = 0; i < kSharers; ++i) {
        uint32_t is_over;
        asm volatile(
            "{\n.reg .pred over;\n"
            "mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 over, [%1], 0;\n"
            "selp.u32 %0, 1, 0, over;\n}"
            : "=r"(is_over)
            : "r"(shared_address(block_waits().stopped_by[i]))
            : "memory");
        stopped |= is_over;
    }
    return stopped != 0;
}

// The watching warp's side: all its lanes call it together. It lives as long as the kernel.
class ChunkWatcher {
public:
    // Waits until that span of chunks first ..= last is there, or this block or another gives up; then opens the
    // gate of the next span. `last` below `first` waits for nothing. A block that gives up, `own` of the cluster,
    // tells all others in the mask `sharers`: those that it loads rows for. They have not ended: each
    // waits for its last stages until this block has read them, too (GatheringMainloop::load_tail).
    __device__ void open_next(ChunkTable const& table, int32_t span, int32_t first, int32_t last, uint32_t tile_m,
                              uint32_t tile_n, uint32_t own, uint32_t sharers) {
        // The run is of another span.
        if (table.has_spans() && has_begun() && ready_end_ != INT32_MAX) ready_begin_ = ready_end_ = 0;
        bool gives_up = !wait(table, span, first, last, tile_m, tile_n);
        if (gives_up) {
            wait_no_more();
            int place = __popc(sharers & ((1u << own) - 1));
            if (lane() == 0) TileGate::stop(place);
            bool is_mate = lane() != own && (sharers >> lane() & 1) != 0;
            if (is_mate) TileGate::tell(lane(), place);
            // The mates' barriers are there before anything of this tile is.
            asm volatile("fence.acq_rel.cluster;" ::: "memory");
        }
        // Every lane's loads, fences and stops come before the gate opens.
        __syncwarp();
        if (lane() == 0) TileGate::open(gives_up);
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
    __device__ bool wait(ChunkTable const& table, int32_t span, int32_t first, int32_t last, uint32_t tile_m,
                         uint32_t tile_n) {
        uint64_t begin = 0;
        int32_t word = table.first_of_span(first);
        int32_t const end = table.first_of_span(last + 1);
        for (uint32_t looks = 0;; ++looks) {
            // Words seen before are remembered as one run, and not looked at again. One is enough, because bands of tiles
            // follow the order of the chunks: few tiles need words that the run has forgotten.
            if (word >= ready_begin_ && word < ready_end_) word = ready_end_;
            if (word >= end) return true;

            // Each lane looks at one word, from `word` on. Only parameters before this line: signals
            // and epoch belong to this step once the kernel before this one has ended, or has said that it
            // has begun. No load needs another's value, so that a look is one trip to memory.
            int32_t own = word + int32_t(lane());
            bool exists = own < table.first_of_span(table.count);
            uint32_t const* signal = table.at(table.word_of_span(exists ? own : word, span));
            StepWords const& step = table.step;
            if (!step.begun) wait_for_kernels_before();
            uint64_t begun =
                step.begun ? load_relaxed_gpu(step.begun) : load_relaxed_system(step.epoch) | kBegun;
            uint64_t given_up = load_relaxed_gpu(&step.stop->given_up);
            uint32_t value = load_acquire_system(signal);
            if (__any_sync(kAllLanes, begun < kBegun)) {
                // Without limit, as for the end of a kernel: it comes when what is older has ended. The host may
                // end it all the same; every block looks for itself, about once a millisecond.
                bool looks_up = looks % 1024 == 1023 && step.abort;
                uint32_t told = looks_up ? load_acquire_system(step.abort) : 0;
                if (__any_sync(kAllLanes, (told & OG_ABORT_ASKED) != 0)) return false;
                if (looks > 8) __nanosleep(20);
                continue;
            }
            if (!has_begun()) {
                // With the load of `begun`, an acquire: pairs with `tell_product`'s release (beginning.cuh). What older
                // kernels wrote is there from here on. Without that word it has been since the wait above.
                if (step.begun) asm volatile("fence.acq_rel.gpu;" ::: "memory");
                ready_begin_ = 0;
                // Nothing orders the loads of one look, so this one's signals may be from before they were reset.
                if (__any_sync(kAllLanes, (begun & kAgain) != 0)) continue;
            }
            uint32_t epoch = uint32_t(begun);
            uint32_t missing = __ballot_sync(kAllLanes, !exists || int32_t(value - epoch) < 0);
            int32_t run = missing ? __ffs(missing) - 1 : kLanes;
            if (run > 0) {
                fence_tma_after_loads();
                if (word != ready_end_) ready_begin_ = word;
                ready_end_ = word + run;
                continue;
            }

            if (__any_sync(kAllLanes, given_up == given_up_at(epoch))) return false;
            uint64_t now = global_timer();
            if (begin == 0) begin = now;
            uint32_t told = __shfl_sync(kAllLanes, look_at_host(step, begin, now), 0);
            if ((told & OG_ABORT_ASKED) != 0) {
                give_up(table, OG_FAILURE_ABORTED, epoch, table.word_of_span(word, span), tile_m, tile_n);
                return false;
            }
            int32_t lost = (told & OG_ABORT_LEFT) != 0 ? lost_word(table, epoch) : -1;
            if (lost >= 0) {
                give_up(table, OG_FAILURE_LEFT, epoch, lost, tile_m, tile_n);
                return false;
            }
            if (__any_sync(kAllLanes, now - begin > step.timeout_ns)) {
                give_up(table, OG_FAILURE_TIMEOUT, epoch, table.word_of_span(word, span), tile_m, tile_n);
                return false;
            }
            if (looks > 8) __nanosleep(20);
        }
    }

    // The abort word, in one lane of one block every now and then, else 0; the other blocks learn of it by
    // `given_up`. Not at the first miss: the word is across the bus, and most waits are short.
    static __device__ uint32_t look_at_host(StepWords const& step, uint64_t begin, uint64_t now) {
        if (!step.abort || lane() != 0 || now - begin < kAbortLookNs) return 0;
        return is_my_look(step.stop, now, kAbortLookNs) ? load_acquire_system(step.abort) : 0;
    }

    // A word that is missing although its rank has left, or -1. Looks at the chunks of all tiles: this block has looked at the
    // host's words for all blocks, which learn of a failure by `given_up`.
    static __device__ int32_t lost_word(ChunkTable const& table, uint32_t epoch) {
        if (table.slots_per_rank == 0) return -1;
        int32_t lost = -1;
        for (int32_t chunk = int32_t(lane()); chunk < table.count && lost < 0; chunk += kLanes) {
            if (!has_left(table.step.abort, table.rank_of(chunk))) continue;
            // Looked at behind the departure: what a word does not hold now it never will.
            for (int32_t word = table.first_word(chunk); word < table.first_word(chunk + 1) && lost < 0; ++word) {
                if (int32_t(load_acquire_system(table.at(word)) - epoch) < 0) lost = word;
            }
        }
        uint32_t found = __ballot_sync(kAllLanes, lost >= 0);
        return found ? __shfl_sync(kAllLanes, lost, __ffs(int(found)) - 1) : -1;
    }

    // The first block to get here in this epoch writes the record.
    static __device__ void give_up(ChunkTable const& table, og_failure_kind kind, uint32_t epoch,
                                   int32_t word, uint32_t tile_m, uint32_t tile_n) {
        if (lane() != 0) return;
        if (!is_first_to_give_up(table.step.stop, epoch)) return;
        int32_t chunk = table.chunk_of(word);
        uint32_t signal = load_relaxed_system(table.at(word));
        uint32_t at_fault = kind == OG_FAILURE_LEFT ? table.rank_of(chunk) : uint32_t(chunk);
        record_failure(table.step.failure, kind, epoch, at_fault, signal, tile_m, tile_n);
    }

    // The run of words that have been seen ready; -1 ..< 0 before the step was seen to have begun, and everything
    // after this block has given up. No flags beside: registers are few.
    __device__ bool has_begun() const { return ready_begin_ >= 0; }
    __device__ void wait_no_more() {
        ready_begin_ = 0;
        ready_end_ = INT32_MAX;
    }
    int32_t ready_begin_ = -1;
    int32_t ready_end_ = 0;
};

#endif  // __CUDACC__

}  // namespace overlap_gemm
