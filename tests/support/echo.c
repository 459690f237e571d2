// A profiler plugin that writes down every call, for the tests of the scripted host.
//
// It exports all seven tables. The structures below are its own definition of the interface. The C
// compiler determines where their fields lie, and `-DPRINT_LAYOUT` turns this file into a program
// that prints that.
//
//   $ECHO_LOG     the file that gets a line of JSON for each call
//   $ECHO_MASK    the activation mask to request, everything by default
//   $ECHO_SILENT  set: the out parameter of startEvent is not written
//   $ECHO_LATER   the mask to request from the first stop on
//   $ECHO_FAIL    what init returns, 0 by default; with $ECHO_FAIL_AT, only that init, counted from 1
//
// With `-DONLY=4` it exports the table of v4 alone.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- events that never changed, or only grew ----

struct proxy_op { int pid; uint8_t channelId; int peer, nSteps, chunkSize, isSend; };
struct proxy_step { int step; };
struct kernel_ch_v3 { uint8_t channelId; };
struct kernel_ch { uint8_t channelId; uint64_t pTimer; };
struct net_plugin { int64_t id; void *data; };
struct group_api { bool graphCaptured; int groupDepth; };
struct coll_api_v5 { const char *func; size_t count; const char *datatype; int root; void *stream; bool graphCaptured; };
struct coll_api_v7 { const char *func; size_t count; const char *datatype; int root; void *stream; bool graphCaptured;
                     uint64_t userTag; };
struct p2p_api_v5 { const char *func; size_t count; const char *datatype; void *stream; bool graphCaptured; };
struct p2p_api_v7 { const char *func; size_t count; const char *datatype; void *stream; bool graphCaptured;
                    uint64_t userTag; };
struct kernel_launch { void *stream; };
struct ce_coll_v6 { uint64_t seqNumber; const char *func; const void *sendBuff; void *recvBuff; size_t count; int root;
                    const char *datatype, *syncStrategy; bool intraBatchSync; uint32_t batchSize, numBatches, ceSeqNum;
                    void *stream; };
struct ce_coll_v7 { uint64_t seqNumber; const char *func; const void *sendBuff; void *recvBuff; size_t count; int root;
                    const char *datatype, *syncStrategy; bool intraBatchSync; uint32_t batchSize, numBatches, ceSeqNum;
                    void *stream; uint64_t userTag; };
struct ce_sync { bool isComplete; int nRanks; };
struct ce_batch { int numOps; size_t totalBytes; bool useIntraSync; };
struct kernel_phase { uint8_t channelId, phaseId; const char *phaseName; uint64_t pTimer; };

// ---- collectives and sends, version by version ----

struct coll_v1 { const char *name; uint64_t commHash, seqNumber; uint8_t func; const void *sendBuff; void *recvBuff;
                 size_t count; int root; uint8_t datatype; uint32_t op; size_t trafficBytes;
                 uint8_t nMaxChannels, nWarps, algo, proto; int isCollnet, isNvls; };
struct coll_v2 { const char *name; uint64_t commHash, seqNumber; const char *func; const void *sendBuff; void *recvBuff;
                 size_t count; int root; const char *datatype; size_t trafficBytes; uint8_t nMaxChannels, nWarps;
                 const char *algo, *proto; };
struct coll_v3 { const char *name; uint64_t commHash, seqNumber; const char *func; const void *sendBuff; void *recvBuff;
                 size_t count; int root; const char *datatype; uint8_t nMaxChannels, nWarps; const char *algo, *proto; };
struct coll_v4 { uint64_t seqNumber; const char *func; const void *sendBuff; void *recvBuff; size_t count; int root;
                 const char *datatype; uint8_t nChannels, nWarps; const char *algo, *proto; };
struct coll_v5 { uint64_t seqNumber; const char *func; const void *sendBuff; void *recvBuff; size_t count; int root;
                 const char *datatype; uint8_t nChannels, nWarps; const char *algo, *proto; void *parentGroup; };
struct coll_v7 { uint64_t seqNumber; const char *func; const void *sendBuff; void *recvBuff; size_t count; int root;
                 const char *datatype; uint8_t nChannels, nWarps; const char *algo, *proto; void *parentGroup;
                 const char *kernelVariant; bool isSymColl; uint64_t userTag; };
struct p2p_v1 { const char *name; uint64_t commHash; uint8_t func; void *buff; uint8_t datatype; size_t count; int peer; };
struct p2p_v2 { const char *name; uint64_t commHash; const char *func; void *buff; const char *datatype; size_t count;
                int peer; };
