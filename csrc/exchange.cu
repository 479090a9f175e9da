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

// What one launch sends and awaits, as kernel parameters.
struct Exchange {
    int4 const* own;
    int64_t row_pieces;
    // Runs, one kind behind the other.
    int32_t sums_sent;
    int32_t totals_sent;
    int32_t totals_stored;
    int32_t sums_awaited;
    int32_t totals_awaited;
    // 0: this rank gets no rows.
    int32_t has_total;
    og_reduction total;
    og_sums_run runs[OG_MAX_PUSHED];
    og_slots awaited[OG_MAX_PUSHED];
};

__device__ bool has_second_shot(Exchange const& exchange) {
    return exchange.totals_sent + exchange.totals_awaited + exchange.totals_stored > 0;
}

// Walks this thread's part of the pieces `first` ..< `end` of this rank's sums, 16 bytes each, counted from row 0. `each` gets
// the first of kAtOnce places and their distance, and leaves out those from `end` on.
template <int kAtOnce, class Each>
__device__ void for_each_of_share(int64_t first, int64_t end, Each each) {
    int64_t const stride = int64_t(gridDim.x) * kThreads;
    int64_t at = first / stride * stride + int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (at < first) at += stride;
    for (; at < end; at += kAtOnce * stride) each(at, stride);
}

// `peer`: the words of the rank that the run is for.
__device__ void send(Exchange const& exchange, og_sums_run const& run, uint32_t* peer) {
    constexpr int kInFlight = 8;
    int64_t const first = run.first_row * exchange.row_pieces, end = first + run.rows * exchange.row_pieces;
    int4 const* from = exchange.own;
    int4* to = reinterpret_cast<int4*>(reinterpret_cast<char*>(peer) + run.to) - first;
    for_each_of_share<kInFlight>(first, end, [&](int64_t at, int64_t stride) {
        int4 held[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            if (at + i * stride < end) held[i] = __ldcg(from + at + i * stride);
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            if (at + i * stride < end) to[at + i * stride] = held[i];
        }
    });
}

// That this block's share of a run has been sent: behind the stores of all threads of the block.
__device__ void signal(og_gather const& gather, og_sums_run const& run, uint32_t* peer, uint32_t epoch) {
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
    auto is_given_up = [=] { return load_relaxed_gpu(&stop->given_up) == given_up_at(epoch); };
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
    return !__any_sync(0xffffffff, is_given_up());
}

// Where a block's totals go.
struct Receivers {
    int32_t count;
    // Where row 0 would land.
    int4* at[OG_MAX_PUSHED];
};

// `kIsSent`: stores each total at the receivers, too.
template <bool kIsSent, class Sum, class Output>
__device__ void add_up_share(Exchange const& exchange, bool is_given_up, Receivers const& receivers) {
    constexpr int kWidth = kWidthOf<Sum>;
    // What is sent is fewer rows, and needs more registers.
    constexpr int kAtOnce = kIsSent ? 2 : 4;
    og_reduction const& r = exchange.total;
    int64_t const row_pieces = exchange.row_pieces;
    // Other products' sums may lie beside those of this one.
    int64_t const in_row = r.n / kWidth;
    int64_t const first = static_cast<int4 const*>(r.own) - exchange.own, end = first + r.rows * row_pieces;
    for_each_of_share<kAtOnce>(first, end, [&](int64_t at, int64_t stride) {
        Values<kWidth> values[kAtOnce];
        int32_t row[kAtOnce], column[kAtOnce];
        int64_t from[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            // 31 bits: see check_exchange.
            uint32_t const place = uint32_t(at + i * stride - first);
            row[i] = int32_t(place / uint32_t(row_pieces));
            column[i] = int32_t(place - uint32_t(row[i]) * uint32_t(row_pieces));
            if (at + i * stride >= end || column[i] >= in_row) row[i] = -1;
            column[i] *= kWidth;
            // Where there is no output, the first sums are added in vain: a branch would keep the loads apart.
            from[i] = row[i] >= 0 ? row[i] * r.pitch + column[i] : 0;
        }
        add_up<Sum>(r, from, values);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (row[i] < 0) continue;
            if (is_given_up) spoil(values[i]);
            finish<Output, kWidth>(r, values[i], row[i] * r.ldd + column[i], column[i]);
            store<Output, kWidth>(r.d, row[i] * r.ldd + column[i], values[i]);
            if constexpr (!kIsSent) continue;
            for (int32_t to = 0; to < receivers.count; ++to) {
                store<Output, kWidth>(receivers.at[to] + at + i * stride, 0, values[i]);
            }
        }
    });
}

