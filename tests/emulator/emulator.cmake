# The emulator's own tests, and those of the CUDA kernels on it. It switches stacks by hand, on one
# platform.
if(NOT (CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64"))
  return()
endif()

add_library(emulated INTERFACE)
target_include_directories(emulated INTERFACE tests/emulator)
target_link_libraries(emulated INTERFACE tested)
# As nvcc takes it: 128-bit loads of whatever lies there, and pragmas of its own.
target_compile_options(emulated INTERFACE -fno-strict-aliasing -Wno-unknown-pragmas)

add_executable(test_emulator tests/emulator/test_emulator.cpp)
target_link_libraries(test_emulator PRIVATE emulated)
add_test(NAME emulator COMMAND test_emulator)

# The very sources that nvcc compiles.
file(GLOB kernels CONFIGURE_DEPENDS csrc/cuda/*.cu)
set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
add_library(kernels OBJECT ${kernels})
target_include_directories(kernels PUBLIC csrc)
target_link_libraries(kernels PUBLIC emulated)
foreach(name kv_compaction token_statistics vocabulary_mixture attention_states launch_limits)
  add_executable(test_emulated_${name} tests/emulator/test_${name}.cpp)
  target_link_libraries(test_emulated_${name} PRIVATE kernels)
  add_test(NAME emulated_${name} COMMAND test_emulated_${name})
endforeach()

# What the sanitizers must find in a kernel.
if(EK_SANITIZE)
  add_executable(memory_faults tests/emulator/memory_faults.cpp)
  target_link_libraries(memory_faults PRIVATE emulated)
  if(EK_SANITIZE STREQUAL "address")
    set(faults global shared local)
    set(report "AddressSanitizer: [a-z]+-buffer-overflow")
  else()
    set(faults alignment)
    set(report "misaligned address")
  endif()
  foreach(fault ${faults})
    add_test(NAME emulator_finds_${fault} COMMAND memory_faults ${fault})
    set_tests_properties(emulator_finds_${fault} PROPERTIES PASS_REGULAR_EXPRESSION "${report}")
  endforeach()
endif()
