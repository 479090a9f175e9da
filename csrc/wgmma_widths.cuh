// Matrix instructions of the loop over K (multiply_widths.cuh): of 16 columns, and of any width in steps of 8 from 32 on.
//
// Tiles of many widths fill the GPU's 132 SMs at many shapes: 112 columns cut N = 3584 = 32 * 112 so that 1024 rows
// make 256 tiles, nearly two for each SM, where 128 columns make 224 and leave 15 % of the GPU idle. CUTLASS has all
// widths, too, in a header that takes minutes to compile.
//
// Invariant: operands are as the PTX manual says of wgmma m64nNk16 and m64nNk32, for every N.
#pragma once

#include "cute/numeric/integral_constant.hpp"
#include "cutlass/cutlass.h"
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
#define OG_SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OG_SUMS_8(d) OG_SUMS_4(d, 0)
#define OG_SUMS_16(d) OG_SUMS_8(d), OG_SUMS_4(d, 4)
#define OG_SUMS_24(d) OG_SUMS_16(d), OG_SUMS_4(d, 8)
#define OG_SUMS_32(d) OG_SUMS_24(d), OG_SUMS_4(d, 12)
#define OG_SUMS_40(d) OG_SUMS_32(d), OG_SUMS_4(d, 16)
#define OG_SUMS_48(d) OG_SUMS_40(d), OG_SUMS_4(d, 20)
#define OG_SUMS_56(d) OG_SUMS_48(d), OG_SUMS_4(d, 24)
#define OG_SUMS_64(d) OG_SUMS_56(d), OG_SUMS_4(d, 28)
#define OG_SUMS_72(d) OG_SUMS_64(d), OG_SUMS_4(d, 32)
#define OG_SUMS_80(d) OG_SUMS_72(d), OG_SUMS_4(d, 36)
#define OG_SUMS_88(d) OG_SUMS_80(d), OG_SUMS_4(d, 40)
#define OG_SUMS_96(d) OG_SUMS_88(d), OG_SUMS_4(d, 44)
#define OG_SUMS_104(d) OG_SUMS_96(d), OG_SUMS_4(d, 48)
#define OG_SUMS_112(d) OG_SUMS_104(d), OG_SUMS_4(d, 52)
#define OG_SUMS_120(d) OG_SUMS_112(d), OG_SUMS_4(d, 56)
#define OG_SUMS_128(d) OG_SUMS_120(d), OG_SUMS_4(d, 60)
#define OG_SUMS_136(d) OG_SUMS_128(d), OG_SUMS_4(d, 64)
#define OG_SUMS_144(d) OG_SUMS_136(d), OG_SUMS_4(d, 68)
#define OG_SUMS_152(d) OG_SUMS_144(d), OG_SUMS_4(d, 72)
#define OG_SUMS_160(d) OG_SUMS_152(d), OG_SUMS_4(d, 76)
#define OG_SUMS_168(d) OG_SUMS_160(d), OG_SUMS_4(d, 80)
#define OG_SUMS_176(d) OG_SUMS_168(d), OG_SUMS_4(d, 84)
#define OG_SUMS_184(d) OG_SUMS_176(d), OG_SUMS_4(d, 88)
#define OG_SUMS_192(d) OG_SUMS_184(d), OG_SUMS_4(d, 92)
#define OG_SUMS_200(d) OG_SUMS_192(d), OG_SUMS_4(d, 96)
#define OG_SUMS_208(d) OG_SUMS_200(d), OG_SUMS_4(d, 100)
#define OG_SUMS_216(d) OG_SUMS_208(d), OG_SUMS_4(d, 104)
#define OG_SUMS_224(d) OG_SUMS_216(d), OG_SUMS_4(d, 108)
#define OG_SUMS_232(d) OG_SUMS_224(d), OG_SUMS_4(d, 112)
#define OG_SUMS_240(d) OG_SUMS_232(d), OG_SUMS_4(d, 116)
#define OG_SUMS_248(d) OG_SUMS_240(d), OG_SUMS_4(d, 120)
#define OG_SUMS_256(d) OG_SUMS_248(d), OG_SUMS_4(d, 124)

template <class A, class ExpectedA, class B, class ExpectedB>
inline constexpr bool kAre = cute::is_same_v<A, ExpectedA> && cute::is_same_v<B, ExpectedB>;

// Four instructions, which multiply 64 rows of A and kWidth rows of B, 128 bytes of K of each, and add to the sums.
template <int kWidth>
struct Wgmma;

// An operand along K has a row of 128 bytes for each of its rows: an instruction reads 32 bytes of each. One across K has a row
// of 128 bytes for each element of K, and the next 64 of its rows lie in another such panel: an instruction reads 16 rows of
// each panel. That is how far apart the instructions' descriptors are, which count 16s of bytes.
#define OG_ALONG "2"
#define OG_ACROSS "128"
// The upper half of a descriptor says that the pattern repeats every eight rows (PTX manual, matrix descriptor). The names are
// those of the operands behind the sums: the lower halves of the descriptors of A and B.
#define OG_LINE(width, kind, operands, tail) \
    "wgmma.mma_async.sync.aligned.m64n" #width kind " {" OG_NAMES_##width "}, " operands ", 1, 1, 1" tail ";\n"
