// bf16, 128 x 256 x 64 tiles, two consumer warp groups a tile, clusters of two blocks along M that
// share B by multicast: the best large tile on wide problems (M and N in the thousands).
#include "../gemm_sm90.cuh"

namespace overlap_gemm {

using Gemm = GemmSm90<cutlass::bfloat16_t, cute::Shape<cute::_128, cute::_256, cute::_64>,
                      cute::Shape<cute::_2, cute::_1, cute::_1>>;

Instance const bf16_128x256_coop_2x1 = Gemm::instance("bf16_128x256_coop_2x1");

}  // namespace overlap_gemm
