// How libfabric finds the provider.
#include "system/provider.h"

namespace clan::ofi {

fi_provider g_provider = {
    .version = FI_VERSION(CLAN_VERSION_MAJOR, CLAN_VERSION_MINOR),
    .fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
    .context = {},
    .name = "clan",
    .getinfo = get_info,
    .fabric = open_fabric,
    .cleanup = [] {},
};

}  // namespace clan::ofi

extern "C" __attribute__((visibility("default"))) fi_provider* fi_prov_ini(void) {
  using clan::ofi::g_provider;
  fi_param_define(&g_provider, "layering", FI_PARAM_BOOL,
                  "Let libfabric's own layers (ofi_rxm, ofi_rxd) use this provider too. They would "
                  "stand before "
                  "it in fi_getinfo()'s list, and be taken by programs that use the first entry. "
                  "(default: no)");
  fi_param_define(
      &g_provider, "ring_bytes", FI_PARAM_SIZE_T,
      "Receive ring of a connection with one peer, bytes; a power of two. (default: 524288)");
  fi_param_define(&g_provider, "eager_bytes", FI_PARAM_SIZE_T,
                  "Messages up to this size go through the ring; longer ones are copied once, from "
                  "the sender's "
                  "memory to the receiver's. (default: 16384)");
  fi_param_define(&g_provider, "direct_copy", FI_PARAM_BOOL,
                  "Copy between the memory of processes by process_vm_readv and its like, where "
                  "the kernel permits it. "
                  "(default: yes)");
  fi_param_define(&g_provider, "interface", FI_PARAM_STRING,
                  "The interface whose address endpoints show to others. (default: the first that "
                  "is not the loopback's)");
  fi_param_define(&g_provider, "directory_port", FI_PARAM_INT,
                  "The UDP port where processes of this user are asked by other hosts which "
                  "endpoints they have; the same on all hosts. Other hosts are reached where "
                  "CLAN_KEY or CLAN_NETWORK_MODE is set. (default: 4790)");
  return &g_provider;
}
