// A main loop for tiles of any width in steps of 8, of which one kernel may have eight: each launch says how wide its tiles are.
//
// What belongs here: the loop over K of the warps that multiply, in the place of CUTLASS's. Many widths fill the GPU's 132 SMs
// at many shapes.
// Invariant: shared memory is laid out for the widest tile, so that no address of this loop depends on the width, but for where a
// group's columns begin; a stage is released only after all instructions that read it have ended.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"

#include "wgmma_widths.cuh"

namespace overlap_gemm {

// `Base` is one of CUTLASS's main loops for the widest tile, with both operands along K. kGroupsM warp groups share a
// tile's rows, or kGroupsN its columns; the other is 1.
template <class Base, int kGroupsM, int kGroupsN>
class MainloopOfWidths : public Base {
    static_assert(kGroupsM == 1 || kGroupsN == 1);
    static constexpr int kGroupThreads = 128;
    static constexpr int kStripRows = 64;
    // Operands lie in rows of 128 bytes; a deeper tile has kDepths such parts, one after the other.
    static constexpr int kRowBytes = 128;
    static constexpr int kTileRows = cute::size<0>(typename Base::TileShape{});
    static constexpr int kWidest = cute::size<1>(typename Base::TileShape{});
    static constexpr int kDepths = cute::size<2>(typename Base::TileShape{}) * int(sizeof(typename Base::ElementA)) / kRowBytes;
    static constexpr int kStrips = kTileRows / (kStripRows * kGroupsM);
    // Columns of the widest tile that one group multiplies.
    static constexpr int kPartN = kWidest / kGroupsN;
    using Instructions = WgmmaOfWidths<kPartN>;

public:
    // `params` has the `width`. Leaves the last stage to CUTLASS's `mma_tail`.
    template <class Sums, class Params>
    CUTLASS_DEVICE void mma(typename Base::MainloopPipeline pipeline, typename Base::PipelineState stage, Sums& sums,
                            int k_count, int thread, typename Base::TensorStorage& storage, Params const& params) {
        static_assert(cute::size(Sums{}) == kStrips * kPartN / 2);
        int const group = kGroupsM * kGroupsN == 1 ? 0 : __shfl_sync(0xffffffff, thread / kGroupThreads, 0);
        int32_t const width = params.width / kGroupsN;
        uint64_t const all_a = descriptor(storage.smem_A.data()) + (kGroupsM == 1 ? 0 : group * kStripRows * kRowBytes / 16);
        uint64_t const all_b = descriptor(storage.smem_B.data()) + (kGroupsN == 1 ? 0 : group * width * kRowBytes / 16);
        auto release = stage;
        auto token = pipeline.consumer_try_wait(stage);
        cute::warpgroup_fence_operand(sums);
        CUTLASS_PRAGMA_NO_UNROLL
        for (int k = 0; k < k_count; ++k) {
            pipeline.consumer_wait(stage, token);
            uint64_t const a = all_a + stage.index() * (kDepths * kTileRows * kRowBytes / 16);
            uint64_t const b = all_b + stage.index() * (kDepths * kWidest * kRowBytes / 16);
            CUTLASS_PRAGMA_UNROLL
            for (int depth = 0; depth < kDepths; ++depth) {
                CUTLASS_PRAGMA_UNROLL
                for (int strip = 0; strip < kStrips; ++strip) {
                    int const row = depth * kTileRows + strip * kStripRows * kGroupsM;
                    Instructions::template run<typename Base::ElementA, typename Base::ElementB>(
                        &sums(strip * kPartN / 2), a + row * kRowBytes / 16, b + depth * kWidest * kRowBytes / 16,
                        depth > 0 || k > 0, width);
                }
            }
            ++stage;
            // Asked before the wait below, whose time hides the answer's.
            token = pipeline.consumer_test_wait(stage);
            // All but this step's.
            cute::warpgroup_wait<kDepths * kStrips>();
            if (k > 0) {
                pipeline.consumer_release(release);
                ++release;
            }
        }
        cute::warpgroup_fence_operand(sums);
    }

private:
    // Rows of 128 bytes in the pattern that repeats every eight of them, as the PTX manual encodes it.
    CUTLASS_DEVICE static uint64_t descriptor(void const* operand) {
        return (uint64_t(1) << 62) | (uint64_t(8 * kRowBytes / 16) << 32) | (uint64_t(1) << 16) |
               (cute::cast_smem_ptr_to_uint(operand) / 16);
    }
};

}  // namespace overlap_gemm
