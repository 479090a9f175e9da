// The one kernel of a reduction with few rows; it runs behind the product, if there is one. It begins the step, unless that has
// been done, signals that this rank's sums are complete, waits for the other ranks' sums, reads them from each rank's memory, and
// adds all up. In an all-reduce in two shots, it then sends the totals of this rank's rows, and waits for and stores those of the
// other rows.
//
// What belongs here: the shares of the blocks. Beginning a step is beginning.cuh's, adding up is totals.cuh's. On every rank block
// b brings, adds up, and stores the same elements. So it waits only for the blocks b of the other ranks, no block waits for all,
// and no kernel has to start in between. While blocks wait, they hold SMs: operations on several streams, and ranks that share a
// GPU, need room for a product beside the blocks of all of them.
//
// Reading the sums takes less time than sending them, a fence, and adding up what has arrived (benches/results has both). In
// return, a rank's sums must stay until all ranks have read them. The next step's product writes the other buffer. The product
// after that reuses this buffer, and starts behind the next launch of this kernel. That launch waits for a word which every other
// rank stores after it has read these sums: that its next sums are complete or, in two shots, a total, which a rank sends only
// after it has all ranks' sums. A rank that gets no rows awaits no sums: it waits in that launch until all ranks have begun the
// step.
//
// Invariant: a block reads and stores only what has been signalled. If the step was given up, the block stores NaN, and all ranks
// learn by `gave_up` that this rank may overwrite what they read, or that totals are missing. A block signals before it waits, for
// sums and for totals; blocks need not run at the same time. A total overwrites only sums that its sender has read and that nobody
// else reads.
#include <algorithm>

#include "beginning.cuh"
#include "instance.h"
#include "named_barriers.h"
#include "signals.h"
#include "totals.cuh"

namespace overlap_gemm {
namespace {

// Threads that add up. One more warp announces the step and lets the epoch grow, so that the other warps need not wait for its
// fence and its stores to all ranks.
constexpr int kThreads = 512;
// Named barriers. At the first the threads that add up meet. At the second the first warp arrives once it has read the old epoch;
// the extra warp waits there before it lets the epoch grow.
constexpr int kAdders = 1;
constexpr int kEpochIsRead = 2;

// Totals that one rank sends to another: a range of 16-byte pieces of sums, counted from row 0. Or no totals, but only the words
// which signal that sums are complete.
struct Run {
    uint64_t to;
    uint32_t first;
    uint32_t end;
    int32_t peer;
    int32_t slot;
    int32_t slots;
};

// What one launch does, as kernel parameters.
struct Exchange {
    uint64_t sums_at;
    int4 const* brought;
    uint32_t brought_pieces;
    uint32_t row_pieces;
    // Runs, one kind behind the other.
    int32_t sums_signalled;
    int32_t totals_sent;
    int32_t totals_stored;
    int32_t sums_awaited;
    int32_t totals_awaited;
    int32_t has_begun;
    // 0: this rank gets no rows. Else `total` says where D is; it has no rows if this rank only stores totals.
    int32_t has_total;
    og_reduction total;
    Run runs[OG_MAX_PUSHED];
    og_slots awaited[OG_MAX_PUSHED];

