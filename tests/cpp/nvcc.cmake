# The CUDA objects of every architecture, as setup.py builds them but with warnings and spilled
# registers for errors. Without a GPU and without torch; skipped where there is no nvcc.
find_program(EK_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin PATHS /usr/local/cuda/bin)
if(NOT EK_NVCC)
  message(STATUS "no nvcc: the CUDA objects are not built")
  return()
endif()

set(nvcc ${EK_NVCC} -std=c++17 -O3 -Werror=all-warnings -Xcompiler=-fPIC,-Wall,-Wextra,-Werror
    -Xptxas=-v,-warn-spills,-Werror -I${CMAKE_SOURCE_DIR}/csrc -I${CMAKE_SOURCE_DIR}/csrc/include)
foreach(architecture 80 90 100)
  list(APPEND nvcc -gencode=arch=compute_${architecture},code=sm_${architecture})
endforeach()
list(APPEND nvcc -gencode=arch=compute_100,code=compute_100)

file(GLOB sources CONFIGURE_DEPENDS csrc/cuda/*.cu)
file(GLOB_RECURSE headers CONFIGURE_DEPENDS csrc/cuda/*.h csrc/include/*.cuh csrc/include/*.hpp)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(OUTPUT ${object} COMMAND ${nvcc} -c ${source} -o ${object}
                     DEPENDS ${source} ${headers} COMMENT "nvcc ${name}.cu" VERBATIM)
  list(APPEND objects ${object})
endforeach()
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
add_custom_target(cuda_objects ALL DEPENDS ${objects})

add_test(NAME spills_are_errors
         COMMAND ${nvcc} -c ${CMAKE_SOURCE_DIR}/tests/cpp/spills.cu -o ${CMAKE_BINARY_DIR}/spills.o)
set_tests_properties(spills_are_errors PROPERTIES PASS_REGULAR_EXPRESSION
                     "error +: Registers are spilled to local memory")
