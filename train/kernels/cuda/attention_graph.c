/* Attention over a ragged batch as a cuDNN operation graph (cuDNN 9.6 and later).
 *
 * cuDNN recognises these operations, in this order, and replaces them by one fused kernel; another order computes the
 * same and is slower. With S = [samples, heads, longest_query, longest_key], which is never stored:
 *
 *   forward    S = Q K' scale, -inf outside the sample, -inf where the mask hides the key
 *              m = max S, l = sum exp(S - m), lse = m + log l
 *              O = (exp(S - m) / l) V
 *   backward   sums = rows of dO * O           P = exp(masked(Q K' scale) - lse)
 *              dV = P' dO                      dS = P * (dO V' - sums) * scale
 *              dK = dS' Q                      dQ = dS K
 *
 * Samples are rows of one token axis: a tensor has an array of offsets, in its own elements, of where each sample
 * begins. dK and dV are made per query head and then added over the heads that share a key head. The row sums are a
 * dense tensor although everything else is ragged, because cuDNN has a faster kernel for that. */
#include "train/kernels/cuda/attention_graph.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef cudnnBackendDescriptor_t descriptor;

enum { MOST_OPERATIONS = 40, MOST_DESCRIPTORS = 256 };

/* The graph being built. The first failure is stored and later calls do nothing. */
typedef struct graph {
    const cuda_plan_key *key;
    cudnnStatus_t status;
    const char *at; /* what failed */
    descriptor made[MOST_DESCRIPTORS];
    int made_count;
    descriptor operations[MOST_OPERATIONS];
    int operation_count;
    int64_t virtual_id; /* of virtual tensors: intermediate results without memory */
} graph;

typedef struct dims {
    int64_t n[4];
} dims;

static dims of(int64_t a, int64_t b, int64_t c, int64_t d) {
    return (dims){{a, b, c, d}};
}

static const dims ONE = {{1, 1, 1, 1}};

static void check(graph *g, cudnnStatus_t status, const char *at) {
    if (g->status || !status) return;
    g->status = status;
    g->at = at;
}

static descriptor make(graph *g, cudnnBackendDescriptorType_t type) {
    descriptor d = NULL;
    if (g->status) return NULL;
    if (g->made_count == MOST_DESCRIPTORS) {
        check(g, CUDNN_STATUS_INTERNAL_ERROR, "too many descriptors");
        return NULL;
    }
    check(g, cudnnBackendCreateDescriptor(type, &d), "create");
    if (d) g->made[g->made_count++] = d;
    return d;
}

static void set(graph *g, descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *value) {
    if (!g->status) check(g, cudnnBackendSetAttribute(d, name, type, count, value), "attribute");
}

static void set_descriptor(graph *g, descriptor d, cudnnBackendAttributeName_t name, descriptor value) {
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finalize(graph *g, descriptor d, const char *at) {
    if (!g->status) check(g, cudnnBackendFinalize(d), at);
}

static void operation(graph *g, descriptor d) {
    finalize(g, d, "operation");
    if (g->operation_count == MOST_OPERATIONS) check(g, CUDNN_STATUS_INTERNAL_ERROR, "too many operations");
    if (!g->status) g->operations[g->operation_count++] = d;
}

/* ---- tensors --------------------------------------------------------------------------------------------- */

static descriptor tensor(graph *g, cuda_plan_tensor id, cudnnDataType_t type, dims size, dims stride,
                         descriptor offsets) {
    descriptor d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t unique = id == PLAN_NONE ? PLAN_TENSORS + g->virtual_id++ : id, alignment = 16;
    bool is_virtual = id == PLAN_NONE, by_value = id >= PLAN_SCALE && id <= PLAN_ONE;
    set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, size.n);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride.n);
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &unique);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    if (offsets) set_descriptor(g, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets);
    finalize(g, d, "tensor");
    return d;
}

static descriptor offsets_of(graph *g, cuda_plan_tensor id) {
    return tensor(g, id, CUDNN_DATA_INT64, of(g->key->samples + 1, 1, 1, 1), ONE, NULL);
}

