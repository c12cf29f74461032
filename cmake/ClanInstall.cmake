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

  set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  file(RELATIVE_PATH CLAN_PC_TO_PREFIX /${pc_dir} /)
  string(REGEX REPLACE "/$" "" CLAN_PC_TO_PREFIX "${CLAN_PC_TO_PREFIX}")
  configure_file(${PROJECT_SOURCE_DIR}/cmake/clan.pc.in ${PROJECT_BINARY_DIR}/clan.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/clan.pc DESTINATION ${pc_dir})
endfunction()
