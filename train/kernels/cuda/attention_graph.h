/* Attention over a ragged batch as a cuDNN operation graph. Internal to the CUDA set; see attention_graph.c. */
#ifndef TRAIN_CUDA_ATTENTION_GRAPH_H
#define TRAIN_CUDA_ATTENTION_GRAPH_H

#include <cudnn.h>
#include <stddef.h>
#include <stdint.h>

/* What a query sees of its sample's keys. */
typedef enum cuda_plan_mask {
    PLAN_CAUSAL,        /* those up to its own place, */
    PLAN_SLIDING,       /* the last PLAN_WIDTH of them; the first query is at the place of the first key */
    PLAN_WITHOUT_MASK,  /* all */
    PLAN_CAUSAL_AT_END, /* as the first two; the last query is at the place of the last key */
    PLAN_SLIDING_AT_END,
    PLAN_MASKS
} cuda_plan_mask;

/* The key of a plan: every stride and count that cuDNN compiles in. */
typedef struct cuda_plan_key {
    int32_t samples;                    /* entries of the batch; unused ones have length 0 */
    int32_t longest_query, longest_key; /* at least the largest length */
    int32_t heads, kv_heads, head_dim;
    int32_t backward;
    int32_t deterministic; /* backward: dQ without atomics, through a workspace of samples * heads * longest_query *
                              longest_key bf16 */
    int32_t mask, reserved;
    int64_t ld_q, ld_k, ld_v; /* elements between tokens; gradients have the same */
} cuda_plan_key;

/* Tensors of a plan: its identity in cuDNN's variant pack is the value here. */
typedef enum cuda_plan_tensor {
    PLAN_NONE,
    PLAN_LENGTHS_Q,
    PLAN_LENGTHS_KV,
    PLAN_OFFSETS_Q, /* int64 [samples + 1] in elements of the tensor */
    PLAN_OFFSETS_K,
    PLAN_OFFSETS_V,
    PLAN_OFFSETS_O,
    PLAN_OFFSETS_LSE,
    PLAN_Q,
    PLAN_K,
    PLAN_V,
    PLAN_O,
    PLAN_LSE,
    PLAN_SCALE, /* by value, as the next four */
    PLAN_PADDING,
    PLAN_HIDDEN,
    PLAN_WIDTH,
    PLAN_ONE,
    PLAN_D_O, /* backward from here */
    PLAN_D_Q,
    PLAN_D_K,
    PLAN_D_V,
    PLAN_ROW_SUMS,  /* float [samples, heads, longest_query] */
    PLAN_D_Q_F32,   /* float, as q; not with deterministic */
    PLAN_D_K_HEADS, /* bf16 per query head, as k with every stride times heads / kv_heads; only if they differ */
    PLAN_D_V_HEADS,
    PLAN_TENSORS
} cuda_plan_tensor;

/* Builds the plan for the handle's GPU. 0, or cuDNN's status, with its message in `sentence`. Without a handle (NULL)
 * it is planned for a GPU that need not be there, `described` by cuDNN's JSON of device properties: whether cuDNN has
 * an engine, and what workspace it takes. */
cudnnStatus_t cuda_plan_build(cudnnHandle_t handle, const char *described, const cuda_plan_key *key,
                              cudnnBackendDescriptor_t *plan, int64_t *workspace, char *sentence,
                              size_t sentence_bytes);
/* A plan from the JSON text that cuda_plan_text gave; the same status. */
cudnnStatus_t cuda_plan_from_text(cudnnHandle_t handle, const char *text, size_t bytes, cudnnBackendDescriptor_t *plan,
                                  int64_t *workspace);
/* The plan as JSON, to be freed; NULL if cuDNN gives none. */
char *cuda_plan_text(cudnnBackendDescriptor_t plan, size_t *bytes);
/* Runs it. `pointers` is indexed by cuda_plan_tensor; NULL ones are left out. */
cudnnStatus_t cuda_plan_run(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, void *const pointers[PLAN_TENSORS],
                            void *workspace);

#endif
