// omniORB's headers, in the order in which they compile: CORBA.h comes before those that only it
// makes whole.
#pragma once

#include <omniORB4/CORBA.h>
#include <omniORB4/giopEndpoint.h>
#include <omniORB4/omniIOR.h>
#include <omniORB4/omniInterceptors.h>
#include <omniORB4/omniPolicy.h>
#include <omniORB4/omniServer.h>

// What omniORB installs for transports outside of it.
#include <initialiser.h>
#include <objectAdapter.h>
#include <orbOptions.h>
#include <orbParameters.h>
#include <transportRules.h>
