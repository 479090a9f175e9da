// A main loop whose loads wait for their chunk.
//
// What belongs here: the loads of one tile by the warp that issues them, and when they may be
// issued. The multiplications are those of the base. Looking at signals is the work of a second warp, tile after tile in the
// same order.
// Invariant: no TMA load of a row of A is issued before every chunk that the tile's rows touch has
// been seen ready, and no thread arrives at the barrier of a tile's stage before that, so that a thread that
// waits for the stage comes behind the chunks, too. While a chunk is missing, the warp loads B into
// the free stages; if one cluster computes all rows, it also prefetches B into the L2 cache. A block that has given up still
// fills every stage: A with zeros, by coordinates outside it, and B as usual, which its cluster may still need. So its
// cluster and its own warps run to the end.
#pragma once

#include "cutlass/cutlass.h"
#include "cutlass/fast_math.h"
#include "cute/arch/cluster_sm90.hpp"
#include "cute/layout.hpp"

#include "chunk_signal.cuh"
#include "one_lane.h"
#include "operand_rows.cuh"
#include "stage_cursor.cuh"

namespace overlap_gemm {

// Where tiles are recorded; null: nowhere.
struct RecordTable {
    og_tile_record* records = nullptr;
    int32_t tiles_m = 0;
    int32_t tiles_n = 0;
    int32_t splits = 1;

#if defined(__CUDACC__)
    // The record of a slice of a tile; null for padding.
    __device__ og_tile_record* at(int32_t tile_m, int32_t tile_n, int32_t slice) const {
        if (!records || tile_m >= tiles_m || tile_n >= tiles_n) return nullptr;
        return records + (size_t(tile_m) * tiles_n + tile_n) * splits + slice;
    }
#endif
};

// What the loads need to know of a launch beside the descriptors and the table of chunks.
struct GatherParams {
    int32_t m = 0;
    // Whether this launch awaits no chunk, loads nothing before other kernels have ended, and records nothing.
    bool is_plain = false;
    // The other operand was there before this kernel started: see og_gemm_operands.
    bool b_is_there = false;
    // Whether the gathered operand arrives in chunks; and whether the kernel before says (`begun`) when all older work has
    // ended, so that its own end need not be awaited.
    bool awaits_chunks = false;
    bool awaits_begun = false;
    // Steps in all of K. A load of this step lies outside, and reads zeros.
    int32_t k_steps = 0;
    // Steps in a span of columns, which has a signal; more than there are where chunks arrive whole.
    int32_t span_steps = INT32_MAX;
    RecordTable records;
};

// `Base` is MainloopOfWidths (multiply_widths.cuh). The gathered operand is the kernel's A, or its B if the kernel computes D
// transposed; below, "gathered" and "other" are those two.
template <class Base, class KernelCluster, bool kTransposed, bool kVaries>
class GatheringMainloop : public Base {
public:
    using typename Base::MainloopPipeline;
    using typename Base::TensorStorage;
    using Stage = StageCursor<Base::kMostStages, kVaries>;

    // Along the kernel's columns: with kVaries, the widest tile's.
    static constexpr int32_t kWidth = cute::size<1>(typename Base::TileShape{});

    // Whether all blocks load rows of each tile of the other operand: see operand_rows.cuh.
    static constexpr bool kOtherByAll = cute::size<0>(KernelCluster{}) > 1 && cute::size<1>(KernelCluster{}) > 1;

    // How many stages the warps that multiply release only when they have begun the step behind.
    static constexpr int32_t kKeptStages = 1;

    // How many blocks of a cluster load the same rows.
    static constexpr int32_t kSharers = cute::size<kTransposed ? 0 : 1>(KernelCluster{});

    static_assert(!(kTransposed ? Base::kAcrossB : Base::kAcrossA), "rows arrive, not columns");
    static constexpr int kDepth = cute::size<2>(typename Base::TileShape{});
    static constexpr int kRowBytes = kDepth * int(sizeof(typename Base::ElementA));
    static_assert(sizeof(typename Base::ElementA) == sizeof(typename Base::ElementB));
    using RowsA = TileRows<typename Base::ElementA, Base::kAcrossA, cute::size<0>(typename Base::TileShape{}), kDepth,
                           cute::size<1>(KernelCluster{}), false, kOtherByAll && kTransposed>;
    using RowsB = TileRows<typename Base::ElementB, Base::kAcrossB, kWidth, kDepth, cute::size<0>(KernelCluster{}), kVaries,
                           kOtherByAll && !kTransposed>;

