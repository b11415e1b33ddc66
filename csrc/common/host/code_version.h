// For which GPUs this library has code.
#pragma once

namespace fusedops {

// What the kernels that are compiled for every architecture were written for on the current device
// (PTX of 8.0: 80); 0: no code for it. An error where the GPU has no memory for the code.
int generic_code_version();

}  // namespace fusedops
