// The kernel template: a persistent, warp-specialised Hopper GEMM, put together from CUTLASS parts.
//
// What belongs here: types, layouts, tile, cluster, epilogue, and the host code that fills in the
// kernel's arguments. One producer warp fetches A and B by TMA, two consumer warp groups share an
// output tile (wgmma, f32 accumulators) and store it by TMA.
// Invariant: `enqueue` only encodes descriptors on the host and launches; whatever asks the device,
// loads a module or allocates is in `prepare`.
//
// CUTLASS is used, not changed: `third_party/README.md` says which version.
#pragma once

#include <cstring>

#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/device_kernel.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/kernel_hardware_info.hpp"

#include "instance.h"

namespace overlap_gemm {

// D = A * B^T: both operands have K contiguous, so A is row-major and B, seen as K x N, column-major.
// No source matrix C (void), so the epilogue spends no shared memory on one.
template <class Element, class TileShape, class ClusterShape>
struct GemmSm90 {
    static constexpr int kAlignment = OG_ALIGNMENT_BYTES / int(sizeof(Element));
    using LayoutA = cutlass::layout::RowMajor;
    using LayoutB = cutlass::layout::ColumnMajor;
    using LayoutD = cutlass::layout::RowMajor;
    using Accumulator = float;

    using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape,
        cutlass::epilogue::collective::EpilogueTileAuto, Accumulator, Accumulator, void, LayoutD,
        kAlignment, Element, LayoutD, kAlignment,
        cutlass::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;

    // As many pipeline stages as the epilogue leaves shared memory for.
    using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, LayoutA, kAlignment, Element,
        LayoutB, kAlignment, Accumulator, TileShape, ClusterShape,
        cutlass::gemm::collective::StageCountAutoCarveout<int(
            sizeof(typename Epilogue::SharedStorage))>,
        cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;

    using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop,
                                                        Epilogue, cutlass::gemm::PersistentScheduler>;

    static constexpr int kTileM = int(cute::size<0>(TileShape{}));
    static constexpr int kTileN = int(cute::size<1>(TileShape{}));
    static constexpr int kClusterSize = int(cute::size(ClusterShape{}));

    static typename Kernel::Arguments arguments(og_gemm_params const& p, og_gemm_plan const& plan) {
        auto a = static_cast<Element const*>(p.a);
        auto b = static_cast<Element const*>(p.b);
        auto d = static_cast<Element*>(p.d);
        // A stride is (row pitch, 1, batch pitch); there is one batch.
        typename Kernel::StrideA stride_a{p.lda, cute::Int<1>{}, 0};
        typename Kernel::StrideB stride_b{p.ldb, cute::Int<1>{}, 0};
        typename Kernel::StrideD stride_d{p.ldd, cute::Int<1>{}, 0};
        typename Kernel::Arguments args{};
        args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
        args.problem_shape = cute::make_shape(int(p.m), int(p.n), int(p.k), 1);
        args.mainloop = {a, stride_a, b, stride_b};
        args.epilogue.ptr_D = d;
        args.epilogue.dD = stride_d;
        args.hw_info.sm_count = plan.sm_count;
        args.hw_info.max_active_clusters = plan.cluster_count;
        return args;
    }

    // How the kernel is launched: the same for the occupancy question and for the launch itself.
    struct Launch {
        cudaLaunchAttribute cluster{};
        cudaLaunchConfig_t config{};

        Launch(dim3 grid, cudaStream_t stream) {
            cluster.id = cudaLaunchAttributeClusterDimension;
            cluster.val.clusterDim.x = cute::size<0>(ClusterShape{});
            cluster.val.clusterDim.y = cute::size<1>(ClusterShape{});
            cluster.val.clusterDim.z = cute::size<2>(ClusterShape{});
            config.gridDim = grid;
            config.blockDim = Kernel::get_block_shape();
            config.dynamicSmemBytes = Kernel::SharedStorageSize;
            config.stream = stream;
            config.attrs = &cluster;
            config.numAttrs = 1;
        }
        Launch(Launch const&) = delete;
    };

    static int prepare(og_gemm_params const& params, og_gemm_plan& plan) {
        auto kernel = cutlass::device_kernel<Kernel>;
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   Kernel::SharedStorageSize),
              "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)");
        // Not SMs / cluster size: a GPC with an odd number of SMs leaves one over, and a grid with
        // more clusters than fit would run its last tiles after all others.
        Launch launch(dim3(cute::size<0>(ClusterShape{}), cute::size<1>(ClusterShape{}),
                           cute::size<2>(ClusterShape{})),
                      nullptr);
        int clusters = 0;
        check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch.config),
              "cudaOccupancyMaxActiveClusters");
        plan.workspace_bytes = Kernel::get_workspace_size(arguments(params, plan));
        return clusters;
    }

    // CUTLASS only prints when the driver refuses a descriptor, and leaves zeros behind; a kernel
    // that reads such a descriptor faults. So look.
    static void check_descriptor(cute::TmaDescriptor const* descriptor, char const* matrix) {
        static constexpr cute::TmaDescriptor zeros{};
        if (std::memcmp(descriptor, &zeros, sizeof zeros) == 0) {
            throw Failure(OG_STATUS_CUDA, std::string("cuTensorMapEncodeTiled: the driver refused "
                                                      "the TMA descriptor of ") +
                                              matrix);
        }
    }

    // The launch is written out, not left to CUTLASS's adapter, which swallows CUDA's error code.
    static void enqueue(og_gemm_params const& params, og_gemm_plan const& plan, void* workspace,
                        cudaStream_t stream) {
        auto args = arguments(params, plan);
        auto status = Kernel::initialize_workspace(args, workspace, stream);
        if (status != cutlass::Status::kSuccess) {
            throw Failure(OG_STATUS_INTERNAL, std::string("CUTLASS initialize_workspace: ") +
                                                  cutlass::cutlassGetStatusString(status));
        }
        auto kernel_params = Kernel::to_underlying_arguments(args, workspace);
        check_descriptor(kernel_params.mainloop.tma_load_a.get_tma_descriptor(), "A");
        check_descriptor(kernel_params.mainloop.tma_load_b.get_tma_descriptor(), "B");
        check_descriptor(kernel_params.epilogue.tma_store_d.get_tma_descriptor(), "D");
        Launch launch(Kernel::get_grid_shape(kernel_params), stream);
        void* kernel_args[] = {&kernel_params};
        check(cudaLaunchKernelExC(&launch.config,
                                  reinterpret_cast<void const*>(cutlass::device_kernel<Kernel>),
                                  kernel_args),
              "cudaLaunchKernelExC");
    }

    static constexpr Instance instance(char const* name) {
        return Instance{name, kTileM, kTileN, kClusterSize, &prepare, &enqueue};
    }
};

}  // namespace overlap_gemm
