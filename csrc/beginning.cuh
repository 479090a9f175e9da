// The beginning of a rank's step: announcing it, waiting until this rank may send, and letting the epoch grow.
//
// What belongs here: what kernels that begin a step have in common. What they do beside is up to gather.cu (rows) and
// exchange.cu (sums). The words are described at og_gather.
//
// Invariant: a rank writes into another's buffer, or over its own data that others read, only after all ranks have consumed that
// data, or after it has set `gave_up`. If a failed wait could make it send a wrong total, the rank sets `gave_up` first. Every
// wait ends by its word, the limit, the abort word or a rank's departure. The product waits for the step's beginning, so the
// beginning signals the product first, issues its loads together, and does not wait for single stores.
#pragma once

#include "chunk_signal.cuh"
#include "instance.h"
#include "waiting.cuh"

namespace overlap_gemm {

__device__ inline og_stop* stop_of(og_gather const& gather, uint32_t* own) {
    return reinterpret_cast<og_stop*>(own + gather.stop_at);
}

__device__ inline uint64_t* layout_word(og_gather const& gather, uint32_t* words, uint32_t epoch, int32_t of) {
    int32_t place = gather.layouts_at + 2 * (int32_t(epoch % 4) * gather.ranks + of);
    return reinterpret_cast<uint64_t*>(words + place);
}

// Called by a warp that gives up. What this rank sends from now on may overwrite what others still read, or may be a total that
// lacks some sums; its next products may overwrite sums that others still read. The others have to know before the first such
// store. Their hosts look at the word when their streams have ended; what these took from this rank came behind its fence, so the
// word is there. Every lane stores the word: so it precedes the fence of each lane.
__device__ inline void tell_that_rows_may_be_torn(og_gather const& gather) {
    store_relaxed_system(&gather.failure->gave_up, 1);
    __threadfence_system();
}

__device__ inline void store_release_gpu_64(uint64_t* word, uint64_t value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

// What a warp knows of a step before it begins. All of it is loaded at once, and before the kernels before have
// ended: it is what the last step's beginning wrote, and that has ended (`start`).
struct Beginning {
    uint32_t* own;
    uint32_t before;
    uint32_t epoch;
    uint32_t last_use;
    uint32_t last_buffer;
    // How this rank has laid out the step before the last one.
    uint32_t two_before;
    // This rank takes no part any more. Known after `await`.
    bool over = false;

    __device__ Beginning(og_gather const& gather, int32_t buffer) : own(gather.own) {
        before = load_relaxed_system(own + gather.epoch_at);
        last_use = load_relaxed_system(own + gather.last_use_at + buffer);
        last_buffer = load_relaxed_system(own + gather.last_buffer_at);
        // The epoch selects one of the four, but has not been loaded yet. So all four are loaded.
        auto layout = [&](uint32_t i) {
            return uint32_t(load_relaxed_system_64(layout_word(gather, own, i, gather.rank)));
        };
        uint32_t first = layout(0), second = layout(1), third = layout(2), fourth = layout(3);
        epoch = before + 1;
        uint32_t low = epoch % 2 == 0 ? first : second;
        uint32_t high = epoch % 2 == 0 ? third : fourth;
        two_before = (epoch - 2) % 4 < 2 ? low : high;
    }

    // Rows stay as they were in this buffer, so that nothing has to be compared before they are sent.
    __device__ bool rows_stay(og_gather_step const& step) const { return two_before == step.layout; }

    // The last step was in the same buffer: in a graph of one step.
    __device__ bool is_again(og_gather_step const& step) const {
        return step.toggled && last_buffer == uint32_t(step.buffer);
    }

    // Tells the product that follows that all older work has ended, and signals this rank's own rows, which the product needs
    // first. The toggles of an older step in this buffer have been reset by now. The product reads own rows only after it has seen
    // `begun` and their signal. So only the store to `begun` is a release: it precedes the signals, and has none of their stores to
    // wait for. It pairs with the watchers' fence.
    __device__ void tell_product(og_gather const& gather, og_gather_step const& step) const {
        if (step.product_follows && lane_id() == 0) {
            auto* begun = reinterpret_cast<uint64_t*>(own + gather.begun_at);
            store_release_gpu_64(begun, kBegun | (is_again(step) ? kAgain : 0) | expected(step));
        }
        int32_t at = step.toggled ? gather.toggles_at + step.buffer * gather.slots : gather.signals_at;
        uint32_t* words = own + at + (step.own_slot << gather.share_bits);
        for (int32_t word = lane_id(); word < step.own_slots << gather.share_bits; word += kWarp) {
            store_relaxed_system(words + word, expected(step));
        }
    }

    // Tells all ranks that the step before is consumed, and how this one is laid out. The fence pairs with
    // the acquires of `await`; what this rank read of the step before, it read in kernels that have ended.
    __device__ void announce(og_gather const& gather, uint32_t layout) const {
        __threadfence_system();
        for (int32_t peer = lane_id(); peer < gather.ranks; peer += kWarp) {
            store_relaxed_system(gather.words[peer] + gather.consumed_at + gather.rank, before);
        }
        tell_layout(gather, layout);
    }

    __device__ void tell_layout(og_gather const& gather, uint32_t layout) const {
        for (int32_t peer = lane_id(); peer < gather.ranks; peer += kWarp) {
            store_relaxed_system_64(layout_word(gather, gather.words[peer], epoch, gather.rank),
                                    uint64_t(epoch) << 32 | layout);
        }
    }

    // Waits until this rank may push: see og_gather_begin. Pairs with `announce` of the others.
    //
    // If this rank's rows are those of the last step in this buffer, all ranks have agreed on them already, and this rank compares
    // nothing. A rank that changes its rows compares layouts, and so finds the ranks that have not changed theirs.
    //
    // `tells`: this block, too, tells its layout to all ranks before its rows go out: block 0, which announces the step, may be
    // slower than this block's pushes.
    __device__ Finding await(og_gather const& gather, og_gather_step const& step, bool tells) {
        Finding finding;
        // On their way while the first look at the others' words is.
        uint64_t given_up = load_relaxed_gpu(&stop_of(gather, own)->given_up);
        uint32_t was_over = load_relaxed_system(own + gather.over_at);
        auto ends = [&] {
            return was_over != 0 || given_up == given_up_at(before) || given_up == given_up_at(OG_TOGGLE_SET);
        };
        uint32_t consumed = has_reached(last_use, epoch - 2) ? last_use : epoch - 2;
        if (step.awaits_beginnings) consumed = before;
        uint32_t* const words = own;
        int32_t consumed_at = gather.consumed_at, sent_at = gather.sent_at, ranks = gather.ranks;
        uint32_t sent = step.toggled ? OG_TOGGLE_SET : before;
        Patience const patience(gather.abort, gather.timeout_ns);
        await_words(
            patience, ranks + step.senders, OG_FAILURE_ABSENT,
            [=](int32_t i) { return words + (i < ranks ? consumed_at + i : sent_at + i - ranks); },
            [=](int32_t i) { return i < ranks ? consumed : sent; },
            [=](int32_t i) { return i < ranks ? uint32_t(i) : kNobody; }, ends, finding);
        // Each lane has looked for itself, and all go one way from here on.
        over = __any_sync(0xffffffff, ends());
        // A word behind those of the ranks is one of `sent`: this rank's own streams are late.
        if (finding.who >= uint32_t(ranks)) finding.who = uint32_t(gather.rank);
        // The streams set it again behind what they push of this step, which they begin later.
        if (step.toggled && lane_id() < step.senders) {
            store_relaxed_system(own + gather.sent_at + lane_id(), 0);
        }
        if (over || finding.is_bad() || rows_stay(step)) return finding;

        // Epochs are the upper halves.
        if (tells) tell_layout(gather, step.layout);
        await_words(
            patience, ranks, OG_FAILURE_ABSENT,
            [&](int32_t i) {
                return reinterpret_cast<uint32_t*>(layout_word(gather, words, epoch, i)) + 1;
            },
            [&](int32_t) { return epoch; }, [](int32_t i) { return uint32_t(i); }, [] { return false; },
            finding);
        for (int32_t peer = lane_id(); peer < ranks && !finding.is_bad(); peer += kWarp) {
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

    // Gives the step up. Streams and kernels may still send rows after that, once the epoch has grown or this kernel has ended. So
    // all ranks learn of it first.
    __device__ void give_up(og_gather const& gather, og_gather_step const& step,
                            Finding const& finding) const {
        tell_that_rows_may_be_torn(gather);
        if (lane_id() != 0) return;
        if (is_first_to_give_up(stop_of(gather, own), expected(step)) && !over) {
            finding.record(gather.failure);
        }
        // Not before the record is there: another block that sees this writes none.
        __threadfence();
        own[gather.over_at] = 1;
    }

    // For kernels of blocks that push: block 0 announces the step, and every block waits until it may push. Such a kernel calls
    // both; what it loads between the two arrives while the block waits. `is_given_up` is the block's own, in shared memory;
    // read it behind a barrier.
    __device__ void announce_by_block(og_gather const& gather, og_gather_step const& step) const {
        if (blockIdx.x == 0 && threadIdx.x / kWarp == 1) announce_step(gather, step);
    }
    __device__ void announce_step(og_gather const& gather, og_gather_step const& step) const {
        tell_product(gather, step);
        announce(gather, step.layout);
    }
    __device__ void await_by_block(og_gather const& gather, og_gather_step const& step, bool volatile& is_given_up) {
        if (threadIdx.x >= kWarp) return;
        Finding finding = await(gather, step, true);
        bool gives_up = over || finding.is_bad();
        if (gives_up) give_up(gather, step, finding);
        if (threadIdx.x == 0) is_given_up = gives_up;
    }

    // Lets the epoch grow; streams that see it push from here on. `is_told`: this kernel has told other ranks that rows may be
    // torn, or a new layout, and pushed rows must come after that. Then the store is a release. Otherwise it need not wait for
    // anything: the rows themselves were written by work that had ended before this kernel went on.
    __device__ void begin(og_gather const& gather, og_gather_step const& step, bool is_told) const {
        __syncwarp();
        if (lane_id() != 0) return;
        own[gather.last_use_at + step.buffer] = epoch;
        own[gather.last_buffer_at] = uint32_t(step.buffer);
        if (is_told) {
            store_release_system(own + gather.epoch_at, epoch);
        } else {
            store_relaxed_system(own + gather.epoch_at, epoch);
        }
    }

    // The toggles of the step before, which this rank has consumed; comes before it says so.
    __device__ void reset_toggles(og_gather const& gather) const {
        uint32_t* toggles = own + gather.toggles_at + int32_t(last_buffer) * gather.slots;
        for (int32_t slot = lane_id(); slot < gather.slots; slot += kWarp) {
            store_relaxed_system(toggles + slot, 0);
        }
        __syncwarp();
    }
};

// Loads the last step's words, waits for the kernels before, and lets the product that follows start. The product may start at once
// if the host says so (B is constant, and no kernel pushes). Otherwise it may start when the kernels before have ended, because
// they may write what it reads first. If no product follows, this waits before it loads: the kernel directly before may be one of
// exchange.cu's, which writes the words.
//
// A product looks at `begun` as soon as it has started, so this kernel sets that word to 0 first. Nobody needs the last step's
// value any more: the kernels between let this one start only after all their blocks have waited for the end of the last step's
// beginning. They are products (GatheringMainloop::load_tail), or the kernel that waits for rows (`await`).
__device__ inline Beginning start(og_gather const& gather, og_gather_step const& step) {
    // The thread that tells the product later (`tell_product`), so that nothing has to order the two.
    bool const lets_start = step.product_follows && threadIdx.x == kWarp;
    if (!step.product_follows) wait_for_kernels_before();
    if (lets_start && blockIdx.x == 0) {
        store_relaxed_system_64(reinterpret_cast<uint64_t*>(gather.own + gather.begun_at), 0);
        __threadfence();
    }
    if (lets_start && step.product_may_start) let_next_kernel_start();
    Beginning beginning(gather, step.buffer);
    wait_for_kernels_before();
    if (lets_start && !step.product_may_start) let_next_kernel_start();
    return beginning;
}

// Whether this block is the last of the grid that comes here; the counter is then set back.
__device__ inline bool is_last_block(uint32_t* counter) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    if (before + 1 != gridDim.x) return false;
    *counter = 0;
    return true;
}

// Launches a kernel that, if `early`, may start before the one before it on the stream has ended: it waits for that end
// by itself.
//
// If the number of blocks is even, they run as clusters of two, on SMs side by side: else each block would keep a pair of SMs
// from the clusters of the product that follows.
template <class... Parameters, class... Arguments>
void launch_in_pairs(bool early, void (*kernel)(Parameters...), int blocks, int threads, cudaStream_t stream,
                     char const* what, Arguments const&... arguments) {
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = early;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = 2;
    attributes[1].val.clusterDim.y = 1;
    attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(blocks));
    config.blockDim = dim3(unsigned(threads));
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = blocks % 2 == 0 ? 2 : 1;
    check(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

}  // namespace overlap_gemm
