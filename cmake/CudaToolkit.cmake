# Enables CUDA with whatever nvcc the probe found (system toolkit, stripped toolkit or PyPI wheels).
# Target cuda_build: headers, flags and the static runtime, for every target with CUDA in it.
# fusedops_set_archs(LIST): gives each .cu in LIST its architectures, drops what is not asked for.

set(CUDA_WHEELS "pip install -r cmake/nvcc-requirements.txt")
if(NOT PROBE_NVCC)
  message(FATAL_ERROR "fusedops: no nvcc in CUDAToolkit_ROOT, CUDA_HOME, PATH or the wheels; run: ${CUDA_WHEELS} (or build with USE_CUDA=0)")
endif()

set(CMAKE_CUDA_COMPILER ${PROBE_NVCC})
set(CMAKE_CUDA_ARCHITECTURES OFF) # every file has its own, see fusedops_set_archs
# NOTE: the wheels keep libraries in lib/ while their nvcc.profile says lib64/: without this CMake's
# compiler check cannot link.
cmake_path(GET PROBE_NVCC PARENT_PATH nvcc_bin)
set(ENV{LIBRARY_PATH} "${nvcc_bin}/../lib:$ENV{LIBRARY_PATH}")
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
  message(FATAL_ERROR "fusedops: nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old, 12.8 or newer is needed; run: ${CUDA_WHEELS}")
endif()

# NOTE: the runtime is linked statically. The module then loads with a CPU-only torch (which brings
# no libcudart) and with a torch built for another CUDA; streams, graphs and memory are the
# driver's, so torch's own copy of the runtime sees the same ones.
find_library(CUDART_STATIC cudart_static REQUIRED NO_CACHE NO_DEFAULT_PATH
  PATHS ${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT} ${nvcc_bin}/..
  PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib)
find_path(CUDART_INCLUDE cuda_runtime.h REQUIRED NO_CACHE NO_DEFAULT_PATH
  PATHS ${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT} ${nvcc_bin}/..
  PATH_SUFFIXES include targets/x86_64-linux/include)
if(NOT EXISTS ${CUDART_INCLUDE}/cccl/cuda/std AND NOT EXISTS ${CUDART_INCLUDE}/cuda/std)
  message(FATAL_ERROR "fusedops: CUDA's C++ headers (CCCL) are missing beside nvcc; run: ${CUDA_WHEELS}")
endif()
find_package(Threads REQUIRED)

add_library(cuda_build INTERFACE)
target_include_directories(cuda_build SYSTEM INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${CUDART_INCLUDE}>)
target_compile_options(cuda_build INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--expt-extended-lambda;--compress-mode=size>"
  # CUTLASS: unused variables, host functions called from device code that never are
  "$<$<COMPILE_LANGUAGE:CUDA>:-diag-suppress=177,20012,20013,20015;-Xptxas=-w>"
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<CONFIG:Debug>>:-lineinfo>)
target_link_libraries(cuda_build INTERFACE ${CUDART_STATIC} Threads::Threads rt dl)
target_link_options(cuda_build INTERFACE LINKER:--exclude-libs,libcudart_static.a)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)

# sm90_*.cu is compiled for 90a alone, everything else for every requested architecture.
function(fusedops_set_archs list)
  foreach(source IN LISTS ${list})
    cmake_path(GET source FILENAME name)
    set(archs ${FUSEDOPS_ARCHS})
    if(name MATCHES "^sm90_.*\\.cu$")
      list(FILTER archs INCLUDE REGEX "^90a$")
      if(NOT archs)
        list(REMOVE_ITEM ${list} ${source})
        continue()
      endif()
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS CUTLASS_ENABLE_GDC_FOR_SM90)
    endif()
    if(NOT name MATCHES "\\.cu$")
      continue()
    endif()
    foreach(arch IN LISTS archs)
      string(REPLACE "-virtual" "" number "${arch}")
      set(code sm_${number})
      if(arch MATCHES "-virtual$")
        set(code compute_${number})
      endif()
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -gencode=arch=compute_${number},code=${code})
    endforeach()
  endforeach()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()