/* [samples, heads, longest_query, head_dim] of rows `ld` apart. */
static descriptor query_rows(graph *g, cuda_plan_tensor id, cudnnDataType_t type, int64_t ld, descriptor offsets) {
    const cuda_plan_key *k = g->key;
    int64_t s = k->longest_query;
    return tensor(g, id, type, of(k->samples, k->heads, s, k->head_dim), of(s * ld, k->head_dim, ld, 1), offsets);
}

/* [samples, count, longest_key, head_dim] of rows `ld` apart. */
static descriptor key_rows(graph *g, cuda_plan_tensor id, int64_t count, int64_t ld, descriptor offsets) {
    const cuda_plan_key *k = g->key;
    int64_t s = k->longest_key;
    return tensor(g, id, CUDNN_DATA_BFLOAT16, of(k->samples, count, s, k->head_dim), of(s * ld, k->head_dim, ld, 1),
                  offsets);
}

/* Rows of keys or values, seen as [samples, kv_heads, head_dim, longest_key]. */
static descriptor transposed(graph *g, cuda_plan_tensor id, int64_t ld, descriptor offsets) {
    const cuda_plan_key *k = g->key;
    int64_t s = k->longest_key;
    return tensor(g, id, CUDNN_DATA_BFLOAT16, of(k->samples, k->kv_heads, k->head_dim, s),
                  of(s * ld, k->head_dim, 1, ld), offsets);
}

/* Score-shaped: [samples, heads, longest_query, longest_key]. */
static descriptor scores(graph *g, cudnnDataType_t type) {
    int64_t q = g->key->longest_query, k = g->key->longest_key, h = g->key->heads;
    return tensor(g, PLAN_NONE, type, of(g->key->samples, h, q, k), of(h * q * k, q * k, k, 1), NULL);
}

/* One number per query and head: [samples, heads, longest_query, 1], dense. */
static descriptor numbers(graph *g, cuda_plan_tensor id) {
    int64_t s = g->key->longest_query, h = g->key->heads;
    return tensor(g, id, CUDNN_DATA_FLOAT, of(g->key->samples, h, s, 1), of(h * s, s, 1, 1), NULL);
}

/* ---- operations ------------------------------------------------------------------------------------------ */

typedef struct pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t math;
    int64_t axis; /* of GEN_INDEX */
    descriptor x, b, t;
} pointwise;

static void pointwise_to(graph *g, descriptor y, pointwise p) {
    descriptor what = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, what, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p.mode);
    set(g, what, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &p.math);
    if (p.mode == CUDNN_POINTWISE_GEN_INDEX) set(g, what, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p.axis);
    finalize(g, what, "pointwise");
    descriptor d = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p.x);
    if (p.b) set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p.b);
    if (p.t) set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p.t);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    operation(g, d);
}

/* y = mode(x, b) in float, score-shaped unless y is given. */
static descriptor floats(graph *g, cudnnPointwiseMode_t mode, descriptor x, descriptor b, descriptor y) {
    if (!y) y = scores(g, CUDNN_DATA_FLOAT);
    pointwise_to(g, y, (pointwise){mode, CUDNN_DATA_FLOAT, 0, x, b, NULL});
    return y;
}

static descriptor index_of(graph *g, descriptor x, int64_t axis, cudnnDataType_t math) {
    descriptor y = scores(g, CUDNN_DATA_INT32);
    pointwise_to(g, y, (pointwise){CUDNN_POINTWISE_GEN_INDEX, math, axis, x, NULL, NULL});
    return y;
}

static descriptor compare(graph *g, cudnnPointwiseMode_t mode, descriptor a, descriptor b) {
    descriptor y = scores(g, CUDNN_DATA_BOOLEAN);
    pointwise_to(g, y, (pointwise){mode, CUDNN_DATA_BOOLEAN, 0, a, b, NULL});
    return y;
}

static descriptor select_where(graph *g, descriptor mask, descriptor x, descriptor otherwise) {
    descriptor y = scores(g, CUDNN_DATA_FLOAT);
    pointwise_to(g, y, (pointwise){CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0, x, otherwise, mask});
    return y;
}

