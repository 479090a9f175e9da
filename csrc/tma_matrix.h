// TMA descriptors of matrices whose rows lie side by side.
//
// What belongs here: one call of the driver, and its error. Invariant: a box is as wide as one row of a swizzle pattern
// (16 to 128 bytes), so that the pattern follows from the width.
#pragma once

#include <string>

#include "cutlass/cutlass.h"
#include "cute/arch/copy_sm90_desc.hpp"
#include "cutlass/cuda_host_adapter.hpp"

#include "instance.h"

namespace overlap_gemm {

// `row_stride` is in elements. `name` is the matrix's, for the error.
template <class Element>
cute::TmaDescriptor tma_matrix(char const* name, void const* matrix, int64_t rows, int64_t columns, int64_t row_stride,
                               int box_rows, int box_columns) {
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
    switch (box_columns * int(sizeof(Element))) {
        case 128: swizzle = CU_TENSOR_MAP_SWIZZLE_128B; break;
        case 64: swizzle = CU_TENSOR_MAP_SWIZZLE_64B; break;
        case 32: swizzle = CU_TENSOR_MAP_SWIZZLE_32B; break;
    }
    cute::TmaDescriptor made{};
    cuuint64_t sizes[2] = {cuuint64_t(columns), cuuint64_t(rows)};
    cuuint64_t strides[1] = {cuuint64_t(row_stride) * sizeof(Element)};
    cuuint32_t box[2] = {cuuint32_t(box_columns), cuuint32_t(box_rows)};
    cuuint32_t steps[2] = {1, 1};
    CUresult encoded = CUTLASS_CUDA_DRIVER_WRAPPER_CALL(cuTensorMapEncodeTiled)(
        &made, cute::TMA::to_CUtensorMapDataType<Element>(), 2, const_cast<void*>(matrix), sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (encoded != CUDA_SUCCESS) {
        throw Failure(OG_STATUS_CUDA, std::string("cuTensorMapEncodeTiled: the driver refused the TMA descriptor of ") +
                                          name + " (error " + std::to_string(int(encoded)) + ")");
    }
    return made;
}

}  // namespace overlap_gemm
