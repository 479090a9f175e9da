// D = silu(A * gate^T) ∘ (A * up^T), on rows of A that arrive while it is computed: what overlap-gemm's products cannot do.
//
// What is overlap-gemm's: the order of tiles, and how a block waits for the chunks of a tile's rows. What is this kernel's: loads,
// multiplications, the epilogue. It is written to be read, not to be fast: no TMA, no pipeline, instructions of Ampere.
// Invariant: no row of A is loaded before the gate of its tile is open, and rows are loaded past the L1 cache. A block that has
// given up writes NaN.
#include <cuda_runtime.h>

#include "cute/tensor.hpp"

#include "async_input_scheduler.cuh"
#include "chunk_signal.cuh"

namespace own_kernel {

using namespace cute;
using Element = cutlass::bfloat16_t;

constexpr int kTile = 64;   // rows and columns of a tile
constexpr int kDepth = 32;  // of a step of K
constexpr int kVector = 8;  // elements of a load of 16 bytes
// Four warps multiply, one watches the chunks.
constexpr int kMultipliers = 128;
constexpr int kThreads = kMultipliers + 32;

using Scheduler = overlap_gemm::AsyncInputScheduler<Shape<_1, _1, _1>, false, false>;
using TiledMma = decltype(make_tiled_mma(SM80_16x8x16_F32BF16BF16F32_TN{}, Layout<Shape<_2, _2>>{}, Tile<_32, _32, _16>{}));

// A row of an operand is followed by the next one, 16 bytes further, so that threads read different banks.
using OperandLayout = Layout<Shape<Int<kTile>, Int<kDepth>>, Stride<Int<kDepth + kVector>, _1>>;
struct Operands {
    alignas(16) Element a[cosize_v<OperandLayout>];
    alignas(16) Element gate[cosize_v<OperandLayout>];
    alignas(16) Element up[cosize_v<OperandLayout>];
};
static_assert(sizeof(Operands) % alignof(overlap_gemm::BlockWaits) == 0);

struct Params {
    overlap_gemm::OrderParams order;
    overlap_gemm::ChunkTable chunks;
    Element const* a;
    Element const* gate;
    Element const* up;
    Element* d;
    int m, n, k;
};

// One step of K of `rows` rows from `first` on; zeros where there are none.
__device__ void load(Element* shared, Element const* matrix, int first, int rows, int k, int at) {
    for (int i = threadIdx.x; i < kTile * kDepth / kVector; i += kMultipliers) {
        int row = i / (kDepth / kVector), column = i % (kDepth / kVector) * kVector;
        bool exists = first + row < rows && at + column < k;
        auto const* from = reinterpret_cast<uint4 const*>(matrix + size_t(first + row) * k + at + column);
        // Past L1, which another tile's rows may have filled before these arrived.
        uint4 vector = exists ? __ldcg(from) : uint4{};
        *reinterpret_cast<uint4*>(shared + OperandLayout{}(row, column)) = vector;
    }
}

__device__ void meet_multipliers() { asm volatile("bar.sync 1, %0;" ::"n"(kMultipliers) : "memory"); }

__device__ void multiply(Params const& params, Operands& operands) {
    ThrMMA mma = TiledMma{}.get_thread_slice(threadIdx.x);
    auto operand = [](Element* data) { return make_tensor(make_smem_ptr(data), OperandLayout{}); };
    Tensor a = mma.partition_A(operand(operands.a));
    Tensor gate = mma.partition_B(operand(operands.gate));
    Tensor up = mma.partition_B(operand(operands.up));
    Tensor places = mma.partition_C(make_identity_tensor(Shape<Int<kTile>, Int<kTile>>{}));

    Scheduler scheduler(params.order);
    uint32_t tile = 0;
    for (auto work = scheduler.current(); work.is_valid(); work = scheduler.current(), ++tile) {
        uint32_t open;
        while (!overlap_gemm::TileGate::is_open(open = overlap_gemm::TileGate::look(), tile)) __nanosleep(20);

        Tensor gate_sums = partition_fragment_C(TiledMma{}, Shape<Int<kTile>, Int<kTile>>{});
        Tensor up_sums = make_fragment_like(gate_sums);
        clear(gate_sums);
        clear(up_sums);
        for (int at = 0; at < params.k; at += kDepth) {
            load(operands.a, params.a, work.m * kTile, params.m, params.k, at);
            load(operands.gate, params.gate, work.n * kTile, params.n, params.k, at);
            load(operands.up, params.up, work.n * kTile, params.n, params.k, at);
            meet_multipliers();
            Tensor a_part = mma.make_fragment_A(a);
            Tensor gate_part = mma.make_fragment_B(gate);
            Tensor up_part = mma.make_fragment_B(up);
            copy(a, a_part);
            copy(gate, gate_part);
            copy(up, up_part);
            gemm(mma, a_part, gate_part, gate_sums);
            gemm(mma, a_part, up_part, up_sums);
            meet_multipliers();
        }

        float nothing_or_nan = (open & overlap_gemm::kStopped) != 0 ? __int_as_float(0x7fffffff) : 0.0f;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < size(gate_sums); ++i) {
            int row = work.m * kTile + get<0>(places(i)), column = work.n * kTile + get<1>(places(i));
            float value = gate_sums(i) / (1.0f + expf(-gate_sums(i))) * up_sums(i) + nothing_or_nan;
            if (row < params.m && column < params.n) params.d[size_t(row) * params.n + column] = Element(value);
        }
        scheduler.advance(1);
    }
}