/* c = a b; the lengths say how much of each axis is there in a sample. */
static void product(graph *g, descriptor a, descriptor b, descriptor c, descriptor m, descriptor n, descriptor k) {
    cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    descriptor what = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(g, what, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32);
    finalize(g, what, "matmul");
    descriptor d = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, what);
    if (m) set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m);
    if (n) set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n);
    if (k) set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k);
    operation(g, d);
}

static void reduce(graph *g, cudnnReduceTensorOp_t how, descriptor x, descriptor y) {
    cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    bool deterministic = false;
    descriptor what = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, what, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32);
    set(g, what, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    set(g, what, CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC, CUDNN_TYPE_BOOLEAN, 1, &deterministic);
    finalize(g, what, "reduction");
    descriptor d = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, what);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    operation(g, d);
}

static void reshape(graph *g, descriptor x, descriptor y) {
    descriptor d = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    operation(g, d);
}

/* ---- the two graphs -------------------------------------------------------------------------------------- */

/* The parts that both graphs share. */
typedef struct common {
    descriptor lengths_q, lengths_kv, offsets_q, offsets_k, offsets_v, offsets_o;
    descriptor q, k_transposed, o, lse, scale, padding, hidden, width;
} common;

static bool at_end(const graph *g) {
    return g->key->mask == PLAN_CAUSAL_AT_END || g->key->mask == PLAN_SLIDING_AT_END;
}

static bool slides(const graph *g) {
    return g->key->mask == PLAN_SLIDING || g->key->mask == PLAN_SLIDING_AT_END;
}

static common common_tensors(graph *g) {
    const cuda_plan_key *k = g->key;
    int64_t s = k->longest_query, h = k->heads;
    common c;
    c.lengths_q = tensor(g, PLAN_LENGTHS_Q, CUDNN_DATA_INT32, of(k->samples, 1, 1, 1), ONE, NULL);
    c.lengths_kv = tensor(g, PLAN_LENGTHS_KV, CUDNN_DATA_INT32, of(k->samples, 1, 1, 1), ONE, NULL);
    c.offsets_q = offsets_of(g, PLAN_OFFSETS_Q);
    c.offsets_k = offsets_of(g, PLAN_OFFSETS_K);
    c.offsets_v = offsets_of(g, PLAN_OFFSETS_V);
    c.offsets_o = offsets_of(g, PLAN_OFFSETS_O);
    descriptor offsets_lse = offsets_of(g, PLAN_OFFSETS_LSE);
    c.q = query_rows(g, PLAN_Q, CUDNN_DATA_BFLOAT16, k->ld_q, c.offsets_q);
    c.k_transposed = transposed(g, PLAN_K, k->ld_k, c.offsets_k);
    c.o = query_rows(g, PLAN_O, CUDNN_DATA_BFLOAT16, h * k->head_dim, c.offsets_o);
    c.lse = tensor(g, PLAN_LSE, CUDNN_DATA_FLOAT, of(k->samples, h, s, 1), of(h * s, 1, h, 1), offsets_lse);
    c.scale = tensor(g, PLAN_SCALE, CUDNN_DATA_FLOAT, ONE, ONE, NULL);
    c.padding = tensor(g, PLAN_PADDING, CUDNN_DATA_FLOAT, ONE, ONE, NULL);
    c.hidden = k->mask == PLAN_WITHOUT_MASK ? NULL : tensor(g, PLAN_HIDDEN, CUDNN_DATA_FLOAT, ONE, ONE, NULL);
    c.width = slides(g) ? tensor(g, PLAN_WIDTH, CUDNN_DATA_FLOAT, ONE, ONE, NULL) : NULL;
    return c;
}

/* Q K' scale, -inf outside the sample. */
static descriptor scaled_scores(graph *g, const common *c) {
    descriptor raw = scores(g, CUDNN_DATA_FLOAT);
    product(g, c->q, c->k_transposed, raw, c->lengths_q, c->lengths_kv, NULL);
    descriptor scaled = floats(g, CUDNN_POINTWISE_MUL, raw, c->scale, NULL);
    descriptor row = index_of(g, scaled, 2, CUDNN_DATA_INT32), column = index_of(g, scaled, 3, CUDNN_DATA_INT32);
    descriptor row_in = compare(g, CUDNN_POINTWISE_CMP_LT, row, c->lengths_q);
    descriptor column_in = compare(g, CUDNN_POINTWISE_CMP_LT, column, c->lengths_kv);
    return select_where(g, compare(g, CUDNN_POINTWISE_LOGICAL_AND, row_in, column_in), scaled, c->padding);
}

