// What a rank's GPU does for a gather beside the product: beginning a step, pushing rows to the others,
// waiting for theirs. A reduction begins and waits in the same way. The words are described at og_gather.
//
// Invariant, beside that of beginning.cuh: a signal follows its data, behind a fence of the whole system. Nothing traps.
#include "beginning.cuh"
#include "instance.h"
#include "signals.h"

namespace overlap_gemm {
namespace {

// A warp waits while another announces.
constexpr int kBeginThreads = 2 * kWarp;
// Blocks an SM: one will do. Not told, the compiler spills registers to make room for more.
constexpr int kBeginBlocks = 1;
constexpr int kPushThreads = 512;

__global__ void __launch_bounds__(kBeginThreads, kBeginBlocks)
    begin_step(__grid_constant__ og_gather const gather, __grid_constant__ og_gather_step const step) {
    Beginning beginning = start(gather, step);
    // Each warp has loaded the words of the last step before the other stores this one's.
    __syncthreads();
    bool is_told = false;
    if (threadIdx.x < kWarp) {
        Finding finding = beginning.await(gather, step, false);
        bool gives_up = beginning.over || finding.is_bad();
        if (gives_up) beginning.give_up(gather, step, finding);
        is_told = gives_up || !beginning.rows_stay(step);
        if (!is_told) beginning.begin(gather, step, false);
    } else {
        bool const again = beginning.is_again(step);
        if (again) beginning.reset_toggles(gather);
        beginning.tell_product(gather, step);
        if (step.toggled && !again) beginning.reset_toggles(gather);
        beginning.announce(gather, step.layout);
    }
    __syncthreads();
    if (is_told) beginning.begin(gather, step, true);
}

// The pushes of one launch, as kernel parameters.
struct PushList {
    og_push pushes[OG_MAX_PUSHED];
};

// Copies what one thread of a block copies of some rows: `columns` units of each, `pitch` units apart. The first loads start
// at once. They bypass the SM's own cache, which may hold old values.
template <class Unit>
class Share {
public:
    __device__ Share(char const* from, uint32_t rows, uint32_t columns, int64_t pitch)
        : from_(reinterpret_cast<Unit const*>(from)), pitch_(pitch), rows_(columns == 0 ? 0 : rows), columns_(max(columns, 1u)) {
        uint32_t const first = blockIdx.x * kPushThreads + threadIdx.x, stride = gridDim.x * kPushThreads;
        at_ = {first / columns_, first % columns_};
        stride_ = {stride / columns_, stride % columns_};
        load();
    }

    // Copies all of it. Once.
    __device__ void copy(char* to) {
        auto* target = reinterpret_cast<Unit*>(to);
        while (at_.row < rows_) {
#pragma unroll
            for (int i = 0; i < kInFlight; ++i) {
                if (at_.row < rows_) target[place()] = held_[i];
                advance();
            }
            load();
        }
    }

private:
    static constexpr int kInFlight = 8;
    struct Place {
        uint32_t row;
        uint32_t column;
    };

    __device__ int64_t place() const { return at_.row * pitch_ + at_.column; }
    __device__ void advance() {
        at_.row += stride_.row;
        at_.column += stride_.column;
        if (at_.column < columns_) return;
        at_.column -= columns_;
        ++at_.row;
    }
    __device__ void load() {
        Place const first = at_;
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            if (at_.row < rows_) held_[i] = __ldcg(from_ + place());
            advance();
        }
        at_ = first;
    }

    Unit const* from_;
    int64_t pitch_;
    uint32_t rows_;
    uint32_t columns_;
    Place at_;
    Place stride_;
    Unit held_[kInFlight];
};

// One piece on its way to one peer: the i-th of all that are pushed. To the rank that needs them soonest first, all of a
// shard's pieces: `peer_in_round` in src/plan/strategies/push.rs.
struct Push {
    og_push const* piece;
    uint32_t* there;

    __device__ Push(og_gather const& gather, og_gather_step const& step, PushList const& list, int32_t i)
        : piece(&list.pushes[i % step.push_count]) {
        int32_t round = 1 + i / step.push_count;
        there = gather.words[(gather.rank - round + gather.ranks) % gather.ranks];
    }

