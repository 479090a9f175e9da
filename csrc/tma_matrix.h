// TMA descriptors of matrices whose rows lie side by side.
//
// What belongs here: one call of the driver, and its error. Invariant: a box in shared memory has rows of a swizzle pattern's
// width (16 to 128 bytes), so that the pattern follows from the width.
#pragma once

#include <cuda.h>

#include <string>

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

// `row_stride` is in elements. `name` is the matrix's, for the error. Of a box's columns in shared memory, `used` are moved: TMA
// keeps rows as far apart as the pattern is wide.
template <class Element>
cute::TmaDescriptor tma_matrix(char const* name, void const* matrix, int64_t rows, int64_t columns, int64_t row_stride,
                               int box_rows, int box_columns, int used) {
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
    switch (box_columns * int(sizeof(Element))) {
        case 128: swizzle = CU_TENSOR_MAP_SWIZZLE_128B; break;
        case 64: swizzle = CU_TENSOR_MAP_SWIZZLE_64B; break;
        case 32: swizzle = CU_TENSOR_MAP_SWIZZLE_32B; break;
    }
    cute::TmaDescriptor made{};
    cuuint64_t sizes[2] = {cuuint64_t(columns), cuuint64_t(rows)};
    cuuint64_t strides[1] = {cuuint64_t(row_stride) * sizeof(Element)};
    cuuint32_t box[2] = {cuuint32_t(used), cuuint32_t(box_rows)};
    cuuint32_t steps[2] = {1, 1};
    CUresult encoded = encode_tiled()(
        &made, cute::TMA::to_CUtensorMapDataType<Element>(), 2, const_cast<void*>(matrix), sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (encoded != CUDA_SUCCESS) {
        throw Failure(OG_STATUS_CUDA, std::string("cuTensorMapEncodeTiled: the driver refused the TMA descriptor of ") +
                                          name + " (error " + std::to_string(int(encoded)) + ")",
                      int32_t(encoded));
    }
    return made;
}

}  // namespace overlap_gemm
