// A main loop for tiles of any width in steps of 8, of which one kernel may have eight: each launch says how wide its tiles
// are.
//
// What belongs here: the loop over K of the warps that multiply. CUTLASS's has one width a kernel, and few of them.
// Invariant: a launch has as many stages as fit for its width, one behind the other, A before B; a stage is released only after
// all instructions that read it have ended.
#pragma once

#include "cutlass/cutlass.h"
#include "cute/arch/mma_sm90_gmma.hpp"
#include "cute/layout.hpp"
#include "cutlass/pipeline/sm90_pipeline.hpp"

#include "wgmma_widths.cuh"

namespace overlap_gemm {

// `Tile` is the widest. kGroupsM warp groups share a tile's rows, or kGroupsN its columns; the other is 1. Stages and their
// barriers have kSpace bytes of shared memory; no tile is narrower than kLeast. kAddsSteps: each step's sums are added to the
// tile's in f32; of sums of fp8 the tensor cores keep fewer bits. An operand whose rows do not lie along K lies across it: of
// each element of K, its rows lie side by side.
template <class First, class Second, bool kFirstAcross, bool kSecondAcross, class Tile, int kGroupsM, int kGroupsN, int kSpace,
          int kLeast, bool kAddsSteps>
class MainloopOfWidths {
    static_assert(sizeof(First) == sizeof(Second));
    // A step is then as long as the host side says: 128 elements of K.
    static_assert(!kAddsSteps || cute::size<2>(Tile{}) == 128);
    static_assert(kGroupsM == 1 || kGroupsN == 1);
    static constexpr int kGroupThreads = 128;
    static constexpr int kStripRows = 64;
    // Operands lie in rows of 128 bytes; a deeper tile has kDepths such parts, one after the other.
    static constexpr int kRowBytes = 128;
    static constexpr int kTileRows = cute::size<0>(Tile{});
    static constexpr int kWidest = cute::size<1>(Tile{});
    static constexpr int kDepths = cute::size<2>(Tile{}) * int(sizeof(First)) / kRowBytes;
    static constexpr int kStrips = kTileRows / (kStripRows * kGroupsM);
    // Columns of the widest tile that one group multiplies.
    static constexpr int kPartN = kWidest / kGroupsN;
    // An operand across K lies in panels of 64 rows, each as long as a tile is deep.
    static_assert(!(kFirstAcross || kSecondAcross) || (kDepths == 1 && kLeast == kWidest && kPartN % kStripRows == 0));
    static_assert(!(kFirstAcross && kSecondAcross));
    static constexpr int kBytesA = kTileRows * kDepths * kRowBytes;

    static constexpr int stage_bytes(int width) { return (kTileRows + width) * kDepths * kRowBytes; }

    static constexpr int kBarrierBytes = 2 * sizeof(uint64_t);
    // The pattern of operands repeats so often, counted from address 0.
    static constexpr int kAlignment = 1024;

public:
    using TileShape = Tile;
    using ElementA = First;
    using ElementB = Second;
    static constexpr bool kAcrossA = kFirstAcross;
    static constexpr bool kAcrossB = kSecondAcross;

    static constexpr int kMostStages = kSpace / (stage_bytes(kLeast) + kBarrierBytes);
    static constexpr int kBytes = (kSpace - kMostStages * kBarrierBytes) / kAlignment * kAlignment;
    static constexpr int stages(int width) { return kBytes / stage_bytes(width); }
    // As many as there are barriers, and one to fill while another is read.
    static_assert(stages(kLeast) == kMostStages && stages(kWidest) >= 2);
    using MainloopPipeline = cutlass::PipelineTmaAsync<kMostStages>;
    struct TensorStorage {
        alignas(kAlignment) char stages[kBytes];
    };

    // Where a stage of A begins, and one of B. A stage's bytes are what its barrier expects.
    template <class Params>
    CUTLASS_DEVICE static uint32_t stage_of_a(TensorStorage& storage, Params const& params, int32_t stage) {
        return cute::cast_smem_ptr_to_uint(storage.stages) + uint32_t(stage) * params.tma_transaction_bytes;
    }
    template <class Params>
    CUTLASS_DEVICE static uint32_t stage_of_b(TensorStorage& storage, Params const& params, int32_t stage) {
        return stage_of_a(storage, params, stage) + kBytesA;
    }

    // Before a tile is multiplied, and before the group's turn.
    template <class Sums>
    CUTLASS_DEVICE static void begin(Sums& sums) {
        sums.clear();
        // So that the compiler clears them here, not in the group's turn.
        fence(sums);
    }

