# OPEN_MPI_HEADERS (those for components), OPEN_PAL_LIBRARY and OPEN_MPI_VERSION. Debian:
# libopenmpi-dev.
find_path(OPEN_MPI_HEADERS opal_config.h HINTS /usr/lib/x86_64-linux-gnu/openmpi/include/openmpi
  /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openmpi/include/openmpi)
find_library(OPEN_PAL_LIBRARY open-pal HINTS ${OPEN_MPI_HEADERS}/../../lib)
# The component is for the one version it is built with.
set(OPEN_MPI_VERSION "")
if(OPEN_MPI_HEADERS AND EXISTS ${OPEN_MPI_HEADERS}/opal/version.h)
  file(STRINGS ${OPEN_MPI_HEADERS}/opal/version.h version_line REGEX "^#define OPAL_VERSION ")
  string(REGEX REPLACE ".*\"(.*)\".*" "\\1" OPEN_MPI_VERSION "${version_line}")
endif()
if(NOT OPEN_MPI_VERSION MATCHES "^4\\.1\\.")  # other series have other structures
  set(OPEN_MPI_VERSION "")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OpenMpi REQUIRED_VARS OPEN_MPI_HEADERS OPEN_PAL_LIBRARY
  OPEN_MPI_VERSION
  VERSION_VAR OPEN_MPI_VERSION)
mark_as_advanced(OPEN_MPI_HEADERS OPEN_PAL_LIBRARY)