// Stores this block's share of the totals of a run, which have arrived.
template <class Sum, class Output>
__device__ void store_share(og_gather const& gather, Exchange const& exchange, og_sums_run const& run, bool is_given_up) {
    constexpr int kWidth = kWidthOf<Sum>;
    constexpr int kAtOnce = 4;
    og_reduction const& r = exchange.total;
    int64_t const row_pieces = exchange.row_pieces;
    int64_t const first = run.first_row * row_pieces, end = first + run.rows * row_pieces;
    char const* landed = reinterpret_cast<char const*>(gather.own) + run.to;
    // D's address is that of the first row that this rank adds up.
    int64_t const row_of_d = (static_cast<int4 const*>(r.own) - exchange.own) / row_pieces;
    for_each_of_share<kAtOnce>(first, end, [&](int64_t at, int64_t stride) {
        Values<kWidth> values[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            int64_t const from = at + i * stride;
            if (from < end) values[i] = load<Output, kWidth>(landed + (from - first) * sizeof(int4), 0);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (at + i * stride >= end) continue;
            uint32_t const place = uint32_t(at + i * stride - first);
            int64_t const row = place / uint32_t(row_pieces), column = (place - row * row_pieces) * kWidth;
            if (is_given_up) spoil(values[i]);
            store<Output, kWidth>(r.d, (run.first_row - row_of_d + row) * r.ldd + column, values[i]);
        }
    });
}

// The last block that calls this lets the epoch grow. One warp of each block calls it, after the block has read the old epoch.
__device__ void count(Beginning const& beginning, og_gather const& gather, og_gather_step const& step) {
    bool is_last = lane_id() == 0 && is_last_block(step.counter);
    if (__any_sync(0xffffffff, is_last)) beginning.begin(gather, step, false);
}

template <class Sum, class Output>
__global__ void __launch_bounds__(kThreads)
    exchange_sums(__grid_constant__ og_gather const gather, __grid_constant__ og_gather_step const step,
                  __grid_constant__ Exchange const exchange) {
    // What another rank needs of this one's step before has ended: the product, which started behind it, waits for that end
    // before it lets this kernel start (GatheringMainloop::load_tail). So the step begins while the product still runs.
    Beginning beginning(gather, step.buffer);
    // Lane i loads the address of run i's peer now, so that it is there when the wait ends.
    static_assert(OG_MAX_PUSHED <= kWarp);
    int32_t const sums_sent = exchange.sums_sent, sent = sums_sent + exchange.totals_sent;
    og_sums_run const& run = exchange.runs[lane_id()];
    bool const sends_sums = lane_id() < sums_sent, sends_totals = !sends_sums && lane_id() < sent;
    uint32_t* const peer = lane_id() < sent ? gather.words[run.peer] : nullptr;
    beginning.announce_by_block(gather, step);
    __shared__ bool is_given_up;
    __shared__ Receivers receivers;
    if (threadIdx.x == 0) receivers.count = 0;
    beginning.await_by_block(gather, step, is_given_up);
    wait_for_kernels_before();
    __syncthreads();

    // Where a block gives up, its share is never signalled.
    if (!is_given_up) {
        for (int32_t i = 0; i < sums_sent; ++i) {
            uint64_t const to = __shfl_sync(0xffffffff, reinterpret_cast<uint64_t>(peer), i);
            send(exchange, exchange.runs[i], reinterpret_cast<uint32_t*>(to));
        }
        __syncthreads();
        if (threadIdx.x / kWarp == 1) count(beginning, gather, step);
        if (threadIdx.x < kWarp) {
            if (sends_sums) signal(gather, run, peer, beginning.epoch);
            __syncwarp();
            bool gives_up = !await_share(gather, exchange.awaited, exchange.sums_awaited, beginning.epoch);
            if (threadIdx.x == 0) is_given_up = gives_up;
            // A block that gives up sends no total, and never signals its share of them.
            if (sends_totals && !gives_up) {
                receivers.at[lane_id() - sums_sent] =
                    reinterpret_cast<int4*>(reinterpret_cast<char*>(peer) + run.to) - run.first_row * exchange.row_pieces;
            }
            if (threadIdx.x == 0 && !gives_up) receivers.count = exchange.totals_sent;
        }
        __syncthreads();
    } else if (threadIdx.x < kWarp) {
        count(beginning, gather, step);
    }
    if (!has_second_shot(exchange)) {
        // It waits for the end of this kernel; until then it finds its place. Not sooner, which would gain 1 us: a product that
        // holds all other SMs while this block waits for a peer could keep out a product that the peer waits for.
        let_next_kernel_start();
        if (exchange.has_total) add_up_share<false, Sum, Output>(exchange, is_given_up, receivers);
        return;
    }
    // A total fits in the place of a sum: see check_exchange.
    if constexpr (sizeof(Output) <= sizeof(Sum)) add_up_share<true, Sum, Output>(exchange, is_given_up, receivers);
    __syncthreads();
    if (threadIdx.x < kWarp && !is_given_up) {
        if (sends_totals) signal(gather, run, peer, beginning.epoch);
        __syncwarp();
        bool gives_up = !await_share(gather, exchange.awaited + exchange.sums_awaited, exchange.totals_awaited, beginning.epoch);
        if (threadIdx.x == 0) is_given_up = gives_up;
    }
    __syncthreads();
    let_next_kernel_start();
    for (int32_t i = sent; i < sent + exchange.totals_stored; ++i) {
        store_share<Sum, Output>(gather, exchange, exchange.runs[i], is_given_up);
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
    std::copy_n(given.runs, given.sums_sent + given.totals_sent + given.totals_stored, exchange.runs);
    std::copy_n(given.awaited, given.sums_awaited + given.totals_awaited, exchange.awaited);
    exchange.own = static_cast<int4 const*>(given.own);
    exchange.row_pieces = given.row_bytes / int64_t(sizeof(int4));
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
