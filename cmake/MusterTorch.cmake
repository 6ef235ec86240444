# libtorch, NCCL and the CUDA runtime from the pip wheels in MUSTER_PYTHON_ENV, as the imported target muster::torch.
#
# Not find_package(Torch): it probes a system CUDA, wants unversioned libraries that the wheels lack, and defines a dummy
# protobuf::libprotobuf. Nothing that links this target may link protobuf or gRPC: libtorch exports protobuf symbols of its own.
if(NOT MUSTER_PYTHON_ENV)
  message(FATAL_ERROR "MUSTER_TRAINER is on, but MUSTER_PYTHON_ENV is not set. Run deploy/setup.sh, which makes the Python "
                      "environment and prints its path, or configure with -DMUSTER_TRAINER=OFF.")
endif()
file(GLOB MUSTER_SITE_PACKAGES LIST_DIRECTORIES true "${MUSTER_PYTHON_ENV}/lib/python3.*/site-packages")
list(LENGTH MUSTER_SITE_PACKAGES _found)
if(NOT _found EQUAL 1 OR NOT EXISTS "${MUSTER_SITE_PACKAGES}/torch/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No torch in MUSTER_PYTHON_ENV=${MUSTER_PYTHON_ENV}. Run deploy/setup.sh, or configure with "
                      "-DMUSTER_TRAINER=OFF.")
endif()
set(_torch "${MUSTER_SITE_PACKAGES}/torch")
set(_nvidia "${MUSTER_SITE_PACKAGES}/nvidia")

# ProcessGroupGloo.hpp needs gloo's headers, which the wheel leaves out. libgloo itself is inside libtorch_cpu: not linked here.
find_path(MUSTER_GLOO_INCLUDE gloo/algorithm.h)
if(NOT MUSTER_GLOO_INCLUDE)
  message(FATAL_ERROR "gloo's headers are missing: apt-get install libgloo-dev, or configure with -DMUSTER_TRAINER=OFF.")
endif()

add_library(muster_torch INTERFACE)
add_library(muster::torch ALIAS muster_torch)
target_include_directories(muster_torch SYSTEM INTERFACE
  ${_torch}/include ${_torch}/include/torch/csrc/api/include
  ${_nvidia}/cu13/include ${_nvidia}/nccl/include ${_nvidia}/cudnn/include ${MUSTER_GLOO_INCLUDE}
  # cuda_runtime.h wants crt/*.h, which the runtime's wheel leaves to the compiler's; triton, which torch brings, has them.
  ${MUSTER_SITE_PACKAGES}/triton/backends/nvidia/include ${CMAKE_CURRENT_LIST_DIR}/../trainer/parallel/host_cuda)
target_compile_definitions(muster_torch INTERFACE USE_C10D_GLOO USE_C10D_NCCL USE_CUDA)
target_compile_options(muster_torch INTERFACE -Wno-interference-size)
# Where the programs look for torch: in what they were compiled with, or in what a package's host has (deploy/debian).
set(MUSTER_INSTALLED_PYTHON "${MUSTER_PYTHON_ENV}" CACHE PATH "Python environment with torch, where the trainer runs")
string(REPLACE "${MUSTER_PYTHON_ENV}" "${MUSTER_INSTALLED_PYTHON}" MUSTER_INSTALLED_PACKAGES "${MUSTER_SITE_PACKAGES}")
if(NOT MUSTER_INSTALLED_PYTHON STREQUAL MUSTER_PYTHON_ENV)
  set(CMAKE_SKIP_BUILD_RPATH ON)  # what follows says it all
endif()
target_link_options(muster_torch INTERFACE
  LINKER:--no-as-needed LINKER:--unresolved-symbols=ignore-in-shared-libs
  LINKER:-rpath,${MUSTER_INSTALLED_PACKAGES}/torch/lib LINKER:-rpath,${MUSTER_INSTALLED_PACKAGES}/nvidia/cu13/lib
  LINKER:-rpath,${MUSTER_INSTALLED_PACKAGES}/nvidia/nccl/lib)
# libstdc++ first: libtorch_cpu exports an older one's std::filesystem, and half of each crashes (directory iterators).
target_link_libraries(muster_torch INTERFACE stdc++)
foreach(_lib torch torch_cpu torch_cuda c10 c10_cuda)
  target_link_libraries(muster_torch INTERFACE ${_torch}/lib/lib${_lib}.so)
endforeach()
# Its OpenMP, for what is compiled with -fopenmp: at::parallel_for is serial without, and a second runtime would bring threads of its own.
file(GLOB _openmp ${_torch}/lib/libgomp*.so*)
target_link_libraries(muster_torch INTERFACE ${_nvidia}/cu13/lib/libcudart.so.13 ${_openmp} Threads::Threads)
