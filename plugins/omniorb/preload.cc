// libclan-orb.so: for LD_PRELOAD. Loads the transport when a program calls CORBA::ORB_init, and
// does nothing in a program that never does; so it can be in every child of a command without
// pulling omniORB into all of them.
//
// It defines ORB_init in front of omniORB's, and calls that one. Where the transport cannot be
// loaded (another version of omniORB), programs run without it.
#include <clan/detail/log.h>
#include <dlfcn.h>

#include <string>

namespace CORBA {
class ORB;
}

namespace {

constexpr char kOrb[] = "libomniORB4.so.2";
constexpr char kTransport[] = "libomniclanTP4.so";
constexpr char kOrbInit[] = "_ZN5CORBA8ORB_initERiPPcPKcPA2_S4_";

using OrbInit = CORBA::ORB* (*)(int&, char**, const char*, const char* (*)[2]);

/// Beside this library.
std::string transport_path() {
  Dl_info about{};
  if (::dladdr(reinterpret_cast<const void*>(&transport_path), &about) == 0 ||
      about.dli_fname == nullptr) {
    return kTransport;
  }
  const std::string self = about.dli_fname;
  const std::size_t slash = self.rfind('/');
  return slash == std::string::npos ? kTransport : self.substr(0, slash + 1) + kTransport;
}

void load_transport() {
  if (::dlopen(transport_path().c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr) return;
  CLAN_WARN("CORBA calls go without CLAN: %s", ::dlerror());
}

/// omniORB's own; null when the program's ORB is another version.
OrbInit find_orb_init() {
  void* orb = ::dlopen(kOrb, RTLD_LAZY | RTLD_NOLOAD);
  if (orb != nullptr) {
    load_transport();
    return reinterpret_cast<OrbInit>(::dlsym(orb, kOrbInit));
  }
  CLAN_WARN("CORBA calls go without CLAN: this program's omniORB is not %s", kOrb);
  return reinterpret_cast<OrbInit>(::dlsym(RTLD_NEXT, kOrbInit));
}

}  // namespace

namespace CORBA {

// As omniORB declares it; the name is what counts.
__attribute__((visibility("default"))) ORB* ORB_init(int& argc, char** argv, const char* identifier,
                                                     const char* options[][2]) {
  static const OrbInit real = find_orb_init();
  return real != nullptr ? real(argc, argv, identifier, options) : nullptr;
}

}  // namespace CORBA