struct p2p_v4 { const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t nChannels; };
struct p2p_v5 { const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t nChannels;
                void *parentGroup; };
struct p2p_v7 { const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t nChannels;
                void *parentGroup; uint64_t userTag; };

// ---- descriptors, state arguments, payloads ----

struct descr1 { uint8_t type; void *parentObj; int rank; union {
    struct coll_v1 coll; struct p2p_v1 p2p; struct proxy_op proxyOp; struct proxy_step proxyStep; }; };
struct descr2 { uint8_t type; void *parentObj; int rank; union {
    struct coll_v2 coll; struct p2p_v2 p2p; struct proxy_op proxyOp; struct proxy_step proxyStep; }; };
struct descr3 { uint8_t type; void *parentObj; int rank; union {
    struct coll_v3 coll; struct p2p_v2 p2p; struct proxy_op proxyOp; struct proxy_step proxyStep;
    struct kernel_ch_v3 kernelCh; struct net_plugin netPlugin; }; };
struct descr4 { uint8_t type; void *parentObj; int rank; union {
    struct coll_v4 coll; struct p2p_v4 p2p; struct proxy_op proxyOp; struct proxy_step proxyStep;
    struct kernel_ch kernelCh; struct net_plugin netPlugin; }; };
struct descr5 { uint64_t type; void *parentObj; int rank; union {
    struct group_api groupApi; struct coll_api_v5 collApi; struct p2p_api_v5 p2pApi; struct kernel_launch kernelLaunch;
    struct coll_v5 coll; struct p2p_v5 p2p; struct proxy_op proxyOp; struct proxy_step proxyStep;
    struct kernel_ch kernelCh; struct net_plugin netPlugin; }; };
struct descr6 { uint64_t type; void *parentObj; int rank; union {
    struct group_api groupApi; struct coll_api_v5 collApi; struct p2p_api_v5 p2pApi; struct kernel_launch kernelLaunch;
    struct coll_v5 coll; struct p2p_v5 p2p; struct proxy_op proxyOp; struct proxy_step proxyStep;
    struct kernel_ch kernelCh; struct net_plugin netPlugin;
    struct ce_coll_v6 ceColl; struct ce_sync ceCollSync; struct ce_batch ceCollBatch; }; };
struct descr7 { uint64_t type; void *parentObj; int rank; union {
    struct group_api groupApi; struct coll_api_v7 collApi; struct p2p_api_v7 p2pApi; struct kernel_launch kernelLaunch;
    struct coll_v7 coll; struct p2p_v7 p2p; struct proxy_op proxyOp; struct proxy_step proxyStep;
    struct kernel_ch kernelCh; struct net_plugin netPlugin;
    struct ce_coll_v7 ceColl; struct ce_sync ceCollSync; struct ce_batch ceCollBatch; struct kernel_phase kernelPhase; }; };

union args1 { struct { size_t transSize; int steps; } proxyOp; struct { int appendedProxyOps; } proxyCtrl; };
union args4 { struct { size_t transSize; } proxyStep; struct { int appendedProxyOps; } proxyCtrl;
              struct { void *data; } netPlugin; struct { uint64_t pTimer; } kernelCh; };

struct ib { uint8_t type; struct { int device; uint64_t wr_id; int opcode, qpNum; size_t length; }; };
struct socket { uint8_t type; struct { int fd, op; size_t length; }; };

typedef struct {
  const char *name;
  void *init, *startEvent, *stopEvent, *recordEventState, *finalize;
} table;

// ---- what the compiler made of them ----

struct field { int version; const char *event, *name, *type; size_t offset, size; };

#define TYPE(x) _Generic((x), bool: "bool", uint8_t: "u8", int: "int", uint32_t: "u32", int64_t: "i64", \
                         uint64_t: "u64", const char *: "str", void *: "ptr", const void *: "ptr")
