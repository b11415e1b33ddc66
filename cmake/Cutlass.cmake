# Target cutlass: CUTLASS's headers from CUTLASS_DIR or the nvidia-cutlass wheel. Nothing is
# downloaded.

if(NOT PROBE_CUTLASS_INCLUDE)
  message(FATAL_ERROR "fusedops: CUTLASS headers not found (CUTLASS_DIR='${option_CUTLASS_DIR}'); run: pip install --no-deps nvidia-cutlass==4.2.0.0")
endif()
if(PROBE_CUTLASS_VERSION VERSION_LESS 4.2)
  message(FATAL_ERROR "fusedops: CUTLASS ${PROBE_CUTLASS_VERSION} is too old; run: pip install --no-deps nvidia-cutlass==4.2.0.0")
endif()
add_library(cutlass INTERFACE)
target_include_directories(cutlass SYSTEM INTERFACE ${PROBE_CUTLASS_INCLUDE})
