# Build options from -D or the environment; sets CMAKE_BUILD_TYPE, launchers and option_* variables.

# option_NAME = -DNAME, else the environment variable NAME, else the default.
# NOTE: not cached, so that a changed environment takes effect in a kept build folder.
function(fusedops_option name default)
  if(DEFINED ${name})
    set(value "${${name}}")
  elseif(DEFINED ENV{${name}})
    set(value "$ENV{${name}}")
  else()
    set(value "${default}")
  endif()
  set(option_${name} "${value}" PARENT_SCOPE)
endfunction()

fusedops_option(USE_CUDA auto)
fusedops_option(DEBUG 0)
fusedops_option(CUTLASS_DIR "")
fusedops_option(CUDAToolkit_ROOT "")
fusedops_option(FUSEDOPS_INSTANCE_JOBS 2)
fusedops_option(FUSEDOPS_PROBE_PYTHON "")
fusedops_option(TORCH_CUDA_ARCH_LIST "")
fusedops_option(CMAKE_CUDA_ARCHITECTURES "${option_TORCH_CUDA_ARCH_LIST}")
set(FUSEDOPS_INSTANCE_JOBS ${option_FUSEDOPS_INSTANCE_JOBS})

if(option_DEBUG)
  set(CMAKE_BUILD_TYPE Debug)
elseif(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