#define H(v, f) {v, "header", #f, TYPE(((struct descr##v *)0)->f), offsetof(struct descr##v, f), \
                 sizeof(((struct descr##v *)0)->f)},
#define F(v, e, f) {v, #e, #f, TYPE(((struct descr##v *)0)->e.f), offsetof(struct descr##v, e.f), \
                    sizeof(((struct descr##v *)0)->e.f)},
#define HEADER(v) H(v, type) H(v, parentObj) H(v, rank)
#define PROXY(v) F(v, proxyOp, pid) F(v, proxyOp, channelId) F(v, proxyOp, peer) F(v, proxyOp, nSteps) \
  F(v, proxyOp, chunkSize) F(v, proxyOp, isSend) F(v, proxyStep, step)
#define NAMED(v) F(v, coll, name) F(v, coll, commHash) F(v, p2p, name) F(v, p2p, commHash)
#define COLL(v) F(v, coll, seqNumber) F(v, coll, func) F(v, coll, sendBuff) F(v, coll, recvBuff) F(v, coll, count) \
  F(v, coll, root) F(v, coll, datatype) F(v, coll, nWarps) F(v, coll, algo) F(v, coll, proto)
#define P2P(v) F(v, p2p, func) F(v, p2p, buff) F(v, p2p, datatype) F(v, p2p, count) F(v, p2p, peer)
#define CHANNELS(v) F(v, coll, nChannels) F(v, p2p, nChannels)
#define KERNEL(v) F(v, kernelCh, channelId) F(v, kernelCh, pTimer)
#define NET(v) F(v, netPlugin, id) F(v, netPlugin, data)
#define API(v) F(v, groupApi, graphCaptured) F(v, groupApi, groupDepth) F(v, collApi, func) F(v, collApi, count) \
  F(v, collApi, datatype) F(v, collApi, root) F(v, collApi, stream) F(v, collApi, graphCaptured) F(v, p2pApi, func) \
  F(v, p2pApi, count) F(v, p2pApi, datatype) F(v, p2pApi, stream) F(v, p2pApi, graphCaptured) \
  F(v, kernelLaunch, stream) F(v, coll, parentGroup) F(v, p2p, parentGroup)
#define CE(v) F(v, ceColl, seqNumber) F(v, ceColl, func) F(v, ceColl, sendBuff) F(v, ceColl, recvBuff) \
  F(v, ceColl, count) F(v, ceColl, root) F(v, ceColl, datatype) F(v, ceColl, syncStrategy) \
  F(v, ceColl, intraBatchSync) F(v, ceColl, batchSize) F(v, ceColl, numBatches) F(v, ceColl, ceSeqNum) \
  F(v, ceColl, stream) F(v, ceCollSync, isComplete) F(v, ceCollSync, nRanks) F(v, ceCollBatch, numOps) \
  F(v, ceCollBatch, totalBytes) F(v, ceCollBatch, useIntraSync)

static const struct field fields[] = {
  HEADER(1) PROXY(1) NAMED(1) COLL(1) P2P(1) F(1, coll, op) F(1, coll, trafficBytes) F(1, coll, nMaxChannels)
  F(1, coll, isCollnet) F(1, coll, isNvls)
  HEADER(2) PROXY(2) NAMED(2) COLL(2) P2P(2) F(2, coll, trafficBytes) F(2, coll, nMaxChannels)
  HEADER(3) PROXY(3) NAMED(3) COLL(3) P2P(3) F(3, coll, nMaxChannels) F(3, kernelCh, channelId) NET(3)
  HEADER(4) PROXY(4) COLL(4) P2P(4) CHANNELS(4) KERNEL(4) NET(4)
  HEADER(5) PROXY(5) COLL(5) P2P(5) CHANNELS(5) KERNEL(5) NET(5) API(5)
  HEADER(6) PROXY(6) COLL(6) P2P(6) CHANNELS(6) KERNEL(6) NET(6) API(6) CE(6)
  HEADER(7) PROXY(7) COLL(7) P2P(7) CHANNELS(7) KERNEL(7) NET(7) API(7) CE(7)
  F(7, collApi, userTag) F(7, p2pApi, userTag) F(7, coll, kernelVariant) F(7, coll, isSymColl) F(7, coll, userTag)
  F(7, p2p, userTag) F(7, ceColl, userTag) F(7, kernelPhase, channelId) F(7, kernelPhase, phaseId)
  F(7, kernelPhase, phaseName) F(7, kernelPhase, pTimer)
};
static const size_t field_count = sizeof fields / sizeof *fields;

#ifdef PRINT_LAYOUT

#define A(v, s, e, f) printf("argument %d %s %s %s %zu %zu\n", v, #e, #f, TYPE(((union s *)0)->e.f), \
                             offsetof(union s, e.f), sizeof(((union s *)0)->e.f));
#define P(s, f) printf("payload 7 %s %s %s %zu %zu\n", #s, #f, TYPE(((struct s *)0)->f), offsetof(struct s, f), \
                       sizeof(((struct s *)0)->f));
#define T(f) printf("table 7 table %s %s %zu %zu\n", #f, TYPE(((table *)0)->f), offsetof(table, f), \
                    sizeof(((table *)0)->f));

int main(void) {
  const size_t sizes[] = {sizeof(struct descr1), sizeof(struct descr2), sizeof(struct descr3), sizeof(struct descr4),
                          sizeof(struct descr5), sizeof(struct descr6), sizeof(struct descr7)};
  for (size_t i = 0; i < field_count; i++) {
    const struct field *f = &fields[i];
    printf("field %d %s %s %s %zu %zu\n", f->version, f->event, f->name, f->type, f->offset, f->size);
  }
  for (int v = 1; v <= 7; v++) {
    printf("size %d %zu %zu\n", v, sizes[v - 1], v <= 3 ? sizeof(union args1) : sizeof(union args4));
    if (v <= 3) {
      A(v, args1, proxyOp, transSize) A(v, args1, proxyOp, steps) A(v, args1, proxyCtrl, appendedProxyOps)
    } else {
      A(v, args4, proxyStep, transSize) A(v, args4, proxyCtrl, appendedProxyOps) A(v, args4, netPlugin, data)
      A(v, args4, kernelCh, pTimer)
    }
  }
  P(ib, type) P(ib, device) P(ib, wr_id) P(ib, opcode) P(ib, qpNum) P(ib, length)
  P(socket, type) P(socket, fd) P(socket, op) P(socket, length)
  T(name) T(init) T(startEvent) T(stopEvent) T(recordEventState) T(finalize)
  printf("others 7 %zu %zu %zu\n", sizeof(struct ib), sizeof(struct socket), sizeof(table));
}

#else

// ---- the plugin ----

typedef void logger(int level, unsigned long flags, const char *origin, int line, const char *format, ...);

static uint64_t last_handle, last_context;
static int *nccl_mask;

struct line { char text[4096]; int length; };

static void add(struct line *l, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int room = (int)sizeof l->text - l->length;
  int n = vsnprintf(l->text + l->length, room, format, args);
  va_end(args);
  l->length += n < room ? n : room - 1;
}

// Adds a string, with replacements for what JSON cannot contain.
static void add_text(struct line *l, const char *text) {
  if (text == NULL) { add(l, "null"); return; }
  add(l, "\"");
  for (; *text; text++) add(l, "%c", *text < ' ' || *text > '~' || *text == '"' || *text == '\\' ? '?' : *text);
  add(l, "\"");
}

// One write per line, so that lines of several threads and processes do not mix.
static void put(struct line *l) {
  const char *path = getenv("ECHO_LOG");
  if (path == NULL) return;
  add(l, "}\n");
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (write(fd, l->text, l->length) < 0) abort();
  close(fd);
}

static void add_payload(struct line *l, int64_t id, const void *data) {
  if (id == ((1 << 16) | 1)) {
    const struct ib *e = data;
    add(l, ",\"ib\":[%d,%d,%lu,%d,%d,%zu]", e->type, e->device, e->wr_id, e->opcode, e->qpNum, e->length);
  } else if (id == ((2 << 16) | 1)) {
    const struct socket *e = data;
    add(l, ",\"socket\":[%d,%d,%d,%zu]", e->type, e->fd, e->op, e->length);
  }
}

static const char *member_of(uint64_t type) {
  static const char *const names[] = {"", "coll", "p2p", "proxyOp", "proxyStep", "", "kernelCh", "netPlugin", "groupApi",
    "collApi", "p2pApi", "kernelLaunch", "ceColl", "ceCollSync", "ceCollBatch", "kernelPhase"};
  for (int i = 0; i < 16; i++)
    if (type == UINT64_C(1) << i) return names[i];
  return "";
}

static void add_field(struct line *l, const struct field *f, const void *descr) {
  uint64_t bits = 0;
  memcpy(&bits, (const char *)descr + f->offset, f->size);
  add(l, ",\"%s\":", f->name);
  if (strcmp(f->type, "str") == 0) add_text(l, (const char *)bits);
  else if (strcmp(f->type, "ptr") == 0) add(l, "\"0x%lx\"", bits);
  else if (strcmp(f->type, "int") == 0) add(l, "%d", (int)bits);
  else add(l, "%lu", bits);
}

static int start(int version, void *context, void **handle, const void *descr) {
  uint64_t type = version <= 4 ? *(const uint8_t *)descr : *(const uint64_t *)descr;
  struct line l = {.length = 0};
  add(&l, "{\"call\":\"start\",\"version\":%d,\"tid\":%d,\"context\":\"%p\"", version, gettid(), context);
  if (getenv("ECHO_SILENT") == NULL) {
    *handle = (void *)__atomic_add_fetch(&last_handle, 1, __ATOMIC_RELAXED);
    add(&l, ",\"handle\":\"%p\"", *handle);
  }
  for (size_t i = 0; i < field_count; i++) {
    const struct field *f = &fields[i];
    if (f->version == version && (strcmp(f->event, "header") == 0 || strcmp(f->event, member_of(type)) == 0))
      add_field(&l, f, descr);
  }
  if (type == 128 && version >= 3) {
    const struct descr7 *d = descr;
    add_payload(&l, d->netPlugin.id, d->netPlugin.data);
  }
  put(&l);
  return 0;
}

static int stop(void *handle) {
  struct line l = {.length = 0};
  add(&l, "{\"call\":\"stop\",\"tid\":%d,\"handle\":\"%p\"", gettid(), handle);
  put(&l);
  const char *later = getenv("ECHO_LATER");
  if (later != NULL && nccl_mask != NULL) __atomic_store_n(nccl_mask, atoi(later), __ATOMIC_RELAXED);
  return 0;
}

static int state(void *handle, int number, const void *args) {
  const union args1 *a1 = args;
  const union args4 *a4 = args;
  struct line l = {.length = 0};
  add(&l, "{\"call\":\"state\",\"tid\":%d,\"handle\":\"%p\",\"state\":%d,\"args\":", gettid(), handle, number);
  if (args == NULL) add(&l, "null");
  else if (number < 8) add(&l, "[%lu,%d]", a1->proxyOp.transSize, a1->proxyOp.steps);
  else if (13 <= number && number <= 18) add(&l, "[%d]", a4->proxyCtrl.appendedProxyOps);
  else add(&l, "[%lu]", a4->kernelCh.pTimer);
  if (number == 21 && args != NULL) add_payload(&l, (2 << 16) | 1, a4->netPlugin.data);
  put(&l);
  return 0;
}

static int finalize(void *context) {
  struct line l = {.length = 0};
  add(&l, "{\"call\":\"finalize\",\"tid\":%d,\"context\":\"%p\"", gettid(), context);
  put(&l);
  return 0;
}

static int init(void **context, int *mask, uint64_t id, const char *name, int nodes, int ranks, int rank, logger *log) {
  const char *wanted = getenv("ECHO_MASK");
  *mask = wanted != NULL ? atoi(wanted) : 0xffff;
  nccl_mask = mask;
  *context = (void *)__atomic_add_fetch(&last_context, 0x100, __ATOMIC_RELAXED);
  struct line l = {.length = 0};
  add(&l, "{\"call\":\"init\",\"tid\":%d,\"context\":\"%p\",\"id\":%lu,\"nodes\":%d,\"ranks\":%d,\"rank\":%d,\"name\":",
      gettid(), *context, id, nodes, ranks, rank);
  add_text(&l, name);
  put(&l);
  if (log != NULL) log(3, 0x4000, "echo.c", 1, "rank %d of %d", rank, ranks);
  static int inits;
  const char *failure = getenv("ECHO_FAIL"), *at = getenv("ECHO_FAIL_AT");
  int number = __atomic_add_fetch(&inits, 1, __ATOMIC_RELAXED);
  return failure != NULL && (at == NULL || atoi(at) == number) ? atoi(failure) : 0;
}
static int init1(void **context, int *mask) { return init(context, mask, 0, NULL, 0, 0, 0, NULL); }
static int init4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank, logger *log) {
  return init(context, mask, hash, name, nodes, ranks, rank, log);
}
static int init5(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, logger *log) {
  return init(context, mask, id, name, nodes, ranks, rank, log);
}

#define TABLE(v, i) \
  static int start##v(void *context, void **handle, void *descr) { return start(v, context, handle, descr); } \
  table ncclProfiler_v##v = {"echo", init##i, start##v, stop, state, finalize};
#if !defined ONLY
TABLE(1, 1)
TABLE(2, 1)
TABLE(3, 1)
TABLE(4, 4)
TABLE(5, 5)
TABLE(6, 5)
#ifndef WITHOUT_V7
TABLE(7, 5)
#endif
#elif ONLY <= 3
#define ALONE(v) TABLE(v, 1)
#elif ONLY == 4
#define ALONE(v) TABLE(v, 4)
#else
#define ALONE(v) TABLE(v, 5)
#endif
#ifdef ONLY
ALONE(ONLY)
#endif

#endif
