// Which tile a thread block computes when: the order of `plan::tiles`, written for the device.
//
// What belongs here: tile coordinates and slices of K from a linear index, and the sum of the
// slices. Waiting is not here but with the loads (gathering_mainloop.cuh).
// Invariant: unit u of the order (src/plan/tiles.rs: bands by the chunk needed last, from the pivot
// on, `swizzle` unit rows sweeping the columns together) is the work of cluster
// u * splits + slice (modulo the number of clusters); a test compares the recorded order with
// `TileOrder`. The arithmetic is 32 bits wide: there are fewer than 2^31 units and slices.
//
// Terms: a *unit* is what one cluster computes at a time. Rows and columns are D's as the caller
// sees it; a kernel that computes D transposed swaps them on the way out.
#pragma once

#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/fast_math.h"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"

#include "chunk_signal.cuh"
#include "tile_bands.h"

namespace overlap_gemm {

// Everything the order depends on; the host fills it in (tile_bands.h). Aligned, so that all that a product in one band and
// one sweep needs is in one line of kernel parameters. Where every tile divides, the divisor comes with its reciprocal: a
// division takes as long as a step of K of a small tile.
struct alignas(kLineBytes) OrderParams {
    // Units along M.
    int32_t unit_grid_m;
    // The unit row visited first: the first that starts at or after the pivot.
    int32_t first_unit_row;
    // Slices of K; the K tiles of each, and how many of the slices have one more.
    cutlass::FastDivmod splits;
    int32_t k_tiles;
    int32_t longer_slices;
    // Units along N.
    cutlass::FastDivmod columns;
    // Unit rows that sweep together.
    cutlass::FastDivmod swizzle;
    BandTable bands;
    // Units of such a sweep.
    cutlass::FastDivmod sweep;
    // One counter a slice-sharing tile and warp group, zero between launches; then partial sums.
    uint32_t* counters;
    float* partials;
    // For the collector of slices; all null where the product waits for nothing.
    StepWords step;
};
static_assert(offsetof(OrderParams, bands) + offsetof(BandTable, first) + 2 * sizeof(int32_t) <= kLineBytes);

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

// The scheduler that CUTLASS's kernels ask. `KernelCluster` is the cluster as the kernel sees it;
// without `kCanSplit` there is one slice, and the code for more costs no registers.
template <class KernelCluster, bool kTransposed, bool kCanSplit>
class AsyncInputScheduler {
public:
    static constexpr bool IsDynamicPersistent = false;

    // CUTLASS's schedulers that fetch work dynamically need these; this one knows its work.
    using Pipeline = cutlass::PipelineEmpty;
    using ThrottlePipeline = cutlass::PipelineEmpty;
    struct CLCResponse {};
    class SharedStorage {
    public:
        CUTLASS_DEVICE typename Pipeline::SharedStorage pipeline() { return {}; }
        CUTLASS_DEVICE typename ThrottlePipeline::SharedStorage throttle_pipeline() { return {}; }
        CUTLASS_DEVICE CLCResponse* data() { return nullptr; }
    };

    using Params = OrderParams;
    using Arguments = OrderParams;

    struct WorkTileInfo {
        int32_t M_idx = 0;
        int32_t N_idx = 0;
        int32_t L_idx = 0;
        // Which K tiles; of which unit and slice.
        int32_t k_start = 0;
        int32_t k_count = 0;
        int32_t unit = 0;
        int32_t slice = -1;

        CUTLASS_DEVICE bool is_valid() const { return slice >= 0; }
        // Asked by epilogues that reduce part by part; ours never does.
        CUTLASS_DEVICE int32_t reduction_subtile_idx() const { return -1; }
    };

    // The host code (gemm_sm90.cuh) computes the parameters; CUTLASS only passes them through.
    template <class ProblemShape, class TileShape, class ClusterShape>
    static Params to_underlying_arguments(ProblemShape, TileShape, ClusterShape,
                                          cutlass::KernelHardwareInfo const&,
                                          Arguments const& arguments, void*, uint32_t = 1,
                                          uint32_t = 1) {
        return arguments;
    }
    template <class ProblemShape, class Accumulator>
    static size_t get_workspace_size(Arguments const&, ProblemShape,
                                     cutlass::KernelHardwareInfo const&, uint32_t, uint32_t = 1,
                                     uint32_t = 1) {
        return 0;
    }
    static bool can_implement(Arguments const&) { return true; }

    CUTLASS_DEVICE explicit AsyncInputScheduler(Params const& params) : params_(params) {
        next_ = int32_t(blockIdx.x) / int32_t(cute::size<0>(KernelCluster{}));
        band_ = BandCursor::at(params_.bands, unit_row(unit(next_)));
    }

