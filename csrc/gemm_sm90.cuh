// The kernel template: a persistent, warp-specialised Hopper GEMM, put together from CUTLASS's parts
// and ours: the kernel's body, the order of tiles, the loads that wait, the store.
//
// What belongs here: types, layouts, tile, cluster, schedule, and the host code that fills in a
// kernel's parameters and launches it.
// Invariant: `enqueue` only encodes descriptors on the host and launches; all that asks the device,
// loads a module or allocates is in `prepare`.
//
// CUTLASS is used, not changed: `third_party/README.md` says which version.
#pragma once

#include <algorithm>

// Not all of CuTe: its tensors take longer to compile than all else that is included here.
#include "cutlass/cutlass.h"
#include "cute/layout.hpp"

#include "async_input_scheduler.cuh"
#include "gathering_mainloop.cuh"
#include "instance.h"
#include "multiply_widths.cuh"
#include "persistent_kernel.cuh"
#include "tile_store.cuh"
#include "wgmma_widths.cuh"

namespace overlap_gemm {

// The C names of the element types.
template <class T> inline constexpr og_type kTypeOf = OG_TYPE_F32;
template <> inline constexpr og_type kTypeOf<cutlass::bfloat16_t> = OG_TYPE_BF16;
template <> inline constexpr og_type kTypeOf<cutlass::half_t> = OG_TYPE_F16;
template <> inline constexpr og_type kTypeOf<cutlass::float_e4m3_t> = OG_TYPE_E4M3;
template <> inline constexpr og_type kTypeOf<cutlass::float_e5m2_t> = OG_TYPE_E5M2;

// Of a block, in bytes.
inline constexpr int kSharedCapacity = 227 * 1024;

// Tile and cluster are D's as the caller sees it. The tile is the widest along the kernel's columns, which are D's columns or,
// transposed, its rows; `kLeast` is the narrowest there: a launch has one of the widths between, in steps of 8 (16 where warp
// groups share the columns).
template <class ElementA, class ElementB, class ElementD, og_layout kLayoutB, int kTileM, int kTileN,
          int kTileK, int kClusterM, int kClusterN, bool kPingpong, bool kTransposed, bool kFast, int kLeast>
struct GemmSm90 {
    // The product as the kernel sees it: rows from its first operand. Transposed, that is B.
    using First = cute::conditional_t<kTransposed, ElementB, ElementA>;
    using Second = cute::conditional_t<kTransposed, ElementA, ElementB>;
    // B is K rows of N.
    static constexpr bool kFirstAcross = kTransposed && kLayoutB == OG_LAYOUT_KN;
    static constexpr bool kSecondAcross = !kTransposed && kLayoutB == OG_LAYOUT_KN;

    using Tile = cute::conditional_t<
        kTransposed, cute::Shape<cute::Int<kTileN>, cute::Int<kTileM>, cute::Int<kTileK>>,
        cute::Shape<cute::Int<kTileM>, cute::Int<kTileN>, cute::Int<kTileK>>>;
    using Cluster =
        cute::conditional_t<kTransposed,
                            cute::Shape<cute::Int<kClusterN>, cute::Int<kClusterM>, cute::_1>,
                            cute::Shape<cute::Int<kClusterM>, cute::Int<kClusterN>, cute::_1>>;
    static constexpr int kWidest = int(cute::size<1>(Tile{}));
    static constexpr bool kVaries = kLeast != kWidest;
    // Two groups of warps share a tile by its rows, 64 at a time; where they cannot, by its columns.
    static constexpr int kGroupsN = !kPingpong && cute::size<0>(Tile{}) % 128 != 0 ? 2 : 1;
    static constexpr int kGroupsM = kPingpong ? 1 : 2 / kGroupsN;
    static constexpr int kClusterX = int(cute::size<0>(Cluster{}));
    static constexpr int kClusterY = int(cute::size<1>(Cluster{}));

    // Shared memory: the stages of the main loop, as many as fit beside at least two buffers of the store; more buffers in what
    // the stages leave; the store's vectors, and what a block notes about its waiting.
    template <int kBuffers>
    using StoreOf = TileStore<ElementD, Tile, kTransposed, kLeast, kGroupsM, kGroupsN, kClusterN, kBuffers>;
    static constexpr int kOtherBytes =
        int(sizeof(typename StoreOf<2>::SharedStorage) + sizeof(typename StoreOf<2>::Vectors)) + kBlockWaitsBytes;
    // A stage and its two barriers. Shared memory is counted in parts of 128 bytes.
    static constexpr int kStageBytes = kTileK * (int(cute::size<0>(Tile{})) * int(sizeof(First)) + kWidest * int(sizeof(Second))) +
                                       2 * int(sizeof(uint64_t));
    static constexpr int kStages = (kSharedCapacity / 128 - (kOtherBytes + 127) / 128) * 128 / kStageBytes;
    static constexpr int kLeftBytes = kSharedCapacity - kOtherBytes - kStages * kStageBytes;
    static constexpr int kBufferBytes = int(sizeof(typename StoreOf<2>::SharedStorage)) / 2;
    using Store = StoreOf<2 + std::min(2, kLeftBytes / kBufferBytes)>;
    static constexpr int kStageSpace =
        kSharedCapacity - int(sizeof(typename Store::SharedStorage) + sizeof(typename Store::Vectors)) - kBlockWaitsBytes;

