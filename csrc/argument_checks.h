// The checks of what a caller hands to overlap_gemm.h: one function for each struct.
//
// What belongs here: ranges, addresses and row strides that abi.cu checks before it enqueues anything. Each message names the
// argument, its value and the limit.
// Invariant: a check only reads its arguments, and throws `Failure` at the first one that is wrong.
#pragma once

#include <cstdint>
#include <string>

#include "instance.h"
#include "signals.h"

namespace overlap_gemm {
namespace {

constexpr int64_t kLastActivation = OG_ACTIVATION_SILU;

// `message` is a function, called on failure only: a step makes some fifty checks, and strings would take it 5 us.
template <class Message>
void require(bool ok, og_status status, Message message) {
    if (!ok) throw Failure(status, message());
}

void require_pointer(void const* pointer, char const* name) {
    require(pointer != nullptr, OG_STATUS_NULL_POINTER, [&] { return std::string(name) + " is null"; });
}

// `name` is a function, like a message.
template <class Name>
void check_named(Name name, int64_t value, int64_t least, int64_t most) {
    require(value >= least && value <= most, OG_STATUS_OUT_OF_RANGE, [&] {
        return name() + " is " + std::to_string(value) + ", must be " + std::to_string(least) + " to " +
               std::to_string(most);
    });
}

void check_range(char const* name, int64_t value, int64_t least, int64_t most) {
    check_named([&] { return std::string(name); }, value, least, most);
}

int64_t bytes_of(og_type type) {
    switch (type) {
        case OG_TYPE_F32: return 4;
        case OG_TYPE_E4M3:
        case OG_TYPE_E5M2: return 1;
        default: return 2;
    }
}

Instance const& kernel_of(int32_t index) {
    check_range("kernel", index, 0, int64_t(kInstanceCount) - 1);
    return *kInstances[index];
}

// Range before alignment, so that the product with the element size cannot overflow.
void check_pitch(char const* name, int64_t pitch, int64_t row, og_type type) {
    int64_t size = bytes_of(type);
    require(pitch >= row && pitch < OG_MAX_PITCH_BYTES / size, OG_STATUS_BAD_PITCH, [&] {
        return std::string(name) + " is " + std::to_string(pitch) + " elements, must be " + std::to_string(row) +
               " to " + std::to_string(OG_MAX_PITCH_BYTES / size - 1);
    });
}

void check_multiple(char const* what, int64_t bytes) {
    require(bytes % OG_ALIGNMENT_BYTES == 0, OG_STATUS_MISALIGNED, [&] {
        return std::string(what) + " is " + std::to_string(bytes) + " bytes, must be a multiple of " +
               std::to_string(OG_ALIGNMENT_BYTES);
    });
}

void check_address(char const* name, void const* address) {
    require_pointer(address, name);
    require(reinterpret_cast<std::uintptr_t>(address) % OG_ALIGNMENT_BYTES == 0, OG_STATUS_MISALIGNED, [&] {
        return std::string("the address of ") + name + " is no multiple of " + std::to_string(OG_ALIGNMENT_BYTES) +
               " bytes";
    });
}

og_kernel_facts const& check_shape(og_gemm_shape const* shape, bool with_c) {
    require_pointer(shape, "shape");
    og_gemm_shape const& s = *shape;
    og_kernel_facts const& k = kernel_of(s.kernel).facts;
    check_range("m", s.m, 1, OG_MAX_EXTENT);
    check_range("n", s.n, 1, OG_MAX_EXTENT);
    check_range("k", s.k, 1, OG_MAX_EXTENT);
    bool kn = k.b_layout == OG_LAYOUT_KN;
    check_pitch("lda", s.lda, s.k, k.a_type);
    check_pitch("ldb", s.ldb, kn ? s.n : s.k, k.b_type);
    check_range("gated", s.gated, 0, 1);
    check_range("reserved", s.reserved, 0, 0);
    int64_t const d_columns = s.gated ? s.n / 2 : s.n;
    if (s.gated) {
        check_range("n modulo 16 of a gated product", s.n % (2 * OG_GATE_COLUMNS), 0, 0);
        require(k.gates != 0, OG_STATUS_OUT_OF_RANGE, [&] { return std::string(k.name) + " computes no gated products"; });
        require(!with_c, OG_STATUS_OUT_OF_RANGE, [] { return "a gated product has no C"; });
    }
    check_pitch("ldd", s.ldd, d_columns, k.d_type);
    if (with_c) {
        og_type const c_type = bytes_of(k.d_type) == 1 ? OG_TYPE_BF16 : k.d_type;
        check_pitch("ldc", s.ldc, s.n, c_type);
        check_multiple("ldc", s.ldc * bytes_of(c_type));
    }
    check_multiple("lda", s.lda * bytes_of(k.a_type));
    check_multiple("ldb", s.ldb * bytes_of(k.b_type));
    check_multiple("ldd", s.ldd * bytes_of(k.d_type));
    // A TMA store writes whole 16-byte pieces: a ragged end would write zeros behind it (seen).
    check_multiple("a row of D", d_columns * bytes_of(k.d_type));
    check_range("swizzle", s.swizzle, 1, 1 << 14);
    int64_t k_steps = UnitGrid::ceil_div(s.k, k.tile_k);
    check_range("splits", s.splits, 1, k_steps < k.max_splits ? k_steps : k.max_splits);
    int64_t cluster = int64_t(k.cluster_m) * k.cluster_n;
    check_range("the number of tiles, slices of K included,",
                UnitGrid(k, s.m, s.n).count() * cluster * s.splits, 1, INT32_MAX);
    if (s.sm_count != 0) check_range("sm_count", s.sm_count, cluster, INT32_MAX);
    return k;
}

void check_spans(int32_t share_bits, int32_t span_bits, int32_t span_bytes) {
    check_range("span_bits", span_bits, 0, share_bits < OG_MAX_SPAN_BITS ? share_bits : OG_MAX_SPAN_BITS);
    if (span_bits == 0) return;
    check_range("span_bytes", span_bytes, OG_SPAN_UNIT_BYTES, INT32_MAX);
    check_range("span_bytes modulo OG_SPAN_UNIT_BYTES", span_bytes % OG_SPAN_UNIT_BYTES, 0, 0);
}

void check_others(og_gemm_operands const& o, og_gemm_plan const& plan) {
    if (!o.others) return;
    og_other_sums const& others = *o.others;
    og_kernel_facts const& kernel = kernel_of(plan.shape.kernel).facts;
    og_type type = kernel.d_type;
    require(kernel.adds_others != 0, OG_STATUS_OUT_OF_RANGE,
            [&] { return std::string(kernel.name) + " adds no others' sums: others must be null"; });
    require(!o.scale_a && !o.scale_b, OG_STATUS_OUT_OF_RANGE,
            [] { return "others must be null where A or B has scales"; });
    require(!plan.shape.gated, OG_STATUS_OUT_OF_RANGE, [] { return "others must be null where the product is gated"; });
    check_range("count", others.count, 1, OG_MAX_RANKS - 1);
    check_address("slots", others.slots);
    check_pitch("pitch", others.pitch, plan.shape.n, type);
    check_multiple("pitch", others.pitch * bytes_of(type));
    check_range("slot_pitch", others.slot_pitch, 0, INT64_MAX / OG_MAX_RANKS / bytes_of(type));
    check_multiple("slot_pitch", others.slot_pitch * bytes_of(type));
    require_pointer(others.stop, "stop");
    require_pointer(others.epoch, "epoch");
}

void check_input(og_gemm_input const& input, int64_t rows) {
    require_pointer(input.chunks, "chunks");
    require_pointer(input.signals, "signals");
    require_pointer(input.epoch, "epoch");
    require_pointer(input.stop, "stop");
    require_pointer(input.failure, "failure");
    check_range("slots_per_rank", input.slots_per_rank, 0, UINT16_MAX);
    check_range("share_bits", input.share_bits, 0, OG_MAX_SHARE_BITS);
    check_spans(input.share_bits, input.span_bits, input.span_bytes);
    check_range("chunk_count", input.chunk_count, 1, OG_MAX_CHUNKS);
    check_range("early_chunks", input.early_chunks, 0, input.chunk_count);
    bool pivot_found = false;
    for (int32_t c = 0; c < input.chunk_count; ++c) {
        og_chunk const& chunk = input.chunks[c];
        int64_t least = c == 0 ? 0 : int64_t(input.chunks[c - 1].first_row) + 1;
        auto named = [&](char const* what) { return [=] { return what + (" of chunk " + std::to_string(c)); }; };
        check_named(named("the first row"), chunk.first_row, least, c == 0 ? 0 : rows - 1);
        check_named(named("the signal"), chunk.signal, 0, UINT16_MAX);
        pivot_found |= chunk.first_row == input.pivot_row;
    }
    require(pivot_found, OG_STATUS_OUT_OF_RANGE, [&] {
        return "pivot_row is " + std::to_string(input.pivot_row) + ", must be a chunk's first row";
    });
}

// What a gather and a signal pad both are: words of all ranks, and a rank among them.
template <class Shared>
void check_shared(Shared const* shared, char const* name) {
    require_pointer(shared, name);
    require_pointer(shared->words, "words");
    require_pointer(shared->own, "own");
    require_pointer(shared->failure, "failure");
    check_range("ranks", shared->ranks, 1, INT32_MAX);
    check_range("rank", shared->rank, 0, int64_t(shared->ranks) - 1);
}

void check_gather(og_gather const* gather) {
    check_shared(gather, "gather");
    check_range("share_bits", gather->share_bits, 0, OG_MAX_SHARE_BITS);
}

void check_blocks(og_gather const& gather, og_gather_step const& step) {
    require_pointer(step.counter, "counter");
    check_spans(gather.share_bits, step.span_bits, step.span_bytes);
    check_range("blocks", step.blocks, 1, int64_t(1) << (gather.share_bits - step.span_bits));
}

void check_step(og_gather const& gather, og_gather_step const* step) {
    require_pointer(step, "step");
    check_range("buffer", step->buffer, 0, 1);
    check_range("own_slots", step->own_slots, 0, gather.slots);
    check_range("own_slot", step->own_slot, 0, int64_t(gather.slots) - step->own_slots);
    check_range("toggled", step->toggled, 0, 1);
    if (step->toggled != 0) check_range("share_bits of a step with toggles", gather.share_bits, 0, 0);
    check_range("product_follows", step->product_follows, 0, 1);
    check_range("product_may_start", step->product_may_start, 0, 1);
    check_range("awaits_beginnings", step->awaits_beginnings, 0, 1);
    check_range("senders", step->senders, 0, gather.signals_at - gather.sent_at);
    check_range("push_count", step->push_count, 0, OG_MAX_PUSHED);
    if (step->push_count == 0) return;
    require_pointer(step->pushes, "pushes");
    check_blocks(gather, *step);
    check_range("row_bytes", step->row_bytes, 1, step->row_pitch);
    check_range("row_pitch modulo OG_ALIGNMENT_BYTES", step->row_pitch % OG_ALIGNMENT_BYTES, 0, 0);
}

void check_slots(og_gather const& gather, og_slots const& slots) {
    check_range("count", slots.count, 1, gather.slots);
    check_range("stride", slots.stride, 1, gather.slots);
    int64_t behind = int64_t(slots.count - 1) * slots.stride;
    check_range("slot", slots.first, 0, int64_t(gather.slots) - 1 - behind);
}

void check_reduction(og_reduction const* reduction, int64_t least_rows) {
    require_pointer(reduction, "reduction");
    og_reduction const& r = *reduction;
    check_range("ranks", r.ranks, 1, OG_MAX_RANKS);
    check_range("rank", r.rank, 0, int64_t(r.ranks) - 1);
    check_range("rows", r.rows, least_rows, OG_MAX_EXTENT);
    check_range("n", r.n, 1, OG_MAX_EXTENT);
    require(r.sum_type == OG_TYPE_BF16 || r.sum_type == OG_TYPE_F32, OG_STATUS_OUT_OF_RANGE,
            [] { return "sum_type must be OG_TYPE_BF16 or OG_TYPE_F32"; });
    check_range("d_type", r.d_type, OG_TYPE_BF16, OG_TYPE_F32);
    check_range("activation", r.activation, OG_ACTIVATION_NONE, kLastActivation);
    check_range("average", r.average, 0, 1);
    check_pitch("pitch", r.pitch, r.n, r.sum_type);
    check_pitch("ldd", r.ldd, r.n, r.d_type);
    check_multiple("pitch", r.pitch * bytes_of(r.sum_type));
    check_multiple("ldd", r.ldd * bytes_of(r.d_type));
    check_multiple("a row of sums (n)", r.n * bytes_of(r.sum_type));
    check_multiple("a row of D (n)", r.n * bytes_of(r.d_type));
    check_address("d", r.d);
    if (r.words) {
        check_range("sums_at", int64_t(r.sums_at), 0, INT64_MAX);
        check_multiple("sums_at", int64_t(r.sums_at));
    } else {
        check_address("own", r.own);
    }
    if (!r.words && r.ranks > 1) {
        check_address("slots", r.slots);
        check_range("slot_pitch", r.slot_pitch, 0, INT64_MAX / OG_MAX_RANKS / bytes_of(r.sum_type));
        check_multiple("slot_pitch", r.slot_pitch * bytes_of(r.sum_type));
    }
    if (r.c) check_address("c", r.c);
    if (r.bias) check_address("bias", r.bias);
    require_pointer(r.stop, "stop");
    require_pointer(r.epoch, "epoch");
}

void check_exchange(og_gather const& gather, og_gather_step const& step, og_exchange const* exchange) {
    require_pointer(exchange, "exchange");
    og_exchange const& x = *exchange;
    check_range("toggled", step.toggled, 0, 0);
    check_range("push_count", step.push_count, 0, 0);
    check_blocks(gather, step);
    check_range("ranks", gather.ranks, 1, OG_MAX_PUSHED);
    check_range("sums_at", int64_t(x.sums_at), 0, INT64_MAX);
    check_multiple("sums_at", int64_t(x.sums_at));
    check_range("row_bytes", x.row_bytes, OG_ALIGNMENT_BYTES, OG_MAX_PITCH_BYTES - 1);
    check_multiple("row_bytes", x.row_bytes);
    check_range("sums_signalled", x.sums_signalled, 0, OG_MAX_PUSHED);
    check_range("totals_sent", x.totals_sent, 0, OG_MAX_PUSHED - x.sums_signalled);
    check_range("totals_stored", x.totals_stored, 0, OG_MAX_PUSHED - x.sums_signalled - x.totals_sent);
    check_range("sums_awaited", x.sums_awaited, 0, OG_MAX_PUSHED);
    check_range("totals_awaited", x.totals_awaited, 0, OG_MAX_PUSHED - x.sums_awaited);
    check_range("follows_product", x.follows_product, 0, 1);
    check_range("has_begun", x.has_begun, 0, 1);
    int32_t run_count = x.sums_signalled + x.totals_sent + x.totals_stored;
    int32_t awaited_count = x.sums_awaited + x.totals_awaited;
    if (run_count > 0) require_pointer(x.runs, "runs");
    if (awaited_count > 0) require_pointer(x.awaited, "awaited");
    // Pieces of 16 bytes are counted by 31 bits.
    int64_t most_rows = (int64_t(INT32_MAX) * 16) / x.row_bytes;
    if (x.brought) check_address("brought", x.brought);
    check_range("brought_rows", x.brought_rows, 0, most_rows);
    for (int32_t i = 0; i < run_count; ++i) {
        og_sums_run const& run = x.runs[i];
        check_range("peer of a run", run.peer, 0, int64_t(gather.ranks) - 1);
        check_range("slots of a run", run.slots, 0, gather.slots);
        check_range("slot of a run", run.slot, 0, int64_t(gather.slots) - run.slots);
        check_range("first_row of a run", run.first_row, 0, most_rows);
        check_range("rows of a run", run.rows, 0, most_rows - run.first_row);
        check_multiple("the place of a run", int64_t(run.to));
    }
    for (int32_t i = 0; i < awaited_count; ++i) check_slots(gather, x.awaited[i]);
    bool with_totals = x.totals_sent + x.totals_stored + x.totals_awaited > 0;
    if (with_totals) require_pointer(x.total, "total");
    if (!x.total) return;
    og_reduction const& total = *x.total;
    check_reduction(&total, with_totals ? 0 : 1);
    check_range("ranks of the total", total.ranks, gather.ranks, gather.ranks);
    require_pointer(total.words, "words of the total");
    int64_t before = int64_t(total.sums_at) - int64_t(x.sums_at);
    check_range("the place of the total", before, 0, most_rows * x.row_bytes);
    check_range("the place of the total modulo row_bytes", before % x.row_bytes, 0, 0);
    check_range("rows of the total", total.rows, 0, most_rows - before / x.row_bytes);
    require(total.pitch * bytes_of(total.sum_type) == x.row_bytes, OG_STATUS_BAD_PITCH,
            [] { return "the pitch of the total is not that of this rank's sums"; });
    if (!with_totals) return;
    require(total.n == total.pitch, OG_STATUS_BAD_PITCH, [] { return "totals are sent of all columns of a row, or of none"; });
    require(bytes_of(total.d_type) <= bytes_of(total.sum_type), OG_STATUS_OUT_OF_RANGE,
            [] { return "a total does not fit in the place of a sum: d_type is larger than sum_type"; });
}

void check_pad(og_pad const* pad) {
    check_shared(pad, "pad");
    check_range("channels", pad->channels, 1, INT32_MAX);
}

}  // namespace
}  // namespace overlap_gemm
