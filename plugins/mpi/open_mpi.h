// Open MPI's own headers, in the order and with the linkage that C++ needs. All files here include
// these by this one.
#pragma once

#include "opal_config.h"

extern "C" {
// These have no extern "C" of their own, and others include them.
#include "opal/mca/rcache/rcache.h"
#include "opal/runtime/opal_params.h"
#include "opal/util/proc.h"
}
#include "opal/class/opal_bitmap.h"
#include "opal/class/opal_free_list.h"
#include "opal/constants.h"
#include "opal/datatype/opal_convertor.h"
#include "opal/mca/btl/base/base.h"
#include "opal/mca/btl/base/btl_base_error.h"
#include "opal/mca/btl/btl.h"
#include "opal/mca/pmix/pmix.h"
#include "opal/threads/thread_usage.h"
#include "opal/util/output.h"
#include "opal/util/show_help.h"
#include "opal/version.h"

// Its macros of that name would be everywhere.
#undef OPAL_REPO_REV

/// "4.1.4" of the library that has loaded us; no header declares it.
extern "C" const char opal_version_string[];
