// Which tile a thread block computes when: the order of `plan::tiles`, written for the device.
//
// What belongs here: tile coordinates and slices of K from a linear index, and the sum of the
// slices. Waiting is not here but with the loads (gathering_mainloop.cuh).
// Invariant: unit u of the order (src/plan/tiles.rs: bands by the chunks needed last, from the pivot
// on, `swizzle` unit rows sweeping the columns together) is the work of cluster
// u * splits + slice (modulo the number of clusters); a test compares the recorded order with
// `TileOrder`. The arithmetic is 32 bits wide: there are fewer than 2^31 units and slices.
//
// Terms: a *unit* is what one cluster computes at a time. Rows and columns are D's as the caller
// sees it; a kernel that computes D transposed swaps them on the way out.
#pragma once

#include <algorithm>
#include <cstddef>

#include "cutlass/cutlass.h"
#include "cute/layout.hpp"
#include "cutlass/fast_math.h"

#include "chunk_signal.cuh"
#include "named_barriers.h"
#include "tile_bands.h"

namespace overlap_gemm {

// Everything the order depends on; the host fills it in (`make_order`). Aligned, so that all that a product in one band and
// one sweep needs is in one line of kernel parameters. Where every tile divides, the divisor comes with its reciprocal: a
// division takes as long as a step of K of a small tile.
struct alignas(kLineBytes) OrderParams {
    // Units along M.
    int32_t unit_grid_m;
    // The unit row visited first: the first that starts at or after the pivot.
    int32_t first_unit_row;
    // Slices of K; the K tiles of each, and how many of the slices have one more.
    cutlass::FastDivmod splits;
    int32_t slice_steps;
    int32_t longer_slices;
    // Units along N.
    cutlass::FastDivmod columns;
    // Unit rows that sweep together.
    cutlass::FastDivmod swizzle;
    BandTable bands;
    // Units of such a sweep.
    cutlass::FastDivmod sweep;
    // A counter for each tile and warp group, zero between launches; then the slices' partial sums.
    uint32_t* counters;
    float* partials;
    // For the collector of slices; all null where the product waits for nothing.
    StepWords step;
};
static_assert(offsetof(OrderParams, bands) + offsetof(BandTable, first) + 2 * sizeof(int32_t) <= kLineBytes);

// For one launch: `rows` x `columns` outputs, cut into units of `unit_rows` x `unit_columns`; the steps of K in `splits`
// slices. `swizzle` is plan::Tiling's. All are at least 1. `input` null: all is there; else `rows` are those of its chunks, of
// which one starts at its pivot. Where there are slices, the caller adds their memory: `counters` and `partials`.
inline OrderParams make_order(og_gemm_input const* input, int32_t rows, int32_t columns, int32_t unit_rows,
                              int32_t unit_columns, int32_t swizzle, int32_t k_steps, int32_t splits) {
    OrderParams order{};
    order.unit_grid_m = units_to_cover(rows, unit_rows);
    order.splits = cutlass::FastDivmod(splits);
    order.slice_steps = k_steps / splits;
    order.longer_slices = k_steps % splits;
    int32_t const column_units = units_to_cover(columns, unit_columns);
    order.columns = cutlass::FastDivmod(column_units);
    // More rows together than there are sweep no differently, and their units might be too many to count.
    swizzle = std::min(swizzle, order.unit_grid_m);
    order.swizzle = cutlass::FastDivmod(swizzle);
    order.sweep = cutlass::FastDivmod(swizzle * column_units);
    order.bands = make_bands(input, rows, unit_rows, order.first_unit_row);
    if (input) order.step = make_step_words(*input);
    return order;
}

struct Unit {
    int32_t m;
    int32_t n;
};

// TileOrder::unit_at; `band` is the index's.
__device__ inline Unit unit_at(OrderParams const& p, BandCursor const& band, int32_t index) {
    int32_t in_sweep = index - band.first * p.columns.divisor;
    int32_t position = band.first;
    int32_t rows_together = band.end - band.first;
    if (rows_together > p.swizzle.divisor) {
        int32_t sweep = p.sweep.divmod(in_sweep, in_sweep);
        int32_t swept_before = sweep * p.swizzle.divisor;
        position += swept_before;
        rows_together = min(p.swizzle.divisor, rows_together - swept_before);
    }
    int32_t column =
        rows_together == p.swizzle.divisor ? p.swizzle.div(in_sweep) : in_sweep / rows_together;
    int32_t unit_row = p.first_unit_row + position + (in_sweep - column * rows_together);
    return {unit_row < p.unit_grid_m ? unit_row : unit_row - p.unit_grid_m, column};
}

// Walks the tiles of one block. `KernelCluster` is the cluster as the kernel sees it;
// without `kCanSplit` there is one slice, and the code for more costs no registers.
template <class KernelCluster, bool kTransposed, bool kCanSplit>
class AsyncInputScheduler {
public:
    static constexpr bool kCutsK = kCanSplit;