    // One span of its columns. What lies between rows may travel with them.
    __device__ Share<int4> rows(og_gather const& gather, og_gather_step const& step, int32_t span) const {
        int64_t const begin = int64_t(span) * step.span_bytes;
        int64_t const end = step.span_bits == 0 ? step.row_bytes : min(step.row_bytes, begin + step.span_bytes);
        auto units = [](int64_t bytes) { return (bytes + int64_t(sizeof(int4)) - 1) / int64_t(sizeof(int4)); };
        return {reinterpret_cast<char const*>(gather.own) + piece->offset[0] + begin, uint32_t(piece->rows),
                uint32_t(units(max(end - begin, int64_t(0)))), units(step.row_pitch)};
    }

    // Row scales travel with the first span.
    __device__ void copy(og_gather const& gather, og_gather_step const& step, int32_t span, Share<int4>& rows) const {
        auto* to = reinterpret_cast<char*>(there);
        rows.copy(to + piece->offset[0] + int64_t(span) * step.span_bytes);
        if (span > 0) return;
        Share<float> scales(reinterpret_cast<char const*>(gather.own) + piece->offset[1], 1,
                            uint32_t(piece->bytes[1] / sizeof(float)), 0);
        scales.copy(to + piece->offset[1]);
    }

    // Signals that this block's share of a span has arrived. If a span has more words than there are blocks, each block also sets
    // every gridDim.x-th word behind its own.
    __device__ void signal(og_gather const& gather, og_gather_step const& step, int32_t span, uint32_t epoch) const {
        int32_t const writer_bits = gather.share_bits - step.span_bits;
        uint32_t* words = there + gather.signals_at + (piece->slot << gather.share_bits) + (span << writer_bits);
        for (int32_t word = int32_t(blockIdx.x); word >> writer_bits == 0; word += int32_t(gridDim.x)) {
            store_relaxed_system(words + word, epoch);
        }
    }
};

// Whether a peer gets so few rows that they arrive before a block's fence returns. Then a block signals all peers behind one fence,
// because every fence takes the same time, however few stores it covers. (Each span, too, goes to all peers before the next span:
// its readers compute all rows at the same time.)
__device__ bool are_few(og_gather_step const& step, PushList const& list) {
    constexpr uint64_t kFewBytes = 1 << 20;
    uint64_t bytes = 0;
    for (int32_t i = 0; i < step.push_count; ++i) bytes += list.pushes[i].bytes[0] + list.pushes[i].bytes[1];
    return bytes <= kFewBytes;
}

// Like begin_step, but each block waits, pushes its share and signals that share: a fence of the whole system takes 1.6 us,
// and if the last block signalled for all, the blocks would need two, one after the other. The last block to finish
// increments the epoch, so that all blocks read the same one. Blocks need not run at the same time. Only block 0 has to run
// first, because it announces the step; it is the first to get an SM.
__global__ void __launch_bounds__(kPushThreads)
    begin_and_push(__grid_constant__ og_gather const gather, __grid_constant__ og_gather_step const step,
                   __grid_constant__ PushList const list) {
    Beginning beginning = start(gather, step);
    beginning.announce_by_block(gather, step);
    // On their way while the block waits: where its first rows go, and these rows.
    Push push(gather, step, list, 0);
    Share<int4> rows = push.rows(gather, step, 0);
    __shared__ bool is_given_up;
    beginning.await_by_block(gather, step, is_given_up);
    __syncthreads();

    int32_t const all = (gather.ranks - 1) * step.push_count;
    int32_t const at_once = step.span_bits > 0 || are_few(step, list) ? all : 1;
    // Where a block gives up, its share is never signalled.
    int32_t const spans = is_given_up ? 0 : 1 << step.span_bits;
    for (int32_t span = 0; span < spans; ++span) {
        for (int32_t first = 0; first < all; first += at_once) {
#pragma unroll 1
            for (int32_t i = first; i < first + at_once; ++i) {
                if (span > 0 || i > 0) {
                    push = Push(gather, step, list, i);
                    rows = push.rows(gather, step, span);
                }
                push.copy(gather, step, span, rows);
            }
            __syncthreads();
            if (threadIdx.x >= kWarp) continue;
            int32_t const end = first + at_once;
            // Its address first: a load behind the fence waits for the fence.
            Push sent(gather, step, list, min(first + lane_id(), end - 1));
            // Behind the stores of all threads of the block.
            __threadfence_system();
            for (int32_t i = first + lane_id(); i < end; i += kWarp) {
                if (i >= first + kWarp) sent = Push(gather, step, list, i);
                sent.signal(gather, step, span, beginning.epoch);
            }
            // The epoch grows when all of this block's signals are on their way.
            __syncwarp();
        }
    }
    __shared__ bool ends;
    if (threadIdx.x == 0) ends = is_last_block(step.counter);
    __syncthreads();
    if (ends && threadIdx.x < kWarp) beginning.begin(gather, step, false);
}

__global__ void __launch_bounds__(kWarp)
    await(__grid_constant__ og_gather const gather, int32_t slot, int32_t count, int32_t stride, int32_t name) {
    wait_for_kernels_before();
    uint32_t* own = gather.own;
    og_stop* stop = stop_of(gather, own);
    uint32_t epoch = load_relaxed_system(own + gather.epoch_at);
    uint32_t const* signals = own + gather.signals_at;
    int32_t const share_bits = gather.share_bits;
    auto nth_slot = [=](int32_t word) { return word >> share_bits; };
    auto slot_of = [=](int32_t word) { return slot + nth_slot(word) * stride; };
    auto share_of = [=](int32_t word) { return word & ((1 << share_bits) - 1); };
    auto writer_of = [&](int32_t word) { return uint32_t(slot_of(word) / (gather.slots / gather.ranks)); };
    Finding finding;
    await_words(
        Patience(gather.abort, gather.timeout_ns), count << gather.share_bits, OG_FAILURE_TIMEOUT,
        [=](int32_t i) { return signals + (slot_of(i) << share_bits) + share_of(i); },
        [=](int32_t) { return epoch; }, writer_of,
        [=] { return load_relaxed_gpu(&stop->given_up) == given_up_at(epoch); }, finding);
    // Not before the wait has ended: a product that had started would hold SMs which the awaited work may need, if another rank or
    // another operation does that work on the same GPU.
    let_next_kernel_start();
    // What is read after this kernel has ended is ordered by that end.
    finding.who = finding.kind == OG_FAILURE_LEFT ? writer_of(int32_t(finding.who))
                                                  : uint32_t(name + nth_slot(int32_t(finding.who)));
    if (!finding.is_bad()) return;
    // What follows on this stream may send totals, of which sums are missing now.
    tell_that_rows_may_be_torn(gather);
    if (lane_id() == 0 && is_first_to_give_up(stop, epoch)) finding.record(gather.failure);
}

}  // namespace

void begin_gather(og_gather const& gather, og_gather_step const& step, cudaStream_t stream) {
    if (step.push_count == 0) {
        launch_in_pairs(true, begin_step, 1, kBeginThreads, stream, "launch of begin_step", gather, step);
        return;
    }
    PushList list{};
    for (int32_t i = 0; i < step.push_count; ++i) list.pushes[i] = step.pushes[i];
    launch_in_pairs(true, begin_and_push, step.blocks, kPushThreads, stream, "launch of begin_and_push", gather, step, list);
}

void await_slots(og_gather const& gather, og_slots const& slots, cudaStream_t stream) {
    launch_in_pairs(true, await, 1, kWarp, stream, "launch of await", gather, slots.first, slots.count, slots.stride,
                    slots.name);
}

void load_gather_kernels() {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, begin_step), "cudaFuncGetAttributes(begin_step)");
    check(cudaFuncGetAttributes(&attributes, begin_and_push), "cudaFuncGetAttributes(begin_and_push)");
    check(cudaFuncGetAttributes(&attributes, await), "cudaFuncGetAttributes(await)");
}

}  // namespace overlap_gemm