/* Row + keys - queries: cuDNN's fused kernels know it in integers only. */
static descriptor moved_row(graph *g, const common *c, descriptor row) {
    descriptor sum = scores(g, CUDNN_DATA_INT32), place = scores(g, CUDNN_DATA_INT32);
    pointwise_to(g, sum, (pointwise){CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, 0, row, c->lengths_kv, NULL});
    pointwise_to(g, place, (pointwise){CUDNN_POINTWISE_SUB, CUDNN_DATA_INT32, 0, sum, c->lengths_q, NULL});
    return place;
}

/* -inf after the query's own place. */
static descriptor causal(graph *g, const common *c, descriptor x) {
    cudnnDataType_t math = at_end(g) ? CUDNN_DATA_INT32 : CUDNN_DATA_FLOAT;
    descriptor row = index_of(g, x, 2, math);
    if (at_end(g)) row = moved_row(g, c, row);
    descriptor column = index_of(g, x, 3, math);
    return select_where(g, compare(g, CUDNN_POINTWISE_CMP_GE, row, column), x, c->hidden);
}

/* -inf `width` places and more before the query's own; the column is moved, as `row` may be an integer. */
static descriptor sliding(graph *g, const common *c, descriptor x) {
    cudnnDataType_t math = at_end(g) ? CUDNN_DATA_INT32 : CUDNN_DATA_FLOAT;
    descriptor row = index_of(g, x, 2, math), column = index_of(g, x, 3, math);
    descriptor end = floats(g, CUDNN_POINTWISE_ADD, column, c->width, NULL);
    if (at_end(g)) {
        end = floats(g, CUDNN_POINTWISE_SUB, end, c->lengths_kv, NULL);
        end = floats(g, CUDNN_POINTWISE_ADD, end, c->lengths_q, NULL);
    }
    return select_where(g, compare(g, CUDNN_POINTWISE_CMP_GT, end, row), x, c->hidden);
}

static descriptor masked(graph *g, const common *c, descriptor x) {
    if (g->key->mask == PLAN_WITHOUT_MASK) return x;
    x = causal(g, c, x);
    return slides(g) ? sliding(g, c, x) : x;
}

static void forward(graph *g) {
    const cuda_plan_key *k = g->key;
    common c = common_tensors(g);
    descriptor v = key_rows(g, PLAN_V, k->kv_heads, k->ld_v, c.offsets_v);
    descriptor s = masked(g, &c, scaled_scores(g, &c));
    descriptor most = numbers(g, PLAN_NONE), sum = numbers(g, PLAN_NONE), log_sum = numbers(g, PLAN_NONE);
    reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, most);
    descriptor e = floats(g, CUDNN_POINTWISE_EXP, floats(g, CUDNN_POINTWISE_SUB, s, most, NULL), NULL, NULL);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, sum);
    floats(g, CUDNN_POINTWISE_LOG, sum, NULL, log_sum);
    floats(g, CUDNN_POINTWISE_ADD, most, log_sum, c.lse);
    descriptor p = floats(g, CUDNN_POINTWISE_DIV, e, sum, scores(g, CUDNN_DATA_BFLOAT16));
    product(g, p, v, c.o, c.lengths_q, NULL, c.lengths_kv);
}

/* x' in bf16, which only a reshape makes. */
static descriptor turned(graph *g, descriptor x) {
    int64_t q = g->key->longest_query, k = g->key->longest_key, h = g->key->heads;
    descriptor y =
        tensor(g, PLAN_NONE, CUDNN_DATA_BFLOAT16, of(g->key->samples, h, k, q), of(h * q * k, q * k, 1, k), NULL);
    reshape(g, x, y);
    return y;
}

/* d = a b for keys or values: straight into d, or per query head and then added over the heads that share a key
 * head. */
