// Matrix instructions of the widths that CUTLASS's usual header leaves out, and a CUTLASS main loop that uses one.
//
// Tiles of many widths fill the GPU's 132 SMs at many shapes: 112 columns cut N = 3584 = 32 * 112 so that 1024 rows
// make 256 tiles, nearly two for each SM, where 128 columns leave an eighth of the GPU idle. CUTLASS has all widths,
// too, in a header that takes minutes to compile.
//
// A kernel may also have several widths (multiply_widths.cuh): then each launch says which of four it uses.
//
// Invariant: what is described here to CuTe (who holds which sum, how operands lie) is what the PTX manual says of
// wgmma m64nNk16 and m64nNk32 for every N. A width is one line: see the end of the first part.
#pragma once

#include "cute/tensor.hpp"
#include "cute/atom/mma_traits_sm90_gmma.hpp"
#include "cutlass/gemm/collective/collective_mma_decl.hpp"
#include "cutlass/numeric_types.h"

namespace overlap_gemm {

// Both operands in shared memory; sums in kWidth / 2 registers of each of 128 threads.
template <int kWidth, class ElementA, class ElementB, cute::GMMA::Major kMajorA, cute::GMMA::Major kMajorB>
struct Wgmma64xN {
    // How CuTe sees the registers of one thread.
    using DRegisters = void;
    using ARegisters = uint64_t[1];
    using BRegisters = uint64_t[1];
    using CRegisters = float[kWidth / 2];
};

// The names of the sums' registers, and the sums as operands: 16 columns are eight of each.
#define OG_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define OG_NAMES_32 OG_NAMES_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define OG_NAMES_48 OG_NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define OG_NAMES_64 OG_NAMES_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define OG_NAMES_80 OG_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define OG_NAMES_96 OG_NAMES_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define OG_NAMES_112 OG_NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define OG_NAMES_128 OG_NAMES_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define OG_NAMES_144 OG_NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define OG_NAMES_160 OG_NAMES_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define OG_NAMES_176 OG_NAMES_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define OG_NAMES_192 OG_NAMES_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define OG_NAMES_208 OG_NAMES_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define OG_NAMES_224 OG_NAMES_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define OG_NAMES_240 OG_NAMES_224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define OG_NAMES_256 OG_NAMES_240 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define OG_SUMS_8(d, i)                                                                                         \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define OG_SUMS_16(d) OG_SUMS_8(d, 0)
#define OG_SUMS_32(d) OG_SUMS_16(d), OG_SUMS_8(d, 8)
#define OG_SUMS_48(d) OG_SUMS_32(d), OG_SUMS_8(d, 16)
#define OG_SUMS_64(d) OG_SUMS_48(d), OG_SUMS_8(d, 24)
#define OG_SUMS_80(d) OG_SUMS_64(d), OG_SUMS_8(d, 32)
#define OG_SUMS_96(d) OG_SUMS_80(d), OG_SUMS_8(d, 40)
#define OG_SUMS_112(d) OG_SUMS_96(d), OG_SUMS_8(d, 48)
#define OG_SUMS_128(d) OG_SUMS_112(d), OG_SUMS_8(d, 56)
#define OG_SUMS_144(d) OG_SUMS_128(d), OG_SUMS_8(d, 64)
#define OG_SUMS_160(d) OG_SUMS_144(d), OG_SUMS_8(d, 72)
#define OG_SUMS_176(d) OG_SUMS_160(d), OG_SUMS_8(d, 80)
#define OG_SUMS_192(d) OG_SUMS_176(d), OG_SUMS_8(d, 88)
#define OG_SUMS_208(d) OG_SUMS_192(d), OG_SUMS_8(d, 96)
#define OG_SUMS_224(d) OG_SUMS_208(d), OG_SUMS_8(d, 104)
#define OG_SUMS_240(d) OG_SUMS_224(d), OG_SUMS_8(d, 112)
#define OG_SUMS_256(d) OG_SUMS_240(d), OG_SUMS_8(d, 120)

template <class A, class ExpectedA, class B, class ExpectedB>
inline constexpr bool kAre = cute::is_same_v<A, ExpectedA> && cute::is_same_v<B, ExpectedB>;

// One instruction for each pair of element types; a width has a specialisation of it.
template <int kWidth>
struct Wgmma;

// `kind` is the shape's K and the operands' types; `tail` what follows the input scales (1, 1).
#define OG_WGMMA(width, a_name, b_name, p_name, kind, tail, ...)                                     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p_name ", 0;\n"                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #width kind " {" OG_NAMES_##width "}, " a_name  \
                 ", " b_name ", p, 1, 1" tail ";\n}\n"                                               \
                 : OG_SUMS_##width(d)                                                                \
                 : "l"(a), "l"(b), "r"(accumulate), ##__VA_ARGS__)

// The names are those of the operands behind the sums: the descriptors of A and B, whether to add to the sums, and
// (16-bit types only) whether neighbours in A, and in B, are neighbours along the rows and columns of D, not along K.
#define OG_WGMMA_WIDTH(width, a_name, b_name, p_name, major_a_name, major_b_name)                    \
    template <>                                                                                      \
    struct Wgmma<width> {                                                                            \
        template <class A, class B, int kMajorA, int kMajorB>                                        \
        CUTE_HOST_DEVICE static void run(float* d, uint64_t a, uint64_t b, int32_t accumulate) {     \
            using namespace cutlass;                                                                 \
            if constexpr (kAre<A, bfloat16_t, B, bfloat16_t>) {                                      \
                OG_WGMMA(width, a_name, b_name, p_name, "k16.f32.bf16.bf16",                         \
                         ", " major_a_name ", " major_b_name, "n"(kMajorA), "n"(kMajorB));           \
            } else if constexpr (kAre<A, half_t, B, half_t>) {                                       \
                OG_WGMMA(width, a_name, b_name, p_name, "k16.f32.f16.f16",                           \
                         ", " major_a_name ", " major_b_name, "n"(kMajorA), "n"(kMajorB));           \
            } else if constexpr (kAre<A, float_e4m3_t, B, float_e4m3_t>) {                           \
                OG_WGMMA(width, a_name, b_name, p_name, "k32.f32.e4m3.e4m3", "");                    \
            } else if constexpr (kAre<A, float_e4m3_t, B, float_e5m2_t>) {                           \
                OG_WGMMA(width, a_name, b_name, p_name, "k32.f32.e4m3.e5m2", "");                    \
            } else {                                                                                 \
                static_assert(kAre<A, float_e5m2_t, B, float_e4m3_t>, "unknown types");              \
                OG_WGMMA(width, a_name, b_name, p_name, "k32.f32.e5m2.e4m3", "");                    \
            }                                                                                        \
        }                                                                                            \
    };

OG_WGMMA_WIDTH(48, "%24", "%25", "%26", "%27", "%28")
OG_WGMMA_WIDTH(80, "%40", "%41", "%42", "%43", "%44")
OG_WGMMA_WIDTH(112, "%56", "%57", "%58", "%59", "%60")
OG_WGMMA_WIDTH(144, "%72", "%73", "%74", "%75", "%76")
OG_WGMMA_WIDTH(160, "%80", "%81", "%82", "%83", "%84")
OG_WGMMA_WIDTH(176, "%88", "%89", "%90", "%91", "%92")
OG_WGMMA_WIDTH(208, "%104", "%105", "%106", "%107", "%108")
OG_WGMMA_WIDTH(224, "%112", "%113", "%114", "%115", "%116")
OG_WGMMA_WIDTH(240, "%120", "%121", "%122", "%123", "%124")

// The instructions of four widths: one launch has one width, and the branch is the same for all threads. It is inside one
// `asm`, so that all widths use the same registers: where the compiler sees sums that meet behind a branch, it waits for every
// instruction (C7511, C7515). The fence and the commit are behind the branch, too, or each instruction would be a group.
template <int kWidest>
struct WgmmaOfWidths;

// All that 128 bytes of K need: four instructions, of which the first may begin the sums.
#define OG_WGMMA_STEP(width, kind, tail)                                                                \
    "wgmma.fence.sync.aligned;\n"                                                                       \
    OG_WGMMA_LINE(width, kind, "a0, b0, begun", tail) OG_WGMMA_LINE(width, kind, "a1, b1, always", tail) \
    OG_WGMMA_LINE(width, kind, "a2, b2, always", tail) OG_WGMMA_LINE(width, kind, "a3, b3, always", tail) \
    "wgmma.commit_group.sync.aligned;\n"
#define OG_WGMMA_LINE(width, kind, operands, tail) \
    "wgmma.mma_async.sync.aligned.m64n" #width kind " {" OG_NAMES_##width "}, " operands ", 1, 1" tail ";\n"

// Both operands lie along K, in rows of 128 bytes: an instruction reads 32 of them, and descriptors count 16s.
#define OG_WGMMA_BRANCH(w0, w1, w2, w3, a_name, b_name, p_name, width_name, kind, tail)                 \
    asm volatile("{\n.reg .pred begun, always, is;\n.reg .b64 a0, a1, a2, a3, b0, b1, b2, b3;\n"       \
                 "setp.ne.b32 begun, " p_name ", 0;\nsetp.eq.b32 always, " p_name ", " p_name ";\n"     \
                 "mov.b64 a0, " a_name ";\nadd.s64 a1, a0, 2;\nadd.s64 a2, a0, 4;\nadd.s64 a3, a0, 6;\n" \
                 "mov.b64 b0, " b_name ";\nadd.s64 b1, b0, 2;\nadd.s64 b2, b0, 4;\nadd.s64 b3, b0, 6;\n" \
                 "setp.eq.s32 is, " width_name ", " #w1 ";\n@is bra.uni W1;\n"                          \
                 "setp.eq.s32 is, " width_name ", " #w2 ";\n@is bra.uni W2;\n"                          \
                 "setp.eq.s32 is, " width_name ", " #w3 ";\n@is bra.uni W3;\n"                          \
                 OG_WGMMA_STEP(w0, kind, tail) "bra.uni DONE;\nW1:\n"                                  \
                 OG_WGMMA_STEP(w1, kind, tail) "bra.uni DONE;\nW2:\n"                                  \
                 OG_WGMMA_STEP(w2, kind, tail) "bra.uni DONE;\nW3:\n"                                  \
                 OG_WGMMA_STEP(w3, kind, tail) "DONE:\n}\n"                                            \
                 : OG_SUMS_##w0(d)                                                                      \
                 : "l"(a), "l"(b), "r"(accumulate), "r"(width)                                          \
                 : "memory")

#define OG_WGMMA_WIDTHS(w0, w1, w2, w3, a_name, b_name, p_name, width_name)                             \
    template <>                                                                                         \
    struct WgmmaOfWidths<w0> {                                                                          \
        static constexpr int kLeast = w3;                                                               \
        template <class A, class B>                                                                     \
        CUTE_HOST_DEVICE static void run(float* d, uint64_t a, uint64_t b, int32_t accumulate, int32_t width) { \
            using namespace cutlass;                                                                    \
            if constexpr (kAre<A, bfloat16_t, B, bfloat16_t>) {                                         \
                OG_WGMMA_BRANCH(w0, w1, w2, w3, a_name, b_name, p_name, width_name, "k16.f32.bf16.bf16", ", 0, 0"); \
            } else if constexpr (kAre<A, half_t, B, half_t>) {                                          \
                OG_WGMMA_BRANCH(w0, w1, w2, w3, a_name, b_name, p_name, width_name, "k16.f32.f16.f16", ", 0, 0"); \
            } else {                                                                                    \
                static_assert(kAre<A, float_e4m3_t, B, float_e4m3_t>, "no kernel of several widths has these types"); \
                OG_WGMMA_BRANCH(w0, w1, w2, w3, a_name, b_name, p_name, width_name, "k32.f32.e4m3.e4m3", ""); \
            }                                                                                           \
        }                                                                                               \
    };

OG_WGMMA_WIDTHS(96, 80, 64, 48, "%48", "%49", "%50", "%51")
OG_WGMMA_WIDTHS(128, 112, 96, 80, "%64", "%65", "%66", "%67")
OG_WGMMA_WIDTHS(160, 144, 128, 112, "%80", "%81", "%82", "%83")
OG_WGMMA_WIDTHS(192, 176, 160, 144, "%96", "%97", "%98", "%99")
OG_WGMMA_WIDTHS(256, 240, 224, 208, "%128", "%129", "%130", "%131")

// Whether a width is not one of CUTLASS's.
template <int kWidth>
inline constexpr bool kIsOwnWidth = kWidth > 32 && kWidth != 64 && kWidth != 96 && kWidth != 128 && kWidth != 192 &&
                                    kWidth != 256;

// Called by CuTe's MMA_Atom, found by the namespace of the instruction.
template <int kWidth, class ElementA, class ElementB, cute::GMMA::Major kMajorA, cute::GMMA::Major kMajorB,
          class TD, class LD, class TA, class LA, class TB, class LB, class TC, class LC>
CUTE_HOST_DEVICE void mma_unpack(
    cute::MMA_Traits<Wgmma64xN<kWidth, ElementA, ElementB, kMajorA, kMajorB>> const& traits,
    cute::Tensor<TD, LD>& sums, cute::Tensor<TA, LA> const& a, cute::Tensor<TB, LB> const& b,
    cute::Tensor<TC, LC> const&) {
    static_assert(cute::size(LD{}) == kWidth / 2 && cute::is_same_v<typename TD::value_type, float>);
#if defined(CUTE_ARCH_MMA_SM90A_ENABLED)
    Wgmma<kWidth>::template run<ElementA, ElementB, int(kMajorA), int(kMajorB)>(
        &sums(0), cute::recast<uint64_t>(a)(0), cute::recast<uint64_t>(b)(0),
        int32_t(traits.accumulate_));
#else
    CUTE_INVALID_CONTROL_PATH("wgmma needs sm_90a");
#endif
}

// CUTLASS's main loop; where the width is one of ours, with our instruction in the place of its builder's.
template <class Mainloop, int kWidth, bool kIsOwn = kIsOwnWidth<kWidth>>
struct MainloopOfWidth {
    using Type = Mainloop;
};

template <class Policy, class Tile, class ElementA, class StrideA, class ElementB, class StrideB,
          class TiledMma, class... Copies, int kWidth>
struct MainloopOfWidth<cutlass::gemm::collective::CollectiveMma<
                           Policy, Tile, ElementA, StrideA, ElementB, StrideB, TiledMma, Copies...>,
                       kWidth, true> {
    static constexpr cute::GMMA::Major kMajorA = cutlass::gemm::detail::is_major<0, StrideA>()
                                                     ? cute::GMMA::Major::MN
                                                     : cute::GMMA::Major::K;
    static constexpr cute::GMMA::Major kMajorB = cutlass::gemm::detail::is_major<0, StrideB>()
                                                     ? cute::GMMA::Major::MN
                                                     : cute::GMMA::Major::K;
    using Atom = cute::MMA_Atom<Wgmma64xN<kWidth, ElementA, ElementB, kMajorA, kMajorB>>;
    // One warp group a 64-row strip, as many as the builder wanted.
    using Groups = cute::Layout<cute::Shape<cute::Int<cute::size(TiledMma{}) / 128>, cute::_1, cute::_1>>;
    using Type = cutlass::gemm::collective::CollectiveMma<
        Policy, Tile, ElementA, StrideA, ElementB, StrideB,
        decltype(cute::make_tiled_mma(Atom{}, Groups{})), Copies...>;
};

}  // namespace overlap_gemm

template <int kWidth, class ElementA, class ElementB, cute::GMMA::Major kMajorA, cute::GMMA::Major kMajorB>
struct cute::MMA_Traits<overlap_gemm::Wgmma64xN<kWidth, ElementA, ElementB, kMajorA, kMajorB>> {
    using ValTypeD = float;
    using ValTypeA = ElementA;
    using ValTypeB = ElementB;
    using ValTypeC = float;
    using FrgTypeA = GMMA::smem_desc<kMajorA>;
    using FrgTypeB = GMMA::smem_desc<kMajorB>;
    // One instruction reads 32 bytes of each row of an operand.
    static constexpr int kDepth = 32 / int(sizeof(ElementA));
    using Shape_MNK = Shape<_64, Int<kWidth>, Int<kDepth>>;
    using ThrID = Layout<_128>;
    using ALayout = GMMA::ABLayout<64, kDepth>;
    using BLayout = GMMA::ABLayout<kWidth, kDepth>;
    using CLayout = GMMA::CLayout_64xN<kWidth>;
    GMMA::ScaleOut accumulate_ = GMMA::ScaleOut::One;
};
