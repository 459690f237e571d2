// Structures with the members that the emulator reads from NCCL's, in another order and surrounded
// by members of every kind.
//
// The compiler decides: `places` and `fields` say where it has put each member.
//
// -DOLD omits what older releases do not have, and uses their name for the device communicator.
// -DDECLARED_ONLY defines no structure at all.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef OLD
#define ncclKernelComm ncclDevComm
#endif

struct ncclDevChannel;
struct ncclKernelComm;

#ifdef DECLARED_ONLY
struct ncclDevKernelArgs;
struct ncclDevKernelArgs *declared_arguments;
struct ncclDevChannel *declared_channel;
struct ncclKernelComm *declared_comm;
#else

enum __attribute__((packed)) Storage { InArguments, InFifo };
typedef const volatile void *Address;
typedef Address Buffer;
typedef uint32_t Number;
typedef volatile Number Flags;
typedef struct ncclKernelComm KernelComm;

struct ncclDevKernelArgs {
  enum Storage workStorageType;
  uint32_t workMask;
  Buffer workBuf;
  uint64_t channelMask;
  KernelComm *const volatile comm;
};

struct ncclKernelComm {
  int nNodes, node;
  int nRanks, rank;
  union {
    struct {
      volatile uint32_t *abortFlag;
      struct {
        struct ncclDevChannel *channels;
      };
    };
    char filling[40];
  };
  int buffSizes[3];
  int p2pChunkSize;
#ifdef OLD
  uint32_t *workConsumed;
#else
  struct ncclDevProfiler *workCompleted, *workStarted;
  void *progressCounters;
#endif
};

struct ncclRing { int index; int *userRanks; int next, prev; };
struct Tree { int down[3]; int up; };

struct ncclDevChannel {
  char before[7];
  uint32_t *workFifoDone;
  const struct Tree tree;
  struct ncclRing ring;
  struct ncclDevChannelPeer **peers;
#ifndef OLD
  uint64_t workCounter;
#endif
};

struct ncclConnInfo {
  uint64_t llLastCleaning, step;
  struct ncclConnFifo *connFifo;
  uint64_t *redOpArgExchange;
  void **ptrExchange;
  int stepSize, shared, flags;
  uint64_t *head, *tail;
  char *buffs[3];
};

struct ncclDevChannelPeer {
  char before[2][3];
  struct ncclConnInfo recv[2], send[2];
};

struct ncclConnFifo {
  void *ptr;
  int64_t size;
#ifdef OLD
  int offset;
#else
  int64_t offset;
#endif
  int mode;
};

struct ncclDevWorkBatch {
  uint64_t offsetBitset;
  union {
    uint32_t flags;
    struct {
      uint32_t funcId : 11, func : 4;
      uint32_t workType : 2, nextExtends : 1, nextJump : 14;
    };
  };
  uint32_t offsetBase;
};

struct ncclDevWorkColl {
  uint8_t profilerEnabled : 1, oneNode : 1, direct : 2;
  uint16_t before : 3;
  uint16_t regUsed : 2, redOpArgIsPtr : 1, netRegUsed : 1;
  unsigned : 0;
  Flags nWarps : 8, channelHi : 8, channelLo : 8;
  uint64_t redOpArg;
  union {
    struct {
      uint64_t more : 20;
      uint64_t chunkGrainsHi : 21, chunkGrainsMid : 21;
      uint64_t chunkGrainsLo : 21;
      size_t countHi, countMid, countLo;
    } cbd;
    struct {
      size_t count;
      uint32_t chunkCount;
    } collnet;
  };
  void *sendbuff, *recvbuff;
  uint32_t root;
};

struct ncclDevWorkP2p {
  uint8_t recvChunkSize_u32fp8, sendChunkSize_u32fp8, nRecvChannels, nSendChannels, channelBase, nP2pChannels;
  uint8_t profilerEnabled : 1, recvIpcReg : 1, sendIpcReg : 1, recvNetReg : 1, sendNetReg : 1, recvProtoLL : 1,
      sendProtoLL : 1;
  int recvRank, sendRank;
  size_t recvBytes, sendBytes;
  void *recvAddr, *sendAddr;
};

#ifndef OLD
struct ncclDevWorkBcast {
  size_t bytes_done, bytes;
  void *recvbuff, *sendbuff;
  int chunkSize, ringDepth;
};

struct ncclDevProfiler {
  int before;
  struct { uint64_t counter, timestamp; } data[64];
};
#endif

struct ncclComm {
  char large[1000003];
  struct { int unnamed[5]; };
  int nRanks, rank;
  struct ncclKernelComm *devComm;
#ifndef OLD
  uint64_t commHash;
#endif
};

#ifndef OLD
// A newer release gives the old name to this.
struct ncclDevComm { char other[3]; } *other_comm;
#endif

// The compiler omits unused types from the debug information.
struct ncclDevKernelArgs *arguments;
struct ncclKernelComm *kernel_comm;
struct ncclDevChannel *channel;
struct ncclConnFifo *conn_fifo;
struct ncclDevChannelPeer *channel_peer;
struct ncclDevWorkBatch *work_batch;
struct ncclDevWorkColl *work_coll;
struct ncclDevWorkP2p *work_p2p;
struct ncclDevWorkBcast *work_bcast;
struct ncclDevProfiler *profiler;
struct ncclComm *comm;

#define SIZES(X) \
  X(kernel_args, ncclDevKernelArgs) X(kernel_comm, ncclKernelComm) X(channel, ncclDevChannel) \
  X(channel_peer, ncclDevChannelPeer) X(conn_info, ncclConnInfo) X(conn_fifo, ncclConnFifo) \
  X(work_batch, ncclDevWorkBatch) X(work_coll, ncclDevWorkColl) \
  X(work_p2p, ncclDevWorkP2p) X(comm, ncclComm)
