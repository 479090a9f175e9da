// What a rank's GPU does for a gather beside the product: beginning a step, pushing rows to the others,
// waiting for theirs. The words are described at og_gather.
//
// Invariant: no rank writes rows into another's memory before it has seen that everybody is done with that
// buffer, or has told them that their rows may be torn; a signal follows its data, behind a fence of
// the whole system; every wait ends with the limit or the abort word. Nothing traps. A step is on the way
// of the product that follows, so loads go out together and stores are not waited for one by one.
#include "chunk_signal.cuh"
#include "instance.h"
#include "signals.h"

namespace overlap_gemm {
namespace {

constexpr int kWarp = 32;
constexpr int kPushThreads = 512;
constexpr uint32_t kNoTile = UINT32_MAX;

__device__ og_stop* stop_of(og_gather const& gather, uint32_t* own) {
    return reinterpret_cast<og_stop*>(own + gather.stop_at);
}

__device__ uint64_t* layout_word(og_gather const& gather, uint32_t* words, uint32_t epoch, int32_t of) {
    int32_t place = gather.layouts_at + 2 * (int32_t(epoch % 4) * gather.ranks + of);
    return reinterpret_cast<uint64_t*>(words + place);
}

__device__ uint64_t load_relaxed_system_64(uint64_t const* word) {
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ void store_relaxed_system_64(uint64_t* word, uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ void store_relaxed_system(uint32_t* word, uint32_t value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ bool has_reached(uint32_t word, uint32_t epoch) { return int32_t(word - epoch) >= 0; }

// Waiting of a lane: the time, and the abort word now and then.
class Patience {
public:
    __device__ explicit Patience(og_gather const& gather) : gather_(gather) {}

    // False when the wait has to end; `kind` says why.
    __device__ bool goes_on(og_failure_kind late, og_failure_kind& kind) {
        uint64_t now = global_timer();
        if (begin_ == 0) begin_ = now;
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
    uint64_t begin_ = 0;
    uint64_t looked_ = 0;
};

// Why a warp gives a step up: what the first lane that found something has found.
struct Finding {
    og_failure_kind kind = OG_FAILURE_NONE;
    uint32_t who = 0;
    uint32_t seen = 0;
    uint32_t expected = 0;

    __device__ bool is_bad() const { return kind != OG_FAILURE_NONE; }

    __device__ void agree() {
        uint32_t found = __ballot_sync(0xffffffff, is_bad());
        if (!found) return;
        int first = __ffs(int(found)) - 1;
        kind = og_failure_kind(__shfl_sync(0xffffffff, int(kind), first));
        who = __shfl_sync(0xffffffff, who, first);
        seen = __shfl_sync(0xffffffff, seen, first);
        expected = __shfl_sync(0xffffffff, expected, first);
    }
};

__device__ int32_t lane() { return int32_t(threadIdx.x) % kWarp; }

// Waits until every word in the lanes' turns has reached its epoch.
template <class Word, class Epoch>
__device__ void await_words(og_gather const& gather, int32_t count, Word word_of, Epoch epoch_of,
                            Finding& finding) {
    Patience patience(gather);
    for (int32_t i = lane(); i < count && !finding.is_bad(); i += kWarp) {
        while (!has_reached(finding.seen = load_acquire_system(word_of(i)), epoch_of(i))) {
            if (patience.goes_on(OG_FAILURE_ABSENT, finding.kind)) continue;
            finding.who = uint32_t(i);
            finding.expected = epoch_of(i);
            break;
        }
    }
    __syncwarp();
    finding.agree();
}

// What a warp knows of a step before it begins. All of it is loaded at once.
struct Beginning {
    uint32_t* own;
    // The words of the rank that is this lane's first: most groups have no more ranks than lanes.
    uint32_t* first;
    uint32_t before;
    uint32_t epoch;
    uint32_t last_use;
    uint32_t last_buffer;
    bool over;

    __device__ Beginning(og_gather const& gather, int32_t buffer)
        : own(gather.words[gather.rank]), first(gather.words[min(lane(), gather.ranks - 1)]) {
        uint64_t given_up = load_relaxed_gpu(&stop_of(gather, own)->given_up);
        before = load_relaxed_system(own + gather.epoch_at);
        last_use = load_relaxed_system(own + gather.last_use_at + buffer);
        last_buffer = load_relaxed_system(own + gather.last_buffer_at);
        uint32_t was_over = load_relaxed_system(own + gather.over_at);
        epoch = before + 1;
        over = was_over != 0 || given_up == given_up_at(before) || given_up == given_up_at(OG_TOGGLE_SET);
    }

    // Tells all ranks that the step before is consumed, and how this one is laid out. The fence pairs with
    // the acquires of `await`; what this rank read of the step before, it read in kernels that have ended.
    __device__ void announce(og_gather const& gather, uint32_t layout) const {
        __threadfence_system();
        for (int32_t peer = lane(); peer < gather.ranks; peer += kWarp) {
            uint32_t* theirs = peer < kWarp ? first : gather.words[peer];
            store_relaxed_system(theirs + gather.consumed_at + gather.rank, before);
            store_relaxed_system_64(layout_word(gather, theirs, epoch, gather.rank),
                                    uint64_t(epoch) << 32 | layout);
        }
    }

    // Waits until this rank may push: see og_gather_begin. Pairs with `announce` of the others.
    //
    // Where rows stay as they were, all ranks have agreed on them before, and nothing has to be compared:
    // who changes them compares, and finds those who do not.
    __device__ Finding await(og_gather const& gather, og_gather_step const& step) const {
        Finding finding;
        if (over) return finding;
        uint64_t two_before = load_relaxed_system_64(layout_word(gather, own, epoch - 2, gather.rank));
        uint32_t consumed = has_reached(last_use, epoch - 2) ? last_use : epoch - 2;
        uint32_t* const words = own;
        int32_t consumed_at = gather.consumed_at, sent_at = gather.sent_at, ranks = gather.ranks;
        uint32_t sent = before;
        await_words(
            gather, ranks + step.senders,
            [=](int32_t i) { return words + (i < ranks ? consumed_at + i : sent_at + i - ranks); },
            [=](int32_t i) { return i < ranks ? consumed : sent; }, finding);
        // What is not sent is this rank's own.
        if (finding.who >= uint32_t(ranks)) finding.who = uint32_t(gather.rank);
        if (finding.is_bad() || uint32_t(two_before) == step.layout) return finding;

        // Epochs are the upper halves.
        await_words(
            gather, ranks,
            [=](int32_t i) {
                return reinterpret_cast<uint32_t*>(layout_word(gather, words, epoch, i)) + 1;
            },
            [=](int32_t) { return epoch; }, finding);
        for (int32_t peer = lane(); peer < ranks && !finding.is_bad(); peer += kWarp) {
            uint32_t theirs = uint32_t(load_relaxed_system_64(layout_word(gather, words, epoch, peer)));
            if (theirs != step.layout) finding = {OG_FAILURE_LAYOUT, uint32_t(peer), theirs, epoch};
        }
        __syncwarp();
        finding.agree();
        __threadfence_system();
        return finding;
    }

    // The epoch that products of this step expect.
    __device__ uint32_t expected(og_gather_step const& step) const {
        return step.toggled ? OG_TOGGLE_SET : epoch;
    }

    // The rows that are sent whatever happens here may overwrite what others still read. They have to know
    // before the first byte, which is sent when this kernel has ended or the epoch has grown.
    __device__ void give_up(og_gather const& gather, og_gather_step const& step,
                            Finding const& finding) const {
        for (int32_t peer = lane(); peer < gather.ranks; peer += kWarp) {
            store_relaxed_system(gather.words[peer] + gather.torn_at + gather.rank, 1);
        }
        if (lane() != 0) return;
        if (is_first_to_give_up(stop_of(gather, own), expected(step)) && !over) {
            record_failure(gather.failure, finding.kind, finding.expected, finding.who, finding.seen,
                           kNoTile, kNoTile);
        }
        // Not before the record is there: another block that sees this writes none.
        __threadfence();
        own[gather.over_at] = 1;
    }

    // This rank's own rows are here, and the step has begun. What waits for the epoch on other streams
    // comes after everything that was stored before.
    __device__ void begin(og_gather const& gather, og_gather_step const& step) const {
        int32_t at = step.toggled ? gather.toggles_at + step.buffer * gather.slots : gather.signals_at;
        for (int32_t slot = lane(); slot < step.own_slots; slot += kWarp) {
            store_relaxed_system(own + at + step.own_slot + slot, expected(step));
        }
        __syncwarp();
        if (lane() != 0) return;
        own[gather.last_use_at + step.buffer] = epoch;
        own[gather.last_buffer_at] = uint32_t(step.buffer);
        store_release_system(own + gather.epoch_at, epoch);
    }

    // The toggles of the step before, which this rank has consumed; comes before it says so.
    __device__ void reset_toggles(og_gather const& gather) const {
        uint32_t* toggles = own + gather.toggles_at + int32_t(last_buffer) * gather.slots;
        for (int32_t slot = lane(); slot < gather.slots; slot += kWarp) {
            store_relaxed_system(toggles + slot, 0);
        }
        __syncwarp();
    }
};

__global__ void __launch_bounds__(kWarp)
    begin_step(__grid_constant__ og_gather const gather, __grid_constant__ og_gather_step const step) {
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    Beginning const beginning(gather, step.buffer);
    if (step.toggled) beginning.reset_toggles(gather);
    beginning.announce(gather, step.layout);
    Finding finding = beginning.await(gather, step);
    if (beginning.over || finding.is_bad()) beginning.give_up(gather, step, finding);
    beginning.begin(gather, step);
}

// The pushes of one launch, as kernel parameters.
struct PushList {
    og_push pushes[OG_MAX_PUSHED];
};

// Copies `bytes` bytes, a share by each block, in pieces that both addresses are multiples of.
template <class Piece>
__device__ void copy_share(char* to, char const* from, uint64_t bytes) {
    uint64_t const pieces = bytes / sizeof(Piece);
    uint64_t const stride = uint64_t(gridDim.x) * kPushThreads;
    auto const* source = reinterpret_cast<Piece const*>(from);
    auto* target = reinterpret_cast<Piece*>(to);
    uint64_t at = uint64_t(blockIdx.x) * kPushThreads + threadIdx.x;
    constexpr int kInFlight = 8;
    for (; at < pieces; at += kInFlight * stride) {
        Piece held[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            if (at + i * stride < pieces) held[i] = source[at + i * stride];
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            if (at + i * stride < pieces) target[at + i * stride] = held[i];
        }
    }
    uint64_t tail = pieces * sizeof(Piece) + threadIdx.x;
    if (blockIdx.x == 0 && tail < bytes) to[tail] = from[tail];
}

// How many blocks have come to a counter, and whether some of them gave up.
constexpr uint32_t kGaveUp = 1u << 16;

// In the thread of the last block that comes here, the sum of what all blocks bring, else 0; everything that
// any block's threads did before is then seen by whoever sees what this thread stores next.
__device__ uint32_t count_block(uint32_t* counter, uint32_t brings) {
    __syncthreads();
    if (threadIdx.x != 0) return 0;
    __threadfence_system();
    uint32_t sum = atomicAdd(counter, brings) + brings;
    if (sum % kGaveUp < gridDim.x) return 0;
    *counter = 0;
    __threadfence_system();
    return sum;
}

// As begin_step, with every block waiting for itself, and pushing its share. The epoch grows when all blocks
// are through, so that all read the same.
__global__ void __launch_bounds__(kPushThreads)
    begin_and_push(__grid_constant__ og_gather const gather, __grid_constant__ og_gather_step const step,
                   __grid_constant__ PushList const list) {
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    Beginning const beginning(gather, step.buffer);
    __shared__ bool goes_on;
    if (threadIdx.x < kWarp) {
        // Every block announces, so that the announcement is there before any of its rows, where that
        // matters.
        beginning.announce(gather, step.layout);
        Finding finding = beginning.await(gather, step);
        bool gives_up = beginning.over || finding.is_bad();
        if (gives_up) beginning.give_up(gather, step, finding);
        if (threadIdx.x == 0) goes_on = !gives_up;
    }
    __syncthreads();

    auto const* here = reinterpret_cast<char const*>(beginning.own);
    __shared__ bool ends;
    if (threadIdx.x == 0) ends = false;
    for (int32_t round = 1; round < gather.ranks; ++round) {
        // The rank that needs this one's rows round-th: plan::Transfers::peer_in_round.
        int32_t peer = (gather.rank - round + gather.ranks) % gather.ranks;
        auto* there = reinterpret_cast<char*>(gather.words[peer]);
        for (int32_t i = 0; i < step.push_count; ++i) {
            og_push const& piece = list.pushes[i];
            if (goes_on) {
                copy_share<int4>(there + piece.offset[0], here + piece.offset[0], piece.bytes[0]);
                // Row scales start at any row.
                copy_share<float>(there + piece.offset[1], here + piece.offset[1], piece.bytes[1]);
            }
            uint32_t* counter = step.counters + round * step.push_count + i;
            uint32_t sum = count_block(counter, goes_on ? 1 : 1 + kGaveUp);
            if (sum == 0) continue;
            // Where a block gave up, its share is missing, and nobody is told that rows are there.
            if (sum < kGaveUp) {
                store_relaxed_system(gather.words[peer] + gather.signals_at + piece.slot, beginning.epoch);
            }
            ends = round + 1 == gather.ranks && i + 1 == step.push_count;
        }
    }
    __syncthreads();
    if (ends && threadIdx.x < kWarp) beginning.begin(gather, step);
}

__global__ void __launch_bounds__(kWarp)
    await(__grid_constant__ og_gather const gather, int32_t slot, int32_t count, int32_t chunk) {
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    uint32_t* own = gather.words[gather.rank];
    og_stop* stop = stop_of(gather, own);
    uint32_t epoch = load_relaxed_system(own + gather.epoch_at);
    Finding finding;
    Patience patience(gather);
    for (int32_t i = int32_t(threadIdx.x); i < count && !finding.is_bad(); i += kWarp) {
        while (!has_reached(finding.seen = load_acquire_system(own + gather.signals_at + slot + i), epoch)) {
            if (load_relaxed_gpu(&stop->given_up) == given_up_at(epoch)) return;
            if (patience.goes_on(OG_FAILURE_TIMEOUT, finding.kind)) continue;
            finding.who = uint32_t(chunk + i);
            break;
        }
    }
    // What is read after this kernel has ended is ordered by that end. A failure needs no agreement: the
    // first to give up writes the record.
    if (finding.is_bad() && is_first_to_give_up(stop, epoch)) {
        record_failure(gather.failure, finding.kind, epoch, finding.who, finding.seen, kNoTile, kNoTile);
    }
}

// Launches a kernel that may start before the one before it on the stream has ended: it waits for that end
// by itself.
template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), int blocks, int threads, cudaStream_t stream,
                  char const* what, Arguments const&... arguments) {
    (void)cudaGetLastError();
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(blocks));
    config.blockDim = dim3(unsigned(threads));
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    check(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

}  // namespace

void begin_gather(og_gather const& gather, og_gather_step const& step, cudaStream_t stream) {
    if (step.push_count == 0) {
        launch_early(begin_step, 1, kWarp, stream, "launch of begin_step", gather, step);
        return;
    }
    PushList list{};
    for (int32_t i = 0; i < step.push_count; ++i) list.pushes[i] = step.pushes[i];
    launch_early(begin_and_push, step.blocks, kPushThreads, stream, "launch of begin_and_push", gather,
                 step, list);
}

void await_rows(og_gather const& gather, int32_t slot, int32_t count, int32_t chunk,
                cudaStream_t stream) {
    launch_early(await, 1, kWarp, stream, "launch of await", gather, slot, count, chunk);
}

void load_gather_kernels() {
    (void)cudaGetLastError();
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, begin_step), "cudaFuncGetAttributes(begin_step)");
    check(cudaFuncGetAttributes(&attributes, begin_and_push), "cudaFuncGetAttributes(begin_and_push)");
    check(cudaFuncGetAttributes(&attributes, await), "cudaFuncGetAttributes(await)");
}

}  // namespace overlap_gemm