    struct Params {
        // What the first load needs, in one line of kernel parameters as in OrderParams; it ends with `gather.records.records`.
        alignas(kLineBytes) uint32_t tma_transaction_bytes;
        RowCounts counts_a;
        RowCounts counts_b;
        int32_t width;
        GatherParams gather;
        cutlass::FastDivmod stages;
        RowDescriptors rows_a;
        RowDescriptors rows_b;
        ChunkTable chunks;

        static_assert(2 * sizeof(uint32_t) + 2 * sizeof(RowCounts) + offsetof(GatherParams, records) + sizeof(void*) <=
                      kLineBytes);

        CUTLASS_DEVICE int32_t tile_rows() const {
            if constexpr (!kTransposed) return cute::size<0>(typename Base::TileShape{});
            return kVaries ? width : kWidth;
        }
        // Rows that a cluster computes at a time.
        CUTLASS_DEVICE int32_t unit_rows() const {
            return tile_rows() * int32_t(cute::size<kTransposed ? 1 : 0>(KernelCluster{}));
        }
    };

    // `a` and `b` are the kernel's operands, `width` that of this launch's tiles, along the kernel's columns.
    static Params encode(Operand const& a, Operand const& b, int64_t k, ChunkTable const& chunks, GatherParams const& gather,
                         int32_t width) {
        Params params{};
        params.chunks = chunks;
        params.gather = gather;
        params.width = width;
        params.stages = cutlass::FastDivmod(Base::stages(width));
        constexpr int rows = cute::size<0>(typename Base::TileShape{});
        RowsA::encode(params.rows_a, params.counts_a, a, k, rows, rows * cute::size<0>(KernelCluster{}));
        RowsB::encode(params.rows_b, params.counts_b, b, k, width, width * cute::size<1>(KernelCluster{}));
        params.tma_transaction_bytes = uint32_t(rows + width) * kRowBytes;
        return params;
    }

