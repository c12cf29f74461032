# What an installed tree looks like; it works wherever it is moved:
#   bin/clan  lib/libclan.so  lib/libclan-preload.so (`clan run` looks for it in ../lib)
#   lib/clan/ (programs and scripts `clan` starts)  include/clan/  lib/cmake/clan/
#   lib/pkgconfig/clan.pc
include(CMakePackageConfigHelpers)

set(CLAN_LIBEXECDIR ${CMAKE_INSTALL_LIBDIR}/clan)

# clan_install_program(TARGET [PRIVATE]): into bin/, or with PRIVATE into lib/clan/.
function(clan_install_program target)
  if("PRIVATE" IN_LIST ARGN)
    set(dir ${CLAN_LIBEXECDIR})
  else()
    set(dir ${CMAKE_INSTALL_BINDIR})
  endif()
  file(RELATIVE_PATH to_lib /${dir} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/${to_lib}")
  install(TARGETS ${target} RUNTIME DESTINATION ${dir})
endfunction()

# clan_install_pc(PACKAGE LIBRARY DESCRIPTION): what pkg-config reads.
function(clan_install_pc package library description)
  set(dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  file(RELATIVE_PATH to_prefix /${dir} /)
  string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
  configure_file(${PROJECT_SOURCE_DIR}/cmake/clan.pc.in ${PROJECT_BINARY_DIR}/${package}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${package}.pc DESTINATION ${dir})
endfunction()

# clan_install_library(TARGET): the library, its headers, the CMake package and clan.pc.
function(clan_install_library target)
  install(TARGETS ${target} EXPORT clan-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY DESTINATION ${CLAN_LIBEXECDIR})

  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/clan)
  install(EXPORT clan-targets NAMESPACE clan:: DESTINATION ${package_dir})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/clan-config.cmake.in
    ${PROJECT_BINARY_DIR}/clan-config.cmake INSTALL_DESTINATION ${package_dir})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/clan-config-version.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/clan-config.cmake
    ${PROJECT_BINARY_DIR}/clan-config-version.cmake DESTINATION ${package_dir})

  clan_install_pc(clan clan "${PROJECT_DESCRIPTION}")
endfunction()

# clan_linked_face(NAME LIBRARY PACKAGE DESCRIPTION HEADERS h... PRECOMPILE h...): a face that
# programs are linked with, of the sources and include/ of this directory. The engine is linked in;
# of its names only those in exports.map can be seen outside. Tests and fuzzers link
# clan_NAME_parts.
function(clan_linked_face name library package description)
  cmake_parse_arguments(FACE "" "" "HEADERS;PRECOMPILE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  set(objects clan_${name}_objects)
  set(include ${CMAKE_CURRENT_SOURCE_DIR}/include)
  set(exports ${CMAKE_CURRENT_SOURCE_DIR}/exports.map)
  clan_in_batches_to_check()
  add_library(${objects} OBJECT ${sources})
  set_target_properties(${objects} PROPERTIES POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_definitions(${objects} PRIVATE _GNU_SOURCE)
  target_include_directories(${objects} PUBLIC ${include})
  target_link_libraries(${objects} PRIVATE clan_options clan::testing)
  clan_precompile(${objects} ${FACE_PRECOMPILE})

  add_library(clan_${name} SHARED $<TARGET_OBJECTS:${objects}>)
  set_target_properties(clan_${name} PROPERTIES OUTPUT_NAME ${library} LINK_DEPENDS ${exports})
  target_include_directories(clan_${name} PUBLIC
    $<BUILD_INTERFACE:${include}> $<INSTALL_INTERFACE:include>)
  target_link_libraries(clan_${name} PRIVATE clan_options clan::testing)
  target_link_options(clan_${name} PRIVATE -Wl,--exclude-libs,ALL
    -Wl,--version-script=${exports})
  if(NOT CLAN_SANITIZE)
    target_link_options(clan_${name} PRIVATE -Wl,-z,defs)
  endif()

  add_library(clan_${name}_parts STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${objects}>)
  target_include_directories(clan_${name}_parts PUBLIC ${CMAKE_CURRENT_SOURCE_DIR} ${include})
  target_link_libraries(clan_${name}_parts PUBLIC clan::testing)

  install(TARGETS clan_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  foreach(header IN LISTS FACE_HEADERS)
    get_filename_component(dir ${header} DIRECTORY)
    install(FILES include/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${dir})
  endforeach()
  clan_install_pc(${package} ${library} "${description}")
endfunction()
