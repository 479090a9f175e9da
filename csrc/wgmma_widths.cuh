// Matrix instructions that CUTLASS's usual header leaves out: tiles of any width in steps of 8, several in one kernel.
//
// Tiles of many widths fill the GPU's 132 SMs at many shapes: 112 columns cut N = 3584 = 32 * 112 so that 1024 rows
// make 256 tiles, nearly two for each SM, where 128 columns leave an eighth of the GPU idle. CUTLASS has all widths,
// too, in a header that takes minutes to compile. Which of a kernel's widths a launch uses is a branch
// (multiply_widths.cuh).
//
// Invariant: what is described here to CuTe (who holds which sum) is what the PTX manual says of wgmma m64nNk16 and
// m64nNk32 for every N.
#pragma once

#include "cute/tensor.hpp"
#include "cute/atom/mma_traits_sm90_gmma.hpp"
#include "cutlass/gemm/collective/collective_mma_decl.hpp"
#include "cutlass/numeric_types.h"

namespace overlap_gemm {

// The names of the sums' registers: eight columns are four of each thread's.
#define OG_NAMES_8 "%0, %1, %2, %3"
#define OG_NAMES_16 OG_NAMES_8 ", %4, %5, %6, %7"
#define OG_NAMES_24 OG_NAMES_16 ", %8, %9, %10, %11"
#define OG_NAMES_32 OG_NAMES_24 ", %12, %13, %14, %15"
#define OG_NAMES_40 OG_NAMES_32 ", %16, %17, %18, %19"
#define OG_NAMES_48 OG_NAMES_40 ", %20, %21, %22, %23"
#define OG_NAMES_56 OG_NAMES_48 ", %24, %25, %26, %27"
#define OG_NAMES_64 OG_NAMES_56 ", %28, %29, %30, %31"
#define OG_NAMES_72 OG_NAMES_64 ", %32, %33, %34, %35"
#define OG_NAMES_80 OG_NAMES_72 ", %36, %37, %38, %39"
#define OG_NAMES_88 OG_NAMES_80 ", %40, %41, %42, %43"
#define OG_NAMES_96 OG_NAMES_88 ", %44, %45, %46, %47"
#define OG_NAMES_104 OG_NAMES_96 ", %48, %49, %50, %51"
#define OG_NAMES_112 OG_NAMES_104 ", %52, %53, %54, %55"
#define OG_NAMES_120 OG_NAMES_112 ", %56, %57, %58, %59"
#define OG_NAMES_128 OG_NAMES_120 ", %60, %61, %62, %63"
#define OG_NAMES_136 OG_NAMES_128 ", %64, %65, %66, %67"
#define OG_NAMES_144 OG_NAMES_136 ", %68, %69, %70, %71"
#define OG_NAMES_152 OG_NAMES_144 ", %72, %73, %74, %75"
#define OG_NAMES_160 OG_NAMES_152 ", %76, %77, %78, %79"
#define OG_NAMES_168 OG_NAMES_160 ", %80, %81, %82, %83"
#define OG_NAMES_176 OG_NAMES_168 ", %84, %85, %86, %87"
#define OG_NAMES_184 OG_NAMES_176 ", %88, %89, %90, %91"
#define OG_NAMES_192 OG_NAMES_184 ", %92, %93, %94, %95"
#define OG_NAMES_200 OG_NAMES_192 ", %96, %97, %98, %99"
#define OG_NAMES_208 OG_NAMES_200 ", %100, %101, %102, %103"
#define OG_NAMES_216 OG_NAMES_208 ", %104, %105, %106, %107"
#define OG_NAMES_224 OG_NAMES_216 ", %108, %109, %110, %111"
#define OG_NAMES_232 OG_NAMES_224 ", %112, %113, %114, %115"
#define OG_NAMES_240 OG_NAMES_232 ", %116, %117, %118, %119"
#define OG_NAMES_248 OG_NAMES_240 ", %120, %121, %122, %123"
#define OG_NAMES_256 OG_NAMES_248 ", %124, %125, %126, %127"

// The sums as operands.
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

// The instructions of a kernel whose widest tile has kWidest columns. A launch has one width, and the branch is the same for
// all threads. It is inside one `asm`, so that all widths use the same registers: where the compiler sees sums that meet behind
// a branch, it waits for every instruction (C7511, C7515). The fence and the commit are behind the branch, too, or each
// instruction would be a group.
template <int kWidest>
struct WgmmaOfWidths;

// All that 128 bytes of K need: four instructions, of which the first may begin the sums.
#define OG_STEP(width, kind, tail)                                                          \
    "wgmma.fence.sync.aligned;\n"                                                           \
    OG_LINE(width, kind, "a0, b0, begun", tail) OG_LINE(width, kind, "a1, b1, always", tail) \
    OG_LINE(width, kind, "a2, b2, always", tail) OG_LINE(width, kind, "a3, b3, always", tail) \
    "wgmma.commit_group.sync.aligned;\n"
#define OG_LINE(width, kind, operands, tail) \
    "wgmma.mma_async.sync.aligned.m64n" #width kind " {" OG_NAMES_##width "}, " operands ", 1, 1" tail ";\n"

#define OG_AT_MOST(width, label) "setp.le.s32 is, width, " #width ";\n@is bra.uni " label ";\n"
#define OG_EIGHT_STEPS(w0, w1, w2, w3, w4, w5, w6, w7, kind, tail)                                             \
    OG_AT_MOST(w4, "UP4") OG_AT_MOST(w2, "UP2") OG_AT_MOST(w1, "W1") OG_STEP(w0, kind, tail) "bra.uni DONE;\n" \
    "W1:\n" OG_STEP(w1, kind, tail) "bra.uni DONE;\n"                                                         \
    "UP2:\n" OG_AT_MOST(w3, "W3") OG_STEP(w2, kind, tail) "bra.uni DONE;\n"                                   \
    "W3:\n" OG_STEP(w3, kind, tail) "bra.uni DONE;\n"                                                         \
    "UP4:\n" OG_AT_MOST(w6, "UP6") OG_AT_MOST(w5, "W5") OG_STEP(w4, kind, tail) "bra.uni DONE;\n"             \
    "W5:\n" OG_STEP(w5, kind, tail) "bra.uni DONE;\n"                                                         \
    "UP6:\n" OG_AT_MOST(w7, "W7") OG_STEP(w6, kind, tail) "bra.uni DONE;\n"                                   \
    "W7:\n" OG_STEP(w7, kind, tail)                                                                           \
    "DONE:\n"

// Both operands lie along K, in rows of 128 bytes: an instruction reads 32 of them, and descriptors count 16s. The names are
// those of the operands behind the sums: the descriptors of A and B, whether to add to the sums, and the width.
#define OG_RUN(widest, steps, a_name, b_name, p_name, width_name)                                           \
    asm volatile("{\n.reg .pred begun, always, is;\n.reg .b64 a0, a1, a2, a3, b0, b1, b2, b3;\n"            \
                 ".reg .b32 width;\nmov.b32 width, " width_name ";\n"                                        \
                 "setp.ne.b32 begun, " p_name ", 0;\nsetp.eq.b32 always, " p_name ", " p_name ";\n"           \
                 "mov.b64 a0, " a_name ";\nadd.s64 a1, a0, 2;\nadd.s64 a2, a0, 4;\nadd.s64 a3, a0, 6;\n"      \
                 "mov.b64 b0, " b_name ";\nadd.s64 b1, b0, 2;\nadd.s64 b2, b0, 4;\nadd.s64 b3, b0, 6;\n" steps "}\n" \
                 : OG_SUMS_##widest(d)                                                                      \
                 : "l"(a), "l"(b), "r"(accumulate), "r"(width)                                              \
                 : "memory")

// `steps` is OG_STEP or OG_EIGHT_STEPS; what follows it are the widths.
#define OG_WGMMA(widest, least, a_name, b_name, p_name, width_name, steps, ...)                             \
    template <>                                                                                             \
    struct WgmmaOfWidths<widest> {                                                                          \
        static constexpr int kLeast = least;                                                                \
        template <class A, class B>                                                                         \
        CUTE_HOST_DEVICE static void run(float* d, uint64_t a, uint64_t b, int32_t accumulate, int32_t width) { \
            using namespace cutlass;                                                                        \
            if constexpr (kAre<A, bfloat16_t, B, bfloat16_t>) {                                             \
                OG_RUN(widest, steps(__VA_ARGS__, "k16.f32.bf16.bf16", ", 0, 0"), a_name, b_name, p_name, width_name); \
            } else if constexpr (kAre<A, half_t, B, half_t>) {                                              \
                OG_RUN(widest, steps(__VA_ARGS__, "k16.f32.f16.f16", ", 0, 0"), a_name, b_name, p_name, width_name); \
            } else {                                                                                        \
                static_assert(kAre<A, float_e4m3_t, B, float_e4m3_t>, "no kernel of such widths has these types"); \
                OG_RUN(widest, steps(__VA_ARGS__, "k32.f32.e4m3.e4m3", ""), a_name, b_name, p_name, width_name); \
            }                                                                                               \
        }                                                                                                   \
    };

OG_WGMMA(48, 48, "%24", "%25", "%26", "%27", OG_STEP, 48)
OG_WGMMA(80, 80, "%40", "%41", "%42", "%43", OG_STEP, 80)
OG_WGMMA(112, 112, "%56", "%57", "%58", "%59", OG_STEP, 112)
OG_WGMMA(144, 144, "%72", "%73", "%74", "%75", OG_STEP, 144)
OG_WGMMA(96, 40, "%48", "%49", "%50", "%51", OG_EIGHT_STEPS, 96, 88, 80, 72, 64, 56, 48, 40)
OG_WGMMA(128, 72, "%64", "%65", "%66", "%67", OG_EIGHT_STEPS, 128, 120, 112, 104, 96, 88, 80, 72)
OG_WGMMA(160, 104, "%80", "%81", "%82", "%83", OG_EIGHT_STEPS, 160, 152, 144, 136, 128, 120, 112, 104)
OG_WGMMA(192, 136, "%96", "%97", "%98", "%99", OG_EIGHT_STEPS, 192, 184, 176, 168, 160, 152, 144, 136)
OG_WGMMA(256, 200, "%128", "%129", "%130", "%131", OG_EIGHT_STEPS, 256, 248, 240, 232, 224, 216, 208, 200)

// How CuTe sees an instruction: only who holds which sum is asked.
template <int kWidth, class ElementA, class ElementB>
struct Wgmma64xN {
    using DRegisters = void;
    using ARegisters = uint64_t[1];
    using BRegisters = uint64_t[1];
    using CRegisters = float[kWidth / 2];
};

// CUTLASS's main loop with our instruction in the place of its builder's. kGroupsM warp groups share a tile's rows, or
// kGroupsN its columns; the other is 1.
template <class Mainloop, int kGroupsM, int kGroupsN>
struct WithOwnInstruction;

template <class Policy, class Tile, class ElementA, class StrideA, class ElementB, class StrideB,
          class TiledMma, class... Copies, int kGroupsM, int kGroupsN>
struct WithOwnInstruction<cutlass::gemm::collective::CollectiveMma<
                              Policy, Tile, ElementA, StrideA, ElementB, StrideB, TiledMma, Copies...>,
                          kGroupsM, kGroupsN> {
    using Groups = cute::Layout<cute::Shape<cute::Int<kGroupsM>, cute::Int<kGroupsN>, cute::_1>>;
    using Atom = cute::MMA_Atom<Wgmma64xN<cute::size<1>(Tile{}) / kGroupsN, ElementA, ElementB>>;
    using Type = cutlass::gemm::collective::CollectiveMma<
        Policy, Tile, ElementA, StrideA, ElementB, StrideB,
        decltype(cute::make_tiled_mma(Atom{}, Groups{})), Copies...>;
};

}  // namespace overlap_gemm

template <int kWidth, class ElementA, class ElementB>
struct cute::MMA_Traits<overlap_gemm::Wgmma64xN<kWidth, ElementA, ElementB>> {
    using ValTypeD = float;
    using ValTypeA = ElementA;
    using ValTypeB = ElementB;
    using ValTypeC = float;
    using FrgTypeA = GMMA::smem_desc<GMMA::Major::K>;
    using FrgTypeB = GMMA::smem_desc<GMMA::Major::K>;
    // One instruction reads 32 bytes of each row of an operand.
    static constexpr int kDepth = 32 / int(sizeof(ElementA));
    using Shape_MNK = Shape<_64, Int<kWidth>, Int<kDepth>>;
    using ThrID = Layout<_128>;
    using ALayout = GMMA::ABLayout<64, kDepth>;
    using BLayout = GMMA::ABLayout<kWidth, kDepth>;
    using CLayout = GMMA::CLayout_64xN<kWidth>;
    GMMA::ScaleOut accumulate_ = GMMA::ScaleOut::One;
};
