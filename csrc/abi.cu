// The functions of overlap_gemm.h: checks, the choice of a kernel, and the end of every exception.
//
// What belongs here: what is the same for all kernels. The kernels are in instances/.
// Invariant: nothing is enqueued unless every argument has passed `check_params`, and no exception
// passes `guarded`.
#include <cstdint>
#include <exception>
#include <string>

#include "instance.h"

namespace overlap_gemm {
namespace {

thread_local std::string last_message;

// Runs `body`; whatever it throws becomes a status and a message.
template <class Body>
og_status guarded(Body body) noexcept {
    try {
        try {
            last_message.clear();
            body();
            return OG_STATUS_OK;
        } catch (Failure const& failure) {
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

void require(bool ok, og_status status, std::string const& message) {
    if (!ok) throw Failure(status, message);
}

constexpr int64_t kElementBytes = 2;  // bf16

// The one kernel there is so far serves every problem.
Instance const& choose(og_gemm_params const&) { return bf16_128x256_coop_2x1; }

void check_extent(char const* name, int64_t value) {
    require(value >= 1 && value <= OG_MAX_EXTENT, OG_STATUS_OUT_OF_RANGE,
            std::string(name) + " is " + std::to_string(value) + ", must be 1 to " +
                std::to_string(OG_MAX_EXTENT));
}

// Range before alignment, so that the product with the element size cannot overflow.
void check_pitch(char const* name, int64_t pitch, int64_t row) {
    require(pitch >= row && pitch < OG_MAX_PITCH_BYTES / kElementBytes, OG_STATUS_BAD_PITCH,
            std::string(name) + " is " + std::to_string(pitch) + " elements, must be " +
                std::to_string(row) + " to " +
                std::to_string(OG_MAX_PITCH_BYTES / kElementBytes - 1));
    require(pitch * kElementBytes % OG_ALIGNMENT_BYTES == 0, OG_STATUS_MISALIGNED,
            std::string(name) + " is " + std::to_string(pitch * kElementBytes) +
                " bytes, must be a multiple of " + std::to_string(OG_ALIGNMENT_BYTES));
}

void check_address(char const* name, void const* address) {
    require(reinterpret_cast<std::uintptr_t>(address) % OG_ALIGNMENT_BYTES == 0,
            OG_STATUS_MISALIGNED,
            std::string("the address of ") + name + " is no multiple of " +
                std::to_string(OG_ALIGNMENT_BYTES) + " bytes");
}

void check_params(og_gemm_params const* params) {
    require(params != nullptr, OG_STATUS_NULL_POINTER, "params is null");
    og_gemm_params const& p = *params;
    check_extent("m", p.m);
    check_extent("n", p.n);
    check_extent("k", p.k);
    // A TMA store writes whole 16-byte pieces: a ragged end would write zeros behind it (seen).
    require(p.n * kElementBytes % OG_ALIGNMENT_BYTES == 0, OG_STATUS_MISALIGNED,
            "a row of D (n) is " + std::to_string(p.n * kElementBytes) +
                " bytes, must be a multiple of " + std::to_string(OG_ALIGNMENT_BYTES));
    Instance const& kernel = choose(p);
    int64_t tiles = ((p.m + kernel.tile_m - 1) / kernel.tile_m) *
                    ((p.n + kernel.tile_n - 1) / kernel.tile_n);
    require(tiles <= INT32_MAX, OG_STATUS_OUT_OF_RANGE,
            "m and n make " + std::to_string(tiles) + " output tiles, must be at most " +
                std::to_string(INT32_MAX));
    check_pitch("lda", p.lda, p.k);
    check_pitch("ldb", p.ldb, p.k);
    check_pitch("ldd", p.ldd, p.n);
    check_address("a", p.a);
    check_address("b", p.b);
    check_address("d", p.d);
    require(p.sm_count == 0 || p.sm_count >= OG_MIN_SM_COUNT, OG_STATUS_OUT_OF_RANGE,
            "sm_count is " + std::to_string(p.sm_count) + ", must be 0 (all) or at least " +
                std::to_string(OG_MIN_SM_COUNT));
}

int device_attribute(cudaDeviceAttr attribute, int device) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
    return value;
}

void prepare(og_gemm_params const* params, og_gemm_plan* plan) {
    check_params(params);
    require(plan != nullptr, OG_STATUS_NULL_POINTER, "plan is null");
    // An error that an earlier call left on this thread is not this call's.
    (void)cudaGetLastError();
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    int major = device_attribute(cudaDevAttrComputeCapabilityMajor, device);
    int minor = device_attribute(cudaDevAttrComputeCapabilityMinor, device);
    require(major == 9 && minor == 0, OG_STATUS_ARCHITECTURE,
            "device " + std::to_string(device) + " has compute capability " +
                std::to_string(major) + "." + std::to_string(minor) +
                ", the kernels are for 9.0 (Hopper)");
    int device_sms = device_attribute(cudaDevAttrMultiProcessorCount, device);
    require(params->sm_count <= device_sms, OG_STATUS_OUT_OF_RANGE,
            "sm_count is " + std::to_string(params->sm_count) + ", device " +
                std::to_string(device) + " has " + std::to_string(device_sms) + " SMs");

    Instance const& kernel = choose(*params);
    og_gemm_plan made{};
    made.sm_count = params->sm_count == 0 ? device_sms : params->sm_count;
    int fit = kernel.prepare(*params, made);
    int wanted = made.sm_count / kernel.cluster_size;
    made.cluster_count = fit < wanted ? fit : wanted;
    require(made.cluster_count >= 1, OG_STATUS_CUDA,
            "no cluster of " + std::to_string(kernel.cluster_size) +
                " blocks fits on the device beside what occupies it (MIG, MPS limits?)");
    *plan = made;
}

void enqueue(og_gemm_params const* params, og_gemm_plan const* plan, void* workspace,
             void* stream) {
    check_params(params);
    require(plan != nullptr, OG_STATUS_NULL_POINTER, "plan is null");
    require(params->a && params->b && params->d, OG_STATUS_NULL_POINTER,
            "a, b or d is null");
    require(plan->cluster_count >= 1 && plan->sm_count >= OG_MIN_SM_COUNT, OG_STATUS_BAD_PLAN,
            "the plan is empty: call og_gemm_prepare first");
    require(workspace != nullptr || plan->workspace_bytes == 0, OG_STATUS_NULL_POINTER,
            "workspace is null, the plan needs " + std::to_string(plan->workspace_bytes) +
                " bytes");
    (void)cudaGetLastError();
    choose(*params).enqueue(*params, *plan, workspace, static_cast<cudaStream_t>(stream));
}

}  // namespace
}  // namespace overlap_gemm

extern "C" {

int32_t og_abi_version(void) { return OG_ABI_VERSION; }

const char* og_status_string(og_status status) {
    switch (status) {
        case OG_STATUS_OK: return "ok";
        case OG_STATUS_NULL_POINTER: return "null pointer";
        case OG_STATUS_OUT_OF_RANGE: return "out of range";
        case OG_STATUS_BAD_PITCH: return "bad row pitch";
        case OG_STATUS_MISALIGNED: return "misaligned";
        case OG_STATUS_ARCHITECTURE: return "unsupported architecture";
        case OG_STATUS_BAD_PLAN: return "bad plan";
        case OG_STATUS_CUDA: return "CUDA call failed";
        case OG_STATUS_INTERNAL: return "internal error";
    }
    return "unknown status";
}

const char* og_last_error_message(void) { return overlap_gemm::last_message.c_str(); }

og_status og_gemm_check(const og_gemm_params* params) {
    return overlap_gemm::guarded([&] { overlap_gemm::check_params(params); });
}

og_status og_gemm_prepare(const og_gemm_params* params, og_gemm_plan* plan) {
    return overlap_gemm::guarded([&] { overlap_gemm::prepare(params, plan); });
}

og_status og_gemm_enqueue(const og_gemm_params* params, const og_gemm_plan* plan, void* workspace,
                          void* stream) {
    return overlap_gemm::guarded(
        [&] { overlap_gemm::enqueue(params, plan, workspace, stream); });
}
}