    template <class ClusterShape>
    CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(ClusterShape) {
        return get_current_work();
    }

    CUTLASS_DEVICE WorkTileInfo get_current_work() {
        WorkTileInfo work;
        if (next_ >= work_count()) return work;
        work.unit = unit(next_);
        work.slice = kCanSplit ? next_ - work.unit * params_.splits.divisor : 0;
        work.k_start = slice_begin(work.slice);
        work.k_count = slice_begin(work.slice + 1) - work.k_start;
        band_.advance(params_.bands, unit_row(work.unit));
        Unit at = unit_at(params_, band_, work.unit);
        // The grid is (clusters * cluster x, cluster y): block coordinates within the cluster.
        constexpr int32_t cluster_x = cute::size<0>(KernelCluster{});
        constexpr int32_t cluster_y = cute::size<1>(KernelCluster{});
        int32_t kernel_m = (kTransposed ? at.n : at.m) * cluster_x + int32_t(blockIdx.x) % cluster_x;
        int32_t kernel_n = (kTransposed ? at.m : at.n) * cluster_y + int32_t(blockIdx.y);
        work.M_idx = kernel_m;
        work.N_idx = kernel_n;
        return work;
    }

    CUTLASS_DEVICE void advance_to_next_work(uint32_t count = 1) {
        next_ += step(count);
    }

    CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo) {
        advance_to_next_work();
        return cute::make_tuple(get_current_work(), true);
    }
    template <class SchedulerPipeline, class PipelineState>
    CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo work, SchedulerPipeline&, PipelineState) {
        return fetch_next_work(work);
    }

    CUTLASS_DEVICE bool is_last_tile(WorkTileInfo const&, uint32_t count = 1) const {
        return next_ + step(count) >= work_count();
    }

    template <class ProblemShape, class TileShape>
    CUTLASS_DEVICE static int get_work_k_tile_count(WorkTileInfo const& work, ProblemShape,
                                                    TileShape) {
        return work.k_count;
    }
    CUTLASS_DEVICE static uint32_t get_work_k_tile_start(WorkTileInfo const& work) {
        return uint32_t(work.k_start);
    }
    CUTLASS_DEVICE static bool valid_warpgroup_in_work_tile(WorkTileInfo const&) { return true; }
    CUTLASS_DEVICE static bool requires_separate_reduction(Params const&) { return false; }

    // The last slice of a tile adds the others' sums to its own and stores D.
    CUTLASS_DEVICE static bool compute_epilogue(WorkTileInfo const& work, Params const& params) {
        return !kCanSplit || work.slice == params.splits.divisor - 1;
    }

    // Hands this slice's sums over, or collects the others'. They are added in the order of the
    // slices, so that the result is the same every time. The collector may spin: the slices before
    // it are those of earlier clusters and its own (clusters_in_order in abi.cu), and blocks start in
    // the order of their numbers, so theirs run or have run. CUDA does not promise that order; where it does not
    // hold, the collector of a product that waits for chunks gives up.
    template <class Accumulators>
    CUTLASS_DEVICE static void fixup(Params const& params, WorkTileInfo const& work,
                                     Accumulators& sums, uint32_t warp_groups,
                                     uint32_t warp_group) {
        if constexpr (kCanSplit) {
            if (params.splits.divisor > 1) add_slices(params, work, sums, warp_groups, warp_group);
        }
    }