    __device__ int32_t signalled() const { return sums_signalled + totals_sent; }
    __device__ bool has_second_shot() const { return totals_sent + totals_awaited + totals_stored > 0; }
    // Pieces before the first one that is added up.
    __device__ uint32_t first() const { return uint32_t((total.sums_at - sums_at) / sizeof(int4)); }
};

// What a block's warps share.
struct Shared {
    // Volatile: the first warp may write it while other warps are still on their way to the next meeting, and the compiler would
    // let these read it before they know that they need not.
    bool volatile is_given_up;
    // Where the words of each rank start, as this one reaches them.
    char* words[OG_MAX_PUSHED];
};

// Joins the threads that add up.
__device__ void join() { meet_at<kAdders, kThreads>(); }

// The distance of this thread's pieces, and its first one from `first` on.
__device__ uint32_t stride() { return gridDim.x * kThreads; }
__device__ uint32_t first_of_share(uint32_t first) {
    uint32_t const thread = blockIdx.x * kThreads + threadIdx.x;
    return first <= thread ? thread : thread + (first - thread + stride() - 1) / stride() * stride();
}

// Walks this thread's part of the pieces `first` ..< `end`. `each` gets the first of kAtOnce places, and leaves out those from
// `end` on.
template <int kAtOnce, class Each>
__device__ void for_each_of_share(uint32_t first, uint32_t end, Each each) {
    for (uint32_t at = first_of_share(first); at < end; at += kAtOnce * stride()) each(at);
}

// Copies this block's share of the sums that the caller has to where the other ranks read them.
__device__ void bring(Exchange const& exchange, int4* to) {
    constexpr int kInFlight = 8;
    for_each_of_share<kInFlight>(0, exchange.brought_pieces, [&](uint32_t at) {
        int4 held[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            if (at + i * stride() < exchange.brought_pieces) held[i] = __ldcg(exchange.brought + at + i * stride());
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            if (at + i * stride() < exchange.brought_pieces) to[at + i * stride()] = held[i];
        }
    });
}

// That this block's share of a run is there: behind the stores of all threads of the block, and of the kernels before. The fence
// pairs with the acquire of `await_words`.
__device__ void signal(og_gather const& gather, Run const& run, uint32_t* peer, uint32_t epoch) {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    uint32_t* words = peer + gather.signals_at + blockIdx.x;
    for (int32_t slot = run.slot; slot < run.slot + run.slots; ++slot) {
        store_relaxed_system(words + (slot << gather.share_bits), epoch);
    }
}

// Waits for this block's share of some of what is awaited; false if the step was given up.
__device__ bool await_words_of_share(og_gather const& gather, og_slots const* awaited, int32_t count, uint32_t epoch) {
    og_stop* stop = stop_of(gather, gather.own);
    uint32_t const* words = gather.own + gather.signals_at + blockIdx.x;
    int32_t const share_bits = gather.share_bits, slots_per_rank = gather.slots / gather.ranks;
    bool was_given_up = false;
    auto is_given_up = [&] { return was_given_up = load_relaxed_gpu(&stop->given_up) == given_up_at(epoch); };
    for (int32_t i = 0; i < count; ++i) {
        og_slots const& slots = awaited[i];
        auto slot_of = [=](int32_t nth) { return slots.first + nth * slots.stride; };
        auto writer_of = [=](int32_t nth) { return uint32_t(slot_of(nth) / slots_per_rank); };
        Finding finding;
        await_words(
            Patience(gather.abort, gather.timeout_ns, stop), slots.count, OG_FAILURE_TIMEOUT,
            [=](int32_t nth) { return words + (slot_of(nth) << share_bits); }, [=](int32_t) { return epoch; },
            writer_of, is_given_up, finding);
        if (!finding.is_bad()) continue;
        finding.who = finding.kind == OG_FAILURE_LEFT ? writer_of(int32_t(finding.who))
                                                      : uint32_t(slots.name) + finding.who;
        if (lane_id() == 0 && is_first_to_give_up(stop, epoch)) finding.record(gather.failure);
        return false;
    }
    return !__any_sync(0xffffffff, was_given_up);
}

// Calls `await_words_of_share` in the block's first warp. If that fails, all ranks learn of it before the next product can
// overwrite this rank's sums, which they may still read.
__device__ void await_share(og_gather const& gather, og_slots const* awaited, int32_t count, uint32_t epoch, Shared& shared) {
    bool gives_up = !await_words_of_share(gather, awaited, count, epoch);
    if (gives_up) tell_that_rows_may_be_torn(gather);
    if (lane_id() == 0) shared.is_given_up = gives_up;
}

// Ranks whose sums are loaded at a time, if there are more than four.
constexpr int kManyRanks = 8;

// Adds up kPlaces pieces, the first at `at` and each `stride()` behind the one before. Stores each total in D and, in two shots, at
// the ranks that receive it. The loads of all places and of kRanks ranks go out together. `kIsPlain`: only alpha is applied to
// totals.
template <bool kIsPlain, int kPlaces, int kRanks, class Sum, class Output>
__device__ void add_up_places(Exchange const& exchange, Shared const& shared, uint32_t at) {
    constexpr int kWidth = kWidthOf<Sum>;
    og_reduction const& r = exchange.total;
    // Other products' sums may lie beside those of this one.
    uint32_t const row_pieces = exchange.row_pieces, in_row = uint32_t(r.n) / kWidth, first = exchange.first();
    bool const is_given_up = shared.is_given_up;
    auto start_of = [&](int32_t rank) { return shared.words[rank] + r.sums_at; };
    if constexpr (kRanks < kManyRanks) __builtin_assume(r.ranks <= kRanks);
    Values<kWidth> values[kPlaces];
    add_up<kRanks, Sum>(r.ranks, start_of, [&](int i) { return int64_t(at + i * stride() - first) * kWidth; }, values);
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
        uint32_t const from = at + i * stride(), place = from - first;
        uint32_t const row = place / row_pieces, in_this_row = place - row * row_pieces;
        if (in_this_row >= in_row) continue;
        int64_t const column = in_this_row * kWidth, at_d = row * r.ldd + column;
        if (is_given_up) spoil(values[i]);
        if constexpr (kIsPlain) {
            each(values[i], [&](float x) { return __fmul_rn(r.alpha, x); });
        } else {
            finish<Output, kWidth>(r, values[i], at_d, column);
        }
        store<Output, kWidth>(r.d, at_d, values[i]);
        // A total fits in the place of a sum (check_exchange). A block that gives up sends no totals, and never signals its share.
        if constexpr (sizeof(Output) <= sizeof(Sum)) {
#pragma unroll 1
            for (int32_t to = exchange.sums_signalled; to < exchange.signalled() && !is_given_up; ++to) {
                Run const& run = exchange.runs[to];
                if (from < run.first || from >= run.end) continue;
                char* place = shared.words[run.peer] + run.to + (from - run.first) * sizeof(int4);
                store<Output, kWidth>(place, 0, values[i]);
            }
        }
    }
}

// Adds up this block's share.
template <bool kIsPlain, int kRanks, class Sum, class Output>
__device__ void add_up_share(Exchange const& exchange, Shared const& shared) {
    // What may follow a total needs registers.
    constexpr int kLoads = kIsPlain ? 8 : 4;
    constexpr int kMost = kRanks < kLoads ? kLoads / kRanks : 1;
    uint32_t const end = exchange.first() + uint32_t(exchange.total.rows) * exchange.row_pieces;
    uint32_t at = first_of_share(exchange.first());
    for (; at + (kMost - 1) * stride() < end; at += kMost * stride()) {
        add_up_places<kIsPlain, kMost, kRanks, Sum, Output>(exchange, shared, at);
    }
    // What is left are fewer: no place is loaded in vain, for that takes as much of the link.
    if (kMost > 2 && at + stride() < end) {
        add_up_places<kIsPlain, 2, kRanks, Sum, Output>(exchange, shared, at);
        at += 2 * stride();
    }
    if (kMost > 1 && at < end) add_up_places<kIsPlain, 1, kRanks, Sum, Output>(exchange, shared, at);
}

// Stores this block's share of the totals of a run, which have arrived.
template <class Sum, class Output>
__device__ void store_share(og_gather const& gather, Exchange const& exchange, Run const& run, bool is_given_up) {
    constexpr int kWidth = kWidthOf<Sum>;
    constexpr int kPlaces = 4;
    og_reduction const& r = exchange.total;
    int4 const* const landed = reinterpret_cast<int4 const*>(reinterpret_cast<char const*>(gather.own) + run.to) - run.first;
    // D's address is that of the first row that this rank adds up.
    int64_t const row_of_d = exchange.first() / exchange.row_pieces;
    for_each_of_share<kPlaces>(run.first, run.end, [&](uint32_t at) {
        Values<kWidth> values[kPlaces];
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
            uint32_t const from = at + i * stride();
            if (from < run.end) values[i] = load<Output, kWidth>(landed + from, 0);
        }
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
            uint32_t const from = at + i * stride();
            if (from >= run.end) continue;
            uint32_t const row = from / exchange.row_pieces, column = (from - row * exchange.row_pieces) * kWidth;
            if (is_given_up) spoil(values[i]);
            store<Output, kWidth>(r.d, (row - row_of_d) * r.ldd + column, values[i]);
        }
    });
}

