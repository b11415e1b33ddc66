# Refuses a compiler whose libraries do not share libstdc++.so.6 with torch (GCC with
# -static-libstdc++, which some images build in; libc++): such a library loads, and then an error
# that leaves it for torch ends the process instead of becoming a Python exception.

try_compile(linked
  SOURCE_FROM_CONTENT throws.cpp "#include <stdexcept>\nint main() { throw std::runtime_error(\"\"); }\n"
  COPY_FILE ${CMAKE_BINARY_DIR}/throws NO_CACHE)
if(linked)
  file(STRINGS ${CMAKE_BINARY_DIR}/throws shared_runtime REGEX "^libstdc\\+\\+\\.so\\.6$")
  if(NOT shared_runtime)
    message(FATAL_ERROR "fusedops: ${CMAKE_CXX_COMPILER} does not link libstdc++.so.6, which torch's errors cross; name a compiler that does, as CXX=/usr/bin/g++, and drop -static-libstdc++ or -stdlib=libc++")
  endif()
endif()
