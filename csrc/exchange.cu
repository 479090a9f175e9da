// One kernel of a reduction with few rows, behind its product if it has one: begins the step, sends this rank's sums, waits for
// the others', and adds them up. In an all-reduce in two shots, it also sends the totals of this rank's rows, waits for those of
// the others' rows, and stores them.
//
// What belongs here: the shares of the blocks. Beginning a step is beginning.cuh's, adding up is totals.cuh's. On every rank
// block b sends, adds up, and stores the same elements. So it waits only for the blocks b of the other ranks, no block waits for
// all, and no kernel has to start in between. (Sums that carried their epoch with them, 8 bytes of each, would need no fence:
// that gained 0.4 us of 31.) While they wait, its blocks hold SMs: operations on several streams, and ranks that share a GPU,
// need room for a product beside the blocks of all of them.
//
// Invariant: a block sends after all ranks have consumed what was in their slots; its signals follow its stores, behind a
// fence of the whole system; it adds up, and stores, what has been signalled, or NaN where the step was given up. It sends sums
// before it waits for any, and totals before it waits for any; blocks need not run at the same time. A total lands on sums that
// its receiver has sent: its sender has added them up.
#include <algorithm>

#include "beginning.cuh"
#include "instance.h"
#include "signals.h"
#include "totals.cuh"

namespace overlap_gemm {
namespace {

constexpr int kThreads = 512;

// Sums or totals that go from one rank to another, in pieces of 16 bytes of sums, counted from row 0.
struct Run {
    uint64_t to;
    uint32_t first;
    uint32_t end;
    int32_t peer;
    int32_t slot;
    int32_t slots;
};

// What one launch sends and awaits, as kernel parameters.
struct Exchange {
    int4 const* own;
    uint32_t row_pieces;
    // Runs, one kind behind the other.
    int32_t sums_sent;
    int32_t totals_sent;
    int32_t totals_stored;
    int32_t sums_awaited;
    int32_t totals_awaited;
    // 0: this rank gets no rows. Else `total` says where D is; it has no rows if this rank only stores totals.
    int32_t has_total;
    og_reduction total;
    Run runs[OG_MAX_PUSHED];
    og_slots awaited[OG_MAX_PUSHED];

