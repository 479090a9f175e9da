// Waiting for words that other ranks write, by the lanes of a warp, never for ever.
//
// What belongs here: looks at words, the limit, the abort word, and what is found out when a wait ends badly.
// Whose words they are is up to gather.cu and signal_pad.cu. Products wait by chunk_signal.cuh.
//
// Invariant: every wait ends with its word, the limit, or the abort word; after it has ended well, the lane
// sees what was written before the word (acquire; pairs with the writers' release, or their fences).
#pragma once

#include <cstdint>

#include "chunk_signal.cuh"

namespace overlap_gemm {

constexpr int kWarp = 32;
// In a failure record, where no tile was waited for.
constexpr uint32_t kNoTile = UINT32_MAX;

__device__ inline int32_t lane_id() { return int32_t(threadIdx.x) % kWarp; }

__device__ inline uint64_t load_relaxed_system_64(uint64_t const* word) {
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ inline void store_relaxed_system_64(uint64_t* word, uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ inline void store_relaxed_system(uint32_t* word, uint32_t value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

// Epochs and counts wrap.
__device__ inline bool has_reached(uint32_t word, uint32_t value) { return int32_t(word - value) >= 0; }

// How long a lane waits: the time, and the abort word now and then.
class Patience {
public:
    // A null `abort`: cannot be aborted.
    __device__ Patience(uint32_t const* abort, uint64_t timeout_ns)
        : abort_(abort), timeout_ns_(timeout_ns) {}

    // False when the wait has to end; `kind` says why.
    __device__ bool goes_on(og_failure_kind late, og_failure_kind& kind) {
        uint64_t now = global_timer();
        if (begin_ == 0) begin_ = now;
        if (now - looked_ > kAbortLookNs) {
            looked_ = now;
            if (abort_ && load_relaxed_system(abort_) != 0) {
                kind = OG_FAILURE_ABORTED;
                return false;
            }
        }
        if (now - begin_ > timeout_ns_) {
            kind = late;
            return false;
        }
        __nanosleep(50);
        return true;
    }

private:
    static constexpr uint64_t kAbortLookNs = 20000;

    uint32_t const* abort_;
    uint64_t timeout_ns_;
    uint64_t begin_ = 0;
    uint64_t looked_ = 0;
};

// Why a warp gives up: what the first lane that found something has found.
struct Finding {
    og_failure_kind kind = OG_FAILURE_NONE;
    // Which of the words, what it held, and what it should have reached.
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

    __device__ void record(og_failure* record) const {
        record_failure(record, kind, expected, who, seen, kNoTile, kNoTile);
    }
};

// Waits until each of `count` words has reached its value, the lanes by turns; all lanes call it. A word that
// does not is a failure of kind `late`. `ends` may end the wait early, without a failure.
template <class Word, class Value, class Ends>
__device__ void await_words(Patience patience, int32_t count, og_failure_kind late, Word word_of,
                            Value value_of, Ends ends, Finding& finding) {
    for (int32_t i = lane_id(); i < count && !finding.is_bad(); i += kWarp) {
        while (!has_reached(finding.seen = load_acquire_system(word_of(i)), value_of(i))) {
            if (ends()) break;
            if (patience.goes_on(late, finding.kind)) continue;
            finding.who = uint32_t(i);
            finding.expected = value_of(i);
            break;
        }
    }
    __syncwarp();
    finding.agree();
}

}  // namespace overlap_gemm
