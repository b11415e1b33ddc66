# Asks Python (FUSEDOPS_PROBE_PYTHON, else the one that is built for) once where things are
# and whether this is a CUDA build (cmake/probe.py). Sets PROBE_*, FUSEDOPS_CUDA and FUSEDOPS_ARCHS.

set(probe_python ${Python_EXECUTABLE})
if(option_FUSEDOPS_PROBE_PYTHON)
  set(probe_python ${option_FUSEDOPS_PROBE_PYTHON})
endif()
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env "USE_CUDA=${option_USE_CUDA}"
          "CMAKE_CUDA_ARCHITECTURES=${option_CMAKE_CUDA_ARCHITECTURES}"
          "CUTLASS_DIR=${option_CUTLASS_DIR}" "CUDAToolkit_ROOT=${option_CUDAToolkit_ROOT}"
          ${probe_python} ${CMAKE_CURRENT_LIST_DIR}/probe.py
  OUTPUT_VARIABLE probe_output ERROR_VARIABLE probe_error RESULT_VARIABLE probe_failed)
if(probe_failed)
  message(FATAL_ERROR "fusedops: ${probe_error}")
endif()
cmake_language(EVAL CODE "${probe_output}")

set(FUSEDOPS_CUDA ${PROBE_CUDA})
set(FUSEDOPS_ARCHS ${PROBE_ARCHS})
message(STATUS "fusedops: USE_CUDA=${option_USE_CUDA} -> ${FUSEDOPS_CUDA}, architectures: ${FUSEDOPS_ARCHS}")
