// Ranks that wait for each other on their GPUs, at points that the caller chooses. The words are described at
// og_pad.
//
// Invariant: a signal is stored with release at system scope, after everything that its stream did before;
// counts only grow (and wrap), so nothing is ever reset, and a graph can be launched again and again; every
// wait ends with its signal, the limit, the abort word, or the departure of the rank that would signal.
#include "instance.h"
#include "signals.h"
#include "waiting.cuh"

namespace overlap_gemm {
namespace {

// What this stream does next may disturb those that it has not waited for: they have to know before. Their hosts look at the word
// when their streams have ended; a signal of this rank comes behind its fence. Every lane stores the word: so it precedes the fence
// of each lane, which puts signals of its own.
__device__ void tell_that_it_gave_up(og_pad const& pad) {
    store_relaxed_system(&pad.failure->gave_up, 1);
    __threadfence_system();
}

__global__ void __launch_bounds__(kWarp)
    meet(__grid_constant__ og_pad const pad, int32_t channel, int32_t first, int32_t count, bool puts,
         bool waits) {
    int32_t all = pad.channels * pad.ranks;
    int32_t of_channel = OG_PAD_HEADER + channel * pad.ranks;
    uint32_t* received = pad.own + of_channel + first;
    uint32_t* sent = received + all;
    uint32_t* awaited = sent + all;
    // What others send of a step that was given up may still be on its way when all have come here.
    if (pad.stop && load_relaxed_gpu(&pad.stop->given_up) != 0) tell_that_it_gave_up(pad);
    for (int32_t i = lane_id(); puts && i < count; i += kWarp) {
        // Pairs with the acquire of `await_words` over there.
        store_release_system(pad.words[first + i] + of_channel + pad.rank, ++sent[i]);
    }
    if (!waits || pad.own[0] != 0) return;
    for (int32_t i = lane_id(); i < count; i += kWarp) ++awaited[i];
    Finding finding;
    await_words(
        Patience(pad.abort, pad.timeout_ns), count, OG_FAILURE_ABSENT,
        [=](int32_t i) { return received + i; }, [=](int32_t i) { return awaited[i]; },
        [=](int32_t i) { return uint32_t(first + i); }, [] { return false; }, finding);
    if (!finding.is_bad()) return;
    tell_that_it_gave_up(pad);
    if (lane_id() != 0) return;
    finding.who += uint32_t(first);
    finding.record(pad.failure);
    pad.own[0] = 1;
}

}  // namespace

void meet_on_pad(og_pad const& pad, int32_t channel, int32_t peer, bool puts, bool waits,
                 cudaStream_t stream) {
    int32_t first = peer < 0 ? 0 : peer;
    int32_t count = peer < 0 ? pad.ranks : 1;
    launch(meet, 1, kWarp, stream, "launch of meet", pad, channel, first, count, puts, waits);
}

void load_pad_kernels() {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, meet), "cudaFuncGetAttributes(meet)");
}

}  // namespace overlap_gemm
