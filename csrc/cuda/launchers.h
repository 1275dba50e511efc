/* What the CUDA objects offer: launches on a stream of the current device, in plain C, so that they
   are compiled without torch and linked to anything. Each returns a cudaError_t, 0 for success.
   Pointers are to memory of the device, strides in elements unless said otherwise. */
#ifndef ENSEMBLE_KERNELS_LAUNCHERS_H
#define ENSEMBLE_KERNELS_LAUNCHERS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

const char* ek_error_name(int error);

/* `compact_kv_`. A slot of a matrix is `groups` runs of `group_units` units of `unit_bytes` each. */
enum { EK_LEADING = 8 };
typedef struct {
  void* cache;
  const int64_t* keep;  /* [rows, kept], padded with -1 */
  const int64_t* start; /* [rows] */
  int64_t kept, keep_stride, keep_row_stride, start_stride;
  int64_t slots, slot_stride;                /* in bytes */
  int64_t groups, group_units, group_stride; /* in bytes */
  int64_t matrices;
  int64_t sizes[EK_LEADING], strides[EK_LEADING]; /* in bytes */
  int32_t leading;                                /* dimensions in use */
  int32_t batch;                                  /* the one that `keep` differs by, or -1 */
  int32_t unit_bytes;                             /* 1, 2, 4, 8 or 16, and all is aligned to it */
} EkCompaction;
int ek_compact_kv(const EkCompaction* call, void* stream);

#ifdef __cplusplus
}
#endif

#endif
