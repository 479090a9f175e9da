// The kernel's body: what each warp of a block does, tile after tile.
//
// What belongs here: the roles of a block's warps, the shared memory and the barriers between them, and the start and the end
// of a block. One warp loads, one watches chunks; two groups of four warps multiply and store: they share each tile
// (cooperative), or each has every second tile, so that one stores while the other multiplies (ping-pong). The start is short
// on purpose: a block's first instructions come from memory, which takes longer than executing them. The loading warp, which all
// others wait for, leaves barriers and descriptors to other warps (benches/results/2026-11-30-h200-begin-and-end.txt).
// Invariant: all warps walk the tiles in the same order, so that the n-th stage filled is the n-th one read. No block of a
// cluster ends while another may write to its shared memory.
#pragma once

#include <cstddef>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cute/arch/cluster_sm90.hpp"
#include "cute/layout.hpp"
#include "cutlass/arch/reg_reconfig.h"
#include "cutlass/pipeline/sm90_pipeline.hpp"

#include "async_input_scheduler.cuh"
#include "chunk_signal.cuh"
#include "named_barriers.h"

namespace overlap_gemm {

// Two groups of warps that take turns: a group's turn ends when it lets the other have it. The first turn is the first group's.
// Group g waits at barrier `kFirst + g`, where the other arrives without waiting.
template <int kFirst, int kThreads>
struct Turns {
    // Called once, by the second group.
    CUTLASS_DEVICE static void begin() { end(1); }
    CUTLASS_DEVICE static void await(int group) { meet_group_at<kFirst, kThreads>(group == 0); }
    CUTLASS_DEVICE static void end(int group) {
        if (group == 0) arrive_at<kFirst + 1, kThreads>(); else arrive_at<kFirst, kThreads>();
    }
};

template <class Mainloop, class Store, class Scheduler, class Cluster, bool kPingpong>
class PersistentKernel {
    using Pipeline = typename Mainloop::MainloopPipeline;
    using Stage = typename Mainloop::Stage;
    using TileShape = typename Mainloop::TileShape;

    static constexpr int kGroupThreads = 128;
    static constexpr int kWarpThreads = 32;
    // Warps of the first group.
    static constexpr int kLoader = 0, kWatcher = 1, kInitializer = 2, kPrefetcher = 3;
    static constexpr int kGroups = 2;
    // How many groups share a tile. A group computes every kTileStep-th of its block's tiles.
    static constexpr int kSharingGroups = kPingpong ? 1 : kGroups;
    static constexpr int kTileStep = kGroups / kSharingGroups;
    // Else a slice that is not stored would miss its turn.
    static_assert(!kPingpong || !Scheduler::kCutsK);

    // Registers of each thread; an SM has 65536, and a thread starts with 168. Large tiles leave few to the loader.
    static constexpr int kSums = cute::size<0>(TileShape{}) * cute::size<1>(TileShape{}) / (kSharingGroups * kGroupThreads);
    static constexpr int kLoaderRegisters = kSums > 160 ? 40 : 56;
    static constexpr int kMultiplierRegisters = kSums > 160 ? 232 : 224;
    static_assert(kLoaderRegisters + kGroups * kMultiplierRegisters <= (1 + kGroups) * 168);

    using MultiplyTurns = Turns<kMultiplyTurns, kGroups * kGroupThreads>;
    using StoreTurns = Turns<kStoreTurns, kGroups * kGroupThreads>;

public:
    static constexpr int kThreads = (1 + kGroups) * kGroupThreads;

    struct Params {
        OrderParams order;
        typename Mainloop::Params mainloop;
        typename Store::Params store;
    };

    // Dynamic shared memory. Two structs, not one: `Tiles` is aligned to 1024 bytes, and one struct would be padded to that,
    // which costs some kernels a stage.
    struct Tiles {
        typename Mainloop::TensorStorage operands;
        typename Store::SharedStorage store;
    };
    struct Rest {
        typename Pipeline::SharedStorage pipeline;
        alignas(16) typename Store::Vectors vectors;
        // Must be last: see block_waits.
        alignas(16) char waits[kBlockWaitsBytes];
    };
    static constexpr int kSharedBytes = int(sizeof(Tiles) + sizeof(Rest));
    static_assert(alignof(Tiles) <= 1024 && sizeof(Tiles) % alignof(Rest) == 0);
    static_assert(offsetof(Rest, waits) + kBlockWaitsBytes == sizeof(Rest) && alignof(Rest) % alignof(BlockWaits) == 0);

