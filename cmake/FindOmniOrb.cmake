# OMNIORB_INCLUDE, OMNIORB_LIBRARY, OMNIDYNAMIC_LIBRARY, OMNITHREAD_LIBRARY, OMNIIDL and
# OMNIORB_VERSION. Debian: libomniorb4-dev, omniidl.
find_path(OMNIORB_INCLUDE omniORB4/giopEndpoint.h)
find_library(OMNIORB_LIBRARY omniORB4)
find_library(OMNIDYNAMIC_LIBRARY omniDynamic4)
find_library(OMNITHREAD_LIBRARY omnithread)
find_program(OMNIIDL omniidl)
# The transport is for the one version it is built with, whose number no header says.
find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --modversion omniORB4 OUTPUT_VARIABLE
    OMNIORB_VERSION
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OmniOrb
  REQUIRED_VARS OMNIORB_INCLUDE OMNIORB_LIBRARY OMNITHREAD_LIBRARY OMNIIDL OMNIORB_VERSION
  VERSION_VAR OMNIORB_VERSION)
mark_as_advanced(OMNIORB_INCLUDE OMNIORB_LIBRARY OMNITHREAD_LIBRARY OMNIIDL)