// Announces the step, and lets the epoch grow when all blocks have read the old one.
__device__ void begin_by_warp(og_gather const& gather, og_gather_step const& step) {
    Beginning const beginning(gather, step.buffer);
    if (blockIdx.x == 0) beginning.announce_step(gather, step);
    wait_for_kernels_before();
    meet_at<kEpochIsRead, 2 * kWarp>();
    bool is_last = lane_id() == 0 && is_last_block(step.counter);
    if (__any_sync(0xffffffff, is_last)) beginning.begin(gather, step, false);
}

// With kIsPlain the kernel has no code for C, bias, average and activation. It is then a third as long, which saves time because
// each launch fetches its instructions from memory.
template <bool kIsPlain, class Sum, class Output>
__global__ void __launch_bounds__(kThreads + kWarp, 1)
    exchange_sums(__grid_constant__ og_gather const gather, __grid_constant__ og_gather_step const step,
                  __grid_constant__ Exchange const exchange) {
    // This rank's last step has ended, so the others may learn that it is consumed: the product started behind that step, and waits
    // for its end before it lets this kernel start (GatheringMainloop::load_tail). So this step begins while the product still
    // runs, if the product leaves an SM free.
    int32_t const warp = int32_t(threadIdx.x) / kWarp;
    if (warp == kThreads / kWarp) {
        if (!exchange.has_begun) begin_by_warp(gather, step);
        return;
    }
    __shared__ Shared shared;
    uint32_t epoch = 0;
    if (warp == 0) {
        Beginning beginning(gather, step.buffer);
        if (exchange.has_begun) {
            epoch = beginning.before;
            og_stop const* stop = stop_of(gather, gather.own);
            if (threadIdx.x == 0) shared.is_given_up = load_relaxed_gpu(&stop->given_up) == given_up_at(epoch);
        } else {
            epoch = beginning.epoch;
            beginning.await_by_block(gather, step, shared.is_given_up);
            arrive_at<kEpochIsRead, 2 * kWarp>();
        }
    } else if (warp == 1) {
        for (int32_t rank = lane_id(); rank < gather.ranks; rank += kWarp) {
            shared.words[rank] = reinterpret_cast<char*>(gather.words[rank]);
        }
    }
    wait_for_kernels_before();
    join();

    // Lane i of the first warp signals run i.
    static_assert(OG_MAX_PUSHED <= kWarp);
    Run const& run = exchange.runs[lane_id()];
    auto signal_own = [&](bool is_mine) {
        if (is_mine) signal(gather, run, reinterpret_cast<uint32_t*>(shared.words[run.peer]), epoch);
        __syncwarp();
    };
    if (exchange.brought) {
        if (!shared.is_given_up) bring(exchange, reinterpret_cast<int4*>(shared.words[gather.rank] + exchange.sums_at));
        join();
    }
    // Where a block gives up, its share is never signalled.
    if (warp == 0 && !shared.is_given_up) {
        signal_own(lane_id() < exchange.sums_signalled);
        await_share(gather, exchange.awaited, exchange.sums_awaited, epoch, shared);
    }
    join();
    bool const has_second_shot = exchange.has_second_shot();
    // The next kernel may take free SMs from here on; it waits by itself for the end of this one. To call this sooner would gain 1
    // us, but a product that held all other SMs while this block waits for a peer could keep out a product that the peer waits for.
    if (!has_second_shot) let_next_kernel_start();
    if (!exchange.has_total) return;
    if (exchange.total.ranks <= 2) {
        add_up_share<kIsPlain, 2, Sum, Output>(exchange, shared);
    } else if (exchange.total.ranks <= 4) {
        add_up_share<kIsPlain, 4, Sum, Output>(exchange, shared);
    } else {
        add_up_share<kIsPlain, kManyRanks, Sum, Output>(exchange, shared);
    }
    if (!has_second_shot) return;
    join();
    if (warp == 0 && !shared.is_given_up) {
        signal_own(lane_id() >= exchange.sums_signalled && lane_id() < exchange.signalled());
        await_share(gather, exchange.awaited + exchange.sums_awaited, exchange.totals_awaited, epoch, shared);
    }
    join();
    let_next_kernel_start();
    for (int32_t i = exchange.signalled(); i < exchange.signalled() + exchange.totals_stored; ++i) {
        store_share<Sum, Output>(gather, exchange, exchange.runs[i], shared.is_given_up);
    }
}

