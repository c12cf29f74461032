/* vipl.h as programs of both dialects use it, in C and in C++: header.py compiles it. */
#include <stddef.h>
#include <vipl.h>

#define IS(condition, name) typedef char name[(condition) ? 1 : -1]
IS(sizeof(VIP_DESCRIPTOR) == 64, descriptor_has_64_bytes);
IS(sizeof(VIP_CONTROL_SEGMENT) == 32, control_segment_has_32_bytes);
IS(sizeof(VIP_DESCRIPTOR_SEGMENT) == 16, segment_has_16_bytes);
IS(offsetof(VIP_CONTROL_SEGMENT, Status) == 28, status_is_last);
IS(sizeof(VIP_NET_ADDRESS) == 8, net_address_has_8_bytes);
IS(offsetof(VIP_NET_ADDRESS, HostAddress) == 4, host_address_is_at_4);
IS(sizeof(VIP_VI_ATTRIBUTES) == 40, vi_attributes_have_40_bytes);
IS(sizeof(VIP_MEM_ATTRIBUTES) == 16, memory_attributes_have_16_bytes);
IS(sizeof(VIP_ERROR_DESCRIPTOR) == 48, error_descriptor_has_48_bytes);
IS(sizeof(VIP_NIC_ATTRIBUTES) == 200, nic_attributes_have_200_bytes);
IS(offsetof(VIP_NIC_ATTRIBUTES, LocalNicAddress) == 88, local_address_is_at_88);
IS(offsetof(VIP_NIC_ATTRIBUTES, ThreadSafe) == 96, thread_safe_is_at_96);
IS(offsetof(VIP_NIC_ATTRIBUTES, MaxRegisterBytes) == 104, bytes_are_at_104);
IS(offsetof(VIP_NIC_ATTRIBUTES, ReliabilityLevelSupport) == 192, levels_are_at_192);
IS(offsetof(VIP_NIC_ATTRIBUTES, RDMAReadSupport) == 194, read_levels_are_at_194);
IS(VIP_ERROR_NOT_SUPPORTED == 16 && VIP_ERROR_CATASTROPHIC == 10, codes_are_numbered);
IS(VIP_STATE_ERROR == 3 && VIP_RESOURCE_DESCRIPTOR == 3, states_are_numbered);

VIP_RETURN with_cs_and_ds(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE memory) {
  d->CS.Control = VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE;
  d->CS.SegCount = 2;
  d->CS.Next.Address = d;
  d->DS[0].Remote.Data.AddressBits = 0;
  d->DS[0].Remote.Handle = memory;
  d->DS[1].Local.Data.Address = d + 1;
  d->DS[1].Local.Length = 8;
  return VipPostSend(vi, d, memory);
}

VIP_RETURN with_control_and_data(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE memory) {
  d->Control.Control = VIP_CONTROL_OP_SENDRECV;
  d->Control.SegCount = 1;
  d->Data[0].Local.Data.Address = d + 1;
  d->Data[0].Local.Handle = memory;
  return VipPostRecv(vi, d, memory);
}
