// The functions of overlap_gemm.h: checks, and the end of every exception.
//
// What belongs here: what is the same for all kernels. The kernels are in gemm_sm90.cuh.
// Invariant: nothing is enqueued unless every argument has passed the checks, and no exception
// passes `guarded`.
#include <cstdint>
#include <exception>
#include <string>

#include "instance.h"
#include "signals.h"

namespace overlap_gemm {
namespace {

thread_local std::string last_message;
thread_local int32_t last_cuda_error = 0;

// Runs `body`; an exception becomes a status and a message.
template <class Body>
og_status guarded(Body body) noexcept {
    try {
        try {
            last_message.clear();
            last_cuda_error = 0;
            body();
            return OG_STATUS_OK;
        } catch (Failure const& failure) {
            last_cuda_error = failure.cuda_error;
            last_message = failure.what();
            return failure.status;
        } catch (std::exception const& error) {
            last_message = error.what();
        } catch (...) {
            last_message = "an exception of unknown type";
        }
    } catch (...) {
        // Even the message could not be stored: out of memory.
    }
    return OG_STATUS_INTERNAL;
}

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

int device_attribute(cudaDeviceAttr attribute, int device) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
    return value;
}

// How many clusters may share the work, of those that fit. The block that adds up the slices of a tile waits for
// the others, and two products that each hold a part of the SMs must not wait for each other's. So nobody
// waits for a cluster that starts later: the slices of a tile lie side by side, in the order of the
// clusters, if one of the two numbers divides the other.
int clusters_in_order(int clusters, int splits) {
    while (clusters % splits != 0 && splits % clusters != 0) --clusters;
    return clusters;
}

void prepare(og_gemm_shape const* shape, og_gemm_plan* plan) {
    og_kernel_facts const& k = check_shape(shape, false);
    require_pointer(plan, "plan");
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    int major = device_attribute(cudaDevAttrComputeCapabilityMajor, device);
    int minor = device_attribute(cudaDevAttrComputeCapabilityMinor, device);
    require(major == 9 && minor == 0, OG_STATUS_ARCHITECTURE, [&] {
        return "device " + std::to_string(device) + " has compute capability " + std::to_string(major) + "." +
               std::to_string(minor) + ", the kernels are for 9.0 (Hopper)";
    });
    int device_sms = device_attribute(cudaDevAttrMultiProcessorCount, device);
    require(shape->sm_count <= device_sms, OG_STATUS_OUT_OF_RANGE, [&] {
        return "sm_count is " + std::to_string(shape->sm_count) + ", device " + std::to_string(device) + " has " +
               std::to_string(device_sms) + " SMs";
    });

    og_gemm_plan made{};
    made.shape = *shape;
    made.sm_count = shape->sm_count == 0 ? device_sms : shape->sm_count;
    int cluster = k.cluster_m * k.cluster_n;
    int fit = kernel_of(shape->kernel).prepare();
    int wanted = made.sm_count / cluster;
    made.cluster_count = fit < wanted ? fit : wanted;
    require(made.cluster_count >= 1, OG_STATUS_CUDA, [&] {
        return "no cluster of " + std::to_string(cluster) +
               " blocks fits on the device beside what occupies it (MIG, MPS limits?)";
    });
    made.cluster_count = clusters_in_order(made.cluster_count, shape->splits);
    UnitGrid units(k, shape->m, shape->n);
    made.workspace_bytes = SplitWorkspace(k, units, shape->splits).bytes;
    made.tile_count =
        UnitGrid::ceil_div(shape->m, k.tile_m) * UnitGrid::ceil_div(shape->n, k.tile_n);
    *plan = made;
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

void enqueue(og_gemm_plan const* plan, int64_t rows, og_gemm_operands const* operands,
             og_gemm_input const* input, og_tile_record* records, void* workspace, void* stream) {
    require_pointer(plan, "plan");
    require_pointer(operands, "operands");
    require(plan->cluster_count >= 1 && plan->sm_count >= 1, OG_STATUS_BAD_PLAN,
            [] { return "the plan is empty: call og_gemm_prepare first"; });
    og_gemm_operands const& o = *operands;
    check_shape(&plan->shape, o.c != nullptr);
    check_range("rows", rows, 1, plan->shape.m);
    check_address("a", o.a);
    check_address("b", o.b);
    check_address("d", o.d);
    if (o.c) check_address("c", o.c);
    check_range("activation", o.activation, OG_ACTIVATION_NONE, kLastActivation);
    check_range("b_is_there", o.b_is_there, 0, 1);
    check_others(o, *plan);
    require(bytes_of(kernel_of(plan->shape.kernel).facts.d_type) == 1 || (!o.scale_d && !o.amax_d), OG_STATUS_OUT_OF_RANGE,
            [] { return "scale_d and amax_d must be null unless D is fp8"; });
    require(workspace != nullptr || plan->workspace_bytes == 0, OG_STATUS_NULL_POINTER, [&] {
        return "workspace is null, the plan needs " + std::to_string(plan->workspace_bytes) + " bytes";
    });
    if (input) check_input(*input, rows);
    kernel_of(plan->shape.kernel)
        .enqueue(Launch{*plan, rows, o, input, records, workspace,
                        static_cast<cudaStream_t>(stream)});
}

}  // namespace
}  // namespace overlap_gemm

