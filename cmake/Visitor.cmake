# The main loops that epilogues of one's own are linked into (python/fusedops/_epilogue), compiled to
# LTO-IR and installed beside that package. No part of the module.

set(visitor_files)
set(visitor_source ${PROJECT_SOURCE_DIR}/csrc/cutlass/visitor/sm90_visitor_ir.cu)
file(GLOB_RECURSE visitor_headers CONFIGURE_DEPENDS csrc/common/*.h csrc/common/*.cuh
     csrc/cutlass/configs/*.h csrc/cutlass/kernels/*.h csrc/cutlass/kernels/*.cuh)
foreach(element bf16 fp16)
  set(type $<IF:$<STREQUAL:${element},bf16>,cutlass::bfloat16_t,cutlass::half_t>)
  foreach(config 1 5 6 10 12 13) # CONFIGS of launch.py
    set(file ${CMAKE_CURRENT_BINARY_DIR}/visitor_ir/${element}_${config}.ltoir)
    add_custom_command(
      OUTPUT ${file}
      COMMAND ${CMAKE_CUDA_COMPILER} -ltoir -rdc=true -gencode=arch=compute_90a,code=lto_90a
              -O3 -DNDEBUG -std=c++20 --expt-relaxed-constexpr --expt-extended-lambda
              -diag-suppress=177,1427,20012,20013,20015 -DCUTLASS_ENABLE_GDC_FOR_SM90
              -DFUSEDOPS_VISITOR_ELEMENT=${type} -DFUSEDOPS_VISITOR_CONFIG=${config}
              -I${PROJECT_SOURCE_DIR} -isystem ${PROBE_CUTLASS_INCLUDE}
              ${visitor_source} -o ${file}
      DEPENDS ${visitor_source} ${visitor_headers}
      JOB_POOL cutlass VERBATIM)
    list(APPEND visitor_files ${file})
  endforeach()
endforeach()
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/visitor_ir)
add_custom_target(fusedops_visitor_ir ALL DEPENDS ${visitor_files})
install(FILES ${visitor_files} DESTINATION fusedops/_epilogue/ir)
