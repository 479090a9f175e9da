// What a rank's GPU does for a gather beside the product: beginning a step, pushing rows to the others,
// waiting for theirs. The words are described at og_gather.
//
// Invariant: no rank writes into another's memory for a step before `begin` has seen that everybody is
// done with that buffer, or has told them that their rows may be torn; a signal follows its data, with
// release at system scope; every wait ends with the limit or the abort word. Nothing traps.
#include "chunk_signal.cuh"
#include "instance.h"
#include "signals.h"

namespace overlap_gemm {
namespace {

constexpr int kWarp = 32;
constexpr int kPushThreads = 512;
constexpr uint32_t kNoTile = UINT32_MAX;

__device__ uint32_t* own_words(og_gather const& gather) { return gather.words[gather.rank]; }

__device__ og_stop* stop_of(og_gather const& gather) {
    return reinterpret_cast<og_stop*>(own_words(gather) + gather.stop_at);
}

__device__ uint64_t* layout_word(og_gather const& gather, int32_t at, uint32_t epoch, int32_t of) {
    int32_t place = gather.layouts_at + 2 * (int32_t(epoch % 4) * gather.ranks + of);
    return reinterpret_cast<uint64_t*>(gather.words[at] + place);
}

__device__ uint64_t load_acquire_system_64(uint64_t const* word) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ void store_release_system_64(uint64_t* word, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

// Waiting of a single warp: the time, and the abort word now and then.
class Patience {
public:
    __device__ explicit Patience(og_gather const& gather) : gather_(gather), begin_(global_timer()) {}

    // False when the wait has to end; `kind` says why. Every lane may ask for itself.
    __device__ bool goes_on(og_failure_kind late, og_failure_kind& kind) {
        uint64_t now = global_timer();
        if (now - looked_ > kAbortLookNs) {
            looked_ = now;
            if (gather_.abort && load_relaxed_system(gather_.abort) != 0) {
                kind = OG_FAILURE_ABORTED;
                return false;
            }
        }
        if (now - begin_ > gather_.timeout_ns) {
            kind = late;
            return false;
        }
        __nanosleep(50);
        return true;
    }

private:
    static constexpr uint64_t kAbortLookNs = 20000;

    og_gather const& gather_;
    uint64_t begin_;
    uint64_t looked_ = 0;
};

__device__ bool has_reached(uint32_t word, uint32_t epoch) { return int32_t(word - epoch) >= 0; }

// One of these for the whole warp: the first lane that found something.
struct Finding {
    og_failure_kind kind = OG_FAILURE_NONE;
    uint32_t who = 0;
    uint32_t seen = 0;
    uint32_t expected = 0;

    __device__ void agree() {
        uint32_t found = __ballot_sync(0xffffffff, kind != OG_FAILURE_NONE);
        if (!found) return;
        int first = __ffs(int(found)) - 1;
        kind = og_failure_kind(__shfl_sync(0xffffffff, int(kind), first));
        who = __shfl_sync(0xffffffff, who, first);
        seen = __shfl_sync(0xffffffff, seen, first);
        expected = __shfl_sync(0xffffffff, expected, first);
    }
};

// Waits until every rank has consumed `epoch`. Pairs with the release in `begin` of those ranks.
__device__ Finding await_consumed(og_gather const& gather, uint32_t epoch) {
    Finding finding;
    Patience patience(gather);
    for (int32_t peer = int32_t(threadIdx.x); peer < gather.ranks; peer += kWarp) {
        uint32_t const* word = own_words(gather) + gather.consumed_at + peer;
        for (;;) {
            finding.seen = load_acquire_system(word);
            if (has_reached(finding.seen, epoch)) break;
            if (!patience.goes_on(OG_FAILURE_ABSENT, finding.kind)) {
                finding.who = uint32_t(peer);
                finding.expected = epoch;
                break;
            }
        }
        if (finding.kind != OG_FAILURE_NONE) break;
    }
    __syncwarp();
    finding.agree();
    return finding;
}

// Whether everybody who has announced step `epoch` laid it out as this rank did. Who has not announced it
// yet has sent nothing of it, and will compare this rank's layout with its own.
__device__ Finding compare_layouts(og_gather const& gather, uint32_t epoch) {
    Finding finding;
    uint64_t own = *layout_word(gather, gather.rank, epoch, gather.rank);
    for (int32_t peer = int32_t(threadIdx.x); peer < gather.ranks; peer += kWarp) {
        uint64_t theirs = load_acquire_system_64(layout_word(gather, gather.rank, epoch, peer));
        if (uint32_t(theirs >> 32) == epoch && theirs != own && finding.kind == OG_FAILURE_NONE) {
            finding = {OG_FAILURE_LAYOUT, uint32_t(peer), uint32_t(theirs), epoch};
        }
    }
    __syncwarp();
    finding.agree();
    return finding;
}

__global__ void __launch_bounds__(kWarp)
    begin(og_gather const gather, int32_t buffer, uint32_t layout, int32_t own_slot, int32_t own_slots) {
    uint32_t* own = own_words(gather);
    og_stop* stop = stop_of(gather);
    uint32_t* last_use = own + gather.last_use_at + buffer;
    uint32_t before = own[gather.epoch_at];
    uint32_t epoch = before + 1;
    bool over = own[gather.over_at] != 0 || load_relaxed_gpu(&stop->given_up) == given_up_at(before);
    int32_t lane = int32_t(threadIdx.x);

    // What this rank read of step `before`, it read in kernels that have ended.
    for (int32_t peer = lane; peer < gather.ranks; peer += kWarp) {
        store_release_system(gather.words[peer] + gather.consumed_at + gather.rank, before);
    }

    Finding finding;
    if (!over) {
        uint32_t last = *last_use;
        finding = await_consumed(gather, has_reached(last, epoch - 2) ? last : epoch - 2);
        if (finding.kind == OG_FAILURE_NONE) finding = compare_layouts(gather, before);
    }
    bool gives_up = over || finding.kind != OG_FAILURE_NONE;

    for (int32_t peer = lane; peer < gather.ranks; peer += kWarp) {
        // The rows that are sent whatever happens here may overwrite what others still read. They
        // have to know before the first byte, which is sent when this kernel has ended.
        if (gives_up) store_release_system(gather.words[peer] + gather.torn_at + gather.rank, 1);
        store_release_system_64(layout_word(gather, peer, epoch, gather.rank),
                                uint64_t(epoch) << 32 | layout);
    }
    for (int32_t slot = lane; slot < own_slots; slot += kWarp) {
        store_release_system(own + gather.signals_at + own_slot + slot, epoch);
    }
    __threadfence_system();
    __syncwarp();
    if (lane != 0) return;
    if (gives_up) {
        own[gather.over_at] = 1;
        if (is_first_to_give_up(stop, epoch) && !over) {
            record_failure(gather.failure, finding.kind, finding.expected, finding.who, finding.seen,
                           kNoTile, kNoTile);
        }
    }
    *last_use = epoch;
    own[gather.epoch_at] = epoch;
}

// The pushes of one launch, as kernel parameters.
struct PushList {
    og_push pushes[OG_MAX_PUSHED];
    int32_t count;
};

// Copies `bytes` bytes, a share to each block. Both addresses are multiples of 16 bytes.
__device__ void copy_share(char* to, char const* from, uint64_t bytes) {
    uint64_t const pieces = bytes / sizeof(int4);
    uint64_t const stride = uint64_t(gridDim.x) * kPushThreads;
    auto const* source = reinterpret_cast<int4 const*>(from);
    auto* target = reinterpret_cast<int4*>(to);
    uint64_t at = uint64_t(blockIdx.x) * kPushThreads + threadIdx.x;
    constexpr int kInFlight = 4;
    for (; at + (kInFlight - 1) * stride < pieces; at += kInFlight * stride) {
        int4 held[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) held[i] = source[at + i * stride];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) target[at + i * stride] = held[i];
    }
    for (; at < pieces; at += stride) target[at] = source[at];
    uint64_t tail = pieces * sizeof(int4) + threadIdx.x;
    if (blockIdx.x == 0 && tail < bytes) to[tail] = from[tail];
}

__global__ void __launch_bounds__(kPushThreads)
    push(og_gather const gather, __grid_constant__ PushList const list, uint32_t* counters) {
    uint32_t* own = own_words(gather);
    uint32_t epoch = own[gather.epoch_at];
    if (load_relaxed_gpu(&stop_of(gather)->given_up) == given_up_at(epoch)) return;
    for (int32_t round = 1; round < gather.ranks; ++round) {
        // The rank that needs this one's rows round-th: plan::Transfers::peer_in_round.
        int32_t peer = (gather.rank - round + gather.ranks) % gather.ranks;
        auto* there = reinterpret_cast<char*>(gather.words[peer]);
        auto const* here = reinterpret_cast<char const*>(own);
        for (int32_t i = 0; i < list.count; ++i) {
            og_push const& piece = list.pushes[i];
            for (int run = 0; run < 2; ++run) {
                copy_share(there + piece.offset[run], here + piece.offset[run], piece.bytes[run]);
            }
            // Every thread's stores come before the count of its block, and all counts before the signal.
            __threadfence_system();
            __syncthreads();
            if (threadIdx.x != 0) continue;
            uint32_t* counter = counters + round * list.count + i;
            if (atomicAdd(counter, 1) + 1 < gridDim.x) continue;
            *counter = 0;
            __threadfence_system();
            store_release_system(gather.words[peer] + gather.signals_at + piece.slot, epoch);
        }
    }
}

__global__ void __launch_bounds__(kWarp)
    await(og_gather const gather, int32_t slot, int32_t count, int32_t chunk) {
    uint32_t* own = own_words(gather);
    og_stop* stop = stop_of(gather);
    uint32_t epoch = own[gather.epoch_at];
    Finding finding;
    Patience patience(gather);
    for (int32_t i = int32_t(threadIdx.x); i < count; i += kWarp) {
        for (;;) {
            finding.seen = load_acquire_system(own + gather.signals_at + slot + i);
            if (has_reached(finding.seen, epoch)) break;
            if (load_relaxed_gpu(&stop->given_up) == given_up_at(epoch)) return;
            if (!patience.goes_on(OG_FAILURE_TIMEOUT, finding.kind)) {
                finding.who = uint32_t(chunk + i);
                break;
            }
        }
        if (finding.kind != OG_FAILURE_NONE) break;
    }
    // What TMA reads after this kernel has ended is ordered by that end. A failure needs no agreement: the
    // first to give up writes the record.
    if (finding.kind != OG_FAILURE_NONE && is_first_to_give_up(stop, epoch)) {
        record_failure(gather.failure, finding.kind, epoch, finding.who, finding.seen, kNoTile, kNoTile);
    }
}

}  // namespace

void begin_gather(og_gather const& gather, int32_t buffer, uint32_t layout, int32_t own_slot,
                  int32_t own_slots, cudaStream_t stream) {
    (void)cudaGetLastError();
    begin<<<1, kWarp, 0, stream>>>(gather, buffer, layout, own_slot, own_slots);
    check(cudaGetLastError(), "launch of begin");
}

void push_rows(og_gather const& gather, og_push const* pushes, int32_t count, uint32_t* counters,
               int32_t blocks, cudaStream_t stream) {
    (void)cudaGetLastError();
    PushList list{};
    list.count = count;
    for (int32_t i = 0; i < count; ++i) list.pushes[i] = pushes[i];
    push<<<blocks, kPushThreads, 0, stream>>>(gather, list, counters);
    check(cudaGetLastError(), "launch of push");
}

void await_rows(og_gather const& gather, int32_t slot, int32_t count, int32_t chunk,
                cudaStream_t stream) {
    (void)cudaGetLastError();
    await<<<1, kWarp, 0, stream>>>(gather, slot, count, chunk);
    check(cudaGetLastError(), "launch of await");
}

void load_gather_kernels() {
    (void)cudaGetLastError();
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, begin), "cudaFuncGetAttributes(begin)");
    check(cudaFuncGetAttributes(&attributes, push), "cudaFuncGetAttributes(push)");
    check(cudaFuncGetAttributes(&attributes, await), "cudaFuncGetAttributes(await)");
}

}  // namespace overlap_gemm