    // A slice of K of one tile.
    struct Work {
        // The tile, as the kernel sees rows and columns.
        int32_t m;
        int32_t n;
        // Its steps of K.
        int32_t k_begin;
        int32_t k_count;
        int32_t unit;
        int32_t slice = -1;

        CUTLASS_DEVICE bool is_valid() const { return slice >= 0; }
    };

    CUTLASS_DEVICE explicit AsyncInputScheduler(OrderParams const& params) : params_(params) {
        next_ = int32_t(blockIdx.x) / int32_t(cute::size<0>(KernelCluster{}));
        band_ = BandCursor::begin(params_.bands);
    }

    CUTLASS_DEVICE Work current() {
        Work work;
        if (next_ >= work_count()) return work;
        work.unit = unit(next_);
        work.slice = kCanSplit ? next_ - work.unit * params_.splits.divisor : 0;
        work.k_begin = slice_begin(work.slice);
        work.k_count = slice_begin(work.slice + 1) - work.k_begin;
        if (params_.bands.count > 1) band_.advance(params_.bands, unit_row(work.unit));
        Unit at = unit_at(params_, band_, work.unit);
        // The grid is (clusters * cluster x, cluster y): block coordinates within the cluster.
        constexpr int32_t cluster_x = cute::size<0>(KernelCluster{});
        constexpr int32_t cluster_y = cute::size<1>(KernelCluster{});
        work.m = (kTransposed ? at.n : at.m) * cluster_x + int32_t(blockIdx.x) % cluster_x;
        work.n = (kTransposed ? at.m : at.n) * cluster_y + int32_t(blockIdx.y);
        return work;
    }

    // On by that number of this block's tiles.
    CUTLASS_DEVICE void advance(int32_t count) {
        next_ += count * int32_t(gridDim.x / uint32_t(cute::size<0>(KernelCluster{})));
    }

    // Whether tiles are computed in several slices of K.
    CUTLASS_DEVICE bool is_sliced() const { return kCanSplit && params_.splits.divisor > 1; }

    // Whether a slice's sums become D: the last one's, which has added the others'.
    CUTLASS_DEVICE bool is_stored(Work const& work) const {
        return !kCanSplit || work.slice == params_.splits.divisor - 1;
    }