#define PLACES(X) \
  X(kernel_args, comm, comm) X(kernel_args, channel_mask, channelMask) \
  X(kernel_args, work_storage_type, workStorageType) X(kernel_args, work_mask, workMask) \
  X(kernel_args, work_buf, workBuf) \
  X(kernel_comm, rank, rank) X(kernel_comm, n_ranks, nRanks) X(kernel_comm, buff_sizes, buffSizes) \
  X(kernel_comm, p2p_chunk_size, p2pChunkSize) X(kernel_comm, abort_flag, abortFlag) \
  X(kernel_comm, channels, channels) \
  X(channel, peers, peers) X(channel, ring_prev, ring.prev) X(channel, ring_next, ring.next) \
  X(channel, ring_user_ranks, ring.userRanks) X(channel, ring_index, ring.index) X(channel, tree_up, tree.up) \
  X(channel, tree_down, tree.down) \
  X(channel_peer, send, send) X(channel_peer, recv, recv) \
  X(conn_info, buffs, buffs) X(conn_info, tail, tail) X(conn_info, head, head) \
  X(conn_info, step_size, stepSize) X(conn_info, conn_fifo, connFifo) X(conn_info, step, step) \
  X(conn_fifo, mode, mode) X(conn_fifo, offset, offset) X(conn_fifo, bytes, size) \
  X(work_batch, offset_base, offsetBase) X(work_batch, offset_bitset, offsetBitset) \
  X(work_coll, root, root) X(work_coll, recvbuff, recvbuff) X(work_coll, sendbuff, sendbuff) \
  X(work_coll, count_lo, cbd.countLo) X(work_coll, count_mid, cbd.countMid) X(work_coll, count_hi, cbd.countHi) \
  X(work_coll, red_op_arg, redOpArg) \
  X(work_p2p, send_addr, sendAddr) X(work_p2p, recv_addr, recvAddr) X(work_p2p, send_bytes, sendBytes) \
  X(work_p2p, recv_bytes, recvBytes) X(work_p2p, send_rank, sendRank) X(work_p2p, recv_rank, recvRank) \
  X(work_p2p, n_p2p_channels, nP2pChannels) X(work_p2p, channel_base, channelBase) \
  X(work_p2p, n_send_channels, nSendChannels) X(work_p2p, n_recv_channels, nRecvChannels) \
  X(work_p2p, send_chunk_size, sendChunkSize_u32fp8) X(work_p2p, recv_chunk_size, recvChunkSize_u32fp8) \
  X(comm, dev_comm, devComm)
#define FIELDS(X) \
  X(work_batch, next_jump, nextJump) X(work_batch, next_extends, nextExtends) X(work_batch, work_type, workType) \
  X(work_batch, func_id, funcId) \
  X(work_coll, channel_lo, channelLo) X(work_coll, channel_hi, channelHi) \
  X(work_coll, red_op_arg_is_ptr, redOpArgIsPtr) X(work_coll, reg_used, regUsed) \
  X(work_coll, net_reg_used, netRegUsed) \
  X(work_coll, profiler_enabled, profilerEnabled) X(work_coll, chunk_grains_lo, cbd.chunkGrainsLo) \
  X(work_coll, chunk_grains_mid, cbd.chunkGrainsMid) X(work_coll, chunk_grains_hi, cbd.chunkGrainsHi) \
  X(work_p2p, send_proto_ll, sendProtoLL) X(work_p2p, recv_proto_ll, recvProtoLL) \
  X(work_p2p, send_net_reg, sendNetReg) X(work_p2p, recv_net_reg, recvNetReg) \
  X(work_p2p, send_ipc_reg, sendIpcReg) X(work_p2p, recv_ipc_reg, recvIpcReg) \
  X(work_p2p, profiler_enabled, profilerEnabled)
#ifdef OLD
#define MORE_SIZES(X)
#define MORE_PLACES(X) X(kernel_comm, work_consumed, workConsumed)
#else
#define MORE_SIZES(X) X(work_bcast, ncclDevWorkBcast) X(profiler, ncclDevProfiler)
#define MORE_PLACES(X) \
  X(kernel_comm, work_started, workStarted) X(kernel_comm, work_completed, workCompleted) \
  X(channel, work_counter, workCounter) \
  X(work_bcast, ring_depth, ringDepth) X(work_bcast, chunk_size, chunkSize) X(work_bcast, sendbuff, sendbuff) \
  X(work_bcast, recvbuff, recvbuff) X(work_bcast, bytes, bytes) \
  X(profiler, data, data) X(comm, comm_hash, commHash)
#endif

#define TYPE(structure, type) typedef struct type structure##_type;
SIZES(TYPE) MORE_SIZES(TYPE)
#define SIZE(structure, type) {#structure ".size", sizeof(struct type)},
#define PLACE(structure, field, member) {#structure "." #field, offsetof(structure##_type, member)},
const struct { const char *name; size_t offset; } places[] = {
    SIZES(SIZE) MORE_SIZES(SIZE) PLACES(PLACE) MORE_PLACES(PLACE) {0, 0}};

// Each function sets all bits of a field.
#define FILL(structure, field, member) \
  static void fill_##structure##_##field(structure##_type *at) { at->member = -1; }
#define FIELD(structure, field, member) \
  {#structure "." #field, (void (*)(void *))fill_##structure##_##field, sizeof(structure##_type)},
FIELDS(FILL)
const struct { const char *name; void (*fill)(void *); size_t size; } fields[] = {FIELDS(FIELD) {0, 0, 0}};
#endif