private:
    template <class Accumulators>
    CUTLASS_DEVICE static void add_slices(Params const& params, WorkTileInfo const& work,
                                          Accumulators& sums, uint32_t warp_groups,
                                          uint32_t warp_group) {
        constexpr int kThreads = cutlass::NumThreadsPerWarpGroup;
        constexpr int kVectors = cute::size(Accumulators{}) / 4;
        static_assert(cute::size(Accumulators{}) % 4 == 0);
        constexpr uint32_t kBlocks = uint32_t(cute::size(KernelCluster{}));
        uint32_t block = blockIdx.x % uint32_t(cute::size<0>(KernelCluster{})) +
                         blockIdx.y * uint32_t(cute::size<0>(KernelCluster{}));
        uint32_t group = (uint32_t(work.unit) * kBlocks + block) * warp_groups + warp_group;
        uint32_t thread = threadIdx.x % kThreads;
        uint32_t handed_over = uint32_t(params.splits.divisor) - 1;
        uint32_t* counter = params.counters + group;
        float4* partial = reinterpret_cast<float4*>(params.partials) +
                          size_t(group) * handed_over * kVectors * kThreads + thread;
        uint32_t const barrier_id =
            uint32_t(cutlass::arch::ReservedNamedBarriers::StreamkBarrier0) + warp_group;
        if (uint32_t(work.slice) < handed_over) {
            float4* mine = partial + size_t(work.slice) * kVectors * kThreads;
            // A block that has given up has multiplied zeros, and the one that collects may not know.
            constexpr int kSharers = int(cute::size<kTransposed ? 0 : 1>(KernelCluster{}));
            float const nothing_or_nan =
                params.step.stop && is_stopped<kSharers>() ? __int_as_float(0x7fffffff) : 0.0f;
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kVectors; ++i) {
                mine[i * kThreads] =
                    make_float4(sums(4 * i) + nothing_or_nan, sums(4 * i + 1) + nothing_or_nan,
                                sums(4 * i + 2) + nothing_or_nan, sums(4 * i + 3) + nothing_or_nan);
            }
            // All threads' stores, then one release at GPU scope: pairs with the acquire below.
            __threadfence();
            sync_any(barrier_id, kThreads, false);
            if (thread == 0) {
                asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
            }
        } else {
            // Zero again for the next launch, which begins after this one has ended.
            bool is_abandoned = thread == 0 && !collect(params.step, counter, handed_over);
            if (thread == 0) *counter = is_abandoned ? kAbandoned : 0;
            is_abandoned = sync_any(barrier_id, kThreads, is_abandoned);
            // Added, not chosen: a branch that threads may take differently would cost the main loop its uniform
            // registers.
            float const nothing_or_nan = is_abandoned ? __int_as_float(0x7fffffff) : 0.0f;
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < 4 * kVectors; ++i) sums(i) += nothing_or_nan;
            for (uint32_t slice = 0; slice < handed_over; ++slice) {
                float4 const* theirs = partial + size_t(slice) * kVectors * kThreads;
                CUTLASS_PRAGMA_UNROLL
                for (int i = 0; i < kVectors; ++i) {
                    float4 part = __ldcg(theirs + i * kThreads);
                    sums(4 * i) += part.x;
                    sums(4 * i + 1) += part.y;
                    sums(4 * i + 2) += part.z;
                    sums(4 * i + 3) += part.w;
                }
            }
        }
    }

    // In a counter of slices: a collector has given up, and slices may be counted at any time since. So no sum
    // in this workspace is right any more.
    static constexpr uint32_t kAbandoned = 1u << 31;
    // How much longer than for a chunk a collector waits: slices wait for the same chunks, and have to be computed.
    // As long it waits once everybody was asked to give up: blocks that do still hand over what they have.
    static constexpr uint64_t kSliceNs = 2'000'000'000;

    // The threads of a named barrier meet; whether any of them says so. `bar`, not `barrier`: whole warps come here,
    // and where the compiler does not know that, the main loop loses its uniform registers.
    CUTLASS_DEVICE static bool sync_any(uint32_t barrier, uint32_t threads, bool says) {
        uint32_t any;
        asm volatile(
            "{\n.reg .pred says, any;\n"
            "setp.ne.u32 says, %3, 0;\n"
            "bar.red.or.pred any, %1, %2, says;\n"
            "selp.u32 %0, 1, 0, any;\n}"
            : "=r"(any)
            : "r"(barrier), "r"(threads), "r"(uint32_t(says))
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

    // From a cluster's index to its `count`th next one.
    CUTLASS_DEVICE static int32_t step(uint32_t count) {
        return int32_t(count * (gridDim.x / uint32_t(cute::size<0>(KernelCluster{}))));
    }

    // The unit of an index.
    CUTLASS_DEVICE int32_t unit(int32_t index) const {
        return kCanSplit ? params_.splits.div(index) : index;
    }

    // The ring position of a unit's row.
    CUTLASS_DEVICE int32_t unit_row(int32_t unit) const { return params_.columns.div(unit); }

    CUTLASS_DEVICE int32_t slice_begin(int32_t slice) const {
        return slice * params_.k_tiles + min(slice, params_.longer_slices);
    }

    Params const& params_;
    // This block's next index, unit * splits + slice, and the band that the last one was in.
    int32_t next_;
    BandCursor band_;
};

// How CUTLASS's kernel templates find the scheduler.
template <class KernelCluster, bool kTransposed, bool kCanSplit>
struct AsyncInputOrder {};

}  // namespace overlap_gemm

template <class KernelCluster, bool kTransposed, bool kCanSplit, class Arch, class TileShape, class ClusterShape,
          uint32_t kStages>
struct cutlass::gemm::kernel::detail::TileSchedulerSelector<
    overlap_gemm::AsyncInputOrder<KernelCluster, kTransposed, kCanSplit>, Arch, TileShape, ClusterShape,
    kStages> {
    using Scheduler = overlap_gemm::AsyncInputScheduler<KernelCluster, kTransposed, kCanSplit>;
};
