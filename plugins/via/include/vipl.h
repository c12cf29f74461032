/* The VI Provider Library over CLAN: the Virtual Interface Architecture for programs in C and C++.
 *
 *     cc PROGRAM.c $(pkg-config --cflags --libs vipl)
 *
 * docs/via.md has a paragraph for each call: what it does and how it fails. All calls may be made
 * from any thread. A forked child has none of its parent's objects: calls with their handles answer
 * VIP_INVALID_STATE; it may open a NIC of its own. */
#ifndef CLAN_VIPL_H
#define CLAN_VIPL_H

#include <vipl_types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  VIP_CHAR Name[64];
  VIP_ULONG HardwareVersion, ProviderVersion;
  VIP_UINT16 NicAddressLen;
  const VIP_UINT8* LocalNicAddress;
  VIP_BOOLEAN ThreadSafe;
  VIP_UINT16 MaxDiscriminatorLen;
  VIP_ULONG MaxRegisterBytes, MaxRegisterRegions, MaxRegisterBlockBytes;
  VIP_ULONG MaxVI, MaxDescriptorsPerQueue, MaxSegmentsPerDesc;
  VIP_ULONG MaxCQ, MaxCQEntries, MaxTransferSize, NativeMTU, MaxPtags;
  VIP_UINT16 ReliabilityLevelSupport, RDMAReadSupport; /* VIP_SERVICE_... */
} VIP_NIC_ATTRIBUTES;
typedef struct {
  VIP_RELIABILITY_LEVEL ReliabilityLevel;
  VIP_ULONG MaxTransferSize;
  VIP_QOS QoS;
  VIP_PROTECTION_HANDLE Ptag;
  VIP_BOOLEAN EnableRdmaWrite, EnableRdmaRead;
} VIP_VI_ATTRIBUTES;
typedef struct {
  VIP_PROTECTION_HANDLE Ptag;
  VIP_BOOLEAN EnableRdmaWrite, EnableRdmaRead;
} VIP_MEM_ATTRIBUTES;
typedef struct {
  VIP_NIC_HANDLE NicHandle;
  VIP_VI_HANDLE ViHandle;
  VIP_CQ_HANDLE CQHandle;
  VIP_DESCRIPTOR* DescriptorPtr;
  VIP_UINT32 OpCode; /* VIP_STATUS_OP_... */
  VIP_RESOURCE_CODE ResourceCode;
  VIP_ERROR_CODE ErrorCode;
} VIP_ERROR_DESCRIPTOR;

typedef void (*VIP_VI_HANDLER)(VIP_PVOID, VIP_NIC_HANDLE, VIP_VI_HANDLE, VIP_DESCRIPTOR*);
typedef void (*VIP_CQ_HANDLER)(VIP_PVOID, VIP_NIC_HANDLE, VIP_VI_HANDLE, VIP_BOOLEAN RecvQueue);
typedef void (*VIP_ERROR_HANDLER)(VIP_PVOID, VIP_ERROR_DESCRIPTOR*);

/* The NIC */
VIP_RETURN VipOpenNic(const VIP_CHAR*, VIP_NIC_HANDLE*);
VIP_RETURN VipCloseNic(VIP_NIC_HANDLE);
VIP_RETURN VipQueryNic(VIP_NIC_HANDLE, VIP_NIC_ATTRIBUTES*);
VIP_RETURN VipErrorCallback(VIP_NIC_HANDLE, VIP_PVOID Context, VIP_ERROR_HANDLER);
#define VIP_SMI_AUTODISCOVERY 1ul
typedef struct {
  VIP_ULONG NumberOfHops;
  VIP_NET_ADDRESS* ADAddrArray;
  VIP_ULONG NumAdAddrs;
} VIP_AUTODISCOVERY_LIST;
VIP_RETURN VipQuerySystemManagementInfo(VIP_NIC_HANDLE, VIP_ULONG InfoType, VIP_PVOID Info);

/* VIs */
VIP_RETURN VipCreateVi(VIP_NIC_HANDLE, VIP_VI_ATTRIBUTES*, VIP_CQ_HANDLE Send, VIP_CQ_HANDLE Recv,
                       VIP_VI_HANDLE*);
VIP_RETURN VipDestroyVi(VIP_VI_HANDLE);
VIP_RETURN VipSetViAttributes(VIP_VI_HANDLE, VIP_VI_ATTRIBUTES*);
VIP_RETURN VipQueryVi(VIP_VI_HANDLE, VIP_VI_STATE*, VIP_VI_ATTRIBUTES*, VIP_BOOLEAN* SendQueueEmpty,
                      VIP_BOOLEAN* RecvQueueEmpty);
VIP_RETURN VipSetUserData(VIP_VI_HANDLE, VIP_PVOID);
VIP_RETURN VipGetUserData(VIP_VI_HANDLE, VIP_PVOID*);

/* Connections. Timeouts are milliseconds. */
VIP_RETURN VipConnectWait(VIP_NIC_HANDLE, VIP_NET_ADDRESS* Local, VIP_ULONG Timeout,
                          VIP_NET_ADDRESS* Remote, VIP_VI_ATTRIBUTES* Theirs, VIP_CONN_HANDLE*);