    // Multiplies a tile's steps of K, from `stage` on, which becomes the one behind them. `thread` counts the threads that
    // share the tile. Calls `issued` as soon as another group's instructions may come.
    template <class Sums, class Stage, class Params, class Issued>
    CUTLASS_DEVICE void multiply(MainloopPipeline& pipeline, Stage& stage, Sums& sums, int k_count, int thread,
                                 TensorStorage& storage, Params const& params, Issued issued) {
        static_assert(Sums::kElements == kStrips * kPartN / 2);
        int const group = kGroupsM * kGroupsN == 1 ? 0 : __shfl_sync(0xffffffff, thread / kGroupThreads, 0);
        // The same for all lanes, which the compiler now knows: else it would look up where shared memory begins in each step.
        uint32_t const first = __shfl_sync(0xffffffff, descriptor(storage.stages), 0);
        at_width<kLeast / kGroupsN, kPartN>(params.width / kGroupsN, [&](auto width_of) {
            constexpr int kWidth = decltype(width_of)::value;
            constexpr int kDepthA = kTileRows * kRowBytes, kDepthB = kWidth * kGroupsN * kRowBytes;
            constexpr int kStageBytes = (kDepthA + kDepthB) * kDepths;
            uint32_t const first_a = first + kPanels<kAcrossA> + (kGroupsM == 1 ? 0 : group * kStripRows * kRowBytes / 16);
            uint32_t const first_b =
                first + kPanels<kAcrossB> + kBytesA / 16 + (kGroupsN == 1 ? 0 : group * kWidth * kRowBytes / 16);
            auto token = pipeline.consumer_try_wait(stage);
            // Issues a step's instructions, then asks whether the next step has come: the answer comes while the caller waits.
            auto issue = [&](Sums& to) {
                pipeline.consumer_wait(stage, token);
                uint32_t const begin = uint32_t(stage.index()) * (kStageBytes / 16);
                cute::warpgroup_arrive();
                CUTLASS_PRAGMA_UNROLL
                for (int depth = 0; depth < kDepths; ++depth) {
                    CUTLASS_PRAGMA_UNROLL
                    for (int strip = 0; strip < kStrips; ++strip) {
                        int const rows_before = strip * kStripRows * kGroupsM * kRowBytes;
                        Wgmma<kWidth>::template run<First, Second, kAcrossA, kAcrossB>(
                            &to[strip * kPartN / 2], first_a + begin + (depth * kDepthA + rows_before) / 16,
                            first_b + begin + depth * kDepthB / 16);
                    }
                }
                cute::warpgroup_commit_batch();
                ++stage;
                token = pipeline.consumer_test_wait(stage);
            };
            Stage release = stage;
            if constexpr (kAddsSteps) {
                CUTLASS_PRAGMA_NO_UNROLL
                for (int k = 0; k < k_count; ++k, ++release) {
                    Sums of_step;
                    begin(of_step);
                    issue(of_step);
                    cute::warpgroup_wait<0>();
                    fence(of_step);
                    pipeline.consumer_release(release);
                    CUTLASS_PRAGMA_UNROLL
                    for (int i = 0; i < Sums::kElements; ++i) sums[i] += of_step[i];
                }
                issued();
            } else {
                fence(sums);
                CUTLASS_PRAGMA_NO_UNROLL
                for (int k = 0; k < k_count; ++k) {
                    issue(sums);
                    // All but this step's.
                    cute::warpgroup_wait<1>();
                    if (k > 0) {
                        pipeline.consumer_release(release);
                        ++release;
                    }
                }
                issued();
                cute::warpgroup_wait<0>();
                fence(sums);
                pipeline.consumer_release(release);
            }
        });
    }

private:
    // The compiler moves no use of the sums across it: instructions that run later write them.
    template <class Sums>
    CUTLASS_DEVICE static void fence(Sums& sums) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Sums::kElements; ++i) cute::warpgroup_fence_operand(sums[i]);
    }

    // Calls `f` with the width as a type. Each has a loop of its own: with the branch inside the loop, a step's instructions
    // took longer to issue than the tensor cores to execute (benches/results/2026-11-26-h200-one-loop-a-width.md).
    template <int kFrom, int kTo, class F>
    CUTLASS_DEVICE static void at_width(int width, F f) {
        if constexpr (kFrom == kTo) {
            f(cute::C<kFrom>{});
        } else {
            constexpr int kMiddle = kFrom + (kTo - kFrom) / 16 * 8;
            if (width <= kMiddle) at_width<kFrom, kMiddle>(width, f); else at_width<kMiddle + 8, kTo>(width, f);
        }
    }

    // The lower half of what the PTX manual calls a matrix descriptor: see Wgmma. Above its 18 bits an address in shared memory
    // has the block's place in its cluster, which would lie where the descriptor says how far apart panels are.
    CUTLASS_DEVICE static uint32_t descriptor(void const* operand) {
        return (1u << 16) | (cute::cast_smem_ptr_to_uint(operand) & 0x3ffff) / 16;
    }
    // What that of an operand across K has more: in the place of the 1, how far apart its panels are, in 16s of bytes.
    template <bool kAcross>
    static constexpr uint32_t kPanels = kAcross ? uint32_t(cute::size<2>(Tile{}) * kRowBytes / 16 - 1) << 16 : 0;
};

}  // namespace overlap_gemm
