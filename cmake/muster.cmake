# Targets of this project: muster_library, muster_program, muster_test. Every include is written from the project's root.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(spdlog REQUIRED)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

add_library(muster_options INTERFACE)
target_include_directories(muster_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/proto)
target_compile_options(muster_options INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
if(MUSTER_SANITIZE)
  # Tests are built from our own sources and Debian's libraries alone, so an instrumented build needs no other rebuild.
  add_compile_options(-fsanitize=${MUSTER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${MUSTER_SANITIZE})
endif()

# muster_library(NAME SRCS a.cc … DEPS target …)
function(muster_library name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${A_SRCS})
  target_link_libraries(${name} PUBLIC muster_options ${A_DEPS})
endfunction()

# muster_program(NAME SRCS a.cc … DEPS target …): lands in <build>/bin
function(muster_program name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${A_SRCS})
  target_link_libraries(${name} PRIVATE muster_options ${A_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endfunction()

# muster_test(NAME SRCS a_test.cc … DEPS target … [TIMEOUT seconds]): a GoogleTest binary in <build>/tests, known to ctest
function(muster_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SRCS;DEPS" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${name} ${A_SRCS})
  target_link_libraries(${name} PRIVATE muster_options ${A_DEPS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT})
endfunction()
