// The functions of overlap_gemm.h, and the end of every exception.
//
// What belongs here: what is the same for all kernels. The kernels are in gemm_sm90.cuh, the checks in argument_checks.h.
// Invariant: nothing is enqueued unless every argument has passed the checks, and no exception
// passes `guarded`.
#include <cstdint>
#include <exception>
#include <string>

#include "argument_checks.h"
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
