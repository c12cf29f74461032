// The NIC, protection tags, errors, and memory: what programs make first.
#include <unistd.h>

#include <algorithm>

#include "address.h"
#include "segments.h"

namespace clan::via {

const VIP_NIC_ATTRIBUTES& limits() {
  static const VIP_NIC_ATTRIBUTES all = [] {
    VIP_NIC_ATTRIBUTES a{};
    a.HardwareVersion = 1;
    a.ProviderVersion = 1;
    a.NicAddressLen = kHostBytes;
    a.ThreadSafe = VIP_TRUE;
    a.MaxDiscriminatorLen = kMostDiscriminator;
    a.MaxRegisterBytes = a.MaxRegisterBlockBytes = 1ul << 46;
    a.MaxRegisterRegions = Memory::kMost;
    a.MaxVI = 16384;
    a.MaxDescriptorsPerQueue = kMostDescriptors;
    a.MaxSegmentsPerDesc = kMostSegments;
    a.MaxCQ = 2048;
    a.MaxCQEntries = 1ul << 20;
    a.MaxTransferSize = 1ul << 30;  // programs keep it in an int
    a.NativeMTU = 8192;
    a.MaxPtags = 65536;
    a.ReliabilityLevelSupport =
        VIP_SERVICE_UNRELIABLE | VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;
    a.RDMAReadSupport = VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;
    return a;
  }();
  return all;
}

namespace {

// A registration of this NIC, by the address and the handle that the program names. Under the
// memory's mutex.
VIP_RETURN find_region(Nic& nic, VIP_PVOID address, VIP_MEM_HANDLE handle, Region** found) {
  Region* const region = provider()->memory.find(handle);
  if (region == nullptr || region->nic != &nic || region->address != address)
    return VIP_INVALID_PARAMETER;
  *found = region;
  return VIP_SUCCESS;
}

VIP_RETURN check(const VIP_MEM_ATTRIBUTES* attributes) {
  return attributes == nullptr ? VIP_INVALID_PARAMETER : check_tag(attributes->Ptag);
}

// What peers may do to the memory by RDMA. They look it up by its handle.
bool set_rights(Region& region, const VIP_MEM_ATTRIBUTES& attributes) {
  region.rdma.reset();
  leave_tag(region.tag);
  region.tag = static_cast<Ptag*>(attributes.Ptag);
  use_tag(region.tag);
  provider()->memory.change();
  region.rdma_write = attributes.EnableRdmaWrite != 0;
  region.rdma_read = attributes.EnableRdmaRead != 0;
  const auto rights =
      static_cast<Rights>((region.rdma_read ? 1u : 0u) | (region.rdma_write ? 2u : 0u));
  if (rights == Rights::kNone) return true;
  auto made = Aperture::export_region(provider()->context, {region.base, region.length}, rights);
  if (!made) return false;
  const auto base = reinterpret_cast<std::uint64_t>(region.base);
  if (!made->set_name(region.next_handle, std::as_bytes(std::span(&base, 1)))) return false;
  region.rdma = std::move(*made);
  return true;
}

}  // namespace
}  // namespace clan::via

using namespace clan::via;
namespace words = clan::words;

extern "C" CLAN_EXPORT VIP_RETURN VipOpenNic(const VIP_CHAR* name, VIP_NIC_HANDLE* made) {
  if (name == nullptr || made == nullptr) return VIP_INVALID_PARAMETER;
  if (provider() == nullptr) return VIP_ERROR_RESOURCE;
  auto* const nic = new Nic;
  nic->name = name;
  nic->address = own_address();
  *made = nic;
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipCloseNic(VIP_NIC_HANDLE handle) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  if (words::load_acquire(nic->users) != 0) return VIP_ERROR_RESOURCE;
  nic->magic = 0;
  delete nic;
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipQueryNic(VIP_NIC_HANDLE handle,
                                              VIP_NIC_ATTRIBUTES* attributes) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  if (attributes == nullptr) return VIP_INVALID_PARAMETER;
  *attributes = limits();
  nic->name.copy(attributes->Name, sizeof attributes->Name - 1);
  attributes->LocalNicAddress = nic->address.data();
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipErrorCallback(VIP_NIC_HANDLE handle, VIP_PVOID context,
                                                   VIP_ERROR_HANDLER handler) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  std::lock_guard lock(nic->mutex);
  nic->handler = handler;
  nic->handler_context = context;
  return VIP_SUCCESS;
}