    // Loads the steps of K of this block's tile `tile`, counted from 0, into the stages from `stage` on. All lanes of the
    // loading warp call it together, and one of them, always the same, issues the loads. A load's operands have to be in
    // uniform registers. Where all lanes compute them, the compiler keeps them there; a lane on its own has to move them there
    // in each step, which took longer than a small tile's multiplications (benches/results/2026-11-27-h200-loader.md).
    template <class Work>
    CUTLASS_DEVICE void load(Params const& params, MainloopPipeline& pipeline, Stage stage, Work const& work,
                             TensorStorage& storage, uint32_t tile) {
        using namespace cute;
        GatherParams const& gather = params.gather;
        int32_t const tile_a = work.m, tile_b = work.n;
        int32_t const tile_m = kTransposed ? tile_b : tile_a;
        int32_t const tile_n = kTransposed ? tile_a : tile_b;
        if (gather.records.records && elect_one_sync()) record_begin(params, tile_m, tile_n, tile);

        // This block's place in its cluster says which part of a shared tile it fetches.
        uint32_t const rank_in_cluster = block_rank_in_cluster();
        uint32_t x = column_of(rank_in_cluster);
        uint32_t y = row_of(rank_in_cluster);
        uint16_t share_a = sharers_of_a(x);
        uint16_t share_b = sharers_of_b(y);
        auto const part_a = RowsA::part(params.rows_a, params.counts_a, tile_a, y);
        auto const part_b = RowsB::part(params.rows_b, params.counts_b, tile_b, x);
        // What comes into each of the tile's stages.
        uint32_t const stage_bytes =
            params.tma_transaction_bytes -
            uint32_t(RowsA::missing(params.counts_a, tile_a) + RowsB::missing(params.counts_b, tile_b)) * kRowBytes;
        auto load_a = [&](int32_t k, Stage const& to) {
            RowsA::load(part_a, params.counts_a, k, Base::stage_of_a(storage, params, to.index()),
                        shared_address(*pipeline.producer_get_barrier(to)), share_a);
        };
        auto load_b = [&](int32_t k, Stage const& to) {
            RowsB::load(part_b, params.counts_b, k, Base::stage_of_b(storage, params, to.index()),
                        shared_address(*pipeline.producer_get_barrier(to)), share_b);
        };
        auto load_gathered = [&](int32_t k, Stage const& to) {
            if constexpr (kTransposed) load_b(k, to); else load_a(k, to);
        };
        auto load_other = [&](int32_t k, Stage const& to) {
            if constexpr (kTransposed) load_a(k, to); else load_b(k, to);
        };
        auto prefetch_other = [&](int32_t k) {
            if constexpr (kTransposed) RowsA::prefetch(part_a, k); else RowsB::prefetch(part_b, k);
        };

        bool is_first = tile == 0;
        if (is_first && !gather.b_is_there) wait_for_kernels_before();
        bool const awaits_chunks = gather.awaits_chunks;
        int32_t k = work.k_begin;
        int32_t const k_end = k + work.k_count;
        int32_t span_end = span_of(gather, k).end;
        CUTLASS_PRAGMA_NO_UNROLL
        for (;; span_end += gather.span_steps) {
            int32_t const end = min(span_end, k_end);
            bool const is_last = end == k_end;
            // A step of K beyond the last reads as zeros, and fetches nothing.
            int32_t outside = 0;
            // Together, so that a plain product skips it by one jump: fetching instructions takes longer than executing them.
            if (!gather.is_plain) {
                // Steps of the other operand that were loaded while rows of the gathered one were missing.
                int32_t ahead = 0;
                // Often the watcher is many tiles ahead, and an earlier look has told.
                if ((awaits_chunks && !TileGate::is_open(gate_, spans_)) || (is_first && gather.b_is_there)) {
                    // Into as many stages as come free.
                    auto is_open = [&] {
                        if (awaits_chunks) gate_ = TileGate::look();
                        return TileGate::is_open(gate_, spans_);
                    };
                    // All but the stage that the multiplying warps keep until this span's first step is there.
                    int32_t const most = min(end - k, stage.count() - (k > work.k_begin ? kKeptStages : 0));
                    for (Stage to = stage; ahead < most && !is_open(); ++to, ++ahead) {
                        await_free(pipeline, to);
                        load_other(k + ahead, to);
                    }
                    // The stages are full, and memory is idle: prefetch what comes next of the other operand. Not all of it: the
                    // rows that are awaited would queue behind it. Not where other rows' tiles load the same columns anyway:
                    // 512x1792x4096 took 1 to 2 us longer (benches/results/2026-11-24-h100x2-shares.md). Ends: the watcher opens
                    // every gate, in time or when it gives up.
                    bool const goes_further = gather.m <= params.unit_rows();
                    for (int32_t next = ahead; awaits_chunks && !is_open();) {
                        if (goes_further && next < min(k_end - k, 2 * stage.count())) {
                            prefetch_other(k + next++);
                        } else {
                            // Looks take shared memory's time from the warps that multiply.
                            __nanosleep(20);
                        }
                    }
                    if (is_first && !gather.awaits_begun) wait_for_kernels_before();
                }
                is_first = false;
                ++spans_;
                if (is_last && gather.records.records && elect_one_sync()) record_ready(gather, tile_m, tile_n, tile);

                if ((gate_ & kStopped) != 0) outside = gather.k_steps;
                CUTLASS_PRAGMA_NO_UNROLL
                for (int32_t const begun = k + ahead; k < begun; ++k, ++stage) {
                    expect(pipeline, stage, stage_bytes);
                    load_gathered(k + outside, stage);
                }
            }
            CUTLASS_PRAGMA_NO_UNROLL
            for (; k < end; ++k, ++stage) {
                await_free(pipeline, stage);
                expect(pipeline, stage, stage_bytes);
                load_gathered(k + outside, stage);
                load_other(k, stage);
            }
            if (is_last) break;
        }
    }

