# find_package(fusedops) of a project with ops of its own: the module's build rules for them.
#
#   find_package(Python REQUIRED COMPONENTS Interpreter)
#   execute_process(COMMAND ${Python_EXECUTABLE} -m fusedops info --cmake-dir
#                   OUTPUT_VARIABLE fusedops_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
#   find_package(fusedops REQUIRED)
#   fusedops_add_library(_ops kernels/my_op.cpp kernels/my_op.cu)
#
# The options are those of fusedops' own build: USE_CUDA, TORCH_CUDA_ARCH_LIST, DEBUG,
# CUDAToolkit_ROOT. Python must be the one that has torch and fusedops.
cmake_minimum_required(VERSION 3.25)

if(NOT Python_EXECUTABLE)
  message(FATAL_ERROR "fusedops: find_package(Python COMPONENTS Interpreter) must come before")
endif()
include(${CMAKE_CURRENT_LIST_DIR}/Options.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/Probe.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/TorchStable.cmake)
if(FUSEDOPS_CUDA)
  include(${CMAKE_CURRENT_LIST_DIR}/CudaToolkit.cmake)
endif()

# An installation has the headers beside cmake/, a source tree has them above it.
set(fusedops_INCLUDE_DIR ${CMAKE_CURRENT_LIST_DIR}/../include)
if(NOT EXISTS ${fusedops_INCLUDE_DIR}/csrc/common/dispatch.h)
  set(fusedops_INCLUDE_DIR ${CMAKE_CURRENT_LIST_DIR}/..)
endif()

# A library of ops, NAME.so: the given sources (.cu where this is a CUDA build) and ours.
function(fusedops_add_library name)
  set(sources ${ARGN})
  set(support ${fusedops_INCLUDE_DIR}/csrc/common/checks/op_boundary.cpp)
  if(FUSEDOPS_CUDA)
    list(APPEND support ${fusedops_INCLUDE_DIR}/csrc/common/host/launch.cpp
         ${fusedops_INCLUDE_DIR}/csrc/common/host/code_version.cu)
  else()
    list(FILTER sources EXCLUDE REGEX "\\.cu$")
  endif()
  list(APPEND sources ${support})
  if(FUSEDOPS_CUDA)
    fusedops_set_archs(sources)
  endif()
  add_library(${name} MODULE ${sources})
  set_target_properties(${name} PROPERTIES
    PREFIX "" POSITION_INDEPENDENT_CODE ON LINKER_LANGUAGE CXX
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${name} PRIVATE -std=c++20
    "$<$<COMPILE_LANGUAGE:CXX>:-fno-gnu-unique;-fno-trapping-math;-fno-math-errno>")
  target_include_directories(${name} PRIVATE ${fusedops_INCLUDE_DIR})
  target_link_libraries(${name} PRIVATE torch_stable)
  if(FUSEDOPS_CUDA)
    target_link_libraries(${name} PRIVATE cuda_build)
  endif()
endfunction()