VIP_RETURN VipConnectAccept(VIP_CONN_HANDLE, VIP_VI_HANDLE);
VIP_RETURN VipConnectReject(VIP_CONN_HANDLE);
VIP_RETURN VipConnectRequest(VIP_VI_HANDLE, VIP_NET_ADDRESS* Local, VIP_NET_ADDRESS* Remote,
                             VIP_ULONG Timeout, VIP_VI_ATTRIBUTES* Theirs);
VIP_RETURN VipConnectPeerRequest(VIP_VI_HANDLE, VIP_NET_ADDRESS* Local, VIP_NET_ADDRESS* Remote,
                                 VIP_ULONG Timeout);
VIP_RETURN VipConnectPeerDone(VIP_VI_HANDLE, VIP_VI_ATTRIBUTES* Theirs);
VIP_RETURN VipConnectPeerWait(VIP_VI_HANDLE, VIP_VI_ATTRIBUTES* Theirs);
VIP_RETURN VipDisconnect(VIP_VI_HANDLE);

/* Protection and memory */
VIP_RETURN VipCreatePtag(VIP_NIC_HANDLE, VIP_PROTECTION_HANDLE*);
VIP_RETURN VipDestroyPtag(VIP_NIC_HANDLE, VIP_PROTECTION_HANDLE);
VIP_RETURN VipRegisterMem(VIP_NIC_HANDLE, VIP_PVOID, VIP_ULONG Length, VIP_MEM_ATTRIBUTES*,
                          VIP_MEM_HANDLE*);
VIP_RETURN VipDeregisterMem(VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE);
VIP_RETURN VipSetMemAttributes(VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE, VIP_MEM_ATTRIBUTES*);
VIP_RETURN VipQueryMem(VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE, VIP_MEM_ATTRIBUTES*);

/* Data transfer and completion */
VIP_RETURN VipPostSend(VIP_VI_HANDLE, VIP_DESCRIPTOR*, VIP_MEM_HANDLE);
VIP_RETURN VipSendDone(VIP_VI_HANDLE, VIP_DESCRIPTOR**);
VIP_RETURN VipSendWait(VIP_VI_HANDLE, VIP_ULONG Timeout, VIP_DESCRIPTOR**);
VIP_RETURN VipSendNotify(VIP_VI_HANDLE, VIP_PVOID Context, VIP_VI_HANDLER);
VIP_RETURN VipPostRecv(VIP_VI_HANDLE, VIP_DESCRIPTOR*, VIP_MEM_HANDLE);
VIP_RETURN VipRecvDone(VIP_VI_HANDLE, VIP_DESCRIPTOR**);
VIP_RETURN VipRecvWait(VIP_VI_HANDLE, VIP_ULONG Timeout, VIP_DESCRIPTOR**);
VIP_RETURN VipRecvNotify(VIP_VI_HANDLE, VIP_PVOID Context, VIP_VI_HANDLER);
VIP_RETURN VipCreateCQ(VIP_NIC_HANDLE, VIP_ULONG Entries, VIP_CQ_HANDLE*);
VIP_RETURN VipDestroyCQ(VIP_CQ_HANDLE);
VIP_RETURN VipResizeCQ(VIP_CQ_HANDLE, VIP_ULONG Entries);
VIP_RETURN VipCQDone(VIP_CQ_HANDLE, VIP_VI_HANDLE*, VIP_BOOLEAN* RecvQueue);
VIP_RETURN VipCQWait(VIP_CQ_HANDLE, VIP_ULONG Timeout, VIP_VI_HANDLE*, VIP_BOOLEAN* RecvQueue);
VIP_RETURN VipCQNotify(VIP_CQ_HANDLE, VIP_PVOID Context, VIP_CQ_HANDLER);

/* The name service */
VIP_RETURN VipNSInit(VIP_NIC_HANDLE, VIP_PVOID);
VIP_RETURN VipNSGetHostByName(VIP_NIC_HANDLE, VIP_CHAR*, VIP_NET_ADDRESS*, VIP_ULONG NameIndex);
VIP_RETURN VipNSGetHostByAddr(VIP_NIC_HANDLE, VIP_NET_ADDRESS*, VIP_CHAR*, VIP_ULONG* NameLen);
VIP_RETURN VipNSShutdown(VIP_NIC_HANDLE);

/* CLAN's extensions (via-over-clan 3.5, 3.7, 3.8), for an idle VI. Clear the structure first: 0 is
 * what VIA prescribes. */
typedef struct {
  VIP_BOOLEAN DeferSends;       /* sends wait until the peer has posted a buffer */
  VIP_BOOLEAN SplitMessages;    /* a long message goes on in the peer's next descriptors */
  VIP_BOOLEAN StrictProtection; /* the peer loses a buffer before its descriptor completes */
  VIP_UINT32 CopyLimit;         /* longer messages go by RDMA; 0: 16384 */
} VIP_CLAN_VI_OPTIONS;
VIP_RETURN VipClanSetVi(VIP_VI_HANDLE, const VIP_CLAN_VI_OPTIONS*);

#ifdef __cplusplus
}
#endif
#endif
