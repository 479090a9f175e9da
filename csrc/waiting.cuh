// Waiting for words that other ranks write, by the lanes of a warp, never for ever.
//
// What belongs here: looks at words, the limit, the host's words, and what is found out when a wait ends badly.
// Which words are awaited is up to beginning.cuh, gather.cu, exchange.cu and signal_pad.cu. Products wait for chunks by
// chunk_signal.cuh.
//
// Invariant: every wait ends with its word, the limit, the abort word, or the departure of the rank that would
// write the word; after it has ended well, the lane sees what was written before the word (acquire; pairs with
// the writers' release, or their fences).
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

// No rank: a word that this rank writes itself.
constexpr uint32_t kNobody = UINT32_MAX;

// How long a lane waits: the time, and the host's words now and then. Clocks start at the first miss, and the
// host's words, which are across the bus, are not looked at before a wait has become a long one. Where many blocks wait,
// one lane of them all looks at a time: `stop` says whose turn it is.
class Patience {
public:
    // A null `abort`: cannot be aborted.
    __device__ Patience(uint32_t const* abort, uint64_t timeout_ns, og_stop* stop = nullptr)
        : abort_(abort), timeout_ns_(timeout_ns), stop_(stop) {}

    // False when the wait for a word has to end; `kind` says why. `writer`: the rank that would write it.
    __device__ bool goes_on(uint32_t writer, og_failure_kind late, og_failure_kind& kind) {
        uint64_t now = global_timer();
        if (begin_ == 0) begin_ = looked_ = now;
        // The word was looked at once more behind the departure.
        bool is_gone = writer != kNobody && writer == gone_;
        kind = is_gone ? OG_FAILURE_LEFT : now - begin_ > timeout_ns_ ? late : OG_FAILURE_NONE;
        if (abort_ && now - looked_ > kAbortLookNs) {
            looked_ = now;
            uint32_t told = stop_ && !is_my_look(stop_, now, kAbortLookNs) ? 0 : load_acquire_system(abort_);
            if ((told & OG_ABORT_ASKED) != 0) kind = OG_FAILURE_ABORTED;
            if ((told & OG_ABORT_LEFT) != 0 && has_left(abort_, writer)) gone_ = writer;
        }
        if (kind != OG_FAILURE_NONE) return false;
        __nanosleep(50);
        return true;
    }

private:
    static constexpr uint64_t kAbortLookNs = 20000;

    uint32_t const* abort_;
    uint64_t timeout_ns_;
    og_stop* stop_;
    uint64_t begin_ = 0;
    uint64_t looked_ = 0;
    // A rank that has been found to have left.
    uint32_t gone_ = kNobody;
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

// Waits until each of `count` words has reached its value; every lane takes each 32nd, and all lanes call it. A
// word that does not is a failure of kind `late`, or of its writer if that has left. `ends` may end the wait early,
// without a failure.
template <class Word, class Value, class Writer, class Ends>
__device__ void await_words(Patience patience, int32_t count, og_failure_kind late, Word word_of,
                            Value value_of, Writer writer_of, Ends ends, Finding& finding) {
    for (int32_t i = lane_id(); i < count && !finding.is_bad(); i += kWarp) {
        for (;;) {
            // `ends` may load a word, too: both loads go out together.
            bool const is_over = ends();
            finding.seen = load_acquire_system(word_of(i));
            if (has_reached(finding.seen, value_of(i)) || is_over) break;
            if (patience.goes_on(writer_of(i), late, finding.kind)) continue;
            finding.who = uint32_t(i);
            finding.expected = value_of(i);
            break;
        }
    }
    __syncwarp();
    finding.agree();
}

}  // namespace overlap_gemm