    CUTLASS_DEVICE static void run(Params const& params, char* shared) {
        auto& tiles = *reinterpret_cast<Tiles*>(shared);
        auto& rest = *reinterpret_cast<Rest*>(shared + sizeof(Tiles));
        int const warp = cutlass::canonical_warp_idx_sync();
        int const group = warp / (kGroupThreads / kWarpThreads);

        Pipeline::init_barriers(rest.pipeline, pipeline_of(Pipeline::ThreadCategory::NonParticipant), Cluster{});
        if (warp == kWatcher && cute::elect_one_sync()) begin_block_waits<Mainloop::kSharers>();
        arrive_at_start();
        if (group == 0) {
            cutlass::arch::warpgroup_reg_dealloc<kLoaderRegisters>();
            if (warp == kLoader) {
                load(params, tiles, rest);
            } else if (warp == kWatcher && params.mainloop.gather.awaits_chunks) {
                watch(params);
            } else {
                if (warp == kPrefetcher && cute::elect_one_sync()) {
                    Mainloop::prefetch(params.mainloop);
                    Store::prefetch(params.store);
                }
                await_start();
            }
        } else {
            cutlass::arch::warpgroup_reg_alloc<kMultiplierRegisters>();
            multiply(params, tiles, rest, group - 1);
        }
    }

private:
    // Between these two all threads of a cluster meet: before any uses a barrier, all have been initialised. Relaxed, because
    // fences came before. A block that is alone meets at once.
    CUTLASS_DEVICE static void arrive_at_start() {
        if constexpr (cute::size(Cluster{}) > 1) {
            asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
        } else {
            __syncthreads();
        }
    }
    CUTLASS_DEVICE static void await_start() {
        if constexpr (cute::size(Cluster{}) > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }

    // Without a leader and its bytes: the main loop arrives at the barriers itself.
    CUTLASS_DEVICE static typename Pipeline::Params pipeline_of(typename Pipeline::ThreadCategory role) {
        typename Pipeline::Params pipeline;
        pipeline.role = role;
        pipeline.num_consumers = kSharingGroups * kGroupThreads;
        pipeline.initializing_warp = kInitializer;
        return pipeline;
    }

    CUTLASS_DEVICE static void load(Params const& params, Tiles& tiles, Rest& rest) {
        Pipeline pipeline(rest.pipeline, pipeline_of(Pipeline::ThreadCategory::Producer), Cluster{}, cute::false_type{},
                          cute::false_type{});
        Stage stage(params.mainloop.stages, 1);
        Mainloop mainloop;
        Scheduler scheduler(params.order);
        auto work = scheduler.current();
        await_start();
        for (uint32_t tile = 0; work.is_valid(); ++tile) {
            mainloop.load(params.mainloop, pipeline, stage, work, tiles.operands, tile);
            stage.advance(work.k_count);
            scheduler.advance(1);
            work = scheduler.current();
        }
        mainloop.load_tail(pipeline, stage);
    }

    CUTLASS_DEVICE static void watch(Params const& params) {
        Mainloop mainloop;
        Scheduler scheduler(params.order);
        auto work = scheduler.current();
        await_start();
        while (work.is_valid()) {
            mainloop.watch(params.mainloop, work);
            scheduler.advance(1);
            work = scheduler.current();
        }
    }

    CUTLASS_DEVICE static void multiply(Params const& params, Tiles& tiles, Rest& rest, int group) {
        Pipeline pipeline(rest.pipeline, pipeline_of(Pipeline::ThreadCategory::Consumer), Cluster{}, cute::false_type{},
                          cute::true_type{});
        Stage stage(params.mainloop.stages, 0);
        Mainloop mainloop;
        Store store(params.store, tiles.store, rest.vectors);
        Scheduler scheduler(params.order);
        // Counted among the threads that share a tile.
        int const thread = int(threadIdx.x) - kGroupThreads * (kPingpong ? 1 + group : 1);
        if (kPingpong && group == 1) {
            MultiplyTurns::begin();
            StoreTurns::begin();
            scheduler.advance(1);
            stage.advance(params.order.slice_steps);
        }
        auto work = scheduler.current();
        await_start();
        while (work.is_valid()) {
            if (Mainloop::is_padding(params.mainloop, work)) {
                pass(pipeline, stage, work, group);
            } else {
                cutlass::Array<float, kSums> sums;
                mainloop.begin(sums);
                if constexpr (kPingpong) MultiplyTurns::await(group);
                typename Store::Factors factors;
                mainloop.multiply(pipeline, stage, sums, work.k_count, thread, tiles.operands, params.mainloop, [&] {
                    if constexpr (kPingpong) MultiplyTurns::end(group);
                    if (!scheduler.is_sliced()) factors = store.factors(work.m, work.n, thread);
                });
                scheduler.add_slices(work, sums, kSharingGroups, kPingpong ? 0 : group);
                if (scheduler.is_stored(work)) {
                    // Row scales come with a chunk's first span of columns, and only another slice may have waited for that.
                    if (scheduler.is_sliced()) factors = store.factors(work.m, work.n, thread);
                    if constexpr (kPingpong) StoreTurns::await(group);
                    store.store(work.m, work.n, sums, factors, thread);
                    // Before the other group's tile takes the shared memory.
                    if constexpr (kPingpong) {
                        Store::wait_for_reads();
                        StoreTurns::end(group);
                    }
                }
            }
            // The other group's stages.
            if constexpr (kPingpong) stage.advance(work.k_count);
            scheduler.advance(kTileStep);
            work = scheduler.current();
        }
        // The block's shared memory must last until TMA has read it.
        Store::wait_for_reads();
    }

    // Padding is neither multiplied nor stored, which would cost power, and so clock; its stages and its turns come and go.
    template <class Work>
    CUTLASS_DEVICE static void pass(Pipeline& pipeline, Stage& stage, Work const& work, int group) {
        // Before its turn, the phases that a group waits for may be those of the other group's steps.
        if constexpr (kPingpong) MultiplyTurns::await(group);
        CUTLASS_PRAGMA_NO_UNROLL
        for (int k = 0; k < work.k_count; ++k, ++stage) {
            pipeline.consumer_wait(stage);
            // All warps have seen the step before one of them releases it. Matrix instructions keep a group's warps together; a
            // warp that came too late would wait for a phase that is over.
            meet_group_at<kPaddingBarriers, kGroupThreads>(group == 0);
            pipeline.consumer_release(stage);
        }
        if constexpr (kPingpong) {
            MultiplyTurns::end(group);
            StoreTurns::await(group);
            StoreTurns::end(group);
        }
    }
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1)
    persistent_gemm(__grid_constant__ typename Kernel::Params const params) {
    // The host's pass needs none of it, and takes longer with it.
#if defined(__CUDA_ARCH__)
    extern __shared__ __align__(1024) char smem[];
    Kernel::run(params, smem);
#endif
}

}  // namespace overlap_gemm
