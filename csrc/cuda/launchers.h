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

enum { EK_FLOAT32, EK_FLOAT64, EK_FLOAT16, EK_BFLOAT16 };

/* `compact_kv_`. A slot of a matrix is `groups` runs of `group_units` units of `unit_bytes`. */
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

/* `token_statistics`. */
typedef struct {
  const void* logits;
  const int64_t* token_ids;
  int64_t rows, vocab_size, row_stride, column_stride, id_stride;
  int64_t stretches; /* set by the launcher */
  double factor;     /* log2(e) / temperature */
  float *logprob, *max_logprob, *logsumexp, *entropy;
  int64_t* argmax;
  void* parts; /* of ek_token_statistics_parts bytes */
  int32_t type;
} EkTokenStatistics;
int64_t ek_token_statistics_parts(int64_t rows, int64_t vocab_size);
int ek_token_statistics(const EkTokenStatistics* call, void* stream);

/* `segment_mean`. */
typedef struct {
  const void* values;
  const int32_t* offsets; /* [segments + 1] */
  int64_t segments, stride, offset_stride;
  float* means;
  int32_t type;
} EkSegmentMean;
int ek_segment_mean(const EkSegmentMean* call, void* stream);

/* What the operators over a union vocabulary share. The maps are contiguous. */
enum { EK_MODELS = 16 };
typedef struct {
  const void* logits;     /* [rows, width] */
  const int32_t* offsets; /* [size + 1] */
  const int32_t* ids;     /* [id_count] */
  int64_t row_stride, column_stride, width, id_count;
  int32_t type;
} EkUnionModel;
typedef struct {
  EkUnionModel models[EK_MODELS];
  const float *weights, *temperature; /* [count], contiguous; not normalised */
  int64_t rows, size;
  int32_t count;
  int32_t in_double; /* whether any model's logits are */
} EkUnionModels;

/* `mix_distributions`. */
typedef struct {
  EkUnionModels all;
  float* probabilities; /* [rows, size] */
  float* lost_mass;     /* [count, rows] */
  uint8_t* fell_back;   /* [rows] */
  int32_t geometric;
  void* workspace;           /* of ek_mix_distributions_workspace bytes */
  int64_t stretches, chunks; /* of all models, and of the union; set by the launcher */
} EkMixture;
int64_t ek_mix_distributions_workspace(const EkUnionModels* all);
int ek_mix_distributions(const EkMixture* call, void* stream);

/* `sharpen_prefixes`. */
typedef struct {
  const void* probabilities; /* [rows, size] */
  const int32_t* prefix_end; /* [size] */
  const int64_t* columns;    /* [rows, candidates] */
  int64_t rows, size, candidates;
  int64_t row_stride, column_stride, end_stride, candidate_row_stride, candidate_stride;
  double threshold; /* as the dtype rounds it */
  void* sharpened;  /* [rows, size] */
  double* sums;     /* of ek_sharpen_prefixes_sums numbers */
  int32_t type;
} EkSharpening;
int64_t ek_sharpen_prefixes_sums(int64_t rows, int64_t size);
int ek_sharpen_prefixes(const EkSharpening* call, void* stream);

/* `top_k_union`. */
typedef struct {
  EkUnionModels all;
  const int32_t* score_columns[EK_MODELS]; /* [size] */
  int64_t k, width;     /* of a row of the results */
  int64_t* columns;     /* [rows, width] */
  float* probabilities; /* [rows, width] */
  void* workspace;      /* of ek_top_k_union_workspace bytes */
} EkTopK;
int64_t ek_top_k_union_workspace(const EkTopK* call);
int ek_top_k_union(const EkTopK* call, void* stream);

/* `merge_attention_states`. All contiguous. */
typedef struct {
  const void* states; /* [splits, rows, size] */
  const float* lse;   /* [splits, rows] */
  int64_t splits, rows, size;
  void* out;         /* [rows, size] */
  float* merged_lse; /* [rows] */
  int32_t type;
  int32_t aligned; /* set by the launcher */
} EkAttentionStates;
int ek_merge_attention_states(const EkAttentionStates* call, void* stream);

#ifdef __cplusplus
}
#endif

#endif