    static_assert(!kFast || sizeof(First) == 1, "16-bit operands have one kind of sums");
    static constexpr bool kAddsSteps = sizeof(First) == 1 && !kFast;
    using BaseMainloop = MainloopOfWidths<First, Second, kFirstAcross, kSecondAcross, Tile, kGroupsM, kGroupsN, kStageSpace,
                                          kLeast, kAddsSteps>;
    using Mainloop = GatheringMainloop<BaseMainloop, Cluster, kTransposed, kVaries>;

    // Ping-pong kernels know no slices of K, and large outputs need none.
    static constexpr bool kCanSplit = !kPingpong && kTileM * kTileN <= 128 * 128;
    static_assert(!kVaries || !kCanSplit, "slices leave the sums of the widest tile, which is more than the workspace holds");
    static constexpr int kMaxSplits = kCanSplit ? OG_MAX_SPLITS : 1;

    using Kernel = PersistentKernel<Mainloop, Store, AsyncInputScheduler<Cluster, kTransposed, kCanSplit>, Cluster, kPingpong>;
    static_assert(Kernel::kSharedBytes <= kSharedCapacity);

    // The limit of CUDA 12.1 and later; the tables alone take 3 KB.
    static_assert(sizeof(typename Kernel::Params) <= 32764, "kernel parameters are limited");
    static_assert(offsetof(EpilogueParams<ElementD>, records) + sizeof(void*) <= kLineBytes);

    // With tiles of that width.
    static constexpr og_kernel_facts facts(char const* name, int width) {
        return {name,
                kTypeOf<ElementA>,
                kTypeOf<ElementB>,
                kTypeOf<ElementD>,
                kLayoutB,
                kTransposed ? width : kTileM,
                kTransposed ? kTileN : width,
                kTileK,
                kClusterM,
                kClusterN,
                kPingpong,
                kTransposed,
                kFast,
                kMaxSplits,
                Store::adds_others(width),
                Store::gates(width)};
    }

    static OrderParams order(Launch const& launch, og_kernel_facts const& kernel) {
        og_gemm_shape const& shape = launch.plan.shape;
        int32_t const k_steps = int32_t(UnitGrid::ceil_div(shape.k, kTileK));
        OrderParams order = make_order(launch.input, int32_t(launch.rows), int32_t(shape.n), kernel.tile_m * kClusterM,
                                       kernel.tile_n * kClusterN, shape.swizzle, k_steps, shape.splits);
        // Of the planned rows: with fewer rows there would be fewer counters, and sums where the next call
        // with more rows looks for counters that are zero.
        SplitWorkspace workspace(kernel, UnitGrid(kernel, shape.m, shape.n), shape.splits);
        auto* bytes = static_cast<char*>(launch.workspace);
        order.counters = reinterpret_cast<uint32_t*>(bytes);
        order.partials = reinterpret_cast<float*>(bytes + workspace.counter_bytes);
        return order;
    }

    static GatherParams gather(Launch const& launch, RecordTable const& records) {
        GatherParams gather{};
        gather.records = records;
        gather.m = int32_t(launch.rows);
        gather.b_is_there = launch.operands.b_is_there != 0;
        gather.awaits_chunks = launch.input && launch.input->signals;
        gather.awaits_begun = launch.input && launch.input->begun;
        gather.k_steps = int32_t(UnitGrid::ceil_div(launch.plan.shape.k, kTileK));
        static_assert(OG_SPAN_UNIT_BYTES % Mainloop::kRowBytes == 0);
        if (launch.input && launch.input->span_bits > 0) gather.span_steps = launch.input->span_bytes / Mainloop::kRowBytes;
        gather.is_plain = !gather.b_is_there && !gather.awaits_chunks && !records.records;
        return gather;
    }

