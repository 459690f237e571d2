/* The types of CUDA that CUPTI's headers mention, as far as sizes and offsets in CUPTI's own structures depend on them. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef int CUdevice;
typedef int CUresult;
typedef int CUgraphNodeType;
typedef int CUstreamAttrID;
typedef int CUstreamAttrValue;
typedef int CUdevice_attribute;
typedef int CUfunction_attribute;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUaccessPolicyWindow_st CUaccessPolicyWindow;
typedef unsigned long long CUdeviceptr;
typedef struct { char bytes[16]; } CUuuid;
