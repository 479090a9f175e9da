// TMA descriptors of matrices whose rows lie side by side.
//
// What belongs here: one call of the driver, its error, and what it has made before. Invariant: a box in shared memory has rows
// of a swizzle pattern's width (16 to 128 bytes), so that the pattern follows from the width.
#pragma once

#include <cuda.h>

#include <cstring>
#include <string>
#include <type_traits>

#include "cutlass/cutlass.h"
#include "cute/arch/copy_sm90_desc.hpp"

#include "instance.h"

namespace overlap_gemm {

// Looked up once: CUTLASS's wrapper asks the runtime for the function by its name in every call, three times a product.
inline decltype(&cuTensorMapEncodeTiled) encode_tiled() {
    static auto const found = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult result{};
        check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result),
              "cudaGetDriverEntryPointByVersion(cuTensorMapEncodeTiled)");
        if (result != cudaDriverEntryPointSuccess) {
            throw Failure(OG_STATUS_CUDA, "the driver has no cuTensorMapEncodeTiled: install a driver of CUDA 12.0 or newer");
        }
        return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
    }();
    return found;
}

// What a descriptor is made of.
struct MatrixBox {
    void const* matrix;
    int64_t rows;
    int64_t columns;
    int64_t row_stride_bytes;
    int32_t type;
    int32_t box_rows;
    int32_t box_row_bytes;
    // The number of a box's columns in shared memory that are moved: TMA keeps rows as far apart as the pattern is wide.
    int32_t used_columns;
};

// `name` is the matrix's, for the error.
inline cute::TmaDescriptor encode(char const* name, MatrixBox const& box) {
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
    switch (box.box_row_bytes) {
        case 128: swizzle = CU_TENSOR_MAP_SWIZZLE_128B; break;
        case 64: swizzle = CU_TENSOR_MAP_SWIZZLE_64B; break;
        case 32: swizzle = CU_TENSOR_MAP_SWIZZLE_32B; break;
    }
    cute::TmaDescriptor made{};
    cuuint64_t sizes[2] = {cuuint64_t(box.columns), cuuint64_t(box.rows)};
    cuuint64_t strides[1] = {cuuint64_t(box.row_stride_bytes)};
    cuuint32_t extent[2] = {cuuint32_t(box.used_columns), cuuint32_t(box.box_rows)};
    cuuint32_t steps[2] = {1, 1};
    CUresult encoded = encode_tiled()(
        &made, CUtensorMapDataType(box.type), 2, const_cast<void*>(box.matrix), sizes, strides, extent, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (encoded != CUDA_SUCCESS) {
        throw Failure(OG_STATUS_CUDA, std::string("cuTensorMapEncodeTiled: the driver refused the TMA descriptor of ") +
                                          name + " (error " + std::to_string(int(encoded)) + ")",
                      int32_t(encoded));
    }
    return made;
}

// `row_stride` is in elements. The driver takes a microsecond for a descriptor, and a layer has the same ones in every other
// step: each thread keeps the last ones that it has made. They are numbers alone, so they are as good as new.
template <class Element>
cute::TmaDescriptor tma_matrix(char const* name, void const* matrix, int64_t rows, int64_t columns, int64_t row_stride,
                               int box_rows, int box_columns, int used) {
    struct Kept {
        MatrixBox box;
        cute::TmaDescriptor descriptor;
    };
    constexpr uint64_t kKept = 64;  // a power of two
    thread_local Kept kept[kKept]{};
    MatrixBox const box{matrix, rows, columns, row_stride * int64_t(sizeof(Element)),
                        int32_t(cute::TMA::to_CUtensorMapDataType<Element>()), box_rows,
                        box_columns * int32_t(sizeof(Element)), used};
    static_assert(std::has_unique_object_representations_v<MatrixBox>);
    // Matrices begin at multiples of large powers of two.
    auto const mixed = (reinterpret_cast<uint64_t>(matrix) + uint64_t(rows) * 64 + uint64_t(box_rows)) * 0x9e3779b97f4a7c15;
    Kept& place = kept[mixed / (~uint64_t(0) / kKept + 1)];
    if (std::memcmp(&place.box, &box, sizeof box) != 0) place = {box, encode(name, box)};
    return place.descriptor;
}

}  // namespace overlap_gemm
