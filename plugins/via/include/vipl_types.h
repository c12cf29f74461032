/* Types and constants of the VI Provider Library (VIPL), for vipl.h. Plain C, C++98 and later.
 *
 * Two dialects are in use. Programs of the first name the parts of a descriptor CS and DS, those of
 * the second Control and Data; here both names are the same bytes, so that no switch is needed. */
#ifndef CLAN_VIPL_TYPES_H
#define CLAN_VIPL_TYPES_H

#include <stdint.h>

#ifndef IN
#define IN
#endif
#ifndef OUT
#define OUT
#endif
#define VIP_TRUE 1
#define VIP_FALSE 0
#define VIP_INFINITE (~0ul)
#define VIP_DESCRIPTOR_ALIGNMENT 64

typedef void* VIP_PVOID;
typedef int VIP_BOOLEAN;
typedef char VIP_CHAR;
typedef uint8_t VIP_UINT8;
typedef uint16_t VIP_UINT16;
typedef uint32_t VIP_UINT32;
typedef uint64_t VIP_UINT64;
typedef unsigned long VIP_ULONG;
typedef VIP_PVOID VIP_NIC_HANDLE;
typedef VIP_PVOID VIP_VI_HANDLE;
typedef VIP_PVOID VIP_CQ_HANDLE;
typedef VIP_PVOID VIP_CONN_HANDLE;
typedef VIP_PVOID VIP_PROTECTION_HANDLE;
typedef VIP_PVOID VIP_QOS;
typedef VIP_UINT32 VIP_MEM_HANDLE;
typedef VIP_UINT16 VIP_RELIABILITY_LEVEL;

#define VIP_SERVICE_UNRELIABLE 1
#define VIP_SERVICE_RELIABLE_DELIVERY 2
#define VIP_SERVICE_RELIABLE_RECEPTION 4

typedef enum {
  VIP_SUCCESS,
  VIP_NOT_DONE,
  VIP_INVALID_PARAMETER,
  VIP_ERROR_RESOURCE,
  VIP_TIMEOUT,
  VIP_REJECT,
  VIP_INVALID_RELIABILITY_LEVEL,
  VIP_INVALID_MTU,
  VIP_INVALID_QOS,
  VIP_INVALID_PTAG,
  VIP_INVALID_RDMAREAD,
  VIP_DESCRIPTOR_ERROR,
  VIP_INVALID_STATE,
  VIP_ERROR_NAMESERVICE,
  VIP_NO_MATCH,
  VIP_NOT_REACHABLE,
  VIP_ERROR_NOT_SUPPORTED
} VIP_RETURN;

typedef enum {
  VIP_STATE_IDLE,
  VIP_STATE_CONNECTED,
  VIP_STATE_CONNECT_PENDING,
  VIP_STATE_ERROR
} VIP_VI_STATE;

/* Asynchronous errors: what has happened, and to what. */
typedef enum {
  VIP_ERROR_POST_DESC,
  VIP_ERROR_CONN_LOST,
  VIP_ERROR_RECVQ_EMPTY,
  VIP_ERROR_VI_OVERRUN,
  VIP_ERROR_RDMAW_PROT,
  VIP_ERROR_RDMAW_DATA,
  VIP_ERROR_RDMAW_ABORT,
  VIP_ERROR_RDMAR_PROT,
  VIP_ERROR_COMP_PROT,
  VIP_ERROR_RDMA_TRANSPORT,
  VIP_ERROR_CATASTROPHIC
} VIP_ERROR_CODE;
typedef enum {
  VIP_RESOURCE_NIC,
  VIP_RESOURCE_VI,
  VIP_RESOURCE_CQ,
  VIP_RESOURCE_DESCRIPTOR
} VIP_RESOURCE_CODE;

/* VIP_CONTROL_SEGMENT.Control */
#define VIP_CONTROL_OP_SENDRECV 0x0
#define VIP_CONTROL_OP_RDMAWRITE 0x1
#define VIP_CONTROL_OP_RDMAREAD 0x2
#define VIP_CONTROL_OP_RESERVED 0x3
#define VIP_CONTROL_OP_MASK 0x3
#define VIP_CONTROL_IMMEDIATE 0x4
#define VIP_CONTROL_QFENCE 0x8
#define VIP_CONTROL_RESERVED 0xfff0

/* VIP_CONTROL_SEGMENT.Status */
#define VIP_STATUS_DONE 0x1
#define VIP_STATUS_FORMAT_ERROR 0x2
#define VIP_STATUS_PROTECTION_ERROR 0x4
#define VIP_STATUS_LENGTH_ERROR 0x8
#define VIP_STATUS_PARTIAL_ERROR 0x10
#define VIP_STATUS_DESC_FLUSHED_ERROR 0x20
#define VIP_STATUS_TRANSPORT_ERROR 0x40
#define VIP_STATUS_RDMA_PROT_ERROR 0x80
#define VIP_STATUS_REMOTE_DESC_ERROR 0x100
#define VIP_STATUS_ERROR_MASK 0x1fe
#define VIP_STATUS_OP_SEND 0x00000
#define VIP_STATUS_OP_RECEIVE 0x10000
#define VIP_STATUS_OP_RDMA_WRITE 0x20000
#define VIP_STATUS_OP_REMOTE_RDMA_WRITE 0x30000
#define VIP_STATUS_OP_RDMA_READ 0x40000
#define VIP_STATUS_OP_MASK 0x70000
#define VIP_STATUS_IMMEDIATE 0x80000
#define VIP_STATUS_RESERVED 0xfff0fe00

typedef union {
  VIP_UINT64 AddressBits;
  VIP_PVOID Address;
} VIP_PVOID64;

typedef struct {
  VIP_PVOID64 Next; /* the program's own */
  VIP_MEM_HANDLE NextHandle;
  VIP_UINT16 SegCount;
  VIP_UINT16 Control;
  VIP_UINT32 Reserved; /* received: 1 where the message goes on in the next descriptor */
  VIP_UINT32 ImmediateData;
  VIP_UINT32 Length;
  VIP_UINT32 Status; /* written last */
} VIP_CONTROL_SEGMENT;
typedef struct {
  VIP_PVOID64 Data;
  VIP_MEM_HANDLE Handle;
  VIP_UINT32 Reserved;
} VIP_ADDRESS_SEGMENT;
typedef struct {
  VIP_PVOID64 Data;
  VIP_MEM_HANDLE Handle;
  VIP_UINT32 Length;
} VIP_DATA_SEGMENT;
typedef union {
  VIP_ADDRESS_SEGMENT Remote; /* the first of an RDMA descriptor */
  VIP_DATA_SEGMENT Local;
} VIP_DESCRIPTOR_SEGMENT;

/* More segments follow it in memory: SegCount says how many there are. */
typedef struct {
  union {
    VIP_CONTROL_SEGMENT CS;
    VIP_CONTROL_SEGMENT Control;
  };
  union {
    VIP_DESCRIPTOR_SEGMENT DS[2];
    VIP_DESCRIPTOR_SEGMENT Data[2];
  };
} VIP_DESCRIPTOR;

/* The discriminator follows the host's address. */
typedef struct {
  VIP_UINT16 HostAddressLen, DiscriminatorLen;
  VIP_UINT8 HostAddress[4];
} VIP_NET_ADDRESS;

#endif