#define OG_DESCRIPTOR(to, from, nth, step) "add.u32 low, " from ", " nth " * " step ";\nmov.b64 " to ", {low, high};\n"
#define OG_RUN(width, kind, tail, step_a, step_b, a_name, b_name)                                      \
    asm volatile("{\n.reg .b64 a0, a1, a2, a3, b0, b1, b2, b3;\n.reg .b32 low, high;\n"                \
                 "mov.b32 high, 0x40000040;\n"                                                         \
                 OG_DESCRIPTOR("a0", a_name, "0", step_a) OG_DESCRIPTOR("a1", a_name, "1", step_a)     \
                 OG_DESCRIPTOR("a2", a_name, "2", step_a) OG_DESCRIPTOR("a3", a_name, "3", step_a)     \
                 OG_DESCRIPTOR("b0", b_name, "0", step_b) OG_DESCRIPTOR("b1", b_name, "1", step_b)     \
                 OG_DESCRIPTOR("b2", b_name, "2", step_b) OG_DESCRIPTOR("b3", b_name, "3", step_b)     \
                 OG_LINE(width, kind, "a0, b0", tail) OG_LINE(width, kind, "a1, b1", tail)             \
                 OG_LINE(width, kind, "a2, b2", tail) OG_LINE(width, kind, "a3, b3", tail) "}\n"       \
                 : OG_SUMS_##width(d)                                                                  \
                 : "r"(a), "r"(b)                                                                      \
                 : "memory")

// Operands of 16 bits may lie across K: the last two numbers say which do.
#define OG_RUN_16(width, kind, a_name, b_name)                                                         \
    if constexpr (kAcrossA) {                                                                          \
        OG_RUN(width, kind, ", 1, 0", OG_ACROSS, OG_ALONG, a_name, b_name);                            \
    } else if constexpr (kAcrossB) {                                                                   \
        OG_RUN(width, kind, ", 0, 1", OG_ALONG, OG_ACROSS, a_name, b_name);                            \
    } else {                                                                                           \
        OG_RUN(width, kind, ", 0, 0", OG_ALONG, OG_ALONG, a_name, b_name);                             \
    }
#define OG_RUN_8(width, kind, a_name, b_name)                                                          \
    static_assert(!kAcrossA && !kAcrossB, "fp8 operands lie along K");                                 \
    OG_RUN(width, kind, "", OG_ALONG, OG_ALONG, a_name, b_name)

#define OG_WGMMA(width, a_name, b_name)                                                                \
    template <>                                                                                        \
    struct Wgmma<width> {                                                                              \
        template <class A, class B, bool kAcrossA, bool kAcrossB>                                      \
        CUTE_HOST_DEVICE static void run(float* d, uint32_t a, uint32_t b) {                           \
            using namespace cutlass;                                                                   \
            if constexpr (kAre<A, bfloat16_t, B, bfloat16_t>) {                                        \
                OG_RUN_16(width, "k16.f32.bf16.bf16", a_name, b_name);                                 \
            } else if constexpr (kAre<A, half_t, B, half_t>) {                                         \
                OG_RUN_16(width, "k16.f32.f16.f16", a_name, b_name);                                   \
            } else if constexpr (kAre<A, float_e4m3_t, B, float_e4m3_t>) {                             \
                OG_RUN_8(width, "k32.f32.e4m3.e4m3", a_name, b_name);                                  \
            } else if constexpr (kAre<A, float_e4m3_t, B, float_e5m2_t>) {                             \
                OG_RUN_8(width, "k32.f32.e4m3.e5m2", a_name, b_name);                                  \
            } else {                                                                                   \
                static_assert(kAre<A, float_e5m2_t, B, float_e4m3_t>, "no kernel has these types");    \
                OG_RUN_8(width, "k32.f32.e5m2.e4m3", a_name, b_name);                                  \
            }                                                                                          \
        }                                                                                              \
    };

OG_WGMMA(16, "%8", "%9")
OG_WGMMA(32, "%16", "%17")
OG_WGMMA(40, "%20", "%21")
OG_WGMMA(48, "%24", "%25")
OG_WGMMA(56, "%28", "%29")
OG_WGMMA(64, "%32", "%33")
OG_WGMMA(72, "%36", "%37")
OG_WGMMA(80, "%40", "%41")
OG_WGMMA(88, "%44", "%45")
OG_WGMMA(96, "%48", "%49")
OG_WGMMA(104, "%52", "%53")
OG_WGMMA(112, "%56", "%57")
OG_WGMMA(120, "%60", "%61")
OG_WGMMA(128, "%64", "%65")
OG_WGMMA(136, "%68", "%69")
OG_WGMMA(144, "%72", "%73")
OG_WGMMA(152, "%76", "%77")
OG_WGMMA(160, "%80", "%81")
OG_WGMMA(168, "%84", "%85")
OG_WGMMA(176, "%88", "%89")
OG_WGMMA(184, "%92", "%93")
OG_WGMMA(192, "%96", "%97")
OG_WGMMA(200, "%100", "%101")
OG_WGMMA(208, "%104", "%105")
OG_WGMMA(216, "%108", "%109")
OG_WGMMA(224, "%112", "%113")
OG_WGMMA(232, "%116", "%117")
OG_WGMMA(240, "%120", "%121")
OG_WGMMA(248, "%124", "%125")
OG_WGMMA(256, "%128", "%129")

}  // namespace overlap_gemm