    // Called when the loading warp has loaded its last tile, so that this block waits for no chunk any more. If it let the next
    // kernel start earlier, that kernel could take SMs which the awaited work needs. It first waits for the end of the kernel
    // before. So no kernel ends before an older one, and none starts before all that a step's beginning writes is visible:
    // gather.cu counts on that. `stage` is the one that would be filled next.
    CUTLASS_DEVICE void load_tail(MainloopPipeline& pipeline, Stage stage) {
        wait_for_kernels_before();
        let_next_kernel_start();
        // No block of a cluster ends before all have read what they share.
        for (int32_t left = stage.count(); left > 0; --left, ++stage) await_free(pipeline, stage);
    }

    // Waits until the next tile may be loaded, span after span, and opens their gates. The watching warp calls it.
    template <class Work>
    CUTLASS_DEVICE void watch(Params const& params, Work const& work) {
        GatherParams const& gather = params.gather;
        int32_t tile_m = kTransposed ? work.n : work.m;
        int32_t tile_n = kTransposed ? work.m : work.n;
        // Padding has no rows, and waits for the last chunk, like the last tile.
        int32_t const tile_rows = params.tile_rows();
        int32_t first_row = min(tile_m * tile_rows, gather.m - 1);
        int32_t first = params.chunks.of_row(first_row);
        int32_t last = params.chunks.of_row(min(first_row + tile_rows, gather.m) - 1);
        // None, where no rows are shared.
        uint32_t own = 0, sharers = 0;
        if constexpr (kSharers > 1) {
            // Read again, not kept: registers are few.
            own = cute::block_rank_in_cluster();
            sharers = kTransposed ? sharers_of_b(row_of(own)) : sharers_of_a(column_of(own));
        }
        uint32_t waiting = uint32_t(first_row / tile_rows);
        int32_t const k_end = work.k_begin + work.k_count;
        CUTLASS_PRAGMA_NO_UNROLL
        for (Span span = span_of(gather, work.k_begin);; ++span.number, span.end += gather.span_steps) {
            watcher_.open_next(params.chunks, span.number, first, last, waiting, uint32_t(tile_n), own, sharers);
            if (span.end >= k_end) break;
        }
    }

    // Whether a tile lies outside D: it fills a cluster up, and its block just loads rows for the others.
    template <class Work>
    CUTLASS_DEVICE static bool is_padding(Params const& params, Work const& work) {
        if constexpr (cute::size(KernelCluster{}) == 1) return false;
        bool const is_padding = RowsA::is_outside(params.counts_a, work.m) || RowsB::is_outside(params.counts_b, work.n);
        // The same for all lanes, which the compiler now knows.
        return __shfl_sync(0xffffffff, int(is_padding), 0) != 0;
    }

    // Called by one thread of a block.
    CUTLASS_DEVICE static void prefetch(Params const& params) {
        cute::prefetch_tma_descriptor(&params.rows_a.whole);
        cute::prefetch_tma_descriptor(&params.rows_b.whole);
        if (params.counts_a.rest_rows != 0) cute::prefetch_tma_descriptor(&params.rows_a.rest);
        if (params.counts_b.rest_rows != 0) cute::prefetch_tma_descriptor(&params.rows_b.rest);
    }

private:
    struct Span {
        int32_t number, end;
    };
    // The span of step `k`. Counted: a division takes longer, and the first tile waits for it.
    CUTLASS_DEVICE static Span span_of(GatherParams const& gather, int32_t k) {
        Span span{0, gather.span_steps};
        for (; span.end <= k; ++span.number) span.end += gather.span_steps;
        return span;
    }

