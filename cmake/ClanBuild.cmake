# Compile options shared by every target, and the functions by which tests and benches register.

add_library(clan_options INTERFACE)
target_compile_options(clan_options INTERFACE -Wall -Wextra -Wshadow)
if(CLAN_WERROR)
  target_compile_options(clan_options INTERFACE -Werror)
  if(CLAN_UNITY AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # What one source of a batch has outside its functions hides nothing of the next one's.
    target_compile_options(clan_options INTERFACE -Wno-error=shadow)
  endif()
endif()

# Sanitizers and coverage change every object, also those of faces written later: directory scope.
if(CLAN_SANITIZE)
  add_compile_options(-fsanitize=${CLAN_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${CLAN_SANITIZE})
  if(CLAN_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND CLAN_SANITIZE MATCHES "address")
    add_compile_options(-D__SANITIZE_ADDRESS__=1)  # as g++ says it by itself
    # A handler of signals is called as what sigaction() takes, whichever of the two it is. And
    # what type an object has the sanitizer asks by a pipe(): without descriptors, it has none.
    add_compile_options(-fno-sanitize=function,vptr)
    add_link_options(-fno-sanitize=function,vptr)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ says itself that it is wrong about this one in instrumented code; dev has it as an error.
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
  if(CLAN_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ warns at each stand-alone fence that TSan does not model it; the memory-order rules in
    # docs say where a fence is allowed, the warning adds nothing there.
    add_compile_options(-Wno-tsan)
  endif()
endif()
if(CLAN_COVERAGE)
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()
if(CLAN_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "CLAN_FUZZ needs clang++ (libFuzzer); use the preset 'fuzz'")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Several sources at a time are much for g++ to keep: it looks for what it could let go of less
# often, which is a twentieth of its time for a third more memory.
if(CLAN_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("SHELL:--param ggc-min-expand=200" "SHELL:--param ggc-min-heapsize=1000000")
endif()

# clan_add_subdirectory_if_present(DIR): parts of the tree that may not be there.
function(clan_add_subdirectory_if_present dir)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${dir}/CMakeLists.txt)
    add_subdirectory(${dir})
  endif()
endfunction()

# Seconds a test may take here: sanitizers are allowed three times as long.
function(clan_timeout seconds out)
  if(CLAN_SANITIZE)
    math(EXPR seconds "${seconds} * 3")
  endif()
  set(${out} ${seconds} PARENT_SCOPE)
endfunction()

# clan_slots(SLOTS TEST[:SECONDS]...): how much of the machine tests take. A slot is half a core,
# and the presets have four: most tests take one, as they wait about as much as they compute; two is
# what needs a core, three what keeps both busy, so that one test that waits may go on beside it.
# Among those that could begin, ctest begins with the one that takes most slots, then with the
# longest: SECONDS matters from ten upward.
function(clan_slots slots)
  foreach(test IN LISTS ARGN)
    string(REGEX MATCH "^([^:]+):?([0-9]*)$" matched ${test})
    math(EXPR cost "${slots} * 1000 + 0${CMAKE_MATCH_2}")
    set_tests_properties(${CMAKE_MATCH_1} PROPERTIES PROCESSORS ${slots} COST ${cost})
  endforeach()
endfunction()

# clan_by_itself(TEST...): nothing runs beside it; ctest begins with these.
function(clan_by_itself)
  set_tests_properties(${ARGN} PROPERTIES RUN_SERIAL ON COST 10000)
endfunction()

# clan_precompile(NAME HEADER...): parsed once for all sources of a target. Not in presets that
# would not notice a missing include then: dev and tidy.
function(clan_precompile name)
  if(NOT CMAKE_CXX_CLANG_TIDY)
    target_precompile_headers(${name} PRIVATE ${ARGN})
  endif()
endfunction()

# clan_in_batches(): targets of this directory and those below are compiled ten sources at a time:
# parsing their headers is most of the work. Not in presets that would not notice a missing include
# then. A name that two sources of a target have is an error; where they cannot share it, or have
# one each, one of the sources is compiled alone: clan_alone(SOURCE...).
macro(clan_in_batches)
  set(CMAKE_UNITY_BUILD ${CLAN_UNITY})
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 10)
endmacro()
function(clan_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# clan_in_batches_to_check(): the same of what is installed, where that is not what is built here.
macro(clan_in_batches_to_check)
  if(CLAN_SANITIZE)
    clan_in_batches()
  endif()
endmacro()

# clan_test_flags(NAME): line tables are all that a failing test of a release needs of debug
# information, and few of its own loops need more than -O0; more than half of its compilation is the
# rest. Not with ThreadSanitizer: without -O1 g++ takes every memory order of the engine's inline
# functions for the strongest.
function(clan_test_flags name)
  if(CLAN_SANITIZE MATCHES "thread")
    set(level -O1)
  else()
    set(level -O0)
  endif()
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:${level} -g1>)
endfunction()

# clan_optimized(SOURCE...): sources of tests whose loops run long enough to be worth optimizing.
function(clan_optimized)
  clan_alone(${ARGN})
  if(NOT CLAN_SANITIZE)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O1 SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# clan_test_headers(NAME): what nearly every test includes, compiled once for all of them.
function(clan_test_headers name)
  if(TARGET clan_test_pch AND NOT CMAKE_CXX_CLANG_TIDY)
    target_precompile_headers(${name} REUSE_FROM clan_test_pch)
  endif()
endfunction()

# clan_quick(TEST...): `./check --quick` runs them: the label quick beside their own.
function(clan_quick)
  set_property(TEST ${ARGN} APPEND PROPERTY LABELS quick)
endfunction()

# clan_test_suites(NAME LABEL [QUICK] SOURCES a.cc… [WAITING Suite…] PROPERTIES …): a ctest for each
# test suite of a GoogleTest program whose start is expensive; of the suites that wait more than
# they compute four processes, each with a part.
function(clan_test_suites name label)
  cmake_parse_arguments(ARG "QUICK" "" "SOURCES;WAITING;PROPERTIES" ${ARGN})
  set(suites)
  foreach(source IN LISTS ARG_SOURCES)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(STRINGS ${source} lines REGEX "^(TYPED_)?TEST(_F|_P)?\\(")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^[A-Z_]+\\( *([A-Za-z0-9_]+).*" "\\1" suite "${line}")
      list(APPEND suites ${suite})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES suites)
  foreach(suite IN LISTS suites)
    # Those with parameters, and with types, too.
    set(command ${name})
    if(suite IN_LIST ARG_WAITING)
      set(command ${CLAN_SHARDS} 4 $<TARGET_FILE:${name}>)
    endif()
    add_test(NAME ${label}.${suite} COMMAND ${command}
      --gtest_filter=${suite}.*:*/${suite}.*:${suite}/*)
    set_tests_properties(${label}.${suite} PROPERTIES LABELS ${label} ${ARG_PROPERTIES})
    if(ARG_QUICK)
      clan_quick(${label}.${suite})
    endif()
  endforeach()
endfunction()

# clan_test(NAME [QUICK] SOURCES a.cc… [LABEL l] [TIMEOUT s] [LIBS t…] [WAITING Suite…])
# A GoogleTest executable linked with every symbol of the engine. Each TEST becomes a ctest of its
# own, named <label>.<Suite>.<Name>; with a sanitizer each suite, named <label>.<Suite>. With QUICK,
# those have the label quick too, except suites `...AtLength`.
function(clan_test name)
  cmake_parse_arguments(ARG "QUICK" "TIMEOUT;LABEL" "SOURCES;LIBS;WAITING" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL ${name})
  endif()
  clan_timeout(${ARG_TIMEOUT} timeout)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE clan_options clan_test_support GTest::gtest_main
    ${ARG_LIBS})
  clan_test_flags(${name})
  clan_test_headers(${name})
  if(CLAN_SANITIZE)  # the start of a program takes longer than most of its tests
    list(FILTER ARG_SOURCES INCLUDE REGEX "_test\\.cc$")
    clan_test_suites(${name} ${ARG_LABEL} SOURCES ${ARG_SOURCES} WAITING ${ARG_WAITING}
      PROPERTIES TIMEOUT ${timeout})
    return()
  endif()
  include(GoogleTest)
  gtest_discover_tests(${name} TEST_PREFIX ${ARG_LABEL}. DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${timeout} LABELS ${ARG_LABEL})
  if(ARG_QUICK)  # by a script, as the tests are known to ctest alone, and PROPERTIES takes no list
    set(script ${CMAKE_CURRENT_BINARY_DIR}/${name}_quick.cmake)
    file(CONFIGURE OUTPUT ${script} @ONLY CONTENT [[
foreach(test IN LISTS @name@_TESTS)
  if(NOT test MATCHES "AtLength")
    set_tests_properties("${test}" PROPERTIES LABELS "@ARG_LABEL@;quick")
  endif()
endforeach()
]])
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script})
  endif()
endfunction()

# clan_fmt: a static library, so that an installed tree needs no other than libclan.so; header-only
# with a version of fmt that cmake/fmt.cc does not know.
find_package(fmt REQUIRED)
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  add_library(clan_fmt STATIC EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/fmt.cc)
  target_include_directories(clan_fmt SYSTEM
    PUBLIC $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
  target_compile_features(clan_fmt PUBLIC cxx_std_20)
else()
  add_library(clan_fmt INTERFACE)
  target_link_libraries(clan_fmt INTERFACE fmt::fmt-header-only)
endif()