    __device__ int32_t sent() const { return sums_sent + totals_sent; }
    __device__ bool has_second_shot() const { return totals_sent + totals_awaited + totals_stored > 0; }
};

// What a block's warps share.
struct Shared {
    bool is_given_up;
    // Where piece 0 of each run that is sent would land.
    int4* places[OG_MAX_PUSHED];
};

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

// Sends this block's share of a run to where piece 0 of it would land.
__device__ void send(Exchange const& exchange, Run const& run, int4* to) {
    constexpr int kInFlight = 8;
    for_each_of_share<kInFlight>(run.first, run.end, [&](uint32_t at) {
        int4 held[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            if (at + i * stride() < run.end) held[i] = __ldcg(exchange.own + at + i * stride());
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            if (at + i * stride() < run.end) to[at + i * stride()] = held[i];
        }
    });
}

// That this block's share of a run has been sent: behind the stores of all threads of the block.
__device__ void signal(og_gather const& gather, Run const& run, uint32_t* peer, uint32_t epoch) {
    __threadfence_system();
    uint32_t* words = peer + gather.signals_at + blockIdx.x;
    for (int32_t slot = run.slot; slot < run.slot + run.slots; ++slot) {
        store_relaxed_system(words + (slot << gather.share_bits), epoch);
    }
}

// Waits for this block's share of some of what is awaited; false if the step was given up.
__device__ bool await_share(og_gather const& gather, og_slots const* awaited, int32_t count, uint32_t epoch) {
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

// Adds up this block's share, and, if `kIsSent`, stores each total at the receivers, too. The loads of kPlaces places and kRanks
// ranks go out together.
template <bool kIsSent, int kPlaces, int kRanks, class Sum, class Output>
__device__ void add_up_share(Exchange const& exchange, Shared const& shared) {
    constexpr int kWidth = kWidthOf<Sum>;
    og_reduction const& r = exchange.total;
    // Other products' sums may lie beside those of this one.
    uint32_t const row_pieces = exchange.row_pieces, in_row = uint32_t(r.n) / kWidth;
    uint32_t const first = uint32_t(static_cast<int4 const*>(r.own) - exchange.own);
    uint32_t const end = first + uint32_t(r.rows) * row_pieces;
    bool const is_given_up = shared.is_given_up;
    for_each_of_share<kPlaces>(first, end, [&](uint32_t at) {
        Values<kWidth> values[kPlaces];
        // From `end` on, the first place is added again in vain: a branch would keep the loads apart.
        auto piece = [&](int i) { return at + (at + i * stride() < end ? i : 0) * stride(); };
        add_up<kRanks, Sum>(r, [&](int i) { return int64_t(piece(i) - first) * kWidth; }, values);
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
            uint32_t const from = at + i * stride(), place = from - first;
            uint32_t const row = place / row_pieces, in_this_row = place - row * row_pieces;
            if (from >= end || in_this_row >= in_row) continue;
            int64_t const column = in_this_row * kWidth, at_d = row * r.ldd + column;
            if (is_given_up) spoil(values[i]);
            finish<Output, kWidth>(r, values[i], at_d, column);
            store<Output, kWidth>(r.d, at_d, values[i]);
            // A total fits in the place of a sum: see check_exchange. A block that gives up sends none, and never signals its share
            // of them.
            if constexpr (!kIsSent || sizeof(Output) > sizeof(Sum)) continue;
            for (int32_t to = exchange.sums_sent; to < exchange.sent() && !is_given_up; ++to) {
                if (from < exchange.runs[to].first || from >= exchange.runs[to].end) continue;
                store<Output, kWidth>(shared.places[to] + from, 0, values[i]);
            }
        }
    });
}

// Stores this block's share of the totals of a run, which have arrived.
template <class Sum, class Output>
__device__ void store_share(og_gather const& gather, Exchange const& exchange, Run const& run, bool is_given_up) {
    constexpr int kWidth = kWidthOf<Sum>;
    constexpr int kPlaces = 4;
    og_reduction const& r = exchange.total;
    int4 const* const landed = reinterpret_cast<int4 const*>(reinterpret_cast<char const*>(gather.own) + run.to) - run.first;
    // D's address is that of the first row that this rank adds up.
    int64_t const row_of_d = uint32_t(static_cast<int4 const*>(r.own) - exchange.own) / exchange.row_pieces;
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

// The last block that calls this lets the epoch grow. One warp of each block calls it, after the block has read the old epoch.
__device__ void count(Beginning const& beginning, og_gather const& gather, og_gather_step const& step) {
    bool is_last = lane_id() == 0 && is_last_block(step.counter);
    if (__any_sync(0xffffffff, is_last)) beginning.begin(gather, step, false);
}

template <class Sum, class Output>
__global__ void __launch_bounds__(kThreads, 1)
    exchange_sums(__grid_constant__ og_gather const gather, __grid_constant__ og_gather_step const step,
                  __grid_constant__ Exchange const exchange) {
    // What another rank needs of this one's step before has ended: the product, which started behind it, waits for that end
    // before it lets this kernel start (GatheringMainloop::load_tail). So the step begins while the product still runs, where that
    // leaves an SM free.
    Beginning beginning(gather, step.buffer);
    // Lane i loads the address of run i's peer now, so that it is there when the wait ends.
    static_assert(OG_MAX_PUSHED <= kWarp);
    Run const& run = exchange.runs[lane_id()];
    bool const sends_sums = lane_id() < exchange.sums_sent, sends = lane_id() < exchange.sent();
    uint32_t* const peer = sends && threadIdx.x < kWarp ? gather.words[run.peer] : nullptr;
    __shared__ Shared shared;
    beginning.announce_by_block(gather, step);
    beginning.await_by_block(gather, step, shared.is_given_up);
    if (threadIdx.x < kWarp && sends) {
        shared.places[lane_id()] = reinterpret_cast<int4*>(reinterpret_cast<char*>(peer) + run.to) - run.first;
    }
    wait_for_kernels_before();
    __syncthreads();

    // Where a block gives up, its share is never signalled.
    if (!shared.is_given_up) {
        for (int32_t i = 0; i < exchange.sums_sent; ++i) send(exchange, exchange.runs[i], shared.places[i]);
        __syncthreads();
        if (threadIdx.x / kWarp == 1) count(beginning, gather, step);
        if (threadIdx.x < kWarp) {
            if (sends_sums) signal(gather, run, peer, beginning.epoch);
            __syncwarp();
            bool gives_up = !await_share(gather, exchange.awaited, exchange.sums_awaited, beginning.epoch);
            if (threadIdx.x == 0) shared.is_given_up = gives_up;
        }
        __syncthreads();
    } else if (threadIdx.x < kWarp) {
        count(beginning, gather, step);
    }
    if (!exchange.has_second_shot()) {
        // What follows waits for the end of this kernel; until then it finds its place. Not sooner, which would gain 1 us: a
        // product that holds all other SMs while this block waits for a peer could keep out a product that the peer waits for.
        let_next_kernel_start();
        if (!exchange.has_total) return;
        if (exchange.total.ranks <= 2) return add_up_share<false, 4, 2, Sum, Output>(exchange, shared);
        return add_up_share<false, 2, 4, Sum, Output>(exchange, shared);
    }

    add_up_share<true, 2, 4, Sum, Output>(exchange, shared);
    __syncthreads();
    if (threadIdx.x < kWarp && !shared.is_given_up) {
        if (sends && !sends_sums) signal(gather, run, peer, beginning.epoch);
        __syncwarp();
        bool gives_up = !await_share(gather, exchange.awaited + exchange.sums_awaited, exchange.totals_awaited, beginning.epoch);
        if (threadIdx.x == 0) shared.is_given_up = gives_up;
    }
    __syncthreads();
    let_next_kernel_start();
    for (int32_t i = exchange.sent(); i < exchange.sent() + exchange.totals_stored; ++i) {
        store_share<Sum, Output>(gather, exchange, exchange.runs[i], shared.is_given_up);
    }
}

using Kernel = void (*)(og_gather, og_gather_step, Exchange);

Kernel kernel_of(og_type sum_type, og_type d_type) {
    return of_types(sum_type, d_type,
                    [](auto sum, auto d) -> Kernel { return exchange_sums<decltype(sum), decltype(d)>; });
}

}  // namespace

void exchange(og_gather const& gather, og_gather_step const& step, og_exchange const& given, cudaStream_t stream) {
    Exchange exchange{};
    exchange.own = static_cast<int4 const*>(given.own);
    exchange.row_pieces = uint32_t(given.row_bytes / int64_t(sizeof(int4)));
    // 31 bits count pieces: see check_exchange.
    auto in_pieces = [&](og_sums_run const& run) {
        uint32_t first = uint32_t(run.first_row) * exchange.row_pieces;
        return Run{run.to, first, first + uint32_t(run.rows) * exchange.row_pieces, run.peer, run.slot, run.slots};
    };
    int32_t runs = given.sums_sent + given.totals_sent + given.totals_stored;
    std::transform(given.runs, given.runs + runs, exchange.runs, in_pieces);
    std::copy_n(given.awaited, given.sums_awaited + given.totals_awaited, exchange.awaited);
    exchange.sums_sent = given.sums_sent;
    exchange.totals_sent = given.totals_sent;
    exchange.totals_stored = given.totals_stored;
    exchange.sums_awaited = given.sums_awaited;
    exchange.totals_awaited = given.totals_awaited;
    exchange.has_total = given.total != nullptr;
    if (given.total) exchange.total = *given.total;
    // Behind no product it would say too early that the step before has been consumed: that step may still be adding up.
    launch_in_pairs(given.follows_product != 0, kernel_of(exchange.total.sum_type, exchange.total.d_type), step.blocks,
                    kThreads, stream, "launch of exchange_sums", gather, step, exchange);
}

void load_exchange_kernels() { load_all_types(kernel_of, "cudaFuncGetAttributes(exchange_sums)"); }

}  // namespace overlap_gemm