extern "C" {

int32_t og_abi_version(void) { return OG_ABI_VERSION; }

const char* og_last_error_message(void) { return overlap_gemm::last_message.c_str(); }

int32_t og_last_cuda_error(void) { return overlap_gemm::last_cuda_error; }

int32_t og_kernel_count(void) { return overlap_gemm::kInstanceCount; }

og_status og_kernel_info(int32_t index, og_kernel_facts* facts) {
    return overlap_gemm::guarded([&] {
        overlap_gemm::require_pointer(facts, "facts");
        *facts = overlap_gemm::kernel_of(index).facts;
    });
}

og_status og_gemm_check(const og_gemm_shape* shape, int32_t with_c) {
    return overlap_gemm::guarded([&] { overlap_gemm::check_shape(shape, with_c != 0); });
}

og_status og_gemm_prepare(const og_gemm_shape* shape, og_gemm_plan* plan) {
    return overlap_gemm::guarded([&] { overlap_gemm::prepare(shape, plan); });
}

og_status og_gemm_enqueue(const og_gemm_plan* plan, int64_t rows, const og_gemm_operands* operands,
                          const og_gemm_input* input, og_tile_record* records, void* workspace,
                          void* stream) {
    return overlap_gemm::guarded([&] {
        overlap_gemm::enqueue(plan, rows, operands, input, records, workspace, stream);
    });
}

og_status og_epoch_advance(uint32_t* epoch, void* stream) {
    return overlap_gemm::guarded([&] {
        overlap_gemm::require_pointer(epoch, "epoch");
        overlap_gemm::advance_epoch(epoch, static_cast<cudaStream_t>(stream));
    });
}

og_status og_signal_post(uint32_t* signals, int32_t count, const uint32_t* epoch, void* stream) {
    return overlap_gemm::guarded([&] {
        overlap_gemm::require_pointer(signals, "signals");
        overlap_gemm::require_pointer(epoch, "epoch");
        overlap_gemm::check_range("count", count, 1, INT32_MAX);
        overlap_gemm::post_signals(signals, count, epoch, static_cast<cudaStream_t>(stream));
    });
}

og_status og_gather_begin(const og_gather* gather, const og_gather_step* step, void* stream) {
    return overlap_gemm::guarded([&] {
        overlap_gemm::check_gather(gather);
        overlap_gemm::check_step(*gather, step);
        overlap_gemm::begin_gather(*gather, *step, static_cast<cudaStream_t>(stream));
    });
}

og_status og_gather_await(const og_gather* gather, const og_slots* slots, void* stream) {
    return overlap_gemm::guarded([&] {
        overlap_gemm::check_gather(gather);
        overlap_gemm::require_pointer(slots, "slots");
        overlap_gemm::check_slots(*gather, *slots);
        overlap_gemm::await_slots(*gather, *slots, static_cast<cudaStream_t>(stream));
    });
}

og_status og_reduce(const og_reduction* reduction, void* stream) {
    return overlap_gemm::guarded([&] {
        overlap_gemm::check_reduction(reduction, 1);
        overlap_gemm::reduce_sums(*reduction, static_cast<cudaStream_t>(stream));
    });
}

og_status og_exchange_sums(const og_gather* gather, const og_gather_step* step, const og_exchange* exchange, void* stream) {
    return overlap_gemm::guarded([&] {
        overlap_gemm::check_gather(gather);
        overlap_gemm::check_step(*gather, step);
        overlap_gemm::check_exchange(*gather, *step, exchange);
        overlap_gemm::exchange(*gather, *step, *exchange, static_cast<cudaStream_t>(stream));
    });
}

og_status og_pad_meet(const og_pad* pad, int32_t channel, int32_t peer, int32_t puts, int32_t waits,
                      void* stream) {
    return overlap_gemm::guarded([&] {
        overlap_gemm::check_pad(pad);
        overlap_gemm::check_range("channel", channel, 0, int64_t(pad->channels) - 1);
        overlap_gemm::check_range("peer", peer, -1, int64_t(pad->ranks) - 1);
        overlap_gemm::meet_on_pad(*pad, channel, peer, puts != 0, waits != 0,
                                  static_cast<cudaStream_t>(stream));
    });
}

og_status og_signals_prepare(void) {
    return overlap_gemm::guarded([&] {
        overlap_gemm::load_signal_kernels();
        overlap_gemm::load_gather_kernels();
        overlap_gemm::load_reduce_kernels();
        overlap_gemm::load_exchange_kernels();
        overlap_gemm::load_pad_kernels();
    });
}
}