static void key_gradient(graph *g, const common *c, descriptor a, descriptor b, cuda_plan_tensor id,
                         cuda_plan_tensor heads_id, int64_t ld, descriptor offsets) {
    const cuda_plan_key *k = g->key;
    int64_t group = k->heads / k->kv_heads;
    descriptor d = key_rows(g, id, k->kv_heads, ld, offsets);
    descriptor each = group == 1 ? d : key_rows(g, heads_id, k->heads, ld * group, offsets);
    product(g, a, b, each, c->lengths_kv, NULL, c->lengths_q);
    if (group > 1) reduce(g, CUDNN_REDUCE_TENSOR_ADD, each, d);
}

static void backward(graph *g) {
    const cuda_plan_key *k = g->key;
    int64_t s = k->longest_query, h = k->heads, width = k->head_dim;
    common c = common_tensors(g);
    descriptor v_transposed = transposed(g, PLAN_V, k->ld_v, c.offsets_v);
    descriptor d_o = query_rows(g, PLAN_D_O, CUDNN_DATA_BFLOAT16, h * width, c.offsets_o);
    descriptor d_q = query_rows(g, PLAN_D_Q, CUDNN_DATA_BFLOAT16, k->ld_q, c.offsets_q);
    descriptor one = tensor(g, PLAN_ONE, CUDNN_DATA_FLOAT, ONE, ONE, NULL);
    /* row sums of dO * O */
    descriptor products = tensor(g, PLAN_NONE, CUDNN_DATA_FLOAT, of(k->samples, h, s, width),
                                 of(h * s * width, s * width, h * width, 1), NULL);
    descriptor added = numbers(g, PLAN_NONE), sums = numbers(g, PLAN_ROW_SUMS);
    floats(g, CUDNN_POINTWISE_MUL, d_o, c.o, products);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, products, added);
    floats(g, CUDNN_POINTWISE_MUL, added, one, sums);
    /* P; the log-sum-exp is taken off before the mask */
    descriptor less = floats(g, CUDNN_POINTWISE_SUB, scaled_scores(g, &c), c.lse, NULL);
    descriptor p = floats(g, CUDNN_POINTWISE_EXP, masked(g, &c, less), NULL, NULL);
    key_gradient(g, &c, turned(g, p), d_o, PLAN_D_V, PLAN_D_V_HEADS, k->ld_v, c.offsets_v);
    descriptor d_p = scores(g, CUDNN_DATA_FLOAT);
    product(g, d_o, v_transposed, d_p, c.lengths_q, c.lengths_kv, NULL);
    descriptor d_s = floats(g, CUDNN_POINTWISE_MUL, floats(g, CUDNN_POINTWISE_SUB, d_p, sums, NULL), p, NULL);
    d_s = floats(g, CUDNN_POINTWISE_MUL, d_s, c.scale, NULL);
    key_gradient(g, &c, turned(g, d_s), c.q, PLAN_D_K, PLAN_D_K_HEADS, k->ld_k, c.offsets_k);
    descriptor keys = key_rows(g, PLAN_NONE, k->kv_heads, k->ld_k, c.offsets_k);
    reshape(g, c.k_transposed, keys);
    if (k->deterministic) {
        product(g, d_s, keys, d_q, c.lengths_q, NULL, c.lengths_kv);
        return;
    }
    descriptor sum = query_rows(g, PLAN_D_Q_F32, CUDNN_DATA_FLOAT, k->ld_q, c.offsets_q);
    product(g, d_s, keys, sum, c.lengths_q, NULL, c.lengths_kv);
    floats(g, CUDNN_POINTWISE_IDENTITY, sum, NULL, d_q);
}

/* ---- plans ----------------------------------------------------------------------------------------------- */

static descriptor described_gpu(graph *g, const char *properties) {
    descriptor d = make(g, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set(g, d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(properties), properties);
    finalize(g, d, "GPU description");
    return d;
}

/* The plan of one configuration, on the handle's GPU or the described one. */
static cudnnStatus_t plan_of(cudnnHandle_t handle, descriptor gpu, descriptor configuration, descriptor *plan) {
    descriptor d;
    cudnnStatus_t s = cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &d);
    if (s) return s;
    s = handle
            ? cudnnBackendSetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle)
            : cudnnBackendSetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &gpu);
    if (!s)
        s = cudnnBackendSetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                     &configuration);
    if (!s) s = cudnnBackendFinalize(d);
    if (s)
        cudnnBackendDestroyDescriptor(d);
    else
        *plan = d;
    return s;
}

