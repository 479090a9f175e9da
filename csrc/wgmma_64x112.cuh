// The 112 columns wide matrix instruction, and a CUTLASS main loop that uses it.
//
// Tiles 112 columns wide cut N = 3584 = 32 * 112 (and every multiple of 7 * 16) so that 1024 rows
// make 256 tiles: nearly two for each of 132 SMs, where 128 columns leave an eighth of the GPU idle.
// CUTLASS has this instruction too, in a header of all widths that takes minutes to compile.
//
// Invariant: what is described here to CuTe (who holds which sum, how operands lie) is what the PTX
// manual says of wgmma m64nNk16 and m64nNk32 for every N.
#pragma once

#include "cute/tensor.hpp"
#include "cute/atom/mma_traits_sm90_gmma.hpp"
#include "cutlass/gemm/collective/collective_mma.hpp"
#include "cutlass/numeric_types.h"

namespace overlap_gemm {

// Both operands in shared memory; sums in 56 registers of each of 128 threads.
template <class ElementA, class ElementB, cute::GMMA::Major kMajorA, cute::GMMA::Major kMajorB>
struct Wgmma64x112 {
    // How CuTe sees the registers of one thread.
    using DRegisters = void;
    using ARegisters = uint64_t[1];
    using BRegisters = uint64_t[1];
    using CRegisters = float[56];
};

#define OG_SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OG_SUMS_28(d, i)                                                                          \
    OG_SUMS_4(d, i), OG_SUMS_4(d, i + 4), OG_SUMS_4(d, i + 8), OG_SUMS_4(d, i + 12),              \
        OG_SUMS_4(d, i + 16), OG_SUMS_4(d, i + 20), OG_SUMS_4(d, i + 24)
// `kind` is the shape's K and the operands' types; `tail` what follows the input scales (1, 1).
#define OG_WGMMA_112(d, kind, tail, a, b, accumulate, ...)                                        \
    asm volatile(                                                                                 \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %58, 0;\n"                                             \
        "wgmma.mma_async.sync.aligned.m64n112" kind " {"                                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "   \
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "   \
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "   \
        "%53, %54, %55}, %56, %57, p, 1, 1" tail ";\n}\n"                                         \
        : OG_SUMS_28(d, 0), OG_SUMS_28(d, 28)                                                     \
        : "l"(a), "l"(b), "r"(int32_t(accumulate)), ##__VA_ARGS__)

template <class A, class ExpectedA, class B, class ExpectedB>
inline constexpr bool kAre = cute::is_same_v<A, ExpectedA> && cute::is_same_v<B, ExpectedB>;

// Called by CuTe's MMA_Atom, found by the namespace of the instruction.
template <class ElementA, class ElementB, cute::GMMA::Major kMajorA, cute::GMMA::Major kMajorB,
          class TD, class LD, class TA, class LA, class TB, class LB, class TC, class LC>
CUTE_HOST_DEVICE void mma_unpack(
    cute::MMA_Traits<Wgmma64x112<ElementA, ElementB, kMajorA, kMajorB>> const& traits,
    cute::Tensor<TD, LD>& sums, cute::Tensor<TA, LA> const& a, cute::Tensor<TB, LB> const& b,
    cute::Tensor<TC, LC> const&) {
    static_assert(cute::size(LD{}) == 56 && cute::is_same_v<typename TD::value_type, float>);
#if defined(CUTE_ARCH_MMA_SM90A_ENABLED)
    uint64_t desc_a = cute::recast<uint64_t>(a)(0);
    uint64_t desc_b = cute::recast<uint64_t>(b)(0);
    float* r = &sums(0);
    using cutlass::bfloat16_t;
    using cutlass::float_e4m3_t;
    using cutlass::float_e5m2_t;
    using cutlass::half_t;
    if constexpr (kAre<ElementA, bfloat16_t, ElementB, bfloat16_t>) {
        OG_WGMMA_112(r, "k16.f32.bf16.bf16", ", %59, %60", desc_a, desc_b, traits.accumulate_,
                     "n"(int32_t(kMajorA)), "n"(int32_t(kMajorB)));
    } else if constexpr (kAre<ElementA, half_t, ElementB, half_t>) {
        OG_WGMMA_112(r, "k16.f32.f16.f16", ", %59, %60", desc_a, desc_b, traits.accumulate_,
                     "n"(int32_t(kMajorA)), "n"(int32_t(kMajorB)));
    } else if constexpr (kAre<ElementA, float_e4m3_t, ElementB, float_e4m3_t>) {
        OG_WGMMA_112(r, "k32.f32.e4m3.e4m3", "", desc_a, desc_b, traits.accumulate_);
    } else if constexpr (kAre<ElementA, float_e4m3_t, ElementB, float_e5m2_t>) {
        OG_WGMMA_112(r, "k32.f32.e4m3.e5m2", "", desc_a, desc_b, traits.accumulate_);
    } else {
        static_assert(kAre<ElementA, float_e5m2_t, ElementB, float_e4m3_t>, "unknown types");
        OG_WGMMA_112(r, "k32.f32.e5m2.e4m3", "", desc_a, desc_b, traits.accumulate_);
    }
#else
    CUTE_INVALID_CONTROL_PATH("wgmma needs sm_90a");
#endif
}

#undef OG_WGMMA_112
#undef OG_SUMS_28
#undef OG_SUMS_4

// CUTLASS's main loop with this instruction in the place of the one its builder has chosen.
template <class Mainloop, bool kReplace>
struct MainloopWith112 {
    using Type = Mainloop;
};

template <class Policy, class Tile, class ElementA, class StrideA, class ElementB, class StrideB,
          class TiledMma, class... Copies>
struct MainloopWith112<cutlass::gemm::collective::CollectiveMma<
                           Policy, Tile, ElementA, StrideA, ElementB, StrideB, TiledMma, Copies...>,
                       true> {
    static constexpr cute::GMMA::Major kMajorA = cutlass::gemm::detail::is_major<0, StrideA>()
                                                     ? cute::GMMA::Major::MN
                                                     : cute::GMMA::Major::K;
    static constexpr cute::GMMA::Major kMajorB = cutlass::gemm::detail::is_major<0, StrideB>()
                                                     ? cute::GMMA::Major::MN
                                                     : cute::GMMA::Major::K;
    using Atom = cute::MMA_Atom<Wgmma64x112<ElementA, ElementB, kMajorA, kMajorB>>;
    // One warp group a 64-row strip, as many as the builder wanted.
    using Groups = cute::Layout<cute::Shape<cute::Int<cute::size(TiledMma{}) / 128>, cute::_1, cute::_1>>;
    using Type = cutlass::gemm::collective::CollectiveMma<
        Policy, Tile, ElementA, StrideA, ElementB, StrideB,
        decltype(cute::make_tiled_mma(Atom{}, Groups{})), Copies...>;
};

}  // namespace overlap_gemm

template <class ElementA, class ElementB, cute::GMMA::Major kMajorA, cute::GMMA::Major kMajorB>
struct cute::MMA_Traits<overlap_gemm::Wgmma64x112<ElementA, ElementB, kMajorA, kMajorB>> {
    using ValTypeD = float;
    using ValTypeA = ElementA;
    using ValTypeB = ElementB;
    using ValTypeC = float;
    using FrgTypeA = GMMA::smem_desc<kMajorA>;
    using FrgTypeB = GMMA::smem_desc<kMajorB>;
    // One instruction reads 32 bytes of each row of an operand.
    static constexpr int kDepth = 32 / int(sizeof(ElementA));
    using Shape_MNK = Shape<_64, Int<112>, Int<kDepth>>;
    using ThrID = Layout<_128>;
    using ALayout = GMMA::ABLayout<64, kDepth>;
    using BLayout = GMMA::ABLayout<112, kDepth>;
    using CLayout = GMMA::CLayout_64xN<112>;
    GMMA::ScaleOut accumulate_ = GMMA::ScaleOut::One;
};
