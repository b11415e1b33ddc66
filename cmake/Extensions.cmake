# What extensions outside of this tree build with: the headers they may include, our few sources
# that go into each of them, and the CMake package (fusedopsConfig.cmake). An editable install has
# them in the tree.
if(SKBUILD_STATE STREQUAL "editable")
  return()
endif()

# Files of a folder that match the patterns keep their paths below include/.
function(fusedops_install_headers)
  foreach(pattern IN LISTS ARGN)
    file(GLOB_RECURSE files RELATIVE ${PROJECT_SOURCE_DIR} ${pattern})
    foreach(file IN LISTS files)
      cmake_path(GET file PARENT_PATH folder)
      install(FILES ${file} DESTINATION fusedops/include/${folder} COMPONENT extensions)
    endforeach()
  endforeach()
endfunction()

fusedops_install_headers(
  csrc/common/*.h csrc/common/*.cuh csrc/cuda/rows/team/*.h csrc/cuda/rows/team/*.cuh
  csrc/cutlass/kernels/visitor/visitor_abi.h
  csrc/common/checks/op_boundary.cpp csrc/common/host/launch.cpp csrc/common/host/code_version.cu
  csrc/cuda/rows/team/row_plan.cu)
file(GLOB headers RELATIVE ${PROJECT_SOURCE_DIR} csrc/cpu/*.h)
install(FILES ${headers} DESTINATION fusedops/include/csrc/cpu COMPONENT extensions)
install(FILES cmake/fusedopsConfig.cmake cmake/Options.cmake cmake/Probe.cmake
              cmake/TorchStable.cmake cmake/CudaToolkit.cmake cmake/probe.py
              cmake/nvcc-requirements.txt
        DESTINATION fusedops/cmake COMPONENT extensions)