// This NIC is the only one that is known to it: there is no fabric to walk along.
extern "C" CLAN_EXPORT VIP_RETURN VipQuerySystemManagementInfo(VIP_NIC_HANDLE handle,
                                                               VIP_ULONG type, VIP_PVOID info) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  if (type != VIP_SMI_AUTODISCOVERY || info == nullptr) return VIP_INVALID_PARAMETER;
  auto& list = *static_cast<VIP_AUTODISCOVERY_LIST*>(info);
  const bool room = list.ADAddrArray != nullptr && list.NumAdAddrs > 0;
  if (room) write_address({nic->address, {}, 0}, list.ADAddrArray);
  list.NumberOfHops = 0;
  list.NumAdAddrs = room ? 1 : 0;
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipCreatePtag(VIP_NIC_HANDLE handle,
                                                VIP_PROTECTION_HANDLE* made) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  if (made == nullptr) return VIP_INVALID_PARAMETER;
  nic->use();
  *made = new Ptag;
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipDestroyPtag(VIP_NIC_HANDLE handle, VIP_PROTECTION_HANDLE tag) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  Ptag* ptag = nullptr;
  if (find(tag, &ptag) != VIP_SUCCESS) return VIP_INVALID_PTAG;
  if (words::load_acquire(ptag->users) != 0) return VIP_ERROR_RESOURCE;
  ptag->magic = 0;
  delete ptag;
  nic->leave();
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipRegisterMem(VIP_NIC_HANDLE handle, VIP_PVOID address,
                                                 VIP_ULONG length, VIP_MEM_ATTRIBUTES* attributes,
                                                 VIP_MEM_HANDLE* made) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  if (address == nullptr || length == 0 || made == nullptr) return VIP_INVALID_PARAMETER;
  if (const VIP_RETURN rc = check(attributes); rc != VIP_SUCCESS) return rc;
  if (length > limits().MaxRegisterBytes) return VIP_ERROR_RESOURCE;
  Memory& memory = provider()->memory;
  std::lock_guard lock(memory.mutex());
  Region* const region = memory.add();
  if (region == nullptr) return VIP_ERROR_RESOURCE;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  region->address = address;
  region->base = reinterpret_cast<std::byte*>(begin / page * page);
  region->length = (begin + length + page - 1) / page * page - begin / page * page;
  region->tag = nullptr;
  region->nic = nic;
  if (!set_rights(*region, *attributes)) {
    memory.remove(*region);
    return VIP_ERROR_RESOURCE;
  }
  memory.publish(*region);
  nic->use();
  *made = region->next_handle;
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipDeregisterMem(VIP_NIC_HANDLE handle, VIP_PVOID address,
                                                   VIP_MEM_HANDLE registered) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  Memory& memory = provider()->memory;
  std::lock_guard lock(memory.mutex());
  Region* region = nullptr;
  if (const VIP_RETURN rc = find_region(*nic, address, registered, &region); rc != VIP_SUCCESS)
    return rc;
  leave_tag(region->tag);
  memory.remove(*region);
  nic->leave();
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipSetMemAttributes(VIP_NIC_HANDLE handle, VIP_PVOID address,
                                                      VIP_MEM_HANDLE registered,
                                                      VIP_MEM_ATTRIBUTES* attributes) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  if (const VIP_RETURN rc = check(attributes); rc != VIP_SUCCESS) return rc;
  std::lock_guard lock(provider()->memory.mutex());
  Region* region = nullptr;
  if (const VIP_RETURN rc = find_region(*nic, address, registered, &region); rc != VIP_SUCCESS)
    return rc;
  return set_rights(*region, *attributes) ? VIP_SUCCESS : VIP_ERROR_RESOURCE;
}

extern "C" CLAN_EXPORT VIP_RETURN VipQueryMem(VIP_NIC_HANDLE handle, VIP_PVOID address,
                                              VIP_MEM_HANDLE registered,
                                              VIP_MEM_ATTRIBUTES* attributes) {
  Nic* nic = nullptr;
  if (const VIP_RETURN rc = find(handle, &nic); rc != VIP_SUCCESS) return rc;
  if (attributes == nullptr) return VIP_INVALID_PARAMETER;
  std::lock_guard lock(provider()->memory.mutex());
  Region* region = nullptr;
  if (const VIP_RETURN rc = find_region(*nic, address, registered, &region); rc != VIP_SUCCESS)
    return rc;
  *attributes = {region->tag, region->rdma_write ? VIP_TRUE : VIP_FALSE,
                 region->rdma_read ? VIP_TRUE : VIP_FALSE};
  return VIP_SUCCESS;
}
