# Target torch_stable: torch's headers restricted to the stable ABI of 2.11, and libtorch.so.
# NOTE: find_package(Torch) runs the old FindCUDA, fails with wheel or stripped toolkits and adds
# its own architectures; two paths are all that the stable ABI needs.

if(NOT PROBE_TORCH_DIR)
  message(FATAL_ERROR "fusedops: torch is not installed for ${probe_python}; run: pip install 'torch>=2.11'")
endif()
if(PROBE_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "fusedops: torch ${PROBE_TORCH_VERSION} is too old; run: pip install 'torch>=2.11'")
endif()

add_library(torch_stable INTERFACE)
target_include_directories(torch_stable SYSTEM INTERFACE ${PROBE_TORCH_DIR}/include)
target_compile_definitions(torch_stable INTERFACE TORCH_TARGET_VERSION=0x020b000000000000)
if(FUSEDOPS_CUDA)
  target_compile_definitions(torch_stable INTERFACE USE_CUDA) # the CUDA shims stand behind it
endif()
# NOTE: libtorch.so holds no symbol itself (libtorch_cpu.so behind it does), so a linker that
# defaults to --as-needed would drop it. At run time torch has loaded it already: no RPATH.
# The C++ runtime is torch's, whatever else the linker may find: errors cross from here into torch.
# NOTE: CMake adds the link folders of nvcc's host compiler. One that has libstdc++.a alone (some
# images' GCC), or -static-libstdc++, gave a library that loads and ends the process at its first
# error. Where there is no libstdc++.so.6 the link fails.
target_link_options(torch_stable INTERFACE LINKER:--no-as-needed -l:libstdc++.so.6)
target_link_libraries(torch_stable INTERFACE ${PROBE_TORCH_DIR}/lib/libtorch.so)
set(CMAKE_SKIP_RPATH ON)