// One warp is ahead of the others, tile after tile in the same order, and opens their gates.
__device__ void watch(Params const& params) {
    overlap_gemm::ChunkWatcher watcher;
    Scheduler scheduler(params.order);
    for (auto work = scheduler.current(); work.is_valid(); work = scheduler.current()) {
        int first_row = work.m * kTile;
        int last_row = min(first_row + kTile, params.m) - 1;
        watcher.open_next(params.chunks, 0, params.chunks.of_row(first_row), params.chunks.of_row(last_row), work.m, work.n, 0, 0);
        scheduler.advance(1);
    }
}

__global__ void __launch_bounds__(kThreads) swiglu(__grid_constant__ Params const params) {
    extern __shared__ __align__(1024) char smem[];
    if (threadIdx.x == 0) overlap_gemm::begin_block_waits<1>();
    __syncthreads();
    if (threadIdx.x < kMultipliers) {
        multiply(params, *reinterpret_cast<Operands*>(smem));
    } else {
        watch(params);
    }
}

}  // namespace own_kernel

// Launches it, and returns a cudaError_t. Rows of A, of gate and of up are `k` elements, of D `n`; `k` is a multiple of eight,
// and all addresses are multiples of 16. `input`: chunks that arrive whole, not in spans.
extern "C" int own_kernel_swiglu(og_gemm_input const* input, void const* a, void const* gate, void const* up, void* d, int m,
                                 int n, int k, int blocks, cudaStream_t stream) {
    using namespace own_kernel;
    if (!input || input->span_bits != 0 || k % kVector != 0) return cudaErrorInvalidValue;
    int const swizzle = 8;  // rows of tiles that sweep over the columns together
    Params params{overlap_gemm::make_order(input, m, n, kTile, kTile, swizzle, 1, 1),
                  overlap_gemm::make_chunk_table(input),
                  static_cast<Element const*>(a),
                  static_cast<Element const*>(gate),
                  static_cast<Element const*>(up),
                  static_cast<Element*>(d),
                  m,
                  n,
                  k};
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = kThreads;
    // A block finds what it notes about waiting at the end of its shared memory.
    config.dynamicSmemBytes = sizeof(Operands) + overlap_gemm::kBlockWaitsBytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, swiglu, params);
}