    static EpilogueParams<ElementD> epilogue(Launch const& launch, RecordTable const& records, int width) {
        og_gemm_operands const& o = launch.operands;
        EpilogueParams<ElementD> p{};
        p.width = width;
        p.scale_a = o.scale_a;
        p.scale_b = o.scale_b;
        p.bias = static_cast<AddendOf<ElementD> const*>(o.bias);
        p.c = static_cast<AddendOf<ElementD> const*>(o.c);
        p.scale_d = o.scale_d;
        p.amax_d = reinterpret_cast<uint32_t*>(o.amax_d);
        p.ldc = launch.plan.shape.ldc;
        p.alpha = o.alpha;
        p.beta = o.beta;
        p.activation = o.activation;
        p.scale_a_per_row = o.scale_a && o.scale_a_per_row;
        p.scale_b_per_column = o.scale_b && o.scale_b_per_column;
        p.has_vectors = p.scale_a_per_row || p.scale_b_per_column || p.bias;
        p.can_stop = launch.input != nullptr;
        p.gated = launch.plan.shape.gated != 0;
        p.records = records;
        return p;
    }

    static typename Kernel::Params params(Launch const& launch, og_kernel_facts const& kernel) {
        og_gemm_shape const& shape = launch.plan.shape;
        RecordTable records{};
        records.records = launch.records;
        records.tiles_m = int32_t(UnitGrid::ceil_div(launch.rows, kernel.tile_m));
        records.tiles_n = int32_t(UnitGrid::ceil_div(shape.n, kernel.tile_n));
        records.splits = shape.splits;

        Operand const a{"A", launch.operands.a, launch.rows, shape.lda};
        Operand const b{"B", launch.operands.b, shape.n, shape.ldb};
        int const width = kTransposed ? kernel.tile_m : kernel.tile_n;
        return {order(launch, kernel),
                Mainloop::encode(kTransposed ? b : a, kTransposed ? a : b, shape.k, make_chunk_table(launch.input),
                                 gather(launch, records), width),
                Store::encode(epilogue(launch, records, width), launch.operands.others, launch.operands.d, shape.ldd,
                              launch.rows, shape.n)};
    }

    // How the kernel is launched: the same for the occupancy question and for the launch itself.
    struct LaunchConfig {
        cudaLaunchAttribute attributes[2]{};
        cudaLaunchConfig_t config{};

        LaunchConfig(int clusters, cudaStream_t stream) {
            attributes[0].id = cudaLaunchAttributeClusterDimension;
            attributes[0].val.clusterDim.x = kClusterX;
            attributes[0].val.clusterDim.y = kClusterY;
            attributes[0].val.clusterDim.z = 1;
            // Blocks may start while the kernel before this one ends (dependents.cuh).
            attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            attributes[1].val.programmaticStreamSerializationAllowed = 1;
            config.gridDim = dim3(unsigned(clusters) * kClusterX, kClusterY, 1);
            config.blockDim = dim3(Kernel::kThreads, 1, 1);
            config.dynamicSmemBytes = Kernel::kSharedBytes;
            config.stream = stream;
            config.attrs = attributes;
            config.numAttrs = 2;
        }
        LaunchConfig(LaunchConfig const&) = delete;
    };

    static int prepare() {
        auto kernel = persistent_gemm<Kernel>;
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   Kernel::kSharedBytes),
              "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)");
        // Not SMs / cluster size: a GPC with an odd number of SMs leaves one over, and a grid with
        // more clusters than fit would run its last tiles after all others.
        LaunchConfig launch(1, nullptr);
        launch.config.numAttrs = 1;
        int clusters = 0;
        check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch.config),
              "cudaOccupancyMaxActiveClusters");
        return clusters;
    }

    template <int kWidth>
    static void enqueue(Launch const& launch) {
        static constexpr og_kernel_facts kernel = facts("", kWidth);
        UnitGrid units(kernel, launch.rows, launch.plan.shape.n);
        auto params = GemmSm90::params(launch, kernel);
        int64_t work = units.count() * launch.plan.shape.splits;
        int clusters = int(std::min<int64_t>(work, launch.plan.cluster_count));
        LaunchConfig config(clusters, launch.stream);
        void* kernel_args[] = {&params};
        check(cudaLaunchKernelExC(&config.config,
                                  reinterpret_cast<void const*>(persistent_gemm<Kernel>),
                                  kernel_args),
              "cudaLaunchKernelExC");
    }

    template <int kWidth>
    static constexpr Instance instance(char const* name) {
        static_assert(kLeast <= kWidth && kWidth <= kWidest && (kWidest - kWidth) % (8 * kGroupsN) == 0);
        return Instance{facts(name, kWidth), &prepare, &enqueue<kWidth>};
    }
};

}  // namespace overlap_gemm
