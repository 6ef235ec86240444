# Compiles CUDA sources with the nvcc of PyPI's wheels, which deploy/setup.sh puts beside torch. enable_language(CUDA) is of no use with
# it: it links a test program against libraries that the wheels lack.
#
# MUSTER_NVCC_FOUND; muster_cuda_object(OUT SOURCE.cu): an object file with code for sm_80 and sm_90, and PTX
# from which the driver compiles for GPUs after those. Not sm_90a: its PTX is for no other GPU, and no kernel here needs it. The kernels
# know no ATen: seconds a file.
set(MUSTER_NVCC "${MUSTER_PYTHON_ENV}/nvcc/nvidia/cu13/bin/nvcc" CACHE FILEPATH "nvcc 13, for the trainer's GPU kernels")
set(MUSTER_NVCC_FOUND OFF)
if(EXISTS "${MUSTER_NVCC}")
  set(MUSTER_NVCC_FOUND ON)
else()
  message(STATUS "No nvcc at ${MUSTER_NVCC}: the trainer's GPU kernels aren't compiled; deploy/setup.sh installs it")
endif()

function(muster_cuda_object out source)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
  get_filename_component(folder ${object} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(
    OUTPUT ${object} DEPFILE ${object}.d
    COMMAND ${MUSTER_NVCC} -c -std=c++17 -O3 -lineinfo -gencode arch=compute_80,code=sm_80
            -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90 -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler -fPIC,-Wall -cudart none -I${CMAKE_SOURCE_DIR} -isystem ${MUSTER_SITE_PACKAGES}/nvidia/cu13/include
            -MD -MT ${object} -MF ${object}.d -o ${object} ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    COMMENT "Compiling ${source} for GPUs" VERBATIM)
  set(${out} ${object} PARENT_SCOPE)
endfunction()