/* The first configuration of the heuristics that becomes a plan. */
static descriptor finish(graph *g, cudnnHandle_t handle, const char *described) {
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor configurations[8], plan = NULL, gpu = handle ? NULL : described_gpu(g, described);
    int64_t count = 0;
    descriptor whole = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (handle) set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->operation_count, g->operations);
    finalize(g, whole, "graph");
    descriptor heuristics = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (gpu) set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, gpu);
    finalize(g, heuristics, "heuristics");
    for (int i = 0; i < 8; i++) configurations[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->status) return NULL;
    check(g,
          cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 8, &count,
                                   configurations),
          "engines");
    cudnnStatus_t last = CUDNN_STATUS_NOT_SUPPORTED;
    for (int64_t i = 0; i < count && i < 8 && !g->status; i++) {
        last = plan_of(handle, gpu, configurations[i], &plan);
        if (!last) return plan;
    }
    check(g, last, "no engine");
    return NULL;
}

static cudnnStatus_t workspace_of(descriptor plan, int64_t *bytes) {
    int64_t count;
    return cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, bytes);
}

cudnnStatus_t cuda_plan_build(cudnnHandle_t handle, const char *described, const cuda_plan_key *key,
                              cudnnBackendDescriptor_t *plan, int64_t *workspace, char *sentence,
                              size_t sentence_bytes) {
    graph g = {.key = key};
    if (key->backward)
        backward(&g);
    else
        forward(&g);
    descriptor built = finish(&g, handle, described);
    if (built) check(&g, workspace_of(built, workspace), "workspace");
    for (int i = g.made_count - 1; i >= 0; i--) cudnnBackendDestroyDescriptor(g.made[i]);
    if (!g.status) {
        *plan = built;
        return CUDNN_STATUS_SUCCESS;
    }
    if (built) cudnnBackendDestroyDescriptor(built);
    char said[256] = "";
    cudnnGetLastErrorString(said, sizeof said);
    snprintf(sentence, sentence_bytes, "cuDNN attention (%s): %s %s", g.at, cudnnGetErrorString(g.status), said);
    return g.status;
}

cudnnStatus_t cuda_plan_from_text(cudnnHandle_t handle, const char *text, size_t bytes, cudnnBackendDescriptor_t *plan,
                                  int64_t *workspace) {
    descriptor d;
    cudnnStatus_t s = cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &d);
    if (s) return s;
    s = cudnnBackendSetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    if (!s)
        s = cudnnBackendSetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)bytes,
                                     text);
    if (!s) s = cudnnBackendFinalize(d);
    if (!s) s = workspace_of(d, workspace);
    if (s)
        cudnnBackendDestroyDescriptor(d);
    else
        *plan = d;
    return s;
}

char *cuda_plan_text(cudnnBackendDescriptor_t plan, size_t *bytes) {
    int64_t count = 0;
    if (cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, &count,
                                 NULL) ||
        count <= 0)
        return NULL;
    char *text = malloc((size_t)count + 1);
    if (!text) return NULL;
    if (cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, count, &count,
                                 text)) {
        free(text);
        return NULL;
    }
    text[count] = 0;
    *bytes = strlen(text);
    return text;
}

cudnnStatus_t cuda_plan_run(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, void *const pointers[PLAN_TENSORS],
                            void *workspace) {
    int64_t ids[PLAN_TENSORS], count = 0;
    void *values[PLAN_TENSORS];
    descriptor pack;
    for (int i = 1; i < PLAN_TENSORS; i++)
        if (pointers[i]) {
            ids[count] = i;
            values[count++] = pointers[i];
        }
    cudnnStatus_t s = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (s) return s;
    s = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
    if (!s)
        s = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, values);
    if (!s) s = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (!s) s = cudnnBackendFinalize(pack);
    if (!s) s = cudnnBackendExecute(handle, plan, pack);
    cudnnBackendDestroyDescriptor(pack);
    return s;
}