    // Hands this slice's sums over, or collects the others'. They are added in the order of the
    // slices, so that the result is the same every time. The collector may spin: the slices before
    // it are those of earlier clusters and its own (clusters_in_order in abi.cu), and blocks start in
    // the order of their numbers, so theirs run or have run. CUDA does not promise that order; where it does not
    // hold, the collector of a product that waits for chunks gives up. Called by group `group` of the `groups` that share the
    // tile.
    template <class Sums>
    CUTLASS_DEVICE void add_slices(Work const& work, Sums& sums, uint32_t groups, uint32_t group) const {
        if constexpr (kCanSplit) {
            if (is_sliced()) add_slices(params_, work, sums, groups, group);
        }
    }

private:
    template <class Sums>
    CUTLASS_DEVICE static void add_slices(OrderParams const& params, Work const& work, Sums& sums, uint32_t groups,
                                          uint32_t group) {
        constexpr int kThreads = cutlass::NumThreadsPerWarpGroup;
        constexpr int kVectors = Sums::kElements / 4;
        static_assert(Sums::kElements % 4 == 0);
        constexpr uint32_t kBlocks = uint32_t(cute::size(KernelCluster{}));
        uint32_t block = blockIdx.x % uint32_t(cute::size<0>(KernelCluster{})) +
                         blockIdx.y * uint32_t(cute::size<0>(KernelCluster{}));
        uint32_t place = (uint32_t(work.unit) * kBlocks + block) * groups + group;
        uint32_t thread = threadIdx.x % kThreads;
        uint32_t handed_over = uint32_t(params.splits.divisor) - 1;
        uint32_t* counter = params.counters + place;
        float4* partial = reinterpret_cast<float4*>(params.partials) +
                          size_t(place) * handed_over * kVectors * kThreads + thread;
        if (uint32_t(work.slice) < handed_over) {
            float4* mine = partial + size_t(work.slice) * kVectors * kThreads;
            // A block that has given up has multiplied zeros, and the one that collects may not know.
            constexpr int kSharers = int(cute::size<kTransposed ? 0 : 1>(KernelCluster{}));
            float const nothing_or_nan =
                params.step.stop && is_stopped<kSharers>() ? __int_as_float(0x7fffffff) : 0.0f;
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kVectors; ++i) {
                mine[i * kThreads] =
                    make_float4(sums[4 * i] + nothing_or_nan, sums[4 * i + 1] + nothing_or_nan,
                                sums[4 * i + 2] + nothing_or_nan, sums[4 * i + 3] + nothing_or_nan);
            }
            // All threads' stores, then one release at GPU scope: pairs with the acquire below.
            __threadfence();
            sync_any(group, false);
            if (thread == 0) {
                asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
            }
        } else {
            // Zero again for the next launch, which touches the counter only after this one has ended.
            bool is_abandoned = thread == 0 && !collect(params.step, counter, handed_over);
            if (thread == 0) *counter = is_abandoned ? kAbandoned : 0;
            is_abandoned = sync_any(group, is_abandoned);
            // Added, not chosen: a branch that threads may take differently would cost the main loop its uniform
            // registers.
            float const nothing_or_nan = is_abandoned ? __int_as_float(0x7fffffff) : 0.0f;
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < 4 * kVectors; ++i) sums[i] += nothing_or_nan;
            for (uint32_t slice = 0; slice < handed_over; ++slice) {
                float4 const* theirs = partial + size_t(slice) * kVectors * kThreads;
                CUTLASS_PRAGMA_UNROLL
                for (int i = 0; i < kVectors; ++i) {
                    float4 part = __ldcg(theirs + i * kThreads);
                    sums[4 * i] += part.x;
                    sums[4 * i + 1] += part.y;
                    sums[4 * i + 2] += part.z;
                    sums[4 * i + 3] += part.w;
                }
            }
        }
    }

    // In a counter of slices: a collector has given up, and slices may be counted at any time since. So no sum
    // in this workspace is right any more.
    static constexpr uint32_t kAbandoned = 1u << 31;
    // How much longer than for a chunk a collector waits: slices wait for the same chunks, and have to be computed.
    // After an abort it waits this long, too: blocks that give up still hand over what they have.
    static constexpr uint64_t kSliceNs = 2'000'000'000;

    // The threads of a warp group meet; whether any of them says so. `bar` for the reason of meet_at.
    CUTLASS_DEVICE static bool sync_any(uint32_t group, bool says) {
        return group == 0 ? sync_any_at<kSliceBarriers>(says) : sync_any_at<kSliceBarriers + 1>(says);
    }
    template <int kBarrier>
    CUTLASS_DEVICE static bool sync_any_at(bool says) {
        uint32_t any;
        asm volatile(
            "{\n.reg .pred says, any;\n"
            "setp.ne.u32 says, %3, 0;\n"
            "bar.red.or.pred any, %1, %2, says;\n"
            "selp.u32 %0, 1, 0, any;\n}"
            : "=r"(any)
            : "n"(kBarrier), "n"(cutlass::NumThreadsPerWarpGroup), "r"(uint32_t(says))
            : "memory");
        return any != 0;
    }

    // Waits until that number of slices has been handed over. False if that is hopeless; then there is no sum.
    CUTLASS_DEVICE static bool collect(StepWords const& step, uint32_t const* counter, uint32_t slices) {
        uint64_t begin = 0, limit = step.timeout_ns + kSliceNs;
        for (uint32_t looks = 1;; ++looks) {
            uint32_t arrived;
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
            if (arrived >= slices && arrived < kAbandoned) return true;
            bool is_late = false;
            // A product that waits for no chunks has no limit, and nobody to tell. The others look rarely: the
            // abort word is across the bus.
            if (step.stop && looks % 16384 == 0) {
                uint64_t now = global_timer();
                bool is_asked = step.abort && (load_acquire_system(step.abort) & OG_ABORT_ASKED) != 0;
                if (begin == 0 || (is_asked && limit != kSliceNs)) begin = now;
                if (is_asked) limit = kSliceNs;
                is_late = now - begin > limit;
            }
            if (arrived < slices && !is_late) continue;
            if (!step.stop) return false;
            // The beginning of the next step may have reset `begun`; then this one's has ended, and has said the epoch.
            uint64_t begun = step.begun ? load_relaxed_gpu(step.begun) : 0;
            uint32_t epoch = begun >= kBegun ? uint32_t(begun) : load_relaxed_system(step.epoch);
            if (is_first_to_give_up(step.stop, epoch)) {
                record_failure(step.failure, OG_FAILURE_SLICE, epoch, 0, arrived, UINT32_MAX, UINT32_MAX);
            }
            return false;
        }
    }

    CUTLASS_DEVICE int32_t work_count() const {
        return params_.unit_grid_m * params_.columns.divisor * (kCanSplit ? params_.splits.divisor : 1);
    }

    // The unit of an index.
    CUTLASS_DEVICE int32_t unit(int32_t index) const {
        return kCanSplit ? params_.splits.div(index) : index;
    }

    // The ring position of a unit's row.
    CUTLASS_DEVICE int32_t unit_row(int32_t unit) const { return params_.columns.div(unit); }

    CUTLASS_DEVICE int32_t slice_begin(int32_t slice) const {
        return slice * params_.slice_steps + min(slice, params_.longer_slices);
    }

    OrderParams const& params_;
    // This block's next index, unit * splits + slice, and the band from which on its own is looked for.
    int32_t next_;
    BandCursor band_;
};

}  // namespace overlap_gemm