    // A block's place in its cluster. Constants where there is one place: that saves registers.
    CUTLASS_DEVICE static uint32_t column_of(uint32_t rank_in_cluster) {
        return rank_in_cluster % uint32_t(cute::size<0>(KernelCluster{}));
    }
    CUTLASS_DEVICE static uint32_t row_of(uint32_t rank_in_cluster) {
        constexpr uint32_t rows = cute::size<1>(KernelCluster{});
        return rows == 1 ? 0 : rank_in_cluster / uint32_t(cute::size<0>(KernelCluster{}));
    }
    // The blocks of a cluster that load a tile of A together, those of its row, and a tile of B, those of its
    // column; each as a mask.
    CUTLASS_DEVICE static uint16_t sharers_of_a(uint32_t x) {
        uint16_t mask = 0;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < cute::size<1>(KernelCluster{}); ++i) {
            mask |= uint16_t(1u << cute::Layout<KernelCluster>{}(int(x), i, 0));
        }
        return mask;
    }
    CUTLASS_DEVICE static uint16_t sharers_of_b(uint32_t y) {
        uint16_t mask = 0;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < cute::size<0>(KernelCluster{}); ++i) {
            mask |= uint16_t(1u << cute::Layout<KernelCluster>{}(i, int(y), 0));
        }
        return mask;
    }

    // Arrives at a stage's barrier, which then completes when that number of bytes has come.
    CUTLASS_DEVICE static void expect(MainloopPipeline& pipeline, Stage const& stage, uint32_t bytes) {
        asm volatile(OG_BY_ONE_LANE("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;")::"r"(
                         shared_address(*pipeline.producer_get_barrier(stage))),
                     "r"(bytes)
                     : "memory");
    }

    // Waits until a stage may be filled, without arriving at its barrier.
    CUTLASS_DEVICE static void await_free(MainloopPipeline& pipeline, Stage const& stage) {
        while (pipeline.producer_try_acquire(stage) != cutlass::BarrierStatus::WaitDone) {
        }
    }

    // The index, among all slices of all tiles, of what this block computes after `tile` others: cluster + tile * clusters.
    CUTLASS_DEVICE static uint64_t work_index(uint32_t tile) {
        constexpr uint32_t cluster_x = cute::size<0>(KernelCluster{});
        return uint64_t(blockIdx.x / cluster_x) + uint64_t(tile) * (gridDim.x / cluster_x);
    }

    // Where the tile is recorded; null: nowhere.
    CUTLASS_DEVICE static og_tile_record* record_of(GatherParams const& gather, int32_t tile_m,
                                                    int32_t tile_n, uint64_t index) {
        return gather.records.at(tile_m, tile_n, int32_t(index % uint64_t(gather.records.splits)));
    }

    // Which tile it is, and that it begins to wait. Stored at once, not kept: registers are few.
    CUTLASS_DEVICE static void record_begin(Params const& params, int32_t tile_m, int32_t tile_n, uint32_t tile) {
        GatherParams const& gather = params.gather;
        uint64_t splits = uint64_t(gather.records.splits);
        uint64_t index = work_index(tile);
        auto* record = record_of(gather, tile_m, tile_n, index);
        if (!record) return;
        record->wait_begin = global_timer();
        // Linear indices of plan::TileOrder count the tiles of a unit, rows fastest.
        constexpr uint32_t rows = cute::size<kTransposed ? 1 : 0>(KernelCluster{});
        constexpr uint32_t blocks = cute::size(KernelCluster{});
        constexpr uint32_t columns = blocks / rows;
        uint64_t within = uint32_t(tile_n) % columns * rows + uint32_t(tile_m) % rows;
        record->index = (index / splits * blocks + within) * splits + index % splits;
        uint32_t sm;
        asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
        record->sm = sm;
        record->tile_m = uint32_t(tile_m);
        record->tile_n = uint32_t(tile_n);
        int32_t last_row = min((tile_m + 1) * params.tile_rows(), gather.m) - 1;
        record->chunk =
            gather.awaits_chunks ? uint32_t(params.chunks.of_row(last_row)) : UINT32_MAX;
    }

    // That the tile has all that it waited for.
    CUTLASS_DEVICE static void record_ready(GatherParams const& gather, int32_t tile_m, int32_t tile_n,
                                            uint32_t tile) {
        auto* record = record_of(gather, tile_m, tile_n, work_index(tile));
        if (record) record->ready = global_timer();
    }

    ChunkWatcher watcher_;
    // The gate, as the loading warp saw it last. What it says of a span stays true.
    uint32_t gate_ = 0;
    // How many spans the loading warp is through with.
    uint32_t spans_ = 0;
};

}  // namespace overlap_gemm
