# One file per instruction set, each with its own flags; never -march=native. Nothing in them may be inline code
# shared with the rest of the library (src/cpu/generic/vec.h).
set(tilewise_isa_flags -ffp-contract=fast -fno-math-errno $<$<CONFIG:Release>:-O3>)
# GCC 12 warns about its own _mm512_undefined_ps().
set(tilewise_avx512_flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -Wno-uninitialized
    -Wno-maybe-uninitialized)
set_source_files_properties(cpu/isa_scalar.cpp cpu/isa_neon.cpp PROPERTIES COMPILE_OPTIONS "${tilewise_isa_flags}")
set_source_files_properties(cpu/isa_avx2.cpp PROPERTIES COMPILE_OPTIONS "${tilewise_isa_flags};-mavx2;-mfma;-mf16c")
set_source_files_properties(cpu/isa_avx512.cpp PROPERTIES
                            COMPILE_OPTIONS "${tilewise_isa_flags};${tilewise_avx512_flags}")
set_source_files_properties(cpu/isa_avx512_bf16.cpp PROPERTIES
                            COMPILE_OPTIONS "${tilewise_isa_flags};${tilewise_avx512_flags};-mavx512bf16")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(tilewise_foreign cpu/isa_neon.cpp)
else()
  set(tilewise_foreign cpu/isa_avx2.cpp cpu/isa_avx512.cpp cpu/isa_avx512_bf16.cpp)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    list(APPEND tilewise_foreign cpu/isa_neon.cpp)
  endif()
endif()
set_source_files_properties(${tilewise_foreign} PROPERTIES HEADER_FILE_ONLY TRUE)
