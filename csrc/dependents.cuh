// The start of a kernel that overlaps the end of the one before (programmatic dependent launch).
//
// What belongs here: the two instructions, and what a kernel may do before and after them.
// Invariant: a thread touches no memory that a kernel before may write, or still read, before it has waited
// here or has learned something, behind a barrier, from a thread that has.
#pragma once

namespace overlap_gemm {

// Until all that the kernels before have written is there to be read. Costs nothing the second time.
__device__ inline void wait_for_kernels_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// From here on, once every block has come here or ended, blocks of the next kernel may start where there is
// room.
__device__ inline void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace overlap_gemm