using Kernel = void (*)(og_gather, og_gather_step, Exchange);

template <bool kIsPlain>
Kernel kernel_of(og_type sum_type, og_type d_type) {
    return of_types(sum_type, d_type,
                    [](auto sum, auto d) -> Kernel { return exchange_sums<kIsPlain, decltype(sum), decltype(d)>; });
}

}  // namespace

void exchange(og_gather const& gather, og_gather_step const& step, og_exchange const& given, cudaStream_t stream) {
    Exchange exchange{};
    exchange.sums_at = given.sums_at;
    exchange.row_pieces = uint32_t(given.row_bytes / int64_t(sizeof(int4)));
    exchange.brought = static_cast<int4 const*>(given.brought);
    exchange.brought_pieces = given.brought ? uint32_t(given.brought_rows) * exchange.row_pieces : 0;
    // 31 bits count pieces: see check_exchange.
    auto in_pieces = [&](og_sums_run const& run) {
        uint32_t first = uint32_t(run.first_row) * exchange.row_pieces;
        return Run{run.to, first, first + uint32_t(run.rows) * exchange.row_pieces, run.peer, run.slot, run.slots};
    };
    int32_t runs = given.sums_signalled + given.totals_sent + given.totals_stored;
    std::transform(given.runs, given.runs + runs, exchange.runs, in_pieces);
    std::copy_n(given.awaited, given.sums_awaited + given.totals_awaited, exchange.awaited);
    exchange.sums_signalled = given.sums_signalled;
    exchange.totals_sent = given.totals_sent;
    exchange.totals_stored = given.totals_stored;
    exchange.sums_awaited = given.sums_awaited;
    exchange.totals_awaited = given.totals_awaited;
    exchange.has_begun = given.has_begun;
    exchange.has_total = given.total != nullptr;
    if (given.total) exchange.total = *given.total;
    og_reduction const& total = exchange.total;
    bool is_plain = !total.c && !total.bias && !total.average && total.activation == OG_ACTIVATION_NONE;
    Kernel kernel = (is_plain ? kernel_of<true> : kernel_of<false>)(total.sum_type, total.d_type);
    // Without a product before it, this kernel must not start early: it would announce the last step as consumed, while that step's
    // kernel may still be adding up.
    launch_in_pairs(given.follows_product != 0, kernel, step.blocks, kThreads + kWarp, stream, "launch of exchange_sums",
                    gather, step, exchange);
}

void load_exchange_kernels() {
    load_all_types(kernel_of<true>, "cudaFuncGetAttributes(exchange_sums)");
    load_all_types(kernel_of<false>, "cudaFuncGetAttributes(exchange_sums)");
}

}  // namespace overlap_gemm
