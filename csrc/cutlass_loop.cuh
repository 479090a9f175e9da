// CUTLASS's own TMA main loop, for what multiply_widths.cuh leaves to it: a B of K rows, which does not lie along K.
//
// What belongs here: how it is built, and how it serves as the base of GatheringMainloop. Invariant: only the sources of
// such kernels include this file (`source` in build/table.rs): CUTLASS's headers for it take as long to compile as a kernel.
#pragma once

// Just CUTLASS's parts for Hopper: its usual headers have those of every architecture, and take a third longer to compile.
#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"
#include "cutlass/gemm/gemm.h"
#include "cutlass/detail/dependent_false.hpp"
#include "cutlass/gemm/collective/collective_mma_decl.hpp"
#include "cutlass/gemm/collective/collective_builder_decl.hpp"
#include "cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp"
#include "cutlass/gemm/collective/builders/sm90_gmma_builder.inl"

#include "gemm_sm90.cuh"

namespace overlap_gemm {

// CUTLASS's TMA main loop as it is: all stages of A, then all of B.
template <class Base>
class CutlassMainloop : public Base {
public:
    static constexpr int kMostStages = Base::DispatchPolicy::Stages;
    static int stages(int) { return kMostStages; }

    // These two as in MainloopOfWidths.
    template <class Sums>
    CUTLASS_DEVICE static void begin(Sums&) {}
    template <class Sums, class Stage, class Params, class Issued>
    CUTLASS_DEVICE void multiply(typename Base::MainloopPipeline& pipeline, Stage& stage, Sums& sums, int k_count, int thread,
                                 typename Base::TensorStorage& storage, Params const& params, Issued issued) {
        using namespace cute;
        auto own = partition_fragment_C(typename Base::TiledMma{}, take<0, 2>(typename Base::TileShape{}));
        Base::mma(pipeline, stage, own, k_count, thread, storage, params);
        issued();
        Base::mma_tail(pipeline, stage, k_count);
        static_assert(size(own) == Sums::kElements);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Sums::kElements; ++i) sums[i] = own(i);
        stage.advance(k_count);
    }

    // Where a stage of A lies, and one of B.
    template <class Params>
    CUTLASS_DEVICE static uint32_t stage_of_a(typename Base::TensorStorage& storage, Params const&, int32_t stage) {
        return shared_address(storage.smem_A) + stage * int(sizeof(storage.smem_A) / kMostStages);
    }
    template <class Params>
    CUTLASS_DEVICE static uint32_t stage_of_b(typename Base::TensorStorage& storage, Params const&, int32_t stage) {
        return shared_address(storage.smem_B) + stage * int(sizeof(storage.smem_B) / kMostStages);
    }
};

template <class Element, bool kTransposed, class Tile, class Cluster, bool kPingpong, int kOtherBytes, int kStages>
struct CutlassLoop {
    // Of both operands, in CUTLASS's names: the first is rows x K, the second K x columns, and only one of them lies along K.
    using Layout = cute::conditional_t<kTransposed, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;
    using Schedule = cute::conditional_t<kPingpong, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                                         cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
    static constexpr int kAlignment = OG_ALIGNMENT_BYTES / int(sizeof(Element));
    static constexpr int kWidth = int(cute::size<1>(Tile{}));
    // Else it would take several instructions for a strip, whose sums the store does not expect.
    static_assert(kWidth == 64 || kWidth == 128, "CUTLASS's usual header has no instruction of this width");

    using Built = typename cutlass::gemm::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, Layout, kAlignment, Element, Layout, kAlignment,
        float, Tile, Cluster, cutlass::gemm::collective::StageCountAutoCarveout<kOtherBytes>, Schedule>::CollectiveOp;
    static_assert(Built::DispatchPolicy::Stages == kStages);
    static_assert(cutlass::gemm::collective::detail::sm90_smem_capacity_bytes == kSharedCapacity);
    using Type = CutlassMainloop<Built>;
};

}  // namespace overlap_gemm
